/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* freemap.c -- which pages are free (freemap.h).
 *
 * A bit a page, and above it what finds a run of the right size without a walk:
 *
 *     blocks       1                    0                   4,096 pages free: a word
 *                  |                    |                   of `whole` of all ones
 *     whole        11111111...1         01100000...0        64 pages free
 *                  |                    |||
 *     free         1111...1 1111...1    0000...0 1111...1 1111...1 0110...1
 *     mixed        0        0           0        0        0        1
 *
 * `mixed` are the words of `free` that are begun, `whole_mixed` the words of `whole`
 * that are.  A request looks where runs of its own size are likely, and breaks a
 * larger one only if it finds none, so that small requests fill the gaps and large
 * ones find the plain:
 *
 *     1   4,096 pages and more: the first run of blocks that is long enough, among the
 *         first BLOCK_PROBES_MAX; else the longest of them.
 *     2   64 and more: the first run of whole words that is long enough, in PROBES_MAX
 *         begun words of `whole` from the cursor on; else a block; else all whole words
 *         of the best of those looked at.
 *     3   fewer: the first run long enough in PROBES_MAX begun words of `free` from the
 *         cursor on, which may reach into the next word; else a whole word; else all
 *         free pages of the best word looked at.
 *
 * A run found in steps 1 to 3 is made as long as the request, forwards, then
 * backwards.  The cost of a request is a few words for each run, and a word for each
 * 64 pages.
 *
 * Invariants, checked by kvi_freemap_check():
 *
 *     1  No bit beyond the last page is set.
 *     2  free_count is the number of bits set in `free`.
 *     3  `mixed` holds exactly the words of `free` that are neither 0 nor all ones.
 *     4  `whole` holds exactly those that are all ones.
 *     5  `whole_mixed` and `blocks` are the same for `whole`.
 *     6  The upper levels of the three sets agree with the lower ones.
 *
 * Not here: slots, spans, limits, refusals (slots.c); whoever calls has checked.
 */
#include "slots/freemap.h"

#include "base/alloc.h"
#include "base/assert.h"

#define PROBES_MAX 8
#define BLOCK_PROBES_MAX 256
#define BLOCK_PAGES ((uint64_t)KVI_WORD_BITS * KVI_WORD_BITS)

static uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

bool kvi_freemap_init(
    struct kvi_freemap *map, const struct kvg_alloc *alloc, uint64_t page_count)
{
    uint64_t words = kvi_words_for(page_count);

    KVI_ASSERT(page_count > 0);
    *map = (struct kvi_freemap){.page_count = page_count};
    map->free = kvi_alloc_array(alloc, words, sizeof(uint64_t));
    map->whole = kvi_alloc_array(alloc, kvi_words_for(words), sizeof(uint64_t));
    if (map->free == NULL || map->whole == NULL ||
        !kvi_bitset_init(&map->mixed, alloc, words) ||
        !kvi_bitset_init(&map->whole_mixed, alloc, kvi_words_for(words)) ||
        !kvi_bitset_init(&map->blocks, alloc, kvi_words_for(words)))
        return false;
    kvi_freemap_put(map, (struct kvi_run){0, page_count});
    return true;
}

static void clear_words(uint64_t *words, uint64_t count)
{
    memset(words, 0, count * sizeof(*words));
}

void kvi_freemap_reset(struct kvi_freemap *map)
{
    uint64_t words = kvi_words_for(map->page_count);

    clear_words(map->free, words);
    clear_words(map->whole, kvi_words_for(words));
    clear_words(map->mixed.level[0], map->mixed.word_count);
    clear_words(map->whole_mixed.level[0], map->whole_mixed.word_count);
    clear_words(map->blocks.level[0], map->blocks.word_count);
    map->free_count = 0;
    map->cursor = 0;
    map->whole_cursor = 0;
    kvi_freemap_put(map, (struct kvi_run){0, map->page_count});
}

void kvi_freemap_fini(struct kvi_freemap *map, const struct kvg_alloc *alloc)
{
    uint64_t words = kvi_words_for(map->page_count);

    kvi_release_array(alloc, map->free, words, sizeof(uint64_t));
    kvi_release_array(alloc, map->whole, kvi_words_for(words), sizeof(uint64_t));
    kvi_bitset_fini(&map->mixed, alloc);
    kvi_bitset_fini(&map->whole_mixed, alloc);
    kvi_bitset_fini(&map->blocks, alloc);
    *map = (struct kvi_freemap){0};
}

