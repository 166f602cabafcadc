/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* Unit tests of the event writer.  The strongest: what a real master sent, read and written
 * again, is byte by byte the same, over every recorded stream. */
#include "base/rng.h"
#include "capture.h"
#include "event_samples.h"
#include "fault_alloc.h"
#include "test.h"

#include <kvgraft/event.h>

#define HASHES_MAX 64
#define TOKENS_MAX 256

static struct kvg_str text(const char *zero_terminated)
{
    return (struct kvg_str){zero_terminated, strlen(zero_terminated)};
}

/* Appends an event that was read, with its arrays. */
static void add_again(struct kvg_event_writer *writer, const struct kvg_event *event)
{
    struct kvg_event_array hashes = event->block_hashes;
    struct kvg_event_array tokens = event->token_ids;
    uint64_t hash_values[HASHES_MAX];
    uint32_t token_values[TOKENS_MAX];
    size_t hash_count = 0;
    size_t token_count = 0;
    uint64_t pair[2];

    while (hash_count < HASHES_MAX &&
           kvg_event_array_next(&hashes, &hash_values[hash_count]))
        hash_count++;
    CHECK_EQ(hashes.count, 0);
    while (token_count + 1 < TOKENS_MAX && tokens.count > 0) {
        if (event->token_pairs) {
            CHECK(kvg_event_array_next_pair(&tokens, pair));
            token_values[token_count++] = (uint32_t)pair[0];
            token_values[token_count++] = (uint32_t)pair[1];
        } else {
            CHECK(kvg_event_array_next(&tokens, pair));
            token_values[token_count++] = (uint32_t)pair[0];
        }
    }
    CHECK_EQ(tokens.count, 0);
    kvg_event_writer_add(
        writer, event, hash_values, hash_count, token_values, token_count);
}

/* Reads a payload and writes it again. */
static struct kvg_str write_again(struct kvg_event_reader *reader,
    struct kvg_event_writer *writer, struct kvg_str payload)
{
    struct kvg_event event;
    struct kvg_str written;

    CHECK_EQ(kvg_event_reader_begin(reader, payload, NULL), KVG_OK);
    kvg_event_writer_begin(writer, reader->timestamp_ms, false, 0);
    while (kvg_event_reader_next(reader, &event))
        add_again(writer, &event);
    CHECK(!reader->broken);
    CHECK_EQ(kvg_event_writer_end(writer, &written), KVG_OK);
    return written;
}

static void check_same(struct kvg_str actual, struct kvg_str expected)
{
    CHECK_EQ(actual.bytes, expected.bytes);
    CHECK_MEM(actual.data, expected.data, actual.bytes);
}

TEST(a_masters_payload_is_written_byte_by_byte)
{
    static const char *const GOLDEN[] = {SAMPLE_MASTER_STORED, SAMPLE_MASTER_REMOVED};
    size_t i;

    for (i = 0; i < 2; i++) {
        struct kvg_event event = {.kind = i == 0 ? KVG_EVENT_STORED : KVG_EVENT_REMOVED,
            .medium = KVG_MEDIUM_CPU,
            .has_event_id = true,
            .event_id = i == 0 ? 1 : 3,
            .tenant_id = text("default"),
            .backend_id = text("pool-a"),
            .group_id = text("grp"),
            .object_key = text("k1")};
        struct sample_bytes golden;
        struct kvg_event_writer *writer;
        struct kvg_str written;

        sample_hex(GOLDEN[i], &golden);
        CHECK_EQ(kvg_event_writer_new(
                     kvg_alloc_default(), KVG_DIALECT_MOONCAKE_LEGACY, &writer),
            KVG_OK);
        kvg_event_writer_begin(
            writer, i == 0 ? INT64_C(0x1a22fa61d99) : INT64_C(0x1a22fa61ec8), false, 0);
        kvg_event_writer_add(writer, &event, NULL, 0, NULL, 0);
        CHECK_EQ(kvg_event_writer_end(writer, &written), KVG_OK);
        check_same(written, golden.str);
        kvg_event_writer_free(writer);
    }
}

