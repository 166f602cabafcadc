/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* The linker's behaviour as engines in Python expect it: attachment, pinning, splits of pending
 * nodes, adopted pages, windows, ranks.  Names and numbers follow the tests it came from. */
#include "fault_alloc.h"
#include "mem_transport.h"
#include "test.h"

#define FULL KVG_COMPONENT_BIT(KVG_COMPONENT_FULL)
#define SWA KVG_COMPONENT_BIT(KVG_COMPONENT_SWA)
#define NO_OFFLOAD INT64_MAX

struct fix {
    struct fault_alloc fault;
    struct kvg_tree *tree;
    struct kvg_memory memory;
    struct kvg_cache *cache;
    struct kvg_linker *linker;
    struct mem_transport *transport;
    struct kvg_error error;
    struct kvg_tree_match match;
    struct kvg_linker_match outside;
    struct kvg_load_back load;
};

struct setup {
    uint32_t page_size, window;
    bool swa, ring, eagle;
    uint64_t hits;
    struct kvg_agreement agreement;
};

static void fix_init(struct fix *fix, struct setup setup, struct mem_store *store)
{
    struct kvg_tree_options options;
    *fix = (struct fix){0};
    fault_alloc_init(&fix->fault);
    const struct kvg_alloc *alloc = &fix->fault.alloc;
    kvg_tree_options_init(&options);
    options.page_size = setup.page_size == 0 ? 1 : setup.page_size;
    options.components = setup.swa ? FULL | SWA : FULL;
    options.window = setup.window;
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
        .write_through_hits = setup.hits};
    CHECK_EQ(
        kvg_linker_new(alloc, fix->cache, &linker, &fix->linker, &fix->error), KVG_OK);
}

static void check(struct fix *fix)
{
    if (kvg_tree_check(fix->tree, &fix->error) != KVG_OK ||
        kvg_linker_check(fix->linker, &fix->error) != KVG_OK)
        fail_msg("%s: %s", fix->error.field, fix->error.message);
    struct kvg_cache_stats stats;
    kvg_cache_stats(fix->cache, &stats);
    CHECK_EQ(stats.actions_failed, 0);
    CHECK_EQ(fix->transport->empty_offers, 0);
}

static void fix_fini(struct fix *fix)
{
    check(fix);
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
static struct kvg_tree_key run_of(uint32_t first, size_t count)
{
    static uint32_t tokens[4][64];
    static int turn;
    uint32_t *out = tokens[turn++ % 4];
    for (size_t i = 0; i < count; i++)
        out[i] = first + (uint32_t)i;
    return (struct kvg_tree_key){.tokens = out, .token_count = count};
}

static kvg_node_id insert(struct fix *fix, struct kvg_tree_key key)
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
    check(fix);
    return inserted.last_node;
}

static struct kvg_tree_node get(struct fix *fix, kvg_node_id id)
{
    struct kvg_tree_node node;
    CHECK_EQ(kvg_tree_node_get(fix->tree, id, &node), KVG_OK);
    return node;
}

static uint32_t lock_of(struct fix *fix, kvg_node_id id)
{
    return get(fix, id).lock_count[KVG_COMPONENT_FULL][KVG_TIER_DEVICE];
}

static void match(struct fix *fix, kvg_request_id request, struct kvg_tree_key key)
{
    CHECK_EQ(kvg_cache_match(fix->cache, &key, &fix->match, NULL), KVG_OK);
    if (request != 0)
        CHECK_EQ(kvg_linker_match(
                     fix->linker, request, &key, &fix->match, &fix->outside, &fix->error),
            KVG_OK);
    check(fix);
}

static void load_back(struct fix *fix, kvg_request_id request)
{
    fix->load = (struct kvg_load_back){.struct_bytes = sizeof(fix->load),
        .request = request,
        .node = fix->match.last_device_node,
        .length = fix->outside.load_length};
    if (kvg_linker_load_back(fix->linker, &fix->load, &fix->error) != KVG_OK)
        fail_msg("load_back: %s", fix->error.message);
    check(fix);
}

static struct kvg_linker_tick tick(struct fix *fix)
{
    struct kvg_linker_tick out;
    CHECK_EQ(kvg_linker_tick(fix->linker, &out, NULL), KVG_OK);
    check(fix);
    return out;
}

