/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* The host tier: writing, demotion, loading back, prefetched tails, host locks, host eviction. */
#include "test.h"
#include "tree_kit.h"

static struct kit *new_kit(uint32_t components, uint32_t window)
{
    return kit_new_tiers(
        (struct kit_setup){.components = components, .window = window, .events = true});
}

static const char *demote(struct kit *kit, uint64_t number)
{
    struct kvg_tree_evicted out;

    kit_must(kit, kvg_tree_demote(kit->tree, kit_node(kit, number), &kit->actions, &out,
                      &kit->error));
    kit_clear(kit);
    return kit_do_actions(kit);
}

/* Loads a node back to slots from `base` on; how many transfers that took. */
static size_t load_back(struct kit *kit, uint64_t number, uint32_t base)
{
    struct kvg_tree_transfer transfers[KVG_COMPONENT_MAX];
    struct kvg_span spans[KVG_COMPONENT_MAX];
    kvg_node_id node = kit_node(kit, number);
    size_t count;

    kit_must(kit, kvg_tree_load_build(kit->tree, node, transfers, &count, &kit->error));
    kit_give_slots(transfers, count, spans, &base);
    kit_must(kit, kvg_tree_load_commit(
                      kit->tree, node, transfers, count, &kit->actions, &kit->error));
    kit_must(kit, kvg_tree_load_finish(kit->tree, node, &kit->error));
    return count;
}

TEST(a_demoted_node_stays_on_host_and_an_insert_brings_it_back)
{
    struct kit *kit = new_kit(FULL, 0);

    kit_insert_run(kit, LIST(1, 2), 10);
    CHECK_EQ(kit_backup(kit, 2), 1);
    CHECK_STR(demote(kit, 2), "free_FULL(10 11)");
    CHECK_STR(kit_dump(kit), "#1 root\n"
                             "  #2 [1 2] full host 100+2 hits 1 host-leaf\n");
    CHECK_EQ(kvg_tree_evictable(kit->tree, KVG_COMPONENT_FULL), 0);
    CHECK_STR(kit_match(kit, LIST(1, 2)), "0 at #1 best #2 full 2 host 2");
    kvg_tree_events_take(kit->tree);

    CHECK_STR(kit_insert(kit, (struct kit_insert){.tokens = LIST(1, 2, 3),
                                  .slots = LIST(20, 21, 22),
                                  .prev = 1,
                                  .tracked = true}),
        "- => prefix 2 last #3 FULL[0,3)");
    CHECK_STR(kit_dump(kit), "#1 root\n"
                             "  #2 [1 2] full 20+2 full host 100+2 hits 2\n"
                             "    #3 [3] full 22+1 hits 1 leaf\n");
    CHECK_EQ(kvg_tree_evictable(kit->tree, KVG_COMPONENT_FULL), 3);
    struct kvg_tree_event event;
    CHECK_EQ(kvg_tree_events_take(kit->tree), 1);
    CHECK(kvg_tree_event_get(kit->tree, 0, &event));
    CHECK_EQ(event.kind, KVG_TREE_STORED);
    CHECK_EQ(event.hash_count, 3);
    CHECK(!event.has_parent);
    kit_free(kit);
}

TEST(a_value_that_returns_under_a_lock_is_protected)
{
    struct kit *kit = new_kit(FULL, 0);

    kit_insert_run(kit, LIST(1, 2), 10);
    kit_backup(kit, 2);
    demote(kit, 2);
    struct kvg_lock_receipt receipt = kit_lock(kit, 2, 0);
    CHECK_EQ(receipt.delta, 0);
    kit_insert_run(kit, LIST(1, 2), 20);
    CHECK_EQ(kvg_tree_protected(kit->tree, KVG_COMPONENT_FULL), 2);
    kit_unlock(kit, 2, &receipt);
    CHECK_EQ(kvg_tree_evictable(kit->tree, KVG_COMPONENT_FULL), 2);
    kit_free(kit);
}

