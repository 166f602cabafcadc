/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* session_steps.c -- random steps of conversations, each held against the model
 * (session_model.h).  Each eviction takes what a scan of all nodes says, and spares the same. */
#include "session_model.h"

/* ---- Steps --------------------------------------------------------------------------------- */

static uint32_t random_key(struct world *world, uint32_t *tokens)
{
    uint32_t length = world->page * (1 + model_below(world, 9));

    for (uint32_t i = 0; i < length; i++)
        tokens[i] = i % world->page == 0 ? 1 + model_below(world, 2 + (i < 3)) : 7;
    return length;
}

static void insert(struct world *world)
{
    uint32_t tokens[PATH];
    uint32_t slots[PATH];
    uint32_t length = random_key(world, tokens);

    for (uint32_t i = 0; i < length; i++)
        slots[i] = world->next_slot++;
    bool has_mamba = (world->components & MAMBA) != 0;
    kit_insert(world->kit, (struct kit_insert){.tokens = {tokens, length},
                               .slots = {slots, length},
                               .priority = model_below(world, 3),
                               .mamba = has_mamba ? world->next_slot++ : 0});
}

static void match(struct world *world)
{
    uint32_t tokens[PATH];
    uint32_t length = random_key(world, tokens);

    kit_match(world->kit, (struct kit_list){tokens, length});
}

static kvg_node_id random_node(struct world *world)
{
    model_look(world);
    return world->node_count == 0 ? kvg_tree_root(world->kit->tree)
                                  : world->nodes[model_below(world, world->node_count)];
}

static void lock(struct world *world)
{
    if (world->lock_count != 0 &&
        (world->lock_count == LOCKS || model_below(world, 2) == 0)) {
        uint32_t i = model_below(world, world->lock_count);
        CHECK_EQ(kvg_tree_unlock(
                     world->kit->tree, world->locked[i], &world->locks[i], false, NULL),
            KVG_OK);
        world->lock_count--;
        world->locked[i] = world->locked[world->lock_count];
        world->locks[i] = world->locks[world->lock_count];
        return;
    }
    kvg_node_id node = random_node(world);
    CHECK_EQ(
        kvg_tree_lock(world->kit->tree, node, 0, &world->locks[world->lock_count], NULL),
        KVG_OK);
    world->locked[world->lock_count++] = node;
}

static void turn(struct world *world)
{
    uint32_t s = model_below(world, SESSIONS);
    struct session *session = &world->sessions[s];
    kvg_node_id node = model_below(world, 20) == 0 ? kvg_tree_root(world->kit->tree)
                                                   : random_node(world);
    bool is_root = node == kvg_tree_root(world->kit->tree);
    bool stale = model_below(world, 8) == 0;
    bool held;

    if (session->generation == 0 && model_below(world, 3) != 0)
        CHECK_EQ(kvg_tree_session_ensure(
                     world->kit->tree, model_id(s), &session->generation, NULL),
            KVG_OK);
    uint64_t generation = session->generation - (stale && session->generation != 0);
    bool expected = false;
    if (session->generation != 0 && !stale && !is_root)
        expected = model_touch(world, session, node);
    CHECK_EQ(kvg_tree_session_touch(
                 world->kit->tree, model_id(s), generation, node, &held, NULL),
        KVG_OK);
    if (held != expected)
        FAIL(world, "a touch of session %s holds %d, not %d\n", model_id(s).data, held,
            expected);
}

static void reopen(struct world *world)
{
    uint32_t s = model_below(world, SESSIONS);
    uint64_t before = world->sessions[s].generation;

    CHECK_EQ(kvg_tree_session_open(
                 world->kit->tree, model_id(s), &world->sessions[s].generation, NULL),
        KVG_OK);
    CHECK(world->sessions[s].generation > before);
}

static void close_session(struct world *world)
{
    uint32_t s = model_below(world, SESSIONS);
    struct session *session = &world->sessions[s];
    uint64_t released;

    CHECK_EQ(
        kvg_tree_session_close(world->kit->tree, model_id(s), &released, NULL), KVG_OK);
    CHECK_EQ(
        released, (uint64_t)session->count[0] + session->count[1] + session->count[2]);
    memset(session, 0, sizeof(*session));
}

/* ---- Host ---------------------------------------------------------------------------------- */

