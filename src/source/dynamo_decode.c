/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* dynamo_decode.c -- strict decoding for the profile "dynamo-1.5" (dynamo_decode.h).
 *
 * The rules, as that client's decoder has them:
 *
 *     a string       str or bin of any width, valid UTF-8
 *     a map's key    a string, or an integer that is the field's place (0 to 3); strings and
 *                    integers that mean nothing are skipped with their value, any other key
 *                    refuses the payload
 *     a field twice  refuses
 *     event_type     must be there
 *     object_key, group_id    nil is absent;  tenant_id: nil refuses, missing is empty
 *     an event as an array    one to four elements in that order
 *
 * Two passes: the first refuses or accepts, the second hands out what the first accepted.
 */
#include "source/dynamo_decode.h"

#include "base/assert.h"
#include "base/fmt.h"

enum field {
    FIELD_TYPE,
    FIELD_OBJECT_KEY,
    FIELD_TENANT,
    FIELD_GROUP,
    FIELD_COUNT,
    FIELD_BAD
};

/* Bytes of the UTF-8 sequence at `at`, 0 if there is none: no overlong forms, no surrogates,
 * nothing above U+10FFFF. */
static size_t utf8_sequence(const uint8_t *at, size_t left)
{
    uint8_t first = at[0];
    uint8_t low = 0x80;
    uint8_t high = 0xbf;
    size_t bytes;
    size_t i;

    if (first < 0x80)
        return 1;
    if (first >= 0xc2 && first <= 0xdf)
        bytes = 2;
    else if (first >= 0xe0 && first <= 0xef)
        bytes = 3;
    else if (first >= 0xf0 && first <= 0xf4)
        bytes = 4;
    else
        return 0;
    if (bytes > left)
        return 0;
    if (first == 0xe0)
        low = 0xa0;
    else if (first == 0xed)
        high = 0x9f;
    else if (first == 0xf0)
        low = 0x90;
    else if (first == 0xf4)
        high = 0x8f;
    if (at[1] < low || at[1] > high)
        return 0;
    for (i = 2; i < bytes; i++) {
        if ((at[i] & 0xc0) != 0x80)
            return 0;
    }
    return bytes;
}

static bool is_utf8(struct kvg_str text)
{
    const uint8_t *at = (const uint8_t *)text.data;
    size_t left = text.bytes;

    while (left != 0) {
        size_t bytes = utf8_sequence(at, left);

        if (bytes == 0)
            return false;
        at += bytes;
        left -= bytes;
    }
    return true;
}

static bool read_string(struct kvi_mp_cursor *cursor, struct kvg_str *out)
{
    return kvi_mp_take_str(cursor, out) && is_utf8(*out);
}

static enum field field_of_name(struct kvg_str name)
{
    if (kvi_str_equal(name, kvi_str("event_type")))
        return FIELD_TYPE;
    if (kvi_str_equal(name, kvi_str("object_key")))
        return FIELD_OBJECT_KEY;
    if (kvi_str_equal(name, kvi_str("tenant_id")))
        return FIELD_TENANT;
    if (kvi_str_equal(name, kvi_str("group_id")))
        return FIELD_GROUP;
    return FIELD_COUNT;
}

/* FIELD_COUNT for a key that means nothing here, FIELD_BAD for one that cannot be a key. */
static enum field read_key(struct kvi_mp_cursor *cursor)
{
    struct kvi_mp_value value;

    if (!kvi_mp_read(cursor, &value))
        return FIELD_BAD;
    if (value.type == KVI_MP_STR || value.type == KVI_MP_BIN)
        return field_of_name(value.str);
    if (value.type == KVI_MP_UINT)
        return value.integer < FIELD_COUNT ? (enum field)value.integer : FIELD_COUNT;
    return FIELD_BAD;
}

/* Reads the value of a known field. */
static const char *read_field(
    struct kvi_mp_cursor *cursor, enum field field, struct kvi_dynamo_event *event)
{
    switch (field) {
    case FIELD_TYPE:
        return read_string(cursor, &event->type) ? NULL : "event_type is no string";
    case FIELD_OBJECT_KEY:
        return kvi_mp_take_nil(cursor) || read_string(cursor, &event->object_key)
                   ? NULL
                   : "object_key is no string";
    case FIELD_TENANT:
        return read_string(cursor, &event->tenant) ? NULL : "tenant_id is no string";
    default:
        return kvi_mp_take_nil(cursor) || read_string(cursor, &event->group)
                   ? NULL
                   : "group_id is no string";
    }
}

static const char *read_map(
    struct kvi_mp_cursor *cursor, uint32_t count, struct kvi_dynamo_event *event)
{
    unsigned seen = 0;

    for (; count != 0; count--) {
        enum field field = read_key(cursor);
        const char *why;

        if (field == FIELD_BAD)
            return "a field's name is neither a string nor a number";
        if (field == FIELD_COUNT) {
            if (!kvi_mp_skip_flat(cursor, 1))
                return "the payload ends inside an event";
            continue;
        }
        if ((seen & 1u << field) != 0)
            return "a field is there twice";
        seen |= 1u << field;
        why = read_field(cursor, field, event);
        if (why != NULL)
            return why;
    }
    return (seen & 1u << FIELD_TYPE) != 0 ? NULL : "event_type is missing";
}

static const char *read_event(
    struct kvi_mp_cursor *cursor, struct kvi_dynamo_event *event)
{
    uint32_t count;
    unsigned field;

    *event = (struct kvi_dynamo_event){.type = {NULL, 0}};
    if (kvi_mp_take_map(cursor, &count))
        return read_map(cursor, count, event);
    if (!kvi_mp_take_array(cursor, &count))
        return "an event is neither a map nor an array";
    if (count < 1 || count > FIELD_COUNT)
        return "an event's array has not 1 to 4 elements";
    for (field = 0; field < count; field++) {
        const char *why = read_field(cursor, (enum field)field, event);

        if (why != NULL)
            return why;
    }
    return NULL;
}

const char *kvi_dynamo_batch_begin(struct kvg_str payload, struct kvi_dynamo_batch *out)
{
    struct kvi_mp_cursor cursor = {(const uint8_t *)payload.data, NULL};
    struct kvi_dynamo_event event;
    uint64_t integer;
    bool negative;
    uint32_t count;
    uint32_t i;

    if (payload.bytes == 0)
        return "the payload is empty";
    cursor.end = cursor.at + payload.bytes;
    if (!kvi_mp_take_array(&cursor, &count) || count != 3)
        return "the payload is no array of 3";
    if (!kvi_mp_take_integer(&cursor, &integer, &negative) ||
        (!negative && integer > INT64_MAX))
        return "the timestamp is no integer of 64 bits with sign";
    if (!kvi_mp_take_array(&cursor, &count))
        return "the events are no array";
    *out = (struct kvi_dynamo_batch){cursor, count};
    for (i = 0; i < count; i++) {
        const char *why = read_event(&cursor, &event);

        if (why != NULL)
            return why;
    }
    if (!kvi_mp_take_integer(&cursor, &integer, &negative) || negative ||
        integer > UINT32_MAX)
        return "the rank is no integer of 32 bits without sign";
    return NULL;
}

bool kvi_dynamo_batch_next(struct kvi_dynamo_batch *batch, struct kvi_dynamo_event *out)
{
    const char *why;

    if (batch->left == 0)
        return false;
    batch->left--;
    why = read_event(&batch->cursor, out);
    KVI_ASSERT(why == NULL); /* It was read once already. */
    return true;
}
