/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* file_apply.c -- what a record of the journal does to a process's catalog and segments.
 *
 * Every process takes in the same records in the same order, so all arrive at the same
 * state, whoever wrote them.  A slot is
 *
 *     unbacked  takes no space                 -> PUT -> live
 *     live      a part is in it                -> DROP -> free
 *     free      takes space, without a part    -> PUT -> live, PUNCH -> unbacked
 *
 * and, when free, in quarantine until its DROP is surely on disk: before that a crash of the
 * machine could bring the old part back, and its bytes must still be there.
 *
 * Invariants, checked by kvi_file_check_index():
 *
 *     F1  The catalog's own (catalog.c).
 *     F2  A slot is live if and only if a part of the catalog has it as its place.
 *     F3  What is live is backed; what is in quarantine is backed and not live.
 *     F4  The counts of a segment, and backed_bytes, are right. */
#include "backend/file.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/fmt.h"

#include <unistd.h>

struct file_segment *kvi_file_segment(const struct file_store *file, uint32_t id)
{
    return id < file->segment_count ? file->segments[id] : NULL;
}

static struct file_segment *segment_of(const struct file_store *file, uint64_t place)
{
    struct file_segment *segment = kvi_file_segment(file, PLACE_SEGMENT(place));

    return segment != NULL && PLACE_SLOT(place) < segment->slot_count ? segment : NULL;
}

/* ---- Segments ------------------------------------------------------------------------------ */

static size_t segment_words(uint32_t slot_count)
{
    return (slot_count + 63u) / 64u;
}

static void segment_free(struct file_store *file, struct file_segment *segment)
{
    int fd = atomic_load_explicit(&segment->fd, memory_order_relaxed);

    if (fd >= 0)
        file->io->close(file->io->context, fd);
    if (segment->direct_fd >= 0)
        file->io->close(file->io->context, segment->direct_fd);
    kvi_release_array(file->alloc, segment->live, 5 * segment_words(segment->slot_count),
        sizeof(uint64_t));
    kvi_release_array(file->alloc, segment->parts, segment->slot_count, sizeof(uint32_t));
    KVI_FREE(file->alloc, segment);
}

void kvi_file_segments_free(struct file_store *file)
{
    uint32_t i;

    for (i = 0; i < file->segment_count; i++) {
        if (file->segments[i] != NULL)
            segment_free(file, file->segments[i]);
    }
    kvi_release_array(
        file->alloc, file->segments, file->segment_count, sizeof(struct file_segment *));
    file->segments = NULL;
    file->segment_count = 0;
    file->backed_bytes = 0;
    file->quarantine_count = 0;
}

static kvg_err segment_new(
    struct file_store *file, uint32_t id, uint32_t slot_bytes, uint32_t slot_count)
{
    size_t words = segment_words(slot_count);
    void *array = file->segments;
    struct file_segment *segment;

    if (id >= file->segment_count) {
        if (!kvi_resize_array(file->alloc, &array, file->segment_count, (size_t)id + 1,
                sizeof(struct file_segment *)))
            return KVG_ENOMEM;
        file->segments = array;
        while (file->segment_count <= id)
            file->segments[file->segment_count++] = NULL;
    }
    segment = KVI_NEW(file->alloc, struct file_segment);
    if (segment == NULL)
        return KVG_ENOMEM;
    *segment = (struct file_segment){.id = id,
        .slot_bytes = slot_bytes,
        .slot_count = slot_count,
        .direct_fd = FILE_FD_NONE};
    atomic_store_explicit(&segment->fd, -1, memory_order_relaxed);
    segment->live = kvi_alloc_array(file->alloc, 5 * words, sizeof(uint64_t));
    segment->parts = kvi_alloc_array_raw(file->alloc, slot_count, sizeof(uint32_t));
    if (segment->live == NULL || segment->parts == NULL) {
        segment_free(file, segment);
        return KVG_ENOMEM;
    }
    segment->backed = segment->live + words;
    segment->quarantine = segment->backed + words;
    segment->reserved = segment->quarantine + words;
    segment->fresh = segment->reserved + words;
    memset(segment->parts, 0xff, slot_count * sizeof(uint32_t));
    file->segments[id] = segment;
    return KVG_OK;
}

