/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* Where the default profile answers better than the seed client, both answers side by side, in
 * the order of docs/profiles.md.  Each test sends both profiles the same messages. */
#include "test.h"

#include <kvgraft/dynamo.h>

#include "base/fmt.h"
#include "default_client.h"
#include "source/dynamo_state.h"

#define K0 SEED_HASH0 "_0_k"
#define V0 SEED_HASH0 "_0_v"
#define K1 SEED_HASH1 "_0_k"
#define V1 SEED_HASH1 "_0_v"
#define GROUP0 "sglang-hicache:" SEED_HASH0

/* Both pages of tokens 1 to 8, as a master sends them. */
static const struct seed_event BOTH[] = {{"stored", K0, NULL, NULL},
    {"stored", V0, NULL, NULL}, {"stored", K1, NULL, NULL}, {"stored", V1, NULL, NULL}};

/* The two profiles. */
struct pair {
    struct fault_alloc fault;
    struct kvg_dynamo *seed;
    struct default_client ours;
    int log_lines;
    struct kvg_log log;
};

static void count_line(
    void *context, enum kvg_level level, const char *component, const char *message)
{
    struct pair *pair = context;

    (void)level;
    (void)component;
    (void)message;
    pair->log_lines++;
}

static void set_worker(
    struct pair *pair, uint64_t id, const struct kvg_worker_config *config)
{
    CHECK_EQ(kvg_dynamo_set_worker(pair->seed, id, config, NULL), KVG_OK);
    client_set_worker(&pair->ours, id, config);
}

/* With the plain worker; `entries_max` of the seed's sets, 0 as it is. */
static void open_pair(struct pair *pair, size_t entries_max, bool has_admin)
{
    struct kvg_dynamo_options options = {
        .struct_bytes = sizeof(options), .entries_max = entries_max};
    struct kvg_worker_config config = seed_worker();

    memset(pair, 0, sizeof(*pair));
    fault_alloc_init(&pair->fault);
    pair->log = (struct kvg_log){count_line, pair};
    options.log = &pair->log;
    CHECK_EQ(kvg_dynamo_new(&pair->fault.alloc, &options, &pair->seed), KVG_OK);
    client_init(&pair->ours, has_admin, 0);
    set_worker(pair, 1, &config);
}

static void close_pair(struct pair *pair)
{
    kvg_dynamo_free(pair->seed);
    CHECK_EQ(pair->fault.live_bytes, 0);
    client_fini(&pair->ours);
}

static void send(struct pair *pair, uint64_t sequence, const struct seed_event *events,
    size_t event_count)
{
    struct seed_message message;

    seed_message_init(&message, sequence, events, event_count);
    kvg_dynamo_message(pair->seed, message.frames, 3);
    kvg_source_message(pair->ours.source, message.frames, 3, ++pair->ours.now_ms);
    seed_message_fini(&message);
}

static void send_json(struct pair *pair, uint64_t sequence, const char *json)
{
    struct seed_message message;

    seed_message_init_json(&message, sequence, json);
    kvg_dynamo_message(pair->seed, message.frames, 3);
    kvg_source_message(pair->ours.source, message.frames, 3, ++pair->ours.now_ms);
    seed_message_fini(&message);
}

/* What the seed client answers for tokens 1, 2, 3, ... */
static uint32_t seed_hits_in(
    struct pair *pair, size_t token_count, const char *cache_namespace)
{
    size_t range_count;
    uint32_t tokens[16];
    uint32_t total;
    uint32_t i;

    for (i = 0; i < token_count; i++)
        tokens[i] = i + 1;
    kvg_dynamo_check_blocks(pair->seed, tokens, token_count, 4, kvi_str(cache_namespace),
        NULL, 0, &range_count, &total);
    return total;
}

static uint32_t seed_hits(struct pair *pair, size_t token_count)
{
    return seed_hits_in(pair, token_count, NULL);
}

static uint32_t our_hits(struct pair *pair, size_t token_count)
{
    return client_hits(&pair->ours, token_count);
}

static enum kvg_confidence our_confidence(struct pair *pair)
{
    return client_ask(&pair->ours, 0, 8, 0, NULL, NULL).lookup.confidence;
}

