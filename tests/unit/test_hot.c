/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* The tree of prefixes that are asked for most, against exact counts of everything. */
#include "base/rng.h"
#include "daemon/hot.h"
#include "fault_alloc.h"
#include "test.h"

#include <pthread.h>

#define UNIT ((double)KVD_HOT_UNIT)

static void check(const struct kvd_hot *hot)
{
    const char *what = "";

    if (kvd_hot_check(hot, &what) != 0)
        fail_msg("%s", what);
}

static struct kvd_hot *make(void)
{
    struct kvd_hot *hot;

    CHECK_EQ(kvd_hot_new(kvg_alloc_default(), &hot), KVG_OK);
    check(hot);
    return hot;
}

/* The key of a page is made from the one before it and a number. */
static uint64_t key_after(uint64_t before, uint64_t number)
{
    return kvi_mix64(before * 31 + number + 1) | 1;
}

static struct kvd_hot_chain chain_of(
    const char *source, const char *tenant, const unsigned *numbers, uint32_t count)
{
    struct kvd_hot_chain chain = {.page_size = 4, .page_count = count, .weight = 1};
    uint64_t key = 0;

    snprintf(chain.source, sizeof(chain.source), "%s", source);
    snprintf(chain.tenant, sizeof(chain.tenant), "%s", tenant);
    for (uint32_t i = 0; i < count; i++)
        chain.keys[i] = key = key_after(key, numbers[i]);
    return chain;
}

static struct kvd_hot_view view_of(const struct kvd_hot *hot, uint64_t prefix)
{
    struct kvd_hot_view view;
    uint32_t node = kvd_hot_find(hot, KVD_HOT_NONE, prefix);

    CHECK(node != KVD_HOT_NONE);
    kvd_hot_look(hot, node, &view);
    return view;
}

TEST(a_prefix_is_counted_with_all_before_it)
{
    static const unsigned LEFT[] = {1, 2, 3};
    static const unsigned RIGHT[] = {1, 2, 4, 5};
    struct kvd_hot *hot = make();
    struct kvd_hot_chain left = chain_of("a", "t", LEFT, 3);
    struct kvd_hot_chain right = chain_of("a", "t", RIGHT, 4);

    left.present = 1;
    left.weight = 2;
    right.present = 7;
    kvd_hot_add(hot, &left);
    kvd_hot_add(hot, &right);
    kvd_hot_add(hot, &right);
    check(hot);
    CHECK_EQ(view_of(hot, left.keys[0]).count, 4 * KVD_HOT_UNIT);
    CHECK_EQ(view_of(hot, left.keys[0]).last_present, 4 * KVD_HOT_UNIT);
    CHECK_EQ(view_of(hot, left.keys[1]).last_present, 2 * KVD_HOT_UNIT);
    CHECK_EQ(view_of(hot, left.keys[2]).count, 2 * KVD_HOT_UNIT);
    CHECK_EQ(view_of(hot, right.keys[2]).count, 2 * KVD_HOT_UNIT);
    CHECK_EQ(view_of(hot, right.keys[3]).page, 3);
    CHECK_EQ(view_of(hot, right.keys[3]).last_present, 0);
    CHECK_EQ(kvd_hot_find(hot, KVD_HOT_NONE, 12345), KVD_HOT_NONE);
    kvd_hot_free(hot);
}

