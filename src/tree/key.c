/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* key.c -- keys, and the numbers of namespaces.
 *
 * A key is borrowed tokens and a namespace.  Of pairs, n tokens make n - 1 units, and units
 * [a, b) are tokens [a, b + 1): neighbouring slices share a token.
 *
 * Nodes name their namespace by a number: 0 is the plain one, the others live as long as a node
 * has them.
 *
 *     buckets -> item -> item          hash of (kind and bytes of both strings)
 */
#include "tree/tree.h"

#include "base/rng.h"

/* ---- Keys ---------------------------------------------------------------------------------- */

size_t kvg_tree_key_units(const struct kvg_tree_key *key)
{
    if (!key->bigram)
        return key->token_count;
    return key->token_count == 0 ? 0 : key->token_count - 1;
}

kvg_err kvg_tree_key_slice(const struct kvg_tree_key *key, size_t start, size_t end,
    struct kvg_tree_key *out, struct kvg_error *error)
{
    size_t units = kvg_tree_key_units(key);

    *out = (struct kvg_tree_key){0};
    if (start > end || end > units)
        return kvi_fail(error, KVG_EINVAL, "key", "key slice out of range");
    *out = *key;
    out->tokens = key->tokens == NULL ? NULL : key->tokens + start;
    out->token_count = end - start;
    if (key->bigram && out->token_count != 0)
        out->token_count++;
    return KVG_OK;
}

struct kvg_tree_key kvg_tree_key_align(const struct kvg_tree_key *key, uint32_t page_size)
{
    struct kvg_tree_key out = *key;
    size_t units = kvg_tree_key_units(key);

    units -= page_size == 0 ? 0 : units % page_size;
    out.token_count = units == 0 || !key->bigram ? units : units + 1;
    return out;
}

static bool same_string(struct kvg_str a, struct kvg_str b)
{
    return (a.data == NULL) == (b.data == NULL) && kvi_str_equal(a, b);
}

/* An empty salt is no salt. */
static struct kvg_namespace normal(const struct kvg_namespace *name)
{
    struct kvg_namespace out = *name;

    if (out.cache_salt.bytes == 0)
        out.cache_salt = (struct kvg_str){NULL, 0};
    if (out.extra_key.data == NULL)
        out.extra_key.bytes = 0;
    return out;
}

kvg_err kvg_tree_key_match(const struct kvg_tree_key *key,
    const struct kvg_tree_key *other, size_t offset, uint32_t page_size, size_t *out,
    struct kvg_error *error)
{
    struct kvg_namespace a = normal(&key->space);
    struct kvg_namespace b = normal(&other->space);

    *out = 0;
    if (!same_string(a.extra_key, b.extra_key))
        return kvi_fail(error, KVG_EMISMATCH, "key.extra_key",
            "RadixKey operations require matching extra_key");
    if (!same_string(a.cache_salt, b.cache_salt))
        return kvi_fail(error, KVG_EMISMATCH, "key.cache_salt",
            "RadixKey operations require matching cache_salt");
    if (key->bigram != other->bigram)
        return kvi_fail(error, KVG_EMISMATCH, "key.bigram",
            "RadixKey operations require matching bigram modes");
    size_t units = kvg_tree_key_units(key);
    size_t rest = kvg_tree_key_units(other);
    if (offset > rest || page_size == 0) {
        char message[80];
        struct kvi_text text;
        kvi_text_init(&text, message, sizeof(message));
        kvi_text_str(&text, "RadixKey offset out of range: ");
        kvi_text_u64(&text, offset);
        return kvi_fail(error, KVG_EINVAL, "key.offset", message);
    }
    rest -= offset;
    if (units > rest)
        units = rest;
    size_t equal = 0;
    size_t raw = units == 0 || !key->bigram ? units : units + 1;
    while (equal < raw && key->tokens[equal] == other->tokens[offset + equal])
        equal++;
    if (key->bigram && equal != 0)
        equal--;
    *out = equal - equal % page_size;
    return KVG_OK;
}

