/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* Unit tests of the event reader: one form, or one fault, a test.  Payloads are written with
 * the small builder below, or are the bytes of a real master. */
#include "event/decode.h"
#include "event/msgpack.h"
#include "event_samples.h"
#include "fault_alloc.h"
#include "test.h"

#include <kvgraft/event.h>

/* Frames ---------------------------------------------------------------------------------- */

TEST(three_frames_make_a_message)
{
    struct kvg_str frames[3] = {{"", 0}, {"\0\0\0\0\0\0\x01\x02", 8}, {"\x93", 1}};
    struct kvg_frames parsed;
    struct kvg_error error;

    CHECK_EQ(kvg_frames_parse(frames, 3, &error, &parsed), KVG_OK);
    CHECK_EQ(parsed.sequence, 258);
    CHECK_EQ(parsed.payload.bytes, 1);

    CHECK_EQ(kvg_frames_parse(frames, 2, &error, &parsed), KVG_EFORMAT);
    CHECK_STR(error.field, "frames");
    CHECK_STR(error.message,
        "the message has 2 frames; expected are topic, sequence and payload");
    frames[1].bytes = 7;
    CHECK_EQ(kvg_frames_parse(frames, 3, &error, &parsed), KVG_EFORMAT);
    CHECK_STR(error.field, "frames.sequence");
    CHECK_EQ(kvg_frames_parse(NULL, 0, NULL, &parsed), KVG_EFORMAT);
}

TEST(a_sequence_is_big_endian)
{
    uint8_t bytes[8];

    kvg_sequence_encode(UINT64_C(0x0102030405060708), bytes);
    CHECK_MEM(bytes, "\x01\x02\x03\x04\x05\x06\x07\x08", 8);
}

/* The master's events --------------------------------------------------------------------- */

TEST(a_real_masters_stored_event_is_read)
{
    struct kvg_event_reader reader;
    struct kvg_event event;
    struct sample_bytes payload;

    sample_hex(SAMPLE_MASTER_STORED, &payload);
    kvg_event_reader_init(&reader, NULL);
    CHECK_EQ(sample_read_all(&reader, payload.str, &event, 1), 1);
    CHECK_EQ(event.kind, KVG_EVENT_STORED);
    CHECK_EQ(event.form, KVG_FORM_OBJECT);
    CHECK_EQ(event.encoding, KVG_ENCODING_MAP);
    CHECK_EQ(event.medium, KVG_MEDIUM_CPU);
    CHECK(event.has_event_id);
    CHECK_EQ(event.event_id, 1);
    CHECK_EQ(event.timestamp_ms, INT64_C(0x1a22fa61d99));
    check_sample_text(event.tenant_id, "default");
    check_sample_text(event.backend_id, "pool-a");
    check_sample_text(event.group_id, "grp");
    check_sample_text(event.object_key, "k1");
    CHECK(event.model_name.data == NULL);
    CHECK(event.has_base_block_index);
    CHECK(!event.has_dp_rank);
    CHECK(!event.has_parent_hash);
    CHECK(!event.every_medium);
    CHECK_EQ(event.block_hashes.count, 0);
    CHECK_EQ(reader.counts.predicted, 1);
    CHECK(reader.has_dp_rank);
    CHECK_EQ(reader.dp_rank, 0);
    CHECK(!reader.broken);
}

TEST(a_removal_of_the_older_publisher_is_for_every_medium)
{
    struct kvg_event_reader reader;
    struct kvg_event event;
    struct sample_bytes payload;

    sample_hex(SAMPLE_MASTER_REMOVED, &payload);
    kvg_event_reader_init(&reader, NULL);
    CHECK_EQ(sample_read_all(&reader, payload.str, &event, 1), 1);
    CHECK_EQ(event.kind, KVG_EVENT_REMOVED);
    CHECK_EQ(event.event_id, 3);
    CHECK_EQ(event.medium, KVG_MEDIUM_CPU);
    CHECK(event.every_medium);
    CHECK(!event.has_base_block_index);
}

