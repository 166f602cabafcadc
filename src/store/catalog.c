/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* catalog.c -- what a store holds, and in which order it would let go of it (catalog.h).
 *
 *     table (hash) --> parts[]  key, size, place --ring--> parts of the same group
 *                         |
 *                         v
 *                      groups[]  tick, parent, children      heap: groups by tick, coldest first
 *
 * Ids are places in the arrays, reused by way of a free list; serials are never reused.  The
 * cursor of a listing is simply the next part id: an object that stays keeps its id.
 *
 * Who goes first: of the groups that no other group names as its previous page, the one
 * whose last use is longest ago.  So a chain loses its tail first, whatever the ticks of
 * its head.  A use only raises the group's tick, which any reader may do under a shared
 * lock; the heap learns of it when the group comes up, and puts it back where it belongs.
 *
 * Invariants, checked by kvi_catalog_check():
 *
 *     C1  Every part is found through the table under its key; the table holds nothing else.
 *     C2  The ring of a group has exactly its parts, at least one.
 *     C3  A group without children is in the heap, once; heap_at says where.
 *     C4  The heap is ordered, and no item is warmer than its group.
 *     C5  bytes is the sum over the parts; counts are right; free lists have the rest.
 *     C6  child_count is the number of living groups whose parent, by id and serial, this is
 *         (holds aside).
 *
 * Not here: values, events, locks. */
#include "store/catalog.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/fmt.h"
#include "base/rng.h"

#define TABLE_MIN 64u

static uint32_t hash_key(const struct kvi_catalog *catalog, struct kvg_str key)
{
    uint64_t state = catalog->seed ^ key.bytes;
    uint64_t word;
    size_t i;

    for (i = 0; i + 8 <= key.bytes; i += 8) {
        memcpy(&word, key.data + i, 8);
        state = kvi_mix64(state ^ word) + UINT64_C(0x9e3779b97f4a7c15);
    }
    word = 0;
    memcpy(&word, key.data + i, key.bytes - i);
    return (uint32_t)(kvi_mix64(state ^ word) >> 32);
}

bool kvi_catalog_init(
    struct kvi_catalog *catalog, const struct kvg_alloc *alloc, uint64_t seed)
{
    *catalog = (struct kvi_catalog){.alloc = alloc,
        .seed = seed,
        .table_size = TABLE_MIN,
        .part_free = KVI_NONE,
        .group_free = KVI_NONE};
    catalog->table = kvi_alloc_array_raw(alloc, TABLE_MIN, sizeof(*catalog->table));
    if (catalog->table == NULL)
        return false;
    memset(catalog->table, 0xff, TABLE_MIN * sizeof(*catalog->table));
    return true;
}

static void release_text(struct kvi_catalog *catalog, char *text, uint32_t bytes)
{
    if (text != NULL)
        kvi_release_string(catalog->alloc, text, bytes);
}

void kvi_catalog_clear(struct kvi_catalog *catalog)
{
    size_t i;

    for (i = 0; i < catalog->part_used; i++) {
        release_text(catalog, catalog->parts[i].key, catalog->parts[i].key_bytes);
        catalog->parts[i].key = NULL;
    }
    for (i = 0; i < catalog->group_used; i++) {
        release_text(catalog, catalog->groups[i].id, catalog->groups[i].id_bytes);
        catalog->groups[i].id = NULL;
    }
    memset(catalog->table, 0xff, catalog->table_size * sizeof(*catalog->table));
    catalog->part_used = catalog->part_count = 0;
    catalog->group_used = catalog->group_count = 0;
    catalog->heap_count = 0;
    catalog->part_free = catalog->group_free = KVI_NONE;
    catalog->bytes = 0;
}

void kvi_catalog_fini(struct kvi_catalog *catalog)
{
    if (catalog->table == NULL)
        return;
    kvi_catalog_clear(catalog);
    kvi_release_array(
        catalog->alloc, catalog->table, catalog->table_size, sizeof(*catalog->table));
    kvi_release_array(
        catalog->alloc, catalog->parts, catalog->part_capacity, sizeof(*catalog->parts));
    kvi_release_array(catalog->alloc, catalog->groups, catalog->group_capacity,
        sizeof(*catalog->groups));
    kvi_release_array(
        catalog->alloc, catalog->heap, catalog->group_capacity, sizeof(*catalog->heap));
    catalog->table = NULL;
}

