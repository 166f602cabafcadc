/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* sha256_arm.c -- SHA-256 with the ARMv8 cryptography extension.
 *
 * The build compiles this file alone with the extension enabled; nothing in it runs before
 * kvi_sha256_hardware() has found it in the identification register, which Linux lets every
 * process read (4.11 and later).
 */
#include "page/sha256.h"

#include <arm_neon.h>
#include <string.h>

#define TARGET
#define INLINE static inline __attribute__((always_inline))

typedef uint32x4_t quad;
typedef struct {
    uint32x4_t abcd;
    uint32x4_t efgh;
} hash;

INLINE quad load_raw(const void *at)
{
    return vreinterpretq_u32_u8(vld1q_u8(at));
}

INLINE void store_raw(void *at, quad q)
{
    vst1q_u8(at, vreinterpretq_u8_u32(q));
}

INLINE quad load_pair(const uint32_t *at)
{
    return vcombine_u32(vld1_u32(at), vld1_u32(at + 1));
}

INLINE quad words(quad q)
{
    return vreinterpretq_u32_u8(vrev32q_u8(vreinterpretq_u8_u32(q)));
}

INLINE hash hash_start(void)
{
    static const uint32_t START[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
        0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

    return (hash){vld1q_u32(START), vld1q_u32(START + 4)};
}

INLINE void hash_words(hash h, quad *w0, quad *w1)
{
    *w0 = h.abcd;
    *w1 = h.efgh;
}

/* Four rounds with message words `m` and the constants of group `g`. */
#define ROUNDS(h, m, g)                                              \
    do {                                                             \
        quad wk = vaddq_u32((m), vld1q_u32(&kvi_sha256_k[4 * (g)])); \
        quad abcd = (h).abcd;                                        \
                                                                     \
        (h).abcd = vsha256hq_u32(abcd, (h).efgh, wk);                \
        (h).efgh = vsha256h2q_u32((h).efgh, abcd, wk);               \
    } while (0)

/* The next four message words, in the place of the oldest. */
#define SCHEDULE(a, b, c, d) ((a) = vsha256su1q_u32(vsha256su0q_u32((a), (b)), (c), (d)))

#define STEP1(a, b, c, d, g)              \
    do {                                  \
        SCHEDULE(m[a], m[b], m[c], m[d]); \
        ROUNDS(s, m[a], g);               \
    } while (0)

INLINE void compress1(hash *h, quad m[4])
{
    hash s = *h;
    int g;

    ROUNDS(s, m[0], 0);
    ROUNDS(s, m[1], 1);
    ROUNDS(s, m[2], 2);
    ROUNDS(s, m[3], 3);
    for (g = 4; g < 16; g += 4) {
        STEP1(0, 1, 2, 3, g);
        STEP1(1, 2, 3, 0, g + 1);
        STEP1(2, 3, 0, 1, g + 2);
        STEP1(3, 0, 1, 2, g + 3);
    }
    h->abcd = vaddq_u32(h->abcd, s.abcd);
    h->efgh = vaddq_u32(h->efgh, s.efgh);
}

#define ROUNDS2(i, g)       \
    do {                    \
        ROUNDS(s, m[i], g); \
        ROUNDS(t, n[i], g); \
    } while (0)

#define STEP2(a, b, c, d, g)              \
    do {                                  \
        SCHEDULE(m[a], m[b], m[c], m[d]); \
        SCHEDULE(n[a], n[b], n[c], n[d]); \
        ROUNDS2(a, g);                    \
    } while (0)

INLINE void compress2(hash *h, quad m[4], hash *other, quad n[4])
{
    hash s = *h;
    hash t = *other;
    int g;

    ROUNDS2(0, 0);
    ROUNDS2(1, 1);
    ROUNDS2(2, 2);
    ROUNDS2(3, 3);
    for (g = 4; g < 16; g += 4) {
        STEP2(0, 1, 2, 3, g);
        STEP2(1, 2, 3, 0, g + 1);
        STEP2(2, 3, 0, 1, g + 2);
        STEP2(3, 0, 1, 2, g + 3);
    }
    h->abcd = vaddq_u32(h->abcd, s.abcd);
    h->efgh = vaddq_u32(h->efgh, s.efgh);
    other->abcd = vaddq_u32(other->abcd, t.abcd);
    other->efgh = vaddq_u32(other->efgh, t.efgh);
}

#include "page/chain_kernel.h"

static void compress(uint32_t state[8], const uint8_t *blocks, size_t block_count)
{
    hash h = {vld1q_u32(state), vld1q_u32(state + 4)};

    for (; block_count != 0; block_count--, blocks += KVI_SHA256_BLOCK_BYTES) {
        quad m[4] = {words(load_raw(blocks)), words(load_raw(blocks + 16)),
            words(load_raw(blocks + 32)), words(load_raw(blocks + 48))};

        compress1(&h, m);
    }
    vst1q_u32(state, h.abcd);
    vst1q_u32(state + 4, h.efgh);
}

static const struct kvi_sha256_path ARMV8 = {"armv8", compress, chain1, chain2};

const struct kvi_sha256_path *kvi_sha256_hardware(void)
{
    uint64_t features;

    __asm__("mrs %0, ID_AA64ISAR0_EL1" : "=r"(features));
    return (features >> 12 & 0xf) != 0 ? &ARMV8 : NULL; /* The field SHA2. */
}
