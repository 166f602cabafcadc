/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* slots_machine.c -- bytes become operations on slots (slots_machine.h).
 *
 * The model is written from slots.h, not from the code: an array says who owns each page
 * of FULL slots (nobody, a request, a load), an array who owns each window page, an array
 * which window page a FULL page has, and each request lists its slots by position.  What
 * a call should do is decided from these by looking at every page; then the call is made,
 * and afterwards every page of the objects is compared with every entry of the arrays
 * (slots_model.c).
 */
#include "slots_model.h"

/* ---- Operations ----------------------------------------------------------------- */

/* Adopts one slot that an extend gave to a request; `fresh` says that it begins a page. */
static const char *adopt_slot(int who, uint64_t slot)
{
    struct request *request = &M.requests[who];
    uint64_t page = model_full_page(slot);

    if (slot < M.full_first || page >= M.full_pages)
        FAIL("slot %" PRIu64 " is not the pool's", slot);
    if (request->length % M.page_slots != 0) {
        if (slot != request->slots[request->length - 1] + 1)
            FAIL("slot %" PRIu64 " does not continue the last page", slot);
    } else {
        if (M.full_owner[page] != NOBODY || slot != model_full_slot(page))
            FAIL("slot %" PRIu64 " is not the first of a free page", slot);
        M.full_owner[page] = (uint8_t)(who + 1);
        if (!M.ring) {
            uint64_t swa = kvg_window_slot(M.window, slot);
            uint64_t swa_page = (swa - M.swa_first) / M.page_slots;

            if (swa == KVG_SLOT_NONE || swa_page >= M.swa_pages ||
                M.swa_owner[swa_page] != NOBODY)
                FAIL("slot %" PRIu64 " has no window page of its own", slot);
            M.swa_owner[swa_page] = (uint8_t)(who + 1);
            M.map[page] = (uint32_t)swa_page;
        }
    }
    request->slots[request->length++] = slot;
    return NULL;
}

static const char *adopt_extend(int who, const struct kvg_extend *extend)
{
    const struct kvg_span *spans = &M.items[extend->span_first];
    struct kvg_error error;
    size_t k;

    if (kvg_spans_slots(spans, extend->span_count) != extend->wanted_slots)
        FAIL("an extend gave %" PRIu64 " slots",
            kvg_spans_slots(spans, extend->span_count));
    if (kvg_rows_append(M.rows, M.requests[who].row, spans, extend->span_count, &error) !=
        KVG_OK)
        FAIL("the row refuses what the pool gave: %s", error.message);
    for (k = 0; k < extend->span_count; k++) {
        uint32_t i;

        for (i = 0; i < spans[k].length; i++) {
            const char *wrong = adopt_slot(who, spans[k].offset + i);

            if (wrong != NULL)
                return wrong;
        }
    }
    return NULL;
}

/* Some requests grow in one batch, new ones among them. */
static const char *do_extend(const uint8_t *step)
{
    struct kvg_extend batch[REQUESTS];
    int who[REQUESTS];
    uint64_t pages = 0;
    struct kvg_error error;
    size_t count = 0;
    size_t room;
    kvg_err err;
    size_t k;
    int i;

    for (i = 0; i < REQUESTS; i++) {
        struct request *request = &M.requests[i];
        uint32_t wanted = step[2 + i % 4] % (step[6] % 2 == 0 ? 9u : 97u);
        uint32_t have = (request->length + M.page_slots - 1) / M.page_slots;

        if ((step[1] >> i & 1) == 0 || request->length + wanted > CONTEXT)
            continue;
        if (!request->used) {
            if (kvg_rows_acquire(M.rows, 1, &request->row, &error) != KVG_OK)
                FAIL("no row: %s", error.message);
            request->used = true;
        }
        pages += (request->length + wanted + M.page_slots - 1) / M.page_slots - have;
        who[count] = i;
        batch[count++] = (struct kvg_extend){.held_slots = request->length,
            .last_slot = request->length == 0 ? KVG_SLOT_NONE
                                              : request->slots[request->length - 1],
            .wanted_slots = wanted};
    }
    room = step[7] % 8 == 0 ? step[7] / 8 : SPANS_MAX;
    model_start_list(room);
    err = kvg_window_extend(M.window, batch, count, &M.spans, &error);
    if ((err == KVG_ENOSPACE) !=
        (pages > model_count_owned(M.full_owner, M.full_pages, NOBODY) ||
            (!M.ring && pages > model_count_owned(M.swa_owner, M.swa_pages, NOBODY))))
        FAIL("an extend of %" PRIu64 " pages: %s", pages, kvg_err_name(err));
    if (err != KVG_OK && err != KVG_ENOSPACE && (err != KVG_ELIMIT || room == SPANS_MAX))
        FAIL("an extend failed: %s", error.message);
    if (err != KVG_OK) {
        M.refused++;
        return M.spans.count == 0 ? NULL : "a refused extend left spans";
    }
    for (k = 0; k < count; k++) {
        const char *wrong = adopt_extend(who[k], &batch[k]);

        if (wrong != NULL)
            return wrong;
    }
    return NULL;
}

