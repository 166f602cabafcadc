/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* graft.h -- an engine's cache: tree and slots put to work, and pages from a shared store.
 *
 * Three objects, each usable without the ones below it:
 *
 *     kvg_cache    does what the tree decides: runs inserts to their end, frees slots, evicts
 *                  until there is room.
 *     kvg_linker   grafts pages of an external store onto that tree, through a transport: looks
 *                  up the tail that the device lacks, loads it, writes new nodes.
 *     kvg_engine   the whole for an engine written in C: requests with their rows and locks,
 *                  from the match to the end, whatever happens in between.
 *
 * Lengths and positions count units, as in tree.h.  All three make no system call and read no
 * clock; what happens outside comes in through the transport and kvg_engine_tick().
 *
 * Threads: one at a time for each cache, with everything attached to it.
 *
 * Errors: a call that fails leaves its objects as they were, unless it says otherwise.
 */
#ifndef KVGRAFT_GRAFT_H
#define KVGRAFT_GRAFT_H

#include <kvgraft/slots.h>
#include <kvgraft/tree.h>

KVG_BEGIN_DECLS

/* ---- The cache: a tree and its memory ------------------------------------------------------ */

/* The pools that hold a tree's values: `slots` for a tree with FULL alone, `window` for one with
 * SWA, `states` for MAMBA as well.  Borrowed. */
struct kvg_memory {
    struct kvg_slots *slots;
    struct kvg_window *window;
    struct kvg_slots *states;
};

struct kvg_cache;

/* `tree` and the pools must outlive the cache.  KVG_EINVAL if they do not fit each other. */
KVG_API KVG_MUST_CHECK kvg_err kvg_cache_new(const struct kvg_alloc *alloc,
    struct kvg_tree *tree, const struct kvg_memory *memory, struct kvg_cache **out,
    struct kvg_error *error);
KVG_API void kvg_cache_free(struct kvg_cache *cache);

/* kvg_tree_match_prefix(), with its action done. */
KVG_API KVG_MUST_CHECK kvg_err kvg_cache_match(struct kvg_cache *cache,
    const struct kvg_tree_key *key, struct kvg_tree_match *out, struct kvg_error *error);

/* A whole insert.  `taken_out` (NULL is allowed) is set also when it fails, with KVG_ENOMEM: slots
 * at and above prev_prefix_length and below it are the tree's, or free again; the others are
 * still the caller's.  Of a declined insert all are. */
KVG_API KVG_MUST_CHECK kvg_err kvg_cache_insert(struct kvg_cache *cache,
    const struct kvg_tree_insert *insert, struct kvg_tree_inserted *out,
    uint64_t *taken_out, struct kvg_error *error);

/* Evicts until so many units of each component are gone, or nothing is left to evict; `evicted`
 * (NULL is allowed) says how many went. */
KVG_API KVG_MUST_CHECK kvg_err kvg_cache_evict(struct kvg_cache *cache,
    const uint64_t wanted[KVG_COMPONENT_MAX], uint64_t evicted[KVG_COMPONENT_MAX],
    struct kvg_error *error);

/* Evicts until so many slots of the FULL and the window pool are free.  KVG_ENOSPACE if that
 * cannot be had; then everything evictable is gone. */
KVG_API KVG_MUST_CHECK kvg_err kvg_cache_make_room(struct kvg_cache *cache,
    uint64_t full_slots, uint64_t window_slots, struct kvg_error *error);

/* Does a list of actions that another call of the tree appended, and clears it. */
KVG_API KVG_MUST_CHECK kvg_err kvg_cache_do_actions(
    struct kvg_cache *cache, struct kvg_actions *actions, struct kvg_error *error);

