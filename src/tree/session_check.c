/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* session_check.c -- T10, as session.c states it.
 *
 * It allocates nothing: what frontiers cover is subtracted from the nodes' counts, which must all
 * be zero then, and added again. */
#include "tree/session.h"

/* ---- Sessions ------------------------------------------------------------------------------ */

static const char *check_closed(const struct kvg_tree *tree)
{
    const struct kvi_sessions *sessions = &tree->sessions;
    uint32_t count = 0;
    uint32_t newer = KVI_NOBODY;

    for (uint32_t i = sessions->closed_newest; i != KVI_NOBODY;
         i = kvi_session_at(tree, i)->older) {
        const struct kvi_session *session = kvi_session_at(tree, i);
        if (session->newer != newer || session->generation != 0 ||
            ++count > sessions->closed_count)
            return "the list of closed sessions is out of joint";
        newer = i;
    }
    if (newer != sessions->closed_oldest || count != sessions->closed_count ||
        count > KVG_TREE_SESSIONS_CLOSED)
        return "the list of closed sessions has the wrong length";
    return NULL;
}

static const char *check_frontiers(
    const struct kvg_tree *tree, uint32_t owner, uint32_t slot, uint64_t *seen)
{
    const struct kvi_session *session = kvi_session_at(tree, owner);
    uint32_t previous = KVI_NOBODY;
    uint32_t count = 0;

    for (uint32_t f = session->first[slot]; f != KVI_NOBODY;
         f = kvi_frontier_at(tree, f)->next) {
        const struct kvi_frontier *frontier = kvi_frontier_at(tree, f);
        if (frontier->session != owner || frontier->slot != slot ||
            frontier->previous != previous || ++count > session->count[slot])
            return "a session's frontiers are out of joint";
        if (frontier->node == 0 || frontier->node >= tree->fresh_node ||
            kvi_node_at(tree, frontier->node)->id == 0)
            return "a frontier is at a node that is gone";
        for (uint32_t g = session->first[slot]; g != f;
             g = kvi_frontier_at(tree, g)->next) {
            if (kvi_frontier_at(tree, g)->node == frontier->node)
                return "a session has two frontiers at one node";
        }
        previous = f;
    }
    if (previous != session->last[slot] || count != session->count[slot])
        return "a session has the wrong number of frontiers";
    if (count != 0 && session->generation == 0)
        return "a closed session has a frontier";
    *seen += count;
    return NULL;
}

static const char *check_table(const struct kvg_tree *tree)
{
    const struct kvi_sessions *sessions = &tree->sessions;
    const char *what = check_closed(tree);
    uint32_t open = 0;
    uint32_t closed = 0;
    uint64_t seen = 0;

    for (uint32_t i = 1; i < sessions->count && what == NULL; i++) {
        const struct kvi_session *session = kvi_session_at(tree, i);
        if (session->id == NULL)
            continue;
        if (kvi_session_find(tree, (struct kvg_str){session->id, session->id_bytes}) != i)
            what = "the table does not find a session";
        open += session->generation != 0;
        closed += session->generation == 0;
        for (uint32_t slot = 0; slot < tree->part_count && what == NULL; slot++)
            what = check_frontiers(tree, i, slot, &seen);
    }
    if (what == NULL &&
        (open != sessions->open_count || closed != sessions->closed_count ||
            seen != sessions->frontier_used))
        what = "sessions or frontiers are miscounted";
    return what;
}

/* ---- Nodes --------------------------------------------------------------------------------- */

static const char *check_node_list(
    const struct kvg_tree *tree, const struct kvi_node *node, uint64_t *seen)
{
    uint32_t previous = KVI_NOBODY;

    for (uint32_t f = node->first_frontier; f != KVI_NOBODY;
         f = kvi_frontier_at(tree, f)->node_next) {
        const struct kvi_frontier *frontier = kvi_frontier_at(tree, f);
        if (f >= tree->sessions.frontier_count || frontier->session == KVI_NOBODY ||
            frontier->node != kvi_ref_of(node) || frontier->node_previous != previous ||
            ++*seen > tree->sessions.frontier_used)
            return "a node's frontiers are out of joint";
        previous = f;
    }
    return NULL;
}

/* Adds what a frontier covers to the counts, or takes it off; false if its window does not end
 * where a node begins. */
static bool weigh(
    const struct kvg_tree *tree, const struct kvi_frontier *frontier, uint32_t change)
{
    struct kvi_node *node = kvi_node_at(tree, frontier->node);
    uint64_t passed = 0;

    do {
        *kvi_session_count(node, frontier->slot) += change;
        passed += node->length;
        node = node->parent;
    } while (!kvi_is_root(node) && passed < frontier->covered);
    return frontier->covered == UINT64_MAX || frontier->covered == 0 ||
           passed == frontier->covered;
}

static const char *weigh_all(const struct kvg_tree *tree, uint32_t change)
{
    const char *what = NULL;

    for (uint32_t f = 1; f < tree->sessions.frontier_count; f++) {
        if (kvi_frontier_at(tree, f)->session != KVI_NOBODY &&
            !weigh(tree, kvi_frontier_at(tree, f), change))
            what = "a window of a session does not end where a node begins";
    }
    return what;
}

const char *kvi_sessions_check(
    const struct kvg_tree *tree, const struct kvi_node **node_out)
{
    const char *what = check_table(tree);
    uint64_t seen = 0;

    *node_out = NULL;
    for (kvi_ref ref = 1; ref < tree->fresh_node && what == NULL; ref++) {
        const struct kvi_node *node = kvi_node_at(tree, ref);
        if (node->id == 0)
            continue;
        what = check_node_list(tree, node, &seen);
        *node_out = what == NULL ? NULL : node;
    }
    if (what != NULL)
        return what;
    if (seen != tree->sessions.frontier_used)
        return "a frontier is not in the list of its node";
    what = weigh_all(tree, UINT32_MAX);
    for (kvi_ref ref = 1; ref < tree->fresh_node && what == NULL; ref++) {
        struct kvi_node *node = kvi_node_at(tree, ref);
        for (uint32_t slot = 0; slot < tree->part_count && node->id != 0; slot++) {
            if (!kvi_in_session(node, slot))
                continue;
            what = "a node's count of sessions is not what frontiers cover";
            *node_out = node;
        }
    }
    weigh_all(tree, 1);
    return what;
}
