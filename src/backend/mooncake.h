/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* mooncake.h -- what the files of the backend `mooncake:` share. */
#ifndef KVI_BACKEND_MOONCAKE_H
#define KVI_BACKEND_MOONCAKE_H

#include "backend/mooncake_library.h"

#include <kvgraft/store_backend.h>

#include <pthread.h>

#define KVI_MOONCAKE_LANES 4u
#define KVI_MOONCAKE_DEAD_KEYS 4096u /* A power of two. */
#define KVI_MOONCAKE_CHUNK_KEYS 512u
#define KVI_MOONCAKE_TEXT_MAX (2 * KVG_STORE_KEY_MAX + 1) /* Of a key as a C string. */

struct lane {
    unsigned char *memory; /* NULL: not needed yet. */
    bool lent;
};

struct dead_key {
    uint64_t hash;
    uint64_t until_ms;
};

struct mooncake {
    const struct kvg_alloc *alloc;
    struct kvi_mooncake_library library;
    void *handle;
    struct kvi_mooncake_config config;
    bool with_config;
    struct kvg_store_absent absent;

    pthread_mutex_t lock;
    pthread_cond_t lane_free;
    struct lane lanes[KVI_MOONCAKE_LANES];
    size_t lane_bytes;
    struct dead_key dead[KVI_MOONCAKE_DEAD_KEYS];
    uint64_t dead_for_ms;
};

/* What one call of the library gets. */
struct batch {
    size_t count;
    size_t which[KVI_MOONCAKE_CHUNK_KEYS]; /* The caller's number of each key. */
    const char *keys[KVI_MOONCAKE_CHUNK_KEYS];
    void *buffers[KVI_MOONCAKE_CHUNK_KEYS];
    size_t sizes[KVI_MOONCAKE_CHUNK_KEYS];
    int64_t results[KVI_MOONCAKE_CHUNK_KEYS];
    int codes[KVI_MOONCAKE_CHUNK_KEYS];
    char texts[KVI_MOONCAKE_CHUNK_KEYS][KVI_MOONCAKE_TEXT_MAX];
};

kvg_err kvi_mooncake_fail(
    struct kvg_error *error, int64_t code, const char *call, struct kvg_str key);

/* Absent, as far as can be known without asking; and what to know from now on. */
bool kvi_mooncake_known_absent(struct mooncake *mooncake, struct kvg_str key);
void kvi_mooncake_mark_dead(struct mooncake *mooncake, struct kvg_str key);

/* The library wants C strings, and our keys are bytes. */
void kvi_mooncake_key_text(struct kvg_str key, char out[KVI_MOONCAKE_TEXT_MAX]);

/* A lane that nobody uses, ready for zero-copy calls; NULL without memory. */
struct lane *kvi_mooncake_lane_take(struct mooncake *mooncake);
void kvi_mooncake_lane_give(struct mooncake *mooncake, struct lane *lane);

struct batch *kvi_mooncake_batch_new(const struct mooncake *mooncake);
void kvi_mooncake_batch_add(struct batch *batch, struct kvg_str key, size_t which);

/* Asks which keys of a batch exist, and empties it. */
kvg_err kvi_mooncake_ask(struct mooncake *mooncake, struct batch *batch,
    const struct kvg_str *keys, uint8_t *present, struct kvg_error *error);

kvg_err kvi_mooncake_put(void *self, struct kvg_store_group *groups, size_t group_count,
    struct kvg_error *error);
kvg_err kvi_mooncake_get(
    void *self, struct kvg_store_get *gets, size_t get_count, struct kvg_error *error);

#endif