TEST(every_recorded_stream_is_written_again_byte_by_byte)
{
    size_t i;

    for (i = 0; i < CAPTURE_COUNT; i++) {
        struct kvg_str capture = test_data_read(CAPTURE_NAMES[i], "kvcap");
        bool legacy = strcmp(CAPTURE_NAMES[i], "legacy_off") != 0;
        struct kvg_kvcap_reader file;
        struct kvg_kvcap_message message;
        struct kvg_event_reader reader;
        struct kvg_event_writer *writer;
        struct kvg_frames frames;
        uint64_t messages = 0;

        kvg_event_reader_init(&reader, NULL);
        CHECK_EQ(
            kvg_event_writer_new(kvg_alloc_default(),
                legacy ? KVG_DIALECT_MOONCAKE_LEGACY : KVG_DIALECT_MOONCAKE, &writer),
            KVG_OK);
        CHECK_EQ(kvg_kvcap_reader_init(&file, capture, NULL), KVG_OK);
        while (kvg_kvcap_read(&file, NULL, &message) == KVG_OK) {
            uint8_t sequence[8];

            CHECK_EQ(kvg_frames_parse(message.frames, message.frame_count, NULL, &frames),
                KVG_OK);
            check_same(write_again(&reader, writer, frames.payload), frames.payload);
            kvg_sequence_encode(frames.sequence, sequence);
            CHECK_MEM(sequence, message.frames[1].data, 8);
            messages++;
        }
        CHECK(messages > 0);
        CHECK_EQ(file.offset, capture.bytes);
        /* The master's form is always predicted, with every flag. */
        CHECK_EQ(reader.counts.predicted, reader.counts.events);
        kvg_event_writer_free(writer);
        free((void *)(uintptr_t)capture.data);
    }
}

/* Random events in every dialect ------------------------------------------------------- */

struct random_event {
    struct kvg_event event;
    uint64_t hashes[8];
    size_t hash_count;
    uint32_t tokens[16];
    size_t token_count;
};

static struct kvg_str random_text(struct kvi_rng *rng, bool capitals)
{
    static const char SMALL[] = "full_attention-with-a-rather-long-name-beyond-31-bytes";
    static const char LARGE[] = "REMOTE_WITH_A_RATHER_LONG_NAME_BEYOND_31_BYTES";
    const char *from = capitals ? LARGE : SMALL;

    return (struct kvg_str){from, 1 + (size_t)kvi_rng_below(rng, strlen(from))};
}

static uint64_t random_number(struct kvi_rng *rng)
{
    return kvi_rng_next(rng) >> kvi_rng_below(rng, 64);
}

static bool coin(struct kvi_rng *rng)
{
    return kvi_rng_below(rng, 2) == 0;
}

static void make_object(struct kvi_rng *rng, bool reworked, struct random_event *out)
{
    struct kvg_event *event = &out->event;

    event->form = KVG_FORM_OBJECT;
    event->kind = (enum kvg_event_kind)kvi_rng_below(rng, reworked ? 3 : 2);
    event->has_event_id = true;
    event->event_id = random_number(rng);
    event->has_timestamp = true;
    event->timestamp_ms = (int64_t)(random_number(rng) >> 1);
    event->tenant_id = random_text(rng, false);
    event->backend_id = random_text(rng, false);
    event->has_dp_rank = reworked;
    if (reworked) {
        event->dp_rank = (int64_t)kvi_rng_below(rng, 300);
        event->model_name = random_text(rng, false);
        event->has_block_size = coin(rng);
        event->block_size = event->has_block_size ? random_number(rng) : 0;
    }
    if (event->kind == KVG_EVENT_CLEARED) {
        event->every_medium = true;
        out->hash_count = 0;
        return;
    }
    event->medium = coin(rng) ? KVG_MEDIUM_CPU : KVG_MEDIUM_DISK;
    event->every_medium = !reworked && event->kind == KVG_EVENT_REMOVED;
    event->has_base_block_index = !reworked && event->kind == KVG_EVENT_STORED;
    if (coin(rng))
        event->group_id = random_text(rng, false);
    if (coin(rng) || out->hash_count == 0)
        event->object_key = random_text(rng, coin(rng));
}

