/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* mover.c -- the linker's transport over a store (transport.h): its life, and its check.
 *
 *     linker's thread                          workers
 *     ---------------                          -------
 *     load, offload   -> jobs, with a lock ->  cut a step off a job        queue.c
 *     start_loads                              one store call, no lock     steps.c
 *     wait_layer      <- progress          <-  count it
 *     take_...        <- jobs that are done
 *     lookup             asks the store itself                             lookup.c
 *
 * A job is a copy of its transfers (jobs.c).  Pools, planes and stages never change after
 * kvg_mover_new() (options.c).
 *
 * Invariants, with the lock held (kvg_mover_check):
 *   M1  pages_waiting is the sum of the pages of all jobs; lists are as long as they say
 *   M2  running is the sum of the steps of all jobs under way, and a load's is that of its stages
 *   M3  a queued load has no step under way and its cursor at its beginning
 *   M4  a job is done if and only if it is started, its cursor at its end, no step under way
 *   M5  an offload has at most one step under way
 *   M6  requests of loads differ
 *
 * Not here: which store, what pages mean, when to load; retries (a page that fails is computed).
 */
#include "transport/mover.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/fmt.h"

#include <string.h>

/* ---- Scratch ------------------------------------------------------------------------------- */

static bool scratch_new(struct kvg_mover *mover, struct kvi_scratch *s)
{
    const struct kvg_alloc *alloc = &mover->alloc;
    size_t pieces = mover->piece_max;

    s->names = kvi_alloc_array_raw(alloc, KVI_CHUNK_PARTS, KVI_NAME_BYTES);
    s->ids = kvi_alloc_array_raw(alloc, KVI_CHUNK_PAGES, KVI_ID_BYTES + KVI_NAME_BYTES);
    s->gets = kvi_alloc_array_raw(alloc, KVI_CHUNK_PARTS, sizeof(*s->gets));
    s->parts = kvi_alloc_array_raw(alloc, KVI_CHUNK_PARTS, sizeof(*s->parts));
    s->groups = kvi_alloc_array_raw(alloc, KVI_CHUNK_PAGES, sizeof(*s->groups));
    s->ranges = kvi_alloc_array_raw(alloc, pieces, sizeof(*s->ranges));
    s->pieces = kvi_alloc_array_raw(alloc, pieces, sizeof(*s->pieces));
    if (s->names == NULL || s->ids == NULL || s->gets == NULL || s->parts == NULL ||
        s->groups == NULL || s->ranges == NULL || s->pieces == NULL)
        return false;
    if (mover->in_place)
        return true;
    s->copies = kvi_alloc_array_raw(alloc, pieces, sizeof(*s->copies));
    if (mover->memory.staging_new != NULL)
        s->staging =
            mover->memory.staging_new(mover->memory.context, mover->staging_bytes);
    else
        s->staging = alloc->allocate(alloc->context, mover->staging_bytes);
    return s->copies != NULL && s->staging != NULL;
}

static void scratch_free(struct kvg_mover *mover, struct kvi_scratch *s)
{
    const struct kvg_alloc *alloc = &mover->alloc;
    size_t pieces = mover->piece_max;

    kvi_release_array(alloc, s->names, KVI_CHUNK_PARTS, KVI_NAME_BYTES);
    kvi_release_array(alloc, s->ids, KVI_CHUNK_PAGES, KVI_ID_BYTES + KVI_NAME_BYTES);
    kvi_release_array(alloc, s->gets, KVI_CHUNK_PARTS, sizeof(*s->gets));
    kvi_release_array(alloc, s->parts, KVI_CHUNK_PARTS, sizeof(*s->parts));
    kvi_release_array(alloc, s->groups, KVI_CHUNK_PAGES, sizeof(*s->groups));
    kvi_release_array(alloc, s->ranges, pieces, sizeof(*s->ranges));
    kvi_release_array(alloc, s->pieces, pieces, sizeof(*s->pieces));
    kvi_release_array(alloc, s->copies, pieces, sizeof(*s->copies));
    if (s->staging == NULL)
        return;
    if (mover->memory.staging_new != NULL)
        mover->memory.staging_free(
            mover->memory.context, s->staging, mover->staging_bytes);
    else
        alloc->release(alloc->context, s->staging, mover->staging_bytes);
}

/* What a lookup needs of it. */
static bool asking_new(struct kvg_mover *mover)
{
    const struct kvg_alloc *alloc = &mover->alloc;

    mover->asking.names = kvi_alloc_array_raw(alloc, KVI_CHUNK_PARTS, KVI_NAME_BYTES);
    mover->asking.keys =
        kvi_alloc_array_raw(alloc, KVI_CHUNK_PARTS, sizeof(*mover->asking.keys));
    mover->present = kvi_alloc_array_raw(alloc, KVI_CHUNK_PARTS, 1);
    return mover->asking.names != NULL && mover->asking.keys != NULL &&
           mover->present != NULL;
}

