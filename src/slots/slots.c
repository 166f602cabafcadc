/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* slots.c -- a pool of slots (slots.h): requests in, spans out, and back.
 *
 *     request of 11 slots, pages of 4, 6 held        pool
 *
 *     positions  0  1  2  3 | 4  5  6  7 | 8  9 10 11 | 12 13 14 15 | 16 ..
 *                ---- held ------- |----------- wanted ------------------|
 *                                   tail            new pages
 *
 * The tail costs nothing: those two slots are the request's already, with their
 * page. kvi_slots_plan counts the new pages of a batch, and looks at every request
 * before the first page is taken; kvi_slots_fill takes the pages run by run
 * (freemap.c) and can then fail only for want of room in the caller's list: it puts
 * back what it took.
 *
 * A release walks the spans page run by page run (pages.c) and puts each run back as
 * it comes; a run that has a free page ends it, and a second walk takes the runs
 * before it again.  That way a slot named twice in one call is found by the same
 * test as a slot freed by an earlier one, and nothing needs to be remembered.
 *
 * Invariants, checked by kvg_slots_check():
 *
 *     1 to 6  Those of the free map.
 *     7       free_pages_min is not above the number of free pages.
 *     8       Pages allocated less pages freed are the pages in use.
 */
#include "slots/pool.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/fmt.h"

void kvg_slots_free(struct kvg_slots *slots)
{
    if (slots == NULL)
        return;
    kvi_freemap_fini(&slots->map, slots->alloc);
    KVI_FREE(slots->alloc, slots);
}

static kvg_err check_options(
    const struct kvg_slots_options *options, uint32_t page_slots, struct kvg_error *error)
{
    if (options->struct_bytes != sizeof(*options))
        return kvi_fail_range(error, "slots.struct_bytes", options->struct_bytes,
            sizeof(*options), sizeof(*options));
    if (page_slots > KVG_PAGE_SLOTS_MAX)
        return kvi_fail_range(
            error, "slots.page_slots", page_slots, 1, KVG_PAGE_SLOTS_MAX);
    if (options->capacity_slots < page_slots ||
        options->capacity_slots / page_slots > KVG_PAGES_MAX)
        return kvi_fail_range(error, "slots.capacity_slots", options->capacity_slots,
            page_slots, KVG_PAGES_MAX * page_slots);
    if (options->capacity_slots % page_slots != 0)
        return kvi_fail(error, KVG_EINVAL, "slots.capacity_slots",
            "slots.capacity_slots is not a multiple of slots.page_slots");
    if (options->first_slot % page_slots != 0 ||
        options->first_slot > UINT64_MAX - options->capacity_slots ||
        (options->first_slot + options->capacity_slots - 1) / page_slots > KVG_PAGES_MAX)
        return kvi_fail(error, KVG_EINVAL, "slots.first_slot",
            "slots.first_slot is not a multiple of slots.page_slots, or too large");
    return KVG_OK;
}

kvg_err kvg_slots_new(const struct kvg_alloc *alloc,
    const struct kvg_slots_options *options, struct kvg_slots **out,
    struct kvg_error *error)
{
    uint32_t page_slots = options->page_slots == 0 ? 1 : options->page_slots;
    struct kvg_slots *slots;
    kvg_err err;

    *out = NULL;
    err = check_options(options, page_slots, error);
    if (err != KVG_OK)
        return err;
    slots = KVI_NEW(alloc, struct kvg_slots);
    if (slots == NULL)
        return kvi_fail(error, KVG_ENOMEM, "slots", "out of memory");
    slots->alloc = alloc;
    slots->free_field = "slots.free";
    slots->geometry = (struct kvi_geometry){.first_slot = options->first_slot,
        .page_count = options->capacity_slots / page_slots,
        .page_slots = page_slots};
    slots->free_pages_min = slots->geometry.page_count;
    if (!kvi_freemap_init(&slots->map, alloc, slots->geometry.page_count)) {
        kvg_slots_free(slots);
        return kvi_fail(error, KVG_ENOMEM, "slots", "out of memory");
    }
    *out = slots;
    return KVG_OK;
}

kvg_err kvi_slots_refuse(struct kvg_slots *slots, enum kvi_refusal refusal, kvg_err err)
{
    slots->refused[refusal]++;
    return err;
}

kvg_err kvi_slots_refuse_free(
    struct kvg_slots *slots, uint64_t page, struct kvg_error *error)
{
    return kvi_slots_refuse(slots, KVI_REFUSED_DOUBLE,
        kvi_fail_slot(error, KVG_ESTATE, "span.offset",
            kvi_slot_of(&slots->geometry, page), "is free already, or named twice"));
}

