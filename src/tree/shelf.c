/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* shelf.c -- the order of the leaves: entries on shelves, the least of them in front.
 *
 *     entry     | rank by the policy | node | serial |
 *
 *     front     9 8 6 5 3          sorted, the least last: that one goes first
 *     shelf 0   [10 .. 40)   22 10 31 ...          256 entries at most, in no order
 *     shelf 1   [40 .. 95)   40 93 57 ...
 *     ...
 *     last      [95 ..   )   95 96 97 ...          mostly it grows at its end
 *
 * A new entry is put on the shelf whose range holds its key; a full shelf is split in the
 * middle, or at the end of all simply followed by another.  When the front is empty, the
 * first shelf becomes it: dead entries are dropped, those whose key has risen meanwhile are
 * put where they belong now, the others are sorted.  That is done for a whole shelf at once,
 * so that the nodes' cache misses overlap, and so that afterwards the next victims are known
 * and can be fetched while one is evicted.
 *
 * A node knows the serial of its one living entry; any other entry that names it is a ghost.
 * Ghosts are dropped when their shelf comes to the front, or all at once when there is no
 * room left.
 *
 * Where ranks can be equal, the last access decides: shelves then hold it behind their entries.
 *
 *     operation     cost
 *     add           O(log n), one cache line written; O(shelf) each 128 times
 *     first, pop    O(1); O(shelf) each 128 times or more
 *
 * Invariants (T19): the front is sorted; what is in front is less than the first shelf's low
 * key; keys on a shelf lie between its low key and the next one's; every shelf but the last
 * holds at least half of what fits; counts equal a recount.
 *
 * Nothing here can fail: kvi_shelves_reserve() makes room for as many shelves as the last invariant
 * allows.
 */
#include "tree/shelf.h"

#define SHELF_HALF (KVI_SHELF_ENTRIES / 2)
#define FRONT_ENTRIES (2 * KVI_SHELF_ENTRIES)
#define FETCH_AHEAD 8u
#define FETCH_NODE 4u
#define FETCH_NAMED 2u

/* An entry with all that orders it. */
struct keyed {
    struct kvi_shelf_entry entry;
    uint64_t access;
};

static bool before(const struct keyed *a, const struct keyed *b)
{
    return a->entry.rank != b->entry.rank ? a->entry.rank < b->entry.rank
                                          : a->access < b->access;
}

/* A block holds a shelf's entries, then, where they count, their accesses. */
static uint64_t *accesses_of(struct kvi_shelf_entry *block, uint32_t entries)
{
    return (uint64_t *)(void *)(block + entries);
}

static struct keyed get(const struct kvg_tree *tree, struct kvi_shelf_entry *block,
    uint32_t block_entries, uint32_t i)
{
    return (struct keyed){
        block[i], tree->ranks_differ ? 0 : accesses_of(block, block_entries)[i]};
}

static void put(const struct kvg_tree *tree, struct kvi_shelf_entry *block,
    uint32_t block_entries, uint32_t i, struct keyed keyed)
{
    block[i] = keyed.entry;
    if (!tree->ranks_differ)
        accesses_of(block, block_entries)[i] = keyed.access;
}

static struct keyed on_shelf(
    const struct kvg_tree *tree, struct kvi_shelf_entry *block, uint32_t i)
{
    return get(tree, block, KVI_SHELF_ENTRIES, i);
}

static struct keyed in_front(
    const struct kvg_tree *tree, const struct kvi_shelves *shelves, uint32_t i)
{
    return get(tree, shelves->front, FRONT_ENTRIES, i);
}

static struct keyed low_of(const struct kvi_shelves *shelves, uint32_t i)
{
    return (struct keyed){{.rank = shelves->low_ranks[i]}, shelves->low_accesses[i]};
}

/* ---- Memory -------------------------------------------------------------------------------- */

static size_t block_bytes(const struct kvg_tree *tree, uint32_t entries)
{
    size_t each =
        sizeof(struct kvi_shelf_entry) + (tree->ranks_differ ? 0 : sizeof(uint64_t));

    return entries * each;
}

