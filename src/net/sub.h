/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* sub.h -- a ZeroMQ subscriber: one thread a publisher, one bounded queue to the loop.
 *
 * The thread takes messages off the socket as fast as they come and copies them into a queue
 * limited in bytes.  At the limit new messages are dropped and counted: the loss shows in the
 * stream as a gap, which the source repairs.  So a publisher that floods costs a known amount of
 * memory, and one that stalls costs nothing.
 *
 * Connecting and losing the connection come through the same queue, in order with the messages.
 * "Connected" means that the other side has finished the ZeroMQ handshake as a publisher does; a
 * port that speaks something else never gets there.
 *
 * Threads: functions on the loop's thread.  `on_ready` comes there too.
 */
#ifndef KVN_SUB_H
#define KVN_SUB_H

#include "net/loop.h"

#define KVN_FRAMES_MAX 8u /* Kept of a message; it is bad with more than three anyway. */

struct kvn_sub;
struct kvn_zmq; /* A ZeroMQ context with its I/O thread; one a process. */

KVG_MUST_CHECK kvg_err kvn_zmq_new(const struct kvg_alloc *alloc, struct kvn_zmq **out);
/* All subscribers must be gone.  NULL is allowed. */
void kvn_zmq_free(struct kvn_zmq *zmq);
/* Its ZeroMQ context. */
void *kvn_zmq_context(struct kvn_zmq *zmq);

struct kvn_sub_options {
    const char *endpoint; /* Empty: wait for kvn_sub_connect(). */
    uint64_t queue_bytes_max;
    uint64_t message_bytes_max; /* The peer that sends a larger frame is cut off. */
    int receive_hwm;            /* ZeroMQ's queue in front of the thread, in messages. */
    void (*on_ready)(void *context); /* There is something to take. */
    void *context;
};

KVG_MUST_CHECK kvg_err kvn_sub_new(const struct kvg_alloc *alloc, struct kvn_zmq *zmq,
    struct kvn_loop *loop, const struct kvn_sub_options *options, struct kvn_sub **out);
/* Joins the thread.  NULL is allowed. */
void kvn_sub_free(struct kvn_sub *sub);

/* Closes and opens the socket, to another endpoint if `endpoint` is not NULL.  What was received
 * before is still handed out. */
void kvn_sub_connect(struct kvn_sub *sub, const char *endpoint);

enum kvn_sub_item_kind {
    KVN_SUB_MESSAGE,
    KVN_SUB_CONNECTED,
    KVN_SUB_DISCONNECTED,
    KVN_SUB_REFUSED /* ZeroMQ does not take the endpoint; it is tried again. */
};

struct kvn_sub_item {
    enum kvn_sub_item_kind kind;
    uint64_t received_us;
    uint32_t frame_count; /* As received; the first KVN_FRAMES_MAX are kept. */
    struct kvg_str frames[KVN_FRAMES_MAX];
};

/* The next item; it lives until the next take.  False when there is none; then on_ready comes
 * again when there is. */
bool kvn_sub_take(struct kvn_sub *sub, const struct kvn_sub_item **out);
/* Says that the taker stops before the queue is empty: on_ready comes in the next turn. */
void kvn_sub_again(struct kvn_sub *sub);

struct kvn_sub_stats {
    uint64_t messages;
    uint64_t bytes;
    uint64_t dropped_messages;
    uint64_t dropped_bytes;
    uint64_t queue_bytes;
    uint64_t queue_bytes_peak;
    uint64_t connects;
    uint64_t disconnects;
    uint64_t handshakes_failed; /* The port speaks something else. */
    uint64_t connects_retried;
    uint64_t bad_endpoints; /* ZeroMQ does not take the endpoint at all. */
};
void kvn_sub_stats(const struct kvn_sub *sub, struct kvn_sub_stats *out);

#endif
