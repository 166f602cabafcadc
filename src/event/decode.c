/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* decode.c -- one event from bytes, in any form, any order of keys.
 *
 * An event is a map (here) or an array (decode_array.c).  Both read the same fields through
 * kvi_decode_field(), which knows for each field its type, where it goes in struct kvg_event,
 * and what a value of another type means:
 *
 *     needed     the kind, object key, hashes, tokens, and what tells namespaces apart (tenant,
 *                backend, model, adapter, salt, parent): to guess here could serve one's
 *                pages to another, so the event is bad
 *     optional   everything else: the value is ignored, and counted
 *
 *     kvi_decode_event        kvi_decode_field
 *     ----------------        ----------------
 *     begin: remember `start`
 *     map or array   -------> per key or place: value into *event
 *     finish: kind, form, what removals mean
 *     bad: back to `start`, skip one whole value by its bytes alone
 *
 * Invariants:
 *
 *     D1  Whatever happens inside an event, the cursor ends behind it, or the payload is
 *         broken and the cursor stays.
 *     D2  Strings and arrays that are handed out lie inside the payload, and every element of
 *         an array has been looked at: kvg_event_array_next() will not fail on it.
 *     D3  Nothing is read twice, except an event that is bad.
 */
#include "event/decode.h"

#include "base/assert.h"
#include "base/fmt.h"

enum field_type {
    TYPE_SKIP, /* Known, of no use to us. */
    TYPE_STR,
    TYPE_U64,
    TYPE_I64,
    TYPE_TIME,
    TYPE_HASH,
    TYPE_HASHES,
    TYPE_TOKENS,
    TYPE_WORD, /* `type` and `event_type`. */
    TYPE_MEDIUM
};

struct field {
    const char *name;
    uint8_t name_bytes;
    uint8_t type;
    bool needed;
    uint16_t value;   /* Offset in struct kvg_event. */
    uint16_t present; /* Offset of has_...; 0: there is none. */
};

#define AT(member) offsetof(struct kvg_event, member)
#define NAMED(name) name, sizeof(name) - 1

static const struct field FIELDS[KVI_FIELD_COUNT] = {
    [KVI_FIELD_TYPE] = {NAMED("type"), TYPE_WORD, true, 0, 0},
    [KVI_FIELD_MEDIUM] = {NAMED("medium"), TYPE_MEDIUM, false, AT(medium_name), 0},
    [KVI_FIELD_DP_RANK] = {NAMED("dp_rank"), TYPE_I64, false, AT(dp_rank),
        AT(has_dp_rank)},
    [KVI_FIELD_LORA_ID] = {NAMED("lora_id"), TYPE_I64, false, AT(lora_id),
        AT(has_lora_id)},
    [KVI_FIELD_EVENT_ID] = {NAMED("event_id"), TYPE_U64, false, AT(event_id),
        AT(has_event_id)},
    [KVI_FIELD_GROUP_ID] = {NAMED("group_id"), TYPE_STR, false, AT(group_id), 0},
    [KVI_FIELD_LOCALITY] = {NAMED("locality"), TYPE_STR, false, AT(locality), 0},
    [KVI_FIELD_TIMESTAMP] = {NAMED("timestamp"), TYPE_TIME, false, AT(timestamp_ms),
        AT(has_timestamp)},
    [KVI_FIELD_LORA_NAME] = {NAMED("lora_name"), TYPE_STR, true, AT(lora_name), 0},
    [KVI_FIELD_TENANT_ID] = {NAMED("tenant_id"), TYPE_STR, true, AT(tenant_id), 0},
    [KVI_FIELD_TOKEN_IDS] = {NAMED("token_ids"), TYPE_TOKENS, true, AT(token_ids), 0},
    [KVI_FIELD_GROUP_INDEX] = {NAMED("group_idx"), TYPE_U64, false, AT(group_index),
        AT(has_group_index)},
    [KVI_FIELD_EVENT_TYPE] = {NAMED("event_type"), TYPE_WORD, true, 0, 0},
    [KVI_FIELD_MODEL_NAME] = {NAMED("model_name"), TYPE_STR, true, AT(model_name), 0},
    [KVI_FIELD_BLOCK_SIZE] = {NAMED("block_size"), TYPE_U64, false, AT(block_size),
        AT(has_block_size)},
    [KVI_FIELD_BACKEND_ID] = {NAMED("backend_id"), TYPE_STR, true, AT(backend_id), 0},
    [KVI_FIELD_OBJECT_KEY] = {NAMED("object_key"), TYPE_STR, true, AT(object_key), 0},
    [KVI_FIELD_SEQ_HASHES] = {NAMED("seq_hashes"), TYPE_HASHES, true, 0, 0},
    [KVI_FIELD_CACHE_SALT] = {NAMED("cache_salt"), TYPE_STR, true, AT(salt), 0},
    [KVI_FIELD_EXTRA_KEYS] = {NAMED("extra_keys"), TYPE_SKIP, false, 0, 0},
    [KVI_FIELD_SESSION_ID] = {NAMED("session_id"), TYPE_STR, false, AT(session_id), 0},
    [KVI_FIELD_PARENT_HASH] = {NAMED("parent_hash"), TYPE_HASH, true, AT(parent_hash),
        AT(has_parent_hash)},
    [KVI_FIELD_SOURCE_KIND] = {NAMED("source_kind"), TYPE_STR, false, AT(source_kind), 0},
    [KVI_FIELD_BLOCK_HASHES] = {NAMED("block_hashes"), TYPE_HASHES, true,
        AT(block_hashes), 0},
    [KVI_FIELD_BASE_BLOCK_INDEX] = {NAMED("base_block_idx"), TYPE_I64, false,
        AT(base_block_index), AT(has_base_block_index)},
    [KVI_FIELD_MM_INFOS] = {NAMED("block_mm_infos"), TYPE_SKIP, false, 0, 0},
    [KVI_FIELD_ADDITIONAL_SALT] = {NAMED("additional_salt"), TYPE_STR, true, AT(salt), 0},
    [KVI_FIELD_PARENT_BLOCK_HASH] = {NAMED("parent_block_hash"), TYPE_HASH, true,
        AT(parent_hash), AT(has_parent_hash)},
    [KVI_FIELD_SPEC_KIND] = {NAMED("kv_cache_spec_kind"), TYPE_STR, false, AT(spec_kind),
        0},
    [KVI_FIELD_DATA_PARALLEL_RANK] = {NAMED("data_parallel_rank"), TYPE_I64, false,
        AT(dp_rank), AT(has_dp_rank)},
    [KVI_FIELD_SLIDING_WINDOW] = {NAMED("kv_cache_spec_sliding_window"), TYPE_U64, false,
        AT(sliding_window), AT(has_sliding_window)},
};