/* Free blocks are chained through their first bytes. */
static struct kvi_shelf_entry *take_block(struct kvi_shelves *shelves)
{
    struct kvi_shelf_entry *block = shelves->free_block;

    KVI_ASSERT(block != NULL);
    memcpy(&shelves->free_block, block, sizeof(void *));
    return block;
}

static void give_block(struct kvi_shelves *shelves, struct kvi_shelf_entry *block)
{
    memcpy(block, &shelves->free_block, sizeof(void *));
    shelves->free_block = block;
}

/* The arrays of shelves grow together; what they hold moves to their beginning. */
static bool grow_arrays(struct kvg_tree *tree, struct kvi_shelves *s, uint32_t capacity)
{
    uint64_t *ranks = kvi_alloc_array_raw(&tree->alloc, capacity, sizeof(*ranks));
    uint64_t *accesses = kvi_alloc_array_raw(&tree->alloc, capacity, sizeof(*accesses));
    struct kvi_shelf *shelf = kvi_alloc_array_raw(&tree->alloc, capacity, sizeof(*shelf));

    if (ranks == NULL || accesses == NULL || shelf == NULL) {
        kvi_release_array(&tree->alloc, ranks, capacity, sizeof(*ranks));
        kvi_release_array(&tree->alloc, accesses, capacity, sizeof(*accesses));
        kvi_release_array(&tree->alloc, shelf, capacity, sizeof(*shelf));
        return false;
    }
    if (s->count != 0) {
        memcpy(ranks, s->low_ranks + s->first, s->count * sizeof(*ranks));
        memcpy(accesses, s->low_accesses + s->first, s->count * sizeof(*accesses));
        memcpy(shelf, s->shelf + s->first, s->count * sizeof(*shelf));
    }
    kvi_release_array(&tree->alloc, s->low_ranks, s->capacity, sizeof(*ranks));
    kvi_release_array(&tree->alloc, s->low_accesses, s->capacity, sizeof(*accesses));
    kvi_release_array(&tree->alloc, s->shelf, s->capacity, sizeof(*shelf));
    s->low_ranks = ranks;
    s->low_accesses = accesses;
    s->shelf = shelf;
    s->first = 0;
    s->capacity = capacity;
    return true;
}

kvg_err kvi_shelves_reserve(struct kvg_tree *tree, struct kvi_shelves *s, uint32_t nodes)
{
    /* A quarter more, so that ghosts are not swept too often. */
    uint32_t entries = nodes + nodes / 4 + 64;
    uint32_t blocks = entries / SHELF_HALF + 3; /* The last, one in hand, rounding. */

    if (KVI_LIKELY(s->entry_max >= nodes + nodes / 4 + 1))
        return KVG_OK;
    if (s->front == NULL) {
        s->front = kvi_alloc_array_raw(&tree->alloc, block_bytes(tree, FRONT_ENTRIES), 1);
        if (s->front == NULL)
            return KVG_ENOMEM;
    }
    if (blocks > s->capacity) {
        uint32_t capacity = s->capacity == 0 ? 16 : s->capacity;
        while (capacity < blocks)
            capacity *= 2;
        if (!grow_arrays(tree, s, capacity))
            return KVG_ENOMEM;
    }
    while (s->block_count < blocks) {
        struct kvi_shelf_entry *block =
            kvi_alloc_array_raw(&tree->alloc, block_bytes(tree, KVI_SHELF_ENTRIES), 1);
        if (block == NULL)
            return KVG_ENOMEM;
        give_block(s, block);
        s->block_count++;
    }
    s->entry_max = entries;
    return KVG_OK;
}

