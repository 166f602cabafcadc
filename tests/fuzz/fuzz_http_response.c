/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* The response parser: the same bytes whole and in pieces must come to the same. */
#include "net/http_response.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

#define BODY_MAX 4096u

struct sum {
    uint64_t bytes;
    uint64_t hash;
};

static void on_body(void *context, struct kvg_str bytes)
{
    struct sum *sum = context;

    for (size_t i = 0; i < bytes.bytes; i++)
        sum->hash = sum->hash * 31 + (unsigned char)bytes.data[i];
    sum->bytes += bytes.bytes;
    if (sum->bytes > BODY_MAX)
        abort();
}

static kvg_err parse(const char *text, size_t bytes, size_t piece, struct sum *sum,
    struct kvn_http_response *response)
{
    *sum = (struct sum){0, 0};
    kvn_http_response_init(response, BODY_MAX, on_body, sum);
    for (size_t at = 0; at < bytes; at += piece) {
        size_t take = bytes - at < piece ? bytes - at : piece;
        kvg_err err =
            kvn_http_response_feed(response, (struct kvg_str){text + at, take}, NULL);

        if (err != KVG_OK)
            return err;
    }
    return kvn_http_response_end(response, NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static struct kvn_http_response whole;
    static struct kvn_http_response pieces;
    struct sum whole_sum;
    struct sum pieces_sum;
    size_t piece;
    kvg_err err;

    if (bytes < 1)
        return 0;
    piece = 1 + data[0] % 32;
    err = parse((const char *)data + 1, bytes - 1, bytes, &whole_sum, &whole);
    if (parse((const char *)data + 1, bytes - 1, piece, &pieces_sum, &pieces) != err ||
        whole.status != pieces.status)
        abort();
    /* A body over the limit may end in another place when it fails. */
    if (err == KVG_OK &&
        (whole_sum.bytes != pieces_sum.bytes || whole_sum.hash != pieces_sum.hash))
        abort();
    return 0;
}
