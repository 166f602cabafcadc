/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* A bounded tree for a million cycles of insert, match, lock and evict: memory is flat from the
 * first tenth to the end, and when all is evicted only the root is left.  The same with
 * conversations, once as many ids are closed as are remembered.
 *
 *     soak_tree [cycles]
 */
#include "test.h"

#include <kvgraft/tree.h>

#include "base/rng.h"
#include "fault_alloc.h"

enum {
    UNITS = 24,
    SLOTS_MAX = 20000
};

static uint64_t cycles = 1000000;

struct soak {
    struct kvg_tree *tree;
    struct kvg_actions actions;
    struct kvi_rng rng;
    uint64_t next_slot;
    uint64_t conversations; /* So many began; none is older than 100 others. */
    bool sessions;
};

static void must(kvg_err err)
{
    if (err != KVG_OK)
        fail_msg("%s", kvg_strerror(err));
}

static void evict(struct soak *soak, uint64_t wanted)
{
    struct kvg_tree_evicted step;
    uint64_t done = 0;

    must(kvg_tree_evict_start(soak->tree, KVG_COMPONENT_FULL, wanted, NULL));
    for (;;) {
        must(kvg_tree_evict_next(
            soak->tree, KVG_COMPONENT_FULL, done, &soak->actions, &step, NULL));
        if (step.node == KVG_NODE_NONE)
            break;
        must(kvg_tree_evict_leaf(
            soak->tree, step.node, false, &soak->actions, &step, NULL));
        done += step.evicted[KVG_COMPONENT_FULL];
        kvg_actions_clear(&soak->actions);
    }
    must(kvg_tree_evict_end(soak->tree, KVG_COMPONENT_FULL, NULL));
}

/* A turn of one of the last 100 conversations; sometimes one ends and another begins. */
static void turn(struct soak *soak, kvg_node_id node)
{
    uint64_t number = soak->conversations + kvi_rng_below(&soak->rng, 100);
    struct kvg_str id = {(const char *)&number, sizeof(number)};
    uint64_t generation;
    bool held;

    must(kvg_tree_session_ensure(soak->tree, id, &generation, NULL));
    kvg_err err = kvg_tree_session_touch(soak->tree, id, generation, node, &held, NULL);
    if (err != KVG_ELIMIT)
        must(err);
    if (kvi_rng_below(&soak->rng, 4) != 0)
        return;
    number = soak->conversations++;
    must(kvg_tree_session_close(soak->tree, id, &generation, NULL));
}

/* A long-lived head, then what is different; slots come in pieces, as from a worn pool. */
static void insert(struct soak *soak)
{
    uint32_t tokens[UNITS];
    struct kvg_span spans[UNITS];
    struct kvg_tree_insert what;
    struct kvg_tree_inserted done;
    uint64_t head = kvi_rng_below(&soak->rng, UNITS);
    char salt[8];

    for (uint32_t i = 0; i < UNITS; i++) {
        tokens[i] = i < head ? i : (uint32_t)kvi_rng_below(&soak->rng, 50);
        spans[i] = (struct kvg_span){soak->next_slot, KVG_BUFFER_POOL, 1};
        soak->next_slot += 1 + kvi_rng_below(&soak->rng, 2);
    }
    kvg_tree_insert_init(&what);
    what.key = (struct kvg_tree_key){.tokens = tokens, .token_count = UNITS};
    if (kvi_rng_below(&soak->rng, 8) == 0) {
        snprintf(salt, sizeof(salt), "%u", (unsigned)kvi_rng_below(&soak->rng, 100));
        what.key.space.cache_salt = (struct kvg_str){salt, strlen(salt)};
    }
    what.value = spans;
    what.value_count = UNITS;
    must(kvg_tree_insert_begin(soak->tree, &what, &soak->actions, &done, NULL));
    assert_true(done.done);
    kvg_actions_clear(&soak->actions);
    if (kvi_rng_below(&soak->rng, 3) == 0) {
        struct kvg_lock_receipt receipt;
        must(kvg_tree_lock(soak->tree, done.last_node, 0, &receipt, NULL));
        must(kvg_tree_unlock(soak->tree, done.last_node, &receipt, false, NULL));
    }
    if (soak->sessions)
        turn(soak, done.last_node);
}

static void run(bool sessions)
{
    struct fault_alloc fault;
    struct kvg_tree_options options;
    struct soak soak = {.rng = {42}, .sessions = sessions};
    struct kvg_error error;
    /* Closed ids are remembered up to a bound, which one cycle in four comes nearer to. */
    uint64_t early = sessions && cycles / 10 < 5 * KVG_TREE_SESSIONS_CLOSED
                         ? 5 * KVG_TREE_SESSIONS_CLOSED
                         : cycles / 10;
    size_t early_peak = 0;
    size_t late_peak = 0;

    fault_alloc_init(&fault);
    kvg_tree_options_init(&options);
    options.seed = 1;
    options.sessions = sessions;
    must(kvg_tree_new(&fault.alloc, &options, &soak.tree, NULL));
    kvg_actions_init(&soak.actions, &fault.alloc);
    for (uint64_t cycle = 0; cycle < cycles; cycle++) {
        insert(&soak);
        uint64_t held = kvg_tree_evictable(soak.tree, KVG_COMPONENT_FULL);
        if (held > SLOTS_MAX)
            evict(&soak, held - SLOTS_MAX);
        size_t *peak = cycle < early ? &early_peak : &late_peak;
        if (fault.live_bytes > *peak)
            *peak = fault.live_bytes;
    }
    if (kvg_tree_check(soak.tree, &error) != KVG_OK)
        fail_msg("%s: %s", error.field, error.message);
    print_message("peak memory: %zu bytes early, %zu late\n", early_peak, late_peak);
    assert_true(late_peak <= early_peak + early_peak / 10);
    evict(&soak, UINT64_MAX);
    struct kvg_tree_stats stats;
    kvg_tree_stats(soak.tree, &stats);
    CHECK_EQ(stats.nodes, 1);
    kvg_actions_fini(&soak.actions);
    kvg_tree_free(soak.tree);
    CHECK_EQ(fault.live_bytes, 0);
}

TEST(a_million_cycles_leave_memory_flat_and_the_root_alone)
{
    run(false);
}

TEST(so_do_a_million_turns_of_conversations_that_end)
{
    run(true);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        RUN(a_million_cycles_leave_memory_flat_and_the_root_alone),
        RUN(so_do_a_million_turns_of_conversations_that_end)};

    if (argc > 1)
        cycles = strtoull(argv[1], NULL, 10);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
