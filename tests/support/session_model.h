/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* session_model.h -- a plain model of what sessions cover, for prop_tree_session.c.
 *
 * It knows no nodes: a frontier is the tokens of its path, its length, and how many units it
 * covered when it was made.  model_compare() holds the tree against it:
 *
 *     every node's counts      are what the model's frontiers cover of its path
 *     every session            has the frontiers, in the order, that the model has
 *     recency lists            hold covered nodes before the others
 */
#ifndef KVT_SESSION_MODEL_H
#define KVT_SESSION_MODEL_H

#include <inttypes.h>

#include "base/rng.h"
#include "test.h"
#include "tree_kit.h"

#define PATH 64
#define SESSIONS 5
#define FRONTIERS 128
#define LOCKS 6
#define NODES 512

struct frontier {
    uint32_t path[PATH];
    uint32_t length;
    uint64_t covered;
};

struct session {
    uint64_t generation; /* 0: not open. */
    struct frontier frontiers[3][FRONTIERS];
    uint32_t count[3];
};

struct world {
    struct kit *kit;
    struct kvi_rng rng;
    const uint8_t *data, *data_end; /* Instead of random numbers, if not NULL. */
    uint64_t seed;
    uint32_t components, window, page, step;
    enum kvg_policy policy;
    bool host, write_back;
    struct session sessions[SESSIONS];
    struct kvg_lock_receipt locks[LOCKS];
    kvg_node_id locked[LOCKS];
    uint32_t lock_count, next_slot;
    kvg_node_id nodes[NODES];
    uint32_t node_count;
};

#define FAIL(world, ...)                                                        \
    do {                                                                        \
        fprintf(stderr, __VA_ARGS__);                                           \
        fail_msg("seed %" PRIu64 ", step %u\n%s", (world)->seed, (world)->step, \
            kit_dump((world)->kit));                                            \
    } while (0)

struct kvg_str model_id(uint32_t session);

/* Below `limit`, at random, or as two bytes say; 0 after the last. */
uint32_t model_below(struct world *world, uint32_t limit);
bool model_ended(const struct world *world);

struct kvg_tree_node model_get(struct world *world, kvg_node_id id);

/* Writes down all nodes but the root. */
void model_look(struct world *world);

bool model_has(const struct kvg_tree_node *node, uint32_t component, enum kvg_tier tier);

/* A turn of the session ends at `node`, before the tree is told; will it be held? */
bool model_touch(struct world *world, struct session *session, kvg_node_id node);

/* A node was deleted: its frontiers fall back. */
void model_fall_back(struct world *world);

void model_compare(struct world *world);

/* session_steps.c: what is in the tree, as `number` says; and a run of that many steps, or as many
 * as there are bytes for. */
void session_setup(struct world *world, uint64_t number);
void session_run(struct world *world, uint32_t steps);

#endif
