/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* memory.c -- the backend `memory:`: a store inside one process, bounded in bytes.
 *
 *     catalog (catalog.h): key -> part.place --> value: references | bytes ...
 *
 * One lock over the catalog, from the hooks in the options; bytes are copied outside of
 * it, under a reference that keeps a value alive when it is removed or evicted
 * meanwhile.  Why hooks and not a spinlock of our own: a core that may not sleep would
 * spin for a whole time slice whenever the holder loses the processor, and with more
 * threads than cores that is the normal case.  Why one lock and not one per shard: the
 * parts of a page appear together, a page names the one before it, and changes have one
 * order; each would need several shard locks at once.  What is done under the lock is a
 * few hash probes a key.
 *
 * Invariants:
 *
 *     M1  The catalog's own (catalog.c).
 *     M2  catalog.bytes <= bytes_max.
 *     M3  Every part has its value, with one reference for the catalog.
 *     M4  sequence counts the changes of this epoch, each told to the hook once, in order.
 *
 * Put, for each group: (1) look which parts are missing, (2) copy them into values of their own,
 * without the lock, (3) with the lock look again, make room, add, tell. */
#include "store/store.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/fmt.h"
#include "base/rng.h"
#include "store/catalog.h"

#include <string.h>

#define BYTES_MAX_DEFAULT (UINT64_C(256) << 20)
#define BYTES_MAX_HIGHEST (UINT64_C(1) << 50)
#define GET_CHUNK 64u

struct value {
    _Atomic uint32_t references;
    uint64_t bytes;
};

struct memory {
    const struct kvg_alloc *alloc;
    struct kvg_store_locks locks;
    void *lock;
    struct kvg_store_hook hook;
    struct kvi_catalog catalog;
    uint64_t bytes_max;
    uint64_t epoch;
    uint64_t sequence;
    uint64_t put_parts, put_bytes, put_present;
    uint64_t evicted_objects, evicted_bytes;
};

static void lock(struct memory *memory)
{
    if (memory->lock != NULL)
        memory->locks.lock(memory->locks.context, memory->lock);
}

static void unlock(struct memory *memory)
{
    if (memory->lock != NULL)
        memory->locks.unlock(memory->locks.context, memory->lock);
}

/* ---- Values -------------------------------------------------------------------------------- */

static uint8_t *value_data(struct value *value)
{
    return (uint8_t *)(value + 1);
}

static struct value *value_of(const struct kvi_catalog_part *part)
{
    return (struct value *)(uintptr_t)part->place;
}

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

static void value_drop(struct memory *memory, struct value *value)
{
    if (value != NULL &&
        atomic_fetch_sub_explicit(&value->references, 1, memory_order_acq_rel) == 1)
        kvi_release_array(memory->alloc, value, sizeof(*value) + value->bytes, 1);
}

/* ---- Changes, with the lock ---------------------------------------------------------------- */

static void tell(struct memory *memory, enum kvg_store_change_kind kind, uint32_t part_id)
{
    struct kvg_store_change change = {.struct_bytes = sizeof(change),
        .kind = kind,
        .medium = KVG_MEDIUM_CPU,
        .epoch = memory->epoch,
        .sequence = ++memory->sequence};

    if (memory->hook.changed == NULL)
        return;
    if (part_id != KVI_NONE) {
        const struct kvi_catalog_part *part = &memory->catalog.parts[part_id];
        const struct kvi_catalog_group *group = &memory->catalog.groups[part->group];

        change.key = (struct kvg_str){part->key, part->key_bytes};
        change.bytes = part->bytes;
        if (group->id != NULL)
            change.group_id = (struct kvg_str){group->id, group->id_bytes};
    }
    memory->hook.changed(memory->hook.context, &change);
}

static void drop_part(
    struct memory *memory, uint32_t part, enum kvg_store_change_kind kind)
{
    struct value *value = value_of(&memory->catalog.parts[part]);

    tell(memory, kind, part);
    kvi_catalog_remove_part(&memory->catalog, part);
    value_drop(memory, value);
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
            drop_part(memory, part, KVG_STORE_EVICTED);
        }
    }
    return true;
}

