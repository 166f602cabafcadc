/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* A store behind the host tier: what is written there, and windows and states that come back. */
#include "test.h"
#include "tree_kit.h"

#include "base/rng.h"

#include <kvgraft/tree_storage.h>
#include <kvgraft/tree_survey.h>

static struct kit *new_kit(uint32_t components, uint32_t window, uint32_t page_size)
{
    return kit_new_tiers((struct kit_setup){
        .components = components, .window = window, .page_size = page_size});
}

/* Prefetches FULL of `tokens` below a node into host slots from `base` on. */
static struct kvg_tree_host_inserted prefetch(
    struct kit *kit, uint64_t anchor, struct kit_list tokens, uint32_t base)
{
    struct kvg_span slots = {base, KVG_BUFFER_POOL, (uint32_t)tokens.count};
    struct kvg_tree_host_insert insert = {.struct_bytes = sizeof(insert),
        .anchor = kit_node(kit, anchor),
        .key = {.tokens = tokens.items, .token_count = tokens.count},
        .value = &slots,
        .value_count = 1};
    struct kvg_tree_host_inserted out;

    kit_must(
        kit, kvg_tree_insert_host(kit->tree, &insert, &kit->actions, &out, &kit->error));
    return out;
}

/* Commits staged window slots from `base` on; the actions as text. */
static const char *commit(struct kit *kit, uint64_t anchor, kvg_node_id node,
    uint32_t component, uint32_t base, uint32_t units, uint64_t pages,
    struct kvg_tree_prefetched *out)
{
    struct kvg_span span = {base, KVG_BUFFER_POOL, units};
    struct kvg_tree_staged staged = {
        .component = component, .spans = &span, .span_count = 1, .loaded_pages = pages};

    kit_must(kit, kvg_tree_prefetch_commit(kit->tree, kit_node(kit, anchor), node,
                      &staged, 1, &kit->actions, out, &kit->error));
    kit_clear(kit);
    return kit_do_actions(kit);
}

/* ---- To the store -------------------------------------------------------------------------- */

TEST(a_node_goes_to_storage_with_its_host_slots_and_page_keys)
{
    struct kit *kit = new_kit(FULL | MAMBA, 0, 2);
    struct kvg_tree_transfer t[KVG_COMPONENT_MAX];
    const struct kvg_key *keys, *above;
    size_t count;

    kit_insert(kit,
        (struct kit_insert){.tokens = LIST(1, 2), .slots = LIST(10, 11), .mamba = 5});
    kit_insert(kit, (struct kit_insert){.tokens = LIST(1, 2, 3, 4, 5, 6),
                        .slots = LIST(10, 11, 12, 13, 14, 15),
                        .prev = 2,
                        .mamba = 7});
    CHECK_EQ(kvg_tree_storage_build(kit->tree, kit_node(kit, 3), t, &count, &kit->error),
        KVG_ESTATE);
    kit_write(kit, 2); /* 100, 101; 102 */
    kit_write(kit, 3); /* 103 to 106; 107 */
    kit_must(
        kit, kvg_tree_storage_build(kit->tree, kit_node(kit, 3), t, &count, &kit->error));
    CHECK_EQ(count, 2);
    CHECK_EQ(kvg_tree_node_page_keys(kit->tree, kit_node(kit, 3), &keys), 2);
    CHECK_EQ(kvg_tree_node_page_keys(kit->tree, kit_node(kit, 2), &above), 1);
    CHECK_EQ(t[0].component, KVG_COMPONENT_FULL);
    CHECK(!t[0].trailing_pages);
    CHECK_EQ(t[0].key_count, 2);
    CHECK(t[0].keys == keys);
    CHECK_MEM(t[0].previous, above, sizeof(*above));
    CHECK_EQ(t[0].span_count, 1);
    CHECK_EQ(t[0].spans[0].offset, 103);
    CHECK_EQ(t[0].spans[0].length, 4);
    CHECK_EQ(t[0].nodes[0], kit_node(kit, 3));
    /* The state is the last page's. */
    CHECK_EQ(t[1].component, KVG_COMPONENT_MAMBA);
    CHECK(t[1].trailing_pages);
    CHECK_EQ(t[1].key_count, 1);
    CHECK_MEM(t[1].keys, &keys[1], sizeof(*keys));
    CHECK_MEM(t[1].previous, &keys[0], sizeof(*keys));
    CHECK_EQ(t[1].spans[0].offset, 107);
    kit_must(
        kit, kvg_tree_storage_build(kit->tree, kit_node(kit, 2), t, &count, &kit->error));
    CHECK(t[0].previous == NULL);
    CHECK(t[1].previous == NULL);
    CHECK_EQ(kvg_tree_storage_build(
                 kit->tree, kvg_tree_root(kit->tree), t, &count, &kit->error),
        KVG_ESTATE);
    CHECK_EQ(kvg_tree_storage_build(kit->tree, 99, t, &count, NULL), KVG_ENOENT);
    CHECK_EQ(count, 0);
    kit_free(kit);
}

