/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* page.h -- from tokens to page keys.
 *
 * A *unit* is one token, or with EAGLE one overlapping pair of tokens, so that n tokens make
 * n - 1 units.  A *page* is `page_size` consecutive units; units beyond the last whole page do
 * not count.  The key of a page is SHA-256 over the previous page's key (32 raw bytes; for the
 * first page the prior key if there is one, else nothing) and the page's units as u32 LE.
 *
 * A page key so names its page and all before it.  Whoever stores several pages as one block
 * names the block by its *last* page's key: the first page's would be the same for two blocks
 * that begin alike.
 *
 * With EAGLE, the page after page i begins at token (i + 1) * page_size, the last token of the
 * last pair of page i: a chain continues with tokens + pages * page_size, as without.
 *
 * Threads: the functions are pure and may run anywhere.  A memo belongs to one thread at a time.
 */
#ifndef KVGRAFT_PAGE_H
#define KVGRAFT_PAGE_H

#include <kvgraft/base.h>

KVG_BEGIN_DECLS

#define KVG_PAGE_SIZE_MAX 65536u

/* How tokens become pages. */
struct kvg_page_rule {
    uint32_t page_size; /* Units a page: 1 to KVG_PAGE_SIZE_MAX. */
    bool eagle;         /* Units are overlapping pairs of tokens. */
};

/* Whole pages in `token_count` tokens; 0 if the rule is out of range. */
KVG_API size_t kvg_page_count(const struct kvg_page_rule *rule, size_t token_count);

/* Writes the keys of the first `key_max` whole pages at most and returns how many were written.
 * `prior` is the key before the first page, or NULL. */
KVG_API size_t kvg_page_keys(const struct kvg_page_rule *rule,
    const struct kvg_key *prior, const uint32_t *tokens, size_t token_count,
    struct kvg_key *keys, size_t key_max);

/* One prompt of a batch. */
struct kvg_page_job {
    const uint32_t *tokens;
    size_t token_count;
    const struct kvg_key *prior; /* Or NULL.  Not a key of another job of the batch. */
    struct kvg_key *keys;        /* Room for key_max. */
    size_t key_max;
    size_t key_count; /* Out: keys written. */
};

/* The same for many prompts at once.  A chain is serial, so one prompt cannot use two hash
 * units, but two prompts can: pairs of jobs run interleaved, at about half the time each. */
KVG_API void kvg_page_keys_batch(
    const struct kvg_page_rule *rule, struct kvg_page_job *jobs, size_t job_count);

/* What separates equal tokens that must not share pages.  A NULL `data` is absent, which is not
 * the same as empty; an empty cache salt counts as absent. */
struct kvg_namespace {
    struct kvg_str extra_key;
    struct kvg_str cache_salt;
};

/* The prior key of a namespace's first page.  False, and *out zero, when there is nothing to
 * separate: then keys are those of the tokens alone. */
KVG_API bool kvg_namespace_prior(const struct kvg_namespace *space, struct kvg_key *out);

/* SHA-256 of any bytes, with the fastest path of this machine, and that path's name
 * ("sha-ni", "armv8", "portable"). */
KVG_API void kvg_sha256(const void *bytes, size_t byte_count, uint8_t out[32]);
KVG_API const char *kvg_sha256_path(void);

/* A memo of recently hashed prefixes, so that a prompt that repeats or extends one costs no
 * SHA-256 for the shared part.  What it holds are runs of pages: their tokens, their keys and
 * the key before them.
 *
 * A fast hash, keyed with `seed`, only finds a run.  What is then believed is a comparison of
 * the prior key and of every token, so no prompt can be given another prompt's keys, even by
 * somebody who knows the seed; a leaked seed costs time, not truth.  Comparing is also cheap:
 * it reads what hashing would read, at the speed of memcmp.
 *
 * It is bounded in bytes; the coldest tails go first, and heads stay as long as anything
 * behind them does. */
struct kvg_page_memo;

#define KVG_PAGE_MEMO_BYTES_MIN 4096u

struct kvg_page_memo_options {
    size_t struct_bytes;
    struct kvg_page_rule rule;
    size_t memory_bytes_max; /* All it will ever allocate; 0: 64 MiB. */
    uint64_t seed;           /* Secret; for the fast hash that finds a run. */
};

struct kvg_page_memo_stats {
    size_t struct_bytes;
    uint64_t pages_reused;
    uint64_t pages_hashed;
    uint64_t pages_evicted;
    size_t memory_bytes;
};

/* Fails with KVG_ENOMEM, or with KVG_EINVAL for a rule out of range or a limit below
 * KVG_PAGE_MEMO_BYTES_MIN.  `alloc` must outlive the memo. */
KVG_API KVG_MUST_CHECK kvg_err kvg_page_memo_new(const struct kvg_alloc *alloc,
    const struct kvg_page_memo_options *options, struct kvg_page_memo **out);
KVG_API void kvg_page_memo_free(struct kvg_page_memo *memo);

/* As kvg_page_keys(), with the same result.  Never fails: without memory it just hashes. */
KVG_API size_t kvg_page_memo_keys(struct kvg_page_memo *memo, const struct kvg_key *prior,
    const uint32_t *tokens, size_t token_count, struct kvg_key *keys, size_t key_max);

/* The caller sets out->struct_bytes. */
KVG_API void kvg_page_memo_stats(
    const struct kvg_page_memo *memo, struct kvg_page_memo_stats *out);

KVG_END_DECLS

#endif
