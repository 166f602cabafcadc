/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* lookup.c -- questions about prompts: which pages are there, and how far can be loaded.
 *
 * The pages of a prompt are independent, so their memory is asked for long before it is read, and
 * the time is that of the memory's throughput, not its latency.  Each page goes through a
 * pipeline; on its turn, one page takes each step:
 *
 *     page n + PAGES_AHEAD    its two buckets are asked for
 *     page n                  they are read: nearly all pages are done then.  The others need a
 *                             closer look (read.c), and what that needs is asked for
 *     the chunk before n's    the closer looks; verdicts become bits, a word a class; ranges,
 *                             holes and prefixes are found in the words
 */
#include "presence/read.h"

#define CHUNK_PAGES 32u
#define PAGES_AHEAD 32u
#define BEGIN_PAGES 4u /* Aims taken at once. */
#define AIMS 64u
_Static_assert(AIMS >= PAGES_AHEAD + BEGIN_PAGES, "no aim is overwritten too early");
_Static_assert(CHUNK_PAGES == 32, "a chunk's pages are the bits of a word");
/* Buckets behind the first that are asked for before a closer look for a stray. */
#define LATE_BUCKETS 4u

static uint32_t heat_of(uint32_t now, uint32_t depth)
{
    return now << HEAT_DEPTH_BITS | (depth < HEAT_DEPTH_MAX ? depth : HEAT_DEPTH_MAX);
}

/* Where a page is looked for first, and what for. */
struct aim {
    struct kvi_bucket *first;
    struct kvi_bucket *second;
    uint64_t head;
};

/* What the pages of a chunk satisfy: bit p of word c is page p and class c. */
struct chunk {
    uint32_t first;
    uint32_t count;
    uint32_t late; /* Pages that take a closer look, as bits. */
    uint32_t
        parts[CHUNK_PAGES]; /* As in a slot: CPU, disk; 0 of an absent or a late page. */
    uint32_t all;           /* What every page has, */
    uint32_t some;          /* and what any page has. */
    uint32_t held[CHUNK_PAGES]; /* Of a late page: its parts of class 0. */
    uint64_t any[CLASSES_MAX];
    uint64_t cpu[CLASSES_MAX];
    uint64_t disk[CLASSES_MAX];
};

/* How far the prefix from `start` can be loaded. */
struct prefix {
    bool open;
    bool cpu;
    bool disk;
    uint32_t any_run[CLASSES_MAX]; /* Pages in a row that satisfied a class. */
    uint32_t cpu_run[CLASSES_MAX];
    uint32_t disk_run[CLASSES_MAX];
};

/* A question under way. */
struct asking {
    struct kvg_lookup *lookup;
    struct kvi_directory *directory;
    uint32_t now;
    uint32_t range_end;
    uint32_t begun; /* Aims. */
    struct prefix prefix;
    struct chunk chunks[2]; /* The one being read, and the one before. */
    struct aim aims[AIMS];  /* Page p's is at p % AIMS. */
};

static uint32_t media_of(bool cpu, bool disk)
{
    return (cpu ? KVG_MEDIUM_BIT(KVG_MEDIUM_CPU) : 0) |
           (disk ? KVG_MEDIUM_BIT(KVG_MEDIUM_DISK) : 0);
}

/* Extends the prefix by one page of a layout with trailing pools. */
static void extend_prefix(
    struct asking *asking, const struct chunk *chunk, uint32_t p, uint32_t length)
{
    const struct kvg_presence_view *view = asking->lookup->view;
    struct prefix *prefix = &asking->prefix;
    bool loadable = true;
    bool cpu;
    bool disk;
    uint32_t c;

    if (view->chained) {
        prefix->open &= chunk->any[0] >> p & 1;
        prefix->cpu &= chunk->cpu[0] >> p & 1;
        prefix->disk &= chunk->disk[0] >> p & 1;
        if (!prefix->open)
            return;
    }
    cpu = prefix->cpu;
    disk = prefix->disk;
    for (c = 1; c < view->class_count; c++) {
        uint32_t needed = view->trailing[c] < length ? view->trailing[c] : length;

        prefix->any_run[c] = chunk->any[c] >> p & 1 ? prefix->any_run[c] + 1 : 0;
        prefix->cpu_run[c] = chunk->cpu[c] >> p & 1 ? prefix->cpu_run[c] + 1 : 0;
        prefix->disk_run[c] = chunk->disk[c] >> p & 1 ? prefix->disk_run[c] + 1 : 0;
        loadable &= prefix->any_run[c] >= needed;
        cpu &= prefix->cpu_run[c] >= needed;
        disk &= prefix->disk_run[c] >= needed;
    }
    if (!loadable)
        return;
    asking->lookup->contiguous = length;
    asking->lookup->media = media_of(cpu, disk);
}