/* ---- Put ----------------------------------------------------------------------------------- */

/* The values of one group on their way in: NULL where the part is there already. */
struct incoming {
    const struct kvg_store_group *group;
    struct value **values;
    uint64_t tick;
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

static kvg_err add_parts(struct memory *memory, struct incoming *incoming, uint32_t group,
    bool group_is_new, uint32_t *added)
{
    const struct kvg_store_group *source = incoming->group;
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
        tell(memory, KVG_STORE_STORED, added[i]);
    }
    memory->put_present += source->part_count - count;
    return KVG_OK;
}

/* Makes room with the group's relatives held, so that neither the page before nor the parts
 * that are there already go to make it. */
static kvg_err commit(struct memory *memory, struct incoming *incoming, uint32_t *added)
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
        err = add_parts(memory, incoming, group, sibling == KVI_NONE, added);
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
    size_t i;

    for (i = 0; i < group->part_count; i++) {
        bool present;

        if (incoming->values[i] != NULL)
            continue;
        lock(memory);
        present = kvi_catalog_find(&memory->catalog, group->parts[i].key) != KVI_NONE;
        unlock(memory);
        if (present)
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

static kvg_err put_group(struct memory *memory, struct incoming *incoming)
{
    const struct kvg_store_group *group = incoming->group;
    uint32_t *added = kvi_alloc_array(memory->alloc, group->part_count, sizeof(*added));
    bool committed = false;
    kvg_err err = KVG_OK;
    size_t i;

    incoming->values =
        kvi_alloc_array(memory->alloc, group->part_count, sizeof(struct value *));
    if (added == NULL || incoming->values == NULL)
        err = KVG_ENOMEM;
    while (err == KVG_OK && !committed) {
        err = make_values(memory, incoming);
        if (err != KVG_OK)
            break;
        lock(memory);
        committed = !has_gap(memory, incoming);
        if (committed)
            err = commit(memory, incoming, added);
        unlock(memory);
    }
    for (i = 0; incoming->values != NULL && i < group->part_count; i++)
        value_drop(memory, incoming->values[i]);
    kvi_release_array(
        memory->alloc, incoming->values, group->part_count, sizeof(struct value *));
    kvi_release_array(memory->alloc, added, group->part_count, sizeof(*added));
    return err;
}

static kvg_err memory_put(void *self, struct kvg_store_group *groups, size_t group_count,
    struct kvg_error *error)
{
    struct memory *memory = self;
    uint64_t tick = kvi_catalog_ticks(&memory->catalog, group_count);
    size_t i;

    (void)error;
    for (i = 0; i < group_count; i++) {
        struct incoming incoming = {.group = &groups[i], .tick = tick - i};

        groups[i].result = put_group(memory, &incoming);
    }
    return KVG_OK;
}

/* ---- Get, exists, remove ------------------------------------------------------------------- */

static void copy_ranges(const struct kvg_store_get *get, struct value *value)
{
    size_t i;

    for (i = 0; i < get->range_count; i++) {
        if (get->ranges[i].bytes > 0)
            memcpy(get->ranges[i].memory, value_data(value) + get->ranges[i].offset,
                get->ranges[i].bytes);
    }
}

static void get_chunk(
    struct memory *memory, struct kvg_store_get *gets, size_t count, uint64_t tick)
{
    struct value *values[GET_CHUNK];
    size_t i;

    lock(memory);
    for (i = 0; i < count; i++) {
        uint32_t part = kvi_catalog_find(&memory->catalog, gets[i].key);

        values[i] = NULL;
        gets[i].result = KVG_ENOENT;
        if (part == KVI_NONE)
            continue;
        values[i] = value_of(&memory->catalog.parts[part]);
        atomic_fetch_add_explicit(&values[i]->references, 1, memory_order_relaxed);
        kvi_catalog_touch(&memory->catalog, memory->catalog.parts[part].group, tick - i);
    }
    unlock(memory);
    for (i = 0; i < count; i++) {
        if (values[i] == NULL)
            continue;
        gets[i].value_bytes = values[i]->bytes;
        gets[i].result = KVG_EINVAL;
        if (kvi_store_ranges_fit(&gets[i], values[i]->bytes)) {
            gets[i].result = KVG_OK;
            copy_ranges(&gets[i], values[i]);
        }
        value_drop(memory, values[i]);
    }
}

static kvg_err memory_get(
    void *self, struct kvg_store_get *gets, size_t get_count, struct kvg_error *error)
{
    struct memory *memory = self;
    uint64_t tick = kvi_catalog_ticks(&memory->catalog, get_count);
    size_t done;

    (void)error;
    for (done = 0; done < get_count; done += GET_CHUNK)
        get_chunk(memory, gets + done,
            get_count - done < GET_CHUNK ? get_count - done : GET_CHUNK, tick - done);
    return KVG_OK;
}

static kvg_err memory_exists(void *self, const struct kvg_str *keys, size_t key_count,
    bool stop_at_gap, uint8_t *present, struct kvg_error *error)
{
    struct memory *memory = self;
    size_t i;

    (void)error;
    lock(memory);
    for (i = 0; i < key_count; i++) {
        present[i] = kvi_catalog_find(&memory->catalog, keys[i]) != KVI_NONE;
        if (stop_at_gap && present[i] == 0)
            break;
    }
    unlock(memory);
    return KVG_OK;
}

static kvg_err memory_remove(void *self, const struct kvg_str *keys, size_t key_count,
    kvg_err *results, struct kvg_error *error)
{
    struct memory *memory = self;
    size_t i;

    (void)error;
    lock(memory);
    for (i = 0; i < key_count; i++) {
        uint32_t part = kvi_catalog_find(&memory->catalog, keys[i]);

        results[i] = part == KVI_NONE ? KVG_ENOENT : KVG_OK;
        if (part != KVI_NONE)
            drop_part(memory, part, KVG_STORE_REMOVED);
    }
    unlock(memory);
    return KVG_OK;
}

static void drop_values(struct memory *memory)
{
    size_t i;

    for (i = 0; i < memory->catalog.part_used; i++) {
        if (memory->catalog.parts[i].key != NULL)
            value_drop(memory, value_of(&memory->catalog.parts[i]));
    }
    kvi_catalog_clear(&memory->catalog);
}

static kvg_err memory_clear(void *self, struct kvg_error *error)
{
    struct memory *memory = self;

    (void)error;
    lock(memory);
    drop_values(memory);
    memory->epoch = kvi_mix64(memory->epoch + 1) | 1;
    memory->sequence = 0;
    tell(memory, KVG_STORE_CLEARED, KVI_NONE);
    unlock(memory);
    return KVG_OK;
}

/* ---- Listing ------------------------------------------------------------------------------- */

/* words[0] is the next part id, words[1] is 1 once the listing has begun. */
static kvg_err memory_list(void *self, struct kvg_store_cursor *cursor, size_t item_max,
    bool (*visit)(void *context, const struct kvg_store_item *item), void *context,
    struct kvg_error *error)
{
    struct memory *memory = self;
    struct kvi_catalog *catalog = &memory->catalog;
    bool more = true;

    (void)error;
    lock(memory);
    if (cursor->words[1] == 0) {
        cursor->words[1] = 1;
        cursor->epoch = memory->epoch;
        cursor->sequence = memory->sequence;
    }
    while (more && item_max > 0 && cursor->words[0] < catalog->part_used) {
        const struct kvi_catalog_part *part = &catalog->parts[cursor->words[0]++];
        const struct kvi_catalog_group *group;
        struct kvg_store_item item = {.struct_bytes = sizeof(item)};

        if (part->key == NULL)
            continue;
        group = &catalog->groups[part->group];
        item.key = (struct kvg_str){part->key, part->key_bytes};
        if (group->id != NULL)
            item.group_id = (struct kvg_str){group->id, group->id_bytes};
        item.bytes = part->bytes;
        item.medium = KVG_MEDIUM_CPU;
        item_max--;
        more = visit(context, &item);
    }
    cursor->done = cursor->words[0] >= catalog->part_used;
    unlock(memory);
    return KVG_OK;
}

/* ---- Life ---------------------------------------------------------------------------------- */

static void memory_stats(void *self, struct kvg_store_stats *out)
{
    struct memory *memory = self;

    lock(memory);
    out->objects = memory->catalog.part_count;
    out->bytes = memory->catalog.bytes;
    out->bytes_max = memory->bytes_max;
    out->epoch = memory->epoch;
    out->sequence = memory->sequence;
    out->put_parts = memory->put_parts;
    out->put_bytes = memory->put_bytes;
    out->put_present = memory->put_present;
    out->evicted_objects = memory->evicted_objects;
    out->evicted_bytes = memory->evicted_bytes;
    unlock(memory);
}

/* The values are in memory: what can be checked is the catalog. */
static kvg_err memory_check(void *self, bool repair,
    void (*say)(void *context, const char *line), void *context,
    struct kvg_store_report *out, struct kvg_error *error)
{
    struct memory *memory = self;
    unsigned broken;

    (void)repair;
    lock(memory);
    broken = kvi_catalog_check(&memory->catalog);
    if (broken == 0 && memory->catalog.bytes > memory->bytes_max)
        broken = 102;
    out->objects = memory->catalog.part_count;
    out->bytes = memory->catalog.bytes;
    unlock(memory);
    if (broken == 0)
        return KVG_OK;
    out->problems = 1;
    if (say != NULL)
        say(context, "memory: an invariant is broken");
    return kvi_fail_range(error, "store.memory.invariant", broken, 0, 0);
}

static void memory_close(void *self)
{
    struct memory *memory = self;

    if (memory->catalog.table != NULL)
        drop_values(memory);
    kvi_catalog_fini(&memory->catalog);
    if (memory->lock != NULL)
        memory->locks.free(memory->locks.context, memory->lock);
    KVI_FREE(memory->alloc, memory);
}

static kvg_err memory_open(const struct kvg_store_url *url,
    const struct kvg_store_options *options, void **out, uint32_t *flags_out,
    struct kvg_error *error)
{
    uint64_t bytes_max = BYTES_MAX_DEFAULT;
    struct memory *memory;
    kvg_err err =
        kvg_store_param_bytes(url, "bytes", 1, BYTES_MAX_HIGHEST, &bytes_max, error);

    (void)flags_out;
    if (err != KVG_OK)
        return err;
    if (url->path.bytes > 0 || url->authority.bytes > 0)
        return kvi_fail(
            error, KVG_EINVAL, "store.url", "memory: takes no name and no host");
    memory = KVI_NEW(options->alloc, struct memory);
    if (memory == NULL)
        return kvi_fail(error, KVG_ENOMEM, "store", "out of memory");
    memory->alloc = options->alloc;
    memory->hook = options->hook;
    memory->locks = options->locks;
    memory->bytes_max = bytes_max;
    memory->epoch = kvi_mix64(options->seed) | 1;
    if (!kvi_catalog_init(&memory->catalog, options->alloc, options->seed))
        err = KVG_ENOMEM;
    if (err == KVG_OK && options->locks.make != NULL) {
        memory->lock = options->locks.make(options->locks.context);
        if (memory->lock == NULL)
            err = KVG_ENOMEM;
    }
    if (err != KVG_OK) {
        memory_close(memory);
        return kvi_fail(error, err, "store", "out of memory");
    }
    *out = memory;
    return KVG_OK;
}

static const char *const PARAMETERS[] = {"bytes", NULL};

const struct kvg_store_backend kvi_store_memory = {
    .struct_bytes = sizeof(kvi_store_memory),
    .version = KVG_STORE_BACKEND_VERSION,
    .flags = KVG_STORE_EVICTS | KVG_STORE_LISTS | KVG_STORE_ATOMIC | KVG_STORE_RANGES |
             KVG_STORE_REMOVES,
    .scheme = "memory",
    .summary = "memory:?bytes=N  in this process, bounded, lost with it",
    .parameters = PARAMETERS,
    .open = memory_open,
    .close = memory_close,
    .exists = memory_exists,
    .put = memory_put,
    .get = memory_get,
    .remove = memory_remove,
    .clear = memory_clear,
    .list = memory_list,
    .stats = memory_stats,
    .check = memory_check,
};