TEST(a_removal_of_the_reworked_publisher_is_for_its_medium)
{
    struct kvg_event_reader reader;
    struct kvg_event events[4];
    struct sample_payload payload = sample_payload(
        "[5,[{'event_type':'removed','object_key':'k','medium':'disk','dp_rank':0},"
        "{'event_type':'cleared','tenant_id':'t','backend_id':'b','medium':null,"
        "'dp_rank':0},"
        "{'event_type':'removed','object_key':'k','medium':'tape','dp_rank':0},"
        "{'event_type':'removed','object_key':'k','dp_rank':0}],0]");

    kvg_event_reader_init(&reader, NULL);
    CHECK_EQ(sample_read_all(&reader, payload.bytes, events, 4), 4);
    CHECK_EQ(events[0].medium, KVG_MEDIUM_DISK);
    CHECK(!events[0].every_medium);
    CHECK_EQ(events[1].kind, KVG_EVENT_CLEARED);
    CHECK(events[1].every_medium);
    check_sample_text(events[1].tenant_id, "t");
    /* A medium that we cannot name, or none: to remove too much is the safe side. */
    CHECK(events[2].every_medium);
    check_sample_text(events[2].medium_name, "tape");
    CHECK(events[3].every_medium);
    sample_payload_fini(&payload);
}

TEST(keys_come_in_any_order_and_unknown_ones_are_skipped_and_counted)
{
    struct kvg_event_reader reader;
    struct kvg_event event;
    struct sample_payload payload =
        sample_payload("[5,[{'object_key':'k','future':[1,{'a':[]}],"
                       "7:8,'medium':'cpu','event_type':'stored'}],0]");

    kvg_event_reader_init(&reader, NULL);
    CHECK_EQ(sample_read_all(&reader, payload.bytes, &event, 1), 1);
    check_sample_text(event.object_key, "k");
    CHECK_EQ(event.timestamp_ms, 5);
    CHECK_EQ(reader.counts.unknown_fields, 2);
    CHECK_EQ(reader.counts.predicted, 0);
    sample_payload_fini(&payload);
}

TEST(a_heartbeat_is_a_fact_of_its_message_and_no_event)
{
    struct kvg_event_reader reader;
    struct kvg_event event;
    struct sample_payload payload =
        sample_payload("[5,[{'event_type':'heartbeat','epoch':77,'objects':3,"
                       "'future':[1],'timestamp':5},"
                       "{'event_type':'stored','object_key':'k'},"
                       "{'event_type':'heartbeat','objects':4},"
                       "{'event_type':'heartbeat','epoch':'x'},"
                       "{'event_type':'heartbeat','epoch':78,'objects':9}],0]");

    kvg_event_reader_init(&reader, NULL);
    CHECK_EQ(kvg_event_reader_begin(&reader, payload.bytes, NULL), KVG_OK);
    CHECK(kvg_event_reader_next(&reader, &event));
    CHECK_EQ(reader.epoch, 77);
    CHECK(reader.has_objects);
    CHECK_EQ(reader.objects, 3);
    check_sample_text(event.object_key, "k");
    CHECK(!kvg_event_reader_next(&reader, &event));
    CHECK(!reader.broken);
    CHECK_EQ(reader.epoch, 77);
    CHECK_EQ(reader.counts.heartbeats, 2);
    CHECK_EQ(reader.counts.bad_events, 2);
    CHECK_EQ(reader.counts.unknown_kinds, 0);
    CHECK_EQ(reader.counts.events, 1);
    sample_payload_fini(&payload);
}

TEST(the_writers_heartbeat_is_read_again)
{
    struct kvg_event_reader reader;
    struct kvg_event_writer *writer;
    struct kvg_event event = {.kind = KVG_EVENT_STORED, .object_key = sample_text("k")};
    struct kvg_str payload;

    CHECK_EQ(
        kvg_event_writer_new(kvg_alloc_default(), KVG_DIALECT_MOONCAKE, &writer), KVG_OK);
    kvg_event_writer_begin(writer, 5, true, 0);
    kvg_event_writer_heartbeat(writer, UINT64_MAX, 0);
    kvg_event_writer_add(writer, &event, NULL, 0, NULL, 0);
    CHECK_EQ(kvg_event_writer_end(writer, &payload), KVG_OK);
    kvg_event_reader_init(&reader, NULL);
    CHECK_EQ(kvg_event_reader_begin(&reader, payload, NULL), KVG_OK);
    CHECK(kvg_event_reader_next(&reader, &event));
    CHECK_EQ(reader.epoch, UINT64_MAX);
    CHECK(reader.has_objects && reader.objects == 0);
    CHECK(!kvg_event_reader_next(&reader, &event));
    kvg_event_writer_begin(writer, 5, true, 0);
    kvg_event_writer_heartbeat(writer, 0, 0);
    CHECK_EQ(kvg_event_writer_end(writer, &payload), KVG_EINVAL);
    kvg_event_writer_free(writer);
}

