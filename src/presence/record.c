/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* record.c -- which parts of a page are where: in the slot's one word, or in a record.
 *
 * Up to INLINE_PARTS parts the word holds all: a change is one store.  A page with a higher part
 * gets a record with three words for every 64 parts.  A record's cpu and disk words are changed
 * under its sequence, so that a reader sees the words of one moment; a record that must grow is
 * copied, and the slot's word is stored once.
 *
 * Settled bits belong to the pass whose number stands beside them: another number makes them
 * void, so that a pass begins without touching the table.  Only the writer reads them.
 */
#include "presence/index.h"

#define GROUP_WORDS 3u
#define WORD_CPU 0u
#define WORD_DISK 1u
#define WORD_SETTLED 2u

size_t kvi_presence_record_bytes(uint32_t group_count)
{
    return sizeof(struct kvi_record) +
           (size_t)group_count * GROUP_WORDS * sizeof(_Atomic uint64_t);
}

void kvi_presence_record_release(struct kvg_presence *index, struct kvi_record *record)
{
    kvi_release_array(
        &index->alloc, record, kvi_presence_record_bytes(record->group_count), 1);
}

/* Set bits of a word, without the instruction that not every machine has. */
uint32_t kvi_presence_popcount(uint64_t word)
{
    word -= word >> 1 & UINT64_C(0x5555555555555555);
    word = (word & UINT64_C(0x3333333333333333)) +
           (word >> 2 & UINT64_C(0x3333333333333333));
    word = (word + (word >> 4)) & UINT64_C(0x0f0f0f0f0f0f0f0f);
    return (uint32_t)((word * UINT64_C(0x0101010101010101)) >> 56);
}

static uint32_t inline_pass(uint64_t parts)
{
    return (uint32_t)(parts >> PARTS_PASS_SHIFT) & PASS_MAX;
}

unsigned kvi_presence_parts_get(
    const struct kvg_presence *index, const struct kvi_slot *slot, uint32_t part)
{
    uint64_t parts = kvi_slot_parts(slot);
    unsigned state;

    if (parts & PARTS_WIDE) {
        struct kvi_record *record = kvi_record_of(parts);
        _Atomic uint64_t *group = &record->words[part / 64 * GROUP_WORDS];
        unsigned bit = part % 64;

        if (part / 64 >= record->group_count)
            return 0;
        state = (unsigned)(kvi_own(&group[WORD_CPU]) >> bit & 1) * STATE_CPU |
                (unsigned)(kvi_own(&group[WORD_DISK]) >> bit & 1) * STATE_DISK;
        if (record->pass == index->pass.number)
            state |= (unsigned)(kvi_own(&group[WORD_SETTLED]) >> bit & 1) * STATE_SETTLED;
        return state;
    }
    if (part >= INLINE_PARTS)
        return 0;
    parts >>= part;
    state = (unsigned)(parts & 1) * STATE_CPU |
            (unsigned)(parts >> PARTS_DISK_SHIFT & 1) * STATE_DISK;
    if (inline_pass(kvi_slot_parts(slot)) == index->pass.number)
        state |= (unsigned)(parts >> PARTS_SETTLED_SHIFT & 1) * STATE_SETTLED;
    return state;
}

/* The inline word with a part's state set. */
static uint64_t set_inline(uint64_t parts, uint32_t part, unsigned state, uint32_t pass)
{
    const uint64_t bit = UINT64_C(1) << part;
    const uint64_t all = bit | bit << PARTS_DISK_SHIFT | bit << PARTS_SETTLED_SHIFT;

    if (inline_pass(parts) != pass) /* Settled for another pass: void. */
        parts = (parts & PARTS_PRESENT) | (uint64_t)pass << PARTS_PASS_SHIFT;
    parts &= ~all;
    if (state & STATE_CPU)
        parts |= bit;
    if (state & STATE_DISK)
        parts |= bit << PARTS_DISK_SHIFT;
    if (state & STATE_SETTLED)
        parts |= bit << PARTS_SETTLED_SHIFT;
    return parts;
}

static void set_bit(_Atomic uint64_t *word, unsigned bit, bool value)
{
    uint64_t mask = UINT64_C(1) << bit;

    kvi_put(word, value ? kvi_own(word) | mask : kvi_own(word) & ~mask);
}

