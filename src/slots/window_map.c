/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* window_map.c -- mapping FULL pages to window pages by hand (slots.h, window.c).
 *
 * Both calls look at all pages first.  What they cannot see then is a page named
 * twice in one call: it shows when the second pair is made, and the pairs made
 * before are undone.  _map tells them from pairs that were there before by the mark
 * KVI_FRESH; _move needs no mark, for it only ever changes pages that its first look
 * has proved different.
 */
#include "slots/window.h"

/* ---- Mapping by hand ---------------------------------------------------------- */

/* Walks page by page over spans of whole pages. */
struct page_walk {
    const struct kvi_geometry *geometry;
    const struct kvg_span *spans;
    size_t span_count;
    uint64_t offset; /* Within the first of them. */
};

static struct page_walk walk_of(
    const struct kvg_slots *slots, const struct kvg_span *spans, size_t span_count)
{
    return (struct page_walk){&slots->geometry, spans, span_count, 0};
}

static uint64_t next_page(struct page_walk *walk)
{
    uint64_t page;

    if (walk->span_count > 0 && walk->offset == walk->spans->length) {
        walk->spans++;
        walk->span_count--;
        walk->offset = 0;
    }
    if (walk->span_count == 0)
        return KVI_NONE;
    page = kvi_page_of(walk->geometry, walk->spans->offset + walk->offset);
    walk->offset += walk->geometry->page_slots;
    return page;
}

/* Whether the spans are whole pages of the pool, all in use. */
static kvg_err check_whole(struct kvg_slots *slots, const struct kvg_span *spans,
    size_t span_count, struct kvg_error *error)
{
    const struct kvi_geometry *geometry = &slots->geometry;
    size_t i;

    for (i = 0; i < span_count; i++) {
        kvg_err err = kvi_span_check(geometry, &spans[i], error);
        uint64_t found;

        if (err != KVG_OK)
            return kvi_slots_refuse(slots, KVI_REFUSED_FOREIGN, err);
        if (spans[i].offset % geometry->page_slots != 0 ||
            spans[i].length % geometry->page_slots != 0)
            return kvi_slots_refuse(slots, KVI_REFUSED_MISALIGNED,
                kvi_fail_slot(error, KVG_EINVAL, "span.page", spans[i].offset,
                    "begins a run that is not of whole pages"));
        found = kvi_freemap_first_free(
            &slots->map, (struct kvi_run){kvi_page_of(geometry, spans[i].offset),
                             spans[i].length / geometry->page_slots});
        if (found != KVI_NONE)
            return kvi_slots_refuse_free(slots, found, error);
    }
    return KVG_OK;
}

static kvg_err refuse_pair(
    struct kvg_window *window, uint64_t full_page, struct kvg_error *error)
{
    return kvi_window_refuse_mapping(
        window, kvi_fail_slot(error, KVG_EEXIST, "span.mapped",
                    kvi_slot_of(&window->full->geometry, full_page),
                    "or the window slot meant for it is mapped to another"));
}

static kvg_err refuse_lengths(struct kvg_window *window, struct kvg_error *error)
{
    return kvi_window_refuse_mapping(
        window, kvi_fail(error, KVG_EMISMATCH, "swa.length",
                    "the two lists do not hold the same number of slots"));
}

/* Makes the pairs with KVI_FRESH set, and counts them.  False at a page that is
 * mapped to another; its FULL page is *page_out. */
static bool link_fresh(struct kvg_window *window, struct page_walk full,
    struct page_walk swa, uint64_t *page_out)
{
    uint64_t page;

    while ((page = next_page(&full)) != KVI_NONE) {
        uint64_t swa_page = next_page(&swa);
        uint32_t old = window->to_window[page];

        *page_out = page;
        if (old != KVI_NO_PAGE && (old & ~KVI_FRESH) == swa_page)
            continue;
        if (old != KVI_NO_PAGE || window->to_full[swa_page] != KVI_NO_PAGE)
            return false;
        kvi_window_link(window, page, swa_page, KVI_FRESH);
    }
    return true;
}

