/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* jobs.c -- a load or an offload, copied into one block of memory.
 *
 *     [job][in_flight_of or units][keys, spans, at of transfer 0][... of transfer 1]
 *
 * What comes from the tree is checked all the same: a slot outside the pool would be memory of
 * somebody else.
 *
 * An offload's units are its groups.  The window's keys are a subsequence of a chain that may
 * begin before the FULL keys, so the two are merged from their ends:
 *
 *     FULL             c  d  e  f
 *     SWA      a   b         e  f        units: a, b, c, d, e+E, f+F
 */
#include "transport/mover.h"

#include "base/alloc.h"
#include "base/assert.h"

#include <string.h>

void kvi_jobs_append(struct kvi_jobs *jobs, struct kvi_job *job)
{
    job->next = NULL;
    *jobs->last = job;
    jobs->last = &job->next;
    jobs->count++;
}

struct kvi_job *kvi_jobs_take(struct kvi_jobs *jobs, struct kvi_job **link)
{
    struct kvi_job *job = *link;

    *link = job->next;
    if (jobs->last == &job->next)
        jobs->last = link;
    jobs->count--;
    return job;
}

void kvi_job_free(struct kvg_mover *mover, struct kvi_job *job)
{
    if (job != NULL)
        mover->alloc.release(mover->alloc.context, job, job->bytes);
}

/* ---- Checks -------------------------------------------------------------------------------- */

static uint32_t pool_of(const struct kvg_mover *mover, uint32_t component)
{
    uint32_t pool = 0;

    while (pool < mover->pool_count && mover->pools[pool].component != component)
        pool++;
    return pool;
}

/* A transfer of the right pool whose slots are in it, and as many as its pages have. */
static bool fits(const struct kvg_mover *mover, const struct kvg_tree_transfer *transfer)
{
    uint32_t pool = pool_of(mover, transfer->component);
    uint64_t slots = 0;

    if (pool == mover->pool_count || transfer->key_count == 0)
        return false;
    for (size_t i = 0; i < transfer->span_count; i++) {
        const struct kvg_span *span = &transfer->spans[i];
        uint64_t limit = mover->pools[pool].slot_count;
        if (span->buffer != KVG_BUFFER_POOL || span->length == 0 ||
            span->offset >= limit || span->length > limit - span->offset)
            return false;
        slots += span->length;
    }
    return slots == (uint64_t)transfer->key_count * mover->page_size;
}

static kvg_err check(const struct kvg_mover *mover,
    const struct kvg_tree_transfer *transfers, size_t count, uint64_t *pages_out)
{
    *pages_out = 0;
    if (count == 0 || count > mover->pool_count)
        return KVG_EINVAL;
    for (size_t i = 0; i < count; i++) {
        if (transfers[i].key_count > mover->pages_max)
            return KVG_ELIMIT;
        if (!fits(mover, &transfers[i]) ||
            (i > 0 && transfers[i].component == transfers[0].component))
            return KVG_EINVAL;
        *pages_out += transfers[i].key_count;
    }
    return *pages_out > mover->pages_max ? KVG_ELIMIT : KVG_OK;
}

/* ---- Copying ------------------------------------------------------------------------------- */

static size_t round_up(size_t bytes)
{
    return (bytes + 15) & ~(size_t)15;
}

static size_t block_bytes(const struct kvg_mover *mover,
    const struct kvg_tree_transfer *transfers, size_t count, uint64_t pages, bool is_load)
{
    size_t bytes = round_up(sizeof(struct kvi_job));

    bytes += round_up(is_load ? mover->stage_count * sizeof(uint32_t)
                              : (size_t)pages * sizeof(struct kvi_unit));
    for (size_t i = 0; i < count; i++)
        bytes += round_up(transfers[i].key_count * sizeof(struct kvg_key)) +
                 round_up(transfers[i].span_count * sizeof(struct kvg_span)) +
                 round_up(transfers[i].key_count * sizeof(struct kvi_page_at));
    return bytes;
}

static void *cut(char **at, size_t bytes)
{
    void *piece = *at;

    *at += round_up(bytes);
    return piece;
}

/* Where each page begins, and how many spans the most scattered one touches. */
static void find_pages(const struct kvg_mover *mover, struct kvi_pages *pages)
{
    uint32_t span = 0;
    uint32_t offset = 0;
    uint32_t most = 1;

    for (uint32_t p = 0; p < pages->key_count; p++) {
        uint32_t left = mover->page_size;
        uint32_t touched = 0;
        pages->at[p] = (struct kvi_page_at){span, offset};
        while (left > 0) {
            uint32_t here = pages->spans[span].length - offset;
            touched++;
            if (here > left) {
                offset += left;
                break;
            }
            left -= here;
            span++;
            offset = 0;
        }
        if (touched > most)
            most = touched;
    }
    pages->runs_max = mover->pools[pages->pool].strided ? mover->page_size : most;
}

