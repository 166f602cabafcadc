/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* values.h -- values that verify themselves: every byte follows from the key and its offset. */
#ifndef KVT_VALUES_H
#define KVT_VALUES_H

#include "base/rng.h"

#include <kvgraft/store.h>

#include <string.h>

static inline uint64_t value_seed(struct kvg_str key)
{
    uint64_t seed = key.bytes;
    size_t i;

    for (i = 0; i < key.bytes; i++)
        seed = kvi_mix64(seed ^ (uint8_t)key.data[i]);
    return seed;
}

/* Bytes [offset, offset + bytes) of a key's value. */
static inline void value_fill(
    struct kvg_str key, uint64_t offset, uint8_t *out, size_t bytes)
{
    uint64_t seed = value_seed(key);
    size_t i;

    for (i = 0; i < bytes;) {
        uint64_t at = offset + i;
        uint64_t word = kvi_mix64(seed + at / 8);

        if (at % 8 == 0 && bytes - i >= 8) {
            memcpy(out + i, &word, 8);
            i += 8;
        } else {
            out[i++] = (uint8_t)(word >> (8 * (at % 8)));
        }
    }
}

static inline bool value_good(
    struct kvg_str key, uint64_t offset, const uint8_t *have, size_t bytes)
{
    uint64_t seed = value_seed(key);
    size_t i;

    for (i = 0; i < bytes;) {
        uint64_t at = offset + i;
        uint64_t word = kvi_mix64(seed + at / 8);

        if (at % 8 == 0 && bytes - i >= 8) {
            if (memcmp(have + i, &word, 8) != 0)
                return false;
            i += 8;
        } else if (have[i++] != (uint8_t)(word >> (8 * (at % 8)))) {
            return false;
        }
    }
    return true;
}

static inline struct kvg_str str_of(const char *text)
{
    return (struct kvg_str){text, strlen(text)};
}

#endif
