/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* restore.c -- loads a tail back: slots, insert, what was adopted, the queue.
 *
 *     1  room and slots for the tail: FULL for all, SWA for its last window
 *     2  the window's mapping, and the request's cursor
 *     3  insert; whoever was quicker keeps their pages, ours are freed as duplicates
 *     4  what of our slots is in the tree now, awaits its bytes: hidden
 *     5  transfers of the adopted pages only; lock; queue
 *
 * The deepest node that has FULL is pinned during the insert, so that a missing window is recovered
 * without giving up FULL slots whose bytes are good.
 *
 * If a step fails, what is ours in the tree is found by its slots, not by the insert's report, for
 * a failed insert has none.
 */
#include "graft/linker.h"

#include "tree/tree.h"

struct restore {
    struct kvi_marker *marker;
    struct kvg_load_back *io;
    uint64_t start, end; /* Units: the device prefix; the prefix with the tail. */
    uint64_t window;     /* Units of the tail's window. */
    kvg_node_id last;    /* Ends the tail in the tree; the ack. */
    kvg_node_id pinned;
    size_t transfer_count;
    struct kvg_tree_transfer transfers[2];
};

/* For calls that cannot fail here. */
static void must(kvg_err err)
{
    KVI_ASSERT(err == KVG_OK);
}

static bool holds(const struct kvg_spans *spans, uint64_t slot)
{
    for (size_t i = 0; i < spans->count; i++) {
        if (slot - spans->items[i].offset < spans->items[i].length)
            return true;
    }
    return false;
}

/* Which of a node's values lie in the slots of this load. */
static uint32_t our_parts(const struct kvg_linker *linker, const struct kvi_node *node)
{
    int slot = linker->tree->slot_of[KVG_COMPONENT_SWA];
    uint32_t parts = 0;

    if (kvi_has(node, 0, KVG_TIER_DEVICE) &&
        holds(&linker->full,
            kvi_value_span_at(&node->full.value[KVG_TIER_DEVICE], 0).offset))
        parts |= KVG_COMPONENT_BIT(KVG_COMPONENT_FULL);
    if (slot > 0 && kvi_has(node, (uint32_t)slot, KVG_TIER_DEVICE) &&
        holds(&linker->swa,
            kvi_value_span_at(&kvi_part(node, (uint32_t)slot)->value[KVG_TIER_DEVICE], 0)
                .offset))
        parts |= KVG_COMPONENT_BIT(KVG_COMPONENT_SWA);
    return parts;
}

/* Hides what is ours on the path that ends at `last`. */
static void hide(struct kvg_linker *linker, kvg_node_id last)
{
    struct kvi_node *node = kvi_node_find(linker->tree, last);

    for (; node != NULL && !kvi_is_root(node); node = kvi_parent(linker->tree, node)) {
        uint32_t parts = our_parts(linker, node);
        if (parts != 0 && !KVI_GRAFT_PLANTED(1) &&
            kvg_tree_load_mark(linker->tree, node->id, parts, last, NULL) != KVG_OK)
            KVI_ASSERT(false);
    }
}

/* ---- 1, 2: slots, mapping ------------------------------------------------------------------ */

static void give_back(struct kvg_linker *linker)
{
    struct kvg_memory *memory = &linker->cache->memory;

    if (linker->swa.count != 0)
        must(kvg_window_release_unmapped(
            memory->window, linker->swa.items, linker->swa.count, NULL));
    if (linker->full.count != 0)
        (void)kvi_memory_free_full(memory, linker->full.items, linker->full.count, NULL);
    linker->full.count = 0;
    linker->swa.count = 0;
}

/* Everything that lists slots of this load, also what undo_insert() needs: it may not fail. */
static kvg_err reserve_spans(struct kvg_linker *linker, size_t max)
{
    struct kvg_spans *lists[] = {
        &linker->full, &linker->swa, &linker->cut[0], &linker->cut[1]};
    kvg_err err = KVG_OK;

    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]) && err == KVG_OK; i++)
        err = kvi_spans_reserve(&linker->alloc, lists[i], max);
    return err;
}

