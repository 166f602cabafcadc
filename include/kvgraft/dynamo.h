/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* dynamo.h -- the profile "dynamo-1.5": exactly the answers of Dynamo 1.5's shared-cache client.
 *
 * For those who replace that client and compare.  It keeps what it keeps (a set of object keys as
 * strings, group states) and does what it does: everything is cleared at a gap, at a layout
 * change and above 1,000,000 entries; a namespaced request gets nothing; workers that disagree
 * switch it off.  docs/profiles.md has the table of differences from the default profile.
 *
 * Threads: one at a time.
 */
#ifndef KVGRAFT_DYNAMO_H
#define KVGRAFT_DYNAMO_H

#include <kvgraft/event.h>
#include <kvgraft/presence.h>
#include <kvgraft/workers.h>

KVG_BEGIN_DECLS

#define KVG_DYNAMO_ENTRIES_MAX 1000000u

struct kvg_dynamo;

/* `workers` must outlive it; changes to it are noticed at the next call. */
KVG_API KVG_MUST_CHECK kvg_err kvg_dynamo_new(const struct kvg_alloc *alloc,
    const struct kvg_workers *workers, uint64_t seed, struct kvg_dynamo **out);
KVG_API void kvg_dynamo_free(struct kvg_dynamo *dynamo);

/* One received message, good or bad. */
KVG_API void kvg_dynamo_message(
    struct kvg_dynamo *dynamo, const struct kvg_str *frames, size_t frame_count);
KVG_API void kvg_dynamo_clear(struct kvg_dynamo *dynamo);

/* The endpoint the client would listen to; absent if none. */
KVG_API struct kvg_str kvg_dynamo_endpoint(struct kvg_dynamo *dynamo);

/* Why an answer is empty, in the client's order of checks. */
enum kvg_dynamo_outcome {
    KVG_DYNAMO_ANSWERED,
    KVG_DYNAMO_NAMESPACED,
    KVG_DYNAMO_NO_CONFIG,
    KVG_DYNAMO_OTHER_BACKEND,
    KVG_DYNAMO_PAGE_SIZE_ZERO,
    KVG_DYNAMO_PAGE_SIZE_DIFFERS,
    KVG_DYNAMO_TOO_SHORT,
    KVG_DYNAMO_NO_MEMORY
};

/* Sorted, disjoint ranges of hit pages, and their sum.  Writes at most range_max ranges. */
KVG_API enum kvg_dynamo_outcome kvg_dynamo_check_blocks(struct kvg_dynamo *dynamo,
    const uint32_t *tokens, size_t token_count, uint32_t block_size,
    struct kvg_str cache_namespace, struct kvg_range *ranges, size_t range_max,
    size_t *range_count_out, uint32_t *total_out);

struct kvg_dynamo_stats {
    size_t struct_bytes;
    uint64_t present_keys;
    uint64_t group_states;
    uint64_t errors; /* The client's one metric. */
    uint64_t gap_clears;
    uint64_t layout_clears;
    uint64_t size_clears;
    uint64_t duplicates;
};
KVG_API void kvg_dynamo_stats(
    const struct kvg_dynamo *dynamo, struct kvg_dynamo_stats *out);

KVG_END_DECLS

#endif
