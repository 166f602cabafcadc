/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* demo_engine.c -- see demo_engine.h.
 *
 *     planes      rank 0 k, rank 0 v, rank 1 k, ...       one part of the store each
 *     memory      plane 0: [layer 0: slots][layer 1: slots]  plane 1: ...
 *
 *     serve:      begin -> load -> start -> wait for each layer -> tick -> verify
 *                 -> extend -> compute -> finish -> wait for the store -> tick
 *
 * One mover holds the planes of all ranks: what several processes would do is done by one.
 */
#include "cli/demo_engine.h"

#include "cli/cli.h"

#include <kvgraft/transport.h>

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define ROWS 4u
#define RUBBISH 0xa5

struct kvc_engine {
    struct kvc_engine_options options;
    uint32_t plane_count;
    char *memory;
    void **layers; /* plane_count * layers. */
    struct kvg_layout *device_layout;
    struct kvc_store *published;
    struct kvg_mover *mover;
    struct kvg_engine *engine;
    kvg_request_id next_request;
};

static kvg_err fail(struct kvg_error *error, kvg_err code, const char *message)
{
    error->code = code;
    snprintf(error->field, sizeof(error->field), "engine");
    snprintf(error->message, sizeof(error->message), "%s", message);
    return code;
}

/* ---- The model ----------------------------------------------------------------------------- */

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static uint64_t seed_of(const struct kvg_key *key, uint32_t plane, uint32_t layer)
{
    uint64_t seed;

    memcpy(&seed, key->bytes + 8, sizeof(seed));
    return seed ^ (uint64_t)plane << 40 ^ (uint64_t)layer << 52;
}

static void compute(char *memory, size_t bytes, uint64_t seed)
{
    size_t at;

    for (at = 0; at < bytes; at += sizeof(uint64_t)) {
        uint64_t word = mix(seed + at);
        memcpy(memory + at, &word, bytes - at < 8 ? bytes - at : 8);
    }
}

/* How many bytes are not what was computed. */
static uint64_t compare(const char *memory, size_t bytes, uint64_t seed)
{
    uint64_t wrong = 0;
    size_t at;

    for (at = 0; at < bytes; at += sizeof(uint64_t)) {
        uint64_t word = mix(seed + at);
        size_t count = bytes - at < 8 ? bytes - at : 8;
        size_t i;
        if (memcmp(memory + at, &word, count) == 0)
            continue;
        for (i = 0; i < count; i++)
            wrong += memory[at + i] != ((const char *)&word)[i];
    }
    return wrong;
}

/* Pages [from, to) of a request: computed, or compared with what they should be. */
static void go_through(struct kvc_engine *engine, kvg_row row, const struct kvg_key *keys,
    uint32_t from, uint32_t to, struct kvc_served *compared)
{
    size_t page_bytes = (size_t)engine->options.page_size * engine->options.slot_bytes;
    size_t page_count;
    const uint32_t *table =
        kvg_rows_table(kvg_engine_rows(engine->engine), row, &page_count);
    uint32_t page;
    uint32_t plane;
    uint32_t layer;

    if (engine->options.store == NULL)
        return;
    for (page = from; page < to && page < page_count; page++) {
        for (plane = 0; plane < engine->plane_count; plane++) {
            for (layer = 0; layer < engine->options.layers; layer++) {
                char *base = engine->layers[plane * engine->options.layers + layer];
                uint64_t seed = seed_of(&keys[page], plane, layer);
                char *memory = base + table[page] * page_bytes;
                if (compared == NULL) {
                    compute(memory, page_bytes, seed);
                } else {
                    compared->bytes_wrong += compare(memory, page_bytes, seed);
                    compared->bytes_verified += page_bytes;
                }
            }
        }
    }
}

/* ---- Life ---------------------------------------------------------------------------------- */

