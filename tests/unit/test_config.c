/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* Unit tests of the configuration: values, limits, hints, where a value comes from. */
#include "base/fmt.h"
#include "daemon/config_table.h"
#include "test.h"

static struct kvd_config config;

static int set_up(void **state)
{
    (void)state;
    kvd_config_init(&config);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    kvd_config_fini(&config);
    return 0;
}

static void expect_refused(const char *text, const char *field, const char *part)
{
    struct kvg_error error = {.code = KVG_OK};

    CHECK(kvd_config_parse(&config, kvi_str(text), &error) != KVG_OK);
    CHECK_STR(error.field, field);
    if (strstr(error.message, part) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", error.message, part);
}

TEST(every_default_is_within_its_own_limits)
{
    struct kvd_source_config source;
    struct kvd_config fresh;
    struct kvg_error error;

    memset(&source, 0, sizeof(source));
    memset(&fresh, 0, sizeof(fresh));
    for (size_t i = 0; i < KVD_KEY_COUNT; i++)
        CHECK_EQ(
            kvd_key_set(&KVD_KEYS[i], &fresh, "x", kvi_str(KVD_KEYS[i].standard), &error),
            KVG_OK);
    for (size_t i = 0; i < KVD_SOURCE_KEY_COUNT; i++) {
        if (KVD_SOURCE_KEYS[i].type != KVD_VALUE_JSON)
            CHECK_EQ(kvd_key_set(&KVD_SOURCE_KEYS[i], &source, "x",
                         kvi_str(KVD_SOURCE_KEYS[i].standard), &error),
                KVG_OK);
    }
    CHECK_STR(config.http_listen, "127.0.0.1:7433");
    CHECK_EQ(config.log_level, KVG_LOG_INFO);
}

TEST(a_file_with_comments_units_and_a_comma_too_many_is_read)
{
    static const char TEXT[] =
        "// first\n{ # second\n"
        "\"http\": {\"listen\": \"[::1]:80\", \"timeout\": \"5s\",},\n"
        "/* third */ \"sources\": [{\"name\": \"a//b\", "
        "\"endpoint\": \"tcp://h:1\", \"memory_bytes_max\": \"2GiB\", "
        "\"workers\": {\"7\": {}}},],\n}\n";
    struct kvg_error error = {.code = KVG_OK};

    CHECK_EQ(kvd_config_parse(&config, kvi_str(TEXT), &error), KVG_OK);
    CHECK_STR(config.http_listen, "[::1]:80");
    CHECK_EQ(config.http_timeout_ms, 5000);
    CHECK_EQ(config.source_count, 1);
    CHECK_STR(config.sources[0].name, "a//b");
    CHECK_EQ(config.sources[0].memory_bytes_max, UINT64_C(2) << 30);
    CHECK_STR(config.sources[0].workers_json, "{\"7\":{}}");
    CHECK_STR(config.sources[0].admin_url, "");
}

TEST(an_error_names_the_field_and_the_limit_and_changes_nothing)
{
    expect_refused("{\"http\":{\"threads\":0}}", "http.threads", "1 to 64");
    expect_refused("{\"http\":{\"threads\":\"many\"}}", "http.threads", "whole number");
    expect_refused("{\"http\":{\"thread\":1}}", "http.thread", "\"threads\"");
    expect_refused("{\"htpt\":{}}", "htpt", "http, log, dump and sources");
    expect_refused("{\"http\":{\"timeout\":\"5 parsecs\"}}", "http.timeout", "duration");
    expect_refused(
        "{\"http\":{\"body_bytes_max\":\"1\"}}", "http.body_bytes_max", "1024");
    expect_refused(
        "{\"log\":{\"level\":\"loud\"}}", "log.level", "debug, info, warn, error");
    expect_refused("{\"http\":{\"listen\":7}}", "http.listen", "not a string");
    expect_refused(
        "{\"sources\":[{\"endpont\":\"\"}]}", "sources.0.endpont", "\"endpoint\"");
    expect_refused(
        "{\"sources\":[{\"workers\":[]}]}", "sources.0.workers", "not an object");
    expect_refused(
        "{\"http\":{\"listen\":\"a\",\"listen\":\"b\"}}", "config", "duplicate");
    expect_refused("{\n\"http\": oops}", "config", "line 2");
    expect_refused("[]", "config", "not a JSON object");
    CHECK_EQ(config.http_threads, 2);
    CHECK_EQ(config.source_count, 0);
}

TEST(the_environment_wins_over_the_file_and_leaves_foreign_names_alone)
{
    static char one[] = "KVGRAFT_HTTP_LISTEN=127.0.0.1:9";
    static char two[] = "KVGRAFT_SOURCES_1_ENDPOINT=tcp://b:2";
    static char three[] = "KVGRAFT_SOURCES_0_ENDPOINT=tcp://a:1";
    static char four[] = "KVGRAFT_SERVICE_HOST=10.0.0.1";
    static char five[] = "HOME=/root";
    char *const environment[] = {one, two, three, four, five, NULL};
    struct kvg_error error = {.code = KVG_OK};

    CHECK_EQ(kvd_config_read_environment(&config, environment, &error), KVG_OK);
    CHECK_STR(config.http_listen, "127.0.0.1:9");
    CHECK_EQ(config.source_count, 2);
    CHECK_STR(config.sources[0].endpoint, "tcp://a:1");
    CHECK_STR(config.sources[1].endpoint, "tcp://b:2");
}

TEST(what_no_single_key_can_tell_is_checked_at_the_end)
{
    struct kvg_error error = {.code = KVG_OK};

    CHECK(kvd_config_add_source(&config, "a", "tcp://x:1", "") != NULL);
    CHECK(kvd_config_add_source(&config, "a", "tcp://x:2", "") != NULL);
    CHECK_EQ(kvd_config_finish(&config, &error), KVG_EINVAL);
    CHECK_STR(error.field, "sources.1.name");

    memcpy(config.sources[1].name, "b", 2);
    memcpy(config.sources[1].endpoint, "", 1);
    CHECK_EQ(kvd_config_finish(&config, &error), KVG_EINVAL);
    CHECK_STR(error.field, "sources.1.endpoint");

    CHECK_EQ(kvd_config_set_workers(&config.sources[1], "{}"), KVG_OK);
    CHECK_EQ(kvd_config_finish(&config, &error), KVG_OK);

    memcpy(config.sources[1].name, "b/..", 5);
    CHECK_EQ(kvd_config_finish(&config, &error), KVG_EINVAL);
    CHECK_STR(error.field, "sources.1.name");
}

TEST(a_token_comes_from_its_file_without_the_line_end)
{
    char path[] = "/tmp/kvgraft-token-XXXXXX";
    struct kvg_error error = {.code = KVG_OK};
    FILE *file = fdopen(mkstemp(path), "w");

    CHECK(file != NULL);
    fputs("secret\n", file);
    fclose(file);
    CHECK_EQ(kvd_config_set(&config, "http.token_file", path, &error), KVG_OK);
    CHECK_EQ(kvd_config_finish(&config, &error), KVG_OK);
    CHECK_STR(config.http_token, "secret");
    remove(path);
    config.http_token[0] = '\0';
    CHECK_EQ(kvd_config_finish(&config, &error), KVG_EIO);
}

TEST(sizes_and_durations_have_units)
{
    uint64_t value;

    CHECK(kvd_parse_bytes(kvi_str("3KiB"), &value));
    CHECK_EQ(value, 3072);
    CHECK(kvd_parse_bytes(kvi_str("2MB"), &value));
    CHECK_EQ(value, 2000000);
    CHECK(!kvd_parse_bytes(kvi_str("99999999999GiB"), &value));
    CHECK(!kvd_parse_bytes(kvi_str("GiB"), &value));
    CHECK(kvd_parse_duration_ms(kvi_str("2min"), &value));
    CHECK_EQ(value, 120000);
    CHECK(!kvd_parse_duration_ms(kvi_str("-1s"), &value));
}

#define RUN_FRESH(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

TEST_MAIN(RUN_FRESH(every_default_is_within_its_own_limits),
    RUN_FRESH(a_file_with_comments_units_and_a_comma_too_many_is_read),
    RUN_FRESH(an_error_names_the_field_and_the_limit_and_changes_nothing),
    RUN_FRESH(the_environment_wins_over_the_file_and_leaves_foreign_names_alone),
    RUN_FRESH(what_no_single_key_can_tell_is_checked_at_the_end),
    RUN_FRESH(a_token_comes_from_its_file_without_the_line_end),
    RUN_FRESH(sizes_and_durations_have_units))
