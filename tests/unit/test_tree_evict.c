/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* Eviction: which node goes, what goes with it, and what the walks refuse. */
#include "test.h"
#include "tree_kit.h"

static struct kit *new_kit(uint32_t components, uint32_t window, enum kvg_policy policy)
{
    return kit_new(
        (struct kit_setup){.components = components, .window = window, .policy = policy});
}

/* M[1,2] -> L[3,4], window 2, both published. */
static struct kit *window_of_two(void)
{
    struct kit *kit = new_kit(FULL | SWA, 2, KVG_POLICY_LRU);

    kit_insert_run(kit, LIST(1, 2, 3, 4), 10);
    return kit;
}

TEST(an_internal_node_loses_its_window_first_and_gets_it_back)
{
    struct kit *kit = window_of_two();

    CHECK_STR(kit_evict(kit, 0, 2, 0), "free_SWA(10 11)");
    CHECK_EQ(kit->evicted[KVG_COMPONENT_SWA], 2);
    CHECK_STR(kit_match(kit, LIST(1, 2)), "0 at #1 best #1 full 2 swa_branching 2");
    CHECK_STR(kit_match(kit, LIST(1, 2, 3, 4)), "4 at #2 best #2 full 4: 10 11 12 13");

    CHECK_STR(kit_insert(kit, (struct kit_insert){.tokens = LIST(1, 2, 5),
                                  .slots = LIST(20, 21, 22),
                                  .tracked = true}),
        "free_full(10 11); rebuild_swa(#3: 20 21) | rebuild_swa(#4: 22) | -"
        " => prefix 2 last #4 FULL[0,3) SWA[0,3)");
    CHECK_STR(kit_dump(kit), "#1 root\n"
                             "  #3 [1 2] full 20+2 swa 120+2 hits 1\n"
                             "    #2 [3 4] full 12+2 swa 112+2 hits 1 leaf\n"
                             "    #4 [5] full 22+1 swa 122+1 hits 1 leaf\n");
    CHECK_STR(kit_list_text(kit, KVG_COMPONENT_SWA, KVG_TIER_DEVICE), "#4 #3 #2");
    CHECK_EQ(kvg_tree_evictable(kit->tree, KVG_COMPONENT_FULL), 5);
    CHECK_EQ(kvg_tree_evictable(kit->tree, KVG_COMPONENT_SWA), 5);
    kit_free(kit);
}

TEST(a_locked_tombstone_recovers_its_window_only)
{
    struct kit *kit = window_of_two();

    kit_evict(kit, 0, 2, 0);
    struct kvg_lock_receipt receipt = kit_lock(kit, 2, 0);
    CHECK_EQ(receipt.delta, 4);
    CHECK_EQ(kit_lock_count(kit, 3, KVG_COMPONENT_SWA), 0);
    CHECK_EQ(kit_lock_count(kit, 2, KVG_COMPONENT_SWA), 1);
    CHECK_EQ(kvg_tree_protected(kit->tree, KVG_COMPONENT_SWA), 2);
    CHECK_STR(kit_insert(kit,
                  (struct kit_insert){
                      .tokens = LIST(1, 2), .slots = LIST(20, 21), .tracked = true}),
        "recover_swa(#3: 10 11 / 20 21) | - => prefix 2 last #3 SWA[0,2)");
    CHECK_EQ(kvg_tree_protected(kit->tree, KVG_COMPONENT_FULL), 4);
    CHECK_EQ(kvg_tree_evictable(kit->tree, KVG_COMPONENT_SWA), 2);
    kit_unlock(kit, 2, &receipt);
    kit_free(kit);
}

static struct kit *three_components(void)
{
    struct kit *kit = new_kit(FULL | SWA | MAMBA, 4, KVG_POLICY_LRU);

    kit_insert(kit,
        (struct kit_insert){.tokens = LIST(1, 2), .slots = LIST(10, 11), .mamba = 1});
    kit_insert(kit,
        (struct kit_insert){
            .tokens = LIST(1, 2, 3), .slots = LIST(10, 11, 22), .prev = 2, .mamba = 2});
    return kit;
}

TEST(a_window_takes_the_state_with_it_but_not_the_other_way)
{
    struct kit *kit = three_components();

    CHECK_STR(kit_evict(kit, 0, 1, 0), "free_SWA(10 11); free_MAMBA(1)");
    CHECK_EQ(kit->evicted[KVG_COMPONENT_SWA], 2);
    CHECK_EQ(kit->evicted[KVG_COMPONENT_MAMBA], 1);
    CHECK_STR(
        kit_evict(kit, 0, 1, 0), "leaf #3: free_FULL(22); free_SWA(22); free_MAMBA(2)");
    CHECK_EQ(kit->evicted[KVG_COMPONENT_FULL], 1);
    CHECK_EQ(kit->evicted[KVG_COMPONENT_SWA], 1);
    CHECK_EQ(kit->evicted[KVG_COMPONENT_MAMBA], 1);
    CHECK_STR(kit_dump(kit), "#1 root\n"
                             "  #2 [1 2] full 10+2 hits 2 leaf\n");
    kit_free(kit);

    kit = three_components();
    CHECK_STR(kit_evict(kit, 0, 0, 1), "free_MAMBA(1)");
    CHECK_EQ(kit_get(kit, 2).value_length[KVG_COMPONENT_SWA][KVG_TIER_DEVICE], 2);
    kit_free(kit);
}

