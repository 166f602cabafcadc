/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* Unit tests of the pool and the audit (slots.h). */
#include <kvgraft/slots.h>

#include "fault_alloc.h"
#include "slots/pool.h"
#include "test.h"

#define SPANS_MAX 256

/* A pool, a list to fill and the last error. */
struct fixture {
    struct fault_alloc fault;
    struct kvg_slots *slots;
    struct kvg_span items[SPANS_MAX];
    struct kvg_spans spans;
    struct kvg_error error;
};

static void open_pool(struct fixture *f, uint64_t slots, uint32_t page, uint64_t first)
{
    struct kvg_slots_options options = {.struct_bytes = sizeof(options),
        .capacity_slots = slots,
        .page_slots = page,
        .first_slot = first};

    memset(f, 0, sizeof(*f));
    fault_alloc_init(&f->fault);
    f->spans = (struct kvg_spans){f->items, 0, SPANS_MAX};
    CHECK_EQ(kvg_slots_new(&f->fault.alloc, &options, &f->slots, &f->error), KVG_OK);
}

static void close_pool(struct fixture *f)
{
    CHECK_EQ(kvg_slots_check(f->slots, &f->error), KVG_OK);
    kvg_slots_free(f->slots);
    CHECK_EQ(f->fault.live_bytes, 0);
}

static struct kvg_slots_stats stats(const struct fixture *f)
{
    struct kvg_slots_stats out;

    kvg_slots_stats(f->slots, &out);
    return out;
}

static kvg_err alloc(struct fixture *f, uint64_t slot_count)
{
    f->spans.count = 0;
    return kvg_slots_alloc(f->slots, slot_count, &f->spans, &f->error);
}

static kvg_err give(struct fixture *f, uint64_t offset, uint32_t length)
{
    struct kvg_span span = {.offset = offset, .length = length};

    return kvg_slots_release(f->slots, &span, 1, &f->error);
}

TEST(a_pool_gives_out_every_slot_once_and_then_no_more)
{
    bool seen[101] = {false};
    struct fixture f;
    uint64_t i;

    open_pool(&f, 100, 1, 1);
    for (i = 0; i < 100; i++) {
        CHECK_EQ(alloc(&f, 1), KVG_OK);
        CHECK(f.items[0].offset >= 1 && f.items[0].offset <= 100);
        CHECK(!seen[f.items[0].offset]);
        seen[f.items[0].offset] = true;
    }
    CHECK_EQ(alloc(&f, 1), KVG_ENOSPACE);
    CHECK_STR(f.error.field, "slots.free");
    CHECK_STR(f.error.message, "1 pages are wanted; 0 are free");
    CHECK_EQ(stats(&f).refused_exhausted, 1);
    CHECK_EQ(stats(&f).free_slots_min, 0);
    close_pool(&f);
}

TEST(an_empty_pool_gives_any_request_in_one_run)
{
    static const uint64_t SIZES[] = {1, 3, 63, 64, 65, 100, 128, 4095, 4096, 5000, 12345};
    struct fixture f;
    size_t i;

    open_pool(&f, 40000, 1, 0);
    for (i = 0; i < sizeof(SIZES) / sizeof(SIZES[0]); i++) {
        CHECK_EQ(alloc(&f, SIZES[i]), KVG_OK);
        CHECK_EQ(f.spans.count, 1);
        CHECK_EQ(f.items[0].length, SIZES[i]);
    }
    CHECK_EQ(stats(&f).allocated_runs, sizeof(SIZES) / sizeof(SIZES[0]));
    close_pool(&f);
}

TEST(small_requests_fill_gaps_before_they_break_a_whole_word)
{
    struct fixture f;

    open_pool(&f, 640, 1, 0);
    CHECK_EQ(alloc(&f, 640), KVG_OK);
    CHECK_EQ(give(&f, 100, 5), KVG_OK);
    CHECK_EQ(give(&f, 256, 64), KVG_OK);
    CHECK_EQ(alloc(&f, 4), KVG_OK);
    CHECK_EQ(f.items[0].offset, 100);
    CHECK_EQ(alloc(&f, 2), KVG_OK);
    CHECK_EQ(f.items[0].offset, 256);
    close_pool(&f);
}

