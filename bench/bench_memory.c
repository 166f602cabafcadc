/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* bench_memory.c -- what `memory:` costs on top of memcpy, in one thread and in several.
 *
 * Threads share the machine with whatever else it does: the best of many short runs, each row
 * beside memcpy in as many threads. */
#include "bench.h"

#include <kvgraft/store.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#define PARTS 4096
#define BATCH 128

struct work {
    struct kvg_store *store;
    uint8_t *data;
    uint8_t *out;
    size_t bytes; /* Of a part. */
    size_t count; /* Parts a run. */
    size_t batch; /* Parts a call. */
};

static char KEYS[PARTS][72];

static double rate(const struct work *work, double ns)
{
    return (double)work->bytes * (double)work->count / ns * 1e9;
}

static struct kvg_store *open_store(void)
{
    struct kvg_store *store;

    if (kvg_store_open("memory:?bytes=4GiB", NULL, &store, NULL) != KVG_OK)
        exit(1);
    return store;
}

static void store_put(void *context)
{
    static struct kvg_store_part parts[BATCH];
    static struct kvg_store_group groups[BATCH];
    struct work *work = context;
    struct kvg_store_piece piece = {work->data, work->bytes};
    size_t done;
    size_t i;

    for (done = 0; done < work->count; done += i) {
        for (i = 0; i < work->batch && done + i < work->count; i++) {
            const char *key = KEYS[done + i];

            parts[i] = (struct kvg_store_part){{key, strlen(key)}, &piece, 1};
            groups[i] = (struct kvg_store_group){.parts = &parts[i], .part_count = 1};
        }
        if (kvg_store_put(work->store, groups, i, NULL) != KVG_OK)
            exit(1);
    }
}

static void store_get(void *context)
{
    static struct kvg_store_range ranges[BATCH];
    static struct kvg_store_get gets[BATCH];
    struct work *work = context;
    size_t done;
    size_t i;

    for (done = 0; done < work->count; done += i) {
        for (i = 0; i < work->batch && done + i < work->count; i++) {
            const char *key = KEYS[done + i];

            ranges[i] =
                (struct kvg_store_range){0, work->bytes, work->out + i * work->bytes};
            gets[i] = (struct kvg_store_get){
                .key = {key, strlen(key)}, .ranges = &ranges[i], .range_count = 1};
        }
        if (kvg_store_get(work->store, gets, i, NULL) != KVG_OK ||
            gets[0].result != KVG_OK || gets[i - 1].result != KVG_OK)
            exit(1);
    }
}

static void copy(void *context)
{
    struct work *work = context;
    size_t i;

    for (i = 0; i < work->count; i++) {
        memcpy(work->out, work->data, work->bytes);
        kvb_keep(work->out);
    }
}

static void copy_apart(void *context)
{
    struct work *work = context;
    size_t i;

    for (i = 0; i < work->count; i++)
        memcpy(work->out + i * work->bytes, work->data, work->bytes);
    kvb_keep(work->out);
}

static void clear_and_put(void *context)
{
    struct work *work = context;

    if (kvg_store_clear(work->store, NULL) != KVG_OK)
        exit(1);
    store_put(work);
}

static void measure_memory(struct kvb_table *table, struct work *work)
{
    double floor = 0;
    double figure = 0;

    work->batch = 16;
    work->store = open_store();
    floor = rate(work, kvb_best_ns(5, copy_apart, work));
    figure = rate(work, kvb_best_ns(5, clear_and_put, work));
    kvb_row(table, &(struct kvb_row){.what = "memory: put, 1 MiB parts",
                       .figure = figure,
                       .unit = "B/s",
                       .floor = floor,
                       .floor_is = "memcpy to as many places",
                       .more_is_better = true});
    work->batch = 1;
    floor = rate(work, kvb_best_ns(5, copy, work));
    figure = rate(work, kvb_best_ns(5, store_get, work));
    kvb_row(table, &(struct kvb_row){.what = "memory: get, 1 MiB parts",
                       .figure = figure,
                       .unit = "B/s",
                       .floor = floor,
                       .floor_is = "memcpy, always of the same megabyte",
                       .more_is_better = true});
    kvg_store_close(work->store);
}

/* ---- In threads ---------------------------------------------------------------------------- */

#define THREADS_MAX 8
#define THREAD_PARTS 1024u
#define THREAD_CALLS 2000u

struct crowd {
    struct kvg_store *store;
    unsigned threads;
    bool copies_only;
    unsigned put_every; /* One call in so many is a put of other keys; 0: none. */
    uint8_t *values;    /* As many bytes as the store holds. */
    _Atomic unsigned next;
};

