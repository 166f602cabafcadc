/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* simulate.h -- the parts of `kvgraft simulate`: what a cache of some size would have hit.
 *
 *     arguments (simulate_args.c)          trace in memory (simulate_trace.c)
 *              \                                  /
 *               jobs: one capacity and policy each
 *                              |
 *               sweep (simulate_sweep.c): two threads at most
 *                              |
 *               run (simulate_run.c): the real tree and slots, one job
 *                              |
 *               table and JSON (simulate_report.c), picture (simulate_svg.c)
 *
 * A run is a pure function of trace and setup but for the time it took: the same input gives the
 * same numbers on every machine and with any number of threads.
 *
 * Words.  A *page* is `page_size` tokens; only whole pages are kept.  A *hit* is a page at the
 * beginning of a prompt that was held when the prompt came.  The *ideal* is what a cache without
 * a limit hits.
 */
#ifndef KVC_SIMULATE_H
#define KVC_SIMULATE_H

#include "cli/cli.h"

#include <kvgraft/tree.h>

/* Limits, each named in the error that it causes. */
#define KVC_SIM_TRACES_MAX 8u
#define KVC_SIM_REQUESTS_MAX (1u << 24)      /* Of one trace; */
#define KVC_SIM_BLOCKS_MAX (1u << 27)        /* their blocks together; */
#define KVC_SIM_PROMPT_TOKENS_MAX (1u << 26) /* tokens of one prompt. */
#define KVC_SIM_BLOCK_TOKENS_MAX 65536u
#define KVC_SIM_CAPACITIES_MAX 64u
#define KVC_SIM_ENGINES_MAX 64u
#define KVC_SIM_THREADS_MAX 2u

/* ---- Arguments (simulate_args.c) ------------------------------------------------------------ */

enum kvc_sim_unit {
    KVC_SIM_BYTES,
    KVC_SIM_TOKENS,
    KVC_SIM_PAGES,
    KVC_SIM_UNLIMITED
};

struct kvc_sim_capacity {
    enum kvc_sim_unit unit;
    uint64_t amount;
};

struct kvc_sim_capacities {
    struct kvc_sim_capacity items[KVC_SIM_CAPACITIES_MAX];
    size_t count;
};

/* Reads "1GiB..64GiB,100000pages": quantities, ranges that double ("A..B") or take N equal steps
 * on a logarithmic scale ("A..B:N"), and "unlimited", separated by commas.  False, and `why`
 * filled, if the text is of no such form or has more than KVC_SIM_CAPACITIES_MAX items. */
bool kvc_sim_capacities_parse(
    const char *text, struct kvc_sim_capacities *out, char *why, size_t why_bytes);

/* "64 GiB", "30,000 pages", "unlimited".  Returns `out`. */
const char *kvc_sim_capacity_text(
    const struct kvc_sim_capacity *capacity, char out[KVC_NUMBER_BYTES]);

/* Whole pages in a capacity; UINT64_MAX for no limit. */
uint64_t kvc_sim_capacity_pages(const struct kvc_sim_capacity *capacity,
    uint64_t page_size, uint64_t bytes_per_token);

struct kvc_sim_policies {
    enum kvg_policy items[KVG_POLICY_COUNT];
    size_t count;
};

/* Reads "lru,slru", each at most once, or "all". */
bool kvc_sim_policies_parse(
    const char *text, struct kvc_sim_policies *out, char *why, size_t why_bytes);
const char *kvc_sim_policy_name(enum kvg_policy policy);

/* ---- A trace in memory (simulate_trace.c) --------------------------------------------------- */

struct kvc_sim_request {
    uint64_t block_first; /* Into `blocks`. */
    uint32_t block_count;
    uint32_t input_tokens;  /* As the trace says. */
    uint32_t prompt_tokens; /* As replayed. */
};

struct kvc_sim_trace {
    const char *path;
    uint32_t block_tokens;
    struct kvc_sim_request *requests;
    size_t request_count;
    uint32_t *blocks; /* Block ids, numbered in the order of their first appearance. */
    size_t block_count;
    uint32_t block_distinct;
    uint64_t input_tokens;
    uint32_t prompt_tokens_max;
};

struct kvc_sim_load {
    const char *path; /* Must outlive the trace; "-" is stdin. */
    uint32_t block_tokens;
    bool cut_last; /* The last block has only the tokens that input_length leaves it. */
    uint64_t request_max; /* 0: all. */
};

