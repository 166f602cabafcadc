/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* order.c -- requests ordered by what they share (kvg_tree_order_requests()).
 *
 * Only nodes on the path of some request matter: the *met* ones.  Each has an entry; the node's
 * scratch ref holds the entry's index, and the entry names the node, so that neither has to be
 * cleared before or after: an index is believed when the entry at it names the node back.
 *
 *     node.path_next = 2  ----> entry[2] { node, parent 0, weight 3, requests 5 -> 7 }
 *
 *     1. every request walks up until it meets an entry; new entries go below their parents'
 *     2. leaving an entry for the last time adds its weight to its parent's, and sorts its children
 *     3. the same walk again, children by falling weight, writes requests down when leaving
 *
 * Children stand in the order of their creation (T2), so ties need no look at siblings that were
 * not met.
 */
#include <kvgraft/tree_survey.h>

#include "tree/tree.h"

#define NOBODY UINT32_MAX

struct entry {
    struct kvi_node *node;
    uint32_t parent; /* Entries. */
    uint32_t first_child, next_sibling;
    uint32_t weight; /* Requests here and below. */
    uint32_t first_request, last_request;
};

struct order {
    struct kvg_tree *tree;
    struct entry *entries;
    uint32_t count, capacity;
    uint32_t *next_request; /* By request: the next one at the same node. */
};

static uint32_t entry_of(const struct order *order, const struct kvi_node *node)
{
    uint32_t index = node->path_next;

    return index < order->count && order->entries[index].node == node ? index : NOBODY;
}

static bool room_for_entry(struct order *order)
{
    void *entries = order->entries;
    uint32_t capacity = order->capacity == 0 ? 64 : order->capacity * 2;

    if (order->count < order->capacity)
        return true;
    if (!kvi_resize_array(&order->tree->alloc, &entries, order->capacity, capacity,
            sizeof(struct entry)))
        return false;
    order->entries = entries;
    order->capacity = capacity;
    return true;
}

/* Makes entries for `node` and those ancestors that have none.  Their index is the node's. */
static bool meet(struct order *order, struct kvi_node *node, uint32_t *index)
{
    uint32_t below = NOBODY;

    *index = NOBODY;
    for (; node != NULL; node = node->parent) {
        uint32_t known = entry_of(order, node);
        uint32_t here = known;
        if (known == NOBODY) {
            if (!room_for_entry(order))
                return false;
            here = order->count++;
            order->entries[here] = (struct entry){.node = node,
                .parent = NOBODY,
                .first_child = NOBODY,
                .next_sibling = NOBODY,
                .first_request = NOBODY,
                .last_request = NOBODY};
            node->path_next = here;
        }
        if (*index == NOBODY)
            *index = here;
        if (below != NOBODY) {
            order->entries[below].parent = here;
            order->entries[below].next_sibling = order->entries[here].first_child;
            order->entries[here].first_child = below;
        }
        if (known != NOBODY)
            return true;
        below = here;
    }
    return true;
}

static bool goes_first(const struct entry *a, const struct entry *b)
{
    return a->weight != b->weight ? a->weight > b->weight
                                  : a->node->creation < b->node->creation;
}

static uint32_t merge(struct order *order, uint32_t a, uint32_t b)
{
    struct entry *entries = order->entries;
    uint32_t first = NOBODY;
    uint32_t *end = &first;

    while (a != NOBODY && b != NOBODY) {
        uint32_t *taken = goes_first(&entries[b], &entries[a]) ? &b : &a;
        *end = *taken;
        end = &entries[*end].next_sibling;
        *taken = *end;
    }
    *end = a != NOBODY ? a : b;
    return first;
}

/* Sorts a list of entries: sorted[i] is empty or a sorted list of 2^i. */
static uint32_t sort(struct order *order, uint32_t list)
{
    uint32_t sorted[32];
    uint32_t all = NOBODY;

    for (uint32_t i = 0; i < 32; i++)
        sorted[i] = NOBODY;
    while (list != NOBODY) {
        uint32_t one = list;
        uint32_t i = 0;
        list = order->entries[one].next_sibling;
        order->entries[one].next_sibling = NOBODY;
        for (; i < 31 && sorted[i] != NOBODY; i++) {
            one = merge(order, sorted[i], one);
            sorted[i] = NOBODY;
        }
        sorted[i] = merge(order, sorted[i], one);
    }
    for (uint32_t i = 0; i < 32; i++)
        all = merge(order, sorted[i], all);
    return all;
}

/* Weighs and sorts, then writes: `out` NULL for the first. */
static void walk(struct order *order, uint32_t root, uint32_t *out)
{
    struct entry *entries = order->entries;
    uint32_t at = root;

    for (;;) {
        while (entries[at].first_child != NOBODY)
            at = entries[at].first_child;
        for (;;) {
            struct entry *entry = &entries[at];
            if (out == NULL) {
                entry->first_child = sort(order, entry->first_child);
                if (entry->parent != NOBODY)
                    entries[entry->parent].weight += entry->weight;
            } else {
                for (uint32_t i = entry->first_request; i != NOBODY;
                     i = order->next_request[i])
                    *out++ = i;
            }
            if (entry->parent == NOBODY)
                return;
            if (entry->next_sibling != NOBODY)
                break;
            at = entry->parent;
        }
        at = entries[at].next_sibling;
    }
}

static kvg_err take_requests(
    struct order *order, const kvg_node_id *nodes, size_t count, struct kvg_error *error)
{
    for (uint32_t i = 0; i < (uint32_t)count; i++) {
        struct kvi_node *node = kvi_node_find(order->tree, nodes[i]);
        uint32_t at;
        if (node == NULL)
            return kvi_no_node(error, nodes[i]);
        if (!meet(order, node, &at))
            return kvi_fail(error, KVG_ENOMEM, "order", "no memory for entries");
        struct entry *entry = &order->entries[at];
        if (entry->first_request == NOBODY)
            entry->first_request = i;
        else
            order->next_request[entry->last_request] = i;
        order->next_request[i] = NOBODY;
        entry->last_request = i;
        entry->weight++;
    }
    return KVG_OK;
}

kvg_err kvg_tree_order_requests(struct kvg_tree *tree, const kvg_node_id *nodes,
    size_t count, uint32_t *order_out, struct kvg_error *error)
{
    struct order order = {.tree = tree};

    if (count == 0)
        return KVG_OK;
    if (count > KVG_TREE_ORDER_MAX) {
        (void)kvi_fail_range(error, "count", count, 0, KVG_TREE_ORDER_MAX);
        if (error != NULL)
            error->code = KVG_ELIMIT;
        return KVG_ELIMIT;
    }
    order.next_request =
        kvi_alloc_array_raw(&tree->alloc, count, sizeof(*order.next_request));
    if (order.next_request == NULL)
        return kvi_fail(error, KVG_ENOMEM, "order", "no memory for requests");
    kvg_err err = take_requests(&order, nodes, count, error);
    if (err == KVG_OK) {
        uint32_t root = entry_of(&order, kvi_node_at(tree, tree->root));
        walk(&order, root, NULL);
        walk(&order, root, order_out);
    }
    kvi_release_array(
        &tree->alloc, order.entries, order.capacity, sizeof(*order.entries));
    kvi_release_array(
        &tree->alloc, order.next_request, count, sizeof(*order.next_request));
    return err;
}
