/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* redis_follow.c -- hears what all processes did: the server's stream of changes, told to the hook.
 *
 * The stream is written by the scripts that make the changes, so it has their order, and its ids
 * are their sequences.  When a sequence is missing, the stream was cut shorter than we were behind:
 * then the numbering is given up, and whoever listens sees another epoch and lists again. */
#include "backend/redis.h"

#include "base/fmt.h"
#include "base/rng.h"

#include <stdio.h>

#define CHANGES_AT_ONCE 1000u

/* Following --------------------------------------------------------------------------------- */

/* What one look at the stream brought. */
struct look {
    struct redis *redis;
    uint64_t epoch, sequence; /* The server's. */
    size_t taken;
    bool new_epoch;
};

static void tell(struct redis *redis, enum kvg_store_change_kind kind, uint64_t sequence,
    const redisReply *fields)
{
    struct kvg_store_change change = {.struct_bytes = sizeof(change),
        .kind = kind,
        .medium = KVG_MEDIUM_EXTERNAL,
        .epoch = redis->epoch,
        .sequence = sequence - redis->epoch_base};

    change.key = kvi_redis_text(kvi_redis_element(fields, 3));
    change.bytes = kvi_redis_number(kvi_redis_element(fields, 5));
    change.group_id = kvi_redis_text(kvi_redis_element(fields, 7));
    if (change.group_id.bytes == 0)
        change.group_id = (struct kvg_str){NULL, 0};
    if (kind == KVG_STORE_CLEARED)
        change.key = (struct kvg_str){NULL, 0};
    redis->hook.changed(redis->hook.context, &change);
}

static enum kvg_store_change_kind kind_of(const redisReply *reply)
{
    switch (kvi_redis_text(reply).data[0]) {
    case 'S':
        return KVG_STORE_STORED;
    case 'E':
        return KVG_STORE_EVICTED;
    case 'L':
        return KVG_STORE_LOST;
    case 'C':
        return KVG_STORE_CLEARED;
    default:
        return KVG_STORE_REMOVED;
    }
}

/* Changes were missed: the stream was trimmed.  Nothing more can be said in this numbering. */
static void begin_other_epoch(struct redis *redis, uint64_t epoch, uint64_t sequence)
{
    redis->epoch = epoch;
    redis->epoch_base = sequence;
    redis->told = sequence;
}

static bool take_look(void *context, size_t index, const redisReply *reply)
{
    struct look *look = context;
    struct redis *redis = look->redis;
    const redisReply *entries;
    size_t i;

    if (reply->type == REDIS_REPLY_ERROR)
        return false;
    if (index == 0) {
        look->taken = 0;
        look->epoch = kvi_redis_number(kvi_redis_element(reply, 0));
        look->sequence = kvi_redis_number(kvi_redis_element(reply, 1));
        look->new_epoch =
            look->epoch != 0 && look->epoch != redis->epoch && redis->epoch_base == 0;
        return true;
    }
    entries = kvi_redis_element(kvi_redis_element(reply, 0), 1);
    for (i = 0; entries != NULL && i < entries->elements; i++) {
        const redisReply *fields = kvi_redis_element(entries->element[i], 1);
        uint64_t sequence = kvi_redis_number(kvi_redis_element(entries->element[i], 0));

        if (sequence <= redis->told)
            continue;
        if (sequence != redis->told + 1)
            begin_other_epoch(
                redis, kvi_mix64(redis->epoch + sequence) | 1, sequence - 1);
        redis->told = sequence;
        look->taken++;
        if (fields != NULL && fields->elements >= 8)
            tell(redis, kind_of(fields->element[1]), sequence, fields);
    }
    return true;
}

/* XREAD needs no script: a follower may be allowed to read only. */
static kvg_err look_once(struct redis *redis, struct kvi_redis_pipe *pipe,
    struct look *look, struct kvg_error *error)
{
    char name[96];

    kvi_redis_pipe_clear(pipe);
    kvi_redis_command(pipe, 4);
    kvi_redis_arg_text(pipe, "HMGET");
    snprintf(name, sizeof(name), "%smeta", redis->prefix);
    kvi_redis_arg_text(pipe, name);
    kvi_redis_arg_text(pipe, "epoch");
    kvi_redis_arg_text(pipe, "sequence");
    kvi_redis_command(pipe, 6);
    kvi_redis_arg_text(pipe, "XREAD");
    kvi_redis_arg_text(pipe, "COUNT");
    kvi_redis_arg_u64(pipe, CHANGES_AT_ONCE);
    kvi_redis_arg_text(pipe, "STREAMS");
    snprintf(name, sizeof(name), "%schanges", redis->prefix);
    kvi_redis_arg_text(pipe, name);
    snprintf(name, sizeof(name), "%llu-0", (unsigned long long)redis->told);
    kvi_redis_arg_text(pipe, name);
    return kvi_redis_run(&redis->servers[0], pipe, take_look, look, error);
}

kvg_err kvi_redis_poll(void *self, struct kvg_error *error)
{
    struct redis *redis = self;
    struct kvi_redis_pipe pipe;
    struct look look = {.redis = redis};
    uint64_t server_epoch = 0;
    kvg_err err;

    if (redis->hook.changed == NULL || redis->server_count != 1)
        return KVG_OK;
    kvi_redis_pipe_init(&pipe, redis->alloc);
    pthread_mutex_lock(&redis->follow_lock);
    do {
        err = look_once(redis, &pipe, &look, error);
        if (err == KVG_OK && (look.new_epoch || look.sequence < redis->told)) {
            /* Cleared, or the server lost everything: its numbers begin again. */
            server_epoch = look.epoch;
            redis->epoch = server_epoch;
            redis->epoch_base = 0;
            redis->told = 0;
            look.taken = 1;
        }
    } while (err == KVG_OK && look.taken != 0);
    pthread_mutex_unlock(&redis->follow_lock);
    kvi_redis_pipe_fini(&pipe);
    return err;
}

/* After a change of our own: whoever listens hears it before the call returns. */
void kvi_redis_poll_quietly(struct redis *redis)
{
    struct kvg_error error;

    (void)(kvi_redis_poll(redis, &error) == KVG_OK);
}
