/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* workers_rows.c -- layouts and endpoints that workers share, counted and in order (workers.c). */
#include "source/workers.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/fmt.h"

struct kvi_shared *kvi_shared_new(
    const struct kvg_alloc *alloc, struct kvg_layout *layout, struct kvg_str text)
{
    struct kvi_shared *row = kvi_alloc_array_raw(alloc, sizeof(*row) + text.bytes, 1);

    if (row == NULL)
        return NULL;
    *row = (struct kvi_shared){.layout = layout, .text_bytes = text.bytes};
    if (text.bytes != 0)
        memcpy(row->text, text.data, text.bytes);
    return row;
}

void kvi_shared_free(const struct kvg_alloc *alloc, struct kvi_shared *row)
{
    if (row == NULL)
        return;
    kvg_layout_free(row->layout);
    kvi_release_array(alloc, row, sizeof(*row) + row->text_bytes, 1);
}

struct kvg_str kvi_shared_text(const struct kvi_shared *row)
{
    return row == NULL ? (struct kvg_str){NULL, 0}
                       : (struct kvg_str){row->text, row->text_bytes};
}

struct kvi_shared *kvi_rows_find_endpoint(
    const struct kvi_rows *table, struct kvg_str text)
{
    size_t i;

    for (i = 0; i < table->count; i++)
        if (kvi_str_equal(kvi_shared_text(table->rows[i]), text))
            return table->rows[i];
    return NULL;
}

struct kvi_shared *kvi_rows_find_layout(
    const struct kvi_rows *table, const struct kvg_layout *layout)
{
    size_t i;

    for (i = 0; i < table->count; i++)
        if (kvg_layout_equal(table->rows[i]->layout, layout))
            return table->rows[i];
    return NULL;
}

size_t kvi_rows_index(const struct kvi_rows *table, const struct kvi_shared *row)
{
    size_t i = 0;

    while (table->rows[i] != row)
        i++;
    return i;
}

bool kvi_shared_goes_before(const struct kvi_shared *a, const struct kvi_shared *b)
{
    return a->users != b->users ? a->users > b->users : a->order < b->order;
}

/* Moves the row at `i`, whose users changed, to where it belongs (W5). */
static void reorder(struct kvi_rows *table, size_t i)
{
    struct kvi_shared *row = table->rows[i];

    for (; i > 0 && kvi_shared_goes_before(row, table->rows[i - 1]); i--)
        table->rows[i] = table->rows[i - 1];
    for (; i + 1 < table->count && kvi_shared_goes_before(table->rows[i + 1], row); i++)
        table->rows[i] = table->rows[i + 1];
    table->rows[i] = row;
}

void kvi_rows_enter(
    struct kvg_workers *workers, struct kvi_rows *table, struct kvi_shared *row)
{
    if (row->users++ == 0) {
        KVI_ASSERT(table->count <= KVI_LISTED_MAX);
        row->order = workers->next_order++;
        table->rows[table->count++] = row;
    }
    reorder(table, kvi_rows_index(table, row));
}

/* The row's last user takes it out of the table and frees it. */
void kvi_rows_leave(
    struct kvg_workers *workers, struct kvi_rows *table, struct kvi_shared *row)
{
    size_t i = kvi_rows_index(table, row);

    row->users--;
    if (row->users != 0) {
        reorder(table, i);
        return;
    }
    table->count--;
    memmove(&table->rows[i], &table->rows[i + 1],
        (table->count - i) * sizeof(table->rows[0]));
    kvi_shared_free(workers->alloc, row);
}

/* There is room in the list again: takes in who waited for it (W6). */
void kvi_rows_list_unlisted(struct kvg_workers *workers)
{
    size_t i;

    for (i = 0; i < workers->worker_count && workers->unlisted_count != 0; i++) {
        struct kvi_worker *worker = workers->workers[i];
        struct kvi_shared *same;

        if (worker->endpoint == NULL || worker->endpoint_listed)
            continue;
        same = kvi_rows_find_endpoint(
            &workers->endpoints, kvi_shared_text(worker->endpoint));
        if (same == NULL && workers->endpoints.count >= KVI_LISTED_MAX)
            continue;
        if (same != NULL) {
            kvi_shared_free(workers->alloc, worker->endpoint);
            worker->endpoint = same;
        } else {
            worker->endpoint->users = 0;
        }
        worker->endpoint_listed = true;
        workers->unlisted_count--;
        kvi_rows_enter(workers, &workers->endpoints, worker->endpoint);
    }
}
