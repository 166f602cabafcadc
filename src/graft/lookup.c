/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* lookup.c -- which part of the tail the store has, on every rank.
 *
 *     key        | device prefix D | tail: page keys chained from the last key of D | partial |
 *     lookup                         1  2  3 ...   lengths that this rank can restore
 *     flags any   what is on device or restorable, by whole length; all ranks' minimum
 *     flags dev   what is on device; all ranks' minimum
 *
 * Flags are by length of the whole prefix, not of the tail, so that ranks whose trees differ (a
 * smaller pool evicts more) still speak of the same thing, and of the same number of values.
 *
 * A rank for which anything fails still votes, with zeros.
 */
#include "graft/linker.h"

#include "tree/tree.h"

/* ---- Markers ------------------------------------------------------------------------------- */

static void clear_marker(struct kvg_linker *linker, struct kvi_marker *marker)
{
    const struct kvg_alloc *alloc = &linker->alloc;
    struct kvg_namespace *space = &marker->key.space;

    kvi_release_array(alloc, (void *)(uintptr_t)marker->key.tokens,
        marker->key.token_count, sizeof(uint32_t));
    kvi_release_array(
        alloc, marker->tail_keys, marker->tail_pages, sizeof(*marker->tail_keys));
    if (space->extra_key.data != NULL)
        kvi_release_string(
            alloc, (char *)(uintptr_t)space->extra_key.data, space->extra_key.bytes);
    if (space->cache_salt.data != NULL)
        kvi_release_string(
            alloc, (char *)(uintptr_t)space->cache_salt.data, space->cache_salt.bytes);
    *marker = (struct kvi_marker){0};
}

static void drop(struct kvg_linker *linker, uint32_t index)
{
    kvi_rids_remove(&linker->marker_of, linker->markers[index].id);
    clear_marker(linker, &linker->markers[index]);
    linker->markers[index].next_free = linker->marker_free;
    linker->marker_free = index + 1;
}

void kvi_marker_drop(struct kvg_linker *linker, kvg_request_id id)
{
    uint32_t index = kvi_rids_find(&linker->marker_of, id);

    if (index != KVI_RID_NONE)
        drop(linker, index);
}

void kvi_markers_drop_all(struct kvg_linker *linker)
{
    for (uint32_t i = 0; i < linker->marker_capacity; i++) {
        if (linker->markers[i].used)
            drop(linker, i);
    }
}

bool kvg_linker_has_marker(const struct kvg_linker *linker, kvg_request_id request)
{
    return kvi_rids_find(&linker->marker_of, request) != KVI_RID_NONE;
}

static bool reserve_marker(struct kvg_linker *linker)
{
    uint32_t old = linker->marker_capacity;
    uint32_t wanted = old == 0 ? 16 : old * 2;
    void *markers = linker->markers;

    if (kvi_rids_reserve(&linker->alloc, &linker->marker_of) != KVG_OK)
        return false;
    if (linker->marker_free != 0)
        return true;
    if (!kvi_resize_array(
            &linker->alloc, &markers, old, wanted, sizeof(*linker->markers)))
        return false;
    linker->markers = markers;
    linker->marker_capacity = wanted;
    for (uint32_t i = wanted; i > old; i--) {
        linker->markers[i - 1] = (struct kvi_marker){.next_free = linker->marker_free};
        linker->marker_free = i;
    }
    return true;
}

static bool copy_str(
    const struct kvg_alloc *alloc, struct kvg_str from, struct kvg_str *out)
{
    if (from.data == NULL)
        return true;
    *out = (struct kvg_str){kvi_copy_string(alloc, from), from.bytes};
    return out->data != NULL;
}

