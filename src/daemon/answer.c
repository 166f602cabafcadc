/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* answer.c -- one question about a prompt, from its parameters to what the index says.
 *
 *     1. find the source, the tenant's views and the layout
 *     2. make the page keys: memo, else hashing (or take the keys that were given)
 *     3. ask the index through this thread's seat
 *     4. count
 *
 * A question that cannot be answered is a problem that says what to change, never "no pages":
 * another page size, no layout, an unknown worker.
 */
#include "daemon/daemon_internal.h"

#include "base/alloc.h"
#include "base/fmt.h"

#include <stdio.h>
#include <string.h>

#define MISSING_SHOWN_MAX 16u

static bool fail(struct kvd_request *request, enum kvd_counter counter, unsigned status,
    const char *code, const char *field, const char *predicate)
{
    kvd_refuse(request, status, code, field, predicate);
    kvd_count(request->answerer->block, counter, 1);
    return false;
}

/* 1: source, tenant, layout ---------------------------------------------------------------- */

static bool find_source(struct kvd_request *request, struct kvd_answer *answer)
{
    char detail[160];

    answer->source = kvd_snapshot_source(request->snapshot, answer->params.source);
    if (answer->source != NULL)
        return true;
    if (request->snapshot == NULL || request->snapshot->source_count == 0)
        return fail(request, KVD_LOOKUPS_NO_SOURCE, 409, "no-source", "source",
            "is not configured: name one in the configuration, or POST /register");
    snprintf(detail, sizeof(detail),
        "\"%.*s\" does not exist; GET /v1/sources lists those that do",
        (int)(answer->params.source.bytes < 64 ? answer->params.source.bytes : 64),
        answer->params.source.data);
    return fail(request, KVD_LOOKUPS_NO_SOURCE, 404, "no-source", "source", detail);
}

/* Views of a tenant are made by the loop when it is first asked for. */
static bool find_tenant(struct kvd_request *request, struct kvd_answer *answer)
{
    struct kvg_str tenant = answer->params.tenant;

    answer->tenant = kvd_source_tenant(answer->source, tenant);
    if (answer->tenant != NULL)
        return true;
    if (request->tenant_made || tenant.bytes >= KVD_NAME_BYTES ||
        memchr(tenant.data, '\0', tenant.bytes) != NULL)
        return fail(request, KVD_LOOKUPS_BAD_REQUEST, 400, "bad-value", "tenant",
            "is longer than 63 bytes, or holds a zero byte");
    memcpy(request->tenant_wanted, tenant.data, tenant.bytes);
    request->tenant_wanted[tenant.bytes] = '\0';
    memcpy(request->source_wanted, answer->source->shared->config.name, KVD_NAME_BYTES);
    return false;
}

/* Whether a layout's prefix ends with the model's name, "org/model" written "org-model". */
static bool is_of_model(const struct kvg_layout *layout, struct kvg_str model)
{
    struct kvg_str prefix = kvg_layout_prefix(layout);
    size_t before;

    if (model.bytes == 0 || prefix.bytes < model.bytes)
        return false;
    before = prefix.bytes - model.bytes;
    if (before > 0 && prefix.data[before - 1] != '_')
        return false;
    for (size_t i = 0; i < model.bytes; i++) {
        char wanted = model.data[i] == '/' ? '-' : model.data[i];

        if (prefix.data[before + i] != wanted)
            return false;
    }
    return true;
}

/* The first layout that fits what was said, or -1. */
static int choose_layout(const struct kvd_answer *answer)
{
    const struct kvd_params *params = &answer->params;
    const struct kvd_roster *roster = answer->source->roster;
    size_t count = roster->view.layout_count;
    bool by_model = false;

    if (params->has_layout)
        return params->layout < count ? (int)params->layout : -1;
    if (params->has_worker_id)
        return kvg_workers_layout_of(roster->workers, params->worker_id);
    for (size_t i = 0; i < count; i++)
        by_model |= is_of_model(kvg_workers_layout(roster->workers, i), params->model);
    for (size_t i = 0; i < count; i++) {
        const struct kvg_layout *layout = kvg_workers_layout(roster->workers, i);
        bool fits = !by_model || is_of_model(layout, params->model);

        if (fits && (!params->has_page_size ||
                        kvg_layout_rule(layout).page_size == params->page_size))
            return (int)i;
    }
    /* Nothing has that page size: say so, with the layout that it would have been. */
    if (count == 0 || (params->model.bytes > 0 && !by_model && count > 1))
        return -1;
    return 0;
}

