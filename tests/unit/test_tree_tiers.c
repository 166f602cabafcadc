/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* Two tiers, case by case: loads that meet loads, what write-back keeps and write-through drops,
 * events of both tiers; and the plain cases of states and windows on device. */
#include "test.h"
#include "tree_kit.h"

#define HOST_LIST(kit) kit_list_text(kit, KVG_COMPONENT_SWA, KVG_TIER_HOST)
#define DEVICE_LIST(kit) kit_list_text(kit, KVG_COMPONENT_SWA, KVG_TIER_DEVICE)

static struct kit *new_kit(uint32_t components, uint32_t window, uint32_t page_size)
{
    return kit_new_tiers((struct kit_setup){.components = components,
        .window = window,
        .page_size = page_size,
        .events = true});
}

static const char *demote(struct kit *kit, uint64_t number)
{
    struct kvg_tree_evicted out;

    kit_must(kit, kvg_tree_demote(kit->tree, kit_node(kit, number), &kit->actions, &out,
                      &kit->error));
    kit_clear(kit);
    return kit_do_actions(kit);
}

/* Node n is the unit n - 1 at slot 8 + n: a chain of `count` units, node a unit. */
static void chain(struct kit *kit, uint32_t count)
{
    uint32_t tokens[16], slots[16];

    for (uint32_t i = 0; i < count; i++) {
        tokens[i] = i + 1;
        slots[i] = 10 + i;
        kit_insert(
            kit, (struct kit_insert){
                     .tokens = {tokens, i + 1}, .slots = {slots, i + 1}, .prev = i});
    }
}

static uint32_t host(struct kit *kit, uint64_t number, uint32_t component)
{
    return (uint32_t)kit_get(kit, number).value_length[component][KVG_TIER_HOST];
}

static uint32_t device(struct kit *kit, uint64_t number, uint32_t component)
{
    return (uint32_t)kit_get(kit, number).value_length[component][KVG_TIER_DEVICE];
}

/* ---- Loads --------------------------------------------------------------------------------- */

TEST(hicache_swa_load_back_min_suffix)
{
    struct kit *kit = new_kit(FULL | SWA, 3, 1);
    struct kvg_tree_transfer t[KVG_COMPONENT_MAX];
    struct kvg_span spans[KVG_COMPONENT_MAX];
    uint32_t base = 500;
    size_t count;

    chain(kit, 5);
    for (uint64_t n = 2; n <= 6; n++)
        kit_backup(kit, n);
    for (uint64_t n = 6; n >= 2; n--)
        demote(kit, n);
    CHECK_STR(HOST_LIST(kit), "#2 #3 #4 #5 #6");
    kit_must(
        kit, kvg_tree_load_build(kit->tree, kit_node(kit, 6), t, &count, &kit->error));
    CHECK_EQ(count, 2);
    CHECK_EQ(t[0].node_count, 5);
    CHECK_EQ(t[1].component, KVG_COMPONENT_SWA);
    CHECK_EQ(t[1].node_count, 3);
    for (uint64_t i = 0; i < 3; i++)
        CHECK_EQ(t[1].nodes[i], kit_node(kit, 4 + i));
    /* It comes back: lists, mapping, sizes. */
    kit_give_slots(t, count, spans, &base);
    kit_must(kit, kvg_tree_load_commit(
                      kit->tree, kit_node(kit, 6), t, count, &kit->actions, &kit->error));
    CHECK_STR((kit_clear(kit), kit_do_actions(kit)), "map(502 503 504 / 505 506 507)");
    CHECK_STR(DEVICE_LIST(kit), "#6 #5 #4");
    CHECK_STR(HOST_LIST(kit), "#2 #3");
    CHECK_EQ(kvg_tree_evictable(kit->tree, KVG_COMPONENT_SWA), 3);
    CHECK_EQ(kvg_tree_evictable(kit->tree, KVG_COMPONENT_FULL), 5);
    kit_free(kit);
}

