/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* source.c -- what to do with a stream of events about one store (source.h): what happened.
 *
 *     message --> frames --> first event --> kvi_life_judge --> next, first --> apply
 *                   |                            |
 *                   | not three: count           +--> duplicate, late ------> count
 *                                                +--> gap, and a replay ----> hold, fetch
 *                                                +--> gap, jump, unreadable-> lose, apply
 *                                                +--> restart --> clear, lose, apply
 *
 *     lose: a reason for the default tenant, "unlistable" for the others, a wish for a listing
 *     settle: after every call; what has become due, what has ended, what answers are worth
 *
 * A loss is never mended by hoping.  The reason stays until something proves that nothing is
 * missing: a listing that ran without a loss inside it, the publisher's word that all is cleared,
 * or a new life seen from its first message.
 *
 * Invariants, checked by kvi_source_check():
 *
 *     S1  The life's own (life.c).
 *     S2  Stream reasons and content reasons are kept apart.
 *     S3  A listing is in the index exactly while its phase is RUNNING or ENDING; its action is
 *         under way exactly while RUNNING.
 *     S4  A comparison under way has its action, or its count.
 *     S5  The index was told what the reasons amount to.
 *     S6  Without an admin port nothing is asked for.
 *     S7  A task that is to be handed out is active.
 *     S8  The replay's own (replay.c).
 */
#include "source/state.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/fmt.h"

/* Events that are read before they are applied together. */
#define EVENTS_AT_ONCE 64u

void kvi_source_set_time(struct kvg_source *source, uint64_t now_ms)
{
    if (now_ms > source->now_ms)
        source->now_ms = now_ms;
    kvg_presence_set_time(source->index, source->now_ms / 1000);
}

uint64_t kvi_source_objects(const struct kvg_source *source)
{
    struct kvg_presence_stats stats = {.struct_bytes = sizeof(stats)};

    kvg_presence_stats(source->index, &stats);
    return stats.objects;
}

/* Something may be missing, for `reason`. */
void kvi_source_lose(struct kvg_source *source, uint32_t reason)
{
    source->losses++;
    source->default_reasons |= reason;
    if (reason != KVG_REASON_DRIFT)
        source->other_reasons |= KVG_REASON_UNLISTABLE;
    else if (source->others_seen)
        source->other_reasons |= KVG_REASON_DRIFT;
    kvi_trust_nobody(source);
    kvi_compare_abort(source);
    kvi_listing_want(source);
}

/* A new life: whatever the old one said is of another store. */
void kvi_source_begin_life(struct kvg_source *source)
{
    kvi_listing_cancel(source);
    kvi_replay_reset(source);
    kvi_compare_abort(source);
    kvg_presence_cleared(source->index, (struct kvg_str){NULL, 0});
    kvi_life_reset(&source->life);
    source->life_number++;
    source->losses++;
    source->has_status = false;
    source->confirming = false;
    source->others_seen = false;
    source->behind.active = false;
    source->stream_reasons &= ~(uint32_t)(KVG_REASON_BEHIND | KVG_REASON_KEYLESS);
    source->default_reasons = 0;
    source->other_reasons = 0;
    kvi_trust_nobody(source);
    source->compare.surplus = 0;
    source->compare.strikes = 0;
    source->compare.calibrating = false;
    source->compare.foreign_stored = 0;
    source->compare.foreign_removed = 0;
    if (source->options.has_admin) {
        source->stream_reasons |= KVG_REASON_UNCHECKED;
        kvi_status_soon(source);
    }
}

/* An index at its limit holds a part of what it was told, until a listing fits whole. */
static void settle_memory(struct kvg_source *source)
{
    struct kvg_presence_stats stats = {.struct_bytes = sizeof(stats)};

    kvg_presence_stats(source->index, &stats);
    if (stats.partial) { /* No listing brings back what others lost. */
        source->other_reasons |= KVG_REASON_UNLISTABLE;
        kvi_trust_nobody(source);
    }
    if (stats.partial == ((source->stream_reasons & KVG_REASON_MEMORY) != 0))
        return;
    source->stream_reasons ^= KVG_REASON_MEMORY;
    if (!stats.partial)
        return;
    kvi_source_log(source, KVI_LOG_MEMORY, KVG_LOG_WARN,
        "the index is at its limit and holds a part only: # objects", stats.objects, 0);
}

