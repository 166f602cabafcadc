/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* 2, 4 and 8 ranks of one engine in one process, a thread each, that differ in capacity, in what
 * their stores hold and in timing.  They meet at every agreement: there the test sees that all make
 * the same calls, and after each request that all hold the same length. */
#include "mem_transport.h"
#include "test.h"

#include "base/rng.h"

#include <pthread.h>

#define RANKS_MAX 8
#define VALUES_MAX 512

/* The loop-back: the last rank to arrive takes the minimum, then all leave with it. */
struct meeting {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned ranks, arrived;
    uint64_t round, calls;
    size_t count;
    int32_t values[2][VALUES_MAX]; /* By round: slow ranks still read the last. */
    bool mismatch;
};

static void meet(void *context, int32_t *values, size_t count)
{
    struct meeting *m = context;
    pthread_mutex_lock(&m->lock);
    uint64_t round = m->round;
    int32_t *least = m->values[round % 2];
    if (m->arrived == 0) {
        m->count = count;
        memcpy(least, values, count * sizeof(*values));
    } else if (count != m->count) {
        m->mismatch = true;
    } else {
        for (size_t i = 0; i < count; i++)
            least[i] = values[i] < least[i] ? values[i] : least[i];
    }
    if (++m->arrived == m->ranks) {
        m->arrived = 0;
        m->round++;
        m->calls++;
        pthread_cond_broadcast(&m->changed);
    }
    while (m->round == round)
        pthread_cond_wait(&m->changed, &m->lock);
    memcpy(values, least, count * sizeof(*values));
    pthread_mutex_unlock(&m->lock);
}

struct rank {
    struct meeting *meeting;
    unsigned number;
    uint64_t seed;
    bool swa;
    uint64_t cut_count, loaded, idle_calls;
    char broken[256];
};

#define BAD(text)                                                                       \
    do {                                                                                \
        if (rank->broken[0] == '\0')                                                    \
            snprintf(rank->broken, sizeof(rank->broken), "%s (rank %u, line %d)", text, \
                rank->number, __LINE__);                                                \
    } while (0)

/* All ranks see the same value. */
static void same(struct rank *rank, uint64_t value, const char *what)
{
    int32_t both[2] = {(int32_t)value, -(int32_t)value};
    meet(rank->meeting, both, 2);
    if (both[0] != -both[1])
        BAD(what);
}

static struct kvg_engine *make(struct rank *rank, struct mem_transport *transport)
{
    struct kvg_engine_options options;
    struct kvg_engine *engine = NULL;
    kvg_engine_options_init(&options);
    options.tree.page_size = 2;
    options.tree.window = 4;
    if (rank->swa)
        options.tree.components |= KVG_COMPONENT_BIT(KVG_COMPONENT_SWA);
    options.full_slots = options.window_slots = rank->number % 2 == 1 ? 40 : 64;
    options.row_count = 4;
    options.context_tokens = 40;
    options.transport = &transport->table;
    options.agreement = (struct kvg_agreement){meet, rank->meeting};
    if (kvg_engine_new(kvg_alloc_default(), &options, &engine, NULL) != KVG_OK)
        BAD("no engine");
    return engine;
}

