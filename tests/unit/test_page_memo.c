/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* Unit tests of the memo: what it saves, what it forgets first, what it never does. */
#include "page/memo.h"

#include "fault_alloc.h"
#include "test.h"

#define PAGE 4
#define PAGES_MAX 4096

static const struct kvg_page_rule RULE = {PAGE, false};

static struct kvg_page_memo *new_memo(struct fault_alloc *fault, size_t memory_bytes_max)
{
    struct kvg_page_memo_options options = {.struct_bytes = sizeof(options),
        .rule = RULE,
        .memory_bytes_max = memory_bytes_max,
        .seed = 42};
    struct kvg_page_memo *memo;

    fault_alloc_init(fault);
    CHECK_EQ(kvg_page_memo_new(&fault->alloc, &options, &memo), KVG_OK);
    return memo;
}

static struct kvg_page_memo_stats stats_of(const struct kvg_page_memo *memo)
{
    struct kvg_page_memo_stats stats = {.struct_bytes = sizeof(stats)};

    kvg_page_memo_stats(memo, &stats);
    return stats;
}

/* Pages of prompt number `who`: they differ from the first token on. */
static void write_prompt(uint32_t *tokens, uint32_t who, size_t page_count)
{
    size_t i;

    for (i = 0; i < page_count * PAGE; i++)
        tokens[i] = who * 100000 + (uint32_t)i;
}

/* Asks, checks the keys against plain hashing, and returns how many pages were reused. */
static uint64_t ask(struct kvg_page_memo *memo, const uint32_t *tokens, size_t page_count)
{
    static struct kvg_key keys[PAGES_MAX];
    static struct kvg_key plain[PAGES_MAX];
    uint64_t before = stats_of(memo).pages_reused;

    CHECK_EQ(kvg_page_memo_keys(memo, NULL, tokens, page_count * PAGE, keys, PAGES_MAX),
        page_count);
    kvg_page_keys(&RULE, NULL, tokens, page_count * PAGE, plain, PAGES_MAX);
    CHECK_MEM(keys, plain, page_count * sizeof(keys[0]));
    CHECK(kvi_page_memo_check(memo) == NULL);
    return stats_of(memo).pages_reused - before;
}

static void finish(struct fault_alloc *fault, struct kvg_page_memo *memo)
{
    kvg_page_memo_free(memo);
    CHECK_EQ(fault->live_bytes, 0);
}

TEST(a_repeated_prompt_is_not_hashed_again)
{
    static uint32_t tokens[PAGES_MAX * PAGE];
    struct fault_alloc fault;
    struct kvg_page_memo *memo = new_memo(&fault, 0);

    write_prompt(tokens, 1, 2000);
    CHECK_EQ(ask(memo, tokens, 2000), 0);
    CHECK_EQ(ask(memo, tokens, 2000), 2000);
    CHECK_EQ(ask(memo, tokens, 700), 700);
    CHECK_EQ(stats_of(memo).pages_hashed, 2000);
    finish(&fault, memo);
}

TEST(a_longer_prompt_is_hashed_from_where_it_goes_on)
{
    static uint32_t tokens[PAGES_MAX * PAGE];
    struct fault_alloc fault;
    struct kvg_page_memo *memo = new_memo(&fault, 0);
    size_t pages;

    write_prompt(tokens, 1, 600);
    for (pages = 1; pages <= 600; pages++)
        CHECK_EQ(ask(memo, tokens, pages), pages - 1);
    CHECK_EQ(stats_of(memo).pages_hashed, 600);
    /* A page a turn still ends up in long runs: little is spent beside tokens and keys. */
    CHECK(fault.live_count < 10);
    finish(&fault, memo);
}

TEST(a_prompt_that_leaves_another_reuses_the_common_pages)
{
    uint32_t first[40];
    uint32_t second[40];
    struct fault_alloc fault;
    struct kvg_page_memo *memo = new_memo(&fault, 0);

    write_prompt(first, 1, 10);
    write_prompt(second, 1, 10);
    second[6 * PAGE + PAGE - 1] ^= 1; /* The last token of page 6. */
    CHECK_EQ(ask(memo, first, 10), 0);
    CHECK_EQ(ask(memo, second, 10), 6);
    CHECK_EQ(ask(memo, second, 10), 10);
    CHECK_EQ(ask(memo, first, 10), 10);
    finish(&fault, memo);
}

TEST(equal_tokens_after_another_prior_are_not_the_same_pages)
{
    uint32_t tokens[8];
    struct kvg_key zero = {{0}};
    struct kvg_key keys[2];
    struct kvg_key plain[2];
    struct fault_alloc fault;
    struct kvg_page_memo *memo = new_memo(&fault, 0);

    write_prompt(tokens, 1, 2);
    CHECK_EQ(ask(memo, tokens, 2), 0);
    kvg_page_keys(&RULE, &zero, tokens, 8, plain, 2);
    CHECK_EQ(kvg_page_memo_keys(memo, &zero, tokens, 8, keys, 2), 2);
    CHECK_MEM(keys, plain, sizeof(keys));
    CHECK_EQ(stats_of(memo).pages_reused, 0);
    CHECK(kvi_page_memo_check(memo) == NULL);
    finish(&fault, memo);
}

