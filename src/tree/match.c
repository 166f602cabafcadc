/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* match.c -- the longest prefix that every component can use.
 *
 * The walk goes down while pages are equal, and asks every component at every node whether a match
 * could end there.  Components answer from a running state (SWA: how much of a window lies behind
 * without a hole), so all of them are asked every time.  With a host tier the question is asked
 * twice: for what can be used, and for what can be used on device as it is.
 *
 *     root - A - B - C           best_match_node: deepest node all components could use
 *            ^       ^           last_device_node: deepest they can use on device
 *            device  best
 *
 * Side effects: recency, and at most one split.
 */
#include "tree/tree.h"

static kvg_err room_for_spans(struct kvg_tree *tree, uint32_t count)
{
    uint64_t wanted = (uint64_t)tree->match_span_count + count;
    uint64_t capacity = tree->match_span_capacity == 0 ? 64 : tree->match_span_capacity;
    void *spans = tree->match_spans;

    if (wanted <= tree->match_span_capacity)
        return KVG_OK;
    while (capacity < wanted)
        capacity *= 2;
    if (capacity > UINT32_MAX ||
        !kvi_resize_array(&tree->alloc, &spans, tree->match_span_capacity,
            (size_t)capacity, sizeof(*tree->match_spans)))
        return KVG_ENOMEM;
    tree->match_spans = spans;
    tree->match_span_capacity = (uint32_t)capacity;
    return KVG_OK;
}

/* Appends the first `length` slots of a value, joined to the span before where they touch. */
static kvg_err gather(struct kvg_tree *tree, struct kvi_value *value, uint32_t length)
{
    kvi_value_trim(tree, value);
    if (room_for_spans(tree, kvi_value_span_count(value, 0, length)) != KVG_OK)
        return KVG_ENOMEM;
    struct kvg_span *end = tree->match_spans + tree->match_span_count;
    uint32_t count = kvi_value_spans(value, 0, length, end);
    if (count != 0 && tree->match_span_count != 0 && end[-1].buffer == end[0].buffer &&
        end[-1].offset + end[-1].length == end[0].offset &&
        end[-1].length + (uint64_t)end[0].length <= UINT32_MAX) {
        end[-1].length += end[0].length;
        memmove(end, end + 1, (count - 1) * sizeof(*end));
        count--;
    }
    tree->match_span_count += count;
    return KVG_OK;
}

/* How far a walk got. */
struct walk {
    struct kvi_node *best, *device;
    uint64_t run[KVI_PARTS_MAX], device_run[KVI_PARTS_MAX];
    uint64_t gathered;      /* Units with FULL on device so far; */
    uint64_t device_length; /* those of them up to `device`. */
    uint32_t device_spans;
    struct kvg_span
        device_end; /* The last of these spans, before later units joined it. */
    uint64_t full_length;
    bool two_tiers;
};

static bool all_usable(const struct kvg_tree *tree, const struct kvi_node *node,
    bool device_only, uint64_t *run)
{
    bool ok = true;

    for (uint32_t slot = 0; slot < tree->part_count; slot++) {
        if (!tree->components[slot]->usable(tree, node, slot, device_only, &run[slot]))
            ok = false;
    }
    return ok;
}

static kvg_err visit(struct kvg_tree *tree, struct walk *walk, struct kvi_node *node)
{
    struct kvi_value *full = &node->full.value[KVG_TIER_DEVICE];

    if (full->length != 0) {
        if (gather(tree, full, full->length) != KVG_OK)
            return KVG_ENOMEM;
        walk->gathered += full->length;
    }
    bool device = all_usable(tree, node, true, walk->device_run);
    if (device) {
        walk->device = node;
        walk->device_length = walk->gathered;
        walk->device_spans = tree->match_span_count;
        if (tree->match_span_count != 0)
            walk->device_end = tree->match_spans[tree->match_span_count - 1];
    }
    if (walk->two_tiers ? all_usable(tree, node, false, walk->run) : device)
        walk->best = node;
    return KVG_OK;
}

static kvg_err walk_down(struct kvg_tree *tree, struct walk *walk,
    const struct kvg_tree_key *key, uint64_t units, uint32_t space,
    struct kvg_actions *actions, struct kvg_error *error)
{
    struct kvi_node *node = kvi_node_at(tree, tree->root);
    struct kvi_descent descent;
    uint64_t offset = 0;
    uint32_t matched;

    kvi_descent_init(&descent, key->tokens, units, space);
    while (offset < units) {
        struct kvi_node *child = kvi_descend(tree, &descent, node, offset, &matched);
        if (child == NULL || kvi_awaits(child, 0) ||
            (kvi_evicted(child) && !kvi_backed_up(child)))
            break;
        bool whole = matched == child->length;
        if (!whole) {
            const struct kvi_value *full = &child->full.value[KVG_TIER_DEVICE];
            if (kvi_actions_reserve(actions, 1, 0, 0) != KVG_OK ||
                room_for_spans(tree, kvi_value_span_count(full, 0, full->length)) !=
                    KVG_OK)
                return kvi_fail(error, KVG_ENOMEM, "match", "no memory for a split");
            kvg_err err = kvi_tree_reserve_nodes(tree, 1, error);
            if (err != KVG_OK)
                return err;
            child = kvi_node_split(tree, child, matched, actions);
        }
        walk->full_length += matched;
        if (visit(tree, walk, child) != KVG_OK)
            return kvi_fail(error, KVG_ENOMEM, "match", "no memory for spans");
        if (!whole)
            break;
        offset += matched;
        node = child;
    }
    return KVG_OK;
}

