/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* event.h -- KV events: bytes to events and back.
 *
 * A publisher sends messages of three ZeroMQ frames: topic, sequence (u64 big-endian), payload
 * (MessagePack: [timestamp, [events], dp_rank], or a map with the same).  Read here is every
 * form in the field: the Mooncake master's object events, with every flag, old and reworked
 * publisher; vLLM's and SGLang's engine events, as arrays and as maps.  docs/events.md has the
 * forms field by field.
 *
 * A reader walks over the payload without allocating and hands out one event after the other;
 * strings and arrays of an event point into the payload.  A bad event costs that event, a bad
 * payload that message: what was skipped is counted, never fatal.
 *
 * Threads: a reader belongs to its caller.  Nothing here is shared.
 */
#ifndef KVGRAFT_EVENT_H
#define KVGRAFT_EVENT_H

#include <kvgraft/base.h>

KVG_BEGIN_DECLS

#define KVG_EVENT_MESSAGE_BYTES_DEFAULT (UINT32_C(64) << 20)
#define KVG_EVENT_COUNT_DEFAULT (UINT32_C(1) << 20)
#define KVG_EVENT_DEPTH_DEFAULT 16u
#define KVG_EVENT_DEPTH_MAX 32u
#define KVG_EVENT_STRING_BYTES_DEFAULT 4096u

/* Limits of a reader.  0 is the default of each. */
struct kvg_event_limits {
    size_t struct_bytes;
    size_t message_bytes_max;  /* Of a payload: 64 MiB. */
    uint32_t event_max;        /* Events a message: 1,048,576. */
    uint32_t depth_max;        /* Nesting inside an event: 16, at most 32. */
    uint32_t string_bytes_max; /* Of a string that is kept: 4096.  Longer: a bad event. */
};

/* The three frames of a message, checked. */
struct kvg_frames {
    struct kvg_str topic;
    uint64_t sequence;
    struct kvg_str payload;
};

/* KVG_EFORMAT unless there are three frames and the second has 8 bytes.  *error says which. */
KVG_API KVG_MUST_CHECK kvg_err kvg_frames_parse(const struct kvg_str *frames,
    size_t frame_count, struct kvg_error *error, struct kvg_frames *out);

enum kvg_event_kind {
    KVG_EVENT_STORED,
    KVG_EVENT_REMOVED,
    KVG_EVENT_CLEARED
};

/* Whose event it is: a store's (one object) or an engine's (blocks of tokens). */
enum kvg_event_form {
    KVG_FORM_OBJECT,
    KVG_FORM_ENGINE
};

/* How it was encoded; for people and for `watch`. */
enum kvg_event_encoding {
    KVG_ENCODING_MAP,
    KVG_ENCODING_ARRAY
};

/* An array inside the payload, walked with kvg_event_array_next() and friends. */
struct kvg_event_array {
    const uint8_t *data; /* First element. */
    size_t bytes;        /* Of all elements. */
    uint32_t count;
};

/* One event.  A field that the publisher did not send, or sent as nil, is absent: NULL string,
 * false `has_`, zero count.
 *
 * An object event has an object key or hashes; an engine event that is not CLEARED has hashes.
 * What an engine means by no medium is its device. */
