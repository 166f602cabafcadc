/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* kvcap.c -- the capture format, over bytes (kvgraft/kvcap.h).
 *
 * One function, parse(), takes a message off some bytes and says whether it is whole, wrong, or
 * needs more.  The reader in memory calls it once a message: "needs more" is the end of the
 * file in the wrong place.  The stream gathers bytes until it is content:
 *
 *     data   |....... consumed .......|=== message ===|== more ==|      room      |
 *            0                        start                      end          capacity
 *
 * Invariants:
 *
 *     K1  start <= end <= capacity; what is between start and end has not been handed out.
 *     K2  `offset` is the place in the file of the byte at start; it is 0 until the magic was
 *         seen, and each message moved it by 12 bytes or more.
 *     K3  The buffer doubles only when it is full of one message: what a length announces
 *         takes no memory before it has arrived.  So it is 65,536 times a power of two.
 */
#include "event/kvcap.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/fmt.h"

enum parsed {
    PARSED,
    PARSED_MORE, /* Whole, so far, but more bytes are needed. */
    PARSED_FRAMES_OVER,
    PARSED_FRAME_BYTES_OVER
};

/* A message at the front of some bytes. */
struct front {
    size_t bytes;   /* Of the message, as far as known: what it needs. */
    uint32_t value; /* That was over the limit. */
};

static uint32_t load_le32(const uint8_t *bytes)
{
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 |
           (uint32_t)bytes[3] << 24;
}

static void store_le32(uint8_t *bytes, uint32_t value)
{
    size_t i;

    for (i = 0; i < 4; i++)
        bytes[i] = (uint8_t)(value >> (8 * i));
}

static enum parsed parse(
    const uint8_t *data, size_t bytes, struct front *front, struct kvg_kvcap_message *out)
{
    uint32_t i;

    *front = (struct front){12, 0};
    if (bytes < 12)
        return PARSED_MORE;
    out->time_ns = (uint64_t)load_le32(data) | (uint64_t)load_le32(data + 4) << 32;
    out->frame_count = load_le32(data + 8);
    if (out->frame_count > KVG_KVCAP_FRAMES_MAX) {
        front->value = out->frame_count;
        return PARSED_FRAMES_OVER;
    }
    for (i = 0; i < out->frame_count; i++) {
        size_t head = front->bytes;
        uint32_t length;

        front->bytes = head + 4;
        if (bytes < front->bytes)
            return PARSED_MORE;
        length = load_le32(data + head);
        if (length > KVG_KVCAP_FRAME_BYTES_MAX) {
            front->value = length;
            return PARSED_FRAME_BYTES_OVER;
        }
        front->bytes += length;
        if (bytes < front->bytes)
            return PARSED_MORE;
        out->frames[i] = (struct kvg_str){(const char *)data + head + 4, length};
    }
    return PARSED;
}

/* "message N at byte OFFSET " and what is wrong with it. */
static kvg_err fail_at(struct kvg_error *error, kvg_err err, uint64_t message,
    uint64_t offset, const char *what, uint64_t value, const char *unit)
{
    char sentence[160];
    struct kvi_text text;

    kvi_text_init(&text, sentence, sizeof(sentence));
    kvi_text_str(&text, "message ");
    kvi_text_u64(&text, message);
    kvi_text_str(&text, " at byte ");
    kvi_text_u64(&text, offset);
    kvi_text_str(&text, " ");
    kvi_text_str(&text, what);
    kvi_text_u64(&text, value);
    kvi_text_str(&text, unit);
    return kvi_fail(error, err, "capture", sentence);
}

static kvg_err fail_parsed(struct kvg_error *error, enum parsed parsed, uint64_t message,
    uint64_t offset, const struct front *front, uint64_t bytes)
{
    switch (parsed) {
    case PARSED_FRAMES_OVER:
        return fail_at(error, KVG_ELIMIT, message, offset, "has ", front->value,
            " frames; allowed are 16");
    case PARSED_FRAME_BYTES_OVER:
        return fail_at(error, KVG_ELIMIT, message, offset + front->bytes - 4,
            "announces a frame of ", front->value, " bytes; allowed are 268435456");
    default:
        return fail_at(error, KVG_EFORMAT, message, offset,
            "is cut off: the file ends at "
            "byte ",
            offset + bytes, "");
    }
}

