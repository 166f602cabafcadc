/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* list.c -- recency lists of components, one a tier.
 *
 *     newest <-> ... <-> oldest        `newer` points left, `older` right
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

void kvi_list_add_newest(
    struct kvg_tree *tree, uint32_t slot, enum kvg_tier tier, struct kvi_node *node)
{
    struct kvi_list *list = &tree->lists[slot][tier];
    struct kvi_aux *part = kvi_aux(node, slot);
    kvi_ref ref = kvi_ref_of(node);

    KVI_ASSERT(!part->listed[tier]);
    part->listed[tier] = 1;
    part->link[tier] = (struct kvi_link){0, list->newest};
    if (list->newest != 0)
        link_of(tree, list->newest, slot, tier)->newer = ref;
    else
        list->oldest = ref;
    list->newest = ref;
    list->count++;
}

void kvi_list_add_after(struct kvg_tree *tree, uint32_t slot, enum kvg_tier tier,
    struct kvi_node *newer, struct kvi_node *node)
{
    struct kvi_list *list = &tree->lists[slot][tier];
    struct kvi_aux *part = kvi_aux(node, slot);
    struct kvi_aux *before = kvi_aux(newer, slot);
    kvi_ref ref = kvi_ref_of(node);

    KVI_ASSERT(!part->listed[tier] && before->listed[tier]);
    part->listed[tier] = 1;
    part->link[tier] = (struct kvi_link){kvi_ref_of(newer), before->link[tier].older};
    if (before->link[tier].older != 0)
        link_of(tree, before->link[tier].older, slot, tier)->newer = ref;
    else
        list->oldest = ref;
    before->link[tier].older = ref;
    list->count++;
}

void kvi_list_remove(
    struct kvg_tree *tree, uint32_t slot, enum kvg_tier tier, struct kvi_node *node)
{
    struct kvi_list *list = &tree->lists[slot][tier];
    struct kvi_aux *part = kvi_aux(node, slot);
    struct kvi_link link = part->link[tier];

    KVI_ASSERT(part->listed[tier]);
    if (link.newer != 0)
        link_of(tree, link.newer, slot, tier)->older = link.older;
    else
        list->newest = link.older;
    if (link.older != 0)
        link_of(tree, link.older, slot, tier)->newer = link.newer;
    else
        list->oldest = link.newer;
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

void kvi_list_touch(
    struct kvg_tree *tree, uint32_t slot, enum kvg_tier tier, struct kvi_node *node)
{
    if (tree->lists[slot][tier].newest == kvi_ref_of(node))
        return;
    kvi_list_remove(tree, slot, tier, node);
    kvi_list_add_newest(tree, slot, tier, node);
}

struct kvi_node *kvi_list_unlocked(
    const struct kvg_tree *tree, uint32_t slot, enum kvg_tier tier, struct kvi_node *node)
{
    while (node != NULL && kvi_part(node, slot)->lock[tier] != 0)
        node = kvi_node_or_null(tree, kvi_aux(node, slot)->link[tier].newer);
    return node;
}

void kvi_list_touch_window(
    struct kvg_tree *tree, uint32_t slot, struct kvi_node *node, uint64_t window)
{
    struct kvi_node *previous = NULL;
    uint64_t covered = 0;

    for (; !kvi_is_root(node) && covered < window; node = kvi_parent(tree, node)) {
        covered += node->length;
        if (!kvi_listed(node, slot, KVG_TIER_DEVICE))
            continue;
        if (previous == NULL) {
            kvi_list_touch(tree, slot, KVG_TIER_DEVICE, node);
        } else if (kvi_aux(previous, slot)->link[KVG_TIER_DEVICE].older !=
                   kvi_ref_of(node)) {
            kvi_list_remove(tree, slot, KVG_TIER_DEVICE, node);
            kvi_list_add_after(tree, slot, KVG_TIER_DEVICE, previous, node);
        }
        previous = node;
    }
}
