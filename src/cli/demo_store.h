/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* demo_store.h -- what a store, or an engine's device, holds in the demonstration, told like a
 * Mooncake master does: events over ZeroMQ, listings and counters over HTTP.
 *
 * Changes come from a store's hook (kvc_store_hook()) or one by one (kvc_store_gain() and its
 * sisters).  They are noted at once and become true, and known, with kvc_store_publish().
 *
 * Threads: the hook may be called from any; the rest belongs to one; the admin port answers on
 * its own.
 */
#ifndef KVC_DEMO_STORE_H
#define KVC_DEMO_STORE_H

#include <kvgraft/layout.h>
#include <kvgraft/store.h>

struct kvc_store;

/* Binds the publisher and the admin port on loopback, each on a port that is free. */
KVG_MUST_CHECK kvg_err kvc_store_new(
    const struct kvg_layout *layout, struct kvg_error *error, struct kvc_store **out);
void kvc_store_free(struct kvc_store *store);

const char *kvc_store_endpoint(const struct kvc_store *store);
const char *kvc_store_admin_url(const struct kvc_store *store);
/* Whether somebody listens to the events. */
bool kvc_store_has_listener(struct kvc_store *store);

/* Leading pages that are held, as published: the truth an answer is checked against. */
uint32_t kvc_store_held(
    const struct kvc_store *store, const struct kvg_key *keys, uint32_t key_count);

/* Notes every change of a real store. */
struct kvg_store_hook kvc_store_hook(struct kvc_store *store);

/* Notes that a page came with all its parts; that one went, by the first 8 bytes of its key as a
 * big-endian number; that all went. */
void kvc_store_gain(struct kvc_store *store, const struct kvg_key *key);
void kvc_store_lose_hash(struct kvc_store *store, int64_t hash);
void kvc_store_lose_all(struct kvc_store *store);

/* Publishes what was noted.  KVG_ENOMEM if a change could not even be noted. */
KVG_MUST_CHECK kvg_err kvc_store_publish(struct kvc_store *store);

/* The publisher dies and another begins at the same address, from message 1. */
KVG_MUST_CHECK kvg_err kvc_store_restart(
    struct kvc_store *store, struct kvg_error *error);

/* Says once more that a part is there, if there is any: a sign of life. */
KVG_MUST_CHECK kvg_err kvc_store_say_again(struct kvc_store *store);

struct kvc_store_counts {
    uint64_t pages;
    uint64_t objects;
    uint64_t messages;
    uint64_t events;
    uint64_t sequence;      /* Of the last message of this publisher, */
    uint64_t last_event_id; /* and of its last event. */
};
struct kvc_store_counts kvc_store_counts(const struct kvc_store *store);

#endif