TEST(nil_is_accepted_for_every_field)
{
    static const char *const NAMES[] = {
#define NAME(field, name) name,
        KVI_FIELDS(NAME)
#undef NAME
    };
    size_t i;

    for (i = 0; i < sizeof(NAMES) / sizeof(NAMES[0]); i++) {
        char json[256];
        struct kvg_event_reader reader;
        struct kvg_event event;
        struct sample_payload payload;

        snprintf(json, sizeof(json),
            "[5,[{'%s':null,'event_type':'stored','object_key':'k'}],null]", NAMES[i]);
        payload = sample_payload(json);
        kvg_event_reader_init(&reader, NULL);
        CHECK_EQ(sample_read_all(&reader, payload.bytes, &event, 1), 1);
        CHECK_EQ(reader.counts.ignored_values, 0);
        CHECK_EQ(reader.counts.unknown_fields, 0);
        sample_payload_fini(&payload);
    }
}

TEST(every_field_is_found_by_its_name_and_by_no_other)
{
    static const char *const NAMES[] = {
#define NAME(field, name) name,
        KVI_FIELDS(NAME)
#undef NAME
    };
    size_t i;

    for (i = 0; i < KVI_FIELD_COUNT; i++) {
        char name[64];
        size_t bytes = strlen(NAMES[i]);
        size_t at;

        CHECK_EQ(kvi_field_find(sample_text(NAMES[i])), i);
        for (at = 0; at < bytes; at++) {
            memcpy(name, NAMES[i], bytes);
            name[at] = (char)(name[at] ^ 1);
            CHECK_EQ(kvi_field_find((struct kvg_str){name, bytes}), KVI_FIELD_UNKNOWN);
        }
        CHECK(kvi_field_find((struct kvg_str){NAMES[i], bytes - 1}) != i);
    }
    CHECK_EQ(kvi_field_find((struct kvg_str){"", 0}), KVI_FIELD_UNKNOWN);
}

/* Faults ---------------------------------------------------------------------------------- */

TEST(a_bad_event_costs_that_event_only)
{
    struct kvg_event_reader reader;
    struct kvg_event events[8];
    struct sample_payload payload =
        sample_payload("[5,["
                       "{'event_type':'stored','object_key':7},"
                       "{'event_type':'stored','object_key':'a'},"
                       "{'event_type':5,'object_key':'x'},"
                       "{'object_key':'x'},"
                       "17,'text',null,[],{},[[]],"
                       "{'event_type':'stored','tenant_id':{}},"
                       "{'event_type':'stored'},"
                       "{'event_type':'moved','object_key':'x'},"
                       "['Whatever',1,2],"
                       "{'event_type':'removed','object_key':'b'}],0]");

    kvg_event_reader_init(&reader, NULL);
    CHECK_EQ(sample_read_all(&reader, payload.bytes, events, 8), 2);
    check_sample_text(events[0].object_key, "a");
    check_sample_text(events[1].object_key, "b");
    CHECK_EQ(reader.counts.bad_events, 11);
    CHECK_EQ(reader.counts.unknown_kinds, 2);
    CHECK_EQ(reader.counts.bad_payloads, 0);
    CHECK(!reader.broken);
    CHECK(reader.has_dp_rank);
    sample_payload_fini(&payload);
}

TEST(an_optional_value_of_a_wrong_type_is_ignored_and_counted)
{
    struct kvg_event_reader reader;
    struct kvg_event event;
    struct sample_payload payload = sample_payload(
        "['now',[{'event_type':'stored','object_key':'k','group_id':[1],'event_id':-1,"
        "'timestamp':'x','dp_rank':1.5,'medium':3,'block_size':{}}],'r']");

    kvg_event_reader_init(&reader, NULL);
    CHECK_EQ(sample_read_all(&reader, payload.bytes, &event, 1), 1);
    CHECK(event.group_id.data == NULL);
    CHECK(!event.has_event_id);
    CHECK(!event.has_timestamp);
    CHECK(!event.has_dp_rank);
    CHECK(!event.has_block_size);
    CHECK_EQ(event.medium, KVG_MEDIUM_UNKNOWN);
    CHECK_EQ(reader.counts.ignored_values, 8);
    sample_payload_fini(&payload);
}

