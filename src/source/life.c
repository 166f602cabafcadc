/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* life.c -- where one message stands in the life of its publisher (life.h).
 *
 *            given up              position
 *     first    v  v                   v
 *     -- * -- (.  .] -- * -- * -- * -- * ---> numbers
 *                       \____________/
 *                        the recent ones, known exactly
 *
 * The facts that decide, measured on recorded streams: within a life, ids of events rise by one
 * from event to event, over gaps made by a full queue too (a dropped event has a number but no
 * id); a message lost on its way takes its ids with it; the publisher's clock does not fall,
 * apart from a step of the clock.  So an order of numbers that contradicts the order of ids is two
 * lives, whatever the numbers say.  Where ids are missing the clock decides, and where that is
 * missing too a lower number is a new life.
 *
 * When in doubt between a repeat and a new life, the new life is assumed: to take a repeat for
 * one costs a listing, the other mistake costs every event until the old number is reached.
 *
 * Invariants, checked by kvi_life_check():
 *
 *     L1  Without a position there is no message, no recent mark, nothing given up.
 *     L2  Every recent mark is at or below the position.
 *     L3  What was given up is at or below the position, and not empty unless zero.
 *     L4  With a readable message, first is not after last.
 */
#include "source/life.h"

#include "base/assert.h"

#include <string.h>

/* A second fall of ids under a rising sequence, so soon after the first: the ids do not count
 * what we think they do. */
#define IDS_TRIAL_MESSAGES 16u

void kvi_life_reset(struct kvi_life *life)
{
    bool useless = life->ids_useless;

    memset(life, 0, sizeof(*life));
    life->ids_useless = useless;
}

bool kvi_mark_is_beginning(const struct kvi_mark *mark)
{
    if (mark->epoch != 0)
        return mark->sequence == 1 && mark->is_empty_start;
    return mark->sequence <= 1 && (!mark->has_id || mark->first_id <= 1);
}

static const struct kvi_mark *find_recent(const struct kvi_life *life, uint64_t sequence)
{
    uint32_t i;

    for (i = 0; i < life->recent_count; i++)
        if (life->recent[i].sequence == sequence)
            return &life->recent[i];
    return NULL;
}

static bool is_repeat(const struct kvi_mark *a, const struct kvi_mark *b)
{
    return a->payload_bytes == b->payload_bytes && a->readable == b->readable &&
           a->has_id == b->has_id && a->first_id == b->first_id &&
           a->has_timestamp == b->has_timestamp && a->timestamp_ms == b->timestamp_ms;
}

static bool ids_compare(const struct kvi_life *life, const struct kvi_mark *mark)
{
    return !life->ids_useless && life->first.has_id && life->last.has_id && mark->has_id;
}

static bool clocks_compare(const struct kvi_life *life, const struct kvi_mark *mark)
{
    return life->last.has_timestamp && mark->has_timestamp;
}

/* The number is new: above the position. */
static enum kvi_verdict judge_new(
    const struct kvi_life *life, const struct kvi_mark *mark)
{
    bool follows = mark->sequence == life->position + 1;

    if (ids_compare(life, mark)) {
        if (mark->first_id <= life->last.last_id)
            return life->began_by_ids && follows && life->messages <= IDS_TRIAL_MESSAGES
                       ? KVI_MESSAGE_JUMP
                       : KVI_MESSAGE_RESTART;
        if (follows && life->last.whole && life->last.sequence == life->position &&
            mark->first_id != life->last.last_id + 1)
            return KVI_MESSAGE_JUMP;
    } else if (follows && mark->readable && clocks_compare(life, mark) &&
               mark->timestamp_ms < life->last.timestamp_ms) {
        return KVI_MESSAGE_JUMP;
    }
    return follows ? KVI_MESSAGE_NEXT : KVI_MESSAGE_GAP;
}

static bool was_given_up(const struct kvi_life *life, const struct kvi_mark *mark)
{
    if (mark->sequence <= life->skip_from || mark->sequence > life->skip_to)
        return false;
    return !ids_compare(life, mark) || mark->first_id > life->skip_id;
}

/* Whether an old number and an old id can be of the same life. */
static bool fits_this_life(const struct kvi_life *life, const struct kvi_mark *mark)
{
    if (mark->sequence < life->first.sequence)
        return mark->first_id < life->first.first_id;
    return mark->first_id >= life->first.first_id;
}

