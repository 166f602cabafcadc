/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* storage.c -- between the host tier and a store behind it (tree_storage.h).
 *
 * A prefetch stages host slots before it knows what the tree will have when the bytes are there.
 * FULL's go in by kvg_tree_insert_host().  The window's slots belong to the last units, wherever
 * nodes begin and end by then:
 *
 *     anchor - A ------- B ---- node           path from below the anchor
 *              |  a   b  |  c   |              staged slots, one a unit
 *                 ^ the window begins: A is split there; B has a host copy, so its c is freed
 *
 * Invariants kept: T4, a host value of a window stands on one of FULL; T12, host lists.
 *
 * Failure: everything is made (`plan`) before anything is given (`attach`).
 */
#include <kvgraft/tree_storage.h>

#include "tree/host.h"

/* ---- To the store -------------------------------------------------------------------------- */

static void add_keys(struct kvg_tree *tree, const struct kvi_node *node, uint32_t pages,
    struct kvg_tree_transfer *transfer)
{
    uint32_t page_size = tree->options.page_size;
    uint32_t node_pages = node->length / page_size;
    const struct kvg_key *keys = node->page_keys->keys + node->page_key_start;
    const struct kvi_node *parent = node->parent;

    transfer->keys = keys + (node_pages - pages);
    transfer->key_count = pages;
    if (pages < node_pages)
        transfer->previous = transfer->keys - 1;
    else if (!kvi_is_root(parent))
        transfer->previous = parent->page_keys->keys + parent->page_key_start +
                             parent->length / page_size - 1;
}

kvg_err kvg_tree_storage_build(struct kvg_tree *tree, kvg_node_id id,
    struct kvg_tree_transfer *out, size_t *count_out, struct kvg_error *error)
{
    struct kvi_node *node = kvi_node_find(tree, id);
    struct kvi_transfer_room room = {0};

    *count_out = 0;
    if (node == NULL)
        return kvi_no_node(error, id);
    if (!kvi_backed_up(node))
        return kvi_fail_node(error, KVG_ESTATE, "node", "node ", id, " has no host copy");
    if (kvi_page_keys_fill(tree, node) != KVG_OK)
        return kvi_fail(error, KVG_ENOMEM, "storage", "no memory for page keys");
    kvi_transfer_count(tree, node, &room);
    kvg_err err = kvi_transfer_begin(tree, &room, error);
    if (err != KVG_OK)
        return err;
    for (uint32_t slot = 0; slot < tree->part_count; slot++) {
        struct kvg_tree_transfer transfer = {.trailing_pages = slot != 0};
        bool state = tree->components[slot]->type == KVG_COMPONENT_MAMBA;
        if (!kvi_has(node, slot, KVG_TIER_HOST))
            continue;
        kvi_transfer_add(tree, node, slot, KVG_TIER_HOST, &transfer);
        add_keys(
            tree, node, state ? 1 : node->length / tree->options.page_size, &transfer);
        out[(*count_out)++] = transfer;
    }
    return KVG_OK;
}

/* ---- From the store ------------------------------------------------------------------------ */

static uint64_t window_units(const struct kvg_tree *tree)
{
    uint64_t page = tree->options.page_size;

    return (tree->options.window + page - 1) / page * page;
}

kvg_err kvg_tree_prefetch_staging(const struct kvg_tree *tree, kvg_node_id anchor,
    uint64_t units, uint64_t slots[KVG_COMPONENT_MAX], struct kvg_error *error)
{
    const struct kvi_node *node = kvi_node_find(tree, anchor);
    uint64_t whole = units - units % tree->options.page_size;

    memset(slots, 0, KVG_COMPONENT_MAX * sizeof(*slots));
    if (node == NULL)
        return kvi_no_node(error, anchor);
    if (whole == 0)
        return KVG_OK;
    if (tree->slot_of[KVG_COMPONENT_SWA] >= 0 && tree->settings.swa_host_pool) {
        uint64_t window = window_units(tree);
        if (whole >= window)
            slots[KVG_COMPONENT_SWA] = window;
        else if (kvi_is_root(node))
            slots[KVG_COMPONENT_SWA] = whole;
    }
    if (tree->slot_of[KVG_COMPONENT_MAMBA] >= 0)
        slots[KVG_COMPONENT_MAMBA] = 1;
    return KVG_OK;
}

/* What is about to be given to one component. */
struct plan {
    const struct kvg_tree_staged *staged;
    uint32_t slot;
    uint64_t units;      /* Slots staged. */
    bool taken;          /* Else all of them are freed. */
    uint32_t node_count; /* On the path, as far as the slots reach. */
    struct kvi_value
        *values; /* Theirs, from the deepest; a length of 0: nothing given. */
};

struct prefetch {
    struct kvg_tree *tree;
    struct kvi_node *anchor, *node; /* No node: nothing was inserted. */
    struct plan plans[KVI_PARTS_MAX];
    uint32_t plan_count;
};

