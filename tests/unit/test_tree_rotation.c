/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* Rotation bases: pages that are sharded from different ranks on do not follow each other.  And
 * hits that an earlier insert of the same prompt has counted. */
#include "test.h"
#include "tree_kit.h"

#include <kvgraft/tree_survey.h>

static int64_t base_of(struct kit *kit, uint64_t number)
{
    int64_t base = kit_get(kit, number).rotation_base;

    CHECK_EQ(kvg_tree_rotation_base_of(kit->tree, kit_node(kit, number)), base);
    return base;
}

TEST(a_leaf_has_the_base_it_was_inserted_with_and_the_root_has_none)
{
    struct kit *kit = kit_new((struct kit_setup){0});

    kit_insert(kit,
        (struct kit_insert){.tokens = LIST(1, 2), .slots = LIST(10, 11), .rotation = 4});
    kit_insert_run(kit, LIST(5), 20);
    kit_insert(
        kit, (struct kit_insert){.tokens = LIST(9), .slots = LIST(30), .rotation = 1});
    CHECK_EQ(base_of(kit, 2), 3);
    CHECK_EQ(base_of(kit, 3), -1);
    CHECK_EQ(base_of(kit, 4), 0);
    CHECK_EQ(base_of(kit, 1), -1);
    CHECK_EQ(kvg_tree_rotation_base_of(kit->tree, KVG_NODE_NONE), -1);
    CHECK(strstr(kit_dump(kit), "[1 2] full 10+2 hits 1 rotation 3") != NULL);
    CHECK(strstr(kit_dump(kit), "[5] full 20+1 hits 1 leaf") != NULL);
    kit_free(kit);
}

TEST(a_split_leaves_the_base_on_both_halves)
{
    struct kit *kit = kit_new((struct kit_setup){0});

    kit_insert(
        kit, (struct kit_insert){
                 .tokens = LIST(1, 2, 3), .slots = LIST(10, 11, 12), .rotation = 3});
    kit_match(kit, LIST(1));
    CHECK_EQ(base_of(kit, 2), 2);
    CHECK_EQ(base_of(kit, 3), 2);
    kit_free(kit);
}

TEST(the_same_base_goes_on_where_the_path_ends)
{
    struct kit *kit = kit_new((struct kit_setup){0});

    kit_insert(kit,
        (struct kit_insert){.tokens = LIST(1, 2), .slots = LIST(10, 11), .rotation = 3});
    CHECK_STR(kit_insert(kit,
                  (struct kit_insert){
                      .tokens = LIST(1, 2, 3), .slots = LIST(20, 21, 22), .rotation = 3}),
        "free(20 21) => prefix 2 last #3");
    CHECK_EQ(base_of(kit, 3), 2);
    kit_free(kit);
}

TEST(another_base_is_declined_and_nothing_changes)
{
    struct kit *kit = kit_new((struct kit_setup){.page_size = 2});
    struct kvg_tree_stats stats;

    kit_insert(kit,
        (struct kit_insert){
            .tokens = LIST(1, 2, 3, 4), .slots = LIST(10, 11, 12, 13), .rotation = 3});
    struct kvg_tree_node before = kit_get(kit, 2);
    /* Inside the node: no split, no hit, no free; ranges are tracked, and none was adopted. */
    CHECK_STR(kit_insert(kit, (struct kit_insert){.tokens = LIST(1, 2, 5, 6),
                                  .slots = LIST(20, 21, 22, 23),
                                  .tracked = true,
                                  .rotation = 2}),
        "- => prefix 2 last #2 declined");
    CHECK(kit->inserted.adopted_tracked);
    CHECK_EQ(kit->inserted.adopted_count, 0);
    CHECK(!kit->inserted.mamba_exists);
    CHECK(!kvg_tree_insert_in_flight(kit->tree));
    /* Behind it. */
    CHECK_STR(kit_insert(kit, (struct kit_insert){.tokens = LIST(1, 2, 3, 4, 5, 6),
                                  .slots = LIST(20, 21, 22, 23, 24, 25),
                                  .rotation = 1}),
        "- => prefix 4 last #2 declined");
    struct kvg_tree_node after = kit_get(kit, 2);
    CHECK_EQ(after.hits, before.hits);
    CHECK_EQ(after.length, before.length);
    CHECK_EQ(after.last_access, before.last_access);
    kvg_tree_stats(kit->tree, &stats);
    CHECK_EQ(stats.declined_inserts, 2);
    CHECK_EQ(stats.nodes, 2);
    kit_free(kit);
}

