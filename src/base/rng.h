/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* rng.h -- the only random numbers of the library: always seeded by the caller, so that a
 * run can be repeated.  SplitMix64: one word of state, passes the usual batteries, not for
 * secrets. */
#ifndef KVI_BASE_RNG_H
#define KVI_BASE_RNG_H

#include <stdint.h>

__extension__ typedef unsigned __int128 kvi_u128;

struct kvi_rng {
    uint64_t state;
};

static inline uint64_t kvi_mix64(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static inline uint64_t kvi_rng_next(struct kvi_rng *rng)
{
    rng->state += UINT64_C(0x9e3779b97f4a7c15);
    return kvi_mix64(rng->state);
}

/* A number in [0, bound); bound is at least 1.  The bias is below 2^-32 for small bounds. */
static inline uint64_t kvi_rng_below(struct kvi_rng *rng, uint64_t bound)
{
    return (uint64_t)(((kvi_u128)kvi_rng_next(rng) * bound) >> 64);
}

#endif