TEST(a_node_without_a_window_gets_it_on_return_and_an_increment_is_due)
{
    struct kit *kit = new_kit(FULL | SWA, 2);

    kit_insert(kit,
        (struct kit_insert){.tokens = LIST(1, 2), .slots = LIST(10, 11), .cursor = 2});
    CHECK_EQ(kit_backup(kit, 2), 1);
    demote(kit, 2);
    CHECK_STR(kit_insert(kit,
                  (struct kit_insert){
                      .tokens = LIST(1, 2), .slots = LIST(20, 21), .tracked = true}),
        "rebuild_swa(#2: 20 21) | backup(#2) => prefix 2 last #2 FULL[0,2) SWA[0,2)");
    CHECK_EQ(kit_backup(kit, 2), 1);
    kit_free(kit);
}

TEST(every_component_goes_to_host_and_comes_back)
{
    struct kit *kit = new_kit(FULL | SWA | MAMBA, 4);

    kit_insert(kit,
        (struct kit_insert){.tokens = LIST(1, 2), .slots = LIST(10, 11), .mamba = 1});
    kit_insert(kit,
        (struct kit_insert){
            .tokens = LIST(1, 2, 3), .slots = LIST(10, 11, 12), .prev = 2, .mamba = 2});
    CHECK_EQ(kit_backup(kit, 2), 3);
    CHECK_EQ(kit_backup(kit, 3), 3);
    CHECK_STR(demote(kit, 3), "free_FULL(12); free_SWA(12); free_MAMBA(2)");
    CHECK_STR(kit_list_text(kit, KVG_COMPONENT_SWA, KVG_TIER_HOST), "#3");
    CHECK_STR(demote(kit, 2), "free_FULL(10 11); free_SWA(10 11); free_MAMBA(1)");
    CHECK_STR(kit_match(kit, LIST(1, 2, 3)),
        "0 at #1 best #3 full 3 host 3 swa_host 3 mamba_host 1");
    CHECK_EQ(load_back(kit, 3, 500), 3);
    CHECK_EQ(kit->actions.count, 1);
    CHECK_EQ(kit->actions.items[0].kind, KVG_ACTION_REBUILD_MAPPING);
    kit_clear(kit);
    CHECK_STR(kit_do_actions(kit), "map(500 501 502 / 503 504 505)");
    CHECK_STR(kit_match(kit, LIST(1, 2, 3)), "3 at #3 best #3 full 3: 500 501 502");
    CHECK_EQ(kit_get(kit, 2).value_length[KVG_COMPONENT_MAMBA][KVG_TIER_DEVICE], 0);
    kit_free(kit);
}

TEST(another_load_of_the_same_nodes_is_empty)
{
    struct kit *kit = new_kit(FULL, 0);
    struct kvg_tree_transfer transfers[KVG_COMPONENT_MAX];
    struct kvg_span spans[KVG_COMPONENT_MAX];
    uint32_t base = 500;
    size_t count;

    kvg_tree_settings(kit->tree)->write_back = true;
    kit_insert_run(kit, LIST(1), 10);
    kit_insert(
        kit, (struct kit_insert){.tokens = LIST(1, 2), .slots = LIST(10, 11), .prev = 1});
    kit_backup(kit, 2);
    kit_backup(kit, 3);
    demote(kit, 3);
    demote(kit, 2);
    kit_must(kit,
        kvg_tree_load_build(kit->tree, kit_node(kit, 2), transfers, &count, &kit->error));
    kit_give_slots(transfers, count, spans, &base);
    kit_must(kit, kvg_tree_load_commit(kit->tree, kit_node(kit, 2), transfers, count,
                      &kit->actions, &kit->error));
    CHECK_EQ(kit_get(kit, 2).pending_load, kit_node(kit, 2));
    kit_must(kit,
        kvg_tree_load_build(kit->tree, kit_node(kit, 3), transfers, &count, &kit->error));
    CHECK_EQ(count, 1);
    CHECK_EQ(transfers[0].node_count, 1);
    kit_must(kit, kvg_tree_load_finish(kit->tree, kit_node(kit, 2), &kit->error));
    CHECK_EQ(kit_get(kit, 2).pending_load, KVG_NODE_NONE);
    kit_free(kit);
}

