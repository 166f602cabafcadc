/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* file_put.h -- a put on its way: what file_plan.c, file_write.c and file_put.c hand on to each
 * other.
 *
 *     wave   | plan of group 0          | plan of group 1     | ...
 *     parts  | part 0 | part 1 | part 2 | part 0 | part 1 ... |     all of them in one array
 *
 * A wave goes through the steps of file_put.c as one.  Since its parts are one array, slots are
 * taken and data is written in runs that do not end where a group ends. */
#ifndef KVI_BACKEND_FILE_PUT_H
#define KVI_BACKEND_FILE_PUT_H

#include "backend/file.h"

struct plan_part {
    const struct kvg_store_part *source;
    uint64_t bytes;
    uint64_t place;
    uint64_t check;
    uint32_t slot_bytes;
    uint32_t plan;  /* Which group it belongs to. */
    uint32_t found; /* What the catalog had under its key, or KVI_NONE. */
    bool wanted;    /* It was missing. */
    bool taken;     /* A slot is reserved for it. */
};

struct plan {
    struct kvg_store_group *group;
    struct plan_part *parts;
    uint32_t held;    /* The group of the page before, or KVI_NONE. */
    uint32_t sibling; /* The group of parts that are there, held while slots are taken. */
    uint64_t held_serial;
};

struct wave {
    struct file_store *file;
    struct plan *plans;
    size_t count;
    struct plan_part *parts;
    size_t part_count;
    /* Where the journal ended when the catalog was asked. */
    uint64_t planned_generation;
    uint64_t planned_at;
    struct kvg_error *error;
};

/* With the commit lock: finds out what is missing, and reserves slots for it.  Groups that fail, or
 * of which nothing is missing, have their result then. */
void kvi_file_plan(struct wave *wave);

/* Gives back what a plan still holds, with the commit lock. */
void kvi_file_unplan(struct wave *wave);

/* Without a lock: writes the parts that have a slot.  Groups that fail have their result then. */
void kvi_file_write(struct wave *wave);

#endif
