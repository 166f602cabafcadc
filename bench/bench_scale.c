/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* One index that grows from a million pages to a hundred and twenty-eight: what gets dearer?
 *
 * At each size: events a second, the writer's longest single step (it copies a segment, or the
 * directory, now and then), memory a page, and a look-up of pages that are there.  The floor of
 * the step is a copy of the directory as large as it is then, that of the look-up one random
 * cache line of as much memory.  docs/scale.md draws the conclusions. */
#include "bench.h"

#include <kvgraft/layout.h>
#include <kvgraft/presence.h>

#include <stdlib.h>
#include <sys/resource.h>

#define PROMPT_PAGES 2048u
#define PROMPTS 32u
#define LINE 64u
#define AHEAD 32u

struct world {
    struct kvg_presence *index;
    struct kvg_layout *layout;
    struct kvg_presence_view *view;
    struct kvg_presence_reader *reader;
    struct kvg_key prompts[PROMPTS][PROMPT_PAGES];
    unsigned prompt;
    uint64_t pages;
    const unsigned char *lines;
    uint64_t line_count;
    uint64_t sum;
};

static void must(bool condition, const char *what)
{
    if (!condition) {
        fprintf(stderr, "bench_scale: %s\n", what);
        exit(1);
    }
}

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 32)) * UINT64_C(0xd6e8feb86659fd93);
    x = (x ^ (x >> 32)) * UINT64_C(0xd6e8feb86659fd93);
    return x ^ (x >> 32);
}

static struct kvg_key key_of(uint64_t number)
{
    struct kvg_key key;
    uint64_t i;

    for (i = 0; i < 4; i++) {
        uint64_t word = mix(number * 4 + i + 1);

        memcpy(key.bytes + i * 8, &word, sizeof(word));
    }
    return key;
}

static void store(struct world *world, const struct kvg_key *key)
{
    char text[KVG_OBJECT_KEY_BYTES_MAX + 1];
    struct kvg_str object = {text, kvg_layout_object_key(world->layout, key, 0, text)};

    must(kvg_presence_stored(
             world->index, (struct kvg_str){NULL, 0}, object, KVG_MEDIUM_CPU),
        "not stored");
}

static void open_world(struct world *world)
{
    struct kvg_layout_config config = {.struct_bytes = sizeof(config),
        .rule = {.page_size = 64},
        .tp_size = 1,
        .mla = true};
    struct kvg_presence_options options = {.struct_bytes = sizeof(options),
        .memory_bytes_max = (size_t)16 << 30,
        .seed = 0x5eed};
    unsigned i;
    uint64_t page;

    must(kvg_layout_new(kvg_alloc_default(), &config, NULL, &world->layout) == KVG_OK,
        "no layout");
    must(kvg_presence_new(kvg_alloc_default(), &options, NULL, &world->index) == KVG_OK,
        "no index");
    must(kvg_presence_view_new(world->index, world->layout, (struct kvg_str){NULL, 0},
             NULL, &world->view) == KVG_OK,
        "no view");
    must(kvg_presence_reader_open(world->index, &world->reader) == KVG_OK, "no reader");
    for (i = 0; i < PROMPTS; i++)
        for (page = 0; page < PROMPT_PAGES; page++) {
            world->prompts[i][page] = key_of(UINT64_C(1) << 50 | i * PROMPT_PAGES | page);
            store(world, &world->prompts[i][page]);
        }
    world->pages = (uint64_t)PROMPTS * PROMPT_PAGES;
}

static void close_world(struct world *world)
{
    kvg_presence_reader_close(world->reader);
    kvg_presence_view_free(world->view);
    kvg_presence_free(world->index);
    kvg_layout_free(world->layout);
}

static void look_up(void *context)
{
    struct world *world = context;
    struct kvg_lookup lookup = {.view = world->view,
        .keys = world->prompts[world->prompt],
        .key_count = PROMPT_PAGES};

    world->prompt = (world->prompt + 1) % PROMPTS;
    kvg_presence_lookup(world->reader, &lookup, 1);
    must(lookup.contiguous == PROMPT_PAGES, "a wrong answer");
}

static void random_lines(void *context)
{
    struct world *world = context;
    uint64_t at[AHEAD];
    uint64_t i;

    world->prompt = (world->prompt + 1) % PROMPTS;
    for (i = 0; i < PROMPT_PAGES + AHEAD; i++) {
        if (i >= AHEAD)
            world->sum += world->lines[at[i % AHEAD] * LINE];
        at[i % AHEAD] = mix((uint64_t)world->prompt << 32 | i) % world->line_count;
        __builtin_prefetch(world->lines + at[i % AHEAD] * LINE);
    }
    kvb_keep(&world->sum);
}

struct copying {
    unsigned char *from;
    unsigned char *to;
    size_t bytes;
};

