/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* Unit tests of `kvgraft simulate` below its options: arguments, traces, runs, what is printed. */
#include "sim_reference.h"
#include "test.h"

#include <unistd.h>

#define SMALL KVG_TEST_DATA "/simulate/small.jsonl"

/* ---- Arguments ------------------------------------------------------------------------------- */

/* The list as it is understood, or why not. */
static const char *capacities(const char *text)
{
    static char out[2048];
    struct kvc_sim_capacities list;
    char why[256];
    size_t bytes = 0;
    size_t i;

    if (!kvc_sim_capacities_parse(text, &list, why, sizeof(why))) {
        snprintf(out, sizeof(out), "no: %s", why);
        return out;
    }
    out[0] = '\0';
    for (i = 0; i < list.count; i++) {
        char item[KVC_NUMBER_BYTES];

        bytes += (size_t)snprintf(out + bytes, sizeof(out) - bytes, "%s%s",
            i == 0 ? "" : "; ", kvc_sim_capacity_text(&list.items[i], item));
    }
    return out;
}

TEST(capacities_are_sizes_tokens_pages_or_no_limit)
{
    CHECK_STR(capacities("64GiB"), "64 GiB");
    CHECK_STR(capacities("1536 mib"), "1.5 GiB");
    CHECK_STR(capacities("1TB"), "931.3 GiB");
    CHECK_STR(capacities("12B"), "12 B");
    CHECK_STR(capacities("3Mtokens, 512ktokens,7tokens"),
        "3,000,000 tokens; 512,000 tokens; 7 tokens");
    CHECK_STR(
        capacities("30kpages,1pages,Unlimited"), "30,000 pages; 1 pages; unlimited");
}

TEST(ranges_double_or_take_steps)
{
    CHECK_STR(capacities("1GiB..8GiB"), "1 GiB; 2 GiB; 4 GiB; 8 GiB");
    CHECK_STR(capacities("1pages..5pages"), "1 pages; 2 pages; 4 pages; 5 pages");
    CHECK_STR(capacities("7pages..7pages"), "7 pages");
    CHECK_STR(capacities("100pages..10kpages:5"),
        "100 pages; 316 pages; 1,000 pages; 3,162 pages; 10,000 pages");
    CHECK_STR(capacities("1pages..3pages:9"), "1 pages; 2 pages; 3 pages");
    CHECK_STR(capacities("1GiB..2GiB,unlimited"), "1 GiB; 2 GiB; unlimited");
}

TEST(wrong_capacities_are_refused_with_what_is_allowed)
{
    static const char *const WRONG[] = {"", ",", "5", "GiB", "5 apples", "-1GiB",
        "1.5GiB", "0pages", "99999999999999999999pages", "9999999999TiB", "1GiB..",
        "..1GiB", "1GiB...2GiB", "1GiB,,2GiB", "unlimited..1GiB", "1pages..9pages:x"};
    char long_item[200];
    size_t i;

    for (i = 0; i < KVC_COUNT(WRONG); i++)
        CHECK(strncmp(capacities(WRONG[i]), "no: ", 4) == 0);
    CHECK(strstr(capacities("5"), "\"5\" is no capacity; it takes 64GiB") != NULL);
    CHECK(strstr(capacities("2GiB..1GiB"), "smaller to the larger") != NULL);
    CHECK(strstr(capacities("1GiB..5pages"), "one kind of unit") != NULL);
    CHECK(strstr(capacities("1pages..9pages:1"), "2 to 64 steps") != NULL);
    CHECK(strstr(capacities("1pages..9pages:65"), "2 to 64 steps") != NULL);
    CHECK(strstr(capacities("1B..512TiB,1pages..1000000pages"), "allowed 64") != NULL);
    memset(long_item, '1', sizeof(long_item) - 1);
    long_item[sizeof(long_item) - 1] = '\0';
    CHECK(strncmp(capacities(long_item), "no: ", 4) == 0);
}

