/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* daemon.c -- the life of a daemon.
 *
 *     new:    log, loop, ZeroMQ, resolver, feeds (indexes, dumps, workers), first snapshot
 *     start:  the loop's thread, then HTTP
 *     stop:   HTTP drains, then the loop ends, streams close, dumps are written
 *
 * Everything after `start` that touches feeds runs on the loop: reload posts itself there and
 * waits.
 *
 * Invariants:
 *
 *     D1  Feeds and the list of them are touched by the loop's thread only, or while it does not
 *         run.
 *     D2  A feed that leaves is stopped at once and freed when no snapshot names it any more.
 *     D3  A change that could not be published (no memory) is published by the next tick.
 */
#include "daemon/daemon_internal.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/fmt.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#define TICK_MS 250u
#define WAIT_NAP_NS 20000

static uint64_t random_u64(void)
{
    uint64_t value;

    if (getrandom(&value, sizeof(value), 0) != (ssize_t)sizeof(value))
        value = kvn_clock_us() * UINT64_C(0x9e3779b97f4a7c15);
    return value;
}

/* Publishing ------------------------------------------------------------------------------- */

kvg_err kvd_daemon_publish(struct kvd_daemon *daemon, struct kvg_error *error)
{
    struct kvd_snapshot *snapshot = kvd_snapshot_new(daemon->alloc, daemon->feed_count);
    kvg_err err = KVG_OK;

    if (snapshot == NULL)
        err = kvi_fail(error, KVG_ENOMEM, "snapshot", "does not fit into memory");
    for (size_t i = 0; err == KVG_OK && i < daemon->feed_count; i++)
        err = kvd_feed_view(daemon->feeds[i], &snapshot->sources[i], error);
    daemon->publish_failed = err != KVG_OK; /* D3 */
    if (err != KVG_OK) {
        kvd_snapshot_free(snapshot);
        return err;
    }
    kvd_publish(&daemon->publisher, snapshot);
    return KVG_OK;
}

static void on_changed(void *context)
{
    struct kvg_error error;

    if (kvd_daemon_publish(context, &error) != KVG_OK)
        kvd_log(((struct kvd_daemon *)context)->log, KVG_LOG_ERROR, "daemon", NULL,
            "%s %s", error.field, error.message);
}

/* D2 */
static void free_leaving(struct kvd_daemon *daemon)
{
    kvd_reap(&daemon->publisher);
    for (size_t i = daemon->leaving_count; i > 0; i--) {
        struct kvd_feed *feed = daemon->leaving[i - 1];

        if (kvd_publisher_names(&daemon->publisher, kvd_feed_shared(feed)))
            continue;
        kvd_feed_free(feed);
        daemon->leaving[i - 1] = daemon->leaving[--daemon->leaving_count];
    }
}

/* Sources ---------------------------------------------------------------------------------- */

struct kvd_feed *kvd_daemon_feed(struct kvd_daemon *daemon, struct kvg_str name)
{
    for (size_t i = 0; i < daemon->feed_count; i++) {
        if (name.data == NULL ||
            kvi_str_equal(name, kvi_str(kvd_feed_shared(daemon->feeds[i])->config.name)))
            return daemon->feeds[i];
    }
    return NULL;
}

static kvg_err make_feed(struct kvd_daemon *daemon,
    const struct kvd_source_config *config, struct kvg_error *error)
{
    struct kvd_feed_context context = {.alloc = daemon->alloc,
        .loop = daemon->loop,
        .zmq = daemon->zmq,
        .resolver = daemon->resolver,
        .log = daemon->log,
        .dump_path = daemon->config.dump_path,
        /* Later on, the name may be of another store. */
        .loads_dump = !daemon->thread_runs,
        .seat_count = daemon->answerer_count,
        .random_u64 = random_u64,
        .on_changed = on_changed,
        .context = daemon};
    kvg_err err;

    if (daemon->feed_count == KVD_SOURCES_MAX)
        return kvi_fail_range(error, "sources", KVD_SOURCES_MAX + 1, 0, KVD_SOURCES_MAX);
    if (kvd_daemon_feed(daemon, kvi_str(config->name)) != NULL)
        return kvi_fail(error, KVG_EEXIST, "source", "exists already");
    err = kvd_feed_new(&context, config, error, &daemon->feeds[daemon->feed_count]);
    if (err == KVG_OK)
        daemon->feed_count++;
    return err;
}

