/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* file_direct.c -- `io=direct` and `io=uring`: large parts past the page cache, for stores that are
 * larger than memory.
 *
 *     gets -> slices of up to 256 KiB, whole chunks -> buffers of a lane -> checked, copied
 *
 * A slice is read from a second descriptor of the segment, opened for direct I/O, into a buffer of
 * a lane; when it is there its chunks are summed and what the caller asked for is copied. With
 * `uring` up to RING_DEPTH slices, of any of a call's parts, are under way at a time; with `direct`
 * one, by the calling thread.
 *
 * This is a shortcut and nothing else: what it does not read well, for whatever reason (no
 * such descriptor, damage, a slot that was given away meanwhile), is left to the plain path,
 * which knows what to do.
 *
 * Buffers belong to the lane and not to the caller because direct I/O wants them aligned, and
 * because a ring that fails may still write to them: then the lane is never freed. */
#include "backend/file.h"
#include "backend/file_ring.h"

#include "base/alloc.h"
#include "store/store.h"

#include <errno.h>

#define DIRECT_BYTES_MIN SMALL_BYTES
#define LANES_KEPT_MAX 4u
#define LANE_BYTES ((size_t)RING_DEPTH * SLICE_BYTES + BLOCK_BYTES)

/* A slice under way. */
struct slice {
    uint32_t get;
    uint32_t range;
    uint64_t at; /* In the part; whole chunks, but for its end. */
    size_t bytes;
};

struct file_lane {
    struct file_lane *next;
    uint8_t *memory;
    uint8_t *buffers; /* Aligned, in `memory`. */
    struct slice slices[RING_DEPTH];
    struct ring ring;
    bool has_ring;
    bool broken;
};

/* ---- Lanes --------------------------------------------------------------------------------- */

static void lane_free(struct file_store *file, struct file_lane *lane)
{
    if (lane->broken)
        return;
    if (lane->has_ring)
        kvi_ring_close(&lane->ring);
    kvi_release_array(file->alloc, lane->memory, LANE_BYTES, 1);
    KVI_FREE(file->alloc, lane);
}

static struct file_lane *lane_new(struct file_store *file)
{
    struct file_lane *lane = KVI_NEW(file->alloc, struct file_lane);

    if (lane == NULL)
        return NULL;
    lane->memory = kvi_alloc_array_raw(file->alloc, LANE_BYTES, 1);
    if (lane->memory == NULL) {
        lane_free(file, lane);
        return NULL;
    }
    lane->buffers = lane->memory + (BLOCK_BYTES - (uintptr_t)lane->memory % BLOCK_BYTES);
    if (file->io_mode == FILE_IO_MODE_URING)
        lane->has_ring = kvi_ring_open(&lane->ring) == 0;
    return lane;
}

static struct file_lane *lane_take(struct file_store *file)
{
    struct file_lane *lane;

    pthread_mutex_lock(&file->lanes_lock);
    lane = file->lanes;
    if (lane != NULL) {
        file->lanes = lane->next;
        file->lane_count--;
    }
    pthread_mutex_unlock(&file->lanes_lock);
    return lane != NULL ? lane : lane_new(file);
}

static void lane_give(struct file_store *file, struct file_lane *lane)
{
    bool kept;

    pthread_mutex_lock(&file->lanes_lock);
    kept = !lane->broken && file->lane_count < LANES_KEPT_MAX;
    if (kept) {
        lane->next = file->lanes;
        file->lanes = lane;
        file->lane_count++;
    }
    pthread_mutex_unlock(&file->lanes_lock);
    if (!kept)
        lane_free(file, lane);
}

void kvi_file_lanes_free(struct file_store *file)
{
    while (file->lanes != NULL) {
        struct file_lane *lane = file->lanes;

        file->lanes = lane->next;
        lane_free(file, lane);
    }
}

/* ---- A call -------------------------------------------------------------------------------- */

/* A get of the call that goes this way. */
struct direct {
    int fd;
    size_t chunk_bytes;
    size_t chunks;
    uint64_t *sums; /* Of chunks that were read. */
    bool failed;
};

struct call {
    struct file_store *file;
    struct file_lane *lane;
    const struct kvg_store_get *gets;
    const struct file_found *found;
    size_t count;
    struct direct *directs;
    struct slice next; /* Where the next slice begins. */
    uint32_t idle[RING_DEPTH];
    uint32_t idle_count;
};

