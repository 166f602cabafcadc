/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* room.c -- evicts until there is room.
 *
 * Components are asked in the tree's order, FULL first.  One step takes at most one node or one
 * node's window; its frees are done before the next step, because what is free then decides whether
 * there is one.  An earlier component's cascade counts for the later ones.
 */
#include "graft/cache.h"

#include "tree/tree.h"

struct goal {
    uint64_t wanted[KVG_COMPONENT_MAX];  /* Units to evict. */
    uint64_t evicted[KVG_COMPONENT_MAX]; /* So far. */
    uint64_t full_free, swa_free; /* Stop when so much is free; UINT64_MAX: not so. */
};

static uint64_t swa_available(const struct kvg_cache *cache)
{
    const struct kvg_slots *swa = kvi_memory_swa(&cache->memory);

    return swa == NULL ? UINT64_MAX : kvg_slots_available(swa);
}

static bool is_reached(
    const struct kvg_cache *cache, const struct goal *goal, uint32_t component)
{
    if (component == KVG_COMPONENT_FULL && goal->full_free != UINT64_MAX)
        return kvg_slots_available(kvi_memory_full(&cache->memory)) >= goal->full_free;
    if (component == KVG_COMPONENT_SWA && goal->swa_free != UINT64_MAX)
        return swa_available(cache) >= goal->swa_free;
    return goal->evicted[component] >= goal->wanted[component];
}

static void count(
    struct kvg_cache *cache, struct goal *goal, const struct kvg_tree_evicted *step)
{
    for (uint32_t i = 0; i < KVG_COMPONENT_MAX; i++)
        goal->evicted[i] += step->evicted[i];
    cache->stats.evicted_full += step->evicted[KVG_COMPONENT_FULL];
    cache->stats.evicted_swa += step->evicted[KVG_COMPONENT_SWA];
}

/* One step; *more_out says whether the walk may go on. */
static kvg_err step(struct kvg_cache *cache, struct goal *goal, uint32_t component,
    bool *more_out, struct kvg_error *error)
{
    struct kvg_tree_evicted evicted = {.struct_bytes = sizeof(evicted)};
    kvg_err err = kvg_tree_evict_next(cache->tree, component, goal->evicted[component],
        &cache->evict_actions, &evicted, error);
    kvg_node_id node = evicted.node;

    *more_out = false;
    if (err != KVG_OK)
        return err;
    count(cache, goal, &evicted);
    *more_out = evicted.progress;
    err = kvi_cache_do(cache, &cache->evict_actions, error);
    if (err != KVG_OK || node == KVG_NODE_NONE)
        return err;
    err = kvg_tree_evict_leaf(
        cache->tree, node, false, &cache->evict_actions, &evicted, error);
    if (err != KVG_OK)
        return err;
    count(cache, goal, &evicted);
    *more_out = true;
    return kvi_cache_do(cache, &cache->evict_actions, error);
}

static kvg_err walk(struct kvg_cache *cache, struct goal *goal, uint32_t component,
    struct kvg_error *error)
{
    bool more = true;
    kvg_err err =
        kvg_tree_evict_start(cache->tree, component, goal->wanted[component], error);

    if (err != KVG_OK)
        return err;
    while (err == KVG_OK && more && !is_reached(cache, goal, component))
        err = step(cache, goal, component, &more, error);
    kvg_err ended = kvg_tree_evict_end(cache->tree, component, NULL);
    return err != KVG_OK ? err : ended;
}

static kvg_err evict(struct kvg_cache *cache, struct goal *goal, struct kvg_error *error)
{
    if (cache->tree->settings.host_tier)
        return kvi_fail(
            error, KVG_EUNSUPPORTED, "tree.host_tier", "a cache has no host pool");
    for (uint32_t slot = 0; slot < cache->tree->part_count; slot++) {
        uint32_t component = cache->tree->components[slot]->type;
        if (is_reached(cache, goal, component))
            continue;
        kvg_err err = walk(cache, goal, component, error);
        if (err != KVG_OK)
            return err;
    }
    return KVG_OK;
}

kvg_err kvg_cache_evict(struct kvg_cache *cache, const uint64_t wanted[KVG_COMPONENT_MAX],
    uint64_t evicted[KVG_COMPONENT_MAX], struct kvg_error *error)
{
    struct goal goal = {.full_free = UINT64_MAX, .swa_free = UINT64_MAX};

    memcpy(goal.wanted, wanted, sizeof(goal.wanted));
    kvg_err err = evict(cache, &goal, error);
    if (evicted != NULL)
        memcpy(evicted, goal.evicted, sizeof(goal.evicted));
    return err;
}

kvg_err kvg_cache_make_room(struct kvg_cache *cache, uint64_t full_slots,
    uint64_t window_slots, struct kvg_error *error)
{
    const struct kvg_slots *full = kvi_memory_full(&cache->memory);
    struct goal goal = {.full_free = full_slots,
        .swa_free = kvi_memory_swa(&cache->memory) == NULL ? 0 : window_slots};
    uint64_t full_now = kvg_slots_available(full);
    uint64_t swa_now = swa_available(cache);

    if (full_now >= goal.full_free && swa_now >= goal.swa_free)
        return KVG_OK;
    goal.wanted[KVG_COMPONENT_FULL] =
        full_now < goal.full_free ? goal.full_free - full_now : 0;
    goal.wanted[KVG_COMPONENT_SWA] =
        swa_now < goal.swa_free ? goal.swa_free - swa_now : 0;
    kvg_err err = evict(cache, &goal, error);
    if (err != KVG_OK)
        return err;
    if (!is_reached(cache, &goal, KVG_COMPONENT_FULL))
        return kvi_fail(error, KVG_ENOSPACE, "full.free",
            "fewer slots are free or evictable than are wanted");
    if (!is_reached(cache, &goal, KVG_COMPONENT_SWA))
        return kvi_fail(error, KVG_ENOSPACE, "window.free",
            "fewer slots are free or evictable than are wanted");
    return KVG_OK;
}
