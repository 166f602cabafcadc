/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* redis_server.c -- connections to one server.
 *
 *     callers --> take a connection --> write the pipe --> read its replies --> give it back
 *                   idle, or a new one                          | broken: close it, and once more
 *
 * A server that cannot be reached is left alone for a while, longer each time and never for exactly
 * the same time as another client leaves it alone; meanwhile calls fail at once, saying when
 * the next attempt will be.  A connection that broke tells nothing about the others, but those
 * that lie idle are likely broken too: all of them go.
 *
 * Invariants:
 *   1. A connection is idle, or used by one call, or closed.
 *   2. A connection lies idle only after all replies to what was sent over it were read.
 *   3. open_count <= connection_max.
 *
 * Threads: any. */
#include "backend/redis_server.h"

#include "base/fmt.h"
#include "base/rng.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>

static uint64_t now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static struct timeval as_timeval(uint32_t ms)
{
    return (struct timeval){(time_t)(ms / 1000), (suseconds_t)(ms % 1000) * 1000};
}

static void say(
    const struct kvi_redis_server *server, enum kvg_level level, const char *message)
{
    const struct kvg_log *log = server->reach->log;

    if (log != NULL)
        log->write(log->context, level, "store.redis", message);
}

void kvi_redis_server_init(struct kvi_redis_server *server,
    const struct kvi_redis_reach *reach, struct kvg_str address, uint64_t seed)
{
    const char *colon;

    memset(server, 0, sizeof(*server));
    server->reach = reach;
    server->jitter = seed;
    snprintf(
        server->name, sizeof(server->name), "%.*s", (int)address.bytes, address.data);
    snprintf(server->host, sizeof(server->host), "%s", server->name);
    server->port = 6379;
    colon = strrchr(server->host, ':');
    if (server->host[0] == '/') {
        server->port = 0;
    } else if (colon != NULL) {
        server->port = (int)strtol(colon + 1, NULL, 10);
        server->host[colon - server->host] = '\0';
    }
    if (server->host[0] == '[' && strlen(server->host) > 2) { /* [::1] */
        memmove(server->host, server->host + 1, strlen(server->host));
        server->host[strcspn(server->host, "]")] = '\0';
    }
    pthread_mutex_init(&server->lock, NULL);
    pthread_cond_init(&server->idle_one, NULL);
}

static void close_idle(struct kvi_redis_server *server)
{
    while (server->idle_count > 0) {
        server->reach->library.redisFree(server->idle[--server->idle_count]);
        server->open_count--;
    }
}

void kvi_redis_server_fini(struct kvi_redis_server *server)
{
    close_idle(server);
    pthread_cond_destroy(&server->idle_one);
    pthread_mutex_destroy(&server->lock);
}

/* Connecting ------------------------------------------------------------------------------- */

static kvg_err fail_server(const struct kvi_redis_server *server, const char *what,
    const char *detail, struct kvg_error *error)
{
    char message[192];

    snprintf(message, sizeof(message), "redis %.60s: %s%s%.90s", server->name, what,
        detail[0] == '\0' ? "" : ": ", detail);
    return kvi_fail(error, KVG_EIO, "store.redis", message);
}

/* One command before a connection is used.  The reply is released; its text, if it is one, goes to
 * `out`. */
static kvg_err say_hello(const struct kvi_redis_server *server, redisContext *connection,
    int count, const char **words, const size_t *bytes, char *out, size_t room,
    struct kvg_error *error)
{
    redisReply *reply =
        server->reach->library.redisCommandArgv(connection, count, words, bytes);
    kvg_err err = KVG_OK;

    if (reply == NULL)
        return fail_server(server, "no answer", connection->errstr, error);
    if (reply->type == REDIS_REPLY_ERROR)
        err = fail_server(server, words[0], reply->str, error);
    else if (out != NULL)
        snprintf(out, room, "%s", reply->str == NULL ? "" : reply->str);
    server->reach->library.freeReplyObject(reply);
    return err;
}

static kvg_err log_in(const struct kvi_redis_server *server, redisContext *connection,
    struct kvg_error *error)
{
    const struct kvi_redis_reach *reach = server->reach;
    const char *words[3] = {"AUTH"};
    size_t bytes[3] = {4};
    char database[16];
    int count = 1;
    kvg_err err = KVG_OK;

    if (reach->password.data != NULL) {
        if (reach->user.bytes != 0) {
            words[count] = reach->user.data;
            bytes[count++] = reach->user.bytes;
        }
        words[count] = reach->password.data;
        bytes[count++] = reach->password.bytes;
        err = say_hello(server, connection, count, words, bytes, NULL, 0, error);
    }
    if (err != KVG_OK || reach->database == 0)
        return err;
    words[0] = "SELECT";
    bytes[0] = 6;
    words[1] = database;
    bytes[1] = (size_t)snprintf(database, sizeof(database), "%u", reach->database);
    return say_hello(server, connection, 2, words, bytes, NULL, 0, error);
}