/* The first unit of `node` that a staged slot is for. */
static uint64_t first_unit(
    const struct prefetch *prefetch, const struct plan *plan, const struct kvi_node *node)
{
    uint64_t end = prefetch->node->depth;
    uint64_t start = end > plan->units ? end - plan->units : 0;
    uint64_t begin = (uint64_t)node->depth - node->length;

    return begin > start ? begin : start;
}

/* The staged slot of a unit. */
static uint64_t slot_of_unit(
    const struct prefetch *prefetch, const struct plan *plan, uint64_t unit)
{
    return unit + plan->units - prefetch->node->depth;
}

static bool takes_host_value(
    const struct kvg_tree *tree, const struct kvi_node *node, uint32_t slot)
{
    return !kvi_has(node, slot, KVG_TIER_HOST) &&
           (kvi_backed_up(node) || (tree->settings.write_back && kvi_on_device(node)));
}

static kvg_err check_staged(struct prefetch *prefetch,
    const struct kvg_tree_staged *staged, size_t count, struct kvg_error *error)
{
    struct kvg_tree *tree = prefetch->tree;

    for (size_t i = 0; i < count; i++) {
        uint32_t component = staged[i].component;
        if (component == KVG_COMPONENT_FULL || component >= KVG_COMPONENT_MAX ||
            tree->slot_of[component] < 0)
            return kvi_fail(
                error, KVG_EINVAL, "staged.component", "no such component to stage");
        for (uint32_t j = 0; j < prefetch->plan_count; j++) {
            if (prefetch->plans[j].staged->component == component)
                return kvi_fail(
                    error, KVG_EINVAL, "staged.component", "a component twice");
        }
        struct plan *plan = &prefetch->plans[prefetch->plan_count++];
        *plan = (struct plan){
            .staged = &staged[i], .slot = (uint32_t)tree->slot_of[component]};
        for (size_t n = 0; n < staged[i].span_count; n++)
            plan->units += staged[i].spans[n].length;
        if (component == KVG_COMPONENT_MAMBA && plan->units > 1)
            return kvi_fail_range(error, "staged.spans", plan->units, 0, 1);
        if (component == KVG_COMPONENT_SWA && plan->units % tree->options.page_size != 0)
            return kvi_fail(error, KVG_EINVAL, "staged.spans", "a part of a page");
        if (plan->units > UINT32_MAX / 2)
            return kvi_fail_range(error, "staged.spans", plan->units, 0, UINT32_MAX / 2);
    }
    for (const struct kvi_node *n = prefetch->node; n != NULL && n != prefetch->anchor;
         n = n->parent) {
        if (kvi_is_root(n))
            return kvi_fail_node(error, KVG_EINVAL, "node", "node ", prefetch->node->id,
                " is not below the anchor");
    }
    return KVG_OK;
}

/* Is what came whole enough to be used? */
static bool usable(const struct prefetch *prefetch, const struct plan *plan)
{
    const struct kvg_tree *tree = prefetch->tree;

    if (prefetch->node == NULL || kvi_is_root(prefetch->node) || plan->units == 0)
        return false;
    if (plan->staged->component == KVG_COMPONENT_MAMBA)
        return plan->staged->loaded_pages != 0 &&
               takes_host_value(tree, prefetch->node, plan->slot);
    return plan->staged->loaded_pages >= plan->units / tree->options.page_size &&
           (kvi_is_root(prefetch->anchor) || plan->units >= window_units(tree));
}

/* Makes the values that the nodes will get. */
static kvg_err make_plan(
    struct prefetch *prefetch, struct plan *plan, struct kvg_error *error)
{
    struct kvg_tree *tree = prefetch->tree;
    const struct kvg_tree_staged *staged = plan->staged;
    bool state = staged->component == KVG_COMPONENT_MAMBA;
    uint32_t at = 0;

    plan->taken = usable(prefetch, plan);
    if (!plan->taken)
        return KVG_OK;
    for (const struct kvi_node *n = prefetch->node;
         n != prefetch->anchor && first_unit(prefetch, plan, n) < n->depth; n = n->parent)
        plan->node_count++;
    if (state)
        plan->node_count = 1;
    plan->values = kvi_alloc_array(&tree->alloc, plan->node_count, sizeof(*plan->values));
    if (plan->values == NULL)
        return plan->node_count == 0
                   ? KVG_OK
                   : kvi_fail(error, KVG_ENOMEM, "prefetch", "no memory for values");
    for (const struct kvi_node *n = prefetch->node; at < plan->node_count;
         n = n->parent, at++) {
        uint64_t from = first_unit(prefetch, plan, n);
        uint32_t length = state ? 1 : (uint32_t)(n->depth - from);
        if (!takes_host_value(tree, n, plan->slot))
            continue;
        if (kvi_value_make(tree, staged->spans, staged->span_count,
                state ? 0 : slot_of_unit(prefetch, plan, from), length,
                &plan->values[at]) != KVG_OK)
            return kvi_fail(error, KVG_ENOMEM, "prefetch", "no memory for a value");
    }
    return KVG_OK;
}

