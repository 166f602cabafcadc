/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* snapshot.h -- what the threads that answer see of the sources.
 *
 * The loop owns the sources and changes them.  For the others it publishes a snapshot: which
 * sources there are, their layouts, and a view of each layout for each tenant.  A snapshot never
 * changes; a newer one takes its place.
 *
 *     loop: feeds ---publish---> current snapshot (counted) <---acquire--- HTTP threads
 *             ^                        |
 *             +------- reaped by the loop when nobody holds it any more
 *
 * What changes all the time (confidence, ages, counters) stands in struct kvd_board, one a source,
 * behind a lock that is only held to copy it, or in atomics.
 *
 * Threads: as said at each function.
 */
#ifndef KVD_SNAPSHOT_H
#define KVD_SNAPSHOT_H

#include "daemon/config.h"
#include "net/sub.h"

#include <kvgraft/dynamo.h>
#include <kvgraft/source.h>
#include <kvgraft/workers.h>

#include <pthread.h>
#include <stdatomic.h>

#define KVD_TENANTS_MAX 256u /* That were asked for, per source. */

/* A source's numbers, as the loop last saw them. */
struct kvd_board {
    struct kvg_source_stats source;
    struct kvg_presence_stats presence;
    struct kvn_sub_stats sub;
    struct kvg_dynamo_stats dynamo;
    uint64_t updated_ms;
    uint64_t last_message_us_lag; /* From arrival to application, of the last message. */
    uint64_t admin_requests;
    uint64_t admin_failures;
    uint64_t dumps;
    uint64_t dump_failures;
    uint64_t loaded_pages;
    char endpoint[KVD_URL_BYTES];
    char admin_failure[192]; /* The last one's reason; empty if none. */
};

/* What the loop and the answering threads share of one source.  Lives as long as its feed; a
 * feed is freed when no snapshot names it. */
struct kvd_shared {
    struct kvd_source_config config;    /* `workers_json` is not used. */
    struct kvg_presence *index;         /* NULL with the profile dynamo-1.5. */
    struct kvg_presence_reader **seats; /* One an answering thread. */
    size_t seat_count;
    pthread_mutex_t dynamo_lock; /* Of `dynamo` and its workers. */
    struct kvg_dynamo *dynamo;
    pthread_mutex_t board_lock;
    struct kvd_board board;
    atomic_uint_least64_t last_message_ms; /* 0: never. */
    atomic_uint_least64_t messages_applied;
    atomic_uint_least32_t
        tenant_reasons[KVD_TENANTS_MAX]; /* In the order of the views. */
    atomic_int confidence;               /* Of the default tenant. */
};

/* A set of workers that does not change any more. */
struct kvd_roster {
    struct kvg_workers *workers;
    struct kvg_workers_view view;
    uint64_t generation;
    unsigned owners; /* Loop only. */
};

struct kvd_tenant_views {
    char tenant[KVD_NAME_BYTES];
    struct kvg_presence_view
        *views[KVG_WORKERS_LAYOUTS_MAX]; /* By layout; NULL: refused. */
};

struct kvd_source_view {
    struct kvd_shared *shared;
    struct kvd_roster *roster;
    struct kvd_tenant_views *tenants; /* The configured one first. */
    size_t tenant_count;
};

struct kvd_snapshot {
    const struct kvg_alloc *alloc;
    unsigned users; /* Under the lock of the publisher. */
    struct kvd_snapshot *next_retired;
    struct kvd_source_view *sources;
    size_t source_count;
};

/* Where the current snapshot hangs. */
struct kvd_publisher {
    pthread_mutex_t lock;
    struct kvd_snapshot *current;
    struct kvd_snapshot *retired; /* Loop only: replaced, maybe still in use. */
};

void kvd_publisher_init(struct kvd_publisher *publisher);
/* Nobody may hold a snapshot any more; frees all. */
void kvd_publisher_fini(struct kvd_publisher *publisher);

/* Any thread.  NULL only before the first. */
struct kvd_snapshot *kvd_snapshot_acquire(struct kvd_publisher *publisher);
void kvd_snapshot_release(struct kvd_publisher *publisher, struct kvd_snapshot *snapshot);

/* The loop.  Takes the snapshot over. */
void kvd_publish(struct kvd_publisher *publisher, struct kvd_snapshot *snapshot);
/* The loop: frees what was replaced and is no longer held.  Returns what is still held. */
size_t kvd_reap(struct kvd_publisher *publisher);
/* The loop: whether a snapshot that is current or held names the source. */
bool kvd_publisher_names(
    struct kvd_publisher *publisher, const struct kvd_shared *shared);

/* The loop: room for `source_count` sources, to be filled in. */
struct kvd_snapshot *kvd_snapshot_new(const struct kvg_alloc *alloc, size_t source_count);
void kvd_snapshot_free(struct kvd_snapshot *snapshot);

/* Reads of a snapshot.  NULL name: the first.  NULL if there is none. */
const struct kvd_source_view *kvd_snapshot_source(
    const struct kvd_snapshot *snapshot, struct kvg_str name);
const struct kvd_tenant_views *kvd_source_tenant(
    const struct kvd_source_view *source, struct kvg_str tenant);

/* The loop makes these; owners are counted. */
KVG_MUST_CHECK kvg_err kvd_roster_new(
    const struct kvg_alloc *alloc, uint64_t generation, struct kvd_roster **out);
void kvd_roster_release(const struct kvg_alloc *alloc, struct kvd_roster *roster);

void kvd_board_read(struct kvd_shared *shared, struct kvd_board *out);

#endif
