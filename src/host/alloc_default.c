/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* alloc_default.c -- malloc and free as a struct kvg_alloc. */
#include <kvgraft/base.h>

#include <stdlib.h>

static void *allocate(void *context, size_t bytes)
{
    (void)context;
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