TEST(a_run_may_cross_words)
{
    struct fixture f;

    open_pool(&f, 640, 1, 0);
    CHECK_EQ(alloc(&f, 640), KVG_OK);
    CHECK_EQ(give(&f, 120, 20), KVG_OK);
    CHECK_EQ(alloc(&f, 20), KVG_OK);
    CHECK_EQ(f.spans.count, 1);
    CHECK_EQ(f.items[0].offset, 120);
    CHECK_EQ(give(&f, 60, 80), KVG_OK);
    CHECK_EQ(alloc(&f, 80), KVG_OK);
    CHECK_EQ(f.spans.count, 1);
    CHECK_EQ(f.items[0].offset, 60);
    close_pool(&f);
}

TEST(a_fragmented_pool_still_gives_all_it_has)
{
    struct fixture f;
    uint64_t i;

    open_pool(&f, 512, 1, 0);
    CHECK_EQ(alloc(&f, 512), KVG_OK);
    for (i = 0; i < 512; i += 2)
        CHECK_EQ(give(&f, i, 1), KVG_OK);
    CHECK_EQ(alloc(&f, 257), KVG_ENOSPACE);
    CHECK_EQ(alloc(&f, 256), KVG_OK);
    CHECK_EQ(f.spans.count, 256);
    CHECK_EQ(kvg_slots_available(f.slots), 0);
    close_pool(&f);
}

/* B25: two paths free the same decode slot. */
TEST(b25_a_second_free_of_one_slot_is_refused_and_counted)
{
    struct fixture f;

    open_pool(&f, 16, 1, 0);
    CHECK_EQ(alloc(&f, 12), KVG_OK);
    CHECK_EQ(give(&f, 9, 1), KVG_OK);
    CHECK_EQ(kvg_slots_available(f.slots), 5);
    CHECK_EQ(give(&f, 9, 1), KVG_ESTATE);
    CHECK_STR(f.error.field, "span.offset");
    CHECK_STR(f.error.message, "slot 9 is free already, or named twice");
    CHECK_EQ(kvg_slots_available(f.slots), 5);
    CHECK_EQ(stats(&f).refused_double, 1);
    close_pool(&f);
}

/* B26: two runs that meet inside one page. */
TEST(b26_a_page_named_in_two_parts_is_freed_once)
{
    struct kvg_span parts[] = {{.offset = 0, .length = 4}, {.offset = 4, .length = 4}};
    struct kvg_span turned[] = {{.offset = 12, .length = 4}, {.offset = 8, .length = 4}};
    struct fixture f;

    open_pool(&f, 32, 8, 0);
    CHECK_EQ(alloc(&f, 32), KVG_OK);
    CHECK_EQ(kvg_slots_release(f.slots, parts, 1, &f.error), KVG_EINVAL);
    CHECK_STR(f.error.field, "span.page");
    CHECK_EQ(stats(&f).refused_misaligned, 1);
    CHECK_EQ(kvg_slots_available(f.slots), 0);
    CHECK_EQ(kvg_slots_release(f.slots, parts, 2, &f.error), KVG_OK);
    CHECK_EQ(kvg_slots_release(f.slots, turned, 2, &f.error), KVG_OK);
    CHECK_EQ(kvg_slots_available(f.slots), 16);
    CHECK_EQ(kvg_slots_release(f.slots, parts, 2, &f.error), KVG_ESTATE);
    close_pool(&f);
}

/* B29: a page in the free list twice, handed to two owners. */
TEST(b29_a_page_freed_twice_in_one_call_is_not_handed_to_two_owners)
{
    struct kvg_span twice[] = {{.offset = 64, .length = 32}, {.offset = 0, .length = 16},
        {.offset = 80, .length = 16}};
    struct fixture f;

    open_pool(&f, 128, 16, 0);
    CHECK_EQ(alloc(&f, 128), KVG_OK);
    CHECK_EQ(kvg_slots_release(f.slots, twice, 3, &f.error), KVG_ESTATE);
    CHECK_STR(f.error.message, "slot 80 is free already, or named twice");
    CHECK_EQ(kvg_slots_available(f.slots), 0);
    CHECK_EQ(kvg_slots_release(f.slots, twice, 2, &f.error), KVG_OK);
    CHECK_EQ(alloc(&f, 48), KVG_OK);
    CHECK_EQ(alloc(&f, 16), KVG_ENOSPACE);
    close_pool(&f);
}

