/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* test_mooncake.c -- the suite over `mooncake:`, with a stand-in for its library, and then what
 * the real one was seen to do wrong. */
#include "store/conformance.h"

#include <kvgraft/presence.h>

#include "mooncake.h"
#include "test.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VALUE_BYTES 1000u

/* The stand-in, held open so that its store outlives the handles. */
static struct {
    void *object;
    void (*reset)(void);
    void (*capacity)(uint64_t bytes);
    void (*lease_ms)(uint64_t ms);
    void (*advance_ms)(uint64_t ms);
    void (*read_takes_ms)(uint64_t ms);
    void (*owner_dead)(int dead);
    void (*full_for)(uint64_t puts);
    void (*full_after)(uint64_t puts);
    void (*unfinished)(uint64_t puts);
    void (*refuse_setup)(int code);
    void (*stats)(struct standin_stats *out);
} standin;

static void find(const char *name, void *slot)
{
    void *symbol = dlsym(standin.object, name);

    if (symbol == NULL)
        abort();
    memcpy(slot, &symbol, sizeof(symbol));
}

static void load_standin(void)
{
    standin.object = dlopen(KVT_STANDIN_MOONCAKE, RTLD_NOW | RTLD_LOCAL);
    if (standin.object == NULL)
        abort();
    find("standin_reset", &standin.reset);
    find("standin_capacity", &standin.capacity);
    find("standin_lease_ms", &standin.lease_ms);
    find("standin_advance_ms", &standin.advance_ms);
    find("standin_read_takes_ms", &standin.read_takes_ms);
    find("standin_owner_dead", &standin.owner_dead);
    find("standin_full_for", &standin.full_for);
    find("standin_full_after", &standin.full_after);
    find("standin_unfinished", &standin.unfinished);
    find("standin_refuse_setup", &standin.refuse_setup);
    find("standin_stats", &standin.stats);
}

/* The context is what stands before the scheme. */
static bool make(void *context, uint64_t bytes_max, char url[CONFORMANCE_URL_BYTES])
{
    standin.reset();
    standin.lease_ms(0); /* So that the suite's evictions need not wait. */
    if (bytes_max != 0)
        standin.capacity(bytes_max);
    snprintf(url, CONFORMANCE_URL_BYTES, "%smooncake:?library=%s", (const char *)context,
        KVT_STANDIN_MOONCAKE);
    return true;
}

static void destroy(void *context)
{
    (void)context;
}

/* What only this backend does --------------------------------------------------------------- */

static struct kvg_store *open_store(const struct kvg_store_options *options)
{
    struct kvg_store *store;
    struct kvg_error error;

    standin.reset();
    CHECK_EQ(kvg_store_open(
                 "mooncake:?library=" KVT_STANDIN_MOONCAKE, options, &store, &error),
        KVG_OK);
    return store;
}

static struct kvg_str str(const char *text)
{
    return (struct kvg_str){text, strlen(text)};
}

static kvg_err put_one(struct kvg_store *store, const char *key)
{
    char value[VALUE_BYTES];
    struct kvg_store_piece piece = {value, sizeof(value)};
    struct kvg_store_part part = {str(key), &piece, 1};
    struct kvg_store_group group = {.parts = &part, .part_count = 1};
    struct kvg_error error;

    memset(value, key[0], sizeof(value));
    return kvg_store_put(store, &group, 1, &error);
}

static kvg_err get_one(struct kvg_store *store, const char *key, char value[VALUE_BYTES])
{
    struct kvg_store_range range = {0, VALUE_BYTES, value};
    struct kvg_store_get get = {.key = str(key), .ranges = &range, .range_count = 1};
    struct kvg_error error;

    (void)(kvg_store_get(store, &get, 1, &error) == get.result);
    return get.result;
}

static bool is_there(struct kvg_store *store, const char *key)
{
    struct kvg_str keys[1] = {str(key)};
    uint8_t present = 0;
    struct kvg_error error;

    CHECK_EQ(kvg_store_exists(store, keys, 1, &present, NULL, &error), KVG_OK);
    return present != 0;
}

static struct standin_stats stats_now(void)
{
    struct standin_stats stats;

    standin.stats(&stats);
    return stats;
}

TEST(a_lease_that_ends_during_a_read_makes_the_read_fail)
{
    struct kvg_store *store = open_store(NULL);
    char value[VALUE_BYTES];

    CHECK_EQ(put_one(store, "page"), KVG_OK);
    standin.lease_ms(50);
    standin.read_takes_ms(100);
    memset(value, 0xa5, sizeof(value));
    CHECK_EQ(get_one(store, "page", value), KVG_EIO);
    CHECK_EQ((unsigned char)value[0], 0xa5); /* Nothing was handed on. */
    standin.read_takes_ms(10);
    CHECK_EQ(get_one(store, "page", value), KVG_OK);
    CHECK_EQ(value[VALUE_BYTES - 1], 'p');
    kvg_store_close(store);
}

