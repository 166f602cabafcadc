/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* withdraw.c -- values whose bytes are still on their way.
 *
 * An external load takes slots, inserts them, and only then fills them.  Between insert and
 * confirmation the parts concerned *await*: a bit a part in the node's flags, and the load's ack in
 * pending_load.
 *
 *               mark                      confirm
 *     visible  ------->  awaiting (hidden) ------->  visible
 *                             |  withdraw
 *                             v
 *                     gone, before anyone could match it
 *
 *     root - A - R - N1 - N2      A request holds A.  Its load found R there (somebody was quicker)
 *                    ^^^^^^^      and made N1 and N2, which await FULL.  `ack` is N2.
 *
 * What holds:
 *
 *   - The ack is no device leaf until its load ends, locked or not: if it went, nobody could find
 *     what the load marked above it.
 *   - The ack is the deepest node of its load, and all it marked lies on the path above it, so one
 *     climb finds everything.  Splits make prefixes, which are on that path too.
 *   - A node that awaits FULL was made by that load, or hangs below one that was: nobody else can
 *     have matched it.  Its locks are those of the load and of the request that asked for it, and
 *     both are at the ack.
 *   - A node that awaits SWA may be old, and other requests may hold it.  None of them counts on
 *     its window, for none could match with it; so that value can go in spite of its locks.
 */
#include "tree/evict.h"

#include "tree/record.h"
#include "tree/swa.h"

kvg_err kvg_tree_load_mark(struct kvg_tree *tree, kvg_node_id id, uint32_t components,
    kvg_node_id ack, struct kvg_error *error)
{
    struct kvi_node *node = kvi_node_find(tree, id);
    struct kvi_node *end = kvi_node_find(tree, ack);
    uint16_t bits = 0;

    if (node == NULL || end == NULL)
        return kvi_no_node(error, node == NULL ? id : ack);
    if (node->pending_load != KVG_NODE_NONE && node->pending_load != ack)
        return kvi_fail_node(
            error, KVG_ESTATE, "node", "node ", id, " belongs to another load");
    for (uint32_t slot = 0; slot < tree->part_count; slot++) {
        if ((components & KVG_COMPONENT_BIT(tree->components[slot]->type)) == 0)
            continue;
        if (!kvi_has(node, slot, KVG_TIER_DEVICE) || kvi_awaits(node, slot))
            return kvi_fail_node(error, KVG_ESTATE, "node", "node ", id,
                " has no value that could await bytes");
        bits |= kvi_awaits_bit(slot);
    }
    if (bits == 0)
        return KVG_OK;
    node->flags |= bits;
    node->pending_load = ack;
    end->flags |= KVI_NODE_ACK;
    kvi_leaf_update(tree, end);
    kvi_duplicate_update(tree, node);
    kvi_leaf_update(tree, node);
    return KVG_OK;
}

static void unmark(struct kvg_tree *tree, struct kvi_node *node)
{
    node->flags &= (uint16_t)~KVI_NODE_AWAITS_ALL;
    node->pending_load = KVG_NODE_NONE;
    kvi_duplicate_update(tree, node);
    kvi_leaf_update(tree, node);
}

static void end_load(struct kvg_tree *tree, struct kvi_node *end)
{
    end->flags &= (uint16_t)~KVI_NODE_ACK;
    kvi_leaf_update(tree, end);
}

kvg_err kvg_tree_load_confirm(
    struct kvg_tree *tree, kvg_node_id ack, struct kvg_error *error)
{
    struct kvi_node *node = kvi_node_find(tree, ack);

    if (node == NULL)
        return kvi_no_node(error, ack);
    end_load(tree, node);
    for (; node != NULL; node = kvi_parent(tree, node)) {
        if (node->pending_load == ack)
            unmark(tree, node);
    }
    return KVG_OK;
}

/* ---- Withdrawal ---------------------------------------------------------------------------- */

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

