/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* redis.c -- the backend `redis:`, for Redis, Valkey and whoever speaks like them.
 *
 *     call --> keys shared out over servers --> a pipe each --> scripts and reads --> results
 *                 by the hash of the page         redis_server.c    redis_scripts.c
 *
 * Everything that writes is a script, so it is atomic where it runs, keeps the books (budget,
 * recency, groups) and tells every change in a stream of the server itself: whoever follows it sees
 * what all processes did, in one order.
 *
 * Several servers.  A ring of points decides where a key lives; what is hashed is the text in {}
 * if there is some, else the last 64 hex digits, else all of the key: so the parts of a page are
 * on one server.  A group whose parts are not is refused.  Each server numbers its own changes, so
 * they are not followed.
 *
 * Repeating.  Every pipe may be sent twice: a put of what is there does nothing, and so on.
 *
 * Invariants:
 *   1. A result is set from a reply to the attempt that succeeded, or is the call's failure.
 *   2. `told` is the sequence of the last change the hook heard; it grows by one, within an epoch.
 *
 * Threads: any; `follow_lock` makes the hook's calls one at a time. */
#include "backend/redis.h"

#include "backend/backend.h"
#include "base/alloc.h"
#include "base/fmt.h"
#include "base/rng.h"

#include <stdio.h>
#include <string.h>

/* Numbers ------------------------------------------------------------------------------------- */

static bool use_meta(void *context, const redisReply *reply)
{
    struct kvg_store_stats *out = context;

    out->objects += kvi_redis_number(kvi_redis_element(reply, 0));
    out->bytes += kvi_redis_number(kvi_redis_element(reply, 1));
    out->epoch = kvi_redis_number(kvi_redis_element(reply, 2));
    out->sequence = kvi_redis_number(kvi_redis_element(reply, 3));
    return true;
}

static void redis_stats(void *self, struct kvg_store_stats *out)
{
    struct redis *redis = self;
    struct kvi_redis_pipe pipe;
    uint32_t server;

    out->put_parts = atomic_load(&redis->counted.put_parts);
    out->put_bytes = atomic_load(&redis->counted.put_bytes);
    out->put_present = atomic_load(&redis->counted.put_present);
    out->evicted_objects = atomic_load(&redis->counted.evicted_objects);
    out->evicted_bytes = atomic_load(&redis->counted.evicted_bytes);
    kvi_redis_pipe_init(&pipe, redis->alloc);
    out->bytes_max = redis->budget * redis->server_count;
    for (server = 0; server < redis->server_count; server++) {
        struct kvg_error ignored;
        char name[96];

        kvi_redis_pipe_clear(&pipe);
        kvi_redis_command(&pipe, 6);
        kvi_redis_arg_text(&pipe, "HMGET");
        snprintf(name, sizeof(name), "%smeta", redis->prefix);
        kvi_redis_arg_text(&pipe, name);
        kvi_redis_arg_text(&pipe, "objects");
        kvi_redis_arg_text(&pipe, "bytes");
        kvi_redis_arg_text(&pipe, "epoch");
        kvi_redis_arg_text(&pipe, "sequence");
        (void)(kvi_redis_run_single(redis, server, &pipe, "stats", use_meta, out,
                   &ignored) == KVG_OK); /* A server that is down adds nothing. */
        pthread_mutex_lock(&redis->servers[server].lock);
        out->reconnects += redis->servers[server].reconnects;
        pthread_mutex_unlock(&redis->servers[server].lock);
    }
    kvi_redis_pipe_fini(&pipe);
}
/* Opening ------------------------------------------------------------------------------------- */

static void redis_close(void *self)
{
    struct redis *redis = self;
    uint32_t i;

    for (i = 0; i < redis->server_count; i++)
        kvi_redis_server_fini(&redis->servers[i]);
    kvi_release_array(
        redis->alloc, redis->servers, redis->server_count, sizeof(*redis->servers));
    kvi_release_array(redis->alloc, redis->points,
        (size_t)redis->server_count * KVI_REDIS_POINTS_EACH, sizeof(*redis->points));
    if (redis->password != NULL) {
        explicit_bzero(redis->password, redis->password_bytes);
        kvi_release_string(redis->alloc, redis->password, redis->password_bytes);
    }
    kvi_hiredis_unload(&redis->reach.library);
    pthread_mutex_destroy(&redis->follow_lock);
    KVI_FREE(redis->alloc, redis);
}

