/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* redis_io.c -- asking, writing, reading, removing.
 *
 *     call --> keys shared out over servers --> a pipe each --> replies --> results
 *
 * Each pipe may be sent twice (redis_server.c), so whatever takes a reply only sets results.
 *
 * Invariant: a result is set from a reply to the attempt that succeeded, or is the call's failure.
 * */
#include "backend/redis.h"

#include "base/alloc.h"
#include "base/fmt.h"
#include "store/store.h"

#include <string.h>

#define PIPE_BYTES_MAX (UINT64_C(128) << 20) /* Of values in one pipe. */

/* Sharing work out over servers --------------------------------------------------------------- */

/* What one pipe was made of: the caller's numbers, in the order of the replies. */
struct share {
    struct redis *redis;
    uint32_t server;
    struct kvi_redis_pipe pipe;
    uint32_t *which;
    size_t count, room;
    struct kvg_error *error;
    kvg_err failure; /* The first error reply that is nobody's own. */
    uint8_t *present;
    struct kvg_store_group *groups;
    struct kvg_store_get *gets;
    kvg_err *results;
};

static bool share_init(
    struct share *share, struct redis *redis, size_t room, struct kvg_error *error)
{
    *share = (struct share){.redis = redis, .room = room, .error = error};
    kvi_redis_pipe_init(&share->pipe, redis->alloc);
    share->which = kvi_alloc_array(redis->alloc, room, sizeof(*share->which));
    return share->which != NULL;
}

static void share_fini(struct share *share)
{
    kvi_redis_pipe_fini(&share->pipe);
    kvi_release_array(
        share->redis->alloc, share->which, share->room, sizeof(*share->which));
}

static kvg_err share_run(struct share *share,
    bool (*take)(void *context, size_t index, const redisReply *reply))
{
    kvg_err err;

    share->failure = KVG_OK;
    err = kvi_redis_run(
        &share->redis->servers[share->server], &share->pipe, take, share, share->error);
    kvi_redis_pipe_clear(&share->pipe);
    return err != KVG_OK ? err : share->failure;
}
/* Asking -------------------------------------------------------------------------------------- */

#define EXISTS_RUN 16u /* Keys of one question. */
#define MIXED 2u       /* Of a run of which some are there. */

/* Of a run the server says how many are there. */
static bool take_run(void *context, size_t index, const redisReply *reply)
{
    struct share *share = context;
    size_t first = index * EXISTS_RUN;
    size_t left = share->count - first;
    size_t keys = left < EXISTS_RUN ? left : EXISTS_RUN;
    size_t i;

    if (reply->type != REDIS_REPLY_INTEGER)
        share->failure = kvi_redis_fail(
            &share->redis->servers[share->server], "exists", reply, share->error);
    for (i = 0; i < keys; i++)
        share->present[share->which[first + i]] =
            reply->type != REDIS_REPLY_INTEGER || reply->integer == 0 ? 0
            : (size_t)reply->integer == keys                          ? 1
                                                                      : MIXED;
    return true;
}

static bool take_exists(void *context, size_t index, const redisReply *reply)
{
    struct share *share = context;

    share->present[share->which[index]] =
        reply->type == REDIS_REPLY_INTEGER && reply->integer != 0;
    if (reply->type != REDIS_REPLY_INTEGER)
        share->failure = kvi_redis_fail(
            &share->redis->servers[share->server], "exists", reply, share->error);
    return true;
}

/* Asks a server for its keys a run at a time; then, one by one, for those of runs of which some are
 * there.  A prompt's keys are there up to some point, so that is one run. */
static kvg_err ask_server(
    struct share *share, const struct kvg_str *keys, size_t key_count)
{
    size_t i;
    kvg_err err;

