/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* bench_transport.c -- a prefix of 32k tokens from a store to an engine's memory and back, by the
 * mover.
 *
 * The engine is one rank of eight of a model with 32 layers and 8 key-value heads of 128 halves:
 * 256 bytes of k and of v a token and layer, pages of 64 tokens, so parts of 512 KiB and 512 MiB
 * in all.  The floor is memcpy of the same bytes in the same pieces, layer by layer, by one
 * thread, from memory that no cache holds to memory that was touched before.
 *
 * Slots come as a pool that has been in use for a while gives them: runs of pages here and there.
 * KVB_STORE_DIR is where `file:` goes (default /tmp); it is read out of the page cache. */
#include "bench.h"

#include <kvgraft/transport.h>

#include <stdlib.h>
#include <unistd.h>

#define LAYERS 32
#define PAGE 64u
#define SLOT_BYTES 256u
#define RUN_PAGES 4u

static struct {
    size_t pages;
    struct kvg_key *keys;
    struct kvg_span *spans; /* In the order of the pages. */
    size_t span_count;
    char *memory[2][LAYERS];
    char *source; /* For the floor: as many bytes. */
    size_t bytes;
    struct kvg_layout *layout;
    struct kvg_store *store;
    struct kvg_mover *mover;
    struct kvg_transport transport;
    double first_layer_ns;
} B;

static void need(bool good, const char *what)
{
    if (good)
        return;
    fprintf(stderr, "bench_transport: %s\n", what);
    exit(1);
}

static void make_engine(size_t tokens)
{
    uint64_t slots = tokens + PAGE;
    size_t i;
    size_t k;

    B.pages = tokens / PAGE;
    B.bytes = tokens * LAYERS * 2 * SLOT_BYTES;
    B.keys = calloc(B.pages, sizeof(*B.keys));
    B.span_count = B.pages / RUN_PAGES;
    B.spans = calloc(B.span_count, sizeof(*B.spans));
    B.source = aligned_alloc(4096, B.bytes);
    need(B.keys != NULL && B.spans != NULL && B.source != NULL, "no memory");
    memset(B.source, 3, B.bytes);
    for (i = 0; i < B.pages; i++)
        memcpy(B.keys[i].bytes, &i, sizeof(i));
    /* An odd step in a power of two: every run once, none beside its neighbour. */
    for (i = 0; i < B.span_count; i++)
        B.spans[i] =
            (struct kvg_span){.offset = (i * 37 % B.span_count) * RUN_PAGES * PAGE + PAGE,
                .length = RUN_PAGES * PAGE};
    for (k = 0; k < 2; k++) {
        for (i = 0; i < LAYERS; i++) {
            B.memory[k][i] = aligned_alloc(4096, slots * SLOT_BYTES);
            need(B.memory[k][i] != NULL, "no memory");
            memset(B.memory[k][i], (int)(i * 2 + k), slots * SLOT_BYTES);
        }
    }
}

static void make_layout(void)
{
    struct kvg_layout_config config = {.struct_bytes = sizeof(config),
        .rule.page_size = PAGE,
        .tp_size = 1,
        .tag = {"bench", 5}};
    struct kvg_error error = {0};

    need(kvg_layout_new(kvg_alloc_default(), &config, &error, &B.layout) == KVG_OK,
        error.message);
}

static void open_mover(uint32_t workers, uint32_t layers_a_read)
{
    struct kvg_device_plane planes[2] = {{.suffix = {"_0_k", 4},
                                             .layers = (void *const *)B.memory[0],
                                             .slot_bytes = SLOT_BYTES},
        {.suffix = {"_0_v", 4},
            .layers = (void *const *)B.memory[1],
            .slot_bytes = SLOT_BYTES}};
    struct kvg_device_pool pool = {.component = KVG_COMPONENT_FULL,
        .layer_count = LAYERS,
        .slot_count = B.pages * PAGE + PAGE,
        .planes = planes,
        .plane_count = 2};
    struct kvg_mover_options options = {.struct_bytes = sizeof(options),
        .store = B.store,
        .layout = B.layout,
        .pools = &pool,
        .pool_count = 1,
        .owner = true,
        .worker_count = workers,
        .layers_a_read = layers_a_read};
    struct kvg_error error = {0};

    need(kvg_mover_new(kvg_alloc_default(), &options, &B.mover, &error) == KVG_OK,
        error.message);
    B.transport = kvg_mover_transport(B.mover);
}

static struct kvg_tree_transfer all_pages(void)
{
    return (struct kvg_tree_transfer){.component = KVG_COMPONENT_FULL,
        .keys = B.keys,
        .key_count = B.pages,
        .spans = B.spans,
        .span_count = B.span_count};
}

static void offload(void *context)
{
    struct kvg_tree_transfer transfer = all_pages();
    bool good = false;

    (void)context;
    need(B.transport.offload(B.mover, &transfer, 1) == KVG_OK, "offload refused");
    kvg_mover_finish(B.mover);
    need(B.transport.take_offloads(B.mover, &good, 1) == 1 && good, "offload failed");
}

