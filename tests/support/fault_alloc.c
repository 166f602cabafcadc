/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

#include "fault_alloc.h"

#include "test.h"

#define HEADER_BYTES 32
#define FRESH 0xcd
#define STALE 0xdd

static void *allocate(void *context, size_t bytes)
{
    struct fault_alloc *fault = context;
    unsigned char *memory;

    fault->calls++;
    if (fault->countdown == 0) {
        if (!fault->keep_failing)
            fault->countdown = -1;
        fault->failed++;
        return NULL;
    }
    if (fault->countdown > 0)
        fault->countdown--;
    memory = malloc(bytes + HEADER_BYTES);
    if (memory == NULL)
        return NULL;
    memcpy(memory, &bytes, sizeof(bytes));
    memset(memory + HEADER_BYTES, FRESH, bytes);
    fault->live_bytes += bytes;
    fault->live_count++;
    if (fault->live_bytes > fault->peak_bytes)
        fault->peak_bytes = fault->live_bytes;
    return memory + HEADER_BYTES;
}

static void release(void *context, void *memory, size_t bytes)
{
    struct fault_alloc *fault = context;
    unsigned char *start = (unsigned char *)memory - HEADER_BYTES;
    size_t asked;

    memcpy(&asked, start, sizeof(asked));
    CHECK_EQ(bytes, asked);
    memset(memory, STALE, bytes);
    fault->live_bytes -= bytes;
    fault->live_count--;
    free(start);
}

void fault_alloc_init(struct fault_alloc *fault)
{
    *fault = (struct fault_alloc){.countdown = -1};
    fault->alloc =
        (struct kvg_alloc){.allocate = allocate, .release = release, .context = fault};
}

uint64_t for_each_oom(
    bool (*scenario)(const struct kvg_alloc *alloc, void *context), void *context)
{
    uint64_t injected = 0;
    int keep;

    for (keep = 0; keep < 2; keep++) {
        long nth;

        for (nth = 0;; nth++) {
            struct fault_alloc fault;
            bool completed;

            fault_alloc_init(&fault);
            fault.countdown = nth;
            fault.keep_failing = keep == 1;
            completed = scenario(&fault.alloc, context);
            CHECK_EQ(fault.live_bytes, 0);
            CHECK_EQ(fault.live_count, 0);
            injected += fault.failed;
            if (fault.failed == 0) {
                CHECK(completed);
                break;
            }
        }
    }
    CHECK(injected > 0);
    return injected;
}
