/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* What went wrong in the field, in other caches, and must not here: reports about the tree, its
 * windows and EAGLE.  The number is the report's; docs/graft-tests.md says which are elsewhere. */
#include "mem_transport.h"
#include "test.h"
#include "tree_kit.h"

/* ---- Backups ------------------------------------------------------------------------------- */

TEST(b16_a_child_is_not_written_before_its_parent)
{
    struct kit *kit = kit_new((struct kit_setup){.page_size = 2});
    struct kvg_tree_transfer transfers[KVG_COMPONENT_MAX];
    struct kvg_span host = {100, KVG_BUFFER_POOL, 2};
    size_t count;

    kvg_tree_settings(kit->tree)->host_tier = true;
    kvg_tree_settings(kit->tree)->write_through_hits = 1;
    /* The host pool is full: nobody does this backup. */
    CHECK_STR(kit_insert_run(kit, LIST(1, 2), 10), "backup(#2) => prefix 0 last #2");
    /* The child's names the parent first. */
    CHECK_STR(kit_insert(kit, (struct kit_insert){.tokens = LIST(1, 2, 3, 4),
                                  .slots = LIST(10, 11, 12, 13),
                                  .prev = 2}),
        "backup(#2) | backup(#2 #3) => prefix 2 last #3");
    /* A controller that forgets the parent is refused. */
    CHECK_EQ(
        kvg_tree_write_build(kit->tree, kit_node(kit, 3), transfers, &count, &kit->error),
        KVG_OK);
    CHECK_EQ(count, 1);
    transfers[0].spans = &host;
    transfers[0].span_count = 1;
    CHECK_EQ(kvg_tree_write_commit(kit->tree, transfers, count, &kit->error), KVG_ESTATE);
    CHECK(strstr(kit->error.message, "has no host copy") != NULL);
    kit_check(kit);
    CHECK_STR(
        kit_evict(kit, 4, 0, 0), "leaf #3: free_FULL(12 13) | leaf #2: free_FULL(10 11)");
    CHECK_EQ(kit->evicted[KVG_COMPONENT_FULL], 4);
    kit_free(kit);
}

/* ---- Windows ------------------------------------------------------------------------------- */

/* A branch of `count` units, `step` at a time. */
static void grow(struct kit *kit, uint32_t count, uint32_t step)
{
    uint32_t tokens[128], slots[128];
    for (uint32_t i = 0; i < count; i++) {
        tokens[i] = i + 1;
        slots[i] = 1000 + i;
    }
    for (uint32_t end = step; end <= count; end += step)
        kit_insert(
            kit, (struct kit_insert){
                     .tokens = {tokens, end}, .slots = {slots, end}, .prev = end - step});
}

TEST(b31_the_window_before_a_branchs_end_goes_last)
{
    for (uint32_t step = 1; step <= 100; step *= 10) {
        struct kit *kit =
            kit_new((struct kit_setup){.components = FULL | SWA, .window = 4});
        struct kvg_tree_match match;
        uint32_t tokens[100];
        grow(kit, 100, step);
        kit_evict(kit, 0, 1, 0);
        CHECK(kit->evicted[KVG_COMPONENT_SWA] >= 1);
        CHECK_EQ(kit->evicted[KVG_COMPONENT_FULL], 0);
        for (uint32_t i = 0; i < 100; i++)
            tokens[i] = i + 1;
        struct kvg_tree_key key = {.tokens = tokens, .token_count = 100};
        CHECK_EQ(
            kvg_tree_match_prefix(kit->tree, &key, &kit->actions, &match, &kit->error),
            KVG_OK);
        CHECK_EQ(match.device_length, 100);
        kit_free(kit);
    }
}

static struct kvg_engine_options engine_options(uint32_t page, uint32_t window)
{
    struct kvg_engine_options options;
    kvg_engine_options_init(&options);
    options.tree.page_size = page;
    options.tree.window = window;
    if (window != 0)
        options.tree.components |= SWA;
    options.full_slots = options.window_slots = 512;
    options.row_count = 4;
    options.context_tokens = 256;
    return options;
}

static uint32_t *numbers(void)
{
    static uint32_t tokens[256];
    for (uint32_t i = 0; i < 256; i++)
        tokens[i] = i + 1;
    return tokens;
}

