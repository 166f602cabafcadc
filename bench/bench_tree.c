/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* The prefix tree at 1,000, 41,000 and 1,000,000 leaves.
 *
 * A prompt is a group's prefix of 512 tokens, a topic's 512 after it, and 64 of its own, in pages
 * of 16: three nodes a path, sixteen leaves a topic, sixteen topics a group.  Prompts are drawn at
 * random, so at the large sizes every node visited is a cache miss or several.
 *
 * Floors: memcmp over the same tokens, whose copy is as cold; and for what follows nodes, a
 * walk over the very nodes by their parent pointers, in which every load waits for the one
 * before. */
#include "bench.h"

#include <kvgraft/tree.h>

#include "base/rng.h"
#include "tree/tree.h"

#include <stdlib.h>

enum {
    PAGE = 16,
    PREFIX = 512,
    OWN = 64,
    UNITS = PREFIX + PREFIX + OWN,
    FAN = 16,
    DRAWS = 2048,
    STRETCH = 128,
    PATH_NODES = 3
};

struct work {
    struct kvg_tree *tree;
    struct kvg_actions actions;
    uint32_t leaf_count;
    uint32_t *prompts; /* DRAWS of them, */
    uint32_t *leaves;  /* and whose they are. */
    uint32_t *flat_groups, *flat_topics, *flat_leaves;
    kvg_node_id *nodes;
    uint64_t next_slot;
    struct kvi_rng rng;
    bool sessions;
};

static void group_tokens(uint32_t group, uint32_t *tokens)
{
    for (uint32_t i = 0; i < PREFIX; i++)
        tokens[i] = (group * 7919 + i) % 128000;
}

static void topic_tokens(uint32_t topic, uint32_t *tokens)
{
    for (uint32_t i = 0; i < PREFIX; i++)
        tokens[i] = (topic * 104729 + i + 1) % 128000;
}

static void leaf_tokens(uint32_t leaf, uint32_t variant, uint32_t *tokens)
{
    for (uint32_t i = 0; i < OWN; i++)
        tokens[i] = (leaf * 15485863 + i * (variant + 1) + 2) % 128000;
}

static void prompt(uint32_t leaf, uint32_t variant, uint32_t *tokens)
{
    group_tokens(leaf / FAN / FAN, tokens);
    topic_tokens(leaf / FAN, tokens + PREFIX);
    leaf_tokens(leaf, variant, tokens + 2 * PREFIX);
}

static void *must_have(size_t bytes)
{
    void *memory = malloc(bytes);

    if (memory == NULL)
        exit(1);
    return memory;
}

/* The floor's copy of everything. */
static void make_flat(struct work *work)
{
    size_t leaves = work->leaf_count;
    size_t topics = leaves / FAN + 1;
    size_t groups = topics / FAN + 1;

    work->flat_leaves = must_have(leaves * OWN * sizeof(uint32_t));
    work->flat_topics = must_have(topics * PREFIX * sizeof(uint32_t));
    work->flat_groups = must_have(groups * PREFIX * sizeof(uint32_t));
    for (uint32_t i = 0; i < leaves; i++)
        leaf_tokens(i, 0, work->flat_leaves + (size_t)i * OWN);
    for (uint32_t i = 0; i < topics; i++)
        topic_tokens(i, work->flat_topics + (size_t)i * PREFIX);
    for (uint32_t i = 0; i < groups; i++)
        group_tokens(i, work->flat_groups + (size_t)i * PREFIX);
}

static void must(kvg_err err, const char *what)
{
    if (err == KVG_OK)
        return;
    fprintf(stderr, "%s: %s\n", what, kvg_strerror(err));
    exit(1);
}

static struct kvg_tree_insert insert_of(
    struct work *work, const uint32_t *tokens, size_t units, struct kvg_span *span)
{
    struct kvg_tree_insert insert;

    kvg_tree_insert_init(&insert);
    *span = (struct kvg_span){work->next_slot, KVG_BUFFER_POOL, (uint32_t)units};
    work->next_slot += units;
    insert.key = (struct kvg_tree_key){.tokens = tokens, .token_count = units};
    insert.value = span;
    insert.value_count = 1;
    return insert;
}

