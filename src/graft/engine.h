/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* engine.h -- the data of an engine, shared by the files of this folder.
 *
 *     row of a request    [ in the tree, locked | its own slots                 ]
 *                         0                     in_tree                    length
 *                                   ^ swa_cursor: below it no window slot of its own
 *
 *     begin -> (load) -> extend, insert, extend, insert ... -> finish, or abort at any time
 *
 * Invariants, checked by kvg_engine_audit():
 *
 *     E1  A request's node is alive and locked; its path is at least in_tree long.
 *     E2  Slots below in_tree are the tree's; every other slot of the row is held by it alone.
 *     E3  free + evictable + protected + held = capacity, in both pools.
 */
#ifndef KVI_GRAFT_ENGINE_H
#define KVI_GRAFT_ENGINE_H

#include "graft/linker.h"

struct kvi_request {
    kvg_request_id id;
    kvg_row row;
    bool used;
    bool load_needed, load_pending;
    kvg_node_id node; /* Locked with `receipt`; ends at `node_length`. */
    uint64_t node_length;
    struct kvg_lock_receipt receipt;
    uint64_t in_tree;
    uint64_t swa_cursor;
    uint64_t prompt_tokens;
    int64_t priority;
    char *session_id; /* A copy; NULL: none. */
    size_t session_id_bytes;
    uint64_t session_generation; /* 0: the tree is not told. */
    uint64_t load_wanted;
    /* To fall back on when a load fails. */
    uint64_t common; /* What all ranks have. */
    kvg_node_id
        anchor; /* Stays locked while a load is under way: its window must last. */
    struct kvg_lock_receipt anchor_receipt;
    bool anchor_locked;
    uint64_t anchor_length, cursor_before;
};

struct kvg_engine {
    struct kvg_alloc alloc;
    struct kvg_tree *tree;
    struct kvg_memory memory;
    struct kvg_cache *cache;
    struct kvg_linker *linker;
    struct kvg_rows *rows;
    uint32_t page_size, row_count;
    uint64_t context_tokens;
    struct kvi_request *requests; /* By row. */
    struct kvi_rids request_of;
    struct kvg_spans spans;      /* Scratch for a whole row: never fails. */
    struct kvg_extend *extends;  /* row_count. */
    struct kvg_engine_cut *cuts; /* row_count. */
};

static inline uint64_t kvi_round_up(const struct kvg_engine *engine, uint64_t length)
{
    return (length + engine->page_size - 1) / engine->page_size * engine->page_size;
}

/* For what cannot fail here: a failure would be a mistake of ours. */
static inline void kvi_must(kvg_err err)
{
    KVI_ASSERT(err == KVG_OK);
}

/* request.c */
kvg_err kvi_request_get(struct kvg_engine *engine, kvg_row row, struct kvi_request **out,
    struct kvg_error *error);
/* Where its session, if any, will come back: the end of what the request has in the tree. */
void kvi_request_turn(struct kvg_engine *engine, const struct kvi_request *request);
void kvi_request_forget_session(struct kvg_engine *engine, struct kvi_request *request);
/* Positions [from, to) of the row into engine->spans. */
void kvi_request_spans(struct kvg_engine *engine, const struct kvi_request *request,
    uint64_t from, uint64_t to);
/* Frees the request's own slots from `from` on, a page boundary, and shortens the row. */
void kvi_request_release_own(
    struct kvg_engine *engine, struct kvi_request *request, uint64_t from);
/* The load is there, or was never needed: the lock at the end of the row is enough. */
void kvi_request_drop_anchor(struct kvg_engine *engine, struct kvi_request *request);
/* A load failed, here or elsewhere: back to the anchor. */
void kvi_request_fall_back(struct kvg_engine *engine, struct kvi_request *request);
/* Ends it: own slots from `from` on, lock, marker or queued load, row. */
void kvi_request_end(
    struct kvg_engine *engine, struct kvi_request *request, uint64_t from);

#endif