static kvg_err make_memory(struct kvc_engine *engine)
{
    const struct kvc_engine_options *options = &engine->options;
    size_t layer_bytes = (size_t)options->slots * options->slot_bytes;
    size_t count = (size_t)engine->plane_count * options->layers;
    size_t i;

    engine->memory = malloc(count * layer_bytes);
    engine->layers = calloc(count, sizeof(*engine->layers));
    if (engine->memory == NULL || engine->layers == NULL)
        return KVG_ENOMEM;
    for (i = 0; i < count; i++)
        engine->layers[i] = engine->memory + i * layer_bytes;
    return KVG_OK;
}

static kvg_err make_mover(struct kvc_engine *engine, struct kvg_error *error)
{
    const struct kvc_engine_options *options = &engine->options;
    struct kvg_device_plane *planes = calloc(engine->plane_count, sizeof(*planes));
    struct kvg_device_pool pool = {.component = KVG_COMPONENT_FULL,
        .layer_count = options->layers,
        .slot_count = options->slots,
        .planes = planes,
        .plane_count = engine->plane_count};
    struct kvg_mover_options mover = {.struct_bytes = sizeof(mover),
        .store = options->store,
        .layout = options->layout,
        .pools = &pool,
        .pool_count = 1,
        .owner = true};
    kvg_err err;
    uint32_t i;

    if (planes == NULL)
        return fail(error, KVG_ENOMEM, "out of memory");
    for (i = 0; i < engine->plane_count; i++)
        planes[i] =
            (struct kvg_device_plane){.suffix = kvg_layout_suffix(options->layout, i),
                .layers = engine->layers + (size_t)i * options->layers,
                .slot_bytes = options->slot_bytes};
    err = kvg_mover_new(kvg_alloc_default(), &mover, &engine->mover, error);
    free(planes);
    return err;
}

/* Tree, slots, transport: what dies with the process. */
static kvg_err begin_life(struct kvc_engine *engine, struct kvg_error *error)
{
    struct kvg_engine_options options;
    struct kvg_transport transport;
    kvg_err err = KVG_OK;

    kvg_engine_options_init(&options);
    options.tree.page_size = engine->options.page_size;
    options.tree.events = engine->options.store != NULL;
    options.full_slots = engine->options.slots;
    options.row_count = ROWS;
    options.context_tokens = engine->options.slots;
    if (engine->options.store != NULL) {
        err = make_mover(engine, error);
        if (err != KVG_OK)
            return err;
        transport = kvg_mover_transport(engine->mover);
        options.transport = &transport;
    }
    return kvg_engine_new(kvg_alloc_default(), &options, &engine->engine, error);
}

static void end_life(struct kvc_engine *engine)
{
    kvg_engine_free(engine->engine);
    kvg_mover_free(engine->mover);
    engine->engine = NULL;
    engine->mover = NULL;
}

static kvg_err make_published(struct kvc_engine *engine, struct kvg_error *error)
{
    struct kvg_layout_config config = {.struct_bytes = sizeof(config),
        .rule.page_size = engine->options.page_size,
        .mla = true};
    kvg_err err =
        kvg_layout_new(kvg_alloc_default(), &config, error, &engine->device_layout);

    return err == KVG_OK ? kvc_store_new(engine->device_layout, error, &engine->published)
                         : err;
}

kvg_err kvc_engine_new(const struct kvc_engine_options *options, struct kvg_error *error,
    struct kvc_engine **out)
{
    struct kvc_engine *engine = calloc(1, sizeof(*engine));
    kvg_err err = KVG_OK;

    *out = NULL;
    if (engine == NULL)
        return fail(error, KVG_ENOMEM, "out of memory");
    engine->options = *options;
    if (options->store != NULL) {
        engine->plane_count = kvg_layout_part_count(options->layout);
        if (make_memory(engine) != KVG_OK)
            err = fail(error, KVG_ENOMEM, "out of memory for the device");
        if (err == KVG_OK)
            err = make_published(engine, error);
    }
    if (err == KVG_OK)
        err = begin_life(engine, error);
    if (err != KVG_OK) {
        kvc_engine_free(engine);
        return err;
    }
    *out = engine;
    return KVG_OK;
}

