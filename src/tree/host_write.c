/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* host_write.c -- values on their way to the host tier, and prefetched ones that start there.
 *
 *     build      device slots of what has no host copy:    FULL    the node
 *                                                          SWA     it and ancestors, one window
 *                                                          MAMBA   its state
 *     commit     the host slots become values beside the device ones
 *     mark       the nodes are pending under the ack until
 *     finish     the copy is done; they are settled duplicates now
 */
#include "tree/evict.h"

#include "tree/record.h"
#include "tree/host.h"

/* ---- Transfers ----------------------------------------------------------------------------- */

void kvi_transfer_count(const struct kvg_tree *tree, const struct kvi_node *node,
    struct kvi_transfer_room *room)
{
    for (uint32_t slot = 0; slot < tree->part_count; slot++) {
        for (int tier = 0; tier < KVG_TIER_COUNT; tier++) {
            const struct kvi_value *value = &kvi_part(node, slot)->value[tier];
            room->spans += kvi_value_span_count(value, 0, value->length);
        }
    }
    room->nodes += tree->part_count;
}

kvg_err kvi_transfer_begin(
    struct kvg_tree *tree, const struct kvi_transfer_room *room, struct kvg_error *error)
{
    kvg_actions_clear(&tree->transfer_scratch);
    if (room->spans > UINT32_MAX || room->nodes > UINT32_MAX ||
        kvi_actions_reserve(&tree->transfer_scratch, 0, (uint32_t)room->spans,
            (uint32_t)room->nodes) != KVG_OK)
        return kvi_fail(error, KVG_ENOMEM, "transfer", "no memory for transfers");
    return KVG_OK;
}

void kvi_transfer_add(struct kvg_tree *tree, const struct kvi_node *node, uint32_t slot,
    enum kvg_tier tier, struct kvg_tree_transfer *transfer)
{
    struct kvg_actions *scratch = &tree->transfer_scratch;
    const struct kvi_value *value = &kvi_part(node, slot)->value[tier];
    uint32_t count =
        kvi_value_spans(value, 0, value->length, scratch->spans + scratch->span_count);

    if (transfer->node_count == 0) {
        transfer->component = tree->components[slot]->type;
        transfer->spans = scratch->spans + scratch->span_count;
        transfer->nodes = scratch->nodes + scratch->node_count;
    }
    scratch->nodes[scratch->node_count++] = node->id;
    scratch->span_count += count;
    transfer->span_count += count;
    transfer->node_count++;
}

/* ---- Build --------------------------------------------------------------------------------- */

/* Links the nodes it visits, deepest first, so that they can be read from the top. */
struct chain {
    struct kvg_tree *tree;
    kvi_ref top;
    struct kvi_transfer_room room;
};

static void chain_up(void *context, struct kvi_node *node)
{
    struct chain *chain = context;

    node->path_next = chain->top;
    chain->top = kvi_ref_of(node);
    kvi_transfer_count(chain->tree, node, &chain->room);
}

kvg_err kvg_tree_write_build(struct kvg_tree *tree, kvg_node_id id,
    struct kvg_tree_transfer *out, size_t *count_out, struct kvg_error *error)
{
    struct kvi_node *node = kvi_node_find(tree, id);
    struct chain chain = {.tree = tree};

    *count_out = 0;
    if (node == NULL)
        return kvi_no_node(error, id);
    if (!kvi_backed_up(node) && !kvi_has(node, 0, KVG_TIER_DEVICE))
        return kvi_fail_node(
            error, KVG_ESTATE, "node", "node ", id, " has no FULL value");
    chain_up(&chain, node);
    chain.top = 0;
    if (tree->settings.swa_host_pool) {
        if (tree->settings.host_buffer_only) {
            int8_t at = tree->slot_of[KVG_COMPONENT_SWA];
            if (at > 0 && kvi_has(node, (uint32_t)at, KVG_TIER_DEVICE))
                chain_up(&chain, node);
        } else {
            kvi_swa_backup_window(tree, node, chain_up, &chain);
        }
    }
    kvg_err err = kvi_transfer_begin(tree, &chain.room, error);
    if (err != KVG_OK)
        return err;
    for (uint32_t slot = 0; slot < tree->part_count; slot++) {
        struct kvg_tree_transfer transfer = {0};
        bool missing =
            kvi_has(node, slot, KVG_TIER_DEVICE) && !kvi_has(node, slot, KVG_TIER_HOST);
        if (tree->components[slot]->type == KVG_COMPONENT_SWA) {
            for (struct kvi_node *n = kvi_node_or_null(tree, chain.top); n != NULL;
                 n = kvi_node_or_null(tree, n->path_next))
                kvi_transfer_add(tree, n, slot, KVG_TIER_DEVICE, &transfer);
        } else if (missing) {
            kvi_transfer_add(tree, node, slot, KVG_TIER_DEVICE, &transfer);
        }
        if (transfer.node_count != 0)
            out[(*count_out)++] = transfer;
    }
    return KVG_OK;
}

