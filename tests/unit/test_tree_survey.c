/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* Reading whole trees: walks, canaries, totals, prefix keys, orders of requests, notes. */
#include "test.h"
#include "tree_kit.h"

#include "base/rng.h"

#include <kvgraft/tree_survey.h>

/* "#NODE position: slot<previous slot<previous ..." a slot; "-" without one before. */
static const char *canary_text(
    struct kit *kit, bool unlocked_only, bool window_resident_only)
{
    struct kvg_tree_canary canary = {
        .unlocked_only = unlocked_only, .window_resident_only = window_resident_only};
    struct kvg_tree_canary_run run;
    size_t bytes = 0;

    kit->text[0] = '\0';
    while (kvg_tree_canary_next(kit->tree, &canary, &run)) {
        uint64_t previous = run.previous.offset;
        for (uint32_t i = 0; i < run.slots.length; i++) {
            int n = snprintf(kit->text + bytes, KIT_TEXT - bytes, "%s%llu@%llu",
                bytes == 0 ? "" : " ", (unsigned long long)(run.slots.offset + i),
                (unsigned long long)(run.position + i));
            bytes += (size_t)n;
            if (i == 0 && !run.has_previous)
                n = snprintf(kit->text + bytes, KIT_TEXT - bytes, "<-");
            else
                n = snprintf(kit->text + bytes, KIT_TEXT - bytes, "<%llu",
                    (unsigned long long)previous);
            bytes += (size_t)n;
            previous = run.slots.offset + i;
        }
    }
    CHECK(!kvg_tree_canary_next(kit->tree, &canary, &run));
    return kit->text;
}

static const char *values_text(struct kit *kit, uint32_t component)
{
    struct kvg_span spans[64];
    size_t bytes = 0;
    size_t count = kvg_tree_all_values(kit->tree, component, KVG_TIER_DEVICE, spans, 64);

    kit->text[0] = '\0';
    for (size_t i = 0; i < count; i++)
        for (uint32_t j = 0; j < spans[i].length; j++)
            bytes += (size_t)snprintf(kit->text + bytes, KIT_TEXT - bytes, "%s%llu",
                bytes == 0 ? "" : " ", (unsigned long long)(spans[i].offset + j));
    return kit->text;
}

TEST(a_canary_sees_each_slot_with_its_position_and_the_slot_before)
{
    struct kit *kit = kit_new((struct kit_setup){0});

    CHECK_STR(canary_text(kit, false, false), "");
    kit_insert_run(kit, LIST(1, 2, 3, 4), 10);
    kit_insert(kit, (struct kit_insert){
                        .tokens = LIST(1, 2, 5), .slots = LIST(10, 11, 30), .prev = 2});
    kit_insert_run(kit, LIST(9), 40);
    /* Nodes: #3 is [1 2], #2 [3 4], #4 [5], #5 [9]. */
    CHECK_STR(
        canary_text(kit, false, false), "10@0<- 11@1<10 12@2<11 13@3<12 30@2<11 40@0<-");
    kit_free(kit);
}

TEST(a_canary_leaves_out_what_is_held_and_counts_it_all_the_same)
{
    struct kit *kit = kit_new((struct kit_setup){0});

    kit_insert_run(kit, LIST(1, 2), 10);
    kit_insert(kit, (struct kit_insert){
                        .tokens = LIST(1, 2, 3), .slots = LIST(10, 11, 12), .prev = 2});
    struct kvg_lock_receipt receipt = kit_lock(kit, 2, 0);
    CHECK_STR(canary_text(kit, false, false), "10@0<- 11@1<10 12@2<11");
    CHECK_STR(canary_text(kit, true, false), "12@2<11");
    CHECK_STR(canary_text(kit, true, true), "12@2<11");
    kit_unlock(kit, 2, &receipt);
    kit_free(kit);
}

