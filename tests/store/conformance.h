/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* conformance.h -- the suite that every backend of the store passes: what store.h promises.
 *
 *     static const struct conformance_backend CLOUD = {
 *         .name = "cloud", .make = cloud_make, .destroy = cloud_destroy};
 *     int main(void) { return conformance_run(&CLOUD); }
 *
 * What a store need not promise is known from its flags (kvg_store_flags()); a test of something
 * that it does not promise is skipped, and says so. */
#ifndef KVT_CONFORMANCE_H
#define KVT_CONFORMANCE_H

#include <kvgraft/store_backend.h>

#define CONFORMANCE_URL_BYTES 512

struct conformance_backend {
    const char *name;
    /* Makes an empty place for a store and writes its URL.  `bytes_max`: what it is to hold at
     * most; 0: plenty (256 MiB).  Called before every test.  False: it cannot, skip the test. */
    bool (*make)(void *context, uint64_t bytes_max, char url[CONFORMANCE_URL_BYTES]);
    /* Removes that place.  Every store is closed. */
    void (*destroy)(void *context);
    void *context;
    const struct kvg_store_registry *registry; /* NULL: the library's. */
    uint64_t value_max;  /* Largest value to try; 0: KVG_STORE_VALUE_MAX. */
    uint64_t slack;      /* Bytes by which it may be wrong about bytes_max. */
    bool one_process;    /* The place is in this process: no other can reach it. */
    bool loose_eviction; /* Its order of eviction is only about that of the last use. */
    unsigned threads;    /* Readers, and as many writers; 0: 32. */
};

/* Runs the suite; 0 if everything passed, as a main returns it. */
int conformance_run(const struct conformance_backend *backend);

#endif
