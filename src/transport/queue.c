/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* queue.c -- jobs from their call to their result, and who does the next step.
 *
 *     loads      [done][started: stage 2, page 64][started: stage 0][queued]
 *     offloads   [done][started: unit 64][started: unit 0]
 *                 ^ taken from the front, in order
 *
 * The next step is the load's whose batch is the oldest, then whose stage is the lowest: so all
 * pages of a layer come before any page of the next.  Offloads wait for loads, but every
 * eighth step is theirs.  A job has any number of steps under way, an offload one: its pages
 * appear from the head of the prompt.
 *
 * A failed step ends its job's cursor; the job is done when no step of it is under way.
 *
 * Reset stops the cutting of steps, waits for those under way, and frees every job: then no
 * slot is touched any more.
 *
 * Locking: one lock for lists, cursors and counts; a step runs without it.
 */
#include "transport/mover.h"

#include "base/assert.h"
#include "base/fmt.h"

#include <string.h>

/* ---- Steps --------------------------------------------------------------------------------- */

static bool load_has_step(const struct kvg_mover *mover, const struct kvi_job *job)
{
    return job->state == KVI_JOB_STARTED && job->stage < mover->stage_count;
}

static bool offload_has_step(const struct kvi_job *job)
{
    return job->state == KVI_JOB_STARTED && job->page < job->unit_count &&
           job->in_flight == 0;
}

/* Moves a load's cursor to where there is something to read. */
static void settle_cursor(const struct kvg_mover *mover, struct kvi_job *job)
{
    while (job->stage < mover->stage_count) {
        if (job->transfer == job->transfer_count) {
            job->transfer = 0;
            job->stage++;
            continue;
        }
        const struct kvi_pages *pages = &job->transfers[job->transfer];
        const struct kvi_stage *stage = &mover->stages[job->stage];
        if (job->page < pages->key_count &&
            stage->of[pages->pool].from < stage->of[pages->pool].to)
            return;
        job->page = 0;
        job->transfer++;
    }
}

static struct kvi_job *next_load(struct kvg_mover *mover)
{
    struct kvi_job *best = NULL;

    for (struct kvi_job *job = mover->loads.first; job != NULL; job = job->next) {
        if (load_has_step(mover, job) &&
            (best == NULL || job->batch < best->batch ||
                (job->batch == best->batch && job->stage < best->stage)))
            best = job;
    }
    return best;
}

static struct kvi_job *next_offload(struct kvg_mover *mover)
{
    struct kvi_job *job = mover->offloads.first;

    while (job != NULL && !offload_has_step(job))
        job = job->next;
    return job;
}

static bool cut_step(struct kvg_mover *mover, struct kvi_step *out)
{
    struct kvi_job *load = next_load(mover);
    struct kvi_job *offload = next_offload(mover);
    uint32_t most;

    if (mover->draining || (load == NULL && offload == NULL))
        return false;
    if (load != NULL && (offload == NULL || mover->turns++ % 8 != 7)) {
        *out = (struct kvi_step){.job = load,
            .is_load = true,
            .stage = load->stage,
            .transfer = load->transfer,
            .from = load->page,
            .to = load->transfers[load->transfer].key_count};
        most = kvi_step_pages(mover, load, load->transfer);
        if (out->to - out->from > most)
            out->to = out->from + most;
        load->page = out->to;
        load->in_flight_of[load->stage]++;
        settle_cursor(mover, load);
    } else {
        *out = (struct kvi_step){
            .job = offload, .from = offload->page, .to = offload->unit_count};
        most = kvi_step_units(mover, offload);
        if (out->to - out->from > most)
            out->to = out->from + most;
        offload->page = out->to;
    }
    out->job->in_flight++;
    mover->running++;
    return true;
}

static void finish_if_over(struct kvg_mover *mover, struct kvi_job *job, bool is_load)
{
    bool over = is_load ? job->stage == mover->stage_count : job->page == job->unit_count;

    if (over && job->in_flight == 0)
        job->state = KVI_JOB_DONE;
}

static void end_step(struct kvg_mover *mover, const struct kvi_step *step, kvg_err err,
    const struct kvg_error *why)
{
    struct kvi_job *job = step->job;

    mover->running--;
    job->in_flight--;
    if (step->is_load)
        job->in_flight_of[step->stage]--;
    if (err != KVG_OK && job->err == KVG_OK) {
        job->err = err;
        job->why = *why;
        if (step->is_load)
            job->stage = mover->stage_count;
        else
            job->page = job->unit_count;
    }
    finish_if_over(mover, job, step->is_load);
}

