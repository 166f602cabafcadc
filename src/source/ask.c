/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* ask.c -- the actions of a source: when they start, end and time out; status and key count.
 *
 *     due --> start --> handed out --> answer | failed | timed out --> due again
 *                           |                                ^
 *                           +-- cancelled: CANCEL, then -----+
 *
 * A status says how far the publisher is: published batches plus dropped events is the last
 * number it used.  If that much has not arrived within a grace time and nothing else does, it
 * never will: it is given up, which is a loss like a gap.
 *
 * A comparison of key counts needs no quiet moment.  The store's count is a value that the
 * index' own count must have passed through between the question and the moment when everything
 * published up to the answer has arrived; so the least and the most of it in between are kept:
 *
 *     count asked     count answered, status asked     status: 812     message 812
 *         |---------------------|----------------------------|--------------|
 *         objects_min, objects_max over all of this                      conclude
 *
 * Here too: a status that is below what had arrived when it was asked for can only be of another
 * life; it is asked for once more, as its counters move after the message they count.
 */
#include "source/state.h"

#include "base/assert.h"

/* A count above it is taken as it, so that sums stay in range. */
#define COUNT_MAX (UINT64_C(1) << 60)

/* Counts that failed in a row: after so many the store is listed instead, and after so many
 * more it is taken for one that cannot be counted: the listing's interval is enough. */
#define LISTED_AFTER 3u
#define UNCOUNTABLE_AFTER 10u
/* So many listings in a row denied by the count, and the count is of something else. */
#define REFUSALS_MAX 2u

/* Tasks ------------------------------------------------------------------------------------ */

/* Doubles from retry_min_ms to retry_max_ms; a random half of it, so that many do not ask at
 * once. */
uint64_t kvi_backoff_ms(struct kvg_source *source, uint32_t failures)
{
    uint64_t pause = source->options.retry_min_ms;

    pause <<= failures < 20 ? failures : 20;
    if (pause > source->options.retry_max_ms)
        pause = source->options.retry_max_ms;
    return pause - kvi_rng_below(&source->rng, pause / 2 + 1);
}

void kvi_task_start(
    struct kvg_source *source, enum kvi_task_kind kind, uint64_t timeout_ms)
{
    struct kvi_task *task = &source->tasks[kind];

    KVI_ASSERT(!task->active);
    KVI_ASSERT(source->options.has_admin || kind == KVI_TASK_REPLAY);
    task->active = true;
    task->to_hand_out = true;
    task->id = source->next_id++;
    task->give_up_ms = source->now_ms + timeout_ms;
    task->life_number = source->life_number;
}

/* An action that the driver never took needs no CANCEL. */
void kvi_task_cancel(struct kvg_source *source, enum kvi_task_kind kind)
{
    struct kvi_task *task = &source->tasks[kind];

    if (!task->active)
        return;
    if (!task->to_hand_out)
        task->cancel_id = task->id;
    task->active = false;
    task->to_hand_out = false;
    task->ended_ms = source->now_ms;
}

/* Whether this is the end of the action under way; if so, it is over. */
bool kvi_task_ended(struct kvg_source *source, enum kvi_task_kind kind, uint64_t id)
{
    struct kvi_task *task = &source->tasks[kind];

    if (!task->active || task->id != id)
        return false;
    task->active = false;
    task->to_hand_out = false;
    task->ended_ms = source->now_ms;
    return true;
}

static void task_failed(
    struct kvg_source *source, enum kvi_task_kind kind, const char *reason)
{
    struct kvi_task *task = &source->tasks[kind];

    kvi_source_log_failure(source, kind, reason);
    task->due_ms = source->now_ms + kvi_backoff_ms(source, task->failures);
    task->failures++;
    source->stats.asks_failed++;
}

bool kvg_source_next_action(struct kvg_source *source, struct kvg_source_action *out)
{
    static const enum kvg_source_action_kind KINDS[KVI_TASK_KINDS] = {
        [KVI_TASK_STATUS] = KVG_SOURCE_FETCH_STATUS,
        [KVI_TASK_COUNT] = KVG_SOURCE_FETCH_COUNT,
        [KVI_TASK_LISTING] = KVG_SOURCE_FETCH_LISTING,
        [KVI_TASK_REPLAY] = KVG_SOURCE_FETCH_REPLAY,
    };
    size_t i;

    *out = (struct kvg_source_action){.kind = KVG_SOURCE_CANCEL};
    for (i = 0; i < KVI_TASK_KINDS; i++) {
        out->cancels = source->tasks[i].cancel_id;
        source->tasks[i].cancel_id = 0;
        if (out->cancels != 0)
            return true;
    }
    if (source->reconnect_wanted) {
        source->reconnect_wanted = false;
        out->kind = KVG_SOURCE_RECONNECT;
        return true;
    }
    for (i = 0; i < KVI_TASK_KINDS; i++) {
        if (!source->tasks[i].to_hand_out)
            continue;
        source->tasks[i].to_hand_out = false;
        out->kind = KINDS[i];
        out->id = source->tasks[i].id;
        out->sequence = i == KVI_TASK_REPLAY ? source->replay.from : 0;
        return true;
    }
    return false;
}