static kvg_err make_room(
    struct prefetch *prefetch, struct kvg_actions *actions, struct kvg_error *error)
{
    uint64_t items = 1; /* A split of a node with a write in flight. */
    uint64_t spans = 0;

    for (uint32_t i = 0; i < prefetch->plan_count; i++) {
        const struct plan *plan = &prefetch->plans[i];
        items += plan->node_count + UINT64_C(1);
        /* A cut by nodes adds at most one span a node. */
        spans += plan->staged->span_count + plan->node_count + UINT64_C(1);
    }
    if (items > UINT32_MAX || spans > UINT32_MAX ||
        kvi_actions_reserve(actions, (uint32_t)items, (uint32_t)spans, 0) != KVG_OK)
        return kvi_fail(error, KVG_ENOMEM, "prefetch", "no memory for actions");
    kvg_err err = kvi_tree_use_host(prefetch->tree, error);
    return err != KVG_OK ? err : kvi_tree_reserve_nodes(prefetch->tree, 2, error);
}

static void free_slots(
    const struct plan *plan, uint64_t from, uint64_t length, struct kvg_actions *actions)
{
    const struct kvg_tree_staged *staged = plan->staged;

    if (length == 0)
        return;
    struct kvg_action *action = kvi_actions_add(actions, KVG_ACTION_FREE_COMPONENT_HOST);
    action->component = staged->component;
    kvi_actions_add_spans(actions, staged->spans, staged->span_count, from, length);
}

static void give(
    struct kvg_tree *tree, struct kvi_node *node, uint32_t slot, struct kvi_value *value)
{
    struct kvi_part *part = kvi_part(node, slot);

    part->value[KVG_TIER_HOST] = *value;
    *value = (struct kvi_value){0};
    if (!kvi_has(node, slot, KVG_TIER_DEVICE) && part->lock[KVG_TIER_HOST] == 0)
        kvi_list_add_newest(tree, slot, KVG_TIER_HOST, node);
}

/* From the deepest node up; what stands above the last of them is freed last. */
static uint64_t attach_window(
    struct prefetch *prefetch, struct plan *plan, struct kvg_actions *actions)
{
    struct kvg_tree *tree = prefetch->tree;
    struct kvi_node *node = prefetch->node;
    uint64_t attached = 0;
    uint64_t left = plan->units;

    for (uint32_t i = 0; i < plan->node_count; i++, node = node->parent) {
        uint64_t from = first_unit(prefetch, plan, node);
        uint64_t length = node->depth - from;
        uint64_t begin = (uint64_t)node->depth - node->length;
        left -= length;
        if (plan->values[i].length == 0) {
            free_slots(plan, left, length, actions);
            continue;
        }
        if (from > begin)
            kvi_node_split(tree, node, (uint32_t)(from - begin), actions);
        give(tree, node, plan->slot, &plan->values[i]);
        attached += length;
    }
    free_slots(plan, 0, left, actions);
    return attached;
}

kvg_err kvg_tree_prefetch_commit(struct kvg_tree *tree, kvg_node_id anchor,
    kvg_node_id id, const struct kvg_tree_staged *staged, size_t count,
    struct kvg_actions *actions, struct kvg_tree_prefetched *out, struct kvg_error *error)
{
    struct prefetch prefetch = {.tree = tree,
        .anchor = kvi_node_find(tree, anchor),
        .node = kvi_node_find(tree, id)};

    *out = (struct kvg_tree_prefetched){.struct_bytes = sizeof(*out)};
    if (prefetch.anchor == NULL || (prefetch.node == NULL && id != KVG_NODE_NONE))
        return kvi_no_node(error, prefetch.anchor == NULL ? anchor : id);
    kvg_err err = check_staged(&prefetch, staged, count, error);
    for (uint32_t i = 0; err == KVG_OK && i < prefetch.plan_count; i++)
        err = make_plan(&prefetch, &prefetch.plans[i], error);
    if (err == KVG_OK)
        err = make_room(&prefetch, actions, error);
    for (uint32_t i = 0; i < prefetch.plan_count; i++) {
        struct plan *plan = &prefetch.plans[i];
        uint32_t component = plan->staged->component;
        if (err == KVG_OK && !plan->taken) {
            free_slots(plan, 0, plan->units, actions);
            if (component == KVG_COMPONENT_MAMBA)
                out->mamba_exists = plan->units != 0;
        } else if (err == KVG_OK && component == KVG_COMPONENT_MAMBA) {
            give(tree, prefetch.node, plan->slot, &plan->values[0]);
            out->attached[component] = 1;
        } else if (err == KVG_OK) {
            out->attached[component] = attach_window(&prefetch, plan, actions);
        }
        for (uint32_t n = 0; n < plan->node_count && plan->values != NULL; n++)
            kvi_value_clear(tree, &plan->values[n]);
        kvi_release_array(
            &tree->alloc, plan->values, plan->node_count, sizeof(*plan->values));
    }
    return err;
}
