/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* mooncake.c -- the backend `mooncake:`, a fleet's shared memory through its own C library.
 *
 *     call --> batch: keys that need asking, as C strings --> library --> master, owners of memory
 *                |                                               ^
 *                | known absent (filter), or unreadable lately   | registered memory only:
 *                v                                               | a lane, lent for one chunk
 *              answered here                                   lanes
 *
 * Questions.  In this store a question is a write: it renews the lease of what it asks for, and
 * what is leased cannot be evicted.  So a key of which the embedder's own index is sure that it is
 * absent is not asked for (kvg_store_options.absent), and no key is asked for twice in one call.
 *
 * Owners that died.  For some seconds the master goes on to say that their objects exist, and each
 * read fails only after a time-out.  A key whose read failed so counts as absent for `dead_for`, so
 * that each is tried once in that time and not once a request.
 *
 * Groups.  The library knows none, so the parts of a page appear one by one.  A group that fails in
 * the middle takes away again what it wrote.  A reader that finds a part missing finds a miss.
 *
 * Invariants:
 *   1. Only bytes inside a lane are handed to the library for zero-copy calls.
 *   2. A lane belongs to one call at a time.
 *   3. Bytes reach the caller only if the library said how many it read, and no lease had ended.
 *
 * Threads: any; `lock` guards the lanes and the table of dead keys, and is not held during calls of
 * the library.
 *
 * Eviction is the master's: by lease, not by page, so KVG_STORE_EVICTS is not promised.
 *
 * Not here: events (the master publishes them), listing (the library has none), removal by group.
 * */

#include "backend/mooncake.h"

#include "backend/backend.h"
#include "base/alloc.h"
#include "base/fmt.h"
#include "store/store.h"

#include <stdio.h>
#include <string.h>

/* Asking ------------------------------------------------------------------------------------ */

static kvg_err mooncake_exists(void *self, const struct kvg_str *keys, size_t key_count,
    bool stop_at_gap, uint8_t *present, struct kvg_error *error)
{
    struct mooncake *mooncake = self;
    struct batch *batch = kvi_mooncake_batch_new(mooncake);
    kvg_err err = KVG_OK;
    size_t i;

    if (batch == NULL)
        return kvi_fail(error, KVG_ENOMEM, "store", "no memory for a batch");
    for (i = 0; i < key_count && err == KVG_OK; i++) {
        if (kvi_mooncake_known_absent(mooncake, keys[i])) {
            if (stop_at_gap)
                break; /* Nothing behind it is wanted; so it is not asked for. */
            continue;
        }
        kvi_mooncake_batch_add(batch, keys[i], i);
        if (batch->count == KVI_MOONCAKE_CHUNK_KEYS)
            err = kvi_mooncake_ask(mooncake, batch, keys, present, error);
    }
    if (err == KVG_OK)
        err = kvi_mooncake_ask(mooncake, batch, keys, present, error);
    KVI_FREE(mooncake->alloc, batch);
    return err;
}

/* Reading ----------------------------------------------------------------------------------- */

/* Bytes that a read of this key needs room for, as far as the ranges tell: the library reads whole
 * values only, and refuses a buffer that is too small. */
static size_t expected_bytes(const struct kvg_store_get *get)
{
    uint64_t end = 0;
    size_t i;

    for (i = 0; i < get->range_count; i++) {
        uint64_t this_end = get->ranges[i].offset > KVG_STORE_VALUE_MAX
                                ? KVG_STORE_VALUE_MAX
                                : get->ranges[i].offset + get->ranges[i].bytes;

        end = this_end > end ? this_end : end;
    }
    return end > KVG_STORE_VALUE_MAX ? (size_t)KVG_STORE_VALUE_MAX : (size_t)end;
}

static void scatter(struct kvg_store_get *get, const unsigned char *value)
{
    size_t i;

    for (i = 0; i < get->range_count; i++) {
        if (get->ranges[i].bytes != 0)
            memcpy(get->ranges[i].memory, value + get->ranges[i].offset,
                get->ranges[i].bytes);
    }
}

static void take_value(struct mooncake *mooncake, struct kvg_store_get *get,
    int64_t result, const unsigned char *value, struct kvg_error *error)
{
    if (result > 0) {
        get->value_bytes = (uint64_t)result;
        if (!kvi_store_ranges_fit(get, get->value_bytes)) {
            get->result = kvi_fail(
                error, KVG_EINVAL, "store.get.ranges", "a range leaves the value");
            return;
        }
        scatter(get, value);
        return;
    }
    if (result == KVI_MOONCAKE_TRANSFER_FAILED || result == KVI_MOONCAKE_REPLICA_GONE)
        kvi_mooncake_mark_dead(mooncake, get->key);
    get->result = kvi_mooncake_error(result == 0 ? KVI_MOONCAKE_NOT_FOUND : result);
    if (get->result != KVG_ENOENT)
        kvi_mooncake_fail(error, result, "get", get->key);
}