static int direct_fd(struct file_store *file, uint64_t place)
{
    struct file_segment *segment;
    char path[FILE_PATH_MAX];
    int fd = -ENOENT;

    pthread_rwlock_rdlock(&file->index);
    segment = kvi_file_segment(file, PLACE_SEGMENT(place));
    if (segment != NULL) {
        pthread_mutex_lock(&file->fds);
        if (segment->direct_fd == FILE_FD_NONE)
            segment->direct_fd = file->io->open(file->io->context,
                kvi_file_segment_path(file, segment->id, path),
                FILE_IO_READ_ONLY | FILE_IO_DIRECT);
        fd = segment->direct_fd;
        pthread_mutex_unlock(&file->fds);
    }
    pthread_rwlock_unlock(&file->index);
    return fd;
}

static uint64_t part_left(const struct call *call, const struct slice *slice)
{
    return call->found[slice->get].bytes - slice->at;
}

/* The next slice, or false: ranges in order, from the chunk in which one begins. */
static bool next_slice(struct call *call, struct slice *out)
{
    struct slice *next = &call->next;

    while (next->get < call->count) {
        const struct kvg_store_get *get = &call->gets[next->get];
        const struct kvg_store_range *range = &get->ranges[next->range];
        uint64_t chunk_bytes = call->directs[next->get].chunk_bytes;
        uint64_t end;
        uint64_t begin;

        if (call->directs[next->get].fd < 0 || call->directs[next->get].failed ||
            next->range >= get->range_count) {
            *next = (struct slice){.get = next->get + 1};
            continue;
        }
        end = range->offset + range->bytes;
        begin = range->offset - range->offset % chunk_bytes;
        next->at = next->at < begin ? begin : next->at;
        if (range->bytes == 0 || next->at >= end) {
            *next = (struct slice){.get = next->get, .range = next->range + 1};
            continue;
        }
        end = (end + chunk_bytes - 1) / chunk_bytes * chunk_bytes;
        *out = *next;
        out->bytes =
            (size_t)(end - next->at < SLICE_BYTES ? end - next->at : SLICE_BYTES);
        if (out->bytes > part_left(call, next))
            out->bytes = (size_t)part_left(call, next);
        next->at += out->bytes;
        return true;
    }
    return false;
}

/* Sums the chunks of a slice that was read, and copies what its range wants of it. */
static void take(struct call *call, const struct slice *slice, const uint8_t *data)
{
    const struct kvg_store_range *range = &call->gets[slice->get].ranges[slice->range];
    uint64_t from = slice->at > range->offset ? slice->at : range->offset;
    uint64_t end = slice->at + slice->bytes;
    struct direct *direct = &call->directs[slice->get];
    struct file_summer summer = {.sums = direct->sums + slice->at / direct->chunk_bytes,
        .chunk_bytes = direct->chunk_bytes};

    kvi_file_sum_add(&summer, data, slice->bytes);
    kvi_file_sum_end(&summer);
    if (end > range->offset + range->bytes)
        end = range->offset + range->bytes;
    memcpy((uint8_t *)range->memory + (from - range->offset), data + (from - slice->at),
        (size_t)(end - from));
}

static void finished(struct call *call, uint32_t buffer, int64_t result)
{
    const struct slice *slice = &call->lane->slices[buffer];

    if (result < (int64_t)slice->bytes)
        call->directs[slice->get].failed = true;
    else
        take(call, slice, call->lane->buffers + (size_t)buffer * SLICE_BYTES);
    call->idle[call->idle_count++] = buffer;
}

