/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* alloc.c -- checked sizes on top of struct kvg_alloc (alloc.h). */
#include "base/alloc.h"

#include "base/assert.h"

void *kvi_alloc_array_raw(const struct kvg_alloc *alloc, size_t count, size_t bytes)
{
    size_t total;

    KVI_ASSERT(alloc != NULL);
    if (__builtin_mul_overflow(count, bytes, &total) || total == 0)
        return NULL;
    return alloc->allocate(alloc->context, total);
}

void *kvi_alloc_array(const struct kvg_alloc *alloc, size_t count, size_t bytes)
{
    void *memory = kvi_alloc_array_raw(alloc, count, bytes);

    if (memory != NULL)
        memset(memory, 0, count * bytes);
    return memory;
}

void kvi_release_array(
    const struct kvg_alloc *alloc, void *memory, size_t count, size_t bytes)
{
    if (memory != NULL)
        alloc->release(alloc->context, memory, count * bytes);
}

bool kvi_resize_array(const struct kvg_alloc *alloc, void **memory, size_t old_count,
    size_t new_count, size_t bytes)
{
    size_t kept = old_count < new_count ? old_count : new_count;
    void *moved = kvi_alloc_array_raw(alloc, new_count, bytes);

    if (moved == NULL)
        return false;
    if (kept != 0)
        memcpy(moved, *memory, kept * bytes);
    kvi_release_array(alloc, *memory, old_count, bytes);
    *memory = moved;
    return true;
}

char *kvi_copy_string(const struct kvg_alloc *alloc, struct kvg_str text)
{
    char *copy;

    if (text.bytes == SIZE_MAX)
        return NULL;
    copy = kvi_alloc_array_raw(alloc, text.bytes + 1, 1);
    if (copy == NULL)
        return NULL;
    if (text.bytes != 0)
        memcpy(copy, text.data, text.bytes);
    copy[text.bytes] = '\0';
    return copy;
}

void kvi_release_string(const struct kvg_alloc *alloc, char *text, size_t bytes)
{
    kvi_release_array(alloc, text, bytes + 1, 1);
}
