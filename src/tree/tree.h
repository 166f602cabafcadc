/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* tree.h -- the data of the prefix tree, shared by the files of this folder.
 *
 * Nodes live in an arena of chunks that never move.  Links between them are 32-bit refs, 0 being
 * nobody; only the parent, which every lock follows to the root, is a pointer.  A node's id is
 * its creation number and its ref in one word, so that finding a node by id is one comparison:
 *
 *     id    | creation number, 38 bits | ref, 26 bits |
 *
 *     arena   chunk 0: [ - ][root][ A ][ B ] ...   chunk 1: [ . ] ...
 *             slab 0 holds chunk 0, slab 1 chunk 1, ... later ones up to 64 chunks at once
 *
 *     node    line 1: id, parent, key view, counters, last access, FULL's locks
 *             line 2: FULL's values                   line 3 and 4: what is needed less often
 *             then, where the tree has them: SWA | MAMBA
 *
 * Tokens, page keys and values are *views* into counted blocks, so that a split copies nothing:
 *
 *     block   | refs | capacity | 1 2 3 4 5 6 7 8 |        prefix P sees [0,3), suffix X [3,8)
 *
 * The child table is one open-addressing hash for the whole tree: (parent, namespace, first page)
 * to child.  A node with one child is not even hashed.  Children are also linked in the order of
 * their insertion.
 *
 * FULL leaves are ordered on shelves (shelf.c), one set a tier; the other components keep recency
 * lists (list.c).  Both are ordered without looking at children: a node counts its children that
 * have a device value, and its parts that are locked.
 *
 * Invariants, checked by kvg_tree_check() (T1 to T15 are those of the behaviour, T16 on ours):
 *
 *     T1   The root has a FULL lock, no parent and no rotation base.
 *     T2   A child's parent names it; every node but the root has a key of whole pages; children
 *          stand in the order of their creation, which a split hands to the prefix.
 *     T3   A device value of another component implies one of FULL.
 *     T4   A host value of another component implies one of FULL (write-back: or on device).
 *     T5   Every node but the root has a FULL value on some tier.
 *     T6   FULL on device implies the parent's on device; on host, the parent's on host
 *          (not under write-back).
 *     T7   No lock count of another component exceeds that of FULL.
 *     T8   The leaf marks are exactly what the definition says, and no node has both.
 *     T9   Every settled duplicate is tracked; nothing dead is.
 *     T10  Frontiers and sessions name each other, and a node's session counts are what the
 *          frontiers cover (session.c).
 *     T11  FULL's recency lists are empty.
 *     T12  A device list holds the nodes with a device value; a host list those with a host value
 *          only (a host-locked one may be missing).  Links and counts agree; nodes that a session
 *          covers come before the others.
 *     T13  Evictable and protected sizes equal a recount.
 *     T14  A node with a write in flight is FULL-locked (checked by whoever holds the writes).
 *     T15  A load mark names a living node.
 *     T16  The child table finds every child, and holds nothing else.
 *     T17  Child counts, device-child counts and locked-part counts equal a recount.
 *     T18  Reference counts of blocks, buffers and namespaces equal a recount.
 *     T19  Every marked leaf is on its shelves, or was taken off by the walk in progress; the order
 *          of shelf.c holds; no stored key exceeds the node's own.
 *     T20  Ids are consistent with refs; free nodes are blank.
 *     T21  Page keys, where present, number the pages of the node.
 *     T22  A part that awaits its bytes has a device value, and the node a load mark.
 *
 * Who may do what: a tree belongs to one thread; nothing here is atomic.
 *
 * Failure: whatever may need memory is reserved before the first change (kvi_tree_reserve_nodes,
 * kvi_actions_reserve, kvi_value_make), and nothing after that can fail.
 */
#ifndef KVI_TREE_TREE_H
#define KVI_TREE_TREE_H

#include <kvgraft/tree.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/fmt.h"

typedef uint32_t kvi_ref; /* A node's place in the arena; 0 is nobody. */

#define KVI_REF_BITS 26
#define KVI_REF_MASK ((UINT64_C(1) << KVI_REF_BITS) - 1)
#define KVI_CHUNK_BITS 8
#define KVI_CHUNK_ALIGN 64u
#define KVI_CHUNK_NODES (1u << KVI_CHUNK_BITS)
#define KVI_SLAB_CHUNKS_MAX 64u
#define KVI_PARTS_MAX 3            /* Components one tree can have at once. */
#define KVI_TIME_SHIFT 24          /* A tick leaves room for that many ancestors. */
#define KVI_BUFFER_RUNS UINT32_MAX /* In kvi_value.buffer: see `runs`. */

/* ---- Blocks -------------------------------------------------------------------------------- */

/* Tokens shared by the fragments of one inserted run.  Fragments die from the end of a path, so
 * what lives is always the beginning. */
struct kvi_block {
    uint32_t refs;
    uint32_t capacity;
    uint32_t seen; /* By the check. */
    uint32_t tokens[];
};

/* Page keys, the same way. */
struct kvi_keys {
    uint32_t refs;
    uint32_t capacity;
    uint32_t seen;
    struct kvg_key keys[];
};

/* Slots that are more than one run. */
struct kvi_run {
    uint64_t offset;
    uint32_t buffer;
    uint32_t start; /* Position of its first slot in the block. */
};
struct kvi_runs {
    uint32_t refs;
    uint32_t count;
    uint32_t length; /* Slots in all. */
    uint32_t live;   /* Slots still seen by a value. */
    uint32_t seen;   /* Values and slots, by the check. */
    uint32_t seen_slots;
    struct kvi_run run[];
};

