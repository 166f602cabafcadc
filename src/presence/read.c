/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* read.c -- the readers' side: look-ups that take no lock, allocate nothing and never wait.
 *
 * A slot is read so:
 *
 *     1  head equals the wanted one, else the next slot (0: stop)
 *     2  meta: version even, else again
 *     3  body, space: the page, else the next slot
 *     4  parts; of a page with a record, its words under the record's sequence
 *     5  meta once more: unchanged, else again
 *
 * Every load acquires and every store of the writer releases: a reader that has seen a word of
 * a later owner of the slot sees the odd version in step 5.  In between, `parts` was one load,
 * so it is what was present at one moment.  The version has 20 bits; to be fooled, a slot would
 * have to change its owner 524,288 times, and end with the same page, within steps 2 to 5.
 *
 * A reader that entered before a segment was replaced reads the old one, which no longer
 * changes: its content was true when it was replaced, which is within the call.
 *
 * Look-ups of a prompt's pages are independent, so the cache lines of PREFETCH_PAGES pages are
 * asked for ahead of their use: the time is that of the memory's throughput, not its latency.
 */
#include "presence/view.h"

#define READ_RETRIES_MAX 64u
#define PREFETCH_PAGES 16u

/* Which classes of the view a page satisfies: bit c of each. */
struct verdict {
    uint64_t any; /* With parts on whatever medium. */
    uint64_t cpu;
    uint64_t disk;
    uint32_t missing; /* Parts of class 0 that are absent. */
};

/* Where a page's search begins. */
struct probe {
    struct kvi_bucket *buckets;
    uint64_t head;
    uint64_t body;
    uint32_t bucket_count;
    uint32_t first;
};

enum found {
    FOUND_OTHER,
    FOUND_PAGE,
    FOUND_UNSTABLE
};

static uint64_t load(_Atomic uint64_t *word)
{
    return atomic_load_explicit(word, memory_order_acquire);
}

static void pin(struct kvg_presence_reader *reader)
{
    uint64_t epoch = atomic_load_explicit(&reader->index->epoch, memory_order_acquire);

    /* Sequentially consistent, as are the loads of addresses after it: reclaim.c says why. */
    atomic_store_explicit(&reader->pin, epoch, memory_order_seq_cst);
}

static void unpin(struct kvg_presence_reader *reader)
{
    atomic_store_explicit(&reader->pin, 0, memory_order_release);
}

static struct probe begin_probe(struct kvi_directory *directory,
    const struct kvg_presence_view *view, const struct kvg_key *key)
{
    uint64_t head = kvi_make_head(key, view->salt);
    uint64_t entry = atomic_load_explicit(
        &directory->entries[kvi_directory_index(head, directory->depth)],
        memory_order_seq_cst);
    uint32_t bucket_count = (uint32_t)(entry & (SEGMENT_HEADER_BYTES - 1)) * UNIT_BUCKETS;
    struct kvi_segment *segment =
        (struct kvi_segment *)(uintptr_t)(entry & ~(uint64_t)(SEGMENT_HEADER_BYTES - 1));
    struct probe probe = {.buckets = kvi_buckets(segment),
        .head = head,
        .body = kvi_make_body(key),
        .bucket_count = bucket_count,
        .first = kvi_first_bucket(head, bucket_count)};
    const char *line = (const char *)(probe.buckets + probe.first);

    __builtin_prefetch(line);
    __builtin_prefetch(line + sizeof(struct kvi_bucket) / 2);
    return probe;
}

static void judge_inline(
    const struct kvg_presence_view *view, uint64_t parts, struct verdict *out)
{
    uint64_t cpu = parts & 0xffff;
    uint64_t disk = parts >> PARTS_DISK_SHIFT & 0xffff;
    uint32_t c;

    *out = (struct verdict){0};
    for (c = 0; c < view->class_count; c++) {
        uint64_t mask = view->inline_mask[c];

        out->any |= (uint64_t)(((cpu | disk) & mask) == mask) << c;
        out->cpu |= (uint64_t)((cpu & mask) == mask) << c;
        out->disk |= (uint64_t)((disk & mask) == mask) << c;
    }
    if (!(out->any & 1))
        out->missing = view->required_count -
                       kvi_presence_popcount((cpu | disk) & view->inline_mask[0]);
}

