/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* rows.c -- request rows (slots.h).
 *
 * A row is a flat table of page numbers, as attention kernels read it, so that
 * position to slot is one look-up and growing never allocates:
 *
 *     row 3   length 10, pages of 4      | 17 | 18 |  5 |    |    |
 *                                          |         +- positions 8, 9: slots 20, 21
 *                                          +----------- positions 0 to 3: slots 68..71
 *
 * A slot lies at the same place in its page as its position does in the row's, so
 * the page number says it all.
 *
 * A handle carries the generation of its row, which is odd while the row is in use.
 *
 * Invariants, checked by kvg_rows_check():
 *
 *     1  The rows in `unused` are distinct, not in use and of length 0.
 *     2  All others are in use.
 *     3  No length is above the context.
 *
 * Not here: who owns the slots of a row.  A row only says where they are.
 */
#include "slots/pages.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/fmt.h"

struct kvg_rows {
    const struct kvg_alloc *alloc;
    uint32_t row_count;
    uint32_t page_slots;
    uint64_t context_slots;
    uint64_t row_pages;
    uint32_t *pages; /* row_pages for each row. */
    uint64_t *lengths;
    uint32_t *generations;
    uint32_t *unused; /* A stack of rows that are not in use. */
    uint32_t unused_count;
    uint32_t unused_count_min;
    uint64_t refused_stale;
    uint64_t refused_spans;
    uint64_t refused_exhausted;
};

void kvg_rows_free(struct kvg_rows *rows)
{
    if (rows == NULL)
        return;
    kvi_release_array(
        rows->alloc, rows->pages, rows->row_count, rows->row_pages * sizeof(uint32_t));
    kvi_release_array(rows->alloc, rows->lengths, rows->row_count, sizeof(uint64_t));
    kvi_release_array(rows->alloc, rows->generations, rows->row_count, sizeof(uint32_t));
    kvi_release_array(rows->alloc, rows->unused, rows->row_count, sizeof(uint32_t));
    KVI_FREE(rows->alloc, rows);
}

static kvg_err check_options(
    const struct kvg_rows_options *options, uint32_t page_slots, struct kvg_error *error)
{
    uint64_t context_max = KVG_PAGES_MAX * page_slots;

    if (options->struct_bytes != sizeof(*options))
        return kvi_fail_range(error, "rows.struct_bytes", options->struct_bytes,
            sizeof(*options), sizeof(*options));
    if (options->row_count == 0 || options->row_count > KVG_ROWS_MAX)
        return kvi_fail_range(
            error, "rows.row_count", options->row_count, 1, KVG_ROWS_MAX);
    if (page_slots > KVG_PAGE_SLOTS_MAX)
        return kvi_fail_range(
            error, "rows.page_slots", page_slots, 1, KVG_PAGE_SLOTS_MAX);
    if (options->context_slots == 0 || options->context_slots > context_max)
        return kvi_fail_range(
            error, "rows.context_slots", options->context_slots, 1, context_max);
    return KVG_OK;
}

kvg_err kvg_rows_new(const struct kvg_alloc *alloc,
    const struct kvg_rows_options *options, struct kvg_rows **out,
    struct kvg_error *error)
{
    uint32_t page_slots = options->page_slots == 0 ? 1 : options->page_slots;
    struct kvg_rows *rows;
    uint32_t i;
    kvg_err err;