static void make_engine(struct kvi_rng *rng, bool array, struct random_event *out)
{
    struct kvg_event *event = &out->event;

    event->form = KVG_FORM_ENGINE;
    event->encoding = array ? KVG_ENCODING_ARRAY : KVG_ENCODING_MAP;
    event->kind = (enum kvg_event_kind)kvi_rng_below(rng, 3);
    event->medium = (enum kvg_medium)kvi_rng_below(rng, KVG_MEDIUM_COUNT);
    event->has_group_index = coin(rng);
    event->group_index = event->has_group_index ? random_number(rng) : 0;
    event->has_sliding_window = event->has_group_index && coin(rng);
    event->sliding_window = event->has_sliding_window ? random_number(rng) : 0;
    if (coin(rng))
        event->spec_kind = random_text(rng, false);
    if (coin(rng))
        event->locality = random_text(rng, true);
    if (event->spec_kind.data != NULL && coin(rng))
        event->source_kind = random_text(rng, false);
    if (event->kind == KVG_EVENT_CLEARED)
        out->hash_count = 0;
    if (event->kind != KVG_EVENT_STORED) {
        out->token_count = 0;
        return;
    }
    event->has_block_size = coin(rng);
    event->block_size = event->has_block_size ? random_number(rng) : 0;
    event->has_parent_hash = coin(rng);
    event->parent_hash = event->has_parent_hash ? kvi_rng_next(rng) : 0;
    event->has_lora_id = coin(rng);
    event->lora_id = event->has_lora_id ? -(int64_t)(random_number(rng) >> 1) : 0;
    event->token_pairs = out->token_count > 0 && coin(rng);
    out->token_count &= event->token_pairs ? ~(size_t)1 : ~(size_t)0;
    event->token_pairs = event->token_pairs && out->token_count > 0;
    if (coin(rng))
        event->lora_name = random_text(rng, false);
    if (coin(rng))
        event->salt = random_text(rng, false);
    if (coin(rng))
        event->session_id = random_text(rng, false);
}

static void make_event(
    struct kvi_rng *rng, enum kvg_event_dialect dialect, struct random_event *out)
{
    size_t i;

    memset(out, 0, sizeof(*out));
    out->hash_count = (size_t)kvi_rng_below(rng, 8);
    out->token_count = (size_t)kvi_rng_below(rng, 16);
    for (i = 0; i < out->hash_count; i++)
        out->hashes[i] =
            coin(rng) ? random_number(rng) : (uint64_t)0 - random_number(rng);
    for (i = 0; i < out->token_count; i++)
        out->tokens[i] = (uint32_t)random_number(rng);
    if (dialect < KVG_DIALECT_ENGINE_MAP)
        make_object(rng, dialect >= KVG_DIALECT_MOONCAKE_V2, out);
    else
        make_engine(rng, dialect == KVG_DIALECT_ENGINE_ARRAY, out);
}

static void check_text_same(struct kvg_str actual, struct kvg_str expected)
{
    CHECK_EQ(actual.data == NULL, expected.data == NULL);
    if (actual.data != NULL)
        check_same(actual, expected);
}

static void check_arrays(struct kvg_event *read, const struct random_event *sent)
{
    uint64_t pair[2];
    size_t i;

    CHECK_EQ(read->block_hashes.count, sent->hash_count);
    for (i = 0; i < sent->hash_count; i++) {
        CHECK(kvg_event_array_next(&read->block_hashes, pair));
        CHECK_EQ(pair[0], sent->hashes[i]);
    }
    if (sent->event.form == KVG_FORM_OBJECT)
        return;
    for (i = 0; i < sent->token_count; i++) {
        if (!sent->event.token_pairs) {
            CHECK(kvg_event_array_next(&read->token_ids, pair));
            CHECK_EQ(pair[0], sent->tokens[i]);
        } else {
            CHECK(kvg_event_array_next_pair(&read->token_ids, pair));
            CHECK_EQ(pair[0], sent->tokens[i]);
            CHECK_EQ(pair[1], sent->tokens[++i]);
        }
    }
    CHECK_EQ(read->token_ids.count, 0);
}

