/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* sim_engines.c -- four engines, a store and a network, from one seed.
 *
 * Every slot holds a word that says which prefix it belongs to (sim_truth.h); whatever an engine
 * computes from its cache is compared with what it would have computed alone, and so is what it
 * wrote to the store.  What can happen to messages and to the store is in sim_network.h; engines
 * crash, too, and in every fourth world allocations fail now and then.
 *
 * After every step: tree, linker and pools are checked, every slot is accounted for, and what the
 * tree calls stored has been in the store.
 *
 * All that a run does goes into one number, its trace, which depends on the seed alone.
 *
 *     sim_engines FIRST COUNT [STEPS]  runs these seeds
 *     sim_engines --twice COUNT        passes if each seed does the same again
 *     sim_engines --must-fail COUNT    passes if one of the seeds fails (planted mistakes)
 */
#include "fault_alloc.h"
#include "sim_network.h"
#include "sim_truth.h"
#include "test.h"

#include <sys/wait.h>
#include <unistd.h>

#define ENGINES 4
#define REQUESTS 5
#define TOKENS_MAX 48
#define SLOTS 512
#define STEPS 1000

struct live {
    bool used;
    kvg_row row;
    kvg_request_id id;
    uint32_t tokens[TOKENS_MAX + 1];
    uint64_t prompt, target, computed;
    bool may_load;
};

struct side {
    struct kvg_engine *engine;
    struct mem_transport *transport;
    uint64_t words[2][SLOTS];
    struct live requests[REQUESTS];
};

struct world {
    struct kvi_rng rng;
    struct fault_alloc fault;
    struct mem_store store;
    struct sim_network network;
    struct sim_truth truth;
    struct side sides[ENGINES];
    uint32_t page_size, window;
    bool swa, ring, sparse, eagle, poor; /* Poor: allocations fail now and then. */
    kvg_request_id next_id;
    uint64_t seed, hits, loaded, cuts, crashes;
    uint64_t trace;
    int step;
};

#define BAD(...)                                                                \
    do {                                                                        \
        fprintf(stderr, "seed %llu step %d: ", (unsigned long long)world->seed, \
            world->step);                                                       \
        fprintf(stderr, __VA_ARGS__);                                           \
        fprintf(stderr, "\n");                                                  \
        exit(1);                                                                \
    } while (0)

static uint64_t below(struct world *world, uint64_t bound)
{
    return kvi_rng_below(&world->rng, bound);
}

static void trace(struct world *world, uint64_t value)
{
    world->trace = kvi_mix64(world->trace + value + 1);
}

/* ---- Engines ------------------------------------------------------------------------------- */

static void start_engine(struct world *world, struct side *side)
{
    struct kvg_engine_options options;
    struct kvg_error error;
    kvg_engine_options_init(&options);
    options.tree.page_size = world->page_size;
    options.tree.eagle = world->eagle;
    options.tree.window = world->window;
    options.tree.seed = world->seed;
    options.tree.sessions = world->seed % 3 == 0;
    if (world->swa)
        options.tree.components |= KVG_COMPONENT_BIT(KVG_COMPONENT_SWA);
    options.tree.swa_request_ring = world->ring;
    options.full_slots = 16 * (4 + below(world, 9));
    options.window_slots = 16 * (3 + below(world, 9));
    options.row_count = REQUESTS;
    options.context_tokens = 64;
    options.write_through_hits = 1 + below(world, 2);
    options.sparse_retention = world->sparse;
    options.retention_interval = world->sparse ? world->page_size * below(world, 4) : 0;
    side->transport = mem_transport_new(&world->store, world->page_size);
    side->transport->device[0] = side->words[0];
    side->transport->device[1] = side->words[1];
    options.transport = &side->transport->table;
    for (int i = 0; i < SLOTS; i++) {
        side->words[0][i] = kvi_rng_next(&world->rng);
        side->words[1][i] = kvi_rng_next(&world->rng);
    }
    memset(side->requests, 0, sizeof(side->requests));
    if (kvg_engine_new(&world->fault.alloc, &options, &side->engine, &error) != KVG_OK)
        BAD("engine: %s %s", error.field, error.message);
}

static void stop_engine(struct side *side)
{
    kvg_engine_free(side->engine);
    mem_transport_free(side->transport);
}

/* In depth-first order. */
static kvg_node_id node_after(const struct kvg_tree *tree, kvg_node_id id)
{
    struct kvg_tree_node node = {.struct_bytes = sizeof(node)};
    kvg_node_id next = kvg_tree_first_child(tree, id);
    while (next == KVG_NODE_NONE && id != kvg_tree_root(tree)) {
        next = kvg_tree_next_sibling(tree, id);
        if (kvg_tree_node_get(tree, id, &node) != KVG_OK)
            return KVG_NODE_NONE;
        id = node.parent;
    }
    return next;
}

