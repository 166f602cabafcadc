/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* segment.c -- segments: grown by a quarter, split in two, purged, and relieved of the coldest.
 *
 *     4 units -> 5 -> 6 -> 7 -> two of 4           each when 27/32 of the slots are used
 *
 * So a segment is between 2/3 and 27/32 full, and no step copies more than SEGMENT_SLOTS_MAX
 * slots.  Readers keep the old segment while they are in it: it no longer changes.
 *
 * At the memory limit nothing grows.  Heads are spread by a secret salt, so the pages of a
 * segment are a fair sample of all pages: its coldest eighth gives way.  "Cold" weighs age and
 * depth together (score_of): of pages asked for at the same time the deeper goes first, and a
 * chain's tail goes before its head even if the head was asked for a little earlier.
 */
#include "presence/index.h"

#define ALIGNMENT ((size_t)SEGMENT_HEADER_BYTES)
/* Kept for purging and eviction at the limit: two of the largest segments. */
#define RESERVE_SEGMENTS 2
/* Segments that are looked at for pages that may go. */
#define EVICT_TRIES_MAX 1024u
#define SCORE_GARBAGE UINT32_MAX
#define SCORE_PROTECTED 0

static size_t segment_bytes(const struct kvg_presence *index, uint32_t units)
{
    size_t slots = (size_t)units * UNIT_BUCKETS * BUCKET_SLOTS;

    return SEGMENT_HEADER_BYTES + slots / BUCKET_SLOTS * sizeof(struct kvi_bucket) +
           (index->full_keys ? slots * TAIL_BYTES : 0);
}

/* Whether so many bytes may be used; frees what can be freed first. */
static bool within_limit(struct kvg_presence *index, size_t bytes, bool may_use_reserve)
{
    size_t reserve = may_use_reserve ? 0
                                     : RESERVE_SEGMENTS *
                                           (segment_bytes(index, UNITS_MAX) + ALIGNMENT);
    size_t needed = bytes + ALIGNMENT + reserve;

    if (kvi_own(&index->counters.memory_bytes) + needed <= index->memory_bytes_max)
        return true;
    kvi_presence_reclaim(index);
    return kvi_own(&index->counters.memory_bytes) + needed <= index->memory_bytes_max;
}

kvg_err kvi_presence_segment_new(struct kvg_presence *index, uint32_t units,
    uint64_t first_head, uint32_t depth, bool may_use_reserve, struct kvi_segment **out)
{
    size_t bytes = segment_bytes(index, units);
    struct kvi_segment *segment;
    void *memory;
    uintptr_t start;

    *out = NULL;
    if (!within_limit(index, bytes, may_use_reserve))
        return KVG_ELIMIT;
    memory = kvi_alloc_array(&index->alloc, bytes + ALIGNMENT, 1);
    if (memory == NULL)
        return KVG_ENOMEM;
    start = ((uintptr_t)memory + ALIGNMENT - 1) & ~(uintptr_t)(ALIGNMENT - 1);
    segment = (struct kvi_segment *)((char *)memory + (start - (uintptr_t)memory));
    *segment = (struct kvi_segment){.first_head = first_head,
        .depth = depth,
        .units = units,
        .memory = memory,
        .memory_bytes = bytes + ALIGNMENT};
    if (index->full_keys)
        segment->tails = (uint8_t *)(kvi_buckets(segment) + kvi_bucket_count(segment));
    kvi_count(&index->counters.slots, kvi_slot_count(segment));
    *out = segment;
    return KVG_OK;
}

void kvi_presence_segment_release(struct kvg_presence *index, struct kvi_segment *segment)
{
    kvi_release_array(&index->alloc, segment->memory, segment->memory_bytes, 1);
}

struct kvi_segment *kvi_presence_segment_of(struct kvg_presence *index, uint64_t head)
{
    return kvi_entry_segment(kvi_entry_of(index, head));
}

/* Lets the directory name a segment for all heads it covers. */
static void publish(struct kvg_presence *index, struct kvi_segment *segment)
{
    struct kvi_directory *directory =
        atomic_load_explicit(&index->directory, memory_order_relaxed);
    uint64_t first = kvi_directory_index(segment->first_head, directory->depth);
    uint64_t count = UINT64_C(1) << (directory->depth - segment->depth);
    uint64_t i;

    for (i = 0; i < count; i++) /* Ordered before the scan of the seats (reclaim.c). */
        atomic_store_explicit(&directory->entries[first + i],
            (uint64_t)(uintptr_t)segment | segment->units, memory_order_seq_cst);
}

