/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* Unit tests of request rows (slots.h). */
#include <kvgraft/slots.h>

#include "fault_alloc.h"
#include "test.h"

static struct kvg_rows *open_rows(
    struct fault_alloc *fault, uint32_t row_count, uint32_t page, uint64_t context)
{
    struct kvg_rows_options options = {.struct_bytes = sizeof(options),
        .row_count = row_count,
        .page_slots = page,
        .context_slots = context};
    struct kvg_rows *rows;

    fault_alloc_init(fault);
    CHECK_EQ(kvg_rows_new(&fault->alloc, &options, &rows, NULL), KVG_OK);
    return rows;
}

static void close_rows(struct fault_alloc *fault, struct kvg_rows *rows)
{
    CHECK_EQ(kvg_rows_check(rows, NULL), KVG_OK);
    kvg_rows_free(rows);
    CHECK_EQ(fault->live_bytes, 0);
}

TEST(a_row_tells_the_slots_of_its_positions_as_runs)
{
    struct kvg_span first[] = {{.offset = 8, .length = 8}, {.offset = 40, .length = 2}};
    struct kvg_span second[] = {{.offset = 42, .length = 2}, {.offset = 44, .length = 3}};
    struct kvg_span items[8];
    struct kvg_spans spans = {items, 0, 8};
    struct fault_alloc fault;
    struct kvg_rows *rows = open_rows(&fault, 2, 4, 100);
    const uint32_t *table;
    size_t page_count;
    kvg_row row;

    CHECK_EQ(kvg_rows_acquire(rows, 1, &row, NULL), KVG_OK);
    CHECK_EQ(kvg_rows_append(rows, row, first, 2, NULL), KVG_OK);
    CHECK_EQ(kvg_rows_append(rows, row, second, 2, NULL), KVG_OK);
    CHECK_EQ(kvg_rows_length(rows, row), 15);
    CHECK_EQ(kvg_rows_spans(rows, row, 3, 15, &spans, NULL), KVG_OK);
    CHECK_EQ(spans.count, 2);
    CHECK_EQ(items[0].offset, 11);
    CHECK_EQ(items[0].length, 5);
    CHECK_EQ(items[1].offset, 40);
    CHECK_EQ(items[1].length, 7);
    spans.count = 0;
    CHECK_EQ(kvg_rows_spans(rows, row, 12, 16, &spans, NULL), KVG_OK);
    CHECK_EQ(items[0].length, 4); /* The end of the last page is the request's. */
    CHECK_EQ(kvg_rows_spans(rows, row, 12, 17, &spans, NULL), KVG_EINVAL);
    table = kvg_rows_table(rows, row, &page_count);
    CHECK_EQ(page_count, 4);
    CHECK_EQ(table[2], 10);
    close_rows(&fault, rows);
}

TEST(slots_that_cannot_lie_at_a_position_are_refused)
{
    struct kvg_span good = {.offset = 8, .length = 6};
    struct kvg_span shifted = {.offset = 21, .length = 1};
    struct kvg_span elsewhere = {.offset = 18, .length = 2};
    struct kvg_span foreign = {.offset = 14, .length = 2, .buffer = 1};
    struct kvg_span too_long = {.offset = 14, .length = 90};
    struct fault_alloc fault;
    struct kvg_rows *rows = open_rows(&fault, 1, 4, 64);
    struct kvg_rows_stats stats_out;
    struct kvg_error error;
    kvg_row row;

    CHECK_EQ(kvg_rows_acquire(rows, 1, &row, &error), KVG_OK);
    CHECK_EQ(kvg_rows_append(rows, row, &good, 1, &error), KVG_OK);
    CHECK_EQ(kvg_rows_append(rows, row, &shifted, 1, &error), KVG_EINVAL);
    CHECK_STR(error.field, "span.page");
    CHECK_EQ(kvg_rows_append(rows, row, &elsewhere, 1, &error), KVG_EINVAL);
    CHECK_EQ(kvg_rows_append(rows, row, &foreign, 1, &error), KVG_EINVAL);
    CHECK_STR(error.field, "span.buffer");
    CHECK_EQ(kvg_rows_append(rows, row, &too_long, 1, &error), KVG_ELIMIT);
    CHECK_STR(error.message, "row.length is 96; allowed is 0 to 64");
    CHECK_EQ(kvg_rows_length(rows, row), 6);
    kvg_rows_stats(rows, &stats_out);
    CHECK_EQ(stats_out.refused_spans, 4);
    close_rows(&fault, rows);
}