bool kvi_source_is_exact(const struct kvg_source *source)
{
    return source->life.epoch != 0 && !source->options.always_compare;
}

uint64_t kvi_source_silence_ms(const struct kvg_source *source)
{
    return source->life.epoch != 0 ? (uint64_t)3 * source->options.heartbeat_ms
                                   : source->options.silence_ms;
}

/* One step of everything that waits for time or for something else. */
void kvi_source_settle(struct kvg_source *source)
{
    uint64_t silent_ms = source->now_ms - source->heard_ms;

    kvi_behind_settle(source);
    kvi_replay_settle(source);
    if (silent_ms >= kvi_source_silence_ms(source) &&
        (source->stream_reasons & KVG_REASON_SILENCE) == 0) {
        source->stream_reasons |= KVG_REASON_SILENCE;
        if (!source->filled)
            kvi_listing_want(source);
        kvi_source_log(source, KVI_LOG_SILENCE, KVG_LOG_WARN,
            "neither a message nor a status for # ms", silent_ms, 0);
    }
    settle_memory(source);
    kvi_ask_settle(source);
    kvi_listing_settle(source);
    kvi_report_settle(source);
}

/* Applying events -------------------------------------------------------------------------- */

static void hear_cleared(struct kvg_source *source, struct kvg_str tenant)
{
    source->stats.cleared_events++;
    kvg_presence_cleared(source->index, tenant);
    if (!kvi_tenant_is_default(tenant)) {
        kvi_trust_tenant(source, tenant);
        return;
    }
    source->listing.tainted = true;
    if (!source->options.has_admin) /* Else the listing that is wanted will say. */
        source->default_reasons &= ~(uint32_t)KVI_LISTING_MENDS;
}

static void hear_keyless(struct kvg_source *source)
{
    source->stats.keyless_events++;
    if ((source->stream_reasons & KVG_REASON_KEYLESS) != 0)
        return;
    source->stream_reasons |= KVG_REASON_KEYLESS;
    kvi_listing_want(source);
    kvi_source_log(source, KVI_LOG_KEYLESS, KVG_LOG_ERROR,
        "the publisher does not say object keys: its stream cannot be followed", 0, 0);
}

/* Events about objects that were read and not yet applied. */
struct heard {
    size_t count;
    struct kvg_presence_event events[EVENTS_AT_ONCE];
};

static void apply_heard(struct kvg_source *source, struct heard *heard)
{
    size_t i;

    kvg_presence_apply(source->index, heard->events, heard->count);
    for (i = 0; i < heard->count; i++)
        *(heard->events[i].is_removal ? &source->compare.foreign_removed
                                      : &source->compare.foreign_stored) +=
            !heard->events[i].is_known;
    heard->count = 0;
}

static void hear_event(
    struct kvg_source *source, const struct kvg_event *event, struct heard *heard)
{
    struct kvg_str tenant = event->tenant_id;
    bool is_removal = event->kind != KVG_EVENT_STORED;

    if (event->form == KVG_FORM_ENGINE) {
        source->stats.foreign_events++;
        return;
    }
    if (tenant.bytes == 0)
        tenant = kvi_str("default");
    if (event->kind == KVG_EVENT_CLEARED) {
        apply_heard(source, heard); /* They came before. */
        hear_cleared(source, tenant);
        return;
    }
    if (event->object_key.bytes == 0) {
        hear_keyless(source);
        return;
    }
    if (!source->others_seen && !kvi_tenant_is_default(tenant))
        source->others_seen = true;
    if (heard->count == EVENTS_AT_ONCE)
        apply_heard(source, heard);
    heard->events[heard->count++] = (struct kvg_presence_event){.tenant = tenant,
        .object_key = event->object_key,
        .medium = is_removal && event->every_medium ? KVG_MEDIUM_UNKNOWN : event->medium,
        .is_removal = is_removal};
}

