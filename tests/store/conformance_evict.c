/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* conformance_evict.c -- the suite: what a full store lets go of. */
#include "store/conformance_internal.h"

#define MIB ((size_t)1 << 20)

static bool skip_eviction(struct kvg_store *store)
{
    return store == NULL || conformance_lacks(store, KVG_STORE_EVICTS, "eviction");
}

TEST(a_full_store_stays_within_its_bound_and_takes_new_pages)
{
    struct kvg_store *store = conformance_open(8 * MIB);
    struct kvg_store_stats stats = {.struct_bytes = sizeof(stats)};
    char name[KIT_KEY_BYTES];
    size_t i;

    if (skip_eviction(store))
        return;
    for (i = 0; i < 60; i++) {
        snprintf(name, sizeof(name), "p%zu", i);
        CHECK_EQ(kit_put(store, name, 2, MIB / 4, NULL), KVG_OK);
        CHECK_EQ(kit_read_part(store, name, 1, MIB / 4), KVG_OK);
        kvg_store_stats(store, &stats);
        CHECK(stats.bytes <= 8 * MIB + conformance_now->slack);
    }
    CHECK(stats.evicted_objects > 0);
    CHECK(stats.evicted_objects % 2 == 0);
    conformance_close(store);
}

TEST(the_coldest_page_goes_first_and_a_question_keeps_nothing)
{
    struct kvg_store *store = conformance_open(4 * MIB);
    char name[KIT_KEY_BYTES];
    size_t i;

    if (skip_eviction(store))
        return;
    if (conformance_now->loose_eviction) {
        print_message("skipped: the order of eviction is not exact\n");
        conformance_close(store);
        return;
    }
    for (i = 0; i < 7; i++) {
        snprintf(name, sizeof(name), "p%zu", i);
        CHECK_EQ(kit_put(store, name, 1, MIB / 2, NULL), KVG_OK);
    }
    CHECK_EQ(kit_read_part(store, "p0", 0, MIB / 2), KVG_OK); /* Used. */
    CHECK(kit_exists(store, "p1_0"));                         /* Only asked for. */
    for (i = 7; i < 10; i++) {
        snprintf(name, sizeof(name), "p%zu", i);
        CHECK_EQ(kit_put(store, name, 1, MIB / 2, NULL), KVG_OK);
    }
    CHECK(kit_exists(store, "p0_0"));
    CHECK(!kit_exists(store, "p1_0"));
    CHECK(kit_exists(store, "p9_0"));
    conformance_close(store);
}

TEST(a_page_is_evicted_as_a_whole)
{
    struct kvg_store *store = conformance_open(4 * MIB);
    char name[KIT_KEY_BYTES];
    size_t whole = 0;
    size_t i;

    if (skip_eviction(store))
        return;
    for (i = 0; i < 20; i++) {
        snprintf(name, sizeof(name), "p%zu", i);
        CHECK_EQ(kit_put(store, name, 4, MIB / 8, NULL), KVG_OK);
    }
    for (i = 0; i < 20; i++) {
        snprintf(name, sizeof(name), "p%zu", i);
        CHECK(kit_page_state(store, name, 4) != -1);
        whole += kit_page_state(store, name, 4) == 1;
    }
    CHECK(whole >= 4);
    conformance_close(store);
}

/* A chain of pages, two budgets long: its tail goes, never a page whose successor is there. */
TEST(a_chain_loses_its_tail_before_its_head)
{
    struct kvg_store *store = conformance_open(4 * MIB);
    char name[KIT_KEY_BYTES];
    char before[KIT_KEY_BYTES];
    bool gone = false;
    size_t i;

    if (skip_eviction(store))
        return;
    for (i = 0; i < 5; i++) {
        snprintf(name, sizeof(name), "chain%zu", i);
        snprintf(before, sizeof(before), "chain%zu", i - 1);
        CHECK_EQ(kit_put(store, name, 1, MIB / 2, i == 0 ? NULL : before), KVG_OK);
    }
    /* The tail is read, the head is not: still the tail goes first. */
    CHECK_EQ(kit_read_part(store, "chain4", 0, MIB / 2), KVG_OK);
    for (i = 0; i < 5; i++) {
        snprintf(name, sizeof(name), "other%zu", i);
        CHECK_EQ(kit_put(store, name, 1, MIB / 2, NULL), KVG_OK);
    }
    for (i = 0; i < 5; i++) {
        snprintf(name, sizeof(name), "chain%zu", i);
        gone = gone || kit_page_state(store, name, 1) == 0;
        CHECK(!gone || kit_page_state(store, name, 1) == 0);
    }
    CHECK(gone);
    conformance_close(store);
}