TEST(a_window_goes_to_storage_under_its_nodes_pages)
{
    struct kit *kit = new_kit(FULL | SWA, 2, 1);
    struct kvg_tree_transfer t[KVG_COMPONENT_MAX];
    size_t count;

    kit_insert_run(kit, LIST(1, 2), 10);
    kit_write(kit, 2);
    kit_must(
        kit, kvg_tree_storage_build(kit->tree, kit_node(kit, 2), t, &count, &kit->error));
    CHECK_EQ(count, 2);
    CHECK_EQ(t[1].component, KVG_COMPONENT_SWA);
    CHECK(t[1].trailing_pages);
    CHECK_EQ(t[1].key_count, 2);
    CHECK_MEM(t[1].keys, t[0].keys, 2 * sizeof(*t[0].keys));
    CHECK_EQ(t[1].spans[0].offset, 102);
    kit_free(kit);
}

/* ---- Staging ------------------------------------------------------------------------------- */

static uint64_t staging(
    struct kit *kit, uint64_t anchor, uint64_t units, uint32_t component)
{
    uint64_t slots[KVG_COMPONENT_MAX];

    kit_must(kit, kvg_tree_prefetch_staging(
                      kit->tree, kit_node(kit, anchor), units, slots, &kit->error));
    CHECK_EQ(slots[KVG_COMPONENT_FULL], 0);
    return slots[component];
}

TEST(a_window_is_staged_whole_or_at_the_root_as_far_as_it_goes)
{
    struct kit *kit = new_kit(FULL | SWA, 7, 4);

    kit_insert_run(kit, LIST(1, 2, 3, 4), 10);
    CHECK_EQ(staging(kit, 1, 4, KVG_COMPONENT_SWA), 4);
    CHECK_EQ(staging(kit, 2, 4, KVG_COMPONENT_SWA), 0);
    CHECK_EQ(staging(kit, 2, 7, KVG_COMPONENT_SWA), 0);
    CHECK_EQ(staging(kit, 2, 8, KVG_COMPONENT_SWA), 8);
    CHECK_EQ(staging(kit, 1, 40, KVG_COMPONENT_SWA), 8);
    CHECK_EQ(staging(kit, 1, 3, KVG_COMPONENT_SWA), 0);
    CHECK_EQ(staging(kit, 1, 8, KVG_COMPONENT_MAMBA), 0);
    kvg_tree_settings(kit->tree)->swa_host_pool = false;
    CHECK_EQ(staging(kit, 1, 40, KVG_COMPONENT_SWA), 0);
    uint64_t slots[KVG_COMPONENT_MAX];
    CHECK_EQ(kvg_tree_prefetch_staging(kit->tree, 99, 8, slots, NULL), KVG_ENOENT);
    kit_free(kit);
    kit = new_kit(FULL | MAMBA, 0, 4);
    CHECK_EQ(staging(kit, 1, 8, KVG_COMPONENT_MAMBA), 1);
    CHECK_EQ(staging(kit, 1, 3, KVG_COMPONENT_MAMBA), 0);
    kit_free(kit);
}

/* ---- From the store ------------------------------------------------------------------------ */