static struct kvg_dynamo_stats seed_stats(const struct pair *pair)
{
    struct kvg_dynamo_stats stats = {.struct_bytes = sizeof(stats)};

    kvg_dynamo_stats(pair->seed, &stats);
    return stats;
}

/* Answers what the source asks for, with a store that holds these keys. */
static void answer_asks(
    struct pair *pair, uint64_t sequence, const char *const *keys, size_t key_count)
{
    struct kvg_source *source = pair->ours.source;
    struct kvg_source_status status = {.enabled = true, .published_batches = sequence};
    struct kvg_source_action action;
    int round;

    for (round = 0; round < 200; round++) {
        uint64_t now_ms = pair->ours.now_ms += 100;

        kvg_source_tick(source, now_ms);
        while (kvg_source_next_action(source, &action)) {
            size_t i;

            if (action.kind == KVG_SOURCE_FETCH_STATUS)
                kvg_source_status_answer(source, action.id, &status, now_ms);
            if (action.kind == KVG_SOURCE_FETCH_COUNT)
                kvg_source_count_answer(source, action.id, key_count, now_ms);
            if (action.kind != KVG_SOURCE_FETCH_LISTING)
                continue;
            for (i = 0; i < key_count; i++) {
                kvg_source_listing_data(source, action.id, kvi_str(keys[i]), now_ms);
                kvg_source_listing_data(source, action.id, kvi_str("\n"), now_ms);
            }
            kvg_source_listing_done(source, action.id, now_ms);
        }
    }
}

TEST(w1_one_lost_message_costs_the_seed_everything_and_us_a_repair)
{
    static const char *const HELD[] = {K0, V0, K1, V1};
    struct pair pair;

    open_pair(&pair, 0, true);
    send(&pair, 1, BOTH, 2);
    send(&pair, 3, NULL, 0); /* Number 2 stored the other page, and was lost. */
    CHECK_EQ(seed_hits(&pair, 8), 0);
    CHECK_EQ(our_hits(&pair, 8), 1);
    CHECK(our_confidence(&pair) < KVG_CONFIDENCE_FRESH);
    answer_asks(&pair, 3, HELD, 4);
    CHECK_EQ(seed_hits(&pair, 8), 0); /* The store never says it again. */
    CHECK_EQ(our_hits(&pair, 8), 2);
    CHECK_EQ(our_confidence(&pair), KVG_CONFIDENCE_FRESH);
    close_pair(&pair);
}

TEST(w2_growing_over_a_limit_clears_the_seed_and_evicts_here)
{
    struct kvg_presence_stats stats = {.struct_bytes = sizeof(stats)};
    struct pair pair;

    open_pair(&pair, 3, false);
    send(&pair, 1, BOTH, 2);
    CHECK_EQ(seed_hits(&pair, 8), 1);
    send(&pair, 2, BOTH + 2, 2);
    CHECK_EQ(seed_hits(&pair, 8), 0);
    CHECK_EQ(seed_stats(&pair).size_clears, 1);
    CHECK_EQ(our_hits(&pair, 8), 2); /* A page is one entry, whatever its parts. */
    kvg_presence_stats(pair.ours.index, &stats);
    CHECK_EQ(stats.pages, 2);
    close_pair(&pair);
}

TEST(w3_a_late_joiner_is_blind_and_silent_there_and_says_so_here)
{
    static const char *const HELD[] = {K0, V0, K1, V1};
    struct pair pair;

    open_pair(&pair, 0, true);
    send(&pair, 5000, BOTH, 2);
    CHECK_EQ(seed_hits(&pair, 8), 1);
    CHECK_EQ(seed_stats(&pair).gap_clears, 0);
    CHECK_EQ(our_hits(&pair, 8), 1);
    CHECK(our_confidence(&pair) < KVG_CONFIDENCE_FRESH);
    CHECK((client_stats(&pair.ours).reasons & KVG_REASON_LATE_JOIN) != 0);
    answer_asks(&pair, 5000, HELD, 4);
    CHECK_EQ(seed_hits(&pair, 8), 1);
    CHECK_EQ(our_hits(&pair, 8), 2);
    CHECK_EQ(our_confidence(&pair), KVG_CONFIDENCE_FRESH);
    close_pair(&pair);
}