static void set_member(struct kvi_bitset *set, uint64_t index, bool member)
{
    if (member)
        kvi_bitset_add(set, index);
    else
        kvi_bitset_remove(set, index);
}

/* Sets or clears `mask` in word `u` of `whole`, and restores invariants 5 and 6. */
static void change_whole(struct kvi_freemap *map, uint64_t u, uint64_t mask, bool set)
{
    uint64_t old = map->whole[u];
    uint64_t now = set ? old | mask : old & ~mask;

    if (now == old)
        return;
    map->whole[u] = now;
    set_member(&map->whole_mixed, u, now != 0 && now != UINT64_MAX);
    set_member(&map->blocks, u, now == UINT64_MAX);
}

/* Changes part of a word, or all of it, and restores invariants 3 to 6. */
static void write_part(struct kvi_freemap *map, uint64_t w, uint64_t mask, bool is_free)
{
    uint64_t word = map->free[w];

    KVI_ASSERT((word & mask) == (is_free ? 0 : mask));
    word ^= mask;
    map->free[w] = word;
    set_member(&map->mixed, w, word != 0 && word != UINT64_MAX);
    change_whole(
        map, w / KVI_WORD_BITS, UINT64_C(1) << (w % KVI_WORD_BITS), word == UINT64_MAX);
}

/* Changes words [w, end) from all used to all free or back: none of them is begun before
 * or after, so only `whole` follows, 64 words at a time. */
static void write_words(struct kvi_freemap *map, uint64_t w, uint64_t end, bool is_free)
{
    uint64_t before = is_free ? 0 : UINT64_MAX;
    uint64_t i;

    for (i = w; i < end; i++) {
        KVI_ASSERT(map->free[i] == before);
        map->free[i] = ~before;
    }
    while (w < end) {
        unsigned low = (unsigned)(w % KVI_WORD_BITS);
        unsigned count = (unsigned)min_u64(KVI_WORD_BITS - low, end - w);

        change_whole(map, w / KVI_WORD_BITS, kvi_word_mask(low, count), is_free);
        w += count;
    }
}

static void write_run(struct kvi_freemap *map, struct kvi_run run, bool is_free)
{
    uint64_t end = run.first + run.count;
    uint64_t w = run.first / KVI_WORD_BITS;
    uint64_t last = end / KVI_WORD_BITS; /* The word in which the run ends. */
    unsigned low = (unsigned)(run.first % KVI_WORD_BITS);
    unsigned high = (unsigned)(end % KVI_WORD_BITS);

    KVI_ASSERT(end <= map->page_count && run.first <= end);
    if (run.count == 0)
        return;
    if (w == last) {
        write_part(map, w, kvi_word_mask(low, high - low), is_free);
        return;
    }
    if (low != 0)
        write_part(map, w, kvi_word_mask(low, KVI_WORD_BITS - low), is_free);
    write_words(map, w + (low != 0), last, is_free);
    if (high != 0)
        write_part(map, last, kvi_word_mask(0, high), is_free);
}

void kvi_freemap_put(struct kvi_freemap *map, struct kvi_run run)
{
    write_run(map, run, true);
    map->free_count += run.count;
}

void kvi_freemap_use(struct kvi_freemap *map, struct kvi_run run)
{
    write_run(map, run, false);
    map->free_count -= run.count;
}

uint64_t kvi_freemap_first_free(const struct kvi_freemap *map, struct kvi_run run)
{
    uint64_t page = run.first;
    uint64_t end = run.first + run.count;

    while (page < end) {
        unsigned low = (unsigned)(page % KVI_WORD_BITS);
        unsigned count = (unsigned)min_u64(KVI_WORD_BITS - low, end - page);
        uint64_t found = map->free[page / KVI_WORD_BITS] & kvi_word_mask(low, count);

        if (found != 0)
            return page - low + kvi_low_zeros(found);
        page += count;
    }
    return KVI_NONE;
}

/* How many pages from `page` on are free, at most `max`. */
static uint64_t free_after(const struct kvi_freemap *map, uint64_t page, uint64_t max)
{
    uint64_t count = 0;

    while (count < max && page + count < map->page_count) {
        uint64_t at = page + count;
        unsigned low = (unsigned)(at % KVI_WORD_BITS);
        unsigned ones = kvi_low_ones(map->free[at / KVI_WORD_BITS] >> low);

        count += ones;
        if (low + ones < KVI_WORD_BITS)
            break;
    }
    return min_u64(count, max);
}

