/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* Recorded streams of a real master, through the real decoder into the real index, against the
 * list of keys that the master itself gave at the end.
 *
 * Three captures lose keys on the way, each in its own manner; there the index must differ from
 * the list by exactly the keys that the recording names, and agree once the list has been given to
 * it.  That they differ is also the proof that the comparison sees a difference.
 *
 * Without an argument: the captures of tests/data.  "large": those too large for it. */
#include "capture.h"
#include "test.h"

#include <kvgraft/event.h>
#include <kvgraft/presence.h>

#include <jansson.h>

/* Sorted strings ------------------------------------------------------------------------- */

struct names {
    struct kvg_str *items;
    size_t count;
    size_t capacity;
};

static void names_add(struct names *names, struct kvg_str name)
{
    if (names->count == names->capacity) {
        names->capacity = names->capacity == 0 ? 1024 : names->capacity * 2;
        names->items = realloc(names->items, names->capacity * sizeof(names->items[0]));
        CHECK(names->items != NULL);
    }
    names->items[names->count++] = name;
}

static int compare_names(const void *a, const void *b)
{
    const struct kvg_str *x = a;
    const struct kvg_str *y = b;
    size_t shorter = x->bytes < y->bytes ? x->bytes : y->bytes;
    int order = memcmp(x->data, y->data, shorter);

    return order != 0 ? order : (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static void names_sort(struct names *names)
{
    if (names->count != 0)
        qsort(names->items, names->count, sizeof(names->items[0]), compare_names);
}

/* How many of `names` are not in `others`; both sorted. */
static size_t count_absent(const struct names *names, const struct names *others)
{
    size_t absent = 0;
    size_t i;
    size_t j = 0;

    for (i = 0; i < names->count; i++) {
        while (
            j < others->count && compare_names(&others->items[j], &names->items[i]) < 0)
            j++;
        if (j == others->count || compare_names(&others->items[j], &names->items[i]) != 0)
            absent++;
    }
    return absent;
}

/* A recording ---------------------------------------------------------------------------- */

struct recording {
    const char *name;
    struct kvg_str capture;
    struct kvg_str keys;
    json_t *truth;
    struct names listed;  /* Lines of `keys`. */
    struct names objects; /* Of these, the keys of pages. */
};

static void split_lines(struct recording *recording)
{
    struct kvg_str rest = recording->keys;

    while (rest.bytes != 0) {
        const char *end = memchr(rest.data, '\n', rest.bytes);
        size_t bytes = end == NULL ? rest.bytes : (size_t)(end - rest.data);
        struct kvg_str line = {rest.data, bytes};
        struct kvg_object_key object;

        names_add(&recording->listed, line);
        if (kvg_object_key_parse(line, &object))
            names_add(&recording->objects, line);
        bytes += end == NULL ? 0 : 1;
        rest = (struct kvg_str){rest.data + bytes, rest.bytes - bytes};
    }
    names_sort(&recording->listed);
    names_sort(&recording->objects);
}

static void recording_init(struct recording *recording, const char *name,
    struct kvg_str capture, struct kvg_str keys, struct kvg_str truth)
{
    json_error_t error;

    *recording = (struct recording){.name = name, .capture = capture, .keys = keys};
    recording->truth = json_loadb(truth.data, truth.bytes, 0, &error);
    if (recording->truth == NULL)
        fail_msg("%s.json, line %d: %s", name, error.line, error.text);
    free((void *)(uintptr_t)truth.data);
    split_lines(recording);
}

static void recording_load(struct recording *recording, const char *name)
{
    recording_init(recording, name, test_data_read(name, "kvcap"),
        test_data_read(name, "keys"), test_data_read(name, "json"));
}

static void recording_fini(struct recording *recording)
{
    free((void *)(uintptr_t)recording->capture.data);
    free((void *)(uintptr_t)recording->keys.data);
    free(recording->listed.items);
    free(recording->objects.items);
    json_decref(recording->truth);
}

static json_int_t truth_integer(
    const struct recording *recording, const char *object, const char *field)
{
    const json_t *value =
        json_object_get(json_object_get(recording->truth, object), field);

    CHECK(json_is_integer(value));
    return json_integer_value(value);
}

/* The index ------------------------------------------------------------------------------- */

static struct kvg_presence *index_new(void)
{
    struct kvg_presence_options options = {
        .struct_bytes = sizeof(options), .seed = 1, .full_keys = true};
    struct kvg_presence *index;

    CHECK_EQ(kvg_presence_new(kvg_alloc_default(), &options, NULL, &index), KVG_OK);
    return index;
}

static void apply(struct kvg_presence *index, const struct kvg_event *event)
{
    enum kvg_medium medium = event->every_medium ? KVG_MEDIUM_UNKNOWN : event->medium;

    switch (event->kind) {
    case KVG_EVENT_STORED:
        (void)kvg_presence_stored(
            index, event->tenant_id, event->object_key, event->medium);
        break;
    case KVG_EVENT_REMOVED:
        (void)kvg_presence_removed(index, event->tenant_id, event->object_key, medium);
        break;
    case KVG_EVENT_CLEARED:
        kvg_presence_cleared(index, event->tenant_id);
        break;
    }
}

/* What replaying does besides applying every event in order. */
struct replay {
    bool clear_on_restart; /* Forget everything where the sequence falls. */
    uint64_t skipped;      /* Leave out this event (1 is the first): a planted mistake. */
    uint64_t events;
    uint64_t messages;
};

static void replay_capture(
    const struct recording *recording, struct kvg_presence *index, struct replay *replay)
{
    struct kvg_kvcap_reader file;
    struct kvg_kvcap_message message;
    struct kvg_event_reader reader;
    struct kvg_event event;
    struct kvg_frames frames;
    uint64_t sequence = 0;

    kvg_event_reader_init(&reader, NULL);
    CHECK_EQ(kvg_kvcap_reader_init(&file, recording->capture, NULL), KVG_OK);
    while (kvg_kvcap_read(&file, NULL, &message) == KVG_OK) {
        CHECK_EQ(
            kvg_frames_parse(message.frames, message.frame_count, NULL, &frames), KVG_OK);
        if (replay->clear_on_restart && frames.sequence <= sequence)
            kvg_presence_cleared(index, (struct kvg_str){NULL, 0});
        sequence = frames.sequence;
        CHECK_EQ(kvg_event_reader_begin(&reader, frames.payload, NULL), KVG_OK);
        while (kvg_event_reader_next(&reader, &event)) {
            if (++replay->events != replay->skipped)
                apply(index, &event);
        }
        replay->messages++;
    }
    CHECK_EQ(file.offset, recording->capture.bytes);
    CHECK_EQ(reader.counts.bad_payloads + reader.counts.bad_events, 0);
    CHECK_EQ(reader.counts.unknown_fields + reader.counts.ignored_values, 0);
    CHECK_EQ(reader.counts.predicted, reader.counts.events);
}

/* The parts that an index holds, copied and sorted. */
static void collect(void *context, struct kvg_str tenant, struct kvg_str object_key,
    enum kvg_medium medium)
{
    char *copy = malloc(object_key.bytes);

    CHECK(copy != NULL);
    CHECK_EQ(tenant.bytes, strlen("default"));
    CHECK_EQ(medium, KVG_MEDIUM_CPU);
    memcpy(copy, object_key.data, object_key.bytes);
    names_add(context, (struct kvg_str){copy, object_key.bytes});
}

struct difference {
    size_t held;
    size_t stale;   /* Held, and not in the list. */
    size_t missing; /* In the list, and not held. */
};

static struct difference compare_with_list(
    const struct recording *recording, struct kvg_presence *index)
{
    struct names held = {NULL, 0, 0};
    struct difference difference;
    size_t i;

    kvg_presence_each(index, collect, &held);
    names_sort(&held);
    difference = (struct difference){.held = held.count,
        .stale = count_absent(&held, &recording->objects),
        .missing = count_absent(&recording->objects, &held)};
    for (i = 0; i < held.count; i++)
        free((void *)(uintptr_t)held.items[i].data);
    free(held.items);
    return difference;
}

/* Gives the master's list to the index, as a repair does. */
static struct kvg_presence_listing_result give_list(
    const struct recording *recording, struct kvg_presence *index)
{
    struct kvg_presence_listing_result result;
    size_t i;

    CHECK_EQ(kvg_presence_listing_begin(index, (struct kvg_str){"default", 7}), KVG_OK);
    for (i = 0; i < recording->listed.count; i++)
        (void)kvg_presence_listing_key(index, recording->listed.items[i]);
    while (!kvg_presence_listing_end(index, 100, &result))
        ;
    return result;
}

/* Prompts --------------------------------------------------------------------------------- */

static struct kvg_str json_text(const json_t *object, const char *field)
{
    const json_t *value = json_object_get(object, field);

    return (struct kvg_str){json_string_value(value), json_string_length(value)};
}

static struct kvg_layout *layout_new(const json_t *layout)
{
    json_int_t lcm = json_integer_value(json_object_get(layout, "tp_lcm_size"));
    struct kvg_layout_config config = {.struct_bytes = sizeof(config),
        .rule = {(uint32_t)json_integer_value(json_object_get(layout, "page_size")),
            json_is_true(json_object_get(layout, "is_eagle"))},
        .tp_size = (uint32_t)json_integer_value(json_object_get(layout, "tp_size")),
        .pp_size = (uint32_t)json_integer_value(json_object_get(layout, "pp_size")),
        .tp_lcm_size = (uint32_t)lcm,
        .mla = json_is_true(json_object_get(layout, "is_mla_model")),
        .split_heads = json_is_true(json_object_get(layout, "should_split_heads")),
        .tag = json_text(layout, "extra_backend_tag"),
        .model_prefix = json_text(layout, "model_prefix")};
    struct kvg_layout *out;

    CHECK_EQ(kvg_layout_new(kvg_alloc_default(), &config, NULL, &out), KVG_OK);
    return out;
}

#define LAYOUTS_MAX 2

/* The layouts of a recording, bound to an index. */
struct views {
    struct kvg_layout *layouts[LAYOUTS_MAX];
    struct kvg_presence_view *views[LAYOUTS_MAX];
    size_t count;
};

static void views_init(
    struct views *views, const struct recording *recording, struct kvg_presence *index)
{
    const json_t *extra = json_object_get(recording->truth, "extra_layouts");
    size_t i;

    views->count = 1 + json_array_size(extra);
    CHECK(views->count <= LAYOUTS_MAX);
    for (i = 0; i < views->count; i++) {
        views->layouts[i] =
            layout_new(i == 0 ? json_object_get(recording->truth, "layout")
                              : json_array_get(extra, i - 1));
        CHECK_EQ(kvg_presence_view_new(index, views->layouts[i],
                     (struct kvg_str){NULL, 0}, NULL, &views->views[i]),
            KVG_OK);
    }
}

static void views_fini(struct views *views)
{
    size_t i;

    for (i = 0; i < views->count; i++) {
        kvg_presence_view_free(views->views[i]);
        kvg_layout_free(views->layouts[i]);
    }
}

/* A prompt's tokens: a list, or segments that stand for tokens by the file's `token_rule`. */
static uint32_t *prompt_tokens(const json_t *prompt, size_t *count)
{
    const json_t *list = json_object_get(prompt, "tokens");
    const json_t *segments = json_object_get(prompt, "segments");
    uint32_t *tokens = malloc(sizeof(uint32_t) * 1000000);
    size_t i;
    size_t j;

    CHECK(tokens != NULL);
    *count = 0;
    for (i = 0; i < json_array_size(list); i++)
        tokens[(*count)++] = (uint32_t)json_integer_value(json_array_get(list, i));
    for (i = 0; i < json_array_size(segments); i++) {
        const json_t *segment = json_array_get(segments, i);
        uint32_t number = (uint32_t)json_integer_value(json_array_get(segment, 0));
        size_t length = (size_t)json_integer_value(json_array_get(segment, 1));

        for (j = 0; j < length; j++)
            tokens[(*count)++] =
                (number * UINT32_C(2654435761) + (uint32_t)j * UINT32_C(2246822519) +
                    UINT32_C(374761393)) %
                151936;
    }
    return tokens;
}

static unsigned count_bits(const uint8_t *bits, size_t bytes)
{
    unsigned count = 0;
    size_t i;

    for (i = 0; i < bytes; i++)
        count += (unsigned)__builtin_popcount(bits[i]);
    return count;
}

static void check_pages(const struct kvg_lookup *lookup, const json_t *prompt,
    struct kvg_presence_reader *reader)
{
    const json_t *presence = json_object_get(prompt, "presence");
    const json_t *parts = json_object_get(prompt, "parts");
    uint32_t range = 0;
    uint32_t total = 0;
    uint32_t page;

    for (page = 0; page < lookup->key_count; page++) {
        bool expected = json_integer_value(json_array_get(presence, page)) != 0;
        uint8_t cpu[4] = {0};
        uint8_t disk[4] = {0};

        while (range < lookup->range_count && lookup->ranges[range].end <= page)
            range++;
        CHECK_EQ(
            range < lookup->range_count && lookup->ranges[range].begin <= page, expected);
        total += expected ? 1 : 0;
        if (parts == NULL)
            continue;
        (void)kvg_presence_page_parts(
            reader, lookup->view, &lookup->keys[page], cpu, disk, sizeof(cpu));
        CHECK_EQ(count_bits(cpu, sizeof(cpu)),
            json_integer_value(json_array_get(parts, page)));
        CHECK_EQ(count_bits(disk, sizeof(disk)), 0);
    }
    CHECK_EQ(lookup->total, total);
}

static void check_prompt(
    const struct views *views, const json_t *prompt, struct kvg_presence_reader *reader)
{
    size_t which = (size_t)json_integer_value(json_object_get(prompt, "layout"));
    struct kvg_page_rule rule = kvg_layout_rule(views->layouts[which]);
    size_t token_count;
    uint32_t *tokens = prompt_tokens(prompt, &token_count);
    size_t pages = kvg_page_count(&rule, token_count);
    struct kvg_key *keys = calloc(pages + 1, sizeof(keys[0]));
    struct kvg_range *ranges = calloc(pages + 1, sizeof(ranges[0]));
    struct kvg_lookup lookup = {.view = views->views[which],
        .keys = keys,
        .key_count = (uint32_t)pages,
        .ranges = ranges,
        .range_max = (uint32_t)pages + 1};

    CHECK(keys != NULL && ranges != NULL);
    CHECK_EQ(pages, json_integer_value(json_object_get(prompt, "pages")));
    CHECK_EQ(kvg_page_keys(&rule, NULL, tokens, token_count, keys, pages), pages);
    kvg_presence_lookup(reader, &lookup, 1);
    CHECK_EQ(lookup.contiguous, json_integer_value(json_object_get(prompt, "leading")));
    CHECK_EQ(lookup.first_missing, lookup.contiguous);
    check_pages(&lookup, prompt, reader);
    free(keys);
    free(ranges);
    free(tokens);
}

static void check_prompts(const struct recording *recording, const struct views *views,
    struct kvg_presence *index)
{
    const json_t *prompts = json_object_get(recording->truth, "prompts");
    struct kvg_presence_reader *reader;
    size_t i;

    CHECK(json_array_size(prompts) > 0);
    CHECK_EQ(kvg_presence_reader_open(index, &reader), KVG_OK);
    for (i = 0; i < json_array_size(prompts); i++)
        check_prompt(views, json_array_get(prompts, i), reader);
    kvg_presence_reader_close(reader);
}

/* Tests ----------------------------------------------------------------------------------- */

/* Replays a recording, compares by what its JSON says, repairs, and asks for its prompts.  The
 * layouts are bound before the events or after them. */
static void check_recording(const struct recording *recording, bool bound_late)
{
    const json_t *stream = json_object_get(recording->truth, "stream");
    bool numbers_only = json_object_get(stream, "identity") != NULL;
    struct kvg_presence *index = index_new();
    struct kvg_presence_listing_result result;
    struct difference difference;
    struct replay replay = {.events = 0};
    struct views views;

    if (!bound_late)
        views_init(&views, recording, index);
    replay_capture(recording, index, &replay);
    if (bound_late)
        views_init(&views, recording, index);
    CHECK_EQ(replay.events, truth_integer(recording, "counts", "events"));
    CHECK_EQ(replay.messages, truth_integer(recording, "counts", "messages"));

    difference = compare_with_list(recording, index);
    if (numbers_only) {
        CHECK_EQ(difference.held, 0); /* No object key, no page. */
    } else {
        CHECK_EQ(difference.stale, truth_integer(recording, "stream", "stale"));
        CHECK_EQ(difference.missing, truth_integer(recording, "stream", "missing"));
    }
    if (difference.stale + difference.missing == 0)
        check_prompts(recording, &views, index);

    result = give_list(recording, index);
    CHECK_EQ(result.dropped, difference.stale);
    CHECK_EQ(result.added, difference.missing);
    CHECK_EQ(result.listed, recording->objects.count);
    difference = compare_with_list(recording, index);
    CHECK_EQ(difference.stale + difference.missing, 0);
    CHECK_EQ(difference.held, recording->objects.count);
    check_prompts(recording, &views, index);
    views_fini(&views);
    kvg_presence_free(index);
}

TEST(every_recording_leads_to_its_masters_own_list_or_differs_as_it_says)
{
    size_t i;

    for (i = 0; i < CAPTURE_COUNT; i++) {
        struct recording recording;

        recording_load(&recording, CAPTURE_NAMES[i]);
        check_recording(&recording, false);
        check_recording(&recording, true);
        recording_fini(&recording);
    }
}

TEST(three_recordings_lose_keys_and_the_others_do_not)
{
    size_t lossy = 0;
    size_t i;

    for (i = 0; i < CAPTURE_COUNT; i++) {
        struct recording recording;
        json_int_t lost;

        recording_load(&recording, CAPTURE_NAMES[i]);
        lost = truth_integer(&recording, "stream", "stale") +
               truth_integer(&recording, "stream", "missing");
        lossy += lost != 0 ? 1 : 0;
        recording_fini(&recording);
    }
    CHECK_EQ(lossy, 3);
}

TEST(a_restart_that_is_recognised_leaves_nothing_stale)
{
    struct recording recording;
    struct kvg_presence *index = index_new();
    struct replay replay = {.clear_on_restart = true};
    struct difference difference;

    recording_load(&recording, "master_restart");
    replay_capture(&recording, index, &replay);
    difference = compare_with_list(&recording, index);
    CHECK_EQ(difference.stale + difference.missing, 0);
    recording_fini(&recording);
    kvg_presence_free(index);
}

/* The numbers that a master without object keys announces are those of the list. */
TEST(hashes_alone_name_the_keys_that_are_numbers)
{
    struct recording recording;
    struct kvg_kvcap_reader file;
    struct kvg_kvcap_message message;
    struct kvg_event_reader reader;
    struct kvg_event event;
    struct kvg_frames frames;
    uint64_t held[256];
    size_t held_count = 0;
    size_t i;
    size_t j;

    recording_load(&recording, "objkey_off");
    kvg_event_reader_init(&reader, NULL);
    CHECK_EQ(kvg_kvcap_reader_init(&file, recording.capture, NULL), KVG_OK);
    while (kvg_kvcap_read(&file, NULL, &message) == KVG_OK) {
        CHECK_EQ(
            kvg_frames_parse(message.frames, message.frame_count, NULL, &frames), KVG_OK);
        CHECK_EQ(kvg_event_reader_begin(&reader, frames.payload, NULL), KVG_OK);
        while (kvg_event_reader_next(&reader, &event)) {
            uint64_t hash;

            CHECK(event.object_key.data == NULL);
            CHECK(kvg_event_array_next(&event.block_hashes, &hash));
            for (i = 0; i < held_count && held[i] != hash; i++)
                ;
            if (event.kind == KVG_EVENT_STORED && i == held_count)
                held[held_count++] = hash;
            else if (event.kind == KVG_EVENT_REMOVED && i < held_count)
                held[i] = held[--held_count];
            CHECK(held_count < 256);
        }
    }
    CHECK_EQ(held_count, truth_integer(&recording, "stream", "state_keys"));
    for (i = 0; i < held_count; i++) {
        bool found = false;

        for (j = 0; j < recording.listed.count; j++) {
            char line[64];
            size_t bytes = recording.listed.items[j].bytes;

            if (bytes >= sizeof(line))
                continue;
            memcpy(line, recording.listed.items[j].data, bytes);
            line[bytes] = '\0';
            found =
                found || strtoull(line, NULL, (line[1] | 32) == 'x' ? 16 : 10) == held[i];
        }
        CHECK(found);
    }
    recording_fini(&recording);
}

/* A planted mistake: one event that is not applied.  If it was the last word on its key, the
 * comparison must see it. */
TEST(one_lost_event_is_seen)
{
    struct recording recording;
    struct replay replay;
    uint64_t events;
    uint64_t seen = 0;
    uint64_t skipped;

    recording_load(&recording, "mha_tp1_small");
    events = (uint64_t)truth_integer(&recording, "counts", "events");
    for (skipped = 1; skipped <= events; skipped++) {
        struct kvg_presence *index = index_new();
        struct difference difference;

        replay = (struct replay){.skipped = skipped};
        replay_capture(&recording, index, &replay);
        difference = compare_with_list(&recording, index);
        CHECK(difference.stale + difference.missing <= 1);
        seen += difference.stale + difference.missing;
        kvg_presence_free(index);
    }
    /* 113 keys are left by their last event; 11 were removed, some of those stored again. */
    CHECK(seen >= 113);
    recording_fini(&recording);
}

/* Those that do not lie in tests/data as plain files. */
static bool check_large(const char *name, struct kvg_str capture, const char *keys_path)
{
    struct recording recording;
    char path[256];
    struct kvg_str keys = shared_data_read(keys_path);
    struct kvg_str truth;

    snprintf(path, sizeof(path), "fixtures/mooncake/%s.json", name);
    truth = shared_data_read(path);
    if (capture.data == NULL || keys.data == NULL || truth.data == NULL) {
        printf("%s is skipped: it, or zstd, is not here\n", name);
        return false;
    }
    recording_init(&recording, name, capture, keys, truth);
    check_recording(&recording, false);
    recording_fini(&recording);
    return true;
}

TEST(the_large_recordings_lead_to_their_masters_own_list)
{
    bool groups = check_large("mha_tp2_groups",
        shared_data_read("fixtures/mooncake/mha_tp2_groups.kvcap"),
        "fixtures/mooncake/mha_tp2_groups.keys");
    bool many = check_large("throughput_200k",
        shared_data_read("fixtures/mooncake/throughput_200k.kvcap.zst"),
        "fixtures/mooncake/throughput_200k.keys.zst");

    if (!groups || !many)
        exit(77);
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest SMALL[] = {
        RUN(every_recording_leads_to_its_masters_own_list_or_differs_as_it_says),
        RUN(three_recordings_lose_keys_and_the_others_do_not),
        RUN(a_restart_that_is_recognised_leaves_nothing_stale),
        RUN(hashes_alone_name_the_keys_that_are_numbers), RUN(one_lost_event_is_seen)};
    static const struct CMUnitTest LARGE[] = {
        RUN(the_large_recordings_lead_to_their_masters_own_list)};

    if (argc == 2 && strcmp(argv[1], "large") == 0)
        return cmocka_run_group_tests(LARGE, NULL, NULL);
    return cmocka_run_group_tests(SMALL, NULL, NULL);
}
