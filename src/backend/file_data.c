/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* file_data.c -- the bytes of parts: written, read, and never believed.
 *
 *     segment   | slot 0: data .. | slot 1: data .. | ... | table 0 | table 1 | ...
 *     table     | checksum u64 of each 64 KiB chunk of a part of more than one |
 *
 * Tables are behind the slots and not in them, so that a slot of a power of two begins at one: file
 * systems keep such a file in larger pieces, which makes writes a quarter faster.
 *
 * The index keeps one number for a part: the checksum of its only chunk, or that of the
 * table of chunk checksums.  So a range can be verified by reading the table and the
 * chunks that it touches.  A whole value is verified without the table, slice by slice as it comes,
 * straight into the caller's memory.
 *
 * Readers take no lock.  The slot may be given to another part while they read; then what they
 * have does not match the checksum of the part they asked for. */
#include "backend/file.h"
#include "backend/hash.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/fmt.h"

#include <errno.h>

#define VECTOR_MAX 64

int kvi_file_segment_fd(
    struct file_store *file, struct file_segment *segment, unsigned flags)
{
    int fd = atomic_load_explicit(&segment->fd, memory_order_acquire);
    char path[FILE_PATH_MAX];

    if (fd >= 0)
        return fd;
    pthread_mutex_lock(&file->fds);
    fd = atomic_load_explicit(&segment->fd, memory_order_relaxed);
    if (fd < 0) {
        fd = file->io->open(file->io->context,
            kvi_file_segment_path(file, segment->id, path),
            file->read_only ? FILE_IO_READ_ONLY : flags);
        if (fd >= 0)
            atomic_store_explicit(&segment->fd, fd, memory_order_release);
    }
    pthread_mutex_unlock(&file->fds);
    return fd;
}

/* Puts the name of a segment on disk, once.  Whoever made the file may have died before doing so,
 * and then its data, synced or not, would be lost with the name. */
static int sync_name(struct file_store *file, struct file_segment *segment)
{
    int code;

    if (file->sync == FILE_SYNC_NONE ||
        atomic_load_explicit(&segment->named, memory_order_acquire))
        return 0;
    code = file->io->sync_dir(file->io->context, file->dir);
    if (code >= 0)
        atomic_store_explicit(&segment->named, true, memory_order_release);
    return code;
}

int kvi_file_segment_make(struct file_store *file, struct file_segment *segment)
{
    int fd = kvi_file_segment_fd(file, segment, FILE_IO_CREATE | FILE_IO_TRUNCATE);
    int code = fd < 0 ? fd : sync_name(file, segment);

    return code < 0 ? code : fd;
}

int kvi_file_place_fd(
    struct file_store *file, uint64_t place, bool to_write, uint64_t *table_out)
{
    struct file_segment *segment;
    int fd = -ENOENT;
    int code = 0;

    pthread_rwlock_rdlock(&file->index);
    segment = kvi_file_segment(file, PLACE_SEGMENT(place));
    if (segment != NULL)
        fd = kvi_file_segment_fd(file, segment, to_write ? FILE_IO_CREATE : 0);
    if (fd >= 0 && table_out != NULL)
        *table_out =
            (uint64_t)segment->slot_count * segment->slot_bytes +
            PLACE_SLOT(place) * file_chunk_count(segment->slot_bytes) * sizeof(uint64_t);
    if (fd >= 0 && to_write)
        code = sync_name(file, segment);
    pthread_rwlock_unlock(&file->index);
    return code < 0 ? code : fd;
}

static uint64_t slot_offset(uint64_t place, uint32_t slot_bytes)
{
    return (uint64_t)PLACE_SLOT(place) * slot_bytes;
}

/* ---- Checksums of chunks ------------------------------------------------------------------- */

void kvi_file_sum_add(struct file_summer *summer, const void *data, size_t bytes)
{
    const uint8_t *at = data;

    while (bytes > 0) {
        size_t room = CHUNK_BYTES - summer->filled;
        size_t taken = room < bytes ? room : bytes;

        if (taken == CHUNK_BYTES) {
            summer->sums[summer->chunk++] = kvi_checksum(at, taken, 0);
        } else {
            if (summer->filled == 0)
                kvi_checksum_begin(&summer->state);
            kvi_checksum_add(&summer->state, at, taken);
            summer->filled += taken;
        }
        if (summer->filled == CHUNK_BYTES) {
            summer->sums[summer->chunk++] = kvi_checksum_end(&summer->state);
            summer->filled = 0;
        }
        at += taken;
        bytes -= taken;
    }
}

void kvi_file_sum_end(struct file_summer *summer)
{
    if (summer->filled > 0)
        summer->sums[summer->chunk++] = kvi_checksum_end(&summer->state);
    summer->filled = 0;
}

/* ---- Reading ------------------------------------------------------------------------------- */