static void add_counts(struct kvg_mover_stats *to, const struct kvg_mover_stats *from)
{
    to->bytes_loaded += from->bytes_loaded;
    to->bytes_offloaded += from->bytes_offloaded;
    to->pages_present += from->pages_present;
    to->pages_missing += from->pages_missing;
    to->pages_damaged += from->pages_damaged;
}

bool kvi_queue_step(struct kvg_mover *mover, struct kvi_scratch *scratch)
{
    struct kvg_mover_stats counted = {0};
    struct kvg_error why = {0};
    struct kvi_step step;
    kvg_err err;

    if (!cut_step(mover, &step))
        return false;
    pthread_mutex_unlock(&mover->lock);
    if (step.is_load)
        err = kvi_step_load(mover, scratch, &step, &counted, &why);
    else
        err = kvi_step_offload(mover, scratch, &step, &counted, &why);
    pthread_mutex_lock(&mover->lock);
    add_counts(&mover->stats, &counted);
    end_step(mover, &step, err, &why);
    /* The end of this step may be what another waits for, also to begin one. */
    pthread_cond_broadcast(&mover->progress);
    if (!step.is_load)
        pthread_cond_signal(&mover->work);
    return true;
}

void *kvi_worker_main(void *argument)
{
    struct kvi_worker *worker = argument;
    struct kvg_mover *mover = worker->mover;

    pthread_mutex_lock(&mover->lock);
    while (!mover->stopping) {
        if (!kvi_queue_step(mover, &worker->scratch))
            pthread_cond_wait(&mover->work, &mover->lock);
    }
    pthread_mutex_unlock(&mover->lock);
    return NULL;
}

/* ---- The table ----------------------------------------------------------------------------- */

static kvg_err table_lookup(void *context, kvg_request_id request,
    const struct kvg_tree_transfer *transfers, size_t transfer_count, uint32_t *lengths,
    size_t length_max, size_t *length_count_out)
{
    struct kvg_mover *mover = context;
    kvg_err err;

    (void)request;
    *length_count_out = 0;
    if (mover->closed)
        return KVG_ESTATE;
    mover->stats.lookups++;
    err = kvi_mover_lookup(
        mover, transfers, transfer_count, lengths, length_max, length_count_out);
    if (err != KVG_OK)
        mover->stats.lookup_failures++;
    return err;
}

/* Makes a job if there is room for it. */
static kvg_err admit(struct kvg_mover *mover, const struct kvg_tree_transfer *transfers,
    size_t transfer_count, bool is_load, struct kvi_job **out)
{
    struct kvi_jobs *jobs = is_load ? &mover->loads : &mover->offloads;
    kvg_err err;

    *out = NULL;
    if (mover->closed)
        return KVG_ESTATE;
    err = kvi_job_make(mover, transfers, transfer_count, is_load, out);
    if (err != KVG_OK)
        return err;
    pthread_mutex_lock(&mover->lock);
    if (jobs->count >= mover->jobs_max ||
        (*out)->page_count > mover->pages_max - mover->stats.pages_waiting) {
        mover->stats.refused_busy++;
        err = KVG_EBUSY;
    } else {
        mover->stats.pages_waiting += (*out)->page_count;
    }
    pthread_mutex_unlock(&mover->lock);
    if (err != KVG_OK) {
        kvi_job_free(mover, *out);
        *out = NULL;
    }
    return err;
}

static bool is_loading(const struct kvg_mover *mover, kvg_request_id request)
{
    const struct kvi_job *job = mover->loads.first;

    while (job != NULL && job->request != request)
        job = job->next;
    return job != NULL;
}

static kvg_err table_load(void *context, kvg_request_id request,
    const struct kvg_tree_transfer *transfers, size_t transfer_count)
{
    struct kvg_mover *mover = context;
    struct kvi_job *job;
    kvg_err err;

    pthread_mutex_lock(&mover->lock);
    err = is_loading(mover, request) ? KVG_EEXIST : KVG_OK;
    pthread_mutex_unlock(&mover->lock);
    if (err == KVG_OK)
        err = admit(mover, transfers, transfer_count, true, &job);
    if (err != KVG_OK)
        return err;
    job->request = request;
    settle_cursor(mover, job);
    pthread_mutex_lock(&mover->lock);
    kvi_jobs_append(&mover->loads, job);
    pthread_mutex_unlock(&mover->lock);
    return KVG_OK;
}

