/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* index.h -- the presence index from the inside: table, records, spaces, passes, seats.
 *
 *     head = mix(first 8 key bytes ^ the space's secret salt)
 *
 *     directory            segment (1,024 to 1,792 slots)
 *     +------+             +--------+----------+----------+----
 *     | 00.. | ----------> | header | bucket 0 | bucket 1 | ...      then the key tails, if kept
 *     | 01.. |             +--------+----------+----------+----
 *     +------+                      bucket: 4 slots in two cache lines
 *        ^                          +-----------------------+------------------------+
 *        top bits of head           | head x 4 | body x 4   | parts x 4 | meta, heat |
 *                                   +-----------------------+------------------------+
 *
 * A page lies in one of two buckets that its head names, nearly always; table.c says what happens
 * when both are full.  A slot is one page: `head` and `body` are its first 16 key bytes, `parts`
 * says what is where, `meta` which space it belongs to and a version, `heat` when it was asked
 * for last and how deep in its chain it lies.  The first line alone tells which slot it is, if
 * any.
 *
 *     parts, up to 16 parts:  | 0 | pass 15 | settled 16 | disk 16 | cpu 16 |
 *     parts, more:            | 1 | address of a record                     |
 *
 * Invariants, checked by kvi_presence_check():
 *
 *     P1  The segment of a directory entry covers the entry's range of heads, and every entry of
 *         that range names it.
 *     P2  A page is in the segment of its head, in its first or its second bucket; or it is a
 *         stray: its first bucket is marked, and no bucket from there to its own has an empty slot
 *         (a search stops there).
 *     P3  A page is in the table once.
 *     P4  Versions and record sequences are even between calls.
 *     P5  The counts of a segment, of a space and of the index are those of the slots.
 *     P6  A slot without any part present has settled bits: it remembers, for a pass, that an
 *         event removed what a listing may still name.
 *     P7  A part's number is below the suffix count of its space.
 *     P8  Heads are 2 and up: 0 is an empty slot, 1 one that was (a probe goes on there).
 *     P9  The memory in use is what was allocated, and not over the limit.
 *
 * Who may do what, and under which protection:
 *
 *     operation             thread    protection
 *     --------------------  --------  ---------------------------------------------------
 *     lookup                readers   seat pinned to an epoch; version of the slot read before
 *                                     and after (read.c)
 *     a part comes or goes  writer    one store of `parts`, or a record's sequence odd
 *     a slot changes owner  writer    version of the slot odd meanwhile
 *     grow, split, purge    writer    builds new segments, publishes them by stores to the
 *                                     directory, retires the old (reclaim.c)
 *     heat                  both      a lost update is harmless
 *     free                  writer    when no seat is pinned to an epoch of its time
 */
#ifndef KVI_PRESENCE_INDEX_H
#define KVI_PRESENCE_INDEX_H

#include <kvgraft/presence.h>

#include "layout/names.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/rng.h"

#include <stdatomic.h>

#define BUCKET_SLOTS 4u
#define GROUP_BUCKETS 32u /* Both buckets of a page are in one group: 4 KiB. */
#define UNIT_BUCKETS 64u  /* A segment is 4 to 7 units. */
#define UNITS_MIN 4u
#define UNITS_MAX 7u
#define SEGMENT_SLOTS_MAX (UNITS_MAX * UNIT_BUCKETS * BUCKET_SLOTS)
#define SEGMENT_HEADER_BYTES 128u
#define TAIL_BYTES 16u /* Key bytes beyond head and body. */
#define DIRECTORY_DEPTH_MAX 32u

#define HEAD_EMPTY 0u
#define HEAD_GONE 1u
#define HEAD_MIN 2u

#define INLINE_PARTS 16u
#define PARTS_DISK_SHIFT 16
#define PARTS_SETTLED_SHIFT 32
#define PARTS_PASS_SHIFT 48
#define PARTS_PRESENT UINT64_C(0xffffffff)
#define PARTS_MEDIUM UINT32_C(0xffff)
#define PARTS_WIDE (UINT64_C(1) << 63)
#define PASS_MAX 0x7fffu

#define META_SPACE_SHIFT 20
#define META_STRAYED \
    (UINT32_C(1) << 19) /* Of slot 0: a page of this bucket is a stray. */
#define META_VERSION_MASK (META_STRAYED - 1)

#define HEAT_DEPTH_BITS 12
#define HEAT_DEPTH_MAX ((UINT32_C(1) << HEAT_DEPTH_BITS) - 1)
#define HEAT_STAMP_MASK (UINT32_MAX >> HEAT_DEPTH_BITS)

#define STATE_CPU 1u
#define STATE_DISK 2u
#define STATE_SETTLED 4u
#define STATE_PRESENT (STATE_CPU | STATE_DISK)

struct kvi_bucket {
    _Atomic uint64_t head[BUCKET_SLOTS];
    _Atomic uint64_t body[BUCKET_SLOTS];
    _Atomic uint64_t parts[BUCKET_SLOTS];
    _Atomic uint32_t meta[BUCKET_SLOTS];
    _Atomic uint32_t heat[BUCKET_SLOTS];
};
_Static_assert(sizeof(struct kvi_bucket) == 128, "a bucket is two cache lines");

/* The parts of a page that has more than INLINE_PARTS: three words for every 64 parts. */
struct kvi_record {
    _Atomic uint64_t sequence; /* Odd while the writer changes more than one word. */
    uint32_t group_count;
    uint32_t pass;
    struct kvi_record *retired_next;
    _Atomic uint64_t words[]; /* cpu, disk, settled; cpu, disk, settled; ... */
};

/* The header of a segment, for the writer.  Its buckets follow SEGMENT_HEADER_BYTES after it;
 * a directory entry is its address with the units in the low bits. */
struct kvi_segment {
    uint64_t first_head; /* The least head it covers. */
    uint32_t depth;      /* It covers 2^(64 - depth) heads. */
    uint32_t units;
    uint32_t live;  /* Slots taken. */
    uint32_t gone;  /* Slots that were taken and cannot be empty again. */
    uint8_t *tails; /* TAIL_BYTES a slot, or NULL. */
    void *memory;
    size_t memory_bytes;
    struct kvi_segment *retired_next;
};
_Static_assert(sizeof(struct kvi_segment) <= SEGMENT_HEADER_BYTES, "the header fits");

struct kvi_directory {
    uint32_t depth;
    struct kvi_directory *retired_next;
    _Atomic uint64_t entries[];
};

/* A place in the table. */
struct kvi_slot {
    struct kvi_segment *segment;
    struct kvi_bucket *bucket;
    uint32_t at;
};

struct kvi_tenant {
    _Atomic uint32_t confidence;
    uint64_t pages;
};

/* A tenant and a prefix. */
struct kvi_space {
    uint32_t id;
    uint32_t tenant;
    uint64_t salt;
    uint64_t pages;
    struct kvi_names suffixes;
};

/* A page key as the table sees it. */
struct kvi_page {
    uint64_t head;
    uint64_t body;
    const uint8_t *tail; /* The other 16 bytes. */
    struct kvi_space *space;
};

struct kvi_pass {
    bool active;
    bool sweeping; /* The end has begun; heads below `cursor` are done. */
    bool cleared;  /* The tenant was cleared since the beginning: the listing is void. */
    bool lossy;    /* What events had settled gave way: nothing may be added any more. */
    bool doubtful; /* It began with something lost: media known before it may be stale. */
    uint32_t number;
    uint32_t tenant;
    uint64_t cursor;
    uint64_t losses; /* Evictions and refusals when it began. */
    struct kvg_presence_listing_result result;
};

/* Each in its own cache line. */
struct kvg_presence_reader {
    _Alignas(64) _Atomic uint64_t pin; /* 0, or the epoch the reader entered in. */
    _Atomic uint32_t taken;
    struct kvg_presence *index;
};

/* What was retired and waits for readers to leave. */
struct kvi_limbo {
    struct kvi_segment *segments;
    struct kvi_directory *directories;
    struct kvi_record *records;
    uint32_t count;
};

#define KVI_PRESENCE_COUNTERS(X) \
    X(pages)                     \
    X(parts)                     \
    X(objects)                   \
    X(cpu_pages)                 \
    X(disk_pages)                \
    X(cpu_parts)                 \
    X(disk_parts)                \
    X(slots)                     \
    X(spaces)                    \
    X(memory_bytes)              \
    X(stored_applied)            \
    X(removed_applied)           \
    X(removed_unknown)           \
    X(cleared_applied)           \
    X(foreign_keys)              \
    X(refused_spaces)            \
    X(refused_suffixes)          \
    X(refused_memory)            \
    X(evicted_pages)

/* Written by the writer, read by anyone. */
struct kvi_counters {
#define KVI_COUNTER_FIELD(name) _Atomic uint64_t name;
    KVI_PRESENCE_COUNTERS(KVI_COUNTER_FIELD)
#undef KVI_COUNTER_FIELD
};

struct kvg_presence {
    struct kvg_alloc host;  /* The caller's. */
    struct kvg_alloc alloc; /* Ours: counts, and keeps to the limit. */
    size_t memory_bytes_max;
    uint64_t seed;
    bool full_keys;
    struct kvi_directory *_Atomic directory;
    _Atomic uint64_t epoch;
    _Atomic uint32_t now; /* The recency stamp of today. */
    _Atomic bool partial;
    uint32_t arrivals;     /* New pages under this stamp. */
    bool table_is_fixed;   /* Segments make room by eviction only. */
    uint64_t evict_cursor; /* Where evict_elsewhere() goes on. */

    struct kvi_names tenant_names;
    struct kvi_tenant **tenants;
    uint32_t tenants_capacity;
    enum kvg_confidence confidence_default;

    struct kvi_names space_names; /* Two bytes of tenant number, then the prefix. */
    struct kvi_space **spaces;
    uint32_t spaces_capacity;
    struct kvi_space *last_space; /* The space of the event before. */
    uint32_t last_tenant;         /* Its tenant, if there are any. */

    struct kvi_pass pass;
    struct kvi_limbo open;   /* Retired in this epoch. */
    struct kvi_limbo closed; /* Retired in `closed_epoch` or before. */
    uint64_t closed_epoch;
    uint32_t retired_weight; /* Since the last scan of the seats. */
    uint32_t view_count;
    struct kvi_counters counters;
    uint32_t scores[SEGMENT_SLOTS_MAX]; /* For choosing victims. */
    _Atomic uint32_t seats_high;        /* Seats above were never taken. */
    struct kvg_presence_reader *seats;
    void *seats_memory;
};

#define SEATS_BYTES (KVG_PRESENCE_READERS_MAX * sizeof(struct kvg_presence_reader) + 64)

static inline void kvi_count(_Atomic uint64_t *counter, int64_t change)
{
    uint64_t value = atomic_load_explicit(counter, memory_order_relaxed);

    atomic_store_explicit(counter, value + (uint64_t)change, memory_order_relaxed);
}

/* The writer reads its own words. */
static inline uint64_t kvi_own(_Atomic uint64_t *word)
{
    return atomic_load_explicit(word, memory_order_relaxed);
}

static inline void kvi_put(_Atomic uint64_t *word, uint64_t value)
{
    atomic_store_explicit(word, value, memory_order_release);
}

static inline uint32_t kvi_bucket_count(const struct kvi_segment *segment)
{
    return segment->units * UNIT_BUCKETS;
}

static inline uint32_t kvi_slot_count(const struct kvi_segment *segment)
{
    return kvi_bucket_count(segment) * BUCKET_SLOTS;
}

static inline struct kvi_bucket *kvi_buckets(struct kvi_segment *segment)
{
    return (struct kvi_bucket *)(void *)((char *)segment + SEGMENT_HEADER_BYTES);
}

/* The first head behind a segment; 0 at the end of all. */
static inline uint64_t kvi_segment_behind(const struct kvi_segment *segment)
{
    /* Without a prefix it covers all heads. */
    return segment->depth == 0
               ? 0
               : segment->first_head + (UINT64_C(1) << (64 - segment->depth));
}

/* A directory entry taken apart. */
static inline struct kvi_segment *kvi_entry_segment(uint64_t entry)
{
    return (
        struct kvi_segment *)(uintptr_t)(entry & ~(uint64_t)(SEGMENT_HEADER_BYTES - 1));
}

static inline uint32_t kvi_entry_buckets(uint64_t entry)
{
    return (uint32_t)(entry & (SEGMENT_HEADER_BYTES - 1)) * UNIT_BUCKETS;
}

/* Where a head's probe begins.  Independent of the bits that choose the segment. */
static inline uint32_t kvi_first_bucket(uint64_t head, uint32_t bucket_count)
{
    return (uint32_t)(((head & UINT32_MAX) * bucket_count) >> 32);
}

/* The other bucket of its group where the page may lie. */
static inline uint32_t kvi_second_bucket(uint64_t head, uint32_t first)
{
    return first ^ (1 + (uint32_t)((head & 0xffff) * (GROUP_BUCKETS - 1) >> 16));
}

static inline uint64_t kvi_directory_index(uint64_t head, uint32_t depth)
{
    return (head >> 1) >> (63 - depth);
}

static inline uint64_t kvi_make_head(const struct kvg_key *key, uint64_t salt)
{
    uint64_t word;

    memcpy(&word, key->bytes, sizeof(word));
    return kvi_mix64(word ^ salt);
}

static inline uint64_t kvi_make_body(const struct kvg_key *key)
{
    uint64_t word;

    memcpy(&word, key->bytes + 8, sizeof(word));
    return word;
}

/* The page points into the key, which must live as long. */
static inline struct kvi_page kvi_make_page(
    const struct kvg_key *key, struct kvi_space *space)
{
    return (struct kvi_page){.head = kvi_make_head(key, space->salt),
        .body = kvi_make_body(key),
        .tail = key->bytes + 16,
        .space = space};
}

/* The writer's entry for a head. */
static inline uint64_t kvi_entry_of(struct kvg_presence *index, uint64_t head)
{
    struct kvi_directory *directory =
        atomic_load_explicit(&index->directory, memory_order_relaxed);

    return kvi_own(&directory->entries[kvi_directory_index(head, directory->depth)]);
}

static inline uint32_t kvi_meta_space(uint32_t meta)
{
    return meta >> META_SPACE_SHIFT;
}

static inline struct kvi_record *kvi_record_of(uint64_t parts)
{
    return (struct kvi_record *)(uintptr_t)(parts & ~PARTS_WIDE);
}

static inline uint64_t kvi_slot_parts(const struct kvi_slot *slot)
{
    return kvi_own(&slot->bucket->parts[slot->at]);
}

static inline uint32_t kvi_slot_space(const struct kvi_slot *slot)
{
    return kvi_meta_space(
        atomic_load_explicit(&slot->bucket->meta[slot->at], memory_order_relaxed));
}

/* table.c: segments and slots. */

kvg_err kvi_presence_table_init(struct kvg_presence *index);
void kvi_presence_table_fini(struct kvg_presence *index);
bool kvi_presence_table_find(
    struct kvg_presence *index, const struct kvi_page *page, struct kvi_slot *out);
/* Asks the memory for what finding or adding a page will touch. */
void kvi_presence_table_prefetch(struct kvg_presence *index, uint64_t head);
/* Adds a page that is not there, without parts.  At the memory limit other pages give way. */
KVG_MUST_CHECK kvg_err kvi_presence_table_add(
    struct kvg_presence *index, const struct kvi_page *page, struct kvi_slot *out);
/* Copies a slot into a segment that no reader sees yet, and that has room. */
void kvi_presence_table_copy(const struct kvi_slot *from, struct kvi_segment *to);
/* Empties a slot; its record, if any, is retired.  Counts of pages and parts are the caller's. */
void kvi_presence_table_remove(struct kvg_presence *index, const struct kvi_slot *slot);
/* Calls `visit` for every taken slot of the segment that covers `head`; it may remove the slot.
 * Returns the first head behind that segment, 0 at the end of all. */
uint64_t kvi_presence_table_visit(struct kvg_presence *index, uint64_t head,
    void (*visit)(struct kvg_presence *index, struct kvi_slot *slot, void *context),
    void *context);
uint32_t kvi_presence_table_segment_slots(struct kvg_presence *index, uint64_t head);
/* The whole key of a slot; its last 16 bytes are zero unless they are kept. */
struct kvg_key kvi_presence_table_key(
    struct kvg_presence *index, const struct kvi_slot *slot);

/* segment.c: building segments, choosing victims. */

struct kvi_segment *kvi_presence_segment_of(struct kvg_presence *index, uint64_t head);
KVG_MUST_CHECK kvg_err kvi_presence_segment_new(struct kvg_presence *index,
    uint32_t units, uint64_t first_head, uint32_t depth, bool may_use_reserve,
    struct kvi_segment **out);
void kvi_presence_segment_release(
    struct kvg_presence *index, struct kvi_segment *segment);
/* Makes room in the segment of a head, by growing, splitting, purging or eviction.  KVG_OK
 * means that it is worth looking for a slot again. */
KVG_MUST_CHECK kvg_err kvi_presence_segment_make_room(
    struct kvg_presence *index, uint64_t head);
/* Gives an empty table the size that `pages` pages need, with `record_bytes` of records each, or
 * what the limit allows of it: then it no longer grows until `table_is_fixed` is false again.
 * Without memory it stays as it is. */
void kvi_presence_segment_reserve(
    struct kvg_presence *index, uint64_t pages, size_t record_bytes);
/* Takes the coldest eighth out, in place, but not the slot `kept` (or NULL).  Returns how many
 * went. */
uint32_t kvi_presence_segment_evict(
    struct kvg_presence *index, struct kvi_segment *segment, const struct kvi_slot *kept);
/* The same somewhere else, where pages are. */
uint32_t kvi_presence_segment_evict_elsewhere(
    struct kvg_presence *index, const struct kvi_slot *kept);

/* record.c: what a slot says about parts. */

/* STATE_... bits of a part. */
unsigned kvi_presence_parts_get(
    const struct kvg_presence *index, const struct kvi_slot *slot, uint32_t part);
/* Sets the STATE_... bits of a part.  May need memory for a record: KVG_ENOMEM, and nothing
 * changed. */
KVG_MUST_CHECK kvg_err kvi_presence_parts_set(struct kvg_presence *index,
    const struct kvi_slot *slot, uint32_t part, unsigned state);
/* 64 parts from a multiple of 64 on. */
struct kvi_group {
    uint64_t cpu;
    uint64_t disk;
};
/* Adds parts to those that are there, but none that an event of the current pass removed.
 * KVG_ENOMEM: nothing changed. */
KVG_MUST_CHECK kvg_err kvi_presence_parts_merge(struct kvg_presence *index,
    const struct kvi_slot *slot, const struct kvi_group *groups, uint32_t group_count);
/* What is present in a slot. */
struct kvi_tally {
    uint32_t pairs;   /* Parts, once for every medium. */
    uint32_t objects; /* Parts, whatever the media. */
    uint32_t cpu;     /* Of the pairs, those in CPU memory; the rest is on disk. */
};
struct kvi_tally kvi_presence_parts_tally(const struct kvi_slot *slot);
/* The media with any part: STATE_CPU, STATE_DISK, both or 0. */
unsigned kvi_presence_parts_media(const struct kvi_slot *slot);
/* Whether an event or the listing of the current pass spoke of any part. */
bool kvi_presence_parts_settled(
    const struct kvg_presence *index, const struct kvi_slot *slot);
/* Whether an event of the current pass removed a part that is absent now. */
bool kvi_presence_parts_settled_absent(
    const struct kvg_presence *index, const struct kvi_slot *slot);
/* Drops what is not settled and forgets the settling. */
void kvi_presence_parts_drop_unsettled(
    struct kvg_presence *index, const struct kvi_slot *slot);
void kvi_presence_parts_forget_pass(const struct kvi_slot *slot);
void kvi_presence_record_release(struct kvg_presence *index, struct kvi_record *record);
size_t kvi_presence_record_bytes(uint32_t group_count);
uint32_t kvi_presence_popcount(uint64_t word);

/* reclaim.c: epochs. */

void kvi_presence_retire_segment(struct kvg_presence *index, struct kvi_segment *segment);
void kvi_presence_retire_directory(
    struct kvg_presence *index, struct kvi_directory *directory);
void kvi_presence_retire_record(struct kvg_presence *index, struct kvi_record *record);
/* Frees what no reader can see any more. */
void kvi_presence_reclaim(struct kvg_presence *index);
/* Frees everything retired; there are no readers. */
void kvi_presence_reclaim_all(struct kvg_presence *index);

/* space.c: tenants and spaces. */

KVG_MUST_CHECK kvg_err kvi_presence_tenant_get(
    struct kvg_presence *index, struct kvg_str name, uint32_t *out);
int32_t kvi_presence_tenant_find(struct kvg_presence *index, struct kvg_str name);
KVG_MUST_CHECK kvg_err kvi_presence_space_get(struct kvg_presence *index, uint32_t tenant,
    struct kvg_str prefix, struct kvi_space **out);
struct kvi_space *kvi_presence_space_find(
    struct kvg_presence *index, uint32_t tenant, struct kvg_str prefix);
struct kvg_str kvi_presence_space_prefix(
    const struct kvg_presence *index, const struct kvi_space *space);
void kvi_presence_spaces_fini(struct kvg_presence *index);

/* presence.c: the writer's operations that others build on. */

/* Brings a part to a state; creates and removes the slot as needed. */
enum kvi_settle {
    KVI_SETTLE_NOT,
    KVI_SETTLE_LISTED, /* A listing named the part. */
    KVI_SETTLE_EVENT   /* An event spoke of it, and knows better than any listing. */
};
KVG_MUST_CHECK kvg_err kvi_presence_put(struct kvg_presence *index,
    const struct kvi_page *page, uint32_t part, unsigned add, unsigned drop,
    enum kvi_settle settle, unsigned *before_out);
/* Adds the parts of a remembered page; one that was not known gets the heat it had. */
KVG_MUST_CHECK kvg_err kvi_presence_merge(struct kvg_presence *index,
    const struct kvi_page *page, const struct kvi_group *groups, uint32_t group_count,
    uint32_t heat);
/* From an object key to its page and part; makes space and part if `create`.  False if they are
 * not known, or refused (then counted). */
bool kvi_presence_locate(struct kvg_presence *index, uint32_t tenant,
    const struct kvg_object_key *object, bool create, struct kvi_page *page_out,
    uint32_t *part_out);
/* Takes a page out with all its parts and counts it out. */
void kvi_presence_drop(struct kvg_presence *index, const struct kvi_slot *slot);
/* Counts a change of what a slot holds. */
void kvi_presence_recount(struct kvg_presence *index, uint32_t space_id,
    struct kvi_tally before, struct kvi_tally after);
/* KVI_SETTLE_EVENT if the current pass wants to know of events about this page. */
enum kvi_settle kvi_presence_pass_settles(
    const struct kvg_presence *index, const struct kvi_space *space, uint64_t head);
/* Counts why something could not be taken in: by the limit's counter, or as refused memory. */
void kvi_presence_count_refusal(
    struct kvg_presence *index, _Atomic uint64_t *limit_counter, kvg_err err);
/* A page gave way or was refused: the index holds a part of what it was told. */
void kvi_presence_lost(struct kvg_presence *index);

/* check.c. */

/* 0, or the number of the first broken invariant; *what says it in words. */
int kvi_presence_check(struct kvg_presence *index, const char **what);

#endif
