/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* What of a request the cache keeps, and what goes back to the pools: finished, running, without
 * insertion, unaligned, under a window, under EAGLE; and how far an allocation evicts.  Names and
 * numbers follow the tests of the cache that this one behaves like. */
#include "linker_kit.h"

static const uint32_t *numbers(uint32_t first)
{
    static uint32_t tokens[2][64];
    static int turn;
    uint32_t *out = tokens[turn++ % 2];
    for (uint32_t i = 0; i < 64; i++)
        out[i] = first + i;
    return out;
}

static struct kvg_tree_key run(size_t count)
{
    return (struct kvg_tree_key){.tokens = numbers(1), .token_count = count};
}

struct shape {
    uint32_t page_size, window;
    bool eagle;
};

static struct kvg_engine *make(struct shape shape)
{
    struct kvg_engine_options options;
    struct kvg_engine *engine;
    kvg_engine_options_init(&options);
    options.tree.page_size = shape.page_size;
    options.tree.window = shape.window;
    options.tree.eagle = shape.eagle;
    if (shape.window != 0)
        options.tree.components |= SWA;
    options.full_slots = options.window_slots = 64;
    options.row_count = 4;
    options.context_tokens = 64;
    CHECK_EQ(kvg_engine_new(kvg_alloc_default(), &options, &engine, NULL), KVG_OK);
    return engine;
}

static uint64_t free_full(struct kvg_engine *engine)
{
    const struct kvg_memory *memory = kvg_engine_memory(engine);
    return kvg_slots_available(
        memory->window != NULL ? kvg_window_full(memory->window) : memory->slots);
}

static void done(struct kvg_engine *engine)
{
    struct kvg_error error;
    if (kvg_engine_audit(engine, NULL, NULL, &error) != KVG_OK)
        fail_msg("%s: %s", error.field, error.message);
    kvg_engine_free(engine);
}

static uint64_t matched(struct kvg_engine *engine, size_t count)
{
    struct kvg_tree_match match;
    struct kvg_tree_key key = run(count);
    CHECK_EQ(kvg_cache_match(kvg_engine_cache(engine), &key, &match, NULL), KVG_OK);
    return match.device_length;
}

/* A request of `count` tokens whose prompt has `prompt`; it holds slots for all. */
static kvg_row start(struct kvg_engine *engine, uint64_t prompt, size_t count)
{
    struct kvg_engine_prompt what = {
        .id = 1, .key = run((size_t)prompt), .prompt_tokens = prompt};
    struct kvg_engine_match match;
    kvg_row row;
    CHECK_EQ(kvg_engine_begin(engine, &what, &match, &row, NULL), KVG_OK);
    uint64_t more = count - match.device_length;
    CHECK_EQ(kvg_engine_extend(engine, &row, &more, 1, NULL), KVG_OK);
    return row;
}

static struct kvg_engine_request info(struct kvg_engine *engine, kvg_row row)
{
    struct kvg_engine_request out;
    CHECK_EQ(kvg_engine_request_get(engine, row, &out), KVG_OK);
    return out;
}

/* ---- The end of a request ------------------------------------------------------------------ */

TEST(cache_finished_req_insert_keeps_prompt_and_answer_as_two_nodes)
{
    struct kvg_engine *engine = make((struct shape){.page_size = 4});
    struct kvg_tree_key key = run(18);
    struct kvg_tree_stats stats;
    uint64_t wanted[KVG_COMPONENT_MAX] = {8};
    kvg_row row = start(engine, 8, 18);
    CHECK_EQ(kvg_engine_finish(engine, row, &key, NULL), KVG_OK);
    CHECK_EQ(matched(engine, 18), 16); /* Up to the last whole page. */
    kvg_tree_stats(kvg_engine_tree(engine), &stats);
    CHECK_EQ(stats.nodes, 3);
    CHECK_EQ(kvg_cache_evict(kvg_engine_cache(engine), wanted, NULL, NULL), KVG_OK);
    CHECK_EQ(matched(engine, 18), 8); /* The answer goes first. */
    done(engine);
}

TEST(cache_finished_req_no_insert_returns_every_slot)
{
    struct kvg_engine *engine = make((struct shape){.page_size = 4});
    kvg_row row = start(engine, 8, 18);
    CHECK_EQ(free_full(engine), 64 - 20);
    CHECK_EQ(kvg_engine_abort(engine, row, NULL), KVG_OK);
    CHECK_EQ(free_full(engine), 64);
    CHECK_EQ(matched(engine, 18), 0);
    done(engine);
}