static kvg_err take_slots(
    struct kvg_linker *linker, struct restore *work, struct kvg_error *error)
{
    struct kvg_memory *memory = &linker->cache->memory;
    uint64_t tail = work->end - work->start;
    uint64_t pages = tail / kvi_memory_page_slots(memory);

    linker->full.count = 0;
    linker->swa.count = 0;
    if (reserve_spans(linker, (size_t)pages + 1) != KVG_OK)
        return kvi_fail(error, KVG_ENOMEM, "load", "no memory for spans");
    kvg_err err = kvg_cache_make_room(linker->cache, tail, work->window, error);
    if (err == KVG_OK)
        err = kvi_memory_alloc_full(memory, tail, &linker->full, error);
    if (err == KVG_OK && work->window != 0)
        err = kvi_memory_alloc_swa(memory, work->window, &linker->swa, error);
    if (err != KVG_OK)
        give_back(linker);
    return err;
}

/* Maps the last window of the tail; sets the cursor. */
static kvg_err prepare(
    struct kvg_linker *linker, struct restore *work, struct kvg_error *error)
{
    uint64_t tail = work->end - work->start;
    uint64_t window = (uint64_t)linker->window_pages * linker->page_size;
    uint64_t cursor =
        work->end > window && !KVI_GRAFT_PLANTED(10) ? work->end - window : 0;

    if (!linker->cache->has_swa)
        return KVG_OK;
    if (linker->skip_swa)
        cursor = work->end;
    if (cursor > work->io->swa_cursor)
        work->io->swa_cursor = cursor;
    if (linker->skip_swa)
        return KVG_OK;
    linker->cut[0].count = 0;
    kvg_err err = kvi_spans_cut_append(&linker->alloc, &linker->full, tail - work->window,
        work->window, &linker->cut[0]);
    if (err == KVG_OK)
        err = kvg_window_map(linker->cache->memory.window, linker->cut[0].items,
            linker->cut[0].count, linker->swa.items, linker->swa.count, error);
    return err;
}

/* ---- 3, 4: insert, hide -------------------------------------------------------------------- */

/* The value to insert: the prefix's slots as the tree has them, then ours. */
static kvg_err gather_value(
    struct kvg_linker *linker, struct restore *work, struct kvg_error *error)
{
    const struct kvg_span *spans;
    size_t count;
    kvg_err err = kvg_tree_collect_full_device(
        linker->tree, work->io->node, kvg_tree_root(linker->tree), &spans, &count, error);

    if (err != KVG_OK)
        return err;
    if (kvg_spans_slots(spans, count) != work->start)
        return kvi_fail(error, KVG_EINVAL, "load.node", "does not end the device prefix");
    if (kvi_spans_reserve(&linker->alloc, &linker->value, count + linker->full.count) !=
        KVG_OK)
        return kvi_fail(error, KVG_ENOMEM, "load", "no memory for spans");
    if (count != 0)
        memcpy(linker->value.items, spans, count * sizeof(*spans));
    memcpy(linker->value.items + count, linker->full.items,
        linker->full.count * sizeof(*spans));
    linker->value.count = count + linker->full.count;
    return KVG_OK;
}

