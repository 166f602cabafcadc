/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* The path of a request through an engine: match, slots, insert, end.  Sizes follow the benchmark
 * that engines in Python bring along: prompts of 256 tokens over pools of 500,000 slots at page 1
 * and 200,000 at page 128.  As many prompts as the pool holds, so that "the same again" hits; then
 * twice as many, so that every one evicts. */
#include "bench.h"

#include <kvgraft/graft.h>

#include "base/rng.h"

#include <stdlib.h>

#define PROMPT 256u

struct load {
    struct kvg_engine *engine;
    uint32_t *tokens; /* count * PROMPT */
    uint32_t count;
    uint32_t *copy;
    uint64_t next_id;
};

static void die(const char *what)
{
    fprintf(stderr, "bench_graft: %s\n", what);
    exit(1);
}

static void serve(struct load *load, const uint32_t *tokens)
{
    struct kvg_engine_prompt prompt = {.id = ++load->next_id,
        .key = {.tokens = tokens, .token_count = PROMPT},
        .prompt_tokens = PROMPT};
    struct kvg_engine_match match;
    kvg_row row;

    if (kvg_engine_begin(load->engine, &prompt, &match, &row, NULL) != KVG_OK)
        die("begin");
    uint64_t more = PROMPT - match.device_length;
    if (kvg_engine_extend(load->engine, &row, &more, 1, NULL) != KVG_OK)
        die("extend");
    if (kvg_engine_finish(load->engine, row, &prompt.key, NULL) != KVG_OK)
        die("finish");
}

static void serve_all(void *context)
{
    struct load *load = context;

    for (uint32_t i = 0; i < load->count; i++)
        serve(load, load->tokens + (size_t)i * PROMPT);
}

static void forget(struct load *load)
{
    if (kvg_engine_reset(load->engine, NULL) != KVG_OK)
        die("reset");
}

static void copy_all(void *context)
{
    struct load *load = context;

    for (uint32_t i = 0; i < load->count; i++) {
        memcpy(load->copy + (size_t)i * PROMPT, load->tokens + (size_t)i * PROMPT,
            PROMPT * sizeof(uint32_t));
        kvb_keep(load->copy);
    }
}

static void compare_all(void *context)
{
    struct load *load = context;
    int sum = 0;

    for (uint32_t i = 0; i < load->count; i++)
        sum += memcmp(load->copy + (size_t)i * PROMPT, load->tokens + (size_t)i * PROMPT,
            PROMPT * sizeof(uint32_t));
    kvb_keep(&sum);
}

static struct load make(uint32_t count, uint32_t page, bool swa, uint64_t slots)
{
    struct load load = {.count = count};
    struct kvg_engine_options options;
    struct kvi_rng rng = {42};

    kvg_engine_options_init(&options);
    options.tree.page_size = page;
    options.tree.window = 128;
    if (swa)
        options.tree.components |= KVG_COMPONENT_BIT(KVG_COMPONENT_SWA);
    options.full_slots = options.window_slots = slots / page * page;
    options.row_count = 8;
    options.context_tokens = PROMPT;
    if (kvg_engine_new(kvg_alloc_default(), &options, &load.engine, NULL) != KVG_OK)
        die("engine");
    load.tokens = calloc((size_t)count * PROMPT, sizeof(uint32_t));
    load.copy = calloc((size_t)count * PROMPT, sizeof(uint32_t));
    for (size_t i = 0; i < (size_t)count * PROMPT; i++)
        load.tokens[i] = (uint32_t)kvi_rng_below(&rng, 32000);
    return load;
}

static void measure(struct kvb_table *table, const char *name, uint32_t count,
    uint32_t page, bool swa, uint64_t slots)
{
    struct load load = make(count, page, swa, slots);
    char what[96];
    double fresh = 0;
    unsigned repeats = table->quick ? 2 : 7;

    double copy = kvb_best_ns(repeats, copy_all, &load) / count;
    double compare = kvb_best_ns(repeats, compare_all, &load) / count;
    for (unsigned i = 0; i < repeats; i++) {
        forget(&load);
        double took = kvb_best_ns(1, serve_all, &load) / count;
        fresh = i == 0 || took < fresh ? took : fresh;
    }
    snprintf(what, sizeof(what), "%s, new prompt", name);
    kvb_row(table, &(struct kvb_row){.what = what,
                       .figure = fresh,
                       .unit = "ns",
                       .floor = copy,
                       .floor_is = "copying the prompt's tokens"});
    double again = kvb_best_ns(repeats, serve_all, &load) / count;
    snprintf(what, sizeof(what), "%s, the same again", name);
    kvb_row(table, &(struct kvb_row){.what = what,
                       .figure = again,
                       .unit = "ns",
                       .floor = compare,
                       .floor_is = "memcmp over the prompt's tokens"});
    kvg_engine_free(load.engine);
    free(load.tokens);
    free(load.copy);
}

/* Twice as many prompts as fit: each new one evicts an old one. */
static void measure_full_pool(struct kvb_table *table)
{
    struct load load = make(4000, 1, false, 2000 * PROMPT);

    serve_all(&load);
    double took = kvb_best_ns(table->quick ? 2 : 7, serve_all, &load) / load.count;
    double copy = kvb_best_ns(7, copy_all, &load) / load.count;
    kvb_row(table, &(struct kvb_row){.what = "FULL page 1, new prompt, full pool",
                       .figure = took,
                       .unit = "ns",
                       .floor = copy,
                       .floor_is = "copying the prompt's tokens",
                       .note = "with the eviction of one prompt"});
    kvg_engine_free(load.engine);
    free(load.tokens);
    free(load.copy);
}

static void run(struct kvb_table *table)
{
    measure(table, "FULL page 1", 1950, 1, false, 500000);
    measure(table, "FULL page 128", 780, 128, false, 200000);
    measure(table, "FULL+SWA page 128", 780, 128, true, 200000);
    measure_full_pool(table);
}
KVB_MAIN(graft, "A request's path through an engine, 256 tokens", run)
