/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* publish.c -- what a request computed goes into the tree.
 *
 *     1  windows that no later token can see are freed
 *     2  insert the whole pages; the tree keeps, or frees as duplicates, everything above in_tree
 *     3  the row takes the tree's slots; the lock moves to the end of what was inserted
 *
 * A request whose own load is under way must wait: what it computed stands on pages that may never
 * come.  Pages that somebody else's load is bringing are not inserted below; the request keeps
 * its own.
 */
#include "graft/engine.h"

#include "tree/tree.h"

/* How much of the key may be inserted: whole pages, up to what awaits bytes. */
static uint64_t insertable(const struct kvg_engine *engine,
    const struct kvi_request *request, const struct kvg_tree_key *key,
    struct kvg_tree_key *view)
{
    uint64_t units = kvi_tree_key(engine->tree, key, view);
    uint64_t stop = kvg_tree_first_awaited(engine->tree, view, request->in_tree);

    if (stop >= units || KVI_GRAFT_PLANTED(6))
        return units;
    struct kvg_tree_key whole = *view;
    kvi_must(kvg_tree_key_slice(&whole, 0, (size_t)stop, view, NULL));
    return stop;
}

/* Frees window slots of the row that lie more than a window before its end. */
static void slide_window(
    struct kvg_engine *engine, struct kvi_request *request, uint64_t units)
{
    uint64_t window = engine->tree->options.window;
    uint64_t page = engine->page_size;
    uint64_t reach = KVI_GRAFT_PLANTED(8) ? 1 : (window > page ? window : page) + 1;
    uint64_t from =
        request->swa_cursor > request->in_tree ? request->swa_cursor : request->in_tree;

    if (!engine->cache->has_swa)
        return;
    if (kvi_memory_is_ring(&engine->memory)) {
        request->swa_cursor = units > from ? units : from;
        return;
    }
    uint64_t to = units > reach ? (units - reach) / page * page : 0;
    if (to <= from)
        return;
    kvi_request_spans(engine, request, from, to);
    kvi_must(kvi_memory_free_swa(
        &engine->memory, engine->spans.items, engine->spans.count, NULL));
    request->swa_cursor = to;
}

/* The row takes the slots that the tree has for [in_tree, units). */
static kvg_err adopt_slots(struct kvg_engine *engine, struct kvi_request *request,
    kvg_node_id last, uint64_t units, struct kvg_error *error)
{
    struct kvg_lock_receipt receipt;
    const struct kvg_span *spans;
    size_t count;
    bool exact = request->node_length == request->in_tree;
    uint64_t skip = exact ? 0 : request->in_tree;
    kvg_err err = kvg_tree_collect_full_device(engine->tree, last,
        exact ? request->node : kvg_tree_root(engine->tree), &spans, &count, error);

    if (err == KVG_OK)
        err = kvg_tree_lock(engine->tree, last, 0, &receipt, error);
    if (err != KVG_OK)
        return err;
    engine->spans.count =
        kvi_spans_cut(spans, count, skip, units - request->in_tree, engine->spans.items);
    if (!KVI_GRAFT_PLANTED(9))
        kvi_must(kvg_rows_write(engine->rows, request->row, request->in_tree,
            engine->spans.items, engine->spans.count, NULL));
    kvi_must(
        kvg_tree_unlock(engine->tree, request->node, &request->receipt, false, NULL));
    request->node = last;
    request->receipt = receipt;
    request->in_tree = request->node_length = units;
    return KVG_OK;
}

static void fill_insert(struct kvg_engine *engine, const struct kvi_request *request,
    const struct kvg_tree_key *key, uint64_t units, struct kvg_tree_insert *insert)
{
    kvg_tree_insert_init(insert);
    kvi_request_spans(engine, request, 0, units);
    insert->key = *key;
    insert->value = engine->spans.items;
    insert->value_count = engine->spans.count;
    insert->prev_prefix_length = request->in_tree;
    insert->evicted_length[KVG_COMPONENT_SWA] = request->swa_cursor;
    insert->priority = request->priority;
    insert->session_id = (struct kvg_str){request->session_id, request->session_id_bytes};
}

/* A prompt that ends inside what was inserted gets a node boundary there, so that its answer can be
 * evicted before it. */
