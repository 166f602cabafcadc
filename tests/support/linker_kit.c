/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* linker_kit.c -- see linker_kit.h. */
#include "linker_kit.h"

void lk_fix_init(struct fix *fix, struct setup setup, struct mem_store *store)
{
    struct kvg_tree_options options;
    *fix = (struct fix){0};
    fault_alloc_init(&fix->fault);
    const struct kvg_alloc *alloc = &fix->fault.alloc;
    kvg_tree_options_init(&options);
    options.page_size = setup.page_size == 0 ? 1 : setup.page_size;
    options.components = setup.swa ? FULL | SWA : FULL;
    options.window = setup.window;
    options.sessions = setup.sessions;
    options.eagle = setup.eagle;
    options.swa_request_ring = setup.ring;
    CHECK_EQ(kvg_tree_new(alloc, &options, &fix->tree, NULL), KVG_OK);
    struct kvg_slots_options slots = {
        .struct_bytes = sizeof(slots), .capacity_slots = 64};
    struct kvg_window_options window = {.struct_bytes = sizeof(window),
        .kind = setup.ring ? KVG_WINDOW_RING : KVG_WINDOW_MAPPED,
        .full_slots = 64,
        .window_slots = 64,
        .window_first = 200,
        .ring_rows = 4,
        .ring_slots = 8,
        .exact = true};
    if (setup.swa)
        CHECK_EQ(kvg_window_new(alloc, &window, &fix->memory.window, NULL), KVG_OK);
    else
        CHECK_EQ(kvg_slots_new(alloc, &slots, &fix->memory.slots, NULL), KVG_OK);
    CHECK_EQ(
        kvg_cache_new(alloc, fix->tree, &fix->memory, &fix->cache, &fix->error), KVG_OK);
    fix->transport = mem_transport_new(store, options.page_size);
    struct kvg_linker_options linker = {.struct_bytes = sizeof(linker),
        .transport = &fix->transport->table,
        .agreement = setup.agreement,
        .prompt_pages_max = 64,
        .write_through_hits = setup.hits,
        .sparse_retention = setup.sparse,
        .retention_interval = setup.interval};
    CHECK_EQ(
        kvg_linker_new(alloc, fix->cache, &linker, &fix->linker, &fix->error), KVG_OK);
}

void lk_check(struct fix *fix)
{
    if (kvg_tree_check(fix->tree, &fix->error) != KVG_OK ||
        kvg_linker_check(fix->linker, &fix->error) != KVG_OK)
        fail_msg("%s: %s", fix->error.field, fix->error.message);
    struct kvg_cache_stats stats;
    kvg_cache_stats(fix->cache, &stats);
    CHECK_EQ(stats.actions_failed, 0);
    CHECK_EQ(fix->transport->empty_offers, 0);
}

void lk_fix_fini(struct fix *fix)
{
    lk_check(fix);
    kvg_linker_close(fix->linker);
    kvg_linker_free(fix->linker);
    kvg_cache_free(fix->cache);
    kvg_tree_free(fix->tree);
    kvg_slots_free(fix->memory.slots);
    kvg_window_free(fix->memory.window);
    mem_transport_free(fix->transport);
    CHECK_EQ(fix->fault.live_bytes, 0);
}

/* The first `count` of the tokens `first`, first + 1, ... */
struct kvg_tree_key lk_run_of(uint32_t first, size_t count)
{
    static uint32_t tokens[4][64];
    static int turn;
    uint32_t *out = tokens[turn++ % 4];
    for (size_t i = 0; i < count; i++)
        out[i] = first + (uint32_t)i;
    return (struct kvg_tree_key){.tokens = out, .token_count = count};
}

kvg_node_id lk_insert(struct fix *fix, struct kvg_tree_key key)
{
    struct kvg_span items[64], window[64];
    struct kvg_spans spans = {items, 0, 64}, swa = {window, 0, 64};
    struct kvg_tree_insert insert;
    struct kvg_tree_inserted inserted;
    kvg_tree_insert_init(&insert);
    insert.key = key;
    if (fix->memory.window == NULL) {
        CHECK_EQ(
            kvg_slots_alloc(fix->memory.slots, key.token_count, &spans, NULL), KVG_OK);
    } else {
        CHECK_EQ(kvg_window_alloc_full(fix->memory.window, key.token_count, &spans, NULL),
            KVG_OK);
        if (kvg_window_is_ring(fix->memory.window)) {
            insert.evicted_length[KVG_COMPONENT_SWA] = key.token_count;
        } else {
            CHECK_EQ(
                kvg_window_alloc_swa(fix->memory.window, key.token_count, &swa, NULL),
                KVG_OK);
            CHECK_EQ(kvg_window_map(
                         fix->memory.window, items, spans.count, window, swa.count, NULL),
                KVG_OK);
        }
    }
    insert.value = items;
    insert.value_count = spans.count;
    if (kvg_cache_insert(fix->cache, &insert, &inserted, NULL, &fix->error) != KVG_OK)
        fail_msg("insert: %s", fix->error.message);
    lk_check(fix);
    return inserted.last_node;
}

struct kvg_tree_node lk_get(struct fix *fix, kvg_node_id id)
{
    struct kvg_tree_node node;
    CHECK_EQ(kvg_tree_node_get(fix->tree, id, &node), KVG_OK);
    return node;
}

uint32_t lk_lock_of(struct fix *fix, kvg_node_id id)
{
    return lk_get(fix, id).lock_count[KVG_COMPONENT_FULL][KVG_TIER_DEVICE];
}

void lk_match(struct fix *fix, kvg_request_id request, struct kvg_tree_key key)
{
    CHECK_EQ(kvg_cache_match(fix->cache, &key, &fix->match, NULL), KVG_OK);
    if (request != 0)
        CHECK_EQ(kvg_linker_match(
                     fix->linker, request, &key, &fix->match, &fix->outside, &fix->error),
            KVG_OK);
    lk_check(fix);
}

void lk_load_back(struct fix *fix, kvg_request_id request)
{
    fix->load = (struct kvg_load_back){.struct_bytes = sizeof(fix->load),
        .request = request,
        .node = fix->match.last_device_node,
        .length = fix->outside.load_length};
    if (kvg_linker_load_back(fix->linker, &fix->load, &fix->error) != KVG_OK)
        fail_msg("load_back: %s", fix->error.message);
    lk_check(fix);
}

struct kvg_linker_tick lk_tick(struct fix *fix)
{
    struct kvg_linker_tick out;
    CHECK_EQ(kvg_linker_tick(fix->linker, &out, NULL), KVG_OK);
    lk_check(fix);
    return out;
}

void lk_store_run(struct mem_store *store, struct setup setup, size_t count)
{
    struct fix producer;
    lk_fix_init(&producer, setup, store);
    lk_insert(&producer, lk_run_of(1, count));
    mem_complete_offloads(producer.transport, true);
    lk_tick(&producer);
    lk_fix_fini(&producer);
}
