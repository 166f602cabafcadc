/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* request.c -- a request from its match to its slots.  What it computed goes into the tree in
 * publish.c; the picture of a row is in engine.h. */
#include "graft/engine.h"

kvg_err kvi_request_get(struct kvg_engine *engine, kvg_row row, struct kvi_request **out,
    struct kvg_error *error)
{
    if (row.index >= engine->row_count || !engine->requests[row.index].used ||
        engine->requests[row.index].row.generation != row.generation)
        return kvi_fail(error, KVG_ESTATE, "request", "has ended");
    *out = &engine->requests[row.index];
    return KVG_OK;
}

kvg_err kvg_engine_request_get(
    const struct kvg_engine *engine, kvg_row row, struct kvg_engine_request *out)
{
    *out = (struct kvg_engine_request){.struct_bytes = sizeof(*out)};
    if (row.index >= engine->row_count || !engine->requests[row.index].used ||
        engine->requests[row.index].row.generation != row.generation)
        return KVG_ESTATE;
    const struct kvi_request *request = &engine->requests[row.index];
    out->id = request->id;
    out->length = kvg_rows_length(engine->rows, row);
    out->in_tree = request->in_tree;
    out->swa_cursor = request->swa_cursor;
    out->node = request->node;
    out->load_pending = request->load_pending;
    return KVG_OK;
}

void kvi_request_spans(struct kvg_engine *engine, const struct kvi_request *request,
    uint64_t from, uint64_t to)
{
    engine->spans.count = 0;
    if (from < to)
        kvi_must(
            kvg_rows_spans(engine->rows, request->row, from, to, &engine->spans, NULL));
}

void kvi_request_release_own(
    struct kvg_engine *engine, struct kvi_request *request, uint64_t from)
{
    uint64_t length = kvg_rows_length(engine->rows, request->row);
    uint64_t end = kvi_round_up(engine, length);
    uint64_t middle = request->swa_cursor < from ? from : request->swa_cursor;

    if (middle > end || !engine->cache->has_swa)
        middle = end;
    if (from < middle) { /* Without window slots, or in a tree without a window. */
        kvi_request_spans(engine, request, from, middle);
        kvi_must(kvi_memory_free_full(
            &engine->memory, engine->spans.items, engine->spans.count, NULL));
    }
    if (middle < end) {
        kvi_request_spans(engine, request, middle, end);
        kvi_must(kvi_memory_free(
            &engine->memory, engine->spans.items, engine->spans.count, NULL));
    }
    if (from < length)
        kvi_must(kvg_rows_truncate(engine->rows, request->row, from, NULL));
}

void kvi_request_drop_anchor(struct kvg_engine *engine, struct kvi_request *request)
{
    if (request->anchor_locked)
        kvi_must(kvg_tree_unlock(
            engine->tree, request->anchor, &request->anchor_receipt, false, NULL));
    request->anchor_locked = false;
}

void kvi_request_end(
    struct kvg_engine *engine, struct kvi_request *request, uint64_t from)
{
    kvg_request_id id = request->id;

    kvi_request_release_own(engine, request, from);
    kvi_request_drop_anchor(engine, request);
    kvi_must(
        kvg_tree_unlock(engine->tree, request->node, &request->receipt, false, NULL));
    kvi_must(kvg_rows_release(engine->rows, request->row, NULL));
    kvi_rids_remove(&engine->request_of, id);
    kvi_request_forget_session(engine, request);
    *request = (struct kvi_request){0};
    if (!KVI_GRAFT_PLANTED(5))
        kvg_linker_release_request(engine->linker, id);
}

/* ---- Falling back ------------------------------------------------------------------------ */

/* Locks what the request falls back on if a load fails: the longest prefix that all ranks
 * have, with its window. */
