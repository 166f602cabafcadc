/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* The behaviour of the tree, worked through step by step: inserts, splits, recovery of windows,
 * locks, pending writes.  Node numbers follow creation: the root is #1. */
#include "test.h"
#include "tree_kit.h"

static struct kit *new_kit(uint32_t page_size, uint32_t components, uint32_t window)
{
    return kit_new((struct kit_setup){
        .page_size = page_size, .components = components, .window = window});
}

static uint64_t evictable(struct kit *kit, uint32_t component)
{
    return kvg_tree_evictable(kit->tree, component);
}

static uint64_t protect(struct kit *kit, uint32_t component)
{
    return kvg_tree_protected(kit->tree, component);
}

static uint64_t pending(struct kit *kit, uint64_t number)
{
    return kit_number(kit_get(kit, number).pending_write);
}

/* What the linker does with a backup: build, lock, mark. */
static struct kvg_lock_receipt offload(struct kit *kit, uint64_t number)
{
    struct kvg_tree_transfer transfers[KVG_COMPONENT_MAX];
    size_t count;

    CHECK_EQ(kvg_tree_offload_build(
                 kit->tree, kit_node(kit, number), transfers, &count, &kit->error),
        KVG_OK);
    CHECK(count >= 1);
    struct kvg_lock_receipt receipt = kit_lock(kit, number, 0);
    CHECK_EQ(
        kvg_tree_offload_mark(kit->tree, kit_node(kit, number), &kit->error), KVG_OK);
    return receipt;
}

static void finish(struct kit *kit, struct kit_list numbers, uint64_t ack, bool success)
{
    kvg_node_id nodes[8];

    for (size_t i = 0; i < numbers.count; i++)
        nodes[i] = kit_node(kit, numbers.items[i]);
    CHECK_EQ(kvg_tree_offload_finish(kit->tree, nodes, numbers.count, kit_node(kit, ack),
                 success, &kit->error),
        KVG_OK);
    kit_check(kit);
}

TEST(a_pending_offload_that_splits_twice_ends_in_three_stored_fragments)
{
    struct kit *kit = new_kit(1, FULL, 0);
    kvg_tree_settings(kit->tree)->external_store = true;
    kvg_tree_settings(kit->tree)->write_through_hits = 1;

    CHECK_STR(kit_insert_run(kit, LIST(1, 2, 3, 4, 5, 6), 10),
        "backup(#2) => prefix 0 last #2");
    struct kvg_lock_receipt receipt = offload(kit, 2);
    CHECK_EQ(kit_get(kit, 2).hits, 1);
    CHECK_EQ(pending(kit, 2), 2);
    CHECK_EQ(evictable(kit, KVG_COMPONENT_FULL), 0);
    CHECK_EQ(protect(kit, KVG_COMPONENT_FULL), 6);
    CHECK(!kit_get(kit, 2).device_leaf);

    CHECK_STR(kit_insert_run(kit, LIST(1, 2), 20),
        "replace(ack #2: #2 -> #3 #2); free(20 21) => prefix 2 last #3");
    CHECK_STR(kit_dump(kit), "#1 root\n"
                             "  #3 [1 2] full 10+2 lock 1 hits 2 pending #2\n"
                             "    #2 [3 4 5 6] full 12+4 lock 1 hits 1 pending #2\n");

    CHECK_STR(kit_insert_run(kit, LIST(1), 30),
        "replace(ack #2: #3 -> #4 #3); free(30) => prefix 1 last #4");
    CHECK_STR(kit_dump(kit), "#1 root\n"
                             "  #4 [1] full 10+1 lock 1 hits 3 pending #2\n"
                             "    #3 [2] full 11+1 lock 1 hits 2 pending #2\n"
                             "      #2 [3 4 5 6] full 12+4 lock 1 hits 1 pending #2\n");
    CHECK_EQ(protect(kit, KVG_COMPONENT_FULL), 6);

    finish(kit, LIST(4, 3, 2), 2, true);
    kit_unlock(kit, 2, &receipt);
    CHECK_EQ(evictable(kit, KVG_COMPONENT_FULL), 6);
    CHECK_STR(kit_dump(kit), "#1 root\n"
                             "  #4 [1] full 10+1 hits 3 stored\n"
                             "    #3 [2] full 11+1 hits 2 stored\n"
                             "      #2 [3 4 5 6] full 12+4 hits 1 stored leaf\n");
    kit_free(kit);
}

