/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* freemap.h -- which pages are free, and where the next run of them is best taken
 * from. */
#ifndef KVI_SLOTS_FREEMAP_H
#define KVI_SLOTS_FREEMAP_H

#include "slots/bits.h"

/* A run of pages. */
struct kvi_run {
    uint64_t first;
    uint64_t count;
};

/* As many runs as one word can hold. */
#define KVI_TAKE_RUNS 32

struct kvi_freemap {
    uint64_t page_count;
    uint64_t free_count;
    uint64_t *free;          /* A bit a page: it is free. */
    struct kvi_bitset mixed; /* Words of `free` with some pages free and some not. */
    uint64_t *whole;         /* A bit a word of `free`: all 64 pages are free. */
    struct kvi_bitset whole_mixed; /* Words of `whole` that are neither 0 nor all ones. */
    struct kvi_bitset blocks;      /* Words of `whole` that are all ones: 4,096 pages. */
    uint64_t cursor;       /* Word of `free` where small runs are looked for first, */
    uint64_t whole_cursor; /* and the word of `whole` for middle-sized ones. */
};

/* All pages free.  False without memory; then _fini is allowed, as for a zeroed one. */
bool kvi_freemap_init(
    struct kvi_freemap *map, const struct kvg_alloc *alloc, uint64_t page_count);
void kvi_freemap_fini(struct kvi_freemap *map, const struct kvg_alloc *alloc);

/* Makes all pages free again. */
void kvi_freemap_reset(struct kvi_freemap *map);

/* Takes 1 to `want` pages, in up to KVI_TAKE_RUNS runs, and returns the number of
 * runs.  As few runs as the search finds: see freemap.c.  `hint`, if it is not
 * KVI_NONE, is the page that is taken first if it is free.  1 <= want <= free_count. */
size_t kvi_freemap_take(struct kvi_freemap *map, uint64_t want, uint64_t hint,
    struct kvi_run runs[KVI_TAKE_RUNS]);

/* Marks pages free that are not, or used that are free. */
void kvi_freemap_put(struct kvi_freemap *map, struct kvi_run run);
void kvi_freemap_use(struct kvi_freemap *map, struct kvi_run run);

/* The first free page of a run, or KVI_NONE. */
uint64_t kvi_freemap_first_free(const struct kvi_freemap *map, struct kvi_run run);

/* 0, or the number of the first invariant (freemap.c) that does not hold. */
int kvi_freemap_check(const struct kvi_freemap *map);

#endif
