/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* decode_array.c -- events that are arrays: a tag, then fields by place.
 *
 *     engine   "BlockStored", hashes, parent, tokens, block size | lora id, medium,
 *                  lora name or metadata, extra keys, tail ...
 *              "BlockRemoved", hashes | medium, tail ...
 *              "AllBlocksCleared" | medium, tail ...
 *     store    "stored" or "removed" | object key, tenant, group
 *              "cleared" | nothing, tenant
 *
 * Everything after the bar may be missing.  Publishers have added places over the years and
 * left others out, so the places after the bar are told apart by type: a value that does not
 * fit the next place is tried at the one after it.  In the tail, in any number: the first
 * integer is the group index and the second the sliding window; LOCAL or REMOTE and any other
 * word in capitals is the locality; of other words the first is the spec kind and the second
 * the source kind; a map is metadata, by key; an array (of images, or of extra keys) is skipped.
 */
#include "event/decode.h"

/* The places between block size and tail. */
enum place {
    PLACE_LORA_ID,
    PLACE_MEDIUM,
    PLACE_LORA_NAME,
    PLACE_EXTRA_KEYS,
    PLACE_TAIL
};

bool kvi_word_is_capitals(struct kvg_str word)
{
    bool capital = false;
    size_t i;

    for (i = 0; i < word.bytes; i++) {
        if (word.data[i] >= 'a' && word.data[i] <= 'z')
            return false;
        capital = capital || (word.data[i] >= 'A' && word.data[i] <= 'Z');
    }
    return capital;
}

/* A map among the places: its fields by name, as far as they are of those that a tail has. */
static bool read_metadata(struct kvi_decoder *decoder)
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
        switch (field) {
        case KVI_FIELD_CACHE_SALT:
        case KVI_FIELD_SESSION_ID:
        case KVI_FIELD_LORA_NAME:
        case KVI_FIELD_LORA_ID:
        case KVI_FIELD_GROUP_INDEX:
        case KVI_FIELD_SPEC_KIND:
        case KVI_FIELD_SLIDING_WINDOW:
        case KVI_FIELD_LOCALITY:
        case KVI_FIELD_SOURCE_KIND:
            if (!kvi_decode_field(decoder, field))
                return false;
            break;
        default:
            decoder->unknown_fields++;
            if (!kvi_decode_skip(decoder))
                return false;
        }
    }
    return true;
}

/* KVI_FIELD_UNKNOWN for a word that is not whole. */
static enum kvi_field tail_word(const struct kvi_decoder *decoder)
{
    struct kvi_mp_cursor cursor = decoder->cursor;
    struct kvg_str word;

    if (!kvi_mp_take_str(&cursor, &word))
        return KVI_FIELD_UNKNOWN;
    if (kvi_word_is_capitals(word))
        return KVI_FIELD_LOCALITY;
    if (decoder->event->spec_kind.data == NULL)
        return KVI_FIELD_SPEC_KIND;
    return KVI_FIELD_SOURCE_KIND;
}

static bool read_tail_value(struct kvi_decoder *decoder)
{
    enum kvi_field word;

    switch (kvi_decode_peek(decoder)) {
    case KVI_MP_UINT:
    case KVI_MP_INT:
        return kvi_decode_field(decoder, decoder->event->has_group_index
                                             ? KVI_FIELD_SLIDING_WINDOW
                                             : KVI_FIELD_GROUP_INDEX);
    case KVI_MP_STR:
    case KVI_MP_BIN:
        word = tail_word(decoder);
        return word != KVI_FIELD_UNKNOWN && kvi_decode_field(decoder, word);
    case KVI_MP_MAP:
        return read_metadata(decoder);
    case KVI_MP_NIL:
    case KVI_MP_ARRAY:
        return kvi_decode_skip(decoder);
    default:
        decoder->unknown_fields++;
        return kvi_decode_skip(decoder);
    }
}

static bool fits(enum place place, enum kvi_mp_type type)
{
    switch (place) {
    case PLACE_LORA_ID:
        return type == KVI_MP_NIL || type == KVI_MP_UINT || type == KVI_MP_INT;
    case PLACE_MEDIUM:
    case PLACE_LORA_NAME:
        return type == KVI_MP_NIL || type == KVI_MP_STR || type == KVI_MP_BIN;
    case PLACE_EXTRA_KEYS:
        return type == KVI_MP_NIL || type == KVI_MP_ARRAY;
    case PLACE_TAIL:
        return true;
    }
    return true;
}

