/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* predict.c -- the master's own form of an event, by prediction.
 *
 * Nearly every message of a store comes from one program, which writes its fields in one order
 * and most of them as nil.  So the bytes between two values are known beforehand: a key, or a
 * key with its nil, or several of them.  They are compared as one literal, and only the values
 * are read:
 *
 *     [de 00 14] [a8 event_id] ID [a9 timestamp] TIME [aa event_type a6 stored] [a4 type ...]
 *     [aa model_name c0 ... a9 tenant_id] TENANT [aa backend_id] BACKEND [a8 group_id] GROUP
 *     [a6 medium] MEDIUM [a7 dp_rank] NIL [aa object_key] KEY [aa seq_hashes] HASHES [...]
 *
 * The pieces that a flag of the master leaves out are optional, and those that the reworked
 * publisher fills may be filled.  At the end the number of pieces must be the number that the
 * map's head announced.
 *
 * Invariant:
 *
 *     Q1  What is predicted is exactly what decode.c makes of the same bytes.
 *
 * Not here: any other form.  One byte that differs, and decode.c begins anew at the event.
 */
#include "event/decode.h"

#include "base/assert.h"

/* A literal of MessagePack, without the zero at its end. */
#define LITERAL(text) (const uint8_t *)("" text), sizeof(text) - 1

/* `bytes` is a constant where this is used: the comparison becomes a few loads. */
static inline __attribute__((always_inline)) bool take(
    struct kvi_mp_cursor *cursor, const uint8_t *literal, size_t bytes)
{
    if (KVI_UNLIKELY(kvi_mp_left(cursor) < bytes) ||
        memcmp(cursor->at, literal, bytes) != 0)
        return false;
    cursor->at += bytes;
    return true;
}

/* A string of up to 255 bytes, within the limit. */
static inline bool take_short_str(
    struct kvi_mp_cursor *cursor, uint32_t bytes_max, struct kvg_str *out)
{
    size_t left = kvi_mp_left(cursor);
    size_t taken = 1;
    size_t length;

    if (KVI_UNLIKELY(left < 2))
        return false;
    if ((cursor->at[0] & 0xe0u) == 0xa0) {
        length = cursor->at[0] & 0x1fu;
    } else if (cursor->at[0] == 0xd9) {
        length = cursor->at[1];
        taken = 2;
    } else {
        return false;
    }
    if (KVI_UNLIKELY(length > left - taken || length > bytes_max))
        return false;
    *out = (struct kvg_str){(const char *)cursor->at + taken, length};
    cursor->at += taken + length;
    return true;
}

/* The unsigned forms. */
static inline bool take_uint(struct kvi_mp_cursor *cursor, uint64_t *out)
{
    size_t left = kvi_mp_left(cursor);
    const uint8_t *at = cursor->at;
    size_t taken;

    if (KVI_UNLIKELY(left < 9))
        return false; /* More than that follows in any event. */
    switch (*at) {
    case 0xcc:
        *out = at[1];
        taken = 2;
        break;
    case 0xcd:
        *out = kvi_load_be16(at + 1);
        taken = 3;
        break;
    case 0xce:
        *out = kvi_load_be32(at + 1);
        taken = 5;
        break;
    case 0xcf:
        *out = kvi_load_be64(at + 1);
        taken = 9;
        break;
    default:
        if (*at > 0x7f)
            return false;
        *out = *at;
        taken = 1;
        break;
    }
    cursor->at += taken;
    return true;
}

static inline bool take_id_and_time(struct kvi_mp_cursor *cursor, struct kvg_event *event)
{
    uint64_t time;

    if (!take(cursor, LITERAL("\xa8"
                              "event_id")) ||
        !take_uint(cursor, &event->event_id) ||
        !take(cursor, LITERAL("\xa9"
                              "timestamp")) ||
        !take_uint(cursor, &time) || time > INT64_MAX)
        return false;
    event->timestamp_ms = (int64_t)time;
    event->has_event_id = true;
    event->has_timestamp = true;
    return true;
}