/* ---- The table ----------------------------------------------------------------------------- */

static size_t slot_after(const struct kvi_catalog *catalog, size_t slot)
{
    return (slot + 1) & (catalog->table_size - 1);
}

static void table_insert(struct kvi_catalog *catalog, uint32_t part)
{
    size_t slot = catalog->parts[part].hash & (catalog->table_size - 1);

    while (catalog->table[slot] != KVI_NONE)
        slot = slot_after(catalog, slot);
    catalog->table[slot] = part;
}

/* Takes a part out, and moves back what had to step over it. */
static void table_remove(struct kvi_catalog *catalog, uint32_t part)
{
    size_t mask = catalog->table_size - 1;
    size_t hole = catalog->parts[part].hash & mask;
    size_t slot;

    while (catalog->table[hole] != part)
        hole = slot_after(catalog, hole);
    for (slot = slot_after(catalog, hole); catalog->table[slot] != KVI_NONE;
         slot = slot_after(catalog, slot)) {
        size_t home = catalog->parts[catalog->table[slot]].hash & mask;

        if (((slot - home) & mask) >= ((slot - hole) & mask)) {
            catalog->table[hole] = catalog->table[slot];
            hole = slot;
        }
    }
    catalog->table[hole] = KVI_NONE;
}

static bool table_grow(struct kvi_catalog *catalog)
{
    size_t old_size = catalog->table_size;
    uint32_t *old = catalog->table;
    uint32_t *table;
    size_t i;

    if ((catalog->part_count + 1) * 3 <= old_size * 2)
        return true;
    table = kvi_alloc_array_raw(catalog->alloc, old_size * 2, sizeof(*table));
    if (table == NULL)
        return false;
    memset(table, 0xff, old_size * 2 * sizeof(*table));
    catalog->table = table;
    catalog->table_size = old_size * 2;
    for (i = 0; i < old_size; i++) {
        if (old[i] != KVI_NONE)
            table_insert(catalog, old[i]);
    }
    kvi_release_array(catalog->alloc, old, old_size, sizeof(*old));
    return true;
}

static bool same_key(
    const struct kvi_catalog_part *part, uint32_t hash, struct kvg_str key)
{
    return part->hash == hash && part->key_bytes == key.bytes &&
           memcmp(part->key, key.data, key.bytes) == 0;
}

uint32_t kvi_catalog_find(const struct kvi_catalog *catalog, struct kvg_str key)
{
    uint32_t hash = hash_key(catalog, key);
    size_t slot = hash & (catalog->table_size - 1);

    while (catalog->table[slot] != KVI_NONE) {
        if (same_key(&catalog->parts[catalog->table[slot]], hash, key))
            return catalog->table[slot];
        slot = slot_after(catalog, slot);
    }
    return KVI_NONE;
}

/* ---- The heap ------------------------------------------------------------------------------ */

static void heap_place(
    struct kvi_catalog *catalog, size_t at, struct kvi_catalog_heap_item item)
{
    catalog->heap[at] = item;
    catalog->groups[item.group].heap_at = (uint32_t)at;
}

