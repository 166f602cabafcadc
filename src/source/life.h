/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* life.h -- where one message stands in the life of its publisher.
 *
 * A publisher numbers its messages from 1 and has no name: when its process starts again, it
 * starts at 1 again and says nothing.  What tells a repeat, a loss and a new life apart is what
 * comes with the number: the id of the first event, which counts a process's published events
 * from 1, and the publisher's clock.
 *
 * Unless its messages carry a heartbeat with an epoch: then the epoch alone is the life's name,
 * and within it a number alone says what is new.
 */
#ifndef KVI_SOURCE_LIFE_H
#define KVI_SOURCE_LIFE_H

#include <kvgraft/base.h>

/* What is known of a message before it is applied, and last_id and `whole` after. */
struct kvi_mark {
    uint64_t sequence;
    uint64_t first_id;
    uint64_t last_id;
    int64_t timestamp_ms; /* The publisher's clock. */
    size_t payload_bytes;
    uint64_t epoch; /* Of its heartbeat; 0: none. */
    bool readable;  /* The payload is a batch of events. */
    bool has_id;
    bool has_timestamp;
    bool is_empty_start; /* Its heartbeat says that the store held nothing before it. */
    bool whole;          /* None of its events was skipped, so last_id is its last one. */
};

enum kvi_verdict {
    KVI_MESSAGE_FIRST,     /* Nothing came before it. */
    KVI_MESSAGE_NEXT,      /* It follows the last one. */
    KVI_MESSAGE_JUMP,      /* The number follows, its ids do not: loss suspected. */
    KVI_MESSAGE_GAP,       /* Numbers are missing before it. */
    KVI_MESSAGE_DUPLICATE, /* It was here before, or is older than what was. */
    KVI_MESSAGE_LATE,      /* It was given up, and comes after all, out of order. */
    KVI_MESSAGE_BACK,      /* It was given up; the stream goes on where it had stopped. */
    KVI_MESSAGE_RESTART,   /* It is of another life of the publisher. */
    KVI_MESSAGE_UNKNOWN    /* Its number is not new, and it cannot be read. */
};

#define KVI_LIFE_RECENT 64u /* Messages that an exact repeat is recognised among. */

struct kvi_life {
    bool has_position;
    bool has_message;  /* Else the position is a status' word. */
    bool ids_useless;  /* They do not count a process's events; kept from life to life. */
    bool began_by_ids; /* This life was told from the last by ids alone. */
    uint64_t position; /* The last number that is accounted for. */
    uint64_t epoch;    /* The publisher's name for this life; 0: it has none. */
    uint64_t baseline_ms; /* When the position was taken from a status. */
    uint64_t messages;
    struct kvi_mark first; /* First and last readable ones. */
    struct kvi_mark last;
    uint64_t skip_from; /* Numbers (from, to] were given up. */
    uint64_t skip_to;
    uint64_t skip_id; /* The last event id before them. */
    uint32_t recent_count;
    uint32_t recent_next;
    struct kvi_mark recent[KVI_LIFE_RECENT];
};

/* Forgets a life, but not what was learned about the publisher's ids. */
void kvi_life_reset(struct kvi_life *life);

/* What a message is.  Changes nothing.  `grace_ms` is how long messages may be under way that
 * a status has counted already. */
enum kvi_verdict kvi_life_judge(const struct kvi_life *life, const struct kvi_mark *mark,
    uint64_t now_ms, uint32_t grace_ms);

/* Whether a life that begins with this message is known from its beginning. */
bool kvi_mark_is_beginning(const struct kvi_mark *mark);

/* Takes a message in that was judged FIRST, NEXT, JUMP, GAP or BACK (after a reset, RESTART). */
void kvi_life_accept(struct kvi_life *life, const struct kvi_mark *mark);

/* Takes a status' word that numbers up to `last` are out.  Needs a life without position. */
void kvi_life_baseline(struct kvi_life *life, uint64_t last, uint64_t now_ms);

/* Gives up what has not come up to `last`.  Needs a position below it. */
void kvi_life_skip(struct kvi_life *life, uint64_t last);

/* The number of the first broken invariant (life.c), or 0. */
int kvi_life_check(const struct kvi_life *life);

#endif
