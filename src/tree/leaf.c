/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* leaf.c -- which FULL leaf goes first.
 *
 * Two heaps of four-way fan-out, one for leaves on device, one for those on host only.  Each entry
 * holds the key by which it was placed; a node knows that it has one.
 *
 *     entry   | rank by the policy | last access | node | its number |      smallest first
 *
 * Touching a node is far more frequent than evicting one, so a key that rose is not moved: an
 * entry may be too near the top, never too far from it (T19).  Whoever takes the first entry
 * corrects it and looks again.  Only under mru and tlru can a key fall; then the entry moves at
 * once, and nodes know their entries' places (else moving entries would write to as many nodes,
 * each a cache miss).  A deleted node leaves its entry behind as a ghost, known by its number;
 * ghosts go when they come up, or all at once when they are half of a heap.  A node that ceases
 * to be a leaf keeps its entry until that comes up, because most such nodes are locked for the
 * length of a request and come back.
 *
 *     operation        cost
 *     lock, unlock     O(1); O(log n) the first time a node becomes a leaf
 *     touch            O(1); O(log n) under mru and tlru
 *     first            O(log n) for each stale entry met
 *
 * Settled duplicates are a list in the order of their birth.
 */
#include "tree/tree.h"

#define FAN 4u

bool kvi_is_device_leaf(const struct kvg_tree *tree, const struct kvi_node *node)
{
    (void)tree;
    return node->device_child_count == 0 && node->locked_parts[KVG_TIER_DEVICE] == 0 &&
           kvi_has(node, 0, KVG_TIER_DEVICE) && !kvi_awaits(node, 0) &&
           !kvi_is_root(node);
}

bool kvi_is_host_leaf(const struct kvg_tree *tree, const struct kvi_node *node)
{
    (void)tree;
    return node->child_count == 0 && node->locked_parts[KVG_TIER_DEVICE] == 0 &&
           node->locked_parts[KVG_TIER_HOST] == 0 && !kvi_has(node, 0, KVG_TIER_DEVICE) &&
           kvi_has(node, 0, KVG_TIER_HOST) && !kvi_is_root(node);
}

uint64_t kvi_policy_rank(const struct kvg_tree *tree, const struct kvi_node *node)
{
    const struct kvg_tree_options *options = &tree->options;
    uint64_t budget;

    switch (options->policy) {
    case KVG_POLICY_LFU:
        return node->hits;
    case KVG_POLICY_FIFO:
        return node->creation;
    case KVG_POLICY_MRU:
        return ~node->last_access;
    case KVG_POLICY_FILO:
        return ~node->creation;
    case KVG_POLICY_PRIORITY:
        return (uint64_t)node->priority ^ (UINT64_C(1) << 63);
    case KVG_POLICY_SLRU:
        return node->hits >= options->slru_hits ? 1 : 0;
    case KVG_POLICY_TLRU:
        budget = node->history + options->tlru_next_estimate;
        budget = budget > options->tlru_threshold ? budget - options->tlru_threshold : 0;
        return node->depth - node->length >= budget ? 0 : 1;
    case KVG_POLICY_LRU:
    case KVG_POLICY_COUNT:
        break;
    }
    return 0;
}

/* ---- Heap ---------------------------------------------------------------------------------- */

static bool before(const struct kvi_heap_entry *a, const struct kvi_heap_entry *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->access < b->access;
}

static struct kvi_heap_entry entry_of(
    const struct kvg_tree *tree, const struct kvi_node *node)
{
    return (struct kvi_heap_entry){kvi_policy_rank(tree, node), node->last_access,
        kvi_ref_of(node), (uint32_t)(node->id >> KVI_REF_BITS)};
}

bool kvi_heap_is_ghost(const struct kvg_tree *tree, const struct kvi_heap_entry *entry)
{
    const struct kvi_node *node = kvi_node_at(tree, entry->node);

    return node->id == 0 || (uint32_t)(node->id >> KVI_REF_BITS) != entry->number;
}

static void put(const struct kvg_tree *tree, struct kvi_heap *heap, enum kvg_tier tier,
    uint32_t place, struct kvi_heap_entry entry)
{
    heap->entries[place] = entry;
    if (tree->rank_can_fall)
        kvi_node_at(tree, entry.node)->heap_place[tier] = place;
}

static void sift_up(const struct kvg_tree *tree, struct kvi_heap *heap,
    enum kvg_tier tier, uint32_t place, struct kvi_heap_entry entry)
{
    while (place != 0) {
        uint32_t above = (place - 1) / FAN;
        if (!before(&entry, &heap->entries[above]))
            break;
        put(tree, heap, tier, place, heap->entries[above]);
        place = above;
    }
    put(tree, heap, tier, place, entry);
}