static void asking_free(struct kvg_mover *mover)
{
    const struct kvg_alloc *alloc = &mover->alloc;

    kvi_release_array(alloc, mover->asking.names, KVI_CHUNK_PARTS, KVI_NAME_BYTES);
    kvi_release_array(
        alloc, mover->asking.keys, KVI_CHUNK_PARTS, sizeof(*mover->asking.keys));
    kvi_release_array(alloc, mover->present, KVI_CHUNK_PARTS, 1);
    kvi_release_array(alloc, mover->good, mover->good_room, sizeof(*mover->good));
}

/* ---- Life ---------------------------------------------------------------------------------- */

static kvg_err start_workers(
    struct kvg_mover *mover, bool no_workers, struct kvg_error *error)
{
    mover->workers =
        kvi_alloc_array(&mover->alloc, mover->worker_room, sizeof(*mover->workers));
    if (mover->workers == NULL)
        return kvi_fail(error, KVG_ENOMEM, "worker_count", "no memory for workers");
    for (uint32_t i = 0; i < mover->worker_room; i++) {
        struct kvi_worker *worker = &mover->workers[i];
        worker->mover = mover;
        if (!scratch_new(mover, &worker->scratch))
            return kvi_fail(error, KVG_ENOMEM, "worker_count", "no memory for workers");
    }
    for (uint32_t i = 0; i < mover->worker_room && !no_workers; i++) {
        struct kvi_worker *worker = &mover->workers[i];
        if (pthread_create(&worker->thread, NULL, kvi_worker_main, worker) != 0)
            return kvi_fail(
                error, KVG_EIO, "worker_count", "a thread could not be started");
        worker->running = true;
        mover->worker_count++;
    }
    return KVG_OK;
}

kvg_err kvg_mover_new(const struct kvg_alloc *alloc,
    const struct kvg_mover_options *options, struct kvg_mover **out,
    struct kvg_error *error)
{
    struct kvg_mover *mover;
    kvg_err err;

    *out = NULL;
    if (options->store == NULL || options->layout == NULL)
        return kvi_fail(error, KVG_EINVAL, "store", "a store and a layout are needed");
    mover = KVI_NEW(alloc, struct kvg_mover);
    if (mover == NULL)
        return kvi_fail(error, KVG_ENOMEM, "mover", "no memory");
    mover->alloc = *alloc;
    mover->store = options->store;
    mover->layout = options->layout;
    mover->log = options->log;
    mover->owner = options->owner;
    mover->loads.last = &mover->loads.first;
    mover->offloads.last = &mover->offloads.first;
    (void)pthread_mutex_init(&mover->lock, NULL);
    (void)pthread_cond_init(&mover->work, NULL);
    (void)pthread_cond_init(&mover->progress, NULL);
    err = kvi_mover_configure(mover, options, error);
    if (err == KVG_OK && !asking_new(mover))
        err = kvi_fail(error, KVG_ENOMEM, "mover", "no memory");
    if (err == KVG_OK)
        err = start_workers(mover, options->no_workers, error);
    if (err != KVG_OK) {
        kvg_mover_free(mover);
        return err;
    }
    *out = mover;
    return KVG_OK;
}

void kvg_mover_free(struct kvg_mover *mover)
{
    if (mover == NULL)
        return;
    kvi_mover_table.close(mover);
    pthread_mutex_lock(&mover->lock);
    mover->stopping = true;
    pthread_cond_broadcast(&mover->work);
    pthread_mutex_unlock(&mover->lock);
    for (uint32_t i = 0; mover->workers != NULL && i < mover->worker_room; i++) {
        if (mover->workers[i].running)
            pthread_join(mover->workers[i].thread, NULL);
        scratch_free(mover, &mover->workers[i].scratch);
    }
    kvi_release_array(
        &mover->alloc, mover->workers, mover->worker_room, sizeof(*mover->workers));
    asking_free(mover);
    kvi_mover_unconfigure(mover);
    pthread_cond_destroy(&mover->progress);
    pthread_cond_destroy(&mover->work);
    pthread_mutex_destroy(&mover->lock);
    const struct kvg_alloc alloc = mover->alloc;
    KVI_FREE(&alloc, mover);
}

struct kvg_transport kvg_mover_transport(struct kvg_mover *mover)
{
    struct kvg_transport table = kvi_mover_table;

    table.context = mover;
    return table;
}