/* Sets a part in a record.  `published` if readers may be in it. */
static void set_in_record(struct kvi_record *record, uint32_t part, unsigned state,
    uint32_t pass, bool published)
{
    _Atomic uint64_t *group = &record->words[part / 64 * GROUP_WORDS];
    uint64_t sequence = kvi_own(&record->sequence);
    unsigned bit = part % 64;
    uint32_t i;

    if (record->pass != pass) {
        for (i = 0; i < record->group_count; i++)
            kvi_put(&record->words[i * GROUP_WORDS + WORD_SETTLED], 0);
        record->pass = pass;
    }
    set_bit(&group[WORD_SETTLED], bit, state & STATE_SETTLED);
    if (published)
        kvi_put(&record->sequence, sequence + 1);
    set_bit(&group[WORD_CPU], bit, state & STATE_CPU);
    set_bit(&group[WORD_DISK], bit, state & STATE_DISK);
    if (published)
        kvi_put(&record->sequence, sequence + 2);
}

static struct kvi_record *new_record(struct kvg_presence *index, uint32_t group_count)
{
    struct kvi_record *record =
        kvi_alloc_array(&index->alloc, kvi_presence_record_bytes(group_count), 1);

    if (record != NULL)
        record->group_count = group_count;
    return record;
}

/* Copies what a slot's word says into a fresh record that is as large or larger. */
static void fill_record(struct kvi_record *record, uint64_t parts)
{
    uint32_t i;

    if (parts & PARTS_WIDE) {
        struct kvi_record *old = kvi_record_of(parts);

        record->pass = old->pass;
        for (i = 0; i < old->group_count * GROUP_WORDS; i++)
            kvi_put(&record->words[i], kvi_own(&old->words[i]));
        return;
    }
    record->pass = inline_pass(parts);
    kvi_put(&record->words[WORD_CPU], parts & 0xffff);
    kvi_put(&record->words[WORD_DISK], parts >> PARTS_DISK_SHIFT & 0xffff);
    kvi_put(&record->words[WORD_SETTLED], parts >> PARTS_SETTLED_SHIFT & 0xffff);
}

/* A record of so many groups that says what the slot's word says; not yet published.  Others may
 * give way for it, but not the slot. */
static struct kvi_record *make_record(
    struct kvg_presence *index, const struct kvi_slot *slot, uint32_t group_count)
{
    size_t bytes = kvi_presence_record_bytes(group_count);
    struct kvi_record *record = new_record(index, group_count);

    if (record == NULL &&
        kvi_own(&index->counters.memory_bytes) + bytes > index->memory_bytes_max) {
        if (kvi_presence_segment_evict(index, slot->segment, slot) == 0)
            (void)kvi_presence_segment_evict_elsewhere(index, slot);
        kvi_presence_reclaim(index);
        record = new_record(index, group_count);
    }
    if (record != NULL)
        fill_record(record, kvi_slot_parts(slot));
    return record;
}

/* Lets a record take the place of what the slot's word says. */
static void publish_record(
    struct kvg_presence *index, const struct kvi_slot *slot, struct kvi_record *record)
{
    uint64_t parts = kvi_slot_parts(slot);

    kvi_put(&slot->bucket->parts[slot->at], (uint64_t)(uintptr_t)record | PARTS_WIDE);
    if (parts & PARTS_WIDE)
        kvi_presence_retire_record(index, kvi_record_of(parts));
}

kvg_err kvi_presence_parts_set(struct kvg_presence *index, const struct kvi_slot *slot,
    uint32_t part, unsigned state)
{
    _Atomic uint64_t *word = &slot->bucket->parts[slot->at];
    uint64_t parts = kvi_own(word);
    struct kvi_record *record;

    if (!(parts & PARTS_WIDE) && part < INLINE_PARTS) {
        kvi_put(word, set_inline(parts, part, state, index->pass.number));
        return KVG_OK;
    }
    if (parts & PARTS_WIDE && part / 64 < kvi_record_of(parts)->group_count) {
        set_in_record(kvi_record_of(parts), part, state, index->pass.number, true);
        return KVG_OK;
    }
    if (state == 0)
        return KVG_OK; /* It is absent already. */
    record = make_record(index, slot, part / 64 + 1);
    if (record == NULL)
        return KVG_ENOMEM;
    set_in_record(record, part, state, index->pass.number, false);
    publish_record(index, slot, record);
    return KVG_OK;
}