/* The same for a page with a record.  False if the record changed meanwhile. */
static bool judge_record(
    const struct kvg_presence_view *view, struct kvi_record *record, struct verdict *out)
{
    uint64_t all = (UINT64_C(1) << view->class_count) - 1;
    uint64_t sequence = load(&record->sequence);
    uint32_t held = 0;
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
        held += kvi_presence_popcount((cpu | disk) & view->masks[group]);
    }
    out->missing = view->required_count - held;
    return (sequence & 1) == 0 && load(&record->sequence) == sequence;
}

/* Reads one slot whose head was seen to be the wanted one. */
static enum found read_slot(const struct kvg_presence_view *view,
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
            is_whole = judge_record(view, kvi_record_of(parts), out);
        else
            judge_inline(view, parts, out);
        if (is_whole && (meta & 1) == 0 &&
            atomic_load_explicit(&bucket->meta[at], memory_order_acquire) == meta)
            return FOUND_PAGE;
        (*retries)++;
    }
    return FOUND_UNSTABLE;
}

/* The page was asked for now, at this depth of its chain.  A lost update is harmless. */
static void touch(const struct kvg_presence *index, struct kvi_bucket *bucket,
    uint32_t at, uint32_t depth)
{
    uint32_t now = atomic_load_explicit(&index->now, memory_order_relaxed);
    uint32_t heat =
        now << HEAT_DEPTH_BITS | (depth < HEAT_DEPTH_MAX ? depth : HEAT_DEPTH_MAX);

    if (atomic_load_explicit(&bucket->heat[at], memory_order_relaxed) != heat)
        atomic_store_explicit(&bucket->heat[at], heat, memory_order_relaxed);
}

/* What the slot of a page says; the place in *slot_out.  False if it is not known. */
static bool find_page(const struct kvg_presence_view *view, const struct probe *probe,
    struct verdict *out, struct kvi_slot *slot_out, struct kvg_lookup *lookup)
{
    uint32_t b = probe->first;
    uint32_t seen;

    for (seen = 0; seen < probe->bucket_count; seen++) {
        struct kvi_bucket *bucket = probe->buckets + b;
        bool has_empty = false;
        uint32_t at;

        for (at = 0; at < BUCKET_SLOTS; at++) {
            uint64_t head = load(&bucket->head[at]);

            if (head == probe->head) {
                enum found found =
                    read_slot(view, bucket, at, probe, out, &lookup->retries);

                *slot_out = (struct kvi_slot){NULL, bucket, at};
                if (found == FOUND_PAGE)
                    return true;
                lookup->gave_up += found == FOUND_UNSTABLE;
            }
            has_empty |= head == HEAD_EMPTY;
        }
        if (has_empty)
            break;
        b = b + 1 == probe->bucket_count ? 0 : b + 1;
    }
    *out = (struct verdict){.missing = view->required_count};
    return false;
}

/* How far the prefix from `start` can be loaded, page by page. */
struct prefix {
    bool open;
    bool cpu;
    bool disk;
    uint32_t any_run[CLASSES_MAX]; /* Pages in a row that satisfied a class. */
    uint32_t cpu_run[CLASSES_MAX];
    uint32_t disk_run[CLASSES_MAX];
};

