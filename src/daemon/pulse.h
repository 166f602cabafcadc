/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* pulse.h -- what the daemon remembers so that a page can show it live: a row of numbers a second,
 * the slowest questions, the prefixes asked for most.
 *
 *     answering thread --- its own counters, slow list, ring of chains      (never waits)
 *                                |
 *     loop, every tick: takes the chains; every second: a row      (under `lock`, if it is free)
 *                                |
 *     GET /v1/live, /v1/hot      read under `lock`
 *
 * Bounded: about 400 KiB, 55 KiB a source and 30 KiB an answering thread, whatever happens.
 *
 * Which prefixes are hot is found by sampling: one question of 2^shift is looked at, with a shift
 * so that about a hundred a second come to the tree; each stands for 2^shift of its kind.
 *
 * Threads: `lock` is for the loop, which tries it and else leaves the work for its next tick, and
 * for whoever reads.  A question about a prompt never takes it.
 */
#ifndef KVD_PULSE_H
#define KVD_PULSE_H

#include "daemon/history.h"
#include "daemon/hot.h"

struct kvd_daemon;
struct kvd_request;
struct kvd_answer;
struct kvd_board;

/* X(enum, name): the columns of the daemon's own series; each is of the row's second. */
#define KVD_PULSE_COLUMNS(X)                    \
    X(KVD_PULSE_SPAN, "span_ms")                \
    X(KVD_PULSE_LOOKUPS, "lookups")             \
    X(KVD_PULSE_TOKENS, "tokens")               \
    X(KVD_PULSE_PAGES, "pages")                 \
    X(KVD_PULSE_CONTIGUOUS, "contiguous_pages") \
    X(KVD_PULSE_BEYOND, "beyond_pages")         \
    X(KVD_PULSE_LOOKUP_US, "lookup_us")

/* Of a source's series: the first two are of the row's second, lag is the worst seen in it, the
 * rest is as it was at its end. */
#define KVD_TRACK_COLUMNS(X)              \
    X(KVD_TRACK_EVENTS, "events")         \
    X(KVD_TRACK_MESSAGES, "messages")     \
    X(KVD_TRACK_LAG_US, "lag_us")         \
    X(KVD_TRACK_QUEUE, "queue_bytes")     \
    X(KVD_TRACK_PAGES, "pages")           \
    X(KVD_TRACK_CPU_PAGES, "cpu_pages")   \
    X(KVD_TRACK_DISK_PAGES, "disk_pages") \
    X(KVD_TRACK_CPU_PARTS, "cpu_parts")   \
    X(KVD_TRACK_DISK_PARTS, "disk_parts") \
    X(KVD_TRACK_CONFIDENCE, "confidence")

#define KVD_PULSE_ENUM(id, name) id,
enum kvd_pulse_column {
    KVD_PULSE_COLUMNS(KVD_PULSE_ENUM) KVD_PULSE_COLUMN_COUNT
};
enum kvd_track_column {
    KVD_TRACK_COLUMNS(KVD_PULSE_ENUM) KVD_TRACK_COLUMN_COUNT
};
#undef KVD_PULSE_ENUM
extern const char *const KVD_PULSE_NAMES[KVD_PULSE_COLUMN_COUNT];
extern const char *const KVD_TRACK_NAMES[KVD_TRACK_COLUMN_COUNT];

#define KVD_PULSE_INTERVAL_MS 1000u
#define KVD_PULSE_HALF_LIFE_S 120u /* Of a prefix's counts. */

/* What belongs to one answering thread. */
struct kvd_watch {
    struct kvd_slow slow;
    struct kvd_hot_ring ring;
    uint64_t random; /* xorshift; never 0. */
};

/* A source's history. */
struct kvd_track {
    char source[KVD_NAME_BYTES]; /* Empty: not used. */
    bool seen;                   /* By the row being made. */
    uint64_t lag_us;             /* The worst since the last row ... */
    uint64_t lag_messages; /* ... and the messages that had come when it was read. */
    uint64_t events;       /* Totals at the last row. */
    uint64_t messages;
    struct kvd_series series;
};

struct kvd_pulse {
    const struct kvg_alloc *alloc;
    size_t watch_count;
    struct kvd_watch *watches; /* In the order of the answerers. */
    atomic_uint shift;
    uint64_t started_ms;  /* Clock of the loop. */
    uint64_t next_row_ms; /* Loop. */
    uint64_t next_fade_ms;
    uint64_t last_row_ms;
    uint64_t totals[KVD_PULSE_COLUMN_COUNT];
    pthread_mutex_t lock; /* Of what follows. */
    struct kvd_series series;
    struct kvd_track tracks[KVD_SOURCES_MAX];
    struct kvd_hot *hot;
};

KVG_MUST_CHECK kvg_err kvd_pulse_new(const struct kvg_alloc *alloc, size_t watch_count,
    uint64_t seed, uint64_t now_ms, struct kvd_pulse **out);
void kvd_pulse_free(struct kvd_pulse *pulse);
/* The loop, every tick. */
void kvd_pulse_tick(struct kvd_daemon *daemon, uint64_t now_ms);
/* The answering thread, after each question about a prompt. */
void kvd_pulse_answer(struct kvd_request *request, const struct kvd_answer *answer);
/* Chains that did not fit into a ring. */
uint64_t kvd_pulse_dropped(const struct kvd_pulse *pulse);

/* For tests: one row, from totals and boards as given. */
struct kvd_pulse_source {
    const char *name;
    const struct kvd_board *board;
    int confidence;
};
void kvd_pulse_row(struct kvd_pulse *pulse, uint64_t now_ms,
    const uint64_t totals[KVD_PULSE_COLUMN_COUNT], const struct kvd_pulse_source *sources,
    size_t source_count);

#endif