static kvg_node_id insert(struct work *work, const uint32_t *tokens, size_t units)
{
    struct kvg_span span;
    struct kvg_tree_insert what = insert_of(work, tokens, units, &span);
    struct kvg_tree_inserted done;

    must(kvg_tree_insert_begin(work->tree, &what, &work->actions, &done, NULL), "insert");
    kvg_actions_clear(&work->actions);
    return done.last_node;
}

static void fill(struct work *work, uint32_t leaf_count)
{
    struct kvg_tree_options options;
    uint32_t tokens[UNITS];

    kvg_tree_options_init(&options);
    options.page_size = PAGE;
    options.seed = 1;
    options.sessions = work->sessions;
    work->leaf_count = leaf_count;
    must(kvg_tree_new(kvg_alloc_default(), &options, &work->tree, NULL), "tree");
    kvg_actions_init(&work->actions, kvg_alloc_default());
    for (uint32_t leaf = 0; leaf < leaf_count; leaf++) {
        prompt(leaf, 0, tokens);
        insert(work, tokens, UNITS);
    }
    for (uint32_t i = 0; i < DRAWS; i++) {
        uint32_t leaf = (uint32_t)kvi_rng_below(&work->rng, leaf_count);
        work->leaves[i] = leaf;
        prompt(leaf, 0, work->prompts + (size_t)i * UNITS);
        work->nodes[i] = insert(work, work->prompts + (size_t)i * UNITS, UNITS);
    }
    make_flat(work);
}

static void compare_all(void *context)
{
    struct work *work = context;
    int differ = 0;

    for (size_t i = 0; i < DRAWS; i++) {
        const uint32_t *tokens = work->prompts + i * UNITS;
        size_t leaf = work->leaves[i];
        differ |= memcmp(tokens, work->flat_groups + leaf / FAN / FAN * PREFIX,
            PREFIX * sizeof(*tokens));
        differ |= memcmp(tokens + PREFIX, work->flat_topics + leaf / FAN * PREFIX,
            PREFIX * sizeof(*tokens));
        differ |= memcmp(
            tokens + 2 * PREFIX, work->flat_leaves + leaf * OWN, OWN * sizeof(*tokens));
    }
    if (differ != 0)
        exit(1);
}

/* Every load waits for the one before, from prompt to prompt as well. */
static void chase(struct work *work, bool same)
{
    size_t skip = 0;

    for (size_t i = 0; i < DRAWS; i++) {
        uint64_t sum = 0;
        for (const struct kvi_node *node =
                 kvi_node_find(work->tree, work->nodes[same ? skip : i + skip]);
             node != NULL; node = node->parent)
            sum += node->length;
        skip = (size_t)(sum - UNITS);
    }
    if (skip != 0)
        exit(1);
}

static void chase_all(void *context)
{
    chase(context, false);
}

static void chase_one(void *context)
{
    chase(context, true);
}

static void match_all(void *context)
{
    struct work *work = context;
    struct kvg_tree_match match;

    for (size_t i = 0; i < DRAWS; i++) {
        struct kvg_tree_key key = {
            .tokens = work->prompts + i * UNITS, .token_count = UNITS};
        must(kvg_tree_match_prefix(work->tree, &key, &work->actions, &match, NULL),
            "match");
        if (match.device_length != UNITS)
            exit(1);
        kvb_keep(&match);
    }
}

static void lock_all(void *context)
{
    struct work *work = context;
    struct kvg_lock_receipt receipt;

    for (size_t i = 0; i < DRAWS; i++) {
        must(kvg_tree_lock(work->tree, work->nodes[i], 0, &receipt, NULL), "lock");
        must(
            kvg_tree_unlock(work->tree, work->nodes[i], &receipt, false, NULL), "unlock");
    }
}