TEST(a_window_shorter_than_a_window_below_a_node_is_freed_in_one_piece)
{
    struct kit *kit = new_kit(FULL | SWA, 4, 1);
    struct kvg_tree_prefetched out;

    kvg_tree_settings(kit->tree)->write_back = true;
    kit_insert_run(kit, LIST(1, 2, 3, 4), 10);
    struct kvg_tree_host_inserted in = prefetch(kit, 2, LIST(5, 6), 300);
    CHECK_STR(commit(kit, 2, in.node, KVG_COMPONENT_SWA, 400, 2, 2, &out),
        "free_host_SWA(400 401)");
    CHECK_EQ(out.attached[KVG_COMPONENT_SWA], 0);
    CHECK_EQ(kit_get(kit, 3).value_length[KVG_COMPONENT_SWA][KVG_TIER_HOST], 0);
    kit_free(kit);
}

TEST(a_window_comes_to_the_last_units_and_splits_the_node_where_it_begins)
{
    struct kit *kit = new_kit(FULL | SWA, 2, 1);
    struct kvg_tree_prefetched out;

    struct kvg_tree_host_inserted in = prefetch(kit, 1, LIST(1, 2, 3, 4), 300);
    CHECK_STR(commit(kit, 1, in.node, KVG_COMPONENT_SWA, 400, 2, 2, &out), "-");
    CHECK_EQ(out.attached[KVG_COMPONENT_SWA], 2);
    CHECK_STR(kit_dump(kit), "#1 root\n"
                             "  #3 [1 2] full host 300+2\n"
                             "    #2 [3 4] full host 302+2 swa host 400+2 host-leaf\n");
    CHECK_STR(kit_list_text(kit, KVG_COMPONENT_SWA, KVG_TIER_HOST), "#2");
    /* It can be loaded back: the match ends where the window does. */
    CHECK_STR(
        kit_match(kit, LIST(1, 2, 3, 4)), "0 at #1 best #2 full 4 host 4 swa_host 2");
    kit_free(kit);
}

TEST(a_short_prompt_at_the_root_brings_all_of_its_window)
{
    struct kit *kit = new_kit(FULL | SWA, 8, 2);
    struct kvg_tree_prefetched out;

    struct kvg_tree_host_inserted in = prefetch(kit, 1, LIST(1, 2, 3, 4), 300);
    CHECK_STR(commit(kit, 1, in.node, KVG_COMPONENT_SWA, 400, 4, 2, &out), "-");
    CHECK_EQ(out.attached[KVG_COMPONENT_SWA], 4);
    CHECK_STR(
        kit_match(kit, LIST(1, 2, 3, 4)), "0 at #1 best #2 full 4 host 4 swa_host 4");
    kit_free(kit);
}

TEST(a_window_that_came_in_part_or_below_nothing_is_freed)
{
    struct kit *kit = new_kit(FULL | SWA, 4, 2);
    struct kvg_tree_prefetched out;

    struct kvg_tree_host_inserted in = prefetch(kit, 1, LIST(1, 2, 3, 4), 300);
    CHECK_STR(commit(kit, 1, in.node, KVG_COMPONENT_SWA, 400, 4, 1, &out),
        "free_host_SWA(400 401 402 403)");
    CHECK_STR(commit(kit, 1, KVG_NODE_NONE, KVG_COMPONENT_SWA, 400, 4, 2, &out),
        "free_host_SWA(400 401 402 403)");
    CHECK_STR(commit(kit, 1, in.node, KVG_COMPONENT_SWA, 400, 0, 2, &out), "-");
    kit_free(kit);
}

