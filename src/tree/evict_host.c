/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* evict_host.c -- room in the host tier.
 *
 * FULL: under write-back first the host copies of nodes that are on device as well (settled
 * duplicates), in the order they became such, sparing device leaves in a first pass; then leaves
 * that are on host only, in the policy's order, which are deleted.
 *
 * SWA and MAMBA: the host recency list from its oldest unlocked entry; a host leaf goes whole,
 * any other node loses the copy and what ranks below it.
 */
#include "tree/evict.h"

#include "tree/record.h"

#define DIGEST_FACTOR UINT64_C(1000003)
#define DIGEST_MASK ((UINT64_C(1) << 42) - 1)

static bool is_settled(const struct kvi_node *node)
{
    return kvi_has(node, 0, KVG_TIER_DEVICE) && kvi_has(node, 0, KVG_TIER_HOST) &&
           node->pending_write == KVG_NODE_NONE && node->pending_load == KVG_NODE_NONE;
}

/* One pass over the duplicates.  What stopped being one is forgotten on the way. */
static kvg_err reclaim_pass(struct kvg_tree *tree, uint64_t wanted, bool spare_leaves,
    struct kvg_actions *actions, struct kvg_tree_evicted *out, struct kvg_error *error)
{
    kvi_ref next;

    for (kvi_ref ref = tree->duplicate_first;
         ref != 0 && out->evicted[KVG_COMPONENT_FULL] < wanted; ref = next) {
        struct kvi_node *node = kvi_node_at(tree, ref);
        next = node->duplicate_next;
        if (!is_settled(node)) {
            kvi_duplicate_forget(tree, node);
            continue;
        }
        if (node->full.lock[KVG_TIER_HOST] != 0 ||
            (spare_leaves && (node->flags & KVI_NODE_DEVICE_LEAF) != 0))
            continue;
        kvg_err err = kvi_evict_reserve(tree, node, actions, error);
        if (err != KVG_OK)
            return err;
        kvi_record_removed(tree, node, KVG_MEDIUM_CPU);
        kvi_take_part(tree, node, 0, KVG_TIER_HOST, actions, out);
        kvi_duplicate_forget(tree, node);
        kvi_leaf_update(tree, node);
        tree->reclaim_digest =
            (tree->reclaim_digest * DIGEST_FACTOR + (node->id >> KVI_REF_BITS) + 1) &
            DIGEST_MASK;
    }
    return KVG_OK;
}

static kvg_err evict_host_leaf(struct kvg_tree *tree, struct kvi_node *node,
    struct kvg_actions *actions, struct kvg_tree_evicted *out, struct kvg_error *error)
{
    struct kvi_node *parent = kvi_parent(tree, node);
    kvg_err err = kvi_evict_reserve(tree, node, actions, error);

    if (err != KVG_OK)
        return err;
    kvi_record_removed(tree, node, KVG_MEDIUM_CPU);
    kvi_delete_leaf(tree, node, KVG_TIER_HOST, actions, out);
    kvi_clean_up_ancestors(tree, parent, actions, out);
    return KVG_OK;
}

static kvg_err evict_full(struct kvg_tree *tree, uint64_t wanted,
    struct kvg_actions *actions, struct kvg_tree_evicted *out, struct kvg_error *error)
{
    kvg_err err = KVG_OK;

    if (tree->settings.write_back && !tree->settings.keep_host_duplicates) {
        err = reclaim_pass(tree, wanted, true, actions, out, error);
        if (err == KVG_OK)
            err = reclaim_pass(tree, wanted, false, actions, out, error);
    }
    while (err == KVG_OK && out->evicted[KVG_COMPONENT_FULL] < wanted) {
        struct kvi_node *node = kvi_leaf_first(tree, KVG_TIER_HOST);
        if (node == NULL)
            break;
        err = evict_host_leaf(tree, node, actions, out, error);
    }
    return err;
}