/* ---- Commit -------------------------------------------------------------------------------- */

static uint32_t value_length(
    const struct kvg_tree *tree, const struct kvi_node *node, uint32_t slot)
{
    return tree->components[slot]->type == KVG_COMPONENT_MAMBA ? 1 : node->length;
}

kvg_err kvi_transfer_check(const struct kvg_tree *tree,
    const struct kvg_tree_transfer *transfer, enum kvg_tier from, uint32_t *slot_out,
    struct kvg_error *error)
{
    uint64_t have = 0;
    uint64_t need = 0;

    if (transfer->component >= KVG_COMPONENT_MAX ||
        tree->slot_of[transfer->component] < 0)
        return kvi_fail(
            error, KVG_EINVAL, "transfer.component", "the tree has no such component");
    uint32_t slot = (uint32_t)tree->slot_of[transfer->component];
    for (size_t i = 0; i < transfer->span_count; i++)
        have += transfer->spans[i].length;
    for (size_t i = 0; i < transfer->node_count; i++) {
        const struct kvi_node *node = kvi_node_find(tree, transfer->nodes[i]);
        if (node == NULL)
            return kvi_no_node(error, transfer->nodes[i]);
        if (!kvi_has(node, slot, from))
            return kvi_fail_node(error, KVG_ESTATE, "transfer.nodes", "node ", node->id,
                " has lost the value that was moved");
        need += value_length(tree, node, slot);
    }
    if (have != need)
        return kvi_fail_range(error, "transfer.spans", have, need, need);
    *slot_out = slot;
    return KVG_OK;
}

/* Under write-through a host copy stands on its parent's: else nothing could reach it. */
static bool hangs_in_the_air(
    const struct kvg_tree *tree, const struct kvi_node *node, uint32_t slot)
{
    const struct kvi_node *parent = kvi_parent(tree, node);

    return slot == 0 && !tree->settings.write_back && !kvi_is_root(parent) &&
           !kvi_has(parent, 0, KVG_TIER_HOST);
}

/* Gives each node its slice; all or none. */
static kvg_err commit_one(struct kvg_tree *tree, const struct kvg_tree_transfer *transfer,
    struct kvg_error *error)
{
    uint64_t at = 0;
    uint32_t slot;
    kvg_err err = kvi_transfer_check(tree, transfer, KVG_TIER_DEVICE, &slot, error);

    for (size_t i = 0; err == KVG_OK && i < transfer->node_count; i++) {
        if (hangs_in_the_air(tree, kvi_node_find(tree, transfer->nodes[i]), slot))
            return kvi_fail_node(error, KVG_ESTATE, "transfer.nodes",
                "the parent of node ", transfer->nodes[i], " has no host copy");
    }
    for (size_t i = 0; err == KVG_OK && i < transfer->node_count; i++) {
        struct kvi_node *node = kvi_node_find(tree, transfer->nodes[i]);
        struct kvi_value *value = &kvi_part(node, slot)->value[KVG_TIER_HOST];
        uint32_t length = value_length(tree, node, slot);
        if (value->length == 0 &&
            kvi_value_make(tree, transfer->spans, transfer->span_count, at, length,
                value) != KVG_OK) {
            while (i-- != 0)
                kvi_value_clear(
                    tree, &kvi_part(kvi_node_find(tree, transfer->nodes[i]), slot)
                               ->value[KVG_TIER_HOST]);
            return kvi_fail(error, KVG_ENOMEM, "write", "no memory for a value");
        }
        at += length;
    }
    return err;
}

kvg_err kvg_tree_write_commit(struct kvg_tree *tree,
    const struct kvg_tree_transfer *transfers, size_t count, struct kvg_error *error)
{
    kvg_err err = kvi_tree_use_host(tree, error);

    if (err != KVG_OK)
        return err;
    for (size_t i = 0; i < count; i++) {
        err = commit_one(tree, &transfers[i], error);
        if (err == KVG_OK)
            continue;
        for (size_t done = 0; done < i; done++) {
            uint32_t slot = (uint32_t)tree->slot_of[transfers[done].component];
            for (size_t n = 0; n < transfers[done].node_count; n++)
                kvi_value_clear(
                    tree, &kvi_part(kvi_node_find(tree, transfers[done].nodes[n]), slot)
                               ->value[KVG_TIER_HOST]);
        }
        return err;
    }
    for (size_t i = 0; i < count; i++) {
        for (size_t n = 0; n < transfers[i].node_count; n++) {
            struct kvi_node *node = kvi_node_find(tree, transfers[i].nodes[n]);
            kvi_leaf_update(tree, node);
            kvi_duplicate_update(tree, node);
        }
    }
    return KVG_OK;
}

