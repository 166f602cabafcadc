/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* simulate.c -- `kvgraft simulate`: options in, jobs out, results printed (simulate.h).
 *
 *     jobs   | ideal 0 | ideal 1 | trace 0: policy, capacity ... | trace 1: ... |
 *
 * The ideals run first: default capacities follow from how many distinct pages there are.
 */
#include "cli/simulate.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_STEPS 8

struct simulate_options {
    struct kvc_common common;
    const char *capacities;
    const char *policies;
    uint64_t bytes_per_token;
    uint64_t page_size;
    uint64_t block_tokens;
    int grain;
    int last_block;
    uint64_t requests;
    uint64_t engines;
    uint64_t slru_hits;
    uint64_t tlru_threshold;
    uint64_t tlru_next_estimate;
    uint64_t threads;
    uint64_t seed;
    bool compact;
    bool no_times;
    const char *out;
    const char *svg;
};

#define FIELD(name) KVC_FIELD(struct simulate_options, name)

static const struct kvc_option OPTIONS[] = {
    {"capacity", 'c', KVC_TEXT, FIELD(capacities), "LIST", NULL, NULL, 0, 0,
        "cache sizes; default: 8, up to all distinct pages"},
    {"bytes-per-token", 'b', KVC_BYTES, FIELD(bytes_per_token), "SIZE", NULL,
        "KVGRAFT_BYTES_PER_TOKEN", 1, UINT64_C(1) << 40, "KV of one token, all layers"},
    {"policy", 'P', KVC_TEXT, FIELD(policies), "LIST", "lru", NULL, 0, 0,
        "lru lfu fifo mru filo priority slru tlru, or all"},
    {"page-size", 'p', KVC_U64, FIELD(page_size), "N", "512", "KVGRAFT_PAGE_SIZE", 1,
        KVG_PAGE_SIZE_MAX, "tokens a page"},
    {"grain", 'g', KVC_CHOICE, FIELD(grain), "node|page", "node", NULL, 0, 0,
        "what is evicted at a time"},
    {"engines", 'e', KVC_U64, FIELD(engines), "N", "1", NULL, 1, KVC_SIM_ENGINES_MAX,
        "caches of that size; requests go to them in turn"},
    {"requests", 'n', KVC_U64, FIELD(requests), "N", "0", NULL, 0, KVC_SIM_REQUESTS_MAX,
        "of each trace; 0: all"},
    {"block-tokens", 0, KVC_U64, FIELD(block_tokens), "N", "512", NULL, 1,
        KVC_SIM_BLOCK_TOKENS_MAX, "tokens that a hash id of the trace stands for"},
    {"last-block", 0, KVC_CHOICE, FIELD(last_block), "whole|cut", "whole", NULL, 0, 0,
        "a prompt's partial last block: filled up, or as it is"},
    {"slru-hits", 0, KVC_U64, FIELD(slru_hits), "N", "2", NULL, 1, 1000000,
        "slru: hits that protect a node"},
    {"tlru-threshold", 0, KVC_U64, FIELD(tlru_threshold), "N", "0", NULL, 0,
        UINT64_C(1) << 40, "tlru: tokens that may be computed again"},
    {"tlru-next", 0, KVC_U64, FIELD(tlru_next_estimate), "N", "0", NULL, 0,
        UINT64_C(1) << 40, "tlru: tokens expected of the next turn"},
    {"threads", 't', KVC_U64, FIELD(threads), "N", "2", NULL, 1, KVC_SIM_THREADS_MAX,
        "runs at a time"},
    {"seed", 's', KVC_U64, FIELD(seed), "N", "1", NULL, 0, UINT64_MAX,
        "of the tree's hash table; changes no result"},
    {"compact", 0, KVC_FLAG, FIELD(compact), NULL, NULL, NULL, 0, 0,
        "few units a page: same hits, sooner, but not a server's memory and speed"},
    {"no-times", 0, KVC_FLAG, FIELD(no_times), NULL, NULL, NULL, 0, 0,
        "leave out what differs from run to run"},
    {"out", 'o', KVC_TEXT, FIELD(out), "FILE", NULL, NULL, 0, 0, "write JSON there too"},
    {"svg", 0, KVC_TEXT, FIELD(svg), "FILE", NULL, NULL, 0, 0, "draw hit ratios there"},
};

