/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* Unit tests of the window pool: FULL slots, window slots and the mapping (slots.h). */
#include <kvgraft/slots.h>

#include "fault_alloc.h"
#include "test.h"

struct fixture {
    struct fault_alloc fault;
    struct kvg_window *window;
    struct kvg_span items[64];
    struct kvg_spans spans;
    struct kvg_window_freed freed;
    struct kvg_error error;
};

static void open_window(struct fixture *f, const struct kvg_window_options *wanted)
{
    struct kvg_window_options options = *wanted;

    options.struct_bytes = sizeof(options);
    memset(f, 0, sizeof(*f));
    fault_alloc_init(&f->fault);
    f->spans = (struct kvg_spans){f->items, 0, 64};
    CHECK_EQ(kvg_window_new(&f->fault.alloc, &options, &f->window, &f->error), KVG_OK);
}

static void close_window(struct fixture *f)
{
    CHECK_EQ(kvg_window_check(f->window, &f->error), KVG_OK);
    kvg_window_free(f->window);
    CHECK_EQ(f->fault.live_bytes, 0);
}

/* A request of `count` slots, from an empty list. */
static kvg_err request(struct fixture *f, uint64_t count)
{
    struct kvg_extend extend = {.last_slot = KVG_SLOT_NONE, .wanted_slots = count};

    f->spans.count = 0;
    return kvg_window_extend(f->window, &extend, 1, &f->spans, &f->error);
}

static uint64_t full_free(const struct fixture *f)
{
    return kvg_slots_available(kvg_window_full(f->window));
}

static uint64_t swa_free(const struct fixture *f)
{
    return kvg_slots_available(kvg_window_swa(f->window));
}

static struct kvg_span span(uint64_t offset, uint32_t length)
{
    return (struct kvg_span){.offset = offset, .length = length};
}

static const struct kvg_window_options SMALL = {.page_slots = 1,
    .full_slots = 40,
    .full_first = 1,
    .window_slots = 10,
    .window_first = 1};
static const struct kvg_window_options PAGED = {.page_slots = 4,
    .full_slots = 64,
    .full_first = 4,
    .window_slots = 32,
    .window_first = 100};

TEST(each_new_page_gets_a_window_page)
{
    struct fixture f;
    uint64_t i;

    open_window(&f, &PAGED);
    CHECK_EQ(request(&f, 10), KVG_OK);
    CHECK_EQ(full_free(&f), 52);
    CHECK_EQ(swa_free(&f), 20);
    for (i = 0; i < 12; i++)
        CHECK_EQ(kvg_window_slot(f.window, 4 + i), 100 + i);
    CHECK_EQ(kvg_window_slot(f.window, 16), KVG_SLOT_NONE);
    CHECK_EQ(kvg_window_slot(f.window, 0), KVG_SLOT_NONE);
    close_window(&f);
}

TEST(an_extend_needs_room_in_both_pools)
{
    struct fixture f;

    open_window(&f, &SMALL);
    CHECK_EQ(kvg_window_available(f.window), 10);
    CHECK_EQ(request(&f, 11), KVG_ENOSPACE);
    CHECK_STR(f.error.field, "window.free");
    CHECK_EQ(request(&f, 41), KVG_ENOSPACE);
    CHECK_STR(f.error.field, "full.free");
    CHECK_EQ(full_free(&f), 40);
    CHECK_EQ(swa_free(&f), 10);
    close_window(&f);
}

TEST(slots_that_leave_the_window_free_their_peers_only)
{
    struct kvg_span old;
    struct fixture f;

    open_window(&f, &SMALL);
    CHECK_EQ(request(&f, 10), KVG_OK);
    old = span(f.items[0].offset, 6);
    CHECK_EQ(kvg_window_release_swa(f.window, &old, 1, &f.freed, &f.error), KVG_OK);
    CHECK_EQ(f.freed.window_slots, 6);
    CHECK_EQ(f.freed.full_slots, 0);
    CHECK_EQ(kvg_window_release_swa(f.window, &old, 1, &f.freed, &f.error), KVG_OK);
    CHECK_EQ(f.freed.window_slots, 0);
    CHECK_EQ(kvg_window_slot(f.window, old.offset + 5), KVG_SLOT_NONE);
    CHECK(kvg_window_slot(f.window, old.offset + 6) != KVG_SLOT_NONE);
    CHECK_EQ(swa_free(&f), 6);
    CHECK_EQ(full_free(&f), 30);
    CHECK_EQ(kvg_window_release(f.window, f.items, 1, &f.freed, &f.error), KVG_OK);
    CHECK_EQ(f.freed.full_slots, 10);
    CHECK_EQ(f.freed.window_slots, 4);
    CHECK_EQ(swa_free(&f), 10);
    close_window(&f);
}

