/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* audit.c -- the proof that every slot is counted once (slots.h).
 *
 * Everybody who owns slots says so; a bit a page remembers who has spoken.  In the
 * end each page is free or claimed, and no page was both or claimed twice, so the
 * sums of the claims and the free pages make the capacity by construction, not by
 * arithmetic alone.
 */
#include "slots/pool.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/fmt.h"

struct kvg_audit {
    const struct kvg_alloc *alloc;
    const struct kvg_slots *slots;
    uint64_t *claimed; /* A bit a page. */
    uint64_t word_count;
    uint64_t claimed_pages[KVG_CLAIM_COUNT];
};

void kvg_audit_free(struct kvg_audit *audit)
{
    if (audit == NULL)
        return;
    kvi_release_array(audit->alloc, audit->claimed, audit->word_count, sizeof(uint64_t));
    KVI_FREE(audit->alloc, audit);
}

kvg_err kvg_audit_new(const struct kvg_alloc *alloc, const struct kvg_slots *slots,
    struct kvg_audit **out, struct kvg_error *error)
{
    struct kvg_audit *audit = KVI_NEW(alloc, struct kvg_audit);

    *out = NULL;
    if (audit == NULL)
        return kvi_fail(error, KVG_ENOMEM, "audit", "out of memory");
    audit->alloc = alloc;
    audit->slots = slots;
    audit->word_count = kvi_words_for(slots->geometry.page_count);
    audit->claimed = kvi_alloc_array(alloc, audit->word_count, sizeof(uint64_t));
    if (audit->claimed == NULL) {
        kvg_audit_free(audit);
        return kvi_fail(error, KVG_ENOMEM, "audit", "out of memory");
    }
    *out = audit;
    return KVG_OK;
}

void kvg_audit_begin(struct kvg_audit *audit)
{
    memset(audit->claimed, 0, audit->word_count * sizeof(uint64_t));
    memset(audit->claimed_pages, 0, sizeof(audit->claimed_pages));
}

/* Takes back the first `page_count` pages of a claim that failed. */
static void undo_claim(struct kvg_audit *audit, const struct kvg_span *spans,
    size_t span_count, uint64_t page_count)
{
    struct kvi_cursor cursor;

    kvi_cursor_init(&cursor, &audit->slots->geometry, spans, span_count);
    while (page_count > 0) {
        struct kvi_run run;
        kvg_err err = kvi_cursor_next(&cursor, &run, NULL);
        uint64_t i;

        KVI_ASSERT(err == KVG_OK && run.count > 0);
        for (i = 0; i < run.count && page_count > 0; i++, page_count--) {
            uint64_t page = run.first + i;

            audit->claimed[page / KVI_WORD_BITS] &=
                ~(UINT64_C(1) << (page % KVI_WORD_BITS));
        }
    }
}

static kvg_err claim_page(struct kvg_audit *audit, uint64_t page, struct kvg_error *error)
{
    uint64_t slot = kvi_slot_of(&audit->slots->geometry, page);

    if (kvi_bit(audit->slots->map.free, page))
        return kvi_fail_slot(
            error, KVG_EMISMATCH, "claim.free", slot, "is claimed, but free");
    if (kvi_bit(audit->claimed, page))
        return kvi_fail_slot(error, KVG_EEXIST, "claim.twice", slot, "is claimed twice");
    audit->claimed[page / KVI_WORD_BITS] |= UINT64_C(1) << (page % KVI_WORD_BITS);
    return KVG_OK;
}

kvg_err kvg_audit_claim(struct kvg_audit *audit, enum kvg_claim claim,
    const struct kvg_span *spans, size_t span_count, struct kvg_error *error)
{
    struct kvi_cursor cursor;
    uint64_t pages = 0;
    kvg_err err = KVG_OK;

    if ((unsigned)claim >= KVG_CLAIM_COUNT)
        return kvi_fail_range(error, "claim", claim, 0, KVG_CLAIM_COUNT - 1);
    kvi_cursor_init(&cursor, &audit->slots->geometry, spans, span_count);
    while (err == KVG_OK) {
        struct kvi_run run;
        uint64_t i;

        err = kvi_cursor_next(&cursor, &run, error);
        if (err == KVG_OK && run.count == 0)
            break;
        for (i = 0; i < run.count && err == KVG_OK; i++) {
            err = claim_page(audit, run.first + i, error);
            pages += err == KVG_OK;
        }
    }
    if (err != KVG_OK) {
        undo_claim(audit, spans, span_count, pages);
        return err;
    }
    audit->claimed_pages[claim] += pages;
    return KVG_OK;
}

kvg_err kvg_audit_finish(
    struct kvg_audit *audit, struct kvg_audit_totals *out, struct kvg_error *error)
{
    const struct kvi_geometry *geometry = &audit->slots->geometry;
    uint64_t w;
    int i;

    *out = (struct kvg_audit_totals){0};
    for (w = 0; w < audit->word_count; w++) {
        uint64_t left = geometry->page_count - w * KVI_WORD_BITS;
        uint64_t mask = left >= KVI_WORD_BITS ? UINT64_MAX : (UINT64_C(1) << left) - 1;
        uint64_t lost = ~(audit->claimed[w] | audit->slots->map.free[w]) & mask;

        if (lost != 0)
            return kvi_fail_slot(error, KVG_EMISMATCH, "claim.leaked",
                kvi_slot_of(geometry, w * KVI_WORD_BITS + kvi_low_zeros(lost)),
                "is neither free nor claimed by anybody");
        if ((audit->claimed[w] & audit->slots->map.free[w]) != 0)
            return kvi_fail(
                error, KVG_EMISMATCH, "claim.free", "the pool changed during the audit");
    }
    out->capacity_slots = geometry->page_count * geometry->page_slots;
    out->free_slots = kvg_slots_available(audit->slots);
    for (i = 0; i < KVG_CLAIM_COUNT; i++)
        out->claimed_slots[i] = audit->claimed_pages[i] * geometry->page_slots;
    return KVG_OK;
}