static kvg_err read_numbers(
    struct redis *redis, const struct kvg_store_url *url, struct kvg_error *error)
{
    struct kvi_redis_reach *reach = &redis->reach;
    uint64_t connections = 4;
    uint64_t database = 0;
    uint64_t connect_ms = 2000;
    uint64_t timeout_ms = 10000;
    uint64_t retry_min_ms = 100;
    uint64_t retry_max_ms = 10000;
    kvg_err err =
        kvg_store_param_bytes(url, "bytes", 0, UINT64_C(1) << 50, &redis->budget, error);

    if (err == KVG_OK)
        err = kvg_store_param_u64(
            url, "connections", 1, KVI_REDIS_CONNECTIONS_MAX, &connections, error);
    if (err == KVG_OK)
        err = kvg_store_param_u64(url, "db", 0, 65535, &database, error);
    if (err == KVG_OK)
        err = kvg_store_param_ms(url, "connect_timeout", 1, 600000, &connect_ms, error);
    if (err == KVG_OK)
        err = kvg_store_param_ms(url, "timeout", 1, 600000, &timeout_ms, error);
    if (err == KVG_OK)
        err = kvg_store_param_ms(url, "retry_min", 1, 600000, &retry_min_ms, error);
    if (err == KVG_OK)
        err = kvg_store_param_ms(
            url, "retry_max", retry_min_ms, 3600000, &retry_max_ms, error);
    reach->connection_max = (uint32_t)connections;
    reach->database = (uint32_t)database;
    reach->connect_ms = (uint32_t)connect_ms;
    reach->timeout_ms = (uint32_t)timeout_ms;
    reach->retry_min_ms = (uint32_t)retry_min_ms;
    reach->retry_max_ms = (uint32_t)retry_max_ms;
    return err;
}

/* A password in a URL is seen by whoever lists processes; a file, or the environment, is not. */
static kvg_err read_password(
    struct redis *redis, const struct kvg_store_url *url, struct kvg_error *error)
{
    struct kvg_str file = kvg_store_param(url, "password_file");
    const char *from_environment = getenv("KVGRAFT_REDIS_PASSWORD");
    char text[1024];
    char message[192];
    FILE *stream;
    size_t bytes;

    redis->reach.user = url->user;
    redis->reach.password = url->password;
    if (url->password.data != NULL || (file.data == NULL && from_environment == NULL))
        return KVG_OK;
    if (file.data == NULL) {
        redis->password_bytes = strlen(from_environment);
        redis->password = kvi_copy_string(redis->alloc, kvi_str(from_environment));
    } else {
        stream = fopen(file.data, "re");
        if (stream == NULL) {
            snprintf(message, sizeof(message), "cannot read %.150s", file.data);
            return kvi_fail(error, KVG_EIO, "store.password_file", message);
        }
        bytes = fread(text, 1, sizeof(text), stream);
        fclose(stream);
        while (bytes > 0 && (text[bytes - 1] == '\n' || text[bytes - 1] == '\r'))
            bytes--;
        redis->password_bytes = bytes;
        redis->password = kvi_copy_string(redis->alloc, (struct kvg_str){text, bytes});
        explicit_bzero(text, sizeof(text));
    }
    if (redis->password == NULL)
        return kvi_redis_no_memory(error);
    redis->reach.password = (struct kvg_str){redis->password, redis->password_bytes};
    return KVG_OK;
}

static kvg_err read_prefix(
    struct redis *redis, const struct kvg_store_url *url, struct kvg_error *error)
{
    struct kvg_str prefix = kvg_store_param(url, "prefix");

    if (prefix.data == NULL)
        prefix = kvi_str("kvgraft:");
    if (prefix.bytes >= sizeof(redis->prefix))
        return kvi_fail_range(
            error, "store.prefix.bytes", prefix.bytes, 0, sizeof(redis->prefix) - 1);
    memcpy(redis->prefix, prefix.data, prefix.bytes);
    return KVG_OK;
}

