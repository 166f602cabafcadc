/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* The linker's contract, clause by clause: markers, splits, adopted pages, what is never offered,
 * sparse windows, how often ranks agree. */
#include "linker_kit.h"

#include "base/rng.h"
#include "graft/linker.h"

/* The keys of pages 1, 2, ... of the tokens 1, 2, 3 ... */
static void keys_of_run(uint32_t page_size, size_t count, struct kvg_key *keys)
{
    struct kvg_page_rule rule = {.page_size = page_size};
    uint32_t tokens[64];
    for (uint32_t i = 0; i < 64; i++)
        tokens[i] = i + 1;
    CHECK_EQ(kvg_page_keys(&rule, NULL, tokens, count * page_size, keys, count), count);
}

static uint64_t free_slots(struct fix *fix)
{
    return kvg_slots_available(fix->memory.window != NULL
                                   ? kvg_window_full(fix->memory.window)
                                   : fix->memory.slots);
}

static void start(struct fix *fix, struct setup setup, struct mem_store *store)
{
    mem_store_init(store);
    lk_fix_init(fix, setup, store);
}

static void stop(struct fix *fix, struct mem_store *store)
{
    lk_fix_fini(fix);
    mem_store_fini(store);
}

/* ---- Splits of what is under way ----------------------------------------------------------- */

TEST(failed_offload_rolls_back_split_fragments)
{
    struct mem_store store;
    struct fix fix;
    start(&fix, (struct setup){0}, &store);
    kvg_node_id child = lk_insert(&fix, lk_run_of(1, 4));
    lk_match(&fix, 0, lk_run_of(1, 2));
    kvg_node_id parent = fix.match.last_device_node;
    CHECK_EQ(lk_get(&fix, parent).pending_write, child);
    CHECK_EQ(lk_get(&fix, child).pending_write, child);
    mem_complete_offload(fix.transport, false);
    lk_tick(&fix);
    CHECK_EQ(lk_get(&fix, parent).pending_write, KVG_NODE_NONE);
    CHECK_EQ(lk_get(&fix, child).pending_write, KVG_NODE_NONE);
    CHECK(!lk_get(&fix, parent).stored && !lk_get(&fix, child).stored);
    CHECK_EQ(lk_lock_of(&fix, parent) + lk_lock_of(&fix, child), 0);
    CHECK_EQ(store.count, 0);
    stop(&fix, &store);
}

TEST(split_action_retargets_pending_external_offload)
{
    struct mem_store store;
    struct kvg_linker_offload offload;
    struct fix fix;
    start(&fix, (struct setup){0}, &store);
    kvg_node_id child = lk_insert(&fix, lk_run_of(1, 4));
    CHECK(kvg_linker_offload_get(fix.linker, 0, &offload));
    CHECK_EQ(offload.node_count, 1);
    lk_match(&fix, 0, lk_run_of(1, 2)); /* A match may split as well as an insert. */
    CHECK(kvg_linker_offload_get(fix.linker, 0, &offload));
    CHECK_EQ(offload.lock_node, child);
    CHECK_EQ(offload.node_count, 2);
    CHECK_EQ(offload.nodes[0], fix.match.last_device_node);
    CHECK_EQ(offload.nodes[1], child);
    kvg_linker_replace_node(fix.linker, child + 1000, child, child + 1); /* Not ours. */
    CHECK(kvg_linker_offload_get(fix.linker, 0, &offload));
    CHECK_EQ(offload.node_count, 2);
    mem_complete_offload(fix.transport, true);
    lk_tick(&fix);
    CHECK(lk_get(&fix, child).stored);
    CHECK(lk_get(&fix, fix.match.last_device_node).stored);
    stop(&fix, &store);
}

