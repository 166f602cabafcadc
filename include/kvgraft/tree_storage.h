/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* tree_storage.h -- a store behind the host tier: what to write there, and what to stage for a
 * prefetch from it.
 *
 *     device  --write-->  host  --storage-->  store         kvg_tree_storage_build()
 *                         host  <-prefetch--  store         kvg_tree_prefetch_staging(), then
 *                                                           kvg_tree_insert_host() and
 *                                                           kvg_tree_prefetch_commit()
 *
 * Threads, errors and units: as in tree.h.
 */
#ifndef KVGRAFT_TREE_STORAGE_H
#define KVGRAFT_TREE_STORAGE_H

#include <kvgraft/tree.h>

KVG_BEGIN_DECLS

/* What of `node` to write to the store: host slots by component, at most KVG_COMPONENT_MAX
 * transfers, each with the page keys it is written under: FULL and SWA one a page, MAMBA the last.
 * The tokens are kvg_tree_node_key(), the keys above kvg_tree_prefix_page_keys(); keys that are
 * missing are made.  Hold a host lock (kvg_tree_lock_host()) until the store has answered.
 * KVG_ESTATE: FULL has no host copy. */
KVG_API KVG_MUST_CHECK kvg_err kvg_tree_storage_build(struct kvg_tree *tree,
    kvg_node_id node, struct kvg_tree_transfer *out, size_t *count_out,
    struct kvg_error *error);

/* How many host slots to stage, by component, for a prefetch of `units` below `anchor`, besides a
 * FULL slot a unit (slots[FULL] is 0).  SWA: whole pages of one window when they fit, all units
 * when they are fewer and the anchor is the root, else none, and none without a host pool for
 * windows; the slots are for the last units.  MAMBA: the state at the end. */
KVG_API KVG_MUST_CHECK kvg_err kvg_tree_prefetch_staging(const struct kvg_tree *tree,
    kvg_node_id anchor, uint64_t units, uint64_t slots[KVG_COMPONENT_MAX],
    struct kvg_error *error);

/* What came into staged slots. */
struct kvg_tree_staged {
    uint32_t component;
    const struct kvg_span *spans; /* Host slots, whole pages; MAMBA: one. */
    size_t span_count;
    uint64_t loaded_pages; /* Of this component, as the store counted them. */
};

struct kvg_tree_prefetched {
    size_t struct_bytes;
    uint64_t attached[KVG_COMPONENT_MAX]; /* Slots that are the tree's now. */
    bool mamba_exists; /* The state was not taken: its free is appended. */
};

/* Gives staged slots to the nodes from below `anchor` down to `node`, which is what
 * kvg_tree_insert_host() answered, or KVG_NODE_NONE.  A window goes to nodes without a host copy of
 * theirs, and may split one where it begins; all of it is freed when the store had less than was
 * staged, or, below another anchor than the root, when it is shorter than a window.  A state goes
 * to `node`.  The frees of all slots not taken are appended.  KVG_EINVAL: a component twice, FULL,
 * a part of a page, or `node` is not below `anchor`. */
KVG_API KVG_MUST_CHECK kvg_err kvg_tree_prefetch_commit(struct kvg_tree *tree,
    kvg_node_id anchor, kvg_node_id node, const struct kvg_tree_staged *staged,
    size_t count, struct kvg_actions *actions, struct kvg_tree_prefetched *out,
    struct kvg_error *error);

KVG_END_DECLS

#endif