/* Forgets in the model that the FULL pages of spans are owned and mapped. */
static void forget(const struct kvg_span *spans, size_t count, bool full)
{
    size_t k;

    for (k = 0; k < count; k++) {
        uint64_t i;

        for (i = 0; i < spans[k].length; i++) {
            uint64_t page = model_full_page(spans[k].offset + i);

            if (M.map[page] != UNMAPPED)
                M.swa_owner[M.map[page]] = NOBODY;
            M.map[page] = UNMAPPED;
            if (full)
                M.full_owner[page] = NOBODY;
        }
    }
}

static bool all_mapped(const struct kvg_span *spans, size_t count, bool mapped)
{
    size_t k;

    for (k = 0; k < count; k++) {
        uint64_t i;

        for (i = 0; i < spans[k].length; i++)
            if ((M.map[model_full_page(spans[k].offset + i)] != UNMAPPED) != mapped)
                return false;
    }
    return true;
}

/* One of the three releases over the list; the model says whether it must work. */
static const char *release_list(unsigned kind)
{
    struct kvg_error error = {.code = KVG_OK};
    const struct kvg_span *spans = M.items;
    size_t count = M.spans.count;
    bool right = model_release_is_right(
        spans, count, M.full_owner, M.full_pages, M.full_first, true);
    kvg_err err;

    if (kind == 0) {
        if (right && M.exact && !M.ring)
            right = all_mapped(spans, count, true);
        err = kvg_window_release(M.window, spans, count, NULL, &error);
    } else if (kind == 1) {
        if (right && !M.ring)
            right = all_mapped(spans, count, false);
        err = kvg_window_release_full(M.window, spans, count, NULL, &error);
    } else {
        err = kvg_window_release_swa(M.window, spans, count, NULL, &error);
        if (M.ring)
            return err == KVG_OK ? NULL : "a ring refuses what it ignores";
    }
    if (kind == 2 && err == KVG_OK) /* Whole pages may be named twice. */
        right = model_release_is_right(
            spans, count, M.full_owner, M.full_pages, M.full_first, false);
    if ((err == KVG_OK) != right && error.code != KVG_ELIMIT)
        FAIL("release of kind %u: %s (%s)", kind, kvg_err_name(err), error.message);
    if (err == KVG_OK)
        forget(spans, count, kind != 2);
    else
        M.refused++;
    return NULL;
}

