/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* Engines over a real store: what one computed, another loads, bit for bit; requests that end at
 * every stage of a load; stores that fail; engines in threads. */
#include "gate_store.h"
#include "mover_kit.h"
#include "test.h"

#include "base/rng.h"

#define TOKENS 48
#define SLOTS 96

static const struct kit_shape SHAPE = {.page_size = 4,
    .ranks = 1,
    .layers = {2, 0},
    .planes = 2,
    .slot_bytes = 16,
    .slots = SLOTS + 64};

struct side {
    struct kit_device device;
    struct kvg_engine *engine;
    bool swa;
    uint64_t next_id;
};

static void start(struct side *side, bool swa, const struct kvg_layout *layout,
    struct kvg_store *store, uint32_t workers)
{
    struct kvg_engine_options options;
    struct kit_shape shape = SHAPE;
    struct kvg_error error;

    *side = (struct side){.swa = swa};
    shape.layers[1] = swa ? 2 : 0;
    shape.workers = workers;
    CHECK_EQ(
        kit_open(&side->device, kvg_alloc_default(), &shape, 0, layout, store), KVG_OK);
    kvg_engine_options_init(&options);
    options.tree.page_size = shape.page_size;
    options.tree.window = 8;
    if (swa)
        options.tree.components |= KVG_COMPONENT_BIT(KVG_COMPONENT_SWA);
    options.full_slots = options.window_slots = SLOTS;
    options.row_count = 4;
    options.context_tokens = TOKENS;
    options.transport = &side->device.transport;
    if (kvg_engine_new(kvg_alloc_default(), &options, &side->engine, &error) != KVG_OK)
        fail_msg("%s: %s", error.field, error.message);
}

static void stop(struct side *side)
{
    kvg_engine_free(side->engine);
    kit_close(&side->device);
}

static void audit(struct side *side)
{
    struct kvg_error error;
    if (kvg_engine_audit(side->engine, NULL, NULL, &error) != KVG_OK ||
        kvg_mover_check(side->device.mover, &error) != KVG_OK)
        fail_msg("%s: %s", error.field, error.message);
}

static struct kvg_tree_key key_of(const uint32_t *tokens, size_t count)
{
    return (struct kvg_tree_key){.tokens = tokens, .token_count = count};
}

/* A page of a row as a transfer of one page; with `swa` of its window. */
static bool page_of(struct side *side, kvg_row row, const struct kvg_key *keys,
    uint32_t page, bool swa, struct kvg_span *span, struct kvg_tree_transfer *out)
{
    size_t count;
    uint64_t slot =
        (uint64_t)kvg_rows_table(kvg_engine_rows(side->engine), row, &count)[page] *
        SHAPE.page_size;
    if (swa)
        slot = kvg_window_slot(kvg_engine_memory(side->engine)->window, slot);
    *span = (struct kvg_span){slot, KVG_BUFFER_POOL, SHAPE.page_size};
    *out = (struct kvg_tree_transfer){
        .component = swa ? KVG_COMPONENT_SWA : KVG_COMPONENT_FULL,
        .keys = &keys[page],
        .key_count = 1,
        .spans = span,
        .span_count = 1};
    return slot != KVG_SLOT_NONE;
}

/* The pretend model: computes pages [from, to), or checks those that the request stands on. */
static void run(struct side *side, kvg_row row, const struct kvg_key *keys, uint32_t from,
    uint32_t to, bool write)
{
    struct kvg_tree_transfer transfer;
    struct kvg_span span;
    for (uint32_t page = from; page < to; page++) {
        CHECK(page_of(side, row, keys, page, false, &span, &transfer));
        if (write)
            kit_fill(&side->device, &transfer);
        else
            CHECK(kit_holds(&side->device, &transfer));
        if (!side->swa || (!write && page + 2 < to))
            continue; /* Only the window must be there. */
        CHECK(page_of(side, row, keys, page, true, &span, &transfer));
        if (write)
            kit_fill(&side->device, &transfer);
        else
            CHECK(kit_holds(&side->device, &transfer));
    }
}

struct served {
    uint64_t device, loaded;
    bool failed;
};

static struct served serve(struct side *side, const uint32_t *tokens, size_t count)
{
    struct kvg_tree_key key = key_of(tokens, count);
    struct kvg_engine_prompt prompt = {.id = ++side->next_id, .key = key};
    struct kvg_page_rule rule = {.page_size = SHAPE.page_size};
    struct kvg_key keys[TOKENS];
    struct kvg_engine_match match;
    struct kvg_engine_tick tick;
    struct served served = {0};
    uint64_t restored;
    kvg_row row;
    uint32_t pages = (uint32_t)kvg_page_keys(&rule, NULL, tokens, count, keys, TOKENS);

