/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* Many leaves, random use of them, and every policy: each eviction takes the leaf that a scan
 * of all nodes finds to be the least.  Enough leaves that they fill, split and pack several
 * shelves.
 *
 *     prop_tree_order [seed [nodes]]
 */
#include "test.h"

#include <inttypes.h>

#include <kvgraft/tree.h>

#include "base/rng.h"
#include "fault_alloc.h"

static uint64_t seed = 1;
static uint32_t node_max = 1500;

struct order {
    struct kvg_tree *tree;
    struct kvg_actions actions;
    enum kvg_policy policy;
    bool sessions;
    struct kvi_rng rng;
    kvg_node_id *nodes;
    uint32_t count;
    uint32_t *names; /* First tokens, or 0 for a node below another. */
    kvg_node_id *locked;
    struct kvg_lock_receipt *receipts;
    uint32_t lock_count;
    uint32_t next_token;
    uint32_t steps;
};

static void must(kvg_err err)
{
    if (err != KVG_OK)
        fail_msg("%s", kvg_strerror(err));
}

static void check(struct order *order)
{
    struct kvg_error error;

    if (++order->steps % 64 == 0 && kvg_tree_check(order->tree, &error) != KVG_OK)
        fail_msg("seed %" PRIu64 ", policy %d, step %u: %s: %s", seed, (int)order->policy,
            order->steps, error.field, error.message);
}

/* One token, or, below a known one, two. */
static void insert(struct order *order)
{
    uint32_t below =
        order->count == 0 ? 0 : order->names[kvi_rng_below(&order->rng, order->count)];
    bool deep = below != 0 && kvi_rng_below(&order->rng, 4) == 0;
    uint32_t fresh = ++order->next_token;
    uint32_t tokens[2] = {deep ? below : fresh, fresh};
    uint32_t units = deep ? 2 : 1;
    struct kvg_span span = {fresh, KVG_BUFFER_POOL, units};
    struct kvg_tree_insert what;
    struct kvg_tree_inserted done;

    kvg_tree_insert_init(&what);
    what.key = (struct kvg_tree_key){.tokens = tokens, .token_count = units};
    what.value = &span;
    what.value_count = 1;
    what.priority = (int64_t)kvi_rng_below(&order->rng, 3);
    must(kvg_tree_insert_begin(order->tree, &what, &order->actions, &done, NULL));
    kvg_actions_clear(&order->actions);
    order->names[order->count] = deep ? 0 : fresh;
    order->nodes[order->count++] = done.last_node;
}

/* A turn of one of 16 conversations ends somewhere, or one ends. */
static void talk(struct order *order)
{
    char letter = (char)('a' + kvi_rng_below(&order->rng, 16));
    struct kvg_str id = {&letter, 1};
    kvg_node_id node = order->nodes[kvi_rng_below(&order->rng, order->count)];
    uint64_t number;
    bool held;

    must(kvg_tree_session_ensure(order->tree, id, &number, NULL));
    kvg_err err = kvg_tree_session_touch(order->tree, id, number, node, &held, NULL);
    if (err == KVG_ELIMIT || kvi_rng_below(&order->rng, 40) == 0)
        must(kvg_tree_session_close(order->tree, id, &number, NULL));
    else
        must(err);
}

static void touch(struct order *order)
{
    if (order->sessions && kvi_rng_below(&order->rng, 3) == 0) {
        talk(order);
        return;
    }
    uint32_t name = order->names[kvi_rng_below(&order->rng, order->count)];
    struct kvg_tree_key key = {.tokens = &name, .token_count = 1};
    struct kvg_span span = {0, KVG_BUFFER_POOL, 1};
    struct kvg_tree_match match;
    struct kvg_tree_insert what;
    struct kvg_tree_inserted done;

    if (name == 0)
        return;
    if (kvi_rng_below(&order->rng, 4) != 0) {
        must(kvg_tree_match_prefix(order->tree, &key, &order->actions, &match, NULL));
        return;
    }
    kvg_tree_insert_init(&what); /* Counts a hit. */
    what.key = key;
    what.value = &span;
    what.value_count = 1;
    must(kvg_tree_insert_begin(order->tree, &what, &order->actions, &done, NULL));
    kvg_actions_clear(&order->actions);
}

static void lock(struct order *order)
{
    kvg_node_id node = order->nodes[kvi_rng_below(&order->rng, order->count)];

    must(kvg_tree_lock(order->tree, node, 0, &order->receipts[order->lock_count], NULL));
    order->locked[order->lock_count++] = node;
}

static void unlock(struct order *order)
{
    uint32_t i = (uint32_t)kvi_rng_below(&order->rng, order->lock_count);

    must(
        kvg_tree_unlock(order->tree, order->locked[i], &order->receipts[i], false, NULL));
    order->locked[i] = order->locked[--order->lock_count];
    order->receipts[i] = order->receipts[order->lock_count];
}

static uint64_t rank_of(enum kvg_policy policy, const struct kvg_tree_node *node)
{
    switch (policy) {
    case KVG_POLICY_LFU:
        return node->hits;
    case KVG_POLICY_FIFO:
        return node->creation;
    case KVG_POLICY_FILO:
        return ~node->creation;
    case KVG_POLICY_MRU:
        return ~node->last_access;
    case KVG_POLICY_PRIORITY:
        return (uint64_t)node->priority;
    case KVG_POLICY_SLRU:
        return node->hits >= 2;
    default:
        return 0;
    }
}

