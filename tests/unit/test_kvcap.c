/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* Unit tests of the capture format: both readers must say the same, whole or cut. */
#include "event/kvcap.h"
#include "fault_alloc.h"
#include "test.h"

/* A file in memory, written and read in pieces. */
struct memory_file {
    uint8_t data[8192];
    size_t bytes;
    size_t at;
    size_t piece_max;  /* Of a read. */
    size_t room;       /* For writes. */
    long read_failure; /* Reads until one fails; -1 never. */
};

static bool write_memory(void *context, const void *bytes, size_t byte_count)
{
    struct memory_file *file = context;

    if (byte_count > file->room - file->bytes)
        return false;
    memcpy(file->data + file->bytes, bytes, byte_count);
    file->bytes += byte_count;
    return true;
}

static bool read_memory(void *context, void *bytes, size_t byte_max, size_t *got)
{
    struct memory_file *file = context;
    size_t left = file->bytes - file->at;

    if (file->read_failure == 0)
        return false;
    if (file->read_failure > 0)
        file->read_failure--;
    *got = left < byte_max ? left : byte_max;
    if (*got > file->piece_max)
        *got = file->piece_max;
    memcpy(bytes, file->data + file->at, *got);
    file->at += *got;
    return true;
}

static void file_init(struct memory_file *file)
{
    memset(file, 0, sizeof(*file));
    file->piece_max = sizeof(file->data);
    file->room = sizeof(file->data);
    file->read_failure = -1;
}

static struct kvg_str contents(const struct memory_file *file)
{
    return (struct kvg_str){(const char *)file->data, file->bytes};
}

/* Three messages: an ordinary one, one without frames, one with odd frames. */
static void write_three(struct memory_file *file)
{
    static const struct kvg_str ORDINARY[3] = {
        {"", 0}, {"\0\0\0\0\0\0\0\1", 8}, {"payload", 7}};
    static const struct kvg_str ODD[2] = {{"x", 1}, {"", 0}};

    CHECK_EQ(kvg_kvcap_write_begin(write_memory, file), KVG_OK);
    CHECK_EQ(kvg_kvcap_write(write_memory, file, 1000, ORDINARY, 3), KVG_OK);
    CHECK_EQ(kvg_kvcap_write(write_memory, file, UINT64_MAX, NULL, 0), KVG_OK);
    CHECK_EQ(kvg_kvcap_write(write_memory, file, 5, ODD, 2), KVG_OK);
}

TEST(what_was_written_is_read_back)
{
    struct memory_file file;
    struct kvg_kvcap_reader reader;
    struct kvg_kvcap_message message;

    file_init(&file);
    write_three(&file);
    CHECK_EQ(kvg_kvcap_reader_init(&reader, contents(&file), NULL), KVG_OK);
    CHECK_EQ(kvg_kvcap_read(&reader, NULL, &message), KVG_OK);
    CHECK_EQ(message.time_ns, 1000);
    CHECK_EQ(message.frame_count, 3);
    CHECK_EQ(message.frames[2].bytes, 7);
    CHECK_MEM(message.frames[2].data, "payload", 7);
    CHECK_EQ(kvg_kvcap_read(&reader, NULL, &message), KVG_OK);
    CHECK_EQ(message.time_ns, UINT64_MAX);
    CHECK_EQ(message.frame_count, 0);
    CHECK_EQ(kvg_kvcap_read(&reader, NULL, &message), KVG_OK);
    CHECK_EQ(message.frame_count, 2);
    CHECK_EQ(kvg_kvcap_read(&reader, NULL, &message), KVG_ENOENT);
    CHECK_EQ(kvg_kvcap_read(&reader, NULL, &message), KVG_ENOENT);
    CHECK_EQ(reader.messages, 3);
}

TEST(the_bytes_are_those_of_the_format)
{
    static const struct kvg_str FRAMES[2] = {{"", 0}, {"ab", 2}};
    struct memory_file file;

    file_init(&file);
    CHECK_EQ(kvg_kvcap_write_begin(write_memory, &file), KVG_OK);
    CHECK_EQ(kvg_kvcap_write(write_memory, &file, 0x0102, FRAMES, 2), KVG_OK);
    CHECK_EQ(file.bytes, 30);
    CHECK_MEM(file.data,
        "KVCAP01\n"
        "\x02\x01\0\0\0\0\0\0"
        "\x02\0\0\0"
        "\0\0\0\0"
        "\x02\0\0\0"
        "ab",
        30);
}

/* Cut at every byte, read in pieces of every size: the messages before the cut, then the end if
 * the cut is between messages, else where the file ends. */
