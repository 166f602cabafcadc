/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* hash.c -- xxHash, used as a header (hash.h). */
#include "backend/hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

_Static_assert(sizeof(XXH3_state_t) <= sizeof(struct kvi_checksum_state),
    "the state of XXH3 does not fit");

uint64_t kvi_checksum(const void *data, size_t bytes, uint64_t seed)
{
    return XXH3_64bits_withSeed(data, bytes, seed);
}

void kvi_checksum_begin(struct kvi_checksum_state *state)
{
    XXH3_64bits_reset((XXH3_state_t *)(void *)state->opaque);
}

void kvi_checksum_add(struct kvi_checksum_state *state, const void *data, size_t bytes)
{
    XXH3_64bits_update((XXH3_state_t *)(void *)state->opaque, data, bytes);
}

uint64_t kvi_checksum_end(const struct kvi_checksum_state *state)
{
    return XXH3_64bits_digest((const XXH3_state_t *)(const void *)state->opaque);
}