/* Begins to read a slice; without a ring it ends too. */
static void begin(struct call *call, const struct slice *slice)
{
    struct file_lane *lane = call->lane;
    const struct file_found *found = &call->found[slice->get];
    uint32_t buffer = call->idle[--call->idle_count];
    uint64_t offset = (uint64_t)PLACE_SLOT(found->place) * found->slot_bytes + slice->at;
    struct iovec vector = {lane->buffers + (size_t)buffer * SLICE_BYTES,
        (slice->bytes + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES};
    int fd = call->directs[slice->get].fd;

    lane->slices[buffer] = *slice;
    if (lane->has_ring)
        kvi_ring_push(
            &lane->ring, fd, vector.iov_base, (uint32_t)vector.iov_len, offset, buffer);
    else
        finished(call, buffer,
            call->file->io->readv(call->file->io->context, fd, &vector, 1, offset));
}

/* Reads every slice.  False if the ring failed: then nothing counts. */
static bool read_slices(struct call *call)
{
    struct slice slice;
    bool more = true;

    while (true) {
        uint64_t buffer;
        int32_t result;

        while (call->idle_count > 0 && more) {
            more = next_slice(call, &slice);
            if (more)
                begin(call, &slice);
        }
        if (call->idle_count == RING_DEPTH)
            return true;
        if (kvi_ring_wait(&call->lane->ring, &buffer, &result) < 0)
            return false;
        finished(call, (uint32_t)buffer, result);
    }
}

/* ---- Which gets, and were they good -------------------------------------------------------- */

static bool covers_all(const struct kvg_store_get *get, uint64_t bytes)
{
    uint64_t at = 0;
    size_t i;

    for (i = 0; i < get->range_count && get->ranges[i].offset == at; i++)
        at += get->ranges[i].bytes;
    return i == get->range_count && at == bytes;
}

/* Were the chunks that a get touched those which were written? */
static bool sums_good(struct call *call, size_t which, uint64_t *table)
{
    const struct file_found *found = &call->found[which];
    const struct kvg_store_get *get = &call->gets[which];
    const struct direct *direct = &call->directs[which];
    struct iovec vector = {table, direct->chunks * sizeof(*table)};
    uint64_t offset;
    size_t i;
    int fd;

    if (direct->chunks == 1)
        return direct->sums[0] == found->check;
    if (covers_all(get, found->bytes))
        return kvi_checksum(direct->sums, vector.iov_len, 0) == found->check;
    fd = kvi_file_place_fd(call->file, found->place, false, &offset);
    if (fd < 0 ||
        call->file->io->readv(call->file->io->context, fd, &vector, 1, offset) !=
            (ssize_t)vector.iov_len ||
        kvi_checksum(table, vector.iov_len, 0) != found->check)
        return false;
    for (i = 0; i < get->range_count; i++) {
        uint64_t at = get->ranges[i].offset / CHUNK_BYTES;
        uint64_t end = get->ranges[i].offset + get->ranges[i].bytes;

        for (; at * CHUNK_BYTES < end && get->ranges[i].bytes > 0; at++) {
            if (direct->sums[at] != table[at])
                return false;
        }
    }
    return true;
}

/* Fills in what goes this way; returns how many sums that makes. */
static size_t choose(struct call *call)
{
    size_t chunks = 0;
    size_t i;

    for (i = 0; i < call->count; i++) {
        struct direct *direct = &call->directs[i];

        direct->fd = -1;
        if (call->gets[i].result != KVG_OK || call->gets[i].range_count == 0 ||
            call->found[i].bytes < DIRECT_BYTES_MIN ||
            !kvi_store_ranges_fit(&call->gets[i], call->found[i].bytes))
            continue;
        direct->fd = direct_fd(call->file, call->found[i].place);
        if (direct->fd < 0)
            continue;
        direct->chunk_bytes = file_chunk_bytes(call->found[i].bytes);
        direct->chunks = file_chunk_count(call->found[i].bytes);
        chunks += direct->chunks;
    }
    return chunks;
}

static void read_chosen(struct call *call, uint64_t *sums, uint64_t *table, bool *done)
{
    size_t i;

    for (i = 0; i < call->count; i++) {
        call->directs[i].sums = sums;
        sums += call->directs[i].chunks;
    }
    for (i = 0; i < RING_DEPTH; i++)
        call->idle[call->idle_count++] = (uint32_t)i;
    call->lane->broken = !read_slices(call);
    for (i = 0; i < call->count && !call->lane->broken; i++)
        done[i] = call->directs[i].fd >= 0 && !call->directs[i].failed &&
                  sums_good(call, i, table);
}

void kvi_file_read_direct(struct file_store *file, const struct kvg_store_get *gets,
    const struct file_found *found, size_t count, bool *done)
{
    struct direct directs[FILE_GET_MAX] = {{0}};
    struct call call = {
        .file = file, .gets = gets, .found = found, .count = count, .directs = directs};
    size_t chunks = choose(&call);
    uint64_t *sums;
    uint64_t *table;

    if (chunks == 0)
        return;
    sums = kvi_alloc_array(file->alloc, chunks, sizeof(*sums));
    table = kvi_alloc_array_raw(file->alloc, chunks, sizeof(*table));
    call.lane = lane_take(file);
    if (sums != NULL && table != NULL && call.lane != NULL)
        read_chosen(&call, sums, table, done);
    if (call.lane != NULL)
        lane_give(file, call.lane);
    kvi_release_array(file->alloc, table, chunks, sizeof(*table));
    kvi_release_array(file->alloc, sums, chunks, sizeof(*sums));
}
