/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* swa.c -- the SWA component: a slot a unit, needed for one window before the end of a match.
 *
 * A match may end at a node when the values before its end cover a window without a hole, or reach
 * back to the root without one:
 *
 *     root -[ SWA ]-[ hole ]-[ SWA 1 ]-[ SWA 2 ]       window 2 tokens, nodes of 1:
 *            ok       no        no        ok
 *
 * Its lock is a segment lock: from the node upwards until a window is covered, tombstones
 * included.  The node where it ends is stamped, and the stamp is what the receipt names; a split
 * moves the stamp to the prefix, so that the receipt stays right.
 *
 * On insert, positions below the request's cursor have lost their window slots already.  They
 * become tombstones; what is above is published by an action, because the slots are found by the
 * allocator's mapping.
 */
#include "tree/swa.h"

static bool swa_usable(const struct kvg_tree *tree, const struct kvi_node *node,
    uint32_t slot, bool device_only, uint64_t *run)
{
    bool has = (kvi_has(node, slot, KVG_TIER_DEVICE) && !kvi_awaits(node, slot)) ||
               (!device_only && kvi_has(node, slot, KVG_TIER_HOST));

    if (!has) {
        *run = 0;
        return tree->options.swa_request_ring &&
               (kvi_backed_up(node) || kvi_on_device(node));
    }
    if (*run < UINT64_MAX - node->length)
        *run += node->length;
    return *run >= tree->options.window;
}

static void swa_refresh(struct kvg_tree *tree, struct kvi_node *node, uint32_t slot)
{
    kvi_list_touch_window(
        tree, slot, node, (uint64_t)tree->options.window + tree->options.page_size);
}

static void swa_finalize_match(struct kvg_tree *tree, const struct kvi_node *best,
    const struct kvi_node *device, uint32_t slot, struct kvg_tree_match *match)
{
    uint64_t aligned = match->full_length - match->full_length % tree->options.page_size;
    uint64_t covered = 0;
    uint64_t hit = 0;

    (void)device;
    match->swa_branching =
        aligned > match->device_length + match->host_length ? (int64_t)aligned : -1;
    for (const struct kvi_node *n = best;
         !kvi_is_root(n) && covered < tree->options.window; n = kvi_parent(tree, n)) {
        if (!kvi_has(n, slot, KVG_TIER_DEVICE)) {
            if (!kvi_has(n, slot, KVG_TIER_HOST))
                break;
            hit += n->length;
        }
        covered += n->length;
    }
    if (hit > match->swa_host_length)
        match->swa_host_length = hit;
}

/* On host only, and free to go. */
static bool belongs_in_host_list(const struct kvi_node *node, uint32_t slot)
{
    return kvi_has(node, slot, KVG_TIER_HOST) && !kvi_has(node, slot, KVG_TIER_DEVICE) &&
           kvi_part(node, slot)->lock[KVG_TIER_HOST] == 0;
}

static uint64_t swa_session_reach(const struct kvg_tree *tree)
{
    return (uint64_t)tree->options.window + tree->options.page_size;
}

static void swa_split(struct kvg_tree *tree, struct kvi_node *prefix,
    struct kvi_node *child, uint32_t slot, uint32_t at)
{
    struct kvi_part *old = kvi_part(child, slot);
    struct kvi_part *new = kvi_part(prefix, slot);

    for (int tier = 0; tier < KVG_TIER_COUNT; tier++) {
        kvi_value_split(tree, &old->value[tier], at, &new->value[tier]);
        new->lock[tier] = old->lock[tier];
        new->uuid[tier] = old->uuid[tier];
        old->uuid[tier] = 0;
    }
    kvi_aux(prefix, slot)->sessions = kvi_aux(child, slot)->sessions;
    if (belongs_in_host_list(prefix, slot)) {
        if (kvi_listed(child, slot, KVG_TIER_HOST))
            kvi_list_add_after(tree, slot, KVG_TIER_HOST, child, prefix);
        else
            kvi_list_add_newest(tree, slot, KVG_TIER_HOST, prefix);
    }
    if (belongs_in_host_list(child, slot) && !kvi_listed(child, slot, KVG_TIER_HOST))
        kvi_list_add_newest(tree, slot, KVG_TIER_HOST, child);
}

/* ---- Insert -------------------------------------------------------------------------------- */

static kvg_err check_cursor(
    const struct kvg_tree *tree, uint64_t cursor, struct kvg_error *error)
{
    if (cursor % tree->options.page_size == 0)
        return KVG_OK;
    return kvi_fail_node(error, KVG_EINVAL, "insert.evicted_length",
        "swa_evicted_seqlen must be page-aligned, got ", cursor, "");
}

