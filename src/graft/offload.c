/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* offload.c -- writes nodes to the store.
 *
 * The order is: record, lock, pending mark, and only then the transport.  So whatever it answers,
 * there is something to undo, and undoing needs no memory.
 *
 * A record names the nodes to publish.  Splits of a pending node add fragments to the list, in the
 * order of the splits; should there be no memory for one, the list is given up and the fragments
 * are found by climbing from the lock node, which is the deepest.
 */
#include "graft/linker.h"

#include "tree/tree.h"

static kvg_err reserve(struct kvg_linker *linker)
{
    size_t wanted = linker->offload_capacity == 0 ? 16 : linker->offload_capacity * 2;
    void *offloads = linker->offloads;

    if (linker->offload_count < linker->offload_capacity)
        return KVG_OK;
    if (!kvi_resize_array(&linker->alloc, &offloads, linker->offload_capacity, wanted,
            sizeof(*linker->offloads)))
        return KVG_ENOMEM;
    linker->offloads = offloads;
    linker->offload_capacity = wanted;
    return KVG_OK;
}

/* ---- Groups -------------------------------------------------------------------------------- */

kvg_err kvi_linker_group_begin(struct kvg_linker *linker)
{
    if (linker->agreement.min != NULL && linker->has_transport &&
        reserve(linker) != KVG_OK)
        return KVG_ENOMEM;
    linker->group++;
    linker->group_open = true;
    linker->group_used = false;
    return KVG_OK;
}

void kvi_linker_group_end(struct kvg_linker *linker)
{
    linker->group_open = false;
    if (linker->group_used || linker->agreement.min == NULL || !linker->has_transport)
        return;
    linker->offloads[linker->offload_count++] =
        (struct kvi_offload){.group = linker->group, .done = true, .success = true};
}

/* ---- Sparse retention ---------------------------------------------------------------------- */

/* Keeps of the window's pages those before a checkpoint. */
static kvg_err thin_out(struct kvg_linker *linker, kvg_node_id id, uint64_t boundary,
    bool include_boundary, struct kvg_tree_transfer *swa, struct kvg_error *error)
{
    const struct kvi_node *node = kvi_node_find(linker->tree, id);
    uint64_t end = node->depth;
    uint64_t start = end - swa->key_count * linker->page_size;
    uint64_t last = boundary > end ? boundary : end;
    struct kvg_retention retention = {.prompt_boundary = last,
        .window = linker->tree->options.window,
        .interval = linker->interval != 0 ? linker->interval : last + linker->page_size,
        .page_size = linker->page_size,
        .include_prompt_boundary = include_boundary};
    struct kvg_tree_range ranges[16];
    size_t count;

    kvg_err err =
        kvg_retained_swa_ranges(&retention, start, end, ranges, 16, &count, error);
    if (err != KVG_OK)
        return err;
    if (count > 16)
        return KVG_OK; /* So many windows: all of it. */
    if (kvi_linker_keys_reserve(linker, swa->key_count) != KVG_OK ||
        kvi_transfer_filter(linker, swa, ranges, count, start, linker->keys,
            &linker->cut[1], swa) != KVG_OK)
        return kvi_fail(error, KVG_ENOMEM, "offload", "no memory for spans");
    return KVG_OK;
}

/* ---- Offers -------------------------------------------------------------------------------- */

/* What is to be offered of a node; nothing: *count_out is 0. */
static kvg_err build(struct kvg_linker *linker, kvg_node_id id, uint64_t boundary,
    bool include_boundary, struct kvg_tree_transfer *transfers, size_t *count_out,
    struct kvg_error *error)
{
    size_t built;
    kvg_err err = kvg_tree_offload_build(linker->tree, id, transfers, &built, error);

    *count_out = 0;
    for (size_t i = 0; i < built && err == KVG_OK; i++) {
        struct kvg_tree_transfer transfer = transfers[i];
        if (transfer.component == KVG_COMPONENT_SWA) {
            if (linker->skip_swa)
                continue;
            if (linker->sparse)
                err = thin_out(linker, id, boundary, include_boundary, &transfer, error);
        }
        if (transfer.key_count != 0)
            transfers[(*count_out)++] = transfer;
    }
    return err;
}