TEST(a_canary_of_windows_asks_the_windows_locks)
{
    struct kit *kit = kit_new((struct kit_setup){.components = FULL | SWA, .window = 2});

    kit_insert_run(kit, LIST(1, 2, 3, 4), 10); /* #3 [1 2] above #2 [3 4]. */
    struct kvg_lock_receipt receipt = kit_lock(kit, 2, 0);
    CHECK_STR(canary_text(kit, true, false), "");
    CHECK_STR(canary_text(kit, true, true), "10@0<- 11@1<10");
    kit_unlock(kit, 2, &receipt);
    kit_evict(kit, 0, 2, 0);
    CHECK_STR(canary_text(kit, false, true), "12@2<11 13@3<12");
    CHECK_EQ(kvg_tree_total_full(kit->tree), 4);
    CHECK_EQ(kvg_tree_total_others(kit->tree), 2);
    CHECK_STR(values_text(kit, KVG_COMPONENT_SWA), "112 113");
    CHECK_STR(values_text(kit, KVG_COMPONENT_FULL), "10 11 12 13");
    CHECK_STR(values_text(kit, KVG_COMPONENT_MAMBA), "");
    kit_free(kit);
}

TEST(a_canary_leaves_out_slots_whose_bytes_have_yet_to_come)
{
    struct kit *kit = kit_new((struct kit_setup){0});

    kit_insert_run(kit, LIST(1, 2), 10);
    kit_insert(kit, (struct kit_insert){
                        .tokens = LIST(1, 2, 3), .slots = LIST(10, 11, 12), .prev = 2});
    CHECK_EQ(kvg_tree_load_mark(
                 kit->tree, kit_node(kit, 3), FULL, kit_node(kit, 3), &kit->error),
        KVG_OK);
    CHECK_STR(canary_text(kit, false, false), "10@0<- 11@1<10");
    CHECK_EQ(kvg_tree_load_confirm(kit->tree, kit_node(kit, 3), &kit->error), KVG_OK);
    CHECK_STR(canary_text(kit, false, false), "10@0<- 11@1<10 12@2<11");
    kit_free(kit);
}

TEST(states_are_listed_one_a_node)
{
    struct kit *kit = kit_new((struct kit_setup){.components = FULL | MAMBA});

    kit_insert(kit,
        (struct kit_insert){.tokens = LIST(1, 2), .slots = LIST(10, 11), .mamba = 7});
    kit_insert(kit,
        (struct kit_insert){
            .tokens = LIST(1, 2, 3), .slots = LIST(10, 11, 12), .prev = 2, .mamba = 9});
    CHECK_STR(values_text(kit, KVG_COMPONENT_MAMBA), "7 9");
    CHECK_EQ(kvg_tree_total_full(kit->tree), 3);
    CHECK_EQ(kvg_tree_total_others(kit->tree), 2);
    kit_free(kit);
}

TEST(tokens_are_listed_beside_their_slots)
{
    struct kit *kit = kit_new((struct kit_setup){.eagle = true});
    struct kvg_span spans[2];
    uint32_t tokens[8];

    kit_insert_run(kit, LIST(1, 2, 3, 4), 10); /* Three pairs. */
    kit_insert_run(kit, LIST(7, 8), 20);
    CHECK_EQ(
        kvg_tree_all_values(kit->tree, KVG_COMPONENT_FULL, KVG_TIER_DEVICE, spans, 2), 2);
    CHECK_EQ(spans[0].length + spans[1].length, 4);
    CHECK_EQ(kvg_tree_all_tokens(kit->tree, KVG_TIER_DEVICE, tokens, 8), 4);
    CHECK_MEM(tokens, ((uint32_t[]){1, 2, 3, 7}), 16);
    CHECK_EQ(kvg_tree_all_tokens(kit->tree, KVG_TIER_HOST, tokens, 8), 0);
    tokens[2] = 99;
    CHECK_EQ(kvg_tree_all_tokens(kit->tree, KVG_TIER_DEVICE, tokens, 2), 4);
    CHECK_EQ(tokens[2], 99);
    CHECK_EQ(
        kvg_tree_all_values(kit->tree, KVG_COMPONENT_FULL, KVG_TIER_DEVICE, NULL, 0), 2);
    kit_free(kit);
}

