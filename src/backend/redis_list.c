/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* redis_list.c -- lists what the servers have, one after the other, and checks it.
 *
 * Objects are listed by the sequence of the change that stored them.  What comes while a listing is
 * under way has a higher one, so nothing is missed and the cursor stays good however long it rests.
 * */
#include "backend/redis.h"

#include "base/alloc.h"
#include "base/fmt.h"

#include <stdio.h>
#include <string.h>

/* Listing ------------------------------------------------------------------------------------- */

/* The cursor's words: the server, and the sequence of the last item listed of it. */
struct listing {
    struct redis *redis;
    struct kvg_store_cursor *cursor;
    bool (*visit)(void *context, const struct kvg_store_item *item);
    void *context;
    size_t wanted, found;
    bool stopped;
};

static bool use_listing(void *context, const redisReply *reply)
{
    struct listing *listing = context;
    const redisReply *rows = kvi_redis_element(reply, 2);
    size_t i;

    if (listing->cursor->epoch == 0) {
        listing->cursor->epoch = listing->redis->hook.changed != NULL
                                     ? listing->redis->epoch
                                     : kvi_redis_number(kvi_redis_element(reply, 0));
        listing->cursor->sequence = kvi_redis_number(kvi_redis_element(reply, 1));
        if (listing->cursor->sequence >= listing->redis->epoch_base)
            listing->cursor->sequence -= listing->redis->epoch_base;
    }
    for (i = 0; rows != NULL && i < rows->elements && !listing->stopped; i++) {
        struct kvg_store_item item = {
            .struct_bytes = sizeof(item), .medium = KVG_MEDIUM_EXTERNAL};

        item.key = kvi_redis_text(kvi_redis_element(rows->element[i], 0));
        item.bytes = kvi_redis_number(kvi_redis_element(rows->element[i], 1));
        item.group_id = kvi_redis_text(kvi_redis_element(rows->element[i], 2));
        if (item.group_id.bytes == 0)
            item.group_id = (struct kvg_str){NULL, 0};
        listing->cursor->words[1] =
            kvi_redis_number(kvi_redis_element(rows->element[i], 3));
        listing->found++;
        listing->stopped = !listing->visit(listing->context, &item);
    }
    return true;
}

static kvg_err list_some(struct redis *redis, struct listing *listing,
    struct kvi_redis_pipe *pipe, struct kvg_error *error)
{
    uint32_t server = (uint32_t)listing->cursor->words[0];
    size_t wanted = listing->wanted - listing->found;
    size_t before = listing->found;
    kvg_err err;

    if (wanted > 1000)
        wanted = 1000;
    kvi_redis_pipe_clear(pipe);
    kvi_redis_script_call(redis, pipe, server, KVI_REDIS_LIST, 2);
    kvi_redis_arg_u64(pipe, listing->cursor->words[1]);
    kvi_redis_arg_u64(pipe, wanted);
    err = kvi_redis_run_single(redis, server, pipe, "list", use_listing, listing, error);
    if (err != KVG_OK || listing->stopped || listing->found - before == wanted)
        return err;
    listing->cursor->words[0]++;
    listing->cursor->words[1] = 0;
    listing->cursor->done = listing->cursor->words[0] == redis->server_count;
    return KVG_OK;
}

kvg_err kvi_redis_list(void *self, struct kvg_store_cursor *cursor, size_t item_max,
    bool (*visit)(void *context, const struct kvg_store_item *item), void *context,
    struct kvg_error *error)
{
    struct redis *redis = self;
    struct listing listing = {redis, cursor, visit, context, item_max, 0, false};
    struct kvi_redis_pipe pipe;
    kvg_err err = KVG_OK;

    if (cursor->words[0] >= redis->server_count)
        return kvi_fail(error, KVG_EINVAL, "store.cursor", "not a cursor of this store");
    kvi_redis_poll_quietly(
        redis); /* So that what the hook heard and what is listed fit. */
    kvi_redis_pipe_init(&pipe, redis->alloc);
    while (err == KVG_OK && !cursor->done && !listing.stopped &&
           listing.found < listing.wanted)
        err = list_some(redis, &listing, &pipe, error);
    kvi_redis_pipe_fini(&pipe);
    return err;
}
/* Checking ------------------------------------------------------------------------------------ */

struct checking {
    struct redis *redis;
    struct kvi_redis_pipe pipe;
    size_t count;
    bool repair;
    void (*say)(void *context, const char *line);
    void *context;
    struct kvg_store_report *report;
    char keys[KVI_REDIS_KEYS_OF_A_SCRIPT][KVG_STORE_KEY_MAX];
    size_t bytes[KVI_REDIS_KEYS_OF_A_SCRIPT];
};

static bool note_item(void *context, const struct kvg_store_item *item)
{
    struct checking *checking = context;

    memcpy(checking->keys[checking->count], item->key.data, item->key.bytes);
    checking->bytes[checking->count++] = item->key.bytes;
    checking->report->objects++;
    checking->report->bytes += item->bytes;
    return true;
}

static bool use_bad(void *context, const redisReply *reply)
{
    struct checking *checking = context;
    size_t i;

    for (i = 0; i < reply->elements; i++) {
        char line[KVG_STORE_KEY_MAX + 64];
        struct kvg_str key = kvi_redis_text(reply->element[i]);

        checking->report->damaged++;
        checking->report->problems++;
        checking->report->dropped += checking->repair;
        snprintf(line, sizeof(line), "%.*s: the server has no such value, or another one",
            (int)key.bytes, key.data);
        if (checking->say != NULL)
            checking->say(checking->context, line);
    }
    return true;
}

kvg_err kvi_redis_check(void *self, bool repair,
    void (*say)(void *context, const char *line), void *context,
    struct kvg_store_report *out, struct kvg_error *error)
{
    struct redis *redis = self;
    struct kvg_store_cursor cursor = {0};
    struct checking *checking = KVI_NEW(redis->alloc, struct checking);
    kvg_err err = KVG_OK;

    if (checking == NULL)
        return kvi_redis_no_memory(error);
    checking->redis = redis;
    checking->repair = repair;
    checking->say = say;
    checking->context = context;
    checking->report = out;
    kvi_redis_pipe_init(&checking->pipe, redis->alloc);
    while (err == KVG_OK && !cursor.done) {
        uint32_t server = (uint32_t)cursor.words[0];
        struct listing listing = {
            redis, &cursor, note_item, checking, KVI_REDIS_KEYS_OF_A_SCRIPT, 0, false};
        size_t i;

        checking->count = 0;
        err = list_some(redis, &listing, &checking->pipe, error);
        if (err != KVG_OK || checking->count == 0)
            continue;
        kvi_redis_pipe_clear(&checking->pipe);
        kvi_redis_script_call(
            redis, &checking->pipe, server, KVI_REDIS_VERIFY, 1 + checking->count);
        kvi_redis_arg_text(&checking->pipe, repair ? "1" : "0");
        for (i = 0; i < checking->count; i++)
            kvi_redis_arg(&checking->pipe, checking->keys[i], checking->bytes[i]);
        err = kvi_redis_run_single(
            redis, server, &checking->pipe, "check", use_bad, checking, error);
    }
    kvi_redis_pipe_fini(&checking->pipe);
    KVI_FREE(redis->alloc, checking);
    kvi_redis_poll_quietly(redis);
    return err;
}
