/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* leaf.c -- which FULL leaf goes first.
 *
 * Two heaps of four-way fan-out, one for leaves on device, one for those on host only.  Each entry
 * holds the key by which it was placed; a node knows that it has one.
 *
 *     entry   | rank by the policy | node | its number |      smallest first
 *
 *     place       0   1 2 3 4   5 6 7 8   9 10 11 12   ...      those below i: 4 i + 1 to 4 i + 4,
 *     line    |   0 | 1 2 3 4 | 5 6 7 8 | 9 10 11 12 | ...      one cache line
 *
 * Where ranks can be equal, the last access decides, from an array beside the entries; under lru and
 * mru the last access is the rank, and there is no such array.
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
           kvi_full_on_device(node) && !kvi_awaits(node, 0) && !kvi_is_root(node);
}

bool kvi_is_host_leaf(const struct kvg_tree *tree, const struct kvi_node *node)
{
    (void)tree;
    return node->child_count == 0 && node->locked_parts[KVG_TIER_DEVICE] == 0 &&
           node->locked_parts[KVG_TIER_HOST] == 0 && !kvi_full_on_device(node) &&
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
    return node->last_access;
}

/* ---- Heap ---------------------------------------------------------------------------------- */

#define PLACES_MIN 64u
#define LINE_BYTES 64u
#define FAR_PLACES 4096u /* Beyond these, levels are fetched before they are needed. */

/* An entry with all that orders it. */
struct keyed {
    struct kvi_heap_entry entry;
    uint64_t access;
};

static bool before(const struct keyed *a, const struct keyed *b)
{
    return a->entry.rank != b->entry.rank ? a->entry.rank < b->entry.rank
                                          : a->access < b->access;
}

static struct keyed get(const struct kvi_heap *heap, uint32_t place)
{
    return (struct keyed){
        heap->entries[place], heap->accesses == NULL ? 0 : heap->accesses[place]};
}

static struct keyed keyed_of(const struct kvg_tree *tree, const struct kvi_node *node)
{
    return (struct keyed){{kvi_policy_rank(tree, node), kvi_ref_of(node),
                              (uint32_t)(node->id >> KVI_REF_BITS)},
        tree->ranks_differ ? 0 : node->last_access};
}

static size_t heap_bytes(const struct kvg_tree *tree, uint32_t capacity)
{
    size_t each =
        sizeof(struct kvi_heap_entry) + (tree->ranks_differ ? 0 : sizeof(uint64_t));

    return 2 * LINE_BYTES + (size_t)capacity * each;
}

kvg_err kvi_heap_reserve(struct kvg_tree *tree, struct kvi_heap *heap, uint32_t wanted)
{
    uint32_t capacity = heap->capacity == 0 ? PLACES_MIN : heap->capacity;

    if (heap->capacity >= wanted)
        return KVG_OK;
    while (capacity < wanted)
        capacity *= 2;
    char *memory = kvi_alloc_array_raw(&tree->alloc, heap_bytes(tree, capacity), 1);
    if (memory == NULL)
        return KVG_ENOMEM;
    /* Place 0 ends a line, so that place 1 begins one. */
    size_t skew = (size_t)(-(uintptr_t)memory & (LINE_BYTES - 1)) + LINE_BYTES -
                  sizeof(struct kvi_heap_entry);
    struct kvi_heap_entry *entries = (void *)(memory + skew);
    uint64_t *accesses = tree->ranks_differ ? NULL : (void *)(entries + capacity);
    if (heap->count != 0) {
        memcpy(entries, heap->entries, heap->count * sizeof(*entries));
        if (accesses != NULL)
            memcpy(accesses, heap->accesses, heap->count * sizeof(*accesses));
    }
    kvi_heap_fini(tree, heap);
    heap->entries = entries;
    heap->accesses = accesses;
    heap->memory = memory;
    heap->capacity = capacity;
    return KVG_OK;
}