TEST(a_dead_owner_costs_one_failed_read_and_no_more)
{
    struct kvg_store *store = open_store(NULL);
    char value[VALUE_BYTES];
    struct standin_stats before;
    int i;

    CHECK_EQ(put_one(store, "page"), KVG_OK);
    standin.owner_dead(1);
    before = stats_now();
    for (i = 0; i < 100; i++) {
        if (is_there(store, "page"))
            CHECK_EQ(get_one(store, "page", value), KVG_EIO);
    }
    CHECK_EQ(stats_now().get_keys - before.get_keys, 1);
    CHECK_EQ(get_one(store, "page", value), KVG_ENOENT);
    kvg_store_close(store);
}

TEST(a_full_store_is_tried_once_more)
{
    struct kvg_store *store = open_store(NULL);

    standin.full_for(1);
    CHECK_EQ(put_one(store, "a"), KVG_OK);
    standin.full_for(2);
    CHECK_EQ(put_one(store, "b"), KVG_ENOSPACE);
    CHECK(!is_there(store, "b"));
    CHECK_EQ(put_one(store, "b"), KVG_OK);
    kvg_store_close(store);
}

TEST(a_key_that_a_dead_writer_left_unfinished_is_absent_until_the_master_drops_it)
{
    struct kvg_store *store = open_store(NULL);
    char value[VALUE_BYTES];

    standin.unfinished(2);
    CHECK_EQ(put_one(store, "page"), KVG_EIO);
    CHECK(!is_there(store, "page"));
    CHECK_EQ(get_one(store, "page", value), KVG_ENOENT);
    CHECK_EQ(put_one(store, "page"), KVG_EIO);
    CHECK_EQ(put_one(store, "page"), KVG_OK);
    CHECK(is_there(store, "page"));
    kvg_store_close(store);
}

TEST(a_page_that_fails_in_the_middle_leaves_none_of_its_parts)
{
    struct kvg_store *store = open_store(NULL);
    char value[VALUE_BYTES] = {1};
    struct kvg_store_piece piece = {value, sizeof(value)};
    struct kvg_store_part parts[3] = {
        {str("x0"), &piece, 1}, {str("x1"), &piece, 1}, {str("x2"), &piece, 1}};
    struct kvg_store_group group = {.parts = parts, .part_count = 3};
    struct kvg_error error;

    CHECK_EQ(put_one(store, "y"), KVG_OK);
    standin.full_after(2);
    CHECK_EQ(kvg_store_put(store, &group, 1, &error), KVG_ENOSPACE);
    CHECK(!is_there(store, "x0"));
    CHECK(!is_there(store, "x1"));
    CHECK(!is_there(store, "x2"));
    CHECK(is_there(store, "y"));
    kvg_store_close(store);
}

static bool knows_only_page(void *context, struct kvg_str key)
{
    (*(int *)context)++;
    return key.bytes != 4 || memcmp(key.data, "page", 4) != 0;
}

TEST(a_key_known_to_be_absent_is_not_asked_for_and_renews_no_lease)
{
    int asked = 0;
    struct kvg_store_options options = {
        .struct_bytes = sizeof(options), .absent = {knows_only_page, &asked}};
    struct kvg_store *store = open_store(&options);
    char value[VALUE_BYTES];
    struct standin_stats before;
    int i;

    CHECK_EQ(put_one(store, "page"), KVG_OK);
    before = stats_now();
    for (i = 0; i < 1000; i++) {
        CHECK(!is_there(store, "other"));
        CHECK_EQ(get_one(store, "other", value), KVG_ENOENT);
    }
    CHECK_EQ(stats_now().exist_keys, before.exist_keys);
    CHECK_EQ(stats_now().get_keys, before.get_keys);
    CHECK_EQ(stats_now().leases, before.leases);
    CHECK(asked >= 2000);
    CHECK(is_there(store, "page"));
    kvg_store_close(store);
}

/* The index that follows the store in front of it, as an engine has them. */
TEST(an_index_in_front_answers_for_what_is_absent)
{
    struct kvg_layout_config config = {
        .struct_bytes = sizeof(config), .rule = {.page_size = 4}, .tp_size = 1};
    struct kvg_presence_options index_options = {.struct_bytes = sizeof(index_options)};
    struct kvg_presence_filter filter = {NULL, NULL};
    struct kvg_store_options options = {
        .struct_bytes = sizeof(options), .absent = {kvg_presence_filter_absent, &filter}};
    struct kvg_str tenant = {NULL, 0};
    struct kvg_key key = {{7}};
    char text[2][KVG_OBJECT_KEY_BYTES_MAX + 1];
    struct kvg_presence_view *view;
    struct kvg_layout *layout;
    struct kvg_presence *index;
    struct standin_stats before;
    struct kvg_store *store;
    uint32_t i;

    CHECK_EQ(kvg_layout_new(kvg_alloc_default(), &config, NULL, &layout), KVG_OK);
    CHECK_EQ(kvg_presence_new(kvg_alloc_default(), &index_options, NULL, &index), KVG_OK);
    CHECK_EQ(kvg_presence_view_new(index, layout, tenant, NULL, &view), KVG_OK);
    filter = (struct kvg_presence_filter){view, layout};
    for (i = 0; i < 2; i++)
        text[i][kvg_layout_object_key(layout, &key, i, text[i])] = '\0';
    store = open_store(&options);
    CHECK_EQ(put_one(store, text[0]), KVG_OK);
    CHECK(kvg_presence_stored(index, tenant, str(text[0]), KVG_MEDIUM_CPU));
    before = stats_now();
    CHECK(!is_there(store, text[1])); /* Not followed yet: the store is asked. */
    CHECK_EQ(stats_now().exist_keys, before.exist_keys + 1);
    kvg_presence_set_confidence(index, tenant, KVG_CONFIDENCE_FRESH);
    before = stats_now();
    for (i = 0; i < 100; i++)
        CHECK(!is_there(store, text[1]));
    CHECK_EQ(stats_now().exist_keys, before.exist_keys);
    CHECK_EQ(stats_now().leases, before.leases);
    CHECK(is_there(store, text[0]));
    kvg_store_close(store);
    kvg_presence_view_free(view);
    kvg_presence_free(index);
    kvg_layout_free(layout);
}

