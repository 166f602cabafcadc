/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* pool.h -- the inside of a pool, for the window pool and the audit. */
#ifndef KVI_SLOTS_POOL_H
#define KVI_SLOTS_POOL_H

#include "slots/pages.h"

struct kvg_slots {
    const struct kvg_alloc *alloc;
    const char *free_field; /* "slots.free": the field of its errors. */
    struct kvi_geometry geometry;
    struct kvi_freemap map;
    uint64_t free_pages_min;
    uint64_t allocated_pages;
    uint64_t allocated_runs;
    uint64_t freed_pages;
    uint64_t refused[KVI_REFUSED_COUNT];
};

/* Counts a refusal and returns `err`. */
kvg_err kvi_slots_refuse(struct kvg_slots *slots, enum kvi_refusal refusal, kvg_err err);

/* "slot SLOT is free already": the double free. */
kvg_err kvi_slots_refuse_free(
    struct kvg_slots *slots, uint64_t page, struct kvg_error *error);

/* Whether `pages` are free; refuses if not. */
kvg_err kvi_slots_want(struct kvg_slots *slots, uint64_t pages, struct kvg_error *error);

/* How many new pages a batch needs, having checked every request of it. */
kvg_err kvi_slots_plan(struct kvg_slots *slots, const struct kvg_extend *extends,
    size_t extend_count, uint64_t *pages_out, struct kvg_error *error);

/* Fills a planned batch whose pages are known to be free. */
kvg_err kvi_slots_fill(struct kvg_slots *slots, struct kvg_extend *extends,
    size_t extend_count, struct kvg_spans *spans, struct kvg_error *error);

/* Takes 1 to `want` pages that are known to be free, as kvi_freemap_take. */
size_t kvi_slots_take(struct kvg_slots *slots, uint64_t want, uint64_t hint,
    struct kvi_run runs[KVI_TAKE_RUNS]);

/* Gives back pages that are known to be used. */
void kvi_slots_put(struct kvg_slots *slots, struct kvi_run run);

/* Walks over the new pages of one request, which are in `spans` from .span_first to
 * `end`. */
struct kvi_new_pages {
    const struct kvi_geometry *geometry;
    const struct kvg_span *spans;
    size_t next;
    size_t end;
    uint64_t skip; /* Slots left that continue the old last page. */
};

void kvi_new_pages_init(struct kvi_new_pages *walk, const struct kvi_geometry *geometry,
    const struct kvg_extend *extend, const struct kvg_span *spans, size_t end);
bool kvi_new_pages_next(struct kvi_new_pages *walk, struct kvi_run *out);

#endif