struct kvg_cache_stats {
    size_t struct_bytes;
    uint64_t evicted_full, evicted_swa;
    uint64_t windows_given_up; /* Window values dropped for want of memory. */
    uint64_t offloads_refused; /* By the transport, or for want of memory. */
    uint64_t actions_failed;   /* A pool refused a free: always a mistake somewhere. */
};
KVG_API void kvg_cache_stats(const struct kvg_cache *cache, struct kvg_cache_stats *out);

/* ---- The transport: what the linker asks of a store ---------------------------------------- */

/* A request's number; the embedder's, unique among the requests alive. */
typedef uint64_t kvg_request_id;

struct kvg_load_result {
    kvg_request_id request;
    bool success;
};

/* One store, as one rank sees it.  The linker calls these functions from its own thread only, one
 * at a time, and copies the table.  A transport may work in threads of its own, but touches the
 * device slots of a load only between start_loads() and its result, and those of an offload only
 * between offload() and its result.  reset() and close() end both at once.
 *
 * A transfer (tree.h) is one pool's part: page keys, and but for a lookup the device slots of these
 * pages in the same order.  Component FULL is the KV pool, and comes first.  Arrays are borrowed
 * for the call. */
struct kvg_transport {
    size_t struct_bytes;
    void *context;

    /* Which prefixes of the tail could be loaded now, by this rank: their lengths in pages, each in
     * [1, number of FULL keys], ascending, at most `length_max`.  p is among them if all of the
     * first p FULL pages are stored and, of every pool with trailing_pages, the last min(p, number
     * of its keys) pages that end at p.  An error counts as no page. */
    kvg_err (*lookup)(void *context, kvg_request_id request,
        const struct kvg_tree_transfer *transfers, size_t transfer_count,
        uint32_t *lengths, size_t length_max, size_t *length_count_out);

    /* Queues a load; nothing is read before start_loads().  One a request at a time. */
    kvg_err (*load)(void *context, kvg_request_id request,
        const struct kvg_tree_transfer *transfers, size_t transfer_count);

    /* Starts everything queued, layer by layer.  Returns a number for wait_layer(), or -1 if
     * nothing was queued. */
    int64_t (*start_loads)(void *context);

    /* Forgets a load that is queued and not started: always possible then, and there will be no
     * result.  False, and no change, else. */
    bool (*cancel_load)(void *context, kvg_request_id request);

    /* Takes finished loads, in any order, at most `result_max`; returns how many.  A load succeeded
     * if every page of it is in its slots. */
    size_t (*take_loads)(
        void *context, struct kvg_load_result *results, size_t result_max);

    /* Writes pages.  Each becomes visible to lookups as a whole or not at all; of an offload that
     * failed, whole pages may be there: a key names content, so they are right.  KVG_EBUSY: not
     * now.
     * Any error: there will be no result. */
    kvg_err (*offload)(
        void *context, const struct kvg_tree_transfer *transfers, size_t transfer_count);

    /* Takes results of offloads, in the order of the offloads. */
    size_t (*take_offloads)(void *context, bool *results, size_t result_max);

    /* Blocks until a layer of a started batch is in its slots.  May be NULL. */
    kvg_err (*wait_layer)(void *context, int64_t batch, uint32_t layer);

    /* Drops all work; on return no slot is touched any more and no result will come. */
    void (*reset)(void *context);
    void (*close)(void *context);
};

/* ---- Agreement between ranks --------------------------------------------------------------- */

/* Ranks of one engine (tensor parallelism) run the same calls in the same order.  `min` replaces
 * each value by the smallest of all ranks, and returns on all of them.  Every rank makes the same
 * number of calls with the same counts, whatever its own memory, store or timing.  NULL: one
 * rank. */
struct kvg_agreement {
    void (*min)(void *context, int32_t *values, size_t count);
    void *context;
};

/* The longest prefix that all ranks can restore: `lengths` are this rank's, in pages; those at or
 * below `device_pages` or above `page_count` do not count.  0: none.  One call with page_count + 1
 * values in `mask`. */
