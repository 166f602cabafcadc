/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* feed_stream.c -- messages into the state machine, its wishes out of it.
 *
 *     sub: message, connected, disconnected --> source --> index
 *                                                 |
 *     pump (timer at the source's deadline) ------+--> reconnect, ask, cancel
 *
 * A turn applies at most BATCH_ITEMS messages or BATCH_US of work, so that a flood does not keep
 * timers and answers of the admin port waiting.
 *
 * With the profile dynamo-1.5 another state machine stands in this one's place: feed_dynamo.c.
 */
#include "daemon/feed_internal.h"

#include "base/fmt.h"

#include <string.h>

#define BATCH_ITEMS 1024u
#define BATCH_US 5000u

static uint64_t now_ms(const struct kvd_feed *feed)
{
    return kvn_loop_now_ms(feed->context.loop);
}

void kvd_feed_update_board(struct kvd_feed *feed)
{
    struct kvd_shared *shared = &feed->shared;
    struct kvd_board board;

    memset(&board, 0, sizeof(board));
    board.source.struct_bytes = sizeof(board.source);
    board.presence.struct_bytes = sizeof(board.presence);
    board.dynamo.struct_bytes = sizeof(board.dynamo);
    if (feed->source != NULL)
        kvg_source_stats(feed->source, &board.source);
    if (shared->index != NULL)
        kvg_presence_stats(shared->index, &board.presence);
    if (feed->sub != NULL)
        kvn_sub_stats(feed->sub, &board.sub);
    if (shared->dynamo != NULL) {
        pthread_mutex_lock(&shared->dynamo_lock);
        kvg_dynamo_stats(shared->dynamo, &board.dynamo);
        pthread_mutex_unlock(&shared->dynamo_lock);
    }
    board.updated_ms = now_ms(feed);
    board.last_message_us_lag = feed->lag_us;
    board.admin_requests = feed->admin_requests;
    board.admin_failures = feed->admin_failures;
    board.dumps = feed->dumps;
    board.dump_failures = feed->dump_failures;
    board.loaded_pages = feed->loaded_pages;
    memcpy(board.endpoint, feed->endpoint, sizeof(board.endpoint));
    memcpy(board.admin_failure, feed->admin_failure, sizeof(board.admin_failure));
    pthread_mutex_lock(&shared->board_lock);
    shared->board = board;
    pthread_mutex_unlock(&shared->board_lock);
}

void kvd_feed_update_worth(struct kvd_feed *feed)
{
    struct kvd_shared *shared = &feed->shared;
    uint32_t reasons = 0;
    bool changed = false;

    for (size_t i = 0; i < feed->tenant_count; i++) {
        enum kvg_confidence confidence =
            kvg_source_confidence(feed->source, kvi_str(feed->tenants[i]), &reasons);

        changed |= reasons != atomic_exchange_explicit(&shared->tenant_reasons[i],
                                  reasons, memory_order_relaxed);
        if (i == 0)
            atomic_store_explicit(
                &shared->confidence, (int)confidence, memory_order_relaxed);
    }
    if (changed)
        kvd_feed_update_board(feed);
}

/* The state machine ------------------------------------------------------------------------ */

void kvd_feed_pump_soon(struct kvd_feed *feed)
{
    if (feed->running)
        kvn_timer_set(feed->context.loop, &feed->pump, now_ms(feed));
}

static void run_actions(struct kvd_feed *feed)
{
    struct kvg_source_action action;

    while (kvg_source_next_action(feed->source, &action)) {
        switch (action.kind) {
        case KVG_SOURCE_RECONNECT:
            kvd_log(feed->context.log, KVG_LOG_INFO, "stream", feed->shared.config.name,
                "opening the stream again");
            if (feed->sub != NULL)
                kvn_sub_connect(feed->sub, NULL);
            break;
        case KVG_SOURCE_CANCEL:
            kvd_feed_cancel_ask(feed, action.cancels);
            break;
        default:
            kvd_feed_ask(feed, &action);
            break;
        }
    }
}

void kvd_feed_on_pump(void *context)
{
    struct kvd_feed *feed = context;
    uint64_t deadline_ms;

    if (!feed->running)
        return;
    if (feed->source == NULL) {
        kvd_feed_dynamo_pump(feed);
        return;
    }
    kvg_source_tick(feed->source, now_ms(feed));
    run_actions(feed);
    kvd_feed_update_worth(feed);
    deadline_ms = kvg_source_deadline_ms(feed->source);
    if (deadline_ms <= now_ms(feed))
        deadline_ms = now_ms(feed) + 1;
    if (!feed->pump.set || feed->pump.due_ms > deadline_ms)
        kvn_timer_set(feed->context.loop, &feed->pump, deadline_ms);
}

/* The stream ------------------------------------------------------------------------------- */

static void log_item(const struct kvd_feed *feed, const struct kvn_sub_item *item)
{
    const char *what = item->kind == KVN_SUB_CONNECTED ? "connected to"
                       : item->kind == KVN_SUB_DISCONNECTED
                           ? "lost the connection to"
                           : "ZeroMQ does not take the endpoint";

    kvd_log(feed->context.log,
        item->kind == KVN_SUB_REFUSED ? KVG_LOG_WARN : KVG_LOG_INFO, "stream",
        feed->shared.config.name, "%s %s", what, feed->endpoint);
}

static void take_item(struct kvd_feed *feed, const struct kvn_sub_item *item)
{
    size_t kept = item->frame_count < KVN_FRAMES_MAX ? item->frame_count : KVN_FRAMES_MAX;

    if (item->kind == KVN_SUB_MESSAGE)
        atomic_store_explicit(
            &feed->shared.last_message_ms, now_ms(feed), memory_order_relaxed);
    else
        log_item(feed, item);
    if (feed->source == NULL)
        kvd_feed_dynamo_item(feed, item);
    else if (item->kind == KVN_SUB_MESSAGE)
        kvg_source_message(feed->source, item->frames, kept, now_ms(feed));
    else if (item->kind == KVN_SUB_CONNECTED)
        kvg_source_connected(feed->source, now_ms(feed));
    else
        kvg_source_disconnected(feed->source, now_ms(feed));
}

static void on_ready(void *context)
{
    struct kvd_feed *feed = context;
    const struct kvn_sub_item *item;
    uint64_t began_us = kvn_clock_us();
    uint64_t received_us = 0;

    for (unsigned i = 0; kvn_sub_take(feed->sub, &item); i++) {
        take_item(feed, item);
        if (item->kind == KVN_SUB_MESSAGE)
            atomic_fetch_add_explicit(
                &feed->shared.messages_applied, 1, memory_order_release);
        received_us = item->received_us;
        if (i + 1 >= BATCH_ITEMS ||
            ((i & 15) == 15 && kvn_clock_us() - began_us > BATCH_US)) {
            kvn_sub_again(feed->sub);
            break;
        }
    }
    if (received_us > 0)
        feed->lag_us = kvn_clock_us() - received_us;
    kvd_feed_pump_soon(feed);
}

kvg_err kvd_feed_open_stream(struct kvd_feed *feed, struct kvg_error *error)
{
    const struct kvd_source_config *config = &feed->shared.config;
    struct kvn_sub_options options = {.endpoint = feed->endpoint,
        .queue_bytes_max = config->queue_bytes_max,
        .message_bytes_max = config->message_bytes_max,
        .receive_hwm = (int)config->receive_hwm,
        .on_ready = on_ready,
        .context = feed};
    kvg_err err;

    err = kvn_sub_new(
        feed->context.alloc, feed->context.zmq, feed->context.loop, &options, &feed->sub);
    if (err != KVG_OK)
        return kvi_fail(error, err, "endpoint", "cannot start the subscriber");
    kvd_log(feed->context.log, KVG_LOG_INFO, "stream", config->name, "following %s",
        feed->endpoint[0] != '\0' ? feed->endpoint : "nobody: no endpoint is known");
    return KVG_OK;
}