struct kvg_event {
    enum kvg_event_kind kind;
    enum kvg_event_form form;
    enum kvg_event_encoding encoding;
    enum kvg_medium medium; /* KVG_MEDIUM_UNKNOWN if not said. */
    /* REMOVED, CLEARED: it holds for every medium, whatever `medium` says.  The store's older
     * publisher reports a removal only when the last copy is gone, and then may name the wrong
     * medium; it is known by sending no dp_rank in its events.  So remove from
     * `every_medium ? all : medium`, and both publishers are understood. */
    bool every_medium;
    bool has_event_id;
    bool has_timestamp; /* Of this event, else of the batch. */
    bool has_dp_rank;   /* Of this event; of an engine's event, else of the batch. */
    bool has_block_size;
    bool has_base_block_index;
    bool has_parent_hash;
    bool has_group_index;
    bool has_sliding_window;
    bool has_lora_id;
    bool token_pairs; /* `token_ids` holds pairs (EAGLE). */
    uint64_t event_id;
    int64_t timestamp_ms;
    int64_t dp_rank;
    uint64_t block_size;
    int64_t base_block_index;
    uint64_t parent_hash;    /* As kvg_event_array_next() gives hashes. */
    uint64_t group_index;    /* Which KV cache group of a hybrid model. */
    uint64_t sliding_window; /* Tokens. */
    int64_t lora_id;
    struct kvg_str medium_name; /* As sent. */
    struct kvg_str object_key;
    struct kvg_str group_id;
    struct kvg_str tenant_id;
    struct kvg_str backend_id;
    struct kvg_str model_name;
    struct kvg_str lora_name;
    struct kvg_str salt;        /* additional_salt, cache_salt. */
    struct kvg_str session_id;  /* Of the conversation that stored it, as sent. */
    struct kvg_str spec_kind;   /* kv_cache_spec_kind, as sent. */
    struct kvg_str locality;    /* LOCAL, REMOTE, as sent. */
    struct kvg_str source_kind; /* As sent. */
    struct kvg_event_array block_hashes; /* seq_hashes where block_hashes are absent. */
    struct kvg_event_array token_ids;    /* Integers, or pairs of them: `token_pairs`. */
};

/* The medium that a publisher's word means, of either case: GPU, DEVICE; CPU, CPU_PINNED,
 * CPU_TIER1; DISK, NVME, STORAGE, CPU_TIER2; EXTERNAL, NETWORK, REMOTE, SHARED. */
KVG_API enum kvg_medium kvg_medium_from_word(struct kvg_str word);

/* What a reader has seen.  Sums over everything it read; zero it when you like. */
struct kvg_event_counts {
    uint64_t messages;       /* Begun, good or bad. */
    uint64_t events;         /* Handed out. */
    uint64_t predicted;      /* Of these, in exactly the form of the store's master. */
    uint64_t bad_payloads;   /* Messages given up, at the front or in the middle. */
    uint64_t bad_events;     /* Skipped: a wrong type in a needed field, a limit. */
    uint64_t unknown_kinds;  /* Skipped: an event type we do not know. */
    uint64_t heartbeats;     /* Of publishers that say which life they are in. */
    uint64_t unknown_fields; /* Skipped fields of good events. */
    uint64_t ignored_values; /* Known optional fields of a wrong type, read as absent. */
};

struct kvg_event_reader {
    struct kvg_event_limits limits;
    struct kvg_event_counts counts;
    /* Of the message being read. */
    bool broken; /* The payload was given up, at the front or in the middle. */
    bool has_timestamp;
    bool has_dp_rank; /* Of the batch: set by its first engine event, or at its end. */
    bool has_objects;
    int64_t timestamp_ms;
    int64_t dp_rank;
    /* What the message's heartbeat says, once it was passed: it is no event, and stands before the
     * first one.  The publisher's life, 0 if it did not say; objects in its store after this
     * message. */
    uint64_t epoch;
    uint64_t objects;
    const uint8_t *cursor; /* Private from here. */
    const uint8_t *end;
    uint32_t events_left;
    uint32_t tail_values; /* Values of the batch after the events. */
    bool dp_rank_read;
    bool active;
};

/* Readies a reader.  `limits` may be NULL. */
KVG_API void kvg_event_reader_init(
    struct kvg_event_reader *reader, const struct kvg_event_limits *limits);

/* Begins a payload, which must stay until the last event was used.  KVG_EFORMAT or KVG_ELIMIT
 * if it is not a batch at all; that is counted as a bad payload. */
KVG_API KVG_MUST_CHECK kvg_err kvg_event_reader_begin(
    struct kvg_event_reader *reader, struct kvg_str payload, struct kvg_error *error);

