/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* host_load.c -- values on their way back to device, and windows given to tombstones.
 *
 *     root - A(device) - B(host) - C(host) = node
 *
 *     FULL   every node from `node` up that is not on device: B, C
 *     SWA    from `node` up to one window: those whose window is on host only
 *     MAMBA  the node's own state
 *
 * Under write-back a node that is being loaded is marked with the load's anchor, so that its host
 * copy is not reclaimed and no second load takes it.
 */
#include "tree/host.h"

#include "tree/record.h"

/* ---- Build --------------------------------------------------------------------------------- */

/* The part of the path a load of one component covers: visits from `node` upwards. */
static bool covers(const struct kvg_tree *tree, const struct kvi_node *node,
    uint32_t slot, uint64_t *covered)
{
    if (kvi_is_root(node))
        return false;
    if (slot == 0)
        return kvi_evicted(node);
    if (*covered >= tree->options.window)
        return false;
    *covered += node->length;
    return kvi_has(node, slot, KVG_TIER_DEVICE) || kvi_has(node, slot, KVG_TIER_HOST);
}

static void build_path(struct kvg_tree *tree, struct kvi_node *node, uint32_t slot,
    struct kvg_tree_transfer *out, bool *foreign)
{
    uint64_t covered = 0;
    kvi_ref top = 0;

    *out = (struct kvg_tree_transfer){0};
    for (struct kvi_node *n = node; covers(tree, n, slot, &covered);
         n = kvi_parent(tree, n)) {
        if (slot != 0 && kvi_has(n, slot, KVG_TIER_DEVICE))
            continue;
        if (n->pending_load != KVG_NODE_NONE && n->pending_load != node->id)
            *foreign = true;
        n->path_next = top;
        top = kvi_ref_of(n);
    }
    for (struct kvi_node *n = kvi_node_or_null(tree, top); n != NULL;
         n = kvi_node_or_null(tree, n->path_next))
        kvi_transfer_add(tree, n, slot, KVG_TIER_HOST, out);
}

kvg_err kvg_tree_load_build(struct kvg_tree *tree, kvg_node_id id,
    struct kvg_tree_transfer *out, size_t *count_out, struct kvg_error *error)
{
    struct kvi_node *node = kvi_node_find(tree, id);
    struct kvi_transfer_room room = {0};
    bool foreign = false;

    *count_out = 0;
    if (node == NULL)
        return kvi_no_node(error, id);
    uint64_t covered = 0;
    for (struct kvi_node *n = node;
         !kvi_is_root(n) &&
         (kvi_evicted(n) || covered < tree->options.window || n == node);
         n = kvi_parent(tree, n)) {
        if (kvi_evicted(n) && !kvi_backed_up(n))
            return kvi_fail_node(
                error, KVG_ESTATE, "node", "node ", n->id, " has no FULL value");
        kvi_transfer_count(tree, n, &room);
        covered += n->length;
    }
    kvg_err err = kvi_transfer_begin(tree, &room, error);
    if (err != KVG_OK)
        return err;
    for (uint32_t slot = 0; slot < tree->part_count; slot++) {
        struct kvg_tree_transfer transfer = {0};
        if (tree->components[slot]->type == KVG_COMPONENT_MAMBA) {
            if (!kvi_has(node, slot, KVG_TIER_DEVICE) &&
                kvi_has(node, slot, KVG_TIER_HOST))
                kvi_transfer_add(tree, node, slot, KVG_TIER_HOST, &transfer);
        } else {
            build_path(tree, node, slot, &transfer, &foreign);
        }
        if (transfer.node_count != 0)
            out[(*count_out)++] = transfer;
    }
    if (foreign)
        *count_out = 0;
    return KVG_OK;
}

/* ---- Commit -------------------------------------------------------------------------------- */