/* The two kinds of free must be exact: each finds the slots meant for the other. */
TEST(an_exact_window_refuses_the_wrong_kind_of_release)
{
    struct kvg_window_options options = SMALL;
    struct kvg_slots_stats stats;
    struct kvg_span tail;
    struct kvg_span head;
    struct fixture f;

    options.exact = true;
    open_window(&f, &options);
    CHECK_EQ(request(&f, 10), KVG_OK);
    head = span(f.items[0].offset, 6);
    tail = span(f.items[0].offset + 6, 4);
    CHECK_EQ(kvg_window_release_swa(f.window, &head, 1, NULL, &f.error), KVG_OK);
    CHECK_EQ(kvg_window_release(f.window, f.items, 1, NULL, &f.error), KVG_ESTATE);
    CHECK_STR(f.error.field, "span.mapped");
    CHECK_STR(f.error.message, "slot 1 has no window slot; release FULL only");
    CHECK_EQ(kvg_window_release_full(f.window, f.items, 1, NULL, &f.error), KVG_ESTATE);
    CHECK_STR(f.error.message, "slot 7 has a window slot; release both");
    CHECK_EQ(full_free(&f), 30);
    kvg_slots_stats(kvg_window_full(f.window), &stats);
    CHECK_EQ(stats.refused_mapping, 2);
    CHECK_EQ(kvg_window_release_full(f.window, &head, 1, &f.freed, &f.error), KVG_OK);
    CHECK_EQ(f.freed.full_slots, 6);
    CHECK_EQ(kvg_window_release(f.window, &tail, 1, &f.freed, &f.error), KVG_OK);
    CHECK_EQ(full_free(&f), 40);
    CHECK_EQ(swa_free(&f), 10);
    close_window(&f);
}

TEST(a_double_release_changes_neither_pool)
{
    struct kvg_span both[2];
    struct fixture f;

    open_window(&f, &SMALL);
    CHECK_EQ(request(&f, 8), KVG_OK);
    both[0] = span(f.items[0].offset, 5);
    both[1] = span(f.items[0].offset + 4, 2);
    CHECK_EQ(kvg_window_release(f.window, both, 2, NULL, &f.error), KVG_ESTATE);
    CHECK_EQ(full_free(&f), 32);
    CHECK_EQ(swa_free(&f), 2);
    CHECK_EQ(kvg_window_release(f.window, both, 1, NULL, &f.error), KVG_OK);
    CHECK_EQ(kvg_window_release_swa(f.window, both, 1, NULL, &f.error), KVG_ESTATE);
    CHECK_EQ(kvg_window_release_full(f.window, both, 1, NULL, &f.error), KVG_ESTATE);
    CHECK_EQ(full_free(&f), 37);
    close_window(&f);
}

