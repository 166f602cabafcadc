/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* pages.c -- spans of slots as runs of whole pages (pages.h).
 *
 * A span is cut at page boundaries into at most three parts, here with pages of 8
 * slots:
 *
 *     span       [  5 ........................................ 37 )
 *     pages   0 ..... 7 | 8 .................... 31 | 32 ..... 39
 *                [ 5 8 )  [ 8                   32 )  [ 32  37 )
 *                 piece    run of 3 whole pages        piece
 *
 * Pieces wait in `open`, joined with their neighbours, until their page is whole; a
 * page that is not whole when the spans end was not named whole, and the walk fails.
 *
 * Invariant of `open`: two pieces of one page neither overlap nor touch, and none is
 * a whole page.
 */
#include "slots/pages.h"

#include "base/assert.h"
#include "base/fmt.h"

kvg_err kvi_fail_slot(struct kvg_error *error, kvg_err code, const char *field,
    uint64_t slot, const char *sentence)
{
    char message[160];
    struct kvi_text text;

    kvi_text_init(&text, message, sizeof(message));
    kvi_text_str(&text, "slot ");
    kvi_text_u64(&text, slot);
    kvi_text_str(&text, " ");
    kvi_text_str(&text, sentence);
    return kvi_fail(error, code, field, message);
}

kvg_err kvi_span_check(const struct kvi_geometry *geometry, const struct kvg_span *span,
    struct kvg_error *error)
{
    uint64_t slots = geometry->page_count * geometry->page_slots;
    uint64_t last = geometry->first_slot + slots - 1;

    if (span->buffer != KVG_BUFFER_POOL)
        return kvi_fail_range(
            error, "span.buffer", span->buffer, KVG_BUFFER_POOL, KVG_BUFFER_POOL);
    if (span->offset < geometry->first_slot || span->offset > last)
        return kvi_fail_range(
            error, "span.offset", span->offset, geometry->first_slot, last);
    if (span->length == 0 || span->length > last - span->offset + 1)
        return kvi_fail_range(
            error, "span.length", span->length, 1, last - span->offset + 1);
    return KVG_OK;
}

void kvi_cursor_init(struct kvi_cursor *cursor, const struct kvi_geometry *geometry,
    const struct kvg_span *spans, size_t span_count)
{
    cursor->geometry = geometry;
    cursor->spans = spans;
    cursor->span_count = span_count;
    cursor->span_next = 0;
    cursor->refusal = KVI_REFUSED_NOT;
    cursor->pending_count = 0;
    cursor->open_count = 0;
}

static kvg_err refuse(struct kvi_cursor *cursor, enum kvi_refusal refusal, kvg_err err)
{
    cursor->refusal = refusal;
    return err;
}

/* Adds a piece of a page.  *whole says whether the page is complete now; then it has
 * left `open`. */
static kvg_err add_fragment(struct kvi_cursor *cursor, struct kvi_fragment piece,
    bool *whole, struct kvg_error *error)
{
    unsigned i = 0;

    *whole = false;
    while (i < cursor->open_count) {
        struct kvi_fragment *other = &cursor->open[i];

        if (other->page != piece.page || other->from > piece.to ||
            other->to < piece.from) {
            i++;
            continue;
        }
        if (other->from < piece.to && piece.from < other->to) {
            uint32_t twice = other->from > piece.from ? other->from : piece.from;

            return refuse(cursor, KVI_REFUSED_DOUBLE,
                kvi_fail_slot(error, KVG_ESTATE, "span.offset",
                    kvi_slot_of(cursor->geometry, piece.page) + twice, "is named twice"));
        }
        piece.from = other->from < piece.from ? other->from : piece.from;
        piece.to = other->to > piece.to ? other->to : piece.to;
        *other = cursor->open[--cursor->open_count];
    }
    if (piece.from == 0 && piece.to == cursor->geometry->page_slots) {
        *whole = true;
        return KVG_OK;
    }
    if (cursor->open_count == KVG_FRAGMENTS_MAX) {
        kvi_fail_range(error, "span.fragments", KVG_FRAGMENTS_MAX + UINT64_C(1), 0,
            KVG_FRAGMENTS_MAX);
        if (error != NULL)
            error->code = KVG_ELIMIT;
        return refuse(cursor, KVI_REFUSED_MISALIGNED, KVG_ELIMIT);
    }
    cursor->open[cursor->open_count++] = piece;
    return KVG_OK;
}