#define TIERED(id, type, key, medium)                                                \
    "{'event_id':" id ",'event_type':'" type "','object_key':'" key "','tenant_id':" \
    "'default','medium':'" medium "','dp_rank':0}"

TEST(w4_a_copy_on_disk_is_a_hit_here_when_memory_lets_it_go)
{
    struct pair pair;

    open_pair(&pair, 0, false);
    send_json(&pair, 1,
        "[0,[" TIERED("1", "stored", K0, "cpu") "," TIERED(
            "2", "stored", V0, "cpu") "," TIERED("3", "stored", K0,
            "disk") "," TIERED("4", "stored", V0, "disk") "],0]");
    CHECK_EQ(seed_hits(&pair, 4), 1);
    CHECK_EQ(our_hits(&pair, 4), 1);
    send_json(&pair, 2,
        "[0,[" TIERED("5", "removed", K0, "cpu") "," TIERED(
            "6", "removed", V0, "cpu") "],0]");
    CHECK_EQ(seed_hits(&pair, 4), 0);
    CHECK_EQ(our_hits(&pair, 4), 1);
    CHECK_EQ(client_ask(&pair.ours, 0, 4, 0, NULL, NULL).lookup.media,
        KVG_MEDIUM_BIT(KVG_MEDIUM_DISK));
    send_json(&pair, 3,
        "[0,[" TIERED("7", "removed", K0, "disk") "," TIERED(
            "8", "removed", V0, "disk") "],0]");
    CHECK_EQ(our_hits(&pair, 4), 0);
    close_pair(&pair);
}

TEST(w5_pages_behind_a_hole_are_credited_there_and_told_apart_here)
{
    struct client_answer answer;
    struct pair pair;

    open_pair(&pair, 0, false);
    send(&pair, 1, BOTH + 2, 2); /* The second page only. */
    CHECK_EQ(seed_hits(&pair, 8), 1);
    answer = client_ask(&pair.ours, 0, 8, 0, NULL, NULL);
    CHECK_EQ(answer.lookup.total, 1);
    CHECK_EQ(answer.lookup.contiguous, 0); /* What an engine could load. */
    answer = client_ask(&pair.ours, 0, 8, 1, NULL, NULL);
    CHECK_EQ(answer.lookup.contiguous, 1); /* One that holds the first page itself. */
    close_pair(&pair);
}

/* An engine must compute at least the last token.  Who wants that kept asks for the keys of all
 * tokens but the last. */
TEST(w6_the_last_page_of_a_whole_prompt_can_be_left_out)
{
    struct pair pair;

    open_pair(&pair, 0, false);
    send(&pair, 1, BOTH, 4);
    CHECK_EQ(seed_hits(&pair, 8), 2);
    CHECK_EQ(our_hits(&pair, 8), 2);
    CHECK_EQ(our_hits(&pair, 8 - 1), 1);
    close_pair(&pair);
}

TEST(w7_a_page_of_eight_ranks_costs_many_strings_there_and_a_slot_here)
{
    enum {
        PAGES = 2000,
        PARTS = 16
    };
    struct kvg_presence_stats stats = {.struct_bytes = sizeof(stats)};
    size_t ours_before;
    size_t seed_before;
    struct pair pair;
    uint32_t page;

    open_pair(&pair, 0, false);
    kvg_presence_stats(pair.ours.index, &stats);
    ours_before = stats.memory_bytes;
    seed_before = seed_stats(&pair).memory_bytes;
    for (page = 0; page < PAGES; page++) {
        char names[PARTS][80];
        struct seed_event events[PARTS];
        char hex[KVG_KEY_HEX_BYTES];
        struct kvg_key key;
        int i;

        kvg_sha256(&page, sizeof(page), key.bytes);
        kvg_key_to_hex(&key, hex);
        for (i = 0; i < PARTS; i++) {
            snprintf(names[i], sizeof(names[i]), "%s_%d_%c", hex, i / 2,
                i % 2 == 0 ? 'k' : 'v');
            events[i] = (struct seed_event){"stored", names[i], NULL, NULL};
        }
        send(&pair, page + 1, events, PARTS);
    }
    kvg_presence_stats(pair.ours.index, &stats);
    CHECK_EQ(stats.pages, PAGES);
    CHECK_EQ(seed_stats(&pair).present_keys, PAGES * PARTS);
    CHECK(seed_stats(&pair).memory_bytes - seed_before >
          10 * (stats.memory_bytes - ours_before));
    close_pair(&pair);
}

