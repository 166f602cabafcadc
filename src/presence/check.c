/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* check.c -- the index's invariants (index.h), and all it holds, as object keys. */
#include "presence/index.h"

#include "base/fmt.h"
#include "base/hex.h"

struct checking {
    int broken;
    const char *what;
    uint64_t pages;
    uint64_t parts;
    uint64_t objects;
    uint64_t cpu_parts;
    uint64_t cpu_pages;
    uint64_t disk_pages;
    uint64_t memory_bytes;
    uint32_t live;
    uint32_t gone;
};

static void breaks(struct checking *checking, int number, const char *what)
{
    if (checking->broken == 0) {
        checking->broken = number;
        checking->what = what;
    }
}

static void check_record(
    struct checking *checking, const struct kvi_space *space, struct kvi_record *record)
{
    uint32_t i;

    if (kvi_own(&record->sequence) & 1)
        breaks(checking, 4, "P4: a record's sequence is odd");
    for (i = 0; i < record->group_count * 3; i++) {
        uint64_t word = kvi_own(&record->words[i]);

        while (word != 0) {
            uint32_t bit = (uint32_t)__builtin_ctzll(word);

            word &= word - 1;
            if (i / 3 * 64 + bit >= space->suffixes.count)
                breaks(checking, 7, "P7: a part beyond the suffixes of its space");
        }
    }
    checking->memory_bytes += kvi_presence_record_bytes(record->group_count);
}

static void check_parts(
    struct kvg_presence *index, struct checking *checking, struct kvi_slot *slot)
{
    struct kvi_space *space = index->spaces[kvi_slot_space(slot)];
    uint64_t parts = kvi_slot_parts(slot);
    struct kvi_tally tally = kvi_presence_parts_tally(slot);
    uint64_t settled = parts >> PARTS_SETTLED_SHIFT & 0xffff;
    uint32_t i;

    if (parts & PARTS_WIDE) {
        struct kvi_record *record = kvi_record_of(parts);

        check_record(checking, space, record);
        settled = 0;
        for (i = 0; i < record->group_count; i++)
            settled |= kvi_own(&record->words[i * 3 + 2]);
    } else {
        uint64_t bits = (parts | parts >> PARTS_DISK_SHIFT) & 0xffff;

        if (space->suffixes.count < INLINE_PARTS &&
            (bits | settled) >> space->suffixes.count != 0)
            breaks(checking, 7, "P7: a part beyond the suffixes of its space");
    }
    if (tally.pairs == 0 && settled == 0)
        breaks(checking, 6, "P6: a slot holds nothing and remembers nothing");
    checking->pages += tally.pairs != 0;
    checking->parts += tally.pairs;
    checking->objects += tally.objects;
    checking->cpu_parts += tally.cpu;
    checking->cpu_pages += tally.cpu != 0;
    checking->disk_pages += tally.pairs != tally.cpu;
}

static void check_slot(struct kvg_presence *index, struct kvi_slot *slot, void *context)
{
    struct checking *checking = context;
    uint64_t head = kvi_own(&slot->bucket->head[slot->at]);
    uint32_t meta =
        atomic_load_explicit(&slot->bucket->meta[slot->at], memory_order_relaxed);
    struct kvi_page page = {.head = head, .body = kvi_own(&slot->bucket->body[slot->at])};
    struct kvi_slot found;

    if (meta & 1)
        breaks(checking, 4, "P4: a slot's version is odd");
    if (kvi_meta_space(meta) >= index->space_names.count) {
        breaks(checking, 5, "P5: a slot of no space");
        return;
    }
    page.space = index->spaces[kvi_meta_space(meta)];
    if (kvi_presence_segment_of(index, head) != slot->segment)
        breaks(checking, 2, "P2: a page in another segment than its head's");
    else if (!kvi_presence_table_find(index, &page, &found))
        breaks(checking, 2, "P2: a page behind an empty slot");
    else if (found.bucket != slot->bucket || found.at != slot->at)
        breaks(checking, 3, "P3: a page twice");
    check_parts(index, checking, slot);
}

static void check_segment(
    struct kvg_presence *index, struct checking *checking, struct kvi_segment *segment)
{
    uint32_t live = 0;
    uint32_t gone = 0;
    uint32_t i;

    for (i = 0; i < kvi_slot_count(segment); i++) {
        struct kvi_slot slot = {
            segment, kvi_buckets(segment) + i / BUCKET_SLOTS, i % BUCKET_SLOTS};
        uint64_t head = kvi_own(&slot.bucket->head[slot.at]);

        gone += head == HEAD_GONE;
        live += head >= HEAD_MIN;
        if (head >= HEAD_MIN)
            check_slot(index, &slot, checking);
        else if (kvi_slot_parts(&slot) != 0)
            breaks(checking, 8, "P8: a free slot with parts");
    }
    if (live != segment->live || gone != segment->gone)
        breaks(checking, 5, "P5: a segment's counts are not those of its slots");
    checking->memory_bytes += segment->memory_bytes;
}

