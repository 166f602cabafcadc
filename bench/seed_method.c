/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

#include "seed_method.h"

#include "base/hex.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define SHARDS 8u /* The client's map has 4 a core. */

struct entry {
    uint64_t hash; /* 0: empty. */
    char *text;
    uint32_t bytes;
    uint32_t verified;
    uint64_t generation;
};

struct shard {
    _Atomic uint32_t lock; /* Readers. */
    struct entry *entries;
    size_t capacity;
    size_t count;
};

struct set {
    struct shard shards[SHARDS];
    uint64_t key0;
    uint64_t key1;
    size_t text_bytes;
};

struct seed_method {
    struct set present;
    struct set groups;
    uint32_t rank_count;
};

static uint64_t rotate(uint64_t x, unsigned left)
{
    return x << left | x >> (64 - left);
}

#define SIP_ROUND(v)                          \
    do {                                      \
        (v)[0] += (v)[1];                     \
        (v)[1] = rotate((v)[1], 13) ^ (v)[0]; \
        (v)[0] = rotate((v)[0], 32);          \
        (v)[2] += (v)[3];                     \
        (v)[3] = rotate((v)[3], 16) ^ (v)[2]; \
        (v)[0] += (v)[3];                     \
        (v)[3] = rotate((v)[3], 21) ^ (v)[0]; \
        (v)[2] += (v)[1];                     \
        (v)[1] = rotate((v)[1], 17) ^ (v)[2]; \
        (v)[2] = rotate((v)[2], 32);          \
    } while (0)

/* SipHash with one round a word and three at the end.  Never 0. */
static uint64_t hash_text(const struct set *set, const char *text, size_t bytes)
{
    uint64_t v[4] = {set->key0 ^ UINT64_C(0x736f6d6570736575),
        set->key1 ^ UINT64_C(0x646f72616e646f6d),
        set->key0 ^ UINT64_C(0x6c7967656e657261),
        set->key1 ^ UINT64_C(0x7465646279746573)};
    uint64_t word = 0;
    size_t i;

    for (i = 0; i + 8 <= bytes; i += 8) {
        memcpy(&word, text + i, 8);
        v[3] ^= word;
        SIP_ROUND(v);
        v[0] ^= word;
    }
    word = 0;
    memcpy(&word, text + i, bytes - i);
    word |= (uint64_t)bytes << 56;
    v[3] ^= word;
    SIP_ROUND(v);
    v[0] ^= word;
    v[2] ^= 0xff;
    SIP_ROUND(v);
    SIP_ROUND(v);
    SIP_ROUND(v);
    word = v[0] ^ v[1] ^ v[2] ^ v[3];
    return word == 0 ? 1 : word;
}

static struct entry *probe(
    const struct shard *shard, uint64_t hash, const char *text, size_t bytes)
{
    size_t i = hash & (shard->capacity - 1);

    while (shard->entries[i].hash != 0) {
        struct entry *entry = &shard->entries[i];

        if (entry->hash == hash && entry->bytes == bytes &&
            memcmp(entry->text, text, bytes) == 0)
            return entry;
        i = (i + 1) & (shard->capacity - 1);
    }
    return &shard->entries[i];
}

static struct shard *shard_of(const struct set *set, uint64_t hash)
{
    return (struct shard *)(uintptr_t)&set->shards[hash >> 61];
}

static void grow(struct shard *shard)
{
    struct entry *old = shard->entries;
    size_t old_capacity = shard->capacity;
    size_t i;

    shard->capacity = old_capacity == 0 ? 64 : old_capacity * 2;
    shard->entries = calloc(shard->capacity, sizeof(*shard->entries));
    if (shard->entries == NULL)
        abort();
    for (i = 0; i < old_capacity; i++) {
        if (old[i].hash != 0)
            *probe(shard, old[i].hash, old[i].text, old[i].bytes) = old[i];
    }
    free(old);
}

static struct entry *put(struct set *set, const char *text, size_t bytes)
{
    uint64_t hash = hash_text(set, text, bytes);
    struct shard *shard = shard_of(set, hash);
    struct entry *entry;

    if ((shard->count + 1) * 8 > shard->capacity * 7)
        grow(shard);
    entry = probe(shard, hash, text, bytes);
    if (entry->hash == 0) {
        entry->hash = hash;
        entry->bytes = (uint32_t)bytes;
        entry->text = malloc(bytes);
        if (entry->text == NULL)
            abort();
        memcpy(entry->text, text, bytes);
        shard->count++;
        set->text_bytes += bytes;
    }
    return entry;
}

/* Looks an entry up under the shard's lock, as every access does. */
static struct entry *get(const struct set *set, const char *text, size_t bytes)
{
    uint64_t hash = hash_text(set, text, bytes);
    struct shard *shard = shard_of(set, hash);
    struct entry *entry;

