/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* transport.h -- pages between an engine's memory and a store: kvg_transport (graft.h) over any
 * kvg_store.
 *
 *     device pool                                       store: one object a part
 *     plane "_0_k"   layer 0  [slot][slot][slot]...     HEX_0_k   page's layer 0, 1, 2 ...
 *                    layer 1  [slot][slot][slot]...
 *     plane "_0_v"   layer 0  ...                       HEX_0_v
 *
 * A *plane* is what becomes one part of a page: this rank's k, this rank's v, a latent.  A part
 * holds the page's layers one after the other, each `page_size` times `slot_bytes`.  So any rank
 * of any engine with the same layout finds the same bytes under the same name, and the bytes
 * of one layer are one range.
 *
 * Host memory is read and written in place: the store gets pieces and ranges that point into the
 * pool, and nothing is copied on the way.  Other memory goes through staging buffers of bounded
 * size and the caller's copy functions.
 *
 * Loads are read layer by layer, over all pages, so that a forward pass can begin when the first
 * layer is there.  Offloads write one group a page: a page appears with all its parts or not at
 * all, with the page before it as `previous`.  An offload succeeded if all its pages are in the
 * store; of one that failed, whole pages may be there: they are right, since keys name content.
 *
 * Ranks: each writes the parts of its own planes.  What is the same on all ranks (the latents of
 * MLA) is marked `replicated`: one rank writes it, all load it.
 *
 * Threads: the functions of the table belong to one thread, as graft.h says.  The mover's own
 * threads do the work; they never take memory from the allocator.
 *
 * Limits: jobs and pages under way; beyond them load and offload answer KVG_EBUSY.
 */
#ifndef KVGRAFT_TRANSPORT_H
#define KVGRAFT_TRANSPORT_H

#include <kvgraft/graft.h>
#include <kvgraft/layout.h>
#include <kvgraft/store.h>

KVG_BEGIN_DECLS

#define KVG_MOVER_WORKERS_MAX 64u
#define KVG_MOVER_POOLS_MAX 2u    /* FULL and SWA. */
#define KVG_MOVER_PLANES_MAX 128u /* Of a pool. */
#define KVG_MOVER_LAYERS_MAX 1024u
#define KVG_MOVER_JOBS_MAX 65536u

/* One part of a page, as it lies in the engine's memory. */
struct kvg_device_plane {
    struct kvg_str suffix; /* Names the part in the layout: "_0_k". */
    /* Where each layer begins: `layer_count` of the pool.  Slot s of it is at + s * slot_stride. */
    void *const *layers;
    size_t slot_bytes;  /* Stored, of a slot and layer. */
    size_t slot_stride; /* From slot to slot; 0: slot_bytes. */
};

struct kvg_device_pool {
    uint32_t component; /* KVG_COMPONENT_FULL first, then KVG_COMPONENT_SWA. */
    bool replicated;    /* The same on every rank; the owner writes it. */
    uint32_t layer_count;
    /* Which layer of the model each is, ascending; NULL: 0, 1, 2 ... */
    const uint32_t *model_layers;
    uint64_t slot_count; /* Slots at and above it are refused. */
    const struct kvg_device_plane *planes;
    size_t plane_count;
};

/* How to reach memory that is not the host's.  A call returns when its copies are done.  Workers
 * call it, several at a time. */
struct kvg_device_copy {
    void *device;
    void *host;
    size_t bytes;
};
struct kvg_device_memory {
    kvg_err (*read)(void *context, const struct kvg_device_copy *copies, size_t count);
    kvg_err (*write)(void *context, const struct kvg_device_copy *copies, size_t count);
    /* Staging buffers (pinned memory, say).  NULL: from the allocator. */
    void *(*staging_new)(void *context, size_t bytes);
    void (*staging_free)(void *context, void *staging, size_t bytes);
    void *context;
};

struct kvg_mover_options {
    size_t struct_bytes;
    struct kvg_store *store;         /* Borrowed; outlives the mover. */
    const struct kvg_layout *layout; /* Borrowed; outlives the mover. */
    const struct kvg_log *log;       /* NULL: silence. */
    const struct kvg_device_pool *pools;
    size_t pool_count;
    struct kvg_device_memory memory; /* All NULL: host memory, in place. */
    bool owner;            /* Of ranks that hold the same, the one that writes it. */
    bool no_workers;       /* Work is done by kvg_mover_work() and kvg_mover_finish(). */
    uint32_t worker_count; /* Threads; 0: 2. */
    /* 0: as many as make reads of 64 KiB, at most an eighth; or all, if the store reads whole
     * values anyway. */
    uint32_t layers_a_read;
    uint32_t jobs_max;    /* Loads and offloads not taken yet, each; 0: 1,024. */
    uint64_t pages_max;   /* Of all of them together; 0: 1,048,576. */
    size_t staging_bytes; /* Of all workers, if memory is not the host's; 0: 64 MiB. */
};

struct kvg_mover;

/* Copies everything it is given but the store, the layout and what layers point to.
 *
 * KVG_EINVAL, KVG_ELIMIT: `error` names the pool and the plane ("pools[1].planes[0].suffix")
 * KVG_ENOMEM, KVG_EIO: a thread could not be started */
KVG_API KVG_MUST_CHECK kvg_err kvg_mover_new(const struct kvg_alloc *alloc,
    const struct kvg_mover_options *options, struct kvg_mover **out,
    struct kvg_error *error);

/* Ends all work, then frees it.  NULL is allowed. */
KVG_API void kvg_mover_free(struct kvg_mover *mover);

/* The transport, for a linker or an engine; valid as long as the mover.  After close() every load
 * and offload is refused with KVG_ESTATE, and lookups find nothing. */
KVG_API struct kvg_transport kvg_mover_transport(struct kvg_mover *mover);

/* Waits until everything started is done; queued loads stay queued. */
KVG_API void kvg_mover_finish(struct kvg_mover *mover);

/* Does one step of what is waiting: one store call.  False: there was nothing.  For movers without
 * workers. */
KVG_API bool kvg_mover_work(struct kvg_mover *mover);

/* Bytes of a page in the store: those of all planes. */
KVG_API uint64_t kvg_mover_page_bytes(const struct kvg_mover *mover);

struct kvg_mover_stats {
    size_t struct_bytes;
    uint64_t loads_queued, loads_running, offloads_waiting, pages_waiting; /* Now. */
    uint64_t lookups, lookup_keys, lookup_failures;
    uint64_t loads, loads_failed, loads_cancelled, pages_loaded, bytes_loaded;
    uint64_t offloads, offloads_failed, pages_offloaded, bytes_offloaded;
    uint64_t pages_present; /* Offloaded, and there already. */
    uint64_t pages_missing; /* Parts that a load did not find. */
    uint64_t pages_damaged; /* Parts with a wrong size or checksum. */
    uint64_t refused_busy;  /* Loads and offloads over a limit. */
    uint64_t resets;
};
/* For the thread that uses the table. */
KVG_API void kvg_mover_stats(struct kvg_mover *mover, struct kvg_mover_stats *out);

/* Walks all jobs.  KVG_ESTATE names the first broken invariant ("M2"). */
KVG_API KVG_MUST_CHECK kvg_err kvg_mover_check(
    struct kvg_mover *mover, struct kvg_error *error);

KVG_END_DECLS

#endif