static void serve(struct rank *rank, struct kvg_engine *engine,
    struct mem_transport *transport, struct kvi_rng *shared, struct kvi_rng *own,
    kvg_request_id id)
{
    uint32_t tokens[40];
    uint32_t story = (uint32_t)kvi_rng_below(shared, 4);
    uint64_t count = 4 + kvi_rng_below(shared, 28);
    uint64_t fate = kvi_rng_below(shared, 4);
    struct kvg_engine_match match;
    struct kvg_engine_tick out;
    uint64_t restored;
    kvg_row row;
    for (uint32_t i = 0; i < count; i++)
        tokens[i] = story * 100 + i;
    struct kvg_engine_prompt prompt = {
        .id = id, .key = {.tokens = tokens, .token_count = (size_t)count - 1}};

    if (kvg_engine_begin(engine, &prompt, &match, &row, NULL) != KVG_OK)
        BAD("begin");
    same(rank, match.device_length + match.load_length, "matches differ");
    same(rank, match.load_needed, "needs differ");
    if (match.load_needed && kvi_rng_below(own, 6) == 0)
        transport->refuse_loads = 1;
    if (kvg_engine_load(engine, row, &restored, NULL) != KVG_OK &&
        transport->refuse_loads != 0)
        BAD("load");
    transport->refuse_loads = 0;
    rank->loaded += restored;
    same(rank, kvg_rows_length(kvg_engine_rows(engine), row), "lengths differ");
    kvg_engine_start_loads(engine);
    for (int turn = 0; turn < 3; turn++) {
        if (kvi_rng_below(own, 2) == 0 || turn == 2) {
            mem_complete_loads(transport, kvi_rng_below(own, 5) != 0);
            mem_complete_offloads(transport, kvi_rng_below(own, 5) != 0);
        }
        if (kvg_engine_tick(engine, &out, NULL) != KVG_OK)
            BAD("tick");
        rank->cut_count += out.cut_count;
    }
    uint64_t length = kvg_rows_length(kvg_engine_rows(engine), row);
    same(rank, length, "lengths differ after the load");
    uint64_t more = count - length;
    kvg_err err = kvg_engine_extend(engine, &row, &more, 1, NULL);
    same(rank, err == KVG_OK, "room differs");
    struct kvg_tree_key key = {.tokens = tokens, .token_count = (size_t)count};
    if (err == KVG_OK && fate != 0)
        err = kvg_engine_finish(engine, row, &key, NULL);
    else
        err = kvg_engine_abort(engine, row, NULL);
    if (err != KVG_OK)
        BAD("the end");
}

static void *run_rank(void *context)
{
    struct rank *rank = context;
    struct kvi_rng shared = {rank->seed};
    struct kvi_rng own = {rank->seed * 1000 + rank->number};
    struct kvg_engine_tick out;
    struct kvg_error error;
    struct mem_store store;
    mem_store_init(&store);
    struct mem_transport *transport = mem_transport_new(&store, 2);
    struct kvg_engine *engine = make(rank, transport);
    for (kvg_request_id id = 1; id <= 60 && engine != NULL; id++) {
        serve(rank, engine, transport, &shared, &own, id);
        if (kvi_rng_below(&own, 8) == 0 && store.count != 0) {
            struct mem_page page = store.pages[kvi_rng_below(&own, store.count)];
            mem_store_remove(&store, page.component, &page.key);
        }
        if (kvg_engine_audit(engine, NULL, NULL, &error) != KVG_OK)
            BAD(error.message);
    }
    mem_complete_offloads(transport, true);
    for (int i = 0; i < 4; i++)
        (void)(kvg_engine_tick(engine, &out, NULL) == KVG_OK);
    same(rank, 0, "");
    uint64_t before = rank->meeting->calls;
    same(rank, 0, "");
    if (kvg_engine_tick(engine, &out, NULL) != KVG_OK)
        BAD("tick");
    rank->idle_calls = rank->meeting->calls - before - 1;
    same(rank, 0, "");
    if (kvg_tree_protected(kvg_engine_tree(engine), KVG_COMPONENT_FULL) != 0)
        BAD("a lock is left");
    kvg_engine_free(engine);
    mem_transport_free(transport);
    mem_store_fini(&store);
    return NULL;
}

static void run_ranks(unsigned ranks, uint64_t seed, bool swa)
{
    struct meeting meeting = {.ranks = ranks,
        .lock = PTHREAD_MUTEX_INITIALIZER,
        .changed = PTHREAD_COND_INITIALIZER};
    struct rank all[RANKS_MAX];
    pthread_t threads[RANKS_MAX];
    for (unsigned i = 0; i < ranks; i++) {
        all[i] =
            (struct rank){.meeting = &meeting, .number = i, .seed = seed, .swa = swa};
        CHECK_EQ(pthread_create(&threads[i], NULL, run_rank, &all[i]), 0);
    }
    for (unsigned i = 0; i < ranks; i++)
        CHECK_EQ(pthread_join(threads[i], NULL), 0);
    for (unsigned i = 0; i < ranks; i++) {
        if (all[i].broken[0] != '\0')
            fail_msg("seed %llu: %s", (unsigned long long)seed, all[i].broken);
        CHECK(all[i].idle_calls <= 1);
    }
    CHECK(!meeting.mismatch);
}