TEST(capacities_become_whole_pages)
{
    struct kvc_sim_capacity bytes = {KVC_SIM_BYTES, UINT64_C(1) << 30};
    struct kvc_sim_capacity tokens = {KVC_SIM_TOKENS, 1500000};
    struct kvc_sim_capacity pages = {KVC_SIM_PAGES, 77};
    struct kvc_sim_capacity unlimited = {KVC_SIM_UNLIMITED, 0};

    CHECK_EQ(kvc_sim_capacity_pages(&bytes, 512, 320000), 6);
    CHECK_EQ(kvc_sim_capacity_pages(&tokens, 512, 0), 2929);
    CHECK_EQ(kvc_sim_capacity_pages(&pages, 512, 0), 77);
    CHECK_EQ(kvc_sim_capacity_pages(&unlimited, 512, 0), UINT64_MAX);
}

TEST(policies_are_a_list_or_all)
{
    struct kvc_sim_policies list;
    char why[256];

    CHECK(kvc_sim_policies_parse("lru, SLRU", &list, why, sizeof(why)));
    CHECK_EQ(list.count, 2);
    CHECK_EQ(list.items[1], KVG_POLICY_SLRU);
    CHECK(kvc_sim_policies_parse("all", &list, why, sizeof(why)));
    CHECK_EQ(list.count, KVG_POLICY_COUNT);
    CHECK(!kvc_sim_policies_parse("lru,best", &list, why, sizeof(why)));
    CHECK(strstr(why, "\"best\" is no policy; there are lru") != NULL);
    CHECK(!kvc_sim_policies_parse("lru,fifo,lru", &list, why, sizeof(why)));
    CHECK(strstr(why, "twice") != NULL);
    CHECK(!kvc_sim_policies_parse("", &list, why, sizeof(why)));
}

/* ---- Traces ---------------------------------------------------------------------------------- */

static kvg_err load_text(const char *text, uint32_t block_tokens, bool cut_last,
    struct kvc_sim_trace *trace, struct kvg_error *error)
{
    struct kvc_sim_load load = {.block_tokens = block_tokens, .cut_last = cut_last};
    char path[] = "/tmp/kvgraft_simulate_XXXXXX";
    int fd = mkstemp(path);
    kvg_err err;

    CHECK(fd >= 0);
    CHECK_EQ(write(fd, text, strlen(text)), strlen(text));
    close(fd);
    load.path = path;
    err = kvc_sim_trace_load(&load, trace, error);
    unlink(path);
    return err;
}

#define LINE(input, ids)                          \
    "{\"timestamp\": 0, \"input_length\": " input \
    ", \"output_length\": 1, \"hash_ids\": [" ids "]}\n"

TEST(a_trace_is_read_whole_and_its_ids_are_numbered_anew)
{
    struct kvc_sim_trace trace;
    struct kvg_error error;

    CHECK_EQ(load_text(LINE("5", "9007199254740992, 7") LINE("3", "9007199254740992")
                           LINE("0", ""),
                 4, true, &trace, &error),
        KVG_OK);
    CHECK_EQ(trace.request_count, 3);
    CHECK_EQ(trace.block_count, 3);
    CHECK_EQ(trace.block_distinct, 2);
    CHECK_EQ(trace.blocks[1], 1);
    CHECK_EQ(trace.blocks[2], 0);
    CHECK_EQ(trace.input_tokens, 8);
    CHECK_EQ(trace.requests[0].prompt_tokens, 5);
    CHECK_EQ(trace.prompt_tokens_max, 5);
    kvc_sim_trace_free(&trace);
}

static void check_refused(
    const char *text, kvg_err code, const char *field, const char *what)
{
    struct kvc_sim_trace trace;
    struct kvg_error error = {0};

    CHECK_EQ(load_text(text, 512, false, &trace, &error), code);
    CHECK_STR(error.field, field);
    CHECK(strstr(error.message, what) != NULL);
}

TEST(a_bad_line_is_named_and_what_is_wrong_with_it)
{
    check_refused(LINE("512", "0") "oops\n", KVG_EFORMAT, "line 2", "");
    check_refused(LINE("513", "0"), KVG_EFORMAT, "line 1",
        "513 tokens are 2 blocks of 512, but hash_ids has 1; --block-tokens");
    check_refused(LINE("512", "0, 1"), KVG_EFORMAT, "line 1", "hash_ids has 2");
    check_refused("\n" LINE("512", "-1"), KVG_EFORMAT, "line 2", "whole numbers");
    check_refused("", KVG_EFORMAT, "trace", "no request");
}

