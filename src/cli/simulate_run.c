/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* simulate_run.c -- one run: a trace through the real tree and slots (simulate.h).
 *
 * A request does what it does in an engine that computes one prompt at a time:
 *
 *     match     the longest prefix that is held: these pages are the hits
 *     lock      so that making room does not take it
 *     evict     leaves in the policy's order, until the missing pages are free
 *     allocate  slots for the missing pages
 *     insert    the whole prompt
 *     unlock
 *
 *     spans     | slots of the matched pages (the tree's) | slots just allocated |
 *     tokens    | matched                                 | new                  |
 *
 * With KVC_SIM_GRAIN_PAGE the insert is done page by page, each time one page more, so that every
 * page becomes a node; only the last of these inserts counts a hit.
 *
 * A compact run gives the tree one unit for every `stride` tokens, the largest number that divides
 * page and block.  Different blocks differ in every token, so the first of them says all: pages
 * are equal in a compact run exactly if they are in a full one, and every count is the same.
 *
 * A prompt longer than the whole cache keeps its beginning.  Of what an engine does, this leaves
 * out: requests that overlap in time, output tokens, host memory behind the device.
 */
#include "cli/simulate.h"

#include <kvgraft/slots.h>

#include <stdlib.h>
#include <string.h>

#define TICK_REQUESTS 64u
#define VALUE_SPANS_MAX 256u

struct engine {
    struct kvg_tree *tree;
    struct kvg_slots *slots;
};

/* malloc, counted. */
struct meter {
    struct kvg_alloc alloc;
    uint64_t live_bytes;
    uint64_t peak_bytes;
};

struct run {
    const struct kvc_sim_trace *trace;
    const struct kvc_sim_setup *setup;
    struct kvc_sim_result *result;
    struct kvg_error *error;
    struct meter meter;
    struct engine engines[KVC_SIM_ENGINES_MAX];
    struct kvg_actions actions;
    uint64_t capacity_pages; /* Of each engine; never more than the trace could fill. */
    uint32_t stride;         /* Tokens that a unit of the tree stands for, */
    uint32_t page_units;     /* and units a page. */
    uint32_t *tokens;
    struct kvg_spans spans;
};

static void *meter_allocate(void *context, size_t bytes)
{
    struct meter *meter = context;
    void *memory = malloc(bytes);

    if (memory == NULL)
        return NULL;
    meter->live_bytes += bytes;
    if (meter->live_bytes > meter->peak_bytes)
        meter->peak_bytes = meter->live_bytes;
    return memory;
}

static void meter_release(void *context, void *memory, size_t bytes)
{
    struct meter *meter = context;

    meter->live_bytes -= memory == NULL ? 0 : bytes;
    free(memory);
}

static kvg_err fail(struct run *run, kvg_err code, const char *field, const char *message)
{
    run->error->code = code;
    snprintf(run->error->field, sizeof(run->error->field), "%s", field);
    snprintf(run->error->message, sizeof(run->error->message), "%s", message);
    return code;
}

/* ---- Made and ended -------------------------------------------------------------------------- */

static kvg_err make_engine(struct run *run, struct engine *engine)
{
    const struct kvc_sim_setup *setup = run->setup;
    struct kvg_tree_options options;
    struct kvg_slots_options pool = {.struct_bytes = sizeof(pool),
        .capacity_slots = run->capacity_pages * run->page_units,
        .page_slots = run->page_units};
    kvg_err err = kvg_slots_new(&run->meter.alloc, &pool, &engine->slots, run->error);

    if (err != KVG_OK)
        return err;
    kvg_tree_options_init(&options);
    options.page_size = run->page_units;
    options.policy = setup->policy;
    options.slru_hits = setup->slru_hits;
    options.tlru_threshold = setup->tlru_threshold / run->stride;
    options.tlru_next_estimate = setup->tlru_next_estimate / run->stride;
    options.seed = setup->seed;
    return kvg_tree_new(&run->meter.alloc, &options, &engine->tree, run->error);
}

static uint32_t greatest_divisor(uint32_t a, uint32_t b)
{
    while (b != 0) {
        uint32_t rest = a % b;

        a = b;
        b = rest;
    }
    return a;
}

static kvg_err make(struct run *run)
{
    const struct kvc_sim_trace *trace = run->trace;
    uint64_t pages_max = trace->prompt_tokens_max / run->setup->page_size;
    uint64_t all_pages = 1;
    kvg_err err = KVG_OK;
    size_t i;

    for (i = 0; i < trace->request_count; i++)
        all_pages += trace->requests[i].prompt_tokens / run->setup->page_size;
    run->capacity_pages =
        run->setup->capacity_pages < all_pages ? run->setup->capacity_pages : all_pages;
    run->stride = run->setup->compact
                      ? greatest_divisor(run->setup->page_size, trace->block_tokens)
                      : 1;
    run->page_units = run->setup->page_size / run->stride;
    run->tokens = malloc((size_t)(trace->prompt_tokens_max + 1) * sizeof(*run->tokens));
    run->spans.max = (size_t)pages_max + 1;
    run->spans.items = malloc(run->spans.max * sizeof(*run->spans.items));
    if (run->tokens == NULL || run->spans.items == NULL)
        return fail(run, KVG_ENOMEM, "", "out of memory for a prompt");
    for (i = 0; i < run->setup->engines && err == KVG_OK; i++)
        err = make_engine(run, &run->engines[i]);
    return err;
}

static void unmake(struct run *run)
{
    uint32_t i;

    for (i = 0; i < run->setup->engines; i++) {
        kvg_tree_free(run->engines[i].tree);
        kvg_slots_free(run->engines[i].slots);
    }
    kvg_actions_fini(&run->actions);
    free(run->tokens);
    free(run->spans.items);
}

/* ---- A request ------------------------------------------------------------------------------- */

/* Does what the tree decided.  This tree has one component and one tier: it can only free. */
static kvg_err perform(struct run *run, struct engine *engine)
{
    struct kvg_actions *actions = &run->actions;
    kvg_err err = KVG_OK;
    uint32_t i;

    for (i = 0; i < actions->count && err == KVG_OK; i++) {
        const struct kvg_action *action = &actions->items[i];

        if (action->kind != KVG_ACTION_FREE_DEVICE &&
            action->kind != KVG_ACTION_FREE_COMPONENT_DEVICE)
            err = fail(run, KVG_ESTATE, "", "the tree wants what it cannot want");
        else
            err = kvg_slots_release(engine->slots, actions->spans + action->span_first,
                action->span_count, run->error);
    }
    kvg_actions_clear(actions);
    return err;
}

static kvg_err evict(struct run *run, struct engine *engine, uint64_t slots_wanted)
{
    struct kvg_tree_evicted step = {.struct_bytes = sizeof(step)};
    uint64_t evicted = 0;
    kvg_err end;
    kvg_err err =
        kvg_tree_evict_start(engine->tree, KVG_COMPONENT_FULL, slots_wanted, run->error);

    if (err != KVG_OK)
        return err;
    while (err == KVG_OK && evicted < slots_wanted) {
        err = kvg_tree_evict_next(
            engine->tree, KVG_COMPONENT_FULL, evicted, &run->actions, &step, run->error);
        if (err != KVG_OK || step.node == KVG_NODE_NONE)
            break;
        err = kvg_tree_evict_leaf(
            engine->tree, step.node, false, &run->actions, &step, run->error);
        if (err == KVG_OK)
            err = perform(run, engine);
        evicted += step.evicted[KVG_COMPONENT_FULL];
        run->result->evicted_nodes++;
        run->result->operations++;
    }
    run->result->evicted_pages += evicted / run->page_units;
    end = kvg_tree_evict_end(
        engine->tree, KVG_COMPONENT_FULL, err == KVG_OK ? run->error : NULL);
    return err == KVG_OK ? end : err;
}

/* One insert of the prompt's first `pages` pages, of which the first `held` are in the tree. */
static kvg_err insert_pages(
    struct run *run, struct engine *engine, uint64_t pages, uint64_t held, bool is_last)
{
    uint32_t page_units = run->page_units;
    struct kvg_tree_inserted done = {.struct_bytes = sizeof(done)};
    struct kvg_tree_insert insert;
    kvg_err err;

    kvg_tree_insert_init(&insert);
    insert.key.tokens = run->tokens;
    insert.key.token_count = (size_t)(pages * page_units);
    insert.value = run->spans.items;
    insert.value_count = run->spans.count;
    insert.prev_prefix_length = held * page_units;
    insert.chunked = !is_last;
    err = kvg_tree_insert_begin(engine->tree, &insert, &run->actions, &done, run->error);
    run->result->operations++;
    if (err == KVG_OK)
        err = perform(run, engine);
    if (err == KVG_OK && (!done.done || done.prefix_length != held * page_units))
        err = fail(run, KVG_ESTATE, "", "an insert did not go as matched");
    return err;
}

/* Makes room for pages [held, kept), allocates and inserts them. */
static kvg_err fill(struct run *run, struct engine *engine, uint64_t held, uint64_t kept)
{
    uint64_t wanted = (kept - held) * run->page_units;
    uint64_t available = kvg_slots_available(engine->slots);
    uint64_t pages;
    kvg_err err = KVG_OK;

    if (wanted > available)
        err = evict(run, engine, wanted - available);
    if (err == KVG_OK && wanted > 0)
        err = kvg_slots_alloc(engine->slots, wanted, &run->spans, run->error);
    if (err != KVG_OK)
        return err;
    if (run->setup->grain == KVC_SIM_GRAIN_PAGE && kept > held) {
        for (pages = held + 1; pages < kept && err == KVG_OK; pages++)
            err = insert_pages(run, engine, pages, pages - 1, false);
        held = kept - 1;
    }
    return err == KVG_OK ? insert_pages(run, engine, kept, held, true) : err;
}

static void count_match(struct run *run, const struct kvc_sim_request *request,
    uint64_t pages, uint64_t held, uint64_t kept)
{
    struct kvc_sim_result *result = run->result;
    uint64_t tokens = held * run->setup->page_size;

    result->requests++;
    result->requests_hit += held > 0;
    result->pages += pages;
    result->pages_hit += held;
    result->tokens += request->input_tokens;
    result->tokens_hit += tokens < request->input_tokens ? tokens : request->input_tokens;
    result->requests_cut += kept < pages;
    result->pages_cut += pages - kept;
}

static kvg_err serve(
    struct run *run, struct engine *engine, const struct kvc_sim_request *request)
{
    uint64_t pages = request->prompt_tokens / run->setup->page_size;
    uint64_t kept = pages < run->capacity_pages ? pages : run->capacity_pages;
    struct kvg_tree_key key = {
        .tokens = run->tokens, .token_count = (size_t)(pages * run->page_units)};
    struct kvg_tree_match match = {.struct_bytes = sizeof(match)};
    struct kvg_lock_receipt receipt;
    uint64_t held;
    kvg_err unlocked;
    kvg_err err;

    kvc_sim_prompt(run->trace, request, run->stride, run->tokens);
    err = kvg_tree_match_prefix(engine->tree, &key, &run->actions, &match, run->error);
    if (err == KVG_OK)
        err = perform(run, engine);
    if (err != KVG_OK)
        return err;
    held = match.device_length / run->page_units;
    count_match(run, request, pages, held, kept);
    run->result->operations++;
    if (pages == 0)
        return KVG_OK;
    if (match.device_span_count > 0)
        memcpy(run->spans.items, match.device_spans,
            match.device_span_count * sizeof(*run->spans.items));
    run->spans.count = match.device_span_count;
    err = kvg_tree_lock(engine->tree, match.last_device_node, 0, &receipt, run->error);
    if (err != KVG_OK)
        return err;
    err = fill(run, engine, held, kept);
    unlocked = kvg_tree_unlock(engine->tree, match.last_device_node, &receipt, false,
        err == KVG_OK ? run->error : NULL);
    run->result->operations += 2;
    return err == KVG_OK ? unlocked : err;
}

/* ---- The end --------------------------------------------------------------------------------- */

/* The node after `node`, parents before children; KVG_NODE_NONE after the last. */
static kvg_node_id next_node(const struct kvg_tree *tree, kvg_node_id node)
{
    struct kvg_tree_node about = {.struct_bytes = sizeof(about)};
    kvg_node_id next = kvg_tree_first_child(tree, node);

    while (next == KVG_NODE_NONE && node != kvg_tree_root(tree)) {
        next = kvg_tree_next_sibling(tree, node);
        if (next == KVG_NODE_NONE && kvg_tree_node_get(tree, node, &about) == KVG_OK)
            node = about.parent;
    }
    return next;
}

static kvg_err claim_nodes(
    struct run *run, const struct engine *engine, struct kvg_audit *audit)
{
    const struct kvg_tree *tree = engine->tree;
    kvg_node_id node = next_node(tree, kvg_tree_root(tree));
    kvg_err err = KVG_OK;

    for (; node != KVG_NODE_NONE && err == KVG_OK; node = next_node(tree, node)) {
        struct kvg_span few[VALUE_SPANS_MAX];
        struct kvg_span *spans = few;
        size_t count = kvg_tree_node_value(
            tree, node, KVG_COMPONENT_FULL, KVG_TIER_DEVICE, few, VALUE_SPANS_MAX);

        if (count > VALUE_SPANS_MAX) {
            spans = malloc(count * sizeof(*spans));
            if (spans == NULL)
                return fail(run, KVG_ENOMEM, "", "out of memory for the audit");
            kvg_tree_node_value(
                tree, node, KVG_COMPONENT_FULL, KVG_TIER_DEVICE, spans, count);
        }
        err = kvg_audit_claim(audit, KVG_CLAIM_EVICTABLE, spans, count, run->error);
        if (spans != few)
            free(spans);
    }
    return err;
}

/* The tree is whole, nothing is locked, and every slot is free or in exactly one node. */
static kvg_err verify(struct run *run, const struct engine *engine)
{
    struct kvg_audit_totals totals = {0};
    struct kvg_audit *audit;
    kvg_err err = kvg_tree_check(engine->tree, run->error);

    if (err == KVG_OK)
        err = kvg_slots_check(engine->slots, run->error);
    if (err != KVG_OK)
        return err;
    err = kvg_audit_new(kvg_alloc_default(), engine->slots, &audit, run->error);
    if (err != KVG_OK)
        return err;
    kvg_audit_begin(audit);
    err = claim_nodes(run, engine, audit);
    if (err == KVG_OK)
        err = kvg_audit_finish(audit, &totals, run->error);
    kvg_audit_free(audit);
    if (err != KVG_OK)
        return err;
    if (kvg_tree_protected(engine->tree, KVG_COMPONENT_FULL) != 0 ||
        kvg_tree_evictable(engine->tree, KVG_COMPONENT_FULL) !=
            totals.claimed_slots[KVG_CLAIM_EVICTABLE])
        return fail(run, KVG_EMISMATCH, "", "tree and slots count differently");
    run->result->pages_held +=
        totals.claimed_slots[KVG_CLAIM_EVICTABLE] / run->page_units;
    return KVG_OK;
}

static kvg_err finish(struct run *run)
{
    kvg_err err = KVG_OK;
    uint32_t i;

    for (i = 0; i < run->setup->engines && err == KVG_OK; i++) {
        struct kvg_tree_stats stats = {.struct_bytes = sizeof(stats)};

        kvg_tree_stats(run->engines[i].tree, &stats);
        run->result->nodes += stats.nodes - 1;
        run->result->splits += stats.splits;
        err = verify(run, &run->engines[i]);
    }
    run->result->memory_bytes = run->meter.peak_bytes;
    return err;
}

static kvg_err replay(struct run *run, kvc_sim_go_on *go_on, void *context)
{
    const struct kvc_sim_trace *trace = run->trace;
    kvg_err err = KVG_OK;
    size_t i;

    for (i = 0; i < trace->request_count && err == KVG_OK; i++) {
        if (go_on != NULL && i % TICK_REQUESTS == 0 &&
            !go_on(context, i == 0 ? 0 : TICK_REQUESTS))
            return fail(run, KVG_ECANCELED, "", "stopped");
        err = serve(run, &run->engines[i % run->setup->engines], &trace->requests[i]);
    }
    return err;
}

kvg_err kvc_sim_run(const struct kvc_sim_trace *trace, const struct kvc_sim_setup *setup,
    kvc_sim_go_on *go_on, void *context, struct kvc_sim_result *out,
    struct kvg_error *error)
{
    struct run run = {.trace = trace, .setup = setup, .result = out, .error = error};
    uint64_t began;
    kvg_err err;

    *out = (struct kvc_sim_result){0};
    run.meter.alloc = (struct kvg_alloc){meter_allocate, meter_release, &run.meter};
    kvg_actions_init(&run.actions, &run.meter.alloc);
    err = make(&run);
    began = kvc_now_ns();
    if (err == KVG_OK)
        err = replay(&run, go_on, context);
    out->took_ns = kvc_now_ns() - began;
    if (err == KVG_OK)
        err = finish(&run);
    unmake(&run);
    return err;
}
