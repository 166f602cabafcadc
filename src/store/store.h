/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* store.h -- what the files of this part share. */
#ifndef KVI_STORE_STORE_H
#define KVI_STORE_STORE_H

#include <kvgraft/store_backend.h>

#include <stdatomic.h>

/* The backend `memory:`. */
extern const struct kvg_store_backend kvi_store_memory;

/* What was counted outside the backends. */
struct kvi_store_counters {
#define COUNTER(name) _Atomic uint64_t name;
    KVG_STORE_COUNTED(COUNTER)
#undef COUNTER
};

struct kvg_store {
    const struct kvg_store_backend *backend;
    void *self;
    const struct kvg_alloc *alloc;
    const struct kvg_log *log;
    struct kvg_store_url *url;
    uint32_t flags;
    bool read_only;
    struct kvi_store_counters counters;
};

/* Bytes of a part. */
static inline uint64_t kvi_store_part_bytes(const struct kvg_store_part *part)
{
    uint64_t bytes = 0;
    size_t i;

    for (i = 0; i < part->piece_count; i++)
        bytes += part->pieces[i].bytes;
    return bytes;
}

/* Do all ranges stay inside a value of so many bytes? */
static inline bool kvi_store_ranges_fit(const struct kvg_store_get *get, uint64_t bytes)
{
    size_t i;

    for (i = 0; i < get->range_count; i++) {
        if (get->ranges[i].offset > bytes ||
            get->ranges[i].bytes > bytes - get->ranges[i].offset)
            return false;
    }
    return true;
}

#endif