/* Applies a batch whose first event was read already, and completes its mark. */
static void apply(struct kvg_source *source, struct kvg_event *event, bool has_event,
    const struct kvg_event_counts *before, struct kvi_mark *mark)
{
    const struct kvg_event_counts *counts = &source->reader.counts;
    uint64_t event_count = 0;
    struct heard heard;

    heard.count = 0;
    mark->last_id = mark->first_id;
    while (has_event) {
        if (event->has_event_id && event_count != 0 && mark->has_id) {
            if (event->event_id <= mark->last_id)
                source->life.ids_useless = true;
            mark->last_id = event->event_id;
        }
        hear_event(source, event, &heard);
        event_count++;
        has_event = kvg_event_reader_next(&source->reader, event);
    }
    apply_heard(source, &heard);
    source->stats.events += event_count;
    mark->whole = counts->bad_events == before->bad_events &&
                  counts->bad_payloads == before->bad_payloads &&
                  counts->unknown_kinds == before->unknown_kinds;
    if (counts->bad_events != before->bad_events ||
        counts->bad_payloads != before->bad_payloads) {
        kvi_source_lose(source, KVG_REASON_BAD_MESSAGE);
        kvi_source_log(source, KVI_LOG_BAD, KVG_LOG_WARN,
            "message # has events that cannot be read", mark->sequence, 0);
    }
    kvi_compare_observe(source, event_count);
}

/* Messages --------------------------------------------------------------------------------- */

/* Enters a life in which this is the first message that is heard. */
static void enter_life(struct kvg_source *source, const struct kvi_mark *mark)
{
    if (kvi_mark_is_beginning(mark)) {
        source->default_reasons &= ~(uint32_t)KVG_REASON_LATE_JOIN;
        return;
    }
    if ((source->default_reasons & KVG_REASON_LATE_JOIN) != 0)
        return;
    kvi_source_lose(source, KVG_REASON_LATE_JOIN);
    kvi_source_log(source, KVI_LOG_LATE_JOIN, KVG_LOG_INFO,
        "joined a running stream at message #", mark->sequence, 0);
}

static void meet_gap(struct kvg_source *source, const struct kvi_mark *mark)
{
    source->stats.gaps++;
    source->stats.missed_sequences += mark->sequence - source->life.position - 1;
    kvi_source_log(source, KVI_LOG_GAP, KVG_LOG_WARN, "gap: message # came after #",
        mark->sequence, source->life.position);
    kvi_source_lose(source, KVG_REASON_GAP);
}

static void meet_restart(struct kvg_source *source, const struct kvi_mark *mark)
{
    bool by_ids = source->life.has_message && mark->epoch == 0 &&
                  mark->sequence == source->life.position + 1;

    source->stats.restarts++;
    kvi_source_log(source, KVI_LOG_RESTART, KVG_LOG_WARN,
        "the publisher started again: message # came after #", mark->sequence,
        source->life.position);
    kvi_source_begin_life(source);
    source->life.began_by_ids = by_ids;
    if (source->options.has_admin) {
        source->default_reasons |= KVG_REASON_RESTART;
        kvi_listing_want(source);
    }
    enter_life(source, mark);
}

/* Not lost, but slow: the status was right and the grace time too short, or the status counts
 * something else than this stream's messages.  Either way the stream is followed where it is. */
static void meet_again(struct kvg_source *source)
{
    source->stats.resumed++;
    source->behind = (struct kvi_behind){
        .active = true,
        .target = source->life.position,
        .position = source->life.skip_from,
        .deadline_ms = source->now_ms + source->options.behind_grace_ms,
    };
    source->stream_reasons |= KVG_REASON_BEHIND;
    kvi_source_lose(source, KVG_REASON_GAP);
}

