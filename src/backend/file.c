/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* file.c -- the backend `file:DIR`: its table, and what only looks or removes (file.h). */
#include "backend/file.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/fmt.h"
#include "base/rng.h"
#include "store/store.h"

#include <errno.h>
#include <stdio.h>

#define GET_TRIES_MAX 4u
#define CHECK_CHUNK 256u

/* ---- Asking and reading -------------------------------------------------------------------- */

static kvg_err file_exists(void *self, const struct kvg_str *keys, size_t key_count,
    bool stop_at_gap, uint8_t *present, struct kvg_error *error)
{
    struct file_store *file = self;
    size_t i;
    kvg_err err = kvi_file_begin_read(file, error);

    if (err != KVG_OK)
        return err;
    for (i = 0; i < key_count; i++) {
        present[i] = kvi_catalog_find(&file->catalog, keys[i]) != KVI_NONE;
        if (stop_at_gap && present[i] == 0)
            break;
    }
    kvi_file_end_read(file);
    return KVG_OK;
}

static void copy_found(
    const struct file_store *file, uint32_t part_id, struct file_found *found)
{
    const struct kvi_catalog_part *part = &file->catalog.parts[part_id];

    *found = (struct file_found){.part = part_id,
        .serial = part->serial,
        .place = part->place,
        .bytes = part->bytes,
        .check = part->check,
        .slot_bytes = kvi_file_segment(file, PLACE_SEGMENT(part->place))->slot_bytes};
}

static void remember_touch(struct file_store *file, uint64_t place)
{
    if (file->read_only)
        return;
    pthread_mutex_lock(&file->touched_lock);
    if (file->touched_count < FILE_TOUCHED_MAX)
        file->touched[file->touched_count++] = place;
    pthread_mutex_unlock(&file->touched_lock);
}

static kvg_err find_keys(struct file_store *file, struct kvg_store_get *gets,
    struct file_found *found, size_t count, uint64_t tick, struct kvg_error *error)
{
    size_t i;
    kvg_err err = kvi_file_begin_read(file, error);

    if (err != KVG_OK)
        return err;
    for (i = 0; i < count; i++) {
        uint32_t part = kvi_catalog_find(&file->catalog, gets[i].key);

        gets[i].result = part == KVI_NONE ? KVG_ENOENT : KVG_OK;
        if (part == KVI_NONE)
            continue;
        copy_found(file, part, &found[i]);
        kvi_catalog_touch(&file->catalog, file->catalog.parts[part].group, tick - i);
        if (gets[i].range_count > 0)
            remember_touch(file, found[i].place);
    }
    kvi_file_end_read(file);
    return KVG_OK;
}

/* Drops a damaged part, or all of a segment that is gone, if nothing has changed meanwhile.
 * Returns whether it was this very part that was damaged. */
static bool drop_damaged(struct file_store *file, const struct file_found *found)
{
    struct file_segment *segment;
    uint64_t *places;
    size_t count = 0;
    uint32_t slot;
    bool same;

    if (kvi_file_begin_commit(file, NULL) != KVG_OK)
        return true;
    same = found->part < file->catalog.part_used &&
           file->catalog.parts[found->part].key != NULL &&
           file->catalog.parts[found->part].serial == found->serial;
    segment = kvi_file_segment(file, PLACE_SEGMENT(found->place));
    if (same && kvi_file_segment_fd(file, segment, 0) == -ENOENT) {
        places = kvi_alloc_array_raw(file->alloc, segment->slot_count, sizeof(*places));
        for (slot = 0; places != NULL && slot < segment->slot_count; slot++) {
            if (file_bit(segment->live, slot))
                places[count++] = PLACE(segment->id, slot);
        }
        kvi_file_log(file, KVG_LOG_ERROR, "%s: segment %08x is gone, with %zu objects",
            file->dir, (unsigned)segment->id, count);
        slot = segment->slot_count;
        if (places != NULL)
            (void)kvi_file_drop(file, KVG_STORE_LOST, places, count, NULL);
        /* Its slots are to be used again: make it anew. */
        (void)kvi_file_segment_fd(
            file, kvi_file_segment(file, PLACE_SEGMENT(found->place)), true);
        kvi_release_array(file->alloc, places, slot, sizeof(*places));
    } else if (same) {
        (void)kvi_file_drop(file, KVG_STORE_LOST, &found->place, 1, NULL);
    }
    kvi_file_end_commit(file);
    return same;
}

