/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* dynamo.c -- the profile "dynamo-1.5": its batches and its stream (dynamo.h).
 *
 *     keys      { "HEX_0_k", "HEX_0_v", ... }             every object believed stored
 *     groups    { "sglang-hicache:HEX" -> generation, verified }
 *     sequence  of the last batch, if there was one
 *
 * A batch is applied like this:
 *
 *     1  The sequence is noted first, whatever it is.
 *     2  Equal to the last one: the batch is ignored.
 *     3  Not the next one: everything is cleared, then the batch applies.
 *     4  Events in order: foreign tenants and events without an object key are skipped; stored
 *        adds the key and makes its group unverified; removed takes the key out, and its group
 *        or, without a label, all groups.
 *     5  More than entries_max keys and groups: everything is cleared, the sequence too.
 *
 * Invariants, checked by kvi_dynamo_check():
 *
 *     1  Workers are in strictly ascending order of id.
 *     2  Both sets are sound (strings.c).
 *     3  Between calls there are at most entries_max entries.
 *
 * Threads: one at a time.  Not here: what workers amount to (dynamo_workers.c), decoding
 * (dynamo_decode.c), lookups (dynamo_lookup.c).
 */
#include "source/dynamo_state.h"

#include "base/alloc.h"
#include "base/fmt.h"
#include "source/dynamo_decode.h"

#include <string.h>

void kvi_dynamo_log(
    const struct kvg_dynamo *dynamo, enum kvg_level level, const char *message)
{
    if (dynamo->log != NULL)
        dynamo->log->write(dynamo->log->context, level, "dynamo", message);
}

static void clear_entries(struct kvg_dynamo *dynamo)
{
    kvi_strings_clear(&dynamo->keys);
    kvi_strings_clear(&dynamo->groups);
}

void kvg_dynamo_clear(struct kvg_dynamo *dynamo)
{
    clear_entries(dynamo);
    dynamo->last_sequence = 0;
    dynamo->has_sequence = false;
}

static void log_gap(const struct kvg_dynamo *dynamo, uint64_t previous, uint64_t sequence)
{
    char message[128];
    struct kvi_text text;

    kvi_text_init(&text, message, sizeof(message));
    kvi_text_str(&text, "sequence gap from ");
    kvi_text_u64(&text, previous);
    kvi_text_str(&text, " to ");
    kvi_text_u64(&text, sequence);
    kvi_text_str(&text, ": everything was cleared");
    kvi_dynamo_log(dynamo, KVG_LOG_WARN, message);
}

static void apply_stored(struct kvg_dynamo *dynamo, const struct kvi_dynamo_event *event)
{
    struct kvi_string *group;

    dynamo->stats.stored++;
    if (event->object_key.bytes > KVG_DYNAMO_STRING_BYTES_MAX)
        dynamo->stats.long_strings++;
    else if (kvi_strings_put(&dynamo->keys, event->object_key) == NULL)
        dynamo->stats.no_memory++;
    if (event->group.bytes == 0)
        return;
    if (event->group.bytes > KVG_DYNAMO_STRING_BYTES_MAX) {
        dynamo->stats.long_strings++;
        return;
    }
    group = kvi_strings_put(&dynamo->groups, event->group);
    if (group == NULL) {
        dynamo->stats.no_memory++;
        return;
    }
    group->value = dynamo->last_sequence;
    group->flag = false;
}

static void apply_removed(struct kvg_dynamo *dynamo, const struct kvi_dynamo_event *event)
{
    dynamo->stats.removed++;
    kvi_strings_remove(&dynamo->keys, event->object_key);
    if (event->group.bytes != 0)
        kvi_strings_remove(&dynamo->groups, event->group);
    else
        kvi_strings_clear(&dynamo->groups);
}

static void apply_event(struct kvg_dynamo *dynamo, const struct kvi_dynamo_event *event)
{
    if (event->tenant.bytes != 0 && !kvi_str_equal(event->tenant, kvi_str("default")))
        dynamo->stats.foreign_tenants++;
    else if (event->object_key.data == NULL)
        dynamo->stats.keyless_events++;
    else if (kvi_str_equal(event->type, kvi_str("stored")))
        apply_stored(dynamo, event);
    else if (kvi_str_equal(event->type, kvi_str("removed")))
        apply_removed(dynamo, event);
    else
        dynamo->stats.other_events++;
}

