/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* account.c -- the ledger: evictable and protected sizes follow values and locks.
 *
 *                      lock 0 -> 1
 *     evictable  ------------------------>  protected        lengths of device values
 *                <------------------------
 *                      lock 1 -> 0
 *
 * A value that appears is credited by the lock it finds; a value that goes is not locked.  A split
 * moves nothing: both halves inherit value and lock.
 */
#include "tree/tree.h"

void kvi_device_value_put(
    struct kvg_tree *tree, struct kvi_node *node, uint32_t slot, struct kvi_value *value)
{
    struct kvi_part *part = kvi_part(node, slot);

    KVI_ASSERT(part->value[KVG_TIER_DEVICE].length == 0 && value->length != 0);
    part->value[KVG_TIER_DEVICE] = *value;
    *value = (struct kvi_value){0};
    uint32_t length = part->value[KVG_TIER_DEVICE].length;
    if (part->lock[KVG_TIER_DEVICE] != 0)
        tree->protect[slot] += length;
    else
        tree->evictable[slot] += length;
    if (slot != 0)
        return;
    node->flags |= KVI_NODE_FULL_DEVICE;
    if (node->parent != NULL)
        node->parent->device_child_count++;
}

void kvi_device_value_take(
    struct kvg_tree *tree, struct kvi_node *node, uint32_t slot, struct kvi_value *out)
{
    struct kvi_part *part = kvi_part(node, slot);

    KVI_ASSERT(part->value[KVG_TIER_DEVICE].length != 0);
    *out = part->value[KVG_TIER_DEVICE];
    part->value[KVG_TIER_DEVICE] = (struct kvi_value){0};
    node->flags &= (uint16_t)~kvi_awaits_bit(slot);
    if (part->lock[KVG_TIER_DEVICE] != 0)
        tree->protect[slot] -= out->length;
    else
        tree->evictable[slot] -= out->length;
    if (slot != 0)
        return;
    node->flags &= (uint16_t)~KVI_NODE_FULL_DEVICE;
    if (node->parent != NULL)
        node->parent->device_child_count--;
}

uint64_t kvi_uuid_next(struct kvg_tree *tree, uint32_t component)
{
    return tree->next_uuid[component]++;
}

void kvi_aux_value_put(
    struct kvg_tree *tree, struct kvi_node *node, uint32_t slot, struct kvi_value *value)
{
    kvi_list_drop(tree, slot, KVG_TIER_HOST, node);
    kvi_device_value_put(tree, node, slot, value);
    kvi_list_add_newest(tree, slot, KVG_TIER_DEVICE, node);
}

kvg_err kvi_fail_node(struct kvg_error *error, kvg_err code, const char *field,
    const char *before, kvg_node_id node, const char *after)
{
    char message[sizeof(error->message)];
    struct kvi_text text;

    if (error == NULL)
        return code;
    kvi_text_init(&text, message, sizeof(message));
    kvi_text_str(&text, before);
    kvi_text_u64(&text, node);
    kvi_text_str(&text, after);
    return kvi_fail(error, code, field, message);
}