static void extend_prefix(struct prefix *prefix, const struct verdict *verdict,
    uint32_t length, struct kvg_lookup *lookup)
{
    const struct kvg_presence_view *view = lookup->view;
    bool loadable = true;
    bool cpu;
    bool disk;
    uint32_t c;

    if (view->chained) {
        prefix->open &= (verdict->any & 1) != 0;
        prefix->cpu &= (verdict->cpu & 1) != 0;
        prefix->disk &= (verdict->disk & 1) != 0;
        if (!prefix->open)
            return;
    }
    cpu = prefix->cpu;
    disk = prefix->disk;
    for (c = 1; c < view->class_count; c++) {
        uint32_t needed = view->trailing[c] < length ? view->trailing[c] : length;

        prefix->any_run[c] = verdict->any >> c & 1 ? prefix->any_run[c] + 1 : 0;
        prefix->cpu_run[c] = verdict->cpu >> c & 1 ? prefix->cpu_run[c] + 1 : 0;
        prefix->disk_run[c] = verdict->disk >> c & 1 ? prefix->disk_run[c] + 1 : 0;
        loadable &= prefix->any_run[c] >= needed;
        cpu &= prefix->cpu_run[c] >= needed;
        disk &= prefix->disk_run[c] >= needed;
    }
    if (!loadable)
        return;
    lookup->contiguous = length;
    lookup->media = (cpu ? KVG_MEDIUM_BIT(KVG_MEDIUM_CPU) : 0) |
                    (disk ? KVG_MEDIUM_BIT(KVG_MEDIUM_DISK) : 0);
}

/* Adds a present page to the ranges. */
static void add_to_ranges(struct kvg_lookup *lookup, uint32_t page, uint32_t *range_end)
{
    bool is_next = lookup->range_count == 0 || *range_end != page;
    struct kvg_range *range;

    lookup->total++;
    lookup->range_count += is_next;
    *range_end = page + 1;
    if (lookup->range_count > lookup->range_max)
        return;
    range = &lookup->ranges[lookup->range_count - 1];
    if (is_next)
        range->begin = page;
    range->end = page + 1;
}

static void judge_page(struct kvg_lookup *lookup, struct prefix *prefix, uint32_t page,
    const struct verdict *verdict, uint32_t *range_end)
{
    bool is_present = verdict->any & 1;

    if (is_present)
        add_to_ranges(lookup, page, range_end);
    if (page < lookup->start)
        return;
    if (!is_present && lookup->first_missing == lookup->key_count) {
        lookup->first_missing = page;
        lookup->missing_parts = verdict->missing;
    }
    if (prefix->open)
        extend_prefix(prefix, verdict, page + 1 - lookup->start, lookup);
}

static void look_up_pages(struct kvg_presence_reader *reader, struct kvg_lookup *lookup)
{
    const struct kvg_presence_view *view = lookup->view;
    struct kvi_directory *directory =
        atomic_load_explicit(&reader->index->directory, memory_order_seq_cst);
    struct prefix prefix = {.open = true, .cpu = true, .disk = true};
    struct probe probes[PREFETCH_PAGES];
    uint32_t range_end = 0;
    uint32_t ahead = 0;
    uint32_t page;

    for (page = 0; page < lookup->key_count; page++) {
        struct verdict verdict;
        struct kvi_slot slot;

        for (; ahead < lookup->key_count && ahead < page + PREFETCH_PAGES; ahead++)
            probes[ahead % PREFETCH_PAGES] =
                begin_probe(directory, view, &lookup->keys[ahead]);
        if (find_page(view, &probes[page % PREFETCH_PAGES], &verdict, &slot, lookup) &&
            verdict.any & 1)
            touch(reader->index, slot.bucket, slot.at, page);
        judge_page(lookup, &prefix, page, &verdict, &range_end);
    }
}

static enum kvg_confidence confidence_of(const struct kvg_presence_view *view)
{
    return (enum kvg_confidence)atomic_load_explicit(
        &view->tenant->confidence, memory_order_acquire);
}

void kvg_presence_lookup(
    struct kvg_presence_reader *reader, struct kvg_lookup *lookups, size_t lookup_count)
{
    size_t i;

