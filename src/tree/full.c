/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* full.c -- the FULL component: a slot a unit, needed from the root on.
 *
 * Its lock is a path lock: every node up to the root counts.  Below may hang nodes whose value is
 * evicted; they count too, without moving any size.
 *
 * Its host lock is on one node at first.  A stamp marks it, and splits make of it a run of
 * fragments whose oldest carries the stamp: the release walks up to there.
 */
#include "tree/tree.h"

static bool full_usable(const struct kvg_tree *tree, const struct kvi_node *node,
    uint32_t slot, bool device_only, uint64_t *run)
{
    (void)tree;
    (void)run;
    return kvi_has(node, slot, KVG_TIER_DEVICE) ||
           (!device_only && kvi_has(node, slot, KVG_TIER_HOST));
}

static void full_refresh(struct kvg_tree *tree, struct kvi_node *node, uint32_t slot)
{
    (void)tree;
    (void)node;
    (void)slot;
}

static void full_finalize_match(struct kvg_tree *tree, const struct kvi_node *best,
    const struct kvi_node *device, uint32_t slot, struct kvg_tree_match *match)
{
    uint64_t length = 0;

    for (const struct kvi_node *n = best; n != device && !kvi_is_root(n);
         n = kvi_parent(tree, n))
        length += kvi_part(n, slot)->value[KVG_TIER_HOST].length;
    if (length > match->host_length)
        match->host_length = length;
}

static uint64_t full_session_reach(const struct kvg_tree *tree)
{
    (void)tree;
    return UINT64_MAX;
}

static void full_split(struct kvg_tree *tree, struct kvi_node *prefix,
    struct kvi_node *child, uint32_t slot, uint32_t at)
{
    struct kvi_part *old = kvi_part(child, slot);
    struct kvi_part *new = kvi_part(prefix, slot);

    for (int tier = 0; tier < KVG_TIER_COUNT; tier++) {
        kvi_value_split(tree, &old->value[tier], at, &new->value[tier]);
        new->lock[tier] = old->lock[tier];
    }
    new->uuid[KVG_TIER_HOST] = old->uuid[KVG_TIER_HOST];
    old->uuid[KVG_TIER_HOST] = 0;
    prefix->sessions = child->sessions;
}

