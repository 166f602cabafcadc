/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* What a tree publishes is what a reader of engines' events gets, field by field: random programs
 * with namespaces, sessions, pairs and both tiers, in both dialects. */
#include "test.h"
#include "tree_kit.h"

#include "base/rng.h"

#include <kvgraft/event.h>
#include <kvgraft/tree_survey.h>

struct wire {
    struct kit *kit;
    struct kvi_rng rng;
    struct kvg_event_writer *writers[2];
    uint64_t kinds[3], pairs, parents, host, salts, sessions; /* Seen. */
};

static const enum kvg_event_dialect DIALECTS[] = {
    KVG_DIALECT_ENGINE_MAP, KVG_DIALECT_ENGINE_ARRAY};

static uint32_t below(struct wire *wire, uint32_t bound)
{
    return (uint32_t)kvi_rng_below(&wire->rng, bound);
}

static void check_text(struct kvg_str read, struct kvg_str sent)
{
    CHECK_EQ(read.data == NULL, sent.data == NULL);
    CHECK_EQ(read.bytes, sent.bytes);
    if (sent.bytes != 0)
        CHECK_MEM(read.data, sent.data, sent.bytes);
}

static void check_words(const struct kvg_event *read, const struct kvg_tree_event *sent)
{
    struct kvg_event_array array = read->token_ids;

    CHECK_EQ(read->token_pairs, sent->words_per_unit == 2);
    CHECK_EQ((size_t)array.count * sent->words_per_unit, sent->word_count);
    for (size_t i = 0; i < sent->word_count; i += sent->words_per_unit) {
        uint64_t pair[2] = {0, 0};
        if (sent->words_per_unit == 2)
            CHECK(kvg_event_array_next_pair(&array, pair));
        else
            CHECK(kvg_event_array_next(&array, pair));
        for (uint32_t j = 0; j < sent->words_per_unit; j++)
            CHECK_EQ(pair[j], sent->words[i + j]);
    }
    CHECK_EQ(array.bytes, 0);
}

static void check_read(const struct kvg_event *read, const struct kvg_tree_event *sent,
    enum kvg_event_dialect dialect)
{
    static const enum kvg_event_kind kinds[] = {
        KVG_EVENT_STORED, KVG_EVENT_REMOVED, KVG_EVENT_CLEARED};
    struct kvg_event_array hashes = read->block_hashes;
    uint64_t hash;

    CHECK_EQ(read->kind, kinds[sent->kind]);
    CHECK_EQ(read->form, KVG_FORM_ENGINE);
    CHECK_EQ(read->encoding,
        dialect == KVG_DIALECT_ENGINE_MAP ? KVG_ENCODING_MAP : KVG_ENCODING_ARRAY);
    if (sent->kind == KVG_TREE_CLEARED)
        CHECK(read->medium_name.data == NULL); /* Everything everywhere. */
    else
        CHECK_EQ(read->medium, sent->medium);
    CHECK_EQ(hashes.count, sent->hash_count);
    for (size_t i = 0; i < sent->hash_count; i++) {
        CHECK(kvg_event_array_next(&hashes, &hash));
        CHECK_EQ((int64_t)hash, sent->hashes[i]);
    }
    CHECK_EQ(hashes.bytes, 0);
    if (sent->kind != KVG_TREE_STORED) {
        CHECK_EQ(read->token_ids.count, 0);
        CHECK(!read->has_parent_hash);
        return;
    }
    CHECK_EQ(read->has_parent_hash, sent->has_parent);
    if (sent->has_parent)
        CHECK_EQ((int64_t)read->parent_hash, sent->parent);
    CHECK(read->has_block_size);
    CHECK_EQ(read->block_size, sent->page_size);
    CHECK(!read->has_lora_id);
    CHECK(read->lora_name.data == NULL);
    check_text(read->salt, sent->cache_salt);
    check_text(read->session_id, sent->session_id);
    check_words(read, sent);
}

static void count_seen(struct wire *wire, const struct kvg_tree_event *event)
{
    wire->kinds[event->kind]++;
    wire->pairs += event->words_per_unit == 2;
    wire->parents += event->has_parent;
    wire->host += event->medium == KVG_MEDIUM_CPU;
    wire->salts += event->cache_salt.data != NULL;
    wire->sessions += event->session_id.data != NULL;
}

/* Takes what was recorded, and sends it both ways. */
static void publish(struct wire *wire)
{
    size_t count = kvg_tree_events_take(wire->kit->tree);
    struct kvg_tree_event sent;

    for (int i = 0; i < 2; i++) {
        struct kvg_event_reader reader;
        struct kvg_event read;
        struct kvg_str payload;
        kvg_event_writer_begin(wire->writers[i], 1000, true, 3);
        for (size_t j = 0; j < count; j++) {
            CHECK(kvg_tree_event_get(wire->kit->tree, j, &sent));
            kvg_tree_event_write(&sent, wire->writers[i]);
            if (i == 0)
                count_seen(wire, &sent);
        }
        CHECK(!kvg_tree_event_get(wire->kit->tree, count, &sent));
        CHECK_EQ(kvg_event_writer_end(wire->writers[i], &payload), KVG_OK);
        kvg_event_reader_init(&reader, NULL);
        CHECK_EQ(kvg_event_reader_begin(&reader, payload, NULL), KVG_OK);
        for (size_t j = 0; j < count; j++) {
            CHECK(kvg_tree_event_get(wire->kit->tree, j, &sent));
            CHECK(kvg_event_reader_next(&reader, &read));
            check_read(&read, &sent, DIALECTS[i]);
            CHECK_EQ(read.dp_rank, 3);
        }
        CHECK(!kvg_event_reader_next(&reader, &read));
        CHECK(!reader.broken);
        CHECK_EQ(reader.counts.unknown_fields, 0);
        CHECK_EQ(reader.counts.ignored_values, 0);
        CHECK_EQ(reader.counts.bad_events, 0);
        CHECK_EQ(reader.counts.unknown_kinds, 0);
    }
}

