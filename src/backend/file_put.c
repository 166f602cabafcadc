/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* file_put.c -- writing groups: (1) plan: with the commit lock, which parts are missing,
 * and a slot for each; (2) write the data, without a lock; (3) with the sync policy
 * `each`, sync it; (4) commit: with the lock again, what is still missing becomes a
 * record; (5) `each`: sync that.
 *
 * So data is always written before the record that publishes it, one record publishes a
 * whole group, and the locks are held for bookkeeping only.  Between plan and commit the
 * slots are reserved and the page before is held; if another process evicted it all the
 * same, the group is given up, as it would be a tail without its head. */
#include "backend/file_put.h"
#include "backend/hash.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/fmt.h"
#include "store/store.h"

#include <errno.h>

#define WAVE_PARTS_MAX 4096u
#define PLANS_MAX \
    8u /* Of a group whose parts are evicted while the others are written. */

static bool is_there(struct file_store *file, struct kvg_str key)
{
    return kvi_catalog_find(&file->catalog, key) != KVI_NONE;
}

/* ---- (3) Sync ------------------------------------------------------------------------------ */

static kvg_err sync_written(struct wave *wave)
{
    struct file_store *file = wave->file;
    uint32_t last = UINT32_MAX;
    size_t i;

    for (i = 0; i < wave->part_count; i++) {
        uint32_t id = PLACE_SEGMENT(wave->parts[i].place);
        struct file_segment *segment;
        int fd = -ENOENT;

        if (!wave->parts[i].taken || id == last)
            continue;
        last = id;
        pthread_rwlock_rdlock(&file->index);
        segment = kvi_file_segment(file, id);
        if (segment != NULL)
            fd = kvi_file_segment_fd(file, segment, 0);
        pthread_rwlock_unlock(&file->index);
        if (fd >= 0)
            fd = file->io->sync(file->io->context, fd);
        if (fd < 0)
            return kvi_file_failed(file, "syncing", "segment", fd, wave->error);
    }
    return KVG_OK;
}

/* ---- (4) Commit ---------------------------------------------------------------------------- */

/* The parts that records of this commit bring, by key: a key may come twice in a wave. */
struct coming {
    const struct plan_part **table;
    size_t size; /* A power of two. */
};

static bool coming_init(struct coming *coming, const struct wave *wave)
{
    for (coming->size = 16; coming->size < 2 * wave->part_count;)
        coming->size *= 2;
    coming->table =
        kvi_alloc_array(wave->file->alloc, coming->size, sizeof(struct plan_part *));
    return coming->table != NULL;
}

static void coming_fini(struct coming *coming, const struct wave *wave)
{
    kvi_release_array(
        wave->file->alloc, coming->table, coming->size, sizeof(struct plan_part *));
}

/* Where a key is, or where it would go. */
static const struct plan_part **coming_find(
    const struct coming *coming, struct kvg_str key)
{
    size_t at = (size_t)kvi_checksum(key.data, key.bytes, 0) & (coming->size - 1);

    while (coming->table[at] != NULL &&
           (coming->table[at]->source->key.bytes != key.bytes ||
               memcmp(coming->table[at]->source->key.data, key.data, key.bytes) != 0))
        at = (at + 1) & (coming->size - 1);
    return &coming->table[at];
}

/* Looks up again, unless nothing has changed since the plan. */
static void look_again(struct wave *wave)
{
    struct file_store *file = wave->file;
    size_t i;

    if (file->journal.generation == wave->planned_generation &&
        file->journal.applied == wave->planned_at)
        return;
    for (i = 0; i < wave->part_count; i++)
        wave->parts[i].found =
            kvi_catalog_find(&file->catalog, wave->parts[i].source->key);
}

static bool still_held(const struct file_store *file, const struct plan *plan)
{
    return plan->held != KVI_NONE &&
           file->catalog.groups[plan->held].serial == plan->held_serial;
}

/* Did the page before go, that was there when the group was planned? */
static bool lost_previous(struct file_store *file, const struct plan *plan)
{
    return plan->held != KVI_NONE && !still_held(file, plan);
}