/* A load: FULL and window slots are allocated apart, filled, and then mapped. */
TEST(a_load_maps_what_it_filled)
{
    struct kvg_span full;
    struct kvg_span swa;
    struct kvg_span half;
    struct fixture f;

    open_window(&f, &PAGED);
    CHECK_EQ(kvg_window_alloc_full(f.window, 16, &f.spans, &f.error), KVG_OK);
    full = f.items[0];
    f.spans.count = 0;
    CHECK_EQ(kvg_window_alloc_swa(f.window, 8, &f.spans, &f.error), KVG_OK);
    swa = f.items[0];
    CHECK_EQ(kvg_window_map(f.window, &full, 1, &swa, 1, &f.error), KVG_EMISMATCH);
    CHECK_STR(f.error.field, "swa.length");
    half = span(full.offset + 8, 8);
    CHECK_EQ(kvg_window_map(f.window, &half, 1, &swa, 1, &f.error), KVG_OK);
    CHECK_EQ(kvg_window_map(f.window, &half, 1, &swa, 1, &f.error), KVG_OK);
    CHECK_EQ(kvg_window_slot(f.window, half.offset + 5), swa.offset + 5);
    half = span(full.offset, 8);
    CHECK_EQ(kvg_window_map(f.window, &half, 1, &swa, 1, &f.error), KVG_EEXIST);
    CHECK_EQ(kvg_window_release_unmapped(f.window, &swa, 1, &f.error), KVG_ESTATE);
    CHECK_EQ(kvg_window_release(f.window, &full, 1, &f.freed, &f.error), KVG_OK);
    CHECK_EQ(f.freed.full_slots, 16);
    CHECK_EQ(f.freed.window_slots, 8);
    close_window(&f);
}

TEST(an_aborted_load_gives_back_what_it_did_not_map)
{
    struct kvg_span swa;
    struct fixture f;

    open_window(&f, &PAGED);
    CHECK_EQ(kvg_window_alloc_swa(f.window, 8, &f.spans, &f.error), KVG_OK);
    swa = f.items[0];
    CHECK_EQ(kvg_window_release_unmapped(f.window, &swa, 1, &f.error), KVG_OK);
    CHECK_EQ(kvg_window_release_unmapped(f.window, &swa, 1, &f.error), KVG_ESTATE);
    CHECK_EQ(swa_free(&f), 32);
    close_window(&f);
}

/* A page named twice shows only when the second pair is made. */
TEST(a_map_that_names_a_page_twice_is_undone)
{
    struct kvg_span full;
    struct kvg_span swa;
    struct kvg_span lists[4];
    struct fixture f;

    open_window(&f, &PAGED);
    CHECK_EQ(kvg_window_alloc_full(f.window, 16, &f.spans, &f.error), KVG_OK);
    full = f.items[0];
    f.spans.count = 0;
    CHECK_EQ(kvg_window_alloc_swa(f.window, 16, &f.spans, &f.error), KVG_OK);
    swa = f.items[0];
    lists[0] = span(full.offset, 4);
    lists[1] = span(swa.offset, 4);
    CHECK_EQ(kvg_window_map(f.window, &lists[0], 1, &lists[1], 1, &f.error), KVG_OK);
    /* One pair that exists, one new, and the new FULL page again. */
    lists[0] = span(full.offset, 8);
    lists[1] = span(full.offset + 4, 4);
    lists[2] = span(swa.offset, 12);
    CHECK_EQ(kvg_window_map(f.window, lists, 2, &lists[2], 1, &f.error), KVG_EEXIST);
    CHECK_EQ(kvg_window_slot(f.window, full.offset), swa.offset);
    CHECK_EQ(kvg_window_slot(f.window, full.offset + 4), KVG_SLOT_NONE);
    CHECK_EQ(kvg_window_check(f.window, &f.error), KVG_OK);
    close_window(&f);
}

/* Engine rule: a FULL slot that is locked keeps its place, and takes over the window
 * slots of the incoming one, which is then freed alone. */
TEST(recovery_of_a_locked_page_moves_the_incoming_window_slots)
{
    struct kvg_span kept;
    struct kvg_span incoming;
    uint64_t slot;
    struct fixture f;

    open_window(&f, &SMALL);
    CHECK_EQ(request(&f, 2), KVG_OK);
    kept = f.items[0];
    CHECK_EQ(kvg_window_release_swa(f.window, &kept, 1, NULL, &f.error), KVG_OK);
    CHECK_EQ(request(&f, 2), KVG_OK);
    incoming = f.items[0];
    slot = kvg_window_slot(f.window, incoming.offset);
    CHECK_EQ(kvg_window_move(f.window, &incoming, 1, &kept, 1, &f.error), KVG_OK);
    CHECK_EQ(kvg_window_slot(f.window, kept.offset), slot);
    CHECK_EQ(kvg_window_slot(f.window, incoming.offset), KVG_SLOT_NONE);
    CHECK_EQ(kvg_window_move(f.window, &incoming, 1, &kept, 1, &f.error), KVG_ENOENT);
    CHECK_EQ(kvg_window_release_full(f.window, &incoming, 1, NULL, &f.error), KVG_OK);
    CHECK_EQ(full_free(&f), 38);
    CHECK_EQ(swa_free(&f), 8);
    close_window(&f);
}

