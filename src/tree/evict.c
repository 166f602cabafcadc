/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* evict.c -- the device walks.
 *
 * FULL walks its leaves in the policy's order (leaf.c).  A leaf that a step returned is taken
 * out of that order until the walk ends, so that the walk goes on even if the caller could
 * not evict it.
 *
 * SWA and MAMBA walk their recency lists from the oldest unlocked entry:
 *
 *     newest <- ... <- cursor <- ... <- oldest
 *
 *     a device leaf        is returned: it goes whole
 *     an internal node     loses the component at once (a tombstone), or under write-back first
 *                          asks for its state to be written to host
 *
 * With sessions the walk keeps its place in the list itself (list.c), reads its next node after the
 * last was evicted, and returns a device leaf only if that may go whole (kvi_may_go_whole);
 * otherwise the leaf loses the component, as an internal node does.
 *
 * Each step changes at most one node.
 */
#include "tree/evict.h"

#include "tree/record.h"

static kvg_err find_slot(const struct kvg_tree *tree, uint32_t component, uint32_t *slot,
    struct kvg_error *error)
{
    *slot = 0;
    if (component >= KVG_COMPONENT_MAX || tree->slot_of[component] < 0)
        return kvi_fail(error, KVG_EINVAL, "component", "the tree has no such component");
    *slot = (uint32_t)tree->slot_of[component];
    return KVG_OK;
}

static void lower_name(struct kvi_text *text, uint32_t component)
{
    for (const char *c = kvg_component_name(component); *c != '\0'; c++) {
        char lower[2] = {(char)(*c >= 'A' && *c <= 'Z' ? *c - 'A' + 'a' : *c), '\0'};
        kvi_text_str(text, lower);
    }
}

static kvg_err walk_state(uint32_t component, const char *what, struct kvg_error *error)
{
    char message[96];
    struct kvi_text text;

    kvi_text_init(&text, message, sizeof(message));
    lower_name(&text, component);
    kvi_text_str(&text, " device eviction ");
    kvi_text_str(&text, what);
    return kvi_fail(error, KVG_ESTATE, "evict", message);
}

static struct kvi_node *newer_of(
    const struct kvg_tree *tree, const struct kvi_node *node, uint32_t slot)
{
    return kvi_node_or_null(tree, kvi_aux(node, slot)->link[KVG_TIER_DEVICE].newer);
}

static struct kvi_node *oldest_unlocked(const struct kvg_tree *tree, uint32_t slot)
{
    return kvi_list_unlocked(tree, slot, KVG_TIER_DEVICE,
        kvi_node_or_null(tree, tree->lists[slot][KVG_TIER_DEVICE].oldest));
}

static void set_cursor(struct kvi_walk *walk, const struct kvi_node *node)
{
    walk->cursor = node == NULL ? KVG_NODE_NONE : node->id;
}

/* ---- Start, end ---------------------------------------------------------------------------- */

kvg_err kvg_tree_evict_start(
    struct kvg_tree *tree, uint32_t component, uint64_t wanted, struct kvg_error *error)
{
    uint32_t slot;
    kvg_err err = find_slot(tree, component, &slot, error);

    if (err != KVG_OK)
        return err;
    struct kvi_walk *walk = &tree->walks[slot];
    if (walk->active)
        return walk_state(component, "already in progress", error);
    *walk = (struct kvi_walk){.active = true, .wanted = wanted};
    if (slot != 0 && tree->options.sessions) {
        kvi_list_rewind(tree, slot, KVG_TIER_DEVICE);
        set_cursor(walk, kvi_list_walk(tree, slot, KVG_TIER_DEVICE));
    } else if (slot != 0) {
        set_cursor(walk, oldest_unlocked(tree, slot));
    }
    return KVG_OK;
}

kvg_err kvg_tree_evict_end(
    struct kvg_tree *tree, uint32_t component, struct kvg_error *error)
{
    uint32_t slot;
    kvg_err err = find_slot(tree, component, &slot, error);

    if (err != KVG_OK)
        return err;
    struct kvi_walk *walk = &tree->walks[slot];
    if (!walk->active)
        return walk_state(component, "not started", error);
    while (walk->popped != 0) {
        struct kvi_node *node = kvi_node_at(tree, walk->popped);
        walk->popped = node->walk_next;
        kvi_leaf_restore(tree, node);
    }
    kvi_list_rewind(tree, slot, KVG_TIER_DEVICE);
    *walk = (struct kvi_walk){0};
    return KVG_OK;
}