    share->count = 0;
    for (i = 0; i < key_count; i++) {
        if (kvi_redis_server_of(share->redis, keys[i]) == share->server)
            share->which[share->count++] = (uint32_t)i;
    }
    for (i = 0; i < share->count; i++) {
        size_t left = share->count - i;

        if (i % EXISTS_RUN == 0) {
            kvi_redis_command(&share->pipe, 1 + (left < EXISTS_RUN ? left : EXISTS_RUN));
            kvi_redis_arg_text(&share->pipe, "EXISTS");
        }
        kvi_redis_arg_value_key(&share->pipe, share->redis, keys[share->which[i]]);
    }
    err = share_run(share, take_run);
    share->count = 0;
    for (i = 0; i < key_count && err == KVG_OK; i++) {
        if (share->present[i] != MIXED)
            continue;
        kvi_redis_command(&share->pipe, 2);
        kvi_redis_arg_text(&share->pipe, "EXISTS");
        kvi_redis_arg_value_key(&share->pipe, share->redis, keys[i]);
        share->which[share->count++] = (uint32_t)i;
    }
    if (err == KVG_OK && share->count > 0)
        err = share_run(share, take_exists);
    return err;
}

kvg_err kvi_redis_exists(void *self, const struct kvg_str *keys, size_t key_count,
    bool stop_at_gap, uint8_t *present, struct kvg_error *error)
{
    struct redis *redis = self;
    struct share share;
    kvg_err err = KVG_OK;
    size_t i;

    (void)stop_at_gap; /* One round trip is the same for few and for many. */
    if (!share_init(&share, redis, key_count, error))
        return kvi_redis_no_memory(error);
    share.present = present;
    for (; share.server < redis->server_count && err == KVG_OK; share.server++)
        err = ask_server(&share, keys, key_count);
    for (i = 0; i < key_count; i++) {
        if (present[i] == MIXED)
            present[i] = 0; /* The second question failed. */
    }
    share_fini(&share);
    return err;
}
/* Writing ------------------------------------------------------------------------------------- */

static void count(_Atomic uint64_t *counter, uint64_t by)
{
    atomic_fetch_add_explicit(counter, by, memory_order_relaxed);
}

static void count_put(
    struct redis *redis, struct kvg_store_group *group, const redisReply *reply)
{
    uint64_t written = kvi_redis_number(kvi_redis_element(reply, 0));

    group->result = written == 0 ? KVG_EEXIST : KVG_OK;
    count(&redis->counted.put_parts, written);
    count(&redis->counted.put_bytes, kvi_redis_number(kvi_redis_element(reply, 1)));
    count(&redis->counted.put_present, group->part_count - written);
    count(&redis->counted.evicted_objects, kvi_redis_number(kvi_redis_element(reply, 2)));
    count(&redis->counted.evicted_bytes, kvi_redis_number(kvi_redis_element(reply, 3)));
}

static bool take_put(void *context, size_t index, const redisReply *reply)
{
    struct share *share = context;
    struct kvg_store_group *group = &share->groups[share->which[index]];

    if (reply->type == REDIS_REPLY_ARRAY)
        count_put(share->redis, group, reply);
    else
        group->result = kvi_redis_fail(
            &share->redis->servers[share->server], "put", reply, share->error);
    return true;
}

static void add_put(struct share *share, const struct kvg_store_group *group)
{
    struct kvi_redis_pipe *pipe = &share->pipe;
    size_t i;
    size_t k;

    kvi_redis_script_call(
        share->redis, pipe, share->server, KVI_REDIS_PUT, 4 + 2 * group->part_count);
    kvi_redis_arg_u64(pipe, share->redis->budget);
    kvi_redis_arg(pipe, group->id.bytes == 0 ? "" : group->id.data, group->id.bytes);
    kvi_redis_arg(pipe, group->previous.bytes == 0 ? "" : group->previous.data,
        group->previous.bytes);
    kvi_redis_arg_u64(pipe, group->part_count);
    for (i = 0; i < group->part_count; i++) {
        const struct kvg_store_part *part = &group->parts[i];

        kvi_redis_arg(pipe, part->key.data, part->key.bytes);
        kvi_redis_arg_begin(pipe, kvi_store_part_bytes(part));
        for (k = 0; k < part->piece_count; k++)
            kvi_redis_arg_piece(pipe, part->pieces[k].data, part->pieces[k].bytes);
        kvi_redis_arg_end(pipe);
    }
}

