/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* Every allocation of a scenario fails once: a call that fails leaves a whole tree, a repeated call
 * goes on, and nothing leaks. */
#include "test.h"
#include "tree_kit.h"

struct oom {
    uint32_t components, window;
    bool met; /* A call failed for memory. */
    struct kvg_tree *tree;
    struct kvg_actions actions;
    uint32_t next_slot;
};

static bool failed(struct oom *oom, kvg_err err)
{
    struct kvg_error error;

    if (err == KVG_OK)
        return false;
    CHECK_EQ(err, KVG_ENOMEM);
    oom->met = true;
    if (oom->tree != NULL && kvg_tree_check(oom->tree, &error) != KVG_OK)
        fail_msg("after a failure: %s: %s", error.field, error.message);
    return true;
}

/* Publishes windows, so that an insert can go on; slots are their own window slots. */
static bool do_actions(struct oom *oom)
{
    bool ok = true;

    for (uint32_t i = 0; i < oom->actions.count; i++) {
        const struct kvg_action *a = &oom->actions.items[i];
        if (a->kind != KVG_ACTION_SWA_REBUILD &&
            a->kind != KVG_ACTION_RECOVER_SWA_WITH_LOCKED_FULL)
            continue;
        /* Once more when it failed: a caller cannot do without. */
        for (int tries = 0; tries < 2; tries++) {
            ok = !failed(
                oom, kvg_tree_set_device_value(oom->tree, a->node, KVG_COMPONENT_SWA,
                         oom->actions.spans + a->span_first, a->span_count, NULL));
            if (ok)
                break;
        }
        if (!ok)
            break;
    }
    kvg_actions_clear(&oom->actions);
    return ok;
}

static bool insert(struct oom *oom, struct kit_list tokens, const char *salt)
{
    struct kvg_tree_insert what;
    struct kvg_tree_inserted done;
    struct kvg_span spans[32];

    kvg_tree_insert_init(&what);
    for (size_t i = 0; i < tokens.count; i++) {
        spans[i] = (struct kvg_span){oom->next_slot, KVG_BUFFER_POOL, 1};
        oom->next_slot += 2;
    }
    what.key = (struct kvg_tree_key){.tokens = tokens.items,
        .token_count = tokens.count,
        .space.cache_salt = {salt, salt == NULL ? 0 : strlen(salt)}};
    what.value = spans;
    what.value_count = tokens.count;
    what.mamba = (struct kvg_span){oom->next_slot, KVG_BUFFER_POOL, 1};
    what.track_adopted = true;
    kvg_err err = kvg_tree_insert_begin(oom->tree, &what, &oom->actions, &done, NULL);
    /* A failed step is repeated once; then the insert is given up. */
    for (int failures = 0;;) {
        if (failed(oom, err)) {
            if (!kvg_tree_insert_in_flight(oom->tree))
                return false;
            if (++failures == 2)
                break;
        } else if (!do_actions(oom)) {
            break;
        } else if (done.done) {
            return true;
        }
        err = kvg_tree_insert_resume(oom->tree, &oom->actions, &done, NULL);
    }
    failed(oom, kvg_tree_insert_end(oom->tree, &oom->actions));
    kvg_actions_clear(&oom->actions);
    return false;
}

static void match(struct oom *oom, struct kit_list tokens)
{
    struct kvg_tree_match found;
    struct kvg_tree_key key = {.tokens = tokens.items, .token_count = tokens.count};

    failed(oom, kvg_tree_match_prefix(oom->tree, &key, &oom->actions, &found, NULL));
    kvg_actions_clear(&oom->actions);
}

static void evict(struct oom *oom, uint32_t component)
{
    struct kvg_tree_evicted step;

    CHECK_EQ(kvg_tree_evict_start(oom->tree, component, 100, NULL), KVG_OK);
    for (int steps = 0; steps < 50; steps++) {
        if (failed(oom,
                kvg_tree_evict_next(oom->tree, component, 0, &oom->actions, &step, NULL)))
            continue;
        if (step.node == KVG_NODE_NONE && !step.progress)
            break;
        if (step.node != KVG_NODE_NONE)
            failed(oom, kvg_tree_evict_leaf(
                            oom->tree, step.node, false, &oom->actions, &step, NULL));
        kvg_actions_clear(&oom->actions);
    }
    CHECK_EQ(kvg_tree_evict_end(oom->tree, component, NULL), KVG_OK);
}