void kvi_shelves_fini(struct kvg_tree *tree, struct kvi_shelves *s)
{
    size_t bytes = block_bytes(tree, KVI_SHELF_ENTRIES);

    for (uint32_t i = 0; i < s->count; i++)
        kvi_release_array(&tree->alloc, s->shelf[s->first + i].entries, bytes, 1);
    while (s->free_block != NULL)
        kvi_release_array(&tree->alloc, take_block(s), bytes, 1);
    kvi_release_array(&tree->alloc, s->front, block_bytes(tree, FRONT_ENTRIES), 1);
    kvi_release_array(&tree->alloc, s->low_ranks, s->capacity, sizeof(uint64_t));
    kvi_release_array(&tree->alloc, s->low_accesses, s->capacity, sizeof(uint64_t));
    kvi_release_array(&tree->alloc, s->shelf, s->capacity, sizeof(*s->shelf));
    *s = (struct kvi_shelves){0};
}

/* ---- Order --------------------------------------------------------------------------------- */

/* Shell's sort: small, in place, quick on what is nearly sorted.  The least last. */
static void sort_falling(const struct kvg_tree *tree, struct kvi_shelf_entry *block,
    uint32_t block_entries, uint32_t count)
{
    static const uint32_t gaps[] = {132, 57, 23, 10, 4, 1};

    for (size_t g = 0; g < sizeof(gaps) / sizeof(gaps[0]); g++) {
        uint32_t gap = gaps[g];
        for (uint32_t i = gap; i < count; i++) {
            struct keyed keyed = get(tree, block, block_entries, i);
            uint32_t at = i;
            while (at >= gap) {
                struct keyed other = get(tree, block, block_entries, at - gap);
                if (!before(&other, &keyed))
                    break;
                put(tree, block, block_entries, at, other);
                at -= gap;
            }
            if (at != i)
                put(tree, block, block_entries, at, keyed);
        }
    }
}

/* How many shelves, from the first, have a low key that is not above `keyed`. */
static uint32_t shelves_up_to(const struct kvi_shelves *s, const struct keyed *keyed)
{
    uint32_t base = s->first;
    uint32_t count = s->count;

    while (count > 1) {
        uint32_t half = count / 2;
        uint32_t middle = base + half;
        bool above = s->low_ranks[middle] > keyed->entry.rank ||
                     (s->low_ranks[middle] == keyed->entry.rank &&
                         s->low_accesses[middle] > keyed->access);
        base = above ? base : middle;
        count -= half;
    }
    if (count == 0)
        return 0;
    struct keyed low = low_of(s, base);
    return base - s->first + (before(keyed, &low) ? 0 : 1);
}

/* Makes place `at` (0: before all) for a shelf with that low key. */
static struct kvi_shelf *insert_shelf(
    struct kvi_shelves *s, uint32_t at, const struct keyed *low)
{
    if (at == 0 && s->first != 0) {
        s->first--;
    } else {
        if (s->first + s->count == s->capacity) {
            memmove(
                s->low_ranks, s->low_ranks + s->first, s->count * sizeof(*s->low_ranks));
            memmove(s->low_accesses, s->low_accesses + s->first,
                s->count * sizeof(*s->low_accesses));
            memmove(s->shelf, s->shelf + s->first, s->count * sizeof(*s->shelf));
            s->first = 0;
        }
        KVI_ASSERT(s->count < s->capacity);
        uint32_t place = s->first + at;
        uint32_t behind = s->count - at;
        memmove(s->low_ranks + place + 1, s->low_ranks + place,
            behind * sizeof(*s->low_ranks));
        memmove(s->low_accesses + place + 1, s->low_accesses + place,
            behind * sizeof(*s->low_accesses));
        memmove(s->shelf + place + 1, s->shelf + place, behind * sizeof(*s->shelf));
    }
    s->count++;
    s->low_ranks[s->first + at] = low->entry.rank;
    s->low_accesses[s->first + at] = low->access;
    struct kvi_shelf *shelf = &s->shelf[s->first + at];
    *shelf = (struct kvi_shelf){take_block(s), 0};
    return shelf;
}

/* ---- Add ----------------------------------------------------------------------------------- */

