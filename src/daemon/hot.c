/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* hot.c -- the tree of prefixes that are asked for most.
 *
 *     nodes[0] everything
 *        `-- first_child --> space --> space          siblings in a list, both ways
 *                              `-- page 0 --> page 0'
 *     heads[hash of (space, key)] --> node --> node   to find a child
 *     free_first --> node --> node                    what is unused
 *
 * A chain is walked from its space down; where it leaves the tree it adds KVD_HOT_GROW nodes at
 * most, so that a prompt that nobody repeats pushes out little.  When the nodes run out, leaves
 * with the least counts go, an eighth of all nodes at once.
 *
 * How much a new node may have missed: every visit of it was one of its parent, and visits of
 * its siblings were not, so no more than what its parent had beyond what its children have.
 *
 * Invariants:
 *
 *     H1  Every node in use but 0 is in its parent's list, in the hash unless it is a space, and
 *         has the parent's space (spaces: their own).
 *     H2  `children` is the sum of the children's counts, and no more than the count.
 *     H3  present <= count.
 *     H4  count + error is no more than the parent's.
 *     H5  Nodes in use and free ones are all nodes.
 *     H6  A space in use has a root with its number; a space not in use has none.
 *
 * Not here: when to sample, and how often to fade (pulse.c).
 */
#include "daemon/hot.h"

#include "base/alloc.h"
#include "base/assert.h"

#include <string.h>

#define HEADS 4096u /* A power of two. */
#define NO_NODE UINT16_MAX
#define KEEP_MIN (KVD_HOT_UNIT / 4)
#define ROOM (KVD_HOT_NODES / 8)

_Static_assert(KVD_HOT_NODES < NO_NODE, "a node's number fits into 16 bits");

struct node {
    uint64_t key;
    uint64_t count;
    uint64_t error;
    uint64_t present;
    uint64_t children;
    uint16_t parent; /* NO_NODE: 0 or unused. */
    uint16_t first_child;
    uint16_t next; /* Sibling; of an unused node the next unused one. */
    uint16_t before;
    uint16_t next_hash;
    uint16_t depth; /* 0 everything, 1 a space, 2 page 0. */
    uint8_t space;
    bool used;
};

struct kvd_hot {
    const struct kvg_alloc *alloc;
    uint32_t free_count;
    uint16_t free_first;
    uint16_t hand; /* Where the next round of giving way begins. */
    uint64_t refused;
    uint16_t heads[HEADS];
    struct kvd_hot_space spaces[KVD_HOT_SPACES];
    struct node nodes[KVD_HOT_NODES];
    uint16_t heap[KVD_HOT_NODES]; /* Scratch of kvd_hot_top(). */
    uint16_t places[KVD_HOT_NODES];
};

/* The ring --------------------------------------------------------------------------------- */

struct kvd_hot_chain *kvd_hot_ring_place(struct kvd_hot_ring *ring)
{
    uint32_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);

    if (head - atomic_load_explicit(&ring->tail, memory_order_acquire) < KVD_HOT_CHAINS)
        return &ring->chains[head % KVD_HOT_CHAINS];
    atomic_fetch_add_explicit(&ring->dropped, 1, memory_order_relaxed);
    return NULL;
}

void kvd_hot_ring_push(struct kvd_hot_ring *ring)
{
    atomic_store_explicit(&ring->head,
        atomic_load_explicit(&ring->head, memory_order_relaxed) + 1,
        memory_order_release);
}

const struct kvd_hot_chain *kvd_hot_ring_peek(struct kvd_hot_ring *ring)
{
    uint32_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);

    if (tail == atomic_load_explicit(&ring->head, memory_order_acquire))
        return NULL;
    return &ring->chains[tail % KVD_HOT_CHAINS];
}

void kvd_hot_ring_pop(struct kvd_hot_ring *ring)
{
    atomic_store_explicit(&ring->tail,
        atomic_load_explicit(&ring->tail, memory_order_relaxed) + 1,
        memory_order_release);
}

/* Nodes ------------------------------------------------------------------------------------ */

static size_t head_of(uint32_t space, uint64_t key)
{
    return (key ^ space) * UINT64_C(0x9e3779b97f4a7c15) >> 52 & (HEADS - 1);
}