TEST(under_write_through_a_load_pins_nothing_and_leaves_duplicates)
{
    struct kit *kit = new_kit(FULL, 0, 1);
    struct kvg_tree_transfer t[KVG_COMPONENT_MAX];
    struct kvg_span spans[KVG_COMPONENT_MAX];
    struct kvg_tree_evicted out;
    uint32_t base = 500;
    size_t count;

    chain(kit, 1);
    kit_backup(kit, 2);
    demote(kit, 2);
    kit_must(
        kit, kvg_tree_load_build(kit->tree, kit_node(kit, 2), t, &count, &kit->error));
    kit_give_slots(t, count, spans, &base);
    kit_must(kit, kvg_tree_load_commit(
                      kit->tree, kit_node(kit, 2), t, count, &kit->actions, &kit->error));
    CHECK_EQ(kit_get(kit, 2).pending_load, KVG_NODE_NONE);
    kit_must(kit, kvg_tree_load_finish(kit->tree, kit_node(kit, 2), &kit->error));
    CHECK_EQ(host(kit, 2, KVG_COMPONENT_FULL), 1);
    kit_must(kit, kvg_tree_evict_host(kit->tree, KVG_COMPONENT_FULL, 1, &kit->actions,
                      &out, &kit->error));
    kit_free(kit);
}

TEST(under_write_back_a_load_keeps_its_host_copies_and_refuses_another_anchor)
{
    struct kit *kit = new_kit(FULL, 0, 1);
    struct kvg_tree_transfer first[KVG_COMPONENT_MAX], second[KVG_COMPONENT_MAX];
    struct kvg_span first_spans[1], second_spans[1];
    kvg_node_id nodes[1];
    struct kvg_tree_evicted out;
    uint32_t base = 500;
    size_t count;

    kvg_tree_settings(kit->tree)->write_back = true;
    chain(kit, 2);
    kit_backup(kit, 2);
    kit_backup(kit, 3);
    demote(kit, 3);
    demote(kit, 2);
    kit_must(kit,
        kvg_tree_load_build(kit->tree, kit_node(kit, 2), second, &count, &kit->error));
    CHECK_EQ(count, 1);
    nodes[0] = second[0].nodes[0];
    second[0].nodes = nodes;
    kit_give_slots(second, 1, second_spans, &base);
    kit_must(kit,
        kvg_tree_load_build(kit->tree, kit_node(kit, 3), first, &count, &kit->error));
    kit_give_slots(first, 1, first_spans, &base);
    kit_must(kit, kvg_tree_load_commit(kit->tree, kit_node(kit, 3), first, count,
                      &kit->actions, &kit->error));
    CHECK_EQ(kit_get(kit, 2).pending_load, kit_node(kit, 3));
    CHECK_EQ(kvg_tree_load_commit(
                 kit->tree, kit_node(kit, 2), second, 1, &kit->actions, &kit->error),
        KVG_ESTATE);
    /* Nothing is reclaimed while it runs, and then the duplicates go. */
    kit_must(kit, kvg_tree_evict_host(kit->tree, KVG_COMPONENT_FULL, 2, &kit->actions,
                      &out, &kit->error));
    CHECK_EQ(out.evicted[KVG_COMPONENT_FULL], 0);
    kit_must(kit, kvg_tree_load_finish(kit->tree, kit_node(kit, 3), &kit->error));
    CHECK_EQ(kit_get(kit, 2).pending_load, KVG_NODE_NONE);
    kit_must(kit, kvg_tree_evict_host(kit->tree, KVG_COMPONENT_FULL, 2, &kit->actions,
                      &out, &kit->error));
    CHECK_EQ(out.evicted[KVG_COMPONENT_FULL], 2);
    CHECK_EQ(host(kit, 2, KVG_COMPONENT_FULL), 0);
    CHECK_EQ(device(kit, 2, KVG_COMPONENT_FULL), 1);
    kit_free(kit);
}

