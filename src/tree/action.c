/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* action.c -- lists of actions.
 *
 * Three arrays that only grow: actions, and the spans and nodes they point into.  An operation
 * reserves what it may append before it changes the tree; appending cannot fail.
 */
#include "tree/tree.h"

#define LIST_MIN 8u

void kvg_actions_init(struct kvg_actions *actions, const struct kvg_alloc *alloc)
{
    *actions = (struct kvg_actions){.alloc = alloc};
}

void kvg_actions_clear(struct kvg_actions *actions)
{
    actions->count = 0;
    actions->span_count = 0;
    actions->node_count = 0;
}

void kvg_actions_fini(struct kvg_actions *actions)
{
    if (actions->alloc == NULL)
        return;
    kvi_release_array(
        actions->alloc, actions->items, actions->capacity, sizeof(*actions->items));
    kvi_release_array(
        actions->alloc, actions->spans, actions->span_capacity, sizeof(*actions->spans));
    kvi_release_array(
        actions->alloc, actions->nodes, actions->node_capacity, sizeof(*actions->nodes));
    *actions = (struct kvg_actions){.alloc = actions->alloc};
}

static bool grow(const struct kvg_alloc *alloc, void **array, uint32_t *capacity,
    uint64_t wanted, size_t bytes)
{
    uint64_t larger = *capacity == 0 ? LIST_MIN : *capacity;

    if (wanted <= *capacity)
        return true;
    while (larger < wanted)
        larger *= 2;
    if (larger > UINT32_MAX ||
        !kvi_resize_array(alloc, array, *capacity, (size_t)larger, bytes))
        return false;
    *capacity = (uint32_t)larger;
    return true;
}

kvg_err kvi_actions_reserve(
    struct kvg_actions *actions, uint32_t items, uint32_t spans, uint32_t nodes)
{
    void *item_array = actions->items;
    void *span_array = actions->spans;
    void *node_array = actions->nodes;

    bool ok = grow(actions->alloc, &item_array, &actions->capacity,
        (uint64_t)actions->count + items, sizeof(*actions->items));
    actions->items = item_array;
    ok = ok && grow(actions->alloc, &span_array, &actions->span_capacity,
                   (uint64_t)actions->span_count + spans, sizeof(*actions->spans));
    actions->spans = span_array;
    ok = ok && grow(actions->alloc, &node_array, &actions->node_capacity,
                   (uint64_t)actions->node_count + nodes, sizeof(*actions->nodes));
    actions->nodes = node_array;
    return ok ? KVG_OK : KVG_ENOMEM;
}

struct kvg_action *kvi_actions_add(struct kvg_actions *actions, enum kvg_action_kind kind)
{
    KVI_ASSERT(actions->count < actions->capacity);
    struct kvg_action *action = &actions->items[actions->count++];
    *action = (struct kvg_action){.kind = kind,
        .span_first = actions->span_count,
        .span2_first = actions->span_count,
        .node_first = actions->node_count};
    return action;
}

static struct kvg_action *last(struct kvg_actions *actions)
{
    KVI_ASSERT(actions->count != 0);
    return &actions->items[actions->count - 1];
}

/* Takes `count` spans written at the end into the last action's first or second range. */
static void take(struct kvg_actions *actions, uint32_t count, bool second)
{
    struct kvg_action *action = last(actions);

    KVI_ASSERT(actions->span_count + count <= actions->span_capacity);
    if (second) {
        action->span2_first = actions->span_count;
        action->span2_count = count;
    } else {
        action->span_first = actions->span_count;
        action->span_count = count;
    }
    actions->span_count += count;
}

void kvi_actions_add_value(struct kvg_actions *actions, const struct kvi_value *value,
    uint32_t from, uint32_t length)
{
    take(actions,
        kvi_value_spans(value, from, length, actions->spans + actions->span_count),
        false);
}

void kvi_actions_add_spans(struct kvg_actions *actions, const struct kvg_span *spans,
    size_t count, uint64_t from, uint64_t length)
{
    take(actions,
        kvi_spans_cut(spans, count, from, length, actions->spans + actions->span_count),
        false);
}

void kvi_actions_add_value2(struct kvg_actions *actions, const struct kvi_value *value,
    uint32_t from, uint32_t length)
{
    take(actions,
        kvi_value_spans(value, from, length, actions->spans + actions->span_count), true);
}

void kvi_actions_add_spans2(struct kvg_actions *actions, const struct kvg_span *spans,
    size_t count, uint64_t from, uint64_t length)
{
    take(actions,
        kvi_spans_cut(spans, count, from, length, actions->spans + actions->span_count),
        true);
}

void kvi_actions_add_node(struct kvg_actions *actions, kvg_node_id node)
{
    KVI_ASSERT(actions->node_count < actions->node_capacity);
    actions->nodes[actions->node_count++] = node;
    last(actions)->node_count++;
}

kvg_err kvi_actions_move(struct kvg_actions *to, struct kvg_actions *from)
{
    if (to->count == 0 && to->alloc == from->alloc) {
        struct kvg_actions spent = *to;
        *to = *from;
        *from = spent;
        kvg_actions_clear(from);
        return KVG_OK;
    }
    if (kvi_actions_reserve(to, from->count, from->span_count, from->node_count) !=
        KVG_OK)
        return KVG_ENOMEM;
    for (uint32_t i = 0; i < from->count; i++) {
        struct kvg_action action = from->items[i];
        action.span_first += to->span_count;
        action.span2_first += to->span_count;
        action.node_first += to->node_count;
        to->items[to->count++] = action;
    }
    if (from->span_count != 0)
        memcpy(to->spans + to->span_count, from->spans,
            from->span_count * sizeof(*from->spans));
    if (from->node_count != 0)
        memcpy(to->nodes + to->node_count, from->nodes,
            from->node_count * sizeof(*from->nodes));
    to->span_count += from->span_count;
    to->node_count += from->node_count;
    kvg_actions_clear(from);
    return KVG_OK;
}