TEST(a_long_prompt_shows_itself_piece_by_piece_and_ends_at_the_depth)
{
    unsigned numbers[KVD_HOT_DEPTH] = {0};
    struct kvd_hot *hot = make();
    struct kvd_hot_chain chain = chain_of("a", "t", numbers, KVD_HOT_DEPTH);

    kvd_hot_add(hot, &chain);
    CHECK(kvd_hot_find(hot, KVD_HOT_NONE, chain.keys[KVD_HOT_GROW - 1]) != KVD_HOT_NONE);
    CHECK_EQ(kvd_hot_find(hot, KVD_HOT_NONE, chain.keys[KVD_HOT_GROW]), KVD_HOT_NONE);
    chain.page_count = UINT32_MAX; /* More than there is: cut. */
    for (unsigned i = 1; i < KVD_HOT_DEPTH / KVD_HOT_GROW; i++)
        kvd_hot_add(hot, &chain);
    check(hot);
    /* Seen once, and it may have been asked for each time before. */
    CHECK_EQ(view_of(hot, chain.keys[KVD_HOT_DEPTH - 1]).count, KVD_HOT_UNIT);
    CHECK_EQ(view_of(hot, chain.keys[KVD_HOT_DEPTH - 1]).error,
        (KVD_HOT_DEPTH / KVD_HOT_GROW - 1) * KVD_HOT_UNIT);
    kvd_hot_free(hot);
}

TEST(equal_beginnings_of_keys_behind_different_pages_are_two_prefixes)
{
    static const unsigned LEFT[] = {1, 2};
    static const unsigned RIGHT[] = {3, 2};
    struct kvd_hot *hot = make();
    struct kvd_hot_chain left = chain_of("a", "t", LEFT, 2);
    struct kvd_hot_chain right = chain_of("a", "t", RIGHT, 2);

    left.keys[1] = right.keys[1];
    kvd_hot_add(hot, &left);
    kvd_hot_add(hot, &right);
    kvd_hot_add(hot, &right);
    check(hot);
    CHECK_EQ(view_of(hot, right.keys[1]).count, 2 * KVD_HOT_UNIT);
    kvd_hot_free(hot);
}

TEST(sources_tenants_and_page_sizes_do_not_mix)
{
    static const unsigned NUMBERS[] = {1};
    struct kvd_hot *hot = make();
    struct kvd_hot_chain chain = chain_of("a", "t", NUMBERS, 1);
    struct kvd_hot_view view;

    kvd_hot_add(hot, &chain);
    kvd_hot_add(hot, &chain);
    chain.page_size = 8;
    kvd_hot_add(hot, &chain);
    snprintf(chain.tenant, sizeof(chain.tenant), "u");
    kvd_hot_add(hot, &chain);
    snprintf(chain.source, sizeof(chain.source), "b");
    kvd_hot_add(hot, &chain);
    check(hot);
    CHECK_STR(kvd_hot_space(hot, 3)->source, "b");
    CHECK_STR(kvd_hot_space(hot, 3)->tenant, "u");
    CHECK(kvd_hot_space(hot, 4) == NULL);
    CHECK(kvd_hot_space(hot, KVD_HOT_SPACES) == NULL);
    CHECK_EQ(view_of(hot, chain.keys[0]).count, 2 * KVD_HOT_UNIT); /* The hottest. */
    kvd_hot_look(hot, kvd_hot_find(hot, 3, chain.keys[0]), &view);
    CHECK_EQ(view.count, KVD_HOT_UNIT);
    CHECK_EQ(view.space, 3);
    kvd_hot_free(hot);
}

TEST(too_many_tenants_are_refused_and_counted_until_some_are_forgotten)
{
    static const unsigned NUMBERS[] = {1};
    struct kvd_hot *hot = make();
    char tenant[16];

    for (unsigned i = 0; i < KVD_HOT_SPACES + 3; i++) {
        struct kvd_hot_chain chain;

        snprintf(tenant, sizeof(tenant), "t%u", i);
        chain = chain_of("a", tenant, NUMBERS, 1);
        kvd_hot_add(hot, &chain);
        check(hot);
    }
    CHECK_EQ(kvd_hot_refused(hot), 3);
    for (unsigned i = 0; i < 40; i++)
        kvd_hot_fade(hot);
    check(hot);
    for (unsigned i = 0; i < KVD_HOT_SPACES; i++)
        CHECK(kvd_hot_space(hot, i) == NULL);
    kvd_hot_free(hot);
}

/* What is asked for, and how often; without any limit. */
#define TRUTHS (1u << 16)

struct truth {
    uint64_t key;
    double lookups;
    double present;
};