/* A value: `length` slots, 0 for none.  One run is stored in place. */
struct kvi_value {
    union {
        uint64_t offset;
        struct kvi_runs *runs;
    } at;
    uint32_t buffer;   /* Or KVI_BUFFER_RUNS. */
    uint32_t position; /* First slot inside `runs`. */
    uint32_t length;
    uint32_t unused;
};

/* ---- Nodes --------------------------------------------------------------------------------- */

struct kvi_link {
    kvi_ref newer; /* Towards the most recent. */
    kvi_ref older;
};

/* One component of one node. */
struct kvi_part {
    uint32_t lock[KVG_TIER_COUNT];
    struct kvi_value value[KVG_TIER_COUNT];
    uint64_t uuid[KVG_TIER_COUNT]; /* Boundary stamp of segment locks; 0: none. */
};

/* One that keeps recency lists, which FULL does not. */
struct kvi_aux {
    struct kvi_part part;
    struct kvi_link link[KVG_TIER_COUNT];
    uint32_t sessions; /* Frontiers that cover the node for this component. */
    uint8_t listed[KVG_TIER_COUNT];
    uint8_t unused[2];
};

enum kvi_node_flag {
    KVI_NODE_DEVICE_LEAF = 1 << 0,
    KVI_NODE_HOST_LEAF = 1 << 1,
    KVI_NODE_STORED = 1 << 2,
    KVI_NODE_POPPED = 1 << 3,    /* Taken off the shelves by the walk in progress. */
    KVI_NODE_DUPLICATE = 1 << 4, /* In the list of settled duplicates. */
    KVI_NODE_ROOT = 1 << 5,
    KVI_NODE_AWAITS_FIRST = 1 << 6, /* And a bit for each further part: see withdraw.c. */
    KVI_NODE_FULL_DEVICE =
        1 << 9, /* FULL has a device value: what its length says too. */
    KVI_NODE_PLACED_FIRST =
        1 << 10,            /* Has an entry on the device shelves; next bit: host. */
    KVI_NODE_ACK = 1 << 12, /* Names a load under way: see withdraw.c. */
};

struct kvi_node {
    /* First line, with FULL's lock counts: what a match, a lock and a leaf test read. */
    uint64_t id; /* 0: free. */
    struct kvi_node *parent;
    const uint32_t *tokens; /* In the block. */
    uint64_t last_access;
    uint32_t length;             /* Units; with pairs there is one token more. */
    uint32_t device_child_count; /* Children with a FULL device value. */
    kvi_ref first_child;
    uint32_t child_count;
    uint16_t flags;
    uint8_t locked_parts[KVG_TIER_COUNT]; /* Parts with a lock, by tier. */
    uint32_t space;

    struct kvi_part full; /* Its device value begins the second line. */

    /* What eviction and insertion read, then what is seldom needed. */
    struct kvi_block *block;
    uint32_t hash;  /* In the child table. */
    uint32_t depth; /* Units from the root to the node's end. */
    uint32_t hits;
    uint32_t serial[KVG_TIER_COUNT]; /* Of its entry on the shelves, if placed. */
    kvi_ref next_sibling, previous_sibling, last_child;
    kvi_ref walk_next; /* In the list of nodes that a device walk took out. */
    kvi_ref path_next; /* Scratch: the next node down a path. */
    struct kvi_keys *page_keys, *event_keys;
    uint32_t page_key_start, event_key_start; /* In pages. */
    kvg_node_id pending_write, pending_load;
    uint64_t creation;
    int64_t priority;
    uint32_t history;
    kvi_ref duplicate_next, duplicate_previous;
    uint32_t sessions;       /* Frontiers that cover the node for FULL. */
    uint32_t first_frontier; /* Of those that end here; 0: none. */
    uint32_t rotation;       /* The pages' rotation base + 1; 0: none. */

    struct kvi_aux aux[]; /* SWA, MAMBA: those that this tree has, in this order. */
};

_Static_assert(offsetof(struct kvi_node, full.value) == 64,
    "a lock walk reads one line a node, and FULL's device value begins the next");
_Static_assert(sizeof(struct kvi_node) <= 256, "a node of a FULL tree is four lines");

/* ---- Leaves, lists, namespaces, buffers ---------------------------------------------------- */

/* See shelf.c. */
struct kvi_shelf_entry {
    uint64_t rank; /* The policy's key, as it was when stored. */
    kvi_ref node;
    uint32_t serial; /* That of the node's entry, else the entry is a ghost. */
};
struct kvi_shelf {
    struct kvi_shelf_entry *entries;
    uint32_t count;
};
struct kvi_shelves {
    struct kvi_shelf_entry *front; /* Falling: the last goes first. */
    uint32_t front_count;
    uint32_t first, count, capacity; /* Of the three arrays: shelves by rising keys. */
    uint64_t *low_ranks, *low_accesses;
    struct kvi_shelf *shelf;
    uint64_t high_rank, high_access; /* No key was above. */
    struct kvi_shelf_entry *free_block;
    uint32_t block_count;
    uint32_t entry_count, entry_max; /* Ghosts included. */
    uint32_t ghost_count;
    uint32_t leaf_count; /* Nodes with the mark. */
};

struct kvi_list {
    kvi_ref newest, oldest;
    uint32_t count;
    kvi_ref middle; /* The oldest of the nodes that a session covers; 0: none is. */
    kvi_ref passed; /* A walk among sessions goes on at its newer side; 0: at the end. */
};

