/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* bench_slots.c -- what giving slots out and taking them back costs.
 *
 * The floor is the plainest allocator there is: a stack of free page numbers, from which a
 * request copies as many as it wants, and onto which a release copies them back.  It finds no
 * double free, and gives no runs. */
#include "bench.h"

#include <kvgraft/slots.h>

#include "base/rng.h"

#include <stdlib.h>

#define SPANS_MAX 65536u
#define REQUESTS_MAX 65536u

/* Requests that hold pages of a pool that has been in use for a while. */
struct load {
    struct kvg_slots *slots;
    struct kvi_rng rng;
    uint64_t pages;
    uint32_t page_slots;
    struct kvg_span *held[REQUESTS_MAX];
    size_t held_count[REQUESTS_MAX];
    size_t requests;
    struct kvg_span items[SPANS_MAX];
};

/* A stack of page numbers. */
struct stack {
    uint32_t *free;
    uint32_t *out;
    uint32_t *to_window; /* The mapping of the window's floor. */
    uint32_t *to_full;
    uint64_t count;
};

struct work {
    struct load *load;
    struct stack stack;
    struct kvg_window *window;
    uint64_t pages; /* Of one request. */
    uint64_t times;
    uint64_t runs;
};

static struct load L;

static struct kvg_slots *make_pool(uint64_t pages, uint32_t page_slots)
{
    struct kvg_slots_options options = {.struct_bytes = sizeof(options),
        .capacity_slots = pages * page_slots,
        .page_slots = page_slots};
    struct kvg_slots *slots;

    if (kvg_slots_new(kvg_alloc_default(), &options, &slots, NULL) != KVG_OK)
        exit(1);
    return slots;
}

/* 1 to 4,096 pages, small ones more often. */
static uint64_t request_pages(struct kvi_rng *rng)
{
    return 1 + kvi_rng_below(rng, UINT64_C(1) << kvi_rng_below(rng, 13));
}

static bool load_take(uint64_t pages)
{
    struct kvg_spans spans = {L.items, 0, SPANS_MAX};
    size_t bytes;

    if (L.requests == REQUESTS_MAX ||
        kvg_slots_alloc(L.slots, pages * L.page_slots, &spans, NULL) != KVG_OK)
        return false;
    bytes = spans.count * sizeof(struct kvg_span);
    L.held[L.requests] = malloc(bytes);
    memcpy(L.held[L.requests], L.items, bytes);
    L.held_count[L.requests++] = spans.count;
    return true;
}

static void load_give(size_t index)
{
    if (kvg_slots_release(L.slots, L.held[index], L.held_count[index], NULL) != KVG_OK)
        exit(1);
    free(L.held[index]);
    L.requests--;
    L.held[index] = L.held[L.requests];
    L.held_count[index] = L.held_count[L.requests];
}

/* Fills a pool to nine tenths and replaces requests at random until it looks used. */
static void make_load(uint64_t pages, uint32_t page_slots, uint64_t turns)
{
    memset(&L, 0, sizeof(L));
    L.slots = make_pool(pages, page_slots);
    L.rng.state = 1;
    L.pages = pages;
    L.page_slots = page_slots;
    while (turns > 0) {
        bool full = kvg_slots_available(L.slots) <
                    L.pages * L.page_slots / 10 + 4096 * page_slots;

        if (full) {
            load_give(kvi_rng_below(&L.rng, L.requests));
            turns--;
        } else if (!load_take(request_pages(&L.rng))) {
            load_give(kvi_rng_below(&L.rng, L.requests));
        }
    }
}

static void free_load(void)
{
    while (L.requests > 0)
        load_give(L.requests - 1);
    kvg_slots_free(L.slots);
}

static void make_stack(struct stack *stack, uint64_t pages)
{
    uint64_t i;

    stack->free = malloc(pages * sizeof(uint32_t));
    stack->out = malloc(pages * sizeof(uint32_t));
    stack->to_window = malloc(pages * sizeof(uint32_t));
    stack->to_full = malloc(pages * sizeof(uint32_t));
    stack->count = pages;
    for (i = 0; i < pages; i++)
        stack->free[i] = (uint32_t)i;
}

static void free_stack(struct stack *stack)
{
    free(stack->free);
    free(stack->out);
    free(stack->to_window);
    free(stack->to_full);
}

/* ---- What is measured ----------------------------------------------------------- */

