/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* Sessions: what a conversation's turn covers, how frontiers move, what goes first for it. */
#include "test.h"
#include "tree_kit.h"

static struct kvg_str str(const char *text)
{
    return (struct kvg_str){text, strlen(text)};
}

static struct kit *new_kit(uint32_t components, uint32_t window, enum kvg_policy policy)
{
    return kit_new((struct kit_setup){
        .components = components, .window = window, .policy = policy, .sessions = true});
}

static uint64_t open_session(struct kit *kit, const char *id)
{
    uint64_t generation;

    CHECK_EQ(kvg_tree_session_open(kit->tree, str(id), &generation, &kit->error), KVG_OK);
    kit_check(kit);
    return generation;
}

/* A turn of an open session ends at node `number`. */
static bool touch(struct kit *kit, const char *id, uint64_t number)
{
    uint64_t generation;
    bool held;

    CHECK_EQ(
        kvg_tree_session_ensure(kit->tree, str(id), &generation, &kit->error), KVG_OK);
    CHECK_EQ(kvg_tree_session_touch(kit->tree, str(id), generation, kit_node(kit, number),
                 &held, &kit->error),
        KVG_OK);
    kit_check(kit);
    return held;
}

static uint64_t close_session(struct kit *kit, const char *id)
{
    uint64_t released;

    CHECK_EQ(kvg_tree_session_close(kit->tree, str(id), &released, &kit->error), KVG_OK);
    kit_check(kit);
    return released;
}

static uint32_t covered(struct kit *kit, uint64_t number, uint32_t component)
{
    return kit_get(kit, number).session_count[component];
}

TEST(an_opening_has_a_number_of_its_own_and_a_request_of_another_holds_nothing)
{
    struct kit *kit = new_kit(FULL, 0, KVG_POLICY_LRU);
    struct kvg_tree_stats stats;
    uint64_t again;
    bool held;

    kit_insert_run(kit, LIST(1, 2, 3), 10);
    uint64_t first = open_session(kit, "a");
    CHECK_EQ(kvg_tree_session_ensure(kit->tree, str("a"), &again, NULL), KVG_OK);
    CHECK_EQ(again, first);
    uint64_t second = open_session(kit, "a");
    CHECK(second > first);
    CHECK_EQ(
        kvg_tree_session_touch(kit->tree, str("a"), first, kit_node(kit, 2), &held, NULL),
        KVG_OK);
    CHECK(!held);
    CHECK(touch(kit, "a", 2));
    CHECK_EQ(close_session(kit, "a"), 1);
    CHECK_EQ(close_session(kit, "a"), 0);
    CHECK_EQ(kvg_tree_session_touch(
                 kit->tree, str("a"), second, kit_node(kit, 2), &held, NULL),
        KVG_OK);
    CHECK(!held);
    kvg_tree_stats(kit->tree, &stats);
    CHECK_EQ(stats.stale_touches, 2);
    CHECK_EQ(stats.closed_sessions, 1);
    CHECK_EQ(stats.sessions, 0);
    CHECK(!touch(kit, "a", 1)); /* The root. */
    CHECK(touch(kit, "a", 2));  /* Opened again on purpose. */
    kit_free(kit);
}