static kvg_err fail_magic(struct kvg_error *error)
{
    return kvi_fail(error, KVG_EFORMAT, "capture",
        "byte 0: not a capture; one begins with KVCAP01 and a line end");
}

kvg_err kvg_kvcap_reader_init(
    struct kvg_kvcap_reader *reader, struct kvg_str capture, struct kvg_error *error)
{
    *reader = (struct kvg_kvcap_reader){
        .data = (const uint8_t *)capture.data, .bytes = capture.bytes};
    if (capture.bytes < KVG_KVCAP_MAGIC_BYTES ||
        memcmp(capture.data, KVG_KVCAP_MAGIC, KVG_KVCAP_MAGIC_BYTES) != 0) {
        reader->bytes = 0;
        return fail_magic(error);
    }
    reader->offset = KVG_KVCAP_MAGIC_BYTES;
    return KVG_OK;
}

kvg_err kvg_kvcap_read(struct kvg_kvcap_reader *reader, struct kvg_error *error,
    struct kvg_kvcap_message *out)
{
    size_t left = reader->bytes - (size_t)reader->offset;
    struct front front;
    enum parsed parsed;

    out->frame_count = 0;
    if (left == 0)
        return KVG_ENOENT;
    parsed = parse(reader->data + reader->offset, left, &front, out);
    if (parsed != PARSED) {
        out->frame_count = 0;
        return fail_parsed(error, parsed, reader->messages, reader->offset, &front, left);
    }
    reader->offset += front.bytes;
    reader->messages++;
    return KVG_OK;
}

/* The stream ------------------------------------------------------------------------------ */

#define STREAM_BYTES_MIN 65536u

struct kvg_kvcap_stream {
    const struct kvg_alloc *alloc;
    kvg_kvcap_read_fn *read;
    void *context;
    uint8_t *data;
    size_t capacity;
    size_t start;
    size_t end;
    uint64_t offset;
    uint64_t messages;
    bool begun; /* The magic was seen. */
};

kvg_err kvg_kvcap_stream_new(const struct kvg_alloc *alloc, kvg_kvcap_read_fn *read,
    void *context, struct kvg_kvcap_stream **out)
{
    struct kvg_kvcap_stream *stream;

    *out = NULL;
    stream = KVI_NEW(alloc, struct kvg_kvcap_stream);
    if (stream == NULL)
        return KVG_ENOMEM;
    stream->alloc = alloc;
    stream->read = read;
    stream->context = context;
    stream->data = kvi_alloc_array_raw(alloc, STREAM_BYTES_MIN, 1);
    if (stream->data == NULL) {
        kvg_kvcap_stream_free(stream);
        return KVG_ENOMEM;
    }
    stream->capacity = STREAM_BYTES_MIN;
    *out = stream;
    return KVG_OK;
}

void kvg_kvcap_stream_free(struct kvg_kvcap_stream *stream)
{
    if (stream == NULL)
        return;
    kvi_release_array(stream->alloc, stream->data, stream->capacity, 1);
    KVI_FREE(stream->alloc, stream);
}

/* Makes room behind `end`: by moving what is left to the front, or by doubling. */
static kvg_err make_room(struct kvg_kvcap_stream *stream)
{
    void *data = stream->data;

    if (stream->start != 0) {
        memmove(stream->data, stream->data + stream->start, stream->end - stream->start);
        stream->end -= stream->start;
        stream->start = 0;
        return KVG_OK;
    }
    if (!kvi_resize_array(
            stream->alloc, &data, stream->capacity, stream->capacity * 2, 1))
        return KVG_ENOMEM;
    stream->data = data;
    stream->capacity *= 2;
    return KVG_OK;
}

/* Reads until `needed` bytes are there, or the end: then KVG_ENOENT. */
static kvg_err gather(
    struct kvg_kvcap_stream *stream, size_t needed, struct kvg_error *error)
{
    while (stream->end - stream->start < needed) {
        size_t room = stream->capacity - stream->end;
        size_t got = 0;

        if (room == 0) {
            kvg_err err = make_room(stream);

            if (err != KVG_OK)
                return kvi_fail(error, err, "capture", "no memory for a message");
            continue;
        }
        if (!stream->read(stream->context, stream->data + stream->end, room, &got) ||
            got > room)
            return fail_at(error, KVG_EIO, stream->messages, stream->offset,
                "cannot be read: reading failed at byte ",
                stream->offset + (stream->end - stream->start), "");
        if (got == 0)
            return KVG_ENOENT;
        stream->end += got;
    }
    return KVG_OK;
}