TEST(prefix_keys_are_those_of_the_ancestors_from_the_top)
{
    struct kit *kit = kit_new((struct kit_setup){.page_size = 2});
    struct kvg_key keys[4];
    const struct kvg_key *own;

    kvg_tree_settings(kit->tree)->storage = true;
    kit_insert_run(kit, LIST(1, 2, 3, 4, 5, 6), 10);
    const struct kvg_key *all;
    CHECK_EQ(kvg_tree_node_page_keys(kit->tree, kit_node(kit, 2), &all), 3);
    struct kvg_key chain[3];
    memcpy(chain, all, sizeof(chain));
    CHECK_EQ(kvg_tree_prefix_page_keys(kit->tree, kit_node(kit, 2), keys, 4), 0);
    /* Splits: #3 [1 2], #4 [3 4], #2 [5 6]. */
    kit_match(kit, LIST(1, 2));
    kit_match(kit, LIST(1, 2, 3, 4));
    CHECK_EQ(kvg_tree_prefix_page_keys(kit->tree, kit_node(kit, 2), keys, 4), 2);
    CHECK_MEM(keys, chain, 2 * sizeof(*keys));
    CHECK_EQ(kvg_tree_node_page_keys(kit->tree, kit_node(kit, 2), &own), 1);
    CHECK_MEM(own, &chain[2], sizeof(*own));
    memset(keys, 0, sizeof(keys));
    CHECK_EQ(kvg_tree_prefix_page_keys(kit->tree, kit_node(kit, 2), keys, 1), 2);
    CHECK_MEM(keys, chain, sizeof(*keys));
    CHECK_EQ(keys[1].bytes[0], 0);
    /* The list is the caller's: what it does to it does not stick. */
    CHECK_EQ(kvg_tree_prefix_page_keys(kit->tree, kit_node(kit, 2), keys, 4), 2);
    memset(keys, 0xff, sizeof(keys));
    CHECK_EQ(kvg_tree_prefix_page_keys(kit->tree, kit_node(kit, 2), keys, 4), 2);
    CHECK_MEM(keys, chain, 2 * sizeof(*keys));
    CHECK_EQ(kvg_tree_prefix_page_keys(kit->tree, kvg_tree_root(kit->tree), keys, 4), 0);
    CHECK_EQ(kvg_tree_prefix_page_keys(kit->tree, 12345, keys, 4), 0);
    kit_free(kit);
}

TEST(build_backup_kv_action_orders_ancestors_first)
{
    struct kit *kit = kit_new((struct kit_setup){0});
    struct kvg_tree_settings *settings = kvg_tree_settings(kit->tree);
    kvg_node_id nodes[3] = {0};

    kit_insert_run(kit, LIST(1), 10);
    kit_insert(
        kit, (struct kit_insert){.tokens = LIST(1, 2), .slots = LIST(10, 11), .prev = 1});
    kit_insert(kit, (struct kit_insert){
                        .tokens = LIST(1, 2, 3), .slots = LIST(10, 11, 12), .prev = 2});
    CHECK_EQ(kvg_tree_backup_nodes(kit->tree, kit_node(kit, 4), nodes, 3), 3);
    for (uint64_t i = 0; i < 3; i++)
        CHECK_EQ(nodes[i], kit_node(kit, 2 + i));
    nodes[1] = 0;
    CHECK_EQ(kvg_tree_backup_nodes(kit->tree, kit_node(kit, 4), nodes, 1), 3);
    CHECK_EQ(nodes[1], 0);
    /* A stored ancestor ends it; so does, with the store, one that is being written. */
    CHECK_EQ(kvg_tree_mark_stored_path(
                 kit->tree, kit_node(kit, 2), kvg_tree_root(kit->tree), NULL),
        KVG_OK);
    CHECK_EQ(kvg_tree_backup_nodes(kit->tree, kit_node(kit, 4), nodes, 3), 2);
    CHECK_EQ(kvg_tree_offload_mark(kit->tree, kit_node(kit, 3), NULL), KVG_OK);
    CHECK_EQ(kvg_tree_backup_nodes(kit->tree, kit_node(kit, 4), nodes, 3), 2);
    settings->external_store = true;
    CHECK_EQ(kvg_tree_backup_nodes(kit->tree, kit_node(kit, 4), nodes, 3), 1);
    settings->sparse_retention = true; /* Windows of stored nodes may be wanted too. */
    CHECK_EQ(kvg_tree_backup_nodes(kit->tree, kit_node(kit, 3), nodes, 3), 2);
    settings->write_back = true;
    CHECK_EQ(kvg_tree_backup_nodes(kit->tree, kit_node(kit, 3), nodes, 3), 1);
    CHECK_EQ(nodes[0], kit_node(kit, 3));
    CHECK_EQ(kvg_tree_backup_nodes(kit->tree, kvg_tree_root(kit->tree), nodes, 3), 0);
    CHECK_EQ(kvg_tree_backup_nodes(kit->tree, 77, nodes, 3), 0);
    kit_free(kit);
}