/* False if nothing was written. */
static bool back_up_node(struct world *world, kvg_node_id node)
{
    struct kvg_tree_transfer transfers[KVG_COMPONENT_MAX];
    struct kvg_span spans[KVG_COMPONENT_MAX];
    struct kvg_tree *tree = world->kit->tree;
    size_t count;

    if (kvg_tree_write_build(tree, node, transfers, &count, NULL) != KVG_OK || count == 0)
        return false;
    for (size_t i = 0; i < count; i++) {
        uint32_t units = 0;
        for (size_t j = 0; j < transfers[i].span_count; j++)
            units += transfers[i].spans[j].length;
        spans[i] = (struct kvg_span){world->kit->next_host, KVG_BUFFER_POOL, units};
        world->kit->next_host += units;
        transfers[i].spans = &spans[i];
        transfers[i].span_count = 1;
    }
    if (kvg_tree_write_commit(tree, transfers, count, NULL) != KVG_OK)
        return false;
    CHECK_EQ(kvg_tree_write_mark(tree, &node, 1, node, NULL), KVG_OK);
    CHECK_EQ(kvg_tree_write_finish(tree, &node, 1, node, NULL), KVG_OK);
    return true;
}

static void back_up(struct world *world)
{
    kvg_node_id node = random_node(world);

    if (node != kvg_tree_root(world->kit->tree))
        (void)back_up_node(world, node);
}

/* ---- Eviction ------------------------------------------------------------------------------ */

/* What the policy compares, then the last access. */
static uint64_t rank(const struct world *world, const struct kvg_tree_node *node)
{
    switch (world->policy) {
    case KVG_POLICY_LFU:
        return node->hits;
    case KVG_POLICY_FIFO:
        return node->creation;
    case KVG_POLICY_MRU:
        return ~node->last_access;
    case KVG_POLICY_FILO:
        return ~node->creation;
    case KVG_POLICY_PRIORITY:
        return (uint64_t)node->priority;
    case KVG_POLICY_SLRU:
        return node->hits >= 2;
    default:
        return node->last_access;
    }
}

static bool goes_before(const struct world *world, const struct kvg_tree_node *a,
    const struct kvg_tree_node *b)
{
    if (a->session_count[0] != b->session_count[0])
        return a->session_count[0] < b->session_count[0];
    if (rank(world, a) != rank(world, b))
        return rank(world, a) < rank(world, b);
    return a->last_access < b->last_access;
}

static kvg_node_id least_leaf(struct world *world, enum kvg_tier tier)
{
    struct kvg_tree_node best = {0};

    model_look(world);
    for (uint32_t i = 0; i < world->node_count; i++) {
        struct kvg_tree_node node = model_get(world, world->nodes[i]);
        if (!(tier == KVG_TIER_DEVICE ? node.device_leaf : node.host_leaf))
            continue;
        if (best.id == KVG_NODE_NONE || goes_before(world, &node, &best))
            best = node;
    }
    return best.id;
}

/* Under write-back it is written first, and stays on host. */
static void evict_leaf(struct world *world, kvg_node_id node)
{
    struct kvg_tree *tree = world->kit->tree;
    struct kvg_error *error = &world->kit->error;
    struct kvg_tree_evicted out;
    kvg_err err = kvg_tree_evict_leaf(
        tree, node, world->write_back, &world->kit->actions, &out, error);

    if (err == KVG_OK && out.backup_wanted) {
        CHECK(back_up_node(world, node));
        err = kvg_tree_demote(tree, node, &world->kit->actions, &out, error);
    }
    if (err != KVG_OK)
        FAIL(world, "%s\n", error->message);
    kit_do_actions(world->kit);
    model_fall_back(world);
}

static void evict_full(struct world *world)
{
    struct kvg_tree_evicted out;
    kvg_node_id expected = least_leaf(world, KVG_TIER_DEVICE);

    CHECK_EQ(kvg_tree_evict_start(world->kit->tree, KVG_COMPONENT_FULL, 1, NULL), KVG_OK);
    CHECK_EQ(kvg_tree_evict_next(world->kit->tree, KVG_COMPONENT_FULL, 0,
                 &world->kit->actions, &out, NULL),
        KVG_OK);
    if (out.node != expected)
        FAIL(world, "the walk took #%" PRIu64 ", not #%" PRIu64 "\n",
            kit_number(out.node), kit_number(expected));
    if (out.node != KVG_NODE_NONE && model_below(world, 4) != 0)
        evict_leaf(world, out.node);
    CHECK_EQ(kvg_tree_evict_end(world->kit->tree, KVG_COMPONENT_FULL, NULL), KVG_OK);
}

/* FULL ranks above SWA, SWA above MAMBA; what ranks as high and is covered outlives what is not. */
static bool outlives(
    const struct kvg_tree_node *node, uint32_t component, uint32_t trigger)
{
    return component <= trigger && node->session_count[component] != 0 &&
           node->session_count[trigger] == 0;
}