TEST(an_overlap_frees_what_the_caller_does_not_hold)
{
    struct kit *kit = new_kit(2, FULL, 0);

    CHECK_STR(
        kit_insert_run(kit, LIST(1, 2, 3, 4, 5, 6, 7, 8), 10), "- => prefix 0 last #2");
    CHECK_STR(kit_insert(kit, (struct kit_insert){.tokens = LIST(1, 2, 3, 4, 9, 10, 11),
                                  .slots = LIST(20, 21, 22, 23, 24, 25, 26),
                                  .prev = 2,
                                  .tracked = true}),
        "free(22 23) => prefix 4 last #4 FULL[4,6)");
    CHECK_STR(kit_dump(kit), "#1 root\n"
                             "  #3 [1 2 3 4] full 10+4 hits 2\n"
                             "    #2 [5 6 7 8] full 14+4 hits 1 leaf\n"
                             "    #4 [9 10] full 24+2 hits 1 leaf\n");
    CHECK_EQ(evictable(kit, KVG_COMPONENT_FULL), 10);

    CHECK_STR(kit_insert(kit, (struct kit_insert){.tokens = LIST(1, 2, 3, 4, 9, 10, 11),
                                  .slots = LIST(20, 21, 22, 23, 24, 25, 26),
                                  .prev = 6,
                                  .tracked = true}),
        "- => prefix 6 last #4");
    CHECK_EQ(kit_get(kit, 3).hits, 3);
    CHECK_EQ(kit_get(kit, 4).hits, 2);
    kit_free(kit);
}

/* M[1,2] -> L[3,4], both published. */
static struct kit *window_of_two(void)
{
    struct kit *kit = new_kit(1, FULL | SWA, 2);

    CHECK_STR(kit_insert(kit, (struct kit_insert){.tokens = LIST(1, 2, 3, 4),
                                  .slots = LIST(10, 11, 12, 13),
                                  .tracked = true}),
        "rebuild_swa(#3: 10 11); rebuild_swa(#2: 12 13) | - => prefix 0 last #2"
        " FULL[0,4) SWA[0,4)");
    return kit;
}

TEST(a_leaf_longer_than_the_window_gives_its_older_part_a_node)
{
    struct kit *kit = window_of_two();

    CHECK_STR(kit_dump(kit), "#1 root\n"
                             "  #3 [1 2] full 10+2 swa 110+2\n"
                             "    #2 [3 4] full 12+2 swa 112+2 hits 1 leaf\n");
    CHECK_STR(kit_list_text(kit, KVG_COMPONENT_SWA, KVG_TIER_DEVICE), "#2 #3");
    CHECK_EQ(evictable(kit, KVG_COMPONENT_FULL), 4);
    CHECK_EQ(evictable(kit, KVG_COMPONENT_SWA), 4);
    kit_free(kit);
}

