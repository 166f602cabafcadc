/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* demo.c -- `kvgraft demo`: one process in which everything can be seen to work.
 *
 *     workload -- prompt --> router -- "how much is there, and where?" --> daemon (HTTP)
 *                              |                                             ^
 *                              v                                             |
 *                  engine 1 ... engine N  --- what their devices hold ------>| events (ZeroMQ),
 *                              |                                             | admin ports (HTTP)
 *                              v  pages, by the transport                    |
 *                            store  ------------- what it holds ------------>+
 *
 * Everything is the real thing but the model, which computes nothing (demo_engine.h), and the
 * router, which sends each prompt to the engine that holds most of it.
 *
 * Every request is asked before it is served, and the next one only after the daemon has
 * applied what was published, so that the answers can be compared with the truth one by one.
 */
#include "cli/demo.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const struct kvc_option OPTIONS[] = {
    {"trace", 't', KVC_TEXT, KVC_FIELD(struct kvc_demo_options, trace), "FILE", NULL,
        NULL, 0, 0, "prompts of a FAST'25 trace instead of made ones; -: stdin"},
    {"requests", 'n', KVC_U64, KVC_FIELD(struct kvc_demo_options, requests), "N", "0",
        NULL, 0, UINT32_MAX, "end after N requests; 0: 2,000, or the whole trace"},
    {"engines", 0, KVC_U64, KVC_FIELD(struct kvc_demo_options, engines), "N", "4", NULL,
        1, KVC_ENGINES_MAX, "engines"},
    {"store", 'S', KVC_TEXT, KVC_FIELD(struct kvc_demo_options, store), "URL", NULL, NULL,
        0, 0, "where pages go; default: a directory under /tmp, removed at the end"},
    {"kill", 'k', KVC_FLAG, KVC_FIELD(struct kvc_demo_options, kill), NULL, NULL, NULL, 0,
        0, "now and then an engine dies at work, or the store's publisher"},
    {"tp", 0, KVC_U64, KVC_FIELD(struct kvc_demo_options, tp_size), "N", "2", NULL, 1, 64,
        "ranks of an engine: a page has a k and a v of each"},
    {"conversations", 0, KVC_U64, KVC_FIELD(struct kvc_demo_options, conversations), "N",
        "64", NULL, 1, 4096, "open at a time"},
    {"seed", 's', KVC_U64, KVC_FIELD(struct kvc_demo_options, seed), "N", "1", NULL, 0,
        UINT64_MAX, "of the made prompts"},
    {"listen", 'l', KVC_TEXT, KVC_FIELD(struct kvc_demo_options, listen), "ADDRESS",
        "127.0.0.1:7433", NULL, 0, 0, "of the daemon; any free port if taken"},
    {"memory", 'm', KVC_BYTES, KVC_FIELD(struct kvc_demo_options, memory_bytes_max),
        "SIZE", "1GiB", NULL, 1 << 20, UINT64_C(1) << 40, "memory budget of the index"},
    {"exit", 'x', KVC_FLAG, KVC_FIELD(struct kvc_demo_options, exit), NULL, NULL, NULL, 0,
        0, "end when the workload ends, instead of at Ctrl-C"},
};

static const struct kvc_usage USAGE = {"demo", "",
    "See it work: engines that share pages through a store, the daemon, a router, in one "
    "process",
    OPTIONS, KVC_COUNT(OPTIONS),
    "Prints how many tokens did not have to be computed and why, verifies every byte, "
    "and "
    "says what to type next.\n\n"
    "  kvgraft demo\n"
    "  kvgraft demo --exit --json\n"
    "  kvgraft demo --kill --engines 8 --store memory:?bytes=1GiB\n"
    "  kvgraft demo --trace conversation_trace.jsonl\n"};

static kvg_err no_memory(struct kvg_error *error)
{
    error->code = KVG_ENOMEM;
    snprintf(error->field, sizeof(error->field), "demo");
    snprintf(error->message, sizeof(error->message), "out of memory");
    return KVG_ENOMEM;
}

/* Room for the prompt's keys and for one more latency. */
static kvg_err reserve(struct kvc_demo *demo, size_t pages, struct kvg_error *error)
{
    struct kvc_demo_counts *counts = &demo->counts;

    if (pages > demo->key_capacity) {
        struct kvg_key *keys = realloc(demo->keys, pages * 2 * sizeof(*keys));

        if (keys == NULL)
            return no_memory(error);
        demo->keys = keys;
        demo->key_capacity = pages * 2;
    }
    if (counts->requests == counts->latency_capacity) {
        size_t capacity = counts->latency_capacity * 2 + 4096;
        uint32_t *latencies =
            realloc(counts->latencies_ns, capacity * sizeof(*latencies));

        if (latencies == NULL)
            return no_memory(error);
        counts->latencies_ns = latencies;
        counts->latency_capacity = capacity;
    }
    return KVG_OK;
}

static void count_answer(struct kvc_demo *demo, const struct kvc_prompt *prompt,
    const struct kvc_demo_answer *answer, uint32_t truth, uint64_t took_ns)
{
    struct kvc_demo_counts *counts = &demo->counts;

    counts->latencies_ns[counts->requests++] =
        took_ns < UINT32_MAX ? (uint32_t)took_ns : UINT32_MAX;
    counts->asked_ns += took_ns;
    counts->pages += answer->pages;
    counts->tokens += prompt->token_count;
    counts->shared += answer->contiguous;
    counts->wrong += answer->contiguous != truth;
    counts->not_fresh += answer->confidence != KVG_CONFIDENCE_FRESH;
}