TEST(a_turn_covers_the_path_a_window_and_the_state)
{
    struct kit *kit = new_kit(FULL | SWA | MAMBA, 2, KVG_POLICY_LRU);
    const uint32_t tokens[] = {1, 2, 3, 4, 5, 6};
    const uint32_t slots[] = {10, 11, 12, 13, 14, 15};

    for (uint32_t i = 1; i <= 6; i++)
        kit_insert(kit,
            (struct kit_insert){
                .tokens = {tokens, i}, .slots = {slots, i}, .prev = i - 1, .mamba = i});
    CHECK(touch(kit, "chat", 6));
    CHECK_STR(kit_dump(kit),
        "#1 root\n"
        "  #2 [1] full 10+1 swa 110+1 mamba 1+1 sessions 1/0/0 hits 6\n"
        "    #3 [2] full 11+1 swa 111+1 mamba 2+1 sessions 1/0/0 hits 5\n"
        "      #4 [3] full 12+1 swa 112+1 mamba 3+1 sessions 1/1/0 hits 4\n"
        "        #5 [4] full 13+1 swa 113+1 mamba 4+1 sessions 1/1/0 hits 3\n"
        "          #6 [5] full 14+1 swa 114+1 mamba 5+1 sessions 1/1/1 hits 2\n"
        "            #7 [6] full 15+1 swa 115+1 mamba 6+1 hits 1 leaf\n"
        "session \"chat\" generation 1 full #6 swa #6 mamba #6\n");
    CHECK(touch(kit, "chat", 7));
    CHECK_EQ(covered(kit, 4, KVG_COMPONENT_SWA), 0);
    CHECK_EQ(covered(kit, 5, KVG_COMPONENT_SWA), 1);
    CHECK_EQ(covered(kit, 6, KVG_COMPONENT_MAMBA), 0);
    CHECK_EQ(covered(kit, 7, KVG_COMPONENT_MAMBA), 1);
    CHECK_EQ(covered(kit, 2, KVG_COMPONENT_FULL), 1);
    /* Counting goes upwards, and each node that becomes covered goes before those that are. */
    CHECK_STR(
        kit_list_text(kit, KVG_COMPONENT_SWA, KVG_TIER_DEVICE), "#7 #5 #6 #4 #3 #2");
    CHECK_STR(
        kit_list_text(kit, KVG_COMPONENT_MAMBA, KVG_TIER_DEVICE), "#7 #6 #5 #4 #3 #2");
    CHECK_EQ(close_session(kit, "chat"), 3);
    CHECK_EQ(covered(kit, 2, KVG_COMPONENT_FULL), 0);
    kit_free(kit);
}

TEST(a_turn_moves_the_frontier_above_it_and_a_fork_leaves_one_behind)
{
    struct kit *kit = new_kit(FULL, 0, KVG_POLICY_LRU);
    kvg_node_id nodes[4];

    kit_insert_run(kit, LIST(1, 2), 10);
    touch(kit, "a", 2);
    kit_insert_run(kit, LIST(1, 2, 3), 20);
    touch(kit, "a", 3);
    CHECK_EQ(covered(kit, 2, KVG_COMPONENT_FULL), 1);
    CHECK(!kit_get(kit, 2).frontier);
    kit_insert_run(kit, LIST(1, 2, 4), 30);
    touch(kit, "a", 4); /* Another branch: the path is covered once for each. */
    CHECK_EQ(covered(kit, 2, KVG_COMPONENT_FULL), 2);
    CHECK_EQ(
        kvg_tree_session_frontiers(kit->tree, str("a"), KVG_COMPONENT_FULL, nodes, 4), 2);
    CHECK_EQ(kit_number(nodes[0]), 3);
    CHECK_EQ(kit_number(nodes[1]), 4);
    touch(kit, "a", 3); /* The same again changes nothing. */
    CHECK_EQ(covered(kit, 2, KVG_COMPONENT_FULL), 2);
    touch(kit, "a", 2); /* A node above others is a frontier of its own. */
    CHECK_EQ(covered(kit, 2, KVG_COMPONENT_FULL), 3);
    CHECK_EQ(close_session(kit, "a"), 3);
    kit_free(kit);
}

TEST(a_split_copies_path_and_window_and_leaves_frontier_and_state_on_the_suffix)
{
    struct kit *kit = new_kit(FULL | SWA | MAMBA, 8, KVG_POLICY_LRU);

    kit_insert(
        kit, (struct kit_insert){
                 .tokens = LIST(1, 2, 3, 4), .slots = LIST(10, 11, 12, 13), .mamba = 7});
    touch(kit, "a", 2);
    kit_match(kit, LIST(1, 2));
    CHECK_STR(kit_dump(kit),
        "#1 root\n"
        "  #3 [1 2] full 10+2 swa 110+2 sessions 1/1/0 hits 1\n"
        "    #2 [3 4] full 12+2 swa 112+2 mamba 7+1 sessions 1/1/1 hits 1 leaf\n"
        "session \"a\" generation 1 full #2 swa #2 mamba #2\n");
    CHECK(!kit_get(kit, 3).frontier);
    CHECK_EQ(close_session(kit, "a"), 3);
    CHECK_EQ(covered(kit, 3, KVG_COMPONENT_SWA), 0);
    kit_free(kit);
}

