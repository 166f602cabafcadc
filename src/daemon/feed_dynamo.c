/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* feed_dynamo.c -- driving a source with the profile dynamo-1.5.
 *
 * There the stream's life is the client's own state machine: it says when the stream is to be
 * open.  ZeroMQ connects lazily, so "connected" means that the endpoint was taken; a connection
 * that breaks and comes back is no news to the client, as with the original.
 *
 * All calls of the client are under the lock that its readers take too.
 */
#include "daemon/feed_internal.h"

#include "base/fmt.h"
#include "daemon/advertised.h"

#include <string.h>

static uint64_t now_ms(const struct kvd_feed *feed)
{
    return kvn_loop_now_ms(feed->context.loop);
}

/* Workers ---------------------------------------------------------------------------------- */

struct taking {
    struct kvd_feed *feed;
    struct kvg_error *error;
    kvg_err err;
};

static void take_worker(
    void *context, uint64_t worker_id, const struct kvg_worker_config *config)
{
    struct taking *taking = context;
    struct kvg_error reason;

    if (kvg_dynamo_set_worker(taking->feed->shared.dynamo, worker_id, config, &reason) ==
        KVG_ENOMEM)
        taking->err =
            kvi_fail(taking->error, KVG_ENOMEM, "workers", "do not fit into memory");
}

static void take_bad(void *context, uint64_t worker_id, const struct kvg_error *reason)
{
    struct taking *taking = context;

    (void)reason;
    kvg_dynamo_remove_worker(taking->feed->shared.dynamo, worker_id);
}

kvg_err kvd_feed_dynamo_workers(struct kvd_feed *feed, const struct kvg_workers *fresh,
    struct kvg_str text, struct kvg_error *error)
{
    struct taking taking = {.feed = feed, .error = error, .err = KVG_OK};
    struct kvg_worker_report report;
    struct kvg_worker_report same;
    uint64_t from = 0;
    kvg_err err;

    pthread_mutex_lock(&feed->shared.dynamo_lock);
    while (
        feed->roster != NULL && kvg_workers_next(feed->roster->workers, from, &report)) {
        if (!kvg_workers_next(fresh, report.worker_id, &same) ||
            same.worker_id != report.worker_id)
            kvg_dynamo_remove_worker(feed->shared.dynamo, report.worker_id);
        if (report.worker_id == UINT64_MAX)
            break;
        from = report.worker_id + 1;
    }
    err = kvd_advertised_each(text, error, take_worker, take_bad, &taking);
    pthread_mutex_unlock(&feed->shared.dynamo_lock);
    return err != KVG_OK ? err : taking.err;
}

/* The stream ------------------------------------------------------------------------------- */

static void open_stream(struct kvd_feed *feed, struct kvg_str endpoint)
{
    struct kvg_error error = {.code = KVG_OK};
    bool good = endpoint.bytes < sizeof(feed->endpoint);

    if (good) {
        if (endpoint.bytes > 0)
            memcpy(feed->endpoint, endpoint.data, endpoint.bytes);
        feed->endpoint[endpoint.bytes] = '\0';
        good = kvd_feed_open_stream(feed, &error) == KVG_OK;
    }
    kvg_dynamo_connected(feed->shared.dynamo, good, now_ms(feed));
}

void kvd_feed_dynamo_pump(struct kvd_feed *feed)
{
    struct kvg_dynamo *dynamo = feed->shared.dynamo;
    enum kvg_dynamo_state state;
    uint64_t deadline_ms;

    pthread_mutex_lock(&feed->shared.dynamo_lock);
    state = kvg_dynamo_step(dynamo, now_ms(feed));
    if (state != KVG_DYNAMO_STREAMING && feed->sub != NULL) {
        kvn_sub_free(feed->sub);
        feed->sub = NULL;
    }
    if (state == KVG_DYNAMO_CONNECTING)
        open_stream(feed, kvg_dynamo_stream_endpoint(dynamo));
    deadline_ms = kvg_dynamo_deadline_ms(dynamo);
    pthread_mutex_unlock(&feed->shared.dynamo_lock);
    atomic_store_explicit(
        &feed->shared.confidence, KVG_CONFIDENCE_FRESH, memory_order_relaxed);
    if (deadline_ms <= now_ms(feed))
        deadline_ms = now_ms(feed) + 1;
    if (deadline_ms != UINT64_MAX)
        kvn_timer_set(feed->context.loop, &feed->pump, deadline_ms);
}

void kvd_feed_dynamo_item(struct kvd_feed *feed, const struct kvn_sub_item *item)
{
    size_t kept = item->frame_count < KVN_FRAMES_MAX ? item->frame_count : KVN_FRAMES_MAX;

    pthread_mutex_lock(&feed->shared.dynamo_lock);
    if (item->kind == KVN_SUB_MESSAGE)
        kvg_dynamo_message(feed->shared.dynamo, item->frames, kept);
    else if (item->kind == KVN_SUB_REFUSED)
        kvg_dynamo_stream_ended(feed->shared.dynamo, now_ms(feed));
    pthread_mutex_unlock(&feed->shared.dynamo_lock);
}