static void split_at_prompt(struct kvg_engine *engine, struct kvi_request *request,
    const struct kvg_tree_key *key, uint64_t units)
{
    struct kvg_tree_insert insert;
    struct kvg_tree_inserted inserted;
    struct kvg_tree_key prompt;
    uint64_t end = request->prompt_tokens;

    if (engine->tree->eagle && end != 0)
        end--;
    end = end / engine->page_size * engine->page_size;
    if (engine->cache->has_swa || end == 0 || end >= units)
        return;
    kvi_must(kvg_tree_key_slice(key, 0, (size_t)end, &prompt, NULL));
    fill_insert(engine, request, &prompt, end, &insert);
    insert.prev_prefix_length = end;
    insert.chunked = true;
    insert.priority = request->priority + 1;
    /* Without memory the boundary is missing, nothing else. */
    if (kvg_cache_insert(engine->cache, &insert, &inserted, NULL, NULL) != KVG_OK)
        return;
}

/* Inserts.  On failure with slots already taken the request has ended. */
static kvg_err publish(struct kvg_engine *engine, struct kvi_request *request,
    const struct kvg_tree_key *key, bool finish, struct kvg_error *error)
{
    struct kvg_tree_insert insert;
    struct kvg_tree_inserted inserted;
    struct kvg_tree_key view;
    uint64_t units = insertable(engine, request, key, &view);
    uint64_t before = request->in_tree;
    uint64_t given_up = engine->cache->stats.windows_given_up;
    uint64_t taken = 0;

    kvg_err err = kvi_linker_group_begin(engine->linker);
    if (err != KVG_OK)
        return kvi_fail(error, err, "insert", "no memory for a record");
    slide_window(engine, request, units);
    if (units > request->in_tree) {
        fill_insert(engine, request, &view, units, &insert);
        err = kvg_cache_insert(engine->cache, &insert, &inserted, &taken, error);
        if (taken > units)
            taken = units;
        if (err == KVG_OK)
            err = adopt_slots(engine, request, inserted.last_node, units, error);
        if (err == KVG_OK && !finish &&
            engine->cache->stats.windows_given_up != given_up) /* It needs them. */
            err = kvi_fail(error, KVG_ENOMEM, "insert", "no memory for a window");
        if (err == KVG_OK && finish)
            split_at_prompt(engine, request, &view, units);
    }
    kvi_linker_group_end(engine->linker);
    if (err != KVG_OK && taken > before)
        kvi_request_end(
            engine, request, taken > request->in_tree ? taken : request->in_tree);
    return err;
}

static kvg_err check_publish(struct kvg_engine *engine, kvg_row row,
    const struct kvg_tree_key *key, struct kvi_request **out, struct kvg_error *error)
{
    kvg_err err = kvi_request_get(engine, row, out, error);

    if (err != KVG_OK)
        return err;
    if ((*out)->load_pending)
        return kvi_fail(
            error, KVG_EBUSY, "request", "its load is under way: tick, then try again");
    uint64_t length = kvg_rows_length(engine->rows, row);
    if (key->token_count > length)
        return kvi_fail_range(error, "key.token_count", key->token_count, 0, length);
    return KVG_OK;
}

kvg_err kvg_engine_insert(struct kvg_engine *engine, kvg_row row,
    const struct kvg_tree_key *key, struct kvg_error *error)
{
    struct kvi_request *request = NULL;
    kvg_err err = check_publish(engine, row, key, &request, error);

    return err != KVG_OK ? err : publish(engine, request, key, false, error);
}

kvg_err kvg_engine_finish(struct kvg_engine *engine, kvg_row row,
    const struct kvg_tree_key *key, struct kvg_error *error)
{
    struct kvi_request *request = NULL;
    kvg_err err = check_publish(engine, row, key, &request, error);

    if (err != KVG_OK)
        return err;
    err = publish(engine, request, key, true, error);
    if (err == KVG_OK)
        kvi_request_turn(engine, request);
    if (request->used && request->row.generation == row.generation)
        kvi_request_end(engine, request, request->in_tree);
    return err;
}

kvg_err kvg_engine_abort(struct kvg_engine *engine, kvg_row row, struct kvg_error *error)
{
    struct kvi_request *request = NULL;
    kvg_err err = kvi_request_get(engine, row, &request, error);

    if (err == KVG_OK)
        kvi_request_end(engine, request, request->in_tree);
    return err;
}
