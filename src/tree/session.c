/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* session.c -- conversations, and what of the tree they will come back for.
 *
 * A session has *frontiers*: for each component the nodes where its turns ended, one a branch of
 * the conversation.  A frontier covers what a next turn would need of that component:
 *
 *     root -- A -- B -- C -- D          frontier at D, window and page end inside C
 *     FULL    1    1    1    1          the whole path
 *     SWA     .    .    1    1          until window + page units are covered, whole nodes
 *     MAMBA   .    .    .    1          the state at the end
 *
 * Nodes count how many frontiers cover them, a component each.  The count is no lock: it only
 * orders.  FULL leaves go by (count, policy) (leaf.c), recency lists have a part for covered nodes
 * that goes last (list.c), and a component that no session covers does not take one with it that
 * is covered (take.c).
 *
 * Data.  The counts are in the node, because a split copies them and must not fail: FULL's in four
 * bytes that were padding, the others' beside the list marks.  Everything else is here:
 *
 *     buckets -> session -> session         by id; open, or closed and remembered
 *                   |
 *                   | first, last, a component each
 *                   v
 *                frontier <-> frontier      places of one array, free ones chained
 *                   ^
 *                   | first_frontier
 *                  node                     and on along node_next: other sessions, components
 *
 *     closed    newest <-> ... <-> oldest   at most KVG_TREE_SESSIONS_CLOSED; the oldest is
 *                                           forgotten
 *
 * A turn that ends below a frontier of its session moves it down: FULL then counts the new nodes
 * only, the others cover anew before they uncover, so that nothing is uncovered between.  A node
 * that is deleted hands its frontiers to the nearest ancestor that the component could use, unless
 * the session has one there.  A split leaves the frontier on the suffix, which ends where the node
 * did; SWA remembers how many units it covered, and splits only add boundaries inside them.
 *
 * Invariants (T10):
 *
 *     a  The buckets find every session; open and closed ones are counted; only open ones have
 *        frontiers; the closed are a list.
 *     b  A frontier is in the list of its session and component and in that of its node, and in no
 *        others; a session has no two of a component at one node.
 *     c  The counts of nodes are what the frontiers cover, and a window ends where a node begins.
 *
 * Threads: those of the tree.  Memory: opening, and closing an id that was never opened, need a
 * place and a copy of the id; a touch needs places for new frontiers, and reserves them first.
 *
 * What it does not do: protect from eviction.  When everything is covered, covered nodes go.
 */
#include "tree/session.h"

/* ---- Coverage ------------------------------------------------------------------------------ */

static void count_up(struct kvg_tree *tree, struct kvi_node *node, uint32_t slot)
{
    if ((*kvi_session_count(node, slot))++ == 0 && slot != 0)
        kvi_list_regroup(tree, slot, node);
}

static void count_down(struct kvg_tree *tree, struct kvi_node *node, uint32_t slot)
{
    KVI_ASSERT(kvi_in_session(node, slot));
    --*kvi_session_count(node, slot);
    if (slot == 0)
        kvi_leaf_fell(tree, node);
    else if (!kvi_in_session(node, slot))
        kvi_list_regroup(tree, slot, node);
}

/* Counts `node` and what is above it, below `until` (NULL: the root), as far as `reach` units need;
 * returns how many units that is, 0 for a node alone. */
static uint64_t cover(struct kvg_tree *tree, struct kvi_node *node, uint32_t slot,
    const struct kvi_node *until, uint64_t reach)
{
    uint64_t covered = 0;

    do {
        count_up(tree, node, slot);
        covered += node->length;
        node = node->parent;
    } while (node != until && !kvi_is_root(node) && covered < reach);
    return reach == 0 ? 0 : covered;
}

static void uncover(struct kvg_tree *tree, struct kvi_node *node, uint32_t slot,
    const struct kvi_node *until, uint64_t covered)
{
    uint64_t passed = 0;

    do {
        count_down(tree, node, slot);
        passed += node->length;
        node = node->parent;
    } while (node != until && !kvi_is_root(node) && passed < covered);
}

/* Moves a coverage from the end of `from` (NULL: there is none) to that of `to` (NULL: it ends).
 * One of them is above the other.  Downwards what is covered anew is counted first, upwards what
 * was covered is released first; recency lists show the difference. */
static uint64_t move_coverage(struct kvg_tree *tree, uint32_t slot, struct kvi_node *from,
    uint64_t covered, struct kvi_node *to)
{
    uint64_t reach = tree->components[slot]->session_reach(tree);
    bool down = from == NULL || (to != NULL && to->depth > from->depth);
    uint64_t now = reach;

    if (reach == UINT64_MAX) {
        if (down)
            cover(tree, to, slot, from, reach);
        else
            uncover(tree, from, slot, to, reach);
        return reach;
    }
    if (!down)
        uncover(tree, from, slot, NULL, covered);
    if (to != NULL)
        now = cover(tree, to, slot, NULL, reach);
    if (down && from != NULL)
        uncover(tree, from, slot, NULL, covered);
    return now;
}