TEST(a_payload_cut_anywhere_is_given_up_once)
{
    struct sample_bytes payload;
    size_t bytes;

    sample_hex(SAMPLE_MASTER_STORED, &payload);
    for (bytes = 0; bytes < payload.str.bytes; bytes++) {
        struct kvg_event_reader reader;
        struct kvg_event event;
        /* In memory of its own, so that a sanitizer sees a byte too far. */
        char *cut = malloc(bytes + 1);

        CHECK(cut != NULL);
        memcpy(cut, payload.str.data, bytes);
        kvg_event_reader_init(&reader, NULL);
        (void)sample_read_all(&reader, (struct kvg_str){cut, bytes}, &event, 1);
        CHECK_EQ(reader.counts.bad_payloads, 1);
        CHECK(reader.broken);
        CHECK(!kvg_event_reader_next(&reader, &event));
        CHECK_EQ(reader.counts.bad_payloads, 1);
        free(cut);
    }
}

TEST(bytes_after_the_batch_make_the_payload_bad)
{
    struct kvg_event_reader reader;
    struct kvg_event event;
    struct sample_bytes payload;

    sample_hex(SAMPLE_MASTER_STORED "00", &payload);
    kvg_event_reader_init(&reader, NULL);
    CHECK_EQ(sample_read_all(&reader, payload.str, &event, 1), 1);
    CHECK(reader.broken);
    CHECK_EQ(reader.counts.bad_payloads, 1);
}

TEST(what_is_no_batch_is_refused_with_a_reason)
{
    static const struct {
        const char *json;
        const char *field;
    } CASES[] = {{"7", "payload"}, {"'text'", "payload"}, {"null", "payload"},
        {"[]", "payload"}, {"[5]", "payload"}, {"[5,6,0]", "events"}, {"{}", "events"},
        {"{'ts':1.5}", "events"}, {"{'events':{}}", "payload"}};
    size_t i;

    for (i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        struct kvg_event_reader reader;
        struct kvg_event event;
        struct kvg_error error;
        struct sample_payload payload = sample_payload(CASES[i].json);

        kvg_event_reader_init(&reader, NULL);
        CHECK_EQ(kvg_event_reader_begin(&reader, payload.bytes, &error), KVG_EFORMAT);
        CHECK_STR(error.field, CASES[i].field);
        CHECK_EQ(reader.counts.bad_payloads, 1);
        CHECK(!kvg_event_reader_next(&reader, &event));
        sample_payload_fini(&payload);
    }
}

TEST(no_bytes_at_all_are_no_batch)
{
    struct kvg_event_reader reader;
    struct kvg_event event;

    kvg_event_reader_init(&reader, NULL);
    CHECK(!kvg_event_reader_next(&reader, &event)); /* Before any payload. */
    CHECK_EQ(
        kvg_event_reader_begin(&reader, (struct kvg_str){NULL, 0}, NULL), KVG_EFORMAT);
    CHECK(!kvg_event_reader_next(&reader, &event));
}

/* The checker sees a mistake of each kind. */
TEST(each_broken_invariant_of_a_reader_is_named)
{
    struct sample_payload payload = sample_payload("[5,['a','b'],0]");
    struct kvg_event_reader reader;
    struct kvg_event_reader wrong;

    kvg_event_reader_init(&reader, NULL);
    CHECK_EQ(kvi_event_reader_check(&reader), 0);
    CHECK_EQ(kvg_event_reader_begin(&reader, payload.bytes, NULL), KVG_OK);
    CHECK_EQ(kvi_event_reader_check(&reader), 0);
    wrong = reader;
    wrong.cursor = wrong.end + 1;
    CHECK_EQ(kvi_event_reader_check(&wrong), 1);
    wrong = reader;
    wrong.broken = true;
    CHECK_EQ(kvi_event_reader_check(&wrong), 2);
    wrong = reader;
    wrong.active = false;
    CHECK_EQ(kvi_event_reader_check(&wrong), 3);
    sample_payload_fini(&payload);
}

TEST(an_empty_batch_has_no_events)
{
    struct kvg_event_reader reader;
    struct kvg_event event;
    struct sample_payload payload = sample_payload("[5,[],7]");

    kvg_event_reader_init(&reader, NULL);
    CHECK_EQ(sample_read_all(&reader, payload.bytes, &event, 1), 0);
    CHECK(!reader.broken);
    CHECK(reader.has_dp_rank);
    CHECK_EQ(reader.dp_rank, 7);
    sample_payload_fini(&payload);
}

