/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* file_record.c -- the bytes of the journal.
 *
 *     header   "kvgraftJ" | version u32 | 0 u32 | generation u64 | epoch u64 | sequence u64 |
 *              snapshot_bytes u64 | 0 u64 | checksum u64
 *     record   bytes u32 (of the payload, a multiple of 8) | kind u32 | checksum u64 | payload
 *
 * Numbers are little-endian.  A record's checksum covers its length, kind and payload and
 * is seeded with the generation and the offset, so that neither an old journal's bytes
 * nor a record in another place pass for one.
 *
 * Payloads; str is bytes u32 and the bytes themselves:
 *
 *     PUT      flags u32, parts u32, tick u64, group id str, previous key str, key to join str,
 *              then for each part: place u64, bytes u64, checksum u64, key str
 *     DROP     why u32, count u32, places u64...
 *     TOUCH    count u32, 0 u32, places u64...
 *     SEGMENT  id u32, slot bytes u32, slots u32, 0 u32
 *     PUNCH    count u32, 0 u32, places u64...
 *     BACKED   count u32, 0 u32, places u64...
 *     SYNCED   offset u64
 *     BOOT     boot id str
 *     CLEAR    keep u32, 0 u32, epoch u64 */
#include "backend/file.h"
#include "backend/hash.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/fmt.h"

static const char MAGIC[8] = {'k', 'v', 'g', 'r', 'a', 'f', 't', 'J'};

static void put_u32(uint8_t *out, uint32_t value)
{
    out[0] = (uint8_t)value;
    out[1] = (uint8_t)(value >> 8);
    out[2] = (uint8_t)(value >> 16);
    out[3] = (uint8_t)(value >> 24);
}

static void put_u64(uint8_t *out, uint64_t value)
{
    put_u32(out, (uint32_t)value);
    put_u32(out + 4, (uint32_t)(value >> 32));
}

static uint32_t get_u32(const uint8_t *in)
{
    return (uint32_t)in[0] | (uint32_t)in[1] << 8 | (uint32_t)in[2] << 16 |
           (uint32_t)in[3] << 24;
}

static uint64_t get_u64(const uint8_t *in)
{
    return get_u32(in) | (uint64_t)get_u32(in + 4) << 32;
}

/* ---- Making -------------------------------------------------------------------------------- */

void kvi_file_records_init(struct file_records *records, const struct kvg_alloc *alloc)
{
    *records = (struct file_records){.alloc = alloc};
}

void kvi_file_records_fini(struct file_records *records)
{
    kvi_release_array(records->alloc, records->data, records->capacity, 1);
    records->data = NULL;
}

static uint8_t *reserve(struct file_records *records, size_t bytes)
{
    size_t wanted = records->capacity == 0 ? 1024 : records->capacity;
    void *data = records->data;
    uint8_t *out;

    if (records->failed)
        return NULL;
    while (wanted - records->bytes < bytes)
        wanted *= 2;
    if (wanted != records->capacity) {
        if (!kvi_resize_array(records->alloc, &data, records->capacity, wanted, 1)) {
            records->failed = true;
            return NULL;
        }
        records->data = data;
        records->capacity = wanted;
    }
    out = records->data + records->bytes;
    records->bytes += bytes;
    return out;
}

void kvi_file_record_u32(struct file_records *records, uint32_t value)
{
    uint8_t *out = reserve(records, 4);

    if (out != NULL)
        put_u32(out, value);
}

void kvi_file_record_u64(struct file_records *records, uint64_t value)
{
    uint8_t *out = reserve(records, 8);

    if (out != NULL)
        put_u64(out, value);
}

void kvi_file_record_str(struct file_records *records, struct kvg_str text)
{
    uint8_t *out;

    kvi_file_record_u32(records, (uint32_t)text.bytes);
    out = reserve(records, text.bytes);
    if (out != NULL && text.bytes > 0)
        memcpy(out, text.data, text.bytes);
}

void kvi_file_record_begin(struct file_records *records, enum file_kind kind)
{
    records->begun = records->bytes;
    kvi_file_record_u32(records, 0);
    kvi_file_record_u32(records, kind);
    kvi_file_record_u64(records, 0);
}

void kvi_file_record_end(struct file_records *records)
{
    size_t payload = records->bytes - records->begun - RECORD_HEADER_BYTES;
    size_t pad = (8 - payload % 8) % 8;
    uint8_t *out = reserve(records, pad);

    if (out == NULL)
        return;
    memset(out, 0, pad);
    KVI_ASSERT(payload + pad <= RECORD_BYTES_MAX);
    put_u32(records->data + records->begun, (uint32_t)(payload + pad));
}

