/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* The engine: requests that end at every stage, failed loads, ranks that disagree, and every
 * allocation failed once. */
#include "fault_alloc.h"
#include "mem_transport.h"
#include "test.h"

#define SWA KVG_COMPONENT_BIT(KVG_COMPONENT_SWA)

static const uint32_t TOKENS[] = {
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20};

static struct kvg_tree_key key_of(size_t count)
{
    return (struct kvg_tree_key){.tokens = TOKENS, .token_count = count};
}

static struct kvg_engine_options options_for(struct mem_transport *transport, bool swa)
{
    struct kvg_engine_options options;
    kvg_engine_options_init(&options);
    options.tree.page_size = 2;
    options.tree.window = 4;
    if (swa)
        options.tree.components |= SWA;
    options.full_slots = options.window_slots = 32;
    options.row_count = 4;
    options.context_tokens = 32;
    options.transport = &transport->table;
    return options;
}

static struct kvg_engine *engine_new(struct mem_transport *transport, bool swa)
{
    struct kvg_engine_options options = options_for(transport, swa);
    struct kvg_engine *engine;
    CHECK_EQ(kvg_engine_new(kvg_alloc_default(), &options, &engine, NULL), KVG_OK);
    return engine;
}

static void audit(struct kvg_engine *engine, uint64_t held, uint64_t evictable)
{
    struct kvg_audit_totals totals;
    struct kvg_error error;
    if (kvg_engine_audit(engine, &totals, NULL, &error) != KVG_OK)
        fail_msg("%s: %s", error.field, error.message);
    CHECK_EQ(totals.claimed_slots[KVG_CLAIM_HELD], held);
    CHECK_EQ(totals.claimed_slots[KVG_CLAIM_EVICTABLE], evictable);
}

static kvg_row begin(struct kvg_engine *engine, kvg_request_id id, size_t tokens,
    struct kvg_engine_match *match)
{
    struct kvg_engine_prompt prompt = {.id = id, .key = key_of(tokens)};
    kvg_row row;
    CHECK_EQ(kvg_engine_begin(engine, &prompt, match, &row, NULL), KVG_OK);
    return row;
}

static void serve(struct kvg_engine *engine, kvg_request_id id, size_t tokens)
{
    struct kvg_engine_match match;
    struct kvg_tree_key key = key_of(tokens);
    kvg_row row = begin(engine, id, tokens, &match);
    uint64_t more = tokens - match.device_length;
    CHECK_EQ(kvg_engine_extend(engine, &row, &more, 1, NULL), KVG_OK);
    CHECK_EQ(kvg_engine_finish(engine, row, &key, NULL), KVG_OK);
}

static void tick(struct kvg_engine *engine, struct kvg_engine_tick *out)
{
    CHECK_EQ(kvg_engine_tick(engine, out, NULL), KVG_OK);
}

/* A store that holds the first ten tokens' pages. */
static void fill(struct mem_store *store, bool swa)
{
    mem_store_init(store);
    struct mem_transport *transport = mem_transport_new(store, 2);
    struct kvg_engine *engine = engine_new(transport, swa);
    struct kvg_engine_tick out;
    serve(engine, 1, 10);
    mem_complete_offloads(transport, true);
    tick(engine, &out);
    kvg_engine_free(engine);
    mem_transport_free(transport);
    CHECK(store->count >= 5);
}

/* A request of a conversation, to its end. */
static void turn(struct kvg_engine *engine, kvg_request_id id, const uint32_t *tokens,
    size_t count, struct kvg_str session)
{
    struct kvg_tree_key key = {.tokens = tokens, .token_count = count};
    struct kvg_engine_prompt prompt = {.id = id, .key = key, .session_id = session};
    struct kvg_engine_match match;
    kvg_row row;
    CHECK_EQ(kvg_engine_begin(engine, &prompt, &match, &row, NULL), KVG_OK);
    uint64_t more = count - match.device_length;
    CHECK_EQ(kvg_engine_extend(engine, &row, &more, 1, NULL), KVG_OK);
    CHECK_EQ(kvg_engine_finish(engine, row, &key, NULL), KVG_OK);
}

static uint64_t held(struct kvg_engine *engine, const uint32_t *tokens, size_t count)
{
    struct kvg_tree_key key = {.tokens = tokens, .token_count = count};
    uint64_t length;
    uint64_t pinned;
    kvg_node_id node;
    CHECK_EQ(kvg_tree_match_full_device(
                 kvg_engine_tree(engine), &key, &length, &node, &pinned),
        KVG_OK);
    return length;
}

