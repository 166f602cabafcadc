/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* The recorded streams of a real master, with its own key lists: after the repair the index is the
 * key list, and before it is never called fresh. */
#include "test.h"

#include "capture.h"
#include "source_rig.h"

#include "base/fmt.h"
#include "source/state.h"

/* A capture and what its master answers.  Before `answers` is set, its admin port is down. */
struct replay {
    struct rig rig;
    const char *name;
    struct kvg_str capture;
    struct kvg_str json;
    struct kvg_str keys;
    bool answers;
    bool was_fresh;
    struct kvg_source_status status; /* At the end. */
};

static unsigned long long number_after(const char *text, const char *word)
{
    const char *found = strstr(text, word);

    if (found == NULL)
        fail_msg("%s is not in the description", word);
    return strtoull(found + strlen(word), NULL, 10);
}

/* From tests/data, or from the shared folder where it is there, plain or compressed. */
static struct kvg_str read_any(const char *name, const char *suffix)
{
    char path[256];
    struct kvg_str contents;

    snprintf(path, sizeof(path), "%s/mooncake/%s.%s", KVG_TEST_DATA, name, suffix);
    contents = test_file_read(path);
    if (contents.data != NULL)
        return contents;
    snprintf(path, sizeof(path), "fixtures/mooncake/%s.%s", name, suffix);
    contents = shared_data_read(path);
    if (contents.data != NULL)
        return contents;
    snprintf(path, sizeof(path), "fixtures/mooncake/%s.%s.zst", name, suffix);
    return shared_data_read(path);
}

static void replay_open(struct replay *replay, const char *name, bool has_admin)
{
    struct kvg_source_options options = {
        .struct_bytes = sizeof(options), .has_admin = has_admin, .seed = 5};
    char *json;
    const char *status;

    memset(replay, 0, sizeof(*replay));
    replay->name = name;
    replay->capture = read_any(name, "kvcap");
    replay->json = read_any(name, "json");
    replay->keys = read_any(name, "keys");
    if (replay->capture.data == NULL || replay->json.data == NULL ||
        replay->keys.data == NULL) {
        printf("%s is not on this machine: skipped\n", name);
        skip();
    }
    json = malloc(replay->json.bytes + 1);
    CHECK(json != NULL);
    memcpy(json, replay->json.data, replay->json.bytes);
    json[replay->json.bytes] = '\0';
    status = strstr(json, "\"status_at_end\"");
    CHECK(status != NULL);
    replay->status =
        (struct kvg_source_status){true, number_after(status, "\"published_batches\": "),
            number_after(status, "\"published_events\": "),
            number_after(status, "\"dropped_events\": "), 0};
    free(json);
    rig_init(&replay->rig, &options);
    kvg_source_connected(replay->rig.source, replay->rig.now_ms);
}

static void free_contents(struct kvg_str contents)
{
    union {
        const char *in;
        char *out;
    } pointer = {contents.data};

    free(pointer.out);
}

static void replay_close(struct replay *replay)
{
    rig_end(&replay->rig);
    free_contents(replay->capture);
    free_contents(replay->json);
    free_contents(replay->keys);
}

static uint64_t line_count(struct kvg_str text)
{
    uint64_t lines = 0;
    size_t i;

    for (i = 0; i < text.bytes; i++)
        lines += text.data[i] == '\n';
    return lines + (text.bytes != 0 && text.data[text.bytes - 1] != '\n');
}

