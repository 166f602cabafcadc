/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* transfer.c -- cutting transfers: keys are cut by page, spans by slot. */
#include "graft/linker.h"

#include "tree/tree.h"

kvg_err kvi_spans_cut_append(const struct kvg_alloc *alloc, const struct kvg_spans *spans,
    uint64_t from, uint64_t length, struct kvg_spans *out)
{
    uint32_t count = kvi_spans_cut_count(spans->items, spans->count, from, length);

    if (length == 0)
        return KVG_OK;
    if (kvi_spans_reserve(alloc, out, out->count + count) != KVG_OK)
        return KVG_ENOMEM;
    out->count +=
        kvi_spans_cut(spans->items, spans->count, from, length, out->items + out->count);
    return KVG_OK;
}

kvg_err kvi_transfer_filter(struct kvg_linker *linker,
    const struct kvg_tree_transfer *transfer, const struct kvg_tree_range *ranges,
    size_t range_count, uint64_t start, struct kvg_key *keys, struct kvg_spans *spans,
    struct kvg_tree_transfer *out)
{
    const struct kvg_tree_transfer in = *transfer; /* `out` may be the same. */
    const struct kvg_spans whole = {
        (struct kvg_span *)(uintptr_t)in.spans, in.span_count, in.span_count};
    uint64_t page = linker->page_size;
    uint64_t end = start + in.key_count * page;

    *out = in;
    out->key_count = 0;
    out->keys = keys;
    out->previous = NULL;
    spans->count = 0;
    for (size_t i = 0; i < range_count; i++) {
        if (ranges[i].component != in.component)
            continue;
        uint64_t low = ranges[i].start > start ? ranges[i].start : start;
        uint64_t high = ranges[i].end < end ? ranges[i].end : end;
        if (low >= high)
            continue;
        KVI_ASSERT(low % page == 0 && high % page == 0);
        size_t pages = (size_t)((high - low) / page);
        memcpy(
            keys + out->key_count, in.keys + (low - start) / page, pages * sizeof(*keys));
        out->key_count += pages;
        if (kvi_spans_cut_append(
                &linker->alloc, &whole, low - start, high - low, spans) != KVG_OK)
            return KVG_ENOMEM;
    }
    out->spans = spans->items;
    out->span_count = spans->count;
    return KVG_OK;
}
