/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* Insert, match, lock, evict and the whole path of a request at the sizes of the benchmark that
 * engines in Python bring along: 5,000 prompts of 256 tokens over 500,000 slots, FULL and a state,
 * page 1; 1,000 prompts over 200,000 slots at page 128, FULL, and FULL with a window.  More prompts
 * than fit, so the later ones evict the earlier.
 *
 * Every operation is timed alone; the figure is the median, without the clock's own cost. */
#include "bench.h"

#include <kvgraft/graft.h>

#include "base/rng.h"

#include <stdlib.h>

#define PROMPT 256u
#define WINDOW 128u
#define STATE (1u << KVG_COMPONENT_MAMBA)
#define HAS_WINDOW (1u << KVG_COMPONENT_SWA)

struct shape {
    const char *name;
    uint32_t count, page, components;
    uint64_t slots;
};

struct bench {
    struct shape shape;
    struct kvg_tree *tree;
    struct kvg_memory memory;
    struct kvg_cache *cache;
    uint32_t *tokens, *copy;
    double *took; /* One operation each. */
    size_t count;
    double clock_ns;
    struct kvg_span full[PROMPT], window[PROMPT];
};

static void must(kvg_err err, const char *what)
{
    if (err == KVG_OK)
        return;
    fprintf(stderr, "bench_cache: %s: %s\n", what, kvg_strerror(err));
    exit(1);
}

static void make(struct bench *bench, struct shape shape)
{
    const struct kvg_alloc *alloc = kvg_alloc_default();
    struct kvg_tree_options options;
    struct kvi_rng rng = {42};
    struct kvg_slots_options slots = {.struct_bytes = sizeof(slots),
        .capacity_slots = shape.slots / shape.page * shape.page,
        .page_slots = shape.page};
    struct kvg_slots_options states = {
        .struct_bytes = sizeof(states), .capacity_slots = shape.count, .page_slots = 1};
    struct kvg_window_options window = {.struct_bytes = sizeof(window),
        .kind = KVG_WINDOW_MAPPED,
        .page_slots = shape.page,
        .full_slots = slots.capacity_slots,
        .window_slots = slots.capacity_slots,
        .exact = true};

    *bench = (struct bench){.shape = shape};
    kvg_tree_options_init(&options);
    options.page_size = shape.page;
    options.components |= shape.components;
    options.window = WINDOW;
    must(kvg_tree_new(alloc, &options, &bench->tree, NULL), "tree");
    if ((shape.components & HAS_WINDOW) != 0)
        must(kvg_window_new(alloc, &window, &bench->memory.window, NULL), "window");
    else
        must(kvg_slots_new(alloc, &slots, &bench->memory.slots, NULL), "slots");
    if ((shape.components & STATE) != 0)
        must(kvg_slots_new(alloc, &states, &bench->memory.states, NULL), "states");
    must(kvg_cache_new(alloc, bench->tree, &bench->memory, &bench->cache, NULL), "cache");
    bench->tokens = calloc((size_t)shape.count * PROMPT, sizeof(uint32_t));
    bench->copy = calloc((size_t)shape.count * PROMPT, sizeof(uint32_t));
    bench->took = calloc(shape.count, sizeof(double));
    for (size_t i = 0; i < (size_t)shape.count * PROMPT; i++)
        bench->tokens[i] = (uint32_t)kvi_rng_below(&rng, 32000);
    memcpy(bench->copy, bench->tokens, (size_t)shape.count * PROMPT * sizeof(uint32_t));
}

static void unmake(struct bench *bench)
{
    kvg_cache_free(bench->cache);
    kvg_tree_free(bench->tree);
    kvg_slots_free(bench->memory.slots);
    kvg_slots_free(bench->memory.states);
    kvg_window_free(bench->memory.window);
    free(bench->tokens);
    free(bench->copy);
    free(bench->took);
}

static struct kvg_tree_key key_at(const struct bench *bench, size_t index)
{
    return (struct kvg_tree_key){
        .tokens = bench->tokens + index * PROMPT, .token_count = PROMPT};
}

/* ---- Times --------------------------------------------------------------------------------- */

static void time_clock(struct bench *bench)
{
    double best = 1e9;

    for (int i = 0; i < 1000; i++) {
        uint64_t began = kvb_now_ns();
        double took = (double)(kvb_now_ns() - began);
        best = took < best ? took : best;
    }
    bench->clock_ns = best;
}

static void record(struct bench *bench, uint64_t began)
{
    double took = (double)(kvb_now_ns() - began) - bench->clock_ns;

    bench->took[bench->count++] = took > 0 ? took : 0;
}

static int compare_times(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;

    return (x > y) - (x < y);
}

