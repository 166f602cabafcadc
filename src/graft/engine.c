/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* engine.c -- making and ending an engine, its tick, and the cuts after failed loads. */
#include "graft/engine.h"

void kvg_engine_options_init(struct kvg_engine_options *options)
{
    *options = (struct kvg_engine_options){.struct_bytes = sizeof(*options),
        .full_slots = 65536,
        .window_slots = 65536,
        .row_count = 64,
        .context_tokens = 8192,
        .write_through_hits = 1};
    kvg_tree_options_init(&options->tree);
}

static kvg_err make_memory(struct kvg_engine *engine,
    const struct kvg_engine_options *options, struct kvg_error *error)
{
    bool has_swa = (options->tree.components & KVG_COMPONENT_BIT(KVG_COMPONENT_SWA)) != 0;
    struct kvg_slots_options slots = {.struct_bytes = sizeof(slots),
        .capacity_slots = options->full_slots,
        .page_slots = engine->page_size,
        .first_slot = options->first_slot};
    struct kvg_window_options window = {.struct_bytes = sizeof(window),
        .kind = options->tree.swa_request_ring ? KVG_WINDOW_RING : KVG_WINDOW_MAPPED,
        .page_slots = engine->page_size,
        .full_slots = options->full_slots,
        .full_first = options->first_slot,
        .window_slots = options->window_slots,
        .window_first = options->first_slot,
        .ring_rows = options->row_count,
        .ring_slots = (uint32_t)kvi_round_up(engine, options->tree.window),
        .exact = true};

    return has_swa
               ? kvg_window_new(&engine->alloc, &window, &engine->memory.window, error)
               : kvg_slots_new(&engine->alloc, &slots, &engine->memory.slots, error);
}

static kvg_err make_tables(struct kvg_engine *engine,
    const struct kvg_engine_options *options, struct kvg_error *error)
{
    struct kvg_rows_options rows = {.struct_bytes = sizeof(rows),
        .row_count = options->row_count,
        .page_slots = engine->page_size,
        .context_slots = kvi_round_up(engine, options->context_tokens)};
    size_t pages = (size_t)(rows.context_slots / engine->page_size);
    kvg_err err = kvg_rows_new(&engine->alloc, &rows, &engine->rows, error);

    if (err != KVG_OK)
        return err;
    engine->requests =
        kvi_alloc_array(&engine->alloc, options->row_count, sizeof(*engine->requests));
    engine->extends =
        kvi_alloc_array(&engine->alloc, options->row_count, sizeof(*engine->extends));
    engine->cuts =
        kvi_alloc_array(&engine->alloc, options->row_count, sizeof(*engine->cuts));
    if (engine->requests == NULL || engine->extends == NULL || engine->cuts == NULL ||
        kvi_spans_reserve(&engine->alloc, &engine->spans, pages + 1) != KVG_OK)
        return kvi_fail(error, KVG_ENOMEM, "engine", "no memory for tables");
    return KVG_OK;
}

static kvg_err make_parts(struct kvg_engine *engine,
    const struct kvg_engine_options *options, struct kvg_error *error)
{
    struct kvg_linker_options linker = {.struct_bytes = sizeof(linker),
        .transport = options->transport,
        .agreement = options->agreement,
        .prompt_pages_max = (uint32_t)(options->context_tokens / engine->page_size + 1),
        .write_through_hits = options->write_through_hits,
        .sparse_retention = options->sparse_retention,
        .retention_interval = options->retention_interval};
    kvg_err err = kvg_tree_new(&engine->alloc, &options->tree, &engine->tree, error);

    if (err == KVG_OK)
        err = make_memory(engine, options, error);
    if (err == KVG_OK)
        err = make_tables(engine, options, error);
    if (err == KVG_OK)
        err = kvg_cache_new(
            &engine->alloc, engine->tree, &engine->memory, &engine->cache, error);
    if (err == KVG_OK)
        err = kvg_linker_new(
            &engine->alloc, engine->cache, &linker, &engine->linker, error);
    return err;
}

kvg_err kvg_engine_new(const struct kvg_alloc *alloc,
    const struct kvg_engine_options *options, struct kvg_engine **out,
    struct kvg_error *error)
{
    *out = NULL;
    if (options->tree.page_size == 0 || options->tree.page_size > KVG_PAGE_SIZE_MAX)
        return kvi_fail_range(error, "engine.tree.page_size", options->tree.page_size, 1,
            KVG_PAGE_SIZE_MAX);
    if ((options->tree.components & ~(KVG_COMPONENT_BIT(KVG_COMPONENT_FULL) |
                                        KVG_COMPONENT_BIT(KVG_COMPONENT_SWA))) != 0)
        return kvi_fail(error, KVG_EUNSUPPORTED, "engine.tree.components",
            "an engine has FULL, or FULL and SWA");
    struct kvg_engine *engine = KVI_NEW(alloc, struct kvg_engine);
    if (engine == NULL)
        return kvi_fail(error, KVG_ENOMEM, "engine", "no memory for an engine");
    engine->alloc = *alloc;
    engine->page_size = options->tree.page_size;
    engine->row_count = options->row_count;
    engine->context_tokens = options->context_tokens;
    kvg_err err = make_parts(engine, options, error);
    if (err != KVG_OK) {
        kvg_engine_free(engine);
        return err;
    }
    *out = engine;
    return KVG_OK;
}

