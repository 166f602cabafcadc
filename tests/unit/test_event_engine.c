/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* Unit tests of the event reader on engines' events: arrays, maps, tails, hashes, tokens. */
#include "event_samples.h"
#include "test.h"

#include <kvgraft/event.h>

static void check_engine_sample(const char *json, const char *salt)
{
    struct kvg_event_reader reader;
    struct kvg_event event;
    struct sample_payload payload = sample_payload(json);
    uint64_t value;

    kvg_event_reader_init(&reader, NULL);
    CHECK_EQ(sample_read_all(&reader, payload.bytes, &event, 1), 1);
    CHECK_EQ(event.kind, KVG_EVENT_STORED);
    CHECK_EQ(event.form, KVG_FORM_ENGINE);
    CHECK_EQ(event.medium, KVG_MEDIUM_DEVICE);
    check_sample_text(event.medium_name, "GPU");
    CHECK(event.has_timestamp);
    CHECK_EQ(event.timestamp_ms, 1000);
    CHECK(!event.has_parent_hash);
    CHECK(event.has_block_size);
    CHECK_EQ(event.block_size, 2);
    CHECK(kvg_event_array_next(&event.block_hashes, &value));
    CHECK_EQ(value, 123);
    CHECK(!kvg_event_array_next(&event.block_hashes, &value));
    CHECK(kvg_event_array_next(&event.token_ids, &value));
    CHECK_EQ(value, 1);
    CHECK(kvg_event_array_next(&event.token_ids, &value));
    CHECK_EQ(value, 2);
    CHECK(!kvg_event_array_next(&event.token_ids, &value));
    if (salt == NULL)
        CHECK(event.salt.data == NULL);
    else
        check_sample_text(event.salt, salt);
    CHECK_EQ(reader.counts.unknown_fields, 0);
    CHECK_EQ(reader.counts.ignored_values, 0);
    sample_payload_fini(&payload);
}

TEST(engine_events_are_read_from_arrays_and_from_maps)
{
    check_engine_sample(
        "[1.0,[['BlockStored',[123],null,[1,2],2,null,'GPU']],null]", NULL);
    check_engine_sample("[1.0,[['BlockStored',[123],null,[1,2],2,null,'GPU',"
                        "{'cache_salt':'tenant-a'}]],null]",
        "tenant-a");
    check_engine_sample("[1.0,[{'type':'BlockStored','block_hashes':[123],"
                        "'parent_block_hash':null,'token_ids':[1,2],'block_size':2,"
                        "'lora_id':null,'medium':'GPU'}],null]",
        NULL);
    check_engine_sample("{'ts':1.0,'events':[{'type':'BlockStored',"
                        "'block_hashes':[123],'token_ids':[1,2],'block_size':2,"
                        "'medium':'GPU','cache_salt':'s'}]}",
        "s");
    /* Without the place of the adapter's number. */
    check_engine_sample("[1.0,[['BlockStored',[123],null,[1,2],2,'GPU']]]", NULL);
}

TEST(the_tail_of_an_engine_array_is_told_apart_by_type)
{
    struct kvg_event_reader reader;
    struct kvg_event events[3];
    struct sample_payload payload = sample_payload(
        "[1.0,[['BlockStored',[1,-2],7,[1,2,3,4],2,9,'CPU_TIER2','ada',[null],[],3,"
        "'sliding_window',4096,'REMOTE','offload'],"
        "['BlockRemoved',[5],'CPU',1,'full_attention'],"
        "['AllBlocksCleared','GPU']],2]");
    uint64_t value;

    kvg_event_reader_init(&reader, NULL);
    CHECK_EQ(sample_read_all(&reader, payload.bytes, events, 3), 3);
    CHECK_EQ(events[0].medium, KVG_MEDIUM_DISK);
    CHECK(events[0].has_parent_hash);
    CHECK_EQ(events[0].parent_hash, 7);
    CHECK_EQ(events[0].lora_id, 9);
    check_sample_text(events[0].lora_name, "ada");
    CHECK(events[0].has_group_index);
    CHECK_EQ(events[0].group_index, 3);
    check_sample_text(events[0].spec_kind, "sliding_window");
    CHECK_EQ(events[0].sliding_window, 4096);
    check_sample_text(events[0].locality, "REMOTE");
    check_sample_text(events[0].source_kind, "offload");
    CHECK(events[0].has_dp_rank);
    CHECK_EQ(events[0].dp_rank, 2);
    CHECK(kvg_event_array_next(&events[0].block_hashes, &value));
    CHECK(kvg_event_array_next(&events[0].block_hashes, &value));
    CHECK_EQ(value, (uint64_t)-2);
    CHECK_EQ(events[1].kind, KVG_EVENT_REMOVED);
    CHECK_EQ(events[1].medium, KVG_MEDIUM_CPU);
    CHECK_EQ(events[1].group_index, 1);
    check_sample_text(events[1].spec_kind, "full_attention");
    CHECK(!events[1].every_medium);
    CHECK_EQ(events[2].kind, KVG_EVENT_CLEARED);
    CHECK_EQ(events[2].medium, KVG_MEDIUM_DEVICE);
    CHECK_EQ(events[2].dp_rank, 2);
    sample_payload_fini(&payload);
}

