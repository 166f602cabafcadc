/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* mem_transport.c -- see mem_transport.h. */
#include "mem_transport.h"

#include "test.h"

/* ---- The store ----------------------------------------------------------------------------- */

void mem_store_init(struct mem_store *store)
{
    *store = (struct mem_store){.table_size = 1 << 12};
    store->table = calloc(store->table_size, sizeof(*store->table));
}

void mem_store_fini(struct mem_store *store)
{
    free(store->pages);
    free(store->table);
}

static size_t place(
    const struct mem_store *store, uint32_t component, const struct kvg_key *key)
{
    uint64_t hash;
    memcpy(&hash, key->bytes, sizeof(hash));
    size_t at = (size_t)(hash ^ component) & (store->table_size - 1);
    for (; store->table[at] != 0; at = (at + 1) & (store->table_size - 1)) {
        const struct mem_page *page = &store->pages[store->table[at] - 1];
        if (page->component == component && memcmp(&page->key, key, sizeof(*key)) == 0)
            break;
    }
    return at;
}

static void index_all(struct mem_store *store)
{
    memset(store->table, 0, store->table_size * sizeof(*store->table));
    for (size_t i = 0; i < store->count; i++)
        store->table[place(store, store->pages[i].component, &store->pages[i].key)] =
            (uint32_t)i + 1;
}

static struct mem_page *find(
    const struct mem_store *store, uint32_t component, const struct kvg_key *key)
{
    uint32_t index = store->table[place(store, component, key)];
    return index == 0 ? NULL : &store->pages[index - 1];
}

bool mem_store_has(
    const struct mem_store *store, uint32_t component, const struct kvg_key *key)
{
    return find(store, component, key) != NULL;
}

void mem_store_remove(
    struct mem_store *store, uint32_t component, const struct kvg_key *key)
{
    struct mem_page *page = find(store, component, key);
    if (page == NULL)
        return;
    *page = store->pages[--store->count];
    index_all(store);
}

static struct mem_page *put(
    struct mem_store *store, uint32_t component, const struct kvg_key *key)
{
    struct mem_page *page = find(store, component, key);
    if (page != NULL)
        return page;
    if (store->count == store->capacity) {
        store->capacity = store->capacity == 0 ? 64 : 2 * store->capacity;
        store->pages = realloc(store->pages, store->capacity * sizeof(*store->pages));
        if (2 * store->capacity > store->table_size) {
            store->table_size *= 4;
            store->table =
                realloc(store->table, store->table_size * sizeof(*store->table));
            index_all(store);
        }
    }
    store->pages[store->count] = (struct mem_page){.component = component, .key = *key};
    store->table[place(store, component, key)] = (uint32_t)++store->count;
    return &store->pages[store->count - 1];
}

struct mem_page *mem_store_add(
    struct mem_store *store, uint32_t component, const struct kvg_key *key)
{
    return put(store, component, key);
}

const struct mem_page *mem_store_find(
    const struct mem_store *store, uint32_t component, const struct kvg_key *key)
{
    return find(store, component, key);
}

/* ---- Jobs ---------------------------------------------------------------------------------- */

static void clear_job(struct mem_job *job)
{
    for (size_t i = 0; i < job->count; i++) {
        free(job->transfers[i].keys);
        free(job->transfers[i].slots);
    }
    *job = (struct mem_job){0};
}

static struct mem_job copy_job(
    kvg_request_id request, const struct kvg_tree_transfer *transfers, size_t count)
{
    struct mem_job job = {.request = request, .count = count};
    assert_true(count <= 2);
    for (size_t i = 0; i < count; i++) {
        const struct kvg_tree_transfer *from = &transfers[i];
        struct mem_transfer *to = &job.transfers[i];
        *to = (struct mem_transfer){.component = from->component,
            .trailing = from->trailing_pages,
            .key_count = from->key_count};
        to->keys = calloc(from->key_count + 1, sizeof(*to->keys));
        if (from->key_count != 0)
            memcpy(to->keys, from->keys, from->key_count * sizeof(*to->keys));
        to->slots =
            calloc(kvg_spans_slots(from->spans, from->span_count) + 1, sizeof(uint64_t));
        for (size_t s = 0; s < from->span_count; s++)
            for (uint32_t j = 0; j < from->spans[s].length; j++)
                to->slots[to->slot_count++] = from->spans[s].offset + j;
    }
    return job;
}

static void remember(struct mem_job *last, kvg_request_id request,
    const struct kvg_tree_transfer *transfers, size_t count)
{
    clear_job(last);
    *last = copy_job(request, transfers, count);
}

/* ---- The table ----------------------------------------------------------------------------- */