TEST(a_move_that_names_a_page_twice_is_undone)
{
    struct kvg_span from;
    struct kvg_span to;
    struct kvg_span twice[2];
    uint64_t slot;
    struct fixture f;

    open_window(&f, &SMALL);
    CHECK_EQ(request(&f, 2), KVG_OK);
    from = f.items[0];
    slot = kvg_window_slot(f.window, from.offset);
    f.spans.count = 0;
    CHECK_EQ(kvg_window_alloc_full(f.window, 2, &f.spans, &f.error), KVG_OK);
    to = f.items[0];
    twice[0] = span(from.offset, 1);
    twice[1] = span(from.offset, 1);
    CHECK_EQ(kvg_window_move(f.window, twice, 2, &to, 1, &f.error), KVG_EEXIST);
    CHECK_EQ(kvg_window_slot(f.window, from.offset), slot);
    twice[0] = span(to.offset, 1);
    twice[1] = span(to.offset, 1);
    CHECK_EQ(kvg_window_move(f.window, &from, 1, twice, 2, &f.error), KVG_EEXIST);
    CHECK_EQ(kvg_window_slot(f.window, from.offset), slot);
    CHECK_EQ(kvg_window_slot(f.window, to.offset), KVG_SLOT_NONE);
    close_window(&f);
}

TEST(translation_gives_runs_and_fails_whole)
{
    struct kvg_span full[2];
    struct kvg_span out[4];
    struct kvg_spans list = {out, 0, 4};
    struct fixture f;

    open_window(&f, &PAGED);
    CHECK_EQ(request(&f, 12), KVG_OK);
    full[0] = span(5, 2);
    full[1] = span(7, 6);
    CHECK_EQ(kvg_window_translate(f.window, full, 2, &list, &f.error), KVG_OK);
    CHECK_EQ(list.count, 1);
    CHECK_EQ(out[0].offset, 101);
    CHECK_EQ(out[0].length, 8);
    full[1] = span(15, 6);
    CHECK_EQ(kvg_window_translate(f.window, full, 2, &list, &f.error), KVG_ENOENT);
    CHECK_EQ(list.count, 1);
    CHECK_EQ(out[0].length, 8);
    list.max = 1;
    CHECK_EQ(kvg_window_translate(f.window, full, 1, &list, &f.error), KVG_ELIMIT);
    close_window(&f);
}

TEST(a_growing_request_keeps_its_window_pages_together)
{
    struct kvg_extend grow = {.last_slot = KVG_SLOT_NONE, .wanted_slots = 4};
    struct fixture f;

    open_window(&f, &PAGED);
    CHECK_EQ(kvg_window_extend(f.window, &grow, 1, &f.spans, &f.error), KVG_OK);
    grow = (struct kvg_extend){.held_slots = 4, .last_slot = 7, .wanted_slots = 5};
    CHECK_EQ(kvg_window_extend(f.window, &grow, 1, &f.spans, &f.error), KVG_OK);
    CHECK_EQ(kvg_window_slot(f.window, 8), 104);
    CHECK_EQ(kvg_window_slot(f.window, 12), 108);
    close_window(&f);
}