TEST(a_state_stays_with_the_suffix_and_its_lock_too)
{
    struct kit *kit = new_kit(1, FULL | MAMBA, 0);

    kit_insert(kit, (struct kit_insert){
                        .tokens = LIST(1, 2, 3), .slots = LIST(10, 11, 12), .mamba = 7});
    struct kvg_lock_receipt receipt = kit_lock(kit, 2, 0);
    CHECK_EQ(receipt.delta, 3);
    CHECK_EQ(receipt.uuid_components, 0);
    CHECK_EQ(protect(kit, KVG_COMPONENT_FULL), 3);
    CHECK_EQ(protect(kit, KVG_COMPONENT_MAMBA), 1);

    CHECK_STR(kit_insert(kit,
                  (struct kit_insert){.tokens = LIST(1), .slots = LIST(20), .mamba = 8}),
        "free(20) => prefix 1 last #3");
    CHECK_STR(kit_dump(kit), "#1 root\n"
                             "  #3 [1] full 10+1 mamba 8+1 lock 1/0 hits 2\n"
                             "    #2 [2 3] full 11+2 mamba 7+1 lock 1/1 hits 1\n");
    CHECK_EQ(evictable(kit, KVG_COMPONENT_MAMBA), 1);
    CHECK_EQ(protect(kit, KVG_COMPONENT_MAMBA), 1);
    CHECK_STR(kit_list_text(kit, KVG_COMPONENT_MAMBA, KVG_TIER_DEVICE), "#3 #2");

    CHECK_STR(kit_insert(kit,
                  (struct kit_insert){.tokens = LIST(1), .slots = LIST(21), .mamba = 9}),
        "free(21) => prefix 1 last #3 mamba_exists");

    kit_unlock(kit, 2, &receipt);
    CHECK_EQ(evictable(kit, KVG_COMPONENT_FULL), 3);
    CHECK_EQ(evictable(kit, KVG_COMPONENT_MAMBA), 2);
    char expected[96];
    snprintf(expected, sizeof(expected), "Mamba release hit lock_ref=0 on node %llu",
        (unsigned long long)kit_node(kit, 2));
    CHECK_STR(kit_unlock_fails(kit, 2, &receipt), expected);

    receipt = kit_lock(kit, 2, MAMBA);
    CHECK_EQ(receipt.skipped_components, MAMBA);
    CHECK_EQ(kit_lock_count(kit, 2, KVG_COMPONENT_MAMBA), 0);
    kit_unlock(kit, 2, &receipt);
    receipt = kit_lock(kit, 1, 0);
    kit_unlock(kit, 1, &receipt);
    kit_free(kit);
}

TEST(a_segment_lock_survives_a_split_inside_it)
{
    struct kit *kit = new_kit(1, FULL | SWA, 3);

    CHECK_STR(kit_insert_run(kit, LIST(1, 2, 3), 10),
        "rebuild_swa(#2: 10 11 12) | - => prefix 0 last #2");
    CHECK_STR(kit_insert(kit, (struct kit_insert){.tokens = LIST(1, 2, 3, 4, 5),
                                  .slots = LIST(10, 11, 12, 23, 24),
                                  .prev = 3}),
        "rebuild_swa(#3: 23 24) | - => prefix 3 last #3");
    struct kvg_lock_receipt first = kit_lock(kit, 3, 0);
    CHECK_EQ(first.delta, 5);
    CHECK(first.uuid[KVG_COMPONENT_SWA] != 0);
    CHECK_EQ(protect(kit, KVG_COMPONENT_SWA), 5);

    CHECK_STR(kit_insert_run(kit, LIST(1, 2), 30), "free(30 31) => prefix 2 last #4");
    CHECK_EQ(kit_lock_count(kit, 4, KVG_COMPONENT_SWA), 1);
    CHECK_EQ(kit_lock_count(kit, 2, KVG_COMPONENT_SWA), 1);
    CHECK_EQ(protect(kit, KVG_COMPONENT_SWA), 5);

    struct kvg_lock_receipt second = kit_lock(kit, 3, 0);
    CHECK_EQ(second.delta, 0);
    CHECK(second.uuid[KVG_COMPONENT_SWA] != first.uuid[KVG_COMPONENT_SWA]);
    CHECK_EQ(kit_lock_count(kit, 4, KVG_COMPONENT_FULL), 2);
    CHECK_EQ(kit_lock_count(kit, 3, KVG_COMPONENT_SWA), 2);
    CHECK_EQ(kit_lock_count(kit, 2, KVG_COMPONENT_SWA), 2);
    CHECK_EQ(kit_lock_count(kit, 4, KVG_COMPONENT_SWA), 1);

    kit_unlock(kit, 3, &first);
    CHECK_EQ(kit_lock_count(kit, 3, KVG_COMPONENT_SWA), 1);
    CHECK_EQ(kit_lock_count(kit, 2, KVG_COMPONENT_SWA), 1);
    CHECK_EQ(kit_lock_count(kit, 4, KVG_COMPONENT_SWA), 0);
    CHECK_EQ(protect(kit, KVG_COMPONENT_SWA), 3);
    CHECK_EQ(evictable(kit, KVG_COMPONENT_SWA), 2);

    kit_unlock(kit, 3, &second);
    CHECK_EQ(protect(kit, KVG_COMPONENT_SWA), 0);
    CHECK_EQ(protect(kit, KVG_COMPONENT_FULL), 0);
    CHECK_EQ(evictable(kit, KVG_COMPONENT_SWA), 5);
    CHECK_EQ(evictable(kit, KVG_COMPONENT_FULL), 5);
    CHECK(kit_get(kit, 3).device_leaf);

    char expected[96];
    snprintf(expected, sizeof(expected),
        "SWA segment release hit lock_ref=0 on node %llu",
        (unsigned long long)kit_node(kit, 3));
    CHECK_STR(kit_unlock_fails(kit, 3, &first), expected);
    CHECK_STR(kit_unlock_fails(kit, 3, &second), expected);
    CHECK(strstr(kit_unlock_fails(kit, 2, &first), "lock receipt anchored on node") !=
          NULL);

    /* The window goes early; FULL stays. */
    struct kvg_lock_receipt third = kit_lock(kit, 3, 0);
    CHECK_EQ(kvg_tree_unlock_swa(
                 kit->tree, kit_node(kit, 3), &third, &kit->actions, &kit->error),
        KVG_OK);
    CHECK_EQ(kit->actions.count, 0);
    CHECK_EQ(protect(kit, KVG_COMPONENT_SWA), 0);
    CHECK_EQ(evictable(kit, KVG_COMPONENT_SWA), 5);
    CHECK_EQ(protect(kit, KVG_COMPONENT_FULL), 5);
    CHECK(strstr(kit_unlock_fails(kit, 3, &third), "lock_ref=0") != NULL);
    CHECK_EQ(
        kvg_tree_unlock(kit->tree, kit_node(kit, 3), &third, true, &kit->error), KVG_OK);
    CHECK_EQ(protect(kit, KVG_COMPONENT_FULL), 0);
    kit_free(kit);
}

