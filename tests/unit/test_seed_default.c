/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* The seed client's own tests, by their names, under the default profile: the same questions,
 * and the answer wanted here.  Where it is another one the test says so; test_profiles.c shows
 * both side by side.  test_dynamo.c has the same tests under the profile "dynamo-1.5". */
#include "test.h"

#include "base/fmt.h"
#include "default_client.h"

static void check_hex(const struct kvg_key *key, const char *expected)
{
    char hex[KVG_KEY_HEX_BYTES];

    kvg_key_to_hex(key, hex);
    CHECK_STR(hex, expected);
}

static struct kvg_layout *new_layout(const struct kvg_worker_config *config)
{
    struct kvg_layout *layout;

    CHECK_EQ(kvg_layout_new(kvg_alloc_default(), &config->layout, NULL, &layout), KVG_OK);
    return layout;
}

/* The object keys of a layout's page, in order. */
static void check_names(
    const struct kvg_worker_config *config, const char *const *names, size_t name_count)
{
    struct kvg_layout *layout = new_layout(config);
    struct kvg_key key;
    uint32_t part;

    CHECK(kvg_key_from_hex(kvi_str(SEED_HASH0), &key));
    CHECK_EQ(kvg_layout_part_count(layout), name_count);
    for (part = 0; part < name_count; part++) {
        char name[KVG_OBJECT_KEY_BYTES_MAX + 1];
        struct kvg_object_key object;
        size_t bytes = kvg_layout_object_key(layout, &key, part, name);

        CHECK_STR(name, names[part]);
        CHECK(kvg_object_key_parse((struct kvg_str){name, bytes}, &object));
        CHECK_EQ(kvg_layout_part_of(layout, &object), part);
    }
    kvg_layout_free(layout);
}

static void init_plain(struct default_client *client)
{
    struct kvg_worker_config config = seed_worker();

    client_init(client, false, 0);
    client_set_worker(client, 1, &config);
}

static const struct seed_event PAGES_LABELLED[] = {
    {"stored", SEED_HASH0 "_0_k", NULL, "sglang-hicache:" SEED_HASH0},
    {"stored", SEED_HASH0 "_0_v", NULL, "sglang-hicache:" SEED_HASH0},
    {"stored", SEED_HASH1 "_0_k", NULL, "sglang-hicache:" SEED_HASH1},
    {"stored", SEED_HASH1 "_0_v", NULL, "sglang-hicache:" SEED_HASH1},
};

