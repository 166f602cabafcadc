/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* The linker's behaviour as engines in Python expect it: attachment, pinning, splits of pending
 * nodes, adopted pages, windows, ranks.  Names and numbers follow the tests it came from. */
#include "linker_kit.h"

/* ---- Attachment ---------------------------------------------------------------------------- */

TEST(cache_linker_attachment_is_backend_independent)
{
    struct mem_store store;
    struct fix fix;
    mem_store_init(&store);
    lk_fix_init(&fix, (struct setup){0}, &store);

    CHECK(kvg_tree_settings(fix.tree)->external_store);
    CHECK_EQ(kvg_tree_settings(fix.tree)->write_through_hits, 1);
    lk_fix_fini(&fix);
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
    lk_fix_init(&producer, setup, &store);

    kvg_node_id leaf = lk_insert(&producer, lk_run_of(1, 8));
    struct mem_job *offer = &producer.transport->last_offload;
    CHECK_EQ(producer.transport->offload_calls, 1);
    CHECK_EQ(offer->count, 1);
    CHECK_EQ(offer->transfers[0].key_count, 4);
    CHECK_EQ(kvg_tree_node_page_keys(producer.tree, leaf, &keys), 4);
    CHECK_MEM(offer->transfers[0].keys, keys, 4 * sizeof(*keys));
    CHECK_EQ(lk_lock_of(&producer, leaf), 1);
    CHECK(!lk_get(&producer, leaf).stored);
    CHECK_EQ(lk_get(&producer, leaf).pending_write, leaf);
    lk_insert(&producer, lk_run_of(1, 8));
    CHECK_EQ(producer.transport->offload_calls, 1);
    mem_complete_offload(producer.transport, true);
    lk_tick(&producer);
    CHECK_EQ(lk_lock_of(&producer, leaf), 0);
    CHECK(lk_get(&producer, leaf).stored);
    lk_insert(&producer, lk_run_of(1, 8));
    CHECK_EQ(producer.transport->offload_calls, 1);

    lk_fix_init(&consumer, setup, &store);
    lk_match(&consumer, 7, lk_run_of(1, 8));
    CHECK_EQ(consumer.match.device_length, 0);
    CHECK_EQ(consumer.outside.load_length, 8);
    lk_load_back(&consumer, 7);
    CHECK_EQ(consumer.load.length, 8);
    CHECK(consumer.load.last_node != kvg_tree_root(consumer.tree));
    CHECK_MEM(consumer.transport->last_load.transfers[0].keys, offer->transfers[0].keys,
        4 * sizeof(*keys));
    CHECK_EQ(lk_lock_of(&consumer, consumer.load.last_node), 1);
    lk_match(&consumer, 0, lk_run_of(1, 8));
    CHECK_EQ(consumer.match.device_length, 0); /* Not before the bytes are there. */
    CHECK_EQ(kvg_linker_start_loads(consumer.linker), 0);
    mem_complete_loads(consumer.transport, true);
    CHECK_EQ(lk_tick(&consumer).load_count, 1);
    CHECK_EQ(lk_lock_of(&consumer, consumer.load.last_node), 0);
    lk_match(&consumer, 0, lk_run_of(1, 8));
    CHECK_EQ(consumer.match.device_length, 8);
    CHECK_EQ(consumer.transport->offload_calls, 0);
    lk_fix_fini(&producer);
    lk_fix_fini(&consumer);
    mem_store_fini(&store);
}

TEST(eagle_lookup_uses_bigram_tail_hashes)
{
    struct setup setup = {.page_size = 2, .eagle = true};
    struct mem_store store;
    struct fix consumer;
    char hex[KVG_KEY_HEX_BYTES];
    mem_store_init(&store);
    lk_store_run(&store, setup, 9);
    CHECK_EQ(store.count, 4);
    setup.hits = NO_OFFLOAD;
    lk_fix_init(&consumer, setup, &store);
    lk_insert(&consumer, lk_run_of(1, 5));

    lk_match(&consumer, 7, lk_run_of(1, 9));
    CHECK_EQ(consumer.match.device_length, 4);
    CHECK_EQ(consumer.outside.load_length, 4);
    CHECK_EQ(consumer.transport->lookups, 1);
    struct mem_job *asked = &consumer.transport->last_lookup;
    CHECK_EQ(asked->transfers[0].key_count, 2);
    kvg_key_to_hex(&asked->transfers[0].keys[0], hex);
    CHECK_STR(hex, "a7bcab72fe4725d05cd60c3da519aa86443cb67db9b299622d948c78eb69968a");
    kvg_key_to_hex(&asked->transfers[0].keys[1], hex);
    CHECK_STR(hex, "a1775dd320e23308ecc30e923ce9c2189cb5eb414c2879d19211755b0c6a1179");
    lk_fix_fini(&consumer);
    mem_store_fini(&store);
}