static kvg_err full_overlap(struct kvg_tree *tree, struct kvi_node **node, uint32_t slot,
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

static kvg_err full_unevict(
    struct kvg_tree *tree, struct kvi_node *node, uint32_t slot, struct kvg_error *error)
{
    (void)tree;
    (void)node;
    (void)slot;
    (void)error;
    return KVG_OK;
}

static kvg_err full_commit(struct kvg_tree *tree, struct kvi_node *target, uint32_t slot,
    bool is_new_leaf, struct kvg_error *error)
{
    (void)tree;
    (void)target;
    (void)slot;
    (void)is_new_leaf;
    (void)error;
    return KVG_OK;
}

static bool full_needs_backup(
    const struct kvg_tree *tree, const struct kvi_node *node, uint32_t slot)
{
    (void)tree;
    (void)node;
    (void)slot;
    return false;
}

/* ---- Locks --------------------------------------------------------------------------------- */

static void full_acquire(struct kvg_tree *tree, struct kvi_node *node, uint32_t slot,
    struct kvg_lock_receipt *receipt)
{
    uint64_t moved = 0;

    for (; !kvi_is_root(node); node = node->parent) {
        struct kvi_part *part = kvi_part(node, slot);
        if (part->lock[KVG_TIER_DEVICE]++ != 0)
            continue;
        node->locked_parts[KVG_TIER_DEVICE]++;
        moved += kvi_full_on_device(node) ? node->length : 0;
        if ((node->flags & (KVI_NODE_DEVICE_LEAF | KVI_NODE_HOST_LEAF)) != 0)
            kvi_leaf_update(tree, node);
    }
    tree->evictable[slot] -= moved;
    tree->protect[slot] += moved;
    receipt->delta += moved;
}

/* Releases the path from `node` up to, but not, `end`; the node where that cannot be, or NULL. */
static struct kvi_node *release_path(struct kvg_tree *tree, struct kvi_node *node,
    const struct kvi_node *end, uint32_t slot)
{
    struct kvi_node *stuck = NULL;
    uint64_t moved = 0;

    for (; node != end; node = node->parent) {
        struct kvi_part *part = kvi_part(node, slot);
        if (part->lock[KVG_TIER_DEVICE] == 0) {
            stuck = node;
            break;
        }
        if (--part->lock[KVG_TIER_DEVICE] != 0)
            continue;
        node->locked_parts[KVG_TIER_DEVICE]--;
        moved += kvi_full_on_device(node) ? node->length : 0;
        /* A node with children on device is no leaf, whatever its locks. */
        if (node->device_child_count == 0)
            kvi_leaf_update(tree, node);
    }
    tree->protect[slot] -= moved;
    tree->evictable[slot] += moved;
    return stuck;
}

/* The only component that is not tried first: a path is long, and what was released can be taken
 * back. */
static kvg_err full_release(struct kvg_tree *tree, struct kvi_node *node, uint32_t slot,
    const struct kvg_lock_receipt *receipt, bool dry_run, struct kvg_error *error)
{
    (void)receipt;
    if (dry_run)
        return KVG_OK;
    struct kvi_node *root = kvi_node_at(tree, tree->root);
    struct kvi_node *stuck = release_path(tree, node, root, slot);
    if (stuck == NULL)
        return KVG_OK;
    struct kvg_lock_receipt unused = {0};
    kvg_node_id id = stuck->id;
    /* Take back: acquiring from `node` up counts one too many above; release that part. */
    full_acquire(tree, node, slot, &unused);
    release_path(tree, stuck, root, slot);
    return kvi_fail_node(error, KVG_ESTATE, "receipt",
        "FULL segment release hit lock_ref=0 on node ", id, "");
}

static void full_acquire_host(struct kvg_tree *tree, struct kvi_node *node, uint32_t slot,
    struct kvg_lock_receipt *receipt)
{
    struct kvi_part *part = kvi_part(node, slot);

    if (part->value[KVG_TIER_HOST].length == 0 && !tree->settings.write_back)
        return;
    if (part->uuid[KVG_TIER_HOST] == 0)
        part->uuid[KVG_TIER_HOST] = kvi_uuid_next(tree, KVG_COMPONENT_FULL);
    receipt->host_uuid_components |= KVG_COMPONENT_BIT(KVG_COMPONENT_FULL);
    receipt->host_uuid[KVG_COMPONENT_FULL] = part->uuid[KVG_TIER_HOST];
    kvi_lock_up(tree, node, slot, KVG_TIER_HOST);
    kvi_leaf_update(tree, node);
}

static kvg_err full_release_host(struct kvg_tree *tree, struct kvi_node *node,
    uint32_t slot, const struct kvg_lock_receipt *receipt, bool dry_run,
    struct kvg_error *error)
{
    uint64_t boundary = receipt->host_uuid[KVG_COMPONENT_FULL];

    if ((receipt->host_uuid_components & KVG_COMPONENT_BIT(KVG_COMPONENT_FULL)) == 0)
        return KVG_OK;
    kvg_node_id anchor = node->id;
    for (; node != NULL; node = kvi_parent(tree, node)) {
        struct kvi_part *part = kvi_part(node, slot);
        if (part->value[KVG_TIER_HOST].length == 0 && !tree->settings.write_back)
            return KVG_OK;
        if (dry_run && part->lock[KVG_TIER_HOST] == 0)
            return kvi_fail_node(error, KVG_ESTATE, "receipt",
                "Full host segment release hit host_lock_ref=0 on node ", node->id, "");
        if (!dry_run) {
            kvi_lock_down(tree, node, slot, KVG_TIER_HOST);
            kvi_leaf_update(tree, node);
        }
        if (part->uuid[KVG_TIER_HOST] == boundary)
            return KVG_OK;
    }
    char message[sizeof(error->message)];
    struct kvi_text text;
    kvi_text_init(&text, message, sizeof(message));
    kvi_text_str(&text, "Full host lock boundary ");
    kvi_text_u64(&text, boundary);
    kvi_text_str(&text, " is not an ancestor of receipt anchor ");
    kvi_text_u64(&text, anchor);
    return kvi_fail(error, KVG_ESTATE, "receipt", message);
}

const struct kvi_component kvi_component_full = {
    .type = KVG_COMPONENT_FULL,
    .internal_rank = 2,
    .usable = full_usable,
    .refresh_match = full_refresh,
    .refresh_insert = full_refresh,
    .finalize_match = full_finalize_match,
    .session_reach = full_session_reach,
    .split = full_split,
    .overlap = full_overlap,
    .unevict = full_unevict,
    .commit = full_commit,
    .needs_backup = full_needs_backup,
    .acquire = full_acquire,
    .release = full_release,
    .acquire_host = full_acquire_host,
    .release_host = full_release_host,
};