TEST(logical_page_hashes_match_sglang_for_normal_tokens)
{
    static const uint32_t TOKENS[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
    struct kvg_page_rule rule = {4, false};
    struct kvg_key keys[3];

    CHECK_EQ(kvg_page_keys(&rule, NULL, TOKENS, 10, keys, 3), 2);
    check_hex(&keys[0], SEED_HASH0);
    check_hex(&keys[1], SEED_HASH1);
}

TEST(logical_page_hashes_match_sglang_for_eagle_tokens)
{
    static const uint32_t TOKENS[] = {10, 11, 12, 13, 14};
    struct kvg_page_rule rule = {2, true};
    struct kvg_key keys[3];

    CHECK_EQ(kvg_page_keys(&rule, NULL, TOKENS, 5, keys, 3), 2);
    check_hex(
        &keys[0], "4bde82677ba8b6de843da1713b58a439678ec01b642bbdcffec4acfa81b0ec8e");
    check_hex(
        &keys[1], "75ab93a767bad1e254945d1a0ccfa1588d6ebb803303e412d984baedcbbf04b9");
}

TEST(expand_actual_query_keys_for_mha_tp_pp_layout)
{
    static const char *const NAMES[] = {SEED_HASH0 "_0_0_k", SEED_HASH0 "_0_0_v",
        SEED_HASH0 "_1_0_k", SEED_HASH0 "_1_0_v", SEED_HASH0 "_0_1_k",
        SEED_HASH0 "_0_1_v", SEED_HASH0 "_1_1_k", SEED_HASH0 "_1_1_v"};
    struct kvg_worker_config config = seed_worker();

    config.layout.tp_size = 2;
    config.layout.pp_size = 2;
    check_names(&config, NAMES, 8);
}

TEST(expand_actual_query_keys_for_mla_without_pp_uses_double_underscore)
{
    static const char *const NAMES[] = {SEED_HASH0 "__k"};
    struct kvg_worker_config config = seed_worker();

    config.layout.mla = true;
    check_names(&config, NAMES, 1);
}

TEST(expand_actual_query_keys_for_split_heads)
{
    static const char *const NAMES[] = {"tag_" SEED_HASH0 "_0_k",
        "tag_" SEED_HASH0 "_0_v", "tag_" SEED_HASH0 "_1_k", "tag_" SEED_HASH0 "_1_v",
        "tag_" SEED_HASH0 "_2_k", "tag_" SEED_HASH0 "_2_v", "tag_" SEED_HASH0 "_3_k",
        "tag_" SEED_HASH0 "_3_v"};
    struct kvg_worker_config config = seed_worker();

    config.layout.tp_size = 2;
    config.layout.tp_lcm_size = 4;
    config.layout.split_heads = true;
    config.layout.tag = kvi_str("tag");
    check_names(&config, NAMES, 8);
}

TEST(sglang_group_id_uses_extra_backend_tag)
{
    struct kvg_worker_config config = seed_worker();
    char group[KVG_GROUP_ID_BYTES_MAX + 1];
    struct kvg_layout *layout;
    struct kvg_key key;

    config.layout.tag = kvi_str("tag");
    layout = new_layout(&config);
    CHECK(kvg_key_from_hex(kvi_str(SEED_HASH0), &key));
    kvg_layout_group_id(layout, &key, group);
    CHECK_STR(group, "sglang-hicache:tag_" SEED_HASH0);
    kvg_layout_free(layout);
}

TEST(parse_mooncake_event_frames)
{
    struct seed_event sent = {"stored", "key-0", "default", "group-0"};
    struct seed_message message;
    struct kvg_event_reader reader;
    struct kvg_frames frames;
    struct kvg_event event;

    seed_message_init(&message, 7, &sent, 1);
    CHECK_EQ(kvg_frames_parse(message.frames, 3, NULL, &frames), KVG_OK);
    CHECK_EQ(frames.sequence, 7);
    kvg_event_reader_init(&reader, NULL);
    CHECK_EQ(kvg_event_reader_begin(&reader, frames.payload, NULL), KVG_OK);
    CHECK(kvg_event_reader_next(&reader, &event));
    CHECK_EQ(event.kind, KVG_EVENT_STORED);
    CHECK(kvi_str_equal(event.object_key, kvi_str("key-0")));
    CHECK(kvi_str_equal(event.group_id, kvi_str("group-0")));
    CHECK(!kvg_event_reader_next(&reader, &event));
    seed_message_fini(&message);
}

static void check_endpoint(const struct default_client *client, const char *expected)
{
    struct kvg_workers_view view;

    kvg_workers_view(client->workers, &view);
    if (expected == NULL)
        CHECK(view.endpoint.data == NULL);
    else
        CHECK(kvi_str_equal(view.endpoint, kvi_str(expected)));
}

TEST(kv_events_endpoint_tracks_runtime_config_updates)
{
    struct default_client client;
    struct kvg_worker_config config = seed_worker();

    init_plain(&client);
    check_endpoint(&client, "tcp://127.0.0.1:5557");
    config.kv_events_endpoint = kvi_str("tcp://127.0.0.1:5558");
    client_set_worker(&client, 1, &config);
    check_endpoint(&client, "tcp://127.0.0.1:5558");
    client_fini(&client);
}

TEST(kv_events_endpoint_tolerates_worker_metadata_omission)
{
    struct default_client client;
    struct kvg_worker_config config = seed_worker();

    init_plain(&client);
    config.kv_events_endpoint = (struct kvg_str){NULL, 0};
    client_set_worker(&client, 2, &config);
    check_endpoint(&client, "tcp://127.0.0.1:5557");
    client_fini(&client);
}

TEST(frontend_kv_events_endpoint_overrides_worker_metadata)
{
    struct default_client client;
    struct kvg_worker_config config = seed_worker();

    config.kv_events_endpoint = (struct kvg_str){NULL, 0};
    client_init(&client, false, 0);
    client_set_worker(&client, 1, &config);
    CHECK_EQ(kvg_workers_override_endpoint(
                 client.workers, kvi_str("tcp://frontend-config:5557")),
        KVG_OK);
    check_endpoint(&client, "tcp://frontend-config:5557");
    client_fini(&client);
}

/* Another layout has no hits, since its parts are not there.  But nothing is cleared: what the
 * store holds does not change with what a worker advertises, and the old layout still hits. */
TEST(layout_change_has_no_hits_and_clears_nothing)
{
    struct default_client client;
    struct kvg_worker_config config = seed_worker();

    init_plain(&client);
    client_send(&client, 1, PAGES_LABELLED, 2);
    CHECK_EQ(client_hits(&client, 4), 1);
    config.layout.tp_size = 2;
    client_set_worker(&client, 1, &config);
    CHECK_EQ(client_hits(&client, 4), 0);
    config.layout.tp_size = 1;
    client_set_worker(&client, 1, &config);
    CHECK_EQ(client_hits(&client, 4), 1);
    client_fini(&client);
}

TEST(check_blocks_uses_mooncake_events)
{
    struct default_client client;
    struct client_answer answer;

    init_plain(&client);
    client_send(&client, 1,
        (struct seed_event[]){{"stored", SEED_HASH0 "_0_k", NULL, NULL},
            {"stored", SEED_HASH0 "_0_v", NULL, NULL},
            {"stored", SEED_HASH1 "_0_k", NULL, NULL}},
        3);
    answer = client_ask(&client, 0, 8, 0, NULL, NULL);
    CHECK_EQ(answer.lookup.range_count, 1);
    CHECK_EQ(answer.ranges[0].begin, 0);
    CHECK_EQ(answer.ranges[0].end, 1);
    CHECK_EQ(answer.lookup.total, 1);
    CHECK_EQ(answer.lookup.confidence, KVG_CONFIDENCE_FRESH);
    CHECK_EQ(answer.lookup.first_missing, 1);
    CHECK_EQ(answer.lookup.missing_parts, 1);
    client_send(
        &client, 2, &(struct seed_event){"removed", SEED_HASH0 "_0_v", NULL, NULL}, 1);
    CHECK_EQ(client_hits(&client, 8), 0);
    client_fini(&client);
}

/* Labels play no role: the object key says which page it is of. */
TEST(check_blocks_misses_the_page_of_an_unlabeled_removal_and_no_other)
{
    struct default_client client;

    init_plain(&client);
    client_send(&client, 1, PAGES_LABELLED, 4);
    CHECK_EQ(client_hits(&client, 8), 2);
    client_send(
        &client, 2, &(struct seed_event){"removed", SEED_HASH0 "_0_v", NULL, NULL}, 1);
    CHECK_EQ(client_hits(&client, 4), 0);
    CHECK_EQ(client_hits(&client, 8), 1);
    client_fini(&client);
}

TEST(labeled_removal_preserves_other_pages)
{
    struct default_client client;
    struct client_answer answer;

    init_plain(&client);
    client_send(&client, 1, PAGES_LABELLED, 4);
    CHECK_EQ(client_hits(&client, 8), 2);
    client_send(&client, 2,
        &(struct seed_event){
            "removed", SEED_HASH0 "_0_k", NULL, "sglang-hicache:" SEED_HASH0},
        1);
    answer = client_ask(&client, 0, 8, 0, NULL, NULL);
    CHECK_EQ(answer.lookup.total, 1);
    CHECK_EQ(answer.ranges[0].begin, 1);
    client_fini(&client);
}

TEST(duplicate_sequence_preserves_shared_cache_state)
{
    struct default_client client;

    init_plain(&client);
    client_send(&client, 0, PAGES_LABELLED, 2);
    client_send(&client, 0, PAGES_LABELLED, 2);
    CHECK_EQ(client_hits(&client, 4), 1);
    CHECK_EQ(client_stats(&client).duplicates, 1);
    CHECK_EQ(
        client_ask(&client, 0, 4, 0, NULL, NULL).lookup.confidence, KVG_CONFIDENCE_FRESH);
    client_fini(&client);
}

/* At its limit the index lets cold pages go and says that it holds a part only. */
TEST(index_size_limit_lets_cold_pages_go_and_keeps_the_rest)
{
    struct kvg_presence_stats stats = {.struct_bytes = sizeof(stats)};
    struct default_client client;
    struct kvg_worker_config config = seed_worker();
    uint64_t sequence;

    client_init(&client, false, 1u << 20);
    client_set_worker(&client, 1, &config);
    for (sequence = 1; sequence <= 600; sequence++) {
        char names[100][80];
        struct seed_event events[100];
        size_t i;

        for (i = 0; i < 100; i++) {
            uint64_t number = sequence * 100 + i;
            char hex[KVG_KEY_HEX_BYTES];
            struct kvg_key key;

            kvg_sha256(&number, sizeof(number), key.bytes);
            kvg_key_to_hex(&key, hex);
            snprintf(names[i], sizeof(names[i]), "%s_0_k", hex);
            events[i] = (struct seed_event){"stored", names[i], NULL, NULL};
        }
        client_send(&client, sequence, events, 100);
    }
    client_send(&client, sequence, PAGES_LABELLED, 4);
    CHECK_EQ(client_hits(&client, 8), 2);
    kvg_presence_stats(client.index, &stats);
    CHECK(stats.evicted_pages > 0);
    CHECK(stats.pages > 5000);
    CHECK(stats.memory_bytes <= 1u << 20);
    CHECK((client_stats(&client).reasons & KVG_REASON_MEMORY) != 0);
    client_fini(&client);
}

/* The driver tries to connect; meanwhile what is held is answered, and not called fresh. */
TEST(subscriber_without_a_connection_answers_and_says_so)
{
    struct default_client client;
    int round;

    init_plain(&client);
    client_send(&client, 1, PAGES_LABELLED, 2);
    for (round = 0; round < 3; round++) {
        kvg_source_disconnected(client.source, ++client.now_ms);
        CHECK_EQ(client_hits(&client, 4), 1);
        CHECK(client_ask(&client, 0, 4, 0, NULL, NULL).lookup.confidence <
              KVG_CONFIDENCE_FRESH);
        CHECK((client_stats(&client).reasons & KVG_REASON_NO_STREAM) != 0);
    }
    client_fini(&client);
}

/* Without workers there is nothing to ask with; what is known of the store stays. */
TEST(subscriber_keeps_state_when_all_workers_go)
{
    struct default_client client;
    struct kvg_worker_config config = seed_worker();

    init_plain(&client);
    client_send(&client, 1, PAGES_LABELLED, 2);
    kvg_workers_clear(client.workers);
    check_endpoint(&client, NULL);
    CHECK(kvg_workers_layout(client.workers, 0) == NULL);
    client_set_worker(&client, 9, &config);
    CHECK_EQ(client_hits(&client, 4), 1);
    client_fini(&client);
}

TEST(sequence_gap_keeps_pages_and_makes_them_suspect)
{
    struct default_client client;
    struct client_answer answer;

    init_plain(&client);
    client_send(&client, 1, PAGES_LABELLED, 2);
    client_send(&client, 3, PAGES_LABELLED + 2, 2);
    answer = client_ask(&client, 0, 8, 0, NULL, NULL);
    CHECK_EQ(answer.lookup.total, 2);
    CHECK_EQ(answer.lookup.confidence, KVG_CONFIDENCE_SUSPECT);
    CHECK_EQ(client_stats(&client).reasons, KVG_REASON_GAP);
    CHECK_EQ(client_stats(&client).missed_sequences, 1);
    client_fini(&client);
}

/* A namespace changes the keys, so its pages are found, and nobody else's. */
TEST(check_blocks_answers_for_a_cache_namespace)
{
    static const uint32_t TOKENS[] = {1, 2, 3, 4};
    struct kvg_namespace space = {.cache_salt = kvi_str("tenant-a")};
    struct kvg_page_rule rule = {4, false};
    struct default_client client;
    char names[2][80];
    char hex[KVG_KEY_HEX_BYTES];
    struct kvg_key prior;
    struct kvg_key key;

    CHECK(kvg_namespace_prior(&space, &prior));
    CHECK_EQ(kvg_page_keys(&rule, &prior, TOKENS, 4, &key, 1), 1);
    kvg_key_to_hex(&key, hex);
    snprintf(names[0], sizeof(names[0]), "%s_0_k", hex);
    snprintf(names[1], sizeof(names[1]), "%s_0_v", hex);
    init_plain(&client);
    client_send(&client, 1, PAGES_LABELLED, 4);
    CHECK_EQ(client_ask(&client, 0, 8, 0, "tenant-a", NULL).lookup.total, 0);
    client_send(&client, 2,
        (struct seed_event[]){
            {"stored", names[0], NULL, NULL}, {"stored", names[1], NULL, NULL}},
        2);
    CHECK_EQ(client_ask(&client, 0, 8, 0, "tenant-a", NULL).lookup.total, 1);
    CHECK_EQ(client_ask(&client, 0, 8, 0, "tenant-b", NULL).lookup.total, 0);
    client_fini(&client);
}

TEST_MAIN(RUN(logical_page_hashes_match_sglang_for_normal_tokens),
    RUN(logical_page_hashes_match_sglang_for_eagle_tokens),
    RUN(expand_actual_query_keys_for_mha_tp_pp_layout),
    RUN(expand_actual_query_keys_for_mla_without_pp_uses_double_underscore),
    RUN(expand_actual_query_keys_for_split_heads),
    RUN(sglang_group_id_uses_extra_backend_tag), RUN(parse_mooncake_event_frames),
    RUN(kv_events_endpoint_tracks_runtime_config_updates),
    RUN(kv_events_endpoint_tolerates_worker_metadata_omission),
    RUN(frontend_kv_events_endpoint_overrides_worker_metadata),
    RUN(layout_change_has_no_hits_and_clears_nothing),
    RUN(check_blocks_uses_mooncake_events),
    RUN(check_blocks_misses_the_page_of_an_unlabeled_removal_and_no_other),
    RUN(labeled_removal_preserves_other_pages),
    RUN(duplicate_sequence_preserves_shared_cache_state),
    RUN(index_size_limit_lets_cold_pages_go_and_keeps_the_rest),
    RUN(subscriber_without_a_connection_answers_and_says_so),
    RUN(subscriber_keeps_state_when_all_workers_go),
    RUN(sequence_gap_keeps_pages_and_makes_them_suspect),
    RUN(check_blocks_answers_for_a_cache_namespace))
