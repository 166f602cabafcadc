/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* Unit tests of the token scanner, of growing text, and of the admin port's answers. */
#include "base/fmt.h"
#include "daemon/admin.h"
#include "daemon/advertised.h"
#include "daemon/scan.h"
#include "fault_alloc.h"
#include "test.h"

static struct kvd_scan scan;

static kvg_err read_text(const char *text, struct kvg_error *error)
{
    kvd_scan_reset(&scan, 1 << 20);
    return kvd_scan_json(&scan, kvi_str(text), error);
}

static void expect_refused(const char *text, const char *field)
{
    struct kvg_error error = {.code = KVG_OK};

    CHECK_EQ(read_text(text, &error), KVG_EFORMAT);
    CHECK_STR(error.field, field);
}

static void expect_rest(const char *text, const char *rest)
{
    struct kvg_error error = {.code = KVG_OK};

    CHECK_EQ(read_text(text, &error), KVG_OK);
    kvd_out_bytes(&scan.rest, "\0", 1);
    CHECK_STR(scan.rest.data, rest);
}

TEST(tokens_are_taken_out_and_the_rest_stays)
{
    kvd_scan_init(&scan, kvg_alloc_default());
    expect_rest("{\"tokens\":[1, 2,\n4294967295 ,0],\"tenant\":\"a]}\\\"\"}",
        "{\"tokens\":null,\"tenant\":\"a]}\\\"\"}");
    CHECK_EQ(scan.token_count, 4);
    CHECK_EQ(scan.tokens[2], 4294967295);
    CHECK(scan.has_tokens && !scan.has_keys);
    expect_rest("{\"a\":{\"tokens\":[1]},\"b\":[{},[2]],\"token_ids\":[]}",
        "{\"a\":{\"tokens\":[1]},\"b\":[{},[2]],\"token_ids\":null}");
    CHECK_EQ(scan.token_count, 0);
    CHECK(scan.has_tokens);
    expect_rest(" { } ", "{}");
    kvd_scan_fini(&scan);
}

TEST(page_keys_are_taken_as_hex)
{
    char text[200];

    kvd_scan_init(&scan, kvg_alloc_default());
    snprintf(text, sizeof(text), "{\"block_hashes\":[\"%064d\",\"%064x\"]}", 7, 255);
    expect_rest(text, "{\"block_hashes\":null}");
    CHECK_EQ(scan.key_count, 2);
    CHECK_EQ(scan.keys[1].bytes[31], 255);
    kvd_scan_fini(&scan);
}

TEST(a_bad_token_is_named_by_its_place)
{
    kvd_scan_init(&scan, kvg_alloc_default());
    expect_refused("{\"tokens\":[1,-2]}", "tokens[1]");
    expect_refused("{\"tokens\":[1,2.5]}", "tokens[1]");
    expect_refused("{\"tokens\":[4294967296]}", "tokens[0]");
    expect_refused("{\"tokens\":[1,2,\"3\"]}", "tokens[2]");
    expect_refused("{\"tokens\":[01]}", "tokens[0]");
    expect_refused("{\"tokens\":[1,]}", "tokens[1]");
    expect_refused("{\"tokens\":[1", "tokens[0]");
    expect_refused("{\"tokens\":7}", "tokens[0]");
    expect_refused("{\"page_keys\":[7]}", "page_keys[0]");
    expect_refused("{\"page_keys\":[\"ab\"]}", "page_keys[0]");
    expect_refused("{\"tokens\":[1],\"tokens\":[2]}", "body");
    expect_refused("{\"a\":1} x", "body");
    expect_refused("{\"a\"", "body");
    expect_refused("{\"a\":\"", "body");
    expect_refused("[]", "body");
    expect_refused("", "body");
    kvd_scan_fini(&scan);
}

TEST(binary_tokens_are_little_endian)
{
    struct kvg_error error = {.code = KVG_OK};

    kvd_scan_init(&scan, kvg_alloc_default());
    CHECK_EQ(
        kvd_scan_binary(&scan, (struct kvg_str){"\1\0\0\0\0\0\0\2", 8}, &error), KVG_OK);
    CHECK_EQ(scan.token_count, 2);
    CHECK_EQ(scan.tokens[1], 0x02000000);
    CHECK_EQ(kvd_scan_binary(&scan, (struct kvg_str){"abc", 3}, &error), KVG_EFORMAT);
    kvd_scan_fini(&scan);
}

static bool scan_in(const struct kvg_alloc *alloc, void *context)
{
    struct kvd_scan own;
    struct kvg_error error = {.code = KVG_OK};
    kvg_err err;

    (void)context;
    kvd_scan_init(&own, alloc);
    err = kvd_scan_json(&own,
        kvi_str(
            "{\"tokens\":[1,2,3],\"a\":\"b\",\"page_keys\":[\"00000000000000000000000000"
            "00000000000000000000000000000000000000\"]}"),
        &error);
    CHECK(err == KVG_OK || err == KVG_ENOMEM);
    kvd_scan_fini(&own);
    return err == KVG_OK;
}

TEST(scanning_without_memory_fails_and_leaks_nothing)
{
    CHECK(for_each_oom(scan_in, NULL) > 2);
}

TEST(json_text_is_escaped)
{
    struct kvd_out out;

    kvd_out_init(&out, kvg_alloc_default());
    kvd_out_json(&out, (struct kvg_str){"a\"\\\n\x01\xc3\xa4\xff\xed\xa0\x80z", 12});
    kvd_out_bytes(&out, "\0", 1);
    CHECK_STR(
        out.data, "\"a\\\"\\\\\\u000a\\u0001\xc3\xa4\\ufffd\\ufffd\\ufffd\\ufffdz\"");
    kvd_out_fini(&out);
}