/* Did a part go that was there when the group was planned, and so was not written?  Without it half
 * a page would appear. */
static bool lost_part(const struct plan *plan, const struct coming *coming)
{
    size_t i;

    for (i = 0; i < plan->group->part_count; i++) {
        const struct plan_part *part = &plan->parts[i];

        if (!part->taken && part->found == KVI_NONE &&
            *coming_find(coming, part->source->key) == NULL)
            return true;
    }
    return false;
}

/* May parts join the group of this one?  A group must fit in one record. */
static bool can_join(struct file_store *file, uint32_t part, size_t more)
{
    return part != KVI_NONE &&
           file->catalog.groups[file->catalog.parts[part].group].part_count + more <=
               KVG_STORE_GROUP_PARTS_MAX;
}

/* Of the parts that were written, those which nobody else has published meanwhile; the others give
 * their slots back.  *join becomes a key of the group that they join, if there is one. */
static uint32_t choose_parts(
    struct wave *wave, struct plan *plan, struct coming *coming, struct kvg_str *join)
{
    struct file_store *file = wave->file;
    uint32_t missing = 0;
    size_t i;

    for (i = 0; i < plan->group->part_count; i++) {
        struct plan_part *part = &plan->parts[i];
        const struct plan_part **at = coming_find(coming, part->source->key);

        if (join->data == NULL && can_join(file, part->found, plan->group->part_count))
            *join = part->source->key;
        if ((part->found != KVI_NONE || *at != NULL) && part->taken) {
            kvi_file_release_slot(file, part->place);
            part->taken = false;
        }
        if (!part->taken)
            continue;
        missing++;
        *at = part;
    }
    return missing;
}

/* The PUT record of what is still missing; false if nothing is. */
static bool make_record(struct wave *wave, struct plan *plan, uint64_t tick,
    struct coming *coming, struct file_records *records)
{
    struct file_store *file = wave->file;
    const struct kvg_store_group *group = plan->group;
    struct kvg_str join = {NULL, 0};
    uint32_t missing = choose_parts(wave, plan, coming, &join);
    uint64_t bytes = 0;
    size_t i;

    if (missing == 0)
        return false;
    kvi_file_record_begin(records, RECORD_PUT);
    kvi_file_record_u32(records, file->sync == FILE_SYNC_EACH ? PUT_DURABLE : 0);
    kvi_file_record_u32(records, missing);
    kvi_file_record_u64(records, tick);
    kvi_file_record_str(records, group->id);
    kvi_file_record_str(records, group->previous);
    kvi_file_record_str(records, join);
    for (i = 0; i < group->part_count; i++) {
        const struct plan_part *part = &plan->parts[i];

        if (!part->taken)
            continue;
        kvi_file_record_u64(records, part->place);
        kvi_file_record_u64(records, part->bytes);
        kvi_file_record_u64(records, part->check);
        kvi_file_record_str(records, part->source->key);
        bytes += part->bytes;
    }
    atomic_fetch_add(&file->put_parts, missing);
    atomic_fetch_add(&file->put_bytes, bytes);
    atomic_fetch_add(&file->unsynced_bytes, bytes);
    atomic_fetch_add(&file->put_present, group->part_count - missing);
    kvi_file_record_end(records);
    return true;
}

/* Places that this process has read go into the journal now and then, so that others know what is
 * in use, and the next opening too. */
static void make_touches(struct file_store *file, struct file_records *records)
{
    uint32_t i;

    pthread_mutex_lock(&file->touched_lock);
    if (file->touched_count >= FILE_TOUCHED_MAX / 4) {
        kvi_file_record_begin(records, RECORD_TOUCH);
        kvi_file_record_u32(records, file->touched_count);
        kvi_file_record_u32(records, 0);
        for (i = file->touched_count; i > 0; i--)
            kvi_file_record_u64(records, file->touched[i - 1]);
        kvi_file_record_end(records);
        file->touched_count = 0;
    }
    pthread_mutex_unlock(&file->touched_lock);
}