TEST(a_window_of_another_load_does_not_take_over_the_pin)
{
    struct kit *kit = new_kit(FULL | SWA, 4, 1);
    struct kvg_tree_transfer t[KVG_COMPONENT_MAX];
    struct kvg_span full = {500, KVG_BUFFER_POOL, 1};
    struct kvg_span window = {20, KVG_BUFFER_POOL, 1};
    kvg_node_id node;
    size_t count;

    kvg_tree_settings(kit->tree)->write_back = true;
    chain(kit, 2);
    node = kit_node(kit, 2);
    kvg_node_id below = kit_node(kit, 3);
    kit_backup(kit, 2);
    kit_backup(kit, 3);
    demote(kit, 3);
    demote(kit, 2);
    struct kvg_tree_transfer one = {.component = KVG_COMPONENT_FULL,
        .spans = &full,
        .span_count = 1,
        .nodes = &node,
        .node_count = 1};
    kit_must(
        kit, kvg_tree_load_commit(kit->tree, node, &one, 1, &kit->actions, &kit->error));
    CHECK_EQ(kit_get(kit, 2).pending_load, node);
    /* A load that would need the same window finds nothing to do. */
    kit_must(kit, kvg_tree_load_build(kit->tree, below, t, &count, &kit->error));
    CHECK_EQ(count, 0);
    /* One that brings the window alone leaves the pin where it is. */
    one.component = KVG_COMPONENT_SWA;
    one.spans = &window;
    kit_must(
        kit, kvg_tree_load_commit(kit->tree, below, &one, 1, &kit->actions, &kit->error));
    CHECK_EQ(kit_get(kit, 2).pending_load, node);
    CHECK_EQ(device(kit, 2, KVG_COMPONENT_SWA), 1);
    CHECK_STR((kit_clear(kit), kit_do_actions(kit)), "map(500 / 20)");
    kit_free(kit);
}

/* ---- Write-back and write-through ---------------------------------------------------------- */

TEST(hicache_write_back_drop_respects_pins_then_frees_subtree)
{
    struct kit *kit = new_kit(FULL, 0, 1);
    struct kvg_tree_evicted out;
    struct kvg_lock_receipt pin;

    kvg_tree_settings(kit->tree)->write_back = true;
    chain(kit, 2);
    kit_backup(kit, 3); /* Under write-back a child may be written before its parent. */
    demote(kit, 3);
    kvg_tree_events_take(kit->tree);
    kit_must(kit, kvg_tree_lock_host(kit->tree, kit_node(kit, 3), &pin, &kit->error));
    kit_must(kit, kvg_tree_drop_subtree(
                      kit->tree, kit_node(kit, 2), &kit->actions, &out, &kit->error));
    CHECK(!out.dropped);
    CHECK_EQ(kit->actions.count, 0);
    kit_must(kit, kvg_tree_unlock_host(kit->tree, kit_node(kit, 3), &pin, &kit->error));
    kit_must(kit, kvg_tree_drop_subtree(
                      kit->tree, kit_node(kit, 2), &kit->actions, &out, &kit->error));
    CHECK(out.dropped);
    CHECK_STR(
        (kit_clear(kit), kit_do_actions(kit)), "free_host_FULL(100); free_FULL(10)");
    /* The deepest first, each from its tier. */
    struct kvg_tree_event event;
    CHECK_EQ(kvg_tree_events_take(kit->tree), 2);
    CHECK(kvg_tree_event_get(kit->tree, 0, &event));
    CHECK_EQ(event.kind, KVG_TREE_REMOVED);
    CHECK_EQ(event.medium, KVG_MEDIUM_CPU);
    CHECK(kvg_tree_event_get(kit->tree, 1, &event));
    CHECK_EQ(event.medium, KVG_MEDIUM_DEVICE);
    kit_free(kit);
}

TEST(hicache_write_through_offloads_swa_split_leaf)
{
    struct kit *kit = new_kit(FULL | SWA, 4, 2);

    kit_insert(
        kit, (struct kit_insert){
                 .tokens = LIST(1, 2, 3, 4), .slots = LIST(10, 11, 12, 13), .cursor = 2});
    kit_backup(kit, 3);
    kit_backup(kit, 2);
    CHECK_EQ(host(kit, 3, KVG_COMPONENT_FULL), 2);
    CHECK_EQ(host(kit, 3, KVG_COMPONENT_SWA), 0);
    CHECK_EQ(host(kit, 2, KVG_COMPONENT_SWA), 2);
    CHECK_STR(demote(kit, 2), "free_FULL(12 13); free_SWA(12 13)");
    CHECK_STR(HOST_LIST(kit), "#2");
    CHECK(kit_get(kit, 3).device_leaf);
    CHECK(kit_get(kit, 2).host_leaf);
    kit_free(kit);
}