TEST(pieces_of_one_page_that_overlap_are_refused)
{
    struct kvg_span parts[] = {{.offset = 0, .length = 5}, {.offset = 4, .length = 4}};
    struct fixture f;

    open_pool(&f, 32, 8, 0);
    CHECK_EQ(alloc(&f, 32), KVG_OK);
    CHECK_EQ(kvg_slots_release(f.slots, parts, 2, &f.error), KVG_ESTATE);
    CHECK_STR(f.error.message, "slot 4 is named twice");
    close_pool(&f);
}

TEST(too_many_open_pieces_are_refused_with_the_limit)
{
    struct kvg_span parts[KVG_FRAGMENTS_MAX + 1];
    struct fixture f;
    uint32_t i;

    for (i = 0; i <= KVG_FRAGMENTS_MAX; i++)
        parts[i] = (struct kvg_span){.offset = i * 4, .length = 2};
    open_pool(&f, 4096, 4, 0);
    CHECK_EQ(alloc(&f, 4096), KVG_OK);
    CHECK_EQ(
        kvg_slots_release(f.slots, parts, KVG_FRAGMENTS_MAX + 1, &f.error), KVG_ELIMIT);
    CHECK_EQ(f.error.code, KVG_ELIMIT);
    CHECK_STR(f.error.message, "span.fragments is 65; allowed is 0 to 64");
    CHECK_EQ(kvg_slots_available(f.slots), 0);
    close_pool(&f);
}

TEST(slots_that_are_not_the_pools_are_refused)
{
    struct kvg_span buffer = {.offset = 8, .length = 8, .buffer = 3};
    struct fixture f;

    open_pool(&f, 64, 8, 8);
    CHECK_EQ(alloc(&f, 64), KVG_OK);
    CHECK_EQ(give(&f, 0, 8), KVG_EINVAL);
    CHECK_STR(f.error.message, "span.offset is 0; allowed is 8 to 71");
    CHECK_EQ(give(&f, 72, 8), KVG_EINVAL);
    CHECK_EQ(give(&f, UINT64_MAX, 8), KVG_EINVAL);
    CHECK_EQ(give(&f, 64, 16), KVG_EINVAL);
    CHECK_STR(f.error.message, "span.length is 16; allowed is 1 to 8");
    CHECK_EQ(give(&f, 64, 0), KVG_EINVAL);
    CHECK_EQ(kvg_slots_release(f.slots, &buffer, 1, &f.error), KVG_EINVAL);
    CHECK_STR(f.error.field, "span.buffer");
    CHECK_EQ(stats(&f).refused_foreign, 6);
    CHECK_EQ(kvg_slots_available(f.slots), 0);
    close_pool(&f);
}

TEST(a_request_grows_inside_its_last_page_first)
{
    struct kvg_extend grow = {.held_slots = 0, .last_slot = KVG_SLOT_NONE};
    struct fixture f;

    open_pool(&f, 64, 4, 4);
    grow.wanted_slots = 6;
    CHECK_EQ(kvg_slots_extend(f.slots, &grow, 1, &f.spans, &f.error), KVG_OK);
    CHECK_EQ(grow.span_count, 1);
    CHECK_EQ(f.items[0].offset, 4);
    CHECK_EQ(f.items[0].length, 6);
    CHECK_EQ(kvg_slots_available(f.slots), 56);

    grow = (struct kvg_extend){.held_slots = 6, .last_slot = 9, .wanted_slots = 1};
    CHECK_EQ(kvg_slots_extend(f.slots, &grow, 1, &f.spans, &f.error), KVG_OK);
    CHECK_EQ(grow.span_first, 1);
    CHECK_EQ(f.items[1].offset, 10);
    CHECK_EQ(f.items[1].length, 1);
    CHECK_EQ(kvg_slots_available(f.slots), 56);

    grow = (struct kvg_extend){.held_slots = 7, .last_slot = 10, .wanted_slots = 10};
    CHECK_EQ(kvg_slots_extend(f.slots, &grow, 1, &f.spans, &f.error), KVG_OK);
    CHECK_EQ(grow.span_count, 1); /* The next page was free: one run. */
    CHECK_EQ(f.items[2].offset, 11);
    CHECK_EQ(f.items[2].length, 10);
    CHECK_EQ(kvg_slots_available(f.slots), 44);
    close_pool(&f);
}