TEST(a_host_leaf_goes_and_leaves_its_parent_a_host_leaf)
{
    struct kit *kit = new_kit(FULL, 0);
    struct kvg_tree_evicted out;

    kit_insert_run(kit, LIST(1, 2), 10);
    kit_insert(
        kit, (struct kit_insert){
                 .tokens = LIST(1, 2, 3, 4), .slots = LIST(10, 11, 12, 13), .prev = 2});
    kit_backup(kit, 2);
    kit_backup(kit, 3);
    demote(kit, 3);
    demote(kit, 2);
    kit_must(kit, kvg_tree_evict_host(kit->tree, KVG_COMPONENT_FULL, 1, &kit->actions,
                      &out, &kit->error));
    kit_clear(kit);
    CHECK_STR(kit_do_actions(kit), "free_host_FULL(102 103)");
    CHECK_EQ(out.evicted[KVG_COMPONENT_FULL], 2);
    CHECK_STR(kit_dump(kit), "#1 root\n"
                             "  #2 [1 2] full host 100+2 hits 2 host-leaf\n");
    kit_free(kit);
}

TEST(write_back_reclaims_duplicates_before_it_deletes)
{
    struct kit *kit = new_kit(FULL, 0);
    struct kvg_tree_evicted out;

    kvg_tree_settings(kit->tree)->write_back = true;
    kit_insert_run(kit, LIST(1, 2), 10);
    kit_insert_run(kit, LIST(5, 6), 20);
    kit_insert(kit, (struct kit_insert){
                        .tokens = LIST(1, 2, 3), .slots = LIST(10, 11, 12), .prev = 2});
    kit_backup(kit, 3);
    kit_backup(kit, 2);
    uint64_t before = kvg_tree_reclaim_digest(kit->tree);
    /* #3 is a device leaf and spared in the first pass; #2 is internal. */
    kit_must(kit, kvg_tree_evict_host(kit->tree, KVG_COMPONENT_FULL, 1, &kit->actions,
                      &out, &kit->error));
    kit_clear(kit);
    CHECK_STR(kit_do_actions(kit), "free_host_FULL(102 103)");
    CHECK(kvg_tree_reclaim_digest(kit->tree) != before);
    CHECK_STR(kit_match(kit, LIST(1, 2)), "2 at #2 best #2 full 2: 10 11");
    kit_free(kit);
}

TEST(a_prefetched_tail_hangs_below_a_backed_up_parent_only)
{
    struct kit *kit = new_kit(FULL, 0);
    struct kvg_span slots = {300, KVG_BUFFER_POOL, 4};
    uint32_t tokens[] = {1, 2, 3, 4};
    struct kvg_tree_host_insert insert = {.struct_bytes = sizeof(insert),
        .anchor = kvg_tree_root(kit->tree),
        .key = {.tokens = tokens, .token_count = 4},
        .value = &slots,
        .value_count = 1};
    struct kvg_tree_host_inserted out;

    /* A device-only node has come in between. */
    kit_insert_run(kit, LIST(1, 2), 10);
    kvg_tree_events_take(kit->tree);
    kit_must(
        kit, kvg_tree_insert_host(kit->tree, &insert, &kit->actions, &out, &kit->error));
    CHECK(out.dropped);
    CHECK_EQ(out.prefix_length, 2);
    CHECK_EQ(kit_get(kit, 2).child_count, 0);

    kit_backup(kit, 2);
    kit_must(
        kit, kvg_tree_insert_host(kit->tree, &insert, &kit->actions, &out, &kit->error));
    CHECK(!out.dropped);
    CHECK_EQ(out.prefix_length, 2);
    CHECK_EQ(out.total_length, 4);
    CHECK_STR(kit_dump(kit), "#1 root\n"
                             "  #2 [1 2] full 10+2 full host 100+2 hits 1 leaf\n"
                             "    #3 [3 4] full host 302+2 host-leaf\n");
    struct kvg_tree_event event;
    CHECK_EQ(kvg_tree_events_take(kit->tree), 1);
    CHECK(kvg_tree_event_get(kit->tree, 0, &event));
    CHECK_EQ(event.medium, KVG_MEDIUM_CPU);
    CHECK_EQ(event.hash_count, 4);

    /* All there: nothing is added. */
    kit_must(
        kit, kvg_tree_insert_host(kit->tree, &insert, &kit->actions, &out, &kit->error));
    CHECK_EQ(out.prefix_length, 4);
    CHECK_EQ(out.node, kit_node(kit, 3));
    CHECK_STR(kit_match(kit, LIST(1, 2, 3, 4)), "2 at #2 best #3 full 4 host 2: 10 11");
    CHECK_EQ(load_back(kit, 3, 500), 1);
    CHECK_STR(kit_match(kit, LIST(1, 2, 3, 4)), "4 at #3 best #3 full 4: 10 11 500 501");
    kit_free(kit);
}