/* How many pages before `page` are free, at most `max`, in the word where it begins. */
static uint64_t free_before(const struct kvi_freemap *map, uint64_t page, uint64_t max)
{
    unsigned low = (unsigned)(page % KVI_WORD_BITS);

    if (low != 0 || page == 0)
        return 0;
    return min_u64(kvi_high_ones(map->free[page / KVI_WORD_BITS - 1]), max);
}

/* Step 2 and 3: looks at words of `words` that are in `begun`, from *cursor on, for
 * `count` bits in a row.  The bit's index, or KVI_NONE and in *best the word with
 * most bits. */
static uint64_t probe(const uint64_t *words, uint64_t word_count,
    const struct kvi_bitset *begun, uint64_t *cursor, unsigned count, uint64_t *best)
{
    uint64_t w = kvi_bitset_next(begun, *cursor);
    bool wrapped = false;
    unsigned best_bits = 0;
    int i;

    *best = KVI_NONE;
    for (i = 0; i < PROBES_MAX; i++) {
        unsigned place;
        unsigned high;

        if (w == KVI_NONE && !wrapped) {
            wrapped = true;
            w = kvi_bitset_next(begun, 0);
        }
        if (w == KVI_NONE || (wrapped && w >= *cursor))
            return KVI_NONE;
        place = kvi_word_find_run(words[w], count);
        high = kvi_high_ones(words[w]);
        if (place == KVI_WORD_BITS && w + 1 < word_count &&
            high + kvi_low_ones(words[w + 1]) >= count && high > 0)
            place = KVI_WORD_BITS - high;
        if (place < KVI_WORD_BITS) {
            *cursor = w;
            return w * KVI_WORD_BITS + place;
        }
        if (kvi_word_count(words[w]) > best_bits) {
            best_bits = kvi_word_count(words[w]);
            *best = w;
        }
        w = kvi_bitset_next(begun, w + 1);
    }
    return KVI_NONE;
}

/* Step 1: the first run of at least `count` blocks, or the longest seen.  The block,
 * or KVI_NONE if there is none. */
static uint64_t find_blocks(const struct kvi_freemap *map, uint64_t count)
{
    const uint64_t *words = map->blocks.level[0];
    uint64_t block = kvi_bitset_next(&map->blocks, 0);
    uint64_t best = KVI_NONE;
    uint64_t best_length = 0;
    int i;

    for (i = 0; i < BLOCK_PROBES_MAX && block != KVI_NONE; i++) {
        uint64_t end = block;

        while (end < map->blocks.bit_count && end - block < count && kvi_bit(words, end))
            end++;
        if (end - block > best_length) {
            best_length = end - block;
            best = block;
        }
        if (best_length >= count)
            break;
        block = kvi_bitset_next(&map->blocks, end);
    }
    return best;
}

/* A whole word of `free`, from a begun word of `whole` if there is one.  Its index. */
static uint64_t find_whole(const struct kvi_freemap *map)
{
    uint64_t u = kvi_bitset_next(&map->whole_mixed, 0);

    if (u == KVI_NONE)
        u = kvi_bitset_next(&map->blocks, 0);
    return u == KVI_NONE ? KVI_NONE : u * KVI_WORD_BITS + kvi_low_zeros(map->whole[u]);
}

/* Takes one run that holds `page`, as long as the request if it can be. */
static size_t take_at(struct kvi_freemap *map, uint64_t page, uint64_t want,
    struct kvi_run runs[KVI_TAKE_RUNS])
{
    uint64_t count = free_after(map, page, want);
    uint64_t before = count < want ? free_before(map, page, want - count) : 0;

    runs[0] = (struct kvi_run){page - before, count + before};
    kvi_freemap_use(map, runs[0]);
    return 1;
}

/* Takes the runs of ones in `word`, each bit of which stands for `unit` pages and
 * the lowest of which begins at page `first`, until `want` pages are taken. */
static size_t take_word(struct kvi_freemap *map, uint64_t word, uint64_t first,
    uint64_t unit, uint64_t want, struct kvi_run runs[KVI_TAKE_RUNS])
{
    size_t taken = 0;

    while (word != 0 && want > 0) {
        unsigned low = kvi_low_zeros(word);
        unsigned ones = kvi_low_ones(word >> low);
        struct kvi_run run = {first + low * unit, min_u64(ones * unit, want)};

        KVI_ASSERT(taken < KVI_TAKE_RUNS);
        kvi_freemap_use(map, run);
        runs[taken++] = run;
        want -= run.count;
        word &= ~kvi_word_mask(low, ones);
    }
    return taken;
}

