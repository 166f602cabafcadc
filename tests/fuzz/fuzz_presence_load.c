/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* Any bytes as a dump.  The first byte chooses whether checksums are put right first, so that
 * the fuzzer gets behind them; the index must stay sound whatever was loaded. */
#include <kvgraft/presence.h>

#include "base/assert.h"
#include "presence/dump.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

struct input {
    const uint8_t *data;
    size_t bytes;
    size_t at;
};

static bool read_input(void *context, void *bytes, size_t byte_max, size_t *got)
{
    struct input *input = context;
    size_t left = input->bytes - input->at;

    *got = byte_max < left ? byte_max : left;
    if (*got != 0)
        memcpy(bytes, input->data + input->at, *got);
    input->at += *got;
    return true;
}

/* Rewrites the checksums of all whole blocks. */
static void put_right(uint8_t *data, size_t bytes)
{
    uint8_t piece[sizeof(uint64_t) + 8 + DUMP_PAYLOAD_MAX];
    uint64_t checksum = 0;
    size_t at = 0;
    size_t length = DUMP_HEADER_BYTES;

    while (length <= DUMP_PAYLOAD_MAX + 8 && bytes - at >= length + DUMP_CHECKSUM_BYTES) {
        uint8_t digest[32];
        uint32_t payload;

        memcpy(piece, &checksum, sizeof(checksum));
        memcpy(piece + sizeof(checksum), data + at, length);
        kvg_sha256(piece, sizeof(checksum) + length, digest);
        memcpy(data + at + length, digest, DUMP_CHECKSUM_BYTES);
        memcpy(&checksum, digest, sizeof(checksum));
        at += length + DUMP_CHECKSUM_BYTES;
        if (bytes - at < 8)
            return;
        memcpy(&payload, data + at + 4, sizeof(payload));
        length = (size_t)payload + 8;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct kvg_presence_options options = {.struct_bytes = sizeof(options), .seed = 3};
    struct kvg_presence *index;
    struct input input;
    uint8_t *copy;
    const char *what;

    if (bytes == 0)
        return 0;
    copy = malloc(bytes);
    memcpy(copy, data, bytes);
    if (data[0] & 1)
        put_right(copy + 1, bytes - 1);
    input = (struct input){copy + 1, bytes - 1, 0};
    options.full_keys = (data[0] & 2) != 0;
    options.memory_bytes_max = KVG_PRESENCE_MEMORY_BYTES_MIN;
    if (kvg_presence_new(kvg_alloc_default(), &options, NULL, &index) == KVG_OK) {
        (void)!kvg_presence_load(index, read_input, &input, NULL);
        KVI_ASSERT(kvi_presence_check(index, &what) == 0);
        kvg_presence_free(index);
    }
    free(copy);
    return 0;
}