static void publish(struct kvg_tree *tree, const struct kvi_node *node)
{
    struct kvg_actions *pending = &tree->insert.pending;
    const struct kvi_value *full = &node->full.value[KVG_TIER_DEVICE];
    struct kvg_action *action = kvi_actions_add(pending, KVG_ACTION_SWA_REBUILD);

    action->component = KVG_COMPONENT_SWA;
    action->node = node->id;
    kvi_actions_add_value(pending, full, 0, full->length);
}

static uint32_t full_span_count(const struct kvi_node *node)
{
    const struct kvi_value *full = &node->full.value[KVG_TIER_DEVICE];

    return kvi_value_span_count(full, 0, full->length);
}

static kvg_err swa_overlap(struct kvg_tree *tree, struct kvi_node **node, uint32_t slot,
    uint32_t matched, uint32_t *consumed_from, struct kvg_error *error)
{
    struct kvi_insert *insert = &tree->insert;
    struct kvg_actions *pending = &insert->pending;
    uint64_t start = insert->total;
    uint64_t end = start + matched;
    uint64_t cursor = insert->params.evicted_length[KVG_COMPONENT_SWA];
    struct kvi_value incoming;
    kvg_err err;

    if (insert->params.prev_prefix_length >= end || kvi_has(*node, slot, KVG_TIER_DEVICE))
        return KVG_OK;
    err = check_cursor(tree, cursor, error);
    if (err != KVG_OK)
        return err;
    uint64_t live = cursor > start ? cursor : start;
    if (live >= end)
        return KVG_OK;
    uint32_t spans =
        full_span_count(*node) + 2 * kvi_insert_span_count(tree, live, end) + 2;
    err = kvi_insert_reserve(tree, 3, spans, 1, error);
    if (err != KVG_OK)
        return err;
    bool locked = (*node)->full.lock[KVG_TIER_DEVICE] != 0;
    if (!locked &&
        kvi_insert_value(tree, live, (uint32_t)(end - live), &incoming) != KVG_OK)
        return kvi_fail(error, KVG_ENOMEM, "tree", "no memory for a value");

    if (live > start)
        kvi_node_split(tree, *node, (uint32_t)(live - start), pending);
    kvi_insert_adopt(tree, slot, live, end);
    struct kvi_value *full = &(*node)->full.value[KVG_TIER_DEVICE];
    if (locked) {
        struct kvg_action *action =
            kvi_actions_add(pending, KVG_ACTION_RECOVER_SWA_WITH_LOCKED_FULL);
        action->component = KVG_COMPONENT_SWA;
        action->node = (*node)->id;
        kvi_actions_add_value(pending, full, 0, full->length);
        kvi_insert_add_spans(tree, live, end, true);
    } else {
        kvi_insert_adopt(tree, 0, live, end);
        kvi_actions_add(pending, KVG_ACTION_FREE_DEVICE_FULL_ONLY);
        kvi_actions_add_value(pending, full, 0, full->length);
        kvi_value_clear(tree, full);
        *full = incoming;
        publish(tree, *node);
    }
    *consumed_from = (uint32_t)(live - start);
    return KVG_OK;
}

static kvg_err swa_unevict(
    struct kvg_tree *tree, struct kvi_node *node, uint32_t slot, struct kvg_error *error)
{
    uint64_t start = tree->insert.total;
    uint64_t end = start + node->length;
    uint64_t cursor = tree->insert.params.evicted_length[KVG_COMPONENT_SWA];
    uint64_t live = cursor > start ? cursor : start;

    if (live >= end)
        return KVG_OK;
    kvg_err err = check_cursor(tree, cursor, error);
    if (err != KVG_OK)
        return err;
    err = kvi_insert_reserve(tree, 2, full_span_count(node), 1, error);
    if (err != KVG_OK)
        return err;
    if (live > start)
        kvi_node_split(tree, node, (uint32_t)(live - start), &tree->insert.pending);
    kvi_insert_adopt(tree, slot, live, end);
    publish(tree, node);
    return KVG_OK;
}

static kvg_err swa_commit(struct kvg_tree *tree, struct kvi_node *target, uint32_t slot,
    bool is_new_leaf, struct kvg_error *error)
{
    struct kvi_insert *insert = &tree->insert;
    uint32_t page = tree->options.page_size;
    uint64_t start = insert->total;
    uint64_t end = start + target->length;
    uint64_t cursor = insert->params.evicted_length[KVG_COMPONENT_SWA];
    uint64_t live = cursor > start ? cursor : start;

    if (insert->params.swa_branching >= 0) {
        struct kvg_tree_key whole = insert->params.key;
        whole.bigram = tree->eagle;
        insert->result.swa_branch_inserted =
            kvg_tree_key_units(&whole) >= (uint64_t)insert->params.swa_branching;
    }
    if (!is_new_leaf || live >= end)
        return KVG_OK;
    kvg_err err = live > start ? check_cursor(tree, cursor, error) : KVG_OK;
    if (err != KVG_OK)
        return err;
    /* Two publications cut the same spans: one more than there are, at most. */
    err = kvi_insert_reserve(tree, 4, full_span_count(target) + 2, 2, error);
    if (err != KVG_OK)
        return err;

    if (live > start)
        kvi_node_split(tree, target, (uint32_t)(live - start), &insert->pending);
    /* A leaf that is longer than the window gives the older part a node of its own, so that it
     * can lose its slots alone. */
    uint64_t tail = ((uint64_t)tree->options.window + page - 1) / page * page;
    if (target->length > tail)
        publish(tree, kvi_node_split(tree, target, (uint32_t)(target->length - tail),
                          &insert->pending));
    publish(tree, target);
    kvi_insert_adopt(tree, slot, live, end);
    return KVG_OK;
}