static void check_directory(struct kvg_presence *index, struct checking *checking)
{
    struct kvi_directory *directory =
        atomic_load_explicit(&index->directory, memory_order_relaxed);
    uint64_t count = UINT64_C(1) << directory->depth;
    uint64_t slots = 0;
    uint64_t i = 0;

    checking->memory_bytes +=
        sizeof(*directory) + (sizeof(_Atomic uint64_t) << directory->depth);
    while (i < count && checking->broken == 0) {
        uint64_t entry = kvi_own(&directory->entries[i]);
        struct kvi_segment *segment =
            (struct kvi_segment *)(uintptr_t)(entry &
                                              ~(uint64_t)(SEGMENT_HEADER_BYTES - 1));
        uint64_t covered = UINT64_C(1) << (directory->depth - segment->depth);
        uint64_t k;

        if (segment->depth > directory->depth ||
            kvi_directory_index(segment->first_head, directory->depth) != i)
            breaks(checking, 1, "P1: a segment covers other heads than its entry");
        for (k = 0; k < covered; k++)
            if (kvi_own(&directory->entries[i + k]) != entry ||
                (entry & (SEGMENT_HEADER_BYTES - 1)) != segment->units)
                breaks(checking, 1, "P1: entries of a segment's range differ");
        check_segment(index, checking, segment);
        slots += kvi_slot_count(segment);
        i += covered;
    }
    if (slots != kvi_own(&index->counters.slots))
        breaks(checking, 5, "P5: the count of slots is wrong");
}

static void check_memory(struct kvg_presence *index, struct checking *checking)
{
    uint64_t used = kvi_own(&index->counters.memory_bytes);
    uint32_t i;

    checking->memory_bytes +=
        sizeof(*index) + SEATS_BYTES + kvi_names_memory(&index->tenant_names) +
        kvi_names_memory(&index->space_names) +
        (index->tenants_capacity + index->spaces_capacity) * sizeof(void *) +
        index->tenant_names.count * sizeof(struct kvi_tenant);
    for (i = 0; i < index->space_names.count; i++)
        checking->memory_bytes +=
            sizeof(struct kvi_space) + kvi_names_memory(&index->spaces[i]->suffixes);
    if (used > index->memory_bytes_max)
        breaks(checking, 9, "P9: more memory than the limit");
    if (index->open.count == 0 && index->closed.count == 0 && index->view_count == 0 &&
        used != checking->memory_bytes)
        breaks(checking, 9, "P9: the memory in use is not that of the parts");
}

static void check_totals(struct kvg_presence *index, struct checking *checking)
{
    uint64_t pages = 0;
    uint32_t i;

    for (i = 0; i < index->space_names.count; i++)
        pages += index->spaces[i]->pages;
    if (pages != checking->pages || kvi_own(&index->counters.pages) != checking->pages ||
        kvi_own(&index->counters.parts) != checking->parts ||
        kvi_own(&index->counters.objects) != checking->objects ||
        kvi_own(&index->counters.cpu_pages) != checking->cpu_pages ||
        kvi_own(&index->counters.disk_pages) != checking->disk_pages ||
        kvi_own(&index->counters.cpu_parts) != checking->cpu_parts ||
        kvi_own(&index->counters.disk_parts) != checking->parts - checking->cpu_parts)
        breaks(checking, 5, "P5: the counts of pages or parts are wrong");
}

int kvi_presence_check(struct kvg_presence *index, const char **what)
{
    struct checking checking = {0};

    kvi_presence_reclaim(index);
    check_directory(index, &checking);
    if (checking.broken == 0) {
        check_totals(index, &checking);
        check_memory(index, &checking);
    }
    *what = checking.what;
    return checking.broken;
}

struct listing_out {
    void (*on_object)(void *context, struct kvg_str tenant, struct kvg_str object_key,
        enum kvg_medium medium);
    void *context;
    uint64_t count;
};

static void name_slot(struct kvg_presence *index, struct kvi_slot *slot, void *context)
{
    struct listing_out *out = context;
    const struct kvi_space *space = index->spaces[kvi_slot_space(slot)];
    struct kvg_str tenant = kvi_names_get(&index->tenant_names, space->tenant);
    struct kvg_key key = kvi_presence_table_key(index, slot);
    char buffer[KVG_OBJECT_KEY_BYTES_MAX + 1];
    char hex[KVG_KEY_HEX_BYTES];
    uint32_t part;

    kvg_key_to_hex(&key, hex);
    if (!index->full_keys)
        memset(hex + 32, '?', 32);
    for (part = 0; part < space->suffixes.count; part++) {
        unsigned state = kvi_presence_parts_get(index, slot, part) & STATE_PRESENT;
        struct kvi_text text;

        if (state == 0)
            continue;
        kvi_text_init(&text, buffer, sizeof(buffer));
        kvi_text_bytes(&text, kvi_presence_space_prefix(index, space));
        kvi_text_str(&text, text.bytes != 0 ? "_" : "");
        kvi_text_str(&text, hex);
        kvi_text_bytes(&text, kvi_names_get(&space->suffixes, part));
        out->count += kvi_presence_popcount(state);
        if (state & STATE_CPU)
            out->on_object(out->context, tenant, (struct kvg_str){buffer, text.bytes},
                KVG_MEDIUM_CPU);
        if (state & STATE_DISK)
            out->on_object(out->context, tenant, (struct kvg_str){buffer, text.bytes},
                KVG_MEDIUM_DISK);
    }
}

uint64_t kvg_presence_each(struct kvg_presence *index,
    void (*on_object)(void *context, struct kvg_str tenant, struct kvg_str object_key,
        enum kvg_medium medium),
    void *context)
{
    struct listing_out out = {.on_object = on_object, .context = context};
    uint64_t head = 0;

    do
        head = kvi_presence_table_visit(index, head, name_slot, &out);
    while (head != 0);
    return out.count;
}