static void refresh(struct kvg_tree *tree, struct kvi_node *best)
{
    for (uint32_t slot = 1; slot < tree->part_count; slot++)
        tree->components[slot]->refresh_match(tree, best, slot);
    uint64_t time = kvi_tick(tree);
    for (struct kvi_node *n = best; n != NULL; n = kvi_parent(tree, n)) {
        n->last_access = time--;
        kvi_leaf_touched(tree, n);
    }
}

kvg_err kvg_tree_match_prefix(struct kvg_tree *tree, const struct kvg_tree_key *key,
    struct kvg_actions *actions, struct kvg_tree_match *out, struct kvg_error *error)
{
    struct kvi_node *root = kvi_node_at(tree, tree->root);
    struct walk walk = {
        .best = root, .device = root, .two_tiers = tree->settings.host_tier};
    struct kvg_tree_key view;
    uint32_t space;

    *out = (struct kvg_tree_match){.struct_bytes = sizeof(*out),
        .last_device_node = root->id,
        .last_host_node = root->id,
        .best_match_node = root->id,
        .swa_branching = -1,
        .mamba_branching = -1};
    uint64_t units = kvi_tree_key(tree, key, &view);
    if (units == 0)
        return KVG_OK;
    memset(walk.run, 0xff, sizeof(walk.run));
    memset(walk.device_run, 0xff, sizeof(walk.device_run));
    tree->match_span_count = 0;
    if (kvi_space_find(tree, &view.space, &space)) {
        kvg_err err = walk_down(tree, &walk, &view, units, space, actions, error);
        if (err != KVG_OK)
            return err;
    }
    refresh(tree, walk.best);

    if (walk.device_spans != 0)
        tree->match_spans[walk.device_spans - 1] = walk.device_end;
    tree->match_span_count = walk.device_spans;
    out->device_spans = tree->match_spans;
    out->device_span_count = walk.device_spans;
    out->device_length = walk.device_length;
    out->full_length = walk.full_length;
    out->last_device_node = walk.device->id;
    out->best_match_node = walk.best->id;
    out->last_host_node = walk.best->id;
    for (uint32_t slot = 0; slot < tree->part_count; slot++)
        tree->components[slot]->finalize_match(tree, walk.best, walk.device, slot, out);
    tree->stats.matches++;
    return KVG_OK;
}

kvg_err kvg_tree_match_full_device(const struct kvg_tree *tree,
    const struct kvg_tree_key *key, uint64_t *length_out, kvg_node_id *node_out,
    uint64_t *pinned_out)
{
    const struct kvi_node *node = kvi_node_at(tree, tree->root);
    struct kvg_tree_key view;
    uint64_t units = kvi_tree_key(tree, key, &view);
    struct kvi_descent descent;
    uint64_t offset = 0;
    uint32_t space;
    uint32_t matched;

    *pinned_out = 0;
    if (units != 0 && kvi_space_find(tree, &view.space, &space)) {
        kvi_descent_init(&descent, view.tokens, units, space);
        while (offset < units) {
            const struct kvi_node *child =
                kvi_descend(tree, &descent, node, offset, &matched);
            if (child == NULL || kvi_awaits(child, 0) ||
                !kvi_has(child, 0, KVG_TIER_DEVICE))
                break;
            offset += matched;
            *pinned_out += child->length;
            node = child;
            if (matched < child->length)
                break;
        }
    }
    *length_out = offset;
    *node_out = node->id;
    return KVG_OK;
}

/* Links the nodes from below `until` down to `from` by their scratch field, and returns the top
 * one; NULL when there is none. */
static struct kvi_node *path_from_top(
    struct kvg_tree *tree, struct kvi_node *from, const struct kvi_node *until)
{
    kvi_ref below = 0;
    struct kvi_node *top = NULL;

    for (struct kvi_node *n = from; n != until; n = kvi_parent(tree, n)) {
        n->path_next = below;
        below = kvi_ref_of(n);
        top = n;
    }
    return top;
}

kvg_err kvg_tree_collect_full_device(struct kvg_tree *tree, kvg_node_id from,
    kvg_node_id until, const struct kvg_span **spans_out, size_t *span_count_out,
    struct kvg_error *error)
{
    struct kvi_node *deep = kvi_node_find(tree, from);
    struct kvi_node *anchor = kvi_node_find(tree, until);

    *spans_out = NULL;
    *span_count_out = 0;
    if (deep == NULL || anchor == NULL)
        return kvi_no_node(error, deep == NULL ? from : until);
    for (struct kvi_node *n = deep; n != anchor; n = kvi_parent(tree, n)) {
        if (kvi_is_root(n))
            return kvi_fail_node(
                error, KVG_EINVAL, "until", "node ", until, " is not an ancestor");
        if (!kvi_has(n, 0, KVG_TIER_DEVICE))
            return kvi_fail_node(
                error, KVG_ESTATE, "from", "node ", n->id, " has no FULL device value");
    }
    tree->match_span_count = 0;
    for (struct kvi_node *n = path_from_top(tree, deep, anchor); n != NULL;
         n = kvi_node_or_null(tree, n->path_next)) {
        struct kvi_value *full = &n->full.value[KVG_TIER_DEVICE];
        if (gather(tree, full, full->length) != KVG_OK)
            return kvi_fail(error, KVG_ENOMEM, "collect", "no memory for spans");
    }
    *spans_out = tree->match_spans;
    *span_count_out = tree->match_span_count;
    return KVG_OK;
}