/* A value larger than its ranges let expect, alone in the lane. */
static void read_whole(struct mooncake *mooncake, struct kvg_store_get *get,
    const char *key, struct lane *lane, struct kvg_error *error)
{
    int64_t bytes = mooncake->library.get_size(mooncake->handle, key);

    if (bytes > (int64_t)mooncake->lane_bytes)
        bytes = KVI_MOONCAKE_BAD_PARAMETER;
    else if (bytes > 0 && get->range_count != 0)
        bytes = mooncake->library.get_into(
            mooncake->handle, key, lane->memory, mooncake->lane_bytes);
    take_value(mooncake, get, bytes, lane->memory, error);
}

static void read_batch(struct mooncake *mooncake, struct kvg_store_get *gets,
    struct batch *batch, struct lane *lane, struct kvg_error *error)
{
    int code;
    size_t i;

    if (batch->count == 0)
        return;
    code = mooncake->library.batch_get_into(mooncake->handle, batch->keys, batch->buffers,
        batch->sizes, batch->count, batch->results);
    for (i = 0; code != 0 && i < batch->count; i++)
        batch->results[i] = code;
    for (i = 0; i < batch->count; i++) {
        if (batch->results[i] != KVI_MOONCAKE_BAD_PARAMETER)
            take_value(mooncake, &gets[batch->which[i]], batch->results[i],
                batch->buffers[i], error);
    }
    for (i = 0; i < batch->count; i++) {
        if (batch->results[i] == KVI_MOONCAKE_BAD_PARAMETER)
            read_whole(mooncake, &gets[batch->which[i]], batch->keys[i], lane, error);
    }
    batch->count = 0;
}

kvg_err kvi_mooncake_get(
    void *self, struct kvg_store_get *gets, size_t get_count, struct kvg_error *error)
{
    struct mooncake *mooncake = self;
    struct batch *batch = kvi_mooncake_batch_new(mooncake);
    struct lane *lane = batch == NULL ? NULL : kvi_mooncake_lane_take(mooncake);
    size_t used = 0;
    size_t i;

    if (lane == NULL) {
        if (batch != NULL)
            KVI_FREE(mooncake->alloc, batch);
        return kvi_fail(error, KVG_ENOMEM, "store.mooncake", "no registered memory");
    }
    for (i = 0; i < get_count; i++) {
        size_t bytes = expected_bytes(&gets[i]);

        if (kvi_mooncake_known_absent(mooncake, gets[i].key)) {
            gets[i].result = KVG_ENOENT;
            continue;
        }
        if (batch->count == KVI_MOONCAKE_CHUNK_KEYS ||
            bytes > mooncake->lane_bytes - used) {
            read_batch(mooncake, gets, batch, lane, error);
            used = 0;
        }
        if (bytes == 0)
            bytes = 1; /* Only the size is wanted: refused, and then asked for. */
        if (bytes > mooncake->lane_bytes - used) {
            read_batch(mooncake, gets, batch, lane, error);
            used = 0;
        }
        batch->buffers[batch->count] = lane->memory + used;
        batch->sizes[batch->count] = bytes;
        kvi_mooncake_batch_add(batch, gets[i].key, i);
        used += bytes;
    }
    read_batch(mooncake, gets, batch, lane, error);
    kvi_mooncake_lane_give(mooncake, lane);
    KVI_FREE(mooncake->alloc, batch);
    return KVG_OK;
}

/* The rest ---------------------------------------------------------------------------------- */

static kvg_err mooncake_remove(void *self, const struct kvg_str *keys, size_t key_count,
    kvg_err *results, struct kvg_error *error)
{
    struct mooncake *mooncake = self;
    char text[KVI_MOONCAKE_TEXT_MAX];
    size_t i;

    for (i = 0; i < key_count; i++) {
        int code;

        kvi_mooncake_key_text(keys[i], text);
        code = mooncake->library.remove(mooncake->handle, text, 1);
        results[i] = kvi_mooncake_error(code);
        if (results[i] != KVG_OK && results[i] != KVG_ENOENT)
            kvi_mooncake_fail(error, code, "remove", keys[i]);
    }
    return KVG_OK;
}

static kvg_err mooncake_clear(void *self, struct kvg_error *error)
{
    struct mooncake *mooncake = self;
    int64_t removed = mooncake->library.remove_all(mooncake->handle, 1);

    return removed < 0 ? kvi_mooncake_fail(error, removed, "clear", kvi_str("")) : KVG_OK;
}

static void mooncake_close(void *self)
{
    struct mooncake *mooncake = self;
    size_t i;

    for (i = 0; i < KVI_MOONCAKE_LANES; i++) {
        if (mooncake->lanes[i].memory == NULL)
            continue;
        mooncake->library.unregister_buffer(mooncake->handle, mooncake->lanes[i].memory);
        kvi_release_array(
            mooncake->alloc, mooncake->lanes[i].memory, mooncake->lane_bytes, 1);
    }
    if (mooncake->handle != NULL)
        mooncake->library.destroy(mooncake->handle);
    kvi_mooncake_unload(&mooncake->library);
    pthread_cond_destroy(&mooncake->lane_free);
    pthread_mutex_destroy(&mooncake->lock);
    KVI_FREE(mooncake->alloc, mooncake);
}

