/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* mooncake_batch.c -- what each call of Mooncake's library is made of: keys as C strings,
 * registered memory, and the keys that need not be asked for. */

#include "backend/mooncake.h"

#include "base/alloc.h"
#include "base/fmt.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

static uint64_t now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

kvg_err kvi_mooncake_fail(
    struct kvg_error *error, int64_t code, const char *call, struct kvg_str key)
{
    char message[192];

    snprintf(message, sizeof(message), "%s %.*s: %s (%lld)", call,
        (int)(key.bytes < 90 ? key.bytes : 90), key.data, kvi_mooncake_words(code),
        (long long)code);
    return kvi_fail(error, kvi_mooncake_error(code), "store.mooncake", message);
}

/* Keys that could not be read -------------------------------------------------------------- */

static uint64_t hash_of(struct kvg_str key)
{
    uint64_t hash = UINT64_C(0x9e3779b97f4a7c15);
    size_t i;

    for (i = 0; i < key.bytes; i++) {
        hash = (hash ^ (unsigned char)key.data[i]) * UINT64_C(0x100000001b3);
        hash ^= hash >> 29;
    }
    return hash | 1; /* 0: an empty place. */
}

static bool is_dead(struct mooncake *mooncake, struct kvg_str key)
{
    uint64_t hash = hash_of(key);
    const struct dead_key *dead =
        &mooncake->dead[hash / 2 & (KVI_MOONCAKE_DEAD_KEYS - 1)];
    bool found;

    pthread_mutex_lock(&mooncake->lock);
    found = dead->hash == hash && now_ms() < dead->until_ms;
    pthread_mutex_unlock(&mooncake->lock);
    return found;
}

void kvi_mooncake_mark_dead(struct mooncake *mooncake, struct kvg_str key)
{
    uint64_t hash = hash_of(key);

    pthread_mutex_lock(&mooncake->lock);
    mooncake->dead[hash / 2 & (KVI_MOONCAKE_DEAD_KEYS - 1)] =
        (struct dead_key){hash, now_ms() + mooncake->dead_for_ms};
    pthread_mutex_unlock(&mooncake->lock);
}

/* Absent, as far as can be known without asking. */
bool kvi_mooncake_known_absent(struct mooncake *mooncake, struct kvg_str key)
{
    if (mooncake->absent.is_absent != NULL &&
        mooncake->absent.is_absent(mooncake->absent.context, key))
        return true;
    return is_dead(mooncake, key);
}

/* The library wants C strings, and our keys are bytes.  A zero byte becomes two others, as does the
 * byte that says so; the names of pages have neither and stay as they are. */
#define ESCAPE '\x01'

void kvi_mooncake_key_text(struct kvg_str key, char out[KVI_MOONCAKE_TEXT_MAX])
{
    size_t i;

    for (i = 0; i < key.bytes; i++) {
        if (key.data[i] == '\0' || key.data[i] == ESCAPE) {
            *out++ = ESCAPE;
            *out++ = key.data[i] == '\0' ? '0' : '1';
        } else {
            *out++ = key.data[i];
        }
    }
    *out = '\0';
}

/* Lanes ------------------------------------------------------------------------------------ */

/* A lane that nobody uses, ready for zero-copy calls; NULL without memory. */
struct lane *kvi_mooncake_lane_take(struct mooncake *mooncake)
{
    struct lane *lane = NULL;
    size_t i;

    pthread_mutex_lock(&mooncake->lock);
    while (lane == NULL) {
        for (i = 0; i < KVI_MOONCAKE_LANES && lane == NULL; i++) {
            if (!mooncake->lanes[i].lent)
                lane = &mooncake->lanes[i];
        }
        if (lane == NULL)
            pthread_cond_wait(&mooncake->lane_free, &mooncake->lock);
    }
    lane->lent = true;
    pthread_mutex_unlock(&mooncake->lock);
    if (lane->memory != NULL)
        return lane;
    lane->memory = kvi_alloc_array_raw(mooncake->alloc, mooncake->lane_bytes, 1);
    if (lane->memory != NULL && mooncake->library.register_buffer(mooncake->handle,
                                    lane->memory, mooncake->lane_bytes) != 0) {
        kvi_release_array(mooncake->alloc, lane->memory, mooncake->lane_bytes, 1);
        lane->memory = NULL;
    }
    if (lane->memory != NULL)
        return lane;
    pthread_mutex_lock(&mooncake->lock);
    lane->lent = false;
    pthread_cond_signal(&mooncake->lane_free);
    pthread_mutex_unlock(&mooncake->lock);
    return NULL;
}

void kvi_mooncake_lane_give(struct mooncake *mooncake, struct lane *lane)
{
    pthread_mutex_lock(&mooncake->lock);
    lane->lent = false;
    pthread_cond_signal(&mooncake->lane_free);
    pthread_mutex_unlock(&mooncake->lock);
}

/* A batch: what one call of the library gets ------------------------------------------------ */

/* Not zeroed: it is half a megabyte. */
struct batch *kvi_mooncake_batch_new(const struct mooncake *mooncake)
{
    struct batch *batch = kvi_alloc_array_raw(mooncake->alloc, 1, sizeof(*batch));

    if (batch != NULL)
        batch->count = 0;
    return batch;
}

void kvi_mooncake_batch_add(struct batch *batch, struct kvg_str key, size_t which)
{
    kvi_mooncake_key_text(key, batch->texts[batch->count]);
    batch->keys[batch->count] = batch->texts[batch->count];
    batch->which[batch->count++] = which;
}

kvg_err kvi_mooncake_ask(struct mooncake *mooncake, struct batch *batch,
    const struct kvg_str *keys, uint8_t *present, struct kvg_error *error)
{
    int code;
    size_t i;

    if (batch->count == 0)
        return KVG_OK;
    code = mooncake->library.batch_is_exist(
        mooncake->handle, batch->keys, batch->count, batch->codes);
    if (code != 0)
        return kvi_mooncake_fail(error, code, "exists", keys[batch->which[0]]);
    for (i = 0; i < batch->count; i++) {
        if (batch->codes[i] < 0 && kvi_mooncake_error(batch->codes[i]) != KVG_ENOENT)
            return kvi_mooncake_fail(
                error, batch->codes[i], "exists", keys[batch->which[i]]);
        present[batch->which[i]] = batch->codes[i] > 0;
    }
    batch->count = 0;
    return KVG_OK;
}
