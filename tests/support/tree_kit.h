/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* tree_kit.h -- a tree under test: it does the actions the tree decides, with a table that maps
 * FULL slots to window slots, and writes down what happened as text.
 *
 * A step of an insert is its actions, joined by "; "; steps are joined by " | ".  Nodes are shown
 * by their creation number, so the root is #1 and the first leaf #2.
 *
 *     rebuild_swa(#3: 10 11); rebuild_swa(#2: 12 13) | - => prefix 0 last #2 FULL[0,4) SWA[0,4)
 */
#ifndef KVT_TREE_KIT_H
#define KVT_TREE_KIT_H

#include "fault_alloc.h"

#include <kvgraft/tree.h>

#define KIT_SLOTS 65536
#define KIT_TEXT 65536

struct kit {
    struct fault_alloc fault;
    struct kvg_tree *tree;
    struct kvg_actions actions;
    struct kvg_error error;
    uint32_t map[KIT_SLOTS]; /* FULL slot to window slot, 0: none. */
    struct kvg_tree_inserted inserted;
    struct kvg_tree_match match;
    struct kvg_lock_receipt receipt;
    uint32_t next_host;                  /* The next host slot to give out. */
    uint64_t evicted[KVG_COMPONENT_MAX]; /* By the last kit_evict(). */
    char text[KIT_TEXT];
    size_t text_bytes;
};

struct kit_setup {
    uint32_t page_size;  /* 0: 1. */
    uint32_t components; /* 0: FULL. */
    uint32_t window;
    bool eagle, events;
    enum kvg_policy policy;
    uint32_t mamba_grid;
    int32_t states_per_path_max; /* 0: no cap. */
    bool sessions;
    const struct kvg_alloc *alloc; /* NULL: the kit's own, which counts. */
};

#define FULL KVG_COMPONENT_BIT(KVG_COMPONENT_FULL)
#define SWA KVG_COMPONENT_BIT(KVG_COMPONENT_SWA)
#define MAMBA KVG_COMPONENT_BIT(KVG_COMPONENT_MAMBA)

struct kit *kit_new(struct kit_setup setup);
/* Checks the tree and frees everything; the memory must be back. */
void kit_free(struct kit *kit);
void kit_check(struct kit *kit);

/* The call did it, and the tree is sound. */
void kit_must(struct kit *kit, kvg_err err);

/* With a host tier that takes everything, host slots from 100 on. */
struct kit *kit_new_tiers(struct kit_setup setup);
/* Host (or device) slots for every transfer, from `*next` on. */
void kit_give_slots(struct kvg_tree_transfer *transfers, size_t count,
    struct kvg_span *spans, uint32_t *next);
/* Gives a node host copies from kit->next_host on; how many transfers that took. */
size_t kit_write(struct kit *kit, uint64_t number);
/* The same, and the write is acknowledged. */
size_t kit_backup(struct kit *kit, uint64_t number);

/* Numbers of an array literal: LIST(1, 2, 3). */
struct kit_list {
    const uint32_t *items;
    size_t count;
};
#define LIST(...)                                       \
    ((struct kit_list){(const uint32_t[]){__VA_ARGS__}, \
        sizeof((const uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t)})

/* What to insert. */
struct kit_insert {
    struct kit_list tokens, slots;
    uint32_t mamba; /* Slot; 0: none. */
    uint64_t prev, cursor, inserted;
    uint32_t rotation; /* Base + 1; 0: none. */
    const char *extra_key, *cache_salt, *session;
    int64_t priority;
    bool tracked, chunked;
    bool unmapped; /* The slots have no window peers yet: do not map slot s to s + 100. */
};

/* Inserts to the end; the steps and the result as text.  The text is the kit's. */
const char *kit_insert(struct kit *kit, struct kit_insert what);
/* The same with slots base, base + 1, ... */
const char *kit_insert_run(struct kit *kit, struct kit_list tokens, uint32_t base);

/* "LENGTH device DEVICE best BEST full FULL ..." */
const char *kit_match(struct kit *kit, struct kit_list tokens);

/* Runs a whole eviction of each component, in the tree's order, as an engine without write-back
 * does.  The text has a step after another: "leaf #2: free_FULL(12 13)" or "free_SWA(10 11)". */
const char *kit_evict(struct kit *kit, uint64_t full, uint64_t swa, uint64_t mamba);

/* Forgets the text. */
void kit_clear(struct kit *kit);

/* Does what is in kit->actions and writes it down. */
const char *kit_do_actions(struct kit *kit);

/* The tree, as kvg_tree_dump() shows it. */
const char *kit_dump(struct kit *kit);

/* A component's device list, most recent first: "#2 #3". */
const char *kit_list_text(struct kit *kit, uint32_t component, enum kvg_tier tier);

/* The node whose creation number is `number`; it must exist. */
kvg_node_id kit_node(struct kit *kit, uint64_t number);
uint64_t kit_number(kvg_node_id node);
struct kvg_tree_node kit_get(struct kit *kit, uint64_t number);
uint32_t kit_lock_count(struct kit *kit, uint64_t number, uint32_t component);

struct kvg_lock_receipt kit_lock(struct kit *kit, uint64_t number, uint32_t skip);
void kit_unlock(struct kit *kit, uint64_t number, const struct kvg_lock_receipt *receipt);
/* The unlock must fail; its message. */
const char *kit_unlock_fails(
    struct kit *kit, uint64_t number, const struct kvg_lock_receipt *receipt);

#endif