TEST(what_no_session_covers_goes_first_under_every_policy)
{
    for (enum kvg_policy policy = 0; policy < KVG_POLICY_COUNT; policy++) {
        struct kit *kit = new_kit(FULL, 0, policy);
        kit_insert_run(kit, LIST(1), 10);
        kit_insert_run(kit, LIST(2), 11);
        kit_insert_run(kit, LIST(3), 12);
        kit_insert_run(kit, LIST(1), 13);
        touch(kit, "x", 2);
        touch(kit, "y", 3);
        touch(kit, "z", 3);
        CHECK_STR(kit_evict(kit, 3, 0, 0),
            "leaf #4: free_FULL(12) | leaf #2: free_FULL(10) | leaf #3: free_FULL(11)");
        kit_free(kit);
    }
}

TEST(the_end_of_a_session_brings_its_leaf_forward)
{
    struct kit *kit = new_kit(FULL, 0, KVG_POLICY_LRU);

    kit_insert_run(kit, LIST(1), 10);
    kit_insert_run(kit, LIST(2), 11);
    kit_insert_run(kit, LIST(3), 12);
    touch(kit, "x", 2);
    touch(kit, "y", 3);
    touch(kit, "z", 3);
    close_session(kit, "x");
    CHECK_STR(kit_evict(kit, 2, 0, 0), "leaf #2: free_FULL(10) | leaf #4: free_FULL(12)");
    kit_free(kit);
}

TEST(a_deleted_frontier_falls_back_to_the_node_above_that_can_be_used)
{
    struct kit *kit = new_kit(FULL | MAMBA, 0, KVG_POLICY_LRU);

    kit_insert(
        kit, (struct kit_insert){.tokens = LIST(1), .slots = LIST(10), .mamba = 1});
    kit_insert(kit,
        (struct kit_insert){.tokens = LIST(1, 2), .slots = LIST(20, 21), .mamba = 2});
    kit_insert(kit, (struct kit_insert){
                        .tokens = LIST(1, 2, 3), .slots = LIST(30, 31, 32), .mamba = 3});
    kit_evict(kit, 0, 0, 1); /* The state of #2. */
    touch(kit, "a", 4);
    touch(kit, "b", 3);
    kit_evict(kit, 1, 0, 0);
    CHECK_STR(kit_dump(kit), "#1 root\n"
                             "  #2 [1] full 10+1 sessions 2/0 hits 3\n"
                             "    #3 [2] full 21+1 mamba 2+1 sessions 2/2 hits 2 leaf\n"
                             "session \"a\" generation 1 full #3 mamba #3\n"
                             "session \"b\" generation 2 full #3 mamba #3\n");
    kit_evict(kit, 1, 0, 0); /* #2 has no state: MAMBA's frontiers end. */
    CHECK_STR(kit_dump(kit), "#1 root\n"
                             "  #2 [1] full 10+1 sessions 2/0 hits 3 leaf\n"
                             "session \"a\" generation 1 full #2\n"
                             "session \"b\" generation 2 full #2\n");
    kit_evict(kit, 1, 0, 0);
    CHECK_STR(kit_dump(kit), "#1 root\n"
                             "session \"a\" generation 1\n"
                             "session \"b\" generation 2\n");
    kit_free(kit);
}

TEST(a_frontier_at_pages_that_never_came_falls_back)
{
    struct kit *kit = new_kit(FULL | SWA, 4, KVG_POLICY_LRU);

    kit_insert_run(kit, LIST(1, 2), 10);
    kit_insert_run(kit, LIST(1, 2, 3), 20);
    CHECK_EQ(kvg_tree_load_mark(
                 kit->tree, kit_node(kit, 3), FULL | SWA, kit_node(kit, 3), &kit->error),
        KVG_OK);
    touch(kit, "a", 3);
    CHECK_EQ(
        kvg_tree_load_withdraw(kit->tree, kit_node(kit, 3), &kit->actions, &kit->error),
        KVG_OK);
    kit_do_actions(kit);
    kit_check(kit);
    CHECK_EQ(covered(kit, 2, KVG_COMPONENT_FULL), 1);
    CHECK(kit_get(kit, 2).frontier);
    /* The window was never usable: it has no frontier. */
    CHECK_EQ(close_session(kit, "a"), 1);
    kit_free(kit);
}

