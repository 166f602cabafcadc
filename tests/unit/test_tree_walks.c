/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* Segment locks and resumable inserts: who may release what, and what an insert hands out when it
 * waits, fails or is given up. */
#include "test.h"
#include "tree_kit.h"

static struct kit *new_kit(uint32_t components, uint32_t window)
{
    struct kit *kit =
        kit_new((struct kit_setup){.components = components, .window = window});

    kit->next_host = 1;
    return kit;
}

static uint32_t swa_lock(struct kit *kit, uint64_t number)
{
    return kit_lock_count(kit, number, KVG_COMPONENT_SWA);
}

static void unlock_swa(
    struct kit *kit, uint64_t number, const struct kvg_lock_receipt *receipt)
{
    kit_must(kit, kvg_tree_unlock_swa(kit->tree, kit_node(kit, number), receipt,
                      &kit->actions, &kit->error));
    kvg_actions_clear(&kit->actions);
}

/* ---- Segment locks ------------------------------------------------------------------------- */

/* [1 .. 8] without a window, locked, and the window given to it under the lock. */
static struct kit *rebuilt_under_lock(struct kvg_lock_receipt *receipt)
{
    struct kit *kit = new_kit(FULL | SWA, 8);

    kit_insert(kit, (struct kit_insert){.tokens = LIST(1, 2, 3, 4, 5, 6, 7, 8),
                        .slots = LIST(10, 11, 12, 13, 14, 15, 16, 17),
                        .cursor = 8});
    *receipt = kit_lock(kit, 2, 0);
    CHECK_EQ(receipt->delta, 8);
    CHECK_EQ(swa_lock(kit, 2), 1); /* Counted, though there is nothing to protect. */
    CHECK_EQ(kvg_tree_protected(kit->tree, KVG_COMPONENT_SWA), 0);
    CHECK_STR(kit_insert(kit, (struct kit_insert){.tokens = LIST(1, 2, 3, 4, 5, 6, 7, 8),
                                  .slots = LIST(20, 21, 22, 23, 24, 25, 26, 27),
                                  .tracked = true}),
        "recover_swa(#2: 10 11 12 13 14 15 16 17 / 20 21 22 23 24 25 26 27) | - =>"
        " prefix 8 last #2 SWA[0,8)");
    return kit;
}

TEST(each_holder_of_a_tombstone_rebuilt_under_lock_releases_its_own)
{
    struct kvg_lock_receipt first;
    struct kit *kit = rebuilt_under_lock(&first);

    CHECK_EQ(kvg_tree_protected(kit->tree, KVG_COMPONENT_SWA), 8);
    struct kvg_lock_receipt second = kit_lock(kit, 2, 0);
    CHECK_EQ(swa_lock(kit, 2), 2);
    kit_unlock(kit, 2, &first);
    CHECK_EQ(swa_lock(kit, 2), 1);
    CHECK_EQ(kvg_tree_protected(kit->tree, KVG_COMPONENT_SWA), 8);
    kit_unlock(kit, 2, &second);
    CHECK_EQ(swa_lock(kit, 2), 0);
    CHECK_EQ(kvg_tree_protected(kit->tree, KVG_COMPONENT_SWA), 0);
    CHECK_EQ(kvg_tree_evictable(kit->tree, KVG_COMPONENT_SWA), 8);
    kit_free(kit);
}

TEST(a_release_twice_or_on_another_node_or_without_its_boundary_fails_loudly)
{
    struct kit *kit = new_kit(FULL | SWA, 8);

    kit_insert_run(kit, LIST(1, 2, 3, 4, 5, 6, 7, 8), 10); /* #2 */
    kit_insert(
        kit, (struct kit_insert){.tokens = LIST(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12),
                 .slots = LIST(10, 11, 12, 13, 14, 15, 16, 17, 30, 31, 32, 33),
                 .prev = 8}); /* #3, four units: its segment ends in #2 */
    struct kvg_lock_receipt receipt = kit_lock(kit, 3, 0);
    CHECK(receipt.uuid[KVG_COMPONENT_SWA] != 0);
    CHECK(strstr(kit_unlock_fails(kit, 2, &receipt), "lock receipt anchored on node"));

    /* Without its boundary: the receipt has no entry for it, or another one's. */
    struct kvg_lock_receipt wrong = receipt;
    wrong.uuid_components = 0;
    CHECK(strstr(kit_unlock_fails(kit, 3, &wrong), "no entry found"));
    wrong = receipt;
    wrong.uuid[KVG_COMPONENT_SWA] = receipt.uuid[KVG_COMPONENT_SWA] + 1;
    CHECK(strstr(kit_unlock_fails(kit, 3, &wrong), "boundary is not above node"));

    kit_unlock(kit, 3, &receipt);
    CHECK(strstr(kit_unlock_fails(kit, 3, &receipt), "lock_ref=0"));
    kit_free(kit);
}

