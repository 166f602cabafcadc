/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* Fuzz target: captures.  The first byte is the size of the pieces that the stream is given.  Both
 * readers must find the same messages and the same error, and what was read, written again,
 * must be the bytes it was read from. */
#include "base/assert.h"
#include "event/kvcap.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

struct pieces {
    const uint8_t *data;
    size_t bytes;
    size_t piece;
};

static bool read_piece(void *context, void *bytes, size_t byte_max, size_t *got)
{
    struct pieces *pieces = context;

    *got = pieces->piece < byte_max ? pieces->piece : byte_max;
    if (*got > pieces->bytes)
        *got = pieces->bytes;
    if (*got != 0)
        memcpy(bytes, pieces->data, *got);
    pieces->data += *got;
    pieces->bytes -= *got;
    return true;
}

/* Compares what is written with the input. */
struct echo {
    const uint8_t *expected;
    size_t at;
};

static bool write_echo(void *context, const void *bytes, size_t byte_count)
{
    struct echo *echo = context;

    KVI_ASSERT(memcmp(echo->expected + echo->at, bytes, byte_count) == 0);
    echo->at += byte_count;
    return true;
}

static void compare_messages(
    const struct kvg_kvcap_message *a, const struct kvg_kvcap_message *b)
{
    uint32_t i;

    KVI_ASSERT(a->time_ns == b->time_ns && a->frame_count == b->frame_count);
    for (i = 0; i < a->frame_count; i++)
        KVI_ASSERT(a->frames[i].bytes == b->frames[i].bytes &&
                   memcmp(a->frames[i].data, b->frames[i].data, a->frames[i].bytes) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct pieces pieces;
    struct echo echo;
    struct kvg_kvcap_reader reader;
    struct kvg_kvcap_stream *stream;
    struct kvg_kvcap_message in_memory;
    struct kvg_kvcap_message in_stream;
    struct kvg_error memory_error = {.code = KVG_OK};
    struct kvg_error stream_error = {.code = KVG_OK};
    kvg_err memory_err;
    kvg_err stream_err;

    if (bytes == 0)
        return 0;
    pieces = (struct pieces){data + 1, bytes - 1, data[0] == 0 ? 4096u : data[0]};
    echo = (struct echo){data + 1, 0};
    if (kvg_kvcap_stream_new(kvg_alloc_default(), read_piece, &pieces, &stream) != KVG_OK)
        return 0;
    memory_err = kvg_kvcap_reader_init(
        &reader, (struct kvg_str){(const char *)data + 1, bytes - 1}, &memory_error);
    if (memory_err == KVG_OK)
        KVI_ASSERT(kvg_kvcap_write_begin(write_echo, &echo) == KVG_OK);
    for (;;) {
        if (memory_err == KVG_OK)
            memory_err = kvg_kvcap_read(&reader, &memory_error, &in_memory);
        stream_err = kvg_kvcap_stream_next(stream, &stream_error, &in_stream);
        KVI_ASSERT(memory_err == stream_err);
        KVI_ASSERT(kvi_kvcap_stream_check(stream) == 0);
        if (memory_err != KVG_OK)
            break;
        compare_messages(&in_memory, &in_stream);
        KVI_ASSERT(kvg_kvcap_write(write_echo, &echo, in_memory.time_ns, in_memory.frames,
                       in_memory.frame_count) == KVG_OK);
        KVI_ASSERT(echo.at == reader.offset);
    }
    KVI_ASSERT(strcmp(memory_error.message, stream_error.message) == 0);
    kvg_kvcap_stream_free(stream);
    return 0;
}