/* ---- Steps --------------------------------------------------------------------------------- */

static void next_full(
    struct kvg_tree *tree, uint64_t evicted_so_far, struct kvg_tree_evicted *out)
{
    if (evicted_so_far >= tree->walks[0].wanted)
        return;
    struct kvi_node *leaf = kvi_leaf_first(tree, KVG_TIER_DEVICE);
    if (leaf == NULL)
        return;
    kvi_leaf_pop(tree, leaf);
    out->node = leaf->id;
    out->progress = true;
}

uint64_t kvi_swa_backup_window(const struct kvg_tree *tree, struct kvi_node *node,
    void (*visit)(void *context, struct kvi_node *node), void *context)
{
    int8_t at = tree->slot_of[KVG_COMPONENT_SWA];
    uint64_t covered = 0;
    uint64_t units = 0;

    if (at < 0)
        return 0;
    uint32_t slot = (uint32_t)at;
    for (; !kvi_is_root(node) && covered < tree->options.window;
         node = kvi_parent(tree, node)) {
        bool device = kvi_has(node, slot, KVG_TIER_DEVICE);
        bool host = kvi_has(node, slot, KVG_TIER_HOST);
        if (node->pending_write != KVG_NODE_NONE || (!device && !host))
            break;
        if (device && !host) {
            units += node->length;
            if (visit != NULL)
                visit(context, node);
        }
        covered += node->length;
    }
    return units;
}

/* Under write-back: what of an internal node's state has to be written first; 0: nothing. */
static uint64_t backup_needed(
    const struct kvg_tree *tree, struct kvi_node *node, uint32_t slot)
{
    const struct kvg_tree_settings *settings = &tree->settings;
    bool is_swa = tree->components[slot]->type == KVG_COMPONENT_SWA;

    if (!settings->write_back || !settings->host_tier ||
        (is_swa && !settings->swa_host_pool) || kvi_has(node, slot, KVG_TIER_HOST) ||
        kvi_backed_up(node) || !kvi_has(node, 0, KVG_TIER_DEVICE))
        return 0;
    return is_swa ? kvi_swa_backup_window(tree, node, NULL, NULL) : 1;
}

static kvg_err tombstone(struct kvg_tree *tree, struct kvi_node *node, uint32_t slot,
    struct kvg_actions *actions, struct kvg_tree_evicted *out, struct kvg_error *error)
{
    kvg_err err = kvi_cascade_check(tree, node, slot, KVG_TIER_DEVICE, error);

    if (err == KVG_OK)
        err = kvi_evict_reserve(tree, node, actions, error);
    if (err != KVG_OK)
        return err;
    kvi_take_with_cascade(tree, node, slot, KVG_TIER_DEVICE, actions, out);
    out->progress = true;
    return KVG_OK;
}

static bool goes_whole(
    const struct kvg_tree *tree, const struct kvi_node *node, uint32_t slot)
{
    return (node->flags & KVI_NODE_DEVICE_LEAF) != 0 &&
           (!tree->options.sessions || kvi_may_go_whole(tree, node, slot));
}

static kvg_err next_listed(struct kvg_tree *tree, uint32_t slot, uint64_t evicted_so_far,
    struct kvg_actions *actions, struct kvg_tree_evicted *out, struct kvg_error *error)
{
    struct kvi_walk *walk = &tree->walks[slot];
    struct kvi_node *node = kvi_node_find(tree, walk->cursor);
    bool sessions = tree->options.sessions;

