/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* linker.h -- the data of a linker, shared by the files of this folder.
 *
 *     match                load_back                 start      result, agreed
 *     ------> marker  ---------------------> queued -----> started -----> confirmed
 *             (key, tail keys)               |  lock, nodes hidden  |
 *                                            v cancel               v failure
 *                                            withdrawn  <----  failed, until the request lets go
 *
 *     offload: lock, pending mark, record; then the transport; then finish and unlock, in order
 *
 * Invariants, checked by kvg_linker_check():
 *
 *     L1  A load that has pages holds one lock, and its ack is a living node.
 *     L2  No request has two loads; no ack is named by two of them.
 *     L3  An offload's record holds a lock, and its nodes are pending under its lock node.
 *     L4  A marker has at least one key, and its key ends at device length plus keys.
 *     L5  Without agreement no record is empty.
 */
#ifndef KVI_GRAFT_LINKER_H
#define KVI_GRAFT_LINKER_H

#include "graft/cache.h"
#include "graft/rids.h"

/* What a match found outside, until the load. */
struct kvi_marker {
    kvg_request_id id;
    uint32_t next_free; /* Index + 1; of a marker not in use. */
    bool used;
    struct kvg_tree_key key; /* A copy: device prefix and tail. */
    struct kvg_key *tail_keys;
    uint32_t tail_pages;
    uint64_t device_length;
};

enum kvi_load_state {
    KVI_LOAD_QUEUED,
    KVI_LOAD_STARTED,
    KVI_LOAD_DONE
};
struct kvi_load {
    kvg_request_id id;
    kvg_node_id ack; /* KVG_NODE_NONE: this rank had nothing to load. */
    struct kvg_lock_receipt receipt;
    enum kvi_load_state state;
    bool success;
};

/* A load that failed while its request still holds the nodes. */
struct kvi_failed {
    kvg_request_id id;
    kvg_node_id ack;
};

struct kvi_offload {
    kvg_node_id lock_node; /* KVG_NODE_NONE: a group in which this rank wrote nothing. */
    struct kvg_lock_receipt receipt;
    kvg_node_id *nodes; /* To publish, parents first. */
    uint32_t node_count, node_capacity;
    uint64_t group;  /* Offloads of one call end together. */
    bool incomplete; /* No memory for a fragment: find them by climbing. */
    bool done, success;
};

struct kvg_linker {
    struct kvg_alloc alloc;
    struct kvg_cache *cache;
    struct kvg_tree *tree;
    struct kvg_transport transport;
    bool has_transport, closed, skip_swa;
    bool inserting_tail; /* What a load inserts has no bytes yet: nothing is offered. */
    struct kvg_agreement agreement;
    uint32_t page_size, pages_max, window_pages;
    struct kvg_page_rule rule;
    bool sparse;
    uint64_t interval;

    struct kvi_marker *markers;
    uint32_t marker_capacity, marker_free; /* Index + 1. */
    struct kvi_rids marker_of;

    struct kvi_load *loads; /* In the order of their queueing. */
    size_t load_count, load_capacity;
    struct kvi_failed *failed;
    size_t failed_count, failed_capacity;
    struct kvi_offload *offloads; /* In their order. */
    size_t offload_count, offload_capacity;
    uint64_t group;
    bool group_open, group_used;

    int32_t *mask;        /* 2 * (pages_max + 1). */
    uint32_t *lengths;    /* pages_max. */
    struct kvg_key *keys; /* Scratch. */
    size_t key_capacity;
    struct kvg_spans full, swa, value, canonical, cut[2]; /* Scratch of a load. */
    struct kvg_load_result
        *results; /* KVG_TICK_RESULTS_MAX; as int32_t: see complete.c. */
    int32_t *votes;
    struct kvg_linker_stats stats;
};

/* agree.c */
void kvi_agree(struct kvg_linker *linker, int32_t *values, size_t count);

/* linker.c: growable arrays; room for one more. */
kvg_err kvi_linker_keys_reserve(struct kvg_linker *linker, size_t count);

/* lookup.c */

/* This rank failed before it could look: votes for nothing, so that the count of calls is kept. */
void kvi_linker_abstain(struct kvg_linker *linker, const struct kvg_tree_key *key);
void kvi_marker_drop(struct kvg_linker *linker, kvg_request_id id);
void kvi_markers_drop_all(struct kvg_linker *linker);

/* transfer.c */

/* Cuts [from, from + length) slots out of `spans` and appends them to `out`. */
kvg_err kvi_spans_cut_append(const struct kvg_alloc *alloc, const struct kvg_spans *spans,
    uint64_t from, uint64_t length, struct kvg_spans *out);

/* Keeps of a transfer only the pages inside the ranges of its component: keys to `keys`, spans to
 * `spans`.  The transfer covers units [start, start + pages).  An empty one has no keys. */
kvg_err kvi_transfer_filter(struct kvg_linker *linker,
    const struct kvg_tree_transfer *transfer, const struct kvg_tree_range *ranges,
    size_t range_count, uint64_t start, struct kvg_key *keys, struct kvg_spans *spans,
    struct kvg_tree_transfer *out);

/* complete.c */
kvg_err kvi_load_reserve(struct kvg_linker *linker, struct kvg_error *error);
/* Releases a load's lock and withdraws its pages, or files it among the failed. */
void kvi_load_abandon(struct kvg_linker *linker, const struct kvi_load *load);
size_t kvi_load_find(const struct kvg_linker *linker, kvg_request_id id);

/* offload.c */
void kvi_offload_end(
    struct kvg_linker *linker, struct kvi_offload *offload, bool success);
/* Around the backups of one insert: the group exists on all ranks, used or not. */
kvg_err kvi_linker_group_begin(struct kvg_linker *linker);
void kvi_linker_group_end(struct kvg_linker *linker);

#endif