TEST(a_host_lock_survives_a_split)
{
    struct kit *kit = new_kit(FULL | SWA, 4);
    struct kvg_lock_receipt receipt;

    kit_insert_run(kit, LIST(1, 2, 3, 4), 10);
    kit_backup(kit, 2);
    kvg_node_id node = kit_node(kit, 2);
    kit_must(kit, kvg_tree_lock_host(kit->tree, node, &receipt, &kit->error));
    kit_match(kit, LIST(1, 2));
    CHECK_EQ(kit_get(kit, 3).lock_count[KVG_COMPONENT_FULL][KVG_TIER_HOST], 1);
    CHECK_EQ(kit_get(kit, 3).lock_count[KVG_COMPONENT_SWA][KVG_TIER_HOST], 1);
    kit_must(kit, kvg_tree_unlock_host(kit->tree, node, &receipt, &kit->error));
    for (uint64_t number = 2; number <= 3; number++) {
        CHECK_EQ(kit_get(kit, number).lock_count[KVG_COMPONENT_FULL][KVG_TIER_HOST], 0);
        CHECK_EQ(kit_get(kit, number).lock_count[KVG_COMPONENT_SWA][KVG_TIER_HOST], 0);
    }
    CHECK_EQ(kvg_tree_unlock_host(kit->tree, node, &receipt, &kit->error), KVG_ESTATE);
    CHECK(strstr(kit->error.message, "host_lock_ref=0") != NULL);
    kit_free(kit);
}

TEST(pages_of_a_locked_prefix_are_not_reclaimed_while_a_write_reads_them)
{
    /* Host pool of four pages; a write holds them, the node splits, room is asked for. */
    struct kit *kit = new_kit(FULL, 0);
    struct kvg_lock_receipt receipt;
    struct kvg_tree_evicted out;

    kit_insert_run(kit, LIST(1, 2, 3, 4), 10);
    kit_backup(kit, 2);
    demote(kit, 2);
    kit_must(kit, kvg_tree_lock_host(kit->tree, kit_node(kit, 2), &receipt, &kit->error));
    kit_match(kit, LIST(1, 2));
    kit_must(kit, kvg_tree_evict_host(kit->tree, KVG_COMPONENT_FULL, 2, &kit->actions,
                      &out, &kit->error));
    CHECK_EQ(out.evicted[KVG_COMPONENT_FULL], 0);
    kit_must(
        kit, kvg_tree_unlock_host(kit->tree, kit_node(kit, 2), &receipt, &kit->error));
    kit_must(kit, kvg_tree_evict_host(kit->tree, KVG_COMPONENT_FULL, 4, &kit->actions,
                      &out, &kit->error));
    CHECK_EQ(out.evicted[KVG_COMPONENT_FULL], 4);
    CHECK_STR(kit_dump(kit), "#1 root\n");
    kvg_actions_clear(&kit->actions);
    kit_free(kit);
}