static void store_run(struct mem_store *store, struct setup setup, size_t count)
{
    struct fix producer;
    fix_init(&producer, setup, store);
    insert(&producer, run_of(1, count));
    mem_complete_offloads(producer.transport, true);
    tick(&producer);
    fix_fini(&producer);
}

/* ---- Attachment ---------------------------------------------------------------------------- */

TEST(cache_linker_attachment_is_backend_independent)
{
    struct mem_store store;
    struct fix fix;
    mem_store_init(&store);
    fix_init(&fix, (struct setup){0}, &store);

    CHECK(kvg_tree_settings(fix.tree)->external_store);
    CHECK_EQ(kvg_tree_settings(fix.tree)->write_through_hits, 1);
    fix_fini(&fix);
    mem_store_fini(&store);
}

TEST(cache_linker_rejects_unsupported_tree_components)
{
    const struct kvg_alloc *alloc = kvg_alloc_default();
    struct kvg_tree_options options;
    struct kvg_slots_options slots = {.struct_bytes = sizeof(slots), .capacity_slots = 8};
    struct kvg_memory memory = {0};
    struct kvg_linker_options linker = {
        .struct_bytes = sizeof(linker), .prompt_pages_max = 8};
    struct kvg_tree *tree;
    struct kvg_cache *cache;
    struct kvg_linker *out;
    struct kvg_error error;
    kvg_tree_options_init(&options);
    options.components = FULL | KVG_COMPONENT_BIT(KVG_COMPONENT_MAMBA);
    CHECK_EQ(kvg_tree_new(alloc, &options, &tree, NULL), KVG_OK);
    CHECK_EQ(kvg_slots_new(alloc, &slots, &memory.slots, NULL), KVG_OK);
    CHECK_EQ(kvg_slots_new(alloc, &slots, &memory.states, NULL), KVG_OK);
    CHECK_EQ(kvg_cache_new(alloc, tree, &memory, &cache, NULL), KVG_OK);

    CHECK_EQ(kvg_linker_new(alloc, cache, &linker, &out, &error), KVG_EUNSUPPORTED);
    CHECK(strstr(error.message, "unsupported: MAMBA") != NULL);
    CHECK(!kvg_tree_settings(tree)->external_store);
    kvg_cache_free(cache);
    kvg_tree_free(tree);
    kvg_slots_free(memory.slots);
    kvg_slots_free(memory.states);
}

/* ---- Round trips --------------------------------------------------------------------------- */

TEST(full_offload_load_round_trip_and_dedup)
{
    struct setup setup = {.page_size = 2};
    struct mem_store store;
    struct fix producer, consumer;
    const struct kvg_key *keys;
    mem_store_init(&store);
    fix_init(&producer, setup, &store);

    kvg_node_id leaf = insert(&producer, run_of(1, 8));
    struct mem_job *offer = &producer.transport->last_offload;
    CHECK_EQ(producer.transport->offload_calls, 1);
    CHECK_EQ(offer->count, 1);
    CHECK_EQ(offer->transfers[0].key_count, 4);
    CHECK_EQ(kvg_tree_node_page_keys(producer.tree, leaf, &keys), 4);
    CHECK_MEM(offer->transfers[0].keys, keys, 4 * sizeof(*keys));
    CHECK_EQ(lock_of(&producer, leaf), 1);
    CHECK(!get(&producer, leaf).stored);
    CHECK_EQ(get(&producer, leaf).pending_write, leaf);
    insert(&producer, run_of(1, 8));
    CHECK_EQ(producer.transport->offload_calls, 1);
    mem_complete_offload(producer.transport, true);
    tick(&producer);
    CHECK_EQ(lock_of(&producer, leaf), 0);
    CHECK(get(&producer, leaf).stored);
    insert(&producer, run_of(1, 8));
    CHECK_EQ(producer.transport->offload_calls, 1);

    fix_init(&consumer, setup, &store);
    match(&consumer, 7, run_of(1, 8));
    CHECK_EQ(consumer.match.device_length, 0);
    CHECK_EQ(consumer.outside.load_length, 8);
    load_back(&consumer, 7);
    CHECK_EQ(consumer.load.length, 8);
    CHECK(consumer.load.last_node != kvg_tree_root(consumer.tree));
    CHECK_MEM(consumer.transport->last_load.transfers[0].keys, offer->transfers[0].keys,
        4 * sizeof(*keys));
    CHECK_EQ(lock_of(&consumer, consumer.load.last_node), 1);
    match(&consumer, 0, run_of(1, 8));
    CHECK_EQ(consumer.match.device_length, 0); /* Not before the bytes are there. */
    CHECK_EQ(kvg_linker_start_loads(consumer.linker), 0);
    mem_complete_loads(consumer.transport, true);
    CHECK_EQ(tick(&consumer).load_count, 1);
    CHECK_EQ(lock_of(&consumer, consumer.load.last_node), 0);
    match(&consumer, 0, run_of(1, 8));
    CHECK_EQ(consumer.match.device_length, 8);
    CHECK_EQ(consumer.transport->offload_calls, 0);
    fix_fini(&producer);
    fix_fini(&consumer);
    mem_store_fini(&store);
}