TEST(a_conversation_that_will_come_back_stays_when_others_go)
{
    static const struct kvg_str chat = {"chat", 4};
    uint64_t released;
    struct mem_store store;
    mem_store_init(&store);
    for (int swa = 0; swa < 2; swa++) {
        struct mem_transport *transport = mem_transport_new(&store, 2);
        struct kvg_engine_options options = options_for(transport, swa != 0);
        struct kvg_engine *engine;
        options.transport = NULL;
        options.tree.sessions = true;
        options.tree.events = true;
        CHECK_EQ(kvg_engine_new(kvg_alloc_default(), &options, &engine, NULL), KVG_OK);
        struct kvg_tree *tree = kvg_engine_tree(engine);
        struct kvg_tree_event event;
        turn(engine, 1, TOKENS, 8, chat);
        CHECK(kvg_tree_events_take(tree) != 0);
        CHECK(kvg_tree_event_get(tree, 0, &event));
        CHECK_EQ(event.session_id.bytes, 4);
        turn(engine, 2, TOKENS + 8, 8, (struct kvg_str){0});
        turn(engine, 3, TOKENS + 1, 18, (struct kvg_str){0});
        CHECK_EQ(held(engine, TOKENS, 8), 8);
        CHECK(held(engine, TOKENS + 8, 8) < 8);
        CHECK_EQ(kvg_tree_session_close(tree, chat, &released, NULL), KVG_OK);
        CHECK_EQ(released, swa ? 2 : 1);
        turn(engine, 4, TOKENS + 2, 14, (struct kvg_str){0});
        CHECK(held(engine, TOKENS, 8) < 8);
        struct kvg_error error;
        CHECK_EQ(kvg_engine_audit(engine, NULL, NULL, &error), KVG_OK);
        kvg_engine_free(engine);
        mem_transport_free(transport);
    }
    mem_store_fini(&store);
}

TEST(a_request_goes_on_without_a_session_when_there_is_no_room_for_one)
{
    struct mem_store store;
    struct kvg_tree_stats stats;
    char id[KVG_TREE_SESSION_ID_MAX + 1] = {0};
    mem_store_init(&store);
    struct mem_transport *transport = mem_transport_new(&store, 2);
    struct kvg_engine_options options = options_for(transport, false);
    struct kvg_engine *engine;
    options.transport = NULL;
    options.tree.sessions = true;
    options.tree.session_max = 1;
    CHECK_EQ(kvg_engine_new(kvg_alloc_default(), &options, &engine, NULL), KVG_OK);
    turn(engine, 1, TOKENS, 8, (struct kvg_str){"a", 1});
    turn(engine, 2, TOKENS + 8, 8, (struct kvg_str){"b", 1});
    kvg_tree_stats(kvg_engine_tree(engine), &stats);
    CHECK_EQ(stats.sessions, 1);
    CHECK_EQ(stats.refused_sessions, 1);
    struct kvg_engine_prompt prompt = {
        .id = 3, .key = key_of(8), .session_id = {id, sizeof(id)}};
    struct kvg_engine_match match;
    struct kvg_error error;
    kvg_row row;
    CHECK_EQ(kvg_engine_begin(engine, &prompt, &match, &row, &error), KVG_EINVAL);
    CHECK_STR(error.field, "prompt.session_id.bytes");
    prompt.session_id = (struct kvg_str){"a", 1};
    CHECK_EQ(kvg_engine_begin(engine, &prompt, &match, &row, &error), KVG_OK);
    kvg_engine_free(engine); /* With a living request. */
    mem_transport_free(transport);
    mem_store_fini(&store);
}

TEST(completed_offloads_are_released_by_the_tick_of_decode)
{
    struct mem_store store;
    struct kvg_engine_tick out;
    mem_store_init(&store);
    struct mem_transport *transport = mem_transport_new(&store, 2);
    struct kvg_engine *engine = engine_new(transport, false);
    serve(engine, 1, 8);
    serve(engine, 2, 12);
    CHECK(kvg_tree_protected(kvg_engine_tree(engine), KVG_COMPONENT_FULL) > 0);
    mem_complete_offloads(transport, true);
    tick(engine, &out);
    CHECK_EQ(kvg_tree_protected(kvg_engine_tree(engine), KVG_COMPONENT_FULL), 0);
    audit(engine, 0, 12);
    kvg_engine_free(engine);
    mem_transport_free(transport);
    mem_store_fini(&store);
}

