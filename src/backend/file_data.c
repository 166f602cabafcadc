/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* file_data.c -- the bytes of parts: written, read, and never believed.
 *
 *     segment   | slot 0: data .. | slot 1: data .. | ... | table 0 | table 1 | ...
 *     table     | checksum u64 of each 4 KiB chunk of a part larger than 64 KiB |
 *
 * Tables are behind the slots and not in them, so that a slot of a power of two begins at one: file
 * systems keep such a file in larger pieces, which makes writes a quarter faster.
 *
 * The index keeps one number for a part: its checksum, or that of the table of chunk checksums.
 * So a range can be verified by reading the table and the chunks that it touches: one layer of a
 * part costs about as much as it has bytes.  A whole value is verified without the table, slice by
 * slice as it comes, straight into the caller's memory.
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
#define FEW_CHUNKS 256u

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
        size_t room = summer->chunk_bytes - summer->filled;
        size_t taken = room < bytes ? room : bytes;

        if (taken == summer->chunk_bytes) {
            summer->sums[summer->chunk++] = kvi_checksum(at, taken, 0);
        } else {
            if (summer->filled == 0)
                kvi_checksum_begin(&summer->state);
            kvi_checksum_add(&summer->state, at, taken);
            summer->filled += taken;
        }
        if (summer->filled == summer->chunk_bytes) {
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
    size_t chunk_bytes;
    size_t chunks;
    uint64_t *sums;  /* What was found, */
    uint64_t *right; /* and what should be: read when a run is not the whole part. */
    bool right_known;
    uint64_t few[2 * FEW_CHUNKS]; /* Where both are, of parts that are not large. */
};

/* Ranges that follow each other in the part, and around them what is missing of whole chunks. */
struct run {
    const struct kvg_store_range *ranges;
    size_t range_count;
    size_t inside; /* Of the first range, what is done. */
    uint64_t from; /* Of the part: where the next slice begins. */
    uint64_t to;
    uint8_t *pads; /* The head's, then the tail's. */
    size_t head;
    size_t tail;
    uint8_t few[2 * CHUNK_BYTES]; /* Where both are, of small chunks. */
};

/* Takes the ranges of a run off a list.  False if they are all empty. */
static bool run_begin(const struct read *read, struct run *run,
    const struct kvg_store_range **ranges, size_t *range_count)
{
    uint64_t begin;
    uint64_t end;

    while (*range_count > 0 && (*ranges)->bytes == 0) {
        (*ranges)++;
        (*range_count)--;
    }
    if (*range_count == 0)
        return false;
    run->ranges = *ranges;
    run->range_count = 0;
    run->inside = 0;
    begin = end = run->ranges[0].offset;
    while (run->range_count < *range_count && run->ranges[run->range_count].offset == end)
        end += run->ranges[run->range_count++].bytes;
    *ranges += run->range_count;
    *range_count -= run->range_count;
    run->head = (size_t)(begin % read->chunk_bytes);
    run->from = begin - run->head;
    run->to = (end + read->chunk_bytes - 1) / read->chunk_bytes * read->chunk_bytes;
    if (run->to > read->found->bytes)
        run->to = read->found->bytes;
    run->tail = (size_t)(run->to - end);
    return true;
}

/* The memory of the next slice of a run; how many pieces it has. */
static int next_slice(struct run *run, struct iovec *vector, size_t *bytes_out)
{
    size_t left = SLICE_BYTES;
    int count = 0;

    if (run->head > 0) {
        vector[count++] = (struct iovec){run->pads, run->head};
        run->pads += run->head;
        left -= run->head;
        run->head = 0;
    }
    while (left > 0 && count < VECTOR_MAX - 1 && run->range_count > 0) {
        size_t have = run->ranges->bytes - run->inside;
        size_t taken = have < left ? have : left;

        vector[count++] =
            (struct iovec){(uint8_t *)run->ranges->memory + run->inside, taken};
        left -= taken;
        run->inside += taken;
        if (taken == have) {
            run->ranges++;
            run->range_count--;
            run->inside = 0;
        }
    }
    if (run->range_count == 0 && run->tail > 0 && run->tail <= left) {
        vector[count++] = (struct iovec){run->pads, run->tail};
        left -= run->tail;
        run->tail = 0;
    }
    *bytes_out = SLICE_BYTES - left;
    return count;
}