void kvi_heap_fini(struct kvg_tree *tree, struct kvi_heap *heap)
{
    if (heap->memory != NULL)
        kvi_release_array(
            &tree->alloc, heap->memory, heap_bytes(tree, heap->capacity), 1);
    heap->memory = NULL;
}

bool kvi_heap_is_ghost(const struct kvg_tree *tree, const struct kvi_heap_entry *entry)
{
    const struct kvi_node *node = kvi_node_at(tree, entry->node);

    return node->id == 0 || (uint32_t)(node->id >> KVI_REF_BITS) != entry->number;
}

static void put(const struct kvg_tree *tree, struct kvi_heap *heap, enum kvg_tier tier,
    uint32_t place, const struct keyed *keyed)
{
    heap->entries[place] = keyed->entry;
    if (heap->accesses != NULL)
        heap->accesses[place] = keyed->access;
    if (tree->rank_can_fall)
        kvi_node_at(tree, keyed->entry.node)->heap_place[tier] = place;
}

static void sift_up(const struct kvg_tree *tree, struct kvi_heap *heap,
    enum kvg_tier tier, uint32_t place, const struct keyed *keyed)
{
    while (place != 0) {
        uint32_t above = (place - 1) / FAN;
        struct keyed other = get(heap, above);
        if (!before(keyed, &other))
            break;
        put(tree, heap, tier, place, &other);
        place = above;
    }
    put(tree, heap, tier, place, keyed);
}

/* Sends for the lines of the level after the next. */
static void fetch_below(const struct kvi_heap *heap, uint64_t first)
{
    uint64_t below = first * FAN + 1;

    for (uint32_t i = 0; i < FAN && below < heap->count; i++, below += FAN)
        __builtin_prefetch(&heap->entries[below]);
}

/* The least of the places from `first` on, at most FAN. */
static uint32_t least_of(const struct kvi_heap *heap, uint32_t first)
{
    uint32_t end = heap->count - first < FAN ? heap->count : first + FAN;
    uint32_t least = first;

    /* Without branches near the top, where nobody can foretell them; further down a guessed branch is
     * better, because it lets the processor read ahead. */
    if (heap->accesses == NULL && first < FAR_PLACES) {
        for (uint32_t i = first + 1; i < end; i++)
            least = heap->entries[i].rank < heap->entries[least].rank ? i : least;
        return least;
    }
    struct keyed best = get(heap, least);
    for (uint32_t i = first + 1; i < end; i++) {
        struct keyed other = get(heap, i);
        if (KVI_UNLIKELY(before(&other, &best))) {
            least = i;
            best = other;
        }
    }
    return least;
}

static void sift_down(const struct kvg_tree *tree, struct kvi_heap *heap,
    enum kvg_tier tier, uint32_t place, const struct keyed *keyed)
{
    for (;;) {
        uint64_t first = (uint64_t)place * FAN + 1;
        if (first >= heap->count)
            break;
        if (first >= FAR_PLACES)
            fetch_below(heap, first);
        uint32_t least = least_of(heap, (uint32_t)first);
        struct keyed best = get(heap, least);
        if (!before(&best, keyed))
            break;
        put(tree, heap, tier, place, &best);
        place = least;
    }
    put(tree, heap, tier, place, keyed);
}

/* Drops the entries of nodes that are gone, and orders the rest anew.  O(n), after n / 2 of
 * them. */
static void sweep_ghosts(
    const struct kvg_tree *tree, struct kvi_heap *heap, enum kvg_tier tier)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < heap->count; i++) {
        if (kvi_heap_is_ghost(tree, &heap->entries[i]))
            continue;
        heap->entries[kept] = heap->entries[i];
        if (heap->accesses != NULL)
            heap->accesses[kept] = heap->accesses[i];
        kept++;
    }
    heap->count = kept;
    heap->ghost_count = 0;
    for (uint32_t i = kept / FAN + 1; i-- > 0;) {
        if (i >= kept)
            continue;
        struct keyed keyed = get(heap, i);
        sift_down(tree, heap, tier, i, &keyed);
    }
}

