/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* repair.c -- the listing, from the wish for one to its end.
 *
 *     IDLE --wanted, or interval--> ASKING --status seen, its messages arrived--> RUNNING
 *      ^                                                                             | done
 *      +---- failed, cancelled ------------------------------------- all looked at   v
 *      +----------------------------------------------------------------------- ENDING
 *
 * Why a listing under a running stream is exact.  The store's own order of events for one key is
 * the order of truth, and a key's line in the listing is its truth at some moment between the
 * request and the answer.  The index begins its pass before the request goes out; from then on an
 * event for a key beats the key's line, since the event is of the same moment or later, or will be
 * followed by one that is.  So after the last line each key is right as soon as the events under
 * way have arrived.  The status before the request makes sure that events older than the
 * listing have arrived, so that none of them can bring a key back that was lost silently.
 *
 * What breaks it is an event that never comes.  So a pass in which anything was lost is
 * finished, as it makes the index better, and proves nothing: another one follows.
 *
 * Listings are kept apart by pauses that double while one follows soon upon the other, and
 * there is never more than one.  They are streamed: what is held is one line.
 */
#include "source/state.h"

#include "base/fmt.h"

#include <string.h>

/* A listing that drops more than half of so many is worth a word. */
#define SIZEABLE_OBJECTS 100u
/* However steadily it comes, a listing ends within so many time-outs. */
#define TIMEOUTS_A_LISTING 10u

bool kvi_listing_in_flight(const struct kvg_source *source)
{
    return source->listing.phase == KVI_LISTING_RUNNING ||
           source->listing.phase == KVI_LISTING_ENDING;
}

void kvi_listing_want(struct kvg_source *source)
{
    if (source->options.has_admin)
        source->listing.wanted = true;
}

static void to_idle(struct kvg_source *source)
{
    struct kvi_listing *listing = &source->listing;

    if (kvi_listing_in_flight(source))
        kvg_presence_listing_abort(source->index);
    listing->phase = KVI_LISTING_IDLE;
    listing->ended_ms = source->now_ms;
    listing->due_ms = source->now_ms + source->options.listing_interval_ms;
    listing->not_before_ms = source->now_ms + kvi_backoff_ms(source, listing->pace);
}

void kvi_listing_cancel(struct kvg_source *source)
{
    kvi_task_cancel(source, KVI_TASK_LISTING);
    if (source->listing.phase != KVI_LISTING_IDLE)
        to_idle(source);
}

/* The action is over already. */
void kvi_listing_failed(struct kvg_source *source, const char *reason)
{
    kvi_source_log_failure(source, KVI_TASK_LISTING, reason);
    source->stats.listings_failed++;
    source->listing.wanted = true;
    to_idle(source);
}

static void begin(struct kvg_source *source)
{
    struct kvi_listing *listing = &source->listing;
    uint64_t pause_ms = (uint64_t)source->options.retry_min_ms
                        << (listing->pace < 20 ? listing->pace : 20);

    if (kvg_presence_listing_begin(source->index, kvi_str("default")) != KVG_OK) {
        kvi_listing_failed(source, "the index could not begin it");
        return;
    }
    if (listing->ended_ms != 0 && source->now_ms - listing->ended_ms < 4 * pause_ms)
        listing->pace += listing->pace < 20;
    else
        listing->pace = 0;
    kvi_compare_abort(source);
    source->compare.foreign_stored = 0;
    source->compare.foreign_removed = 0;
    listing->phase = KVI_LISTING_RUNNING;
    listing->wanted = false;
    listing->tainted = false;
    listing->losses = source->losses;
    listing->position = source->life.has_position ? source->life.position : 0;
    listing->objects_before = kvi_source_objects(source);
    listing->skipping_line = false;
    listing->line_bytes = 0;
    listing->long_lines = 0;
    listing->stop_ms = source->now_ms +
                       (uint64_t)TIMEOUTS_A_LISTING * source->options.listing_timeout_ms;
    kvi_task_start(source, KVI_TASK_LISTING, source->options.listing_timeout_ms);
}

void kvi_listing_settle(struct kvg_source *source)
{
    struct kvi_listing *listing = &source->listing;
    struct kvi_task *task = &source->tasks[KVI_TASK_LISTING];

    if (!source->options.has_admin)
        return;
    if (task->active &&
        (source->now_ms >= task->give_up_ms || source->now_ms >= listing->stop_ms)) {
        kvi_task_cancel(source, KVI_TASK_LISTING);
        kvi_listing_failed(source, "no answer in time");
    }
    if (listing->phase == KVI_LISTING_IDLE &&
        ((listing->wanted && source->now_ms >= listing->not_before_ms) ||
            (source->now_ms >= listing->due_ms && !kvi_source_is_exact(source)))) {
        listing->phase = KVI_LISTING_ASKING;
        listing->status_seen = source->tasks[KVI_TASK_STATUS].failures != 0;
        kvi_status_soon(source);
        kvi_ask_settle(source);
    }
    if (listing->phase == KVI_LISTING_ASKING && listing->status_seen &&
        !source->behind.active && !source->replay.wanted)
        begin(source);
}