static void row(struct kvb_table *table, struct bench *bench, const char *what,
    double floor, const char *floor_is)
{
    char name[96], note[96], mean[32], p99[32];
    double sum = 0;

    for (size_t i = 0; i < bench->count; i++)
        sum += bench->took[i];
    qsort(bench->took, bench->count, sizeof(double), compare_times);
    kvb_format(mean, sizeof(mean), sum / (double)bench->count, "ns");
    kvb_format(p99, sizeof(p99), bench->took[bench->count * 99 / 100], "ns");
    snprintf(name, sizeof(name), "%s, %s", bench->shape.name, what);
    snprintf(note, sizeof(note), "mean %s, 99 of 100 in %s", mean, p99);
    kvb_row(table, &(struct kvb_row){.what = name,
                       .figure = bench->took[bench->count / 2],
                       .unit = "ns",
                       .floor = floor,
                       .floor_is = floor_is,
                       .note = note});
    bench->count = 0;
}

/* ---- Floors -------------------------------------------------------------------------------- */

static void copy_all(void *context)
{
    struct bench *bench = context;

    for (size_t i = 0; i < bench->shape.count; i++) {
        memcpy(bench->copy + i * PROMPT, bench->tokens + i * PROMPT, PROMPT * 4);
        kvb_keep(bench->copy);
    }
}

static void compare_all(void *context)
{
    struct bench *bench = context;
    int sum = 0;

    for (size_t i = 0; i < bench->shape.count; i++)
        sum += memcmp(bench->copy + i * PROMPT, bench->tokens + i * PROMPT, PROMPT * 4);
    kvb_keep(&sum);
}

/* Nanoseconds to give so many slots back to a pool in runs of a prompt. */
static double release_floor(const struct bench *bench, uint64_t batch)
{
    struct kvg_slots_options options = {.struct_bytes = sizeof(options),
        .capacity_slots = bench->shape.slots / bench->shape.page * bench->shape.page,
        .page_slots = bench->shape.page};
    struct kvg_slots *pool;
    double best = 1e18;

    must(kvg_slots_new(kvg_alloc_default(), &options, &pool, NULL), "pool");
    for (int repeat = 0; repeat < 20; repeat++) {
        struct kvg_span items[PROMPT * 2];
        size_t runs = (size_t)(batch / PROMPT) + 1, count[64];
        uint64_t took = 0;
        kvg_slots_reset(pool);
        for (size_t i = 0; i < runs && i < 64; i++) {
            struct kvg_spans spans = {items + 4 * i, 0, 4};
            must(kvg_slots_alloc(pool, PROMPT, &spans, NULL), "alloc");
            count[i] = spans.count;
        }
        uint64_t began = kvb_now_ns();
        for (size_t i = 0; i < runs && i < 64; i++)
            must(kvg_slots_release(pool, items + 4 * i, count[i], NULL), "release");
        took = kvb_now_ns() - began;
        best = (double)took < best ? (double)took : best;
    }
    kvg_slots_free(pool);
    return best;
}

/* ---- Operations ---------------------------------------------------------------------------- */

/* Slots for a prompt, and its state; evicts for them. */
static void take_slots(
    struct bench *bench, struct kvg_spans *spans, struct kvg_tree_insert *insert)
{
    struct kvg_spans window = {bench->window, 0, PROMPT};
    uint64_t wanted[KVG_COMPONENT_MAX] = {[KVG_COMPONENT_MAMBA] = 1};

    must(kvg_cache_make_room(bench->cache, PROMPT, PROMPT, NULL), "room");
    if (bench->memory.window == NULL) {
        must(kvg_slots_alloc(bench->memory.slots, PROMPT, spans, NULL), "slots");
    } else {
        must(kvg_window_alloc_full(bench->memory.window, PROMPT, spans, NULL), "slots");
        must(kvg_window_alloc_swa(bench->memory.window, PROMPT, &window, NULL), "window");
        must(kvg_window_map(bench->memory.window, spans->items, spans->count,
                 window.items, window.count, NULL),
            "map");
    }
    if (bench->memory.states != NULL) {
        struct kvg_spans state = {&insert->mamba, 0, 1};
        if (kvg_slots_available(bench->memory.states) == 0)
            must(kvg_cache_evict(bench->cache, wanted, NULL, NULL), "evict");
        must(kvg_slots_alloc(bench->memory.states, 1, &state, NULL), "state");
    }
}

static void insert_one(
    struct bench *bench, size_t index, struct kvg_tree_inserted *out, uint64_t *began)
{
    struct kvg_spans spans = {bench->full, 0, PROMPT};
    struct kvg_tree_insert insert;

    kvg_tree_insert_init(&insert);
    insert.key = key_at(bench, index);
    take_slots(bench, &spans, &insert);
    insert.value = spans.items;
    insert.value_count = spans.count;
    if (began != NULL)
        *began = kvb_now_ns();
    must(kvg_cache_insert(bench->cache, &insert, out, NULL, NULL), "insert");
}

