/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* value.c -- the slots of a component of a node, as runs.
 *
 * A value that is one run stands in the node.  One of several runs is a view into a counted
 * block, so that a split makes two views and copies nothing:
 *
 *     block   | 100..103 | 200..207 | 300..301 |     start 0, 4, 12    length 14
 *     prefix  position 0, length 6                   suffix  position 6, length 8
 *
 * A view that falls into one run becomes such a value again.  A block that is mostly dead is cut
 * when its values are next read (kvi_value_trim), so that a long-lived prefix does not keep the
 * runs of a long-dead tail.
 *
 * Every value counts in the buffers it refers to: one in place once, a block once a run.
 */
#include "tree/tree.h"

static void buffer_hold(struct kvg_tree *tree, uint32_t buffer)
{
    if (buffer != KVG_BUFFER_POOL && buffer < tree->buffer_count)
        tree->buffers[buffer].refs++;
}

static void buffer_drop(struct kvg_tree *tree, uint32_t buffer)
{
    if (buffer == KVG_BUFFER_POOL || buffer >= tree->buffer_count)
        return;
    struct kvi_buffer *entry = &tree->buffers[buffer];
    if (--entry->refs == 0 && !entry->held)
        tree->buffer_unused++;
}

/* ---- Lists of spans ------------------------------------------------------------------------ */

/* One piece of a cut, joined to the one before where they touch.  Returns the pieces so far. */
static uint32_t emit(struct kvg_span *out, uint32_t count, uint32_t buffer,
    uint64_t offset, uint32_t length)
{
    if (count != 0) {
        struct kvg_span *last = &out[count - 1];
        if (last->buffer == buffer && last->offset + last->length == offset &&
            last->length + (uint64_t)length <= UINT32_MAX) {
            last->length += length;
            return count;
        }
    }
    out[count] = (struct kvg_span){offset, buffer, length};
    return count + 1;
}

uint32_t kvi_spans_cut_count(
    const struct kvg_span *spans, size_t count, uint64_t from, uint64_t length)
{
    uint64_t position = 0;
    uint32_t pieces = 0;

    for (size_t i = 0; i < count && length != 0; i++) {
        uint64_t end = position + spans[i].length;
        if (end > from) {
            uint64_t part = end - from < length ? end - from : length;
            pieces++;
            from += part;
            length -= part;
        }
        position = end;
    }
    return pieces;
}

uint32_t kvi_spans_cut(const struct kvg_span *spans, size_t count, uint64_t from,
    uint64_t length, struct kvg_span *out)
{
    uint64_t position = 0;
    uint32_t pieces = 0;

    for (size_t i = 0; i < count && length != 0; i++) {
        uint64_t end = position + spans[i].length;
        if (end > from) {
            uint64_t part = end - from < length ? end - from : length;
            pieces = emit(out, pieces, spans[i].buffer,
                spans[i].offset + (from - position), (uint32_t)part);
            from += part;
            length -= part;
        }
        position = end;
    }
    return pieces;
}

/* ---- Values -------------------------------------------------------------------------------- */

static size_t runs_bytes(uint32_t count)
{
    return sizeof(struct kvi_runs) + (size_t)count * sizeof(struct kvi_run);
}

static void runs_drop(struct kvg_tree *tree, struct kvi_runs *runs)
{
    if (--runs->refs != 0)
        return;
    for (uint32_t i = 0; i < runs->count; i++)
        buffer_drop(tree, runs->run[i].buffer);
    kvi_release_array(&tree->alloc, runs, runs_bytes(runs->count), 1);
}

/* Length of run `i`. */
static uint32_t run_length(const struct kvi_runs *runs, uint32_t i)
{
    uint32_t end = i + 1 < runs->count ? runs->run[i + 1].start : runs->length;

    return end - runs->run[i].start;
}