TEST(slots_of_units_that_have_a_window_and_of_units_above_the_anchor_are_freed)
{
    struct kit *kit = new_kit(FULL | SWA, 4, 1);
    struct kvg_tree_prefetched out;

    struct kvg_tree_host_inserted in = prefetch(kit, 1, LIST(1, 2), 300);
    commit(kit, 1, in.node, KVG_COMPONENT_SWA, 400, 2, 2, &out);
    in = prefetch(kit, 1, LIST(1, 2, 3), 310);
    CHECK_EQ(in.prefix_length, 2);
    /* #2 [1 2] has its window, #3 [3] has none; the first slot is for no unit. */
    CHECK_STR(commit(kit, 1, in.node, KVG_COMPONENT_SWA, 500, 4, 4, &out),
        "free_host_SWA(501 502); free_host_SWA(500)");
    CHECK_EQ(out.attached[KVG_COMPONENT_SWA], 1);
    in = prefetch(kit, 3, LIST(4, 5), 320);
    CHECK_STR(commit(kit, 3, in.node, KVG_COMPONENT_SWA, 600, 4, 4, &out),
        "free_host_SWA(600 601)");
    CHECK_EQ(out.attached[KVG_COMPONENT_SWA], 2);
    CHECK_STR(kit_dump(kit), "#1 root\n"
                             "  #2 [1 2] full host 300+2 swa host 400+2\n"
                             "    #3 [3] full host 312+1 swa host 503+1\n"
                             "      #4 [4 5] full host 320+2 swa host 602+2 host-leaf\n");
    kit_free(kit);
}

TEST(a_state_comes_to_the_end_of_what_was_inserted_once)
{
    struct kit *kit = new_kit(FULL | MAMBA, 0, 2);
    struct kvg_tree_prefetched out;

    struct kvg_tree_host_inserted in = prefetch(kit, 1, LIST(1, 2, 3, 4), 300);
    CHECK_STR(commit(kit, 1, in.node, KVG_COMPONENT_MAMBA, 400, 1, 0, &out),
        "free_host_MAMBA(400)");
    CHECK(out.mamba_exists);
    CHECK_STR(commit(kit, 1, in.node, KVG_COMPONENT_MAMBA, 401, 1, 1, &out), "-");
    CHECK(!out.mamba_exists);
    CHECK_EQ(out.attached[KVG_COMPONENT_MAMBA], 1);
    CHECK_STR(kit_list_text(kit, KVG_COMPONENT_MAMBA, KVG_TIER_HOST), "#2");
    CHECK_STR(
        kit_match(kit, LIST(1, 2, 3, 4)), "0 at #1 best #2 full 4 host 4 mamba_host 1");
    CHECK_STR(commit(kit, 1, in.node, KVG_COMPONENT_MAMBA, 402, 1, 1, &out),
        "free_host_MAMBA(402)");
    CHECK(out.mamba_exists);
    kit_free(kit);
}

TEST(a_commit_that_is_wrong_says_how_and_changes_nothing)
{
    struct kit *kit = new_kit(FULL | SWA | MAMBA, 4, 2);
    struct kvg_tree_prefetched out;
    struct kvg_span span = {400, KVG_BUFFER_POOL, 4};
    struct kvg_span part = {400, KVG_BUFFER_POOL, 3};
    struct kvg_tree_staged staged[2] = {
        {KVG_COMPONENT_SWA, &span, 1, 2}, {KVG_COMPONENT_SWA, &span, 1, 2}};
    kvg_node_id root = kvg_tree_root(kit->tree);

    kvg_node_id a = prefetch(kit, 1, LIST(1, 2, 3, 4), 300).node;
    kvg_node_id b = prefetch(kit, 1, LIST(5, 6), 310).node;
    CHECK_EQ(kvg_tree_prefetch_commit(
                 kit->tree, root, a, staged, 2, &kit->actions, &out, &kit->error),
        KVG_EINVAL);
    CHECK_STR(kit->error.message, "a component twice");
    CHECK_EQ(kvg_tree_prefetch_commit(
                 kit->tree, b, a, staged, 1, &kit->actions, &out, &kit->error),
        KVG_EINVAL);
    CHECK_EQ(kvg_tree_prefetch_commit(
                 kit->tree, root, 77, staged, 1, &kit->actions, &out, &kit->error),
        KVG_ENOENT);
    CHECK_EQ(kvg_tree_prefetch_commit(
                 kit->tree, 77, a, staged, 1, &kit->actions, &out, &kit->error),
        KVG_ENOENT);
    staged[0].spans = &part;
    CHECK_EQ(kvg_tree_prefetch_commit(
                 kit->tree, root, a, staged, 1, &kit->actions, &out, &kit->error),
        KVG_EINVAL);
    staged[0].component = KVG_COMPONENT_FULL;
    CHECK_EQ(kvg_tree_prefetch_commit(
                 kit->tree, root, a, staged, 1, &kit->actions, &out, &kit->error),
        KVG_EINVAL);
    staged[0].component = KVG_COMPONENT_MAMBA;
    CHECK_EQ(kvg_tree_prefetch_commit(
                 kit->tree, root, a, staged, 1, &kit->actions, &out, &kit->error),
        KVG_EINVAL);
    CHECK_EQ(kit->actions.count, 0);
    kit_free(kit);
}