TEST(cache_finished_req_strips_what_the_key_leaves_out)
{
    struct kvg_engine *engine = make((struct shape){.page_size = 4});
    struct kvg_tree_key prompt = run(8);
    kvg_row row = start(engine, 8, 30);
    CHECK_EQ(kvg_engine_finish(engine, row, &prompt, NULL), KVG_OK);
    CHECK_EQ(free_full(engine), 64 - 8);
    CHECK_EQ(matched(engine, 30), 8);
    done(engine);
}

TEST(paged_cache_finished_unaligned_tail_freed)
{
    struct kvg_engine *engine = make((struct shape){.page_size = 8});
    struct kvg_tree_key key = run(20);
    kvg_row row = start(engine, 20, 20);
    CHECK_EQ(free_full(engine), 64 - 24);
    CHECK_EQ(kvg_engine_finish(engine, row, &key, NULL), KVG_OK);
    CHECK_EQ(free_full(engine), 64 - 16);
    CHECK_EQ(matched(engine, 20), 16);
    done(engine);
}

/* ---- A running request --------------------------------------------------------------------- */

TEST(cache_unfinished_req_hands_its_slots_to_the_tree_and_keeps_them_locked)
{
    struct kvg_engine *engine = make((struct shape){.page_size = 4});
    struct kvg_tree_key key = run(18);
    uint64_t wanted[KVG_COMPONENT_MAX] = {64};
    kvg_row row = start(engine, 18, 18);
    CHECK_EQ(kvg_engine_insert(engine, row, &key, NULL), KVG_OK);
    CHECK_EQ(info(engine, row).in_tree, 16);
    CHECK_EQ(info(engine, row).length, 18);
    CHECK_EQ(kvg_tree_protected(kvg_engine_tree(engine), KVG_COMPONENT_FULL), 16);
    CHECK_EQ(kvg_cache_evict(kvg_engine_cache(engine), wanted, NULL, NULL), KVG_OK);
    CHECK_EQ(matched(engine, 18), 16);
    CHECK_EQ(kvg_engine_abort(engine, row, NULL), KVG_OK);
    CHECK_EQ(kvg_tree_protected(kvg_engine_tree(engine), KVG_COMPONENT_FULL), 0);
    done(engine);
}

TEST(swa_eager_eviction_on_unfinished_req_frees_what_no_token_can_see)
{
    struct kvg_engine *engine = make((struct shape){.page_size = 1, .window = 4});
    struct kvg_tree_key key = run(20);
    const struct kvg_slots *swa = kvg_window_swa(kvg_engine_memory(engine)->window);
    kvg_row row = start(engine, 20, 20);
    CHECK_EQ(kvg_slots_available(swa), 64 - 20);
    CHECK_EQ(kvg_engine_insert(engine, row, &key, NULL), KVG_OK);
    CHECK_EQ(info(engine, row).swa_cursor, 15); /* (20 - 1) - max(window, page) */
    CHECK_EQ(kvg_slots_available(swa), 64 - 5);
    CHECK_EQ(kvg_engine_finish(engine, row, &key, NULL), KVG_OK);
    CHECK_EQ(matched(engine, 20), 20);
    done(engine);
}

TEST(swa_eager_eviction_is_a_noop_within_the_window)
{
    struct kvg_engine *engine = make((struct shape){.page_size = 1, .window = 4});
    struct kvg_tree_key key = run(5);
    kvg_row row = start(engine, 5, 5);
    CHECK_EQ(kvg_engine_insert(engine, row, &key, NULL), KVG_OK);
    CHECK_EQ(info(engine, row).swa_cursor, 0);
    CHECK_EQ(kvg_engine_abort(engine, row, NULL), KVG_OK);
    done(engine);
}

TEST(swa_window_under_bigram_key_stays_alive)
{
    struct kvg_engine *engine =
        make((struct shape){.page_size = 4, .window = 7, .eagle = true});
    struct kvg_tree_key key = run(16);
    struct kvg_tree_node node;
    uint64_t live = 0;
    kvg_row row = start(engine, 16, 16);
    CHECK_EQ(kvg_engine_insert(engine, row, &key, NULL), KVG_OK);
    CHECK_EQ(info(engine, row).in_tree, 12); /* 15 pairs, whole pages. */
    for (kvg_node_id id = info(engine, row).node;
         id != kvg_tree_root(kvg_engine_tree(engine)); id = node.parent) {
        CHECK_EQ(kvg_tree_node_get(kvg_engine_tree(engine), id, &node), KVG_OK);
        live += node.value_length[KVG_COMPONENT_SWA][KVG_TIER_DEVICE];
    }
    CHECK(live >= 7);
    CHECK_EQ(matched(engine, 16), 12);
    CHECK_EQ(kvg_engine_finish(engine, row, &key, NULL), KVG_OK);
    done(engine);
}

