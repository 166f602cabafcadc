/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* workers_view.c -- what the set of workers amounts to, and whether it is in order (workers.c). */
#include "source/workers.h"

#include "base/fmt.h"

#include <string.h>

size_t kvi_workers_lower_bound(const struct kvg_workers *workers, uint64_t id)
{
    size_t low = 0;
    size_t high = workers->worker_count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (workers->workers[middle]->id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct kvi_worker *kvi_workers_find(const struct kvg_workers *workers, uint64_t id)
{
    size_t i = kvi_workers_lower_bound(workers, id);

    return i < workers->worker_count && workers->workers[i]->id == id
               ? workers->workers[i]
               : NULL;
}

void kvg_workers_view(const struct kvg_workers *workers, struct kvg_workers_view *out)
{
    *out = (struct kvg_workers_view){
        .generation = workers->generation,
        .worker_count = workers->worker_count,
        .usable_count = workers->usable_count,
        .layout_count = workers->layouts.count,
        .endpoints_differ = workers->endpoints.count > 1,
    };
    if (workers->override_bytes != 0)
        out->endpoint = (struct kvg_str){workers->override_text, workers->override_bytes};
    else if (workers->endpoints.count == 1)
        out->endpoint = kvi_shared_text(workers->endpoints.rows[0]);
}

const struct kvg_layout *kvg_workers_layout(
    const struct kvg_workers *workers, size_t index)
{
    return index < workers->layouts.count ? workers->layouts.rows[index]->layout : NULL;
}

static int layout_index(
    const struct kvg_workers *workers, const struct kvi_worker *worker)
{
    return worker == NULL || worker->layout == NULL
               ? -1
               : (int)kvi_rows_index(&workers->layouts, worker->layout);
}

int kvg_workers_layout_of(const struct kvg_workers *workers, uint64_t worker_id)
{
    return layout_index(workers, kvi_workers_find(workers, worker_id));
}

bool kvg_workers_next(
    const struct kvg_workers *workers, uint64_t from, struct kvg_worker_report *out)
{
    size_t i = kvi_workers_lower_bound(workers, from);
    const struct kvi_worker *worker;

    memset(out, 0, sizeof(*out));
    if (i >= workers->worker_count)
        return false;
    worker = workers->workers[i];
    out->worker_id = worker->id;
    out->layout_index = layout_index(workers, worker);
    out->layout_differs = out->layout_index > 0;
    out->endpoint_differs =
        worker->endpoint != NULL && worker->endpoint != workers->endpoints.rows[0];
    out->backend = (struct kvg_str){worker->backend, worker->backend_bytes};
    out->endpoint = kvi_shared_text(worker->endpoint);
    if (worker->error != NULL)
        out->error = *worker->error;
    return true;
}
/* Checking --------------------------------------------------------------------------------- */

/* W3 for one row: its users are the workers that point to it. */
static bool users_are_right(
    const struct kvg_workers *workers, const struct kvi_shared *row)
{
    uint32_t users = 0;
    size_t i;

    for (i = 0; i < workers->worker_count; i++)
        if (workers->workers[i]->layout == row || workers->workers[i]->endpoint == row)
            users++;
    return users == row->users && users != 0;
}

static int check_table(const struct kvg_workers *workers, const struct kvi_rows *table)
{
    size_t i;
    size_t j;

    if (table->count > KVI_LISTED_MAX)
        return 4;
    for (i = 0; i < table->count; i++) {
        if (!users_are_right(workers, table->rows[i]))
            return 3;
        for (j = 0; j < i; j++)
            if (table == &workers->layouts
                    ? kvg_layout_equal(table->rows[i]->layout, table->rows[j]->layout)
                    : kvi_str_equal(kvi_shared_text(table->rows[i]),
                          kvi_shared_text(table->rows[j])))
                return 4;
        if (i > 0 && !kvi_shared_goes_before(table->rows[i - 1], table->rows[i]))
            return 5;
    }
    return 0;
}

int kvi_workers_check(const struct kvg_workers *workers)
{
    size_t unlisted = 0;
    size_t usable = 0;
    size_t i;
    int broken;

    if (workers->worker_count > KVG_WORKERS_MAX)
        return 1;
    for (i = 0; i < workers->worker_count; i++) {
        const struct kvi_worker *worker = workers->workers[i];

        if (i > 0 && workers->workers[i - 1]->id >= worker->id)
            return 1;
        if ((worker->layout == NULL) == (worker->error == NULL))
            return 2;
        usable += worker->layout != NULL;
        if (worker->endpoint != NULL && !worker->endpoint_listed) {
            unlisted++;
            if (worker->endpoint->users != 1)
                return 6;
        }
    }
    if (usable != workers->usable_count)
        return 2;
    if (unlisted != workers->unlisted_count ||
        (unlisted != 0 && workers->endpoints.count < KVI_LISTED_MAX))
        return 6;
    broken = check_table(workers, &workers->layouts);
    return broken != 0 ? broken : check_table(workers, &workers->endpoints);
}
