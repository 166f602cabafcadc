/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* window.c -- FULL slots with a sliding-window pool beside them (slots.h).
 *
 * Both pools have pages of one size.  A FULL page in use may have a window page; the
 * mapping is kept from both sides, so that it can be proved one to one at any time:
 *
 *     FULL page     0    1    2    3    4           to_window[2] = 0, to_full[0] = 2
 *                             |         |
 *     window page   0 <-------+    1    2 <- 4      page 1: in use, not mapped (a
 *                                                   load fills it before)
 *
 * Every call that changes both pools decides first and changes afterwards: what is
 * decided is that the pages are in use and (un)mapped as the call needs, what is
 * left can fail only by naming a page twice, and is undone.  Pairs made in a call
 * carry the mark KVI_FRESH until its end.
 *
 * A request ring has no window pool: the window slots of a row are its own from the
 * beginning, so there is nothing to allocate, to map or to free.
 *
 * Invariants, checked by kvg_window_check():
 *
 *     1  The FULL pool's.        2  The window pool's.
 *     3  to_window[f] = w exactly if to_full[w] = f.
 *     4  Mapped pages are in use.
 *     5  mapped_count is the number of pairs; none carries the mark.
 */
#include "slots/window.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/fmt.h"

#define WINDOW_PAGES_MAX UINT64_C(0x7ffffffe) /* One bit is the mark. */

/* ---- Making one --------------------------------------------------------------- */

void kvg_window_free(struct kvg_window *window)
{
    if (window == NULL)
        return;
    if (window->full != NULL)
        kvi_release_array(window->alloc, window->to_window,
            window->full->geometry.page_count, sizeof(uint32_t));
    if (window->swa != NULL)
        kvi_release_array(window->alloc, window->to_full,
            window->swa->geometry.page_count, sizeof(uint32_t));
    kvg_slots_free(window->full);
    kvg_slots_free(window->swa);
    KVI_FREE(window->alloc, window);
}

static kvg_err make_pool(const struct kvg_window *window, const char *field,
    const struct kvg_slots_options *options, struct kvg_slots **out,
    struct kvg_error *error)
{
    kvg_err err = kvg_slots_new(window->alloc, options, out, error);
    struct kvi_text text;

    if (err == KVG_OK && window->kind == KVG_WINDOW_MAPPED &&
        (*out)->geometry.page_count > WINDOW_PAGES_MAX)
        err = kvi_fail_range(error, field, options->capacity_slots,
            (*out)->geometry.page_slots, WINDOW_PAGES_MAX * (*out)->geometry.page_slots);
    if (err == KVG_EINVAL && error != NULL) {
        kvi_text_init(&text, error->field, sizeof(error->field));
        kvi_text_str(&text, field);
    }
    return err;
}

static kvg_err make_mapping(struct kvg_window *window, struct kvg_error *error)
{
    uint64_t full_pages = window->full->geometry.page_count;
    uint64_t swa_pages = window->swa->geometry.page_count;

    window->to_window = kvi_alloc_array_raw(window->alloc, full_pages, sizeof(uint32_t));
    window->to_full = kvi_alloc_array_raw(window->alloc, swa_pages, sizeof(uint32_t));
    if (window->to_window == NULL || window->to_full == NULL)
        return kvi_fail(error, KVG_ENOMEM, "window", "out of memory");
    memset(window->to_window, 0xff, full_pages * sizeof(uint32_t));
    memset(window->to_full, 0xff, swa_pages * sizeof(uint32_t));
    return KVG_OK;
}

static kvg_err check_options(
    const struct kvg_window_options *options, struct kvg_error *error)
{
    if (options->struct_bytes != sizeof(*options))
        return kvi_fail_range(error, "window.struct_bytes", options->struct_bytes,
            sizeof(*options), sizeof(*options));
    if (options->kind != KVG_WINDOW_MAPPED && options->kind != KVG_WINDOW_RING)
        return kvi_fail_range(
            error, "window.kind", options->kind, KVG_WINDOW_MAPPED, KVG_WINDOW_RING);
    if (options->kind == KVG_WINDOW_MAPPED)
        return KVG_OK;
    if (options->ring_rows == 0 || options->ring_rows > KVG_ROWS_MAX)
        return kvi_fail_range(
            error, "window.ring_rows", options->ring_rows, 1, KVG_ROWS_MAX);
    if (options->ring_slots == 0)
        return kvi_fail_range(
            error, "window.ring_slots", options->ring_slots, 1, UINT32_MAX);
    return KVG_OK;
}