static kvg_err lock_anchor(struct kvg_engine *engine, struct kvi_request *request,
    const struct kvg_tree_key *key, struct kvg_error *error)
{
    struct kvg_tree_key view, shorter;
    struct kvg_tree_match found;

    request->anchor = request->node;
    request->anchor_length = request->in_tree;
    if (request->common < request->in_tree) {
        view = *key;
        view.bigram = kvg_tree_is_eagle(engine->tree);
        kvi_must(kvg_tree_key_slice(&view, 0, (size_t)request->common, &shorter, NULL));
        kvg_err err = kvg_cache_match(engine->cache, &shorter, &found, error);
        if (err != KVG_OK)
            return err;
        request->anchor = found.last_device_node;
        request->anchor_length = found.device_length;
    }
    kvg_err err =
        kvg_tree_lock(engine->tree, request->anchor, 0, &request->anchor_receipt, error);
    request->anchor_locked = err == KVG_OK;
    return err;
}

void kvi_request_fall_back(struct kvg_engine *engine, struct kvi_request *request)
{
    KVI_ASSERT(request->anchor_locked);
    kvi_request_release_own(engine, request, request->in_tree);
    kvi_must(
        kvg_tree_unlock(engine->tree, request->node, &request->receipt, false, NULL));
    request->node = request->anchor;
    request->receipt = request->anchor_receipt;
    request->anchor_locked = false;
    request->in_tree = request->node_length = request->anchor_length;
    request->swa_cursor = request->cursor_before;
    kvi_must(kvg_rows_truncate(engine->rows, request->row, request->in_tree, NULL));
}

/* ---- Session ------------------------------------------------------------------------------- */

/* Nothing here fails a request: without room for a session it has none. */
static void take_session(struct kvg_engine *engine,
    const struct kvg_engine_prompt *prompt, struct kvi_request *request)
{
    if (prompt->session_id.data == NULL)
        return;
    request->session_id = kvi_copy_string(&engine->alloc, prompt->session_id);
    if (request->session_id == NULL)
        return;
    request->session_id_bytes = prompt->session_id.bytes;
    request->session_generation = prompt->session_generation;
    if (request->session_generation == 0 &&
        kvg_tree_session_ensure(engine->tree, prompt->session_id,
            &request->session_generation, NULL) != KVG_OK)
        request->session_generation = 0;
}

void kvi_request_forget_session(struct kvg_engine *engine, struct kvi_request *request)
{
    kvi_release_string(&engine->alloc, request->session_id, request->session_id_bytes);
    request->session_id = NULL;
    request->session_id_bytes = 0;
}

void kvi_request_turn(struct kvg_engine *engine, const struct kvi_request *request)
{
    struct kvg_str id = {request->session_id, request->session_id_bytes};
    bool held;

    if (id.data == NULL || request->session_generation == 0)
        return;
    if (kvg_tree_session_touch(engine->tree, id, request->session_generation,
            request->node, &held, NULL) != KVG_OK)
        return; /* Counted by the tree. */
}

/* ---- Begin --------------------------------------------------------------------------------- */

static kvg_err check_begin(struct kvg_engine *engine,
    const struct kvg_engine_prompt *prompt, struct kvg_error *error)
{
    if (prompt->key.token_count > engine->context_tokens)
        return kvi_fail_range(error, "engine.context_tokens", prompt->key.token_count, 0,
            engine->context_tokens);
    if (prompt->session_id.data != NULL &&
        (prompt->session_id.bytes == 0 ||
            prompt->session_id.bytes > KVG_TREE_SESSION_ID_MAX))
        return kvi_fail_range(error, "prompt.session_id.bytes", prompt->session_id.bytes,
            1, KVG_TREE_SESSION_ID_MAX);
    if (kvi_rids_find(&engine->request_of, prompt->id) != KVI_RID_NONE)
        return kvi_fail(error, KVG_EEXIST, "prompt.id", "is the id of a living request");
    return KVG_OK;
}

static kvg_err match(struct kvg_engine *engine, const struct kvg_engine_prompt *prompt,
    struct kvg_tree_match *found, struct kvg_linker_match *outside,
    struct kvg_error *error)
{
    kvg_err err = kvi_rids_reserve(&engine->alloc, &engine->request_of);

    if (err == KVG_OK)
        err = kvg_cache_match(engine->cache, &prompt->key, found, error);
    if (err == KVG_OK)
        return kvg_linker_match(
            engine->linker, prompt->id, &prompt->key, found, outside, error);
    kvi_linker_abstain(engine->linker, &prompt->key);
    return kvi_fail(error, err, "engine", "no memory for a request");
}

