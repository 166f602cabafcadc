/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* tree.h -- the prefix tree of one engine: which prompts' KV it holds, where, who uses it.
 *
 * The tree maps prefixes of token sequences to slots of KV memory.  A *node* is a run of whole
 * pages with one parent; its key is the tokens of the run, its value, per *component* (FULL
 * attention, sliding window SWA, recurrent state MAMBA) and per tier (device, host), a list of
 * spans.  A node without a component's value is a *tombstone* for that component.
 *
 * The tree decides, the caller executes.  No call frees or copies a slot: calls append *actions*
 * to a list the caller hands in, and their order is part of the contract.  An insert is
 * resumable: it stops where an action must be done before it can go on.
 *
 * Lengths and positions count *units*: tokens, or with `eagle` overlapping pairs of tokens, so
 * that n tokens make n - 1 units.  Only whole pages are held; a trailing part is ignored.
 *
 * Threads: a tree belongs to one thread at a time.
 *
 * Errors: a call that fails leaves the tree and the caller's lists as they were, and says in
 * `error` (NULL is allowed) what was wrong.  Codes, unless a function says otherwise:
 * KVG_ENOMEM; KVG_ENOENT, no such node; KVG_ESTATE, the call contradicts what the tree knows
 * (a release that was never acquired, an offload of a stored node); KVG_EBUSY, an insert is in
 * flight; KVG_EINVAL and KVG_EMISMATCH, arguments; KVG_ELIMIT, a named limit.
 *
 * Node ids are never reused, also not after a reset, and grow with every node made: a split
 * makes a new id for the prefix; the suffix keeps the old one.
 */
#ifndef KVGRAFT_TREE_H
#define KVGRAFT_TREE_H

#include <kvgraft/base.h>
#include <kvgraft/page.h>
#include <kvgraft/span.h>

KVG_BEGIN_DECLS

struct kvg_tree;

typedef uint64_t kvg_node_id;
#define KVG_NODE_NONE UINT64_C(0)

/* Components.  The list is open: code must accept numbers it does not know. */
enum kvg_component {
    KVG_COMPONENT_FULL,    /* A slot a unit.  Every tree has it. */
    KVG_COMPONENT_SWA,     /* A slot a unit, needed for the last window only. */
    KVG_COMPONENT_MAMBA,   /* One state slot at the end of a node. */
    KVG_COMPONENT_C128,    /* Known by name; trees of this version refuse it. */
    KVG_COMPONENT_AUX_SWA, /* The same. */
    KVG_COMPONENT_COUNT
};
#define KVG_COMPONENT_MAX 8 /* Room in arrays indexed by component. */
#define KVG_COMPONENT_BIT(component) (1u << (component))

/* The upper-case name ("SWA"); "?" for a number that has none. */
KVG_API const char *kvg_component_name(uint32_t component);

enum kvg_tier {
    KVG_TIER_DEVICE,
    KVG_TIER_HOST,
    KVG_TIER_COUNT
};

/* Which FULL leaves go first.  The smallest key goes; ties go to the one used longest ago. */
enum kvg_policy {
    KVG_POLICY_LRU,      /* last use */
    KVG_POLICY_LFU,      /* hits, last use */
    KVG_POLICY_FIFO,     /* creation */
    KVG_POLICY_MRU,      /* last use, backwards */
    KVG_POLICY_FILO,     /* creation, backwards */
    KVG_POLICY_PRIORITY, /* priority, last use */
    KVG_POLICY_SLRU,     /* protected (hits >= slru_hits) after probation, last use */
    KVG_POLICY_TLRU,     /* nodes beyond the tail budget first, last use */
    KVG_POLICY_COUNT
};

/* Reads a policy's name in any case.  KVG_EINVAL names the ones there are. */
KVG_API KVG_MUST_CHECK kvg_err kvg_policy_parse(
    struct kvg_str name, enum kvg_policy *out, struct kvg_error *error);

#define KVG_TREE_NODES_MAX (1u << 26) /* Nodes alive at once, for any options. */
#define KVG_TREE_WINDOW_MAX (1u << 30)
#define KVG_TREE_ROTATION_MAX INT32_MAX
#define KVG_TREE_SESSION_ID_MAX 256u     /* Bytes. */
#define KVG_TREE_SESSIONS_MAX (1u << 20) /* Open at once, for any options. */
#define KVG_TREE_SESSIONS_DEFAULT 65536u
#define KVG_TREE_SESSIONS_CLOSED 8192u /* Ids remembered after they were closed. */
#define KVG_TREE_FRONTIERS_MAX 256u    /* Of one session, a component. */

struct kvg_tree_options {
    size_t struct_bytes;
    uint32_t page_size;  /* Units a page: 1 to KVG_PAGE_SIZE_MAX. */
    uint32_t components; /* KVG_COMPONENT_BITs: FULL alone or with SWA, MAMBA or both. */
    bool eagle;  /* Units are pairs; ignored when MAMBA is among the components. */
    bool events; /* Record what is stored and removed, for kvg_tree_events_take(). */
    bool swa_request_ring; /* Window slots live in the request, not in the tree. */
    uint32_t window;       /* Units of the sliding window; at least 1 with SWA. */
    uint32_t mamba_grid;   /* State checkpoints fall on its multiples; 0: page_size. */
    int32_t mamba_states_per_path_max; /* Negative: no cap. */
    enum kvg_policy policy;
    uint32_t slru_hits;          /* Default 2. */
    uint64_t tlru_threshold;     /* Default 0. */
    uint64_t tlru_next_estimate; /* Default 0. */
    uint32_t node_max;           /* 0: KVG_TREE_NODES_MAX. */
    uint64_t seed; /* Of the child table's hash: random in a server, fixed in a test. */
    bool sessions; /* Evict what no conversation will come back for first. */
    uint32_t session_max; /* Open at once; 0: KVG_TREE_SESSIONS_DEFAULT. */
};

