/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* object_key.c -- an object key taken apart.
 *
 *     tagA_acme_ai-DeepSeek_R1-0528_cf97...3b72_0_k
 *     '----------- prefix --------' '-- hex --''suffix
 *
 * The suffix is shorter than the hex digits, and begins with a '_', which is no digit.  So 64
 * digits between two '_' (or the start and a '_') that end at most KVG_LAYOUT_SUFFIX_BYTES_MAX
 * bytes before the end can be in one place only, whatever the prefix looks like.
 *
 * Only lower-case digits count: that is what every writer writes, and to a store a name in
 * capitals is another object.  So taking apart and putting together gives the same bytes.
 */
#include <kvgraft/layout.h>

#include <string.h>

#define HEX_DIGITS ((size_t)2 * KVG_KEY_BYTES)
#define SUFFIX_BYTES_MIN 2
#define EVERY_BYTE(byte) (UINT64_C(0x0101010101010101) * (byte))

_Static_assert(
    KVG_LAYOUT_SUFFIX_BYTES_MAX < HEX_DIGITS, "a suffix could hide a page key");
_Static_assert(
    __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "digits are read eight at a time");

/* Eight digits at a time.  A digit's value is its low nibble, plus 9 for a letter.  Whether all
 * eight were digits is seen by writing the values back: only digits come back as they were. */
static bool decode_eight(const char *digits, uint8_t out[4])
{
    uint64_t text;
    uint64_t value;
    uint64_t letters;
    uint32_t packed;

    memcpy(&text, digits, sizeof(text));
    value = (text & EVERY_BYTE(0x0f)) + ((text >> 6) & EVERY_BYTE(0x01)) * 9;
    value &= EVERY_BYTE(0x0f);
    letters = ((value + EVERY_BYTE(6)) >> 4) & EVERY_BYTE(0x01);
    if (value + EVERY_BYTE('0') + letters * ('a' - '0' - 10) != text)
        return false;
    value = (value << 4 | value >> 8) & UINT64_C(0x00ff00ff00ff00ff);
    value = (value | value >> 8) & UINT64_C(0x0000ffff0000ffff);
    packed = (uint32_t)(value | value >> 16);
    memcpy(out, &packed, sizeof(packed));
    return true;
}

static bool decode_key(const char *digits, struct kvg_key *out)
{
    size_t i;

    for (i = 0; i < KVG_KEY_BYTES; i += 4)
        if (!decode_eight(digits + 2 * i, out->bytes + i))
            return false;
    return true;
}

bool kvg_object_key_parse(struct kvg_str text, struct kvg_object_key *out)
{
    size_t suffix_bytes;

    memset(out, 0, sizeof(*out));
    for (suffix_bytes = SUFFIX_BYTES_MIN; suffix_bytes <= KVG_LAYOUT_SUFFIX_BYTES_MAX;
         suffix_bytes++) {
        size_t hex;
        struct kvg_key key;

        if (text.bytes < HEX_DIGITS + suffix_bytes)
            return false;
        hex = text.bytes - suffix_bytes - HEX_DIGITS;
        if (text.data[hex + HEX_DIGITS] != '_' ||
            text.data[hex + HEX_DIGITS - 1] == '_' ||
            (hex != 0 && text.data[hex - 1] != '_') || !decode_key(text.data + hex, &key))
            continue;
        if (hex == 1 || hex > KVG_LAYOUT_PREFIX_BYTES_MAX + 1)
            return false; /* "_HEX": an empty prefix is written without its '_'. */
        out->prefix = (struct kvg_str){text.data, hex == 0 ? 0 : hex - 1};
        out->key = key;
        out->suffix = (struct kvg_str){text.data + hex + HEX_DIGITS, suffix_bytes};
        return true;
    }
    return false;
}
