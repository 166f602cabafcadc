/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* memory.h -- the backend `memory:`: what memory.c and memory_put.c share. */
#ifndef KVI_STORE_MEMORY_H
#define KVI_STORE_MEMORY_H

#include "store/store.h"

#include "base/alloc.h"
#include "base/rng.h"
#include "store/catalog.h"

#include <string.h>

#define LOCK_SHARDS 8u

struct value {
    _Atomic uint32_t references;
    uint64_t bytes;
};

struct memory {
    const struct kvg_alloc *alloc;
    struct kvg_store_locks locks;
    void *shards[LOCK_SHARDS]; /* All NULL: one thread. */
    struct kvg_store_hook hook;
    struct kvi_catalog catalog;
    uint64_t bytes_max;
    uint64_t epoch;
    uint64_t sequence;
    uint64_t put_parts, put_bytes, put_present;
    uint64_t evicted_objects, evicted_bytes;
};

/* To look, and to mark uses.  Returns what end_read() wants. */
static inline void *begin_read(struct memory *memory)
{
    /* Threads have stacks of their own; any shard would be right. */
    uint8_t here;
    uint64_t where = kvi_mix64((uint64_t)(uintptr_t)&here >> 14);
    void *shard = memory->shards[where % LOCK_SHARDS];

    if (shard != NULL)
        memory->locks.lock(memory->locks.context, shard);
    return shard;
}

static inline void end_read(struct memory *memory, void *shard)
{
    if (shard != NULL)
        memory->locks.unlock(memory->locks.context, shard);
}

static inline void begin_write(struct memory *memory)
{
    unsigned i;

    for (i = 0; i < LOCK_SHARDS && memory->shards[i] != NULL; i++)
        memory->locks.lock(memory->locks.context, memory->shards[i]);
}

static inline void end_write(struct memory *memory)
{
    unsigned i;

    for (i = LOCK_SHARDS; i > 0; i--) {
        if (memory->shards[i - 1] != NULL)
            memory->locks.unlock(memory->locks.context, memory->shards[i - 1]);
    }
}

/* ---- Values -------------------------------------------------------------------------------- */

static inline uint8_t *value_data(struct value *value)
{
    return (uint8_t *)(value + 1);
}

static inline struct value *value_of(const struct kvi_catalog_part *part)
{
    return (struct value *)(uintptr_t)part->place;
}

static inline void value_drop(struct memory *memory, struct value *value)
{
    if (value != NULL &&
        atomic_fetch_sub_explicit(&value->references, 1, memory_order_acq_rel) == 1)
        kvi_release_array(memory->alloc, value, sizeof(*value) + value->bytes, 1);
}

/* Tells the hook of a change, with the lock. */
void kvi_memory_tell(
    struct memory *memory, enum kvg_store_change_kind kind, uint32_t part_id);

/* Removes a part and tells why, with the lock. */
void kvi_memory_drop_part(
    struct memory *memory, uint32_t part, enum kvg_store_change_kind kind);

/* put of the backend's table (memory_put.c). */
kvg_err kvi_memory_put(void *self, struct kvg_store_group *groups, size_t group_count,
    struct kvg_error *error);

#endif
