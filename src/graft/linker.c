/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* linker.c -- making, ending and checking a linker.  The work is in lookup.c, restore.c,
 * offload.c and complete.c; the picture and the invariants in linker.h. */
#include "graft/linker.h"

#include "tree/tree.h"

static kvg_err check_tree(struct kvg_cache *cache, struct kvg_error *error)
{
    char message[sizeof(error->message)];
    struct kvi_text text;
    bool bad = false;

    kvi_text_init(&text, message, sizeof(message));
    kvi_text_str(&text,
        "External cache linker supports only Full and SWA tree components; "
        "unsupported:");
    for (uint32_t slot = 0; slot < cache->tree->part_count; slot++) {
        uint32_t type = cache->tree->components[slot]->type;
        if (type == KVG_COMPONENT_FULL || type == KVG_COMPONENT_SWA)
            continue;
        kvi_text_str(&text, bad ? ", " : " ");
        kvi_text_str(&text, kvg_component_name(type));
        bad = true;
    }
    if (bad)
        return kvi_fail(error, KVG_EUNSUPPORTED, "tree.components", message);
    if (cache->tree->settings.host_tier)
        return kvi_fail(error, KVG_EUNSUPPORTED, "tree.host_tier",
            "a linker takes the place of the host tier");
    if (cache->linker != NULL)
        return kvi_fail(error, KVG_EEXIST, "cache.linker", "one is attached already");
    return KVG_OK;
}

static kvg_err check_options(const struct kvg_cache *cache,
    const struct kvg_linker_options *options, struct kvg_error *error)
{
    if (options->retention_interval % cache->page_size != 0)
        return kvi_fail(error, KVG_EINVAL, "linker.retention_interval",
            "SWA retention interval must be nonnegative and page aligned");
    if (options->prompt_pages_max == 0 ||
        options->prompt_pages_max > KVG_LINKER_PAGES_MAX)
        return kvi_fail_range(error, "linker.prompt_pages_max", options->prompt_pages_max,
            1, KVG_LINKER_PAGES_MAX);
    return KVG_OK;
}

static void release(struct kvg_linker *linker)
{
    struct kvg_alloc alloc = linker->alloc;
    struct kvg_spans *lists[] = {&linker->full, &linker->swa, &linker->value,
        &linker->canonical, &linker->cut[0], &linker->cut[1]};

    kvi_markers_drop_all(linker);
    kvi_rids_fini(&alloc, &linker->marker_of);
    kvi_release_array(
        &alloc, linker->markers, linker->marker_capacity, sizeof(*linker->markers));
    for (size_t i = 0; i < linker->offload_count; i++)
        kvi_release_array(&alloc, linker->offloads[i].nodes,
            linker->offloads[i].node_capacity, sizeof(kvg_node_id));
    kvi_release_array(
        &alloc, linker->offloads, linker->offload_capacity, sizeof(*linker->offloads));
    kvi_release_array(
        &alloc, linker->loads, linker->load_capacity, sizeof(*linker->loads));
    kvi_release_array(
        &alloc, linker->failed, linker->failed_capacity, sizeof(*linker->failed));
    kvi_release_array(
        &alloc, linker->mask, 2 * ((size_t)linker->pages_max + 1), sizeof(int32_t));
    kvi_release_array(&alloc, linker->lengths, linker->pages_max, sizeof(uint32_t));
    kvi_release_array(&alloc, linker->keys, linker->key_capacity, sizeof(*linker->keys));
    kvi_release_array(
        &alloc, linker->results, KVG_TICK_RESULTS_MAX, sizeof(*linker->results));
    kvi_release_array(
        &alloc, linker->votes, 2 * KVG_TICK_RESULTS_MAX, sizeof(*linker->votes));
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++)
        kvi_spans_fini(&alloc, lists[i]);
    KVI_FREE(&alloc, linker);
}

