/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* replay.h -- one request for messages that a publisher keeps, over a DEALER socket.
 *
 * A request has a socket of its own, so an answer can only be its.  Nothing blocks: the socket's
 * descriptor is watched, and at most REPLAY_BATCH messages are handed on in a turn.  There is no
 * time-out here; who waits gives up.
 *
 * Threads: the loop's.
 */
#ifndef KVN_REPLAY_H
#define KVN_REPLAY_H

#include "net/sub.h"

struct kvn_replay;

struct kvn_replay_options {
    const char *endpoint;
    uint64_t first; /* Sequence. */
    uint64_t message_bytes_max;
    void (*on_message)(void *context, uint64_t sequence, struct kvg_str payload);
    /* Once, last; the request is gone when it returns.  `reason` is NULL on success. */
    void (*on_done)(void *context, const char *reason);
    void *context;
};

/* Starts it.  No callback comes before this returns.  KVG_EINVAL: no such endpoint. */
KVG_MUST_CHECK kvg_err kvn_replay_start(const struct kvg_alloc *alloc,
    struct kvn_zmq *zmq, struct kvn_loop *loop, const struct kvn_replay_options *options,
    struct kvn_replay **out);
/* Ends it without a callback.  NULL is allowed; not from on_message. */
void kvn_replay_cancel(struct kvn_replay *replay);

#endif