TEST(each_limit_is_named_and_refuses)
{
    struct kvg_event_limits limits = {.struct_bytes = sizeof(limits)};
    struct kvg_event_reader reader;
    struct kvg_event event;
    struct kvg_error error;
    struct sample_payload payload =
        sample_payload("[5,[{'event_type':'stored','object_key':'a'},"
                       "{'event_type':'stored','object_key':'abcdefgh'},"
                       "{'event_type':'stored','object_key':'b','x':[[[[]]]]}],0]");

    limits.message_bytes_max = payload.bytes.bytes - 1;
    kvg_event_reader_init(&reader, &limits);
    CHECK_EQ(kvg_event_reader_begin(&reader, payload.bytes, &error), KVG_ELIMIT);
    CHECK_EQ(error.code, KVG_ELIMIT);
    CHECK_STR(error.field, "message_bytes");

    limits = (struct kvg_event_limits){.struct_bytes = sizeof(limits), .event_max = 2};
    kvg_event_reader_init(&reader, &limits);
    CHECK_EQ(kvg_event_reader_begin(&reader, payload.bytes, &error), KVG_ELIMIT);
    CHECK_STR(error.message, "events is 3; allowed is 0 to 2");

    limits =
        (struct kvg_event_limits){.struct_bytes = sizeof(limits), .string_bytes_max = 7};
    kvg_event_reader_init(&reader, &limits);
    CHECK_EQ(sample_read_all(&reader, payload.bytes, &event, 1), 2);
    /* "event_type" is a key, not a string that is kept. */
    CHECK_EQ(reader.counts.bad_events, 1);
    CHECK_EQ(reader.counts.events, 2);

    limits = (struct kvg_event_limits){.struct_bytes = sizeof(limits), .depth_max = 4};
    kvg_event_reader_init(&reader, &limits);
    CHECK_EQ(sample_read_all(&reader, payload.bytes, &event, 1), 2);
    CHECK_EQ(reader.counts.bad_events, 1);
    limits.depth_max = 5;
    kvg_event_reader_init(&reader, &limits);
    CHECK_EQ(sample_read_all(&reader, payload.bytes, &event, 1), 3);
    sample_payload_fini(&payload);
}

TEST(a_count_that_cannot_be_true_is_refused_at_once)
{
    struct kvg_event_reader reader;
    struct kvg_event event;
    /* A batch that announces 4,294,967,295 events; an event with so many fields. */
    struct kvg_str batch = {"\x93\x05\xdd\xff\xff\xff\xff\x00", 8};
    struct kvg_str event_of_many = {"\x93\x05\x91\xdf\xff\xff\xff\xff\x00", 9};

    kvg_event_reader_init(&reader, NULL);
    CHECK_EQ(kvg_event_reader_begin(&reader, batch, NULL), KVG_EFORMAT);
    CHECK_EQ(sample_read_all(&reader, event_of_many, &event, 1), 0);
    CHECK_EQ(reader.counts.bad_payloads, 2);
}

TEST(nesting_without_end_is_skipped_without_recursion)
{
    size_t bytes = 1u << 20;
    char *deep = malloc(bytes + 4);
    struct kvg_event_reader reader;
    struct kvg_event event;

    CHECK(deep != NULL);
    memset(deep, 0x91, bytes + 4); /* [[[[[...]]]]] */
    deep[0] = (char)0x93;
    deep[1] = 5;
    deep[bytes + 2] = (char)0xc0;
    deep[bytes + 3] = 0;
    kvg_event_reader_init(&reader, NULL);
    CHECK_EQ(sample_read_all(&reader, (struct kvg_str){deep, bytes + 4}, &event, 1), 0);
    CHECK_EQ(reader.counts.bad_events, 1);
    CHECK_EQ(reader.counts.bad_payloads, 0);
    free(deep);
}

/* Other forms -------------------------------------------------------------------------- */

TEST(a_store_event_as_an_array_has_key_tenant_and_group)
{
    struct kvg_event_reader reader;
    struct kvg_event events[2];
    struct sample_payload payload =
        sample_payload("[5,[['stored','k','default','g',true],['removed','k']],0]");

    kvg_event_reader_init(&reader, NULL);
    CHECK_EQ(sample_read_all(&reader, payload.bytes, events, 2), 2);
    CHECK_EQ(events[0].form, KVG_FORM_OBJECT);
    CHECK_EQ(events[0].encoding, KVG_ENCODING_ARRAY);
    check_sample_text(events[0].object_key, "k");
    check_sample_text(events[0].tenant_id, "default");
    check_sample_text(events[0].group_id, "g");
    CHECK(events[1].every_medium);
    CHECK_EQ(reader.counts.unknown_fields, 1);
    sample_payload_fini(&payload);
}