TEST(a_batch_is_all_or_nothing)
{
    struct kvg_extend batch[3] = {{.last_slot = KVG_SLOT_NONE, .wanted_slots = 5},
        {.last_slot = KVG_SLOT_NONE, .wanted_slots = 8},
        {.last_slot = KVG_SLOT_NONE, .wanted_slots = 1}};
    struct kvg_slots_stats before;
    struct kvg_slots_stats after;
    struct fixture f;

    open_pool(&f, 16, 4, 0);
    CHECK_EQ(kvg_slots_extend(f.slots, batch, 3, &f.spans, &f.error), KVG_ENOSPACE);
    CHECK_EQ(kvg_slots_available(f.slots), 16);
    CHECK_EQ(f.spans.count, 0);

    f.spans.max = 1;
    before = stats(&f);
    CHECK_EQ(kvg_slots_extend(f.slots, batch, 2, &f.spans, &f.error), KVG_ELIMIT);
    CHECK_STR(f.error.field, "spans.max");
    CHECK_EQ(f.spans.count, 0);
    after = stats(&f);
    CHECK_EQ(after.refused_spans, 1);
    after.refused_spans = 0;
    CHECK_MEM(&before, &after, sizeof(before));

    f.spans.max = 2;
    CHECK_EQ(kvg_slots_extend(f.slots, batch, 2, &f.spans, &f.error), KVG_OK);
    CHECK_EQ(kvg_slots_available(f.slots), 0);
    CHECK_EQ(batch[1].span_first, 1);
    CHECK_EQ(f.items[1].length, 8);
    close_pool(&f);
}

TEST(a_request_whose_length_and_last_slot_disagree_is_refused)
{
    struct kvg_extend grow = {.held_slots = 6, .last_slot = 6, .wanted_slots = 1};
    struct fixture f;

    open_pool(&f, 64, 4, 0);
    CHECK_EQ(alloc(&f, 8), KVG_OK);
    CHECK_EQ(kvg_slots_extend(f.slots, &grow, 1, &f.spans, &f.error), KVG_EINVAL);
    CHECK_STR(f.error.field, "extend.last_slot");
    grow.last_slot = 13;
    CHECK_EQ(kvg_slots_extend(f.slots, &grow, 1, &f.spans, &f.error), KVG_ESTATE);
    CHECK_STR(f.error.message, "slot 13 is free");
    grow.last_slot = KVG_SLOT_NONE;
    CHECK_EQ(kvg_slots_extend(f.slots, &grow, 1, &f.spans, &f.error), KVG_EINVAL);
    grow = (struct kvg_extend){.held_slots = 0, .last_slot = 5, .wanted_slots = 1};
    CHECK_EQ(kvg_slots_extend(f.slots, &grow, 1, &f.spans, &f.error), KVG_EINVAL);
    CHECK_STR(f.error.field, "extend.held_slots");
    CHECK_EQ(kvg_slots_available(f.slots), 56);
    close_pool(&f);
}