static const char *order_text(struct kit *kit, struct kit_list numbers)
{
    static char text[256];
    kvg_node_id nodes[32] = {0};
    uint32_t order[32];
    size_t bytes = 0;

    for (size_t i = 0; i < numbers.count; i++)
        nodes[i] = kit_node(kit, numbers.items[i]);
    CHECK_EQ(kvg_tree_order_requests(kit->tree, nodes, numbers.count, order, &kit->error),
        KVG_OK);
    text[0] = '\0';
    for (size_t i = 0; i < numbers.count; i++)
        bytes += (size_t)snprintf(
            text + bytes, sizeof(text) - bytes, "%s%u", i == 0 ? "" : " ", order[i]);
    return text;
}

TEST(requests_go_depth_first_the_heavier_subtree_before_the_lighter)
{
    struct kit *kit = kit_new((struct kit_setup){0});

    kit_insert_run(kit, LIST(1), 10);    /* #2 */
    kit_insert_run(kit, LIST(2), 11);    /* #3 */
    kit_insert_run(kit, LIST(1, 5), 12); /* #4 below #2 */
    kit_insert_run(kit, LIST(2, 6), 14); /* #5 below #3 */
    kit_insert_run(kit, LIST(2, 7), 16); /* #6 below #3 */
    /* Equal weights go by insertion. */
    CHECK_STR(order_text(kit, LIST(3, 2)), "1 0");
    /* The heavier first; a node's own after its children's, as they came; the root's last. */
    CHECK_STR(order_text(kit, LIST(1, 2, 3, 6, 3, 5, 6)), "3 6 5 2 4 1 0");
    /* A split takes the place of what it split. */
    kit_insert_run(kit, LIST(3, 1, 2), 20); /* #7 */
    kit_insert_run(kit, LIST(4), 30);       /* #8 */
    kit_match(kit, LIST(3, 1));             /* #9 [3 1] above #7 [2] */
    CHECK_STR(order_text(kit, LIST(8, 9, 7)), "2 1 0");
    CHECK_STR(order_text(kit, LIST(8, 9)), "1 0");
    CHECK_EQ(kvg_tree_order_requests(kit->tree, NULL, 0, NULL, NULL), KVG_OK);
    kvg_node_id unknown = 77;
    uint32_t order;
    CHECK_EQ(
        kvg_tree_order_requests(kit->tree, &unknown, 1, &order, &kit->error), KVG_ENOENT);
    CHECK_EQ(kvg_tree_order_requests(
                 kit->tree, &unknown, KVG_TREE_ORDER_MAX + 1, &order, &kit->error),
        KVG_ELIMIT);
    CHECK_EQ(kit->error.code, KVG_ELIMIT);
    kit_free(kit);
}

/* ---- The order again, by the words of its definition ---------------------------------------- */

#define REQUESTS 40

