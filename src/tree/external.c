/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* external.c -- what the external store has of a node.
 *
 *                  mark                    finish, success
 *     neither  ----------->  pending  ----------------------->  stored
 *        ^                      |                                  ^
 *        +----------------------+                                  |
 *              finish, failure          mark_stored_path ----------+   (pending or not)
 *
 * A pending node that splits leaves two pending nodes under the same ack; all of them end
 * together.  Nothing takes `stored` back: a failure says nothing about what a load confirmed.
 */
#include "tree/tree.h"

static bool is_stored(const struct kvi_node *node)
{
    return (node->flags & KVI_NODE_STORED) != 0;
}

static kvg_err invalid_state(const struct kvi_node *node, struct kvg_error *error)
{
    char message[sizeof(error->message)];
    struct kvi_text text;

    kvi_text_init(&text, message, sizeof(message));
    kvi_text_str(&text, "invalid external offload state for node ");
    kvi_text_u64(&text, node->id);
    kvi_text_str(&text, ": stored=");
    kvi_text_str(&text, is_stored(node) ? "true" : "false");
    kvi_text_str(&text, ", pending=");
    if (node->pending_write == KVG_NODE_NONE)
        kvi_text_str(&text, "none");
    else
        kvi_text_u64(&text, node->pending_write);
    return kvi_fail(error, KVG_ESTATE, "node", message);
}

/* The last `pages` pages of a value as one transfer; its spans start at `first` of the scratch. */
static struct kvg_tree_transfer transfer(
    struct kvg_tree *tree, const struct kvi_node *node, uint32_t slot, uint32_t pages)
{
    const struct kvi_value *value = &kvi_part(node, slot)->value[KVG_TIER_DEVICE];
    uint32_t page_size = tree->options.page_size;
    uint32_t units = pages * page_size;
    uint32_t node_pages = node->length / page_size;
    struct kvg_span *spans =
        tree->transfer_scratch.spans + tree->transfer_scratch.span_count;
    uint32_t count = kvi_value_spans(value, value->length - units, units, spans);

    const struct kvg_key *keys = node->page_keys->keys + node->page_key_start;
    const struct kvg_key *previous = NULL;
    const struct kvi_node *parent = kvi_parent(tree, node);

    if (pages < node_pages)
        previous = keys + (node_pages - pages) - 1;
    else if (parent->page_keys != NULL && parent->length != 0)
        previous = parent->page_keys->keys + parent->page_key_start +
                   parent->length / page_size - 1;
    tree->transfer_scratch.span_count += count;
    return (struct kvg_tree_transfer){.component = tree->components[slot]->type,
        .trailing_pages = slot != 0,
        .keys = keys + (node_pages - pages),
        .key_count = pages,
        .spans = spans,
        .span_count = count,
        .previous = previous};
}

kvg_err kvg_tree_offload_build(struct kvg_tree *tree, kvg_node_id id,
    struct kvg_tree_transfer *out, size_t *count_out, struct kvg_error *error)
{
    struct kvi_node *node = kvi_node_find(tree, id);
    int swa = tree->slot_of[KVG_COMPONENT_SWA];
    uint32_t page_size = tree->options.page_size;
    uint32_t spans = 0;

    *count_out = 0;
    if (node == NULL)
        return kvi_no_node(error, id);
    if (is_stored(node) || node->pending_write != KVG_NODE_NONE ||
        node->page_keys == NULL || (node->flags & KVI_NODE_AWAITS_ALL) != 0)
        return KVG_OK;
    for (uint32_t slot = 0; slot < tree->part_count; slot++) {
        const struct kvi_value *value = &kvi_part(node, slot)->value[KVG_TIER_DEVICE];
        spans += kvi_value_span_count(value, 0, value->length);
    }
    kvg_actions_clear(&tree->transfer_scratch);
    if (kvi_actions_reserve(&tree->transfer_scratch, 0, spans, 0) != KVG_OK)
        return kvi_fail(error, KVG_ENOMEM, "offload", "no memory for spans");
    if (kvi_has(node, 0, KVG_TIER_DEVICE))
        out[(*count_out)++] = transfer(tree, node, 0, node->length / page_size);
    if (swa > 0) {
        uint32_t pages =
            kvi_part(node, (uint32_t)swa)->value[KVG_TIER_DEVICE].length / page_size;
        if (pages != 0)
            out[(*count_out)++] = transfer(tree, node, (uint32_t)swa, pages);
    }
    return KVG_OK;
}

kvg_err kvg_tree_offload_mark(
    struct kvg_tree *tree, kvg_node_id id, struct kvg_error *error)
{
    struct kvi_node *node = kvi_node_find(tree, id);

    if (node == NULL)
        return kvi_no_node(error, id);
    if (is_stored(node) || node->pending_write != KVG_NODE_NONE)
        return invalid_state(node, error);
    node->pending_write = id;
    return KVG_OK;
}

kvg_err kvg_tree_offload_finish(struct kvg_tree *tree, const kvg_node_id *nodes,
    size_t node_count, kvg_node_id ack, bool success, struct kvg_error *error)
{
    for (size_t i = 0; i < node_count; i++) {
        const struct kvi_node *node = kvi_node_find(tree, nodes[i]);
        if (node == NULL)
            return kvi_no_node(error, nodes[i]);
        if (node->pending_write != ack || ack == KVG_NODE_NONE)
            return invalid_state(node, error);
    }
    for (size_t i = 0; i < node_count; i++) {
        struct kvi_node *node = kvi_node_find(tree, nodes[i]);
        node->pending_write = KVG_NODE_NONE;
        if (success)
            node->flags |= KVI_NODE_STORED;
        kvi_duplicate_update(tree, node);
    }
    return KVG_OK;
}

kvg_err kvg_tree_mark_stored_path(
    struct kvg_tree *tree, kvg_node_id from, kvg_node_id anchor, struct kvg_error *error)
{
    struct kvi_node *deep = kvi_node_find(tree, from);
    struct kvi_node *end = kvi_node_find(tree, anchor);

    if (deep == NULL || end == NULL)
        return kvi_no_node(error, deep == NULL ? from : anchor);
    for (struct kvi_node *n = deep; n != end; n = kvi_parent(tree, n)) {
        if (!kvi_is_root(n))
            continue;
        char message[sizeof(error->message)];
        struct kvi_text text;
        kvi_text_init(&text, message, sizeof(message));
        kvi_text_str(&text, "node ");
        kvi_text_u64(&text, anchor);
        kvi_text_str(&text, " is not an ancestor of node ");
        kvi_text_u64(&text, from);
        return kvi_fail(error, KVG_EINVAL, "anchor", message);
    }
    for (struct kvi_node *n = deep; n != end; n = kvi_parent(tree, n))
        n->flags |= KVI_NODE_STORED;
    return KVG_OK;
}
