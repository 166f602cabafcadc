/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* reader.c -- messages: frames, batches, and the events of a batch one after the other.
 *
 * A batch comes as an array or as a map:
 *
 *     [ time, [ event, event, ... ], dp_rank, ... ]
 *     { "ts": time, "events": [ event, ... ], "data_parallel_rank": dp_rank, ... }
 *
 * An array is walked once, front to back.  Its rank stands behind the events; only the events
 * of an engine need it, so it is looked for when the first of those appears.  A map may have its
 * fields in any order and is walked over once before the events are read.
 *
 * Invariants:
 *
 *     R1  cursor <= end, and what next() handed out lies between payload and end.
 *     R2  A message is counted as a bad payload at most once; `broken` says it was.
 *     R3  While it is active, events_left events and tail_values values stand between cursor
 *         and the batch's end, or the message will turn out broken; else none are left.
 */
#include "event/decode.h"

#include "base/assert.h"
#include "base/fmt.h"

kvg_err kvg_frames_parse(const struct kvg_str *frames, size_t frame_count,
    struct kvg_error *error, struct kvg_frames *out)
{
    char message[96];
    struct kvi_text text;

    *out = (struct kvg_frames){.sequence = 0};
    kvi_text_init(&text, message, sizeof(message));
    if (frame_count != 3) {
        kvi_text_str(&text, "the message has ");
        kvi_text_u64(&text, frame_count);
        kvi_text_str(&text, " frames; expected are topic, sequence and payload");
        return kvi_fail(error, KVG_EFORMAT, "frames", message);
    }
    if (frames[1].bytes != 8) {
        kvi_text_str(&text, "the second frame has ");
        kvi_text_u64(&text, frames[1].bytes);
        kvi_text_str(&text, " bytes; a sequence has 8");
        return kvi_fail(error, KVG_EFORMAT, "frames.sequence", message);
    }
    out->topic = frames[0];
    out->sequence = kvi_load_be64((const uint8_t *)frames[1].data);
    out->payload = frames[2];
    return KVG_OK;
}

void kvg_sequence_encode(uint64_t sequence, uint8_t out[8])
{
    size_t i;

    for (i = 0; i < 8; i++)
        out[i] = (uint8_t)(sequence >> (56 - 8 * i));
}

static void set_default_u32(uint32_t *limit, uint32_t value)
{
    if (*limit == 0)
        *limit = value;
}

void kvg_event_reader_init(
    struct kvg_event_reader *reader, const struct kvg_event_limits *limits)
{
    struct kvg_event_limits *own = &reader->limits;

    *reader = (struct kvg_event_reader){.broken = false};
    if (limits != NULL) {
        size_t bytes =
            limits->struct_bytes < sizeof(*own) ? limits->struct_bytes : sizeof(*own);
        memcpy(own, limits, bytes);
    }
    own->struct_bytes = sizeof(*own);
    if (own->message_bytes_max == 0)
        own->message_bytes_max = KVG_EVENT_MESSAGE_BYTES_DEFAULT;
    set_default_u32(&own->event_max, KVG_EVENT_COUNT_DEFAULT);
    set_default_u32(&own->depth_max, KVG_EVENT_DEPTH_DEFAULT);
    set_default_u32(&own->string_bytes_max, KVG_EVENT_STRING_BYTES_DEFAULT);
    if (own->depth_max > KVG_EVENT_DEPTH_MAX)
        own->depth_max = KVG_EVENT_DEPTH_MAX;
}

static void give_up(struct kvg_event_reader *reader)
{
    reader->broken = true;
    reader->active = false;
    reader->events_left = 0;
    reader->counts.bad_payloads++;
}

static kvg_err refuse(struct kvg_event_reader *reader, struct kvg_error *error,
    const char *field, const char *message)
{
    give_up(reader);
    return kvi_fail(error, KVG_EFORMAT, field, message);
}

static kvg_err refuse_limit(struct kvg_event_reader *reader, struct kvg_error *error,
    const char *field, uint64_t value, uint64_t limit)
{
    give_up(reader);
    (void)kvi_fail_range(error, field, value, 0, limit);
    if (error != NULL)
        error->code = KVG_ELIMIT;
    return KVG_ELIMIT;
}

static bool ignore_value(struct kvg_event_reader *reader, struct kvi_mp_cursor *cursor)
{
    if (!kvi_mp_skip_flat(cursor, 1))
        return false;
    reader->counts.ignored_values++;
    return true;
}