kvg_err kvg_window_map(struct kvg_window *window, const struct kvg_span *full,
    size_t full_count, const struct kvg_span *swa, size_t swa_count,
    struct kvg_error *error)
{
    struct page_walk walk;
    uint64_t page;
    uint64_t bad = 0;
    bool ok;
    kvg_err err;

    if (window->swa == NULL)
        return kvi_window_refuse_ring(error);
    if (kvg_spans_slots(full, full_count) != kvg_spans_slots(swa, swa_count))
        return refuse_lengths(window, error);
    err = check_whole(window->full, full, full_count, error);
    if (err == KVG_OK)
        err = check_whole(window->swa, swa, swa_count, error);
    if (err != KVG_OK)
        return err;
    walk = walk_of(window->full, full, full_count);
    ok = link_fresh(window, walk, walk_of(window->swa, swa, swa_count), &bad);
    while ((page = next_page(&walk)) != KVI_NONE) {
        uint32_t pair = window->to_window[page];

        if (pair == KVI_NO_PAGE || (pair & KVI_FRESH) == 0)
            continue;
        if (ok)
            window->to_window[page] = pair & ~KVI_FRESH;
        else
            kvi_window_unlink(window, page);
    }
    return ok ? KVG_OK : refuse_pair(window, bad, error);
}

/* Whether each page of the walk is mapped, or not, as the call needs. */
static kvg_err check_mapped(struct kvg_window *window, struct page_walk walk, bool mapped,
    struct kvg_error *error)
{
    uint64_t page;

    while ((page = next_page(&walk)) != KVI_NONE) {
        if ((window->to_window[page] != KVI_NO_PAGE) == mapped)
            continue;
        if (!mapped)
            return refuse_pair(window, page, error);
        return kvi_window_refuse_mapping(window,
            kvi_fail_slot(error, KVG_ENOENT, "span.mapped",
                kvi_slot_of(&window->full->geometry, page), "has no window slot"));
    }
    return KVG_OK;
}

kvg_err kvg_window_move(struct kvg_window *window, const struct kvg_span *from,
    size_t from_count, const struct kvg_span *to, size_t to_count,
    struct kvg_error *error)
{
    struct page_walk source;
    struct page_walk target;
    uint64_t moved = 0;
    uint64_t page;
    uint64_t at = KVI_NONE;
    kvg_err err;

    if (window->swa == NULL)
        return kvi_window_refuse_ring(error);
    if (kvg_spans_slots(from, from_count) != kvg_spans_slots(to, to_count))
        return refuse_lengths(window, error);
    source = walk_of(window->full, from, from_count);
    target = walk_of(window->full, to, to_count);
    err = check_whole(window->full, from, from_count, error);
    if (err == KVG_OK)
        err = check_whole(window->full, to, to_count, error);
    if (err == KVG_OK)
        err = check_mapped(window, source, true, error);
    if (err == KVG_OK)
        err = check_mapped(window, target, false, error);
    if (err != KVG_OK)
        return err;
    while ((page = next_page(&source)) != KVI_NONE) {
        at = next_page(&target);
        if (window->to_window[page] == KVI_NO_PAGE ||
            window->to_window[at] != KVI_NO_PAGE)
            break; /* Named twice. */
        kvi_window_link(window, at, kvi_window_unlink(window, page), 0);
        moved++;
    }
    if (page == KVI_NONE)
        return KVG_OK;
    source = walk_of(window->full, from, from_count);
    target = walk_of(window->full, to, to_count);
    while (moved-- > 0) {
        page = next_page(&source);
        kvi_window_link(window, page, kvi_window_unlink(window, next_page(&target)), 0);
    }
    return refuse_pair(window, at, error);
}