static bool allocate(struct kvg_linker *linker)
{
    const struct kvg_alloc *alloc = &linker->alloc;

    linker->mask = kvi_alloc_array(
        alloc, 2 * ((size_t)linker->pages_max + 1), sizeof(*linker->mask));
    linker->lengths = kvi_alloc_array(alloc, linker->pages_max, sizeof(*linker->lengths));
    linker->results =
        kvi_alloc_array(alloc, KVG_TICK_RESULTS_MAX, sizeof(*linker->results));
    linker->votes =
        kvi_alloc_array(alloc, 2 * KVG_TICK_RESULTS_MAX, sizeof(*linker->votes));
    return linker->mask != NULL && linker->lengths != NULL && linker->results != NULL &&
           linker->votes != NULL;
}

kvg_err kvg_linker_new(const struct kvg_alloc *alloc, struct kvg_cache *cache,
    const struct kvg_linker_options *options, struct kvg_linker **out,
    struct kvg_error *error)
{
    uint64_t filled;
    kvg_err err = check_tree(cache, error);

    *out = NULL;
    if (err == KVG_OK)
        err = check_options(cache, options, error);
    if (err != KVG_OK)
        return err;
    struct kvg_linker *linker = KVI_NEW(alloc, struct kvg_linker);
    if (linker == NULL)
        return kvi_fail(error, KVG_ENOMEM, "linker", "no memory for a linker");
    linker->alloc = *alloc;
    linker->cache = cache;
    linker->tree = cache->tree;
    linker->agreement = options->agreement;
    linker->page_size = cache->page_size;
    linker->rule = cache->tree->page_rule;
    linker->pages_max = options->prompt_pages_max;
    linker->skip_swa = !cache->has_swa || kvi_memory_is_ring(&cache->memory);
    linker->window_pages =
        (cache->tree->options.window + cache->page_size - 1) / cache->page_size;
    linker->sparse = options->sparse_retention;
    linker->interval = options->retention_interval;
    if (options->transport != NULL) {
        linker->transport = *options->transport;
        linker->has_transport = true;
    }
    if (!allocate(linker) ||
        (linker->has_transport &&
            kvg_tree_backfill_page_keys(cache->tree, &filled) != KVG_OK)) {
        release(linker);
        return kvi_fail(error, KVG_ENOMEM, "linker", "no memory for a linker");
    }
    struct kvg_tree_settings *settings = kvg_tree_settings(cache->tree);
    settings->external_store = linker->has_transport;
    if (linker->has_transport) {
        settings->write_through_hits =
            options->write_through_hits == 0 ? 1 : options->write_through_hits;
        settings->sparse_retention = linker->sparse;
        settings->retention_interval = linker->interval;
    }
    cache->linker = linker;
    *out = linker;
    return KVG_OK;
}

void kvg_linker_free(struct kvg_linker *linker)
{
    if (linker == NULL)
        return;
    linker->tree->settings.external_store = false;
    linker->cache->linker = NULL;
    release(linker);
}

kvg_err kvi_linker_keys_reserve(struct kvg_linker *linker, size_t count)
{
    size_t wanted = linker->key_capacity < 64 ? 64 : linker->key_capacity;
    void *keys = linker->keys;

    if (count <= linker->key_capacity)
        return KVG_OK;
    while (wanted < count)
        wanted *= 2;
    if (!kvi_resize_array(
            &linker->alloc, &keys, linker->key_capacity, wanted, sizeof(*linker->keys)))
        return KVG_ENOMEM;
    linker->keys = keys;
    linker->key_capacity = wanted;
    return KVG_OK;
}

/* ---- Reset, close -------------------------------------------------------------------------- */

/* The transport is quiet: nothing will come for what is under way. */
static void release_work(struct kvg_linker *linker)
{
    size_t loads = linker->load_count;
    size_t offloads = linker->offload_count;

    linker->load_count = 0;
    for (size_t i = 0; i < loads; i++)
        kvi_load_abandon(linker, &linker->loads[i]);
    for (size_t i = 0; i < offloads; i++)
        kvi_offload_end(linker, &linker->offloads[i], false);
    linker->offload_count = 0;
}

void kvg_linker_reset(struct kvg_linker *linker)
{
    if (linker->has_transport)
        linker->transport.reset(linker->transport.context);
    kvi_markers_drop_all(linker);
    release_work(linker);
}

