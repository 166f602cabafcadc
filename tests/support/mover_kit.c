/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* mover_kit.c -- see mover_kit.h. */
#include "mover_kit.h"

#include "test.h"

#include "base/rng.h"

#define RUBBISH 0x5a

static uint32_t plane_count(const struct kit_shape *shape, uint32_t pool)
{
    return pool == 0 ? shape->planes : 1;
}

static uint32_t stride(const struct kit_shape *shape)
{
    return shape->slot_bytes + shape->slot_gap;
}

/* ---- Layouts ------------------------------------------------------------------------------- */

static struct kvg_str suffix_of(
    const struct kit_shape *shape, uint32_t pool, uint32_t rank, uint32_t plane)
{
    static _Thread_local char
        text[64][16]; /* Strings must live while a configuration is used. */
    static _Thread_local unsigned next;
    char *out = text[next++ % 64];
    int bytes;
    if (pool == 1)
        bytes = snprintf(out, 16, "_%u_swa", rank);
    else if (shape->planes == 1)
        bytes = snprintf(out, 16, "__k");
    else
        bytes = snprintf(out, 16, "_%u_%c", rank, plane == 0 ? 'k' : 'v');
    return (struct kvg_str){out, (size_t)bytes};
}

struct kvg_layout *kit_layout(const struct kit_shape *shape)
{
    struct kvg_str names[2][32];
    struct kvg_layout_pool pools[2] = {
        {.suffixes = names[0], .policy = KVG_POOL_ALL_PAGES},
        {.suffixes = names[1], .policy = KVG_POOL_TRAILING_PAGES, .trailing_pages = 2}};
    struct kvg_layout_config config = {.struct_bytes = sizeof(config),
        .rule.page_size = shape->page_size,
        .tp_size = shape->ranks,
        .mla = shape->planes == 1,
        .tag = {"kit", 3}};
    struct kvg_error error = {0};
    struct kvg_layout *layout;

    for (uint32_t rank = 0; rank < shape->ranks; rank++) {
        for (uint32_t i = 0; i < shape->planes && (shape->planes > 1 || rank == 0); i++)
            names[0][pools[0].suffix_count++] = suffix_of(shape, 0, rank, i);
        names[1][pools[1].suffix_count++] = suffix_of(shape, 1, rank, 0);
    }
    if (shape->layers[1] != 0) {
        config.pools = pools;
        config.pool_count = 2;
    }
    if (kvg_layout_new(kvg_alloc_default(), &config, &error, &layout) != KVG_OK)
        fail_msg("%s: %s", error.field, error.message);
    return layout;
}

/* ---- Devices ------------------------------------------------------------------------------- */

static kvg_err copy_in(void *context, const struct kvg_device_copy *copies, size_t count)
{
    (void)context;
    for (size_t i = 0; i < count; i++)
        memcpy(copies[i].host, copies[i].device, copies[i].bytes);
    return KVG_OK;
}

static kvg_err copy_out(void *context, const struct kvg_device_copy *copies, size_t count)
{
    (void)context;
    for (size_t i = 0; i < count; i++)
        memcpy(copies[i].device, copies[i].host, copies[i].bytes);
    return KVG_OK;
}

static void free_memory(struct kit_device *device)
{
    for (uint32_t i = 0; i < 2 * 2 * KIT_LAYERS_MAX; i++)
        free((&device->memory[0][0][0])[i]);
}

kvg_err kit_open(struct kit_device *device, const struct kvg_alloc *alloc,
    const struct kit_shape *shape, uint32_t rank, const struct kvg_layout *layout,
    struct kvg_store *store)
{
    /* FULL has the even layers of the model, SWA the odd ones. */
    static const uint32_t EVEN[] = {0, 2, 4, 6, 8, 10, 12, 14};
    static const uint32_t ODD[] = {1, 3, 5, 7, 9, 11, 13, 15};
    struct kvg_device_plane planes[2][2] = {0};
    struct kvg_device_pool pools[2] = {0};
    struct kvg_mover_options options = {.struct_bytes = sizeof(options),
        .store = store,
        .layout = layout,
        .pools = pools,
        .pool_count = shape->layers[1] != 0 ? 2 : 1,
        .owner = rank == 0,
        .no_workers = shape->workers == 0,
        .worker_count = shape->workers,
        .layers_a_read = shape->layers_a_read,
        .jobs_max = shape->jobs_max,
        .pages_max = shape->pages_max,
        .staging_bytes = 1 << 18};

    *device = (struct kit_device){.shape = *shape, .rank = rank};
    if (shape->staged)
        options.memory = (struct kvg_device_memory){.read = copy_in, .write = copy_out};
    for (uint32_t p = 0; p < options.pool_count; p++) {
        pools[p] = (struct kvg_device_pool){
            .component = p == 0 ? KVG_COMPONENT_FULL : KVG_COMPONENT_SWA,
            .replicated = p == 0 && shape->planes == 1,
            .layer_count = shape->layers[p],
            .model_layers = shape->layers[1] == 0 ? NULL
                            : p == 0              ? EVEN
                                                  : ODD,
            .slot_count = shape->slots,
            .planes = planes[p],
            .plane_count = plane_count(shape, p)};
        for (uint32_t i = 0; i < pools[p].plane_count; i++) {
            for (uint32_t layer = 0; layer < shape->layers[p]; layer++)
                device->memory[p][i][layer] =
                    malloc((size_t)shape->slots * stride(shape));
            planes[p][i] =
                (struct kvg_device_plane){.suffix = suffix_of(shape, p, rank, i),
                    .layers = (void *const *)device->memory[p][i],
                    .slot_bytes = shape->slot_bytes,
                    .slot_stride = shape->slot_gap == 0 ? 0 : stride(shape)};
        }
    }
    kit_spoil(device);
    kvg_err err = kvg_mover_new(alloc, &options, &device->mover, NULL);
    if (err != KVG_OK)
        free_memory(device);
    else
        device->transport = kvg_mover_transport(device->mover);
    return err;
}