struct read {
    struct file_store *file;
    const struct file_found *found;
    int fd;
    uint64_t base;  /* Of the slot. */
    uint64_t table; /* Of its checksums. */
    size_t chunks;
    uint64_t *sums;
    uint64_t sum;    /* Where `sums` is, of a single chunk. */
    uint8_t *bounce; /* One chunk, made when it is needed. */
    size_t bounced;  /* Which; SIZE_MAX: none. */
};

static bool read_exactly(struct read *read, void *out, size_t bytes, uint64_t offset)
{
    struct iovec vector = {out, bytes};

    return read->file->io->readv(read->file->io->context, read->fd, &vector, 1, offset) ==
           (ssize_t)bytes;
}

static size_t chunk_bytes(const struct read *read, size_t chunk)
{
    uint64_t left = read->found->bytes - (uint64_t)chunk * CHUNK_BYTES;

    return left < CHUNK_BYTES ? (size_t)left : CHUNK_BYTES;
}

static bool read_sums(struct read *read)
{
    size_t bytes = read->chunks * sizeof(*read->sums);

    if (read->chunks == 1) {
        read->sums[0] = read->found->check;
        return true;
    }
    return read_exactly(read, read->sums, bytes, read->table) &&
           kvi_checksum(read->sums, bytes, 0) == read->found->check;
}

/* Chunks that lie whole in a range: read together, verified where they are. */
static bool read_whole_chunks(struct read *read, size_t first, size_t count, uint8_t *out)
{
    size_t bytes = (count - 1) * CHUNK_BYTES + chunk_bytes(read, first + count - 1);
    size_t i;

    if (!read_exactly(read, out, bytes, read->base + (uint64_t)first * CHUNK_BYTES))
        return false;
    for (i = 0; i < count; i++) {
        if (kvi_checksum(out + i * CHUNK_BYTES, chunk_bytes(read, first + i), 0) !=
            read->sums[first + i])
            return false;
    }
    return true;
}

static kvg_err read_bounced(struct read *read, size_t chunk)
{
    size_t bytes = chunk_bytes(read, chunk);

    if (read->bounced == chunk)
        return KVG_OK;
    read->bounced = SIZE_MAX;
    if (read->bounce == NULL)
        read->bounce = kvi_alloc_array_raw(read->file->alloc, CHUNK_BYTES, 1);
    if (read->bounce == NULL)
        return KVG_ENOMEM;
    if (!read_exactly(
            read, read->bounce, bytes, read->base + (uint64_t)chunk * CHUNK_BYTES) ||
        kvi_checksum(read->bounce, bytes, 0) != read->sums[chunk])
        return KVG_ECHECKSUM;
    read->bounced = chunk;
    return KVG_OK;
}

static kvg_err read_range(struct read *read, const struct kvg_store_range *range)
{
    uint8_t *out = range->memory;
    uint64_t at = range->offset;
    uint64_t end = range->offset + range->bytes;
    kvg_err err;

    while (at < end) {
        size_t chunk = (size_t)(at / CHUNK_BYTES);
        size_t inside = (size_t)(at % CHUNK_BYTES);
        size_t have = chunk_bytes(read, chunk);
        size_t count = 0;

        while (
            inside == 0 && chunk + count < read->chunks &&
            (uint64_t)(chunk + count) * CHUNK_BYTES + chunk_bytes(read, chunk + count) <=
                end)
            count++;
        if (count > 0) {
            if (!read_whole_chunks(read, chunk, count, out))
                return KVG_ECHECKSUM;
            have = (count - 1) * CHUNK_BYTES + chunk_bytes(read, chunk + count - 1);
        } else {
            have = have - inside < end - at ? have - inside : (size_t)(end - at);
            err = read_bounced(read, chunk);
            if (err != KVG_OK)
                return err;
            memcpy(out, read->bounce + inside, have);
        }
        out += have;
        at += have;
    }
    return KVG_OK;
}

/* The whole value in order, in as many ranges as one likes: one system call.  The table
 * comes with it. */
static bool is_whole(const struct file_found *found, const struct kvg_store_range *ranges,
    size_t range_count)
{
    uint64_t at = 0;
    size_t i;

    for (i = 0; i < range_count; i++) {
        if (ranges[i].offset != at)
            return false;
        at += ranges[i].bytes;
    }
    return at == found->bytes;
}

/* Slice by slice, verified while the cache has it.  The table is not needed: the checksum of what
 * was found instead of it must be right. */
static bool read_all(
    struct read *read, const struct kvg_store_range *ranges, size_t range_count)
{
    struct file_store *file = read->file;
    struct file_summer summer = {.sums = read->sums};
    uint64_t done = 0;
    size_t inside = 0;
    size_t i = 0;