kvg_err kvi_slots_want(struct kvg_slots *slots, uint64_t pages, struct kvg_error *error)
{
    char message[160];
    struct kvi_text text;

    if (pages <= slots->map.free_count)
        return KVG_OK;
    kvi_text_init(&text, message, sizeof(message));
    kvi_text_u64(&text, pages);
    kvi_text_str(&text, " pages are wanted; ");
    kvi_text_u64(&text, slots->map.free_count);
    kvi_text_str(&text, " are free");
    return kvi_slots_refuse(slots, KVI_REFUSED_EXHAUSTED,
        kvi_fail(error, KVG_ENOSPACE, slots->free_field, message));
}

size_t kvi_slots_take(struct kvg_slots *slots, uint64_t want, uint64_t hint,
    struct kvi_run runs[KVI_TAKE_RUNS])
{
    uint64_t before = slots->map.free_count;
    size_t count = kvi_freemap_take(&slots->map, want, hint, runs);

    slots->allocated_pages += before - slots->map.free_count;
    slots->allocated_runs += count;
    if (slots->map.free_count < slots->free_pages_min)
        slots->free_pages_min = slots->map.free_count;
    return count;
}

void kvi_slots_put(struct kvg_slots *slots, struct kvi_run run)
{
    kvi_freemap_put(&slots->map, run);
    slots->freed_pages += run.count;
}

/* ---- Allocation --------------------------------------------------------------- */

/* How many slots a request still has in its last page, of those it wants. */
static uint64_t tail_slots(const struct kvg_extend *extend, uint32_t page_slots)
{
    uint64_t used = extend->held_slots % page_slots;
    uint64_t left = used == 0 ? 0 : page_slots - used;

    return extend->wanted_slots < left ? extend->wanted_slots : left;
}

static uint64_t new_page_count(const struct kvg_extend *extend, uint32_t page_slots)
{
    uint64_t slots = extend->wanted_slots - tail_slots(extend, page_slots);

    return slots / page_slots + (slots % page_slots != 0);
}

static kvg_err check_extend(
    struct kvg_slots *slots, const struct kvg_extend *extend, struct kvg_error *error)
{
    const struct kvi_geometry *geometry = &slots->geometry;
    uint64_t last = extend->last_slot;

    if (extend->held_slots == 0 && last == KVG_SLOT_NONE)
        return KVG_OK;
    if (extend->held_slots == 0)
        return kvi_slots_refuse(slots, KVI_REFUSED_FOREIGN,
            kvi_fail(error, KVG_EINVAL, "extend.held_slots",
                "a request that holds no slot has a last slot"));
    if (!kvi_has_slot(geometry, last))
        return kvi_slots_refuse(slots, KVI_REFUSED_FOREIGN,
            kvi_fail_range(error, "extend.last_slot", last, geometry->first_slot,
                kvi_slot_of(geometry, geometry->page_count) - 1));
    if (last % geometry->page_slots != (extend->held_slots - 1) % geometry->page_slots)
        return kvi_slots_refuse(slots, KVI_REFUSED_MISALIGNED,
            kvi_fail_slot(error, KVG_EINVAL, "extend.last_slot", last,
                "is not where the request's length puts its last slot in a page"));
    if (kvi_bit(slots->map.free, kvi_page_of(geometry, last)))
        return kvi_slots_refuse(slots, KVI_REFUSED_DOUBLE,
            kvi_fail_slot(error, KVG_ESTATE, "extend.last_slot", last, "is free"));
    return KVG_OK;
}

kvg_err kvi_slots_plan(struct kvg_slots *slots, const struct kvg_extend *extends,
    size_t extend_count, uint64_t *pages_out, struct kvg_error *error)
{
    uint64_t pages = 0;
    size_t i;

    *pages_out = 0;
    if (extend_count > KVG_EXTENDS_MAX)
        return kvi_fail_range(error, "extend.count", extend_count, 0, KVG_EXTENDS_MAX);
    for (i = 0; i < extend_count; i++) {
        uint64_t more = new_page_count(&extends[i], slots->geometry.page_slots);
        kvg_err err = check_extend(slots, &extends[i], error);

        if (err != KVG_OK)
            return err;
        pages = more > UINT64_MAX - pages ? UINT64_MAX : pages + more;
    }
    *pages_out = pages;
    return kvi_slots_want(slots, pages, error);
}

void kvi_new_pages_init(struct kvi_new_pages *walk, const struct kvi_geometry *geometry,
    const struct kvg_extend *extend, const struct kvg_span *spans, size_t end)
{
    *walk = (struct kvi_new_pages){.geometry = geometry,
        .spans = spans,
        .next = extend->span_first,
        .end = end,
        .skip = tail_slots(extend, geometry->page_slots)};
}