static void *one_of_a_crowd(void *context)
{
    struct crowd *crowd = context;
    unsigned me = crowd->next++;
    uint8_t *out = aligned_alloc(4096, 16 * 4096);
    struct kvg_store_piece piece = {out, 4096};
    struct kvg_store_range ranges[16];
    struct kvg_store_get gets[16];
    struct kvg_store_part parts[16];
    struct kvg_store_group groups[16];
    unsigned call;
    unsigned i;

    for (call = 0; call < THREAD_CALLS; call++) {
        unsigned first = (call * 37 + me * 11) % (THREAD_PARTS / 16) * 16;
        bool put = crowd->put_every > 0 && call % crowd->put_every == 0;
        kvg_err err;

        for (i = 0; i < 16; i++) {
            const char *key = KEYS[first + i];

            if (put)
                key = KEYS[THREAD_PARTS + (call * 16 + me * 997 + i) % 3000];
            ranges[i] = (struct kvg_store_range){0, 4096, out + i * 4096};
            gets[i] = (struct kvg_store_get){{key, strlen(key)}, &ranges[i], 1, 0, 0};
            parts[i] = (struct kvg_store_part){{key, strlen(key)}, &piece, 1};
            groups[i] = (struct kvg_store_group){.parts = &parts[i], .part_count = 1};
            if (crowd->copies_only)
                memcpy(out + i * 4096, crowd->values + (size_t)(first + i) * 4096, 4096);
        }
        kvb_keep(out);
        if (crowd->copies_only)
            continue;
        err = put ? kvg_store_put(crowd->store, groups, 16, NULL)
                  : kvg_store_get(crowd->store, gets, 16, NULL);
        if (err != KVG_OK && err != KVG_EEXIST)
            exit(1);
    }
    free(out);
    return NULL;
}

static void run_crowd(void *context)
{
    struct crowd *crowd = context;
    pthread_t threads[THREADS_MAX];
    unsigned i;

    crowd->next = 0;
    for (i = 0; i < crowd->threads; i++) {
        if (pthread_create(&threads[i], NULL, one_of_a_crowd, crowd) != 0)
            exit(1);
    }
    for (i = 0; i < crowd->threads; i++)
        pthread_join(threads[i], NULL);
}

static void measure_crowd(struct kvb_table *table, unsigned put_every)
{
    static struct crowd crowd;
    unsigned repeats = table->quick ? 5 : 40;
    struct work work = {.bytes = 4096, .count = THREAD_PARTS, .batch = BATCH};

    crowd.values = aligned_alloc(4096, (size_t)THREAD_PARTS * 4096);
    work.data = crowd.values;
    memset(crowd.values, 1, (size_t)THREAD_PARTS * 4096);
    work.store = crowd.store = open_store();
    store_put(&work);
    crowd.put_every = put_every;
    for (crowd.threads = 1; crowd.threads <= THREADS_MAX; crowd.threads *= 2) {
        double calls = 16.0 * THREAD_CALLS * crowd.threads;
        double floor;
        double figure;
        char what[96];

        if (crowd.threads == 4)
            continue;
        crowd.copies_only = true;
        floor = kvb_best_ns(repeats, run_crowd, &crowd);
        crowd.copies_only = false;
        figure = kvb_best_ns(repeats, run_crowd, &crowd);
        snprintf(what, sizeof(what), "memory: %s, 4 KiB parts, 16 a call, %u thread%s",
            put_every == 0 ? "get" : "15 gets to a put", crowd.threads,
            crowd.threads == 1 ? "" : "s");
        kvb_row(table, &(struct kvb_row){.what = what,
                           .figure = calls / figure * 1e9,
                           .unit = "parts/s",
                           .floor = calls / floor * 1e9,
                           .floor_is = "memcpy of the same bytes in as many threads",
                           .more_is_better = true});
    }
    kvg_store_close(crowd.store);
    free(crowd.values);
}

static void run(struct kvb_table *table)
{
    struct work work = {.bytes = 1 << 20, .count = 64};
    size_t i;

    for (i = 0; i < PARTS; i++)
        snprintf(KEYS[i], sizeof(KEYS[i]), "%016zx%016zx%016zx%016zx_0_k", i * 7919,
            i * 104729, i, i * 31);
    work.data = aligned_alloc(4096, work.bytes);
    work.out = aligned_alloc(4096, work.count * work.bytes);
    if (work.data == NULL || work.out == NULL)
        exit(1);
    memset(work.data, 1, work.bytes);
    memset(work.out, 1, work.count * work.bytes);
    measure_memory(table, &work);
    measure_crowd(table, 0);
    measure_crowd(table, 16);
    free(work.data);
    free(work.out);
}

KVB_MAIN(memory, "The store in memory", run)
