/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* file_journal.c -- the one order of changes: reading on, appending, syncing, writing anew.
 *
 * The journal only grows at its end, under the commit lock.  Readers need no lock: a
 * record counts when it is there whole and its checksum is right, and what comes after
 * the last one that counts is not there yet.  A writer that was killed leaves the
 * beginning of a record; the next one cuts it off before it appends.
 *
 * When a journal has grown long, whoever appends writes the state into a new one and
 * renames it over the old.  Others notice that theirs has no name any more, read it to
 * its end, and go on in the new one behind its snapshot, which says what they know
 * already.
 *
 * After a crash of the machine (another boot id) the records behind the last SYNCED are
 * in doubt: some may be missing, and the data of a PUT that was not DURABLE may not be
 * there.  Whoever opens first verifies those and begins a new epoch.  A hole is stepped
 * over; checksums keep what is behind it honest. */
#include "backend/file.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/fmt.h"
#include "base/rng.h"

#include <errno.h>

#define READ_BYTES ((size_t)64 << 10)
#define RESERVE_BYTES (UINT64_C(128) << 10)
#define LOCK_COMMIT 0u

/* ---- Reading on ---------------------------------------------------------------------------- */

static ssize_t read_at(struct file_store *file, void *out, size_t bytes, uint64_t offset)
{
    struct iovec vector = {out, bytes};

    return file->io->readv(file->io->context, file->journal.fd, &vector, 1, offset);
}

/* A window over the journal, from its applied end on. */
struct window {
    uint8_t *data;
    size_t bytes;
    size_t at;
    size_t capacity;
    bool end; /* No more in the file. */
};

static kvg_err window_fill(struct file_store *file, struct window *window)
{
    size_t left = window->bytes - window->at;
    ssize_t got;

    if (window->capacity - left < window->capacity / 2) {
        void *data = window->data;

        if (!kvi_resize_array(
                file->alloc, &data, window->capacity, window->capacity * 2, 1))
            return KVG_ENOMEM;
        window->data = data;
        window->capacity *= 2;
    }
    if (left > 0)
        memmove(window->data, window->data + window->at, left);
    window->at = 0;
    window->bytes = left;
    got = read_at(
        file, window->data + left, window->capacity - left, file->journal.applied + left);
    if (got < 0)
        return KVG_EIO;
    window->bytes += (size_t)got;
    window->end = (size_t)got < window->capacity - left;
    return KVG_OK;
}

/* Steps over what is no record: to the next place where one begins, or false and to the
 * end.  Opening only. */
static bool skip_hole(struct file_store *file, struct window *window)
{
    struct file_reader reader;
    bool more;
    size_t at;

    for (at = window->at + 8; at + RECORD_HEADER_BYTES <= window->bytes; at += 8) {
        if (kvi_file_record_read(window->data + at, window->bytes - at,
                file->journal.generation, file->journal.applied + (at - window->at),
                &reader, &more) != 0)
            break;
    }
    if (at + RECORD_HEADER_BYTES > window->bytes)
        at = window->bytes;
    file->journal.applied += at - window->at;
    window->at = at;
    return at < window->bytes;
}

/* Takes in every whole record, with index held for writing.  With `holes`, steps over damage, and
 * *sound_out is the end of the last good record. */
static kvg_err take_in(
    struct file_store *file, bool holes, uint64_t *sound_out, struct kvg_error *error)
{
    struct window window = {.capacity = READ_BYTES};
    struct file_reader reader;
    kvg_err err = KVG_OK;
    bool more = true;

