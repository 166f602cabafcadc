/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* simulate_trace.c -- a trace in memory, read once for all runs (simulate.h).
 *
 *     requests   | first 0, 3 blocks | first 3, 2 blocks | ...
 *     blocks     | 0 1 2 | 0 3 | ...
 *
 * Block ids may be any whole numbers; they are numbered anew in the order in which they appear,
 * so that a token, 32 bits wide, can tell all of them apart.
 */
#include "cli/simulate.h"
#include "cli/trace.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* From a block id to its number: open addressing; number 0 is an empty place. */
struct numbers {
    uint64_t *ids;
    uint32_t *numbers; /* Plus one. */
    size_t capacity;   /* A power of two. */
    uint32_t count;
};

struct loader {
    const struct kvc_sim_load *load;
    struct kvc_sim_trace *trace;
    struct kvc_trace *reader;
    struct numbers numbers;
    size_t request_capacity;
    size_t block_capacity;
    struct kvg_error *error;
};

static kvg_err fail(struct loader *loader, kvg_err code, const char *what)
{
    loader->error->code = code;
    snprintf(loader->error->field, sizeof(loader->error->field), "line %" PRIu64,
        kvc_trace_line(loader->reader));
    snprintf(loader->error->message, sizeof(loader->error->message), "%s", what);
    return code;
}

static size_t place_of(const struct numbers *numbers, uint64_t id)
{
    uint64_t mixed = (id ^ (id >> 32)) * UINT64_C(0x9e3779b97f4a7c15);
    size_t at = (size_t)(mixed >> 20) & (numbers->capacity - 1);

    while (numbers->numbers[at] != 0 && numbers->ids[at] != id)
        at = (at + 1) & (numbers->capacity - 1);
    return at;
}

static bool grow_numbers(struct numbers *numbers)
{
    struct numbers larger = {.count = numbers->count};
    size_t i;

    larger.capacity = numbers->capacity == 0 ? 4096 : numbers->capacity * 2;
    larger.ids = malloc(larger.capacity * sizeof(*larger.ids));
    larger.numbers = calloc(larger.capacity, sizeof(*larger.numbers));
    if (larger.ids == NULL || larger.numbers == NULL) {
        free(larger.ids);
        free(larger.numbers);
        return false;
    }
    for (i = 0; i < numbers->capacity; i++) {
        if (numbers->numbers[i] != 0) {
            size_t at = place_of(&larger, numbers->ids[i]);

            larger.ids[at] = numbers->ids[i];
            larger.numbers[at] = numbers->numbers[i];
        }
    }
    free(numbers->ids);
    free(numbers->numbers);
    *numbers = larger;
    return true;
}

static bool number_of(struct numbers *numbers, uint64_t id, uint32_t *out)
{
    size_t at;

    if (numbers->capacity < 2 * ((size_t)numbers->count + 1) && !grow_numbers(numbers))
        return false;
    at = place_of(numbers, id);
    if (numbers->numbers[at] == 0) {
        numbers->ids[at] = id;
        numbers->numbers[at] = ++numbers->count;
    }
    *out = numbers->numbers[at] - 1;
    return true;
}

/* Room for `wanted` items, at least doubling; the array may move. */
static bool reserve(void **array, size_t *capacity, size_t wanted, size_t item_bytes)
{
    size_t larger = *capacity * 2 < wanted ? wanted : *capacity * 2;
    void *moved;

    if (wanted <= *capacity)
        return true;
    if (larger < 1024)
        larger = 1024;
    moved = realloc(*array, larger * item_bytes);
    if (moved == NULL)
        return false;
    *array = moved;
    *capacity = larger;
    return true;
}

