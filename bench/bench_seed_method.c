/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* A lookup of present pages: the seed client's method beside the index, from tokens to answer.
 *
 * Both begin with the page keys (ours; the client's take longer) and hold the same other pages.
 * Rows give the index's time; their floor is what they are compared with: the page keys alone,
 * then the seed's method with labels that are not verified (or missing), then verified. */
#include "bench.h"

#include <kvgraft/presence.h>

#include "seed_method.h"

#include <stdlib.h>

enum {
    PAGE = 64,
    PAGES_MAX = 2048,
    REPEATS = 40
};

struct work {
    struct kvg_page_rule rule;
    uint32_t *tokens;
    size_t page_count;
    struct kvg_key *keys;
    struct seed_method *seed;     /* Without labels: never verified. */
    struct seed_method *verified; /* With labels, and asked once. */
    struct kvg_presence *index;
    struct kvg_presence_view *view;
    struct kvg_presence_reader *reader;
    struct kvg_page_memo *memo;
    uint32_t found;
};

static void only_keys(void *context)
{
    struct work *work = context;

    kvg_page_keys(&work->rule, NULL, work->tokens, work->page_count * PAGE, work->keys,
        work->page_count);
    kvb_keep(work->keys);
}

static void by_seed(void *context)
{
    struct work *work = context;

    only_keys(work);
    work->found = seed_method_lookup(work->seed, work->keys, work->page_count);
}

static void by_verified(void *context)
{
    struct work *work = context;

    only_keys(work);
    work->found = seed_method_lookup(work->verified, work->keys, work->page_count);
}

static void look_up(struct work *work)
{
    struct kvg_range ranges[16];
    struct kvg_lookup lookup = {.view = work->view,
        .keys = work->keys,
        .key_count = (uint32_t)work->page_count,
        .ranges = ranges,
        .range_max = 16};

    kvg_presence_lookup(work->reader, &lookup, 1);
    work->found = lookup.total;
}

static void by_index(void *context)
{
    struct work *work = context;

    only_keys(work);
    look_up(work);
}

static void by_index_and_memo(void *context)
{
    struct work *work = context;

    kvg_page_memo_keys(work->memo, NULL, work->tokens, work->page_count * PAGE,
        work->keys, work->page_count);
    look_up(work);
}

static double measure(struct work *work, void (*how)(void *))
{
    double best = kvb_best_ns(REPEATS, how, work);

    if (how != only_keys && work->found != work->page_count)
        abort();
    return best;
}

static void must(kvg_err err)
{
    if (err != KVG_OK) {
        fprintf(stderr, "bench_seed_method: %s\n", kvg_strerror(err));
        exit(1);
    }
}

static void store(
    struct work *work, const struct kvg_layout *layout, const struct kvg_key *key)
{
    char name[KVG_OBJECT_KEY_BYTES_MAX + 1];
    uint32_t part;

    seed_method_store(work->seed, key, false);
    seed_method_store(work->verified, key, true);
    for (part = 0; part < kvg_layout_part_count(layout); part++) {
        struct kvg_str text = {name, kvg_layout_object_key(layout, key, part, name)};

        if (!kvg_presence_stored(
                work->index, (struct kvg_str){NULL, 0}, text, KVG_MEDIUM_CPU))
            abort();
    }
}

/* Other prompts' pages and the one asked for. */
static void fill(struct work *work, const struct kvg_layout *layout, size_t other_pages)
{
    struct kvg_key key;
    size_t i;

    for (i = 0; i < other_pages; i++) {
        kvg_sha256(&i, sizeof(i), key.bytes);
        store(work, layout, &key);
    }
    work->page_count = PAGES_MAX;
    only_keys(work);
    for (i = 0; i < PAGES_MAX; i++)
        store(work, layout, &work->keys[i]);
}

static void open_all(struct work *work, uint32_t tp_size, size_t other_pages)
{
    struct kvg_presence_options options = {.struct_bytes = sizeof(options), .seed = 1};
    struct kvg_page_memo_options memo_options = {
        .struct_bytes = sizeof(memo_options), .rule = work->rule, .seed = 2};
    struct kvg_layout_config config = {.struct_bytes = sizeof(config),
        .rule = work->rule,
        .tp_size = tp_size,
        .pp_size = 1};
    struct kvg_layout *layout;

    work->seed = seed_method_new(tp_size);
    work->verified = seed_method_new(tp_size);
    must(kvg_page_memo_new(kvg_alloc_default(), &memo_options, &work->memo));
    must(kvg_presence_new(kvg_alloc_default(), &options, NULL, &work->index));
    must(kvg_layout_new(kvg_alloc_default(), &config, NULL, &layout));
    must(kvg_presence_view_new(
        work->index, layout, (struct kvg_str){NULL, 0}, NULL, &work->view));
    must(kvg_presence_reader_open(work->index, &work->reader));
    fill(work, layout, other_pages);
    kvg_layout_free(layout);
}

static void close_all(struct work *work)
{
    kvg_presence_reader_close(work->reader);
    kvg_presence_view_free(work->view);
    kvg_presence_free(work->index);
    kvg_page_memo_free(work->memo);
    seed_method_free(work->seed);
    seed_method_free(work->verified);
}

static void row(struct kvb_table *table, const char *how, uint32_t tp_size, size_t pages,
    double figure, double floor, const char *floor_is, double target)
{
    char what[64];

    snprintf(what, sizeof(what), "TP%u, %zu pages%s", tp_size, pages, how);
    kvb_row(table, &(struct kvb_row){.what = what,
                       .figure = figure,
                       .unit = "ns",
                       .floor = floor,
                       .floor_is = floor_is,
                       .target = target});
}

static void one_size(
    struct kvb_table *table, struct work *work, uint32_t tp_size, size_t pages)
{
    double keys;
    double index;
    double memo;
    double seed;
    double verified;

    work->page_count = pages;
    keys = measure(work, only_keys);
    index = measure(work, by_index);
    memo = measure(work, by_index_and_memo);
    seed = measure(work, by_seed);
    verified = measure(work, by_verified);
    row(table, "", tp_size, pages, index, keys, "its page keys alone", 1.25);
    row(table, "", tp_size, pages, index, seed, "the seed's method, nothing verified", 0);
    row(table, "", tp_size, pages, index, verified, "the seed's method, all verified", 0);
    row(table, ", memo", tp_size, pages, memo, seed,
        "the seed's method, nothing verified", 0);
    row(table, ", memo", tp_size, pages, memo, verified,
        "the seed's method, all verified", 0);
}

static void memory_row(struct kvb_table *table, const struct work *work, uint32_t tp_size)
{
    struct kvg_presence_stats stats = {.struct_bytes = sizeof(stats)};
    char what[64];

    kvg_presence_stats(work->index, &stats);
    snprintf(
        what, sizeof(what), "TP%u, memory of %zu pages", tp_size, (size_t)stats.pages);
    kvb_row(
        table, &(struct kvb_row){.what = what,
                   .figure = (double)stats.memory_bytes,
                   .unit = "bytes",
                   .floor = (double)seed_method_memory(work->verified),
                   .floor_is = "the seed's tables and strings, without malloc's own"});
}

static void run(struct kvb_table *table)
{
    static const uint32_t TP[] = {1, 8};
    static const size_t PAGES[] = {128, 512, 2048};
    struct work work = {.rule = {PAGE, false}};
    size_t i;
    size_t j;

    work.tokens = malloc((size_t)PAGES_MAX * PAGE * sizeof(uint32_t));
    work.keys = malloc(PAGES_MAX * sizeof(struct kvg_key));
    for (i = 0; i < (size_t)PAGES_MAX * PAGE; i++)
        work.tokens[i] = (uint32_t)((i * 2654435761u) % 128000);
    for (i = 0; i < 2; i++) {
        open_all(&work, TP[i], table->quick ? 2000 : 40000);
        for (j = 0; j < 3; j++)
            one_size(table, &work, TP[i], PAGES[j]);
        memory_row(table, &work, TP[i]);
        close_all(&work);
    }
    free(work.tokens);
    free(work.keys);
}

KVB_MAIN(seed_method, "Lookups, beside the seed's own method", run)
