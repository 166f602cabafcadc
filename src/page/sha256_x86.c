/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* sha256_x86.c -- SHA-256 with the SHA extensions of x86-64 (SHA-NI).
 *
 * The instructions want the state in two registers as ABEF and CDGH, high lane first.  Two
 * rounds depend on the two before them and take four cycles, while the unit accepts a new
 * pair every two: one chain leaves half of it idle, two interleaved chains fill it.
 */
#include "page/sha256.h"

#include <cpuid.h>
#include <immintrin.h>
#include <string.h>

#define TARGET __attribute__((target("sha,sse4.1,ssse3")))
#define INLINE TARGET static inline __attribute__((always_inline))

typedef __m128i quad;
typedef struct {
    __m128i abef;
    __m128i cdgh;
} hash;

INLINE quad load_raw(const void *at)
{
    return _mm_loadu_si128((const __m128i_u *)at);
}

INLINE void store_raw(void *at, quad q)
{
    _mm_storeu_si128((__m128i_u *)at, q);
}

INLINE quad load_pair(const uint32_t *at)
{
    return _mm_unpacklo_epi64(
        _mm_loadu_si64((const void *)at), _mm_loadu_si64((const void *)(at + 1)));
}

INLINE quad words(quad q)
{
    return _mm_shuffle_epi8(
        q, _mm_set_epi64x(0x0c0d0e0f08090a0bLL, 0x0405060700010203LL));
}

INLINE hash hash_start(void)
{
    hash h;

    h.abef = _mm_set_epi32(0x6a09e667, (int)0xbb67ae85, 0x510e527f, (int)0x9b05688c);
    h.cdgh = _mm_set_epi32(0x3c6ef372, (int)0xa54ff53a, 0x1f83d9ab, 0x5be0cd19);
    return h;
}

INLINE void hash_words(hash h, quad *w0, quad *w1)
{
    quad feba = _mm_shuffle_epi32(h.abef, 0x1b);
    quad dchg = _mm_shuffle_epi32(h.cdgh, 0xb1);

    *w0 = _mm_blend_epi16(feba, dchg, 0xf0);
    *w1 = _mm_alignr_epi8(dchg, feba, 8);
}

/* Four rounds with message words `m` and the constants of group `g`. */
#define ROUNDS(h, m, g)                                                                  \
    do {                                                                                 \
        quad wk =                                                                        \
            _mm_add_epi32((m), _mm_load_si128((const __m128i *)&kvi_sha256_k[4 * (g)])); \
        (h).cdgh = _mm_sha256rnds2_epu32((h).cdgh, (h).abef, wk);                        \
        wk = _mm_shuffle_epi32(wk, 0x0e);                                                \
        (h).abef = _mm_sha256rnds2_epu32((h).abef, (h).cdgh, wk);                        \
    } while (0)

/* The next four message words, in the place of the oldest. */
#define SCHEDULE(a, b, c, d)                                                          \
    ((a) = _mm_sha256msg2_epu32(                                                      \
         _mm_add_epi32(_mm_sha256msg1_epu32((a), (b)), _mm_alignr_epi8((d), (c), 4)), \
         (d)))

#define STEP1(a, b, c, d, g)              \
    do {                                  \
        SCHEDULE(m[a], m[b], m[c], m[d]); \
        ROUNDS(s, m[a], g);               \
    } while (0)

INLINE void compress1(hash *h, quad m[4])
{
    hash s = *h;

    ROUNDS(s, m[0], 0);
    ROUNDS(s, m[1], 1);
    ROUNDS(s, m[2], 2);
    ROUNDS(s, m[3], 3);
    STEP1(0, 1, 2, 3, 4);
    STEP1(1, 2, 3, 0, 5);
    STEP1(2, 3, 0, 1, 6);
    STEP1(3, 0, 1, 2, 7);
    STEP1(0, 1, 2, 3, 8);
    STEP1(1, 2, 3, 0, 9);
    STEP1(2, 3, 0, 1, 10);
    STEP1(3, 0, 1, 2, 11);
    STEP1(0, 1, 2, 3, 12);
    STEP1(1, 2, 3, 0, 13);
    STEP1(2, 3, 0, 1, 14);
    STEP1(3, 0, 1, 2, 15);
    h->abef = _mm_add_epi32(h->abef, s.abef);
    h->cdgh = _mm_add_epi32(h->cdgh, s.cdgh);
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

INLINE void compress2(hash *h, quad m[4], hash *g, quad n[4])
{
    hash s = *h;
    hash t = *g;

    ROUNDS2(0, 0);
    ROUNDS2(1, 1);
    ROUNDS2(2, 2);
    ROUNDS2(3, 3);
    STEP2(0, 1, 2, 3, 4);
    STEP2(1, 2, 3, 0, 5);
    STEP2(2, 3, 0, 1, 6);
    STEP2(3, 0, 1, 2, 7);
    STEP2(0, 1, 2, 3, 8);
    STEP2(1, 2, 3, 0, 9);
    STEP2(2, 3, 0, 1, 10);
    STEP2(3, 0, 1, 2, 11);
    STEP2(0, 1, 2, 3, 12);
    STEP2(1, 2, 3, 0, 13);
    STEP2(2, 3, 0, 1, 14);
    STEP2(3, 0, 1, 2, 15);
    h->abef = _mm_add_epi32(h->abef, s.abef);
    h->cdgh = _mm_add_epi32(h->cdgh, s.cdgh);
    g->abef = _mm_add_epi32(g->abef, t.abef);
    g->cdgh = _mm_add_epi32(g->cdgh, t.cdgh);
}

#include "page/chain_kernel.h"

TARGET static void compress(uint32_t state[8], const uint8_t *blocks, size_t block_count)
{
    quad dcba = load_raw(state);
    quad hgfe = load_raw(state + 4);
    quad cdab = _mm_shuffle_epi32(dcba, 0xb1);
    quad efgh = _mm_shuffle_epi32(hgfe, 0x1b);
    hash h = {_mm_alignr_epi8(cdab, efgh, 8), _mm_blend_epi16(efgh, cdab, 0xf0)};

    for (; block_count != 0; block_count--, blocks += KVI_SHA256_BLOCK_BYTES) {
        quad m[4] = {words(load_raw(blocks)), words(load_raw(blocks + 16)),
            words(load_raw(blocks + 32)), words(load_raw(blocks + 48))};

        compress1(&h, m);
    }
    hash_words(h, &dcba, &hgfe);
    store_raw(state, dcba);
    store_raw(state + 4, hgfe);
}

static const struct kvi_sha256_path SHA_NI = {"sha-ni", compress, chain1, chain2};

const struct kvi_sha256_path *kvi_sha256_hardware(void)
{
    unsigned a;
    unsigned b;
    unsigned c;
    unsigned d;

    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & bit_SSE4_1) == 0 || (c & bit_SSSE3) == 0)
        return NULL;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (b & bit_SHA) == 0)
        return NULL;
    return &SHA_NI;
}
