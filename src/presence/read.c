/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* read.c -- the readers' side: look-ups that take no lock, allocate nothing and never wait.
 *
 * A page is looked for in its first bucket, then in its second, then, if its first is marked,
 * behind it as far as a bucket with an empty slot: the order in which pages move (table.c).  A
 * slot is read so:
 *
 *     1  head equals the wanted one, else the next slot
 *     2  meta: version even, else again
 *     3  body, space: the page, else the next slot
 *     4  parts; of a page with a record, its words under the record's sequence
 *     5  meta once more: unchanged, else again
 *
 * Every load acquires and every store of the writer releases: a reader that has seen a word of
 * a later owner of the slot sees the odd version in step 5.  In between, `parts` was one load,
 * so it is what was present at one moment.  The version has 19 bits; to be fooled, a slot would
 * have to change its owner 262,144 times, and end with the same page, within steps 2 to 5.
 *
 * A reader that entered before a segment was replaced reads the old one, which no longer
 * changes: its content was true when it was replaced, which is within the call.
 */
#include "presence/read.h"

void kvi_presence_pin(struct kvg_presence_reader *reader)
{
    uint64_t epoch = atomic_load_explicit(&reader->index->epoch, memory_order_acquire);

    /* Sequentially consistent, as are the loads of addresses after it: reclaim.c says why. */
    atomic_store_explicit(&reader->pin, epoch, memory_order_seq_cst);
}

void kvi_presence_unpin(struct kvg_presence_reader *reader)
{
    atomic_store_explicit(&reader->pin, 0, memory_order_release);
}

bool kvi_presence_judge_record(
    const struct kvg_presence_view *view, struct kvi_record *record, struct verdict *out)
{
    uint64_t all = (UINT64_C(1) << view->class_count) - 1;
    uint64_t sequence = load(&record->sequence);
    uint32_t group;
    uint32_t c;

    *out = (struct verdict){.any = all, .cpu = all, .disk = all};
    for (group = 0; group < view->group_count; group++) {
        bool has_group = group < record->group_count;
        uint64_t cpu = has_group ? load(&record->words[group * 3]) : 0;
        uint64_t disk = has_group ? load(&record->words[group * 3 + 1]) : 0;

        for (c = 0; c < view->class_count; c++) {
            uint64_t mask = view->masks[c * view->group_count + group];
            uint64_t bit = UINT64_C(1) << c;

            out->any &= ((cpu | disk) & mask) == mask ? ~UINT64_C(0) : ~bit;
            out->cpu &= (cpu & mask) == mask ? ~UINT64_C(0) : ~bit;
            out->disk &= (disk & mask) == mask ? ~UINT64_C(0) : ~bit;
        }
        out->held_count += kvi_presence_popcount((cpu | disk) & view->masks[group]);
    }
    return (sequence & 1) == 0 && load(&record->sequence) == sequence;
}

/* Reads one slot whose head was seen to be the wanted one. */
static inline enum found read_slot(const struct kvg_presence_view *view,
    struct kvi_bucket *bucket, uint32_t at, const struct probe *probe,
    struct verdict *out, uint32_t *retries)
{
    uint32_t attempt;

    for (attempt = 0; attempt < READ_RETRIES_MAX; attempt++) {
        uint32_t meta = atomic_load_explicit(&bucket->meta[at], memory_order_acquire);
        uint64_t parts;
        bool is_whole = true;

        if (load(&bucket->head[at]) != probe->head ||
            load(&bucket->body[at]) != probe->body ||
            kvi_meta_space(meta) != view->space_id)
            return FOUND_OTHER;
        parts = load(&bucket->parts[at]);
        if (parts & PARTS_WIDE)
            is_whole = kvi_presence_judge_record(view, kvi_record_of(parts), out);
        else
            judge_inline(view, parts, out);
        if (is_whole && (meta & 1) == 0 &&
            atomic_load_explicit(&bucket->meta[at], memory_order_acquire) == meta)
            return FOUND_PAGE;
        (*retries)++;
    }
    return FOUND_UNSTABLE;
}

/* Reads a bucket.  True if the page was found there. */
static inline bool read_bucket(const struct kvg_presence_view *view,
    struct kvi_bucket *bucket, const struct probe *probe, struct verdict *out,
    struct kvi_slot *slot_out, struct kvg_lookup *lookup)
{
    unsigned matches = match_heads(bucket, probe->head);

    for (; matches != 0; matches &= matches - 1) {
        uint32_t at = (uint32_t)__builtin_ctz(matches);
        enum found found = read_slot(view, bucket, at, probe, out, &lookup->retries);

        *slot_out = (struct kvi_slot){NULL, bucket, at};
        if (KVI_LIKELY(found == FOUND_PAGE))
            return true;
        lookup->gave_up += found == FOUND_UNSTABLE;
    }
    return false;
}