uint64_t kvi_tree_key(
    const struct kvg_tree *tree, const struct kvg_tree_key *key, struct kvg_tree_key *out)
{
    *out = *key;
    out->bigram = tree->eagle;
    *out = kvg_tree_key_align(out, tree->options.page_size);
    return kvg_tree_key_units(out);
}

/* ---- Namespaces ---------------------------------------------------------------------------- */

static uint64_t hash_string(uint64_t hash, struct kvg_str text)
{
    hash = kvi_mix64(hash ^ (text.data == NULL ? UINT64_MAX : text.bytes));
    for (size_t i = 0; i < text.bytes; i++)
        hash = (hash ^ (uint8_t)text.data[i]) * UINT64_C(0x100000001b3);
    return kvi_mix64(hash);
}

static bool is_plain(const struct kvg_namespace *name)
{
    return name->extra_key.data == NULL && name->cache_salt.data == NULL;
}

bool kvi_space_find(
    const struct kvg_tree *tree, const struct kvg_namespace *name, uint32_t *out)
{
    struct kvg_namespace wanted = normal(name);
    const struct kvi_spaces *spaces = &tree->spaces;

    *out = 0;
    if (is_plain(&wanted))
        return true;
    if (spaces->bucket_count == 0)
        return false;
    uint64_t hash =
        hash_string(hash_string(tree->options.seed, wanted.extra_key), wanted.cache_salt);
    for (uint32_t i = spaces->buckets[hash & (spaces->bucket_count - 1)]; i != 0;
         i = spaces->items[i].next) {
        const struct kvi_space *space = &spaces->items[i];
        if (space->hash == hash && same_string(space->name.extra_key, wanted.extra_key) &&
            same_string(space->name.cache_salt, wanted.cache_salt)) {
            *out = i;
            return true;
        }
    }
    return false;
}

static kvg_err grow_spaces(struct kvg_tree *tree)
{
    struct kvi_spaces *spaces = &tree->spaces;
    uint32_t wanted = spaces->capacity == 0 ? 8 : spaces->capacity * 2;
    uint32_t *buckets = kvi_alloc_array(&tree->alloc, wanted, sizeof(*buckets));
    void *items = spaces->items;

    if (buckets == NULL)
        return KVG_ENOMEM;
    if (!kvi_resize_array(
            &tree->alloc, &items, spaces->capacity, wanted, sizeof(*spaces->items))) {
        kvi_release_array(&tree->alloc, buckets, wanted, sizeof(*buckets));
        return KVG_ENOMEM;
    }
    kvi_release_array(
        &tree->alloc, spaces->buckets, spaces->bucket_count, sizeof(*buckets));
    spaces->items = items;
    spaces->buckets = buckets;
    spaces->bucket_count = wanted;
    spaces->capacity = wanted;
    for (uint32_t i = 1; i < spaces->count; i++) {
        if (spaces->items[i].refs == 0)
            continue;
        uint32_t *bucket = &buckets[spaces->items[i].hash & (wanted - 1)];
        spaces->items[i].next = *bucket;
        *bucket = i;
    }
    return KVG_OK;
}

static void free_space_strings(struct kvg_tree *tree, struct kvi_space *space)
{
    kvi_release_string(&tree->alloc, (char *)(uintptr_t)space->name.extra_key.data,
        space->name.extra_key.bytes);
    kvi_release_string(&tree->alloc, (char *)(uintptr_t)space->name.cache_salt.data,
        space->name.cache_salt.bytes);
    space->name = (struct kvg_namespace){0};
}

/* Copies the strings and derives the prior keys. */
static kvg_err fill_space(
    struct kvg_tree *tree, struct kvi_space *space, const struct kvg_namespace *name)
{
    static const char salt_tag[] = "sglang-cache-salt-v1";

