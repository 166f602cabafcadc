/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* names.c -- strings numbered in the order of their first sight (names.h).
 *
 *     table   [ . 3 . . 1 2 . . ]      number + 1, found by hash
 *     ends    [ 4, 8, 13 ]             where each name ends in the text
 *     text    [ _0_k_0_v__swa ]
 *
 * Growing is done in full before the new name is written, so that a failure changes nothing
 * but the room there is.
 */
#include "layout/names.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/fmt.h"
#include "base/rng.h"

void kvi_names_init(struct kvi_names *names, const struct kvg_alloc *alloc,
    uint32_t count_max, uint64_t seed)
{
    KVI_ASSERT(count_max < UINT32_MAX / 4);
    *names = (struct kvi_names){.alloc = *alloc, .count_max = count_max, .seed = seed};
}

void kvi_names_fini(struct kvi_names *names)
{
    const struct kvg_alloc *alloc = &names->alloc;

    kvi_release_array(alloc, names->ends, names->ends_capacity, sizeof(*names->ends));
    kvi_release_array(alloc, names->text, names->text_capacity, 1);
    kvi_release_array(alloc, names->table, names->table_capacity, sizeof(*names->table));
    kvi_names_init(names, alloc, names->count_max, names->seed);
}

size_t kvi_names_memory(const struct kvi_names *names)
{
    return names->ends_capacity * sizeof(*names->ends) + names->text_capacity +
           names->table_capacity * sizeof(*names->table);
}

static uint64_t hash_name(uint64_t seed, struct kvg_str name)
{
    uint64_t hash = seed ^ name.bytes;
    uint64_t word;
    size_t at;

    for (at = 0; at + sizeof(word) <= name.bytes; at += sizeof(word)) {
        memcpy(&word, name.data + at, sizeof(word));
        hash = kvi_mix64(hash ^ word);
    }
    if (at < name.bytes) {
        word = 0;
        memcpy(&word, name.data + at, name.bytes - at);
        hash = kvi_mix64(hash ^ word);
    }
    return hash;
}

struct kvg_str kvi_names_get(const struct kvi_names *names, uint32_t number)
{
    uint32_t begin;

    KVI_ASSERT(number < names->count);
    begin = number == 0 ? 0 : names->ends[number - 1];
    return (struct kvg_str){names->text + begin, names->ends[number] - begin};
}

/* The place of a name in the table: where it is, or the empty place where it belongs. */
static uint32_t find_place(const struct kvi_names *names, struct kvg_str name)
{
    uint32_t mask = names->table_capacity - 1;
    uint32_t place = (uint32_t)hash_name(names->seed, name) & mask;

    while (names->table[place] != 0 &&
           !kvi_str_equal(kvi_names_get(names, names->table[place] - 1), name))
        place = (place + 1) & mask;
    return place;
}

int32_t kvi_names_find(const struct kvi_names *names, struct kvg_str name)
{
    if (names->table_capacity == 0)
        return -1;
    return (int32_t)names->table[find_place(names, name)] - 1;
}

/* Makes room for one more name in the table. */
static bool grow_table(struct kvi_names *names)
{
    uint32_t capacity = names->table_capacity == 0 ? 8 : names->table_capacity * 2;
    uint32_t *old = names->table;
    uint32_t old_capacity = names->table_capacity;
    uint32_t *table;
    uint32_t number;

    if ((names->count + 1) * 2 <= old_capacity)
        return true;
    table = kvi_alloc_array(&names->alloc, capacity, sizeof(*table));
    if (table == NULL)
        return false;
    names->table = table;
    names->table_capacity = capacity;
    for (number = 0; number < names->count; number++)
        table[find_place(names, kvi_names_get(names, number))] = number + 1;
    kvi_release_array(&names->alloc, old, old_capacity, sizeof(*old));
    return true;
}

static bool grow_ends(struct kvi_names *names)
{
    uint32_t capacity = names->ends_capacity == 0 ? 8 : names->ends_capacity * 2;
    void *memory = names->ends;

    if (names->count < names->ends_capacity)
        return true;
    if (!kvi_resize_array(
            &names->alloc, &memory, names->ends_capacity, capacity, sizeof(*names->ends)))
        return false;
    names->ends = memory;
    names->ends_capacity = capacity;
    return true;
}

static bool grow_text(struct kvi_names *names, size_t used, size_t more)
{
    size_t capacity = names->text_capacity == 0 ? 64 : names->text_capacity;
    void *memory = names->text;

    while (capacity < used + more)
        capacity *= 2;
    if (capacity > UINT32_MAX)
        return false;
    if (capacity == names->text_capacity)
        return true;
    if (!kvi_resize_array(&names->alloc, &memory, names->text_capacity, capacity, 1))
        return false;
    names->text = memory;
    names->text_capacity = (uint32_t)capacity;
    return true;
}

kvg_err kvi_names_add(struct kvi_names *names, struct kvg_str name, uint32_t *out)
{
    int32_t found = kvi_names_find(names, name);
    size_t used = names->count == 0 ? 0 : names->ends[names->count - 1];

    *out = 0;
    if (found >= 0) {
        *out = (uint32_t)found;
        return KVG_OK;
    }
    if (names->count == names->count_max)
        return KVG_ELIMIT;
    if (name.bytes > UINT32_MAX / 4 || !grow_text(names, used, name.bytes) ||
        !grow_ends(names) || !grow_table(names))
        return KVG_ENOMEM;
    if (name.bytes != 0)
        memcpy(names->text + used, name.data, name.bytes);
    names->ends[names->count] = (uint32_t)(used + name.bytes);
    names->table[find_place(names, name)] = names->count + 1;
    *out = names->count++;
    return KVG_OK;
}