    *out = NULL;
    err = check_options(options, page_slots, error);
    if (err != KVG_OK)
        return err;
    rows = KVI_NEW(alloc, struct kvg_rows);
    if (rows == NULL)
        return kvi_fail(error, KVG_ENOMEM, "rows", "out of memory");
    rows->alloc = alloc;
    rows->row_count = options->row_count;
    rows->page_slots = page_slots;
    rows->context_slots = options->context_slots;
    rows->row_pages = (options->context_slots + page_slots - 1) / page_slots;
    rows->pages =
        kvi_alloc_array_raw(alloc, rows->row_count, rows->row_pages * sizeof(uint32_t));
    rows->lengths = kvi_alloc_array(alloc, rows->row_count, sizeof(uint64_t));
    rows->generations = kvi_alloc_array(alloc, rows->row_count, sizeof(uint32_t));
    rows->unused = kvi_alloc_array(alloc, rows->row_count, sizeof(uint32_t));
    if (rows->pages == NULL || rows->lengths == NULL || rows->generations == NULL ||
        rows->unused == NULL) {
        kvg_rows_free(rows);
        return kvi_fail(error, KVG_ENOMEM, "rows", "out of memory");
    }
    for (i = 0; i < rows->row_count; i++)
        rows->unused[i] = rows->row_count - 1 - i;
    rows->unused_count = rows->row_count;
    rows->unused_count_min = rows->row_count;
    *out = rows;
    return KVG_OK;
}

kvg_err kvg_rows_acquire(
    struct kvg_rows *rows, size_t row_count, kvg_row *out, struct kvg_error *error)
{
    size_t i;

    if (row_count > rows->unused_count) {
        rows->refused_exhausted++;
        kvi_fail_range(error, "rows.free", row_count, 0, rows->unused_count);
        if (error != NULL)
            error->code = KVG_ENOSPACE;
        return KVG_ENOSPACE;
    }
    for (i = 0; i < row_count; i++) {
        uint32_t index = rows->unused[--rows->unused_count];

        rows->generations[index]++;
        out[i] = (kvg_row){index, rows->generations[index]};
    }
    if (rows->unused_count < rows->unused_count_min)
        rows->unused_count_min = rows->unused_count;
    return KVG_OK;
}

static bool row_is_used(const struct kvg_rows *rows, kvg_row row)
{
    return row.index < rows->row_count && row.generation % 2 == 1 &&
           row.generation == rows->generations[row.index];
}

static kvg_err check_row(
    const struct kvg_rows *rows, kvg_row row, struct kvg_error *error)
{
    if (row_is_used(rows, row))
        return KVG_OK;
    if (row.index >= rows->row_count)
        return kvi_fail_range(error, "row.index", row.index, 0, rows->row_count - 1);
    return kvi_fail(error, KVG_ESTATE, "row.generation",
        "the row was released, and may be another request's");
}

/* As check_row, for a call that changes the row: a refusal is counted. */
static kvg_err claim_row(struct kvg_rows *rows, kvg_row row, struct kvg_error *error)
{
    kvg_err err = check_row(rows, row, error);

    rows->refused_stale += err != KVG_OK;
    return err;
}

kvg_err kvg_rows_release(struct kvg_rows *rows, kvg_row row, struct kvg_error *error)
{
    kvg_err err = claim_row(rows, row, error);

    if (err != KVG_OK)
        return err;
    rows->generations[row.index]++;
    rows->lengths[row.index] = 0;
    rows->unused[rows->unused_count++] = row.index;
    return KVG_OK;
}

uint32_t kvg_rows_available(const struct kvg_rows *rows)
{
    return rows->unused_count;
}

uint64_t kvg_rows_length(const struct kvg_rows *rows, kvg_row row)
{
    return row_is_used(rows, row) ? rows->lengths[row.index] : 0;
}

static uint32_t *row_table(const struct kvg_rows *rows, kvg_row row)
{
    return rows->pages + row.index * rows->row_pages;
}

/* ---- Writing ------------------------------------------------------------------ */

/* Whether one span can lie at `position`; *page is the page that the slots before it
 * are in, if they end inside one. */
