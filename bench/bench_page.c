/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* Page keys of a 128k-token prompt, alone, two at once, and out of the memo.
 *
 * The floor is the compression function over as many contiguous blocks as the pages take,
 * padding included: what SHA-256 itself costs once everything around it costs nothing. */
#include "bench.h"
#include "page/sha256.h"

#include <stdlib.h>

#ifdef KVB_OPENSSL
#include <openssl/sha.h>
#endif

enum {
    TOKENS = 131072,
    REPEATS = 400
};

struct work {
    struct kvg_page_rule rule;
    uint32_t *tokens[2];
    struct kvg_key *keys[2];
    size_t key_max;
    const struct kvi_sha256_path *path;
    uint8_t *blocks;
    size_t block_count;
    struct kvg_page_memo *memo;
};

static void raw(void *context)
{
    struct work *work = context;
    uint32_t state[8] = {0};

    work->path->compress(state, work->blocks, work->block_count);
    kvb_keep(state);
}

static void one(void *context)
{
    struct work *work = context;

    kvi_page_keys_with(work->path, &work->rule, NULL, work->tokens[0], TOKENS,
        work->keys[0], work->key_max);
    kvb_keep(work->keys[0]);
}

static void two(void *context)
{
    struct work *work = context;
    struct kvg_page_job jobs[2];
    size_t i;

    for (i = 0; i < 2; i++)
        jobs[i] = (struct kvg_page_job){.tokens = work->tokens[i],
            .token_count = TOKENS,
            .keys = work->keys[i],
            .key_max = work->key_max};
    kvi_page_keys_batch_with(work->path, &work->rule, jobs, 2);
    kvb_keep(jobs);
}

/* What a memo cannot do without: reading both copies of the tokens, writing the keys. */
static void compare_and_copy(void *context)
{
    struct work *work = context;
    int differ = memcmp(work->tokens[0], work->blocks, TOKENS * sizeof(uint32_t));

    /* Not from the same place in a page: stores would look like the next loads' source. */
    memcpy(work->keys[1], work->blocks + 2048, work->key_max * sizeof(struct kvg_key));
    kvb_keep(&differ);
    kvb_keep(work->keys[1]);
}

static void from_memo(void *context)
{
    struct work *work = context;

    kvg_page_memo_keys(
        work->memo, NULL, work->tokens[0], TOKENS, work->keys[0], work->key_max);
    kvb_keep(work->keys[0]);
}

#ifdef KVB_OPENSSL
/* The plain way with a good library: a context, the prior key, the page. */
static void openssl(void *context)
{
    struct work *work = context;
    const uint32_t *tokens = work->tokens[0];
    size_t page;

    for (page = 0; page < work->key_max; page++, tokens += work->rule.page_size) {
        SHA256_CTX sha;

        SHA256_Init(&sha);
        if (page != 0)
            SHA256_Update(&sha, work->keys[1][page - 1].bytes, KVG_KEY_BYTES);
        SHA256_Update(&sha, tokens, work->rule.page_size * sizeof(*tokens));
        SHA256_Final(work->keys[1][page].bytes, &sha);
    }
}
#endif

static void one_path(
    struct kvb_table *table, struct work *work, const struct kvi_sha256_path *path)
{
    char what[64];
    double floor_ns;

    work->path = path;
    floor_ns = kvb_best_ns(REPEATS, raw, work);
    snprintf(what, sizeof(what), "%s: one prompt%s", path->name,
        work->rule.eagle ? ", EAGLE" : "");
    kvb_row(table, &(struct kvb_row){.what = what,
                       .figure = kvb_best_ns(REPEATS, one, work),
                       .unit = "ns",
                       .floor = floor_ns,
                       .floor_is = "compression of as many contiguous blocks",
                       .target = 1.05});
    snprintf(what, sizeof(what), "%s: each of two prompts at once%s", path->name,
        work->rule.eagle ? ", EAGLE" : "");
    kvb_row(table, &(struct kvb_row){.what = what,
                       .figure = kvb_best_ns(REPEATS, two, work) / 2,
                       .unit = "ns",
                       .floor = floor_ns,
                       .floor_is = "compression of as many contiguous blocks",
                       .target = path == &kvi_sha256_portable ? 0 : 0.55});
}