static kvg_err take_copy(struct kvg_tree *tree, struct kvi_node *node, uint32_t slot,
    struct kvg_actions *actions, struct kvg_tree_evicted *out, struct kvg_error *error)
{
    kvg_err err = kvi_cascade_check(tree, node, slot, KVG_TIER_HOST, error);

    if (err == KVG_OK)
        err = kvi_evict_reserve(tree, node, actions, error);
    if (err == KVG_OK)
        kvi_take_with_cascade(tree, node, slot, KVG_TIER_HOST, actions, out);
    return err;
}

/* The next node is asked for after the last is gone, and a leaf goes whole only if it may. */
static kvg_err evict_among_sessions(struct kvg_tree *tree, uint32_t slot, uint64_t wanted,
    struct kvg_actions *actions, struct kvg_tree_evicted *out, struct kvg_error *error)
{
    uint32_t component = tree->components[slot]->type;
    kvg_err err = KVG_OK;

    kvi_list_rewind(tree, slot, KVG_TIER_HOST);
    while (err == KVG_OK && out->evicted[component] < wanted) {
        struct kvi_node *node = kvi_list_walk(tree, slot, KVG_TIER_HOST);
        if (node == NULL)
            break;
        err =
            (node->flags & KVI_NODE_HOST_LEAF) != 0 && kvi_may_go_whole(tree, node, slot)
                ? evict_host_leaf(tree, node, actions, out, error)
                : take_copy(tree, node, slot, actions, out, error);
    }
    kvi_list_rewind(tree, slot, KVG_TIER_HOST);
    return err;
}

static kvg_err evict_listed(struct kvg_tree *tree, uint32_t slot, uint64_t wanted,
    struct kvg_actions *actions, struct kvg_tree_evicted *out, struct kvg_error *error)
{
    uint32_t component = tree->components[slot]->type;
    struct kvi_node *node = kvi_list_unlocked(tree, slot, KVG_TIER_HOST,
        kvi_node_or_null(tree, tree->lists[slot][KVG_TIER_HOST].oldest));
    kvg_err err = KVG_OK;

    if (tree->options.sessions)
        return evict_among_sessions(tree, slot, wanted, actions, out, error);
    while (node != NULL && out->evicted[component] < wanted) {
        struct kvi_node *next = kvi_list_unlocked(tree, slot, KVG_TIER_HOST,
            kvi_node_or_null(tree, kvi_aux(node, slot)->link[KVG_TIER_HOST].newer));
        kvg_node_id next_id = next == NULL ? KVG_NODE_NONE : next->id;
        err = (node->flags & KVI_NODE_HOST_LEAF) != 0
                  ? evict_host_leaf(tree, node, actions, out, error)
                  : take_copy(tree, node, slot, actions, out, error);
        if (err != KVG_OK)
            return err;
        /* The next may have gone with it, as an ancestor that was left with nothing. */
        node = kvi_node_find(tree, next_id);
        if (node != NULL && !kvi_listed(node, slot, KVG_TIER_HOST))
            node = NULL;
    }
    return KVG_OK;
}

kvg_err kvg_tree_evict_host(struct kvg_tree *tree, uint32_t component, uint64_t wanted,
    struct kvg_actions *actions, struct kvg_tree_evicted *out, struct kvg_error *error)
{
    *out = (struct kvg_tree_evicted){.struct_bytes = sizeof(*out)};
    if (component >= KVG_COMPONENT_MAX || tree->slot_of[component] < 0)
        return KVG_OK;
    uint32_t slot = (uint32_t)tree->slot_of[component];
    kvg_err err = slot == 0 ? evict_full(tree, wanted, actions, out, error)
                            : evict_listed(tree, slot, wanted, actions, out, error);
    for (uint32_t i = 0; i < KVG_COMPONENT_MAX; i++)
        out->progress = out->progress || out->evicted[i] != 0;
    return err;
}
