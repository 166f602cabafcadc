/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* options.c -- what a mover is told, checked and compiled: pools, planes, stages. */
#include "transport/mover.h"

#include "base/alloc.h"
#include "base/fmt.h"

#include <string.h>

#define READ_BYTES (UINT64_C(64) << 10) /* Of a plane and page, at a time. */
#define FIRST_LAYERS 8u /* A first read is no more than this part of all. */

/* "pools[1].planes[0].suffix" */
static kvg_err refuse(struct kvg_error *error, kvg_err code, size_t pool, int64_t plane,
    const char *field, const char *message)
{
    char name[64];
    struct kvi_text text;

    kvi_text_init(&text, name, sizeof(name));
    kvi_text_str(&text, "pools[");
    kvi_text_u64(&text, pool);
    if (plane >= 0) {
        kvi_text_str(&text, "].planes[");
        kvi_text_i64(&text, plane);
    }
    kvi_text_str(&text, "].");
    kvi_text_str(&text, field);
    return kvi_fail(error, code, name, message);
}

static bool find_part(
    const struct kvg_layout *layout, struct kvg_str suffix, uint32_t *out)
{
    uint32_t count = kvg_layout_part_count(layout);

    for (*out = 0; *out < count; ++*out) {
        if (kvi_str_equal(kvg_layout_suffix(layout, *out), suffix))
            return true;
    }
    return false;
}

/* Whether a part before this plane has the same name. */
static bool named_before(const struct kvg_mover *mover, const struct kvi_pool *pool,
    uint32_t planes, uint32_t part)
{
    for (const struct kvi_pool *p = mover->pools; p <= pool; p++) {
        uint32_t count = p == pool ? planes : p->plane_count;
        for (uint32_t i = 0; i < count; i++) {
            if (p->planes[i].part == part)
                return true;
        }
    }
    return false;
}

static kvg_err add_plane(struct kvg_mover *mover, const struct kvg_device_plane *from,
    size_t pool_index, uint32_t index, struct kvg_error *error)
{
    struct kvi_pool *pool = &mover->pools[pool_index];
    struct kvi_plane *plane = &pool->planes[index];

    if (!find_part(mover->layout, from->suffix, &plane->part))
        return refuse(error, KVG_EINVAL, pool_index, index, "suffix",
            "the layout has no such part");
    if (named_before(mover, pool, index, plane->part))
        return refuse(
            error, KVG_EINVAL, pool_index, index, "suffix", "another plane has it");
    if (from->layers == NULL || from->slot_bytes == 0 ||
        from->slot_bytes > KVG_STORE_VALUE_MAX)
        return refuse(error, KVG_EINVAL, pool_index, index, "slot_bytes",
            "is out of range, or there are no layers");
    plane->slot_bytes = from->slot_bytes;
    plane->slot_stride = from->slot_stride == 0 ? from->slot_bytes : from->slot_stride;
    if (plane->slot_stride < plane->slot_bytes)
        return refuse(error, KVG_EINVAL, pool_index, index, "slot_stride",
            "is smaller than slot_bytes");
    pool->strided = pool->strided || plane->slot_stride != plane->slot_bytes;
    plane->part_bytes =
        (uint64_t)plane->slot_bytes * mover->page_size * pool->layer_count;
    if (plane->part_bytes > KVG_STORE_VALUE_MAX)
        return refuse(error, KVG_ELIMIT, pool_index, index, "slot_bytes",
            "a part would be larger than a store's value");
    mover->page_bytes += plane->part_bytes;
    plane->layers =
        kvi_alloc_array(&mover->alloc, pool->layer_count, sizeof(*plane->layers));
    if (plane->layers == NULL)
        return kvi_fail(error, KVG_ENOMEM, "pools", "no memory for layers");
    for (uint32_t i = 0; i < pool->layer_count; i++)
        plane->layers[i] = from->layers[i];
    pool->plane_count = index + 1;
    return KVG_OK;
}