static void stack_pairs(void *context)
{
    struct work *work = context;
    struct stack *stack = &work->stack;
    uint64_t i;

    for (i = 0; i < work->times; i++) {
        size_t bytes = work->pages * sizeof(uint32_t);

        stack->count -= work->pages;
        memcpy(stack->out, stack->free + stack->count, bytes);
        kvb_keep(stack->out);
        memcpy(stack->free + stack->count, stack->out, bytes);
        kvb_keep(stack->free);
        stack->count += work->pages;
    }
}

static void pool_pairs(void *context)
{
    struct work *work = context;
    struct kvg_slots *slots = work->load->slots;
    uint64_t slot_count = work->pages * work->load->page_slots;
    uint64_t i;

    work->runs = 0;
    for (i = 0; i < work->times; i++) {
        struct kvg_spans spans = {work->load->items, 0, SPANS_MAX};

        if (kvg_slots_alloc(slots, slot_count, &spans, NULL) != KVG_OK ||
            kvg_slots_release(slots, spans.items, spans.count, NULL) != KVG_OK)
            exit(1);
        work->runs += spans.count;
    }
}

/* The same for two pools and a mapping between them, kept from both sides. */
static void stack_window_pairs(void *context)
{
    struct work *work = context;
    struct stack *stack = &work->stack;
    uint64_t half = stack->count / 4;
    uint64_t i;
    uint64_t k;

    for (i = 0; i < work->times; i++) {
        const uint32_t *full = stack->free + stack->count - work->pages;
        const uint32_t *swa = stack->free + half;

        memcpy(stack->out, full, work->pages * sizeof(uint32_t));
        memcpy(stack->out + work->pages, swa, work->pages * sizeof(uint32_t));
        for (k = 0; k < work->pages; k++) {
            stack->to_window[full[k]] = swa[k];
            stack->to_full[swa[k]] = full[k];
        }
        kvb_keep(stack->to_window);
        for (k = 0; k < work->pages; k++) {
            stack->to_full[stack->to_window[full[k]]] = UINT32_MAX;
            stack->to_window[full[k]] = UINT32_MAX;
        }
        memcpy(stack->free + stack->count - work->pages, stack->out,
            work->pages * sizeof(uint32_t));
        memcpy(
            stack->free + half, stack->out + work->pages, work->pages * sizeof(uint32_t));
        kvb_keep(stack->free);
    }
}

static void window_pairs(void *context)
{
    struct work *work = context;
    uint64_t i;

    for (i = 0; i < work->times; i++) {
        struct kvg_spans spans = {work->load->items, 0, SPANS_MAX};
        struct kvg_extend extend = {
            .last_slot = KVG_SLOT_NONE, .wanted_slots = work->pages * 64};

        if (kvg_window_extend(work->window, &extend, 1, &spans, NULL) != KVG_OK ||
            kvg_window_release(work->window, spans.items, spans.count, NULL, NULL) !=
                KVG_OK)
            exit(1);
    }
}

static int longest_first(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left;
    uint64_t b = *(const uint64_t *)right;

    return (a < b) - (a > b);
}

/* How few runs could hold `pages` pages: the longest free runs of the pool, added up. */
static double fewest_runs(const struct load *load, uint64_t pages)
{
    uint64_t *runs = calloc(load->pages, sizeof(uint64_t));
    size_t count = 0;
    uint64_t page;
    size_t i;

    for (page = 0; page < load->pages; page++) {
        if (kvg_slots_is_free(load->slots, page * load->page_slots))
            runs[count]++;
        else if (runs[count] > 0)
            count++;
    }
    qsort(runs, count + 1, sizeof(uint64_t), longest_first);
    for (i = 0; runs[i] < pages; i++)
        pages -= runs[i];
    free(runs);
    return (double)(i + 1);
}

static void add_row(struct kvb_table *table, const char *what, struct work *work,
    bool window, double target)
{
    char note[100];
    double floor = kvb_best_ns(7, window ? stack_window_pairs : stack_pairs, work);
    double figure = kvb_best_ns(7, window ? window_pairs : pool_pairs, work);
    double per = (double)(work->times * work->pages);

    if (window)
        snprintf(note, sizeof(note), "%.0f ns a request", figure / (double)work->times);
    else
        snprintf(note, sizeof(note),
            "%.0f ns a request, in %.0f runs; the fewest are %.0f",
            figure / (double)work->times, (double)work->runs / (double)work->times,
            fewest_runs(work->load, work->pages));
    kvb_row(table,
        &(struct kvb_row){.what = what,
            .figure = figure / per,
            .unit = "ns",
            .floor = floor / per,
            .floor_is = window ? "two stacks of page numbers, and two tables written"
                               : "copying page numbers from a stack and back",
            .target = target,
            .note = note});
}

