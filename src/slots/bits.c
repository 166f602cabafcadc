/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* bits.c -- the bitset (bits.h). */
#include "slots/bits.h"

#include "base/alloc.h"
#include "base/assert.h"

bool kvi_bitset_init(
    struct kvi_bitset *set, const struct kvg_alloc *alloc, uint64_t bit_count)
{
    uint64_t sizes[KVI_BITSET_LEVELS];
    uint64_t words = kvi_words_for(bit_count);
    unsigned i;

    KVI_ASSERT(bit_count > 0 && bit_count <= UINT64_C(1) << 36);
    *set = (struct kvi_bitset){.bit_count = bit_count};
    for (;;) {
        sizes[set->level_count++] = words;
        set->word_count += words;
        if (words == 1)
            break;
        words = kvi_words_for(words);
    }
    set->level[0] = kvi_alloc_array(alloc, set->word_count, sizeof(uint64_t));
    if (set->level[0] == NULL)
        return false;
    for (i = 1; i < set->level_count; i++)
        set->level[i] = set->level[i - 1] + sizes[i - 1];
    return true;
}

void kvi_bitset_fini(struct kvi_bitset *set, const struct kvg_alloc *alloc)
{
    kvi_release_array(alloc, set->level[0], set->word_count, sizeof(uint64_t));
    *set = (struct kvi_bitset){0};
}

void kvi_bitset_add(struct kvi_bitset *set, uint64_t index)
{
    unsigned i;

    for (i = 0; i < set->level_count; i++) {
        uint64_t *word = &set->level[i][index / KVI_WORD_BITS];
        uint64_t old = *word;

        *word = old | UINT64_C(1) << (index % KVI_WORD_BITS);
        if (old != 0)
            return;
        index /= KVI_WORD_BITS;
    }
}

void kvi_bitset_remove(struct kvi_bitset *set, uint64_t index)
{
    unsigned i;

    for (i = 0; i < set->level_count; i++) {
        uint64_t *word = &set->level[i][index / KVI_WORD_BITS];

        *word &= ~(UINT64_C(1) << (index % KVI_WORD_BITS));
        if (*word != 0)
            return;
        index /= KVI_WORD_BITS;
    }
}

uint64_t kvi_bitset_next(const struct kvi_bitset *set, uint64_t from)
{
    uint64_t bits = set->bit_count;
    uint64_t index = from;
    unsigned i;

    for (i = 0; i < set->level_count && index < bits; i++) {
        uint64_t rest = set->level[i][index / KVI_WORD_BITS] >> (index % KVI_WORD_BITS);

        if (rest != 0) {
            index += kvi_low_zeros(rest);
            while (i-- > 0)
                index = index * KVI_WORD_BITS + kvi_low_zeros(set->level[i][index]);
            return index;
        }
        index = index / KVI_WORD_BITS + 1;
        bits = kvi_words_for(bits);
    }
    return KVI_NONE;
}

bool kvi_bitset_check(const struct kvi_bitset *set)
{
    uint64_t bits = set->bit_count;
    unsigned i;

    for (i = 0; i < set->level_count; i++) {
        uint64_t words = kvi_words_for(bits);
        uint64_t w;

        if (bits % KVI_WORD_BITS != 0 &&
            set->level[i][words - 1] >> (bits % KVI_WORD_BITS) != 0)
            return false;
        for (w = 0; i + 1 < set->level_count && w < words; w++)
            if ((set->level[i][w] != 0) != kvi_bit(set->level[i + 1], w))
                return false;
        bits = words;
    }
    return true;
}
