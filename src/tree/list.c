/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* list.c -- recency lists of components, one a tier.
 *
 *     newest <-> ... <-> oldest        `newer` points left, `older` right
 *
 *     [ covered by a session ] middle [ the others ]        each part newest first
 *
 * Nodes that a session covers go last: "newest" means the beginning of the node's own part.
 * Without sessions `middle` is 0 and there is one part.
 *
 * A walk among sessions keeps its place in the list, between `passed` and what is newer; removing
 * `passed` moves the place to the node before.
 *
 * The links are in the node's part, so a node is in a list at most once.  FULL has no list: its
 * leaves are on shelves (shelf.c).
 */
#include "tree/tree.h"

static struct kvi_link *link_of(
    const struct kvg_tree *tree, kvi_ref ref, uint32_t slot, enum kvg_tier tier)
{
    return &kvi_aux(kvi_node_at(tree, ref), slot)->link[tier];
}

/* Puts a node on the older side of `newer`; 0: before all. */
static void link_after(struct kvg_tree *tree, uint32_t slot, enum kvg_tier tier,
    kvi_ref newer, struct kvi_node *node)
{
    struct kvi_list *list = &tree->lists[slot][tier];
    struct kvi_aux *part = kvi_aux(node, slot);
    kvi_ref *older =
        newer == 0 ? &list->newest : &link_of(tree, newer, slot, tier)->older;
    kvi_ref ref = kvi_ref_of(node);

    KVI_ASSERT(!part->listed[tier]);
    part->listed[tier] = 1;
    part->link[tier] = (struct kvi_link){newer, *older};
    if (*older != 0)
        link_of(tree, *older, slot, tier)->newer = ref;
    else
        list->oldest = ref;
    *older = ref;
    list->count++;
    if (newer == list->middle && part->sessions != 0)
        list->middle = ref;
}

void kvi_list_add_newest(
    struct kvg_tree *tree, uint32_t slot, enum kvg_tier tier, struct kvi_node *node)
{
    bool covered = kvi_in_session(node, slot);

    link_after(tree, slot, tier, covered ? 0 : tree->lists[slot][tier].middle, node);
}

void kvi_list_add_after(struct kvg_tree *tree, uint32_t slot, enum kvg_tier tier,
    struct kvi_node *newer, struct kvi_node *node)
{
    KVI_ASSERT(kvi_aux(newer, slot)->listed[tier]);
    link_after(tree, slot, tier, kvi_ref_of(newer), node);
}

void kvi_list_remove(
    struct kvg_tree *tree, uint32_t slot, enum kvg_tier tier, struct kvi_node *node)
{
    struct kvi_list *list = &tree->lists[slot][tier];
    struct kvi_aux *part = kvi_aux(node, slot);
    struct kvi_link link = part->link[tier];
    kvi_ref ref = kvi_ref_of(node);

    KVI_ASSERT(part->listed[tier]);
    if (link.newer != 0)
        link_of(tree, link.newer, slot, tier)->older = link.older;
    else
        list->newest = link.older;
    if (link.older != 0)
        link_of(tree, link.older, slot, tier)->newer = link.newer;
    else
        list->oldest = link.newer;
    if (list->middle == ref)
        list->middle = link.newer;
    if (list->passed == ref)
        list->passed = link.older;
    part->link[tier] = (struct kvi_link){0, 0};
    part->listed[tier] = 0;
    list->count--;
}

void kvi_list_drop(
    struct kvg_tree *tree, uint32_t slot, enum kvg_tier tier, struct kvi_node *node)
{
    if (kvi_listed(node, slot, tier))
        kvi_list_remove(tree, slot, tier, node);
}

/* The newest node of the part that `node` belongs to; 0: none. */
static kvi_ref newest_of_kind(const struct kvg_tree *tree, uint32_t slot,
    enum kvg_tier tier, const struct kvi_node *node)
{
    const struct kvi_list *list = &tree->lists[slot][tier];

    if (list->middle == 0 || kvi_in_session(node, slot))
        return list->newest;
    return link_of(tree, list->middle, slot, tier)->older;
}