/* Ends a request, whole; or cuts its list into pieces and shuffles them first. */
static const char *do_finish(const uint8_t *step)
{
    struct request *request = &M.requests[step[1] % REQUESTS];
    uint64_t held = request->length + M.page_slots - 1;
    struct kvg_error error;
    const char *wrong;

    if (!request->used)
        return NULL;
    held -= held % M.page_slots;
    model_start_list(SPANS_MAX);
    if (step[2] % 2 == 0) {
        if (kvg_rows_spans(M.rows, request->row, 0, held, &M.spans, &error) != KVG_OK)
            FAIL("a row does not tell what it holds: %s", error.message);
    } else {
        uint64_t i;

        for (i = 0; i < held; i++) {
            uint64_t page = i / M.page_slots;
            uint64_t slot = request->slots[page * M.page_slots] + i % M.page_slots;

            M.items[M.spans.count++] = (struct kvg_span){.offset = slot, .length = 1};
        }
        for (i = 1; i < held && held <= 60; i++) {
            uint64_t k = (step[3] + i * step[4]) % (i + 1);
            struct kvg_span moved = M.items[k];

            M.items[k] = M.items[i];
            M.items[i] = moved;
        }
    }
    if (M.exact && !M.ring) { /* Some pages may have left the window. */
        wrong = release_list(2);
        if (wrong == NULL)
            wrong = release_list(1);
    } else {
        wrong = release_list(0);
    }
    if (wrong != NULL)
        return wrong;
    if (held > 0 && M.full_owner[model_full_page(request->slots[0])] != NOBODY)
        FAIL("a request could not release what it holds");
    if (kvg_rows_release(M.rows, request->row, &error) != KVG_OK)
        FAIL("a row is not released: %s", error.message);
    if (kvg_rows_release(M.rows, request->row, &error) != KVG_ESTATE)
        FAIL("a row is released twice");
    request->used = false;
    request->length = 0;
    return NULL;
}

/* Pages [0, n) of a request leave the window. */
static const char *do_slide(const uint8_t *step)
{
    struct request *request = &M.requests[step[1] % REQUESTS];
    uint64_t to = request->length - request->length % M.page_slots;
    struct kvg_error error;

    if (!request->used || to == 0)
        return NULL;
    to = (uint64_t)step[2] * M.page_slots < to ? (uint64_t)step[2] * M.page_slots : to;
    model_start_list(SPANS_MAX);
    if (kvg_rows_spans(M.rows, request->row, 0, to, &M.spans, &error) != KVG_OK)
        FAIL("a row does not tell its window: %s", error.message);
    return release_list(2);
}

/* Anything at all is released: most of it must be refused.  What the model allows is not
 * done to a request's pages, so that its row stays true. */
static const char *do_stray(const uint8_t *step)
{
    uint64_t slots = (uint64_t)M.full_pages * M.page_slots;
    size_t k;

    model_start_list(SPANS_MAX);
    for (k = 0; k < 1u + step[6] % 3; k++) {
        uint64_t offset = (step[1 + k] * UINT64_C(256) + step[2 + k]) % (slots + 8);
        uint32_t length = 1 + step[3 + k] % 20;
        uint64_t i;

        if (step[7] % 4 == 0) { /* Whole pages. */
            offset -= offset % M.page_slots;
            length = (1 + length % 3) * M.page_slots;
        }
        for (i = 0; i < length; i++) {
            uint64_t page = model_full_page(M.full_first + offset + i);

            if (page < M.full_pages && M.full_owner[page] != NOBODY &&
                M.full_owner[page] != LOAD)
                return NULL;
        }
        M.items[M.spans.count++] = (struct kvg_span){.offset = M.full_first + offset,
            .length = length,
            .buffer = step[7] % 16 == 15};
    }
    return release_list(step[5] % 3);
}

/* FULL or window pages for a load. */
static const char *do_load(const uint8_t *step)
{
    uint64_t pages = step[3] % 4 == 0 ? step[1] * UINT64_C(32) + step[2] : step[1] % 40;
    bool swa = step[4] % 2 == 0;
    uint8_t *owners = swa ? M.swa_owner : M.full_owner;
    uint32_t page_count = swa ? M.swa_pages : M.full_pages;
    uint64_t first = swa ? M.swa_first : M.full_first;
    struct kvg_error error;
    kvg_err err;
    size_t k;

    if (swa && M.ring)
        return NULL;
    model_start_list(SPANS_MAX);
    err = swa ? kvg_window_alloc_swa(M.window, pages * M.page_slots, &M.spans, &error)
              : kvg_window_alloc_full(M.window, pages * M.page_slots, &M.spans, &error);
    if ((err == KVG_OK) != (pages <= model_count_owned(owners, page_count, NOBODY)))
        FAIL("a load of %" PRIu64 " pages: %s", pages, kvg_err_name(err));
    if (err == KVG_OK && kvg_spans_slots(M.items, M.spans.count) != pages * M.page_slots)
        FAIL("a load got another number of slots");
    for (k = 0; k < M.spans.count && err == KVG_OK; k++) {
        uint64_t i;

        for (i = 0; i < M.items[k].length; i += M.page_slots) {
            uint64_t page = (M.items[k].offset + i - first) / M.page_slots;

            if (page >= page_count || owners[page] != NOBODY)
                FAIL("page %" PRIu64 " is given out twice", page);
            owners[page] = LOAD;
        }
    }
    return NULL;
}