static void get_one(
    struct file_store *file, struct kvg_store_get *get, struct file_found *found)
{
    unsigned tries;

    for (tries = 0; tries < GET_TRIES_MAX && get->result == KVG_OK; tries++) {
        kvg_err err;

        get->value_bytes = found->bytes;
        if (!kvi_store_ranges_fit(get, found->bytes)) {
            get->result = KVG_EINVAL;
            return;
        }
        err = kvi_file_read_part(file, found, get->ranges, get->range_count);
        if (err != KVG_ECHECKSUM) {
            get->result = err;
            return;
        }
        if (file->read_only || drop_damaged(file, found)) {
            get->result = KVG_ECHECKSUM;
            return;
        }
        /* Its slot was given to another meanwhile: is there one still? */
        err = find_keys(file, get, found, 1, 0, NULL);
        if (err != KVG_OK)
            get->result = err;
    }
    if (get->result == KVG_OK)
        get->result = KVG_ENOENT; /* It comes and goes faster than it can be read. */
}

/* The first, and those with it that can be read together.  Returns how many that were. */
static size_t get_some(struct file_store *file, struct kvg_store_get *gets,
    struct file_found *found, size_t count)
{
    size_t together = kvi_file_read_neighbours(gets, found, count);
    size_t i;

    if (together > 1 && kvi_file_read_together(file, gets, found, together)) {
        for (i = 0; i < together; i++)
            gets[i].value_bytes = found[i].bytes;
        return together;
    }
    if (gets->result == KVG_OK)
        get_one(file, gets, found);
    return 1;
}

static void read_found(struct file_store *file, struct kvg_store_get *gets,
    struct file_found *found, size_t count)
{
    bool done[FILE_GET_MAX] = {false};
    size_t i;

    if (file->io_mode != FILE_IO_MODE_PLAIN)
        kvi_file_read_direct(file, gets, found, count, done);
    for (i = 0; i < count;) {
        size_t run = 0;

        while (i + run < count && !done[i + run])
            run++;
        if (run == 0)
            gets[i].value_bytes = found[i].bytes;
        i += run == 0 ? 1 : get_some(file, gets + i, found + i, run);
    }
}

static kvg_err file_get(
    void *self, struct kvg_store_get *gets, size_t get_count, struct kvg_error *error)
{
    struct file_store *file = self;
    uint64_t tick = kvi_catalog_ticks(&file->catalog, get_count);
    struct file_found found[FILE_GET_MAX];
    size_t done;

    for (done = 0; done < get_count; done += FILE_GET_MAX) {
        size_t count = get_count - done < FILE_GET_MAX ? get_count - done : FILE_GET_MAX;
        size_t i;
        kvg_err err = find_keys(file, gets + done, found, count, tick - done, error);

        for (i = 0; i < count && err != KVG_OK; i++)
            gets[done + i].result = err;
        if (err == KVG_OK)
            read_found(file, gets + done, found, count);
    }
    return KVG_OK;
}

/* ---- Removing ------------------------------------------------------------------------------ */

static kvg_err file_remove(void *self, const struct kvg_str *keys, size_t key_count,
    kvg_err *results, struct kvg_error *error)
{
    struct file_store *file = self;
    uint64_t *places = kvi_alloc_array_raw(file->alloc, key_count, sizeof(*places));
    size_t count = 0;
    size_t i;
    int code = 0;
    kvg_err err;

    if (places == NULL)
        return kvi_fail(error, KVG_ENOMEM, "store.file", "out of memory");
    err = kvi_file_begin_commit(file, error);
    for (i = 0; i < key_count && err == KVG_OK; i++) {
        uint32_t part = kvi_catalog_find(&file->catalog, keys[i]);
        size_t k = 0;

        results[i] = KVG_ENOENT;
        if (part == KVI_NONE)
            continue;
        while (
            k < count && places[k] != file->catalog.parts[part].place && key_count < 64)
            k++; /* Twice in one call: the second finds nothing. */
        if (k < count && key_count < 64)
            continue;
        results[i] = KVG_OK;
        places[count++] = file->catalog.parts[part].place;
    }
    if (err == KVG_OK) {
        err = kvi_file_drop(file, KVG_STORE_REMOVED, places, count, error);
        if (err == KVG_OK && count > 0 && file->sync == FILE_SYNC_EACH)
            code = file->io->sync(file->io->context, file->journal.fd);
        if (code < 0)
            err = kvi_file_failed(file, "syncing", "journal", code, error);
        kvi_file_end_commit(file);
    }
    for (i = 0; i < key_count && err != KVG_OK; i++)
        results[i] = err;
    kvi_release_array(file->alloc, places, key_count, sizeof(*places));
    return KVG_OK;
}