static kvg_err fill_window(struct kvg_window *window,
    const struct kvg_window_options *options, struct kvg_error *error)
{
    struct kvg_slots_options pool = {.struct_bytes = sizeof(pool),
        .capacity_slots = options->full_slots,
        .page_slots = options->page_slots,
        .first_slot = options->full_first};
    kvg_err err = make_pool(window, "window.full_slots", &pool, &window->full, error);

    if (err != KVG_OK)
        return err;
    window->full->free_field = "full.free";
    if (window->kind == KVG_WINDOW_RING)
        return KVG_OK;
    pool.capacity_slots = options->window_slots;
    pool.first_slot = options->window_first;
    err = make_pool(window, "window.window_slots", &pool, &window->swa, error);
    if (err != KVG_OK)
        return err;
    window->swa->free_field = "window.free";
    return make_mapping(window, error);
}

kvg_err kvg_window_new(const struct kvg_alloc *alloc,
    const struct kvg_window_options *options, struct kvg_window **out,
    struct kvg_error *error)
{
    struct kvg_window *window;
    kvg_err err;

    *out = NULL;
    err = check_options(options, error);
    if (err != KVG_OK)
        return err;
    window = KVI_NEW(alloc, struct kvg_window);
    if (window == NULL)
        return kvi_fail(error, KVG_ENOMEM, "window", "out of memory");
    window->alloc = alloc;
    window->kind = options->kind;
    window->exact = options->exact;
    window->ring_rows = options->ring_rows;
    window->ring_slots = options->ring_slots;
    err = fill_window(window, options, error);
    if (err != KVG_OK) {
        kvg_window_free(window);
        return err;
    }
    *out = window;
    return KVG_OK;
}

/* ---- The mapping -------------------------------------------------------------- */

/* Ends the pairs of the FULL pages in `spans`, which were checked, and frees their
 * window pages.  Returns their number. */
static uint64_t drop_windows(
    struct kvg_window *window, const struct kvg_span *spans, size_t span_count)
{
    struct kvi_run freed = {0, 0};
    uint64_t total = 0;
    struct kvi_cursor cursor;
    struct kvi_run run;

    kvi_cursor_init(&cursor, &window->full->geometry, spans, span_count);
    for (;;) {
        kvg_err err = kvi_cursor_next(&cursor, &run, NULL);
        uint64_t page;

        KVI_ASSERT(err == KVG_OK);
        if (run.count == 0)
            break;
        for (page = run.first; page < run.first + run.count; page++) {
            uint64_t swa_page;

            if (window->to_window[page] == KVI_NO_PAGE)
                continue;
            swa_page = kvi_window_unlink(window, page);
            total++;
            if (freed.count > 0 && swa_page == freed.first + freed.count) {
                freed.count++;
                continue;
            }
            kvi_slots_put(window->swa, freed);
            freed = (struct kvi_run){swa_page, 1};
        }
    }
    kvi_slots_put(window->swa, freed);
    return total;
}

/* ---- Allocation --------------------------------------------------------------- */

bool kvg_window_is_ring(const struct kvg_window *window)
{
    return window->kind == KVG_WINDOW_RING;
}

const struct kvg_slots *kvg_window_full(const struct kvg_window *window)
{
    return window->full;
}

const struct kvg_slots *kvg_window_swa(const struct kvg_window *window)
{
    return window->swa;
}

uint64_t kvg_window_available(const struct kvg_window *window)
{
    uint64_t full = kvg_slots_available(window->full);
    uint64_t swa = window->swa == NULL ? full : kvg_slots_available(window->swa);

    return full < swa ? full : swa;
}

/* Gives each page of a run of new FULL pages a window page.  `hint` is the window
 * page to begin with if it is free; returns the one to go on with. */