static kvg_err send_puts(struct share *share)
{
    kvg_err err = share_run(share, take_put);
    size_t i;

    for (i = 0; err != KVG_OK && i < share->count; i++)
        share->groups[share->which[i]].result = err;
    share->count = 0;
    return err;
}

static bool on_one_server(const struct redis *redis, const struct kvg_store_group *group)
{
    uint32_t server = kvi_redis_server_of(redis, group->parts[0].key);
    size_t i;

    for (i = 1; redis->server_count > 1 && i < group->part_count; i++) {
        if (kvi_redis_server_of(redis, group->parts[i].key) != server)
            return false;
    }
    return true;
}

static void put_on_server(struct share *share, size_t group_count)
{
    kvg_err err = KVG_OK;
    size_t i;

    for (i = 0; i < group_count; i++) {
        struct kvg_store_group *group = &share->groups[i];

        if (kvi_redis_server_of(share->redis, group->parts[0].key) != share->server)
            continue;
        if (!on_one_server(share->redis, group)) {
            group->result = kvi_fail(share->error, KVG_EINVAL, "store.group.parts",
                "parts of a page must share its key, or a {tag}, to be on one server");
            continue;
        }
        if (err != KVG_OK) {
            group->result = err; /* The server broke off: later pages come after. */
            continue;
        }
        add_put(share, group);
        share->which[share->count++] = (uint32_t)i;
        if (share->pipe.bytes >= PIPE_BYTES_MAX)
            err = send_puts(share);
    }
    if (share->count != 0)
        (void)(send_puts(share) == KVG_OK); /* The results have it. */
}

kvg_err kvi_redis_put(void *self, struct kvg_store_group *groups, size_t group_count,
    struct kvg_error *error)
{
    struct redis *redis = self;
    struct share share;

    if (!share_init(&share, redis, group_count, error))
        return kvi_redis_no_memory(error);
    share.groups = groups;
    for (share.server = 0; share.server < redis->server_count; share.server++)
        put_on_server(&share, group_count);
    share_fini(&share);
    kvi_redis_poll_quietly(redis);
    return KVG_OK;
}
/* Reading ------------------------------------------------------------------------------------- */

/* Replies come as: STRLEN, then each range, key after key. */
struct reading {
    struct share share;
    size_t at;    /* Which of share.which. */
    size_t range; /* 0: its STRLEN comes next; else the range before comes. */
    size_t next_index;
};

static void take_length(struct kvg_store_get *get, const redisReply *reply)
{
    get->value_bytes = kvi_redis_number(reply);
    get->result = KVG_OK;
    if (get->value_bytes == 0)
        get->result = KVG_ENOENT;
    else if (!kvi_store_ranges_fit(get, get->value_bytes))
        get->result = KVG_EINVAL;
}

static void take_range(struct kvg_store_get *get, const struct kvg_store_range *range,
    const redisReply *reply)
{
    if (get->result != KVG_OK)
        return;
    if (reply->type != REDIS_REPLY_STRING || (size_t)reply->len != range->bytes) {
        get->result = KVG_ENOENT; /* It went between the two questions. */
        return;
    }
    memcpy(range->memory, reply->str, range->bytes);
}

static bool take_get(void *context, size_t index, const redisReply *reply)
{
    struct reading *reading = context;
    struct share *share = &reading->share;
    struct kvg_store_get *get;

    if (index == 0) {
        reading->at = 0; /* Also when everything is sent again. */
        reading->range = 0;
    }
    get = &share->gets[share->which[reading->at]];
    if (reply->type == REDIS_REPLY_ERROR)
        get->result = kvi_redis_fail(
            &share->redis->servers[share->server], "get", reply, share->error);
    else if (reading->range == 0)
        take_length(get, reply);
    else
        take_range(get, &get->ranges[reading->range - 1], reply);
    do
        reading->range++; /* Empty ranges were not asked for. */
    while (
        reading->range <= get->range_count && get->ranges[reading->range - 1].bytes == 0);
    if (reading->range > get->range_count) {
        reading->range = 0;
        reading->at++;
    }
    return true;
}