/* What the tree calls stored was in the store: else nobody would ever write it again. */
static void check_stored(struct world *world, struct side *side)
{
    struct kvg_tree *tree = kvg_engine_tree(side->engine);
    kvg_node_id id = kvg_tree_root(tree);
    while (id != KVG_NODE_NONE) {
        struct kvg_tree_node node = {.struct_bytes = sizeof(node)};
        const struct kvg_key *keys = NULL;
        if (kvg_tree_node_get(tree, id, &node) != KVG_OK)
            BAD("a node is unknown");
        size_t count = node.stored ? kvg_tree_node_page_keys(tree, id, &keys) : 0;
        for (size_t i = 0; i < count; i++) {
            if (!sim_network_knew(&world->network, &keys[i]))
                BAD("a page is called stored and never was");
        }
        trace(world, id * 2 + node.stored);
        id = node_after(tree, id);
    }
}

static void audit(struct world *world, struct side *side)
{
    struct kvg_cache_stats stats;
    struct kvg_error error;
    check_stored(world, side);
    if (kvg_engine_audit(side->engine, NULL, NULL, &error) != KVG_OK)
        BAD("audit: %s: %s", error.field, error.message);
    kvg_cache_stats(kvg_engine_cache(side->engine), &stats);
    if (stats.actions_failed != 0)
        BAD("a pool refused an action");
    if (side->transport->empty_offers != 0)
        BAD("an empty list was offered");
}

/* ---- Requests ------------------------------------------------------------------------------ */

static uint64_t length_of(struct side *side, const struct live *live)
{
    return kvg_rows_length(kvg_engine_rows(side->engine), live->row);
}

static uint64_t slot_at(
    struct world *world, struct side *side, const struct live *live, uint64_t position)
{
    size_t pages;
    const uint32_t *table =
        kvg_rows_table(kvg_engine_rows(side->engine), live->row, &pages);
    return (uint64_t)table[position / world->page_size] * world->page_size +
           position % world->page_size;
}

static uint64_t window_slot(struct side *side, uint64_t slot)
{
    return kvg_window_slot(kvg_engine_memory(side->engine)->window, slot);
}

/* Positions below `end` hold what the tokens say; the last window too. */
static void compare(
    struct world *world, struct side *side, const struct live *live, uint64_t end)
{
    uint64_t word = 0;
    for (uint64_t i = 0; i < end; i++) {
        uint64_t slot = slot_at(world, side, live, i);
        word = sim_word(word, live->tokens[i]);
        trace(world, slot);
        if (side->words[0][slot] != word)
            BAD("request %llu: position %llu of %llu is not what was computed",
                (unsigned long long)live->id, (unsigned long long)i,
                (unsigned long long)end);
        if (!world->swa || world->ring || i + world->window < end + 1)
            continue;
        uint64_t window = window_slot(side, slot);
        if (window == KVG_SLOT_NONE || side->words[1][window] != (word ^ 1))
            BAD("request %llu: window position %llu of %llu is wrong",
                (unsigned long long)live->id, (unsigned long long)i,
                (unsigned long long)end);
    }
}

static struct kvg_engine_request info(
    struct world *world, struct side *side, const struct live *live)
{
    struct kvg_engine_request out;
    if (kvg_engine_request_get(side->engine, live->row, &out) != KVG_OK)
        BAD("a living request is unknown");
    return out;
}

static struct kvg_tree_key key_of(const struct live *live, uint64_t tokens)
{
    return (struct kvg_tree_key){.tokens = live->tokens, .token_count = (size_t)tokens};
}

/* Computes all positions that have a slot, each from the one before it in the cache. */
static void compute(struct world *world, struct side *side, struct live *live)
{
    if (info(world, side, live).load_pending)
        return;
    compare(world, side, live, live->computed);
    for (uint64_t i = live->computed; i < length_of(side, live); i++) {
        uint64_t before = i == 0 ? 0 : side->words[0][slot_at(world, side, live, i - 1)];
        uint64_t slot = slot_at(world, side, live, i);
        side->words[0][slot] = sim_word(before, live->tokens[i]);
        if (world->swa && !world->ring)
            side->words[1][window_slot(side, slot)] = side->words[0][slot] ^ 1;
    }
    live->computed = length_of(side, live);
}