/* What a withdrawal will need room for. */
struct need {
    uint64_t items, spans, units;
};

static void add_need(
    const struct kvg_tree *tree, const struct kvi_node *node, struct need *need)
{
    const struct kvi_value *full = &node->full.value[KVG_TIER_DEVICE];

    need->units += node->length;
    need->spans += kvi_value_span_count(full, 0, full->length);
    for (uint32_t slot = 0; slot < tree->part_count; slot++) {
        for (int tier = 0; tier < KVG_TIER_COUNT; tier++) {
            const struct kvi_value *value = &kvi_part(node, slot)->value[tier];
            need->spans += kvi_value_span_count(value, 0, value->length);
            need->items += value->length != 0;
        }
    }
}

/* May everything from `top` down be deleted? */
static bool subtree_is_free(
    const struct kvg_tree *tree, struct kvi_node *top, struct need *need)
{
    for (struct kvi_node *n = first_below(tree, top); n != NULL;
         n = next_below(tree, top, n)) {
        if (n->locked_parts[KVG_TIER_DEVICE] != 0 ||
            n->locked_parts[KVG_TIER_HOST] != 0 || n->pending_write != KVG_NODE_NONE)
            return false;
        add_need(tree, n, need);
    }
    return true;
}

static void delete_subtree(
    struct kvg_tree *tree, struct kvi_node *top, struct kvg_actions *actions)
{
    struct kvg_tree_evicted uncounted = {0};
    bool last;

    do {
        struct kvi_node *node = first_below(tree, top);
        last = node == top;
        if (kvi_has(node, 0, KVG_TIER_DEVICE))
            kvi_record_removed(tree, node, KVG_MEDIUM_DEVICE);
        if (kvi_has(node, 0, KVG_TIER_HOST))
            kvi_record_removed(tree, node, KVG_MEDIUM_CPU);
        kvi_delete_leaf(tree, node, KVG_TIER_DEVICE, actions, &uncounted);
    } while (!last);
}

/* Takes the parts of a node that await, other than FULL. */
static void take_awaited(
    struct kvg_tree *tree, struct kvi_node *node, struct kvg_actions *actions)
{
    struct kvg_tree_evicted uncounted = {0};

    for (uint32_t slot = 1; slot < tree->part_count; slot++) {
        if (kvi_awaits(node, slot))
            kvi_take_part(tree, node, slot, KVG_TIER_DEVICE, actions, &uncounted);
    }
    unmark(tree, node);
}

kvg_err kvg_tree_load_withdraw(struct kvg_tree *tree, kvg_node_id ack,
    struct kvg_actions *actions, struct kvg_error *error)
{
    struct kvi_node *node = kvi_node_find(tree, ack);
    struct kvi_node *top = NULL;
    struct need need = {0};

    if (node == NULL)
        return kvi_no_node(error, ack);
    for (struct kvi_node *n = node; n != NULL; n = kvi_parent(tree, n)) {
        if (n->pending_load != ack)
            continue;
        if (kvi_awaits(n, 0))
            top = n;
        add_need(tree, n, &need);
    }
    if (top != NULL && !subtree_is_free(tree, top, &need))
        return kvi_fail_node(
            error, KVG_EBUSY, "node", "what awaits at node ", ack, " is in use");
    if (need.items > UINT32_MAX || need.spans > UINT32_MAX ||
        kvi_actions_reserve(actions, (uint32_t)need.items, (uint32_t)need.spans, 0) !=
            KVG_OK)
        return kvi_fail(error, KVG_ENOMEM, "withdraw", "no memory for actions");
    kvg_err err = kvi_record_reserve(tree, 2 * need.units, error);
    if (err != KVG_OK)
        return err;

    struct kvi_node *above = top != NULL ? kvi_parent(tree, top) : node;
    end_load(tree, node);
    if (top != NULL)
        delete_subtree(tree, top, actions);
    for (struct kvi_node *n = above; n != NULL; n = kvi_parent(tree, n)) {
        if (n->pending_load == ack)
            take_awaited(tree, n, actions);
    }
    return KVG_OK;
}

