/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* page.c -- tokens to page keys: what all pages of a chain share, one chain, many chains.
 *
 * The first page of a prompt without a prior key is a shorter message than the pages after
 * it, so it has a plan of its own and runs as a chain of one page.
 *
 * Not here: the kernels (chain_kernel.h) and what remembers keys (memo.c).
 */
#include "page/sha256.h"

#include "base/assert.h"

#include <string.h>

static bool rule_is_valid(const struct kvg_page_rule *rule)
{
    return rule->page_size >= 1 && rule->page_size <= KVG_PAGE_SIZE_MAX;
}

size_t kvg_page_count(const struct kvg_page_rule *rule, size_t token_count)
{
    if (!rule_is_valid(rule) || token_count == 0)
        return 0;
    return (token_count - (rule->eagle ? 1 : 0)) / rule->page_size;
}

void kvi_chain_plan_init(
    struct kvi_chain_plan *plan, const struct kvg_page_rule *rule, bool has_prior)
{
    uint32_t unit_bytes = rule->eagle ? 8 : 4;
    uint32_t prior_bytes = has_prior ? KVG_KEY_BYTES : 0;
    uint32_t bytes = prior_bytes + rule->page_size * unit_bytes;
    uint32_t blocks = (bytes + 1 + 8 + 63) / 64;
    uint32_t direct = bytes / 64;
    uint64_t bits = __builtin_bswap64((uint64_t)bytes * 8);
    uint32_t tail_units; /* Bytes of units in the tail. */

    KVI_ASSERT(rule_is_valid(rule));
    memset(plan, 0, sizeof(*plan));
    plan->page_tokens = rule->page_size;
    plan->quad_tokens = 16 / unit_bytes;
    plan->prior_quads = prior_bytes / 16;
    plan->direct_blocks = direct;
    plan->tail_blocks = blocks - direct;
    plan->tail_offset = direct == 0 ? prior_bytes : 0;
    plan->tail_quad = direct == 0 ? 0 : 4 * direct - plan->prior_quads;
    tail_units = bytes - 64 * direct - plan->tail_offset;
    plan->tail_quads = tail_units / 16;
    plan->rest_bytes = tail_units % 16;
    plan->tail[plan->tail_offset + tail_units] = 0x80;
    memcpy(plan->tail + 64 * plan->tail_blocks - 8, &bits, sizeof(bits));
}

size_t kvi_page_keys_with(const struct kvi_sha256_path *path,
    const struct kvg_page_rule *rule, const struct kvg_key *prior, const uint32_t *tokens,
    size_t token_count, struct kvg_key *keys, size_t key_max)
{
    size_t page_count = kvg_page_count(rule, token_count);
    struct kvi_chain_lane lane;
    struct kvi_chain_plan plan;
    size_t left;

    if (page_count > key_max)
        page_count = key_max;
    if (page_count == 0)
        return 0;
    left = page_count;
    lane.tokens = tokens;
    lane.prior = prior == NULL ? NULL : prior->bytes;
    lane.out = keys->bytes;
    if (prior == NULL) {
        kvi_chain_plan_init(&plan, rule, false);
        path->chain1(&plan, &lane, 1);
        left--;
    }
    if (left != 0) {
        kvi_chain_plan_init(&plan, rule, true);
        path->chain1(&plan, &lane, left);
    }
    return page_count;
}

size_t kvg_page_keys(const struct kvg_page_rule *rule, const struct kvg_key *prior,
    const uint32_t *tokens, size_t token_count, struct kvg_key *keys, size_t key_max)
{
    return kvi_page_keys_with(
        kvi_sha256_best(), rule, prior, tokens, token_count, keys, key_max);
}

/* Pages of a job that are still to be hashed; key_count is how many are done. */
static size_t pages_left(const struct kvg_page_rule *rule, const struct kvg_page_job *job)
{
    size_t page_count = kvg_page_count(rule, job->token_count);

    return (page_count < job->key_max ? page_count : job->key_max) - job->key_count;
}

/* The next job from *index on that has pages for this turn, or NULL.  The first turn takes
 * first pages without a prior, the second all the rest. */
