/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* seed_method.h -- the seed client's own method, for comparison: object keys as strings in one
 * sharded, locked set; a map from group id to state; at a lookup, a string for the group and, if
 * it is not verified, a list of strings for all object keys of the page.
 *
 * Done the way the client does it, and as well as that can be done: SipHash-1-3 like its
 * standard library, open addressing with the whole hash beside each entry, an uncontended lock
 * word a shard, strings written without a formatter.  One thread. */
#ifndef KVB_SEED_METHOD_H
#define KVB_SEED_METHOD_H

#include <kvgraft/base.h>

struct seed_method;

struct seed_method *seed_method_new(uint32_t rank_count);
void seed_method_free(struct seed_method *seed);

/* A page is stored: its k and v of every rank, with or without the group's label. */
void seed_method_store(
    struct seed_method *seed, const struct kvg_key *key, bool labelled);

/* How many pages hit.  `keys` are raw; making them hex is part of the work. */
uint32_t seed_method_lookup(
    struct seed_method *seed, const struct kvg_key *keys, size_t key_count);

size_t seed_method_memory(const struct seed_method *seed);

#endif
