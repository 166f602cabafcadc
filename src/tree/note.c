/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* note.c -- notes of nodes that are being saved (tree_survey.h).
 *
 * A note is one allocation, so that it goes as it came:
 *
 *     | kvg_tree_note | page keys | tokens | extra key | salt |
 */
#include <kvgraft/tree_survey.h>

#include "tree/tree.h"

static struct kvg_str copy_text(char **at, struct kvg_str text)
{
    struct kvg_str copy = {text.data == NULL ? NULL : *at, text.bytes};

    if (text.bytes != 0)
        memcpy(*at, text.data, text.bytes);
    *at += text.bytes;
    return copy;
}

/* FULL of the node is on device and there to be read. */
static kvg_err check_node(
    const struct kvi_node *node, kvg_node_id id, struct kvg_error *error)
{
    if (node == NULL)
        return kvi_no_node(error, id);
    if (kvi_is_root(node))
        return kvi_fail(error, KVG_EINVAL, "node", "the root holds nothing");
    if (!kvi_full_on_device(node) || kvi_awaits(node, 0))
        return kvi_fail_node(error, KVG_ESTATE, "node", "node ", id, " is not on device");
    return KVG_OK;
}

kvg_err kvg_tree_note_new(const struct kvg_tree *tree, kvg_node_id id,
    const struct kvg_alloc *alloc, struct kvg_tree_note **out, struct kvg_error *error)
{
    const struct kvi_node *node = kvi_node_find(tree, id);
    kvg_err err = check_node(node, id, error);

    *out = NULL;
    if (err != KVG_OK)
        return err;
    static const struct kvg_namespace plain;
    const struct kvg_namespace *space =
        node->space == 0 ? &plain : &tree->spaces.items[node->space].name;
    size_t tokens = kvi_tokens_for(tree, node->length);
    size_t keys = node->page_keys == NULL ? 0 : node->length / tree->options.page_size;
    size_t bytes = sizeof(struct kvg_tree_note) + keys * sizeof(struct kvg_key) +
                   tokens * sizeof(uint32_t) + space->extra_key.bytes +
                   space->cache_salt.bytes;
    char *memory = kvi_alloc_array_raw(alloc, 1, bytes);
    if (memory == NULL)
        return kvi_fail(error, KVG_ENOMEM, "note", "no memory for a note");
    struct kvg_tree_note *note = (struct kvg_tree_note *)(void *)memory;
    struct kvg_key *key_copy = (struct kvg_key *)(void *)(note + 1);
    uint32_t *token_copy = (uint32_t *)(void *)(key_copy + keys);
    char *text = (char *)(token_copy + tokens);
    if (keys != 0)
        memcpy(key_copy, node->page_keys->keys + node->page_key_start,
            keys * sizeof(*key_copy));
    memcpy(token_copy, node->tokens, tokens * sizeof(*token_copy));
    *note = (struct kvg_tree_note){.node = id,
        .length = node->length,
        .key = {.tokens = token_copy, .token_count = tokens, .bigram = tree->eagle},
        .page_keys = keys == 0 ? NULL : key_copy,
        .page_key_count = keys,
        .alloc = alloc,
        .bytes = bytes};
    note->key.space.extra_key = copy_text(&text, space->extra_key);
    note->key.space.cache_salt = copy_text(&text, space->cache_salt);
    *out = note;
    return KVG_OK;
}

void kvg_tree_note_free(struct kvg_tree_note *note)
{
    if (note != NULL)
        kvi_release_array(note->alloc, note, 1, note->bytes);
}

kvg_err kvg_tree_note_check(const struct kvg_tree *tree, const struct kvg_tree_note *note,
    struct kvg_tree_note_place *out, struct kvg_error *error)
{
    const struct kvi_node *node = kvi_node_find(tree, note->node);
    kvg_err err = check_node(node, note->node, error);

    memset(out, 0, sizeof(*out));
    if (err != KVG_OK)
        return err;
    if (node->length != note->length)
        return kvi_fail_node(
            error, KVG_ESTATE, "node", "node ", note->node, " was split");
    const struct kvi_node *parent = node->parent;
    out->parent = parent->id;
    out->parent_is_root = kvi_is_root(parent);
    out->has_parent_key = !out->parent_is_root && parent->page_keys != NULL;
    if (out->has_parent_key)
        out->parent_key =
            parent->page_keys->keys[parent->page_key_start +
                                    parent->length / tree->options.page_size - 1];
    return KVG_OK;
}