    CHECK_EQ(kvg_engine_begin(side->engine, &prompt, &match, &row, NULL), KVG_OK);
    served.device = match.device_length;
    if (match.load_needed) {
        CHECK_EQ(kvg_engine_load(side->engine, row, &restored, NULL), KVG_OK);
        int64_t batch = kvg_engine_start_loads(side->engine);
        for (uint32_t layer = 0; layer < 4 && batch >= 0; layer++)
            served.failed |= kvg_engine_wait_layer(side->engine, batch, layer) != KVG_OK;
        kit_finish(&side->device);
        CHECK_EQ(kvg_engine_tick(side->engine, &tick, NULL), KVG_OK);
        CHECK_EQ(tick.cut_count, served.failed ? 1 : 0);
    }
    uint64_t length = kvg_rows_length(kvg_engine_rows(side->engine), row);
    served.loaded = length - served.device;
    uint32_t have = (uint32_t)length / SHAPE.page_size;
    run(side, row, keys, 0, have, false);
    uint64_t more = (uint64_t)pages * SHAPE.page_size - length;
    if (more > 0)
        CHECK_EQ(kvg_engine_extend(side->engine, &row, &more, 1, NULL), KVG_OK);
    run(side, row, keys, have, pages, true);
    CHECK_EQ(kvg_engine_finish(side->engine, row, &key, NULL), KVG_OK);
    kit_finish(&side->device);
    CHECK_EQ(kvg_engine_tick(side->engine, &tick, NULL), KVG_OK);
    audit(side);
    return served;
}

static void number(uint32_t *tokens, uint32_t first)
{
    for (uint32_t i = 0; i < TOKENS; i++)
        tokens[i] = first + i;
}

static struct kvg_layout *layout_of(bool swa)
{
    struct kit_shape shape = SHAPE;
    shape.layers[1] = swa ? 2 : 0;
    return kit_layout(&shape);
}

TEST(what_one_engine_computed_another_loads_bit_for_bit)
{
    for (uint32_t kind = 0; kind < 4; kind++) {
        bool swa = kind % 2 == 1;
        struct kvg_layout *layout = layout_of(swa);
        struct gate gate = {0};
        struct side a, b;
        uint32_t tokens[TOKENS];

        gate_open(&gate, "memory:");
        start(&a, swa, layout, gate.store, kind / 2 * 2);
        start(&b, swa, layout, gate.store, kind / 2 * 2);
        number(tokens, 100);
        struct served first = serve(&a, tokens, 40);
        CHECK_EQ(first.device + first.loaded, 0);
        struct served again = serve(&a, tokens, 40);
        CHECK_EQ(again.device, 40);
        struct served other = serve(&b, tokens, 44);
        CHECK_EQ(other.device, 0);
        CHECK_EQ(other.loaded, 40);
        CHECK(!other.failed);
        other = serve(&a, tokens, 44); /* And what b added comes back. */
        CHECK_EQ(other.device, 40);
        CHECK_EQ(other.loaded, 4);
        stop(&a);
        stop(&b);
        gate_close(&gate);
        kvg_layout_free(layout);
    }
}

TEST(a_load_that_fails_is_computed_and_nothing_wrong_is_left)
{
    for (uint64_t call = 1; call <= 4; call++) {
        for (uint32_t kind = 0; kind < 2; kind++) {
            bool swa = kind == 1;
            struct kvg_layout *layout = layout_of(swa);
            struct gate gate = {0};
            struct side a, b;
            uint32_t tokens[TOKENS];

            gate_open(&gate, "memory:");
            start(&a, swa, layout, gate.store, 0);
            start(&b, swa, layout, gate.store, 0);
            number(tokens, 100);
            (void)serve(&a, tokens, 40);
            gate.failing[GATE_GET] = call;
            struct served served = serve(&b, tokens, 40);
            CHECK_EQ(served.failed, call <= (swa ? 4 : 2));
            CHECK_EQ(served.loaded, served.failed ? 0 : 40);
            served = serve(&b, tokens, 40);
            CHECK_EQ(served.device, 40);
            stop(&a);
            stop(&b);
            gate_close(&gate);
            kvg_layout_free(layout);
        }
    }
}