static kvg_err number_layers(struct kvg_mover *mover, struct kvi_pool *pool,
    const uint32_t *numbers, size_t pool_index, struct kvg_error *error)
{
    pool->model_layers =
        kvi_alloc_array(&mover->alloc, pool->layer_count, sizeof(*pool->model_layers));
    if (pool->model_layers == NULL)
        return kvi_fail(error, KVG_ENOMEM, "pools", "no memory for layers");
    for (uint32_t i = 0; i < pool->layer_count; i++) {
        pool->model_layers[i] = numbers == NULL ? i : numbers[i];
        if (i > 0 && pool->model_layers[i] <= pool->model_layers[i - 1])
            return refuse(
                error, KVG_EINVAL, pool_index, -1, "model_layers", "do not ascend");
    }
    return KVG_OK;
}

static kvg_err add_pool(struct kvg_mover *mover, const struct kvg_device_pool *from,
    size_t index, struct kvg_error *error)
{
    struct kvi_pool *pool = &mover->pools[index];
    uint32_t wanted = index == 0 ? KVG_COMPONENT_FULL : KVG_COMPONENT_SWA;
    kvg_err err;

    if (from->component != wanted)
        return refuse(error, KVG_EINVAL, index, -1, "component",
            "FULL comes first, then SWA; there are no others");
    if (from->layer_count < 1 || from->layer_count > KVG_MOVER_LAYERS_MAX)
        return refuse(
            error, KVG_ELIMIT, index, -1, "layer_count", "is not between 1 and 1,024");
    if (from->plane_count < 1 || from->plane_count > KVG_MOVER_PLANES_MAX)
        return refuse(
            error, KVG_ELIMIT, index, -1, "plane_count", "is not between 1 and 128");
    pool->component = from->component;
    pool->replicated = from->replicated;
    pool->layer_count = from->layer_count;
    pool->slot_count = from->slot_count;
    mover->pool_count++;
    err = number_layers(mover, pool, from->model_layers, index, error);
    for (uint32_t i = 0; i < from->plane_count && err == KVG_OK; i++)
        err = add_plane(mover, &from->planes[i], index, i, error);
    return err;
}

/* ---- Stages -------------------------------------------------------------------------------- */

/* The lowest layer of the model at or above `at` that a pool has; UINT32_MAX: none. */
static uint32_t next_layer(const struct kvg_mover *mover, const uint32_t *done)
{
    uint32_t lowest = UINT32_MAX;

    for (uint32_t p = 0; p < mover->pool_count; p++) {
        const struct kvi_pool *pool = &mover->pools[p];
        if (done[p] < pool->layer_count && pool->model_layers[done[p]] < lowest)
            lowest = pool->model_layers[done[p]];
    }
    return lowest;
}

/* As many layers as make reads large enough to be worth their calls, but few of all, so that a
 * forward pass need not wait long for the first. */
static uint32_t usual_layers(const struct kvg_mover *mover)
{
    const struct kvi_pool *pool = &mover->pools[0];
    uint64_t layer_bytes = mover->page_size * (uint64_t)pool->planes[0].slot_bytes;
    uint64_t layers = (READ_BYTES + layer_bytes - 1) / layer_bytes;

    if ((kvg_store_flags(mover->store) & KVG_STORE_RANGES) == 0)
        return UINT32_MAX;
    if (layers > pool->layer_count / FIRST_LAYERS)
        layers = pool->layer_count / FIRST_LAYERS;
    return layers == 0 ? 1 : (uint32_t)layers;
}

static kvg_err make_stages(
    struct kvg_mover *mover, uint32_t layers_a_read, struct kvg_error *error)
{
    uint32_t done[KVG_MOVER_POOLS_MAX] = {0};
    size_t room = 0;

    for (uint32_t p = 0; p < mover->pool_count; p++)
        room += mover->pools[p].layer_count;
    if (layers_a_read == 0)
        layers_a_read = usual_layers(mover);
    mover->stages = kvi_alloc_array(&mover->alloc, room, sizeof(*mover->stages));
    if (mover->stages == NULL)
        return kvi_fail(error, KVG_ENOMEM, "pools", "no memory for layers");
    mover->stages_room = room;
    while (next_layer(mover, done) != UINT32_MAX) {
        struct kvi_stage *stage = &mover->stages[mover->stage_count++];
        for (uint32_t p = 0; p < mover->pool_count; p++)
            stage->of[p].from = done[p];
        for (uint32_t i = 0; i < layers_a_read; i++) {
            uint32_t layer = next_layer(mover, done);
            if (layer == UINT32_MAX)
                break;
            stage->model_layer_last = layer;
            for (uint32_t p = 0; p < mover->pool_count; p++) {
                const struct kvi_pool *pool = &mover->pools[p];
                if (done[p] < pool->layer_count && pool->model_layers[done[p]] == layer)
                    done[p]++;
            }
        }
        for (uint32_t p = 0; p < mover->pool_count; p++)
            stage->of[p].to = done[p];
    }
    return KVG_OK;
}

