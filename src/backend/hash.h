/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* hash.h -- checksums: XXH3, 64 bits.  Behind functions, so that few files hold the inlined
 * header and are optimised in every build, and the widest instructions that the machine has are
 * chosen at run time. */
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

/* With the base instruction set, whatever the machine has: for tests. */
uint64_t kvi_checksum_base(const void *data, size_t bytes, uint64_t seed);

struct kvi_checksum_kernel {
    uint64_t (*whole)(const void *data, size_t bytes, uint64_t seed);
    void (*add)(struct kvi_checksum_state *state, const void *data, size_t bytes);
};
extern const struct kvi_checksum_kernel kvi_checksum_avx2; /* hash_avx2.c, on x86-64 */

#endif
