/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* Loads under way: pinned and hidden until they are there, gone when they fail. */
#include "linker_kit.h"

/* ---- Loads that end badly ------------------------------------------------------------------ */

static void queued_load(struct fix *fix, struct mem_store *store)
{
    mem_store_init(store);
    lk_store_run(store, (struct setup){0}, 4);
    lk_fix_init(fix, (struct setup){.hits = NO_OFFLOAD}, store);
    lk_match(fix, 7, lk_run_of(1, 4));
    lk_load_back(fix, 7);
    CHECK(fix->load.queued);
    CHECK_EQ(kvg_slots_available(fix->memory.slots), 60);
}

static void nothing_is_left(struct fix *fix, struct mem_store *store)
{
    struct kvg_linker_stats stats;
    kvg_linker_stats(fix->linker, &stats);
    CHECK_EQ(stats.markers + stats.pending_loads + stats.failed_loads, 0);
    CHECK_EQ(kvg_slots_available(fix->memory.slots), 64);
    lk_match(fix, 0, lk_run_of(1, 4));
    CHECK_EQ(fix->match.full_length, 0);
    lk_fix_fini(fix);
    mem_store_fini(store);
}

TEST(async_load_pins_node_until_completion)
{
    struct mem_store store;
    struct fix fix;
    queued_load(&fix, &store);
    CHECK_EQ(lk_lock_of(&fix, fix.load.last_node), 1);
    kvg_linker_start_loads(fix.linker);
    CHECK_EQ(lk_tick(&fix).load_count, 0);
    CHECK_EQ(lk_lock_of(&fix, fix.load.last_node), 1);
    mem_complete_loads(fix.transport, true);
    CHECK_EQ(lk_tick(&fix).load_count, 1);
    CHECK_EQ(lk_lock_of(&fix, fix.load.last_node), 0);
    lk_fix_fini(&fix);
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
    lk_match(&fix, 0, lk_run_of(1, 4));
    CHECK_EQ(fix.match.device_length, 0);
    mem_complete_loads(fix.transport, false);
    struct kvg_linker_tick out = lk_tick(&fix);
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
    lk_tick(&fix);
    CHECK_EQ(kvg_linker_settle(fix.linker), 1);
    lk_match(&fix, 0, lk_run_of(1, 4));
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
    lk_store_run(&store, (struct setup){0}, 4);
    lk_fix_init(&fix, (struct setup){.hits = NO_OFFLOAD}, &store);
    lk_match(&fix, 7, lk_run_of(1, 4));
    fix.transport->refuse_loads = 1;
    fix.load = (struct kvg_load_back){
        .request = 7, .node = fix.match.last_device_node, .length = 4};
    CHECK_EQ(kvg_linker_load_back(fix.linker, &fix.load, &fix.error), KVG_EIO);
    CHECK(strstr(fix.error.message, "Failed to queue the linker load") != NULL);
    nothing_is_left(&fix, &store);
}

/* Who looks at the locks while the transport stops. */
static struct {
    struct fix *fix;
    kvg_node_id offloaded;
    uint32_t load_locks, offload_locks;
} watch;
static void count_locks(struct mem_transport *transport)
{
    (void)transport;
    watch.load_locks = lk_lock_of(watch.fix, watch.fix->load.last_node);
    watch.offload_locks = lk_lock_of(watch.fix, watch.offloaded);
}

/* A load and an offload are under way. */
static void busy(struct fix *fix, struct mem_store *store)
{
    queued_load(fix, store);
    kvg_node_id node = lk_insert(fix, lk_run_of(50, 2));
    CHECK_EQ(kvg_linker_offload(fix->linker, &node, 1, 0, true, NULL), KVG_OK);
    watch.fix = fix;
    watch.offloaded = node;
    watch.load_locks = watch.offload_locks = 0;
    fix->transport->on_reset = count_locks;
}

static void all_is_quiet(struct fix *fix, struct mem_store *store)
{
    uint64_t wanted[KVG_COMPONENT_MAX] = {64};
    CHECK_EQ(watch.load_locks, 1);
    CHECK_EQ(watch.offload_locks, 1);
    fix->transport->on_reset = NULL;
    struct kvg_tree_node node = lk_get(fix, watch.offloaded);
    CHECK(!node.stored);
    CHECK_EQ(node.pending_write, KVG_NODE_NONE);
    CHECK_EQ(lk_lock_of(fix, watch.offloaded), 0);
    CHECK_EQ(kvg_cache_evict(fix->cache, wanted, NULL, NULL), KVG_OK);
    nothing_is_left(fix, store);
}

TEST(reset_quiesces_backend_before_releasing_pending_locks)
{
    struct mem_store store;
    struct kvg_linker_offload offload;
    struct fix fix;
    busy(&fix, &store);
    kvg_linker_reset(fix.linker);
    CHECK_EQ(fix.transport->resets, 1);
    CHECK(!kvg_linker_offload_get(fix.linker, 0, &offload));
    all_is_quiet(&fix, &store);
}

TEST(close_quiesces_backend_before_releasing_pending_loads)
{
    struct mem_store store;
    struct fix fix;
    busy(&fix, &store);
    kvg_linker_close(fix.linker);
    CHECK_EQ(fix.transport->closes, 1);
    all_is_quiet(&fix, &store);
}

TEST_MAIN(RUN(async_load_pins_node_until_completion),
    RUN(release_request_cancels_queued_load),
    RUN(a_failed_load_leaves_the_tree_before_anyone_can_match_it),
    RUN(a_failed_load_waits_for_the_request_that_holds_it),
    RUN(a_load_that_cannot_be_queued_leaves_nothing),
    RUN(reset_quiesces_backend_before_releasing_pending_locks),
    RUN(close_quiesces_backend_before_releasing_pending_loads))
