/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* The seed client's own tests, by their names, under the profile "dynamo-1.5".  Its tests that
 * look inside look inside here too.  test_seed_default.c has the same under the default
 * profile; test_dynamo_strict.c what the seed does not test. */
#include <kvgraft/dynamo.h>

#include "base/fmt.h"
#include "fault_alloc.h"
#include "seed_stream.h"
#include "source/dynamo_state.h"
#include "test.h"

static const uint32_t TOKENS[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
static const struct kvg_str NO_NAMESPACE = {NULL, 0};

static struct kvg_dynamo *new_dynamo(struct fault_alloc *fault, const char *endpoint)
{
    struct kvg_dynamo_options options = {
        .struct_bytes = sizeof(options), .endpoint = kvi_str(endpoint), .seed = 3};
    struct kvg_dynamo *dynamo;

    fault_alloc_init(fault);
    CHECK_EQ(kvg_dynamo_new(&fault->alloc, &options, &dynamo), KVG_OK);
    return dynamo;
}

static void set_worker(
    struct kvg_dynamo *dynamo, uint64_t id, const struct kvg_worker_config *config)
{
    CHECK_EQ(kvg_dynamo_set_worker(dynamo, id, config, NULL), KVG_OK);
}

static struct kvg_dynamo *new_plain(struct fault_alloc *fault)
{
    struct kvg_dynamo *dynamo = new_dynamo(fault, NULL);
    struct kvg_worker_config config = seed_worker();

    set_worker(dynamo, 1, &config);
    return dynamo;
}

static void finish(struct fault_alloc *fault, struct kvg_dynamo *dynamo)
{
    CHECK_EQ(kvi_dynamo_check(dynamo), 0);
    kvg_dynamo_free(dynamo);
    CHECK_EQ(fault->live_bytes, 0);
}

static void apply(struct kvg_dynamo *dynamo, uint64_t sequence,
    const struct seed_event *events, size_t event_count)
{
    struct seed_message message;

    seed_message_init(&message, sequence, events, event_count);
    kvg_dynamo_message(dynamo, message.frames, 3);
    seed_message_fini(&message);
    CHECK_EQ(kvi_dynamo_check(dynamo), 0);
}

/* The hits of the first `token_count` of tokens 1 to 10. */
static uint32_t hits(struct kvg_dynamo *dynamo, size_t token_count)
{
    size_t range_count;
    uint32_t total;

    CHECK_EQ(kvg_dynamo_check_blocks(dynamo, TOKENS, token_count, 4, NO_NAMESPACE, NULL,
                 0, &range_count, &total),
        KVG_DYNAMO_ANSWERED);
    return total;
}

static struct kvg_dynamo_stats stats_of(const struct kvg_dynamo *dynamo)
{
    struct kvg_dynamo_stats stats = {.struct_bytes = sizeof(stats)};

    kvg_dynamo_stats(dynamo, &stats);
    return stats;
}

static bool group_verified(const struct kvg_dynamo *dynamo, const char *group)
{
    bool verified;

    return kvi_dynamo_has_group(dynamo, kvi_str(group), &verified) && verified;
}

static bool has_group(const struct kvg_dynamo *dynamo, const char *group)
{
    bool verified;

    return kvi_dynamo_has_group(dynamo, kvi_str(group), &verified);
}

/* The page of `tokens` is a hit with exactly these keys, and a miss without any one of them. */
static void check_needs(const struct kvg_worker_config *config, const uint32_t *tokens,
    size_t token_count, const char *const *keys, size_t key_count)
{
    struct fault_alloc fault;
    struct kvg_dynamo *dynamo = new_dynamo(&fault, NULL);
    uint32_t page_size = config->layout.rule.page_size;
    uint64_t sequence = 1;
    size_t range_count;
    uint32_t total;
    size_t without;
    size_t i;

    set_worker(dynamo, 1, config);
    for (without = 0; without <= key_count; without++) {
        kvg_dynamo_clear(dynamo);
        for (i = 0; i < key_count; i++) {
            if (i != without)
                apply(dynamo, sequence++,
                    &(struct seed_event){"stored", keys[i], NULL, NULL}, 1);
        }
        kvg_dynamo_check_blocks(dynamo, tokens, token_count, page_size, NO_NAMESPACE,
            NULL, 0, &range_count, &total);
        CHECK_EQ(total, without == key_count ? 1 : 0);
    }
    finish(&fault, dynamo);
}

TEST(logical_page_hashes_match_sglang_for_normal_tokens)
{
    struct fault_alloc fault;
    struct kvg_dynamo *dynamo = new_plain(&fault);

    apply(dynamo, 1,
        (struct seed_event[]){{"stored", SEED_HASH0 "_0_k", NULL, NULL},
            {"stored", SEED_HASH0 "_0_v", NULL, NULL},
            {"stored", SEED_HASH1 "_0_k", NULL, NULL},
            {"stored", SEED_HASH1 "_0_v", NULL, NULL}},
        4);
    CHECK_EQ(hits(dynamo, 10), 2); /* Tokens 9 and 10 are no page. */
    finish(&fault, dynamo);
}

TEST(logical_page_hashes_match_sglang_for_eagle_tokens)
{
    static const uint32_t EAGLE[] = {10, 11, 12, 13, 14};
    static const char *const PAGES[] = {
        "4bde82677ba8b6de843da1713b58a439678ec01b642bbdcffec4acfa81b0ec8e__k",
        "75ab93a767bad1e254945d1a0ccfa1588d6ebb803303e412d984baedcbbf04b9__k",
    };
    struct fault_alloc fault;
    struct kvg_dynamo *dynamo = new_dynamo(&fault, NULL);
    struct kvg_worker_config config = seed_worker();
    struct kvg_range range;
    size_t range_count;
    uint32_t total;

    config.layout.rule = (struct kvg_page_rule){2, true};
    config.layout.mla = true;
    set_worker(dynamo, 1, &config);
    apply(dynamo, 1,
        (struct seed_event[]){
            {"stored", PAGES[0], NULL, NULL}, {"stored", PAGES[1], NULL, NULL}},
        2);
    CHECK_EQ(kvg_dynamo_check_blocks(
                 dynamo, EAGLE, 5, 2, NO_NAMESPACE, &range, 1, &range_count, &total),
        KVG_DYNAMO_ANSWERED);
    CHECK_EQ(total, 2);
    CHECK_EQ(range_count, 1);
    CHECK_EQ(range.begin, 0);
    CHECK_EQ(range.end, 2);
    finish(&fault, dynamo);
}

TEST(expand_actual_query_keys_for_mha_tp_pp_layout)
{
    static const char *const KEYS[] = {SEED_HASH0 "_0_0_k", SEED_HASH0 "_0_0_v",
        SEED_HASH0 "_1_0_k", SEED_HASH0 "_1_0_v", SEED_HASH0 "_0_1_k",
        SEED_HASH0 "_0_1_v", SEED_HASH0 "_1_1_k", SEED_HASH0 "_1_1_v"};
    struct kvg_worker_config config = seed_worker();

    config.layout.tp_size = 2;
    config.layout.pp_size = 2;
    check_needs(&config, TOKENS, 4, KEYS, 8);
}

TEST(expand_actual_query_keys_for_mla_without_pp_uses_double_underscore)
{
    static const char *const KEYS[] = {SEED_HASH0 "__k"};
    struct kvg_worker_config config = seed_worker();

    config.layout.mla = true;
    check_needs(&config, TOKENS, 4, KEYS, 1);
    config.layout.tp_size = 8; /* Ranks do not matter. */
    config.layout.pp_size = 0;
    check_needs(&config, TOKENS, 4, KEYS, 1);
}

TEST(expand_actual_query_keys_for_mla_with_pp)
{
    static const char *const KEYS[] = {
        SEED_HASH0 "_0_k", SEED_HASH0 "_1_k", SEED_HASH0 "_2_k"};
    struct kvg_worker_config config = seed_worker();

    config.layout.mla = true;
    config.layout.pp_size = 3;
    check_needs(&config, TOKENS, 4, KEYS, 3);
}

TEST(expand_actual_query_keys_for_split_heads)
{
    static const char *const KEYS[] = {"tag_" SEED_HASH0 "_0_k", "tag_" SEED_HASH0 "_0_v",
        "tag_" SEED_HASH0 "_1_k", "tag_" SEED_HASH0 "_1_v", "tag_" SEED_HASH0 "_2_k",
        "tag_" SEED_HASH0 "_2_v", "tag_" SEED_HASH0 "_3_k", "tag_" SEED_HASH0 "_3_v"};
    struct kvg_worker_config config = seed_worker();

    config.layout.tp_size = 2;
    config.layout.tp_lcm_size = 4;
    config.layout.split_heads = true;
    config.layout.tag = kvi_str("tag");
    check_needs(&config, TOKENS, 4, KEYS, 8);
    config.layout.split_heads = false; /* Then the lcm does not matter. */
    check_needs(&config, TOKENS, 4, KEYS, 4);
    config.layout.split_heads = true;
    config.layout.tp_lcm_size = 1; /* It never shrinks below tp_size. */
    check_needs(&config, TOKENS, 4, KEYS, 4);
    config.layout.tp_lcm_size = 0;
    config.layout.tp_size = 0;
    check_needs(&config, TOKENS, 4, KEYS, 2);
}

TEST(sglang_group_id_uses_extra_backend_tag)
{
    struct kvg_worker_config config = seed_worker();
    struct fault_alloc fault;
    struct kvg_dynamo *dynamo = new_dynamo(&fault, NULL);

    config.layout.tag = kvi_str("tag");
    set_worker(dynamo, 1, &config);
    apply(dynamo, 1,
        (struct seed_event[]){
            {"stored", "tag_" SEED_HASH0 "_0_k", NULL, "sglang-hicache:tag_" SEED_HASH0},
            {"stored", "tag_" SEED_HASH0 "_0_v", NULL, "sglang-hicache:tag_" SEED_HASH0}},
        2);
    CHECK(!group_verified(dynamo, "sglang-hicache:tag_" SEED_HASH0));
    CHECK_EQ(hits(dynamo, 4), 1);
    CHECK(group_verified(dynamo, "sglang-hicache:tag_" SEED_HASH0));
    finish(&fault, dynamo);
}

TEST(parse_mooncake_event_frames)
{
    struct fault_alloc fault;
    struct kvg_dynamo *dynamo = new_plain(&fault);

    apply(dynamo, 7, &(struct seed_event){"stored", "key-0", "default", "group-0"}, 1);
    CHECK_EQ(stats_of(dynamo).last_sequence, 7);
    CHECK(kvi_dynamo_has_key(dynamo, kvi_str("key-0")));
    CHECK(has_group(dynamo, "group-0"));
    CHECK_EQ(stats_of(dynamo).errors, 0);
    finish(&fault, dynamo);
}

static void check_endpoint(struct kvg_dynamo *dynamo, const char *expected)
{
    struct kvg_str endpoint = kvg_dynamo_endpoint(dynamo);

    if (expected == NULL)
        CHECK(endpoint.data == NULL);
    else
        CHECK(kvi_str_equal(endpoint, kvi_str(expected)));
}

TEST(kv_events_endpoint_tracks_runtime_config_updates)
{
    struct fault_alloc fault;
    struct kvg_dynamo *dynamo = new_plain(&fault);
    struct kvg_worker_config config = seed_worker();

    check_endpoint(dynamo, "tcp://127.0.0.1:5557");
    config.kv_events_endpoint = kvi_str("tcp://127.0.0.1:5558");
    set_worker(dynamo, 1, &config);
    check_endpoint(dynamo, "tcp://127.0.0.1:5558");
    CHECK(kvg_dynamo_remove_worker(dynamo, 1));
    CHECK(!kvg_dynamo_remove_worker(dynamo, 1));
    check_endpoint(dynamo, NULL);
    finish(&fault, dynamo);
}

TEST(kv_events_endpoint_tolerates_worker_metadata_omission)
{
    struct fault_alloc fault;
    struct kvg_dynamo *dynamo = new_plain(&fault);
    struct kvg_worker_config config = seed_worker();

    config.kv_events_endpoint = (struct kvg_str){NULL, 0};
    set_worker(dynamo, 2, &config);
    check_endpoint(dynamo, "tcp://127.0.0.1:5557");
    config.kv_events_endpoint = kvi_str("");
    set_worker(dynamo, 0, &config);
    check_endpoint(dynamo, "tcp://127.0.0.1:5557");
    config.kv_events_endpoint = kvi_str("tcp://127.0.0.1:5558");
    set_worker(dynamo, 3, &config);
    check_endpoint(dynamo, NULL); /* Two that differ are none. */
    finish(&fault, dynamo);
}

TEST(frontend_kv_events_endpoint_overrides_worker_metadata)
{
    struct fault_alloc fault;
    struct kvg_dynamo *dynamo = new_dynamo(&fault, "tcp://frontend-config:5557");
    struct kvg_worker_config config = seed_worker();

    config.kv_events_endpoint = (struct kvg_str){NULL, 0};
    check_endpoint(dynamo, NULL); /* Without a worker there is no layout. */
    set_worker(dynamo, 1, &config);
    check_endpoint(dynamo, "tcp://frontend-config:5557");
    config.kv_events_endpoint = kvi_str("tcp://127.0.0.1:5557");
    set_worker(dynamo, 2, &config);
    config.kv_events_endpoint = kvi_str("tcp://127.0.0.1:5558");
    set_worker(dynamo, 3, &config);
    check_endpoint(dynamo, "tcp://frontend-config:5557");
    finish(&fault, dynamo);
}

static const struct seed_event PAGE0_LABELLED[] = {
    {"stored", SEED_HASH0 "_0_k", NULL, "sglang-hicache:" SEED_HASH0},
    {"stored", SEED_HASH0 "_0_v", NULL, "sglang-hicache:" SEED_HASH0},
    {"stored", SEED_HASH1 "_0_k", NULL, "sglang-hicache:" SEED_HASH1},
    {"stored", SEED_HASH1 "_0_v", NULL, "sglang-hicache:" SEED_HASH1},
};

TEST(layout_change_clears_cached_hits)
{
    struct fault_alloc fault;
    struct kvg_dynamo *dynamo = new_plain(&fault);
    struct kvg_worker_config config = seed_worker();

    apply(dynamo, 1, PAGE0_LABELLED, 2);
    CHECK_EQ(hits(dynamo, 4), 1);
    config.layout.tp_size = 2;
    set_worker(dynamo, 1, &config);
    CHECK_EQ(hits(dynamo, 4), 0);
    CHECK_EQ(stats_of(dynamo).present_keys, 0);
    CHECK_EQ(stats_of(dynamo).group_states, 0);
    CHECK(!stats_of(dynamo).has_sequence);
    CHECK_EQ(stats_of(dynamo).layout_clears, 1);
    finish(&fault, dynamo);
}

TEST(check_blocks_uses_mooncake_events)
{
    struct fault_alloc fault;
    struct kvg_dynamo *dynamo = new_plain(&fault);
    struct kvg_range ranges[2];
    size_t range_count;
    uint32_t total;

    apply(dynamo, 1,
        (struct seed_event[]){{"stored", SEED_HASH0 "_0_k", NULL, NULL},
            {"stored", SEED_HASH0 "_0_v", NULL, NULL},
            {"stored", SEED_HASH1 "_0_k", NULL, NULL}},
        3);
    CHECK_EQ(kvg_dynamo_check_blocks(
                 dynamo, TOKENS, 8, 4, NO_NAMESPACE, ranges, 2, &range_count, &total),
        KVG_DYNAMO_ANSWERED);
    CHECK_EQ(range_count, 1);
    CHECK_EQ(ranges[0].begin, 0);
    CHECK_EQ(ranges[0].end, 1);
    CHECK_EQ(total, 1);
    apply(dynamo, 2, &(struct seed_event){"removed", SEED_HASH0 "_0_v", NULL, NULL}, 1);
    CHECK_EQ(hits(dynamo, 8), 0);
    finish(&fault, dynamo);
}

TEST(check_blocks_invalidates_group_on_unlabeled_removal)
{
    struct fault_alloc fault;
    struct kvg_dynamo *dynamo = new_plain(&fault);

    apply(dynamo, 1, PAGE0_LABELLED, 2);
    CHECK_EQ(hits(dynamo, 4), 1);
    CHECK(group_verified(dynamo, "sglang-hicache:" SEED_HASH0));
    apply(dynamo, 2, &(struct seed_event){"removed", SEED_HASH0 "_0_v", NULL, NULL}, 1);
    CHECK_EQ(stats_of(dynamo).group_states, 0);
    CHECK_EQ(hits(dynamo, 4), 0);
    finish(&fault, dynamo);
}

TEST(labeled_removal_preserves_other_verified_groups)
{
    struct fault_alloc fault;
    struct kvg_dynamo *dynamo = new_plain(&fault);

    apply(dynamo, 1, PAGE0_LABELLED, 4);
    CHECK_EQ(hits(dynamo, 8), 2);
    apply(dynamo, 2,
        &(struct seed_event){
            "removed", SEED_HASH0 "_0_k", NULL, "sglang-hicache:" SEED_HASH0},
        1);
    CHECK(!has_group(dynamo, "sglang-hicache:" SEED_HASH0));
    CHECK(group_verified(dynamo, "sglang-hicache:" SEED_HASH1));
    finish(&fault, dynamo);
}

TEST(duplicate_sequence_preserves_shared_cache_state)
{
    struct fault_alloc fault;
    struct kvg_dynamo *dynamo = new_plain(&fault);

    apply(dynamo, 0, &(struct seed_event){"stored", "key-0", NULL, NULL}, 1);
    apply(dynamo, 0, &(struct seed_event){"removed", "key-0", NULL, NULL}, 1);
    CHECK(kvi_dynamo_has_key(dynamo, kvi_str("key-0")));
    CHECK_EQ(stats_of(dynamo).duplicates, 1);
    finish(&fault, dynamo);
}

TEST(index_size_limit_clears_shared_cache_state)
{
    struct kvg_dynamo_options options = {
        .struct_bytes = sizeof(options), .entries_max = 1};
    struct fault_alloc fault;
    struct kvg_dynamo *dynamo;

    fault_alloc_init(&fault);
    CHECK_EQ(kvg_dynamo_new(&fault.alloc, &options, &dynamo), KVG_OK);
    apply(dynamo, 1, &(struct seed_event){"stored", "key-0", NULL, "group-0"}, 1);
    CHECK_EQ(stats_of(dynamo).present_keys, 0);
    CHECK_EQ(stats_of(dynamo).group_states, 0);
    CHECK(!stats_of(dynamo).has_sequence); /* Any sequence may be next. */
    CHECK_EQ(stats_of(dynamo).size_clears, 1);
    apply(dynamo, 9, &(struct seed_event){"stored", "key-0", NULL, NULL}, 1);
    CHECK_EQ(stats_of(dynamo).present_keys, 1);
    CHECK_EQ(stats_of(dynamo).gap_clears, 0);
    finish(&fault, dynamo);
}

TEST(subscriber_retries_failed_connection_until_cancelled)
{
    struct fault_alloc fault;
    struct kvg_dynamo *dynamo = new_dynamo(&fault, NULL);
    struct kvg_worker_config config = seed_worker();
    uint64_t now_ms = 5000;
    int round;

    config.kv_events_endpoint = kvi_str("invalid://mooncake-events");
    CHECK_EQ(kvg_dynamo_step(dynamo, now_ms), KVG_DYNAMO_WAITING);
    set_worker(dynamo, 1, &config);
    for (round = 1; round <= 3; round++) {
        CHECK_EQ(kvg_dynamo_step(dynamo, now_ms), KVG_DYNAMO_CONNECTING);
        CHECK(kvi_str_equal(
            kvg_dynamo_stream_endpoint(dynamo), kvi_str("invalid://mooncake-events")));
        kvg_dynamo_connected(dynamo, false, now_ms);
        CHECK_EQ(stats_of(dynamo).errors, round);
        CHECK_EQ(kvg_dynamo_step(dynamo, now_ms + 999), KVG_DYNAMO_PAUSED);
        CHECK_EQ(kvg_dynamo_deadline_ms(dynamo), now_ms + 1000);
        now_ms += 1000;
    }
    kvg_dynamo_stop(dynamo);
    CHECK_EQ(kvg_dynamo_step(dynamo, now_ms + 9999), KVG_DYNAMO_STOPPED);
    finish(&fault, dynamo);
}

TEST(subscriber_clears_state_when_runtime_config_watch_closes)
{
    struct fault_alloc fault;
    struct kvg_dynamo *dynamo = new_dynamo(&fault, NULL);

    apply(dynamo, 1, &(struct seed_event){"stored", "key-0", NULL, NULL}, 1);
    CHECK_EQ(stats_of(dynamo).present_keys, 1);
    kvg_dynamo_workers_closed(dynamo);
    CHECK_EQ(stats_of(dynamo).present_keys, 0);
    CHECK_EQ(kvg_dynamo_step(dynamo, 1), KVG_DYNAMO_STOPPED);
    finish(&fault, dynamo);
}

TEST(sequence_gap_clears_stale_keys)
{
    struct fault_alloc fault;
    struct kvg_dynamo *dynamo = new_plain(&fault);

    apply(dynamo, 1, &(struct seed_event){"stored", "old_0_k", NULL, "old-group"}, 1);
    CHECK(has_group(dynamo, "old-group"));
    apply(dynamo, 3, &(struct seed_event){"stored", "new_0_k", NULL, NULL}, 1);
    CHECK(!kvi_dynamo_has_key(dynamo, kvi_str("old_0_k")));
    CHECK_EQ(stats_of(dynamo).group_states, 0);
    CHECK(kvi_dynamo_has_key(dynamo, kvi_str("new_0_k")));
    CHECK_EQ(stats_of(dynamo).gap_clears, 1);
    CHECK_EQ(stats_of(dynamo).errors, 0);
    finish(&fault, dynamo);
}

TEST(check_blocks_skips_mooncake_for_cache_namespace)
{
    struct fault_alloc fault;
    struct kvg_dynamo *dynamo = new_plain(&fault);
    size_t range_count = 9;
    uint32_t total = 9;

    apply(dynamo, 1, PAGE0_LABELLED, 4);
    CHECK_EQ(kvg_dynamo_check_blocks(dynamo, TOKENS, 8, 4, kvi_str("tenant-a"), NULL, 0,
                 &range_count, &total),
        KVG_DYNAMO_NAMESPACED);
    CHECK_EQ(range_count, 0);
    CHECK_EQ(total, 0);
    CHECK_EQ(kvg_dynamo_check_blocks(
                 dynamo, TOKENS, 8, 4, kvi_str(""), NULL, 0, &range_count, &total),
        KVG_DYNAMO_ANSWERED);
    CHECK_EQ(total, 2);
    finish(&fault, dynamo);
}

TEST_MAIN(RUN(logical_page_hashes_match_sglang_for_normal_tokens),
    RUN(logical_page_hashes_match_sglang_for_eagle_tokens),
    RUN(expand_actual_query_keys_for_mha_tp_pp_layout),
    RUN(expand_actual_query_keys_for_mla_without_pp_uses_double_underscore),
    RUN(expand_actual_query_keys_for_mla_with_pp),
    RUN(expand_actual_query_keys_for_split_heads),
    RUN(sglang_group_id_uses_extra_backend_tag), RUN(parse_mooncake_event_frames),
    RUN(kv_events_endpoint_tracks_runtime_config_updates),
    RUN(kv_events_endpoint_tolerates_worker_metadata_omission),
    RUN(frontend_kv_events_endpoint_overrides_worker_metadata),
    RUN(layout_change_clears_cached_hits), RUN(check_blocks_uses_mooncake_events),
    RUN(check_blocks_invalidates_group_on_unlabeled_removal),
    RUN(labeled_removal_preserves_other_verified_groups),
    RUN(duplicate_sequence_preserves_shared_cache_state),
    RUN(index_size_limit_clears_shared_cache_state),
    RUN(subscriber_retries_failed_connection_until_cancelled),
    RUN(subscriber_clears_state_when_runtime_config_watch_closes),
    RUN(sequence_gap_clears_stale_keys),
    RUN(check_blocks_skips_mooncake_for_cache_namespace))