    if (walk->cursor == KVG_NODE_NONE || evicted_so_far >= walk->wanted)
        return KVG_OK;
    if (node == NULL || !kvi_listed(node, slot, KVG_TIER_DEVICE))
        node = sessions ? kvi_list_walk(tree, slot, KVG_TIER_DEVICE)
                        : oldest_unlocked(tree, slot);
    if (node == NULL) {
        walk->cursor = KVG_NODE_NONE;
        return KVG_OK;
    }
    struct kvi_node *next = sessions ? NULL
                                     : kvi_list_unlocked(tree, slot, KVG_TIER_DEVICE,
                                           newer_of(tree, node, slot));
    if (goes_whole(tree, node, slot)) {
        if (sessions)
            next = kvi_list_walk(tree, slot, KVG_TIER_DEVICE);
        set_cursor(walk, next);
        out->node = node->id;
        out->progress = true;
        return KVG_OK;
    }
    uint64_t units = backup_needed(tree, node, slot);
    if (units != 0) {
        if (sessions)
            next = kvi_list_walk(tree, slot, KVG_TIER_DEVICE);
        set_cursor(walk, next);
        walk->pending = node->id;
        out->backup_node = node->id;
        out->backup_units = units;
        out->progress = true;
        return KVG_OK;
    }
    kvg_err err = tombstone(tree, node, slot, actions, out, error);
    if (err != KVG_OK)
        return err;
    if (sessions)
        next = kvi_list_walk(tree, slot, KVG_TIER_DEVICE);
    set_cursor(walk, next);
    return KVG_OK;
}

kvg_err kvg_tree_evict_next(struct kvg_tree *tree, uint32_t component,
    uint64_t evicted_so_far, struct kvg_actions *actions, struct kvg_tree_evicted *out,
    struct kvg_error *error)
{
    uint32_t slot;
    kvg_err err = find_slot(tree, component, &slot, error);

    *out = (struct kvg_tree_evicted){.struct_bytes = sizeof(*out)};
    if (err != KVG_OK)
        return err;
    struct kvi_walk *walk = &tree->walks[slot];
    if (!walk->active)
        return walk_state(component, "not started", error);
    if (walk->pending != KVG_NODE_NONE)
        return kvi_fail(error, KVG_ESTATE, "evict",
            component == KVG_COMPONENT_SWA
                ? "finish the pending internal SWA eviction before advancing"
                : "finish the pending internal MAMBA eviction before advancing");
    if (slot == 0) {
        next_full(tree, evicted_so_far, out);
        return KVG_OK;
    }
    return next_listed(tree, slot, evicted_so_far, actions, out, error);
}

kvg_err kvg_tree_evict_finish_state(struct kvg_tree *tree, uint32_t component,
    kvg_node_id id, struct kvg_actions *actions, struct kvg_tree_evicted *out,
    struct kvg_error *error)
{
    uint32_t slot;
    kvg_err err = find_slot(tree, component, &slot, error);

    *out = (struct kvg_tree_evicted){.struct_bytes = sizeof(*out)};
    if (err != KVG_OK)
        return err;
    struct kvi_walk *walk = &tree->walks[slot];
    if (!walk->active || id == KVG_NODE_NONE || walk->pending != id)
        return kvi_fail(error, KVG_ESTATE, "evict",
            component == KVG_COMPONENT_SWA
                ? "no matching pending internal SWA eviction"
                : "no matching pending internal MAMBA eviction");
    struct kvi_node *node = kvi_node_find(tree, id);
    bool is_mamba = component == KVG_COMPONENT_MAMBA;
    bool gone = node == NULL || !kvi_has(node, slot, KVG_TIER_DEVICE) ||
                kvi_part(node, slot)->lock[KVG_TIER_DEVICE] != 0 ||
                !kvi_listed(node, slot, KVG_TIER_DEVICE) ||
                (is_mamba && node->pending_load != KVG_NODE_NONE);
    if (!gone && goes_whole(tree, node, slot)) {
        set_cursor(walk, node);
        /* So that the walk goes on behind it, not behind what would have been next. */
        tree->lists[slot][KVG_TIER_DEVICE].passed =
            tree->options.sessions ? kvi_ref_of(node) : 0;
    } else if (!gone) {
        err = tombstone(tree, node, slot, actions, out, error);
    }
    if (err != KVG_OK)
        return err;
    walk->pending = KVG_NODE_NONE;
    out->progress = true;
    return KVG_OK;
}

/* ---- Leaves -------------------------------------------------------------------------------- */

static kvg_err find_leaf(const struct kvg_tree *tree, kvg_node_id id,
    struct kvi_node **out, struct kvg_error *error)
{
    *out = kvi_node_find(tree, id);
    if (*out == NULL)
        return kvi_no_node(error, id);
    if (((*out)->flags & KVI_NODE_DEVICE_LEAF) == 0)
        return kvi_fail_node(error, KVG_ESTATE, "node", "node ", id, " is not a D-leaf");
    return KVG_OK;
}

