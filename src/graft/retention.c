/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* retention.c -- which windows a store keeps when it does not keep all.
 *
 * A window is worth storing where a later prompt is likely to go on: at the end of a prompt, and at
 * regular checkpoints.
 *
 *     interval     |             |             |             |
 *     positions    0             I            2I      P      3I
 *     kept                  [wwww)       [wwww)[ww[wwww)
 */
#include <kvgraft/graft.h>

#include "base/fmt.h"

/* Appends a range, joined to the last where they touch. */
static size_t add_range(struct kvg_tree_range *ranges, size_t range_max, size_t count,
    uint64_t start, uint64_t end, struct kvg_tree_range *last)
{
    if (start >= end)
        return count;
    if (count != 0 && start <= last->end) {
        last->end = end > last->end ? end : last->end;
    } else {
        *last = (struct kvg_tree_range){KVG_COMPONENT_SWA, start, end};
        count++;
    }
    if (count <= range_max)
        ranges[count - 1] = *last;
    return count;
}

static kvg_err check(const struct kvg_retention *retention, uint64_t start, uint64_t end,
    struct kvg_error *error)
{
    uint32_t page = retention->page_size;

    if (page == 0 || retention->interval == 0 || retention->window == 0)
        return kvi_fail(error, KVG_EINVAL, "retention",
            "page_size, interval and window must be positive");
    if (start > end || end > retention->prompt_boundary)
        return kvi_fail(error, KVG_EINVAL, "retention",
            "expected 0 <= start <= end <= prompt_boundary");
    if (start % page != 0 || end % page != 0 || retention->prompt_boundary % page != 0 ||
        retention->interval % page != 0)
        return kvi_fail(error, KVG_EINVAL, "retention",
            "positions and interval must be page aligned");
    return KVG_OK;
}

kvg_err kvg_retained_swa_ranges(const struct kvg_retention *retention, uint64_t start,
    uint64_t end, struct kvg_tree_range *ranges, size_t range_max,
    size_t *range_count_out, struct kvg_error *error)
{
    struct kvg_tree_range last = {0};
    uint64_t interval = retention->interval;
    uint64_t boundary;
    uint64_t previous = 0;
    size_t count = 0;

    *range_count_out = 0;
    kvg_err err = check(retention, start, end, error);
    if (err != KVG_OK || start == end)
        return err;
    uint64_t page = retention->page_size;
    uint64_t window = (retention->window + page - 1) / page * page;
    uint64_t limit = end + window - page;
    if (limit > retention->prompt_boundary)
        limit = retention->prompt_boundary;
    for (boundary = (start / interval + 1) * interval; boundary <= limit;
         boundary += interval) {
        uint64_t low = boundary > window ? boundary - window : 0;
        count = add_range(ranges, range_max, count, low > start ? low : start,
            boundary < end ? boundary : end, &last);
        previous = boundary;
    }
    boundary = retention->prompt_boundary;
    if (retention->include_prompt_boundary && previous != boundary) {
        uint64_t low = boundary > window ? boundary - window : 0;
        count = add_range(ranges, range_max, count, low > start ? low : start,
            boundary < end ? boundary : end, &last);
    }
    *range_count_out = count;
    return KVG_OK;
}