TEST(a_segment_that_reached_the_root_needs_no_boundary)
{
    struct kit *kit = new_kit(FULL | SWA, 8);

    kit_insert_run(kit, LIST(1, 2, 3), 10);
    struct kvg_lock_receipt receipt = kit_lock(kit, 2, 0);
    CHECK_EQ(receipt.uuid[KVG_COMPONENT_SWA], 0);
    CHECK(receipt.uuid_components & SWA);
    kit_unlock(kit, 2, &receipt);
    CHECK_EQ(swa_lock(kit, 2), 0);
    kit_free(kit);
}

TEST(after_an_early_release_the_rest_goes_without_the_window_only)
{
    struct kit *kit = new_kit(FULL | SWA, 8);

    kit_insert_run(kit, LIST(1, 2, 3), 10);
    struct kvg_lock_receipt receipt = kit_lock(kit, 2, 0);
    unlock_swa(kit, 2, &receipt);
    CHECK_EQ(swa_lock(kit, 2), 0);
    CHECK_EQ(kit_lock_count(kit, 2, KVG_COMPONENT_FULL), 1);
    CHECK(strstr(kit_unlock_fails(kit, 2, &receipt), "lock_ref=0"));
    CHECK_EQ(kit_lock_count(kit, 2, KVG_COMPONENT_FULL), 1);
    CHECK_EQ(kvg_tree_unlock(kit->tree, kit_node(kit, 2), &receipt, true, &kit->error),
        KVG_OK);
    CHECK_EQ(kit_lock_count(kit, 2, KVG_COMPONENT_FULL), 0);
    kit_free(kit);
}

TEST(a_split_under_lock_stays_balanced)
{
    struct kvg_lock_receipt first;
    struct kit *kit = rebuilt_under_lock(&first);

    kit_match(kit, LIST(1, 2, 3)); /* #3 [1 2 3] above #2. */
    struct kvg_lock_receipt second = kit_lock(kit, 2, 0);
    CHECK_EQ(swa_lock(kit, 3), 2);
    kit_unlock(kit, 2, &second);
    kit_unlock(kit, 2, &first);
    CHECK_EQ(swa_lock(kit, 2) + swa_lock(kit, 3), 0);
    CHECK_EQ(kvg_tree_evictable(kit->tree, KVG_COMPONENT_SWA), 8);
    CHECK_EQ(kvg_tree_evictable(kit->tree, KVG_COMPONENT_FULL), 8);
    kit_free(kit);
}

TEST(hicache_swa_temp_lock_does_not_release_restored_tombstone)
{
    struct kit *kit = new_kit(FULL | SWA | MAMBA, 4);
    struct kvg_span window = {110, KVG_BUFFER_POOL, 2};

    kit_insert(
        kit, (struct kit_insert){
                 .tokens = LIST(1, 2), .slots = LIST(10, 11), .cursor = 2, .mamba = 5});
    struct kvg_lock_receipt one = kit_lock(kit, 2, 0);
    struct kvg_lock_receipt two = kit_lock(kit, 2, 0);
    kit_must(kit, kvg_tree_set_device_value(kit->tree, kit_node(kit, 2),
                      KVG_COMPONENT_SWA, &window, 1, &kit->error));
    struct kvg_lock_receipt three = kit_lock(kit, 2, 0);
    CHECK_EQ(swa_lock(kit, 2), 3);
    kit_unlock(kit, 2, &two);
    CHECK_EQ(swa_lock(kit, 2), 2);
    CHECK_EQ(kvg_tree_protected(kit->tree, KVG_COMPONENT_SWA), 2);
    kit_unlock(kit, 2, &one);
    kit_unlock(kit, 2, &three);
    CHECK_EQ(swa_lock(kit, 2), 0);
    CHECK_EQ(kit_lock_count(kit, 2, KVG_COMPONENT_MAMBA), 0);
    CHECK_EQ(kvg_tree_evictable(kit->tree, KVG_COMPONENT_SWA), 2);
    kit_free(kit);
}

/* ---- Inserts that wait --------------------------------------------------------------------- */

static struct kvg_tree_insert insert_of(
    struct kit_list tokens, struct kvg_span *spans, uint32_t base)
{
    struct kvg_tree_insert insert;

