/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* Events of the tree: one stored and one removed a page and medium, in order, and on the wire. */
#include "test.h"
#include "tree_kit.h"

#include <kvgraft/event.h>

static struct kit *new_kit(uint32_t page_size)
{
    return kit_new((struct kit_setup){.page_size = page_size, .events = true});
}

static struct kvg_tree_event only(struct kit *kit)
{
    struct kvg_tree_event event;

    CHECK_EQ(kvg_tree_events_take(kit->tree), 1);
    CHECK(kvg_tree_event_get(kit->tree, 0, &event));
    return event;
}

TEST(what_was_stored_is_removed_under_the_same_hashes)
{
    struct kit *kit = new_kit(2);
    int64_t hashes[2];

    kit_insert_run(kit, LIST(1, 2, 3, 4), 10);
    struct kvg_tree_event event = only(kit);
    CHECK_EQ(event.kind, KVG_TREE_STORED);
    CHECK_EQ(event.medium, KVG_MEDIUM_DEVICE);
    CHECK_EQ(event.hash_count, 2);
    CHECK_EQ(event.hashes[0], INT64_C(3817746824117602890));
    CHECK_EQ(event.hashes[1], INT64_C(-4216701448867210342));
    CHECK(!event.has_parent);
    CHECK_EQ(event.page_size, 2);
    CHECK_EQ(event.word_count, 4);
    CHECK_EQ(event.words[3], 4);
    CHECK(event.cache_salt.data == NULL);
    memcpy(hashes, event.hashes, sizeof(hashes));

    kit_evict(kit, 4, 0, 0);
    event = only(kit);
    CHECK_EQ(event.kind, KVG_TREE_REMOVED);
    CHECK_EQ(event.hash_count, 2);
    CHECK_MEM(event.hashes, hashes, sizeof(hashes));
    kit_free(kit);
}

TEST(a_prefix_hit_tells_nothing_and_a_tail_names_its_parent)
{
    struct kit *kit = new_kit(2);

    kit_insert_run(kit, LIST(1, 2, 3, 4), 10);
    int64_t last = only(kit).hashes[1];
    kit_insert_run(kit, LIST(1, 2, 3, 4), 20);
    CHECK_EQ(kvg_tree_events_take(kit->tree), 0);
    kit_insert(kit, (struct kit_insert){.tokens = LIST(1, 2, 3, 4, 5, 6),
                        .slots = LIST(10, 11, 12, 13, 30, 31),
                        .prev = 4,
                        .session = "talk"});
    struct kvg_tree_event event = only(kit);
    CHECK(event.has_parent);
    CHECK_EQ(event.parent, last);
    CHECK_EQ(event.hash_count, 1);
    CHECK_EQ(event.session_id.bytes, 4);
    CHECK_MEM(event.session_id.data, "talk", 4);
    kit_free(kit);
}

TEST(hashes_depend_on_the_salt_and_not_on_the_extra_key)
{
    struct kit *kit = new_kit(2);

    kit_insert_run(kit, LIST(1, 2), 10);
    int64_t plain = only(kit).hashes[0];
    kit_insert(kit, (struct kit_insert){
                        .tokens = LIST(1, 2), .slots = LIST(20, 21), .extra_key = "a"});
    CHECK_EQ(only(kit).hashes[0], plain);
    kit_insert(kit, (struct kit_insert){
                        .tokens = LIST(1, 2), .slots = LIST(30, 31), .cache_salt = "s"});
    struct kvg_tree_event event = only(kit);
    CHECK(event.hashes[0] != plain);
    CHECK_EQ(event.cache_salt.bytes, 1);
    CHECK_MEM(event.cache_salt.data, "s", 1);
    /* Halves of a split have a hash each, and the chain goes on from the second. */
    kit_insert(kit, (struct kit_insert){.tokens = LIST(1, 2, 3, 4, 5, 6),
                        .slots = LIST(30, 31, 40, 41, 42, 43),
                        .prev = 2,
                        .cache_salt = "s"});
    event = only(kit);
    int64_t middle = event.hashes[0];
    CHECK_EQ(event.hash_count, 2);
    kit_insert(kit, (struct kit_insert){.tokens = LIST(1, 2, 3, 4, 7, 8),
                        .slots = LIST(30, 31, 40, 41, 50, 51),
                        .prev = 4,
                        .cache_salt = "s"});
    event = only(kit);
    CHECK_EQ(event.parent, middle);
    kit_free(kit);
}

TEST(pairs_are_published_as_pairs)
{
    struct kit *kit =
        kit_new((struct kit_setup){.page_size = 2, .eagle = true, .events = true});

    kit_insert_run(kit, LIST(1, 2, 3), 10);
    struct kvg_tree_event event = only(kit);
    CHECK_EQ(event.words_per_unit, 2);
    CHECK_EQ(event.word_count, 4);
    CHECK_EQ(event.words[0], 1);
    CHECK_EQ(event.words[1], 2);
    CHECK_EQ(event.words[2], 2);
    CHECK_EQ(event.words[3], 3);
    kit_free(kit);
}