TEST(the_key_count_is_found_wherever_the_bytes_are_cut)
{
    static const char TEXT[] = "# TYPE master_key_count gauge\nmaster_key_count_x 9\n"
                               "master_key_count 1234\nmaster_soft_pin_key_count 5\n";
    struct kvd_admin_count count;
    struct kvg_error error;

    for (size_t cut = 1; cut < sizeof(TEXT); cut++) {
        kvd_admin_count_init(&count);
        for (size_t at = 0; at < sizeof(TEXT) - 1; at += cut) {
            size_t left = sizeof(TEXT) - 1 - at;

            kvd_admin_count_feed(
                &count, (struct kvg_str){TEXT + at, left < cut ? left : cut});
        }
        CHECK_EQ(kvd_admin_count_end(&count, &error), KVG_OK);
        CHECK_EQ(count.key_count, 1234);
    }
    kvd_admin_count_init(&count);
    kvd_admin_count_feed(&count, kvi_str("<html>master_key_count 7</html>"));
    CHECK_EQ(kvd_admin_count_end(&count, &error), KVG_EFORMAT);
}

TEST(a_status_is_read_or_refused)
{
    struct kvg_source_status status;
    struct kvg_error error;

    CHECK_EQ(
        kvd_admin_status(
            kvi_str("{\"enabled\":true,\"published_batches\":2,\"published_events\":9,"
                    "\"dropped_events\":1,\"more\":[]}"),
            &error, &status),
        KVG_OK);
    CHECK(status.enabled);
    CHECK_EQ(status.published_events, 9);
    CHECK_EQ(kvd_admin_status(kvi_str("{\"enabled\":1}"), &error, &status), KVG_EFORMAT);
    CHECK_EQ(kvd_admin_status(kvi_str("<html>"), &error, &status), KVG_EFORMAT);
}

#define GOOD                                                                 \
    "\"backend\":\"mooncake\",\"page_size\":16,\"tp_size\":2,\"pp_size\":1," \
    "\"is_mla_model\":false,\"is_eagle\":false,\"should_split_heads\":false"

TEST(workers_are_read_and_a_bad_one_is_kept_with_its_reason)
{
    struct kvg_workers *workers;
    struct kvg_workers_view view;
    struct kvg_worker_report report;
    struct kvg_error error = {.code = KVG_OK};

    CHECK_EQ(kvg_workers_new(kvg_alloc_default(), &workers), KVG_OK);
    CHECK_EQ(
        kvd_advertised_read(workers,
            kvi_str("{\"1\":{" GOOD ",\"new_field\":[1]},"
                    "\"2\":{\"sglang_hicache_mooncake\":{" GOOD
                    ",\"model_prefix\":\"org/m\",\"kv_events_endpoint\":\"tcp://a:1\"}},"
                    "\"3\":{\"backend\":\"mooncake\"},\"4\":7}"),
            &error),
        KVG_OK);
    kvg_workers_view(workers, &view);
    CHECK_EQ(view.worker_count, 4);
    CHECK_EQ(view.usable_count, 2);
    CHECK_EQ(view.layout_count, 2);
    CHECK(kvg_workers_next(workers, 3, &report));
    CHECK_STR(report.error.field, "page_size");
    CHECK_EQ(kvd_advertised_read(workers, kvi_str("{\"x\":{}}"), &error), KVG_EINVAL);
    CHECK_EQ(kvd_advertised_read(workers, kvi_str("[1]"), &error), KVG_EINVAL);
    CHECK_EQ(kvd_advertised_read(workers, kvi_str("{"), &error), KVG_EFORMAT);
    kvg_workers_free(workers);
}

TEST(a_layout_of_several_pools_is_read)
{
    struct kvg_workers *workers;
    const struct kvg_layout *layout;
    struct kvg_error error = {.code = KVG_OK};

    CHECK_EQ(kvg_workers_new(kvg_alloc_default(), &workers), KVG_OK);
    CHECK_EQ(
        kvd_advertised_read(workers,
            kvi_str("{\"1\":{" GOOD ",\"hicache_object_layout\":{\"key_prefix\":\"p\","
                    "\"pools\":[{\"suffixes\":[\"__a\",\"__b\"]},{\"name\":\"s\","
                    "\"suffixes\":[\"__c\"],\"hit_policy\":\"trailing_pages\"}]}}}"),
            &error),
        KVG_OK);
    layout = kvg_workers_layout(workers, 0);
    CHECK(layout != NULL);
    CHECK_EQ(kvg_layout_part_count(layout), 3);
    CHECK_EQ(kvg_layout_part_trailing(layout, 2), 1);
    kvg_workers_free(workers);
}

TEST_MAIN(RUN(tokens_are_taken_out_and_the_rest_stays), RUN(page_keys_are_taken_as_hex),
    RUN(a_bad_token_is_named_by_its_place), RUN(binary_tokens_are_little_endian),
    RUN(scanning_without_memory_fails_and_leaks_nothing), RUN(json_text_is_escaped),
    RUN(the_key_count_is_found_wherever_the_bytes_are_cut),
    RUN(a_status_is_read_or_refused),
    RUN(workers_are_read_and_a_bad_one_is_kept_with_its_reason),
    RUN(a_layout_of_several_pools_is_read))
