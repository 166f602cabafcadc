/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* filter.c -- "is this object surely absent?", for a store whose questions cost something.
 *
 * Sure is only who followed everything: confidence is read before and after the page, and an
 * index that let pages go is never sure.  A page that kept changing while it was read is not
 * absent either.
 */
#include "presence/read.h"

static bool knows_everything(const struct kvg_presence_view *view)
{
    return atomic_load_explicit(&view->tenant->confidence, memory_order_acquire) ==
               KVG_CONFIDENCE_FRESH &&
           !atomic_load_explicit(&view->index->partial, memory_order_acquire);
}

/* Whether the index does not hold that part, for sure. */
static bool lacks(
    const struct kvg_presence_view *view, const struct kvg_key *key, uint32_t part)
{
    uint8_t cpu[KVG_LAYOUT_PARTS_MAX / 8];
    uint8_t disk[KVG_LAYOUT_PARTS_MAX / 8];
    struct kvg_presence_reader *reader;
    enum found found;

    if (kvg_presence_reader_open(view->index, &reader) != KVG_OK)
        return false;
    found = kvi_presence_read_parts(reader, view, key, cpu, disk, part / 8 + 1);
    kvg_presence_reader_close(reader);
    return found == FOUND_OTHER ||
           (found == FOUND_PAGE && !((cpu[part / 8] | disk[part / 8]) >> part % 8 & 1));
}

bool kvg_presence_filter_absent(void *context, struct kvg_str object_key)
{
    const struct kvg_presence_filter *filter = context;
    struct kvg_object_key object;
    int32_t part;

    if (!kvg_object_key_parse(object_key, &object))
        return false;
    part = kvg_layout_part_of(filter->layout, &object);
    return part >= 0 && knows_everything(filter->view) &&
           lacks(filter->view, &object.key, (uint32_t)part) &&
           knows_everything(filter->view);
}
