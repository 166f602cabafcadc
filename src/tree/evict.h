/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* evict.h -- taking values away: what the walks (evict.c) and the host tier share.
 *
 * Every function that takes something assumes that kvi_evict_reserve() has made room for it. */
#ifndef KVI_TREE_EVICT_H
#define KVI_TREE_EVICT_H

#include "tree/tree.h"

/* Room in `actions` for everything that `node`, and the ancestors that would go with it, can
 * free, and for the event that says so. */
kvg_err kvi_evict_reserve(struct kvg_tree *tree, struct kvi_node *node,
    struct kvg_actions *actions, struct kvg_error *error);

/* Takes one component's value on one tier into a free action, out of its list, and counts it.  FULL
 * on device keeps its value until kvi_full_clear(), because SWA's frees are named by it. */
void kvi_take_part(struct kvg_tree *tree, struct kvi_node *node, uint32_t slot,
    enum kvg_tier tier, struct kvg_actions *actions, struct kvg_tree_evicted *out);
void kvi_full_clear(struct kvg_tree *tree, struct kvi_node *node);

/* May the cascade of `slot` on `tier` happen?  A lower-ranking component that is locked is an
 * error. */
kvg_err kvi_cascade_check(const struct kvg_tree *tree, const struct kvi_node *node,
    uint32_t slot, enum kvg_tier tier, struct kvg_error *error);

/* May a leaf go as a whole for the sake of `slot`?  Not if a session covers a component of equal or
 * higher rank, and not `slot`. */
bool kvi_may_go_whole(
    const struct kvg_tree *tree, const struct kvi_node *node, uint32_t slot);

/* Takes `slot` and what goes with it; updates the node's leaf marks. */
void kvi_take_with_cascade(struct kvg_tree *tree, struct kvi_node *node, uint32_t slot,
    enum kvg_tier tier, struct kvg_actions *actions, struct kvg_tree_evicted *out);

/* Takes everything of a node without children and deletes it; counts the values of `counted`. */
void kvi_delete_leaf(struct kvg_tree *tree, struct kvi_node *node, enum kvg_tier counted,
    struct kvg_actions *actions, struct kvg_tree_evicted *out);

/* From `node` upwards: deletes nodes that are left without children and without FULL. */
void kvi_clean_up_ancestors(struct kvg_tree *tree, struct kvi_node *node,
    struct kvg_actions *actions, struct kvg_tree_evicted *out);

/* The nodes whose window states a backup of `node` would write: from it upwards, on device without
 * a host copy.  Calls `visit` for each, deepest first; returns the units. */
uint64_t kvi_swa_backup_window(const struct kvg_tree *tree, struct kvi_node *node,
    void (*visit)(void *context, struct kvi_node *node), void *context);

#endif