static kvg_err apply_segment(struct file_store *file, struct file_reader *reader)
{
    uint32_t id = kvi_file_read_u32(reader);
    uint32_t slot_bytes = kvi_file_read_u32(reader);
    uint32_t slot_count = kvi_file_read_u32(reader);

    if (reader->failed || id >= UINT32_C(1) << 24 || slot_bytes < BLOCK_BYTES ||
        slot_count == 0 || slot_count > SEGMENT_SLOTS_MAX ||
        kvi_file_segment(file, id) != NULL)
        return KVG_EFORMAT;
    return segment_new(file, id, slot_bytes, slot_count);
}

/* ---- Slots --------------------------------------------------------------------------------- */

static void slot_back(
    struct file_store *file, struct file_segment *segment, uint32_t slot)
{
    if (file_bit(segment->backed, slot))
        return;
    file_bit_set(segment->backed, slot, true);
    segment->backed_count++;
    file->backed_bytes += segment->slot_bytes;
}

static void slot_unback(
    struct file_store *file, struct file_segment *segment, uint32_t slot)
{
    file_bit_set(segment->backed, slot, false);
    segment->backed_count--;
    file->backed_bytes -= segment->slot_bytes;
}

static void slot_release_quarantine(
    struct file_store *file, struct file_segment *segment, uint32_t slot)
{
    if (!file_bit(segment->quarantine, slot))
        return;
    file_bit_set(segment->quarantine, slot, false);
    segment->quarantine_count--;
    file->quarantine_count--;
}

/* ---- Changes ------------------------------------------------------------------------------- */

static void tell(
    struct file_store *file, enum kvg_store_change_kind kind, uint32_t part_id)
{
    struct kvg_store_change change = {.struct_bytes = sizeof(change),
        .kind = kind,
        .medium = KVG_MEDIUM_DISK,
        .epoch = file->epoch,
        .sequence = ++file->sequence};

    if (file->hook.changed == NULL || !file->following)
        return;
    if (part_id != KVI_NONE) {
        const struct kvi_catalog_part *part = &file->catalog.parts[part_id];
        const struct kvi_catalog_group *group = &file->catalog.groups[part->group];

        change.key = (struct kvg_str){part->key, part->key_bytes};
        change.bytes = part->bytes;
        if (group->id != NULL)
            change.group_id = (struct kvg_str){group->id, group->id_bytes};
    }
    file->hook.changed(file->hook.context, &change);
}

/* What PUT says of the whole group. */
struct put {
    uint32_t flags;
    uint32_t part_count;
    uint64_t tick;
    struct kvg_str id;
    struct kvg_str previous;
    struct kvg_str join;
    uint64_t offset;
};

/* A part on its way in. */
struct put_part {
    uint64_t place;
    uint64_t bytes;
    uint64_t check;
    struct kvg_str key;
};

static struct put_part read_part(struct file_reader *reader)
{
    struct put_part part;

    part.place = kvi_file_read_u64(reader);
    part.bytes = kvi_file_read_u64(reader);
    part.check = kvi_file_read_u64(reader);
    part.key = kvi_file_read_str(reader);
    return part;
}

/* Is a PUT one that a sound writer could have made?  Looks at all of it before anything is done. */
static bool put_makes_sense(
    const struct file_store *file, struct file_reader reader, const struct put *put)
{
    uint32_t i;

    if (reader.failed || put->part_count == 0 ||
        put->part_count > KVG_STORE_GROUP_PARTS_MAX)
        return false;
    for (i = 0; i < put->part_count; i++) {
        struct put_part part = read_part(&reader);
        struct file_segment *segment = segment_of(file, part.place);

        if (reader.failed || part.key.data == NULL || segment == NULL ||
            part.bytes == 0 || kvi_file_slot_bytes(part.bytes) != segment->slot_bytes ||
            file_bit(segment->live, PLACE_SLOT(part.place)) ||
            kvi_catalog_find(&file->catalog, part.key) != KVI_NONE)
            return false;
    }
    return true;
}