static void insert(struct wire *wire)
{
    static const char *const names[] = {NULL, "a", "tenant \xc3\xa9"};
    static const char *const sessions[] = {NULL, "s-1", "s-2"};
    uint32_t tokens[12];
    uint32_t slots[12];
    uint32_t count = 1 + below(wire, 12);
    static uint32_t next;

    for (uint32_t i = 0; i < count; i++) {
        tokens[i] = below(wire, 20) == 0 ? UINT32_MAX : 1 + below(wire, 2);
        slots[i] = 1 + next++ % 60000;
    }
    kit_insert(wire->kit, (struct kit_insert){.tokens = {tokens, count},
                              .slots = {slots, count},
                              .extra_key = names[below(wire, 3)],
                              .cache_salt = names[below(wire, 3)],
                              .session = sessions[below(wire, 3)]});
}

/* Writes a node to host, if its parent has a copy there. */
static void backup(struct wire *wire, kvg_node_id node)
{
    struct kvg_tree_transfer transfers[KVG_COMPONENT_MAX];
    struct kvg_span span = {wire->kit->next_host, KVG_BUFFER_POOL, 0};
    struct kvg_tree *tree = wire->kit->tree;
    size_t count;

    if (kvg_tree_write_build(tree, node, transfers, &count, NULL) != KVG_OK || count == 0)
        return;
    for (size_t i = 0; i < transfers[0].span_count; i++)
        span.length += transfers[0].spans[i].length;
    wire->kit->next_host += span.length;
    transfers[0].spans = &span;
    transfers[0].span_count = 1;
    if (kvg_tree_write_commit(tree, transfers, count, NULL) == KVG_OK)
        CHECK_EQ(kvg_tree_write_finish(tree, &node, 1, node, NULL), KVG_OK);
}

/* A walk that writes some nodes and demotes some leaves. */
static void move_nodes(struct wire *wire)
{
    struct kvg_tree *tree = wire->kit->tree;
    struct kvg_tree_evicted step;

    for (kvg_node_id id = kvg_tree_walk_next(tree, kvg_tree_root(tree));
         id != KVG_NODE_NONE; id = kvg_tree_walk_next(tree, id)) {
        if (below(wire, 2) == 0)
            backup(wire, id);
        if (below(wire, 3) == 0)
            (void)!kvg_tree_demote(tree, id, &wire->kit->actions, &step, NULL);
    }
    kvg_actions_clear(&wire->kit->actions);
    kit_check(wire->kit);
}

static void run(struct wire *wire, uint64_t seed, bool eagle, uint32_t page_size)
{
    struct kvg_tree_evicted step;

    wire->rng.state = seed;
    wire->kit = kit_new(
        (struct kit_setup){.page_size = page_size, .eagle = eagle, .events = true});
    wire->kit->next_host = 1;
    kvg_tree_settings(wire->kit->tree)->host_tier = true;
    kvg_tree_settings(wire->kit->tree)->write_through_hits = UINT64_MAX;
    for (int i = 0; i < 60; i++) {
        switch (below(wire, 12)) {
        case 0:
            kit_evict(wire->kit, 1 + below(wire, 20), 0, 0);
            break;
        case 1:
            move_nodes(wire);
            break;
        case 2:
            CHECK_EQ(kvg_tree_evict_host(wire->kit->tree, KVG_COMPONENT_FULL,
                         1 + below(wire, 10), &wire->kit->actions, &step, NULL),
                KVG_OK);
            kvg_actions_clear(&wire->kit->actions);
            break;
        case 3:
            if (below(wire, 8) == 0) {
                CHECK_EQ(kvg_tree_reset(wire->kit->tree), KVG_OK);
                CHECK_EQ(kvg_tree_events_add_cleared(wire->kit->tree), KVG_OK);
            }
            break;
        default:
            insert(wire);
        }
        if (below(wire, 3) == 0)
            publish(wire);
    }
    publish(wire);
    kit_free(wire->kit);
}

TEST(everything_a_tree_publishes_is_read_as_it_was_sent)
{
    struct wire wire = {0};

    for (int i = 0; i < 2; i++)
        CHECK_EQ(kvg_event_writer_new(kvg_alloc_default(), DIALECTS[i], &wire.writers[i]),
            KVG_OK);
    for (uint64_t seed = 1; seed <= 40; seed++)
        run(&wire, seed, seed % 2 == 0, 1 + (uint32_t)(seed % 3));
    for (int i = 0; i < 2; i++)
        kvg_event_writer_free(wire.writers[i]);
    /* The programs met what they are for. */
    CHECK(wire.kinds[KVG_TREE_STORED] > 200 && wire.kinds[KVG_TREE_REMOVED] > 50);
    CHECK(wire.kinds[KVG_TREE_CLEARED] > 5);
    CHECK(wire.pairs > 50 && wire.parents > 50 && wire.host > 50);
    CHECK(wire.salts > 50 && wire.sessions > 50);
}

TEST_MAIN(RUN(everything_a_tree_publishes_is_read_as_it_was_sent))
