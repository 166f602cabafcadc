/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* snapshot.c -- publishing what the answering threads see.
 *
 * Invariants:
 *
 *     N1  A snapshot is freed by the loop only, once it was replaced and has no users: views are
 *         the index writer's to free.
 *     N2  A source named by a snapshot that may be in use is not freed.
 */
#include "daemon/snapshot.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/fmt.h"

void kvd_publisher_init(struct kvd_publisher *publisher)
{
    memset(publisher, 0, sizeof(*publisher));
    pthread_mutex_init(&publisher->lock, NULL);
}

void kvd_publisher_fini(struct kvd_publisher *publisher)
{
    if (publisher->current != NULL)
        kvd_publish(publisher, NULL);
    KVI_ASSERT(kvd_reap(publisher) == 0);
    pthread_mutex_destroy(&publisher->lock);
}

struct kvd_snapshot *kvd_snapshot_acquire(struct kvd_publisher *publisher)
{
    struct kvd_snapshot *snapshot;

    pthread_mutex_lock(&publisher->lock);
    snapshot = publisher->current;
    if (snapshot != NULL)
        snapshot->users++;
    pthread_mutex_unlock(&publisher->lock);
    return snapshot;
}

void kvd_snapshot_release(struct kvd_publisher *publisher, struct kvd_snapshot *snapshot)
{
    if (snapshot == NULL)
        return;
    pthread_mutex_lock(&publisher->lock);
    snapshot->users--;
    pthread_mutex_unlock(&publisher->lock);
}

void kvd_publish(struct kvd_publisher *publisher, struct kvd_snapshot *snapshot)
{
    struct kvd_snapshot *old;

    pthread_mutex_lock(&publisher->lock);
    old = publisher->current;
    publisher->current = snapshot;
    pthread_mutex_unlock(&publisher->lock);
    if (old == NULL)
        return;
    old->next_retired = publisher->retired;
    publisher->retired = old;
}

size_t kvd_reap(struct kvd_publisher *publisher)
{
    struct kvd_snapshot **at = &publisher->retired;
    size_t held = 0;

    while (*at != NULL) {
        struct kvd_snapshot *snapshot = *at;
        bool in_use;

        pthread_mutex_lock(&publisher->lock);
        in_use = snapshot->users > 0;
        pthread_mutex_unlock(&publisher->lock);
        if (in_use) {
            held++;
            at = &snapshot->next_retired;
            continue;
        }
        *at = snapshot->next_retired;
        kvd_snapshot_free(snapshot); /* N1 */
    }
    return held;
}

static bool names(const struct kvd_snapshot *snapshot, const struct kvd_shared *shared)
{
    for (size_t i = 0; i < snapshot->source_count; i++) {
        if (snapshot->sources[i].shared == shared)
            return true;
    }
    return false;
}

bool kvd_publisher_names(struct kvd_publisher *publisher, const struct kvd_shared *shared)
{
    if (publisher->current != NULL && names(publisher->current, shared))
        return true;
    for (struct kvd_snapshot *at = publisher->retired; at != NULL;
         at = at->next_retired) {
        if (names(at, shared))
            return true;
    }
    return false;
}

struct kvd_snapshot *kvd_snapshot_new(const struct kvg_alloc *alloc, size_t source_count)
{
    struct kvd_snapshot *snapshot = KVI_NEW(alloc, struct kvd_snapshot);

    if (snapshot == NULL)
        return NULL;
    snapshot->alloc = alloc;
    if (source_count == 0)
        return snapshot;
    snapshot->sources = kvi_alloc_array(alloc, source_count, sizeof(*snapshot->sources));
    if (snapshot->sources == NULL) {
        KVI_FREE(alloc, snapshot);
        return NULL;
    }
    snapshot->source_count = source_count;
    return snapshot;
}

static void free_source(const struct kvg_alloc *alloc, struct kvd_source_view *source)
{
    for (size_t t = 0; t < source->tenant_count; t++) {
        for (size_t i = 0; i < KVG_WORKERS_LAYOUTS_MAX; i++) {
            if (source->tenants[t].views[i] != NULL)
                kvg_presence_view_free(source->tenants[t].views[i]);
        }
    }
    kvi_release_array(
        alloc, source->tenants, source->tenant_count, sizeof(*source->tenants));
    kvd_roster_release(alloc, source->roster);
}

void kvd_snapshot_free(struct kvd_snapshot *snapshot)
{
    if (snapshot == NULL)
        return;
    for (size_t i = 0; i < snapshot->source_count; i++)
        free_source(snapshot->alloc, &snapshot->sources[i]);
    kvi_release_array(snapshot->alloc, snapshot->sources, snapshot->source_count,
        sizeof(*snapshot->sources));
    KVI_FREE(snapshot->alloc, snapshot);
}

const struct kvd_source_view *kvd_snapshot_source(
    const struct kvd_snapshot *snapshot, struct kvg_str name)
{
    if (snapshot == NULL || snapshot->source_count == 0)
        return NULL;
    if (name.data == NULL)
        return &snapshot->sources[0];
    for (size_t i = 0; i < snapshot->source_count; i++) {
        if (kvi_str_equal(name, kvi_str(snapshot->sources[i].shared->config.name)))
            return &snapshot->sources[i];
    }
    return NULL;
}

const struct kvd_tenant_views *kvd_source_tenant(
    const struct kvd_source_view *source, struct kvg_str tenant)
{
    if (tenant.bytes == 0)
        return source->tenant_count > 0 ? &source->tenants[0] : NULL;
    for (size_t i = 0; i < source->tenant_count; i++) {
        if (kvi_str_equal(tenant, kvi_str(source->tenants[i].tenant)))
            return &source->tenants[i];
    }
    return NULL;
}

kvg_err kvd_roster_new(
    const struct kvg_alloc *alloc, uint64_t generation, struct kvd_roster **out)
{
    struct kvd_roster *roster = KVI_NEW(alloc, struct kvd_roster);
    kvg_err err;

    *out = NULL;
    if (roster == NULL)
        return KVG_ENOMEM;
    roster->generation = generation;
    roster->owners = 1;
    err = kvg_workers_new(alloc, &roster->workers);
    if (err != KVG_OK) {
        KVI_FREE(alloc, roster);
        return err;
    }
    *out = roster;
    return KVG_OK;
}

void kvd_roster_release(const struct kvg_alloc *alloc, struct kvd_roster *roster)
{
    if (roster == NULL || --roster->owners > 0)
        return;
    kvg_workers_free(roster->workers);
    KVI_FREE(alloc, roster);
}

void kvd_board_read(struct kvd_shared *shared, struct kvd_board *out)
{
    pthread_mutex_lock(&shared->board_lock);
    *out = shared->board;
    pthread_mutex_unlock(&shared->board_lock);
}