static kvg_err load_scripts(struct kvi_redis_server *server, redisContext *connection,
    char shas[KVI_REDIS_SCRIPT_COUNT][KVI_REDIS_SHA_BYTES + 1], struct kvg_error *error)
{
    kvg_err err = KVG_OK;
    int i;

    for (i = 0; i < KVI_REDIS_SCRIPT_COUNT && err == KVG_OK; i++) {
        const char *words[3] = {"SCRIPT", "LOAD", kvi_redis_scripts[i]};
        size_t bytes[3] = {6, 4, strlen(kvi_redis_scripts[i])};

        err = say_hello(
            server, connection, 3, words, bytes, shas[i], sizeof(shas[i]), error);
    }
    return err;
}

static redisContext *dial(const struct kvi_redis_server *server)
{
    struct timeval limit = as_timeval(server->reach->connect_ms);

    return server->port == 0
               ? server->reach->library.redisConnectUnixWithTimeout(server->host, limit)
               : server->reach->library.redisConnectWithTimeout(
                     server->host, server->port, limit);
}

/* A connection ready for use.  Its scripts are loaded: the server may have been restarted. */
static kvg_err connect_one(
    struct kvi_redis_server *server, redisContext **out, struct kvg_error *error)
{
    char shas[KVI_REDIS_SCRIPT_COUNT][KVI_REDIS_SHA_BYTES + 1];
    redisContext *connection = dial(server);
    kvg_err err;

    *out = NULL;
    if (connection == NULL)
        return kvi_fail(error, KVG_ENOMEM, "store.redis", "no memory for a connection");
    if (connection->err != 0) {
        err = fail_server(server, "cannot connect", connection->errstr, error);
    } else {
        server->reach->library.redisSetTimeout(
            connection, as_timeval(server->reach->timeout_ms));
        if (server->port != 0) /* On another kind of socket it is an error for ever. */
            server->reach->library.redisEnableKeepAlive(connection);
        err = log_in(server, connection, error);
        if (err == KVG_OK)
            err = load_scripts(server, connection, shas, error);
    }
    if (err != KVG_OK) {
        server->reach->library.redisFree(connection);
        return err;
    }
    pthread_mutex_lock(&server->lock);
    if (!server->shas_known)
        memcpy(server->shas, shas, sizeof(shas));
    server->shas_known = true; /* The hash of a text: the same on every server. */
    pthread_mutex_unlock(&server->lock);
    *out = connection;
    return KVG_OK;
}

/* How long to leave it alone: doubles, and a random half of it is left out. */
static void note_failure(struct kvi_redis_server *server, const struct kvg_error *error)
{
    uint64_t delay = server->reach->retry_min_ms;
    struct kvi_rng rng = {server->jitter};
    uint32_t i;

    for (i = 0; i < server->failures && delay < server->reach->retry_max_ms; i++)
        delay *= 2;
    if (delay > server->reach->retry_max_ms)
        delay = server->reach->retry_max_ms;
    delay = delay / 2 + kvi_rng_below(&rng, delay / 2 + 1);
    server->jitter = rng.state;
    server->failures++;
    server->down_until_ms = now_ms() + delay;
    if (server->failures == 1)
        say(server, KVG_LOG_WARN, error->message);
}

static void note_success(struct kvi_redis_server *server)
{
    if (server->was_up)
        server->reconnects++;
    if (server->failures != 0)
        say(server, KVG_LOG_INFO, "redis answers again");
    server->was_up = true;
    server->failures = 0;
    server->down_until_ms = 0;
}

static kvg_err take_connection(
    struct kvi_redis_server *server, redisContext **out, struct kvg_error *error)
{
    struct kvg_error detail = {0};
    uint64_t now = now_ms();
    bool first;
    kvg_err err;

    *out = NULL;
    pthread_mutex_lock(&server->lock);
    while (server->idle_count == 0 && server->open_count == server->reach->connection_max)
        pthread_cond_wait(&server->idle_one, &server->lock);
    if (server->idle_count > 0) {
        *out = server->idle[--server->idle_count];
        pthread_mutex_unlock(&server->lock);
        return KVG_OK;
    }
    if (now < server->down_until_ms) {
        char text[64];

        snprintf(text, sizeof(text), "next attempt in %llu ms",
            (unsigned long long)(server->down_until_ms - now));
        pthread_mutex_unlock(&server->lock);
        return fail_server(server, "does not answer", text, error);
    }
    server->open_count++;
    first = server->open_count == 1;
    pthread_mutex_unlock(&server->lock);
    err = connect_one(server, out, &detail);
    pthread_mutex_lock(&server->lock);
    if (err == KVG_OK && first)
        note_success(server);
    if (err != KVG_OK) {
        note_failure(server, &detail);
        server->open_count--;
        pthread_cond_signal(&server->idle_one);
    }
    pthread_mutex_unlock(&server->lock);
    if (err != KVG_OK && error != NULL)
        *error = detail;
    return err;
}

