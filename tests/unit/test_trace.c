/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* Unit tests of the trace reader and of the workloads made from it. */
#include "cli/cli.h"
#include "cli/workload.h"
#include "test.h"

#include <unistd.h>

/* Hands text out in pieces of `step` bytes. */
struct pieces {
    const char *text;
    size_t bytes;
    size_t step;
    size_t fail_at; /* Byte at which reading fails; 0: never. */
    size_t at;
};

static size_t read_piece(void *context, char *bytes, size_t byte_max)
{
    struct pieces *pieces = context;
    size_t left = pieces->bytes - pieces->at;
    size_t count = pieces->step < left ? pieces->step : left;

    if (pieces->fail_at > 0 && pieces->at >= pieces->fail_at)
        return (size_t)-1;
    if (count > byte_max)
        count = byte_max;
    memcpy(bytes, pieces->text + pieces->at, count);
    pieces->at += count;
    return count;
}

static const char GOOD[] =
    "{\"timestamp\": 0, \"input_length\": 700, \"output_length\": 5, \"hash_ids\": [0, "
    "1]}\n"
    "\r\n"
    "{\"timestamp\": 27.0, \"input_length\": 3, \"output_length\": 0, \"hash_ids\": [7],"
    " \"more\": {\"a\": 1}}";

TEST(requests_are_read_however_the_bytes_are_cut)
{
    size_t step;

    for (step = 1; step < sizeof(GOOD); step++) {
        struct pieces pieces = {GOOD, sizeof(GOOD) - 1, step, 0, 0};
        struct kvc_trace_request request;
        struct kvc_trace *trace;
        struct kvg_error error;
        bool got;

        CHECK_EQ(kvc_trace_new(read_piece, &pieces, &trace), KVG_OK);
        CHECK_EQ(kvc_trace_next(trace, &request, &got, &error), KVG_OK);
        CHECK(got);
        CHECK_EQ(request.input_tokens, 700);
        CHECK_EQ(request.block_count, 2);
        CHECK_EQ(request.blocks[1], 1);
        CHECK_EQ(kvc_trace_next(trace, &request, &got, &error), KVG_OK);
        CHECK(got);
        CHECK_EQ(request.timestamp_ms, 27);
        CHECK_EQ(kvc_trace_line(trace), 3);
        CHECK_EQ(kvc_trace_next(trace, &request, &got, &error), KVG_OK);
        CHECK(!got);
        kvc_trace_free(trace);
    }
}

TEST(a_bad_line_is_named_and_the_next_one_is_read)
{
    static const struct {
        const char *line;
        const char *message;
    } CASES[] = {
        {"[]", "is no JSON object"},
        {"{\"timestamp\":-1}", "timestamp: a whole number is needed"},
        {"{\"timestamp\":0.5}", "timestamp: a whole number is needed"},
        {"{\"timestamp\":0,\"input_length\":\"3\"}",
            "input_length: a whole number is needed"},
        {"{\"timestamp\":0,\"input_length\":3}",
            "output_length: a whole number is needed"},
        {"{\"timestamp\":0,\"input_length\":3,\"output_length\":1}",
            "hash_ids: an array is needed"},
        {"{\"timestamp\":0,\"input_length\":3,\"output_length\":1,\"hash_ids\":[1,\"2\"]"
         "}",
            "hash_ids: whole numbers are needed"},
    };
    size_t i;

    for (i = 0; i < KVC_COUNT(CASES); i++) {
        char text[512];
        int bytes = snprintf(text, sizeof(text), "\n%s\n%s", CASES[i].line, GOOD);
        struct pieces pieces = {text, (size_t)bytes, 64, 0, 0};
        struct kvc_trace_request request;
        struct kvc_trace *trace;
        struct kvg_error error;
        bool got;

        CHECK_EQ(kvc_trace_new(read_piece, &pieces, &trace), KVG_OK);
        CHECK_EQ(kvc_trace_next(trace, &request, &got, &error), KVG_EFORMAT);
        CHECK_STR(error.field, "line 2");
        CHECK_STR(error.message, CASES[i].message);
        CHECK_EQ(kvc_trace_next(trace, &request, &got, &error), KVG_OK);
        CHECK_EQ(request.input_tokens, 700);
        kvc_trace_free(trace);
    }
}