/* ---- Frontiers ----------------------------------------------------------------------------- */

/* The nearest node, from `node` upwards, that the component could end a match at; NULL: none. */
static struct kvi_node *reusable(
    const struct kvg_tree *tree, struct kvi_node *node, uint32_t slot)
{
    uint64_t run = UINT64_MAX;

    for (; !kvi_is_root(node); node = node->parent) {
        if (tree->components[slot]->usable(tree, node, slot, false, &run))
            return node;
    }
    return NULL;
}

static uint32_t frontier_here(const struct kvg_tree *tree,
    const struct kvi_session *session, uint32_t slot, const struct kvi_node *node)
{
    if (node->first_frontier == KVI_NOBODY)
        return KVI_NOBODY;
    for (uint32_t f = session->first[slot]; f != KVI_NOBODY;
         f = kvi_frontier_at(tree, f)->next) {
        if (kvi_frontier_at(tree, f)->node == kvi_ref_of(node))
            return f;
    }
    return KVI_NOBODY;
}

/* The session's frontier nearest above a node. */
static uint32_t frontier_above(const struct kvg_tree *tree,
    const struct kvi_session *session, uint32_t slot, const struct kvi_node *node)
{
    for (node = node->parent; !kvi_is_root(node); node = node->parent) {
        uint32_t found = frontier_here(tree, session, slot, node);
        if (found != KVI_NOBODY)
            return found;
    }
    return KVI_NOBODY;
}

static void leave_node(struct kvg_tree *tree, uint32_t index)
{
    struct kvi_frontier *f = kvi_frontier_at(tree, index);

    if (f->node_previous != KVI_NOBODY)
        kvi_frontier_at(tree, f->node_previous)->node_next = f->node_next;
    else
        kvi_node_at(tree, f->node)->first_frontier = f->node_next;
    if (f->node_next != KVI_NOBODY)
        kvi_frontier_at(tree, f->node_next)->node_previous = f->node_previous;
}

static void enter_node(struct kvg_tree *tree, uint32_t index, struct kvi_node *node)
{
    struct kvi_frontier *f = kvi_frontier_at(tree, index);

    f->node = kvi_ref_of(node);
    f->node_previous = KVI_NOBODY;
    f->node_next = node->first_frontier;
    if (node->first_frontier != KVI_NOBODY)
        kvi_frontier_at(tree, node->first_frontier)->node_previous = index;
    node->first_frontier = index;
}

/* A place was reserved. */
static void add_frontier(struct kvg_tree *tree, uint32_t owner, uint32_t slot,
    struct kvi_node *node, uint64_t covered)
{
    struct kvi_sessions *sessions = &tree->sessions;
    struct kvi_session *session = kvi_session_at(tree, owner);
    uint32_t index = sessions->free_frontier;

    if (index != KVI_NOBODY)
        sessions->free_frontier = sessions->frontiers[index].next;
    else
        index = sessions->frontier_count++;
    KVI_ASSERT(index < sessions->frontier_capacity);
    sessions->frontiers[index] = (struct kvi_frontier){.session = owner,
        .slot = slot,
        .previous = session->last[slot],
        .covered = covered};
    if (session->last[slot] != KVI_NOBODY)
        kvi_frontier_at(tree, session->last[slot])->next = index;
    else
        session->first[slot] = index;
    session->last[slot] = index;
    session->count[slot]++;
    sessions->frontier_used++;
    enter_node(tree, index, node);
}

static void drop_frontier(struct kvg_tree *tree, uint32_t index)
{
    struct kvi_sessions *sessions = &tree->sessions;
    struct kvi_frontier *f = kvi_frontier_at(tree, index);
    struct kvi_session *session = kvi_session_at(tree, f->session);

    leave_node(tree, index);
    if (f->previous != KVI_NOBODY)
        kvi_frontier_at(tree, f->previous)->next = f->next;
    else
        session->first[f->slot] = f->next;
    if (f->next != KVI_NOBODY)
        kvi_frontier_at(tree, f->next)->previous = f->previous;
    else
        session->last[f->slot] = f->previous;
    session->count[f->slot]--;
    *f = (struct kvi_frontier){.next = sessions->free_frontier};
    sessions->free_frontier = index;
    sessions->frontier_used--;
}

/* A turn of the session ended at `leaf`. */
static void advance(
    struct kvg_tree *tree, uint32_t owner, uint32_t slot, struct kvi_node *leaf)
{
    struct kvi_session *session = kvi_session_at(tree, owner);