/* Stamps ----------------------------------------------------------------------------------- */

/* The listing is of another life, which has begun without a word. */
static void meet_other_epoch(struct kvg_source *source, uint64_t epoch, uint64_t sequence)
{
    kvi_task_cancel(source, KVI_TASK_LISTING);
    source->stats.restarts++;
    kvi_source_begin_life(source);
    kvi_source_lose(source, KVG_REASON_RESTART);
    kvi_life_baseline(&source->life, sequence, source->now_ms);
    source->life.epoch = epoch;
}

/* The listing is the store after a message that has not come yet.  Whatever was heard or lost
 * before is in it: the pass begins anew, and the stream goes on after that message. */
static void leap(struct kvg_source *source, uint64_t epoch, uint64_t sequence)
{
    struct kvi_life *life = &source->life;

    kvg_presence_listing_abort(source->index);
    if (kvg_presence_listing_begin(source->index, kvi_str("default")) != KVG_OK) {
        kvi_task_cancel(source, KVI_TASK_LISTING);
        kvi_listing_failed(source, "the index could not begin it");
        return;
    }
    source->other_reasons |= KVG_REASON_UNLISTABLE; /* Their events are not in it. */
    kvi_trust_nobody(source);
    if (!life->has_position)
        kvi_life_baseline(life, sequence, source->now_ms);
    else
        kvi_life_skip(life, sequence);
    life->epoch = epoch;
    kvi_replay_pass(source);
    source->listing.losses = source->losses;
    source->listing.tainted = false;
}

static void take_stamp(struct kvg_source *source, uint64_t epoch, uint64_t sequence)
{
    const struct kvi_life *life = &source->life;

    if (life->has_position && epoch != life->epoch &&
        (life->epoch != 0 || life->has_message)) {
        meet_other_epoch(source, epoch, sequence);
        return;
    }
    if (sequence < source->listing.position) {
        kvi_task_cancel(source, KVI_TASK_LISTING);
        kvi_listing_failed(source, "it is older than the stream");
        return;
    }
    source->stats.listings_exact++;
    if (!life->has_position || sequence > life->position)
        leap(source, epoch, sequence);
}

void kvg_source_listing_stamp(struct kvg_source *source, uint64_t action_id,
    uint64_t epoch, uint64_t sequence, uint64_t now_ms)
{
    struct kvi_task *task = &source->tasks[KVI_TASK_LISTING];

    kvi_source_set_time(source, now_ms);
    if (task->active && task->id == action_id && epoch != 0) {
        task->to_hand_out = false;
        take_stamp(source, epoch, sequence);
    }
    kvi_source_settle(source);
}

/* Lines ------------------------------------------------------------------------------------ */

static void take_line(struct kvg_source *source, struct kvg_str line)
{
    if (line.bytes != 0 && line.data[line.bytes - 1] == '\r')
        line.bytes--;
    if (line.bytes != 0)
        kvg_presence_listing_key(source->index, line);
}

static void skip_line(struct kvg_source *source)
{
    source->listing.line_bytes = 0;
    source->listing.skipping_line = true;
    source->listing.long_lines++;
    source->stats.long_lines++;
}

/* Keeps the beginning of a line whose end is not here yet. */
static void keep(struct kvg_source *source, struct kvg_str piece)
{
    struct kvi_listing *listing = &source->listing;

    if (listing->skipping_line || piece.bytes == 0)
        return;
    if (piece.bytes > KVI_LINE_BYTES_MAX - listing->line_bytes) {
        skip_line(source);
        return;
    }
    memcpy(listing->line + listing->line_bytes, piece.data, piece.bytes);
    listing->line_bytes += piece.bytes;
}

/* The end of a line, up to its '\n'. */
static void end_line(struct kvg_source *source, struct kvg_str piece)
{
    struct kvi_listing *listing = &source->listing;

    if (!listing->skipping_line && listing->line_bytes == 0) {
        if (piece.bytes > KVI_LINE_BYTES_MAX)
            skip_line(source);
        else
            take_line(source, piece);
    } else {
        keep(source, piece);
        if (!listing->skipping_line)
            take_line(source, (struct kvg_str){listing->line, listing->line_bytes});
    }
    listing->line_bytes = 0;
    listing->skipping_line = false;
}