struct model {
    struct truth truths[TRUTHS];
};

static struct truth *truth_of(struct model *model, uint64_t key)
{
    size_t at = key % TRUTHS;

    while (model->truths[at].key != 0 && model->truths[at].key != key)
        at = (at + 1) % TRUTHS;
    model->truths[at].key = key;
    return &model->truths[at];
}

/* What is shown lies around the truth. */
static void compare(struct kvd_hot *hot, struct model *model)
{
    static struct kvd_hot_view views[KVD_HOT_NODES];
    size_t count = kvd_hot_top(hot, 0, KVD_HOT_NODES, views);

    for (size_t i = 0; i < count; i++) {
        const struct truth *truth;

        CHECK(!views[i].more);
        if (i > 0) {
            CHECK(views[i].count <= views[i - 1].count);
            CHECK(views[i].parent < i);
        }
        if (views[i].page == KVD_HOT_NONE)
            continue;
        truth = truth_of(model, views[i].prefix);
        CHECK((double)views[i].count <= truth->lookups * UNIT + 1e-6);
        CHECK(truth->lookups * UNIT <= (double)(views[i].count + views[i].error) + 1e-6);
        truth = truth_of(model, views[i].last_prefix);
        CHECK((double)views[i].last_count <= truth->lookups * UNIT + 1e-6);
        CHECK((double)views[i].last_present <= truth->present * UNIT + 1e-6);
        CHECK(views[i].last_page >= views[i].page);
        CHECK(views[i].last_count <= views[i].count);
    }
}

static void ask_randomly(
    struct kvd_hot *hot, struct model *model, struct kvi_rng *rng, unsigned base)
{
    unsigned numbers[KVD_HOT_DEPTH];
    uint32_t count = 1 + (uint32_t)kvi_rng_below(rng, 12);
    struct kvd_hot_chain chain;

    for (uint32_t i = 0; i < count; i++) {
        unsigned fan = i < 3 ? 3 : 8; /* Wide enough to need more nodes than there are. */

        numbers[i] =
            base + (unsigned)(kvi_rng_below(rng, fan) * kvi_rng_below(rng, fan) / fan);
    }
    chain = chain_of("a", "t", numbers, count);
    chain.weight = UINT64_C(1) << kvi_rng_below(rng, 3);
    chain.present = kvi_rng_next(rng);
    kvd_hot_add(hot, &chain);
    for (uint32_t i = 0; i < count; i++) {
        struct truth *truth = truth_of(model, chain.keys[i]);

        truth->lookups += (double)chain.weight;
        truth->present += (chain.present >> i & 1) != 0 ? (double)chain.weight : 0;
    }
}

TEST(what_is_shown_lies_around_the_truth_whatever_gave_way)
{
    struct kvd_hot *hot = make();
    struct model *model = calloc(1, sizeof(*model));
    struct kvi_rng rng = {1};
    const char *seed = getenv("KVG_SEED");

    assert_non_null(model);
    if (seed != NULL)
        rng.state = strtoull(seed, NULL, 0);
    print_message("seed %llu\n", (unsigned long long)rng.state);
    for (unsigned i = 0; i < 6000; i++) {
        ask_randomly(hot, model, &rng, i < 3000 ? 0 : 100);
        if (i % 500 == 499) {
            kvd_hot_fade(hot);
            for (size_t t = 0; t < TRUTHS; t++) {
                model->truths[t].lookups *= 15.0 / 16;
                model->truths[t].present *= 15.0 / 16;
            }
        }
        if (i % 97 == 0) {
            check(hot);
            compare(hot, model);
        }
    }
    compare(hot, model);
    kvd_hot_free(hot);
    free(model);
}

