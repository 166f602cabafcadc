/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* The memo against plain hashing, on random prompts that share, extend, leave and repeat one
 * another.  Tokens have few values, so that pages collide often; memory is short, so that
 * eviction never stops; now and then an allocation fails.  The seed is printed on failure. */
#include "page/memo.h"

#include "base/rng.h"
#include "fault_alloc.h"
#include "test.h"

#define PROMPTS 12
#define TOKENS_MAX 160

struct prompt {
    uint32_t tokens[TOKENS_MAX];
    size_t token_count;
};

static uint32_t random_token(struct kvi_rng *rng)
{
    return (uint32_t)kvi_rng_below(rng, 2);
}

/* Makes prompt `to` from another one: cut, changed at a place, continued. */
static void derive(struct kvi_rng *rng, struct prompt *prompts, size_t to)
{
    const struct prompt *from = &prompts[kvi_rng_below(rng, PROMPTS)];
    struct prompt next = *from;
    size_t more = (size_t)kvi_rng_below(rng, 24);

    next.token_count = (size_t)kvi_rng_below(rng, from->token_count + 1);
    if (kvi_rng_below(rng, 3) == 0)
        next.token_count = from->token_count;
    if (next.token_count != 0 && kvi_rng_below(rng, 2) == 0)
        next.tokens[kvi_rng_below(rng, next.token_count)] ^= 1;
    while (more-- != 0 && next.token_count < TOKENS_MAX)
        next.tokens[next.token_count++] = random_token(rng);
    prompts[to] = next;
}

static void ask(struct kvi_rng *rng, const struct kvg_page_rule *rule,
    struct kvg_page_memo *memo, const struct prompt *prompt)
{
    static const struct kvg_key PRIORS[2] = {{{0}}, {{9, 9}}};
    const struct kvg_key *priors[4] = {NULL, NULL, &PRIORS[0], &PRIORS[1]};
    const struct kvg_key *prior = priors[kvi_rng_below(rng, 4)];
    size_t key_max =
        kvi_rng_below(rng, 4) == 0 ? (size_t)kvi_rng_below(rng, 20) : TOKENS_MAX;
    struct kvg_key keys[TOKENS_MAX];
    struct kvg_key plain[TOKENS_MAX];
    size_t count =
        kvg_page_keys(rule, prior, prompt->tokens, prompt->token_count, plain, key_max);

    CHECK_EQ(kvg_page_memo_keys(
                 memo, prior, prompt->tokens, prompt->token_count, keys, key_max),
        count);
    CHECK_MEM(keys, plain, count * sizeof(keys[0]));
}

static void run(uint64_t seed, int steps)
{
    struct kvi_rng rng = {seed};
    struct prompt prompts[PROMPTS] = {0};
    struct fault_alloc fault;
    struct kvg_page_memo *memo;
    struct kvg_page_memo_options options = {.struct_bytes = sizeof(options),
        .rule = {(uint32_t)(1 + kvi_rng_below(&rng, 5)), kvi_rng_below(&rng, 2) == 1},
        .memory_bytes_max = (size_t)(4096 + kvi_rng_below(&rng, 12000)),
        .seed = kvi_rng_next(&rng)};
    struct kvg_page_memo_stats stats = {.struct_bytes = sizeof(stats)};
    int step;

    fault_alloc_init(&fault);
    CHECK_EQ(kvg_page_memo_new(&fault.alloc, &options, &memo), KVG_OK);
    for (step = 0; step < steps; step++) {
        const char *broken;
        size_t who = (size_t)kvi_rng_below(&rng, PROMPTS);

        if (kvi_rng_below(&rng, 2) == 0)
            derive(&rng, prompts, who);
        fault.countdown = kvi_rng_below(&rng, 10) == 0 ? 0 : -1;
        ask(&rng, &options.rule, memo, &prompts[who]);
        fault.countdown = -1;
        broken = kvi_page_memo_check(memo);
        if (broken != NULL) {
            printf("seed %llu, step %d: %s\n", (unsigned long long)seed, step, broken);
            CHECK(broken == NULL);
        }
        CHECK(fault.peak_bytes <= options.memory_bytes_max);
    }
    kvg_page_memo_stats(memo, &stats);
    CHECK(stats.pages_reused > 0 && stats.pages_hashed > 0);
    kvg_page_memo_free(memo);
    CHECK_EQ(fault.live_bytes, 0);
}

TEST(the_memo_gives_the_keys_of_plain_hashing)
{
    uint64_t first = kvt_seed(1);
    uint64_t seed;

    for (seed = first; seed < first + 24; seed++)
        run(seed, 150);
}

TEST_MAIN(RUN(the_memo_gives_the_keys_of_plain_hashing))