/* Sets the defaults: FULL, page size 1, lru. */
KVG_API void kvg_tree_options_init(struct kvg_tree_options *options);

/* Makes an empty tree, a root alone.  `alloc` must outlive it.  KVG_EUNSUPPORTED: a component set
 * that this version does not know. */
KVG_API KVG_MUST_CHECK kvg_err kvg_tree_new(const struct kvg_alloc *alloc,
    const struct kvg_tree_options *options, struct kvg_tree **out,
    struct kvg_error *error);
KVG_API void kvg_tree_free(struct kvg_tree *tree);

/* Forgets every node; ids go on.  Emits no event by itself.  No lock, insert, eviction walk or
 * session survives it; generations of sessions go on.
 * Fails only without memory. */
KVG_API KVG_MUST_CHECK kvg_err kvg_tree_reset(struct kvg_tree *tree);

/* What an engine switches while the tree lives.  Set the fields freely between calls. */
struct kvg_tree_settings {
    bool host_tier;        /* There is a host pool behind the tree. */
    bool host_buffer_only; /* Host memory is a passage, the tree keeps nothing there. */
    bool swa_host_pool;    /* The window has a host pool too. */
    bool write_back;       /* Back up on eviction; else write-through. */
    bool storage;          /* Nodes need page keys for a store behind the host tier. */
    bool external_store;   /* Nodes need page keys for a store of the linker. */
    bool sparse_retention; /* The store keeps windows at checkpoints only. */
    bool
        keep_host_duplicates; /* Write-back: host eviction does not look at duplicates. */
    uint64_t retention_interval; /* Of those checkpoints; 0: prompt boundaries only. */
    uint64_t write_through_hits; /* Back up a node at its n-th hit; 256 at first. */
};
KVG_API struct kvg_tree_settings *kvg_tree_settings(struct kvg_tree *tree);

KVG_API kvg_node_id kvg_tree_root(const struct kvg_tree *tree);
KVG_API uint32_t kvg_tree_page_size(const struct kvg_tree *tree);
KVG_API bool kvg_tree_is_eagle(const struct kvg_tree *tree);

/* Units at the end of a match that a request must compute again because their window slots are
 * nowhere: the window if requests have rings of their own and there is no host pool for it, else
 * 0.  At most the length of the match. */
KVG_API uint64_t kvg_tree_reprefill_tail(const struct kvg_tree *tree);

/* ---- Buffers -------------------------------------------------------------------------------
 * An embedder whose slot numbers live in a table of its own (a tensor) registers the table and
 * speaks of positions in it.  The tree counts the values that refer to it. */

/* A new buffer id, at least 1.  The caller holds one reference until kvg_tree_buffer_drop(). */
KVG_API KVG_MUST_CHECK kvg_err kvg_tree_buffer_add(struct kvg_tree *tree, uint32_t *out);
KVG_API void kvg_tree_buffer_drop(struct kvg_tree *tree, uint32_t buffer);

/* Takes one buffer that nothing refers to any more, and forgets it; 0 when there is none.  Spans
 * in actions do not count: do the actions first. */
KVG_API uint32_t kvg_tree_buffer_take_unused(struct kvg_tree *tree);

/* ---- Keys ---------------------------------------------------------------------------------- */

/* A sequence of units, borrowed.  All namespaces share one root and part at the first page. */
struct kvg_tree_key {
    const uint32_t *tokens;
    size_t token_count;
    struct kvg_namespace space;
    bool bigram; /* Units are pairs.  Trees with `eagle` treat every key so. */
};

/* Units in the key: the tokens, or one less of pairs, never below 0. */
KVG_API size_t kvg_tree_key_units(const struct kvg_tree_key *key);

/* Units [start, end) of `key`, without copying: of pairs, tokens [start, end + 1).  KVG_EINVAL
 * if they are not inside it. */
KVG_API KVG_MUST_CHECK kvg_err kvg_tree_key_slice(const struct kvg_tree_key *key,
    size_t start, size_t end, struct kvg_tree_key *out, struct kvg_error *error);

/* The whole pages of `key`. */
KVG_API struct kvg_tree_key kvg_tree_key_align(
    const struct kvg_tree_key *key, uint32_t page_size);

/* How many units of `key` equal those of `other` from `offset` on, in whole pages.  KVG_EMISMATCH:
 * namespaces or unit kinds differ; KVG_EINVAL: the offset is beyond the end. */
KVG_API KVG_MUST_CHECK kvg_err kvg_tree_key_match(const struct kvg_tree_key *key,
    const struct kvg_tree_key *other, size_t offset, uint32_t page_size, size_t *out,
    struct kvg_error *error);

/* ---- Actions ------------------------------------------------------------------------------- */

enum kvg_action_kind {
    /* A pending write of `node` now belongs to two nodes: in the record of write `ack`, replace
     * `node` by `new_node` (the prefix) and `node` itself, in this order. */
    KVG_ACTION_REPLACE_ON_SPLIT,
    /* Free the FULL slots `spans` and what they map to in other pools. */
    KVG_ACTION_FREE_DEVICE,
    /* Free the FULL slots `spans` only. */
    KVG_ACTION_FREE_DEVICE_FULL_ONLY,
    /* Write `nodes`, parents first, to the host tier or the external store. */
    KVG_ACTION_BACKUP,
    /* Free a component's slots.  SWA's device spans name FULL slots: free what they map to. */
    KVG_ACTION_FREE_COMPONENT_DEVICE,
    KVG_ACTION_FREE_COMPONENT_HOST,
    /* Call kvg_tree_evict_excess_path_states(node). */
    KVG_ACTION_EVICT_EXCESS_PATH_STATES,
    /* Map the FULL slots `spans` to the SWA slots `spans2`. */
    KVG_ACTION_REBUILD_MAPPING,
    /* Find the SWA slots of the FULL slots `spans2` (incoming), map the FULL slots `spans` (kept)
     * to them, unmap and free `spans2`, give the SWA slots to `node`. */
    KVG_ACTION_RECOVER_SWA_WITH_LOCKED_FULL,
    /* Find the SWA slots of the FULL slots `spans` and give them to `node`. */
    KVG_ACTION_SWA_REBUILD,
    KVG_ACTION_COUNT
};