TEST(a_cascade_refuses_to_take_a_locked_state)
{
    struct kit *kit = three_components();
    struct kvg_tree_evicted step;
    /* Only the state is locked: the window may not go. */
    struct kvg_lock_receipt receipt = kit_lock(kit, 2, SWA);

    CHECK_EQ(kvg_tree_evict_component(kit->tree, kit_node(kit, 2), KVG_COMPONENT_SWA,
                 KVG_TIER_DEVICE, &kit->actions, &step, &kit->error),
        KVG_ESTATE);
    CHECK_EQ(kit->actions.count, 0);
    CHECK_EQ(kit_get(kit, 2).value_length[KVG_COMPONENT_SWA][KVG_TIER_DEVICE], 2);
    kit_unlock(kit, 2, &receipt);
    kit_free(kit);
}

static void fill_abc(struct kit *kit, int64_t priority_of_b)
{
    kit_insert_run(kit, LIST(1), 10);
    kit_insert(kit, (struct kit_insert){
                        .tokens = LIST(2), .slots = LIST(11), .priority = priority_of_b});
    kit_insert_run(kit, LIST(3), 12);
    kit_insert_run(kit, LIST(1), 13);
}

TEST(every_policy_has_its_order)
{
    static const struct {
        enum kvg_policy policy;
        int64_t priority_of_b;
        const char *victims;
    } cases[] = {
        {KVG_POLICY_LRU, 0, "B C A"},
        {KVG_POLICY_LFU, 0, "B C A"},
        {KVG_POLICY_MRU, 0, "A C B"},
        {KVG_POLICY_FIFO, 0, "A B C"},
        {KVG_POLICY_FILO, 0, "C B A"},
        {KVG_POLICY_PRIORITY, 0, "B C A"},
        {KVG_POLICY_SLRU, 0, "B C A"},
        {KVG_POLICY_PRIORITY, 1, "C A B"},
    };
    static const char *const steps[] = {
        "leaf #2: free_FULL(10)", "leaf #3: free_FULL(11)", "leaf #4: free_FULL(12)"};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct kit *kit = new_kit(FULL, 0, cases[i].policy);
        char expected[128];
        fill_abc(kit, cases[i].priority_of_b);
        snprintf(expected, sizeof(expected), "%s | %s | %s",
            steps[cases[i].victims[0] - 'A'], steps[cases[i].victims[2] - 'A'],
            steps[cases[i].victims[4] - 'A']);
        CHECK_STR(kit_evict(kit, 3, 0, 0), expected);
        kit_free(kit);
    }
}

TEST(a_parent_goes_when_its_last_child_has_gone)
{
    struct kit *kit = new_kit(FULL, 0, KVG_POLICY_LRU);

    kit_insert_run(kit, LIST(1), 10);
    kit_insert_run(kit, LIST(9), 20);
    kit_insert(
        kit, (struct kit_insert){.tokens = LIST(1, 2), .slots = LIST(10, 30), .prev = 1});
    CHECK_STR(kit_evict(kit, 3, 0, 0),
        "leaf #3: free_FULL(20) | leaf #4: free_FULL(30) | leaf #2: free_FULL(10)");
    CHECK_STR(kit_dump(kit), "#1 root\n");
    kit_insert_run(kit, LIST(1, 2, 3, 4), 40);
    CHECK_STR(kit_evict(kit, 1, 0, 0), "leaf #5: free_FULL(40 41 42 43)");
    kit_free(kit);
}

TEST(a_match_makes_descendants_newer_than_ancestors)
{
    struct kit *kit = new_kit(FULL, 0, KVG_POLICY_LRU);

    kit_insert_run(kit, LIST(1), 10);
    kit_insert(
        kit, (struct kit_insert){.tokens = LIST(1, 2), .slots = LIST(10, 11), .prev = 1});
    kit_match(kit, LIST(1, 2));
    CHECK(kit_get(kit, 3).last_access > kit_get(kit, 2).last_access);
    CHECK(kit_get(kit, 2).last_access > kit_get(kit, 1).last_access);
    kit_free(kit);
}

TEST(a_locked_leaf_stays_until_it_is_unlocked)
{
    struct kit *kit = new_kit(FULL, 0, KVG_POLICY_LRU);

    kit_insert_run(kit, LIST(1, 2), 10);
    kit_insert_run(kit, LIST(3, 4), 20);
    struct kvg_lock_receipt receipt = kit_lock(kit, 2, 0);
    CHECK_STR(kit_evict(kit, 10, 0, 0), "leaf #3: free_FULL(20 21)");
    CHECK_STR(kit_match(kit, LIST(1, 2)), "2 at #2 best #2 full 2: 10 11");
    kit_unlock(kit, 2, &receipt);
    CHECK_STR(kit_evict(kit, 10, 0, 0), "leaf #2: free_FULL(10 11)");
    CHECK_STR(kit_evict(kit, 10, 0, 0), "");
    kit_free(kit);
}