    if (frontier_here(tree, session, slot, leaf) != KVI_NOBODY)
        return;
    uint32_t above = frontier_above(tree, session, slot, leaf);
    if (above == KVI_NOBODY) {
        add_frontier(tree, owner, slot, leaf, move_coverage(tree, slot, NULL, 0, leaf));
        return;
    }
    struct kvi_frontier *f = kvi_frontier_at(tree, above);
    f->covered = move_coverage(tree, slot, kvi_node_at(tree, f->node), f->covered, leaf);
    leave_node(tree, above);
    enter_node(tree, above, leaf);
}

static void fall_back(struct kvg_tree *tree, uint32_t index, struct kvi_node *node)
{
    struct kvi_frontier *f = kvi_frontier_at(tree, index);
    struct kvi_node *to = reusable(tree, node->parent, f->slot);

    if (to != NULL &&
        frontier_here(tree, kvi_session_at(tree, f->session), f->slot, to) != KVI_NOBODY)
        to = NULL;
    f->covered = move_coverage(tree, f->slot, node, f->covered, to);
    if (to == NULL) {
        drop_frontier(tree, index);
        return;
    }
    leave_node(tree, index);
    enter_node(tree, index, to);
}

void kvi_sessions_leave(struct kvg_tree *tree, struct kvi_node *node)
{
    uint32_t next;

    kvi_leaf_forget(tree, node); /* It goes: no use in keeping its place in order. */
    for (uint32_t slot = 0; slot < tree->part_count; slot++) {
        for (uint32_t f = node->first_frontier; f != KVI_NOBODY; f = next) {
            next = kvi_frontier_at(tree, f)->node_next;
            if (kvi_frontier_at(tree, f)->slot == slot)
                fall_back(tree, f, node);
        }
    }
}

/* Returns how many frontiers the session had. */
static uint32_t release(struct kvg_tree *tree, uint32_t owner)
{
    uint32_t released = 0;

    for (uint32_t slot = 0; slot < tree->part_count; slot++) {
        uint32_t f;
        while ((f = kvi_session_at(tree, owner)->first[slot]) != KVI_NOBODY) {
            move_coverage(tree, slot, kvi_node_at(tree, kvi_frontier_at(tree, f)->node),
                kvi_frontier_at(tree, f)->covered, NULL);
            drop_frontier(tree, f);
            released++;
        }
    }
    return released;
}

/* ---- Calls --------------------------------------------------------------------------------- */

static kvg_err check_id(struct kvg_str id, struct kvg_error *error)
{
    if (id.data != NULL && id.bytes != 0 && id.bytes <= KVG_TREE_SESSION_ID_MAX)
        return KVG_OK;
    return kvi_fail_range(
        error, "session_id.bytes", id.bytes, 1, KVG_TREE_SESSION_ID_MAX);
}

static kvg_err over_limit(struct kvg_tree *tree, const char *field, uint64_t held,
    uint64_t limit, struct kvg_error *error)
{
    tree->sessions.refused++;
    kvi_fail_range(error, field, held + 1, 0, limit);
    if (error != NULL)
        error->code = KVG_ELIMIT;
    return KVG_ELIMIT;
}

kvg_err kvg_tree_session_open(struct kvg_tree *tree, struct kvg_str id,
    uint64_t *generation_out, struct kvg_error *error)
{
    struct kvi_sessions *sessions = &tree->sessions;
    kvg_err err = check_id(id, error);

    *generation_out = 0;
    if (!tree->options.sessions)
        return kvi_fail(error, KVG_EUNSUPPORTED, "tree.sessions", "are off in this tree");
    if (err != KVG_OK)
        return err;
    uint32_t index = kvi_session_find(tree, id);
    bool open = index != KVI_NOBODY && kvi_session_at(tree, index)->generation != 0;
    if (!open && sessions->open_count >= tree->options.session_max) {
        return over_limit(tree, "tree.session_max", sessions->open_count,
            tree->options.session_max, error);
    }
    if (index == KVI_NOBODY)
        index = kvi_session_make(tree, id);
    else if (!open)
        kvi_session_reopen(tree, index);
    if (index == KVI_NOBODY)
        return kvi_fail(error, KVG_ENOMEM, "session", "no memory for a session");
    sessions->open_count += open ? 0 : 1;
    kvi_session_at(tree, index)->generation = ++sessions->generation;
    *generation_out = sessions->generation;
    return KVG_OK;
}

kvg_err kvg_tree_session_ensure(struct kvg_tree *tree, struct kvg_str id,
    uint64_t *generation_out, struct kvg_error *error)
{
    uint32_t index = kvi_session_find(tree, id);

    if (index == KVI_NOBODY || kvi_session_at(tree, index)->generation == 0)
        return kvg_tree_session_open(tree, id, generation_out, error);
    *generation_out = kvi_session_at(tree, index)->generation;
    return KVG_OK;
}