void kit_close(struct kit_device *device)
{
    kvg_mover_free(device->mover);
    free_memory(device);
}

void kit_finish(struct kit_device *device)
{
    kvg_mover_finish(device->mover);
}

/* ---- Bytes --------------------------------------------------------------------------------- */

void kit_keys(uint64_t seed, struct kvg_key *keys, size_t count)
{
    uint32_t tokens[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    struct kvg_page_rule rule = {.page_size = 2};
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(
            kvg_page_keys(&rule, i == 0 ? NULL : &keys[i - 1], tokens, 2, &keys[i], 1),
            1);
    }
}

static uint8_t byte_at(const struct kit_device *device, uint32_t pool, uint32_t plane,
    uint32_t layer, const struct kvg_key *key, uint32_t unit, uint32_t at)
{
    bool same = pool == 0 && device->shape.planes == 1;
    uint64_t seed;
    memcpy(&seed, key->bytes, sizeof(seed));
    seed ^= (uint64_t)pool << 60 | (uint64_t)plane << 56 | (uint64_t)layer << 40 |
            (uint64_t)unit << 16 | at;
    return (uint8_t)kvi_mix64(seed ^ (same ? 0 : (uint64_t)device->rank << 48));
}

static uint64_t slot_at(const struct kvg_tree_transfer *transfer, uint64_t unit)
{
    for (size_t i = 0; i < transfer->span_count; i++) {
        if (unit < transfer->spans[i].length)
            return transfer->spans[i].offset + unit;
        unit -= transfer->spans[i].length;
    }
    fail_msg("a transfer has too few slots");
    return 0;
}

static bool each_byte(const struct kit_device *device,
    const struct kvg_tree_transfer *transfer, uint32_t layer, bool write)
{
    uint32_t pool = transfer->component == KVG_COMPONENT_SWA;
    const struct kit_shape *shape = &device->shape;
    for (uint64_t unit = 0; unit < transfer->key_count * shape->page_size; unit++) {
        uint64_t slot = slot_at(transfer, unit);
        for (uint32_t plane = 0; plane < plane_count(shape, pool); plane++) {
            char *memory = device->memory[pool][plane][layer] + slot * stride(shape);
            for (uint32_t i = 0; i < shape->slot_bytes; i++) {
                uint8_t byte = byte_at(device, pool, plane, layer,
                    &transfer->keys[unit / shape->page_size],
                    (uint32_t)(unit % shape->page_size), i);
                if (write)
                    memory[i] = (char)byte;
                else if ((uint8_t)memory[i] != byte)
                    return false;
            }
            for (uint32_t i = 0; i < shape->slot_gap; i++) {
                if (memory[shape->slot_bytes + i] != RUBBISH)
                    return false; /* What lies between slots is nobody's. */
            }
        }
    }
    return true;
}

void kit_fill(struct kit_device *device, const struct kvg_tree_transfer *transfer)
{
    uint32_t pool = transfer->component == KVG_COMPONENT_SWA;
    for (uint32_t layer = 0; layer < device->shape.layers[pool]; layer++)
        assert_true(each_byte(device, transfer, layer, true));
}

bool kit_holds_layer(const struct kit_device *device,
    const struct kvg_tree_transfer *transfer, uint32_t layer)
{
    return each_byte(device, transfer, layer, false);
}

bool kit_holds(const struct kit_device *device, const struct kvg_tree_transfer *transfer)
{
    uint32_t pool = transfer->component == KVG_COMPONENT_SWA;
    for (uint32_t layer = 0; layer < device->shape.layers[pool]; layer++) {
        if (!each_byte(device, transfer, layer, false))
            return false;
    }
    return true;
}

void kit_spoil(struct kit_device *device)
{
    size_t bytes = (size_t)device->shape.slots * stride(&device->shape);
    for (uint32_t i = 0; i < 2 * 2 * KIT_LAYERS_MAX; i++) {
        char *memory = (&device->memory[0][0][0])[i];
        if (memory != NULL)
            memset(memory, RUBBISH, bytes);
    }
}

bool kit_is_spoilt(const struct kit_device *device)
{
    size_t bytes = (size_t)device->shape.slots * stride(&device->shape);
    for (uint32_t i = 0; i < 2 * 2 * KIT_LAYERS_MAX; i++) {
        const char *memory = (&device->memory[0][0][0])[i];
        for (size_t at = 0; memory != NULL && at < bytes; at++) {
            if (memory[at] != RUBBISH)
                return false;
        }
    }
    return true;
}