static void copy_directory(void *context)
{
    struct copying *copying = context;

    memcpy(copying->to, copying->from, copying->bytes);
    kvb_keep(copying->to);
}

/* A copy of as many addresses as the directory had when it was doubled last. */
static double copy_ns(uint64_t memory_bytes)
{
    struct copying copying = {.bytes = sizeof(uint64_t)};
    double took;

    while (copying.bytes / sizeof(uint64_t) * 60000 < memory_bytes)
        copying.bytes *= 2;
    copying.from = calloc(1, copying.bytes);
    copying.to = calloc(1, copying.bytes);
    must(copying.from != NULL && copying.to != NULL, "no memory");
    took = kvb_best_ns(5, copy_directory, &copying);
    free(copying.from);
    free(copying.to);
    return took;
}

static double name_ns(struct world *world)
{
    uint64_t began = kvb_now_ns();
    uint64_t i;

    for (i = 0; i < 1000000; i++) {
        char text[KVG_OBJECT_KEY_BYTES_MAX + 1];
        struct kvg_key key = key_of(i);

        world->sum += kvg_layout_object_key(world->layout, &key, 0, text);
        kvb_keep(text);
    }
    return (double)(kvb_now_ns() - began) / 1000000;
}

/* How often the kernel has taken the processor away. */
static long interruptions(void)
{
    struct rusage usage;

    must(getrusage(RUSAGE_THREAD, &usage) == 0, "no usage");
    return usage.ru_nivcsw;
}

/* The longest step so far; one during which the processor was taken away does not count. */
struct watch {
    double longest;
    long interruptions;
};

static void watch_step(struct watch *watch, double took)
{
    long now;

    if (took <= watch->longest)
        return;
    now = interruptions();
    if (now == watch->interruptions)
        watch->longest = took;
    watch->interruptions = now;
}

/* Adds pages up to a number; the longest step of the writer comes back. */
static double grow(struct kvb_table *table, struct world *world, uint64_t pages)
{
    double names = name_ns(world) * (double)(pages - world->pages);
    uint64_t before = world->pages;
    uint64_t began = kvb_now_ns();
    uint64_t last = began;
    struct watch watch = {.interruptions = interruptions()};
    char what[80];

    for (; world->pages < pages; world->pages++) {
        struct kvg_key key = key_of(world->pages);
        uint64_t now;

        store(world, &key);
        now = kvb_now_ns();
        watch_step(&watch, (double)(now - last));
        last = now;
    }
    snprintf(what, sizeof(what), "stored, up to %" PRIu64 " M pages", pages / 1000000);
    kvb_row(table,
        &(struct kvb_row){.what = what,
            .figure = (double)(pages - before) * 1e9 / ((double)(last - began) - names),
            .unit = "events/s",
            .more_is_better = true,
            .note = "each a new page; making its name taken off, reading the clock not"});
    return watch.longest;
}

static void measure(struct kvb_table *table, struct world *world, uint64_t pages)
{
    double longest = grow(table, world, pages);
    struct kvg_presence_stats stats;

    kvg_presence_stats(world->index, &stats);
    must(stats.pages == pages, "pages are missing");
    kvb_row(table, &(struct kvb_row){.what = "  the writer's longest step",
                       .figure = longest,
                       .unit = "ns",
                       .floor = copy_ns(stats.memory_bytes),
                       .floor_is = "copying as many addresses as the directory has",
                       .note = "readers do not wait for it; steps that the kernel "
                               "interrupted left out"});
    kvb_row(table, &(struct kvb_row){.what = "  memory a page",
                       .figure = (double)stats.memory_bytes / (double)pages,
                       .unit = "bytes",
                       .limit = 48});
    world->line_count = stats.memory_bytes / LINE;
    world->lines = calloc(world->line_count, LINE);
    must(world->lines != NULL, "no memory");
    memset((void *)(uintptr_t)world->lines, 1, world->line_count * LINE);
    kvb_row(table, &(struct kvb_row){.what = "  look-up, a present page",
                       .figure = kvb_best_ns(400, look_up, world) / PROMPT_PAGES,
                       .unit = "ns",
                       .floor = kvb_best_ns(400, random_lines, world) / PROMPT_PAGES,
                       .floor_is = "one random cache line of as much memory"});
    free((void *)(uintptr_t)world->lines);
}

static void run(struct kvb_table *table)
{
    static struct world world;
    uint64_t last = table->quick ? 4000000 : 128000000;
    uint64_t pages;

    world = (struct world){0};
    open_world(&world);
    for (pages = 1000000; pages <= last; pages *= pages < 64000000 ? 4 : 2)
        measure(table, &world, pages);
    close_world(&world);
}

KVB_MAIN(scale, "One index, as it grows", run)