/* ---- Random prefetches --------------------------------------------------------------------- */

#define PATH 24

/* Host window slots say which unit of which prefetch they were staged for; whatever the tree took
 * must hold the right unit's, and each slot is taken or freed, once. */
struct random_run {
    struct kit *kit;
    struct kvi_rng rng;
    uint8_t seen[1 << 14]; /* By slot: staged, freed, held. */
    uint64_t unit_of[1 << 14];
    uint32_t next, next_device;
    bool write_back;
    uint64_t attached;
};

static void check_held(struct random_run *run, uint32_t staged_to)
{
    struct kvg_tree *tree = run->kit->tree;

    for (kvg_node_id id = kvg_tree_walk_next(tree, KVG_NODE_NONE); id != KVG_NODE_NONE;
         id = kvg_tree_walk_next(tree, id)) {
        struct kvg_span spans[PATH];
        uint64_t depth = 0;
        struct kvg_tree_node info;
        size_t count =
            kvg_tree_node_value(tree, id, KVG_COMPONENT_SWA, KVG_TIER_HOST, spans, PATH);
        for (kvg_node_id at = id; at != kvg_tree_root(tree); at = info.parent) {
            CHECK_EQ(kvg_tree_node_get(tree, at, &info), KVG_OK);
            depth += info.length;
        }
        CHECK_EQ(kvg_tree_node_get(tree, id, &info), KVG_OK);
        uint64_t unit = depth - info.length;
        for (size_t i = 0; i < count; i++) {
            for (uint64_t slot = spans[i].offset;
                 slot < spans[i].offset + spans[i].length; slot++, unit++) {
                CHECK_EQ(run->unit_of[slot], unit);
                CHECK_EQ(run->seen[slot] & 2, 0);
                run->seen[slot] |= 4;
            }
        }
    }
    for (uint32_t slot = 1; slot < staged_to; slot++) {
        CHECK(run->seen[slot] == 5 || run->seen[slot] == 3);
        run->seen[slot] &= 3;
    }
}

/* The deepest node at the end of which a prefix of the tokens ends, or one above it; *depth is the
 * prefix's length. */
static kvg_node_id random_anchor(
    struct random_run *run, const uint32_t *tokens, uint32_t units, uint32_t *depth)
{
    struct kvg_tree *tree = run->kit->tree;
    kvg_node_id node = kvg_tree_root(tree);

    *depth = 0;
    for (kvg_node_id child = kvg_tree_first_child(tree, node); child != KVG_NODE_NONE;) {
        struct kvg_tree_key key;
        CHECK_EQ(kvg_tree_node_key(tree, child, &key), KVG_OK);
        if (key.token_count >= units - *depth ||
            memcmp(key.tokens, tokens + *depth, key.token_count * sizeof(*tokens)) != 0) {
            child = kvg_tree_next_sibling(tree, child);
            continue;
        }
        if (kvi_rng_below(&run->rng, 3) == 0)
            break;
        node = child;
        *depth += (uint32_t)key.token_count;
        child = kvg_tree_first_child(tree, node);
    }
    return node;
}