struct plain {
    struct kvg_tree *tree;
    const kvg_node_id *nodes;
    uint32_t order[REQUESTS], count;
};

static bool below(const struct kvg_tree *tree, kvg_node_id node, kvg_node_id top)
{
    struct kvg_tree_node info = {.parent = node};
    for (; node != KVG_NODE_NONE; node = info.parent) {
        if (node == top)
            return true;
        CHECK_EQ(kvg_tree_node_get(tree, node, &info), KVG_OK);
    }
    return false;
}

static uint32_t weight(const struct plain *plain, kvg_node_id node)
{
    uint32_t sum = 0;
    for (uint32_t i = 0; i < REQUESTS; i++)
        sum += below(plain->tree, plain->nodes[i], node) ? 1 : 0;
    return sum;
}

static void plain_visit(struct plain *plain, kvg_node_id node)
{
    for (uint32_t w = REQUESTS; w > 0; w--) {
        for (kvg_node_id child = kvg_tree_first_child(plain->tree, node);
             child != KVG_NODE_NONE; child = kvg_tree_next_sibling(plain->tree, child)) {
            if (weight(plain, child) == w)
                plain_visit(plain, child);
        }
    }
    for (uint32_t i = 0; i < REQUESTS; i++) {
        if (plain->nodes[i] == node)
            plain->order[plain->count++] = i;
    }
}

/* A tree of short sequences over few tokens, with evictions in between; then requests at random
 * nodes, and walks. */
static void random_program(uint64_t seed)
{
    struct kit *kit = kit_new((struct kit_setup){0});
    struct kvi_rng rng = {seed};
    kvg_node_id all[256];
    kvg_node_id nodes[REQUESTS];
    uint32_t order[REQUESTS];
    uint32_t count = 0;

    for (uint32_t step = 0; step < 40; step++) {
        uint32_t tokens[6];
        uint32_t length = 1 + (uint32_t)kvi_rng_below(&rng, 6);
        for (uint32_t i = 0; i < length; i++)
            tokens[i] = 1 + (uint32_t)kvi_rng_below(&rng, 3);
        kit_insert_run(kit, (struct kit_list){tokens, length}, 10 + step * 8);
        if (kvi_rng_below(&rng, 8) == 0)
            kit_evict(kit, 3, 0, 0);
    }
    for (kvg_node_id id = kvg_tree_walk_next(kit->tree, KVG_NODE_NONE);
         id != KVG_NODE_NONE; id = kvg_tree_walk_next(kit->tree, id)) {
        struct kvg_tree_node info;
        CHECK(count < 256);
        CHECK_EQ(kvg_tree_node_get(kit->tree, id, &info), KVG_OK);
        bool seen = info.parent == KVG_NODE_NONE;
        for (uint32_t i = 0; i < count; i++) {
            CHECK(all[i] != id);
            seen = seen || all[i] == info.parent;
        }
        CHECK(seen);
        all[count++] = id;
    }
    struct kvg_tree_stats stats;
    kvg_tree_stats(kit->tree, &stats);
    CHECK_EQ(stats.nodes, count);
    for (uint32_t i = 0; i < REQUESTS; i++)
        nodes[i] = all[kvi_rng_below(&rng, count)];
    struct plain plain = {.tree = kit->tree, .nodes = nodes};
    plain_visit(&plain, kvg_tree_root(kit->tree));
    CHECK_EQ(plain.count, REQUESTS);
    CHECK_EQ(kvg_tree_order_requests(kit->tree, nodes, REQUESTS, order, NULL), KVG_OK);
    if (memcmp(order, plain.order, sizeof(order)) != 0)
        fail_msg("seed %llu: another order", (unsigned long long)seed);
    kit_free(kit);
}

TEST(random_orders_and_walks_are_those_of_the_definition)
{
    for (uint64_t seed = 1; seed <= 20; seed++)
        random_program(seed);
}

/* ---- Notes --------------------------------------------------------------------------------- */