static void place(
    const struct kvg_tree *tree, struct kvi_shelves *s, const struct keyed *keyed);

/* The larger half of a full front becomes the first shelf. */
static void spill_front(const struct kvg_tree *tree, struct kvi_shelves *s)
{
    struct keyed low = in_front(tree, s, KVI_SHELF_ENTRIES - 1);
    struct kvi_shelf *shelf = insert_shelf(s, 0, &low);

    for (uint32_t i = 0; i < KVI_SHELF_ENTRIES; i++) {
        put(tree, shelf->entries, KVI_SHELF_ENTRIES, i, in_front(tree, s, i));
        put(tree, s->front, FRONT_ENTRIES, i, in_front(tree, s, KVI_SHELF_ENTRIES + i));
    }
    shelf->count = KVI_SHELF_ENTRIES;
    s->front_count -= KVI_SHELF_ENTRIES;
}

static void place_in_front(
    const struct kvg_tree *tree, struct kvi_shelves *s, const struct keyed *keyed)
{
    if (s->front_count == FRONT_ENTRIES) {
        spill_front(tree, s);
        place(tree, s, keyed);
        return;
    }
    uint32_t at = s->front_count++;
    while (at != 0) {
        struct keyed other = in_front(tree, s, at - 1);
        if (!before(&other, keyed))
            break;
        put(tree, s->front, FRONT_ENTRIES, at, other);
        at--;
    }
    put(tree, s->front, FRONT_ENTRIES, at, *keyed);
}

/* Splits the full shelf `at` in the middle. */
static void split_shelf(const struct kvg_tree *tree, struct kvi_shelves *s, uint32_t at)
{
    struct kvi_shelf_entry *block = s->shelf[s->first + at].entries;

    sort_falling(tree, block, KVI_SHELF_ENTRIES, KVI_SHELF_ENTRIES);
    struct keyed middle = on_shelf(tree, block, SHELF_HALF - 1);
    struct kvi_shelf *upper = insert_shelf(s, at + 1, &middle);
    for (uint32_t i = 0; i < SHELF_HALF; i++) {
        put(tree, upper->entries, KVI_SHELF_ENTRIES, i, on_shelf(tree, block, i));
        put(tree, block, KVI_SHELF_ENTRIES, i, on_shelf(tree, block, SHELF_HALF + i));
    }
    upper->count = SHELF_HALF;
    s->shelf[s->first + at].count = SHELF_HALF;
}

/* Is `keyed` above everything there is? */
static bool is_newest(const struct kvi_shelves *s, const struct keyed *keyed)
{
    return keyed->entry.rank > s->high_rank ||
           (keyed->entry.rank == s->high_rank && keyed->access > s->high_access);
}

static void place(
    const struct kvg_tree *tree, struct kvi_shelves *s, const struct keyed *keyed)
{
    bool newest = is_newest(s, keyed);
    uint32_t shelves = newest ? s->count : shelves_up_to(s, keyed);

    if (newest) {
        s->high_rank = keyed->entry.rank;
        s->high_access = keyed->access;
    }
    if (shelves == 0 && !newest) {
        place_in_front(tree, s, keyed);
        return;
    }
    struct kvi_shelf *shelf;
    if (shelves == 0 ||
        (newest && s->shelf[s->first + shelves - 1].count == KVI_SHELF_ENTRIES)) {
        shelf = insert_shelf(s, shelves, keyed);
    } else {
        if (s->shelf[s->first + shelves - 1].count == KVI_SHELF_ENTRIES) {
            split_shelf(tree, s, shelves - 1);
            shelves = shelves_up_to(s, keyed);
        }
        shelf = &s->shelf[s->first + shelves - 1];
    }
    put(tree, shelf->entries, KVI_SHELF_ENTRIES, shelf->count++, *keyed);
}

bool kvi_shelf_is_ghost(
    const struct kvg_tree *tree, enum kvg_tier tier, const struct kvi_shelf_entry *entry)
{
    return kvi_node_at(tree, entry->node)->serial[tier] != entry->serial;
}

