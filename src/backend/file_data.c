/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* file_data.c -- the bytes of parts: written, read, and never believed.
 *
 *     slot   | data ............ | checksum u64 of each 64 KiB chunk, if more than one |
 *
 * The index keeps one number for a part: the checksum of its only chunk, or that of the
 * table of chunk checksums.  So a range can be verified by reading the table and the
 * chunks that it touches, and a whole value takes one system call, straight into the
 * caller's memory.
 *
 * Readers take no lock.  The slot may be given to another part while they read; then what they
 * have does not match the checksum of the part they asked for. */
#include "backend/file.h"
#include "backend/hash.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/fmt.h"

#include <errno.h>

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

static size_t chunk_count(uint64_t bytes)
{
    return (size_t)((bytes + CHUNK_BYTES - 1) / CHUNK_BYTES);
}

/* The descriptor of a place, with the index held or the slot reserved.  To be written to, it is
 * made if it is not there: whoever added the segment may have died before. */
static int fd_of(struct file_store *file, uint64_t place, bool to_write)
{
    struct file_segment *segment;
    int fd = -ENOENT;
    int code = 0;

    pthread_rwlock_rdlock(&file->index);
    segment = kvi_file_segment(file, PLACE_SEGMENT(place));
    if (segment != NULL)
        fd = kvi_file_segment_fd(file, segment, to_write ? FILE_IO_CREATE : 0);
    if (fd >= 0 && to_write)
        code = sync_name(file, segment);
    pthread_rwlock_unlock(&file->index);
    return code < 0 ? code : fd;
}

static uint64_t slot_offset(uint64_t place, uint32_t slot_bytes)
{
    return (uint64_t)PLACE_SLOT(place) * slot_bytes;
}

/* ---- Writing ------------------------------------------------------------------------------- */

/* Checksums of the chunks of a part that comes in pieces. */
static void chunk_sums(const struct kvg_store_part *part, uint64_t *sums)
{
    struct kvi_checksum_state state;
    size_t filled = 0;
    size_t chunk = 0;
    size_t i;

    kvi_checksum_begin(&state);
    for (i = 0; i < part->piece_count; i++) {
        const uint8_t *data = part->pieces[i].data;
        size_t left = part->pieces[i].bytes;

        while (left > 0) {
            size_t taken = CHUNK_BYTES - filled < left ? CHUNK_BYTES - filled : left;

            if (filled == 0 && taken == CHUNK_BYTES) {
                sums[chunk++] = kvi_checksum(data, taken, 0);
            } else {
                kvi_checksum_add(&state, data, taken);
                filled += taken;
            }
            if (filled == CHUNK_BYTES) {
                sums[chunk++] = kvi_checksum_end(&state);
                kvi_checksum_begin(&state);
                filled = 0;
            }
            data += taken;
            left -= taken;
        }
    }
    if (filled > 0)
        sums[chunk] = kvi_checksum_end(&state);
}

int kvi_file_write_part(struct file_store *file, uint64_t place,
    const struct kvg_store_part *part, uint64_t *check)
{
    uint64_t bytes = 0;
    size_t chunks;
    size_t i;
    uint64_t *sums;
    struct iovec *vector;
    ssize_t written = -ENOMEM;
    int fd = fd_of(file, place, true);

    for (i = 0; i < part->piece_count; i++)
        bytes += part->pieces[i].bytes;
    chunks = chunk_count(bytes);
    if (fd < 0)
        return fd;
    sums = kvi_alloc_array_raw(file->alloc, chunks, sizeof(*sums));
    vector = kvi_alloc_array_raw(file->alloc, part->piece_count + 1, sizeof(*vector));
    if (sums != NULL && vector != NULL) {
        chunk_sums(part, sums);
        for (i = 0; i < part->piece_count; i++) {
            /* The interface of writev has no const. */
            vector[i].iov_base = (void *)(uintptr_t)part->pieces[i].data;
            vector[i].iov_len = part->pieces[i].bytes;
        }
        vector[i].iov_base = sums;
        vector[i].iov_len = chunks > 1 ? chunks * sizeof(*sums) : 0;
        *check = chunks > 1 ? kvi_checksum(sums, chunks * sizeof(*sums), 0) : sums[0];
        written = file->io->writev(file->io->context, fd, vector,
            (int)part->piece_count + 1, slot_offset(place, kvi_file_slot_bytes(bytes)));
        if (written >= 0 && (uint64_t)written != bytes + vector[i].iov_len)
            written = -ENOSPC;
    }
    kvi_release_array(file->alloc, vector, part->piece_count + 1, sizeof(*vector));
    kvi_release_array(file->alloc, sums, chunks, sizeof(*sums));
    return written < 0 ? (int)written : 0;
}