/* One action; the ranges point into the list's arrays. */
struct kvg_action {
    enum kvg_action_kind kind;
    uint32_t component;
    kvg_node_id node;
    kvg_node_id new_node;
    uint64_t ack;
    uint32_t span_first, span_count;
    uint32_t span2_first, span2_count;
    uint32_t node_first, node_count;
    uint64_t replay_boundary;
    bool include_prompt_boundary;
};

/* A list of actions, in the order in which they must be done.  Calls append to it. */
struct kvg_actions {
    const struct kvg_alloc *alloc;
    struct kvg_action *items;
    struct kvg_span *spans;
    kvg_node_id *nodes;
    uint32_t count, capacity;
    uint32_t span_count, span_capacity;
    uint32_t node_count, node_capacity;
};

KVG_API void kvg_actions_init(struct kvg_actions *actions, const struct kvg_alloc *alloc);
KVG_API void kvg_actions_clear(struct kvg_actions *actions); /* Keeps the memory. */
KVG_API void kvg_actions_fini(struct kvg_actions *actions);

/* ---- Match --------------------------------------------------------------------------------- */

struct kvg_tree_match {
    size_t struct_bytes;
    uint64_t device_length; /* Units on device that can be used as they are. */
    const struct kvg_span *device_spans; /* Theirs; the tree's, until the next match. */
    size_t device_span_count;
    kvg_node_id last_device_node; /* Ends the device prefix. */
    kvg_node_id last_host_node;   /* Ends what the host tier can restore. */
    kvg_node_id best_match_node;  /* Deepest node that every component can use. */
    uint64_t host_length;         /* Units to restore from the host tier. */
    uint64_t swa_host_length;
    uint64_t mamba_host_length;
    uint64_t full_length;    /* Units whose FULL values exist, usable or not. */
    int64_t swa_branching;   /* Length at which a re-prefill should branch, or -1. */
    int64_t mamba_branching; /* The same for state checkpoints. */
};

/* Finds the longest usable prefix of `key`.  Makes it recent; may split one node, and then appends
 * at most one action.  An empty or too short key matches the root. */
KVG_API KVG_MUST_CHECK kvg_err kvg_tree_match_prefix(struct kvg_tree *tree,
    const struct kvg_tree_key *key, struct kvg_actions *actions,
    struct kvg_tree_match *out, struct kvg_error *error);

/* Read only: how much of `key` has FULL values on device, the deepest such node, and the length
 * of the path to its end. */
KVG_API KVG_MUST_CHECK kvg_err kvg_tree_match_full_device(const struct kvg_tree *tree,
    const struct kvg_tree_key *key, uint64_t *length_out, kvg_node_id *node_out,
    uint64_t *pinned_out);

/* The FULL device spans of the path from below `until` down to `from`, in order.  The array is
 * the tree's, until the next match or collect.  KVG_EINVAL if `until` is not an ancestor,
 * KVG_ESTATE if a value is missing. */
KVG_API KVG_MUST_CHECK kvg_err kvg_tree_collect_full_device(struct kvg_tree *tree,
    kvg_node_id from, kvg_node_id until, const struct kvg_span **spans_out,
    size_t *span_count_out, struct kvg_error *error);

/* ---- Insert -------------------------------------------------------------------------------- */

struct kvg_tree_insert {
    size_t struct_bytes;
    struct kvg_tree_key key; /* Borrowed until the insert ends. */
    const struct kvg_span
        *value;            /* FULL slots, a unit each, at least the key's whole pages. */
    size_t value_count;    /* Spans. */
    struct kvg_span mamba; /* The state slot; length 0: none. */
    uint64_t prev_prefix_length; /* Slots below it are the tree's already. */
    uint64_t
        evicted_length[KVG_COMPONENT_MAX]; /* Slots below it have lost their peers. */
    int64_t swa_branching;                 /* As matched, or -1. */
    bool chunked;                          /* Part of a prompt: counts no hit. */
    /* Units whose hits an earlier insert of the prompt counted: nodes that end at or below it
     * count none. */
    uint64_t inserted_length;
    /* Where the pages' shards begin, 0 to KVG_TREE_ROTATION_MAX, or -1: none.  The leaf gets it; an
     * insert that meets another one on its way is declined. */
    int64_t rotation_base;
    bool track_adopted;
    int64_t priority;
    struct kvg_str session_id; /* For events. */
};
KVG_API void kvg_tree_insert_init(struct kvg_tree_insert *insert);

/* A part of the inserted value that the tree kept. */
struct kvg_tree_range {
    uint32_t component;
    uint64_t start, end;
};

struct kvg_tree_inserted {
    size_t struct_bytes;
    bool done;              /* Else: do the actions, then resume. */
    uint64_t prefix_length; /* Units that were in the tree before. */
    kvg_node_id last_node;  /* Ends the inserted key. */
    bool mamba_exists;      /* The state slot was not taken: the caller frees it. */
    bool swa_branch_inserted;
    /* The last node has another rotation base: the tree took nothing and frees nothing, all slots,
     * the state's too, stay the caller's. */
    bool rotation_declined;
    bool adopted_tracked;
    const struct kvg_tree_range
        *adopted; /* By component, ascending; until the next insert. */
    size_t adopted_count;
};

