/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* dynamo.h -- the profile "dynamo-1.5": exactly the answers of Dynamo 1.5's shared-cache client.
 *
 * For those who replace that client and compare.  It keeps what it keeps (a set of object keys
 * as strings, group states) and does what it does: everything is cleared at a gap, at a layout
 * change and above 1,000,000 entries; a namespaced request gets nothing; workers that disagree
 * switch it off; one bad field costs a whole message.  docs/profiles.md has the table of
 * differences from the default profile, and the few places where a limit of ours shows.
 *
 * Nothing is done here but computing: the driver opens the stream when the state says so and
 * hands over what arrives.
 *
 *     WAITING ---> CONNECTING ---> STREAMING
 *        ^   endpoint  |    connected   |
 *        |             | failed         | ended, endpoint changed
 *        +-- PAUSED <--+----------------+        any state: STOPPED by stop or closed workers
 *         1 s later
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
#define KVG_DYNAMO_RECONNECT_MS 1000u
/* A longer object key or group id is not kept: no lookup asks for one. */
#define KVG_DYNAMO_STRING_BYTES_MAX 1024u

struct kvg_dynamo;

struct kvg_dynamo_options {
    size_t struct_bytes;
    struct kvg_str
        endpoint;       /* Wins over what workers advertise; absent or empty: none. */
    uint64_t seed;      /* Secret; spreads strings over the tables. */
    size_t entries_max; /* Keys and group states; 0: KVG_DYNAMO_ENTRIES_MAX. */
    const struct kvg_log *log; /* Or NULL. */
};

/* KVG_ENOMEM, or KVG_EINVAL for a struct_bytes that is too small or an endpoint longer than
 * KVG_ENDPOINT_BYTES_MAX. */
KVG_API KVG_MUST_CHECK kvg_err kvg_dynamo_new(const struct kvg_alloc *alloc,
    const struct kvg_dynamo_options *options, struct kvg_dynamo **out);
KVG_API void kvg_dynamo_free(struct kvg_dynamo *dynamo);

/* Workers -------------------------------------------------------------------------------- */

/* Adds or replaces a worker as it advertised itself, whatever its backend or page size: what is
 * made of it is decided at the next lookup or kvg_dynamo_endpoint(), as the client does.  Of
 * `config`, the client knows backend, page size, tp_size, pp_size, tp_lcm_size, MLA, EAGLE, split
 * heads, tag and endpoint; the rest is ignored.  A configuration that did not parse is no worker:
 * remove it.  KVG_ENOMEM; KVG_ELIMIT for a string over the limits of workers.h and layout.h, or a
 * worker beyond KVG_WORKERS_MAX; then the worker is as it was. */
KVG_API KVG_MUST_CHECK kvg_err kvg_dynamo_set_worker(struct kvg_dynamo *dynamo,
    uint64_t worker_id, const struct kvg_worker_config *config, struct kvg_error *error);
KVG_API bool kvg_dynamo_remove_worker(struct kvg_dynamo *dynamo, uint64_t worker_id);

/* The endpoint the client would listen to now; absent if none.  Lives until workers change. */
KVG_API struct kvg_str kvg_dynamo_endpoint(struct kvg_dynamo *dynamo);

/* The stream ----------------------------------------------------------------------------- */

enum kvg_dynamo_state {
    KVG_DYNAMO_WAITING,    /* For an endpoint. */
    KVG_DYNAMO_CONNECTING, /* Open kvg_dynamo_stream_endpoint(), then say how it went. */
    KVG_DYNAMO_STREAMING,  /* Hand over messages. */
    KVG_DYNAMO_PAUSED,     /* Closed; until kvg_dynamo_deadline_ms(). */
    KVG_DYNAMO_STOPPED     /* Closed, for good. */
};
/* Moves on as far as workers and time allow, and says where it stands.  Call it after anything
 * changed, and at the deadline.  Leaving STREAMING means: close the stream.  What is held is
 * cleared on the way to CONNECTING, so it is still answered from during a pause. */
