/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* feed_internal.h -- what the files of a feed share.
 *
 *     feed.c           life, workers, views
 *     feed_stream.c    messages into the state machine, its wishes out of it
 *     feed_ask.c       admin requests
 *     feed_dynamo.c    the same for the profile dynamo-1.5
 *     feed_dump.c      files
 */
#ifndef KVD_FEED_INTERNAL_H
#define KVD_FEED_INTERNAL_H

#include "daemon/admin.h"
#include "daemon/feed.h"
#include "net/http_get.h"
#include "net/replay.h"

#include <sys/stat.h>

/* One request to the admin port. */
struct kvd_ask {
    struct kvd_feed *feed;
    struct kvd_ask *next;
    uint64_t action_id;
    enum kvg_source_action_kind kind;
    struct kvn_http_get *get;
    struct kvn_replay *replay;    /* Of KVG_SOURCE_FETCH_REPLAY, instead. */
    bool has_epoch, has_sequence; /* What a listing's headers said. */
    uint64_t epoch, sequence;
    struct kvd_admin_count count;
    struct kvd_out body; /* Of the small answers. */
};

struct kvd_feed {
    struct kvd_feed_context context;
    struct kvd_shared shared;
    struct kvd_log_bound log;
    struct kvg_source *source; /* NULL with the profile dynamo-1.5. */
    struct kvn_sub *sub;
    struct kvn_timer pump; /* When the state machine wants to be called. */
    bool running;
    bool has_admin;
    struct kvn_url admin;
    struct kvd_ask *asks;
    struct kvd_roster *roster;
    uint64_t roster_generation;
    struct timespec workers_file_changed;
    off_t workers_file_bytes;
    bool workers_file_failed; /* And that was said. */
    char (*tenants)
        [KVD_NAME_BYTES]; /* KVD_TENANTS_MAX of them; the configured one first. */
    size_t tenant_count;
    char endpoint[KVD_URL_BYTES]; /* In use; empty: none. */
    uint64_t lag_us;
    uint64_t admin_requests;
    uint64_t admin_failures;
    uint64_t dumps;
    uint64_t dump_failures;
    uint64_t loaded_pages;
    char admin_failure[192];
};

/* feed_stream.c */
/* Subscribes to feed->endpoint. */
KVG_MUST_CHECK kvg_err kvd_feed_open_stream(
    struct kvd_feed *feed, struct kvg_error *error);
/* Has the state machine called in this turn or the next. */
void kvd_feed_pump_soon(struct kvd_feed *feed);
void kvd_feed_on_pump(void *context);
void kvd_feed_update_board(struct kvd_feed *feed);
/* What answers are worth and why, after every batch; the board too when that has changed. */
void kvd_feed_update_worth(struct kvd_feed *feed);

/* feed_ask.c */
void kvd_feed_ask(struct kvd_feed *feed, const struct kvg_source_action *action);
void kvd_feed_cancel_ask(struct kvd_feed *feed, uint64_t action_id);
void kvd_feed_cancel_all(struct kvd_feed *feed);

/* feed_dynamo.c */
KVG_MUST_CHECK kvg_err kvd_feed_dynamo_workers(struct kvd_feed *feed,
    const struct kvg_workers *fresh, struct kvg_str text, struct kvg_error *error);
void kvd_feed_dynamo_pump(struct kvd_feed *feed);
void kvd_feed_dynamo_item(struct kvd_feed *feed, const struct kvn_sub_item *item);

/* feed_dump.c */
void kvd_feed_load(struct kvd_feed *feed);

#endif
