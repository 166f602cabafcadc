/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* The two public traces: the published reuse without a limit, published ratios with one, and the
 * references of sim_reference.h to the page. */
#include "sim_reference.h"
#include "test.h"

struct published {
    uint64_t pages;
    double lru_ratio;
};

static const struct case_of_trace {
    const char *path;
    uint64_t pages;
    uint64_t pages_hit;
    struct published lru[9];
} CASES[] = {
    {KVG_SHARED_DIR "/traces/conversation_trace.jsonl", 288500, 105710,
        {{1000, 0.0445}, {2930, 0.0640}, {5859, 0.1355}, {10000, 0.2112}, {19531, 0.2852},
            {30000, 0.3257}, {50000, 0.3546}, {97656, 0.3635}, {100000, 0.3637}}},
    {KVG_SHARED_DIR "/traces/synthetic_trace.jsonl", 121877, 77953,
        {{1000, 0.0825}, {2930, 0.1853}, {5859, 0.3094}, {10000, 0.4235}, {19531, 0.5665},
            {30000, 0.6242}, {50000, 0.6396}, {97656, 0.6396}, {100000, 0.6396}}},
};

static struct kvc_sim_trace load(const char *path)
{
    struct kvc_sim_load what = {.path = path, .block_tokens = 512};
    struct kvc_sim_trace trace;
    struct kvg_error error;

    CHECK_EQ(kvc_sim_trace_load(&what, &trace, &error), KVG_OK);
    return trace;
}

static struct kvc_sim_result run(const struct kvc_sim_trace *trace,
    enum kvc_sim_grain grain, enum kvg_policy policy, uint64_t capacity, bool compact)
{
    struct kvc_sim_setup setup = {.page_size = 512,
        .grain = grain,
        .compact = compact,
        .policy = policy,
        .slru_hits = 2,
        .seed = 1,
        .engines = 1,
        .capacity_pages = capacity};
    struct kvc_sim_result result;
    struct kvg_error error = {0};

    if (kvc_sim_run(trace, &setup, NULL, NULL, &result, &error) != KVG_OK)
        fail_msg("%s: %s", error.field, error.message);
    return result;
}

static double ratio(const struct kvc_sim_trace *trace, uint64_t hits)
{
    return (double)hits / (double)trace->block_count;
}

static bool near(double a, double b, double apart)
{
    return a - b <= apart && b - a <= apart;
}

TEST(without_a_limit_the_published_reuse_is_found)
{
    size_t i;

    for (i = 0; i < 2; i++) {
        struct kvc_sim_trace trace = load(CASES[i].path);
        struct kvc_sim_result got =
            run(&trace, KVC_SIM_GRAIN_NODE, KVG_POLICY_LRU, UINT64_MAX, false);

        CHECK_EQ(got.pages, CASES[i].pages);
        CHECK_EQ(got.pages_hit, CASES[i].pages_hit);
        CHECK_EQ(got.evicted_pages, 0);
        got = run(&trace, KVC_SIM_GRAIN_PAGE, KVG_POLICY_LRU, UINT64_MAX, true);
        CHECK_EQ(got.pages_hit, CASES[i].pages_hit);
        CHECK_EQ(got.nodes, CASES[i].pages - CASES[i].pages_hit);
        kvc_sim_trace_free(&trace);
    }
}

TEST(single_pages_follow_the_published_ratios_and_the_tail_reference)
{
    size_t i;
    size_t j;

    for (i = 0; i < 2; i++) {
        struct kvc_sim_trace trace = load(CASES[i].path);

        for (j = 0; j < 9; j++) {
            const struct published *told = &CASES[i].lru[j];
            uint64_t plain = kvt_block_lru(&trace, told->pages);
            struct kvc_sim_result nodes =
                run(&trace, KVC_SIM_GRAIN_NODE, KVG_POLICY_LRU, told->pages, true);
            struct kvc_sim_result pages =
                run(&trace, KVC_SIM_GRAIN_PAGE, KVG_POLICY_LRU, told->pages, true);

            print_message("%6u pages: published %.4f plain %.4f tail %.4f pages %.4f "
                          "nodes %.4f\n",
                (unsigned)told->pages, told->lru_ratio, ratio(&trace, plain),
                ratio(&trace, kvt_tail_lru(&trace, told->pages)),
                ratio(&trace, pages.pages_hit), ratio(&trace, nodes.pages_hit));
            CHECK(near(ratio(&trace, plain), told->lru_ratio, 0.00006));
            CHECK_EQ(pages.pages_hit, kvt_tail_lru(&trace, told->pages));
            CHECK(near(ratio(&trace, pages.pages_hit), told->lru_ratio, 0.01));
            CHECK(near(ratio(&trace, nodes.pages_hit), told->lru_ratio, 0.01));
            CHECK(pages.pages_hit >= plain);
        }
        kvc_sim_trace_free(&trace);
    }
}

/* A block that came first is soon evicted from a plain FIFO, and with the first block of all
 * prompts goes every hit; a tree keeps it as long as anything continues it. */
TEST(a_tree_under_fifo_hits_more_than_plain_blocks)
{
    static const double TOLD[2][2] = {{0.1815, 0.2944}, {0.3989, 0.5941}};
    size_t i;
    size_t j;

    for (i = 0; i < 2; i++) {
        struct kvc_sim_trace trace = load(CASES[i].path);

        for (j = 0; j < 2; j++) {
            uint64_t capacity = j == 0 ? 10000 : 30000;
            uint64_t plain = kvt_block_fifo(&trace, capacity);
            struct kvc_sim_result nodes =
                run(&trace, KVC_SIM_GRAIN_NODE, KVG_POLICY_FIFO, capacity, true);

            CHECK(near(ratio(&trace, plain), TOLD[i][j], 0.00006));
            CHECK(ratio(&trace, nodes.pages_hit) > TOLD[i][j] + 0.02);
        }
        kvc_sim_trace_free(&trace);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RUN(without_a_limit_the_published_reuse_is_found),
        RUN(single_pages_follow_the_published_ratios_and_the_tail_reference),
        RUN(a_tree_under_fifo_hits_more_than_plain_blocks),
    };
    FILE *file = fopen(CASES[0].path, "rb");

    if (file == NULL) {
        printf("skipped: the public traces are not in %s/traces\n", KVG_SHARED_DIR);
        return 77;
    }
    fclose(file);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
