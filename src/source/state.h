/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* state.h -- the inside of a source, and what its files ask of each other:
 *
 *     source.c   what happened: messages, connection, time; the order of things in a step
 *     life.c     where a message stands in its publisher's life
 *     ask.c      the actions: when they start, end, time out; status and key count
 *     replay.c   what was missed, fetched again
 *     repair.c   the listing, from the wish for one to its end
 *     report.c   reasons, confidence, statistics, log
 */
#ifndef KVI_SOURCE_STATE_H
#define KVI_SOURCE_STATE_H

#include "source/life.h"

#include "base/rng.h"

#include <kvgraft/source.h>

#define KVI_LINE_BYTES_MAX 512u /* Of a listing; an object key has at most 383. */
#define KVI_LISTING_STEP_SLOTS \
    16384u                         /* Looked at in one tick, at the end of a listing. */
#define KVI_ASK_TIMEOUT_MS 5000u   /* Status and count. */
#define KVI_RECHECK_MS 1000u       /* From a first drift to the second look. */
#define KVI_STATUS_SPACING_MS 100u /* Between two of them, whatever the hurry. */
#define KVI_TRUSTED_MAX 32u        /* Tenants that were cleared since the last loss. */
#define KVI_TENANT_BYTES_MAX 63u   /* Of such a tenant's name. */
#define KVI_LOG_INTERVAL_MS 10000u /* Between two lines of one kind. */

/* Reasons that are about the stream, and hold for every tenant; the others are about content,
 * and are kept for the default tenant and for all others apart. */
#define KVI_STREAM_REASONS                                                \
    (KVG_REASON_NO_STREAM | KVG_REASON_NOTHING_YET | KVG_REASON_SILENCE | \
        KVG_REASON_DISABLED | KVG_REASON_BEHIND | KVG_REASON_MEMORY |     \
        KVG_REASON_UNCHECKED | KVG_REASON_KEYLESS | KVG_REASON_REPLAYING)
/* What a listing of the default tenant mends. */
#define KVI_LISTING_MENDS                                         \
    (KVG_REASON_LATE_JOIN | KVG_REASON_GAP | KVG_REASON_RESTART | \
        KVG_REASON_BAD_MESSAGE | KVG_REASON_DRIFT | KVG_REASON_LOADED)

enum kvi_task_kind {
    KVI_TASK_STATUS,
    KVI_TASK_COUNT,
    KVI_TASK_LISTING,
    KVI_TASK_REPLAY,
    KVI_TASK_KINDS
};

/* One kind of action.  At most one of a kind is under way. */
struct kvi_task {
    bool active;      /* Asked for, no answer yet. */
    bool to_hand_out; /* Asked for, not taken by the driver yet. */
    uint64_t id;
    uint64_t cancel_id; /* To be given up first; 0: none. */
    uint64_t due_ms;    /* Status and count: when the next one starts. */
    uint64_t ended_ms;
    uint64_t give_up_ms;
    uint32_t failures;    /* In a row. */
    uint64_t life_number; /* When it was asked. */
};

enum kvi_listing_phase {
    KVI_LISTING_IDLE,
    KVI_LISTING_ASKING,  /* For a status, and for what it counts to arrive. */
    KVI_LISTING_RUNNING, /* Begun in the index, asked of the store. */
    KVI_LISTING_ENDING   /* All keys are in; the index drops the rest, step by step. */
};

struct kvi_listing {
    enum kvi_listing_phase phase;
    bool wanted;
    bool status_seen; /* While ASKING. */
    bool tainted;     /* `cleared` came in between: its keys are of before and after. */
    uint32_t pace;    /* Doublings of the pause between listings. */
    uint64_t due_ms;  /* The next one without cause. */
    uint64_t not_before_ms;
    uint64_t stop_ms;  /* However fast it comes. */
    uint64_t losses;   /* Of the source, when it began. */
    uint64_t position; /* Of the stream, when it began. */
    uint64_t objects_before;
    uint64_t ended_ms; /* 0: none has. */
    uint64_t long_lines;
    bool skipping_line;
    size_t line_bytes;
    char line[KVI_LINE_BYTES_MAX];
};