TEST(the_node_that_names_a_load_is_no_leaf_until_the_load_ends)
{
    struct kit *kit = new_kit(FULL | SWA, 2, KVG_POLICY_LRU);
    kvg_node_id ack;

    kit_insert_run(kit, LIST(1, 2), 10);
    ack = kit_node(kit, 2);
    CHECK_EQ(kvg_tree_load_mark(kit->tree, ack, SWA, ack, &kit->error), KVG_OK);
    kit_match(kit, LIST(1)); /* The prefix carries the mark too. */
    kit_evict(kit, 9, 9, 0); /* Windows that are not there yet may go, the node not. */
    CHECK(kvg_tree_contains(kit->tree, ack));
    CHECK_EQ(kvg_tree_load_withdraw(kit->tree, ack, &kit->actions, &kit->error), KVG_OK);
    kit_do_actions(kit);
    kit_check(kit);
    CHECK(kit_get(kit, 2).device_leaf);
    kit_evict(kit, 9, 0, 0);
    CHECK_EQ(kvg_tree_first_child(kit->tree, kvg_tree_root(kit->tree)), KVG_NODE_NONE);
    kit_free(kit);
}

TEST(a_frontier_does_not_fall_onto_another_of_its_session)
{
    struct kit *kit = new_kit(FULL, 0, KVG_POLICY_LRU);

    kit_insert_run(kit, LIST(1), 10);
    kit_insert_run(kit, LIST(1, 2), 20);
    touch(kit, "a", 3);
    touch(kit, "a", 2);
    CHECK_EQ(covered(kit, 2, KVG_COMPONENT_FULL), 2);
    kit_evict(kit, 1, 0, 0);
    CHECK_EQ(covered(kit, 2, KVG_COMPONENT_FULL), 1);
    CHECK_EQ(close_session(kit, "a"), 1);
    kit_free(kit);
}

TEST(recency_lists_keep_covered_nodes_before_the_others)
{
    struct kit *kit = new_kit(FULL | SWA, 1, KVG_POLICY_LRU);

    for (uint32_t i = 1; i <= 4; i++)
        kit_insert_run(kit, (struct kit_list){&i, 1}, 10 * i);
    CHECK_STR(kit_list_text(kit, KVG_COMPONENT_SWA, KVG_TIER_DEVICE), "#5 #4 #3 #2");
    touch(kit, "a", 2);
    touch(kit, "b", 3);
    CHECK_STR(kit_list_text(kit, KVG_COMPONENT_SWA, KVG_TIER_DEVICE), "#3 #2 #5 #4");
    kit_match(kit, LIST(3));
    CHECK_STR(kit_list_text(kit, KVG_COMPONENT_SWA, KVG_TIER_DEVICE), "#3 #2 #4 #5");
    kit_match(kit, LIST(1));
    CHECK_STR(kit_list_text(kit, KVG_COMPONENT_SWA, KVG_TIER_DEVICE), "#2 #3 #4 #5");
    close_session(kit, "a");
    CHECK_STR(kit_list_text(kit, KVG_COMPONENT_SWA, KVG_TIER_DEVICE), "#3 #2 #4 #5");
    CHECK_STR(kit_evict(kit, 0, 4, 0),
        "leaf #5: free_FULL(40); free_SWA(40) | leaf #4: free_FULL(30); free_SWA(30)"
        " | leaf #2: free_FULL(10); free_SWA(10) | leaf #3: free_FULL(20); free_SWA(20)");
    kit_free(kit);
}

TEST(a_window_that_falls_back_becomes_recent)
{
    struct kit *kit = new_kit(FULL | SWA, 1, KVG_POLICY_LRU);

    kit_insert_run(kit, LIST(1), 10);
    kit_insert_run(kit, LIST(1, 2), 20);
    kit_insert_run(kit, LIST(1, 2, 3), 30);
    kit_insert_run(kit, LIST(9), 40);
    touch(kit, "a", 4);
    touch(kit, "b", 5);
    CHECK_STR(kit_list_text(kit, KVG_COMPONENT_SWA, KVG_TIER_DEVICE), "#5 #3 #4 #2");
    touch(kit, "c", 5); /* So that the other leaf goes first. */
    kit_evict(kit, 1, 0, 0);
    CHECK_STR(kit_list_text(kit, KVG_COMPONENT_SWA, KVG_TIER_DEVICE), "#2 #3 #5");
    kit_free(kit);
}

