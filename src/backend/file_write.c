/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* file_write.c -- the second step of a put: the data (file_put.h; layout of a slot: file_data.c).
 *
 * What is checksummed is written while it is still in the processor's cache: a large part goes
 * slice by slice, and small parts whose slots are neighbours go together, with zeros between
 * where a part does not fill its slot.  4 KiB at a time a file system is several times as slow as
 * in larger writes, so the second is what makes small parts fast. */
#include "backend/file_put.h"
#include "backend/hash.h"

#include "base/alloc.h"
#include "base/fmt.h"
#include "store/store.h"

#include <errno.h>

#define VECTOR_MAX 64
#define TOGETHER_SLOT_MAX SMALL_BYTES /* Of parts that are written together: one chunk. */

/* ---- One part ------------------------------------------------------------------------------ */

static uint64_t sum_of_one(const struct kvg_store_part *part)
{
    struct kvi_checksum_state state;
    size_t i;

    if (part->piece_count == 1)
        return kvi_checksum(part->pieces[0].data, part->pieces[0].bytes, 0);
    kvi_checksum_begin(&state);
    for (i = 0; i < part->piece_count; i++)
        kvi_checksum_add(&state, part->pieces[i].data, part->pieces[i].bytes);
    return kvi_checksum_end(&state);
}

/* A part being written, slice by slice. */
struct slices {
    const struct kvg_store_part *part;
    struct file_summer summer;
    size_t piece;
    size_t inside; /* Of that piece, what is done. */
    uint64_t done;
};

static struct iovec vector_of(const void *data, size_t bytes)
{
    /* The interface of writev has no const. */
    return (struct iovec){(void *)(uintptr_t)data, bytes};
}

/* The next slice: adds it to the checksums and fills the vector. */
static int next_slice(struct slices *slices, struct iovec *vector)
{
    size_t left = SLICE_BYTES;
    int count = 0;

    while (left > 0 && count < VECTOR_MAX && slices->piece < slices->part->piece_count) {
        const struct kvg_store_piece *piece = &slices->part->pieces[slices->piece];
        size_t have = piece->bytes - slices->inside;
        size_t taken = have < left ? have : left;
        const uint8_t *data = (const uint8_t *)piece->data + slices->inside;

        if (taken > 0) {
            kvi_file_sum_add(&slices->summer, data, taken);
            vector[count++] = vector_of(data, taken);
        }
        left -= taken;
        slices->inside += taken;
        slices->done += taken;
        if (slices->inside == piece->bytes) {
            slices->piece++;
            slices->inside = 0;
        }
    }
    return count;
}

static int write_exactly(struct file_store *file, int fd, const struct iovec *vector,
    int count, uint64_t bytes, uint64_t offset)
{
    ssize_t written = file->io->writev(file->io->context, fd, vector, count, offset);

    if (written < 0)
        return (int)written;
    return (uint64_t)written == bytes ? 0 : -ENOSPC;
}

static int write_part(struct file_store *file, struct plan_part *part)
{
    size_t chunks = file_chunk_count(part->bytes);
    struct slices slices = {.part = part->source};
    struct iovec vector[VECTOR_MAX];
    uint64_t one;
    uint64_t *sums = &one;
    uint64_t table;
    int fd = kvi_file_place_fd(file, part->place, true, &table);
    int code = 0;

    if (fd < 0)
        return fd;
    if (chunks > 1)
        sums = kvi_alloc_array_raw(file->alloc, chunks, sizeof(*sums));
    if (sums == NULL)
        return -ENOMEM;
    slices.summer.sums = sums;
    slices.summer.chunk_bytes = file_chunk_bytes(part->bytes);
    while (code == 0 && slices.done < part->bytes) {
        uint64_t at = slices.done;
        int count = next_slice(&slices, vector);

        code = write_exactly(file, fd, vector, count, slices.done - at,
            (uint64_t)PLACE_SLOT(part->place) * part->slot_bytes + at);
    }
    kvi_file_sum_end(&slices.summer);
    part->check = sums[0];
    if (code == 0 && chunks > 1) {
        vector[0] = vector_of(sums, chunks * sizeof(*sums));
        part->check = kvi_checksum(sums, vector[0].iov_len, 0);
        code = write_exactly(file, fd, vector, 1, vector[0].iov_len, table);
    }
    if (sums != &one)
        kvi_release_array(file->alloc, sums, chunks, sizeof(*sums));
    return code;
}