KVG_API uint32_t kvg_agree_prefix(const struct kvg_agreement *agreement,
    const uint32_t *lengths, size_t length_count, uint32_t page_count,
    uint32_t device_pages, int32_t *mask);

/* ---- The linker ---------------------------------------------------------------------------- */

struct kvg_linker;

#define KVG_LINKER_PAGES_MAX (1u << 24) /* Of a prompt, for any options. */
#define KVG_TICK_RESULTS_MAX 512u       /* Loads, and offloads, committed in one tick. */

struct kvg_linker_options {
    size_t struct_bytes;
    const struct kvg_transport *transport; /* NULL: no store; then only ranks agree. */
    struct kvg_agreement agreement;
    uint32_t prompt_pages_max;   /* Longer prompts are refused: KVG_ELIMIT. */
    uint64_t write_through_hits; /* Offload a node at its n-th hit; 0: 1. */
    bool sparse_retention;       /* Keep windows at checkpoints only, in the store: */
    uint64_t retention_interval; /* multiples of it, and ends of prompts. */
};

/* Attaches a linker to a cache; one at a time.  Page keys of nodes that live already are filled in.
 * KVG_EUNSUPPORTED names the components that it cannot do ("unsupported: MAMBA"), before
 * anything changes; also for a tree with a host tier. */
KVG_API KVG_MUST_CHECK kvg_err kvg_linker_new(const struct kvg_alloc *alloc,
    struct kvg_cache *cache, const struct kvg_linker_options *options,
    struct kvg_linker **out, struct kvg_error *error);

/* Detaches it.  Close it first, if the cache goes on. */
KVG_API void kvg_linker_free(struct kvg_linker *linker);

struct kvg_linker_match {
    size_t struct_bytes;
    uint64_t load_length;     /* Units after the device prefix that can be loaded. */
    uint64_t swa_load_length; /* Window units among what would be loaded. */
    uint64_t common_length;   /* Units that every rank has on device. */
    bool load_needed;         /* Some rank must load: all call kvg_linker_load_back(). */
    bool loading; /* Another request's load covers what comes next: try later. */
};

/* Looks up what the device lacks of `key` after `match`, agrees with the other ranks, and leaves a
 * marker for kvg_linker_load_back() if there is something.  *match is cut where the ranks agreed on
 * less than this one has on device.  One call of agreement, always. */
KVG_API KVG_MUST_CHECK kvg_err kvg_linker_match(struct kvg_linker *linker,
    kvg_request_id request, const struct kvg_tree_key *key, struct kvg_tree_match *match,
    struct kvg_linker_match *out, struct kvg_error *error);

KVG_API bool kvg_linker_has_marker(
    const struct kvg_linker *linker, kvg_request_id request);

struct kvg_load_back {
    size_t struct_bytes;
    kvg_request_id request;
    kvg_node_id node; /* Ends the request's device prefix; locked by the caller. */
    bool join;        /* As load_needed said: agree with the ranks, marker or not. */
    int64_t priority;
    uint64_t swa_cursor; /* In and out: window slots below it do not exist. */

    uint64_t length;       /* In: load_length of the match.  Out: units restored. */
    kvg_node_id last_node; /* Out: ends them. */
    const struct kvg_span
        *spans; /* Out: their FULL slots, until the tree's next match. */
    size_t span_count;
    bool queued;  /* Out: pages will come; the nodes are hidden until then. */
    bool agreed;  /* Out: false if a rank could not, and so none did. */
    bool loading; /* Out: as in the match; the marker stays. */
};

/* Takes the request's marker: allocates slots (and evicts for them), inserts the tail, keeps what
 * the tree adopted, queues the load of it, and holds a lock on the last node until it ends.
 * Without a marker nothing happens.  Nothing remains of a load that could not be queued. */
KVG_API KVG_MUST_CHECK kvg_err kvg_linker_load_back(
    struct kvg_linker *linker, struct kvg_load_back *load, struct kvg_error *error);

