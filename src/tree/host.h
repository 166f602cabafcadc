/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* host.h -- transfers between the tiers, as host_write.c and host_load.c build them. */
#ifndef KVI_TREE_HOST_H
#define KVI_TREE_HOST_H

#include "tree/tree.h"

/* What the transfers about to be built may need: sum it over their nodes, then begin. */
struct kvi_transfer_room {
    uint64_t spans, nodes;
};
void kvi_transfer_count(const struct kvg_tree *tree, const struct kvi_node *node,
    struct kvi_transfer_room *room);

/* Forgets the transfers built before, and makes room. */
kvg_err kvi_transfer_begin(
    struct kvg_tree *tree, const struct kvi_transfer_room *room, struct kvg_error *error);

/* Adds a node's value to a transfer whose nodes are added one after another. */
void kvi_transfer_add(struct kvg_tree *tree, const struct kvi_node *node, uint32_t slot,
    enum kvg_tier tier, struct kvg_tree_transfer *transfer);

/* Does it fit: known component, living nodes that still have the value on `from`, slots for all? */
kvg_err kvi_transfer_check(const struct kvg_tree *tree,
    const struct kvg_tree_transfer *transfer, enum kvg_tier from, uint32_t *slot_out,
    struct kvg_error *error);

#endif
