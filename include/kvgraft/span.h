/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* span.h -- a run of slots: where a value of the tree lives in an engine's memory.
 *
 * Buffer KVG_BUFFER_POOL is the pool itself, so that `offset` is the number of the first slot.
 * Any other buffer is the embedder's: a table of slot numbers that it registered with a tree
 * (tree.h), and `offset` is a position in that table.
 */
#ifndef KVGRAFT_SPAN_H
#define KVGRAFT_SPAN_H

#include <kvgraft/base.h>

KVG_BEGIN_DECLS

#define KVG_BUFFER_POOL 0u

struct kvg_span {
    uint64_t offset; /* First slot, or first position in the buffer. */
    uint32_t buffer; /* KVG_BUFFER_POOL, or an id the tree gave out. */
    uint32_t length; /* Slots; at least 1. */
};

KVG_END_DECLS

#endif
