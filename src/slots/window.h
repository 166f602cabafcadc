/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* window.h -- the inside of a window pool: window.c says what holds. */
#ifndef KVI_SLOTS_WINDOW_H
#define KVI_SLOTS_WINDOW_H

#include "slots/pool.h"

#include "base/assert.h"
#include "base/fmt.h"

#define KVI_NO_PAGE UINT32_MAX
#define KVI_FRESH 0x80000000u

struct kvg_window {
    const struct kvg_alloc *alloc;
    enum kvg_window_kind kind;
    bool exact;
    uint32_t ring_rows;
    uint32_t ring_slots;
    struct kvg_slots *full;
    struct kvg_slots *swa; /* NULL for a ring, as are the next two. */
    uint32_t *to_window;   /* A window page for each FULL page, or KVI_NO_PAGE. */
    uint32_t *to_full;
    uint64_t mapped_count;
};

static inline kvg_err kvi_window_refuse_mapping(struct kvg_window *window, kvg_err err)
{
    return kvi_slots_refuse(window->full, KVI_REFUSED_MAPPING, err);
}

static inline kvg_err kvi_window_refuse_ring(struct kvg_error *error)
{
    return kvi_fail(
        error, KVG_ESTATE, "window.kind", "a request ring has no window pool");
}

static inline void kvi_window_link(
    struct kvg_window *window, uint64_t full_page, uint64_t swa_page, uint32_t mark)
{
    KVI_ASSERT(window->to_window[full_page] == KVI_NO_PAGE);
    KVI_ASSERT(window->to_full[swa_page] == KVI_NO_PAGE);
    window->to_window[full_page] = (uint32_t)swa_page | mark;
    window->to_full[swa_page] = (uint32_t)full_page;
    window->mapped_count++;
}

/* Ends a pair and returns its window page. */
static inline uint64_t kvi_window_unlink(struct kvg_window *window, uint64_t full_page)
{
    uint64_t swa_page = window->to_window[full_page] & ~KVI_FRESH;

    KVI_ASSERT(window->to_window[full_page] != KVI_NO_PAGE);
    window->to_window[full_page] = KVI_NO_PAGE;
    window->to_full[swa_page] = KVI_NO_PAGE;
    window->mapped_count--;
    return swa_page;
}

#endif