/* Status ----------------------------------------------------------------------------------- */

/* The next status is wanted now; one that is under way will do, and a failing port is left its
 * pauses. */
void kvi_status_soon(struct kvg_source *source)
{
    struct kvi_task *task = &source->tasks[KVI_TASK_STATUS];
    uint64_t earliest = task->ended_ms + KVI_STATUS_SPACING_MS;

    if (task->failures != 0 && task->due_ms > source->now_ms)
        return;
    if (task->ended_ms == 0 || earliest < source->now_ms)
        earliest = source->now_ms;
    if (earliest < task->due_ms)
        task->due_ms = earliest;
}

static uint64_t last_number(const struct kvg_source_status *status)
{
    uint64_t last;

    return __builtin_add_overflow(
               status->published_batches, status->dropped_events, &last)
               ? UINT64_MAX
               : last;
}

static bool status_fell(
    const struct kvg_source *source, const struct kvg_source_status *status)
{
    return source->has_status &&
           (status->published_batches < source->status.published_batches ||
               status->published_events < source->status.published_events ||
               status->dropped_events < source->status.dropped_events);
}

/* Learns where the stream stands from a status alone. */
static void take_baseline(struct kvg_source *source, uint64_t last, uint64_t epoch)
{
    kvi_life_baseline(&source->life, last, source->now_ms);
    source->life.epoch = epoch;
    if (last == 0 && epoch == 0) /* With one the store may have been there before. */
        return;
    kvi_source_lose(source, KVG_REASON_LATE_JOIN);
    kvi_source_log(source, KVI_LOG_LATE_JOIN, KVG_LOG_INFO,
        "joined a running stream after message #", last, 0);
}

static void restart_by_status(struct kvg_source *source, uint64_t last, uint64_t epoch)
{
    source->stats.restarts++;
    kvi_source_log(source, KVI_LOG_RESTART, KVG_LOG_WARN,
        "the publisher started again: it is at message # now, and was at #", last,
        source->life.position);
    kvi_source_begin_life(source);
    source->default_reasons |= KVG_REASON_RESTART;
    kvi_listing_want(source);
    take_baseline(source, last, epoch);
}

static void publisher_disabled(struct kvg_source *source)
{
    source->has_status = false;
    source->behind.active = false;
    kvi_compare_abort(source);
    if (source->listing.phase == KVI_LISTING_ASKING)
        source->listing.status_seen = true;
    if ((source->stream_reasons & KVG_REASON_DISABLED) != 0)
        return;
    source->stream_reasons |= KVG_REASON_DISABLED;
    kvi_listing_want(source);
    kvi_source_log(source, KVI_LOG_DISABLED, KVG_LOG_ERROR,
        "the store does not publish events: the index can only be listed", 0, 0);
}

/* How far the publisher is, in the life that is known. */
static void take_last_number(struct kvg_source *source, uint64_t last, uint64_t id)
{
    if (!source->life.has_position)
        take_baseline(source, last, source->status.epoch);
    if (last <= source->life.position) {
        if (source->connected)
            source->stream_reasons &= ~(uint32_t)KVG_REASON_NOTHING_YET;
    } else if (!source->behind.active) {
        source->behind = (struct kvi_behind){
            .active = true,
            .target = last,
            .position = source->life.position,
            .deadline_ms = source->now_ms + source->options.behind_grace_ms,
        };
    }
    if (source->listing.phase == KVI_LISTING_ASKING)
        source->listing.status_seen = true;
    if (source->compare.phase != KVI_COMPARE_STATUS)
        return;
    if (id < source->compare.status_id) {
        kvi_status_soon(source);
        return;
    }
    source->compare.phase = KVI_COMPARE_CATCHING;
    source->compare.target = last;
}