void kvg_linker_close(struct kvg_linker *linker)
{
    if (linker->closed)
        return;
    linker->closed = true;
    if (linker->has_transport)
        linker->transport.close(linker->transport.context);
    release_work(linker);
    linker->has_transport = false;
}

/* ---- Looking ------------------------------------------------------------------------------- */

void kvg_linker_stats(const struct kvg_linker *linker, struct kvg_linker_stats *out)
{
    *out = linker->stats;
    out->struct_bytes = sizeof(*out);
    out->markers = linker->marker_of.count;
    out->pending_loads = linker->load_count;
    out->pending_offloads = linker->offload_count;
    out->failed_loads = linker->failed_count;
}

bool kvg_linker_offload_get(
    const struct kvg_linker *linker, size_t index, struct kvg_linker_offload *out)
{
    if (index >= linker->offload_count)
        return false;
    const struct kvi_offload *offload = &linker->offloads[index];
    *out = (struct kvg_linker_offload){
        sizeof(*out), offload->lock_node, offload->nodes, offload->node_count};
    return true;
}

static kvg_err broken(struct kvg_error *error, const char *number, const char *what)
{
    return kvi_fail(error, KVG_ESTATE, number, what);
}

static kvg_err check_loads(const struct kvg_linker *linker, struct kvg_error *error)
{
    for (size_t i = 0; i < linker->load_count; i++) {
        const struct kvi_load *load = &linker->loads[i];
        if (load->ack == KVG_NODE_NONE) {
            if (linker->agreement.min == NULL)
                return broken(error, "L5", "a load is empty");
            continue;
        }
        const struct kvi_node *node = kvi_node_find(linker->tree, load->ack);
        if (node == NULL || node->full.lock[KVG_TIER_DEVICE] == 0)
            return broken(error, "L1", "a load's node is gone or not locked");
        for (size_t j = 0; j < i; j++) {
            if (linker->loads[j].id == load->id || linker->loads[j].ack == load->ack)
                return broken(error, "L2", "two loads share a request or a node");
        }
    }
    return KVG_OK;
}

static kvg_err check_offload(const struct kvg_linker *linker,
    const struct kvi_offload *offload, struct kvg_error *error)
{
    const struct kvi_node *node = kvi_node_find(linker->tree, offload->lock_node);

    if (offload->lock_node == KVG_NODE_NONE)
        return linker->agreement.min != NULL ? KVG_OK
                                             : broken(error, "L5", "a record is empty");
    if (node == NULL || node->full.lock[KVG_TIER_DEVICE] == 0)
        return broken(error, "L3", "an offload's node is gone or not locked");
    for (uint32_t i = 0; i < offload->node_count; i++) {
        node = kvi_node_find(linker->tree, offload->nodes[i]);
        if (node == NULL || node->pending_write != offload->lock_node)
            return broken(error, "L3", "a node to publish is not pending");
    }
    /* No fragment is missing. */
    uint32_t pending = 0;
    for (node = kvi_node_find(linker->tree, offload->lock_node); node != NULL;
         node = kvi_parent(linker->tree, node))
        pending += node->pending_write == offload->lock_node;
    if (!offload->incomplete && pending != offload->node_count)
        return broken(error, "L3", "a fragment of a pending node will not be published");
    return KVG_OK;
}

kvg_err kvg_linker_check(const struct kvg_linker *linker, struct kvg_error *error)
{
    kvg_err err = check_loads(linker, error);

    for (size_t i = 0; i < linker->offload_count && err == KVG_OK; i++)
        err = check_offload(linker, &linker->offloads[i], error);
    for (uint32_t i = 0; i < linker->marker_capacity && err == KVG_OK; i++) {
        const struct kvi_marker *marker = &linker->markers[i];
        if (marker->used && (marker->tail_pages == 0 ||
                                kvg_tree_key_units(&marker->key) !=
                                    marker->device_length +
                                        (uint64_t)marker->tail_pages * linker->page_size))
            err = broken(error, "L4", "a marker's key and its pages do not agree");
    }
    return err;
}