/* ---- Marks --------------------------------------------------------------------------------- */

kvg_err kvg_tree_write_mark(struct kvg_tree *tree, kvg_node_id *nodes, size_t node_count,
    kvg_node_id ack, struct kvg_error *error)
{
    for (size_t i = 0; i < node_count; i++) {
        const struct kvi_node *node = kvi_node_find(tree, nodes[i]);
        if (node == NULL)
            return kvi_no_node(error, nodes[i]);
        if (node->pending_write != KVG_NODE_NONE && node->pending_write != ack)
            return kvi_fail_node(error, KVG_ESTATE, "node", "node ", nodes[i],
                " is already pending under a different write-through ack");
    }
    for (size_t i = 0; i < node_count; i++) {
        struct kvi_node *node = kvi_node_find(tree, nodes[i]);
        node->pending_write = ack;
        kvi_duplicate_forget(tree, node);
        /* Insertion by (depth, id): there are few. */
        size_t at = i;
        for (; at != 0; at--) {
            const struct kvi_node *other = kvi_node_find(tree, nodes[at - 1]);
            if (other->depth < node->depth ||
                (other->depth == node->depth && other->id < node->id))
                break;
            nodes[at] = nodes[at - 1];
        }
        nodes[at] = node->id;
    }
    return KVG_OK;
}

kvg_err kvg_tree_write_finish(struct kvg_tree *tree, const kvg_node_id *nodes,
    size_t node_count, kvg_node_id ack, struct kvg_error *error)
{
    for (size_t i = 0; i < node_count; i++) {
        if (kvi_node_find(tree, nodes[i]) == NULL)
            return kvi_no_node(error, nodes[i]);
    }
    kvg_err err = kvi_record_prepare_many(tree, nodes, node_count, error);
    if (err != KVG_OK)
        return err;
    for (size_t i = 0; i < node_count; i++) {
        struct kvi_node *node = kvi_node_find(tree, nodes[i]);
        if (node->pending_write == ack)
            node->pending_write = KVG_NODE_NONE;
        kvi_duplicate_update(tree, node);
        kvi_record_stored(tree, node, KVG_MEDIUM_CPU, (struct kvg_str){NULL, 0});
    }
    return KVG_OK;
}

/* ---- Prefetched tails ---------------------------------------------------------------------- */

/* Where an insert of host values stands. */
struct host_walk {
    struct kvi_node *node;
    uint32_t space;
    uint32_t matched;
};

static kvg_err descend(struct kvg_tree *tree, const struct kvg_tree_key *key,
    uint32_t units, struct host_walk *walk, struct kvg_actions *actions,
    struct kvg_error *error)
{
    while (walk->matched < units) {
        const uint32_t *tokens = key->tokens + walk->matched;
        struct kvi_node *child = kvi_child_find(tree, walk->node, walk->space, tokens);
        if (child == NULL)
            break;
        uint32_t equal = kvi_node_match(tree, child, tokens, units - walk->matched);
        if (equal < child->length) {
            kvg_err err = kvi_tree_reserve_nodes(tree, 2, error);
            if (err == KVG_OK && kvi_actions_reserve(actions, 1, 0, 0) != KVG_OK)
                err =
                    kvi_fail(error, KVG_ENOMEM, "insert_host", "no memory for an action");
            if (err != KVG_OK)
                return err;
            child->last_access = kvi_tick(tree);
            child = kvi_node_split(tree, child, equal, actions);
        }
        child->last_access = kvi_tick(tree);
        kvi_leaf_touched(tree, child);
        walk->matched += equal;
        walk->node = child;
    }
    return KVG_OK;
}

static struct kvi_keys *copy_page_keys(
    struct kvg_tree *tree, const struct kvg_key *keys, uint32_t pages)
{
    struct kvi_keys *copy = kvi_keys_make(tree, pages);

    if (copy != NULL)
        memcpy(copy->keys, keys, (size_t)pages * sizeof(*keys));
    return copy;
}