bool kvi_new_pages_next(struct kvi_new_pages *walk, struct kvi_run *out)
{
    uint32_t page_slots = walk->geometry->page_slots;

    while (walk->next < walk->end) {
        const struct kvg_span *span = &walk->spans[walk->next++];
        uint64_t skip = walk->skip < span->length ? walk->skip : span->length;
        uint64_t length = span->length - skip;

        walk->skip -= skip;
        if (length == 0)
            continue;
        *out = (struct kvi_run){kvi_page_of(walk->geometry, span->offset + skip),
            length / page_slots + (length % page_slots != 0)};
        return true;
    }
    return false;
}

/* Appends the spans of one request; false, with its pages taken up to there in the
 * list, if the list is full. */
static bool fill_one(
    struct kvg_slots *slots, struct kvg_extend *extend, struct kvg_spans *spans)
{
    const struct kvi_geometry *geometry = &slots->geometry;
    uint32_t page_slots = geometry->page_slots;
    uint64_t tail = tail_slots(extend, page_slots);
    uint64_t left = extend->wanted_slots - tail;
    uint64_t pages = new_page_count(extend, page_slots);
    uint64_t hint = KVI_NONE;

    extend->span_first = spans->count;
    if (extend->held_slots != 0)
        hint = kvi_page_of(geometry, extend->last_slot) + 1;
    if (!kvi_spans_append(
            spans, extend->span_first, page_slots, extend->last_slot + 1, tail))
        return false;
    while (pages > 0) {
        struct kvi_run runs[KVI_TAKE_RUNS];
        size_t count = kvi_slots_take(slots, pages, hint, runs);
        size_t i;

        hint = KVI_NONE;
        for (i = 0; i < count; i++) {
            uint64_t length = runs[i].count * page_slots;

            length = length < left ? length : left;
            if (!kvi_spans_append(spans, extend->span_first, page_slots,
                    kvi_slot_of(geometry, runs[i].first), length))
                break;
            left -= length;
            pages -= runs[i].count;
        }
        if (i < count) {
            for (; i < count; i++)
                kvi_slots_put(slots, runs[i]);
            return false;
        }
    }
    extend->span_count = spans->count - extend->span_first;
    return true;
}

kvg_err kvi_slots_fill(struct kvg_slots *slots, struct kvg_extend *extends,
    size_t extend_count, struct kvg_spans *spans, struct kvg_error *error)
{
    const struct kvg_slots before = *slots;
    size_t start = spans->count;
    size_t i;
    size_t k;

    for (i = 0; i < extend_count; i++)
        if (!fill_one(slots, &extends[i], spans))
            break;
    if (i == extend_count)
        return KVG_OK;
    for (k = 0; k <= i; k++) {
        size_t end = k < i ? extends[k].span_first + extends[k].span_count : spans->count;
        struct kvi_new_pages walk;
        struct kvi_run run;

        kvi_new_pages_init(&walk, &slots->geometry, &extends[k], spans->items, end);
        while (kvi_new_pages_next(&walk, &run))
            kvi_slots_put(slots, run);
        extends[k].span_first = 0;
        extends[k].span_count = 0;
    }
    spans->count = start;
    slots->free_pages_min = before.free_pages_min;
    slots->allocated_pages = before.allocated_pages;
    slots->allocated_runs = before.allocated_runs;
    slots->freed_pages = before.freed_pages;
    kvi_fail_range(error, "spans.max", spans->max, spans->max + UINT64_C(1), UINT64_MAX);
    if (error != NULL)
        error->code = KVG_ELIMIT;
    return kvi_slots_refuse(slots, KVI_REFUSED_SPANS, KVG_ELIMIT);
}

kvg_err kvg_slots_extend(struct kvg_slots *slots, struct kvg_extend *extends,
    size_t extend_count, struct kvg_spans *spans, struct kvg_error *error)
{
    uint64_t pages;
    kvg_err err = kvi_slots_plan(slots, extends, extend_count, &pages, error);

    if (err != KVG_OK)
        return err;
    return kvi_slots_fill(slots, extends, extend_count, spans, error);
}

kvg_err kvg_slots_alloc(struct kvg_slots *slots, uint64_t slot_count,
    struct kvg_spans *spans, struct kvg_error *error)
{
    struct kvg_extend extend = {.last_slot = KVG_SLOT_NONE, .wanted_slots = slot_count};

    if (slot_count % slots->geometry.page_slots != 0)
        return kvi_slots_refuse(slots, KVI_REFUSED_MISALIGNED,
            kvi_fail(error, KVG_EINVAL, "slots.count",
                "the number of slots is not a multiple of the page"));
    return kvg_slots_extend(slots, &extend, 1, spans, error);
}

