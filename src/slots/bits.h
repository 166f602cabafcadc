/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* bits.h -- words of bits, and a set of small numbers that finds its next member in
 * a few steps however large it is. */
#ifndef KVI_SLOTS_BITS_H
#define KVI_SLOTS_BITS_H

#include <kvgraft/base.h>

#define KVI_WORD_BITS 64u
#define KVI_NONE UINT64_MAX

static inline unsigned kvi_low_zeros(uint64_t word)
{
    return word == 0 ? KVI_WORD_BITS : (unsigned)__builtin_ctzll(word);
}

static inline unsigned kvi_low_ones(uint64_t word)
{
    return kvi_low_zeros(~word);
}

static inline unsigned kvi_high_ones(uint64_t word)
{
    return ~word == 0 ? KVI_WORD_BITS : (unsigned)__builtin_clzll(~word);
}

/* The number of bits set.  By hand: the builtin is a call into the compiler's library on
 * machines that need not have the instruction. */
static inline unsigned kvi_word_count(uint64_t word)
{
    word -= word >> 1 & UINT64_C(0x5555555555555555);
    word = (word & UINT64_C(0x3333333333333333)) +
           (word >> 2 & UINT64_C(0x3333333333333333));
    word = (word + (word >> 4)) & UINT64_C(0x0f0f0f0f0f0f0f0f);
    return (unsigned)((word * UINT64_C(0x0101010101010101)) >> 56);
}

/* Bits [low, low + count) of a word; count is 1 to 64, the end at most 64. */
static inline uint64_t kvi_word_mask(unsigned low, unsigned count)
{
    return (UINT64_MAX >> (KVI_WORD_BITS - count)) << low;
}

/* The lowest place where `count` (1 to 64) bits in a row are set, or 64. */
static inline unsigned kvi_word_find_run(uint64_t word, unsigned count)
{
    unsigned have = 1;

    while (have < count && word != 0) {
        unsigned step = have < count - have ? have : count - have;

        word &= word >> step;
        have += step;
    }
    return kvi_low_zeros(word);
}

static inline uint64_t kvi_words_for(uint64_t bits)
{
    return bits / KVI_WORD_BITS + (bits % KVI_WORD_BITS != 0);
}

static inline bool kvi_bit(const uint64_t *words, uint64_t index)
{
    return (words[index / KVI_WORD_BITS] >> (index % KVI_WORD_BITS) & 1) != 0;
}

/* Numbers 0 .. bit_count - 1.  Level 0 has a bit a number; a bit of level k + 1 says
 * that the word of level k is not zero.  Six levels reach 2^36 numbers. */
#define KVI_BITSET_LEVELS 6

struct kvi_bitset {
    uint64_t *level[KVI_BITSET_LEVELS]; /* All in one block, level[0] first. */
    uint64_t bit_count;
    uint64_t word_count; /* Of all levels together. */
    unsigned level_count;
};

/* An empty set.  False without memory; then _fini is allowed, as for a zeroed one. */
bool kvi_bitset_init(
    struct kvi_bitset *set, const struct kvg_alloc *alloc, uint64_t bit_count);
void kvi_bitset_fini(struct kvi_bitset *set, const struct kvg_alloc *alloc);

/* Adding a member, or removing a stranger, changes nothing. */
void kvi_bitset_add(struct kvi_bitset *set, uint64_t index);
void kvi_bitset_remove(struct kvi_bitset *set, uint64_t index);

/* The first member that is not below `from`, or KVI_NONE. */
uint64_t kvi_bitset_next(const struct kvi_bitset *set, uint64_t from);

/* Whether every upper bit tells the truth about the word below it. */
bool kvi_bitset_check(const struct kvi_bitset *set);

static inline bool kvi_bitset_has(const struct kvi_bitset *set, uint64_t index)
{
    return kvi_bit(set->level[0], index);
}

#endif