TEST(eagle_lookup_uses_bigram_tail_hashes)
{
    struct setup setup = {.page_size = 2, .eagle = true};
    struct mem_store store;
    struct fix consumer;
    char hex[KVG_KEY_HEX_BYTES];
    mem_store_init(&store);
    store_run(&store, setup, 9);
    CHECK_EQ(store.count, 4);
    setup.hits = NO_OFFLOAD;
    fix_init(&consumer, setup, &store);
    insert(&consumer, run_of(1, 5));

    match(&consumer, 7, run_of(1, 9));
    CHECK_EQ(consumer.match.device_length, 4);
    CHECK_EQ(consumer.outside.load_length, 4);
    CHECK_EQ(consumer.transport->lookups, 1);
    struct mem_job *asked = &consumer.transport->last_lookup;
    CHECK_EQ(asked->transfers[0].key_count, 2);
    kvg_key_to_hex(&asked->transfers[0].keys[0], hex);
    CHECK_STR(hex, "a7bcab72fe4725d05cd60c3da519aa86443cb67db9b299622d948c78eb69968a");
    kvg_key_to_hex(&asked->transfers[0].keys[1], hex);
    CHECK_STR(hex, "a1775dd320e23308ecc30e923ce9c2189cb5eb414c2879d19211755b0c6a1179");
    fix_fini(&consumer);
    mem_store_fini(&store);
}

TEST(failed_split_offload_retries_and_reset_releases_locks)
{
    struct mem_store store;
    struct kvg_linker_offload offload;
    struct fix fix;
    mem_store_init(&store);
    fix_init(&fix, (struct setup){0}, &store);
    struct mem_transport *t = fix.transport;

    kvg_node_id child = insert(&fix, run_of(1, 4));
    kvg_node_id parent = insert(&fix, run_of(1, 2));
    CHECK(kvg_linker_offload_get(fix.linker, 0, &offload));
    CHECK_EQ(offload.node_count, 2);
    CHECK_EQ(offload.nodes[0], parent);
    CHECK_EQ(offload.nodes[1], child);
    CHECK_EQ(get(&fix, parent).pending_write, child);
    mem_complete_offload(t, false);
    tick(&fix);
    CHECK_EQ(get(&fix, parent).pending_write, KVG_NODE_NONE);
    CHECK_EQ(get(&fix, child).pending_write, KVG_NODE_NONE);
    CHECK(!get(&fix, parent).stored && !get(&fix, child).stored);
    CHECK_EQ(lock_of(&fix, parent) + lock_of(&fix, child), 0);

    insert(&fix, run_of(1, 4));
    CHECK_EQ(t->offload_calls, 3);
    CHECK_EQ(t->offload_key_count, 8);
    CHECK_MEM(t->offload_keys, t->offload_keys + 4, 4 * sizeof(struct kvg_key));
    CHECK_EQ(lock_of(&fix, parent), 2);
    mem_complete_offloads(t, true);
    tick(&fix);
    CHECK(get(&fix, parent).stored && get(&fix, child).stored);
    insert(&fix, run_of(1, 4));
    CHECK_EQ(t->offload_calls, 3);

    kvg_node_id extended = insert(&fix, run_of(1, 6));
    CHECK_EQ(get(&fix, extended).pending_write, extended);
    CHECK_EQ(lock_of(&fix, extended), 1);
    kvg_linker_reset(fix.linker);
    CHECK(!kvg_linker_offload_get(fix.linker, 0, &offload));
    CHECK_EQ(get(&fix, extended).pending_write, KVG_NODE_NONE);
    CHECK_EQ(lock_of(&fix, extended), 0);
    fix_fini(&fix);
    mem_store_fini(&store);
}

