/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* feed_ask.c -- requests to the store's admin port, and their answers to the state machine.
 *
 * A listing and the metrics are handed on as they arrive; the small JSON answers are gathered
 * first, up to a limit.
 *
 * Invariants:
 *
 *     K1  Every ask ends in exactly one answer, one kvg_source_failed(), or a cancellation that
 *         the source asked for.
 *     K2  The state machine's wishes are not carried out from inside a body callback (a wish may
 *         be to cancel that very request): they wait for the pump.
 */
#include "daemon/feed_internal.h"

#include "base/alloc.h"
#include "base/fmt.h"

#include <stdio.h>

#define STATUS_BYTES_MAX (64u << 10)
#define METRICS_BYTES_MAX (16u << 20)
#define LISTING_BYTES_MAX (UINT64_C(1) << 40)
#define SMALL_TIMEOUT_MS 10000u
#define IDLE_MS 10000u

static uint64_t now_ms(const struct kvd_feed *feed)
{
    return kvn_loop_now_ms(feed->context.loop);
}

static void drop(struct kvd_ask *ask)
{
    struct kvd_ask **at = &ask->feed->asks;

    while (*at != ask)
        at = &(*at)->next;
    *at = ask->next;
    kvd_out_fini(&ask->body);
    KVI_FREE(ask->feed->context.alloc, ask);
}

static void fail(struct kvd_feed *feed, uint64_t action_id, const char *reason)
{
    feed->admin_failures++;
    snprintf(feed->admin_failure, sizeof(feed->admin_failure), "%s", reason);
    kvd_log(feed->context.log, KVG_LOG_WARN, "admin", feed->shared.config.name,
        "a request to the store's admin port failed: %s", reason);
    kvg_source_failed(feed->source, action_id, reason, now_ms(feed));
}

static void on_body(void *context, struct kvg_str bytes)
{
    struct kvd_ask *ask = context;

    if (ask->kind == KVG_SOURCE_FETCH_COUNT)
        kvd_admin_count_feed(&ask->count, bytes);
    else if (ask->kind == KVG_SOURCE_FETCH_LISTING)
        kvg_source_listing_data(
            ask->feed->source, ask->action_id, bytes, now_ms(ask->feed));
    else
        kvd_out_str(&ask->body, bytes);
    kvd_feed_pump_soon(ask->feed); /* K2 */
}

static bool read_number(struct kvg_str text, uint64_t *out)
{
    *out = 0;
    for (size_t i = 0; i < text.bytes; i++) {
        if (text.data[i] < '0' || text.data[i] > '9' ||
            __builtin_mul_overflow(*out, 10, out) ||
            __builtin_add_overflow(*out, (uint64_t)(text.data[i] - '0'), out))
            return false;
    }
    return text.bytes != 0;
}

static bool is_named(struct kvg_str name, const char *small)
{
    size_t i;

    for (i = 0; i < name.bytes && small[i] != '\0'; i++) {
        char letter = name.data[i];

        if (letter >= 'A' && letter <= 'Z')
            letter = (char)(letter - 'A' + 'a');
        if (letter != small[i])
            return false;
    }
    return i == name.bytes && small[i] == '\0';
}

/* A listing that says after which message it is the store. */
static void on_header(void *context, struct kvg_str name, struct kvg_str value)
{
    struct kvd_ask *ask = context;

    if (ask->kind != KVG_SOURCE_FETCH_LISTING)
        return;
    if (is_named(name, "x-kvgraft-epoch"))
        ask->has_epoch = read_number(value, &ask->epoch);
    else if (is_named(name, "x-kvgraft-sequence"))
        ask->has_sequence = read_number(value, &ask->sequence);
    else
        return;
    if (ask->has_epoch && ask->has_sequence)
        kvg_source_listing_stamp(ask->feed->source, ask->action_id, ask->epoch,
            ask->sequence, now_ms(ask->feed));
}

static void on_replayed(void *context, uint64_t sequence, struct kvg_str payload)
{
    struct kvd_ask *ask = context;

    kvg_source_replay_message(
        ask->feed->source, ask->action_id, sequence, payload, now_ms(ask->feed));
    kvd_feed_pump_soon(ask->feed); /* K2 */
}

static void on_replay_done(void *context, const char *reason)
{
    struct kvd_ask *ask = context;
    struct kvd_feed *feed = ask->feed;

    if (reason == NULL)
        kvg_source_replay_done(feed->source, ask->action_id, now_ms(feed));
    else
        kvg_source_failed(feed->source, ask->action_id, reason, now_ms(feed));
    drop(ask);
    kvd_feed_pump_soon(feed);
}

/* Hands a whole answer over; KVG_OK if it could be read. */
static kvg_err deliver(struct kvd_ask *ask, struct kvg_error *error)
{
    struct kvg_source *source = ask->feed->source;
    struct kvg_str body = {ask->body.data, ask->body.bytes};
    struct kvg_source_status status;
    kvg_err err = KVG_OK;

    if (ask->body.failed)
        return kvi_fail(error, KVG_ENOMEM, "answer", "does not fit into memory");
    switch (ask->kind) {
    case KVG_SOURCE_FETCH_STATUS:
        err = kvd_admin_status(body, error, &status);
        if (err == KVG_OK)
            kvg_source_status_answer(source, ask->action_id, &status, now_ms(ask->feed));
        break;
    case KVG_SOURCE_FETCH_COUNT:
        err = kvd_admin_count_end(&ask->count, error);
        if (err == KVG_OK)
            kvg_source_count_answer(
                source, ask->action_id, ask->count.key_count, now_ms(ask->feed));
        break;
    case KVG_SOURCE_FETCH_LISTING:
        kvg_source_listing_done(source, ask->action_id, now_ms(ask->feed));
        break;
    case KVG_SOURCE_FETCH_REPLAY: /* Not asked of the admin port. */
    case KVG_SOURCE_RECONNECT:
    case KVG_SOURCE_CANCEL:
        break;
    }
    return err;
}