/* What a group may take in: nothing that an event of the pass removed. */
static uint64_t mergeable(uint64_t present, uint64_t settled)
{
    return ~(settled & ~present);
}

static void merge_into_record(const struct kvg_presence *index, struct kvi_record *record,
    const struct kvi_group *groups, uint32_t group_count, bool published)
{
    bool is_current = index->pass.active && record->pass == index->pass.number;
    uint64_t sequence = kvi_own(&record->sequence);
    uint32_t i;

    if (published)
        kvi_put(&record->sequence, sequence + 1);
    for (i = 0; i < group_count; i++) {
        _Atomic uint64_t *words = &record->words[i * GROUP_WORDS];
        uint64_t cpu = kvi_own(&words[WORD_CPU]);
        uint64_t disk = kvi_own(&words[WORD_DISK]);
        uint64_t mask = is_current ? mergeable(cpu | disk, kvi_own(&words[WORD_SETTLED]))
                                   : UINT64_MAX;

        kvi_put(&words[WORD_CPU], cpu | (groups[i].cpu & mask));
        kvi_put(&words[WORD_DISK], disk | (groups[i].disk & mask));
    }
    if (published)
        kvi_put(&record->sequence, sequence + 2);
}

kvg_err kvi_presence_parts_merge(struct kvg_presence *index, const struct kvi_slot *slot,
    const struct kvi_group *groups, uint32_t group_count)
{
    _Atomic uint64_t *word = &slot->bucket->parts[slot->at];
    uint64_t parts = kvi_own(word);
    struct kvi_record *record;

    if (!(parts & PARTS_WIDE) && group_count == 1 &&
        (groups[0].cpu | groups[0].disk) >> INLINE_PARTS == 0) {
        uint64_t mask = UINT64_MAX;

        if (index->pass.active && inline_pass(parts) == index->pass.number)
            mask = mergeable(
                parts | parts >> PARTS_DISK_SHIFT, parts >> PARTS_SETTLED_SHIFT & 0xffff);
        kvi_put(word,
            parts | (groups[0].cpu & mask) | (groups[0].disk & mask) << PARTS_DISK_SHIFT);
        return KVG_OK;
    }
    if (parts & PARTS_WIDE && group_count <= kvi_record_of(parts)->group_count) {
        merge_into_record(index, kvi_record_of(parts), groups, group_count, true);
        return KVG_OK;
    }
    record = make_record(index, slot, group_count);
    if (record == NULL)
        return KVG_ENOMEM;
    merge_into_record(index, record, groups, group_count, false);
    publish_record(index, slot, record);
    return KVG_OK;
}

struct kvi_tally kvi_presence_parts_tally(const struct kvi_slot *slot)
{
    uint64_t parts = kvi_slot_parts(slot);
    struct kvi_tally tally = {0};
    struct kvi_record *record;
    uint32_t i;

    if (!(parts & PARTS_WIDE)) {
        tally.pairs = kvi_presence_popcount(parts & PARTS_PRESENT);
        tally.cpu = kvi_presence_popcount(parts & 0xffff);
        tally.objects =
            kvi_presence_popcount((parts | parts >> PARTS_DISK_SHIFT) & 0xffff);
        return tally;
    }
    record = kvi_record_of(parts);
    for (i = 0; i < record->group_count; i++) {
        uint64_t cpu = kvi_own(&record->words[i * GROUP_WORDS + WORD_CPU]);
        uint64_t disk = kvi_own(&record->words[i * GROUP_WORDS + WORD_DISK]);

        tally.cpu += kvi_presence_popcount(cpu);
        tally.pairs += kvi_presence_popcount(cpu) + kvi_presence_popcount(disk);
        tally.objects += kvi_presence_popcount(cpu | disk);
    }
    return tally;
}

