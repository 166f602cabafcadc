/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* seat.c -- readers' seats: taken and given back by any thread, without a lock. */
#include "presence/index.h"

/* A seat is taken by whoever turns it from free to taken first. */
kvg_err kvg_presence_reader_open(
    struct kvg_presence *index, struct kvg_presence_reader **out)
{
    uint32_t i;

    *out = NULL;
    for (i = 0; i < KVG_PRESENCE_READERS_MAX; i++) {
        uint32_t is_free = 0;
        uint32_t high;

        if (!atomic_compare_exchange_strong_explicit(&index->seats[i].taken, &is_free, 1,
                memory_order_seq_cst, memory_order_relaxed))
            continue;
        high = atomic_load_explicit(&index->seats_high, memory_order_seq_cst);
        while (
            high < i + 1 && !atomic_compare_exchange_weak_explicit(&index->seats_high,
                                &high, i + 1, memory_order_seq_cst, memory_order_seq_cst))
            ;
        *out = &index->seats[i];
        return KVG_OK;
    }
    return KVG_ELIMIT;
}

void kvg_presence_reader_close(struct kvg_presence_reader *reader)
{
    if (reader == NULL)
        return;
    KVI_ASSERT(atomic_load_explicit(&reader->pin, memory_order_relaxed) == 0);
    atomic_store_explicit(&reader->taken, 0, memory_order_release);
}