TEST(a_walk_returns_each_leaf_once_and_ends_clean)
{
    struct kit *kit = new_kit(FULL, 0, KVG_POLICY_LRU);
    struct kvg_tree_evicted step;

    kit_insert_run(kit, LIST(1), 10);
    kit_insert_run(kit, LIST(2), 20);
    CHECK_EQ(kvg_tree_evict_next(
                 kit->tree, KVG_COMPONENT_FULL, 0, &kit->actions, &step, &kit->error),
        KVG_ESTATE);
    CHECK_STR(kit->error.message, "full device eviction not started");
    CHECK_EQ(kvg_tree_evict_start(kit->tree, KVG_COMPONENT_FULL, 9, &kit->error), KVG_OK);
    CHECK_EQ(
        kvg_tree_evict_start(kit->tree, KVG_COMPONENT_FULL, 9, &kit->error), KVG_ESTATE);
    CHECK_STR(kit->error.message, "full device eviction already in progress");
    for (uint64_t expected = 2; expected <= 4; expected++) {
        CHECK_EQ(kvg_tree_evict_next(
                     kit->tree, KVG_COMPONENT_FULL, 0, &kit->actions, &step, &kit->error),
            KVG_OK);
        CHECK_EQ(kit_number(step.node), expected == 4 ? 0 : expected);
        kit_check(kit);
    }
    CHECK_EQ(kvg_tree_evict_end(kit->tree, KVG_COMPONENT_FULL, &kit->error), KVG_OK);
    CHECK_EQ(kvg_tree_evict_end(kit->tree, KVG_COMPONENT_FULL, &kit->error), KVG_ESTATE);
    CHECK_STR(kit_evict(kit, 1, 0, 0), "leaf #2: free_FULL(10)");
    CHECK_EQ(kvg_tree_evict_leaf(kit->tree, kvg_tree_root(kit->tree), false,
                 &kit->actions, &step, &kit->error),
        KVG_ESTATE);
    CHECK(strstr(kit->error.message, "is not a D-leaf") != NULL);
    kit_free(kit);
}

TEST(too_many_states_on_a_path_lose_the_shallowest)
{
    struct kit *kit =
        kit_new((struct kit_setup){.components = FULL | MAMBA, .states_per_path_max = 2});
    struct kvg_tree_evicted out;

    kit_insert(
        kit, (struct kit_insert){.tokens = LIST(1), .slots = LIST(10), .mamba = 1});
    kit_insert(
        kit, (struct kit_insert){
                 .tokens = LIST(1, 2), .slots = LIST(10, 11), .prev = 1, .mamba = 2});
    CHECK_STR(kit_insert(kit, (struct kit_insert){.tokens = LIST(1, 2, 3),
                                  .slots = LIST(10, 11, 12),
                                  .prev = 2,
                                  .mamba = 3}),
        "evict_path(#4) | - => prefix 2 last #4");
    CHECK_EQ(kvg_tree_evict_excess_path_states(
                 kit->tree, kit_node(kit, 4), &kit->actions, &out, &kit->error),
        KVG_OK);
    CHECK_EQ(kit->actions.count, 1);
    CHECK_EQ(kit->actions.items[0].component, KVG_COMPONENT_MAMBA);
    CHECK_EQ(kit->actions.spans[0].offset, 1);
    CHECK_EQ(out.evicted[KVG_COMPONENT_MAMBA], 1);
    kit_check(kit);
    kvg_actions_clear(&kit->actions);
    kit_free(kit);
}

TEST(a_policy_is_found_by_its_name_in_any_case)
{
    struct kvg_error error;
    enum kvg_policy policy;

    CHECK_EQ(kvg_policy_parse((struct kvg_str){"SLRU", 4}, &policy, &error), KVG_OK);
    CHECK_EQ(policy, KVG_POLICY_SLRU);
    CHECK_EQ(kvg_policy_parse((struct kvg_str){"best", 4}, &policy, &error), KVG_EINVAL);
    CHECK_STR(error.message,
        "Unknown eviction policy: best. Supported policies: 'lru', 'lfu', 'fifo', 'mru',"
        " 'filo', 'priority', 'slru', 'tlru'.");
}

TEST_MAIN(RUN(an_internal_node_loses_its_window_first_and_gets_it_back),
    RUN(a_locked_tombstone_recovers_its_window_only),
    RUN(a_window_takes_the_state_with_it_but_not_the_other_way),
    RUN(a_cascade_refuses_to_take_a_locked_state), RUN(every_policy_has_its_order),
    RUN(a_parent_goes_when_its_last_child_has_gone),
    RUN(a_match_makes_descendants_newer_than_ancestors),
    RUN(a_locked_leaf_stays_until_it_is_unlocked),
    RUN(a_walk_returns_each_leaf_once_and_ends_clean),
    RUN(too_many_states_on_a_path_lose_the_shallowest),
    RUN(a_policy_is_found_by_its_name_in_any_case))