static kvg_err check_load(struct kvg_tree *tree, kvg_node_id anchor,
    const struct kvg_tree_transfer *transfer, uint32_t *slot, struct kvg_error *error)
{
    kvg_err err = kvi_transfer_check(tree, transfer, KVG_TIER_HOST, slot, error);

    for (size_t i = 0; err == KVG_OK && i < transfer->node_count; i++) {
        const struct kvi_node *node = kvi_node_find(tree, transfer->nodes[i]);
        if (kvi_has(node, *slot, KVG_TIER_DEVICE))
            return kvi_fail_node(
                error, KVG_ESTATE, "node", "node ", node->id, " is on device already");
        if (*slot == 0 && node->pending_load != KVG_NODE_NONE &&
            node->pending_load != anchor)
            return kvi_fail_node(error, KVG_ESTATE, "node", "node ", node->id,
                " pinned by another load-back, not by the new anchor");
    }
    return err;
}

static void put_loaded(struct kvg_tree *tree, struct kvi_node *node, uint32_t slot,
    kvg_node_id anchor, struct kvi_value *value)
{
    if (slot != 0) {
        kvi_aux_value_put(tree, node, slot, value);
        return;
    }
    if (tree->settings.write_back)
        node->pending_load = anchor;
    kvi_device_value_put(tree, node, 0, value);
    kvi_leaf_update(tree, node);
    kvi_leaf_update(tree, kvi_parent(tree, node));
    kvi_duplicate_update(tree, node);
    kvi_record_stored(tree, node, KVG_MEDIUM_DEVICE, (struct kvg_str){NULL, 0});
}

/* FULL slots of a window's nodes, beside the window slots that came back. */
static void add_mapping(struct kvg_tree *tree, const struct kvg_tree_transfer *transfer,
    uint32_t slot, struct kvg_actions *actions)
{
    struct kvg_action *action = kvi_actions_add(actions, KVG_ACTION_REBUILD_MAPPING);

    action->component = tree->components[slot]->type;
    for (uint32_t pass = 0; pass < 2; pass++) {
        uint32_t first = actions->span_count;
        for (size_t i = 0; i < transfer->node_count; i++) {
            const struct kvi_node *node = kvi_node_find(tree, transfer->nodes[i]);
            const struct kvi_value *value =
                &kvi_part(node, pass == 0 ? 0 : slot)->value[KVG_TIER_DEVICE];
            actions->span_count += kvi_value_spans(
                value, 0, value->length, actions->spans + actions->span_count);
        }
        if (pass == 0) {
            action->span_first = first;
            action->span_count = actions->span_count - first;
        } else {
            action->span2_first = first;
            action->span2_count = actions->span_count - first;
        }
    }
}

/* Every value the load makes, before any of them is given: the load happens whole. */
static kvg_err make_values(struct kvg_tree *tree,
    const struct kvg_tree_transfer *transfers, size_t count, struct kvi_value *values,
    struct kvg_error *error)
{
    size_t made = 0;

    for (size_t i = 0; i < count; i++) {
        bool mamba = transfers[i].component == KVG_COMPONENT_MAMBA;
        uint64_t at = 0;
        for (size_t n = 0; n < transfers[i].node_count; n++) {
            const struct kvi_node *node = kvi_node_find(tree, transfers[i].nodes[n]);
            uint32_t length = mamba ? 1 : node->length;
            if (kvi_value_make(tree, transfers[i].spans, transfers[i].span_count, at,
                    length, &values[made]) != KVG_OK) {
                while (made-- != 0)
                    kvi_value_clear(tree, &values[made]);
                return kvi_fail(error, KVG_ENOMEM, "load", "no memory for values");
            }
            made++;
            at += length;
        }
    }
    return KVG_OK;
}

/* Checks all transfers, and reserves actions and events. */
static kvg_err prepare_load(struct kvg_tree *tree, kvg_node_id anchor,
    const struct kvg_tree_transfer *transfers, size_t count, size_t *values_out,
    struct kvg_actions *actions, struct kvg_error *error)
{
    uint64_t spans = 0;