static void lock_one(void *context)
{
    struct work *work = context;
    struct kvg_lock_receipt receipt;

    for (size_t i = 0; i < DRAWS; i++) {
        must(kvg_tree_lock(work->tree, work->nodes[0], 0, &receipt, NULL), "lock");
        must(
            kvg_tree_unlock(work->tree, work->nodes[0], &receipt, false, NULL), "unlock");
    }
}

static void again_all(void *context)
{
    struct work *work = context;

    for (size_t i = 0; i < DRAWS; i++)
        kvb_keep((void *)(uintptr_t)insert(work, work->prompts + i * UNITS, UNITS));
}

/* New leaves below known topics: the tree grows by DRAWS.  The best stretch, as nothing can be done
 * twice. */
static double insert_new_ns(struct work *work)
{
    uint32_t(*tokens)[UNITS] = must_have(DRAWS * sizeof(*tokens));

    for (uint32_t i = 0; i < DRAWS; i++)
        prompt((uint32_t)kvi_rng_below(&work->rng, work->leaf_count), i + 1, tokens[i]);
    double best = 0;
    for (uint32_t i = 0; i < DRAWS; i += STRETCH) {
        uint64_t began = kvb_now_ns();
        for (uint32_t j = 0; j < STRETCH; j++)
            insert(work, tokens[i + j], UNITS);
        double took = (double)(kvb_now_ns() - began);
        if (i == 0 || took < best)
            best = took;
    }
    free(tokens);
    return best / STRETCH;
}

/* Splits leaves in the middle: a match that parts from them there.  (A prompt drawn twice splits
 * once.)  The best stretch. */
static double split_ns(struct work *work)
{
    struct kvg_tree_match match;
    double best = 0;

    for (size_t i = 0; i < DRAWS; i += STRETCH) {
        uint64_t began = kvb_now_ns();
        for (size_t j = i; j < i + STRETCH; j++) {
            struct kvg_tree_key key = {
                .tokens = work->prompts + j * UNITS, .token_count = UNITS - OWN / 2};
            must(kvg_tree_match_prefix(work->tree, &key, &work->actions, &match, NULL),
                "match");
        }
        double took = (double)(kvb_now_ns() - began);
        if (i == 0 || took < best)
            best = took;
    }
    return best / STRETCH;
}

/* Evicts eight leaves, as an allocation that is short does; how many it took. */
static uint32_t evict_eight(struct work *work)
{
    struct kvg_tree_evicted step;
    uint64_t done = 0;
    uint32_t leaves = 0;

    must(kvg_tree_evict_start(work->tree, KVG_COMPONENT_FULL, 8 * OWN, NULL), "start");
    for (;;) {
        must(kvg_tree_evict_next(
                 work->tree, KVG_COMPONENT_FULL, done, &work->actions, &step, NULL),
            "next");
        if (step.node == KVG_NODE_NONE)
            break;
        must(kvg_tree_evict_leaf(
                 work->tree, step.node, false, &work->actions, &step, NULL),
            "leaf");
        done += step.evicted[KVG_COMPONENT_FULL];
        leaves++;
        kvg_actions_clear(&work->actions);
    }
    must(kvg_tree_evict_end(work->tree, KVG_COMPONENT_FULL, NULL), "end");
    return leaves;
}

/* The best of a few dozen stretches of 256 leaves: no two stretches meet the same nodes. */
static double evict_ns(struct work *work)
{
    double best = 0;

    for (uint32_t i = 0; i < 24; i++) {
        struct kvg_tree_stats stats;
        uint32_t leaves = 0;
        kvg_tree_stats(work->tree, &stats);
        if (stats.device_leaves < 300)
            break;
        uint64_t began = kvb_now_ns();
        while (leaves < 256)
            leaves += evict_eight(work);
        double took = (double)(kvb_now_ns() - began) / leaves;
        if (best <= 0 || took < best)
            best = took;
    }
    return best;
}