/* A load's pages are released, or its window pages that are not mapped. */
static const char *do_unload(const uint8_t *step)
{
    struct kvg_error error;
    const char *wrong;
    bool right;
    size_t k;

    model_start_list(SPANS_MAX);
    if (step[4] % 3 != 0 || M.ring) {
        model_list_owned(&M.spans, M.full_owner, M.full_pages, M.full_first, LOAD,
            step[1] * 4u % M.full_pages, 1u + step[2] * (step[3] % 8u));
        wrong = release_list(M.exact && !M.ring ? 2 : 0);
        return wrong == NULL && M.exact && !M.ring ? release_list(1) : wrong;
    }
    model_list_owned(&M.spans, M.swa_owner, M.swa_pages, M.swa_first, LOAD,
        step[1] % M.swa_pages, 1u + step[2] % 5u);
    right = true;
    for (k = 0; k < M.full_pages; k++) {
        uint64_t slot = M.map[k] == UNMAPPED ? 0 : model_swa_slot(M.map[k]);
        size_t i;

        for (i = 0; i < M.spans.count && M.map[k] != UNMAPPED; i++)
            if (slot >= M.items[i].offset && slot < M.items[i].offset + M.items[i].length)
                right = false;
    }
    if ((kvg_window_release_unmapped(M.window, M.items, M.spans.count, &error) ==
            KVG_OK) != right)
        FAIL("release of window slots: %s", error.message);
    M.refused += !right;
    for (k = 0; k < M.spans.count && right; k++)
        memset(&M.swa_owner[(M.items[k].offset - M.swa_first) / M.page_slots], NOBODY,
            M.items[k].length / M.page_slots);
    return NULL;
}

/* The n-th page of a list of whole pages. */
static uint64_t nth_page(
    const struct kvg_span *spans, size_t count, uint64_t n, uint64_t first_slot)
{
    size_t k;

    for (k = 0; k < count; k++) {
        uint64_t pages = spans[k].length / M.page_slots;

        if (n < pages)
            return (spans[k].offset - first_slot) / M.page_slots + n;
        n -= pages;
    }
    return PAGES_MAX;
}

/* A load's FULL pages are mapped to its window pages, if neither is mapped to others. */
static const char *do_map(const uint8_t *step)
{
    static uint32_t map[PAGES_MAX];
    static bool taken[PAGES_MAX];
    struct kvg_span swa_items[64];
    struct kvg_spans swa = {swa_items, 0, 64};
    uint32_t wanted = 1u + step[3] % 12u;
    struct kvg_error error;
    bool right = true;
    uint32_t pages;
    kvg_err err;
    uint32_t i;

    if (M.ring)
        return NULL;
    model_start_list(SPANS_MAX);
    pages = model_list_owned(&M.spans, M.full_owner, M.full_pages, M.full_first, LOAD,
        step[1] * 4u % M.full_pages, wanted);
    right = model_list_owned(&swa, M.swa_owner, M.swa_pages, M.swa_first, LOAD,
                step[2] * 4u % M.swa_pages, wanted) == pages;
    memset(taken, 0, sizeof(taken));
    memcpy(map, M.map, sizeof(map));
    for (i = 0; i < M.full_pages; i++)
        if (map[i] != UNMAPPED)
            taken[map[i]] = true;
    for (i = 0; i < pages && right; i++) {
        uint64_t page = nth_page(M.items, M.spans.count, i, M.full_first);
        uint64_t window = nth_page(swa_items, swa.count, i, M.swa_first);

        if (map[page] == window)
            continue;
        right = map[page] == UNMAPPED && !taken[window];
        map[page] = (uint32_t)window;
        taken[window] = true;
    }
    err = kvg_window_map(M.window, M.items, M.spans.count, swa_items, swa.count, &error);
    if ((err == KVG_OK) != right)
        FAIL("map of %u pages: %s", pages, kvg_err_name(err));
    M.refused += !right;
    if (right)
        memcpy(M.map, map, sizeof(map));
    return NULL;
}