TEST(b22_an_offload_that_wrote_nothing_splits_nothing)
{
    struct mem_store store;
    struct kvg_tree_stats before, after;
    struct fix fix;
    start(&fix, (struct setup){.page_size = 4}, &store);
    kvg_node_id node = lk_insert(&fix, lk_run_of(1, 16));
    kvg_tree_stats(fix.tree, &before);
    mem_complete_offload(fix.transport, false);
    lk_tick(&fix);
    kvg_tree_stats(fix.tree, &after);
    CHECK_EQ(after.nodes, before.nodes);
    CHECK_EQ(lk_get(&fix, node).length, 16);
    CHECK_EQ(lk_get(&fix, node).pending_write, KVG_NODE_NONE);
    CHECK(!lk_get(&fix, node).stored);
    CHECK_EQ(lk_lock_of(&fix, node), 0);
    stop(&fix, &store);
}

/* ---- Adopted pages ------------------------------------------------------------------------- */

TEST(component_commit_keeps_only_adopted_pages)
{
    static const uint32_t COMPONENTS[] = {KVG_COMPONENT_FULL, KVG_COMPONENT_SWA};
    struct kvg_span full = {100, KVG_BUFFER_POOL, 8}, swa = {200, KVG_BUFFER_POOL, 8};
    struct kvg_span items[2][8];
    struct kvg_key keys[4], kept[2][4];
    struct mem_store store;
    struct fix fix;
    start(&fix, (struct setup){.page_size = 2, .swa = true, .window = 8}, &store);
    keys_of_run(2, 4, keys);
    const struct kvg_tree_range adopted[] = {{KVG_COMPONENT_FULL, 2, 4},
        {KVG_COMPONENT_SWA, 2, 4}, {KVG_COMPONENT_FULL, 6, 8}, {KVG_COMPONENT_SWA, 6, 8}};
    for (int i = 0; i < 2; i++) {
        struct kvg_tree_transfer transfer = {.component = COMPONENTS[i],
            .keys = keys,
            .key_count = 4,
            .spans = i == 0 ? &full : &swa,
            .span_count = 1};
        struct kvg_tree_transfer out;
        struct kvg_spans spans = {items[i], 0, 8};
        uint64_t base = i == 0 ? 100 : 200;
        CHECK_EQ(kvi_transfer_filter(
                     fix.linker, &transfer, adopted, 4, 0, kept[i], &spans, &out),
            KVG_OK);
        CHECK_EQ(out.key_count, 2);
        CHECK_MEM(&out.keys[0], &keys[1], sizeof(keys[0]));
        CHECK_MEM(&out.keys[1], &keys[3], sizeof(keys[0]));
        CHECK_EQ(out.span_count, 2);
        CHECK_EQ(out.spans[0].offset, base + 2);
        CHECK_EQ(out.spans[0].length, 2);
        CHECK_EQ(out.spans[1].offset, base + 6);
        CHECK_EQ(out.spans[1].length, 2);
    }
    stop(&fix, &store);
}

/* Four tokens' FULL pages are stored, six tokens' windows; a tree of windows of two. */
static void store_six(struct fix *fix, struct mem_store *store, struct kvg_key *keys)
{
    struct setup setup = {.swa = true, .window = 2};
    mem_store_init(store);
    lk_store_run(store, setup, 6);
    keys_of_run(1, 6, keys);
    mem_store_remove(store, KVG_COMPONENT_FULL, &keys[4]);
    mem_store_remove(store, KVG_COMPONENT_FULL, &keys[5]);
    setup.hits = NO_OFFLOAD;
    lk_fix_init(fix, setup, store);
}

static uint32_t swa_lock(struct fix *fix, kvg_node_id id)
{
    return lk_get(fix, id).lock_count[KVG_COMPONENT_SWA][KVG_TIER_DEVICE];
}

static void check_asked(const struct mem_job *asked, const struct kvg_key *h)
{
    CHECK_EQ(asked->count, 2);
    CHECK_EQ(asked->transfers[0].key_count, 4);
    CHECK_MEM(asked->transfers[0].keys, &h[2], 4 * sizeof(h[0]));
    CHECK(asked->transfers[1].trailing);
    CHECK_EQ(asked->transfers[1].key_count, 2);
    CHECK_MEM(asked->transfers[1].keys, &h[4], 2 * sizeof(h[0]));
}