/* ---- Reading ------------------------------------------------------------------------------- */

struct read {
    struct file_store *file;
    const struct file_found *found;
    int fd;
    uint64_t base; /* Of the slot. */
    size_t chunks;
    uint64_t *sums;
    uint64_t sum;    /* Where `sums` is, of a single chunk. */
    uint8_t *bounce; /* One chunk, made when it is needed. */
    size_t bounced;  /* Which; SIZE_MAX: none. */
};

static bool read_exactly(struct read *read, void *out, size_t bytes, uint64_t offset)
{
    struct iovec vector = {out, bytes};

    return read->file->io->readv(read->file->io->context, read->fd, &vector, 1,
               read->base + offset) == (ssize_t)bytes;
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
    return read_exactly(read, read->sums, bytes, read->found->bytes) &&
           kvi_checksum(read->sums, bytes, 0) == read->found->check;
}

/* Chunks that lie whole in a range: read together, verified where they are. */
static bool read_whole_chunks(struct read *read, size_t first, size_t count, uint8_t *out)
{
    size_t bytes = (count - 1) * CHUNK_BYTES + chunk_bytes(read, first + count - 1);
    size_t i;

    if (!read_exactly(read, out, bytes, (uint64_t)first * CHUNK_BYTES))
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
    if (!read_exactly(read, read->bounce, bytes, (uint64_t)chunk * CHUNK_BYTES) ||
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

/* Verifies chunks that lie in several ranges. */
static bool ranges_good(
    struct read *read, const struct kvg_store_range *ranges, size_t range_count)
{
    struct kvi_checksum_state state;
    size_t filled = 0;
    size_t chunk = 0;
    size_t i;

    kvi_checksum_begin(&state);
    for (i = 0; i < range_count; i++) {
        const uint8_t *data = ranges[i].memory;
        size_t left = ranges[i].bytes;

        while (left > 0) {
            size_t want = chunk_bytes(read, chunk) - filled;
            size_t taken = want < left ? want : left;
            uint64_t sum = 0;
            bool done = taken == want;

            if (filled == 0 && done) {
                sum = kvi_checksum(data, taken, 0);
            } else {
                kvi_checksum_add(&state, data, taken);
                if (done) {
                    sum = kvi_checksum_end(&state);
                    kvi_checksum_begin(&state);
                }
            }
            if (done && sum != read->sums[chunk++])
                return false;
            filled = done ? 0 : filled + taken;
            data += taken;
            left -= taken;
        }
    }
    return true;
}

static bool read_all_at_once(
    struct read *read, const struct kvg_store_range *ranges, size_t range_count)
{
    struct file_store *file = read->file;
    size_t table = read->chunks > 1 ? read->chunks * sizeof(*read->sums) : 0;
    struct iovec few[16];
    struct iovec *vector = few;
    ssize_t got = -1;
    size_t i;

    if (range_count + 1 > 16)
        vector = kvi_alloc_array_raw(file->alloc, range_count + 1, sizeof(*vector));
    if (vector == NULL)
        return false;
    for (i = 0; i < range_count; i++)
        vector[i] = (struct iovec){ranges[i].memory, ranges[i].bytes};
    vector[i] = (struct iovec){read->sums, table};
    if (read->chunks == 1)
        read->sums[0] = read->found->check;
    got = file->io->readv(
        file->io->context, read->fd, vector, (int)range_count + 1, read->base);
    if (vector != few)
        kvi_release_array(file->alloc, vector, range_count + 1, sizeof(*vector));
    if (got != (ssize_t)(read->found->bytes + table) ||
        (table > 0 && kvi_checksum(read->sums, table, 0) != read->found->check))
        return false;
    return ranges_good(read, ranges, range_count);
}

static kvg_err read_begin(
    struct read *read, struct file_store *file, const struct file_found *found)
{
    *read = (struct read){.file = file,
        .found = found,
        .fd = fd_of(file, found->place, false),
        .base = slot_offset(found->place, found->slot_bytes),
        .chunks = chunk_count(found->bytes),
        .bounced = SIZE_MAX};
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
        err = read_all_at_once(&read, ranges, range_count) ? KVG_OK : KVG_ECHECKSUM;
    } else if (err == KVG_OK && range_count > 0) {
        err = read_sums(&read) ? KVG_OK : KVG_ECHECKSUM;
        for (i = 0; i < range_count && err == KVG_OK; i++)
            err = read_range(&read, &ranges[i]);
    }
    read_end(&read);
    return err;
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
