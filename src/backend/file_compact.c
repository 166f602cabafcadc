/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* file_compact.c -- writing the journal anew: the state in as many records as it has groups,
 * under the next generation, renamed over the old one.
 *
 *     header | BOOT | SEGMENT, BACKED ... | PUT of every group, a page before its successor |
 * changes
 *                                                                             snapshot_bytes ^
 *
 * Whatever the sync policy, data and snapshot are synced: a snapshot is never in doubt. */
#include "backend/file.h"

#include "base/alloc.h"
#include "base/fmt.h"

#include <errno.h>

#define COMPACT_SLACK_BYTES (UINT64_C(64) << 20)

static void snapshot_group(
    struct file_store *file, struct file_records *records, uint32_t at)
{
    const struct kvi_catalog *catalog = &file->catalog;
    const struct kvi_catalog_group *group = &catalog->groups[at];
    uint32_t part = group->first_part;
    uint32_t i;

    kvi_file_record_begin(records, RECORD_PUT);
    kvi_file_record_u32(records, PUT_SNAPSHOT);
    kvi_file_record_u32(records, group->part_count);
    kvi_file_record_u64(
        records, atomic_load_explicit(&group->tick, memory_order_relaxed));
    kvi_file_record_str(records, (struct kvg_str){group->id, group->id_bytes});
    if (group->parent != KVI_NONE &&
        catalog->groups[group->parent].serial == group->parent_serial) {
        const struct kvi_catalog_part *previous =
            &catalog->parts[catalog->groups[group->parent].first_part];

        kvi_file_record_str(
            records, (struct kvg_str){previous->key, previous->key_bytes});
    } else {
        kvi_file_record_str(records, (struct kvg_str){NULL, 0});
    }
    kvi_file_record_str(records, (struct kvg_str){NULL, 0});
    for (i = 0; i < group->part_count; i++, part = catalog->parts[part].next) {
        const struct kvi_catalog_part *object = &catalog->parts[part];

        kvi_file_record_u64(records, object->place);
        kvi_file_record_u64(records, object->bytes);
        kvi_file_record_u64(records, object->check);
        kvi_file_record_str(records, (struct kvg_str){object->key, object->key_bytes});
    }
    kvi_file_record_end(records);
}

static void snapshot_backed(
    struct file_records *records, const struct file_segment *segment)
{
    uint32_t slot;

    if (segment->backed_count == segment->live_count)
        return;
    kvi_file_record_begin(records, RECORD_BACKED);
    kvi_file_record_u32(records, segment->backed_count - segment->live_count);
    kvi_file_record_u32(records, 0);
    for (slot = 0; slot < segment->slot_count; slot++) {
        if (file_bit(segment->backed, slot) && !file_bit(segment->live, slot))
            kvi_file_record_u64(records, PLACE(segment->id, slot));
    }
    kvi_file_record_end(records);
}

/* A group after the one it names as its previous page, so that it is found when read back. */
static void snapshot_chain(
    struct file_store *file, struct file_records *records, uint8_t *written, uint32_t at)
{
    const struct kvi_catalog *catalog = &file->catalog;

    while (!written[at]) {
        uint32_t first = at;
        const struct kvi_catalog_group *group = &catalog->groups[first];

        while (group->parent != KVI_NONE && !written[group->parent] &&
               catalog->groups[group->parent].serial == group->parent_serial) {
            first = group->parent;
            group = &catalog->groups[first];
        }
        snapshot_group(file, records, first);
        written[first] = 1;
    }
}

static bool make_snapshot(struct file_store *file, struct file_records *records)
{
    uint8_t *written = kvi_alloc_array(file->alloc, file->catalog.group_used + 1, 1);
    uint32_t i;

    if (written == NULL)
        return false;
    kvi_file_record_begin(records, RECORD_BOOT);
    kvi_file_record_str(records, kvi_str(file->boot));
    kvi_file_record_end(records);
    for (i = 0; i < file->segment_count; i++) {
        const struct file_segment *segment = file->segments[i];

        if (segment == NULL)
            continue;
        kvi_file_record_begin(records, RECORD_SEGMENT);
        kvi_file_record_u32(records, segment->id);
        kvi_file_record_u32(records, segment->slot_bytes);
        kvi_file_record_u32(records, segment->slot_count);
        kvi_file_record_u32(records, 0);
        kvi_file_record_end(records);
        snapshot_backed(records, segment);
    }
    for (i = 0; i < file->catalog.group_used; i++) {
        if (file->catalog.groups[i].serial != 0)
            snapshot_chain(file, records, written, i);
    }
    kvi_release_array(file->alloc, written, file->catalog.group_used + 1, 1);
    return !records->failed;
}