/* FULL, and maybe a part of the window, on device. */
static void random_insert(struct random_run *run, uint32_t *tokens, uint32_t units)
{
    uint32_t slots[PATH];

    for (uint32_t i = 0; i < units; i++)
        slots[i] = 30000 + run->next_device++;
    kit_insert(run->kit, (struct kit_insert){.tokens = {tokens, units},
                             .slots = {slots, units},
                             .cursor = kvi_rng_below(&run->rng, 2) == 0 ? 2 * PATH : 0});
}

static void random_prefetch(struct random_run *run, uint32_t page)
{
    struct kit *kit = run->kit;
    uint32_t tokens[PATH];
    uint32_t depth;
    struct kvg_span spans[PATH];
    uint64_t slots[KVG_COMPONENT_MAX];
    struct kvg_tree_prefetched out;
    uint32_t units = page * (1 + (uint32_t)kvi_rng_below(&run->rng, PATH / page));
    uint32_t count = 0;

    for (uint32_t i = 0; i < units; i++)
        tokens[i] = 1 + (uint32_t)kvi_rng_below(&run->rng, i < PATH / 2 ? 1 : 2);
    if (run->write_back && kvi_rng_below(&run->rng, 3) == 0) {
        random_insert(run, tokens, units);
        return;
    }
    kvg_node_id anchor = random_anchor(run, tokens, units, &depth);
    CHECK_EQ(
        kvg_tree_prefetch_staging(kit->tree, anchor, units - depth, slots, NULL), KVG_OK);
    struct kvg_tree_host_inserted in = prefetch(
        kit, kit_number(anchor), (struct kit_list){tokens + depth, units - depth}, 20000);
    /* Runs of one to three slots, with holes between them. */
    uint64_t staged = slots[KVG_COMPONENT_SWA];
    for (uint64_t at = 0; at < staged;) {
        uint32_t length = 1 + (uint32_t)kvi_rng_below(&run->rng, 3);
        if (length > staged - at)
            length = (uint32_t)(staged - at);
        spans[count++] = (struct kvg_span){run->next, KVG_BUFFER_POOL, length};
        for (uint32_t i = 0; i < length; i++, at++) {
            run->seen[run->next] = 1;
            run->unit_of[run->next++] = units - staged + at;
        }
        run->seen[run->next++] = 3;
    }
    struct kvg_tree_staged what = {.component = KVG_COMPONENT_SWA,
        .spans = spans,
        .span_count = count,
        .loaded_pages = staged / page - (kvi_rng_below(&run->rng, 6) == 0 ? 1 : 0)};
    kvg_actions_clear(&kit->actions);
    kit_must(kit, kvg_tree_prefetch_commit(kit->tree, anchor, in.node, &what, 1,
                      &kit->actions, &out, &kit->error));
    run->attached += out.attached[KVG_COMPONENT_SWA];
    for (uint32_t i = 0; i < kit->actions.count; i++) {
        const struct kvg_action *a = &kit->actions.items[i];
        CHECK(a->kind == KVG_ACTION_FREE_COMPONENT_HOST);
        for (uint32_t s = a->span_first; s < a->span_first + a->span_count; s++) {
            const struct kvg_span *span = &kit->actions.spans[s];
            for (uint64_t slot = span->offset; slot < span->offset + span->length;
                 slot++) {
                CHECK_EQ(run->seen[slot], 1);
                run->seen[slot] = 3;
                staged--;
            }
        }
    }
    CHECK_EQ(staged, out.attached[KVG_COMPONENT_SWA]);
    kvg_actions_clear(&kit->actions);
    check_held(run, run->next);
}

TEST(random_prefetches_give_every_staged_slot_to_its_unit_or_back)
{
    static const uint32_t pages[] = {1, 2, 4};
    uint64_t attached = 0;

    for (uint64_t seed = 1; seed <= 60; seed++) {
        struct random_run *run = calloc(1, sizeof(*run));
        uint32_t page = pages[seed % 3];
        assert_non_null(run);
        run->rng.state = seed;
        run->next = 1;
        run->kit = new_kit(FULL | SWA, 1 + (uint32_t)(seed % 9), page);
        run->write_back = seed % 2 == 0;
        kvg_tree_settings(run->kit->tree)->write_back = run->write_back;
        for (int step = 0; step < 25; step++)
            random_prefetch(run, page);
        attached += run->attached;
        kit_free(run->kit);
        free(run);
    }
    CHECK(attached > 500);
}

