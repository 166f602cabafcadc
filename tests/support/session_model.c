/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* session_model.c -- see session_model.h. */
#include "session_model.h"

static const char *const ids[SESSIONS] = {"a", "b", "chat-3", "d", "e"};

struct kvg_str model_id(uint32_t session)
{
    return (struct kvg_str){ids[session], strlen(ids[session])};
}

bool model_ended(const struct world *world)
{
    return world->data != NULL && world->data_end - world->data < 2;
}

uint32_t model_below(struct world *world, uint32_t limit)
{
    if (world->data == NULL)
        return (uint32_t)kvi_rng_below(&world->rng, limit);
    if (model_ended(world))
        return 0;
    uint32_t drawn = world->data[0] | (uint32_t)world->data[1] << 8;
    world->data += 2;
    return drawn % limit;
}

struct kvg_tree_node model_get(struct world *world, kvg_node_id id)
{
    struct kvg_tree_node node;

    CHECK_EQ(kvg_tree_node_get(world->kit->tree, id, &node), KVG_OK);
    return node;
}

/* All nodes but the root. */
static void collect(struct world *world, kvg_node_id node)
{
    for (kvg_node_id child = kvg_tree_first_child(world->kit->tree, node);
         child != KVG_NODE_NONE; child = kvg_tree_next_sibling(world->kit->tree, child)) {
        assert_true(world->node_count < NODES);
        world->nodes[world->node_count++] = child;
        collect(world, child);
    }
}

void model_look(struct world *world)
{
    world->node_count = 0;
    collect(world, kvg_tree_root(world->kit->tree));
}

/* The tokens from the root to the node's end. */
static uint32_t path_of(struct world *world, kvg_node_id id, uint32_t *path)
{
    struct kvg_tree_key key;
    kvg_node_id parent = model_get(world, id).parent;
    uint32_t length = 0;

    if (parent == KVG_NODE_NONE)
        return 0;
    length = path_of(world, parent, path);
    CHECK_EQ(kvg_tree_node_key(world->kit->tree, id, &key), KVG_OK);
    assert_true(length + key.token_count <= PATH);
    memcpy(path + length, key.tokens, key.token_count * sizeof(*path));
    return length + (uint32_t)key.token_count;
}

static bool begins(
    const uint32_t *path, uint32_t length, const uint32_t *other, uint32_t other_length)
{
    return length <= other_length && memcmp(path, other, length * sizeof(*path)) == 0;
}

/* ---- The model ----------------------------------------------------------------------------- */

bool model_has(const struct kvg_tree_node *node, uint32_t component, enum kvg_tier tier)
{
    return node->value_length[component][tier] != 0;
}

/* The nearest node, from `id` upwards, at which the component could end a match. */
static kvg_node_id usable(struct world *world, kvg_node_id id, uint32_t component)
{
    uint64_t run = UINT64_MAX;

    for (;;) {
        struct kvg_tree_node node = model_get(world, id);
        if (node.parent == KVG_NODE_NONE)
            return KVG_NODE_NONE;
        bool here = model_has(&node, component, KVG_TIER_DEVICE) ||
                    model_has(&node, component, KVG_TIER_HOST);
        if (here && component != KVG_COMPONENT_SWA)
            return id;
        if (!here)
            run = 0;
        else if (run != UINT64_MAX)
            run += node.length;
        if (here && run >= world->window)
            return id;
        id = node.parent;
    }
}

static uint64_t coverage(struct world *world, kvg_node_id id, uint32_t component)
{
    uint64_t covered = 0;

    if (component != KVG_COMPONENT_SWA)
        return 0;
    for (struct kvg_tree_node node = model_get(world, id);
         node.parent != KVG_NODE_NONE && covered < world->window + world->page;
         node = model_get(world, node.parent))
        covered += node.length;
    return covered;
}

static bool covers(const struct frontier *frontier, uint32_t component,
    const uint32_t *path, uint32_t end)
{
    if (!begins(path, end, frontier->path, frontier->length))
        return false;
    if (component == KVG_COMPONENT_FULL)
        return true;
    if (component == KVG_COMPONENT_MAMBA)
        return end == frontier->length;
    return frontier->length - frontier->covered < end;
}

/* Where the session's frontier of exactly that path is, or its number of frontiers. */
static uint32_t exact(const struct session *session, uint32_t component,
    const uint32_t *path, uint32_t length)
{
    for (uint32_t i = 0; i < session->count[component]; i++) {
        const struct frontier *f = &session->frontiers[component][i];
        if (f->length == length && begins(path, length, f->path, f->length))
            return i;
    }
    return session->count[component];
}

static void set_frontier(
    struct world *world, struct frontier *frontier, uint32_t component, kvg_node_id node)
{
    frontier->length = path_of(world, node, frontier->path);
    frontier->covered = coverage(world, node, component);
}