    window.data = kvi_alloc_array_raw(file->alloc, window.capacity, 1);
    if (window.data == NULL)
        return kvi_fail(error, KVG_ENOMEM, "store.file", "no memory for the journal");
    while (err == KVG_OK) {
        size_t used =
            kvi_file_record_read(window.data + window.at, window.bytes - window.at,
                file->journal.generation, file->journal.applied, &reader, &more);

        if (used != 0) {
            err = kvi_file_apply(file, &reader, file->journal.applied);
            if (err == KVG_EFORMAT && holes) {
                file->bad_records++;
                err = KVG_OK;
            }
            if (err != KVG_OK)
                break;
            window.at += used;
            file->journal.applied += used;
            *sound_out = file->journal.applied;
        } else if (more && !window.end) {
            err = window_fill(file, &window);
        } else if (holes && window.at < window.bytes) {
            if (!window.end)
                err = window_fill(file, &window);
            if (skip_hole(file, &window))
                file->bad_records++; /* Else it was an unfinished end. */
        } else {
            break;
        }
    }
    kvi_release_array(file->alloc, window.data, window.capacity, 1);
    if (err == KVG_OK)
        return err;
    return kvi_fail(error, err, "store.file",
        err == KVG_EFORMAT ? "the journal has a record that makes no sense"
        : err == KVG_EIO   ? "the journal cannot be read"
                           : "no memory for the index");
}

static kvg_err open_journal_file(
    struct file_store *file, struct file_journal *journal, struct kvg_error *error)
{
    char path[FILE_PATH_MAX];

    journal->fd = file->io->open(file->io->context, kvi_file_path(file, "journal", path),
        file->read_only ? FILE_IO_READ_ONLY : 0);
    if (journal->fd < 0)
        return kvi_file_failed(file, "opening", "journal", journal->fd, error);
    return KVG_OK;
}

static kvg_err read_header(struct file_store *file, struct file_journal *journal,
    uint64_t *epoch, uint64_t *sequence, struct kvg_error *error)
{
    uint8_t header[JOURNAL_HEADER_BYTES];
    struct iovec vector = {header, sizeof(header)};
    ssize_t got = file->io->readv(file->io->context, journal->fd, &vector, 1, 0);

    if (got < 0)
        return kvi_file_failed(file, "reading", "journal", (int)got, error);
    if (got < (ssize_t)sizeof(header))
        return kvi_fail(error, KVG_EFORMAT, "store.file", "the journal has no header");
    return kvi_file_header_read(header, journal, epoch, sequence, error);
}

/* The journal was written anew by somebody: goes on behind its snapshot, if that is what is known
 * already; else begins from nothing. */
static kvg_err follow_rename(struct file_store *file, struct kvg_error *error)
{
    struct file_journal next = {0};
    uint64_t epoch;
    uint64_t sequence;
    kvg_err err = open_journal_file(file, &next, error);

    if (err != KVG_OK)
        return err;
    err = read_header(file, &next, &epoch, &sequence, error);
    if (err != KVG_OK) {
        file->io->close(file->io->context, next.fd);
        return err;
    }
    file->io->close(file->io->context, file->journal.fd);
    next.applied = next.snapshot_bytes;
    next.synced = next.snapshot_bytes;
    if (epoch != file->epoch || sequence != file->sequence) {
        kvi_catalog_clear(&file->catalog);
        kvi_file_segments_free(file);
        file->generation++;
        file->epoch = epoch;
        file->sequence = sequence;
        next.applied = JOURNAL_HEADER_BYTES;
    } else {
        uint32_t i;

        for (i = 0; i < file->segment_count; i++) {
            if (file->segments[i] != NULL)
                file->segments[i]->last_put = file->segments[i]->last_drop = 0;
        }
    }
    file->journal = next;
    return KVG_OK;
}

/* With index held for writing. */
static kvg_err catch_up(struct file_store *file, struct kvg_error *error)
{
    struct file_io_state state;
    uint64_t sound;
    int code;
    kvg_err err;

    while (true) {
        code = file->io->state(file->io->context, file->journal.fd, &state);
        if (code < 0)
            return kvi_file_failed(file, "looking at", "journal", code, error);
        if (state.bytes > file->journal.applied) {
            err = take_in(file, false, &sound, error);
            if (err != KVG_OK)
                return err;
        }
        if (!state.unlinked)
            return KVG_OK;
        err = follow_rename(file, error);
        if (err != KVG_OK)
            return err;
    }
}