static void check_event(struct kvg_event *read, const struct random_event *sent)
{
    const struct kvg_event *event = &sent->event;

    CHECK_EQ(read->kind, event->kind);
    CHECK_EQ(read->form, event->form);
    CHECK_EQ(read->encoding, event->encoding);
    CHECK_EQ(read->medium, event->medium);
    CHECK_EQ(read->every_medium, event->every_medium);
    CHECK_EQ(read->has_event_id, event->has_event_id);
    CHECK_EQ(read->event_id, event->event_id);
    CHECK_EQ(read->has_block_size, event->has_block_size);
    CHECK_EQ(read->block_size, event->block_size);
    CHECK_EQ(read->has_base_block_index, event->has_base_block_index);
    CHECK_EQ(read->has_parent_hash, event->has_parent_hash);
    CHECK_EQ(read->parent_hash, event->parent_hash);
    CHECK_EQ(read->has_group_index, event->has_group_index);
    CHECK_EQ(read->group_index, event->group_index);
    CHECK_EQ(read->has_sliding_window, event->has_sliding_window);
    CHECK_EQ(read->sliding_window, event->sliding_window);
    CHECK_EQ(read->has_lora_id, event->has_lora_id);
    CHECK_EQ(read->lora_id, event->lora_id);
    CHECK_EQ(read->token_pairs, event->token_pairs);
    if (event->form == KVG_FORM_OBJECT) {
        CHECK_EQ(read->timestamp_ms, event->timestamp_ms);
        CHECK_EQ(read->dp_rank, event->dp_rank);
        CHECK_EQ(read->has_dp_rank, event->has_dp_rank);
    } else {
        CHECK_EQ(read->timestamp_ms, INT64_C(1700000000123));
        CHECK(read->has_dp_rank);
        CHECK_EQ(read->dp_rank, 3);
    }
    check_text_same(read->object_key, event->object_key);
    check_text_same(read->group_id, event->group_id);
    check_text_same(read->tenant_id, event->tenant_id);
    check_text_same(read->backend_id, event->backend_id);
    check_text_same(read->model_name, event->model_name);
    check_text_same(read->lora_name, event->lora_name);
    check_text_same(read->salt, event->salt);
    check_text_same(read->session_id, event->session_id);
    check_text_same(read->spec_kind, event->spec_kind);
    check_text_same(read->locality, event->locality);
    check_text_same(read->source_kind, event->source_kind);
    check_arrays(read, sent);
}

TEST(random_events_survive_writing_and_reading_in_every_dialect)
{
    struct kvi_rng rng = {UINT64_C(20261201)};
    struct random_event sent[20];
    int dialect;

    print_message("seed %llu\n", (unsigned long long)rng.state);
    for (dialect = 0; dialect <= KVG_DIALECT_ENGINE_ARRAY; dialect++) {
        struct kvg_event_writer *writer;
        struct kvg_event_reader reader;
        int round;

        CHECK_EQ(kvg_event_writer_new(
                     kvg_alloc_default(), (enum kvg_event_dialect)dialect, &writer),
            KVG_OK);
        kvg_event_reader_init(&reader, NULL);
        for (round = 0; round < 500; round++) {
            size_t count = (size_t)kvi_rng_below(&rng, 20);
            struct kvg_str payload;
            struct kvg_event event;
            size_t i;

            kvg_event_writer_begin(writer, INT64_C(1700000000123), true, 3);
            for (i = 0; i < count; i++) {
                make_event(&rng, (enum kvg_event_dialect)dialect, &sent[i]);
                kvg_event_writer_add(writer, &sent[i].event, sent[i].hashes,
                    sent[i].hash_count, sent[i].tokens, sent[i].token_count);
            }
            CHECK_EQ(kvg_event_writer_end(writer, &payload), KVG_OK);
            CHECK_EQ(kvg_event_reader_begin(&reader, payload, NULL), KVG_OK);
            for (i = 0; kvg_event_reader_next(&reader, &event); i++)
                check_event(&event, &sent[i]);
            CHECK_EQ(i, count);
            CHECK(!reader.broken);
        }
        CHECK_EQ(reader.counts.ignored_values, 0);
        CHECK_EQ(reader.counts.unknown_fields, 0);
        kvg_event_writer_free(writer);
    }
}

