/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* alloc_default.c -- malloc and free as a struct kvg_alloc.
 *
 * What is large is begun on a large page, and the kernel is asked to use such pages: the tables of
 * an index or a tree are read at random, and with small pages nearly every read would miss the
 * TLB as well as the cache. */
#include <kvgraft/base.h>

#include <stdlib.h>
#include <sys/mman.h>

#define LARGE_PAGE_BYTES ((size_t)2 << 20)

static void *allocate(void *context, size_t bytes)
{
    (void)context;
#ifdef MADV_HUGEPAGE
    if (bytes >= LARGE_PAGE_BYTES && bytes <= SIZE_MAX - LARGE_PAGE_BYTES) {
        size_t whole = (bytes + LARGE_PAGE_BYTES - 1) & ~(LARGE_PAGE_BYTES - 1);
        void *memory = aligned_alloc(LARGE_PAGE_BYTES, whole);
        if (memory != NULL)
            (void)madvise(memory, whole, MADV_HUGEPAGE); /* Advice: it may be refused. */
        return memory;
    }
#endif
    return malloc(bytes);
}

static void release(void *context, void *memory, size_t bytes)
{
    (void)context;
    (void)bytes;
    free(memory);
}

const struct kvg_alloc *kvg_alloc_default(void)
{
    static const struct kvg_alloc DEFAULT = {.allocate = allocate, .release = release};

    return &DEFAULT;
}
