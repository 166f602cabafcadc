/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* table.c -- finding, adding and removing pages in the table.
 *
 * A page lies in the first bucket that had a free slot when it came, counted from its own.  So a
 * search may stop at the first bucket with an empty slot.  A slot that becomes free in a bucket
 * without an empty slot is marked as gone instead, for others may lie behind it; gone slots are
 * taken again by new pages and disappear when the segment is rebuilt (segment.c).
 *
 * Every change of a slot's owner makes its version odd first and even again last; all stores
 * release, so a reader that sees any of the new words sees the odd version too.
 */
#include "presence/index.h"

/* New pages go to empty slots up to this part of a segment. */
#define USED_NUMERATOR 27u
#define USED_DENOMINATOR 32u

kvg_err kvi_presence_table_init(struct kvg_presence *index)
{
    size_t bytes = sizeof(struct kvi_directory) + sizeof(_Atomic uint64_t);
    struct kvi_directory *directory;
    struct kvi_segment *segment;
    kvg_err err = kvi_presence_segment_new(index, UNITS_MIN, 0, 0, true, &segment);

    if (err != KVG_OK)
        return err;
    directory = kvi_alloc_array(&index->alloc, bytes, 1);
    if (directory == NULL) {
        kvi_presence_segment_release(index, segment);
        return KVG_ENOMEM;
    }
    kvi_put(&directory->entries[0], (uint64_t)(uintptr_t)segment | segment->units);
    atomic_store_explicit(&index->directory, directory, memory_order_seq_cst);
    return KVG_OK;
}

static void release_records(struct kvg_presence *index, struct kvi_segment *segment)
{
    uint32_t i;

    for (i = 0; i < kvi_slot_count(segment); i++) {
        struct kvi_bucket *bucket = kvi_buckets(segment) + i / BUCKET_SLOTS;
        uint64_t parts = kvi_own(&bucket->parts[i % BUCKET_SLOTS]);

        if (kvi_own(&bucket->head[i % BUCKET_SLOTS]) >= HEAD_MIN && parts & PARTS_WIDE)
            kvi_presence_record_release(index, kvi_record_of(parts));
    }
}

void kvi_presence_table_fini(struct kvg_presence *index)
{
    struct kvi_directory *directory =
        atomic_load_explicit(&index->directory, memory_order_relaxed);
    uint64_t i;

    if (directory == NULL)
        return;
    for (i = 0; i < UINT64_C(1) << directory->depth;) {
        struct kvi_segment *segment = kvi_entry_segment(kvi_own(&directory->entries[i]));

        i += UINT64_C(1) << (directory->depth - segment->depth);
        release_records(index, segment);
        kvi_presence_segment_release(index, segment);
    }
    kvi_release_array(&index->alloc, directory,
        sizeof(*directory) + (sizeof(_Atomic uint64_t) << directory->depth), 1);
}

/* Which of a bucket's slots have this head, as bits; no branch, for where it lies is random. */
static inline unsigned match_heads(
    struct kvi_bucket *bucket, uint64_t wanted, bool *has_empty)
{
    uint64_t a = kvi_own(&bucket->head[0]);
    uint64_t b = kvi_own(&bucket->head[1]);
    uint64_t c = kvi_own(&bucket->head[2]);
    uint64_t d = kvi_own(&bucket->head[3]);

    *has_empty =
        (a == HEAD_EMPTY) | (b == HEAD_EMPTY) | (c == HEAD_EMPTY) | (d == HEAD_EMPTY);
    return (unsigned)(a == wanted) | (unsigned)(b == wanted) << 1 |
           (unsigned)(c == wanted) << 2 | (unsigned)(d == wanted) << 3;
}

void kvi_presence_table_prefetch(struct kvg_presence *index, uint64_t head)
{
    uint64_t entry = kvi_entry_of(index, head);
    struct kvi_segment *segment = kvi_entry_segment(entry);
    const char *bucket = (const char *)(kvi_buckets(segment) +
                                        kvi_first_bucket(head, kvi_entry_buckets(entry)));

    __builtin_prefetch(bucket, 1);
    __builtin_prefetch(bucket + sizeof(struct kvi_bucket) / 2, 1);
    __builtin_prefetch(segment, 1); /* Its counts, should the page be new. */
}

