/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* sim_network.c -- see sim_network.h. */
#include "sim_network.h"

enum fate {
    FATE_ARRIVES,
    FATE_LOST,
    FATE_UNHEARD,
    FATE_TWICE
};

#define PATIENCE 40 /* Steps until a sender gives up. */

static uint64_t below(struct sim_network *network, uint64_t bound)
{
    return kvi_rng_below(network->rng, bound);
}

void sim_network_init(
    struct sim_network *network, struct kvi_rng *rng, struct mem_store *store)
{
    *network = (struct sim_network){.rng = rng, .store = store};
    mem_store_init(&network->gone);
}

void sim_network_fini(struct sim_network *network)
{
    mem_store_fini(&network->gone);
}

bool sim_network_knew(const struct sim_network *network, const struct kvg_key *key)
{
    return mem_store_has(network->store, KVG_COMPONENT_FULL, key) ||
           mem_store_has(&network->gone, KVG_COMPONENT_FULL, key);
}

static void lose(struct sim_network *network, size_t index)
{
    uint32_t component = network->store->pages[index].component;
    struct kvg_key key = network->store->pages[index].key;

    mem_store_add(&network->gone, component, &key);
    mem_store_remove(network->store, component, &key);
    network->losses++;
}

/* ---- Fates --------------------------------------------------------------------------------- */

static void see(struct sim_network *network, struct mem_job *job)
{
    static const enum fate FATES[16] = {
        [13] = FATE_LOST, [14] = FATE_UNHEARD, [15] = FATE_TWICE};
    uint64_t delay = below(network, 4) == 0 ? below(network, 80) : below(network, 6);

    if (job->due != 0)
        return;
    job->fate = (int)FATES[below(network, 16)];
    job->due = network->now + (job->fate == FATE_LOST ? PATIENCE : 1 + delay);
}

static void end_load(
    struct sim_network *network, struct mem_transport *transport, size_t index)
{
    struct mem_job *job = &transport->loads[index];
    enum fate fate = (enum fate)job->fate;

    network->arrived += fate == FATE_ARRIVES;
    network->lost += fate == FATE_LOST;
    network->unheard += fate == FATE_UNHEARD;
    mem_complete_load(transport, index, fate == FATE_ARRIVES || fate == FATE_TWICE);
    if (fate != FATE_TWICE)
        return;
    network->repeated++;
    transport->done_loads[transport->done_load_count] =
        transport->done_loads[transport->done_load_count - 1];
    transport->done_load_count++;
}

static void end_offloads(struct sim_network *network, struct mem_transport *transport)
{
    for (size_t i = 0; i < transport->offload_count; i++) {
        struct mem_job *job = &transport->offloads[i];
        if (!job->applied && job->due <= network->now && job->fate != FATE_LOST)
            mem_apply_offload(transport, i);
    }
    while (transport->offload_count != 0 && transport->offloads[0].due <= network->now) {
        enum fate fate = (enum fate)transport->offloads[0].fate;
        network->arrived += fate == FATE_ARRIVES || fate == FATE_TWICE;
        network->lost += fate == FATE_LOST;
        network->unheard += fate == FATE_UNHEARD;
        mem_complete_offload(transport, fate == FATE_ARRIVES || fate == FATE_TWICE);
    }
}

/* ---- The store ----------------------------------------------------------------------------- */

static void forget(struct sim_network *network, struct mem_job *job)
{
    if (job->applied)
        return; /* Its answer is on the way already. */
    job->fate = FATE_LOST;
    job->due = network->now + 1 + below(network, PATIENCE);
}

static void crash_store(
    struct sim_network *network, struct mem_transport **transports, size_t count)
{
    network->store_crashes++;
    network->down_until = network->now + 1 + below(network, 60);
    for (size_t i = 0; i < count; i++) {
        for (size_t j = 0; j < transports[i]->load_count; j++) {
            if (transports[i]->loads[j].started)
                forget(network, &transports[i]->loads[j]);
        }
        for (size_t j = 0; j < transports[i]->offload_count; j++)
            forget(network, &transports[i]->offloads[j]);
    }
    if (below(network, 2) == 0) { /* It was all in memory. */
        while (network->store->count != 0)
            lose(network, network->store->count - 1);
    }
}

void sim_network_step(
    struct sim_network *network, struct mem_transport **transports, size_t count)
{
    network->now++;
    if (below(network, 500) == 0 && network->down_until <= network->now)
        crash_store(network, transports, count);
    if (network->store->count != 0 && below(network, 100) == 0)
        lose(network, (size_t)below(network, network->store->count));
    for (size_t i = 0; i < count; i++) {
        struct mem_transport *transport = transports[i];
        transport->down = network->now < network->down_until;
        for (size_t j = transport->load_count; j > 0; j--) {
            if (!transport->loads[j - 1].started)
                continue;
            see(network, &transport->loads[j - 1]);
            if (transport->loads[j - 1].due <= network->now)
                end_load(network, transport, j - 1);
        }
        for (size_t j = 0; j < transport->offload_count; j++)
            see(network, &transport->offloads[j]);
        end_offloads(network, transport);
    }
}

void sim_network_abandon(struct sim_network *network, struct mem_transport *transport)
{
    for (size_t i = 0; i < transport->offload_count; i++) {
        if (!transport->offloads[i].applied && below(network, 2) == 0 && !transport->down)
            mem_apply_offload(transport, i);
    }
}

void sim_network_calm(struct sim_network *network, struct mem_transport *transport)
{
    network->down_until = 0;
    transport->down = false;
    transport->refuse_loads = transport->refuse_offloads = 0;
    mem_complete_loads(transport, true);
    mem_complete_offloads(transport, true);
}