TEST(hashes_may_be_signed_unsigned_or_bytes)
{
    struct kvg_event_reader reader;
    struct kvg_event event;
    struct sample_payload payload = sample_payload(
        "[1.0,[['BlockRemoved',[-1,18446744073709551615,<0102030405060708090a>,<0102>,"
        "'ab']]],null]");
    static const uint64_t EXPECTED[] = {
        UINT64_MAX, UINT64_MAX, UINT64_C(0x0102030405060708), 0x0102, 0x6162};
    uint64_t value;
    size_t i;

    kvg_event_reader_init(&reader, NULL);
    CHECK_EQ(sample_read_all(&reader, payload.bytes, &event, 1), 1);
    CHECK_EQ(event.block_hashes.count, 5);
    for (i = 0; i < 5; i++) {
        CHECK(kvg_event_array_next(&event.block_hashes, &value));
        CHECK_EQ(value, EXPECTED[i]);
    }
    sample_payload_fini(&payload);
}

TEST(token_pairs_are_read_as_pairs)
{
    struct kvg_event_reader reader;
    struct kvg_event event;
    struct sample_payload payload =
        sample_payload("[1.0,[['BlockStored',[1],null,[[10,11],[11,12]],2]],null]");
    uint64_t pair[2];
    uint64_t value;

    kvg_event_reader_init(&reader, NULL);
    CHECK_EQ(sample_read_all(&reader, payload.bytes, &event, 1), 1);
    CHECK(event.token_pairs);
    CHECK_EQ(event.token_ids.count, 2);
    CHECK(!kvg_event_array_next(&event.token_ids, &value));
    CHECK(kvg_event_array_next_pair(&event.token_ids, pair));
    CHECK_EQ(pair[0], 10);
    CHECK_EQ(pair[1], 11);
    CHECK(kvg_event_array_next_pair(&event.token_ids, pair));
    CHECK_EQ(pair[1], 12);
    CHECK(!kvg_event_array_next_pair(&event.token_ids, pair));
    sample_payload_fini(&payload);

    payload = sample_payload("[1.0,[['BlockStored',[1],null,[[10,11],12],2],"
                             "['BlockStored',[1],null,[10,[11,12]],2],"
                             "['BlockStored',[1],null,[[1,2,3]],2]],null]");
    CHECK_EQ(sample_read_all(&reader, payload.bytes, &event, 1), 0);
    CHECK_EQ(reader.counts.bad_events, 3);
    sample_payload_fini(&payload);
}

TEST(metadata_may_name_every_field_of_a_tail)
{
    struct kvg_event_reader reader;
    struct kvg_event event;
    struct sample_payload payload = sample_payload(
        "[-1.5,[['BlockStored',[1],null,[],2,null,'GPU',{7:8,'cache_salt':'s',"
        "'lora_name':'a','lora_id':-3,'group_idx':1,'kv_cache_spec_kind':'full',"
        "'kv_cache_spec_sliding_window':9,'locality':'LOCAL','source_kind':'x',"
        "'object_key':'no'},1.5]],null]");

    kvg_event_reader_init(&reader, NULL);
    CHECK_EQ(sample_read_all(&reader, payload.bytes, &event, 1), 1);
    check_sample_text(event.salt, "s");
    check_sample_text(event.lora_name, "a");
    CHECK_EQ(event.lora_id, -3);
    CHECK_EQ(event.group_index, 1);
    check_sample_text(event.spec_kind, "full");
    CHECK_EQ(event.sliding_window, 9);
    check_sample_text(event.locality, "LOCAL");
    CHECK(event.object_key.data == NULL);
    CHECK_EQ(event.timestamp_ms, -1500);
    /* A number as a key, a key that is not a tail's, a float. */
    CHECK_EQ(reader.counts.unknown_fields, 3);
    check_sample_text(event.source_kind, "x");
    sample_payload_fini(&payload);
}