TEST(a_store_that_refuses_pages_leaves_engines_alone)
{
    struct kvg_layout *layout = layout_of(false);
    struct gate gate = {.failing = {[GATE_PUT] = 1}};
    struct side a, b;
    uint32_t tokens[TOKENS];

    gate_open(&gate, "memory:");
    start(&a, false, layout, gate.store, 0);
    start(&b, false, layout, gate.store, 0);
    number(tokens, 100);
    (void)serve(&a, tokens, 40);
    CHECK_EQ(serve(&b, tokens, 40).loaded, 0);
    CHECK_EQ(serve(&a, tokens, 40).device, 40); /* The second hit writes it again. */
    CHECK_EQ(serve(&b, tokens, 44).device, 40);
    stop(&a);
    stop(&b);
    gate_close(&gate);
    kvg_layout_free(layout);
}

TEST(a_request_may_end_and_an_engine_die_at_any_stage)
{
    struct kvg_layout *layout = layout_of(false);
    struct gate gate = {0};
    struct side a, b;
    uint32_t tokens[TOKENS];

    gate_open(&gate, "memory:");
    start(&a, false, layout, gate.store, 2);
    number(tokens, 100);
    (void)serve(&a, tokens, 40);
    for (int stage = 0; stage < 40; stage++) {
        struct kvg_engine_prompt prompt = {.id = 7, .key = key_of(tokens, 40)};
        struct kvg_engine_match match;
        uint64_t restored;
        kvg_row row;

        start(&b, false, layout, gate.store, 2);
        CHECK_EQ(kvg_engine_begin(b.engine, &prompt, &match, &row, NULL), KVG_OK);
        if (stage % 4 > 0)
            CHECK_EQ(kvg_engine_load(b.engine, row, &restored, NULL), KVG_OK);
        if (stage % 4 > 1)
            (void)kvg_engine_start_loads(b.engine);
        if (stage % 4 > 2)
            (void)kvg_mover_finish(b.device.mover);
        if (stage % 8 < 4) { /* The request ends; what it asked for goes on. */
            CHECK_EQ(kvg_engine_abort(b.engine, row, NULL), KVG_OK);
            CHECK(serve(&b, tokens, 44).device <= 40);
        }
        stop(&b);
    }
    stop(&a);
    gate_close(&gate);
    kvg_layout_free(layout);
}

/* ---- Threads ------------------------------------------------------------------------------- */

struct thread {
    pthread_t thread;
    const struct kvg_layout *layout;
    struct kvg_store *store;
    uint64_t seed, loaded;
};

static void *serve_many(void *context)
{
    struct thread *thread = context;
    struct kvi_rng rng = {thread->seed};
    struct side side;
    uint32_t tokens[TOKENS];

    start(&side, false, thread->layout, thread->store, 2);
    for (int i = 0; i < 120; i++) {
        number(tokens, 1000 * (1 + (uint32_t)kvi_rng_below(&rng, 12)));
        size_t count = 4 * (1 + kvi_rng_below(&rng, TOKENS / 4));
        thread->loaded += serve(&side, tokens, count).loaded;
    }
    stop(&side);
    return NULL;
}

TEST(engines_in_threads_share_one_store_that_evicts)
{
    struct kvg_layout *layout = layout_of(false);
    struct thread threads[3];
    struct kvg_store *store;
    uint64_t loaded = 0;

    CHECK_EQ(kvg_store_open("memory:?bytes=64KiB", NULL, &store, NULL), KVG_OK);
    for (uint64_t i = 0; i < 3; i++) {
        threads[i] = (struct thread){.layout = layout, .store = store, .seed = i + 1};
        CHECK_EQ(pthread_create(&threads[i].thread, NULL, serve_many, &threads[i]), 0);
    }
    for (int i = 0; i < 3; i++) {
        pthread_join(threads[i].thread, NULL);
        loaded += threads[i].loaded;
    }
    CHECK(loaded > 0);
    kvg_store_close(store);
    kvg_layout_free(layout);
}

TEST_MAIN(RUN(what_one_engine_computed_another_loads_bit_for_bit),
    RUN(a_load_that_fails_is_computed_and_nothing_wrong_is_left),
    RUN(a_store_that_refuses_pages_leaves_engines_alone),
    RUN(a_request_may_end_and_an_engine_die_at_any_stage),
    RUN(engines_in_threads_share_one_store_that_evicts))