static bool find_layout(struct kvd_request *request, struct kvd_answer *answer)
{
    const struct kvd_params *params = &answer->params;
    int index = choose_layout(answer);
    char detail[160];

    if (index < 0 && answer->source->roster->view.layout_count == 0)
        return fail(request, KVD_LOOKUPS_NO_LAYOUT, 409, "no-layout", "layout",
            "is not known: no usable worker has advertised one; set workers or "
            "workers_file, or "
            "PUT /v1/workers");
    if (index < 0)
        return fail(request, KVD_LOOKUPS_NO_LAYOUT, 404, "no-layout",
            params->has_worker_id ? "worker_id" : "layout",
            "is not known, or unusable; GET /v1/workers tells why");
    answer->layout_index = (size_t)index;
    answer->layout = kvg_workers_layout(answer->source->roster->workers, (size_t)index);
    answer->rule = kvg_layout_rule(answer->layout);
    if (params->has_page_size && params->page_size != answer->rule.page_size) {
        snprintf(detail, sizeof(detail),
            "is %llu, but the workers' layout has pages of %u tokens",
            (unsigned long long)params->page_size, (unsigned)answer->rule.page_size);
        return fail(request, KVD_LOOKUPS_PAGE_SIZE, 409, "page-size-differs", "page_size",
            detail);
    }
    if (answer->tenant->views[index] == NULL)
        return fail(request, KVD_LOOKUPS_NO_LAYOUT, 503, "no-layout", "layout",
            "could not be bound to the index; the log tells which limit was met");
    return true;
}

/* 2: page keys ------------------------------------------------------------------------------ */

static void count_memo(struct kvd_answerer *answerer, struct kvd_memo *memo)
{
    struct kvg_page_memo_stats now = {.struct_bytes = sizeof(now)};

    kvg_page_memo_stats(memo->memo, &now);
    kvd_count(
        answerer->block, KVD_MEMO_REUSED, now.pages_reused - memo->counted.pages_reused);
    kvd_count(
        answerer->block, KVD_MEMO_HASHED, now.pages_hashed - memo->counted.pages_hashed);
    memo->counted = now;
}

/* The thread's memo for a rule, made at first use in place of the one unused longest. */
static struct kvd_memo *memo_for(struct kvd_daemon *daemon, struct kvd_answerer *answerer,
    const struct kvg_page_rule *rule)
{
    struct kvg_page_memo_options options = {.struct_bytes = sizeof(options),
        .rule = *rule,
        .memory_bytes_max = (size_t)daemon->memo_bytes_max / KVD_MEMOS_MAX,
        .seed = daemon->memo_seed};
    struct kvd_memo *oldest = &answerer->memos[0];

    if (options.memory_bytes_max < KVG_PAGE_MEMO_BYTES_MIN)
        return NULL;
    answerer->turn++;
    for (size_t i = 0; i < KVD_MEMOS_MAX; i++) {
        struct kvd_memo *memo = &answerer->memos[i];

        if (memo->memo != NULL && memo->rule.page_size == rule->page_size &&
            memo->rule.eagle == rule->eagle) {
            memo->used = answerer->turn;
            return memo;
        }
        if (memo->used < oldest->used)
            oldest = memo;
    }
    kvg_page_memo_free(oldest->memo);
    memset(oldest, 0, sizeof(*oldest));
    if (kvg_page_memo_new(daemon->alloc, &options, &oldest->memo) != KVG_OK)
        return NULL;
    oldest->rule = *rule;
    oldest->used = answerer->turn;
    return oldest;
}

static bool reserve_keys(
    struct kvd_answerer *answerer, const struct kvg_alloc *alloc, size_t count)
{
    void *keys = answerer->keys;

    if (count <= answerer->key_capacity)
        return true;
    if (!kvi_resize_array(
            alloc, &keys, answerer->key_capacity, count, sizeof(*answerer->keys)))
        return false;
    answerer->keys = keys;
    answerer->key_capacity = count;
    return true;
}