/* The next good event.  False at the end of the payload, or where the rest cannot be read: then
 * `reader->broken` is set. */
KVG_API bool kvg_event_reader_next(
    struct kvg_event_reader *reader, struct kvg_event *out);

/* Takes the next element off an array: an integer of any width and sign (bit-cast), or a byte
 * string (first 8 bytes, big-endian).  False at the end or at an element of another type. */
KVG_API bool kvg_event_array_next(struct kvg_event_array *array, uint64_t *out);
/* The next element as a pair of integers (EAGLE token ids). */
KVG_API bool kvg_event_array_next_pair(struct kvg_event_array *array, uint64_t out[2]);

/* The writer makes the same stream: payloads in a buffer of its own, which grows through
 * `alloc`.  A failure sticks until the next begin: append as you like, ask at the end. */
struct kvg_event_writer;

enum kvg_event_dialect {
    KVG_DIALECT_MOONCAKE, /* Object events as the v0.3.12 master sends them with its
                                       legacy fields off. */
    KVG_DIALECT_MOONCAKE_LEGACY,    /* With the legacy fields: the default. */
    KVG_DIALECT_MOONCAKE_V2,        /* The reworked publisher: per medium, `cleared`. */
    KVG_DIALECT_MOONCAKE_V2_LEGACY, /* The same with the legacy fields. */
    KVG_DIALECT_ENGINE_MAP,         /* vLLM, SGLang: maps. */
    KVG_DIALECT_ENGINE_ARRAY        /* vLLM, SGLang: arrays. */
};

KVG_API KVG_MUST_CHECK kvg_err kvg_event_writer_new(const struct kvg_alloc *alloc,
    enum kvg_event_dialect dialect, struct kvg_event_writer **out);
KVG_API void kvg_event_writer_free(struct kvg_event_writer *writer);
/* Starts a message and forgets the last one.  A store's dialect always sends a rank: 0 without
 * `has_dp_rank`. */
KVG_API void kvg_event_writer_begin(struct kvg_event_writer *writer, int64_t timestamp_ms,
    bool has_dp_rank, int64_t dp_rank);
/* Appends an event.  `event->block_hashes` and `token_ids` are not used; they come as plain
 * arrays here, tokens two for a pair if `event->token_pairs`.  A store's event without an
 * object key is sent without the field, as a master does that was told to.  An absent
 * timestamp is the batch's, an absent medium is nil, an absent event id 0.
 *
 * What a dialect cannot say fails at the end with KVG_EINVAL: KVG_EVENT_CLEARED in
 * KVG_DIALECT_MOONCAKE and _LEGACY, whose publisher has no such event; in
 * KVG_DIALECT_ENGINE_ARRAY a tail that a reader would take for something else: a sliding window
 * without a group index, a spec kind in capitals, a locality not in capitals, a source kind
 * in capitals or without a spec kind.  A rank of an event's own is left out there. */
KVG_API void kvg_event_writer_add(struct kvg_event_writer *writer,
    const struct kvg_event *event, const uint64_t *hashes, size_t hash_count,
    const uint32_t *tokens, size_t token_count);
/* Appends a heartbeat: before the first event, if at all.  `epoch` is not 0; `objects` is what the
 * store holds after this message.  A store's dialects only. */
KVG_API void kvg_event_writer_heartbeat(
    struct kvg_event_writer *writer, uint64_t epoch, uint64_t objects);
/* The payload; it lives until the next begin.  The first failure since begin: KVG_ENOMEM,
 * KVG_EINVAL. */
KVG_API KVG_MUST_CHECK kvg_err kvg_event_writer_end(
    struct kvg_event_writer *writer, struct kvg_str *out);
/* The sequence frame. */
KVG_API void kvg_sequence_encode(uint64_t sequence, uint8_t out[8]);

KVG_END_DECLS

#endif
