/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* The profile "dynamo-1.5" where the seed client has no test of its own: what its decoder takes
 * and refuses, what a refused message does to the sequence, every outcome of a lookup, the
 * states of the stream, and our own promises (memory, limits). */
#include <kvgraft/dynamo.h>

#include "base/fmt.h"
#include "base/rng.h"
#include "fault_alloc.h"
#include "seed_stream.h"
#include "source/dynamo_state.h"
#include "test.h"

static const uint32_t TOKENS[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
static const struct kvg_str NO_NAMESPACE = {NULL, 0};

static struct kvg_dynamo *new_dynamo(struct fault_alloc *fault)
{
    struct kvg_dynamo_options options = {.struct_bytes = sizeof(options)};
    struct kvg_dynamo *dynamo;

    fault_alloc_init(fault);
    CHECK_EQ(kvg_dynamo_new(&fault->alloc, &options, &dynamo), KVG_OK);
    return dynamo;
}

static void finish(struct fault_alloc *fault, struct kvg_dynamo *dynamo)
{
    CHECK_EQ(kvi_dynamo_check(dynamo), 0);
    kvg_dynamo_free(dynamo);
    CHECK_EQ(fault->live_bytes, 0);
}

static struct kvg_dynamo_stats stats_of(const struct kvg_dynamo *dynamo)
{
    struct kvg_dynamo_stats stats = {.struct_bytes = sizeof(stats)};

    kvg_dynamo_stats(dynamo, &stats);
    return stats;
}

static void send_json(struct kvg_dynamo *dynamo, uint64_t sequence, const char *json)
{
    struct seed_message message;

    seed_message_init_json(&message, sequence, json);
    kvg_dynamo_message(dynamo, message.frames, 3);
    seed_message_fini(&message);
}

static const char *const TAKEN[] = {
    "[0,[],0]",
    "[-5,[],4294967295]",
    "[9223372036854775807,[],0]",
    "[0,[{'event_type':'stored'}],0]",
    "[0,[{'event_type':'stored','object_key':null,'group_id':null}],0]",
    "[0,[{'event_type':'whatever','object_key':'k'}],0]",
    "[0,[{'event_type':'stored','object_key':'k','more':[1,{'a':[2.5]}],'x':null}],0]",
    "[0,[{'event_type':<73746f726564>,'object_key':<6b>}],0]", /* Byte strings. */
    "[0,[{<6576656e745f74797065>:'stored'}],0]",               /* event_type. */
    "[0,[{0:'stored',1:'k',2:'default',3:'g',4:'other',99:1}],0]",
    "[0,[['stored']],0]",
    "[0,[['stored','k']],0]",
    "[0,[['stored',null,'default',null]],0]",
    "[0,[['stored','k','default','g']],0]",
};

static const char *const REFUSED[] = {
    "null",
    "{'timestamp':0}",
    "[0,[]]",
    "[0,[],0,0]",
    "[1.5,[],0]",
    "[0.0,[],0]",
    "[null,[],0]",
    "[true,[],0]",
    "[9223372036854775808,[],0]",
    "[0,null,0]",
    "[0,{},0]",
    "[0,[],null]",
    "[0,[],-1]",
    "[0,[],4294967296]",
    "[0,[null],0]",
    "[0,['stored'],0]",
    "[0,[{}],0]",
    "[0,[{'object_key':'k'}],0]",
    "[0,[{'event_type':null}],0]",
    "[0,[{'event_type':1}],0]",
    "[0,[{'event_type':'stored','object_key':1}],0]",
    "[0,[{'event_type':'stored','tenant_id':null}],0]",
    "[0,[{'event_type':'stored','tenant_id':0}],0]",
    "[0,[{'event_type':'stored','group_id':['g']}],0]",
    "[0,[{'event_type':'stored','event_type':'stored'}],0]",
    "[0,[{'event_type':'stored',0:'stored'}],0]",
    "[0,[{'event_type':'stored',null:1}],0]",
    "[0,[{'event_type':'stored',-1:1}],0]",
    "[0,[{'event_type':'stored',1.5:1}],0]",
    "[0,[{'event_type':<ff>}],0]",       /* No UTF-8. */
    "[0,[{'event_type':<c080>}],0]",     /* Overlong. */
    "[0,[{'event_type':<eda080>}],0]",   /* A surrogate. */
    "[0,[{'event_type':<f4908080>}],0]", /* Above U+10FFFF. */
    "[0,[{'event_type':<e282>}],0]",     /* Cut. */
    "[0,[[]],0]",
    "[0,[[null,'k']],0]",
    "[0,[['stored','k',null]],0]",
    "[0,[['stored','k','default','g','more']],0]",
};

TEST(the_decoder_takes_what_the_client_takes)
{
    struct fault_alloc fault;
    struct kvg_dynamo *dynamo = new_dynamo(&fault);
    size_t i;

    for (i = 0; i < sizeof(TAKEN) / sizeof(TAKEN[0]); i++) {
        send_json(dynamo, i, TAKEN[i]);
        if (stats_of(dynamo).errors != 0)
            fail_msg("refused: %s", TAKEN[i]);
        CHECK_EQ(stats_of(dynamo).last_sequence, i);
    }
    finish(&fault, dynamo);
}

TEST(the_decoder_refuses_what_the_client_refuses)
{
    struct fault_alloc fault;
    struct kvg_dynamo *dynamo = new_dynamo(&fault);
    size_t i;

    for (i = 0; i < sizeof(REFUSED) / sizeof(REFUSED[0]); i++) {
        send_json(dynamo, i, REFUSED[i]);
        if (stats_of(dynamo).errors != i + 1)
            fail_msg("taken: %s", REFUSED[i]);
    }
    CHECK(!stats_of(dynamo).has_sequence);
    CHECK_EQ(stats_of(dynamo).batches, 0);
    finish(&fault, dynamo);
}

TEST(bytes_behind_the_payload_do_not_matter_and_missing_ones_do)
{
    struct seed_event event = {"stored", "k", NULL, NULL};
    struct fault_alloc fault;
    struct kvg_dynamo *dynamo = new_dynamo(&fault);
    struct seed_message message;
    size_t bytes;
    size_t cut;

    seed_message_init(&message, 1, &event, 1);
    bytes = message.frames[2].bytes;
    for (cut = 0; cut < bytes; cut++) {
        message.frames[2].bytes = cut;
        kvg_dynamo_message(dynamo, message.frames, 3);
    }
    CHECK_EQ(stats_of(dynamo).errors, bytes);
    kvi_mp_put_nil(&message.payload);
    message.frames[2] =
        (struct kvg_str){(const char *)message.payload.data, message.payload.bytes};
    kvg_dynamo_message(dynamo, message.frames, 3);
    CHECK_EQ(stats_of(dynamo).present_keys, 1);
    seed_message_fini(&message);
    finish(&fault, dynamo);
}

TEST(only_three_frames_with_a_sequence_of_eight_bytes_are_a_message)
{
    struct fault_alloc fault;
    struct kvg_dynamo *dynamo = new_dynamo(&fault);
    struct seed_message message;
    struct kvg_str four[4];

    seed_message_init(&message, 1, NULL, 0);
    memcpy(four, message.frames, sizeof(message.frames));
    four[3] = four[2];
    kvg_dynamo_message(dynamo, four, 4);
    kvg_dynamo_message(dynamo, four, 2);
    kvg_dynamo_message(dynamo, NULL, 0);
    four[1].bytes = 7;
    kvg_dynamo_message(dynamo, four, 3);
    CHECK_EQ(stats_of(dynamo).errors, 4);
    four[1].bytes = 8;
    four[0] = (struct kvg_str){"any topic", 9};
    kvg_dynamo_message(dynamo, four, 3);
    CHECK_EQ(stats_of(dynamo).errors, 4);
    CHECK_EQ(stats_of(dynamo).batches, 1);
    seed_message_fini(&message);
    finish(&fault, dynamo);
}

TEST(a_refused_message_makes_the_next_good_one_a_gap)
{
    struct fault_alloc fault;
    struct kvg_dynamo *dynamo = new_dynamo(&fault);

    send_json(dynamo, 1, "[0,[['stored','old']],0]");
    send_json(dynamo, 2, "[0,[['stored','lost','default',1]],0]");
    CHECK_EQ(stats_of(dynamo).last_sequence, 1);
    CHECK_EQ(stats_of(dynamo).present_keys, 1);
    send_json(dynamo, 3, "[0,[['stored','new']],0]");
    CHECK_EQ(stats_of(dynamo).gap_clears, 1);
    CHECK(!kvi_dynamo_has_key(dynamo, kvi_str("old")));
    CHECK(kvi_dynamo_has_key(dynamo, kvi_str("new")));
    finish(&fault, dynamo);
}

TEST(an_older_sequence_is_a_gap_and_only_the_last_one_a_duplicate)
{
    struct fault_alloc fault;
    struct kvg_dynamo *dynamo = new_dynamo(&fault);

    send_json(dynamo, 5, "[0,[['stored','a']],0]");
    send_json(dynamo, 3, "[0,[['stored','b']],0]");
    CHECK_EQ(stats_of(dynamo).gap_clears, 1);
    CHECK_EQ(stats_of(dynamo).present_keys, 1);
    send_json(dynamo, 3, "[0,[['stored','c']],0]");
    CHECK_EQ(stats_of(dynamo).duplicates, 1);
    CHECK_EQ(stats_of(dynamo).present_keys, 1);
    send_json(dynamo, UINT64_MAX, "[0,[['stored','d']],0]");
    send_json(dynamo, 0, "[0,[['stored','e']],0]"); /* The next one, wrapped. */
    CHECK_EQ(stats_of(dynamo).gap_clears, 2);
    CHECK_EQ(stats_of(dynamo).present_keys, 2);
    finish(&fault, dynamo);
}

TEST(other_tenants_and_events_without_a_key_are_skipped)
{
    struct fault_alloc fault;
    struct kvg_dynamo *dynamo = new_dynamo(&fault);

    send_json(dynamo, 1,
        "[0,[['stored','a','default'],['stored','b',''],['stored','c','Default'],"
        "['stored','d','other'],['stored',null],['cleared',null],['cleared','a'],"
        "['BlockStored','x'],['removed','a','other'],['stored','','']],0]");
    CHECK_EQ(stats_of(dynamo).present_keys, 3); /* a, b, and the empty one. */
    CHECK_EQ(stats_of(dynamo).foreign_tenants, 3);
    CHECK_EQ(stats_of(dynamo).keyless_events, 2);
    CHECK_EQ(stats_of(dynamo).other_events, 2);
    finish(&fault, dynamo);
}

TEST(an_empty_group_label_is_none)
{
    struct fault_alloc fault;
    struct kvg_dynamo *dynamo = new_dynamo(&fault);

    send_json(dynamo, 1, "[0,[['stored','a','','g'],['stored','b','','']],0]");
    CHECK_EQ(stats_of(dynamo).group_states, 1);
    send_json(dynamo, 2, "[0,[['removed','b','','']],0]");
    CHECK_EQ(stats_of(dynamo).group_states, 0);
    finish(&fault, dynamo);
}

/* A page whose label is verified answers without its keys being looked at, until the next
 * labelled event: what makes the client quick, and what W9 and W10 are about. */
TEST(a_verified_group_answers_until_its_next_event)
{
    struct fault_alloc fault;
    struct kvg_dynamo *dynamo = new_dynamo(&fault);
    struct kvg_worker_config config = seed_worker();
    size_t range_count;
    uint32_t total;
    bool verified;

    CHECK_EQ(kvg_dynamo_set_worker(dynamo, 1, &config, NULL), KVG_OK);
    send_json(dynamo, 1,
        "[0,[['stored','" SEED_HASH0 "_0_k','','sglang-hicache:" SEED_HASH0 "'],"
        "['stored','" SEED_HASH0 "_0_v','','sglang-hicache:" SEED_HASH0 "']],0]");
    kvg_dynamo_check_blocks(
        dynamo, TOKENS, 4, 4, NO_NAMESPACE, NULL, 0, &range_count, &total);
    CHECK_EQ(total, 1);
    /* A removal under another label takes the key, and leaves the verified group. */
    send_json(dynamo, 2, "[0,[['removed','" SEED_HASH0 "_0_v','','another']],0]");
    kvg_dynamo_check_blocks(
        dynamo, TOKENS, 4, 4, NO_NAMESPACE, NULL, 0, &range_count, &total);
    CHECK_EQ(total, 1);
    send_json(dynamo, 3, "[0,[['stored','x','','sglang-hicache:" SEED_HASH0 "']],0]");
    CHECK(kvi_dynamo_has_group(dynamo, kvi_str("sglang-hicache:" SEED_HASH0), &verified));
    CHECK(!verified);
    kvg_dynamo_check_blocks(
        dynamo, TOKENS, 4, 4, NO_NAMESPACE, NULL, 0, &range_count, &total);
    CHECK_EQ(total, 0);
    finish(&fault, dynamo);
}

static enum kvg_dynamo_outcome ask(
    struct kvg_dynamo *dynamo, size_t token_count, uint32_t block_size)
{
    size_t range_count = 7;
    uint32_t total = 7;
    enum kvg_dynamo_outcome outcome = kvg_dynamo_check_blocks(dynamo, TOKENS, token_count,
        block_size, NO_NAMESPACE, NULL, 0, &range_count, &total);

    CHECK_EQ(range_count, 0);
    CHECK_EQ(total, 0);
    return outcome;
}

TEST(every_reason_for_an_empty_answer_is_told)
{
    struct fault_alloc fault;
    struct kvg_dynamo *dynamo = new_dynamo(&fault);
    struct kvg_worker_config config = seed_worker();

    CHECK_EQ(ask(dynamo, 8, 4), KVG_DYNAMO_NO_CONFIG);
    CHECK_EQ(kvg_dynamo_set_worker(dynamo, 1, &config, NULL), KVG_OK);
    CHECK_EQ(ask(dynamo, 8, 4), KVG_DYNAMO_ANSWERED);
    CHECK_EQ(ask(dynamo, 3, 4), KVG_DYNAMO_TOO_SHORT);
    CHECK_EQ(ask(dynamo, 8, 0), KVG_DYNAMO_PAGE_SIZE_ZERO);
    CHECK_EQ(ask(dynamo, 8, 5), KVG_DYNAMO_PAGE_SIZE_DIFFERS);
    config.layout.tp_size = 2;
    CHECK_EQ(kvg_dynamo_set_worker(dynamo, 2, &config, NULL), KVG_OK);
    CHECK_EQ(ask(dynamo, 8, 4), KVG_DYNAMO_NO_CONFIG); /* They differ. */
    CHECK_EQ(stats_of(dynamo).layout_clears, 0);
    CHECK(kvg_dynamo_remove_worker(dynamo, 1));
    config.backend = kvi_str("nixl");
    CHECK_EQ(kvg_dynamo_set_worker(dynamo, 2, &config, NULL), KVG_OK);
    CHECK_EQ(ask(dynamo, 8, 4), KVG_DYNAMO_OTHER_BACKEND);
    config = seed_worker();
    config.layout.rule.page_size = 0;
    CHECK_EQ(kvg_dynamo_set_worker(dynamo, 2, &config, NULL), KVG_OK);
    CHECK_EQ(ask(dynamo, 8, 4), KVG_DYNAMO_PAGE_SIZE_ZERO);
    config = seed_worker();
    config.kv_events_endpoint = kvi_str("");
    CHECK_EQ(kvg_dynamo_set_worker(dynamo, 2, &config, NULL), KVG_OK);
    CHECK_EQ(ask(dynamo, 8, 4), KVG_DYNAMO_NO_CONFIG); /* No endpoint. */
    finish(&fault, dynamo);
}

/* A present and empty tag is another layout than no tag, though it makes the same names. */
TEST(layouts_are_compared_as_advertised)
{
    struct fault_alloc fault;
    struct kvg_dynamo *dynamo = new_dynamo(&fault);
    struct kvg_worker_config config = seed_worker();

    CHECK_EQ(kvg_dynamo_set_worker(dynamo, 1, &config, NULL), KVG_OK);
    config.layout.tag = kvi_str("");
    CHECK_EQ(kvg_dynamo_set_worker(dynamo, 2, &config, NULL), KVG_OK);
    CHECK_EQ(ask(dynamo, 8, 4), KVG_DYNAMO_NO_CONFIG);
    config = seed_worker();
    config.kv_events_endpoint = (struct kvg_str){NULL, 0};
    CHECK_EQ(kvg_dynamo_set_worker(dynamo, 2, &config, NULL), KVG_OK);
    CHECK_EQ(ask(dynamo, 8, 4), KVG_DYNAMO_ANSWERED); /* Endpoints are not compared. */
    finish(&fault, dynamo);
}

TEST(a_layout_that_comes_back_after_a_disagreement_clears_nothing)
{
    struct fault_alloc fault;
    struct kvg_dynamo *dynamo = new_dynamo(&fault);
    struct kvg_worker_config config = seed_worker();

    CHECK_EQ(kvg_dynamo_set_worker(dynamo, 1, &config, NULL), KVG_OK);
    send_json(dynamo, 1, "[0,[['stored','a']],0]");
    CHECK_EQ(ask(dynamo, 8, 4), KVG_DYNAMO_ANSWERED);
    config.layout.pp_size = 2;
    CHECK_EQ(kvg_dynamo_set_worker(dynamo, 2, &config, NULL), KVG_OK);
    CHECK_EQ(ask(dynamo, 8, 4), KVG_DYNAMO_NO_CONFIG);
    CHECK(kvg_dynamo_remove_worker(dynamo, 2));
    CHECK_EQ(ask(dynamo, 8, 4), KVG_DYNAMO_ANSWERED);
    CHECK_EQ(stats_of(dynamo).present_keys, 1);
    finish(&fault, dynamo);
}

TEST(the_stream_clears_on_its_way_to_a_connection_and_not_before)
{
    struct fault_alloc fault;
    struct kvg_dynamo *dynamo = new_dynamo(&fault);
    struct kvg_worker_config config = seed_worker();

    CHECK_EQ(kvg_dynamo_set_worker(dynamo, 1, &config, NULL), KVG_OK);
    send_json(dynamo, 1, "[0,[['stored','a']],0]");
    CHECK_EQ(kvg_dynamo_step(dynamo, 100), KVG_DYNAMO_CONNECTING);
    CHECK_EQ(stats_of(dynamo).present_keys, 0);
    kvg_dynamo_connected(dynamo, true, 100);
    CHECK_EQ(kvg_dynamo_step(dynamo, 100), KVG_DYNAMO_STREAMING);
    send_json(dynamo, 50000, "[0,[['stored','a']],0]"); /* Any first sequence will do. */
    CHECK_EQ(stats_of(dynamo).gap_clears, 0);
    kvg_dynamo_stream_ended(dynamo, 200);
    CHECK_EQ(kvg_dynamo_step(dynamo, 300), KVG_DYNAMO_PAUSED);
    CHECK_EQ(stats_of(dynamo).present_keys, 1); /* Still answered from. */
    CHECK_EQ(kvg_dynamo_step(dynamo, 1200), KVG_DYNAMO_CONNECTING);
    CHECK_EQ(stats_of(dynamo).present_keys, 0);
    kvg_dynamo_connected(dynamo, true, 1200);

    config.kv_events_endpoint = kvi_str("tcp://127.0.0.1:5558");
    CHECK_EQ(kvg_dynamo_set_worker(dynamo, 1, &config, NULL), KVG_OK);
    CHECK_EQ(kvg_dynamo_step(dynamo, 1300), KVG_DYNAMO_PAUSED);
    CHECK_EQ(stats_of(dynamo).errors, 1); /* A change of endpoint is none. */
    CHECK_EQ(kvg_dynamo_step(dynamo, 2300), KVG_DYNAMO_CONNECTING);
    CHECK(kvi_str_equal(
        kvg_dynamo_stream_endpoint(dynamo), kvi_str("tcp://127.0.0.1:5558")));
    kvg_dynamo_connected(dynamo, true, 2300);
    CHECK(kvg_dynamo_remove_worker(dynamo, 1));
    CHECK_EQ(kvg_dynamo_step(dynamo, 2400), KVG_DYNAMO_PAUSED);
    CHECK_EQ(kvg_dynamo_step(dynamo, 3400), KVG_DYNAMO_WAITING);
    CHECK(kvg_dynamo_stream_endpoint(dynamo).data == NULL);
    kvg_dynamo_stop(dynamo);
    kvg_dynamo_connected(dynamo, true, 3400); /* Too late. */
    kvg_dynamo_stream_ended(dynamo, 3400);
    CHECK_EQ(kvg_dynamo_step(dynamo, 9999), KVG_DYNAMO_STOPPED);
    CHECK_EQ(stats_of(dynamo).errors, 1);
    finish(&fault, dynamo);
}

TEST(holes_are_credited_and_counted_from_any_page)
{
    static const struct kvg_range RANGES[] = {{0, 2}, {3, 4}, {6, 9}};

    CHECK_EQ(kvg_dynamo_hits_beyond(RANGES, 3, 0), 6);
    CHECK_EQ(kvg_dynamo_hits_beyond(RANGES, 3, 1), 5);
    CHECK_EQ(kvg_dynamo_hits_beyond(RANGES, 3, 2), 4);
    CHECK_EQ(kvg_dynamo_hits_beyond(RANGES, 3, 7), 2);
    CHECK_EQ(kvg_dynamo_hits_beyond(RANGES, 3, 9), 0);
    CHECK_EQ(kvg_dynamo_hits_beyond(RANGES, 0, 0), 0);
}

TEST(sizes_that_would_expand_to_billions_of_keys_cost_one_look)
{
    struct fault_alloc fault;
    struct kvg_dynamo *dynamo = new_dynamo(&fault);
    struct kvg_worker_config config = seed_worker();

    config.layout.tp_size = UINT32_MAX;
    config.layout.pp_size = UINT32_MAX;
    CHECK_EQ(kvg_dynamo_set_worker(dynamo, 1, &config, NULL), KVG_OK);
    CHECK_EQ(ask(dynamo, 10, 4), KVG_DYNAMO_ANSWERED);
    finish(&fault, dynamo);
}

TEST(strings_over_a_limit_are_refused_or_not_kept)
{
    static char text[KVG_DYNAMO_STRING_BYTES_MAX + 1];
    struct seed_event event = {"stored", text, NULL, text};
    struct fault_alloc fault;
    struct kvg_dynamo *dynamo = new_dynamo(&fault);
    struct kvg_worker_config config = seed_worker();
    struct kvg_dynamo_options options = {.struct_bytes = 1};
    struct kvg_dynamo *other;
    struct kvg_error error;
    struct seed_message message;

    memset(text, 'x', sizeof(text));
    config.backend = (struct kvg_str){text, KVG_BACKEND_BYTES_MAX + 1};
    CHECK_EQ(kvg_dynamo_set_worker(dynamo, 1, &config, &error), KVG_ELIMIT);
    CHECK_STR(error.field, "backend");
    config = seed_worker();
    config.layout.tag = (struct kvg_str){text, KVG_LAYOUT_PREFIX_BYTES_MAX + 1};
    CHECK_EQ(kvg_dynamo_set_worker(dynamo, 1, &config, &error), KVG_ELIMIT);
    CHECK_STR(error.field, "extra_backend_tag");
    config = seed_worker();
    config.kv_events_endpoint = (struct kvg_str){text, KVG_ENDPOINT_BYTES_MAX + 1};
    CHECK_EQ(kvg_dynamo_set_worker(dynamo, 1, &config, &error), KVG_ELIMIT);
    CHECK_STR(error.field, "kv_events_endpoint");
    config.struct_bytes = 3;
    CHECK_EQ(kvg_dynamo_set_worker(dynamo, 1, &config, &error), KVG_EINVAL);
    CHECK_EQ(ask(dynamo, 8, 4), KVG_DYNAMO_NO_CONFIG);
    CHECK_EQ(kvg_dynamo_new(&fault.alloc, &options, &other), KVG_EINVAL);
    options.struct_bytes = sizeof(options);
    options.endpoint = config.kv_events_endpoint;
    CHECK_EQ(kvg_dynamo_new(&fault.alloc, &options, &other), KVG_EINVAL);

    text[KVG_DYNAMO_STRING_BYTES_MAX] = '\0';
    seed_message_init(&message, 1, &event, 1);
    kvg_dynamo_message(dynamo, message.frames, 3);
    seed_message_fini(&message);
    CHECK_EQ(stats_of(dynamo).present_keys, 1);
    finish(&fault, dynamo);
}

/* The longest names of a lookup fit their buffer. */
TEST(the_longest_names_are_found)
{
    static char tag[KVG_LAYOUT_PREFIX_BYTES_MAX + 1];
    char key[512];
    char group[512];
    struct seed_event event = {"stored", key, NULL, group};
    struct fault_alloc fault;
    struct kvg_dynamo *dynamo = new_dynamo(&fault);
    struct kvg_worker_config config = seed_worker();
    struct seed_message message;
    size_t range_count;
    uint32_t total;

    memset(tag, 't', KVG_LAYOUT_PREFIX_BYTES_MAX);
    config.layout.tag = kvi_str(tag);
    config.layout.mla = true;
    CHECK_EQ(kvg_dynamo_set_worker(dynamo, 1, &config, NULL), KVG_OK);
    snprintf(key, sizeof(key), "%s_%s__k", tag, SEED_HASH0);
    snprintf(group, sizeof(group), "sglang-hicache:%s_%s", tag, SEED_HASH0);
    seed_message_init(&message, 1, &event, 1);
    kvg_dynamo_message(dynamo, message.frames, 3);
    seed_message_fini(&message);
    kvg_dynamo_check_blocks(
        dynamo, TOKENS, 8, 4, NO_NAMESPACE, NULL, 0, &range_count, &total);
    CHECK_EQ(total, 1);
    finish(&fault, dynamo);
}

static bool scenario(const struct kvg_alloc *alloc, void *context)
{
    struct fault_alloc *fault = alloc->context;
    struct kvg_dynamo_options options = {.struct_bytes = sizeof(options)};
    struct kvg_worker_config config = seed_worker();
    struct kvg_dynamo *dynamo;
    uint64_t entries;
    bool good;

    if (kvg_dynamo_new(alloc, &options, &dynamo) != KVG_OK)
        return false;
    good = kvg_dynamo_set_worker(dynamo, 1, &config, NULL) == KVG_OK;
    send_json(dynamo, 1, "[0,[['stored','a','','g'],['stored','b','','h']],0]");
    send_json(dynamo, 2, "[0,[['stored','c','','g'],['removed','a','','g']],0]");
    CHECK(!kvi_dynamo_has_key(dynamo, kvi_str("a")));
    entries = stats_of(dynamo).present_keys + stats_of(dynamo).group_states;
    CHECK(entries <= 3); /* b, c and the group h. */
    CHECK(entries == 3 || stats_of(dynamo).no_memory != 0);
    CHECK_EQ(stats_of(dynamo).last_sequence, 2);
    CHECK_EQ(kvi_dynamo_check(dynamo), 0);
    good = good && stats_of(dynamo).no_memory == 0;
    kvg_dynamo_free(dynamo);
    return good && fault->failed == 0;
}

TEST(without_memory_it_under_reports)
{
    for_each_oom(scenario, NULL);
}

/* The set of strings against an array that is searched from end to end. */
TEST(the_set_of_strings_holds_what_was_put_and_not_removed)
{
    enum {
        NAMES = 200
    };
    struct kvi_rng rng = {5};
    struct fault_alloc fault;
    struct kvi_strings strings;
    bool there[NAMES] = {false};
    uint64_t values[NAMES] = {0};
    size_t count = 0;
    int step;

    fault_alloc_init(&fault);
    kvi_strings_init(&strings, &fault.alloc, 11);
    for (step = 0; step < 6000; step++) {
        size_t who = (size_t)kvi_rng_below(&rng, NAMES);
        char text[32];
        struct kvi_string *entry;

        snprintf(
            text, sizeof(text), "%.*s%zu", (int)(who % 17), "abcdefghijklmnopq", who);
        switch (kvi_rng_below(&rng, 4)) {
        case 0:
            CHECK_EQ(kvi_strings_remove(&strings, kvi_str(text)), there[who]);
            count -= there[who];
            there[who] = false;
            break;
        case 1:
        case 2:
            entry = kvi_strings_put(&strings, kvi_str(text));
            CHECK_EQ(entry->value, there[who] ? values[who] : 0);
            entry->value = values[who] = kvi_rng_next(&rng);
            count += !there[who];
            there[who] = true;
            break;
        default:
            entry = kvi_strings_find(&strings, kvi_str(text));
            CHECK_EQ(entry != NULL, there[who]);
            if (entry != NULL)
                CHECK_EQ(entry->value, values[who]);
        }
        CHECK_EQ(strings.count, count);
        CHECK_EQ(fault.live_bytes, strings.memory_bytes);
        if (step % 50 == 0)
            CHECK_EQ(kvi_strings_check(&strings), 0);
        if (step == 3000) {
            kvi_strings_clear(&strings);
            memset(there, 0, sizeof(there));
            count = 0;
        }
    }
    kvi_strings_clear(&strings);
    CHECK_EQ(fault.live_bytes, 0);
}

TEST(the_check_finds_an_entry_whose_text_changed)
{
    struct kvi_strings strings;

    kvi_strings_init(&strings, kvg_alloc_default(), 1);
    kvi_strings_put(&strings, kvi_str("text"))->text[0] = 'n';
    CHECK_EQ(kvi_strings_check(&strings), 1);
    kvi_strings_clear(&strings);
}

TEST_MAIN(RUN(the_decoder_takes_what_the_client_takes),
    RUN(the_decoder_refuses_what_the_client_refuses),
    RUN(bytes_behind_the_payload_do_not_matter_and_missing_ones_do),
    RUN(only_three_frames_with_a_sequence_of_eight_bytes_are_a_message),
    RUN(a_refused_message_makes_the_next_good_one_a_gap),
    RUN(an_older_sequence_is_a_gap_and_only_the_last_one_a_duplicate),
    RUN(other_tenants_and_events_without_a_key_are_skipped),
    RUN(an_empty_group_label_is_none), RUN(a_verified_group_answers_until_its_next_event),
    RUN(every_reason_for_an_empty_answer_is_told),
    RUN(layouts_are_compared_as_advertised),
    RUN(a_layout_that_comes_back_after_a_disagreement_clears_nothing),
    RUN(the_stream_clears_on_its_way_to_a_connection_and_not_before),
    RUN(holes_are_credited_and_counted_from_any_page),
    RUN(sizes_that_would_expand_to_billions_of_keys_cost_one_look),
    RUN(strings_over_a_limit_are_refused_or_not_kept), RUN(the_longest_names_are_found),
    RUN(without_memory_it_under_reports),
    RUN(the_set_of_strings_holds_what_was_put_and_not_removed),
    RUN(the_check_finds_an_entry_whose_text_changed))