TEST(a_prompt_beyond_the_limit_is_refused)
{
    struct kvc_sim_trace trace;
    struct kvg_error error = {0};
    char *text = malloc(8192);
    size_t bytes = (size_t)snprintf(text, 8192,
        "{\"timestamp\":0,\"input_length\":%u,\"output_length\":0,\"hash_ids\":[0",
        1025u * 65536u);
    unsigned i;

    for (i = 1; i < 1025; i++)
        bytes += (size_t)snprintf(text + bytes, 8192 - bytes, ",%u", i);
    snprintf(text + bytes, 8192 - bytes, "]}");
    CHECK_EQ(load_text(text, 65536, false, &trace, &error), KVG_ELIMIT);
    CHECK_STR(error.message, "input_length: more than the allowed 67108864 tokens");
    free(text);
}

TEST(different_blocks_differ_in_every_token)
{
    struct kvc_sim_trace trace;
    struct kvg_error error;
    uint32_t a[8];
    uint32_t b[8];
    uint32_t i;

    CHECK_EQ(load_text(LINE("7", "3, 5") LINE("6", "3, 6") LINE("8", "9, 5"), 4, true,
                 &trace, &error),
        KVG_OK);
    kvc_sim_prompt(&trace, &trace.requests[0], 1, a);
    kvc_sim_prompt(&trace, &trace.requests[1], 1, b);
    CHECK_MEM(a, b, 4 * sizeof(a[0]));
    for (i = 4; i < 6; i++)
        CHECK(a[i] != b[i]);
    kvc_sim_prompt(&trace, &trace.requests[2], 1, b);
    for (i = 0; i < 4; i++)
        CHECK(a[i] != b[i]);
    CHECK_MEM(a + 4, b + 4, 3 * sizeof(a[0]));
    /* Every second token of the same. */
    kvc_sim_prompt(&trace, &trace.requests[0], 2, b);
    for (i = 0; i < 4; i++)
        CHECK_EQ(b[i], a[2 * i]);
    kvc_sim_trace_free(&trace);
}

/* ---- Runs ------------------------------------------------------------------------------------ */

static struct kvc_sim_trace load_small(bool cut_last)
{
    struct kvc_sim_load load = {.path = SMALL, .block_tokens = 512, .cut_last = cut_last};
    struct kvc_sim_trace trace;
    struct kvg_error error;

    CHECK_EQ(kvc_sim_trace_load(&load, &trace, &error), KVG_OK);
    return trace;
}

static struct kvc_sim_setup setup_of(enum kvc_sim_grain grain, enum kvg_policy policy,
    uint32_t page_size, uint64_t capacity)
{
    return (struct kvc_sim_setup){.page_size = page_size,
        .grain = grain,
        .compact = true,
        .policy = policy,
        .slru_hits = 2,
        .seed = 1,
        .engines = 1,
        .capacity_pages = capacity};
}

static struct kvc_sim_result run(
    const struct kvc_sim_trace *trace, const struct kvc_sim_setup *setup)
{
    struct kvc_sim_result result;
    struct kvg_error error = {0};

    if (kvc_sim_run(trace, setup, NULL, NULL, &result, &error) != KVG_OK)
        fail_msg("%s: %s", error.field, error.message);
    CHECK(result.pages_held <= setup->capacity_pages * setup->engines ||
          setup->capacity_pages == UINT64_MAX);
    CHECK_EQ(result.pages_held,
        result.pages - result.pages_hit - result.pages_cut - result.evicted_pages);
    /* What differs from run to run, or with the size of a pointer. */
    result.took_ns = 0;
    result.memory_bytes = 0;
    return result;
}

TEST(single_pages_under_lru_are_the_tail_reference_to_the_page)
{
    struct kvc_sim_trace trace = load_small(false);
    uint64_t capacity;

    for (capacity = 1; capacity < 2000; capacity += 1 + capacity / 6) {
        struct kvc_sim_setup setup =
            setup_of(KVC_SIM_GRAIN_PAGE, KVG_POLICY_LRU, 512, capacity);
        struct kvc_sim_result got = run(&trace, &setup);

        CHECK_EQ(got.pages, trace.block_count);
        CHECK_EQ(got.pages_hit, kvt_tail_lru(&trace, capacity));
        CHECK_EQ(got.nodes, got.pages_held);
    }
    kvc_sim_trace_free(&trace);
}

