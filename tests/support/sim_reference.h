/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* sim_reference.h -- plain caches that a simulated one is compared with.  A page is a block. */
#ifndef KVT_SIM_REFERENCE_H
#define KVT_SIM_REFERENCE_H

#include "cli/simulate.h"

/* Blocks that know nothing of each other, least recently used first: what most published figures
 * of such traces are.  A block's place in a prompt is its recency, the last the most recent; a
 * hit is a leading block that is held. */
uint64_t kvt_block_lru(const struct kvc_sim_trace *trace, uint64_t capacity);

/* First in, first out. */
uint64_t kvt_block_fifo(const struct kvc_sim_trace *trace, uint64_t capacity);

/* Least recently used first, but a block with a held continuation stays; so of a
 * prompt the last block goes first. */
uint64_t kvt_tail_lru(const struct kvc_sim_trace *trace, uint64_t capacity);

#endif