static uint64_t add_get(struct share *share, const struct kvg_store_get *get)
{
    uint64_t bytes = 0;
    size_t i;

    kvi_redis_command(&share->pipe, 2);
    kvi_redis_arg_text(&share->pipe, "STRLEN");
    kvi_redis_arg_value_key(&share->pipe, share->redis, get->key);
    for (i = 0; i < get->range_count; i++) {
        const struct kvg_store_range *range = &get->ranges[i];

        if (range->bytes == 0)
            continue;
        kvi_redis_command(&share->pipe, 4);
        kvi_redis_arg_text(&share->pipe, "GETRANGE");
        kvi_redis_arg_value_key(&share->pipe, share->redis, get->key);
        kvi_redis_arg_u64(&share->pipe,
            range->offset > KVG_STORE_VALUE_MAX ? KVG_STORE_VALUE_MAX : range->offset);
        kvi_redis_arg_u64(&share->pipe,
            (range->offset > KVG_STORE_VALUE_MAX ? KVG_STORE_VALUE_MAX : range->offset) +
                range->bytes - 1);
        bytes += range->bytes;
    }
    return bytes;
}

/* What was read, or missed although the books have it, is noted. */
static void add_touch(struct share *share)
{
    size_t done;
    size_t i;

    for (done = share->count; !share->redis->read_only && done > 0;) {
        size_t count =
            done < KVI_REDIS_KEYS_OF_A_SCRIPT ? done : KVI_REDIS_KEYS_OF_A_SCRIPT;

        done -= count;
        kvi_redis_script_call(
            share->redis, &share->pipe, share->server, KVI_REDIS_TOUCH, count);
        for (i = 0; i < count; i++) {
            struct kvg_str key = share->gets[share->which[done + i]].key;

            kvi_redis_arg(&share->pipe, key.data, key.bytes);
        }
    }
}

static bool take_nothing(void *context, size_t index, const redisReply *reply)
{
    (void)context;
    (void)index;
    (void)reply;
    return true;
}

static kvg_err send_gets(struct reading *reading)
{
    struct share *share = &reading->share;
    kvg_err err;
    size_t i;

    share->failure = KVG_OK;
    err = kvi_redis_run(&share->redis->servers[share->server], &share->pipe, take_get,
        reading, share->error);
    kvi_redis_pipe_clear(&share->pipe);
    for (i = 0; err != KVG_OK && i < share->count; i++)
        share->gets[share->which[i]].result = err;
    if (err == KVG_OK) {
        struct kvg_error ignored;

        add_touch(share);
        (void)(kvi_redis_run(&share->redis->servers[share->server], &share->pipe,
                   take_nothing, NULL, &ignored) == KVG_OK); /* A hint, no promise. */
        kvi_redis_pipe_clear(&share->pipe);
    }
    share->count = 0;
    return err;
}

kvg_err kvi_redis_get(
    void *self, struct kvg_store_get *gets, size_t get_count, struct kvg_error *error)
{
    struct redis *redis = self;
    struct reading reading = {.at = 0};
    struct share *share = &reading.share;
    size_t i;

    if (!share_init(share, redis, get_count, error))
        return kvi_redis_no_memory(error);
    share->gets = gets;
    for (share->server = 0; share->server < redis->server_count; share->server++) {
        uint64_t bytes = 0;
        kvg_err err = KVG_OK;

        for (i = 0; i < get_count; i++) {
            if (kvi_redis_server_of(redis, gets[i].key) != share->server)
                continue;
            if (err != KVG_OK) {
                gets[i].result = err;
                continue;
            }
            bytes += add_get(share, &gets[i]);
            share->which[share->count++] = (uint32_t)i;
            if (bytes < PIPE_BYTES_MAX)
                continue;
            err = send_gets(&reading);
            bytes = 0;
        }
        if (share->count != 0)
            (void)(send_gets(&reading) == KVG_OK);
    }
    share_fini(share);
    return KVG_OK;
}
/* Removing ------------------------------------------------------------------------------------ */

