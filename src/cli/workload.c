/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* workload.c -- prompts for the demonstration (workload.h).
 *
 *     system prompt | question | answer | question | answer | question
 *     1, 2, ... 256 |<------------ turn 1, 2, 3 of one conversation ->
 *
 * A token of a conversation follows from (seed, conversation, place), so nothing is stored but
 * how long each conversation is.
 */
#include "cli/workload.h"

#include "cli/cli.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define CONVERSATIONS_MAX 4096u
#define VOCABULARY 128000u
#define TURNS_MAX 14u
#define CONVERSATION_TOKENS_MAX 60000u

struct conversation {
    uint64_t id;
    uint32_t tokens; /* Of its last prompt and answer. */
    uint32_t turns_left;
};

struct kvc_workload {
    struct kvc_workload_options options;
    struct kvc_trace *trace;
    uint64_t random;
    uint64_t requests;
    uint64_t next_id;
    uint32_t *tokens;
    size_t token_capacity;
    struct conversation open[CONVERSATIONS_MAX];
};

/* SplitMix64, with the state in `random`. */
static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static uint32_t below(struct kvc_workload *workload, uint32_t bound)
{
    workload->random += UINT64_C(0x9e3779b97f4a7c15);
    return (uint32_t)(mix(workload->random) % bound);
}

kvg_err kvc_workload_new(const struct kvc_workload_options *options,
    struct kvg_error *error, struct kvc_workload **out)
{
    struct kvc_workload *workload = calloc(1, sizeof(*workload));
    kvg_err err;

    *out = NULL;
    if (workload == NULL)
        return KVG_ENOMEM;
    workload->options = *options;
    workload->random = mix(options->seed + 1);
    if (workload->options.conversations == 0)
        workload->options.conversations = 1;
    if (workload->options.conversations > CONVERSATIONS_MAX)
        workload->options.conversations = CONVERSATIONS_MAX;
    if (options->trace_path != NULL) {
        err = kvc_trace_open(options->trace_path, error, &workload->trace);
        if (err != KVG_OK) {
            kvc_workload_free(workload);
            return err;
        }
    }
    *out = workload;
    return KVG_OK;
}

void kvc_workload_free(struct kvc_workload *workload)
{
    if (workload == NULL)
        return;
    kvc_trace_free(workload->trace);
    free(workload->tokens);
    free(workload);
}

uint32_t kvc_workload_page_size(const struct kvc_workload *workload)
{
    return workload->trace == NULL ? KVC_WORKLOAD_PAGE : KVC_TRACE_BLOCK_TOKENS;
}

static kvg_err reserve(
    struct kvc_workload *workload, size_t count, struct kvg_error *error)
{
    uint32_t *tokens;

    if (count <= workload->token_capacity)
        return KVG_OK;
    tokens = realloc(workload->tokens, count * 2 * sizeof(*tokens));
    if (tokens == NULL) {
        error->code = KVG_ENOMEM;
        snprintf(error->field, sizeof(error->field), "workload");
        snprintf(error->message, sizeof(error->message),
            "out of memory for a prompt of %zu "
            "tokens",
            count);
        return KVG_ENOMEM;
    }
    workload->tokens = tokens;
    workload->token_capacity = count * 2;
    return KVG_OK;
}

static kvg_err next_of_trace(struct kvc_workload *workload, struct kvc_prompt *out,
    bool *got, struct kvg_error *error)
{
    struct kvc_trace_request request;
    kvg_err err = kvc_trace_next(workload->trace, &request, got, error);
    size_t to = 0;
    size_t i;
    uint32_t j;

    if (err != KVG_OK || !*got)
        return err;
    err = reserve(workload, request.block_count * KVC_TRACE_BLOCK_TOKENS, error);
    for (i = 0; i < request.block_count && err == KVG_OK; i++) {
        if (request.blocks[i] > UINT32_MAX / KVC_TRACE_BLOCK_TOKENS) {
            error->code = KVG_ELIMIT;
            snprintf(error->field, sizeof(error->field), "line %" PRIu64,
                kvc_trace_line(workload->trace));
            snprintf(error->message, sizeof(error->message),
                "hash_ids: %" PRIu64 " is too large; allowed are 0 to %u",
                request.blocks[i], UINT32_MAX / KVC_TRACE_BLOCK_TOKENS);
            return KVG_ELIMIT;
        }
        for (j = 0; j < KVC_TRACE_BLOCK_TOKENS; j++)
            workload->tokens[to++] =
                (uint32_t)request.blocks[i] * KVC_TRACE_BLOCK_TOKENS + j;
    }
    *out = (struct kvc_prompt){workload->tokens, to, 0};
    return err;
}

static uint32_t conversation_token(
    const struct kvc_workload *workload, uint64_t id, uint32_t place)
{
    if (place < KVC_SYSTEM_TOKENS)
        return place + 1;
    return (uint32_t)(mix(workload->options.seed + id * UINT64_C(0x9e3779b97f4a7c15) +
                          place) %
                      VOCABULARY);
}

static kvg_err next_generated(
    struct kvc_workload *workload, struct kvc_prompt *out, struct kvg_error *error)
{
    struct conversation *chosen =
        &workload->open[below(workload, workload->options.conversations)];
    kvg_err err;
    uint32_t i;

    if (chosen->turns_left == 0 || chosen->tokens > CONVERSATION_TOKENS_MAX)
        *chosen = (struct conversation){.id = ++workload->next_id,
            .tokens = KVC_SYSTEM_TOKENS,
            .turns_left = 1 + below(workload, TURNS_MAX)};
    chosen->turns_left--;
    /* A question; now and then somebody pastes a document. */
    chosen->tokens += 20 + below(workload, 300);
    if (below(workload, 8) == 0)
        chosen->tokens += 1000 + below(workload, 7000);
    err = reserve(workload, chosen->tokens, error);
    if (err != KVG_OK)
        return err;
    for (i = 0; i < chosen->tokens; i++)
        workload->tokens[i] = conversation_token(workload, chosen->id, i);
    *out = (struct kvc_prompt){workload->tokens, chosen->tokens, chosen->id};
    /* The answer becomes part of the next prompt. */
    chosen->tokens += 50 + below(workload, 600);
    return KVG_OK;
}

kvg_err kvc_workload_next(struct kvc_workload *workload, struct kvc_prompt *out,
    bool *got, struct kvg_error *error)
{
    uint64_t request_max = workload->options.request_max;

    *got = false;
    *out = (struct kvc_prompt){0};
    if (request_max > 0 && workload->requests >= request_max)
        return KVG_OK;
    workload->requests++;
    if (workload->trace != NULL)
        return next_of_trace(workload, out, got, error);
    *got = true;
    return next_generated(workload, out, error);
}