/* The step of an eviction that takes the window of the internal node #2. */
static struct kvg_tree_evicted evict_window(struct kit *kit)
{
    struct kvg_tree_evicted out;

    kit_must(kit, kvg_tree_evict_start(kit->tree, KVG_COMPONENT_SWA, 1, &kit->error));
    kit_must(kit, kvg_tree_evict_next(
                      kit->tree, KVG_COMPONENT_SWA, 0, &kit->actions, &out, &kit->error));
    return out;
}

TEST(hicache_write_back_internal_swa_evict_demotes_kv)
{
    struct kit *kit = new_kit(FULL | SWA, 1, 1);
    struct kvg_tree_evicted out;

    kvg_tree_settings(kit->tree)->write_back = true;
    chain(kit, 2);
    out = evict_window(kit);
    CHECK_EQ(out.backup_node, kit_node(kit, 2));
    CHECK_EQ(kit->actions.count, 0);
    kit_backup(kit, 2);
    kit_must(kit, kvg_tree_evict_finish_state(kit->tree, KVG_COMPONENT_SWA,
                      kit_node(kit, 2), &kit->actions, &out, &kit->error));
    CHECK_STR((kit_clear(kit), kit_do_actions(kit)), "free_SWA(10)");
    kit_must(kit, kvg_tree_evict_end(kit->tree, KVG_COMPONENT_SWA, &kit->error));
    /* The boundary stays of use: its window can be loaded back. */
    CHECK_EQ(host(kit, 2, KVG_COMPONENT_SWA), 1);
    CHECK_STR(kit_match(kit, LIST(1)), "0 at #1 best #2 full 1 host 1 swa_host 1");
    kit_free(kit);
}

TEST(hicache_write_through_internal_swa_evict_keeps_drop)
{
    struct kit *kit = new_kit(FULL | SWA, 1, 1);

    chain(kit, 2);
    struct kvg_tree_evicted out = evict_window(kit);
    CHECK_EQ(out.backup_node, KVG_NODE_NONE);
    CHECK(out.progress);
    CHECK_STR((kit_clear(kit), kit_do_actions(kit)), "free_SWA(10)");
    kit_must(kit, kvg_tree_evict_end(kit->tree, KVG_COMPONENT_SWA, &kit->error));
    CHECK_EQ(host(kit, 2, KVG_COMPONENT_SWA), 0);
    kit_free(kit);
}