static void apply_batch(
    struct kvg_dynamo *dynamo, uint64_t sequence, struct kvi_dynamo_batch *batch)
{
    bool had = dynamo->has_sequence;
    uint64_t previous = dynamo->last_sequence;
    struct kvi_dynamo_event event;

    dynamo->stats.batches++;
    dynamo->has_sequence = true; /* 1 */
    dynamo->last_sequence = sequence;
    if (had && sequence == previous) { /* 2 */
        dynamo->stats.duplicates++;
        return;
    }
    if (had && sequence != previous + 1) { /* 3 */
        clear_entries(dynamo);
        dynamo->stats.gap_clears++;
        log_gap(dynamo, previous, sequence);
    }
    while (kvi_dynamo_batch_next(batch, &event)) /* 4 */
        apply_event(dynamo, &event);
    if (dynamo->keys.count + dynamo->groups.count > dynamo->entries_max) { /* 5 */
        kvg_dynamo_clear(dynamo);
        dynamo->stats.size_clears++;
        kvi_dynamo_log(dynamo, KVG_LOG_WARN, "too many entries: everything was cleared");
    }
}

void kvg_dynamo_message(
    struct kvg_dynamo *dynamo, const struct kvg_str *frames, size_t frame_count)
{
    struct kvi_dynamo_batch batch;
    const char *why;

    if (frame_count != 3)
        why = "a message has not three frames";
    else if (frames[1].bytes != 8)
        why = "a sequence frame has not 8 bytes";
    else if (frames[2].bytes > KVG_EVENT_MESSAGE_BYTES_DEFAULT)
        why = "a payload is over 64 MiB";
    else
        why = kvi_dynamo_batch_begin(frames[2], &batch);
    if (why != NULL) {
        dynamo->stats.errors++;
        kvi_dynamo_log(dynamo, KVG_LOG_WARN, why);
        return;
    }
    apply_batch(dynamo, kvi_load_be64((const uint8_t *)frames[1].data), &batch);
}

/* The stream ----------------------------------------------------------------------------- */

static void pause_stream(struct kvg_dynamo *dynamo, uint64_t now_ms)
{
    dynamo->state = KVG_DYNAMO_PAUSED;
    dynamo->deadline_ms = now_ms + KVG_DYNAMO_RECONNECT_MS;
    dynamo->stream_bytes = 0;
}

static void start_connecting(struct kvg_dynamo *dynamo)
{
    kvg_dynamo_clear(dynamo);
    dynamo->state = KVG_DYNAMO_CONNECTING;
    dynamo->stream_bytes = dynamo->endpoint.bytes;
    memcpy(dynamo->stream_text, dynamo->endpoint.data, dynamo->endpoint.bytes);
}

enum kvg_dynamo_state kvg_dynamo_step(struct kvg_dynamo *dynamo, uint64_t now_ms)
{
    if (dynamo->state == KVG_DYNAMO_PAUSED && now_ms >= dynamo->deadline_ms)
        dynamo->state = KVG_DYNAMO_WAITING;
    if (dynamo->state == KVG_DYNAMO_WAITING) {
        if (kvi_dynamo_resolve(dynamo))
            start_connecting(dynamo);
    } else if (dynamo->state == KVG_DYNAMO_STREAMING) {
        struct kvg_str stream = {dynamo->stream_text, dynamo->stream_bytes};

        if (!kvi_dynamo_resolve(dynamo) || !kvi_str_equal(stream, dynamo->endpoint))
            pause_stream(dynamo, now_ms);
    }
    return dynamo->state;
}

uint64_t kvg_dynamo_deadline_ms(const struct kvg_dynamo *dynamo)
{
    return dynamo->state == KVG_DYNAMO_PAUSED ? dynamo->deadline_ms : UINT64_MAX;
}

struct kvg_str kvg_dynamo_stream_endpoint(const struct kvg_dynamo *dynamo)
{
    if (dynamo->stream_bytes == 0)
        return (struct kvg_str){NULL, 0};
    return (struct kvg_str){dynamo->stream_text, dynamo->stream_bytes};
}

void kvg_dynamo_connected(struct kvg_dynamo *dynamo, bool ok, uint64_t now_ms)
{
    if (dynamo->state != KVG_DYNAMO_CONNECTING)
        return;
    if (ok) {
        dynamo->state = KVG_DYNAMO_STREAMING;
        return;
    }
    dynamo->stats.errors++;
    kvi_dynamo_log(dynamo, KVG_LOG_WARN, "could not connect; trying again");
    pause_stream(dynamo, now_ms);
}