TEST(a_prefix_that_becomes_hot_late_is_found_among_many_cold_ones)
{
    unsigned numbers[8];
    struct kvd_hot *hot = make();
    struct kvi_rng rng = {7};
    struct kvd_hot_chain wanted;

    for (unsigned i = 0; i < 8; i++)
        numbers[i] = 1000 + i;
    wanted = chain_of("a", "t", numbers, 8);
    for (unsigned i = 0; i < 5000; i++) {
        struct kvd_hot_chain chain;

        for (unsigned n = 0; n < 8; n++)
            numbers[n] = (unsigned)kvi_rng_below(&rng, 1u << 30);
        chain = chain_of("a", "t", numbers, 8);
        kvd_hot_add(hot, &chain);
        if (i > 2500 && i % 100 == 0)
            kvd_hot_add(hot, &wanted);
    }
    check(hot);
    CHECK(view_of(hot, wanted.keys[7]).count >= 20 * KVD_HOT_UNIT);
    kvd_hot_free(hot);
}

TEST(what_is_asked_for_most_comes_first_and_what_is_left_out_is_said)
{
    struct kvd_hot *hot = make();
    struct kvd_hot_view views[4];
    unsigned numbers[2] = {0, 0};

    for (unsigned first = 0; first < 5; first++) {
        for (unsigned times = 0; times <= first; times++) {
            struct kvd_hot_chain chain;

            numbers[0] = first;
            numbers[1] = times % 2;
            chain = chain_of("a", "t", numbers, 2);
            kvd_hot_add(hot, &chain);
        }
    }
    CHECK_EQ(kvd_hot_top(hot, 0, 4, views), 4);
    CHECK_EQ(views[0].page, KVD_HOT_NONE);
    CHECK_EQ(views[0].space, KVD_HOT_NONE);
    CHECK_EQ(views[0].count, 15 * KVD_HOT_UNIT);
    CHECK(!views[0].more);
    CHECK_EQ(views[1].space, 0);
    CHECK(views[1].more);
    CHECK_EQ(views[2].count, 5 * KVD_HOT_UNIT);
    CHECK(views[2].more);
    CHECK_EQ(views[3].count, 4 * KVD_HOT_UNIT);
    CHECK_EQ(views[3].parent, 1);
    /* From a prefix on. */
    CHECK_EQ(kvd_hot_top(hot, views[2].node, 4, views), 3);
    CHECK_EQ(views[0].parent, KVD_HOT_NONE);
    CHECK_EQ(views[1].count, 3 * KVD_HOT_UNIT);
    CHECK_EQ(views[1].parent, 0);
    CHECK_EQ(views[2].parent, 0);
    CHECK_EQ(kvd_hot_parent(hot, views[1].node), views[0].node);
    CHECK_EQ(kvd_hot_parent(hot, 0), KVD_HOT_NONE);
    kvd_hot_free(hot);
}

TEST(pages_that_are_asked_for_together_are_one_run)
{
    static const unsigned LONG[] = {1, 2, 3, 4, 5, 6};
    static const unsigned OTHER[] = {1, 2, 3, 9};
    struct kvd_hot *hot = make();
    struct kvd_hot_view views[8];
    struct kvd_hot_chain longer = chain_of("a", "t", LONG, 6);
    struct kvd_hot_chain other = chain_of("a", "t", OTHER, 4);

    longer.present = 0x1f;
    for (unsigned i = 0; i < 3; i++)
        kvd_hot_add(hot, &longer);
    CHECK_EQ(kvd_hot_top(hot, 0, 8, views), 3);
    CHECK_EQ(views[2].page, 0);
    CHECK_EQ(views[2].last_page, 5);
    CHECK_EQ(views[2].last_prefix, longer.keys[5]);
    CHECK_EQ(views[2].last_present, 0);
    kvd_hot_add(hot, &other);
    CHECK_EQ(kvd_hot_top(hot, 0, 8, views), 5);
    CHECK_EQ(views[2].last_page, 2);
    CHECK_EQ(views[2].last_present, 3 * KVD_HOT_UNIT);
    CHECK_EQ(views[3].page, 3);
    CHECK_EQ(views[3].parent, 2);
    CHECK_EQ(views[3].last_page, 5);
    CHECK_EQ(views[4].parent, 2);
    /* A prompt that ends earlier ends the run. */
    other.page_count = 1;
    kvd_hot_add(hot, &other);
    CHECK_EQ(kvd_hot_top(hot, 0, 8, views), 6);
    CHECK_EQ(views[2].last_page, 0);
    CHECK_EQ(views[3].last_page, 2);
    kvd_hot_free(hot);
}