static uint64_t link_new(struct kvg_window *window, struct kvi_run run, uint64_t hint)
{
    while (run.count > 0) {
        struct kvi_run taken[KVI_TAKE_RUNS];
        size_t count = kvi_slots_take(window->swa, run.count, hint, taken);
        size_t i;

        for (i = 0; i < count; i++) {
            uint64_t k;

            for (k = 0; k < taken[i].count; k++)
                kvi_window_link(window, run.first + k, taken[i].first + k, 0);
            run.first += taken[i].count;
            run.count -= taken[i].count;
            hint = taken[i].first + taken[i].count;
        }
    }
    return hint;
}

static void link_batch(struct kvg_window *window, const struct kvg_extend *extends,
    size_t extend_count, const struct kvg_span *spans)
{
    size_t i;

    for (i = 0; i < extend_count; i++) {
        const struct kvg_extend *extend = &extends[i];
        uint64_t hint = KVI_NONE;
        struct kvi_new_pages walk;
        struct kvi_run run;

        if (extend->held_slots != 0) {
            uint64_t last = kvi_page_of(&window->full->geometry, extend->last_slot);

            if (window->to_window[last] != KVI_NO_PAGE)
                hint = window->to_window[last] + UINT64_C(1);
        }
        kvi_new_pages_init(&walk, &window->full->geometry, extend, spans,
            extend->span_first + extend->span_count);
        while (kvi_new_pages_next(&walk, &run))
            hint = link_new(window, run, hint);
    }
}

kvg_err kvg_window_extend(struct kvg_window *window, struct kvg_extend *extends,
    size_t extend_count, struct kvg_spans *spans, struct kvg_error *error)
{
    uint64_t pages;
    kvg_err err = kvi_slots_plan(window->full, extends, extend_count, &pages, error);

    if (err == KVG_OK && window->swa != NULL)
        err = kvi_slots_want(window->swa, pages, error);
    if (err == KVG_OK)
        err = kvi_slots_fill(window->full, extends, extend_count, spans, error);
    if (err == KVG_OK && window->swa != NULL)
        link_batch(window, extends, extend_count, spans->items);
    return err;
}

kvg_err kvg_window_alloc_full(struct kvg_window *window, uint64_t slot_count,
    struct kvg_spans *spans, struct kvg_error *error)
{
    return kvg_slots_alloc(window->full, slot_count, spans, error);
}

kvg_err kvg_window_alloc_swa(struct kvg_window *window, uint64_t slot_count,
    struct kvg_spans *spans, struct kvg_error *error)
{
    if (window->swa == NULL)
        return kvi_window_refuse_ring(error);
    return kvg_slots_alloc(window->swa, slot_count, spans, error);
}

/* ---- Release ------------------------------------------------------------------ */

enum rule {
    ANY_IN_USE,
    ALL_MAPPED,
    NONE_MAPPED
};

static kvg_err check_page(
    struct kvg_window *window, uint64_t page, enum rule rule, struct kvg_error *error)
{
    bool mapped = window->to_window[page] != KVI_NO_PAGE;

    if (rule == ANY_IN_USE || mapped == (rule == ALL_MAPPED))
        return KVG_OK;
    return kvi_window_refuse_mapping(
        window, kvi_fail_slot(error, KVG_ESTATE, "span.mapped",
                    kvi_slot_of(&window->full->geometry, page),
                    mapped ? "has a window slot; release both"
                           : "has no window slot; release FULL only"));
}

/* Whether the FULL pages of `spans` are in use and (un)mapped as the rule says. */
static kvg_err check_full(struct kvg_window *window, const struct kvg_span *spans,
    size_t span_count, enum rule rule, struct kvg_error *error)
{
    struct kvi_cursor cursor;

    kvi_cursor_init(&cursor, &window->full->geometry, spans, span_count);
    for (;;) {
        struct kvi_run run;
        uint64_t page;
        kvg_err err = kvi_cursor_next(&cursor, &run, error);

        if (err != KVG_OK)
            return kvi_slots_refuse(window->full, cursor.refusal, err);
        if (run.count == 0)
            return KVG_OK;
        page = kvi_freemap_first_free(&window->full->map, run);
        if (page != KVI_NONE)
            return kvi_slots_refuse_free(window->full, page, error);
        for (page = run.first; page < run.first + run.count; page++) {
            err = check_page(window, page, rule, error);
            if (err != KVG_OK)
                return err;
        }
    }
}

