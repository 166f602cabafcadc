/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* memory_put.c -- put of the backend `memory:`, for a few groups at a time: (1) look which parts
 * are missing, (2) copy them into values of their own, without the lock, (3) with the lock look
 * again, make room, add, tell. */
#include "store/memory.h"

#include "base/assert.h"
#include "base/fmt.h"

#define PUT_CHUNK 16u
#define PUT_CHUNK_BYTES (UINT64_C(1) << 20)

static struct value *value_new(struct memory *memory, const struct kvg_store_part *part)
{
    uint64_t bytes = kvi_store_part_bytes(part);
    struct value *value = kvi_alloc_array_raw(memory->alloc, sizeof(*value) + bytes, 1);
    uint64_t at = 0;
    size_t i;

    if (value == NULL)
        return NULL;
    atomic_store_explicit(&value->references, 1, memory_order_relaxed);
    value->bytes = bytes;
    for (i = 0; i < part->piece_count; i++) {
        if (part->pieces[i].bytes > 0)
            memcpy(value_data(value) + at, part->pieces[i].data, part->pieces[i].bytes);
        at += part->pieces[i].bytes;
    }
    return value;
}

/* Evicts until so many bytes fit.  False if they cannot. */
static bool make_room(struct memory *memory, uint64_t bytes)
{
    struct kvi_catalog *catalog = &memory->catalog;

    if (bytes > memory->bytes_max)
        return false;
    while (catalog->bytes > memory->bytes_max - bytes) {
        uint32_t group = kvi_catalog_coldest(catalog);
        uint32_t left;

        if (group == KVI_NONE)
            return false;
        for (left = catalog->groups[group].part_count; left > 0; left--) {
            uint32_t part = catalog->groups[group].first_part;

            memory->evicted_objects++;
            memory->evicted_bytes += catalog->parts[part].bytes;
            kvi_memory_drop_part(memory, part, KVG_STORE_EVICTED);
        }
    }
    return true;
}

/* The values of one group on their way in: NULL where the part is there already. */
struct incoming {
    const struct kvg_store_group *group;
    struct value **values;
    bool *there;     /* What was there when last asked. */
    uint32_t *added; /* Parts of the catalog, while they are added. */
    uint64_t tick;
    bool pending; /* Not committed yet. */
    kvg_err err;
};

/* The part of a group that is there already, or KVI_NONE: missing ones join its group. */
static uint32_t find_sibling(
    const struct kvi_catalog *catalog, const struct kvg_store_group *group)
{
    size_t i;

    for (i = 0; i < group->part_count; i++) {
        uint32_t part = kvi_catalog_find(catalog, group->parts[i].key);

        if (part != KVI_NONE)
            return part;
    }
    return KVI_NONE;
}

/* Drops what meanwhile came from elsewhere or comes twice; returns the bytes still missing. */
static uint64_t missing_bytes(struct memory *memory, struct incoming *incoming)
{
    uint64_t bytes = 0;
    size_t i;

    for (i = 0; i < incoming->group->part_count; i++) {
        if (incoming->values[i] == NULL)
            continue;
        if (kvi_catalog_find(&memory->catalog, incoming->group->parts[i].key) !=
            KVI_NONE) {
            value_drop(memory, incoming->values[i]);
            incoming->values[i] = NULL;
        } else {
            bytes += incoming->values[i]->bytes;
        }
    }
    return bytes;
}

/* Takes out again what a put without memory had added. */
static void undo(struct memory *memory, const uint32_t *added, size_t count,
    uint32_t group, bool group_is_new)
{
    uint64_t serial = memory->catalog.groups[group].serial;

    while (count > 0)
        kvi_catalog_remove_part(&memory->catalog, added[--count]);
    if (group_is_new && memory->catalog.groups[group].serial == serial)
        kvi_catalog_drop_group(&memory->catalog, group);
}

static kvg_err add_parts(
    struct memory *memory, struct incoming *incoming, uint32_t group, bool group_is_new)
{
    const struct kvg_store_group *source = incoming->group;
    uint32_t *added = incoming->added;
    size_t count = 0;
    size_t i;

    for (i = 0; i < source->part_count; i++) {
        struct value *value = incoming->values[i];

        if (value == NULL)
            continue;
        /* Twice in one group: the first counts, the second is dropped by the caller. */
        if (kvi_catalog_find(&memory->catalog, source->parts[i].key) != KVI_NONE)
            continue;
        added[count] = kvi_catalog_add_part(&memory->catalog, group, source->parts[i].key,
            value->bytes, (uint64_t)(uintptr_t)value, 0);
        if (added[count] == KVI_NONE) {
            undo(memory, added, count, group, group_is_new);
            return KVG_ENOMEM;
        }
        count++;
    }
    for (i = 0; i < count; i++) {
        struct value *value = value_of(&memory->catalog.parts[added[i]]);

        atomic_fetch_add_explicit(&value->references, 1, memory_order_relaxed);
        memory->put_parts++;
        memory->put_bytes += value->bytes;
        kvi_memory_tell(memory, KVG_STORE_STORED, added[i]);
    }
    memory->put_present += source->part_count - count;
    return KVG_OK;
}

/* Makes room with the group's relatives held, so that neither the page before nor the parts
 * that are there already go to make it. */
