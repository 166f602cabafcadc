/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* Unit tests of page keys: known answers, whole pages only, namespaces, batches.  Every path
 * of the build that this machine can run is tested. */
#include "page/sha256.h"

#include "base/hex.h"
#include "base/rng.h"
#include "test.h"

#define KEYS_MAX 64

static size_t paths(const struct kvi_sha256_path *out[2])
{
    size_t count = 0;

    out[count++] = &kvi_sha256_portable;
    if (kvi_sha256_hardware() != NULL)
        out[count++] = kvi_sha256_hardware();
    return count;
}

static void check_hex(const uint8_t bytes[32], const char *expected)
{
    char hex[65] = {0};

    kvi_hex_encode(bytes, 32, hex);
    hex[strlen(expected)] = '\0'; /* A known answer may be a beginning only. */
    CHECK_STR(hex, expected);
}

/* Tokens first, first + 1, ..., last in memory of exactly that size, so that a sanitizer sees
 * a read too far. */
static uint32_t *count_up(uint32_t first, uint32_t last)
{
    uint32_t *tokens = malloc((last - first + 1) * sizeof(*tokens));
    uint32_t i;

    for (i = first; i <= last; i++)
        tokens[i - first] = i;
    return tokens;
}

struct vector {
    uint32_t first;
    uint32_t last;
    struct kvg_page_rule rule;
    const char *keys[5]; /* The first hex digits of each key; NULL ends them. */
};

static const struct vector VECTORS[] = {
    {1, 10, {4, false},
        {"cf97adeedb59e05bfd73a2b4c2a8885708c4f4f70c84c64b27120e72ab733b72",
            "4ebfa8a1f3c341517621838c6e1b9aa350307e3f00b3cbd1a07ef740f54396d6"}},
    {10, 14, {2, true},
        {"4bde82677ba8b6de843da1713b58a439678ec01b642bbdcffec4acfa81b0ec8e",
            "75ab93a767bad1e254945d1a0ccfa1588d6ebb803303e412d984baedcbbf04b9"}},
    {1, 16, {4, false},
        {"cf97adeedb59e05b", "4ebfa8a1f3c34151", "eddb4ab93695109c", "e6e688fa1045e868"}},
    {1, 16, {16, false}, {"77d735ce838418aa"}},
    {1, 8, {2, false},
        {"34fb5c825de7ca4a", "c57b445f90651b9a", "4a8a26efbf98ddb0", "c9b8411249ba5b8b"}},
    {1, 9, {2, true},
        {"ede8ef26a097f0fd", "678c5307f2a02a2a", "a7bcab72fe4725d0", "a1775dd320e23308"}},
    {1, 4, {4, true}, {NULL}},
    {1, 5, {4, true}, {"f721fe42aac11dcb"}},
    {1, 4, {1, false},
        {"67abdd721024f0ff", "e95092c4b38d42d1", "65a83b157c6cfe60", "c6c57967c409c4a7"}},
};

TEST(known_prompts_have_their_known_keys)
{
    const struct kvi_sha256_path *path[2];
    size_t path_count = paths(path);
    size_t p;
    size_t i;

    for (p = 0; p < path_count; p++) {
        for (i = 0; i < sizeof(VECTORS) / sizeof(VECTORS[0]); i++) {
            const struct vector *vector = &VECTORS[i];
            uint32_t *tokens = count_up(vector->first, vector->last);
            struct kvg_key keys[KEYS_MAX];
            size_t count = kvi_page_keys_with(path[p], &vector->rule, NULL, tokens,
                vector->last - vector->first + 1, keys, KEYS_MAX);
            size_t j;

            for (j = 0; j < count; j++)
                check_hex(keys[j].bytes, vector->keys[j]);
            CHECK(vector->keys[count] == NULL);
            free(tokens);
        }
    }
}

