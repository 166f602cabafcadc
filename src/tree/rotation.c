/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* rotation.c -- prompts whose pages are sharded over ranks.
 *
 * Pages are dealt out to the ranks in turn, from a base on.  Equal tokens that were computed with
 * another base lie elsewhere, so a tail must not be hung below them: an insert says its base,
 * looks down its key first, and is declined where the deepest node it meets has another.
 *
 *     root - A (base 2) - B (base 2)        insert A B C, base 2: C becomes a leaf below B
 *                                           insert A B C, base 1: declined at B
 *
 * A node has one base; a split hands it to both halves.  Who names no base is never declined.
 */
#include <kvgraft/tree_survey.h>

#include "tree/tree.h"

bool kvi_rotation_declines(struct kvg_tree *tree, const struct kvg_tree_insert *params,
    const struct kvg_tree_key *key, uint64_t units, struct kvg_tree_inserted *out)
{
    const struct kvi_node *node = kvi_node_at(tree, tree->root);
    struct kvi_descent descent;
    uint64_t offset = 0;
    uint32_t matched;
    uint32_t space;

    if (params->rotation_base < 0 || !kvi_space_find(tree, &key->space, &space))
        return false;
    kvi_descent_init(&descent, key->tokens, units, space);
    while (offset < units) {
        const struct kvi_node *child =
            kvi_descend(tree, &descent, node, offset, &matched);
        if (child == NULL)
            break;
        node = child;
        offset += matched;
        if (matched < child->length)
            break;
    }
    if (kvi_is_root(node) || node->rotation == kvi_rotation_of(params))
        return false;
    out->done = true;
    out->rotation_declined = true;
    out->prefix_length = offset;
    out->last_node = node->id;
    out->adopted_tracked = params->track_adopted;
    tree->stats.declined_inserts++;
    return true;
}

int64_t kvg_tree_rotation_base_of(const struct kvg_tree *tree, kvg_node_id id)
{
    const struct kvi_node *node = kvi_node_find(tree, id);

    return node == NULL ? -1 : (int64_t)node->rotation - 1;
}