TEST(memory_stays_below_the_limit_and_the_coldest_prompt_goes_first)
{
    uint32_t tokens[10 * PAGE];
    struct fault_alloc fault;
    struct kvg_page_memo *memo = new_memo(&fault, 16384);
    uint32_t who;

    write_prompt(tokens, 0, 10);
    CHECK_EQ(ask(memo, tokens, 10), 0);
    for (who = 1; who < 200; who++) {
        write_prompt(tokens, who, 10);
        CHECK_EQ(ask(memo, tokens, 10), 0);
        CHECK_EQ(ask(memo, tokens, 10), 10);
        write_prompt(tokens, 0, 10);
        CHECK_EQ(ask(memo, tokens, 10), 10); /* Kept warm. */
    }
    CHECK(fault.peak_bytes <= 16384);
    CHECK(stats_of(memo).pages_evicted > 1000);
    CHECK_EQ(stats_of(memo).memory_bytes, fault.live_bytes);
    write_prompt(tokens, 1, 10);
    CHECK_EQ(ask(memo, tokens, 10), 0);
    finish(&fault, memo);
}

/* Of a prompt in several runs the tail goes before the head. */
TEST(tails_go_before_heads)
{
    static uint32_t tokens[2000 * PAGE];
    static uint32_t other[1200 * PAGE];
    struct fault_alloc fault;
    struct kvg_page_memo *memo = new_memo(&fault, 130 * 1024);
    uint64_t reused;

    write_prompt(tokens, 1, 2000);
    write_prompt(other, 2, 1200);
    CHECK_EQ(ask(memo, tokens, 2000), 0);
    CHECK_EQ(ask(memo, other, 1200), 0);
    reused = ask(memo, tokens, 2000);
    CHECK(reused > 500 && reused < 2000);
    CHECK(fault.peak_bytes <= 130 * 1024);
    finish(&fault, memo);
}

TEST(a_prompt_larger_than_the_memo_keeps_its_head)
{
    static uint32_t tokens[PAGES_MAX * PAGE];
    struct fault_alloc fault;
    struct kvg_page_memo *memo = new_memo(&fault, 100000);
    uint64_t reused;

    write_prompt(tokens, 1, PAGES_MAX);
    CHECK_EQ(ask(memo, tokens, PAGES_MAX), 0);
    reused = ask(memo, tokens, PAGES_MAX);
    CHECK(reused > 1000 && reused < 2100);
    CHECK(fault.peak_bytes <= 100000);
    finish(&fault, memo);
}

TEST(options_out_of_range_are_refused)
{
    static const struct kvg_page_memo_options BAD[] = {
        {.struct_bytes = 1, .rule = {4, false}},
        {.struct_bytes = sizeof(BAD[0]), .rule = {0, false}},
        {.struct_bytes = sizeof(BAD[0]), .rule = {KVG_PAGE_SIZE_MAX + 1, false}},
        {.struct_bytes = sizeof(BAD[0]),
            .rule = {4, false},
            .memory_bytes_max = KVG_PAGE_MEMO_BYTES_MIN - 1},
    };
    struct fault_alloc fault;
    size_t i;

    fault_alloc_init(&fault);
    for (i = 0; i < sizeof(BAD) / sizeof(BAD[0]); i++) {
        struct kvg_page_memo *memo = (struct kvg_page_memo *)&fault;

        CHECK_EQ(kvg_page_memo_new(&fault.alloc, &BAD[i], &memo), KVG_EINVAL);
        CHECK(memo == NULL);
    }
    CHECK_EQ(fault.calls, 0);
    kvg_page_memo_free(NULL);
}

static bool scenario(const struct kvg_alloc *alloc, void *context)
{
    struct fault_alloc *fault = alloc->context;
    struct kvg_page_memo_options options = {
        .struct_bytes = sizeof(options), .rule = RULE, .memory_bytes_max = 8192};
    uint32_t tokens[20 * PAGE];
    struct kvg_page_memo *memo;
    uint32_t turn;

    if (kvg_page_memo_new(alloc, &options, &memo) != KVG_OK) {
        CHECK(memo == NULL);
        return false;
    }
    for (turn = 0; turn < 12; turn++) {
        write_prompt(tokens, turn % 4, 20);
        ask(memo, tokens, 9 + turn);
    }
    kvg_page_memo_free(memo);
    return fault->failed == 0;
}

TEST(without_memory_the_keys_are_hashed_and_right)
{
    for_each_oom(scenario, NULL);
}

TEST(the_check_finds_a_damaged_key)
{
    uint32_t tokens[8];
    struct fault_alloc fault;
    struct kvg_page_memo *memo = new_memo(&fault, 0);

    CHECK(!kvi_page_memo_damage(memo));
    write_prompt(tokens, 1, 2);
    ask(memo, tokens, 2);
    CHECK(kvi_page_memo_damage(memo));
    CHECK_STR(kvi_page_memo_check(memo), "M4: a key is not that of its tokens");
    finish(&fault, memo);
}

TEST_MAIN(RUN(a_repeated_prompt_is_not_hashed_again),
    RUN(a_longer_prompt_is_hashed_from_where_it_goes_on),
    RUN(a_prompt_that_leaves_another_reuses_the_common_pages),
    RUN(equal_tokens_after_another_prior_are_not_the_same_pages),
    RUN(memory_stays_below_the_limit_and_the_coldest_prompt_goes_first),
    RUN(tails_go_before_heads), RUN(a_prompt_larger_than_the_memo_keeps_its_head),
    RUN(options_out_of_range_are_refused),
    RUN(without_memory_the_keys_are_hashed_and_right), RUN(the_check_finds_a_damaged_key))
