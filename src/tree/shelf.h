/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* shelf.h -- the leaves of one tier in the order in which they go (shelf.c); used by leaf.c. */
#ifndef KVI_TREE_SHELF_H
#define KVI_TREE_SHELF_H

#include "tree/tree.h"

#define KVI_SHELF_ENTRIES 256u

/* Puts a node that is not placed where its key belongs.  Room was reserved for every node. */
void kvi_shelf_add(struct kvg_tree *tree, enum kvg_tier tier, struct kvi_node *node);

/* Makes the entry of a placed node a ghost. */
void kvi_shelf_drop(struct kvg_tree *tree, enum kvg_tier tier, struct kvi_node *node);

/* The marked leaf with the least key, or NULL.  On the way the entries of nodes that are not
 * leaves any more go. */
struct kvi_node *kvi_shelf_first(struct kvg_tree *tree, enum kvg_tier tier);

/* Takes out the entry of the node that kvi_shelf_first() has returned. */
void kvi_shelf_pop(struct kvg_tree *tree, enum kvg_tier tier, struct kvi_node *node);

#endif
