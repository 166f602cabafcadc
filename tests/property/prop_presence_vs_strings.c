/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* Hits are never wrong: the index behind a source, against a plain set of object keys as strings
 * built the way the seed client builds it.
 *
 * A store holds objects of pages of a few prompts, under one to three random layouts that may
 * share their names, on two media.  It says what happens in messages; messages are lost, come
 * twice, cannot be read; the store starts again, empty; its admin port answers or fails.  After
 * every step every prompt is asked for under every layout: if the answer calls itself fresh, it
 * must be the model's, page for page; if it does not, the source must say why not.
 *
 * Nothing here is lost without being noticed by the next message or status, so a fresh answer
 * is compared whenever the source has heard the last message. */
#include <kvgraft/source.h>

#include "base/fmt.h"
#include "base/rng.h"
#include "fault_alloc.h"
#include "seed_model.h"
#include "test.h"

#define LAYOUTS_MAX 3
#define PROMPTS 3
#define PROMPT_TOKENS 13
#define OP_PAGES 3 /* Operations are about the first pages of a prompt. */

struct seen {
    uint64_t fresh;
    uint64_t not_fresh;
    uint64_t hits;
    uint64_t misses;
    uint64_t holes;
    uint64_t missed; /* Where it may be. */
    uint64_t gaps;
    uint64_t restarts;
    uint64_t listings;
};

/* A listing that takes its time: what the store held when it was asked for. */
struct listing {
    bool active;
    uint64_t id;
    size_t next;
    struct text_set keys;
};

struct world {
    struct kvi_rng rng;
    uint64_t seed;
    bool has_admin;
    bool per_medium; /* The publisher tells each medium's removal. */
    struct fault_alloc fault;
    struct kvg_presence *index;
    struct kvg_presence_reader *reader;
    struct kvg_source *source;
    struct kvg_event_writer *writer;
    uint64_t now_ms;
    struct kvg_layout_config configs[LAYOUTS_MAX];
    struct kvg_presence_view *views[LAYOUTS_MAX];
    size_t layout_count;
    uint32_t tokens[PROMPTS][PROMPT_TOKENS];
    /* The store. */
    struct text_set media[2]; /* What each medium holds. */
    struct text_set present;  /* What either holds. */
    struct text_set doubled;  /* What both have held at a time. */
    uint64_t sequence;        /* Of the message published last. */
    uint64_t event_id;
    uint64_t events;
    struct listing listing;
    bool unheard; /* Nothing arrived since something was lost or all began anew. */
    struct seen *seen;
};

static void wrong(const struct world *world, const char *what)
{
    fail_msg("seed %llu: %s", (unsigned long long)world->seed, what);
}

/* Events ----------------------------------------------------------------------------------- */

static void write_event(struct world *world, enum kvg_event_kind kind, const char *key,
    enum kvg_medium medium)
{
    struct kvg_event event = {.kind = kind,
        .form = KVG_FORM_OBJECT,
        .medium = medium,
        .has_event_id = true,
        .event_id = ++world->event_id,
        .object_key = kvi_str(key),
        .tenant_id = kvi_str("default"),
        .backend_id = kvi_str("pool")};

    world->events++;
    kvg_event_writer_add(world->writer, &event, NULL, 0, NULL, 0);
}

static bool has_medium(const struct world *world, int medium, const char *key)
{
    return text_set_has(&world->media[medium], key);
}

static void store_object(struct world *world, const char *key)
{
    int medium = kvi_rng_below(&world->rng, 4) == 0 ? 1 : 0;

    if (has_medium(world, medium, key))
        return;
    text_set_add(&world->media[medium], key);
    text_set_add(&world->present, key);
    if (has_medium(world, 1 - medium, key))
        text_set_add(&world->doubled, key);
    write_event(
        world, KVG_EVENT_STORED, key, medium == 0 ? KVG_MEDIUM_CPU : KVG_MEDIUM_DISK);
}

/* The older publisher speaks only when the last copy is gone. */
static void remove_object(struct world *world, const char *key)
{
    int medium = has_medium(world, 0, key) && kvi_rng_below(&world->rng, 2) == 0 ? 0 : 1;

    if (!has_medium(world, medium, key))
        medium = 1 - medium;
    if (!has_medium(world, medium, key))
        return;
    text_set_remove(&world->media[medium], key);
    if (!has_medium(world, 1 - medium, key))
        text_set_remove(&world->present, key);
    else if (!world->per_medium)
        return;
    write_event(
        world, KVG_EVENT_REMOVED, key, medium == 0 ? KVG_MEDIUM_CPU : KVG_MEDIUM_DISK);
}

