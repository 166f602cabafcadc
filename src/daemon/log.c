/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* log.c -- log lines, limited in rate, written with one write(2) each.
 *
 * The limit is a window of ten seconds per (component, level): a table of 64 windows found by
 * hash.  Two that share a window share its budget, which is harmless.
 */
#include "daemon/log.h"

#include "base/alloc.h"
#include "base/fmt.h"
#include "daemon/out.h"
#include "net/loop.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define WINDOWS 64u
#define WINDOW_MS 10000u
#define RATE_PER_TEN_SECONDS 50u
#define MESSAGE_BYTES 1024u

struct window {
    uint64_t began_ms;
    uint32_t written;
    uint32_t left_out;
};

struct kvd_log {
    const struct kvg_alloc *alloc;
    pthread_mutex_t lock; /* Of all below but `level`. */
    atomic_int level;
    enum kvd_log_format format;
    int fd;
    bool fd_is_own;
    struct kvd_out line;
    struct window windows[WINDOWS];
    atomic_uint_least64_t suppressed;
};

static const char *const LEVELS[] = {"debug", "info", "warn", "error"};

static int open_file(const char *path, struct kvg_error *error)
{
    int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0640);
    char message[192];

    if (fd < 0) {
        snprintf(message, sizeof(message), "%.120s: %s", path, strerror(errno));
        kvi_fail(error, KVG_EIO, "log.file", message);
    }
    return fd;
}

kvg_err kvd_log_reopen(
    struct kvd_log *log, const struct kvd_config *config, struct kvg_error *error)
{
    int fd = STDERR_FILENO;

    if (config->log_file[0] != '\0') {
        fd = open_file(config->log_file, error);
        if (fd < 0)
            return KVG_EIO;
    }
    pthread_mutex_lock(&log->lock);
    if (log->fd_is_own)
        close(log->fd);
    log->fd = fd;
    log->fd_is_own = fd != STDERR_FILENO;
    log->format = config->log_format;
    pthread_mutex_unlock(&log->lock);
    atomic_store(&log->level, (int)config->log_level);
    return KVG_OK;
}

void kvd_log_free(struct kvd_log *log)
{
    if (log == NULL)
        return;
    if (log->fd_is_own)
        close(log->fd);
    kvd_out_fini(&log->line);
    pthread_mutex_destroy(&log->lock);
    KVI_FREE(log->alloc, log);
}

kvg_err kvd_log_new(const struct kvg_alloc *alloc, const struct kvd_config *config,
    struct kvg_error *error, struct kvd_log **out)
{
    struct kvd_log *log = KVI_NEW(alloc, struct kvd_log);
    kvg_err err;

    *out = NULL;
    if (log == NULL)
        return kvi_fail(error, KVG_ENOMEM, "log", "does not fit into memory");
    log->alloc = alloc;
    log->fd = STDERR_FILENO;
    pthread_mutex_init(&log->lock, NULL);
    kvd_out_init(&log->line, alloc);
    err = kvd_log_reopen(log, config, error);
    if (err != KVG_OK) {
        kvd_log_free(log);
        return err;
    }
    *out = log;
    return KVG_OK;
}

uint64_t kvd_log_suppressed(const struct kvd_log *log)
{
    return atomic_load_explicit(&log->suppressed, memory_order_relaxed);
}

/* Whether the line may be written; *left_out says how many were not since the last that was. */
static bool may_write(
    struct kvd_log *log, enum kvg_level level, const char *component, uint32_t *left_out)
{
    uint32_t hash = 2166136261u ^ (uint32_t)level;
    struct window *window;
    uint64_t now_ms = kvn_clock_ms();

    for (const char *c = component; *c != '\0'; c++)
        hash = (hash ^ (unsigned char)*c) * 16777619u;
    window = &log->windows[hash % WINDOWS];
    if (now_ms - window->began_ms >= WINDOW_MS) {
        window->began_ms = now_ms;
        window->written = 0;
    }
    if (window->written >= RATE_PER_TEN_SECONDS) {
        window->left_out++;
        atomic_fetch_add_explicit(&log->suppressed, 1, memory_order_relaxed);
        return false;
    }
    window->written++;
    *left_out = window->left_out;
    window->left_out = 0;
    return true;
}

static void put_time(struct kvd_out *line)
{
    struct timespec now;
    struct tm parts;

    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &parts);
    kvd_out_printf(line, "%04d-%02d-%02dT%02d:%02d:%02d.%03ldZ", parts.tm_year + 1900,
        parts.tm_mon + 1, parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec,
        now.tv_nsec / 1000000);
}

static void put_json(struct kvd_out *line, enum kvg_level level, const char *component,
    const char *source, const char *message, uint32_t left_out)
{
    kvd_out_text(line, "{\"time\":\"");
    put_time(line);
    kvd_out_printf(
        line, "\",\"level\":\"%s\",\"component\":\"%s\"", LEVELS[level], component);
    if (source != NULL) {
        kvd_out_text(line, ",\"source\":");
        kvd_out_json(line, kvi_str(source));
    }
    kvd_out_text(line, ",\"msg\":");
    kvd_out_json(line, kvi_str(message));
    if (left_out > 0)
        kvd_out_printf(line, ",\"left_out\":%u", left_out);
    kvd_out_text(line, "}\n");
}

static void put_logfmt(struct kvd_out *line, enum kvg_level level, const char *component,
    const char *source, const char *message, uint32_t left_out)
{
    kvd_out_text(line, "time=");
    put_time(line);
    kvd_out_printf(line, " level=%s component=%s", LEVELS[level], component);
    if (source != NULL) {
        kvd_out_text(line, " source=");
        kvd_out_json(line, kvi_str(source));
    }
    kvd_out_text(line, " msg=");
    kvd_out_json(line, kvi_str(message));
    if (left_out > 0)
        kvd_out_printf(line, " left_out=%u", left_out);
    kvd_out_text(line, "\n");
}

static void write_line(struct kvd_log *log, enum kvg_level level, const char *component,
    const char *source, const char *message)
{
    uint32_t left_out = 0;
    ssize_t written;

    pthread_mutex_lock(&log->lock);
    if (may_write(log, level, component, &left_out)) {
        kvd_out_reset(&log->line, 16384);
        if (log->format == KVD_LOG_JSON)
            put_json(&log->line, level, component, source, message, left_out);
        else
            put_logfmt(&log->line, level, component, source, message, left_out);
        if (!log->line.failed) {
            written = write(log->fd, log->line.data, log->line.bytes);
            (void)written; /* There is nobody left to tell. */
        }
    }
    pthread_mutex_unlock(&log->lock);
}

void kvd_log(struct kvd_log *log, enum kvg_level level, const char *component,
    const char *source, const char *format, ...)
{
    char message[MESSAGE_BYTES];
    va_list arguments;

    if (log == NULL || (int)level < atomic_load(&log->level))
        return;
    va_start(arguments, format);
    vsnprintf(message, sizeof(message), format, arguments);
    va_end(arguments);
    write_line(log, level, component, source, message);
}

static void write_bound(
    void *context, enum kvg_level level, const char *component, const char *message)
{
    const struct kvd_log_bound *bound = context;

    if (bound->log != NULL && (int)level >= atomic_load(&bound->log->level))
        write_line(bound->log, level, component, bound->source, message);
}

void kvd_log_bind(struct kvd_log_bound *bound, struct kvd_log *log, const char *source)
{
    bound->log = log;
    bound->source = source;
    bound->as_log = (struct kvg_log){.write = write_bound, .context = bound};
}