static void take_status(struct kvg_source *source, uint64_t id, uint64_t asked_in_life,
    const struct kvg_source_status *status)
{
    uint64_t last = last_number(status);
    bool came_back = (source->stream_reasons & KVG_REASON_DISABLED) != 0;
    bool below = source->life.has_position && last < source->status_position;
    bool renamed = source->life.has_position && source->life.epoch != 0 &&
                   status->epoch != 0 && status->epoch != source->life.epoch;

    if (asked_in_life != source->life_number) {
        kvi_status_soon(source);
        return;
    }
    if (!status->enabled) {
        publisher_disabled(source);
        return;
    }
    source->stream_reasons &= ~(uint32_t)KVG_REASON_DISABLED;
    if (below && !renamed && !source->confirming && !status_fell(source, status) &&
        !came_back) {
        source->confirming = true;
        kvi_status_soon(source);
        return;
    }
    source->confirming = false;
    if (below || renamed || came_back || status_fell(source, status))
        restart_by_status(source, last, status->epoch);
    source->has_status = true;
    source->status = *status;
    take_last_number(source, last, id);
}

void kvg_source_status_answer(struct kvg_source *source, uint64_t action_id,
    const struct kvg_source_status *status, uint64_t now_ms)
{
    struct kvi_task *task = &source->tasks[KVI_TASK_STATUS];
    uint64_t asked_in_life = task->life_number;

    kvi_source_set_time(source, now_ms);
    if (kvi_task_ended(source, KVI_TASK_STATUS, action_id)) {
        task->failures = 0;
        task->due_ms = source->now_ms + source->options.status_interval_ms;
        source->stats.statuses++;
        if (source->life.epoch == 0) { /* Else the heartbeat is what has to be heard. */
            source->heard_ms = source->now_ms;
            source->stream_reasons &= ~(uint32_t)KVG_REASON_SILENCE;
        }
        take_status(source, action_id, asked_in_life, status);
    }
    kvi_source_settle(source);
}

/* What the status had counted has arrived, or is given up. */
void kvi_behind_settle(struct kvg_source *source)
{
    struct kvi_behind *behind = &source->behind;
    uint64_t position = source->life.position;

    if (!behind->active)
        return;
    if (position >= behind->target) {
        behind->active = false;
        source->stream_reasons &= ~(uint32_t)(KVG_REASON_BEHIND | KVG_REASON_NOTHING_YET);
        return;
    }
    if (source->now_ms < behind->deadline_ms)
        return;
    if (position != behind->position) { /* It comes, but slowly. */
        behind->position = position;
        behind->deadline_ms = source->now_ms + source->options.behind_grace_ms;
        source->stream_reasons |= KVG_REASON_BEHIND;
        return;
    }
    behind->active = false;
    source->stream_reasons &= ~(uint32_t)(KVG_REASON_BEHIND | KVG_REASON_NOTHING_YET);
    if (kvi_replay_possible(source)) {
        kvi_replay_want(source, behind->target);
        return;
    }
    source->stats.gaps++;
    source->stats.missed_sequences += behind->target - position;
    kvi_source_log(source, KVI_LOG_GAP, KVG_LOG_WARN,
        "gap: the store has published # messages, the last to arrive was #",
        behind->target, position);
    kvi_life_skip(&source->life, behind->target);
    kvi_source_lose(source, KVG_REASON_GAP);
    if (source->connected && source->now_ms >= source->reconnect_not_before_ms) {
        source->reconnect_wanted = true;
        source->stats.reconnects++;
        source->reconnect_not_before_ms =
            source->now_ms + kvi_backoff_ms(source, source->reconnect_pace++);
    }
}

/* Comparing key counts --------------------------------------------------------------------- */

void kvi_compare_abort(struct kvg_source *source)
{
    kvi_task_cancel(source, KVI_TASK_COUNT);
    source->compare.phase = KVI_COMPARE_IDLE;
}

void kvi_compare_observe(struct kvg_source *source, uint64_t event_count)
{
    struct kvi_compare *compare = &source->compare;
    uint64_t objects;

    if (compare->phase == KVI_COMPARE_IDLE)
        return;
    objects = kvi_source_objects(source);
    if (objects < compare->objects_min)
        compare->objects_min = objects;
    if (objects > compare->objects_max)
        compare->objects_max = objects;
    if (event_count > compare->slack)
        compare->slack = event_count;
}

/* A comparison says something only while nothing is known to be wrong anyway. */
static bool can_compare(const struct kvg_source *source)
{
    uint32_t blocking =
        KVI_STREAM_REASONS & ~(uint32_t)(KVG_REASON_UNCHECKED | KVG_REASON_SILENCE);

    return !kvi_source_is_exact(source) && source->life.has_position &&
           source->listing.phase == KVI_LISTING_IDLE && source->default_reasons == 0 &&
           (source->stream_reasons & blocking) == 0;
}