static void demote(struct kvg_tree *tree, struct kvi_node *node,
    struct kvg_actions *actions, struct kvg_tree_evicted *out)
{
    struct kvi_node *parent = kvi_parent(tree, node);

    kvi_take_with_cascade(tree, node, 0, KVG_TIER_DEVICE, actions, out);
    kvi_record_removed(tree, node, KVG_MEDIUM_DEVICE);
    for (uint32_t slot = 1; slot < tree->part_count; slot++) {
        if (kvi_has(node, slot, KVG_TIER_HOST) &&
            kvi_part(node, slot)->lock[KVG_TIER_HOST] == 0 &&
            !kvi_listed(node, slot, KVG_TIER_HOST))
            kvi_list_add_newest(tree, slot, KVG_TIER_HOST, node);
    }
    kvi_duplicate_forget(tree, node);
    kvi_leaf_update(tree, parent);
}

kvg_err kvg_tree_evict_leaf(struct kvg_tree *tree, kvg_node_id id, bool write_back,
    struct kvg_actions *actions, struct kvg_tree_evicted *out, struct kvg_error *error)
{
    struct kvi_node *node;
    kvg_err err = find_leaf(tree, id, &node, error);

    *out = (struct kvg_tree_evicted){.struct_bytes = sizeof(*out)};
    if (err != KVG_OK)
        return err;
    if (!kvi_backed_up(node) && write_back) {
        out->backup_wanted = true;
        return KVG_OK;
    }
    if (!kvi_backed_up(node) && node->child_count != 0)
        return kvi_fail_node(
            error, KVG_ESTATE, "node", "unbacked node ", id, " has host-only children");
    err = kvi_evict_reserve(tree, node, actions, error);
    if (err != KVG_OK)
        return err;
    out->progress = true;
    if (kvi_backed_up(node)) {
        demote(tree, node, actions, out);
        return KVG_OK;
    }
    struct kvi_node *parent = kvi_parent(tree, node);
    kvi_record_removed(tree, node, KVG_MEDIUM_DEVICE);
    kvi_delete_leaf(tree, node, KVG_TIER_DEVICE, actions, out);
    kvi_clean_up_ancestors(tree, parent, actions, out);
    return KVG_OK;
}

kvg_err kvg_tree_demote(struct kvg_tree *tree, kvg_node_id id,
    struct kvg_actions *actions, struct kvg_tree_evicted *out, struct kvg_error *error)
{
    struct kvi_node *node;
    kvg_err err = find_leaf(tree, id, &node, error);

    *out = (struct kvg_tree_evicted){.struct_bytes = sizeof(*out)};
    if (err != KVG_OK)
        return err;
    if (!kvi_backed_up(node))
        return kvi_fail_node(
            error, KVG_ESTATE, "node", "node ", id, " has no host copy to stay on");
    err = kvi_evict_reserve(tree, node, actions, error);
    if (err != KVG_OK)
        return err;
    demote(tree, node, actions, out);
    out->progress = true;
    return KVG_OK;
}

/* The next of a subtree's nodes, children before parents; NULL after `top`. */
static struct kvi_node *first_below(const struct kvg_tree *tree, struct kvi_node *node)
{
    while (node->first_child != 0)
        node = kvi_node_at(tree, node->first_child);
    return node;
}

static struct kvi_node *next_below(
    const struct kvg_tree *tree, const struct kvi_node *top, struct kvi_node *node)
{
    if (node == top)
        return NULL;
    if (node->next_sibling != 0)
        return first_below(tree, kvi_node_at(tree, node->next_sibling));
    return kvi_parent(tree, node);
}

static bool may_drop(const struct kvg_tree *tree, struct kvi_node *top)
{
    for (struct kvi_node *n = first_below(tree, top); n != NULL;
         n = next_below(tree, top, n)) {
        if (n->locked_parts[KVG_TIER_HOST] != 0 || n->locked_parts[KVG_TIER_DEVICE] != 0)
            return false;
    }
    return true;
}

kvg_err kvg_tree_drop_subtree(struct kvg_tree *tree, kvg_node_id id,
    struct kvg_actions *actions, struct kvg_tree_evicted *out, struct kvg_error *error)
{
    struct kvi_node *top;
    kvg_err err = find_leaf(tree, id, &top, error);