TEST(a_window_that_nobody_covers_does_not_take_a_covered_leaf_with_it)
{
    struct kit *kit = new_kit(FULL | SWA, 4, KVG_POLICY_LRU);

    kit_insert_run(kit, LIST(1, 2), 10);
    kit_evict(kit, 0, 0, 0);
    touch(kit, "a", 2);
    /* The branch that the session forked off is longer: only FULL of it stays covered. */
    kit_insert_run(kit, LIST(1, 2, 3, 4, 5, 6, 7, 8), 20);
    touch(kit, "a", 3);
    kit_dump(kit);
    CHECK_EQ(covered(kit, 2, KVG_COMPONENT_FULL), 1);
    CHECK_EQ(covered(kit, 2, KVG_COMPONENT_SWA), 0);
    CHECK_STR(kit_evict(kit, 0, 2, 0), "free_SWA(10 11)");
    kit_free(kit);
}

/* #2: a covered leaf whose state came after the session's turn. */
static struct kit *leaf_with_a_new_state(void)
{
    struct kit *kit = new_kit(FULL | MAMBA, 0, KVG_POLICY_LRU);

    kit_insert(
        kit, (struct kit_insert){.tokens = LIST(1), .slots = LIST(10), .mamba = 1});
    kit_insert(kit,
        (struct kit_insert){.tokens = LIST(1, 2), .slots = LIST(20, 21), .mamba = 2});
    CHECK_STR(kit_evict(kit, 0, 0, 1), "free_MAMBA(1)");
    touch(kit, "a", 2);
    kit_evict(kit, 1, 0, 0);
    kit_insert(
        kit, (struct kit_insert){.tokens = LIST(1), .slots = LIST(30), .mamba = 5});
    CHECK_EQ(covered(kit, 2, KVG_COMPONENT_FULL), 1);
    CHECK_EQ(covered(kit, 2, KVG_COMPONENT_MAMBA), 0);
    return kit;
}

TEST(a_state_that_nobody_covers_goes_alone_from_a_covered_leaf)
{
    struct kit *kit = leaf_with_a_new_state();

    CHECK_STR(kit_evict(kit, 0, 0, 1), "free_MAMBA(5)");
    CHECK_STR(kit_dump(kit), "#1 root\n"
                             "  #2 [1] full 10+1 sessions 1/0 hits 3 leaf\n"
                             "session \"a\" generation 1 full #2\n");
    kit_free(kit);
}

TEST(on_host_too)
{
    struct kit *kit = leaf_with_a_new_state();
    struct kvg_tree_transfer transfers[KVG_COMPONENT_MAX];
    struct kvg_span spans[KVG_COMPONENT_MAX];
    struct kvg_tree_evicted out;
    kvg_node_id node = kit_node(kit, 2);
    size_t count;

    kvg_tree_settings(kit->tree)->host_tier = true;
    CHECK_EQ(kvg_tree_write_build(kit->tree, node, transfers, &count, NULL), KVG_OK);
    CHECK_EQ(count, 2);
    for (uint32_t i = 0; i < 2; i++) {
        spans[i] = (struct kvg_span){100 + i, KVG_BUFFER_POOL, 1};
        transfers[i].spans = &spans[i];
        transfers[i].span_count = 1;
    }
    CHECK_EQ(kvg_tree_write_commit(kit->tree, transfers, count, NULL), KVG_OK);
    CHECK_EQ(kvg_tree_demote(kit->tree, node, &kit->actions, &out, NULL), KVG_OK);
    kit_do_actions(kit);
    CHECK_EQ(
        kvg_tree_evict_host(kit->tree, KVG_COMPONENT_MAMBA, 1, &kit->actions, &out, NULL),
        KVG_OK);
    kit_clear(kit);
    CHECK_STR(kit_do_actions(kit), "free_host_MAMBA(101)");
    CHECK_STR(kit_dump(kit), "#1 root\n"
                             "  #2 [1] full host 100+1 sessions 1/0 hits 3 host-leaf\n"
                             "session \"a\" generation 1 full #2\n");
    kit_free(kit);
}

