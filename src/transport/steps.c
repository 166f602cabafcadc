/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* steps.c -- one step of a job is one call of the store.
 *
 *     load:      pages p..q of one pool, the layers of one stage    kvg_store_get()
 *     offload:   units u..v, all pools, all layers                  kvg_store_put()
 *
 * A page's slots are runs of memory: one a plane and layer if they are side by side, more if
 * the page is scattered or the plane strided.  In place, each run is a piece or a range.
 * Staged, the part (or its range) lies in the staging buffer as a whole, and each run is a
 * copy.
 *
 * No memory is taken here: lists are as long as the longest step may need, and steps are cut
 * so that they fit (kvi_step_pages(), kvi_step_units()).
 *
 * Threads: any; each with its own scratch.
 */
#include "transport/mover.h"

#include "base/assert.h"
#include "base/fmt.h"

#include <string.h>

/* ---- How much fits ------------------------------------------------------------------------- */

static uint32_t smaller(uint64_t a, uint64_t b)
{
    return (uint32_t)(a < b ? a : b);
}

static uint64_t stage_bytes(
    const struct kvg_mover *mover, const struct kvi_pool *pool, uint64_t layers)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < pool->plane_count; i++)
        bytes += layers * mover->page_size * pool->planes[i].slot_bytes;
    return bytes;
}

uint32_t kvi_step_pages(
    const struct kvg_mover *mover, const struct kvi_job *job, uint32_t transfer)
{
    const struct kvi_pages *pages = &job->transfers[transfer];
    const struct kvi_pool *pool = &mover->pools[pages->pool];
    uint64_t layers = 0;
    uint32_t count;

    for (uint32_t i = 0; i < mover->stage_count; i++) {
        uint32_t here =
            mover->stages[i].of[pages->pool].to - mover->stages[i].of[pages->pool].from;
        if (here > layers)
            layers = here;
    }
    count = smaller(KVI_CHUNK_PAGES,
        mover->piece_max / (pool->plane_count * layers * pages->runs_max));
    count = smaller(count, KVI_CHUNK_PARTS / pool->plane_count);
    if (!mover->in_place)
        count = smaller(count, mover->staging_bytes / stage_bytes(mover, pool, layers));
    return count;
}

uint32_t kvi_step_units(const struct kvg_mover *mover, const struct kvi_job *job)
{
    uint64_t pieces = 0;
    uint32_t parts = 0;
    uint32_t count;

    for (uint32_t i = 0; i < job->transfer_count; i++) {
        const struct kvi_pages *pages = &job->transfers[i];
        const struct kvi_pool *pool = &mover->pools[pages->pool];
        if ((uint64_t)pool->layer_count * pages->runs_max > KVG_STORE_PIECES_MAX)
            return 0;
        parts += pool->plane_count;
        pieces += (uint64_t)pool->plane_count * pool->layer_count * pages->runs_max;
    }
    count = smaller(KVI_CHUNK_PAGES, mover->piece_max / pieces);
    count = smaller(count, KVI_CHUNK_PARTS / parts);
    if (!mover->in_place)
        count = smaller(count, mover->staging_bytes / mover->page_bytes);
    return count;
}

/* ---- Runs of memory ------------------------------------------------------------------------ */

struct runs {
    const struct kvi_pages *pages;
    const struct kvi_plane *plane;
    char *layer;
    uint32_t span, offset, left;
};

static struct runs runs_of(const struct kvg_mover *mover, const struct kvi_pages *pages,
    const struct kvi_plane *plane, uint32_t page, uint32_t layer)
{
    return (struct runs){pages, plane, plane->layers[layer], pages->at[page].span,
        pages->at[page].offset, mover->page_size};
}

static bool next_run(struct runs *runs, char **memory, size_t *bytes)
{
    const struct kvg_span *span;
    uint32_t slots;

    if (runs->left == 0)
        return false;
    span = &runs->pages->spans[runs->span];
    slots = smaller(span->length - runs->offset, runs->left);
    if (runs->plane->slot_stride != runs->plane->slot_bytes)
        slots = 1;
    *memory = runs->layer + (span->offset + runs->offset) * runs->plane->slot_stride;
    *bytes = slots * runs->plane->slot_bytes;
    runs->left -= slots;
    runs->offset += slots;
    if (runs->offset == span->length) {
        runs->span++;
        runs->offset = 0;
    }
    return true;
}

/* ---- Loading ------------------------------------------------------------------------------- */