static uint16_t find_child(const struct kvd_hot *hot, uint16_t parent, uint64_t key)
{
    const struct node *nodes = hot->nodes;
    uint16_t at = hot->heads[head_of(nodes[parent].space, key)];

    while (at != NO_NODE && (nodes[at].key != key || nodes[at].parent != parent))
        at = nodes[at].next_hash;
    return at;
}

/* There is room: kvd_hot_add() sees to that. */
static uint16_t new_node(
    struct kvd_hot *hot, uint16_t parent, uint32_t space, uint64_t key)
{
    struct node *above = &hot->nodes[parent];
    uint16_t index = hot->free_first;
    struct node *node = &hot->nodes[index];
    uint16_t *head;

    KVI_ASSERT(index != NO_NODE);
    hot->free_first = node->next;
    hot->free_count--;
    *node = (struct node){.key = key,
        .parent = parent,
        .first_child = NO_NODE,
        .next = above->first_child,
        .before = NO_NODE,
        .next_hash = NO_NODE,
        .depth = (uint16_t)(above->depth + 1),
        .space = (uint8_t)space,
        .used = true};
    if (node->next != NO_NODE)
        hot->nodes[node->next].before = index;
    above->first_child = index;
    if (parent == 0)
        return index;
    head = &hot->heads[head_of(space, key)];
    node->next_hash = *head;
    *head = index;
    return index;
}

static void unhash(struct kvd_hot *hot, uint16_t index)
{
    const struct node *node = &hot->nodes[index];
    uint16_t *at = &hot->heads[head_of(node->space, node->key)];

    while (*at != index)
        at = &hot->nodes[*at].next_hash;
    *at = node->next_hash;
}

/* A leaf, not node 0. */
static void remove_leaf(struct kvd_hot *hot, uint16_t index)
{
    struct node *node = &hot->nodes[index];
    struct node *above = &hot->nodes[node->parent];

    if (node->before != NO_NODE)
        hot->nodes[node->before].next = node->next;
    else
        above->first_child = node->next;
    if (node->next != NO_NODE)
        hot->nodes[node->next].before = node->before;
    above->children -= node->count;
    if (node->parent == 0)
        hot->spaces[node->space].used = false; /* H6 */
    else
        unhash(hot, index);
    *node = (struct node){.parent = NO_NODE, .next = hot->free_first};
    hot->free_first = index;
    hot->free_count++;
}

static bool is_leaf(const struct kvd_hot *hot, uint32_t index)
{
    return index != 0 && hot->nodes[index].used &&
           hot->nodes[index].first_child == NO_NODE;
}

static unsigned magnitude(uint64_t count)
{
    return count == 0 ? 0 : 64 - (unsigned)__builtin_clzll(count);
}

/* Leaves of the least counts go until an eighth is free.  Of about equal ones those go first
 * that the hand meets, so that none is favoured for its place. */
static void make_room(struct kvd_hot *hot)
{
    while (hot->free_count < ROOM) {
        unsigned least = 64;

        for (uint32_t i = 1; i < KVD_HOT_NODES; i++) {
            if (is_leaf(hot, i) && magnitude(hot->nodes[i].count) < least)
                least = magnitude(hot->nodes[i].count);
        }
        for (uint32_t i = 0; i < KVD_HOT_NODES && hot->free_count < ROOM; i++) {
            hot->hand = (uint16_t)((hot->hand + 1u) % KVD_HOT_NODES);
            if (is_leaf(hot, hot->hand) &&
                magnitude(hot->nodes[hot->hand].count) <= least)
                remove_leaf(hot, hot->hand);
        }
    }
}

/* Counting --------------------------------------------------------------------------------- */

static uint16_t find_space(const struct kvd_hot *hot, const struct kvd_hot_chain *chain)
{
    for (uint16_t i = 0; i < KVD_HOT_SPACES; i++) {
        const struct kvd_hot_space *space = &hot->spaces[i];

        if (space->used && space->page_size == chain->page_size &&
            strncmp(space->source, chain->source, KVD_NAME_BYTES) == 0 &&
            strncmp(space->tenant, chain->tenant, KVD_NAME_BYTES) == 0)
            return i;
    }
    return NO_NODE;
}