static bool may_go_whole(const struct kvg_tree_node *node, uint32_t trigger)
{
    for (uint32_t c = 0; c < 3; c++) {
        if (outlives(node, c, trigger))
            return false;
    }
    return true;
}

static uint32_t list_now(struct world *world, uint32_t component, kvg_node_id *list)
{
    uint32_t count = 0;

    for (kvg_node_id n =
             kvg_tree_list_first(world->kit->tree, component, KVG_TIER_DEVICE);
         n != KVG_NODE_NONE;
         n = kvg_tree_list_next(world->kit->tree, component, KVG_TIER_DEVICE, n))
        list[count++] = n;
    return count;
}

/* Is the list what it was, but for nodes that left it? */
static bool same_order(struct world *world, uint32_t component, const kvg_node_id *list,
    uint32_t count, const kvg_node_id *before, uint32_t before_count)
{
    uint32_t at = 0;

    for (uint32_t i = 0; i < before_count; i++) {
        struct kvg_tree_node node;
        if (kvg_tree_node_get(world->kit->tree, before[i], &node) != KVG_OK ||
            !node.listed[component][KVG_TIER_DEVICE])
            continue;
        if (at == count || list[at++] != before[i])
            return false;
    }
    return at == count;
}

/* The oldest that is left of the walk's list, still listed and not locked. */
static struct kvg_tree_node next_listed(
    struct world *world, uint32_t component, const kvg_node_id *list, uint32_t *left)
{
    struct kvg_tree_node node = {0};

    while (*left != 0) {
        if (kvg_tree_node_get(world->kit->tree, list[--*left], &node) == KVG_OK &&
            node.listed[component][KVG_TIER_DEVICE] &&
            node.lock_count[component][KVG_TIER_DEVICE] == 0)
            return node;
    }
    return (struct kvg_tree_node){0};
}

/* The part went, and nothing that outlives it. */
static void check_part_gone(
    struct world *world, const struct kvg_tree_node *node, uint32_t component)
{
    struct kvg_tree_node after = model_get(world, node->id);

    if (model_has(&after, component, KVG_TIER_DEVICE))
        FAIL(world, "#%" PRIu64 " still has its part\n", kit_number(node->id));
    for (uint32_t c = 0; c < 3; c++) {
        if (outlives(node, c, component) && model_has(node, c, KVG_TIER_DEVICE) &&
            !model_has(&after, c, KVG_TIER_DEVICE))
            FAIL(world, "%s of #%" PRIu64 " went too\n", kvg_component_name(c),
                kit_number(node->id));
    }
}

/* What is in the list comes in turn.  The walk is left when a frontier that fell back has moved
 * something in the list. */
static void evict_listed(struct world *world, uint32_t component)
{
    kvg_node_id before[NODES], list[NODES];
    uint32_t before_count = list_now(world, component, before);
    uint32_t left = before_count;
    uint32_t steps = 1 + model_below(world, 4);
    struct kvg_tree_evicted out;

    CHECK_EQ(kvg_tree_evict_start(world->kit->tree, component, UINT64_MAX, NULL), KVG_OK);
    while (steps-- != 0) {
        struct kvg_tree_node node = next_listed(world, component, before, &left);
        CHECK_EQ(kvg_tree_evict_next(
                     world->kit->tree, component, 0, &world->kit->actions, &out, NULL),
            KVG_OK);
        kit_do_actions(world->kit);
        bool whole = node.device_leaf && may_go_whole(&node, component);
        if (out.backup_node != KVG_NODE_NONE) { /* Of the part that goes next. */
            CHECK_EQ(out.backup_node, node.id);
            (void)back_up_node(world, node.id);
            CHECK_EQ(kvg_tree_evict_finish_state(world->kit->tree, component, node.id,
                         &world->kit->actions, &out, NULL),
                KVG_OK);
            kit_do_actions(world->kit);
        }
        if (out.node != (whole ? node.id : KVG_NODE_NONE) ||
            out.progress != (node.id != KVG_NODE_NONE))
            FAIL(world, "the %s walk took #%" PRIu64 ", not %s#%" PRIu64 "\n",
                kvg_component_name(component), kit_number(out.node),
                whole ? "" : "the part of ", kit_number(node.id));
        if (node.id == KVG_NODE_NONE)
            break;
        if (whole)
            evict_leaf(world, node.id);
        else
            check_part_gone(world, &node, component);
        uint32_t count = list_now(world, component, list);
        if (!same_order(world, component, list, count, before, before_count))
            break;
    }
    CHECK_EQ(kvg_tree_evict_end(world->kit->tree, component, NULL), KVG_OK);
}

