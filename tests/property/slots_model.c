/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* slots_model.c -- comparing the objects with the arrays (slots_model.h). */
#include "slots_model.h"

struct machine M;
char machine_failure[300];

/* ---- Small words ---------------------------------------------------------------- */

uint64_t model_full_slot(uint64_t page)
{
    return M.full_first + page * M.page_slots;
}

uint64_t model_swa_slot(uint64_t page)
{
    return M.swa_first + page * M.page_slots;
}

uint64_t model_full_page(uint64_t slot)
{
    return (slot - M.full_first) / M.page_slots;
}

uint32_t model_count_owned(const uint8_t *owners, uint32_t pages, uint8_t owner)
{
    uint32_t count = 0;
    uint32_t i;

    for (i = 0; i < pages; i++)
        count += owners[i] == owner;
    return count;
}

void model_start_list(size_t max)
{
    M.spans = (struct kvg_spans){M.items, 0, max < SPANS_MAX ? max : SPANS_MAX};
}

uint32_t model_list_owned(struct kvg_spans *list, const uint8_t *owners, uint32_t pages,
    uint64_t first_slot, uint8_t owner, uint32_t from, uint32_t max)
{
    uint32_t listed = 0;
    uint32_t i;

    for (i = from; i < pages && listed < max; i++) {
        if (owners[i] != owner)
            continue;
        if (!kvg_spans_append(
                list, first_slot + (uint64_t)i * M.page_slots, M.page_slots))
            break;
        listed++;
    }
    return listed;
}

bool model_release_is_right(const struct kvg_span *spans, size_t count,
    const uint8_t *owners, uint32_t pages, uint64_t first_slot, bool once)
{
    static uint8_t seen[PAGES_MAX * 8];
    uint64_t slots = (uint64_t)pages * M.page_slots;
    uint64_t i;
    size_t k;

    memset(seen, 0, slots);
    for (k = 0; k < count; k++) {
        if (spans[k].buffer != KVG_BUFFER_POOL || spans[k].length == 0 ||
            spans[k].offset < first_slot || spans[k].offset - first_slot >= slots ||
            spans[k].length > slots - (spans[k].offset - first_slot))
            return false;
        for (i = 0; i < spans[k].length; i++)
            if (seen[spans[k].offset - first_slot + i]++ != 0 && once)
                return false;
    }
    for (i = 0; i < slots; i++)
        if ((seen[i] != 0) != (seen[i - i % M.page_slots] != 0) ||
            (seen[i] != 0 && owners[i / M.page_slots] == NOBODY))
            return false;
    return true;
}

/* ---- Comparing ------------------------------------------------------------------ */

static const char *compare_pages(void)
{
    const struct kvg_slots *full = kvg_window_full(M.window);
    const struct kvg_slots *swa = kvg_window_swa(M.window);
    uint32_t i;

    for (i = 0; i < M.full_pages; i++) {
        uint64_t found = kvg_window_slot(M.window, model_full_slot(i));
        uint64_t wanted = M.map[i] == UNMAPPED ? KVG_SLOT_NONE : model_swa_slot(M.map[i]);

        if (kvg_slots_is_free(full, model_full_slot(i)) != (M.full_owner[i] == NOBODY))
            FAIL("FULL page %u: owner %u, free %d", i, M.full_owner[i],
                kvg_slots_is_free(full, model_full_slot(i)));
        if (found != wanted)
            FAIL("FULL page %u: mapped to %" PRIu64 ", not %" PRIu64, i, found, wanted);
    }
    for (i = 0; i < M.swa_pages; i++)
        if (kvg_slots_is_free(swa, model_swa_slot(i)) != (M.swa_owner[i] == NOBODY))
            FAIL("window page %u: owner %u", i, M.swa_owner[i]);
    return NULL;
}

static const char *compare_row(const struct request *request)
{
    struct kvg_error error;
    uint32_t position = 0;
    size_t k;

    model_start_list(SPANS_MAX);
    if (kvg_rows_length(M.rows, request->row) != request->length)
        FAIL("a row has length %" PRIu64 ", not %u",
            kvg_rows_length(M.rows, request->row), request->length);
    if (kvg_rows_spans(M.rows, request->row, 0, request->length, &M.spans, &error) !=
        KVG_OK)
        FAIL("a row does not tell its slots: %s", error.message);
    for (k = 0; k < M.spans.count; k++) {
        uint32_t i;

        for (i = 0; i < M.items[k].length; i++, position++)
            if (position >= request->length ||
                M.items[k].offset + i != request->slots[position])
                FAIL("a row has slot %" PRIu64 " at position %u", M.items[k].offset + i,
                    position);
    }
    if (position != request->length)
        FAIL("a row tells %u slots of %u", position, request->length);
    return NULL;
}

static const char *claim_owner(struct kvg_audit *audit, const uint8_t *owners,
    uint32_t pages, uint64_t first_slot, uint8_t owner, enum kvg_claim claim)
{
    struct kvg_error error;

    model_start_list(SPANS_MAX);
    model_list_owned(&M.spans, owners, pages, first_slot, owner, 0, pages);
    if (kvg_audit_claim(audit, claim, M.items, M.spans.count, &error) != KVG_OK)
        FAIL("claim of owner %u: %s", owner, error.message);
    return NULL;
}

/* free + evictable + protected + held is the capacity, and each slot is in one of them. */
static const char *audit_pool(
    struct kvg_audit *audit, const uint8_t *owners, uint32_t pages, uint64_t first_slot)
{
    struct kvg_audit_totals totals;
    struct kvg_error error;
    const char *wrong = NULL;
    uint8_t owner;

    kvg_audit_begin(audit);
    for (owner = 1; owner <= REQUESTS && wrong == NULL; owner++)
        wrong = claim_owner(audit, owners, pages, first_slot, owner,
            owner % 2 == 0 ? KVG_CLAIM_EVICTABLE : KVG_CLAIM_HELD);
    if (wrong == NULL)
        wrong = claim_owner(audit, owners, pages, first_slot, LOAD, KVG_CLAIM_PROTECTED);
    if (wrong != NULL)
        return wrong;
    if (kvg_audit_finish(audit, &totals, &error) != KVG_OK)
        FAIL("audit: %s", error.message);
    if (totals.free_slots + totals.claimed_slots[KVG_CLAIM_EVICTABLE] +
            totals.claimed_slots[KVG_CLAIM_PROTECTED] +
            totals.claimed_slots[KVG_CLAIM_HELD] !=
        totals.capacity_slots)
        FAIL("audit: the totals do not make the capacity");
    if (totals.free_slots !=
        (uint64_t)model_count_owned(owners, pages, NOBODY) * M.page_slots)
        FAIL("audit: %" PRIu64 " slots are free", totals.free_slots);
    return NULL;
}

const char *model_compare_all(void)
{
    struct kvg_error error;
    const char *wrong;
    int i;

    if (kvg_window_check(M.window, &error) != KVG_OK)
        FAIL("%s: %s", error.field, error.message);
    if (kvg_rows_check(M.rows, &error) != KVG_OK)
        FAIL("%s: %s", error.field, error.message);
    wrong = compare_pages();
    for (i = 0; i < REQUESTS && wrong == NULL; i++)
        if (M.requests[i].used)
            wrong = compare_row(&M.requests[i]);
    if (wrong == NULL)
        wrong = audit_pool(M.full_audit, M.full_owner, M.full_pages, M.full_first);
    if (wrong == NULL && !M.ring)
        wrong = audit_pool(M.swa_audit, M.swa_owner, M.swa_pages, M.swa_first);
    return wrong;
}