/* The parent has been counted already, by `units`. */
static uint16_t visit_new(
    struct kvd_hot *hot, uint16_t parent, uint32_t space, uint64_t key, uint64_t units)
{
    const struct node *above = &hot->nodes[parent];
    uint64_t missed = above->count + above->error - units - above->children;
    uint16_t index = new_node(hot, parent, space, key);

    hot->nodes[index].error = missed;
    return index;
}

static void visit(struct kvd_hot *hot, uint16_t index, uint64_t units, bool present)
{
    struct node *node = &hot->nodes[index];

    node->count += units;
    node->present += present ? units : 0;
    if (node->parent != NO_NODE)
        hot->nodes[node->parent].children += units;
}

static uint16_t space_root(
    struct kvd_hot *hot, const struct kvd_hot_chain *chain, uint64_t units)
{
    uint16_t index = find_space(hot, chain);
    struct kvd_hot_space *space;

    if (index != NO_NODE)
        return (uint16_t)hot->spaces[index].root;
    for (index = 0; index < KVD_HOT_SPACES && hot->spaces[index].used; index++)
        continue;
    if (index == KVD_HOT_SPACES)
        return NO_NODE;
    space = &hot->spaces[index];
    *space = (struct kvd_hot_space){.used = true, .page_size = chain->page_size};
    memcpy(space->source, chain->source, KVD_NAME_BYTES - 1);
    memcpy(space->tenant, chain->tenant, KVD_NAME_BYTES - 1);
    space->root = visit_new(hot, 0, index, 0, units);
    return (uint16_t)space->root;
}

void kvd_hot_add(struct kvd_hot *hot, const struct kvd_hot_chain *chain)
{
    uint64_t units = chain->weight * KVD_HOT_UNIT;
    uint32_t grown = 0;
    uint16_t at;

    if (hot->free_count < KVD_HOT_GROW + 1)
        make_room(hot);
    visit(hot, 0, units, (chain->present & 1) != 0);
    at = space_root(hot, chain, units);
    if (at == NO_NODE) {
        hot->refused++;
        return;
    }
    visit(hot, at, units, (chain->present & 1) != 0);
    for (uint32_t i = 0; i < chain->page_count && i < KVD_HOT_DEPTH; i++) {
        uint16_t child = find_child(hot, at, chain->keys[i]);

        if (child == NO_NODE) {
            if (grown++ == KVD_HOT_GROW)
                return;
            child = visit_new(hot, at, hot->nodes[at].space, chain->keys[i], units);
        }
        visit(hot, child, units, (chain->present >> i & 1) != 0);
        at = child;
    }
}

static uint64_t fifteen_sixteenths(uint64_t value)
{
    return value / 16 * 15 + value % 16 * 15 / 16;
}

void kvd_hot_fade(struct kvd_hot *hot)
{
    for (uint32_t i = 0; i < KVD_HOT_NODES; i++) {
        struct node *node = &hot->nodes[i];
        uint64_t most = node->count + node->error;

        if (!node->used)
            continue;
        node->count = fifteen_sixteenths(node->count);
        node->present = fifteen_sixteenths(node->present);
        /* Rounded up, so that the bound stays one. */
        node->error = most - most / 16 - node->count;
        node->children = 0;
    }
    for (uint32_t i = 1; i < KVD_HOT_NODES; i++) {
        if (hot->nodes[i].used)
            hot->nodes[hot->nodes[i].parent].children += hot->nodes[i].count;
    }
    for (uint32_t i = 1; i < KVD_HOT_NODES; i++) {
        uint16_t at = (uint16_t)i;

        while (is_leaf(hot, at) && hot->nodes[at].count < KEEP_MIN) {
            uint16_t parent = hot->nodes[at].parent;

            remove_leaf(hot, at);
            at = parent;
        }
    }
}

/* Reading ---------------------------------------------------------------------------------- */

uint64_t kvd_hot_refused(const struct kvd_hot *hot)
{
    return hot->refused;
}