/* ---- Questions ----------------------------------------------------------------------------- */

uint64_t kvg_tree_first_awaited(
    const struct kvg_tree *tree, const struct kvg_tree_key *key, uint64_t from)
{
    const struct kvi_node *node = kvi_node_at(tree, tree->root);
    struct kvg_tree_key view;
    uint64_t units = kvi_tree_key(tree, key, &view);
    struct kvi_descent descent;
    uint64_t offset = 0;
    uint32_t space;
    uint32_t matched;

    if (units == 0 || !kvi_space_find(tree, &view.space, &space))
        return UINT64_MAX;
    kvi_descent_init(&descent, view.tokens, units, space);
    while (offset < units) {
        const struct kvi_node *child =
            kvi_descend(tree, &descent, node, offset, &matched);
        if (child == NULL)
            break;
        if ((child->flags & KVI_NODE_AWAITS_ALL) != 0 && offset + matched > from)
            return offset;
        if (matched < child->length)
            break;
        offset += matched;
        node = child;
    }
    return UINT64_MAX;
}

/* Flags the pages of `node` that a match may end at.  `run` as in a match, at the node's start. */
static void flag_node(const struct kvg_tree *tree, const struct kvi_node *node,
    uint64_t offset, uint32_t matched, uint64_t *run, int32_t *flags, size_t flag_count)
{
    uint32_t page = tree->options.page_size;
    bool live[KVI_PARTS_MAX];

    for (uint32_t slot = 0; slot < tree->part_count; slot++)
        live[slot] = kvi_has(node, slot, KVG_TIER_DEVICE) && !kvi_awaits(node, slot);
    for (uint32_t at = page; at <= matched; at += page) {
        bool usable = live[0];
        for (uint32_t slot = 1; slot < tree->part_count; slot++) {
            if (tree->components[slot]->type == KVG_COMPONENT_SWA) {
                if (!live[slot])
                    run[slot] = 0;
                else if (run[slot] < UINT64_MAX - page)
                    run[slot] += page;
                usable = usable && (live[slot] ? run[slot] >= tree->options.window
                                               : tree->options.swa_request_ring);
            } else {
                usable = usable && live[slot] && at == node->length;
            }
        }
        if ((offset + at) / page < flag_count)
            flags[(offset + at) / page] = usable;
    }
}

void kvg_tree_usable_pages(const struct kvg_tree *tree, const struct kvg_tree_key *key,
    int32_t *flags, size_t flag_count)
{
    const struct kvi_node *node = kvi_node_at(tree, tree->root);
    uint64_t run[KVI_PARTS_MAX];
    struct kvg_tree_key view;
    uint64_t units = kvi_tree_key(tree, key, &view);
    struct kvi_descent descent;
    uint64_t offset = 0;
    uint32_t space;
    uint32_t matched;

    if (flag_count == 0)
        return;
    memset(flags, 0, flag_count * sizeof(*flags));
    memset(run, 0xff, sizeof(run));
    flags[0] = 1;
    if (units == 0 || !kvi_space_find(tree, &view.space, &space))
        return;
    kvi_descent_init(&descent, view.tokens, units, space);
    while (offset < units) {
        const struct kvi_node *child =
            kvi_descend(tree, &descent, node, offset, &matched);
        if (child == NULL || kvi_awaits(child, 0) || kvi_evicted(child))
            return;
        flag_node(tree, child, offset, matched, run, flags, flag_count);
        if (matched < child->length)
            return;
        offset += matched;
        node = child;
    }
}

uint64_t kvg_tree_insert_taken(const struct kvg_tree *tree)
{
    switch (tree->insert.phase) {
    case KVI_INSERT_IDLE:
        return 0;
    case KVI_INSERT_TAIL:
        return tree->insert.key_units;
    default:
        return tree->insert.total;
    }
}
