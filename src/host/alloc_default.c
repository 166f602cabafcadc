/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* alloc_default.c -- malloc and free as a struct kvg_alloc, but for what is read at random.
 *
 *     bytes              from
 *     8 KiB to 1 MiB     malloc, until there are 4 MiB of such blocks; then an arena (arena.c)
 *     2 MiB and more     malloc, begun on a large page
 *     others             malloc
 *
 * The tables of an index or a tree are read at random, and with small pages nearly every read
 * would miss the TLB as well as the cache.  So the kernel is asked to use large pages for them;
 * not for the first few blocks, for a process with a small index should stay small.
 *
 * Under the address sanitizer everything comes from malloc, which then watches the ends of each
 * block. */
#include <kvgraft/base.h>

#include "host/arena.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>

#define LARGE_PAGE_BYTES ((size_t)2 << 20)
/* Bytes in blocks of the arena's size that come from malloc. */
#define PLAIN_BYTES_MAX ((size_t)4 << 20)

#if defined(__SANITIZE_ADDRESS__)
#define HAS_ARENA false
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HAS_ARENA false
#endif
#endif
#ifndef HAS_ARENA
#define HAS_ARENA true
#endif

static struct kvi_arena *the_arena;
static pthread_once_t arena_once = PTHREAD_ONCE_INIT;
static atomic_size_t plain_bytes;

static void make_arena(void)
{
    the_arena = kvi_arena_new();
}

static bool is_for_arena(size_t bytes)
{
    return HAS_ARENA && bytes >= KVI_ARENA_BLOCK_BYTES_MIN &&
           bytes <= KVI_ARENA_BLOCK_BYTES_MAX;
}

static void *allocate_middling(size_t bytes)
{
    void *memory = NULL;

    if (atomic_fetch_add_explicit(&plain_bytes, bytes, memory_order_relaxed) + bytes <=
        PLAIN_BYTES_MAX) {
        memory = malloc(bytes);
        if (memory != NULL)
            return memory;
    }
    atomic_fetch_sub_explicit(&plain_bytes, bytes, memory_order_relaxed);
    (void)pthread_once(&arena_once, make_arena);
    return the_arena == NULL ? NULL : kvi_arena_allocate(the_arena, bytes);
}

static void release_middling(void *memory, size_t bytes)
{
    (void)pthread_once(&arena_once, make_arena);
    if (the_arena != NULL && kvi_arena_release(the_arena, memory, bytes))
        return;
    atomic_fetch_sub_explicit(&plain_bytes, bytes, memory_order_relaxed);
    free(memory);
}

static void *allocate(void *context, size_t bytes)
{
    (void)context;
    if (is_for_arena(bytes))
        return allocate_middling(bytes);
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
    if (memory != NULL && is_for_arena(bytes))
        release_middling(memory, bytes);
    else
        free(memory);
}

const struct kvg_alloc *kvg_alloc_default(void)
{
    static const struct kvg_alloc DEFAULT = {.allocate = allocate, .release = release};

    return &DEFAULT;
}