    for (i = 0; i < lookup_count; i++) {
        struct kvg_lookup *lookup = &lookups[i];
        enum kvg_confidence before = confidence_of(lookup->view);
        enum kvg_confidence after;

        KVI_ASSERT(lookup->view->index == reader->index);
        lookup->range_count = 0;
        lookup->total = 0;
        lookup->contiguous = 0;
        lookup->first_missing = lookup->key_count;
        lookup->missing_parts = 0;
        lookup->media = 0;
        lookup->retries = 0;
        lookup->gave_up = 0;
        pin(reader);
        look_up_pages(reader, lookup);
        unpin(reader);
        /* The lower of both: a repair may have begun or ended meanwhile. */
        after = confidence_of(lookup->view);
        lookup->confidence = before < after ? before : after;
        lookup->partial =
            atomic_load_explicit(&reader->index->partial, memory_order_acquire);
    }
}

uint32_t kvg_lookup_hits_beyond(const struct kvg_lookup *lookup, uint32_t page)
{
    uint32_t count =
        lookup->range_count < lookup->range_max ? lookup->range_count : lookup->range_max;
    uint32_t hits = 0;
    uint32_t i;

    for (i = 0; i < count; i++) {
        const struct kvg_range *range = &lookup->ranges[i];

        if (range->end > page)
            hits += range->end - (range->begin > page ? range->begin : page);
    }
    return hits;
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

bool kvg_presence_page_parts(struct kvg_presence_reader *reader,
    const struct kvg_presence_view *view, const struct kvg_key *key, uint8_t *cpu_bits,
    uint8_t *disk_bits, size_t bits_bytes)
{
    struct kvg_lookup unused = {.view = view};
    struct verdict verdict;
    struct kvi_slot slot;
    bool is_known = false;
    uint32_t attempt;

    KVI_ASSERT(view->index == reader->index);
    pin(reader);
    for (attempt = 0; attempt < READ_RETRIES_MAX; attempt++) {
        struct kvi_directory *directory =
            atomic_load_explicit(&reader->index->directory, memory_order_seq_cst);
        struct probe probe = begin_probe(directory, view, key);
        uint32_t meta;

        is_known = find_page(view, &probe, &verdict, &slot, &unused);
        if (!is_known)
            break;
        meta = atomic_load_explicit(&slot.bucket->meta[slot.at], memory_order_acquire);
        if (load(&slot.bucket->head[slot.at]) == probe.head &&
            copy_parts(view, slot.bucket, slot.at, cpu_bits, disk_bits, bits_bytes) &&
            (meta & 1) == 0 &&
            atomic_load_explicit(&slot.bucket->meta[slot.at], memory_order_acquire) ==
                meta)
            break;
        is_known = false;
    }
    unpin(reader);
    if (!is_known) {
        memset(cpu_bits, 0, bits_bytes);
        memset(disk_bits, 0, bits_bytes);
    }
    return is_known;
}

/* A seat is taken by whoever turns it from free to taken first. */
kvg_err kvg_presence_reader_open(
    struct kvg_presence *index, struct kvg_presence_reader **out)
{
    uint32_t i;

    *out = NULL;
    for (i = 0; i < KVG_PRESENCE_READERS_MAX; i++) {
        uint32_t is_free = 0;
        uint32_t high;

        if (!atomic_compare_exchange_strong_explicit(&index->seats[i].taken, &is_free, 1,
                memory_order_seq_cst, memory_order_relaxed))
            continue;
        high = atomic_load_explicit(&index->seats_high, memory_order_seq_cst);
        while (
            high < i + 1 && !atomic_compare_exchange_weak_explicit(&index->seats_high,
                                &high, i + 1, memory_order_seq_cst, memory_order_seq_cst))
            ;
        *out = &index->seats[i];
        return KVG_OK;
    }
    return KVG_ELIMIT;
}

void kvg_presence_reader_close(struct kvg_presence_reader *reader)
{
    if (reader == NULL)
        return;
    KVI_ASSERT(atomic_load_explicit(&reader->pin, memory_order_relaxed) == 0);
    atomic_store_explicit(&reader->taken, 0, memory_order_release);
}