static void compare_start(struct kvg_source *source)
{
    struct kvi_compare *compare = &source->compare;

    compare->phase = KVI_COMPARE_COUNTING;
    compare->objects_min = compare->objects_max = kvi_source_objects(source);
    compare->slack = 0;
    kvi_task_start(source, KVI_TASK_COUNT, KVI_ASK_TIMEOUT_MS);
}

static void counts_agree(struct kvg_source *source)
{
    source->compare.strikes = 0;
    source->compare.refusals = 0;
    source->compare.calibrating = false;
    source->checked_ms = source->now_ms;
    source->stream_reasons &= ~(uint32_t)KVG_REASON_UNCHECKED;
    source->other_reasons &= ~(uint32_t)KVG_REASON_DRIFT;
    source->reconnect_pace = 0;
}

/* What the count has that the index has not, just after a listing, is not for the index. */
static void learn_surplus(struct kvg_source *source, int64_t surplus)
{
    struct kvi_compare *compare = &source->compare;

    if (surplus < 0) {
        source->other_reasons |= KVG_REASON_UNLISTABLE;
        kvi_source_log(source, KVI_LOG_DRIFT, KVG_LOG_WARN,
            "the store counts # keys less than it lists and other tenants are known to "
            "hold",
            (uint64_t)-surplus, 0);
    }
    compare->surplus = surplus;
    compare->foreign_stored = 0;
    compare->foreign_removed = 0;
    counts_agree(source);
}

static void counts_differ(struct kvg_source *source)
{
    struct kvi_compare *compare = &source->compare;

    source->stats.drifts++;
    compare->strikes++;
    kvi_source_log(source, KVI_LOG_DRIFT, KVG_LOG_WARN,
        "the store has # keys, the index #", compare->key_count, compare->objects_max);
    if (compare->strikes < 2 && (source->stream_reasons & KVG_REASON_UNCHECKED) == 0) {
        source->tasks[KVI_TASK_COUNT].due_ms =
            source->now_ms + (KVI_RECHECK_MS < source->options.count_interval_ms
                                     ? KVI_RECHECK_MS
                                     : source->options.count_interval_ms);
        return;
    }
    compare->strikes = 0;
    compare->refusals += compare->calibrating;
    kvi_source_lose(source, KVG_REASON_DRIFT);
}

static void conclude(struct kvg_source *source)
{
    struct kvi_compare *compare = &source->compare;
    int64_t count =
        compare->key_count > COUNT_MAX ? (int64_t)COUNT_MAX : (int64_t)compare->key_count;
    int64_t least = (int64_t)compare->objects_min;
    int64_t most = (int64_t)compare->objects_max;
    int64_t slack = (int64_t)compare->slack;
    int64_t low = least + compare->surplus - (int64_t)compare->foreign_removed - slack;
    int64_t high = most + compare->surplus + (int64_t)compare->foreign_stored + slack;
    int64_t allowed =
        (int64_t)(source->options.drift_max * (double)(count > most ? count : most));

    compare->phase = KVI_COMPARE_IDLE;
    source->stats.counts++;
    if (compare->calibrating && count > high)
        learn_surplus(source, count - most);
    else if (count >= low - allowed && count <= high + allowed)
        counts_agree(source);
    else if (compare->calibrating && compare->strikes != 0 &&
             (source->others_seen || compare->refusals >= REFUSALS_MAX))
        learn_surplus(source, count - least);
    else
        counts_differ(source);
}

void kvg_source_count_answer(
    struct kvg_source *source, uint64_t action_id, uint64_t key_count, uint64_t now_ms)
{
    struct kvi_task *task = &source->tasks[KVI_TASK_COUNT];

    kvi_source_set_time(source, now_ms);
    if (kvi_task_ended(source, KVI_TASK_COUNT, action_id)) {
        task->failures = 0;
        task->due_ms = source->now_ms + source->options.count_interval_ms;
        source->compare.phase = KVI_COMPARE_STATUS;
        source->compare.key_count = key_count;
        source->compare.status_id = source->next_id;
        kvi_status_soon(source);
    }
    kvi_source_settle(source);
}

/* A store that cannot be counted is listed instead. */
static void count_failed(struct kvg_source *source, const char *reason)
{
    source->compare.phase = KVI_COMPARE_IDLE;
    task_failed(source, KVI_TASK_COUNT, reason);
    if ((source->stream_reasons & KVG_REASON_UNCHECKED) != 0 &&
        source->tasks[KVI_TASK_COUNT].failures >= LISTED_AFTER)
        kvi_listing_want(source);
}

