/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* conformance_internal.h -- what the files of the suite share. */
#ifndef KVT_CONFORMANCE_INTERNAL_H
#define KVT_CONFORMANCE_INTERNAL_H

#include "test.h"

#include "store/conformance.h"
#include "store/kit.h"

extern const struct conformance_backend *conformance_now;
extern char conformance_url[CONFORMANCE_URL_BYTES];

/* A new place and a store in it; NULL: the test is skipped. */
struct kvg_store *conformance_open(uint64_t bytes_max);

/* Another store at the same place. */
struct kvg_store *conformance_open_with(const struct kvg_store_options *options);

/* Ends the test's store, and its place. */
void conformance_close(struct kvg_store *store);

/* True, and the store closed, if it does not promise all of `flags`. */
bool conformance_lacks(struct kvg_store *store, uint32_t flags, const char *what);

uint64_t conformance_value_max(void);

int conformance_run_evict(void);
int conformance_run_many(void);

#endif