/* Writes nodes that are neither stored nor under way.  With sparse retention,
 * `replay_boundary` and `include_prompt_boundary` are those of the backup action.  A node that the
 * transport refuses is as before. */
KVG_API KVG_MUST_CHECK kvg_err kvg_linker_offload(struct kvg_linker *linker,
    const kvg_node_id *nodes, size_t node_count, uint64_t replay_boundary,
    bool include_prompt_boundary, struct kvg_error *error);

/* A pending node was split: where `ack`'s record names `old`, it names `prefix`, then `old`.  The
 * cache calls this for every REPLACE_ON_SPLIT action. */
KVG_API void kvg_linker_replace_node(
    struct kvg_linker *linker, kvg_node_id ack, kvg_node_id old, kvg_node_id prefix);

/* Starts what is queued: before the forward pass.  Returns the transport's number. */
KVG_API int64_t kvg_linker_start_loads(struct kvg_linker *linker);
KVG_API KVG_MUST_CHECK kvg_err kvg_linker_wait_layer(
    struct kvg_linker *linker, int64_t batch, uint32_t layer);

struct kvg_linker_tick {
    size_t struct_bytes;
    const struct kvg_load_result
        *loads; /* Committed; the linker's, until the next tick. */
    size_t load_count;
    size_t offload_count;
};

/* Commits what all ranks have finished: one call of agreement when nothing has, two else.  Call it
 * every step, of prefill and decode alike.  A failed load's pages leave the tree as soon as the
 * request that asked for them has let go of its lock; nobody can match them until then. */
KVG_API KVG_MUST_CHECK kvg_err kvg_linker_tick(
    struct kvg_linker *linker, struct kvg_linker_tick *out, struct kvg_error *error);

/* Tries again to take out the pages of failed loads; returns how many loads still cannot. */
KVG_API size_t kvg_linker_settle(struct kvg_linker *linker);

/* The request ends: forgets its marker and cancels its load if that is not started yet.  The caller
 * has released the request's lock. */
KVG_API void kvg_linker_release_request(
    struct kvg_linker *linker, kvg_request_id request);

/* Stops the transport, then releases every lock and mark.  After close no call but free. */
KVG_API void kvg_linker_reset(struct kvg_linker *linker);
KVG_API void kvg_linker_close(struct kvg_linker *linker);

/* An offload under way, oldest first; false beyond the end.  `nodes` is what it will publish. */
struct kvg_linker_offload {
    size_t struct_bytes;
    kvg_node_id lock_node;
    const kvg_node_id *nodes;
    size_t node_count;
};
KVG_API bool kvg_linker_offload_get(
    const struct kvg_linker *linker, size_t index, struct kvg_linker_offload *out);

struct kvg_linker_stats {
    size_t struct_bytes;
    uint64_t markers, pending_loads, pending_offloads, failed_loads; /* Now. */
    uint64_t lookups, loads_queued, loads_done, loads_withdrawn, loads_cancelled;
    uint64_t offloads_queued, offloads_done, offloads_failed, offloads_refused;
    uint64_t pages_loaded, pages_offloaded;
    uint64_t agreement_calls;
    uint64_t results_unknown; /* Results for loads that were not under way. */
};
KVG_API void kvg_linker_stats(
    const struct kvg_linker *linker, struct kvg_linker_stats *out);

/* Walks everything.  KVG_ESTATE names the first broken invariant ("L3"). */
KVG_API KVG_MUST_CHECK kvg_err kvg_linker_check(
    const struct kvg_linker *linker, struct kvg_error *error);

/* Which parts of [start, end) hold a window before a checkpoint: a multiple of `interval`, or the
 * end of the prompt.  Writes at most `range_max` of them and returns how many there are.  Errors:
 * KVG_EINVAL, "page_size, interval and window must be positive", "expected 0 <= start <= end <=
 * prompt_boundary", "positions and interval must be page aligned". */