/* Carries out what the source asks for. */
static void serve(struct replay *replay)
{
    struct kvg_source *source = replay->rig.source;
    uint64_t now_ms = replay->rig.now_ms;
    struct kvg_source_action action;

    while (kvg_source_next_action(source, &action)) {
        if (action.kind == KVG_SOURCE_RECONNECT || action.kind == KVG_SOURCE_CANCEL)
            continue;
        if (!replay->answers) {
            kvg_source_failed(source, action.id, "not there yet", now_ms);
        } else if (action.kind == KVG_SOURCE_FETCH_STATUS) {
            kvg_source_status_answer(source, action.id, &replay->status, now_ms);
        } else if (action.kind == KVG_SOURCE_FETCH_COUNT) {
            kvg_source_count_answer(source, action.id, line_count(replay->keys), now_ms);
        } else {
            kvg_source_listing_data(source, action.id, replay->keys, now_ms);
            kvg_source_listing_done(source, action.id, now_ms);
        }
        CHECK_EQ(kvi_source_check(source), 0);
    }
    if (rig_confidence(&replay->rig) == KVG_CONFIDENCE_FRESH)
        replay->was_fresh = true;
}

static void pass_time(struct replay *replay, uint64_t until_ms)
{
    while (replay->rig.now_ms < until_ms) {
        uint64_t next = kvg_source_deadline_ms(replay->rig.source);

        if (next > until_ms)
            next = until_ms;
        if (next > replay->rig.now_ms)
            replay->rig.now_ms = next;
        kvg_source_tick(replay->rig.source, replay->rig.now_ms);
        serve(replay);
    }
}

/* Plays the messages of a capture between two of its times. */
static void play(struct replay *replay, uint64_t from_ns, uint64_t to_ns)
{
    uint64_t begun_ms = 1000000;
    struct kvg_kvcap_message message;
    struct kvg_kvcap_reader reader;

    CHECK_EQ(kvg_kvcap_reader_init(&reader, replay->capture, NULL), KVG_OK);
    while (kvg_kvcap_read(&reader, NULL, &message) == KVG_OK) {
        if (message.time_ns < from_ns || message.time_ns >= to_ns)
            continue;
        pass_time(replay, begun_ms + message.time_ns / 1000000);
        kvg_source_message(
            replay->rig.source, message.frames, message.frame_count, replay->rig.now_ms);
        CHECK_EQ(kvi_source_check(replay->rig.source), 0);
        serve(replay);
    }
}

/* The same, with the store not asked for a count before the end: one that fails three times is
 * listed instead. */
static void play_uncounted(struct replay *replay)
{
    replay->rig.source->tasks[KVI_TASK_COUNT].due_ms = UINT64_MAX;
    play(replay, 0, UINT64_MAX);
    replay->rig.source->tasks[KVI_TASK_COUNT].due_ms = replay->rig.now_ms;
}

/* The index, as sorted lines. */
struct lines {
    char **texts;
    size_t count;
    size_t room;
};

static void add_line(struct lines *lines, struct kvg_str text)
{
    if (lines->count == lines->room) {
        lines->room = lines->room * 2 + 64;
        lines->texts = realloc(lines->texts, lines->room * sizeof(*lines->texts));
        CHECK(lines->texts != NULL);
    }
    /* Not strndup: the text lies inside a file without an end, which strict checkers scan. */
    lines->texts[lines->count] = malloc(text.bytes + 1);
    CHECK(lines->texts[lines->count] != NULL);
    memcpy(lines->texts[lines->count], text.data, text.bytes);
    lines->texts[lines->count][text.bytes] = '\0';
    lines->count++;
}

