/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* demo_report.c -- what the demonstration prints at its end. */
#include "cli/demo.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STATE_WAIT_NS UINT64_C(2000000000)

static int by_size(const void *a, const void *b)
{
    uint32_t left = *(const uint32_t *)a;
    uint32_t right = *(const uint32_t *)b;

    return (left > right) - (left < right);
}

static double percentile_ns(const struct kvc_demo_counts *counts, double part)
{
    if (counts->requests == 0)
        return 0;
    return counts->latencies_ns[(size_t)((double)(counts->requests - 1) * part)];
}

static uint64_t rss_bytes(void)
{
    FILE *file = fopen("/proc/self/statm", "re");
    unsigned long long pages = 0;

    if (file == NULL)
        return 0;
    if (fscanf(file, "%*u %llu", &pages) != 1)
        pages = 0;
    fclose(file);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

static double share_of(const struct kvc_demo_counts *counts)
{
    return counts->pages == 0 ? 0 : (double)counts->shared / (double)counts->pages;
}

static void saved_json(const char *name, const struct kvc_saved *saved)
{
    printf(",\"%s\":{\"requests\":%" PRIu64 ",\"device_tokens\":%" PRIu64
           ",\"store_tokens\":%" PRIu64 ",\"computed_tokens\":%" PRIu64 "}",
        name, saved->requests, saved->device_tokens, saved->store_tokens,
        saved->computed_tokens);
}

static void report_json(struct kvc_demo *demo, const struct kvd_source_state *state)
{
    const struct kvc_demo_counts *counts = &demo->counts;
    struct kvc_store_counts store = kvc_store_counts(demo->store);

    printf("{\"requests\":%" PRIu64 ",\"pages\":%" PRIu64 ",\"shared\":%" PRIu64
           ",\"share\":%.6f,\"page_size\":%" PRIu32 ",\"tokens\":%" PRIu64,
        counts->requests, counts->pages, counts->shared, share_of(counts),
        kvc_workload_page_size(demo->workload), counts->tokens);
    printf(",\"ask_p50_ns\":%.0f,\"ask_p99_ns\":%.0f,\"seconds\":%.3f",
        percentile_ns(counts, 0.5), percentile_ns(counts, 0.99),
        (double)counts->took_ns / 1e9);
    printf(",\"wrong_answers\":%" PRIu64 ",\"not_fresh_answers\":%" PRIu64
           ",\"confidence\":\"%s\"",
        counts->wrong, counts->not_fresh, kvg_confidence_name(state->source.confidence));
    printf(",\"store_pages\":%" PRIu64 ",\"index_pages\":%" PRIu64
           ",\"index_parts\":%" PRIu64 ",\"index_bytes\":%zu,\"rss_bytes\":%" PRIu64,
        store.pages, state->presence.pages, state->presence.parts,
        state->presence.memory_bytes, rss_bytes());
    saved_json("routed", &counts->all);
    saved_json("round_robin", &counts->round_robin);
    printf(",\"bytes_verified\":%" PRIu64 ",\"bytes_wrong\":%" PRIu64
           ",\"routed_wrong\":%" PRIu64 ",\"engines_killed\":%" PRIu64
           ",\"publishers_killed\":%" PRIu64 ",\"store\":\"%s\"",
        counts->bytes_verified, counts->bytes_wrong, counts->routed_wrong,
        counts->engines_killed, counts->publishers_killed,
        kvg_store_url_text(demo->pages));
    printf(",\"events\":%" PRIu64 ",\"messages\":%" PRIu64 ",\"engines\":%" PRIu64
           ",\"url\":\"%s\"}\n",
        store.events, store.messages, demo->options->engines, demo->url);
}

static double share_of_tokens(uint64_t part, const struct kvc_saved *saved)
{
    uint64_t all = saved->device_tokens + saved->store_tokens + saved->computed_tokens;

    return all == 0 ? 0 : 100 * (double)part / (double)all;
}

static void report_saved(const char *who, const struct kvc_saved *saved)
{
    char number[KVC_NUMBER_BYTES];

    printf("    %-13s %6" PRIu64
           " requests: device %4.1f %%, store %4.1f %%, computed %s "
           "tokens\n",
        who, saved->requests, share_of_tokens(saved->device_tokens, saved),
        share_of_tokens(saved->store_tokens, saved),
        kvc_count_text(saved->computed_tokens, number));
}

static void report_engines(struct kvc_demo *demo)
{
    const struct kvc_demo_counts *counts = &demo->counts;
    const struct kvc_saved *all = &counts->all;
    char name[KVC_SOURCE_BYTES];
    char a[KVC_NUMBER_BYTES];
    uint64_t i;

    printf("  saved         %10s  tokens of prefill: %.1f %% were on the device, %.1f %% "
           "came from the store\n",
        kvc_count_text(all->device_tokens + all->store_tokens, a),
        share_of_tokens(all->device_tokens, all),
        share_of_tokens(all->store_tokens, all));
    for (i = 0; i < demo->options->engines && i < 8; i++)
        report_saved(kvc_demo_source(i, name), &counts->engines[i]);
    report_saved("routed", all);
    report_saved("round robin", &counts->round_robin);
    printf("  verified      %10s  of pages found on a device or loaded; ",
        kvc_bytes_text(counts->bytes_verified, a));
    if (counts->bytes_wrong == 0)
        printf("every byte is right\n");
    else
        printf("%" PRIu64 " bytes are WRONG\n", counts->bytes_wrong);
    if (demo->options->kill)
        printf("  killed        %10" PRIu64
               "  engines at work; the store's publisher %" PRIu64
               " times, followed again after %s at most\n",
            counts->engines_killed, counts->publishers_killed,
            kvc_time_text((double)counts->recovery_ns, a));
}

static void report_numbers(struct kvc_demo *demo, const struct kvd_source_state *state)
{
    const struct kvc_demo_counts *counts = &demo->counts;
    struct kvc_store_counts store = kvc_store_counts(demo->store);
    char a[KVC_NUMBER_BYTES];
    char b[KVC_NUMBER_BYTES];

    printf("  requests      %10s  each asked before it was served\n",
        kvc_count_text(counts->requests, a));
    printf("  pages         %10s  of %" PRIu32 " tokens, %s tokens in all\n",
        kvc_count_text(counts->pages, a), kvc_workload_page_size(demo->workload),
        kvc_count_text(counts->tokens, b));
    printf("  shared        %10s  %.1f %% of the pages were in the store already\n",
        kvc_count_text(counts->shared, a), 100 * share_of(counts));
    report_engines(demo);
    kvc_time_text(percentile_ns(counts, 0.5), a);
    printf("  ask p50       %*s  p99 %s; over HTTP, tokens sent as bytes\n",
        strchr(a, 0xc2) == NULL ? 10 : 11, a, /* The sign of micro has two bytes. */
        kvc_time_text(percentile_ns(counts, 0.99), b));
    printf("  events        %10s  in %s messages over ZeroMQ\n",
        kvc_count_text(store.events, a), kvc_count_text(store.messages, b));
    printf("  index         %10s  pages", kvc_count_text(state->presence.pages, a));
    printf(", %s parts in %s", kvc_count_text(state->presence.parts, a),
        kvc_bytes_text(state->presence.memory_bytes, b));
    printf(" (process: %s)\n", kvc_bytes_text(rss_bytes(), a));
    printf("  answers       %10s  ", kvg_confidence_name(state->source.confidence));
    if (counts->wrong + counts->routed_wrong == 0)
        printf("all equal to the truth");
    else
        printf(
            "%" PRIu64 " NOT equal to the truth", counts->wrong + counts->routed_wrong);
    printf(", %" PRIu64 " less than fresh\n", counts->not_fresh);
    printf("  took        %10.1f s\n", (double)counts->took_ns / 1e9);
}

/* Something to type: two pages more than what every prompt begins with. */
static void report_example(struct kvc_demo *demo)
{
    bool traced = demo->options->trace != NULL;
    uint32_t page_size = kvc_workload_page_size(demo->workload);
    uint32_t first = traced ? 0 : 1;
    uint32_t last = first + (traced ? page_size : KVC_SYSTEM_TOKENS) + 2 * page_size - 1;
    char url[96] = "";

    if (strcmp(demo->url, "http://127.0.0.1:7433") != 0)
        snprintf(url, sizeof(url), "--url %s ", demo->url);
    printf("\nAsk it yourself, from another terminal:\n\n");
    printf("  %s query %s%" PRIu32 "..%" PRIu32 "\n", kvc_program, url, first, last);
    printf("  %s query --explain %s%" PRIu32 "..%" PRIu32 "\n", kvc_program, url, first,
        last);
    printf("  %s watch %s\n", kvc_program, kvc_store_endpoint(demo->store));
    printf("  curl -s %s/metrics\n\n", demo->url);
    printf("Its page is %s/; Ctrl-C ends it.\n", demo->url);
}

/* The daemon's numbers, once they have caught up: it writes them down a few times a second. */
static void read_state(struct kvc_demo *demo, struct kvd_source_state *out)
{
    uint64_t messages = kvc_store_counts(demo->store).messages;
    uint64_t ends = kvc_now_ns() + STATE_WAIT_NS;

    while (kvd_daemon_source_state(demo->daemon, NULL, out)) {
        if (out->source.messages >= messages || kvc_stopped || kvc_now_ns() > ends)
            return;
        kvc_sleep_ns(STATE_WAIT_NS / 200);
    }
    memset(out, 0, sizeof(*out));
}

void kvc_demo_report(struct kvc_demo *demo)
{
    struct kvc_style style = kvc_style_of(&demo->options->common, stdout);
    struct kvd_source_state state;

    read_state(demo, &state);
    if (demo->counts.requests > 0)
        qsort(demo->counts.latencies_ns, demo->counts.requests,
            sizeof(*demo->counts.latencies_ns), by_size);
    if (demo->options->common.json) {
        report_json(demo, &state);
        fflush(stdout);
        return;
    }
    printf("%s%" PRIu64
           " engines, one store, the daemon, a router: all in this process%s\n",
        style.bold, demo->options->engines, style.end);
    printf("  store         %s\n", kvg_store_url_text(demo->pages));
    report_numbers(demo, &state);
    if (!demo->options->exit)
        report_example(demo);
    fflush(stdout);
}
