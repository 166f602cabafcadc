/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* simulate_report.c -- the sweep as a table, and as JSON (simulate.h). */
#include "cli/simulate.h"

#include <inttypes.h>
#include <jansson.h>

static double share(uint64_t part, uint64_t whole)
{
    return whole == 0 ? 0 : (double)part / (double)whole;
}

static double per_second(const struct kvc_sim_result *result)
{
    return result->took_ns == 0
               ? 0
               : (double)result->operations * 1e9 / (double)result->took_ns;
}

/* ---- The table ------------------------------------------------------------------------------- */

static void print_head(const struct kvc_sim_report *report,
    const struct kvc_sim_part *part, const struct kvc_style *style, FILE *to)
{
    const struct kvc_sim_result *ideal = &part->ideal;
    char a[KVC_NUMBER_BYTES];
    char b[KVC_NUMBER_BYTES];
    char c[KVC_NUMBER_BYTES];

    fprintf(to, "%s%s%s\n", style->bold, part->trace->path, style->end);
    fprintf(to, "  %s requests, %s pages of %" PRIu32 " tokens, %s of them distinct\n",
        kvc_count_text(ideal->requests, a), kvc_count_text(ideal->pages, b),
        report->page_size, kvc_count_text(ideal->pages - ideal->pages_hit, c));
    fprintf(to,
        "  ideal, without a limit: %s pages hit, %.2f %% of pages, %.2f %% of tokens\n",
        kvc_count_text(ideal->pages_hit, a), 100 * share(ideal->pages_hit, ideal->pages),
        100 * share(ideal->tokens_hit, ideal->tokens));
    if (report->engines > 1)
        fprintf(to,
            "  %" PRIu32 " engines take requests in turn, each with this capacity\n",
            report->engines);
    fprintf(to, "  eviction of %s\n\n",
        report->grain == KVC_SIM_GRAIN_PAGE ? "single pages" : "whole nodes");
}

static void print_row(const struct kvc_sim_report *report,
    const struct kvc_sim_part *part, const struct kvc_sim_job *job, FILE *to)
{
    const struct kvc_sim_result *result = &job->result;
    char capacity[KVC_NUMBER_BYTES];
    char evicted[KVC_NUMBER_BYTES];
    char hit[KVC_NUMBER_BYTES];
    char nodes[KVC_NUMBER_BYTES];
    char memory[KVC_NUMBER_BYTES];

    fprintf(to, "  %-8s %16s %11s %8.2f %% %8.2f %% %7.1f %% %11s %9s %10s",
        kvc_sim_policy_name(job->setup.policy),
        kvc_sim_capacity_text(&job->capacity, capacity),
        kvc_count_text(result->pages_hit, hit),
        100 * share(result->pages_hit, result->pages),
        100 * share(result->tokens_hit, result->tokens),
        100 * share(result->pages_hit, part->ideal.pages_hit),
        kvc_count_text(result->evicted_pages, evicted),
        kvc_count_text(result->nodes, nodes),
        kvc_bytes_text(result->memory_bytes, memory));
    if (!report->no_times)
        fprintf(to, " %9.0f", per_second(result) / 1000);
    fputc('\n', to);
}

static void print_notes(
    const struct kvc_sim_part *part, const struct kvc_style *style, FILE *to)
{
    uint64_t cut = 0;
    size_t i;

    for (i = 0; i < part->job_count; i++) {
        if (part->jobs[i].result.requests_cut > cut)
            cut = part->jobs[i].result.requests_cut;
    }
    if (cut > 0)
        fprintf(to,
            "\n  %sUp to %" PRIu64 " requests were longer than the whole cache; their "
            "beginnings were kept.%s\n",
            style->yellow, cut, style->end);
}

