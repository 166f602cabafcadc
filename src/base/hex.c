/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* hex.c -- page keys as text.  Text exists at the edges only. */
#include "base/hex.h"

#include <string.h>

/* The value of a hex digit; 0x10 and above for anything else. */
static const uint8_t DIGIT_VALUE_PLUS_1[256] = {
    ['0'] = 1,
    ['1'] = 2,
    ['2'] = 3,
    ['3'] = 4,
    ['4'] = 5,
    ['5'] = 6,
    ['6'] = 7,
    ['7'] = 8,
    ['8'] = 9,
    ['9'] = 10,
    ['a'] = 11,
    ['b'] = 12,
    ['c'] = 13,
    ['d'] = 14,
    ['e'] = 15,
    ['f'] = 16,
    ['A'] = 11,
    ['B'] = 12,
    ['C'] = 13,
    ['D'] = 14,
    ['E'] = 15,
    ['F'] = 16,
};

bool kvi_hex_decode(const char *hex, size_t byte_count, uint8_t *out)
{
    unsigned bad = 0;
    size_t i;

    for (i = 0; i < byte_count; i++) {
        unsigned high = DIGIT_VALUE_PLUS_1[(uint8_t)hex[2 * i]] - 1u;
        unsigned low = DIGIT_VALUE_PLUS_1[(uint8_t)hex[2 * i + 1]] - 1u;

        bad |= high | low; /* A bad digit is all ones. */
        out[i] = (uint8_t)(high << 4 | (low & 0xf));
    }
    return bad < 0x10;
}

void kvi_hex_encode(const uint8_t *bytes, size_t byte_count, char *out)
{
    static const char DIGITS[] = "0123456789abcdef";
    size_t i;

    for (i = 0; i < byte_count; i++) {
        out[2 * i] = DIGITS[bytes[i] >> 4];
        out[2 * i + 1] = DIGITS[bytes[i] & 0xf];
    }
}

void kvg_key_to_hex(const struct kvg_key *key, char out[KVG_KEY_HEX_BYTES])
{
    kvi_hex_encode(key->bytes, KVG_KEY_BYTES, out);
    out[KVG_KEY_HEX_BYTES - 1] = '\0';
}

bool kvg_key_from_hex(struct kvg_str hex, struct kvg_key *out)
{
    memset(out, 0, sizeof(*out));
    if (hex.bytes != (size_t)2 * KVG_KEY_BYTES)
        return false;
    if (kvi_hex_decode(hex.data, KVG_KEY_BYTES, out->bytes))
        return true;
    memset(out, 0, sizeof(*out));
    return false;
}
