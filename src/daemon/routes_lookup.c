/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* routes_lookup.c -- the paths that answer questions about prompts.
 *
 *     POST /v1/lookup       everything the index knows
 *     POST /v1/explain      page by page, why
 *     POST /query           the shape of Mooncake's conductor and of Dynamo's indexer
 *     POST /query_by_hash   the same, by page keys
 *     POST /check_blocks    {"ranges":[[begin,end],...]}
 */
#include "daemon/daemon_internal.h"

#include "base/fmt.h"

#include <stdio.h>
#include <string.h>

#define RANGES_SHOWN 4096u
#define PAGES_EXPLAINED_MAX 4096u

void kvd_write_reasons(struct kvd_out *out, uint32_t reasons)
{
    kvd_out_key(out, "reasons");
    kvd_out_text(out, "[");
    for (unsigned i = 0; i < 32; i++) {
        if ((reasons >> i & 1) == 0)
            continue;
        kvd_out_comma(out);
        kvd_out_json(
            out, kvi_str(kvg_source_reason_word((enum kvg_source_reason)(1u << i))));
    }
    kvd_out_text(out, "]");
}

static void key_u64(struct kvd_out *out, const char *name, uint64_t value)
{
    kvd_out_key(out, name);
    kvd_out_u64(out, value);
}

static void key_str(struct kvd_out *out, const char *name, struct kvg_str value)
{
    kvd_out_key(out, name);
    kvd_out_json(out, value);
}

static void key_bool(struct kvd_out *out, const char *name, bool value)
{
    kvd_out_key(out, name);
    kvd_out_text(out, value ? "true" : "false");
}

static void write_ranges(
    struct kvd_out *out, const struct kvg_lookup *lookup, uint64_t max)
{
    uint32_t count =
        lookup->range_count < lookup->range_max ? lookup->range_count : lookup->range_max;

    kvd_out_key(out, "ranges");
    kvd_out_text(out, "[");
    for (uint32_t i = 0; i < count && i < max; i++) {
        kvd_out_text(out, i > 0 ? ",[" : "[");
        kvd_out_u64(out, lookup->ranges[i].begin);
        kvd_out_text(out, ",");
        kvd_out_u64(out, lookup->ranges[i].end);
        kvd_out_text(out, "]");
    }
    kvd_out_text(out, "]");
    key_u64(out, "range_count", lookup->range_count);
}

static void write_media(struct kvd_out *out, uint32_t media)
{
    kvd_out_key(out, "media");
    kvd_out_text(out, "[");
    for (unsigned i = 0; i < KVG_MEDIUM_COUNT; i++) {
        if ((media & KVG_MEDIUM_BIT(i)) == 0)
            continue;
        kvd_out_comma(out);
        kvd_out_json(out, kvi_str(kvg_medium_name((enum kvg_medium)i)));
    }
    kvd_out_text(out, "]");
}

static void write_layout(struct kvd_out *out, const struct kvd_answer *answer)
{
    kvd_out_key(out, "layout");
    kvd_out_text(out, "{");
    key_u64(out, "index", answer->layout_index);
    key_u64(out, "page_size", answer->rule.page_size);
    key_bool(out, "eagle", answer->rule.eagle);
    key_u64(out, "parts_per_page", kvg_layout_part_count(answer->layout));
    key_str(out, "prefix", kvg_layout_prefix(answer->layout));
    kvd_out_text(out, "}");
}

static void write_first_missing(
    struct kvd_request *request, const struct kvd_answer *answer)
{
    struct kvd_out *out = &request->out;
    const struct kvg_lookup *lookup = &answer->lookup;
    char hex[KVG_KEY_HEX_BYTES];