static const char *text_or(
    const struct kvg_store_url *url, const char *name, const char *otherwise)
{
    struct kvg_str text = kvg_store_param(url, name);

    return text.data == NULL ? otherwise : text.data; /* Each ends with a zero. */
}

static kvg_err connect_to_master(struct mooncake *mooncake,
    const struct kvg_store_url *url, uint64_t segment_bytes, uint64_t buffer_bytes,
    struct kvg_error *error)
{
    const char *master =
        url->authority.data == NULL ? "127.0.0.1:50051" : url->authority.data;
    char message[192];
    int code;

    mooncake->handle = mooncake->library.create();
    if (mooncake->handle == NULL)
        return kvi_fail(
            error, KVG_ENOMEM, "store.mooncake", "the library made no handle");
    code =
        mooncake->library.setup(mooncake->handle, text_or(url, "hostname", "127.0.0.1"),
            text_or(url, "metadata", "P2PHANDSHAKE"), segment_bytes, buffer_bytes,
            text_or(url, "protocol", "tcp"), text_or(url, "device", ""), master);
    if (code == 0)
        return KVG_OK;
    snprintf(message, sizeof(message),
        "cannot join the store of master %.80s (%d): is it running, and are hostname, "
        "metadata and protocol right?",
        master, code);
    return kvi_fail(error, KVG_EIO, "store.mooncake", message);
}

static kvg_err read_parameters(struct mooncake *mooncake, const struct kvg_store_url *url,
    uint64_t *segment_bytes, uint64_t *buffer_bytes, struct kvg_error *error)
{
    uint64_t lane = KVG_STORE_VALUE_MAX;
    uint64_t replicas = 0;
    kvg_err err;

    mooncake->dead_for_ms = 10000; /* The master takes so long to notice. */
    err =
        kvg_store_param_bytes(url, "segment", 0, UINT64_C(1) << 50, segment_bytes, error);
    if (err == KVG_OK)
        err = kvg_store_param_bytes(
            url, "buffer", 1u << 20, UINT64_C(1) << 40, buffer_bytes, error);
    if (err == KVG_OK)
        err = kvg_store_param_bytes(
            url, "staging", KVG_STORE_VALUE_MAX, UINT64_C(1) << 30, &lane, error);
    if (err == KVG_OK)
        err = kvg_store_param_u64(url, "replicas", 1, 64, &replicas, error);
    if (err == KVG_OK)
        err =
            kvg_store_param_ms(url, "dead_for", 0, 600000, &mooncake->dead_for_ms, error);
    mooncake->lane_bytes = (size_t)lane;
    mooncake->with_config = replicas != 0;
    mooncake->config.replica_count = (size_t)replicas;
    return err;
}

static kvg_err mooncake_open(const struct kvg_store_url *url,
    const struct kvg_store_options *options, void **out, uint32_t *flags_out,
    struct kvg_error *error)
{
    struct mooncake *mooncake = KVI_NEW(options->alloc, struct mooncake);
    uint64_t segment_bytes = 0;
    uint64_t buffer_bytes = KVG_STORE_VALUE_MAX;
    kvg_err err;

    (void)flags_out;
    if (mooncake == NULL)
        return kvi_fail(error, KVG_ENOMEM, "store", "no memory for a store");
    mooncake->alloc = options->alloc;
    mooncake->absent = options->absent;
    pthread_mutex_init(&mooncake->lock, NULL);
    pthread_cond_init(&mooncake->lane_free, NULL);
    err = read_parameters(mooncake, url, &segment_bytes, &buffer_bytes, error);
    if (err == KVG_OK)
        err = kvi_mooncake_load(text_or(url, "library", NULL), &mooncake->library, error);
    if (err == KVG_OK)
        err = connect_to_master(mooncake, url, segment_bytes, buffer_bytes, error);
    if (err != KVG_OK) {
        mooncake_close(mooncake);
        return err;
    }
    *out = mooncake;
    return KVG_OK;
}

static const char *const PARAMETERS[] = {"library", "hostname", "metadata", "protocol",
    "device", "segment", "buffer", "staging", "replicas", "dead_for", NULL};

const struct kvg_store_backend kvi_store_mooncake = {
    .struct_bytes = sizeof(struct kvg_store_backend),
    .version = KVG_STORE_BACKEND_VERSION,
    .flags = KVG_STORE_SHARED | KVG_STORE_REMOVES,
    .scheme = "mooncake",
    .summary =
        "mooncake://MASTER:PORT  Mooncake's distributed store, through its C library",
    .parameters = PARAMETERS,
    .open = mooncake_open,
    .close = mooncake_close,
    .exists = mooncake_exists,
    .put = kvi_mooncake_put,
    .get = kvi_mooncake_get,
    .remove = mooncake_remove,
    .clear = mooncake_clear,
};
