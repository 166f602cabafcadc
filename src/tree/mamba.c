/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* mamba.c -- the MAMBA component: one state slot, valid exactly at the end of a node.
 *
 * A split leaves the state on the suffix, whose end it describes; the prefix is a tombstone.  A
 * lock is on the single node, and counts on tombstones too.
 */
#include "tree/tree.h"

static bool mamba_usable(const struct kvg_tree *tree, const struct kvi_node *node,
    uint32_t slot, bool device_only, uint64_t *run)
{
    (void)tree;
    (void)run;
    return kvi_has(node, slot, KVG_TIER_DEVICE) ||
           (!device_only && kvi_has(node, slot, KVG_TIER_HOST));
}

static void mamba_refresh_match(
    struct kvg_tree *tree, struct kvi_node *best, uint32_t slot)
{
    if (kvi_has(best, slot, KVG_TIER_DEVICE) && kvi_listed(best, slot, KVG_TIER_DEVICE))
        kvi_list_touch(tree, slot, KVG_TIER_DEVICE, best);
}

static void mamba_refresh_insert(
    struct kvg_tree *tree, struct kvi_node *target, uint32_t slot)
{
    (void)tree;
    (void)target;
    (void)slot;
}

static void mamba_finalize_match(struct kvg_tree *tree, const struct kvi_node *best,
    const struct kvi_node *device, uint32_t slot, struct kvg_tree_match *match)
{
    uint64_t grid = tree->options.mamba_grid;
    uint64_t aligned = match->full_length - match->full_length % grid;

    (void)device;
    if (aligned > match->device_length + match->host_length)
        match->mamba_branching = (int64_t)aligned;
    if (!kvi_has(best, slot, KVG_TIER_DEVICE) && kvi_has(best, slot, KVG_TIER_HOST) &&
        match->mamba_host_length == 0)
        match->mamba_host_length = 1;
}

static uint64_t mamba_session_reach(const struct kvg_tree *tree)
{
    (void)tree;
    return 0;
}

static void mamba_split(struct kvg_tree *tree, struct kvi_node *prefix,
    struct kvi_node *child, uint32_t slot, uint32_t at)
{
    /* Everything stays with the suffix. */
    (void)tree;
    (void)prefix;
    (void)child;
    (void)slot;
    (void)at;
}

static kvg_err mamba_overlap(struct kvg_tree *tree, struct kvi_node **node, uint32_t slot,
    uint32_t matched, uint32_t *consumed_from, struct kvg_error *error)
{
    (void)tree;
    (void)node;
    (void)slot;
    (void)matched;
    (void)consumed_from;
    (void)error;
    return KVG_OK;
}

static kvg_err mamba_unevict(
    struct kvg_tree *tree, struct kvi_node *node, uint32_t slot, struct kvg_error *error)
{
    (void)tree;
    (void)node;
    (void)slot;
    (void)error;
    return KVG_OK;
}

static kvg_err mamba_commit(struct kvg_tree *tree, struct kvi_node *target, uint32_t slot,
    bool is_new_leaf, struct kvg_error *error)
{
    struct kvi_insert *insert = &tree->insert;
    struct kvi_value value;

    if (kvi_has(target, slot, KVG_TIER_DEVICE)) {
        kvi_list_touch(tree, slot, KVG_TIER_DEVICE, target);
        target->last_access = kvi_tick(tree);
        kvi_leaf_touched(tree, target);
        insert->result.mamba_exists = true;
        return KVG_OK;
    }
    kvg_err err = kvi_insert_reserve(tree, 1, 0, 0, error);
    if (err != KVG_OK)
        return err;
    if (kvi_value_make(tree, &insert->params.mamba, 1, 0, 1, &value) != KVG_OK)
        return kvi_fail(error, KVG_ENOMEM, "tree", "no memory for a value");
    kvi_aux_value_put(tree, target, slot, &value);
    if (!is_new_leaf) {
        target->last_access = kvi_tick(tree);
        kvi_leaf_touched(tree, target);
    }
    if (tree->options.mamba_states_per_path_max >= 0) {
        struct kvg_action *action =
            kvi_actions_add(&insert->pending, KVG_ACTION_EVICT_EXCESS_PATH_STATES);
        action->component = KVG_COMPONENT_MAMBA;
        action->node = target->id;
    }
    return KVG_OK;
}