/* Around a call of an engine that may fail for want of memory. */
static void maybe_starve(struct world *world)
{
    if (world->poor && below(world, 3) == 0) {
        world->fault.countdown = (long)below(world, 6);
        world->fault.keep_failing = below(world, 2) == 0;
    }
}

/* True if it did; then a request may have ended. */
static bool starved(
    struct world *world, struct side *side, struct live *live, kvg_err err)
{
    struct kvg_engine_request out;
    world->fault.countdown = -1;
    world->fault.keep_failing = false;
    if (err != KVG_ENOMEM || !world->poor)
        return false;
    live->used =
        live->used && kvg_engine_request_get(side->engine, live->row, &out) == KVG_OK;
    if (live->used && live->computed > out.length)
        live->computed = out.length;
    return true;
}

static void make_tokens(struct world *world, struct live *live)
{
    uint32_t story = (uint32_t)below(world, 2);
    uint64_t turn = below(world, 3) == 0 ? below(world, TOKENS_MAX)
                                         : TOKENS_MAX / 2 + below(world, TOKENS_MAX / 2);
    for (uint64_t i = 0; i <= TOKENS_MAX; i++) {
        if (i == turn)
            story += 10 + (uint32_t)below(world, 2);
        live->tokens[i] = story * 100 + (uint32_t)i % 7;
    }
    sim_truth_learn(&world->truth, live->tokens, TOKENS_MAX + 1);
}

static void begin(struct world *world, struct side *side)
{
    struct kvg_engine_match match;
    struct kvg_error error;
    struct live *live = NULL;
    for (int i = 0; i < REQUESTS && live == NULL; i++)
        live = side->requests[i].used ? NULL : &side->requests[i];
    if (live == NULL)
        return;
    *live = (struct live){.used = true, .id = ++world->next_id};
    make_tokens(world, live);
    live->target = 2 + below(world, TOKENS_MAX - 1);
    live->prompt = 1 + below(world, live->target);
    char conversation = (char)('a' + live->id % 5);
    struct kvg_engine_prompt prompt = {.id = live->id,
        .key = key_of(live, live->prompt),
        .prompt_tokens = live->prompt,
        .session_id = {&conversation, 1}};
    uint64_t released; /* Now and then one is over, while its requests still run. */
    if (live->id % 13 == 0 && kvg_tree_session_close(kvg_engine_tree(side->engine),
                                  prompt.session_id, &released, NULL) == KVG_EINVAL)
        BAD("close failed");
    maybe_starve(world);
    kvg_err err = kvg_engine_begin(side->engine, &prompt, &match, &live->row, &error);
    if (starved(world, side, live, err)) {
        live->used = false;
        return;
    }
    if (err != KVG_OK)
        BAD("begin: %s %s", error.field, error.message);
    live->computed = match.device_length;
    live->may_load = match.load_needed;
    world->hits += match.device_length;
    compare(world, side, live, live->computed);
}

static void load(struct world *world, struct side *side, struct live *live)
{
    struct kvg_error error;
    uint64_t restored;
    if (!live->may_load)
        return;
    live->may_load = false;
    side->transport->refuse_loads = below(world, 12) == 0;
    maybe_starve(world);
    kvg_err err = kvg_engine_load(side->engine, live->row, &restored, &error);
    if (!starved(world, side, live, err) && err != KVG_OK && err != KVG_EIO)
        BAD("load: %s %s", error.field, error.message);
    side->transport->refuse_loads = 0;
    world->loaded += restored;
    live->computed = length_of(side, live);
    if (!info(world, side, live).load_pending)
        compare(world, side, live, live->computed);
}

static void end(struct world *world, struct side *side, struct live *live)
{
    if (kvg_engine_abort(side->engine, live->row, NULL) != KVG_OK)
        BAD("abort failed");
    live->used = false;
}

static void extend(struct world *world, struct side *side, struct live *live)
{
    uint64_t length = length_of(side, live);
    uint64_t more = live->target > length ? 1 + below(world, live->target - length) : 0;
    struct kvg_error error;
    live->may_load = false;
    maybe_starve(world);
    kvg_err err = kvg_engine_extend(side->engine, &live->row, &more, 1, &error);
    if (starved(world, side, live, err))
        return;
    if (err == KVG_ENOSPACE)
        end(world, side, live);
    else if (err != KVG_OK)
        BAD("extend: %s %s", error.field, error.message);
    else
        compute(world, side, live);
}