TEST(failed_split_offload_retries_and_reset_releases_locks)
{
    struct mem_store store;
    struct kvg_linker_offload offload;
    struct fix fix;
    mem_store_init(&store);
    lk_fix_init(&fix, (struct setup){0}, &store);
    struct mem_transport *t = fix.transport;

    kvg_node_id child = lk_insert(&fix, lk_run_of(1, 4));
    kvg_node_id parent = lk_insert(&fix, lk_run_of(1, 2));
    CHECK(kvg_linker_offload_get(fix.linker, 0, &offload));
    CHECK_EQ(offload.node_count, 2);
    CHECK_EQ(offload.nodes[0], parent);
    CHECK_EQ(offload.nodes[1], child);
    CHECK_EQ(lk_get(&fix, parent).pending_write, child);
    mem_complete_offload(t, false);
    lk_tick(&fix);
    CHECK_EQ(lk_get(&fix, parent).pending_write, KVG_NODE_NONE);
    CHECK_EQ(lk_get(&fix, child).pending_write, KVG_NODE_NONE);
    CHECK(!lk_get(&fix, parent).stored && !lk_get(&fix, child).stored);
    CHECK_EQ(lk_lock_of(&fix, parent) + lk_lock_of(&fix, child), 0);

    lk_insert(&fix, lk_run_of(1, 4));
    CHECK_EQ(t->offload_calls, 3);
    CHECK_EQ(t->offload_key_count, 8);
    CHECK_MEM(t->offload_keys, t->offload_keys + 4, 4 * sizeof(struct kvg_key));
    CHECK_EQ(lk_lock_of(&fix, parent), 2);
    mem_complete_offloads(t, true);
    lk_tick(&fix);
    CHECK(lk_get(&fix, parent).stored && lk_get(&fix, child).stored);
    lk_insert(&fix, lk_run_of(1, 4));
    CHECK_EQ(t->offload_calls, 3);

    kvg_node_id extended = lk_insert(&fix, lk_run_of(1, 6));
    CHECK_EQ(lk_get(&fix, extended).pending_write, extended);
    CHECK_EQ(lk_lock_of(&fix, extended), 1);
    kvg_linker_reset(fix.linker);
    CHECK(!kvg_linker_offload_get(fix.linker, 0, &offload));
    CHECK_EQ(lk_get(&fix, extended).pending_write, KVG_NODE_NONE);
    CHECK_EQ(lk_lock_of(&fix, extended), 0);
    lk_fix_fini(&fix);
    mem_store_fini(&store);
}

TEST(a_pending_offload_split_twice_publishes_all_fragments_parents_first)
{
    struct mem_store store;
    struct kvg_linker_offload offload;
    struct fix fix;
    mem_store_init(&store);
    lk_fix_init(&fix, (struct setup){0}, &store);

    kvg_node_id x = lk_insert(&fix, lk_run_of(1, 6));
    kvg_node_id p = lk_insert(&fix, lk_run_of(1, 2));
    kvg_node_id q = lk_insert(&fix, lk_run_of(1, 1));
    CHECK(x < p && p < q);
    CHECK(kvg_linker_offload_get(fix.linker, 0, &offload));
    CHECK_EQ(offload.node_count, 3);
    CHECK(offload.nodes[0] == q && offload.nodes[1] == p && offload.nodes[2] == x);
    CHECK_EQ(lk_get(&fix, q).hits, 3);
    CHECK_EQ(lk_get(&fix, p).hits, 2);
    CHECK_EQ(kvg_tree_protected(fix.tree, KVG_COMPONENT_FULL), 6);
    mem_complete_offload(fix.transport, true);
    lk_tick(&fix);
    CHECK(lk_get(&fix, q).stored && lk_get(&fix, p).stored && lk_get(&fix, x).stored);
    CHECK_EQ(kvg_tree_evictable(fix.tree, KVG_COMPONENT_FULL), 6);
    lk_fix_fini(&fix);
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
    lk_store_run(&store, setup, 6);
    CHECK_EQ(kvg_page_keys(&rule, NULL, tokens, 6, keys, 6), 6);
    mem_store_remove(&store, KVG_COMPONENT_FULL, &keys[4]);
    mem_store_remove(&store, KVG_COMPONENT_FULL, &keys[5]);
    setup.hits = NO_OFFLOAD;
    lk_fix_init(&fix, setup, &store);
    lk_insert(&fix, lk_run_of(1, 2));

    lk_match(&fix, 7, lk_run_of(1, 6));
    CHECK_EQ(fix.match.device_length, 2);
    CHECK_EQ(fix.outside.load_length, 2);
    CHECK_EQ(fix.outside.swa_load_length, 2);
    kvg_node_id anchor = fix.match.last_device_node;
    lk_insert(&fix, lk_run_of(1, 3));
    lk_match(&fix, 0, lk_run_of(1, 3));
    uint64_t raced = fix.match.device_spans[fix.match.device_span_count - 1].offset +
                     fix.match.device_spans[fix.match.device_span_count - 1].length - 1;
    uint64_t raced_swa = kvg_window_slot(fix.memory.window, raced);

    fix.match.last_device_node = anchor;
    lk_load_back(&fix, 7);
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
    CHECK(lk_get(&fix, fix.load.last_node).stored);
    CHECK(!lk_get(&fix, anchor).stored);
    CHECK(kvg_linker_start_loads(fix.linker) >= 0);
    mem_complete_loads(fix.transport, true);
    lk_tick(&fix);
    lk_match(&fix, 0, lk_run_of(1, 4));
    CHECK_EQ(fix.match.device_length, 4);
    CHECK_EQ(lk_lock_of(&fix, fix.load.last_node), 0);
    lk_fix_fini(&fix);
    mem_store_fini(&store);
}

