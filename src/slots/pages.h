/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* pages.h -- spans of slots as runs of whole pages. */
#ifndef KVI_SLOTS_PAGES_H
#define KVI_SLOTS_PAGES_H

#include <kvgraft/slots.h>

#include "slots/freemap.h"

/* Why a call was refused; the counters of struct kvg_slots_stats. */
enum kvi_refusal {
    KVI_REFUSED_NOT,
    KVI_REFUSED_DOUBLE,
    KVI_REFUSED_FOREIGN,
    KVI_REFUSED_MISALIGNED,
    KVI_REFUSED_EXHAUSTED,
    KVI_REFUSED_SPANS,
    KVI_REFUSED_MAPPING,
    KVI_REFUSED_COUNT
};

/* Which slots are a pool's.  Pages are counted from 0 at `first_slot`. */
struct kvi_geometry {
    uint64_t first_slot;
    uint64_t page_count;
    uint32_t page_slots;
};

static inline uint64_t kvi_slot_of(const struct kvi_geometry *geometry, uint64_t page)
{
    return geometry->first_slot + page * geometry->page_slots;
}

static inline uint64_t kvi_page_of(const struct kvi_geometry *geometry, uint64_t slot)
{
    return (slot - geometry->first_slot) / geometry->page_slots;
}

static inline bool kvi_has_slot(const struct kvi_geometry *geometry, uint64_t slot)
{
    return slot >= geometry->first_slot &&
           (slot - geometry->first_slot) / geometry->page_slots < geometry->page_count;
}

/* Whether a span's buffer, offset and length are the pool's. */
kvg_err kvi_span_check(const struct kvi_geometry *geometry, const struct kvg_span *span,
    struct kvg_error *error);

/* Fills *error with "slot SLOT SENTENCE". */
kvg_err kvi_fail_slot(struct kvg_error *error, kvg_err code, const char *field,
    uint64_t slot, const char *sentence);

/* Walks over spans and yields the runs of whole pages they cover together.  A page
 * that is named in pieces is yielded when its last piece is seen, so the same spans
 * always yield the same runs: a second walk can undo what a first one did. */
struct kvi_fragment {
    uint64_t page;
    uint32_t from; /* Slots of the page, [from, to). */
    uint32_t to;
};

struct kvi_cursor {
    const struct kvi_geometry *geometry;
    const struct kvg_span *spans;
    size_t span_count;
    size_t span_next;
    enum kvi_refusal refusal; /* If _next has failed. */
    unsigned pending_count;   /* Runs of one span that are not yielded yet, last first. */
    struct kvi_run pending[3];
    unsigned open_count; /* Pieces of pages that are not complete. */
    struct kvi_fragment open[KVG_FRAGMENTS_MAX];
};

void kvi_cursor_init(struct kvi_cursor *cursor, const struct kvi_geometry *geometry,
    const struct kvg_span *spans, size_t span_count);

/* The next run in *out; its count is 0 at the end. */
kvg_err kvi_cursor_next(
    struct kvi_cursor *cursor, struct kvi_run *out, struct kvg_error *error);

/* Appends a run to a list; it may lengthen the last item if the list has more than
 * `floor`.  Items of whole pages stay whole pages.  False, and nothing changed,
 * without room. */
bool kvi_spans_append(struct kvg_spans *spans, size_t floor, uint32_t page_slots,
    uint64_t offset, uint64_t length);

#endif