TEST(a_release_that_fails_half_way_up_takes_everything_back)
{
    struct kit *kit = new_kit(1, FULL, 0);

    kit_insert_run(kit, LIST(1), 10);
    kit_insert(
        kit, (struct kit_insert){.tokens = LIST(1, 2), .slots = LIST(10, 11), .prev = 1});
    struct kvg_lock_receipt parent = kit_lock(kit, 2, 0);
    struct kvg_lock_receipt child = kit_lock(kit, 3, 0);
    /* The parent's holder releases twice: the second time it takes the child holder's count. */
    kit_unlock(kit, 2, &parent);
    CHECK_EQ(kvg_tree_unlock(kit->tree, parent.node, &parent, false, NULL), KVG_OK);
    CHECK_EQ(kit_lock_count(kit, 3, KVG_COMPONENT_FULL), 1);
    CHECK(
        strstr(kit_unlock_fails(kit, 3, &child), "FULL segment release hit lock_ref=0"));
    CHECK_EQ(kit_lock_count(kit, 3, KVG_COMPONENT_FULL), 1);
    CHECK_EQ(kit_lock_count(kit, 2, KVG_COMPONENT_FULL), 0);
    CHECK_EQ(kvg_tree_pin_full(kit->tree, parent.node, NULL), KVG_OK);
    kit_unlock(kit, 3, &child);
    kit_free(kit);
}

TEST(a_cursor_inside_a_tombstone_splits_it)
{
    struct kit *kit = new_kit(1, FULL | SWA, 2);

    CHECK_STR(kit_insert(kit, (struct kit_insert){.tokens = LIST(1, 2, 3, 4),
                                  .slots = LIST(10, 11, 12, 13),
                                  .cursor = 4}),
        "- => prefix 0 last #2");
    CHECK_EQ(kit_get(kit, 2).hits, 1);
    CHECK_EQ(evictable(kit, KVG_COMPONENT_SWA), 0);

    CHECK_STR(kit_insert(kit, (struct kit_insert){.tokens = LIST(1, 2, 3, 4),
                                  .slots = LIST(20, 21, 22, 23),
                                  .cursor = 2,
                                  .tracked = true}),
        "free_full(12 13); rebuild_swa(#2: 22 23); free_full(20 21) | - => prefix 4 last "
        "#2"
        " FULL[2,4) SWA[2,4)");
    CHECK_STR(kit_dump(kit), "#1 root\n"
                             "  #3 [1 2] full 10+2 hits 1\n"
                             "    #2 [3 4] full 22+2 swa 122+2 hits 2 leaf\n");
    CHECK_EQ(evictable(kit, KVG_COMPONENT_FULL), 4);
    CHECK_EQ(evictable(kit, KVG_COMPONENT_SWA), 2);
    kit_free(kit);
}

