/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* Fuzzes the trace reader: any bytes, handed over in pieces whose size the first byte says. */
#include "cli/trace.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

struct input {
    const uint8_t *data;
    size_t left;
    size_t step;
};

static size_t read_input(void *context, char *bytes, size_t byte_max)
{
    struct input *input = context;
    size_t count = input->left < input->step ? input->left : input->step;

    if (count > byte_max)
        count = byte_max;
    if (count > 0)
        memcpy(bytes, input->data, count);
    input->data += count;
    input->left -= count;
    return count;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct input input;
    struct kvc_trace_request request;
    struct kvc_trace *trace;
    struct kvg_error error;
    uint64_t sum = 0;
    bool got = true;

    if (bytes == 0)
        return 0;
    input = (struct input){data + 1, bytes - 1, (size_t)data[0] + 1};
    if (kvc_trace_new(read_input, &input, &trace) != KVG_OK)
        return 0;
    while (got) {
        kvg_err err = kvc_trace_next(trace, &request, &got, &error);
        size_t i;

        for (i = 0; i < request.block_count; i++)
            sum += request.blocks[i];
        if (err == KVG_EIO)
            abort(); /* This reader does not fail. */
    }
    kvc_trace_free(trace);
    return sum == 1 ? 0 : 0;
}