static void take_bytes(struct kvg_source *source, struct kvg_str bytes)
{
    size_t start = 0;
    size_t i;

    for (i = 0; i < bytes.bytes; i++) {
        if (bytes.data[i] != '\n')
            continue;
        end_line(source, (struct kvg_str){bytes.data + start, i - start});
        start = i + 1;
    }
    if (start < bytes.bytes)
        keep(source, (struct kvg_str){bytes.data + start, bytes.bytes - start});
}

void kvg_source_listing_data(
    struct kvg_source *source, uint64_t action_id, struct kvg_str bytes, uint64_t now_ms)
{
    struct kvi_task *task = &source->tasks[KVI_TASK_LISTING];

    kvi_source_set_time(source, now_ms);
    if (task->active && task->id == action_id) {
        task->to_hand_out = false;
        task->give_up_ms = source->now_ms + source->options.listing_timeout_ms;
        take_bytes(source, bytes);
    }
    kvi_source_settle(source);
}

void kvg_source_listing_done(
    struct kvg_source *source, uint64_t action_id, uint64_t now_ms)
{
    kvi_source_set_time(source, now_ms);
    if (kvi_task_ended(source, KVI_TASK_LISTING, action_id)) {
        end_line(source, (struct kvg_str){NULL, 0});
        source->listing.phase = KVI_LISTING_ENDING;
        kvi_listing_step(source);
    }
    kvi_source_settle(source);
}

/* The end ---------------------------------------------------------------------------------- */

/* The index is what the store listed, and nothing was lost since the listing began. */
static void mended(struct kvg_source *source, uint64_t foreign)
{
    struct kvi_task *count = &source->tasks[KVI_TASK_COUNT];
    uint64_t soon_ms = source->now_ms + KVI_RECHECK_MS;

    source->default_reasons &= ~(uint32_t)KVI_LISTING_MENDS;
    source->stream_reasons &= ~(uint32_t)KVG_REASON_UNCHECKED;
    source->checked_ms = source->now_ms;
    source->compare.strikes = 0;
    source->compare.calibrating = true;
    source->compare.surplus = (int64_t)foreign;
    if (count->failures == 0 && count->due_ms > soon_ms)
        count->due_ms = soon_ms;
}

static void finish(
    struct kvg_source *source, const struct kvg_presence_listing_result *result)
{
    struct kvi_listing *listing = &source->listing;
    bool proves = listing->losses == source->losses && !listing->tainted;

    listing->phase = KVI_LISTING_IDLE; /* The index has ended it: nothing to abort. */
    to_idle(source);
    source->filled = true;
    source->stats.listings++;
    source->stats.listing_keys += result->listed;
    source->stats.parts_added += result->added;
    source->stats.parts_dropped += result->dropped;
    kvi_source_log(source, KVI_LOG_LISTING, KVG_LOG_INFO,
        "listed: # keys had been missed, # were stale", result->added, result->dropped);
    if (listing->objects_before >= SIZEABLE_OBJECTS &&
        result->dropped > listing->objects_before / 2) {
        source->stats.listings_shrunk++;
        kvi_source_log(source, KVI_LOG_SHRUNK, KVG_LOG_WARN,
            "the store has lost more than half of what was known: # of # keys are gone",
            result->dropped, listing->objects_before);
    }
    if (proves) {
        mended(source, result->foreign + listing->long_lines);
        return;
    }
    source->stats.listings_broken++;
    listing->wanted = true;
    kvi_source_log(source, KVI_LOG_BROKEN, KVG_LOG_INFO,
        "something was lost while the store was listed: it is listed again", 0, 0);
}

/* Some of the work of the end. */
void kvi_listing_step(struct kvg_source *source)
{
    struct kvg_presence_listing_result result;

    if (source->listing.phase == KVI_LISTING_ENDING &&
        kvg_presence_listing_end(source->index, KVI_LISTING_STEP_SLOTS, &result))
        finish(source, &result);
}

uint64_t kvi_listing_deadline_ms(const struct kvg_source *source)
{
    const struct kvi_listing *listing = &source->listing;

    if (!source->options.has_admin)
        return UINT64_MAX;
    switch (listing->phase) {
    case KVI_LISTING_IDLE:
        if (kvi_source_is_exact(source))
            return listing->wanted ? listing->not_before_ms : UINT64_MAX;
        return listing->wanted && listing->not_before_ms < listing->due_ms
                   ? listing->not_before_ms
                   : listing->due_ms;
    case KVI_LISTING_ASKING: /* Waits for the status, or for what is behind. */
        return UINT64_MAX;
    case KVI_LISTING_RUNNING:
        return listing->stop_ms; /* The task's own time-out is in ask.c. */
    case KVI_LISTING_ENDING:
        return source->now_ms;
    }
    return UINT64_MAX;
}