static void consume(struct kvg_kvcap_stream *stream, size_t bytes)
{
    KVI_DCHECK(bytes <= stream->end - stream->start);
    stream->start += bytes;
    stream->offset += bytes;
}

static kvg_err read_magic(struct kvg_kvcap_stream *stream, struct kvg_error *error)
{
    kvg_err err = gather(stream, KVG_KVCAP_MAGIC_BYTES, error);

    if (err != KVG_OK && err != KVG_ENOENT)
        return err;
    if (err == KVG_ENOENT ||
        memcmp(stream->data + stream->start, KVG_KVCAP_MAGIC, KVG_KVCAP_MAGIC_BYTES) != 0)
        return fail_magic(error);
    consume(stream, KVG_KVCAP_MAGIC_BYTES);
    stream->begun = true;
    return KVG_OK;
}

kvg_err kvg_kvcap_stream_next(struct kvg_kvcap_stream *stream, struct kvg_error *error,
    struct kvg_kvcap_message *out)
{
    struct front front;
    enum parsed parsed;
    kvg_err err = KVG_OK;

    out->frame_count = 0;
    if (!stream->begun)
        err = read_magic(stream, error);
    while (err == KVG_OK) {
        size_t bytes = stream->end - stream->start;

        parsed = parse(stream->data + stream->start, bytes, &front, out);
        if (parsed == PARSED) {
            consume(stream, front.bytes);
            stream->messages++;
            return KVG_OK;
        }
        out->frame_count = 0;
        if (parsed != PARSED_MORE)
            return fail_parsed(
                error, parsed, stream->messages, stream->offset, &front, bytes);
        err = gather(stream, front.bytes, error);
        bytes = stream->end - stream->start;
        if (err == KVG_ENOENT && bytes != 0)
            return fail_parsed(
                error, parsed, stream->messages, stream->offset, &front, bytes);
    }
    return err;
}

int kvi_kvcap_stream_check(const struct kvg_kvcap_stream *stream)
{
    uint64_t begun = stream->begun ? KVG_KVCAP_MAGIC_BYTES : 0;
    size_t times = stream->capacity / STREAM_BYTES_MIN;

    if (stream->start > stream->end || stream->end > stream->capacity)
        return 1;
    if (stream->offset < begun + stream->messages * 12)
        return 2;
    if (stream->capacity % STREAM_BYTES_MIN != 0 || times == 0 ||
        (times & (times - 1)) != 0)
        return 3;
    return 0;
}

/* Writing --------------------------------------------------------------------------------- */

kvg_err kvg_kvcap_write_begin(kvg_kvcap_write_fn *write, void *context)
{
    return write(context, KVG_KVCAP_MAGIC, KVG_KVCAP_MAGIC_BYTES) ? KVG_OK : KVG_EIO;
}

kvg_err kvg_kvcap_write(kvg_kvcap_write_fn *write, void *context, uint64_t time_ns,
    const struct kvg_str *frames, size_t frame_count)
{
    uint8_t head[12];
    size_t i;

    if (frame_count > KVG_KVCAP_FRAMES_MAX)
        return KVG_ELIMIT;
    for (i = 0; i < frame_count; i++) {
        if (frames[i].bytes > KVG_KVCAP_FRAME_BYTES_MAX)
            return KVG_ELIMIT;
    }
    store_le32(head, (uint32_t)time_ns);
    store_le32(head + 4, (uint32_t)(time_ns >> 32));
    store_le32(head + 8, (uint32_t)frame_count);
    if (!write(context, head, sizeof(head)))
        return KVG_EIO;
    for (i = 0; i < frame_count; i++) {
        store_le32(head, (uint32_t)frames[i].bytes);
        if (!write(context, head, 4))
            return KVG_EIO;
        if (frames[i].bytes != 0 && !write(context, frames[i].data, frames[i].bytes))
            return KVG_EIO;
    }
    return KVG_OK;
}