bool model_touch(struct world *world, struct session *session, kvg_node_id node)
{
    bool held = false;

    for (uint32_t c = 0; c < 3; c++) {
        uint32_t path[PATH];
        if ((world->components & KVG_COMPONENT_BIT(c)) == 0)
            continue;
        kvg_node_id leaf = usable(world, node, c);
        if (leaf == KVG_NODE_NONE)
            continue;
        held = true;
        uint32_t length = path_of(world, leaf, path);
        if (exact(session, c, path, length) != session->count[c])
            continue;
        uint32_t best = session->count[c];
        for (uint32_t i = 0; i < session->count[c]; i++) {
            const struct frontier *f = &session->frontiers[c][i];
            if (begins(f->path, f->length, path, length) &&
                (best == session->count[c] ||
                    f->length > session->frontiers[c][best].length))
                best = i;
        }
        if (best == session->count[c])
            session->count[c]++;
        assert_true(session->count[c] <= FRONTIERS);
        set_frontier(world, &session->frontiers[c][best], c, leaf);
    }
    return held;
}

/* The deepest node whose end is on the path. */
static kvg_node_id deepest(struct world *world, const struct frontier *frontier)
{
    kvg_node_id best = kvg_tree_root(world->kit->tree);
    uint32_t best_length = 0;
    uint32_t path[PATH];

    for (uint32_t i = 0; i < world->node_count; i++) {
        uint32_t length = path_of(world, world->nodes[i], path);
        if (length > best_length &&
            begins(path, length, frontier->path, frontier->length)) {
            best = world->nodes[i];
            best_length = length;
        }
    }
    return best;
}

/* Nodes are gone: their frontiers fall back. */
void model_fall_back(struct world *world)
{
    model_look(world);
    for (uint32_t s = 0; s < SESSIONS; s++) {
        struct session *session = &world->sessions[s];
        for (uint32_t c = 0; c < 3; c++) {
            for (uint32_t i = 0; i < session->count[c]; i++) {
                struct frontier *f = &session->frontiers[c][i];
                uint32_t path[PATH];
                kvg_node_id node = deepest(world, f);
                if (path_of(world, node, path) == f->length)
                    continue;
                kvg_node_id to = usable(world, node, c);
                uint32_t length = to == KVG_NODE_NONE ? 0 : path_of(world, to, path);
                if (to == KVG_NODE_NONE ||
                    exact(session, c, path, length) != session->count[c]) {
                    memmove(f, f + 1, (session->count[c] - i - 1) * sizeof(*f));
                    session->count[c]--;
                    i--;
                    continue;
                }
                set_frontier(world, f, c, to);
            }
        }
    }
}

/* ---- Comparing ----------------------------------------------------------------------------- */

static void compare_node(struct world *world, kvg_node_id id)
{
    struct kvg_tree_node node = model_get(world, id);
    uint32_t path[PATH];
    uint32_t end = path_of(world, id, path);

    for (uint32_t c = 0; c < 3; c++) {
        uint32_t expected = 0;
        for (uint32_t s = 0; s < SESSIONS; s++) {
            for (uint32_t i = 0; i < world->sessions[s].count[c]; i++)
                expected += covers(&world->sessions[s].frontiers[c][i], c, path, end);
        }
        if (node.session_count[c] != expected)
            FAIL(world, "node #%" PRIu64 " has %u sessions of %s, not %u\n",
                kit_number(id), node.session_count[c], kvg_component_name(c), expected);
    }
}

static void compare_session(struct world *world, uint32_t s)
{
    const struct session *session = &world->sessions[s];
    kvg_node_id nodes[FRONTIERS];

    for (uint32_t c = 0; c < 3; c++) {
        size_t count = kvg_tree_session_frontiers(
            world->kit->tree, model_id(s), c, nodes, FRONTIERS);
        if (count != session->count[c])
            FAIL(world, "session %s has %zu frontiers of %s, not %u\n", ids[s], count,
                kvg_component_name(c), session->count[c]);
        for (uint32_t i = 0; i < session->count[c]; i++) {
            uint32_t path[PATH];
            const struct frontier *f = &session->frontiers[c][i];
            if (path_of(world, nodes[i], path) != f->length ||
                !begins(path, f->length, f->path, f->length))
                FAIL(world, "session %s has a frontier of %s at #%" PRIu64 "\n", ids[s],
                    kvg_component_name(c), kit_number(nodes[i]));
        }
    }
}

static void compare_list(struct world *world, uint32_t component, enum kvg_tier tier)
{
    bool others = false;

    for (kvg_node_id n = kvg_tree_list_first(world->kit->tree, component, tier);
         n != KVG_NODE_NONE;
         n = kvg_tree_list_next(world->kit->tree, component, tier, n)) {
        bool is_covered = model_get(world, n).session_count[component] != 0;
        if (is_covered && others)
            FAIL(world, "#%" PRIu64 " is among those of no session\n", kit_number(n));
        others = others || !is_covered;
    }
}

void model_compare(struct world *world)
{
    kit_check(world->kit);
    model_look(world);
    for (uint32_t i = 0; i < world->node_count; i++)
        compare_node(world, world->nodes[i]);
    for (uint32_t s = 0; s < SESSIONS; s++)
        compare_session(world, s);
    for (uint32_t c = 1; c < 3; c++) {
        compare_list(world, c, KVG_TIER_DEVICE);
        compare_list(world, c, KVG_TIER_HOST);
    }
}
