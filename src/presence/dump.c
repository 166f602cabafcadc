/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* dump.c -- writing an index to bytes (dump.h, docs/dump-format.md). */
#include "presence/dump.h"

/* No factor of a segment's number of buckets. */
#define BUCKET_STRIDE 101u
#define BUCKETS_AHEAD 8u

struct dumper {
    bool (*write)(void *context, const void *bytes, size_t byte_count);
    void *context;
    uint64_t checksum; /* Of what was written last. */
    uint64_t pages;
    bool failed;
    struct dump_buffer block; /* The checksum before, the block being filled. */
};

/* Ends what is in the buffer with its checksum and writes it. */
static void write_out(struct dumper *dumper)
{
    struct dump_buffer *block = &dumper->block;
    uint8_t digest[32];

    memcpy(block->bytes, &dumper->checksum, DUMP_CHECKSUM_BYTES);
    kvg_sha256(block->bytes, block->at, digest);
    memcpy(&dumper->checksum, digest, DUMP_CHECKSUM_BYTES);
    dump_put(block, dumper->checksum, DUMP_CHECKSUM_BYTES);
    if (!dumper->failed)
        dumper->failed = !dumper->write(dumper->context,
            block->bytes + DUMP_CHECKSUM_BYTES, block->at - DUMP_CHECKSUM_BYTES);
}

static void begin_block(struct dumper *dumper, enum dump_kind kind)
{
    dumper->block.at = DUMP_CHECKSUM_BYTES;
    dump_put(&dumper->block, kind, 4);
    dump_put(&dumper->block, 0, 4);
}

static size_t payload_bytes(const struct dumper *dumper)
{
    return dumper->block.at - DUMP_CHECKSUM_BYTES - 8;
}

static void end_block(struct dumper *dumper)
{
    uint32_t bytes = (uint32_t)payload_bytes(dumper);

    KVI_ASSERT(bytes <= DUMP_PAYLOAD_MAX);
    memcpy(dumper->block.bytes + DUMP_CHECKSUM_BYTES + 4, &bytes, sizeof(bytes));
    write_out(dumper);
}

static void put_str(struct dump_buffer *block, struct kvg_str str, size_t length_bytes)
{
    dump_put(block, str.bytes, length_bytes);
    KVI_ASSERT(block->at + str.bytes <= sizeof(block->bytes));
    if (str.bytes != 0)
        memcpy(block->bytes + block->at, str.data, str.bytes);
    block->at += str.bytes;
}

static void dump_header(struct dumper *dumper, struct kvg_presence *index)
{
    struct dump_buffer *block = &dumper->block;

    block->at = DUMP_CHECKSUM_BYTES;
    memcpy(block->bytes + block->at, DUMP_MAGIC, sizeof(DUMP_MAGIC));
    block->at += sizeof(DUMP_MAGIC);
    dump_put(block, DUMP_VERSION, 4);
    dump_put(block, index->full_keys ? 32 : 16, 4);
    dump_put(block, kvi_own(&index->counters.pages), 8);
    write_out(dumper);
}

static void dump_suffixes(struct dumper *dumper, const struct kvi_space *space)
{
    struct dump_buffer *block = &dumper->block;
    uint32_t part = 0;

    while (part < space->suffixes.count) {
        uint32_t first = part;
        size_t count_at;
        uint16_t count;

        begin_block(dumper, DUMP_SUFFIXES);
        dump_put(block, space->id, 2);
        dump_put(block, first, 2);
        count_at = block->at;
        dump_put(block, 0, 2);
        while (
            part < space->suffixes.count &&
            payload_bytes(dumper) + 1 + KVG_LAYOUT_SUFFIX_BYTES_MAX <= DUMP_PAYLOAD_MAX)
            put_str(block, kvi_names_get(&space->suffixes, part++), 1);
        count = (uint16_t)(part - first);
        memcpy(block->bytes + count_at, &count, sizeof(count));
        end_block(dumper);
    }
}

