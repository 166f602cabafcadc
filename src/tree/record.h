/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* record.h -- what was stored and removed, for whoever routes by it.
 *
 * Every function is a no-op on a tree without events.  Recording cannot fail: prepare first. */
#ifndef KVI_TREE_RECORD_H
#define KVI_TREE_RECORD_H

#include "tree/tree.h"

/* Room for one event of `units` units. */
kvg_err kvi_record_reserve(
    struct kvg_tree *tree, uint64_t units, struct kvg_error *error);

/* The same for an event about each of several nodes. */
kvg_err kvi_record_prepare_many(struct kvg_tree *tree, const kvg_node_id *nodes,
    size_t node_count, struct kvg_error *error);

/* The same for one node, and its event keys. */
kvg_err kvi_record_prepare(
    struct kvg_tree *tree, struct kvi_node *node, struct kvg_error *error);

void kvi_record_stored(struct kvg_tree *tree, struct kvi_node *node,
    enum kvg_medium medium, struct kvg_str session_id);
void kvi_record_removed(
    struct kvg_tree *tree, struct kvi_node *node, enum kvg_medium medium);

kvg_err kvi_recorder_new(struct kvg_tree *tree);
void kvi_recorder_free(struct kvg_tree *tree);

#endif