TEST(hicache_internal_mamba_backup_waits_for_pending_swa)
{
    struct kit *kit = new_kit(FULL | SWA | MAMBA, 3, 1);
    struct kvg_tree_transfer t[KVG_COMPONENT_MAX];
    struct kvg_span spans[KVG_COMPONENT_MAX];
    struct kvg_tree_evicted out;
    uint32_t tokens[] = {1, 2, 3};
    uint32_t slots[] = {10, 11, 12};
    size_t count;

    kvg_tree_settings(kit->tree)->write_back = true;
    for (uint32_t n = 1; n <= 3; n++)
        kit_insert(kit,
            (struct kit_insert){
                .tokens = {tokens, n}, .slots = {slots, n}, .prev = n - 1, .mamba = n});
    kvg_node_id top = kit_node(kit, 2);
    kvg_node_id window[2] = {kit_node(kit, 3), top};
    /* The window of #3 reaches up to #2: both are pending under #3. */
    kit_must(kit, kvg_tree_write_build(kit->tree, window[0], t, &count, &kit->error));
    CHECK_EQ(count, 3);
    CHECK_EQ(t[1].node_count, 2);
    kit_give_slots(t, count, spans, &kit->next_host);
    kit_must(kit, kvg_tree_write_commit(kit->tree, t, count, &kit->error));
    kit_must(
        kit, kvg_tree_write_mark(kit->tree, window, 2, kit_node(kit, 3), &kit->error));
    CHECK_EQ(window[0], top);

    /* Now the state of #2 is to go, and has to be written before. */
    kit_must(kit, kvg_tree_evict_start(kit->tree, KVG_COMPONENT_MAMBA, 1, &kit->error));
    kit_must(kit, kvg_tree_evict_next(kit->tree, KVG_COMPONENT_MAMBA, 0, &kit->actions,
                      &out, &kit->error));
    CHECK_EQ(out.backup_node, top);
    kit_must(kit, kvg_tree_write_build(kit->tree, top, t, &count, &kit->error));
    CHECK_EQ(count, 2); /* FULL and the state: the window is on host already. */
    kit_give_slots(t, count, spans, &kit->next_host);
    kit_must(kit, kvg_tree_write_commit(kit->tree, t, count, &kit->error));
    CHECK_EQ(kvg_tree_write_mark(kit->tree, &top, 1, top, &kit->error), KVG_ESTATE);
    CHECK(strstr(kit->error.message, "pending under a different write-through ack"));
    kit_must(
        kit, kvg_tree_write_finish(kit->tree, window, 2, kit_node(kit, 3), &kit->error));
    kit_must(kit, kvg_tree_write_mark(kit->tree, &top, 1, top, &kit->error));
    kit_must(kit, kvg_tree_write_finish(kit->tree, &top, 1, top, &kit->error));
    kit_must(kit, kvg_tree_evict_finish_state(kit->tree, KVG_COMPONENT_MAMBA, top,
                      &kit->actions, &out, &kit->error));
    CHECK_STR((kit_clear(kit), kit_do_actions(kit)), "free_MAMBA(1)");
    kit_must(kit, kvg_tree_evict_end(kit->tree, KVG_COMPONENT_MAMBA, &kit->error));
    CHECK_EQ(host(kit, 2, KVG_COMPONENT_MAMBA), 1);
    kit_free(kit);
}

/* ---- Events -------------------------------------------------------------------------------- */

TEST(reinsertion_of_a_host_only_node_tells_the_device_and_the_session)
{
    struct kit *kit = new_kit(FULL, 0, 2);
    struct kvg_tree_event event;

    kit_insert_run(kit, LIST(1, 2, 3, 4), 10);
    kit_backup(kit, 2);
    demote(kit, 2);
    kvg_tree_events_take(kit->tree);
    kit_insert(kit, (struct kit_insert){.tokens = LIST(1, 2, 3, 4),
                        .slots = LIST(20, 21, 22, 23),
                        .session = "talk"});
    CHECK_EQ(kvg_tree_events_take(kit->tree), 1);
    CHECK(kvg_tree_event_get(kit->tree, 0, &event));
    CHECK_EQ(event.kind, KVG_TREE_STORED);
    CHECK_EQ(event.medium, KVG_MEDIUM_DEVICE);
    CHECK_EQ(event.hash_count, 2);
    CHECK_MEM(event.session_id.data, "talk", 4);
    kit_free(kit);
}

TEST(a_host_only_prefetch_publishes_one_event_without_a_parent)
{
    struct kit *kit = new_kit(FULL, 0, 2);
    uint32_t tokens[] = {1, 2, 3, 4};
    struct kvg_span slots = {300, KVG_BUFFER_POOL, 4};
    struct kvg_tree_host_insert insert = {.struct_bytes = sizeof(insert),
        .anchor = kvg_tree_root(kit->tree),
        .key = {.tokens = tokens, .token_count = 4},
        .value = &slots,
        .value_count = 1};
    struct kvg_tree_host_inserted out;
    struct kvg_tree_event event;

    kit_must(
        kit, kvg_tree_insert_host(kit->tree, &insert, &kit->actions, &out, &kit->error));
    CHECK_EQ(kvg_tree_events_take(kit->tree), 1);
    CHECK(kvg_tree_event_get(kit->tree, 0, &event));
    CHECK_EQ(event.medium, KVG_MEDIUM_CPU);
    CHECK_EQ(event.page_size, 2);
    CHECK_EQ(event.hash_count, 2);
    CHECK(!event.has_parent);
    kit_free(kit);
}