TEST(a_batch_may_be_a_map_in_any_order)
{
    struct kvg_event_reader reader;
    struct kvg_event event;
    struct sample_payload payload =
        sample_payload("{'events':[['BlockRemoved',[5]]],'later':[1,2],"
                       "'data_parallel_rank':3,'ts':1700000000.25}");

    kvg_event_reader_init(&reader, NULL);
    CHECK_EQ(sample_read_all(&reader, payload.bytes, &event, 1), 1);
    CHECK_EQ(event.dp_rank, 3);
    CHECK_EQ(event.timestamp_ms, INT64_C(1700000000250));
    CHECK_EQ(reader.counts.unknown_fields, 1);
    CHECK(!reader.broken);
    sample_payload_fini(&payload);
}

TEST(a_time_that_is_no_time_is_absent)
{
    struct kvg_event_reader reader;
    struct kvg_event event;
    /* Not a number; infinity. */
    struct kvg_str nan = {"\x93\xcb\x7f\xf8\0\0\0\0\0\0\x91\x92\xac"
                          "BlockRemoved\x91\x05\xc0",
        28};
    struct kvg_str infinite = {"\x93\xca\x7f\x80\0\0\x91\x92\xac"
                               "BlockRemoved\x91\x05\xc0",
        24};

    kvg_event_reader_init(&reader, NULL);
    CHECK_EQ(sample_read_all(&reader, nan, &event, 1), 1);
    CHECK(!event.has_timestamp);
    CHECK_EQ(sample_read_all(&reader, infinite, &event, 1), 1);
    CHECK(!event.has_timestamp);
    CHECK_EQ(reader.counts.ignored_values, 2);
    CHECK_EQ(reader.counts.bad_payloads, 0);
}

TEST(words_for_media_are_understood_in_either_case)
{
    CHECK_EQ(kvg_medium_from_word(sample_text("cpu")), KVG_MEDIUM_CPU);
    CHECK_EQ(kvg_medium_from_word(sample_text("CPU_PINNED")), KVG_MEDIUM_CPU);
    CHECK_EQ(kvg_medium_from_word(sample_text("cpu_tier2")), KVG_MEDIUM_DISK);
    CHECK_EQ(kvg_medium_from_word(sample_text("Disk")), KVG_MEDIUM_DISK);
    CHECK_EQ(kvg_medium_from_word(sample_text("GPU")), KVG_MEDIUM_DEVICE);
    CHECK_EQ(kvg_medium_from_word(sample_text("shared")), KVG_MEDIUM_EXTERNAL);
    CHECK_EQ(kvg_medium_from_word(sample_text("cp")), KVG_MEDIUM_UNKNOWN);
    CHECK_EQ(kvg_medium_from_word((struct kvg_str){"CPU\0x", 5}), KVG_MEDIUM_UNKNOWN);
    CHECK_EQ(kvg_medium_from_word((struct kvg_str){NULL, 0}), KVG_MEDIUM_UNKNOWN);
}

TEST_MAIN(RUN(three_frames_make_a_message), RUN(a_sequence_is_big_endian),
    RUN(a_real_masters_stored_event_is_read),
    RUN(a_removal_of_the_older_publisher_is_for_every_medium),
    RUN(a_removal_of_the_reworked_publisher_is_for_its_medium),
    RUN(keys_come_in_any_order_and_unknown_ones_are_skipped_and_counted),
    RUN(a_heartbeat_is_a_fact_of_its_message_and_no_event),
    RUN(the_writers_heartbeat_is_read_again), RUN(nil_is_accepted_for_every_field),
    RUN(every_field_is_found_by_its_name_and_by_no_other),
    RUN(a_bad_event_costs_that_event_only),
    RUN(an_optional_value_of_a_wrong_type_is_ignored_and_counted),
    RUN(a_payload_cut_anywhere_is_given_up_once),
    RUN(bytes_after_the_batch_make_the_payload_bad),
    RUN(what_is_no_batch_is_refused_with_a_reason), RUN(no_bytes_at_all_are_no_batch),
    RUN(each_broken_invariant_of_a_reader_is_named), RUN(an_empty_batch_has_no_events),
    RUN(each_limit_is_named_and_refuses),
    RUN(a_count_that_cannot_be_true_is_refused_at_once),
    RUN(nesting_without_end_is_skipped_without_recursion),
    RUN(a_store_event_as_an_array_has_key_tenant_and_group),
    RUN(a_batch_may_be_a_map_in_any_order), RUN(a_time_that_is_no_time_is_absent),
    RUN(words_for_media_are_understood_in_either_case))