/* The length and at most two bytes leave one candidate; then one comparison decides. */
static enum kvi_field candidate(const char *name, size_t bytes)
{
    switch (bytes) {
    case 4:
        return KVI_FIELD_TYPE;
    case 6:
        return KVI_FIELD_MEDIUM;
    case 7:
        return name[0] == 'd' ? KVI_FIELD_DP_RANK : KVI_FIELD_LORA_ID;
    case 8:
        return name[0] == 'e'   ? KVI_FIELD_EVENT_ID
               : name[0] == 'g' ? KVI_FIELD_GROUP_ID
                                : KVI_FIELD_LOCALITY;
    case 9:
        switch (name[1]) {
        case 'i':
            return KVI_FIELD_TIMESTAMP;
        case 'e':
            return KVI_FIELD_TENANT_ID;
        case 'r':
            return KVI_FIELD_GROUP_INDEX;
        default: /* An o. */
            return name[0] == 'l' ? KVI_FIELD_LORA_NAME : KVI_FIELD_TOKEN_IDS;
        }
    case 10:
        switch (name[2]) {
        case 'e':
            return KVI_FIELD_EVENT_TYPE;
        case 'd':
            return KVI_FIELD_MODEL_NAME;
        case 'o':
            return KVI_FIELD_BLOCK_SIZE;
        case 'j':
            return KVI_FIELD_OBJECT_KEY;
        case 'q':
            return KVI_FIELD_SEQ_HASHES;
        case 't':
            return KVI_FIELD_EXTRA_KEYS;
        case 's':
            return KVI_FIELD_SESSION_ID;
        default: /* A c. */
            return name[0] == 'b' ? KVI_FIELD_BACKEND_ID : KVI_FIELD_CACHE_SALT;
        }
    case 11:
        return name[0] == 'p' ? KVI_FIELD_PARENT_HASH : KVI_FIELD_SOURCE_KIND;
    case 12:
        return KVI_FIELD_BLOCK_HASHES;
    case 14:
        return name[1] == 'a' ? KVI_FIELD_BASE_BLOCK_INDEX : KVI_FIELD_MM_INFOS;
    case 15:
        return KVI_FIELD_ADDITIONAL_SALT;
    case 17:
        return KVI_FIELD_PARENT_BLOCK_HASH;
    case 18:
        return name[0] == 'k' ? KVI_FIELD_SPEC_KIND : KVI_FIELD_DATA_PARALLEL_RANK;
    case 28:
        return KVI_FIELD_SLIDING_WINDOW;
    default:
        return KVI_FIELD_UNKNOWN;
    }
}

