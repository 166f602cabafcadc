/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* names.h -- strings numbered in the order of their first sight.
 *
 * Part suffixes, prefixes and tenants come from outside as text and are used as small numbers.
 * A set of names gives a string its number and back; it only grows, up to a limit.  Looking up
 * allocates nothing and costs one hash of the string.  One thread at a time.
 */
#ifndef KVI_LAYOUT_NAMES_H
#define KVI_LAYOUT_NAMES_H

#include <kvgraft/base.h>

struct kvi_names {
    struct kvg_alloc alloc;
    uint64_t
        seed; /* Secret where names come from clients: spreads them over the table. */
    uint32_t count;
    uint32_t count_max;
    uint32_t *ends; /* Name i is text[ends[i - 1] .. ends[i]). */
    uint32_t ends_capacity;
    char *text;
    uint32_t text_capacity;
    uint32_t *table; /* Number + 1, 0 is empty; linear probing, at most half full. */
    uint32_t table_capacity; /* A power of two, or 0. */
};

/* Readies an empty set for at most `count_max` names.  Allocates nothing. */
void kvi_names_init(struct kvi_names *names, const struct kvg_alloc *alloc,
    uint32_t count_max, uint64_t seed);
/* Releases what it holds; it may be initialised again. */
void kvi_names_fini(struct kvi_names *names);

/* The number of a name, or -1. */
int32_t kvi_names_find(const struct kvi_names *names, struct kvg_str name);

/* The same, adding the name if it is new.  KVG_ELIMIT at the limit, KVG_ENOMEM; then the set is
 * as it was. */
KVG_MUST_CHECK kvg_err kvi_names_add(
    struct kvi_names *names, struct kvg_str name, uint32_t *out);

/* A name by its number, which must be below the count.  Valid until the next addition. */
struct kvg_str kvi_names_get(const struct kvi_names *names, uint32_t number);

/* Bytes it has allocated. */
size_t kvi_names_memory(const struct kvi_names *names);

#endif