TEST(a_request_aborted_at_any_stage_of_a_load_leaves_nothing)
{
    struct kvg_linker_stats stats;
    struct kvg_engine_match match;
    struct kvg_engine_tick out;
    struct mem_store store;
    uint64_t restored;
    fill(&store, false);
    struct mem_transport *transport = mem_transport_new(&store, 2);
    struct kvg_engine *engine = engine_new(transport, false);

    for (kvg_request_id id = 1; id <= 1000; id++) {
        kvg_row row = begin(engine, id, 10, &match);
        CHECK_EQ(match.load_length, 10);
        if (id % 3 != 0)
            CHECK_EQ(kvg_engine_load(engine, row, &restored, NULL), KVG_OK);
        if (id % 3 == 2)
            kvg_engine_start_loads(engine);
        CHECK_EQ(kvg_engine_abort(engine, row, NULL), KVG_OK);
        if (id % 3 == 2) {
            CHECK_EQ(transport->load_count, 1); /* It goes on, and is waited for. */
            mem_complete_loads(transport, false);
            tick(engine, &out);
        }
        kvg_linker_stats(kvg_engine_linker(engine), &stats);
        CHECK_EQ(stats.markers + stats.pending_loads + stats.failed_loads, 0);
        CHECK_EQ(transport->load_count, 0);
        if (id % 100 == 0)
            audit(engine, 0, 0);
    }
    kvg_engine_free(engine);
    mem_transport_free(transport);
    mem_store_fini(&store);
}

TEST(a_failed_load_cuts_the_request_back_to_what_it_had)
{
    for (int swa = 0; swa < 2; swa++) {
        struct kvg_engine_request info;
        struct kvg_engine_match match;
        struct kvg_engine_tick out;
        struct mem_store store;
        uint64_t restored, more = 2;
        struct kvg_tree_key key = key_of(12);
        fill(&store, swa == 1);
        struct mem_transport *transport = mem_transport_new(&store, 2);
        struct kvg_engine *engine = engine_new(transport, swa == 1);
        serve(engine, 1, 4);
        mem_complete_offloads(transport, true);
        tick(engine, &out);

        kvg_row row = begin(engine, 2, 10, &match);
        CHECK_EQ(match.device_length, 4);
        CHECK_EQ(match.load_length, 6);
        CHECK_EQ(kvg_engine_load(engine, row, &restored, NULL), KVG_OK);
        CHECK_EQ(restored, 6);
        CHECK_EQ(kvg_engine_extend(engine, &row, &more, 1, NULL), KVG_OK);
        CHECK_EQ(kvg_engine_finish(engine, row, &key, NULL), KVG_EBUSY);
        kvg_engine_start_loads(engine);
        mem_complete_loads(transport, false);
        tick(engine, &out);
        CHECK_EQ(out.cut_count, 1);
        CHECK_EQ(out.cuts[0].id, 2);
        CHECK_EQ(out.cuts[0].length, 4);
        CHECK_EQ(kvg_engine_request_get(engine, row, &info), KVG_OK);
        CHECK_EQ(info.length, 4);
        more = 8;
        CHECK_EQ(kvg_engine_extend(engine, &row, &more, 1, NULL), KVG_OK);
        CHECK_EQ(kvg_engine_finish(engine, row, &key, NULL), KVG_OK);
        mem_complete_offloads(transport, true);
        tick(engine, &out);
        audit(engine, 0, 12);
        kvg_engine_free(engine);
        mem_transport_free(transport);
        mem_store_fini(&store);
    }
}

TEST(pages_that_another_request_is_loading_are_said_to_be_on_their_way)
{
    struct kvg_engine_match match;
    struct kvg_engine_tick out;
    struct mem_store store;
    uint64_t restored;
    fill(&store, false);
    struct mem_transport *transport = mem_transport_new(&store, 2);
    struct kvg_engine *engine = engine_new(transport, false);
    kvg_row first = begin(engine, 1, 10, &match);
    CHECK_EQ(kvg_engine_load(engine, first, &restored, NULL), KVG_OK);
    kvg_row second = begin(engine, 2, 10, &match);
    CHECK_EQ(match.device_length, 0);
    CHECK(match.loading);
    CHECK_EQ(kvg_engine_abort(engine, second, NULL), KVG_OK);
    kvg_engine_start_loads(engine);
    mem_complete_loads(transport, true);
    tick(engine, &out);
    begin(engine, 3, 10, &match);
    CHECK_EQ(match.device_length, 10);
    CHECK_EQ(transport->load_calls, 1);
    kvg_engine_free(engine);
    mem_transport_free(transport);
    mem_store_fini(&store);
}