    kvd_out_key(out, "first_missing");
    if (lookup->first_missing >= lookup->key_count) {
        kvd_out_text(out, "null");
        return;
    }
    kvg_key_to_hex(&answer->keys[lookup->first_missing], hex);
    kvd_out_text(out, "{");
    key_u64(out, "page", lookup->first_missing);
    key_str(out, "page_key", kvi_str(hex));
    key_u64(out, "missing_parts", lookup->missing_parts);
    kvd_out_key(out, "missing_objects");
    kvd_answer_missing(request, answer, lookup->first_missing, out);
    kvd_out_text(out, "}");
}

static const char *outcome_word(enum kvg_dynamo_outcome outcome)
{
    switch (outcome) {
    case KVG_DYNAMO_ANSWERED:
        return "answered";
    case KVG_DYNAMO_NAMESPACED:
        return "namespaced";
    case KVG_DYNAMO_NO_CONFIG:
        return "no_config";
    case KVG_DYNAMO_OTHER_BACKEND:
        return "other_backend";
    case KVG_DYNAMO_PAGE_SIZE_ZERO:
        return "page_size_zero";
    case KVG_DYNAMO_PAGE_SIZE_DIFFERS:
        return "page_size_differs";
    case KVG_DYNAMO_TOO_SHORT:
        return "too_short";
    }
    return "unknown";
}

/* "source_age_ms": since the last message; null before the first. */
static void write_age(struct kvd_out *out, const struct kvd_shared *shared)
{
    uint64_t last_ms =
        atomic_load_explicit(&shared->last_message_ms, memory_order_relaxed);
    uint64_t now_ms = kvn_clock_ms();

    kvd_out_key(out, "source_age_ms");
    if (last_ms == 0)
        kvd_out_text(out, "null");
    else
        kvd_out_u64(out, now_ms > last_ms ? now_ms - last_ms : 0);
}

static void write_answer(struct kvd_request *request, const struct kvd_answer *answer)
{
    struct kvd_out *out = &request->out;
    const struct kvg_lookup *lookup = &answer->lookup;

    key_str(out, "source", kvi_str(answer->source->shared->config.name));
    if (answer->is_dynamo) {
        key_str(out, "profile", kvi_str("dynamo-1.5"));
        key_str(out, "outcome", kvi_str(outcome_word(answer->outcome)));
    } else {
        key_str(out, "tenant", kvi_str(answer->tenant->tenant));
        write_layout(out, answer);
    }
    key_u64(out, "tokens", answer->token_count);
    key_u64(out, "pages", lookup->key_count);
    key_u64(out, "start", lookup->start);
    key_u64(out, "present_pages", lookup->total);
    key_u64(out, "contiguous_pages", lookup->contiguous);
    key_u64(
        out, "contiguous_tokens", (uint64_t)lookup->contiguous * answer->rule.page_size);
    write_ranges(out, lookup,
        answer->params.has_ranges_max ? answer->params.ranges_max : RANGES_SHOWN);
    if (!answer->is_dynamo) {
        write_first_missing(request, answer);
        write_media(out, lookup->media);
        key_str(out, "confidence", kvi_str(kvg_confidence_name(lookup->confidence)));
        kvd_write_reasons(out, answer->reasons);
        key_u64(out, "gave_up", lookup->gave_up);
    }
    write_age(out, answer->source->shared);
    key_u64(out, "hash_us", answer->hash_us);
    key_u64(out, "lookup_us", answer->lookup_us);
}

/* {"results":[...]}: one answer a prompt, in their order. */
static void answer_prompts(struct kvd_request *request, struct kvd_answer *answer)
{
    const struct kvd_scan *scan = &request->answerer->scan;
    size_t begin = 0;

    kvd_out_text(&request->out, "{\"results\":[");
    for (size_t i = 0; i < scan->prompt_count; i++) {
        size_t end = scan->prompt_ends[i];

        /* A pointer even for an empty prompt: NULL would mean page keys. */
        if (!kvd_answer_prompt(request, scan->tokens + begin, end - begin, answer))
            return;
        kvd_out_comma(&request->out);
        kvd_out_text(&request->out, "{");
        write_answer(request, answer);
        kvd_out_text(&request->out, "}");
        begin = end;
    }
    kvd_out_text(&request->out, "]");
    key_u64(&request->out, "total_us", kvn_clock_us() - request->began_us);
    kvd_out_text(&request->out, "}\n");
}