static void check_one_page_each(const struct mem_job *load, const struct kvg_key *key)
{
    for (size_t i = 0; i < 2; i++) {
        CHECK_EQ(load->transfers[i].key_count, 1);
        CHECK_MEM(load->transfers[i].keys, key, sizeof(*key));
        CHECK_EQ(load->transfers[i].slot_count, 1);
    }
}

TEST(a_load_that_raced_with_an_insert_loads_the_rest_step_by_step)
{
    struct mem_store store;
    struct kvg_key h[6];
    struct fix fix;
    store_six(&fix, &store, h);

    /* 1: what is asked, and what is remembered. */
    kvg_node_id a = lk_insert(&fix, lk_run_of(1, 2));
    CHECK_EQ(lk_get(&fix, a).hits, 1);
    CHECK_EQ(fix.transport->offload_calls, 0);
    lk_match(&fix, 7, lk_run_of(1, 6));
    struct kvg_tree_match first = fix.match;
    CHECK_EQ(first.device_length, 2);
    check_asked(&fix.transport->last_lookup, h);
    CHECK_EQ(fix.outside.load_length, 2);
    CHECK_EQ(fix.outside.swa_load_length, 2);
    CHECK(kvg_linker_has_marker(fix.linker, 7));

    /* 2: somebody else computes the third token; the first two are duplicates. */
    kvg_node_id r = lk_insert(&fix, lk_run_of(1, 3));
    CHECK_EQ(free_slots(&fix), 64 - 3);
    lk_match(&fix, 0, lk_run_of(1, 3));
    uint64_t raced = fix.match.device_spans[fix.match.device_span_count - 1].offset +
                     fix.match.device_spans[fix.match.device_span_count - 1].length - 1;
    uint64_t raced_window = kvg_window_slot(fix.memory.window, raced);

    /* 3: two slots are taken for the tail, the tree keeps the second. */
    fix.match = first;
    lk_load_back(&fix, 7);
    kvg_node_id n = fix.load.last_node;
    CHECK_EQ(fix.load.swa_cursor, 2);
    CHECK_EQ(free_slots(&fix), 64 - 4);
    CHECK_EQ(kvg_slots_available(kvg_window_swa(fix.memory.window)), 64 - 4);
    CHECK_EQ(lk_get(&fix, n).length, 1);
    CHECK_EQ(lk_get(&fix, n).parent, r);
    CHECK_EQ(lk_get(&fix, n).hits, 0);
    CHECK_EQ(lk_get(&fix, r).hits, 1);

    /* 4: one page of each pool is loaded. */
    struct mem_job *load = &fix.transport->last_load;
    CHECK(fix.load.queued);
    CHECK_EQ(load->count, 2);
    check_one_page_each(load, &h[3]);
    uint64_t slot = load->transfers[0].slots[0];
    CHECK_EQ(kvg_window_slot(fix.memory.window, slot), load->transfers[1].slots[0]);
    CHECK_EQ(kvg_window_slot(fix.memory.window, raced), raced_window);
    CHECK_EQ(fix.load.length, 2);
    CHECK_EQ(kvg_spans_slots(fix.load.spans, fix.load.span_count), 2);
    CHECK_EQ(fix.load.spans[0].offset, raced);
    CHECK_EQ(lk_lock_of(&fix, n), 1);
    CHECK_EQ(lk_lock_of(&fix, r), 1);
    CHECK_EQ(lk_lock_of(&fix, a), 1);
    CHECK_EQ(swa_lock(&fix, n) + swa_lock(&fix, r), 2);
    CHECK_EQ(swa_lock(&fix, a), 0);
    CHECK(lk_get(&fix, n).stored && lk_get(&fix, r).stored && !lk_get(&fix, a).stored);
    CHECK(!kvg_linker_has_marker(fix.linker, 7));

    /* 5: it is there. */
    CHECK(kvg_linker_start_loads(fix.linker) >= 0);
    mem_complete_loads(fix.transport, true);
    CHECK_EQ(lk_tick(&fix).load_count, 1);
    CHECK_EQ(lk_lock_of(&fix, n) + lk_lock_of(&fix, a) + swa_lock(&fix, n), 0);
    lk_match(&fix, 0, lk_run_of(1, 4));
    CHECK_EQ(fix.match.device_length, 4);
    CHECK_EQ(fix.match.last_device_node, n);
    stop(&fix, &store);
}