TEST(a_handle_kept_after_release_is_refused)
{
    struct fault_alloc fault;
    struct kvg_rows *rows = open_rows(&fault, 1, 1, 8);
    struct kvg_rows_stats stats_out;
    struct kvg_error error;
    kvg_row old;
    kvg_row row;

    CHECK_EQ(kvg_rows_acquire(rows, 1, &old, &error), KVG_OK);
    CHECK_EQ(kvg_rows_acquire(rows, 1, &row, &error), KVG_ENOSPACE);
    CHECK_EQ(kvg_rows_release(rows, old, &error), KVG_OK);
    CHECK_EQ(kvg_rows_release(rows, old, &error), KVG_ESTATE);
    CHECK_STR(error.field, "row.generation");
    CHECK_EQ(kvg_rows_acquire(rows, 1, &row, &error), KVG_OK);
    CHECK_EQ(row.index, old.index);
    CHECK_EQ(kvg_rows_release(rows, old, &error), KVG_ESTATE);
    old.index = 7;
    CHECK_EQ(kvg_rows_truncate(rows, old, 0, &error), KVG_EINVAL);
    CHECK_EQ(kvg_rows_length(rows, old), 0);
    kvg_rows_stats(rows, &stats_out);
    CHECK_EQ(stats_out.refused_stale, 3);
    CHECK_EQ(stats_out.refused_exhausted, 1);
    close_rows(&fault, rows);
}

TEST(a_row_takes_the_trees_slots_over_its_own)
{
    struct kvg_span own = {.offset = 100, .length = 7};
    struct kvg_span trees[] = {{.offset = 40, .length = 2}, {.offset = 60, .length = 2}};
    struct kvg_span items[4];
    struct kvg_spans spans = {items, 0, 4};
    struct fault_alloc fault;
    struct kvg_rows *rows = open_rows(&fault, 1, 2, 8);
    kvg_row row;

    CHECK_EQ(kvg_rows_acquire(rows, 1, &row, NULL), KVG_OK);
    CHECK_EQ(kvg_rows_append(rows, row, &own, 1, NULL), KVG_OK);
    CHECK_EQ(kvg_rows_write(rows, row, 0, trees, 2, NULL), KVG_OK);
    CHECK_EQ(kvg_rows_spans(rows, row, 0, 7, &spans, NULL), KVG_OK);
    CHECK_EQ(spans.count, 3);
    CHECK_EQ(items[1].offset, 60);
    CHECK_EQ(items[2].offset, 104);
    CHECK_EQ(kvg_rows_write(rows, row, 1, trees, 1, NULL), KVG_EINVAL);
    CHECK_EQ(kvg_rows_write(rows, row, 6, trees, 1, NULL), KVG_EINVAL);
    trees[0].length = 1;
    CHECK_EQ(kvg_rows_write(rows, row, 2, trees, 1, NULL), KVG_EINVAL);
    CHECK_EQ(kvg_rows_write(rows, row, 6, trees, 1, NULL), KVG_OK);
    CHECK_EQ(kvg_rows_truncate(rows, row, 3, NULL), KVG_OK);
    CHECK_EQ(kvg_rows_truncate(rows, row, 4, NULL), KVG_EINVAL);
    close_rows(&fault, rows);
}