/* A time or nothing.  Another type is ignored. */
static bool read_batch_time(struct kvg_event_reader *reader, struct kvi_mp_cursor *cursor)
{
    if (kvi_mp_take_nil(cursor))
        return true;
    if (kvi_take_time(cursor, &reader->timestamp_ms)) {
        reader->has_timestamp = true;
        return true;
    }
    return ignore_value(reader, cursor);
}

static bool read_batch_rank(struct kvg_event_reader *reader, struct kvi_mp_cursor *cursor)
{
    struct kvi_mp_cursor start = *cursor;
    uint64_t rank;
    bool negative;

    if (kvi_mp_take_nil(cursor))
        return true;
    if (kvi_mp_take_integer(cursor, &rank, &negative) &&
        (negative || rank <= INT64_MAX)) {
        reader->dp_rank = (int64_t)rank;
        reader->has_dp_rank = true;
        return true;
    }
    *cursor = start;
    return ignore_value(reader, cursor);
}

static kvg_err begin_array(struct kvg_event_reader *reader, struct kvi_mp_cursor *cursor,
    uint32_t count, struct kvg_error *error)
{
    if (count < 2)
        return refuse(reader, error, "payload", "the batch has less than two elements");
    if (!read_batch_time(reader, cursor))
        return refuse(reader, error, "payload", "the batch ends in its timestamp");
    if (!kvi_mp_take_array(cursor, &reader->events_left))
        return refuse(reader, error, "events",
            "the batch's second element is no array, "
            "or announces more events than it has");
    reader->cursor = cursor->at;
    reader->tail_values = count - 2;
    return KVG_OK;
}

enum batch_field {
    BATCH_UNKNOWN,
    BATCH_TIME,
    BATCH_EVENTS,
    BATCH_RANK
};

static enum batch_field find_batch_field(struct kvg_str name)
{
    static const struct {
        const char *name;
        enum batch_field field;
    } NAMES[] = {{"ts", BATCH_TIME}, {"timestamp", BATCH_TIME}, {"events", BATCH_EVENTS},
        {"dp_rank", BATCH_RANK}, {"data_parallel_rank", BATCH_RANK}};
    size_t i;

    for (i = 0; i < sizeof(NAMES) / sizeof(NAMES[0]); i++) {
        if (kvi_str_equal(name, kvi_str(NAMES[i].name)))
            return NAMES[i].field;
    }
    return BATCH_UNKNOWN;
}

/* One pair of a batch that is a map.  Events are only measured. */
static bool read_batch_pair(struct kvg_event_reader *reader, struct kvi_mp_cursor *cursor)
{
    enum batch_field field = BATCH_UNKNOWN;
    struct kvg_str name;

    if (kvi_mp_take_str(cursor, &name))
        field = find_batch_field(name);
    else if (!kvi_mp_skip_flat(cursor, 1))
        return false;
    switch (field) {
    case BATCH_TIME:
        return read_batch_time(reader, cursor);
    case BATCH_RANK:
        reader->has_dp_rank = false;
        return read_batch_rank(reader, cursor);
    case BATCH_EVENTS:
        if (!kvi_mp_take_array(cursor, &reader->events_left))
            return false;
        reader->cursor = cursor->at;
        return kvi_mp_skip_flat(cursor, reader->events_left);
    default:
        reader->counts.unknown_fields++;
        return kvi_mp_skip_flat(cursor, 1);
    }
}

static kvg_err begin_map(struct kvg_event_reader *reader, struct kvi_mp_cursor *cursor,
    uint32_t count, struct kvg_error *error)
{
    uint32_t i;

    reader->cursor = NULL;
    reader->tail_values = 0;
    reader->dp_rank_read = true;
    for (i = 0; i < count; i++) {
        if (!read_batch_pair(reader, cursor))
            return refuse(reader, error, "payload",
                "the batch is a map that ends too early or holds no MessagePack");
    }
    if (reader->cursor == NULL)
        return refuse(reader, error, "events", "the batch is a map without events");
    if (cursor->at != cursor->end)
        return refuse(reader, error, "payload", "bytes follow the batch");
    reader->tail_values = UINT32_MAX; /* There is no tail to look at. */
    return KVG_OK;
}

