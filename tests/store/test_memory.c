/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* test_memory.c -- the suite over `memory:`. */
#include "store/conformance.h"

#include <inttypes.h>
#include <stdio.h>

static bool make(void *context, uint64_t bytes_max, char url[CONFORMANCE_URL_BYTES])
{
    (void)context;
    snprintf(url, CONFORMANCE_URL_BYTES, "memory:?bytes=%" PRIu64,
        bytes_max == 0 ? UINT64_C(256) << 20 : bytes_max);
    return true;
}

static void destroy(void *context)
{
    (void)context;
}

int main(void)
{
    static const struct conformance_backend MEMORY = {
        .name = "memory", .make = make, .destroy = destroy};

    return conformance_run(&MEMORY);
}