static void make_records(
    struct wave *wave, struct coming *coming, struct file_records *records)
{
    struct file_store *file = wave->file;
    uint64_t tick = kvi_catalog_ticks(&file->catalog, wave->count);
    size_t i;

    look_again(wave);
    for (i = 0; i < wave->count && !records->failed; i++) {
        struct plan *plan = &wave->plans[i];

        if (plan->group->result == KVG_OK && lost_previous(file, plan))
            plan->group->result = KVG_ENOSPACE;
        if (plan->group->result == KVG_OK && lost_part(plan, coming))
            plan->group->result = KVG_EBUSY; /* To be planned again. */
        if (plan->group->result == KVG_OK &&
            !make_record(wave, plan, tick - i, coming, records))
            plan->group->result = KVG_EEXIST;
    }
}

/* After an append that failed: a group that is there all the same was stored. */
static void settle(struct wave *wave, kvg_err err)
{
    size_t i;
    size_t k;

    for (i = 0; i < wave->count; i++) {
        struct kvg_store_group *group = wave->plans[i].group;

        for (k = 0; k < group->part_count; k++) {
            if (group->result == KVG_OK && !is_there(wave->file, group->parts[k].key))
                group->result = err;
        }
    }
}

/* The journal could not be synced: what was just published is taken back. */
static void withdraw(struct wave *wave)
{
    size_t i;

    for (i = 0; i < wave->part_count; i++) {
        if (wave->parts[i].taken)
            (void)kvi_file_drop(
                wave->file, KVG_STORE_LOST, &wave->parts[i].place, 1, NULL);
    }
}

static kvg_err commit(struct wave *wave)
{
    struct file_store *file = wave->file;
    struct coming coming;
    struct file_records records;
    kvg_err err = KVG_OK;
    int code = 0;

    if (!coming_init(&coming, wave))
        return kvi_fail(wave->error, KVG_ENOMEM, "store.file", "out of memory");
    kvi_file_records_init(&records, file->alloc);
    make_records(wave, &coming, &records);
    make_touches(file, &records);
    err = kvi_file_append(file, &records, wave->error);
    if (err == KVG_OK && file->sync == FILE_SYNC_EACH && records.bytes > 0)
        code = file->io->sync(file->io->context, file->journal.fd);
    if (code < 0) {
        err = kvi_file_failed(file, "syncing", "journal", code, wave->error);
        withdraw(wave);
    } else if (err != KVG_OK) {
        settle(wave, err);
        err = KVG_OK; /* Each has its own result now. */
    }
    kvi_file_records_fini(&records);
    coming_fini(&coming, wave);
    return err;
}

/* ---- All of it ----------------------------------------------------------------------------- */

static void fail_wave(struct wave *wave, kvg_err err)
{
    size_t i;

    for (i = 0; i < wave->count; i++) {
        if (wave->plans[i].group->result == KVG_OK)
            wave->plans[i].group->result = err;
    }
}

static void finish(struct wave *wave, bool tidy)
{
    struct file_store *file = wave->file;
    kvg_err err = KVG_OK;

    kvi_file_unplan(wave);
    if (!tidy)
        return;
    if (file->sync != FILE_SYNC_NONE &&
        atomic_load(&file->unsynced_bytes) > file->sync_bytes)
        err = kvi_file_sync_all(file, wave->error);
    if (err == KVG_OK)
        err = kvi_file_compact(file, false, NULL);
    if (err != KVG_OK)
        kvi_file_log(file, KVG_LOG_WARN, "%s: syncing or compacting failed: %s",
            file->dir, kvg_strerror(err));
}