void kvc_engine_free(struct kvc_engine *engine)
{
    if (engine == NULL)
        return;
    end_life(engine);
    kvc_store_free(engine->published);
    kvg_layout_free(engine->device_layout);
    free(engine->layers);
    free(engine->memory);
    free(engine);
}

struct kvc_store *kvc_engine_published(struct kvc_engine *engine)
{
    return engine->published;
}

/* ---- What it publishes --------------------------------------------------------------------- */

static const struct kvg_key *key_of_hash(
    const struct kvg_key *keys, uint32_t page_count, int64_t hash)
{
    uint8_t bytes[8];
    uint32_t i;

    for (i = 0; i < 8; i++)
        bytes[i] = (uint8_t)((uint64_t)hash >> (56 - 8 * i));
    for (i = 0; i < page_count; i++) {
        if (memcmp(keys[i].bytes, bytes, sizeof(bytes)) == 0)
            return &keys[i];
    }
    return NULL;
}

/* Tells what the device has got and lost.  Pages that came are the prompt's. */
static kvg_err publish(
    struct kvc_engine *engine, const struct kvg_key *keys, uint32_t page_count)
{
    struct kvg_tree *tree = kvg_engine_tree(engine->engine);
    struct kvg_tree_event event = {.struct_bytes = sizeof(event)};
    size_t count = kvg_tree_events_take(tree);
    size_t i;
    size_t j;

    for (i = 0; i < count && kvg_tree_event_get(tree, i, &event); i++) {
        const struct kvg_key *from = keys;
        for (j = 0; j < event.hash_count; j++) {
            if (event.kind == KVG_TREE_REMOVED) {
                kvc_store_lose_hash(engine->published, event.hashes[j]);
                continue;
            }
            from =
                key_of_hash(from, page_count - (uint32_t)(from - keys), event.hashes[j]);
            if (from == NULL)
                from = key_of_hash(keys, page_count, event.hashes[j]);
            if (from != NULL)
                kvc_store_gain(engine->published, from);
            else
                from = keys;
        }
    }
    return kvc_store_publish(engine->published);
}

/* ---- Requests ------------------------------------------------------------------------------ */

/* Loads what the match found in the store, layer by layer; what came of it is the row's length. */
static kvg_err load(struct kvc_engine *engine, kvg_row row, struct kvg_error *error)
{
    struct kvg_engine_tick tick;
    uint64_t restored;
    uint32_t layer;
    int64_t batch;
    kvg_err err = kvg_engine_load(engine->engine, row, &restored, error);

    if (err == KVG_ENOSPACE)
        return KVG_OK; /* Then it is computed. */
    if (err != KVG_OK)
        return err;
    batch = kvg_engine_start_loads(engine->engine);
    for (layer = 0; batch >= 0 && layer < engine->options.layers; layer++) {
        if (kvg_engine_wait_layer(engine->engine, batch, layer) != KVG_OK)
            break; /* The tick cuts the request. */
    }
    kvg_mover_finish(engine->mover);
    return kvg_engine_tick(engine->engine, &tick, error);
}

static kvg_err settle(struct kvc_engine *engine, struct kvg_error *error)
{
    struct kvg_engine_tick tick;

    if (engine->mover == NULL)
        return KVG_OK;
    kvg_mover_finish(engine->mover);
    return kvg_engine_tick(engine->engine, &tick, error);
}

static kvg_err begin(struct kvc_engine *engine, const uint32_t *tokens,
    uint32_t page_count, struct kvc_served *out, kvg_row *row, struct kvg_error *error)
{
    uint64_t count = (uint64_t)page_count * engine->options.page_size;
    struct kvg_engine_prompt prompt = {.id = ++engine->next_request,
        .key = {.tokens = tokens, .token_count = (size_t)count},
        .prompt_tokens = count};
    struct kvg_engine_match match;
    kvg_err err;

    if (count > engine->options.slots) {
        error->code = KVG_ELIMIT;
        snprintf(error->field, sizeof(error->field), "engine");
        snprintf(error->message, sizeof(error->message),
            "a prompt of %" PRIu64 " tokens; a pretend engine holds %" PRIu64, count,
            engine->options.slots);
        return KVG_ELIMIT;
    }
    err = kvg_engine_begin(engine->engine, &prompt, &match, row, error);
    if (err != KVG_OK)
        return err;
    out->device_tokens = match.device_length;
    return match.load_needed ? load(engine, *row, error) : KVG_OK;
}