/* ---- How far an allocation evicts ---------------------------------------------------------- */

TEST(room_for_an_allocation_takes_one_internal_window_and_no_more)
{
    struct mem_store store;
    struct fix fix;
    kvg_node_id nodes[3];
    uint64_t wanted[KVG_COMPONENT_MAX] = {[KVG_COMPONENT_SWA] = 3};
    uint64_t evicted[KVG_COMPONENT_MAX];
    for (int round = 0; round < 4; round++) {
        bool twice = round % 2 != 0;
        mem_store_init(&store);
        lk_fix_init(&fix,
            (struct setup){
                .swa = true, .window = 128, .hits = NO_OFFLOAD, .sessions = round >= 2},
            &store);
        for (size_t i = 0; i < 3; i++)
            nodes[i] = lk_insert(&fix, lk_run_of(1, 2 * (i + 1)));
        if (!twice) /* 58 are free; one more is wanted. */
            CHECK_EQ(kvg_cache_make_room(fix.cache, 0, 59, NULL), KVG_OK);
        else
            CHECK_EQ(kvg_cache_evict(fix.cache, wanted, evicted, NULL), KVG_OK);
        int gone = 0;
        for (size_t i = 0; i < 3; i++)
            gone +=
                lk_get(&fix, nodes[i]).value_length[KVG_COMPONENT_SWA][KVG_TIER_DEVICE] ==
                0;
        CHECK_EQ(gone, twice ? 2 : 1);
        CHECK_EQ(
            lk_get(&fix, nodes[0]).value_length[KVG_COMPONENT_SWA][KVG_TIER_DEVICE], 0);
        CHECK_EQ(kvg_tree_evictable(fix.tree, KVG_COMPONENT_FULL), 6);
        CHECK_EQ(kvg_slots_available(kvg_window_swa(fix.memory.window)), twice ? 62 : 60);
        lk_fix_fini(&fix);
        mem_store_fini(&store);
    }
}

TEST(swa_remapping_rejects_length_mismatch)
{
    struct mem_store store;
    struct fix fix;
    struct kvg_span full_items[4], swa_items[4];
    struct kvg_spans full = {full_items, 0, 4}, swa = {swa_items, 0, 4};
    mem_store_init(&store);
    lk_fix_init(
        &fix, (struct setup){.swa = true, .window = 4, .hits = NO_OFFLOAD}, &store);
    CHECK_EQ(kvg_window_alloc_full(fix.memory.window, 4, &full, NULL), KVG_OK);
    CHECK_EQ(kvg_window_alloc_swa(fix.memory.window, 3, &swa, NULL), KVG_OK);
    CHECK(kvg_window_map(fix.memory.window, full_items, full.count, swa_items, swa.count,
              NULL) != KVG_OK);
    CHECK_EQ(kvg_window_slot(fix.memory.window, full_items[0].offset), KVG_SLOT_NONE);
    CHECK_EQ(kvg_window_release_unmapped(fix.memory.window, swa_items, swa.count, NULL),
        KVG_OK);
    CHECK_EQ(
        kvg_window_release_full(fix.memory.window, full_items, full.count, NULL, NULL),
        KVG_OK);
    lk_fix_fini(&fix);
    mem_store_fini(&store);
}

TEST_MAIN(RUN(cache_finished_req_insert_keeps_prompt_and_answer_as_two_nodes),
    RUN(cache_finished_req_no_insert_returns_every_slot),
    RUN(cache_finished_req_strips_what_the_key_leaves_out),
    RUN(paged_cache_finished_unaligned_tail_freed),
    RUN(cache_unfinished_req_hands_its_slots_to_the_tree_and_keeps_them_locked),
    RUN(swa_eager_eviction_on_unfinished_req_frees_what_no_token_can_see),
    RUN(swa_eager_eviction_is_a_noop_within_the_window),
    RUN(swa_window_under_bigram_key_stays_alive),
    RUN(room_for_an_allocation_takes_one_internal_window_and_no_more),
    RUN(swa_remapping_rejects_length_mismatch))