TEST(the_fragments_of_a_split_write_are_published_once_each)
{
    struct kit *kit = kit_new((struct kit_setup){.page_size = 2, .events = true});
    struct kvg_tree_transfer transfers[KVG_COMPONENT_MAX];
    struct kvg_span spans[KVG_COMPONENT_MAX];
    struct kvg_tree_event event;
    size_t count;

    kvg_tree_settings(kit->tree)->host_tier = true;
    kvg_tree_settings(kit->tree)->write_through_hits = UINT64_MAX;
    kit->next_host = 100;
    kit_insert_run(kit, LIST(1, 2, 3, 4, 5, 6, 7, 8), 10);
    kvg_node_id node = kit_node(kit, 2);
    kit_must(kit, kvg_tree_write_build(kit->tree, node, transfers, &count, &kit->error));
    kit_give_slots(transfers, count, spans, &kit->next_host);
    kit_must(kit, kvg_tree_write_commit(kit->tree, transfers, count, &kit->error));
    kit_must(kit, kvg_tree_write_mark(kit->tree, &node, 1, node, &kit->error));
    CHECK_STR(kit_match(kit, LIST(1, 2, 3, 4)),
        "replace(ack #2: #2 -> #3 #2) 4 at #3 best #3 full 4: 10 11 12 13");
    kvg_tree_events_take(kit->tree);
    kvg_node_id fragments[] = {kit_node(kit, 3), node};
    kit_must(kit, kvg_tree_write_finish(kit->tree, fragments, 2, node, &kit->error));
    CHECK_EQ(kvg_tree_events_take(kit->tree), 1);
    CHECK(kvg_tree_event_get(kit->tree, 0, &event));
    CHECK_EQ(event.medium, KVG_MEDIUM_CPU);
    CHECK_EQ(event.hash_count, 4);
    CHECK(!event.has_parent);
    kvg_node_id foreign = kit_node(kit, 3);
    kit_must(kit, kvg_tree_write_mark(kit->tree, &foreign, 1, node, &kit->error));
    CHECK_EQ(
        kvg_tree_write_mark(kit->tree, &foreign, 1, foreign, &kit->error), KVG_ESTATE);
    CHECK(strstr(kit->error.message,
              "is already pending under a different write-through ack") != NULL);
    kit_must(kit, kvg_tree_write_finish(kit->tree, &foreign, 1, node, &kit->error));
    kit_free(kit);
}

TEST(an_unbacked_leaf_waits_for_its_backup_under_write_back)
{
    struct kit *kit = new_kit(FULL, 0);
    struct kvg_tree_evicted out;

    kvg_tree_settings(kit->tree)->write_back = true;
    kit_insert_run(kit, LIST(1, 2), 10);
    kit_must(kit, kvg_tree_evict_leaf(kit->tree, kit_node(kit, 2), true, &kit->actions,
                      &out, &kit->error));
    CHECK(out.backup_wanted);
    CHECK_EQ(kit->actions.count, 0);
    CHECK_EQ(
        kvg_tree_demote(kit->tree, kit_node(kit, 2), &kit->actions, &out, &kit->error),
        KVG_ESTATE);
    kit_must(kit, kvg_tree_drop_subtree(
                      kit->tree, kit_node(kit, 2), &kit->actions, &out, &kit->error));
    CHECK(out.dropped);
    kit_clear(kit);
    CHECK_STR(kit_do_actions(kit), "free_FULL(10 11)");
    kit_free(kit);
}

