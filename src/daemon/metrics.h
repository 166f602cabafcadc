/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* metrics.h -- counters and histograms of the threads that answer, in Prometheus' text form.
 *
 * Each thread counts into a block of its own; a scrape adds the blocks up.  So counting costs a
 * plain addition, and a label can only have the values in the table.
 *
 * Threads: a block is written by its thread and read by any (relaxed atomics).
 */
#ifndef KVD_METRICS_H
#define KVD_METRICS_H

#include "daemon/out.h"

#include <stdatomic.h>

/* X(enum, name, label, help): rows of one name stand together, the help with the first. */
#define KVD_COUNTERS(X)                                                                  \
    X(KVD_LOOKUPS_ALL, "kvgraft_lookups_total", "result=\"all\"",                        \
        "Prompts asked for, by how the question ended.  all: every page, without a "     \
        "gap.")                                                                          \
    X(KVD_LOOKUPS_SOME, "kvgraft_lookups_total", "result=\"some\"", NULL)                \
    X(KVD_LOOKUPS_NONE, "kvgraft_lookups_total", "result=\"none\"", NULL)                \
    X(KVD_LOOKUPS_TOO_SHORT, "kvgraft_lookups_total", "result=\"too_short\"", NULL)      \
    X(KVD_LOOKUPS_NO_SOURCE, "kvgraft_lookups_total", "result=\"no_source\"", NULL)      \
    X(KVD_LOOKUPS_NO_LAYOUT, "kvgraft_lookups_total", "result=\"no_layout\"", NULL)      \
    X(KVD_LOOKUPS_PAGE_SIZE, "kvgraft_lookups_total", "result=\"page_size_differs\"",    \
        NULL)                                                                            \
    X(KVD_LOOKUPS_BAD_REQUEST, "kvgraft_lookups_total", "result=\"bad_request\"", NULL)  \
    X(KVD_LOOKUPS_NO_MEMORY, "kvgraft_lookups_total", "result=\"no_memory\"", NULL)      \
    X(KVD_PAGES_CONTIGUOUS, "kvgraft_lookup_pages_total", "result=\"contiguous\"",       \
        "Pages asked for: usable from the start, present beyond a gap, or absent.")      \
    X(KVD_PAGES_BEYOND, "kvgraft_lookup_pages_total", "result=\"beyond_gap\"", NULL)     \
    X(KVD_PAGES_ABSENT, "kvgraft_lookup_pages_total", "result=\"absent\"", NULL)         \
    X(KVD_TOKENS, "kvgraft_lookup_tokens_total", "", "Tokens of the prompts asked for.") \
    X(KVD_LOOKUPS_NAMESPACED, "kvgraft_lookup_namespaced_total", "",                     \
        "Prompts with an extra key or a cache salt.")                                    \
    X(KVD_BLIND, "kvgraft_lookup_confidence_total", "confidence=\"blind\"",              \
        "Answers, by what they were worth.")                                             \
    X(KVD_SUSPECT, "kvgraft_lookup_confidence_total", "confidence=\"suspect\"", NULL)    \
    X(KVD_REBUILDING, "kvgraft_lookup_confidence_total", "confidence=\"rebuilding\"",    \
        NULL)                                                                            \
    X(KVD_FRESH, "kvgraft_lookup_confidence_total", "confidence=\"fresh\"", NULL)        \
    X(KVD_RETRIES, "kvgraft_lookup_retries_total", "",                                   \
        "Slots of the index read again because the writer was at them.")                 \
    X(KVD_GAVE_UP, "kvgraft_lookup_gave_up_total", "",                                   \
        "Slots that changed too often and were answered as absent.")                     \
    X(KVD_MEMO_REUSED, "kvgraft_memo_pages_total", "result=\"reused\"",                  \
        "Page keys: out of the memo, or hashed.")                                        \
    X(KVD_MEMO_HASHED, "kvgraft_memo_pages_total", "result=\"hashed\"", NULL)            \
    X(KVD_HTTP_2XX, "kvgraft_http_requests_total", "status=\"2xx\"",                     \
        "HTTP requests by the class of their status.")                                   \
    X(KVD_HTTP_4XX, "kvgraft_http_requests_total", "status=\"4xx\"", NULL)               \
    X(KVD_HTTP_5XX, "kvgraft_http_requests_total", "status=\"5xx\"", NULL)               \
    X(KVD_REFUSED_AUTH, "kvgraft_http_refused_total", "reason=\"unauthorized\"",         \
        "HTTP requests refused before they were looked at.")                             \
    X(KVD_REFUSED_LARGE, "kvgraft_http_refused_total", "reason=\"too_large\"", NULL)     \
    X(KVD_REFUSED_PATH, "kvgraft_http_refused_total", "reason=\"not_found\"", NULL)      \
    X(KVD_REFUSED_METHOD, "kvgraft_http_refused_total", "reason=\"method\"", NULL)       \
    X(KVD_REFUSED_TYPE, "kvgraft_http_refused_total", "reason=\"content_type\"", NULL)   \
    X(KVD_REFUSED_BUSY, "kvgraft_http_refused_total", "reason=\"busy\"", NULL)           \
    X(KVD_BODY_BYTES, "kvgraft_http_body_bytes_total", "", "Bytes of request bodies.")

enum kvd_counter {
#define KVD_COUNTER_ENUM(id, name, label, help) id,
    KVD_COUNTERS(KVD_COUNTER_ENUM)
#undef KVD_COUNTER_ENUM
    KVD_COUNTER_COUNT
};

enum kvd_histogram {
    KVD_LOOKUP_TIME,  /* Hashing and index together. */
    KVD_HASH_TIME,    /* Page keys. */
    KVD_REQUEST_TIME, /* From the last byte of the request to the answer handed over. */
    KVD_HISTOGRAM_COUNT
};

#define KVD_BUCKETS 16u

struct kvd_block {
    _Alignas(64) atomic_uint_least64_t counters[KVD_COUNTER_COUNT];
    atomic_uint_least64_t buckets[KVD_HISTOGRAM_COUNT][KVD_BUCKETS];
    atomic_uint_least64_t sums_us[KVD_HISTOGRAM_COUNT];
};

/* Only the block's own thread. */
static inline void kvd_count(
    struct kvd_block *block, enum kvd_counter counter, uint64_t by)
{
    atomic_store_explicit(&block->counters[counter],
        atomic_load_explicit(&block->counters[counter], memory_order_relaxed) + by,
        memory_order_relaxed);
}
void kvd_observe_us(struct kvd_block *block, enum kvd_histogram histogram, uint64_t us);

/* The sum over blocks. */
uint64_t kvd_counter_sum(
    const struct kvd_block *blocks, size_t block_count, enum kvd_counter counter);
uint64_t kvd_histogram_sum_us(
    const struct kvd_block *blocks, size_t block_count, enum kvd_histogram histogram);
/* Writes all of the above. */
void kvd_metrics_write(
    struct kvd_out *out, const struct kvd_block *blocks, size_t block_count);

/* Writes "# HELP" and "# TYPE"; type is "counter", "gauge" or "histogram". */
void kvd_metric_head(
    struct kvd_out *out, const char *name, const char *type, const char *help);
/* A label's value, escaped, with its quotes. */
void kvd_metric_label(struct kvd_out *out, const char *value);

#endif