/* Faults ---------------------------------------------------------------------------------- */

TEST(what_a_dialect_cannot_say_is_refused_at_the_end)
{
    struct kvg_event cleared = {.kind = KVG_EVENT_CLEARED};
    struct kvg_event window = {.kind = KVG_EVENT_REMOVED, .has_sliding_window = true};
    struct kvg_event fine = {.kind = KVG_EVENT_STORED, .object_key = text("k")};
    struct kvg_event pairs = {.kind = KVG_EVENT_STORED, .token_pairs = true};
    static const uint32_t TOKENS[3] = {1, 2, 3};
    struct kvg_event_writer *writer;
    struct kvg_str payload;

    CHECK_EQ(
        kvg_event_writer_new(kvg_alloc_default(), (enum kvg_event_dialect)99, &writer),
        KVG_EINVAL);
    CHECK(writer == NULL);

    CHECK_EQ(
        kvg_event_writer_new(kvg_alloc_default(), KVG_DIALECT_MOONCAKE, &writer), KVG_OK);
    CHECK_EQ(kvg_event_writer_end(writer, &payload), KVG_ESTATE);
    kvg_event_writer_begin(writer, 1, false, 0);
    kvg_event_writer_add(writer, &cleared, NULL, 0, NULL, 0);
    kvg_event_writer_add(writer, &fine, NULL, 0, NULL, 0);
    CHECK_EQ(kvg_event_writer_end(writer, &payload), KVG_EINVAL);
    CHECK(payload.data == NULL);
    /* The failure is forgotten at the next begin. */
    kvg_event_writer_begin(writer, 1, false, 0);
    kvg_event_writer_add(writer, &fine, NULL, 0, NULL, 0);
    CHECK_EQ(kvg_event_writer_end(writer, &payload), KVG_OK);
    kvg_event_writer_free(writer);

    CHECK_EQ(kvg_event_writer_new(kvg_alloc_default(), KVG_DIALECT_ENGINE_ARRAY, &writer),
        KVG_OK);
    kvg_event_writer_begin(writer, 1, false, 0);
    kvg_event_writer_add(writer, &window, NULL, 0, NULL, 0);
    CHECK_EQ(kvg_event_writer_end(writer, &payload), KVG_EINVAL);
    kvg_event_writer_begin(writer, 1, false, 0);
    kvg_event_writer_add(writer, &pairs, NULL, 0, TOKENS, 3);
    CHECK_EQ(kvg_event_writer_end(writer, &payload), KVG_EINVAL);
    kvg_event_writer_free(writer);
    kvg_event_writer_free(NULL);
}

/* A message that makes the buffer grow several times. */
static bool write_much(const struct kvg_alloc *alloc, void *context)
{
    struct kvg_event event = {.kind = KVG_EVENT_STORED, .object_key = text("k")};
    struct kvg_event_writer *writer;
    struct kvg_str payload;
    kvg_err err;
    int i;

    if (kvg_event_writer_new(alloc, KVG_DIALECT_MOONCAKE_LEGACY, &writer) != KVG_OK)
        return false;
    kvg_event_writer_begin(writer, 1, false, 0);
    for (i = 0; i < 100; i++)
        kvg_event_writer_add(writer, &event, NULL, 0, NULL, 0);
    err = kvg_event_writer_end(writer, &payload);
    CHECK(err == KVG_OK || err == KVG_ENOMEM);
    CHECK_EQ(payload.data == NULL, err != KVG_OK);
    kvg_event_writer_free(writer);
    return err == KVG_OK;
}

TEST(the_writer_survives_every_allocation_failure)
{
    for_each_oom(write_much, NULL);
}

TEST_MAIN(RUN(a_masters_payload_is_written_byte_by_byte),
    RUN(every_recorded_stream_is_written_again_byte_by_byte),
    RUN(random_events_survive_writing_and_reading_in_every_dialect),
    RUN(what_a_dialect_cannot_say_is_refused_at_the_end),
    RUN(the_writer_survives_every_allocation_failure))