static struct kvg_engine *engine_new(const struct kvg_engine_options *options)
{
    struct kvg_engine *engine;
    CHECK_EQ(kvg_engine_new(kvg_alloc_default(), options, &engine, NULL), KVG_OK);
    return engine;
}

static void audit(struct kvg_engine *engine, struct kvg_audit_totals *totals)
{
    struct kvg_error error;
    if (kvg_engine_audit(engine, totals, NULL, &error) != KVG_OK)
        fail_msg("%s: %s", error.field, error.message);
}

static kvg_row begin(struct kvg_engine *engine, kvg_request_id id, size_t tokens,
    struct kvg_engine_match *match)
{
    struct kvg_engine_prompt prompt = {
        .id = id, .key = {.tokens = numbers(), .token_count = tokens}};
    kvg_row row;
    CHECK_EQ(kvg_engine_begin(engine, &prompt, match, &row, NULL), KVG_OK);
    return row;
}

static void extend_to(struct kvg_engine *engine, kvg_row row, uint64_t length)
{
    uint64_t more = length - kvg_rows_length(kvg_engine_rows(engine), row);
    CHECK_EQ(kvg_engine_extend(engine, &row, &more, 1, NULL), KVG_OK);
}

static struct kvg_tree_key key_of(size_t tokens)
{
    return (struct kvg_tree_key){.tokens = numbers(), .token_count = tokens};
}

TEST(b32_a_page_larger_than_the_window_leaves_the_last_leaf_its_window)
{
    struct kvg_engine_options options = engine_options(64, 16);
    struct kvg_engine *engine = engine_new(&options);
    struct kvg_engine_request info;
    struct kvg_engine_match match;
    struct kvg_tree_node leaf;
    struct kvg_audit_totals totals;
    struct kvg_tree_key key = key_of(128);
    kvg_row row = begin(engine, 1, 128, &match);
    extend_to(engine, row, 128);
    CHECK_EQ(kvg_engine_insert(engine, row, &key, NULL), KVG_OK);
    CHECK_EQ(kvg_engine_request_get(engine, row, &info), KVG_OK);
    CHECK(info.swa_cursor <= 64);
    CHECK_EQ(kvg_tree_node_get(kvg_engine_tree(engine), info.node, &leaf), KVG_OK);
    CHECK(leaf.value_length[KVG_COMPONENT_SWA][KVG_TIER_DEVICE] >= 64);
    CHECK_EQ(kvg_engine_finish(engine, row, &key, NULL), KVG_OK);
    row = begin(engine, 2, 128, &match);
    CHECK_EQ(match.device_length, 128);
    CHECK_EQ(kvg_engine_abort(engine, row, NULL), KVG_OK);
    audit(engine, &totals);
    kvg_engine_free(engine);
}

/* ---- EAGLE --------------------------------------------------------------------------------- */

/* The page keys of the leaf that holds nine tokens, eight pairs; and how many nodes there are. */
static uint64_t keys_of_nine(struct kvg_engine *engine, struct kvg_key keys[4])
{
    struct kvg_tree *tree = kvg_engine_tree(engine);
    struct kvg_engine_match match;
    struct kvg_engine_request info;
    struct kvg_tree_stats stats;
    const struct kvg_key *found;
    size_t at = 4;
    kvg_row row = begin(engine, 99, 9, &match);
    CHECK_EQ(match.device_length, 8);
    CHECK_EQ(kvg_engine_request_get(engine, row, &info), KVG_OK);
    for (kvg_node_id id = info.node; id != kvg_tree_root(tree);) {
        struct kvg_tree_node node;
        size_t count = kvg_tree_node_page_keys(tree, id, &found);
        CHECK(count <= at);
        at -= count;
        memcpy(keys + at, found, count * sizeof(*found));
        CHECK_EQ(kvg_tree_node_get(tree, id, &node), KVG_OK);
        id = node.parent;
    }
    CHECK_EQ(at, 0);
    CHECK_EQ(kvg_engine_abort(engine, row, NULL), KVG_OK);
    kvg_tree_stats(tree, &stats);
    return stats.nodes;
}

