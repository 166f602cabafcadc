/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* history.c -- rings of numbers, lists of slow questions. */
#include "daemon/history.h"

#include "base/alloc.h"
#include "base/assert.h"

#include <string.h>

/* Series ----------------------------------------------------------------------------------- */

kvg_err kvd_series_init(struct kvd_series *series, const struct kvg_alloc *alloc,
    size_t column_count, uint64_t next)
{
    *series = (struct kvd_series){
        .alloc = alloc, .first = next, .next = next, .column_count = column_count};
    series->rows =
        kvi_alloc_array(alloc, KVD_SERIES_ROWS * column_count, sizeof(*series->rows));
    return series->rows != NULL ? KVG_OK : KVG_ENOMEM;
}

void kvd_series_fini(struct kvd_series *series)
{
    if (series->rows != NULL)
        kvi_release_array(series->alloc, series->rows,
            KVD_SERIES_ROWS * series->column_count, sizeof(*series->rows));
    *series = (struct kvd_series){.alloc = series->alloc};
}

void kvd_series_push(struct kvd_series *series, const uint64_t *values)
{
    size_t at = (size_t)(series->next % KVD_SERIES_ROWS) * series->column_count;

    memcpy(&series->rows[at], values, series->column_count * sizeof(*values));
    series->next++;
    if (series->next - series->first > KVD_SERIES_ROWS)
        series->first = series->next - KVD_SERIES_ROWS;
}

const uint64_t *kvd_series_row(const struct kvd_series *series, uint64_t number)
{
    KVI_ASSERT(number >= series->first && number < series->next);
    return &series->rows[(size_t)(number % KVD_SERIES_ROWS) * series->column_count];
}

uint64_t kvd_series_from(const struct kvd_series *series, uint64_t since)
{
    if (since < series->first)
        return series->first;
    return since < series->next ? since : series->next;
}

/* Slow questions --------------------------------------------------------------------------- */

void kvd_slow_init(struct kvd_slow *slow)
{
    memset(slow, 0, sizeof(*slow));
    pthread_mutex_init(&slow->lock, NULL);
}

void kvd_slow_fini(struct kvd_slow *slow)
{
    pthread_mutex_destroy(&slow->lock);
}

static uint64_t took(const struct kvd_slow_entry *entry)
{
    return entry->hash_us + entry->lookup_us;
}

static size_t quickest(const struct kvd_slow_minute *list)
{
    size_t least = 0;

    for (size_t i = 1; i < list->count; i++) {
        if (took(&list->entries[i]) < took(&list->entries[least]))
            least = i;
    }
    return least;
}

void kvd_slow_put(struct kvd_slow *slow, const struct kvd_slow_entry *entry)
{
    uint64_t minute = entry->at_ms / 60000;
    struct kvd_slow_minute *list = &slow->minutes[minute % KVD_SLOW_MINUTES];
    size_t at;

    if (pthread_mutex_trylock(&slow->lock) != 0)
        return; /* Somebody looks at it. */
    if (list->minute != minute)
        *list = (struct kvd_slow_minute){.minute = minute};
    at = list->count < KVD_SLOW_KEPT ? list->count : quickest(list);
    if (at == list->count || took(entry) > took(&list->entries[at]))
        list->entries[at] = *entry;
    list->count += at == list->count;
    slow->minute = minute;
    slow->floor_us =
        list->count < KVD_SLOW_KEPT ? 0 : took(&list->entries[quickest(list)]);
    pthread_mutex_unlock(&slow->lock);
}

/* Puts an entry where it belongs; what falls off the end is gone. */
static size_t insert(struct kvd_slow_entry *out, size_t count, size_t max,
    const struct kvd_slow_entry *entry)
{
    size_t at = count;

    while (at > 0 && took(&out[at - 1]) < took(entry))
        at--;
    if (at == max)
        return count;
    count += count < max;
    memmove(&out[at + 1], &out[at], (count - at - 1) * sizeof(*out));
    out[at] = *entry;
    return count;
}

size_t kvd_slow_collect(struct kvd_slow *slow, uint64_t now_ms,
    struct kvd_slow_entry *out, size_t count, size_t max)
{
    uint64_t now = now_ms / 60000;

    pthread_mutex_lock(&slow->lock);
    for (size_t m = 0; m < KVD_SLOW_MINUTES; m++) {
        const struct kvd_slow_minute *list = &slow->minutes[m];

        if (list->minute + KVD_SLOW_MINUTES <= now)
            continue;
        for (size_t i = 0; i < list->count; i++)
            count = insert(out, count, max, &list->entries[i]);
    }
    pthread_mutex_unlock(&slow->lock);
    return count;
}
