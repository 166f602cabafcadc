/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* cache.c -- does what the tree decides.
 *
 *     tree  -- actions -->  cache  -- frees, mappings -->  pools
 *                             |
 *                             +----- backups, splits -->  linker, if one is attached
 *
 * Actions are done in their order, with one exception: in a list that frees components apart
 * (evictions, withdrawals), window slots go before FULL slots, because the mapping that finds them
 * goes with the FULL page.
 *
 * An insert that fails half way is ended here: what the tree has decided is done, from its own
 * list, so that not even want of memory loses a slot; the caller hears how far it came.
 *
 * What an action cannot have for want of memory is given up in a way that stays consistent: a
 * window value becomes a tombstone, its slots are free again.
 */
#include "graft/cache.h"

#include "tree/tree.h"

kvg_err kvg_cache_new(const struct kvg_alloc *alloc, struct kvg_tree *tree,
    const struct kvg_memory *memory, struct kvg_cache **out, struct kvg_error *error)
{
    bool has_swa = tree->slot_of[KVG_COMPONENT_SWA] >= 0;
    uint32_t page_size = kvg_tree_page_size(tree);

    *out = NULL;
    if (has_swa != (memory->window != NULL) || has_swa == (memory->slots != NULL))
        return kvi_fail(error, KVG_EINVAL, "memory",
            "slots for a tree without SWA, a window pool for one with it");
    if (page_size % kvi_memory_page_slots(memory) != 0)
        return kvi_fail_range(
            error, "memory.page_slots", kvi_memory_page_slots(memory), 1, page_size);
    if ((tree->slot_of[KVG_COMPONENT_MAMBA] >= 0) != (memory->states != NULL))
        return kvi_fail(error, KVG_EINVAL, "memory.states", "goes with MAMBA");
    struct kvg_cache *cache = KVI_NEW(alloc, struct kvg_cache);
    if (cache == NULL)
        return kvi_fail(error, KVG_ENOMEM, "cache", "no memory for a cache");
    cache->alloc = *alloc;
    cache->tree = tree;
    cache->memory = *memory;
    cache->page_size = page_size;
    cache->has_swa = has_swa;
    kvg_actions_init(&cache->actions, &cache->alloc);
    kvg_actions_init(&cache->evict_actions, &cache->alloc);
    *out = cache;
    return KVG_OK;
}

void kvg_cache_free(struct kvg_cache *cache)
{
    struct kvg_alloc alloc;

    if (cache == NULL)
        return;
    KVI_ASSERT(cache->linker == NULL);
    alloc = cache->alloc;
    kvg_actions_fini(&cache->actions);
    kvg_actions_fini(&cache->evict_actions);
    kvi_spans_fini(&alloc, &cache->scratch);
    KVI_FREE(&alloc, cache);
}

void kvg_cache_stats(const struct kvg_cache *cache, struct kvg_cache_stats *out)
{
    *out = cache->stats;
    out->struct_bytes = sizeof(*out);
}

/* ---- Actions ------------------------------------------------------------------------------- */

/* Gives `node` the window slots that the FULL slots `full` map to. */
static kvg_err give_window(struct kvg_cache *cache, kvg_node_id node,
    const struct kvg_span *full, size_t count, struct kvg_error *error)
{
    uint64_t pages = kvg_spans_slots(full, count) / kvi_memory_page_slots(&cache->memory);
    kvg_err err =
        kvi_spans_reserve(&cache->alloc, &cache->scratch, (size_t)pages + count + 1);

    cache->scratch.count = 0;
    if (err == KVG_OK)
        err = kvg_window_translate(
            cache->memory.window, full, count, &cache->scratch, error);
    if (err == KVG_OK)
        err = kvg_tree_set_device_value(cache->tree, node, KVG_COMPONENT_SWA,
            cache->scratch.items, cache->scratch.count, error);
    if (err != KVG_ENOMEM)
        return err;
    cache->stats.windows_given_up++;
    return kvi_memory_free_swa(&cache->memory, full, count, error);
}

static kvg_err recover_window(struct kvg_cache *cache, const struct kvg_action *action,
    const struct kvg_span *kept, const struct kvg_span *incoming, struct kvg_error *error)
{
    kvg_err err = kvg_window_move(cache->memory.window, incoming, action->span2_count,
        kept, action->span_count, error);

    if (err == KVG_OK)
        err = kvi_memory_free_full(&cache->memory, incoming, action->span2_count, error);
    if (err == KVG_OK)
        err = give_window(cache, action->node, kept, action->span_count, error);
    return err;
}

static kvg_err free_component(struct kvg_cache *cache, const struct kvg_action *action,
    const struct kvg_span *spans, struct kvg_error *error)
{
    switch (action->component) {
    case KVG_COMPONENT_FULL:
        return kvi_memory_free_full(&cache->memory, spans, action->span_count, error);
    case KVG_COMPONENT_SWA:
        return kvi_memory_free_swa(&cache->memory, spans, action->span_count, error);
    case KVG_COMPONENT_MAMBA:
        return kvg_slots_release(cache->memory.states, spans, action->span_count, error);
    default:
        return kvi_fail(error, KVG_EUNSUPPORTED, "action.component", "is not ours");
    }
}

