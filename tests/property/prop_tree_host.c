/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* Random operations with a host tier, under write-through and write-back: inserts, matches, writes,
 * demotions, loads back, prefetched tails, locks of both tiers, evictions of both, host pools
 * that are full just then.  After every operation the tree is checked, every slot of every pool
 * has exactly one owner, a value of the tree or the free list, and what the tiers hold is counted
 * anew: nothing is in the tree that nobody inserted, and what is locked is still there.
 *
 *     prop_tree_host [seed [operations]]
 */
#include "test.h"

#include <kvgraft/tree.h>

#include "base/rng.h"
#include "fault_alloc.h"

enum {
    SLOTS = 2048,
    UNITS = 40,
    LOCKS = 6,
    WINDOW = 5,
    SPANS = 96
};

/* Pools: FULL, SWA and MAMBA slots on device and on host. */
static uint8_t owned[3][KVG_TIER_COUNT][SLOTS];
static uint64_t content[3][KVG_TIER_COUNT]
                       [SLOTS];   /* Which prompt's beginning, as a hash. */
static uint32_t window_of[SLOTS]; /* FULL device slot to SWA device slot. */

static struct fault_alloc fault;
static struct kvg_tree *tree;
static struct kvg_actions actions;
static struct kvg_error error;
static struct kvi_rng rng;
static bool has_swa, has_state, write_back;
static uint64_t seed = 1;
static uint32_t world; /* Of a seed: components, page size, pairs, write-back. */
static uint64_t operations = 400;

struct lock {
    bool used, host;
    kvg_node_id node;
    struct kvg_lock_receipt receipt;
};
static struct lock locks[LOCKS];

static void must(kvg_err err)
{
    if (err != KVG_OK)
        fail_msg(
            "seed %llu, world %u: %s", (unsigned long long)seed, world, error.message);
}

static uint32_t take(uint32_t component, enum kvg_tier tier)
{
    for (uint32_t i = 1; i < SLOTS; i++) {
        if (!owned[component][tier][i]) {
            owned[component][tier][i] = 1;
            return i;
        }
    }
    fail_msg("a pool is empty");
    return 0;
}

static void give(uint32_t component, enum kvg_tier tier, uint64_t slot)
{
    if (slot == 0 || slot >= SLOTS || !owned[component][tier][slot])
        fail_msg("seed %llu: slot %llu of component %u, tier %d freed twice",
            (unsigned long long)seed, (unsigned long long)slot, component, (int)tier);
    owned[component][tier][slot] = 0;
}

static void drop_window(uint64_t full)
{
    if (window_of[full] != 0)
        give(KVG_COMPONENT_SWA, KVG_TIER_DEVICE, window_of[full]);
    window_of[full] = 0;
}

static uint64_t slot_at(uint32_t first, uint32_t count, uint32_t position)
{
    for (uint32_t i = first; i < first + count; i++) {
        if (position < actions.spans[i].length)
            return actions.spans[i].offset + position;
        position -= actions.spans[i].length;
    }
    return 0;
}

static void publish(const struct kvg_action *a)
{
    struct kvg_span spans[SPANS];
    uint32_t count = 0;

    for (uint64_t slot; (slot = slot_at(a->span_first, a->span_count, count)) != 0;
         count++) {
        if (a->kind == KVG_ACTION_RECOVER_SWA_WITH_LOCKED_FULL) {
            uint64_t incoming = slot_at(a->span2_first, a->span2_count, count);
            window_of[slot] = window_of[incoming];
            window_of[incoming] = 0;
            give(KVG_COMPONENT_FULL, KVG_TIER_DEVICE, incoming);
        }
        assert_true(window_of[slot] != 0);
        spans[count] = (struct kvg_span){window_of[slot], KVG_BUFFER_POOL, 1};
    }
    must(kvg_tree_set_device_value(
        tree, a->node, KVG_COMPONENT_SWA, spans, count, &error));
}