TEST(a_page_is_not_written_at_the_cost_of_the_one_before_it)
{
    struct kvg_store *store = conformance_open(4 * MIB);
    char name[KIT_KEY_BYTES];
    char before[KIT_KEY_BYTES];
    kvg_err err = KVG_OK;
    size_t i;

    if (skip_eviction(store))
        return;
    for (i = 0; i < 40 && err == KVG_OK; i++) {
        snprintf(name, sizeof(name), "chain%zu", i);
        snprintf(before, sizeof(before), "chain%zu", i - 1);
        err = kit_put(store, name, 1, MIB / 2, i == 0 ? NULL : before);
    }
    CHECK_EQ(err, KVG_ENOSPACE); /* The whole store is this chain. */
    CHECK(kit_exists(store, "chain0_0"));
    CHECK_EQ(kit_page_state(store, before, 1), 1);
    CHECK_EQ(kit_page_state(store, name, 1), 0);
    CHECK_EQ(kit_put(store, "other", 1, MIB / 2, NULL), KVG_OK);
    CHECK_EQ(kit_page_state(store, before, 1), 0);
    CHECK(kit_exists(store, "chain0_0"));
    conformance_close(store);
}

TEST(a_page_larger_than_the_store_is_refused_and_costs_nothing)
{
    struct kvg_store *store = conformance_open(4 * MIB);

    if (skip_eviction(store))
        return;
    CHECK_EQ(kit_put(store, "small", 1, MIB / 2, NULL), KVG_OK);
    CHECK_EQ(kit_put(store, "large", 8, MIB, NULL), KVG_ENOSPACE);
    CHECK_EQ(kit_page_state(store, "large", 8), 0);
    CHECK_EQ(kit_read_part(store, "small", 0, MIB / 2), KVG_OK);
    conformance_close(store);
}

/* Everything is asked for again and again while new pages come: they must get in. */
TEST(questions_do_not_keep_a_full_store_from_taking_pages)
{
    struct kvg_store *store = conformance_open(4 * MIB);
    char name[KIT_KEY_BYTES];
    char asked[KIT_KEY_BYTES];
    size_t i;
    size_t k;

    if (skip_eviction(store))
        return;
    for (i = 0; i < 50; i++) {
        snprintf(name, sizeof(name), "p%zu", i);
        CHECK_EQ(kit_put(store, name, 1, MIB / 2, NULL), KVG_OK);
        for (k = 0; k <= i; k++) {
            snprintf(asked, sizeof(asked), "p%zu_0", k);
            (void)kit_exists(store, asked);
        }
        CHECK_EQ(kit_page_state(store, name, 1), 1);
    }
    conformance_close(store);
}

int conformance_run_evict(void)
{
    static const struct CMUnitTest TESTS[] = {
        RUN(a_full_store_stays_within_its_bound_and_takes_new_pages),
        RUN(the_coldest_page_goes_first_and_a_question_keeps_nothing),
        RUN(a_page_is_evicted_as_a_whole),
        RUN(a_chain_loses_its_tail_before_its_head),
        RUN(a_page_is_not_written_at_the_cost_of_the_one_before_it),
        RUN(a_page_larger_than_the_store_is_refused_and_costs_nothing),
        RUN(questions_do_not_keep_a_full_store_from_taking_pages),
    };

    return cmocka_run_group_tests(TESTS, NULL, NULL);
}