TEST(a_locked_tombstone_keeps_its_slots_and_takes_the_incoming_window)
{
    struct kit *kit = new_kit(1, FULL | SWA, 2);

    kit_insert(kit,
        (struct kit_insert){.tokens = LIST(1, 2), .slots = LIST(10, 11), .cursor = 2});
    kit_insert(kit, (struct kit_insert){.tokens = LIST(1, 2, 3, 4),
                        .slots = LIST(10, 11, 12, 13),
                        .prev = 2,
                        .cursor = 2});
    struct kvg_lock_receipt receipt = kit_lock(kit, 3, 0);
    CHECK_EQ(receipt.delta, 4);
    CHECK_EQ(kit_lock_count(kit, 2, KVG_COMPONENT_SWA), 0);
    CHECK_STR(kit_insert(kit,
                  (struct kit_insert){
                      .tokens = LIST(1, 2), .slots = LIST(20, 21), .tracked = true}),
        "recover_swa(#2: 10 11 / 20 21) | - => prefix 2 last #2 SWA[0,2)");
    CHECK_EQ(kit->map[10], 120);
    CHECK_EQ(kit->map[20], 0);
    CHECK_EQ(protect(kit, KVG_COMPONENT_FULL), 4);
    CHECK_EQ(protect(kit, KVG_COMPONENT_SWA), 2);
    CHECK_EQ(evictable(kit, KVG_COMPONENT_SWA), 2);
    kit_unlock(kit, 3, &receipt);
    kit_free(kit);
}

TEST(a_failed_offload_is_tried_again_parents_first_in_one_action)
{
    struct kit *kit = new_kit(1, FULL, 0);
    kvg_tree_settings(kit->tree)->external_store = true;
    kvg_tree_settings(kit->tree)->write_through_hits = 1;

    kit_insert_run(kit, LIST(1, 2, 3, 4), 10);
    struct kvg_lock_receipt receipt = offload(kit, 2);
    kit_insert_run(kit, LIST(1, 2), 20);
    finish(kit, LIST(3, 2), 2, false);
    kit_unlock(kit, 2, &receipt);
    CHECK(!kit_get(kit, 2).stored);

    CHECK_STR(kit_insert_run(kit, LIST(1, 2, 3, 4), 30),
        "free(30 31); backup(#3 #2); free(32 33) => prefix 4 last #2");
    struct kvg_lock_receipt parent = offload(kit, 3);
    struct kvg_lock_receipt child = offload(kit, 2);
    CHECK_EQ(kit_get(kit, 3).hits, 3);
    CHECK_EQ(kit_get(kit, 2).hits, 2);
    CHECK_EQ(kit_lock_count(kit, 3, KVG_COMPONENT_FULL), 2);
    finish(kit, LIST(3), 3, true);
    finish(kit, LIST(2), 2, true);
    kit_unlock(kit, 3, &parent);
    kit_unlock(kit, 2, &child);

    CHECK_STR(kit_insert_run(kit, LIST(1, 2, 3, 4), 40),
        "free(40 41); free(42 43) => prefix 4 last #2");
    CHECK_STR(kit_insert(kit, (struct kit_insert){.tokens = LIST(1, 2, 3, 4, 5, 6),
                                  .slots = LIST(10, 11, 12, 13, 50, 51),
                                  .prev = 4}),
        "backup(#4) => prefix 4 last #4");
    kit_free(kit);
}