/* Starts an insert and walks to its end or to the first action that must be done before it can go
 * on.  `actions` gets everything decided so far.  KVG_EBUSY ("concurrent insert walks") while
 * another insert is in flight. */
KVG_API KVG_MUST_CHECK kvg_err kvg_tree_insert_begin(struct kvg_tree *tree,
    const struct kvg_tree_insert *insert, struct kvg_actions *actions,
    struct kvg_tree_inserted *out, struct kvg_error *error);

/* Goes on.  KVG_ESTATE ("no in-flight insert") without one.  After KVG_ENOMEM it may be called
 * again. */
KVG_API KVG_MUST_CHECK kvg_err kvg_tree_insert_resume(struct kvg_tree *tree,
    struct kvg_actions *actions, struct kvg_tree_inserted *out, struct kvg_error *error);

/* Ends an insert, finished or not: appends the actions never handed out.  Harmless without one. */
KVG_API KVG_MUST_CHECK kvg_err kvg_tree_insert_end(
    struct kvg_tree *tree, struct kvg_actions *actions);
KVG_API bool kvg_tree_insert_in_flight(const struct kvg_tree *tree);

/* How far an insert in flight has come: slots of units below it (and not below prev_prefix_length)
 * were adopted or named in a free; the others are still the caller's.  0 without one. */
KVG_API uint64_t kvg_tree_insert_taken(const struct kvg_tree *tree);

/* Gives `node`, a tombstone for `component`, a device value of its own length (MAMBA: 1).
 * KVG_ESTATE if it has one; KVG_EINVAL if the length differs. */
KVG_API KVG_MUST_CHECK kvg_err kvg_tree_set_device_value(struct kvg_tree *tree,
    kvg_node_id node, uint32_t component, const struct kvg_span *spans, size_t span_count,
    struct kvg_error *error);

/* ---- Locks --------------------------------------------------------------------------------- */

/* What an acquire returns and its release must present.  Bits of `uuid_components` say which
 * entries of `uuid` count; a 0 among those means "up to the root". */
struct kvg_lock_receipt {
    kvg_node_id node;
    uint64_t delta; /* Units that became protected. */
    uint32_t skipped_components;
    uint32_t uuid_components;
    uint32_t host_uuid_components;
    uint64_t uuid[KVG_COMPONENT_MAX];
    uint64_t host_uuid[KVG_COMPONENT_MAX];
};

/* Protects the path to `node` from eviction: FULL up to the root, SWA one window upwards, MAMBA
 * the node; without the components in `skip` (bits). */
KVG_API KVG_MUST_CHECK kvg_err kvg_tree_lock(struct kvg_tree *tree, kvg_node_id node,
    uint32_t skip, struct kvg_lock_receipt *out, struct kvg_error *error);

/* Ends it.  `skip_swa`: the window was released before, by kvg_tree_unlock_swa().  KVG_ESTATE, and
 * nothing changes, for a receipt of another node, a boundary that is not above it, or a count that
 * is already zero. */
KVG_API KVG_MUST_CHECK kvg_err kvg_tree_unlock(struct kvg_tree *tree, kvg_node_id node,
    const struct kvg_lock_receipt *receipt, bool skip_swa, struct kvg_error *error);

/* Releases the window (and what ranks below it) early; FULL stays locked.  Values that nobody
 * holds any more on an evictable leaf go at once: their frees are appended. */
KVG_API KVG_MUST_CHECK kvg_err kvg_tree_unlock_swa(struct kvg_tree *tree,
    kvg_node_id node, const struct kvg_lock_receipt *receipt, struct kvg_actions *actions,
    struct kvg_error *error);

/* The same walk for one window component and no other. */
KVG_API KVG_MUST_CHECK kvg_err kvg_tree_unlock_window(struct kvg_tree *tree,
    kvg_node_id node, uint32_t component, const struct kvg_lock_receipt *receipt,
    struct kvg_actions *actions, struct kvg_error *error);

/* FULL only, without a receipt. */
KVG_API KVG_MUST_CHECK kvg_err kvg_tree_pin_full(
    struct kvg_tree *tree, kvg_node_id node, struct kvg_error *error);
KVG_API KVG_MUST_CHECK kvg_err kvg_tree_unpin_full(
    struct kvg_tree *tree, kvg_node_id node, struct kvg_error *error);

/* The same for host values. */
KVG_API KVG_MUST_CHECK kvg_err kvg_tree_lock_host(struct kvg_tree *tree, kvg_node_id node,
    struct kvg_lock_receipt *out, struct kvg_error *error);
KVG_API KVG_MUST_CHECK kvg_err kvg_tree_unlock_host(struct kvg_tree *tree,
    kvg_node_id node, const struct kvg_lock_receipt *receipt, struct kvg_error *error);

/* ---- Eviction ------------------------------------------------------------------------------
 * A device walk, per component: start; next, until it has nothing; end.  A step that names a node
 * wants it evicted whole (kvg_tree_evict_leaf()); one that does not has tombstoned an internal
 * node, or made no progress and ends the walk.  Each step's frees are appended at once, and the
 * caller should execute them before the next step.
 *
 * Calls that take many nodes (drop_subtree, evict_host) may run out of memory on the way: then
 * what they took so far is taken, and its frees are in the list. */