TEST(a_pending_offload_split_twice_publishes_all_fragments_parents_first)
{
    struct mem_store store;
    struct kvg_linker_offload offload;
    struct fix fix;
    mem_store_init(&store);
    fix_init(&fix, (struct setup){0}, &store);

    kvg_node_id x = insert(&fix, run_of(1, 6));
    kvg_node_id p = insert(&fix, run_of(1, 2));
    kvg_node_id q = insert(&fix, run_of(1, 1));
    CHECK(x < p && p < q);
    CHECK(kvg_linker_offload_get(fix.linker, 0, &offload));
    CHECK_EQ(offload.node_count, 3);
    CHECK(offload.nodes[0] == q && offload.nodes[1] == p && offload.nodes[2] == x);
    CHECK_EQ(get(&fix, q).hits, 3);
    CHECK_EQ(get(&fix, p).hits, 2);
    CHECK_EQ(kvg_tree_protected(fix.tree, KVG_COMPONENT_FULL), 6);
    mem_complete_offload(fix.transport, true);
    tick(&fix);
    CHECK(get(&fix, q).stored && get(&fix, p).stored && get(&fix, x).stored);
    CHECK_EQ(kvg_tree_evictable(fix.tree, KVG_COMPONENT_FULL), 6);
    fix_fini(&fix);
    mem_store_fini(&store);
}

TEST(swa_partial_hit_loads_only_pages_not_adopted_locally)
{
    struct setup setup = {.swa = true, .window = 2};
    struct mem_store store;
    struct fix fix;
    struct kvg_key keys[6];
    struct kvg_page_rule rule = {.page_size = 1};
    uint32_t tokens[] = {1, 2, 3, 4, 5, 6};
    mem_store_init(&store);
    store_run(&store, setup, 6);
    CHECK_EQ(kvg_page_keys(&rule, NULL, tokens, 6, keys, 6), 6);
    mem_store_remove(&store, KVG_COMPONENT_FULL, &keys[4]);
    mem_store_remove(&store, KVG_COMPONENT_FULL, &keys[5]);
    setup.hits = NO_OFFLOAD;
    fix_init(&fix, setup, &store);
    insert(&fix, run_of(1, 2));

    match(&fix, 7, run_of(1, 6));
    CHECK_EQ(fix.match.device_length, 2);
    CHECK_EQ(fix.outside.load_length, 2);
    CHECK_EQ(fix.outside.swa_load_length, 2);
    kvg_node_id anchor = fix.match.last_device_node;
    insert(&fix, run_of(1, 3));
    match(&fix, 0, run_of(1, 3));
    uint64_t raced = fix.match.device_spans[fix.match.device_span_count - 1].offset +
                     fix.match.device_spans[fix.match.device_span_count - 1].length - 1;
    uint64_t raced_swa = kvg_window_slot(fix.memory.window, raced);

    fix.match.last_device_node = anchor;
    load_back(&fix, 7);
    CHECK_EQ(fix.load.length, 2);
    CHECK_EQ(fix.load.spans[0].offset, raced);
    struct mem_job *load = &fix.transport->last_load;
    CHECK_EQ(load->count, 2);
    for (size_t i = 0; i < 2; i++) {
        CHECK_EQ(load->transfers[i].key_count, 1);
        CHECK_MEM(load->transfers[i].keys, &keys[3], sizeof(keys[3]));
        CHECK_EQ(load->transfers[i].slot_count, 1);
    }
    CHECK_EQ(kvg_window_slot(fix.memory.window, raced), raced_swa);
    CHECK_EQ(kvg_window_slot(fix.memory.window, load->transfers[0].slots[0]),
        load->transfers[1].slots[0]);
    CHECK(get(&fix, fix.load.last_node).stored);
    CHECK(!get(&fix, anchor).stored);
    CHECK(kvg_linker_start_loads(fix.linker) >= 0);
    mem_complete_loads(fix.transport, true);
    tick(&fix);
    match(&fix, 0, run_of(1, 4));
    CHECK_EQ(fix.match.device_length, 4);
    CHECK_EQ(lock_of(&fix, fix.load.last_node), 0);
    fix_fini(&fix);
    mem_store_fini(&store);
}