kvg_err kvd_daemon_add_source(struct kvd_daemon *daemon,
    const struct kvd_source_config *config, struct kvg_error *error)
{
    struct kvd_feed *feed;
    kvg_err err = make_feed(daemon, config, error);

    if (err != KVG_OK)
        return err;
    feed = daemon->feeds[daemon->feed_count - 1];
    err = kvd_feed_start(feed, error);
    if (err == KVG_OK)
        err = kvd_daemon_publish(daemon, error);
    if (err != KVG_OK) {
        daemon->feed_count--;
        kvd_feed_free(feed);
        return err;
    }
    kvd_log(daemon->log, KVG_LOG_INFO, "daemon", config->name, "source added");
    return KVG_OK;
}

kvg_err kvd_daemon_remove_source(
    struct kvd_daemon *daemon, struct kvg_str name, struct kvg_error *error)
{
    struct kvd_feed *feed = kvd_daemon_feed(daemon, name);
    size_t at = 0;

    if (feed == NULL)
        return kvi_fail(error, KVG_ENOENT, "source", "does not exist");
    if (daemon->leaving_count == sizeof(daemon->leaving) / sizeof(daemon->leaving[0]))
        return kvi_fail(error, KVG_EBUSY, "source",
            "cannot leave yet: too many are still on their way out");
    while (daemon->feeds[at] != feed)
        at++;
    kvd_feed_stop(feed);
    memmove(&daemon->feeds[at], &daemon->feeds[at + 1],
        (daemon->feed_count - at - 1) * sizeof(daemon->feeds[0]));
    daemon->feed_count--;
    daemon->leaving[daemon->leaving_count++] = feed; /* D2 */
    kvd_log(daemon->log, KVG_LOG_INFO, "daemon", kvd_feed_shared(feed)->config.name,
        "source removed");
    return kvd_daemon_publish(daemon, error);
}

/* The tick --------------------------------------------------------------------------------- */

static void dump_all(struct kvd_daemon *daemon)
{
    struct kvg_error error;

    for (size_t i = 0; i < daemon->feed_count; i++) {
        if (kvd_feed_dump(daemon->feeds[i], &error) != KVG_OK)
            continue; /* Said and counted where it happened. */
    }
}

static void on_tick(void *context)
{
    struct kvd_daemon *daemon = context;
    uint64_t now_ms = kvn_loop_now_ms(daemon->loop);

    for (size_t i = 0; i < daemon->feed_count; i++)
        kvd_feed_tick(daemon->feeds[i]);
    free_leaving(daemon);
    if (daemon->publish_failed)
        on_changed(daemon);
    kvd_pulse_tick(daemon, now_ms);
    if (daemon->config.dump_interval_ms > 0 && now_ms >= daemon->next_dump_ms) {
        dump_all(daemon);
        daemon->next_dump_ms = now_ms + daemon->config.dump_interval_ms;
    }
    kvn_timer_set(daemon->loop, &daemon->tick, now_ms + TICK_MS);
}

/* New and free ------------------------------------------------------------------------------ */

static void free_answerers(struct kvd_daemon *daemon)
{
    for (size_t i = 0; daemon->answerers != NULL && i < daemon->answerer_count; i++) {
        struct kvd_answerer *answerer = &daemon->answerers[i];

        kvd_scan_fini(&answerer->scan);
        kvi_release_array(daemon->alloc, answerer->keys, answerer->key_capacity,
            sizeof(*answerer->keys));
        kvi_release_array(daemon->alloc, answerer->ranges, answerer->range_capacity,
            sizeof(*answerer->ranges));
        for (size_t m = 0; m < KVD_MEMOS_MAX; m++)
            kvg_page_memo_free(answerer->memos[m].memo);
    }
    kvi_release_array(daemon->alloc, daemon->answerers, daemon->answerer_count,
        sizeof(*daemon->answerers));
    free(daemon->blocks);
    kvd_pulse_free(daemon->pulse);
}

void kvd_daemon_free(struct kvd_daemon *daemon)
{
    if (daemon == NULL)
        return;
    kvd_daemon_stop(daemon);
    kvd_publisher_fini(&daemon->publisher);
    for (size_t i = 0; i < daemon->feed_count; i++)
        kvd_feed_free(daemon->feeds[i]);
    for (size_t i = 0; i < daemon->leaving_count; i++)
        kvd_feed_free(daemon->leaving[i]);
    kvn_resolver_free(daemon->resolver);
    kvn_loop_free(daemon->loop);
    kvn_zmq_free(daemon->zmq);
    free_answerers(daemon);
    kvd_log_free(daemon->log);
    kvd_config_fini(&daemon->config);
    pthread_mutex_destroy(&daemon->http_lock);
    pthread_cond_destroy(&daemon->http_idle);
    KVI_FREE(daemon->alloc, daemon);
}