/* What a step did. */
struct kvg_tree_evicted {
    size_t struct_bytes;
    kvg_node_id node; /* Next: the leaf to evict, or KVG_NODE_NONE. */
    bool progress;
    bool dropped;                        /* kvg_tree_drop_subtree(): it did. */
    bool backup_wanted;                  /* Leaf: unbacked under write-back, untouched. */
    uint64_t evicted[KVG_COMPONENT_MAX]; /* Units, MAMBA: slots. */
    uint64_t unbacked;                   /* FULL units that had no host copy. */
    /* Under write-back: the state of this internal node has no host copy; write it, then call
     * kvg_tree_evict_finish_state(). */
    kvg_node_id backup_node;
    uint64_t backup_units;
};

KVG_API KVG_MUST_CHECK kvg_err kvg_tree_evict_start(
    struct kvg_tree *tree, uint32_t component, uint64_t wanted, struct kvg_error *error);

/* `evicted_so_far` is what the whole eviction has freed of this component. */
KVG_API KVG_MUST_CHECK kvg_err kvg_tree_evict_next(struct kvg_tree *tree,
    uint32_t component, uint64_t evicted_so_far, struct kvg_actions *actions,
    struct kvg_tree_evicted *out, struct kvg_error *error);
KVG_API KVG_MUST_CHECK kvg_err kvg_tree_evict_end(
    struct kvg_tree *tree, uint32_t component, struct kvg_error *error);
KVG_API KVG_MUST_CHECK kvg_err kvg_tree_evict_finish_state(struct kvg_tree *tree,
    uint32_t component, kvg_node_id node, struct kvg_actions *actions,
    struct kvg_tree_evicted *out, struct kvg_error *error);

/* Evicts a device leaf with everything it has: backed up, it stays on host; else it is deleted,
 * and ancestors that are left with nothing go with it.  KVG_ESTATE if it is no device leaf. */
KVG_API KVG_MUST_CHECK kvg_err kvg_tree_evict_leaf(struct kvg_tree *tree,
    kvg_node_id node, bool write_back, struct kvg_actions *actions,
    struct kvg_tree_evicted *out, struct kvg_error *error);

/* Takes the device values of a device leaf that is backed up. */
KVG_API KVG_MUST_CHECK kvg_err kvg_tree_demote(struct kvg_tree *tree, kvg_node_id node,
    struct kvg_actions *actions, struct kvg_tree_evicted *out, struct kvg_error *error);

/* Deletes an unbacked device leaf with its host-only descendants, unless one of them is locked. */
KVG_API KVG_MUST_CHECK kvg_err kvg_tree_drop_subtree(struct kvg_tree *tree,
    kvg_node_id node, struct kvg_actions *actions, struct kvg_tree_evicted *out,
    struct kvg_error *error);

/* Frees host copies of a component until `wanted` units are free or nothing is left to take. */
KVG_API KVG_MUST_CHECK kvg_err kvg_tree_evict_host(struct kvg_tree *tree,
    uint32_t component, uint64_t wanted, struct kvg_actions *actions,
    struct kvg_tree_evicted *out, struct kvg_error *error);

/* Keeps at most mamba_states_per_path_max states on the path to `tail`: the shallowest of those
 * that nothing speaks for go. */
KVG_API KVG_MUST_CHECK kvg_err kvg_tree_evict_excess_path_states(struct kvg_tree *tree,
    kvg_node_id tail, struct kvg_actions *actions, struct kvg_tree_evicted *out,
    struct kvg_error *error);

/* Takes one component's value on one tier, and what has to go with it.  For tests. */
KVG_API KVG_MUST_CHECK kvg_err kvg_tree_evict_component(struct kvg_tree *tree,
    kvg_node_id node, uint32_t component, enum kvg_tier tier, struct kvg_actions *actions,
    struct kvg_tree_evicted *out, struct kvg_error *error);

/* A number that is equal on all ranks whose write-back duplicates were reclaimed in the same
 * order. */
KVG_API uint64_t kvg_tree_reclaim_digest(const struct kvg_tree *tree);

/* ---- Sessions -----------------------------------------------------------------------------
 * A conversation comes back: its next prompt begins with what its last turn left in the tree.  With
 * `options.sessions` the tree knows conversations by id, and evicts what none will come back for
 * before what one will.  A session protects from nothing else: it holds no lock, and when nothing
 * else is left, its nodes go too.
 *
 *     kvg_tree_session_open(tree, id, &generation, error);        a conversation begins
 *     ... match, insert, ... ends at inserted.last_node
 *     kvg_tree_session_touch(tree, id, generation, last_node, &held, error);       each turn
 *     kvg_tree_session_close(tree, id, &released, error);         it will not come back
 *
 * A touch makes the node, for each component the nearest node upwards that a match could end at,
 * a *frontier* of the session.  It covers what the next turn needs: of FULL the path to the root,
 * of SWA a window and a page upwards, of MAMBA the one state.  A frontier above it that the session
 * has moves there; one on another branch stays, so that a conversation may fork.  When a frontier's
 * node is deleted, it falls back to the nearest usable node above.
 *
 * What is covered goes late.  FULL's leaves go in the order of (how many frontiers cover the leaf,
 * the policy's key), on device and on host; under `priority`, priorities beyond 32 bits count as
 * the nearest that fits.  Recency lists hold the covered nodes before the others.  A component that
 * no session covers is evicted without taking one with it that is covered and ranks as high
 * (FULL, SWA, MAMBA).
 *
 * Ids are bytes, 1 to KVG_TREE_SESSION_ID_MAX of them, and copied.  A generation is the number of
 * an opening, never 0 and never reused.  A closed id is remembered, the last
 * KVG_TREE_SESSIONS_CLOSED of them, so that a request that ends after the close holds nothing. */

/* Opens a session, again if it was closed.  One that is open gets a new generation and keeps its
 * frontiers; requests of the old one hold nothing more.  KVG_EUNSUPPORTED in a tree without
 * sessions; KVG_ELIMIT ("tree.session_max"). */