TEST(a_backup_names_ancestors_first)
{
    struct kit *kit = new_kit(1, FULL, 0);
    kvg_tree_settings(kit->tree)->external_store = true;
    kvg_tree_settings(kit->tree)->sparse_retention = true;

    kit_insert(
        kit, (struct kit_insert){.tokens = LIST(1), .slots = LIST(10), .chunked = true});
    kit_insert(kit,
        (struct kit_insert){
            .tokens = LIST(1, 2), .slots = LIST(10, 11), .prev = 1, .chunked = true});
    CHECK_STR(kit_insert(kit,
                  (struct kit_insert){
                      .tokens = LIST(1, 2, 3), .slots = LIST(10, 11, 12), .prev = 2}),
        "backup(#2 #3 #4) => prefix 2 last #4");
    kit_free(kit);
}

TEST(namespaces_part_at_the_first_page)
{
    struct kit *kit = new_kit(2, FULL, 0);
    kvg_tree_settings(kit->tree)->external_store = true;
    static const struct {
        const char *extra_key, *cache_salt, *first_key;
    } spaces[] = {
        {NULL, NULL, "34fb5c825de7ca4aea6e712f19d439c1da0c92c37b423936c5f618545ca4fa1f"},
        {"a", NULL, "61ff8cc45f935b4640cf3bd73bdf4761a0db8b5f2bd16e2d1732d05a3c339ae7"},
        {NULL, "s", NULL},
        {"a", "s", NULL},
        {"bc", "a", NULL},
        {"c", "ab", NULL},
    };

    for (uint32_t i = 0; i < 6; i++) {
        char expected[64];
        snprintf(expected, sizeof(expected), "- => prefix 0 last #%u", i + 2);
        CHECK_STR(kit_insert(kit, (struct kit_insert){.tokens = LIST(1, 2),
                                      .slots = LIST(10 * (i + 1), 10 * (i + 1) + 1),
                                      .extra_key = spaces[i].extra_key,
                                      .cache_salt = spaces[i].cache_salt}),
            expected);
        const struct kvg_key *keys;
        char hex[KVG_KEY_HEX_BYTES];
        CHECK_EQ(kvg_tree_node_page_keys(kit->tree, kit_node(kit, i + 2), &keys), 1);
        kvg_key_to_hex(keys, hex);
        if (spaces[i].first_key != NULL)
            CHECK_STR(hex, spaces[i].first_key);
    }
    uint64_t expected = 2;
    for (kvg_node_id n = kvg_tree_first_child(kit->tree, kvg_tree_root(kit->tree));
         n != KVG_NODE_NONE; n = kvg_tree_next_sibling(kit->tree, n))
        CHECK_EQ(kit_number(n), expected++);
    CHECK_EQ(expected, 8);
    CHECK_STR(kit_insert(kit,
                  (struct kit_insert){
                      .tokens = LIST(1, 2), .slots = LIST(80, 81), .cache_salt = ""}),
        "free(80 81) => prefix 2 last #2");
    CHECK_STR(kit_insert(kit, (struct kit_insert){.tokens = LIST(1, 2, 3, 4),
                                  .slots = LIST(10, 11, 90, 91),
                                  .prev = 2}),
        "- => prefix 2 last #8");
    const struct kvg_key *keys;
    char hex[KVG_KEY_HEX_BYTES];
    CHECK_EQ(kvg_tree_node_page_keys(kit->tree, kit_node(kit, 8), &keys), 1);
    kvg_key_to_hex(keys, hex);
    CHECK_STR(hex, "c57b445f90651b9a650e516ab2238c965b21af35608a31c303e6d9e407f2915c");
    kit_free(kit);
}