kvg_err kvi_file_begin_read(struct file_store *file, struct kvg_error *error)
{
    struct file_io_state state;
    int code;
    kvg_err err;

    pthread_rwlock_rdlock(&file->index);
    code = file->io->state(file->io->context, file->journal.fd, &state);
    if (code == 0 && state.bytes <= file->journal.applied && !state.unlinked)
        return KVG_OK;
    pthread_rwlock_unlock(&file->index);
    pthread_rwlock_wrlock(&file->index);
    err = catch_up(file, error);
    pthread_rwlock_unlock(&file->index);
    if (err != KVG_OK)
        return err;
    pthread_rwlock_rdlock(&file->index);
    return KVG_OK;
}

void kvi_file_end_read(struct file_store *file)
{
    pthread_rwlock_unlock(&file->index);
}

/* ---- Appending ----------------------------------------------------------------------------- */

kvg_err kvi_file_begin_commit(struct file_store *file, struct kvg_error *error)
{
    int code;
    kvg_err err;

    pthread_mutex_lock(&file->commit);
    code = file->io->lock(file->io->context, file->lock_fd, LOCK_COMMIT, 1, true);
    if (code < 0) {
        pthread_mutex_unlock(&file->commit);
        return kvi_file_failed(file, "locking", "lock", code, error);
    }
    pthread_rwlock_wrlock(&file->index);
    err = catch_up(file, error);
    pthread_rwlock_unlock(&file->index);
    if (err != KVG_OK)
        kvi_file_end_commit(file);
    return err;
}

void kvi_file_end_commit(struct file_store *file)
{
    file->io->unlock(file->io->context, file->lock_fd, LOCK_COMMIT, 1);
    pthread_mutex_unlock(&file->commit);
}

/* The end of what was taken in.  With the commit lock nobody moves it but by reading what this
 * process is just appending. */
static uint64_t applied_end(struct file_store *file)
{
    uint64_t end;

    pthread_rwlock_rdlock(&file->index);
    end = file->journal.applied;
    pthread_rwlock_unlock(&file->index);
    return end;
}

/* Cuts off what a killed writer, or a write that failed, left behind the last record. */
static kvg_err cut_tail(struct file_store *file, struct kvg_error *error)
{
    struct file_io_state state;
    int code = file->io->state(file->io->context, file->journal.fd, &state);
    uint64_t end = applied_end(file);

    if (code == 0 && state.bytes > end) {
        file->cut_bytes += state.bytes - end;
        code = file->io->truncate(file->io->context, file->journal.fd, end);
        file->journal.reserved = 0; /* That gave it back. */
    }
    return code < 0 ? kvi_file_failed(file, "cutting", "journal", code, error) : KVG_OK;
}

/* Keeps space ahead, so that there is room to write down an eviction when the disk is full. */
static void reserve_ahead(struct file_store *file, uint64_t end)
{
    if (end + RESERVE_BYTES / 2 <= file->journal.reserved)
        return;
    if (file->io->reserve(file->io->context, file->journal.fd, end, RESERVE_BYTES) >= 0)
        file->journal.reserved = end + RESERVE_BYTES;
}

/* Takes in what was just appended, from memory: it is in the journal now, whatever happens.
 * Another thread may have read the first records of it already. */
static kvg_err take_in_own(
    struct file_store *file, const struct file_records *records, uint64_t begin)
{
    kvg_err err = KVG_OK;

    while (err == KVG_OK && file->journal.applied < begin + records->bytes) {
        size_t at = (size_t)(file->journal.applied - begin);
        struct file_reader reader;
        bool more;
        size_t used = kvi_file_record_read(records->data + at, records->bytes - at,
            file->journal.generation, file->journal.applied, &reader, &more);

        KVI_ASSERT(used != 0);
        err = kvi_file_apply(file, &reader, file->journal.applied);
        if (err == KVG_OK)
            file->journal.applied += used;
    }
    return err;
}