static void report(
    struct kvg_window_freed *freed, const struct kvg_window *window, uint64_t before)
{
    if (freed != NULL)
        freed->full_slots = kvg_slots_available(window->full) - before;
}

kvg_err kvg_window_release(struct kvg_window *window, const struct kvg_span *full,
    size_t full_count, struct kvg_window_freed *freed, struct kvg_error *error)
{
    uint64_t before = kvg_slots_available(window->full);
    uint64_t pages = 0;
    kvg_err err = KVG_OK;

    if (freed != NULL)
        *freed = (struct kvg_window_freed){0};
    if (window->swa != NULL && window->exact)
        err = check_full(window, full, full_count, ALL_MAPPED, error);
    if (err == KVG_OK)
        err = kvg_slots_release(window->full, full, full_count, error);
    if (err != KVG_OK)
        return err;
    if (window->swa != NULL)
        pages = drop_windows(window, full, full_count);
    report(freed, window, before);
    if (freed != NULL)
        freed->window_slots = pages * window->full->geometry.page_slots;
    return KVG_OK;
}

kvg_err kvg_window_release_full(struct kvg_window *window, const struct kvg_span *full,
    size_t full_count, struct kvg_window_freed *freed, struct kvg_error *error)
{
    uint64_t before = kvg_slots_available(window->full);
    kvg_err err = KVG_OK;

    if (freed != NULL)
        *freed = (struct kvg_window_freed){0};
    if (window->swa != NULL)
        err = check_full(window, full, full_count, NONE_MAPPED, error);
    if (err == KVG_OK)
        err = kvg_slots_release(window->full, full, full_count, error);
    if (err == KVG_OK)
        report(freed, window, before);
    return err;
}

kvg_err kvg_window_release_swa(struct kvg_window *window, const struct kvg_span *full,
    size_t full_count, struct kvg_window_freed *freed, struct kvg_error *error)
{
    uint64_t pages;
    kvg_err err;

    if (freed != NULL)
        *freed = (struct kvg_window_freed){0};
    if (window->swa == NULL)
        return KVG_OK;
    err = check_full(window, full, full_count, ANY_IN_USE, error);
    if (err != KVG_OK)
        return err;
    pages = drop_windows(window, full, full_count);
    if (freed != NULL)
        freed->window_slots = pages * window->full->geometry.page_slots;
    return KVG_OK;
}

kvg_err kvg_window_release_unmapped(struct kvg_window *window, const struct kvg_span *swa,
    size_t swa_count, struct kvg_error *error)
{
    struct kvi_cursor cursor;

    if (window->swa == NULL)
        return kvi_window_refuse_ring(error);
    kvi_cursor_init(&cursor, &window->swa->geometry, swa, swa_count);
    for (;;) {
        struct kvi_run run;
        uint64_t page;
        kvg_err err = kvi_cursor_next(&cursor, &run, error);

        if (err != KVG_OK)
            return kvi_slots_refuse(window->swa, cursor.refusal, err);
        if (run.count == 0)
            break;
        for (page = run.first; page < run.first + run.count; page++)
            if (window->to_full[page] != KVI_NO_PAGE)
                return kvi_slots_refuse(window->swa, KVI_REFUSED_MAPPING,
                    kvi_fail_slot(error, KVG_ESTATE, "span.mapped",
                        kvi_slot_of(&window->swa->geometry, page),
                        "is the window slot of a FULL slot"));
    }
    return kvg_slots_release(window->swa, swa, swa_count, error);
}

/* ---- Looking ------------------------------------------------------------------ */

uint64_t kvg_window_slot(const struct kvg_window *window, uint64_t full_slot)
{
    const struct kvi_geometry *geometry = &window->full->geometry;
    uint32_t swa_page;

    if (window->swa == NULL || !kvi_has_slot(geometry, full_slot))
        return KVG_SLOT_NONE;
    swa_page = window->to_window[kvi_page_of(geometry, full_slot)];
    if (swa_page == KVI_NO_PAGE)
        return KVG_SLOT_NONE;
    return kvi_slot_of(&window->swa->geometry, swa_page) +
           full_slot % geometry->page_slots;
}