static kvg_err check(struct loader *loader, const struct kvc_trace_request *request)
{
    uint64_t block_tokens = loader->load->block_tokens;
    uint64_t blocks_needed = request->input_tokens / block_tokens +
                             (request->input_tokens % block_tokens != 0);
    char what[160];

    if (blocks_needed != request->block_count) {
        snprintf(what, sizeof(what),
            "input_length: %" PRIu64 " tokens are %" PRIu64 " blocks of %" PRIu64
            ", but hash_ids has %zu; --block-tokens tells another size",
            request->input_tokens, blocks_needed, block_tokens, request->block_count);
        return fail(loader, KVG_EFORMAT, what);
    }
    if (request->block_count * block_tokens > KVC_SIM_PROMPT_TOKENS_MAX) {
        snprintf(what, sizeof(what), "input_length: more than the allowed %u tokens",
            KVC_SIM_PROMPT_TOKENS_MAX);
        return fail(loader, KVG_ELIMIT, what);
    }
    if (loader->trace->request_count == KVC_SIM_REQUESTS_MAX) {
        snprintf(what, sizeof(what), "more than the allowed %u requests",
            KVC_SIM_REQUESTS_MAX);
        return fail(loader, KVG_ELIMIT, what);
    }
    if (request->block_count > KVC_SIM_BLOCKS_MAX - loader->trace->block_count) {
        snprintf(what, sizeof(what), "more than the allowed %u blocks in all requests",
            KVC_SIM_BLOCKS_MAX);
        return fail(loader, KVG_ELIMIT, what);
    }
    return KVG_OK;
}

static kvg_err keep(struct loader *loader, const struct kvc_trace_request *request)
{
    struct kvc_sim_trace *trace = loader->trace;
    void *requests = trace->requests;
    void *blocks = trace->blocks;
    struct kvc_sim_request *kept;
    bool room = reserve(&requests, &loader->request_capacity, trace->request_count + 1,
        sizeof(*trace->requests));
    size_t i;

    trace->requests = requests;
    room = room && reserve(&blocks, &loader->block_capacity,
                       trace->block_count + request->block_count, sizeof(*trace->blocks));
    trace->blocks = blocks;
    for (i = 0; room && i < request->block_count; i++)
        room = number_of(
            &loader->numbers, request->blocks[i], &trace->blocks[trace->block_count + i]);
    if (!room)
        return fail(loader, KVG_ENOMEM, "out of memory for the trace");
    kept = &trace->requests[trace->request_count++];
    *kept = (struct kvc_sim_request){.block_first = trace->block_count,
        .block_count = (uint32_t)request->block_count,
        .input_tokens = (uint32_t)request->input_tokens};
    kept->prompt_tokens = loader->load->cut_last
                              ? kept->input_tokens
                              : kept->block_count * loader->load->block_tokens;
    trace->block_count += request->block_count;
    trace->block_distinct = loader->numbers.count;
    trace->input_tokens += kept->input_tokens;
    if (kept->prompt_tokens > trace->prompt_tokens_max)
        trace->prompt_tokens_max = kept->prompt_tokens;
    return KVG_OK;
}

kvg_err kvc_sim_trace_load(
    const struct kvc_sim_load *load, struct kvc_sim_trace *out, struct kvg_error *error)
{
    struct loader loader = {.load = load, .trace = out, .error = error};
    struct kvc_trace_request request;
    kvg_err err;
    bool got = true;

    *out = (struct kvc_sim_trace){.path = load->path, .block_tokens = load->block_tokens};
    err = kvc_trace_open(load->path, error, &loader.reader);
    while (err == KVG_OK && got && !kvc_stopped &&
           (load->request_max == 0 || out->request_count < load->request_max)) {
        err = kvc_trace_next(loader.reader, &request, &got, error);
        if (err == KVG_OK && got)
            err = check(&loader, &request);
        if (err == KVG_OK && got)
            err = keep(&loader, &request);
    }
    if (err == KVG_OK && out->request_count == 0) {
        err = fail(&loader, KVG_EFORMAT, "there is no request in the trace");
        snprintf(error->field, sizeof(error->field), "trace");
    }
    free(loader.numbers.ids);
    free(loader.numbers.numbers);
    kvc_trace_free(loader.reader);
    if (err != KVG_OK)
        kvc_sim_trace_free(out);
    return err;
}

void kvc_sim_trace_free(struct kvc_sim_trace *trace)
{
    free(trace->requests);
    free(trace->blocks);
    trace->requests = NULL;
    trace->blocks = NULL;
}

void kvc_sim_prompt(const struct kvc_sim_trace *trace,
    const struct kvc_sim_request *request, uint32_t stride, uint32_t *tokens)
{
    uint32_t left = request->prompt_tokens;
    uint32_t i;

    for (i = 0; i < request->block_count; i++) {
        /* Both factors are odd: at each place of a block, different blocks differ. */
        uint32_t token = trace->blocks[request->block_first + i] * 2654435761u;
        uint32_t count = left < trace->block_tokens ? left : trace->block_tokens;
        uint32_t j;

        for (j = 0; j < count; j += stride)
            *tokens++ = token + j * 2246822519u;
        left -= count;
    }
}