    atomic_fetch_add_explicit(&shard->lock, 1, memory_order_acquire);
    entry = shard->capacity == 0 ? NULL : probe(shard, hash, text, bytes);
    if (entry != NULL && entry->hash == 0)
        entry = NULL;
    atomic_fetch_sub_explicit(&shard->lock, 1, memory_order_release);
    return entry;
}

/* "HEX_RANK_k" in memory of its own, as a string is. */
static char *object_key(const char *hex, uint32_t rank, char kind, size_t *bytes_out)
{
    char *text = malloc(80);
    char *at = text;

    if (text == NULL)
        abort();
    memcpy(at, hex, 64);
    at += 64;
    *at++ = '_';
    if (rank >= 10)
        *at++ = (char)('0' + rank / 10);
    *at++ = (char)('0' + rank % 10);
    *at++ = '_';
    *at++ = kind;
    *bytes_out = (size_t)(at - text);
    return text;
}

static char *group_id(const char *hex, size_t *bytes_out)
{
    char *text = malloc(15 + 64);

    if (text == NULL)
        abort();
    memcpy(text, "sglang-hicache:", 15);
    memcpy(text + 15, hex, 64);
    *bytes_out = 15 + 64;
    return text;
}

struct seed_method *seed_method_new(uint32_t rank_count)
{
    struct seed_method *seed = calloc(1, sizeof(*seed));

    if (seed == NULL)
        abort();
    seed->rank_count = rank_count;
    seed->present.key0 = seed->groups.key1 = UINT64_C(0x0123456789abcdef);
    seed->present.key1 = seed->groups.key0 = UINT64_C(0xfedcba9876543210);
    return seed;
}

static void free_set(struct set *set)
{
    size_t s;
    size_t i;

    for (s = 0; s < SHARDS; s++) {
        for (i = 0; i < set->shards[s].capacity; i++)
            free(set->shards[s].entries[i].text);
        free(set->shards[s].entries);
    }
}

void seed_method_free(struct seed_method *seed)
{
    free_set(&seed->present);
    free_set(&seed->groups);
    free(seed);
}

void seed_method_store(struct seed_method *seed, const struct kvg_key *key, bool labelled)
{
    char hex[64];
    char *text;
    size_t bytes;
    uint32_t i;

    kvi_hex_encode(key->bytes, KVG_KEY_BYTES, hex);
    for (i = 0; i < 2 * seed->rank_count; i++) {
        text = object_key(hex, i / 2, i % 2 == 0 ? 'k' : 'v', &bytes);
        put(&seed->present, text, bytes);
        free(text);
    }
    if (labelled) {
        text = group_id(hex, &bytes);
        put(&seed->groups, text, bytes)->verified = 0;
        free(text);
    }
}

/* All strings first, then all looks, as the client does it. */
static bool all_present(const struct seed_method *seed, const char *hex)
{
    size_t key_count = (size_t)2 * seed->rank_count;
    char **keys = malloc(key_count * sizeof(*keys));
    size_t *bytes = malloc(key_count * sizeof(*bytes));
    bool hit = true;
    size_t i;

    if (keys == NULL || bytes == NULL)
        abort();
    for (i = 0; i < key_count; i++)
        keys[i] = object_key(hex, (uint32_t)i / 2, i % 2 == 0 ? 'k' : 'v', &bytes[i]);
    for (i = 0; i < key_count && hit; i++)
        hit = get(&seed->present, keys[i], bytes[i]) != NULL;
    for (i = 0; i < key_count; i++)
        free(keys[i]);
    free(keys);
    free(bytes);
    return hit;
}

uint32_t seed_method_lookup(
    struct seed_method *seed, const struct kvg_key *keys, size_t key_count)
{
    uint32_t hits = 0;
    size_t page;

    for (page = 0; page < key_count; page++) {
        char *hex = malloc(64); /* Every page's hash is a string too. */
        size_t bytes;
        char *group;
        struct entry *state;
        bool hit;

        if (hex == NULL)
            abort();
        kvi_hex_encode(keys[page].bytes, KVG_KEY_BYTES, hex);
        group = group_id(hex, &bytes);
        state = get(&seed->groups, group, bytes);
        hit = state != NULL && state->verified;
        if (!hit) {
            hit = all_present(seed, hex);
            if (hit && state != NULL) {
                state = get(&seed->groups, group, bytes);
                state->verified = 1;
            }
        }
        hits += hit;
        free(group);
        free(hex);
    }
    return hits;
}

static size_t set_memory(const struct set *set)
{
    size_t bytes = set->text_bytes;
    size_t s;

    for (s = 0; s < SHARDS; s++)
        bytes += set->shards[s].capacity * sizeof(struct entry);
    return bytes;
}

size_t seed_method_memory(const struct seed_method *seed)
{
    return set_memory(&seed->present) + set_memory(&seed->groups);
}