TEST(w8_workers_are_worked_out_once_a_change)
{
    struct kvg_worker_config config = seed_worker();
    struct kvg_workers_view before;
    struct kvg_workers_view after;
    struct pair pair;

    open_pair(&pair, 0, false);
    kvg_workers_view(pair.ours.workers, &before);
    our_hits(&pair, 8);
    set_worker(&pair, 1, &config); /* The same again. */
    kvg_workers_view(pair.ours.workers, &after);
    CHECK_EQ(after.generation, before.generation);
    close_pair(&pair);
}

TEST(w9_w10_labels_carry_the_seed_and_play_no_role_here)
{
    struct pair pair;
    bool verified;

    open_pair(&pair, 0, false);
    send(&pair, 1,
        (struct seed_event[]){{"stored", K0, NULL, GROUP0}, {"stored", V0, NULL, GROUP0}},
        2);
    CHECK_EQ(seed_hits(&pair, 8), 1);
    CHECK(kvi_dynamo_has_group(pair.seed, kvi_str(GROUP0), &verified) && verified);
    send(&pair, 2, &(struct seed_event){"removed", "unrelated", NULL, NULL}, 1);
    CHECK(!kvi_dynamo_has_group(pair.seed, kvi_str(GROUP0), &verified));
    CHECK_EQ(seed_hits(&pair, 8), 1); /* By its keys, now and ever after. */
    CHECK(!kvi_dynamo_has_group(pair.seed, kvi_str(GROUP0), &verified));
    CHECK_EQ(our_hits(&pair, 8), 1);

    /* A verified label outlives a key that goes under another one. */
    send(&pair, 3,
        (struct seed_event[]){{"stored", K0, NULL, GROUP0}, {"stored", V0, NULL, GROUP0}},
        2);
    CHECK_EQ(seed_hits(&pair, 8), 1);
    send(&pair, 4, &(struct seed_event){"removed", K0, NULL, "another"}, 1);
    CHECK_EQ(seed_hits(&pair, 8), 1); /* Wrong. */
    CHECK_EQ(our_hits(&pair, 8), 0);
    close_pair(&pair);
}

TEST(w11_tenants_and_namespaces_are_refused_there_and_answered_here)
{
    struct pair pair;

    open_pair(&pair, 0, false);
    send(&pair, 1,
        (struct seed_event[]){{"stored", K0, "blue", NULL}, {"stored", V0, "blue", NULL}},
        2);
    CHECK_EQ(seed_hits(&pair, 8), 0);
    CHECK_EQ(seed_stats(&pair).foreign_tenants, 2);
    CHECK_EQ(our_hits(&pair, 8), 0); /* Nor has the default tenant it. */
    CHECK_EQ(client_ask(&pair.ours, 0, 8, 0, NULL, "blue").lookup.total, 1);
    CHECK_EQ(seed_hits_in(&pair, 8, "salt"), 0);
    CHECK_EQ(client_ask(&pair.ours, 0, 8, 0, "salt", "blue").lookup.total, 0);
    close_pair(&pair);
}

TEST(w12_a_second_layout_switches_the_seed_off_and_stands_beside_the_first_here)
{
    struct kvg_worker_config config = seed_worker();
    struct pair pair;

    open_pair(&pair, 0, false);
    send(&pair, 1, BOTH, 4);
    send(&pair, 2, &(struct seed_event){"stored", SEED_HASH0 "__k", NULL, NULL}, 1);
    CHECK_EQ(seed_hits(&pair, 8), 2);
    config.layout.mla = true;
    set_worker(&pair, 2, &config);
    CHECK_EQ(seed_hits(&pair, 8), 0);
    CHECK_EQ(client_ask(&pair.ours, 0, 8, 0, NULL, NULL).lookup.total, 2);
    CHECK_EQ(client_ask(&pair.ours, 1, 8, 0, NULL, NULL).lookup.total, 1);
    close_pair(&pair);
}