/* ---- Memory -------------------------------------------------------------------------------- */

static bool scenario(const struct kvg_alloc *alloc, void *context)
{
    struct kvg_tree_options options;
    struct kvg_tree *tree = NULL;
    struct kvg_actions actions;
    uint32_t tokens[] = {1, 2, 3, 4, 5, 6};
    struct kvg_span full = {300, KVG_BUFFER_POOL, 6};
    struct kvg_span window[2] = {{400, KVG_BUFFER_POOL, 3}, {500, KVG_BUFFER_POOL, 1}};
    struct kvg_span state = {600, KVG_BUFFER_POOL, 1};
    struct kvg_tree_staged staged[2] = {
        {KVG_COMPONENT_SWA, window, 2, 4}, {KVG_COMPONENT_MAMBA, &state, 1, 1}};
    struct kvg_tree_host_inserted in;
    struct kvg_tree_prefetched out;
    struct kvg_tree_transfer transfers[KVG_COMPONENT_MAX];
    size_t count;

    (void)context;
    kvg_tree_options_init(&options);
    options.components = FULL | SWA | MAMBA;
    options.window = 4;
    kvg_actions_init(&actions, alloc);
    kvg_err err = kvg_tree_new(alloc, &options, &tree, NULL);
    if (err == KVG_OK) {
        struct kvg_tree_host_insert insert = {.struct_bytes = sizeof(insert),
            .anchor = kvg_tree_root(tree),
            .key = {.tokens = tokens, .token_count = 6},
            .value = &full,
            .value_count = 1};
        kvg_tree_settings(tree)->swa_host_pool = true;
        kvg_tree_settings(tree)->host_tier = true;
        err = kvg_tree_insert_host(tree, &insert, &actions, &in, NULL);
    }
    if (err == KVG_OK) {
        err = kvg_tree_prefetch_commit(
            tree, kvg_tree_root(tree), in.node, staged, 2, &actions, &out, NULL);
        struct kvg_error error;
        if (kvg_tree_check(tree, &error) != KVG_OK)
            fail_msg("%s: %s", error.field, error.message);
        if (err != KVG_OK) {
            struct kvg_tree_node node;
            CHECK_EQ(kvg_tree_node_get(tree, in.node, &node), KVG_OK);
            CHECK_EQ(node.length, 6);
            CHECK_EQ(node.value_length[KVG_COMPONENT_SWA][KVG_TIER_HOST], 0);
            CHECK_EQ(actions.count, 0);
        }
    }
    if (err == KVG_OK)
        err = kvg_tree_storage_build(tree, in.node, transfers, &count, NULL);
    CHECK(err == KVG_OK || err == KVG_ENOMEM);
    kvg_actions_fini(&actions);
    kvg_tree_free(tree);
    return err == KVG_OK;
}

TEST(prefetches_survive_every_failed_allocation)
{
    CHECK(for_each_oom(scenario, NULL) > 10);
}

TEST_MAIN(RUN(a_node_goes_to_storage_with_its_host_slots_and_page_keys),
    RUN(a_window_goes_to_storage_under_its_nodes_pages),
    RUN(a_window_is_staged_whole_or_at_the_root_as_far_as_it_goes),
    RUN(a_window_shorter_than_a_window_below_a_node_is_freed_in_one_piece),
    RUN(a_window_comes_to_the_last_units_and_splits_the_node_where_it_begins),
    RUN(a_short_prompt_at_the_root_brings_all_of_its_window),
    RUN(a_window_that_came_in_part_or_below_nothing_is_freed),
    RUN(slots_of_units_that_have_a_window_and_of_units_above_the_anchor_are_freed),
    RUN(a_state_comes_to_the_end_of_what_was_inserted_once),
    RUN(a_commit_that_is_wrong_says_how_and_changes_nothing),
    RUN(random_prefetches_give_every_staged_slot_to_its_unit_or_back),
    RUN(prefetches_survive_every_failed_allocation))