static kvg_err evict_excess(
    struct kvg_cache *cache, kvg_node_id tail, struct kvg_error *error)
{
    struct kvg_tree_evicted evicted = {.struct_bytes = sizeof(evicted)};
    kvg_err err = kvg_tree_evict_excess_path_states(
        cache->tree, tail, &cache->evict_actions, &evicted, error);

    if (err == KVG_ENOMEM)
        err = KVG_OK; /* The cap is exceeded until the next insert. */
    kvg_err done = kvi_cache_do(cache, &cache->evict_actions, error);
    return err != KVG_OK ? err : done;
}

static void offload(struct kvg_cache *cache, const struct kvg_actions *actions,
    const struct kvg_action *action)
{
    if (cache->linker == NULL)
        return;
    if (kvg_linker_offload(cache->linker, actions->nodes + action->node_first,
            action->node_count, action->replay_boundary, action->include_prompt_boundary,
            NULL) != KVG_OK)
        cache->stats.offloads_refused++;
}

static kvg_err do_one(struct kvg_cache *cache, const struct kvg_actions *actions,
    const struct kvg_action *action, struct kvg_error *error)
{
    const struct kvg_span *spans = actions->spans + action->span_first;
    const struct kvg_span *spans2 = actions->spans + action->span2_first;

    switch (action->kind) {
    case KVG_ACTION_REPLACE_ON_SPLIT:
        if (cache->linker != NULL)
            kvg_linker_replace_node(
                cache->linker, action->ack, action->node, action->new_node);
        return KVG_OK;
    case KVG_ACTION_FREE_DEVICE:
        return kvi_memory_free(&cache->memory, spans, action->span_count, error);
    case KVG_ACTION_FREE_DEVICE_FULL_ONLY:
        return kvi_memory_free_full(&cache->memory, spans, action->span_count, error);
    case KVG_ACTION_BACKUP:
        offload(cache, actions, action);
        return KVG_OK;
    case KVG_ACTION_FREE_COMPONENT_DEVICE:
        return free_component(cache, action, spans, error);
    case KVG_ACTION_EVICT_EXCESS_PATH_STATES:
        return evict_excess(cache, action->node, error);
    case KVG_ACTION_REBUILD_MAPPING:
        return kvg_window_map(cache->memory.window, spans, action->span_count, spans2,
            action->span2_count, error);
    case KVG_ACTION_RECOVER_SWA_WITH_LOCKED_FULL:
        return recover_window(cache, action, spans, spans2, error);
    case KVG_ACTION_SWA_REBUILD:
        return give_window(cache, action->node, spans, action->span_count, error);
    default:
        return kvi_fail(error, KVG_EUNSUPPORTED, "action.kind", "is not ours to do");
    }
}

static bool frees_window_alone(const struct kvg_action *action)
{
    return action->kind == KVG_ACTION_FREE_COMPONENT_DEVICE &&
           action->component == KVG_COMPONENT_SWA;
}

kvg_err kvi_cache_do(
    struct kvg_cache *cache, struct kvg_actions *actions, struct kvg_error *error)
{
    kvg_err first = KVG_OK;

    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t i = 0; i < actions->count; i++) {
            const struct kvg_action *action = &actions->items[i];
            if (frees_window_alone(action) != (pass == 0))
                continue;
            kvg_err err = do_one(cache, actions, action, first == KVG_OK ? error : NULL);
            if (err != KVG_OK)
                cache->stats.actions_failed++;
            if (first == KVG_OK)
                first = err;
        }
    }
    kvg_actions_clear(actions);
    return first;
}

kvg_err kvg_cache_do_actions(
    struct kvg_cache *cache, struct kvg_actions *actions, struct kvg_error *error)
{
    return kvi_cache_do(cache, actions, error);
}

/* ---- Match, insert ------------------------------------------------------------------------- */

kvg_err kvg_cache_match(struct kvg_cache *cache, const struct kvg_tree_key *key,
    struct kvg_tree_match *out, struct kvg_error *error)
{
    kvg_err err = kvg_tree_match_prefix(cache->tree, key, &cache->actions, out, error);
    kvg_err done = kvi_cache_do(cache, &cache->actions, error);

    return err != KVG_OK ? err : done;
}

kvg_err kvg_cache_insert(struct kvg_cache *cache, const struct kvg_tree_insert *insert,
    struct kvg_tree_inserted *out, uint64_t *taken_out, struct kvg_error *error)
{
    struct kvg_tree *tree = cache->tree;
    kvg_err err = kvg_tree_insert_begin(tree, insert, &cache->actions, out, error);

    if (taken_out != NULL)
        *taken_out = 0;
    if (err == KVG_EBUSY)
        return err;
    while (err == KVG_OK) {
        err = kvi_cache_do(cache, &cache->actions, error);
        if (out->done) {
            if (taken_out != NULL && !out->rotation_declined)
                *taken_out = UINT64_MAX;
            return err;
        }
        if (err == KVG_OK)
            err = kvg_tree_insert_resume(tree, &cache->actions, out, error);
    }
    if (taken_out != NULL)
        *taken_out = kvg_tree_insert_taken(tree);
    /* In the tree's own list, so that no memory is needed. */
    (void)kvi_cache_do(cache, &tree->insert.pending, NULL);
    if (kvg_tree_insert_end(tree, &cache->actions) != KVG_OK)
        KVI_ASSERT(false); /* Nothing is left to hand out. */
    *out = (struct kvg_tree_inserted){.struct_bytes = sizeof(*out)};
    return err;
}