static const struct kvc_usage USAGE = {"simulate", "TRACE...",
    "Replay request traces through the tree: what would a cache of this size have hit",
    OPTIONS, KVC_COUNT(OPTIONS),
    "A trace is a file of the FAST'25 form, a JSON object a line; - is stdin.  A list "
    "of\n"
    "capacities has sizes (64GiB, with --bytes-per-token), 3Mtokens, 30000pages, "
    "unlimited,\nand ranges: 1GiB..64GiB doubles, 1GiB..64GiB:9 takes 9 steps.\n\n"
    "  kvgraft simulate conversation_trace.jsonl\n"
    "  kvgraft simulate trace.jsonl -b 128KiB -c 16GiB..1TiB -P lru,slru --svg "
    "sweep.svg\n"
    "  kvgraft simulate trace.jsonl -c 1000pages..128kpages --grain page --json\n"};

struct simulation {
    const struct simulate_options *options;
    struct kvc_sim_capacities capacities;
    struct kvc_sim_policies policies;
    struct kvc_sim_trace traces[KVC_SIM_TRACES_MAX];
    struct kvc_sim_part parts[KVC_SIM_TRACES_MAX];
    size_t trace_count;
    struct kvc_sim_job *jobs;
};

/* ---- Arguments ------------------------------------------------------------------------------- */

/* By pages, so that tables and lines go from small to large; in the order given where equal. */
static void sort_capacities(
    const struct simulate_options *options, struct kvc_sim_capacities *list)
{
    size_t i;
    size_t j;

    for (i = 1; i < list->count; i++) {
        struct kvc_sim_capacity moving = list->items[i];
        uint64_t pages =
            kvc_sim_capacity_pages(&moving, options->page_size, options->bytes_per_token);

        for (j = i; j > 0 && kvc_sim_capacity_pages(&list->items[j - 1],
                                 options->page_size, options->bytes_per_token) > pages;
             j--)
            list->items[j] = list->items[j - 1];
        list->items[j] = moving;
    }
}

/* KVC_FINE, or the exit code after what is wrong was said. */
static int read_lists(struct simulation *simulation)
{
    const struct simulate_options *options = simulation->options;
    char why[256];
    size_t i;

    if (!kvc_sim_policies_parse(
            options->policies, &simulation->policies, why, sizeof(why)))
        return kvc_misused(&USAGE, "--policy: %s", why);
    if (options->capacities == NULL)
        return KVC_FINE;
    if (!kvc_sim_capacities_parse(
            options->capacities, &simulation->capacities, why, sizeof(why)))
        return kvc_misused(&USAGE, "--capacity: %s", why);
    for (i = 0; i < simulation->capacities.count; i++) {
        const struct kvc_sim_capacity *capacity = &simulation->capacities.items[i];
        char text[KVC_NUMBER_BYTES];

        if (capacity->unit == KVC_SIM_BYTES && options->bytes_per_token == 0)
            return kvc_misused(&USAGE,
                "a capacity in bytes needs --bytes-per-token: 2 x layers x KV heads x "
                "head size x bytes a number, 128KiB for an 8B model of the Llama 3 form");
        if (kvc_sim_capacity_pages(
                capacity, options->page_size, options->bytes_per_token) == 0)
            return kvc_misused(&USAGE,
                "--capacity: %s is less than one page of %" PRIu64 " tokens",
                kvc_sim_capacity_text(capacity, text), options->page_size);
    }
    sort_capacities(options, &simulation->capacities);
    return KVC_FINE;
}

