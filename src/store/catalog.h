/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* catalog.h -- what a store holds, and in which order it would let go of it.
 *
 * Keys lead to parts, parts belong to groups (the parts of one page), a group may know
 * the group of the page before it.  The catalog holds no values: `place` and `check` of a
 * part are the backend's.  See catalog.c.
 *
 * Threads: the caller locks; kvi_catalog_find() and kvi_catalog_touch() may run in
 * several threads at a time while nothing else does. */
#ifndef KVI_STORE_CATALOG_H
#define KVI_STORE_CATALOG_H

#include <kvgraft/base.h>

#include <stdatomic.h>

#define KVI_NONE UINT32_MAX

struct kvi_catalog_part {
    char *key; /* Followed by a zero; NULL: this id is free. */
    uint64_t bytes;
    uint64_t place;
    uint64_t check;
    uint64_t serial; /* Never the same twice: is it still the part I knew? */
    uint32_t hash;   /* Of the key; of a free id: the next free one. */
    uint32_t group;
    uint32_t next; /* In the group's ring. */
    uint32_t prev;
    uint32_t key_bytes;
    uint32_t flags; /* The backend's. */
};

struct kvi_catalog_group {
    _Atomic uint64_t tick; /* Of the last use. */
    uint64_t serial;       /* 0: this id is free. */
    uint64_t parent_serial;
    char *id; /* NULL: none. */
    uint32_t id_bytes;
    uint32_t first_part;
    uint32_t part_count;
    uint32_t parent;      /* Or KVI_NONE; it may be gone: see parent_serial. */
    uint32_t child_count; /* Groups that name this one, and holds. */
    uint32_t heap_at; /* KVI_NONE: not in the heap.  Of a free id: the next free one. */
};

struct kvi_catalog_heap_item {
    uint64_t tick;
    uint32_t group;
};

struct kvi_catalog {
    const struct kvg_alloc *alloc;
    struct kvi_catalog_part *parts;
    struct kvi_catalog_group *groups;
    struct kvi_catalog_heap_item *heap;
    uint32_t *table; /* Part ids, or KVI_NONE. */
    uint64_t seed;
    _Atomic uint64_t clock;
    uint64_t serial;
    uint64_t bytes; /* Of all values. */
    size_t part_count, part_capacity, part_used;
    size_t group_count, group_capacity, group_used;
    size_t heap_count; /* Its capacity is group_capacity. */
    size_t table_size; /* A power of two. */
    uint32_t part_free;
    uint32_t group_free;
};

/* False without memory. */
bool kvi_catalog_init(
    struct kvi_catalog *catalog, const struct kvg_alloc *alloc, uint64_t seed);
void kvi_catalog_fini(struct kvi_catalog *catalog);

/* Forgets everything; ids and serials go on. */
void kvi_catalog_clear(struct kvi_catalog *catalog);

/* The part of a key, or KVI_NONE. */
uint32_t kvi_catalog_find(const struct kvi_catalog *catalog, struct kvg_str key);

/* A new group without parts, as the child of the group of part `previous` (or KVI_NONE); it must
 * get a part or be dropped.  KVI_NONE without memory. */
uint32_t kvi_catalog_add_group(
    struct kvi_catalog *catalog, struct kvg_str id, uint32_t previous, uint64_t tick);

/* Drops a group that has no part. */
void kvi_catalog_drop_group(struct kvi_catalog *catalog, uint32_t group);

/* Adds a part that is not there yet.  KVI_NONE without memory. */
uint32_t kvi_catalog_add_part(struct kvi_catalog *catalog, uint32_t group,
    struct kvg_str key, uint64_t bytes, uint64_t place, uint64_t check);

/* Removes a part, and its group with its last one. */
void kvi_catalog_remove_part(struct kvi_catalog *catalog, uint32_t part);

/* A run of `count` ticks for a batch: the first gets the returned one, each later one 1 less.  So
 * what a prompt reaches later is colder. */
uint64_t kvi_catalog_ticks(struct kvi_catalog *catalog, uint64_t count);

/* Marks a use.  Never makes a group colder. */
void kvi_catalog_touch(struct kvi_catalog *catalog, uint32_t group, uint64_t tick);

/* Keeps a group, as a child would, until it is let go. */
void kvi_catalog_hold(struct kvi_catalog *catalog, uint32_t group);
void kvi_catalog_let_go(struct kvi_catalog *catalog, uint32_t group);

/* The coldest group without children, or KVI_NONE. */
uint32_t kvi_catalog_coldest(struct kvi_catalog *catalog);

/* The number of the first broken invariant (catalog.c); 0: none. */
unsigned kvi_catalog_check(const struct kvi_catalog *catalog);

#endif