/* Something happens to a page of a prompt under a layout: all its parts, or one. */
static void change_page(struct world *world)
{
    struct kvi_rng *rng = &world->rng;
    const struct kvg_layout_config *layout =
        &world->configs[kvi_rng_below(rng, world->layout_count)];
    char hashes[MODEL_PAGES_MAX][65];
    char keys[MODEL_PARTS_MAX][MODEL_TEXT_BYTES];
    size_t page_count = model_page_hashes(
        &layout->rule, world->tokens[kvi_rng_below(rng, PROMPTS)], PROMPT_TOKENS, hashes);
    size_t page =
        (size_t)kvi_rng_below(rng, page_count < OP_PAGES ? page_count : OP_PAGES);
    size_t key_count = model_object_keys(layout, hashes[page], keys);
    bool whole = kvi_rng_below(rng, 3) != 0;
    bool store = kvi_rng_below(rng, 5) < 3;
    size_t only = (size_t)kvi_rng_below(rng, key_count);
    size_t i;

    for (i = 0; i < key_count; i++) {
        if (!whole && i != only)
            continue;
        if (store)
            store_object(world, keys[i]);
        else
            remove_object(world, keys[i]);
    }
}

static void deliver(struct world *world, struct kvg_str payload, uint64_t sequence)
{
    uint8_t number[8];
    struct kvg_str frames[3] = {{"", 0}, {(const char *)number, 8}, payload};

    kvg_sequence_encode(sequence, number);
    world->unheard = false;
    kvg_source_message(world->source, frames, 3, world->now_ms);
}

static void publish(struct world *world)
{
    struct kvi_rng *rng = &world->rng;
    size_t changes = (size_t)kvi_rng_below(rng, 4) + 1;
    uint64_t before = world->events;
    struct kvg_str payload;
    uint64_t dice = kvi_rng_below(rng, 100);

    kvg_event_writer_begin(world->writer, (int64_t)(1000 + world->now_ms), true, 0);
    while (changes-- != 0)
        change_page(world);
    CHECK_EQ(kvg_event_writer_end(world->writer, &payload), KVG_OK);
    if (world->events == before)
        return;
    world->sequence++;
    if (dice < 4) { /* Lost. */
        world->unheard = true;
        return;
    }
    if (dice < 6)
        payload.bytes -= 1; /* Cannot be read to its end. */
    deliver(world, payload, world->sequence);
    if (dice >= 6 && dice < 12)
        deliver(world, payload, world->sequence); /* Twice. */
}

static void restart(struct world *world)
{
    world->media[0].count = 0;
    world->media[1].count = 0;
    world->present.count = 0;
    world->doubled.count = 0;
    world->sequence = 0;
    world->event_id = 0;
    world->events = 0;
    world->unheard = true;
    world->seen->restarts++;
    if (world->listing.active)
        kvg_source_failed(world->source, world->listing.id, "gone", world->now_ms);
    world->listing.active = false;
    if (kvi_rng_below(&world->rng, 2) == 0) {
        kvg_source_disconnected(world->source, world->now_ms);
        kvg_source_connected(world->source, world->now_ms);
    }
}

/* The admin port --------------------------------------------------------------------------- */

static void begin_listing(struct world *world, uint64_t id)
{
    struct listing *listing = &world->listing;
    size_t i;

    listing->active = true;
    listing->id = id;
    listing->next = 0;
    listing->keys.count = 0;
    for (i = 0; i < world->present.count; i++)
        text_set_add(&listing->keys, world->present.texts[i]);
}

/* Some lines of the listing under way, or all. */
static void go_on_listing(struct world *world)
{
    struct listing *listing = &world->listing;
    size_t lines = kvi_rng_below(&world->rng, 2) == 0
                       ? SIZE_MAX
                       : (size_t)kvi_rng_below(&world->rng, 30);

    if (!listing->active)
        return;
    for (; lines != 0 && listing->next < listing->keys.count; lines--) {
        const char *key = listing->keys.texts[listing->next++];

        kvg_source_listing_data(world->source, listing->id, kvi_str(key), world->now_ms);
        kvg_source_listing_data(world->source, listing->id, kvi_str("\n"), world->now_ms);
    }
    if (listing->next < listing->keys.count)
        return;
    listing->active = false;
    kvg_source_listing_done(world->source, listing->id, world->now_ms);
    world->seen->listings++;
}