kvg_err kvi_file_append(
    struct file_store *file, struct file_records *records, struct kvg_error *error)
{
    struct iovec vector = {records->data, records->bytes};
    uint64_t end = applied_end(file);
    uint64_t sound;
    ssize_t written;
    kvg_err err;

    if (records->failed)
        return kvi_fail(error, KVG_ENOMEM, "store.file", "no memory for a record");
    if (records->bytes == 0)
        return KVG_OK;
    err = cut_tail(file, error);
    if (err != KVG_OK)
        return err;
    reserve_ahead(file, end + records->bytes);
    kvi_file_records_seal(records, file->journal.generation, end);
    written = file->io->writev(file->io->context, file->journal.fd, &vector, 1, end);
    if (written != (ssize_t)records->bytes) {
        /* Whole records among what was written may have been read by others: they count. */
        pthread_rwlock_wrlock(&file->index);
        (void)take_in(file, false, &sound, NULL);
        pthread_rwlock_unlock(&file->index);
        (void)cut_tail(file, NULL);
        return kvi_file_failed(
            file, "writing", "journal", written < 0 ? (int)written : -ENOSPC, error);
    }
    pthread_rwlock_wrlock(&file->index);
    err = take_in_own(file, records, end);
    pthread_rwlock_unlock(&file->index);
    if (err != KVG_OK)
        return kvi_fail(error, err, "store.file", "what was written cannot be taken in");
    return KVG_OK;
}

/* ---- Syncing ------------------------------------------------------------------------------- */

static kvg_err sync_segments(struct file_store *file, struct kvg_error *error)
{
    uint32_t i;

    for (i = 0; i < file->segment_count; i++) {
        struct file_segment *segment = file->segments[i];
        int code;

        if (segment == NULL || !segment->dirty)
            continue;
        code = kvi_file_segment_fd(file, segment, 0);
        if (code >= 0)
            code = file->io->sync(file->io->context, code);
        if (code == -ENOENT)
            continue; /* Somebody deleted it: its parts will be found lost. */
        if (code < 0)
            return kvi_file_failed(file, "syncing", "segment", code, error);
    }
    return KVG_OK;
}

kvg_err kvi_file_sync_all(struct file_store *file, struct kvg_error *error)
{
    struct file_records records;
    uint64_t covered = applied_end(file);
    uint64_t mine = atomic_load(&file->unsynced_bytes);
    int code;
    kvg_err err;

    if (covered <= file->journal.synced)
        return KVG_OK;
    err = sync_segments(file, error);
    if (err != KVG_OK)
        return err;
    code = file->io->sync(file->io->context, file->journal.fd);
    if (code < 0)
        return kvi_file_failed(file, "syncing", "journal", code, error);
    kvi_file_records_init(&records, file->alloc);
    kvi_file_record_begin(&records, RECORD_SYNCED);
    kvi_file_record_u64(&records, covered);
    kvi_file_record_end(&records);
    err = kvi_file_append(file, &records, error);
    kvi_file_records_fini(&records);
    if (err != KVG_OK)
        return err;
    atomic_fetch_sub(&file->unsynced_bytes, mine);
    pthread_rwlock_wrlock(&file->index);
    if (file->journal.applied == covered + RECORD_HEADER_BYTES + 8)
        file->journal.synced = file->journal.applied; /* It needs no other to cover it. */
    pthread_rwlock_unlock(&file->index);
    return KVG_OK;
}

/* ---- Opening ------------------------------------------------------------------------------- */

/* Drops everything that one PUT brought: it was published together, and goes together. */
static kvg_err drop_put(struct file_store *file, uint32_t part, struct kvg_error *error)
{
    const struct kvi_catalog *catalog = &file->catalog;
    uint64_t places[KVG_STORE_GROUP_PARTS_MAX];
    uint32_t put = catalog->parts[part].flags;
    uint32_t other = part;
    size_t count = 0;

    do {
        if (catalog->parts[other].flags == put && count < KVG_STORE_GROUP_PARTS_MAX)
            places[count++] = catalog->parts[other].place;
        other = catalog->parts[other].next;
    } while (other != part);
    return kvi_file_drop(file, KVG_STORE_LOST, places, count, error);
}

