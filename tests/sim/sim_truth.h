/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* sim_truth.h -- what every page of a simulated store must hold.
 *
 * The word of a position is computed from the word before it and the token, so it says which prefix
 * it belongs to; a window's word is the same with one bit turned.  From the tokens of the requests
 * alone, and without the library under test but for the names of pages, the truth knows the words
 * of every page that can ever be written. */
#ifndef KVT_SIM_TRUTH_H
#define KVT_SIM_TRUTH_H

#include "mem_transport.h"

#include "base/rng.h"

#define SIM_TOKENS_MAX 64

struct sim_truth {
    struct kvg_page_rule rule;
    struct mem_store pages; /* FULL. */
};

static inline uint64_t sim_word(uint64_t before, uint32_t token)
{
    return kvi_mix64(before * 31 + token + 1);
}

void sim_truth_init(struct sim_truth *truth, uint32_t page_size, bool eagle);
void sim_truth_fini(struct sim_truth *truth);

/* A request may compute, and write, these tokens; at most SIM_TOKENS_MAX. */
void sim_truth_learn(struct sim_truth *truth, const uint32_t *tokens, size_t count);

/* Every page of the store holds what it must. */
bool sim_truth_holds(const struct sim_truth *truth, const struct mem_store *store);

#endif
