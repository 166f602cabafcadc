/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* hash_kernel.h -- the functions of hash.h over xxHash's header, for the instruction set of the
 * file that includes it.  KERNEL(name) names them. */
#include "backend/hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

_Static_assert(sizeof(XXH3_state_t) <= sizeof(struct kvi_checksum_state),
    "the state of XXH3 does not fit");

static uint64_t KERNEL(whole)(const void *data, size_t bytes, uint64_t seed)
{
    return XXH3_64bits_withSeed(data, bytes, seed);
}

static void KERNEL(add)(struct kvi_checksum_state *state, const void *data, size_t bytes)
{
    XXH3_64bits_update((XXH3_state_t *)(void *)state->opaque, data, bytes);
}
