/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* leaf.c -- which FULL leaf goes first.
 *
 * A leaf has a mark, one for those on device and one for those on host only, and an entry on the
 * shelves of its tier (shelf.c), which holds the key by which it was placed.
 *
 * Touching a node is far more frequent than evicting one, so an entry whose key rose is not
 * moved: it may be too near the front, never too far from it (T19), and is corrected when it
 * comes up.  Only under mru and tlru can a key fall; then a touch gives the node a new entry,
 * and the old one is a ghost, as is that of a deleted node; a session's end lowers keys too.  A
 * node that ceases to be a leaf keeps its entry until that comes up, because most such nodes are
 * locked for the length of a request and come back.
 *
 * Settled duplicates are a list in the order of their birth.
 */
#include "tree/shelf.h"

bool kvi_is_device_leaf(const struct kvg_tree *tree, const struct kvi_node *node)
{
    (void)tree;
    return node->device_child_count == 0 && node->locked_parts[KVG_TIER_DEVICE] == 0 &&
           kvi_full_on_device(node) && !kvi_awaits(node, 0) &&
           (node->flags & KVI_NODE_ACK) == 0 && !kvi_is_root(node);
}

bool kvi_is_host_leaf(const struct kvg_tree *tree, const struct kvi_node *node)
{
    (void)tree;
    return node->child_count == 0 && node->locked_parts[KVG_TIER_DEVICE] == 0 &&
           node->locked_parts[KVG_TIER_HOST] == 0 && !kvi_full_on_device(node) &&
           kvi_has(node, 0, KVG_TIER_HOST) && !kvi_is_root(node);
}

uint64_t kvi_policy_rank(const struct kvg_tree *tree, const struct kvi_node *node)
{
    const struct kvg_tree_options *options = &tree->options;
    uint64_t budget;

    switch (options->policy) {
    case KVG_POLICY_LFU:
        return node->hits;
    case KVG_POLICY_FIFO:
        return node->creation;
    case KVG_POLICY_MRU:
        return ~node->last_access;
    case KVG_POLICY_FILO:
        return ~node->creation;
    case KVG_POLICY_PRIORITY:
        return (uint64_t)node->priority ^ (UINT64_C(1) << 63);
    case KVG_POLICY_SLRU:
        return node->hits >= options->slru_hits ? 1 : 0;
    case KVG_POLICY_TLRU:
        budget = node->history + options->tlru_next_estimate;
        budget = budget > options->tlru_threshold ? budget - options->tlru_threshold : 0;
        return node->depth - node->length >= budget ? 0 : 1;
    case KVG_POLICY_LRU:
    case KVG_POLICY_COUNT:
        break;
    }
    return node->last_access;
}

/* Leaves that no session covers go first, then those that fewest frontiers cover; the policy
 * decides among equals.  Under policies whose ranks are times there are no further ties. */
static struct kvi_leaf_key session_key(
    const struct kvg_tree *tree, const struct kvi_node *node)
{
    const int64_t limit = INT32_MAX;
    uint64_t rank = kvi_policy_rank(tree, node);
    uint64_t count = node->sessions;

    switch (tree->options.policy) {
    case KVG_POLICY_PRIORITY:
        rank = node->priority > limit    ? UINT32_MAX
               : node->priority < -limit ? 0
                                         : (uint32_t)node->priority ^ (UINT32_C(1) << 31);
        break;
    case KVG_POLICY_LFU:
    case KVG_POLICY_SLRU:
    case KVG_POLICY_TLRU:
        break;
    default:
        return (struct kvi_leaf_key){count, rank};
    }
    return (struct kvi_leaf_key){count << 32 | rank, node->last_access};
}

struct kvi_leaf_key kvi_leaf_key(const struct kvg_tree *tree, const struct kvi_node *node)
{
    if (tree->options.sessions)
        return session_key(tree, node);
    return (struct kvi_leaf_key){
        kvi_policy_rank(tree, node), tree->ranks_differ ? 0 : node->last_access};
}

/* ---- Marks --------------------------------------------------------------------------------- */

static void set_mark(struct kvg_tree *tree, struct kvi_node *node, enum kvg_tier tier,
    uint16_t mark, bool is_leaf)
{
    struct kvi_shelves *shelves = &tree->shelves[tier];

    if (is_leaf == ((node->flags & mark) != 0))
        return;
    if (!is_leaf) {
        node->flags &= (uint16_t)~mark;
        shelves->leaf_count--;
        return;
    }
    node->flags |= mark;
    shelves->leaf_count++;
    if (!kvi_placed(node, tier) &&
        (tier == KVG_TIER_HOST || (node->flags & KVI_NODE_POPPED) == 0))
        kvi_shelf_add(tree, tier, node);
}

void kvi_leaf_update(struct kvg_tree *tree, struct kvi_node *node)
{
    set_mark(tree, node, KVG_TIER_DEVICE, KVI_NODE_DEVICE_LEAF,
        kvi_is_device_leaf(tree, node));
    if (tree->has_host_values)
        set_mark(
            tree, node, KVG_TIER_HOST, KVI_NODE_HOST_LEAF, kvi_is_host_leaf(tree, node));
}