/* See session.c. */
struct kvi_frontier {
    uint32_t session; /* 0: the place is free. */
    kvi_ref node;
    uint32_t slot;
    uint32_t next, previous; /* Of the session and slot, oldest first; or free. */
    uint32_t node_next, node_previous; /* Of the node. */
    uint64_t covered; /* Units upwards from the node's end; 0: the node. */
};
struct kvi_session {
    char *id; /* NULL: the place is free. */
    uint32_t id_bytes;
    uint32_t next; /* In its bucket, or the next free place. */
    uint64_t hash;
    uint64_t generation;                                /* 0: closed. */
    uint32_t newer, older;                              /* Among the closed. */
    uint32_t first[KVI_PARTS_MAX], last[KVI_PARTS_MAX]; /* Frontiers. */
    uint32_t count[KVI_PARTS_MAX];
};
struct kvi_sessions {
    struct kvi_session *items; /* [0] is nobody. */
    uint32_t *buckets;
    struct kvi_frontier *frontiers; /* [0] is nobody. */
    uint32_t count, capacity, free; /* Of items; count with the free ones among them. */
    uint32_t open_count, closed_count, closed_newest, closed_oldest;
    uint32_t frontier_count, frontier_capacity, free_frontier, frontier_used;
    uint64_t generation; /* The last that was given out. */
    uint64_t refused, stale;
};

struct kvi_space {
    struct kvg_namespace name; /* Copies. */
    uint64_t hash;
    uint64_t refs; /* 0: the place is free. */
    uint64_t seen;
    uint32_t next; /* In its bucket, or the next free place. */
    bool has_prior;
    bool has_event_prior;
    struct kvg_key prior;       /* Of page keys. */
    struct kvg_key event_prior; /* Of event keys, from the salt. */
};
struct kvi_spaces {
    struct kvi_space *items; /* [0] is the plain namespace. */
    uint32_t *buckets;       /* Item index, 0 for none. */
    uint32_t count, capacity, bucket_count, free;
};

struct kvi_buffer {
    uint64_t refs; /* Values that refer to it. */
    uint64_t seen;
    bool known, held;
};

/* The copies of what the node says of its key let a walk look ahead without reading nodes. */
struct kvi_child_slot {
    const uint32_t *tokens;
    uint32_t length;
    uint32_t hash;
    kvi_ref node; /* 0: empty. */
    uint32_t unused;
};

/* A walk down along a key, some nodes ahead of itself. */
#define KVI_AHEAD 8u
struct kvi_descent {
    const uint32_t *tokens; /* The whole key; */
    uint64_t units;         /* its whole pages. */
    uint32_t space;
    uint32_t count, next; /* Of `ahead`. */
    bool ended;           /* The table had no more. */
    kvi_ref ahead[KVI_AHEAD];
};

/* ---- Components ---------------------------------------------------------------------------- */

struct kvi_insert;

/* What makes a component; one constant table each (full.c, swa.c, mamba.c).  `slot` is the index
 * of the component's parts in this tree. */
struct kvi_component {
    uint32_t type;
    uint8_t
        internal_rank; /* On an internal node, eviction takes what ranks below with it. */

    /* Match.  `run` starts at UINT64_MAX; true when a match may end here. */
    bool (*usable)(const struct kvg_tree *tree, const struct kvi_node *node,
        uint32_t slot, bool device_only, uint64_t *run);
    void (*refresh_match)(struct kvg_tree *tree, struct kvi_node *best, uint32_t slot);
    void (*refresh_insert)(struct kvg_tree *tree, struct kvi_node *target, uint32_t slot);
    void (*finalize_match)(struct kvg_tree *tree, const struct kvi_node *best,
        const struct kvi_node *device, uint32_t slot, struct kvg_tree_match *match);

    /* Units upwards from its end that a session's frontier covers, in whole nodes; 0: the one node;
     * UINT64_MAX: the path to the root. */
    uint64_t (*session_reach)(const struct kvg_tree *tree);

    /* Split: `prefix` is new and blank, `child` keeps the rest from `at` on. */
    void (*split)(struct kvg_tree *tree, struct kvi_node *prefix, struct kvi_node *child,
        uint32_t slot, uint32_t at);

    /* Insert (insert.c).  Each may append to insert->pending, and may fail for memory before it
     * has changed anything but a split.  `overlap` meets a node that has FULL on device and
     * lowers *consumed_from to the first unit of it that it took; it may replace *node by the
     * suffix of a split.  `unevict` meets one that just got its FULL value back. */
    kvg_err (*overlap)(struct kvg_tree *tree, struct kvi_node **node, uint32_t slot,
        uint32_t matched, uint32_t *consumed_from, struct kvg_error *error);
    kvg_err (*unevict)(struct kvg_tree *tree, struct kvi_node *node, uint32_t slot,
        struct kvg_error *error);
    kvg_err (*commit)(struct kvg_tree *tree, struct kvi_node *target, uint32_t slot,
        bool is_new_leaf, struct kvg_error *error);
    bool (*needs_backup)(
        const struct kvg_tree *tree, const struct kvi_node *node, uint32_t slot);