/* The pages of a chunk at or after `start`, as bits. */
static uint64_t pages_from_start(const struct chunk *chunk, uint32_t start)
{
    uint64_t all = (UINT64_C(1) << chunk->count) - 1;

    if (start <= chunk->first)
        return all;
    return start - chunk->first >= chunk->count
               ? 0
               : all & ~((UINT64_C(1) << (start - chunk->first)) - 1);
}

static void judge_prefix(struct asking *asking, const struct chunk *chunk, uint64_t asked)
{
    struct kvg_lookup *lookup = asking->lookup;
    struct prefix *prefix = &asking->prefix;
    uint64_t absent = asked & ~chunk->any[0];
    uint64_t reached;
    uint32_t p;

    if (lookup->view->class_count > 1) {
        for (p = 0; p < chunk->count && prefix->open; p++)
            if (asked >> p & 1)
                extend_prefix(asking, chunk, p, chunk->first + p + 1 - lookup->start);
        return;
    }
    /* One class: up to the first absent page. */
    reached = absent == 0 ? asked : asked & ((absent & (0 - absent)) - 1);
    prefix->open = absent == 0;
    if (reached == 0)
        return;
    prefix->cpu &= (reached & ~chunk->cpu[0]) == 0;
    prefix->disk &= (reached & ~chunk->disk[0]) == 0;
    lookup->contiguous += kvi_presence_popcount(reached);
    lookup->media = media_of(prefix->cpu, prefix->disk);
}

/* Adds the present pages of a chunk to the ranges, run by run. */
static void judge_ranges(struct asking *asking, const struct chunk *chunk)
{
    struct kvg_lookup *lookup = asking->lookup;
    uint64_t present = chunk->any[0];

    lookup->total += kvi_presence_popcount(present);
    while (present != 0) {
        uint32_t begin = (uint32_t)__builtin_ctzll(present);
        uint32_t length = (uint32_t)__builtin_ctzll(~(present >> begin));
        bool is_next =
            lookup->range_count == 0 || asking->range_end != chunk->first + begin;
        struct kvg_range *range;

        present &= ~(((UINT64_C(1) << length) - 1) << begin);
        lookup->range_count += is_next;
        asking->range_end = chunk->first + begin + length;
        if (lookup->range_count > lookup->range_max)
            continue;
        range = &lookup->ranges[lookup->range_count - 1];
        if (is_next)
            range->begin = chunk->first + begin;
        range->end = asking->range_end;
    }
}

/* The place of a head in the two buckets: 0 to 3, 4 to 7, or PLACES if it is in neither.  No
 * branch, for where it lies is random.  The first bucket is read first, as pages move (table.c). */
#define PLACES (2 * BUCKET_SLOTS)
static inline uint32_t place_of(const struct aim *aim)
{
    uint64_t head = aim->head;
    uint32_t first = load(&aim->first->head[3]) == head ? 3 : PLACES;
    uint32_t second;

    first = load(&aim->first->head[2]) == head ? 2 : first;
    first = load(&aim->first->head[1]) == head ? 1 : first;
    first &= 0 - (uint32_t)(load(&aim->first->head[0]) != head);
    second = load(&aim->second->head[3]) == head ? 7 : PLACES;
    second = load(&aim->second->head[2]) == head ? 6 : second;
    second = load(&aim->second->head[1]) == head ? 5 : second;
    second = load(&aim->second->head[0]) == head ? 4 : second;
    return first < second ? first : second;
}
_Static_assert(PLACES == 8, "the places are counted above");

static inline struct kvi_bucket *bucket_at(const struct aim *aim, uint32_t place)
{
    ptrdiff_t apart = (char *)aim->second - (char *)aim->first;
    ptrdiff_t is_second = place / BUCKET_SLOTS & 1;

    return (struct kvi_bucket *)(void *)((char *)aim->first + (apart & (0 - is_second)));
}

/* Reads a page that lies where it is looked for first and is at rest, as nearly all are: its
 * parts, 0 if it is absent.  False if it is not so: then find_page() looks closely. */