TEST(a_namespace_of_a_wrong_type_makes_the_event_bad)
{
    struct kvg_event_reader reader;
    struct kvg_event event;
    struct sample_payload payload =
        sample_payload("[1.0,[['BlockStored',[1],null,[],2,null,'GPU',{'cache_salt':7}],"
                       "['BlockStored',[1],'parent',[],2],['BlockStored',[1],[],[],2],"
                       "['BlockStored',[1],null,[],2,null,'GPU',{[]:{},'lora_name':[]}],"
                       "{'type':'BlockStored','block_hashes':[1],'cache_salt':[]},"
                       "{'type':'BlockStored','block_hashes':[[1]]},"
                       "{'type':'BlockStored','token_ids':[1]},"
                       "['BlockStored',[1],null],['BlockRemoved'],[7]],null]");

    kvg_event_reader_init(&reader, NULL);
    CHECK_EQ(sample_read_all(&reader, payload.bytes, &event, 1), 1);
    /* A parent of text is a hash of bytes. */
    CHECK(event.has_parent_hash);
    CHECK_EQ(reader.counts.bad_events, 9);
    sample_payload_fini(&payload);
}

TEST(times_may_be_whole_numbers_of_either_sign)
{
    struct kvg_event_reader reader;
    struct kvg_event event;
    struct sample_payload payload = sample_payload("[-5,[{'type':'AllBlocksCleared'}]]");

    kvg_event_reader_init(&reader, NULL);
    CHECK_EQ(sample_read_all(&reader, payload.bytes, &event, 1), 1);
    CHECK_EQ(event.timestamp_ms, -5);
    CHECK(!event.has_dp_rank);
    CHECK(!event.every_medium); /* An engine without a medium means its device. */
    sample_payload_fini(&payload);

    payload = sample_payload("[18446744073709551615,[{'type':'AllBlocksCleared',"
                             "'dp_rank':9223372036854775808}],"
                             "9223372036854775808,1,2]");
    CHECK_EQ(sample_read_all(&reader, payload.bytes, &event, 1), 1);
    CHECK(!event.has_timestamp);
    CHECK(!event.has_dp_rank);
    CHECK(!reader.broken);
    CHECK_EQ(reader.counts.ignored_values, 3);
    sample_payload_fini(&payload);
}

TEST(a_rank_behind_broken_events_is_not_found_and_the_message_is_given_up)
{
    struct kvg_event_reader reader;
    struct kvg_event event;
    /* A good event, then one that never ends. */
    struct kvg_str payload = {"\x93\x05\x92\x91\xb0"
                              "AllBlocksCleared\xc1\x07",
        23};

    kvg_event_reader_init(&reader, NULL);
    CHECK_EQ(kvg_event_reader_begin(&reader, payload, NULL), KVG_OK);
    CHECK(kvg_event_reader_next(&reader, &event));
    CHECK(!event.has_dp_rank);
    CHECK(!reader.broken);
    CHECK(!kvg_event_reader_next(&reader, &event));
    CHECK(reader.broken);
    CHECK(!reader.has_dp_rank);
}

/* In memory of its own, so that a sanitizer sees a byte too far. */
static void read_cut(struct kvg_str whole, size_t bytes)
{
    struct kvg_event_reader reader;
    struct kvg_event events[4];
    char *cut = malloc(bytes + 1);

    CHECK(cut != NULL);
    memcpy(cut, whole.data, bytes);
    kvg_event_reader_init(&reader, NULL);
    (void)sample_read_all(&reader, (struct kvg_str){cut, bytes}, events, 4);
    CHECK(reader.broken);
    CHECK_EQ(reader.counts.bad_payloads, 1);
    free(cut);
}

TEST(every_form_cut_anywhere_is_given_up_once)
{
    size_t i;

    for (i = 0; i < SAMPLE_FORM_COUNT; i++) {
        struct sample_payload payload = sample_payload(SAMPLE_FORMS[i]);
        size_t bytes;

        for (bytes = 0; bytes < payload.bytes.bytes; bytes++)
            read_cut(payload.bytes, bytes);
        sample_payload_fini(&payload);
    }
}

TEST_MAIN(RUN(engine_events_are_read_from_arrays_and_from_maps),
    RUN(the_tail_of_an_engine_array_is_told_apart_by_type),
    RUN(hashes_may_be_signed_unsigned_or_bytes), RUN(token_pairs_are_read_as_pairs),
    RUN(metadata_may_name_every_field_of_a_tail),
    RUN(a_namespace_of_a_wrong_type_makes_the_event_bad),
    RUN(times_may_be_whole_numbers_of_either_sign),
    RUN(a_rank_behind_broken_events_is_not_found_and_the_message_is_given_up),
    RUN(every_form_cut_anywhere_is_given_up_once))