/* The number is not new, and it is not among the recent ones. */
static enum kvi_verdict judge_old(
    const struct kvi_life *life, const struct kvi_mark *mark)
{
    bool ids = ids_compare(life, mark);

    if (was_given_up(life, mark))
        return life->position == life->skip_to && mark->sequence == life->skip_from + 1
                   ? KVI_MESSAGE_BACK
                   : KVI_MESSAGE_LATE;
    if (mark->sequence <= 1)
        return KVI_MESSAGE_RESTART;
    if (ids && (mark->first_id > life->last.last_id || !fits_this_life(life, mark)))
        return KVI_MESSAGE_RESTART;
    if (!clocks_compare(life, mark))
        return ids ? KVI_MESSAGE_DUPLICATE : KVI_MESSAGE_RESTART;
    return mark->timestamp_ms > life->last.timestamp_ms ? KVI_MESSAGE_RESTART
                                                        : KVI_MESSAGE_DUPLICATE;
}

/* Whether an epoch decides, and how. */
static bool judge_epoch(
    const struct kvi_life *life, const struct kvi_mark *mark, enum kvi_verdict *out)
{
    if (!mark->readable || (mark->epoch == 0 && life->epoch == 0))
        return false;
    if (mark->epoch != life->epoch && (life->epoch != 0 || life->has_message))
        *out = KVI_MESSAGE_RESTART;
    else if (mark->sequence > life->position)
        *out = mark->sequence == life->position + 1 ? KVI_MESSAGE_NEXT : KVI_MESSAGE_GAP;
    else if (mark->epoch == life->epoch)
        *out = KVI_MESSAGE_DUPLICATE;
    else
        return false;
    return true;
}

enum kvi_verdict kvi_life_judge(const struct kvi_life *life, const struct kvi_mark *mark,
    uint64_t now_ms, uint32_t grace_ms)
{
    const struct kvi_mark *same;
    enum kvi_verdict verdict;

    if (!life->has_position)
        return KVI_MESSAGE_FIRST;
    if (judge_epoch(life, mark, &verdict))
        return verdict;
    if (mark->sequence > life->position)
        return judge_new(life, mark);
    if (!life->has_message) {
        if (!mark->readable)
            return KVI_MESSAGE_UNKNOWN;
        return now_ms - life->baseline_ms <= grace_ms ? KVI_MESSAGE_FIRST
                                                      : KVI_MESSAGE_RESTART;
    }
    same = find_recent(life, mark->sequence);
    if (same != NULL && is_repeat(same, mark))
        return KVI_MESSAGE_DUPLICATE;
    if (!mark->readable)
        return KVI_MESSAGE_UNKNOWN;
    if (same != NULL && same->readable)
        return KVI_MESSAGE_RESTART;
    return judge_old(life, mark);
}

void kvi_life_accept(struct kvi_life *life, const struct kvi_mark *mark)
{
    bool ids_fall = life->has_message && ids_compare(life, mark) &&
                    mark->first_id <= life->last.last_id;

    if (ids_fall)
        life->ids_useless = true; /* Judged a jump: see IDS_TRIAL_MESSAGES. */
    life->has_position = true;
    life->has_message = true;
    life->position = mark->sequence;
    if (mark->epoch != 0)
        life->epoch = mark->epoch;
    if (life->skip_to > life->position)
        life->skip_from = life->skip_to = 0;
    life->messages++;
    life->recent[life->recent_next] = *mark;
    life->recent_next = (life->recent_next + 1) % KVI_LIFE_RECENT;
    if (life->recent_count < KVI_LIFE_RECENT)
        life->recent_count++;
    if (!mark->readable) {
        life->last.whole = false;
        return;
    }
    if (!life->first.readable || (!life->first.has_id && mark->has_id))
        life->first = *mark;
    if (mark->has_id || !life->last.has_id) {
        life->last = *mark;
    } else { /* A batch without events has a clock but no id. */
        life->last.sequence = mark->sequence;
        life->last.timestamp_ms = mark->timestamp_ms;
        life->last.has_timestamp = mark->has_timestamp;
    }
}

void kvi_life_baseline(struct kvi_life *life, uint64_t last, uint64_t now_ms)
{
    KVI_ASSERT(!life->has_position);
    life->has_position = true;
    life->position = last;
    life->baseline_ms = now_ms;
}

void kvi_life_skip(struct kvi_life *life, uint64_t last)
{
    KVI_ASSERT(life->has_position && life->position < last);
    life->skip_from = life->position;
    life->skip_to = last;
    life->skip_id = life->last.last_id;
    life->position = last;
}

int kvi_life_check(const struct kvi_life *life)
{
    uint32_t i;

    if (!life->has_position &&
        (life->has_message || life->recent_count != 0 || life->skip_to != 0))
        return 1;
    for (i = 0; i < life->recent_count; i++)
        if (life->recent[i].sequence > life->position)
            return 2;
    if (life->skip_to > life->position ||
        (life->skip_to != 0 && life->skip_from >= life->skip_to))
        return 3;
    if (life->first.readable && life->first.sequence > life->last.sequence)
        return 4;
    return 0;
}