static struct keyed keyed_of(
    const struct kvg_tree *tree, enum kvg_tier tier, const struct kvi_node *node)
{
    struct kvi_leaf_key key = kvi_leaf_key(tree, node);

    return (struct keyed){{key.rank, kvi_ref_of(node), node->serial[tier]}, key.access};
}

/* Drops all ghosts, and packs the rest in order.  O(n log n), each n / 4 ghosts at most. */
static void sweep_ghosts(struct kvg_tree *tree, enum kvg_tier tier)
{
    struct kvi_shelves *s = &tree->shelves[tier];
    uint32_t kept = 0;
    uint32_t to = 0;

    for (uint32_t i = 0; i < s->front_count; i++) {
        if (!kvi_shelf_is_ghost(tree, tier, &s->front[i]))
            put(tree, s->front, FRONT_ENTRIES, kept++, in_front(tree, s, i));
    }
    s->front_count = kept;
    s->entry_count = kept;
    s->ghost_count = 0;
    uint32_t filled = 0; /* Of shelf `to`, which lies at or before the one being read. */
    for (uint32_t from = 0; from < s->count; from++) {
        struct kvi_shelf_entry *block = s->shelf[s->first + from].entries;
        uint32_t count = s->shelf[s->first + from].count;
        sort_falling(tree, block, KVI_SHELF_ENTRIES, count);
        for (uint32_t i = count; i-- > 0;) {
            if (kvi_shelf_is_ghost(tree, tier, &block[i]))
                block[i].serial = 0;
        }
        /* Rising, so that what is packed stays in order; a shelf is read before it is written. */
        struct kvi_shelf_entry *spare = take_block(s);
        memcpy(spare, block, block_bytes(tree, KVI_SHELF_ENTRIES));
        for (uint32_t i = count; i-- > 0;) {
            struct keyed keyed = on_shelf(tree, spare, i);
            if (keyed.entry.serial == 0)
                continue;
            if (filled == KVI_SHELF_ENTRIES) {
                s->shelf[s->first + to++].count = filled;
                filled = 0;
            }
            if (filled == 0) {
                s->low_ranks[s->first + to] = keyed.entry.rank;
                s->low_accesses[s->first + to] = keyed.access;
            }
            put(tree, s->shelf[s->first + to].entries, KVI_SHELF_ENTRIES, filled++,
                keyed);
            s->entry_count++;
        }
        give_block(s, spare);
    }
    if (filled != 0)
        s->shelf[s->first + to++].count = filled;
    while (s->count > to)
        give_block(s, s->shelf[s->first + --s->count].entries);
}

void kvi_shelf_add(struct kvg_tree *tree, enum kvg_tier tier, struct kvi_node *node)
{
    struct kvi_shelves *s = &tree->shelves[tier];

    KVI_DCHECK(!kvi_placed(node, tier));
    if (s->entry_count == s->entry_max)
        sweep_ghosts(tree, tier);
    KVI_ASSERT(s->entry_count < s->entry_max);
    if (++tree->next_serial == 0) {
        /* Serials begin again: no ghost may be left that could be taken for a living entry. */
        for (enum kvg_tier t = 0; t < KVG_TIER_COUNT; t++)
            sweep_ghosts(tree, t);
        tree->next_serial = 1;
    }
    node->serial[tier] = tree->next_serial;
    node->flags |= (uint16_t)(KVI_NODE_PLACED_FIRST << tier);
    s->entry_count++;
    struct keyed keyed = keyed_of(tree, tier, node);
    place(tree, s, &keyed);
}

void kvi_shelf_drop(struct kvg_tree *tree, enum kvg_tier tier, struct kvi_node *node)
{
    node->serial[tier] = 0;
    node->flags &= (uint16_t) ~(KVI_NODE_PLACED_FIRST << tier);
    tree->shelves[tier].ghost_count++;
}