kvg_err kvg_engine_begin(struct kvg_engine *engine,
    const struct kvg_engine_prompt *prompt, struct kvg_engine_match *out,
    kvg_row *request_out, struct kvg_error *error)
{
    struct kvg_linker_match outside;
    struct kvg_tree_match found;
    kvg_row row;

    *out = (struct kvg_engine_match){.struct_bytes = sizeof(*out)};
    *request_out = (kvg_row){0};
    kvg_err err = check_begin(engine, prompt, error);
    if (err == KVG_OK)
        err = kvg_rows_acquire(engine->rows, 1, &row, error);
    if (err != KVG_OK)
        return err;
    err = match(engine, prompt, &found, &outside, error);
    if (err == KVG_OK)
        err = kvg_rows_append(
            engine->rows, row, found.device_spans, found.device_span_count, error);
    struct kvi_request request = {.id = prompt->id,
        .row = row,
        .used = true,
        .node = found.last_device_node,
        .prompt_tokens = prompt->prompt_tokens,
        .priority = prompt->priority};
    if (err == KVG_OK)
        err = kvg_tree_lock(engine->tree, request.node, 0, &request.receipt, error);
    if (err != KVG_OK) {
        kvg_linker_release_request(engine->linker, prompt->id);
        kvi_must(kvg_rows_release(engine->rows, row, NULL));
        return err;
    }
    request.in_tree = request.node_length = found.device_length;
    request.common = outside.common_length;
    request.load_wanted = outside.load_length;
    request.load_needed = outside.load_needed;
    take_session(engine, prompt, &request);
    engine->requests[row.index] = request;
    kvi_rids_add(&engine->request_of, prompt->id, row.index);
    if (request.load_needed) {
        err = lock_anchor(engine, &engine->requests[row.index], &prompt->key, error);
        if (err != KVG_OK) {
            kvi_request_end(engine, &engine->requests[row.index], request.in_tree);
            return err;
        }
    }
    out->device_length = found.device_length;
    out->load_length = outside.load_length;
    out->load_needed = outside.load_needed;
    out->loading = outside.loading;
    *request_out = row;
    return KVG_OK;
}

/* ---- Load ---------------------------------------------------------------------------------- */

static void take_loaded(struct kvg_engine *engine, struct kvi_request *request,
    const struct kvg_load_back *io)
{
    struct kvg_lock_receipt receipt;

    request->load_pending = io->queued || engine->linker->agreement.min != NULL;
    request->swa_cursor = io->swa_cursor;
    if (io->length != 0) {
        kvi_must(kvg_tree_lock(engine->tree, io->last_node, 0, &receipt, NULL));
        kvi_must(
            kvg_tree_unlock(engine->tree, request->node, &request->receipt, false, NULL));
        kvi_must(
            kvg_rows_append(engine->rows, request->row, io->spans, io->span_count, NULL));
        request->node = io->last_node;
        request->receipt = receipt;
        request->in_tree += io->length;
        request->node_length = request->in_tree;
    }
    if (!request->load_pending)
        kvi_request_drop_anchor(engine, request);
}

kvg_err kvg_engine_load(struct kvg_engine *engine, kvg_row row, uint64_t *restored_out,
    struct kvg_error *error)
{
    struct kvi_request *request = NULL;
    kvg_err err = kvi_request_get(engine, row, &request, error);

    *restored_out = 0;
    if (err != KVG_OK || !request->load_needed)
        return err;
    struct kvg_load_back io = {.struct_bytes = sizeof(io),
        .request = request->id,
        .node = request->node,
        .join = true,
        .priority = request->priority,
        .swa_cursor = request->swa_cursor,
        .length = request->load_wanted};
    request->load_needed = false;
    request->cursor_before = request->swa_cursor;
    err = kvg_linker_load_back(engine->linker, &io, error);
    if (io.agreed) {
        take_loaded(engine, request, &io);
        *restored_out = io.length;
    } else {
        kvi_request_fall_back(engine, request);
    }
    return err;
}