void kvi_leaf_touched(struct kvg_tree *tree, struct kvi_node *node)
{
    if (tree->rank_can_fall)
        kvi_leaf_fell(tree, node);
}

void kvi_leaf_fell(struct kvg_tree *tree, struct kvi_node *node)
{
    static const uint16_t marks[KVG_TIER_COUNT] = {
        KVI_NODE_DEVICE_LEAF, KVI_NODE_HOST_LEAF};

    for (enum kvg_tier tier = 0; tier < KVG_TIER_COUNT; tier++) {
        if (!kvi_placed(node, tier))
            continue;
        kvi_shelf_drop(tree, tier, node);
        if ((node->flags & marks[tier]) != 0)
            kvi_shelf_add(tree, tier, node);
    }
}

void kvi_leaf_forget(struct kvg_tree *tree, struct kvi_node *node)
{
    for (enum kvg_tier tier = 0; tier < KVG_TIER_COUNT; tier++) {
        if (kvi_placed(node, tier))
            kvi_shelf_drop(tree, tier, node);
    }
    if (node->flags & KVI_NODE_DEVICE_LEAF)
        tree->shelves[KVG_TIER_DEVICE].leaf_count--;
    if (node->flags & KVI_NODE_HOST_LEAF)
        tree->shelves[KVG_TIER_HOST].leaf_count--;
    node->flags &= (uint16_t) ~(KVI_NODE_DEVICE_LEAF | KVI_NODE_HOST_LEAF);
    kvi_walk_forget(tree, node);
}

struct kvi_node *kvi_leaf_first(struct kvg_tree *tree, enum kvg_tier tier)
{
    return kvi_shelf_first(tree, tier);
}

void kvi_leaf_pop(struct kvg_tree *tree, struct kvi_node *node)
{
    kvi_shelf_pop(tree, KVG_TIER_DEVICE, node);
    node->flags |= KVI_NODE_POPPED;
    node->walk_next = tree->walks[0].popped;
    tree->walks[0].popped = kvi_ref_of(node);
}

void kvi_leaf_restore(struct kvg_tree *tree, struct kvi_node *node)
{
    node->flags &= (uint16_t)~KVI_NODE_POPPED;
    if ((node->flags & KVI_NODE_DEVICE_LEAF) != 0 && !kvi_placed(node, KVG_TIER_DEVICE))
        kvi_shelf_add(tree, KVG_TIER_DEVICE, node);
}

void kvi_walk_forget(struct kvg_tree *tree, struct kvi_node *node)
{
    kvi_ref *link = &tree->walks[0].popped;

    if ((node->flags & KVI_NODE_POPPED) == 0)
        return;
    /* Nearly always the first: a leaf is evicted right after the walk has returned it. */
    while (*link != kvi_ref_of(node))
        link = &kvi_node_at(tree, *link)->walk_next;
    *link = node->walk_next;
    node->flags &= (uint16_t)~KVI_NODE_POPPED;
}

/* ---- Settled duplicates -------------------------------------------------------------------- */

void kvi_duplicate_forget(struct kvg_tree *tree, struct kvi_node *node)
{
    if ((node->flags & KVI_NODE_DUPLICATE) == 0)
        return;
    if (node->duplicate_previous != 0)
        kvi_node_at(tree, node->duplicate_previous)->duplicate_next =
            node->duplicate_next;
    else
        tree->duplicate_first = node->duplicate_next;
    if (node->duplicate_next != 0)
        kvi_node_at(tree, node->duplicate_next)->duplicate_previous =
            node->duplicate_previous;
    else
        tree->duplicate_last = node->duplicate_previous;
    node->duplicate_next = 0;
    node->duplicate_previous = 0;
    node->flags &= (uint16_t)~KVI_NODE_DUPLICATE;
    tree->duplicate_count--;
}

/* Only ever adds: an entry that stopped being one is dropped by whoever meets it. */
void kvi_duplicate_update(struct kvg_tree *tree, struct kvi_node *node)
{
    kvi_ref ref = kvi_ref_of(node);

    if ((node->flags & KVI_NODE_DUPLICATE) != 0 || kvi_is_root(node) ||
        !kvi_has(node, 0, KVG_TIER_DEVICE) || !kvi_has(node, 0, KVG_TIER_HOST) ||
        node->pending_write != KVG_NODE_NONE || node->pending_load != KVG_NODE_NONE)
        return;
    node->flags |= KVI_NODE_DUPLICATE;
    node->duplicate_previous = tree->duplicate_last;
    node->duplicate_next = 0;
    if (tree->duplicate_last != 0)
        kvi_node_at(tree, tree->duplicate_last)->duplicate_next = ref;
    else
        tree->duplicate_first = ref;
    tree->duplicate_last = ref;
    tree->duplicate_count++;
}