/* Everything probed each moment, and puts go on: the index in front keeps the leases off. */
TEST(probing_for_what_is_absent_does_not_keep_a_full_store_full)
{
    int asked = 0;
    struct kvg_store_options options = {
        .struct_bytes = sizeof(options), .absent = {knows_only_page, &asked}};
    struct kvg_store *store = open_store(&options);
    char key[16];
    int i;

    standin.capacity(10 * VALUE_BYTES);
    for (i = 0; i < 100; i++) {
        int k;

        snprintf(key, sizeof(key), "k%d", i);
        CHECK_EQ(put_one(store, key), KVG_OK);
        for (k = 0; k <= i; k++) {
            snprintf(key, sizeof(key), "k%d", k);
            (void)is_there(store, key);
        }
    }
    CHECK(stats_now().evicted >= 90);
    kvg_store_close(store);
}

TEST(an_absent_library_is_told_by_name)
{
    struct kvg_store *store;
    struct kvg_error error;

    CHECK_EQ(
        kvg_store_open("mooncake://h:1?library=/nowhere/libm.so", NULL, &store, &error),
        KVG_EUNSUPPORTED);
    CHECK(strstr(error.message, "MOONCAKE_STORE_LIBRARY") != NULL);
    CHECK_EQ(kvg_store_open("mooncake://h:1?library=libm.so.6", NULL, &store, &error),
        KVG_EUNSUPPORTED);
    CHECK(strstr(error.message, "mooncake_store_create") != NULL);
}

TEST(a_master_that_refuses_is_told_by_its_address)
{
    struct kvg_store *store;
    struct kvg_error error;

    standin.reset();
    standin.refuse_setup(-900);
    CHECK_EQ(kvg_store_open("mooncake://far:50051?library=" KVT_STANDIN_MOONCAKE, NULL,
                 &store, &error),
        KVG_EIO);
    CHECK(strstr(error.message, "far:50051") != NULL);
    CHECK_EQ(stats_now().handles, 0);
    standin.refuse_setup(0);
}

TEST(a_closed_store_leaves_no_handle_and_no_registered_memory)
{
    struct kvg_store *store = open_store(NULL);
    char value[VALUE_BYTES];

    CHECK_EQ(put_one(store, "page"), KVG_OK);
    CHECK_EQ(get_one(store, "page", value), KVG_OK);
    CHECK(stats_now().registered > 0);
    kvg_store_close(store);
    CHECK_EQ(stats_now().registered, 0);
    CHECK_EQ(stats_now().handles, 0);
}

static int run_own(void)
{
    const struct CMUnitTest tests[] = {
        RUN(a_lease_that_ends_during_a_read_makes_the_read_fail),
        RUN(a_dead_owner_costs_one_failed_read_and_no_more),
        RUN(a_full_store_is_tried_once_more),
        RUN(a_key_that_a_dead_writer_left_unfinished_is_absent_until_the_master_drops_it),
        RUN(a_page_that_fails_in_the_middle_leaves_none_of_its_parts),
        RUN(a_key_known_to_be_absent_is_not_asked_for_and_renews_no_lease),
        RUN(an_index_in_front_answers_for_what_is_absent),
        RUN(probing_for_what_is_absent_does_not_keep_a_full_store_full),
        RUN(an_absent_library_is_told_by_name),
        RUN(a_master_that_refuses_is_told_by_its_address),
        RUN(a_closed_store_leaves_no_handle_and_no_registered_memory)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(void)
{
    static char plain[] = "";
    static char wrapped[] = "fault+";
    static const struct conformance_backend MOONCAKE = {.name = "mooncake",
        .make = make,
        .destroy = destroy,
        .context = plain,
        .value_max = UINT64_C(8) << 20,
        .one_process = true};
    static const struct conformance_backend FAULT = {.name = "fault+mooncake",
        .make = make,
        .destroy = destroy,
        .context = wrapped,
        .value_max = UINT64_C(1) << 20,
        .one_process = true,
        .threads = 8};
    int failed;

    load_standin();
    failed = conformance_run(&MOONCAKE) + conformance_run(&FAULT);
    return run_own() + failed != 0;
}
