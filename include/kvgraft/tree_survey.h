/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* tree_survey.h -- reading a whole tree: walks, totals, orders, and notes of nodes to be saved.
 *
 * Nothing here changes what a tree holds, how recent it is or what is locked.  For one node at a
 * time there are the calls of tree.h under "Looking at it".
 *
 * Threads, errors, units and spans: as in tree.h.  A *walk* visits parents before children and
 * children in the order of their first insertion; it must start again when the tree has changed.
 */
#ifndef KVGRAFT_TREE_SURVEY_H
#define KVGRAFT_TREE_SURVEY_H

#include <kvgraft/tree.h>

KVG_BEGIN_DECLS

/* ---- Walks --------------------------------------------------------------------------------- */

/* The node after `node` in a walk that begins with KVG_NODE_NONE: the root, then all others.
 * KVG_NODE_NONE at the end, and for a node that is not there. */
KVG_API kvg_node_id kvg_tree_walk_next(const struct kvg_tree *tree, kvg_node_id node);

/* Which slots a canary looks at.  A node is held by a FULL lock; with window_resident_only,
 * which means nothing in a tree without SWA, by an SWA lock. */
struct kvg_tree_canary {
    bool unlocked_only;        /* Of nodes that nobody holds. */
    bool window_resident_only; /* Of nodes with a window on device. */
    kvg_node_id node;          /* Where the walk stands: begin with zeroes. */
    uint32_t at;
};

/* Consecutive FULL slots on device that hold consecutive positions of a prompt. */
struct kvg_tree_canary_run {
    kvg_node_id node;
    struct kvg_span slots;
    uint64_t position; /* Of the first unit, from the prompt's beginning. */
    bool has_previous; /* The unit before the first has a slot: */
    struct kvg_span
        previous; /* that one, of length 1; within a run it is the slot before. */
};

/* The next run; false at the end.  A canary compares what the slots hold with what it remembers of
 * them, so slots whose bytes a load has yet to bring are left out.  Nodes left out count for the
 * positions below them, and as predecessors. */
KVG_API bool kvg_tree_canary_next(const struct kvg_tree *tree,
    struct kvg_tree_canary *canary, struct kvg_tree_canary_run *out);

/* ---- Totals -------------------------------------------------------------------------------- */

/* Units (MAMBA: slots) with a value on device: of FULL, and of all other components together.
 * O(1). */
KVG_API uint64_t kvg_tree_total_full(const struct kvg_tree *tree);
KVG_API uint64_t kvg_tree_total_others(const struct kvg_tree *tree);

/* The spans of one component on one tier, of all nodes, in walk order; at most `span_max` are
 * written, and how many there are is returned. */
KVG_API size_t kvg_tree_all_values(const struct kvg_tree *tree, uint32_t component,
    enum kvg_tier tier, struct kvg_span *spans, size_t span_max);

/* The tokens that those FULL slots were made for, one a slot, in the same order; of a pair, its
 * first.  At most `token_max` are written, and how many there are is returned. */
KVG_API size_t kvg_tree_all_tokens(
    const struct kvg_tree *tree, enum kvg_tier tier, uint32_t *tokens, size_t token_max);

/* ---- Keys ---------------------------------------------------------------------------------- */

/* The page keys above a node: those of its ancestors up to the first that has none, from the top
 * down.  At most `key_max` are written, and how many there are is returned; 0 for the root and
 * for a node that is not there. */
KVG_API size_t kvg_tree_prefix_page_keys(
    const struct kvg_tree *tree, kvg_node_id node, struct kvg_key *keys, size_t key_max);

/* The nodes that a backup of `node` would name now, ancestors first: it and, under write-through,
 * those above it that are neither backed up nor stored nor, with the external store, being written.
 * At most `node_max` are written, and how many there are is returned; 0 for the root and for a node
 * that is not there. */
KVG_API size_t kvg_tree_backup_nodes(
    const struct kvg_tree *tree, kvg_node_id node, kvg_node_id *nodes, size_t node_max);

/* The rotation base with which the pages of a node were inserted; -1: none, or no such node. */
KVG_API int64_t kvg_tree_rotation_base_of(const struct kvg_tree *tree, kvg_node_id node);

/* ---- Order --------------------------------------------------------------------------------- */

#define KVG_TREE_ORDER_MAX (1u << 24) /* Requests in one call. */

/* An order of requests, of which nodes[i] is the i-th's, that keeps those with a long common prefix
 * together: depth first, the child with more requests in it first (ties: the one inserted first), a
 * node's own after those of its children, equal ones as they came.  order[] gets the indices, the
 * first to go first.  Costs what the paths to the root cost, not the tree; KVG_ENOENT names a node
 * that is not there, KVG_ELIMIT: more than KVG_TREE_ORDER_MAX. */
KVG_API KVG_MUST_CHECK kvg_err kvg_tree_order_requests(struct kvg_tree *tree,
    const kvg_node_id *nodes, size_t count, uint32_t *order, struct kvg_error *error);

/* ---- Notes --------------------------------------------------------------------------------- */

/* What has to be remembered of a node while its bytes are on their way to a store through memory
 * that the tree knows nothing of: its own copy, which a split, an eviction or a reset does not
 * reach. */
struct kvg_tree_note {
    kvg_node_id node;
    uint64_t length;                 /* Units. */
    struct kvg_tree_key key;         /* The node's, not that of the whole path. */
    const struct kvg_key *page_keys; /* NULL: the node had none. */
    size_t page_key_count;
    const struct kvg_alloc *alloc;
    size_t bytes; /* Of the whole. */
};

/* Notes a node.  KVG_EINVAL for the root, KVG_ESTATE if FULL is not on device. */
KVG_API KVG_MUST_CHECK kvg_err kvg_tree_note_new(const struct kvg_tree *tree,
    kvg_node_id node, const struct kvg_alloc *alloc, struct kvg_tree_note **out,
    struct kvg_error *error);
KVG_API void kvg_tree_note_free(struct kvg_tree_note *note); /* NULL is allowed. */

/* What stands above a noted node now. */
struct kvg_tree_note_place {
    kvg_node_id parent;
    bool parent_is_root;
    bool has_parent_key;
    struct kvg_key parent_key; /* The page key before the node's first. */
};

/* Does the note still describe its node?  KVG_ENOENT: the node has gone; KVG_ESTATE: FULL left the
 * device, or a split took a part of it. */
KVG_API KVG_MUST_CHECK kvg_err kvg_tree_note_check(const struct kvg_tree *tree,
    const struct kvg_tree_note *note, struct kvg_tree_note_place *out,
    struct kvg_error *error);

KVG_END_DECLS

#endif
