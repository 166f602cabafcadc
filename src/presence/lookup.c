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
#define BEGIN_PAGES 4u /* Probes begun at once. */
/* Pages from the beginning of the chunk before to those ahead. */
#define PROBES 128u
_Static_assert(
    PROBES >= 2 * CHUNK_PAGES + PAGES_AHEAD, "no probe is overwritten too early");
/* Buckets behind the first that are asked for before a closer look for a stray. */
#define LATE_BUCKETS 4u

static uint32_t heat_of(uint32_t now, uint32_t depth)
{
    return now << HEAT_DEPTH_BITS | (depth < HEAT_DEPTH_MAX ? depth : HEAT_DEPTH_MAX);
}

/* What the pages of a chunk satisfy: bit p of word c is page p and class c. */
struct chunk {
    uint32_t first;
    uint32_t count;
    uint32_t late; /* Pages that take a closer look, as bits. */
    struct verdict verdicts[CHUNK_PAGES];
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
    uint32_t begun; /* Probes. */
    struct prefix prefix;
    struct chunk chunks[2];      /* The one being read, and the one before. */
    struct probe probes[PROBES]; /* Page p's is at p % PROBES. */
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

static void judge_chunk(struct asking *asking, const struct chunk *chunk)
{
    uint64_t asked = pages_from_start(chunk, asking->lookup->start);

    judge_ranges(asking, chunk);
    if (asking->prefix.open && asked != 0)
        judge_prefix(asking, chunk, asked);
}

/* Reads a page that lies where it is looked for first and is at rest, as nearly all are.
 * False if it is not so: then find_page() looks closely. */
static inline bool read_quickly(const struct kvg_presence_view *view,
    const struct probe *probe, uint32_t heat, struct verdict *out)
{
    unsigned matches = match_heads(probe->first, probe->head) |
                       match_heads(probe->second, probe->head) << BUCKET_SLOTS;
    uint32_t at =
        (uint32_t)__builtin_ctz(matches | 1u << 2 * BUCKET_SLOTS) % BUCKET_SLOTS;
    struct kvi_bucket *bucket =
        matches < 1u << BUCKET_SLOTS ? probe->first : probe->second;
    uint32_t meta;
    uint64_t parts;
    unsigned is_it;

    if (matches == 0) {
        *out = (struct verdict){0};
        return !has_strayed(probe->first);
    }
    meta = atomic_load_explicit(&bucket->meta[at], memory_order_acquire);
    is_it = (unsigned)(load(&bucket->head[at]) == probe->head) &
            (unsigned)(load(&bucket->body[at]) == probe->body) &
            (unsigned)(kvi_meta_space(meta) == view->space_id) & (~meta & 1);
    parts = load(&bucket->parts[at]);
    is_it &=
        (unsigned)((parts & PARTS_WIDE) == 0) &
        (unsigned)(atomic_load_explicit(&bucket->meta[at], memory_order_acquire) == meta);
    if (KVI_UNLIKELY(!is_it))
        return false;
    judge_inline(view, parts, out);
    if (out->any & 1)
        touch(bucket, at, heat);
    return true;
}

static void note_missing(
    struct kvg_lookup *lookup, uint32_t page, const struct verdict *verdict)
{
    lookup->first_missing = page;
    lookup->missing_parts = lookup->view->required_count - verdict->held_count -
                            kvi_presence_popcount(verdict->held_bits);
}

/* Asks for what a closer look will need: the buckets behind the first for a stray, or the record
 * that a page's parts are in. */
static inline void prefetch_late(const struct probe *probe)
{
    unsigned matches = match_heads(probe->first, probe->head);
    struct kvi_bucket *bucket = matches != 0 ? probe->first : probe->second;
    uint32_t ahead;

    if (matches == 0)
        matches = match_heads(probe->second, probe->head);
    if (matches != 0) {
        uint64_t parts = load(&bucket->parts[__builtin_ctz(matches)]);

        if (parts & PARTS_WIDE)
            __builtin_prefetch(kvi_record_of(parts));
        return;
    }
    for (ahead = 1; ahead <= LATE_BUCKETS; ahead++) /* Never mind the segment's end. */
        __builtin_prefetch(probe->first + ahead);
}

/* Turns the verdicts of the chunk's pages into words of bits. */
static void gather_chunk(struct kvg_lookup *lookup, struct chunk *chunk)
{
    uint32_t class_count = lookup->view->class_count;
    uint32_t p;
    uint32_t c;

    memset(chunk->any, 0, class_count * sizeof(chunk->any[0]));
    memset(chunk->cpu, 0, class_count * sizeof(chunk->cpu[0]));
    memset(chunk->disk, 0, class_count * sizeof(chunk->disk[0]));
    for (p = 0; p < chunk->count; p++) {
        const struct verdict *verdict = &chunk->verdicts[p];
        uint32_t page = chunk->first + p;

        chunk->any[0] |= (verdict->any & 1) << p;
        chunk->cpu[0] |= (verdict->cpu & 1) << p;
        chunk->disk[0] |= (verdict->disk & 1) << p;
        for (c = 1; c < class_count; c++) {
            chunk->any[c] |= (verdict->any >> c & 1) << p;
            chunk->cpu[c] |= (verdict->cpu >> c & 1) << p;
            chunk->disk[c] |= (verdict->disk >> c & 1) << p;
        }
        if (!(verdict->any & 1) && lookup->first_missing == lookup->key_count &&
            page >= lookup->start)
            note_missing(lookup, page, verdict);
    }
}

/* Begins the probes of the next few pages. */
static inline void begin_some(struct asking *asking, uint32_t count)
{
    const struct kvg_lookup *lookup = asking->lookup;
    uint32_t left = lookup->key_count - asking->begun;
    uint32_t end = asking->begun + (count < left ? count : left);

    for (; asking->begun < end; asking->begun++)
        asking->probes[asking->begun % PROBES] =
            begin_probe(asking->directory, lookup->view, &lookup->keys[asking->begun]);
}

/* Judges each page of the chunk that lies where it is looked for first; the others are late. */
static void judge_quickly(struct asking *asking, struct chunk *chunk)
{
    const struct kvg_presence_view *view = asking->lookup->view;
    uint32_t p;

    chunk->late = 0;
    for (p = 0; p < chunk->count; p++) {
        uint32_t page = chunk->first + p;
        const struct probe *probe = &asking->probes[page % PROBES];
        uint32_t heat = heat_of(asking->now, page);

        if (page % BEGIN_PAGES == 0)
            begin_some(asking, BEGIN_PAGES);
        if (KVI_LIKELY(read_quickly(view, probe, heat, &chunk->verdicts[p])))
            continue;
        chunk->late |= UINT32_C(1) << p;
        prefetch_late(probe);
    }
}

static void judge_late(struct asking *asking, struct chunk *chunk)
{
    const struct kvg_presence_view *view = asking->lookup->view;
    uint32_t late;

    for (late = chunk->late; late != 0; late &= late - 1) {
        uint32_t p = (uint32_t)__builtin_ctz(late);
        uint32_t page = chunk->first + p;
        const struct probe *probe = &asking->probes[page % PROBES];
        struct verdict *verdict = &chunk->verdicts[p];
        struct kvi_slot slot;

        if (kvi_presence_find_page(view, probe, verdict, &slot, asking->lookup) &&
            verdict->any & 1)
            touch(slot.bucket, slot.at, heat_of(asking->now, page));
    }
}

static void finish_chunk(struct asking *asking, struct chunk *chunk)
{
    judge_late(asking, chunk);
    gather_chunk(asking->lookup, chunk);
    judge_chunk(asking, chunk);
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
        judge_quickly(&asking, chunk);
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