static void status_failed(struct kvg_source *source, const char *reason)
{
    task_failed(source, KVI_TASK_STATUS, reason);
    if (source->listing.phase == KVI_LISTING_ASKING)
        source->listing.status_seen = true;
    if (source->compare.phase == KVI_COMPARE_STATUS)
        conclude(source);
}

void kvg_source_failed(
    struct kvg_source *source, uint64_t action_id, const char *reason, uint64_t now_ms)
{
    kvi_source_set_time(source, now_ms);
    if (kvi_task_ended(source, KVI_TASK_STATUS, action_id))
        status_failed(source, reason);
    else if (kvi_task_ended(source, KVI_TASK_COUNT, action_id))
        count_failed(source, reason);
    else if (kvi_task_ended(source, KVI_TASK_LISTING, action_id))
        kvi_listing_failed(source, reason);
    else if (kvi_task_ended(source, KVI_TASK_REPLAY, action_id))
        kvi_replay_failed(source, reason);
    kvi_source_settle(source);
}

/* Time ------------------------------------------------------------------------------------- */

static uint64_t unchecked_after_ms(const struct kvg_source *source)
{
    const struct kvg_source_options *options = &source->options;

    return source->tasks[KVI_TASK_COUNT].failures < UNCOUNTABLE_AFTER
               ? (uint64_t)3 * options->count_interval_ms
               : (uint64_t)options->listing_interval_ms + options->listing_timeout_ms;
}

static bool has_timed_out(const struct kvg_source *source, enum kvi_task_kind kind)
{
    return source->tasks[kind].active && source->now_ms >= source->tasks[kind].give_up_ms;
}

void kvi_ask_settle(struct kvg_source *source)
{
    struct kvi_task *status = &source->tasks[KVI_TASK_STATUS];
    struct kvi_task *count = &source->tasks[KVI_TASK_COUNT];

    if (!source->options.has_admin)
        return;
    if (has_timed_out(source, KVI_TASK_STATUS)) {
        kvi_task_cancel(source, KVI_TASK_STATUS);
        status_failed(source, "no answer in time");
    }
    if (has_timed_out(source, KVI_TASK_COUNT)) {
        kvi_task_cancel(source, KVI_TASK_COUNT);
        count_failed(source, "no answer in time");
    }
    if (source->compare.phase == KVI_COMPARE_CATCHING &&
        source->life.position >= source->compare.target)
        conclude(source);
    if (!status->active && source->now_ms >= status->due_ms) {
        source->status_position = source->life.has_position ? source->life.position : 0;
        kvi_task_start(source, KVI_TASK_STATUS, KVI_ASK_TIMEOUT_MS);
    }
    if (source->compare.phase == KVI_COMPARE_IDLE && source->now_ms >= count->due_ms &&
        can_compare(source))
        compare_start(source);
    if (kvi_source_is_exact(source)) {
        kvi_compare_abort(source);
        source->checked_ms = source->now_ms;
        source->stream_reasons &= ~(uint32_t)KVG_REASON_UNCHECKED;
    }
    if (source->now_ms - source->checked_ms >= unchecked_after_ms(source))
        source->stream_reasons |= KVG_REASON_UNCHECKED;
}

static void earlier(uint64_t *deadline, uint64_t other)
{
    if (other < *deadline)
        *deadline = other;
}

uint64_t kvi_ask_deadline_ms(const struct kvg_source *source)
{
    uint64_t deadline = UINT64_MAX;
    size_t i;

    if (source->behind.active)
        deadline = source->behind.deadline_ms;
    if (!source->options.has_admin)
        return deadline;
    for (i = 0; i < KVI_TASK_KINDS; i++)
        if (source->tasks[i].active)
            earlier(&deadline, source->tasks[i].give_up_ms);
    if (!source->tasks[KVI_TASK_STATUS].active)
        earlier(&deadline, source->tasks[KVI_TASK_STATUS].due_ms);
    if (source->compare.phase == KVI_COMPARE_IDLE && can_compare(source))
        earlier(&deadline, source->tasks[KVI_TASK_COUNT].due_ms);
    if ((source->stream_reasons & KVG_REASON_UNCHECKED) == 0 &&
        !kvi_source_is_exact(source))
        earlier(&deadline, source->checked_ms + unchecked_after_ms(source));
    return deadline;
}