static bool scenario(const struct kvg_alloc *alloc, void *context)
{
    struct oom *oom = context;
    struct kvg_tree_options options;
    struct kvg_tree_transfer transfers[KVG_COMPONENT_MAX];
    uint64_t filled;
    size_t count;

    oom->met = false;
    oom->tree = NULL;
    oom->next_slot = 1;
    kvg_tree_options_init(&options);
    options.components = oom->components;
    options.window = oom->window;
    options.events = true;
    if (failed(oom, kvg_tree_new(alloc, &options, &oom->tree, NULL)))
        return false;
    kvg_actions_init(&oom->actions, alloc);
    insert(oom, LIST(1, 2, 3, 4, 5, 6, 7, 8), NULL);
    insert(oom, LIST(1, 2, 3, 9), NULL);
    kvg_tree_settings(oom->tree)->external_store = true;
    kvg_tree_settings(oom->tree)->write_through_hits = 1;
    insert(oom, LIST(1, 2, 3, 4, 5, 10, 11, 12), "salt");
    match(oom, LIST(1, 2, 3, 4, 5, 6, 12));
    failed(oom, kvg_tree_backfill_page_keys(oom->tree, &filled));
    kvg_node_id leaf = kvg_tree_first_child(oom->tree, kvg_tree_root(oom->tree));
    if (leaf != KVG_NODE_NONE) {
        struct kvg_lock_receipt receipt;
        failed(oom, kvg_tree_offload_build(oom->tree, leaf, transfers, &count, NULL));
        CHECK_EQ(kvg_tree_lock(oom->tree, leaf, 0, &receipt, NULL), KVG_OK);
        bool early = !failed(
            oom, kvg_tree_unlock_swa(oom->tree, leaf, &receipt, &oom->actions, NULL));
        CHECK_EQ(kvg_tree_unlock(oom->tree, leaf, &receipt, early, NULL), KVG_OK);
        kvg_actions_clear(&oom->actions);
    }
    insert(oom, LIST(1, 2, 3, 4, 5, 6, 7, 8), NULL);
    for (uint32_t component = 3; component-- > 0;) {
        if ((oom->components & KVG_COMPONENT_BIT(component)) != 0)
            evict(oom, component);
    }
    struct kvg_error error;
    if (kvg_tree_check(oom->tree, &error) != KVG_OK)
        fail_msg("%s: %s", error.field, error.message);
    kvg_tree_events_take(oom->tree);
    kvg_actions_fini(&oom->actions);
    kvg_tree_free(oom->tree);
    return !oom->met;
}

TEST(a_full_tree_survives_every_failed_allocation)
{
    struct oom oom = {.components = FULL};
    CHECK(for_each_oom(scenario, &oom) > 20);
}

TEST(a_tree_of_all_components_survives_every_failed_allocation)
{
    struct oom oom = {.components = FULL | SWA | MAMBA, .window = 2};
    CHECK(for_each_oom(scenario, &oom) > 20);
}

/* A turn of a session at whatever the insert before left last; three tries are enough. */
static void turn(struct oom *oom, const char *id, kvg_node_id node)
{
    struct kvg_str name = {id, strlen(id)};
    uint64_t generation;
    bool held;

    for (int tries = 0; tries < 3; tries++) {
        if (!failed(oom, kvg_tree_session_ensure(oom->tree, name, &generation, NULL)) &&
            !failed(oom,
                kvg_tree_session_touch(oom->tree, name, generation, node, &held, NULL)))
            return;
    }
}

static bool session_scenario(const struct kvg_alloc *alloc, void *context)
{
    struct oom *oom = context;
    struct kvg_tree_options options;
    uint64_t released;
    char id[16];

    oom->met = false;
    oom->tree = NULL;
    oom->next_slot = 1;
    kvg_tree_options_init(&options);
    options.components = oom->components;
    options.window = oom->window;
    options.sessions = true;
    if (failed(oom, kvg_tree_new(alloc, &options, &oom->tree, NULL)))
        return false;
    kvg_actions_init(&oom->actions, alloc);
    insert(oom, LIST(1, 2, 3, 4), NULL);
    insert(oom, LIST(1, 2, 3, 5), NULL);
    /* Enough of both that the tables grow. */
    for (int i = 0; i < 20; i++) {
        snprintf(id, sizeof(id), "s%d", i);
        kvg_node_id node = kvg_tree_first_child(oom->tree, kvg_tree_root(oom->tree));
        kvg_node_id below = kvg_tree_first_child(oom->tree, node);
        if (node != KVG_NODE_NONE)
            turn(oom, id, i % 2 != 0 && below != KVG_NODE_NONE ? below : node);
    }
    /* What was opened can always be closed. */
    struct kvg_tree_session session;
    bool open =
        kvg_tree_session_get(oom->tree, (struct kvg_str){"s3", 2}, &session) == KVG_OK;
    kvg_err err =
        kvg_tree_session_close(oom->tree, (struct kvg_str){"s3", 2}, &released, NULL);
    CHECK(!failed(oom, err) || !open);
    failed(oom,
        kvg_tree_session_close(oom->tree, (struct kvg_str){"never", 5}, &released, NULL));
    evict(oom, KVG_COMPONENT_FULL);
    struct kvg_error error;
    if (kvg_tree_check(oom->tree, &error) != KVG_OK)
        fail_msg("%s: %s", error.field, error.message);
    kvg_actions_fini(&oom->actions);
    kvg_tree_free(oom->tree);
    return !oom->met;
}

TEST(sessions_survive_every_failed_allocation)
{
    struct oom oom = {.components = FULL | SWA | MAMBA, .window = 2};
    CHECK(for_each_oom(session_scenario, &oom) > 20);
}

TEST_MAIN(RUN(a_full_tree_survives_every_failed_allocation),
    RUN(a_tree_of_all_components_survives_every_failed_allocation),
    RUN(sessions_survive_every_failed_allocation))
