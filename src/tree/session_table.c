/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* session_table.c -- sessions by id, the closed ones that are remembered, places for frontiers.
 * The picture is in session.c. */
#include "tree/session.h"

#include "base/rng.h"

/* ---- Ids ----------------------------------------------------------------------------------- */

static uint64_t hash_id(const struct kvg_tree *tree, struct kvg_str id)
{
    uint64_t hash = kvi_mix64(tree->options.seed ^ id.bytes);

    for (size_t i = 0; i < id.bytes; i++)
        hash = (hash ^ (uint8_t)id.data[i]) * UINT64_C(0x100000001b3);
    return kvi_mix64(hash);
}

static uint32_t *bucket_of(const struct kvi_sessions *sessions, uint64_t hash)
{
    return &sessions->buckets[hash & (sessions->capacity - 1)];
}

uint32_t kvi_session_find(const struct kvg_tree *tree, struct kvg_str id)
{
    const struct kvi_sessions *sessions = &tree->sessions;

    if (sessions->capacity == 0 || id.data == NULL || id.bytes > KVG_TREE_SESSION_ID_MAX)
        return KVI_NOBODY;
    uint64_t hash = hash_id(tree, id);
    for (uint32_t i = *bucket_of(sessions, hash); i != KVI_NOBODY;
         i = sessions->items[i].next) {
        const struct kvi_session *session = &sessions->items[i];
        if (session->hash == hash && session->id_bytes == id.bytes &&
            memcmp(session->id, id.data, id.bytes) == 0)
            return i;
    }
    return KVI_NOBODY;
}

/* ---- Places -------------------------------------------------------------------------------- */

static kvg_err grow(struct kvg_tree *tree)
{
    struct kvi_sessions *sessions = &tree->sessions;
    uint32_t wanted = sessions->capacity == 0 ? 16 : sessions->capacity * 2;
    uint32_t *buckets = kvi_alloc_array(&tree->alloc, wanted, sizeof(*buckets));
    void *items = sessions->items;

    if (buckets == NULL)
        return KVG_ENOMEM;
    if (!kvi_resize_array(
            &tree->alloc, &items, sessions->capacity, wanted, sizeof(*sessions->items))) {
        kvi_release_array(&tree->alloc, buckets, wanted, sizeof(*buckets));
        return KVG_ENOMEM;
    }
    kvi_release_array(
        &tree->alloc, sessions->buckets, sessions->capacity, sizeof(*buckets));
    sessions->items = items;
    sessions->buckets = buckets;
    sessions->capacity = wanted;
    if (sessions->count == 0)
        sessions->items[sessions->count++] = (struct kvi_session){0};
    for (uint32_t i = 1; i < sessions->count; i++) {
        struct kvi_session *session = &sessions->items[i];
        if (session->id == NULL)
            continue;
        session->next = *bucket_of(sessions, session->hash);
        *bucket_of(sessions, session->hash) = i;
    }
    return KVG_OK;
}

uint32_t kvi_session_make(struct kvg_tree *tree, struct kvg_str id)
{
    struct kvi_sessions *sessions = &tree->sessions;

    if (sessions->free == KVI_NOBODY && sessions->count >= sessions->capacity &&
        grow(tree) != KVG_OK)
        return KVI_NOBODY;
    char *copy = kvi_copy_string(&tree->alloc, id);
    if (copy == NULL)
        return KVI_NOBODY;
    uint32_t index = sessions->free;
    if (index != KVI_NOBODY)
        sessions->free = sessions->items[index].next;
    else
        index = sessions->count++;
    uint64_t hash = hash_id(tree, id);
    sessions->items[index] = (struct kvi_session){.id = copy,
        .id_bytes = (uint32_t)id.bytes,
        .hash = hash,
        .next = *bucket_of(sessions, hash)};
    *bucket_of(sessions, hash) = index;
    return index;
}