    /* Locks.  `release` either does all of it or fails and changes nothing. */
    void (*acquire)(struct kvg_tree *tree, struct kvi_node *node, uint32_t slot,
        struct kvg_lock_receipt *receipt);
    kvg_err (*release)(struct kvg_tree *tree, struct kvi_node *node, uint32_t slot,
        const struct kvg_lock_receipt *receipt, bool dry_run, struct kvg_error *error);
    void (*acquire_host)(struct kvg_tree *tree, struct kvi_node *node, uint32_t slot,
        struct kvg_lock_receipt *receipt);
    kvg_err (*release_host)(struct kvg_tree *tree, struct kvi_node *node, uint32_t slot,
        const struct kvg_lock_receipt *receipt, bool dry_run, struct kvg_error *error);
};

extern const struct kvi_component kvi_component_full;
extern const struct kvi_component kvi_component_swa;
extern const struct kvi_component kvi_component_mamba;

/* ---- An insert in flight ------------------------------------------------------------------- */

enum kvi_insert_phase {
    KVI_INSERT_IDLE,
    KVI_INSERT_WALK,
    KVI_INSERT_COMMIT,
    KVI_INSERT_TAIL
};

struct kvi_insert {
    enum kvi_insert_phase phase;
    struct kvg_tree_insert params;
    struct kvg_tree_key key; /* Whole pages of the view. */
    uint32_t key_units;
    uint32_t total;       /* Units walked. */
    size_t value_index;   /* The span that holds position `total`, */
    uint64_t value_start; /* and the position of its first slot. */
    kvg_node_id node;     /* Where the walk stands. */
    bool space_known;     /* Else nothing of the key can be in the tree. */
    struct kvi_descent
        descent; /* What the walk sees ahead, until the caller may change it. */
    kvg_node_id target;
    bool is_new_leaf;
    uint32_t backup_at;  /* Index + 1 of the backup action in `pending`, 0: none. */
    bool keeps_path;     /* Backups are possible: */
    uint32_t path_bound; /* the path to the target has not more nodes. */
    bool flush_due;      /* The actions in `pending` must be done before the next step. */
    struct kvg_tree_inserted result;
    struct kvg_tree_range *ranges[KVI_PARTS_MAX];
    uint32_t range_count[KVI_PARTS_MAX], range_capacity[KVI_PARTS_MAX];
    struct kvg_tree_range *adopted; /* The ranges of all, for the caller. */
    uint32_t adopted_capacity;
    struct kvg_actions pending;
};

/* A device walk in progress (evict.c). */
struct kvi_walk {
    bool active;
    uint64_t wanted;
    kvg_node_id cursor;  /* Of a list walk. */
    kvg_node_id pending; /* The internal node whose state is being backed up. */
    kvi_ref popped;      /* Of the FULL walk: leaves it has returned, by walk_next. */
};

/* ---- The tree ------------------------------------------------------------------------------ */

/* One allocation of some chunks. */
struct kvi_slab {
    void *memory;
    size_t bytes;
};

struct kvi_recorder;

struct kvg_tree {
    struct kvg_alloc alloc; /* Counts what goes through it. */
    const struct kvg_alloc *parent_alloc;
    uint64_t memory_bytes;
    struct kvg_tree_options options;
    struct kvg_tree_settings settings;
    bool eagle;
    uint32_t part_count;
    const struct kvi_component *components[KVI_PARTS_MAX];
    int8_t slot_of[KVG_COMPONENT_MAX]; /* -1: not in this tree. */
    struct kvg_page_rule page_rule;

    /* Arena. */
    char **chunks; /* Where each begins, on a cache line. */
    uint32_t chunk_count, chunk_capacity;
    struct kvi_slab *slabs;
    uint32_t slab_count, slab_capacity;
    uint32_t node_bytes;
    kvi_ref free_node;   /* Nodes that were in use, chained by next_sibling. */
    kvi_ref fresh_node;  /* From here on, none was: their memory is untouched. */
    uint32_t node_count; /* Alive, with the root. */
    uint32_t free_count; /* Of both kinds. */
    uint64_t next_number;
    kvi_ref root;

    struct kvi_child_slot *children;
    uint32_t child_mask; /* Capacity - 1. */
    uint32_t child_used;
    uint32_t page_tokens; /* Tokens that a page's units need. */
    bool rank_can_fall;   /* The policy's key of a node can become smaller (mru, tlru). */
    bool ranks_differ;    /* No two nodes have the same (lru, mru). */

    uint64_t ticks;
    uint64_t next_uuid[KVG_COMPONENT_MAX];

    struct kvi_shelves shelves[KVG_TIER_COUNT];
    uint32_t next_serial;
    bool
        has_host_values; /* There was one: the host shelves are kept as many as needed. */
    struct kvi_list lists[KVI_PARTS_MAX][KVG_TIER_COUNT];
    uint64_t evictable[KVI_PARTS_MAX], protect[KVI_PARTS_MAX];
    kvi_ref duplicate_first, duplicate_last; /* Settled duplicates, oldest first. */
    uint32_t duplicate_count;

    struct kvi_spaces spaces;
    struct kvi_buffer *buffers;
    uint32_t buffer_count, buffer_capacity, buffer_unused;

    struct kvi_walk walks[KVI_PARTS_MAX];
    uint64_t reclaim_digest;

    struct kvi_sessions sessions;
    struct kvi_insert insert;
    struct kvi_recorder *recorder; /* NULL: no events. */

    /* Scratch for results. */
    struct kvg_span *match_spans;
    uint32_t match_span_count, match_span_capacity;
    struct kvg_actions transfer_scratch;
    struct kvg_tree_stats stats;
};

/* ---- node.c -------------------------------------------------------------------------------- */

