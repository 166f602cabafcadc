/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* mover_kit.h -- devices made of host memory, with a mover each: one rank of one engine.
 *
 * Every byte of a page follows from its key, the pool, the plane, the layer, the token and, unless
 * the pool is replicated, the rank.  So any page can be written and checked anywhere. */
#ifndef KVT_MOVER_KIT_H
#define KVT_MOVER_KIT_H

#include <kvgraft/transport.h>

#define KIT_LAYERS_MAX 8

struct kit_shape {
    uint32_t page_size;
    uint32_t ranks;
    uint32_t layers[2]; /* FULL, SWA; 0: no such pool. */
    uint32_t planes;    /* Of FULL: 1 (replicated, MLA) or 2. */
    uint32_t slot_bytes;
    uint32_t slot_gap; /* Bytes behind each slot. */
    uint64_t slots;    /* Of each pool. */
    bool staged;
    uint32_t layers_a_read;
    uint32_t workers; /* 0: none. */
    uint32_t jobs_max;
    uint64_t pages_max;
};

struct kit_device {
    struct kit_shape shape;
    uint32_t rank;
    char *memory[2][2][KIT_LAYERS_MAX];
    struct kvg_mover *mover;
    struct kvg_transport transport;
};

/* The layout of a shape; its ranks share it. */
struct kvg_layout *kit_layout(const struct kit_shape *shape);

/* KVG_OK, or what kvg_mover_new() said; then there is nothing to free. */
kvg_err kit_open(struct kit_device *device, const struct kvg_alloc *alloc,
    const struct kit_shape *shape, uint32_t rank, const struct kvg_layout *layout,
    struct kvg_store *store);
void kit_close(struct kit_device *device);

/* A chain of keys: a prompt's. */
void kit_keys(uint64_t seed, struct kvg_key *keys, size_t count);

/* Writes the pages of a transfer into its slots; compares them; fills them with rubbish. */
void kit_fill(struct kit_device *device, const struct kvg_tree_transfer *transfer);
bool kit_holds(const struct kit_device *device, const struct kvg_tree_transfer *transfer);
bool kit_holds_layer(const struct kit_device *device,
    const struct kvg_tree_transfer *transfer, uint32_t layer);
void kit_spoil(struct kit_device *device);
/* Whether no byte has changed since kit_spoil(). */
bool kit_is_spoilt(const struct kit_device *device);

/* Does what is waiting, with workers or without. */
void kit_finish(struct kit_device *device);

#endif