/* After a failed insert: frees the slots that are still ours, hides and withdraws the others. */
static void undo_insert(struct kvg_linker *linker, struct restore *work, uint64_t taken)
{
    struct kvg_memory *memory = &linker->cache->memory;
    uint64_t tail = work->end - work->start;
    uint64_t from = taken > work->start ? taken - work->start : 0;
    uint64_t window_from = tail - work->window;
    uint64_t length, pinned;
    kvg_node_id node;

    linker->cut[0].count = 0;
    linker->cut[1].count = 0;
    uint64_t middle = from > window_from ? from : window_from;
    must(kvi_spans_cut_append(&linker->alloc, &linker->full, from,
        middle > from ? middle - from : 0, &linker->cut[0]));
    must(kvi_spans_cut_append(&linker->alloc, &linker->full, middle,
        tail > middle ? tail - middle : 0, &linker->cut[1]));
    if (linker->cut[0].count != 0)
        must(kvi_memory_free_full(
            memory, linker->cut[0].items, linker->cut[0].count, NULL));
    if (linker->cut[1].count != 0)
        must(kvi_memory_free(memory, linker->cut[1].items, linker->cut[1].count, NULL));
    must(kvg_tree_match_full_device(
        linker->tree, &work->marker->key, &length, &node, &pinned));
    hide(linker, node);
    kvi_load_abandon(linker, &(struct kvi_load){.id = work->io->request, .ack = node});
}

static kvg_err insert_tail(struct kvg_linker *linker, struct restore *work,
    struct kvg_tree_inserted *inserted, struct kvg_error *error)
{
    struct kvg_tree_insert insert;
    uint64_t length, pinned_length, taken = 0;

    kvg_tree_insert_init(&insert);
    insert.key = work->marker->key;
    insert.value = linker->value.items;
    insert.value_count = linker->value.count;
    insert.prev_prefix_length = work->start;
    insert.evicted_length[KVG_COMPONENT_SWA] = work->io->swa_cursor;
    insert.chunked = true;
    insert.track_adopted = true;
    insert.priority = work->io->priority;
    must(kvg_tree_match_full_device(
        linker->tree, &work->marker->key, &length, &work->pinned, &pinned_length));
    uint64_t given_up = linker->cache->stats.windows_given_up;
    kvg_err err = kvg_tree_pin_full(linker->tree, work->pinned, error);
    if (err != KVG_OK)
        return err;
    linker->inserting_tail = !KVI_GRAFT_PLANTED(11);
    err = kvg_cache_insert(linker->cache, &insert, inserted, &taken, error);
    linker->inserting_tail = false;
    if (kvg_tree_unpin_full(linker->tree, work->pinned, NULL) != KVG_OK)
        KVI_ASSERT(false);
    if (err != KVG_OK) {
        undo_insert(linker, work, taken);
        return err;
    }
    work->last = inserted->last_node;
    hide(linker, work->last);
    if (linker->cache->stats.windows_given_up != given_up) {
        /* Slots of the window are free again: nothing may be written to them. */
        kvi_load_abandon(
            linker, &(struct kvi_load){.id = work->io->request, .ack = work->last});
        return kvi_fail(error, KVG_ENOMEM, "load", "no memory for a window");
    }
    return KVG_OK;
}

/* ---- 5: commit, queue ---------------------------------------------------------------------- */

