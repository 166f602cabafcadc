/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* feed.h -- one source with everything it needs to run: subscriber, admin requests, workers,
 * dumps.  It carries out what the source's state machine asks for.
 *
 * Threads: the loop's, except what stands in struct kvd_shared.
 */
#ifndef KVD_FEED_H
#define KVD_FEED_H

#include "daemon/log.h"
#include "daemon/snapshot.h"
#include "net/resolve.h"
#include "net/sub.h"

struct kvd_feed;

/* What all feeds of a daemon share. */
struct kvd_feed_context {
    const struct kvg_alloc *alloc;
    struct kvn_loop *loop;
    struct kvn_zmq *zmq;
    struct kvn_resolver *resolver;
    struct kvd_log *log;
    const char *dump_path; /* Empty: none. */
    bool loads_dump;       /* A new feed begins with what its dump holds. */
    size_t seat_count;     /* Threads that answer. */
    uint64_t (*random_u64)(void);
    void (*on_changed)(void *context); /* The feed's views differ: publish again. */
    void *context;
};

/* Makes the index, loads its dump, reads its workers.  Nothing is connected yet. */
KVG_MUST_CHECK kvg_err kvd_feed_new(const struct kvd_feed_context *context,
    const struct kvd_source_config *config, struct kvg_error *error,
    struct kvd_feed **out);
/* No snapshot may name it any more.  NULL is allowed. */
void kvd_feed_free(struct kvd_feed *feed);

KVG_MUST_CHECK kvg_err kvd_feed_start(struct kvd_feed *feed, struct kvg_error *error);
/* Closes the stream and gives requests up.  The index stays. */
void kvd_feed_stop(struct kvd_feed *feed);

struct kvd_shared *kvd_feed_shared(struct kvd_feed *feed);

/* Replaces the workers; on failure they are as before. */
KVG_MUST_CHECK kvg_err kvd_feed_set_workers(
    struct kvd_feed *feed, struct kvg_str text, struct kvg_error *error);
/* Reads the workers' file again if it changed, or if `force`. */
KVG_MUST_CHECK kvg_err kvd_feed_reload_workers(
    struct kvd_feed *feed, bool force, struct kvg_error *error);
/* Makes room for views of a tenant.  KVG_ELIMIT at KVD_TENANTS_MAX. */
KVG_MUST_CHECK kvg_err kvd_feed_add_tenant(
    struct kvd_feed *feed, struct kvg_str tenant, struct kvg_error *error);
/* A full listing now. */
KVG_MUST_CHECK kvg_err kvd_feed_request_listing(
    struct kvd_feed *feed, struct kvg_error *error);

/* Fills a snapshot's entry. */
KVG_MUST_CHECK kvg_err kvd_feed_view(
    struct kvd_feed *feed, struct kvd_source_view *out, struct kvg_error *error);

/* Writes the index to its file.  Harmless without a dump path. */
KVG_MUST_CHECK kvg_err kvd_feed_dump(struct kvd_feed *feed, struct kvg_error *error);

/* Once a second or so: the clock of recency, the board, the workers' file. */
void kvd_feed_tick(struct kvd_feed *feed);

#endif