/* Lists of a call, being filled. */
struct filling {
    struct kvi_scratch *scratch;
    uint32_t parts, runs, copies;
    size_t staged;
};

/* One part of a page: where its layers [from, to) go. */
static void add_get(const struct kvg_mover *mover, struct filling *f,
    const struct kvi_pages *pages, const struct kvi_plane *plane, uint32_t page,
    uint32_t from, uint32_t to)
{
    struct kvi_scratch *s = f->scratch;
    struct kvg_store_get *get = &s->gets[f->parts];
    char *name = s->names + (size_t)f->parts++ * KVI_NAME_BYTES;
    uint64_t layer_bytes = (uint64_t)mover->page_size * plane->slot_bytes;
    uint64_t offset = from * layer_bytes;
    size_t bytes;
    char *memory;

    *get = (struct kvg_store_get){.ranges = &s->ranges[f->runs]};
    get->key.data = name;
    get->key.bytes =
        kvg_layout_object_key(mover->layout, &pages->keys[page], plane->part, name);
    if (!mover->in_place) {
        bytes = (size_t)((to - from) * layer_bytes);
        s->ranges[f->runs++] =
            (struct kvg_store_range){offset, bytes, s->staging + f->staged};
    }
    for (uint32_t layer = from; layer < to; layer++) {
        struct runs runs = runs_of(mover, pages, plane, page, layer);
        while (next_run(&runs, &memory, &bytes)) {
            if (mover->in_place)
                s->ranges[f->runs++] = (struct kvg_store_range){offset, bytes, memory};
            else
                s->copies[f->copies++] =
                    (struct kvg_device_copy){memory, s->staging + f->staged, bytes};
            f->staged += bytes;
            offset += bytes;
        }
    }
    get->range_count = (size_t)(&s->ranges[f->runs] - get->ranges);
}

/* Counts what was read; the first failure, if there is one. */
static kvg_err judge(const struct kvi_pool *pool, const struct kvi_scratch *scratch,
    uint32_t part_count, struct kvg_mover_stats *counted, struct kvg_error *why)
{
    kvg_err first = KVG_OK;

    for (uint32_t i = 0; i < part_count; i++) {
        const struct kvg_store_get *get = &scratch->gets[i];
        kvg_err err = get->result;
        if (err == KVG_OK &&
            get->value_bytes != pool->planes[i % pool->plane_count].part_bytes) {
            counted->pages_damaged++;
            err = kvi_fail(
                why, KVG_EMISMATCH, "page", "a part has another size than this layout's");
        } else if (err == KVG_ENOENT) {
            counted->pages_missing++;
            (void)kvi_fail(why, err, "page", "a part is not in the store any more");
        } else if (err == KVG_ECHECKSUM) {
            counted->pages_damaged++;
        }
        if (first == KVG_OK)
            first = err;
    }
    return first;
}

kvg_err kvi_step_load(struct kvg_mover *mover, struct kvi_scratch *scratch,
    const struct kvi_step *step, struct kvg_mover_stats *counted, struct kvg_error *why)
{
    const struct kvi_pages *pages = &step->job->transfers[step->transfer];
    const struct kvi_pool *pool = &mover->pools[pages->pool];
    uint32_t from = mover->stages[step->stage].of[pages->pool].from;
    uint32_t to = mover->stages[step->stage].of[pages->pool].to;
    struct filling f = {.scratch = scratch};
    kvg_err err;

    for (uint32_t page = step->from; page < step->to; page++) {
        for (uint32_t i = 0; i < pool->plane_count; i++)
            add_get(mover, &f, pages, &pool->planes[i], page, from, to);
    }
    KVI_ASSERT(f.runs <= mover->piece_max && f.parts <= KVI_CHUNK_PARTS);
    kvg_err called = kvg_store_get(mover->store, scratch->gets, f.parts, why);
    err = judge(pool, scratch, f.parts, counted, why);
    if (err == KVG_OK && called != KVG_ENOENT)
        err = called;
    if (err == KVG_OK && !mover->in_place)
        err = mover->memory.write(mover->memory.context, scratch->copies, f.copies);
    if (err == KVG_OK)
        counted->bytes_loaded += f.staged;
    return err;
}

/* ---- Offloading ---------------------------------------------------------------------------- */

