/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* survey.c -- walks over all nodes, and what is added up on the way (tree_survey.h).
 *
 *     root - A - B - D         walk: root A B D C E
 *              \ C
 *          \ E
 *
 * A walk has no state but the node where it stands: links and parents say what comes next.
 *
 * Threads: the tree's one.  Allocates nothing, changes nothing.
 */
#include <kvgraft/tree_survey.h>

#include "tree/tree.h"

/* ---- Walks --------------------------------------------------------------------------------- */

/* After `node`; NULL at the end. */
static const struct kvi_node *after(
    const struct kvg_tree *tree, const struct kvi_node *node)
{
    if (node->first_child != 0)
        return kvi_node_at(tree, node->first_child);
    while (node->next_sibling == 0) {
        node = node->parent;
        if (node == NULL)
            return NULL;
    }
    return kvi_node_at(tree, node->next_sibling);
}

kvg_node_id kvg_tree_walk_next(const struct kvg_tree *tree, kvg_node_id id)
{
    const struct kvi_node *node;

    if (id == KVG_NODE_NONE)
        return kvi_node_at(tree, tree->root)->id;
    node = kvi_node_find(tree, id);
    if (node == NULL)
        return KVG_NODE_NONE;
    node = after(tree, node);
    return node == NULL ? KVG_NODE_NONE : node->id;
}

/* Does the canary look at this node? */
static bool watched(const struct kvg_tree *tree, const struct kvg_tree_canary *canary,
    const struct kvi_node *node)
{
    int8_t window = canary->window_resident_only ? tree->slot_of[KVG_COMPONENT_SWA] : -1;
    uint32_t slot = window < 0 ? 0 : (uint32_t)window;

    if (!kvi_full_on_device(node) || kvi_awaits(node, 0))
        return false;
    if (!kvi_has(node, slot, KVG_TIER_DEVICE))
        return false;
    return !canary->unlocked_only || kvi_part(node, slot)->lock[KVG_TIER_DEVICE] == 0;
}

/* The slot of the unit before `at`: the node's own, or the last of its parent.  FULL on device
 * stands on FULL on device (T6), so the unit before always has one, but at the beginning. */
static bool slot_before(
    const struct kvi_node *node, uint32_t at, struct kvg_span *previous)
{
    if (at == 0) {
        node = node->parent;
        if (kvi_is_root(node))
            return false;
        at = node->length;
    }
    *previous = kvi_value_span_at(&node->full.value[KVG_TIER_DEVICE], at - 1);
    previous->length = 1;
    return true;
}

bool kvg_tree_canary_next(const struct kvg_tree *tree, struct kvg_tree_canary *canary,
    struct kvg_tree_canary_run *out)
{
    const struct kvi_node *node = kvi_node_at(tree, tree->root);
    uint32_t at = canary->at;

    if (canary->node != KVG_NODE_NONE)
        node = kvi_node_find(tree, canary->node);
    if (node != NULL && at >= node->length) {
        node = after(tree, node);
        at = 0;
    }
    while (node != NULL && !watched(tree, canary, node))
        node = after(tree, node);
    memset(out, 0, sizeof(*out));
    if (node == NULL)
        return false;
    out->node = node->id;
    out->slots = kvi_value_span_at(&node->full.value[KVG_TIER_DEVICE], at);
    out->position = (uint64_t)node->depth - node->length + at;
    out->has_previous = slot_before(node, at, &out->previous);
    canary->node = node->id;
    canary->at = at + out->slots.length;
    return true;
}

/* ---- Totals -------------------------------------------------------------------------------- */

uint64_t kvg_tree_total_full(const struct kvg_tree *tree)
{
    return tree->evictable[0] + tree->protect[0];
}

uint64_t kvg_tree_total_others(const struct kvg_tree *tree)
{
    uint64_t total = 0;

    for (uint32_t slot = 1; slot < tree->part_count; slot++)
        total += tree->evictable[slot] + tree->protect[slot];
    return total;
}

size_t kvg_tree_all_values(const struct kvg_tree *tree, uint32_t component,
    enum kvg_tier tier, struct kvg_span *spans, size_t span_max)
{
    size_t count = 0;

    if (component >= KVG_COMPONENT_MAX || tree->slot_of[component] < 0)
        return 0;
    uint32_t slot = (uint32_t)tree->slot_of[component];
    for (const struct kvi_node *node = kvi_node_at(tree, tree->root); node != NULL;
         node = after(tree, node)) {
        const struct kvi_value *value = &kvi_part(node, slot)->value[tier];
        for (uint32_t at = 0; at < value->length; count++) {
            struct kvg_span span = kvi_value_span_at(value, at);
            if (count < span_max)
                spans[count] = span;
            at += span.length;
        }
    }
    return count;
}

size_t kvg_tree_all_tokens(
    const struct kvg_tree *tree, enum kvg_tier tier, uint32_t *tokens, size_t token_max)
{
    size_t count = 0;

    for (const struct kvi_node *node = kvi_node_at(tree, tree->root); node != NULL;
         node = after(tree, node)) {
        if (!kvi_has(node, 0, tier))
            continue;
        for (uint32_t i = 0; i < node->length && count + i < token_max; i++)
            tokens[count + i] = node->tokens[i];
        count += node->length;
    }
    return count;
}

/* ---- Keys ---------------------------------------------------------------------------------- */

size_t kvg_tree_prefix_page_keys(
    const struct kvg_tree *tree, kvg_node_id id, struct kvg_key *keys, size_t key_max)
{
    const struct kvi_node *node = kvi_node_find(tree, id);
    const uint32_t page = tree->options.page_size;
    size_t count = 0;

    if (node == NULL || kvi_is_root(node))
        return 0;
    const struct kvi_node *parent = node->parent;
    for (const struct kvi_node *n = parent; !kvi_is_root(n) && n->page_keys != NULL;
         n = n->parent)
        count += n->length / page;
    size_t end = count;
    for (const struct kvi_node *n = parent; end != 0; n = n->parent) {
        size_t pages = n->length / page;
        end -= pages;
        if (end >= key_max)
            continue;
        memcpy(keys + end, n->page_keys->keys + n->page_key_start,
            (pages < key_max - end ? pages : key_max - end) * sizeof(*keys));
    }
    return count;
}

size_t kvg_tree_backup_nodes(
    const struct kvg_tree *tree, kvg_node_id id, kvg_node_id *nodes, size_t node_max)
{
    const struct kvi_node *node = kvi_node_find(tree, id);
    const struct kvi_node *top = node;
    size_t count = 1;

    if (node == NULL || kvi_is_root(node))
        return 0;
    if (!tree->settings.write_back) {
        for (; !kvi_is_root(top->parent) && kvi_joins_backup(tree, top->parent);
             top = top->parent)
            count++;
    }
    for (size_t at = count; at-- != 0; node = node->parent) {
        if (at < node_max)
            nodes[at] = node->id;
    }
    return count;
}