/* ---- Steps by hand ------------------------------------------------------------------------- */

bool kvg_mover_work(struct kvg_mover *mover)
{
    bool did;

    KVI_ASSERT(mover->worker_count == 0); /* The scratch belongs to a thread else. */
    pthread_mutex_lock(&mover->lock);
    did = kvi_queue_step(mover, &mover->workers[0].scratch);
    pthread_mutex_unlock(&mover->lock);
    return did;
}

static bool is_idle(const struct kvg_mover *mover)
{
    for (const struct kvi_job *job = mover->loads.first; job != NULL; job = job->next) {
        if (job->state == KVI_JOB_STARTED)
            return false;
    }
    for (const struct kvi_job *job = mover->offloads.first; job != NULL;
         job = job->next) {
        if (job->state == KVI_JOB_STARTED)
            return false;
    }
    return true;
}

void kvg_mover_finish(struct kvg_mover *mover)
{
    pthread_mutex_lock(&mover->lock);
    while (!is_idle(mover)) {
        if (mover->worker_count != 0)
            pthread_cond_wait(&mover->progress, &mover->lock);
        else
            KVI_ASSERT(kvi_queue_step(mover, &mover->workers[0].scratch));
    }
    pthread_mutex_unlock(&mover->lock);
}

/* ---- Looking at it ------------------------------------------------------------------------- */

uint64_t kvg_mover_page_bytes(const struct kvg_mover *mover)
{
    return mover->page_bytes;
}

void kvg_mover_stats(struct kvg_mover *mover, struct kvg_mover_stats *out)
{
    struct kvg_mover_stats stats;
    size_t bytes = out->struct_bytes < sizeof(stats) ? out->struct_bytes : sizeof(stats);

    pthread_mutex_lock(&mover->lock);
    stats = mover->stats;
    for (const struct kvi_job *job = mover->loads.first; job != NULL; job = job->next) {
        stats.loads_queued += job->state == KVI_JOB_QUEUED;
        stats.loads_running += job->state == KVI_JOB_STARTED;
    }
    for (const struct kvi_job *job = mover->offloads.first; job != NULL; job = job->next)
        stats.offloads_waiting += job->state == KVI_JOB_STARTED;
    pthread_mutex_unlock(&mover->lock);
    stats.struct_bytes = bytes;
    memcpy(out, &stats, bytes);
}

static const char *check_load(const struct kvg_mover *mover, const struct kvi_job *job)
{
    uint32_t in_flight = 0;
    bool at_end = job->stage == mover->stage_count;

    for (uint32_t i = 0; i < mover->stage_count; i++)
        in_flight += job->in_flight_of[i];
    if (in_flight != job->in_flight)
        return "M2";
    if (job->state == KVI_JOB_QUEUED && (in_flight != 0 || job->page != 0 || at_end))
        return "M3";
    if ((job->state == KVI_JOB_DONE) != (at_end && in_flight == 0))
        return "M4";
    for (const struct kvi_job *other = job->next; other != NULL; other = other->next) {
        if (other->request == job->request)
            return "M6";
    }
    return NULL;
}

static const char *check_offload(const struct kvi_job *job)
{
    bool at_end = job->page == job->unit_count;

    if (job->in_flight > 1)
        return "M5";
    return (job->state == KVI_JOB_DONE) != (at_end && job->in_flight == 0) ? "M4" : NULL;
}

static const char *check_all(const struct kvg_mover *mover)
{
    uint64_t pages = 0;
    uint32_t running = 0;
    uint32_t loads = 0;
    uint32_t offloads = 0;
    const char *broken = NULL;

    for (const struct kvi_job *job = mover->loads.first; job != NULL; job = job->next) {
        pages += job->page_count;
        running += job->in_flight;
        loads++;
        if (broken == NULL)
            broken = check_load(mover, job);
    }
    for (const struct kvi_job *job = mover->offloads.first; job != NULL;
         job = job->next) {
        pages += job->page_count;
        running += job->in_flight;
        offloads++;
        if (broken == NULL)
            broken = check_offload(job);
    }
    if (broken != NULL)
        return broken;
    if (pages != mover->stats.pages_waiting || loads != mover->loads.count ||
        offloads != mover->offloads.count)
        return "M1";
    return running == mover->running ? NULL : "M2";
}

kvg_err kvg_mover_check(struct kvg_mover *mover, struct kvg_error *error)
{
    const char *broken;

    pthread_mutex_lock(&mover->lock);
    broken = check_all(mover);
    pthread_mutex_unlock(&mover->lock);
    return broken == NULL ? KVG_OK : kvi_fail(error, KVG_ESTATE, broken, "does not hold");
}