bool kvi_presence_find_page(const struct kvg_presence_view *view,
    const struct probe *probe, struct verdict *out, struct kvi_slot *slot_out,
    struct kvg_lookup *lookup)
{
    struct kvi_bucket *buckets = kvi_buckets(kvi_entry_segment(probe->entry));
    struct kvi_bucket *end = buckets + kvi_entry_buckets(probe->entry);
    struct kvi_bucket *bucket = probe->first;

    /* In the order in which pages move. */
    if (read_bucket(view, probe->first, probe, out, slot_out, lookup) ||
        read_bucket(view, probe->second, probe, out, slot_out, lookup))
        return true;
    if (has_strayed(probe->first)) {
        while (match_heads(bucket, HEAD_EMPTY) == 0) {
            bucket = bucket + 1 == end ? buckets : bucket + 1;
            if (bucket == probe->first)
                break;
            if (read_bucket(view, bucket, probe, out, slot_out, lookup))
                return true;
        }
    }
    *out = (struct verdict){0};
    return false;
}

/* Copies the bits of a view's parts.  False if the page changed meanwhile. */
static bool copy_parts(const struct kvg_presence_view *view, struct kvi_bucket *bucket,
    uint32_t at, uint8_t *cpu_bits, uint8_t *disk_bits, size_t bits_bytes)
{
    uint64_t parts = load(&bucket->parts[at]);
    struct kvi_record *record = parts & PARTS_WIDE ? kvi_record_of(parts) : NULL;
    uint64_t sequence = record != NULL ? load(&record->sequence) : 0;
    uint32_t part;

    memset(cpu_bits, 0, bits_bytes);
    memset(disk_bits, 0, bits_bytes);
    for (part = 0; part < view->part_count && part / 8 < bits_bytes; part++) {
        uint32_t bit = view->bits[part];
        uint64_t cpu = record == NULL && bit < INLINE_PARTS ? parts & PARTS_PRESENT : 0;
        uint64_t disk = cpu >> PARTS_DISK_SHIFT;

        if (record != NULL && bit / 64 < record->group_count) {
            cpu = load(&record->words[bit / 64 * 3]);
            disk = load(&record->words[bit / 64 * 3 + 1]);
        }
        cpu_bits[part / 8] |= (uint8_t)((cpu >> bit % 64 & 1) << part % 8);
        disk_bits[part / 8] |= (uint8_t)((disk >> bit % 64 & 1) << part % 8);
    }
    return record == NULL || ((sequence & 1) == 0 && load(&record->sequence) == sequence);
}

enum found kvi_presence_read_parts(struct kvg_presence_reader *reader,
    const struct kvg_presence_view *view, const struct kvg_key *key, uint8_t *cpu_bits,
    uint8_t *disk_bits, size_t bits_bytes)
{
    struct kvg_lookup unused = {.view = view};
    enum found found = FOUND_UNSTABLE;
    struct verdict verdict;
    struct kvi_slot slot;
    uint32_t attempt;

    KVI_ASSERT(view->index == reader->index);
    kvi_presence_pin(reader);
    for (attempt = 0; attempt < READ_RETRIES_MAX && found == FOUND_UNSTABLE; attempt++) {
        struct kvi_directory *directory =
            atomic_load_explicit(&reader->index->directory, memory_order_seq_cst);
        struct probe probe = begin_probe(directory, view, key);
        uint32_t meta;

        unused.gave_up = 0;
        if (!kvi_presence_find_page(view, &probe, &verdict, &slot, &unused)) {
            found = unused.gave_up == 0 ? FOUND_OTHER : FOUND_UNSTABLE;
            continue;
        }
        meta = atomic_load_explicit(&slot.bucket->meta[slot.at], memory_order_acquire);
        if (load(&slot.bucket->head[slot.at]) == probe.head &&
            copy_parts(view, slot.bucket, slot.at, cpu_bits, disk_bits, bits_bytes) &&
            (meta & 1) == 0 &&
            atomic_load_explicit(&slot.bucket->meta[slot.at], memory_order_acquire) ==
                meta)
            found = FOUND_PAGE;
    }
    kvi_presence_unpin(reader);
    if (found != FOUND_PAGE) {
        memset(cpu_bits, 0, bits_bytes);
        memset(disk_bits, 0, bits_bytes);
    }
    return found;
}

bool kvg_presence_page_parts(struct kvg_presence_reader *reader,
    const struct kvg_presence_view *view, const struct kvg_key *key, uint8_t *cpu_bits,
    uint8_t *disk_bits, size_t bits_bytes)
{
    return kvi_presence_read_parts(reader, view, key, cpu_bits, disk_bits, bits_bytes) ==
           FOUND_PAGE;
}