/* Whether the message is to be applied. */
static bool meet(
    struct kvg_source *source, const struct kvi_mark *mark, enum kvi_verdict verdict)
{
    switch (verdict) {
    case KVI_MESSAGE_FIRST:
        enter_life(source, mark);
        return true;
    case KVI_MESSAGE_NEXT:
        if (!source->life.has_message && mark->epoch != 0 && mark->sequence == 1)
            enter_life(source, mark); /* Numbers from 1 do not mean an empty store. */
        return true;
    case KVI_MESSAGE_JUMP:
        source->stats.jumps++;
        kvi_source_log(source, KVI_LOG_GAP, KVG_LOG_WARN,
            "message # follows in number, but not in its event ids", mark->sequence, 0);
        kvi_source_lose(source, KVG_REASON_GAP);
        return true;
    case KVI_MESSAGE_GAP:
        meet_gap(source, mark);
        return true;
    case KVI_MESSAGE_RESTART:
        meet_restart(source, mark);
        return true;
    case KVI_MESSAGE_BACK:
        meet_again(source);
        return true;
    case KVI_MESSAGE_DUPLICATE:
        source->stats.duplicates++;
        break;
    case KVI_MESSAGE_LATE:
        source->stats.late_messages++;
        break;
    case KVI_MESSAGE_UNKNOWN:
        kvi_source_lose(source, KVG_REASON_BAD_MESSAGE);
        kvi_status_soon(source);
        break;
    }
    return false;
}

static void read_first(struct kvg_source *source, const struct kvg_frames *frames,
    struct kvg_event *event, bool *has_event, struct kvi_mark *mark)
{
    *mark = (struct kvi_mark){
        .sequence = frames->sequence,
        .payload_bytes = frames->payload.bytes,
    };
    *has_event = false;
    mark->readable =
        kvg_event_reader_begin(&source->reader, frames->payload, NULL) == KVG_OK;
    if (!mark->readable)
        return;
    *has_event = kvg_event_reader_next(&source->reader, event);
    mark->has_id = *has_event && event->has_event_id;
    mark->first_id = mark->has_id ? event->event_id : 0;
    mark->has_timestamp = source->reader.has_timestamp;
    mark->timestamp_ms = source->reader.timestamp_ms;
    mark->epoch = source->reader.epoch;
    if (mark->epoch == 0 && source->life.epoch != 0 && source->reader.broken)
        mark->readable = false; /* What it would have said of its life is lost. */
    mark->is_empty_start = !*has_event && source->reader.epoch != 0 &&
                           source->reader.has_objects && source->reader.objects == 0;
}

bool kvi_source_is_of_this_life(
    struct kvg_source *source, const struct kvg_frames *frames)
{
    struct kvg_event_counts counts = source->reader.counts;
    struct kvg_event event;
    struct kvi_mark mark;
    bool has_event;

    read_first(source, frames, &event, &has_event, &mark);
    source->reader.counts = counts; /* It is read again when it is applied. */
    return !mark.readable || source->life.epoch == 0 || mark.epoch == source->life.epoch;
}

/* Where nothing but a replay can tell what was before: it is asked for from the first message. */
static bool begins_with_replay(const struct kvg_source *source,
    const struct kvi_mark *mark, enum kvi_verdict verdict)
{
    return verdict == KVI_MESSAGE_FIRST && mark->sequence > 1 && mark->epoch != 0 &&
           source->options.has_replay && !source->options.has_admin &&
           !source->life.has_position;
}

void kvi_source_take_message(struct kvg_source *source, const struct kvg_frames *frames)
{
    struct kvg_event_counts before = source->reader.counts;
    enum kvi_verdict verdict;
    struct kvg_event event;
    struct kvi_mark mark;
    bool has_event;

    read_first(source, frames, &event, &has_event, &mark);
    verdict = kvi_life_judge(
        &source->life, &mark, source->now_ms, source->options.behind_grace_ms);
    if (begins_with_replay(source, &mark, verdict)) {
        kvi_life_baseline(&source->life, 0, source->now_ms);
        source->life.epoch = mark.epoch;
        verdict = KVI_MESSAGE_GAP;
    }
    if (verdict == KVI_MESSAGE_GAP && kvi_replay_possible(source)) {
        source->stream_reasons &= ~(uint32_t)KVG_REASON_NOTHING_YET;
        kvi_replay_hold(source, frames);
        return;
    }
    if (!meet(source, &mark, verdict))
        return;
    if (source->reader.has_objects)
        source->stats.store_objects = source->reader.objects;
    source->stream_reasons &= ~(uint32_t)KVG_REASON_NOTHING_YET;
    if (mark.readable) {
        source->filled = true;
        apply(source, &event, has_event, &before, &mark);
    } else {
        kvi_source_lose(source, KVG_REASON_BAD_MESSAGE);
        kvi_source_log(source, KVI_LOG_BAD, KVG_LOG_WARN, "message # cannot be read",
            mark.sequence, 0);
    }
    kvi_life_accept(&source->life, &mark);
}