/* Gives a connection back; `broken` closes it, and those that lie idle with it. */
static void give_connection(
    struct kvi_redis_server *server, redisContext *connection, bool broken)
{
    pthread_mutex_lock(&server->lock);
    if (broken) {
        server->reach->library.redisFree(connection);
        server->open_count--;
        close_idle(server);
    } else {
        server->idle[server->idle_count++] = connection;
    }
    pthread_cond_signal(&server->idle_one);
    pthread_mutex_unlock(&server->lock);
}

kvg_err kvi_redis_server_ready(struct kvi_redis_server *server, struct kvg_error *error)
{
    redisContext *connection;
    kvg_err err = take_connection(server, &connection, error);

    if (err == KVG_OK)
        give_connection(server, connection, false);
    return err;
}

/* Running a pipe --------------------------------------------------------------------------- */

void kvi_redis_call_script(struct kvi_redis_pipe *pipe, struct kvi_redis_server *server,
    enum kvi_redis_script script, size_t argument_count)
{
    kvi_redis_command(pipe, argument_count + 3);
    kvi_redis_arg_text(pipe, "EVALSHA");
    kvi_redis_arg(pipe, server->shas[script], KVI_REDIS_SHA_BYTES);
    kvi_redis_arg_text(pipe, "0");
}

enum outcome {
    DONE,
    BROKEN,  /* The connection; the call may be repeated. */
    UNKNOWN, /* The server lost its scripts; a new connection loads them. */
    GIVEN_UP /* By whoever takes the replies. */
};

static enum outcome run_once(const struct kvi_redis_server *server,
    redisContext *connection, const struct kvi_redis_pipe *pipe,
    bool (*take)(void *context, size_t index, const redisReply *reply), void *context)
{
    enum outcome outcome = DONE;
    size_t i;

    if (!kvi_redis_pipe_write(pipe, connection->fd)) {
        snprintf(connection->errstr, sizeof(connection->errstr), "%s", strerror(errno));
        return BROKEN;
    }
    for (i = 0; i < pipe->command_count; i++) {
        void *memory = NULL;
        redisReply *reply;

        if (server->reach->library.redisGetReply(connection, &memory) != REDIS_OK)
            return BROKEN;
        reply = memory;
        if (reply->type == REDIS_REPLY_ERROR && strncmp(reply->str, "NOSCRIPT", 8) == 0)
            outcome = UNKNOWN;
        else if (outcome == DONE && !take(context, i, reply))
            outcome = GIVEN_UP;
        server->reach->library.freeReplyObject(reply);
    }
    return outcome;
}

kvg_err kvi_redis_run(struct kvi_redis_server *server, const struct kvi_redis_pipe *pipe,
    bool (*take)(void *context, size_t index, const redisReply *reply), void *context,
    struct kvg_error *error)
{
    int attempt;

    if (pipe->failed)
        return kvi_fail(error, KVG_ENOMEM, "store.redis", "no memory for a command");
    if (pipe->command_count == 0)
        return KVG_OK;
    for (attempt = 0;; attempt++) {
        redisContext *connection;
        enum outcome outcome;
        kvg_err err = take_connection(server, &connection, error);

        if (err != KVG_OK)
            return err;
        outcome = run_once(server, connection, pipe, take, context);
        if ((outcome == BROKEN || outcome == UNKNOWN) && attempt == 1)
            err = fail_server(server, "broke off",
                outcome == BROKEN ? connection->errstr : "its scripts are gone", error);
        give_connection(server, connection, outcome == BROKEN || outcome == UNKNOWN);
        if (outcome == DONE)
            return KVG_OK;
        if (outcome == GIVEN_UP)
            return KVG_ECANCELED;
        if (err != KVG_OK)
            return err;
    }
}

kvg_err kvi_redis_fail(const struct kvi_redis_server *server, const char *call,
    const redisReply *reply, struct kvg_error *error)
{
    const char *text = reply->type == REDIS_REPLY_ERROR ? reply->str : "unexpected reply";
    bool full = strncmp(text, "FULL", 4) == 0;
    bool out_of_memory = strncmp(text, "OOM", 3) == 0;

    if (!full && !out_of_memory)
        return fail_server(server, call, text, error);
    return kvi_fail(error, KVG_ENOSPACE, "store.redis",
        full ? "the budget (bytes=) holds nothing that could be evicted"
             : "the server is at its maxmemory: set bytes= below it");
}