/* The run that holds `position`. */
static uint32_t run_at(const struct kvi_runs *runs, uint32_t position)
{
    uint32_t low = 0;
    uint32_t high = runs->count;

    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (runs->run[middle].start <= position)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Runs that slots [from, from + length) of the cut would make, joined where they touch. */
static uint32_t joined_count(
    const struct kvg_span *spans, size_t count, uint64_t from, uint32_t length)
{
    uint64_t position = 0;
    uint64_t next = 0;
    uint32_t buffer = 0;
    uint32_t pieces = 0;

    for (size_t i = 0; i < count && length != 0; i++) {
        uint64_t end = position + spans[i].length;
        if (end > from) {
            uint32_t part = end - from < length ? (uint32_t)(end - from) : length;
            uint64_t offset = spans[i].offset + (from - position);
            if (pieces == 0 || buffer != spans[i].buffer || next != offset)
                pieces++;
            buffer = spans[i].buffer;
            next = offset + part;
            from += part;
            length -= part;
        }
        position = end;
    }
    return pieces;
}

kvg_err kvi_value_make(struct kvg_tree *tree, const struct kvg_span *spans, size_t count,
    uint64_t from, uint32_t length, struct kvi_value *out)
{
    *out = (struct kvi_value){0};
    /* Skip to the span that holds `from`. */
    while (count != 0 && from >= spans->length) {
        from -= spans->length;
        spans++;
        count--;
    }
    KVI_ASSERT(count != 0 && length != 0);
    if (spans->length - from >= length) {
        out->at.offset = spans->offset + from;
        out->buffer = spans->buffer;
        out->length = length;
        buffer_hold(tree, out->buffer);
        return KVG_OK;
    }

    uint32_t pieces = joined_count(spans, count, from, length);
    struct kvi_runs *runs = kvi_alloc_array_raw(&tree->alloc, runs_bytes(pieces), 1);
    if (runs == NULL)
        return KVG_ENOMEM;
    *runs = (struct kvi_runs){.refs = 1, .length = length, .live = length};
    uint64_t next = 0;
    for (uint32_t done = 0; done < length; spans++, from = 0) {
        uint64_t rest = spans->length - from;
        uint32_t part = rest < length - done ? (uint32_t)rest : length - done;
        uint64_t offset = spans->offset + from;
        if (runs->count == 0 || runs->run[runs->count - 1].buffer != spans->buffer ||
            next != offset) {
            KVI_ASSERT(runs->count < pieces);
            runs->run[runs->count++] = (struct kvi_run){offset, spans->buffer, done};
            buffer_hold(tree, spans->buffer);
        }
        next = offset + part;
        done += part;
    }
    out->length = length;
    if (runs->count == 1) {
        out->at.offset = runs->run[0].offset;
        out->buffer = runs->run[0].buffer;
        kvi_release_array(&tree->alloc, runs, runs_bytes(pieces), 1);
        return KVG_OK;
    }
    out->at.runs = runs;
    out->buffer = KVI_BUFFER_RUNS;
    return KVG_OK;
}

void kvi_value_clear(struct kvg_tree *tree, struct kvi_value *value)
{
    if (value->length == 0)
        return;
    if (value->buffer == KVI_BUFFER_RUNS) {
        value->at.runs->live -= value->length;
        runs_drop(tree, value->at.runs);
    } else {
        buffer_drop(tree, value->buffer);
    }
    *value = (struct kvi_value){0};
}

/* A view inside one run no longer needs the block. */
static void settle(struct kvg_tree *tree, struct kvi_value *value)
{
    struct kvi_runs *runs = value->at.runs;
    uint32_t i = run_at(runs, value->position);
    uint32_t skip = value->position - runs->run[i].start;

    if (run_length(runs, i) - skip < value->length)
        return;
    struct kvi_value in_place = {.at.offset = runs->run[i].offset + skip,
        .buffer = runs->run[i].buffer,
        .length = value->length};
    buffer_hold(tree, in_place.buffer);
    runs->live -= value->length;
    runs_drop(tree, runs);
    *value = in_place;
}

void kvi_value_split(
    struct kvg_tree *tree, struct kvi_value *value, uint32_t at, struct kvi_value *prefix)
{
    *prefix = (struct kvi_value){0};
    if (value->length == 0)
        return;
    KVI_ASSERT(at > 0 && at < value->length);
    *prefix = *value;
    prefix->length = at;
    value->length -= at;
    if (value->buffer != KVI_BUFFER_RUNS) {
        value->at.offset += at;
        buffer_hold(tree, value->buffer);
        return;
    }
    value->position += at;
    value->at.runs->refs++;
    settle(tree, prefix);
    settle(tree, value);
}

uint32_t kvi_value_span_count(
    const struct kvi_value *value, uint32_t from, uint32_t length)
{
    if (length == 0 || value->length == 0)
        return 0;
    if (value->buffer != KVI_BUFFER_RUNS)
        return 1;
    const struct kvi_runs *runs = value->at.runs;
    uint32_t first = run_at(runs, value->position + from);
    return run_at(runs, value->position + from + length - 1) - first + 1;
}

struct kvg_span kvi_value_span_at(const struct kvi_value *value, uint32_t from)
{
    KVI_ASSERT(from < value->length);
    uint32_t length = value->length - from;
    if (value->buffer != KVI_BUFFER_RUNS)
        return (struct kvg_span){value->at.offset + from, value->buffer, length};
    const struct kvi_runs *runs = value->at.runs;
    uint32_t i = run_at(runs, value->position + from);
    uint32_t skip = value->position + from - runs->run[i].start;
    if (length > run_length(runs, i) - skip)
        length = run_length(runs, i) - skip;
    return (struct kvg_span){runs->run[i].offset + skip, runs->run[i].buffer, length};
}

uint32_t kvi_value_spans(
    const struct kvi_value *value, uint32_t from, uint32_t length, struct kvg_span *out)
{
    if (length == 0 || value->length == 0)
        return 0;
    KVI_DCHECK((uint64_t)from + length <= value->length);
    if (value->buffer != KVI_BUFFER_RUNS) {
        out[0] = (struct kvg_span){value->at.offset + from, value->buffer, length};
        return 1;
    }
    const struct kvi_runs *runs = value->at.runs;
    uint32_t position = value->position + from;
    uint32_t count = 0;
    for (uint32_t i = run_at(runs, position); length != 0; i++) {
        uint32_t skip = position - runs->run[i].start;
        uint32_t part = run_length(runs, i) - skip;
        if (part > length)
            part = length;
        out[count++] =
            (struct kvg_span){runs->run[i].offset + skip, runs->run[i].buffer, part};
        position += part;
        length -= part;
    }
    return count;
}

void kvi_value_trim(struct kvg_tree *tree, struct kvi_value *value)
{
    if (value->buffer != KVI_BUFFER_RUNS || value->length == 0)
        return;
    struct kvi_runs *runs = value->at.runs;
    if (runs->live * UINT64_C(2) >= runs->length)
        return;
    uint32_t count = kvi_value_span_count(value, 0, value->length);
    struct kvi_runs *own = kvi_alloc_array_raw(&tree->alloc, runs_bytes(count), 1);
    if (own == NULL)
        return;
    *own = (struct kvi_runs){
        .refs = 1, .count = count, .length = value->length, .live = value->length};
    uint32_t first = run_at(runs, value->position);
    for (uint32_t i = 0; i < count; i++) {
        own->run[i] = runs->run[first + i];
        own->run[i].start = i == 0 ? 0 : own->run[i].start - value->position;
        if (i == 0)
            own->run[i].offset += value->position - runs->run[first].start;
        buffer_hold(tree, own->run[i].buffer);
    }
    runs->live -= value->length;
    runs_drop(tree, runs);
    value->at.runs = own;
    value->position = 0;
}

/* ---- Buffers ------------------------------------------------------------------------------- */

kvg_err kvg_tree_buffer_add(struct kvg_tree *tree, uint32_t *out)
{
    *out = 0;
    for (uint32_t i = 1; i < tree->buffer_count; i++) {
        if (!tree->buffers[i].known) {
            tree->buffers[i] = (struct kvi_buffer){.known = true, .held = true};
            *out = i;
            return KVG_OK;
        }
    }
    if (tree->buffer_count == tree->buffer_capacity) {
        uint32_t wanted = tree->buffer_capacity == 0 ? 16 : tree->buffer_capacity * 2;
        void *buffers = tree->buffers;
        if (!kvi_resize_array(&tree->alloc, &buffers, tree->buffer_capacity, wanted,
                sizeof(*tree->buffers)))
            return KVG_ENOMEM;
        tree->buffers = buffers;
        tree->buffer_capacity = wanted;
    }
    if (tree->buffer_count == 0)
        tree->buffers[tree->buffer_count++] = (struct kvi_buffer){.known = true};
    *out = tree->buffer_count;
    tree->buffers[tree->buffer_count++] =
        (struct kvi_buffer){.known = true, .held = true};
    return KVG_OK;
}

void kvg_tree_buffer_drop(struct kvg_tree *tree, uint32_t buffer)
{
    if (buffer == 0 || buffer >= tree->buffer_count || !tree->buffers[buffer].held)
        return;
    tree->buffers[buffer].held = false;
    if (tree->buffers[buffer].refs == 0)
        tree->buffer_unused++;
}

uint32_t kvg_tree_buffer_take_unused(struct kvg_tree *tree)
{
    if (tree->buffer_unused == 0)
        return 0;
    for (uint32_t i = 1; i < tree->buffer_count; i++) {
        struct kvi_buffer *entry = &tree->buffers[i];
        if (entry->known && !entry->held && entry->refs == 0) {
            entry->known = false;
            tree->buffer_unused--;
            return i;
        }
    }
    return 0;
}