static kvg_err offer(struct kvg_linker *linker, kvg_node_id id,
    const struct kvg_tree_transfer *transfers, size_t count, struct kvg_error *error)
{
    struct kvi_offload offload = {
        .lock_node = id, .node_capacity = 2, .node_count = 1, .group = linker->group};

    offload.nodes = kvi_alloc_array(&linker->alloc, 2, sizeof(*offload.nodes));
    if (offload.nodes == NULL || reserve(linker) != KVG_OK) {
        kvi_release_array(&linker->alloc, offload.nodes, 2, sizeof(*offload.nodes));
        return kvi_fail(error, KVG_ENOMEM, "offload", "no memory for a record");
    }
    offload.nodes[0] = id;
    kvg_err err = kvg_tree_lock(linker->tree, id, 0, &offload.receipt, error);
    if (err == KVG_OK && kvg_tree_offload_mark(linker->tree, id, error) != KVG_OK)
        KVI_ASSERT(false); /* build() saw that it is neither stored nor pending. */
    if (err == KVG_OK) {
        err = linker->transport.offload(linker->transport.context, transfers, count);
        if (err != KVG_OK) {
            linker->stats.offloads_refused++;
            kvi_offload_end(linker, &offload, false);
            return kvi_fail(error, err, "offload", "the transport refused the pages");
        }
    } else {
        kvi_release_array(&linker->alloc, offload.nodes, 2, sizeof(*offload.nodes));
        return err;
    }
    linker->stats.offloads_queued++;
    for (size_t i = 0; i < count; i++)
        linker->stats.pages_offloaded += transfers[i].key_count;
    linker->offloads[linker->offload_count++] = offload;
    linker->group_used = true;
    return KVG_OK;
}

kvg_err kvg_linker_offload(struct kvg_linker *linker, const kvg_node_id *nodes,
    size_t node_count, uint64_t replay_boundary, bool include_prompt_boundary,
    struct kvg_error *error)
{
    struct kvg_tree_transfer transfers[KVG_COMPONENT_MAX];
    kvg_err first = KVG_OK;

    if (!linker->has_transport || linker->inserting_tail)
        return KVG_OK;
    if (!linker->group_open)
        linker->group++;
    for (size_t i = 0; i < node_count; i++) {
        size_t count;
        kvg_err err = build(linker, nodes[i], replay_boundary, include_prompt_boundary,
            transfers, &count, first == KVG_OK ? error : NULL);
        if (err == KVG_OK && count != 0)
            err =
                offer(linker, nodes[i], transfers, count, first == KVG_OK ? error : NULL);
        if (first == KVG_OK)
            first = err;
    }
    return first == KVG_EBUSY ? KVG_OK : first;
}

/* ---- Splits, the end ----------------------------------------------------------------------- */

void kvg_linker_replace_node(
    struct kvg_linker *linker, kvg_node_id ack, kvg_node_id old, kvg_node_id prefix)
{
    struct kvi_offload *offload = NULL;

    for (size_t i = 0; i < linker->offload_count && offload == NULL; i++) {
        if (linker->offloads[i].lock_node == ack)
            offload = &linker->offloads[i];
    }
    if (offload == NULL || offload->incomplete || KVI_GRAFT_PLANTED(2))
        return;
    if (offload->node_count == offload->node_capacity) {
        void *nodes = offload->nodes;
        if (!kvi_resize_array(&linker->alloc, &nodes, offload->node_capacity,
                2 * (size_t)offload->node_capacity, sizeof(*offload->nodes))) {
            offload->incomplete = true;
            return;
        }
        offload->nodes = nodes;
        offload->node_capacity *= 2;
    }
    for (uint32_t i = 0; i < offload->node_count; i++) {
        if (offload->nodes[i] != old)
            continue;
        memmove(offload->nodes + i + 1, offload->nodes + i,
            (offload->node_count - i) * sizeof(*offload->nodes));
        offload->nodes[i] = prefix;
        offload->node_count++;
        return;
    }
    offload->incomplete = true;
}

/* The fragments by climbing. */
static void finish_by_climbing(
    struct kvg_linker *linker, const struct kvi_offload *offload, bool success)
{
    struct kvi_node *node = kvi_node_find(linker->tree, offload->lock_node);

    for (; node != NULL; node = kvi_parent(linker->tree, node)) {
        kvg_node_id id = node->id;
        if (node->pending_write == offload->lock_node &&
            kvg_tree_offload_finish(
                linker->tree, &id, 1, offload->lock_node, success, NULL) != KVG_OK)
            KVI_ASSERT(false);
    }
}

void kvi_offload_end(struct kvg_linker *linker, struct kvi_offload *offload, bool success)
{
    if (offload->lock_node != KVG_NODE_NONE) {
        if (offload->incomplete ||
            kvg_tree_offload_finish(linker->tree, offload->nodes, offload->node_count,
                offload->lock_node, success, NULL) != KVG_OK)
            finish_by_climbing(linker, offload, success);
        if (!KVI_GRAFT_PLANTED(3) && kvg_tree_unlock(linker->tree, offload->lock_node,
                                         &offload->receipt, false, NULL) != KVG_OK)
            KVI_ASSERT(false);
        if (success)
            linker->stats.offloads_done++;
        else
            linker->stats.offloads_failed++;
    }
    kvi_release_array(
        &linker->alloc, offload->nodes, offload->node_capacity, sizeof(*offload->nodes));
    *offload = (struct kvi_offload){0};
}
