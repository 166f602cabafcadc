/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* agree.c -- what ranks agree on.
 *
 * Restorable lengths are a set, and sparse: a store may have lost the page in the middle of one
 * rank's chain, or a window.  So ranks intersect sets, as flags of which the smallest counts, and
 * take the longest length that is left:
 *
 *     length     0  1  2  3  4
 *     rank 0     0  0  1  0  1
 *     rank 1     0  0  1  0  0       the smaller of two maxima would be 2, too; but with
 *     agreed     0  0  1  0  0       rank 1 at {3} it would be 3, which rank 0 does not have
 */
#include "graft/linker.h"

void kvi_agree(struct kvg_linker *linker, int32_t *values, size_t count)
{
    if (linker->agreement.min == NULL)
        return;
    linker->stats.agreement_calls++;
    linker->agreement.min(linker->agreement.context, values, count);
}

uint32_t kvg_agree_prefix(const struct kvg_agreement *agreement, const uint32_t *lengths,
    size_t length_count, uint32_t page_count, uint32_t device_pages, int32_t *mask)
{
    memset(mask, 0, ((size_t)page_count + 1) * sizeof(*mask));
    for (size_t i = 0; i < length_count; i++) {
        if (lengths[i] > device_pages && lengths[i] <= page_count)
            mask[lengths[i]] = 1;
    }
    if (agreement->min != NULL)
        agreement->min(agreement->context, mask, (size_t)page_count + 1);
    for (uint32_t pages = page_count; pages > 0; pages--) {
        if (mask[pages] > 0)
            return pages;
    }
    return 0;
}
