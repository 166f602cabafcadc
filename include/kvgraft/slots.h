/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* slots.h -- who may use which slot of an engine's KV memory.
 *
 * Four objects:
 *
 *     kvg_slots    a pool of slots, given out in pages of one or more slots.  With
 *                  pages of one slot it is a token pool, or a pool of recurrent
 *                  states (MAMBA).
 *     kvg_window   a pool of FULL slots with a second, smaller pool for sliding-window
 *                  attention beside it, and the mapping between them; or the request
 *                  ring, where window slots belong to request rows and are not
 *                  allocated at all.
 *     kvg_rows     request rows: at each position of a request, its token's slot.
 *     kvg_audit    the proof that free + evictable + protected + held is the
 *                  capacity, and that each slot is counted once.
 *
 * Slots travel as spans (span.h): runs of consecutive slots.  The pools number their
 * slots from `first_slot`; their spans carry KVG_BUFFER_POOL.  Allocation prefers
 * few long runs.
 *
 * What is refused, counted and reported, with nothing changed: a slot that is free
 * already or named twice, a slot that is not the pool's, a run that does not cover
 * whole pages, more than is free, more runs than the caller has room for.  Every
 * batch is all or nothing.
 *
 * Memory: taken when an object is made; no other call allocates.  A pool costs 1.05
 * bits a page, a window pool 8 bytes more for a pair of pages.
 *
 * Threads: one at a time for each object.
 *
 * Errors of every call that frees or looks at spans:
 *
 *     KVG_ESTATE   "span.offset": a slot is free already, or named twice: the double
 *                  free.
 *     KVG_EINVAL   "span.buffer", "span.offset", "span.length": not the pool's slots;
 *                  or "span.page": the run does not cover whole pages.
 *     KVG_ELIMIT   "spans.fragments": see KVG_FRAGMENTS_MAX.
 */
#ifndef KVGRAFT_SLOTS_H
#define KVGRAFT_SLOTS_H

#include <kvgraft/span.h>

KVG_BEGIN_DECLS

/* Limits.  Page numbers are 32 bits wide in rows and mappings, with one value for
 * "none". */
#define KVG_PAGES_MAX UINT64_C(0xfffffffe)
#define KVG_PAGE_SLOTS_MAX 65536u
#define KVG_ROWS_MAX 1048576u
#define KVG_EXTENDS_MAX 1048576u /* Requests in one batch. */

/* Runs that meet inside a page are joined when one call names all of it, in any
 * order.  This is how many such pages one call may leave incomplete at a time. */
#define KVG_FRAGMENTS_MAX 64u

#define KVG_SLOT_NONE UINT64_MAX

/* A list of spans in the caller's array.  Functions append to it; a run that
 * continues the last item makes that item longer. */
struct kvg_spans {
    struct kvg_span *items;
    size_t count;
    size_t max;
};

/* Appends a run.  False, and nothing changed, if there is no room. */
KVG_API KVG_MUST_CHECK bool kvg_spans_append(
    struct kvg_spans *spans, uint64_t offset, uint64_t length);

/* How many slots the spans hold together. */
KVG_API uint64_t kvg_spans_slots(const struct kvg_span *spans, size_t span_count);

/* ---- A pool ------------------------------------------------------------------- */

struct kvg_slots;

struct kvg_slots_options {
    size_t struct_bytes;     /* sizeof(struct kvg_slots_options) */
    uint64_t capacity_slots; /* A multiple of page_slots; at least one page. */
    uint32_t page_slots;     /* 0 means 1. */
    /* Number of the first slot; a multiple of page_slots.  Engines that keep slot 0 for
     * padding start at page_slots. */
    uint64_t first_slot;
};

/* One request that needs more slots: a new one, or one that grows.  The slots
 * continue its last page; then whole pages follow, of which the last may be used in
 * part.  What is left of it belongs to the request, which gets it when it grows
 * again. */