TEST(an_engine_evicts_until_an_allocation_fits)
{
    struct mem_store store;
    struct kvg_engine_tick out;
    struct kvg_engine_match match;
    mem_store_init(&store);
    struct mem_transport *transport = mem_transport_new(&store, 2);
    struct kvg_engine *engine = engine_new(transport, true);
    serve(engine, 1, 20);
    mem_complete_offloads(transport, true);
    tick(engine, &out);
    uint32_t other[20];
    for (uint32_t i = 0; i < 20; i++)
        other[i] = 100 + i;
    struct kvg_engine_prompt prompt = {
        .id = 2, .key = {.tokens = other, .token_count = 20}};
    kvg_row row;
    uint64_t more = 30;
    CHECK_EQ(kvg_engine_begin(engine, &prompt, &match, &row, NULL), KVG_OK);
    CHECK_EQ(kvg_engine_extend(engine, &row, &more, 1, NULL), KVG_OK);
    audit(engine, 30, 0);
    more = 3;
    CHECK(kvg_engine_extend(engine, &row, &more, 1, NULL) != KVG_OK);
    kvg_engine_free(engine);
    mem_transport_free(transport);
    mem_store_fini(&store);
}

/* ---- Every allocation failed once ---------------------------------------------------------- */

static struct mem_store swept;

static bool life(const struct kvg_alloc *alloc, void *context)
{
    struct mem_transport *transport = mem_transport_new(&swept, 2);
    struct kvg_engine_options options = options_for(transport, *(bool *)context);
    struct kvg_engine *engine = NULL;
    struct kvg_engine_tick out;
    struct kvg_engine_match match;
    struct kvg_error error;
    options.tree.sessions = true;
    bool whole = kvg_engine_new(alloc, &options, &engine, NULL) == KVG_OK;
    for (kvg_request_id id = 1; id <= 6 && engine != NULL; id++) {
        size_t tokens = 6 + 2 * (size_t)id;
        struct kvg_engine_prompt prompt = {
            .id = id, .key = key_of(tokens), .session_id = {"abc", (size_t)id % 3 + 1}};
        struct kvg_tree_key key = key_of(tokens);
        kvg_row row;
        uint64_t restored, more;
        kvg_err err = kvg_engine_begin(engine, &prompt, &match, &row, NULL);
        whole = whole && err == KVG_OK;
        if (err != KVG_OK)
            continue;
        err = kvg_engine_load(engine, row, &restored, NULL);
        whole = whole && err == KVG_OK;
        kvg_engine_start_loads(engine);
        mem_complete_loads(transport, id % 2 == 0);
        mem_complete_offloads(transport, id % 3 != 0);
        err = kvg_engine_tick(engine, &out, NULL);
        whole = whole && err == KVG_OK;
        more = tokens - kvg_rows_length(kvg_engine_rows(engine), row);
        err = kvg_engine_extend(engine, &row, &more, 1, NULL);
        whole = whole && err == KVG_OK;
        if (err == KVG_OK)
            err = id % 2 == 0 ? kvg_engine_finish(engine, row, &key, NULL)
                              : kvg_engine_insert(engine, row, &key, NULL);
        whole = whole && err == KVG_OK;
        if (kvg_engine_request_get(engine, row, &(struct kvg_engine_request){0}) ==
            KVG_OK)
            CHECK_EQ(kvg_engine_abort(engine, row, NULL), KVG_OK);
        err = kvg_engine_audit(engine, NULL, NULL, &error);
        if (err != KVG_OK && err != KVG_ENOMEM)
            fail_msg("%s: %s", error.field, error.message);
        whole = whole && err == KVG_OK;
    }
    struct kvg_cache_stats stats = {0};
    if (engine != NULL) {
        kvg_cache_stats(kvg_engine_cache(engine), &stats);
        CHECK_EQ(stats.actions_failed, 0);
    }
    kvg_engine_free(engine);
    mem_transport_free(transport);
    return whole && stats.windows_given_up == 0 && stats.offloads_refused == 0;
}

TEST(no_failed_allocation_loses_a_slot)
{
    for (int swa = 0; swa < 2; swa++) {
        bool with_window = swa == 1;
        fill(&swept, with_window);
        CHECK(for_each_oom(life, &with_window) > 50);
        mem_store_fini(&swept);
    }
}

TEST_MAIN(RUN(a_conversation_that_will_come_back_stays_when_others_go),
    RUN(a_request_goes_on_without_a_session_when_there_is_no_room_for_one),
    RUN(completed_offloads_are_released_by_the_tick_of_decode),
    RUN(a_request_aborted_at_any_stage_of_a_load_leaves_nothing),
    RUN(a_failed_load_cuts_the_request_back_to_what_it_had),
    RUN(pages_that_another_request_is_loading_are_said_to_be_on_their_way),
    RUN(an_engine_evicts_until_an_allocation_fits),
    RUN(no_failed_allocation_loses_a_slot))
