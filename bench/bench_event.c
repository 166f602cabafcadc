/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* Reading streams of events, in every form.
 *
 * The floor is reading the payload's bytes once: the sum of their words.  Streams are
 * generated with the library's own writer, which writes what a real master writes; recorded ones
 * are added where they lie (run it from the repository's root, with zstd installed). */
#include "bench.h"

#include <kvgraft/event.h>
#include <kvgraft/kvcap.h>
#include <kvgraft/presence.h>

#include <stdlib.h>

enum {
    EVENTS = 200000,
    REPEATS = 15,
    REPEATS_QUICK = 3
};

struct stream {
    struct kvg_str *payloads;
    size_t count;
    size_t capacity;
    size_t bytes;
    char *file; /* What the payloads point into, or NULL: each is its own. */
    uint64_t events;
    uint64_t predicted;
    uint64_t elements; /* Hashes and tokens walked. */
    uint64_t sum;
};

static void add_payload(struct stream *stream, struct kvg_str payload)
{
    if (stream->count == stream->capacity) {
        stream->capacity = stream->capacity == 0 ? 1024 : stream->capacity * 2;
        stream->payloads =
            realloc(stream->payloads, stream->capacity * sizeof(stream->payloads[0]));
        if (stream->payloads == NULL)
            exit(1);
    }
    stream->payloads[stream->count++] = payload;
    stream->bytes += payload.bytes;
}

static void stream_fini(struct stream *stream)
{
    size_t i;

    for (i = 0; stream->file == NULL && i < stream->count; i++)
        free((void *)(uintptr_t)stream->payloads[i].data);
    free(stream->payloads);
    free(stream->file);
    *stream = (struct stream){.count = 0};
}

static void read_bytes(void *context)
{
    struct stream *stream = context;
    uint64_t sums[4] = {0};
    size_t i;

    for (i = 0; i < stream->count; i++) {
        const char *at = stream->payloads[i].data;
        size_t left = stream->payloads[i].bytes;
        uint64_t words[4];
        size_t j;

        for (; left >= sizeof(words); left -= sizeof(words), at += sizeof(words)) {
            memcpy(words, at, sizeof(words));
            for (j = 0; j < 4; j++)
                sums[j] += words[j];
        }
    }
    stream->sum = sums[0] + sums[1] + sums[2] + sums[3];
    kvb_keep(stream);
}

static void read_events(void *context)
{
    struct stream *stream = context;
    struct kvg_event_reader reader;
    struct kvg_event event;
    uint64_t sum = 0;
    size_t i;

    kvg_event_reader_init(&reader, NULL);
    for (i = 0; i < stream->count; i++) {
        if (kvg_event_reader_begin(&reader, stream->payloads[i], NULL) != KVG_OK)
            exit(1);
        while (kvg_event_reader_next(&reader, &event))
            sum += event.object_key.bytes + (uint64_t)event.kind;
    }
    stream->events = reader.counts.events;
    stream->predicted = reader.counts.predicted;
    stream->sum = sum;
    kvb_keep(stream);
}

static void read_events_and_arrays(void *context)
{
    struct stream *stream = context;
    struct kvg_event_reader reader;
    struct kvg_event event;
    uint64_t elements = 0;
    uint64_t value;
    size_t i;

    kvg_event_reader_init(&reader, NULL);
    for (i = 0; i < stream->count; i++) {
        if (kvg_event_reader_begin(&reader, stream->payloads[i], NULL) != KVG_OK)
            exit(1);
        while (kvg_event_reader_next(&reader, &event)) {
            while (kvg_event_array_next(&event.block_hashes, &value))
                elements++;
            while (kvg_event_array_next(&event.token_ids, &value))
                elements++;
        }
    }
    stream->events = reader.counts.events;
    stream->elements = elements;
    kvb_keep(stream);
}

static void measure(
    struct kvb_table *table, struct stream *stream, const char *what, double limit)
{
    unsigned repeats = table->quick ? REPEATS_QUICK : REPEATS;
    double floor_ns = kvb_best_ns(repeats, read_bytes, stream);
    double took_ns = kvb_best_ns(repeats, read_events, stream);
    double events = (double)stream->events;
    char note[128];

    snprintf(note, sizeof(note), "%.0f ns and %.0f bytes an event; %.0f %% predicted",
        took_ns / events, (double)stream->bytes / events,
        100.0 * (double)stream->predicted / events);
    kvb_row(table, &(struct kvb_row){.what = what,
                       .figure = events / took_ns * 1e9,
                       .unit = "events/s",
                       .floor = events / floor_ns * 1e9,
                       .floor_is = "reading the bytes once",
                       .limit = limit,
                       .more_is_better = true,
                       .note = note});
}

static void apply_events(const struct stream *stream, struct kvg_presence *index)
{
    struct kvg_event_reader reader;
    struct kvg_event event;
    size_t i;

    kvg_event_reader_init(&reader, NULL);
    for (i = 0; i < stream->count; i++) {
        struct kvg_presence_event heard[64]; /* As the source applies them. */
        size_t count = 0;

        if (kvg_event_reader_begin(&reader, stream->payloads[i], NULL) != KVG_OK)
            exit(1);
        while (kvg_event_reader_next(&reader, &event)) {
            bool is_removal = event.kind != KVG_EVENT_STORED;

            if (count == 64) {
                kvg_presence_apply(index, heard, count);
                count = 0;
            }
            heard[count++] = (struct kvg_presence_event){.tenant = event.tenant_id,
                .object_key = event.object_key,
                .medium =
                    is_removal && event.every_medium ? KVG_MEDIUM_UNKNOWN : event.medium,
                .is_removal = is_removal};
        }
        kvg_presence_apply(index, heard, count);
    }
}

/* The whole way into an index: one that is empty at first and grows, and one that knows all of
 * it already. */
static void measure_apply(
    struct kvb_table *table, struct stream *stream, const char *what)
{
    unsigned repeats = table->quick ? REPEATS_QUICK : REPEATS;
    double floor_ns = kvb_best_ns(repeats, read_bytes, stream);
    double best_ns[2] = {0, 0};
    double events = (double)stream->events;
    char name[96];
    unsigned i;
    int again;

    for (i = 0; i < repeats; i++) {
        struct kvg_presence *index;

        if (kvg_presence_new(kvg_alloc_default(), NULL, NULL, &index) != KVG_OK)
            exit(1);
        for (again = 0; again < 2; again++) {
            uint64_t began = kvb_now_ns();
            double took;

            apply_events(stream, index);
            took = (double)(kvb_now_ns() - began);
            if (i == 0 || took < best_ns[again])
                best_ns[again] = took;
        }
        kvg_presence_free(index);
    }
    for (again = 0; again < 2; again++) {
        char note[64];

        snprintf(name, sizeof(name), "%s, %s index", what,
            again == 0 ? "into a new" : "again into that");
        snprintf(note, sizeof(note), "%.0f ns an event", best_ns[again] / events);
        kvb_row(table, &(struct kvb_row){.what = name,
                           .figure = events / best_ns[again] * 1e9,
                           .unit = "events/s",
                           .floor = events / floor_ns * 1e9,
                           .floor_is = "reading the bytes once",
                           .limit = 2e6,
                           .more_is_better = true,
                           .note = note});
    }
}

/* Object events of pages with two parts, as a store sends them. */
static void generate_objects(
    struct stream *stream, enum kvg_event_dialect dialect, size_t batch, int64_t rank)
{
    struct kvg_event_writer *writer;
    size_t i;

    if (kvg_event_writer_new(kvg_alloc_default(), dialect, &writer) != KVG_OK)
        exit(1);
    for (i = 0; i < EVENTS;) {
        struct kvg_str payload;
        char *copy;
        size_t j;

        kvg_event_writer_begin(writer, INT64_C(1790000000000) + (int64_t)i, false, 0);
        for (j = 0; j < batch && i < EVENTS; j++, i++) {
            struct kvg_event event = {
                .kind = i % 10 == 9 ? KVG_EVENT_REMOVED : KVG_EVENT_STORED,
                .medium = KVG_MEDIUM_CPU,
                .has_event_id = true,
                .event_id = i + 1,
                .has_dp_rank = true,
                .dp_rank = rank,
                .tenant_id = {"default", 7},
                .backend_id = {"pool-a", 6}};
            char key[80];

            snprintf(key, sizeof(key), "%016zx%016zx%016zx%016zx_0_%c",
                i / 2 * (size_t)0x9e3779b97f4a7c15, i / 2, ~(i / 2), i / 2 * 3,
                i % 2 == 0 ? 'k' : 'v');
            event.object_key = (struct kvg_str){key, strlen(key)};
            kvg_event_writer_add(writer, &event, NULL, 0, NULL, 0);
        }
        if (kvg_event_writer_end(writer, &payload) != KVG_OK)
            exit(1);
        copy = malloc(payload.bytes);
        if (copy == NULL)
            exit(1);
        memcpy(copy, payload.data, payload.bytes);
        add_payload(stream, (struct kvg_str){copy, payload.bytes});
    }
    kvg_event_writer_free(writer);
}

/* An engine's events: 32 blocks of 64 tokens each. */
static void generate_blocks(struct stream *stream, enum kvg_event_dialect dialect)
{
    struct kvg_event_writer *writer;
    uint64_t hashes[32];
    uint32_t tokens[2048];
    size_t i;
    size_t j;

    if (kvg_event_writer_new(kvg_alloc_default(), dialect, &writer) != KVG_OK)
        exit(1);
    for (i = 0; i < 32; i++)
        hashes[i] = (i + 1) * UINT64_C(0x9e3779b97f4a7c15);
    for (i = 0; i < 2048; i++)
        tokens[i] = (uint32_t)(i * 2654435761u % 128000);
    for (i = 0; i < EVENTS / 128; i++) {
        struct kvg_event event = {.kind = KVG_EVENT_STORED,
            .medium = KVG_MEDIUM_DEVICE,
            .has_block_size = true,
            .block_size = 64,
            .has_parent_hash = true,
            .parent_hash = i};
        struct kvg_str payload;
        char *copy;

        kvg_event_writer_begin(writer, INT64_C(1790000000000), true, 0);
        for (j = 0; j < 2; j++)
            kvg_event_writer_add(writer, &event, hashes, 32, tokens, 2048);
        if (kvg_event_writer_end(writer, &payload) != KVG_OK)
            exit(1);
        copy = malloc(payload.bytes);
        if (copy == NULL)
            exit(1);
        memcpy(copy, payload.data, payload.bytes);
        add_payload(stream, (struct kvg_str){copy, payload.bytes});
    }
    kvg_event_writer_free(writer);
}

static void measure_blocks(
    struct kvb_table *table, const char *what, enum kvg_event_dialect dialect)
{
    unsigned repeats = table->quick ? REPEATS_QUICK : REPEATS;
    struct stream stream = {.count = 0};
    double floor_ns;
    double took_ns;

    generate_blocks(&stream, dialect);
    floor_ns = kvb_best_ns(repeats, read_bytes, &stream);
    took_ns = kvb_best_ns(repeats, read_events_and_arrays, &stream);
    kvb_row(table, &(struct kvb_row){.what = what,
                       .figure = (double)stream.elements / took_ns * 1e9,
                       .unit = "elements/s",
                       .floor = (double)stream.elements / floor_ns * 1e9,
                       .floor_is = "reading the bytes once",
                       .more_is_better = true,
                       .note = "hashes and tokens, each looked at and handed out"});
    stream_fini(&stream);
}

/* A recorded stream.  False if it, or zstd, is not there. */
static bool load(struct stream *stream, const char *path)
{
    char command[512];
    size_t capacity = 1u << 20;
    struct kvg_kvcap_reader reader;
    struct kvg_kvcap_message message;
    size_t bytes = 0;
    size_t got;
    FILE *pipe;

    snprintf(command, sizeof(command), "zstd -dcq '%s' 2>/dev/null", path);
    pipe = popen(command, "r");
    stream->file = malloc(capacity);
    if (pipe == NULL || stream->file == NULL)
        exit(1);
    while ((got = fread(stream->file + bytes, 1, capacity - bytes, pipe)) > 0) {
        bytes += got;
        if (bytes == capacity) {
            capacity *= 2;
            stream->file = realloc(stream->file, capacity);
            if (stream->file == NULL)
                exit(1);
        }
    }
    if (pclose(pipe) != 0 || kvg_kvcap_reader_init(&reader,
                                 (struct kvg_str){stream->file, bytes}, NULL) != KVG_OK)
        return false;
    while (kvg_kvcap_read(&reader, NULL, &message) == KVG_OK) {
        struct kvg_frames frames;

        if (kvg_frames_parse(message.frames, message.frame_count, NULL, &frames) ==
            KVG_OK)
            add_payload(stream, frames.payload);
    }
    return stream->count > 0;
}

static void measure_recorded(
    struct kvb_table *table, const char *what, const char *path, double limit)
{
    struct stream stream = {.count = 0};

    if (load(&stream, path)) {
        char name[96];

        snprintf(name, sizeof(name), "recorded: %s", what);
        measure(table, &stream, name, limit);
        measure_apply(table, &stream, what);
    }
    stream_fini(&stream);
}

static void measure_objects(struct kvb_table *table, const char *what,
    enum kvg_event_dialect dialect, size_t batch, int64_t rank, double limit)
{
    struct stream stream = {.count = 0};

    generate_objects(&stream, dialect, batch, rank);
    measure(table, &stream, what, limit);
    stream_fini(&stream);
}

static void run(struct kvb_table *table)
{
    measure_recorded(table, "two ranks, eviction",
        "tests/data/mooncake/mha_tp2_groups.kvcap.zst", 5e6);
    measure_recorded(table, "220,000 events",
        "../shared/fixtures/mooncake/throughput_200k.kvcap.zst", 5e6);
    measure_objects(
        table, "master, 64 events a message", KVG_DIALECT_MOONCAKE, 64, 0, 5e6);
    measure_objects(
        table, "master with legacy fields", KVG_DIALECT_MOONCAKE_LEGACY, 64, 0, 5e6);
    measure_objects(table, "master, single events", KVG_DIALECT_MOONCAKE_LEGACY, 1, 0, 0);
    measure_objects(table, "reworked master", KVG_DIALECT_MOONCAKE_V2_LEGACY, 64, 0, 5e6);
    /* A rank below zero is in no prediction. */
    measure_objects(table, "a form that is not predicted", KVG_DIALECT_MOONCAKE_V2_LEGACY,
        64, -1, 2e6);
    measure_blocks(table, "engine, maps", KVG_DIALECT_ENGINE_MAP);
    measure_blocks(table, "engine, arrays", KVG_DIALECT_ENGINE_ARRAY);
}

KVB_MAIN(event, "Reading event streams", run)