TEST(a_load_that_raced_in_whole_queues_and_locks_nothing)
{
    struct setup setup = {0};
    struct mem_store store;
    struct fix fix;
    mem_store_init(&store);
    lk_store_run(&store, setup, 4);
    setup.hits = NO_OFFLOAD;
    lk_fix_init(&fix, setup, &store);
    lk_match(&fix, 7, lk_run_of(1, 4));
    CHECK_EQ(fix.outside.load_length, 4);
    kvg_node_id raced = lk_insert(&fix, lk_run_of(1, 4));
    lk_load_back(&fix, 7);
    CHECK_EQ(fix.load.length, 4);
    CHECK_EQ(fix.load.last_node, raced);
    CHECK(!fix.load.queued);
    CHECK_EQ(fix.transport->load_calls, 0);
    CHECK_EQ(lk_lock_of(&fix, raced), 0);
    CHECK(lk_get(&fix, raced).stored);
    lk_fix_fini(&fix);
    mem_store_fini(&store);
}

/* ---- Offloads ------------------------------------------------------------------------------ */

TEST(async_offload_pins_node_until_completion)
{
    struct mem_store store;
    struct fix fix;
    mem_store_init(&store);
    lk_fix_init(&fix, (struct setup){.hits = NO_OFFLOAD}, &store);
    kvg_node_id node = lk_insert(&fix, lk_run_of(1, 2));
    kvg_node_id twice[] = {node, node};
    CHECK_EQ(kvg_linker_offload(fix.linker, twice, 2, 0, true, NULL), KVG_OK);
    CHECK_EQ(fix.transport->offload_calls, 1);
    CHECK_EQ(lk_lock_of(&fix, node), 1);
    CHECK(!lk_get(&fix, node).stored);
    CHECK_EQ(lk_get(&fix, node).pending_write, node);
    mem_complete_offload(fix.transport, false);
    CHECK_EQ(lk_tick(&fix).offload_count, 1);
    CHECK(!lk_get(&fix, node).stored);
    CHECK_EQ(lk_get(&fix, node).pending_write, KVG_NODE_NONE);
    CHECK_EQ(lk_lock_of(&fix, node), 0);
    lk_fix_fini(&fix);
    mem_store_fini(&store);
}

TEST(offload_skips_node_already_stored_by_tree_core)
{
    struct mem_store store;
    struct fix fix;
    mem_store_init(&store);
    lk_fix_init(&fix, (struct setup){.hits = NO_OFFLOAD}, &store);
    kvg_node_id node = lk_insert(&fix, lk_run_of(1, 2));
    CHECK_EQ(
        kvg_tree_mark_stored_path(fix.tree, node, kvg_tree_root(fix.tree), NULL), KVG_OK);
    CHECK_EQ(kvg_linker_offload(fix.linker, &node, 1, 0, true, NULL), KVG_OK);
    CHECK_EQ(fix.transport->offload_calls, 0);
    CHECK_EQ(lk_lock_of(&fix, node), 0);
    lk_fix_fini(&fix);
    mem_store_fini(&store);
}

TEST(a_refused_offload_leaks_no_lock_and_is_tried_again)
{
    struct mem_store store;
    struct fix fix;
    mem_store_init(&store);
    lk_fix_init(&fix, (struct setup){0}, &store);
    fix.transport->refuse_offloads = 1;
    kvg_node_id node = lk_insert(&fix, lk_run_of(1, 2));
    CHECK_EQ(lk_lock_of(&fix, node), 0);
    CHECK_EQ(lk_get(&fix, node).pending_write, KVG_NODE_NONE);
    lk_insert(&fix, lk_run_of(1, 2));
    CHECK_EQ(lk_get(&fix, node).pending_write, node);
    lk_fix_fini(&fix);
    mem_store_fini(&store);
}

