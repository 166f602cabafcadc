/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* redis_call.c -- pieces of commands, and calls that want one reply. */
#include "backend/redis.h"

#include "base/fmt.h"
#include "base/rng.h"

#include <stdio.h>

/* Pieces of commands ------------------------------------------------------------------------ */

void kvi_redis_arg_value_key(
    struct kvi_redis_pipe *pipe, const struct redis *redis, struct kvg_str key)
{
    char prefix[sizeof(redis->prefix) + 2];
    int bytes = snprintf(prefix, sizeof(prefix), "%so:", redis->prefix);

    kvi_redis_arg_two(pipe, (struct kvg_str){prefix, (size_t)bytes}, key);
}

/* A script's call; `count` more arguments follow. */
void kvi_redis_script_call(struct redis *redis, struct kvi_redis_pipe *pipe,
    uint32_t server, enum kvi_redis_script script, size_t count)
{
    kvi_redis_call_script(pipe, &redis->servers[server], script, count + 2);
    kvi_redis_arg_text(pipe, redis->prefix);
    kvi_redis_arg_u64(pipe, KVI_REDIS_CHANGES_KEPT);
}

/* A call that wants one reply. */
struct single {
    const struct kvi_redis_server *server;
    const char *call;
    kvg_err result;
    struct kvg_error *error;
    bool (*use)(void *context, const redisReply *reply);
    void *context;
};

static bool take_single(void *context, size_t index, const redisReply *reply)
{
    struct single *single = context;

    (void)index;
    single->result = KVG_OK;
    if (reply->type == REDIS_REPLY_ERROR)
        single->result =
            kvi_redis_fail(single->server, single->call, reply, single->error);
    else if (single->use != NULL)
        return single->use(single->context, reply);
    return true;
}

kvg_err kvi_redis_run_single(struct redis *redis, uint32_t server,
    struct kvi_redis_pipe *pipe, const char *call,
    bool (*use)(void *context, const redisReply *reply), void *context,
    struct kvg_error *error)
{
    struct single single = {&redis->servers[server], call, KVG_OK, error, use, context};
    kvg_err err =
        kvi_redis_run(&redis->servers[server], pipe, take_single, &single, error);

    return err != KVG_OK ? err : single.result;
}
uint64_t kvi_redis_random_epoch(struct redis *redis)
{
    struct kvi_rng rng = {redis->seed};
    uint64_t epoch = kvi_rng_next(&rng) >> 1 | 1; /* Numbers of scripts have a sign. */

    redis->seed = rng.state;
    return epoch;
}

kvg_err kvi_redis_no_memory(struct kvg_error *error)
{
    return kvi_fail(error, KVG_ENOMEM, "store.redis", "no memory for a call");
}
