/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* hash.c -- page keys of nodes, made when somebody needs them.
 *
 * A node's keys continue its parent's chain, so a node gets keys only when all its ancestors have
 * them: a chain that starts in the middle of a prompt would name other pages.  The first page of
 * a namespace starts from the namespace's prior key; of event keys, from the salt alone.
 */
#include "tree/tree.h"

static struct kvi_keys *make(struct kvg_tree *tree, const struct kvg_key *prior,
    const uint32_t *tokens, uint32_t units)
{
    uint32_t pages = units / tree->options.page_size;
    struct kvi_keys *keys = kvi_keys_make(tree, pages);

    if (keys == NULL)
        return NULL;
    size_t made = kvg_page_keys(
        &tree->page_rule, prior, tokens, kvi_tokens_for(tree, units), keys->keys, pages);
    KVI_ASSERT(made == pages);
    return keys;
}

static const struct kvg_key *last_key(
    const struct kvi_keys *keys, uint32_t start, uint32_t length, uint32_t page_size)
{
    return &keys->keys[start + length / page_size - 1];
}

static const struct kvg_key *page_prior(
    const struct kvg_tree *tree, const struct kvi_node *parent, uint32_t space)
{
    if (kvi_is_root(parent)) {
        const struct kvi_space *named = space == 0 ? NULL : &tree->spaces.items[space];
        return named != NULL && named->has_prior ? &named->prior : NULL;
    }
    return last_key(parent->page_keys, parent->page_key_start, parent->length,
        tree->options.page_size);
}

static const struct kvg_key *event_prior(
    const struct kvg_tree *tree, const struct kvi_node *parent, uint32_t space)
{
    if (kvi_is_root(parent)) {
        const struct kvi_space *named = &tree->spaces.items[space];
        return named->has_event_prior ? &named->event_prior : NULL;
    }
    return last_key(parent->event_keys, parent->event_key_start, parent->length,
        tree->options.page_size);
}

struct kvi_keys *kvi_page_keys_make(struct kvg_tree *tree, struct kvi_node *parent,
    uint32_t space, const uint32_t *tokens, uint32_t units)
{
    if (kvi_page_keys_fill(tree, parent) != KVG_OK)
        return NULL;
    return make(tree, page_prior(tree, parent, space), tokens, units);
}

struct kvi_keys *kvi_event_keys_make(struct kvg_tree *tree, struct kvi_node *parent,
    uint32_t space, const uint32_t *tokens, uint32_t units)
{
    if (kvi_event_keys_fill(tree, parent) != KVG_OK)
        return NULL;
    return make(tree, event_prior(tree, parent, space), tokens, units);
}

/* The topmost ancestor-or-self without keys, or NULL. */
static struct kvi_node *topmost_without(
    const struct kvg_tree *tree, struct kvi_node *node, bool events)
{
    struct kvi_node *found = NULL;

    for (; !kvi_is_root(node); node = kvi_parent(tree, node)) {
        if ((events ? node->event_keys : node->page_keys) != NULL)
            break;
        found = node;
    }
    return found;
}

kvg_err kvi_page_keys_fill(struct kvg_tree *tree, struct kvi_node *node)
{
    for (;;) {
        struct kvi_node *next = topmost_without(tree, node, false);
        if (next == NULL)
            return KVG_OK;
        next->page_keys =
            make(tree, page_prior(tree, kvi_parent(tree, next), next->space),
                kvi_node_tokens(next), next->length);
        if (next->page_keys == NULL)
            return KVG_ENOMEM;
        next->page_key_start = 0;
    }
}

kvg_err kvi_event_keys_fill(struct kvg_tree *tree, struct kvi_node *node)
{
    if (node->space == 0)
        return kvi_page_keys_fill(tree, node);
    for (;;) {
        struct kvi_node *next = topmost_without(tree, node, true);
        if (next == NULL)
            return KVG_OK;
        next->event_keys =
            make(tree, event_prior(tree, kvi_parent(tree, next), next->space),
                kvi_node_tokens(next), next->length);
        if (next->event_keys == NULL)
            return KVG_ENOMEM;
        next->event_key_start = 0;
    }
}

kvg_err kvg_tree_backfill_page_keys(struct kvg_tree *tree, uint64_t *filled_out)
{
    struct kvi_node *root = kvi_node_at(tree, tree->root);
    struct kvi_node *node = root;

    *filled_out = 0;
    for (;;) {
        /* Pre-order, by links alone. */
        if (node->first_child != 0) {
            node = kvi_node_at(tree, node->first_child);
        } else {
            while (node != root && node->next_sibling == 0)
                node = kvi_parent(tree, node);
            if (node == root)
                return KVG_OK;
            node = kvi_node_at(tree, node->next_sibling);
        }
        if (node->page_keys != NULL)
            continue;
        if (kvi_page_keys_fill(tree, node) != KVG_OK)
            return KVG_ENOMEM;
        (*filled_out)++;
    }
}

size_t kvg_tree_node_page_keys(
    const struct kvg_tree *tree, kvg_node_id id, const struct kvg_key **out)
{
    const struct kvi_node *node = kvi_node_find(tree, id);

    *out = NULL;
    if (node == NULL || node->page_keys == NULL)
        return 0;
    *out = node->page_keys->keys + node->page_key_start;
    return node->length / tree->options.page_size;
}