TEST(options_out_of_range_name_their_field)
{
    static const struct {
        struct kvg_slots_options options;
        const char *field;
    } CASES[] = {
        {{.struct_bytes = 1, .capacity_slots = 8}, "slots.struct_bytes"},
        {{.capacity_slots = 0}, "slots.capacity_slots"},
        {{.capacity_slots = 10, .page_slots = 4}, "slots.capacity_slots"},
        {{.capacity_slots = KVG_PAGES_MAX + 1}, "slots.capacity_slots"},
        {{.capacity_slots = 65537, .page_slots = 65537}, "slots.page_slots"},
        {{.capacity_slots = 8, .page_slots = 4, .first_slot = 2}, "slots.first_slot"},
        {{.capacity_slots = 8, .first_slot = UINT64_MAX - 2}, "slots.first_slot"},
    };
    struct kvg_slots *slots;
    struct kvg_error error;
    size_t i;

    for (i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        struct kvg_slots_options options = CASES[i].options;

        if (options.struct_bytes == 0)
            options.struct_bytes = sizeof(options);
        CHECK_EQ(
            kvg_slots_new(kvg_alloc_default(), &options, &slots, &error), KVG_EINVAL);
        CHECK_STR(error.field, CASES[i].field);
        CHECK(slots == NULL);
    }
}

TEST(a_run_longer_than_a_span_becomes_several)
{
    struct kvg_span items[4];
    struct kvg_spans spans = {items, 0, 4};

    CHECK(kvg_spans_append(&spans, 7, UINT64_C(5000000000)));
    CHECK_EQ(spans.count, 2);
    CHECK_EQ(kvg_spans_slots(items, spans.count), UINT64_C(5000000000));
    CHECK_EQ(items[1].offset, 7 + UINT64_C(0xffffffff));
    CHECK(!kvg_spans_append(&spans, 0, UINT64_C(20000000000)));
    CHECK_EQ(spans.count, 2);
}

/* ---- State slots ------------------------------------------------------------------ */

TEST(state_slots_are_a_pool_with_pages_of_one)
{
    struct fixture f;

    open_pool(&f, 20, 1, 1);
    CHECK_EQ(alloc(&f, 1), KVG_OK);
    CHECK_EQ(f.items[0].offset, 1);
    CHECK_EQ(alloc(&f, 2), KVG_OK);
    CHECK_EQ(give(&f, 1, 1), KVG_OK);
    CHECK_EQ(give(&f, 1, 1), KVG_ESTATE);
    kvg_slots_reset(f.slots);
    CHECK_EQ(kvg_slots_available(f.slots), 20);
    close_pool(&f);
}

/* ---- The audit --------------------------------------------------------------------- */

TEST(the_audit_adds_up_and_names_what_does_not)
{
    struct kvg_span tree = {.offset = 0, .length = 8};
    struct kvg_span request = {.offset = 8, .length = 16};
    struct kvg_audit_totals totals;
    struct kvg_audit *audit;
    struct fixture f;

    open_pool(&f, 64, 4, 0);
    CHECK_EQ(alloc(&f, 24), KVG_OK);
    CHECK_EQ(kvg_audit_new(&f.fault.alloc, f.slots, &audit, &f.error), KVG_OK);
    kvg_audit_begin(audit);
    CHECK_EQ(kvg_audit_claim(audit, KVG_CLAIM_PROTECTED, &tree, 1, &f.error), KVG_OK);
    CHECK_EQ(kvg_audit_finish(audit, &totals, &f.error), KVG_EMISMATCH);
    CHECK_STR(f.error.message, "slot 8 is neither free nor claimed by anybody");
    CHECK_EQ(kvg_audit_claim(audit, KVG_CLAIM_HELD, &request, 1, &f.error), KVG_OK);
    CHECK_EQ(kvg_audit_finish(audit, &totals, &f.error), KVG_OK);
    CHECK_EQ(totals.capacity_slots, 64);
    CHECK_EQ(totals.free_slots, 40);
    CHECK_EQ(totals.claimed_slots[KVG_CLAIM_PROTECTED], 8);
    CHECK_EQ(totals.claimed_slots[KVG_CLAIM_HELD], 16);

    request.offset = 20; /* One page of its own, three that are free. */
    kvg_audit_begin(audit);
    CHECK_EQ(
        kvg_audit_claim(audit, KVG_CLAIM_HELD, &request, 1, &f.error), KVG_EMISMATCH);
    CHECK_STR(f.error.message, "slot 24 is claimed, but free");
    request.length = 4;
    CHECK_EQ(kvg_audit_claim(audit, KVG_CLAIM_HELD, &request, 1, &f.error), KVG_OK);
    CHECK_EQ(kvg_audit_claim(audit, KVG_CLAIM_HELD, &request, 1, &f.error), KVG_EEXIST);
    CHECK_STR(f.error.message, "slot 20 is claimed twice");
    kvg_audit_free(audit);
    close_pool(&f);
}