/* Every leaf, in no order: when the walk meets an entry its node has moved on. */
static void use_all(struct work *work)
{
    struct kvg_tree_match match;
    uint32_t tokens[UNITS];

    for (uint32_t i = 0; i < work->leaf_count; i++) {
        struct kvg_tree_key key = {.tokens = tokens, .token_count = UNITS};
        prompt((uint32_t)((uint64_t)i * 2654435761u % work->leaf_count), 0, tokens);
        must(kvg_tree_match_prefix(work->tree, &key, &work->actions, &match, NULL),
            "match");
    }
}

enum {
    COMPARE,
    CHASE,
    CHASE_ONE,
    MATCH,
    AGAIN,
    LOCK,
    LOCK_ONE,
    KINDS
};

/* What changes nothing, in turns, so that all of it meets the same machine and caches as cold.  The
 * best of each, a prompt. */
static void measure(struct work *work, unsigned repeats, double *best)
{
    static void (*const kinds[KINDS])(void *) = {
        compare_all, chase_all, chase_one, match_all, again_all, lock_all, lock_one};

    for (unsigned i = 0; i < repeats; i++) {
        for (int kind = 0; kind < KINDS; kind++) {
            double took = kvb_best_ns(1, kinds[kind], work) / DRAWS;
            if (i == 0 || took < best[kind])
                best[kind] = took;
        }
    }
}

static const char *name(const char *what, const struct work *work)
{
    static char text[96];

    snprintf(text, sizeof(text), "%s, %u leaves", what, work->leaf_count);
    return text;
}

static void reading_rows(
    struct kvb_table *table, const struct work *work, const double *best)
{
    static const char compared[] = "memcmp over the same tokens";
    static const char chased[] = "a walk by parent pointers, load after load";

    kvb_row(table, &(struct kvb_row){.what = name("match", work),
                       .figure = best[MATCH],
                       .unit = "ns",
                       .floor = best[COMPARE],
                       .floor_is = compared});
    kvb_row(table, &(struct kvb_row){.what = "  a node, beyond 1.3 memcmp",
                       .figure = (best[MATCH] - 1.3 * best[COMPARE]) / PATH_NODES,
                       .unit = "ns",
                       .floor = best[CHASE] / PATH_NODES,
                       .floor_is = chased,
                       .limit = 60});
    kvb_row(table, &(struct kvb_row){.what = name("insert what is there", work),
                       .figure = best[AGAIN],
                       .unit = "ns",
                       .floor = best[COMPARE],
                       .floor_is = compared});
    kvb_row(table, &(struct kvb_row){.what = name("lock and unlock a node", work),
                       .figure = best[LOCK] / PATH_NODES,
                       .unit = "ns",
                       .floor = best[CHASE] / PATH_NODES,
                       .floor_is = chased,
                       .limit = 15,
                       .note = "drawn at random"});
    kvb_row(table, &(struct kvb_row){.what = name("lock and unlock a node", work),
                       .figure = best[LOCK_ONE] / PATH_NODES,
                       .unit = "ns",
                       .floor = best[CHASE_ONE] / PATH_NODES,
                       .floor_is = chased,
                       .limit = 15,
                       .note = "the same leaf again"});
}

static void memory_rows(struct kvb_table *table, const struct work *work)
{
    struct kvg_tree_stats stats;

    kvg_tree_stats(work->tree, &stats);
    double nodes = (double)stats.nodes;
    double tokens = (double)kvg_tree_evictable(work->tree, KVG_COMPONENT_FULL);
    kvb_row(table, &(struct kvb_row){.what = name("memory a node", work),
                       .figure = ((double)stats.memory_bytes - 4 * tokens) / nodes,
                       .unit = "bytes",
                       .note = "tokens not counted"});
    kvb_row(table, &(struct kvb_row){.what = name("memory a token", work),
                       .figure = (double)stats.memory_bytes / tokens,
                       .unit = "bytes",
                       .floor = 4,
                       .floor_is = "the token"});
}

static void evict_row(struct kvb_table *table, struct work *work, const char *note)
{
    double figure = evict_ns(work);

    if (figure > 0)
        kvb_row(table, &(struct kvb_row){.what = name("evict a leaf", work),
                           .figure = figure,
                           .unit = "ns",
                           .limit = 500,
                           .note = note});
}