TEST(an_internal_state_is_written_before_it_goes_under_write_back)
{
    struct kit *kit = new_kit(FULL | MAMBA, 0);
    struct kvg_tree_evicted out;

    kvg_tree_settings(kit->tree)->write_back = true;
    kit_insert(
        kit, (struct kit_insert){.tokens = LIST(1), .slots = LIST(10), .mamba = 1});
    kit_insert(
        kit, (struct kit_insert){
                 .tokens = LIST(1, 2), .slots = LIST(10, 11), .prev = 1, .mamba = 2});
    kit_must(kit, kvg_tree_evict_start(kit->tree, KVG_COMPONENT_MAMBA, 1, &kit->error));
    kit_must(kit, kvg_tree_evict_next(kit->tree, KVG_COMPONENT_MAMBA, 0, &kit->actions,
                      &out, &kit->error));
    CHECK_EQ(out.backup_node, kit_node(kit, 2));
    CHECK_EQ(out.backup_units, 1);
    CHECK_EQ(kvg_tree_evict_next(
                 kit->tree, KVG_COMPONENT_MAMBA, 0, &kit->actions, &out, &kit->error),
        KVG_ESTATE);
    CHECK_STR(kit->error.message,
        "finish the pending internal MAMBA eviction before advancing");
    kit_backup(kit, 2);
    kit_must(kit, kvg_tree_evict_finish_state(kit->tree, KVG_COMPONENT_MAMBA,
                      kit_node(kit, 2), &kit->actions, &out, &kit->error));
    CHECK(out.progress);
    kit_clear(kit);
    CHECK_STR(kit_do_actions(kit), "free_MAMBA(1)");
    CHECK_EQ(kvg_tree_evict_finish_state(kit->tree, KVG_COMPONENT_MAMBA, kit_node(kit, 2),
                 &kit->actions, &out, &kit->error),
        KVG_ESTATE);
    kit_must(kit, kvg_tree_evict_end(kit->tree, KVG_COMPONENT_MAMBA, &kit->error));
    CHECK_EQ(kit_get(kit, 2).value_length[KVG_COMPONENT_MAMBA][KVG_TIER_HOST], 1);
    kit_free(kit);
}

TEST(a_window_read_from_storage_is_attached_to_tombstones_only)
{
    struct kit *kit = new_kit(FULL | SWA, 2);
    struct kvg_tree_range gaps[4];
    uint32_t tokens[] = {1, 2, 3, 4, 5, 6};
    struct kvg_tree_key key = {.tokens = tokens, .token_count = 6};
    struct kvg_span slots = {700, KVG_BUFFER_POOL, 2};

    kit_insert(kit, (struct kit_insert){.tokens = LIST(1, 2, 3, 4, 5, 6),
                        .slots = LIST(10, 11, 12, 13, 14, 15),
                        .cursor = 4});
    CHECK_EQ(kvg_tree_window_gaps(kit->tree, &key, 1, 6, gaps, 4), 1);
    CHECK_EQ(gaps[0].start, 1);
    CHECK_EQ(gaps[0].end, 4);
    kit_must(kit, kvg_tree_window_attach(
                      kit->tree, &key, 1, 3, &slots, 1, &kit->actions, &kit->error));
    CHECK_STR(kit_dump(kit), "#1 root\n"
                             "  #4 [1] full 10+1\n"
                             "    #5 [2 3] full 11+2 swa 700+2\n"
                             "      #3 [4] full 13+1\n"
                             "        #2 [5 6] full 14+2 swa 114+2 hits 1 leaf\n");
    CHECK_EQ(kvg_tree_window_attach(
                 kit->tree, &key, 1, 3, &slots, 1, &kit->actions, &kit->error),
        KVG_ESTATE);
    CHECK(strstr(kit->error.message, "attach_swa_window over live SWA") != NULL);
    CHECK_EQ(kvg_tree_window_gaps(kit->tree, &key, 0, 6, gaps, 4), 2);
    kit_free(kit);
}

TEST_MAIN(RUN(a_demoted_node_stays_on_host_and_an_insert_brings_it_back),
    RUN(a_value_that_returns_under_a_lock_is_protected),
    RUN(a_node_without_a_window_gets_it_on_return_and_an_increment_is_due),
    RUN(every_component_goes_to_host_and_comes_back),
    RUN(another_load_of_the_same_nodes_is_empty),
    RUN(a_host_leaf_goes_and_leaves_its_parent_a_host_leaf),
    RUN(write_back_reclaims_duplicates_before_it_deletes),
    RUN(a_prefetched_tail_hangs_below_a_backed_up_parent_only),
    RUN(a_host_lock_survives_a_split),
    RUN(pages_of_a_locked_prefix_are_not_reclaimed_while_a_write_reads_them),
    RUN(the_fragments_of_a_split_write_are_published_once_each),
    RUN(an_unbacked_leaf_waits_for_its_backup_under_write_back),
    RUN(an_internal_state_is_written_before_it_goes_under_write_back),
    RUN(a_window_read_from_storage_is_attached_to_tombstones_only))
