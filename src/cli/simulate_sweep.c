/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* simulate_sweep.c -- many runs on few threads (simulate.h).
 *
 *     thread           does
 *     ---------------  ---------------------------------------------------------------
 *     the caller's     jobs, like the others; draws the progress; sees Ctrl-C
 *     up to one more   jobs
 *
 * Jobs share nothing but the trace, which nobody changes.  Each thread takes the next job by one
 * atomic addition; `failed` makes all of them end.
 */
#include "cli/simulate.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

struct sweep {
    struct kvc_sim_job *jobs;
    size_t job_count;
    uint64_t requests;
    atomic_size_t next;
    atomic_size_t done;
    atomic_uint_fast64_t requests_done;
    atomic_bool failed;
    struct kvc_progress progress;
};

struct worker {
    struct sweep *sweep;
    bool is_caller;
    kvg_err err;
    struct kvg_error error;
};

static bool go_on(void *context, uint64_t requests)
{
    struct worker *worker = context;
    struct sweep *sweep = worker->sweep;
    uint64_t done = atomic_fetch_add(&sweep->requests_done, requests) + requests;

    if (worker->is_caller) {
        kvc_progress(&sweep->progress, "%zu of %zu runs, %.0f %% of the requests",
            atomic_load(&sweep->done), sweep->job_count,
            100.0 * (double)done / (double)sweep->requests);
        if (kvc_stopped)
            atomic_store(&sweep->failed, true);
    }
    return !atomic_load(&sweep->failed);
}

static void *work(void *context)
{
    struct worker *worker = context;
    struct sweep *sweep = worker->sweep;

    while (!atomic_load(&sweep->failed)) {
        size_t index = atomic_fetch_add(&sweep->next, 1);
        struct kvc_sim_job *job;

        if (index >= sweep->job_count)
            break;
        job = &sweep->jobs[index];
        worker->err = kvc_sim_run(
            job->trace, &job->setup, go_on, worker, &job->result, &worker->error);
        if (worker->err != KVG_OK)
            atomic_store(&sweep->failed, true);
        atomic_fetch_add(&sweep->done, 1);
    }
    return NULL;
}

/* The failure that made the others end, not theirs. */
static kvg_err first_failure(
    const struct worker *workers, uint32_t count, struct kvg_error *error)
{
    kvg_err err = KVG_OK;
    uint32_t i;

    for (i = 0; i < count; i++) {
        if (workers[i].err == KVG_OK || (err != KVG_OK && err != KVG_ECANCELED))
            continue;
        err = workers[i].err;
        *error = workers[i].error;
    }
    if (err == KVG_OK && kvc_stopped) {
        err = KVG_ECANCELED;
        *error = (struct kvg_error){.code = err, .message = "stopped"};
    }
    return err;
}

kvg_err kvc_sim_sweep(struct kvc_sim_job *jobs, size_t job_count, uint32_t threads,
    const struct kvc_common *common, struct kvg_error *error)
{
    struct sweep sweep = {.jobs = jobs, .job_count = job_count, .requests = 1};
    struct worker workers[KVC_SIM_THREADS_MAX];
    pthread_t handles[KVC_SIM_THREADS_MAX];
    uint32_t started = 1;
    uint32_t i;
    size_t j;

    for (j = 0; j < job_count; j++)
        sweep.requests += jobs[j].trace->request_count;
    kvc_progress_init(&sweep.progress, common);
    for (i = 0; i < KVC_SIM_THREADS_MAX; i++)
        workers[i] = (struct worker){.sweep = &sweep, .is_caller = i == 0};
    /* A thread that cannot be had is done without. */
    while (started < threads && started < job_count && started < KVC_SIM_THREADS_MAX &&
           pthread_create(&handles[started], NULL, work, &workers[started]) == 0)
        started++;
    work(&workers[0]);
    for (i = 1; i < started; i++)
        pthread_join(handles[i], NULL);
    kvc_progress_clear(&sweep.progress);
    return first_failure(workers, started, error);
}
