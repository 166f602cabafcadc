/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* Page keys and digests against OpenSSL, an implementation that shares nothing with ours:
 * every page size up to 70 and random larger ones, plain and EAGLE, with and without a prior,
 * one chain and two side by side, on every path this machine can run. */
#include "page/sha256.h"

#include "base/rng.h"
#include "test.h"

#include <openssl/sha.h>

#define PAGES_MAX 5

static size_t paths(const struct kvi_sha256_path *out[2])
{
    size_t count = 0;

    out[count++] = &kvi_sha256_portable;
    if (kvi_sha256_hardware() != NULL)
        out[count++] = kvi_sha256_hardware();
    return count;
}

/* The definition of a page key, written as it reads. */
static size_t reference_keys(const struct kvg_page_rule *rule,
    const struct kvg_key *prior, const uint32_t *tokens, size_t token_count,
    struct kvg_key *keys)
{
    size_t unit_count =
        rule->eagle ? (token_count == 0 ? 0 : token_count - 1) : token_count;
    size_t page_count = unit_count / rule->page_size;
    size_t page;

    for (page = 0; page < page_count; page++) {
        SHA256_CTX sha;
        size_t unit;

        SHA256_Init(&sha);
        if (prior != NULL)
            SHA256_Update(&sha, prior->bytes, 32);
        for (unit = page * rule->page_size; unit < (page + 1) * rule->page_size; unit++)
            SHA256_Update(&sha, &tokens[unit], rule->eagle ? 8 : 4);
        SHA256_Final(keys[page].bytes, &sha);
        prior = &keys[page];
    }
    return page_count;
}

static uint32_t *random_tokens(struct kvi_rng *rng, size_t count)
{
    uint32_t *tokens = malloc(count * sizeof(*tokens) + (count == 0));
    size_t i;

    for (i = 0; i < count; i++)
        tokens[i] = (uint32_t)kvi_rng_next(rng);
    return tokens;
}

static void check_rule(struct kvi_rng *rng, const struct kvg_page_rule *rule)
{
    const struct kvi_sha256_path *path[2];
    size_t path_count = paths(path);
    struct kvg_key prior;
    struct kvg_page_job jobs[2];
    struct kvg_key keys[2][PAGES_MAX];
    struct kvg_key expected[2][PAGES_MAX];
    size_t p;
    size_t i;

    for (i = 0; i < sizeof(prior.bytes); i++)
        prior.bytes[i] = (uint8_t)kvi_rng_next(rng);
    for (i = 0; i < 2; i++) {
        size_t count = (size_t)kvi_rng_below(rng, (PAGES_MAX + 1) * rule->page_size);

        jobs[i] = (struct kvg_page_job){.tokens = random_tokens(rng, count),
            .token_count = count,
            .prior = kvi_rng_below(rng, 2) == 1 ? &prior : NULL,
            .keys = keys[i],
            .key_max = PAGES_MAX};
    }
    for (p = 0; p < path_count; p++) {
        kvi_page_keys_batch_with(path[p], rule, jobs, 2);
        for (i = 0; i < 2; i++) {
            size_t count = reference_keys(
                rule, jobs[i].prior, jobs[i].tokens, jobs[i].token_count, expected[i]);

            CHECK_EQ(jobs[i].key_count, count);
            CHECK_MEM(keys[i], expected[i], count * sizeof(expected[i][0]));
            memset(keys[i], 0, sizeof(keys[i]));
            CHECK_EQ(kvi_page_keys_with(path[p], rule, jobs[i].prior, jobs[i].tokens,
                         jobs[i].token_count, keys[i], PAGES_MAX),
                count);
            CHECK_MEM(keys[i], expected[i], count * sizeof(expected[i][0]));
        }
    }
    free((void *)(uintptr_t)jobs[0].tokens);
    free((void *)(uintptr_t)jobs[1].tokens);
}

TEST(page_keys_are_those_of_openssl)
{
    struct kvi_rng rng = {20261};
    uint32_t page_size;
    int round;

    for (page_size = 1; page_size <= 70; page_size++) {
        for (round = 0; round < 8; round++)
            check_rule(&rng, &(struct kvg_page_rule){page_size, round % 2 == 1});
    }
    for (round = 0; round < 40; round++) {
        page_size = (uint32_t)(1 + kvi_rng_below(&rng, 2000));
        check_rule(&rng, &(struct kvg_page_rule){page_size, round % 2 == 1});
    }
}

TEST(the_largest_page_has_the_key_of_openssl)
{
    struct kvi_rng rng = {20262};

    check_rule(&rng, &(struct kvg_page_rule){KVG_PAGE_SIZE_MAX, false});
    check_rule(&rng, &(struct kvg_page_rule){KVG_PAGE_SIZE_MAX, true});
}

TEST(digests_are_those_of_openssl_whatever_runs_they_come_in)
{
    const struct kvi_sha256_path *path[2];
    size_t path_count = paths(path);
    struct kvi_rng rng = {20263};
    uint8_t bytes[700];
    uint8_t expected[32];
    uint8_t digest[32];
    size_t length;
    size_t p;

    for (length = 0; length < sizeof(bytes); length++)
        bytes[length] = (uint8_t)kvi_rng_next(&rng);
    for (length = 0; length <= sizeof(bytes); length++) {
        SHA256(bytes, length, expected);
        for (p = 0; p < path_count; p++) {
            struct kvi_sha256 sha;
            size_t done = 0;

            kvi_sha256_with(path[p], bytes, length, digest);
            CHECK_MEM(digest, expected, 32);
            kvi_sha256_init(&sha, path[p]);
            while (done < length) {
                size_t run = (size_t)kvi_rng_below(&rng, length - done + 1);

                kvi_sha256_update(&sha, bytes + done, run);
                done += run;
            }
            kvi_sha256_final(&sha, digest);
            CHECK_MEM(digest, expected, 32);
        }
    }
}

TEST_MAIN(RUN(page_keys_are_those_of_openssl),
    RUN(the_largest_page_has_the_key_of_openssl),
    RUN(digests_are_those_of_openssl_whatever_runs_they_come_in))