/* As a forward pass does: waits for each layer in turn. */
static void load(void *context)
{
    struct kvg_tree_transfer transfer = all_pages();
    struct kvg_load_result result = {0};
    uint64_t began = kvb_now_ns();
    int64_t batch;
    uint32_t layer;

    (void)context;
    need(B.transport.load(B.mover, 1, &transfer, 1) == KVG_OK, "load refused");
    batch = B.transport.start_loads(B.mover);
    for (layer = 0; layer < LAYERS; layer++) {
        need(B.transport.wait_layer(B.mover, batch, layer) == KVG_OK, "a layer failed");
        if (layer == 0)
            B.first_layer_ns = (double)(kvb_now_ns() - began);
    }
    kvg_mover_finish(B.mover);
    need(B.transport.take_loads(B.mover, &result, 1) == 1 && result.success,
        "load failed");
}

/* Page by page and layer by layer, to or from the pool. */
static void copy(bool to_pool)
{
    size_t page_bytes = PAGE * SLOT_BYTES;
    size_t layer;
    size_t k;
    size_t i;

    for (layer = 0; layer < LAYERS; layer++) {
        for (i = 0; i < B.pages; i++) {
            const struct kvg_span *span = &B.spans[i / RUN_PAGES];
            size_t slot = (size_t)span->offset + i % RUN_PAGES * PAGE;

            for (k = 0; k < 2; k++) {
                char *there = B.source + ((i * 2 + k) * LAYERS + layer) * page_bytes;
                char *here = B.memory[k][layer] + slot * SLOT_BYTES;

                memcpy(to_pool ? here : there, to_pool ? there : here, page_bytes);
            }
        }
    }
    kvb_keep(B.source);
}

static void copy_in(void *context)
{
    (void)context;
    copy(true);
}

static void copy_out(void *context)
{
    (void)context;
    copy(false);
}

static void row(struct kvb_table *table, const char *what, double floor_ns,
    double figure_ns, const char *note)
{
    kvb_row(table, &(struct kvb_row){.what = what,
                       .figure = (double)B.bytes / figure_ns * 1e9,
                       .unit = "B/s",
                       .floor = (double)B.bytes / floor_ns * 1e9,
                       .floor_is = "memcpy of the same pieces, one thread",
                       .more_is_better = true,
                       .note = note});
}

static void measure_load(
    struct kvb_table *table, const char *name, uint32_t workers, uint32_t layers_a_read)
{
    unsigned repeats = table->quick ? 2 : 4;
    double floor = 0;
    double figure = 0;
    double first = 0;
    char what[96];
    char note[96];
    unsigned i;

    open_mover(workers, layers_a_read);
    for (i = 0; i < repeats; i++) {
        double floor_now = kvb_best_ns(1, copy_in, NULL);
        double now = kvb_best_ns(1, load, NULL);

        floor = i == 0 || floor_now < floor ? floor_now : floor;
        if (i == 0 || now < figure) {
            figure = now;
            first = B.first_layer_ns;
        }
    }
    kvg_mover_free(B.mover);
    snprintf(what, sizeof(what), "%s load, %u worker%s, %s", name, workers,
        workers == 1 ? "" : "s",
        layers_a_read == 0   ? "as usual: 4 layers a read"
        : layers_a_read == 1 ? "1 layer a read"
                             : "all layers a read");
    snprintf(note, sizeof(note), "the first layer is there after %.1f %% of the time",
        first / figure * 100);
    row(table, what, floor, figure, note);
}

static void measure_store(struct kvb_table *table, const char *name, const char *url)
{
    struct kvg_error error = {0};
    unsigned repeats = table->quick ? 2 : 4;
    double floor = 0;
    double figure = 0;
    char what[96];
    unsigned i;

    need(kvg_store_open(url, NULL, &B.store, &error) == KVG_OK, error.message);
    open_mover(2, 1);
    for (i = 0; i < repeats; i++) {
        double floor_now = kvb_best_ns(1, copy_out, NULL);
        double now;

        need(kvg_store_clear(B.store, NULL) == KVG_OK, "clear failed");
        now = kvb_best_ns(1, offload, NULL);
        floor = i == 0 || floor_now < floor ? floor_now : floor;
        figure = i == 0 || now < figure ? now : figure;
    }
    kvg_mover_free(B.mover);
    snprintf(what, sizeof(what), "%s offload, 2 workers", name);
    row(table, what, floor, figure, NULL);
    measure_load(table, name, 1, 1);
    measure_load(table, name, 2, 1);
    measure_load(table, name, 1, 0);
    measure_load(table, name, 2, 0);
    measure_load(table, name, 2, LAYERS);
    kvg_store_close(B.store);
}

static void run(struct kvb_table *table)
{
    const char *where = getenv("KVB_STORE_DIR");
    char dir[128];
    char text[300];

    snprintf(dir, sizeof(dir), "%s/kvgraft-bench-XXXXXX", where == NULL ? "/tmp" : where);
    need(mkdtemp(dir) != NULL, "cannot make a directory");
    make_engine(table->quick ? 8192 : 32768);
    make_layout();
    measure_store(table, "memory:", "memory:?bytes=2GiB");
    snprintf(text, sizeof(text), "file:%s/store?bytes=8GiB&floor=0&sync=none", dir);
    measure_store(table, "file:", text);
    snprintf(text, sizeof(text), "rm -rf '%s'", dir);
    need(system(text) == 0, "cannot remove the store");
}

KVB_MAIN(transport, "Transport: a prefix of 32k tokens", run)