void kvg_dynamo_stream_ended(struct kvg_dynamo *dynamo, uint64_t now_ms)
{
    if (dynamo->state != KVG_DYNAMO_STREAMING)
        return;
    dynamo->stats.errors++;
    kvi_dynamo_log(dynamo, KVG_LOG_WARN, "the stream ended; connecting again");
    pause_stream(dynamo, now_ms);
}

void kvg_dynamo_stop(struct kvg_dynamo *dynamo)
{
    dynamo->state = KVG_DYNAMO_STOPPED;
    dynamo->stream_bytes = 0;
}

void kvg_dynamo_workers_closed(struct kvg_dynamo *dynamo)
{
    kvg_dynamo_clear(dynamo);
    kvg_dynamo_stop(dynamo);
}

/* Making, asking ------------------------------------------------------------------------- */

kvg_err kvg_dynamo_new(const struct kvg_alloc *alloc,
    const struct kvg_dynamo_options *options, struct kvg_dynamo **out)
{
    struct kvg_dynamo *dynamo;

    *out = NULL;
    if (options->struct_bytes < sizeof(*options) ||
        options->endpoint.bytes > KVG_ENDPOINT_BYTES_MAX)
        return KVG_EINVAL;
    dynamo = KVI_NEW(alloc, struct kvg_dynamo);
    if (dynamo == NULL)
        return KVG_ENOMEM;
    dynamo->alloc = alloc;
    dynamo->log = options->log;
    dynamo->entries_max =
        options->entries_max == 0 ? KVG_DYNAMO_ENTRIES_MAX : options->entries_max;
    dynamo->override_bytes = options->endpoint.bytes;
    if (options->endpoint.bytes != 0)
        memcpy(dynamo->override_text, options->endpoint.data, options->endpoint.bytes);
    dynamo->workers_changed = true;
    kvi_strings_init(&dynamo->keys, alloc, options->seed);
    kvi_strings_init(&dynamo->groups, alloc, options->seed + 1);
    *out = dynamo;
    return KVG_OK;
}

void kvg_dynamo_free(struct kvg_dynamo *dynamo)
{
    if (dynamo == NULL)
        return;
    clear_entries(dynamo);
    while (dynamo->worker_count != 0)
        KVI_FREE(dynamo->alloc, dynamo->workers[--dynamo->worker_count]);
    kvi_release_array(
        dynamo->alloc, dynamo->workers, dynamo->worker_room, sizeof(dynamo->workers[0]));
    KVI_FREE(dynamo->alloc, dynamo);
}

void kvg_dynamo_stats(const struct kvg_dynamo *dynamo, struct kvg_dynamo_stats *out)
{
    struct kvg_dynamo_stats stats = dynamo->stats;

    stats.struct_bytes = out->struct_bytes;
    stats.present_keys = dynamo->keys.count;
    stats.group_states = dynamo->groups.count;
    stats.has_sequence = dynamo->has_sequence;
    stats.last_sequence = dynamo->last_sequence;
    stats.memory_bytes = sizeof(*dynamo) + dynamo->keys.memory_bytes +
                         dynamo->groups.memory_bytes +
                         dynamo->worker_room * sizeof(dynamo->workers[0]) +
                         dynamo->worker_count * sizeof(*dynamo->workers[0]);
    memcpy(out, &stats,
        out->struct_bytes < sizeof(stats) ? out->struct_bytes : sizeof(stats));
}

int kvi_dynamo_check(const struct kvg_dynamo *dynamo)
{
    size_t i;

    for (i = 1; i < dynamo->worker_count; i++) {
        if (dynamo->workers[i - 1]->id >= dynamo->workers[i]->id)
            return 1;
    }
    if (kvi_strings_check(&dynamo->keys) != 0 || kvi_strings_check(&dynamo->groups) != 0)
        return 2;
    return dynamo->keys.count + dynamo->groups.count <= dynamo->entries_max ? 0 : 3;
}

bool kvi_dynamo_has_key(const struct kvg_dynamo *dynamo, struct kvg_str key)
{
    return kvi_strings_find(&dynamo->keys, key) != NULL;
}

bool kvi_dynamo_has_group(
    const struct kvg_dynamo *dynamo, struct kvg_str group, bool *verified_out)
{
    const struct kvi_string *entry = kvi_strings_find(&dynamo->groups, group);

    *verified_out = entry != NULL && entry->flag;
    return entry != NULL;
}