KVG_API KVG_MUST_CHECK kvg_err kvg_tree_session_open(struct kvg_tree *tree,
    struct kvg_str id, uint64_t *generation_out, struct kvg_error *error);

/* The generation of an open session; else opens it. */
KVG_API KVG_MUST_CHECK kvg_err kvg_tree_session_ensure(struct kvg_tree *tree,
    struct kvg_str id, uint64_t *generation_out, struct kvg_error *error);

/* A turn of the session ended at `node`.  *held_out says whether it has a frontier for it now: not
 * if the session is not open, or under another generation, or the node is the root; that is no
 * error.  KVG_ELIMIT ("session.frontiers") when it has KVG_TREE_FRONTIERS_MAX branches. */
KVG_API KVG_MUST_CHECK kvg_err kvg_tree_session_touch(struct kvg_tree *tree,
    struct kvg_str id, uint64_t generation, kvg_node_id node, bool *held_out,
    struct kvg_error *error);

/* Ends a session and releases its frontiers; their number, over all components, goes to
 * `released_out`.  Closing an id that is closed does nothing; one that is not known is remembered,
 * which may fail for memory.  Closing an open session never fails. */
KVG_API KVG_MUST_CHECK kvg_err kvg_tree_session_close(struct kvg_tree *tree,
    struct kvg_str id, uint64_t *released_out, struct kvg_error *error);

struct kvg_tree_session {
    size_t struct_bytes;
    uint64_t generation; /* 0: closed, and remembered. */
    uint32_t frontier_count[KVG_COMPONENT_MAX];
};

/* KVG_ENOENT: never opened, or closed long ago. */
KVG_API KVG_MUST_CHECK kvg_err kvg_tree_session_get(
    const struct kvg_tree *tree, struct kvg_str id, struct kvg_tree_session *out);

/* Copies the session's frontiers of a component, oldest first, at most `node_max`; returns how many
 * there are. */
KVG_API size_t kvg_tree_session_frontiers(const struct kvg_tree *tree, struct kvg_str id,
    uint32_t component, kvg_node_id *nodes, size_t node_max);

/* ---- Looking at it ------------------------------------------------------------------------- */

/* Everything about a node but its key, values and children. */
struct kvg_tree_node {
    size_t struct_bytes;
    kvg_node_id id, parent;
    uint64_t length; /* Units. */
    uint64_t hits;
    int64_t priority;
    uint64_t last_access, creation; /* Logical times; only their order means something. */
    kvg_node_id pending_write;      /* Ack of the write in flight, or KVG_NODE_NONE. */
    kvg_node_id pending_load;
    uint32_t child_count;
    bool stored;           /* The external store has it. */
    int64_t rotation_base; /* As inserted, or -1. */
    bool device_leaf, host_leaf;
    bool frontier;                             /* A turn of a session ended here. */
    uint32_t session_count[KVG_COMPONENT_MAX]; /* Frontiers that cover the node. */
    uint64_t value_length[KVG_COMPONENT_MAX][KVG_TIER_COUNT];
    uint32_t lock_count[KVG_COMPONENT_MAX][KVG_TIER_COUNT];
    bool listed[KVG_COMPONENT_MAX][KVG_TIER_COUNT]; /* In the recency list. */
};
KVG_API KVG_MUST_CHECK kvg_err kvg_tree_node_get(
    const struct kvg_tree *tree, kvg_node_id node, struct kvg_tree_node *out);
KVG_API bool kvg_tree_contains(const struct kvg_tree *tree, kvg_node_id node);

/* The node's key; its tokens are the tree's, until the tree changes. */
KVG_API KVG_MUST_CHECK kvg_err kvg_tree_node_key(
    const struct kvg_tree *tree, kvg_node_id node, struct kvg_tree_key *out);

/* Copies the spans of a value, at most `span_max`; returns how many there are.  0: no value. */
KVG_API size_t kvg_tree_node_value(const struct kvg_tree *tree, kvg_node_id node,
    uint32_t component, enum kvg_tier tier, struct kvg_span *spans, size_t span_max);

/* Children in the order of their first insertion; 0 when there is none (more). */
KVG_API kvg_node_id kvg_tree_first_child(const struct kvg_tree *tree, kvg_node_id node);
KVG_API kvg_node_id kvg_tree_next_sibling(const struct kvg_tree *tree, kvg_node_id node);

/* The page keys of a node, one a page; 0 when they were not needed so far. */
KVG_API size_t kvg_tree_node_page_keys(
    const struct kvg_tree *tree, kvg_node_id node, const struct kvg_key **out);

/* A component's recency list, most recent first: the first node, then the one after `node`. */
KVG_API kvg_node_id kvg_tree_list_first(
    const struct kvg_tree *tree, uint32_t component, enum kvg_tier tier);
KVG_API kvg_node_id kvg_tree_list_next(const struct kvg_tree *tree, uint32_t component,
    enum kvg_tier tier, kvg_node_id node);

/* Units (MAMBA: slots) with a device value: evictable, protected by a lock. */
KVG_API uint64_t kvg_tree_evictable(const struct kvg_tree *tree, uint32_t component);
KVG_API uint64_t kvg_tree_protected(const struct kvg_tree *tree, uint32_t component);

struct kvg_tree_stats {
    size_t struct_bytes;
    uint64_t nodes; /* With the root. */
    uint64_t device_leaves, host_leaves;
    uint64_t splits, inserts, matches, evicted_nodes;
    uint64_t memory_bytes;                         /* Everything the tree allocated. */
    uint64_t refused_nodes;                        /* Inserts that met node_max. */
    uint64_t declined_inserts;                     /* They met another rotation base. */
    uint64_t sessions, closed_sessions, frontiers; /* Now. */
    uint64_t refused_sessions; /* Opens and touches that met their limit. */
    uint64_t stale_touches;    /* Of closed, unknown or reopened sessions. */
};
KVG_API void kvg_tree_stats(const struct kvg_tree *tree, struct kvg_tree_stats *out);