/* The checksums that the chunks should have. */
static bool know_right(struct read *read)
{
    struct iovec vector = {read->right, read->chunks * sizeof(*read->right)};

    if (read->right_known)
        return true;
    if (read->chunks == 1)
        read->right[0] = read->found->check;
    else if (read->file->io->readv(read->file->io->context, read->fd, &vector, 1,
                 read->table) != (ssize_t)vector.iov_len ||
             kvi_checksum(read->right, vector.iov_len, 0) != read->found->check)
        return false;
    read->right_known = true;
    return true;
}

/* Slice by slice, summed while the cache has it.  The table is not needed if it is the whole part:
 * then the checksum of what was found instead of it must be right. */
static kvg_err read_run(struct read *read, struct run *run)
{
    struct file_store *file = read->file;
    size_t first = (size_t)(run->from / read->chunk_bytes);
    struct file_summer summer = {
        .sums = read->sums + first, .chunk_bytes = read->chunk_bytes};
    bool whole = run->from == 0 && run->to == read->found->bytes && read->chunks > 1;

    while (run->from < run->to) {
        struct iovec vector[VECTOR_MAX];
        size_t bytes;
        int count = next_slice(run, vector, &bytes);
        int i;

        if (file->io->readv(file->io->context, read->fd, vector, count,
                read->base + run->from) != (ssize_t)bytes)
            return KVG_ECHECKSUM;
        for (i = 0; i < count; i++)
            kvi_file_sum_add(&summer, vector[i].iov_base, vector[i].iov_len);
        run->from += bytes;
    }
    kvi_file_sum_end(&summer);
    if (whole)
        return kvi_checksum(read->sums, read->chunks * sizeof(*read->sums), 0) ==
                       read->found->check
                   ? KVG_OK
                   : KVG_ECHECKSUM;
    if (!know_right(read) || memcmp(read->sums + first, read->right + first,
                                 summer.chunk * sizeof(*read->sums)) != 0)
        return KVG_ECHECKSUM;
    return KVG_OK;
}

static kvg_err read_begin(
    struct read *read, struct file_store *file, const struct file_found *found)
{
    read->file = file;
    read->found = found;
    read->base = slot_offset(found->place, found->slot_bytes);
    read->chunk_bytes = file_chunk_bytes(found->bytes);
    read->chunks = file_chunk_count(found->bytes);
    read->right_known = false;
    read->fd = kvi_file_place_fd(file, found->place, false, &read->table);
    if (read->fd < 0)
        return KVG_ECHECKSUM;
    read->sums = read->few;
    if (read->chunks > FEW_CHUNKS)
        read->sums =
            kvi_alloc_array_raw(file->alloc, 2 * read->chunks, sizeof(*read->sums));
    if (read->sums == NULL)
        return KVG_ENOMEM;
    read->right = read->sums + read->chunks;
    return KVG_OK;
}

static void read_end(struct read *read)
{
    if (read->fd >= 0 && read->sums != read->few)
        kvi_release_array(
            read->file->alloc, read->sums, 2 * read->chunks, sizeof(*read->sums));
}

kvg_err kvi_file_read_part(struct file_store *file, const struct file_found *found,
    const struct kvg_store_range *ranges, size_t range_count)
{
    struct read read;
    struct run run;
    kvg_err err = read_begin(&read, file, found);

    while (err == KVG_OK && run_begin(&read, &run, &ranges, &range_count)) {
        size_t pads = run.head + run.tail;
        uint8_t *memory = run.few;

        if (pads > sizeof(run.few))
            memory = kvi_alloc_array_raw(file->alloc, pads, 1);
        run.pads = memory;
        err = memory == NULL ? KVG_ENOMEM : read_run(&read, &run);
        if (memory != run.few)
            kvi_release_array(file->alloc, memory, pads, 1);
    }
    read_end(&read);
    return err;
}

kvg_err kvi_file_verify_part(struct file_store *file, const struct file_found *found)
{
    uint8_t *memory = kvi_alloc_array_raw(file->alloc, SLICE_BYTES, 1);
    kvg_err err = memory == NULL ? KVG_ENOMEM : KVG_OK;
    uint64_t at;

    for (at = 0; at < found->bytes && err == KVG_OK; at += SLICE_BYTES) {
        uint64_t left = found->bytes - at;
        struct kvg_store_range range = {
            at, left < SLICE_BYTES ? (size_t)left : SLICE_BYTES, memory};

        err = kvi_file_read_part(file, found, &range, 1);
    }
    kvi_release_array(file->alloc, memory, SLICE_BYTES, 1);
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
            found[i].bytes > SMALL_BYTES || found[i].slot_bytes != found[0].slot_bytes ||
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
