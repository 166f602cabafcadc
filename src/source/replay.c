/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* replay.c -- messages that were missed are fetched again, where the publisher keeps them.
 *
 *     position        target
 *        v              v
 *     ---*  .  .  .  .  *  ------>  live messages beyond the hole are held, in order
 *           |________|
 *            replayed: judged, applied and counted as if they had come by themselves
 *
 * Nothing is lost while this goes on: the position stays before the hole, answers are suspect
 * for the reason `replaying`, and the index is the store as it was at the position.  When the
 * hole is closed what was held follows, and no listing is needed.
 *
 * What is held is bounded in messages and bytes.  What does not fit is dropped, and is a hole
 * like any other afterwards: another replay fetches it.  A replay that brings nothing, that begins
 * behind what was asked for, or that fails TRIES times in a row is given up: the hole is then a
 * loss (source.c), as without a replay.
 *
 * Invariants, checked by kvi_replay_check():
 *
 *     R1  What is held lies beyond the position, in rising order, and within the bounds.
 *     R2  An action is under way, or anything held, only while a replay is wanted.
 *     R3  The reason `replaying` is given exactly while one is wanted.
 */
#include "source/state.h"

#include "base/alloc.h"
#include "base/assert.h"

#include <string.h>

#define TRIES 3u

struct kvi_held {
    struct kvi_held *next;
    uint64_t sequence;
    size_t bytes;
    char payload[];
};

static size_t held_size(size_t payload_bytes)
{
    return sizeof(struct kvi_held) + payload_bytes;
}

/* Takes the first held message out. */
static void release_first(struct kvg_source *source)
{
    struct kvi_replay *replay = &source->replay;
    struct kvi_held *first = replay->first;

    replay->first = first->next;
    if (replay->first == NULL)
        replay->last = NULL;
    replay->held_count--;
    replay->held_bytes -= first->bytes;
    kvi_release_array(source->alloc, first, held_size(first->bytes), 1);
}

/* Ends it, whatever it was at. */
void kvi_replay_reset(struct kvg_source *source)
{
    struct kvi_replay *replay = &source->replay;

    kvi_task_cancel(source, KVI_TASK_REPLAY);
    while (replay->first != NULL)
        release_first(source);
    *replay = (struct kvi_replay){.wanted = false};
    source->stream_reasons &= ~(uint32_t)KVG_REASON_REPLAYING;
}

/* Whether a hole can be closed by a replay now. */
bool kvi_replay_possible(const struct kvg_source *source)
{
    return source->options.has_replay && !source->replay.giving_up &&
           source->life.has_position;
}

/* Numbers up to `target` are out, and not here. */
void kvi_replay_want(struct kvg_source *source, uint64_t target)
{
    struct kvi_replay *replay = &source->replay;

    KVI_ASSERT(kvi_replay_possible(source));
    if (!replay->wanted) {
        replay->not_before_ms = source->now_ms;
        kvi_source_log(source, KVI_LOG_GAP, KVG_LOG_INFO,
            "messages up to # are fetched again, after #", target, source->life.position);
    }
    replay->wanted = true;
    source->stream_reasons |= KVG_REASON_REPLAYING;
    if (target > replay->target)
        replay->target = target;
}

/* Keeps a live message that lies beyond the hole. */
void kvi_replay_hold(struct kvg_source *source, const struct kvg_frames *frames)
{
    struct kvi_replay *replay = &source->replay;
    struct kvi_held *held;

    kvi_replay_want(source, frames->sequence);
    if (replay->last != NULL && frames->sequence <= replay->last->sequence)
        return;
    if (replay->held_count == source->options.hold_messages_max ||
        frames->payload.bytes > source->options.hold_bytes_max - replay->held_bytes) {
        source->stats.held_dropped++;
        return;
    }
    held = kvi_alloc_array_raw(source->alloc, held_size(frames->payload.bytes), 1);
    if (held == NULL) {
        source->stats.held_dropped++;
        return;
    }
    held->next = NULL;
    held->sequence = frames->sequence;
    held->bytes = frames->payload.bytes;
    if (held->bytes != 0)
        memcpy(held->payload, frames->payload.data, held->bytes);
    if (replay->last != NULL)
        replay->last->next = held;
    else
        replay->first = held;
    replay->last = held;
    replay->held_count++;
    replay->held_bytes += held->bytes;
}

/* The position has leapt: what is held from before it is of no use any more. */
void kvi_replay_pass(struct kvg_source *source)
{
    while (source->replay.first != NULL &&
           source->replay.first->sequence <= source->life.position)
        release_first(source);
}

/* Applies what is held, as far as it follows; all of it while giving up. */
static void drain(struct kvg_source *source)
{
    struct kvi_replay *replay = &source->replay;

    while (replay->first != NULL) {
        struct kvi_held *first = replay->first;
        struct kvg_frames frames = {
            {NULL, 0}, first->sequence, {first->payload, first->bytes}};

        if (first->sequence > source->life.position + 1 && !replay->giving_up)
            return;
        replay->first = first->next; /* A new life would release it under our feet. */
        if (replay->first == NULL)
            replay->last = NULL;
        replay->held_count--;
        replay->held_bytes -= first->bytes;
        if (first->sequence > source->life.position)
            kvi_source_take_message(source, &frames);
        kvi_release_array(source->alloc, first, held_size(first->bytes), 1);
    }
}

