/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* linker_kit.h -- a tree with its pools, a cache and a linker on a store in memory. */
#ifndef KVT_LINKER_KIT_H
#define KVT_LINKER_KIT_H

#include "fault_alloc.h"
#include "mem_transport.h"
#include "test.h"

#define FULL KVG_COMPONENT_BIT(KVG_COMPONENT_FULL)
#define SWA KVG_COMPONENT_BIT(KVG_COMPONENT_SWA)
#define NO_OFFLOAD INT64_MAX

struct fix {
    struct fault_alloc fault;
    struct kvg_tree *tree;
    struct kvg_memory memory;
    struct kvg_cache *cache;
    struct kvg_linker *linker;
    struct mem_transport *transport;
    struct kvg_error error;
    struct kvg_tree_match match;
    struct kvg_linker_match outside;
    struct kvg_load_back load;
};

struct setup {
    uint32_t page_size, window;
    bool swa, ring, eagle, sessions;
    uint64_t hits;
    bool sparse;
    uint64_t interval;
    struct kvg_agreement agreement;
};

void lk_fix_init(struct fix *fix, struct setup setup, struct mem_store *store);
void lk_check(struct fix *fix);
void lk_fix_fini(struct fix *fix);
struct kvg_tree_key lk_run_of(uint32_t first, size_t count);
kvg_node_id lk_insert(struct fix *fix, struct kvg_tree_key key);
struct kvg_tree_node lk_get(struct fix *fix, kvg_node_id id);
uint32_t lk_lock_of(struct fix *fix, kvg_node_id id);
void lk_match(struct fix *fix, kvg_request_id request, struct kvg_tree_key key);
void lk_load_back(struct fix *fix, kvg_request_id request);
struct kvg_linker_tick lk_tick(struct fix *fix);
void lk_store_run(struct mem_store *store, struct setup setup, size_t count);

#endif