enum kvi_compare_phase {
    KVI_COMPARE_IDLE,
    KVI_COMPARE_COUNTING, /* The store's count is asked for. */
    KVI_COMPARE_STATUS,   /* It is here; a status will say how far it reaches. */
    KVI_COMPARE_CATCHING  /* Waits until that far has arrived. */
};

/* One comparison: the index' objects must have passed through the store's count while it was
 * taken, so the least and the most of them since it was asked for are kept. */
struct kvi_compare {
    enum kvi_compare_phase phase;
    uint64_t key_count;
    uint64_t status_id; /* The first status that was asked for after the count came. */
    uint64_t target;
    uint64_t objects_min;
    uint64_t objects_max;
    uint64_t slack;          /* Events of the largest message meanwhile. */
    uint32_t strikes;        /* Drifts in a row. */
    bool calibrating;        /* The first one after a listing learns the surplus. */
    uint32_t refusals;       /* Listings in a row whose keys the count denied. */
    int64_t surplus;         /* Keys the store counts and the index cannot hold. */
    uint64_t foreign_stored; /* Foreign keys in the stream since the listing. */
    uint64_t foreign_removed;
};

/* The store has published more than has arrived. */
struct kvi_behind {
    bool active;
    uint64_t target;
    uint64_t position; /* When looked at last. */
    uint64_t deadline_ms;
};

/* Messages that were missed and are fetched again. */
struct kvi_held;
struct kvi_replay {
    bool wanted;
    bool giving_up;  /* What is held is applied over the hole. */
    uint64_t from;   /* What the action asked for. */
    uint64_t target; /* The highest number that is known to be out. */
    uint64_t not_before_ms;
    uint32_t failures;      /* In a row. */
    struct kvi_held *first; /* Live messages from beyond the hole. */
    struct kvi_held *last;
    size_t held_count;
    size_t held_bytes;
};

enum kvi_log_kind {
    KVI_LOG_GAP,
    KVI_LOG_RESTART,
    KVI_LOG_LATE_JOIN,
    KVI_LOG_BAD,
    KVI_LOG_FRAMES,
    KVI_LOG_SILENCE,
    KVI_LOG_DISABLED,
    KVI_LOG_KEYLESS,
    KVI_LOG_DRIFT,
    KVI_LOG_LISTING,
    KVI_LOG_SHRUNK,
    KVI_LOG_BROKEN,
    KVI_LOG_FAILED,
    KVI_LOG_MEMORY,
    KVI_LOG_CONFIDENCE,
    KVI_LOG_KINDS
};

struct kvi_log_limit {
    bool logged;
    uint64_t at_ms;
    uint64_t suppressed;
};

struct kvi_trusted {
    size_t bytes;
    char name[KVI_TENANT_BYTES_MAX];
};

struct kvg_source {
    const struct kvg_alloc *alloc;
    struct kvg_presence *index;
    struct kvg_source_options options;
    struct kvi_rng rng;
    struct kvg_event_reader reader;
    uint64_t now_ms;

    struct kvi_life life;
    uint64_t life_number; /* An answer asked for in another life is void. */
    uint64_t losses;      /* Counts up whenever something may be missing. */
    bool connected;
    bool filled;      /* Something was heard, listed or loaded: not blind. */
    bool others_seen; /* Tenants other than the default one. */
    bool reconnect_wanted;
    uint64_t reconnect_not_before_ms;
    uint32_t reconnect_pace;
    uint64_t heard_ms;
    uint64_t checked_ms;

    bool has_status; /* Of this life. */
    bool confirming; /* The last status was below what had arrived: asked again. */
    struct kvg_source_status status;
    uint64_t status_position; /* The position when it was asked for. */