static void answer(struct world *world, const struct kvg_source_action *action)
{
    struct kvg_source_status status = {.enabled = true,
        .published_batches = world->sequence,
        .published_events = world->events};

    if (action->kind == KVG_SOURCE_CANCEL) {
        if (action->cancels == world->listing.id)
            world->listing.active = false;
        return;
    }
    if (action->kind == KVG_SOURCE_RECONNECT) {
        kvg_source_disconnected(world->source, world->now_ms);
        kvg_source_connected(world->source, world->now_ms);
        return;
    }
    if (kvi_rng_below(&world->rng, 20) == 0) {
        kvg_source_failed(world->source, action->id, "no answer", world->now_ms);
        return;
    }
    switch (action->kind) {
    case KVG_SOURCE_FETCH_STATUS:
        world->unheard = false;
        kvg_source_status_answer(world->source, action->id, &status, world->now_ms);
        break;
    case KVG_SOURCE_FETCH_COUNT:
        kvg_source_count_answer(
            world->source, action->id, world->present.count, world->now_ms);
        break;
    case KVG_SOURCE_FETCH_LISTING:
        begin_listing(world, action->id);
        break;
    default:
        wrong(world, "an action nobody asked for");
    }
}

static void act(struct world *world)
{
    struct kvg_source_action action;
    int actions = 0;

    go_on_listing(world);
    while (kvg_source_next_action(world->source, &action)) {
        answer(world, &action);
        CHECK(++actions < 1000);
    }
}

/* Time goes on by steps that end where the source wants to be woken. */
static void wait_ms(struct world *world, uint64_t ms)
{
    uint64_t end_ms = world->now_ms + ms;

    for (;;) {
        uint64_t deadline_ms = kvg_source_deadline_ms(world->source);

        act(world);
        if (deadline_ms > end_ms)
            break;
        if (deadline_ms > world->now_ms)
            world->now_ms = deadline_ms;
        else
            world->now_ms++;
        if (world->now_ms > end_ms)
            break;
        kvg_source_tick(world->source, world->now_ms);
    }
    world->now_ms = end_ms;
    kvg_source_tick(world->source, world->now_ms);
    act(world);
}

/* Answers ---------------------------------------------------------------------------------- */

/* What the answer says page by page, from its ranges. */
static void spread(const struct kvg_lookup *lookup, bool hits[MODEL_PAGES_MAX])
{
    uint32_t i;
    uint32_t page;

    memset(hits, 0, MODEL_PAGES_MAX * sizeof(hits[0]));
    for (i = 0; i < lookup->range_count; i++) {
        for (page = lookup->ranges[i].begin; page < lookup->ranges[i].end; page++)
            hits[page] = true;
    }
}

/* Total, contiguous pages and first missing page follow from the pages. */
static void check_sums(const struct world *world, const struct kvg_lookup *lookup,
    const bool hits[MODEL_PAGES_MAX])
{
    uint32_t contiguous = 0;
    uint32_t total = 0;
    uint32_t page;

    for (page = 0; page < lookup->key_count; page++)
        total += hits[page];
    page = lookup->start;
    while (page + contiguous < lookup->key_count && hits[page + contiguous])
        contiguous++;
    if (lookup->total != total || lookup->contiguous != contiguous ||
        lookup->first_missing != lookup->start + contiguous)
        wrong(world, "the sums do not follow from the ranges");
    if (kvg_lookup_hits_beyond(lookup, 0) != total)
        wrong(world, "hits beyond page 0 are not all hits");
    if (contiguous < total)
        world->seen->holes++;
}

/* A listing does not say where an object is.  So behind a publisher that tells each medium, a
 * removal from one of two media after a listing takes the part away: in doubt it is missing. */
static bool may_be_missed(const struct world *world,
    const struct kvg_layout_config *config, size_t prompt, size_t page)
{
    char hashes[MODEL_PAGES_MAX][65];
    char keys[MODEL_PARTS_MAX][MODEL_TEXT_BYTES];
    size_t key_count;
    size_t i;

    if (!world->per_medium || !world->has_admin)
        return false;
    model_page_hashes(&config->rule, world->tokens[prompt], PROMPT_TOKENS, hashes);
    key_count = model_object_keys(config, hashes[page], keys);
    for (i = 0; i < key_count; i++) {
        if (text_set_has(&world->doubled, keys[i]))
            return true;
    }
    return false;
}