/* The place of the leaf that should go, or `count`. */
static uint32_t expected(const struct order *order)
{
    uint32_t best = order->count;
    uint32_t best_turns = 0;
    uint64_t best_rank = 0;
    uint64_t best_access = 0;

    for (uint32_t i = 0; i < order->count; i++) {
        struct kvg_tree_node node;
        must(kvg_tree_node_get(order->tree, order->nodes[i], &node));
        if (!node.device_leaf)
            continue;
        uint32_t turns = node.session_count[KVG_COMPONENT_FULL];
        uint64_t rank = rank_of(order->policy, &node);
        if (best == order->count || turns < best_turns ||
            (turns == best_turns &&
                (rank < best_rank ||
                    (rank == best_rank && node.last_access < best_access)))) {
            best = i;
            best_turns = turns;
            best_rank = rank;
            best_access = node.last_access;
        }
    }
    return best;
}

/* False when there was none. */
static bool evict(struct order *order)
{
    uint32_t want = expected(order);
    bool found = want != order->count;
    struct kvg_tree_evicted step;

    must(kvg_tree_evict_start(order->tree, KVG_COMPONENT_FULL, 1, NULL));
    must(kvg_tree_evict_next(
        order->tree, KVG_COMPONENT_FULL, 0, &order->actions, &step, NULL));
    if (step.node != (found ? order->nodes[want] : KVG_NODE_NONE))
        fail_msg("seed %" PRIu64 ", policy %d, step %u: another leaf went", seed,
            (int)order->policy, order->steps);
    if (step.node != KVG_NODE_NONE) {
        must(kvg_tree_evict_leaf(
            order->tree, step.node, false, &order->actions, &step, NULL));
        order->nodes[want] = order->nodes[--order->count];
        order->names[want] = order->names[order->count];
    }
    kvg_actions_clear(&order->actions);
    must(kvg_tree_evict_end(order->tree, KVG_COMPONENT_FULL, NULL));
    return found;
}

/* `counts` of inserts, touches, locks, unlocks and evictions, mixed. */
static void stir(struct order *order, const uint32_t counts[5])
{
    uint32_t left[5];
    uint32_t sum = 0;

    for (int i = 0; i < 5; i++) {
        left[i] = counts[i];
        sum += counts[i];
    }
    for (; sum != 0; sum--) {
        uint64_t draw = kvi_rng_below(&order->rng, sum);
        int op = 0;
        while (draw >= left[op])
            draw -= left[op++];
        left[op]--;
        if (op == 0 && order->count < node_max)
            insert(order);
        else if (op == 1 && order->count != 0)
            touch(order);
        else if (op == 2 && order->count != 0 && order->lock_count < node_max)
            lock(order);
        else if (op == 3 && order->lock_count != 0)
            unlock(order);
        else if (op == 4)
            (void)evict(order);
        check(order);
    }
}

static void run_policy(enum kvg_policy policy, bool sessions)
{
    struct order order = {
        .policy = policy, .sessions = sessions, .rng = {seed + (uint64_t)policy}};
    struct kvg_tree_options options;
    struct fault_alloc fault;
    uint32_t n = node_max;

    fault_alloc_init(&fault);
    kvg_tree_options_init(&options);
    options.policy = policy;
    options.sessions = sessions;
    options.seed = seed;
    must(kvg_tree_new(&fault.alloc, &options, &order.tree, NULL));
    kvg_actions_init(&order.actions, &fault.alloc);
    order.nodes = calloc(n, sizeof(*order.nodes));
    order.names = calloc(n, sizeof(*order.names));
    order.locked = calloc(n, sizeof(*order.locked));
    order.receipts = calloc(n, sizeof(*order.receipts));

    stir(&order, (uint32_t[]){n, n / 4, 0, 0, n / 16});        /* It fills; */
    stir(&order, (uint32_t[]){0, n, n / 2, 0, 0});             /* is used; half is held */
    stir(&order, (uint32_t[]){0, n / 4, 0, 0, n / 2});         /* while others go; */
    stir(&order, (uint32_t[]){0, 0, 0, n, 0});                 /* the held come back */
    stir(&order, (uint32_t[]){n / 2, n, n / 8, n / 8, n / 4}); /* among new ones. */
    while (order.lock_count != 0)
        unlock(&order);
    while (order.count != 0 && evict(&order))
        check(&order);
    CHECK_EQ(order.count, 0);

    free(order.nodes);
    free(order.names);
    free(order.locked);
    free(order.receipts);
    kvg_actions_fini(&order.actions);
    kvg_tree_free(order.tree);
    CHECK_EQ(fault.live_bytes, 0);
}

TEST(each_eviction_takes_the_leaf_that_a_scan_finds)
{
    for (int policy = 0; policy < KVG_POLICY_COUNT; policy++)
        run_policy((enum kvg_policy)policy, false);
}

TEST(with_conversations_it_takes_what_fewest_come_back_for)
{
    for (int policy = 0; policy < KVG_POLICY_COUNT; policy++)
        run_policy((enum kvg_policy)policy, true);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        RUN(each_eviction_takes_the_leaf_that_a_scan_finds),
        RUN(with_conversations_it_takes_what_fewest_come_back_for)};

    seed = argc > 1 ? strtoull(argv[1], NULL, 10) : kvt_seed(seed);
    if (argc > 2)
        node_max = (uint32_t)strtoul(argv[2], NULL, 10);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