static kvg_err add_host_leaf(struct kvg_tree *tree,
    const struct kvg_tree_host_insert *what, const struct kvg_tree_key *key,
    uint32_t units, const struct host_walk *walk, struct kvi_node **out,
    struct kvg_error *error)
{
    uint32_t rest = units - walk->matched;
    struct kvi_value value = {0};
    struct kvi_keys *keys = NULL;
    struct kvi_block *block = NULL;
    uint32_t space = 0;
    bool held = kvi_space_hold(tree, &key->space, &space) == KVG_OK;
    bool ok = held && kvi_tree_reserve_nodes(tree, 1, error) == KVG_OK;

    if (ok) {
        block =
            kvi_block_make(tree, key->tokens + walk->matched, kvi_tokens_for(tree, rest));
        ok = block != NULL && kvi_value_make(tree, what->value, what->value_count,
                                  walk->matched, rest, &value) == KVG_OK;
    }
    if (ok && what->page_keys != NULL) {
        uint32_t page_size = tree->options.page_size;
        keys = copy_page_keys(
            tree, what->page_keys + walk->matched / page_size, rest / page_size);
        ok = keys != NULL;
    }
    if (!ok) {
        kvi_value_clear(tree, &value);
        kvi_block_drop(tree, block);
        if (held)
            kvi_space_drop(tree, space);
        return kvi_fail(error, KVG_ENOMEM, "insert_host", "no memory for a node");
    }
    struct kvi_node *leaf = kvi_node_new(tree);
    leaf->space = space;
    leaf->block = block;
    leaf->tokens = block->tokens;
    leaf->page_keys = keys;
    leaf->length = rest;
    leaf->depth = walk->node->depth + rest;
    leaf->priority = walk->node->priority;
    leaf->full.value[KVG_TIER_HOST] = value;
    kvi_child_link(tree, walk->node, leaf);
    kvi_leaf_update(tree, leaf);
    kvi_leaf_update(tree, walk->node);
    *out = leaf;
    return KVG_OK;
}

static bool same_space(const struct kvg_tree *tree, const struct kvi_node *anchor,
    const struct kvg_namespace *name)
{
    uint32_t space;

    return kvi_is_root(anchor) ||
           (kvi_space_find(tree, name, &space) && space == anchor->space);
}

kvg_err kvg_tree_insert_host(struct kvg_tree *tree,
    const struct kvg_tree_host_insert *what, struct kvg_actions *actions,
    struct kvg_tree_host_inserted *out, struct kvg_error *error)
{
    struct host_walk walk = {.node = kvi_node_find(tree, what->anchor)};
    struct kvg_tree_key key;
    struct kvi_node *leaf = NULL;
    uint64_t slots = 0;

    *out = (struct kvg_tree_host_inserted){.struct_bytes = sizeof(*out)};
    if (walk.node == NULL)
        return kvi_no_node(error, what->anchor);
    if (!same_space(tree, walk.node, &what->key.space))
        return kvi_fail(error, KVG_EMISMATCH, "insert_host.key",
            "prefetch anchor namespace differs from the key's");
    uint64_t units = kvi_tree_key(tree, &what->key, &key);
    for (size_t i = 0; i < what->value_count; i++)
        slots += what->value[i].length;
    if (units > UINT32_MAX / 2 || slots < units)
        return kvi_fail_range(error, "insert_host.value", slots, units, UINT32_MAX / 2);
    walk.node->last_access = kvi_tick(tree);
    kvi_leaf_touched(tree, walk.node);
    if (units == 0)
        return KVG_OK;
    /* An event needs the chain's keys before anything is decided. */
    kvg_err err = kvi_tree_use_host(tree, error);
    if (err == KVG_OK)
        err = kvi_record_reserve(tree, units, error);
    if (err == KVG_OK && kvi_space_find(tree, &key.space, &walk.space))
        err = descend(tree, &key, (uint32_t)units, &walk, actions, error);
    if (err != KVG_OK)
        return err;
    out->prefix_length = walk.matched;
    out->total_length = units;
    if (walk.matched == units) {
        if (kvi_has(walk.node, 0, KVG_TIER_HOST))
            out->node = walk.node->id;
        return KVG_OK;
    }
    if (!tree->settings.write_back && !kvi_is_root(walk.node) &&
        !kvi_backed_up(walk.node)) {
        out->dropped = true;
        return KVG_OK;
    }
    err = add_host_leaf(tree, what, &key, (uint32_t)units, &walk, &leaf, error);
    if (err != KVG_OK)
        return err;
    out->node = leaf->id;
    /* Without memory for its keys the page is there, but nobody is told. */
    if (kvi_record_prepare(tree, leaf, NULL) == KVG_OK)
        kvi_record_stored(tree, leaf, KVG_MEDIUM_CPU, (struct kvg_str){NULL, 0});
    return KVG_OK;
}
