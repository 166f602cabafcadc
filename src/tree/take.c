/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* take.c -- how a value goes, and what goes with it.
 *
 * Taking one component's value cascades by rank.  On a leaf all components rank alike, so all go.
 * On an internal node FULL ranks 2, SWA 1, MAMBA 0, and what ranks at or below the trigger goes:
 *
 *     trigger     MAMBA       SWA             FULL (leaves only)
 *     also goes   nothing     MAMBA           everything
 *
 * A component of equal or higher rank is spared when it is locked, or when a session covers it and
 * not the trigger; a locked one of lower rank is a mistake of whoever evicts, and refused before
 * anything changes.
 *
 * A deleted node may leave ancestors that have nothing any more (FULL on no tier, no children);
 * they go too.
 */
#include "tree/evict.h"

#include "tree/record.h"
#include "tree/swa.h"

/* Spans that a node's values have, on both tiers; SWA's device free is named by FULL spans. */
static uint64_t spans_of(const struct kvg_tree *tree, const struct kvi_node *node)
{
    const struct kvi_value *full = &node->full.value[KVG_TIER_DEVICE];
    uint64_t spans = kvi_value_span_count(full, 0, full->length);

    for (uint32_t slot = 0; slot < tree->part_count; slot++) {
        for (int tier = 0; tier < KVG_TIER_COUNT; tier++) {
            const struct kvi_value *value = &kvi_part(node, slot)->value[tier];
            spans += kvi_value_span_count(value, 0, value->length);
        }
    }
    return spans;
}

kvg_err kvi_evict_reserve(struct kvg_tree *tree, struct kvi_node *node,
    struct kvg_actions *actions, struct kvg_error *error)
{
    uint64_t spans = spans_of(tree, node);
    uint64_t items = 2 * tree->part_count;

    for (const struct kvi_node *n = kvi_parent(tree, node);
         n != NULL && n->child_count == 1 && kvi_evicted(n); n = kvi_parent(tree, n)) {
        spans += spans_of(tree, n);
        items += 2 * tree->part_count;
    }
    if (spans > UINT32_MAX || items > UINT32_MAX ||
        kvi_actions_reserve(actions, (uint32_t)items, (uint32_t)spans, 0) != KVG_OK)
        return kvi_fail(error, KVG_ENOMEM, "evict", "no memory for actions");
    return kvi_record_prepare(tree, node, error);
}

static void add_free(struct kvg_tree *tree, const struct kvi_node *node, uint32_t slot,
    enum kvg_tier tier, struct kvg_actions *actions)
{
    const struct kvi_value *value = &kvi_part(node, slot)->value[tier];
    struct kvg_action *action = kvi_actions_add(
        actions, tier == KVG_TIER_DEVICE ? KVG_ACTION_FREE_COMPONENT_DEVICE
                                         : KVG_ACTION_FREE_COMPONENT_HOST);

    action->component = tree->components[slot]->type;
    action->node = node->id;
    kvi_actions_add_value(actions, value, 0, value->length);
}

static void take_device(struct kvg_tree *tree, struct kvi_node *node, uint32_t slot,
    struct kvg_actions *actions)
{
    struct kvi_value gone;

    if (tree->components[slot]->type == KVG_COMPONENT_SWA) {
        kvi_swa_evict_device(tree, node, slot, actions);
        return;
    }
    add_free(tree, node, slot, KVG_TIER_DEVICE, actions);
    if (slot == 0)
        return; /* See kvi_full_clear(). */
    kvi_list_drop(tree, slot, KVG_TIER_DEVICE, node);
    kvi_device_value_take(tree, node, slot, &gone);
    kvi_value_clear(tree, &gone);
    if (kvi_has(node, slot, KVG_TIER_HOST) &&
        kvi_part(node, slot)->lock[KVG_TIER_HOST] == 0 &&
        !kvi_listed(node, slot, KVG_TIER_HOST))
        kvi_list_add_newest(tree, slot, KVG_TIER_HOST, node);
}

void kvi_take_part(struct kvg_tree *tree, struct kvi_node *node, uint32_t slot,
    enum kvg_tier tier, struct kvg_actions *actions, struct kvg_tree_evicted *out)
{
    struct kvi_value *value = &kvi_part(node, slot)->value[tier];

    if (value->length == 0)
        return;
    out->evicted[tree->components[slot]->type] += value->length;
    if (tier == KVG_TIER_DEVICE) {
        if (slot == 0 && !kvi_backed_up(node))
            out->unbacked += value->length;
        take_device(tree, node, slot, actions);
        return;
    }
    add_free(tree, node, slot, tier, actions);
    kvi_list_drop(tree, slot, tier, node);
    kvi_value_clear(tree, value);
}

void kvi_full_clear(struct kvg_tree *tree, struct kvi_node *node)
{
    struct kvi_value gone;

    if (!kvi_has(node, 0, KVG_TIER_DEVICE))
        return;
    kvi_device_value_take(tree, node, 0, &gone);
    kvi_value_clear(tree, &gone);
}

/* ---- Cascade ------------------------------------------------------------------------------- */