static void bench_used_pool(struct kvb_table *table, uint64_t pages, const char *names[4])
{
    static const uint64_t SIZES[] = {1, 16, 256, 2048};
    static const double TARGETS[] = {20, 10, 4, 4};
    struct work work = {.load = &L};
    size_t i;

    make_load(pages, 64, table->quick ? 2000 : 40000);
    make_stack(&work.stack, pages);
    for (i = 0; i < 4; i++) {
        work.pages = SIZES[i];
        work.times = (table->quick ? 200000 : 2000000) / (SIZES[i] + 19);
        add_row(table, names[i], &work, false, TARGETS[i]);
    }
    free_stack(&work.stack);
    free_load();
}

/* Every second page is free: no allocator can give runs. */
static void bench_comb(struct kvb_table *table)
{
    uint64_t pages = 1u << 18;
    struct work work = {.load = &L, .pages = 2048, .times = table->quick ? 50 : 500};
    struct kvg_span all = {.offset = 0, .length = (uint32_t)pages};
    struct kvg_spans spans = {L.items, 0, SPANS_MAX};
    uint64_t i;

    memset(&L, 0, sizeof(L));
    L.slots = make_pool(pages, 1);
    L.page_slots = 1;
    L.pages = pages;
    if (kvg_slots_alloc(L.slots, all.length, &spans, NULL) != KVG_OK)
        exit(1);
    for (i = 0; i < pages; i += 2) {
        struct kvg_span one = {.offset = i, .length = 1};

        if (kvg_slots_release(L.slots, &one, 1, NULL) != KVG_OK)
            exit(1);
    }
    make_stack(&work.stack, pages);
    add_row(table, "2,048 pages, every second page in use", &work, false, 40);
    free_stack(&work.stack);
    kvg_slots_free(L.slots);
}

static void bench_window(struct kvb_table *table)
{
    struct kvg_window_options options = {.struct_bytes = sizeof(options),
        .page_slots = 64,
        .full_slots = 64u << 18,
        .window_slots = 64u << 16};
    struct work work = {.load = &L, .pages = 256, .times = table->quick ? 500 : 5000};

    if (kvg_window_new(kvg_alloc_default(), &options, &work.window, NULL) != KVG_OK)
        exit(1);
    make_stack(&work.stack, 1u << 18);
    add_row(table, "256 pages of both pools, mapped and freed", &work, true, 6);
    free_stack(&work.stack);
    kvg_window_free(work.window);
}

static size_t counted_bytes;

static void *count_allocate(void *context, size_t bytes)
{
    (void)context;
    counted_bytes += bytes;
    return malloc(bytes);
}

static void count_release(void *context, void *memory, size_t bytes)
{
    (void)context;
    (void)bytes;
    free(memory);
}

static void bench_memory(struct kvb_table *table)
{
    const struct kvg_alloc counting = {count_allocate, count_release, NULL};
    struct kvg_slots_options options = {
        .struct_bytes = sizeof(options), .capacity_slots = UINT64_C(1) << 28};
    struct kvg_slots *slots;

    if (kvg_slots_new(&counting, &options, &slots, NULL) != KVG_OK)
        exit(1);
    kvb_row(table, &(struct kvb_row){.what = "memory of a pool, 2^28 pages",
                       .figure = (double)counted_bytes * 8 / (double)(UINT64_C(1) << 28),
                       .unit = "bits a page",
                       .floor = 1,
                       .floor_is = "a bit a page",
                       .target = 1.06});
    kvg_slots_free(slots);
}

static void run(struct kvb_table *table)
{
    static const char *SMALL[] = {
        "1 page, 90 % of 2^18 pages in use", "16 pages", "256 pages", "2,048 pages"};
    static const char *LARGE[] = {
        "1 page, 90 % of 2^24 pages in use", "16 pages", "256 pages", "2,048 pages"};

    bench_used_pool(table, UINT64_C(1) << 18, SMALL);
    if (!table->quick)
        bench_used_pool(table, UINT64_C(1) << 24, LARGE);
    bench_comb(table);
    bench_window(table);
    bench_memory(table);
}

KVB_MAIN(slots, "Slots: allocate and release, per page of the request", run)