/* The kind, in one word or two. */
static inline bool take_kind(
    struct kvi_mp_cursor *cursor, struct kvg_event *event, uint32_t *legacy)
{
    if (take(cursor, LITERAL("\xaa"
                             "event_type\xa6"
                             "stored"))) {
        event->kind = KVG_EVENT_STORED;
        *legacy = take(cursor, LITERAL("\xa4"
                                       "type\xab"
                                       "BlockStored"));
        return true;
    }
    if (take(cursor, LITERAL("\xaa"
                             "event_type\xa7"
                             "removed"))) {
        event->kind = KVG_EVENT_REMOVED;
        *legacy = take(cursor, LITERAL("\xa4"
                                       "type\xac"
                                       "BlockRemoved"));
        return true;
    }
    return false;
}

static inline bool take_str_or_nil(
    struct kvi_mp_cursor *cursor, uint32_t bytes_max, struct kvg_str *out)
{
    return kvi_mp_take_nil(cursor) || take_short_str(cursor, bytes_max, out);
}

/* What the reworked publisher knows and the older one sends as nil. */
static inline bool take_reworked_names(
    struct kvi_mp_cursor *cursor, uint32_t bytes_max, struct kvg_event *event)
{
    if (!take(cursor, LITERAL("\xaa"
                              "model_name")) ||
        !take_str_or_nil(cursor, bytes_max, &event->model_name) ||
        !take(cursor, LITERAL("\xaa"
                              "block_size")))
        return false;
    if (!kvi_mp_take_nil(cursor)) {
        if (!take_uint(cursor, &event->block_size))
            return false;
        event->has_block_size = true;
    }
    return take(cursor, LITERAL("\xaf"
                                "additional_salt")) &&
           take_str_or_nil(cursor, bytes_max, &event->salt) &&
           take(cursor, LITERAL("\xa9"
                                "lora_name")) &&
           take_str_or_nil(cursor, bytes_max, &event->lora_name) &&
           take(cursor, LITERAL("\xa9"
                                "tenant_id"));
}

static inline bool take_names(
    struct kvi_mp_cursor *cursor, uint32_t bytes_max, struct kvg_event *event)
{
    if (!take(cursor, LITERAL("\xaa"
                              "model_name\xc0\xaa"
                              "block_size\xc0\xaf"
                              "additional_salt\xc0"
                              "\xa9"
                              "lora_name\xc0\xa9"
                              "tenant_id")) &&
        !take_reworked_names(cursor, bytes_max, event))
        return false;
    return take_short_str(cursor, bytes_max, &event->tenant_id) &&
           take(cursor, LITERAL("\xaa"
                                "backend_id")) &&
           take_short_str(cursor, bytes_max, &event->backend_id) &&
           take(cursor, LITERAL("\xa8"
                                "group_id")) &&
           take_str_or_nil(cursor, bytes_max, &event->group_id);
}

/* The medium, and the rank that tells the publishers apart. */
static inline bool take_medium(
    struct kvi_mp_cursor *cursor, uint32_t bytes_max, struct kvg_event *event)
{
    uint64_t rank;

    if (!take(cursor, LITERAL("\xa6"
                              "medium")) ||
        !take_short_str(cursor, bytes_max, &event->medium_name) ||
        !take(cursor, LITERAL("\xa7"
                              "dp_rank")))
        return false;
    event->medium = kvg_medium_from_word(event->medium_name);
    if (!kvi_mp_take_nil(cursor)) {
        if (!take_uint(cursor, &rank) || rank > INT64_MAX)
            return false;
        event->dp_rank = (int64_t)rank;
        event->has_dp_rank = true;
    }
    event->every_medium = event->kind == KVG_EVENT_REMOVED &&
                          (!event->has_dp_rank || event->medium == KVG_MEDIUM_UNKNOWN);
    return true;
}