kvg_err kvg_event_reader_begin(
    struct kvg_event_reader *reader, struct kvg_str payload, struct kvg_error *error)
{
    static const uint8_t NOTHING[1];
    const uint8_t *data = payload.bytes == 0 ? NOTHING : (const uint8_t *)payload.data;
    struct kvi_mp_cursor cursor = {data, data + payload.bytes};
    kvg_err err;
    uint32_t count;

    reader->counts.messages++;
    reader->broken = false;
    reader->has_timestamp = false;
    reader->has_dp_rank = false;
    reader->dp_rank_read = false;
    reader->active = true;
    reader->epoch = 0;
    reader->objects = 0;
    reader->has_objects = false;
    reader->timestamp_ms = 0;
    reader->dp_rank = 0;
    reader->events_left = 0;
    reader->tail_values = 0;
    reader->cursor = data;
    reader->end = cursor.end;
    if (payload.bytes > reader->limits.message_bytes_max)
        return refuse_limit(reader, error, "message_bytes", payload.bytes,
            reader->limits.message_bytes_max);
    if (kvi_mp_take_array(&cursor, &count))
        err = begin_array(reader, &cursor, count, error);
    else if (kvi_mp_take_map(&cursor, &count))
        err = begin_map(reader, &cursor, count, error);
    else
        err = refuse(reader, error, "payload", "the payload is neither array nor map");
    if (err == KVG_OK && reader->events_left > reader->limits.event_max)
        return refuse_limit(
            reader, error, "events", reader->events_left, reader->limits.event_max);
    return err;
}

/* Reads what follows the events of an array, wherever they end. */
static bool read_tail(struct kvg_event_reader *reader, struct kvi_mp_cursor *cursor)
{
    uint32_t left = reader->tail_values;

    if (left == 0)
        return true;
    if (reader->dp_rank_read ? !kvi_mp_skip_flat(cursor, 1)
                             : !read_batch_rank(reader, cursor))
        return false;
    reader->dp_rank_read = true;
    return kvi_mp_skip_flat(cursor, left - 1);
}

/* Looks behind the remaining events for the rank.  If they are broken there is none; reading
 * on will find that. */
static void look_for_rank(struct kvg_event_reader *reader)
{
    struct kvi_mp_cursor cursor = {reader->cursor, reader->end};

    if (kvi_mp_skip_flat(&cursor, reader->events_left))
        (void)read_tail(reader, &cursor);
    reader->dp_rank_read = true;
}

/* The end of a batch: nothing but what was announced may follow. */
static void finish(struct kvg_event_reader *reader)
{
    struct kvi_mp_cursor cursor = {reader->cursor, reader->end};

    reader->active = false;
    if (reader->tail_values == UINT32_MAX)
        return;
    if (!read_tail(reader, &cursor) || cursor.at != cursor.end)
        give_up(reader);
}

/* What the batch says for all its events. */
static void inherit(struct kvg_event_reader *reader, struct kvg_event *event)
{
    if (!event->has_timestamp && reader->has_timestamp) {
        event->has_timestamp = true;
        event->timestamp_ms = reader->timestamp_ms;
    }
    if (event->form != KVG_FORM_ENGINE)
        return;
    if (!reader->dp_rank_read)
        look_for_rank(reader);
    if (!event->has_dp_rank && reader->has_dp_rank) {
        event->has_dp_rank = true;
        event->dp_rank = reader->dp_rank;
    }
}

/* The first heartbeat of a message counts. */
static void hear_heartbeat(struct kvg_event_reader *reader, struct kvi_mp_cursor start)
{
    struct kvi_heartbeat heartbeat;

    if (!kvi_decode_heartbeat(start, &heartbeat)) {
        reader->counts.bad_events++;
        return;
    }
    reader->counts.heartbeats++;
    if (reader->epoch != 0)
        return;
    reader->epoch = heartbeat.epoch;
    reader->objects = heartbeat.objects;
    reader->has_objects = heartbeat.has_objects;
}