static int64_t table_start_loads(void *context)
{
    struct kvg_mover *mover = context;
    int64_t batch = -1;

    pthread_mutex_lock(&mover->lock);
    for (struct kvi_job *job = mover->loads.first; job != NULL; job = job->next) {
        if (job->state != KVI_JOB_QUEUED)
            continue;
        job->state = KVI_JOB_STARTED;
        job->batch = batch = mover->next_batch;
    }
    if (batch >= 0) {
        mover->next_batch++;
        pthread_cond_broadcast(&mover->work);
    }
    pthread_mutex_unlock(&mover->lock);
    return batch;
}

static void drop(struct kvg_mover *mover, struct kvi_jobs *jobs, struct kvi_job **link)
{
    struct kvi_job *job = kvi_jobs_take(jobs, link);

    mover->stats.pages_waiting -= job->page_count;
    kvi_job_free(mover, job);
}

static bool table_cancel_load(void *context, kvg_request_id request)
{
    struct kvg_mover *mover = context;
    struct kvi_job **link = &mover->loads.first;
    bool found;

    pthread_mutex_lock(&mover->lock);
    while (*link != NULL && (*link)->request != request)
        link = &(*link)->next;
    found = *link != NULL && (*link)->state == KVI_JOB_QUEUED;
    if (found) {
        drop(mover, &mover->loads, link);
        mover->stats.loads_cancelled++;
    }
    pthread_mutex_unlock(&mover->lock);
    return found;
}

static void say_failed(
    const struct kvg_mover *mover, const char *what, const struct kvi_job *job)
{
    char line[320];
    struct kvi_text text;

    if (mover->log == NULL || mover->log->write == NULL || job->err == KVG_OK)
        return;
    kvi_text_init(&text, line, sizeof(line));
    kvi_text_str(&text, what);
    kvi_text_str(&text, " of ");
    kvi_text_u64(&text, job->page_count);
    kvi_text_str(&text, " pages failed: ");
    kvi_text_str(
        &text, job->why.message[0] != '\0' ? job->why.message : kvg_strerror(job->err));
    mover->log->write(mover->log->context, KVG_LOG_WARN, "transport", line);
}

static void count_load(struct kvg_mover *mover, const struct kvi_job *job)
{
    mover->stats.loads++;
    if (job->err == KVG_OK) {
        mover->stats.pages_loaded += job->page_count;
        return;
    }
    mover->stats.loads_failed++;
    mover->broken[mover->broken_next].batch = job->batch;
    mover->broken[mover->broken_next].err = job->err;
    mover->broken_next = (mover->broken_next + 1) % KVI_BROKEN_BATCHES;
    say_failed(mover, "a load", job);
}

static size_t table_take_loads(
    void *context, struct kvg_load_result *results, size_t result_max)
{
    struct kvg_mover *mover = context;
    struct kvi_job **link = &mover->loads.first;
    size_t count = 0;

    pthread_mutex_lock(&mover->lock);
    while (*link != NULL && count < result_max) {
        const struct kvi_job *job = *link;
        if (job->state != KVI_JOB_DONE) {
            link = &(*link)->next;
            continue;
        }
        results[count++] = (struct kvg_load_result){job->request, job->err == KVG_OK};
        count_load(mover, job);
        drop(mover, &mover->loads, link);
    }
    pthread_mutex_unlock(&mover->lock);
    return count;
}

static kvg_err table_offload(
    void *context, const struct kvg_tree_transfer *transfers, size_t transfer_count)
{
    struct kvg_mover *mover = context;
    struct kvi_job *job;
    kvg_err err = admit(mover, transfers, transfer_count, false, &job);

    if (err != KVG_OK)
        return err;
    job->state = KVI_JOB_STARTED;
    finish_if_over(mover, job, false); /* Another rank writes it all. */
    pthread_mutex_lock(&mover->lock);
    kvi_jobs_append(&mover->offloads, job);
    pthread_cond_signal(&mover->work);
    pthread_mutex_unlock(&mover->lock);
    return KVG_OK;
}