static inline bool take_object_key(struct kvi_mp_cursor *cursor, uint32_t bytes_max,
    struct kvg_event *event, uint32_t *with_key)
{
    *with_key = take(cursor, LITERAL("\xaa"
                                     "object_key"));
    return *with_key == 0 || take_short_str(cursor, bytes_max, &event->object_key);
}

/* One hash or none. */
static inline bool take_hash_array(
    struct kvi_mp_cursor *cursor, struct kvg_event_array *out)
{
    const uint8_t *at;
    uint64_t hash;

    if (kvi_mp_left(cursor) == 0)
        return false;
    if (*cursor->at == 0x90) {
        *out = (struct kvg_event_array){++cursor->at, 0, 0};
        return true;
    }
    if (*cursor->at != 0x91)
        return false;
    at = ++cursor->at;
    if (!kvi_take_hash(cursor, &hash))
        return false;
    *out = (struct kvg_event_array){at, (size_t)(cursor->at - at), 1};
    return true;
}

static inline bool take_hashes(
    struct kvi_mp_cursor *cursor, struct kvg_event *event, uint32_t legacy)
{
    struct kvg_event_array hashes;

    if (!take(cursor, LITERAL("\xaa"
                              "seq_hashes")) ||
        !take_hash_array(cursor, &hashes))
        return false;
    event->block_hashes = hashes;
    if (legacy == 0)
        return true;
    if (!take(cursor, LITERAL("\xac"
                              "block_hashes")) ||
        !take_hash_array(cursor, &hashes))
        return false;
    if (hashes.count != 0)
        event->block_hashes = hashes;
    return true;
}

static inline bool take_rest(
    struct kvi_mp_cursor *cursor, struct kvg_event *event, uint32_t legacy)
{
    if (event->kind == KVG_EVENT_REMOVED)
        return take(cursor, LITERAL("\xae"
                                    "base_block_idx\xc0"));
    if (take(cursor, LITERAL("\xae"
                             "base_block_idx\x00")))
        event->has_base_block_index = true;
    else if (!take(cursor, LITERAL("\xae"
                                   "base_block_idx\xc0")))
        return false;
    return take(cursor, LITERAL("\xab"
                                "parent_hash\xc0\xa9"
                                "token_ids\xc0")) &&
           (legacy == 0 || take(cursor, LITERAL("\xb1"
                                                "parent_block_hash\xc0")));
}

/* The master always has so many fields, and these more. */
#define FIELDS_STORED 16u
#define FIELDS_REMOVED 14u
#define FIELDS_LEGACY 2u        /* type, block_hashes */
#define FIELDS_LEGACY_STORED 1u /* parent_block_hash */

/* Words that are compared whole are within the limit of strings only if this one is. */
#define LONGEST_WORD 12u /* BlockRemoved */

bool kvi_decode_predicted(struct kvi_mp_cursor *cursor,
    const struct kvg_event_limits *limits, struct kvg_event *event)
{
    struct kvi_mp_cursor at = *cursor;
    uint32_t bytes_max = limits->string_bytes_max;
    uint32_t with_key;
    uint32_t legacy;
    uint32_t fields;
    uint32_t count;

    if (bytes_max < LONGEST_WORD || !kvi_mp_take_map(&at, &count))
        return false;
    *event = (struct kvg_event){.kind = KVG_EVENT_STORED, .form = KVG_FORM_OBJECT};
    if (!take_id_and_time(&at, event) || !take_kind(&at, event, &legacy) ||
        !take_names(&at, bytes_max, event) || !take_medium(&at, bytes_max, event) ||
        !take_object_key(&at, bytes_max, event, &with_key) ||
        !take_hashes(&at, event, legacy) || !take_rest(&at, event, legacy))
        return false;
    fields =
        (event->kind == KVG_EVENT_STORED ? FIELDS_STORED + legacy * FIELDS_LEGACY_STORED
                                         : FIELDS_REMOVED) +
        legacy * FIELDS_LEGACY + with_key;
    if (count != fields || (with_key == 0 && event->block_hashes.count == 0))
        return false;
    *cursor = at;
    return true;
}