static void add_part(const struct kvg_mover *mover, struct filling *f,
    const struct kvi_pages *pages, const struct kvi_plane *plane, uint32_t page,
    uint32_t layer_count)
{
    struct kvi_scratch *s = f->scratch;
    struct kvg_store_part *part = &s->parts[f->parts];
    char *name = s->names + (size_t)f->parts++ * KVI_NAME_BYTES;
    struct kvg_store_piece *first = &s->pieces[f->runs];
    size_t bytes;
    char *memory;

    part->key.data = name;
    part->key.bytes =
        kvg_layout_object_key(mover->layout, &pages->keys[page], plane->part, name);
    part->pieces = first;
    if (!mover->in_place)
        s->pieces[f->runs++] =
            (struct kvg_store_piece){s->staging + f->staged, (size_t)plane->part_bytes};
    for (uint32_t layer = 0; layer < layer_count; layer++) {
        struct runs runs = runs_of(mover, pages, plane, page, layer);
        while (next_run(&runs, &memory, &bytes)) {
            if (mover->in_place)
                s->pieces[f->runs++] = (struct kvg_store_piece){memory, bytes};
            else
                s->copies[f->copies++] =
                    (struct kvg_device_copy){memory, s->staging + f->staged, bytes};
            f->staged += bytes;
        }
    }
    part->piece_count = (size_t)(&s->pieces[f->runs] - first);
}

/* The page before a unit, in the chain of FULL keys. */
static bool previous_of(const struct kvg_mover *mover, const struct kvi_job *job,
    const struct kvi_unit *unit, struct kvg_key *out)
{
    const struct kvi_pages *pages = &job->transfers[0];
    uint32_t page = unit->page[0];

    if (page == KVI_NO_PAGE || (page == 0 && !job->has_previous) ||
        mover->pools[pages->pool].component != KVG_COMPONENT_FULL)
        return false; /* Of a window, pages may be left out. */
    *out = page == 0 ? job->previous : pages->keys[page - 1];
    return true;
}

static void add_group(const struct kvg_mover *mover, struct filling *f,
    const struct kvi_job *job, const struct kvi_unit *unit, uint32_t index)
{
    struct kvi_scratch *s = f->scratch;
    struct kvg_store_group *group = &s->groups[index];
    char *id = s->ids + (size_t)index * (KVI_ID_BYTES + KVI_NAME_BYTES);
    const struct kvg_key *key = NULL;
    struct kvg_key previous;
    uint32_t first = f->parts;

    *group = (struct kvg_store_group){.parts = &s->parts[first]};
    for (uint32_t t = 0; t < job->transfer_count; t++) {
        const struct kvi_pages *pages = &job->transfers[t];
        const struct kvi_pool *pool = &mover->pools[pages->pool];
        if (unit->page[t] == KVI_NO_PAGE)
            continue;
        key = &pages->keys[unit->page[t]];
        for (uint32_t i = 0; i < pool->plane_count; i++)
            add_part(mover, f, pages, &pool->planes[i], unit->page[t], pool->layer_count);
    }
    group->part_count = f->parts - first;
    group->id.data = id;
    group->id.bytes = kvg_layout_group_id(mover->layout, key, id);
    if (previous_of(mover, job, unit, &previous)) {
        const struct kvi_pool *pool = &mover->pools[job->transfers[0].pool];
        group->previous.data = id + KVI_ID_BYTES;
        group->previous.bytes = kvg_layout_object_key(
            mover->layout, &previous, pool->planes[0].part, id + KVI_ID_BYTES);
    }
}

kvg_err kvi_step_offload(struct kvg_mover *mover, struct kvi_scratch *scratch,
    const struct kvi_step *step, struct kvg_mover_stats *counted, struct kvg_error *why)
{
    struct filling f = {.scratch = scratch};
    uint32_t count = step->to - step->from;
    kvg_err err = KVG_OK;

    for (uint32_t i = 0; i < count; i++)
        add_group(mover, &f, step->job, &step->job->units[step->from + i], i);
    KVI_ASSERT(f.runs <= mover->piece_max && f.parts <= KVI_CHUNK_PARTS);
    if (!mover->in_place)
        err = mover->memory.read(mover->memory.context, scratch->copies, f.copies);
    if (err != KVG_OK)
        return kvi_fail(why, err, "device", "its memory could not be read");
    err = kvg_store_put(mover->store, scratch->groups, count, why);
    for (uint32_t i = 0; i < count && err == KVG_OK; i++) {
        if (scratch->groups[i].result == KVG_EEXIST)
            counted->pages_present++;
        else if (scratch->groups[i].result != KVG_OK)
            err = scratch->groups[i].result;
    }
    if (err == KVG_OK || err == KVG_EEXIST) {
        counted->bytes_offloaded += f.staged;
        return KVG_OK;
    }
    return err;
}
