/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* workers.h -- what a fleet's workers advertise: layout, backend and event endpoint.
 *
 * A set of workers, each with its advertised configuration (the JSON under the runtime key
 * "sglang_hicache_mooncake", parsed by whoever reads JSON).  It is resolved once per change, not
 * once per query: which layouts there are, who has which, which endpoint the store's events come
 * from, and who disagrees or is unusable, and why.
 *
 * Different layouts live side by side: a rolling change of layout switches nothing off.  Different
 * endpoints cannot be followed at once: then there is none, until they agree or one is overridden.
 *
 * Threads: one at a time.
 * Ownership: strings and layouts that come out live until the next change of the set.
 */
#ifndef KVGRAFT_WORKERS_H
#define KVGRAFT_WORKERS_H

#include <kvgraft/layout.h>

KVG_BEGIN_DECLS

#define KVG_WORKERS_MAX 65536u
#define KVG_ENDPOINT_BYTES_MAX 255u
#define KVG_BACKEND_BYTES_MAX 63u
/* Different layouts among the usable workers.  A worker with one more is unusable, KVG_ELIMIT,
 * until it is set again when there is room. */
#define KVG_WORKERS_LAYOUTS_MAX 64u

struct kvg_workers;

struct kvg_worker_config {
    size_t struct_bytes;
    struct kvg_str backend; /* "mooncake"; a worker with another one is unusable here. */
    struct kvg_layout_config layout;
    struct kvg_str kv_events_endpoint; /* Absent or empty: not advertised. */
};

KVG_API KVG_MUST_CHECK kvg_err kvg_workers_new(
    const struct kvg_alloc *alloc, struct kvg_workers **out);
KVG_API void kvg_workers_free(struct kvg_workers *workers);

/* Adds or replaces a worker.  An unusable configuration is kept as such, with its reason, and
 * does not veto the others; the error is returned too.  KVG_ENOMEM, and KVG_ELIMIT with field
 * "workers" when there are KVG_WORKERS_MAX others, leave the set as it was. */
KVG_API KVG_MUST_CHECK kvg_err kvg_workers_set(struct kvg_workers *workers,
    uint64_t worker_id, const struct kvg_worker_config *config, struct kvg_error *error);
/* A worker whose configuration could not even be parsed.  KVG_OK when it is kept. */
KVG_API KVG_MUST_CHECK kvg_err kvg_workers_set_bad(
    struct kvg_workers *workers, uint64_t worker_id, const struct kvg_error *error);
KVG_API bool kvg_workers_remove(struct kvg_workers *workers, uint64_t worker_id);
KVG_API void kvg_workers_clear(struct kvg_workers *workers);

/* Overrides what workers advertise; absent or empty: no override. */
KVG_API KVG_MUST_CHECK kvg_err kvg_workers_override_endpoint(
    struct kvg_workers *workers, struct kvg_str endpoint);

/* What the set amounts to.  The generation counts up at every change that matters: setting a
 * worker to what it is already does not. */
struct kvg_workers_view {
    uint64_t generation;
    size_t worker_count;
    size_t usable_count;
    size_t layout_count;   /* Different layouts among the usable; the most used first. */
    bool endpoints_differ; /* Among the usable, overridden or not. */
    struct kvg_str
        endpoint; /* Of the store's events; absent if none, or if they differ. */
};
KVG_API void kvg_workers_view(
    const struct kvg_workers *workers, struct kvg_workers_view *out);
/* The layouts, the most used first, the older first among equals.  NULL beyond the last. */
KVG_API const struct kvg_layout *kvg_workers_layout(
    const struct kvg_workers *workers, size_t index);
/* The layout of a worker, as an index for kvg_workers_layout(), or -1. */
KVG_API int kvg_workers_layout_of(const struct kvg_workers *workers, uint64_t worker_id);

/* The workers one by one, in order of id: the first whose id is at least `from`.  False at the
 * end.  `error.code` is KVG_OK for a usable one. */
struct kvg_worker_report {
    uint64_t worker_id;
    int layout_index;      /* -1 if unusable. */
    bool layout_differs;   /* Not the layout of most. */
    bool endpoint_differs; /* Advertises another endpoint than most do. */
    struct kvg_str backend;
    struct kvg_str endpoint;
    struct kvg_error error;
};
KVG_API bool kvg_workers_next(
    const struct kvg_workers *workers, uint64_t from, struct kvg_worker_report *out);

KVG_END_DECLS

#endif
