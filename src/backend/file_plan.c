/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* file_plan.c -- the first step of a put: what is missing, and where it will go (file_put.h).
 *
 * (1) With the index locked once: look up every part, hold the page before each group and the
 *     group that missing parts will join, so that neither goes to make room for them.
 * (2) Take slots, as many neighbours at a time as there are; evict for them.
 * (3) Let go of what (1) held for (2) only.
 *
 * A group that gets no slots gives back those it had.  If others of the wave hold their siblings
 * meanwhile, it is to be planned again alone: they may be what has to go. */
#include "backend/file_put.h"

#include "base/fmt.h"
#include "store/store.h"

#define RUN_MAX 64u

/* ---- (1) Look ------------------------------------------------------------------------------ */

static void hold_previous(struct file_store *file, struct plan *plan)
{
    uint32_t part;

    if (plan->group->previous.data == NULL)
        return;
    part = kvi_catalog_find(&file->catalog, plan->group->previous);
    if (part == KVI_NONE)
        return;
    plan->held = file->catalog.parts[part].group;
    plan->held_serial = file->catalog.groups[plan->held].serial;
    kvi_catalog_hold(&file->catalog, plan->held);
}

static void look(struct wave *wave, struct plan *plan)
{
    struct file_store *file = wave->file;
    struct kvg_store_group *group = plan->group;
    uint64_t bytes = 0;
    size_t i;

    for (i = 0; i < group->part_count; i++) {
        struct plan_part *part = &plan->parts[i];

        part->source = &group->parts[i];
        part->plan = (uint32_t)(plan - wave->plans);
        part->bytes = kvi_store_part_bytes(part->source);
        part->slot_bytes = kvi_file_slot_bytes(part->bytes);
        part->found = kvi_catalog_find(&file->catalog, part->source->key);
        part->wanted = part->found == KVI_NONE;
        bytes += part->wanted ? part->slot_bytes : 0;
        if (!part->wanted && plan->sibling == KVI_NONE)
            plan->sibling = file->catalog.parts[part->found].group;
    }
    /* Asked first, so that nothing is evicted in vain. */
    if (bytes > file->bytes_max)
        group->result = kvi_fail(wave->error, KVG_ENOSPACE, "store.file.bytes",
            "a page is larger than all that the store may take");
    else if (bytes == 0)
        group->result = KVG_EEXIST;
    if (group->result != KVG_OK) {
        plan->sibling = KVI_NONE;
        return;
    }
    hold_previous(file, plan);
    if (plan->sibling != KVI_NONE)
        kvi_catalog_hold(&file->catalog, plan->sibling);
}

/* ---- (2) Slots ----------------------------------------------------------------------------- */

static void give_up(struct wave *wave, struct plan *plan)
{
    size_t i;

    for (i = 0; i < plan->group->part_count; i++) {
        if (plan->parts[i].taken)
            kvi_file_release_slot(wave->file, plan->parts[i].place);
        plan->parts[i].taken = false;
    }
}

static void fail_part(struct wave *wave, const struct plan_part *part, kvg_err err)
{
    struct plan *plan = &wave->plans[part->plan];
    size_t i;

    for (i = 0; err == KVG_ENOSPACE && i < wave->count; i++) {
        if (&wave->plans[i] != plan && wave->plans[i].sibling != KVI_NONE)
            err = KVG_EBUSY;
    }
    plan->group->result = err;
    give_up(wave, plan);
}

static bool needs_slot(const struct wave *wave, const struct plan_part *part)
{
    return part->wanted && !part->taken &&
           wave->plans[part->plan].group->result == KVG_OK;
}

static void take_slots(struct wave *wave)
{
    size_t i = 0;

    while (i < wave->part_count) {
        struct plan_part *run[RUN_MAX];
        uint32_t slot_bytes = wave->parts[i].slot_bytes;
        uint32_t count = 0;
        uint64_t place;
        size_t k;
        kvg_err err;

        if (!needs_slot(wave, &wave->parts[i])) {
            i++;
            continue;
        }
        for (k = i; k < wave->part_count && count < RUN_MAX &&
                    wave->parts[k].slot_bytes == slot_bytes;
             k++) {
            if (needs_slot(wave, &wave->parts[k]))
                run[count++] = &wave->parts[k];
        }
        err = kvi_file_take_slots(wave->file, slot_bytes, &count, &place, wave->error);
        if (err != KVG_OK) {
            fail_part(wave, run[0], err);
            continue;
        }
        for (k = 0; k < count; k++) {
            run[k]->place = place + k;
            run[k]->taken = true;
        }
    }
}

/* ---- All of it ----------------------------------------------------------------------------- */

void kvi_file_plan(struct wave *wave)
{
    struct file_store *file = wave->file;
    size_t i;

    pthread_rwlock_wrlock(&file->index);
    for (i = 0; i < wave->count; i++)
        look(wave, &wave->plans[i]);
    wave->planned_generation = file->journal.generation;
    wave->planned_at = file->journal.applied;
    pthread_rwlock_unlock(&file->index);
    take_slots(wave);
    pthread_rwlock_wrlock(&file->index);
    for (i = 0; i < wave->count; i++) {
        if (wave->plans[i].sibling != KVI_NONE)
            kvi_catalog_let_go(&file->catalog, wave->plans[i].sibling);
        wave->plans[i].sibling = KVI_NONE;
    }
    pthread_rwlock_unlock(&file->index);
}

void kvi_file_unplan(struct wave *wave)
{
    struct file_store *file = wave->file;
    uint64_t places[RUN_MAX];
    size_t count = 0;
    size_t i;

    for (i = 0; i < wave->part_count; i++) {
        if (wave->parts[i].taken)
            places[count++] = wave->parts[i].place;
        wave->parts[i].taken = false;
        if (count == RUN_MAX || i + 1 == wave->part_count) {
            kvi_file_release_slots(file, places, count);
            count = 0;
        }
    }
    pthread_rwlock_wrlock(&file->index);
    for (i = 0; i < wave->count; i++) {
        struct plan *plan = &wave->plans[i];

        if (plan->held != KVI_NONE &&
            file->catalog.groups[plan->held].serial == plan->held_serial)
            kvi_catalog_let_go(&file->catalog, plan->held);
        plan->held = KVI_NONE;
    }
    pthread_rwlock_unlock(&file->index);
}