bool kvi_presence_table_find(
    struct kvg_presence *index, const struct kvi_page *page, struct kvi_slot *out)
{
    uint64_t entry = kvi_entry_of(index, page->head);
    uint32_t count = kvi_entry_buckets(entry);
    uint32_t b = kvi_first_bucket(page->head, count);
    uint32_t seen;

    out->segment = kvi_entry_segment(entry);
    for (seen = 0; seen < count; seen++) {
        bool has_empty;
        unsigned matches;

        out->bucket = kvi_buckets(out->segment) + b;
        matches = match_heads(out->bucket, page->head, &has_empty);
        for (; matches != 0; matches &= matches - 1) {
            out->at = (uint32_t)__builtin_ctz(matches);
            if (kvi_own(&out->bucket->body[out->at]) == page->body &&
                kvi_slot_space(out) == page->space->id)
                return true;
        }
        if (has_empty)
            return false;
        b = b + 1 == count ? 0 : b + 1;
    }
    return false;
}

/* The first slot that is free for a head: empty or gone. */
static bool find_free(struct kvi_segment *segment, uint64_t head, struct kvi_slot *out)
{
    uint32_t count = kvi_bucket_count(segment);
    uint32_t b = kvi_first_bucket(head, count);
    uint32_t seen;

    for (seen = 0; seen < count; seen++) {
        struct kvi_bucket *bucket = kvi_buckets(segment) + b;
        uint32_t at;

        for (at = 0; at < BUCKET_SLOTS; at++)
            if (kvi_own(&bucket->head[at]) < HEAD_MIN) {
                *out = (struct kvi_slot){segment, bucket, at};
                return true;
            }
        b = b + 1 == count ? 0 : b + 1;
    }
    return false;
}

static uint32_t begin_change(const struct kvi_slot *slot)
{
    _Atomic uint32_t *meta = &slot->bucket->meta[slot->at];
    uint32_t version =
        (atomic_load_explicit(meta, memory_order_relaxed) + 1) & META_VERSION_MASK;

    KVI_ASSERT(version & 1);
    return version;
}

static uint8_t *tail_of(const struct kvi_slot *slot)
{
    size_t bucket = (size_t)(slot->bucket - kvi_buckets(slot->segment));

    return slot->segment->tails + (bucket * BUCKET_SLOTS + slot->at) * TAIL_BYTES;
}

/* Takes a free slot for a page. */
static void take_slot(
    struct kvg_presence *index, const struct kvi_slot *slot, const struct kvi_page *page)
{
    struct kvi_bucket *bucket = slot->bucket;
    uint32_t at = slot->at;
    uint32_t space = page->space->id << META_VERSION_BITS;
    uint32_t version = begin_change(slot);
    uint32_t now = atomic_load_explicit(&index->now, memory_order_relaxed);
    uint32_t depth =
        index->arrivals < HEAT_DEPTH_MAX ? index->arrivals++ : HEAT_DEPTH_MAX;

    if (kvi_own(&bucket->head[at]) == HEAD_GONE)
        slot->segment->gone--;
    slot->segment->live++;
    atomic_store_explicit(&bucket->meta[at], space | version, memory_order_release);
    kvi_put(&bucket->parts[at], 0);
    kvi_put(&bucket->body[at], page->body);
    atomic_store_explicit(
        &bucket->heat[at], now << HEAT_DEPTH_BITS | depth, memory_order_release);
    kvi_put(&bucket->head[at], page->head);
    atomic_store_explicit(&bucket->meta[at], space | ((version + 1) & META_VERSION_MASK),
        memory_order_release);
    if (slot->segment->tails != NULL)
        memcpy(tail_of(slot), page->tail, TAIL_BYTES);
}