TEST(a_negative_control_the_plain_block_lru_is_told_apart)
{
    struct kvc_sim_trace trace = load_small(false);
    uint64_t differ = 0;
    uint64_t capacity;

    for (capacity = 50; capacity < 1000; capacity += 50)
        differ += kvt_block_lru(&trace, capacity) != kvt_tail_lru(&trace, capacity);
    CHECK(differ > 3);
    kvc_sim_trace_free(&trace);
}

TEST(without_a_limit_every_way_hits_the_same)
{
    static const uint32_t SIZES[] = {512, 256, 16, 1};
    struct kvc_sim_trace trace = load_small(false);
    uint64_t ideal = kvt_block_lru(&trace, UINT64_MAX);
    size_t i;

    for (i = 0; i < KVC_COUNT(SIZES); i++) {
        struct kvc_sim_setup setup =
            setup_of(KVC_SIM_GRAIN_NODE, KVG_POLICY_LFU, SIZES[i], UINT64_MAX);
        struct kvc_sim_result got = run(&trace, &setup);

        CHECK_EQ(got.pages_hit, ideal * (512 / SIZES[i]));
        CHECK_EQ(got.evicted_nodes, 0);
        CHECK(got.tokens_hit <= ideal * 512);
        if (SIZES[i] >= 256) {
            setup.grain = KVC_SIM_GRAIN_PAGE;
            CHECK_EQ(run(&trace, &setup).pages_hit, got.pages_hit);
        }
    }
    kvc_sim_trace_free(&trace);
}

TEST(compact_runs_count_what_full_ones_count)
{
    static const uint32_t SIZES[] = {512, 1024, 96, 64};
    bool cut_last;
    size_t i;
    int policy;

    for (i = 0; i < 2 * KVC_COUNT(SIZES); i++) {
        struct kvc_sim_trace trace;

        cut_last = i % 2 == 1;
        trace = load_small(cut_last);
        for (policy = 0; policy < KVG_POLICY_COUNT; policy++) {
            struct kvc_sim_setup setup = setup_of(KVC_SIM_GRAIN_NODE,
                (enum kvg_policy)policy, SIZES[i / 2], 300 * 512 / SIZES[i / 2]);
            struct kvc_sim_result compact;
            struct kvc_sim_result full;

            setup.tlru_threshold = 4096;
            setup.tlru_next_estimate = 1024;
            compact = run(&trace, &setup);
            setup.compact = false;
            full = run(&trace, &setup);
            CHECK_MEM(&compact, &full, sizeof(full));
        }
        kvc_sim_trace_free(&trace);
    }
}

TEST(the_same_input_gives_the_same_numbers_whatever_the_seed)
{
    struct kvc_sim_trace trace = load_small(false);
    int policy;

    for (policy = 0; policy < KVG_POLICY_COUNT; policy++) {
        struct kvc_sim_setup setup =
            setup_of(KVC_SIM_GRAIN_NODE, (enum kvg_policy)policy, 512, 200);
        struct kvc_sim_result once = run(&trace, &setup);
        struct kvc_sim_result again = run(&trace, &setup);

        CHECK_MEM(&once, &again, sizeof(once));
        setup.seed = UINT64_C(0xfeedface12345678);
        again = run(&trace, &setup);
        CHECK_MEM(&once, &again, sizeof(once));
    }
    kvc_sim_trace_free(&trace);
}

TEST(a_prompt_longer_than_the_cache_keeps_its_beginning)
{
    struct kvc_sim_setup setup = setup_of(KVC_SIM_GRAIN_NODE, KVG_POLICY_LRU, 512, 2);
    struct kvc_sim_trace trace;
    struct kvc_sim_result got;
    struct kvg_error error;

    CHECK_EQ(load_text(LINE("1536", "0, 1, 2") LINE("1530", "0, 1, 2") LINE("0", ""), 512,
                 false, &trace, &error),
        KVG_OK);
    got = run(&trace, &setup);
    CHECK_EQ(got.pages, 6);
    CHECK_EQ(got.pages_hit, 2);
    CHECK_EQ(got.requests, 3);
    CHECK_EQ(got.requests_hit, 1);
    CHECK_EQ(got.requests_cut, 2);
    CHECK_EQ(got.pages_cut, 2);
    CHECK_EQ(got.tokens, 3066);
    CHECK_EQ(got.tokens_hit, 1024);
    kvc_sim_trace_free(&trace);
}