unsigned kvi_presence_parts_media(const struct kvi_slot *slot)
{
    uint64_t parts = kvi_slot_parts(slot);
    uint64_t cpu = parts & 0xffff;
    uint64_t disk = parts >> PARTS_DISK_SHIFT & 0xffff;

    if (parts & PARTS_WIDE) {
        struct kvi_record *record = kvi_record_of(parts);
        uint32_t i;

        cpu = 0;
        disk = 0;
        for (i = 0; i < record->group_count; i++) {
            cpu |= kvi_own(&record->words[i * GROUP_WORDS + WORD_CPU]);
            disk |= kvi_own(&record->words[i * GROUP_WORDS + WORD_DISK]);
        }
    }
    return (cpu != 0 ? STATE_CPU : 0) | (disk != 0 ? STATE_DISK : 0);
}

/* Whether the current pass settled a part, or one that is absent. */
static bool any_settled(
    const struct kvg_presence *index, const struct kvi_slot *slot, bool absent_only)
{
    uint64_t parts = kvi_slot_parts(slot);
    struct kvi_record *record;
    uint64_t settled;
    uint64_t present;
    uint32_t i;

    if (!(parts & PARTS_WIDE)) {
        settled = parts >> PARTS_SETTLED_SHIFT & 0xffff;
        present = (parts | parts >> PARTS_DISK_SHIFT) & 0xffff;
        return inline_pass(parts) == index->pass.number &&
               (absent_only ? settled & ~present : settled) != 0;
    }
    record = kvi_record_of(parts);
    if (record->pass != index->pass.number)
        return false;
    for (i = 0; i < record->group_count; i++) {
        _Atomic uint64_t *group = &record->words[i * GROUP_WORDS];

        settled = kvi_own(&group[WORD_SETTLED]);
        present = kvi_own(&group[WORD_CPU]) | kvi_own(&group[WORD_DISK]);
        if ((absent_only ? settled & ~present : settled) != 0)
            return true;
    }
    return false;
}

bool kvi_presence_parts_settled(
    const struct kvg_presence *index, const struct kvi_slot *slot)
{
    return index->pass.active && any_settled(index, slot, false);
}

bool kvi_presence_parts_settled_absent(
    const struct kvg_presence *index, const struct kvi_slot *slot)
{
    return any_settled(index, slot, true);
}

void kvi_presence_parts_drop_unsettled(
    struct kvg_presence *index, const struct kvi_slot *slot)
{
    _Atomic uint64_t *word = &slot->bucket->parts[slot->at];
    uint64_t parts = kvi_own(word);
    bool is_current;
    struct kvi_record *record;
    uint64_t sequence;
    uint32_t i;

    if (!(parts & PARTS_WIDE)) {
        uint64_t settled = inline_pass(parts) == index->pass.number
                               ? parts >> PARTS_SETTLED_SHIFT & 0xffff
                               : 0;

        kvi_put(word, parts & (settled | settled << PARTS_DISK_SHIFT));
        return;
    }
    record = kvi_record_of(parts);
    is_current = record->pass == index->pass.number;
    sequence = kvi_own(&record->sequence);
    kvi_put(&record->sequence, sequence + 1);
    for (i = 0; i < record->group_count; i++) {
        _Atomic uint64_t *group = &record->words[i * GROUP_WORDS];
        uint64_t settled = is_current ? kvi_own(&group[WORD_SETTLED]) : 0;

        kvi_put(&group[WORD_CPU], kvi_own(&group[WORD_CPU]) & settled);
        kvi_put(&group[WORD_DISK], kvi_own(&group[WORD_DISK]) & settled);
        kvi_put(&group[WORD_SETTLED], 0);
    }
    kvi_put(&record->sequence, sequence + 2);
    record->pass = 0;
}

void kvi_presence_parts_forget_pass(const struct kvi_slot *slot)
{
    _Atomic uint64_t *word = &slot->bucket->parts[slot->at];
    uint64_t parts = kvi_own(word);
    struct kvi_record *record;
    uint32_t i;

    if (!(parts & PARTS_WIDE)) {
        if (parts & ~PARTS_PRESENT)
            kvi_put(word, parts & PARTS_PRESENT);
        return;
    }
    record = kvi_record_of(parts);
    record->pass = 0;
    for (i = 0; i < record->group_count; i++)
        kvi_put(&record->words[i * GROUP_WORDS + WORD_SETTLED], 0);
}