/* One request: asked, then served. */
static kvg_err serve_prompt(
    struct kvc_demo *demo, const struct kvc_prompt *prompt, struct kvg_error *error)
{
    struct kvg_page_rule rule = kvg_layout_rule(demo->layout);
    size_t pages = kvg_page_count(&rule, prompt->token_count);
    struct kvc_demo_answer answer;
    uint64_t began;
    uint32_t truth;
    kvg_err err = reserve(demo, pages, error);

    if (err != KVG_OK)
        return err;
    pages = kvg_page_memo_keys(
        demo->memo, NULL, prompt->tokens, prompt->token_count, demo->keys, pages);
    truth = kvc_store_held(demo->store, demo->keys, (uint32_t)pages);
    began = kvc_now_ns();
    err = kvc_demo_ask(demo, prompt, &answer, error);
    if (err != KVG_OK)
        return err;
    count_answer(demo, prompt, &answer, truth, kvc_now_ns() - began);
    return kvc_demo_serve(demo, prompt, (uint32_t)pages, truth, error);
}

static kvg_err run_workload(struct kvc_demo *demo, struct kvg_error *error)
{
    uint64_t began = kvc_now_ns();
    struct kvc_progress progress;
    struct kvc_prompt prompt;
    kvg_err err = KVG_OK;
    bool got = true;

    kvc_progress_init(&progress, &demo->options->common);
    while (!kvc_stopped && err == KVG_OK) {
        err = kvc_workload_next(demo->workload, &prompt, &got, error);
        if (err != KVG_OK || !got)
            break;
        err = serve_prompt(demo, &prompt, error);
        kvc_progress(&progress, "%" PRIu64 " requests, %" PRIu64 " pages, %.1f %% shared",
            demo->counts.requests, demo->counts.pages,
            demo->counts.pages == 0
                ? 0.0
                : 100.0 * (double)demo->counts.shared / (double)demo->counts.pages);
    }
    kvc_progress_clear(&progress);
    demo->counts.took_ns = kvc_now_ns() - began;
    return kvc_stopped ? KVG_OK : err;
}

static kvg_err make(struct kvc_demo *demo, struct kvg_error *error)
{
    const struct kvc_demo_options *options = demo->options;
    struct kvc_workload_options workload = {.seed = options->seed,
        .request_max = options->requests,
        .conversations = (uint32_t)options->conversations,
        .trace_path = options->trace};
    struct kvg_layout_config layout = {
        .struct_bytes = sizeof(layout), .tp_size = (uint32_t)options->tp_size};
    struct kvg_page_memo_options memo = {.struct_bytes = sizeof(memo), .seed = 1};
    kvg_err err;

    if (workload.trace_path == NULL && workload.request_max == 0)
        workload.request_max = 2000;
    err = kvc_workload_new(&workload, error, &demo->workload);
    if (err != KVG_OK)
        return err;
    layout.rule.page_size = kvc_workload_page_size(demo->workload);
    memo.rule = layout.rule;
    err = kvg_layout_new(kvg_alloc_default(), &layout, error, &demo->layout);
    if (err == KVG_OK &&
        kvg_page_memo_new(kvg_alloc_default(), &memo, &demo->memo) != KVG_OK)
        err = no_memory(error);
    if (err == KVG_OK)
        err = kvc_store_new(demo->layout, error, &demo->store);
    if (err == KVG_OK)
        err = kvc_demo_make_fleet(demo, error);
    return err == KVG_OK ? kvc_demo_start(demo, error) : err;
}

static void unmake(struct kvc_demo *demo)
{
    kvc_http_free(demo->http);
    kvd_daemon_free(demo->daemon);
    kvc_demo_free_fleet(demo);
    kvc_store_free(demo->store);
    kvg_page_memo_free(demo->memo);
    kvg_layout_free(demo->layout);
    kvc_workload_free(demo->workload);
    free(demo->keys);
    free(demo->counts.latencies_ns);
}

int kvc_demo_main(int argc, char **argv)
{
    struct kvc_demo_options options = {0};
    struct kvc_demo demo = {.options = &options};
    struct kvg_error error = {0};
    char text[KVC_ERROR_BYTES];
    int exit_code;
    int first = kvc_options(&USAGE, argc, argv, &options, &exit_code);

    if (first < 0)
        return exit_code;
    if (first != argc)
        return kvc_misused(&USAGE, "takes no arguments; \"%s\" is one", argv[first]);
    kvc_catch_signals();
    if (make(&demo, &error) != KVG_OK || run_workload(&demo, &error) != KVG_OK) {
        exit_code = kvc_failed(&USAGE, "%s", kvc_error_text(&error, text));
    } else {
        kvc_demo_report(&demo);
        while (!options.exit && !kvc_stopped)
            kvc_sleep_ns(UINT64_C(1000000000));
        exit_code =
            demo.counts.wrong + demo.counts.routed_wrong + demo.counts.bytes_wrong == 0
                ? KVC_FINE
                : KVC_FAILED;
    }
    unmake(&demo);
    return exit_code;
}