TEST(a_partial_last_block_counts_as_whole_or_as_it_is)
{
    struct kvc_sim_setup setup =
        setup_of(KVC_SIM_GRAIN_NODE, KVG_POLICY_LRU, 256, UINT64_MAX);
    static const char TEXT[] = LINE("700", "0, 1") LINE("780", "0, 1");
    struct kvc_sim_trace trace;
    struct kvc_sim_result got;
    struct kvg_error error;

    CHECK_EQ(load_text(TEXT, 512, false, &trace, &error), KVG_OK);
    got = run(&trace, &setup);
    CHECK_EQ(got.pages, 8);
    CHECK_EQ(got.pages_hit, 4);
    CHECK_EQ(got.tokens_hit, 780); /* No more than the prompt has. */
    kvc_sim_trace_free(&trace);
    CHECK_EQ(load_text(TEXT, 512, true, &trace, &error), KVG_OK);
    got = run(&trace, &setup);
    CHECK_EQ(got.pages, 2 + 3);
    CHECK_EQ(got.pages_hit, 2);
    kvc_sim_trace_free(&trace);
}

TEST(engines_that_share_nothing_hit_less)
{
    struct kvc_sim_trace trace = load_small(false);
    struct kvc_sim_setup setup =
        setup_of(KVC_SIM_GRAIN_NODE, KVG_POLICY_LRU, 512, UINT64_MAX);
    struct kvc_sim_result one = run(&trace, &setup);
    struct kvc_sim_result four;

    setup.engines = 4;
    four = run(&trace, &setup);
    CHECK_EQ(four.pages, one.pages);
    CHECK(four.pages_hit < one.pages_hit);
    CHECK(four.pages_held > one.pages_held);
    kvc_sim_trace_free(&trace);
}

static bool stop_soon(void *context, uint64_t requests)
{
    uint64_t *left = context;

    if (*left < requests)
        return false;
    *left -= requests;
    return true;
}

TEST(a_run_ends_when_it_is_told_to)
{
    struct kvc_sim_trace trace = load_small(false);
    struct kvc_sim_setup setup = setup_of(KVC_SIM_GRAIN_NODE, KVG_POLICY_LRU, 512, 100);
    struct kvc_sim_result result;
    struct kvg_error error;
    uint64_t left = 100;

    CHECK_EQ(
        kvc_sim_run(&trace, &setup, stop_soon, &left, &result, &error), KVG_ECANCELED);
    CHECK(result.requests > 0 && result.requests < trace.request_count);
    kvc_sim_trace_free(&trace);
}

/* ---- Sweeps, and what is printed ------------------------------------------------------------- */

static const uint64_t SWEEP_PAGES[] = {50, 200, 800};
#define SWEEP_JOBS (2 * KVC_COUNT(SWEEP_PAGES))

static void make_jobs(const struct kvc_sim_trace *trace, struct kvc_sim_job *jobs)
{
    size_t i;

    for (i = 0; i < SWEEP_JOBS; i++) {
        uint64_t pages = SWEEP_PAGES[i % KVC_COUNT(SWEEP_PAGES)];

        jobs[i] = (struct kvc_sim_job){.trace = trace,
            .capacity = {KVC_SIM_PAGES, pages},
            .setup = setup_of(KVC_SIM_GRAIN_NODE,
                i < KVC_COUNT(SWEEP_PAGES) ? KVG_POLICY_LRU : KVG_POLICY_LFU, 512,
                pages)};
    }
}

static void sweep(struct kvc_sim_job *jobs, uint32_t threads)
{
    struct kvc_common common = {.quiet = true};
    struct kvg_error error;
    size_t i;

    CHECK_EQ(kvc_sim_sweep(jobs, SWEEP_JOBS, threads, &common, &error), KVG_OK);
    for (i = 0; i < SWEEP_JOBS; i++) {
        jobs[i].result.took_ns = 0;
        jobs[i].result.memory_bytes = 100 * (i + 1);
    }
}

