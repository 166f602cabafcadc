/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* mem_transport.h -- a store in memory, and transports to it that do what the test says, when it
 * says so.
 *
 * Pages hold real words: one a slot, read from and written to the "device" of the transport's
 * owner, if it has one.  Nothing completes by itself. */
#ifndef KVT_MEM_TRANSPORT_H
#define KVT_MEM_TRANSPORT_H

#include <kvgraft/graft.h>

#define MEM_PAGE_MAX 16 /* Units a page. */

struct mem_page {
    uint32_t component;
    struct kvg_key key;
    uint64_t words[MEM_PAGE_MAX];
};
struct mem_store {
    struct mem_page *pages;
    size_t count, capacity;
    uint32_t *table; /* Index + 1, open addressing. */
    size_t table_size;
};

void mem_store_init(struct mem_store *store);
void mem_store_fini(struct mem_store *store);
/* The page, which is new if it was not there; good until the next call. */
struct mem_page *mem_store_add(
    struct mem_store *store, uint32_t component, const struct kvg_key *key);
const struct mem_page *mem_store_find(
    const struct mem_store *store, uint32_t component, const struct kvg_key *key);
bool mem_store_has(
    const struct mem_store *store, uint32_t component, const struct kvg_key *key);
void mem_store_remove(
    struct mem_store *store, uint32_t component, const struct kvg_key *key);

/* What was handed over, copied. */
struct mem_transfer {
    uint32_t component;
    bool trailing;
    struct kvg_key *keys;
    size_t key_count;
    uint64_t *slots; /* One a unit. */
    size_t slot_count;
};
struct mem_job {
    kvg_request_id request;
    struct mem_transfer transfers[2];
    size_t count;
    bool started;
    int64_t batch;
    bool applied; /* An offload's pages are in the store. */
    /* The test's own. */
    uint64_t due;
    int fate;
};

struct mem_transport {
    struct kvg_transport table;
    struct mem_store *store;
    uint32_t page_size;
    uint64_t *device[2]; /* Words by slot: FULL, SWA; NULL: none. */

    struct mem_job loads[256]; /* Queued and started. */
    size_t load_count;
    struct mem_job offloads[1024]; /* Pending, oldest first. */
    size_t offload_count;
    struct kvg_load_result done_loads[256];
    size_t done_load_count;
    bool done_offloads[1024];
    size_t done_offload_count;
    int64_t batches;

    /* What happened. */
    struct mem_job last_lookup, last_load, last_offload; /* Copies. */
    uint64_t lookups, load_calls, offload_calls, resets, closes, empty_offers;
    struct kvg_key *offload_keys; /* FULL keys of all offers, in order. */
    size_t offload_key_count;

    /* What to refuse, once each, or always if negative. */
    int refuse_loads, refuse_offloads;
    bool down;        /* The store does not answer. */
    int preset_count; /* >= 0: lookups answer these lengths. */
    uint32_t preset[16];
    void (*on_reset)(struct mem_transport *transport);
};

struct mem_transport *mem_transport_new(struct mem_store *store, uint32_t page_size);
void mem_transport_free(struct mem_transport *transport);

/* The index-th offload's pages are in the store from now on; its result is to come. */
void mem_apply_offload(struct mem_transport *transport, size_t index);
/* The oldest offload ends. */
void mem_complete_offload(struct mem_transport *transport, bool success);
/* The index-th load under way ends; it must be started.  A failure leaves rubbish in its slots. */
void mem_complete_load(struct mem_transport *transport, size_t index, bool success);
void mem_complete_loads(struct mem_transport *transport, bool success);
void mem_complete_offloads(struct mem_transport *transport, bool success);

#endif