static inline struct kvi_node *kvi_node_at(const struct kvg_tree *tree, kvi_ref ref)
{
    return (struct kvi_node *)(void *)(tree->chunks[ref >> KVI_CHUNK_BITS] +
                                       (size_t)(ref & (KVI_CHUNK_NODES - 1)) *
                                           tree->node_bytes);
}

static inline kvi_ref kvi_ref_of(const struct kvi_node *node)
{
    return (kvi_ref)(node->id & KVI_REF_MASK);
}

/* NULL for nobody. */
static inline struct kvi_node *kvi_node_or_null(const struct kvg_tree *tree, kvi_ref ref)
{
    return ref == 0 ? NULL : kvi_node_at(tree, ref);
}

static inline struct kvi_node *kvi_parent(
    const struct kvg_tree *tree, const struct kvi_node *node)
{
    (void)tree;
    return node->parent;
}

static inline bool kvi_is_root(const struct kvi_node *node)
{
    return (node->flags & KVI_NODE_ROOT) != 0;
}

/* Constness is the caller's business. */
static inline struct kvi_part *kvi_part(const struct kvi_node *node, uint32_t slot)
{
    const struct kvi_part *part = slot == 0 ? &node->full : &node->aux[slot - 1].part;

    return (struct kvi_part *)(uintptr_t)part;
}

/* Of another component than FULL. */
static inline struct kvi_aux *kvi_aux(const struct kvi_node *node, uint32_t slot)
{
    KVI_DCHECK(slot != 0);
    return (struct kvi_aux *)(uintptr_t)&node->aux[slot - 1];
}

/* How many frontiers of sessions cover the node. */
static inline uint32_t *kvi_session_count(struct kvi_node *node, uint32_t slot)
{
    return slot == 0 ? &node->sessions : &node->aux[slot - 1].sessions;
}
static inline bool kvi_in_session(const struct kvi_node *node, uint32_t slot)
{
    return (slot == 0 ? node->sessions : node->aux[slot - 1].sessions) != 0;
}

static inline bool kvi_listed(
    const struct kvi_node *node, uint32_t slot, enum kvg_tier tier)
{
    return slot != 0 && node->aux[slot - 1].listed[tier] != 0;
}

static inline bool kvi_has(const struct kvi_node *node, uint32_t slot, enum kvg_tier tier)
{
    return kvi_part(node, slot)->value[tier].length != 0;
}

/* The part's slots are there, but a load has yet to fill them (withdraw.c). */
static inline uint16_t kvi_awaits_bit(uint32_t slot)
{
    return (uint16_t)(KVI_NODE_AWAITS_FIRST << slot);
}
static inline bool kvi_awaits(const struct kvi_node *node, uint32_t slot)
{
    return (node->flags & kvi_awaits_bit(slot)) != 0;
}
#define KVI_NODE_AWAITS_ALL \
    ((KVI_NODE_AWAITS_FIRST << KVI_PARTS_MAX) - KVI_NODE_AWAITS_FIRST)

/* FULL on device, as the first line tells it. */
static inline bool kvi_full_on_device(const struct kvi_node *node)
{
    return (node->flags & KVI_NODE_FULL_DEVICE) != 0;
}

/* The same; the root counts as present. */
static inline bool kvi_on_device(const struct kvi_node *node)
{
    return (node->flags & (KVI_NODE_FULL_DEVICE | KVI_NODE_ROOT)) != 0;
}

static inline bool kvi_placed(const struct kvi_node *node, enum kvg_tier tier)
{
    return (node->flags & (KVI_NODE_PLACED_FIRST << tier)) != 0;
}
static inline bool kvi_evicted(const struct kvi_node *node)
{
    return !kvi_on_device(node);
}
static inline bool kvi_backed_up(const struct kvi_node *node)
{
    return kvi_has(node, 0, KVG_TIER_HOST);
}

static inline uint64_t kvi_tick(struct kvg_tree *tree)
{
    return ++tree->ticks << KVI_TIME_SHIFT;
}

/* Raw tokens of a run of units. */
static inline uint32_t kvi_tokens_for(const struct kvg_tree *tree, uint32_t units)
{
    return units == 0 ? 0 : units + (tree->eagle ? 1u : 0u);
}
static inline const uint32_t *kvi_node_tokens(const struct kvi_node *node)
{
    return node->tokens;
}

/* NULL if there is no such node. */
struct kvi_node *kvi_node_find(const struct kvg_tree *tree, kvg_node_id id);

/* KVG_ENOENT into `error`, for a look-up that failed. */
kvg_err kvi_no_node(struct kvg_error *error, kvg_node_id id);

/* Makes room for `count` new nodes everywhere (arena, child table, shelves). */
kvg_err kvi_tree_reserve_nodes(
    struct kvg_tree *tree, uint32_t count, struct kvg_error *error);

/* Before the first host value: makes room for leaves on host, which trees without a host tier do
 * not need. */
kvg_err kvi_tree_use_host(struct kvg_tree *tree, struct kvg_error *error);

/* A blank node with an id, a creation time and an access time.  Room was reserved. */
struct kvi_node *kvi_node_new(struct kvg_tree *tree);

/* Gives an unlinked node back, with all that it refers to. */
void kvi_node_free(struct kvg_tree *tree, struct kvi_node *node);

/* Finds the child for the first page of `tokens` (at least a page of them). */
struct kvi_node *kvi_child_find(const struct kvg_tree *tree,
    const struct kvi_node *parent, uint32_t space, const uint32_t *tokens);