struct kvg_extend {
    uint64_t held_slots;   /* Slots the request has. */
    uint64_t last_slot;    /* The last of them; KVG_SLOT_NONE if it has none. */
    uint64_t wanted_slots; /* How many more. */
    size_t span_first;     /* Out: where its spans begin in the list, */
    size_t span_count;     /* and how many they are: exactly wanted_slots long. */
};

struct kvg_slots_stats {
    uint64_t capacity_slots;
    uint64_t free_slots;
    uint64_t free_slots_min;  /* The least there ever was. */
    uint64_t allocated_pages; /* Since the pool was made, and the runs they came in. */
    uint64_t allocated_runs;
    uint64_t freed_pages;
    uint64_t refused_double; /* Calls refused, by reason. */
    uint64_t refused_foreign;
    uint64_t refused_misaligned; /* Too many fragments, too. */
    uint64_t refused_exhausted;
    uint64_t refused_spans;   /* No room in the caller's list. */
    uint64_t refused_mapping; /* Mapped, or not mapped, against a window pool's rules. */
};

/* Makes a pool whose slots are all free.  `alloc` must outlive it.
 * KVG_EINVAL names the option, KVG_ENOMEM. */
KVG_API KVG_MUST_CHECK kvg_err kvg_slots_new(const struct kvg_alloc *alloc,
    const struct kvg_slots_options *options, struct kvg_slots **out,
    struct kvg_error *error);
KVG_API void kvg_slots_free(struct kvg_slots *slots);

/* Allocates whole pages: `slot_count` must be a multiple of the page.  Appends the
 * runs to `spans`.  KVG_ENOSPACE ("slots.free") if fewer are free, KVG_ELIMIT
 * ("spans.max") if the runs do not fit the list. */
KVG_API KVG_MUST_CHECK kvg_err kvg_slots_alloc(struct kvg_slots *slots,
    uint64_t slot_count, struct kvg_spans *spans, struct kvg_error *error);

/* Allocates for many requests at once, all or none.  Each request's spans begin a
 * new item of the list.  Errors as kvg_slots_alloc; KVG_EINVAL ("extend.held_slots",
 * "extend.last_slot") if a request's last slot is not where its length says,
 * KVG_ESTATE if it is free. */
KVG_API KVG_MUST_CHECK kvg_err kvg_slots_extend(struct kvg_slots *slots,
    struct kvg_extend *extends, size_t extend_count, struct kvg_spans *spans,
    struct kvg_error *error);

/* Takes slots back, all or none.  The spans together must cover whole pages, each
 * once. */
KVG_API KVG_MUST_CHECK kvg_err kvg_slots_release(struct kvg_slots *slots,
    const struct kvg_span *spans, size_t span_count, struct kvg_error *error);

/* Frees everything, whoever holds it.  Counters of refusals stay. */
KVG_API void kvg_slots_reset(struct kvg_slots *slots);

/* How many slots are free; whether one is (false if it is not the pool's). */
KVG_API uint64_t kvg_slots_available(const struct kvg_slots *slots);
KVG_API bool kvg_slots_is_free(const struct kvg_slots *slots, uint64_t slot);
KVG_API uint32_t kvg_slots_page_slots(const struct kvg_slots *slots);
KVG_API void kvg_slots_stats(const struct kvg_slots *slots, struct kvg_slots_stats *out);

/* Walks the whole pool.  KVG_EMISMATCH names the first broken invariant. */
KVG_API KVG_MUST_CHECK kvg_err kvg_slots_check(
    const struct kvg_slots *slots, struct kvg_error *error);

/* ---- FULL slots with a sliding window beside them ----------------------------- */

struct kvg_window;

enum kvg_window_kind {
    KVG_WINDOW_MAPPED, /* Window slots come from a pool; a mapping leads to them. */
    KVG_WINDOW_RING    /* They lie in a ring for each request row. */
};

