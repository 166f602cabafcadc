/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* feed.c -- the life of a source: index, workers, views, stream.
 *
 * Invariants:
 *
 *     F1  A roster that was given to a snapshot never changes: new workers make a new roster.
 *     F2  The order of tenants only grows, so a tenant's number in the shared block stays.
 *     F3  A new endpoint means a new subscriber: nothing that came from the old one is applied
 *         after the source was told.
 */
#include "daemon/feed_internal.h"

#include "base/alloc.h"
#include "base/fmt.h"
#include "daemon/advertised.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct kvd_shared *kvd_feed_shared(struct kvd_feed *feed)
{
    return &feed->shared;
}

/* Workers ---------------------------------------------------------------------------------- */

static void log_workers(struct kvd_feed *feed)
{
    const struct kvg_workers_view *view = &feed->roster->view;
    struct kvg_worker_report report;
    uint64_t from = 0;

    kvd_log(feed->context.log, KVG_LOG_INFO, "workers", feed->shared.config.name,
        "%zu workers, %zu usable, %zu layouts%s", view->worker_count, view->usable_count,
        view->layout_count, view->endpoints_differ ? ", endpoints differ" : "");
    while (kvg_workers_next(feed->roster->workers, from, &report)) {
        if (report.error.code != KVG_OK)
            kvd_log(feed->context.log, KVG_LOG_WARN, "workers", feed->shared.config.name,
                "worker %llu is unusable: %s %s", (unsigned long long)report.worker_id,
                report.error.field, report.error.message);
        if (report.worker_id == UINT64_MAX)
            break;
        from = report.worker_id + 1;
    }
}

/* The endpoint that it should be now. */
static void wanted_endpoint(const struct kvd_feed *feed, char out[KVD_URL_BYTES])
{
    struct kvg_str endpoint = kvi_str(feed->shared.config.endpoint);

    if (endpoint.bytes == 0)
        endpoint = feed->roster->view.endpoint;
    if (endpoint.bytes >= KVD_URL_BYTES)
        endpoint.bytes = 0;
    if (endpoint.bytes > 0)
        memcpy(out, endpoint.data, endpoint.bytes);
    out[endpoint.bytes] = '\0';
}

static void follow_endpoint(struct kvd_feed *feed)
{
    char wanted[KVD_URL_BYTES];
    struct kvg_error error;

    kvd_feed_pump_soon(feed);
    if (!feed->running || feed->source == NULL)
        return;
    wanted_endpoint(feed, wanted);
    if (strcmp(wanted, feed->endpoint) == 0)
        return;
    kvn_sub_free(feed->sub); /* F3 */
    feed->sub = NULL;
    memcpy(feed->endpoint, wanted, sizeof(wanted));
    kvg_source_endpoint_changed(feed->source, kvn_loop_now_ms(feed->context.loop));
    if (kvd_feed_open_stream(feed, &error) != KVG_OK)
        kvd_log(feed->context.log, KVG_LOG_ERROR, "stream", feed->shared.config.name,
            "%s %s", error.field, error.message);
}

kvg_err kvd_feed_set_workers(
    struct kvd_feed *feed, struct kvg_str text, struct kvg_error *error)
{
    struct kvd_roster *roster;
    kvg_err err =
        kvd_roster_new(feed->context.alloc, feed->roster_generation + 1, &roster);

    if (err != KVG_OK)
        return kvi_fail(error, err, "workers", "do not fit into memory");
    err = kvd_advertised_read(roster->workers, text, error);
    if (err == KVG_OK && feed->shared.dynamo != NULL)
        err = kvd_feed_dynamo_workers(feed, roster->workers, text, error);
    if (err != KVG_OK) {
        kvd_roster_release(feed->context.alloc, roster);
        return err;
    }
    kvg_workers_view(roster->workers, &roster->view);
    kvd_roster_release(feed->context.alloc, feed->roster); /* F1 */
    feed->roster = roster;
    feed->roster_generation++;
    log_workers(feed);
    follow_endpoint(feed);
    if (feed->context.on_changed != NULL)
        feed->context.on_changed(feed->context.context);
    return KVG_OK;
}

/* The whole file, of `bytes` bytes; the caller releases it. */
static char *read_whole(struct kvd_feed *feed, int fd, size_t bytes)
{
    char *text = kvi_alloc_array_raw(feed->context.alloc, bytes + 1, 1);
    size_t at = 0;

    while (text != NULL && at < bytes) {
        ssize_t got = read(fd, text + at, bytes - at);

        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) {
            kvi_release_array(feed->context.alloc, text, bytes + 1, 1);
            return NULL;
        }
        at += (size_t)got;
    }
    return text;
}