TEST(a_capture_cut_anywhere_is_read_up_to_the_cut_and_says_where)
{
    struct memory_file whole;
    static const size_t ENDS[] = {8, 47, 59, 80};
    size_t cut;

    file_init(&whole);
    write_three(&whole);
    CHECK_EQ(whole.bytes, ENDS[3]);
    for (cut = 0; cut <= whole.bytes; cut++) {
        size_t messages = 0;
        size_t piece;

        while (messages < 3 && ENDS[messages + 1] <= cut)
            messages++;
        for (piece = 1; piece < 12; piece++) {
            struct memory_file file = whole;
            struct kvg_kvcap_reader reader;
            struct kvg_kvcap_stream *stream;
            struct kvg_kvcap_message message;
            struct kvg_error in_memory = {.code = KVG_OK};
            struct kvg_error in_stream = {.code = KVG_OK};
            kvg_err err;
            size_t read = 0;

            file.bytes = cut;
            file.piece_max = piece;
            CHECK_EQ(
                kvg_kvcap_stream_new(kvg_alloc_default(), read_memory, &file, &stream),
                KVG_OK);
            while ((err = kvg_kvcap_stream_next(stream, &in_stream, &message)) == KVG_OK)
                read++;
            CHECK_EQ(read, messages);
            CHECK_EQ(err, cut >= 8 && cut == ENDS[messages] ? KVG_ENOENT : KVG_EFORMAT);
            kvg_kvcap_stream_free(stream);

            err = kvg_kvcap_reader_init(&reader, contents(&file), &in_memory);
            CHECK_EQ(err, cut < 8 ? KVG_EFORMAT : KVG_OK);
            while (err == KVG_OK)
                err = kvg_kvcap_read(&reader, &in_memory, &message);
            CHECK_EQ(reader.messages, messages);
            CHECK_STR(in_memory.message, in_stream.message);
        }
    }
}

TEST(errors_name_the_message_and_the_byte)
{
    struct memory_file file;
    struct kvg_kvcap_reader reader;
    struct kvg_kvcap_message message;
    struct kvg_error error;

    file_init(&file);
    write_three(&file);
    file.bytes -= 2;
    CHECK_EQ(kvg_kvcap_reader_init(&reader, contents(&file), NULL), KVG_OK);
    CHECK_EQ(kvg_kvcap_read(&reader, NULL, &message), KVG_OK);
    CHECK_EQ(kvg_kvcap_read(&reader, NULL, &message), KVG_OK);
    CHECK_EQ(kvg_kvcap_read(&reader, &error, &message), KVG_EFORMAT);
    CHECK_STR(error.message, "message 2 at byte 59 is cut off: the file ends at byte 78");
    CHECK_EQ(kvg_kvcap_read(&reader, &error, &message), KVG_EFORMAT);

    file.data[8 + 8] = 17; /* Frames of the first message. */
    CHECK_EQ(kvg_kvcap_reader_init(&reader, contents(&file), NULL), KVG_OK);
    CHECK_EQ(kvg_kvcap_read(&reader, &error, &message), KVG_ELIMIT);
    CHECK_STR(error.message, "message 0 at byte 8 has 17 frames; allowed are 16");

    file.data[8 + 8] = 3;
    file.data[8 + 12 + 3] = 0x7f; /* Its first frame's length. */
    CHECK_EQ(kvg_kvcap_reader_init(&reader, contents(&file), NULL), KVG_OK);
    CHECK_EQ(kvg_kvcap_read(&reader, &error, &message), KVG_ELIMIT);
    CHECK_STR(error.message,
        "message 0 at byte 20 announces a frame of 2130706432 bytes; "
        "allowed are 268435456");

    file.data[0] = 'k';
    CHECK_EQ(kvg_kvcap_reader_init(&reader, contents(&file), &error), KVG_EFORMAT);
    CHECK_STR(
        error.message, "byte 0: not a capture; one begins with KVCAP01 and a line end");
}

TEST(what_a_capture_cannot_hold_is_refused_before_a_byte_is_written)
{
    struct memory_file file;
    struct kvg_str frames[KVG_KVCAP_FRAMES_MAX + 1];
    size_t i;

    file_init(&file);
    for (i = 0; i <= KVG_KVCAP_FRAMES_MAX; i++)
        frames[i] = (struct kvg_str){"a", 1};
    CHECK_EQ(kvg_kvcap_write(write_memory, &file, 0, frames, KVG_KVCAP_FRAMES_MAX + 1),
        KVG_ELIMIT);
    frames[0].bytes = (size_t)KVG_KVCAP_FRAME_BYTES_MAX + 1;
    CHECK_EQ(kvg_kvcap_write(write_memory, &file, 0, frames, 1), KVG_ELIMIT);
    CHECK_EQ(file.bytes, 0);
    file.room = 15;
    CHECK_EQ(kvg_kvcap_write(write_memory, &file, 0, frames + 1, 2), KVG_EIO);
}