uint32_t kvi_child_hash(const struct kvg_tree *tree, const struct kvi_node *node);

/* The same for a walk from the root (or any node) along a key: the child of `parent` at unit
 * `offset`, and how many units of it the key has. */
static inline void kvi_descent_init(
    struct kvi_descent *descent, const uint32_t *tokens, uint64_t units, uint32_t space)
{
    descent->tokens = tokens;
    descent->units = units;
    descent->space = space;
    descent->count = 0;
    descent->next = 0;
    descent->ended = false;
}
struct kvi_node *kvi_descend(const struct kvg_tree *tree, struct kvi_descent *descent,
    const struct kvi_node *parent, uint64_t offset, uint32_t *matched);
void kvi_child_link(
    struct kvg_tree *tree, struct kvi_node *parent, struct kvi_node *child);
void kvi_child_unlink(struct kvg_tree *tree, struct kvi_node *child);

/* Units of node's key equal to the query, in whole pages. */
uint32_t kvi_node_match(const struct kvg_tree *tree, const struct kvi_node *node,
    const uint32_t *tokens, uint64_t units);

/* Splits `child` at `at` (0 < at < length) and returns the new prefix.  One node was reserved, and
 * one action when the child has a write in flight. */
struct kvi_node *kvi_node_split(struct kvg_tree *tree, struct kvi_node *child,
    uint32_t at, struct kvg_actions *actions);

struct kvi_block *kvi_block_make(
    struct kvg_tree *tree, const uint32_t *tokens, uint32_t token_count);
void kvi_block_drop(struct kvg_tree *tree, struct kvi_block *block);
struct kvi_keys *kvi_keys_make(struct kvg_tree *tree, uint32_t count);
void kvi_keys_drop(struct kvg_tree *tree, struct kvi_keys *keys);

/* Before a node without children is unlinked: cuts blocks that it shared with its ancestors. */
void kvi_blocks_trim(struct kvg_tree *tree, const struct kvi_node *dead);

/* ---- value.c ------------------------------------------------------------------------------- */

/* Builds a value of `length` slots from position `from` of a list of spans.  The list is long
 * enough. */
kvg_err kvi_value_make(struct kvg_tree *tree, const struct kvg_span *spans, size_t count,
    uint64_t from, uint32_t length, struct kvi_value *out);

/* Ends a value that kvi_value_make() made or a node held; *value becomes "none". */
void kvi_value_clear(struct kvg_tree *tree, struct kvi_value *value);

/* Cuts: *prefix gets the first `at` slots, *value keeps the others.  Copies nothing. */
void kvi_value_split(struct kvg_tree *tree, struct kvi_value *value, uint32_t at,
    struct kvi_value *prefix);

/* Copies the runs that the value sees when most of its block is dead.  Harmless otherwise. */
void kvi_value_trim(struct kvg_tree *tree, struct kvi_value *value);

/* Spans of slots [from, from + length) of a value: their number, and themselves. */
uint32_t kvi_value_span_count(
    const struct kvi_value *value, uint32_t from, uint32_t length);
uint32_t kvi_value_spans(
    const struct kvi_value *value, uint32_t from, uint32_t length, struct kvg_span *out);

/* The longest span that starts at slot `from`. */
struct kvg_span kvi_value_span_at(const struct kvi_value *value, uint32_t from);

/* The same for a list of spans. */
uint32_t kvi_spans_cut_count(
    const struct kvg_span *spans, size_t count, uint64_t from, uint64_t length);
uint32_t kvi_spans_cut(const struct kvg_span *spans, size_t count, uint64_t from,
    uint64_t length, struct kvg_span *out);

/* ---- action.c ------------------------------------------------------------------------------ */

/* Room for that many more. */
kvg_err kvi_actions_reserve(
    struct kvg_actions *actions, uint32_t items, uint32_t spans, uint32_t nodes);

/* Appends an action, zeroed but for `kind`; room was reserved.  Then its spans and nodes. */
struct kvg_action *kvi_actions_add(
    struct kvg_actions *actions, enum kvg_action_kind kind);
void kvi_actions_add_value(struct kvg_actions *actions, const struct kvi_value *value,
    uint32_t from, uint32_t length);
void kvi_actions_add_spans(struct kvg_actions *actions, const struct kvg_span *spans,
    size_t count, uint64_t from, uint64_t length);
void kvi_actions_add_value2(struct kvg_actions *actions, const struct kvi_value *value,
    uint32_t from, uint32_t length);
void kvi_actions_add_spans2(struct kvg_actions *actions, const struct kvg_span *spans,
    size_t count, uint64_t from, uint64_t length);
void kvi_actions_add_node(struct kvg_actions *actions, kvg_node_id node);

/* Moves everything from `from` to the end of `to`.  Lists of one allocator change places when `to`
 * is empty, which cannot fail; else, on failure, both are as before. */
kvg_err kvi_actions_move(struct kvg_actions *to, struct kvg_actions *from);

/* ---- list.c -------------------------------------------------------------------------------- */

void kvi_list_add_newest(
    struct kvg_tree *tree, uint32_t slot, enum kvg_tier tier, struct kvi_node *node);
/* On the older side of `newer`, which is listed. */
void kvi_list_add_after(struct kvg_tree *tree, uint32_t slot, enum kvg_tier tier,
    struct kvi_node *newer, struct kvi_node *node);
void kvi_list_remove(
    struct kvg_tree *tree, uint32_t slot, enum kvg_tier tier, struct kvi_node *node);