struct kvg_window_options {
    size_t struct_bytes; /* sizeof(struct kvg_window_options) */
    enum kvg_window_kind kind;
    uint32_t page_slots; /* Of both pools; 0 means 1. */
    uint64_t full_slots; /* Capacities and first slots, as in kvg_slots_options. */
    uint64_t full_first;
    uint64_t window_slots; /* MAPPED only. */
    uint64_t window_first;
    uint32_t ring_rows; /* RING only: rows, and slots in the ring of each. */
    uint32_t ring_slots;

    /* kvg_window_release refuses FULL pages without a window page, so that a caller who
     * tracks its windows finds its mistakes. */
    bool exact;
};

KVG_API KVG_MUST_CHECK kvg_err kvg_window_new(const struct kvg_alloc *alloc,
    const struct kvg_window_options *options, struct kvg_window **out,
    struct kvg_error *error);
KVG_API void kvg_window_free(struct kvg_window *window);

KVG_API bool kvg_window_is_ring(const struct kvg_window *window);

/* The two pools, to look at.  The window's is NULL for a ring. */
KVG_API const struct kvg_slots *kvg_window_full(const struct kvg_window *window);
KVG_API const struct kvg_slots *kvg_window_swa(const struct kvg_window *window);

/* How many slots an extend could get at best: the smaller of both pools; for a ring,
 * FULL. */
KVG_API uint64_t kvg_window_available(const struct kvg_window *window);

/* Allocates FULL slots with a mapped window page for each new page, as
 * kvg_slots_extend.  KVG_ENOSPACE names the pool ("full.free", "window.free").  For
 * a ring, FULL only. */
KVG_API KVG_MUST_CHECK kvg_err kvg_window_extend(struct kvg_window *window,
    struct kvg_extend *extends, size_t extend_count, struct kvg_spans *spans,
    struct kvg_error *error);

/* Allocates whole pages of one pool, unmapped: what a load fills before it is
 * mapped. */
KVG_API KVG_MUST_CHECK kvg_err kvg_window_alloc_full(struct kvg_window *window,
    uint64_t slot_count, struct kvg_spans *spans, struct kvg_error *error);
KVG_API KVG_MUST_CHECK kvg_err kvg_window_alloc_swa(struct kvg_window *window,
    uint64_t slot_count, struct kvg_spans *spans, struct kvg_error *error);

/* What a release gave back. */
struct kvg_window_freed {
    uint64_t full_slots;
    uint64_t window_slots;
};

/* The releases below take FULL slots and are all or none; `freed` may be NULL.
 *
 * _release       both: the window pages that are mapped, and the FULL pages.
 * _release_full  FULL only: no page may be mapped (KVG_ESTATE, "span.mapped"), for
 *                its window page would be lost.
 * _release_swa   window pages only, and their mapping; pages without are skipped.
 *                Nothing happens for a ring.
 *
 * Whoever frees both kinds apart, as an eviction does, frees window pages first: once a
 * FULL page is free, nothing leads to its window page. */
KVG_API KVG_MUST_CHECK kvg_err kvg_window_release(struct kvg_window *window,
    const struct kvg_span *full, size_t full_count, struct kvg_window_freed *freed,
    struct kvg_error *error);
KVG_API KVG_MUST_CHECK kvg_err kvg_window_release_full(struct kvg_window *window,
    const struct kvg_span *full, size_t full_count, struct kvg_window_freed *freed,
    struct kvg_error *error);
KVG_API KVG_MUST_CHECK kvg_err kvg_window_release_swa(struct kvg_window *window,
    const struct kvg_span *full, size_t full_count, struct kvg_window_freed *freed,
    struct kvg_error *error);

/* Takes back window slots by their own numbers; they must not be mapped
 * (KVG_ESTATE). */
KVG_API KVG_MUST_CHECK kvg_err kvg_window_release_unmapped(struct kvg_window *window,
    const struct kvg_span *swa, size_t swa_count, struct kvg_error *error);