/* memcmp() is a call where the length is no constant; names are short. */
static inline bool same_bytes(const char *a, const char *b, size_t bytes)
{
    uint64_t x;
    uint64_t y;
    size_t i;

    if (bytes < 8) {
        for (i = 0; i < bytes; i++) {
            if (a[i] != b[i])
                return false;
        }
        return true;
    }
    for (i = 0; i + 8 < bytes; i += 8) {
        memcpy(&x, a + i, 8);
        memcpy(&y, b + i, 8);
        if (x != y)
            return false;
    }
    memcpy(&x, a + bytes - 8, 8); /* May overlap what was compared. */
    memcpy(&y, b + bytes - 8, 8);
    return x == y;
}

enum kvi_field kvi_field_find(struct kvg_str name)
{
    enum kvi_field field = candidate(name.data, name.bytes);

    if (field == KVI_FIELD_UNKNOWN ||
        !same_bytes(name.data, FIELDS[field].name, name.bytes))
        return KVI_FIELD_UNKNOWN;
    KVI_DCHECK(FIELDS[field].name_bytes == name.bytes);
    return field;
}

bool kvi_event_kind_of(struct kvg_str word, enum kvg_event_kind *out)
{
    static const struct {
        struct kvg_str word;
        enum kvg_event_kind kind;
    } KINDS[] = {{{NAMED("stored")}, KVG_EVENT_STORED},
        {{NAMED("removed")}, KVG_EVENT_REMOVED},
        {{NAMED("BlockStored")}, KVG_EVENT_STORED},
        {{NAMED("BlockRemoved")}, KVG_EVENT_REMOVED},
        {{NAMED("cleared")}, KVG_EVENT_CLEARED},
        {{NAMED("AllBlocksCleared")}, KVG_EVENT_CLEARED}};
    size_t i;

    for (i = 0; i < sizeof(KINDS) / sizeof(KINDS[0]); i++) {
        if (kvi_str_equal(word, KINDS[i].word)) {
            *out = KINDS[i].kind;
            return true;
        }
    }
    return false;
}

enum kvi_mp_type kvi_decode_peek(const struct kvi_decoder *decoder)
{
    /* Where nothing is left, the read that follows will say so. */
    return kvi_mp_left(&decoder->cursor) == 0 ? KVI_MP_EXT
                                              : kvi_mp_type_of(*decoder->cursor.at);
}

bool kvi_decode_skip(struct kvi_decoder *decoder)
{
    return kvi_mp_skip(&decoder->cursor, decoder->limits->depth_max - 1) ==
           KVI_MP_SKIPPED;
}

/* A value of the wrong type: fatal for a needed field, else skipped and counted. */
static bool refuse(struct kvi_decoder *decoder, const struct field *field)
{
    if (field->needed)
        return false;
    decoder->ignored_values++;
    return kvi_decode_skip(decoder);
}

static bool read_str(
    struct kvi_decoder *decoder, const struct field *field, struct kvg_str *out)
{
    struct kvg_str str;

    if (!kvi_mp_take_str(&decoder->cursor, &str))
        return refuse(decoder, field);
    if (str.bytes > decoder->limits->string_bytes_max)
        return false;
    *out = str;
    return true;
}

static bool read_integer(
    struct kvi_decoder *decoder, const struct field *field, void *out, bool *present)
{
    struct kvi_mp_cursor start = decoder->cursor;
    uint64_t value;
    bool negative;

    if (!kvi_mp_take_integer(&decoder->cursor, &value, &negative))
        return refuse(decoder, field);
    if (field->type == TYPE_U64 ? negative : !negative && value > INT64_MAX) {
        decoder->cursor = start;
        return refuse(decoder, field);
    }
    memcpy(out, &value, sizeof(value));
    *present = true;
    return true;
}

/* Whole numbers are milliseconds.  A float is seconds, as the engines send it, unless it is
 * so large that it must be milliseconds (as seconds: after the year 5000). */