TEST(two_ranks_that_differ_make_the_same_calls)
{
    for (uint64_t seed = 1; seed <= 12; seed++)
        run_ranks(2, seed, seed % 2 == 0);
}

TEST(four_ranks_that_differ_make_the_same_calls)
{
    for (uint64_t seed = 1; seed <= 8; seed++)
        run_ranks(4, seed, seed % 2 == 0);
}

TEST(eight_ranks_that_differ_make_the_same_calls)
{
    for (uint64_t seed = 1; seed <= 4; seed++)
        run_ranks(8, seed, seed % 2 == 0);
}

/* ---- Room on one rank only ----------------------------------------------------------------- */

struct tight {
    struct meeting *meeting;
    uint64_t slots;
    kvg_err err;
    uint64_t length, held, nodes;
};

static void *run_tight(void *context)
{
    struct tight *rank = context;
    struct kvg_engine_options options;
    struct kvg_engine *engine = NULL;
    struct kvg_engine_match match;
    struct kvg_audit_totals totals = {0};
    struct kvg_tree_stats stats;
    uint32_t tokens[30] = {1, 2, 3};
    uint64_t more = 30;
    kvg_row row;
    kvg_engine_options_init(&options);
    options.full_slots = rank->slots;
    options.row_count = 4;
    options.context_tokens = 40;
    options.agreement = (struct kvg_agreement){meet, rank->meeting};
    rank->err = kvg_engine_new(kvg_alloc_default(), &options, &engine, NULL);
    if (rank->err != KVG_OK)
        return NULL;
    struct kvg_engine_prompt prompt = {
        .id = 1, .key = {.tokens = tokens, .token_count = 30}};
    rank->err = kvg_engine_begin(engine, &prompt, &match, &row, NULL);
    if (rank->err == KVG_OK) {
        rank->err = kvg_engine_extend(engine, &row, &more, 1, NULL);
        rank->length = kvg_rows_length(kvg_engine_rows(engine), row);
    }
    if (kvg_engine_audit(engine, &totals, NULL, NULL) != KVG_OK)
        rank->err = KVG_ESTATE;
    rank->held = totals.claimed_slots[KVG_CLAIM_HELD];
    kvg_tree_stats(kvg_engine_tree(engine), &stats);
    rank->nodes = stats.nodes;
    kvg_engine_free(engine);
    return NULL;
}

TEST(b59_room_on_one_rank_only_is_room_on_none)
{
    struct meeting meeting = {.ranks = 2,
        .lock = PTHREAD_MUTEX_INITIALIZER,
        .changed = PTHREAD_COND_INITIALIZER};
    struct tight ranks[2] = {
        {.meeting = &meeting, .slots = 64}, {.meeting = &meeting, .slots = 16}};
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, run_tight, &ranks[i]), 0);
    for (int i = 0; i < 2; i++)
        CHECK_EQ(pthread_join(threads[i], NULL), 0);
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(ranks[i].err, KVG_ENOSPACE);
        CHECK_EQ(ranks[i].length, 0);
        CHECK_EQ(ranks[i].held, 0); /* No reservation is left. */
        CHECK_EQ(ranks[i].nodes, 1);
    }
    CHECK(!meeting.mismatch);
}

TEST_MAIN(RUN(two_ranks_that_differ_make_the_same_calls),
    RUN(four_ranks_that_differ_make_the_same_calls),
    RUN(eight_ranks_that_differ_make_the_same_calls),
    RUN(b59_room_on_one_rank_only_is_room_on_none))