/* ---- Extend -------------------------------------------------------------------------------- */

static kvg_err plan(struct kvg_engine *engine, const kvg_row *rows,
    const uint64_t *token_counts, size_t count, uint64_t *slots_out,
    struct kvg_error *error)
{
    struct kvi_request *request = NULL;

    *slots_out = 0;
    if (count > engine->row_count)
        return kvi_fail_range(error, "extend.count", count, 0, engine->row_count);
    for (size_t i = 0; i < count; i++) {
        kvg_err err = kvi_request_get(engine, rows[i], &request, error);
        if (err != KVG_OK)
            return err;
        if (request->load_needed) { /* Nobody asked for it. */
            request->load_needed = false;
            kvi_request_drop_anchor(engine, request);
        }
        uint64_t length = kvg_rows_length(engine->rows, rows[i]);
        if (token_counts[i] > engine->context_tokens - length)
            return kvi_fail_range(error, "extend.token_count", token_counts[i], 0,
                engine->context_tokens - length);
        size_t pages;
        const uint32_t *table = kvg_rows_table(engine->rows, rows[i], &pages);
        engine->extends[i] = (struct kvg_extend){.held_slots = length,
            .last_slot = length == 0 ? KVG_SLOT_NONE
                                     : (uint64_t)table[(length - 1) / engine->page_size] *
                                               engine->page_size +
                                           (length - 1) % engine->page_size,
            .wanted_slots = token_counts[i]};
        *slots_out +=
            kvi_round_up(engine, length + token_counts[i]) - kvi_round_up(engine, length);
    }
    return KVG_OK;
}

static kvg_err allocate(struct kvg_engine *engine, size_t count, uint64_t slots,
    struct kvg_spans *spans, struct kvg_error *error)
{
    kvg_err err = kvi_spans_reserve(
        &engine->alloc, spans, (size_t)(slots / engine->page_size) + 2 * count + 1);

    if (err != KVG_OK)
        return kvi_fail(error, err, "extend", "no memory for spans");
    err = kvg_cache_make_room(engine->cache, slots, slots, error);
    if (err != KVG_OK)
        return err;
    if (engine->memory.window != NULL)
        return kvg_window_extend(
            engine->memory.window, engine->extends, count, spans, error);
    return kvg_slots_extend(engine->memory.slots, engine->extends, count, spans, error);
}

/* Gives back what a request got beyond `length`. */
static void shorten(struct kvg_engine *engine, kvg_row row, uint64_t length)
{
    struct kvi_request *request = &engine->requests[row.index];
    uint64_t from = kvi_round_up(engine, length);
    uint64_t end = kvi_round_up(engine, kvg_rows_length(engine->rows, row));

    kvi_request_spans(engine, request, from, end);
    if (engine->spans.count != 0)
        kvi_must(kvi_memory_free(
            &engine->memory, engine->spans.items, engine->spans.count, NULL));
    kvi_must(kvg_rows_truncate(engine->rows, row, length, NULL));
}

kvg_err kvg_engine_extend(struct kvg_engine *engine, const kvg_row *requests,
    const uint64_t *token_counts, size_t count, struct kvg_error *error)
{
    struct kvg_spans spans = {0};
    uint64_t slots;
    kvg_err err = plan(engine, requests, token_counts, count, &slots, error);

    if (err != KVG_OK)
        return err;
    err = allocate(engine, count, slots, &spans, error);
    for (size_t i = 0; i < count && err == KVG_OK; i++)
        kvi_must(kvg_rows_append(engine->rows, requests[i],
            spans.items + engine->extends[i].span_first, engine->extends[i].span_count,
            NULL));
    int32_t ok = err == KVG_OK;
    kvi_agree(engine->linker, &ok, 1);
    if (ok == 0 && err == KVG_OK) {
        for (size_t i = 0; i < count; i++)
            shorten(engine, requests[i], engine->extends[i].held_slots);
        err = kvi_fail(error, KVG_ENOSPACE, "extend", "another rank has no room");
    }
    kvi_spans_fini(&engine->alloc, &spans);
    return err;
}