static kvg_err lookup(void *context, kvg_request_id request,
    const struct kvg_tree_transfer *transfers, size_t count, uint32_t *lengths,
    size_t length_max, size_t *length_count_out)
{
    struct mem_transport *t = context;
    size_t out = 0;
    t->lookups++;
    remember(&t->last_lookup, request, transfers, count);
    if (t->down)
        return KVG_EIO;
    if (t->preset_count >= 0) {
        for (int i = 0; i < t->preset_count; i++)
            lengths[out++] = t->preset[i];
        *length_count_out = out;
        return KVG_OK;
    }
    const struct kvg_key *kv = transfers[0].keys;
    for (size_t pages = 1; pages <= transfers[0].key_count && out < length_max; pages++) {
        bool good = true;
        if (!mem_store_has(t->store, KVG_COMPONENT_FULL, &kv[pages - 1]))
            break;
        for (size_t i = 1; i < count; i++) {
            size_t window = transfers[i].key_count;
            for (size_t p = pages > window ? pages - window : 0; p < pages; p++)
                good = good && mem_store_has(t->store, transfers[i].component, &kv[p]);
        }
        if (good)
            lengths[out++] = (uint32_t)pages;
    }
    *length_count_out = out;
    return KVG_OK;
}

static bool refuses(int *count)
{
    if (*count == 0)
        return false;
    if (*count > 0)
        --*count;
    return true;
}

static kvg_err load(void *context, kvg_request_id request,
    const struct kvg_tree_transfer *transfers, size_t count)
{
    struct mem_transport *t = context;
    t->load_calls++;
    if (t->down || refuses(&t->refuse_loads))
        return KVG_EIO;
    assert_true(count != 0 && t->load_count < 256);
    for (size_t i = 0; i < t->load_count; i++)
        assert_true(t->loads[i].request != request);
    remember(&t->last_load, request, transfers, count);
    t->loads[t->load_count++] = copy_job(request, transfers, count);
    return KVG_OK;
}

static int64_t start_loads(void *context)
{
    struct mem_transport *t = context;
    bool any = false;
    for (size_t i = 0; i < t->load_count; i++) {
        if (t->loads[i].started)
            continue;
        t->loads[i].started = true;
        t->loads[i].batch = t->batches;
        any = true;
    }
    return any ? t->batches++ : -1;
}

static void remove_load(struct mem_transport *t, size_t index)
{
    clear_job(&t->loads[index]);
    memmove(t->loads + index, t->loads + index + 1,
        (--t->load_count - index) * sizeof(t->loads[0]));
}

static bool cancel_load(void *context, kvg_request_id request)
{
    struct mem_transport *t = context;
    for (size_t i = 0; i < t->load_count; i++) {
        if (t->loads[i].request != request || t->loads[i].started)
            continue;
        remove_load(t, i);
        return true;
    }
    return false;
}

static size_t take_loads(void *context, struct kvg_load_result *results, size_t max)
{
    struct mem_transport *t = context;
    size_t count = t->done_load_count < max ? t->done_load_count : max;
    memcpy(results, t->done_loads, count * sizeof(*results));
    t->done_load_count -= count;
    memmove(t->done_loads, t->done_loads + count, t->done_load_count * sizeof(*results));
    return count;
}

static kvg_err offload(
    void *context, const struct kvg_tree_transfer *transfers, size_t count)
{
    struct mem_transport *t = context;
    t->offload_calls++;
    if (count == 0 || transfers[0].key_count == 0)
        t->empty_offers++;
    if (t->down || refuses(&t->refuse_offloads))
        return t->down ? KVG_EIO : KVG_EBUSY;
    assert_true(t->offload_count < 1024);
    remember(&t->last_offload, 0, transfers, count);
    t->offload_keys = realloc(t->offload_keys,
        (t->offload_key_count + transfers[0].key_count + 1) * sizeof(struct kvg_key));
    memcpy(t->offload_keys + t->offload_key_count, transfers[0].keys,
        transfers[0].key_count * sizeof(struct kvg_key));
    t->offload_key_count += transfers[0].key_count;
    t->offloads[t->offload_count++] = copy_job(0, transfers, count);
    return KVG_OK;
}

static size_t take_offloads(void *context, bool *results, size_t max)
{
    struct mem_transport *t = context;
    size_t count = t->done_offload_count < max ? t->done_offload_count : max;
    memcpy(results, t->done_offloads, count * sizeof(*results));
    t->done_offload_count -= count;
    memmove(t->done_offloads, t->done_offloads + count,
        t->done_offload_count * sizeof(*results));
    return count;
}