    kvg_tree_insert_init(&insert);
    *spans = (struct kvg_span){base, KVG_BUFFER_POOL, (uint32_t)tokens.count};
    insert.key =
        (struct kvg_tree_key){.tokens = tokens.items, .token_count = tokens.count};
    insert.value = spans;
    insert.value_count = 1;
    return insert;
}

TEST(there_is_one_insert_at_a_time_and_none_to_resume_without_one)
{
    struct kit *kit = new_kit(FULL | SWA, 2);
    struct kvg_tree_inserted out;
    struct kvg_span spans, others;
    struct kvg_tree_insert insert = insert_of(LIST(1, 2), &spans, 10);
    struct kvg_tree_insert other = insert_of(LIST(7), &others, 20);

    CHECK_EQ(
        kvg_tree_insert_resume(kit->tree, &kit->actions, &out, &kit->error), KVG_ESTATE);
    CHECK_STR(kit->error.message, "no in-flight insert");
    kit_must(
        kit, kvg_tree_insert_begin(kit->tree, &insert, &kit->actions, &out, &kit->error));
    CHECK(!out.done);
    CHECK_EQ(kvg_tree_insert_begin(kit->tree, &other, &kit->actions, &out, &kit->error),
        KVG_EBUSY);
    CHECK_STR(kit->error.message, "concurrent insert walks");
    CHECK(kvg_tree_insert_in_flight(kit->tree));
    kit_must(kit, kvg_tree_insert_end(kit->tree, &kit->actions));
    CHECK(!kvg_tree_insert_in_flight(kit->tree));
    kit_must(kit, kvg_tree_insert_end(kit->tree, &kit->actions)); /* Harmless. */
    kvg_actions_clear(&kit->actions);
    /* The tree is of use: the given-up leaf has FULL and no window. */
    CHECK_STR(
        kit_insert_run(kit, LIST(7), 20), "rebuild_swa(#3: 20) | - => prefix 0 last #3");
    kit_free(kit);
}

TEST(frees_that_can_wait_ride_the_final_step)
{
    struct kit *kit = new_kit(FULL, 0);

    kit_insert_run(kit, LIST(1, 2), 10);
    kit_insert(kit, (struct kit_insert){
                        .tokens = LIST(1, 2, 3), .slots = LIST(10, 11, 12), .prev = 2});
    /* Two nodes with duplicates, a split and a leaf: all of it in one step. */
    CHECK_STR(kit_insert_run(kit, LIST(1, 2, 3, 4), 20),
        "free(20 21); free(22) => prefix 3 last #4");
    CHECK_STR(kit_insert_run(kit, LIST(1, 9), 30), "free(30) => prefix 1 last #6");
    kit_free(kit);
}

TEST(an_insert_that_is_given_up_still_frees_its_duplicates)
{
    struct kit *kit = new_kit(FULL, 0);
    struct kvg_tree_inserted out;
    struct kvg_span spans;
    struct kvg_tree_insert insert = insert_of(LIST(1, 2, 3, 4), &spans, 20);

    kvg_tree_settings(kit->tree)->host_tier = true;
    kvg_tree_settings(kit->tree)->write_through_hits = 2;
    kit_insert_run(kit, LIST(1, 2), 10);
    /* The second hit makes a backup due, which must be done before the walk goes on. */
    kit_must(
        kit, kvg_tree_insert_begin(kit->tree, &insert, &kit->actions, &out, &kit->error));
    CHECK(!out.done);
    CHECK_EQ(kvg_tree_insert_taken(kit->tree), 2);
    CHECK_STR((kit_clear(kit), kit_do_actions(kit)), "free(20 21); backup(#2)");
    kit_must(kit, kvg_tree_insert_end(kit->tree, &kit->actions));
    CHECK_EQ(kit->actions.count, 0); /* They were handed out before. */
    CHECK_EQ(kit_get(kit, 2).child_count, 0);
    kit_free(kit);
}