/* Walks everything.  KVG_OK, or KVG_ESTATE with the number of the first broken invariant in
 * `field` ("T7") and what is wrong in `message`. */
KVG_API KVG_MUST_CHECK kvg_err kvg_tree_check(
    const struct kvg_tree *tree, struct kvg_error *error);

/* The tree as text, a line a node, for people and golden tests.  Writes at most `capacity_bytes`
 * with a closing zero, and returns what the whole text needs without it. */
KVG_API size_t kvg_tree_dump(
    const struct kvg_tree *tree, char *text, size_t capacity_bytes);

/* ---- Page keys and the external store ------------------------------------------------------ */

/* Computes the page keys of every node that has none, parents first; how many there were goes to
 * `filled_out`.  For when a store is attached to a tree that lives already. */
KVG_API KVG_MUST_CHECK kvg_err kvg_tree_backfill_page_keys(
    struct kvg_tree *tree, uint64_t *filled_out);

/* What to move for one component.  Arrays that the tree fills in are its own, until it builds the
 * next transfers. */
struct kvg_tree_transfer {
    uint32_t component;
    bool trailing_pages; /* Keys are the last pages only (SWA). */
    const struct kvg_key *keys;
    size_t key_count;
    const struct kvg_span
        *spans; /* Device slots of those pages; to the host tier, see there. */
    size_t span_count;
    const kvg_node_id *nodes; /* Host tier: whose values they are, from the root down. */
    size_t node_count;
    const struct kvg_key *previous; /* Offloads: the page before the first; NULL: none. */
};

/* The transfers that offload `node` to the external store; at most KVG_COMPONENT_MAX.  0 in
 * `count_out` when it is stored or pending, or has nothing to write. */
KVG_API KVG_MUST_CHECK kvg_err kvg_tree_offload_build(struct kvg_tree *tree,
    kvg_node_id node, struct kvg_tree_transfer *out, size_t *count_out,
    struct kvg_error *error);

/* The offload of `node` is under way, under its own id as ack.  KVG_ESTATE ("invalid external
 * offload state") if it is stored or pending. */
KVG_API KVG_MUST_CHECK kvg_err kvg_tree_offload_mark(
    struct kvg_tree *tree, kvg_node_id node, struct kvg_error *error);

/* It ended, for all fragments that splits made of the node.  KVG_ESTATE, and nothing changes,
 * unless all of them are pending under `ack`. */
KVG_API KVG_MUST_CHECK kvg_err kvg_tree_offload_finish(struct kvg_tree *tree,
    const kvg_node_id *nodes, size_t node_count, kvg_node_id ack, bool success,
    struct kvg_error *error);

/* The store has every node from `from` up to, but not, `anchor`.  KVG_EINVAL ("not an ancestor"),
 * and nothing is marked, if `anchor` is not above `from`. */
KVG_API KVG_MUST_CHECK kvg_err kvg_tree_mark_stored_path(
    struct kvg_tree *tree, kvg_node_id from, kvg_node_id anchor, struct kvg_error *error);

/* ---- Loads ---------------------------------------------------------------------------------
 * A value can be in the tree before its bytes are: an external load inserts its tail first and
 * fills the slots later.  A node that *awaits* FULL is invisible to matches, with all below it;
 * one that awaits SWA counts as a tombstone.  Neither is evicted as a leaf or offloaded.  An insert
 * does not look: whoever inserts below awaiting nodes builds on bytes that may never come, so ask
 * kvg_tree_first_awaited() before. */

/* Marks the components (bits) of a node as awaiting their bytes, for the load that ends at node
 * `ack`.  A split passes the mark on.  KVG_ESTATE if a value is missing, or awaits already, or the
 * node belongs to another load. */
KVG_API KVG_MUST_CHECK kvg_err kvg_tree_load_mark(struct kvg_tree *tree, kvg_node_id node,
    uint32_t components, kvg_node_id ack, struct kvg_error *error);

/* The bytes came: everything that the load `ack` marked becomes visible. */
KVG_API KVG_MUST_CHECK kvg_err kvg_tree_load_confirm(
    struct kvg_tree *tree, kvg_node_id ack, struct kvg_error *error);

/* They will not come: takes what awaits out of the tree and appends its frees.  Nodes that await
 * FULL are deleted with all below them; a node that awaits another component loses that value only.
 * KVG_EBUSY, and nothing changes, while one of the nodes to delete is locked or being written. */
KVG_API KVG_MUST_CHECK kvg_err kvg_tree_load_withdraw(struct kvg_tree *tree,
    kvg_node_id ack, struct kvg_actions *actions, struct kvg_error *error);

/* The first unit at or after `from`, on the path of `key`, whose node awaits something; UINT64_MAX
 * if there is none. */
KVG_API uint64_t kvg_tree_first_awaited(
    const struct kvg_tree *tree, const struct kvg_tree_key *key, uint64_t from);

/* Sets flags[p], for 0 <= p < flag_count, to whether a match of the first p pages of `key` would
 * find all of them on device, as it is.  flags[0] is always 1.  Changes nothing in the tree. */
KVG_API void kvg_tree_usable_pages(const struct kvg_tree *tree,
    const struct kvg_tree_key *key, int32_t *flags, size_t flag_count);

/* ---- Host tier ----------------------------------------------------------------------------
 * Writing: build, copy device slots to host slots, commit with the host slots in the same order,
 * lock the node, mark; when the copy is done, finish and unlock.  Loading back: build, copy host
 * slots to device slots, commit with the device slots; when the copy is done, finish. */