/* ---- First --------------------------------------------------------------------------------- */

enum verdict {
    VERDICT_STAYS,
    VERDICT_DROPPED,
    VERDICT_ROSE
};

/* Looks at an entry's node.  A dropped one is accounted for. */
static enum verdict judge(struct kvg_tree *tree, enum kvg_tier tier, struct keyed *keyed)
{
    struct kvi_shelves *s = &tree->shelves[tier];
    uint16_t mark = tier == KVG_TIER_DEVICE ? KVI_NODE_DEVICE_LEAF : KVI_NODE_HOST_LEAF;
    struct kvi_node *node = kvi_node_at(tree, keyed->entry.node);

    if (node->serial[tier] != keyed->entry.serial) {
        s->ghost_count--;
        s->entry_count--;
        return VERDICT_DROPPED;
    }
    if ((node->flags & mark) == 0) {
        node->serial[tier] = 0;
        node->flags &= (uint16_t) ~(KVI_NODE_PLACED_FIRST << tier);
        s->entry_count--;
        return VERDICT_DROPPED;
    }
    struct keyed now = keyed_of(tree, tier, node);
    if (!before(keyed, &now))
        return VERDICT_STAYS;
    *keyed = now;
    return VERDICT_ROSE;
}

/* Makes the first shelf the front, which is empty. */
static void refill(struct kvg_tree *tree, enum kvg_tier tier)
{
    struct kvi_shelves *s = &tree->shelves[tier];
    struct kvi_shelf shelf = s->shelf[s->first];
    uint32_t rose = 0;

    s->first++;
    s->count--;
    for (uint32_t i = 0; i < shelf.count; i++) {
        if (i + FETCH_AHEAD < shelf.count) {
            const struct kvi_node *next =
                kvi_node_at(tree, shelf.entries[i + FETCH_AHEAD].node);
            __builtin_prefetch(next);
            __builtin_prefetch(&next->block);
        }
        struct keyed keyed = on_shelf(tree, shelf.entries, i);
        enum verdict verdict = judge(tree, tier, &keyed);
        if (verdict == VERDICT_STAYS)
            put(tree, s->front, FRONT_ENTRIES, s->front_count++, keyed);
        else if (verdict == VERDICT_ROSE)
            put(tree, shelf.entries, KVI_SHELF_ENTRIES, rose++, keyed);
    }
    sort_falling(tree, s->front, FRONT_ENTRIES, s->front_count);
    for (uint32_t i = 0; i < rose; i++) {
        struct keyed keyed = on_shelf(tree, shelf.entries, i);
        place(tree, s, &keyed);
    }
    give_block(s, shelf.entries);
}

struct kvi_node *kvi_shelf_first(struct kvg_tree *tree, enum kvg_tier tier)
{
    struct kvi_shelves *s = &tree->shelves[tier];

    for (;;) {
        if (s->front_count == 0) {
            if (s->count == 0)
                return NULL;
            refill(tree, tier);
            continue;
        }
        struct keyed keyed = in_front(tree, s, s->front_count - 1);
        enum verdict verdict = judge(tree, tier, &keyed);
        if (verdict == VERDICT_STAYS)
            return kvi_node_at(tree, keyed.entry.node);
        s->front_count--;
        if (verdict == VERDICT_ROSE)
            place(tree, s, &keyed);
    }
}

/* Sends for what the evictions to come will touch: first the node, some evictions later what it
 * names.  Inlined by force: GCC takes a
 * function that only prefetches for one without effect, and drops the call. */