/* ---- Sizes --------------------------------------------------------------------------------- */

/* Pieces of one call: those of a page in the worst case, within reason. */
static uint32_t pieces_for(const struct kvg_mover *mover)
{
    uint64_t worst = 0;

    for (uint32_t p = 0; p < mover->pool_count; p++)
        worst += (uint64_t)mover->pools[p].plane_count * mover->pools[p].layer_count *
                 mover->page_size;
    if (worst < 4096)
        worst = 4096;
    return worst > KVG_STORE_PIECES_MAX ? KVG_STORE_PIECES_MAX : (uint32_t)worst;
}

kvg_err kvi_mover_configure(struct kvg_mover *mover,
    const struct kvg_mover_options *options, struct kvg_error *error)
{
    uint32_t workers = options->worker_count == 0 ? 2 : options->worker_count;
    size_t staging =
        options->staging_bytes == 0 ? (size_t)64 << 20 : options->staging_bytes;
    kvg_err err = KVG_OK;

    mover->page_size = kvg_layout_rule(mover->layout).page_size;
    if (options->pool_count < 1 || options->pool_count > KVG_MOVER_POOLS_MAX)
        return kvi_fail_range(
            error, "pool_count", options->pool_count, 1, KVG_MOVER_POOLS_MAX);
    if (workers > KVG_MOVER_WORKERS_MAX)
        return kvi_fail_range(error, "worker_count", workers, 0, KVG_MOVER_WORKERS_MAX);
    if (options->jobs_max > KVG_MOVER_JOBS_MAX)
        return kvi_fail_range(
            error, "jobs_max", options->jobs_max, 0, KVG_MOVER_JOBS_MAX);
    if (options->pages_max > UINT32_MAX / 4)
        return kvi_fail_range(error, "pages_max", options->pages_max, 0, UINT32_MAX / 4);
    for (size_t i = 0; i < options->pool_count && err == KVG_OK; i++)
        err = add_pool(mover, &options->pools[i], i, error);
    if (err == KVG_OK)
        err = make_stages(mover, options->layers_a_read, error);
    if (err != KVG_OK)
        return err;
    mover->memory = options->memory;
    mover->in_place = options->memory.read == NULL;
    if ((options->memory.read == NULL) != (options->memory.write == NULL))
        return kvi_fail(error, KVG_EINVAL, "memory", "read and write belong together");
    mover->jobs_max = options->jobs_max == 0 ? 1024 : options->jobs_max;
    mover->pages_max = options->pages_max == 0 ? 1u << 20 : options->pages_max;
    mover->piece_max = pieces_for(mover);
    mover->worker_room = options->no_workers ? 1 : workers;
    mover->staging_bytes = mover->in_place ? 0 : staging / mover->worker_room;
    if (!mover->in_place && mover->staging_bytes < mover->page_bytes)
        return kvi_fail(error, KVG_ELIMIT, "staging_bytes",
            "each worker needs room for the parts of a page");
    return KVG_OK;
}

void kvi_mover_unconfigure(struct kvg_mover *mover)
{
    for (uint32_t p = 0; p < mover->pool_count; p++) {
        struct kvi_pool *pool = &mover->pools[p];
        kvi_release_array(&mover->alloc, pool->model_layers, pool->layer_count,
            sizeof(*pool->model_layers));
        for (uint32_t i = 0; i < pool->plane_count; i++)
            kvi_release_array(&mover->alloc, pool->planes[i].layers, pool->layer_count,
                sizeof(*pool->planes[i].layers));
    }
    kvi_release_array(
        &mover->alloc, mover->stages, mover->stages_room, sizeof(*mover->stages));
}