TEST(a_load_that_raced_in_whole_queues_and_locks_nothing)
{
    struct setup setup = {0};
    struct mem_store store;
    struct fix fix;
    mem_store_init(&store);
    store_run(&store, setup, 4);
    setup.hits = NO_OFFLOAD;
    fix_init(&fix, setup, &store);
    match(&fix, 7, run_of(1, 4));
    CHECK_EQ(fix.outside.load_length, 4);
    kvg_node_id raced = insert(&fix, run_of(1, 4));
    load_back(&fix, 7);
    CHECK_EQ(fix.load.length, 4);
    CHECK_EQ(fix.load.last_node, raced);
    CHECK(!fix.load.queued);
    CHECK_EQ(fix.transport->load_calls, 0);
    CHECK_EQ(lock_of(&fix, raced), 0);
    CHECK(get(&fix, raced).stored);
    fix_fini(&fix);
    mem_store_fini(&store);
}

/* ---- Loads that end badly ------------------------------------------------------------------ */

static void queued_load(struct fix *fix, struct mem_store *store)
{
    mem_store_init(store);
    store_run(store, (struct setup){0}, 4);
    fix_init(fix, (struct setup){.hits = NO_OFFLOAD}, store);
    match(fix, 7, run_of(1, 4));
    load_back(fix, 7);
    CHECK(fix->load.queued);
    CHECK_EQ(kvg_slots_available(fix->memory.slots), 60);
}

static void nothing_is_left(struct fix *fix, struct mem_store *store)
{
    struct kvg_linker_stats stats;
    kvg_linker_stats(fix->linker, &stats);
    CHECK_EQ(stats.markers + stats.pending_loads + stats.failed_loads, 0);
    CHECK_EQ(kvg_slots_available(fix->memory.slots), 64);
    match(fix, 0, run_of(1, 4));
    CHECK_EQ(fix->match.full_length, 0);
    fix_fini(fix);
    mem_store_fini(store);
}

TEST(async_load_pins_node_until_completion)
{
    struct mem_store store;
    struct fix fix;
    queued_load(&fix, &store);
    CHECK_EQ(lock_of(&fix, fix.load.last_node), 1);
    kvg_linker_start_loads(fix.linker);
    CHECK_EQ(tick(&fix).load_count, 0);
    CHECK_EQ(lock_of(&fix, fix.load.last_node), 1);
    mem_complete_loads(fix.transport, true);
    CHECK_EQ(tick(&fix).load_count, 1);
    CHECK_EQ(lock_of(&fix, fix.load.last_node), 0);
    fix_fini(&fix);
    mem_store_fini(&store);
}

TEST(release_request_cancels_queued_load)
{
    struct mem_store store;
    struct fix fix;
    queued_load(&fix, &store);
    kvg_linker_release_request(fix.linker, 7);
    CHECK_EQ(fix.transport->load_count, 0);
    nothing_is_left(&fix, &store);
}

TEST(a_failed_load_leaves_the_tree_before_anyone_can_match_it)
{
    struct mem_store store;
    struct fix fix;
    queued_load(&fix, &store);
    kvg_linker_start_loads(fix.linker);
    match(&fix, 0, run_of(1, 4));
    CHECK_EQ(fix.match.device_length, 0);
    mem_complete_loads(fix.transport, false);
    struct kvg_linker_tick out = tick(&fix);
    CHECK_EQ(out.load_count, 1);
    CHECK(!out.loads[0].success);
    nothing_is_left(&fix, &store);
}

TEST(a_failed_load_waits_for_the_request_that_holds_it)
{
    struct mem_store store;
    struct kvg_lock_receipt receipt;
    struct fix fix;
    queued_load(&fix, &store);
    CHECK_EQ(kvg_tree_lock(fix.tree, fix.load.last_node, 0, &receipt, NULL), KVG_OK);
    kvg_linker_start_loads(fix.linker);
    mem_complete_loads(fix.transport, false);
    tick(&fix);
    CHECK_EQ(kvg_linker_settle(fix.linker), 1);
    match(&fix, 0, run_of(1, 4));
    CHECK_EQ(fix.match.device_length, 0);
    CHECK_EQ(
        kvg_tree_unlock(fix.tree, fix.load.last_node, &receipt, false, NULL), KVG_OK);
    CHECK_EQ(kvg_linker_settle(fix.linker), 0);
    nothing_is_left(&fix, &store);
}