static void heap_add(struct kvg_tree *tree, enum kvg_tier tier, struct kvi_node *node)
{
    struct kvi_heap *heap = &tree->heaps[tier];
    struct keyed keyed = keyed_of(tree, node);

    if (heap->ghost_count != 0 &&
        (heap->count == heap->capacity || heap->ghost_count > heap->count / 2))
        sweep_ghosts(tree, heap, tier);
    KVI_ASSERT(heap->count < heap->capacity);
    node->flags |= (uint16_t)(KVI_NODE_PLACED_FIRST << tier);
    heap->count++;
    sift_up(tree, heap, tier, heap->count - 1, &keyed);
}

static void remove_at(struct kvg_tree *tree, enum kvg_tier tier, uint32_t place)
{
    struct kvi_heap *heap = &tree->heaps[tier];
    struct keyed moved = get(heap, --heap->count);

    if (place == heap->count)
        return;
    struct keyed above = get(heap, place == 0 ? 0 : (place - 1) / FAN);
    if (place != 0 && before(&moved, &above))
        sift_up(tree, heap, tier, place, &moved);
    else
        sift_down(tree, heap, tier, place, &moved);
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
    if (!kvi_placed(node, tier) &&
        (tier == KVG_TIER_HOST || (node->flags & KVI_NODE_POPPED) == 0))
        heap_add(tree, tier, node);
}

void kvi_leaf_update(struct kvg_tree *tree, struct kvi_node *node)
{
    set_mark(tree, node, KVG_TIER_DEVICE, KVI_NODE_DEVICE_LEAF,
        kvi_is_device_leaf(tree, node));
    if (tree->has_host_values)
        set_mark(
            tree, node, KVG_TIER_HOST, KVI_NODE_HOST_LEAF, kvi_is_host_leaf(tree, node));
}

void kvi_leaf_touched(struct kvg_tree *tree, struct kvi_node *node)
{
    if (!tree->rank_can_fall)
        return;
    struct keyed keyed = keyed_of(tree, node);
    for (enum kvg_tier tier = 0; tier < KVG_TIER_COUNT; tier++) {
        if (!kvi_placed(node, tier))
            continue;
        struct keyed stored = get(&tree->heaps[tier], node->heap_place[tier]);
        if (before(&keyed, &stored))
            sift_up(tree, &tree->heaps[tier], tier, node->heap_place[tier], &keyed);
    }
}

void kvi_leaf_forget(struct kvg_tree *tree, struct kvi_node *node)
{
    for (enum kvg_tier tier = 0; tier < KVG_TIER_COUNT; tier++) {
        if (!kvi_placed(node, tier))
            continue;
        if (tree->rank_can_fall)
            remove_at(tree, tier, node->heap_place[tier]);
        else
            tree->heaps[tier].ghost_count++;
        node->flags &= (uint16_t) ~(KVI_NODE_PLACED_FIRST << tier);
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
            node->flags &= (uint16_t) ~(KVI_NODE_PLACED_FIRST << tier);
            remove_at(tree, tier, 0);
            continue;
        }
        struct keyed stored = get(heap, 0);
        struct keyed keyed = keyed_of(tree, node);
        if (!before(&stored, &keyed))
            return node;
        sift_down(tree, heap, tier, 0, &keyed);
    }
    return NULL;
}

void kvi_leaf_pop(struct kvg_tree *tree, struct kvi_node *node)
{
    struct kvi_heap *heap = &tree->heaps[KVG_TIER_DEVICE];

    KVI_ASSERT(heap->count != 0 && heap->entries[0].node == kvi_ref_of(node));
    node->flags &= (uint16_t)~KVI_NODE_PLACED_FIRST;
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
    if ((node->flags & KVI_NODE_DEVICE_LEAF) != 0 && !kvi_placed(node, KVG_TIER_DEVICE))
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