/* The leaves of a touch, a component each, and room for them. */
static kvg_err prepare(struct kvg_tree *tree, uint32_t owner, struct kvi_node *node,
    struct kvi_node **leaves, struct kvg_error *error)
{
    const struct kvi_session *session = kvi_session_at(tree, owner);
    uint32_t wanted = 0;

    for (uint32_t slot = 0; slot < tree->part_count; slot++) {
        leaves[slot] = reusable(tree, node, slot);
        if (leaves[slot] == NULL ||
            frontier_here(tree, session, slot, leaves[slot]) != KVI_NOBODY ||
            frontier_above(tree, session, slot, leaves[slot]) != KVI_NOBODY)
            continue;
        wanted++;
        if (session->count[slot] < KVG_TREE_FRONTIERS_MAX)
            continue;
        return over_limit(tree, "session.frontiers", session->count[slot],
            KVG_TREE_FRONTIERS_MAX, error);
    }
    if (wanted != 0 && kvi_frontiers_reserve(tree, wanted) != KVG_OK)
        return kvi_fail(error, KVG_ENOMEM, "session", "no memory for a frontier");
    return KVG_OK;
}

kvg_err kvg_tree_session_touch(struct kvg_tree *tree, struct kvg_str id,
    uint64_t generation, kvg_node_id node_id, bool *held_out, struct kvg_error *error)
{
    struct kvi_node *node = kvi_node_find(tree, node_id);
    struct kvi_node *leaves[KVI_PARTS_MAX];
    uint32_t owner = kvi_session_find(tree, id);

    *held_out = false;
    if (node == NULL)
        return kvi_no_node(error, node_id);
    if (owner == KVI_NOBODY || generation == 0 ||
        kvi_session_at(tree, owner)->generation != generation) {
        tree->sessions.stale += tree->options.sessions ? 1 : 0;
        return KVG_OK;
    }
    if (kvi_is_root(node))
        return KVG_OK;
    kvg_err err = prepare(tree, owner, node, leaves, error);
    if (err != KVG_OK)
        return err;
    for (uint32_t slot = 0; slot < tree->part_count; slot++) {
        if (leaves[slot] == NULL)
            continue;
        advance(tree, owner, slot, leaves[slot]);
        *held_out = true;
    }
    return KVG_OK;
}

kvg_err kvg_tree_session_close(struct kvg_tree *tree, struct kvg_str id,
    uint64_t *released_out, struct kvg_error *error)
{
    kvg_err err = check_id(id, error);

    *released_out = 0;
    if (!tree->options.sessions || err != KVG_OK)
        return err;
    uint32_t index = kvi_session_find(tree, id);
    if (index == KVI_NOBODY) {
        index = kvi_session_make(tree, id);
        if (index == KVI_NOBODY)
            return kvi_fail(error, KVG_ENOMEM, "session", "no memory for a closed id");
    } else if (kvi_session_at(tree, index)->generation == 0) {
        return KVG_OK;
    } else {
        *released_out = release(tree, index);
        tree->sessions.open_count--;
    }
    kvi_session_remember(tree, index);
    return KVG_OK;
}

kvg_err kvg_tree_session_get(
    const struct kvg_tree *tree, struct kvg_str id, struct kvg_tree_session *out)
{
    uint32_t index = kvi_session_find(tree, id);

    *out = (struct kvg_tree_session){.struct_bytes = sizeof(*out)};
    if (index == KVI_NOBODY)
        return KVG_ENOENT;
    const struct kvi_session *session = kvi_session_at(tree, index);
    out->generation = session->generation;
    for (uint32_t slot = 0; slot < tree->part_count; slot++)
        out->frontier_count[tree->components[slot]->type] = session->count[slot];
    return KVG_OK;
}

size_t kvg_tree_session_frontiers(const struct kvg_tree *tree, struct kvg_str id,
    uint32_t component, kvg_node_id *nodes, size_t node_max)
{
    uint32_t index = kvi_session_find(tree, id);
    size_t count = 0;

    if (index == KVI_NOBODY || component >= KVG_COMPONENT_MAX ||
        tree->slot_of[component] < 0)
        return 0;
    uint32_t slot = (uint32_t)tree->slot_of[component];
    for (uint32_t f = kvi_session_at(tree, index)->first[slot]; f != KVI_NOBODY;
         f = kvi_frontier_at(tree, f)->next) {
        if (count < node_max)
            nodes[count] = kvi_node_at(tree, kvi_frontier_at(tree, f)->node)->id;
        count++;
    }
    return count;
}