/* Decodes the event at the cursor in the long way.  True if it is good. */
static bool read_event(struct kvg_event_reader *reader, struct kvg_event *out)
{
    struct kvi_decoder decoder = {
        .cursor = {reader->cursor, reader->end}, .limits = &reader->limits, .event = out};
    struct kvi_mp_cursor start = decoder.cursor;
    enum kvi_decoded result = kvi_decode_event(&decoder);

    reader->cursor = decoder.cursor.at;
    switch (result) {
    case KVI_DECODED:
        reader->counts.unknown_fields += decoder.unknown_fields;
        reader->counts.ignored_values += decoder.ignored_values;
        reader->counts.events++;
        inherit(reader, out);
        return true;
    case KVI_DECODED_BAD:
        reader->counts.bad_events++;
        return false;
    case KVI_DECODED_UNKNOWN_KIND:
        reader->counts.unknown_kinds++;
        return false;
    case KVI_DECODED_HEARTBEAT:
        hear_heartbeat(reader, start);
        return false;
    case KVI_DECODED_BROKEN:
        give_up(reader);
        return false;
    }
    return false;
}

bool kvg_event_reader_next(struct kvg_event_reader *reader, struct kvg_event *out)
{
    struct kvi_mp_cursor cursor = {reader->cursor, reader->end};

    while (reader->events_left != 0) {
        reader->events_left--;
        if (KVI_LIKELY(kvi_decode_predicted(&cursor, &reader->limits, out))) {
            reader->cursor = cursor.at;
            reader->counts.predicted++;
            reader->counts.events++;
            return true;
        }
        if (read_event(reader, out))
            return true;
        cursor.at = reader->cursor;
    }
    if (reader->active)
        finish(reader);
    *out = (struct kvg_event){.medium = KVG_MEDIUM_UNKNOWN};
    return false;
}

/* The array goes on behind the cursor. */
static bool advance(struct kvg_event_array *array, const struct kvi_mp_cursor *cursor)
{
    array->bytes -= (size_t)(cursor->at - array->data);
    array->data = cursor->at;
    array->count--;
    return true;
}

bool kvg_event_array_next(struct kvg_event_array *array, uint64_t *out)
{
    struct kvi_mp_cursor cursor;

    *out = 0;
    if (array->count == 0)
        return false;
    cursor = (struct kvi_mp_cursor){array->data, array->data + array->bytes};
    return kvi_take_hash(&cursor, out) && advance(array, &cursor);
}

bool kvg_event_array_next_pair(struct kvg_event_array *array, uint64_t out[2])
{
    struct kvi_mp_cursor cursor;

    out[0] = 0;
    out[1] = 0;
    if (array->count == 0)
        return false;
    cursor = (struct kvi_mp_cursor){array->data, array->data + array->bytes};
    return kvi_take_pair(&cursor, out) && advance(array, &cursor);
}

int kvi_event_reader_check(const struct kvg_event_reader *reader)
{
    if (reader->cursor > reader->end)
        return 1;
    if (reader->broken && (reader->active || reader->counts.bad_payloads == 0))
        return 2;
    if (!reader->active && reader->events_left != 0)
        return 3;
    return 0;
}

/* Media ----------------------------------------------------------------------------------- */

static bool word_is(struct kvg_str word, const char *capitals)
{
    size_t i;

    for (i = 0; i < word.bytes; i++) {
        char letter = word.data[i];

        if (letter >= 'a' && letter <= 'z')
            letter = (char)(letter - 'a' + 'A');
        if (capitals[i] == '\0' || letter != capitals[i])
            return false;
    }
    return capitals[i] == '\0';
}

enum kvg_medium kvg_medium_from_word(struct kvg_str word)
{
    static const struct {
        const char *word;
        enum kvg_medium medium;
    } WORDS[] = {{"CPU", KVG_MEDIUM_CPU}, {"DISK", KVG_MEDIUM_DISK},
        {"GPU", KVG_MEDIUM_DEVICE}, {"DEVICE", KVG_MEDIUM_DEVICE},
        {"CPU_PINNED", KVG_MEDIUM_CPU}, {"CPU_TIER1", KVG_MEDIUM_CPU},
        {"CPU_TIER2", KVG_MEDIUM_DISK}, {"NVME", KVG_MEDIUM_DISK},
        {"STORAGE", KVG_MEDIUM_DISK}, {"EXTERNAL", KVG_MEDIUM_EXTERNAL},
        {"NETWORK", KVG_MEDIUM_EXTERNAL}, {"REMOTE", KVG_MEDIUM_EXTERNAL},
        {"SHARED", KVG_MEDIUM_EXTERNAL}};
    size_t i;

    for (i = 0; i < sizeof(WORDS) / sizeof(WORDS[0]); i++) {
        if (word_is(word, WORDS[i].word))
            return WORDS[i].medium;
    }
    return KVG_MEDIUM_UNKNOWN;
}