static void dump_spaces(struct dumper *dumper, const struct kvg_presence *index)
{
    uint32_t i;

    for (i = 0; i < index->space_names.count; i++) {
        const struct kvi_space *space = index->spaces[i];

        begin_block(dumper, DUMP_SPACE);
        put_str(&dumper->block, kvi_names_get(&index->tenant_names, space->tenant), 2);
        put_str(&dumper->block, kvi_presence_space_prefix(index, space), 2);
        end_block(dumper);
        dump_suffixes(dumper, space);
    }
}

static void put_parts(struct dump_buffer *block, uint64_t parts)
{
    struct kvi_record *record;
    uint32_t i;

    if (!(parts & PARTS_WIDE)) {
        dump_put(block, 0, 1);
        dump_put(block, parts & PARTS_PRESENT, 4);
        return;
    }
    record = kvi_record_of(parts);
    dump_put(block, record->group_count, 1);
    for (i = 0; i < record->group_count; i++) {
        dump_put(block, kvi_own(&record->words[i * 3]), 8);
        dump_put(block, kvi_own(&record->words[i * 3 + 1]), 8);
    }
}

static void dump_slot(
    struct kvg_presence *index, struct dumper *dumper, const struct kvi_slot *slot)
{
    struct dump_buffer *block = &dumper->block;
    uint32_t heat =
        atomic_load_explicit(&slot->bucket->heat[slot->at], memory_order_relaxed);
    uint32_t now = atomic_load_explicit(&index->now, memory_order_relaxed);
    uint32_t age = (now - (heat >> HEAT_DEPTH_BITS)) & HEAT_STAMP_MASK;
    struct kvg_key key = kvi_presence_table_key(index, slot);
    size_t key_bytes = index->full_keys ? 32 : 16;

    if (kvi_presence_parts_tally(slot).pairs == 0)
        return;
    if (payload_bytes(dumper) + DUMP_PAGE_BYTES_MAX > DUMP_PAYLOAD_MAX) {
        end_block(dumper);
        begin_block(dumper, DUMP_PAGES);
    }
    dump_put(block, kvi_slot_space(slot), 2);
    memcpy(block->bytes + block->at, key.bytes, key_bytes);
    block->at += key_bytes;
    dump_put(block, age << HEAT_DEPTH_BITS | (heat & HEAT_DEPTH_MAX), 4);
    put_parts(block, kvi_slot_parts(slot));
    dumper->pages++;
}

/* Dumps a segment, its buckets in strides: in their own order a smaller segment that loads them
 * would fill bucket by bucket, and find no room where it looks. */
static void dump_segment(
    struct kvg_presence *index, struct dumper *dumper, struct kvi_segment *segment)
{
    uint32_t count = kvi_bucket_count(segment);
    struct kvi_slot slot = {.segment = segment};
    uint32_t i;

    for (i = 0; i < count && !dumper->failed; i++) {
        slot.bucket = kvi_buckets(segment) + i * BUCKET_STRIDE % count;
        __builtin_prefetch(
            kvi_buckets(segment) + (i + BUCKETS_AHEAD) * BUCKET_STRIDE % count);
        for (slot.at = 0; slot.at < BUCKET_SLOTS; slot.at++)
            if (kvi_own(&slot.bucket->head[slot.at]) >= HEAD_MIN)
                dump_slot(index, dumper, &slot);
    }
}

kvg_err kvg_presence_dump(struct kvg_presence *index,
    bool (*write)(void *context, const void *bytes, size_t byte_count), void *context)
{
    struct dumper dumper = {.write = write, .context = context};
    uint64_t head = 0;

    dump_header(&dumper, index);
    dump_spaces(&dumper, index);
    begin_block(&dumper, DUMP_PAGES);
    do {
        struct kvi_segment *segment = kvi_presence_segment_of(index, head);

        dump_segment(index, &dumper, segment);
        head = kvi_segment_behind(segment);
    } while (head != 0 && !dumper.failed);
    end_block(&dumper);
    begin_block(&dumper, DUMP_END);
    dump_put(&dumper.block, dumper.pages, 8);
    end_block(&dumper);
    return dumper.failed ? KVG_EIO : KVG_OK;
}