static void ask(struct world *world, size_t layout, size_t prompt)
{
    const struct kvg_layout_config *config = &world->configs[layout];
    struct kvg_source_stats stats = {.struct_bytes = sizeof(stats)};
    struct kvg_key keys[MODEL_PAGES_MAX];
    struct kvg_range ranges[MODEL_PAGES_MAX];
    bool found[MODEL_PAGES_MAX];
    bool expected[MODEL_PAGES_MAX];
    size_t page_count = model_hits(
        &world->present, config, world->tokens[prompt], PROMPT_TOKENS, expected);
    struct kvg_lookup lookup = {.view = world->views[layout],
        .keys = keys,
        .start = (uint32_t)kvi_rng_below(&world->rng, 3),
        .ranges = ranges,
        .range_max = MODEL_PAGES_MAX};
    size_t page;

    lookup.key_count = (uint32_t)kvg_page_keys(
        &config->rule, NULL, world->tokens[prompt], PROMPT_TOKENS, keys, MODEL_PAGES_MAX);
    CHECK_EQ(lookup.key_count, page_count);
    if (lookup.start > lookup.key_count)
        lookup.start = lookup.key_count;
    kvg_presence_lookup(world->reader, &lookup, 1);
    spread(&lookup, found);
    check_sums(world, &lookup, found);
    kvg_source_stats(world->source, &stats);
    if (lookup.confidence != stats.confidence)
        wrong(world, "the answer's confidence is not the source's");
    if (lookup.confidence != KVG_CONFIDENCE_FRESH) {
        world->seen->not_fresh++;
        if (stats.reasons == 0)
            wrong(world, "not fresh, and no reason given");
        return;
    }
    if (world->unheard || stats.last_sequence != world->sequence)
        return; /* What was published last is under way, or lost and not noticed yet. */
    world->seen->fresh++;
    for (page = 0; page < page_count; page++) {
        world->seen->hits += expected[page];
        world->seen->misses += !expected[page];
        if (found[page] && !expected[page])
            wrong(world, "a fresh answer has a page that the strings do not have");
        if (!found[page] && expected[page] && may_be_missed(world, config, prompt, page))
            world->seen->missed++;
        else if (!found[page] && expected[page])
            wrong(world, "a fresh answer lacks a page that the strings have");
    }
}

static void ask_all(struct world *world)
{
    size_t layout;
    size_t prompt;

    for (layout = 0; layout < world->layout_count; layout++) {
        for (prompt = 0; prompt < PROMPTS; prompt++)
            ask(world, layout, prompt);
    }
}

/* Making and running ----------------------------------------------------------------------- */

static struct kvg_layout_config random_layout(struct kvi_rng *rng)
{
    static const char *const TAGS[] = {NULL, NULL, "", "tag", "org_model"};
    struct kvg_layout_config config = {.struct_bytes = sizeof(config),
        .rule = {(uint32_t)(1 + kvi_rng_below(rng, 4)), kvi_rng_below(rng, 3) == 0},
        .tp_size = (uint32_t)kvi_rng_below(rng, 4),
        .pp_size = (uint32_t)kvi_rng_below(rng, 3),
        .tp_lcm_size = (uint32_t)kvi_rng_below(rng, 5),
        .mla = kvi_rng_below(rng, 4) == 0,
        .split_heads = kvi_rng_below(rng, 4) == 0,
        .tag = kvi_str(TAGS[kvi_rng_below(rng, 5)])};

    if (kvi_rng_below(rng, 5) == 0) /* More parts than fit a slot. */
        config.tp_size = 9 + (uint32_t)kvi_rng_below(rng, 7);
    return config;
}

static void open_world(struct world *world)
{
    struct kvg_presence_options index_options = {
        .struct_bytes = sizeof(index_options), .seed = kvi_rng_next(&world->rng)};
    struct kvg_source_options options = {.struct_bytes = sizeof(options),
        .has_admin = world->has_admin,
        .seed = kvi_rng_next(&world->rng)};
    size_t i;

    fault_alloc_init(&world->fault);
    CHECK_EQ(kvg_presence_new(&world->fault.alloc, &index_options, NULL, &world->index),
        KVG_OK);
    CHECK_EQ(kvg_presence_reader_open(world->index, &world->reader), KVG_OK);
    for (i = 0; i < world->layout_count; i++) {
        struct kvg_layout *layout;

        world->configs[i] = random_layout(&world->rng);
        CHECK_EQ(kvg_layout_new(&world->fault.alloc, &world->configs[i], NULL, &layout),
            KVG_OK);
        CHECK_EQ(kvg_presence_view_new(world->index, layout, (struct kvg_str){NULL, 0},
                     NULL, &world->views[i]),
            KVG_OK);
        kvg_layout_free(layout);
    }
    CHECK_EQ(kvg_source_new(&world->fault.alloc, world->index, &options, world->now_ms,
                 &world->source),
        KVG_OK);
    CHECK_EQ(kvg_event_writer_new(&world->fault.alloc,
                 world->per_medium ? KVG_DIALECT_MOONCAKE_V2 : KVG_DIALECT_MOONCAKE,
                 &world->writer),
        KVG_OK);
}