static void free_slots(const struct kvg_action *a)
{
    uint64_t slot;

    for (uint32_t i = 0; (slot = slot_at(a->span_first, a->span_count, i)) != 0; i++) {
        switch (a->kind) {
        case KVG_ACTION_FREE_DEVICE:
            drop_window(slot);
            give(KVG_COMPONENT_FULL, KVG_TIER_DEVICE, slot);
            break;
        case KVG_ACTION_FREE_DEVICE_FULL_ONLY:
            assert_int_equal(window_of[slot], 0);
            give(KVG_COMPONENT_FULL, KVG_TIER_DEVICE, slot);
            break;
        case KVG_ACTION_FREE_COMPONENT_DEVICE:
            if (a->component == KVG_COMPONENT_SWA)
                drop_window(slot);
            else
                give(a->component, KVG_TIER_DEVICE, slot);
            break;
        case KVG_ACTION_FREE_COMPONENT_HOST:
            give(a->component, KVG_TIER_HOST, slot);
            break;
        default:
            break;
        }
    }
}

static void do_actions(void)
{
    for (uint32_t i = 0; i < actions.count; i++) {
        const struct kvg_action *a = &actions.items[i];
        if (a->kind == KVG_ACTION_SWA_REBUILD ||
            a->kind == KVG_ACTION_RECOVER_SWA_WITH_LOCKED_FULL) {
            publish(a);
        } else if (a->kind == KVG_ACTION_REBUILD_MAPPING) {
            uint64_t full;
            for (uint32_t j = 0; (full = slot_at(a->span_first, a->span_count, j)) != 0;
                 j++)
                window_of[full] = (uint32_t)slot_at(a->span2_first, a->span2_count, j);
        } else {
            free_slots(a);
        }
    }
    kvg_actions_clear(&actions);
}

/* ---- Accounting ---------------------------------------------------------------------------- */

static uint8_t seen[3][KVG_TIER_COUNT][SLOTS];

static void see(kvg_node_id node)
{
    struct kvg_span spans[SPANS];

    for (uint32_t component = 0; component < 3; component++) {
        for (enum kvg_tier tier = 0; tier < KVG_TIER_COUNT; tier++) {
            size_t count = kvg_tree_node_value(tree, node, component, tier, spans, SPANS);
            assert_true(count <= SPANS);
            for (size_t i = 0; i < count; i++) {
                for (uint32_t j = 0; j < spans[i].length; j++)
                    seen[component][tier][spans[i].offset + j]++;
            }
        }
    }
    for (kvg_node_id child = kvg_tree_first_child(tree, node); child != KVG_NODE_NONE;
         child = kvg_tree_next_sibling(tree, child))
        see(child);
}

static void account(uint64_t step)
{
    if (kvg_tree_check(tree, &error) != KVG_OK)
        fail_msg("seed %llu, world %u, operation %llu: %s: %s", (unsigned long long)seed,
            world, (unsigned long long)step, error.field, error.message);
    memset(seen, 0, sizeof(seen));
    see(kvg_tree_root(tree));
    if (memcmp(seen, owned, sizeof(seen)) != 0)
        fail_msg("seed %llu, world %u, operation %llu: a slot has no owner, or two",
            (unsigned long long)seed, world, (unsigned long long)step);
}

/* ---- Operations ---------------------------------------------------------------------------- */

struct sequence {
    uint32_t tokens[UNITS];
    uint32_t count;
};

static struct sequence draw(void)
{
    struct sequence s;
    uint32_t turn = (uint32_t)kvi_rng_below(&rng, UNITS);
    uint32_t branch = (uint32_t)kvi_rng_below(&rng, 4);

    s.count = 1 + (uint32_t)kvi_rng_below(&rng, UNITS);
    for (uint32_t i = 0; i < s.count; i++)
        s.tokens[i] = (i < turn ? 0 : 1 + branch) * 100 + i % 7;
    return s;
}