/* The window pages of a load move to other pages of it. */
static const char *do_move(const uint8_t *step)
{
    struct kvg_span to_items[64];
    struct kvg_spans to = {to_items, 0, 64};
    uint32_t wanted = 1u + step[3] % 12u;
    struct kvg_error error;
    bool right;
    uint32_t pages;
    kvg_err err;
    uint32_t i;

    if (M.ring)
        return NULL;
    model_start_list(SPANS_MAX);
    pages = model_list_owned(&M.spans, M.full_owner, M.full_pages, M.full_first, LOAD,
        step[1] * 4u % M.full_pages, wanted);
    right = model_list_owned(&to, M.full_owner, M.full_pages, M.full_first, LOAD,
                step[2] * 4u % M.full_pages, wanted) == pages;
    for (i = 0; i < pages && right; i++)
        right = M.map[nth_page(M.items, M.spans.count, i, M.full_first)] != UNMAPPED &&
                M.map[nth_page(to_items, to.count, i, M.full_first)] == UNMAPPED;
    err = kvg_window_move(M.window, M.items, M.spans.count, to_items, to.count, &error);
    if ((err == KVG_OK) != right)
        FAIL("move of %u pages: %s", pages, kvg_err_name(err));
    M.refused += !right;
    for (i = 0; i < pages && right; i++) {
        uint64_t from = nth_page(M.items, M.spans.count, i, M.full_first);

        M.map[nth_page(to_items, to.count, i, M.full_first)] = M.map[from];
        M.map[from] = UNMAPPED;
    }
    return NULL;
}

/* The window slots of part of a row, if all of it is in the window. */
static const char *do_translate(const uint8_t *step)
{
    struct request *request = &M.requests[step[1] % REQUESTS];
    static struct kvg_span swa_items[CONTEXT];
    struct kvg_spans swa = {swa_items, 0, CONTEXT};
    struct kvg_error error;
    bool right = true;
    uint32_t from;
    uint32_t i;

    if (!request->used || request->length == 0 || M.ring)
        return NULL;
    from = step[2] % request->length;
    model_start_list(SPANS_MAX);
    if (kvg_rows_spans(M.rows, request->row, from, request->length, &M.spans, &error) !=
        KVG_OK)
        FAIL("a row does not tell its slots: %s", error.message);
    for (i = from; i < request->length; i++)
        right = right && M.map[model_full_page(request->slots[i])] != UNMAPPED;
    if ((kvg_window_translate(M.window, M.items, M.spans.count, &swa, &error) ==
            KVG_OK) != right)
        FAIL("translation: %s", error.message);
    if (!right)
        return swa.count == 0 ? NULL : "a refused translation left spans";
    for (i = from; i < request->length; i++) {
        uint64_t slot = request->slots[i];
        uint64_t wanted = model_swa_slot(M.map[model_full_page(slot)]) +
                          (slot - M.full_first) % M.page_slots;
        uint64_t n = i - from;
        size_t k = 0;

        while (k < swa.count && n >= swa_items[k].length)
            n -= swa_items[k++].length;
        if (k == swa.count || swa_items[k].offset + n != wanted)
            FAIL("position %u is translated wrongly", i);
    }
    return NULL;
}

static const char *do_reset(const uint8_t *step)
{
    struct kvg_error error;
    int i;

    if (step[1] % 8 != 0)
        return NULL;
    kvg_window_reset(M.window);
    memset(M.full_owner, NOBODY, sizeof(M.full_owner));
    memset(M.swa_owner, NOBODY, sizeof(M.swa_owner));
    memset(M.map, 0xff, sizeof(M.map));
    for (i = 0; i < REQUESTS; i++)
        if (M.requests[i].used) {
            M.requests[i].used = false;
            M.requests[i].length = 0;
            if (kvg_rows_release(M.rows, M.requests[i].row, &error) != KVG_OK)
                FAIL("a row is not released: %s", error.message);
        }
    return NULL;
}