static void fill(struct bench *bench)
{
    struct kvg_tree_inserted out;

    for (size_t i = 0; i < bench->shape.count; i++) {
        uint64_t began;
        insert_one(bench, i, &out, &began);
        record(bench, began);
    }
}

/* The prompts that are still there: the last. */
static size_t first_held(const struct bench *bench)
{
    size_t held = (size_t)(bench->shape.slots / PROMPT);

    return held < bench->shape.count ? bench->shape.count - held + 1 : 0;
}

static void match_held(struct bench *bench)
{
    struct kvg_tree_match match;

    for (size_t i = first_held(bench); i < bench->shape.count; i++) {
        struct kvg_tree_key key = key_at(bench, i);
        uint64_t began = kvb_now_ns();
        must(kvg_cache_match(bench->cache, &key, &match, NULL), "match");
        record(bench, began);
        if (match.device_length != PROMPT)
            bench->count--; /* Two that begin alike: one went earlier. */
    }
}

/* Also returns what it takes to find a node by its id. */
static double lock_held(struct bench *bench)
{
    struct kvg_tree_match match;
    struct kvg_lock_receipt receipt;
    double find = 0;

    for (size_t i = first_held(bench); i < bench->shape.count; i++) {
        struct kvg_tree_key key = key_at(bench, i);
        must(kvg_cache_match(bench->cache, &key, &match, NULL), "match");
        if (match.device_length != PROMPT)
            continue;
        uint64_t began = kvb_now_ns();
        for (int repeat = 0; repeat < 16; repeat++) {
            bool there = kvg_tree_contains(bench->tree, match.last_device_node);
            kvb_keep(&there);
        }
        find += ((double)(kvb_now_ns() - began) - bench->clock_ns) / 16;
        began = kvb_now_ns();
        must(kvg_tree_lock(bench->tree, match.last_device_node, 0, &receipt, NULL),
            "lock");
        must(kvg_tree_unlock(bench->tree, match.last_device_node, &receipt, false, NULL),
            "unlock");
        record(bench, began);
    }
    return find / (double)bench->count;
}

static void evict_all(struct bench *bench, uint64_t batch)
{
    uint64_t wanted[KVG_COMPONENT_MAX] = {[KVG_COMPONENT_FULL] = batch};
    uint64_t evicted[KVG_COMPONENT_MAX];

    do {
        uint64_t began = kvb_now_ns();
        must(kvg_cache_evict(bench->cache, wanted, evicted, NULL), "evict");
        if (evicted[KVG_COMPONENT_FULL] >= batch)
            record(bench, began);
    } while (evicted[KVG_COMPONENT_FULL] >= batch);
}

/* Match, slots, insert, lock for the decode to come, release. */
static void serve_all(struct bench *bench)
{
    for (size_t i = 0; i < bench->shape.count; i++) {
        struct kvg_tree_key key = key_at(bench, i);
        struct kvg_tree_inserted inserted;
        struct kvg_tree_match match;
        struct kvg_lock_receipt receipt;
        uint64_t began = kvb_now_ns();
        must(kvg_cache_match(bench->cache, &key, &match, NULL), "match");
        insert_one(bench, i, &inserted, NULL);
        must(kvg_tree_lock(bench->tree, inserted.last_node, 0, &receipt, NULL), "lock");
        must(kvg_tree_unlock(bench->tree, inserted.last_node, &receipt, false, NULL),
            "unlock");
        record(bench, began);
    }
}

static void measure(struct kvb_table *table, struct shape shape)
{
    struct bench bench;
    uint64_t batch = shape.slots / 200 > 100 ? shape.slots / 200 : 100;

    make(&bench, shape);
    time_clock(&bench);
    double copy = kvb_best_ns(5, copy_all, &bench) / shape.count;
    double compare = kvb_best_ns(5, compare_all, &bench) / shape.count;
    fill(&bench);
    row(table, &bench, "insert", copy, "copying the prompt's tokens");
    match_held(&bench);
    row(table, &bench, "match", compare, "memcmp over the prompt's tokens");
    double find = lock_held(&bench);
    row(table, &bench, "lock and unlock", find, "finding the node by its id");
    evict_all(&bench, batch);
    row(table, &bench, "evict 1/200 of the slots", release_floor(&bench, batch),
        "giving as many slots back to a pool");
    serve_all(&bench);
    row(table, &bench, "request path", copy, "copying the prompt's tokens");
    unmake(&bench);
}

static void run(struct kvb_table *table)
{
    static const struct shape SHAPES[] = {{"FULL+MAMBA page 1", 5000, 1, STATE, 500000},
        {"FULL page 128", 1000, 128, 0, 200000},
        {"FULL+SWA page 128", 1000, 128, HAS_WINDOW, 200000}};

    for (size_t i = 0; i < sizeof(SHAPES) / sizeof(SHAPES[0]); i++)
        measure(table, SHAPES[i]);
}
KVB_MAIN(cache, "Operations of a cache, prompts of 256 tokens", run)
