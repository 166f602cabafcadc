/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* fault_alloc.h -- an allocator that counts what is live and fails on demand.  Sizes are
 * checked at release, memory is filled with rubbish at both ends of its life.  One thread. */
#ifndef KVT_FAULT_ALLOC_H
#define KVT_FAULT_ALLOC_H

#include <kvgraft/base.h>

struct fault_alloc {
    struct kvg_alloc alloc;
    size_t live_bytes;
    size_t live_count;
    size_t peak_bytes;
    uint64_t calls;
    long countdown;    /* Fails the allocation after this many; -1 never. */
    bool keep_failing; /* And all later ones too. */
    uint64_t failed;
};

void fault_alloc_init(struct fault_alloc *fault);

/* Runs `scenario` again and again, failing the 1st, 2nd, ... allocation, once alone and once
 * with all later ones, until a run needs no more.  The scenario returns true if it completed
 * without having met the failure; it must release everything it made.  Returns the number of
 * failures injected, and stops the test on a leak. */
uint64_t for_each_oom(
    bool (*scenario)(const struct kvg_alloc *alloc, void *context), void *context);

#endif
