/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* table.c -- finding, adding and removing pages in the table.
 *
 *     head ->  first bucket | second bucket, of the same 4 KiB | strays: first + 1, + 2, ...
 *
 * A new page takes a free slot of its first bucket, else of its second, else one whose page can
 * move to its own second bucket, else it strays: to the first bucket behind its first with a
 * free slot, and its first bucket is marked.  So a search reads two buckets; it goes on only
 * from a marked one, up to a bucket with an empty slot.  At 80 % fill five of six pages lie in
 * their first bucket and one of 400 is a stray; of the latest to come, one of 30.
 *
 * A slot that becomes free in a bucket without an empty slot is marked as gone instead, for
 * strays may lie behind it; gone slots are taken again by new pages and disappear, with the marks,
 * when the segment is rebuilt (segment.c).
 *
 * A page that moves is in its new slot before it leaves the old one, and it moves only to where
 * a reader looks later: so a reader that looks for it finds it.
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
static inline unsigned match_heads(struct kvi_bucket *bucket, uint64_t wanted)
{
    return (unsigned)(kvi_own(&bucket->head[0]) == wanted) |
           (unsigned)(kvi_own(&bucket->head[1]) == wanted) << 1 |
           (unsigned)(kvi_own(&bucket->head[2]) == wanted) << 2 |
           (unsigned)(kvi_own(&bucket->head[3]) == wanted) << 3;
}

void kvi_presence_table_prefetch(struct kvg_presence *index, uint64_t head)
{
    uint64_t entry = kvi_entry_of(index, head);
    struct kvi_segment *segment = kvi_entry_segment(entry);
    uint32_t first = kvi_first_bucket(head, kvi_entry_buckets(entry));
    const char *bucket = (const char *)(kvi_buckets(segment) + first);
    const char *second =
        (const char *)(kvi_buckets(segment) + kvi_second_bucket(head, first));

    __builtin_prefetch(bucket, 1);
    __builtin_prefetch(bucket + sizeof(struct kvi_bucket) / 2, 1);
    __builtin_prefetch(second, 1);
    __builtin_prefetch(second + sizeof(struct kvi_bucket) / 2, 1);
    __builtin_prefetch(segment, 1); /* Its counts, should the page be new. */
}

/* Whether a page is in a bucket; its slot in *out. */
static inline bool is_in(
    struct kvi_bucket *bucket, const struct kvi_page *page, struct kvi_slot *out)
{
    unsigned matches = match_heads(bucket, page->head);

    out->bucket = bucket;
    for (; matches != 0; matches &= matches - 1) {
        out->at = (uint32_t)__builtin_ctz(matches);
        if (kvi_own(&bucket->body[out->at]) == page->body &&
            kvi_slot_space(out) == page->space->id)
            return true;
    }
    return false;
}

bool kvi_presence_table_find(
    struct kvg_presence *index, const struct kvi_page *page, struct kvi_slot *out)
{
    uint64_t entry = kvi_entry_of(index, page->head);
    struct kvi_bucket *buckets = kvi_buckets(kvi_entry_segment(entry));
    uint32_t count = kvi_entry_buckets(entry);
    uint32_t b = kvi_first_bucket(page->head, count);
    uint32_t seen;

    out->segment = kvi_entry_segment(entry);
    if (is_in(buckets + b, page, out) ||
        is_in(buckets + kvi_second_bucket(page->head, b), page, out))
        return true;
    if (!(atomic_load_explicit(&buckets[b].meta[0], memory_order_relaxed) & META_STRAYED))
        return false;
    for (seen = 1; seen < count && match_heads(buckets + b, HEAD_EMPTY) == 0; seen++) {
        b = b + 1 == count ? 0 : b + 1;
        if (is_in(buckets + b, page, out))
            return true;
    }
    return false;
}

static bool is_free(const struct kvi_slot *slot)
{
    return kvi_own(&slot->bucket->head[slot->at]) < HEAD_MIN;
}

/* A free slot of a bucket: empty or gone. */
static bool find_free(
    struct kvi_segment *segment, struct kvi_bucket *bucket, struct kvi_slot *out)
{
    *out = (struct kvi_slot){segment, bucket, 0};
    while (out->at < BUCKET_SLOTS && !is_free(out))
        out->at++;
    return out->at < BUCKET_SLOTS;
}

/* Where a page can go. */
struct place {
    struct kvi_slot slot;
    bool moves; /* First the page that is there moves to `free`. */
    bool strays;
    struct kvi_slot free; /* The slot that will be used up. */
};

/* Looks in a bucket for a page that could move to its second bucket. */
static bool find_mover(
    struct kvi_segment *segment, uint32_t b, uint32_t count, struct place *out)
{
    struct kvi_bucket *buckets = kvi_buckets(segment);
    uint32_t at;

    for (at = 0; at < BUCKET_SLOTS; at++) {
        uint64_t head = kvi_own(&buckets[b].head[at]);

        if (kvi_first_bucket(head, count) != b)
            continue;
        if (find_free(segment, buckets + kvi_second_bucket(head, b), &out->free)) {
            out->slot = (struct kvi_slot){segment, buckets + b, at};
            out->moves = true;
            return true;
        }
    }
    return false;
}

static bool find_place(struct kvi_segment *segment, uint64_t head, struct place *out)
{
    struct kvi_bucket *buckets = kvi_buckets(segment);
    uint32_t count = kvi_bucket_count(segment);
    uint32_t first = kvi_first_bucket(head, count);
    uint32_t second = kvi_second_bucket(head, first);
    uint32_t b = first;
    uint32_t seen;

    out->moves = false;
    out->strays = false;
    if (find_free(segment, buckets + first, &out->free) ||
        find_free(segment, buckets + second, &out->free)) {
        out->slot = out->free;
        return true;
    }
    if (find_mover(segment, first, count, out) || find_mover(segment, second, count, out))
        return true;
    for (seen = 1; seen < count; seen++) {
        b = b + 1 == count ? 0 : b + 1;
        if (find_free(segment, buckets + b, &out->free)) {
            out->slot = out->free;
            out->strays = true;
            return true;
        }
    }
    return false;
}