/* Transfers of what the tree kept, and the mapping of the window as the tree has it. */
static kvg_err commit(struct kvg_linker *linker, struct restore *work,
    const struct kvg_tree_inserted *inserted, struct kvg_error *error)
{
    uint32_t pages = work->marker->tail_pages;
    uint32_t window_pages = (uint32_t)(work->window / linker->page_size);
    struct kvg_tree_transfer whole[2] = {{.component = KVG_COMPONENT_FULL,
                                             .keys = work->marker->tail_keys,
                                             .key_count = pages,
                                             .spans = linker->full.items,
                                             .span_count = linker->full.count},
        {.component = KVG_COMPONENT_SWA,
            .trailing_pages = true,
            .keys = work->marker->tail_keys + (pages - window_pages),
            .key_count = window_pages,
            .spans = linker->swa.items,
            .span_count = linker->swa.count}};
    struct kvg_span *kept = linker->canonical.items;
    struct kvg_tree_transfer mapped;

    for (uint32_t i = 0; i < (window_pages == 0 ? 1u : 2u); i++) {
        struct kvg_tree_transfer *out = &work->transfers[work->transfer_count];
        kvg_err err = kvi_transfer_filter(linker, &whole[i], inserted->adopted,
            inserted->adopted_count, i == 0 ? work->start : work->end - work->window,
            linker->keys + (i == 0 ? 0 : pages), &linker->cut[i], out);
        if (err != KVG_OK)
            return kvi_fail(error, err, "load", "no memory for spans");
        if (out->key_count != 0)
            work->transfer_count++;
    }
    if (work->transfer_count == 0 ||
        work->transfers[work->transfer_count - 1].component != KVG_COMPONENT_SWA)
        return KVG_OK;
    const struct kvg_spans canonical = {
        kept, linker->canonical.count, linker->canonical.max};
    linker->value.count = 0;
    if (kvi_spans_cut_append(&linker->alloc, &canonical,
            work->end - work->start - work->window, work->window,
            &linker->value) != KVG_OK)
        return kvi_fail(error, KVG_ENOMEM, "load", "no memory for spans");
    whole[1].spans = linker->value.items;
    whole[1].span_count = linker->value.count;
    linker->swa.count = 0; /* From here on its slots are the tree's. */
    kvg_err err =
        kvi_transfer_filter(linker, &whole[1], inserted->adopted, inserted->adopted_count,
            work->end - work->window, linker->keys + pages, &linker->swa, &mapped);
    if (err != KVG_OK)
        return kvi_fail(error, err, "load", "no memory for spans");
    const struct kvg_tree_transfer *swa = &work->transfers[work->transfer_count - 1];
    return kvg_window_map(linker->cache->memory.window, mapped.spans, mapped.span_count,
        swa->spans, swa->span_count, error);
}

static kvg_err collect(
    struct kvg_linker *linker, struct restore *work, struct kvg_error *error)
{
    const struct kvg_span *spans;
    size_t count;
    kvg_err err = kvg_tree_collect_full_device(
        linker->tree, work->last, work->io->node, &spans, &count, error);

    if (err != KVG_OK)
        return err;
    if (kvi_spans_reserve(&linker->alloc, &linker->canonical, count) != KVG_OK)
        return kvi_fail(error, KVG_ENOMEM, "load", "no memory for spans");
    memcpy(linker->canonical.items, spans, count * sizeof(*spans));
    linker->canonical.count = count;
    KVI_ASSERT(kvg_spans_slots(spans, count) == work->end - work->start);
    return KVG_OK;
}

static kvg_err queue(
    struct kvg_linker *linker, struct restore *work, struct kvg_error *error)
{
    struct kvi_load load = {
        .id = work->io->request, .ack = work->last, .state = KVI_LOAD_QUEUED};

    if (work->transfer_count == 0)
        return KVG_OK;
    kvg_err err = kvg_tree_lock(linker->tree, work->last, 0, &load.receipt, error);
    if (err == KVG_OK) {
        err = linker->transport.load(linker->transport.context, work->io->request,
            work->transfers, work->transfer_count);
        if (err != KVG_OK) {
            kvi_load_abandon(linker, &load);
            return kvi_fail(
                error, err, "load", "Failed to queue the linker load for the request.");
        }
    }
    if (err != KVG_OK)
        return err;
    for (size_t i = 0; i < work->transfer_count; i++)
        linker->stats.pages_loaded += work->transfers[i].key_count;
    linker->stats.loads_queued++;
    linker->loads[linker->load_count++] = load;
    work->io->queued = true;
    return KVG_OK;
}

static kvg_err restore(
    struct kvg_linker *linker, struct restore *work, struct kvg_error *error)
{
    struct kvg_tree_inserted inserted;
    uint32_t pages = work->marker->tail_pages;

