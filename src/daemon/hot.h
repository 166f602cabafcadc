/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* hot.h -- which prompts begin alike, and how often: a bounded tree of page chains.
 *
 *     everything --- source, tenant, page size (a *space*)
 *                        `--- page 0 --- page 1 --- page 2 ...
 *                                  `---- page 1' ...
 *
 * A node is a prefix; its name is the first 8 bytes of its last page's key, which names all pages
 * before it too.  No token is kept.
 *
 * Counts are in units of KVD_HOT_UNIT a lookup and fade: every kvd_hot_fade() takes a sixteenth.
 * `count` is what was certainly seen, `count + error` the most it can have been: a prefix is only
 * watched from some moment on, and what few ask for gives way.
 *
 * Chains come from the answering threads through rings, one a thread: a thread never waits, and
 * what does not fit is dropped and counted.
 *
 * Threads: the ring as said there; the rest belongs to whoever holds the lock of its owner.
 */
#ifndef KVD_HOT_H
#define KVD_HOT_H

#include "daemon/config.h"

#include <stdatomic.h>

#define KVD_HOT_NODES 4096u /* Prefixes watched, spaces included. */
#define KVD_HOT_DEPTH 64u   /* Pages of a prompt that are looked at. */
#define KVD_HOT_SPACES 64u
#define KVD_HOT_GROW 8u    /* Prefixes that one prompt may add. */
#define KVD_HOT_UNIT 256u  /* Of counts: one lookup. */
#define KVD_HOT_CHAINS 32u /* Of a ring. */
#define KVD_HOT_NONE UINT32_MAX

/* What is kept of one question, to be added later. */
struct kvd_hot_chain {
    char source[KVD_NAME_BYTES];
    char tenant[KVD_NAME_BYTES];
    uint32_t page_size;
    uint32_t page_count; /* At most KVD_HOT_DEPTH. */
    uint64_t weight;     /* Lookups that it stands for. */
    uint64_t present;    /* Bit i: page i was there. */
    uint64_t keys[KVD_HOT_DEPTH];
};

/* One writer (an answering thread), one reader. */
struct kvd_hot_ring {
    _Atomic uint32_t head; /* Written so far; wraps. */
    _Atomic uint32_t tail; /* Taken so far. */
    atomic_uint_least64_t dropped;
    struct kvd_hot_chain chains[KVD_HOT_CHAINS];
};

/* The writer: a place to fill, or NULL (counted) if the ring is full; then hand it over. */
struct kvd_hot_chain *kvd_hot_ring_place(struct kvd_hot_ring *ring);
void kvd_hot_ring_push(struct kvd_hot_ring *ring);
/* The reader: the oldest, or NULL; it lives until pop. */
const struct kvd_hot_chain *kvd_hot_ring_peek(struct kvd_hot_ring *ring);
void kvd_hot_ring_pop(struct kvd_hot_ring *ring);

struct kvd_hot;

KVG_MUST_CHECK kvg_err kvd_hot_new(const struct kvg_alloc *alloc, struct kvd_hot **out);
void kvd_hot_free(struct kvd_hot *hot);
/* Names that are too long are cut by the caller; `page_count` over the limit is cut here. */
void kvd_hot_add(struct kvd_hot *hot, const struct kvd_hot_chain *chain);
/* Takes a sixteenth off everything, and forgets what is worth less than a quarter lookup. */
void kvd_hot_fade(struct kvd_hot *hot);
/* Chains that came when KVD_HOT_SPACES spaces were in use by others. */
uint64_t kvd_hot_refused(const struct kvd_hot *hot);

struct kvd_hot_space {
    bool used;
    char source[KVD_NAME_BYTES];
    char tenant[KVD_NAME_BYTES];
    uint32_t page_size;
    uint32_t root; /* Its node. */
};
/* The space of that index, or NULL. */
const struct kvd_hot_space *kvd_hot_space(const struct kvd_hot *hot, uint32_t index);

/* What a reader sees: a node, or a run of nodes: nearly all who come to the first go on to the
 * last. */
struct kvd_hot_view {
    uint32_t node;
    uint32_t parent; /* Index among the views, or KVD_HOT_NONE. */
    uint32_t space;  /* KVD_HOT_NONE: everything. */
    uint32_t page;   /* 0-based; KVD_HOT_NONE for a space and for everything. */
    uint64_t prefix; /* The page key's first 8 bytes, big-endian; 0 if there is none. */
    uint64_t count;
    uint64_t error;
    uint32_t last_page; /* The end of the run; of a single node itself. */
    uint64_t last_prefix;
    uint64_t last_count;
    uint64_t last_present; /* Of `last_count`: that page was there. */
    bool more;             /* Goes on to some that are not among the views. */
};

/* Node 0: everything. */
/* The node of a prefix, in any space or only in that one (KVD_HOT_NONE: any); the one asked for
 * most if there are several.  KVD_HOT_NONE: not watched (any more). */
uint32_t kvd_hot_find(const struct kvd_hot *hot, uint32_t space, uint64_t prefix);
/* The parent, or KVD_HOT_NONE of node 0. */
uint32_t kvd_hot_parent(const struct kvd_hot *hot, uint32_t node);
void kvd_hot_look(const struct kvd_hot *hot, uint32_t node, struct kvd_hot_view *out);
/* The most asked-for runs under `node`, which the first begins with; parents before their children,
 * at most `max` (at least 1) of them.  Returns how many. */
size_t kvd_hot_top(
    struct kvd_hot *hot, uint32_t node, size_t max, struct kvd_hot_view *out);

/* 0, or the number of the first broken invariant. */
int kvd_hot_check(const struct kvd_hot *hot, const char **what);

#endif