/* "a:1,b:2", or a path to a socket. */
static kvg_err make_servers(
    struct redis *redis, const struct kvg_store_url *url, struct kvg_error *error)
{
    struct kvg_str list = url->authority.bytes != 0 ? url->authority
                          : url->path.bytes != 0    ? url->path
                                                    : kvi_str("127.0.0.1:6379");
    size_t count = 1;
    size_t start = 0;
    size_t i;

    for (i = 0; i < list.bytes; i++)
        count += list.data[i] == ',';
    if (count > KVI_REDIS_SERVERS_MAX)
        return kvi_fail_range(error, "store.servers", count, 1, KVI_REDIS_SERVERS_MAX);
    redis->servers = kvi_alloc_array(redis->alloc, count, sizeof(*redis->servers));
    redis->points = kvi_alloc_array(
        redis->alloc, count * KVI_REDIS_POINTS_EACH, sizeof(*redis->points));
    if (redis->servers == NULL || redis->points == NULL) {
        kvi_release_array(redis->alloc, redis->servers, count, sizeof(*redis->servers));
        kvi_release_array(redis->alloc, redis->points, count * KVI_REDIS_POINTS_EACH,
            sizeof(*redis->points));
        redis->servers = NULL;
        redis->points = NULL;
        return kvi_redis_no_memory(error);
    }
    for (i = 0; i <= list.bytes; i++) {
        if (i < list.bytes && list.data[i] != ',')
            continue;
        kvi_redis_server_init(&redis->servers[redis->server_count], &redis->reach,
            (struct kvg_str){list.data + start, i - start},
            kvi_redis_random_epoch(redis));
        redis->server_count++;
        start = i + 1;
    }
    kvi_redis_make_points(redis);
    return KVG_OK;
}

struct hello {
    struct redis *redis;
    const struct kvg_store_options *options;
    kvg_err err;
    struct kvg_error *error;
};

static bool use_hello(void *context, const redisReply *reply)
{
    struct hello *hello = context;
    struct kvg_str word = kvi_redis_text(kvi_redis_element(reply, 0));
    char message[192];

    hello->err = KVG_OK;
    if (kvi_str_equal(word, kvi_str("ok"))) {
        hello->redis->epoch = kvi_redis_number(kvi_redis_element(reply, 1));
        hello->redis->told = kvi_redis_number(kvi_redis_element(reply, 2));
        return true;
    }
    if (kvi_str_equal(word, kvi_str("version"))) {
        snprintf(message, sizeof(message),
            "what is stored is of version %.20s, this is %d",
            kvi_redis_text(kvi_redis_element(reply, 1)).data, KVI_REDIS_VERSION);
        hello->err = kvi_fail(hello->error, KVG_EVERSION, "store.version", message);
        return true;
    }
    snprintf(message, sizeof(message), "the store is for \"%.70s\", not for \"%.*s\"",
        kvi_redis_text(kvi_redis_element(reply, 1)).data,
        (int)(hello->options->fingerprint.text.bytes < 70
                  ? hello->options->fingerprint.text.bytes
                  : 70),
        hello->options->fingerprint.text.data == NULL
            ? ""
            : hello->options->fingerprint.text.data);
    hello->err = kvi_fail(hello->error, KVG_EMISMATCH, "store.fingerprint", message);
    return true;
}