static void close_world(struct world *world)
{
    struct kvg_source_stats stats = {.struct_bytes = sizeof(stats)};
    size_t i;

    kvg_source_stats(world->source, &stats);
    world->seen->gaps += stats.gaps;
    kvg_event_writer_free(world->writer);
    kvg_source_free(world->source);
    for (i = 0; i < world->layout_count; i++)
        kvg_presence_view_free(world->views[i]);
    kvg_presence_reader_close(world->reader);
    kvg_presence_free(world->index);
    text_set_fini(&world->media[0]);
    text_set_fini(&world->media[1]);
    text_set_fini(&world->present);
    text_set_fini(&world->doubled);
    text_set_fini(&world->listing.keys);
    CHECK_EQ(world->fault.live_bytes, 0);
}

static void run(uint64_t seed, bool has_admin, int steps, struct seen *seen)
{
    struct world world = {.rng = {seed},
        .seed = seed,
        .has_admin = has_admin,
        .now_ms = 1000,
        .seen = seen};
    int step;

    world.per_medium = kvi_rng_below(&world.rng, 2) == 0;
    world.layout_count = (size_t)(1 + kvi_rng_below(&world.rng, LAYOUTS_MAX));
    for (step = 0; step < PROMPTS * PROMPT_TOKENS; step++)
        world.tokens[step / PROMPT_TOKENS][step % PROMPT_TOKENS] =
            (uint32_t)kvi_rng_below(&world.rng, 2);
    open_world(&world);
    kvg_source_connected(world.source, world.now_ms);
    act(&world);
    for (step = 0; step < steps; step++) {
        uint64_t dice = kvi_rng_below(&world.rng, 200);

        if (dice == 0)
            restart(&world);
        else
            publish(&world);
        wait_ms(&world, kvi_rng_below(&world.rng, dice < 20 ? 9000 : 60));
        ask_all(&world);
    }
    if (has_admin) { /* With nothing going wrong it becomes fresh, and right. */
        struct kvg_source_stats stats = {.struct_bytes = sizeof(stats)};

        for (step = 0; step < 40; step++)
            wait_ms(&world, 5000);
        kvg_source_stats(world.source, &stats);
        if (stats.confidence != KVG_CONFIDENCE_FRESH ||
            stats.last_sequence != world.sequence)
            wrong(&world, "it did not become fresh again");
        ask_all(&world);
    }
    close_world(&world);
}

TEST(fresh_answers_are_those_of_the_strings)
{
    struct seen seen = {0};
    uint64_t seed;
    uint64_t last;

    for (seed = kvt_seed(1), last = seed + 11; seed <= last; seed++)
        run(seed, true, 250, &seen);
    CHECK(seen.fresh > seen.not_fresh / 10 && seen.not_fresh != 0);
    CHECK(seen.missed < seen.hits / 20);
    CHECK(seen.hits != 0 && seen.misses != 0 && seen.holes != 0);
    CHECK(seen.gaps != 0 && seen.restarts != 0 && seen.listings != 0);
}

TEST(fresh_answers_are_those_of_the_strings_without_an_admin_port_too)
{
    struct seen seen = {0};
    uint64_t seed;
    uint64_t last;

    for (seed = kvt_seed(101), last = seed + 11; seed <= last; seed++)
        run(seed, false, 250, &seen);
    CHECK(seen.fresh != 0 && seen.not_fresh != 0);
    CHECK(seen.hits != 0 && seen.misses != 0 && seen.holes != 0);
    CHECK(seen.gaps != 0 && seen.restarts != 0 && seen.listings == 0);
}

TEST_MAIN(RUN(fresh_answers_are_those_of_the_strings),
    RUN(fresh_answers_are_those_of_the_strings_without_an_admin_port_too))
