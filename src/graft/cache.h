/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* cache.h -- the data of a cache, shared by the files of this folder. */
#ifndef KVI_GRAFT_CACHE_H
#define KVI_GRAFT_CACHE_H

#include <kvgraft/graft.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/fmt.h"

/* Test builds plant one mistake at a time, to see that it is caught.  0: none. */
#ifndef KVI_GRAFT_PLANT
#define KVI_GRAFT_PLANT 0
#endif
#define KVI_GRAFT_PLANTED(n) (KVI_GRAFT_PLANT == (n))

struct kvg_cache {
    struct kvg_alloc alloc;
    struct kvg_tree *tree;
    struct kvg_memory memory;
    struct kvg_linker *linker; /* Attached, or NULL. */
    uint32_t page_size;
    bool has_swa;
    struct kvg_actions actions;       /* Of a match or an insert. */
    struct kvg_actions evict_actions; /* Of an eviction or a withdrawal. */
    struct kvg_spans scratch;         /* Window slots, while an action is done. */
    struct kvg_cache_stats stats;
};

/* ---- memory.c: one face for both kinds of pools -------------------------------------------- */

bool kvi_memory_is_ring(const struct kvg_memory *memory);
const struct kvg_slots *kvi_memory_full(const struct kvg_memory *memory);
/* NULL without a window pool. */
const struct kvg_slots *kvi_memory_swa(const struct kvg_memory *memory);
uint32_t kvi_memory_page_slots(const struct kvg_memory *memory);

/* Whole pages of FULL slots, or of window slots that are mapped nowhere yet. */
kvg_err kvi_memory_alloc_full(const struct kvg_memory *memory, uint64_t slots,
    struct kvg_spans *spans, struct kvg_error *error);
kvg_err kvi_memory_alloc_swa(const struct kvg_memory *memory, uint64_t slots,
    struct kvg_spans *spans, struct kvg_error *error);

/* FULL slots and the window slots they map to; FULL only; the window slots only. */
kvg_err kvi_memory_free(const struct kvg_memory *memory, const struct kvg_span *spans,
    size_t count, struct kvg_error *error);
kvg_err kvi_memory_free_full(const struct kvg_memory *memory,
    const struct kvg_span *spans, size_t count, struct kvg_error *error);
kvg_err kvi_memory_free_swa(const struct kvg_memory *memory, const struct kvg_span *spans,
    size_t count, struct kvg_error *error);

/* Room for `max` spans in a list that the allocator owns; keeps what is there. */
kvg_err kvi_spans_reserve(
    const struct kvg_alloc *alloc, struct kvg_spans *spans, size_t max);
void kvi_spans_fini(const struct kvg_alloc *alloc, struct kvg_spans *spans);

/* ---- cache.c ------------------------------------------------------------------------------- */

/* Does the actions and clears the list.  The list may be the tree's own. */
kvg_err kvi_cache_do(
    struct kvg_cache *cache, struct kvg_actions *actions, struct kvg_error *error);

#endif