static void on_done(void *context, kvg_err err, uint32_t status, const char *reason)
{
    struct kvd_ask *ask = context;
    struct kvd_feed *feed = ask->feed;
    struct kvg_error error = {.code = KVG_OK};
    char text[sizeof(error.field) + sizeof(error.message) + 2];

    (void)status;
    if (err == KVG_OK)
        err = deliver(ask, &error);
    if (err == KVG_OK) {
        feed->admin_failure[0] = '\0';
    } else {
        if (reason == NULL)
            snprintf(text, sizeof(text), "%s %s", error.field, error.message);
        fail(feed, ask->action_id, reason != NULL ? reason : text); /* K1 */
    }
    drop(ask);
    kvd_feed_pump_soon(feed);
}

static void choose(const struct kvd_feed *feed, const struct kvg_source_action *action,
    struct kvd_out *path, struct kvn_http_get_options *options)
{
    options->timeout_ms = SMALL_TIMEOUT_MS;
    options->idle_ms = IDLE_MS;
    switch (action->kind) {
    case KVG_SOURCE_FETCH_STATUS:
        kvd_out_text(path, "/kv_events/status");
        options->body_bytes_max = STATUS_BYTES_MAX;
        break;
    case KVG_SOURCE_FETCH_COUNT:
        kvd_out_text(path, "/metrics");
        options->body_bytes_max = METRICS_BYTES_MAX;
        break;
    case KVG_SOURCE_FETCH_LISTING:
        kvd_out_text(path, "/get_all_keys");
        options->body_bytes_max = LISTING_BYTES_MAX;
        options->timeout_ms = feed->shared.config.listing_timeout_ms;
        options->idle_ms = options->timeout_ms;
        break;
    case KVG_SOURCE_FETCH_REPLAY: /* Not asked of the admin port. */
    case KVG_SOURCE_RECONNECT:
    case KVG_SOURCE_CANCEL:
        break;
    }
}

static kvg_err start_replay(struct kvd_ask *ask, uint64_t first)
{
    struct kvd_feed *feed = ask->feed;
    struct kvn_replay_options options = {.endpoint = feed->shared.config.replay,
        .first = first,
        .message_bytes_max = feed->shared.config.message_bytes_max,
        .on_message = on_replayed,
        .on_done = on_replay_done,
        .context = ask};

    return kvn_replay_start(feed->context.alloc, feed->context.zmq, feed->context.loop,
        &options, &ask->replay);
}

static kvg_err start_get(struct kvd_ask *ask, const struct kvg_source_action *action)
{
    struct kvd_feed *feed = ask->feed;
    const struct kvg_alloc *alloc = feed->context.alloc;
    struct kvn_http_get_options options = {.url = &feed->admin};
    struct kvd_out path;
    kvg_err err = KVG_ENOMEM;

    kvd_out_init(&path, alloc);
    choose(feed, action, &path, &options);
    options.on_body = on_body;
    options.on_header = on_header;
    options.on_done = on_done;
    options.context = ask;
    options.path = (struct kvg_str){path.data, path.bytes};
    if (!path.failed)
        err = kvn_http_get_start(
            alloc, feed->context.loop, feed->context.resolver, &options, &ask->get);
    kvd_out_fini(&path);
    return err;
}

void kvd_feed_ask(struct kvd_feed *feed, const struct kvg_source_action *action)
{
    const struct kvg_alloc *alloc = feed->context.alloc;
    struct kvd_ask *ask;
    kvg_err err;

    feed->admin_requests++;
    if (!feed->has_admin && action->kind != KVG_SOURCE_FETCH_REPLAY) {
        fail(feed, action->id, "there is no admin_url");
        return;
    }
    ask = KVI_NEW(alloc, struct kvd_ask);
    if (ask == NULL) {
        fail(feed, action->id, "out of memory");
        return;
    }
    ask->feed = feed;
    ask->action_id = action->id;
    ask->kind = action->kind;
    ask->next = feed->asks;
    feed->asks = ask;
    kvd_out_init(&ask->body, alloc);
    kvd_admin_count_init(&ask->count);
    err = action->kind == KVG_SOURCE_FETCH_REPLAY ? start_replay(ask, action->sequence)
                                                  : start_get(ask, action);
    if (err != KVG_OK) {
        fail(feed, action->id, kvg_strerror(err));
        drop(ask);
    }
}

void kvd_feed_cancel_ask(struct kvd_feed *feed, uint64_t action_id)
{
    for (struct kvd_ask *ask = feed->asks; ask != NULL; ask = ask->next) {
        if (ask->action_id == action_id) {
            kvn_http_get_cancel(ask->get);
            kvn_replay_cancel(ask->replay);
            drop(ask);
            return;
        }
    }
}

void kvd_feed_cancel_all(struct kvd_feed *feed)
{
    while (feed->asks != NULL) {
        kvn_http_get_cancel(feed->asks->get);
        kvn_replay_cancel(feed->asks->replay);
        drop(feed->asks);
    }
}