static void retire(struct kvg_presence *index, struct kvi_segment *segment)
{
    kvi_count(&index->counters.slots, -(int64_t)kvi_slot_count(segment));
    kvi_presence_retire_segment(index, segment);
}

/* x as a logarithm with 8 bits behind the point; x is at least 1 and below 2^24.  Monotone. */
static uint32_t log2_fixed(uint32_t x)
{
    uint32_t top = 31u - (uint32_t)__builtin_clz(x);

    return top << 8 | ((x << 8 >> top) & 0xff);
}

/* How ready a page is to go: its age, weighed by the fourth root of its depth; of equals the
 * deeper. */
static uint32_t score_of(const struct kvg_presence *index, const struct kvi_slot *slot)
{
    uint32_t heat =
        atomic_load_explicit(&slot->bucket->heat[slot->at], memory_order_relaxed);
    uint32_t depth = heat & HEAT_DEPTH_MAX;
    uint32_t now = atomic_load_explicit(&index->now, memory_order_relaxed);
    uint32_t age = (now - (heat >> HEAT_DEPTH_BITS)) & HEAT_STAMP_MASK;

    if (index->pass.active && kvi_presence_parts_settled_absent(index, slot))
        return SCORE_PROTECTED;
    if (kvi_presence_parts_tally(slot).pairs == 0)
        return SCORE_GARBAGE;
    return ((log2_fixed(age + 1) + log2_fixed(depth + 1) / 4) << HEAT_DEPTH_BITS |
               depth) +
           1;
}

/* The score above which fewer than `wanted` of the scores lie, and with which at least as many;
 * digit by digit from the top. */
static uint32_t threshold_of(
    const uint32_t *scores, uint32_t count, uint32_t wanted, uint32_t *above_out)
{
    uint32_t prefix = 0;
    uint32_t above = 0;
    int shift;

    for (shift = 24; shift >= 0; shift -= 8) {
        uint32_t histogram[256] = {0};
        uint32_t digit = 255;
        uint32_t i;

        for (i = 0; i < count; i++)
            if (shift == 24 || scores[i] >> (shift + 8) == prefix >> (shift + 8))
                histogram[scores[i] >> shift & 0xff]++;
        while (digit > 0 && above + histogram[digit] < wanted)
            above += histogram[digit--];
        prefix |= digit << shift;
    }
    *above_out = above;
    return prefix;
}

/* Who goes: everything above `score`, and `ties` of those with just that score. */
struct victims {
    uint32_t score;
    uint32_t ties;
};

static bool is_taken(struct kvi_bucket *bucket, uint32_t at)
{
    return kvi_own(&bucket->head[at]) >= HEAD_MIN;
}

static struct victims choose_victims(
    struct kvg_presence *index, struct kvi_segment *segment, const struct kvi_slot *kept)
{
    uint32_t wanted = (segment->live + 7) / 8;
    uint32_t count = 0;
    uint32_t above;
    struct victims victims;
    struct kvi_slot slot = {.segment = segment};
    uint32_t i;

    for (i = 0; i < kvi_slot_count(segment); i++) {
        slot.bucket = kvi_buckets(segment) + i / BUCKET_SLOTS;
        slot.at = i % BUCKET_SLOTS;
        if (!is_taken(slot.bucket, slot.at))
            continue;
        if (kept != NULL && kept->bucket == slot.bucket && kept->at == slot.at)
            continue;
        index->scores[count++] = score_of(index, &slot);
    }
    if (wanted > count)
        wanted = count;
    if (wanted == 0)
        return (struct victims){.score = UINT32_MAX, .ties = 0};
    victims.score = threshold_of(index->scores, count, wanted, &above);
    victims.ties = wanted - above;
    return victims;
}

static bool is_victim(const struct kvg_presence *index, const struct kvi_slot *slot,
    struct victims *victims)
{
    uint32_t score = score_of(index, slot);

    if (score > victims->score)
        return true;
    if (score < victims->score || victims->ties == 0)
        return false;
    victims->ties--;
    return true;
}

/* A page gives way: counted, and no longer known. */
static void count_eviction(struct kvg_presence *index, const struct kvi_slot *slot)
{
    if (index->pass.active && kvi_presence_parts_settled_absent(index, slot))
        index->pass.lossy = true;
    if (kvi_presence_parts_tally(slot).pairs == 0)
        return;
    kvi_count(&index->counters.evicted_pages, 1);
    kvi_presence_lost(index);
}