static bool mamba_needs_backup(
    const struct kvg_tree *tree, const struct kvi_node *node, uint32_t slot)
{
    (void)tree;
    return kvi_has(node, slot, KVG_TIER_DEVICE) && !kvi_has(node, slot, KVG_TIER_HOST);
}

/* ---- Locks --------------------------------------------------------------------------------- */

static void mamba_acquire(struct kvg_tree *tree, struct kvi_node *node, uint32_t slot,
    struct kvg_lock_receipt *receipt)
{
    (void)receipt;
    if (kvi_is_root(node))
        return;
    kvi_lock_up(tree, node, slot, KVG_TIER_DEVICE);
    kvi_leaf_update(tree, node);
}

static kvg_err mamba_release(struct kvg_tree *tree, struct kvi_node *node, uint32_t slot,
    const struct kvg_lock_receipt *receipt, bool dry_run, struct kvg_error *error)
{
    (void)receipt;
    if (kvi_is_root(node))
        return KVG_OK;
    if (dry_run) {
        if (kvi_part(node, slot)->lock[KVG_TIER_DEVICE] == 0)
            return kvi_fail_node(error, KVG_ESTATE, "receipt",
                "Mamba release hit lock_ref=0 on node ", node->id, "");
        return KVG_OK;
    }
    kvi_lock_down(tree, node, slot, KVG_TIER_DEVICE);
    kvi_leaf_update(tree, node);
    return KVG_OK;
}

static void mamba_acquire_host(struct kvg_tree *tree, struct kvi_node *node,
    uint32_t slot, struct kvg_lock_receipt *receipt)
{
    (void)receipt;
    if (kvi_is_root(node))
        return;
    if (kvi_part(node, slot)->lock[KVG_TIER_HOST] == 0)
        kvi_list_drop(tree, slot, KVG_TIER_HOST, node);
    kvi_lock_up(tree, node, slot, KVG_TIER_HOST);
    kvi_leaf_update(tree, node);
}

static kvg_err mamba_release_host(struct kvg_tree *tree, struct kvi_node *node,
    uint32_t slot, const struct kvg_lock_receipt *receipt, bool dry_run,
    struct kvg_error *error)
{
    (void)receipt;
    if (kvi_is_root(node))
        return KVG_OK;
    if (dry_run) {
        if (kvi_part(node, slot)->lock[KVG_TIER_HOST] == 0)
            return kvi_fail_node(error, KVG_ESTATE, "receipt",
                "Mamba release hit host_lock_ref=0 on node ", node->id, "");
        return KVG_OK;
    }
    kvi_lock_down(tree, node, slot, KVG_TIER_HOST);
    if (kvi_part(node, slot)->lock[KVG_TIER_HOST] == 0) {
        if (kvi_has(node, slot, KVG_TIER_HOST) && !kvi_has(node, slot, KVG_TIER_DEVICE) &&
            !kvi_listed(node, slot, KVG_TIER_HOST))
            kvi_list_add_newest(tree, slot, KVG_TIER_HOST, node);
        kvi_leaf_update(tree, node);
    }
    return KVG_OK;
}

const struct kvi_component kvi_component_mamba = {
    .type = KVG_COMPONENT_MAMBA,
    .internal_rank = 0,
    .usable = mamba_usable,
    .refresh_match = mamba_refresh_match,
    .refresh_insert = mamba_refresh_insert,
    .finalize_match = mamba_finalize_match,
    .session_reach = mamba_session_reach,
    .split = mamba_split,
    .overlap = mamba_overlap,
    .unevict = mamba_unevict,
    .commit = mamba_commit,
    .needs_backup = mamba_needs_backup,
    .acquire = mamba_acquire,
    .release = mamba_release,
    .acquire_host = mamba_acquire_host,
    .release_host = mamba_release_host,
};