kvg_err kvd_feed_reload_workers(
    struct kvd_feed *feed, bool force, struct kvg_error *error)
{
    const char *path = feed->shared.config.workers_file;
    struct stat about;
    char message[192];
    char *text;
    kvg_err err;
    int fd;

    if (path[0] == '\0')
        return KVG_OK;
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &about) != 0) {
        snprintf(message, sizeof(message), "%.120s: %s", path, strerror(errno));
        if (fd >= 0)
            close(fd);
        return kvi_fail(error, KVG_EIO, "workers_file", message);
    }
    if (!force && about.st_size == feed->workers_file_bytes &&
        about.st_mtim.tv_sec == feed->workers_file_changed.tv_sec &&
        about.st_mtim.tv_nsec == feed->workers_file_changed.tv_nsec) {
        close(fd);
        return KVG_OK;
    }
    if (about.st_size > (off_t)KVD_WORKERS_JSON_BYTES_MAX) {
        close(fd);
        return kvi_fail_range(error, "workers_file.bytes", (uint64_t)about.st_size, 0,
            KVD_WORKERS_JSON_BYTES_MAX);
    }
    feed->workers_file_bytes = about.st_size;
    feed->workers_file_changed = about.st_mtim;
    text = read_whole(feed, fd, (size_t)about.st_size);
    close(fd);
    if (text == NULL)
        return kvi_fail(error, KVG_EIO, "workers_file", "cannot be read");
    err =
        kvd_feed_set_workers(feed, (struct kvg_str){text, (size_t)about.st_size}, error);
    kvi_release_array(feed->context.alloc, text, (size_t)about.st_size + 1, 1);
    return err;
}

/* Tenants and views ------------------------------------------------------------------------ */

kvg_err kvd_feed_add_tenant(
    struct kvd_feed *feed, struct kvg_str tenant, struct kvg_error *error)
{
    for (size_t i = 0; i < feed->tenant_count; i++) {
        if (kvi_str_equal(tenant, kvi_str(feed->tenants[i])))
            return KVG_OK;
    }
    if (tenant.bytes == 0 || tenant.bytes >= KVD_NAME_BYTES)
        return kvi_fail_range(error, "tenant.bytes", tenant.bytes, 1, KVD_NAME_BYTES - 1);
    if (memchr(tenant.data, '\0', tenant.bytes) != NULL)
        return kvi_fail(error, KVG_EINVAL, "tenant", "holds a zero byte");
    if (feed->tenant_count == KVD_TENANTS_MAX)
        return kvi_fail_range(error, "tenants", KVD_TENANTS_MAX + 1, 1, KVD_TENANTS_MAX);
    memcpy(feed->tenants[feed->tenant_count], tenant.data, tenant.bytes);
    feed->tenants[feed->tenant_count][tenant.bytes] = '\0';
    feed->tenant_count++; /* F2 */
    if (feed->context.on_changed != NULL)
        feed->context.on_changed(feed->context.context);
    return KVG_OK;
}

/* A layout that meets a limit of the index has no view and is refused when asked for; want of
 * memory is a failure, and tried again. */
static kvg_err make_views(struct kvd_feed *feed, struct kvd_tenant_views *tenant)
{
    struct kvg_error error;

    for (size_t i = 0; i < feed->roster->view.layout_count; i++) {
        const struct kvg_layout *layout = kvg_workers_layout(feed->roster->workers, i);
        kvg_err err = kvg_presence_view_new(feed->shared.index, layout,
            kvi_str(tenant->tenant), &error, &tenant->views[i]);

        if (err == KVG_ENOMEM)
            return err;
        if (err != KVG_OK)
            kvd_log(feed->context.log, KVG_LOG_WARN, "workers", feed->shared.config.name,
                "layout %zu cannot be asked for tenant \"%s\": %s %s", i, tenant->tenant,
                error.field, error.message);
    }
    return KVG_OK;
}

