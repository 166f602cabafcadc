/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* file_space.c -- which slot a part goes to, and who has to go for it.
 *
 * A slot is taken so: (1) a free one of its size, (2) one that takes no space yet, if the
 * byte budget and the free-space floor allow it, (3) after evicting the coldest groups,
 * and giving back the space of free slots of other sizes, (1) or (2) again.  Files are
 * sparse: a slot takes space from its first use until it is punched, so sizes can trade
 * space with each other.
 *
 * Slots are taken as runs: one lock call, one question for free space and, later, one write for
 * neighbours.
 *
 * Everything here runs with the commit lock. */
#include "backend/file.h"

#include "base/alloc.h"
#include "base/fmt.h"

#include <errno.h>

#define LOCK_SLOTS (UINT64_C(1) << 32)
#define EVICT_PLACES_MAX 8192u
#define TAKE_ROUNDS_MAX 64u
#define MARGIN_BYTES (UINT64_C(64) << 10) /* For the journal, and what others do. */

/* In blocks; of large ones only every 32nd part of a power of two, so that there are few sizes. */
uint32_t kvi_file_slot_bytes(uint64_t bytes)
{
    uint64_t step = BLOCK_BYTES;

    while (bytes / step > 64)
        step *= 2;
    return (uint32_t)((bytes + step - 1) / step * step);
}

static uint64_t slot_lock(uint64_t place)
{
    return LOCK_SLOTS + (uint64_t)PLACE_SEGMENT(place) * SEGMENT_SLOTS_MAX +
           PLACE_SLOT(place);
}

/* Reserves a run of slots here and, with their bytes of the lock file, everywhere. */
static bool reserve(
    struct file_store *file, struct file_segment *segment, uint32_t slot, uint32_t count)
{
    uint32_t i;

    if (file->io->lock(file->io->context, file->lock_fd,
            slot_lock(PLACE(segment->id, slot)), count, false) < 0)
        return false; /* Another process is writing to one of them. */
    for (i = slot; i < slot + count; i++) {
        file_bit_set(segment->reserved, i, true);
        if (!file_bit(segment->backed, i)) {
            file_bit_set(segment->fresh, i, true);
            file->reserved_bytes += segment->slot_bytes;
        }
    }
    return true;
}

/* Forgets a reservation; true if there was one, whose lock is then to be given back. */
static bool forget(struct file_store *file, uint64_t place)
{
    struct file_segment *segment = kvi_file_segment(file, PLACE_SEGMENT(place));
    uint32_t slot = PLACE_SLOT(place);

    if (segment == NULL || !file_bit(segment->reserved, slot))
        return false;
    file_bit_set(segment->reserved, slot, false);
    if (file_bit(segment->fresh, slot)) {
        file_bit_set(segment->fresh, slot, false);
        file->reserved_bytes -= segment->slot_bytes;
    }
    return true;
}

void kvi_file_release_slots(struct file_store *file, const uint64_t *places, size_t count)
{
    size_t run;
    size_t i;

    for (i = 0; i < count; i += run) {
        run = 1;
        if (!forget(file, places[i]))
            continue;
        while (i + run < count && places[i + run] == places[i] + run &&
               forget(file, places[i + run]))
            run++;
        file->io->unlock(
            file->io->context, file->lock_fd, slot_lock(places[i]), (uint64_t)run);
    }
}

void kvi_file_release_slot(struct file_store *file, uint64_t place)
{
    kvi_file_release_slots(file, &place, 1);
}

/* Slots of a word that are free and (backed or not, as asked). */
static uint64_t free_in_word(
    const struct file_segment *segment, uint32_t word, bool backed)
{
    uint64_t bits =
        backed ? segment->backed[word] & ~segment->live[word] & ~segment->quarantine[word]
               : ~segment->backed[word];

    return bits & ~segment->reserved[word];
}

static bool is_free(const struct file_segment *segment, uint32_t slot, bool backed)
{
    return slot < segment->slot_count &&
           (free_in_word(segment, slot / 64, backed) >> (slot % 64) & 1) != 0;
}

/* A run of up to `count` slots in a segment, each free and (backed or not, as asked).  The search
 * goes on where the last one ended: before it there is little, and what lies together is
 * written together. */
static uint32_t take_in_segment(struct file_store *file, struct file_segment *segment,
    bool backed, uint32_t count, uint64_t *place)
{
    uint32_t words = (segment->slot_count + 63) / 64;
    uint32_t begin = segment->cursor[backed] < words ? segment->cursor[backed] : 0;
    uint32_t i;

    for (i = 0; i < words; i++) {
        uint32_t word = (begin + i) % words;
        uint64_t bits = free_in_word(segment, word, backed);

        for (; bits != 0; bits &= bits - 1) {
            uint32_t slot = word * 64 + (uint32_t)__builtin_ctzll(bits);
            uint32_t run = 1;

            if (slot >= segment->slot_count)
                break;
            while (run < count && is_free(segment, slot + run, backed))
                run++;
            if (!reserve(file, segment, slot, run)) {
                if (run == 1 || !reserve(file, segment, slot, 1))
                    continue;
                run = 1;
            }
            segment->cursor[backed] = (slot + run) / 64;
            *place = PLACE(segment->id, slot);
            return run;
        }
    }
    return 0;
}

