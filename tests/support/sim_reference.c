/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* sim_reference.c -- all references are one list of blocks (sim_reference.h).
 *
 *     oldest <-> ... <-> newest        `held` says which blocks are in it
 *
 * The tail form puts a prompt's blocks in from the last to the first, so that a block is always
 * newer than those which continue it: the oldest block then has no held continuation.  That
 * holds for traces whose ids name a block and everything before it.
 */
#include "sim_reference.h"

#include <stdlib.h>

#define NONE UINT32_MAX

struct place {
    uint32_t older;
    uint32_t newer;
    bool held;
};

struct list {
    struct place *places;
    uint32_t oldest;
    uint32_t newest;
    uint64_t count;
};

static void take_out(struct list *list, uint32_t block)
{
    struct place *place = &list->places[block];

    if (place->older != NONE)
        list->places[place->older].newer = place->newer;
    else
        list->oldest = place->newer;
    if (place->newer != NONE)
        list->places[place->newer].older = place->older;
    else
        list->newest = place->older;
    place->held = false;
    list->count--;
}

static void put_in(struct list *list, uint32_t block)
{
    struct place *place = &list->places[block];

    if (place->held)
        take_out(list, block);
    *place = (struct place){.older = list->newest, .newer = NONE, .held = true};
    if (list->newest != NONE)
        list->places[list->newest].newer = block;
    else
        list->oldest = block;
    list->newest = block;
    list->count++;
}

enum order {
    BLOCK_LRU,
    BLOCK_FIFO,
    TAIL_LRU
};

static uint64_t replay(
    const struct kvc_sim_trace *trace, uint64_t capacity, enum order order)
{
    bool last_block_first = order == TAIL_LRU;
    struct list list = {.oldest = NONE, .newest = NONE};
    uint64_t hits = 0;
    size_t i;

    list.places = calloc(trace->block_distinct + 1u, sizeof(*list.places));
    if (list.places == NULL)
        abort();
    for (i = 0; i < trace->request_count; i++) {
        const struct kvc_sim_request *request = &trace->requests[i];
        const uint32_t *blocks = trace->blocks + request->block_first;
        uint32_t count = request->block_count;
        uint32_t held = 0;
        uint32_t j;

        while (held < count && list.places[blocks[held]].held)
            held++;
        hits += held;
        if (last_block_first && count > capacity)
            count = (uint32_t)capacity;
        for (j = 0; j < count; j++) {
            uint32_t block = blocks[last_block_first ? count - 1 - j : j];

            if (order != BLOCK_FIFO || !list.places[block].held)
                put_in(&list, block);
            while (!last_block_first && list.count > capacity)
                take_out(&list, list.oldest);
        }
        while (list.count > capacity)
            take_out(&list, list.oldest);
    }
    free(list.places);
    return hits;
}

uint64_t kvt_block_lru(const struct kvc_sim_trace *trace, uint64_t capacity)
{
    return replay(trace, capacity, BLOCK_LRU);
}

uint64_t kvt_block_fifo(const struct kvc_sim_trace *trace, uint64_t capacity)
{
    return replay(trace, capacity, BLOCK_FIFO);
}

uint64_t kvt_tail_lru(const struct kvc_sim_trace *trace, uint64_t capacity)
{
    return replay(trace, capacity, TAIL_LRU);
}