TEST(a_load_that_cannot_be_queued_leaves_nothing)
{
    struct mem_store store;
    struct fix fix;
    mem_store_init(&store);
    store_run(&store, (struct setup){0}, 4);
    fix_init(&fix, (struct setup){.hits = NO_OFFLOAD}, &store);
    match(&fix, 7, run_of(1, 4));
    fix.transport->refuse_loads = 1;
    fix.load = (struct kvg_load_back){
        .request = 7, .node = fix.match.last_device_node, .length = 4};
    CHECK_EQ(kvg_linker_load_back(fix.linker, &fix.load, &fix.error), KVG_EIO);
    CHECK(strstr(fix.error.message, "Failed to queue the linker load") != NULL);
    nothing_is_left(&fix, &store);
}

static struct fix *resetting;
static uint32_t locks_at_reset;
static void count_locks(struct mem_transport *transport)
{
    (void)transport;
    locks_at_reset = lock_of(resetting, resetting->load.last_node);
}

TEST(reset_quiesces_backend_before_releasing_pending_locks)
{
    struct mem_store store;
    struct fix fix;
    queued_load(&fix, &store);
    resetting = &fix;
    fix.transport->on_reset = count_locks;
    kvg_linker_reset(fix.linker);
    CHECK_EQ(locks_at_reset, 1);
    CHECK_EQ(fix.transport->resets, 1);
    fix.transport->on_reset = NULL;
    nothing_is_left(&fix, &store);
}

TEST(close_quiesces_backend_before_releasing_pending_loads)
{
    struct mem_store store;
    struct fix fix;
    queued_load(&fix, &store);
    resetting = &fix;
    fix.transport->on_reset = count_locks;
    locks_at_reset = 0;
    kvg_linker_close(fix.linker);
    CHECK_EQ(locks_at_reset, 1);
    CHECK_EQ(fix.transport->closes, 1);
    fix.transport->on_reset = NULL;
    nothing_is_left(&fix, &store);
}

/* ---- Offloads ------------------------------------------------------------------------------ */

TEST(async_offload_pins_node_until_completion)
{
    struct mem_store store;
    struct fix fix;
    mem_store_init(&store);
    fix_init(&fix, (struct setup){.hits = NO_OFFLOAD}, &store);
    kvg_node_id node = insert(&fix, run_of(1, 2));
    kvg_node_id twice[] = {node, node};
    CHECK_EQ(kvg_linker_offload(fix.linker, twice, 2, 0, true, NULL), KVG_OK);
    CHECK_EQ(fix.transport->offload_calls, 1);
    CHECK_EQ(lock_of(&fix, node), 1);
    CHECK(!get(&fix, node).stored);
    CHECK_EQ(get(&fix, node).pending_write, node);
    mem_complete_offload(fix.transport, false);
    CHECK_EQ(tick(&fix).offload_count, 1);
    CHECK(!get(&fix, node).stored);
    CHECK_EQ(get(&fix, node).pending_write, KVG_NODE_NONE);
    CHECK_EQ(lock_of(&fix, node), 0);
    fix_fini(&fix);
    mem_store_fini(&store);
}

TEST(offload_skips_node_already_stored_by_tree_core)
{
    struct mem_store store;
    struct fix fix;
    mem_store_init(&store);
    fix_init(&fix, (struct setup){.hits = NO_OFFLOAD}, &store);
    kvg_node_id node = insert(&fix, run_of(1, 2));
    CHECK_EQ(
        kvg_tree_mark_stored_path(fix.tree, node, kvg_tree_root(fix.tree), NULL), KVG_OK);
    CHECK_EQ(kvg_linker_offload(fix.linker, &node, 1, 0, true, NULL), KVG_OK);
    CHECK_EQ(fix.transport->offload_calls, 0);
    CHECK_EQ(lock_of(&fix, node), 0);
    fix_fini(&fix);
    mem_store_fini(&store);
}

TEST(a_refused_offload_leaks_no_lock_and_is_tried_again)
{
    struct mem_store store;
    struct fix fix;
    mem_store_init(&store);
    fix_init(&fix, (struct setup){0}, &store);
    fix.transport->refuse_offloads = 1;
    kvg_node_id node = insert(&fix, run_of(1, 2));
    CHECK_EQ(lock_of(&fix, node), 0);
    CHECK_EQ(get(&fix, node).pending_write, KVG_NODE_NONE);
    insert(&fix, run_of(1, 2));
    CHECK_EQ(get(&fix, node).pending_write, node);
    fix_fini(&fix);
    mem_store_fini(&store);
}