TEST(row_options_out_of_range_name_their_field)
{
    static const struct {
        struct kvg_rows_options options;
        const char *field;
    } CASES[] = {
        {{.struct_bytes = 1}, "rows.struct_bytes"},
        {{.row_count = 0, .context_slots = 8}, "rows.row_count"},
        {{.row_count = KVG_ROWS_MAX + 1, .context_slots = 8}, "rows.row_count"},
        {{.row_count = 1, .page_slots = 65537, .context_slots = 8}, "rows.page_slots"},
        {{.row_count = 1, .context_slots = 0}, "rows.context_slots"},
        {{.row_count = 1, .context_slots = KVG_PAGES_MAX + 1}, "rows.context_slots"},
    };
    struct kvg_rows *rows;
    struct kvg_error error;
    size_t i;

    for (i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        struct kvg_rows_options options = CASES[i].options;

        if (options.struct_bytes == 0)
            options.struct_bytes = sizeof(options);
        CHECK_EQ(kvg_rows_new(kvg_alloc_default(), &options, &rows, &error), KVG_EINVAL);
        CHECK_STR(error.field, CASES[i].field);
        CHECK(rows == NULL);
    }
}

TEST(a_row_that_is_not_in_use_has_nothing_to_tell)
{
    struct kvg_span item;
    struct kvg_spans spans = {&item, 0, 1};
    struct kvg_span two[] = {{.offset = 0, .length = 1}, {.offset = 5, .length = 1}};
    struct kvg_span none = {.offset = 0, .length = 0};
    struct kvg_span far = {.offset = UINT64_C(0xfffffffe), .length = 2};
    struct fault_alloc fault;
    struct kvg_rows *rows = open_rows(&fault, 1, 1, 8);
    struct kvg_error error;
    size_t page_count;
    kvg_row row = {0, 0};

    CHECK(kvg_rows_table(rows, row, &page_count) == NULL);
    CHECK_EQ(page_count, 0);
    CHECK_EQ(kvg_rows_spans(rows, row, 0, 0, &spans, &error), KVG_ESTATE);
    CHECK_EQ(kvg_rows_append(rows, row, two, 2, &error), KVG_ESTATE);
    CHECK_EQ(kvg_rows_write(rows, row, 0, two, 2, &error), KVG_ESTATE);
    CHECK_EQ(kvg_rows_truncate(rows, row, 0, &error), KVG_ESTATE);
    CHECK_EQ(kvg_rows_acquire(rows, 1, &row, &error), KVG_OK);
    CHECK_EQ(kvg_rows_append(rows, row, &none, 1, &error), KVG_EINVAL);
    CHECK_STR(error.field, "span.length");
    CHECK_EQ(kvg_rows_append(rows, row, &far, 1, &error), KVG_EINVAL);
    CHECK_STR(error.field, "span.offset");
    CHECK_EQ(kvg_rows_append(rows, row, two, 2, &error), KVG_OK);
    CHECK_EQ(kvg_rows_spans(rows, row, 0, 2, &spans, &error), KVG_ELIMIT);
    CHECK_EQ(spans.count, 0);
    CHECK_EQ(kvg_rows_spans(rows, row, 2, 1, &spans, &error), KVG_EINVAL);
    CHECK_EQ(kvg_rows_write(rows, row, 3, two, 1, &error), KVG_EINVAL);
    CHECK_STR(error.field, "row.position");
    close_rows(&fault, rows);
}

TEST_MAIN(RUN(a_row_tells_the_slots_of_its_positions_as_runs),
    RUN(slots_that_cannot_lie_at_a_position_are_refused),
    RUN(a_handle_kept_after_release_is_refused),
    RUN(a_row_takes_the_trees_slots_over_its_own),
    RUN(row_options_out_of_range_name_their_field),
    RUN(a_row_that_is_not_in_use_has_nothing_to_tell))