static kvg_err make_answerers(struct kvd_daemon *daemon, struct kvg_error *error)
{
    const struct kvd_config *config = &daemon->config;
    size_t listeners =
        (config->http_listen[0] != '\0') + (size_t)(config->http_unix_socket[0] != '\0');

    daemon->pages_max = config->http_pages_max;
    daemon->memo_bytes_max = config->memo_bytes_max;
    daemon->memo_seed = random_u64();
    atomic_store(&daemon->body_bytes_max, config->http_body_bytes_max);
    memcpy(daemon->token, config->http_token, sizeof(daemon->token));
    daemon->answerer_count = (size_t)config->http_threads * listeners;
    if (kvd_pulse_new(daemon->alloc, daemon->answerer_count, daemon->memo_seed,
            kvn_clock_ms(), &daemon->pulse) != KVG_OK)
        return kvi_fail(error, KVG_ENOMEM, "http.threads", "do not fit into memory");
    if (daemon->answerer_count == 0)
        return KVG_OK;
    daemon->answerers = kvi_alloc_array(
        daemon->alloc, daemon->answerer_count, sizeof(*daemon->answerers));
    daemon->blocks = aligned_alloc(
        _Alignof(struct kvd_block), daemon->answerer_count * sizeof(*daemon->blocks));
    if (daemon->answerers == NULL || daemon->blocks == NULL)
        return kvi_fail(error, KVG_ENOMEM, "http.threads", "do not fit into memory");
    memset(daemon->blocks, 0, daemon->answerer_count * sizeof(*daemon->blocks));
    for (size_t i = 0; i < daemon->answerer_count; i++) {
        daemon->answerers[i].seat = i;
        daemon->answerers[i].block = &daemon->blocks[i];
        kvd_scan_init(&daemon->answerers[i].scan, daemon->alloc);
    }
    return KVG_OK;
}

static kvg_err make_parts(struct kvd_daemon *daemon, struct kvg_error *error)
{
    kvg_err err = kvd_log_new(daemon->alloc, &daemon->config, error, &daemon->log);

    if (err != KVG_OK)
        return err;
    if ((err = kvn_loop_new(daemon->alloc, &daemon->loop)) != KVG_OK ||
        (err = kvn_zmq_new(daemon->alloc, &daemon->zmq)) != KVG_OK ||
        (err = kvn_resolver_new(kvg_alloc_default(), daemon->loop, &daemon->resolver)) !=
            KVG_OK)
        return kvi_fail(error, err, "daemon", kvg_strerror(err));
    err = make_answerers(daemon, error);
    for (uint32_t i = 0; err == KVG_OK && i < daemon->config.source_count; i++)
        err = make_feed(daemon, &daemon->config.sources[i], error);
    return err == KVG_OK ? kvd_daemon_publish(daemon, error) : err;
}

kvg_err kvd_daemon_new(
    const struct kvd_config *config, struct kvg_error *error, struct kvd_daemon **out)
{
    return kvd_daemon_new_in(kvg_alloc_default(), config, error, out);
}

kvg_err kvd_daemon_new_in(const struct kvg_alloc *alloc, const struct kvd_config *config,
    struct kvg_error *error, struct kvd_daemon **out)
{
    struct kvd_daemon *daemon = KVI_NEW(alloc, struct kvd_daemon);
    kvg_err err;

    *out = NULL;
    if (daemon == NULL)
        return kvi_fail(error, KVG_ENOMEM, "daemon", "does not fit into memory");
    daemon->alloc = alloc;
    daemon->started_s = (int64_t)time(NULL);
    daemon->tick = (struct kvn_timer){.on_due = on_tick, .context = daemon};
    pthread_mutex_init(&daemon->http_lock, NULL);
    pthread_cond_init(&daemon->http_idle, NULL);
    kvd_publisher_init(&daemon->publisher);
    err = kvd_config_copy(&daemon->config, config);
    if (err != KVG_OK)
        err = kvi_fail(error, err, "config", "does not fit into memory");
    else
        err = kvd_config_finish(&daemon->config, error);
    if (err == KVG_OK)
        err = make_parts(daemon, error);
    if (err != KVG_OK) {
        kvd_daemon_free(daemon);
        return err;
    }
    *out = daemon;
    return KVG_OK;
}

