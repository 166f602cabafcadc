/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* engine_audit.c -- asks everybody which slots are theirs. */
#include "graft/engine.h"

#include "tree/tree.h"

struct books {
    struct kvg_engine *engine;
    struct kvg_audit *full, *swa;
    struct kvg_spans spans, window;
};

static kvg_err claim_value(struct books *books, const struct kvi_node *node,
    uint32_t slot, struct kvg_audit *audit, struct kvg_error *error)
{
    const struct kvi_value *value = &kvi_part(node, slot)->value[KVG_TIER_DEVICE];
    uint32_t count = kvi_value_span_count(value, 0, value->length);

    if (audit == NULL || value->length == 0)
        return KVG_OK;
    if (kvi_spans_reserve(&books->engine->alloc, &books->spans, count) != KVG_OK)
        return KVG_ENOMEM;
    count = kvi_value_spans(value, 0, value->length, books->spans.items);
    return kvg_audit_claim(audit,
        kvi_part(node, slot)->lock[KVG_TIER_DEVICE] != 0 ? KVG_CLAIM_PROTECTED
                                                         : KVG_CLAIM_EVICTABLE,
        books->spans.items, count, error);
}

static kvg_err claim_tree(struct books *books, struct kvg_error *error)
{
    struct kvg_tree *tree = books->engine->tree;
    struct kvi_node *root = kvi_node_at(tree, tree->root);
    struct kvi_node *node = root;
    kvg_err err = KVG_OK;

    while (err == KVG_OK) {
        if (!kvi_is_root(node))
            err = claim_value(books, node, 0, books->full, error);
        if (!kvi_is_root(node) && err == KVG_OK && books->swa != NULL)
            err = claim_value(books, node, (uint32_t)tree->slot_of[KVG_COMPONENT_SWA],
                books->swa, error);
        if (node->first_child != 0) {
            node = kvi_node_at(tree, node->first_child);
            continue;
        }
        while (node != root && node->next_sibling == 0)
            node = kvi_parent(tree, node);
        if (node == root)
            break;
        node = kvi_node_at(tree, node->next_sibling);
    }
    return err;
}

static kvg_err claim_request(
    struct books *books, const struct kvi_request *request, struct kvg_error *error)
{
    struct kvg_engine *engine = books->engine;
    uint64_t end = kvi_round_up(engine, kvg_rows_length(engine->rows, request->row));
    uint64_t from =
        request->swa_cursor > request->in_tree ? request->swa_cursor : request->in_tree;
    const struct kvi_node *node = kvi_node_find(engine->tree, request->node);

    if (node == NULL || node->depth < request->in_tree ||
        (!kvi_is_root(node) && node->full.lock[KVG_TIER_DEVICE] == 0))
        return kvi_fail(error, KVG_ESTATE, "E1", "a request's node is not what it was");
    kvi_request_spans(engine, request, request->in_tree, end);
    kvg_err err = kvg_audit_claim(
        books->full, KVG_CLAIM_HELD, engine->spans.items, engine->spans.count, error);
    if (err != KVG_OK || books->swa == NULL || from >= end)
        return err;
    kvi_request_spans(engine, request, from, end);
    books->window.count = 0;
    err = kvi_spans_reserve(
        &engine->alloc, &books->window, (size_t)((end - from) / engine->page_size) + 1);
    if (err == KVG_OK)
        err = kvg_window_translate(engine->memory.window, engine->spans.items,
            engine->spans.count, &books->window, error);
    if (err == KVG_OK)
        err = kvg_audit_claim(
            books->swa, KVG_CLAIM_HELD, books->window.items, books->window.count, error);
    return err;
}

static kvg_err count(struct books *books, struct kvg_audit_totals *full_out,
    struct kvg_audit_totals *window_out, struct kvg_error *error)
{
    struct kvg_engine *engine = books->engine;
    struct kvg_audit_totals totals;
    kvg_err err = claim_tree(books, error);

    for (uint32_t i = 0; i < engine->row_count && err == KVG_OK; i++) {
        if (engine->requests[i].used)
            err = claim_request(books, &engine->requests[i], error);
    }
    if (err == KVG_OK)
        err = kvg_audit_finish(books->full, full_out != NULL ? full_out : &totals, error);
    if (err == KVG_OK && books->swa != NULL)
        err = kvg_audit_finish(
            books->swa, window_out != NULL ? window_out : &totals, error);
    return err;
}

kvg_err kvg_engine_audit(struct kvg_engine *engine, struct kvg_audit_totals *full_out,
    struct kvg_audit_totals *window_out, struct kvg_error *error)
{
    const struct kvg_slots *swa = kvi_memory_swa(&engine->memory);
    struct books books = {.engine = engine};
    kvg_err err = kvg_tree_check(engine->tree, error);

    if (err == KVG_OK)
        err = kvg_linker_check(engine->linker, error);
    if (err == KVG_OK)
        err = kvg_rows_check(engine->rows, error);
    if (err == KVG_OK)
        err = engine->memory.window != NULL
                  ? kvg_window_check(engine->memory.window, error)
                  : kvg_slots_check(engine->memory.slots, error);
    if (err == KVG_OK)
        err = kvg_audit_new(
            &engine->alloc, kvi_memory_full(&engine->memory), &books.full, error);
    if (err == KVG_OK && swa != NULL)
        err = kvg_audit_new(&engine->alloc, swa, &books.swa, error);
    if (err == KVG_OK) {
        kvg_audit_begin(books.full);
        if (books.swa != NULL)
            kvg_audit_begin(books.swa);
        err = count(&books, full_out, window_out, error);
    }
    kvg_audit_free(books.full);
    kvg_audit_free(books.swa);
    kvi_spans_fini(&engine->alloc, &books.spans);
    kvi_spans_fini(&engine->alloc, &books.window);
    return err;
}