static uint64_t checksum(
    const uint8_t *record, size_t payload, uint64_t generation, uint64_t offset)
{
    uint64_t seed =
        kvi_checksum(record, 8, generation * UINT64_C(0x9e3779b97f4a7c15) + offset);

    return kvi_checksum(record + RECORD_HEADER_BYTES, payload, seed);
}

void kvi_file_records_seal(
    struct file_records *records, uint64_t generation, uint64_t offset)
{
    size_t at = 0;

    while (at < records->bytes) {
        uint8_t *record = records->data + at;
        size_t payload = get_u32(record);

        put_u64(record + 8, checksum(record, payload, generation, offset + at));
        at += RECORD_HEADER_BYTES + payload;
    }
}

/* ---- Reading ------------------------------------------------------------------------------- */

size_t kvi_file_record_read(const uint8_t *data, size_t bytes, uint64_t generation,
    uint64_t offset, struct file_reader *reader, bool *more_out)
{
    size_t payload;

    *more_out = bytes < RECORD_HEADER_BYTES;
    if (*more_out)
        return 0;
    payload = get_u32(data);
    if (payload > RECORD_BYTES_MAX || payload % 8 != 0)
        return 0;
    *more_out = bytes - RECORD_HEADER_BYTES < payload;
    if (*more_out || get_u64(data + 8) != checksum(data, payload, generation, offset))
        return 0;
    *reader = (struct file_reader){
        .data = data + RECORD_HEADER_BYTES, .bytes = payload, .kind = get_u32(data + 4)};
    return RECORD_HEADER_BYTES + payload;
}

static const uint8_t *take(struct file_reader *reader, size_t bytes)
{
    const uint8_t *out = reader->data + reader->at;

    if (reader->failed || bytes > reader->bytes - reader->at) {
        reader->failed = true;
        return NULL;
    }
    reader->at += bytes;
    return out;
}

uint32_t kvi_file_read_u32(struct file_reader *reader)
{
    const uint8_t *in = take(reader, 4);

    return in == NULL ? 0 : get_u32(in);
}

uint64_t kvi_file_read_u64(struct file_reader *reader)
{
    const uint8_t *in = take(reader, 8);

    return in == NULL ? 0 : get_u64(in);
}

struct kvg_str kvi_file_read_str(struct file_reader *reader)
{
    uint32_t bytes = kvi_file_read_u32(reader);
    const uint8_t *in = take(reader, bytes);

    if (in == NULL || bytes == 0)
        return (struct kvg_str){NULL, 0};
    return (struct kvg_str){(const char *)in, bytes};
}

/* ---- The header ---------------------------------------------------------------------------- */

void kvi_file_header_make(uint8_t header[JOURNAL_HEADER_BYTES],
    const struct file_journal *journal, uint64_t epoch, uint64_t sequence)
{
    memset(header, 0, JOURNAL_HEADER_BYTES);
    memcpy(header, MAGIC, sizeof(MAGIC));
    put_u32(header + 8, FILE_VERSION);
    put_u64(header + 16, journal->generation);
    put_u64(header + 24, epoch);
    put_u64(header + 32, sequence);
    put_u64(header + 40, journal->snapshot_bytes);
    put_u64(header + 56, kvi_checksum(header, 56, 0));
}

kvg_err kvi_file_header_read(const uint8_t header[JOURNAL_HEADER_BYTES],
    struct file_journal *journal, uint64_t *epoch, uint64_t *sequence,
    struct kvg_error *error)
{
    if (memcmp(header, MAGIC, sizeof(MAGIC)) != 0)
        return kvi_fail(error, KVG_EFORMAT, "store.file", "the journal is none");
    if (get_u32(header + 8) != FILE_VERSION)
        return kvi_fail_range(error, "store.file.version", get_u32(header + 8),
                   FILE_VERSION, FILE_VERSION),
               KVG_EVERSION;
    if (get_u64(header + 56) != kvi_checksum(header, 56, 0))
        return kvi_fail(
            error, KVG_EFORMAT, "store.file", "the journal's header is damaged");
    journal->generation = get_u64(header + 16);
    *epoch = get_u64(header + 24);
    *sequence = get_u64(header + 32);
    journal->snapshot_bytes = get_u64(header + 40);
    return KVG_OK;
}