/* Start and stop ---------------------------------------------------------------------------- */

static void *run_loop(void *context)
{
    struct kvd_daemon *daemon = context;

    daemon->next_dump_ms = kvn_clock_ms() + daemon->config.dump_interval_ms;
    kvn_timer_set(daemon->loop, &daemon->tick, kvn_clock_ms());
    kvn_loop_run(daemon->loop);
    return NULL;
}

kvg_err kvd_daemon_start(struct kvd_daemon *daemon, struct kvg_error *error)
{
    kvg_err err = KVG_OK;

    if (daemon->thread_runs)
        return kvi_fail(error, KVG_ESTATE, "daemon", "has been started already");
    for (size_t i = 0; err == KVG_OK && i < daemon->feed_count; i++)
        err = kvd_feed_start(daemon->feeds[i], error);
    if (err != KVG_OK)
        return err;
    if (pthread_create(&daemon->thread, NULL, run_loop, daemon) != 0)
        return kvi_fail(error, KVG_EIO, "daemon", "the loop's thread cannot be started");
    daemon->thread_runs = true;
    err = kvd_http_start(daemon, error);
    if (err != KVG_OK) {
        kvd_daemon_stop(daemon);
        return err;
    }
    if (daemon->tcp != NULL)
        kvd_log(daemon->log, KVG_LOG_INFO, "http", NULL, "listening on %s, port %u%s",
            daemon->config.http_listen, (unsigned)daemon->port,
            daemon->token[0] != '\0' ? ", token needed" : "");
    if (daemon->unix_socket != NULL)
        kvd_log(daemon->log, KVG_LOG_INFO, "http", NULL, "listening on %s",
            daemon->config.http_unix_socket);
    return KVG_OK;
}

void kvd_daemon_stop(struct kvd_daemon *daemon)
{
    if (!daemon->thread_runs)
        return;
    kvd_http_stop(daemon);
    kvn_loop_stop(daemon->loop);
    pthread_join(daemon->thread, NULL);
    daemon->thread_runs = false;
    kvn_timer_clear(daemon->loop, &daemon->tick);
    for (size_t i = 0; i < daemon->feed_count; i++)
        kvd_feed_stop(daemon->feeds[i]);
    dump_all(daemon);
    kvd_log(daemon->log, KVG_LOG_INFO, "daemon", NULL, "stopped");
}

uint16_t kvd_daemon_port(const struct kvd_daemon *daemon)
{
    return daemon->port;
}

bool kvd_daemon_is_alive(const struct kvd_daemon *daemon, uint64_t within_ms)
{
    uint64_t last_ms = kvn_loop_last_turn_ms(daemon->loop);
    uint64_t now_ms = kvn_clock_ms();

    return now_ms < last_ms || now_ms - last_ms <= within_ms;
}

bool kvd_daemon_source_state(
    struct kvd_daemon *daemon, const char *name, struct kvd_source_state *out)
{
    struct kvd_snapshot *snapshot = kvd_snapshot_acquire(&daemon->publisher);
    const struct kvd_source_view *view = kvd_snapshot_source(snapshot, kvi_str(name));
    struct kvd_board board;
    bool found = view != NULL;

    memset(out, 0, sizeof(*out));
    if (found) {
        kvd_board_read(view->shared, &board);
        out->source = board.source;
        out->presence = board.presence;
        out->queue_bytes = board.sub.queue_bytes;
        out->messages_dropped = board.sub.dropped_messages;
    }
    kvd_snapshot_release(&daemon->publisher, snapshot);
    return found;
}

bool kvd_daemon_wait_messages(
    struct kvd_daemon *daemon, const char *name, uint64_t messages, uint64_t timeout_ms)
{
    struct kvd_snapshot *snapshot = kvd_snapshot_acquire(&daemon->publisher);
    const struct kvd_source_view *view = kvd_snapshot_source(snapshot, kvi_str(name));
    const struct timespec nap = {0, WAIT_NAP_NS};
    uint64_t ends_ms = kvn_clock_ms() + timeout_ms;
    bool done = false;

    while (view != NULL && !done) {
        done = atomic_load_explicit(
                   &view->shared->messages_applied, memory_order_acquire) >= messages;
        if (!done && kvn_clock_ms() > ends_ms)
            break;
        if (!done)
            nanosleep(&nap, NULL);
    }
    kvd_snapshot_release(&daemon->publisher, snapshot);
    return done;
}

/* Reload ------------------------------------------------------------------------------------ */

