/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* mover.h -- the mover's own structures (mover.c has the picture and the invariants). */
#ifndef KVI_TRANSPORT_MOVER_H
#define KVI_TRANSPORT_MOVER_H

#include <kvgraft/transport.h>

#include <pthread.h>

#define KVI_CHUNK_PAGES 64u   /* Of one store call. */
#define KVI_CHUNK_PARTS 1024u /* Keys of one store call, or of one question. */
#define KVI_BROKEN_BATCHES 64u
#define KVI_NO_PAGE UINT32_MAX

struct kvi_plane {
    uint32_t part; /* Of the layout. */
    char **layers;
    size_t slot_bytes;
    size_t slot_stride;
    uint64_t part_bytes;
};

struct kvi_pool {
    uint32_t component;
    bool replicated;
    uint32_t layer_count;
    uint32_t *model_layers;
    uint64_t slot_count;
    uint32_t plane_count;
    bool strided; /* A plane has a gap behind each slot. */
    struct kvi_plane planes[KVG_MOVER_PLANES_MAX];
};

/* Layers that are read together: some of each pool. */
struct kvi_stage {
    uint32_t model_layer_last;
    struct {
        uint32_t from, to; /* Of the pool's layers; equal: none. */
    } of[KVG_MOVER_POOLS_MAX];
};

/* One transfer, copied.  Page p begins in span at[p].span, at[p].offset slots in. */
struct kvi_pages {
    uint32_t pool;
    uint32_t key_count;
    uint32_t span_count;
    uint32_t runs_max; /* Runs of memory that a page of a plane and layer may need. */
    struct kvg_key *keys;
    struct kvg_span *spans;
    struct kvi_page_at {
        uint32_t span, offset;
    } * at;
};

/* A group to write: a page's number in each transfer, or KVI_NO_PAGE. */
struct kvi_unit {
    uint32_t page[KVG_MOVER_POOLS_MAX];
};

enum kvi_job_state {
    KVI_JOB_QUEUED,  /* A load that was not started. */
    KVI_JOB_STARTED, /* Steps are to be done, or being done. */
    KVI_JOB_DONE
};

struct kvi_job {
    struct kvi_job *next;
    size_t bytes; /* Of this block. */
    enum kvi_job_state state;
    kvg_request_id request;
    int64_t batch;
    uint32_t page_count; /* Of all transfers. */
    uint32_t transfer_count;
    struct kvi_pages transfers[KVG_MOVER_POOLS_MAX];
    /* The next step.  A load: pages of one transfer in one stage.  An offload: units. */
    uint32_t stage, transfer, page;
    uint32_t in_flight;
    uint32_t *in_flight_of; /* A load: by stage. */
    struct kvi_unit *units;
    uint32_t unit_count;
    bool has_previous;
    struct kvg_key previous;
    kvg_err err;
    struct kvg_error why;
};

struct kvi_jobs {
    struct kvi_job *first;
    struct kvi_job **last;
    uint32_t count;
};

/* What one thread needs for a store call; made once. */
struct kvi_scratch {
    char *names; /* KVI_CHUNK_PARTS * NAME_BYTES */
    char *ids;   /* KVI_CHUNK_PAGES * ID_BYTES */
    struct kvg_str *keys;
    struct kvg_store_get *gets;
    struct kvg_store_part *parts;
    struct kvg_store_group *groups;
    struct kvg_store_range *ranges; /* piece_max of the mover. */
    struct kvg_store_piece *pieces;
    struct kvg_device_copy *copies;
    char *staging;
};
#define KVI_NAME_BYTES (KVG_OBJECT_KEY_BYTES_MAX + 1u)
#define KVI_ID_BYTES (KVG_GROUP_ID_BYTES_MAX + 1u)

/* A step, as it was cut off a job. */
struct kvi_step {
    struct kvi_job *job;
    bool is_load;
    uint32_t stage, transfer;
    uint32_t from, to; /* Pages, or units. */
};

struct kvi_worker {
    struct kvg_mover *mover;
    pthread_t thread;
    bool running;
    struct kvi_scratch scratch;
};

struct kvg_mover {
    struct kvg_alloc alloc;
    struct kvg_store *store;
    const struct kvg_layout *layout;
    const struct kvg_log *log;
    struct kvg_device_memory memory;
    bool in_place;
    bool owner;
    uint32_t page_size;
    uint32_t pool_count;
    struct kvi_pool pools[KVG_MOVER_POOLS_MAX];
    uint32_t stage_count;
    struct kvi_stage *stages;
    size_t stages_room;
    uint32_t piece_max;
    size_t staging_bytes; /* Of a worker. */
    uint64_t page_bytes;
    uint32_t jobs_max;
    uint64_t pages_max;

    struct kvi_scratch asking; /* For lookups: the embedder's thread. */
    uint8_t *present;
    uint32_t *good; /* Trailing pages before each length; grown by lookups. */
    size_t good_room;

    struct kvi_worker *workers;
    uint32_t worker_room;
    uint32_t worker_count; /* Threads that run. */

    pthread_mutex_t lock;    /* Of everything below. */
    pthread_cond_t work;     /* There may be a step to do. */
    pthread_cond_t progress; /* A step was done. */
    struct kvi_jobs loads, offloads;
    uint32_t running; /* Steps. */
    bool draining;    /* No new step. */
    bool stopping;
    bool closed;
    uint32_t turns; /* Loads come first, but for every eighth step. */
    int64_t next_batch;
    struct {
        int64_t batch;
        kvg_err err;
    } broken[KVI_BROKEN_BATCHES]; /* Batches of failed loads that were taken. */
    uint32_t broken_next;
    struct kvg_mover_stats stats;
};

/* jobs.c */
kvg_err kvi_job_make(struct kvg_mover *mover, const struct kvg_tree_transfer *transfers,
    size_t transfer_count, bool is_load, struct kvi_job **out);
void kvi_job_free(struct kvg_mover *mover, struct kvi_job *job);
void kvi_jobs_append(struct kvi_jobs *jobs, struct kvi_job *job);
/* Takes out the job that *link points to. */
struct kvi_job *kvi_jobs_take(struct kvi_jobs *jobs, struct kvi_job **link);

/* steps.c.  Pages, or units, that one step of the job may take. */
uint32_t kvi_step_pages(
    const struct kvg_mover *mover, const struct kvi_job *job, uint32_t transfer);
uint32_t kvi_step_units(const struct kvg_mover *mover, const struct kvi_job *job);
kvg_err kvi_step_load(struct kvg_mover *mover, struct kvi_scratch *scratch,
    const struct kvi_step *step, struct kvg_mover_stats *counted, struct kvg_error *why);
kvg_err kvi_step_offload(struct kvg_mover *mover, struct kvi_scratch *scratch,
    const struct kvi_step *step, struct kvg_mover_stats *counted, struct kvg_error *why);

/* lookup.c */
kvg_err kvi_mover_lookup(struct kvg_mover *mover,
    const struct kvg_tree_transfer *transfers, size_t transfer_count, uint32_t *lengths,
    size_t length_max, size_t *length_count_out);

/* queue.c: with the lock held, or taking it, as each says. */
bool kvi_queue_step(struct kvg_mover *mover, struct kvi_scratch *scratch); /* Held. */
void *kvi_worker_main(void *worker);
extern const struct kvg_transport kvi_mover_table;

/* options.c */
kvg_err kvi_mover_configure(struct kvg_mover *mover,
    const struct kvg_mover_options *options, struct kvg_error *error);
void kvi_mover_unconfigure(struct kvg_mover *mover);

#endif