struct kvg_retention {
    uint64_t prompt_boundary, window, interval;
    uint32_t page_size;
    bool include_prompt_boundary;
};
KVG_API KVG_MUST_CHECK kvg_err kvg_retained_swa_ranges(
    const struct kvg_retention *retention, uint64_t start, uint64_t end,
    struct kvg_tree_range *ranges, size_t range_max, size_t *range_count_out,
    struct kvg_error *error);

/* ---- The engine ---------------------------------------------------------------------------- */

struct kvg_engine;

struct kvg_engine_options {
    size_t struct_bytes;
    struct kvg_tree_options tree; /* FULL, or FULL and SWA. */
    uint64_t full_slots;          /* Multiples of the page size. */
    uint64_t window_slots;        /* With SWA, unless swa_request_ring. */
    uint64_t first_slot;          /* Of both pools. */
    uint32_t row_count;           /* Requests at once. */
    uint64_t context_tokens;      /* The longest request. */
    const struct kvg_transport *transport;
    struct kvg_agreement agreement;
    uint64_t write_through_hits;
    bool sparse_retention;
    uint64_t retention_interval;
};
KVG_API void kvg_engine_options_init(struct kvg_engine_options *options);

KVG_API KVG_MUST_CHECK kvg_err kvg_engine_new(const struct kvg_alloc *alloc,
    const struct kvg_engine_options *options, struct kvg_engine **out,
    struct kvg_error *error);

/* Closes the transport and frees everything. */
KVG_API void kvg_engine_free(struct kvg_engine *engine);

struct kvg_engine_prompt {
    kvg_request_id id;
    struct kvg_tree_key
        key; /* What may be reused; leave out tokens to be computed anyway. */
    uint64_t prompt_tokens; /* Where the prompt ends; 0: unknown. */
    int64_t priority;
    struct kvg_str session_id; /* The conversation it belongs to, for events and, in a */
    uint64_t session_generation; /* tree with sessions, for eviction; NULL: none.
                                  * Generation 0: the open one; opened if need be. */
};

struct kvg_engine_match {
    size_t struct_bytes;
    uint64_t device_length; /* The row's length: tokens that need no computing, but with a
                             * request ring the last kvg_tree_reprefill_tail() of them. */
    uint64_t load_length;   /* More that kvg_engine_load() could restore. */
    bool load_needed;       /* Call kvg_engine_load(), or kvg_engine_abort(), next. */
    bool loading; /* Another request is loading what comes next: abort and begin again. */
};

/* Begins a request: a row with the tokens that the device has, locked, and a look at the store.
 * One call of agreement.  KVG_ENOSPACE without a free row; KVG_EEXIST if the id is alive.
 *
 * A session is an advice: a request goes on without when there is no room for it.  Close it by
 * kvg_tree_session_close(kvg_engine_tree(engine), ...), on every rank. */
KVG_API KVG_MUST_CHECK kvg_err kvg_engine_begin(struct kvg_engine *engine,
    const struct kvg_engine_prompt *prompt, struct kvg_engine_match *out,
    kvg_row *request_out, struct kvg_error *error);

/* Restores what the match promised, or nothing, on all ranks alike; the row's length says what came
 * of it.  One call of agreement if load_needed, none else.  The slots may be read once
 * kvg_engine_wait_layer() said so, after kvg_engine_start_loads(). */
KVG_API KVG_MUST_CHECK kvg_err kvg_engine_load(struct kvg_engine *engine, kvg_row request,
    uint64_t *restored_out, struct kvg_error *error);

/* Gives requests more slots, evicting for them; all of them or none, on all ranks or none, with one
 * call of agreement.  KVG_ENOSPACE. */
KVG_API KVG_MUST_CHECK kvg_err kvg_engine_extend(struct kvg_engine *engine,
    const kvg_row *requests, const uint64_t *token_counts, size_t count,
    struct kvg_error *error);