TEST(a_barrier_backup_may_evict_a_host_leaf_deeper_on_the_path)
{
    struct kit *kit = new_kit(FULL, 0);
    struct kvg_tree_inserted out;
    struct kvg_tree_evicted step;
    struct kvg_span spans;
    struct kvg_tree_insert insert = insert_of(LIST(1, 2, 3, 4), &spans, 20);

    kvg_tree_settings(kit->tree)->host_tier = true;
    kvg_tree_settings(kit->tree)->write_through_hits = 2;
    kvg_tree_settings(kit->tree)->write_back = false;
    kit_insert(
        kit, (struct kit_insert){.tokens = LIST(1), .slots = LIST(10), .chunked = true});
    kit_insert(kit, (struct kit_insert){.tokens = LIST(1, 2, 3),
                        .slots = LIST(10, 11, 12),
                        .prev = 1,
                        .chunked = true});
    kit_write(kit, 2);
    kit_write(kit, 3);
    kit_must(kit,
        kvg_tree_demote(kit->tree, kit_node(kit, 3), &kit->actions, &step, &kit->error));
    kvg_actions_clear(&kit->actions);
    /* #4 is new beside them and gets a backup; meanwhile the host leaf #3 goes. */
    kit_insert(
        kit, (struct kit_insert){.tokens = LIST(9), .slots = LIST(30), .chunked = true});
    kit_insert(kit, (struct kit_insert){.tokens = LIST(9), .slots = LIST(30), .prev = 1});
    kit_must(
        kit, kvg_tree_insert_begin(kit->tree, &insert, &kit->actions, &out, &kit->error));
    while (!out.done) {
        kvg_actions_clear(&kit->actions);
        kit_must(kit, kvg_tree_evict_host(kit->tree, KVG_COMPONENT_FULL, 2, &kit->actions,
                          &step, &kit->error));
        kvg_actions_clear(&kit->actions);
        kit_must(
            kit, kvg_tree_insert_resume(kit->tree, &kit->actions, &out, &kit->error));
    }
    kvg_actions_clear(&kit->actions);
    CHECK_STR(kit_match(kit, LIST(1, 2, 3, 4)), "4 at #5 best #5 full 4: 10 21 22 23");
    kit_free(kit);
}

TEST(a_shallower_crossing_is_backed_up_above_a_backed_up_middle)
{
    struct kit *kit = new_kit(FULL, 0);
    struct kvg_tree_settings *settings = kvg_tree_settings(kit->tree);

    settings->external_store = true;
    settings->write_through_hits = UINT64_MAX;
    kit_insert_run(kit, LIST(1), 10);
    kit_insert_run(kit, LIST(1, 2), 20);
    kit_insert_run(kit, LIST(1, 2, 3), 30); /* #2 #3 #4, hits 3 2 1 */
    kit_must(kit, kvg_tree_mark_stored_path(
                      kit->tree, kit_node(kit, 3), kit_node(kit, 2), &kit->error));
    settings->write_through_hits = 2;
    /* #2 crosses and is written alone; #3 is stored; #4 crosses below it: one action. */
    CHECK_STR(kit_insert_run(kit, LIST(1, 2, 3), 40),
        "free(40); backup(#2 #4); free(41); free(42) => prefix 3 last #4");
    kit_free(kit);
}

TEST(a_node_that_is_backed_up_is_not_backed_up_again)
{
    struct kit *kit = new_kit(FULL, 0);

    kvg_tree_settings(kit->tree)->host_tier = true;
    kvg_tree_settings(kit->tree)->write_through_hits = 1;
    CHECK_STR(kit_insert_run(kit, LIST(1, 2), 10), "backup(#2) => prefix 0 last #2");
    kit_write(kit, 2);
    CHECK_STR(kit_insert_run(kit, LIST(1, 2), 20), "free(20 21) => prefix 2 last #2");
    struct kvg_tree_transfer transfers[KVG_COMPONENT_MAX];
    size_t count;
    kit_must(kit, kvg_tree_write_build(
                      kit->tree, kit_node(kit, 2), transfers, &count, &kit->error));
    CHECK_EQ(count, 0);
    kit_free(kit);
}

/* ---- Windows on the way -------------------------------------------------------------------- */

TEST(a_recovered_window_is_older_than_those_behind_it)
{
    struct kit *kit = new_kit(FULL | SWA, 8);

    /* A tombstone of 8 units; its extension of 8 brings windows for both. */
    kit_insert(kit, (struct kit_insert){.tokens = LIST(1, 2, 3, 4, 5, 6, 7, 8),
                        .slots = LIST(10, 11, 12, 13, 14, 15, 16, 17),
                        .cursor = 8});
    CHECK_STR(kit_insert(kit,
                  (struct kit_insert){.tokens = LIST(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11),
                      .slots = LIST(20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30),
                      .tracked = true}),
        "free_full(10 11 12 13 14 15 16 17); rebuild_swa(#2: 20 21 22 23 24 25 26 27) |"
        " rebuild_swa(#3: 28 29 30) | - => prefix 8 last #3 FULL[0,11) SWA[0,11)");
    CHECK_STR(kit_list_text(kit, KVG_COMPONENT_SWA, KVG_TIER_DEVICE), "#3 #2");
    kit_free(kit);
}