/* Step 3, and what is left of step 2 if no whole word is free. */
static size_t take_small(
    struct kvi_freemap *map, uint64_t want, struct kvi_run runs[KVI_TAKE_RUNS])
{
    uint64_t words = kvi_words_for(map->page_count);
    unsigned count = (unsigned)min_u64(want, KVI_WORD_BITS);
    uint64_t best;
    uint64_t page = probe(map->free, words, &map->mixed, &map->cursor, count, &best);

    if (page == KVI_NONE) {
        uint64_t w = find_whole(map);

        if (w != KVI_NONE)
            page = w * KVI_WORD_BITS;
    }
    if (page != KVI_NONE)
        return take_at(map, page, want, runs);
    KVI_ASSERT(best != KVI_NONE);
    map->cursor = best;
    return take_word(map, map->free[best], best * KVI_WORD_BITS, 1, want, runs);
}

/* Steps 1 and 2. */
static size_t take_large(
    struct kvi_freemap *map, uint64_t want, struct kvi_run runs[KVI_TAKE_RUNS])
{
    uint64_t words = kvi_words_for(map->page_count);
    unsigned count = (unsigned)min_u64(want / KVI_WORD_BITS, KVI_WORD_BITS);
    uint64_t block = KVI_NONE;
    uint64_t best = KVI_NONE;
    uint64_t w = KVI_NONE;

    if (want >= BLOCK_PAGES)
        block = find_blocks(map, want / BLOCK_PAGES);
    if (block == KVI_NONE)
        w = probe(map->whole, kvi_words_for(words), &map->whole_mixed, &map->whole_cursor,
            count, &best);
    if (block == KVI_NONE && w == KVI_NONE)
        block = kvi_bitset_next(&map->blocks, 0);
    if (block != KVI_NONE)
        return take_at(map, block * BLOCK_PAGES, want, runs);
    if (w != KVI_NONE)
        return take_at(map, w * KVI_WORD_BITS, want, runs);
    if (best == KVI_NONE)
        return take_small(map, want, runs);
    return take_word(
        map, map->whole[best], best * BLOCK_PAGES, KVI_WORD_BITS, want, runs);
}

size_t kvi_freemap_take(struct kvi_freemap *map, uint64_t want, uint64_t hint,
    struct kvi_run runs[KVI_TAKE_RUNS])
{
    KVI_ASSERT(want >= 1 && want <= map->free_count);
    if (hint < map->page_count && kvi_bit(map->free, hint)) {
        runs[0] = (struct kvi_run){hint, free_after(map, hint, want)};
        kvi_freemap_use(map, runs[0]);
        return 1;
    }
    if (want >= KVI_WORD_BITS)
        return take_large(map, want, runs);
    return take_small(map, want, runs);
}

int kvi_freemap_check(const struct kvi_freemap *map)
{
    uint64_t words = kvi_words_for(map->page_count);
    uint64_t units = kvi_words_for(words);
    uint64_t count = 0;
    uint64_t i;

    if ((map->page_count % KVI_WORD_BITS != 0 &&
            map->free[words - 1] >> (map->page_count % KVI_WORD_BITS) != 0) ||
        (words % KVI_WORD_BITS != 0 &&
            map->whole[units - 1] >> (words % KVI_WORD_BITS) != 0))
        return 1;
    for (i = 0; i < words; i++)
        count += kvi_word_count(map->free[i]);
    if (count != map->free_count)
        return 2;
    for (i = 0; i < words; i++) {
        uint64_t word = map->free[i];

        if (kvi_bitset_has(&map->mixed, i) != (word != 0 && word != UINT64_MAX))
            return 3;
        if (kvi_bit(map->whole, i) != (word == UINT64_MAX))
            return 4;
    }
    for (i = 0; i < units; i++) {
        uint64_t word = map->whole[i];

        if (kvi_bitset_has(&map->whole_mixed, i) != (word != 0 && word != UINT64_MAX) ||
            kvi_bitset_has(&map->blocks, i) != (word == UINT64_MAX))
            return 5;
    }
    if (!kvi_bitset_check(&map->mixed) || !kvi_bitset_check(&map->whole_mixed) ||
        !kvi_bitset_check(&map->blocks))
        return 6;
    return 0;
}