static const char *(*const OPERATIONS[])(const uint8_t *) = {do_extend, do_extend,
    do_extend, do_finish, do_finish, do_slide, do_stray, do_load, do_load, do_unload,
    do_map, do_move, do_translate, do_reset};
#define OPERATION_COUNT (sizeof(OPERATIONS) / sizeof(OPERATIONS[0]))

/* ---- Running --------------------------------------------------------------------- */

static const char *open_machine(const uint8_t *head)
{
    static const uint32_t PAGE_SLOTS[] = {1, 1, 2, 4, 3, 8};
    static const uint32_t PAGES[] = {7, 40, 64, 130, 300, 1000, 5000, 8900};
    struct kvg_window_options options = {.struct_bytes = sizeof(options)};
    struct kvg_rows_options rows = {
        .struct_bytes = sizeof(rows), .row_count = REQUESTS, .context_slots = CONTEXT};
    struct kvg_error error;

    memset(&M, 0, sizeof(M));
    memset(M.map, 0xff, sizeof(M.map));
    fault_alloc_init(&M.fault);
    M.page_slots = PAGE_SLOTS[head[0] % 6];
    M.full_pages = PAGES[head[1] % 8] + head[2] % 5;
    M.ring = head[3] % 5 == 0;
    M.exact = head[3] % 2 == 0;
    M.swa_pages = M.ring ? 0 : 1 + M.full_pages * (head[4] % 4 + 1) / 4;
    M.full_first = (uint64_t)(head[5] % 3) * M.page_slots;
    M.swa_first = (uint64_t)(head[6] % 3) * M.page_slots;
    options.kind = M.ring ? KVG_WINDOW_RING : KVG_WINDOW_MAPPED;
    options.page_slots = M.page_slots;
    options.full_slots = (uint64_t)M.full_pages * M.page_slots;
    options.full_first = M.full_first;
    options.window_slots = (uint64_t)M.swa_pages * M.page_slots;
    options.window_first = M.swa_first;
    options.ring_rows = REQUESTS;
    options.ring_slots = 16;
    options.exact = M.exact;
    rows.page_slots = M.page_slots;
    if (kvg_window_new(&M.fault.alloc, &options, &M.window, &error) != KVG_OK ||
        kvg_rows_new(&M.fault.alloc, &rows, &M.rows, &error) != KVG_OK ||
        kvg_audit_new(&M.fault.alloc, kvg_window_full(M.window), &M.full_audit, &error) !=
            KVG_OK)
        FAIL("cannot start: %s", error.message);
    if (!M.ring && kvg_audit_new(&M.fault.alloc, kvg_window_swa(M.window), &M.swa_audit,
                       &error) != KVG_OK)
        FAIL("cannot start: %s", error.message);
    return NULL;
}

static void close_machine(void)
{
    kvg_audit_free(M.full_audit);
    kvg_audit_free(M.swa_audit);
    kvg_rows_free(M.rows);
    kvg_window_free(M.window);
}

const char *machine_run(const uint8_t *program, size_t bytes, enum machine_bug bug,
    size_t bug_step, bool *planted)
{
    const char *wrong;
    uint64_t calls;
    size_t steps;
    size_t i;

    *planted = false;
    if (bytes < MACHINE_HEAD_BYTES)
        return NULL;
    wrong = open_machine(program);
    calls = M.fault.calls;
    steps = (bytes - MACHINE_HEAD_BYTES) / MACHINE_STEP_BYTES;
    for (i = 0; i < steps && wrong == NULL; i++) {
        const uint8_t *step = program + MACHINE_HEAD_BYTES + i * MACHINE_STEP_BYTES;

        if (bug != BUG_NONE && i >= bug_step && !*planted)
            *planted = model_plant(bug);
        wrong = *planted ? NULL : OPERATIONS[step[0] % OPERATION_COUNT](step);
        if (wrong == NULL)
            wrong = model_compare_all();
        if (wrong == NULL && M.fault.calls != calls)
            wrong = "a call allocated";
    }
    close_machine();
    if (wrong == NULL && M.fault.live_bytes != 0)
        wrong = "memory is left";
    return wrong;
}