TEST(offload_filters_tree_core_swa_transfers_and_preserves_lifecycle)
{
    for (int ring = 0; ring < 2; ring++) {
        for (int completion = 0; completion < 3; completion++) {
            struct mem_store store;
            struct fix fix;
            mem_store_init(&store);
            fix_init(&fix, (struct setup){.swa = true, .ring = ring == 1, .window = 4},
                &store);
            kvg_node_id node = insert(&fix, run_of(1, 2));
            CHECK_EQ(fix.transport->last_offload.count, ring == 1 ? 1 : 2);
            if (completion == 2) {
                kvg_linker_reset(fix.linker);
                CHECK_EQ(fix.transport->resets, 1);
            } else {
                mem_complete_offload(fix.transport, completion == 0);
                tick(&fix);
            }
            CHECK_EQ(get(&fix, node).pending_write, KVG_NODE_NONE);
            CHECK_EQ(get(&fix, node).stored, completion == 0);
            CHECK_EQ(lock_of(&fix, node), 0);
            CHECK_EQ(kvg_linker_offload(fix.linker, &node, 1, 0, true, NULL), KVG_OK);
            CHECK_EQ(fix.transport->offload_calls, completion == 0 ? 1 : 2);
            fix_fini(&fix);
            mem_store_fini(&store);
        }
    }
}

TEST(linker_filters_request_relative_swa_from_lookup)
{
    struct mem_store store;
    struct fix fix;
    mem_store_init(&store);
    fix_init(&fix, (struct setup){.swa = true, .ring = true, .window = 4, .page_size = 2},
        &store);
    fix.transport->preset_count = 1;
    fix.transport->preset[0] = 2;
    match(&fix, 7, run_of(1, 4));
    CHECK_EQ(fix.outside.load_length, 4);
    CHECK_EQ(fix.outside.swa_load_length, 0);
    CHECK_EQ(fix.transport->last_lookup.count, 1);
    fix_fini(&fix);
    mem_store_fini(&store);
}

TEST(linker_load_preserves_swa_boundaries)
{
    static const struct {
        bool ring;
        uint64_t previous, expected;
    } CASES[] = {{true, 0, 4}, {true, 8, 8}, {false, 0, 2}};
    for (size_t i = 0; i < 3; i++) {
        struct setup setup = {
            .swa = true, .ring = CASES[i].ring, .window = 2, .page_size = 2};
        struct mem_store store;
        struct fix fix;
        mem_store_init(&store);
        store_run(&store, setup, 4);
        setup.hits = NO_OFFLOAD;
        fix_init(&fix, setup, &store);
        match(&fix, 7, run_of(1, 4));
        CHECK_EQ(fix.outside.load_length, 4);
        fix.load = (struct kvg_load_back){.request = 7,
            .node = fix.match.last_device_node,
            .length = 4,
            .swa_cursor = CASES[i].previous};
        CHECK_EQ(kvg_linker_load_back(fix.linker, &fix.load, &fix.error), KVG_OK);
        CHECK_EQ(fix.load.swa_cursor, CASES[i].expected);
        CHECK_EQ(fix.load.length, 4);
        CHECK_EQ(fix.transport->last_load.count, CASES[i].ring ? 1 : 2);
        check(&fix);
        kvg_linker_reset(fix.linker);
        fix_fini(&fix);
        mem_store_fini(&store);
    }
}

/* ---- Ranks --------------------------------------------------------------------------------- */

struct peer {
    int32_t values[8];
    size_t calls;
    int32_t script[4][8];
};

static void peer_min(void *context, int32_t *values, size_t count)
{
    struct peer *peer = context;
    for (size_t i = 0; i < count && i < 8; i++) {
        if (peer->script[peer->calls][i] < values[i])
            values[i] = peer->script[peer->calls][i];
    }
    peer->calls++;
}

TEST(restorable_prefix_intersects_sparse_rank_results)
{
    struct peer peer = {.script = {{0, 0, 1, 0, 0}}};
    struct kvg_agreement agreement = {peer_min, &peer};
    uint32_t lengths[] = {2, 4};
    int32_t mask[5];
    CHECK_EQ(kvg_agree_prefix(&agreement, lengths, 2, 4, 0, mask), 2);
    CHECK_EQ(peer.calls, 1);
}