static void evict_host(struct world *world, uint32_t component)
{
    struct kvg_tree_evicted out;
    kvg_node_id victim = component == KVG_COMPONENT_FULL
                             ? least_leaf(world, KVG_TIER_HOST)
                             : KVG_NODE_NONE;
    struct kvg_tree_node oldest = {0};

    for (kvg_node_id n = kvg_tree_list_first(world->kit->tree, component, KVG_TIER_HOST);
         n != KVG_NODE_NONE;
         n = kvg_tree_list_next(world->kit->tree, component, KVG_TIER_HOST, n))
        oldest = model_get(world, n);
    CHECK_EQ(kvg_tree_evict_host(
                 world->kit->tree, component, 1, &world->kit->actions, &out, NULL),
        KVG_OK);
    kit_do_actions(world->kit);
    if (victim != KVG_NODE_NONE && kvg_tree_contains(world->kit->tree, victim))
        FAIL(world, "the host walk spared #%" PRIu64 "\n", kit_number(victim));
    if (oldest.id != KVG_NODE_NONE) {
        bool whole = oldest.host_leaf && may_go_whole(&oldest, component);
        if (kvg_tree_contains(world->kit->tree, oldest.id) == whole)
            FAIL(world, "the host walk of %s took #%" PRIu64 " the wrong way\n",
                kvg_component_name(component), kit_number(oldest.id));
    }
    model_fall_back(world);
}

static void reset(struct world *world)
{
    CHECK_EQ(kvg_tree_reset(world->kit->tree), KVG_OK);
    world->lock_count = 0;
    memset(world->sessions, 0, sizeof(world->sessions));
}

/* ---- A run --------------------------------------------------------------------------------- */

static uint32_t random_component(struct world *world)
{
    uint32_t component;

    do
        component = model_below(world, 3);
    while ((world->components & KVG_COMPONENT_BIT(component)) == 0);
    return component;
}

static void step(struct world *world)
{
    uint32_t what = model_below(world, 100);
    uint32_t component = random_component(world);

    if (what < 24)
        insert(world);
    else if (what < 34)
        match(world);
    else if (what < 42)
        lock(world);
    else if (what < 66)
        turn(world);
    else if (what < 69)
        reopen(world);
    else if (what < 74)
        close_session(world);
    else if (what < 88 || !world->host)
        component == KVG_COMPONENT_FULL ? evict_full(world)
                                        : evict_listed(world, component);
    else if (what < 95)
        back_up(world);
    else
        evict_host(world, component);
    if (model_below(world, 300) == 0)
        reset(world);
}

void session_setup(struct world *world, uint64_t number)
{
    static const uint32_t sets[] = {FULL, FULL | SWA, FULL | MAMBA, FULL | SWA | MAMBA};

    world->components = sets[number % 4];
    world->policy = (enum kvg_policy)(number / 4 % 7);
    world->page = 1 + (uint32_t)(number / 2 % 2);
    world->window = 1 + model_below(world, 6);
    world->host = model_below(world, 2) != 0;
    world->write_back = world->host && model_below(world, 2) != 0;
}

void session_run(struct world *world, uint32_t steps)
{
    world->kit = kit_new((struct kit_setup){.page_size = world->page,
        .components = world->components,
        .window = (world->components & SWA) != 0 ? world->window : 0,
        .policy = world->policy,
        .sessions = true});
    kvg_tree_settings(world->kit->tree)->host_tier = world->host;
    kvg_tree_settings(world->kit->tree)->swa_host_pool =
        world->host && (world->components & SWA) != 0;
    kvg_tree_settings(world->kit->tree)->write_through_hits = UINT64_MAX;
    kvg_tree_settings(world->kit->tree)->write_back = world->write_back;
    kvg_tree_settings(world->kit->tree)->keep_host_duplicates = true;
    world->kit->next_host = 1;
    world->next_slot = 1;
    for (world->step = 0; world->step < steps && !model_ended(world); world->step++) {
        step(world);
        kit_clear(world->kit);
        model_compare(world);
    }
    while (world->lock_count != 0) {
        world->lock_count--;
        CHECK_EQ(kvg_tree_unlock(world->kit->tree, world->locked[world->lock_count],
                     &world->locks[world->lock_count], false, NULL),
            KVG_OK);
    }
    kit_free(world->kit);
}