static void forget(struct kvg_tree *tree, uint32_t index)
{
    struct kvi_sessions *sessions = &tree->sessions;
    struct kvi_session *session = kvi_session_at(tree, index);
    uint32_t *link = bucket_of(sessions, session->hash);

    while (*link != index)
        link = &sessions->items[*link].next;
    *link = session->next;
    kvi_release_string(&tree->alloc, session->id, session->id_bytes);
    *session = (struct kvi_session){.next = sessions->free};
    sessions->free = index;
}

void kvi_session_reopen(struct kvg_tree *tree, uint32_t index)
{
    struct kvi_sessions *sessions = &tree->sessions;
    struct kvi_session *session = kvi_session_at(tree, index);

    if (session->newer != KVI_NOBODY)
        kvi_session_at(tree, session->newer)->older = session->older;
    else
        sessions->closed_newest = session->older;
    if (session->older != KVI_NOBODY)
        kvi_session_at(tree, session->older)->newer = session->newer;
    else
        sessions->closed_oldest = session->newer;
    session->newer = KVI_NOBODY;
    session->older = KVI_NOBODY;
    sessions->closed_count--;
}

void kvi_session_remember(struct kvg_tree *tree, uint32_t index)
{
    struct kvi_sessions *sessions = &tree->sessions;
    struct kvi_session *session = kvi_session_at(tree, index);

    session->generation = 0;
    session->newer = KVI_NOBODY;
    session->older = sessions->closed_newest;
    if (sessions->closed_newest != KVI_NOBODY)
        kvi_session_at(tree, sessions->closed_newest)->newer = index;
    else
        sessions->closed_oldest = index;
    sessions->closed_newest = index;
    if (++sessions->closed_count > KVG_TREE_SESSIONS_CLOSED) {
        uint32_t oldest = sessions->closed_oldest;
        kvi_session_reopen(tree, oldest);
        forget(tree, oldest);
    }
}

kvg_err kvi_frontiers_reserve(struct kvg_tree *tree, uint32_t wanted)
{
    struct kvi_sessions *sessions = &tree->sessions;
    uint32_t capacity = sessions->frontier_capacity;
    void *frontiers = sessions->frontiers;

    /* Free places, used before or not; [0] is nobody. */
    if (capacity - sessions->frontier_used >= wanted + 1)
        return KVG_OK;
    if (capacity > UINT32_MAX / 2)
        return KVG_ENOMEM;
    capacity = capacity == 0 ? 16 : capacity * 2;
    if (!kvi_resize_array(&tree->alloc, &frontiers, sessions->frontier_capacity, capacity,
            sizeof(*sessions->frontiers)))
        return KVG_ENOMEM;
    sessions->frontiers = frontiers;
    sessions->frontier_capacity = capacity;
    if (sessions->frontier_count == 0)
        sessions->frontiers[sessions->frontier_count++] = (struct kvi_frontier){0};
    return KVG_OK;
}

/* ---- End ----------------------------------------------------------------------------------- */

void kvi_sessions_fini(struct kvg_tree *tree)
{
    struct kvi_sessions *sessions = &tree->sessions;

    for (uint32_t i = 1; i < sessions->count; i++) {
        if (sessions->items[i].id != NULL)
            kvi_release_string(
                &tree->alloc, sessions->items[i].id, sessions->items[i].id_bytes);
    }
    kvi_release_array(
        &tree->alloc, sessions->items, sessions->capacity, sizeof(*sessions->items));
    kvi_release_array(
        &tree->alloc, sessions->buckets, sessions->capacity, sizeof(*sessions->buckets));
    kvi_release_array(&tree->alloc, sessions->frontiers, sessions->frontier_capacity,
        sizeof(*sessions->frontiers));
    *sessions = (struct kvi_sessions){0};
}

void kvi_sessions_reset(struct kvg_tree *tree)
{
    struct kvi_sessions old = tree->sessions;

    kvi_sessions_fini(tree);
    /* Generations go on, so that a request from before cannot speak for a session from after. */
    tree->sessions.generation = old.generation;
    tree->sessions.refused = old.refused;
    tree->sessions.stale = old.stale;
}