KVG_API enum kvg_dynamo_state kvg_dynamo_step(struct kvg_dynamo *dynamo, uint64_t now_ms);
KVG_API uint64_t kvg_dynamo_deadline_ms(const struct kvg_dynamo *dynamo);
/* Of the stream that is open or to be opened; absent in the other states. */
KVG_API struct kvg_str kvg_dynamo_stream_endpoint(const struct kvg_dynamo *dynamo);
KVG_API void kvg_dynamo_connected(struct kvg_dynamo *dynamo, bool ok, uint64_t now_ms);
/* The stream failed or ended. */
KVG_API void kvg_dynamo_stream_ended(struct kvg_dynamo *dynamo, uint64_t now_ms);
/* There will be no more news of workers: clears and stops. */
KVG_API void kvg_dynamo_workers_closed(struct kvg_dynamo *dynamo);
/* Stops; what is held stays. */
KVG_API void kvg_dynamo_stop(struct kvg_dynamo *dynamo);

/* One received message, good or bad.  Taken in every state. */
KVG_API void kvg_dynamo_message(
    struct kvg_dynamo *dynamo, const struct kvg_str *frames, size_t frame_count);
KVG_API void kvg_dynamo_clear(struct kvg_dynamo *dynamo);

/* Questions ------------------------------------------------------------------------------ */

/* Why an answer is empty, in the client's order of checks. */
enum kvg_dynamo_outcome {
    KVG_DYNAMO_ANSWERED,
    KVG_DYNAMO_NAMESPACED,
    KVG_DYNAMO_NO_CONFIG, /* No worker, no endpoint, or they differ. */
    KVG_DYNAMO_OTHER_BACKEND,
    KVG_DYNAMO_PAGE_SIZE_ZERO,
    KVG_DYNAMO_PAGE_SIZE_DIFFERS,
    KVG_DYNAMO_TOO_SHORT
};

/* Sorted, disjoint ranges of hit pages, holes and all, and their sum.  Writes at most range_max
 * ranges; *range_count_out is how many there are.  A namespace that is empty counts as absent.
 * Allocates nothing. */
KVG_API enum kvg_dynamo_outcome kvg_dynamo_check_blocks(struct kvg_dynamo *dynamo,
    const uint32_t *tokens, size_t token_count, uint32_t block_size,
    struct kvg_str cache_namespace, struct kvg_range *ranges, size_t range_max,
    size_t *range_count_out, uint32_t *total_out);

/* Hit pages at positions >= `page`, in what kvg_dynamo_check_blocks() wrote. */
KVG_API uint32_t kvg_dynamo_hits_beyond(
    const struct kvg_range *ranges, size_t range_count, uint32_t page);

struct kvg_dynamo_stats {
    size_t struct_bytes;
    uint64_t present_keys;
    uint64_t group_states;
    bool has_sequence;
    uint64_t last_sequence;
    uint64_t
        errors; /* The client's one metric: bad messages, failed and ended streams. */
    /* What the client does not count. */
    uint64_t batches;
    uint64_t duplicates;
    uint64_t gap_clears;
    uint64_t layout_clears;
    uint64_t size_clears;
    uint64_t stored;
    uint64_t removed;
    uint64_t foreign_tenants; /* Events skipped. */
    uint64_t keyless_events;
    uint64_t other_events; /* Of a type that is neither stored nor removed. */
    uint64_t long_strings; /* Not kept: KVG_DYNAMO_STRING_BYTES_MAX. */
    uint64_t no_memory;    /* Not kept: the allocator said no.  Under-reports. */
    size_t memory_bytes;
};
/* The caller sets out->struct_bytes. */
KVG_API void kvg_dynamo_stats(
    const struct kvg_dynamo *dynamo, struct kvg_dynamo_stats *out);

KVG_END_DECLS

#endif
