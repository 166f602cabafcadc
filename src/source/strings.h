/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* strings.h -- a set of strings, each with one number of the caller's.
 *
 * A hash table of linked entries, an allocation a string: simple, and as heavy as what it
 * stands in for (the seed profile's sets).  Where speed or memory counts, keys are bytes and
 * live in the index (presence).  One thread at a time.
 */
#ifndef KVI_SOURCE_STRINGS_H
#define KVI_SOURCE_STRINGS_H

#include <kvgraft/base.h>

struct kvi_string {
    struct kvi_string *next; /* In its bucket. */
    uint64_t hash;
    uint64_t value; /* The caller's; 0 when new. */
    bool flag;      /* The caller's; false when new. */
    uint32_t bytes;
    char text[];
};

struct kvi_strings {
    const struct kvg_alloc *alloc;
    uint64_t seed;
    struct kvi_string **buckets;
    size_t bucket_count; /* A power of two, or 0. */
    size_t count;
    size_t memory_bytes;
};

/* Readies an empty set.  Allocates nothing. */
void kvi_strings_init(
    struct kvi_strings *strings, const struct kvg_alloc *alloc, uint64_t seed);
/* Takes everything out and releases all memory; the set may be used on. */
void kvi_strings_clear(struct kvi_strings *strings);

/* The entry of a string, or NULL. */
struct kvi_string *kvi_strings_find(
    const struct kvi_strings *strings, struct kvg_str text);
/* The same, made if it is new.  NULL without memory. */
struct kvi_string *kvi_strings_put(struct kvi_strings *strings, struct kvg_str text);
/* False if it was not there. */
bool kvi_strings_remove(struct kvi_strings *strings, struct kvg_str text);

/* The number of the first broken invariant (strings.c), or 0. */
int kvi_strings_check(const struct kvi_strings *strings);

#endif