uint32_t kvi_presence_segment_evict(
    struct kvg_presence *index, struct kvi_segment *segment, const struct kvi_slot *kept)
{
    struct victims victims = choose_victims(index, segment, kept);
    struct kvi_slot slot = {.segment = segment};
    uint32_t evicted = 0;
    uint32_t i;

    for (i = 0; i < kvi_slot_count(segment); i++) {
        slot.bucket = kvi_buckets(segment) + i / BUCKET_SLOTS;
        slot.at = i % BUCKET_SLOTS;
        if (!is_taken(slot.bucket, slot.at) ||
            (kept != NULL && kept->bucket == slot.bucket && kept->at == slot.at) ||
            !is_victim(index, &slot, &victims))
            continue;
        count_eviction(index, &slot);
        kvi_presence_drop(index, &slot);
        evicted++;
    }
    return evicted;
}

uint32_t kvi_presence_segment_evict_elsewhere(
    struct kvg_presence *index, const struct kvi_slot *kept)
{
    uint32_t evicted = 0;
    uint32_t tries;

    for (tries = 0; tries < EVICT_TRIES_MAX && evicted == 0; tries++) {
        struct kvi_segment *segment = kvi_presence_segment_of(index, index->evict_cursor);

        if (segment->live > 1)
            evicted = kvi_presence_segment_evict(index, segment, kept);
        index->evict_cursor = kvi_segment_behind(segment);
    }
    return evicted;
}

/* Forgetting a slot that is not copied: its segment goes as a whole. */
static void leave_slot(struct kvg_presence *index, const struct kvi_slot *slot)
{
    uint64_t parts = kvi_slot_parts(slot);

    kvi_presence_recount(index, kvi_slot_space(slot), kvi_presence_parts_tally(slot),
        (struct kvi_tally){0});
    if (parts & PARTS_WIDE)
        kvi_presence_retire_record(index, kvi_record_of(parts));
}

/* Copies a segment into one or two others: by the bit behind its prefix if there are two.
 * Leaves garbage, and victims if there are any, behind. */
static void move_slots(struct kvg_presence *index, struct kvi_segment *from,
    struct kvi_segment *low, struct kvi_segment *high, struct victims *victims)
{
    struct kvi_slot slot = {.segment = from};
    uint32_t i;

    for (i = 0; i < kvi_slot_count(from); i++) {
        uint64_t head;

        slot.bucket = kvi_buckets(from) + i / BUCKET_SLOTS;
        slot.at = i % BUCKET_SLOTS;
        head = kvi_own(&slot.bucket->head[slot.at]);
        if (head < HEAD_MIN)
            continue;
        if (victims != NULL && is_victim(index, &slot, victims)) {
            count_eviction(index, &slot);
            leave_slot(index, &slot);
        } else if (kvi_presence_parts_tally(&slot).pairs == 0 &&
                   !kvi_presence_parts_settled(index, &slot)) {
            leave_slot(index, &slot);
        } else {
            kvi_presence_table_copy(
                &slot, high != NULL && head >= high->first_head ? high : low);
        }
    }
}

/* Moves a segment into one of `units`, without the coldest if `evict`. */
static kvg_err rebuild(
    struct kvg_presence *index, struct kvi_segment *segment, uint32_t units, bool evict)
{
    struct victims victims = {0};
    struct kvi_segment *fresh;
    bool may_use_reserve = units == segment->units;
    kvg_err err;

    err = kvi_presence_segment_new(
        index, units, segment->first_head, segment->depth, may_use_reserve, &fresh);
    if (err != KVG_OK)
        return err;
    if (evict)
        victims = choose_victims(index, segment, NULL);
    move_slots(index, segment, fresh, NULL, evict ? &victims : NULL);
    publish(index, fresh);
    retire(index, segment);
    return KVG_OK;
}