TEST(a_load_whose_pages_all_raced_in_marks_the_path_and_loads_nothing)
{
    struct mem_store store;
    struct kvg_key h[6];
    struct fix fix;
    store_six(&fix, &store, h);
    kvg_node_id a = lk_insert(&fix, lk_run_of(1, 2));
    lk_match(&fix, 7, lk_run_of(1, 6));
    struct kvg_tree_match first = fix.match;
    kvg_node_id r = lk_insert(&fix, lk_run_of(1, 4));
    fix.match = first;
    lk_load_back(&fix, 7);
    CHECK(!fix.load.queued);
    CHECK_EQ(fix.load.length, 2);
    CHECK_EQ(fix.transport->load_calls, 0);
    CHECK_EQ(lk_lock_of(&fix, r), 0);
    CHECK(lk_get(&fix, r).stored && !lk_get(&fix, a).stored);
    CHECK_EQ(free_slots(&fix), 64 - 4);
    stop(&fix, &store);
}

/* ---- Markers ------------------------------------------------------------------------------- */

TEST(a_marker_stays_until_a_load_a_release_or_a_reset)
{
    struct mem_store store;
    struct fix fix;
    mem_store_init(&store);
    lk_store_run(&store, (struct setup){0}, 4);
    lk_fix_init(&fix, (struct setup){.hits = NO_OFFLOAD}, &store);

    lk_match(&fix, 7, lk_run_of(1, 4));
    CHECK(kvg_linker_has_marker(fix.linker, 7));
    lk_match(&fix, 7, lk_run_of(90, 4)); /* Nothing is found: the older one stays. */
    CHECK_EQ(fix.outside.load_length, 0);
    CHECK(kvg_linker_has_marker(fix.linker, 7));
    kvg_linker_release_request(fix.linker, 7);
    CHECK(!kvg_linker_has_marker(fix.linker, 7));

    lk_match(&fix, 8, lk_run_of(1, 4));
    lk_match(&fix, 8, lk_run_of(1, 2)); /* Another look replaces it. */
    lk_load_back(&fix, 8);
    CHECK_EQ(fix.load.length, 2);
    CHECK(!kvg_linker_has_marker(fix.linker, 8));
    kvg_linker_release_request(fix.linker, 8);

    lk_match(&fix, 9, lk_run_of(1, 4));
    CHECK(kvg_linker_has_marker(fix.linker, 9));
    kvg_linker_reset(fix.linker);
    CHECK(!kvg_linker_has_marker(fix.linker, 9));

    fix.outside.load_length = 0;
    lk_load_back(&fix, 10); /* Without a marker nothing happens. */
    CHECK_EQ(fix.load.length, 0);
    CHECK(!fix.load.queued);
    stop(&fix, &store);
}

/* ---- What is never offered ----------------------------------------------------------------- */

TEST(an_empty_transfer_list_is_never_offered)
{
    struct mem_store store;
    struct fix fix;
    mem_store_init(&store);
    lk_store_run(&store, (struct setup){0}, 4);
    lk_fix_init(&fix, (struct setup){.hits = NO_OFFLOAD}, &store);

    kvg_node_id root = kvg_tree_root(fix.tree);
    CHECK_EQ(kvg_linker_offload(fix.linker, &root, 1, 0, true, NULL), KVG_OK);
    lk_match(&fix, 7, lk_run_of(1, 4));
    lk_load_back(&fix, 7); /* Stored, and its bytes are not here yet. */
    kvg_node_id node = fix.load.last_node;
    CHECK_EQ(kvg_linker_offload(fix.linker, &node, 1, 0, true, NULL), KVG_OK);
    CHECK_EQ(fix.transport->offload_calls, 0);
    CHECK_EQ(fix.transport->empty_offers, 0);
    CHECK_EQ(lk_lock_of(&fix, node), 1); /* The load's. */
    stop(&fix, &store);
}