static bool swa_needs_backup(
    const struct kvg_tree *tree, const struct kvi_node *node, uint32_t slot)
{
    return tree->settings.swa_host_pool && kvi_has(node, slot, KVG_TIER_DEVICE) &&
           !kvi_has(node, slot, KVG_TIER_HOST);
}

/* ---- Locks --------------------------------------------------------------------------------- */

static uint64_t acquire_segment(
    struct kvg_tree *tree, struct kvi_node *node, uint32_t slot, enum kvg_tier tier)
{
    uint64_t covered = 0;

    for (; !kvi_is_root(node); node = node->parent) {
        struct kvi_part *part = kvi_part(node, slot);
        if (tier == KVG_TIER_HOST && part->lock[tier] == 0)
            kvi_list_drop(tree, slot, tier, node);
        kvi_lock_up(tree, node, slot, tier);
        if ((node->flags & (KVI_NODE_DEVICE_LEAF | KVI_NODE_HOST_LEAF)) != 0)
            kvi_leaf_update(tree, node);
        covered += node->length;
        if (covered >= tree->options.window) {
            if (part->uuid[tier] == 0)
                part->uuid[tier] = kvi_uuid_next(tree, KVG_COMPONENT_SWA);
            return part->uuid[tier];
        }
    }
    return 0;
}

/* One node of a release. */
static void release_one(
    struct kvg_tree *tree, struct kvi_node *node, uint32_t slot, enum kvg_tier tier)
{
    kvi_lock_down(tree, node, slot, tier);
    if (kvi_part(node, slot)->lock[tier] != 0)
        return;
    if (tier == KVG_TIER_HOST && belongs_in_host_list(node, slot) &&
        !kvi_listed(node, slot, tier))
        kvi_list_add_newest(tree, slot, tier, node);
    kvi_leaf_update(tree, node);
}

static kvg_err no_boundary(struct kvg_error *error)
{
    return kvi_fail(error, KVG_ESTATE, "receipt", "no entry found for key SWA");
}

static void swa_acquire(struct kvg_tree *tree, struct kvi_node *node, uint32_t slot,
    struct kvg_lock_receipt *receipt)
{
    receipt->uuid[KVG_COMPONENT_SWA] = acquire_segment(tree, node, slot, KVG_TIER_DEVICE);
    receipt->uuid_components |= KVG_COMPONENT_BIT(KVG_COMPONENT_SWA);
}

static kvg_err check_release(const struct kvi_node *node, uint32_t slot,
    enum kvg_tier tier, const struct kvg_lock_receipt *receipt, const char *sentence,
    struct kvg_error *error)
{
    bool host = tier == KVG_TIER_HOST;
    uint32_t known = host ? receipt->host_uuid_components : receipt->uuid_components;
    uint64_t boundary =
        host ? receipt->host_uuid[KVG_COMPONENT_SWA] : receipt->uuid[KVG_COMPONENT_SWA];

    if (kvi_is_root(node))
        return KVG_OK;
    if ((known & KVG_COMPONENT_BIT(KVG_COMPONENT_SWA)) == 0)
        return no_boundary(error);
    const kvg_node_id anchor = node->id;
    for (; !kvi_is_root(node); node = node->parent) {
        const struct kvi_part *part = kvi_part(node, slot);
        if (part->lock[tier] == 0)
            return kvi_fail_node(error, KVG_ESTATE, "receipt", sentence, node->id, "");
        if (boundary != 0 && part->uuid[tier] == boundary)
            return KVG_OK;
    }
    /* A stamp outlives its lock, and its node every lock below it. */
    return boundary == 0 ? KVG_OK
                         : kvi_fail_node(error, KVG_ESTATE, "receipt",
                               "SWA segment boundary is not above node ", anchor, "");
}