static void push(struct kvi_cursor *cursor, uint64_t first, uint64_t count)
{
    KVI_ASSERT(cursor->pending_count < 3);
    cursor->pending[cursor->pending_count++] = (struct kvi_run){first, count};
}

/* Cuts one span; its runs go to `pending`, so that they are yielded in order. */
static kvg_err cut(
    struct kvi_cursor *cursor, const struct kvg_span *span, struct kvg_error *error)
{
    const struct kvi_geometry *geometry = cursor->geometry;
    uint32_t page_slots = geometry->page_slots;
    uint64_t at = span->offset - geometry->first_slot;
    uint64_t end = at + span->length;
    uint64_t first = at / page_slots;
    uint64_t last = end / page_slots; /* The page of the trailing piece. */
    uint32_t head = (uint32_t)(at % page_slots);
    uint32_t tail = (uint32_t)(end % page_slots);
    bool head_whole = false;
    bool tail_whole = false;
    kvg_err err = KVG_OK;

    if (head != 0 && first == last) /* All in one page; then tail > head. */
        err = add_fragment(
            cursor, (struct kvi_fragment){first, head, tail}, &head_whole, error);
    else if (head != 0)
        err = add_fragment(
            cursor, (struct kvi_fragment){first, head, page_slots}, &head_whole, error);
    if (err == KVG_OK && tail != 0 && !(head != 0 && first == last))
        err = add_fragment(
            cursor, (struct kvi_fragment){last, 0, tail}, &tail_whole, error);
    if (err != KVG_OK)
        return err;
    if (tail_whole)
        push(cursor, last, 1);
    if (first + (head != 0) < last)
        push(cursor, first + (head != 0), last - first - (head != 0));
    if (head_whole)
        push(cursor, first, 1);
    return KVG_OK;
}

kvg_err kvi_cursor_next(
    struct kvi_cursor *cursor, struct kvi_run *out, struct kvg_error *error)
{
    *out = (struct kvi_run){0, 0};
    while (cursor->pending_count == 0 && cursor->span_next < cursor->span_count) {
        const struct kvg_span *span = &cursor->spans[cursor->span_next++];
        kvg_err err = kvi_span_check(cursor->geometry, span, error);

        if (err != KVG_OK)
            return refuse(cursor, KVI_REFUSED_FOREIGN, err);
        err = cut(cursor, span, error);
        if (err != KVG_OK)
            return err;
    }
    if (cursor->pending_count > 0) {
        *out = cursor->pending[--cursor->pending_count];
    } else if (cursor->open_count > 0) {
        const struct kvi_fragment *piece = &cursor->open[0];
        uint64_t slot = kvi_slot_of(cursor->geometry, piece->page);

        return refuse(cursor, KVI_REFUSED_MISALIGNED,
            kvi_fail_slot(error, KVG_EINVAL, "span.page", slot + piece->from,
                "is not named together with all of its page"));
    }
    return KVG_OK;
}

bool kvi_spans_append(struct kvg_spans *spans, size_t floor, uint32_t page_slots,
    uint64_t offset, uint64_t length)
{
    uint32_t length_max;

    if (length == 0)
        return true;
    if (spans->count > floor) {
        struct kvg_span *last = &spans->items[spans->count - 1];

        if (last->buffer == KVG_BUFFER_POOL && last->offset + last->length == offset &&
            length <= UINT32_MAX - last->length) {
            last->length += (uint32_t)length;
            return true;
        }
    }
    length_max = UINT32_MAX - UINT32_MAX % page_slots;
    if ((length - 1) / length_max >= spans->max - spans->count)
        return false;
    while (length > 0) {
        uint32_t part = length < length_max ? (uint32_t)length : length_max;

        spans->items[spans->count++] =
            (struct kvg_span){.offset = offset, .length = part};
        offset += part;
        length -= part;
    }
    return true;
}

bool kvg_spans_append(struct kvg_spans *spans, uint64_t offset, uint64_t length)
{
    return kvi_spans_append(spans, 0, 1, offset, length);
}

uint64_t kvg_spans_slots(const struct kvg_span *spans, size_t span_count)
{
    uint64_t slots = 0;
    size_t i;

    for (i = 0; i < span_count; i++)
        slots += spans[i].length;
    return slots;
}