__attribute__((always_inline)) static inline void fetch_next(
    const struct kvg_tree *tree, const struct kvi_shelves *s)
{
    const struct kvi_shelf_entry *end = s->front + s->front_count;

    if (s->front_count > FETCH_NODE) {
        const char *node =
            (const char *)kvi_node_at(tree, end[-1 - (int)FETCH_NODE].node);
        for (uint32_t line = 0; line < 4; line++)
            __builtin_prefetch(node + line * 64);
    }
    if (s->front_count > FETCH_NAMED) {
        const struct kvi_node *node = kvi_node_at(tree, end[-1 - (int)FETCH_NAMED].node);
        __builtin_prefetch(&tree->children[node->hash & tree->child_mask]);
        __builtin_prefetch(node->block);
        if (node->parent != NULL) {
            __builtin_prefetch(node->parent);
            __builtin_prefetch(&node->parent->last_child);
        }
        if (node->previous_sibling != 0)
            __builtin_prefetch(&kvi_node_at(tree, node->previous_sibling)->next_sibling);
        if (node->next_sibling != 0)
            __builtin_prefetch(&kvi_node_at(tree, node->next_sibling)->next_sibling);
    }
}

void kvi_shelf_pop(struct kvg_tree *tree, enum kvg_tier tier, struct kvi_node *node)
{
    struct kvi_shelves *s = &tree->shelves[tier];

    KVI_ASSERT(
        s->front_count != 0 && s->front[s->front_count - 1].node == kvi_ref_of(node));
    fetch_next(tree, s);
    s->front_count--;
    s->entry_count--;
    node->serial[tier] = 0;
    node->flags &= (uint16_t) ~(KVI_NODE_PLACED_FIRST << tier);
}

/* ---- Check --------------------------------------------------------------------------------- */

/* Between the keys around it (a ghost may equal one), with a key that its node has not fallen
 * below? */
static const char *check_entry(const struct kvg_tree *tree, enum kvg_tier tier,
    const struct keyed *keyed, const struct keyed *low, const struct keyed *end,
    uint64_t *ghosts)
{
    if ((low != NULL && before(keyed, low)) || (end != NULL && before(end, keyed)))
        return "an entry is on the wrong shelf";
    if (kvi_shelf_is_ghost(tree, tier, &keyed->entry)) {
        ++*ghosts;
        return NULL;
    }
    const struct kvi_node *node = kvi_node_at(tree, keyed->entry.node);
    struct keyed now = keyed_of(tree, tier, node);
    if (node->id == 0 || !kvi_placed(node, tier))
        return "an entry and its node disagree";
    return before(&now, keyed) ? "a stored key exceeds the node's own" : NULL;
}

const char *kvi_shelves_check(
    const struct kvg_tree *tree, enum kvg_tier tier, uint64_t placed)
{
    const struct kvi_shelves *s = &tree->shelves[tier];
    uint64_t ghosts = 0;
    uint64_t entries = s->front_count;
    const char *broken = NULL;
    struct keyed end = {{0}, 0};

    for (uint32_t i = 0; i < s->front_count && broken == NULL; i++) {
        struct keyed keyed = in_front(tree, s, i);
        if (i != 0)
            end = in_front(tree, s, i - 1);
        else if (s->count != 0)
            end = low_of(s, s->first);
        broken = check_entry(
            tree, tier, &keyed, NULL, i == 0 && s->count == 0 ? NULL : &end, &ghosts);
    }
    for (uint32_t i = 0; i < s->count && broken == NULL; i++) {
        struct kvi_shelf shelf = s->shelf[s->first + i];
        struct keyed low = low_of(s, s->first + i);
        bool last = i + 1 == s->count;
        if (!last)
            end = low_of(s, s->first + i + 1);
        if (shelf.count > KVI_SHELF_ENTRIES || (!last && shelf.count < SHELF_HALF))
            broken = "a shelf is too full or too empty";
        entries += shelf.count;
        for (uint32_t j = 0; j < shelf.count && broken == NULL; j++) {
            struct keyed keyed = on_shelf(tree, shelf.entries, j);
            broken = check_entry(tree, tier, &keyed, &low, last ? NULL : &end, &ghosts);
        }
    }
    if (broken == NULL && (entries != s->entry_count || ghosts != s->ghost_count ||
                              entries - ghosts != placed))
        broken = "the shelves hold the wrong number of entries";
    return broken;
}