static struct kvg_page_memo *new_memo(const struct work *work)
{
    struct kvg_page_memo_options options = {
        .struct_bytes = sizeof(options), .rule = work->rule, .seed = 1};
    struct kvg_page_memo *memo;

    if (kvg_page_memo_new(kvg_alloc_default(), &options, &memo) != KVG_OK)
        exit(1);
    return memo;
}

static void memo_rows(struct kvb_table *table, struct work *work)
{
    double floor_ns = kvb_best_ns(REPEATS, compare_and_copy, work);
    struct kvg_page_memo_stats stats = {.struct_bytes = sizeof(stats)};
    double keys_ns;
    double memo_ns;
    size_t fixed_bytes;
    size_t tokens;

    work->path = kvi_sha256_best();
    keys_ns = kvb_best_ns(REPEATS, one, work);
    work->memo = new_memo(work);
    from_memo(work);
    memo_ns = kvb_best_ns(REPEATS, from_memo, work);
    kvb_row(table, &(struct kvb_row){.what = "memo: the same prompt again",
                       .figure = memo_ns,
                       .unit = "ns",
                       .floor = keys_ns,
                       .floor_is = "its page keys",
                       .target = 0.1});
    kvb_row(table, &(struct kvb_row){.what = "memo: the same prompt again",
                       .figure = memo_ns,
                       .unit = "ns",
                       .floor = floor_ns,
                       .floor_is = "comparing its tokens once and copying its keys"});
    kvg_page_memo_free(work->memo);

    work->memo = new_memo(work);
    kvg_page_memo_stats(work->memo, &stats);
    fixed_bytes = stats.memory_bytes;
    for (tokens = 0; tokens <= TOKENS; tokens += 320)
        kvg_page_memo_keys(
            work->memo, NULL, work->tokens[0], tokens, work->keys[0], work->key_max);
    memo_ns = kvb_best_ns(REPEATS, from_memo, work);
    kvb_row(table, &(struct kvb_row){.what = "memo: a prompt that grew by 5 pages a turn",
                       .figure = memo_ns,
                       .unit = "ns",
                       .floor = keys_ns,
                       .floor_is = "its page keys",
                       .target = 0.1});
    kvg_page_memo_stats(work->memo, &stats);
    kvb_row(table,
        &(struct kvb_row){.what = "memo: memory a page",
            .figure = (double)(stats.memory_bytes - fixed_bytes) / (double)work->key_max,
            .unit = "bytes",
            .floor = 64 * 4 + 32,
            .floor_is = "tokens and key"});
    kvg_page_memo_free(work->memo);
}

static void run(struct kvb_table *table)
{
    struct work work = {.rule = {64, false}, .key_max = TOKENS / 64};
    size_t i;
    size_t j;

    for (i = 0; i < 2; i++) {
        work.tokens[i] = malloc(TOKENS * sizeof(uint32_t));
        work.keys[i] = malloc(work.key_max * sizeof(struct kvg_key));
        for (j = 0; j < TOKENS; j++)
            work.tokens[i][j] = (uint32_t)((j * 2654435761u + i) % 128000);
    }
    work.blocks = malloc(work.key_max * 9 * 64);
    memset(work.blocks, 0, work.key_max * 9 * 64);
    memcpy(work.blocks, work.tokens[0], TOKENS * sizeof(uint32_t));

    work.block_count = work.key_max * 5;
    if (kvi_sha256_hardware() != NULL)
        one_path(table, &work, kvi_sha256_hardware());
#ifdef KVB_OPENSSL
    kvb_row(table, &(struct kvb_row){.what = "OpenSSL: one prompt, three calls a page",
                       .figure = kvb_best_ns(REPEATS, openssl, &work),
                       .unit = "ns",
                       .floor = kvb_best_ns(REPEATS, raw, &work),
                       .floor_is = "the compression above"});
#endif
    one_path(table, &work, &kvi_sha256_portable);
    work.rule.eagle = true;
    work.block_count = work.key_max * 9;
    if (kvi_sha256_hardware() != NULL)
        one_path(table, &work, kvi_sha256_hardware());
    work.rule.eagle = false;
    memo_rows(table, &work);
    for (i = 0; i < 2; i++) {
        free(work.tokens[i]);
        free(work.keys[i]);
    }
    free(work.blocks);
}

KVB_MAIN(page, "Page keys of 131,072 tokens, page 64", run)
