/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* view.c -- binding a layout to a tenant (view.h). */
#include "presence/view.h"

#include "base/fmt.h"

/* The class of a part: 0, or the one with its number of trailing pages, made if need be.  A
 * layout has at most one number a pool. */
static uint32_t class_of(struct kvg_presence_view *view, uint32_t trailing)
{
    uint32_t c;

    for (c = 0; c < view->class_count; c++)
        if (view->trailing[c] == trailing)
            return c;
    KVI_ASSERT(view->class_count < CLASSES_MAX);
    view->trailing[view->class_count] = trailing;
    return view->class_count++;
}

static void add_to_mask(
    struct kvg_presence_view *view, uint32_t class_number, uint32_t bit)
{
    view->masks[class_number * view->group_count + bit / 64] |= UINT64_C(1) << bit % 64;
    view->inline_mask[class_number] |=
        bit < INLINE_PARTS ? UINT64_C(1) << bit : INLINE_NEVER;
}

/* Gives every suffix of the layout its number in the space. */
static kvg_err bind_parts(struct kvg_presence_view *view, struct kvi_space *space,
    const struct kvg_layout *layout)
{
    uint32_t part;

    for (part = 0; part < view->part_count; part++) {
        uint32_t bit;
        kvg_err err =
            kvi_names_add(&space->suffixes, kvg_layout_suffix(layout, part), &bit);

        if (err != KVG_OK)
            return err;
        view->bits[part] = (uint16_t)bit;
        if (bit / 64 + 1 > view->group_count)
            view->group_count = bit / 64 + 1;
    }
    return KVG_OK;
}

static void fill_classes(struct kvg_presence_view *view, const struct kvg_layout *layout)
{
    uint32_t part;

    view->class_count = 1;
    for (part = 0; part < view->part_count; part++)
        view->required_count += kvg_layout_part_trailing(layout, part) == 0;
    view->chained = view->required_count != 0;
    for (part = 0; part < view->part_count; part++) {
        uint32_t trailing = kvg_layout_part_trailing(layout, part);

        add_to_mask(view, class_of(view, trailing), view->bits[part]);
        if (!view->chained)
            add_to_mask(view, 0, view->bits[part]);
    }
    if (!view->chained)
        view->required_count = view->part_count;
}

static kvg_err bind(struct kvg_presence_view *view, const struct kvg_layout *layout,
    struct kvg_str tenant_name)
{
    struct kvg_presence *index = view->index;
    struct kvi_space *space;
    uint32_t tenant;
    kvg_err err = kvi_presence_tenant_get(index, tenant_name, &tenant);

    if (err == KVG_OK)
        err = kvi_presence_space_get(index, tenant, kvg_layout_prefix(layout), &space);
    if (err != KVG_OK)
        return err;
    view->tenant = index->tenants[tenant];
    view->space_id = space->id;
    view->salt = space->salt;
    err = bind_parts(view, space, layout);
    if (err != KVG_OK)
        return err;
    view->masks = kvi_alloc_array(
        &index->alloc, (size_t)CLASSES_MAX * view->group_count, sizeof(*view->masks));
    if (view->masks == NULL)
        return KVG_ENOMEM;
    fill_classes(view, layout);
    return KVG_OK;
}

kvg_err kvg_presence_view_new(struct kvg_presence *index, const struct kvg_layout *layout,
    struct kvg_str tenant, struct kvg_error *error, struct kvg_presence_view **out)
{
    struct kvg_presence_view *view;
    kvg_err err;

    *out = NULL;
    view = KVI_NEW(&index->alloc, struct kvg_presence_view);
    if (view == NULL)
        return kvi_fail(error, KVG_ENOMEM, "view", "out of memory");
    index->view_count++;
    view->index = index;
    view->part_count = kvg_layout_part_count(layout);
    view->bits = kvi_alloc_array(&index->alloc, view->part_count, sizeof(*view->bits));
    err = view->bits == NULL ? KVG_ENOMEM : bind(view, layout, tenant);
    if (err == KVG_OK) {
        *out = view;
        return KVG_OK;
    }
    kvg_presence_view_free(view);
    return kvi_fail(error, err, "view",
        err == KVG_ELIMIT ? "too many tenants, prefixes or suffixes in this index"
                          : "out of memory");
}

void kvg_presence_view_free(struct kvg_presence_view *view)
{
    struct kvg_presence *index;

    if (view == NULL)
        return;
    index = view->index;
    kvi_release_array(&index->alloc, view->masks, (size_t)CLASSES_MAX * view->group_count,
        sizeof(*view->masks));
    kvi_release_array(&index->alloc, view->bits, view->part_count, sizeof(*view->bits));
    index->view_count--;
    KVI_FREE(&index->alloc, view);
}