static bool to_milliseconds(const struct kvi_mp_value *value, int64_t *out)
{
    double ms;

    switch (value->type) {
    case KVI_MP_UINT:
        if (value->integer > INT64_MAX)
            return false;
        *out = (int64_t)value->integer;
        return true;
    case KVI_MP_INT:
        *out = (int64_t)value->integer;
        return true;
    case KVI_MP_FLOAT:
        ms =
            value->real >= 1e11 || value->real <= -1e11 ? value->real : value->real * 1e3;
        if (!(ms > -9e18 && ms < 9e18)) /* Not a number fails both. */
            return false;
        *out = (int64_t)(ms < 0 ? ms - 0.5 : ms + 0.5);
        return true;
    default:
        return false;
    }
}

bool kvi_take_time(struct kvi_mp_cursor *cursor, int64_t *out)
{
    struct kvi_mp_cursor start = *cursor;
    struct kvi_mp_value value;

    if (kvi_mp_read(cursor, &value) && to_milliseconds(&value, out))
        return true;
    *cursor = start;
    return false;
}

static bool read_time(
    struct kvi_decoder *decoder, const struct field *field, int64_t *out, bool *present)
{
    if (!kvi_take_time(&decoder->cursor, out))
        return refuse(decoder, field);
    *present = true;
    return true;
}

bool kvi_take_hash(struct kvi_mp_cursor *cursor, uint64_t *out)
{
    struct kvg_str bytes;
    bool negative;
    size_t i;

    if (kvi_mp_take_integer(cursor, out, &negative))
        return true;
    if (!kvi_mp_take_str(cursor, &bytes))
        return false;
    *out = 0;
    for (i = 0; i < bytes.bytes && i < 8; i++)
        *out = *out << 8 | (uint8_t)bytes.data[i];
    return true;
}

static bool read_hash(
    struct kvi_decoder *decoder, const struct field *field, uint64_t *out, bool *present)
{
    if (!kvi_take_hash(&decoder->cursor, out))
        return refuse(decoder, field);
    *present = true;
    return true;
}

static bool read_hashes(struct kvi_decoder *decoder, struct kvg_event_array *out)
{
    const uint8_t *data;
    uint32_t count;
    uint32_t i;

    if (!kvi_mp_take_array(&decoder->cursor, &count))
        return false;
    data = decoder->cursor.at;
    for (i = 0; i < count; i++) {
        uint64_t hash;

        if (!kvi_take_hash(&decoder->cursor, &hash))
            return false;
    }
    *out = (struct kvg_event_array){data, (size_t)(decoder->cursor.at - data), count};
    return true;
}

bool kvi_take_pair(struct kvi_mp_cursor *cursor, uint64_t out[2])
{
    struct kvi_mp_cursor start = *cursor;
    uint32_t count;
    bool negative;

    if (kvi_mp_take_array(cursor, &count) && count == 2 &&
        kvi_mp_take_integer(cursor, &out[0], &negative) &&
        kvi_mp_take_integer(cursor, &out[1], &negative))
        return true;
    *cursor = start;
    return false;
}

static bool read_tokens(struct kvi_decoder *decoder)
{
    struct kvi_mp_cursor *cursor = &decoder->cursor;
    const uint8_t *data;
    uint64_t pair[2];
    uint32_t count;
    uint32_t i;
    bool negative;
    bool pairs;

    if (!kvi_mp_take_array(cursor, &count))
        return false;
    data = cursor->at;
    pairs = count > 0 && kvi_decode_peek(decoder) == KVI_MP_ARRAY;
    for (i = 0; i < count; i++) {
        if (pairs ? !kvi_take_pair(cursor, pair)
                  : !kvi_mp_take_integer(cursor, pair, &negative))
            return false;
    }
    decoder->event->token_pairs = pairs;
    decoder->event->token_ids =
        (struct kvg_event_array){data, (size_t)(cursor->at - data), count};
    return true;
}

static bool read_medium(struct kvi_decoder *decoder, const struct field *field)
{
    struct kvg_event *event = decoder->event;

    if (!read_str(decoder, field, &event->medium_name))
        return false;
    event->medium = kvg_medium_from_word(event->medium_name);
    return true;
}

