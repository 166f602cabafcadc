/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* memory.c -- the backend `memory:`: a store inside one process, bounded in bytes.
 *
 *     catalog (catalog.h): key -> part.place --> value: references | bytes ...
 *
 * The lock over the catalog is in shards: who looks takes one of them, which one depends on
 * the thread; who changes something takes all, in order.  So readers do not meet, neither
 * at a lock nor at its cache line, and a change still sees and shows one state of everything: the
 * parts of a page appear together, a page holds the one before it, changes have one order, and
 * the coldest of all goes first.  Shards of the keys would have to give up one of these or lock
 * several shards for each; what is done under the lock is a few hash probes a key.
 *
 * Bytes are copied without it, under a reference that keeps a value alive when it is removed or
 * evicted meanwhile.  Locks come from the hooks in the options and are no spinlocks of our own: a
 * core that may not sleep would spin for a whole time slice whenever the holder loses the
 * processor, and with more threads than cores that is the normal case.
 *
 * Invariants:
 *
 *     M1  The catalog's own (catalog.c).
 *     M2  catalog.bytes <= bytes_max.
 *     M3  Every part has its value, with one reference for the catalog.
 *     M4  sequence counts the changes of this epoch, each told to the hook once, in order. */
#include "store/memory.h"

#include "base/assert.h"
#include "base/fmt.h"

#define BYTES_MAX_DEFAULT (UINT64_C(256) << 20)
#define BYTES_MAX_HIGHEST (UINT64_C(1) << 50)
#define GET_CHUNK 64u

/* ---- Changes, with the lock ---------------------------------------------------------------- */

void kvi_memory_tell(
    struct memory *memory, enum kvg_store_change_kind kind, uint32_t part_id)
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

void kvi_memory_drop_part(
    struct memory *memory, uint32_t part, enum kvg_store_change_kind kind)
{
    struct value *value = value_of(&memory->catalog.parts[part]);

    kvi_memory_tell(memory, kind, part);
    kvi_catalog_remove_part(&memory->catalog, part);
    value_drop(memory, value);
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
    void *shard;
    struct value *values[GET_CHUNK];
    size_t i;

    shard = begin_read(memory);
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
    end_read(memory, shard);
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
    void *shard;
    struct memory *memory = self;
    size_t i;

    (void)error;
    shard = begin_read(memory);
    for (i = 0; i < key_count; i++) {
        present[i] = kvi_catalog_find(&memory->catalog, keys[i]) != KVI_NONE;
        if (stop_at_gap && present[i] == 0)
            break;
    }
    end_read(memory, shard);
    return KVG_OK;
}

static kvg_err memory_remove(void *self, const struct kvg_str *keys, size_t key_count,
    kvg_err *results, struct kvg_error *error)
{
    struct memory *memory = self;
    size_t i;

    (void)error;
    begin_write(memory);
    for (i = 0; i < key_count; i++) {
        uint32_t part = kvi_catalog_find(&memory->catalog, keys[i]);

        results[i] = part == KVI_NONE ? KVG_ENOENT : KVG_OK;
        if (part != KVI_NONE)
            kvi_memory_drop_part(memory, part, KVG_STORE_REMOVED);
    }
    end_write(memory);
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
    begin_write(memory);
    drop_values(memory);
    memory->epoch = kvi_mix64(memory->epoch + 1) | 1;
    memory->sequence = 0;
    kvi_memory_tell(memory, KVG_STORE_CLEARED, KVI_NONE);
    end_write(memory);
    return KVG_OK;
}

/* ---- Listing ------------------------------------------------------------------------------- */

/* words[0] is the next part id, words[1] is 1 once the listing has begun. */
static kvg_err memory_list(void *self, struct kvg_store_cursor *cursor, size_t item_max,
    bool (*visit)(void *context, const struct kvg_store_item *item), void *context,
    struct kvg_error *error)
{
    void *shard;
    struct memory *memory = self;
    struct kvi_catalog *catalog = &memory->catalog;
    bool more = true;

    (void)error;
    shard = begin_read(memory);
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
    end_read(memory, shard);
    return KVG_OK;
}

/* ---- Life ---------------------------------------------------------------------------------- */

static void memory_stats(void *self, struct kvg_store_stats *out)
{
    void *shard;
    struct memory *memory = self;

    shard = begin_read(memory);
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
    end_read(memory, shard);
}

/* The values are in memory: what can be checked is the catalog. */
static kvg_err memory_check(void *self, bool repair,
    void (*say)(void *context, const char *line), void *context,
    struct kvg_store_report *out, struct kvg_error *error)
{
    void *shard;
    struct memory *memory = self;
    unsigned broken;

    (void)repair;
    shard = begin_read(memory);
    broken = kvi_catalog_check(&memory->catalog);
    if (broken == 0 && memory->catalog.bytes > memory->bytes_max)
        broken = 102;
    out->objects = memory->catalog.part_count;
    out->bytes = memory->catalog.bytes;
    end_read(memory, shard);
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
    unsigned i;

    if (memory->catalog.table != NULL)
        drop_values(memory);
    kvi_catalog_fini(&memory->catalog);
    for (i = 0; i < LOCK_SHARDS; i++) {
        if (memory->shards[i] != NULL)
            memory->locks.free(memory->locks.context, memory->shards[i]);
    }
    KVI_FREE(memory->alloc, memory);
}

static kvg_err memory_open(const struct kvg_store_url *url,
    const struct kvg_store_options *options, void **out, uint32_t *flags_out,
    struct kvg_error *error)
{
    uint64_t bytes_max = BYTES_MAX_DEFAULT;
    struct memory *memory;
    unsigned i;
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
    for (i = 0; i < LOCK_SHARDS && err == KVG_OK && options->locks.make != NULL; i++) {
        memory->shards[i] = options->locks.make(options->locks.context);
        if (memory->shards[i] == NULL)
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
    .put = kvi_memory_put,
    .get = memory_get,
    .remove = memory_remove,
    .clear = memory_clear,
    .list = memory_list,
    .stats = memory_stats,
    .check = memory_check,
};
