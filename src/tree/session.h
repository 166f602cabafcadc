/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* session.h -- places of sessions and frontiers; what session.c and its table share. */
#ifndef KVI_TREE_SESSION_H
#define KVI_TREE_SESSION_H

#include "tree/tree.h"

#define KVI_NOBODY 0u

static inline struct kvi_session *kvi_session_at(
    const struct kvg_tree *tree, uint32_t index)
{
    return &tree->sessions.items[index];
}

static inline struct kvi_frontier *kvi_frontier_at(
    const struct kvg_tree *tree, uint32_t index)
{
    return &tree->sessions.frontiers[index];
}

/* A session of that id, open or closed; or KVI_NOBODY. */
uint32_t kvi_session_find(const struct kvg_tree *tree, struct kvg_str id);

/* A new session of that id, neither open nor closed yet; KVI_NOBODY without memory. */
uint32_t kvi_session_make(struct kvg_tree *tree, struct kvg_str id);

/* Remembers it as closed, and forgets the one that was closed longest ago beyond the bound. */
void kvi_session_remember(struct kvg_tree *tree, uint32_t index);

/* Takes it out of the closed ones. */
void kvi_session_reopen(struct kvg_tree *tree, uint32_t index);

/* Room for that many more. */
kvg_err kvi_frontiers_reserve(struct kvg_tree *tree, uint32_t wanted);

#endif