static inline bool read_quickly(const struct kvg_presence_view *view,
    const struct aim *aim, const struct kvg_key *key, uint32_t heat, uint32_t *out)
{
    uint32_t place = place_of(aim);
    uint32_t at = place % BUCKET_SLOTS;
    struct kvi_bucket *bucket = bucket_at(aim, place);
    uint32_t meta;
    uint64_t parts;

    *out = 0;
    if (place == PLACES)
        return !has_strayed(aim->first);
    meta = atomic_load_explicit(&bucket->meta[at], memory_order_acquire);
    if (KVI_UNLIKELY(load(&bucket->head[at]) != aim->head ||
                     load(&bucket->body[at]) != kvi_make_body(key) ||
                     kvi_meta_space(meta) != view->space_id || (meta & 1) != 0))
        return false;
    parts = load(&bucket->parts[at]);
    if (KVI_UNLIKELY((parts & PARTS_WIDE) != 0 || atomic_load_explicit(&bucket->meta[at],
                                                      memory_order_acquire) != meta))
        return false;
    *out = (uint32_t)parts;
    if (has_class(view, 0, (uint32_t)parts | (uint32_t)parts >> PARTS_DISK_SHIFT))
        touch(bucket, at, heat);
    return true;
}

/* Asks for what a closer look will need: the buckets behind the first for a stray, or the record
 * that a page's parts are in. */
static void prefetch_late(const struct aim *aim)
{
    uint32_t place = place_of(aim);
    struct kvi_bucket *bucket = bucket_at(aim, place);
    uint32_t ahead;

    if (place != PLACES) {
        uint64_t parts = load(&bucket->parts[place % BUCKET_SLOTS]);

        if (parts & PARTS_WIDE)
            __builtin_prefetch(kvi_record_of(parts));
        return;
    }
    for (ahead = 1; ahead <= LATE_BUCKETS; ahead++) /* Never mind the segment's end. */
        __builtin_prefetch(aim->first + ahead);
}

/* Aims at the next few pages. */
static inline void begin_some(struct asking *asking, uint32_t count)
{
    const struct kvg_lookup *lookup = asking->lookup;
    uint32_t left = lookup->key_count - asking->begun;
    uint32_t end = asking->begun + (count < left ? count : left);

    for (; asking->begun < end; asking->begun++) {
        struct probe probe =
            begin_probe(asking->directory, lookup->view, &lookup->keys[asking->begun]);

        asking->aims[asking->begun % AIMS] =
            (struct aim){probe.first, probe.second, probe.head};
    }
}

/* Reads each page of the chunk that lies where it is looked for first; the others are late. */
static void read_chunk(struct asking *asking, struct chunk *chunk)
{
    const struct kvg_presence_view *view = asking->lookup->view;
    const struct kvg_key *keys = asking->lookup->keys + chunk->first;
    uint32_t late = 0;
    uint32_t all = UINT32_MAX;
    uint32_t some = 0;
    uint32_t p;

    for (p = 0; p < chunk->count; p++) {
        const struct aim *aim = &asking->aims[(chunk->first + p) % AIMS];
        uint32_t heat = heat_of(asking->now, chunk->first + p);
        uint32_t parts = 0;

        if (KVI_UNLIKELY(!read_quickly(view, aim, &keys[p], heat, &parts))) {
            late |= UINT32_C(1) << p;
            prefetch_late(aim);
        }
        chunk->parts[p] = parts;
        all &= parts;
        some |= parts;
        if (p % BEGIN_PAGES == BEGIN_PAGES - 1)
            begin_some(asking, BEGIN_PAGES);
    }
    chunk->late = late;
    chunk->all = all;
    chunk->some = some;
}

/* Which pages of a chunk satisfy a class with what is on these media: shifts of the parts. */
static uint32_t pages_with(const struct kvg_presence_view *view,
    const struct chunk *chunk, uint32_t class_number, uint32_t shift,
    uint32_t other_shift)
{
    uint32_t pages = 0;
    uint32_t p;

    if (has_class(view, class_number, chunk->all >> shift | chunk->all >> other_shift))
        return UINT32_MAX >> (CHUNK_PAGES - chunk->count);
    if (!has_class(view, class_number, chunk->some >> shift | chunk->some >> other_shift))
        return 0;
    for (p = 0; p < chunk->count; p++) {
        uint32_t parts = chunk->parts[p] >> shift | chunk->parts[p] >> other_shift;

        pages |= (uint32_t)has_class(view, class_number, parts) << p;
    }
    return pages;
}