static void sift_down(const struct kvg_tree *tree, struct kvi_heap *heap,
    enum kvg_tier tier, uint32_t place, struct kvi_heap_entry entry)
{
    for (;;) {
        uint64_t first = (uint64_t)place * FAN + 1;
        if (first >= heap->count)
            break;
        uint64_t end = first + FAN < heap->count ? first + FAN : heap->count;
        uint32_t best = (uint32_t)first;
        for (uint64_t i = first + 1; i < end; i++) {
            if (before(&heap->entries[i], &heap->entries[best]))
                best = (uint32_t)i;
        }
        if (!before(&heap->entries[best], &entry))
            break;
        put(tree, heap, tier, place, heap->entries[best]);
        place = best;
    }
    put(tree, heap, tier, place, entry);
}

/* Drops the entries of nodes that are gone, and orders the rest anew.  O(n), after n / 2 of
 * them. */
static void sweep_ghosts(
    const struct kvg_tree *tree, struct kvi_heap *heap, enum kvg_tier tier)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < heap->count; i++) {
        if (!kvi_heap_is_ghost(tree, &heap->entries[i]))
            heap->entries[kept++] = heap->entries[i];
    }
    heap->count = kept;
    heap->ghost_count = 0;
    for (uint32_t i = kept / FAN + 1; i-- > 0;) {
        if (i < kept)
            sift_down(tree, heap, tier, i, heap->entries[i]);
    }
}

static void heap_add(struct kvg_tree *tree, enum kvg_tier tier, struct kvi_node *node)
{
    struct kvi_heap *heap = &tree->heaps[tier];

    if (heap->ghost_count != 0 &&
        (heap->count == heap->capacity || heap->ghost_count > heap->count / 2))
        sweep_ghosts(tree, heap, tier);
    KVI_ASSERT(heap->count < heap->capacity);
    node->heap_place[tier] = 0;
    heap->count++;
    sift_up(tree, heap, tier, heap->count - 1, entry_of(tree, node));
}

static void remove_at(struct kvg_tree *tree, enum kvg_tier tier, uint32_t place)
{
    struct kvi_heap *heap = &tree->heaps[tier];
    struct kvi_heap_entry moved = heap->entries[--heap->count];

    if (place == heap->count)
        return;
    if (place != 0 && before(&moved, &heap->entries[(place - 1) / FAN]))
        sift_up(tree, heap, tier, place, moved);
    else
        sift_down(tree, heap, tier, place, moved);
}

/* ---- Marks --------------------------------------------------------------------------------- */

static void set_mark(struct kvg_tree *tree, struct kvi_node *node, enum kvg_tier tier,
    uint16_t mark, bool is_leaf)
{
    struct kvi_heap *heap = &tree->heaps[tier];

    if (is_leaf == ((node->flags & mark) != 0))
        return;
    if (!is_leaf) {
        node->flags &= (uint16_t)~mark;
        heap->leaf_count--;
        return;
    }
    node->flags |= mark;
    heap->leaf_count++;
    if (node->heap_place[tier] == KVI_HEAP_NONE &&
        (tier == KVG_TIER_HOST || (node->flags & KVI_NODE_POPPED) == 0))
        heap_add(tree, tier, node);
}

void kvi_leaf_update(struct kvg_tree *tree, struct kvi_node *node)
{
    set_mark(tree, node, KVG_TIER_DEVICE, KVI_NODE_DEVICE_LEAF,
        kvi_is_device_leaf(tree, node));
    set_mark(tree, node, KVG_TIER_HOST, KVI_NODE_HOST_LEAF, kvi_is_host_leaf(tree, node));
}

void kvi_leaf_touched(struct kvg_tree *tree, struct kvi_node *node)
{
    if (!tree->rank_can_fall)
        return;
    struct kvi_heap_entry entry = entry_of(tree, node);
    for (enum kvg_tier tier = 0; tier < KVG_TIER_COUNT; tier++) {
        uint32_t place = node->heap_place[tier];
        if (place != KVI_HEAP_NONE && before(&entry, &tree->heaps[tier].entries[place]))
            sift_up(tree, &tree->heaps[tier], tier, place, entry);
    }
}

void kvi_leaf_forget(struct kvg_tree *tree, struct kvi_node *node)
{
    for (enum kvg_tier tier = 0; tier < KVG_TIER_COUNT; tier++) {
        if (node->heap_place[tier] == KVI_HEAP_NONE)
            continue;
        if (tree->rank_can_fall)
            remove_at(tree, tier, node->heap_place[tier]);
        else
            tree->heaps[tier].ghost_count++;
        node->heap_place[tier] = KVI_HEAP_NONE;
    }
    if (node->flags & KVI_NODE_DEVICE_LEAF)
        tree->heaps[KVG_TIER_DEVICE].leaf_count--;
    if (node->flags & KVI_NODE_HOST_LEAF)
        tree->heaps[KVG_TIER_HOST].leaf_count--;
    node->flags &= (uint16_t) ~(KVI_NODE_DEVICE_LEAF | KVI_NODE_HOST_LEAF);
    kvi_walk_forget(tree, node);
}