void kvg_source_message(struct kvg_source *source, const struct kvg_str *frames,
    size_t frame_count, uint64_t now_ms)
{
    struct kvg_frames parsed;
    size_t i;

    kvi_source_set_time(source, now_ms);
    source->stats.messages++;
    for (i = 0; i < frame_count; i++)
        source->stats.bytes += frames[i].bytes;
    source->heard_ms = source->now_ms;
    source->stats.last_message_ms = source->now_ms;
    source->stream_reasons &= ~(uint32_t)KVG_REASON_SILENCE;
    if (!source->connected)
        kvg_source_connected(source, now_ms);
    if (kvg_frames_parse(frames, frame_count, NULL, &parsed) != KVG_OK) {
        source->stats.bad_frames++;
        kvi_source_log(source, KVI_LOG_FRAMES, KVG_LOG_WARN,
            "a message of # frames is not of the expected form", frame_count, 0);
    } else {
        kvi_source_take_message(source, &parsed);
    }
    kvi_source_settle(source);
}

/* Connection ------------------------------------------------------------------------------- */

void kvg_source_connected(struct kvg_source *source, uint64_t now_ms)
{
    kvi_source_set_time(source, now_ms);
    source->connected = true;
    source->stream_reasons &= ~(uint32_t)KVG_REASON_NO_STREAM;
    source->stream_reasons |= KVG_REASON_NOTHING_YET;
    kvi_status_soon(source);
    kvi_source_settle(source);
}

void kvg_source_disconnected(struct kvg_source *source, uint64_t now_ms)
{
    kvi_source_set_time(source, now_ms);
    source->connected = false;
    source->stream_reasons &= ~(uint32_t)KVG_REASON_NOTHING_YET;
    source->stream_reasons |= KVG_REASON_NO_STREAM;
    kvi_compare_abort(source);
    kvi_source_settle(source);
}

void kvg_source_endpoint_changed(struct kvg_source *source, uint64_t now_ms)
{
    kvi_source_set_time(source, now_ms);
    kvi_task_cancel(source, KVI_TASK_STATUS);
    kvi_task_cancel(source, KVI_TASK_COUNT);
    kvi_source_begin_life(source);
    source->life.ids_useless = false;
    source->connected = false;
    source->filled = false;
    source->heard_ms = source->now_ms;
    source->stream_reasons = KVG_REASON_NO_STREAM;
    if (source->options.has_admin)
        source->stream_reasons |= KVG_REASON_UNCHECKED;
    source->reconnect_wanted = true;
    source->stats.reconnects++;
    kvi_source_settle(source);
}

void kvg_source_tick(struct kvg_source *source, uint64_t now_ms)
{
    kvi_source_set_time(source, now_ms);
    kvi_listing_step(source);
    kvi_source_settle(source);
}

void kvg_source_request_listing(struct kvg_source *source, uint64_t now_ms)
{
    kvi_source_set_time(source, now_ms);
    kvi_listing_want(source);
    source->listing.not_before_ms = source->now_ms;
    kvi_source_settle(source);
}

/* Making ----------------------------------------------------------------------------------- */

static void set_default(uint32_t *value, uint32_t otherwise)
{
    if (*value == 0)
        *value = otherwise;
}

static kvg_err read_options(
    struct kvg_source *source, const struct kvg_source_options *options)
{
    struct kvg_source_options *own = &source->options;

    if (options == NULL)
        return KVG_OK;
    if (options->struct_bytes < sizeof(*options))
        return KVG_EINVAL;
    *own = *options;
    /* Neither below 0, nor NaN. */
    return own->drift_max >= 0 && own->drift_max <= 1 ? KVG_OK : KVG_EINVAL;
}