/* Verifies the parts whose data may not have reached the disk, and drops those that did not. */
static kvg_err verify_doubtful(
    struct file_store *file, uint64_t synced, struct kvg_error *error)
{
    uint32_t i;
    uint32_t slot;
    kvg_err err = KVG_OK;

    for (i = 0; i < file->segment_count; i++) {
        struct file_segment *segment = file->segments[i];

        if (segment == NULL || !segment->dirty || segment->last_put < synced)
            continue;
        for (slot = 0; slot < segment->slot_count && err == KVG_OK; slot++) {
            const struct kvi_catalog_part *part;
            struct file_found found;
            uint64_t place = PLACE(i, slot);

            if (!file_bit(segment->live, slot))
                continue;
            part = &file->catalog.parts[segment->parts[slot]];
            found = (struct file_found){segment->parts[slot], part->serial, place,
                part->bytes, part->check, segment->slot_bytes};
            if (kvi_file_verify_part(file, &found) != KVG_OK)
                err = drop_put(file, found.part, error);
        }
    }
    return err;
}

/* The machine crashed: makes sure of what is there, and says so. */
static kvg_err recover(struct file_store *file, const char *boot, struct kvg_error *error)
{
    bool all =
        file->sync == FILE_SYNC_NONE && file->journal.synced < file->journal.applied;
    struct file_records records;
    kvg_err err = KVG_OK;

    if (!all)
        err = verify_doubtful(file, file->journal.synced, error);
    if (err != KVG_OK)
        return err;
    kvi_file_records_init(&records, file->alloc);
    kvi_file_record_begin(&records, RECORD_CLEAR);
    kvi_file_record_u32(
        &records, all ? 0 : 1); /* Without syncs nothing can be relied on. */
    kvi_file_record_u32(&records, 0);
    kvi_file_record_u64(&records, kvi_mix64(file->epoch + 1) | 1);
    kvi_file_record_end(&records);
    kvi_file_record_begin(&records, RECORD_BOOT);
    kvi_file_record_str(&records, kvi_str(boot));
    kvi_file_record_end(&records);
    err = kvi_file_append(file, &records, error);
    kvi_file_records_fini(&records);
    return err == KVG_OK ? kvi_file_sync_all(file, error) : err;
}

kvg_err kvi_file_journal_open(struct file_store *file, struct kvg_error *error)
{
    char boot[64];
    uint64_t sound = JOURNAL_HEADER_BYTES;
    kvg_err err;

    memcpy(boot, file->boot, sizeof(boot));
    err = open_journal_file(file, &file->journal, error);
    if (err != KVG_OK)
        return err;
    err = read_header(file, &file->journal, &file->epoch, &file->sequence, error);
    if (err != KVG_OK)
        return err;
    file->journal.applied = JOURNAL_HEADER_BYTES;
    file->journal.synced = file->journal.snapshot_bytes;
    pthread_rwlock_wrlock(&file->index);
    err = take_in(file, !file->read_only, &sound, error);
    pthread_rwlock_unlock(&file->index);
    if (err != KVG_OK || file->read_only)
        return err;
    file->journal.applied = sound;
    err = cut_tail(file, error);
    if (err == KVG_OK && memcmp(boot, file->boot, sizeof(boot)) != 0)
        err = recover(file, boot, error);
    if (err != KVG_OK || file->bad_records == 0)
        return err;
    /* Others would stop at the hole: leave it behind, with a numbering of its own. */
    kvi_file_log(file, KVG_LOG_WARN, "the journal had %u damaged places; written anew",
        (unsigned)file->bad_records);
    pthread_rwlock_wrlock(&file->index);
    file->epoch = kvi_mix64(file->epoch + 1) | 1;
    file->sequence = 0;
    pthread_rwlock_unlock(&file->index);
    return kvi_file_compact(file, true, error);
}