    *values_out = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t slot;
        kvg_err err = check_load(tree, anchor, &transfers[i], &slot, error);
        if (err == KVG_OK && slot == 0)
            err = kvi_record_prepare_many(
                tree, transfers[i].nodes, transfers[i].node_count, error);
        if (err != KVG_OK)
            return err;
        *values_out += transfers[i].node_count;
        /* A cut by nodes adds at most one span a node to either list. */
        spans += transfers[i].span_count + transfers[i].node_count;
        for (size_t n = 0; n < transfers[i].node_count; n++) {
            const struct kvi_node *node = kvi_node_find(tree, transfers[i].nodes[n]);
            const struct kvi_value *full = &node->full.value[KVG_TIER_DEVICE];
            spans += kvi_value_span_count(full, 0, full->length);
        }
    }
    if (spans * 2 > UINT32_MAX ||
        kvi_actions_reserve(actions, (uint32_t)count, (uint32_t)spans * 2, 0) != KVG_OK)
        return kvi_fail(error, KVG_ENOMEM, "load", "no memory for actions");
    return KVG_OK;
}

kvg_err kvg_tree_load_commit(struct kvg_tree *tree, kvg_node_id id,
    const struct kvg_tree_transfer *transfers, size_t count, struct kvg_actions *actions,
    struct kvg_error *error)
{
    size_t value_count;
    size_t next = 0;

    if (kvi_node_find(tree, id) == NULL)
        return kvi_no_node(error, id);
    kvg_err err = prepare_load(tree, id, transfers, count, &value_count, actions, error);
    if (err != KVG_OK || value_count == 0)
        return err;
    struct kvi_value *values =
        kvi_alloc_array(&tree->alloc, value_count, sizeof(*values));
    if (values == NULL)
        return kvi_fail(error, KVG_ENOMEM, "load", "no memory for values");
    err = make_values(tree, transfers, count, values, error);
    for (size_t i = 0; err == KVG_OK && i < count; i++) {
        uint32_t slot = (uint32_t)tree->slot_of[transfers[i].component];
        for (size_t n = 0; n < transfers[i].node_count; n++)
            put_loaded(tree, kvi_node_find(tree, transfers[i].nodes[n]), slot, id,
                &values[next++]);
    }
    for (size_t i = 0; err == KVG_OK && i < count; i++) {
        if (transfers[i].component == KVG_COMPONENT_SWA)
            add_mapping(
                tree, &transfers[i], (uint32_t)tree->slot_of[KVG_COMPONENT_SWA], actions);
    }
    kvi_release_array(&tree->alloc, values, value_count, sizeof(*values));
    return err;
}

kvg_err kvg_tree_load_finish(
    struct kvg_tree *tree, kvg_node_id id, struct kvg_error *error)
{
    struct kvi_node *node = kvi_node_find(tree, id);

    if (node == NULL)
        return kvi_no_node(error, id);
    for (; !kvi_is_root(node); node = kvi_parent(tree, node)) {
        if (node->pending_load == id)
            node->pending_load = KVG_NODE_NONE;
        kvi_duplicate_update(tree, node);
    }
    return KVG_OK;
}

/* ---- Windows ------------------------------------------------------------------------------- */

/* The next node of a walk along a key; NULL at its end, at a dead node or at a partial match that
 * ends it.  *from and *to are the units it covers. */
static struct kvi_node *next_on_key(const struct kvg_tree *tree, struct kvi_node *node,
    const struct kvg_tree_key *key, uint64_t units, uint32_t space, uint64_t *from,
    uint64_t *to)
{
    if (*to >= units)
        return NULL;
    const uint32_t *tokens = key->tokens + *to;
    struct kvi_node *child = kvi_child_find(tree, node, space, tokens);
    if (child == NULL || kvi_evicted(child) ||
        kvi_node_match(tree, child, tokens, units - *to) < child->length)
        return NULL;
    *from = *to;
    *to += child->length;
    return child;
}

size_t kvg_tree_window_gaps(const struct kvg_tree *tree, const struct kvg_tree_key *key,
    uint64_t start, uint64_t end, struct kvg_tree_range *ranges, size_t range_max)
{
    int8_t slot = tree->slot_of[KVG_COMPONENT_SWA];
    struct kvi_node *node = kvi_node_at(tree, tree->root);
    struct kvg_tree_range last = {KVG_COMPONENT_SWA, 0, 0};
    struct kvg_tree_key view;
    uint64_t units = kvi_tree_key(tree, key, &view);
    uint64_t from = 0;
    uint64_t to = 0;
    uint32_t space;
    size_t count = 0;

    if (slot < 0 || !kvi_space_find(tree, &view.space, &space))
        return 0;
    while ((node = next_on_key(tree, node, &view, units, space, &from, &to)) != NULL) {
        uint64_t a = from > start ? from : start;
        uint64_t b = to < end ? to : end;
        if (a >= b || kvi_has(node, (uint32_t)slot, KVG_TIER_DEVICE))
            continue;
        if (count != 0 && last.end == a) {
            last.end = b;
        } else {
            last = (struct kvg_tree_range){KVG_COMPONENT_SWA, a, b};
            count++;
        }
        if (count <= range_max)
            ranges[count - 1] = last;
    }
    return count;
}