/* ---- States and windows on device ---------------------------------------------------------- */

TEST(mamba_evict_only_and_what_a_match_finds_then)
{
    struct kit *kit = kit_new((struct kit_setup){.components = FULL | MAMBA});

    kit_insert(kit,
        (struct kit_insert){.tokens = LIST(1, 2), .slots = LIST(10, 11), .mamba = 1});
    kit_insert(kit,
        (struct kit_insert){
            .tokens = LIST(1, 2, 3), .slots = LIST(10, 11, 12), .prev = 2, .mamba = 2});
    CHECK_EQ(kvg_tree_evictable(kit->tree, KVG_COMPONENT_MAMBA), 2);
    /* An internal state goes alone, a leaf's with the leaf; asked for ten, two are there. */
    CHECK_STR(kit_evict(kit, 0, 0, 10),
        "free_MAMBA(1) | leaf #3: free_FULL(12); free_MAMBA(2)");
    CHECK_EQ(kit->evicted[KVG_COMPONENT_MAMBA], 2);
    CHECK_EQ(kvg_tree_evictable(kit->tree, KVG_COMPONENT_MAMBA), 0);
    CHECK_STR(kit_match(kit, LIST(1, 2, 3)), "0 at #1 best #1 full 2 mamba_branching 2");
    kit_free(kit);
}

TEST(mamba_evict_cascades_on_full_leaf)
{
    struct kit *kit = kit_new((struct kit_setup){.components = FULL | MAMBA});

    kit_insert(kit,
        (struct kit_insert){.tokens = LIST(1, 2), .slots = LIST(10, 11), .mamba = 1});
    CHECK_STR(kit_evict(kit, 1, 0, 0), "leaf #2: free_FULL(10 11); free_MAMBA(1)");
    CHECK_EQ(kit->evicted[KVG_COMPONENT_MAMBA], 1);
    kit_free(kit);
}

TEST(cascade_evict_asserts_on_locked_leaf_mamba)
{
    struct kit *kit =
        kit_new((struct kit_setup){.components = FULL | SWA | MAMBA, .window = 4});
    struct kvg_tree_evicted step;

    kit_insert(kit,
        (struct kit_insert){.tokens = LIST(1, 2), .slots = LIST(10, 11), .mamba = 1});
    /* FULL and the state are locked; the window is not, and would take the state along. */
    struct kvg_lock_receipt receipt = kit_lock(kit, 2, SWA);
    CHECK(!kit_get(kit, 2).device_leaf);
    CHECK_EQ(kvg_tree_evict_component(kit->tree, kit_node(kit, 2), KVG_COMPONENT_SWA,
                 KVG_TIER_DEVICE, &kit->actions, &step, &kit->error),
        KVG_ESTATE);
    CHECK_EQ(kit->actions.count, 0);
    CHECK_EQ(device(kit, 2, KVG_COMPONENT_SWA), 2);
    kit_unlock(kit, 2, &receipt);
    kit_free(kit);
}

TEST(aux_evict_full_locked_leaf_tombstones_aux_only)
{
    struct kit *kit = kit_new((struct kit_setup){.components = FULL | SWA, .window = 4});

    kit_insert_run(kit, LIST(1, 2), 10);
    struct kvg_lock_receipt receipt = kit_lock(kit, 2, SWA);
    CHECK_STR(kit_evict(kit, 0, 2, 0), "free_SWA(10 11)");
    CHECK_EQ(kit->evicted[KVG_COMPONENT_SWA], 2);
    CHECK_EQ(kit->evicted[KVG_COMPONENT_FULL], 0);
    CHECK_STR(DEVICE_LIST(kit), "");
    kit_unlock(kit, 2, &receipt);
    kit_free(kit);
}

TEST(swa_evict_internal_tombstone)
{
    struct kit *kit = kit_new((struct kit_setup){.components = FULL | SWA, .window = 2});

    kit_insert_run(kit, LIST(1, 2, 3, 4), 10);
    kit_evict(kit, 0, 4, 0);
    kit_evict(kit, 0, 4, 0);
    CHECK_EQ(kvg_tree_evictable(kit->tree, KVG_COMPONENT_SWA), 0);
    kit_free(kit);
}