kvg_err kvc_engine_serve(struct kvc_engine *engine, const uint32_t *tokens,
    const struct kvg_key *keys, uint32_t page_count, struct kvc_served *out,
    struct kvg_error *error)
{
    uint32_t page_size = engine->options.page_size;
    struct kvg_tree_key key = {
        .tokens = tokens, .token_count = (size_t)page_count * page_size};
    uint64_t length;
    uint64_t more;
    kvg_row row;
    kvg_err err;

    *out = (struct kvc_served){0};
    if (page_count == 0)
        return KVG_OK;
    err = begin(engine, tokens, page_count, out, &row, error);
    if (err != KVG_OK)
        return err;
    length = kvg_rows_length(kvg_engine_rows(engine->engine), row);
    out->store_tokens = length - out->device_tokens;
    go_through(engine, row, keys, 0, (uint32_t)(length / page_size), out);
    more = (uint64_t)page_count * page_size - length;
    if (more > 0)
        err = kvg_engine_extend(engine->engine, &row, &more, 1, error);
    if (err != KVG_OK)
        return err;
    go_through(engine, row, keys, (uint32_t)(length / page_size), page_count, NULL);
    err = kvg_engine_finish(engine->engine, row, &key, error);
    if (err == KVG_OK)
        err = settle(engine, error);
    if (err == KVG_OK && engine->published != NULL &&
        publish(engine, keys, page_count) != KVG_OK)
        err = fail(error, KVG_ETIMEOUT, "its events could not be sent");
    return err;
}

/* Work that will not be ended: a load, or pages being written. */
static void begin_to_work(struct kvc_engine *engine, const struct kvg_tree_key *key,
    const struct kvg_key *keys, uint32_t page_count)
{
    struct kvg_engine_prompt prompt = {
        .id = ++engine->next_request, .key = *key, .prompt_tokens = key->token_count};
    struct kvg_engine_match match;
    struct kvg_error ignored;
    uint64_t restored;
    uint64_t more;
    kvg_row row;

    if (kvg_engine_begin(engine->engine, &prompt, &match, &row, &ignored) != KVG_OK)
        return;
    if (match.load_needed) {
        if (kvg_engine_load(engine->engine, row, &restored, &ignored) == KVG_OK)
            (void)kvg_engine_start_loads(engine->engine);
        return;
    }
    more = key->token_count - match.device_length;
    if (more > 0 && kvg_engine_extend(engine->engine, &row, &more, 1, &ignored) != KVG_OK)
        return;
    go_through(engine, row, keys,
        (uint32_t)(match.device_length / engine->options.page_size), page_count, NULL);
    if (kvg_engine_finish(engine->engine, row, key, &ignored) != KVG_OK)
        return;
}

kvg_err kvc_engine_kill(struct kvc_engine *engine, const uint32_t *tokens,
    const struct kvg_key *keys, uint32_t page_count, struct kvg_error *error)
{
    struct kvg_tree_key key = {
        .tokens = tokens, .token_count = (size_t)page_count * engine->options.page_size};

    begin_to_work(engine, &key, keys, page_count);
    end_life(engine);
    memset(engine->memory, RUBBISH,
        (size_t)engine->plane_count * engine->options.layers * engine->options.slots *
            engine->options.slot_bytes);
    kvc_store_lose_all(engine->published);
    if (kvc_store_publish(engine->published) != KVG_OK)
        return fail(error, KVG_ETIMEOUT, "its events could not be sent");
    return begin_life(engine, error);
}