static void on_object(
    void *context, struct kvg_str tenant, struct kvg_str key, enum kvg_medium medium)
{
    (void)tenant;
    (void)medium;
    add_line(context, key);
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void lines_sort(struct lines *lines)
{
    if (lines->count != 0)
        qsort(lines->texts, lines->count, sizeof(*lines->texts), by_text);
}

static void lines_free(struct lines *lines)
{
    size_t i;

    for (i = 0; i < lines->count; i++)
        free(lines->texts[i]);
    free(lines->texts);
}

static void read_key_list(struct kvg_str text, struct lines *lines)
{
    struct kvg_object_key parsed;
    size_t start = 0;
    size_t i;

    for (i = 0; i < text.bytes; i++) {
        struct kvg_str line = {text.data + start, i - start};

        if (text.data[i] != '\n')
            continue;
        if (kvg_object_key_parse(line, &parsed))
            add_line(lines, line);
        start = i + 1;
    }
}

static bool index_is_key_list(struct replay *replay)
{
    struct lines held = {NULL, 0, 0};
    struct lines listed = {NULL, 0, 0};
    bool equal;
    size_t i;

    kvg_presence_each(replay->rig.index, on_object, &held);
    read_key_list(replay->keys, &listed);
    lines_sort(&held);
    lines_sort(&listed);
    equal = held.count == listed.count;
    for (i = 0; equal && i < held.count; i++)
        equal = strcmp(held.texts[i], listed.texts[i]) == 0;
    lines_free(&held);
    lines_free(&listed);
    return equal;
}

static bool is_one_of(const char *name, const char *const *names)
{
    for (; *names != NULL; names++)
        if (strcmp(name, *names) == 0)
            return true;
    return false;
}

static const char *const LOSSY[] = {
    "silent_loss", "master_restart", "overflow_gap", NULL};

/* ------------------------------------------------------------------------------------------ */

TEST(after_the_repair_every_capture_is_its_key_list_and_not_fresh_before)
{
    size_t i;

    for (i = 0; i < CAPTURE_COUNT; i++) {
        bool keyless = strcmp(CAPTURE_NAMES[i], "objkey_off") == 0;
        struct replay replay;

        replay_open(&replay, CAPTURE_NAMES[i], true);
        play(&replay, 0, UINT64_MAX);
        CHECK(!replay.was_fresh);
        if (is_one_of(CAPTURE_NAMES[i], LOSSY) &&
            strcmp(CAPTURE_NAMES[i], "master_restart") != 0)
            CHECK(!index_is_key_list(&replay));
        replay.answers = true;
        pass_time(&replay, replay.rig.now_ms + 120000);
        if (!index_is_key_list(&replay))
            fail_msg("%s is not its key list", CAPTURE_NAMES[i]);
        CHECK_EQ(replay.was_fresh, !keyless);
        CHECK_EQ(rig_stats(&replay.rig).bad_frames, 0);
        CHECK_EQ(rig_stats(&replay.rig).decoder.bad_events, 0);
        replay_close(&replay);
    }
}

TEST(a_lossless_capture_needs_no_listing)
{
    size_t i;

    for (i = 0; i < CAPTURE_COUNT; i++) {
        struct replay replay;

        if (is_one_of(CAPTURE_NAMES[i], LOSSY) ||
            strcmp(CAPTURE_NAMES[i], "objkey_off") == 0)
            continue;
        replay_open(&replay, CAPTURE_NAMES[i], true);
        play_uncounted(&replay);
        replay.answers = true;
        pass_time(&replay, replay.rig.now_ms + 60000);
        CHECK(replay.was_fresh);
        CHECK_EQ(rig_stats(&replay.rig).listings, 0);
        CHECK(index_is_key_list(&replay));
        replay_close(&replay);
    }
}

/* Two that are too large for the repository: eviction all the time, and 220,000 events. */
static void large_capture_is_its_key_list(const char *name)
{
    struct replay replay;

    replay_open(&replay, name, true);
    play_uncounted(&replay);
    replay.answers = true;
    pass_time(&replay, replay.rig.now_ms + 60000);
    CHECK(replay.was_fresh);
    CHECK_EQ(rig_stats(&replay.rig).gaps, 0);
    CHECK_EQ(rig_stats(&replay.rig).listings, 0);
    CHECK(index_is_key_list(&replay));
    replay_close(&replay);
}

TEST(a_capture_full_of_evictions_is_its_key_list)
{
    large_capture_is_its_key_list("mha_tp2_groups");
}

TEST(a_capture_of_two_hundred_thousand_keys_is_its_key_list)
{
    large_capture_is_its_key_list("throughput_200k");
}

TEST(without_an_admin_port_only_what_the_stream_tells_is_known)
{
    size_t i;

    for (i = 0; i < CAPTURE_COUNT; i++) {
        const char *name = CAPTURE_NAMES[i];
        struct replay replay;

        replay_open(&replay, name, false);
        play(&replay, 0, UINT64_MAX);
        if (strcmp(name, "overflow_gap") == 0) {
            CHECK((rig_reasons(&replay.rig) & KVG_REASON_GAP) != 0);
            CHECK_EQ(rig_stats(&replay.rig).gaps, 22);
            CHECK_EQ(rig_stats(&replay.rig).missed_sequences, 3385);
        } else if (strcmp(name, "objkey_off") == 0) {
            CHECK((rig_reasons(&replay.rig) & KVG_REASON_KEYLESS) != 0);
        } else if (strcmp(name, "silent_loss") == 0) {
            CHECK(!index_is_key_list(&replay)); /* Nobody can know: see source.h. */
        } else {
            CHECK(index_is_key_list(&replay));
            CHECK_EQ(
                rig_stats(&replay.rig).restarts, strcmp(name, "master_restart") == 0);
            CHECK((rig_reasons(&replay.rig) & ~(uint32_t)KVG_REASON_SILENCE) == 0);
        }
        replay_close(&replay);
    }
}

/* A count while the stream runs finds what was lost silently, and nothing else does. */
TEST(a_silent_loss_is_found_by_the_count)
{
    struct replay replay;

    replay_open(&replay, "silent_loss", true);
    play_uncounted(&replay);
    CHECK(!index_is_key_list(&replay));
    replay.answers = true;
    pass_time(&replay, replay.rig.now_ms + 60000);
    CHECK(rig_stats(&replay.rig).drifts > 0);
    CHECK_EQ(rig_stats(&replay.rig).parts_dropped, 238);
    CHECK(index_is_key_list(&replay));
    replay_close(&replay);
}

/* The third listing was taken inside the traffic, at these times, and no gap follows it. */
TEST(a_recorded_listing_under_a_running_stream_gives_the_final_list)
{
    const uint64_t asked_ns = 2472201526;
    const uint64_t answered_ns = 2479442468;
    struct kvg_source_action action;
    struct kvg_str listing;
    struct replay replay;

    replay_open(&replay, "overflow_gap", true);
    listing = test_data_read("overflow_gap", "snap3.keys");
    play(&replay, 0, asked_ns);
    CHECK((rig_reasons(&replay.rig) & KVG_REASON_GAP) != 0);
    kvg_source_request_listing(replay.rig.source, replay.rig.now_ms);
    while (kvg_source_next_action(replay.rig.source, &action) &&
           action.kind != KVG_SOURCE_FETCH_LISTING)
        kvg_source_failed(replay.rig.source, action.id, "refused", replay.rig.now_ms);
    CHECK_EQ(action.kind, KVG_SOURCE_FETCH_LISTING);
    play(&replay, asked_ns, answered_ns);
    kvg_source_listing_data(replay.rig.source, action.id, listing, replay.rig.now_ms);
    kvg_source_listing_done(replay.rig.source, action.id, replay.rig.now_ms);
    play(&replay, answered_ns, UINT64_MAX);
    CHECK_EQ(rig_stats(&replay.rig).listings, 1);
    CHECK_EQ(rig_stats(&replay.rig).listings_broken, 0);
    CHECK((rig_reasons(&replay.rig) & KVG_REASON_GAP) == 0);
    CHECK(index_is_key_list(&replay));
    free_contents(listing);
    replay_close(&replay);
}

TEST_MAIN(RUN(after_the_repair_every_capture_is_its_key_list_and_not_fresh_before),
    RUN(a_lossless_capture_needs_no_listing),
    RUN(a_capture_full_of_evictions_is_its_key_list),
    RUN(a_capture_of_two_hundred_thousand_keys_is_its_key_list),
    RUN(without_an_admin_port_only_what_the_stream_tells_is_known),
    RUN(a_silent_loss_is_found_by_the_count),
    RUN(a_recorded_listing_under_a_running_stream_gives_the_final_list))