    while (done < read->found->bytes) {
        struct iovec vector[VECTOR_MAX];
        size_t bytes = 0;
        int count = 0;
        int k;

        while (bytes < SLICE_BYTES && count < VECTOR_MAX && i < range_count) {
            size_t have = ranges[i].bytes - inside;
            size_t taken = have < SLICE_BYTES - bytes ? have : SLICE_BYTES - bytes;

            vector[count++] = (struct iovec){(uint8_t *)ranges[i].memory + inside, taken};
            bytes += taken;
            inside = taken < have ? inside + taken : 0;
            i += taken == have;
        }
        if (file->io->readv(file->io->context, read->fd, vector, count,
                read->base + done) != (ssize_t)bytes)
            return false;
        for (k = 0; k < count; k++)
            kvi_file_sum_add(&summer, vector[k].iov_base, vector[k].iov_len);
        done += bytes;
    }
    kvi_file_sum_end(&summer);
    return read->found->check ==
           (read->chunks == 1
                   ? read->sums[0]
                   : kvi_checksum(read->sums, read->chunks * sizeof(*read->sums), 0));
}

static kvg_err read_begin(
    struct read *read, struct file_store *file, const struct file_found *found)
{
    *read = (struct read){.file = file,
        .found = found,
        .base = slot_offset(found->place, found->slot_bytes),
        .chunks = file_chunk_count(found->bytes),
        .bounced = SIZE_MAX};
    read->fd = kvi_file_place_fd(file, found->place, false, &read->table);
    if (read->fd < 0)
        return KVG_ECHECKSUM;
    read->sums = &read->sum;
    if (read->chunks > 1)
        read->sums = kvi_alloc_array_raw(file->alloc, read->chunks, sizeof(*read->sums));
    return read->sums == NULL ? KVG_ENOMEM : KVG_OK;
}

static void read_end(struct read *read)
{
    if (read->sums != &read->sum)
        kvi_release_array(
            read->file->alloc, read->sums, read->chunks, sizeof(*read->sums));
    kvi_release_array(read->file->alloc, read->bounce, CHUNK_BYTES, 1);
}

kvg_err kvi_file_read_part(struct file_store *file, const struct file_found *found,
    const struct kvg_store_range *ranges, size_t range_count)
{
    struct read read;
    kvg_err err = read_begin(&read, file, found);
    size_t i;

    if (err == KVG_OK && range_count > 0 && is_whole(found, ranges, range_count)) {
        err = read_all(&read, ranges, range_count) ? KVG_OK : KVG_ECHECKSUM;
    } else if (err == KVG_OK && range_count > 0) {
        err = read_sums(&read) ? KVG_OK : KVG_ECHECKSUM;
        for (i = 0; i < range_count && err == KVG_OK; i++)
            err = read_range(&read, &ranges[i]);
    }
    read_end(&read);
    return err;
}

/* ---- Neighbours ---------------------------------------------------------------------------- */

size_t kvi_file_read_neighbours(
    const struct kvg_store_get *gets, const struct file_found *found, size_t count)
{
    uint64_t bytes = 0;
    size_t i;

    for (i = 0; i < count && i < VECTOR_MAX / 2; i++) {
        bytes += found[i].slot_bytes;
        if (gets[i].result != KVG_OK || gets[i].range_count != 1 ||
            gets[i].ranges[0].offset != 0 || gets[i].ranges[0].bytes != found[i].bytes ||
            found[i].bytes > CHUNK_BYTES || found[i].slot_bytes != found[0].slot_bytes ||
            found[i].place != found[0].place + i || (bytes > SLICE_BYTES && i > 0))
            break;
    }
    return i;
}

bool kvi_file_read_together(struct file_store *file, const struct kvg_store_get *gets,
    const struct file_found *found, size_t count)
{
    uint8_t gap_bytes[BLOCK_BYTES];
    struct iovec vector[VECTOR_MAX];
    int vectors = 0;
    size_t wanted = 0;
    int fd = kvi_file_place_fd(file, found->place, false, NULL);
    size_t i;

    if (fd < 0)
        return false;
    for (i = 0; i < count; i++) {
        size_t bytes = (size_t)found[i].bytes;
        size_t gap = found[i].slot_bytes - bytes;

        vector[vectors++] = (struct iovec){gets[i].ranges[0].memory, bytes};
        if (gap > 0 && i + 1 < count)
            vector[vectors++] = (struct iovec){gap_bytes, gap};
        wanted += bytes + (i + 1 < count ? gap : 0);
    }
    if (file->io->readv(file->io->context, fd, vector, vectors,
            slot_offset(found->place, found->slot_bytes)) != (ssize_t)wanted)
        return false;
    for (i = 0; i < count; i++) {
        if (kvi_checksum(gets[i].ranges[0].memory, (size_t)found[i].bytes, 0) !=
            found[i].check)
            return false;
    }
    return true;
}

kvg_err kvi_file_verify_part(struct file_store *file, const struct file_found *found)
{
    struct read read;
    kvg_err err = read_begin(&read, file, found);
    size_t i;

    if (err == KVG_OK && !read_sums(&read))
        err = KVG_ECHECKSUM;
    for (i = 0; i < read.chunks && err == KVG_OK; i++)
        err = read_bounced(&read, i);
    read_end(&read);
    return err;
}