static kvg_err greet(struct redis *redis, uint32_t server,
    const struct kvg_store_options *options, struct kvg_error *error)
{
    const struct kvg_store_fingerprint *mark = &options->fingerprint;
    struct hello hello = {redis, options, KVG_OK, error};
    struct kvi_redis_pipe pipe;
    kvg_err err = kvi_redis_server_ready(&redis->servers[server], error);

    if (err != KVG_OK)
        return err;
    kvi_redis_pipe_init(&pipe, redis->alloc);
    kvi_redis_script_call(redis, &pipe, server, KVI_REDIS_INIT, 5);
    kvi_redis_arg_u64(&pipe, KVI_REDIS_VERSION);
    kvi_redis_arg(
        &pipe, mark->bytes.bytes == 0 ? "" : mark->bytes.data, mark->bytes.bytes);
    kvi_redis_arg(&pipe, mark->text.bytes == 0 ? "" : mark->text.data, mark->text.bytes);
    kvi_redis_arg_u64(&pipe, kvi_redis_random_epoch(redis));
    kvi_redis_arg_text(&pipe, options->read_only ? "1" : "0");
    err = kvi_redis_run_single(redis, server, &pipe, "open", use_hello, &hello, error);
    kvi_redis_pipe_fini(&pipe);
    return err != KVG_OK ? err : hello.err;
}

static kvg_err redis_open(const struct kvg_store_url *url,
    const struct kvg_store_options *options, void **out, uint32_t *flags_out,
    struct kvg_error *error)
{
    struct redis *redis = KVI_NEW(options->alloc, struct redis);
    kvg_err err;
    uint32_t i;

    if (redis == NULL)
        return kvi_redis_no_memory(error);
    redis->alloc = options->alloc;
    redis->reach.alloc = options->alloc;
    redis->reach.log = options->log;
    redis->hook = options->hook;
    redis->seed = options->seed;
    redis->read_only = options->read_only;
    pthread_mutex_init(&redis->follow_lock, NULL);
    err = read_numbers(redis, url, error);
    if (err == KVG_OK)
        err = kvi_hiredis_load(&redis->reach.library, error);
    if (err == KVG_OK)
        err = read_password(redis, url, error);
    if (err == KVG_OK)
        err = read_prefix(redis, url, error);
    if (err == KVG_OK)
        err = make_servers(redis, url, error);
    for (i = 0; err == KVG_OK && i < redis->server_count; i++)
        err = greet(redis, i, options, error);
    if (err != KVG_OK) {
        redis_close(redis);
        return err;
    }
    if (redis->server_count > 1)
        *flags_out &= ~(uint32_t)KVG_STORE_FOLLOWS;
    if (redis->budget == 0)
        *flags_out &= ~(uint32_t)KVG_STORE_EVICTS;
    *out = redis;
    return KVG_OK;
}

static kvg_err rediss_open(const struct kvg_store_url *url,
    const struct kvg_store_options *options, void **out, uint32_t *flags_out,
    struct kvg_error *error)
{
    (void)url;
    (void)options;
    (void)out;
    (void)flags_out;
    return kvi_fail(error, KVG_EUNSUPPORTED, "store.url",
        "rediss: this build's hiredis has no TLS; use redis: through a TLS tunnel");
}

static const char *const PARAMETERS[] = {"bytes", "connections", "db", "connect_timeout",
    "timeout", "retry_min", "retry_max", "password_file", "prefix", NULL};

#define SAME_FOR_BOTH                                                                    \
    .struct_bytes = sizeof(struct kvg_store_backend),                                    \
    .version = KVG_STORE_BACKEND_VERSION,                                                \
    .flags = KVG_STORE_SHARED | KVG_STORE_FOLLOWS | KVG_STORE_EVICTS | KVG_STORE_LISTS | \
             KVG_STORE_ATOMIC | KVG_STORE_RANGES | KVG_STORE_REMOVES,                    \
    .parameters = PARAMETERS, .close = redis_close, .exists = kvi_redis_exists,          \
    .put = kvi_redis_put, .get = kvi_redis_get, .remove = kvi_redis_remove,              \
    .clear = kvi_redis_clear, .list = kvi_redis_list, .poll = kvi_redis_poll,            \
    .stats = redis_stats, .check = kvi_redis_check

const struct kvg_store_backend kvi_store_redis = {SAME_FOR_BOTH, .scheme = "redis",
    .summary = "redis://[USER:PASSWORD@]HOST:PORT,...  Redis or Valkey servers",
    .open = redis_open};

const struct kvg_store_backend kvi_store_rediss = {SAME_FOR_BOTH, .scheme = "rediss",
    .summary = "rediss://...  the same through TLS, where hiredis has it",
    .open = rediss_open};