    *space = (struct kvi_space){.refs = 1};
    if (name->extra_key.data != NULL) {
        space->name.extra_key.data = kvi_copy_string(&tree->alloc, name->extra_key);
        if (space->name.extra_key.data == NULL)
            return KVG_ENOMEM;
        space->name.extra_key.bytes = name->extra_key.bytes;
    }
    if (name->cache_salt.data != NULL) {
        space->name.cache_salt.data = kvi_copy_string(&tree->alloc, name->cache_salt);
        if (space->name.cache_salt.data == NULL)
            return KVG_ENOMEM;
        space->name.cache_salt.bytes = name->cache_salt.bytes;
        size_t bytes = sizeof(salt_tag) + name->cache_salt.bytes;
        char *message = kvi_alloc_array_raw(&tree->alloc, bytes, 1);
        if (message == NULL)
            return KVG_ENOMEM;
        /* The tag's closing zero belongs to the message. */
        memcpy(message, salt_tag, sizeof(salt_tag));
        memcpy(message + sizeof(salt_tag), name->cache_salt.data, name->cache_salt.bytes);
        kvg_sha256(message, bytes, space->event_prior.bytes);
        kvi_release_array(&tree->alloc, message, bytes, 1);
        space->has_event_prior = true;
    }
    space->has_prior = kvg_namespace_prior(name, &space->prior);
    return KVG_OK;
}

kvg_err kvi_space_hold(
    struct kvg_tree *tree, const struct kvg_namespace *name, uint32_t *out)
{
    struct kvi_spaces *spaces = &tree->spaces;
    struct kvg_namespace wanted = normal(name);

    if (kvi_space_find(tree, &wanted, out)) {
        kvi_space_hold_again(tree, *out);
        return KVG_OK;
    }
    if (spaces->free == 0 && spaces->count >= spaces->capacity &&
        grow_spaces(tree) != KVG_OK)
        return KVG_ENOMEM;
    if (spaces->count == 0)
        spaces->items[spaces->count++] = (struct kvi_space){0}; /* The plain one. */
    uint32_t index = spaces->free != 0 ? spaces->free : spaces->count;
    uint32_t next_free = spaces->free != 0 ? spaces->items[index].next : 0;
    struct kvi_space made;
    if (fill_space(tree, &made, &wanted) != KVG_OK) {
        free_space_strings(tree, &made);
        return KVG_ENOMEM;
    }
    if (index == spaces->count)
        spaces->count++;
    spaces->free = next_free;
    made.hash =
        hash_string(hash_string(tree->options.seed, wanted.extra_key), wanted.cache_salt);
    uint32_t *bucket = &spaces->buckets[made.hash & (spaces->bucket_count - 1)];
    made.next = *bucket;
    *bucket = index;
    spaces->items[index] = made;
    *out = index;
    return KVG_OK;
}

void kvi_space_hold_again(struct kvg_tree *tree, uint32_t space)
{
    if (space != 0)
        tree->spaces.items[space].refs++;
}

void kvi_space_drop(struct kvg_tree *tree, uint32_t space)
{
    struct kvi_spaces *spaces = &tree->spaces;

    if (space == 0 || --spaces->items[space].refs != 0)
        return;
    uint32_t *link =
        &spaces->buckets[spaces->items[space].hash & (spaces->bucket_count - 1)];
    while (*link != space)
        link = &spaces->items[*link].next;
    *link = spaces->items[space].next;
    free_space_strings(tree, &spaces->items[space]);
    spaces->items[space].next = spaces->free;
    spaces->free = space;
}

void kvi_spaces_fini(struct kvg_tree *tree)
{
    struct kvi_spaces *spaces = &tree->spaces;

    for (uint32_t i = 1; i < spaces->count; i++)
        free_space_strings(tree, &spaces->items[i]);
    kvi_release_array(
        &tree->alloc, spaces->items, spaces->capacity, sizeof(*spaces->items));
    kvi_release_array(
        &tree->alloc, spaces->buckets, spaces->bucket_count, sizeof(*spaces->buckets));
    *spaces = (struct kvi_spaces){0};
}