static void rows(struct kvb_table *table, struct work *work)
{
    double best[KINDS];

    measure(work, table->quick ? 3 : 15, best);
    reading_rows(table, work, best);
    kvb_row(table, &(struct kvb_row){.what = name("insert a new leaf", work),
                       .figure = insert_new_ns(work),
                       .unit = "ns",
                       .floor = best[COMPARE],
                       .floor_is = "memcmp over the same tokens"});
    memory_rows(table, work);
    kvb_row(table, &(struct kvb_row){.what = name("match that splits", work),
                       .figure = split_ns(work),
                       .unit = "ns",
                       .floor = best[MATCH],
                       .floor_is = "the match that does not"});
    evict_row(table, work, "eight at a time, in the order of insertion");
    use_all(work);
    evict_row(table, work, "eight at a time, after random use of all");
}

/* A turn of a conversation of its own ends at each prompt drawn. */
static void turn_all(void *context)
{
    struct work *work = context;

    for (uint32_t i = 0; i < DRAWS; i++) {
        struct kvg_str id = {(const char *)&i, sizeof(i)};
        uint64_t generation;
        bool held;
        must(kvg_tree_session_ensure(work->tree, id, &generation, NULL), "open");
        must(kvg_tree_session_touch(
                 work->tree, id, generation, work->nodes[i], &held, NULL),
            "turn");
    }
}

static void close_all(void *context)
{
    struct work *work = context;

    for (uint32_t i = 0; i < DRAWS; i++) {
        struct kvg_str id = {(const char *)&i, sizeof(i)};
        uint64_t released;
        must(kvg_tree_session_close(work->tree, id, &released, NULL), "close");
    }
}

/* The same tree with sessions: what a conversation costs, and evictions among many. */
static void session_rows(struct kvb_table *table, struct work *work)
{
    double turn = 0;
    double end = 0;

    for (unsigned i = 0; i < (table->quick ? 3u : 15u); i++) {
        double took = kvb_best_ns(1, turn_all, work) / DRAWS;
        if (i == 0 || took < turn)
            turn = took;
        took = kvb_best_ns(1, close_all, work) / DRAWS;
        if (i == 0 || took < end)
            end = took;
    }
    double floor = kvb_best_ns(3, chase_all, work) / DRAWS;
    kvb_row(table, &(struct kvb_row){.what = name("first turn of a session", work),
                       .figure = turn,
                       .unit = "ns",
                       .floor = floor,
                       .floor_is = "a walk by parent pointers, load after load"});
    kvb_row(table, &(struct kvb_row){.what = name("end of a session", work),
                       .figure = end,
                       .unit = "ns",
                       .floor = floor,
                       .floor_is = "a walk by parent pointers, load after load"});
    turn_all(work);
    evict_row(table, work, "with sessions, eight at a time, in the order of insertion");
}

static void measure_tree(struct kvb_table *table, uint32_t leaf_count, bool sessions)
{
    struct work work = {.rng = {1}, .sessions = sessions};

    work.prompts = must_have((size_t)DRAWS * UNITS * sizeof(uint32_t));
    work.leaves = must_have(DRAWS * sizeof(*work.leaves));
    work.nodes = must_have(DRAWS * sizeof(*work.nodes));
    fill(&work, leaf_count);
    if (sessions)
        session_rows(table, &work);
    else
        rows(table, &work);
    kvg_actions_fini(&work.actions);
    kvg_tree_free(work.tree);
    free(work.prompts);
    free(work.leaves);
    free(work.flat_groups);
    free(work.flat_topics);
    free(work.flat_leaves);
    free(work.nodes);
}

static void run(struct kvb_table *table)
{
    static const uint32_t sizes[] = {1000, 41000, 1000000};

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        if (table->quick && sizes[i] > 100000)
            continue;
        measure_tree(table, sizes[i], false);
        measure_tree(table, sizes[i], true);
    }
}

KVB_MAIN(tree, "Prefix tree, pages of 16, three nodes a path", run)
