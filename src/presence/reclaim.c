/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* reclaim.c -- when retired memory may be freed.
 *
 *     epoch           1 ............ 2 ............. 3
 *     writer     unpublish a, b | unpublish c   |
 *     open           a, b       |  c            |         retired in this epoch
 *     closed                    |  a, b (1)     |  c (2)   freed when no pin is 1, 2 or less
 *
 * A reader pins its seat to the epoch it finds, then loads addresses.  The writer unpublishes,
 * retires, and now and then closes an epoch: what was retired up to then waits until no seat is
 * pinned to that epoch or an earlier one.
 *
 * Why that is enough: pin, loads of the directory, stores to it and the scan of the seats are
 * all sequentially consistent.  If a reader's load found an old address, the load came before
 * the store that replaced it, so its pin came before the scan that follows the store, and the
 * scan sees it.  A reader pinned to a later epoch has read the epoch after the store.
 */
#include "presence/index.h"

/* Retired things that are worth a scan of the seats. */
#define RECLAIM_COUNT 32u

/* The earliest epoch a seat is pinned to; UINT64_MAX if none is. */
static uint64_t earliest_pin(struct kvg_presence *index)
{
    uint32_t count = atomic_load_explicit(&index->seats_high, memory_order_seq_cst);
    uint64_t earliest = UINT64_MAX;
    uint32_t i;

    for (i = 0; i < count; i++) {
        uint64_t pin = atomic_load_explicit(&index->seats[i].pin, memory_order_seq_cst);

        if (pin != 0 && pin < earliest)
            earliest = pin;
    }
    return earliest;
}

static void free_limbo(struct kvg_presence *index, struct kvi_limbo *limbo)
{
    while (limbo->segments != NULL) {
        struct kvi_segment *segment = limbo->segments;

        limbo->segments = segment->retired_next;
        kvi_presence_segment_release(index, segment);
    }
    while (limbo->directories != NULL) {
        struct kvi_directory *directory = limbo->directories;

        limbo->directories = directory->retired_next;
        kvi_release_array(&index->alloc, directory,
            sizeof(*directory) + (sizeof(_Atomic uint64_t) << directory->depth), 1);
    }
    while (limbo->records != NULL) {
        struct kvi_record *record = limbo->records;

        limbo->records = record->retired_next;
        kvi_presence_record_release(index, record);
    }
    limbo->count = 0;
}

void kvi_presence_reclaim(struct kvg_presence *index)
{
    int turn;

    for (turn = 0; turn < 2; turn++) {
        if (index->closed.count == 0 && index->open.count != 0) {
            index->closed = index->open;
            index->open = (struct kvi_limbo){0};
            index->closed_epoch =
                atomic_fetch_add_explicit(&index->epoch, 1, memory_order_seq_cst);
        }
        if (index->closed.count == 0 || earliest_pin(index) <= index->closed_epoch)
            return;
        free_limbo(index, &index->closed);
    }
}

void kvi_presence_reclaim_all(struct kvg_presence *index)
{
    free_limbo(index, &index->closed);
    free_limbo(index, &index->open);
}

/* `weight` of RECLAIM_COUNT is worth a scan at once. */
static void retired_one(struct kvg_presence *index, uint32_t weight)
{
    index->open.count++;
    index->retired_weight += weight;
    if (index->retired_weight < RECLAIM_COUNT)
        return;
    index->retired_weight = 0;
    kvi_presence_reclaim(index);
}

void kvi_presence_retire_segment(struct kvg_presence *index, struct kvi_segment *segment)
{
    segment->retired_next = index->open.segments;
    index->open.segments = segment;
    retired_one(index, RECLAIM_COUNT);
}

void kvi_presence_retire_directory(
    struct kvg_presence *index, struct kvi_directory *directory)
{
    directory->retired_next = index->open.directories;
    index->open.directories = directory;
    retired_one(index, 1);
}

void kvi_presence_retire_record(struct kvg_presence *index, struct kvi_record *record)
{
    record->retired_next = index->open.records;
    index->open.records = record;
    retired_one(index, 1);
}