/* Without --capacity: from all distinct pages of a trace downwards, halved each time. */
static struct kvc_sim_capacities default_capacities(const struct kvc_sim_result *ideal)
{
    uint64_t distinct = ideal->pages - ideal->pages_hit;
    struct kvc_sim_capacities list = {.count = 0};
    int i;

    for (i = DEFAULT_STEPS - 1; i >= 0; i--) {
        if (distinct >> i > 0)
            list.items[list.count++] =
                (struct kvc_sim_capacity){KVC_SIM_PAGES, distinct >> i};
    }
    if (list.count == 0)
        list.items[list.count++] = (struct kvc_sim_capacity){KVC_SIM_PAGES, 1};
    return list;
}

/* ---- Jobs ------------------------------------------------------------------------------------ */

static struct kvc_sim_setup ideal_setup(const struct simulate_options *options)
{
    return (struct kvc_sim_setup){.page_size = (uint32_t)options->page_size,
        .grain = KVC_SIM_GRAIN_NODE,
        .compact = options->compact,
        .policy = KVG_POLICY_LRU,
        .slru_hits = (uint32_t)options->slru_hits,
        .tlru_threshold = options->tlru_threshold,
        .tlru_next_estimate = options->tlru_next_estimate,
        .seed = options->seed,
        .engines = 1,
        .capacity_pages = UINT64_MAX};
}

static kvg_err run_ideals(struct simulation *simulation, struct kvg_error *error)
{
    struct kvc_sim_job jobs[KVC_SIM_TRACES_MAX];
    kvg_err err;
    size_t i;

    for (i = 0; i < simulation->trace_count; i++)
        jobs[i] = (struct kvc_sim_job){.trace = &simulation->traces[i],
            .capacity = {KVC_SIM_UNLIMITED, 0},
            .setup = ideal_setup(simulation->options)};
    err = kvc_sim_sweep(jobs, simulation->trace_count,
        (uint32_t)simulation->options->threads, &simulation->options->common, error);
    for (i = 0; i < simulation->trace_count; i++)
        simulation->parts[i] = (struct kvc_sim_part){
            .trace = &simulation->traces[i], .ideal = jobs[i].result};
    return err;
}

/* Appends the jobs of one trace to those there are; returns how many there are then. */
static size_t add_jobs(struct simulation *simulation, size_t at, size_t trace)
{
    const struct simulate_options *options = simulation->options;
    struct kvc_sim_part *part = &simulation->parts[trace];
    struct kvc_sim_capacities list = options->capacities == NULL
                                         ? default_capacities(&part->ideal)
                                         : simulation->capacities;
    size_t i;
    size_t j;

    part->jobs = simulation->jobs + at;
    part->job_count = simulation->policies.count * list.count;
    for (i = 0; i < simulation->policies.count; i++) {
        for (j = 0; j < list.count; j++) {
            struct kvc_sim_job *job = &simulation->jobs[at++];

            *job = (struct kvc_sim_job){.trace = part->trace,
                .capacity = list.items[j],
                .setup = ideal_setup(options)};
            job->setup.grain = (enum kvc_sim_grain)options->grain;
            job->setup.policy = simulation->policies.items[i];
            job->setup.engines = (uint32_t)options->engines;
            job->setup.capacity_pages = kvc_sim_capacity_pages(
                &list.items[j], options->page_size, options->bytes_per_token);
        }
    }
    return at;
}

static kvg_err run_all(struct simulation *simulation, struct kvg_error *error)
{
    kvg_err err = run_ideals(simulation, error);
    size_t count = 0;
    size_t i;

    if (err != KVG_OK)
        return err;
    simulation->jobs = calloc(
        simulation->trace_count * KVG_POLICY_COUNT * (size_t)KVC_SIM_CAPACITIES_MAX,
        sizeof(*simulation->jobs));
    if (simulation->jobs == NULL) {
        *error = (struct kvg_error){.code = KVG_ENOMEM, .message = "out of memory"};
        return KVG_ENOMEM;
    }
    for (i = 0; i < simulation->trace_count; i++)
        count = add_jobs(simulation, count, i);
    return kvc_sim_sweep(simulation->jobs, count, (uint32_t)simulation->options->threads,
        &simulation->options->common, error);
}