static kvg_err file_clear(void *self, struct kvg_error *error)
{
    struct file_store *file = self;
    struct file_records records;
    kvg_err err = kvi_file_begin_commit(file, error);

    if (err != KVG_OK)
        return err;
    kvi_file_records_init(&records, file->alloc);
    kvi_file_record_begin(&records, RECORD_CLEAR);
    kvi_file_record_u32(&records, 0);
    kvi_file_record_u32(&records, 0);
    kvi_file_record_u64(&records, kvi_mix64(file->epoch + 1) | 1);
    kvi_file_record_end(&records);
    err = kvi_file_append(file, &records, error);
    kvi_file_records_fini(&records);
    if (err == KVG_OK)
        err = kvi_file_sync_all(file, error);
    if (err == KVG_OK)
        (void)kvi_file_punch(file, UINT64_MAX, NULL); /* If the file system can. */
    kvi_file_end_commit(file);
    return err;
}

/* ---- Listing ------------------------------------------------------------------------------- */

/* words: next part id, 1 once begun, generation of the catalog. */
static kvg_err file_list(void *self, struct kvg_store_cursor *cursor, size_t item_max,
    bool (*visit)(void *context, const struct kvg_store_item *item), void *context,
    struct kvg_error *error)
{
    struct file_store *file = self;
    struct kvi_catalog *catalog = &file->catalog;
    bool more = true;
    kvg_err err = kvi_file_begin_read(file, error);

    if (err != KVG_OK)
        return err;
    if (cursor->words[1] == 0 || cursor->words[2] != file->generation) {
        if (cursor->words[1] == 0) {
            cursor->epoch = file->epoch;
            cursor->sequence = file->sequence;
        }
        cursor->words[0] = 0;
        cursor->words[1] = 1;
        cursor->words[2] = file->generation;
    }
    while (more && item_max > 0 && cursor->words[0] < catalog->part_used) {
        const struct kvi_catalog_part *part = &catalog->parts[cursor->words[0]++];
        const struct kvi_catalog_group *group;
        struct kvg_store_item item = {
            .struct_bytes = sizeof(item), .medium = KVG_MEDIUM_DISK};

        if (part->key == NULL)
            continue;
        group = &catalog->groups[part->group];
        item.key = (struct kvg_str){part->key, part->key_bytes};
        if (group->id != NULL)
            item.group_id = (struct kvg_str){group->id, group->id_bytes};
        item.bytes = part->bytes;
        item_max--;
        more = visit(context, &item);
    }
    cursor->done = cursor->words[0] >= catalog->part_used;
    kvi_file_end_read(file);
    return KVG_OK;
}

/* ---- The rest ------------------------------------------------------------------------------ */

static kvg_err file_flush(void *self, struct kvg_error *error)
{
    struct file_store *file = self;
    kvg_err err;

    if (file->read_only)
        return KVG_OK;
    err = kvi_file_begin_commit(file, error);
    if (err != KVG_OK)
        return err;
    err = kvi_file_sync_all(file, error);
    kvi_file_end_commit(file);
    return err;
}

static kvg_err file_poll(void *self, struct kvg_error *error)
{
    kvg_err err = kvi_file_begin_read(self, error);

    if (err == KVG_OK)
        kvi_file_end_read(self);
    return err;
}

static void file_stats(void *self, struct kvg_store_stats *out)
{
    struct file_store *file = self;

    pthread_rwlock_rdlock(&file->index);
    out->objects = file->catalog.part_count;
    out->bytes = file->catalog.bytes;
    out->bytes_max = file->bytes_max;
    out->bytes_on_disk = file->backed_bytes;
    out->epoch = file->epoch;
    out->sequence = file->sequence;
    pthread_rwlock_unlock(&file->index);
    out->put_parts = atomic_load(&file->put_parts);
    out->put_bytes = atomic_load(&file->put_bytes);
    out->put_present = atomic_load(&file->put_present);
    out->evicted_objects = atomic_load(&file->evicted_objects);
    out->evicted_bytes = atomic_load(&file->evicted_bytes);
    out->lost_objects = atomic_load(&file->lost_objects);
    out->space_retries = atomic_load(&file->space_retries);
}