/* Maps FULL pages to window pages, in order.  Both lists are in use, of one length
 * (KVG_EMISMATCH, "swa.length") and of whole pages.  A pair that is mapped already
 * is left alone; a page of either side that is mapped to another is KVG_EEXIST.  The
 * mapping is one to one at all times. */
KVG_API KVG_MUST_CHECK kvg_err kvg_window_map(struct kvg_window *window,
    const struct kvg_span *full, size_t full_count, const struct kvg_span *swa,
    size_t swa_count, struct kvg_error *error);

/* Moves the window pages of `from` to `to`, both FULL slots, of one length: `from`
 * must be mapped (KVG_ENOENT), `to` must not (KVG_EEXIST). */
KVG_API KVG_MUST_CHECK kvg_err kvg_window_move(struct kvg_window *window,
    const struct kvg_span *from, size_t from_count, const struct kvg_span *to,
    size_t to_count, struct kvg_error *error);

/* The window slots of FULL slots, which need not be whole pages.  Fails with
 * KVG_ENOENT if one is not mapped, KVG_ELIMIT if the list is too short. */
KVG_API KVG_MUST_CHECK kvg_err kvg_window_translate(const struct kvg_window *window,
    const struct kvg_span *full, size_t full_count, struct kvg_spans *swa,
    struct kvg_error *error);

/* The window slot of one FULL slot, or KVG_SLOT_NONE. */
KVG_API uint64_t kvg_window_slot(const struct kvg_window *window, uint64_t full_slot);

/* Where a ring keeps position `position` of row `row`, or KVG_SLOT_NONE (no such
 * row, or not a ring). */
KVG_API uint64_t kvg_window_ring_slot(
    const struct kvg_window *window, uint32_t row, uint64_t position);

KVG_API void kvg_window_reset(struct kvg_window *window);
KVG_API KVG_MUST_CHECK kvg_err kvg_window_check(
    const struct kvg_window *window, struct kvg_error *error);

/* ---- Request rows ------------------------------------------------------------- */

struct kvg_rows;

/* A row in use.  The generation tells it from an earlier use of the same index, so
 * that a handle kept too long is refused (KVG_ESTATE, "row.generation"). */
typedef struct kvg_row {
    uint32_t index;
    uint32_t generation;
} kvg_row;

struct kvg_rows_options {
    size_t struct_bytes;    /* sizeof(struct kvg_rows_options) */
    uint32_t row_count;     /* 1 to KVG_ROWS_MAX. */
    uint32_t page_slots;    /* 0 means 1. */
    uint64_t context_slots; /* The longest request. */
};

/* Memory: 4 bytes for each page of context and row, 12 a row. */
KVG_API KVG_MUST_CHECK kvg_err kvg_rows_new(const struct kvg_alloc *alloc,
    const struct kvg_rows_options *options, struct kvg_rows **out,
    struct kvg_error *error);
KVG_API void kvg_rows_free(struct kvg_rows *rows);

/* Takes `row_count` rows, all or none; they are empty.  KVG_ENOSPACE ("rows.free"). */
KVG_API KVG_MUST_CHECK kvg_err kvg_rows_acquire(
    struct kvg_rows *rows, size_t row_count, kvg_row *out, struct kvg_error *error);

/* Gives a row back.  Whoever holds its slots has released them, or will. */
KVG_API KVG_MUST_CHECK kvg_err kvg_rows_release(
    struct kvg_rows *rows, kvg_row row, struct kvg_error *error);

/* Rows that are not in use; the length of a row (0 for one that is not in use). */
KVG_API uint32_t kvg_rows_available(const struct kvg_rows *rows);
KVG_API uint64_t kvg_rows_length(const struct kvg_rows *rows, kvg_row row);

/* Appends slots to a row.  Each must lie in its page as its position does
 * (KVG_EINVAL, "span.page"); KVG_ELIMIT ("row.length") beyond the context. */
