/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* metrics.c -- adding blocks up and writing them as text. */
#include "daemon/metrics.h"

#include <string.h>

struct counter_row {
    const char *name;
    const char *label;
    const char *help;
};

static const struct counter_row COUNTERS[] = {
#define COUNTER_ROW(id, name, label, help) {name, label, help},
    KVD_COUNTERS(COUNTER_ROW)
#undef COUNTER_ROW
};

static const struct {
    const char *name;
    const char *help;
} HISTOGRAMS[KVD_HISTOGRAM_COUNT] = {
    {"kvgraft_lookup_seconds", "Time of a lookup: page keys and index."},
    {"kvgraft_lookup_hash_seconds", "Time of making the page keys of a lookup."},
    {"kvgraft_http_request_seconds",
        "Time from the last byte of a request to its answer."},
};

/* Upper bounds; the last bucket has none. */
static const uint64_t BOUNDS_US[KVD_BUCKETS - 1] = {5, 10, 20, 50, 100, 200, 500, 1000,
    2000, 5000, 10000, 50000, 100000, 500000, 1000000};
static const char *const BOUNDS[KVD_BUCKETS] = {"0.000005", "0.00001", "0.00002",
    "0.00005", "0.0001", "0.0002", "0.0005", "0.001", "0.002", "0.005", "0.01", "0.05",
    "0.1", "0.5", "1", "+Inf"};

void kvd_observe_us(struct kvd_block *block, enum kvd_histogram histogram, uint64_t us)
{
    size_t bucket = 0;
    atomic_uint_least64_t *at;

    while (bucket < KVD_BUCKETS - 1 && us > BOUNDS_US[bucket])
        bucket++;
    at = &block->buckets[histogram][bucket];
    atomic_store_explicit(
        at, atomic_load_explicit(at, memory_order_relaxed) + 1, memory_order_relaxed);
    at = &block->sums_us[histogram];
    atomic_store_explicit(
        at, atomic_load_explicit(at, memory_order_relaxed) + us, memory_order_relaxed);
}

uint64_t kvd_counter_sum(
    const struct kvd_block *blocks, size_t block_count, enum kvd_counter counter)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < block_count; i++)
        sum += atomic_load_explicit(&blocks[i].counters[counter], memory_order_relaxed);
    return sum;
}

uint64_t kvd_histogram_sum_us(
    const struct kvd_block *blocks, size_t block_count, enum kvd_histogram histogram)
{
    uint64_t sum_us = 0;

    for (size_t i = 0; i < block_count; i++)
        sum_us +=
            atomic_load_explicit(&blocks[i].sums_us[histogram], memory_order_relaxed);
    return sum_us;
}

void kvd_metric_head(
    struct kvd_out *out, const char *name, const char *type, const char *help)
{
    kvd_out_printf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

void kvd_metric_label(struct kvd_out *out, const char *value)
{
    kvd_out_text(out, "\"");
    for (; *value != '\0'; value++) {
        if (*value == '\\' || *value == '"')
            kvd_out_printf(out, "\\%c", *value);
        else if (*value == '\n')
            kvd_out_text(out, "\\n");
        else
            kvd_out_bytes(out, value, 1);
    }
    kvd_out_text(out, "\"");
}

static void write_histogram(struct kvd_out *out, const struct kvd_block *blocks,
    size_t block_count, enum kvd_histogram histogram)
{
    const char *name = HISTOGRAMS[histogram].name;
    uint64_t sum_us;
    uint64_t count = 0;

    kvd_metric_head(out, name, "histogram", HISTOGRAMS[histogram].help);
    for (size_t bucket = 0; bucket < KVD_BUCKETS; bucket++) {
        for (size_t i = 0; i < block_count; i++)
            count += atomic_load_explicit(
                &blocks[i].buckets[histogram][bucket], memory_order_relaxed);
        kvd_out_printf(out, "%s_bucket{le=\"%s\"} ", name, BOUNDS[bucket]);
        kvd_out_u64(out, count);
        kvd_out_text(out, "\n");
    }
    sum_us = kvd_histogram_sum_us(blocks, block_count, histogram);
    kvd_out_printf(out, "%s_sum %llu.%06u\n%s_count ", name,
        (unsigned long long)(sum_us / 1000000), (unsigned)(sum_us % 1000000), name);
    kvd_out_u64(out, count);
    kvd_out_text(out, "\n");
}

void kvd_metrics_write(
    struct kvd_out *out, const struct kvd_block *blocks, size_t block_count)
{
    for (size_t i = 0; i < KVD_COUNTER_COUNT; i++) {
        const struct counter_row *row = &COUNTERS[i];

        if (row->help != NULL)
            kvd_metric_head(out, row->name, "counter", row->help);
        kvd_out_text(out, row->name);
        if (row->label[0] != '\0')
            kvd_out_printf(out, "{%s}", row->label);
        kvd_out_text(out, " ");
        kvd_out_u64(out, kvd_counter_sum(blocks, block_count, (enum kvd_counter)i));
        kvd_out_text(out, "\n");
    }
    for (size_t i = 0; i < KVD_HISTOGRAM_COUNT; i++)
        write_histogram(out, blocks, block_count, (enum kvd_histogram)i);
}