struct reload {
    struct kvd_daemon *daemon;
    const struct kvd_config *config;
    struct kvg_error *error;
    kvg_err err;
    struct kvn_task task;
    pthread_mutex_t lock;
    pthread_cond_t done;
    bool is_done;
};

static bool same_source(
    const struct kvd_source_config *a, const struct kvd_source_config *b)
{
    struct kvd_source_config left = *a;
    struct kvd_source_config right = *b;

    left.workers_json = NULL;
    right.workers_json = NULL;
    return memcmp(&left, &right, sizeof(left)) == 0;
}

/* Of a source that goes on: its workers may be others. */
static kvg_err renew_workers(struct kvd_feed *feed,
    const struct kvd_source_config *source, struct kvg_error *error)
{
    kvg_err err = KVG_OK;

    if (source->workers_json != NULL)
        err = kvd_feed_set_workers(feed, kvi_str(source->workers_json), error);
    return err == KVG_OK ? kvd_feed_reload_workers(feed, true, error) : err;
}

static const struct kvd_source_config *wanted(
    const struct kvd_config *config, const struct kvd_shared *shared)
{
    for (uint32_t i = 0; i < config->source_count; i++) {
        if (same_source(&config->sources[i], &shared->config))
            return &config->sources[i];
    }
    return NULL;
}

/* Goes on after a failure, so that one bad source does not keep the rest from changing; the first
 * failure is reported. */
static kvg_err renew_sources(
    struct kvd_daemon *daemon, const struct kvd_config *config, struct kvg_error *error)
{
    struct kvg_error later;
    kvg_err err = KVG_OK;

    for (size_t i = daemon->feed_count; i > 0; i--) {
        struct kvd_shared *shared = kvd_feed_shared(daemon->feeds[i - 1]);
        kvg_err failed = KVG_OK;

        if (wanted(config, shared) == NULL)
            failed = kvd_daemon_remove_source(
                daemon, kvi_str(shared->config.name), err == KVG_OK ? error : &later);
        err = err == KVG_OK ? failed : err;
    }
    for (uint32_t i = 0; i < config->source_count; i++) {
        const struct kvd_source_config *source = &config->sources[i];
        struct kvd_feed *feed = kvd_daemon_feed(daemon, kvi_str(source->name));
        struct kvg_error *into = err == KVG_OK ? error : &later;
        kvg_err failed = feed != NULL ? renew_workers(feed, source, into)
                                      : kvd_daemon_add_source(daemon, source, into);

        err = err == KVG_OK ? failed : err;
    }
    return err;
}

static void run_reload(void *context)
{
    struct reload *reload = context;
    struct kvd_daemon *daemon = reload->daemon;
    const struct kvd_config *config = reload->config;

    reload->err = kvd_log_reopen(daemon->log, config, reload->error);
    if (reload->err == KVG_OK)
        reload->err = renew_sources(daemon, config, reload->error);
    pthread_mutex_lock(&daemon->http_lock);
    memcpy(daemon->token, config->http_token, sizeof(daemon->token));
    pthread_mutex_unlock(&daemon->http_lock);
    atomic_store(&daemon->body_bytes_max, config->http_body_bytes_max);
    daemon->config.dump_interval_ms = config->dump_interval_ms;
    if (reload->err == KVG_OK)
        kvd_log(daemon->log, KVG_LOG_INFO, "daemon", NULL, "configuration read again");
    pthread_mutex_lock(&reload->lock);
    reload->is_done = true;
    pthread_cond_signal(&reload->done);
    pthread_mutex_unlock(&reload->lock);
}

kvg_err kvd_daemon_reload(
    struct kvd_daemon *daemon, const struct kvd_config *config, struct kvg_error *error)
{
    struct reload reload = {.daemon = daemon, .config = config, .error = error};

    if (!daemon->thread_runs)
        return kvi_fail(error, KVG_ESTATE, "daemon", "does not run");
    reload.task = (struct kvn_task){.run = run_reload, .context = &reload};
    pthread_mutex_init(&reload.lock, NULL);
    pthread_cond_init(&reload.done, NULL);
    kvn_loop_post(daemon->loop, &reload.task);
    pthread_mutex_lock(&reload.lock);
    while (!reload.is_done)
        pthread_cond_wait(&reload.done, &reload.lock);
    pthread_mutex_unlock(&reload.lock);
    pthread_mutex_destroy(&reload.lock);
    pthread_cond_destroy(&reload.done);
    return reload.err;
}