/* What a prefetch found below `anchor`: `key` starts where the anchor ends. */
struct kvg_tree_host_insert {
    size_t struct_bytes;
    kvg_node_id anchor;
    struct kvg_tree_key key;
    const struct kvg_span *value; /* Host slots, a unit each. */
    size_t value_count;
    const struct kvg_key *page_keys; /* One a page; NULL: not known. */
};
struct kvg_tree_host_inserted {
    size_t struct_bytes;
    uint64_t
        prefix_length; /* Units that were there; their host slots stay the caller's. */
    uint64_t total_length;
    kvg_node_id node; /* The node that holds the end on host, or KVG_NODE_NONE. */
    bool dropped; /* Write-through: the parent has no host copy, so nothing was added. */
};
KVG_API KVG_MUST_CHECK kvg_err kvg_tree_insert_host(struct kvg_tree *tree,
    const struct kvg_tree_host_insert *insert, struct kvg_actions *actions,
    struct kvg_tree_host_inserted *out, struct kvg_error *error);

/* What of `node` has no host copy: device slots by component, at most KVG_COMPONENT_MAX
 * transfers.  SWA's may cover ancestors inside the window. */
KVG_API KVG_MUST_CHECK kvg_err kvg_tree_write_build(struct kvg_tree *tree,
    kvg_node_id node, struct kvg_tree_transfer *out, size_t *count_out,
    struct kvg_error *error);

/* The same transfers with host slots in `spans`.  KVG_ESTATE, under write-through, for a node whose
 * parent has no host copy. */
KVG_API KVG_MUST_CHECK kvg_err kvg_tree_write_commit(struct kvg_tree *tree,
    const struct kvg_tree_transfer *transfers, size_t count, struct kvg_error *error);

/* Marks nodes as being written under `ack` and sorts them, ancestors first.  KVG_ESTATE if one is
 * pending under another ack; then nothing is marked. */
KVG_API KVG_MUST_CHECK kvg_err kvg_tree_write_mark(struct kvg_tree *tree,
    kvg_node_id *nodes, size_t node_count, kvg_node_id ack, struct kvg_error *error);
KVG_API KVG_MUST_CHECK kvg_err kvg_tree_write_finish(struct kvg_tree *tree,
    const kvg_node_id *nodes, size_t node_count, kvg_node_id ack,
    struct kvg_error *error);

/* What has to come back to device so that `node` can be used: host slots by component.  Nothing
 * while another load covers one of the nodes. */
KVG_API KVG_MUST_CHECK kvg_err kvg_tree_load_build(struct kvg_tree *tree,
    kvg_node_id node, struct kvg_tree_transfer *out, size_t *count_out,
    struct kvg_error *error);

/* The same transfers with device slots in `spans`. */
KVG_API KVG_MUST_CHECK kvg_err kvg_tree_load_commit(struct kvg_tree *tree,
    kvg_node_id node, const struct kvg_tree_transfer *transfers, size_t count,
    struct kvg_actions *actions, struct kvg_error *error);
KVG_API KVG_MUST_CHECK kvg_err kvg_tree_load_finish(
    struct kvg_tree *tree, kvg_node_id node, struct kvg_error *error);

/* The parts of units [start, end) of `key` whose nodes lack a window on device, joined; at most
 * `range_max` are written, and how many there are is returned. */
KVG_API size_t kvg_tree_window_gaps(const struct kvg_tree *tree,
    const struct kvg_tree_key *key, uint64_t start, uint64_t end,
    struct kvg_tree_range *ranges, size_t range_max);

/* Gives units [start, end) of `key`, all of them such gaps, their window slots; splits at the
 * edges. */
KVG_API KVG_MUST_CHECK kvg_err kvg_tree_window_attach(struct kvg_tree *tree,
    const struct kvg_tree_key *key, uint64_t start, uint64_t end,
    const struct kvg_span *spans, size_t span_count, struct kvg_actions *actions,
    struct kvg_error *error);

/* ---- Events -------------------------------------------------------------------------------- */

enum kvg_tree_event_kind {
    KVG_TREE_STORED,
    KVG_TREE_REMOVED,
    KVG_TREE_CLEARED
};

/* One event.  Arrays and strings are the tree's, until the next take. */
struct kvg_tree_event {
    size_t struct_bytes;
    enum kvg_tree_event_kind kind;
    enum kvg_medium medium; /* DEVICE, or CPU for the host tier. */
    const int64_t *hashes;  /* A page each: the first 8 bytes of its key, big-endian. */
    size_t hash_count;
    bool has_parent; /* Stored: the page before the first; none at the root. */
    int64_t parent;
    const uint32_t *words; /* Stored: the tokens of the pages, pairs as two words. */
    size_t word_count;
    uint32_t words_per_unit;   /* 1, or 2 for pairs. */
    uint32_t page_size;        /* Units a page. */
    struct kvg_str cache_salt; /* NULL: none. */
    struct kvg_str session_id;
};

/* Takes what was recorded since the last take and returns how many events that is. */
KVG_API size_t kvg_tree_events_take(struct kvg_tree *tree);

/* The index-th event taken last; false beyond the end. */
KVG_API bool kvg_tree_event_get(
    const struct kvg_tree *tree, size_t index, struct kvg_tree_event *out);

/* Appends an event to a message in an engine's dialect (event.h), all of it. */
struct kvg_event_writer;
KVG_API void kvg_tree_event_write(
    const struct kvg_tree_event *event, struct kvg_event_writer *writer);

/* Records that everything was cleared: once when a cache is made, once a reset. */
KVG_API KVG_MUST_CHECK kvg_err kvg_tree_events_add_cleared(struct kvg_tree *tree);

KVG_END_DECLS

#endif