TEST(b37_every_way_into_the_tree_makes_the_same_pairs)
{
    struct kvg_engine_options options = engine_options(2, 0);
    struct kvg_key keys[3][4];
    struct kvg_engine_match match;
    struct kvg_engine_tick tick;
    struct mem_store store;
    char hex[KVG_KEY_HEX_BYTES];
    options.tree.eagle = true;
    mem_store_init(&store);
    for (int way = 0; way < 3; way++) {
        struct mem_transport *transport = mem_transport_new(&store, 2);
        struct kvg_tree_key key = key_of(9);
        uint64_t restored;
        options.transport = &transport->table;
        struct kvg_engine *engine = engine_new(&options);
        kvg_row row = begin(engine, 1, 9, &match);
        if (way == 0) { /* Finished at once. */
            extend_to(engine, row, 9);
        } else if (way == 1) { /* Loaded. */
            CHECK_EQ(match.load_length, 8);
            CHECK_EQ(kvg_engine_load(engine, row, &restored, NULL), KVG_OK);
            kvg_engine_start_loads(engine);
            mem_complete_loads(transport, true);
            CHECK_EQ(kvg_engine_tick(engine, &tick, NULL), KVG_OK);
            extend_to(engine, row, 9);
        } else { /* Piece by piece. */
            struct kvg_tree_key part = key_of(6);
            extend_to(engine, row, 6);
            CHECK_EQ(kvg_engine_insert(engine, row, &part, NULL), KVG_OK);
            extend_to(engine, row, 9);
        }
        CHECK_EQ(kvg_engine_finish(engine, row, &key, NULL), KVG_OK);
        mem_complete_offloads(transport, true);
        CHECK_EQ(kvg_engine_tick(engine, &tick, NULL), KVG_OK);
        uint64_t nodes = keys_of_nine(engine, keys[way]);
        row = begin(engine, 2, 5, &match); /* Again: half of it known, then all. */
        extend_to(engine, row, 9);
        CHECK_EQ(kvg_engine_finish(engine, row, &key, NULL), KVG_OK);
        CHECK(keys_of_nine(engine, keys[way]) <= nodes + 1); /* The match may split. */
        nodes = keys_of_nine(engine, keys[way]);
        row = begin(engine, 3, 9, &match);
        extend_to(engine, row, 9);
        CHECK_EQ(kvg_engine_finish(engine, row, &key, NULL), KVG_OK);
        CHECK_EQ(keys_of_nine(engine, keys[way]), nodes);
        kvg_engine_free(engine);
        mem_transport_free(transport);
        if (way == 1) /* The third computes all of it. */
            while (store.count != 0)
                mem_store_remove(&store, store.pages[0].component, &store.pages[0].key);
    }
    CHECK_MEM(keys[0], keys[1], sizeof(keys[0]));
    CHECK_MEM(keys[0], keys[2], sizeof(keys[0]));
    kvg_key_to_hex(&keys[0][0], hex);
    CHECK_STR(hex, "ede8ef26a097f0fd889f9f39f6f5af921370630b164c4a4fa28eb716b2df9269");
    mem_store_fini(&store);
}

TEST(b38_slots_beyond_what_was_asked_for_are_less_than_a_page_a_request)
{
    struct kvg_engine_options options = engine_options(16, 0);
    struct kvg_audit_totals totals;
    struct kvg_engine_match match;
    uint64_t asked = 0;
    options.tree.eagle = true;
    struct kvg_engine *engine = engine_new(&options);
    kvg_row rows[4];
    for (uint32_t i = 0; i < 4; i++) {
        uint64_t length = 5 + 20 * i;
        rows[i] = begin(engine, i + 1, 1, &match);
        extend_to(engine, rows[i], length);
        asked += length;
        audit(engine, &totals);
        uint64_t held = totals.claimed_slots[KVG_CLAIM_HELD];
        CHECK(held >= asked && held < asked + 16 * (i + 1));
        CHECK_EQ(totals.claimed_slots[KVG_CLAIM_EVICTABLE], 0);
    }
    for (uint32_t i = 0; i < 4; i++)
        CHECK_EQ(kvg_engine_abort(engine, rows[i], NULL), KVG_OK);
    audit(engine, &totals);
    CHECK_EQ(totals.free_slots, totals.capacity_slots);
    kvg_engine_free(engine);
}

TEST_MAIN(RUN(b16_a_child_is_not_written_before_its_parent),
    RUN(b31_the_window_before_a_branchs_end_goes_last),
    RUN(b32_a_page_larger_than_the_window_leaves_the_last_leaf_its_window),
    RUN(b37_every_way_into_the_tree_makes_the_same_pairs),
    RUN(b38_slots_beyond_what_was_asked_for_are_less_than_a_page_a_request))