static void undo_put(struct file_store *file, uint32_t group, bool is_new, uint32_t count)
{
    struct kvi_catalog *catalog = &file->catalog;

    if (is_new && catalog->groups[group].part_count == 0) {
        kvi_catalog_drop_group(catalog, group);
        return;
    }
    for (; count > 0; count--) {
        uint32_t part = catalog->parts[catalog->groups[group].first_part].prev;
        uint64_t place = catalog->parts[part].place;
        struct file_segment *segment = segment_of(file, place);

        file_bit_set(segment->live, PLACE_SLOT(place), false);
        segment->live_count--;
        segment->parts[PLACE_SLOT(place)] = KVI_NONE;
        kvi_catalog_remove_part(catalog, part);
    }
}

static kvg_err add_part(struct file_store *file, uint32_t group,
    const struct put_part *part, const struct put *put)
{
    struct file_segment *segment = segment_of(file, part->place);
    uint32_t slot = PLACE_SLOT(part->place);
    uint32_t id;

    if (file_bit(segment->live, slot)) /* Twice in one record. */
        return KVG_EFORMAT;
    id = kvi_catalog_add_part(
        &file->catalog, group, part->key, part->bytes, part->place, part->check);
    if (id == KVI_NONE)
        return KVG_ENOMEM;
    slot_back(file, segment, slot);
    slot_release_quarantine(file, segment, slot);
    file_bit_set(segment->live, slot, true);
    segment->live_count++;
    segment->parts[slot] = id;
    file->catalog.parts[id].flags = (uint32_t)(put->offset / 8); /* Which PUT. */
    segment->last_put = put->offset;
    if ((put->flags & (PUT_DURABLE | PUT_SNAPSHOT)) == 0)
        segment->dirty = true;
    return KVG_OK;
}

static kvg_err apply_put(
    struct file_store *file, struct file_reader *reader, uint64_t offset)
{
    struct kvi_catalog *catalog = &file->catalog;
    struct put put = {.offset = offset};
    uint32_t group = KVI_NONE;
    uint32_t join = KVI_NONE;
    uint32_t previous = KVI_NONE;
    uint32_t i;
    kvg_err err = KVG_OK;

    put.flags = kvi_file_read_u32(reader);
    put.part_count = kvi_file_read_u32(reader);
    put.tick = kvi_file_read_u64(reader);
    put.id = kvi_file_read_str(reader);
    put.previous = kvi_file_read_str(reader);
    put.join = kvi_file_read_str(reader);
    if (!put_makes_sense(file, *reader, &put))
        return KVG_EFORMAT;
    if (put.join.data != NULL)
        join = kvi_catalog_find(catalog, put.join);
    if (join != KVI_NONE)
        group = catalog->parts[join].group;
    else if (put.previous.data != NULL)
        previous = kvi_catalog_find(catalog, put.previous);
    if (group == KVI_NONE)
        group = kvi_catalog_add_group(catalog, put.id, previous, put.tick);
    if (group == KVI_NONE)
        return KVG_ENOMEM;
    for (i = 0; i < put.part_count && err == KVG_OK; i++) {
        struct put_part part = read_part(reader);

        err = add_part(file, group, &part, &put);
    }
    if (err != KVG_OK) {
        undo_put(file, group, join == KVI_NONE, i - 1);
        return err;
    }
    kvi_catalog_touch(catalog, group, put.tick);
    if (atomic_load_explicit(&catalog->clock, memory_order_relaxed) < put.tick)
        atomic_store_explicit(&catalog->clock, put.tick, memory_order_relaxed);
    if ((put.flags & PUT_SNAPSHOT) != 0)
        return KVG_OK;
    for (; put.part_count > 0; put.part_count--) {
        uint32_t part = catalog->groups[group].first_part;

        for (i = 0; i < put.part_count; i++)
            part = catalog->parts[part].prev; /* The last ones of the ring, in order. */
        tell(file, KVG_STORE_STORED, part);
    }
    return KVG_OK;
}