static struct kvg_page_job *next_job(const struct kvg_page_rule *rule,
    struct kvg_page_job *jobs, size_t job_count, size_t *index, bool first_turn)
{
    while (*index < job_count) {
        struct kvg_page_job *job = &jobs[(*index)++];

        if ((!first_turn || job->prior == NULL) && pages_left(rule, job) != 0)
            return job;
    }
    return NULL;
}

static struct kvi_chain_lane job_lane(
    const struct kvg_page_rule *rule, const struct kvg_page_job *job)
{
    const struct kvg_key *prior =
        job->key_count == 0 ? job->prior : &job->keys[job->key_count - 1];

    return (struct kvi_chain_lane){
        .tokens = job->tokens + job->key_count * rule->page_size,
        .prior = prior == NULL ? NULL : prior->bytes,
        .out = job->keys[job->key_count].bytes,
    };
}

/* Two lanes; whichever job ends first gives its lane to the next. */
static void run_turn(const struct kvi_sha256_path *path, const struct kvg_page_rule *rule,
    struct kvg_page_job *jobs, size_t job_count, bool first_turn)
{
    struct kvi_chain_plan plan;
    size_t index = 0;
    struct kvg_page_job *a = next_job(rule, jobs, job_count, &index, first_turn);
    struct kvg_page_job *b = next_job(rule, jobs, job_count, &index, first_turn);

    kvi_chain_plan_init(&plan, rule, !first_turn);
    while (a != NULL) {
        size_t left_a = first_turn ? 1 : pages_left(rule, a);
        size_t left_b = b == NULL ? 0 : first_turn ? 1 : pages_left(rule, b);
        size_t count = b == NULL || left_a < left_b ? left_a : left_b;
        struct kvi_chain_lane lane_a = job_lane(rule, a);

        if (b == NULL) {
            path->chain1(&plan, &lane_a, count);
        } else {
            struct kvi_chain_lane lane_b = job_lane(rule, b);

            path->chain2(&plan, &lane_a, &lane_b, count);
            b->key_count += count;
        }
        a->key_count += count;
        if (b != NULL && left_b == count)
            b = next_job(rule, jobs, job_count, &index, first_turn);
        if (left_a == count) {
            a = b != NULL ? b : next_job(rule, jobs, job_count, &index, first_turn);
            b = next_job(rule, jobs, job_count, &index, first_turn);
        }
    }
}

void kvi_page_keys_batch_with(const struct kvi_sha256_path *path,
    const struct kvg_page_rule *rule, struct kvg_page_job *jobs, size_t job_count)
{
    size_t i;

    for (i = 0; i < job_count; i++)
        jobs[i].key_count = 0;
    if (!rule_is_valid(rule))
        return;
    run_turn(path, rule, jobs, job_count, true);
    run_turn(path, rule, jobs, job_count, false);
}

void kvg_page_keys_batch(
    const struct kvg_page_rule *rule, struct kvg_page_job *jobs, size_t job_count)
{
    kvi_page_keys_batch_with(kvi_sha256_best(), rule, jobs, job_count);
}

/* One string of a namespace: a byte that says whether it is there, its length, itself. */
static void hash_optional(struct kvi_sha256 *sha, struct kvg_str text)
{
    uint8_t head[9] = {text.data != NULL};
    uint64_t bytes = text.bytes;

    memcpy(head + 1, &bytes, sizeof(bytes));
    kvi_sha256_update(sha, head, text.data == NULL ? 1 : sizeof(head));
    if (text.data != NULL)
        kvi_sha256_update(sha, text.data, text.bytes);
}

bool kvg_namespace_prior(const struct kvg_namespace *space, struct kvg_key *out)
{
    static const char DOMAIN[] = "sglang-cache-namespace-v1";
    struct kvg_str salt = space->cache_salt;
    struct kvi_sha256 sha;

    memset(out, 0, sizeof(*out));
    if (salt.bytes == 0)
        salt.data = NULL;
    if (space->extra_key.data == NULL && salt.data == NULL)
        return false;
    kvi_sha256_init(&sha, kvi_sha256_best());
    kvi_sha256_update(&sha, DOMAIN, sizeof(DOMAIN) - 1);
    hash_optional(&sha, space->extra_key);
    hash_optional(&sha, salt);
    kvi_sha256_final(&sha, out->bytes);
    return true;
}