static kvg_err double_directory(struct kvg_presence *index)
{
    struct kvi_directory *old =
        atomic_load_explicit(&index->directory, memory_order_relaxed);
    size_t count = (size_t)1 << old->depth;
    size_t bytes = sizeof(*old) + 2 * count * sizeof(old->entries[0]);
    struct kvi_directory *directory;
    size_t i;

    if (old->depth == DIRECTORY_DEPTH_MAX)
        return KVG_ELIMIT;
    if (!within_limit(index, bytes, false))
        return KVG_ELIMIT;
    directory = kvi_alloc_array(&index->alloc, bytes, 1);
    if (directory == NULL)
        return KVG_ENOMEM;
    directory->depth = old->depth + 1;
    for (i = 0; i < 2 * count; i++)
        kvi_put(&directory->entries[i], kvi_own(&old->entries[i / 2]));
    atomic_store_explicit(&index->directory, directory, memory_order_seq_cst);
    kvi_presence_retire_directory(index, old);
    return KVG_OK;
}

/* The least units that hold so many slots three quarters full. */
static uint32_t units_for(uint32_t slots)
{
    uint32_t units = UNITS_MIN;

    while (units < UNITS_MAX && slots > units * UNIT_BUCKETS * BUCKET_SLOTS / 4 * 3)
        units++;
    return units;
}

static kvg_err split(struct kvg_presence *index, struct kvi_segment *segment)
{
    uint64_t middle = segment->first_head | UINT64_C(1) << (63 - segment->depth);
    uint32_t depth = segment->depth + 1;
    struct kvi_segment *low;
    struct kvi_segment *high;
    uint32_t high_count = 0;
    uint32_t i;
    kvg_err err = KVG_OK;

    for (i = 0; i < kvi_slot_count(segment); i++) {
        struct kvi_bucket *bucket = kvi_buckets(segment) + i / BUCKET_SLOTS;

        high_count += kvi_own(&bucket->head[i % BUCKET_SLOTS]) >= middle &&
                      is_taken(bucket, i % BUCKET_SLOTS);
    }
    if (atomic_load_explicit(&index->directory, memory_order_relaxed)->depth ==
        segment->depth)
        err = double_directory(index);
    if (err == KVG_OK)
        err = kvi_presence_segment_new(index, units_for(segment->live - high_count),
            segment->first_head, depth, false, &low);
    if (err != KVG_OK)
        return err;
    err = kvi_presence_segment_new(
        index, units_for(high_count), middle, depth, false, &high);
    if (err != KVG_OK) {
        kvi_count(&index->counters.slots, -(int64_t)kvi_slot_count(low));
        kvi_presence_segment_release(index, low);
        return err;
    }
    move_slots(index, segment, low, high, NULL);
    publish(index, low);
    publish(index, high);
    retire(index, segment);
    return KVG_OK;
}

kvg_err kvi_presence_segment_make_room(struct kvg_presence *index, uint64_t head)
{
    struct kvi_segment *segment = kvi_presence_segment_of(index, head);
    uint32_t slots = kvi_slot_count(segment);
    kvg_err err;

    if (segment->live <= slots / 4 * 3) { /* The rest is slots that were: purge. */
        err = rebuild(index, segment, segment->units, false);
        return err == KVG_ELIMIT ? KVG_OK : err; /* Or go on with them. */
    }
    if (index->table_is_fixed)
        err = KVG_ELIMIT;
    else if (segment->units < UNITS_MAX)
        err = rebuild(index, segment, segment->units + 1, false);
    else
        err = split(index, segment);
    if (err != KVG_ELIMIT)
        return err;
    err = rebuild(index, segment, segment->units, true);
    if (err == KVG_OK)
        return KVG_OK;
    /* Not even room for a copy, because readers hold what was retired: make it in place. */
    return kvi_presence_segment_evict(index, segment, NULL) != 0 ? KVG_OK : err;
}

/* The size of a table: 2^depth segments of so many units, `larger` of them of one more. */
struct plan {
    uint32_t depth;
    uint32_t units;
    uint64_t larger;
    bool is_cut; /* The limit allows no more, but the pages need it. */
};

/* Whether segments with so many pages on average need not grow, but for one in six: those with
 * more than a standard deviation over the mean. */
static bool holds(uint32_t units, uint64_t mean)
{
    uint64_t used_max = (uint64_t)units * UNIT_BUCKETS * BUCKET_SLOTS / 32 * 27;

    return mean < used_max && (used_max - mean) * (used_max - mean) >= mean;
}

/* The bytes of such a table with so many pages. */
static uint64_t plan_bytes(const struct kvg_presence *index, struct plan plan,
    uint64_t pages, size_t record_bytes)
{
    uint64_t slots = (uint64_t)plan.units * UNIT_BUCKETS * BUCKET_SLOTS << plan.depth;
    uint64_t pages_max = slots / 32 * 27;

    return ((segment_bytes(index, plan.units) + ALIGNMENT + 2 * sizeof(uint64_t))
               << plan.depth) +
           (pages < pages_max ? pages : pages_max) * record_bytes;
}