/* Publishes the whole pages of a running request: `key` is everything computed so far.  The row
 * then names the tree's slots where it had the same.  Pages that a load of somebody else is
 * bringing are left out.  KVG_EBUSY while the request's own load is under way: tick first.
 * KVG_ENOMEM may have ended the request: then its row is not in use any more. */
KVG_API KVG_MUST_CHECK kvg_err kvg_engine_insert(struct kvg_engine *engine,
    kvg_row request, const struct kvg_tree_key *key, struct kvg_error *error);

/* The same, and the request ends; what it published is a turn of its session.  After KVG_EBUSY it
 * goes on; after KVG_ENOMEM it has ended. */
KVG_API KVG_MUST_CHECK kvg_err kvg_engine_finish(struct kvg_engine *engine,
    kvg_row request, const struct kvg_tree_key *key, struct kvg_error *error);

/* Ends a request at any stage and publishes nothing.  A load that started goes on by itself. */
KVG_API KVG_MUST_CHECK kvg_err kvg_engine_abort(
    struct kvg_engine *engine, kvg_row request, struct kvg_error *error);

KVG_API int64_t kvg_engine_start_loads(struct kvg_engine *engine);
KVG_API KVG_MUST_CHECK kvg_err kvg_engine_wait_layer(
    struct kvg_engine *engine, int64_t batch, uint32_t layer);

/* A request whose load failed: its row now ends at `length`; compute from there. */
struct kvg_engine_cut {
    kvg_request_id id;
    kvg_row request;
    uint64_t length;
};

struct kvg_engine_tick {
    size_t struct_bytes;
    const struct kvg_engine_cut *cuts; /* The engine's, until the next tick. */
    size_t cut_count;
    size_t load_count, offload_count; /* Committed. */
};

/* As kvg_linker_tick(), once a step; then cuts the requests whose loads failed. */
KVG_API KVG_MUST_CHECK kvg_err kvg_engine_tick(
    struct kvg_engine *engine, struct kvg_engine_tick *out, struct kvg_error *error);

/* Forgets the cache.  KVG_EBUSY while requests are alive. */
KVG_API KVG_MUST_CHECK kvg_err kvg_engine_reset(
    struct kvg_engine *engine, struct kvg_error *error);

struct kvg_engine_request {
    size_t struct_bytes;
    kvg_request_id id;
    uint64_t length;     /* Tokens with a slot. */
    uint64_t in_tree;    /* Those of them whose slots are the tree's. */
    uint64_t swa_cursor; /* Those without a window slot. */
    kvg_node_id node;    /* Locked. */
    bool load_pending;
};

/* KVG_ESTATE if the request has ended. */
KVG_API KVG_MUST_CHECK kvg_err kvg_engine_request_get(
    const struct kvg_engine *engine, kvg_row request, struct kvg_engine_request *out);

/* What it is made of, to look at, and to take events from. */
KVG_API struct kvg_tree *kvg_engine_tree(struct kvg_engine *engine);
KVG_API struct kvg_cache *kvg_engine_cache(struct kvg_engine *engine);
KVG_API struct kvg_linker *kvg_engine_linker(struct kvg_engine *engine);
KVG_API const struct kvg_rows *kvg_engine_rows(const struct kvg_engine *engine);
KVG_API const struct kvg_memory *kvg_engine_memory(const struct kvg_engine *engine);

/* The proof that nothing leaked and nothing is used twice: checks tree, linker and pools, and
 * audits every slot.  Allocates.  `full_out` and `window_out` may be NULL. */
KVG_API KVG_MUST_CHECK kvg_err kvg_engine_audit(struct kvg_engine *engine,
    struct kvg_audit_totals *full_out, struct kvg_audit_totals *window_out,
    struct kvg_error *error);

KVG_END_DECLS

#endif