const struct kvd_hot_space *kvd_hot_space(const struct kvd_hot *hot, uint32_t index)
{
    if (index >= KVD_HOT_SPACES || !hot->spaces[index].used)
        return NULL;
    return &hot->spaces[index];
}

uint32_t kvd_hot_find(const struct kvd_hot *hot, uint32_t space, uint64_t prefix)
{
    uint32_t found = KVD_HOT_NONE;

    for (uint32_t i = 1; i < KVD_HOT_NODES; i++) {
        const struct node *node = &hot->nodes[i];

        if (!node->used || node->depth < 2 || node->key != prefix ||
            (space != KVD_HOT_NONE && node->space != space))
            continue;
        if (found == KVD_HOT_NONE || node->count > hot->nodes[found].count)
            found = i;
    }
    return found;
}

uint32_t kvd_hot_parent(const struct kvd_hot *hot, uint32_t node)
{
    return node == 0 ? KVD_HOT_NONE : hot->nodes[node].parent;
}

static uint32_t page_of(const struct node *node)
{
    return node->depth < 2 ? KVD_HOT_NONE : node->depth - 2u;
}

static void look_at_end(
    const struct kvd_hot *hot, uint32_t node, struct kvd_hot_view *out)
{
    const struct node *end = &hot->nodes[node];

    out->last_page = page_of(end);
    out->last_prefix = end->key;
    out->last_count = end->count;
    out->last_present = end->present;
}

void kvd_hot_look(const struct kvd_hot *hot, uint32_t node, struct kvd_hot_view *out)
{
    const struct node *seen = &hot->nodes[node];

    *out = (struct kvd_hot_view){.node = node,
        .parent = KVD_HOT_NONE,
        .space = node == 0 ? KVD_HOT_NONE : seen->space,
        .page = page_of(seen),
        .prefix = seen->key,
        .count = seen->count,
        .error = seen->error};
    look_at_end(hot, node, out);
}

/* The last page of the run that begins with a page: while there is one way on, and who comes to
 * the one page may all have asked for the next.  (That may be watched only since later.) */
static uint16_t run_end(const struct kvd_hot *hot, uint16_t at)
{
    const struct node *nodes = hot->nodes;

    while (nodes[at].depth >= 2 && nodes[at].first_child != NO_NODE) {
        const struct node *child = &nodes[nodes[at].first_child];

        if (child->next != NO_NODE ||
            child->count + child->error < nodes[at].count - nodes[at].count / 32)
            break;
        at = nodes[at].first_child;
    }
    return at;
}

/* Whether `a` is shown before `b`. */
static bool before(const struct kvd_hot *hot, uint16_t a, uint16_t b)
{
    if (hot->nodes[a].count != hot->nodes[b].count)
        return hot->nodes[a].count > hot->nodes[b].count;
    return a < b;
}

