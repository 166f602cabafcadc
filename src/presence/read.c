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
 * Look-ups of a prompt's pages are independent: the cache lines of a whole chunk of pages are
 * asked for while the chunk before is read, so the time is that of the memory's throughput, not
 * its latency.  What a chunk's pages satisfy is kept as bits, a word a class, and ranges, holes
 * and prefixes are found in the words.
 */
#include "presence/view.h"

#define READ_RETRIES_MAX 64u
/* Pages that are asked for before they are used, and judged together. */
#define CHUNK_PAGES 32u
#define PROBES (3 * CHUNK_PAGES)
/* Buckets after the first that are asked for before a closer look. */
#define LATE_BUCKETS 4u

/* Which classes of the view a page satisfies: bit c of each. */
struct verdict {
    uint64_t any; /* With parts on whatever medium. */
    uint64_t cpu;
    uint64_t disk;
    uint64_t held_bits;  /* Parts of class 0 that are there: these bits ... */
    uint32_t held_count; /* ... and so many more. */
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

static inline struct probe begin_probe(struct kvi_directory *directory,
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

static inline void judge_inline(
    const struct kvg_presence_view *view, uint64_t parts, struct verdict *out)
{
    uint64_t cpu = parts & 0xffff;
    uint64_t disk = parts >> PARTS_DISK_SHIFT & 0xffff;
    uint64_t mask = view->inline_mask[0];
    uint32_t c;

    *out = (struct verdict){.any = ((cpu | disk) & mask) == mask,
        .cpu = (cpu & mask) == mask,
        .disk = (disk & mask) == mask,
        .held_bits = (cpu | disk) & mask};
    for (c = 1; c < view->class_count; c++) {
        mask = view->inline_mask[c];
        out->any |= (uint64_t)(((cpu | disk) & mask) == mask) << c;
        out->cpu |= (uint64_t)((cpu & mask) == mask) << c;
        out->disk |= (uint64_t)((disk & mask) == mask) << c;
    }
}

/* The same for a page with a record.  False if the record changed meanwhile. */
static bool judge_record(
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

/* The page was asked for now, at some depth.  A lost update is harmless. */
static inline void touch(struct kvi_bucket *bucket, uint32_t at, uint32_t heat)
{
    if (atomic_load_explicit(&bucket->heat[at], memory_order_relaxed) != heat)
        atomic_store_explicit(&bucket->heat[at], heat, memory_order_relaxed);
}

static uint32_t heat_of(uint32_t now, uint32_t depth)
{
    return now << HEAT_DEPTH_BITS | (depth < HEAT_DEPTH_MAX ? depth : HEAT_DEPTH_MAX);
}

/* Which of a bucket's slots have this head, as bits; no branch, for where it lies is random. */
static inline unsigned match_heads(
    struct kvi_bucket *bucket, uint64_t wanted, bool *has_empty)
{
    uint64_t a = load(&bucket->head[0]);
    uint64_t b = load(&bucket->head[1]);
    uint64_t c = load(&bucket->head[2]);
    uint64_t d = load(&bucket->head[3]);

    *has_empty =
        (a == HEAD_EMPTY) | (b == HEAD_EMPTY) | (c == HEAD_EMPTY) | (d == HEAD_EMPTY);
    return (unsigned)(a == wanted) | (unsigned)(b == wanted) << 1 |
           (unsigned)(c == wanted) << 2 | (unsigned)(d == wanted) << 3;
}

/* What the slot of a page says; the place in *slot_out.  False if it is not known. */
static inline bool find_page(const struct kvg_presence_view *view,
    const struct probe *probe, struct verdict *out, struct kvi_slot *slot_out,
    struct kvg_lookup *lookup)
{
    uint32_t b = probe->first;
    uint32_t seen;

    for (seen = 0; seen < probe->bucket_count; seen++) {
        struct kvi_bucket *bucket = probe->buckets + b;
        bool has_empty;
        unsigned matches = match_heads(bucket, probe->head, &has_empty);

        for (; matches != 0; matches &= matches - 1) {
            uint32_t at = (uint32_t)__builtin_ctz(matches);
            enum found found = read_slot(view, bucket, at, probe, out, &lookup->retries);

            *slot_out = (struct kvi_slot){NULL, bucket, at};
            if (KVI_LIKELY(found == FOUND_PAGE))
                return true;
            lookup->gave_up += found == FOUND_UNSTABLE;
        }
        if (has_empty)
            break;
        b = b + 1 == probe->bucket_count ? 0 : b + 1;
    }
    *out = (struct verdict){0};
    return false;
}

/* What the pages of a chunk satisfy: bit p of word c is page p and class c. */
struct chunk {
    uint32_t first;
    uint32_t count;
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
    struct prefix prefix;
    struct chunk chunk;
    struct verdict verdicts[CHUNK_PAGES];
    struct probe probes[PROBES]; /* Of this chunk and the two after it. */
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

static void judge_chunk(struct asking *asking)
{
    uint64_t asked = pages_from_start(&asking->chunk, asking->lookup->start);

    judge_ranges(asking, &asking->chunk);
    if (asking->prefix.open && asked != 0)
        judge_prefix(asking, &asking->chunk, asked);
}

/* Reads a page that lies where it is looked for first and is at rest, as nearly all are.
 * False if it is not so: then find_page() looks closely. */
static inline bool read_quickly(const struct kvg_presence_view *view,
    const struct probe *probe, uint32_t heat, struct verdict *out)
{
    struct kvi_bucket *bucket = probe->buckets + probe->first;
    bool has_empty;
    unsigned matches = match_heads(bucket, probe->head, &has_empty);
    uint32_t at = (uint32_t)__builtin_ctz(matches | 1u << BUCKET_SLOTS) % BUCKET_SLOTS;
    uint32_t meta;
    uint64_t parts;
    unsigned is_it;

    if (matches == 0) {
        *out = (struct verdict){0};
        return has_empty;
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

/* Asks for what find_page() will need for a page that could not be read quickly: the buckets
 * after the first, of which the first line mostly tells, or the record if its parts are in one. */
static inline void prefetch_late(const struct probe *probe)
{
    struct kvi_bucket *first = probe->buckets + probe->first;
    bool has_empty;
    unsigned matches = match_heads(first, probe->head, &has_empty);
    uint32_t b = probe->first;
    uint32_t ahead;

    if (matches != 0) {
        uint64_t parts = load(&first->parts[__builtin_ctz(matches)]);

        if (parts & PARTS_WIDE)
            __builtin_prefetch(kvi_record_of(parts));
        return;
    }
    for (ahead = 0; ahead < LATE_BUCKETS; ahead++) {
        b = b + 1 == probe->bucket_count ? 0 : b + 1;
        __builtin_prefetch(probe->buckets + b);
        __builtin_prefetch((const char *)(probe->buckets + b) + sizeof(*first) / 2);
    }
}

/* Judges each page of the chunk that lies where it is looked for first.  The others take a
 * closer look: what that needs is asked for, and they are returned as bits. */
static uint32_t judge_quickly(struct asking *asking)
{
    const struct kvg_presence_view *view = asking->lookup->view;
    uint32_t late = 0;
    uint32_t p;

    for (p = 0; p < asking->chunk.count; p++) {
        uint32_t page = asking->chunk.first + p;
        const struct probe *probe = &asking->probes[page % PROBES];
        uint32_t heat = heat_of(asking->now, page);

        if (KVI_LIKELY(read_quickly(view, probe, heat, &asking->verdicts[p])))
            continue;
        late |= UINT32_C(1) << p;
        prefetch_late(probe);
    }
    return late;
}

static void judge_late(struct asking *asking, uint32_t late)
{
    const struct kvg_presence_view *view = asking->lookup->view;

    for (; late != 0; late &= late - 1) {
        uint32_t p = (uint32_t)__builtin_ctz(late);
        uint32_t page = asking->chunk.first + p;
        const struct probe *probe = &asking->probes[page % PROBES];
        struct verdict *verdict = &asking->verdicts[p];
        struct kvi_slot slot;

        if (find_page(view, probe, verdict, &slot, asking->lookup) && verdict->any & 1)
            touch(slot.bucket, slot.at, heat_of(asking->now, page));
    }
}

/* Turns the verdicts of the chunk's pages into words of bits. */
static void gather_chunk(struct asking *asking)
{
    struct kvg_lookup *lookup = asking->lookup;
    struct chunk *chunk = &asking->chunk;
    uint32_t class_count = lookup->view->class_count;
    uint32_t p;
    uint32_t c;

    memset(chunk->any, 0, class_count * sizeof(chunk->any[0]));
    memset(chunk->cpu, 0, class_count * sizeof(chunk->cpu[0]));
    memset(chunk->disk, 0, class_count * sizeof(chunk->disk[0]));
    for (p = 0; p < chunk->count; p++) {
        const struct verdict *verdict = &asking->verdicts[p];
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

/* Begins the probes of the pages before `end`. */
static void begin_probes(struct asking *asking, uint32_t *begun, uint32_t end)
{
    const struct kvg_lookup *lookup = asking->lookup;

    if (end > lookup->key_count)
        end = lookup->key_count;
    for (; *begun < end; (*begun)++)
        asking->probes[*begun % PROBES] =
            begin_probe(asking->directory, lookup->view, &lookup->keys[*begun]);
}

static void look_up_pages(struct kvg_presence_reader *reader, struct kvg_lookup *lookup)
{
    struct chunk *chunk;
    struct asking asking;
    uint32_t begun = 0;

    asking.lookup = lookup;
    asking.directory =
        atomic_load_explicit(&reader->index->directory, memory_order_seq_cst);
    asking.now = atomic_load_explicit(&reader->index->now, memory_order_relaxed);
    asking.range_end = 0;
    asking.prefix = (struct prefix){.open = true, .cpu = true, .disk = true};
    chunk = &asking.chunk;
    begin_probes(&asking, &begun, 2 * CHUNK_PAGES);
    for (chunk->first = 0; chunk->first < lookup->key_count;
         chunk->first += CHUNK_PAGES) {
        uint32_t left = lookup->key_count - chunk->first;
        uint32_t late;

        chunk->count = left < CHUNK_PAGES ? left : CHUNK_PAGES;
        late = judge_quickly(&asking);
        /* While the memory of the late ones is on its way, ask for that of a chunk to come. */
        begin_probes(&asking, &begun, chunk->first + PROBES);
        judge_late(&asking, late);
        gather_chunk(&asking);
        judge_chunk(&asking);
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