TEST(a_line_without_end_costs_one_buffer_and_is_skipped)
{
    size_t bytes = 3 * (size_t)KVC_TRACE_LINE_BYTES_MAX;
    char *text = malloc(bytes + sizeof(GOOD));
    struct pieces pieces = {text, 0, 70000, 0, 0};
    struct kvc_trace_request request;
    struct kvc_trace *trace;
    struct kvg_error error;
    bool got;

    memset(text, 'x', bytes);
    text[bytes - 1] = '\n';
    memcpy(text + bytes, GOOD, sizeof(GOOD) - 1);
    pieces.bytes = bytes + sizeof(GOOD) - 1;
    CHECK_EQ(kvc_trace_new(read_piece, &pieces, &trace), KVG_OK);
    CHECK_EQ(kvc_trace_next(trace, &request, &got, &error), KVG_ELIMIT);
    CHECK_STR(error.field, "line 1");
    CHECK_EQ(kvc_trace_next(trace, &request, &got, &error), KVG_OK);
    CHECK_EQ(request.input_tokens, 700);
    kvc_trace_free(trace);
    free(text);
}

TEST(a_failed_read_is_told_and_ends)
{
    struct pieces pieces = {GOOD, sizeof(GOOD) - 1, 40, 40, 0};
    struct kvc_trace_request request;
    struct kvc_trace *trace;
    struct kvg_error error;
    bool got;

    CHECK_EQ(kvc_trace_new(read_piece, &pieces, &trace), KVG_OK);
    CHECK_EQ(kvc_trace_next(trace, &request, &got, &error), KVG_EIO);
    kvc_trace_free(trace);
    CHECK_EQ(kvc_trace_open("/no/such/trace", &error, &trace), KVG_EIO);
    CHECK(trace == NULL);
}

TEST(the_same_seed_gives_the_same_prompts_and_conversations_grow)
{
    struct kvc_workload_options options = {
        .seed = 5, .request_max = 200, .conversations = 8};
    struct kvc_workload *a;
    struct kvc_workload *b;
    struct kvc_prompt one;
    struct kvc_prompt two;
    struct kvg_error error;
    uint64_t last_tokens[512] = {0};
    unsigned grown = 0;
    bool got = true;

    CHECK_EQ(kvc_workload_new(&options, &error, &a), KVG_OK);
    CHECK_EQ(kvc_workload_new(&options, &error, &b), KVG_OK);
    CHECK_EQ(kvc_workload_page_size(a), KVC_WORKLOAD_PAGE);
    while (got) {
        uint32_t i;

        CHECK_EQ(kvc_workload_next(a, &one, &got, &error), KVG_OK);
        CHECK_EQ(kvc_workload_next(b, &two, &got, &error), KVG_OK);
        CHECK_EQ(one.token_count, two.token_count);
        CHECK(one.token_count == 0 ||
              memcmp(one.tokens, two.tokens, one.token_count * 4) == 0);
        if (!got)
            break;
        for (i = 0; i < KVC_SYSTEM_TOKENS; i++)
            CHECK_EQ(one.tokens[i], i + 1);
        CHECK(one.conversation > 0 && one.conversation < 512);
        grown += last_tokens[one.conversation] > 0;
        CHECK(one.token_count > last_tokens[one.conversation]);
        last_tokens[one.conversation] = one.token_count;
    }
    CHECK(grown > 100);
    kvc_workload_free(a);
    kvc_workload_free(b);
}

TEST(a_block_of_a_trace_is_a_page_that_no_other_block_has)
{
    char path[] = "/tmp/kvgraft-trace-XXXXXX";
    struct kvc_workload_options options = {.trace_path = path};
    struct kvc_workload *workload;
    struct kvc_prompt prompt;
    struct kvg_error error;
    int fd = mkstemp(path);
    bool got;

    CHECK(fd >= 0);
    CHECK_EQ(write(fd, GOOD, sizeof(GOOD) - 1), sizeof(GOOD) - 1);
    close(fd);
    CHECK_EQ(kvc_workload_new(&options, &error, &workload), KVG_OK);
    CHECK_EQ(kvc_workload_page_size(workload), KVC_TRACE_BLOCK_TOKENS);
    CHECK_EQ(kvc_workload_next(workload, &prompt, &got, &error), KVG_OK);
    CHECK_EQ(prompt.token_count, 2 * KVC_TRACE_BLOCK_TOKENS);
    CHECK_EQ(prompt.tokens[0], 0);
    CHECK_EQ(prompt.tokens[512], 512);
    CHECK_EQ(kvc_workload_next(workload, &prompt, &got, &error), KVG_OK);
    CHECK_EQ(prompt.tokens[0], 7 * 512);
    CHECK_EQ(kvc_workload_next(workload, &prompt, &got, &error), KVG_OK);
    CHECK(!got);
    kvc_workload_free(workload);
    unlink(path);
}

TEST_MAIN(RUN(requests_are_read_however_the_bytes_are_cut),
    RUN(a_bad_line_is_named_and_the_next_one_is_read),
    RUN(a_line_without_end_costs_one_buffer_and_is_skipped),
    RUN(a_failed_read_is_told_and_ends),
    RUN(the_same_seed_gives_the_same_prompts_and_conversations_grow),
    RUN(a_block_of_a_trace_is_a_page_that_no_other_block_has))