void kvd_route_lookup(struct kvd_request *request)
{
    const struct kvd_scan *scan = &request->answerer->scan;
    struct kvd_answer answer;

    if (!kvd_answer_begin(request, true, &answer))
        return;
    if (scan->has_prompts) {
        answer_prompts(request, &answer);
        return;
    }
    if (!kvd_answer_prompt(
            request, scan->has_tokens ? scan->tokens : NULL, scan->token_count, &answer))
        return;
    kvd_out_text(&request->out, "{");
    write_answer(request, &answer);
    key_u64(&request->out, "total_us", kvn_clock_us() - request->began_us);
    kvd_out_text(&request->out, "}\n");
}

/* Explain ---------------------------------------------------------------------------------- */

static void write_page(struct kvd_request *request, const struct kvd_answer *answer,
    uint32_t page, bool present)
{
    struct kvd_out *out = &request->out;
    char hex[KVG_KEY_HEX_BYTES];
    uint32_t cpu;
    uint32_t disk;
    uint32_t any;

    kvg_key_to_hex(&answer->keys[page], hex);
    kvd_answer_page_media(request, answer, page, &cpu, &disk, &any);
    kvd_out_text(out, "{");
    key_u64(out, "page", page);
    key_u64(out, "first_token", (uint64_t)page * answer->rule.page_size);
    key_str(out, "page_key", kvi_str(hex));
    key_bool(out, "present", present);
    key_u64(out, "parts", any);
    key_u64(out, "cpu_parts", cpu);
    key_u64(out, "disk_parts", disk);
    if (!present) {
        kvd_out_key(out, "missing_objects");
        kvd_answer_missing(request, answer, page, out);
    }
    kvd_out_text(out, "}");
}

/* Whether a page is in a range; *at only moves on, so pages must come in order. */
static bool in_ranges(const struct kvg_lookup *lookup, uint32_t *at, uint32_t page)
{
    while (*at < lookup->range_count && lookup->ranges[*at].end <= page)
        (*at)++;
    return *at < lookup->range_count && lookup->ranges[*at].begin <= page;
}

static void write_why(struct kvd_out *out, const struct kvd_answer *answer)
{
    const struct kvg_lookup *lookup = &answer->lookup;
    char why[256];

    if (lookup->key_count == 0)
        snprintf(why, sizeof(why),
            "the prompt is shorter than one page of %u tokens, so nothing can be shared",
            (unsigned)answer->rule.page_size);
    else if (lookup->first_missing >= lookup->key_count)
        snprintf(why, sizeof(why), "all %u pages are in the store", lookup->key_count);
    else if (lookup->total == 0 && lookup->confidence == KVG_CONFIDENCE_BLIND)
        snprintf(why, sizeof(why),
            "nothing is known about the store yet: this is not the same as no pages");
    else if (lookup->total == 0)
        snprintf(why, sizeof(why),
            "no page is in the store: other tokens, another layout or namespace, or it "
            "was "
            "never written or is evicted");
    else
        snprintf(why, sizeof(why),
            "page %u is the first gap (%u of %u parts missing); %u pages behind it are "
            "in "
            "the store but cannot be used without it",
            lookup->first_missing, lookup->missing_parts,
            kvg_layout_part_count(answer->layout),
            lookup->total > lookup->contiguous ? lookup->total - lookup->contiguous : 0);
    key_str(out, "why", kvi_str(why));
}