TEST(linker_refuses_every_component_it_cannot_do_by_name)
{
    const struct kvg_alloc *alloc = kvg_alloc_default();
    struct kvg_tree_options options;
    struct kvg_tree *tree = NULL;
    struct kvg_error error;
    kvg_tree_options_init(&options);
    options.components = FULL | KVG_COMPONENT_BIT(KVG_COMPONENT_C128);
    /* No tree has it, so no linker can get there; the refusal is the tree's, with the name. */
    CHECK_EQ(kvg_tree_new(alloc, &options, &tree, &error), KVG_EUNSUPPORTED);
    CHECK(tree == NULL);
    CHECK(strstr(error.message, "C128") != NULL);
    CHECK_STR(kvg_component_name(KVG_COMPONENT_C128), "C128");
}

/* ---- Windows ------------------------------------------------------------------------------- */

TEST(swa_reuse_policy_tracks_layout_without_a_tier_condition)
{
    for (int ring = 0; ring < 2; ring++) {
        for (int host = 0; host < 2; host++) {
            struct kvg_tree_options options;
            struct kvg_tree_insert insert;
            struct kvg_tree_inserted inserted;
            struct kvg_tree_match match;
            struct kvg_actions actions;
            struct kvg_span slots = {10, KVG_BUFFER_POOL, 4};
            struct kvg_tree *tree;
            kvg_tree_options_init(&options);
            options.components = FULL | SWA;
            options.window = 128;
            options.swa_request_ring = ring == 1;
            CHECK_EQ(kvg_tree_new(kvg_alloc_default(), &options, &tree, NULL), KVG_OK);
            kvg_tree_settings(tree)->host_tier = host == 1;
            kvg_tree_settings(tree)->swa_host_pool = host == 1 && ring == 0;
            CHECK_EQ(kvg_tree_reprefill_tail(tree), ring == 1 ? 128 : 0);

            /* A node without any window: usable exactly if windows are the requests'. */
            kvg_tree_insert_init(&insert);
            insert.key = lk_run_of(1, 4);
            insert.value = &slots;
            insert.value_count = 1;
            insert.evicted_length[KVG_COMPONENT_SWA] = 4;
            kvg_actions_init(&actions, kvg_alloc_default());
            CHECK_EQ(
                kvg_tree_insert_begin(tree, &insert, &actions, &inserted, NULL), KVG_OK);
            while (!inserted.done)
                CHECK_EQ(kvg_tree_insert_resume(tree, &actions, &inserted, NULL), KVG_OK);
            CHECK_EQ(
                kvg_tree_match_prefix(tree, &insert.key, &actions, &match, NULL), KVG_OK);
            CHECK_EQ(match.device_length, ring == 1 ? 4 : 0);
            kvg_actions_fini(&actions);
            kvg_tree_free(tree);
        }
    }
}

TEST(a_declined_insert_leaves_every_slot_with_its_caller)
{
    struct mem_store store;
    struct fix fix;
    struct kvg_span items[4];
    struct kvg_spans spans = {items, 0, 4};
    struct kvg_tree_insert insert;
    struct kvg_tree_inserted inserted;
    uint64_t taken;

    start(&fix, (struct setup){.hits = NO_OFFLOAD}, &store);
    lk_insert(&fix, lk_run_of(1, 2));
    uint64_t before = kvg_slots_available(fix.memory.slots);
    CHECK_EQ(kvg_slots_alloc(fix.memory.slots, 4, &spans, NULL), KVG_OK);
    kvg_tree_insert_init(&insert);
    insert.key = lk_run_of(1, 4);
    insert.value = items;
    insert.value_count = spans.count;
    insert.rotation_base = 1; /* What is there has none. */
    CHECK_EQ(kvg_cache_insert(fix.cache, &insert, &inserted, &taken, &fix.error), KVG_OK);
    CHECK(inserted.rotation_declined);
    CHECK_EQ(taken, 0);
    CHECK_EQ(kvg_slots_available(fix.memory.slots), before - 4);
    CHECK_EQ(kvg_slots_release(fix.memory.slots, items, spans.count, NULL), KVG_OK);
    lk_check(&fix);
    stop(&fix, &store);
}