static bool is_leaf(const struct kvi_node *node, enum kvg_tier tier)
{
    return (node->flags & (tier == KVG_TIER_DEVICE ? KVI_NODE_DEVICE_LEAF
                                                   : KVI_NODE_HOST_LEAF)) != 0;
}

/* Does `other` go when `slot` goes, locks aside? */
static bool is_reached(const struct kvg_tree *tree, const struct kvi_node *node,
    uint32_t slot, uint32_t other, enum kvg_tier tier)
{
    return other != slot && kvi_has(node, other, tier) &&
           (is_leaf(node, tier) || tree->components[other]->internal_rank <=
                                       tree->components[slot]->internal_rank);
}

/* Is `other` spared because a session covers it, and `slot` not? */
static bool outlives(const struct kvg_tree *tree, const struct kvi_node *node,
    uint32_t slot, uint32_t other)
{
    return tree->components[other]->internal_rank >=
               tree->components[slot]->internal_rank &&
           kvi_in_session(node, other) && !kvi_in_session(node, slot);
}

bool kvi_may_go_whole(
    const struct kvg_tree *tree, const struct kvi_node *node, uint32_t slot)
{
    for (uint32_t other = 0; other < tree->part_count; other++) {
        if (outlives(tree, node, slot, other))
            return false;
    }
    return true;
}

kvg_err kvi_cascade_check(const struct kvg_tree *tree, const struct kvi_node *node,
    uint32_t slot, enum kvg_tier tier, struct kvg_error *error)
{
    for (uint32_t other = 0; other < tree->part_count; other++) {
        const struct kvi_component *component = tree->components[other];
        if (is_reached(tree, node, slot, other, tier) &&
            component->internal_rank < tree->components[slot]->internal_rank &&
            kvi_part(node, other)->lock[tier] != 0)
            return kvi_fail_node(error, KVG_ESTATE, "evict",
                "the cascade meets a locked component on node ", node->id, "");
    }
    return KVG_OK;
}

void kvi_take_with_cascade(struct kvg_tree *tree, struct kvi_node *node, uint32_t slot,
    enum kvg_tier tier, struct kvg_actions *actions, struct kvg_tree_evicted *out)
{
    bool reached[KVI_PARTS_MAX];

    for (uint32_t other = 0; other < tree->part_count; other++)
        reached[other] = is_reached(tree, node, slot, other, tier) &&
                         kvi_part(node, other)->lock[tier] == 0 &&
                         !outlives(tree, node, slot, other);
    kvi_take_part(tree, node, slot, tier, actions, out);
    for (uint32_t other = 0; other < tree->part_count; other++) {
        if (reached[other])
            kvi_take_part(tree, node, other, tier, actions, out);
    }
    if (tier == KVG_TIER_DEVICE && (slot == 0 || reached[0]))
        kvi_full_clear(tree, node);
    kvi_leaf_update(tree, node);
}

/* ---- Deletion ------------------------------------------------------------------------------ */

/* Unlinks and frees a node whose values are gone. */
static void delete_node(struct kvg_tree *tree, struct kvi_node *node)
{
    struct kvi_node *parent = kvi_parent(tree, node);

    KVI_ASSERT(node->child_count == 0);
    if (node->first_frontier != 0)
        kvi_sessions_leave(tree, node);
    kvi_blocks_trim(tree, node);
    kvi_child_unlink(tree, node);
    kvi_node_free(tree, node);
    kvi_leaf_update(tree, parent);
    tree->stats.evicted_nodes++;
}

void kvi_delete_leaf(struct kvg_tree *tree, struct kvi_node *node, enum kvg_tier counted,
    struct kvg_actions *actions, struct kvg_tree_evicted *out)
{
    struct kvg_tree_evicted uncounted = {0};

    for (enum kvg_tier tier = 0; tier < KVG_TIER_COUNT; tier++) {
        for (uint32_t slot = 0; slot < tree->part_count; slot++)
            kvi_take_part(
                tree, node, slot, tier, actions, tier == counted ? out : &uncounted);
    }
    kvi_full_clear(tree, node);
    delete_node(tree, node);
}

void kvi_clean_up_ancestors(struct kvg_tree *tree, struct kvi_node *node,
    struct kvg_actions *actions, struct kvg_tree_evicted *out)
{
    while (!kvi_is_root(node) && node->child_count == 0) {
        if (node->locked_parts[KVG_TIER_DEVICE] != 0 ||
            node->locked_parts[KVG_TIER_HOST] != 0)
            return;
        kvi_leaf_update(tree, node);
        if (kvi_has(node, 0, KVG_TIER_DEVICE))
            return;
        for (uint32_t slot = 1; slot < tree->part_count; slot++)
            kvi_take_part(tree, node, slot, KVG_TIER_DEVICE, actions, out);
        if (kvi_has(node, 0, KVG_TIER_HOST)) {
            kvi_leaf_update(tree, node);
            return;
        }
        struct kvg_tree_evicted uncounted = {0};
        for (uint32_t slot = 1; slot < tree->part_count; slot++)
            kvi_take_part(tree, node, slot, KVG_TIER_HOST, actions, &uncounted);
        struct kvi_node *parent = kvi_parent(tree, node);
        delete_node(tree, node);
        node = parent;
    }
}
