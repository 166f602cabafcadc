/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* lookup.c -- which prefixes of a tail this rank could load now.
 *
 *     page         1  2  3  4  5  6
 *     FULL         x  x  x  x  x  .      asked until the first gap: depth 5
 *     SWA          .  x  x  .  x  x      asked for pages 1 to depth, each
 *     in a row     0  1  2  0  1
 *     window 2:    length 3 only          length 1 needs 1, lengths from 2 on need 2
 *
 * A page is there if all parts of this rank are.  Questions go in calls of bounded size.
 */
#include "transport/mover.h"

#include "base/alloc.h"

#include <string.h>

/* Are these pages of a pool there?  good[i] becomes 1 or 0; with stop_at_gap only the depth is
 * asked for.  *depth_out: pages before the first that is not. */
static kvg_err ask(struct kvg_mover *mover, const struct kvi_pool *pool,
    const struct kvg_key *keys, uint32_t key_count, uint32_t *good, uint32_t *depth_out)
{
    struct kvi_scratch *s = &mover->asking;
    uint32_t planes = pool->plane_count;
    uint32_t at_once = KVI_CHUNK_PARTS / planes;
    bool gap = false;

    *depth_out = 0;
    for (uint32_t from = 0; from < key_count; from += at_once) {
        uint32_t count = key_count - from < at_once ? key_count - from : at_once;
        size_t leading;
        for (uint32_t i = 0; i < count * planes; i++) {
            char *name = s->names + (size_t)i * KVI_NAME_BYTES;
            s->keys[i].data = name;
            s->keys[i].bytes = kvg_layout_object_key(mover->layout,
                &keys[from + i / planes], pool->planes[i % planes].part, name);
        }
        mover->stats.lookup_keys += (uint64_t)count * planes;
        kvg_err err = kvg_store_exists(mover->store, s->keys, (size_t)count * planes,
            good == NULL ? NULL : mover->present, &leading, NULL);
        if (err != KVG_OK)
            return err;
        if (!gap)
            *depth_out = from + (uint32_t)leading / planes;
        gap = gap || leading < (size_t)count * planes;
        if (good == NULL && gap)
            return KVG_OK;
        for (uint32_t i = 0; i < count && good != NULL; i++) {
            good[from + i] = 1;
            for (uint32_t k = 0; k < planes; k++)
                good[from + i] &= mover->present[i * planes + k];
        }
    }
    return KVG_OK;
}

static bool reserve(struct kvg_mover *mover, size_t count)
{
    void *good = mover->good;

    if (count <= mover->good_room)
        return true;
    if (!kvi_resize_array(
            &mover->alloc, &good, mover->good_room, 2 * count, sizeof(*mover->good)))
        return false;
    mover->good = good;
    mover->good_room = 2 * count;
    return true;
}

static const struct kvi_pool *find_pool(const struct kvg_mover *mover, uint32_t component)
{
    for (uint32_t i = 0; i < mover->pool_count; i++) {
        if (mover->pools[i].component == component)
            return &mover->pools[i];
    }
    return NULL;
}

/* mover->good[p] becomes how many pages in a row, up to and with p, another pool has. */
static kvg_err ask_window(struct kvg_mover *mover, const struct kvg_tree_transfer *full,
    const struct kvg_tree_transfer *other, uint32_t depth)
{
    const struct kvi_pool *pool = find_pool(mover, other->component);
    uint32_t in_a_row = 0;
    uint32_t ignored;

    if (pool == NULL)
        return KVG_EINVAL;
    if (!reserve(mover, depth))
        return KVG_ENOMEM;
    kvg_err err = ask(mover, pool, full->keys, depth, mover->good, &ignored);
    for (uint32_t p = 0; p < depth && err == KVG_OK; p++) {
        in_a_row = mover->good[p] != 0 ? in_a_row + 1 : 0;
        mover->good[p] = in_a_row;
    }
    return err;
}

/* Whether a pool has what a prefix of `pages` needs of it. */
static bool has_window(
    const struct kvg_mover *mover, const struct kvg_tree_transfer *other, uint32_t pages)
{
    uint32_t wanted = pages;

    if (other->trailing_pages && other->key_count < wanted)
        wanted = (uint32_t)other->key_count;
    return mover->good[pages - 1] >= wanted;
}

kvg_err kvi_mover_lookup(struct kvg_mover *mover,
    const struct kvg_tree_transfer *transfers, size_t transfer_count, uint32_t *lengths,
    size_t length_max, size_t *length_count_out)
{
    const struct kvi_pool *pool;
    uint32_t depth;
    size_t count = 0;
    kvg_err err;

    if (transfer_count == 0 || transfer_count > KVG_MOVER_POOLS_MAX ||
        transfers[0].key_count > UINT32_MAX / 4)
        return KVG_EINVAL;
    pool = find_pool(mover, transfers[0].component);
    if (pool == NULL)
        return KVG_EINVAL;
    err = ask(
        mover, pool, transfers[0].keys, (uint32_t)transfers[0].key_count, NULL, &depth);
    if (err == KVG_OK && transfer_count > 1 && depth > 0)
        err = ask_window(mover, &transfers[0], &transfers[1], depth);
    if (err != KVG_OK)
        return err;
    for (uint32_t pages = 1; pages <= depth && count < length_max; pages++) {
        if (transfer_count == 1 || has_window(mover, &transfers[1], pages))
            lengths[count++] = pages;
    }
    *length_count_out = count;
    return KVG_OK;
}