static void drop_all(struct mem_transport *t)
{
    while (t->load_count != 0)
        remove_load(t, t->load_count - 1);
    while (t->offload_count != 0)
        clear_job(&t->offloads[--t->offload_count]);
    t->done_load_count = t->done_offload_count = 0;
}

static void reset(void *context)
{
    struct mem_transport *t = context;
    t->resets++;
    if (t->on_reset != NULL)
        t->on_reset(t);
    drop_all(t);
}

static void close_all(void *context)
{
    struct mem_transport *t = context;
    t->closes++;
    if (t->on_reset != NULL)
        t->on_reset(t);
    drop_all(t);
}

struct mem_transport *mem_transport_new(struct mem_store *store, uint32_t page_size)
{
    struct mem_transport *t = calloc(1, sizeof(*t));
    t->store = store;
    t->page_size = page_size;
    t->preset_count = -1;
    t->table = (struct kvg_transport){.struct_bytes = sizeof(t->table),
        .context = t,
        .lookup = lookup,
        .load = load,
        .start_loads = start_loads,
        .cancel_load = cancel_load,
        .take_loads = take_loads,
        .offload = offload,
        .take_offloads = take_offloads,
        .reset = reset,
        .close = close_all};
    return t;
}

void mem_transport_free(struct mem_transport *t)
{
    drop_all(t);
    clear_job(&t->last_lookup);
    clear_job(&t->last_load);
    clear_job(&t->last_offload);
    free(t->offload_keys);
    free(t);
}

/* ---- Completion ---------------------------------------------------------------------------- */

static uint64_t *words_of(struct mem_transport *t, uint32_t component)
{
    return t->device[component == KVG_COMPONENT_SWA];
}

void mem_apply_offload(struct mem_transport *t, size_t index)
{
    struct mem_job *job = &t->offloads[index];
    assert_true(index < t->offload_count && !job->applied);
    job->applied = true;
    for (size_t i = 0; i < job->count; i++) {
        struct mem_transfer *transfer = &job->transfers[i];
        const uint64_t *words = words_of(t, transfer->component);
        assert_int_equal(transfer->slot_count, transfer->key_count * t->page_size);
        for (size_t k = 0; k < transfer->key_count; k++) {
            struct mem_page *page =
                put(t->store, transfer->component, &transfer->keys[k]);
            for (uint32_t j = 0; j < t->page_size && words != NULL; j++)
                page->words[j] = words[transfer->slots[k * t->page_size + j]];
        }
    }
}

void mem_complete_offload(struct mem_transport *t, bool success)
{
    assert_true(t->offload_count != 0);
    if (success && !t->offloads[0].applied)
        mem_apply_offload(t, 0);
    clear_job(&t->offloads[0]);
    memmove(t->offloads, t->offloads + 1, --t->offload_count * sizeof(t->offloads[0]));
    t->done_offloads[t->done_offload_count++] = success;
}

static void spoil(struct mem_transport *t, const struct mem_job *job)
{
    for (size_t i = 0; i < job->count; i++) {
        uint64_t *words = words_of(t, job->transfers[i].component);
        for (size_t s = 0; s < job->transfers[i].slot_count && words != NULL; s++)
            words[job->transfers[i].slots[s]] = 0x5a5a5a5a5a5a5a5aull;
    }
}

void mem_complete_load(struct mem_transport *t, size_t index, bool success)
{
    struct mem_job *job = &t->loads[index];
    assert_true(index < t->load_count && job->started);
    for (size_t i = 0; i < job->count; i++) {
        struct mem_transfer *transfer = &job->transfers[i];
        uint64_t *words = words_of(t, transfer->component);
        assert_int_equal(transfer->slot_count, transfer->key_count * t->page_size);
        for (size_t k = 0; k < transfer->key_count && success; k++) {
            const struct mem_page *page =
                find(t->store, transfer->component, &transfer->keys[k]);
            success = page != NULL;
            for (uint32_t j = 0; j < t->page_size && words != NULL && success; j++)
                words[transfer->slots[k * t->page_size + j]] = page->words[j];
        }
    }
    if (!success)
        spoil(t, job);
    t->done_loads[t->done_load_count++] = (struct kvg_load_result){job->request, success};
    remove_load(t, index);
}

void mem_complete_loads(struct mem_transport *t, bool success)
{
    for (size_t i = t->load_count; i > 0; i--) {
        if (t->loads[i - 1].started)
            mem_complete_load(t, i - 1, success);
    }
}

void mem_complete_offloads(struct mem_transport *t, bool success)
{
    while (t->offload_count != 0)
        mem_complete_offload(t, success);
}
