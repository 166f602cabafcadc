/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* tree_world.h -- the plain model's state and what compares it with the tree (tree_model.h). */
#ifndef KVT_TREE_WORLD_H
#define KVT_TREE_WORLD_H

#include "fault_alloc.h"
#include "tree_model.h"

enum {
    PAGE_MAX = 16,
    PAGES = 1024,
    SLOTS = 4096,
    UNITS_MAX = 256,
    LOCKS = 8,
    OFFLOADS = 8,
    PUBLISH = 64,
    HASHES = 2048
};

enum owner {
    OWNER_NONE,
    OWNER_CALLER,
    OWNER_TREE
};

/* One page of the model. */
struct page {
    bool alive;
    int parent; /* -1: the root. */
    int space;
    uint32_t tokens[PAGE_MAX + 1];
    uint32_t full[PAGE_MAX];
    uint32_t swa[PAGE_MAX]; /* 0: tombstone. */
    uint32_t state;         /* 0: none. */
    uint32_t full_locks, swa_locks, state_locks;
    bool stored;
    kvg_node_id pending;
};

struct held_lock {
    bool used;
    kvg_node_id node;
    struct kvg_lock_receipt receipt;
    bool early; /* The window was released. */
    int last;   /* Page at the node's end, -1: root. */
    int swa_pages[UNITS_MAX];
    int swa_count;
};

struct offload {
    bool used;
    kvg_node_id ack;
    kvg_node_id publish[PUBLISH];
    int publish_count;
    struct held_lock lock;
};

struct world {
    const struct model_setup *setup;
    struct fault_alloc fault;
    struct kvg_tree *tree;
    struct kvg_actions actions;
    struct kvg_error error;
    bool has_swa, has_state, eagle, verbose;
    struct page pages[PAGES];
    uint8_t full_owner[SLOTS], swa_owner[SLOTS], state_owner[SLOTS];
    uint32_t map[SLOTS]; /* FULL slot to window slot. */
    bool freed[SLOTS];   /* FULL slots that actions of this operation freed. */
    struct held_lock locks[LOCKS];
    struct offload offloads[OFFLOADS];
    int64_t hashes[HASHES]; /* What events say is on device. */
    int hash_count;
    char why[512];
};

extern struct world world;

/* Notes what is wrong, once, and returns false. */
__attribute__((format(printf, 1, 2))) bool wrong(const char *format, ...);

int find_page(int parent, int space, const uint32_t *tokens);
int new_page(int parent, int space, const uint32_t *tokens);
int alive_pages(void);
uint32_t take_slot(uint8_t *owners);
int free_slots(const uint8_t *owners);
bool drop_slot(uint8_t *owners, uint64_t slot, const char *what);
bool drop_full(uint64_t slot, bool with_peer);
bool do_actions(void);
bool compare(void);

#endif