static void heap_up(struct kvi_catalog *catalog, size_t at)
{
    struct kvi_catalog_heap_item item = catalog->heap[at];

    while (at > 0 && catalog->heap[(at - 1) / 2].tick > item.tick) {
        heap_place(catalog, at, catalog->heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    heap_place(catalog, at, item);
}

static void heap_down(struct kvi_catalog *catalog, size_t at)
{
    struct kvi_catalog_heap_item item = catalog->heap[at];
    size_t child;

    while ((child = 2 * at + 1) < catalog->heap_count) {
        if (child + 1 < catalog->heap_count &&
            catalog->heap[child + 1].tick < catalog->heap[child].tick)
            child++;
        if (catalog->heap[child].tick >= item.tick)
            break;
        heap_place(catalog, at, catalog->heap[child]);
        at = child;
    }
    heap_place(catalog, at, item);
}

static void heap_add(struct kvi_catalog *catalog, uint32_t group)
{
    struct kvi_catalog_group *object = &catalog->groups[group];

    if (object->heap_at != KVI_NONE)
        return;
    catalog->heap[catalog->heap_count] = (struct kvi_catalog_heap_item){
        atomic_load_explicit(&object->tick, memory_order_relaxed), group};
    heap_up(catalog, catalog->heap_count++);
}

static void heap_remove(struct kvi_catalog *catalog, uint32_t group)
{
    size_t at = catalog->groups[group].heap_at;

    if (at == KVI_NONE)
        return;
    catalog->groups[group].heap_at = KVI_NONE;
    catalog->heap_count--;
    if (at == catalog->heap_count)
        return;
    heap_place(catalog, at, catalog->heap[catalog->heap_count]);
    heap_up(catalog, at);
    heap_down(catalog, catalog->groups[catalog->heap[at].group].heap_at);
}

uint32_t kvi_catalog_coldest(struct kvi_catalog *catalog)
{
    while (catalog->heap_count > 0) {
        struct kvi_catalog_heap_item *top = &catalog->heap[0];
        struct kvi_catalog_group *group = &catalog->groups[top->group];
        uint64_t tick = atomic_load_explicit(&group->tick, memory_order_relaxed);

        if (group->child_count > 0) {
            heap_remove(catalog, top->group);
        } else if (tick != top->tick) {
            top->tick = tick;
            heap_down(catalog, 0);
        } else {
            return top->group;
        }
    }
    return KVI_NONE;
}

/* ---- Groups -------------------------------------------------------------------------------- */

static bool groups_grow(struct kvi_catalog *catalog)
{
    size_t capacity = catalog->group_capacity;
    size_t wanted = capacity == 0 ? 64 : capacity * 2;
    void *groups = catalog->groups;
    void *heap;

    if (catalog->group_free != KVI_NONE || catalog->group_used < capacity)
        return true;
    if (wanted >= KVI_NONE)
        return false;
    heap = kvi_alloc_array_raw(catalog->alloc, wanted, sizeof(*catalog->heap));
    if (heap == NULL)
        return false;
    if (!kvi_resize_array(
            catalog->alloc, &groups, capacity, wanted, sizeof(*catalog->groups))) {
        kvi_release_array(catalog->alloc, heap, wanted, sizeof(*catalog->heap));
        return false;
    }
    catalog->groups = groups;
    if (catalog->heap_count > 0)
        memcpy(heap, catalog->heap, catalog->heap_count * sizeof(*catalog->heap));
    kvi_release_array(catalog->alloc, catalog->heap, capacity, sizeof(*catalog->heap));
    catalog->heap = heap;
    catalog->group_capacity = wanted;
    return true;
}

uint32_t kvi_catalog_add_group(
    struct kvi_catalog *catalog, struct kvg_str id, uint32_t previous, uint64_t tick)
{
    struct kvi_catalog_group *group;
    char *text = NULL;
    uint32_t at;

    if (!groups_grow(catalog))
        return KVI_NONE;
    if (id.data != NULL) {
        text = kvi_copy_string(catalog->alloc, id);
        if (text == NULL)
            return KVI_NONE;
    }
    at = catalog->group_free;
    if (at != KVI_NONE)
        catalog->group_free = catalog->groups[at].heap_at;
    else
        at = (uint32_t)catalog->group_used++;
    group = &catalog->groups[at];
    *group = (struct kvi_catalog_group){.serial = ++catalog->serial,
        .id = text,
        .id_bytes = (uint32_t)id.bytes,
        .first_part = KVI_NONE,
        .parent = KVI_NONE,
        .heap_at = KVI_NONE};
    atomic_store_explicit(&group->tick, tick, memory_order_relaxed);
    if (previous != KVI_NONE) {
        group->parent = catalog->parts[previous].group;
        group->parent_serial = catalog->groups[group->parent].serial;
        kvi_catalog_hold(catalog, group->parent);
    }
    catalog->group_count++;
    heap_add(catalog, at);
    return at;
}

void kvi_catalog_drop_group(struct kvi_catalog *catalog, uint32_t at)
{
    struct kvi_catalog_group *group = &catalog->groups[at];

    KVI_ASSERT(group->serial != 0 && group->part_count == 0);
    heap_remove(catalog, at);
    release_text(catalog, group->id, group->id_bytes);
    if (group->parent != KVI_NONE &&
        catalog->groups[group->parent].serial == group->parent_serial)
        kvi_catalog_let_go(catalog, group->parent);
    *group = (struct kvi_catalog_group){.heap_at = catalog->group_free};
    catalog->group_free = at;
    catalog->group_count--;
}

void kvi_catalog_hold(struct kvi_catalog *catalog, uint32_t group)
{
    catalog->groups[group].child_count++;
}

void kvi_catalog_let_go(struct kvi_catalog *catalog, uint32_t group)
{
    KVI_ASSERT(catalog->groups[group].child_count > 0);
    if (--catalog->groups[group].child_count == 0)
        heap_add(catalog, group);
}

uint64_t kvi_catalog_ticks(struct kvi_catalog *catalog, uint64_t count)
{
    return atomic_fetch_add_explicit(&catalog->clock, count, memory_order_relaxed) +
           count;
}

void kvi_catalog_touch(struct kvi_catalog *catalog, uint32_t at, uint64_t tick)
{
    struct kvi_catalog_group *group = &catalog->groups[at];
    uint64_t now = atomic_load_explicit(&group->tick, memory_order_relaxed);

    while (now < tick && !atomic_compare_exchange_weak_explicit(&group->tick, &now, tick,
                             memory_order_relaxed, memory_order_relaxed))
        continue;
}

/* ---- Parts --------------------------------------------------------------------------------- */

static bool parts_grow(struct kvi_catalog *catalog)
{
    size_t capacity = catalog->part_capacity;
    size_t wanted = capacity == 0 ? 64 : capacity * 2;
    void *parts = catalog->parts;

    if (catalog->part_free != KVI_NONE || catalog->part_used < capacity)
        return true;
    if (wanted >= KVI_NONE || !kvi_resize_array(catalog->alloc, &parts, capacity, wanted,
                                  sizeof(*catalog->parts)))
        return false;
    catalog->parts = parts;
    catalog->part_capacity = wanted;
    return true;
}

/* Into the ring of its group, at the end. */
static void ring_insert(struct kvi_catalog *catalog, uint32_t at)
{
    struct kvi_catalog_part *part = &catalog->parts[at];
    struct kvi_catalog_group *group = &catalog->groups[part->group];

    if (group->first_part == KVI_NONE) {
        part->next = part->prev = at;
        group->first_part = at;
    } else {
        part->next = group->first_part;
        part->prev = catalog->parts[part->next].prev;
        catalog->parts[part->prev].next = at;
        catalog->parts[part->next].prev = at;
    }
    group->part_count++;
}

uint32_t kvi_catalog_add_part(struct kvi_catalog *catalog, uint32_t group,
    struct kvg_str key, uint64_t bytes, uint64_t place, uint64_t check)
{
    uint32_t at;
    char *text;

    if (!parts_grow(catalog) || !table_grow(catalog))
        return KVI_NONE;
    text = kvi_copy_string(catalog->alloc, key);
    if (text == NULL)
        return KVI_NONE;
    at = catalog->part_free;
    if (at != KVI_NONE)
        catalog->part_free = catalog->parts[at].hash;
    else
        at = (uint32_t)catalog->part_used++;
    catalog->parts[at] = (struct kvi_catalog_part){.key = text,
        .key_bytes = (uint32_t)key.bytes,
        .hash = hash_key(catalog, key),
        .group = group,
        .bytes = bytes,
        .place = place,
        .check = check,
        .serial = ++catalog->serial};
    ring_insert(catalog, at);
    table_insert(catalog, at);
    catalog->part_count++;
    catalog->bytes += bytes;
    return at;
}

void kvi_catalog_remove_part(struct kvi_catalog *catalog, uint32_t at)
{
    struct kvi_catalog_part *part = &catalog->parts[at];
    struct kvi_catalog_group *group = &catalog->groups[part->group];
    uint32_t owner = part->group;

    KVI_ASSERT(part->key != NULL);
    table_remove(catalog, at);
    catalog->parts[part->prev].next = part->next;
    catalog->parts[part->next].prev = part->prev;
    if (group->first_part == at)
        group->first_part = part->next == at ? KVI_NONE : part->next;
    group->part_count--;
    catalog->bytes -= part->bytes;
    catalog->part_count--;
    release_text(catalog, part->key, part->key_bytes);
    *part = (struct kvi_catalog_part){.hash = catalog->part_free};
    catalog->part_free = at;
    if (group->part_count == 0)
        kvi_catalog_drop_group(catalog, owner);
}

/* ---- The check ----------------------------------------------------------------------------- */

static bool ring_good(const struct kvi_catalog *catalog, uint32_t at)
{
    const struct kvi_catalog_group *group = &catalog->groups[at];
    uint32_t part = group->first_part;
    uint32_t i;

    if (group->part_count == 0 || part == KVI_NONE)
        return false;
    for (i = 0; i < group->part_count; i++) {
        if (part >= catalog->part_used || catalog->parts[part].key == NULL ||
            catalog->parts[part].group != at || (i > 0 && part == group->first_part) ||
            catalog->parts[catalog->parts[part].next].prev != part)
            return false;
        part = catalog->parts[part].next;
    }
    return part == group->first_part;
}

static unsigned check_parts(const struct kvi_catalog *catalog)
{
    uint64_t bytes = 0;
    size_t count = 0;
    size_t in_table = 0;
    size_t i;

    for (i = 0; i < catalog->table_size; i++)
        in_table += catalog->table[i] != KVI_NONE;
    for (i = 0; i < catalog->part_used; i++) {
        const struct kvi_catalog_part *part = &catalog->parts[i];

        if (part->key == NULL)
            continue;
        count++;
        bytes += part->bytes;
        if (kvi_catalog_find(catalog, (struct kvg_str){part->key, part->key_bytes}) != i)
            return 1;
    }
    if (in_table != count)
        return 1;
    return count == catalog->part_count && bytes == catalog->bytes ? 0 : 5;
}

static unsigned check_heap(const struct kvi_catalog *catalog)
{
    size_t i;

    for (i = 0; i < catalog->heap_count; i++) {
        const struct kvi_catalog_heap_item *item = &catalog->heap[i];
        const struct kvi_catalog_group *group = &catalog->groups[item->group];

        if (group->serial == 0 || group->heap_at != i)
            return 3;
        if (catalog->heap[i == 0 ? 0 : (i - 1) / 2].tick > item->tick ||
            item->tick > atomic_load_explicit(&group->tick, memory_order_relaxed))
            return 4;
    }
    return 0;
}

unsigned kvi_catalog_check(const struct kvi_catalog *catalog)
{
    unsigned broken = check_parts(catalog);
    uint64_t named = 0;
    uint64_t children = 0;
    size_t count = 0;
    size_t i;

    for (i = 0; i < catalog->group_used && broken == 0; i++) {
        const struct kvi_catalog_group *group = &catalog->groups[i];

        if (group->serial == 0)
            continue;
        count++;
        children += group->child_count;
        if (group->parent != KVI_NONE &&
            catalog->groups[group->parent].serial == group->parent_serial)
            named++;
        if (!ring_good(catalog, (uint32_t)i))
            return 2;
        if (group->child_count == 0 && group->heap_at == KVI_NONE)
            return 3;
    }
    if (broken != 0)
        return broken;
    if (count != catalog->group_count)
        return 5;
    return children != named ? 6 : check_heap(catalog);
}
