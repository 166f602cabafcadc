/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* decode.h -- one event, from bytes (decode.c, decode_array.c, predict.c). */
#ifndef KVI_EVENT_DECODE_H
#define KVI_EVENT_DECODE_H

#include <kvgraft/event.h>

#include "event/msgpack.h"

/* The fields of events, in the order of their names' lengths.  The second argument is the
 * name on the wire. */
#define KVI_FIELDS(X)                                 \
    X(FIELD_TYPE, "type")                             \
    X(FIELD_MEDIUM, "medium")                         \
    X(FIELD_DP_RANK, "dp_rank")                       \
    X(FIELD_LORA_ID, "lora_id")                       \
    X(FIELD_EVENT_ID, "event_id")                     \
    X(FIELD_GROUP_ID, "group_id")                     \
    X(FIELD_LOCALITY, "locality")                     \
    X(FIELD_TIMESTAMP, "timestamp")                   \
    X(FIELD_LORA_NAME, "lora_name")                   \
    X(FIELD_TENANT_ID, "tenant_id")                   \
    X(FIELD_TOKEN_IDS, "token_ids")                   \
    X(FIELD_GROUP_INDEX, "group_idx")                 \
    X(FIELD_EVENT_TYPE, "event_type")                 \
    X(FIELD_MODEL_NAME, "model_name")                 \
    X(FIELD_BLOCK_SIZE, "block_size")                 \
    X(FIELD_BACKEND_ID, "backend_id")                 \
    X(FIELD_OBJECT_KEY, "object_key")                 \
    X(FIELD_SEQ_HASHES, "seq_hashes")                 \
    X(FIELD_CACHE_SALT, "cache_salt")                 \
    X(FIELD_EXTRA_KEYS, "extra_keys")                 \
    X(FIELD_SESSION_ID, "session_id")                 \
    X(FIELD_PARENT_HASH, "parent_hash")               \
    X(FIELD_SOURCE_KIND, "source_kind")               \
    X(FIELD_BLOCK_HASHES, "block_hashes")             \
    X(FIELD_BASE_BLOCK_INDEX, "base_block_idx")       \
    X(FIELD_MM_INFOS, "block_mm_infos")               \
    X(FIELD_ADDITIONAL_SALT, "additional_salt")       \
    X(FIELD_PARENT_BLOCK_HASH, "parent_block_hash")   \
    X(FIELD_SPEC_KIND, "kv_cache_spec_kind")          \
    X(FIELD_DATA_PARALLEL_RANK, "data_parallel_rank") \
    X(FIELD_SLIDING_WINDOW, "kv_cache_spec_sliding_window")

enum kvi_field {
#define KVI_FIELD_ENUM(field, name) KVI_##field,
    KVI_FIELDS(KVI_FIELD_ENUM)
#undef KVI_FIELD_ENUM
    KVI_FIELD_COUNT,
    KVI_FIELD_UNKNOWN = KVI_FIELD_COUNT
};

/* The field of that name. */
enum kvi_field kvi_field_find(struct kvg_str name);

/* What became of an event. */
enum kvi_decoded {
    KVI_DECODED,
    KVI_DECODED_BAD,          /* Skipped: a wrong type in a needed field, or a limit. */
    KVI_DECODED_UNKNOWN_KIND, /* Skipped. */
    KVI_DECODED_HEARTBEAT,    /* Skipped; kvi_decode_heartbeat() reads it. */
    KVI_DECODED_BROKEN        /* Not even skipped: the bytes are no MessagePack. */
};

/* A decoder at work on one event. */
struct kvi_decoder {
    struct kvi_mp_cursor cursor;
    const struct kvg_event_limits *limits; /* None of them 0. */
    struct kvg_event *event;
    struct kvg_str type;           /* `type`, or the tag of an array. */
    struct kvg_str event_type;     /* `event_type`. */
    struct kvg_event_array hashes; /* seq_hashes. */
    uint32_t unknown_fields;
    uint32_t ignored_values;
};

/* Decodes the event at the cursor, whatever its form, and moves the cursor behind it; with
 * KVI_DECODED_BROKEN the cursor stays.  The counts are of this event. */
enum kvi_decoded kvi_decode_event(struct kvi_decoder *decoder);

/* Decodes an event that has exactly the master's form, much faster.  False, cursor and event
 * untouched or rubbish, for any other: then kvi_decode_event() must do it. */
bool kvi_decode_predicted(struct kvi_mp_cursor *cursor,
    const struct kvg_event_limits *limits, struct kvg_event *event);

/* Shared by the forms ------------------------------------------------------------------- */

/* Reads the value at the cursor into a field.  False makes the event bad. */
bool kvi_decode_field(struct kvi_decoder *decoder, enum kvi_field field);

/* Skips a value that nobody wants.  False: too deep, or broken. */
bool kvi_decode_skip(struct kvi_decoder *decoder);

/* Reads an event that is an array.  False makes it bad. */
bool kvi_decode_array(struct kvi_decoder *decoder);

/* The type of the value at the cursor, by its first byte (kvi_mp_type_of). */
enum kvi_mp_type kvi_decode_peek(const struct kvi_decoder *decoder);

/* Each takes one value off, or consumes nothing: a time, as milliseconds; a hash, an integer or
 * a byte string; a pair of integers. */
bool kvi_take_time(struct kvi_mp_cursor *cursor, int64_t *out);
bool kvi_take_hash(struct kvi_mp_cursor *cursor, uint64_t *out);
bool kvi_take_pair(struct kvi_mp_cursor *cursor, uint64_t out[2]);

/* "stored", "BlockStored", ... False if we do not know the word. */
bool kvi_event_kind_of(struct kvg_str word, enum kvg_event_kind *out);

/* What the heartbeat that begins at the cursor says (heartbeat.c).  False: it cannot be read, or
 * has no epoch. */
struct kvi_heartbeat {
    uint64_t epoch;
    uint64_t objects;
    bool has_objects;
};
bool kvi_decode_heartbeat(struct kvi_mp_cursor cursor, struct kvi_heartbeat *out);

/* 0, or the number of the first invariant (reader.c) that does not hold. */
int kvi_event_reader_check(const struct kvg_event_reader *reader);

/* Capitals and no small letters: in a tail, a locality. */
bool kvi_word_is_capitals(struct kvg_str word);

#endif