/* What a slot of token `position` was computed from: it and all before it. */
static uint64_t content_of(const struct sequence *s, uint64_t position)
{
    uint64_t hash = 1;

    for (uint64_t i = 0; i <= position; i++)
        hash = kvi_mix64(hash + s->tokens[i] + 1);
    return hash;
}

/* The units of a sequence that the tree can keep: whole pages. */
static uint64_t whole_units(const struct sequence *s)
{
    uint64_t units = kvg_tree_is_eagle(tree) ? s->count - 1 : s->count;

    return units - units % kvg_tree_page_size(tree);
}

/* Position `position` of what was matched: the very bytes that this prompt makes, and so in the
 * window if it reaches there. */
static void check_slot(
    const struct sequence *s, uint64_t length, uint64_t position, uint64_t slot)
{
    uint64_t wanted = content_of(s, position);
    bool in_window = has_swa && position + WINDOW >= length;

    if (content[KVG_COMPONENT_FULL][KVG_TIER_DEVICE][slot] != wanted ||
        (in_window &&
            (window_of[slot] == 0 ||
                content[KVG_COMPONENT_SWA][KVG_TIER_DEVICE][window_of[slot]] != wanted)))
        fail_msg("seed %llu, world %u: position %llu of %llu is not what was computed",
            (unsigned long long)seed, world, (unsigned long long)position,
            (unsigned long long)length);
}

static void check_match(const struct sequence *s, const struct kvg_tree_match *found)
{
    struct kvg_span state;
    uint64_t at = 0;

    for (size_t i = 0; i < found->device_span_count; i++)
        for (uint32_t j = 0; j < found->device_spans[i].length; j++)
            check_slot(s, found->device_length, at++, found->device_spans[i].offset + j);
    CHECK_EQ(at, found->device_length);
    if (!has_state || at == 0)
        return;
    CHECK_EQ(kvg_tree_node_value(tree, found->last_device_node, KVG_COMPONENT_MAMBA,
                 KVG_TIER_DEVICE, &state, 1),
        1);
    CHECK_EQ(content[KVG_COMPONENT_MAMBA][KVG_TIER_DEVICE][state.offset],
        content_of(s, at - 1));
}

static struct kvg_tree_match match(const struct sequence *s)
{
    struct kvg_tree_key key = {.tokens = s->tokens, .token_count = s->count};
    struct kvg_tree_match found;

    must(kvg_tree_match_prefix(tree, &key, &actions, &found, &error));
    do_actions();
    check_match(s, &found);
    return found;
}

static void insert(void)
{
    struct sequence s = draw();
    struct kvg_span spans[UNITS];
    struct kvg_tree_insert what;
    struct kvg_tree_inserted done;
    uint64_t page = kvg_tree_page_size(tree);

    kvg_tree_insert_init(&what);
    if (has_swa && kvi_rng_below(&rng, 3) == 0)
        what.evicted_length[KVG_COMPONENT_SWA] =
            kvi_rng_below(&rng, s.count + 1) / page * page;
    for (uint32_t i = 0; i < s.count; i++) {
        uint32_t slot = take(KVG_COMPONENT_FULL, KVG_TIER_DEVICE);
        spans[i] = (struct kvg_span){slot, KVG_BUFFER_POOL, 1};
        content[KVG_COMPONENT_FULL][KVG_TIER_DEVICE][slot] = content_of(&s, i);
        if (has_swa && i >= what.evicted_length[KVG_COMPONENT_SWA]) {
            window_of[slot] = take(KVG_COMPONENT_SWA, KVG_TIER_DEVICE);
            content[KVG_COMPONENT_SWA][KVG_TIER_DEVICE][window_of[slot]] =
                content_of(&s, i);
        }
    }
    what.key = (struct kvg_tree_key){.tokens = s.tokens, .token_count = s.count};
    what.value = spans;
    what.value_count = s.count;
    if (has_state) {
        what.mamba = (struct kvg_span){
            take(KVG_COMPONENT_MAMBA, KVG_TIER_DEVICE), KVG_BUFFER_POOL, 1};
        if (whole_units(&s) != 0)
            content[KVG_COMPONENT_MAMBA][KVG_TIER_DEVICE][what.mamba.offset] =
                content_of(&s, whole_units(&s) - 1);
    }
    must(kvg_tree_insert_begin(tree, &what, &actions, &done, &error));
    do_actions();
    while (!done.done) {
        must(kvg_tree_insert_resume(tree, &actions, &done, &error));
        do_actions();
    }
    if (has_state && done.mamba_exists)
        give(KVG_COMPONENT_MAMBA, KVG_TIER_DEVICE, what.mamba.offset);
    /* What is beyond the last whole page is the caller's. */
    for (uint64_t i = whole_units(&s); i < s.count; i++) {
        drop_window(spans[i].offset);
        give(KVG_COMPONENT_FULL, KVG_TIER_DEVICE, spans[i].offset);
    }
    /* All of it is there now; with windows it depends on what of them was left. */
    if (!has_swa)
        CHECK_EQ(match(&s).device_length, whole_units(&s));
}