TEST(a_note_keeps_what_the_node_was_and_asks_what_it_is)
{
    struct kit *kit = kit_new((struct kit_setup){.page_size = 2, .eagle = true});
    struct kvg_tree_note *note;
    struct kvg_tree_note_place place;
    const struct kvg_key *keys;

    kit_insert(kit, (struct kit_insert){.tokens = LIST(1, 2, 3),
                        .slots = LIST(10, 11, 12),
                        .extra_key = "bc",
                        .cache_salt = "a"});
    kit_insert(kit, (struct kit_insert){.tokens = LIST(1, 2, 3, 4, 5, 6, 7),
                        .slots = LIST(10, 11, 12, 13, 14, 15, 16),
                        .prev = 2,
                        .extra_key = "bc",
                        .cache_salt = "a"});
    /* #2 [1 2 3], #3 [3 4 5 6 7]: two and four pairs. */
    CHECK_EQ(kvg_tree_note_new(
                 kit->tree, kit_node(kit, 3), &kit->fault.alloc, &note, &kit->error),
        KVG_OK);
    CHECK_EQ(note->length, 4);
    CHECK_EQ(note->key.token_count, 5);
    CHECK_MEM(note->key.tokens, ((uint32_t[]){3, 4, 5, 6, 7}), 20);
    CHECK(note->key.bigram);
    CHECK_EQ(note->key.space.extra_key.bytes, 2);
    CHECK_MEM(note->key.space.extra_key.data, "bc", 2);
    CHECK_MEM(note->key.space.cache_salt.data, "a", 1);
    CHECK(note->page_keys == NULL);
    CHECK_EQ(kvg_tree_note_check(kit->tree, note, &place, &kit->error), KVG_OK);
    CHECK_EQ(place.parent, kit_node(kit, 2));
    CHECK(!place.parent_is_root);
    CHECK(!place.has_parent_key);

    /* Keys that were made after the note are seen by the check. */
    uint64_t filled;
    CHECK_EQ(kvg_tree_backfill_page_keys(kit->tree, &filled), KVG_OK);
    CHECK_EQ(kvg_tree_note_check(kit->tree, note, &place, &kit->error), KVG_OK);
    CHECK(place.has_parent_key);
    CHECK_EQ(kvg_tree_node_page_keys(kit->tree, kit_node(kit, 2), &keys), 1);
    CHECK_MEM(&place.parent_key, keys, sizeof(*keys));
    CHECK_EQ(note->page_key_count, 0);

    /* A split above it is harmless, a split of it is not; nor is its end. */
    kit_insert(kit, (struct kit_insert){.tokens = LIST(1, 2, 3, 4, 5, 9, 9),
                        .slots = LIST(10, 11, 12, 13, 24, 25, 26),
                        .prev = 4,
                        .extra_key = "bc",
                        .cache_salt = "a"});
    CHECK_EQ(kvg_tree_note_check(kit->tree, note, &place, &kit->error), KVG_ESTATE);
    CHECK_MEM(note->key.tokens, ((uint32_t[]){3, 4, 5, 6, 7}), 20);
    kit_evict(kit, 100, 0, 0);
    CHECK_EQ(kvg_tree_note_check(kit->tree, note, &place, &kit->error), KVG_ENOENT);
    kvg_tree_note_free(note);
    kvg_tree_note_free(NULL);
    CHECK_EQ(kvg_tree_note_new(kit->tree, kvg_tree_root(kit->tree), &kit->fault.alloc,
                 &note, &kit->error),
        KVG_EINVAL);
    CHECK_EQ(kvg_tree_note_new(kit->tree, 5, &kit->fault.alloc, &note, NULL), KVG_ENOENT);
    kit_free(kit);
}

