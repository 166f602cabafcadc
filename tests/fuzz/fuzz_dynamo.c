/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* Bytes as a payload of the profile "dynamo-1.5": never a crash, never a broken invariant, and
 * what is refused leaves no trace. */
#include <kvgraft/dynamo.h>

#include "base/fmt.h"
#include "source/dynamo_state.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct kvg_dynamo_options options = {
        .struct_bytes = sizeof(options), .entries_max = 20};
    struct kvg_str frames[3] = {
        kvi_str(""), {"\0\0\0\0\0\0\0\1", 8}, {(const char *)data, bytes}};
    struct kvg_dynamo_stats stats = {.struct_bytes = sizeof(stats)};
    struct kvg_dynamo *dynamo;

    if (kvg_dynamo_new(kvg_alloc_default(), &options, &dynamo) != KVG_OK)
        return 0;
    kvg_dynamo_message(dynamo, frames, 3);
    kvg_dynamo_stats(dynamo, &stats);
    if (kvi_dynamo_check(dynamo) != 0 || stats.errors + stats.batches != 1)
        abort();
    if (stats.errors != 0 && (stats.has_sequence || stats.present_keys != 0))
        abort();
    kvg_dynamo_free(dynamo);
    return 0;
}
