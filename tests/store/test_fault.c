/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* test_fault.c -- the wrapper `fault+`: the suite over it while nothing is asked to go wrong, and
 * each fault by itself. */
#include "test.h"

#include "store/conformance.h"
#include "store/dir.h"
#include "store/kit.h"

#include <inttypes.h>

static struct kvg_store *open_url(const char *url)
{
    struct kvg_store *store = NULL;
    struct kvg_error error = {0};

    if (kvg_store_open(url, NULL, &store, &error) != KVG_OK)
        fail_msg("%s: %s: %s", url, error.field, error.message);
    return store;
}

TEST(the_third_put_fails_and_leaves_nothing)
{
    struct kvg_store *store = open_url("fault+memory:?fault.fail=put:3");

    CHECK_EQ(kit_put(store, "a", 2, 100, NULL), KVG_OK);
    CHECK_EQ(kit_put(store, "b", 2, 100, NULL), KVG_OK);
    CHECK_EQ(kit_put(store, "c", 2, 100, NULL), KVG_EIO);
    CHECK_EQ(kit_page_state(store, "c", 2), 0);
    CHECK_EQ(kit_put(store, "c", 2, 100, NULL), KVG_OK);
    kvg_store_close(store);
}

TEST(a_full_disk_from_the_second_put_on)
{
    struct kvg_store *store = open_url("fault+memory:?fault.enospc=put:2%2B");

    CHECK_EQ(kit_put(store, "a", 2, 100, NULL), KVG_OK);
    CHECK_EQ(kit_put(store, "b", 2, 100, NULL), KVG_ENOSPACE);
    CHECK_EQ(kit_put(store, "b", 2, 100, NULL), KVG_ENOSPACE);
    CHECK_EQ(kit_read_part(store, "a", 1, 100), KVG_OK);
    kvg_store_close(store);
}

TEST(a_flipped_bit_is_seen_by_whoever_verifies)
{
    struct kvg_store *store = open_url("fault+memory:?fault.flip=get:2");

    CHECK_EQ(kvg_store_flags(store) & KVG_STORE_CHECKSUMS, 0);
    CHECK_EQ(kit_put(store, "a", 2, 100, NULL), KVG_OK);
    CHECK_EQ(kit_read_part(store, "a", 1, 100), KVG_OK);
    CHECK_EQ(kit_read_part(store, "a", 1, 100), KVG_EFORMAT);
    CHECK_EQ(kit_read_part(store, "a", 1, 100), KVG_OK);
    kvg_store_close(store);
}

TEST(a_short_read_is_an_error)
{
    struct kvg_store *store = open_url("fault+memory:?fault.short=get:1");

    CHECK_EQ(kit_put(store, "a", 2, 100, NULL), KVG_OK);
    CHECK_EQ(kit_read_part(store, "a", 1, 100), KVG_EIO);
    CHECK_EQ(kit_read_part(store, "a", 1, 100), KVG_OK);
    kvg_store_close(store);
}

TEST(a_torn_put_leaves_half_a_page_and_the_store_does_not_promise_otherwise)
{
    struct kvg_store *store = open_url("fault+memory:?fault.torn=put:1");

    CHECK_EQ(kvg_store_flags(store) & KVG_STORE_ATOMIC, 0);
    CHECK_EQ(kit_put(store, "a", 4, 100, NULL), KVG_EIO);
    CHECK_EQ(kit_page_state(store, "a", 4), -1);
    CHECK_EQ(kit_put(store, "a", 4, 100, NULL), KVG_OK);
    CHECK_EQ(kit_page_state(store, "a", 4), 1);
    kvg_store_close(store);
}

TEST(a_late_answer_is_a_timeout_and_it_was_done)
{
    struct kvg_store *store = open_url("fault+memory:?fault.timeout=put:1,any:3");

    CHECK_EQ(kit_put(store, "a", 2, 100, NULL), KVG_ETIMEOUT);
    CHECK_EQ(kit_page_state(store, "a", 2), 1);
    CHECK_EQ(kit_read_part(store, "a", 1, 100), KVG_ETIMEOUT);
    kvg_store_close(store);
}