static size_t table_take_offloads(void *context, bool *results, size_t result_max)
{
    struct kvg_mover *mover = context;
    struct kvi_job **link = &mover->offloads.first;
    size_t count = 0;

    pthread_mutex_lock(&mover->lock);
    while (*link != NULL && count < result_max) {
        const struct kvi_job *job = *link;
        if (job->state != KVI_JOB_DONE)
            break;
        results[count++] = job->err == KVG_OK;
        mover->stats.offloads++;
        if (job->err == KVG_OK)
            mover->stats.pages_offloaded += job->page_count;
        else
            mover->stats.offloads_failed++;
        say_failed(mover, "an offload", job);
        drop(mover, &mover->offloads, link);
    }
    pthread_mutex_unlock(&mover->lock);
    return count;
}

/* ---- Waiting ------------------------------------------------------------------------------- */

/* The stage that reads a layer of the model; beyond the last, the last. */
static uint32_t stage_of(const struct kvg_mover *mover, uint32_t layer)
{
    uint32_t stage = 0;

    while (
        stage + 1 < mover->stage_count && mover->stages[stage].model_layer_last < layer)
        stage++;
    return stage;
}

/* Whether every load of a batch is past a stage, or one of them failed. */
static bool is_past(
    const struct kvg_mover *mover, int64_t batch, uint32_t stage, kvg_err *err)
{
    for (const struct kvi_job *job = mover->loads.first; job != NULL; job = job->next) {
        if (job->state == KVI_JOB_QUEUED || job->batch != batch)
            continue;
        if (job->err != KVG_OK) {
            *err = job->err;
            return true;
        }
        if (job->state != KVI_JOB_DONE &&
            (job->stage <= stage || job->in_flight_of[stage] != 0))
            return false;
    }
    for (uint32_t i = 0; i < KVI_BROKEN_BATCHES; i++) {
        if (mover->broken[i].err != KVG_OK && mover->broken[i].batch == batch)
            *err = mover->broken[i].err;
    }
    return true;
}

static kvg_err table_wait_layer(void *context, int64_t batch, uint32_t layer)
{
    struct kvg_mover *mover = context;
    kvg_err err = KVG_OK;
    uint32_t stage = stage_of(mover, layer);

    pthread_mutex_lock(&mover->lock);
    if (batch < 0 || batch >= mover->next_batch) {
        pthread_mutex_unlock(&mover->lock);
        return KVG_EINVAL;
    }
    while (!is_past(mover, batch, stage, &err)) {
        if (mover->worker_count != 0)
            pthread_cond_wait(&mover->progress, &mover->lock);
        else if (!kvi_queue_step(mover, &mover->workers[0].scratch))
            KVI_ASSERT(false); /* A started load has a step. */
    }
    pthread_mutex_unlock(&mover->lock);
    return err;
}

static void drop_all(struct kvg_mover *mover)
{
    mover->draining = true;
    while (mover->running != 0)
        pthread_cond_wait(&mover->progress, &mover->lock);
    while (mover->loads.first != NULL)
        drop(mover, &mover->loads, &mover->loads.first);
    while (mover->offloads.first != NULL)
        drop(mover, &mover->offloads, &mover->offloads.first);
    memset(mover->broken, 0, sizeof(mover->broken));
    mover->draining = false;
}

static void table_reset(void *context)
{
    struct kvg_mover *mover = context;

    pthread_mutex_lock(&mover->lock);
    mover->stats.resets++;
    drop_all(mover);
    pthread_mutex_unlock(&mover->lock);
}

static void table_close(void *context)
{
    struct kvg_mover *mover = context;

    pthread_mutex_lock(&mover->lock);
    mover->closed = true;
    drop_all(mover);
    pthread_mutex_unlock(&mover->lock);
}

const struct kvg_transport kvi_mover_table = {.struct_bytes = sizeof(kvi_mover_table),
    .lookup = table_lookup,
    .load = table_load,
    .start_loads = table_start_loads,
    .cancel_load = table_cancel_load,
    .take_loads = table_take_loads,
    .offload = table_offload,
    .take_offloads = table_take_offloads,
    .wait_layer = table_wait_layer,
    .reset = table_reset,
    .close = table_close};