void kvc_sim_print_table(
    const struct kvc_sim_report *report, const struct kvc_style *style, FILE *to)
{
    size_t i;
    size_t j;

    for (i = 0; i < report->part_count; i++) {
        const struct kvc_sim_part *part = &report->parts[i];

        if (i > 0)
            fputc('\n', to);
        print_head(report, part, style, to);
        fprintf(to, "  %s%-8s %16s %11s %10s %10s %9s %11s %9s %10s%s%s\n", style->bold,
            "policy", "capacity", "pages hit", "of pages", "of tokens", "of ideal",
            "evicted", "nodes", "memory", report->no_times ? "" : "    kops/s",
            style->end);
        for (j = 0; j < part->job_count; j++) {
            if (j > 0 && part->jobs[j].setup.policy != part->jobs[j - 1].setup.policy)
                fputc('\n', to);
            print_row(report, part, &part->jobs[j], to);
        }
        print_notes(part, style, to);
    }
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static json_t *number(uint64_t value)
{
    return json_integer((json_int_t)value);
}

static json_t *result_json(
    const struct kvc_sim_report *report, const struct kvc_sim_result *result)
{
    json_t *object = json_pack("{s:o, s:o, s:f, s:o, s:f, s:o}", "requests_hit",
        number(result->requests_hit), "pages_hit", number(result->pages_hit),
        "page_hit_ratio", share(result->pages_hit, result->pages), "tokens_hit",
        number(result->tokens_hit), "token_hit_ratio",
        share(result->tokens_hit, result->tokens), "pages_held",
        number(result->pages_held));

    json_object_set_new(object, "requests_cut", number(result->requests_cut));
    json_object_set_new(object, "pages_cut", number(result->pages_cut));
    json_object_set_new(object, "evicted_nodes", number(result->evicted_nodes));
    json_object_set_new(object, "evicted_pages", number(result->evicted_pages));
    json_object_set_new(object, "nodes", number(result->nodes));
    json_object_set_new(object, "splits", number(result->splits));
    json_object_set_new(object, "memory_bytes", number(result->memory_bytes));
    json_object_set_new(object, "operations", number(result->operations));
    if (report->no_times)
        return object;
    json_object_set_new(object, "seconds", json_real((double)result->took_ns / 1e9));
    json_object_set_new(object, "operations_per_second", json_real(per_second(result)));
    return object;
}

static json_t *job_json(
    const struct kvc_sim_report *report, const struct kvc_sim_job *job)
{
    json_t *object = json_object();
    uint64_t pages = job->setup.capacity_pages;
    char text[KVC_NUMBER_BYTES];
    json_t *result = result_json(report, &job->result);

    json_object_set_new(
        object, "policy", json_string(kvc_sim_policy_name(job->setup.policy)));
    json_object_set_new(
        object, "capacity", json_string(kvc_sim_capacity_text(&job->capacity, text)));
    json_object_set_new(
        object, "capacity_pages", pages == UINT64_MAX ? json_null() : number(pages));
    if (job->capacity.unit == KVC_SIM_BYTES)
        json_object_set_new(object, "capacity_bytes", number(job->capacity.amount));
    json_object_update(object, result);
    json_decref(result);
    return object;
}

static json_t *part_json(
    const struct kvc_sim_report *report, const struct kvc_sim_part *part)
{
    json_t *object = json_object();
    json_t *runs = json_array();
    size_t i;

    json_object_set_new(object, "path", json_string(part->trace->path));
    json_object_set_new(object, "requests", number(part->ideal.requests));
    json_object_set_new(object, "pages", number(part->ideal.pages));
    json_object_set_new(
        object, "pages_distinct", number(part->ideal.pages - part->ideal.pages_hit));
    json_object_set_new(object, "tokens", number(part->ideal.tokens));
    json_object_set_new(object, "ideal", result_json(report, &part->ideal));
    for (i = 0; i < part->job_count; i++)
        json_array_append_new(runs, job_json(report, &part->jobs[i]));
    json_object_set_new(object, "runs", runs);
    return object;
}

void kvc_sim_print_json(const struct kvc_sim_report *report, FILE *to)
{
    json_t *root = json_object();
    json_t *traces = json_array();
    size_t i;

    json_object_set_new(root, "page_size", number(report->page_size));
    json_object_set_new(root, "block_tokens", number(report->block_tokens));
    json_object_set_new(
        root, "last_block", json_string(report->cut_last ? "cut" : "whole"));
    json_object_set_new(root, "grain",
        json_string(report->grain == KVC_SIM_GRAIN_PAGE ? "page" : "node"));
    json_object_set_new(root, "compact", json_boolean(report->compact));
    json_object_set_new(root, "engines", number(report->engines));
    json_object_set_new(root, "bytes_per_token",
        report->bytes_per_token == 0 ? json_null() : number(report->bytes_per_token));
    for (i = 0; i < report->part_count; i++)
        json_array_append_new(traces, part_json(report, &report->parts[i]));
    json_object_set_new(root, "traces", traces);
    json_dumpf(root, to, JSON_COMPACT | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(8));
    fputc('\n', to);
    json_decref(root);
}