/* Removes it if it is there. */
void kvi_list_drop(
    struct kvg_tree *tree, uint32_t slot, enum kvg_tier tier, struct kvi_node *node);
void kvi_list_touch(
    struct kvg_tree *tree, uint32_t slot, enum kvg_tier tier, struct kvi_node *node);
/* From `node` (included) towards the most recent, the first that has no lock; NULL: none. */
struct kvi_node *kvi_list_unlocked(const struct kvg_tree *tree, uint32_t slot,
    enum kvg_tier tier, struct kvi_node *node);
/* Makes the device-listed nodes from `node` upwards recent, deepest first, until `window` units
 * were passed (listed or not). */
void kvi_list_touch_window(
    struct kvg_tree *tree, uint32_t slot, struct kvi_node *node, uint64_t window);

/* A session covers the node now, or none does any more: to the newest of its kind. */
void kvi_list_regroup(struct kvg_tree *tree, uint32_t slot, struct kvi_node *node);

/* A walk that can be left and taken up again whatever happens to the list meanwhile: from the
 * oldest (after kvi_list_rewind) to the newest, the next without a lock; NULL: none. */
void kvi_list_rewind(struct kvg_tree *tree, uint32_t slot, enum kvg_tier tier);
struct kvi_node *kvi_list_walk(struct kvg_tree *tree, uint32_t slot, enum kvg_tier tier);

/* What is wrong with the order of a list, or NULL. */
const char *kvi_list_check(
    const struct kvg_tree *tree, uint32_t slot, enum kvg_tier tier);

/* ---- session.c ----------------------------------------------------------------------------- */

/* Before a node without children is unlinked: its frontiers fall back to an ancestor, or end. */
void kvi_sessions_leave(struct kvg_tree *tree, struct kvi_node *node);

/* Forgets all sessions, closed ones too, but not what nodes say of them. */
void kvi_sessions_reset(struct kvg_tree *tree);
void kvi_sessions_fini(struct kvg_tree *tree);

/* What is wrong with T10, or NULL; *node_out says where, NULL: nowhere. */
const char *kvi_sessions_check(
    const struct kvg_tree *tree, const struct kvi_node **node_out);

/* ---- leaf.c -------------------------------------------------------------------------------- */

/* What the definitions say now. */
bool kvi_is_device_leaf(const struct kvg_tree *tree, const struct kvi_node *node);
bool kvi_is_host_leaf(const struct kvg_tree *tree, const struct kvi_node *node);

/* Recomputes both marks of the node and keeps the shelves in step.  Call it after every change of
 * its values, locks or children. */
void kvi_leaf_update(struct kvg_tree *tree, struct kvi_node *node);

/* The policy's key of a node changed: last access, hits, priority, length.  Cheap. */
void kvi_leaf_touched(struct kvg_tree *tree, struct kvi_node *node);

/* It did become smaller, whatever the policy. */
void kvi_leaf_fell(struct kvg_tree *tree, struct kvi_node *node);

/* Removes the node from the shelves, before it is freed. */
void kvi_leaf_forget(struct kvg_tree *tree, struct kvi_node *node);

/* The leaf that goes first, or NULL.  It stays marked. */
struct kvi_node *kvi_leaf_first(struct kvg_tree *tree, enum kvg_tier tier);
/* Takes a device leaf off the shelves until kvi_leaf_restore(), though it stays marked: a walk does
 * not meet it again. */
void kvi_leaf_pop(struct kvg_tree *tree, struct kvi_node *node);
void kvi_leaf_restore(struct kvg_tree *tree, struct kvi_node *node);

/* What orders leaves: the policy's rank, and what decides between equal ones. */
struct kvi_leaf_key {
    uint64_t rank, access;
};
struct kvi_leaf_key kvi_leaf_key(
    const struct kvg_tree *tree, const struct kvi_node *node);
uint64_t kvi_policy_rank(const struct kvg_tree *tree, const struct kvi_node *node);

/* The list of leaves that the FULL walk has returned and that still exist. */
void kvi_walk_forget(struct kvg_tree *tree, struct kvi_node *node);

bool kvi_shelf_is_ghost(
    const struct kvg_tree *tree, enum kvg_tier tier, const struct kvi_shelf_entry *entry);

/* Makes room for the entries of so many nodes. */
kvg_err kvi_shelves_reserve(
    struct kvg_tree *tree, struct kvi_shelves *shelves, uint32_t nodes);
void kvi_shelves_fini(struct kvg_tree *tree, struct kvi_shelves *shelves);

/* What is wrong with T19, or NULL.  `placed`: nodes that say that they have an entry. */
const char *kvi_shelves_check(
    const struct kvg_tree *tree, enum kvg_tier tier, uint64_t placed);

/* Settled duplicates (FULL on both tiers, nothing in flight), in the order they were born. */
void kvi_duplicate_update(struct kvg_tree *tree, struct kvi_node *node);
void kvi_duplicate_forget(struct kvg_tree *tree, struct kvi_node *node);

/* ---- key.c --------------------------------------------------------------------------------- */

/* The number of a namespace; false when no node has it. */
bool kvi_space_find(
    const struct kvg_tree *tree, const struct kvg_namespace *name, uint32_t *out);
/* Finds or makes it, with one more reference. */
kvg_err kvi_space_hold(
    struct kvg_tree *tree, const struct kvg_namespace *name, uint32_t *out);
