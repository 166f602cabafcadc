/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* read.h -- reading slots as a reader does, for those who ask about many pages (lookup.c) and
 * about one (read.c).  What a read must do, and why that is enough, stands in read.c.  Inline,
 * for a look-up spends its time here.
 */
#ifndef KVI_PRESENCE_READ_H
#define KVI_PRESENCE_READ_H

#include "presence/view.h"

#define READ_RETRIES_MAX 64u

/* Which classes of the view a page satisfies: bit c of each. */
struct verdict {
    uint64_t any; /* With parts on whatever medium. */
    uint64_t cpu;
    uint64_t disk;
    uint64_t held_bits;  /* Parts of class 0 that are there: these bits ... */
    uint32_t held_count; /* ... and so many more. */
};

/* Where a page is looked for. */
struct probe {
    struct kvi_bucket *first;
    struct kvi_bucket *second;
    uint64_t head;
    uint64_t body;
    uint64_t entry; /* Of the directory. */
};

enum found {
    FOUND_OTHER, /* It is not there. */
    FOUND_PAGE,
    FOUND_UNSTABLE /* It kept changing: nobody knows. */
};

static inline uint64_t load(_Atomic uint64_t *word)
{
    return atomic_load_explicit(word, memory_order_acquire);
}

/* The seat enters the index: nothing it finds there is freed before it leaves. */
void kvi_presence_pin(struct kvg_presence_reader *reader);
void kvi_presence_unpin(struct kvg_presence_reader *reader);
/* What a record says to a view.  False if it changed meanwhile. */
bool kvi_presence_judge_record(
    const struct kvg_presence_view *view, struct kvi_record *record, struct verdict *out);
/* What the slot of a page says; the place in *slot_out.  False if it is not known. */
bool kvi_presence_find_page(const struct kvg_presence_view *view,
    const struct probe *probe, struct verdict *out, struct kvi_slot *slot_out,
    struct kvg_lookup *lookup);

/* The parts of a page, as kvg_presence_page_parts() tells them. */
enum found kvi_presence_read_parts(struct kvg_presence_reader *reader,
    const struct kvg_presence_view *view, const struct kvg_key *key, uint8_t *cpu_bits,
    uint8_t *disk_bits, size_t bits_bytes);

static inline struct probe begin_probe(struct kvi_directory *directory,
    const struct kvg_presence_view *view, const struct kvg_key *key)
{
    uint64_t head = kvi_make_head(key, view->salt);
    uint64_t entry = atomic_load_explicit(
        &directory->entries[kvi_directory_index(head, directory->depth)],
        memory_order_seq_cst);
    struct kvi_bucket *buckets = kvi_buckets(kvi_entry_segment(entry));
    uint32_t first = kvi_first_bucket(head, kvi_entry_buckets(entry));
    struct probe probe = {.first = buckets + first,
        .second = buckets + kvi_second_bucket(head, first),
        .head = head,
        .body = kvi_make_body(key),
        .entry = entry};

    __builtin_prefetch(probe.first);
    __builtin_prefetch((const char *)probe.first + sizeof(struct kvi_bucket) / 2);
    __builtin_prefetch(probe.second);
    __builtin_prefetch((const char *)probe.second + sizeof(struct kvi_bucket) / 2);
    return probe;
}

/* Whether parts of one slot word, on a medium or on both, satisfy a class of the view. */
static inline bool has_class(
    const struct kvg_presence_view *view, uint32_t class_number, uint32_t parts)
{
    uint32_t mask = (uint32_t)view->inline_mask[class_number];

    return (parts & PARTS_MEDIUM & mask) == mask;
}

static inline void judge_inline(
    const struct kvg_presence_view *view, uint64_t parts, struct verdict *out)
{
    uint32_t cpu = (uint32_t)parts & PARTS_MEDIUM;
    uint32_t disk = (uint32_t)parts >> PARTS_DISK_SHIFT;
    uint32_t c;

    *out = (struct verdict){.held_bits = (cpu | disk) & view->inline_mask[0]};
    for (c = 0; c < view->class_count; c++) {
        out->any |= (uint64_t)has_class(view, c, cpu | disk) << c;
        out->cpu |= (uint64_t)has_class(view, c, cpu) << c;
        out->disk |= (uint64_t)has_class(view, c, disk) << c;
    }
}

/* The page was asked for now, at some depth.  A lost update is harmless. */
static inline void touch(struct kvi_bucket *bucket, uint32_t at, uint32_t heat)
{
    if (atomic_load_explicit(&bucket->heat[at], memory_order_relaxed) != heat)
        atomic_store_explicit(&bucket->heat[at], heat, memory_order_relaxed);
}

/* Which of a bucket's slots have this head, as bits; no branch, for where it lies is random. */
static inline unsigned match_heads(struct kvi_bucket *bucket, uint64_t wanted)
{
    return (unsigned)(load(&bucket->head[0]) == wanted) |
           (unsigned)(load(&bucket->head[1]) == wanted) << 1 |
           (unsigned)(load(&bucket->head[2]) == wanted) << 2 |
           (unsigned)(load(&bucket->head[3]) == wanted) << 3;
}

/* Whether a page of the bucket is somewhere else than in its two. */
static inline bool has_strayed(struct kvi_bucket *bucket)
{
    return atomic_load_explicit(&bucket->meta[0], memory_order_acquire) & META_STRAYED;
}

#endif