TEST(the_wire_says_the_same)
{
    static const enum kvg_event_dialect dialects[] = {
        KVG_DIALECT_ENGINE_MAP, KVG_DIALECT_ENGINE_ARRAY};

    for (int i = 0; i < 2; i++) {
        struct kit *kit = new_kit(2);
        struct kvg_event_writer *writer;
        struct kvg_event_reader reader;
        struct kvg_event read;
        struct kvg_str payload;
        uint64_t hash;
        kit_insert(kit, (struct kit_insert){.tokens = LIST(1, 2, 3, 4),
                            .slots = LIST(10, 11, 12, 13),
                            .cache_salt = "s"});
        kit_evict(kit, 4, 0, 0);
        CHECK_EQ(kvg_tree_events_add_cleared(kit->tree), KVG_OK);
        CHECK_EQ(kvg_tree_events_take(kit->tree), 3);
        CHECK_EQ(kvg_event_writer_new(kvg_alloc_default(), dialects[i], &writer), KVG_OK);
        kvg_event_writer_begin(writer, 1000, false, 0);
        struct kvg_tree_event events[3];
        for (size_t j = 0; j < 3; j++) {
            CHECK(kvg_tree_event_get(kit->tree, j, &events[j]));
            kvg_tree_event_write(&events[j], writer);
        }
        CHECK_EQ(kvg_event_writer_end(writer, &payload), KVG_OK);

        kvg_event_reader_init(&reader, NULL);
        CHECK_EQ(kvg_event_reader_begin(&reader, payload, NULL), KVG_OK);
        CHECK(kvg_event_reader_next(&reader, &read));
        CHECK_EQ(read.kind, KVG_EVENT_STORED);
        CHECK_EQ(read.medium, KVG_MEDIUM_DEVICE);
        CHECK_EQ(read.block_size, 2);
        CHECK_EQ(read.block_hashes.count, 2);
        CHECK_EQ(read.token_ids.count, 4);
        CHECK(kvg_event_array_next(&read.block_hashes, &hash));
        CHECK_EQ((int64_t)hash, events[0].hashes[0]);
        CHECK(!read.has_parent_hash);
        CHECK_EQ(read.salt.bytes, 1);
        CHECK(kvg_event_reader_next(&reader, &read));
        CHECK_EQ(read.kind, KVG_EVENT_REMOVED);
        CHECK_EQ(read.block_hashes.count, 2);
        CHECK(kvg_event_reader_next(&reader, &read));
        CHECK_EQ(read.kind, KVG_EVENT_CLEARED);
        CHECK(!kvg_event_reader_next(&reader, &read));
        kvg_event_writer_free(writer);
        kit_free(kit);
    }
}

TEST(late_page_keys_equal_those_made_from_the_start)
{
    struct kit *late = kit_new((struct kit_setup){.page_size = 2});
    struct kit *early = kit_new((struct kit_setup){.page_size = 2});
    const struct kvg_key *a;
    const struct kvg_key *b;
    uint64_t filled;

    kvg_tree_settings(early->tree)->storage = true;
    for (int i = 0; i < 2; i++) {
        struct kit *kit = i == 0 ? late : early;
        kit_insert_run(kit, LIST(1, 2, 3, 4), 10);
        kit_insert_run(kit, LIST(1, 2, 5, 6), 20);
    }
    CHECK_EQ(kvg_tree_node_page_keys(late->tree, kit_node(late, 4), &a), 0);
    CHECK_EQ(kvg_tree_backfill_page_keys(late->tree, &filled), KVG_OK);
    CHECK_EQ(filled, 3);
    for (uint64_t number = 2; number <= 4; number++) {
        CHECK_EQ(kvg_tree_node_page_keys(late->tree, kit_node(late, number), &a), 1);
        CHECK_EQ(kvg_tree_node_page_keys(early->tree, kit_node(early, number), &b), 1);
        CHECK_MEM(a, b, sizeof(*a));
    }
    CHECK_EQ(kvg_tree_backfill_page_keys(late->tree, &filled), KVG_OK);
    CHECK_EQ(filled, 0);
    kit_free(late);
    kit_free(early);
}

TEST_MAIN(RUN(what_was_stored_is_removed_under_the_same_hashes),
    RUN(a_prefix_hit_tells_nothing_and_a_tail_names_its_parent),
    RUN(hashes_depend_on_the_salt_and_not_on_the_extra_key),
    RUN(pairs_are_published_as_pairs), RUN(the_wire_says_the_same),
    RUN(late_page_keys_equal_those_made_from_the_start))