TEST(pairs_of_tokens_make_one_unit_less)
{
    struct kit *kit = kit_new((struct kit_setup){.page_size = 2, .eagle = true});
    kvg_tree_settings(kit->tree)->external_store = true;
    static const char *const expected[] = {
        "ede8ef26a097f0fd889f9f39f6f5af921370630b164c4a4fa28eb716b2df9269",
        "678c5307f2a02a2aaf8edbeb80ebac13663f70e14a4fc8d5d62b77e702841e4b",
        "a7bcab72fe4725d05cd60c3da519aa86443cb67db9b299622d948c78eb69968a",
        "a1775dd320e23308ecc30e923ce9c2189cb5eb414c2879d19211755b0c6a1179"};

    CHECK_STR(kit_insert_run(kit, LIST(1, 2, 3, 4, 5, 6, 7, 8, 9), 10),
        "- => prefix 0 last #2");
    CHECK_EQ(kit_get(kit, 2).length, 8);
    CHECK_STR(kit_match(kit, LIST(1, 2, 3, 4, 5)), "4 at #3 best #3 full 4: 10 11 12 13");
    for (uint32_t half = 0; half < 2; half++) {
        const struct kvg_key *keys;
        CHECK_EQ(kvg_tree_node_page_keys(kit->tree, kit_node(kit, 3 - half), &keys), 2);
        for (uint32_t page = 0; page < 2; page++) {
            char hex[KVG_KEY_HEX_BYTES];
            kvg_key_to_hex(&keys[page], hex);
            CHECK_STR(hex, expected[2 * half + page]);
        }
    }
    CHECK_STR(kit_match(kit, LIST(1, 2, 3, 4, 5, 6, 7, 8, 9)),
        "8 at #2 best #2 full 8: 10 11 12 13 14 15 16 17");
    CHECK_STR(kit_match(kit, LIST(1, 2, 9)), "0 at #1 best #1 full 0");
    CHECK_STR(kit_match(kit, LIST(1)), "0 at #1 best #1 full 0");
    kit_free(kit);
}

TEST(offload_transfers_name_the_pages_and_slots_of_the_node)
{
    struct kit *kit = new_kit(2, FULL, 0);
    struct kvg_tree_transfer transfers[KVG_COMPONENT_MAX];
    const struct kvg_key *keys;
    size_t count;
    kvg_tree_settings(kit->tree)->external_store = true;

    kit_insert_run(kit, LIST(1, 2, 3, 4, 5, 6, 7, 8), 10);
    kvg_node_id node = kit_node(kit, 2);
    CHECK_EQ(
        kvg_tree_offload_build(kit->tree, node, transfers, &count, &kit->error), KVG_OK);
    CHECK_EQ(count, 1);
    CHECK_EQ(transfers[0].component, KVG_COMPONENT_FULL);
    CHECK_EQ(transfers[0].key_count, kvg_tree_node_page_keys(kit->tree, node, &keys));
    CHECK_MEM(transfers[0].keys, keys, 4 * sizeof(*keys));
    CHECK_EQ(transfers[0].span_count, 1);
    CHECK_EQ(transfers[0].spans[0].offset, 10);
    CHECK_EQ(transfers[0].spans[0].length, 8);

    CHECK_EQ(kvg_tree_offload_mark(kit->tree, node, &kit->error), KVG_OK);
    CHECK_EQ(
        kvg_tree_offload_build(kit->tree, node, transfers, &count, &kit->error), KVG_OK);
    CHECK_EQ(count, 0);
    CHECK_EQ(kvg_tree_offload_mark(kit->tree, node, &kit->error), KVG_ESTATE);
    CHECK(strstr(kit->error.message, "invalid external offload state") != NULL);
    CHECK_EQ(kit_get(kit, 2).pending_write, node);
    CHECK(!kit_get(kit, 2).stored);
    CHECK_EQ(
        kvg_tree_offload_finish(kit->tree, &node, 1, node, true, &kit->error), KVG_OK);
    CHECK_EQ(kit_get(kit, 2).pending_write, KVG_NODE_NONE);
    CHECK(kit_get(kit, 2).stored);
    kit_free(kit);
}