TEST(cache_without_swa_needs_no_reprefill)
{
    struct mem_store store;
    struct fix fix;
    start(&fix, (struct setup){0}, &store);
    CHECK_EQ(kvg_tree_reprefill_tail(fix.tree), 0);
    stop(&fix, &store);
}

TEST(sparse_retention_offers_only_the_windows_before_a_checkpoint)
{
    /* 20 units in pages of 2, a window of 4: the end and the multiples of 8 are checkpoints. */
    static const size_t WANTED[] = {2, 3, 6, 7, 8, 9};
    struct kvg_key keys[10];
    struct mem_store store;
    struct fix fix;
    size_t seen = 0;
    size_t full = 0;
    start(&fix,
        (struct setup){
            .page_size = 2, .swa = true, .window = 4, .sparse = true, .interval = 8},
        &store);
    keys_of_run(2, 10, keys);
    lk_insert(&fix, lk_run_of(1, 20));
    for (size_t i = 0; i < fix.transport->offload_count; i++) {
        const struct mem_job *job = &fix.transport->offloads[i];
        CHECK_EQ(job->transfers[0].component, KVG_COMPONENT_FULL);
        full += job->transfers[0].key_count;
        CHECK_EQ(job->count, 2);
        const struct mem_transfer *swa = &job->transfers[1];
        CHECK_EQ(swa->slot_count, swa->key_count * 2);
        for (size_t k = 0; k < swa->key_count; k++, seen++) {
            CHECK(seen < 6);
            CHECK_MEM(&swa->keys[k], &keys[WANTED[seen]], sizeof(keys[0]));
        }
    }
    CHECK_EQ(full, 10);
    CHECK_EQ(seen, 6);
    mem_complete_offloads(fix.transport, true);
    lk_tick(&fix);
    stop(&fix, &store);
}

TEST(a_load_that_crosses_a_checkpoint_offers_nothing)
{
    /* Its slots have no bytes yet: the store would give out what was there before. */
    struct setup setup = {
        .page_size = 2, .swa = true, .window = 4, .sparse = true, .interval = 4};
    struct mem_store store;
    struct fix fix;
    mem_store_init(&store);
    lk_store_run(&store, setup, 12);
    lk_fix_init(&fix, setup, &store);
    lk_insert(&fix, lk_run_of(1, 2));
    uint64_t before = fix.transport->offload_calls;
    lk_match(&fix, 7, lk_run_of(1, 12));
    CHECK_EQ(fix.outside.load_length, 10);
    lk_load_back(&fix, 7);
    CHECK(fix.load.queued);
    CHECK_EQ(fix.transport->offload_calls, before);
    kvg_linker_start_loads(fix.linker);
    mem_complete_loads(fix.transport, true);
    mem_complete_offloads(fix.transport, true);
    lk_tick(&fix);
    stop(&fix, &store);
}

TEST(a_retention_interval_off_the_page_grid_is_refused)
{
    struct mem_store store;
    struct kvg_linker *out;
    struct fix fix;
    start(&fix, (struct setup){.page_size = 4}, &store);
    kvg_linker_close(fix.linker);
    kvg_linker_free(fix.linker);
    struct kvg_linker_options options = {.struct_bytes = sizeof(options),
        .transport = &fix.transport->table,
        .prompt_pages_max = 64,
        .sparse_retention = true,
        .retention_interval = 6};
    CHECK_EQ(kvg_linker_new(&fix.fault.alloc, fix.cache, &options, &out, &fix.error),
        KVG_EINVAL);
    CHECK_STR(
        fix.error.message, "SWA retention interval must be nonnegative and page aligned");
    options.retention_interval = 8;
    CHECK_EQ(
        kvg_linker_new(&fix.fault.alloc, fix.cache, &options, &fix.linker, &fix.error),
        KVG_OK);
    stop(&fix, &store);
}