/* New slots of a tier for every transfer, and copies of what the other tier has. */
static void fill(struct kvg_tree_transfer *transfers, size_t count, enum kvg_tier tier,
    struct kvg_span (*spans)[SPANS * 2])
{
    enum kvg_tier from = tier == KVG_TIER_DEVICE ? KVG_TIER_HOST : KVG_TIER_DEVICE;

    for (size_t i = 0; i < count; i++) {
        uint32_t component = transfers[i].component;
        uint32_t units = 0;

        for (size_t j = 0; j < transfers[i].span_count; j++) {
            struct kvg_span source = transfers[i].spans[j];

            for (uint32_t k = 0; k < source.length; k++, units++) {
                uint32_t slot = take(component, tier);

                assert_true(units < SPANS * 2);
                spans[i][units] = (struct kvg_span){slot, KVG_BUFFER_POOL, 1};
                content[component][tier][slot] =
                    content[component][from][source.offset + k];
            }
        }
        transfers[i].spans = spans[i];
        transfers[i].span_count = units;
    }
}

static void write_one(kvg_node_id node)
{
    struct kvg_tree_transfer transfers[KVG_COMPONENT_MAX];
    static struct kvg_span spans[KVG_COMPONENT_MAX][SPANS * 2];
    struct kvg_lock_receipt receipt;
    size_t count;

    must(kvg_tree_write_build(tree, node, transfers, &count, &error));
    if (count == 0)
        return;
    fill(transfers, count, KVG_TIER_HOST, spans);
    must(kvg_tree_write_commit(tree, transfers, count, &error));
    must(kvg_tree_lock(tree, node, 0, &receipt, &error));
    must(kvg_tree_write_mark(tree, &node, 1, node, &error));
    must(kvg_tree_write_finish(tree, &node, 1, node, &error));
    must(kvg_tree_unlock(tree, node, &receipt, false, &error));
}

/* A node and its ancestors, these first. */
static void write_path(kvg_node_id node)
{
    struct kvg_tree_node info;

    if (node == kvg_tree_root(tree))
        return;
    must(kvg_tree_node_get(tree, node, &info));
    write_path(info.parent);
    if (info.value_length[KVG_COMPONENT_FULL][KVG_TIER_DEVICE] != 0)
        write_one(node);
}

static void load(void)
{
    struct sequence s = draw();
    struct kvg_tree_match found = match(&s);
    struct kvg_tree_transfer transfers[KVG_COMPONENT_MAX];
    static struct kvg_span spans[KVG_COMPONENT_MAX][SPANS * 2];
    struct kvg_lock_receipt receipt;
    size_t count;

    if (found.best_match_node == found.last_device_node)
        return;
    kvg_node_id node = found.best_match_node;
    must(kvg_tree_lock(tree, node, 0, &receipt, &error));
    must(kvg_tree_load_build(tree, node, transfers, &count, &error));
    fill(transfers, count, KVG_TIER_DEVICE, spans);
    must(kvg_tree_load_commit(tree, node, transfers, count, &actions, &error));
    do_actions();
    must(kvg_tree_load_finish(tree, node, &error));
    must(kvg_tree_unlock(tree, node, &receipt, false, &error));
    struct kvg_tree_match now = match(&s);
    if (now.last_device_node != node)
        fail_msg("seed %llu: what was loaded is not matched", (unsigned long long)seed);
}

