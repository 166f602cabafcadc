/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* sim_network.h -- what lies between engines and their store: delay, loss, repeats, crashes.
 *
 * Time is counted in steps.  A request of an engine meets its fate when it is first seen:
 *
 *     arrives      the store does it at its due time, the result comes with it
 *     lost         the store never hears of it; the sender gives up late, with a failure
 *     unheard      the store does it, the answer is lost: a failure for the sender
 *     twice        as the first, but the result comes twice (loads; results of offloads have
 *                  an order and come once)
 *
 * Due times are drawn for each, so what is sent first may be done last.  A load that fails leaves
 * rubbish in its slots.  The store may stop for a while; it comes back with its pages or empty, and
 * nobody hears of what was on the way.
 */
#ifndef KVT_SIM_NETWORK_H
#define KVT_SIM_NETWORK_H

#include "mem_transport.h"

#include "base/rng.h"

struct sim_network {
    struct kvi_rng *rng;
    struct mem_store *store;
    struct mem_store gone; /* Every page that was in the store and is not any more. */
    uint64_t now, down_until;
    uint64_t arrived, lost, unheard, repeated, losses, store_crashes;
};

void sim_network_init(
    struct sim_network *network, struct kvi_rng *rng, struct mem_store *store);
void sim_network_fini(struct sim_network *network);

/* One step of time: new requests are seen, due ones end, the store crashes or comes back, pages
 * get lost. */
void sim_network_step(
    struct sim_network *network, struct mem_transport **transports, size_t count);

/* The engine is about to vanish: some of its writes still arrive, and nobody hears of it. */
void sim_network_abandon(struct sim_network *network, struct mem_transport *transport);

/* Nothing goes wrong any more: the store is up, all requests end well. */
void sim_network_calm(struct sim_network *network, struct mem_transport *transport);

/* The page was in the store once, and may be still. */
bool sim_network_knew(const struct sim_network *network, const struct kvg_key *key);

#endif