TEST(external_state_updates_are_atomic_and_path_scoped)
{
    struct kit *kit = new_kit(1, FULL, 0);
    kvg_tree_settings(kit->tree)->external_store = true;

    kit_insert_run(kit, LIST(1), 10);
    kit_insert_run(kit, LIST(1, 2), 20);
    kit_insert_run(kit, LIST(1, 2, 3, 4), 30);
    kit_insert_run(kit, LIST(9), 40);
    kvg_node_id anchor = kit_node(kit, 2);
    kvg_node_id tail = kit_node(kit, 4);
    kvg_node_id unrelated = kit_node(kit, 5);
    CHECK_EQ(kit_get(kit, 4).parent, kit_node(kit, 3));
    CHECK_EQ(
        kvg_tree_mark_stored_path(kit->tree, tail, unrelated, &kit->error), KVG_EINVAL);
    CHECK(strstr(kit->error.message, "not an ancestor") != NULL);
    CHECK(!kit_get(kit, 3).stored && !kit_get(kit, 4).stored);
    CHECK_EQ(kvg_tree_mark_stored_path(kit->tree, tail, anchor, &kit->error), KVG_OK);
    CHECK(kit_get(kit, 3).stored && kit_get(kit, 4).stored && !kit_get(kit, 2).stored);
    CHECK(!kit_get(kit, 5).stored);
    CHECK_EQ(kvg_tree_offload_mark(kit->tree, tail, &kit->error), KVG_ESTATE);

    kit_insert_run(kit, LIST(9, 10, 11), 50);
    CHECK_EQ(kvg_tree_offload_mark(kit->tree, kit_node(kit, 6), &kit->error), KVG_OK);
    kit_insert_run(kit, LIST(9, 10), 60);
    CHECK_EQ(kit_get(kit, 6).parent, kit_node(kit, 7));
    CHECK_EQ(kit_get(kit, 7).parent, unrelated);
    CHECK_EQ(pending(kit, 6), 6);
    CHECK_EQ(pending(kit, 7), 6);

    kit_insert_run(kit, LIST(20), 70);
    kvg_node_id independent = kit_node(kit, 8);
    CHECK_EQ(kvg_tree_offload_mark(kit->tree, independent, &kit->error), KVG_OK);
    kvg_node_id mixed[] = {independent, kit_node(kit, 7)};
    CHECK_EQ(
        kvg_tree_offload_finish(kit->tree, mixed, 2, independent, false, &kit->error),
        KVG_ESTATE);
    CHECK(strstr(kit->error.message, "invalid external offload state") != NULL);
    CHECK_EQ(pending(kit, 8), 8);
    CHECK_EQ(pending(kit, 7), 6);
    finish(kit, LIST(8), 8, false);
    finish(kit, LIST(7, 6), 6, false);
    CHECK_EQ(pending(kit, 6), 0);
    CHECK(!kit_get(kit, 6).stored && !kit_get(kit, 7).stored);
    CHECK(kit_get(kit, 3).stored && kit_get(kit, 4).stored);
    kit_free(kit);
}

TEST(a_failed_offload_does_not_take_back_what_a_load_confirmed)
{
    struct kit *kit = new_kit(1, FULL, 0);
    kvg_tree_settings(kit->tree)->external_store = true;

    kit_insert_run(kit, LIST(1), 10);
    kit_insert_run(kit, LIST(1, 2), 20);
    CHECK_EQ(kvg_tree_offload_mark(kit->tree, kit_node(kit, 3), &kit->error), KVG_OK);
    CHECK_EQ(kvg_tree_mark_stored_path(
                 kit->tree, kit_node(kit, 3), kit_node(kit, 2), &kit->error),
        KVG_OK);
    CHECK_EQ(pending(kit, 3), 3);
    CHECK(kit_get(kit, 3).stored);
    finish(kit, LIST(3), 3, false);
    CHECK_EQ(pending(kit, 3), 0);
    CHECK(kit_get(kit, 3).stored);
    kit_free(kit);
}

TEST_MAIN(RUN(a_pending_offload_that_splits_twice_ends_in_three_stored_fragments),
    RUN(an_overlap_frees_what_the_caller_does_not_hold),
    RUN(a_leaf_longer_than_the_window_gives_its_older_part_a_node),
    RUN(a_state_stays_with_the_suffix_and_its_lock_too),
    RUN(a_segment_lock_survives_a_split_inside_it),
    RUN(a_release_that_fails_half_way_up_takes_everything_back),
    RUN(a_cursor_inside_a_tombstone_splits_it),
    RUN(a_locked_tombstone_keeps_its_slots_and_takes_the_incoming_window),
    RUN(a_failed_offload_is_tried_again_parents_first_in_one_action),
    RUN(a_backup_names_ancestors_first), RUN(namespaces_part_at_the_first_page),
    RUN(pairs_of_tokens_make_one_unit_less),
    RUN(offload_transfers_name_the_pages_and_slots_of_the_node),
    RUN(external_state_updates_are_atomic_and_path_scoped),
    RUN(a_failed_offload_does_not_take_back_what_a_load_confirmed))
