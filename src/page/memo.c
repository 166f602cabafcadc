/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* memo.c -- page keys of prompts seen before.
 *
 * The memo holds *runs*: consecutive pages of one prompt with the key that came before them.
 *
 *     run    | links | hash | prior key | key key key ... | token token token ...        |
 *
 * A prompt is walked run by run.  At a page that no run in hand continues, the next one is
 * looked up by (prior key, tokens of that page); then one memcmp tells how far it goes.
 * Nothing links a run to the run before it: the prior key says all that matters, so a run is
 * right whoever else is evicted, and a prompt that leaves a run in its middle needs no split:
 *
 *     prompt 1    [ 0  1  2  3  4 ]                 run, prior: none
 *     prompt 2      0  1 [ 2' 3' ]                  run, prior: key of page 1
 *
 * A run that ends where a prompt goes on is replaced by a longer one, up to a size that keeps
 * eviction fine-grained, so a conversation that grows by a page a turn still ends up in long
 * runs.
 *
 * Order of eviction: the list goes from the run used last to the coldest.  A call puts each
 * run of its prompt right behind the one before it, so heads are always warmer than their
 * tails, and the coldest tail goes first.  A call never evicts a run of its own prompt: what
 * does not fit is not remembered.
 *
 * Invariants, checked by kvi_page_memo_check():
 *
 *     M1  memory_bytes is the sum of all allocations, and at most memory_bytes_max.
 *     M2  A run is in the list once, and once in the bucket of its hash.
 *     M3  A run has 1 to run_pages_max pages.
 *     M4  The keys of a run are those of its tokens after its prior.
 *     M5  No two runs begin with the same prior and the same first page.
 *
 * Threads: one at a time.  Not here: pairs of prompts at once (kvg_page_keys_batch).
 */
#include "page/memo.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/rng.h"

#define MEMORY_BYTES_DEFAULT ((size_t)64 << 20)
#define RUN_BYTES_AIM 32768u /* A run is not extended beyond about this. */
#define BYTES_PER_BUCKET 1024u

struct run {
    struct run *bucket_next;
    struct run *warmer;
    struct run *colder;
    uint64_t hash;
    uint64_t call; /* The last call whose prompt it is part of. */
    uint32_t page_count;
    bool has_prior;
    struct kvg_key prior;
    struct kvg_key keys[]; /* page_count of them, then the tokens. */
};

struct kvg_page_memo {
    const struct kvg_alloc *alloc;
    struct kvg_page_rule rule;
    size_t memory_bytes_max;
    size_t memory_bytes;
    uint32_t run_pages_max;
    uint64_t secrets[4];
    struct run **buckets;
    size_t bucket_count; /* A power of two. */
    struct run *warmest;
    struct run *coldest;
    uint64_t call;
    uint64_t pages_reused;
    uint64_t pages_hashed;
    uint64_t pages_evicted;
};

/* A prompt while it is looked up and remembered. */
struct prompt {
    const struct kvg_key *prior; /* Before page 0, or NULL. */
    const uint32_t *tokens;
    struct kvg_key *keys;
    size_t page_count;
};

/* Tokens that `page_count` consecutive pages are made of. */
static size_t span_tokens(const struct kvg_page_memo *memo, size_t page_count)
{
    return page_count * memo->rule.page_size + (memo->rule.eagle ? 1 : 0);
}

static size_t span_bytes(const struct kvg_page_memo *memo, size_t page_count)
{
    return span_tokens(memo, page_count) * sizeof(uint32_t);
}

static size_t run_bytes(const struct kvg_page_memo *memo, size_t page_count)
{
    return sizeof(struct run) + page_count * sizeof(struct kvg_key) +
           span_bytes(memo, page_count);
}

static const void *run_tokens(const struct run *run)
{
    return run->keys + run->page_count;
}

static void *run_tokens_write(struct run *run)
{
    return run->keys + run->page_count;
}