static void prefetch(void)
{
    struct sequence s = draw();
    struct kvg_span spans[UNITS];
    struct kvg_tree_host_insert what = {.struct_bytes = sizeof(what),
        .anchor = kvg_tree_root(tree),
        .key = {.tokens = s.tokens, .token_count = s.count},
        .value = spans,
        .value_count = s.count};
    struct kvg_tree_host_inserted out;

    for (uint32_t i = 0; i < s.count; i++) {
        spans[i] = (struct kvg_span){
            take(KVG_COMPONENT_FULL, KVG_TIER_HOST), KVG_BUFFER_POOL, 1};
        content[KVG_COMPONENT_FULL][KVG_TIER_HOST][spans[i].offset] = content_of(&s, i);
    }
    must(kvg_tree_insert_host(tree, &what, &actions, &out, &error));
    do_actions();
    bool kept = !out.dropped && out.prefix_length < out.total_length;
    for (uint32_t i = 0; i < s.count; i++) {
        if (!kept || i < out.prefix_length || i >= out.total_length)
            give(KVG_COMPONENT_FULL, KVG_TIER_HOST, spans[i].offset);
    }
}

/* Under write-back: the host pool may be full just then, and the leaf goes for good. */
static bool back_up_or_drop(kvg_node_id node, struct kvg_tree_evicted *step)
{
    if (kvi_rng_below(&rng, 4) == 0) {
        must(kvg_tree_drop_subtree(tree, node, &actions, step, &error));
        do_actions();
        return step->dropped;
    }
    write_one(node);
    must(kvg_tree_demote(tree, node, &actions, step, &error));
    do_actions();
    return true;
}

/* What a step of the walk asks for.  False: the walk cannot go on. */
static bool follow_step(uint32_t component, struct kvg_tree_evicted *step, uint64_t *done)
{
    kvg_node_id node = step->node;

    if (step->backup_node != KVG_NODE_NONE) {
        write_one(step->backup_node);
        must(kvg_tree_evict_finish_state(
            tree, component, step->backup_node, &actions, step, &error));
        do_actions();
        *done += step->evicted[component];
        return true;
    }
    if (node == KVG_NODE_NONE)
        return step->progress;
    if (kvg_tree_evict_leaf(tree, node, write_back, &actions, step, &error) != KVG_OK)
        return false; /* Unbacked, with host-only children. */
    do_actions();
    if (step->backup_wanted && !back_up_or_drop(node, step))
        return false;
    *done += step->evicted[component];
    return true;
}

static void evict(uint32_t component, uint64_t wanted)
{
    struct kvg_tree_evicted step;
    uint64_t done = 0;

    must(kvg_tree_evict_start(tree, component, wanted, &error));
    do {
        must(kvg_tree_evict_next(tree, component, done, &actions, &step, &error));
        do_actions();
        done += step.evicted[component];
    } while (follow_step(component, &step, &done));
    must(kvg_tree_evict_end(tree, component, &error));
}

static void lock_or_unlock(void)
{
    struct lock *lock = &locks[kvi_rng_below(&rng, LOCKS)];

    if (lock->used) {
        must(lock->host
                 ? kvg_tree_unlock_host(tree, lock->node, &lock->receipt, &error)
                 : kvg_tree_unlock(tree, lock->node, &lock->receipt, false, &error));
        lock->used = false;
        return;
    }
    struct sequence s = draw();
    struct kvg_tree_match found = match(&s);
    lock->host = kvi_rng_below(&rng, 2) == 0;
    lock->node = found.best_match_node;
    struct kvg_tree_node info;
    must(kvg_tree_node_get(tree, lock->node, &info));
    /* Without a host value there is nothing to lock there. */
    if (lock->host && info.value_length[KVG_COMPONENT_FULL][KVG_TIER_HOST] == 0)
        return;
    lock->used = true;
    must(lock->host ? kvg_tree_lock_host(tree, lock->node, &lock->receipt, &error)
                    : kvg_tree_lock(tree, lock->node, 0, &lock->receipt, &error));
}

