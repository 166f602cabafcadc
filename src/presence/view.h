/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* view.h -- a layout bound to a space: which bits of a page a query asks for.
 *
 * Parts fall into *classes*: class 0 is what every page needs, each further class is what the
 * last `trailing` pages need.  A class is a mask over the part numbers of the space; a page
 * satisfies it if all bits of the mask are set.
 */
#ifndef KVI_PRESENCE_VIEW_H
#define KVI_PRESENCE_VIEW_H

#include "presence/index.h"

#define CLASSES_MAX (KVG_LAYOUT_POOLS_MAX + 1)
#define GROUPS_MAX ((KVG_PRESENCE_SUFFIXES_MAX + 63) / 64)
/* In an inline mask: a part that does not fit there, so that no page without a record has it. */
#define INLINE_NEVER (UINT64_C(1) << INLINE_PARTS)

struct kvg_presence_view {
    struct kvg_presence *index;
    struct kvi_tenant *tenant;
    uint64_t salt;
    uint32_t space_id;
    uint32_t part_count;
    uint32_t class_count;
    uint32_t group_count;           /* Words a mask. */
    uint32_t required_count;        /* Parts in class 0. */
    bool chained;                   /* Class 0 must hold on every page of a prefix. */
    uint32_t trailing[CLASSES_MAX]; /* Pages; 0 for class 0. */
    uint64_t
        inline_mask[CLASSES_MAX]; /* The first INLINE_PARTS bits, or with INLINE_NEVER. */
    uint64_t *masks;              /* group_count words a class. */
    uint16_t *bits;               /* Part of the layout to part of the space. */
};

#endif
