/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* builtin.c -- the library's own backends, and what a process gives a store: locks, a seed. */
#include "backend/backend.h"
#include "backend/file.h"

#include "store/store.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* Each in a cache line of its own, so that threads with different locks do not meet. */
#define LOCK_BYTES 64
_Static_assert(sizeof(pthread_mutex_t) <= LOCK_BYTES, "a lock is larger than its line");

static void *lock_make(void *context)
{
    pthread_mutex_t *mutex = aligned_alloc(LOCK_BYTES, LOCK_BYTES);

    (void)context;
    if (mutex != NULL && pthread_mutex_init(mutex, NULL) != 0) {
        free(mutex);
        return NULL;
    }
    return mutex;
}

static void lock_free(void *context, void *lock)
{
    (void)context;
    pthread_mutex_destroy(lock);
    free(lock);
}

static void lock_lock(void *context, void *lock)
{
    (void)context;
    pthread_mutex_lock(lock);
}

static void lock_unlock(void *context, void *lock)
{
    (void)context;
    pthread_mutex_unlock(lock);
}

static const struct kvg_store_locks LOCKS = {
    lock_make, lock_free, lock_lock, lock_unlock, NULL};

/* One line a backend. */
static const struct kvg_store_backend *const BACKENDS[] = {
    &kvi_store_memory,
    &kvi_store_file,
    &kvi_store_mooncake,
#ifdef KVG_HAVE_HIREDIS
    &kvi_store_redis,
    &kvi_store_rediss,
#endif
    &kvi_store_fault,
};

const struct kvg_store_registry *kvg_store_builtin(void)
{
    static const struct kvg_store_registry REGISTRY = {
        .struct_bytes = sizeof(REGISTRY),
        .backends = BACKENDS,
        .backend_count = sizeof(BACKENDS) / sizeof(BACKENDS[0]),
    };

    return &REGISTRY;
}

kvg_err kvg_store_open(const char *url, const struct kvg_store_options *options,
    struct kvg_store **out, struct kvg_error *error)
{
    struct kvg_store_options all = {.struct_bytes = sizeof(all)};

    if (options != NULL)
        all = *options;
    if (all.alloc == NULL)
        all.alloc = kvg_alloc_default();
    if (all.registry == NULL)
        all.registry = kvg_store_builtin();
    if (all.locks.make == NULL)
        all.locks = LOCKS;
    while (all.seed == 0) {
        if (getrandom(&all.seed, sizeof(all.seed), 0) != sizeof(all.seed))
            all.seed = (uint64_t)(uintptr_t)&all; /* The address is random enough. */
    }
    return kvg_store_open_with(
        (struct kvg_str){url, url == NULL ? 0 : strlen(url)}, &all, out, error);
}