KVG_API KVG_MUST_CHECK kvg_err kvg_rows_append(struct kvg_rows *rows, kvg_row row,
    const struct kvg_span *spans, size_t span_count, struct kvg_error *error);

/* Overwrites positions from `position` on, which begins a page; ends at the end of a
 * page or of the row. */
KVG_API KVG_MUST_CHECK kvg_err kvg_rows_write(struct kvg_rows *rows, kvg_row row,
    uint64_t position, const struct kvg_span *spans, size_t span_count,
    struct kvg_error *error);

/* Shortens a row; the slots cut off are the caller's. */
KVG_API KVG_MUST_CHECK kvg_err kvg_rows_truncate(
    struct kvg_rows *rows, kvg_row row, uint64_t length, struct kvg_error *error);

/* Appends the slots of positions [from, to) to `spans` as runs.  `to` may reach to
 * the end of the row's last page, so that what a request holds can be released
 * whole. */
KVG_API KVG_MUST_CHECK kvg_err kvg_rows_spans(const struct kvg_rows *rows, kvg_row row,
    uint64_t from, uint64_t to, struct kvg_spans *spans, struct kvg_error *error);

/* The row's page numbers (slot / page_slots), as kernels read them; NULL if it is
 * not in use.  Valid until the next call that changes the row. */
KVG_API const uint32_t *kvg_rows_table(
    const struct kvg_rows *rows, kvg_row row, size_t *page_count_out);

struct kvg_rows_stats {
    uint32_t row_count;
    uint32_t unused_count;
    uint32_t unused_count_min;  /* The least there ever was. */
    uint64_t refused_stale;     /* Calls refused: no such row, or not in use; */
    uint64_t refused_spans;     /* slots that cannot lie there, or too many; */
    uint64_t refused_exhausted; /* more rows than are unused. */
};
KVG_API void kvg_rows_stats(const struct kvg_rows *rows, struct kvg_rows_stats *out);

KVG_API KVG_MUST_CHECK kvg_err kvg_rows_check(
    const struct kvg_rows *rows, struct kvg_error *error);

/* ---- The audit ---------------------------------------------------------------- */

struct kvg_audit;

enum kvg_claim {
    KVG_CLAIM_EVICTABLE, /* In the tree, unlocked. */
    KVG_CLAIM_PROTECTED, /* In the tree, locked. */
    KVG_CLAIM_HELD,      /* A request's, or a load's. */
    KVG_CLAIM_COUNT
};

struct kvg_audit_totals {
    uint64_t capacity_slots;
    uint64_t free_slots;
    uint64_t claimed_slots[KVG_CLAIM_COUNT];
};

/* Makes an audit of `slots`: a bit a page.  The pool must outlive it. */
KVG_API KVG_MUST_CHECK kvg_err kvg_audit_new(const struct kvg_alloc *alloc,
    const struct kvg_slots *slots, struct kvg_audit **out, struct kvg_error *error);
KVG_API void kvg_audit_free(struct kvg_audit *audit);

/* Forgets all claims: the beginning of an audit.  The pool must not change until its
 * end. */
KVG_API void kvg_audit_begin(struct kvg_audit *audit);

/* Somebody says that these slots are theirs.  KVG_EMISMATCH ("claim.free") if one is
 * free, KVG_EEXIST ("claim.twice") if it was claimed before, KVG_EINVAL as above. */
KVG_API KVG_MUST_CHECK kvg_err kvg_audit_claim(struct kvg_audit *audit,
    enum kvg_claim claim, const struct kvg_span *spans, size_t span_count,
    struct kvg_error *error);

/* Ends it: KVG_EMISMATCH ("claim.leaked") names the first slot that nobody claimed
 * and that is not free.  Then free + evictable + protected + held is the capacity. */
KVG_API KVG_MUST_CHECK kvg_err kvg_audit_finish(
    struct kvg_audit *audit, struct kvg_audit_totals *out, struct kvg_error *error);

KVG_END_DECLS

#endif
