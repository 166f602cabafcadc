/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* hash.h -- checksums: XXH3, 64 bits.  Behind two functions, so that one file holds the inlined
 * header and is optimised in every build. */
#ifndef KVI_BACKEND_HASH_H
#define KVI_BACKEND_HASH_H

#include <stddef.h>
#include <stdint.h>

uint64_t kvi_checksum(const void *data, size_t bytes, uint64_t seed);

/* The same for bytes that come in pieces, with seed 0. */
struct kvi_checksum_state {
    _Alignas(64) unsigned char opaque[640];
};
void kvi_checksum_begin(struct kvi_checksum_state *state);
void kvi_checksum_add(struct kvi_checksum_state *state, const void *data, size_t bytes);
uint64_t kvi_checksum_end(const struct kvi_checksum_state *state);

#endif