static void publish(
    struct world *world, struct side *side, struct live *live, bool finish)
{
    struct kvg_error error;
    struct kvg_tree_key key = key_of(live, live->computed);
    compute(world, side, live);
    key.token_count = (size_t)live->computed;
    maybe_starve(world);
    kvg_err err = finish ? kvg_engine_finish(side->engine, live->row, &key, &error)
                         : kvg_engine_insert(side->engine, live->row, &key, &error);
    if (starved(world, side, live, err) || err == KVG_EBUSY)
        return;
    if (err != KVG_OK)
        BAD("insert: %s %s", error.field, error.message);
    live->used = !finish;
    if (!finish)
        compare(world, side, live, live->computed);
}

/* ---- Steps --------------------------------------------------------------------------------- */

static void tick(struct world *world, struct side *side)
{
    struct kvg_engine_tick out;
    maybe_starve(world);
    kvg_err err = kvg_engine_tick(side->engine, &out, NULL);
    world->fault.countdown = -1;
    world->fault.keep_failing = false;
    if (err != KVG_OK)
        BAD("tick failed");
    for (size_t i = 0; i < out.cut_count; i++) {
        world->cuts++;
        for (int r = 0; r < REQUESTS; r++) {
            struct live *live = &side->requests[r];
            if (live->used && live->id == out.cuts[i].id)
                live->computed = out.cuts[i].length;
        }
    }
}

static void step(struct world *world)
{
    struct mem_transport *transports[ENGINES];
    bool quick = below(world, 2) == 0; /* Look for a request that lives. */
    struct side *side = &world->sides[below(world, ENGINES)];
    struct live *live = &side->requests[below(world, REQUESTS)];
    for (int i = 0; i < REQUESTS && quick && !live->used; i++)
        live = &side->requests[i];
    uint64_t what = below(world, 100);
    side->transport->refuse_offloads = below(world, 20) == 0;
    trace(world, what);
    if (what < 16)
        begin(world, side);
    else if (live->used && live->may_load && quick)
        load(world, side, live);
    else if (what < 34)
        trace(world, (uint64_t)kvg_engine_start_loads(side->engine));
    else if (what < 50)
        tick(world, side);
    else if (what < 51 && below(world, 4) == 0) {
        world->crashes++;
        sim_network_abandon(&world->network, side->transport);
        stop_engine(side);
        start_engine(world, side);
    } else if (live->used && what < 64)
        load(world, side, live);
    else if (live->used && what < 78)
        extend(world, side, live);
    else if (live->used && what < 86)
        publish(world, side, live, false);
    else if (live->used && what < 95)
        publish(world, side, live, true);
    else if (live->used)
        end(world, side, live);
    audit(world, side);
    for (int i = 0; i < ENGINES; i++)
        transports[i] = world->sides[i].transport;
    sim_network_step(&world->network, transports, ENGINES);
    if (world->step % 8 == 0 && !sim_truth_holds(&world->truth, &world->store))
        BAD("the store holds a wrong page");
}

/* Everything ends; then everything is free again. */
static void wind_down(struct world *world, struct side *side)
{
    uint64_t wanted[KVG_COMPONENT_MAX] = {SLOTS, SLOTS};
    struct kvg_audit_totals full;
    struct kvg_tree_stats stats;
    struct kvg_linker_stats linker;
    struct kvg_error error;
    for (int i = 0; i < REQUESTS; i++) {
        if (side->requests[i].used)
            end(world, side, &side->requests[i]);
    }
    kvg_engine_start_loads(side->engine);
    sim_network_calm(&world->network, side->transport);
    tick(world, side);
    (void)kvg_linker_settle(kvg_engine_linker(side->engine));
    kvg_linker_stats(kvg_engine_linker(side->engine), &linker);
    if (linker.markers + linker.pending_loads + linker.pending_offloads +
            linker.failed_loads !=
        0)
        BAD("the linker still has work");
    if (kvg_cache_evict(kvg_engine_cache(side->engine), wanted, NULL, &error) != KVG_OK)
        BAD("evict: %s %s", error.field, error.message);
    if (kvg_engine_audit(side->engine, &full, NULL, &error) != KVG_OK)
        BAD("audit: %s: %s", error.field, error.message);
    kvg_tree_stats(kvg_engine_tree(side->engine), &stats);
    if (full.free_slots != full.capacity_slots || stats.nodes != 1)
        BAD("something is left: %llu of %llu free, %llu nodes",
            (unsigned long long)full.free_slots, (unsigned long long)full.capacity_slots,
            (unsigned long long)stats.nodes);
    stop_engine(side);
}

/* ---- All seeds ----------------------------------------------------------------------------- */

static struct {
    uint64_t hits, loaded, cuts, crashes, store_crashes, arrived, lost, unheard, repeated,
        losses, starved;
} totals;