static bool make_keys(struct kvd_request *request, struct kvd_answer *answer)
{
    struct kvd_daemon *daemon = request->daemon;
    struct kvd_answerer *answerer = request->answerer;
    struct kvg_namespace space = {answer->params.extra_key, answer->params.cache_salt};
    const struct kvg_key *prior = NULL;
    struct kvg_key prior_key;
    struct kvd_memo *memo;
    uint64_t began_us = kvn_clock_us();
    size_t tokens = answer->token_count;
    size_t pages;
    size_t made;

    if (kvg_namespace_prior(&space, &prior_key)) {
        prior = &prior_key;
        kvd_count(answerer->block, KVD_LOOKUPS_NAMESPACED, 1);
    }
    if (answer->params.cap_last_page && tokens > 0)
        tokens--; /* An engine must compute at least one token itself. */
    pages = kvg_page_count(&answer->rule, tokens);
    if (pages > daemon->pages_max)
        pages = SIZE_MAX;
    if (pages == SIZE_MAX)
        return fail(request, KVD_LOOKUPS_BAD_REQUEST, 400, "limit", "http.pages_max",
            "is less than the pages of this prompt");
    if (!reserve_keys(answerer, daemon->alloc, pages))
        return fail(request, KVD_LOOKUPS_NO_MEMORY, 503, "busy", "tokens",
            "make more page keys than fit into memory");
    memo = memo_for(daemon, answerer, &answer->rule);
    if (memo != NULL) {
        made = kvg_page_memo_keys(
            memo->memo, prior, answer->tokens, tokens, answerer->keys, pages);
        count_memo(answerer, memo);
    } else {
        made = kvg_page_keys(
            &answer->rule, prior, answer->tokens, tokens, answerer->keys, pages);
        kvd_count(answerer->block, KVD_MEMO_HASHED, made);
    }
    answer->keys = answerer->keys;
    answer->lookup.key_count = (uint32_t)made;
    answer->hash_us = kvn_clock_us() - began_us;
    return true;
}

static bool find_keys(struct kvd_request *request, struct kvd_answer *answer)
{
    struct kvd_scan *scan = &request->answerer->scan;

    if (scan->has_keys && scan->has_tokens)
        return fail(request, KVD_LOOKUPS_BAD_REQUEST, 400, "bad-value", "page_keys",
            "are given beside tokens: give one of the two");
    if (answer->tokens != NULL || scan->has_tokens)
        return make_keys(request, answer);
    if (!scan->has_keys)
        return fail(request, KVD_LOOKUPS_BAD_REQUEST, 400, "missing-field", "tokens",
            "are missing: an array of numbers, or page_keys as hex strings");
    if (scan->key_count > request->daemon->pages_max)
        return fail(request, KVD_LOOKUPS_BAD_REQUEST, 400, "limit", "http.pages_max",
            "is less than the number of page keys given");
    answer->keys = scan->keys;
    answer->lookup.key_count = (uint32_t)scan->key_count;
    return true;
}

/* 3: the index ------------------------------------------------------------------------------ */

/* Room for every range there can be, so that the answer is whole. */
static bool reserve_ranges(
    struct kvd_answerer *answerer, const struct kvg_alloc *alloc, size_t pages)
{
    size_t count = pages / 2 + 1;
    void *ranges = answerer->ranges;

    if (count <= answerer->range_capacity)
        return true;
    if (!kvi_resize_array(
            alloc, &ranges, answerer->range_capacity, count, sizeof(*answerer->ranges)))
        return false;
    answerer->ranges = ranges;
    answerer->range_capacity = count;
    return true;
}

static bool ask_index(struct kvd_request *request, struct kvd_answer *answer)
{
    struct kvd_answerer *answerer = request->answerer;
    struct kvg_lookup *lookup = &answer->lookup;
    const struct kvd_shared *shared = answer->source->shared;
    size_t tenant_index = (size_t)(answer->tenant - answer->source->tenants);
    uint64_t began_us = kvn_clock_us();

    if (!reserve_ranges(answerer, request->daemon->alloc, lookup->key_count))
        return fail(request, KVD_LOOKUPS_NO_MEMORY, 503, "busy", "ranges",
            "do not fit into memory");
    lookup->view = answer->tenant->views[answer->layout_index];
    lookup->keys = answer->keys;
    lookup->ranges = answerer->ranges;
    lookup->range_max = (uint32_t)answerer->range_capacity;
    lookup->start = answer->params.start < lookup->key_count
                        ? (uint32_t)answer->params.start
                        : lookup->key_count;
    kvg_presence_lookup(shared->seats[answerer->seat], lookup, 1);
    answer->reasons =
        atomic_load_explicit(&shared->tenant_reasons[tenant_index], memory_order_relaxed);
    answer->lookup_us = kvn_clock_us() - began_us;
    return true;
}