/* The hole stays: what comes after it is applied, and the loss is one. */
static void give_up(struct kvg_source *source)
{
    struct kvi_replay *replay = &source->replay;
    uint64_t target = replay->target;

    kvi_task_cancel(source, KVI_TASK_REPLAY);
    source->stats.replays_failed++;
    replay->giving_up = true;
    drain(source);
    if (replay->giving_up && target > source->life.position) {
        source->stats.gaps++;
        source->stats.missed_sequences += target - source->life.position;
        kvi_life_skip(&source->life, target);
        kvi_source_lose(source, KVG_REASON_GAP);
    }
    kvi_replay_reset(source);
}

static void failed(struct kvg_source *source)
{
    struct kvi_replay *replay = &source->replay;

    if (++replay->failures >= TRIES)
        give_up(source);
    else
        replay->not_before_ms =
            source->now_ms + kvi_backoff_ms(source, replay->failures - 1);
}

/* The action is over already. */
void kvi_replay_failed(struct kvg_source *source, const char *reason)
{
    kvi_source_log_failure(source, KVI_TASK_REPLAY, reason);
    failed(source);
}

void kvi_replay_settle(struct kvg_source *source)
{
    struct kvi_replay *replay = &source->replay;
    struct kvi_task *task = &source->tasks[KVI_TASK_REPLAY];

    if (!replay->wanted)
        return;
    if (task->active && source->now_ms >= task->give_up_ms) {
        kvi_task_cancel(source, KVI_TASK_REPLAY);
        kvi_replay_failed(source, "no answer in time");
    }
    drain(source);
    if (!replay->wanted)
        return;
    if (replay->first == NULL && source->life.position >= replay->target) {
        source->stats.replays++;
        kvi_replay_reset(source);
    } else if (!task->active && source->now_ms >= replay->not_before_ms) {
        replay->from = source->life.position + 1;
        kvi_task_start(source, KVI_TASK_REPLAY, KVI_ASK_TIMEOUT_MS);
    }
}

uint64_t kvi_replay_deadline_ms(const struct kvg_source *source)
{
    const struct kvi_task *task = &source->tasks[KVI_TASK_REPLAY];

    if (!source->replay.wanted)
        return UINT64_MAX;
    return task->active ? task->give_up_ms : source->replay.not_before_ms;
}

/* Answers ---------------------------------------------------------------------------------- */

/* One message of the answer; false when the hole cannot be closed by it. */
static bool take_replayed(struct kvg_source *source, const struct kvg_frames *frames)
{
    if (frames->sequence <= source->life.position) {
        source->stats.duplicates++;
        return true;
    }
    if (frames->sequence != source->life.position + 1 ||
        !kvi_source_is_of_this_life(source, frames))
        return false;
    source->stats.replayed_messages++;
    kvi_source_take_message(source, frames);
    return true;
}

void kvg_source_replay_message(struct kvg_source *source, uint64_t action_id,
    uint64_t sequence, struct kvg_str payload, uint64_t now_ms)
{
    struct kvi_task *task = &source->tasks[KVI_TASK_REPLAY];
    struct kvg_frames frames = {{NULL, 0}, sequence, payload};

    kvi_source_set_time(source, now_ms);
    if (task->active && task->id == action_id) {
        task->to_hand_out = false;
        task->give_up_ms = source->now_ms + KVI_ASK_TIMEOUT_MS;
        if (!take_replayed(source, &frames))
            give_up(source);
    }
    kvi_source_settle(source);
}

void kvg_source_replay_done(
    struct kvg_source *source, uint64_t action_id, uint64_t now_ms)
{
    struct kvi_replay *replay = &source->replay;

    kvi_source_set_time(source, now_ms);
    if (kvi_task_ended(source, KVI_TASK_REPLAY, action_id)) {
        drain(source);
        if (source->life.position >= replay->from) /* It brought something. */
            replay->failures = 0;
        else
            give_up(source);
    }
    kvi_source_settle(source);
}

int kvi_replay_check(const struct kvg_source *source)
{
    const struct kvi_replay *replay = &source->replay;
    const struct kvi_held *held;
    uint64_t before = source->life.position;
    size_t bytes = 0;
    size_t count = 0;

    for (held = replay->first; held != NULL; held = held->next) {
        if (held->sequence <= before || count++ == replay->held_count)
            return 1;
        before = held->sequence;
        bytes += held->bytes;
    }
    if (count != replay->held_count || bytes != replay->held_bytes ||
        count > source->options.hold_messages_max ||
        bytes > source->options.hold_bytes_max)
        return 1;
    if (!replay->wanted && (source->tasks[KVI_TASK_REPLAY].active || count != 0))
        return 2;
    if (replay->wanted != ((source->stream_reasons & KVG_REASON_REPLAYING) != 0))
        return 3;
    return 0;
}