TEST(only_the_deepest_node_that_is_met_decides)
{
    struct kit *kit = kit_new((struct kit_setup){0});

    /* Below a node without a base stands one with: none asked for, none refused. */
    kit_insert_run(kit, LIST(1), 10);
    kit_insert(
        kit, (struct kit_insert){.tokens = LIST(7), .slots = LIST(30), .rotation = 2});
    CHECK_STR(
        kit_insert(kit,
            (struct kit_insert){.tokens = LIST(1, 2), .slots = LIST(20, 21), .prev = 1}),
        "- => prefix 1 last #4");
    /* A node without a base is another base. */
    CHECK_STR(kit_insert(kit,
                  (struct kit_insert){
                      .tokens = LIST(1, 3), .slots = LIST(22, 23), .rotation = 2}),
        "- => prefix 1 last #2 declined");
    /* Nothing met: the root refuses nobody.  Nor does another namespace. */
    CHECK_STR(kit_insert(kit,
                  (struct kit_insert){
                      .tokens = LIST(8, 9), .slots = LIST(40, 41), .rotation = 9}),
        "- => prefix 0 last #5");
    CHECK_STR(kit_insert(kit, (struct kit_insert){.tokens = LIST(8, 9),
                                  .slots = LIST(50, 51),
                                  .cache_salt = "s",
                                  .rotation = 4}),
        "- => prefix 0 last #6");
    /* Who does not ask is not refused, and its leaf has none. */
    CHECK_STR(kit_insert(kit,
                  (struct kit_insert){
                      .tokens = LIST(8, 9, 1), .slots = LIST(40, 41, 60), .prev = 2}),
        "- => prefix 2 last #7");
    CHECK_EQ(base_of(kit, 7), -1);
    CHECK_EQ(base_of(kit, 5), 8);
    kit_free(kit);
}

TEST(a_base_out_of_range_is_refused_by_name)
{
    struct kit *kit = kit_new((struct kit_setup){0});
    const int64_t bad[] = {-2, (int64_t)KVG_TREE_ROTATION_MAX + 1, INT64_MIN, INT64_MAX};
    struct kvg_tree_insert insert;
    uint32_t token = 1;
    struct kvg_span span = {10, KVG_BUFFER_POOL, 1};

    kvg_tree_insert_init(&insert);
    CHECK_EQ(insert.rotation_base, -1);
    insert.key = (struct kvg_tree_key){.tokens = &token, .token_count = 1};
    insert.value = &span;
    insert.value_count = 1;
    for (size_t i = 0; i < 4; i++) {
        insert.rotation_base = bad[i];
        CHECK_EQ(kvg_tree_insert_begin(
                     kit->tree, &insert, &kit->actions, &kit->inserted, &kit->error),
            KVG_EINVAL);
        CHECK_STR(kit->error.field, "insert.rotation_base");
    }
    insert.rotation_base = KVG_TREE_ROTATION_MAX;
    CHECK_EQ(kvg_tree_insert_begin(
                 kit->tree, &insert, &kit->actions, &kit->inserted, &kit->error),
        KVG_OK);
    CHECK_EQ(base_of(kit, 2), KVG_TREE_ROTATION_MAX);
    kit_free(kit);
}

TEST(nodes_that_an_earlier_insert_counted_count_no_hit)
{
    struct kit *kit = kit_new((struct kit_setup){0});

    kit_insert_run(kit, LIST(1, 2), 10); /* #2 */
    kit_insert(kit, (struct kit_insert){.tokens = LIST(1, 2, 3, 4),
                        .slots = LIST(10, 11, 12, 13),
                        .prev = 2,
                        .inserted = 2}); /* #3 */
    CHECK_EQ(kit_get(kit, 2).hits, 1);
    CHECK_EQ(kit_get(kit, 3).hits, 1);
    /* A node that ends beyond it counts, though it begins before. */
    kit_insert(kit, (struct kit_insert){.tokens = LIST(1, 2, 3, 4, 5),
                        .slots = LIST(10, 11, 12, 13, 14),
                        .prev = 4,
                        .inserted = 3}); /* #4 */
    CHECK_EQ(kit_get(kit, 2).hits, 1);
    CHECK_EQ(kit_get(kit, 3).hits, 2);
    CHECK_EQ(kit_get(kit, 4).hits, 1);
    /* A leaf inside it counts none either, and no backup falls due. */
    kvg_tree_settings(kit->tree)->external_store = true;
    kvg_tree_settings(kit->tree)->write_through_hits = 1;
    CHECK_STR(kit_insert(kit,
                  (struct kit_insert){
                      .tokens = LIST(7, 8), .slots = LIST(20, 21), .inserted = 2}),
        "- => prefix 0 last #5");
    CHECK_EQ(kit_get(kit, 5).hits, 0);
    kit_free(kit);
}

TEST_MAIN(RUN(a_leaf_has_the_base_it_was_inserted_with_and_the_root_has_none),
    RUN(a_split_leaves_the_base_on_both_halves),
    RUN(the_same_base_goes_on_where_the_path_ends),
    RUN(another_base_is_declined_and_nothing_changes),
    RUN(only_the_deepest_node_that_is_met_decides),
    RUN(a_base_out_of_range_is_refused_by_name),
    RUN(nodes_that_an_earlier_insert_counted_count_no_hit))