TEST(swa_branch_inserted_when_the_key_reaches_the_branch)
{
    /* Branch at 8: eight tokens are enough, and with pairs nine, which are eight units. */
    static const struct {
        bool eagle;
        size_t tokens;
        bool inserted;
    } cases[] = {{false, 8, true}, {false, 7, false}, {true, 9, true}, {true, 8, false}};
    uint32_t tokens[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct kit *kit = kit_new((struct kit_setup){
            .components = FULL | SWA, .window = 4, .eagle = cases[i].eagle});
        struct kvg_span span = {10, KVG_BUFFER_POOL, 9};
        struct kvg_tree_insert insert;
        kvg_tree_insert_init(&insert);
        insert.key =
            (struct kvg_tree_key){.tokens = tokens, .token_count = cases[i].tokens};
        insert.value = &span;
        insert.value_count = 1;
        insert.swa_branching = 8;
        insert.evicted_length[KVG_COMPONENT_SWA] = 16; /* No windows, no steps. */
        kit_must(kit, kvg_tree_insert_begin(kit->tree, &insert, &kit->actions,
                          &kit->inserted, &kit->error));
        CHECK(kit->inserted.done);
        CHECK_EQ(kit->inserted.swa_branch_inserted, cases[i].inserted);
        kit_free(kit);
    }
}

TEST(pages_match_whole_or_not_at_all)
{
    struct kit *kit = kit_new((struct kit_setup){.page_size = 2});

    kit_insert_run(kit, LIST(1, 2, 3, 4, 5), 10);
    CHECK_STR(kit_match(kit, LIST(1, 2, 3)), "2 at #3 best #3 full 2: 10 11");
    CHECK_STR(kit_match(kit, LIST(1)), "0 at #1 best #1 full 0");
    CHECK_STR(kit_match(kit, LIST(1, 2, 3, 9)), "2 at #3 best #3 full 2: 10 11");
    CHECK_STR(kit_match(kit, LIST(1, 9, 3, 4)), "0 at #1 best #1 full 0");
    CHECK_STR(kit_match(kit, LIST(1, 2, 3, 4, 5)), "4 at #2 best #2 full 4: 10 11 12 13");
    kit_free(kit);
}

TEST(full_kv_hit_length_counts_the_split_fragment)
{
    struct kit *kit = kit_new((struct kit_setup){0});

    kit_insert_run(kit, LIST(1, 2, 3, 4, 5, 6, 7, 8), 10);
    CHECK_STR(
        kit_match(kit, LIST(1, 2, 3, 4, 99)), "4 at #3 best #3 full 4: 10 11 12 13");
    kit_free(kit);
}

TEST_MAIN(RUN(hicache_swa_load_back_min_suffix),
    RUN(under_write_through_a_load_pins_nothing_and_leaves_duplicates),
    RUN(under_write_back_a_load_keeps_its_host_copies_and_refuses_another_anchor),
    RUN(a_window_of_another_load_does_not_take_over_the_pin),
    RUN(hicache_write_back_drop_respects_pins_then_frees_subtree),
    RUN(hicache_write_through_offloads_swa_split_leaf),
    RUN(hicache_write_back_internal_swa_evict_demotes_kv),
    RUN(hicache_write_through_internal_swa_evict_keeps_drop),
    RUN(hicache_internal_mamba_backup_waits_for_pending_swa),
    RUN(reinsertion_of_a_host_only_node_tells_the_device_and_the_session),
    RUN(a_host_only_prefetch_publishes_one_event_without_a_parent),
    RUN(mamba_evict_only_and_what_a_match_finds_then),
    RUN(mamba_evict_cascades_on_full_leaf),
    RUN(cascade_evict_asserts_on_locked_leaf_mamba),
    RUN(aux_evict_full_locked_leaf_tombstones_aux_only),
    RUN(swa_evict_internal_tombstone),
    RUN(swa_branch_inserted_when_the_key_reaches_the_branch),
    RUN(pages_match_whole_or_not_at_all),
    RUN(full_kv_hit_length_counts_the_split_fragment))