    *out = (struct kvg_tree_evicted){.struct_bytes = sizeof(*out)};
    if (err != KVG_OK)
        return err;
    if (kvi_backed_up(top) || top->pending_write != KVG_NODE_NONE)
        return kvi_fail_node(
            error, KVG_ESTATE, "node", "node ", id, " is backed up or pending");
    if (!may_drop(tree, top))
        return KVG_OK;
    /* Deepest first; each deletion is whole, so running out of memory leaves fewer nodes. */
    for (;;) {
        struct kvi_node *node = first_below(tree, top);
        struct kvi_node *parent = kvi_parent(tree, node);
        bool last = node == top;
        err = kvi_evict_reserve(tree, node, actions, error);
        if (err != KVG_OK)
            return err;
        kvi_record_removed(tree, node, last ? KVG_MEDIUM_DEVICE : KVG_MEDIUM_CPU);
        kvi_delete_leaf(tree, node, KVG_TIER_DEVICE, actions, out);
        if (last) {
            kvi_clean_up_ancestors(tree, parent, actions, out);
            break;
        }
    }
    out->dropped = true;
    out->progress = true;
    return KVG_OK;
}

/* ---- Single parts -------------------------------------------------------------------------- */

kvg_err kvg_tree_evict_component(struct kvg_tree *tree, kvg_node_id id,
    uint32_t component, enum kvg_tier tier, struct kvg_actions *actions,
    struct kvg_tree_evicted *out, struct kvg_error *error)
{
    struct kvi_node *node = kvi_node_find(tree, id);
    uint32_t slot;
    kvg_err err = find_slot(tree, component, &slot, error);

    *out = (struct kvg_tree_evicted){.struct_bytes = sizeof(*out)};
    if (err != KVG_OK)
        return err;
    if (node == NULL)
        return kvi_no_node(error, id);
    if (kvi_part(node, slot)->lock[tier] != 0 || kvi_is_root(node))
        return kvi_fail_node(error, KVG_ESTATE, "node", "node ", id, " is locked");
    if (slot == 0 &&
        (node->flags & (tier == KVG_TIER_DEVICE ? KVI_NODE_DEVICE_LEAF : 0)) == 0)
        return kvi_fail_node(error, KVG_ESTATE, "node", "node ", id, " is not a D-leaf");
    err = kvi_cascade_check(tree, node, slot, tier, error);
    if (err == KVG_OK)
        err = kvi_evict_reserve(tree, node, actions, error);
    if (err != KVG_OK)
        return err;
    kvi_take_with_cascade(tree, node, slot, tier, actions, out);
    kvi_leaf_update(tree, kvi_parent(tree, node));
    out->progress = true;
    return KVG_OK;
}

kvg_err kvg_tree_evict_excess_path_states(struct kvg_tree *tree, kvg_node_id tail_id,
    struct kvg_actions *actions, struct kvg_tree_evicted *out, struct kvg_error *error)
{
    struct kvi_node *tail = kvi_node_find(tree, tail_id);
    int8_t at = tree->slot_of[KVG_COMPONENT_MAMBA];
    int64_t excess = -(int64_t)tree->options.mamba_states_per_path_max;
    kvi_ref below = 0;

    *out = (struct kvg_tree_evicted){.struct_bytes = sizeof(*out)};
    if (tail == NULL)
        return kvi_no_node(error, tail_id);
    if (at < 0 || tree->options.mamba_states_per_path_max < 0)
        return KVG_OK;
    uint32_t slot = (uint32_t)at;
    for (struct kvi_node *n = tail; !kvi_is_root(n); n = kvi_parent(tree, n)) {
        n->path_next = below;
        below = kvi_ref_of(n);
        if (kvi_has(n, slot, KVG_TIER_DEVICE))
            excess++;
    }
    for (struct kvi_node *n = kvi_node_or_null(tree, below); n != tail && excess > 0;
         n = kvi_node_at(tree, n->path_next)) {
        if (!kvi_has(n, slot, KVG_TIER_DEVICE) ||
            kvi_part(n, slot)->lock[KVG_TIER_DEVICE] != 0 || n->child_count != 1 ||
            (n->flags & KVI_NODE_DEVICE_LEAF) != 0)
            continue;
        kvg_err err = tombstone(tree, n, slot, actions, out, error);
        if (err != KVG_OK)
            return err;
        excess--;
    }
    return KVG_OK;
}

uint64_t kvg_tree_reclaim_digest(const struct kvg_tree *tree)
{
    return tree->reclaim_digest;
}
