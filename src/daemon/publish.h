/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* publish.h -- a store's changes, published as docs/events.md has it: messages with an epoch and a
 * heartbeat, replays of kept ones, and an admin port whose listings say after which message they
 * are the store.  The store is only read.
 *
 * Threads: one thread opens, turns and frees; the admin port answers on its own.
 */
#ifndef KVD_PUBLISH_H
#define KVD_PUBLISH_H

#include <kvgraft/store.h>

struct kvd_publish;

struct kvd_publish_options {
    const char *url;  /* Of the store. */
    const char *bind; /* ZeroMQ endpoints. */
    const char *replay;
    const char *admin; /* HOST:PORT. */
};

/* Opens and lists the store, binds, and publishes the first message. */
KVG_MUST_CHECK kvg_err kvd_publish_new(const struct kvd_publish_options *options,
    struct kvg_error *error, struct kvd_publish **out);
/* NULL is allowed. */
void kvd_publish_free(struct kvd_publish *publish);

/* Waits for a request at most so long, then publishes what has happened and answers requests.  Call
 * it again within a second. */
KVG_MUST_CHECK kvg_err kvd_publish_turn(
    struct kvd_publish *publish, long wait_ms, struct kvg_error *error);

/* A line for people. */
void kvd_publish_describe(const struct kvd_publish *publish, char *out, size_t out_bytes);

#endif
