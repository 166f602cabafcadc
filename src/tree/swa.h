/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* swa.h -- what other files need of the window component. */
#ifndef KVI_TREE_SWA_H
#define KVI_TREE_SWA_H

#include "tree/tree.h"

/* Releases a segment before the rest of its lock, and evicts at once what nobody holds any more on
 * a device leaf; the frees are appended.  Fails whole. */
kvg_err kvi_swa_release_window(struct kvg_tree *tree, struct kvi_node *node,
    uint32_t slot, const struct kvg_lock_receipt *receipt, struct kvg_actions *actions,
    struct kvg_error *error);

/* Takes the window slots of a node: out of its list, into a free action that names the node's FULL
 * slots, because the pool finds the window slots through them.  Room for one action and the
 * node's FULL spans was reserved. */
void kvi_swa_evict_device(struct kvg_tree *tree, struct kvi_node *node, uint32_t slot,
    struct kvg_actions *actions);

#endif
