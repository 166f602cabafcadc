/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* Bytes as prompts to a small memo: its keys are always those of plain hashing, and its
 * invariants hold.  A byte says what the next prompt takes from the last one and how much is new;
 * tokens have two values, so that pages meet again. */
#include "page/memo.h"

#include <stdlib.h>
#include <string.h>

#define TOKENS_MAX 96u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void ask(struct kvg_page_memo *memo, const struct kvg_page_rule *rule,
    const struct kvg_key *prior, const uint32_t *tokens, size_t token_count)
{
    struct kvg_key keys[TOKENS_MAX];
    struct kvg_key plain[TOKENS_MAX];
    size_t count = kvg_page_keys(rule, prior, tokens, token_count, plain, TOKENS_MAX);

    if (kvg_page_memo_keys(memo, prior, tokens, token_count, keys, TOKENS_MAX) != count ||
        memcmp(keys, plain, count * sizeof(keys[0])) != 0)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const struct kvg_key PRIOR = {{7}};
    struct kvg_page_memo_options options = {
        .struct_bytes = sizeof(options), .memory_bytes_max = KVG_PAGE_MEMO_BYTES_MIN};
    uint32_t tokens[TOKENS_MAX];
    size_t token_count = 0;
    struct kvg_page_memo *memo;
    size_t i;

    if (bytes == 0 || bytes > 512)
        return 0;
    options.rule = (struct kvg_page_rule){1 + (data[0] & 3u), (data[0] & 4) != 0};
    options.seed = data[0];
    if (kvg_page_memo_new(kvg_alloc_default(), &options, &memo) != KVG_OK)
        return 0;
    for (i = 1; i + 1 < bytes; i += 2) {
        size_t kept = data[i] % (token_count + 1);
        unsigned bit;

        token_count = kept;
        for (bit = 0; bit < 8 && token_count < TOKENS_MAX; bit++)
            tokens[token_count++] = data[i + 1] >> bit & 1u;
        ask(memo, &options.rule, (data[i] & 0x80) != 0 ? &PRIOR : NULL, tokens,
            token_count);
    }
    if (kvi_page_memo_check(memo) != NULL)
        abort();
    kvg_page_memo_free(memo);
    return 0;
}