/* ---- Memory ------------------------------------------------------------------------ */

static bool make_all(const struct kvg_alloc *allocator, void *context)
{
    struct kvg_slots_options pool = {
        .struct_bytes = sizeof(pool), .capacity_slots = 64, .page_slots = 4};
    struct kvg_window_options both = {.struct_bytes = sizeof(both),
        .page_slots = 4,
        .full_slots = 64,
        .window_slots = 32};
    struct kvg_rows_options table = {.struct_bytes = sizeof(table),
        .row_count = 4,
        .page_slots = 4,
        .context_slots = 64};
    struct kvg_slots *slots = NULL;
    struct kvg_window *window = NULL;
    struct kvg_rows *rows = NULL;
    struct kvg_audit *audit = NULL;
    kvg_err err = kvg_slots_new(allocator, &pool, &slots, NULL);

    if (err == KVG_OK)
        err = kvg_window_new(allocator, &both, &window, NULL);
    if (err == KVG_OK)
        err = kvg_rows_new(allocator, &table, &rows, NULL);
    if (err == KVG_OK)
        err = kvg_audit_new(allocator, slots, &audit, NULL);
    CHECK(err == KVG_OK || err == KVG_ENOMEM);
    kvg_audit_free(audit);
    kvg_rows_free(rows);
    kvg_window_free(window);
    kvg_slots_free(slots);
    return err == KVG_OK;
}

TEST(every_object_survives_every_failed_allocation)
{
    CHECK(for_each_oom(make_all, NULL) >= 20);
}

TEST(no_call_allocates_once_the_pool_is_made)
{
    struct fixture f;
    uint64_t calls;

    open_pool(&f, 10000, 1, 0);
    calls = f.fault.calls;
    CHECK_EQ(alloc(&f, 9000), KVG_OK);
    CHECK_EQ(kvg_slots_release(f.slots, f.items, f.spans.count, &f.error), KVG_OK);
    CHECK_EQ(f.fault.calls, calls);
    close_pool(&f);
}

TEST(a_page_costs_little_more_than_a_bit)
{
    struct fixture f;

    open_pool(&f, 1u << 22, 1, 0);
    CHECK(f.fault.live_bytes * 8 * 100 < (UINT64_C(1) << 22) * 106);
    close_pool(&f);
}

TEST_MAIN(RUN(a_pool_gives_out_every_slot_once_and_then_no_more),
    RUN(an_empty_pool_gives_any_request_in_one_run),
    RUN(small_requests_fill_gaps_before_they_break_a_whole_word),
    RUN(a_run_may_cross_words), RUN(a_fragmented_pool_still_gives_all_it_has),
    RUN(b25_a_second_free_of_one_slot_is_refused_and_counted),
    RUN(b26_a_page_named_in_two_parts_is_freed_once),
    RUN(b29_a_page_freed_twice_in_one_call_is_not_handed_to_two_owners),
    RUN(pieces_of_one_page_that_overlap_are_refused),
    RUN(too_many_open_pieces_are_refused_with_the_limit),
    RUN(slots_that_are_not_the_pools_are_refused),
    RUN(a_request_grows_inside_its_last_page_first), RUN(a_batch_is_all_or_nothing),
    RUN(a_request_whose_length_and_last_slot_disagree_is_refused),
    RUN(options_out_of_range_name_their_field),
    RUN(a_run_longer_than_a_span_becomes_several),
    RUN(state_slots_are_a_pool_with_pages_of_one),
    RUN(the_audit_adds_up_and_names_what_does_not),
    RUN(every_object_survives_every_failed_allocation),
    RUN(no_call_allocates_once_the_pool_is_made),
    RUN(a_page_costs_little_more_than_a_bit))