static bool read_places(struct kvi_decoder *decoder, enum place place, uint32_t count)
{
    static const enum kvi_field FIELD_OF[] = {
        [PLACE_LORA_ID] = KVI_FIELD_LORA_ID,
        [PLACE_MEDIUM] = KVI_FIELD_MEDIUM,
        [PLACE_LORA_NAME] = KVI_FIELD_LORA_NAME,
        [PLACE_EXTRA_KEYS] = KVI_FIELD_EXTRA_KEYS,
    };
    uint32_t i;

    for (i = 0; i < count; i++) {
        enum kvi_mp_type type = kvi_decode_peek(decoder);

        while (!fits(place, type))
            place++;
        if (place == PLACE_TAIL ? !read_tail_value(decoder)
                                : !kvi_decode_field(decoder, FIELD_OF[place]))
            return false;
        if (place != PLACE_TAIL)
            place++;
    }
    return true;
}

/* The first `count` fields of `fields`, by place. */
static bool read_fields(
    struct kvi_decoder *decoder, const enum kvi_field *fields, uint32_t count)
{
    uint32_t i;

    for (i = 0; i < count; i++) {
        if (!kvi_decode_field(decoder, fields[i]))
            return false;
    }
    return true;
}

static bool read_stored(struct kvi_decoder *decoder, uint32_t count)
{
    static const enum kvi_field FIELDS[4] = {KVI_FIELD_BLOCK_HASHES,
        KVI_FIELD_PARENT_BLOCK_HASH, KVI_FIELD_TOKEN_IDS, KVI_FIELD_BLOCK_SIZE};

    return count >= 4 && read_fields(decoder, FIELDS, 4) &&
           read_places(decoder, PLACE_LORA_ID, count - 4);
}

static bool read_removed(struct kvi_decoder *decoder, uint32_t count)
{
    if (count < 1 || !kvi_decode_field(decoder, KVI_FIELD_BLOCK_HASHES))
        return false;
    /* After the medium comes the tail; a second word is no adapter here. */
    if (count >= 2 && fits(PLACE_MEDIUM, kvi_decode_peek(decoder))) {
        if (!kvi_decode_field(decoder, KVI_FIELD_MEDIUM))
            return false;
        count--;
    }
    return read_places(decoder, PLACE_TAIL, count - 1);
}

static bool read_cleared(struct kvi_decoder *decoder, uint32_t count)
{
    if (count >= 1 && fits(PLACE_MEDIUM, kvi_decode_peek(decoder))) {
        if (!kvi_decode_field(decoder, KVI_FIELD_MEDIUM))
            return false;
        count--;
    }
    return read_places(decoder, PLACE_TAIL, count);
}

/* A store's event as an array; what follows the three fields is unknown. */
static bool read_object(struct kvi_decoder *decoder, uint32_t count)
{
    static const enum kvi_field FIELDS[3] = {
        KVI_FIELD_OBJECT_KEY, KVI_FIELD_TENANT_ID, KVI_FIELD_GROUP_ID};
    uint32_t known = count < 3 ? count : 3;
    uint32_t i;

    if (!read_fields(decoder, FIELDS, known))
        return false;
    for (i = known; i < count; i++) {
        decoder->unknown_fields++;
        if (!kvi_decode_skip(decoder))
            return false;
    }
    return true;
}

bool kvi_decode_array(struct kvi_decoder *decoder)
{
    struct kvg_str tag;
    enum kvg_event_kind kind;
    uint32_t count;

    if (!kvi_mp_take_array(&decoder->cursor, &count) || count == 0 ||
        !kvi_mp_take_str(&decoder->cursor, &tag) ||
        tag.bytes > decoder->limits->string_bytes_max)
        return false;
    count--;
    if (!kvi_event_kind_of(tag, &kind)) {
        decoder->type = tag; /* An unknown kind: the rest is skipped with the event. */
        return true;
    }
    if (tag.data[0] >= 'a' && tag.data[0] <= 'z') {
        decoder->event_type = tag;
        return read_object(decoder, count);
    }
    decoder->type = tag;
    switch (kind) {
    case KVG_EVENT_STORED:
        return read_stored(decoder, count);
    case KVG_EVENT_REMOVED:
        return read_removed(decoder, count);
    case KVG_EVENT_CLEARED:
        return read_cleared(decoder, count);
    }
    return false;
}