void kvi_list_touch(
    struct kvg_tree *tree, uint32_t slot, enum kvg_tier tier, struct kvi_node *node)
{
    kvi_ref ref = kvi_ref_of(node);

    if (newest_of_kind(tree, slot, tier, node) == ref &&
        tree->lists[slot][tier].passed != ref)
        return;
    kvi_list_remove(tree, slot, tier, node);
    kvi_list_add_newest(tree, slot, tier, node);
}

void kvi_list_regroup(struct kvg_tree *tree, uint32_t slot, struct kvi_node *node)
{
    for (enum kvg_tier tier = 0; tier < KVG_TIER_COUNT; tier++) {
        if (!kvi_listed(node, slot, tier))
            continue;
        kvi_list_remove(tree, slot, tier, node);
        kvi_list_add_newest(tree, slot, tier, node);
    }
}

struct kvi_node *kvi_list_unlocked(
    const struct kvg_tree *tree, uint32_t slot, enum kvg_tier tier, struct kvi_node *node)
{
    while (node != NULL && kvi_part(node, slot)->lock[tier] != 0)
        node = kvi_node_or_null(tree, kvi_aux(node, slot)->link[tier].newer);
    return node;
}

void kvi_list_rewind(struct kvg_tree *tree, uint32_t slot, enum kvg_tier tier)
{
    tree->lists[slot][tier].passed = 0;
}

struct kvi_node *kvi_list_walk(struct kvg_tree *tree, uint32_t slot, enum kvg_tier tier)
{
    struct kvi_list *list = &tree->lists[slot][tier];
    kvi_ref from =
        list->passed == 0 ? list->oldest : link_of(tree, list->passed, slot, tier)->newer;
    struct kvi_node *node =
        kvi_list_unlocked(tree, slot, tier, kvi_node_or_null(tree, from));

    if (node != NULL)
        list->passed = kvi_ref_of(node);
    return node;
}

void kvi_list_touch_window(
    struct kvg_tree *tree, uint32_t slot, struct kvi_node *node, uint64_t window)
{
    struct kvi_node *previous[2] = {NULL, NULL}; /* Of the others; of the covered. */
    uint64_t covered = 0;

    for (; !kvi_is_root(node) && covered < window; node = kvi_parent(tree, node)) {
        covered += node->length;
        if (!kvi_listed(node, slot, KVG_TIER_DEVICE))
            continue;
        struct kvi_node **before = &previous[kvi_in_session(node, slot)];
        if (*before == NULL) {
            kvi_list_touch(tree, slot, KVG_TIER_DEVICE, node);
        } else if (kvi_aux(*before, slot)->link[KVG_TIER_DEVICE].older !=
                   kvi_ref_of(node)) {
            kvi_list_remove(tree, slot, KVG_TIER_DEVICE, node);
            kvi_list_add_after(tree, slot, KVG_TIER_DEVICE, *before, node);
        }
        *before = node;
    }
}

const char *kvi_list_check(const struct kvg_tree *tree, uint32_t slot, enum kvg_tier tier)
{
    const struct kvi_list *list = &tree->lists[slot][tier];
    uint64_t count = 0;
    kvi_ref newer = 0;
    kvi_ref middle = 0;
    bool passed = list->passed == 0;

    for (kvi_ref ref = list->newest; ref != 0;) {
        const struct kvi_node *node = kvi_node_at(tree, ref);
        const struct kvi_aux *part = kvi_aux(node, slot);
        if (!part->listed[tier] || part->link[tier].newer != newer ||
            ++count > list->count)
            return "a recency list is out of joint";
        if (part->sessions != 0 && middle != newer)
            return "a node of a session is among the others of a recency list";
        if (part->sessions != 0)
            middle = ref;
        passed = passed || list->passed == ref;
        newer = ref;
        ref = part->link[tier].older;
    }
    if (list->oldest != newer || count != list->count)
        return "a recency list has the wrong length";
    if (list->middle != middle || !passed)
        return "a recency list has lost a place in it";
    return NULL;
}