TEST(w13_one_odd_field_wipes_the_seed_and_costs_nothing_here)
{
    struct pair pair;

    open_pair(&pair, 0, false);
    send(&pair, 1, BOTH, 2);
    send_json(&pair, 2,
        "[0.0,[{'event_type':'stored','object_key':'" K1 "','tenant_id':null},"
        "{'event_type':'stored','object_key':'" V1 "','tenant_id':null}],null]");
    CHECK_EQ(seed_stats(&pair).errors, 1);
    CHECK_EQ(our_hits(&pair, 8), 2);
    send(&pair, 3, NULL, 0);
    CHECK_EQ(seed_stats(&pair).gap_clears, 1);
    CHECK_EQ(seed_hits(&pair, 8), 0);
    CHECK_EQ(our_hits(&pair, 8), 2);
    CHECK_EQ(our_confidence(&pair), KVG_CONFIDENCE_FRESH);
    close_pair(&pair);
}

#define NUMBERED(id, key) \
    "{'event_id':" id ",'event_type':'stored','object_key':'" key "'}"

TEST(w14_a_publisher_that_starts_again_is_recognised_here)
{
    struct pair pair;

    open_pair(&pair, 0, false);
    send_json(&pair, 1, "[10,[" NUMBERED("1", K0) "," NUMBERED("2", V0) "],0]");
    CHECK_EQ(seed_hits(&pair, 8), 1);
    CHECK_EQ(our_hits(&pair, 8), 1);
    /* A new, empty master; its number 1 was missed, and its number 2 comes next. */
    send_json(&pair, 2, "[20,[" NUMBERED("2", K1) "," NUMBERED("3", V1) "],0]");
    CHECK_EQ(seed_hits(&pair, 8), 2); /* The first page is gone. */
    CHECK_EQ(seed_stats(&pair).gap_clears, 0);
    CHECK_EQ(our_hits(&pair, 8), 1);
    CHECK(our_confidence(&pair) < KVG_CONFIDENCE_FRESH);
    CHECK_EQ(client_stats(&pair.ours).restarts, 1);
    close_pair(&pair);
}

TEST(w15_cleared_is_ignored_there_and_clears_here)
{
    struct pair pair;

    open_pair(&pair, 0, false);
    send(&pair, 1, BOTH, 4);
    send_json(&pair, 2, "[0,[{'event_type':'cleared','tenant_id':'default'}],0]");
    CHECK_EQ(seed_hits(&pair, 8), 2);
    CHECK_EQ(our_hits(&pair, 8), 0);
    close_pair(&pair);
}

TEST(w16_sizes_without_bounds_are_refused_here_by_name)
{
    struct kvg_worker_config config = seed_worker();
    struct kvg_error error;
    struct pair pair;

    open_pair(&pair, 0, false);
    send(&pair, 1, BOTH, 4);
    config.layout.tp_size = 2000000000;
    CHECK_EQ(kvg_dynamo_set_worker(pair.seed, 2, &config, NULL), KVG_OK);
    CHECK_EQ(kvg_workers_set(pair.ours.workers, 2, &config, &error), KVG_EINVAL);
    CHECK_STR(error.field, "tp_size");
    CHECK_EQ(seed_hits(&pair, 8), 0); /* Another layout: off. */
    CHECK_EQ(our_hits(&pair, 8), 2);  /* The bad one is left out. */
    close_pair(&pair);
}