static kvg_err apply_drop(
    struct file_store *file, struct file_reader *reader, uint64_t offset)
{
    enum kvg_store_change_kind why =
        (enum kvg_store_change_kind)kvi_file_read_u32(reader);
    uint32_t count = kvi_file_read_u32(reader);

    for (; count > 0 && !reader->failed; count--) {
        uint64_t place = kvi_file_read_u64(reader);
        struct file_segment *segment = segment_of(file, place);
        uint32_t slot = PLACE_SLOT(place);
        uint64_t bytes;

        if (reader->failed || segment == NULL || !file_bit(segment->live, slot))
            continue; /* Nothing there: nothing to drop. */
        tell(file, why, segment->parts[slot]);
        bytes = file->catalog.parts[segment->parts[slot]].bytes;
        if (why == KVG_STORE_EVICTED && file->following) {
            atomic_fetch_add(&file->evicted_objects, 1);
            atomic_fetch_add(&file->evicted_bytes, bytes);
        } else if (why == KVG_STORE_LOST && file->following) {
            atomic_fetch_add(&file->lost_objects, 1);
        }
        kvi_catalog_remove_part(&file->catalog, segment->parts[slot]);
        segment->parts[slot] = KVI_NONE;
        file_bit_set(segment->live, slot, false);
        segment->live_count--;
        segment->last_drop = offset;
        if (file->sync != FILE_SYNC_NONE) {
            file_bit_set(segment->quarantine, slot, true);
            segment->quarantine_count++;
            file->quarantine_count++;
        }
    }
    return reader->failed ? KVG_EFORMAT : KVG_OK;
}

/* TOUCH, PUNCH and BACKED: lists of places. */
static kvg_err apply_places(struct file_store *file, struct file_reader *reader)
{
    uint32_t count = kvi_file_read_u32(reader);
    uint64_t tick = kvi_catalog_ticks(&file->catalog, count);

    (void)kvi_file_read_u32(reader);
    for (; count > 0 && !reader->failed; count--, tick--) {
        uint64_t place = kvi_file_read_u64(reader);
        struct file_segment *segment = segment_of(file, place);
        uint32_t slot = PLACE_SLOT(place);
        bool live;

        if (reader->failed || segment == NULL)
            continue;
        live = file_bit(segment->live, slot);
        if (reader->kind == RECORD_TOUCH && live)
            kvi_catalog_touch(
                &file->catalog, file->catalog.parts[segment->parts[slot]].group, tick);
        if (reader->kind == RECORD_BACKED)
            slot_back(file, segment, slot);
        if (reader->kind == RECORD_PUNCH && !live && file_bit(segment->backed, slot)) {
            slot_release_quarantine(file, segment, slot);
            slot_unback(file, segment, slot);
        }
    }
    return reader->failed ? KVG_EFORMAT : KVG_OK;
}

static void apply_synced(struct file_store *file, uint64_t covered)
{
    uint32_t i;

    if (covered > file->journal.synced)
        file->journal.synced = covered;
    for (i = 0; i < file->segment_count; i++) {
        struct file_segment *segment = file->segments[i];

        if (segment == NULL)
            continue;
        if (segment->last_put < covered)
            segment->dirty = false;
        if (segment->quarantine_count > 0 && segment->last_drop < covered) {
            memset(segment->quarantine, 0,
                segment_words(segment->slot_count) * sizeof(uint64_t));
            file->quarantine_count -= segment->quarantine_count;
            segment->quarantine_count = 0;
        }
    }
}

