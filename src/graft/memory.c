/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* memory.c -- one face for a pool of slots and for a pool with a window beside it.
 *
 * With slots alone there are no peers, so the three frees come down to one and none:
 *
 *                  slots      window, mapped           window, ring
 *     free         release    release (both)           release_full
 *     free_full    release    release_full             release_full
 *     free_swa     -          release_swa              -
 */
#include "graft/cache.h"

bool kvi_memory_is_ring(const struct kvg_memory *memory)
{
    return memory->window != NULL && kvg_window_is_ring(memory->window);
}

const struct kvg_slots *kvi_memory_full(const struct kvg_memory *memory)
{
    return memory->window != NULL ? kvg_window_full(memory->window) : memory->slots;
}

const struct kvg_slots *kvi_memory_swa(const struct kvg_memory *memory)
{
    return memory->window != NULL ? kvg_window_swa(memory->window) : NULL;
}

uint32_t kvi_memory_page_slots(const struct kvg_memory *memory)
{
    return kvg_slots_page_slots(kvi_memory_full(memory));
}

kvg_err kvi_memory_alloc_full(const struct kvg_memory *memory, uint64_t slots,
    struct kvg_spans *spans, struct kvg_error *error)
{
    return memory->window != NULL
               ? kvg_window_alloc_full(memory->window, slots, spans, error)
               : kvg_slots_alloc(memory->slots, slots, spans, error);
}

kvg_err kvi_memory_alloc_swa(const struct kvg_memory *memory, uint64_t slots,
    struct kvg_spans *spans, struct kvg_error *error)
{
    return kvg_window_alloc_swa(memory->window, slots, spans, error);
}

kvg_err kvi_memory_free(const struct kvg_memory *memory, const struct kvg_span *spans,
    size_t count, struct kvg_error *error)
{
    if (memory->window == NULL)
        return kvg_slots_release(memory->slots, spans, count, error);
    if (kvi_memory_is_ring(memory))
        return kvg_window_release_full(memory->window, spans, count, NULL, error);
    return kvg_window_release(memory->window, spans, count, NULL, error);
}

kvg_err kvi_memory_free_full(const struct kvg_memory *memory,
    const struct kvg_span *spans, size_t count, struct kvg_error *error)
{
    return memory->window != NULL
               ? kvg_window_release_full(memory->window, spans, count, NULL, error)
               : kvg_slots_release(memory->slots, spans, count, error);
}

kvg_err kvi_memory_free_swa(const struct kvg_memory *memory, const struct kvg_span *spans,
    size_t count, struct kvg_error *error)
{
    return memory->window != NULL
               ? kvg_window_release_swa(memory->window, spans, count, NULL, error)
               : KVG_OK;
}

kvg_err kvi_spans_reserve(
    const struct kvg_alloc *alloc, struct kvg_spans *spans, size_t max)
{
    size_t wanted = spans->max < 32 ? 32 : spans->max;
    void *items = spans->items;

    if (max <= spans->max)
        return KVG_OK;
    while (wanted < max)
        wanted *= 2;
    if (!kvi_resize_array(alloc, &items, spans->max, wanted, sizeof(*spans->items)))
        return KVG_ENOMEM;
    spans->items = items;
    spans->max = wanted;
    return KVG_OK;
}

void kvi_spans_fini(const struct kvg_alloc *alloc, struct kvg_spans *spans)
{
    kvi_release_array(alloc, spans->items, spans->max, sizeof(*spans->items));
    *spans = (struct kvg_spans){0};
}