static bool take_removed(void *context, size_t index, const redisReply *reply)
{
    struct share *share = context;
    size_t i;

    for (i = index * KVI_REDIS_KEYS_OF_A_SCRIPT;
         i < (index + 1) * KVI_REDIS_KEYS_OF_A_SCRIPT && i < share->count; i++) {
        kvg_err *result = &share->results[share->which[i]];

        if (reply->type == REDIS_REPLY_ERROR)
            *result = kvi_redis_fail(
                &share->redis->servers[share->server], "remove", reply, share->error);
        else
            *result = kvi_redis_number(
                          kvi_redis_element(reply, i % KVI_REDIS_KEYS_OF_A_SCRIPT)) != 0
                          ? KVG_OK
                          : KVG_ENOENT;
    }
    return true;
}

static void add_removals(struct share *share, const struct kvg_str *keys)
{
    size_t done;
    size_t i;

    for (done = 0; done < share->count; done += KVI_REDIS_KEYS_OF_A_SCRIPT) {
        size_t count = share->count - done;

        if (count > KVI_REDIS_KEYS_OF_A_SCRIPT)
            count = KVI_REDIS_KEYS_OF_A_SCRIPT;
        kvi_redis_script_call(
            share->redis, &share->pipe, share->server, KVI_REDIS_REMOVE, count + 1);
        kvi_redis_arg_text(&share->pipe, "R");
        for (i = 0; i < count; i++)
            kvi_redis_arg(&share->pipe, keys[share->which[done + i]].data,
                keys[share->which[done + i]].bytes);
    }
}

kvg_err kvi_redis_remove(void *self, const struct kvg_str *keys, size_t key_count,
    kvg_err *results, struct kvg_error *error)
{
    struct redis *redis = self;
    struct share share;
    size_t i;

    if (!share_init(&share, redis, key_count, error))
        return kvi_redis_no_memory(error);
    share.results = results;
    for (share.server = 0; share.server < redis->server_count; share.server++) {
        kvg_err err;

        share.count = 0;
        for (i = 0; i < key_count; i++) {
            if (kvi_redis_server_of(redis, keys[i]) == share.server)
                share.which[share.count++] = (uint32_t)i;
        }
        add_removals(&share, keys);
        err = share_run(&share, take_removed);
        for (i = 0; err != KVG_OK && i < share.count; i++)
            results[share.which[i]] = err;
    }
    share_fini(&share);
    kvi_redis_poll_quietly(redis);
    return KVG_OK;
}

kvg_err kvi_redis_clear(void *self, struct kvg_error *error)
{
    struct redis *redis = self;
    struct kvi_redis_pipe pipe;
    kvg_err err = KVG_OK;
    uint32_t server;

    kvi_redis_pipe_init(&pipe, redis->alloc);
    for (server = 0; server < redis->server_count && err == KVG_OK; server++) {
        kvi_redis_pipe_clear(&pipe);
        kvi_redis_script_call(redis, &pipe, server, KVI_REDIS_CLEAR, 1);
        pthread_mutex_lock(&redis->follow_lock);
        kvi_redis_arg_u64(&pipe, kvi_redis_random_epoch(redis));
        pthread_mutex_unlock(&redis->follow_lock);
        err = kvi_redis_run_single(redis, server, &pipe, "clear", NULL, NULL, error);
    }
    kvi_redis_pipe_fini(&pipe);
    if (err == KVG_OK)
        kvi_redis_poll_quietly(redis);
    return err;
}