struct checking {
    struct file_store *file;
    bool repair;
    void (*say)(void *context, const char *line);
    void *context;
    struct kvg_store_report *report;
};

static void say(struct checking *checking, const char *what, const char *key)
{
    char line[640];

    checking->report->problems++;
    if (checking->say == NULL)
        return;
    snprintf(line, sizeof(line), "%s%s%s", what, key == NULL ? "" : ": ",
        key == NULL ? "" : key);
    checking->say(checking->context, line);
}

static void check_part(
    struct checking *checking, const struct file_found *found, const char *key)
{
    checking->report->objects++;
    checking->report->bytes += found->bytes;
    if (kvi_file_verify_part(checking->file, found) != KVG_ECHECKSUM)
        return;
    /* It may have gone while it was read. */
    if (checking->repair) {
        if (!drop_damaged(checking->file, found))
            return;
        checking->report->dropped++;
    }
    checking->report->damaged++;
    say(checking, "damaged", key);
}

static kvg_err file_check(void *self, bool repair,
    void (*say_line)(void *context, const char *line), void *context,
    struct kvg_store_report *out, struct kvg_error *error)
{
    struct file_store *file = self;
    struct checking checking = {file, repair, say_line, context, out};
    uint32_t next = 0;
    bool more = true;
    kvg_err err = KVG_OK;
    unsigned broken;

    if (file->bad_records > 0)
        say(&checking, "the journal was damaged when it was opened; it was written anew",
            NULL);
    while (more && err == KVG_OK) {
        struct file_found found = {0};
        char key[KVG_STORE_KEY_MAX + 1];

        err = kvi_file_begin_read(file, error);
        if (err != KVG_OK)
            break;
        while (next < file->catalog.part_used && file->catalog.parts[next].key == NULL)
            next++;
        more = next < file->catalog.part_used;
        if (more) {
            memcpy(key, file->catalog.parts[next].key,
                file->catalog.parts[next].key_bytes + 1);
            copy_found(file, next++, &found);
        }
        kvi_file_end_read(file);
        if (more)
            check_part(&checking, &found, key);
    }
    pthread_rwlock_rdlock(&file->index);
    out->bytes_unused = file->backed_bytes - file->catalog.bytes;
    broken = kvi_file_check_index(file);
    pthread_rwlock_unlock(&file->index);
    if (err == KVG_OK && broken != 0)
        return kvi_fail_range(error, "store.file.invariant", broken, 0, 0);
    return err;
}

static kvg_err file_open(const struct kvg_store_url *url,
    const struct kvg_store_options *options, void **out, uint32_t *flags_out,
    struct kvg_error *error)
{
    struct file_store *file;
    kvg_err err = kvi_file_open_io(url, options, &kvi_file_io_system, &file, error);

    (void)flags_out;
    *out = file;
    return err;
}

static const char *const PARAMETERS[] = {
    "bytes", "floor", "sync", "sync_bytes", "segment", "io", NULL};

const struct kvg_store_backend kvi_store_file = {
    .struct_bytes = sizeof(kvi_store_file),
    .version = KVG_STORE_BACKEND_VERSION,
    .flags = KVG_STORE_SHARED | KVG_STORE_PERSISTENT | KVG_STORE_FOLLOWS |
             KVG_STORE_CHECKSUMS | KVG_STORE_EVICTS | KVG_STORE_LISTS | KVG_STORE_ATOMIC |
             KVG_STORE_RANGES | KVG_STORE_REMOVES,
    .scheme = "file",
    .summary = "file:DIR?bytes=N&sync=none|batch|each&floor=N&io=plain|direct|uring  "
               "segments in a directory, for "
               "several processes",
    .parameters = PARAMETERS,
    .open = file_open,
    .close = kvi_file_close,
    .exists = file_exists,
    .put = kvi_file_put,
    .get = file_get,
    .remove = file_remove,
    .clear = file_clear,
    .list = file_list,
    .flush = file_flush,
    .poll = file_poll,
    .stats = file_stats,
    .check = file_check,
};
