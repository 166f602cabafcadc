/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* Fuzz target: payloads of events.  The first byte chooses limits.  Checked are what event.h
 * promises of an event, that the counts add up, and that a predicted event is exactly what the
 * long way makes of the same bytes. */
#include "base/assert.h"
#include "event/decode.h"
#include "event_equal.h"

#include <kvgraft/event.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void check_str(struct kvg_str str, struct kvg_str payload, uint32_t bytes_max)
{
    if (str.data == NULL) {
        KVI_ASSERT(str.bytes == 0);
        return;
    }
    KVI_ASSERT(str.data >= payload.data && str.bytes <= bytes_max &&
               str.data + str.bytes <= payload.data + payload.bytes);
}

static void check_array(struct kvg_event_array array, bool pairs, struct kvg_str payload)
{
    uint32_t count = array.count;
    uint64_t pair[2];
    uint32_t walked = 0;

    if (array.data != NULL)
        KVI_ASSERT(
            (const char *)array.data >= payload.data &&
            (const char *)array.data + array.bytes <= payload.data + payload.bytes);
    while (pairs ? kvg_event_array_next_pair(&array, pair)
                 : kvg_event_array_next(&array, pair))
        walked++;
    KVI_ASSERT(walked == count && array.bytes == 0);
}

static void check_event(const struct kvg_event *event, struct kvg_str payload,
    const struct kvg_event_limits *limits)
{
    const struct kvg_str strings[] = {event->medium_name, event->object_key,
        event->group_id, event->tenant_id, event->backend_id, event->model_name,
        event->lora_name, event->salt, event->spec_kind, event->locality,
        event->source_kind, event->session_id};
    size_t i;

    for (i = 0; i < sizeof(strings) / sizeof(strings[0]); i++)
        check_str(strings[i], payload, limits->string_bytes_max);
    check_array(event->block_hashes, false, payload);
    check_array(event->token_ids, event->token_pairs, payload);
    KVI_ASSERT(event->kind != KVG_EVENT_STORED || !event->every_medium);
    KVI_ASSERT(event->form == KVG_FORM_OBJECT || !event->every_medium);
    if (event->kind != KVG_EVENT_CLEARED)
        KVI_ASSERT(event->object_key.data != NULL || event->block_hashes.data != NULL);
}

/* Both ways over the event at the cursor. */
static void compare_ways(
    struct kvi_mp_cursor cursor, const struct kvg_event_limits *limits)
{
    struct kvi_mp_cursor predicted_cursor = cursor;
    struct kvg_event predicted;
    struct kvg_event decoded;
    struct kvi_decoder decoder = {.cursor = cursor, .limits = limits, .event = &decoded};

    if (!kvi_decode_predicted(&predicted_cursor, limits, &predicted)) {
        KVI_ASSERT(predicted_cursor.at == cursor.at);
        return;
    }
    KVI_ASSERT(kvi_decode_event(&decoder) == KVI_DECODED);
    KVI_ASSERT(decoder.cursor.at == predicted_cursor.at);
    KVI_ASSERT(decoder.unknown_fields == 0 && decoder.ignored_values == 0);
    KVI_ASSERT(event_equal(&predicted, &decoded));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct kvg_event_limits limits = {.struct_bytes = sizeof(limits)};
    struct kvg_event_reader reader;
    struct kvg_event event;
    struct kvg_error error;
    struct kvg_str payload;
    kvg_err err;

    if (bytes == 0)
        return 0;
    if ((data[0] & 1) != 0)
        limits.depth_max = 3;
    if ((data[0] & 2) != 0)
        limits.string_bytes_max = 8;
    if ((data[0] & 4) != 0)
        limits.event_max = 2;
    if ((data[0] & 8) != 0)
        limits.message_bytes_max = 100;
    payload = (struct kvg_str){(const char *)data + 1, bytes - 1};
    kvg_event_reader_init(&reader, &limits);
    err = kvg_event_reader_begin(&reader, payload, &error);
    KVI_ASSERT(err == KVG_OK || err == error.code);
    if (err == KVG_OK)
        compare_ways((struct kvi_mp_cursor){reader.cursor, reader.end}, &reader.limits);
    while (kvg_event_reader_next(&reader, &event)) {
        KVI_ASSERT(err == KVG_OK);
        KVI_ASSERT(kvi_event_reader_check(&reader) == 0);
        check_event(&event, payload, &reader.limits);
        compare_ways((struct kvi_mp_cursor){reader.cursor, reader.end}, &reader.limits);
    }
    KVI_ASSERT(reader.counts.messages == 1 && reader.counts.bad_payloads <= 1);
    KVI_ASSERT(reader.broken == (reader.counts.bad_payloads == 1));
    KVI_ASSERT(kvi_event_reader_check(&reader) == 0);
    KVI_ASSERT(!kvg_event_reader_next(&reader, &event));
    return 0;
}