TEST(a_note_at_the_root_has_no_page_before_it_and_carries_keys_that_are_there)
{
    struct kit *kit = kit_new((struct kit_setup){.page_size = 2});
    struct kvg_tree_note *note;
    struct kvg_tree_note_place place;
    const struct kvg_key *keys;

    kvg_tree_settings(kit->tree)->storage = true;
    kit_insert_run(kit, LIST(1, 2, 3, 4), 10);
    CHECK_EQ(kvg_tree_note_new(
                 kit->tree, kit_node(kit, 2), &kit->fault.alloc, &note, &kit->error),
        KVG_OK);
    CHECK_EQ(note->page_key_count, 2);
    CHECK_EQ(kvg_tree_node_page_keys(kit->tree, kit_node(kit, 2), &keys), 2);
    CHECK_MEM(note->page_keys, keys, 2 * sizeof(*keys));
    CHECK(note->key.space.cache_salt.data == NULL);
    CHECK_EQ(kvg_tree_note_check(kit->tree, note, &place, &kit->error), KVG_OK);
    CHECK(place.parent_is_root);
    CHECK(!place.has_parent_key);
    CHECK_EQ(place.parent, kvg_tree_root(kit->tree));
    kvg_tree_note_free(note);
    kit_free(kit);
}

/* ---- Memory -------------------------------------------------------------------------------- */

static bool survey_scenario(const struct kvg_alloc *alloc, void *context)
{
    struct kit *kit = context;
    kvg_node_id nodes[REQUESTS];
    uint32_t order[REQUESTS];
    struct kvg_tree_note *note = NULL;

    for (uint32_t i = 0; i < REQUESTS; i++)
        nodes[i] = kit_node(kit, 2 + i);
    kvg_err err = kvg_tree_order_requests(kit->tree, nodes, REQUESTS, order, &kit->error);
    CHECK(err == KVG_OK || err == KVG_ENOMEM);
    kvg_err noted = kvg_tree_note_new(kit->tree, nodes[0], alloc, &note, &kit->error);
    CHECK(noted == KVG_OK || (noted == KVG_ENOMEM && note == NULL));
    kvg_tree_note_free(note);
    kit_check(kit);
    return err == KVG_OK && noted == KVG_OK;
}

static bool whole_scenario(const struct kvg_alloc *alloc, void *context)
{
    struct kvg_tree_options options;
    struct kvg_tree *tree = NULL;
    kvg_node_id nodes[1];
    uint32_t order[1];

    (void)context;
    kvg_tree_options_init(&options);
    kvg_err err = kvg_tree_new(alloc, &options, &tree, NULL);
    if (err != KVG_OK)
        return false;
    nodes[0] = kvg_tree_root(tree);
    err = kvg_tree_order_requests(tree, nodes, 1, order, NULL);
    CHECK(err == KVG_OK || err == KVG_ENOMEM);
    kvg_tree_free(tree);
    return err == KVG_OK;
}

TEST(surveys_survive_every_failed_allocation)
{
    struct kit *kit = kit_new((struct kit_setup){0});

    for (uint32_t i = 0; i < REQUESTS; i++)
        kit_insert_run(kit, LIST(i + 1, 5), 10 + 2 * i);
    CHECK(for_each_oom(survey_scenario, kit) > 0);
    CHECK(for_each_oom(whole_scenario, NULL) > 2);
    kit_free(kit);
}

TEST_MAIN(RUN(a_canary_sees_each_slot_with_its_position_and_the_slot_before),
    RUN(a_canary_leaves_out_what_is_held_and_counts_it_all_the_same),
    RUN(a_canary_of_windows_asks_the_windows_locks),
    RUN(a_canary_leaves_out_slots_whose_bytes_have_yet_to_come),
    RUN(states_are_listed_one_a_node), RUN(tokens_are_listed_beside_their_slots),
    RUN(prefix_keys_are_those_of_the_ancestors_from_the_top),
    RUN(build_backup_kv_action_orders_ancestors_first),
    RUN(requests_go_depth_first_the_heavier_subtree_before_the_lighter),
    RUN(random_orders_and_walks_are_those_of_the_definition),
    RUN(a_note_keeps_what_the_node_was_and_asks_what_it_is),
    RUN(a_note_at_the_root_has_no_page_before_it_and_carries_keys_that_are_there),
    RUN(surveys_survive_every_failed_allocation))