TEST(check_events_commits_common_rank_results)
{
    struct peer peer = {.script = {{9, 9}, {9, 9}, {9, 9}, {9, 9}}};
    struct mem_store store;
    struct fix fix;
    mem_store_init(&store);
    fix_init(&fix, (struct setup){.agreement = {peer_min, &peer}}, &store);
    kvg_node_id nodes[3];
    for (uint32_t i = 0; i < 3; i++)
        nodes[i] = insert(&fix, run_of(10 * (i + 1), 2));
    mem_complete_offloads(fix.transport, true);
    peer = (struct peer){.script = {{1, 1}, {0, 0}}};
    CHECK_EQ(tick(&fix).offload_count, 1);
    CHECK_EQ(peer.calls, 2); /* How many, and whether they succeeded. */
    CHECK(!get(&fix, nodes[0]).stored);
    CHECK_EQ(get(&fix, nodes[0]).pending_write, KVG_NODE_NONE);
    CHECK_EQ(get(&fix, nodes[1]).pending_write, nodes[1]);
    peer = (struct peer){.script = {{0, 0}}};
    CHECK_EQ(tick(&fix).offload_count, 0);
    CHECK_EQ(peer.calls, 1); /* At most one when nothing is common. */
    kvg_linker_reset(fix.linker);
    fix_fini(&fix);
    mem_store_fini(&store);
}

/* ---- Sparse retention ---------------------------------------------------------------------- */

TEST(retained_swa_ranges_hold_a_window_before_each_checkpoint)
{
    struct kvg_retention r = {.prompt_boundary = 33792,
        .window = 4096,
        .interval = 32768,
        .page_size = 256,
        .include_prompt_boundary = true};
    struct kvg_tree_range ranges[4];
    struct kvg_error error;
    size_t count;
    CHECK_EQ(kvg_retained_swa_ranges(&r, 28672, 33792, ranges, 4, &count, NULL), KVG_OK);
    CHECK_EQ(count, 1);
    CHECK_EQ(ranges[0].start, 28672);
    CHECK_EQ(ranges[0].end, 33792);
    r.include_prompt_boundary = false;
    CHECK_EQ(kvg_retained_swa_ranges(&r, 28672, 33792, ranges, 4, &count, NULL), KVG_OK);
    CHECK_EQ(count, 1);
    CHECK_EQ(ranges[0].end, 32768);
    CHECK_EQ(
        kvg_retained_swa_ranges(&r, 1, 33792, ranges, 4, &count, &error), KVG_EINVAL);
    CHECK(strstr(error.message, "page aligned") != NULL);
    r.interval = 0;
    CHECK_EQ(
        kvg_retained_swa_ranges(&r, 0, 33792, ranges, 4, &count, &error), KVG_EINVAL);
    CHECK_STR(error.message, "page_size, interval and window must be positive");
    r.interval = 32768;
    CHECK_EQ(
        kvg_retained_swa_ranges(&r, 0, 34048, ranges, 4, &count, &error), KVG_EINVAL);
    CHECK_STR(error.message, "expected 0 <= start <= end <= prompt_boundary");
}

TEST_MAIN(RUN(cache_linker_attachment_is_backend_independent),
    RUN(cache_linker_rejects_unsupported_tree_components),
    RUN(full_offload_load_round_trip_and_dedup),
    RUN(eagle_lookup_uses_bigram_tail_hashes),
    RUN(failed_split_offload_retries_and_reset_releases_locks),
    RUN(a_pending_offload_split_twice_publishes_all_fragments_parents_first),
    RUN(swa_partial_hit_loads_only_pages_not_adopted_locally),
    RUN(a_load_that_raced_in_whole_queues_and_locks_nothing),
    RUN(async_load_pins_node_until_completion), RUN(release_request_cancels_queued_load),
    RUN(a_failed_load_leaves_the_tree_before_anyone_can_match_it),
    RUN(a_failed_load_waits_for_the_request_that_holds_it),
    RUN(a_load_that_cannot_be_queued_leaves_nothing),
    RUN(reset_quiesces_backend_before_releasing_pending_locks),
    RUN(close_quiesces_backend_before_releasing_pending_loads),
    RUN(async_offload_pins_node_until_completion),
    RUN(offload_skips_node_already_stored_by_tree_core),
    RUN(a_refused_offload_leaks_no_lock_and_is_tried_again),
    RUN(offload_filters_tree_core_swa_transfers_and_preserves_lifecycle),
    RUN(linker_filters_request_relative_swa_from_lookup),
    RUN(linker_load_preserves_swa_boundaries),
    RUN(restorable_prefix_intersects_sparse_rank_results),
    RUN(check_events_commits_common_rank_results),
    RUN(retained_swa_ranges_hold_a_window_before_each_checkpoint))