/* The other profile: the client itself, under its lock. */
static bool ask_dynamo(struct kvd_request *request, struct kvd_answer *answer)
{
    struct kvd_answerer *answerer = request->answerer;
    struct kvd_shared *shared = answer->source->shared;
    struct kvg_lookup *lookup = &answer->lookup;
    struct kvg_str space = answer->params.cache_salt.bytes > 0 ? answer->params.cache_salt
                                                               : answer->params.extra_key;
    uint32_t page_size = (uint32_t)answer->params.page_size;
    uint64_t began_us = kvn_clock_us();
    size_t range_count = 0;

    if (!answerer->scan.has_tokens)
        return fail(request, KVD_LOOKUPS_BAD_REQUEST, 400, "missing-field", "tokens",
            "are missing; the profile dynamo-1.5 takes nothing else");
    if (!answer->params.has_page_size && answer->source->roster->view.layout_count > 0)
        page_size =
            kvg_layout_rule(kvg_workers_layout(answer->source->roster->workers, 0))
                .page_size;
    answer->rule.page_size = page_size;
    lookup->key_count =
        page_size == 0 ? 0 : (uint32_t)kvg_page_count(&answer->rule, answer->token_count);
    if (!reserve_ranges(answerer, request->daemon->alloc, lookup->key_count))
        return fail(request, KVD_LOOKUPS_NO_MEMORY, 503, "busy", "ranges",
            "do not fit into memory");
    pthread_mutex_lock(&shared->dynamo_lock);
    answer->outcome = kvg_dynamo_check_blocks(shared->dynamo, answer->tokens,
        answer->token_count, page_size, space, answerer->ranges, answerer->range_capacity,
        &range_count, &lookup->total);
    pthread_mutex_unlock(&shared->dynamo_lock);
    lookup->ranges = answerer->ranges;
    lookup->range_max = (uint32_t)answerer->range_capacity;
    lookup->range_count = (uint32_t)range_count;
    lookup->contiguous =
        range_count > 0 && answerer->ranges[0].begin == 0 ? answerer->ranges[0].end : 0;
    lookup->first_missing = lookup->contiguous;
    lookup->confidence = KVG_CONFIDENCE_FRESH;
    answer->is_dynamo = true;
    answer->lookup_us = kvn_clock_us() - began_us;
    return true;
}

/* 4: counting ------------------------------------------------------------------------------- */

static void count_answer(struct kvd_request *request, const struct kvd_answer *answer)
{
    const struct kvg_lookup *lookup = &answer->lookup;
    struct kvd_block *block = request->answerer->block;
    uint32_t usable =
        lookup->contiguous < lookup->total ? lookup->contiguous : lookup->total;

    kvd_count(block,
        lookup->key_count == 0              ? KVD_LOOKUPS_TOO_SHORT
        : lookup->total == 0                ? KVD_LOOKUPS_NONE
        : lookup->total < lookup->key_count ? KVD_LOOKUPS_SOME
                                            : KVD_LOOKUPS_ALL,
        1);
    kvd_count(block, KVD_PAGES_CONTIGUOUS, usable);
    kvd_count(block, KVD_PAGES_BEYOND, lookup->total - usable);
    kvd_count(block, KVD_PAGES_ABSENT, lookup->key_count - lookup->total);
    kvd_count(block, KVD_TOKENS, answer->token_count);
    kvd_count(block, (enum kvd_counter)(KVD_BLIND + (unsigned)lookup->confidence), 1);
    kvd_count(block, KVD_RETRIES, lookup->retries);
    kvd_count(block, KVD_GAVE_UP, lookup->gave_up);
    kvd_observe_us(block, KVD_HASH_TIME, answer->hash_us);
    kvd_observe_us(block, KVD_LOOKUP_TIME, answer->hash_us + answer->lookup_us);
    kvd_pulse_answer(request, answer);
}

bool kvd_answer_begin(struct kvd_request *request, bool strict, struct kvd_answer *out)
{
    memset(out, 0, sizeof(*out));
    if (!kvd_params_read(request, strict, &out->params)) {
        kvd_count(request->answerer->block, KVD_LOOKUPS_BAD_REQUEST, 1);
        return false;
    }
    if (!find_source(request, out))
        return false;
    out->is_dynamo = out->source->shared->dynamo != NULL;
    return out->is_dynamo || (find_tenant(request, out) && find_layout(request, out));
}

