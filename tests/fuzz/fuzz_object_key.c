/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* Any bytes as an object key: taking apart and putting together gives the same bytes, and the
 * parts are within their limits. */
#include <kvgraft/layout.h>

#include "base/assert.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct kvg_str text = {(const char *)data, bytes};
    struct kvg_object_key object;
    char again[KVG_OBJECT_KEY_BYTES_MAX + 1];
    char hex[KVG_KEY_HEX_BYTES];
    size_t at = 0;

    if (!kvg_object_key_parse(text, &object)) {
        KVI_ASSERT(object.prefix.data == NULL && object.suffix.data == NULL);
        return 0;
    }
    KVI_ASSERT(object.prefix.bytes <= KVG_LAYOUT_PREFIX_BYTES_MAX);
    KVI_ASSERT(object.suffix.bytes >= 2);
    KVI_ASSERT(object.suffix.bytes <= KVG_LAYOUT_SUFFIX_BYTES_MAX);
    if (object.prefix.bytes != 0) {
        memcpy(again, object.prefix.data, object.prefix.bytes);
        at = object.prefix.bytes;
        again[at++] = '_';
    }
    kvg_key_to_hex(&object.key, hex);
    memcpy(again + at, hex, 64);
    at += 64;
    memcpy(again + at, object.suffix.data, object.suffix.bytes);
    at += object.suffix.bytes;
    KVI_ASSERT(at == bytes && memcmp(again, data, bytes) == 0);
    return 0;
}
