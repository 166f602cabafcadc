/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* redis.h -- what the files of the backend `redis:` share. */
#ifndef KVI_BACKEND_REDIS_H
#define KVI_BACKEND_REDIS_H

#include "backend/redis_server.h"

#include <kvgraft/store_backend.h>

#include <stdatomic.h>
#include <stdlib.h>

#define KVI_REDIS_SERVERS_MAX 64u
#define KVI_REDIS_POINTS_EACH 128u
#define KVI_REDIS_KEYS_OF_A_SCRIPT 512u
#define KVI_REDIS_CHANGES_KEPT 1000000u

struct point {
    uint64_t hash;
    uint32_t server;
};

struct redis {
    const struct kvg_alloc *alloc;
    struct kvi_redis_reach reach;
    char prefix[64];
    uint64_t budget;
    uint64_t seed;
    bool read_only;
    char *password; /* From a file or the environment: ours. */
    size_t password_bytes;

    struct {
        _Atomic uint64_t put_parts, put_bytes, put_present;
        _Atomic uint64_t evicted_objects, evicted_bytes;
    } counted;

    uint32_t server_count;
    struct kvi_redis_server *servers;
    struct point *points; /* Ascending by hash. */
    uint32_t point_count;

    struct kvg_store_hook hook;
    pthread_mutex_t follow_lock;
    uint64_t epoch;      /* As the hook knows it. */
    uint64_t told;       /* Sequence of the server. */
    uint64_t epoch_base; /* What to take off a sequence, after changes were missed. */
};

/* Which server: a ring of points (redis_ring.c). */
uint32_t kvi_redis_server_of(const struct redis *redis, struct kvg_str key);
void kvi_redis_make_points(struct redis *redis);

/* Pieces of commands, and of their replies (redis_call.c). */
void kvi_redis_arg_value_key(
    struct kvi_redis_pipe *pipe, const struct redis *redis, struct kvg_str key);
/* A script's call; `count` more arguments follow. */
void kvi_redis_script_call(struct redis *redis, struct kvi_redis_pipe *pipe,
    uint32_t server, enum kvi_redis_script script, size_t count);
/* A pipe of one command. */
kvg_err kvi_redis_run_single(struct redis *redis, uint32_t server,
    struct kvi_redis_pipe *pipe, const char *call,
    bool (*use)(void *context, const redisReply *reply), void *context,
    struct kvg_error *error);
kvg_err kvi_redis_no_memory(struct kvg_error *error);
uint64_t kvi_redis_random_epoch(struct redis *redis);

static inline uint64_t kvi_redis_number(const redisReply *reply)
{
    if (reply == NULL)
        return 0;
    if (reply->type == REDIS_REPLY_INTEGER)
        return reply->integer < 0 ? 0 : (uint64_t)reply->integer;
    return reply->str == NULL ? 0 : strtoull(reply->str, NULL, 10);
}

static inline const redisReply *kvi_redis_element(const redisReply *reply, size_t index)
{
    if (reply == NULL || reply->type != REDIS_REPLY_ARRAY || index >= reply->elements)
        return NULL;
    return reply->element[index];
}

static inline struct kvg_str kvi_redis_text(const redisReply *reply)
{
    if (reply == NULL || reply->str == NULL)
        return (struct kvg_str){"", 0};
    return (struct kvg_str){reply->str, (size_t)reply->len};
}

/* Following (redis_follow.c). */
kvg_err kvi_redis_poll(void *self, struct kvg_error *error);
/* After a change of our own: whoever listens hears it before the call returns. */
void kvi_redis_poll_quietly(struct redis *redis);

/* The backend's functions (redis_io.c, redis_list.c). */
kvg_err kvi_redis_exists(void *self, const struct kvg_str *keys, size_t key_count,
    bool stop_at_gap, uint8_t *present, struct kvg_error *error);
kvg_err kvi_redis_put(void *self, struct kvg_store_group *groups, size_t group_count,
    struct kvg_error *error);
kvg_err kvi_redis_get(
    void *self, struct kvg_store_get *gets, size_t get_count, struct kvg_error *error);
kvg_err kvi_redis_remove(void *self, const struct kvg_str *keys, size_t key_count,
    kvg_err *results, struct kvg_error *error);
kvg_err kvi_redis_clear(void *self, struct kvg_error *error);
kvg_err kvi_redis_list(void *self, struct kvg_store_cursor *cursor, size_t item_max,
    bool (*visit)(void *context, const struct kvg_store_item *item), void *context,
    struct kvg_error *error);
kvg_err kvi_redis_check(void *self, bool repair,
    void (*say)(void *context, const char *line), void *context,
    struct kvg_store_report *out, struct kvg_error *error);

#endif