TEST(two_threads_count_what_one_counts)
{
    struct kvc_sim_trace trace = load_small(false);
    struct kvc_sim_job one[SWEEP_JOBS];
    struct kvc_sim_job two[SWEEP_JOBS];
    size_t i;

    make_jobs(&trace, one);
    make_jobs(&trace, two);
    sweep(one, 1);
    sweep(two, 2);
    for (i = 0; i < SWEEP_JOBS; i++)
        CHECK_MEM(&one[i].result, &two[i].result, sizeof(one[i].result));
    kvc_sim_trace_free(&trace);
}

/* Prints the sweep of above as a report.  The caller frees the text. */
static char *printed(void (*print)(const struct kvc_sim_report *report, FILE *to))
{
    struct kvc_sim_trace trace = load_small(false);
    struct kvc_sim_setup ideal =
        setup_of(KVC_SIM_GRAIN_NODE, KVG_POLICY_LRU, 512, UINT64_MAX);
    struct kvc_sim_job jobs[SWEEP_JOBS];
    struct kvc_sim_part part = {.trace = &trace, .jobs = jobs, .job_count = SWEEP_JOBS};
    struct kvc_sim_report report = {.page_size = 512,
        .block_tokens = 512,
        .engines = 1,
        .no_times = true,
        .parts = &part,
        .part_count = 1};
    char *text = NULL;
    size_t bytes;
    FILE *to;

    make_jobs(&trace, jobs);
    sweep(jobs, 2);
    part.ideal = run(&trace, &ideal);
    trace.path = "small<&>.jsonl";
    to = open_memstream(&text, &bytes);
    CHECK(to != NULL);
    print(&report, to);
    fclose(to);
    kvc_sim_trace_free(&trace);
    return text;
}

static void print_table(const struct kvc_sim_report *report, FILE *to)
{
    struct kvc_style plain = {"", "", "", "", "", ""};

    kvc_sim_print_table(report, &plain, to);
}

/* With KVT_WRITE_GOLDEN set, the file is written anew instead: look at the difference. */
static void check_golden(
    const char *path, void (*print)(const struct kvc_sim_report *report, FILE *to))
{
    char *text = printed(print);
    struct kvg_error error;
    size_t bytes;
    char *expected;

    if (getenv("KVT_WRITE_GOLDEN") != NULL) {
        FILE *file = fopen(path, "wb");

        CHECK(file != NULL);
        fputs(text, file);
        fclose(file);
    }
    expected = kvc_read_file(path, 1 << 20, &bytes, &error);
    CHECK(expected != NULL);
    CHECK_STR(text, expected);
    free(expected);
    free(text);
}

TEST(table_json_and_picture_are_as_expected)
{
    check_golden(KVG_TEST_DATA "/simulate/small.txt", print_table);
    check_golden(KVG_TEST_DATA "/simulate/small.svg", kvc_sim_print_svg);
    check_golden(KVG_TEST_DATA "/simulate/small.json", kvc_sim_print_json);
}

TEST_MAIN(RUN(capacities_are_sizes_tokens_pages_or_no_limit),
    RUN(ranges_double_or_take_steps),
    RUN(wrong_capacities_are_refused_with_what_is_allowed),
    RUN(capacities_become_whole_pages), RUN(policies_are_a_list_or_all),
    RUN(a_trace_is_read_whole_and_its_ids_are_numbered_anew),
    RUN(a_bad_line_is_named_and_what_is_wrong_with_it),
    RUN(a_prompt_beyond_the_limit_is_refused),
    RUN(different_blocks_differ_in_every_token),
    RUN(single_pages_under_lru_are_the_tail_reference_to_the_page),
    RUN(a_negative_control_the_plain_block_lru_is_told_apart),
    RUN(without_a_limit_every_way_hits_the_same),
    RUN(compact_runs_count_what_full_ones_count),
    RUN(the_same_input_gives_the_same_numbers_whatever_the_seed),
    RUN(a_prompt_longer_than_the_cache_keeps_its_beginning),
    RUN(a_partial_last_block_counts_as_whole_or_as_it_is),
    RUN(engines_that_share_nothing_hit_less), RUN(a_run_ends_when_it_is_told_to),
    RUN(two_threads_count_what_one_counts), RUN(table_json_and_picture_are_as_expected))
