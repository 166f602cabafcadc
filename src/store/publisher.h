/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* publisher.h -- changes of a store into the messages of a stream (docs/events.md).
 *
 * It knows which keys there are, numbers the messages, keeps the last ones for replays, and can
 * say at any moment what the store is after the last message.  Sending is its caller's.
 *
 *     change, change --> pending --flush--> message --> ring (bounded) --> replays
 *                           |
 *                           v
 *                       set of keys -------------------------------------> listings
 *
 * Threads: one at a time.
 */
#ifndef KVI_STORE_PUBLISHER_H
#define KVI_STORE_PUBLISHER_H

#include "source/strings.h"

#include <kvgraft/event.h>
#include <kvgraft/store.h>

#define KVI_PUBLISHER_RING_MESSAGES 65536u
#define KVI_PUBLISHER_RING_BYTES ((size_t)64 << 20)
#define KVI_PUBLISHER_EVENTS_MAX 1024u /* A message. */
#define KVI_PUBLISHER_EPOCH_MAX INT64_MAX

struct kvi_publisher_message {
    uint64_t sequence;
    char *payload;
    size_t bytes;
};

struct kvi_pending {
    struct kvi_pending *next;
    enum kvg_event_kind kind;
    enum kvg_medium medium;
    uint32_t key_bytes, group_bytes;
    char text[]; /* Key, then group id. */
};

struct kvi_publisher {
    const struct kvg_alloc *alloc;
    struct kvg_event_writer *writer;
    struct kvi_strings keys;
    uint64_t epoch;
    uint64_t sequence; /* Of the last message. */
    uint64_t event_id; /* Of the last event. */
    bool broken; /* Without memory: what was told is not whole.  A new epoch mends it. */
    uint64_t evicted; /* Messages that the ring no longer keeps. */
    struct kvi_pending *pending;
    struct kvi_pending **pending_end;
    size_t pending_count;
    struct kvi_publisher_message *ring; /* Of KVI_PUBLISHER_RING_MESSAGES. */
    size_t ring_first, ring_count, ring_bytes;
};

KVG_MUST_CHECK kvg_err kvi_publisher_init(
    struct kvi_publisher *publisher, const struct kvg_alloc *alloc, uint64_t seed);
void kvi_publisher_fini(struct kvi_publisher *publisher);

/* Begins a life: nothing is known, nothing kept, the next message is 1.  What the store holds
 * already is told with kvi_publisher_hold(), before the first flush. */
void kvi_publisher_begin(struct kvi_publisher *publisher, uint64_t epoch);
void kvi_publisher_hold(struct kvi_publisher *publisher, struct kvg_str key);

/* An object came or went.  A repeated word changes nothing and is not published. */
void kvi_publisher_stored(struct kvi_publisher *publisher, struct kvg_str key,
    struct kvg_str group_id, enum kvg_medium medium);
void kvi_publisher_removed(struct kvi_publisher *publisher, struct kvg_str key,
    struct kvg_str group_id, enum kvg_medium medium);

/* Makes the next message, of at most KVI_PUBLISHER_EVENTS_MAX pending changes; without any, of the
 * heartbeat alone.  It lies in the ring until the next flush at least.  KVG_ENOMEM: then
 * the publisher is broken. */
KVG_MUST_CHECK kvg_err kvi_publisher_flush(struct kvi_publisher *publisher,
    int64_t timestamp_ms, const struct kvi_publisher_message **out);

/* The kept message of that number, or the first one after it; NULL: there is none. */
const struct kvi_publisher_message *kvi_publisher_kept(
    const struct kvi_publisher *publisher, uint64_t sequence);
/* 0: none is kept. */
uint64_t kvi_publisher_first_kept(const struct kvi_publisher *publisher);

/* The number of the first broken invariant (publisher.c), or 0. */
int kvi_publisher_check(const struct kvi_publisher *publisher);

#endif