TEST(offload_filters_tree_core_swa_transfers_and_preserves_lifecycle)
{
    for (int ring = 0; ring < 2; ring++) {
        for (int completion = 0; completion < 3; completion++) {
            struct mem_store store;
            struct fix fix;
            mem_store_init(&store);
            lk_fix_init(&fix, (struct setup){.swa = true, .ring = ring == 1, .window = 4},
                &store);
            kvg_node_id node = lk_insert(&fix, lk_run_of(1, 2));
            CHECK_EQ(fix.transport->last_offload.count, ring == 1 ? 1 : 2);
            if (completion == 2) {
                kvg_linker_reset(fix.linker);
                CHECK_EQ(fix.transport->resets, 1);
            } else {
                mem_complete_offload(fix.transport, completion == 0);
                lk_tick(&fix);
            }
            CHECK_EQ(lk_get(&fix, node).pending_write, KVG_NODE_NONE);
            CHECK_EQ(lk_get(&fix, node).stored, completion == 0);
            CHECK_EQ(lk_lock_of(&fix, node), 0);
            CHECK_EQ(kvg_linker_offload(fix.linker, &node, 1, 0, true, NULL), KVG_OK);
            CHECK_EQ(fix.transport->offload_calls, completion == 0 ? 1 : 2);
            lk_fix_fini(&fix);
            mem_store_fini(&store);
        }
    }
}

TEST(linker_filters_request_relative_swa_from_lookup)
{
    struct mem_store store;
    struct fix fix;
    mem_store_init(&store);
    lk_fix_init(&fix,
        (struct setup){.swa = true, .ring = true, .window = 4, .page_size = 2}, &store);
    fix.transport->preset_count = 1;
    fix.transport->preset[0] = 2;
    lk_match(&fix, 7, lk_run_of(1, 4));
    CHECK_EQ(fix.outside.load_length, 4);
    CHECK_EQ(fix.outside.swa_load_length, 0);
    CHECK_EQ(fix.transport->last_lookup.count, 1);
    lk_fix_fini(&fix);
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
        lk_store_run(&store, setup, 4);
        setup.hits = NO_OFFLOAD;
        lk_fix_init(&fix, setup, &store);
        lk_match(&fix, 7, lk_run_of(1, 4));
        CHECK_EQ(fix.outside.load_length, 4);
        fix.load = (struct kvg_load_back){.request = 7,
            .node = fix.match.last_device_node,
            .length = 4,
            .swa_cursor = CASES[i].previous};
        CHECK_EQ(kvg_linker_load_back(fix.linker, &fix.load, &fix.error), KVG_OK);
        CHECK_EQ(fix.load.swa_cursor, CASES[i].expected);
        CHECK_EQ(fix.load.length, 4);
        CHECK_EQ(fix.transport->last_load.count, CASES[i].ring ? 1 : 2);
        lk_check(&fix);
        kvg_linker_reset(fix.linker);
        lk_fix_fini(&fix);
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
    lk_fix_init(&fix, (struct setup){.agreement = {peer_min, &peer}}, &store);
    kvg_node_id nodes[3];
    for (uint32_t i = 0; i < 3; i++)
        nodes[i] = lk_insert(&fix, lk_run_of(10 * (i + 1), 2));
    mem_complete_offloads(fix.transport, true);
    peer = (struct peer){.script = {{1, 1}, {0, 0}}};
    CHECK_EQ(lk_tick(&fix).offload_count, 1);
    CHECK_EQ(peer.calls, 2); /* How many, and whether they succeeded. */
    CHECK(!lk_get(&fix, nodes[0]).stored);
    CHECK_EQ(lk_get(&fix, nodes[0]).pending_write, KVG_NODE_NONE);
    CHECK_EQ(lk_get(&fix, nodes[1]).pending_write, nodes[1]);
    peer = (struct peer){.script = {{0, 0}}};
    CHECK_EQ(lk_tick(&fix).offload_count, 0);
    CHECK_EQ(peer.calls, 1); /* At most one when nothing is common. */
    kvg_linker_reset(fix.linker);
    lk_fix_fini(&fix);
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
    RUN(async_offload_pins_node_until_completion),
    RUN(offload_skips_node_already_stored_by_tree_core),
    RUN(a_refused_offload_leaks_no_lock_and_is_tried_again),
    RUN(offload_filters_tree_core_swa_transfers_and_preserves_lifecycle),
    RUN(linker_filters_request_relative_swa_from_lookup),
    RUN(linker_load_preserves_swa_boundaries),
    RUN(restorable_prefix_intersects_sparse_rank_results),
    RUN(check_events_commits_common_rank_results),
    RUN(retained_swa_ranges_hold_a_window_before_each_checkpoint))
