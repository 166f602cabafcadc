/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* resolve.c -- one thread that calls getaddrinfo().
 *
 *     loop --ask--> [job, job] --> thread: getaddrinfo --post--> loop: on_done
 *
 * The resolver is shared by its owner and its thread and freed by whoever leaves last, so that
 * stopping never waits for a name server.
 *
 * Invariants:
 *
 *     R1  Nothing is posted to the loop once `closed` is set; both happen under the lock.
 *     R2  A job belongs to the thread's list, or to the loop from its posting on.
 */
#include "net/resolve.h"

#include "base/alloc.h"

#include <netdb.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

struct kvn_resolve_job {
    const struct kvg_alloc *alloc; /* The resolver may be gone when the loop runs this. */
    struct kvn_task task;
    struct kvn_resolve_job *next;
    char host[KVN_HOST_BYTES];
    char port[8];
    void (*on_done)(void *context, const struct kvn_address *addresses, size_t count,
        const char *reason); /* NULL: cancelled.  Loop's thread only. */
    void *context;
    struct kvn_address addresses[KVN_ADDRESSES_MAX];
    size_t address_count;
    int error;
};

struct kvn_resolver {
    const struct kvg_alloc *alloc;
    struct kvn_loop *loop;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct kvn_resolve_job *jobs;
    bool closed;
    unsigned owners;
};

static void free_jobs(struct kvn_resolver *resolver, struct kvn_resolve_job *jobs)
{
    while (jobs != NULL) {
        struct kvn_resolve_job *job = jobs;

        jobs = job->next;
        KVI_FREE(resolver->alloc, job);
    }
}

/* Under the lock, which it gives up. */
static void leave(struct kvn_resolver *resolver)
{
    bool last = --resolver->owners == 0;

    pthread_mutex_unlock(&resolver->lock);
    if (!last)
        return;
    free_jobs(resolver, resolver->jobs);
    pthread_mutex_destroy(&resolver->lock);
    pthread_cond_destroy(&resolver->changed);
    KVI_FREE(resolver->alloc, resolver);
}

static void answer(void *context)
{
    struct kvn_resolve_job *job = context;

    if (job->on_done != NULL)
        job->on_done(job->context, job->addresses, job->address_count,
            job->error == 0 ? NULL : gai_strerror(job->error));
    KVI_FREE(job->alloc, job);
}

static void look_up(struct kvn_resolve_job *job)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_family = AF_UNSPEC};
    struct addrinfo *list = NULL;

    job->error = getaddrinfo(job->host, job->port, &hints, &list);
    if (job->error != 0)
        return;
    for (struct addrinfo *at = list; at != NULL; at = at->ai_next) {
        struct kvn_address *address = &job->addresses[job->address_count];

        if (job->address_count == KVN_ADDRESSES_MAX ||
            at->ai_addrlen > sizeof(address->address))
            continue;
        memcpy(&address->address, at->ai_addr, at->ai_addrlen);
        address->bytes = at->ai_addrlen;
        job->address_count++;
    }
    freeaddrinfo(list);
}

static void *run_thread(void *context)
{
    struct kvn_resolver *resolver = context;

    pthread_mutex_lock(&resolver->lock);
    while (!resolver->closed) {
        struct kvn_resolve_job *job = resolver->jobs;

        if (job == NULL) {
            pthread_cond_wait(&resolver->changed, &resolver->lock);
            continue;
        }
        resolver->jobs = job->next;
        pthread_mutex_unlock(&resolver->lock);
        look_up(job);
        pthread_mutex_lock(&resolver->lock);
        if (resolver->closed) /* R1 */
            KVI_FREE(resolver->alloc, job);
        else
            kvn_loop_post(resolver->loop, &job->task);
    }
    leave(resolver);
    return NULL;
}

kvg_err kvn_resolver_new(
    const struct kvg_alloc *alloc, struct kvn_loop *loop, struct kvn_resolver **out)
{
    struct kvn_resolver *resolver = KVI_NEW(alloc, struct kvn_resolver);
    pthread_attr_t detached;
    pthread_t thread;
    int failed;

    *out = NULL;
    if (resolver == NULL)
        return KVG_ENOMEM;
    resolver->alloc = alloc;
    resolver->loop = loop;
    resolver->owners = 2;
    pthread_mutex_init(&resolver->lock, NULL);
    pthread_cond_init(&resolver->changed, NULL);
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    failed = pthread_create(&thread, &detached, run_thread, resolver);
    pthread_attr_destroy(&detached);
    if (failed != 0) {
        pthread_mutex_destroy(&resolver->lock);
        pthread_cond_destroy(&resolver->changed);
        KVI_FREE(alloc, resolver);
        return KVG_EIO;
    }
    *out = resolver;
    return KVG_OK;
}

void kvn_resolver_free(struct kvn_resolver *resolver)
{
    if (resolver == NULL)
        return;
    pthread_mutex_lock(&resolver->lock);
    resolver->closed = true;
    pthread_cond_signal(&resolver->changed);
    leave(resolver);
}

bool kvn_address_numeric(const char *host, uint16_t port, struct kvn_address *out)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
        .ai_family = AF_UNSPEC,
        .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
    struct addrinfo *list = NULL;
    char service[8];

    snprintf(service, sizeof(service), "%u", (unsigned)port);
    if (getaddrinfo(host, service, &hints, &list) != 0)
        return false;
    memcpy(&out->address, list->ai_addr, list->ai_addrlen);
    out->bytes = list->ai_addrlen;
    freeaddrinfo(list);
    return true;
}

kvg_err kvn_resolve(struct kvn_resolver *resolver, const char *host, uint16_t port,
    void (*on_done)(void *context, const struct kvn_address *addresses, size_t count,
        const char *reason),
    void *context, struct kvn_resolve_job **out)
{
    struct kvn_resolve_job *job;
    struct kvn_resolve_job **at;

    *out = NULL;
    if (strlen(host) >= KVN_HOST_BYTES)
        return KVG_ELIMIT;
    job = KVI_NEW(resolver->alloc, struct kvn_resolve_job);
    if (job == NULL)
        return KVG_ENOMEM;
    job->alloc = resolver->alloc;
    job->task = (struct kvn_task){.run = answer, .context = job};
    memcpy(job->host, host, strlen(host) + 1);
    snprintf(job->port, sizeof(job->port), "%u", (unsigned)port);
    job->on_done = on_done;
    job->context = context;
    pthread_mutex_lock(&resolver->lock);
    for (at = &resolver->jobs; *at != NULL; at = &(*at)->next)
        continue;
    *at = job;
    pthread_cond_signal(&resolver->changed);
    pthread_mutex_unlock(&resolver->lock);
    *out = job;
    return KVG_OK;
}

void kvn_resolve_cancel(struct kvn_resolve_job *job)
{
    if (job != NULL)
        job->on_done = NULL;
}
