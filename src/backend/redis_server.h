/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* redis_server.h -- one Redis server: its connections, and what to do when they break. */
#ifndef KVI_BACKEND_REDIS_SERVER_H
#define KVI_BACKEND_REDIS_SERVER_H

#include "backend/redis_pipe.h"
#include "backend/redis_library.h"
#include "backend/redis_scripts.h"

#include <pthread.h>

#define KVI_REDIS_CONNECTIONS_MAX 64u
#define KVI_REDIS_SHA_BYTES 40u

/* How to reach servers; the same for all of a store.  Strings are borrowed.  The
 * library is loaded. */
struct kvi_redis_reach {
    const struct kvg_alloc *alloc;
    const struct kvg_log *log;
    struct kvi_hiredis library;
    struct kvg_str user, password; /* Absent: none. */
    uint32_t database;
    uint32_t connection_max;
    uint32_t connect_ms, timeout_ms;
    uint32_t retry_min_ms, retry_max_ms;
};

struct kvi_redis_server {
    const struct kvi_redis_reach *reach;
    char name[256]; /* host:port or the socket's path; for messages. */
    char host[256];
    int port; /* 0: host is the path of a socket. */

    pthread_mutex_t lock; /* Guards what follows. */
    pthread_cond_t idle_one;
    redisContext *idle[KVI_REDIS_CONNECTIONS_MAX];
    uint32_t idle_count, open_count;
    uint32_t failures;      /* In a row. */
    uint64_t down_until_ms; /* No attempt before. */
    uint64_t jitter;        /* State of a small generator. */
    uint64_t reconnects;    /* Connections made after the first ones. */
    bool was_up;
    bool shas_known;
    char shas[KVI_REDIS_SCRIPT_COUNT][KVI_REDIS_SHA_BYTES + 1];
};

void kvi_redis_server_init(struct kvi_redis_server *server,
    const struct kvi_redis_reach *reach, struct kvg_str address, uint64_t seed);
void kvi_redis_server_fini(struct kvi_redis_server *server);

/* Connects, so that the hashes of the scripts are known.  An open store calls it first. */
KVG_MUST_CHECK kvg_err kvi_redis_server_ready(
    struct kvi_redis_server *server, struct kvg_error *error);

/* The first arguments of a script's call: so many follow, `prefix` and `keep` among them. */
void kvi_redis_call_script(struct kvi_redis_pipe *pipe, struct kvi_redis_server *server,
    enum kvi_redis_script script, size_t argument_count);

/* Sends a pipe and hands each reply to `take`, in order.  After a broken connection everything is
 * sent once more over a new one, and `take` sees replies from 0 again: so only what can be
 * repeated may be in a pipe, and all of ours can.  Replies that are errors are handed on too.
 * `take` returns false to give up: KVG_ECANCELED. */
KVG_MUST_CHECK kvg_err kvi_redis_run(struct kvi_redis_server *server,
    const struct kvi_redis_pipe *pipe,
    bool (*take)(void *context, size_t index, const redisReply *reply), void *context,
    struct kvg_error *error);

/* What an error reply means, in our words. */
kvg_err kvi_redis_fail(const struct kvi_redis_server *server, const char *call,
    const redisReply *reply, struct kvg_error *error);

#endif