TEST(a_walk_keeps_its_place_when_the_node_there_goes)
{
    struct kit *kit = new_kit(FULL | SWA, 1, KVG_POLICY_LRU);
    struct kvg_tree_evicted step;

    for (uint32_t i = 1; i <= 3; i++)
        kit_insert_run(kit, (struct kit_list){&i, 1}, 10 * i);
    CHECK_EQ(kvg_tree_evict_start(kit->tree, KVG_COMPONENT_SWA, 9, NULL), KVG_OK);
    CHECK_EQ(
        kvg_tree_evict_next(kit->tree, KVG_COMPONENT_SWA, 0, &kit->actions, &step, NULL),
        KVG_OK);
    CHECK_EQ(kit_number(step.node), 2); /* Which the caller leaves alone. */
    CHECK_EQ(kvg_tree_evict_leaf(
                 kit->tree, kit_node(kit, 3), false, &kit->actions, &step, NULL),
        KVG_OK);
    CHECK_EQ(
        kvg_tree_evict_next(kit->tree, KVG_COMPONENT_SWA, 0, &kit->actions, &step, NULL),
        KVG_OK);
    CHECK_EQ(kit_number(step.node), 4);
    CHECK_EQ(kvg_tree_evict_end(kit->tree, KVG_COMPONENT_SWA, NULL), KVG_OK);
    kit_free(kit);
}

TEST(a_reset_forgets_sessions_but_not_how_many_openings_there_were)
{
    struct kit *kit = new_kit(FULL, 0, KVG_POLICY_LRU);
    struct kvg_tree_session session;

    kit_insert_run(kit, LIST(1, 2, 3), 10);
    uint64_t before = open_session(kit, "a");
    touch(kit, "a", 2);
    close_session(kit, "b");
    CHECK_EQ(kvg_tree_evict_start(kit->tree, KVG_COMPONENT_FULL, 1, NULL), KVG_OK);
    CHECK_EQ(kvg_tree_reset(kit->tree), KVG_OK);
    kit_check(kit);
    CHECK_EQ(kvg_tree_session_get(kit->tree, str("a"), &session), KVG_ENOENT);
    CHECK_EQ(kvg_tree_session_get(kit->tree, str("b"), &session), KVG_ENOENT);
    CHECK(open_session(kit, "a") > before);
    /* Nor does a walk survive it. */
    CHECK_EQ(kvg_tree_evict_start(kit->tree, KVG_COMPONENT_FULL, 1, NULL), KVG_OK);
    CHECK_EQ(kvg_tree_evict_end(kit->tree, KVG_COMPONENT_FULL, NULL), KVG_OK);
    kit_free(kit);
}

TEST(the_last_8192_closed_ids_are_remembered)
{
    struct kit *kit = new_kit(FULL, 0, KVG_POLICY_LRU);
    struct kvg_tree_session session;
    struct kvg_tree_stats stats;
    uint64_t released;
    char id[16];

    for (uint32_t i = 0; i <= KVG_TREE_SESSIONS_CLOSED; i++) {
        snprintf(id, sizeof(id), "s%u", i);
        CHECK_EQ(kvg_tree_session_close(kit->tree, str(id), &released, NULL), KVG_OK);
    }
    kvg_tree_stats(kit->tree, &stats);
    CHECK_EQ(stats.closed_sessions, KVG_TREE_SESSIONS_CLOSED);
    CHECK_EQ(kvg_tree_session_get(kit->tree, str("s0"), &session), KVG_ENOENT);
    CHECK_EQ(kvg_tree_session_get(kit->tree, str("s1"), &session), KVG_OK);
    CHECK_EQ(session.generation, 0);
    kit_free(kit);
}