/* May the window be attached?  Counts the nodes it meets. */
static kvg_err check_attach(const struct kvg_tree *tree, const struct kvg_tree_key *view,
    uint64_t units, uint64_t start, uint64_t end, uint32_t slot, struct kvg_error *error)
{
    struct kvi_node *node = kvi_node_at(tree, tree->root);
    uint64_t covered = start;
    uint64_t from = 0;
    uint64_t to = 0;
    uint32_t space;

    if (!kvi_space_find(tree, &view->space, &space))
        node = NULL;
    while (node != NULL && covered < end) {
        node = next_on_key(tree, node, view, units, space, &from, &to);
        if (node == NULL || to <= start)
            continue;
        if (kvi_has(node, slot, KVG_TIER_DEVICE))
            return kvi_fail_node(error, KVG_ESTATE, "attach",
                "attach_swa_window over live SWA on node ", node->id, "");
        covered = to < end ? to : end;
    }
    if (covered < end)
        return kvi_fail_node(error, KVG_ESTATE, "attach",
            "attach_swa_window covered only ", covered - start, " units");
    return KVG_OK;
}

kvg_err kvg_tree_window_attach(struct kvg_tree *tree, const struct kvg_tree_key *key,
    uint64_t start, uint64_t end, const struct kvg_span *spans, size_t span_count,
    struct kvg_actions *actions, struct kvg_error *error)
{
    int8_t at = tree->slot_of[KVG_COMPONENT_SWA];
    struct kvi_node *node = kvi_node_at(tree, tree->root);
    struct kvg_tree_key view;
    uint64_t units = kvi_tree_key(tree, key, &view);
    uint64_t from = 0;
    uint64_t to = 0;
    uint64_t slots = 0;
    uint32_t space;

    if (at < 0 || start >= end || end > units ||
        (start | end) % tree->options.page_size != 0)
        return kvi_fail(error, KVG_EINVAL, "attach", "no such window");
    for (size_t i = 0; i < span_count; i++)
        slots += spans[i].length;
    if (slots != end - start)
        return kvi_fail_node(error, KVG_EINVAL, "attach",
            "attach_swa_window size mismatch: ", slots, " slots");
    kvg_err err = check_attach(tree, &view, units, start, end, (uint32_t)at, error);
    if (err != KVG_OK || !kvi_space_find(tree, &view.space, &space))
        return err;
    while (to < end) {
        struct kvi_value value;
        node = next_on_key(tree, node, &view, units, space, &from, &to);
        if (to <= start)
            continue;
        uint64_t a = from > start ? from : start;
        uint64_t b = to < end ? to : end;
        err = kvi_tree_reserve_nodes(tree, 2, error);
        if (err == KVG_OK && kvi_actions_reserve(actions, 2, 0, 0) != KVG_OK)
            err = kvi_fail(error, KVG_ENOMEM, "attach", "no memory for actions");
        if (err == KVG_OK && kvi_value_make(tree, spans, span_count, a - start,
                                 (uint32_t)(b - a), &value) != KVG_OK)
            err = kvi_fail(error, KVG_ENOMEM, "attach", "no memory for a value");
        if (err != KVG_OK)
            return err;
        if (a > from)
            kvi_node_split(tree, node, (uint32_t)(a - from), actions);
        struct kvi_node *covered = node;
        if (b < to) {
            covered = kvi_node_split(tree, node, (uint32_t)(b - a), actions);
            to = b;
        }
        kvi_aux_value_put(tree, covered, (uint32_t)at, &value);
        node = covered;
    }
    return KVG_OK;
}