static void copy_transfer(const struct kvg_mover *mover,
    const struct kvg_tree_transfer *from, struct kvi_pages *to, char **at)
{
    *to = (struct kvi_pages){.pool = pool_of(mover, from->component),
        .key_count = (uint32_t)from->key_count,
        .span_count = (uint32_t)from->span_count};
    to->keys = cut(at, from->key_count * sizeof(*to->keys));
    to->spans = cut(at, from->span_count * sizeof(*to->spans));
    to->at = cut(at, from->key_count * sizeof(*to->at));
    memcpy(to->keys, from->keys, from->key_count * sizeof(*to->keys));
    memcpy(to->spans, from->spans, from->span_count * sizeof(*to->spans));
    find_pages(mover, to);
}

/* Whether this rank writes anything of a transfer. */
static bool writes(const struct kvg_mover *mover, const struct kvi_pages *pages)
{
    return mover->owner || !mover->pools[pages->pool].replicated;
}

static void make_units(const struct kvg_mover *mover, struct kvi_job *job)
{
    const struct kvi_pages *first = &job->transfers[0];
    const struct kvi_pages *second = job->transfer_count > 1 ? &job->transfers[1] : NULL;
    uint32_t one = first->key_count;
    uint32_t two = second == NULL ? 0 : second->key_count;
    uint32_t at = one + two; /* Filled from the end, then moved down. */

    while (one + two > 0) {
        struct kvi_unit unit = {{KVI_NO_PAGE, KVI_NO_PAGE}};
        bool same = one > 0 && two > 0 &&
                    memcmp(&first->keys[one - 1], &second->keys[two - 1],
                        sizeof(struct kvg_key)) == 0;
        if (same || one > 0)
            unit.page[0] = --one;
        if (same || unit.page[0] == KVI_NO_PAGE)
            unit.page[1] = --two;
        if (unit.page[0] != KVI_NO_PAGE && !writes(mover, first))
            unit.page[0] = KVI_NO_PAGE;
        if (unit.page[1] != KVI_NO_PAGE && !writes(mover, second))
            unit.page[1] = KVI_NO_PAGE;
        if (unit.page[0] != KVI_NO_PAGE || unit.page[1] != KVI_NO_PAGE)
            job->units[--at] = unit;
    }
    job->unit_count = first->key_count + (second == NULL ? 0 : second->key_count) - at;
    memmove(job->units, job->units + at, job->unit_count * sizeof(*job->units));
}

/* A page whose pieces would not fit into one call's lists. */
static bool too_scattered(const struct kvg_mover *mover, const struct kvi_job *job)
{
    if (job->units != NULL)
        return kvi_step_units(mover, job) == 0;
    for (uint32_t i = 0; i < job->transfer_count; i++) {
        if (kvi_step_pages(mover, job, i) == 0)
            return true;
    }
    return false;
}

kvg_err kvi_job_make(struct kvg_mover *mover, const struct kvg_tree_transfer *transfers,
    size_t transfer_count, bool is_load, struct kvi_job **out)
{
    uint64_t pages;
    kvg_err err = check(mover, transfers, transfer_count, &pages);

    *out = NULL;
    if (err != KVG_OK)
        return err;
    size_t bytes = block_bytes(mover, transfers, transfer_count, pages, is_load);
    struct kvi_job *job = mover->alloc.allocate(mover->alloc.context, bytes);
    if (job == NULL)
        return KVG_ENOMEM;
    char *at = (char *)job + round_up(sizeof(*job));
    *job = (struct kvi_job){.bytes = bytes,
        .page_count = (uint32_t)pages,
        .transfer_count = (uint32_t)transfer_count};
    if (is_load) {
        job->in_flight_of = cut(&at, mover->stage_count * sizeof(uint32_t));
        memset(job->in_flight_of, 0, mover->stage_count * sizeof(uint32_t));
    } else {
        job->units = cut(&at, (size_t)pages * sizeof(struct kvi_unit));
    }
    for (size_t i = 0; i < transfer_count; i++)
        copy_transfer(mover, &transfers[i], &job->transfers[i], &at);
    if (!is_load) {
        make_units(mover, job);
        job->has_previous = transfers[0].previous != NULL;
        if (job->has_previous)
            job->previous = *transfers[0].previous;
    }
    if (too_scattered(mover, job)) {
        kvi_job_free(mover, job);
        return KVG_ELIMIT;
    }
    *out = job;
    return KVG_OK;
}