/* ---- Output ---------------------------------------------------------------------------------- */

static int write_file(const char *path, const struct kvc_sim_report *report,
    void (*print)(const struct kvc_sim_report *report, FILE *to))
{
    FILE *file = fopen(path, "wb");
    bool good;

    if (file == NULL)
        return kvc_failed(&USAGE, "%s: %s", path, strerror(errno));
    print(report, file);
    good = !ferror(file);
    if (fclose(file) != 0 || !good)
        return kvc_failed(&USAGE, "%s: %s", path, strerror(errno));
    return KVC_FINE;
}

static int print_all(const struct simulation *simulation)
{
    const struct simulate_options *options = simulation->options;
    struct kvc_style style = kvc_style_of(&options->common, stdout);
    struct kvc_sim_report report = {.page_size = (uint32_t)options->page_size,
        .block_tokens = (uint32_t)options->block_tokens,
        .engines = (uint32_t)options->engines,
        .bytes_per_token = options->bytes_per_token,
        .grain = (enum kvc_sim_grain)options->grain,
        .cut_last = options->last_block != 0,
        .compact = options->compact,
        .no_times = options->no_times,
        .parts = simulation->parts,
        .part_count = simulation->trace_count};
    int exit_code = KVC_FINE;

    if (options->common.json)
        kvc_sim_print_json(&report, stdout);
    else
        kvc_sim_print_table(&report, &style, stdout);
    fflush(stdout);
    if (options->out != NULL)
        exit_code = write_file(options->out, &report, kvc_sim_print_json);
    if (options->svg != NULL && exit_code == KVC_FINE)
        exit_code = write_file(options->svg, &report, kvc_sim_print_svg);
    return exit_code;
}

static int fail_on(const char *path, const struct kvg_error *error)
{
    char text[KVC_ERROR_BYTES];

    kvc_error_text(error, text);
    /* A file that cannot be opened names itself. */
    if (path == NULL || strncmp(text, path, strlen(path)) == 0)
        return kvc_failed(&USAGE, "%s", text);
    return kvc_failed(&USAGE, "%s: %s", path, text);
}

static int simulate(struct simulation *simulation, char **paths)
{
    const struct simulate_options *options = simulation->options;
    struct kvg_error error = {0};
    size_t i;

    for (i = 0; i < simulation->trace_count; i++) {
        struct kvc_sim_load load = {.path = paths[i],
            .block_tokens = (uint32_t)options->block_tokens,
            .cut_last = options->last_block != 0,
            .request_max = options->requests};

        if (kvc_sim_trace_load(&load, &simulation->traces[i], &error) != KVG_OK)
            return fail_on(paths[i], &error);
    }
    if (run_all(simulation, &error) != KVG_OK)
        return fail_on(NULL, &error);
    return print_all(simulation);
}

int kvc_simulate_main(int argc, char **argv)
{
    struct simulate_options options = {0};
    struct simulation simulation = {.options = &options};
    int exit_code;
    int first = kvc_options(&USAGE, argc, argv, &options, &exit_code);
    size_t i;

    if (first < 0)
        return exit_code;
    if (first == argc)
        return kvc_misused(&USAGE, "takes a trace; there is none");
    simulation.trace_count = (size_t)(argc - first);
    if (simulation.trace_count > KVC_SIM_TRACES_MAX)
        return kvc_misused(
            &USAGE, "takes at most %u traces at a time", KVC_SIM_TRACES_MAX);
    exit_code = read_lists(&simulation);
    if (exit_code != KVC_FINE)
        return exit_code;
    kvc_catch_signals();
    exit_code = simulate(&simulation, argv + first);
    for (i = 0; i < simulation.trace_count; i++)
        kvc_sim_trace_free(&simulation.traces[i]);
    free(simulation.jobs);
    return exit_code;
}