void kvd_route_explain(struct kvd_request *request)
{
    struct kvd_answer answer;
    struct kvd_out *out = &request->out;
    uint32_t from;
    uint32_t to;
    uint32_t at = 0;

    if (!kvd_answer(request, true, &answer))
        return;
    if (answer.is_dynamo) {
        kvd_problem(request, 501, "unsupported", "source",
            "the profile dynamo-1.5 keeps nothing that could explain its answers");
        return;
    }
    from = answer.params.page_from < answer.lookup.key_count
               ? (uint32_t)answer.params.page_from
               : answer.lookup.key_count;
    to = answer.lookup.key_count;
    if (answer.params.page_to > 0 && answer.params.page_to < to)
        to = (uint32_t)answer.params.page_to;
    if (to > from && to - from > PAGES_EXPLAINED_MAX)
        to = from + PAGES_EXPLAINED_MAX;
    kvd_out_text(out, "{");
    write_answer(request, &answer);
    write_why(out, &answer);
    kvd_out_key(out, "explained");
    kvd_out_text(out, "[");
    for (uint32_t page = from; page < to; page++) {
        if (page > from)
            kvd_out_text(out, ",");
        write_page(request, &answer, page, in_ranges(&answer.lookup, &at, page));
    }
    kvd_out_text(out, "]");
    kvd_out_key(out, "next_page");
    if (to < answer.lookup.key_count)
        kvd_out_u64(out, to);
    else
        kvd_out_text(out, "null");
    kvd_out_text(out, "}\n");
}

/* The shapes of others --------------------------------------------------------------------- */

static void write_conductor(struct kvd_request *request, const struct kvd_answer *answer)
{
    struct kvd_out *out = &request->out;
    const char *name = answer->source->shared->config.name;
    uint64_t page_size = answer->rule.page_size;
    uint64_t tokens = answer->lookup.contiguous * page_size;
    uint64_t cpu = kvd_answer_on_medium(request, answer, KVG_MEDIUM_CPU) * page_size;
    uint64_t disk = kvd_answer_on_medium(request, answer, KVG_MEDIUM_DISK) * page_size;

    kvd_out_text(out, "{");
    kvd_out_key(out, "instances");
    kvd_out_text(out, "{");
    kvd_out_json(out, kvi_str(name));
    kvd_out_text(out, ":{");
    key_u64(out, "longest_matched", tokens);
    key_u64(out, "gpu", 0);
    key_u64(out, "cpu", cpu);
    /* Cumulative, as in Dynamo: what cpu and disk hold together. */
    key_u64(out, "disk", disk > 0 || cpu < tokens ? tokens : cpu);
    kvd_out_key(out, "dp");
    kvd_out_text(out, "{}}}");
    kvd_out_key(out, answer->is_dynamo ? "default" : answer->tenant->tenant);
    kvd_out_text(out, "{");
    kvd_out_json(out, kvi_str(name));
    kvd_out_text(out, ":{");
    key_u64(out, "longest_matched", tokens);
    key_u64(out, "GPU", 0);
    key_u64(out, "CPU", cpu);
    key_u64(out, "DISK", disk);
    kvd_out_key(out, "DP");
    kvd_out_text(out, "{}}}");
    key_str(out, "confidence", kvi_str(kvg_confidence_name(answer->lookup.confidence)));
    kvd_write_reasons(out, answer->reasons);
    kvd_out_text(out, "}\n");
}

void kvd_route_query(struct kvd_request *request)
{
    struct kvd_answer answer;

    if (kvd_answer(request, false, &answer))
        write_conductor(request, &answer);
}

void kvd_route_query_by_hash(struct kvd_request *request)
{
    kvd_route_query(request);
}

void kvd_route_check_blocks(struct kvd_request *request)
{
    struct kvd_answer answer;
    struct kvd_out *out = &request->out;

    if (!kvd_answer(request, false, &answer))
        return;
    kvd_out_text(out, "{");
    write_ranges(out, &answer.lookup, UINT32_MAX);
    key_u64(out, "total_hits", answer.lookup.total);
    key_str(out, "confidence", kvi_str(kvg_confidence_name(answer.lookup.confidence)));
    kvd_out_text(out, "}\n");
}