TEST(duplicates_below_the_cursor_are_freed_without_peers_and_the_rest_with_them)
{
    struct kit *kit = new_kit(FULL | SWA, 8);

    kit_insert_run(kit, LIST(1, 2, 3, 4), 10);
    CHECK_STR(kit_insert(kit, (struct kit_insert){.tokens = LIST(1, 2, 3, 4),
                                  .slots = LIST(20, 21, 22, 23),
                                  .cursor = 3}),
        "free_full(20 21 22); free(23) => prefix 4 last #2");
    CHECK_STR(kit_insert(kit, (struct kit_insert){.tokens = LIST(1, 2, 3, 4),
                                  .slots = LIST(30, 31, 32, 33),
                                  .prev = 2,
                                  .cursor = 3}),
        "free_full(32); free(33) => prefix 4 last #2");
    kit_free(kit);
}

TEST(swa_leaf_capped_to_window_on_insert)
{
    struct kit *kit = kit_new(
        (struct kit_setup){.components = FULL | SWA, .window = 3, .page_size = 2});

    /* A window of 3 is two pages of 2; a leaf of exactly that is not cut. */
    kit_insert_run(kit, LIST(9, 8, 7, 6), 50);
    CHECK_EQ(kit_get(kit, 2).length, 4);
    kit_insert_run(kit, LIST(1, 2, 3, 4, 5, 6, 7, 8), 10);
    CHECK_EQ(kit_get(kit, 3).value_length[KVG_COMPONENT_SWA][KVG_TIER_DEVICE], 4);
    CHECK_EQ(kit_get(kit, 3).parent, kit_node(kit, 4));
    CHECK(kit_get(kit, 4).parent == kvg_tree_root(kit->tree));
    struct kvg_lock_receipt receipt = kit_lock(kit, 3, 0);
    CHECK_EQ(kvg_tree_protected(kit->tree, KVG_COMPONENT_SWA), 4);
    CHECK_EQ(kvg_tree_protected(kit->tree, KVG_COMPONENT_FULL), 8);
    kit_unlock(kit, 3, &receipt);
    kit_free(kit);
}

TEST(a_match_refreshes_windows_as_far_as_a_window_and_a_page_reach)
{
    struct kit *kit = new_kit(FULL | SWA, 4);
    uint32_t tokens[12], slots[12];

    /* Four nodes of three units, the deepest written first into the list of recency. */
    for (uint32_t i = 0; i < 12; i++) {
        tokens[i] = i + 1;
        slots[i] = 10 + i;
    }
    for (uint32_t n = 3; n <= 12; n += 3)
        kit_insert(kit, (struct kit_insert){
                            .tokens = {tokens, n}, .slots = {slots, n}, .prev = n - 3});
    kit_match(kit, (struct kit_list){tokens, 3});
    kit_match(kit, (struct kit_list){tokens, 6});
    CHECK_STR(kit_list_text(kit, KVG_COMPONENT_SWA, KVG_TIER_DEVICE), "#3 #2 #5 #4");
    /* Five units from the end: the last node and the one above it. */
    kit_match(kit, (struct kit_list){tokens, 12});
    CHECK_STR(kit_list_text(kit, KVG_COMPONENT_SWA, KVG_TIER_DEVICE), "#5 #4 #3 #2");
    /* It stops at the root. */
    kit_match(kit, (struct kit_list){tokens, 3});
    CHECK_STR(kit_list_text(kit, KVG_COMPONENT_SWA, KVG_TIER_DEVICE), "#2 #5 #4 #3");
    kit_free(kit);
}

TEST_MAIN(RUN(each_holder_of_a_tombstone_rebuilt_under_lock_releases_its_own),
    RUN(a_release_twice_or_on_another_node_or_without_its_boundary_fails_loudly),
    RUN(a_segment_that_reached_the_root_needs_no_boundary),
    RUN(after_an_early_release_the_rest_goes_without_the_window_only),
    RUN(a_split_under_lock_stays_balanced),
    RUN(hicache_swa_temp_lock_does_not_release_restored_tombstone),
    RUN(there_is_one_insert_at_a_time_and_none_to_resume_without_one),
    RUN(frees_that_can_wait_ride_the_final_step),
    RUN(an_insert_that_is_given_up_still_frees_its_duplicates),
    RUN(a_barrier_backup_may_evict_a_host_leaf_deeper_on_the_path),
    RUN(a_shallower_crossing_is_backed_up_above_a_backed_up_middle),
    RUN(a_node_that_is_backed_up_is_not_backed_up_again),
    RUN(a_recovered_window_is_older_than_those_behind_it),
    RUN(duplicates_below_the_cursor_are_freed_without_peers_and_the_rest_with_them),
    RUN(swa_leaf_capped_to_window_on_insert),
    RUN(a_match_refreshes_windows_as_far_as_a_window_and_a_page_reach))
