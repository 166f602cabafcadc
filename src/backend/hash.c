/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* hash.c -- xxHash, used as a header (hash.h), twice: for the base instruction set and, in
 * hash_avx2.c, for a wider one.  Which one is asked of the compiler's own table of what the
 * processor has, at every call: a load and a branch that is always the same. */
#define KERNEL(name) kernel_##name
#include "backend/hash_kernel.h"

#include <stdbool.h>

#ifdef KVI_HASH_AVX2
static inline bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") != 0;
}
#endif

uint64_t kvi_checksum_base(const void *data, size_t bytes, uint64_t seed)
{
    return kernel_whole(data, bytes, seed);
}

uint64_t kvi_checksum(const void *data, size_t bytes, uint64_t seed)
{
#ifdef KVI_HASH_AVX2
    if (has_avx2())
        return kvi_checksum_avx2.whole(data, bytes, seed);
#endif
    return kernel_whole(data, bytes, seed);
}

void kvi_checksum_begin(struct kvi_checksum_state *state)
{
    XXH3_64bits_reset((XXH3_state_t *)(void *)state->opaque);
}

void kvi_checksum_add(struct kvi_checksum_state *state, const void *data, size_t bytes)
{
#ifdef KVI_HASH_AVX2
    if (has_avx2()) {
        kvi_checksum_avx2.add(state, data, bytes);
        return;
    }
#endif
    kernel_add(state, data, bytes);
}

uint64_t kvi_checksum_end(const struct kvi_checksum_state *state)
{
    return XXH3_64bits_digest((const XXH3_state_t *)(const void *)state->opaque);
}