TEST(chance_follows_the_seed)
{
    static const char URL[] = "fault+memory:?fault.fail=put:30%25&fault.seed=9";
    uint64_t seen[2] = {0, 0};
    int run;
    int i;

    for (run = 0; run < 2; run++) {
        struct kvg_store *store = open_url(URL);
        char name[KIT_KEY_BYTES];

        for (i = 0; i < 60; i++) {
            snprintf(name, sizeof(name), "p%d", i);
            if (kit_put(store, name, 1, 10, NULL) == KVG_EIO)
                seen[run] |= UINT64_C(1) << i;
        }
        kvg_store_close(store);
    }
    CHECK(seen[0] != 0);
    CHECK_EQ(seen[0], seen[1]);
}

TEST(a_rule_that_makes_no_sense_is_refused)
{
    static const char *const URLS[] = {"fault+memory:?fault.fail=put",
        "fault+memory:?fault.fail=put:0", "fault+memory:?fault.fail=swim:3",
        "fault+memory:?fault.fail=put:3x", "fault+memory:?fault.nothing=put:3",
        "fault+nothing:", "fault+", "fault:", "fault+memory:?fault.ms=x"};
    struct kvg_error error;
    struct kvg_store *store;
    size_t i;

    for (i = 0; i < sizeof(URLS) / sizeof(URLS[0]); i++) {
        memset(&error, 0, sizeof(error));
        CHECK_EQ(kvg_store_open(URLS[i], NULL, &store, &error), KVG_EINVAL);
        CHECK(store == NULL);
        CHECK(error.message[0] != '\0');
    }
}

/* ---- The suite over it --------------------------------------------------------------------- */

static char DIR[DIR_BYTES];

static bool make_memory(
    void *context, uint64_t bytes_max, char url[CONFORMANCE_URL_BYTES])
{
    (void)context;
    snprintf(url, CONFORMANCE_URL_BYTES, "fault+memory:?bytes=%" PRIu64,
        bytes_max == 0 ? UINT64_C(256) << 20 : bytes_max);
    return true;
}

static void destroy_memory(void *context)
{
    (void)context;
}

static bool make_file(void *context, uint64_t bytes_max, char url[CONFORMANCE_URL_BYTES])
{
    (void)context;
    if (!dir_make(DIR))
        return false;
    snprintf(url, CONFORMANCE_URL_BYTES,
        "fault+file:%s?fault.seed=3&sync=none&floor=0&bytes=%" PRIu64, DIR,
        bytes_max == 0 ? UINT64_C(256) << 20 : bytes_max);
    return true;
}

static void destroy_file(void *context)
{
    (void)context;
    dir_remove(DIR);
}

int main(void)
{
    static const struct CMUnitTest TESTS[] = {
        RUN(the_third_put_fails_and_leaves_nothing),
        RUN(a_full_disk_from_the_second_put_on),
        RUN(a_flipped_bit_is_seen_by_whoever_verifies),
        RUN(a_short_read_is_an_error),
        RUN(a_torn_put_leaves_half_a_page_and_the_store_does_not_promise_otherwise),
        RUN(a_late_answer_is_a_timeout_and_it_was_done),
        RUN(chance_follows_the_seed),
        RUN(a_rule_that_makes_no_sense_is_refused),
    };
    static const struct conformance_backend MEMORY = {.name = "fault+memory",
        .make = make_memory,
        .destroy = destroy_memory,
        .threads = 8};
    static const struct conformance_backend FILES = {
        .name = "fault+file", .make = make_file, .destroy = destroy_file, .threads = 8};

    return cmocka_run_group_tests(TESTS, NULL, NULL) + conformance_run(&MEMORY) +
           conformance_run(&FILES);
}