static uint8_t *tail_of(const struct kvi_slot *slot)
{
    size_t bucket = (size_t)(slot->bucket - kvi_buckets(slot->segment));

    return slot->segment->tails + (bucket * BUCKET_SLOTS + slot->at) * TAIL_BYTES;
}

/* What a slot holds. */
struct holding {
    uint64_t head;
    uint64_t body;
    uint64_t parts;
    uint32_t space;
    uint32_t heat;
    const uint8_t *tail;
};

/* A slot changes its owner between begin_change() and end_change(). */
static uint32_t begin_change(const struct kvi_slot *slot, uint32_t space)
{
    _Atomic uint32_t *word = &slot->bucket->meta[slot->at];
    uint32_t meta = atomic_load_explicit(word, memory_order_relaxed);
    uint32_t version = (meta + 1) & META_VERSION_MASK;

    KVI_ASSERT(version & 1);
    meta = space << META_SPACE_SHIFT | (meta & META_STRAYED) | version;
    atomic_store_explicit(word, meta, memory_order_release);
    return meta;
}

static void end_change(const struct kvi_slot *slot, uint32_t meta)
{
    meta = (meta & ~META_VERSION_MASK) | ((meta + 1) & META_VERSION_MASK);
    atomic_store_explicit(&slot->bucket->meta[slot->at], meta, memory_order_release);
}

static void write_slot(const struct kvi_slot *slot, const struct holding *holding)
{
    struct kvi_bucket *bucket = slot->bucket;
    uint32_t at = slot->at;
    uint32_t meta;

    if (kvi_own(&bucket->head[at]) == HEAD_GONE)
        slot->segment->gone--;
    meta = begin_change(slot, holding->space);
    kvi_put(&bucket->parts[at], holding->parts);
    kvi_put(&bucket->body[at], holding->body);
    atomic_store_explicit(&bucket->heat[at], holding->heat, memory_order_release);
    kvi_put(&bucket->head[at], holding->head);
    end_change(slot, meta);
    if (slot->segment->tails != NULL)
        memcpy(tail_of(slot), holding->tail, TAIL_BYTES);
}

static struct holding holding_of(const struct kvi_slot *slot)
{
    return (struct holding){.head = kvi_own(&slot->bucket->head[slot->at]),
        .body = kvi_own(&slot->bucket->body[slot->at]),
        .parts = kvi_slot_parts(slot),
        .space = kvi_slot_space(slot),
        .heat = atomic_load_explicit(&slot->bucket->heat[slot->at], memory_order_relaxed),
        .tail = slot->segment->tails != NULL ? tail_of(slot) : NULL};
}

/* Puts a page where there is a place for it. */
static void put_in_place(const struct place *place, const struct holding *holding)
{
    struct kvi_segment *segment = place->slot.segment;

    if (place->moves) {
        struct holding mover = holding_of(&place->slot);

        write_slot(&place->free, &mover);
    }
    if (place->strays) {
        uint32_t first = kvi_first_bucket(holding->head, kvi_bucket_count(segment));
        _Atomic uint32_t *mark = &kvi_buckets(segment)[first].meta[0];

        atomic_store_explicit(mark,
            atomic_load_explicit(mark, memory_order_relaxed) | META_STRAYED,
            memory_order_release);
    }
    write_slot(&place->slot, holding);
    segment->live++;
}

void kvi_presence_table_copy(const struct kvi_slot *from, struct kvi_segment *to)
{
    struct holding holding = holding_of(from);
    struct place place;
    bool found = find_place(to, holding.head, &place);

    KVI_ASSERT(found);
    put_in_place(&place, &holding);
}

/* The page as a slot without parts holds it. */
static struct holding holding_for(struct kvg_presence *index, const struct kvi_page *page)
{
    uint32_t now = atomic_load_explicit(&index->now, memory_order_relaxed);
    uint32_t depth =
        index->arrivals < HEAT_DEPTH_MAX ? index->arrivals++ : HEAT_DEPTH_MAX;

    return (struct holding){.head = page->head,
        .body = page->body,
        .space = page->space->id,
        .heat = now << HEAT_DEPTH_BITS | depth,
        .tail = page->tail};
}

kvg_err kvi_presence_table_add(
    struct kvg_presence *index, const struct kvi_page *page, struct kvi_slot *out)
{
    bool made_room = false;
    kvg_err err = KVG_OK;

    for (;;) {
        struct kvi_segment *segment = kvi_presence_segment_of(index, page->head);
        uint32_t used_max = kvi_slot_count(segment) / USED_DENOMINATOR * USED_NUMERATOR;
        struct place place;
        bool found = find_place(segment, page->head, &place);

        if (found && (made_room || segment->live + segment->gone < used_max ||
                         kvi_own(&place.free.bucket->head[place.free.at]) == HEAD_GONE)) {
            struct holding holding = holding_for(index, page);

            put_in_place(&place, &holding);
            *out = place.slot;
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
    bool has_empty = match_heads(bucket, HEAD_EMPTY) != 0;
    uint32_t meta = begin_change(slot, kvi_slot_space(slot));

    kvi_put(&bucket->parts[slot->at], 0);
    kvi_put(&bucket->head[slot->at], has_empty ? HEAD_EMPTY : HEAD_GONE);
    end_change(slot, meta);
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