static void run_wave(struct wave *wave)
{
    struct file_store *file = wave->file;
    bool locked = false;
    kvg_err err = kvi_file_begin_commit(file, wave->error);

    if (err != KVG_OK) {
        fail_wave(wave, err);
        return;
    }
    kvi_file_plan(wave);
    kvi_file_end_commit(file);
    kvi_file_write(wave);
    if (file->sync == FILE_SYNC_EACH)
        err = sync_written(wave);
    if (err != KVG_OK)
        fail_wave(wave, err);
    err = kvi_file_begin_commit(file, wave->error);
    if (err == KVG_OK) {
        locked = true;
        err = commit(wave);
    } else {
        pthread_mutex_lock(&file->commit); /* Slots are this process's own: enough. */
    }
    if (err != KVG_OK)
        fail_wave(wave, err);
    finish(wave, locked && err == KVG_OK);
    if (locked)
        kvi_file_end_commit(file);
    else
        pthread_mutex_unlock(&file->commit);
}

/* True if nothing of the call is missing: the usual case for who writes what it has just read. */
static bool all_there(
    struct file_store *file, struct kvg_store_group *groups, size_t group_count)
{
    size_t i;
    size_t k;
    bool there = true;

    if (kvi_file_begin_read(file, NULL) != KVG_OK)
        return false;
    for (i = 0; i < group_count && there; i++) {
        for (k = 0; k < groups[i].part_count && there; k++)
            there = is_there(file, groups[i].parts[k].key);
    }
    kvi_file_end_read(file);
    for (i = 0; i < group_count && there; i++) {
        groups[i].result = KVG_EEXIST;
        atomic_fetch_add(&file->put_present, groups[i].part_count);
    }
    return there;
}

static kvg_err put_wave(struct file_store *file, struct kvg_store_group *groups,
    size_t count, size_t part_count, struct kvg_error *error)
{
    struct wave wave = {
        .file = file, .count = count, .part_count = part_count, .error = error};
    struct kvg_error unused;
    size_t used = 0;
    size_t i;
    kvg_err err = KVG_ENOMEM;

    if (error == NULL)
        wave.error = &unused;
    wave.plans = kvi_alloc_array(file->alloc, count, sizeof(*wave.plans));
    wave.parts = kvi_alloc_array(file->alloc, part_count, sizeof(*wave.parts));
    if (wave.plans != NULL && wave.parts != NULL) {
        for (i = 0; i < count; i++) {
            wave.plans[i].group = &groups[i];
            wave.plans[i].parts = wave.parts + used;
            wave.plans[i].held = wave.plans[i].sibling = KVI_NONE;
            used += groups[i].part_count;
        }
        run_wave(&wave);
        err = KVG_OK;
    }
    kvi_release_array(file->alloc, wave.plans, count, sizeof(*wave.plans));
    kvi_release_array(file->alloc, wave.parts, part_count, sizeof(*wave.parts));
    for (i = 0; err != KVG_OK && i < count; i++)
        groups[i].result = err;
    return KVG_OK;
}

/* Groups that lost a part on the way, once more, each for itself. */
static void put_again(struct file_store *file, struct kvg_store_group *groups,
    size_t count, struct kvg_error *error)
{
    size_t i;

    for (i = 0; i < count; i++) {
        unsigned plans = 1;

        while (groups[i].result == KVG_EBUSY && plans++ < PLANS_MAX) {
            groups[i].result = KVG_OK;
            (void)put_wave(file, &groups[i], 1, groups[i].part_count, error);
        }
        if (groups[i].result == KVG_EBUSY)
            groups[i].result = kvi_fail(error, KVG_ENOSPACE, "store.file.bytes",
                "parts of the page are evicted faster than it is written");
    }
}

kvg_err kvi_file_put(void *self, struct kvg_store_group *groups, size_t group_count,
    struct kvg_error *error)
{
    struct file_store *file = self;
    size_t done = 0;

    if (all_there(file, groups, group_count))
        return KVG_OK;
    while (done < group_count) {
        size_t parts = groups[done].part_count;
        size_t count = 1;

        while (done + count < group_count &&
               parts + groups[done + count].part_count <= WAVE_PARTS_MAX)
            parts += groups[done + count++].part_count;
        (void)put_wave(file, groups + done, count, parts, error);
        put_again(file, groups + done, count, error);
        done += count;
    }
    return KVG_OK;
}