static uint32_t any_component(void)
{
    uint64_t draw_of = kvi_rng_below(&rng, 3);

    return draw_of == 1 && has_swa     ? KVG_COMPONENT_SWA
           : draw_of == 2 && has_state ? KVG_COMPONENT_MAMBA
                                       : KVG_COMPONENT_FULL;
}

static void one_operation(void)
{
    struct kvg_tree_evicted out;
    uint64_t kind = kvi_rng_below(&rng, 12);

    if (kind < 4) {
        insert();
    } else if (kind < 6) {
        struct sequence s = draw();
        write_path(match(&s).last_device_node);
    } else if (kind == 6) {
        load();
    } else if (kind == 7) {
        prefetch();
    } else if (kind == 8) {
        lock_or_unlock();
    } else if (kind == 9) {
        must(kvg_tree_evict_host(
            tree, any_component(), 1 + kvi_rng_below(&rng, 12), &actions, &out, &error));
        do_actions();
    } else {
        evict(any_component(), 1 + kvi_rng_below(&rng, 30));
    }
}

static void run(uint32_t components, uint32_t page_size, bool eagle)
{
    struct kvg_tree_options options;

    memset(owned, 0, sizeof(owned));
    memset(window_of, 0, sizeof(window_of));
    memset(locks, 0, sizeof(locks));
    has_swa = (components & KVG_COMPONENT_BIT(KVG_COMPONENT_SWA)) != 0;
    has_state = (components & KVG_COMPONENT_BIT(KVG_COMPONENT_MAMBA)) != 0;
    fault_alloc_init(&fault);
    kvg_tree_options_init(&options);
    options.components = components;
    options.page_size = page_size;
    options.window = WINDOW;
    options.eagle = eagle;
    options.events = true;
    must(kvg_tree_new(&fault.alloc, &options, &tree, &error));
    kvg_actions_init(&actions, &fault.alloc);
    struct kvg_tree_settings *settings = kvg_tree_settings(tree);
    settings->host_tier = true;
    settings->swa_host_pool = has_swa;
    settings->write_back = write_back;
    settings->write_through_hits = UINT64_MAX;
    for (uint64_t step = 0; step < operations; step++) {
        one_operation();
        account(step);
        kvg_tree_events_take(tree);
    }
    kvg_actions_fini(&actions);
    kvg_tree_free(tree);
    CHECK_EQ(fault.live_bytes, 0);
}

TEST(no_slot_is_lost_or_shared_between_the_tiers)
{
    static const uint32_t full = KVG_COMPONENT_BIT(KVG_COMPONENT_FULL);
    static const uint32_t swa = KVG_COMPONENT_BIT(KVG_COMPONENT_SWA);
    static const uint32_t state = KVG_COMPONENT_BIT(KVG_COMPONENT_MAMBA);
    const uint32_t sets[] = {full, full | swa, full | state, full | swa | state};

    static const uint32_t page_sizes[] = {1, 2, 4, 16};

    for (world = 0; world < 4 * 4 * 2 * 2; world++) {
        rng = (struct kvi_rng){seed * 100 + world};
        write_back = world / 32 != 0;
        run(sets[world % 4], page_sizes[world / 4 % 4], world / 16 % 2 != 0);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {RUN(no_slot_is_lost_or_shared_between_the_tiers)};

    seed = argc > 1 ? strtoull(argv[1], NULL, 10) : kvt_seed(seed);
    if (argc > 2)
        operations = strtoull(argv[2], NULL, 10);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