    uint32_t stream_reasons;
    uint32_t default_reasons;
    uint32_t other_reasons;
    size_t trusted_count;
    struct kvi_trusted trusted[KVI_TRUSTED_MAX];
    bool confidence_set;
    enum kvg_confidence default_confidence; /* As the index was told. */
    enum kvg_confidence other_confidence;
    enum kvg_confidence trusted_confidence;

    uint64_t next_id;
    struct kvi_task tasks[KVI_TASK_KINDS];
    struct kvi_behind behind;
    struct kvi_listing listing;
    struct kvi_compare compare;
    struct kvi_replay replay;
    struct kvi_log_limit log_limits[KVI_LOG_KINDS];
    struct kvg_source_stats stats;
};

/* source.c */
void kvi_source_set_time(struct kvg_source *source, uint64_t now_ms);
void kvi_source_lose(struct kvg_source *source, uint32_t reason);
void kvi_source_begin_life(struct kvg_source *source);
void kvi_source_settle(struct kvg_source *source);
/* Judges and applies one message. */
void kvi_source_take_message(struct kvg_source *source, const struct kvg_frames *frames);
/* Whether its epoch, if both are known, is the one that is followed. */
bool kvi_source_is_of_this_life(
    struct kvg_source *source, const struct kvg_frames *frames);
/* The publisher says its epoch: no count has to be compared, and no listing is due by itself. */
uint64_t kvi_source_silence_ms(const struct kvg_source *source);
bool kvi_source_is_exact(const struct kvg_source *source);
uint64_t kvi_source_objects(const struct kvg_source *source);

/* ask.c */
uint64_t kvi_backoff_ms(struct kvg_source *source, uint32_t failures);
void kvi_task_start(
    struct kvg_source *source, enum kvi_task_kind kind, uint64_t timeout_ms);
void kvi_task_cancel(struct kvg_source *source, enum kvi_task_kind kind);
bool kvi_task_ended(struct kvg_source *source, enum kvi_task_kind kind, uint64_t id);
void kvi_status_soon(struct kvg_source *source);
void kvi_compare_abort(struct kvg_source *source);
void kvi_compare_observe(struct kvg_source *source, uint64_t event_count);
void kvi_ask_settle(struct kvg_source *source);
void kvi_behind_settle(struct kvg_source *source);
uint64_t kvi_ask_deadline_ms(const struct kvg_source *source);

/* replay.c */
bool kvi_replay_possible(const struct kvg_source *source);
void kvi_replay_want(struct kvg_source *source, uint64_t target);
void kvi_replay_hold(struct kvg_source *source, const struct kvg_frames *frames);
void kvi_replay_failed(struct kvg_source *source, const char *reason);
void kvi_replay_pass(struct kvg_source *source);
void kvi_replay_reset(struct kvg_source *source);
void kvi_replay_settle(struct kvg_source *source);
uint64_t kvi_replay_deadline_ms(const struct kvg_source *source);
int kvi_replay_check(const struct kvg_source *source);

/* repair.c */
void kvi_listing_want(struct kvg_source *source);
void kvi_listing_cancel(struct kvg_source *source);
void kvi_listing_failed(struct kvg_source *source, const char *reason);
void kvi_listing_settle(struct kvg_source *source);
void kvi_listing_step(struct kvg_source *source);
uint64_t kvi_listing_deadline_ms(const struct kvg_source *source);
bool kvi_listing_in_flight(const struct kvg_source *source);

/* report.c */
void kvi_report_settle(struct kvg_source *source);
bool kvi_tenant_is_default(struct kvg_str tenant);
void kvi_trust_nobody(struct kvg_source *source);
void kvi_trust_tenant(struct kvg_source *source, struct kvg_str tenant);
/* Logs `format`, its first '#' as `a` and its second as `b`; at a limited rate a kind. */
void kvi_source_log(struct kvg_source *source, enum kvi_log_kind kind,
    enum kvg_level level, const char *format, uint64_t a, uint64_t b);
void kvi_source_log_failure(
    struct kvg_source *source, enum kvi_task_kind kind, const char *reason);

/* The number of the first broken invariant (source.c), or 0. */
int kvi_source_check(const struct kvg_source *source);

#endif