/* The limit allows nothing larger than this plan: lets as many segments as there is room for have
 * one unit more. */
static void cut(const struct kvg_presence *index, struct plan *plan, uint64_t room,
    uint64_t pages, size_t record_bytes)
{
    uint64_t bytes = plan_bytes(index, *plan, pages, record_bytes);
    uint64_t slots = UNIT_BUCKETS * BUCKET_SLOTS;
    uint64_t unit_bytes = segment_bytes(index, plan->units + 1) -
                          segment_bytes(index, plan->units) +
                          slots / 32 * 27 * record_bytes;

    plan->is_cut = true;
    if (plan->units < UNITS_MAX && bytes < room)
        plan->larger = (room - bytes) / unit_bytes;
    if (plan->larger > UINT64_C(1) << plan->depth)
        plan->larger = UINT64_C(1) << plan->depth;
}

/* The units of segment i: the larger ones lie evenly between the others. */
static uint32_t planned_units(struct plan plan, uint64_t i)
{
    return plan.units +
           ((i + 1) * plan.larger >> plan.depth != i * plan.larger >> plan.depth);
}

static struct plan plan_for(
    struct kvg_presence *index, uint64_t pages, size_t record_bytes)
{
    uint64_t used = kvi_own(&index->counters.memory_bytes) +
                    RESERVE_SEGMENTS * (segment_bytes(index, UNITS_MAX) + ALIGNMENT);
    uint64_t room = used < index->memory_bytes_max ? index->memory_bytes_max - used : 0;
    struct plan plan = {.units = UNITS_MIN};

    while (!holds(plan.units, pages >> plan.depth)) {
        struct plan next = {.depth = plan.depth, .units = plan.units + 1};

        if (next.units > UNITS_MAX)
            next = (struct plan){.depth = plan.depth + 1, .units = UNITS_MIN};
        if (next.depth > DIRECTORY_DEPTH_MAX ||
            plan_bytes(index, next, pages, record_bytes) > room) {
            cut(index, &plan, room, pages, record_bytes);
            break;
        }
        plan = next;
    }
    return plan;
}

static void release_planned(
    struct kvg_presence *index, struct kvi_directory *directory, size_t bytes)
{
    uint64_t i;

    for (i = 0; i < UINT64_C(1) << directory->depth; i++) {
        struct kvi_segment *segment = kvi_entry_segment(kvi_own(&directory->entries[i]));

        if (segment == NULL)
            break;
        kvi_count(&index->counters.slots, -(int64_t)kvi_slot_count(segment));
        kvi_presence_segment_release(index, segment);
    }
    kvi_release_array(&index->alloc, directory, bytes, 1);
}

void kvi_presence_segment_reserve(
    struct kvg_presence *index, uint64_t pages, size_t record_bytes)
{
    struct kvi_directory *old =
        atomic_load_explicit(&index->directory, memory_order_relaxed);
    struct kvi_segment *segment = kvi_entry_segment(kvi_own(&old->entries[0]));
    struct plan plan = plan_for(index, pages, record_bytes);
    size_t bytes = sizeof(*old) + (sizeof(old->entries[0]) << plan.depth);
    struct kvi_directory *directory;
    uint64_t i;

    if (old->depth != 0 || segment->live != 0 || segment->gone != 0)
        return;
    index->table_is_fixed = plan.is_cut;
    if (plan.depth == 0 && planned_units(plan, 0) <= segment->units)
        return;
    directory = kvi_alloc_array(&index->alloc, bytes, 1);
    if (directory == NULL)
        return;
    directory->depth = plan.depth;
    for (i = 0; i < UINT64_C(1) << plan.depth; i++) {
        struct kvi_segment *made;

        if (kvi_presence_segment_new(index, planned_units(plan, i),
                plan.depth == 0 ? 0 : i << (64 - plan.depth), plan.depth, false,
                &made) != KVG_OK) {
            release_planned(index, directory, bytes);
            return;
        }
        kvi_put(&directory->entries[i], (uint64_t)(uintptr_t)made | made->units);
    }
    atomic_store_explicit(&index->directory, directory, memory_order_seq_cst);
    kvi_presence_retire_directory(index, old);
    retire(index, segment);
}