/* Remembers the first `units` of the key.  False without memory. */
static bool set_marker(struct kvg_linker *linker, kvg_request_id id,
    const struct kvg_tree_key *key, uint64_t device_length, uint32_t tail_pages)
{
    struct kvi_marker marker = {
        .id = id, .used = true, .device_length = device_length, .tail_pages = tail_pages};
    size_t units = (size_t)(device_length + (uint64_t)tail_pages * linker->page_size);
    size_t tokens = units + (linker->rule.eagle ? 1 : 0);

    kvi_marker_drop(linker, id);
    marker.key = (struct kvg_tree_key){
        .tokens = kvi_alloc_array_raw(&linker->alloc, tokens, sizeof(uint32_t)),
        .token_count = tokens,
        .bigram = linker->rule.eagle};
    marker.tail_keys =
        kvi_alloc_array_raw(&linker->alloc, tail_pages, sizeof(*marker.tail_keys));
    if (marker.key.tokens == NULL || marker.tail_keys == NULL ||
        !copy_str(&linker->alloc, key->space.extra_key, &marker.key.space.extra_key) ||
        !copy_str(&linker->alloc, key->space.cache_salt, &marker.key.space.cache_salt) ||
        !reserve_marker(linker)) {
        if (marker.key.tokens == NULL)
            marker.key.token_count = 0;
        clear_marker(linker, &marker);
        return false;
    }
    memcpy((void *)(uintptr_t)marker.key.tokens, key->tokens, tokens * sizeof(uint32_t));
    memcpy(marker.tail_keys, linker->keys, tail_pages * sizeof(*marker.tail_keys));
    uint32_t index = linker->marker_free - 1;
    linker->marker_free = linker->markers[index].next_free;
    linker->markers[index] = marker;
    kvi_rids_add(&linker->marker_of, id, index);
    return true;
}

/* ---- The look-up --------------------------------------------------------------------------- */

/* The page keys of the tail into linker->keys.  0: the tail has no anchor, or no page. */
static kvg_err tail_keys(struct kvg_linker *linker, const struct kvg_tree_key *view,
    uint64_t units, const struct kvg_tree_match *match, uint32_t *count_out)
{
    uint64_t at = match->device_length;
    size_t pages = (size_t)((units - at) / linker->page_size);
    struct kvg_key prior;
    const struct kvg_key *keys;
    bool has_prior;

    *count_out = 0;
    if (pages == 0)
        return KVG_OK;
    if (at == 0) {
        has_prior = kvg_namespace_prior(&view->space, &prior);
    } else {
        size_t count =
            kvg_tree_node_page_keys(linker->tree, match->last_device_node, &keys);
        if (count == 0)
            return KVG_OK; /* A tail without an anchor must not pass for a head. */
        prior = keys[count - 1];
        has_prior = true;
    }
    if (kvi_linker_keys_reserve(linker, pages) != KVG_OK)
        return KVG_ENOMEM;
    *count_out = (uint32_t)kvg_page_keys(&linker->rule, has_prior ? &prior : NULL,
        view->tokens + at, view->token_count - (size_t)at, linker->keys, pages);
    return KVG_OK;
}

static uint32_t window_keys(const struct kvg_linker *linker, uint32_t pages)
{
    if (linker->skip_swa)
        return 0;
    return pages < linker->window_pages ? pages : linker->window_pages;
}

/* Asks the transport; lengths of the tail in linker->lengths. */
static size_t ask(struct kvg_linker *linker, kvg_request_id request, uint32_t pages)
{
    uint32_t trailing = window_keys(linker, pages);
    struct kvg_tree_transfer transfers[2] = {
        {.component = KVG_COMPONENT_FULL, .keys = linker->keys, .key_count = pages},
        {.component = KVG_COMPONENT_SWA,
            .trailing_pages = true,
            .keys = linker->keys + (pages - trailing),
            .key_count = trailing}};
    size_t count = 0;

    linker->stats.lookups++;
    kvg_err err = linker->transport.lookup(linker->transport.context, request, transfers,
        trailing == 0 ? 1 : 2, linker->lengths, pages, &count);
    if (err != KVG_OK || count > pages)
        return 0;
    return count;
}

/* Fills the flags with what this rank has and can have. */
static kvg_err vote(struct kvg_linker *linker, kvg_request_id request,
    const struct kvg_tree_key *view, uint64_t units, const struct kvg_tree_match *match,
    struct kvg_linker_match *out, uint32_t *tail_pages_out)
{
    uint32_t pages = (uint32_t)(units / linker->page_size);
    uint32_t device = (uint32_t)(match->device_length / linker->page_size);
    int32_t *any = linker->mask;
    int32_t *on_device = linker->mask + pages + 1;