/* Writes header and records to "journal.new" and gives it the journal's name. */
static kvg_err replace(struct file_store *file, struct file_journal *next, uint64_t epoch,
    uint64_t sequence, struct file_records *records, struct kvg_error *error)
{
    const struct file_io *io = file->io;
    uint8_t header[JOURNAL_HEADER_BYTES];
    char from[FILE_PATH_MAX];
    char to[FILE_PATH_MAX];
    struct iovec vector[2] = {{header, sizeof(header)}, {records->data, records->bytes}};
    ssize_t code;

    next->snapshot_bytes = JOURNAL_HEADER_BYTES + records->bytes;
    kvi_file_header_make(header, next, epoch, sequence);
    kvi_file_records_seal(records, next->generation, JOURNAL_HEADER_BYTES);
    next->fd = io->open(io->context, kvi_file_path(file, "journal.new", from),
        FILE_IO_CREATE | FILE_IO_TRUNCATE);
    if (next->fd < 0)
        return kvi_file_failed(file, "making", "journal.new", next->fd, error);
    code = io->writev(io->context, next->fd, vector, 2, 0);
    code = code == (ssize_t)next->snapshot_bytes ? 0 : code < 0 ? code : -ENOSPC;
    if (code == 0)
        code = io->sync(io->context, next->fd);
    if (code == 0)
        code = io->rename(io->context, from, kvi_file_path(file, "journal", to));
    if (code == 0)
        code = io->sync_dir(io->context, file->dir);
    if (code == 0)
        return KVG_OK;
    io->close(io->context, next->fd);
    return kvi_file_failed(file, "writing", "journal.new", (int)code, error);
}

kvg_err kvi_file_compact(struct file_store *file, bool always, struct kvg_error *error)
{
    struct file_journal next = {.generation = file->journal.generation + 1};
    struct file_records records;
    kvg_err err;
    uint32_t i;

    if (!always && file->journal.applied - file->journal.snapshot_bytes <
                       COMPACT_SLACK_BYTES + file->journal.snapshot_bytes)
        return KVG_OK;
    err = kvi_file_sync_all(
        file, error); /* Under any policy: a snapshot is never in doubt. */
    if (err != KVG_OK)
        return err;
    kvi_file_records_init(&records, file->alloc);
    if (!make_snapshot(file, &records))
        err = kvi_fail(error, KVG_ENOMEM, "store.file", "no memory for a snapshot");
    if (err == KVG_OK)
        err = replace(file, &next, file->epoch, file->sequence, &records, error);
    kvi_file_records_fini(&records);
    if (err != KVG_OK)
        return err;
    pthread_rwlock_wrlock(&file->index);
    file->io->close(file->io->context, file->journal.fd);
    next.applied = next.synced = next.snapshot_bytes;
    file->journal = next;
    for (i = 0; i < file->segment_count; i++) {
        if (file->segments[i] != NULL)
            file->segments[i]->last_put = file->segments[i]->last_drop = 0;
    }
    pthread_rwlock_unlock(&file->index);
    return KVG_OK;
}

kvg_err kvi_file_journal_create(
    struct file_store *file, uint64_t epoch, struct kvg_error *error)
{
    struct file_journal next = {.generation = 1};
    struct file_records records;
    kvg_err err;

    kvi_file_records_init(&records, file->alloc);
    kvi_file_record_begin(&records, RECORD_BOOT);
    kvi_file_record_str(&records, kvi_str(file->boot));
    kvi_file_record_end(&records);
    err = records.failed ? kvi_fail(error, KVG_ENOMEM, "store.file", "out of memory")
                         : replace(file, &next, epoch, 0, &records, error);
    kvi_file_records_fini(&records);
    if (err == KVG_OK)
        file->io->close(file->io->context, next.fd);
    return err;
}