static const uint32_t *page_tokens(
    const struct kvg_page_memo *memo, const struct prompt *prompt, size_t page)
{
    return prompt->tokens + page * memo->rule.page_size;
}

static const struct kvg_key *page_prior(const struct prompt *prompt, size_t page)
{
    return page == 0 ? prompt->prior : &prompt->keys[page - 1];
}

static uint64_t load64(const void *at)
{
    uint64_t word;

    memcpy(&word, at, sizeof(word));
    return word;
}

static uint64_t fold(uint64_t a, uint64_t b)
{
    kvi_u128 product = (kvi_u128)a * b;

    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* A hash of the page that begins a run, and of what is before it.  Keyed with a secret, so
 * that nobody can crowd a bucket; what is found is compared in full all the same. */
static uint64_t hash_start(
    const struct kvg_page_memo *memo, const struct kvg_key *prior, const uint32_t *tokens)
{
    const uint8_t *at = (const uint8_t *)tokens;
    size_t left = span_bytes(memo, 1);
    uint64_t a = memo->secrets[0];
    uint64_t b = memo->secrets[1];

    if (prior != NULL)
        a ^= fold(load64(prior->bytes) ^ memo->secrets[2], memo->secrets[3]) | 1;
    for (; left >= 32; left -= 32, at += 32) {
        a = fold(load64(at) ^ memo->secrets[2], load64(at + 8) ^ a);
        b = fold(load64(at + 16) ^ memo->secrets[3], load64(at + 24) ^ b);
    }
    for (; left != 0; left -= 4, at += 4) {
        uint32_t word;

        memcpy(&word, at, sizeof(word));
        a = fold(a ^ word, memo->secrets[2]);
    }
    return fold(a ^ memo->secrets[3], b ^ memo->secrets[2]);
}

static void list_remove(struct kvg_page_memo *memo, struct run *run)
{
    if (run->warmer != NULL)
        run->warmer->colder = run->colder;
    else
        memo->warmest = run->colder;
    if (run->colder != NULL)
        run->colder->warmer = run->warmer;
    else
        memo->coldest = run->warmer;
}

/* Right behind `before`, or at the warm end if that is NULL. */
static void list_insert(struct kvg_page_memo *memo, struct run *run, struct run *before)
{
    run->warmer = before;
    run->colder = before == NULL ? memo->warmest : before->colder;
    if (run->colder != NULL)
        run->colder->warmer = run;
    else
        memo->coldest = run;
    if (before != NULL)
        before->colder = run;
    else
        memo->warmest = run;
}

static struct run **bucket_of(const struct kvg_page_memo *memo, uint64_t hash)
{
    return &memo->buckets[hash & (memo->bucket_count - 1)];
}

static void forget(struct kvg_page_memo *memo, struct run *run)
{
    struct run **link = bucket_of(memo, run->hash);
    size_t bytes = run_bytes(memo, run->page_count);

    while (*link != run)
        link = &(*link)->bucket_next;
    *link = run->bucket_next;
    list_remove(memo, run);
    memo->memory_bytes -= bytes;
    kvi_release_array(memo->alloc, run, bytes, 1);
}

/* Evicts until `bytes` more fit.  False if only runs of this call's prompt are left. */
static bool make_room(struct kvg_page_memo *memo, size_t bytes)
{
    if (bytes > memo->memory_bytes_max)
        return false;
    while (memo->memory_bytes > memo->memory_bytes_max - bytes) {
        struct run *run = memo->coldest;

        if (run == NULL || run->call == memo->call)
            return false;
        memo->pages_evicted += run->page_count;
        forget(memo, run);
    }
    return true;
}

/* The run that begins with page `page` of the prompt, or NULL.  Sets *hash_out. */
static struct run *find(const struct kvg_page_memo *memo, const struct prompt *prompt,
    size_t page, uint64_t *hash_out)
{
    const struct kvg_key *prior = page_prior(prompt, page);
    const uint32_t *tokens = page_tokens(memo, prompt, page);
    uint64_t hash = hash_start(memo, prior, tokens);
    struct run *run;

    *hash_out = hash;
    for (run = *bucket_of(memo, hash); run != NULL; run = run->bucket_next) {
        if (run->hash == hash && run->has_prior == (prior != NULL) &&
            (prior == NULL || memcmp(&run->prior, prior, sizeof(*prior)) == 0) &&
            memcmp(run_tokens(run), tokens, span_bytes(memo, 1)) == 0)
            return run;
    }
    return NULL;
}

/* How many pages of the run the prompt has from `page` on.  The first is known to match. */
static size_t match_run(const struct kvg_page_memo *memo, const struct run *run,
    const struct prompt *prompt, size_t page)
{
    const uint8_t *ours = run_tokens(run);
    const uint8_t *theirs = (const uint8_t *)page_tokens(memo, prompt, page);
    size_t left = prompt->page_count - page;
    size_t count = run->page_count < left ? run->page_count : left;
    size_t matched = 1;

    if (memcmp(ours, theirs, span_bytes(memo, count)) == 0)
        return count;
    while (matched < count) {
        size_t skipped = matched * memo->rule.page_size * sizeof(uint32_t);

        if (memcmp(ours + skipped, theirs + skipped, span_bytes(memo, 1)) != 0)
            break;
        matched++;
    }
    return matched;
}

/* Makes a run of `count` pages and puts it behind `before`.  NULL without room or memory. */
static struct run *add(struct kvg_page_memo *memo, const struct prompt *prompt,
    size_t page, size_t count, uint64_t hash, struct run *before)
{
    const struct kvg_key *prior = page_prior(prompt, page);
    size_t bytes = run_bytes(memo, count);
    struct run **bucket = bucket_of(memo, hash);
    struct run *run;

    if (!make_room(memo, bytes))
        return NULL;
    run = kvi_alloc_array_raw(memo->alloc, bytes, 1);
    if (run == NULL)
        return NULL;
    *run = (struct run){.bucket_next = *bucket,
        .hash = hash,
        .call = memo->call,
        .page_count = (uint32_t)count,
        .has_prior = prior != NULL};
    if (prior != NULL)
        run->prior = *prior;
    memcpy(run->keys, prompt->keys + page, count * sizeof(run->keys[0]));
    memcpy(
        run_tokens_write(run), page_tokens(memo, prompt, page), span_bytes(memo, count));
    *bucket = run;
    memo->memory_bytes += bytes;
    list_insert(memo, run, before);
    return run;
}

/* Marks a run as part of this call's prompt, behind the part before it. */
static void touch(struct kvg_page_memo *memo, struct run *run, struct run *before)
{
    run->call = memo->call;
    list_remove(memo, run);
    list_insert(memo, run, before);
}

/* Where the walk over a prompt stands. */
struct walk {
    size_t page;       /* Pages passed. */
    struct run *last;  /* The run the last of them is in, or NULL. */
    size_t last_start; /* Its first page in the prompt. */
    bool last_ended;   /* The walk passed all of it. */
};

/* Follows runs from where the walk stands, and copies their keys if `copy`. */
static void follow(struct kvg_page_memo *memo, const struct prompt *prompt,
    struct walk *walk, bool copy, uint64_t *hash_out)
{
    while (walk->page < prompt->page_count) {
        struct run *run = find(memo, prompt, walk->page, hash_out);
        size_t count;

        if (run == NULL)
            return;
        count = match_run(memo, run, prompt, walk->page);
        if (copy)
            memcpy(prompt->keys + walk->page, run->keys, count * sizeof(run->keys[0]));
        touch(memo, run, walk->last);
        walk->last = run;
        walk->last_start = walk->page;
        walk->last_ended = count == run->page_count;
        walk->page += count;
    }
}

/* Remembers the pages after those the walk has passed; their keys are known by now.
 * `hash` is that of the page the walk stands at. */
static void remember(struct kvg_page_memo *memo, const struct prompt *prompt,
    struct walk *walk, uint64_t hash)
{
    while (walk->page < prompt->page_count) {
        struct run *last = walk->last;
        size_t left = prompt->page_count - walk->page;
        size_t room = memo->run_pages_max;
        struct run *run;

        if (last != NULL && walk->last_ended && last->page_count < room) {
            size_t count = last->page_count;

            room -= count;
            count += left < room ? left : room;
            run = add(memo, prompt, walk->last_start, count, last->hash, last);
            if (run == NULL)
                return;
            forget(memo, last);
            walk->page = walk->last_start + count;
        } else {
            size_t count = left < room ? left : room;

            run = add(memo, prompt, walk->page, count, hash, last);
            if (run == NULL)
                return;
            walk->last_start = walk->page;
            walk->page += count;
        }
        walk->last = run;
        walk->last_ended = true;
        follow(memo, prompt, walk, false, &hash);
    }
}

size_t kvg_page_memo_keys(struct kvg_page_memo *memo, const struct kvg_key *prior,
    const uint32_t *tokens, size_t token_count, struct kvg_key *keys, size_t key_max)
{
    struct prompt prompt = {
        prior, tokens, keys, kvg_page_count(&memo->rule, token_count)};
    struct walk walk = {0};
    uint64_t hash = 0;
    size_t known;

    if (prompt.page_count > key_max)
        prompt.page_count = key_max;
    memo->call++;
    follow(memo, &prompt, &walk, true, &hash);
    known = walk.page;
    memo->pages_reused += known;
    if (known == prompt.page_count)
        return known;
    kvg_page_keys(&memo->rule, page_prior(&prompt, known),
        page_tokens(memo, &prompt, known), token_count - known * memo->rule.page_size,
        keys + known, prompt.page_count - known);
    memo->pages_hashed += prompt.page_count - known;
    remember(memo, &prompt, &walk, hash);
    return prompt.page_count;
}

kvg_err kvg_page_memo_new(const struct kvg_alloc *alloc,
    const struct kvg_page_memo_options *options, struct kvg_page_memo **out)
{
    size_t bytes_max = options->memory_bytes_max;
    struct kvi_rng rng = {options->seed};
    struct kvg_page_memo *memo;
    size_t bucket_count = 1;
    size_t page_bytes;
    size_t i;

    *out = NULL;
    if (options->struct_bytes < sizeof(*options))
        return KVG_EINVAL;
    if (options->rule.page_size < 1 || options->rule.page_size > KVG_PAGE_SIZE_MAX)
        return KVG_EINVAL;
    if (bytes_max == 0)
        bytes_max = MEMORY_BYTES_DEFAULT;
    if (bytes_max < KVG_PAGE_MEMO_BYTES_MIN)
        return KVG_EINVAL;
    while (bucket_count < bytes_max / BYTES_PER_BUCKET)
        bucket_count *= 2;
    memo = KVI_NEW(alloc, struct kvg_page_memo);
    if (memo == NULL)
        return KVG_ENOMEM;
    memo->buckets = kvi_alloc_array(alloc, bucket_count, sizeof(struct run *));
    if (memo->buckets == NULL) {
        KVI_FREE(alloc, memo);
        return KVG_ENOMEM;
    }
    memo->alloc = alloc;
    memo->rule = options->rule;
    memo->bucket_count = bucket_count;
    memo->memory_bytes_max = bytes_max;
    memo->memory_bytes = sizeof(*memo) + bucket_count * sizeof(struct run *);
    page_bytes = memo->rule.page_size * sizeof(uint32_t) + sizeof(struct kvg_key);
    memo->run_pages_max =
        page_bytes < RUN_BYTES_AIM ? (uint32_t)(RUN_BYTES_AIM / page_bytes) : 1;
    for (i = 0; i < 4; i++)
        memo->secrets[i] = kvi_rng_next(&rng);
    *out = memo;
    return KVG_OK;
}

void kvg_page_memo_free(struct kvg_page_memo *memo)
{
    if (memo == NULL)
        return;
    while (memo->warmest != NULL)
        forget(memo, memo->warmest);
    kvi_release_array(
        memo->alloc, memo->buckets, memo->bucket_count, sizeof(struct run *));
    KVI_FREE(memo->alloc, memo);
}

void kvg_page_memo_stats(
    const struct kvg_page_memo *memo, struct kvg_page_memo_stats *out)
{
    struct kvg_page_memo_stats stats = {
        .struct_bytes = out->struct_bytes,
        .pages_reused = memo->pages_reused,
        .pages_hashed = memo->pages_hashed,
        .pages_evicted = memo->pages_evicted,
        .memory_bytes = memo->memory_bytes,
    };

    memcpy(out, &stats,
        out->struct_bytes < sizeof(stats) ? out->struct_bytes : sizeof(stats));
}

/* M2 and M5 for one run: it is in its bucket once, and nobody there begins like it. */
static const char *check_bucket(const struct kvg_page_memo *memo, const struct run *run)
{
    size_t bytes = span_bytes(memo, 1);
    const struct run *other;
    size_t found = 0;

    for (other = *bucket_of(memo, run->hash); other != NULL; other = other->bucket_next) {
        if (other == run)
            found++;
        else if (other->has_prior == run->has_prior &&
                 memcmp(&other->prior, &run->prior, sizeof(run->prior)) == 0 &&
                 memcmp(run_tokens(other), run_tokens(run), bytes) == 0)
            return "M5: two runs begin alike";
    }
    return found == 1 ? NULL : "M2: a run is not once in its bucket";
}

/* M4, page by page: the check needs no memory. */
static const char *check_keys(const struct kvg_page_memo *memo, const struct run *run)
{
    const struct kvg_key *prior = run->has_prior ? &run->prior : NULL;
    const uint32_t *tokens = run_tokens(run);
    size_t page;

    for (page = 0; page < run->page_count; page++) {
        struct kvg_key key;

        kvg_page_keys(&memo->rule, prior, tokens + page * memo->rule.page_size,
            span_tokens(memo, 1), &key, 1);
        if (memcmp(&key, &run->keys[page], sizeof(key)) != 0)
            return "M4: a key is not that of its tokens";
        prior = &run->keys[page];
    }
    return NULL;
}

const char *kvi_page_memo_check(const struct kvg_page_memo *memo)
{
    size_t bytes = sizeof(*memo) + memo->bucket_count * sizeof(struct run *);
    size_t in_list = 0;
    size_t in_buckets = 0;
    const struct run *run;
    size_t i;

    for (run = memo->warmest; run != NULL; run = run->colder) {
        const char *broken = check_bucket(memo, run);

        if (broken == NULL &&
            (run->page_count < 1 || run->page_count > memo->run_pages_max))
            broken = "M3: a run is empty or too long";
        if (broken == NULL)
            broken = check_keys(memo, run);
        if (broken != NULL)
            return broken;
        if ((run->colder == NULL ? memo->coldest : run->colder->warmer) != run)
            return "M2: the list is torn";
        bytes += run_bytes(memo, run->page_count);
        in_list++;
    }
    for (i = 0; i < memo->bucket_count; i++) {
        for (run = memo->buckets[i]; run != NULL; run = run->bucket_next)
            in_buckets++;
    }
    if (in_list != in_buckets)
        return "M2: a run is in a bucket and not in the list";
    if (bytes != memo->memory_bytes || bytes > memo->memory_bytes_max)
        return "M1: memory is not what is counted, or too much";
    return NULL;
}

bool kvi_page_memo_damage(struct kvg_page_memo *memo)
{
    if (memo->coldest == NULL)
        return false;
    memo->coldest->keys[0].bytes[5] ^= 1;
    return true;
}