/* The closer look at a page. */
static void read_late(struct asking *asking, struct chunk *chunk, uint32_t p)
{
    struct kvg_lookup *lookup = asking->lookup;
    uint32_t page = chunk->first + p;
    struct probe probe =
        begin_probe(asking->directory, lookup->view, &lookup->keys[page]);
    struct verdict verdict;
    struct kvi_slot slot;
    uint32_t c;

    if (kvi_presence_find_page(lookup->view, &probe, &verdict, &slot, lookup) &&
        verdict.any & 1)
        touch(slot.bucket, slot.at, heat_of(asking->now, page));
    for (c = 0; c < lookup->view->class_count; c++) {
        chunk->any[c] |= (verdict.any >> c & 1) << p;
        chunk->cpu[c] |= (verdict.cpu >> c & 1) << p;
        chunk->disk[c] |= (verdict.disk >> c & 1) << p;
    }
    chunk->held[p] = verdict.held_count + kvi_presence_popcount(verdict.held_bits);
}

/* Remembers the first of the `absent` pages of a chunk. */
static void note_missing(
    struct kvg_lookup *lookup, const struct chunk *chunk, uint64_t absent)
{
    uint32_t p = (uint32_t)__builtin_ctzll(absent);
    uint32_t parts = chunk->parts[p] | chunk->parts[p] >> PARTS_DISK_SHIFT;
    uint64_t mask = lookup->view->inline_mask[0];
    uint32_t held = chunk->late >> p & 1
                        ? chunk->held[p]
                        : kvi_presence_popcount(parts & PARTS_MEDIUM & mask);

    lookup->first_missing = chunk->first + p;
    lookup->missing_parts = lookup->view->required_count - held;
}

static void finish_chunk(struct asking *asking, struct chunk *chunk)
{
    struct kvg_lookup *lookup = asking->lookup;
    uint64_t asked = pages_from_start(chunk, lookup->start);
    uint32_t late;
    uint32_t c;

    for (c = 0; c < lookup->view->class_count; c++) {
        chunk->any[c] = pages_with(lookup->view, chunk, c, 0, PARTS_DISK_SHIFT);
        chunk->cpu[c] = pages_with(lookup->view, chunk, c, 0, 0);
        chunk->disk[c] =
            pages_with(lookup->view, chunk, c, PARTS_DISK_SHIFT, PARTS_DISK_SHIFT);
    }
    for (late = chunk->late; late != 0; late &= late - 1)
        read_late(asking, chunk, (uint32_t)__builtin_ctz(late));
    if ((asked & ~chunk->any[0]) != 0 && lookup->first_missing == lookup->key_count)
        note_missing(lookup, chunk, asked & ~chunk->any[0]);
    judge_ranges(asking, chunk);
    if (asking->prefix.open && asked != 0)
        judge_prefix(asking, chunk, asked);
}

static void look_up_pages(struct kvg_presence_reader *reader, struct kvg_lookup *lookup)
{
    struct asking asking;
    struct chunk *chunk = &asking.chunks[0];
    struct chunk *before = NULL;
    uint32_t first;

    asking.lookup = lookup;
    asking.directory =
        atomic_load_explicit(&reader->index->directory, memory_order_seq_cst);
    asking.now = atomic_load_explicit(&reader->index->now, memory_order_relaxed);
    asking.range_end = 0;
    asking.prefix = (struct prefix){.open = true, .cpu = true, .disk = true};
    asking.begun = 0;
    begin_some(&asking, PAGES_AHEAD);
    for (first = 0; first < lookup->key_count; first += CHUNK_PAGES) {
        uint32_t left = lookup->key_count - first;

        chunk->first = first;
        chunk->count = left < CHUNK_PAGES ? left : CHUNK_PAGES;
        read_chunk(&asking, chunk);
        if (before != NULL)
            finish_chunk(&asking, before);
        before = chunk;
        chunk = chunk == &asking.chunks[0] ? &asking.chunks[1] : &asking.chunks[0];
    }
    if (before != NULL)
        finish_chunk(&asking, before);
}

static enum kvg_confidence confidence_of(const struct kvg_presence_view *view)
{
    return (enum kvg_confidence)atomic_load_explicit(
        &view->tenant->confidence, memory_order_acquire);
}

static void answer(struct kvg_presence_reader *reader, struct kvg_lookup *lookup)
{
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
    kvi_presence_pin(reader);
    look_up_pages(reader, lookup);
    kvi_presence_unpin(reader);
    /* The lower of both: a repair may have begun or ended meanwhile. */
    after = confidence_of(lookup->view);
    lookup->confidence = before < after ? before : after;
    lookup->partial = atomic_load_explicit(&reader->index->partial, memory_order_acquire);
}

void kvg_presence_lookup(
    struct kvg_presence_reader *reader, struct kvg_lookup *lookups, size_t lookup_count)
{
    size_t i;

    for (i = 0; i < lookup_count; i++)
        answer(reader, &lookups[i]);
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