/* Reads a whole trace.  Errors name the line.  Free it with kvc_sim_trace_free(). */
KVG_MUST_CHECK kvg_err kvc_sim_trace_load(
    const struct kvc_sim_load *load, struct kvc_sim_trace *out, struct kvg_error *error);
void kvc_sim_trace_free(struct kvc_sim_trace *trace);

/* Writes every `stride`-th token of a request's prompt, from the first; `stride` divides the
 * block.  Two blocks with different ids differ in every token, so that pages of any size are
 * equal if and only if their blocks, and those before, are. */
void kvc_sim_prompt(const struct kvc_sim_trace *trace,
    const struct kvc_sim_request *request, uint32_t stride, uint32_t *tokens);

/* ---- One run (simulate_run.c) ---------------------------------------------------------------- */

/* What is evicted at a time.  Engines evict nodes, of as many pages as nothing parts. */
enum kvc_sim_grain {
    KVC_SIM_GRAIN_NODE,
    KVC_SIM_GRAIN_PAGE /* Every page is a node of its own, so single pages go. */
};

struct kvc_sim_setup {
    uint32_t page_size;
    enum kvc_sim_grain grain;
    bool compact; /* As few units a page as tell pages apart: the same counts. */
    enum kvg_policy policy;
    uint32_t slru_hits;
    uint64_t tlru_threshold;
    uint64_t tlru_next_estimate;
    uint64_t seed;
    uint32_t engines;        /* Requests go to them in turn. */
    uint64_t capacity_pages; /* Of each; UINT64_MAX: no limit. */
};

struct kvc_sim_result {
    uint64_t requests;
    uint64_t requests_hit; /* With one page at least. */
    uint64_t pages;
    uint64_t pages_hit;
    uint64_t tokens; /* Of the trace's input_length. */
    uint64_t tokens_hit;
    uint64_t requests_cut; /* Longer than the whole cache: */
    uint64_t pages_cut;    /* pages that were not kept. */
    uint64_t pages_held;   /* At the end. */
    uint64_t evicted_nodes;
    uint64_t evicted_pages;
    uint64_t nodes; /* At the end, without roots. */
    uint64_t splits;
    uint64_t memory_bytes; /* Tree and pool, at most. */
    uint64_t operations;   /* Matches, inserts, locks, unlocks, evictions of a node. */
    uint64_t took_ns;
};

/* Asked after some requests, with how many those were; false ends the run: KVG_ECANCELED. */
typedef bool kvc_sim_go_on(void *context, uint64_t requests);

/* Replays the trace.  At its end the tree's invariants are checked and every slot is accounted
 * for; a mistake there is an error like any other. */
KVG_MUST_CHECK kvg_err kvc_sim_run(const struct kvc_sim_trace *trace,
    const struct kvc_sim_setup *setup, kvc_sim_go_on *go_on, void *context,
    struct kvc_sim_result *out, struct kvg_error *error);

/* ---- Many runs (simulate_sweep.c) ------------------------------------------------------------ */

struct kvc_sim_job {
    const struct kvc_sim_trace *trace;
    struct kvc_sim_capacity capacity;
    struct kvc_sim_setup setup;
    struct kvc_sim_result result;
};

/* Runs all jobs on `threads` threads, the caller's among them.  The first failure stops all. */
KVG_MUST_CHECK kvg_err kvc_sim_sweep(struct kvc_sim_job *jobs, size_t job_count,
    uint32_t threads, const struct kvc_common *common, struct kvg_error *error);

/* ---- What comes out (simulate_report.c, simulate_svg.c) -------------------------------------- */

/* A trace's part of the report: its ideal, and its jobs by policy, then capacity. */
struct kvc_sim_part {
    const struct kvc_sim_trace *trace;
    struct kvc_sim_result ideal;
    const struct kvc_sim_job *jobs;
    size_t job_count;
};

struct kvc_sim_report {
    uint32_t page_size;
    uint32_t block_tokens;
    uint32_t engines;
    uint64_t bytes_per_token; /* 0: not told. */
    enum kvc_sim_grain grain;
    bool cut_last;
    bool compact;
    bool no_times; /* Leave out what differs from run to run. */
    const struct kvc_sim_part *parts;
    size_t part_count;
};

void kvc_sim_print_table(
    const struct kvc_sim_report *report, const struct kvc_style *style, FILE *to);
void kvc_sim_print_json(const struct kvc_sim_report *report, FILE *to);

/* One diagram a trace, below one another: hit ratio over capacity, a line a policy, the ideal
 * dashed.  Capacities without a limit are left out: they are the ideal. */
void kvc_sim_print_svg(const struct kvc_sim_report *report, FILE *to);

#endif