/* Appends the window slots of one span. */
static kvg_err translate_span(const struct kvg_window *window,
    const struct kvg_span *span, size_t floor, struct kvg_spans *swa,
    struct kvg_error *error)
{
    uint32_t page_slots = window->full->geometry.page_slots;
    uint64_t slot = span->offset;
    uint64_t end = span->offset + span->length;

    while (slot < end) {
        uint64_t found = kvg_window_slot(window, slot);
        uint64_t part = page_slots - slot % page_slots;

        part = part < end - slot ? part : end - slot;
        if (found == KVG_SLOT_NONE)
            return kvi_fail_slot(
                error, KVG_ENOENT, "span.mapped", slot, "has no window slot");
        if (!kvi_spans_append(swa, floor, page_slots, found, part))
            return kvi_fail(error, KVG_ELIMIT, "spans.max",
                "the window slots lie in more runs than the list has room for");
        slot += part;
    }
    return KVG_OK;
}

kvg_err kvg_window_translate(const struct kvg_window *window, const struct kvg_span *full,
    size_t full_count, struct kvg_spans *swa, struct kvg_error *error)
{
    size_t start = swa->count;
    kvg_err err = KVG_OK;
    size_t i;

    if (window->swa == NULL)
        return kvi_window_refuse_ring(error);
    for (i = 0; i < full_count && err == KVG_OK; i++) {
        err = kvi_span_check(&window->full->geometry, &full[i], error);
        if (err == KVG_OK)
            err = translate_span(window, &full[i], start, swa, error);
    }
    if (err != KVG_OK)
        swa->count = start;
    return err;
}

uint64_t kvg_window_ring_slot(
    const struct kvg_window *window, uint32_t row, uint64_t position)
{
    if (window->kind != KVG_WINDOW_RING || row >= window->ring_rows)
        return KVG_SLOT_NONE;
    return (uint64_t)row * window->ring_slots + position % window->ring_slots;
}

void kvg_window_reset(struct kvg_window *window)
{
    kvg_slots_reset(window->full);
    if (window->swa == NULL)
        return;
    kvg_slots_reset(window->swa);
    memset(window->to_window, 0xff, window->full->geometry.page_count * sizeof(uint32_t));
    memset(window->to_full, 0xff, window->swa->geometry.page_count * sizeof(uint32_t));
    window->mapped_count = 0;
}

static const char *check_mapping(const struct kvg_window *window)
{
    uint64_t full_pages = window->full->geometry.page_count;
    uint64_t swa_pages = window->swa->geometry.page_count;
    uint64_t full_mapped = 0;
    uint64_t swa_mapped = 0;
    uint64_t i;

    for (i = 0; i < full_pages; i++) {
        uint32_t swa_page = window->to_window[i];

        if (swa_page == KVI_NO_PAGE)
            continue;
        full_mapped++;
        if ((swa_page & KVI_FRESH) != 0)
            return "5 a pair still carries the mark of an unfinished call";
        if (swa_page >= swa_pages || window->to_full[swa_page] != i)
            return "3 the two sides of the mapping disagree";
        if (kvi_bit(window->full->map.free, i) ||
            kvi_bit(window->swa->map.free, swa_page))
            return "4 a mapped page is free";
    }
    for (i = 0; i < swa_pages; i++)
        swa_mapped += window->to_full[i] != KVI_NO_PAGE;
    if (full_mapped != swa_mapped)
        return "3 the two sides of the mapping disagree";
    if (full_mapped != window->mapped_count)
        return "5 mapped_count is not the number of pairs";
    return NULL;
}

kvg_err kvg_window_check(const struct kvg_window *window, struct kvg_error *error)
{
    const char *broken;
    kvg_err err = kvg_slots_check(window->full, error);

    if (err != KVG_OK || window->swa == NULL)
        return err;
    err = kvg_slots_check(window->swa, error);
    if (err != KVG_OK)
        return err;
    broken = check_mapping(window);
    return broken == NULL ? KVG_OK
                          : kvi_fail(error, KVG_EMISMATCH, "window.check", broken);
}