static kvg_err commit(struct memory *memory, struct incoming *incoming)
{
    struct kvi_catalog *catalog = &memory->catalog;
    const struct kvg_store_group *source = incoming->group;
    uint64_t bytes = missing_bytes(memory, incoming);
    uint32_t sibling = find_sibling(catalog, source);
    uint32_t previous = source->previous.data == NULL
                            ? KVI_NONE
                            : kvi_catalog_find(catalog, source->previous);
    uint32_t kept = sibling != KVI_NONE ? sibling : previous;
    uint32_t held = kept == KVI_NONE ? KVI_NONE : catalog->parts[kept].group;
    uint32_t group = held;
    kvg_err err = KVG_OK;

    if (held != KVI_NONE)
        kvi_catalog_hold(catalog, held);
    if (bytes == 0)
        err = KVG_EEXIST;
    else if (!make_room(memory, bytes))
        err = KVG_ENOSPACE;
    if (err == KVG_OK && sibling == KVI_NONE)
        group = kvi_catalog_add_group(catalog, source->id, previous, incoming->tick);
    if (err == KVG_OK && group == KVI_NONE)
        err = KVG_ENOMEM;
    if (err == KVG_OK)
        err = add_parts(memory, incoming, group, sibling == KVI_NONE);
    else if (err == KVG_EEXIST)
        memory->put_present += source->part_count;
    if (held != KVI_NONE)
        kvi_catalog_let_go(catalog, held);
    if (sibling != KVI_NONE)
        kvi_catalog_touch(catalog, held, incoming->tick);
    return err;
}

/* Copies the parts that are not there, outside of the lock. */
static kvg_err make_values(struct memory *memory, struct incoming *incoming)
{
    const struct kvg_store_group *group = incoming->group;
    void *shard = begin_read(memory);
    size_t i;

    for (i = 0; i < group->part_count; i++)
        incoming->there[i] =
            kvi_catalog_find(&memory->catalog, group->parts[i].key) != KVI_NONE;
    end_read(memory, shard);
    for (i = 0; i < group->part_count; i++) {
        if (incoming->values[i] != NULL || incoming->there[i])
            continue;
        incoming->values[i] = value_new(memory, &group->parts[i]);
        if (incoming->values[i] == NULL)
            return KVG_ENOMEM;
    }
    return KVG_OK;
}

/* Did a part go that was there when the others were copied?  Without it half a page would appear.
 * Each time at least one more is copied, so this ends. */
static bool has_gap(const struct memory *memory, const struct incoming *incoming)
{
    size_t i;

    for (i = 0; i < incoming->group->part_count; i++) {
        if (incoming->values[i] == NULL &&
            kvi_catalog_find(&memory->catalog, incoming->group->parts[i].key) == KVI_NONE)
            return true;
    }
    return false;
}

static void incoming_init(struct memory *memory, struct incoming *incoming)
{
    size_t count = incoming->group->part_count;

    incoming->values = kvi_alloc_array(memory->alloc, count, sizeof(struct value *));
    incoming->there = kvi_alloc_array(memory->alloc, count, sizeof(bool));
    incoming->added = kvi_alloc_array(memory->alloc, count, sizeof(uint32_t));
    incoming->pending = true;
    if (incoming->values == NULL || incoming->there == NULL || incoming->added == NULL)
        incoming->err = KVG_ENOMEM;
}

static void incoming_fini(struct memory *memory, struct incoming *incoming)
{
    size_t count = incoming->group->part_count;
    size_t i;

    for (i = 0; incoming->values != NULL && i < count; i++)
        value_drop(memory, incoming->values[i]);
    kvi_release_array(memory->alloc, incoming->values, count, sizeof(struct value *));
    kvi_release_array(memory->alloc, incoming->there, count, sizeof(bool));
    kvi_release_array(memory->alloc, incoming->added, count, sizeof(uint32_t));
}

/* Copies what is missing of some groups, then commits them with the lock taken once.  Again those
 * of which a part went meanwhile. */
static void put_some(struct memory *memory, struct incoming *incoming, size_t count)
{
    bool again = true;
    size_t i;

    while (again) {
        for (i = 0; i < count; i++) {
            if (incoming[i].pending && incoming[i].err == KVG_OK)
                incoming[i].err = make_values(memory, &incoming[i]);
        }
        again = false;
        begin_write(memory);
        for (i = 0; i < count; i++) {
            if (!incoming[i].pending || incoming[i].err != KVG_OK)
                continue;
            incoming[i].pending = has_gap(memory, &incoming[i]);
            again = again || incoming[i].pending;
            if (!incoming[i].pending)
                incoming[i].err = commit(memory, &incoming[i]);
        }
        end_write(memory);
    }
}

/* How many groups are put together: few, and small, since their values are all held meanwhile. */
static size_t count_together(const struct kvg_store_group *groups, size_t group_count)
{
    uint64_t bytes = 0;
    size_t count;
    size_t i;

    for (count = 0; count < group_count && count < PUT_CHUNK; count++) {
        for (i = 0; i < groups[count].part_count; i++)
            bytes += kvi_store_part_bytes(&groups[count].parts[i]);
        if (bytes > PUT_CHUNK_BYTES && count > 0)
            break;
    }
    return count;
}

kvg_err kvi_memory_put(void *self, struct kvg_store_group *groups, size_t group_count,
    struct kvg_error *error)
{
    struct memory *memory = self;
    uint64_t tick = kvi_catalog_ticks(&memory->catalog, group_count);
    size_t done = 0;
    size_t i;

    (void)error;
    while (done < group_count) {
        struct incoming incoming[PUT_CHUNK] = {{0}};
        size_t count = count_together(groups + done, group_count - done);

        for (i = 0; i < count; i++) {
            incoming[i].group = &groups[done + i];
            incoming[i].tick = tick - done - i;
            incoming_init(memory, &incoming[i]);
        }
        put_some(memory, incoming, count);
        for (i = 0; i < count; i++) {
            groups[done + i].result = incoming[i].err;
            incoming_fini(memory, &incoming[i]);
        }
        done += count;
    }
    return KVG_OK;
}