/* ---- Release ------------------------------------------------------------------ */

/* Takes the first `run_count` runs of `spans` back again. */
static void undo_release(struct kvg_slots *slots, const struct kvg_span *spans,
    size_t span_count, uint64_t run_count)
{
    struct kvi_cursor cursor;

    kvi_cursor_init(&cursor, &slots->geometry, spans, span_count);
    while (run_count-- > 0) {
        struct kvi_run run;
        kvg_err err = kvi_cursor_next(&cursor, &run, NULL);

        KVI_ASSERT(err == KVG_OK && run.count > 0);
        kvi_freemap_use(&slots->map, run);
        slots->freed_pages -= run.count;
    }
}

kvg_err kvg_slots_release(struct kvg_slots *slots, const struct kvg_span *spans,
    size_t span_count, struct kvg_error *error)
{
    struct kvi_cursor cursor;
    uint64_t run_count = 0;

    kvi_cursor_init(&cursor, &slots->geometry, spans, span_count);
    for (;;) {
        struct kvi_run run;
        uint64_t found;
        kvg_err err = kvi_cursor_next(&cursor, &run, error);

        if (err != KVG_OK) {
            undo_release(slots, spans, span_count, run_count);
            return kvi_slots_refuse(slots, cursor.refusal, err);
        }
        if (run.count == 0)
            return KVG_OK;
        found = kvi_freemap_first_free(&slots->map, run);
        if (found != KVI_NONE) {
            undo_release(slots, spans, span_count, run_count);
            return kvi_slots_refuse_free(slots, found, error);
        }
        kvi_slots_put(slots, run);
        run_count++;
    }
}

void kvg_slots_reset(struct kvg_slots *slots)
{
    slots->freed_pages += slots->geometry.page_count - slots->map.free_count;
    kvi_freemap_reset(&slots->map);
}

/* ---- Looking ------------------------------------------------------------------ */

uint64_t kvg_slots_available(const struct kvg_slots *slots)
{
    return slots->map.free_count * slots->geometry.page_slots;
}

bool kvg_slots_is_free(const struct kvg_slots *slots, uint64_t slot)
{
    return kvi_has_slot(&slots->geometry, slot) &&
           kvi_bit(slots->map.free, kvi_page_of(&slots->geometry, slot));
}

uint32_t kvg_slots_page_slots(const struct kvg_slots *slots)
{
    return slots->geometry.page_slots;
}

void kvg_slots_stats(const struct kvg_slots *slots, struct kvg_slots_stats *out)
{
    uint32_t page_slots = slots->geometry.page_slots;

    *out = (struct kvg_slots_stats){
        .capacity_slots = slots->geometry.page_count * page_slots,
        .free_slots = slots->map.free_count * page_slots,
        .free_slots_min = slots->free_pages_min * page_slots,
        .allocated_pages = slots->allocated_pages,
        .allocated_runs = slots->allocated_runs,
        .freed_pages = slots->freed_pages,
        .refused_double = slots->refused[KVI_REFUSED_DOUBLE],
        .refused_foreign = slots->refused[KVI_REFUSED_FOREIGN],
        .refused_misaligned = slots->refused[KVI_REFUSED_MISALIGNED],
        .refused_exhausted = slots->refused[KVI_REFUSED_EXHAUSTED],
        .refused_spans = slots->refused[KVI_REFUSED_SPANS],
        .refused_mapping = slots->refused[KVI_REFUSED_MAPPING],
    };
}

/* The sentences of invariants 1 to 8. */
static const char *const BROKEN[] = {
    "0 none",
    "1 a bit beyond the last page is set",
    "2 free_count is not the number of free pages",
    "3 a begun word is not in the set of begun words, or a stranger is",
    "4 a whole word is not marked whole, or another is",
    "5 a block is not in the set of blocks, or a stranger is",
    "6 the levels of a set disagree",
    "7 there were never as few free pages as there are",
    "8 pages allocated less pages freed are not the pages in use",
};

kvg_err kvg_slots_check(const struct kvg_slots *slots, struct kvg_error *error)
{
    int broken = kvi_freemap_check(&slots->map);

    if (broken == 0 && slots->free_pages_min > slots->map.free_count)
        broken = 7;
    if (broken == 0 && slots->allocated_pages - slots->freed_pages !=
                           slots->geometry.page_count - slots->map.free_count)
        broken = 8;
    if (broken == 0)
        return KVG_OK;
    return kvi_fail(error, KVG_EMISMATCH, "slots.check", BROKEN[broken]);
}
