/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* history.h -- what is remembered of the last minutes: rows of numbers, and the slowest questions.
 *
 * A *series* is a ring of the last KVD_SERIES_ROWS rows, numbered on from where it began.
 *
 * A *slow list* belongs to one answering thread: the KVD_SLOW_KEPT slowest of each of the last
 * KVD_SLOW_MINUTES minutes.  Its thread never waits: while somebody copies the list, what it would
 * have written is lost.
 *
 * Threads: a series belongs to whoever holds the lock of its owner; the slow list as said there.
 */
#ifndef KVD_HISTORY_H
#define KVD_HISTORY_H

#include "daemon/config.h"

#include <pthread.h>

#define KVD_SERIES_ROWS 600u
#define KVD_SERIES_COLUMNS_MAX 16u

struct kvd_series {
    const struct kvg_alloc *alloc;
    uint64_t first; /* Number of the oldest row that is kept. */
    uint64_t next;  /* Of the row to come. */
    size_t column_count;
    uint64_t *rows; /* KVD_SERIES_ROWS of them; row n at n % KVD_SERIES_ROWS. */
};

/* An empty series whose first row will have the number `next`. */
KVG_MUST_CHECK kvg_err kvd_series_init(struct kvd_series *series,
    const struct kvg_alloc *alloc, size_t column_count, uint64_t next);
/* Harmless on one that is all zero. */
void kvd_series_fini(struct kvd_series *series);
void kvd_series_push(struct kvd_series *series, const uint64_t *values);
/* The values of a row that is kept. */
const uint64_t *kvd_series_row(const struct kvd_series *series, uint64_t number);
/* The number of the first row that is kept and not before `since`; `next` if there is none. */
uint64_t kvd_series_from(const struct kvd_series *series, uint64_t since);

#define KVD_SLOW_MINUTES 5u
#define KVD_SLOW_KEPT 8u

struct kvd_slow_entry {
    uint64_t at_ms; /* When it was answered; clock of the loop. */
    uint64_t hash_us;
    uint64_t lookup_us;
    uint64_t tokens; /* 0 if asked by keys. */
    uint64_t pages;
    uint64_t contiguous;
    enum kvg_confidence confidence;
    char source[KVD_NAME_BYTES];
    char tenant[KVD_NAME_BYTES];
};

struct kvd_slow_minute {
    uint64_t minute; /* Since the clock began. */
    size_t count;
    struct kvd_slow_entry entries[KVD_SLOW_KEPT]; /* In no order. */
};

struct kvd_slow {
    uint64_t minute;      /* The thread's own: of the newest list ... */
    uint64_t floor_us;    /* ... and what a question must take to come into it. */
    pthread_mutex_t lock; /* Of what follows. */
    struct kvd_slow_minute minutes[KVD_SLOW_MINUTES];
};

void kvd_slow_init(struct kvd_slow *slow);
void kvd_slow_fini(struct kvd_slow *slow);
/* Its thread: whether a question that took so long would come into the list. */
static inline bool kvd_slow_wants(
    const struct kvd_slow *slow, uint64_t at_ms, uint64_t took_us)
{
    return took_us > slow->floor_us || at_ms / 60000 != slow->minute;
}
/* Its thread. */
void kvd_slow_put(struct kvd_slow *slow, const struct kvd_slow_entry *entry);
/* Any thread: adds what is not older than KVD_SLOW_MINUTES minutes to `out`, which keeps the `max`
 * slowest, slowest first.  Returns the new count. */
size_t kvd_slow_collect(struct kvd_slow *slow, uint64_t now_ms,
    struct kvd_slow_entry *out, size_t count, size_t max);

#endif