TEST(w17_a_broken_stream_is_answered_from_by_both_and_called_so_here)
{
    struct pair pair;

    open_pair(&pair, 0, false);
    CHECK_EQ(kvg_dynamo_step(pair.seed, 1), KVG_DYNAMO_CONNECTING);
    kvg_dynamo_connected(pair.seed, true, 1);
    send(&pair, 1, BOTH, 4);
    kvg_dynamo_stream_ended(pair.seed, 2);
    kvg_source_disconnected(pair.ours.source, ++pair.ours.now_ms);
    CHECK_EQ(kvg_dynamo_step(pair.seed, 3), KVG_DYNAMO_PAUSED);
    CHECK_EQ(seed_hits(&pair, 8), 2); /* No word of it; and soon nothing at all. */
    CHECK_EQ(kvg_dynamo_step(pair.seed, 1002), KVG_DYNAMO_CONNECTING);
    CHECK_EQ(seed_hits(&pair, 8), 0);
    CHECK_EQ(our_hits(&pair, 8), 2);
    CHECK(our_confidence(&pair) < KVG_CONFIDENCE_FRESH);
    close_pair(&pair);
}

TEST(w18_keys_with_the_models_name_in_them_are_found_here)
{
    struct kvg_worker_config config = seed_worker();
    struct pair pair;

    open_pair(&pair, 0, false);
    config.layout.model_prefix = kvi_str("org-model_v2");
    set_worker(&pair, 1, &config);
    send(&pair, 1,
        (struct seed_event[]){{"stored", "org-model_v2_" K0, NULL, NULL},
            {"stored", "org-model_v2_" V0, NULL, NULL}},
        2);
    CHECK_EQ(seed_hits(&pair, 8), 0);
    CHECK_EQ(our_hits(&pair, 8), 1);
    close_pair(&pair);
}

/* Both count here; nothing is logged a request in either profile. */
TEST(w19_every_decision_is_counted_and_no_request_is_logged)
{
    struct kvg_worker_config config = seed_worker();
    struct pair pair;
    int lines;
    int i;

    open_pair(&pair, 0, false);
    send(&pair, 1, BOTH, 4);
    send(&pair, 1, BOTH, 4);
    send(&pair, 5, BOTH, 4);
    CHECK_EQ(seed_hits(&pair, 8), 2);
    config.layout.rule.page_size = 8;
    set_worker(&pair, 1, &config);
    seed_hits(&pair, 8);
    lines = pair.log_lines;
    for (i = 0; i < 100; i++)
        seed_hits(&pair, 8); /* A page size that differs. */
    CHECK_EQ(pair.log_lines, lines);
    CHECK_EQ(seed_stats(&pair).duplicates, 1);
    CHECK_EQ(seed_stats(&pair).gap_clears, 1);
    CHECK_EQ(seed_stats(&pair).layout_clears, 1);
    CHECK_EQ(client_stats(&pair.ours).duplicates, 1);
    CHECK_EQ(client_stats(&pair.ours).gaps, 1);
    CHECK_EQ(client_stats(&pair.ours).missed_sequences, 3);
    close_pair(&pair);
}

TEST_MAIN(RUN(w1_one_lost_message_costs_the_seed_everything_and_us_a_repair),
    RUN(w2_growing_over_a_limit_clears_the_seed_and_evicts_here),
    RUN(w3_a_late_joiner_is_blind_and_silent_there_and_says_so_here),
    RUN(w4_a_copy_on_disk_is_a_hit_here_when_memory_lets_it_go),
    RUN(w5_pages_behind_a_hole_are_credited_there_and_told_apart_here),
    RUN(w6_the_last_page_of_a_whole_prompt_can_be_left_out),
    RUN(w7_a_page_of_eight_ranks_costs_many_strings_there_and_a_slot_here),
    RUN(w8_workers_are_worked_out_once_a_change),
    RUN(w9_w10_labels_carry_the_seed_and_play_no_role_here),
    RUN(w11_tenants_and_namespaces_are_refused_there_and_answered_here),
    RUN(w12_a_second_layout_switches_the_seed_off_and_stands_beside_the_first_here),
    RUN(w13_one_odd_field_wipes_the_seed_and_costs_nothing_here),
    RUN(w14_a_publisher_that_starts_again_is_recognised_here),
    RUN(w15_cleared_is_ignored_there_and_clears_here),
    RUN(w16_sizes_without_bounds_are_refused_here_by_name),
    RUN(w17_a_broken_stream_is_answered_from_by_both_and_called_so_here),
    RUN(w18_keys_with_the_models_name_in_them_are_found_here),
    RUN(w19_every_decision_is_counted_and_no_request_is_logged))