bool kvi_decode_field(struct kvi_decoder *decoder, enum kvi_field which)
{
    const struct field *field = &FIELDS[which];
    char *event = (char *)decoder->event;
    void *value;
    void *present;

    KVI_ASSERT(which < KVI_FIELD_COUNT);
    value = event + field->value;
    present = event + field->present;
    if (kvi_mp_take_nil(&decoder->cursor))
        return true;
    switch (field->type) {
    case TYPE_STR:
        return read_str(decoder, field, value);
    case TYPE_U64:
    case TYPE_I64:
        return read_integer(decoder, field, value, present);
    case TYPE_TIME:
        return read_time(decoder, field, value, present);
    case TYPE_HASH:
        return read_hash(decoder, field, value, present);
    case TYPE_HASHES:
        return read_hashes(decoder, which == KVI_FIELD_SEQ_HASHES
                                        ? &decoder->hashes
                                        : &decoder->event->block_hashes);
    case TYPE_TOKENS:
        return read_tokens(decoder);
    case TYPE_WORD:
        return read_str(decoder, field,
            which == KVI_FIELD_TYPE ? &decoder->type : &decoder->event_type);
    case TYPE_MEDIUM:
        return read_medium(decoder, field);
    default: /* TYPE_SKIP */
        return kvi_decode_skip(decoder);
    }
}

static bool decode_map(struct kvi_decoder *decoder)
{
    uint32_t count;
    uint32_t i;

    if (!kvi_mp_take_map(&decoder->cursor, &count))
        return false;
    for (i = 0; i < count; i++) {
        enum kvi_field field = KVI_FIELD_UNKNOWN;
        struct kvg_str name;

        if (kvi_mp_take_str(&decoder->cursor, &name))
            field = kvi_field_find(name);
        else if (!kvi_decode_skip(decoder))
            return false;
        if (field == KVI_FIELD_UNKNOWN) {
            decoder->unknown_fields++;
            if (!kvi_decode_skip(decoder))
                return false;
        } else if (!kvi_decode_field(decoder, field)) {
            return false;
        }
    }
    return true;
}

/* An object event's tag is `event_type`, and it may have the engines' `type` beside it. */
static enum kvi_decoded finish(struct kvi_decoder *decoder)
{
    struct kvg_event *event = decoder->event;
    bool object = decoder->event_type.data != NULL || event->object_key.data != NULL;
    struct kvg_str word =
        decoder->event_type.data != NULL ? decoder->event_type : decoder->type;

    if (word.data == NULL)
        return KVI_DECODED_BAD;
    if (!kvi_event_kind_of(word, &event->kind))
        return kvi_str_equal(decoder->event_type, (struct kvg_str){NAMED("heartbeat")})
                   ? KVI_DECODED_HEARTBEAT
                   : KVI_DECODED_UNKNOWN_KIND;
    event->form = object ? KVG_FORM_OBJECT : KVG_FORM_ENGINE;
    if (event->block_hashes.count == 0 && decoder->hashes.data != NULL)
        event->block_hashes = decoder->hashes;
    if (event->kind == KVG_EVENT_CLEARED) {
        event->every_medium = object && event->medium == KVG_MEDIUM_UNKNOWN;
        return KVI_DECODED;
    }
    if (object ? event->object_key.data == NULL && event->block_hashes.count == 0
               : event->block_hashes.data == NULL)
        return KVI_DECODED_BAD;
    event->every_medium = object && event->kind == KVG_EVENT_REMOVED &&
                          (!event->has_dp_rank || event->medium == KVG_MEDIUM_UNKNOWN);
    return KVI_DECODED;
}

enum kvi_decoded kvi_decode_event(struct kvi_decoder *decoder)
{
    struct kvi_mp_cursor start = decoder->cursor;
    enum kvi_decoded result = KVI_DECODED_BAD;
    enum kvi_mp_type type = kvi_decode_peek(decoder);

    *decoder->event = (struct kvg_event){.medium = KVG_MEDIUM_UNKNOWN};
    decoder->type = (struct kvg_str){NULL, 0};
    decoder->event_type = (struct kvg_str){NULL, 0};
    decoder->hashes = (struct kvg_event_array){NULL, 0, 0};
    decoder->unknown_fields = 0;
    decoder->ignored_values = 0;

    if (type == KVI_MP_MAP) {
        decoder->event->encoding = KVG_ENCODING_MAP;
        if (decode_map(decoder))
            result = finish(decoder);
    } else if (type == KVI_MP_ARRAY) {
        decoder->event->encoding = KVG_ENCODING_ARRAY;
        if (kvi_decode_array(decoder))
            result = finish(decoder);
    }
    if (result == KVI_DECODED)
        return result;
    decoder->cursor = start;
    return kvi_mp_skip_flat(&decoder->cursor, 1) ? result : KVI_DECODED_BROKEN;
}