kvg_err kvi_presence_table_add(
    struct kvg_presence *index, const struct kvi_page *page, struct kvi_slot *out)
{
    bool made_room = false;
    kvg_err err = KVG_OK;

    for (;;) {
        struct kvi_segment *segment = kvi_presence_segment_of(index, page->head);
        uint32_t used_max = kvi_slot_count(segment) / USED_DENOMINATOR * USED_NUMERATOR;
        bool found = find_free(segment, page->head, out);

        if (found && (made_room || segment->live + segment->gone < used_max ||
                         kvi_own(&out->bucket->head[out->at]) == HEAD_GONE)) {
            take_slot(index, out, page);
            return KVG_OK;
        }
        if (made_room)
            return err != KVG_OK ? err : KVG_ELIMIT;
        made_room = true;
        err = kvi_presence_segment_make_room(index, page->head);
    }
}

void kvi_presence_table_remove(struct kvg_presence *index, const struct kvi_slot *slot)
{
    struct kvi_bucket *bucket = slot->bucket;
    uint64_t parts = kvi_slot_parts(slot);
    uint32_t space = kvi_slot_space(slot) << META_VERSION_BITS;
    uint32_t version = begin_change(slot);
    bool has_empty = false;
    uint32_t at;

    for (at = 0; at < BUCKET_SLOTS; at++)
        has_empty |= kvi_own(&bucket->head[at]) == HEAD_EMPTY;
    atomic_store_explicit(&bucket->meta[slot->at], space | version, memory_order_release);
    kvi_put(&bucket->parts[slot->at], 0);
    kvi_put(&bucket->head[slot->at], has_empty ? HEAD_EMPTY : HEAD_GONE);
    atomic_store_explicit(&bucket->meta[slot->at],
        space | ((version + 1) & META_VERSION_MASK), memory_order_release);
    slot->segment->live--;
    slot->segment->gone += has_empty ? 0 : 1;
    if (parts & PARTS_WIDE)
        kvi_presence_retire_record(index, kvi_record_of(parts));
}

uint64_t kvi_presence_table_visit(struct kvg_presence *index, uint64_t head,
    void (*visit)(struct kvg_presence *index, struct kvi_slot *slot, void *context),
    void *context)
{
    struct kvi_segment *segment = kvi_presence_segment_of(index, head);
    struct kvi_slot slot = {.segment = segment};
    uint32_t i;

    for (i = 0; i < kvi_slot_count(segment); i++) {
        slot.bucket = kvi_buckets(segment) + i / BUCKET_SLOTS;
        slot.at = i % BUCKET_SLOTS;
        if (kvi_own(&slot.bucket->head[slot.at]) >= HEAD_MIN)
            visit(index, &slot, context);
    }
    return kvi_segment_behind(segment);
}

uint32_t kvi_presence_table_segment_slots(struct kvg_presence *index, uint64_t head)
{
    return kvi_slot_count(kvi_presence_segment_of(index, head));
}

/* kvi_mix64() backwards: each of its steps can be undone. */
static uint64_t unmix(uint64_t x)
{
    x ^= x >> 31 ^ x >> 62;
    x *= UINT64_C(0x319642b2d24d8ec3);
    x ^= x >> 27 ^ x >> 54;
    x *= UINT64_C(0x96de1b173f119089);
    return x ^ x >> 30 ^ x >> 60;
}

struct kvg_key kvi_presence_table_key(
    struct kvg_presence *index, const struct kvi_slot *slot)
{
    const struct kvi_space *space = index->spaces[kvi_slot_space(slot)];
    uint64_t word = unmix(kvi_own(&slot->bucket->head[slot->at])) ^ space->salt;
    uint64_t body = kvi_own(&slot->bucket->body[slot->at]);
    struct kvg_key key = {{0}};

    memcpy(key.bytes, &word, sizeof(word));
    memcpy(key.bytes + 8, &body, sizeof(body));
    if (slot->segment->tails != NULL)
        memcpy(key.bytes + 16, tail_of(slot), TAIL_BYTES);
    return key;
}