kvg_err kvd_feed_view(
    struct kvd_feed *feed, struct kvd_source_view *out, struct kvg_error *error)
{
    out->tenants =
        kvi_alloc_array(feed->context.alloc, feed->tenant_count, sizeof(*out->tenants));
    if (out->tenants == NULL)
        return kvi_fail(error, KVG_ENOMEM, "views", "do not fit into memory");
    out->tenant_count = feed->tenant_count;
    out->shared = &feed->shared;
    out->roster = feed->roster;
    out->roster->owners++;
    for (size_t i = 0; i < feed->tenant_count; i++) {
        memcpy(out->tenants[i].tenant, feed->tenants[i], KVD_NAME_BYTES);
        if (feed->shared.index != NULL && make_views(feed, &out->tenants[i]) != KVG_OK)
            return kvi_fail(error, KVG_ENOMEM, "views", "do not fit into memory");
    }
    return KVG_OK;
}

kvg_err kvd_feed_request_listing(struct kvd_feed *feed, struct kvg_error *error)
{
    if (feed->source == NULL || !feed->has_admin)
        return kvi_fail(error, KVG_ESTATE, "admin_url",
            "is not set, or the profile knows no listings: there is nothing to list");
    kvg_source_request_listing(feed->source, kvn_loop_now_ms(feed->context.loop));
    kvd_feed_pump_soon(feed);
    return KVG_OK;
}

/* Life ------------------------------------------------------------------------------------- */

void kvd_feed_free(struct kvd_feed *feed)
{
    const struct kvg_alloc *alloc;

    if (feed == NULL)
        return;
    alloc = feed->context.alloc;
    kvd_feed_stop(feed);
    for (size_t i = 0; i < feed->shared.seat_count; i++) {
        if (feed->shared.seats[i] != NULL)
            kvg_presence_reader_close(feed->shared.seats[i]);
    }
    kvi_release_array(
        alloc, feed->shared.seats, feed->context.seat_count, sizeof(*feed->shared.seats));
    kvg_source_free(feed->source);
    kvg_presence_free(feed->shared.index);
    kvg_dynamo_free(feed->shared.dynamo);
    kvd_roster_release(alloc, feed->roster);
    kvi_release_array(alloc, feed->tenants, KVD_TENANTS_MAX, KVD_NAME_BYTES);
    pthread_mutex_destroy(&feed->shared.dynamo_lock);
    pthread_mutex_destroy(&feed->shared.board_lock);
    KVI_FREE(alloc, feed);
}

static kvg_err make_index(struct kvd_feed *feed, struct kvg_error *error)
{
    struct kvg_presence_options options = {.struct_bytes = sizeof(options),
        .memory_bytes_max = (size_t)feed->shared.config.memory_bytes_max,
        .seed = feed->context.random_u64()};
    kvg_err err =
        kvg_presence_new(feed->context.alloc, &options, error, &feed->shared.index);

    if (err != KVG_OK)
        return err;
    feed->shared.seats = kvi_alloc_array(
        feed->context.alloc, feed->context.seat_count, sizeof(*feed->shared.seats));
    if (feed->shared.seats == NULL)
        return kvi_fail(error, KVG_ENOMEM, "http.threads", "do not fit into memory");
    for (size_t i = 0; i < feed->context.seat_count; i++) {
        err = kvg_presence_reader_open(feed->shared.index, &feed->shared.seats[i]);
        if (err != KVG_OK)
            return kvi_fail(error, err, "http.threads", "get no seat at the index");
        feed->shared.seat_count++;
    }
    kvd_feed_load(feed);
    return KVG_OK;
}

static kvg_err make_source(struct kvd_feed *feed, struct kvg_error *error)
{
    const struct kvd_source_config *config = &feed->shared.config;
    struct kvg_source_options options = {.struct_bytes = sizeof(options),
        .has_admin = feed->has_admin,
        .has_replay = config->replay[0] != '\0',
        .seed = feed->context.random_u64(),
        .silence_ms = (uint32_t)config->silence_ms,
        .status_interval_ms = (uint32_t)config->status_interval_ms,
        .count_interval_ms = (uint32_t)config->count_interval_ms,
        .listing_interval_ms = (uint32_t)config->listing_interval_ms,
        .listing_timeout_ms = (uint32_t)config->listing_timeout_ms,
        .retry_min_ms = (uint32_t)config->retry_min_ms,
        .retry_max_ms = (uint32_t)config->retry_max_ms,
        .drift_max = (double)config->drift_max_ppm / 1e6,
        .event_limits = {.struct_bytes = sizeof(struct kvg_event_limits),
            .message_bytes_max = (size_t)config->message_bytes_max},
        .log = &feed->log.as_log};
    kvg_err err = kvg_source_new(feed->context.alloc, feed->shared.index, &options,
        kvn_loop_now_ms(feed->context.loop), &feed->source);

    return err == KVG_OK ? err : kvi_fail(error, err, "source", kvg_strerror(err));
}