static uint32_t take_existing(struct file_store *file, uint32_t slot_bytes, bool backed,
    uint32_t count, uint64_t *place)
{
    uint32_t taken = 0;
    uint32_t i;

    for (i = 0; i < file->segment_count && taken == 0; i++) {
        struct file_segment *segment = file->segments[i];
        uint32_t candidates;

        if (segment == NULL || segment->slot_bytes != slot_bytes)
            continue;
        candidates = backed ? segment->backed_count - segment->live_count -
                                  segment->quarantine_count
                            : segment->slot_count - segment->backed_count;
        if (candidates > 0)
            taken = take_in_segment(file, segment, backed, count, place);
    }
    return taken;
}

static kvg_err add_segment(
    struct file_store *file, uint32_t slot_bytes, struct kvg_error *error)
{
    struct file_records records;
    uint64_t slots = file->segment_bytes / slot_bytes;
    uint32_t id = file->segment_count;
    int fd;
    kvg_err err;

    if (slots == 0)
        slots = 1;
    if (slots > SEGMENT_SLOTS_MAX)
        slots = SEGMENT_SLOTS_MAX;
    kvi_file_records_init(&records, file->alloc);
    kvi_file_record_begin(&records, RECORD_SEGMENT);
    kvi_file_record_u32(&records, id);
    kvi_file_record_u32(&records, slot_bytes);
    kvi_file_record_u32(&records, (uint32_t)slots);
    kvi_file_record_u32(&records, 0);
    kvi_file_record_end(&records);
    err = kvi_file_append(file, &records, error);
    kvi_file_records_fini(&records);
    if (err != KVG_OK)
        return err;
    fd = kvi_file_segment_make(file, kvi_file_segment(file, id));
    return fd < 0 ? kvi_file_failed(file, "making", "segment", fd, error) : KVG_OK;
}

/* May so many bytes more be taken from the disk? */
static bool budget_allows(struct file_store *file, uint64_t bytes)
{
    uint64_t free_bytes = UINT64_MAX;

    if (file->backed_bytes + file->reserved_bytes + bytes > file->bytes_max)
        return false;
    if (file->io->space(file->io->context, file->dir, &free_bytes) < 0)
        return true; /* It does not say: the write will. */
    return free_bytes >= file->floor_bytes + bytes + MARGIN_BYTES;
}

/* (1) and (2) of the opening comment.  *count comes with how many are wanted, and becomes how many
 * there are: a run of slots. */
static kvg_err take_now(struct file_store *file, uint32_t slot_bytes, uint32_t *count,
    uint64_t *place, struct kvg_error *error)
{
    uint32_t wanted = *count;
    kvg_err err;

    *count = take_existing(file, slot_bytes, true, wanted, place);
    if (*count > 0)
        return KVG_OK;
    if (wanted > 1 && !budget_allows(file, (uint64_t)slot_bytes * wanted))
        wanted = 1;
    if (wanted == 1 && !budget_allows(file, slot_bytes))
        return KVG_ENOSPACE;
    *count = take_existing(file, slot_bytes, false, wanted, place);
    if (*count > 0)
        return KVG_OK;
    err = add_segment(file, slot_bytes, error);
    if (err != KVG_OK)
        return err;
    *count = take_existing(file, slot_bytes, false, wanted, place);
    return *count > 0 ? KVG_OK : KVG_ENOSPACE;
}

/* Free bytes of sizes other than this one, that can be given back. */
static uint64_t punchable(struct file_store *file, uint32_t slot_bytes)
{
    uint64_t bytes = 0;
    uint32_t i;

    for (i = 0; i < file->segment_count; i++) {
        const struct file_segment *segment = file->segments[i];

        if (segment != NULL && segment->slot_bytes != slot_bytes)
            bytes += (uint64_t)(segment->backed_count - segment->live_count -
                                segment->quarantine_count) *
                     segment->slot_bytes;
    }
    return bytes;
}

kvg_err kvi_file_take_slots(struct file_store *file, uint32_t slot_bytes, uint32_t *count,
    uint64_t *place, struct kvg_error *error)
{
    uint32_t wanted = *count;
    uint32_t round;

    if (slot_bytes > file->bytes_max)
        return kvi_fail(error, KVG_ENOSPACE, "store.file.bytes",
            "a part is larger than all that the store may take");
    for (round = 0; round < TAKE_ROUNDS_MAX; round++) {
        kvg_err err;

        *count = wanted;
        err = take_now(file, slot_bytes, count, place, error);
        if (err != KVG_ENOSPACE)
            return err;
        if (file->quarantine_count > 0) {
            err = kvi_file_sync_all(file, error);
            if (err != KVG_OK)
                return err;
            if (file->quarantine_count == 0)
                continue;
        }
        err = KVG_ENOSPACE;
        if (punchable(file, slot_bytes) >= slot_bytes)
            err = kvi_file_punch(file, slot_bytes, error);
        if (err == KVG_ENOSPACE)
            err = kvi_file_evict(file, slot_bytes, error);
        if (err != KVG_OK)
            return err;
    }
    return kvi_fail(error, KVG_ENOSPACE, "store.file.bytes",
        "what was evicted left no room for a part");
}