static void heap_push(struct kvd_hot *hot, size_t *count, uint16_t node)
{
    size_t at = (*count)++;

    while (at > 0 && before(hot, node, hot->heap[(at - 1) / 2])) {
        hot->heap[at] = hot->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    hot->heap[at] = node;
}

static uint16_t heap_pop(struct kvd_hot *hot, size_t *count)
{
    uint16_t top = hot->heap[0];
    uint16_t last = hot->heap[--*count];
    size_t at = 0;

    for (size_t child = 1; child < *count; child = 2 * at + 1) {
        if (child + 1 < *count && before(hot, hot->heap[child + 1], hot->heap[child]))
            child++;
        if (!before(hot, hot->heap[child], last))
            break;
        hot->heap[at] = hot->heap[child];
        at = child;
    }
    hot->heap[at] = last;
    return top;
}

size_t kvd_hot_top(
    struct kvd_hot *hot, uint32_t node, size_t max, struct kvd_hot_view *out)
{
    size_t waiting = 0;
    size_t count = 0;

    memset(hot->places, 0xff, sizeof(hot->places));
    heap_push(hot, &waiting, (uint16_t)node);
    while (waiting > 0 && count < max) {
        uint16_t at = heap_pop(hot, &waiting);
        uint16_t end = run_end(hot, at);
        uint16_t child = hot->nodes[end].first_child;

        kvd_hot_look(hot, at, &out[count]);
        look_at_end(hot, end, &out[count]);
        if (count > 0)
            out[count].parent = hot->places[hot->nodes[at].parent];
        hot->places[end] = (uint16_t)count++;
        for (; child != NO_NODE; child = hot->nodes[child].next)
            heap_push(hot, &waiting, child);
    }
    for (size_t i = 0; i < waiting; i++) /* Found, and not shown. */
        out[hot->places[hot->nodes[hot->heap[i]].parent]].more = true;
    return count;
}

/* Life ------------------------------------------------------------------------------------- */

kvg_err kvd_hot_new(const struct kvg_alloc *alloc, struct kvd_hot **out)
{
    struct kvd_hot *hot = KVI_NEW(alloc, struct kvd_hot);

    *out = hot;
    if (hot == NULL)
        return KVG_ENOMEM;
    hot->alloc = alloc;
    memset(hot->heads, 0xff, sizeof(hot->heads));
    hot->free_first = NO_NODE;
    for (uint32_t i = KVD_HOT_NODES - 1; i > 0; i--) {
        hot->nodes[i] = (struct node){.parent = NO_NODE, .next = hot->free_first};
        hot->free_first = (uint16_t)i;
        hot->free_count++;
    }
    hot->nodes[0] = (struct node){.parent = NO_NODE,
        .first_child = NO_NODE,
        .next = NO_NODE,
        .before = NO_NODE,
        .next_hash = NO_NODE,
        .used = true};
    return KVG_OK;
}

void kvd_hot_free(struct kvd_hot *hot)
{
    if (hot != NULL)
        KVI_FREE(hot->alloc, hot);
}

/* Checking --------------------------------------------------------------------------------- */

static int breaks(int number, const char *text, const char **what)
{
    *what = text;
    return number;
}

static int check_node(const struct kvd_hot *hot, uint32_t index, const char **what)
{
    const struct node *node = &hot->nodes[index];
    uint64_t children = 0;

    for (uint16_t at = node->first_child; at != NO_NODE; at = hot->nodes[at].next) {
        const struct node *child = &hot->nodes[at];

        if (!child->used || child->parent != index || child->depth != node->depth + 1 ||
            (index != 0 && child->space != node->space) ||
            (index != 0 && find_child(hot, (uint16_t)index, child->key) != at))
            return breaks(1, "H1: a child that is not its parent's", what);
        if (child->count + child->error > node->count + node->error)
            return breaks(4, "H4: a child may have more visits than its parent", what);
        children += child->count;
    }
    if (children != node->children || children > node->count)
        return breaks(2, "H2: the children's counts do not fit", what);
    if (node->present > node->count)
        return breaks(3, "H3: there more often than asked for", what);
    return 0;
}

int kvd_hot_check(const struct kvd_hot *hot, const char **what)
{
    uint32_t used = 0;
    uint32_t unused = 0;
    int broken = 0;

    for (uint32_t i = 0; broken == 0 && i < KVD_HOT_NODES; i++) {
        used += hot->nodes[i].used;
        if (hot->nodes[i].used)
            broken = check_node(hot, i, what);
    }
    for (uint16_t at = hot->free_first; at != NO_NODE; at = hot->nodes[at].next)
        unused += !hot->nodes[at].used;
    if (broken == 0 && (used + unused != KVD_HOT_NODES || unused != hot->free_count))
        return breaks(5, "H5: a node is neither used nor free", what);
    for (uint32_t i = 0; broken == 0 && i < KVD_HOT_SPACES; i++) {
        const struct kvd_hot_space *space = &hot->spaces[i];
        const struct node *root = &hot->nodes[space->root];

        if (space->used && (!root->used || root->parent != 0 || root->space != i))
            return breaks(6, "H6: a space without its root", what);
    }
    for (uint16_t at = hot->nodes[0].first_child; broken == 0 && at != NO_NODE;
         at = hot->nodes[at].next) {
        if (!hot->spaces[hot->nodes[at].space].used ||
            hot->spaces[hot->nodes[at].space].root != at)
            return breaks(6, "H6: a root without its space", what);
    }
    return broken;
}