    *tail_pages_out = 0;
    if (linker->agreement.min != NULL) {
        kvg_tree_usable_pages(linker->tree, view, on_device, (size_t)pages + 1);
    } else {
        memset(on_device, 0, ((size_t)pages + 1) * sizeof(*on_device));
        on_device[device] = 1;
    }
    memcpy(any, on_device, ((size_t)pages + 1) * sizeof(*any));
    if (device == pages)
        return KVG_OK;
    out->loading =
        kvg_tree_first_awaited(linker->tree, view, match->device_length) != UINT64_MAX;
    if (!linker->has_transport || out->loading)
        return KVG_OK;
    kvg_err err = tail_keys(linker, view, units, match, tail_pages_out);
    if (err != KVG_OK || *tail_pages_out == 0)
        return err;
    size_t count = ask(linker, request, *tail_pages_out);
    for (size_t i = 0; i < count; i++) {
        if (linker->lengths[i] >= 1 && linker->lengths[i] <= *tail_pages_out)
            any[device + linker->lengths[i]] = 1;
    }
    return KVG_OK;
}

static uint32_t highest(const int32_t *flags, uint32_t pages)
{
    while (pages > 0 && flags[pages] <= 0)
        pages--;
    return pages;
}

/* All ranks agreed on fewer pages than this one has on device. */
static kvg_err cut_match(struct kvg_linker *linker, const struct kvg_tree_key *view,
    uint64_t units, struct kvg_tree_match *match, struct kvg_error *error)
{
    struct kvg_tree_key shorter;
    kvg_err err = kvg_tree_key_slice(view, 0, (size_t)units, &shorter, error);

    return err != KVG_OK ? err : kvg_cache_match(linker->cache, &shorter, match, error);
}

kvg_err kvg_linker_match(struct kvg_linker *linker, kvg_request_id request,
    const struct kvg_tree_key *key, struct kvg_tree_match *match,
    struct kvg_linker_match *out, struct kvg_error *error)
{
    struct kvg_tree_key view;
    uint64_t units = kvi_tree_key(linker->tree, key, &view);
    uint32_t pages = (uint32_t)(units / linker->page_size);
    uint32_t tail_pages;

    *out = (struct kvg_linker_match){.struct_bytes = sizeof(*out)};
    if (units / linker->page_size > linker->pages_max)
        return kvi_fail_range(error, "linker.prompt_pages_max", units / linker->page_size,
            0, linker->pages_max);
    kvg_err err = vote(linker, request, &view, units, match, out, &tail_pages);
    if (err != KVG_OK)
        memset(linker->mask, 0, 2 * ((size_t)pages + 1) * sizeof(*linker->mask));
    kvi_agree(linker, linker->mask, 2 * ((size_t)pages + 1));
    if (err != KVG_OK)
        return kvi_fail(error, err, "lookup", "no memory for page keys");

    uint32_t device = (uint32_t)(match->device_length / linker->page_size);
    uint32_t agreed = highest(linker->mask, pages);
    uint32_t common = highest(linker->mask + pages + 1, pages);
    out->common_length = (uint64_t)common * linker->page_size;
    out->load_needed = agreed > common;
    if (agreed < device)
        return cut_match(
            linker, &view, (uint64_t)agreed * linker->page_size, match, error);
    if (agreed == device)
        return KVG_OK;
    out->load_length = (uint64_t)(agreed - device) * linker->page_size;
    out->swa_load_length =
        (uint64_t)window_keys(linker, agreed - device) * linker->page_size;
    /* Without memory for the marker, kvg_linker_load_back() tells the other ranks. */
    (void)set_marker(linker, request, &view, match->device_length, agreed - device);
    return KVG_OK;
}

void kvi_linker_abstain(struct kvg_linker *linker, const struct kvg_tree_key *key)
{
    struct kvg_tree_key view;
    size_t pages = (size_t)(kvi_tree_key(linker->tree, key, &view) / linker->page_size);

    memset(linker->mask, 0, 2 * (pages + 1) * sizeof(*linker->mask));
    kvi_agree(linker, linker->mask, 2 * (pages + 1));
}