static kvg_err check_span(const struct kvg_rows *rows, const struct kvg_span *span,
    uint64_t position, uint64_t *page, struct kvg_error *error)
{
    uint64_t slot_max = KVG_PAGES_MAX * rows->page_slots + rows->page_slots - 1;
    uint32_t inside = (uint32_t)(position % rows->page_slots);

    if (span->buffer != KVG_BUFFER_POOL)
        return kvi_fail_range(
            error, "span.buffer", span->buffer, KVG_BUFFER_POOL, KVG_BUFFER_POOL);
    if (span->length == 0)
        return kvi_fail_range(error, "span.length", 0, 1, UINT32_MAX);
    if (span->offset > slot_max || slot_max - span->offset < span->length - 1)
        return kvi_fail_range(
            error, "span.offset", span->offset, 0, slot_max - (span->length - 1));
    if (span->offset % rows->page_slots != inside ||
        (inside != 0 && span->offset / rows->page_slots != *page))
        return kvi_fail_slot(error, KVG_EINVAL, "span.page", span->offset,
            "does not lie in its page as its position does");
    *page = (span->offset + span->length - 1) / rows->page_slots;
    return KVG_OK;
}

/* Looks at all spans before the first is stored; *end is the position behind them. */
static kvg_err check_spans(const struct kvg_rows *rows, kvg_row row, uint64_t position,
    const struct kvg_span *spans, size_t span_count, uint64_t *end,
    struct kvg_error *error)
{
    uint64_t page = KVI_NONE;
    size_t i;

    if (position % rows->page_slots != 0)
        page = row_table(rows, row)[position / rows->page_slots];
    for (i = 0; i < span_count; i++) {
        kvg_err err = check_span(rows, &spans[i], position, &page, error);

        if (err != KVG_OK)
            return err;
        if (spans[i].length > rows->context_slots - position) {
            kvi_fail_range(
                error, "row.length", position + spans[i].length, 0, rows->context_slots);
            if (error != NULL)
                error->code = KVG_ELIMIT;
            return KVG_ELIMIT;
        }
        position += spans[i].length;
    }
    *end = position;
    return KVG_OK;
}

static void store_spans(struct kvg_rows *rows, kvg_row row, uint64_t position,
    const struct kvg_span *spans, size_t span_count)
{
    uint32_t *table = row_table(rows, row);
    size_t i;

    for (i = 0; i < span_count; i++) {
        uint64_t page = spans[i].offset / rows->page_slots;
        uint64_t last = (spans[i].offset + spans[i].length - 1) / rows->page_slots;
        uint64_t at = position / rows->page_slots;

        while (page <= last)
            table[at++] = (uint32_t)page++;
        position += spans[i].length;
    }
}

static kvg_err refuse_spans(struct kvg_rows *rows, kvg_err err)
{
    rows->refused_spans++;
    return err;
}

kvg_err kvg_rows_append(struct kvg_rows *rows, kvg_row row, const struct kvg_span *spans,
    size_t span_count, struct kvg_error *error)
{
    kvg_err err = claim_row(rows, row, error);
    uint64_t end = 0;

    if (err != KVG_OK)
        return err;
    err =
        check_spans(rows, row, rows->lengths[row.index], spans, span_count, &end, error);
    if (err != KVG_OK)
        return refuse_spans(rows, err);
    store_spans(rows, row, rows->lengths[row.index], spans, span_count);
    rows->lengths[row.index] = end;
    return KVG_OK;
}

kvg_err kvg_rows_write(struct kvg_rows *rows, kvg_row row, uint64_t position,
    const struct kvg_span *spans, size_t span_count, struct kvg_error *error)
{
    kvg_err err = claim_row(rows, row, error);
    uint64_t length;
    uint64_t end = 0;

    if (err != KVG_OK)
        return err;
    length = rows->lengths[row.index];
    if (position > length)
        return refuse_spans(
            rows, kvi_fail_range(error, "row.position", position, 0, length));
    if (position % rows->page_slots != 0)
        return kvi_fail(
            error, KVG_EINVAL, "row.position", "the position does not begin a page");
    err = check_spans(rows, row, position, spans, span_count, &end, error);
    if (err != KVG_OK)
        return refuse_spans(rows, err);
    if (end > length || (end % rows->page_slots != 0 && end != length))
        return refuse_spans(
            rows, kvi_fail(error, KVG_EINVAL, "row.length",
                      "what is written ends neither with a page nor with the row"));
    store_spans(rows, row, position, spans, span_count);
    return KVG_OK;
}

