/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* sha256.c -- SHA-256 in plain C, the choice of a path, and digests of any bytes.
 *
 * The plain path is what runs where the machine offers nothing better, and what the others
 * are compared with.  The choice is made once and kept in an atomic; threads that race to
 * make it store the same value.
 */
#include "page/sha256.h"

#include <stdatomic.h>
#include <string.h>

#define TARGET
#define INLINE static inline

typedef struct {
    uint32_t w[4];
} quad;
typedef struct {
    uint32_t s[8];
} hash;

_Alignas(16) const uint32_t kvi_sha256_k[64] = {0x428a2f98, 0x71374491, 0xb5c0fbcf,
    0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01,
    0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1,
    0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351,
    0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb,
    0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819,
    0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5,
    0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814,
    0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static const uint32_t START[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

INLINE uint32_t rotate(uint32_t x, unsigned right)
{
    return x >> right | x << (32 - right);
}

INLINE quad load_raw(const void *at)
{
    quad q;

    memcpy(&q, at, sizeof(q));
    return q;
}

INLINE void store_raw(void *at, quad q)
{
    memcpy(at, &q, sizeof(q));
}

INLINE quad load_pair(const uint32_t *at)
{
    return (quad){{at[0], at[1], at[1], at[2]}};
}

INLINE quad words(quad q)
{
    return (quad){{__builtin_bswap32(q.w[0]), __builtin_bswap32(q.w[1]),
        __builtin_bswap32(q.w[2]), __builtin_bswap32(q.w[3])}};
}

INLINE hash hash_start(void)
{
    hash h;

    memcpy(h.s, START, sizeof(START));
    return h;
}

INLINE void hash_words(hash h, quad *w0, quad *w1)
{
    memcpy(w0, h.s, sizeof(*w0));
    memcpy(w1, h.s + 4, sizeof(*w1));
}

/* One round; the caller rotates the names of the eight words. */
#define ROUND(a, b, c, d, e, f, g, h, i)                                           \
    do {                                                                           \
        uint32_t t = (h) + (rotate((e), 6) ^ rotate((e), 11) ^ rotate((e), 25)) +  \
                     (((e) & (f)) ^ (~(e) & (g))) + kvi_sha256_k[(i)] + w[(i)&15]; \
                                                                                   \
        (d) += t;                                                                  \
        (h) = t + (rotate((a), 2) ^ rotate((a), 13) ^ rotate((a), 22)) +           \
              (((a) & (b)) ^ ((a) & (c)) ^ ((b) & (c)));                           \
    } while (0)

static void compress1(hash *state, const quad m[4])
{
    uint32_t w[16];
    uint32_t a = state->s[0];
    uint32_t b = state->s[1];
    uint32_t c = state->s[2];
    uint32_t d = state->s[3];
    uint32_t e = state->s[4];
    uint32_t f = state->s[5];
    uint32_t g = state->s[6];
    uint32_t h = state->s[7];
    unsigned i;

    memcpy(w, m, sizeof(w));
    for (i = 0; i < 64; i += 8) {
        ROUND(a, b, c, d, e, f, g, h, i);
        ROUND(h, a, b, c, d, e, f, g, i + 1);
        ROUND(g, h, a, b, c, d, e, f, i + 2);
        ROUND(f, g, h, a, b, c, d, e, i + 3);
        ROUND(e, f, g, h, a, b, c, d, i + 4);
        ROUND(d, e, f, g, h, a, b, c, i + 5);
        ROUND(c, d, e, f, g, h, a, b, i + 6);
        ROUND(b, c, d, e, f, g, h, a, i + 7);
        if (i % 16 == 8) {
            unsigned j;

            for (j = 0; j < 16; j++) {
                uint32_t x = w[(j + 1) & 15];
                uint32_t y = w[(j + 14) & 15];

                w[j] += (rotate(x, 7) ^ rotate(x, 18) ^ x >> 3) + w[(j + 9) & 15] +
                        (rotate(y, 17) ^ rotate(y, 19) ^ y >> 10);
            }
        }
    }
    state->s[0] += a;
    state->s[1] += b;
    state->s[2] += c;
    state->s[3] += d;
    state->s[4] += e;
    state->s[5] += f;
    state->s[6] += g;
    state->s[7] += h;
}

INLINE void compress2(hash *h, const quad m[4], hash *g, const quad n[4])
{
    compress1(h, m);
    compress1(g, n);
}

#include "page/chain_kernel.h"

static void compress(uint32_t state[8], const uint8_t *blocks, size_t block_count)
{
    hash h;

    memcpy(h.s, state, sizeof(h.s));
    for (; block_count != 0; block_count--, blocks += KVI_SHA256_BLOCK_BYTES) {
        quad m[4] = {words(load_raw(blocks)), words(load_raw(blocks + 16)),
            words(load_raw(blocks + 32)), words(load_raw(blocks + 48))};

        compress1(&h, m);
    }
    memcpy(state, h.s, sizeof(h.s));
}

const struct kvi_sha256_path kvi_sha256_portable = {"portable", compress, chain1, chain2};

#if !defined(KVI_SHA256_HARDWARE)
const struct kvi_sha256_path *kvi_sha256_hardware(void)
{
    return NULL;
}
#endif

const struct kvi_sha256_path *kvi_sha256_best(void)
{
    static const struct kvi_sha256_path *_Atomic chosen;
    const struct kvi_sha256_path *path =
        atomic_load_explicit(&chosen, memory_order_acquire);

    if (path == NULL) {
        path = kvi_sha256_hardware();
        if (path == NULL)
            path = &kvi_sha256_portable;
        atomic_store_explicit(&chosen, path, memory_order_release);
    }
    return path;
}

void kvi_sha256_init(struct kvi_sha256 *sha, const struct kvi_sha256_path *path)
{
    sha->path = path;
    sha->byte_count = 0;
    memcpy(sha->state, START, sizeof(START));
}

void kvi_sha256_update(struct kvi_sha256 *sha, const void *bytes, size_t byte_count)
{
    const uint8_t *at = bytes;
    size_t held = (size_t)(sha->byte_count % KVI_SHA256_BLOCK_BYTES);
    size_t blocks;

    if (byte_count == 0)
        return;
    sha->byte_count += byte_count;
    if (held != 0) {
        size_t room = KVI_SHA256_BLOCK_BYTES - held;
        size_t taken = byte_count < room ? byte_count : room;

        memcpy(sha->block + held, at, taken);
        at += taken;
        byte_count -= taken;
        if (taken < room)
            return;
        sha->path->compress(sha->state, sha->block, 1);
    }
    blocks = byte_count / KVI_SHA256_BLOCK_BYTES;
    if (blocks != 0)
        sha->path->compress(sha->state, at, blocks);
    at += blocks * KVI_SHA256_BLOCK_BYTES;
    byte_count %= KVI_SHA256_BLOCK_BYTES;
    if (byte_count != 0)
        memcpy(sha->block, at, byte_count);
}

void kvi_sha256_final(struct kvi_sha256 *sha, uint8_t out[32])
{
    static const uint8_t PADDING[KVI_SHA256_BLOCK_BYTES] = {0x80};
    uint64_t bits = __builtin_bswap64(sha->byte_count * 8);
    size_t held = (size_t)(sha->byte_count % KVI_SHA256_BLOCK_BYTES);
    size_t i;

    kvi_sha256_update(sha, PADDING, held < 56 ? 56 - held : 120 - held);
    kvi_sha256_update(sha, &bits, sizeof(bits));
    for (i = 0; i < 8; i++) {
        uint32_t word = __builtin_bswap32(sha->state[i]);

        memcpy(out + 4 * i, &word, sizeof(word));
    }
}

void kvi_sha256_with(const struct kvi_sha256_path *path, const void *bytes,
    size_t byte_count, uint8_t out[32])
{
    struct kvi_sha256 sha;

    kvi_sha256_init(&sha, path);
    kvi_sha256_update(&sha, bytes, byte_count);
    kvi_sha256_final(&sha, out);
}

void kvg_sha256(const void *bytes, size_t byte_count, uint8_t out[32])
{
    kvi_sha256_with(kvi_sha256_best(), bytes, byte_count, out);
}

const char *kvg_sha256_path(void)
{
    return kvi_sha256_best()->name;
}
