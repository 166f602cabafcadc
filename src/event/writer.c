/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* writer.c -- events to bytes, in the dialects that event.h names.
 *
 * The number of events stands before them and is known after them, so the buffer keeps room
 * for the head of the batch, and the head is put in front of the events at the end:
 *
 *     |  HEAD_ROOM           | event | event | event | dp_rank |
 *           |- [time, [n ... -|
 *
 * Invariants:
 *
 *     W1  Between begin and end the buffer begins with HEAD_ROOM bytes.
 *     W2  A map's head announces exactly the pairs that follow: fields are counted before they
 *         are written, by the same conditions.
 *     W3  What a dialect of the store's master writes for an event of that master is, byte by
 *         byte, what the master sent.
 */
#include <kvgraft/event.h>

#include "event/decode.h"

#include "base/alloc.h"
#include "base/fmt.h"

/* [ (1) time (9) [ (5): never more. */
#define HEAD_ROOM 16u

struct kvg_event_writer {
    const struct kvg_alloc *alloc;
    enum kvg_event_dialect dialect;
    struct kvi_mp_buffer buffer;
    uint32_t events;
    int64_t timestamp_ms;
    int64_t dp_rank;
    bool has_dp_rank;
    bool begun;
};

/* An event and the arrays that come beside it. */
struct source_event {
    const struct kvg_event *event;
    int64_t timestamp_ms;
    const uint64_t *hashes;
    size_t hash_count;
    const uint32_t *tokens;
    size_t token_count;
};

kvg_err kvg_event_writer_new(const struct kvg_alloc *alloc,
    enum kvg_event_dialect dialect, struct kvg_event_writer **out)
{
    struct kvg_event_writer *writer;

    *out = NULL;
    if ((unsigned)dialect > KVG_DIALECT_ENGINE_ARRAY)
        return KVG_EINVAL;
    writer = KVI_NEW(alloc, struct kvg_event_writer);
    if (writer == NULL)
        return KVG_ENOMEM;
    writer->alloc = alloc;
    writer->dialect = dialect;
    kvi_mp_buffer_init(&writer->buffer, alloc);
    *out = writer;
    return KVG_OK;
}

void kvg_event_writer_free(struct kvg_event_writer *writer)
{
    if (writer == NULL)
        return;
    kvi_mp_buffer_fini(&writer->buffer);
    KVI_FREE(writer->alloc, writer);
}

static bool is_engine(const struct kvg_event_writer *writer)
{
    return writer->dialect == KVG_DIALECT_ENGINE_MAP ||
           writer->dialect == KVG_DIALECT_ENGINE_ARRAY;
}

static bool is_legacy(const struct kvg_event_writer *writer)
{
    return writer->dialect == KVG_DIALECT_MOONCAKE_LEGACY ||
           writer->dialect == KVG_DIALECT_MOONCAKE_V2_LEGACY;
}

static bool is_reworked(const struct kvg_event_writer *writer)
{
    return writer->dialect == KVG_DIALECT_MOONCAKE_V2 ||
           writer->dialect == KVG_DIALECT_MOONCAKE_V2_LEGACY;
}

void kvg_event_writer_begin(struct kvg_event_writer *writer, int64_t timestamp_ms,
    bool has_dp_rank, int64_t dp_rank)
{
    static const uint8_t ROOM[HEAD_ROOM];

    writer->buffer.bytes = 0;
    writer->buffer.err = KVG_OK;
    writer->events = 0;
    writer->timestamp_ms = timestamp_ms;
    writer->has_dp_rank = has_dp_rank;
    writer->dp_rank = has_dp_rank ? dp_rank : 0;
    writer->begun = true;
    kvi_mp_put_bytes(&writer->buffer, ROOM, sizeof(ROOM));
}

static void fail(struct kvi_mp_buffer *buffer, kvg_err err)
{
    if (buffer->err == KVG_OK)
        buffer->err = err;
}

/* Values ---------------------------------------------------------------------------------- */

static void put_key(struct kvi_mp_buffer *buffer, const char *name)
{
    kvi_mp_put_str(buffer, kvi_str(name));
}

static void put_str_or_nil(struct kvi_mp_buffer *buffer, struct kvg_str str)
{
    if (str.data == NULL)
        kvi_mp_put_nil(buffer);
    else
        kvi_mp_put_str(buffer, str);
}

static void put_uint_or_nil(struct kvi_mp_buffer *buffer, bool has, uint64_t value)
{
    if (has)
        kvi_mp_put_uint(buffer, value);
    else
        kvi_mp_put_nil(buffer);
}

static void put_int_or_nil(struct kvi_mp_buffer *buffer, bool has, int64_t value)
{
    if (has)
        kvi_mp_put_int(buffer, value);
    else
        kvi_mp_put_nil(buffer);
}

static void put_medium(struct kvi_mp_buffer *buffer, const struct kvg_event *event)
{
    if (event->medium_name.data != NULL)
        kvi_mp_put_str(buffer, event->medium_name);
    else if (event->medium == KVG_MEDIUM_UNKNOWN)
        kvi_mp_put_nil(buffer);
    else if (event->medium == KVG_MEDIUM_DEVICE)
        kvi_mp_put_str(buffer, kvi_str("GPU"));
    else
        kvi_mp_put_str(buffer, kvi_str(kvg_medium_name(event->medium)));
}

/* Engines' hashes are signed, and so is the store's legacy field. */
static void put_hashes(
    struct kvi_mp_buffer *buffer, const struct source_event *source, bool as_signed)
{
    size_t i;

    kvi_mp_put_array(buffer, source->hash_count);
    for (i = 0; i < source->hash_count; i++) {
        if (as_signed)
            kvi_mp_put_int(buffer, (int64_t)source->hashes[i]);
        else
            kvi_mp_put_uint(buffer, source->hashes[i]);
    }
}

static void put_tokens(struct kvi_mp_buffer *buffer, const struct source_event *source)
{
    bool pairs = source->event->token_pairs;
    size_t i;

    if (pairs && source->token_count % 2 != 0) {
        fail(buffer, KVG_EINVAL);
        return;
    }
    kvi_mp_put_array(buffer, pairs ? source->token_count / 2 : source->token_count);
    for (i = 0; i < source->token_count; i++) {
        if (pairs && i % 2 == 0)
            kvi_mp_put_array(buffer, 2);
        kvi_mp_put_uint(buffer, source->tokens[i]);
    }
}

/* The store's dialects ----------------------------------------------------------------- */

static const char *object_word(enum kvg_event_kind kind)
{
    return kind == KVG_EVENT_STORED    ? "stored"
           : kind == KVG_EVENT_REMOVED ? "removed"
                                       : "cleared";
}

static const char *engine_word(enum kvg_event_kind kind)
{
    return kind == KVG_EVENT_STORED    ? "BlockStored"
           : kind == KVG_EVENT_REMOVED ? "BlockRemoved"
                                       : "AllBlocksCleared";
}

static uint32_t count_object_fields(
    const struct kvg_event_writer *writer, const struct kvg_event *event)
{
    uint32_t legacy = is_legacy(writer) ? 1 : 0;
    uint32_t fields = 11 + legacy;

    if (event->kind == KVG_EVENT_CLEARED)
        return fields;
    fields += 3 + legacy + (event->object_key.data != NULL ? 1 : 0);
    return event->kind == KVG_EVENT_STORED ? fields + 2 + legacy : fields;
}

/* What the older publisher never knew is nil, whatever the event says. */
static void put_object_names(struct kvi_mp_buffer *buffer,
    const struct kvg_event_writer *writer, const struct kvg_event *event)
{
    static const struct kvg_str NONE = {NULL, 0};
    bool known = is_reworked(writer);

    put_key(buffer, "model_name");
    put_str_or_nil(buffer, known ? event->model_name : NONE);
    put_key(buffer, "block_size");
    put_uint_or_nil(buffer, known && event->has_block_size, event->block_size);
    put_key(buffer, "additional_salt");
    put_str_or_nil(buffer, known ? event->salt : NONE);
    put_key(buffer, "lora_name");
    put_str_or_nil(buffer, known ? event->lora_name : NONE);
    put_key(buffer, "tenant_id");
    kvi_mp_put_str(
        buffer, event->tenant_id.data != NULL ? event->tenant_id : kvi_str("default"));
    put_key(buffer, "backend_id");
    kvi_mp_put_str(
        buffer, event->backend_id.data != NULL ? event->backend_id : kvi_str(""));
    if (event->kind != KVG_EVENT_CLEARED) {
        put_key(buffer, "group_id");
        put_str_or_nil(buffer, event->group_id.bytes == 0 ? NONE : event->group_id);
    }
    put_key(buffer, "medium");
    put_medium(buffer, event);
    put_key(buffer, "dp_rank");
    put_int_or_nil(buffer, known, event->has_dp_rank ? event->dp_rank : 0);
}

static void put_object_block(struct kvi_mp_buffer *buffer,
    const struct kvg_event_writer *writer, const struct source_event *source)
{
    const struct kvg_event *event = source->event;
    bool stored = event->kind == KVG_EVENT_STORED;

    if (event->object_key.data != NULL) {
        put_key(buffer, "object_key");
        kvi_mp_put_str(buffer, event->object_key);
    }
    put_key(buffer, "seq_hashes");
    put_hashes(buffer, source, false);
    if (is_legacy(writer)) {
        put_key(buffer, "block_hashes");
        put_hashes(buffer, source, true);
    }
    put_key(buffer, "base_block_idx");
    put_int_or_nil(buffer, stored && !is_reworked(writer),
        event->has_base_block_index ? event->base_block_index : 0);
    if (!stored)
        return;
    put_key(buffer, "parent_hash");
    kvi_mp_put_nil(buffer);
    put_key(buffer, "token_ids");
    kvi_mp_put_nil(buffer);
    if (is_legacy(writer)) {
        put_key(buffer, "parent_block_hash");
        kvi_mp_put_nil(buffer);
    }
}

static void put_object(struct kvg_event_writer *writer, const struct source_event *source)
{
    struct kvi_mp_buffer *buffer = &writer->buffer;
    const struct kvg_event *event = source->event;

    if (event->kind == KVG_EVENT_CLEARED && !is_reworked(writer)) {
        fail(buffer, KVG_EINVAL);
        return;
    }
    kvi_mp_put_map(buffer, count_object_fields(writer, event));
    put_key(buffer, "event_id");
    kvi_mp_put_uint(buffer, event->has_event_id ? event->event_id : 0);
    put_key(buffer, "timestamp");
    kvi_mp_put_int(buffer, source->timestamp_ms);
    put_key(buffer, "event_type");
    put_key(buffer, object_word(event->kind));
    if (is_legacy(writer)) {
        put_key(buffer, "type");
        put_key(buffer, engine_word(event->kind));
    }
    put_object_names(buffer, writer, event);
    if (event->kind != KVG_EVENT_CLEARED)
        put_object_block(buffer, writer, source);
}

/* The engines' dialects ---------------------------------------------------------------- */

/* A rank of its own, and not the batch's once more. */
static bool has_own_rank(
    const struct kvg_event_writer *writer, const struct kvg_event *event)
{
    return event->has_dp_rank &&
           !(writer->has_dp_rank && writer->dp_rank == event->dp_rank);
}

/* How many of the fields that may be left out the event has. */
static uint32_t optional_fields(
    const struct kvg_event_writer *writer, const struct kvg_event *event)
{
    uint32_t stored = event->kind == KVG_EVENT_STORED
                          ? (event->lora_name.data != NULL) +
                                (uint32_t)(event->salt.data != NULL) +
                                (event->session_id.data != NULL)
                          : 0;

    return stored + (has_own_rank(writer, event) ? 1u : 0u) +
           (event->has_group_index ? 1u : 0u) + (event->spec_kind.data != NULL) +
           (event->has_sliding_window ? 1u : 0u) + (event->locality.data != NULL) +
           (event->source_kind.data != NULL);
}

static void put_optional_str(
    struct kvi_mp_buffer *buffer, const char *name, struct kvg_str str)
{
    if (str.data == NULL)
        return;
    put_key(buffer, name);
    kvi_mp_put_str(buffer, str);
}

static void put_optional_uint(
    struct kvi_mp_buffer *buffer, const char *name, bool has, uint64_t value)
{
    if (!has)
        return;
    put_key(buffer, name);
    kvi_mp_put_uint(buffer, value);
}

static void put_engine_map(
    struct kvg_event_writer *writer, const struct source_event *source)
{
    struct kvi_mp_buffer *buffer = &writer->buffer;
    const struct kvg_event *event = source->event;
    bool stored = event->kind == KVG_EVENT_STORED;
    uint32_t fixed = stored ? 7 : event->kind == KVG_EVENT_REMOVED ? 3 : 2;

    kvi_mp_put_map(buffer, fixed + optional_fields(writer, event));
    put_key(buffer, "type");
    put_key(buffer, engine_word(event->kind));
    if (event->kind != KVG_EVENT_CLEARED) {
        put_key(buffer, "block_hashes");
        put_hashes(buffer, source, true);
    }
    if (stored) {
        put_key(buffer, "parent_block_hash");
        put_int_or_nil(buffer, event->has_parent_hash, (int64_t)event->parent_hash);
        put_key(buffer, "token_ids");
        put_tokens(buffer, source);
        put_key(buffer, "block_size");
        put_uint_or_nil(buffer, event->has_block_size, event->block_size);
        put_key(buffer, "lora_id");
        put_int_or_nil(buffer, event->has_lora_id, event->lora_id);
    }
    put_key(buffer, "medium");
    put_medium(buffer, event);
    if (stored) {
        put_optional_str(buffer, "lora_name", event->lora_name);
        put_optional_str(buffer, "cache_salt", event->salt);
        put_optional_str(buffer, "session_id", event->session_id);
    }
    if (has_own_rank(writer, event)) {
        put_key(buffer, "dp_rank");
        kvi_mp_put_int(buffer, event->dp_rank);
    }
    put_optional_uint(buffer, "group_idx", event->has_group_index, event->group_index);
    put_optional_str(buffer, "kv_cache_spec_kind", event->spec_kind);
    put_optional_uint(buffer, "kv_cache_spec_sliding_window", event->has_sliding_window,
        event->sliding_window);
    put_optional_str(buffer, "locality", event->locality);
    put_optional_str(buffer, "source_kind", event->source_kind);
}

/* Readers tell the places of a tail apart by type, and words by their letters: what could be
 * taken for something else must not be sent. */
static bool tail_is_clear(const struct kvg_event *event)
{
    if (event->has_sliding_window && !event->has_group_index)
        return false;
    if (event->source_kind.data != NULL && event->spec_kind.data == NULL)
        return false;
    return !kvi_word_is_capitals(event->spec_kind) &&
           !kvi_word_is_capitals(event->source_kind) &&
           (event->locality.data == NULL || kvi_word_is_capitals(event->locality));
}

/* The tail of an array, as far as it goes by place. */
static uint32_t count_tail(const struct kvg_event *event)
{
    return event->source_kind.data != NULL ? 5
           : event->locality.data != NULL  ? 4
           : event->has_sliding_window     ? 3
           : event->spec_kind.data != NULL ? 2
           : event->has_group_index        ? 1
                                           : 0;
}

static void put_tail(
    struct kvi_mp_buffer *buffer, const struct kvg_event *event, uint32_t count)
{
    if (count >= 1)
        put_uint_or_nil(buffer, event->has_group_index, event->group_index);
    if (count >= 2)
        put_str_or_nil(buffer, event->spec_kind);
    if (count >= 3)
        put_uint_or_nil(buffer, event->has_sliding_window, event->sliding_window);
    if (count >= 4)
        put_str_or_nil(buffer, event->locality);
    if (count >= 5)
        put_str_or_nil(buffer, event->source_kind);
}

static void put_engine_array(
    struct kvi_mp_buffer *buffer, const struct source_event *source)
{
    const struct kvg_event *event = source->event;
    bool stored = event->kind == KVG_EVENT_STORED;
    uint32_t tail = count_tail(event);
    uint32_t names = stored && (tail != 0 || event->lora_name.data != NULL) ? 1 : 0;
    uint32_t extra = stored && tail != 0 ? 1 : 0;
    uint32_t metadata =
        stored ? (event->salt.data != NULL) + (uint32_t)(event->session_id.data != NULL)
               : 0;
    uint32_t fixed = stored ? 7 : event->kind == KVG_EVENT_REMOVED ? 3 : 2;

    if (!tail_is_clear(event)) {
        fail(buffer, KVG_EINVAL);
        return;
    }
    kvi_mp_put_array(buffer, fixed + names + extra + tail + (metadata != 0 ? 1u : 0u));
    put_key(buffer, engine_word(event->kind));
    if (event->kind != KVG_EVENT_CLEARED)
        put_hashes(buffer, source, true);
    if (stored) {
        put_int_or_nil(buffer, event->has_parent_hash, (int64_t)event->parent_hash);
        put_tokens(buffer, source);
        put_uint_or_nil(buffer, event->has_block_size, event->block_size);
        put_int_or_nil(buffer, event->has_lora_id, event->lora_id);
    }
    put_medium(buffer, event);
    if (names != 0)
        put_str_or_nil(buffer, event->lora_name);
    if (extra != 0)
        kvi_mp_put_nil(buffer);
    put_tail(buffer, event, tail);
    if (metadata != 0) {
        kvi_mp_put_map(buffer, metadata);
        put_optional_str(buffer, "cache_salt", event->salt);
        put_optional_str(buffer, "session_id", event->session_id);
    }
}

/* The message ----------------------------------------------------------------------------- */

void kvg_event_writer_add(struct kvg_event_writer *writer, const struct kvg_event *event,
    const uint64_t *hashes, size_t hash_count, const uint32_t *tokens, size_t token_count)
{
    struct source_event source = {.event = event,
        .timestamp_ms = event->has_timestamp ? event->timestamp_ms : writer->timestamp_ms,
        .hashes = hashes,
        .hash_count = hash_count,
        .tokens = tokens,
        .token_count = token_count};

    if (writer->buffer.err != KVG_OK)
        return;
    if (!writer->begun || writer->events == UINT32_MAX) {
        fail(&writer->buffer, KVG_EINVAL);
        return;
    }
    writer->events++;
    switch (writer->dialect) {
    case KVG_DIALECT_ENGINE_MAP:
        put_engine_map(writer, &source);
        break;
    case KVG_DIALECT_ENGINE_ARRAY:
        put_engine_array(&writer->buffer, &source);
        break;
    default:
        put_object(writer, &source);
        break;
    }
}

void kvg_event_writer_heartbeat(
    struct kvg_event_writer *writer, uint64_t epoch, uint64_t objects)
{
    struct kvi_mp_buffer *buffer = &writer->buffer;

    if (buffer->err != KVG_OK)
        return;
    if (!writer->begun || writer->events != 0 || epoch == 0 || is_engine(writer)) {
        fail(buffer, KVG_EINVAL);
        return;
    }
    writer->events++;
    kvi_mp_put_map(buffer, 4);
    put_key(buffer, "event_type");
    put_key(buffer, "heartbeat");
    put_key(buffer, "epoch");
    kvi_mp_put_uint(buffer, epoch);
    put_key(buffer, "objects");
    kvi_mp_put_uint(buffer, objects);
    put_key(buffer, "timestamp");
    kvi_mp_put_int(buffer, writer->timestamp_ms);
}

/* [time, [events, into `head`; the engines' time is in seconds. */
static size_t make_head(const struct kvg_event_writer *writer, uint8_t head[HEAD_ROOM])
{
    /* A buffer that never allocates: it has all the room it needs. */
    struct kvi_mp_buffer buffer = {.data = head, .capacity = HEAD_ROOM, .err = KVG_OK};

    kvi_mp_put_array(&buffer, 3);
    if (is_engine(writer))
        kvi_mp_put_double(&buffer, (double)writer->timestamp_ms / 1e3);
    else
        kvi_mp_put_int(&buffer, writer->timestamp_ms);
    kvi_mp_put_array(&buffer, writer->events);
    return buffer.bytes;
}

kvg_err kvg_event_writer_end(struct kvg_event_writer *writer, struct kvg_str *out)
{
    struct kvi_mp_buffer *buffer = &writer->buffer;
    uint8_t head[HEAD_ROOM];
    size_t bytes;

    *out = (struct kvg_str){NULL, 0};
    if (!writer->begun)
        return KVG_ESTATE;
    writer->begun = false;
    put_int_or_nil(buffer, writer->has_dp_rank || !is_engine(writer), writer->dp_rank);
    if (buffer->err != KVG_OK)
        return buffer->err;
    bytes = make_head(writer, head);
    memcpy(buffer->data + HEAD_ROOM - bytes, head, bytes);
    *out = (struct kvg_str){(const char *)buffer->data + HEAD_ROOM - bytes,
        buffer->bytes - HEAD_ROOM + bytes};
    return KVG_OK;
}