void kvg_engine_free(struct kvg_engine *engine)
{
    struct kvg_alloc alloc;

    if (engine == NULL)
        return;
    alloc = engine->alloc;
    if (engine->linker != NULL)
        kvg_linker_close(engine->linker);
    kvg_linker_free(engine->linker);
    kvg_cache_free(engine->cache);
    kvg_tree_free(engine->tree);
    kvg_slots_free(engine->memory.slots);
    kvg_window_free(engine->memory.window);
    kvg_rows_free(engine->rows);
    for (uint32_t i = 0; engine->requests != NULL && i < engine->row_count; i++)
        kvi_request_forget_session(engine, &engine->requests[i]);
    kvi_release_array(
        &alloc, engine->requests, engine->row_count, sizeof(*engine->requests));
    kvi_release_array(
        &alloc, engine->extends, engine->row_count, sizeof(*engine->extends));
    kvi_release_array(&alloc, engine->cuts, engine->row_count, sizeof(*engine->cuts));
    kvi_rids_fini(&alloc, &engine->request_of);
    kvi_spans_fini(&alloc, &engine->spans);
    KVI_FREE(&alloc, engine);
}

/* ---- Tick ---------------------------------------------------------------------------------- */

int64_t kvg_engine_start_loads(struct kvg_engine *engine)
{
    return kvg_linker_start_loads(engine->linker);
}

kvg_err kvg_engine_wait_layer(struct kvg_engine *engine, int64_t batch, uint32_t layer)
{
    return kvg_linker_wait_layer(engine->linker, batch, layer);
}

kvg_err kvg_engine_tick(
    struct kvg_engine *engine, struct kvg_engine_tick *out, struct kvg_error *error)
{
    struct kvg_linker_tick tick;
    kvg_err err = kvg_linker_tick(engine->linker, &tick, error);

    *out = (struct kvg_engine_tick){.struct_bytes = sizeof(*out), .cuts = engine->cuts};
    if (err != KVG_OK)
        return err;
    out->load_count = tick.load_count;
    out->offload_count = tick.offload_count;
    for (size_t i = 0; i < tick.load_count; i++) {
        uint32_t row = kvi_rids_find(&engine->request_of, tick.loads[i].request);
        if (row == KVI_RID_NONE || !engine->requests[row].load_pending)
            continue;
        struct kvi_request *request = &engine->requests[row];
        request->load_pending = false;
        if (tick.loads[i].success) {
            kvi_request_drop_anchor(engine, request);
            continue;
        }
        kvi_request_fall_back(engine, request);
        engine->cuts[out->cut_count++] =
            (struct kvg_engine_cut){request->id, request->row, request->in_tree};
    }
    (void)kvg_linker_settle(engine->linker);
    return KVG_OK;
}

kvg_err kvg_engine_reset(struct kvg_engine *engine, struct kvg_error *error)
{
    if (engine->request_of.count != 0)
        return kvi_fail(error, KVG_EBUSY, "engine.requests", "requests are alive");
    kvg_linker_reset(engine->linker);
    kvg_err err = kvg_tree_reset(engine->tree);
    if (err != KVG_OK)
        return kvi_fail(error, err, "engine", "no memory to reset the tree");
    if (engine->memory.window != NULL)
        kvg_window_reset(engine->memory.window);
    else
        kvg_slots_reset(engine->memory.slots);
    return kvg_tree_events_add_cleared(engine->tree);
}

/* ---- Looking ------------------------------------------------------------------------------- */

struct kvg_tree *kvg_engine_tree(struct kvg_engine *engine)
{
    return engine->tree;
}
struct kvg_cache *kvg_engine_cache(struct kvg_engine *engine)
{
    return engine->cache;
}
struct kvg_linker *kvg_engine_linker(struct kvg_engine *engine)
{
    return engine->linker;
}
const struct kvg_rows *kvg_engine_rows(const struct kvg_engine *engine)
{
    return engine->rows;
}
const struct kvg_memory *kvg_engine_memory(const struct kvg_engine *engine)
{
    return &engine->memory;
}