kvg_err kvg_rows_truncate(
    struct kvg_rows *rows, kvg_row row, uint64_t length, struct kvg_error *error)
{
    kvg_err err = claim_row(rows, row, error);

    if (err != KVG_OK)
        return err;
    if (length > rows->lengths[row.index])
        return kvi_fail_range(error, "row.length", length, 0, rows->lengths[row.index]);
    rows->lengths[row.index] = length;
    return KVG_OK;
}

/* ---- Reading ------------------------------------------------------------------ */

/* Appends [from, to) of a row as runs, each as long as the pages follow each other. */
static bool append_runs(const struct kvg_rows *rows, const uint32_t *table, uint64_t from,
    uint64_t to, struct kvg_spans *spans)
{
    uint32_t page_slots = rows->page_slots;
    size_t floor = spans->count;

    while (from < to) {
        uint64_t first = from / page_slots;
        uint64_t last = (to - 1) / page_slots;
        uint64_t slot = (uint64_t)table[first] * page_slots + from % page_slots;
        uint64_t next = first;
        uint64_t end;

        while (next < last && table[next + 1] == table[next] + UINT64_C(1))
            next++;
        end = next == last ? to : (next + 1) * page_slots;
        if (!kvi_spans_append(spans, floor, page_slots, slot, end - from)) {
            spans->count = floor;
            return false;
        }
        from = end;
    }
    return true;
}

kvg_err kvg_rows_spans(const struct kvg_rows *rows, kvg_row row, uint64_t from,
    uint64_t to, struct kvg_spans *spans, struct kvg_error *error)
{
    kvg_err err = check_row(rows, row, error);
    uint64_t reach;

    if (err != KVG_OK)
        return err;
    reach = rows->lengths[row.index] + rows->page_slots - 1;
    reach -= reach % rows->page_slots;
    if (to > reach)
        return kvi_fail_range(error, "row.to", to, 0, reach);
    if (from > to)
        return kvi_fail_range(error, "row.from", from, 0, to);
    if (!append_runs(rows, row_table(rows, row), from, to, spans))
        return kvi_fail(error, KVG_ELIMIT, "spans.max",
            "the slots lie in more runs than the list has room for");
    return KVG_OK;
}

const uint32_t *kvg_rows_table(
    const struct kvg_rows *rows, kvg_row row, size_t *page_count_out)
{
    *page_count_out = 0;
    if (!row_is_used(rows, row))
        return NULL;
    *page_count_out =
        (size_t)((rows->lengths[row.index] + rows->page_slots - 1) / rows->page_slots);
    return row_table(rows, row);
}

void kvg_rows_stats(const struct kvg_rows *rows, struct kvg_rows_stats *out)
{
    *out = (struct kvg_rows_stats){.row_count = rows->row_count,
        .unused_count = rows->unused_count,
        .unused_count_min = rows->unused_count_min,
        .refused_stale = rows->refused_stale,
        .refused_spans = rows->refused_spans,
        .refused_exhausted = rows->refused_exhausted};
}

kvg_err kvg_rows_check(const struct kvg_rows *rows, struct kvg_error *error)
{
    uint32_t used = 0;
    uint32_t i;

    for (i = 0; i < rows->unused_count; i++) {
        uint32_t index = rows->unused[i];

        if (index >= rows->row_count || rows->generations[index] % 2 != 0 ||
            rows->lengths[index] != 0)
            return kvi_fail(error, KVG_EMISMATCH, "rows.check",
                "1 a row among the unused ones is in use");
    }
    for (i = 0; i < rows->row_count; i++) {
        used += rows->generations[i] % 2;
        if (rows->lengths[i] > rows->context_slots)
            return kvi_fail(
                error, KVG_EMISMATCH, "rows.check", "3 a row is longer than the context");
    }
    /* Distinct: else some row that is not in use is missing from `unused`. */
    if (used + rows->unused_count != rows->row_count)
        return kvi_fail(error, KVG_EMISMATCH, "rows.check",
            "2 a row is neither in use nor among the unused ones");
    return KVG_OK;
}