/* The disk is full: evicts, and tries once more with a slot that is there or has been freed. */
static int retry_write(struct wave *wave, struct plan_part *part)
{
    struct file_store *file = wave->file;
    kvg_err err = kvi_file_begin_commit(file, wave->error);

    atomic_fetch_add(&file->space_retries, 1);
    if (err != KVG_OK)
        return -EIO;
    kvi_file_release_slot(file, part->place);
    part->taken = false;
    err = kvi_file_evict(file, part->slot_bytes, wave->error);
    if (err == KVG_OK)
        err = kvi_file_take_slot(file, part->bytes, &part->place, wave->error);
    part->taken = err == KVG_OK;
    kvi_file_end_commit(file);
    return err == KVG_OK ? write_part(file, part) : -ENOSPC;
}

static void write_alone(struct wave *wave, struct plan_part *part)
{
    struct kvg_store_group *group = wave->plans[part->plan].group;
    int code = write_part(wave->file, part);

    if (code == -ENOSPC || code == -EDQUOT)
        code = retry_write(wave, part);
    if (code < 0)
        group->result =
            kvi_file_failed(wave->file, "writing", "segment", code, wave->error);
    if (group->result == KVG_ENOENT)
        group->result = KVG_EIO; /* Of a segment: no absence of a key. */
}

/* ---- Neighbours ---------------------------------------------------------------------------- */

static bool is_to_write(const struct wave *wave, const struct plan_part *part)
{
    return part->taken && wave->plans[part->plan].group->result == KVG_OK;
}

/* How many parts from this one on can go in one write. */
static size_t neighbours(const struct wave *wave, size_t first)
{
    const struct plan_part *parts = wave->parts + first;
    size_t vectors = 0;
    uint64_t bytes = 0;
    size_t count;

    for (count = 0; first + count < wave->part_count; count++) {
        const struct plan_part *part = &parts[count];

        vectors += part->source->piece_count + 1;
        bytes += part->slot_bytes;
        if (!is_to_write(wave, part) || part->slot_bytes > TOGETHER_SLOT_MAX ||
            part->slot_bytes != parts->slot_bytes ||
            part->place != parts->place + count || vectors > VECTOR_MAX ||
            (bytes > SLICE_BYTES && count > 0))
            break;
    }
    return count;
}

/* False if they were not written whole; then each is tried alone. */
static bool write_together(struct file_store *file, struct plan_part *parts, size_t count)
{
    static const uint8_t ZEROS[BLOCK_BYTES];
    struct iovec vector[VECTOR_MAX];
    uint64_t wanted = 0;
    int vectors = 0;
    int fd = kvi_file_place_fd(file, parts->place, true, NULL);
    size_t i;
    size_t k;

    if (fd < 0)
        return false;
    for (i = 0; i < count; i++) {
        size_t gap = parts[i].slot_bytes - (size_t)parts[i].bytes;

        parts[i].check = sum_of_one(parts[i].source);
        for (k = 0; k < parts[i].source->piece_count; k++)
            vector[vectors++] = vector_of(
                parts[i].source->pieces[k].data, parts[i].source->pieces[k].bytes);
        wanted += parts[i].bytes;
        if (gap > 0 && i + 1 < count) {
            vector[vectors++] = vector_of(ZEROS, gap);
            wanted += gap;
        }
    }
    return file->io->writev(file->io->context, fd, vector, vectors,
               (uint64_t)PLACE_SLOT(parts->place) * parts->slot_bytes) == (ssize_t)wanted;
}

void kvi_file_write(struct wave *wave)
{
    size_t i = 0;

    while (i < wave->part_count) {
        size_t count = neighbours(wave, i);

        if (count > 1 && write_together(wave->file, wave->parts + i, count)) {
            i += count;
            continue;
        }
        if (is_to_write(wave, &wave->parts[i]))
            write_alone(wave, &wave->parts[i]);
        i++;
    }
}
