/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* source.h -- what to do with a stream of events about one store.
 *
 * A source is a pure state machine between a publisher and a presence index.  Its driver (the
 * daemon, a simulation, an embedder's loop) feeds it what happened and the time, and carries out
 * the actions it asks for: connect, fetch a status, a key count or a listing, wake me at.
 * The source decides what is applied, when the index is suspect, and how it is repaired:
 *
 *     messages, answers, time --->  source  ---> index (stored, removed, listing, confidence)
 *                                      |
 *                                      v
 *                                   actions
 *
 * Rules (docs/design/source.md): a gap does not erase, it makes the index suspect and starts a
 * repair; a publisher that starts again is recognised, and its old content goes; a late joiner
 * rebuilds from a listing; the store's key count is compared from time to time, because a store
 * can lose keys without an event.  Probing never renews a lease: only /get_all_keys, /metrics and
 * /kv_events/status are asked for.
 *
 * What `fresh` promises: every event the store has published up to the last status was applied,
 * nothing is known to be missing, and with an admin port the key count agreed at most three
 * count intervals ago.  What it does not: keys that the store lost without an event since then.
 * Without an admin port a loss cannot be repaired: after one the index stays suspect until the
 * publisher starts again from its first message, or says `cleared`; a late joiner likewise.
 *
 * A publisher that says its epoch (docs/events.md) is followed exactly: a new epoch is a new life,
 * a hole is closed by a replay where there is one, a listing says after which message it is the
 * store, and three missed heartbeats are silence.  Then `fresh` has no exception, and neither
 * counts nor listings are needed but to join and after what no replay can close.
 *
 * Driving it: after every call, take actions with kvg_source_next_action() until there is none,
 * and call kvg_source_tick() at kvg_source_deadline_ms() at the latest.  Load a dump into the
 * index before the source is made.
 *
 * Threads: a source and the writer's side of its index belong to one thread.
 * Time: milliseconds on any monotonic clock, given in; a step back is taken as no step.
 */
#ifndef KVGRAFT_SOURCE_H
#define KVGRAFT_SOURCE_H

#include <kvgraft/event.h>
#include <kvgraft/presence.h>

KVG_BEGIN_DECLS

struct kvg_source;

struct kvg_source_options {
    size_t struct_bytes;
    bool has_admin;  /* The store's admin port can be asked. */
    bool has_replay; /* Messages that were missed can be asked for again. */
    /* Compares key counts, and lists from time to time, though the publisher says its epoch and
     * loses nothing in silence. */
    bool always_compare;
    uint64_t seed;       /* For jitter. */
    uint32_t silence_ms; /* No message and no status for so long: suspect.  0: 15,000. */
    uint32_t status_interval_ms;  /* 0: 5,000. */
    uint32_t count_interval_ms;   /* Between comparisons of key counts; 0: 10,000. */
    uint32_t listing_interval_ms; /* Between full listings without cause; 0: 300,000. */
    uint32_t listing_timeout_ms;  /* 0: 60,000. */
    uint32_t retry_min_ms;        /* Back-off: doubles, with jitter.  0: 500. */
    uint32_t retry_max_ms;        /* 0: 30,000. */
    /* Between heartbeats of a publisher that says its epoch; three missed ones are silence.
     * 0: 1,000. */
    uint32_t heartbeat_ms;
    uint32_t hold_messages_max; /* Live messages held during a replay; 0: 4,096. */
    size_t hold_bytes_max;      /* 0: 8 MiB. */
    uint32_t behind_grace_ms;   /* Time for messages under way to arrive; 0: 1,000. */
    double drift_max; /* Part of the keys that may differ before a listing; 0: 0.001. */
    struct kvg_event_limits event_limits;
    const struct kvg_log *log; /* Or NULL.  Rate-limited. */
};

KVG_API KVG_MUST_CHECK kvg_err kvg_source_new(const struct kvg_alloc *alloc,
    struct kvg_presence *index, const struct kvg_source_options *options, uint64_t now_ms,
    struct kvg_source **out);
KVG_API void kvg_source_free(struct kvg_source *source);

/* What happened ---------------------------------------------------------------------------- */

KVG_API void kvg_source_connected(struct kvg_source *source, uint64_t now_ms);
KVG_API void kvg_source_disconnected(struct kvg_source *source, uint64_t now_ms);
/* A message arrived.  Frames as received; anything may be in them. */
KVG_API void kvg_source_message(struct kvg_source *source, const struct kvg_str *frames,
    size_t frame_count, uint64_t now_ms);
/* The endpoint now is another one: everything held is of another store. */
KVG_API void kvg_source_endpoint_changed(struct kvg_source *source, uint64_t now_ms);
KVG_API void kvg_source_tick(struct kvg_source *source, uint64_t now_ms);
/* A person wants a full listing now.  Needs an admin port; waits for one under way. */
KVG_API void kvg_source_request_listing(struct kvg_source *source, uint64_t now_ms);

/* Answers to actions.  Every action but RECONNECT and CANCEL gets one end: its answer, its done,
 * or failed().  An answer to an action that was given up is ignored. */
struct kvg_source_status {
    bool enabled;
    uint64_t published_batches;
    uint64_t published_events;
    uint64_t dropped_events;
    uint64_t epoch; /* Of a publisher that has one; else 0. */
};
KVG_API void kvg_source_status_answer(struct kvg_source *source, uint64_t action_id,
    const struct kvg_source_status *status, uint64_t now_ms);
KVG_API void kvg_source_count_answer(
    struct kvg_source *source, uint64_t action_id, uint64_t key_count, uint64_t now_ms);
/* The listing that comes is the store exactly after that message of that life.  Before its first
 * piece.  Who publishes without an epoch does not say it; then the status before the listing and
 * the events during it tell how far it reaches. */
KVG_API void kvg_source_listing_stamp(struct kvg_source *source, uint64_t action_id,
    uint64_t epoch, uint64_t sequence, uint64_t now_ms);
/* A piece of the listing: bytes as they arrive, one key a line, cut anywhere. */
KVG_API void kvg_source_listing_data(
    struct kvg_source *source, uint64_t action_id, struct kvg_str bytes, uint64_t now_ms);
KVG_API void kvg_source_listing_done(
    struct kvg_source *source, uint64_t action_id, uint64_t now_ms);
/* One message of a replay, in order; then its end. */
KVG_API void kvg_source_replay_message(struct kvg_source *source, uint64_t action_id,
    uint64_t sequence, struct kvg_str payload, uint64_t now_ms);
KVG_API void kvg_source_replay_done(
    struct kvg_source *source, uint64_t action_id, uint64_t now_ms);
/* The action failed; it is tried again with back-off. */
KVG_API void kvg_source_failed(
    struct kvg_source *source, uint64_t action_id, const char *reason, uint64_t now_ms);

/* What to do ------------------------------------------------------------------------------- */

enum kvg_source_action_kind {
    KVG_SOURCE_RECONNECT,     /* Close and open the stream; no answer but connected(). */
    KVG_SOURCE_FETCH_STATUS,  /* GET /kv_events/status. */
    KVG_SOURCE_FETCH_COUNT,   /* GET /metrics, master_key_count. */
    KVG_SOURCE_FETCH_LISTING, /* GET /get_all_keys, streamed. */
    KVG_SOURCE_FETCH_REPLAY,  /* The kept messages from `sequence` on, in order. */
    KVG_SOURCE_CANCEL         /* Give the action `cancels` up. */
};
struct kvg_source_action {
    enum kvg_source_action_kind kind;
    uint64_t id;
    uint64_t cancels;
    uint64_t sequence;
};
/* The next thing to do; false when there is nothing now. */
KVG_API bool kvg_source_next_action(
    struct kvg_source *source, struct kvg_source_action *out);
/* When to call kvg_source_tick() at the latest. */
KVG_API uint64_t kvg_source_deadline_ms(const struct kvg_source *source);

/* What it thinks --------------------------------------------------------------------------- */

/* Why an answer is not fresh; several may hold. */
#define KVG_SOURCE_REASONS(X)                                                           \
    X(KVG_REASON_NO_STREAM, 0, "no_stream", "not connected to the publisher")           \
    X(KVG_REASON_NOTHING_YET, 1, "nothing_yet", "connected, no message yet")            \
    X(KVG_REASON_LATE_JOIN, 2, "late_join",                                             \
        "joined a running stream; earlier events are unknown")                          \
    X(KVG_REASON_GAP, 3, "gap", "messages were lost")                                   \
    X(KVG_REASON_RESTART, 4, "restart", "the publisher started again")                  \
    X(KVG_REASON_SILENCE, 5, "silence", "the publisher was not heard for too long")     \
    X(KVG_REASON_DISABLED, 6, "disabled", "the store does not publish events")          \
    X(KVG_REASON_BAD_MESSAGE, 7, "bad_message", "a message could not be read")          \
    X(KVG_REASON_DRIFT, 8, "drift", "the store's key count differs from the index")     \
    X(KVG_REASON_LOADED, 9, "loaded", "loaded from a file, not compared yet")           \
    X(KVG_REASON_BEHIND, 10, "behind", "the store has published more than has arrived") \
    X(KVG_REASON_UNLISTABLE, 11, "unlistable", "a tenant that a listing cannot show")   \
    X(KVG_REASON_MEMORY, 12, "memory",                                                  \
        "the index is at its limit and holds a part only")                              \
    X(KVG_REASON_UNCHECKED, 13, "unchecked",                                            \
        "not compared with the store yet, or not for too long")                         \
    X(KVG_REASON_KEYLESS, 14, "keyless", "the publisher does not say object keys")      \
    X(KVG_REASON_REPLAYING, 15, "replaying", "messages were missed and are fetched again")
enum kvg_source_reason {
#define KVG_REASON_ENUM(name, bit, word, sentence) name = 1 << (bit),
    KVG_SOURCE_REASONS(KVG_REASON_ENUM)
#undef KVG_REASON_ENUM
};
KVG_API const char *kvg_source_reason_word(enum kvg_source_reason reason);
KVG_API const char *kvg_source_reason_sentence(enum kvg_source_reason reason);

struct kvg_source_stats {
    size_t struct_bytes;
    enum kvg_confidence confidence; /* Of the default tenant. */
    uint32_t reasons;               /* kvg_source_reason bits; 0 when fresh. */
    bool connected;
    bool has_sequence;
    uint64_t last_sequence;
    uint64_t last_message_ms; /* Clock of the driver; 0 never. */
    uint64_t suspect_since_ms;
    uint64_t messages;
    uint64_t events;
    uint64_t duplicates; /* Messages. */
    uint64_t gaps;
    uint64_t missed_sequences;
    uint64_t restarts;
    uint64_t bad_frames;
    uint64_t foreign_events; /* Engine events on a store's stream. */
    uint64_t listings;
    uint64_t listings_failed;
    uint64_t listing_keys;
    uint64_t parts_added;    /* By listings: what the stream had lost. */
    uint64_t parts_dropped;  /* By listings: what the store had lost silently. */
    uint64_t last_repair_ms; /* From loss to fresh, the last time. */
    struct kvg_event_counts decoder;
    uint64_t bytes;         /* Of all frames. */
    uint64_t late_messages; /* Came after they had been given up; ignored. */
    uint64_t resumed;       /* Times that what was given up came after all, in order. */
    uint64_t jumps;         /* The sequence went on, the event ids did not. */
    uint64_t cleared_events;
    uint64_t keyless_events; /* Of a publisher that does not say object keys. */
    uint64_t reconnects;     /* Asked for. */
    uint64_t statuses;       /* Answers. */
    uint64_t counts;         /* Comparisons of key counts that were conclusive. */
    uint64_t drifts;         /* Of those, the ones that differed too much. */
    int64_t
        count_surplus; /* Keys of the store that the index cannot hold: foreign ones. */
    uint64_t asks_failed;     /* Status and count actions that failed. */
    uint64_t listings_broken; /* Ended, but something was lost while they ran. */
    uint64_t listings_shrunk; /* Dropped more than half of a sizeable index; accepted. */
    uint64_t long_lines;      /* Of listings: too long for an object key, skipped. */
    uint64_t log_suppressed;  /* Lines not logged because of the rate limit. */
    uint64_t epoch;           /* Of the publisher; 0: it has none. */
    uint64_t
        store_objects; /* In the store after the last message, as its publisher says. */
    uint64_t replays;  /* Holes that were closed. */
    uint64_t replays_failed; /* Holes that became losses. */
    uint64_t replayed_messages;
    uint64_t held_dropped;   /* Live messages beyond a hole that did not fit. */
    uint64_t listings_exact; /* Those that said after which message they are the store. */
};
KVG_API void kvg_source_stats(
    const struct kvg_source *source, struct kvg_source_stats *out);

/* What answers about one tenant are worth, and why (an absent tenant is "default"). */
KVG_API enum kvg_confidence kvg_source_confidence(
    const struct kvg_source *source, struct kvg_str tenant, uint32_t *reasons_out);

KVG_END_DECLS

#endif