TEST(known_texts_have_their_known_digests)
{
    static const struct {
        const char *text;
        const char *digest;
    } KNOWN[] = {
        {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
    };
    const struct kvi_sha256_path *path[2];
    size_t path_count = paths(path);
    uint8_t digest[32];
    size_t p;
    size_t i;

    for (p = 0; p < path_count; p++) {
        for (i = 0; i < sizeof(KNOWN) / sizeof(KNOWN[0]); i++) {
            kvi_sha256_with(path[p], KNOWN[i].text, strlen(KNOWN[i].text), digest);
            check_hex(digest, KNOWN[i].digest);
        }
    }
    kvg_sha256("abc", 3, digest);
    check_hex(digest, KNOWN[1].digest);
}

TEST(the_path_in_use_is_the_best_of_this_machine)
{
    const struct kvi_sha256_path *hardware = kvi_sha256_hardware();

    CHECK_STR(kvg_sha256_path(), hardware == NULL ? "portable" : hardware->name);
}

TEST(only_whole_pages_count)
{
    struct kvg_page_rule plain = {4, false};
    struct kvg_page_rule eagle = {4, true};
    struct kvg_page_rule none = {0, false};
    struct kvg_page_rule huge = {KVG_PAGE_SIZE_MAX + 1, false};

    CHECK_EQ(kvg_page_count(&plain, 0), 0);
    CHECK_EQ(kvg_page_count(&plain, 3), 0);
    CHECK_EQ(kvg_page_count(&plain, 4), 1);
    CHECK_EQ(kvg_page_count(&plain, 11), 2);
    CHECK_EQ(kvg_page_count(&eagle, 0), 0);
    CHECK_EQ(kvg_page_count(&eagle, 4), 0);
    CHECK_EQ(kvg_page_count(&eagle, 5), 1);
    CHECK_EQ(kvg_page_count(&eagle, 9), 2);
    CHECK_EQ(kvg_page_count(&none, 100), 0);
    CHECK_EQ(kvg_page_count(&huge, SIZE_MAX), 0);
    CHECK_EQ(kvg_page_keys(&none, NULL, NULL, 0, NULL, 0), 0);
}

TEST(at_most_as_many_keys_are_written_as_there_is_room_for)
{
    struct kvg_page_rule rule = {4, false};
    uint32_t *tokens = count_up(1, 16);
    struct kvg_key keys[3];
    struct kvg_key all[4];

    memset(keys, 0xee, sizeof(keys));
    CHECK_EQ(kvg_page_keys(&rule, NULL, tokens, 16, all, 4), 4);
    CHECK_EQ(kvg_page_keys(&rule, NULL, tokens, 16, keys, 2), 2);
    CHECK_MEM(keys, all, 2 * sizeof(keys[0]));
    CHECK_EQ(keys[2].bytes[0], 0xee);
    CHECK_EQ(kvg_page_keys(&rule, NULL, tokens, 16, keys, 0), 0);
    free(tokens);
}

TEST(a_chain_continues_from_any_of_its_keys)
{
    struct kvg_page_rule rules[] = {{2, false}, {2, true}, {7, false}, {7, true}};
    uint32_t *tokens = count_up(1, 64);
    size_t r;
    size_t from;

    for (r = 0; r < 4; r++) {
        struct kvg_key all[KEYS_MAX];
        struct kvg_key rest[KEYS_MAX];
        size_t count = kvg_page_keys(&rules[r], NULL, tokens, 64, all, KEYS_MAX);

        for (from = 1; from < count; from++) {
            size_t skipped = from * rules[r].page_size;

            CHECK_EQ(kvg_page_keys(&rules[r], &all[from - 1], tokens + skipped,
                         64 - skipped, rest, KEYS_MAX),
                count - from);
            CHECK_MEM(rest, all + from, (count - from) * sizeof(all[0]));
        }
    }
    free(tokens);
}

/* A block of several pages is named by the key of its last page; naming block i by page key
 * i would give two prompts with a common first block the same second one. */
TEST(pages_that_differ_early_differ_for_ever_after)
{
    struct kvg_page_rule rule = {4, false};
    uint32_t *a = count_up(1, 16);
    uint32_t *b = count_up(1, 16);
    struct kvg_key keys_a[4];
    struct kvg_key keys_b[4];

    memcpy(b + 8, (uint32_t[]){91, 92, 93, 94, 95, 96, 97, 98}, 8 * sizeof(*b));
    kvg_page_keys(&rule, NULL, a, 16, keys_a, 4);
    kvg_page_keys(&rule, NULL, b, 16, keys_b, 4);
    CHECK_MEM(&keys_a[1], &keys_b[1], sizeof(keys_a[1]));
    CHECK(memcmp(&keys_a[2], &keys_b[2], sizeof(keys_a[2])) != 0);
    CHECK(memcmp(&keys_a[3], &keys_b[3], sizeof(keys_a[3])) != 0);
    free(a);
    free(b);
}

static struct kvg_str str(const char *text)
{
    return (struct kvg_str){text, text == NULL ? 0 : strlen(text)};
}

TEST(namespaces_have_their_known_priors)
{
    static const struct {
        const char *extra_key;
        const char *cache_salt;
        const char *prior; /* NULL: nothing to separate. */
    } KNOWN[] = {
        {NULL, NULL, NULL},
        {NULL, "", NULL},
        {"t1", NULL, "26c2325b468343dee6e8875897b8895c7fcb4869797ccf29c52a5935b4779f4e"},
        {"t1", "", "26c2325b468343dee6e8875897b8895c7fcb4869797ccf29c52a5935b4779f4e"},
        {"t2", NULL, "cc4484657e457e27b6c80b7056f3edfb13274e52cabcbfee29fa10326b0f7dd5"},
        {NULL, "X", "ecf3d4ef6a3f658fd76e9277b780ffe8ae94bb1e35cd6f2fa815ceaae8c4bd8b"},
        {"X", NULL, "ee352b61cd41e0496660861a3b925e51f93d7d26ac03c86d4b5467d24f640f3f"},
        {"", NULL, "fd649dd130277fa0773e23e84ddfa4ec779d9df77087968a60d7cefb9050ab1d"},
        {"ab", "c", "3d6b02ff0d7a0ce42a5ac4a58251ee0e63490c7de5eb46aa2eeaa3a0fdff5364"},
        {"a", "bc", "b8080ec8e713ddb4b5469eaf5874a021a72286a24e6c55d2046f0acfb48a938b"},
        {"\xc3\x9cn\xc3\xaf"
         "code",
            "Salz", "72ff16068b09c58cf00a1846d40cc865b351460db27ad9ec2d5d0acdfb59b125"},
    };
    size_t i;

    for (i = 0; i < sizeof(KNOWN) / sizeof(KNOWN[0]); i++) {
        struct kvg_namespace space = {str(KNOWN[i].extra_key), str(KNOWN[i].cache_salt)};
        struct kvg_key zero = {{0}};
        struct kvg_key prior;

        memset(&prior, 0xee, sizeof(prior));
        CHECK_EQ(kvg_namespace_prior(&space, &prior), KNOWN[i].prior != NULL);
        if (KNOWN[i].prior == NULL)
            CHECK_MEM(&prior, &zero, sizeof(prior));
        else
            check_hex(prior.bytes, KNOWN[i].prior);
    }
}

TEST(equal_tokens_of_two_namespaces_share_no_page)
{
    struct kvg_page_rule rule = {2, false};
    uint32_t *tokens = count_up(1, 8);
    struct kvg_namespace one = {str("t1"), str(NULL)};
    struct kvg_namespace two = {str("t2"), str(NULL)};
    struct kvg_key prior;
    struct kvg_key keys[3][4];
    size_t i;

    kvg_page_keys(&rule, NULL, tokens, 8, keys[0], 4);
    CHECK(kvg_namespace_prior(&one, &prior));
    kvg_page_keys(&rule, &prior, tokens, 8, keys[1], 4);
    CHECK(kvg_namespace_prior(&two, &prior));
    kvg_page_keys(&rule, &prior, tokens, 8, keys[2], 4);
    check_hex(keys[1][3].bytes,
        "8f56942bf2ee65e94fa5816eea078a3382d77f112321c968c66c738941e09240");
    for (i = 0; i < 4; i++) {
        CHECK(memcmp(&keys[0][i], &keys[1][i], sizeof(prior)) != 0);
        CHECK(memcmp(&keys[0][i], &keys[2][i], sizeof(prior)) != 0);
        CHECK(memcmp(&keys[1][i], &keys[2][i], sizeof(prior)) != 0);
    }
    free(tokens);
}

/* With two EAGLE pages already held, the rest of the prompt asks for exactly the last two. */
TEST(an_eagle_chain_continues_at_the_token_its_last_pair_began_with)
{
    struct kvg_page_rule rule = {2, true};
    uint32_t *tokens = count_up(1, 9);
    struct kvg_key held[2];
    struct kvg_key rest[4];

    CHECK_EQ(kvg_page_keys(&rule, NULL, tokens, 5, held, 2), 2);
    CHECK_EQ(kvg_page_keys(&rule, &held[1], tokens + 4, 5, rest, 4), 2);
    check_hex(rest[0].bytes, "a7bcab72fe4725d0");
    check_hex(rest[1].bytes, "a1775dd320e23308");
    free(tokens);
}

/* Jobs of every length, with and without a prior, in a batch and one by one. */
TEST(a_batch_gives_what_its_jobs_give_alone)
{
    enum {
        JOBS = 9,
        TOKENS = 40
    };
    const struct kvi_sha256_path *path[2];
    size_t path_count = paths(path);
    struct kvi_rng rng = {7};
    struct kvg_key prior = {{1, 2, 3}};
    int round;

    for (round = 0; round < 200; round++) {
        struct kvg_page_rule rule = {
            (uint32_t)(1 + kvi_rng_below(&rng, 6)), kvi_rng_below(&rng, 2) == 1};
        struct kvg_page_job jobs[JOBS];
        struct kvg_key keys[JOBS][TOKENS];
        uint32_t tokens[JOBS][TOKENS];
        size_t job_count = (size_t)kvi_rng_below(&rng, JOBS + 1);
        size_t i;
        size_t j;

        for (i = 0; i < job_count; i++) {
            for (j = 0; j < TOKENS; j++)
                tokens[i][j] = (uint32_t)kvi_rng_next(&rng);
            jobs[i] = (struct kvg_page_job){.tokens = tokens[i],
                .token_count = (size_t)kvi_rng_below(&rng, TOKENS + 1),
                .prior = kvi_rng_below(&rng, 2) == 1 ? &prior : NULL,
                .keys = keys[i],
                .key_max = (size_t)kvi_rng_below(&rng, TOKENS + 1),
                .key_count = 99};
        }
        kvi_page_keys_batch_with(
            path[(size_t)round % path_count], &rule, jobs, job_count);
        for (i = 0; i < job_count; i++) {
            struct kvg_key alone[TOKENS];

            CHECK_EQ(jobs[i].key_count, kvg_page_keys(&rule, jobs[i].prior, tokens[i],
                                            jobs[i].token_count, alone, jobs[i].key_max));
            CHECK_MEM(alone, keys[i], jobs[i].key_count * sizeof(alone[0]));
        }
    }
}

TEST(a_batch_under_a_bad_rule_has_no_keys)
{
    struct kvg_page_rule rule = {0, false};
    struct kvg_page_job job = {.token_count = 5, .key_max = 5, .key_count = 3};

    kvg_page_keys_batch(&rule, &job, 1);
    CHECK_EQ(job.key_count, 0);
}

TEST_MAIN(RUN(known_prompts_have_their_known_keys),
    RUN(known_texts_have_their_known_digests),
    RUN(the_path_in_use_is_the_best_of_this_machine), RUN(only_whole_pages_count),
    RUN(at_most_as_many_keys_are_written_as_there_is_room_for),
    RUN(a_chain_continues_from_any_of_its_keys),
    RUN(pages_that_differ_early_differ_for_ever_after),
    RUN(namespaces_have_their_known_priors),
    RUN(equal_tokens_of_two_namespaces_share_no_page),
    RUN(an_eagle_chain_continues_at_the_token_its_last_pair_began_with),
    RUN(a_batch_gives_what_its_jobs_give_alone),
    RUN(a_batch_under_a_bad_rule_has_no_keys))