struct kvi_node *kvi_leaf_first(struct kvg_tree *tree, enum kvg_tier tier)
{
    struct kvi_heap *heap = &tree->heaps[tier];
    uint16_t mark = tier == KVG_TIER_DEVICE ? KVI_NODE_DEVICE_LEAF : KVI_NODE_HOST_LEAF;

    while (heap->count != 0) {
        if (kvi_heap_is_ghost(tree, &heap->entries[0])) {
            heap->ghost_count--;
            remove_at(tree, tier, 0);
            continue;
        }
        struct kvi_node *node = kvi_node_at(tree, heap->entries[0].node);
        if ((node->flags & mark) == 0) {
            node->heap_place[tier] = KVI_HEAP_NONE;
            remove_at(tree, tier, 0);
            continue;
        }
        struct kvi_heap_entry entry = entry_of(tree, node);
        if (!before(&heap->entries[0], &entry))
            return node;
        sift_down(tree, heap, tier, 0, entry);
    }
    return NULL;
}

void kvi_leaf_pop(struct kvg_tree *tree, struct kvi_node *node)
{
    struct kvi_heap *heap = &tree->heaps[KVG_TIER_DEVICE];

    KVI_ASSERT(heap->count != 0 && heap->entries[0].node == kvi_ref_of(node));
    node->heap_place[KVG_TIER_DEVICE] = KVI_HEAP_NONE;
    remove_at(tree, KVG_TIER_DEVICE, 0);
    if (heap->count != 0) {
        /* The next victim, likely: its lines come in while this one is evicted. */
        const struct kvi_node *next = kvi_node_at(tree, heap->entries[0].node);
        __builtin_prefetch(next);
        __builtin_prefetch(&next->page_keys);
        __builtin_prefetch(&next->full.value);
    }
    node->flags |= KVI_NODE_POPPED;
    node->walk_next = tree->walks[0].popped;
    tree->walks[0].popped = kvi_ref_of(node);
}

void kvi_leaf_restore(struct kvg_tree *tree, struct kvi_node *node)
{
    node->flags &= (uint16_t)~KVI_NODE_POPPED;
    if ((node->flags & KVI_NODE_DEVICE_LEAF) != 0 &&
        node->heap_place[KVG_TIER_DEVICE] == KVI_HEAP_NONE)
        heap_add(tree, KVG_TIER_DEVICE, node);
}

void kvi_walk_forget(struct kvg_tree *tree, struct kvi_node *node)
{
    kvi_ref *link = &tree->walks[0].popped;

    if ((node->flags & KVI_NODE_POPPED) == 0)
        return;
    /* Nearly always the first: a leaf is evicted right after the walk has returned it. */
    while (*link != kvi_ref_of(node))
        link = &kvi_node_at(tree, *link)->walk_next;
    *link = node->walk_next;
    node->flags &= (uint16_t)~KVI_NODE_POPPED;
}

/* ---- Settled duplicates -------------------------------------------------------------------- */

void kvi_duplicate_forget(struct kvg_tree *tree, struct kvi_node *node)
{
    if ((node->flags & KVI_NODE_DUPLICATE) == 0)
        return;
    if (node->duplicate_previous != 0)
        kvi_node_at(tree, node->duplicate_previous)->duplicate_next =
            node->duplicate_next;
    else
        tree->duplicate_first = node->duplicate_next;
    if (node->duplicate_next != 0)
        kvi_node_at(tree, node->duplicate_next)->duplicate_previous =
            node->duplicate_previous;
    else
        tree->duplicate_last = node->duplicate_previous;
    node->duplicate_next = 0;
    node->duplicate_previous = 0;
    node->flags &= (uint16_t)~KVI_NODE_DUPLICATE;
    tree->duplicate_count--;
}

/* Only ever adds: an entry that stopped being one is dropped by whoever meets it. */
void kvi_duplicate_update(struct kvg_tree *tree, struct kvi_node *node)
{
    kvi_ref ref = kvi_ref_of(node);

    if ((node->flags & KVI_NODE_DUPLICATE) != 0 || kvi_is_root(node) ||
        !kvi_has(node, 0, KVG_TIER_DEVICE) || !kvi_has(node, 0, KVG_TIER_HOST) ||
        node->pending_write != KVG_NODE_NONE || node->pending_load != KVG_NODE_NONE)
        return;
    node->flags |= KVI_NODE_DUPLICATE;
    node->duplicate_previous = tree->duplicate_last;
    node->duplicate_next = 0;
    if (tree->duplicate_last != 0)
        kvi_node_at(tree, tree->duplicate_last)->duplicate_next = ref;
    else
        tree->duplicate_first = ref;
    tree->duplicate_last = ref;
    tree->duplicate_count++;
}