bool kvd_answer_prompt(struct kvd_request *request, const uint32_t *tokens,
    size_t token_count, struct kvd_answer *answer)
{
    memset(&answer->lookup, 0, sizeof(answer->lookup));
    answer->tokens = tokens;
    answer->token_count = token_count;
    answer->hash_us = 0;
    if (answer->is_dynamo) {
        if (!ask_dynamo(request, answer))
            return false;
    } else if (!find_keys(request, answer) || !ask_index(request, answer)) {
        return false;
    }
    count_answer(request, answer);
    return true;
}

bool kvd_answer(struct kvd_request *request, bool strict, struct kvd_answer *out)
{
    const struct kvd_scan *scan = &request->answerer->scan;

    if (!kvd_answer_begin(request, strict, out))
        return false;
    if (scan->has_prompts)
        return fail(request, KVD_LOOKUPS_BAD_REQUEST, 400, "bad-value", "prompts",
            "are not taken here; ask for one prompt as tokens, or POST /v1/lookup");
    return kvd_answer_prompt(
        request, scan->has_tokens ? scan->tokens : NULL, scan->token_count, out);
}

/* Details ----------------------------------------------------------------------------------- */

struct parts {
    uint8_t cpu[KVG_LAYOUT_PARTS_MAX / 8];
    uint8_t disk[KVG_LAYOUT_PARTS_MAX / 8];
};

static void read_parts(struct kvd_request *request, const struct kvd_answer *answer,
    uint32_t page, struct parts *parts)
{
    memset(parts, 0, sizeof(*parts));
    if (!kvg_presence_page_parts(answer->source->shared->seats[request->answerer->seat],
            answer->tenant->views[answer->layout_index], &answer->keys[page], parts->cpu,
            parts->disk, sizeof(parts->cpu)))
        memset(parts, 0, sizeof(*parts));
}

static bool bit(const uint8_t *bits, uint32_t index)
{
    return (bits[index / 8] >> (index % 8) & 1) != 0;
}

void kvd_answer_missing(struct kvd_request *request, const struct kvd_answer *answer,
    uint32_t page, struct kvd_out *out)
{
    uint32_t part_count = kvg_layout_part_count(answer->layout);
    char object_key[KVG_OBJECT_KEY_BYTES_MAX + 1];
    struct parts parts;
    uint32_t shown = 0;

    read_parts(request, answer, page, &parts);
    kvd_out_text(out, "[");
    for (uint32_t part = 0; part < part_count && shown < MISSING_SHOWN_MAX; part++) {
        size_t bytes;

        if (bit(parts.cpu, part) || bit(parts.disk, part))
            continue;
        bytes =
            kvg_layout_object_key(answer->layout, &answer->keys[page], part, object_key);
        if (shown++ > 0)
            kvd_out_text(out, ",");
        kvd_out_json(out, (struct kvg_str){object_key, bytes});
    }
    kvd_out_text(out, "]");
}

void kvd_answer_page_media(struct kvd_request *request, const struct kvd_answer *answer,
    uint32_t page, uint32_t *cpu_parts, uint32_t *disk_parts, uint32_t *any_parts)
{
    uint32_t part_count = kvg_layout_part_count(answer->layout);
    struct parts parts;

    read_parts(request, answer, page, &parts);
    *cpu_parts = 0;
    *disk_parts = 0;
    *any_parts = 0;
    for (uint32_t part = 0; part < part_count; part++) {
        *cpu_parts += bit(parts.cpu, part);
        *disk_parts += bit(parts.disk, part);
        *any_parts += bit(parts.cpu, part) || bit(parts.disk, part);
    }
}

uint32_t kvd_answer_on_medium(
    struct kvd_request *request, const struct kvd_answer *answer, enum kvg_medium medium)
{
    uint32_t part_count;
    uint32_t page = 0;

    if (answer->is_dynamo)
        return medium == KVG_MEDIUM_CPU ? answer->lookup.contiguous : 0;
    part_count = kvg_layout_part_count(answer->layout);
    if ((answer->lookup.media & KVG_MEDIUM_BIT(medium)) != 0)
        return answer->lookup.contiguous;
    for (page = 0; page < answer->lookup.contiguous; page++) {
        uint32_t cpu;
        uint32_t disk;
        uint32_t any;

        kvd_answer_page_media(request, answer, page, &cpu, &disk, &any);
        if ((medium == KVG_MEDIUM_CPU ? cpu : disk) < part_count)
            break;
    }
    return page;
}