TEST(a_full_ring_drops_and_counts)
{
    struct kvd_hot_ring *ring = calloc(1, sizeof(*ring));

    assert_non_null(ring);
    CHECK(kvd_hot_ring_peek(ring) == NULL);
    for (unsigned round = 0; round < 3; round++) {
        for (uint32_t i = 0; i < KVD_HOT_CHAINS; i++) {
            kvd_hot_ring_place(ring)->page_count = i;
            kvd_hot_ring_push(ring);
        }
        CHECK(kvd_hot_ring_place(ring) == NULL);
        for (uint32_t i = 0; i < KVD_HOT_CHAINS; i++) {
            CHECK_EQ(kvd_hot_ring_peek(ring)->page_count, i);
            kvd_hot_ring_pop(ring);
        }
        CHECK(kvd_hot_ring_peek(ring) == NULL);
    }
    CHECK_EQ(atomic_load(&ring->dropped), 3);
    free(ring);
}

#define PASSED 20000u

static void *write_chains(void *context)
{
    struct kvd_hot_ring *ring = context;

    for (uint32_t i = 0; i < PASSED;) {
        struct kvd_hot_chain *chain = kvd_hot_ring_place(ring);

        if (chain == NULL)
            continue;
        chain->page_count = i;
        chain->keys[KVD_HOT_DEPTH - 1] = i;
        kvd_hot_ring_push(ring);
        i++;
    }
    return NULL;
}

TEST(a_ring_between_two_threads_loses_and_mixes_nothing)
{
    struct kvd_hot_ring *ring = calloc(1, sizeof(*ring));
    pthread_t writer;

    assert_non_null(ring);
    CHECK_EQ(pthread_create(&writer, NULL, write_chains, ring), 0);
    for (uint32_t i = 0; i < PASSED;) {
        const struct kvd_hot_chain *chain = kvd_hot_ring_peek(ring);

        if (chain == NULL)
            continue;
        CHECK_EQ(chain->page_count, i);
        CHECK_EQ(chain->keys[KVD_HOT_DEPTH - 1], i);
        kvd_hot_ring_pop(ring);
        i++;
    }
    pthread_join(writer, NULL);
    free(ring);
}

static bool make_and_free(const struct kvg_alloc *alloc, void *context)
{
    struct kvd_hot *hot;
    kvg_err err = kvd_hot_new(alloc, &hot);

    (void)context;
    CHECK((err == KVG_OK) == (hot != NULL));
    kvd_hot_free(hot);
    return err == KVG_OK;
}

TEST(without_memory_there_is_no_tree_and_no_leak)
{
    CHECK(for_each_oom(make_and_free, NULL) > 0);
}

TEST_MAIN(RUN(a_prefix_is_counted_with_all_before_it),
    RUN(a_long_prompt_shows_itself_piece_by_piece_and_ends_at_the_depth),
    RUN(equal_beginnings_of_keys_behind_different_pages_are_two_prefixes),
    RUN(sources_tenants_and_page_sizes_do_not_mix),
    RUN(too_many_tenants_are_refused_and_counted_until_some_are_forgotten),
    RUN(what_is_shown_lies_around_the_truth_whatever_gave_way),
    RUN(a_prefix_that_becomes_hot_late_is_found_among_many_cold_ones),
    RUN(what_is_asked_for_most_comes_first_and_what_is_left_out_is_said),
    RUN(pages_that_are_asked_for_together_are_one_run), RUN(a_full_ring_drops_and_counts),
    RUN(a_ring_between_two_threads_loses_and_mixes_nothing),
    RUN(without_memory_there_is_no_tree_and_no_leak))
