/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* demo_store.h -- the pretend store of the demonstration: it keeps no pages, only the truth about
 * which there are, and says so like a Mooncake master does: events over ZeroMQ, listings and
 * counters over HTTP.
 *
 * Threads: put and held belong to one thread; the admin port answers on its own.
 */
#ifndef KVC_DEMO_STORE_H
#define KVC_DEMO_STORE_H

#include <kvgraft/layout.h>

struct kvc_store;

/* Binds the publisher and the admin port on loopback, each on a port that is free. */
KVG_MUST_CHECK kvg_err kvc_store_new(
    const struct kvg_layout *layout, struct kvg_error *error, struct kvc_store **out);
void kvc_store_free(struct kvc_store *store);

const char *kvc_store_endpoint(const struct kvc_store *store);
const char *kvc_store_admin_url(const struct kvc_store *store);
/* Whether somebody listens to the events. */
bool kvc_store_has_listener(struct kvc_store *store);

/* Leading pages that are stored already: the truth an answer is checked against. */
uint32_t kvc_store_held(
    const struct kvc_store *store, const struct kvg_key *keys, uint32_t key_count);

/* Stores pages, every part of each, and publishes those that are new. */
KVG_MUST_CHECK kvg_err kvc_store_put(
    struct kvc_store *store, const struct kvg_key *keys, uint32_t key_count);

struct kvc_store_counts {
    uint64_t pages;
    uint64_t objects;
    uint64_t messages; /* Also the sequence of the last one. */
    uint64_t events;
};
struct kvc_store_counts kvc_store_counts(const struct kvc_store *store);

#endif