static bool is_retained(const struct kvg_retention *r, uint64_t at)
{
    uint64_t window = (r->window + r->page_size - 1) / r->page_size * r->page_size;
    for (uint64_t b = 1; b <= r->prompt_boundary; b++) {
        bool checkpoint = b % r->interval == 0 ||
                          (r->include_prompt_boundary && b == r->prompt_boundary);
        if (checkpoint && at < b && at + window >= b)
            return true;
    }
    return false;
}

TEST(retained_ranges_equal_a_rule_for_single_units)
{
    struct kvi_rng rng = {11};
    for (int round = 0; round < 4000; round++) {
        struct kvg_tree_range ranges[128];
        size_t count, next = 0;
        struct kvg_retention r = {.page_size = 1u << kvi_rng_below(&rng, 3),
            .window = 1 + kvi_rng_below(&rng, 12),
            .include_prompt_boundary = kvi_rng_below(&rng, 2) == 0};
        r.interval = r.page_size * (1 + kvi_rng_below(&rng, 8));
        r.prompt_boundary = r.page_size * kvi_rng_below(&rng, 30);
        uint64_t end =
            r.page_size * kvi_rng_below(&rng, r.prompt_boundary / r.page_size + 1);
        uint64_t start = r.page_size * kvi_rng_below(&rng, end / r.page_size + 1);
        CHECK_EQ(
            kvg_retained_swa_ranges(&r, start, end, ranges, 128, &count, NULL), KVG_OK);
        for (size_t i = 1; i < count; i++)
            CHECK(ranges[i].start > ranges[i - 1].end); /* Joined where they touch. */
        for (uint64_t at = start; at < end; at++) {
            while (next < count && ranges[next].end <= at)
                next++;
            CHECK_EQ(next < count && ranges[next].start <= at, is_retained(&r, at));
        }
        CHECK(count == 0 || (ranges[0].start >= start && ranges[count - 1].end <= end));
    }
}

/* ---- Ranks --------------------------------------------------------------------------------- */

static void count_calls(void *context, int32_t *values, size_t count)
{
    (void)values;
    (void)count;
    ++*(uint64_t *)context;
}

TEST(an_idle_tick_agrees_once_and_a_busy_one_twice)
{
    uint64_t calls = 0;
    struct mem_store store;
    struct fix fix;
    start(&fix, (struct setup){.agreement = {count_calls, &calls}}, &store);
    lk_tick(&fix);
    CHECK_EQ(calls, 1);
    lk_insert(&fix, lk_run_of(1, 4));
    calls = 0;
    lk_tick(&fix); /* Under way is idle, too. */
    CHECK_EQ(calls, 1);
    mem_complete_offloads(fix.transport, true);
    calls = 0;
    CHECK_EQ(lk_tick(&fix).offload_count, 1);
    CHECK_EQ(calls, 2);
    calls = 0;
    lk_match(&fix, 7, lk_run_of(60, 4));
    CHECK_EQ(calls, 1);
    stop(&fix, &store);
}

TEST_MAIN(RUN(failed_offload_rolls_back_split_fragments),
    RUN(split_action_retargets_pending_external_offload),
    RUN(b22_an_offload_that_wrote_nothing_splits_nothing),
    RUN(component_commit_keeps_only_adopted_pages),
    RUN(a_load_that_raced_with_an_insert_loads_the_rest_step_by_step),
    RUN(a_load_whose_pages_all_raced_in_marks_the_path_and_loads_nothing),
    RUN(a_marker_stays_until_a_load_a_release_or_a_reset),
    RUN(an_empty_transfer_list_is_never_offered),
    RUN(linker_refuses_every_component_it_cannot_do_by_name),
    RUN(swa_reuse_policy_tracks_layout_without_a_tier_condition),
    RUN(a_declined_insert_leaves_every_slot_with_its_caller),
    RUN(cache_without_swa_needs_no_reprefill),
    RUN(sparse_retention_offers_only_the_windows_before_a_checkpoint),
    RUN(a_load_that_crosses_a_checkpoint_offers_nothing),
    RUN(a_retention_interval_off_the_page_grid_is_refused),
    RUN(retained_ranges_equal_a_rule_for_single_units),
    RUN(an_idle_tick_agrees_once_and_a_busy_one_twice))