static void release_segment(struct kvg_tree *tree, struct kvi_node *node, uint32_t slot,
    enum kvg_tier tier, uint64_t boundary)
{
    for (; !kvi_is_root(node); node = node->parent) {
        release_one(tree, node, slot, tier);
        if (boundary != 0 && kvi_part(node, slot)->uuid[tier] == boundary)
            break;
    }
}

static kvg_err swa_release(struct kvg_tree *tree, struct kvi_node *node, uint32_t slot,
    const struct kvg_lock_receipt *receipt, bool dry_run, struct kvg_error *error)
{
    if (dry_run)
        return check_release(node, slot, KVG_TIER_DEVICE, receipt,
            "SWA segment release hit lock_ref=0 on node ", error);
    release_segment(tree, node, slot, KVG_TIER_DEVICE, receipt->uuid[KVG_COMPONENT_SWA]);
    return KVG_OK;
}

static void swa_acquire_host(struct kvg_tree *tree, struct kvi_node *node, uint32_t slot,
    struct kvg_lock_receipt *receipt)
{
    receipt->host_uuid[KVG_COMPONENT_SWA] =
        acquire_segment(tree, node, slot, KVG_TIER_HOST);
    receipt->host_uuid_components |= KVG_COMPONENT_BIT(KVG_COMPONENT_SWA);
}

static kvg_err swa_release_host(struct kvg_tree *tree, struct kvi_node *node,
    uint32_t slot, const struct kvg_lock_receipt *receipt, bool dry_run,
    struct kvg_error *error)
{
    if (dry_run)
        return check_release(node, slot, KVG_TIER_HOST, receipt,
            "SWA host segment release hit host_lock_ref=0 on node ", error);
    release_segment(
        tree, node, slot, KVG_TIER_HOST, receipt->host_uuid[KVG_COMPONENT_SWA]);
    return KVG_OK;
}

void kvi_swa_evict_device(struct kvg_tree *tree, struct kvi_node *node, uint32_t slot,
    struct kvg_actions *actions)
{
    const struct kvi_value *full = &node->full.value[KVG_TIER_DEVICE];
    struct kvi_value gone;

    struct kvg_action *action =
        kvi_actions_add(actions, KVG_ACTION_FREE_COMPONENT_DEVICE);
    action->component = KVG_COMPONENT_SWA;
    action->node = node->id;
    kvi_actions_add_value(actions, full, 0, full->length);
    kvi_list_drop(tree, slot, KVG_TIER_DEVICE, node);
    kvi_device_value_take(tree, node, slot, &gone);
    kvi_value_clear(tree, &gone);
    if (belongs_in_host_list(node, slot) && !kvi_listed(node, slot, KVG_TIER_HOST))
        kvi_list_add_newest(tree, slot, KVG_TIER_HOST, node);
}

/* Only the deepest node of a path that is on device can be a device leaf. */
kvg_err kvi_swa_release_window(struct kvg_tree *tree, struct kvi_node *node,
    uint32_t slot, const struct kvg_lock_receipt *receipt, struct kvg_actions *actions,
    struct kvg_error *error)
{
    uint64_t boundary = receipt->uuid[KVG_COMPONENT_SWA];
    kvg_err err = check_release(node, slot, KVG_TIER_DEVICE, receipt,
        "SWA window release hit lock_ref=0 on node ", error);

    if (err != KVG_OK)
        return err;
    struct kvi_node *deepest = node;
    while (kvi_evicted(deepest))
        deepest = kvi_parent(tree, deepest);
    if (kvi_actions_reserve(actions, 1, full_span_count(deepest), 0) != KVG_OK)
        return kvi_fail(error, KVG_ENOMEM, "unlock", "no memory for an action");
    for (; !kvi_is_root(node); node = node->parent) {
        release_one(tree, node, slot, KVG_TIER_DEVICE);
        if (kvi_part(node, slot)->lock[KVG_TIER_DEVICE] == 0 &&
            kvi_has(node, slot, KVG_TIER_DEVICE) &&
            (node->flags & KVI_NODE_DEVICE_LEAF) != 0)
            kvi_swa_evict_device(tree, node, slot, actions);
        if (boundary != 0 && kvi_part(node, slot)->uuid[KVG_TIER_DEVICE] == boundary)
            break;
    }
    return KVG_OK;
}

const struct kvi_component kvi_component_swa = {
    .type = KVG_COMPONENT_SWA,
    .internal_rank = 1,
    .usable = swa_usable,
    .refresh_match = swa_refresh,
    .refresh_insert = swa_refresh,
    .finalize_match = swa_finalize_match,
    .session_reach = swa_session_reach,
    .split = swa_split,
    .overlap = swa_overlap,
    .unevict = swa_unevict,
    .commit = swa_commit,
    .needs_backup = swa_needs_backup,
    .acquire = swa_acquire,
    .release = swa_release,
    .acquire_host = swa_acquire_host,
    .release_host = swa_release_host,
};