    work->start = work->marker->device_length;
    work->end = work->start + (uint64_t)pages * linker->page_size;
    if (!linker->skip_swa)
        work->window =
            (uint64_t)(pages < linker->window_pages ? pages : linker->window_pages) *
            linker->page_size;
    kvg_err err = kvi_load_reserve(linker, error);
    if (err == KVG_OK && kvi_linker_keys_reserve(linker, 2 * (size_t)pages) != KVG_OK)
        err = kvi_fail(error, KVG_ENOMEM, "load", "no memory for keys");
    if (err == KVG_OK)
        err = take_slots(linker, work, error);
    if (err != KVG_OK)
        return err;
    err = gather_value(linker, work, error);
    if (err != KVG_OK) {
        give_back(linker);
        return err;
    }
    err = prepare(linker, work, error);
    if (err != KVG_OK) {
        give_back(linker);
        return err;
    }
    err = insert_tail(linker, work, &inserted, error);
    if (err != KVG_OK)
        return err;
    err = collect(linker, work, error);
    if (err == KVG_OK)
        err = commit(linker, work, &inserted, error);
    if (err != KVG_OK) {
        kvi_load_abandon(
            linker, &(struct kvi_load){.id = work->io->request, .ack = work->last});
        return err;
    }
    return queue(linker, work, error);
}

/* ---- With the other ranks ------------------------------------------------------------------ */

/* Another rank could not: takes back a load that was queued here. */
static void revoke(struct kvg_linker *linker, struct restore *work)
{
    size_t index = kvi_load_find(linker, work->io->request);

    if (!work->io->queued || index == SIZE_MAX)
        return;
    struct kvi_load load = linker->loads[index];
    (void)linker->transport.cancel_load(linker->transport.context, load.id);
    linker->load_count--;
    memmove(linker->loads + index, linker->loads + index + 1,
        (linker->load_count - index) * sizeof(load));
    kvi_load_abandon(linker, &load);
}

static kvg_err try_restore(struct kvg_linker *linker, struct restore *work,
    uint64_t wanted, struct kvg_error *error)
{
    if (work->marker == NULL)
        return wanted == 0 ? KVG_OK
                           : kvi_fail(error, KVG_ENOMEM, "load", "the marker was lost");
    if (kvg_tree_first_awaited(linker->tree, &work->marker->key,
            work->marker->device_length) != UINT64_MAX ||
        kvi_load_find(linker, work->io->request) != SIZE_MAX) {
        work->io->loading = true;
        return KVG_EBUSY;
    }
    return restore(linker, work, error);
}

kvg_err kvg_linker_load_back(
    struct kvg_linker *linker, struct kvg_load_back *io, struct kvg_error *error)
{
    uint32_t index = kvi_rids_find(&linker->marker_of, io->request);
    struct restore work = {.io = io, .marker = NULL};
    uint64_t wanted = io->length;
    uint64_t cursor = io->swa_cursor;

    io->length = 0;
    io->last_node = io->node;
    io->spans = NULL;
    io->span_count = 0;
    io->queued = io->loading = false;
    io->agreed = true;
    if (index == KVI_RID_NONE && !io->join)
        return KVG_OK;
    if (index != KVI_RID_NONE)
        work.marker = &linker->markers[index];
    kvg_err err = kvi_load_reserve(linker, error);
    if (err == KVG_OK)
        err = try_restore(linker, &work, wanted, error);
    int32_t ok = err == KVG_OK;
    kvi_agree(linker, &ok, 1);
    if (ok == 0) {
        if (err == KVG_OK)
            revoke(linker, &work);
        io->swa_cursor = cursor;
        io->queued = io->agreed = false;
    } else {
        if (work.last != KVG_NODE_NONE) {
            if (kvg_tree_mark_stored_path(linker->tree, work.last, io->node, NULL) !=
                KVG_OK)
                KVI_ASSERT(false);
            io->length = work.end - work.start;
            io->last_node = work.last;
            io->spans = linker->canonical.items;
            io->span_count = linker->canonical.count;
        }
        if (!io->queued && linker->agreement.min != NULL)
            linker->loads[linker->load_count++] = (struct kvi_load){
                .id = io->request, .state = KVI_LOAD_QUEUED, .success = true};
    }
    if (!io->loading || io->join)
        kvi_marker_drop(linker, io->request);
    return err == KVG_EBUSY || err == KVG_ENOSPACE ? KVG_OK : err;
}