static void totals_add(const struct world *world)
{
    const struct sim_network *network = &world->network;
    totals.hits += world->hits;
    totals.loaded += world->loaded;
    totals.cuts += world->cuts;
    totals.crashes += world->crashes;
    totals.store_crashes += network->store_crashes;
    totals.arrived += network->arrived;
    totals.lost += network->lost;
    totals.unheard += network->unheard;
    totals.repeated += network->repeated;
    totals.losses += network->losses;
    totals.starved += world->fault.failed;
}

static void say_totals(uint64_t first, uint64_t count, int steps, uint64_t all)
{
    static const char *const NAMES[] = {"units from cache", "units loaded",
        "requests cut back", "engine crashes", "store crashes", "transfers done",
        "transfers lost", "answers lost", "results repeated", "pages lost",
        "allocations failed"};
    const uint64_t values[] = {totals.hits, totals.loaded, totals.cuts, totals.crashes,
        totals.store_crashes, totals.arrived, totals.lost, totals.unheard,
        totals.repeated, totals.losses, totals.starved};
    printf("seeds %llu to %llu, %d steps each, trace %016llx\n",
        (unsigned long long)first, (unsigned long long)(first + count - 1), steps,
        (unsigned long long)all);
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++)
        printf("%12llu %s\n", (unsigned long long)values[i], NAMES[i]);
}

/* Returns the trace. */
static uint64_t run(uint64_t seed, int steps, bool say)
{
    static const uint32_t PAGES[] = {1, 2, 4, 16};
    struct world *world = calloc(1, sizeof(*world));
    world->seed = seed;
    world->rng.state = seed * 7919;
    fault_alloc_init(&world->fault);
    mem_store_init(&world->store);
    sim_network_init(&world->network, &world->rng, &world->store);
    world->page_size = PAGES[below(world, 4)];
    world->swa = below(world, 2) == 1;
    world->ring = world->swa && below(world, 5) == 0;
    world->sparse = world->swa && below(world, 4) == 0;
    world->eagle = below(world, 3) == 0;
    world->poor = seed % 4 == 0;
    world->window = world->swa ? 1 + (uint32_t)below(world, 12) : 0;
    sim_truth_init(&world->truth, world->page_size, world->eagle);
    for (int i = 0; i < ENGINES; i++)
        start_engine(world, &world->sides[i]);
    for (world->step = 0; world->step < steps; world->step++)
        step(world);
    for (int i = 0; i < ENGINES; i++)
        wind_down(world, &world->sides[i]);
    if (world->fault.live_bytes != 0)
        BAD("%zu bytes leaked", world->fault.live_bytes);
    totals_add(world);
    if (say)
        printf("seed %llu: trace %016llx\n", (unsigned long long)seed,
            (unsigned long long)world->trace);
    uint64_t out = world->trace;
    sim_truth_fini(&world->truth);
    sim_network_fini(&world->network);
    mem_store_fini(&world->store);
    free(world);
    return out;
}

static void run_twice(uint64_t count)
{
    for (uint64_t seed = 1; seed <= count; seed++) {
        void *other =
            malloc((size_t)seed * 1000 + 1); /* Other addresses the second time. */
        uint64_t first = run(seed, STEPS, false);
        free(other);
        if (run(seed, STEPS, false) != first) {
            fprintf(stderr, "seed %llu did something else\n", (unsigned long long)seed);
            exit(1);
        }
    }
}

static int must_fail(uint64_t count)
{
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        for (uint64_t seed = 1; seed <= count; seed++)
            run(seed, STEPS, false);
        exit(0);
    }
    if (child < 0 || waitpid(child, &status, 0) != child)
        return 1;
    printf("the planted mistake was %s\n", status != 0 ? "caught" : "NOT caught");
    return status != 0 ? 0 : 1;
}

int main(int argc, char **argv)
{
    uint64_t count = argc >= 3 ? strtoull(argv[2], NULL, 10) : 20;
    int steps = argc >= 4 ? (int)strtol(argv[3], NULL, 10) : STEPS;
    uint64_t first = 1;
    if (argc == 3 && strcmp(argv[1], "--must-fail") == 0)
        return must_fail(count);
    if (argc == 3 && strcmp(argv[1], "--twice") == 0) {
        run_twice(count);
        return 0;
    }
    if (argc >= 3)
        first = strtoull(argv[1], NULL, 10);
    uint64_t all = 0;
    for (uint64_t seed = first; seed < first + count; seed++)
        all = kvi_mix64(all + run(seed, steps, count <= 20 || seed % 1000 == 0));
    say_totals(first, count, steps, all);
    return 0;
}