static kvg_err apply_clear(struct file_store *file, struct file_reader *reader)
{
    uint32_t keep = kvi_file_read_u32(reader);
    uint64_t epoch;
    uint32_t i;

    (void)kvi_file_read_u32(reader);
    epoch = kvi_file_read_u64(reader);
    if (reader->failed)
        return KVG_EFORMAT;
    file->epoch = epoch;
    file->sequence = 0;
    if (keep != 0)
        return KVG_OK;
    kvi_catalog_clear(&file->catalog);
    file->generation++;
    for (i = 0; i < file->segment_count; i++) {
        struct file_segment *segment = file->segments[i];
        size_t words;

        if (segment == NULL)
            continue;
        words = segment_words(segment->slot_count);
        memset(segment->parts, 0xff, segment->slot_count * sizeof(uint32_t));
        if (file->sync != FILE_SYNC_NONE) {
            uint32_t slot;

            for (slot = 0; slot < segment->slot_count; slot++) {
                if (!file_bit(segment->live, slot))
                    continue;
                file_bit_set(segment->quarantine, slot, true);
                segment->quarantine_count++;
                file->quarantine_count++;
            }
            segment->last_drop = file->journal.applied;
        }
        memset(segment->live, 0, words * sizeof(uint64_t));
        segment->live_count = 0;
    }
    tell(file, KVG_STORE_CLEARED, KVI_NONE);
    return KVG_OK;
}

static kvg_err apply_boot(struct file_store *file, struct file_reader *reader)
{
    struct kvg_str boot = kvi_file_read_str(reader);

    if (reader->failed || boot.bytes >= sizeof(file->boot))
        return KVG_EFORMAT;
    memset(file->boot, 0, sizeof(file->boot));
    if (boot.bytes > 0)
        memcpy(file->boot, boot.data, boot.bytes);
    return KVG_OK;
}

kvg_err kvi_file_apply(
    struct file_store *file, struct file_reader *reader, uint64_t offset)
{
    switch (reader->kind) {
    case RECORD_PUT:
        return apply_put(file, reader, offset);
    case RECORD_DROP:
        return apply_drop(file, reader, offset);
    case RECORD_TOUCH:
    case RECORD_PUNCH:
    case RECORD_BACKED:
        return apply_places(file, reader);
    case RECORD_SEGMENT:
        return apply_segment(file, reader);
    case RECORD_SYNCED:
        apply_synced(file, kvi_file_read_u64(reader));
        return reader->failed ? KVG_EFORMAT : KVG_OK;
    case RECORD_BOOT:
        return apply_boot(file, reader);
    case RECORD_CLEAR:
        return apply_clear(file, reader);
    default:
        return KVG_EFORMAT;
    }
}

/* ---- The check ----------------------------------------------------------------------------- */

static unsigned check_segment(
    const struct file_store *file, const struct file_segment *segment)
{
    uint32_t live = 0;
    uint32_t backed = 0;
    uint32_t quarantine = 0;
    uint32_t slot;

    for (slot = 0; slot < segment->slot_count; slot++) {
        bool is_live = file_bit(segment->live, slot);
        bool is_backed = file_bit(segment->backed, slot);
        bool is_held = file_bit(segment->quarantine, slot);
        uint32_t part = segment->parts[slot];

        live += is_live;
        backed += is_backed;
        quarantine += is_held;
        if (is_live != (part != KVI_NONE))
            return 2;
        if (is_live &&
            (part >= file->catalog.part_used || file->catalog.parts[part].key == NULL ||
                file->catalog.parts[part].place != PLACE(segment->id, slot)))
            return 2;
        if ((is_live && !is_backed) || (is_held && (is_live || !is_backed)))
            return 3;
    }
    return live == segment->live_count && backed == segment->backed_count &&
                   quarantine == segment->quarantine_count
               ? 0
               : 4;
}

unsigned kvi_file_check_index(const struct file_store *file)
{
    uint64_t backed_bytes = 0;
    uint64_t quarantine = 0;
    size_t live = 0;
    uint32_t i;

    if (kvi_catalog_check(&file->catalog) != 0)
        return 1;
    for (i = 0; i < file->segment_count; i++) {
        const struct file_segment *segment = file->segments[i];
        unsigned broken;

        if (segment == NULL)
            continue;
        broken = check_segment(file, segment);
        if (broken != 0)
            return broken;
        live += segment->live_count;
        quarantine += segment->quarantine_count;
        backed_bytes += (uint64_t)segment->backed_count * segment->slot_bytes;
    }
    if (live != file->catalog.part_count)
        return 2;
    return backed_bytes == file->backed_bytes && quarantine == file->quarantine_count ? 0
                                                                                      : 4;
}