kvg_err kvi_file_take_slot(
    struct file_store *file, uint64_t bytes, uint64_t *place, struct kvg_error *error)
{
    uint32_t count = 1;

    return kvi_file_take_slots(file, kvi_file_slot_bytes(bytes), &count, place, error);
}

/* ---- Making room --------------------------------------------------------------------------- */

kvg_err kvi_file_drop(struct file_store *file, enum kvg_store_change_kind why,
    const uint64_t *places, size_t count, struct kvg_error *error)
{
    struct file_records records;
    kvg_err err;
    size_t i;

    if (count == 0)
        return KVG_OK;
    kvi_file_records_init(&records, file->alloc);
    kvi_file_record_begin(&records, RECORD_DROP);
    kvi_file_record_u32(&records, (uint32_t)why);
    kvi_file_record_u32(&records, (uint32_t)count);
    for (i = 0; i < count; i++)
        kvi_file_record_u64(&records, places[i]);
    kvi_file_record_end(&records);
    err = kvi_file_append(file, &records, error);
    kvi_file_records_fini(&records);
    return err;
}

kvg_err kvi_file_evict(struct file_store *file, uint64_t bytes, struct kvg_error *error)
{
    struct kvi_catalog *catalog = &file->catalog;
    uint64_t wanted = bytes > file->bytes_max / 256 ? bytes : file->bytes_max / 256;
    uint64_t freed = 0;
    kvg_err err = KVG_OK;

    while (freed < wanted && err == KVG_OK) {
        uint64_t places[KVG_STORE_GROUP_PARTS_MAX];
        uint32_t count = 0;
        uint32_t group;
        uint32_t part;

        pthread_rwlock_wrlock(&file->index);
        group = kvi_catalog_coldest(catalog);
        if (group != KVI_NONE) {
            part = catalog->groups[group].first_part;
            for (; count < catalog->groups[group].part_count &&
                   count < KVG_STORE_GROUP_PARTS_MAX;
                 part = catalog->parts[part].next) {
                freed += kvi_file_slot_bytes(catalog->parts[part].bytes);
                places[count++] = catalog->parts[part].place;
            }
        }
        pthread_rwlock_unlock(&file->index);
        if (count == 0)
            return freed > 0 ? KVG_OK
                             : kvi_fail(error, KVG_ENOSPACE, "store.file.bytes",
                                   "the store is full, and nothing can be evicted");
        err = kvi_file_drop(file, KVG_STORE_EVICTED, places, count, error);
    }
    return err;
}

/* Gives back one free slot, if its segment has one; it stays reserved. */
static bool punch_one(
    struct file_store *file, struct file_segment *segment, uint64_t *place)
{
    int fd;

    if (take_in_segment(file, segment, true, 1, place) == 0)
        return false;
    fd = kvi_file_segment_fd(file, segment, 0);
    if (fd >= 0)
        fd = file->io->punch(file->io->context, fd,
            (uint64_t)PLACE_SLOT(*place) * segment->slot_bytes, segment->slot_bytes);
    if (fd < 0)
        kvi_file_release_slot(file, *place);
    return fd >= 0;
}

#define PUNCH_BYTES (RECORD_HEADER_BYTES + 16u)

/* The place of the last of these PUNCH records. */
static uint64_t punched_place(const struct file_records *records)
{
    struct file_reader reader = {.data = records->data + records->bytes - 8, .bytes = 8};

    return kvi_file_read_u64(&reader);
}

kvg_err kvi_file_punch(struct file_store *file, uint64_t bytes, struct kvg_error *error)
{
    struct file_records records;
    uint64_t freed = 0;
    kvg_err err = KVG_OK;
    uint32_t i;

    kvi_file_records_init(&records, file->alloc);
    for (i = 0; i < file->segment_count && freed < bytes && err == KVG_OK; i++) {
        struct file_segment *segment = file->segments[i];
        uint64_t place;
        uint32_t left = segment == NULL ? 0
                                        : segment->backed_count - segment->live_count -
                                              segment->quarantine_count;

        for (; left > 0 && freed < bytes && punch_one(file, segment, &place); left--) {
            kvi_file_record_begin(&records, RECORD_PUNCH);
            kvi_file_record_u32(&records, 1);
            kvi_file_record_u32(&records, 0);
            kvi_file_record_u64(&records, place);
            kvi_file_record_end(&records);
            freed += segment->slot_bytes;
        }
        err = kvi_file_append(file, &records, error);
        for (; records.bytes > 0; records.bytes -= PUNCH_BYTES)
            kvi_file_release_slot(file, punched_place(&records));
    }
    kvi_file_records_fini(&records);
    if (err != KVG_OK || freed > 0)
        return err;
    return kvi_fail(error, KVG_ENOSPACE, "store.file.bytes",
        "the file system cannot take back the space of free slots");
}