static void fill_options(struct kvg_source_options *own)
{
    set_default(&own->silence_ms, 15000);
    set_default(&own->status_interval_ms, 5000);
    set_default(&own->count_interval_ms, 10000);
    set_default(&own->listing_interval_ms, 300000);
    set_default(&own->listing_timeout_ms, 60000);
    set_default(&own->retry_min_ms, 500);
    set_default(&own->retry_max_ms, 30000);
    set_default(&own->behind_grace_ms, 1000);
    set_default(&own->heartbeat_ms, 1000);
    set_default(&own->hold_messages_max, 4096);
    if (own->hold_bytes_max == 0)
        own->hold_bytes_max = (size_t)8 << 20;
    if (own->retry_max_ms < own->retry_min_ms)
        own->retry_max_ms = own->retry_min_ms;
    if (own->drift_max == 0)
        own->drift_max = 0.001;
}

kvg_err kvg_source_new(const struct kvg_alloc *alloc, struct kvg_presence *index,
    const struct kvg_source_options *options, uint64_t now_ms, struct kvg_source **out)
{
    struct kvg_source *source;
    kvg_err err;

    *out = NULL;
    source = KVI_NEW(alloc, struct kvg_source);
    if (source == NULL)
        return KVG_ENOMEM;
    source->alloc = alloc;
    source->index = index;
    err = read_options(source, options);
    if (err != KVG_OK) {
        kvg_source_free(source);
        return err;
    }
    fill_options(&source->options);
    kvg_event_reader_init(&source->reader, source->options.event_limits.struct_bytes == 0
                                               ? NULL
                                               : &source->options.event_limits);
    source->rng.state = source->options.seed;
    source->now_ms = now_ms;
    source->stats.suspect_since_ms = now_ms;
    source->heard_ms = now_ms;
    source->checked_ms = now_ms;
    source->next_id = 1;
    source->stream_reasons = KVG_REASON_NO_STREAM;
    if (source->options.has_admin)
        source->stream_reasons |= KVG_REASON_UNCHECKED;
    source->listing.due_ms = now_ms + source->options.listing_interval_ms;
    source->listing.not_before_ms = now_ms;
    if (kvi_source_objects(source) != 0) {
        source->filled = true;
        source->others_seen = true;
        kvi_source_lose(source, KVG_REASON_LOADED);
    }
    kvi_source_settle(source);
    *out = source;
    return KVG_OK;
}

void kvg_source_free(struct kvg_source *source)
{
    if (source == NULL)
        return;
    kvi_listing_cancel(source);
    kvi_replay_reset(source);
    KVI_FREE(source->alloc, source);
}

/* Checking --------------------------------------------------------------------------------- */

int kvi_source_check(const struct kvg_source *source)
{
    const struct kvi_listing *listing = &source->listing;
    const struct kvi_task *tasks = source->tasks;
    size_t i;

    if (kvi_life_check(&source->life) != 0)
        return 1;
    if ((source->stream_reasons & ~(uint32_t)KVI_STREAM_REASONS) != 0 ||
        ((source->default_reasons | source->other_reasons) & KVI_STREAM_REASONS) != 0)
        return 2;
    if ((listing->phase == KVI_LISTING_RUNNING) != tasks[KVI_TASK_LISTING].active)
        return 3;
    if ((source->compare.phase == KVI_COMPARE_COUNTING) != tasks[KVI_TASK_COUNT].active)
        return 4;
    if (!source->confidence_set ||
        source->default_confidence !=
            kvg_source_confidence(source, kvi_str("default"), NULL))
        return 5;
    for (i = 0; i < KVI_TASK_KINDS; i++) {
        if (tasks[i].active && !(i == KVI_TASK_REPLAY ? source->options.has_replay
                                                      : source->options.has_admin))
            return 6;
        if (tasks[i].to_hand_out && !tasks[i].active)
            return 7;
    }
    if (kvi_replay_check(source) != 0)
        return 8;
    return 0;
}