TEST(a_read_that_failed_can_be_tried_again)
{
    struct memory_file file;
    struct kvg_kvcap_stream *stream;
    struct kvg_kvcap_message message;
    struct kvg_error error;
    size_t failures = 0;
    size_t messages = 0;

    file_init(&file);
    write_three(&file);
    file.piece_max = 7;
    CHECK_EQ(
        kvg_kvcap_stream_new(kvg_alloc_default(), read_memory, &file, &stream), KVG_OK);
    for (;;) {
        kvg_err err;

        file.read_failure = 1;
        err = kvg_kvcap_stream_next(stream, &error, &message);
        if (err == KVG_ENOENT)
            break;
        CHECK(err == KVG_OK || err == KVG_EIO);
        CHECK_EQ(kvi_kvcap_stream_check(stream), 0);
        if (err == KVG_OK)
            messages++;
        else
            failures++;
    }
    CHECK_EQ(messages, 3);
    CHECK(failures > 3);
    kvg_kvcap_stream_free(stream);
}

/* Pieces of a generated file, so that no file is needed in memory. */
struct generator {
    uint64_t at;
    uint64_t total;
    uint8_t head[8 + 12 + 4];
};

static bool read_generated(void *context, void *bytes, size_t byte_max, size_t *got)
{
    struct generator *generator = context;
    size_t i;

    *got = byte_max < 5000 ? byte_max : 5000;
    if (*got > generator->total - generator->at)
        *got = (size_t)(generator->total - generator->at);
    for (i = 0; i < *got; i++) {
        uint64_t at = generator->at + i;

        ((uint8_t *)bytes)[i] =
            at < sizeof(generator->head) ? generator->head[at] : (uint8_t)at;
    }
    generator->at += *got;
    return true;
}

TEST(an_announced_length_takes_no_memory_before_it_arrives)
{
    struct generator generator = {.total = 300000};
    struct kvg_kvcap_stream *stream;
    struct kvg_kvcap_message message;
    struct fault_alloc fault;

    memcpy(generator.head, "KVCAP01\n\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0\x10", 24);
    fault_alloc_init(&fault);
    CHECK_EQ(
        kvg_kvcap_stream_new(&fault.alloc, read_generated, &generator, &stream), KVG_OK);
    CHECK_EQ(kvg_kvcap_stream_next(stream, NULL, &message), KVG_EFORMAT);
    CHECK(fault.peak_bytes < 2000000); /* Of the 268,435,456 announced. */
    kvg_kvcap_stream_free(stream);
    CHECK_EQ(fault.live_bytes, 0);
}

/* One message of 200,000 bytes: the buffer must grow. */
static bool read_large(const struct kvg_alloc *alloc, void *context)
{
    struct generator generator = {.total = 24 + 200000};
    struct kvg_kvcap_stream *stream;
    struct kvg_kvcap_message message;
    bool completed;

    memcpy(generator.head, "KVCAP01\n\0\0\0\0\0\0\0\0\1\0\0\0\x40\x0d\x03\0", 24);
    if (kvg_kvcap_stream_new(alloc, read_generated, &generator, &stream) != KVG_OK)
        return false;
    completed = kvg_kvcap_stream_next(stream, NULL, &message) == KVG_OK;
    if (completed) {
        CHECK_EQ(message.frames[0].bytes, 200000);
        CHECK_EQ((uint8_t)message.frames[0].data[199999], (uint8_t)200023);
        CHECK_EQ(kvg_kvcap_stream_next(stream, NULL, &message), KVG_ENOENT);
    }
    kvg_kvcap_stream_free(stream);
    return completed;
}

TEST(the_stream_survives_every_allocation_failure)
{
    for_each_oom(read_large, NULL);
}

TEST_MAIN(RUN(what_was_written_is_read_back), RUN(the_bytes_are_those_of_the_format),
    RUN(a_capture_cut_anywhere_is_read_up_to_the_cut_and_says_where),
    RUN(errors_name_the_message_and_the_byte),
    RUN(what_a_capture_cannot_hold_is_refused_before_a_byte_is_written),
    RUN(a_read_that_failed_can_be_tried_again),
    RUN(the_stream_survives_every_allocation_failure),
    RUN(an_announced_length_takes_no_memory_before_it_arrives))