static kvg_err make_dynamo(struct kvd_feed *feed, struct kvg_error *error)
{
    struct kvg_dynamo_options options = {.struct_bytes = sizeof(options),
        .endpoint = kvi_str(feed->shared.config.endpoint),
        .seed = feed->context.random_u64(),
        .log = &feed->log.as_log};
    kvg_err err = kvg_dynamo_new(feed->context.alloc, &options, &feed->shared.dynamo);

    return err == KVG_OK ? err : kvi_fail(error, err, "profile", kvg_strerror(err));
}

kvg_err kvd_feed_new(const struct kvd_feed_context *context,
    const struct kvd_source_config *config, struct kvg_error *error,
    struct kvd_feed **out)
{
    struct kvd_feed *feed = KVI_NEW(context->alloc, struct kvd_feed);
    void (*on_changed)(void *on_changed_context) = context->on_changed;
    kvg_err err;

    *out = NULL;
    if (feed == NULL)
        return kvi_fail(error, KVG_ENOMEM, "source", "does not fit into memory");
    feed->context = *context;
    feed->context.on_changed = NULL; /* Not while it is made. */
    feed->shared.config = *config;
    feed->shared.config.workers_json = NULL;
    feed->pump = (struct kvn_timer){.on_due = kvd_feed_on_pump, .context = feed};
    pthread_mutex_init(&feed->shared.dynamo_lock, NULL);
    pthread_mutex_init(&feed->shared.board_lock, NULL);
    kvd_log_bind(&feed->log, context->log, feed->shared.config.name);
    err = kvi_fail(error, KVG_ENOMEM, "source", "does not fit into memory");
    feed->tenants = kvi_alloc_array(context->alloc, KVD_TENANTS_MAX, KVD_NAME_BYTES);
    if (feed->tenants == NULL)
        goto fail;
    err = kvd_feed_add_tenant(feed, kvi_str(feed->shared.config.tenant), error);
    if (err != KVG_OK)
        goto fail;
    if (config->admin_url[0] != '\0') {
        err = kvn_url_parse(kvi_str(config->admin_url), "admin_url", error, &feed->admin);
        if (err != KVG_OK)
            goto fail;
        feed->has_admin = true;
    }
    if (config->profile == KVD_PROFILE_DYNAMO_1_5) {
        err = make_dynamo(feed, error);
    } else {
        err = make_index(feed, error);
        if (err == KVG_OK)
            err = make_source(feed, error);
    }
    if (err == KVG_OK)
        err = kvd_feed_set_workers(feed,
            kvi_str(config->workers_json != NULL ? config->workers_json : "{}"), error);
    if (err == KVG_OK)
        err = kvd_feed_reload_workers(feed, true, error);
    if (err != KVG_OK)
        goto fail;
    feed->context.on_changed = on_changed;
    /* Before the first question: a new feed's worth is not that of one nobody has looked at. */
    kvd_feed_update_board(feed);
    if (feed->source != NULL)
        kvd_feed_update_worth(feed);
    *out = feed;
    return KVG_OK;

fail:
    kvd_feed_free(feed);
    return err;
}

kvg_err kvd_feed_start(struct kvd_feed *feed, struct kvg_error *error)
{
    kvg_err err;

    if (feed->running)
        return KVG_OK;
    if (feed->source != NULL) {
        wanted_endpoint(feed, feed->endpoint);
        err = kvd_feed_open_stream(feed, error);
        if (err != KVG_OK)
            return err;
    }
    feed->running = true;
    kvd_feed_pump_soon(feed);
    return KVG_OK;
}

void kvd_feed_stop(struct kvd_feed *feed)
{
    feed->running = false;
    kvn_timer_clear(feed->context.loop, &feed->pump);
    kvd_feed_cancel_all(feed);
    kvn_sub_free(feed->sub);
    feed->sub = NULL;
}

void kvd_feed_tick(struct kvd_feed *feed)
{
    struct kvg_error error;
    bool failed;

    if (feed->shared.index != NULL)
        kvg_presence_set_time(
            feed->shared.index, kvn_loop_now_ms(feed->context.loop) / 1000);
    failed = kvd_feed_reload_workers(feed, false, &error) != KVG_OK;
    if (failed && !feed->workers_file_failed)
        kvd_log(feed->context.log, KVG_LOG_WARN, "workers", feed->shared.config.name,
            "the workers stay as they are: %s %s", error.field, error.message);
    feed->workers_file_failed = failed;
    kvd_feed_update_board(feed);
}