TEST(a_request_ring_gives_each_row_its_own_window)
{
    struct kvg_window_options ring = {.kind = KVG_WINDOW_RING,
        .page_slots = 1,
        .full_slots = 20,
        .ring_rows = 3,
        .ring_slots = 8};
    struct kvg_span swa = {.offset = 0, .length = 1};
    struct fixture f;

    open_window(&f, &ring);
    CHECK(kvg_window_is_ring(f.window));
    CHECK(kvg_window_swa(f.window) == NULL);
    CHECK_EQ(kvg_window_available(f.window), 20);
    CHECK_EQ(request(&f, 5), KVG_OK);
    CHECK_EQ(kvg_window_slot(f.window, f.items[0].offset), KVG_SLOT_NONE);
    CHECK_EQ(kvg_window_ring_slot(f.window, 2, 3), 19);
    CHECK_EQ(kvg_window_ring_slot(f.window, 2, 11), 19);
    CHECK_EQ(kvg_window_ring_slot(f.window, 3, 0), KVG_SLOT_NONE);
    CHECK_EQ(kvg_window_release_swa(f.window, f.items, 1, &f.freed, &f.error), KVG_OK);
    CHECK_EQ(f.freed.window_slots, 0);
    CHECK_EQ(kvg_window_map(f.window, f.items, 1, &swa, 1, &f.error), KVG_ESTATE);
    CHECK_STR(f.error.field, "window.kind");
    CHECK_EQ(kvg_window_alloc_swa(f.window, 1, &f.spans, &f.error), KVG_ESTATE);
    CHECK_EQ(kvg_window_release(f.window, f.items, 1, &f.freed, &f.error), KVG_OK);
    CHECK_EQ(f.freed.full_slots, 5);
    CHECK_EQ(full_free(&f), 20);
    close_window(&f);
}

TEST(options_out_of_range_name_their_field)
{
    static const struct {
        struct kvg_window_options options;
        const char *field;
    } CASES[] = {
        {{.struct_bytes = 3}, "window.struct_bytes"},
        {{.kind = (enum kvg_window_kind)7, .full_slots = 8}, "window.kind"},
        {{.full_slots = 0, .window_slots = 8}, "window.full_slots"},
        {{.full_slots = 8, .window_slots = 0}, "window.window_slots"},
        {{.full_slots = 8, .window_slots = 6, .page_slots = 4}, "window.window_slots"},
        {{.kind = KVG_WINDOW_RING, .full_slots = 8, .ring_slots = 1}, "window.ring_rows"},
        {{.kind = KVG_WINDOW_RING, .full_slots = 8, .ring_rows = 1}, "window.ring_slots"},
    };
    struct kvg_window *window;
    struct kvg_error error;
    size_t i;

    for (i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        struct kvg_window_options options = CASES[i].options;

        if (options.struct_bytes == 0)
            options.struct_bytes = sizeof(options);
        CHECK_EQ(
            kvg_window_new(kvg_alloc_default(), &options, &window, &error), KVG_EINVAL);
        CHECK_STR(error.field, CASES[i].field);
        CHECK(window == NULL);
    }
}

TEST(a_reset_frees_and_unmaps_everything)
{
    struct fixture f;

    open_window(&f, &PAGED);
    CHECK_EQ(request(&f, 32), KVG_OK);
    kvg_window_reset(f.window);
    CHECK_EQ(full_free(&f), 64);
    CHECK_EQ(swa_free(&f), 32);
    CHECK_EQ(kvg_window_slot(f.window, 4), KVG_SLOT_NONE);
    close_window(&f);
}

TEST_MAIN(RUN(each_new_page_gets_a_window_page), RUN(an_extend_needs_room_in_both_pools),
    RUN(slots_that_leave_the_window_free_their_peers_only),
    RUN(an_exact_window_refuses_the_wrong_kind_of_release),
    RUN(a_double_release_changes_neither_pool), RUN(a_load_maps_what_it_filled),
    RUN(an_aborted_load_gives_back_what_it_did_not_map),
    RUN(a_map_that_names_a_page_twice_is_undone),
    RUN(recovery_of_a_locked_page_moves_the_incoming_window_slots),
    RUN(a_move_that_names_a_page_twice_is_undone),
    RUN(translation_gives_runs_and_fails_whole),
    RUN(a_growing_request_keeps_its_window_pages_together),
    RUN(a_request_ring_gives_each_row_its_own_window),
    RUN(options_out_of_range_name_their_field), RUN(a_reset_frees_and_unmaps_everything))