TEST(limits_are_named_and_counted)
{
    struct kvg_tree_options options;
    struct kvg_tree *tree;
    struct kvg_tree_stats stats;
    struct kvg_error error;
    struct fault_alloc fault;
    char text[KVG_TREE_SESSION_ID_MAX + 1];
    uint64_t generation;

    memset(text, 'x', sizeof(text));
    fault_alloc_init(&fault);
    kvg_tree_options_init(&options);
    options.session_max = 1;
    CHECK_EQ(kvg_tree_new(&fault.alloc, &options, &tree, NULL), KVG_OK);
    CHECK_EQ(
        kvg_tree_session_open(tree, str("a"), &generation, &error), KVG_EUNSUPPORTED);
    CHECK_STR(error.field, "tree.sessions");
    CHECK_EQ(kvg_tree_session_close(tree, str("a"), &generation, NULL), KVG_OK);
    kvg_tree_free(tree);

    options.sessions = true;
    CHECK_EQ(kvg_tree_new(&fault.alloc, &options, &tree, NULL), KVG_OK);
    CHECK_EQ(kvg_tree_session_open(
                 tree, (struct kvg_str){text, sizeof(text)}, &generation, &error),
        KVG_EINVAL);
    CHECK_STR(error.message, "session_id.bytes is 257; allowed is 1 to 256");
    CHECK_EQ(kvg_tree_session_open(tree, (struct kvg_str){text, 0}, &generation, &error),
        KVG_EINVAL);
    CHECK_EQ(kvg_tree_session_open(
                 tree, (struct kvg_str){text, sizeof(text) - 1}, &generation, &error),
        KVG_OK);
    CHECK_EQ(kvg_tree_session_open(tree, str("b"), &generation, &error), KVG_ELIMIT);
    CHECK_EQ(error.code, KVG_ELIMIT);
    CHECK_STR(error.message, "tree.session_max is 2; allowed is 0 to 1");
    kvg_tree_stats(tree, &stats);
    CHECK_EQ(stats.refused_sessions, 1);
    kvg_tree_free(tree);
    options.session_max = KVG_TREE_SESSIONS_MAX + 1;
    CHECK_EQ(kvg_tree_new(&fault.alloc, &options, &tree, &error), KVG_EINVAL);
    CHECK_STR(error.field, "tree.session_max");
    CHECK_EQ(fault.live_bytes, 0);
}

TEST(a_session_has_256_branches_and_no_more)
{
    struct kit *kit = new_kit(FULL, 0, KVG_POLICY_LRU);
    uint64_t generation = open_session(kit, "a");
    struct kvg_tree_stats stats;
    bool held;

    for (uint32_t i = 1; i <= KVG_TREE_FRONTIERS_MAX; i++) {
        kit_insert_run(kit, (struct kit_list){&i, 1}, i);
        CHECK_EQ(kvg_tree_session_touch(kit->tree, str("a"), generation,
                     kit->inserted.last_node, &held, NULL),
            KVG_OK);
    }
    kit_insert_run(kit, LIST(1000), 1000);
    CHECK_EQ(kvg_tree_session_touch(kit->tree, str("a"), generation,
                 kit->inserted.last_node, &held, &kit->error),
        KVG_ELIMIT);
    CHECK(!held);
    CHECK_STR(kit->error.message, "session.frontiers is 257; allowed is 0 to 256");
    kit_insert_run(kit, LIST(1, 2), 2000);
    CHECK_EQ(kvg_tree_session_touch(kit->tree, str("a"), generation,
                 kit->inserted.last_node, &held, &kit->error),
        KVG_OK);
    CHECK(held); /* A branch that grows needs no more. */
    kvg_tree_stats(kit->tree, &stats);
    CHECK_EQ(stats.refused_sessions, 1);
    CHECK_EQ(stats.frontiers, KVG_TREE_FRONTIERS_MAX);
    kit_free(kit);
}

TEST_MAIN(RUN(an_opening_has_a_number_of_its_own_and_a_request_of_another_holds_nothing),
    RUN(a_turn_covers_the_path_a_window_and_the_state),
    RUN(a_turn_moves_the_frontier_above_it_and_a_fork_leaves_one_behind),
    RUN(a_split_copies_path_and_window_and_leaves_frontier_and_state_on_the_suffix),
    RUN(what_no_session_covers_goes_first_under_every_policy),
    RUN(the_end_of_a_session_brings_its_leaf_forward),
    RUN(a_deleted_frontier_falls_back_to_the_node_above_that_can_be_used),
    RUN(a_frontier_at_pages_that_never_came_falls_back),
    RUN(the_node_that_names_a_load_is_no_leaf_until_the_load_ends),
    RUN(a_frontier_does_not_fall_onto_another_of_its_session),
    RUN(recency_lists_keep_covered_nodes_before_the_others),
    RUN(a_window_that_falls_back_becomes_recent),
    RUN(a_window_that_nobody_covers_does_not_take_a_covered_leaf_with_it),
    RUN(a_state_that_nobody_covers_goes_alone_from_a_covered_leaf), RUN(on_host_too),
    RUN(a_walk_keeps_its_place_when_the_node_there_goes),
    RUN(a_reset_forgets_sessions_but_not_how_many_openings_there_were),
    RUN(the_last_8192_closed_ids_are_remembered), RUN(limits_are_named_and_counted),
    RUN(a_session_has_256_branches_and_no_more))
