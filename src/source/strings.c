/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* strings.c -- a set of strings (strings.h).
 *
 *     buckets [ . | . | . | . ]        a power of two of them, about one entry each
 *               |       |
 *               v       v
 *             entry   entry -> entry   one allocation each, text included
 *
 * Invariants, checked by kvi_strings_check():
 *
 *     1  An entry is in the bucket of its hash, and its hash is that of its text.
 *     2  No two entries have the same text.
 *     3  count and memory_bytes are what there is.
 *
 * A table that cannot grow for want of memory goes on with longer buckets.
 */
#include "source/strings.h"

#include "base/alloc.h"
#include "base/fmt.h"
#include "base/rng.h"

#define BUCKETS_MIN 64u

void kvi_strings_init(
    struct kvi_strings *strings, const struct kvg_alloc *alloc, uint64_t seed)
{
    *strings = (struct kvi_strings){.alloc = alloc, .seed = kvi_mix64(seed ^ 0x5eed)};
}

static uint64_t fold(uint64_t a, uint64_t b)
{
    kvi_u128 product = (kvi_u128)a * b;

    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static uint64_t hash_of(const struct kvi_strings *strings, struct kvg_str text)
{
    const uint64_t odd = UINT64_C(0x9e3779b97f4a7c15);
    uint64_t hash = strings->seed ^ text.bytes;
    size_t i;
    uint64_t word = 0;

    for (i = 0; i + 8 <= text.bytes; i += 8) {
        memcpy(&word, text.data + i, 8);
        hash = fold(hash ^ word, odd ^ strings->seed);
    }
    word = 0;
    if (i < text.bytes)
        memcpy(&word, text.data + i, text.bytes - i);
    return fold(hash ^ word, odd ^ strings->seed);
}

static size_t entry_bytes(size_t text_bytes)
{
    return sizeof(struct kvi_string) + text_bytes;
}

static struct kvi_string **bucket_of(const struct kvi_strings *strings, uint64_t hash)
{
    return &strings->buckets[hash & (strings->bucket_count - 1)];
}

static void release_entry(struct kvi_strings *strings, struct kvi_string *entry)
{
    size_t bytes = entry_bytes(entry->bytes);

    strings->count--;
    strings->memory_bytes -= bytes;
    kvi_release_array(strings->alloc, entry, bytes, 1);
}

void kvi_strings_clear(struct kvi_strings *strings)
{
    size_t i;

    for (i = 0; i < strings->bucket_count; i++) {
        struct kvi_string *entry = strings->buckets[i];

        while (entry != NULL) {
            struct kvi_string *next = entry->next;

            release_entry(strings, entry);
            entry = next;
        }
    }
    kvi_release_array(strings->alloc, strings->buckets, strings->bucket_count,
        sizeof(strings->buckets[0]));
    strings->memory_bytes -= strings->bucket_count * sizeof(strings->buckets[0]);
    strings->buckets = NULL;
    strings->bucket_count = 0;
}

/* The link that points to the entry of `text`, or to the NULL where it would be. */
static struct kvi_string **find_link(
    const struct kvi_strings *strings, struct kvg_str text, uint64_t hash)
{
    struct kvi_string **link = bucket_of(strings, hash);

    while (*link != NULL) {
        const struct kvi_string *entry = *link;

        if (entry->hash == hash && entry->bytes == text.bytes &&
            memcmp(entry->text, text.data, text.bytes) == 0)
            break;
        link = &(*link)->next;
    }
    return link;
}

struct kvi_string *kvi_strings_find(
    const struct kvi_strings *strings, struct kvg_str text)
{
    return strings->count == 0 ? NULL : *find_link(strings, text, hash_of(strings, text));
}

/* Doubles the buckets.  False without memory. */
static bool grow(struct kvi_strings *strings)
{
    size_t old_count = strings->bucket_count;
    size_t new_count = old_count == 0 ? BUCKETS_MIN : old_count * 2;
    struct kvi_string **old = strings->buckets;
    struct kvi_string **buckets =
        kvi_alloc_array(strings->alloc, new_count, sizeof(buckets[0]));
    size_t i;

    if (buckets == NULL)
        return false;
    strings->buckets = buckets;
    strings->bucket_count = new_count;
    for (i = 0; i < old_count; i++) {
        struct kvi_string *entry = old[i];

        while (entry != NULL) {
            struct kvi_string *next = entry->next;
            struct kvi_string **bucket = bucket_of(strings, entry->hash);

            entry->next = *bucket;
            *bucket = entry;
            entry = next;
        }
    }
    kvi_release_array(strings->alloc, old, old_count, sizeof(old[0]));
    strings->memory_bytes += (new_count - old_count) * sizeof(buckets[0]);
    return true;
}

struct kvi_string *kvi_strings_put(struct kvi_strings *strings, struct kvg_str text)
{
    uint64_t hash = hash_of(strings, text);
    struct kvi_string **link;
    struct kvi_string *entry;

    if (text.bytes > UINT32_MAX)
        return NULL;
    if (strings->bucket_count == 0 && !grow(strings))
        return NULL;
    link = find_link(strings, text, hash);
    if (*link != NULL)
        return *link;
    entry = kvi_alloc_array_raw(strings->alloc, entry_bytes(text.bytes), 1);
    if (entry == NULL)
        return NULL;
    *entry = (struct kvi_string){.hash = hash, .bytes = (uint32_t)text.bytes};
    if (text.bytes != 0)
        memcpy(entry->text, text.data, text.bytes);
    *link = entry;
    strings->memory_bytes += entry_bytes(text.bytes);
    strings->count++;
    if (strings->count > strings->bucket_count)
        grow(strings);
    return entry;
}

bool kvi_strings_remove(struct kvi_strings *strings, struct kvg_str text)
{
    struct kvi_string **link;
    struct kvi_string *entry;

    if (strings->count == 0)
        return false;
    link = find_link(strings, text, hash_of(strings, text));
    entry = *link;
    if (entry == NULL)
        return false;
    *link = entry->next;
    release_entry(strings, entry);
    return true;
}

int kvi_strings_check(const struct kvi_strings *strings)
{
    size_t bytes = strings->bucket_count * sizeof(strings->buckets[0]);
    size_t count = 0;
    size_t i;

    for (i = 0; i < strings->bucket_count; i++) {
        const struct kvi_string *entry;

        for (entry = strings->buckets[i]; entry != NULL; entry = entry->next) {
            struct kvg_str text = {entry->text, entry->bytes};
            const struct kvi_string *other;

            if (entry->hash != hash_of(strings, text) ||
                bucket_of(strings, entry->hash) != &strings->buckets[i])
                return 1;
            for (other = entry->next; other != NULL; other = other->next) {
                if (kvi_str_equal((struct kvg_str){other->text, other->bytes}, text))
                    return 2;
            }
            bytes += entry_bytes(entry->bytes);
            count++;
        }
    }
    return count == strings->count && bytes == strings->memory_bytes ? 0 : 3;
}