void kvi_space_hold_again(struct kvg_tree *tree, uint32_t space);
void kvi_space_drop(struct kvg_tree *tree, uint32_t space);
void kvi_spaces_fini(struct kvg_tree *tree);

/* The key as this tree sees it: pairs with EAGLE, whole pages.  Returns its units. */
uint64_t kvi_tree_key(const struct kvg_tree *tree, const struct kvg_tree_key *key,
    struct kvg_tree_key *out);

/* ---- account.c: values under the ledger ---------------------------------------------------- */

/* Gives `node` a device value and credits it to protected or evictable.  For FULL also the
 * parent's count of device children.  The caller updates lists and leaf marks. */
void kvi_device_value_put(
    struct kvg_tree *tree, struct kvi_node *node, uint32_t slot, struct kvi_value *value);
/* The other way; the node holds no lock on it.  The value moves to *out. */
void kvi_device_value_take(
    struct kvg_tree *tree, struct kvi_node *node, uint32_t slot, struct kvi_value *out);

/* One lock more or less on a part, with the ledger and the counters.  Returns the units that
 * changed sides.  Inline: a path lock does this at every node. */
static inline uint64_t kvi_lock_up(
    struct kvg_tree *tree, struct kvi_node *node, uint32_t slot, enum kvg_tier tier)
{
    struct kvi_part *part = kvi_part(node, slot);

    if (part->lock[tier]++ != 0)
        return 0;
    node->locked_parts[tier]++;
    if (tier != KVG_TIER_DEVICE)
        return 0;
    uint32_t length = part->value[KVG_TIER_DEVICE].length;
    tree->evictable[slot] -= length;
    tree->protect[slot] += length;
    return length;
}

static inline uint64_t kvi_lock_down(
    struct kvg_tree *tree, struct kvi_node *node, uint32_t slot, enum kvg_tier tier)
{
    struct kvi_part *part = kvi_part(node, slot);

    KVI_ASSERT(part->lock[tier] != 0);
    if (--part->lock[tier] != 0)
        return 0;
    node->locked_parts[tier]--;
    if (tier != KVG_TIER_DEVICE)
        return 0;
    uint32_t length = part->value[KVG_TIER_DEVICE].length;
    tree->protect[slot] -= length;
    tree->evictable[slot] += length;
    return length;
}

/* A new boundary stamp of a component. */
uint64_t kvi_uuid_next(struct kvg_tree *tree, uint32_t component);

/* "BEFORE node ID AFTER" as a failure. */
kvg_err kvi_fail_node(struct kvg_error *error, kvg_err code, const char *field,
    const char *before, kvg_node_id node, const char *after);

/* Gives a tombstone of another component than FULL its device value: ledger and lists. */
void kvi_aux_value_put(
    struct kvg_tree *tree, struct kvi_node *node, uint32_t slot, struct kvi_value *value);

/* ---- insert.c, for components -------------------------------------------------------------- */

/* Room in `pending`, in the ranges and for `nodes` new nodes. */
kvg_err kvi_insert_reserve(struct kvg_tree *tree, uint32_t items, uint32_t spans,
    uint32_t nodes, struct kvg_error *error);
/* Spans that cover positions [start, end) of the incoming value, and the action's copy of them. */
uint32_t kvi_insert_span_count(const struct kvg_tree *tree, uint64_t start, uint64_t end);
void kvi_insert_add_spans(
    struct kvg_tree *tree, uint64_t start, uint64_t end, bool second);
kvg_err kvi_insert_value(
    struct kvg_tree *tree, uint64_t start, uint32_t length, struct kvi_value *out);
void kvi_insert_adopt(struct kvg_tree *tree, uint32_t slot, uint64_t start, uint64_t end);

/* May an ancestor be written together with a node below it? */
bool kvi_joins_backup(const struct kvg_tree *tree, const struct kvi_node *node);

/* ---- rotation.c ---------------------------------------------------------------------------- */

/* As a node keeps it. */
static inline uint32_t kvi_rotation_of(const struct kvg_tree_insert *params)
{
    return (uint32_t)(params->rotation_base + 1);
}

/* Looks down the key.  True, and the insert's result in `out`, when the deepest node that it meets
 * has another base than the insert, which has one. */
bool kvi_rotation_declines(struct kvg_tree *tree, const struct kvg_tree_insert *params,
    const struct kvg_tree_key *key, uint64_t units, struct kvg_tree_inserted *out);

/* ---- hash.c: page keys and event keys ------------------------------------------------------ */

/* Keys for a node to be made under `parent`, whose own are made first if it has none.  NULL without
 * memory. */
struct kvi_keys *kvi_page_keys_make(struct kvg_tree *tree, struct kvi_node *parent,
    uint32_t space, const uint32_t *tokens, uint32_t units);
struct kvi_keys *kvi_event_keys_make(struct kvg_tree *tree, struct kvi_node *parent,
    uint32_t space, const uint32_t *tokens, uint32_t units);

/* Gives the node its keys, its ancestors first, where they are missing. */
kvg_err kvi_page_keys_fill(struct kvg_tree *tree, struct kvi_node *node);
kvg_err kvi_event_keys_fill(struct kvg_tree *tree, struct kvi_node *node);

/* The keys that events name: without the extra key, so that routers can compute them.  In the plain
 * namespace they are the page keys. */
static inline const struct kvg_key *kvi_node_event_keys(const struct kvi_node *node)
{
    if (node->space == 0)
        return node->page_keys->keys + node->page_key_start;
    return node->event_keys->keys + node->event_key_start;
}

#endif
