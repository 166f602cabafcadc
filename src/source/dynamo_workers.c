/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* dynamo_workers.c -- what workers amount to, for the profile "dynamo-1.5".
 *
 * One layout for all, or none: the first that differs switches everything off, and nothing is
 * cleared then.  A layout other than the last one seen clears everything.  The override wins
 * over all advertised endpoints; else those that advertise one must agree.
 *
 * The client works this out at every lookup.  Here it is worked out at the first lookup after a
 * change, which gives the same answers and the same clears.
 */
#include "source/dynamo_state.h"

#include "base/alloc.h"
#include "base/fmt.h"

#include <string.h>

static bool same_layout(
    const struct kvi_dynamo_layout *a, const struct kvi_dynamo_layout *b)
{
    return a->page_size == b->page_size && a->tp_size == b->tp_size &&
           a->pp_size == b->pp_size && a->tp_lcm_size == b->tp_lcm_size &&
           a->mla == b->mla && a->eagle == b->eagle && a->split_heads == b->split_heads &&
           a->has_tag == b->has_tag && a->backend_bytes == b->backend_bytes &&
           a->tag_bytes == b->tag_bytes &&
           memcmp(a->backend, b->backend, sizeof(a->backend)) == 0 &&
           memcmp(a->tag, b->tag, sizeof(a->tag)) == 0;
}

static bool all_layouts_same(const struct kvg_dynamo *dynamo)
{
    size_t i;

    for (i = 1; i < dynamo->worker_count; i++) {
        if (!same_layout(&dynamo->workers[0]->layout, &dynamo->workers[i]->layout))
            return false;
    }
    return true;
}

/* The endpoint of all who advertise one; absent if nobody does, or if they differ. */
static struct kvg_str advertised_endpoint(const struct kvg_dynamo *dynamo)
{
    struct kvg_str endpoint = {NULL, 0};
    size_t i;

    for (i = 0; i < dynamo->worker_count; i++) {
        const struct kvi_dynamo_worker *worker = dynamo->workers[i];
        struct kvg_str text = {worker->endpoint, worker->endpoint_bytes};

        if (text.bytes == 0)
            continue;
        if (endpoint.bytes != 0 && !kvi_str_equal(endpoint, text)) {
            kvi_dynamo_log(dynamo, KVG_LOG_WARN,
                "event endpoints differ across workers: lookups find nothing");
            return (struct kvg_str){NULL, 0};
        }
        endpoint = text;
    }
    return endpoint;
}

static void note_layout(struct kvg_dynamo *dynamo, const struct kvi_dynamo_layout *layout)
{
    if (dynamo->has_last_layout && same_layout(&dynamo->last_layout, layout))
        return;
    if (dynamo->has_last_layout) {
        kvg_dynamo_clear(dynamo);
        dynamo->stats.layout_clears++;
        kvi_dynamo_log(
            dynamo, KVG_LOG_WARN, "the layout changed: everything was cleared");
    }
    dynamo->has_last_layout = true;
    dynamo->last_layout = *layout;
}

bool kvi_dynamo_resolve(struct kvg_dynamo *dynamo)
{
    if (!dynamo->workers_changed)
        return dynamo->resolved;
    dynamo->workers_changed = false;
    dynamo->resolved = false;
    dynamo->endpoint = (struct kvg_str){NULL, 0};
    if (dynamo->worker_count == 0)
        return false;
    if (!all_layouts_same(dynamo)) {
        kvi_dynamo_log(
            dynamo, KVG_LOG_WARN, "layouts differ across workers: lookups find nothing");
        return false;
    }
    dynamo->layout = dynamo->workers[0]->layout;
    note_layout(dynamo, &dynamo->layout);
    if (dynamo->override_bytes != 0)
        dynamo->endpoint =
            (struct kvg_str){dynamo->override_text, dynamo->override_bytes};
    else
        dynamo->endpoint = advertised_endpoint(dynamo);
    dynamo->resolved = dynamo->endpoint.bytes != 0;
    return dynamo->resolved;
}

struct kvg_str kvg_dynamo_endpoint(struct kvg_dynamo *dynamo)
{
    kvi_dynamo_resolve(dynamo);
    return dynamo->endpoint;
}

static kvg_err check_config(
    const struct kvg_worker_config *config, struct kvg_error *error)
{
    if (config->struct_bytes < sizeof(*config))
        return kvi_fail(error, KVG_EINVAL, "struct_bytes",
            "struct_bytes is not the size of struct kvg_worker_config");
    if (config->backend.bytes > KVG_BACKEND_BYTES_MAX)
        return kvi_fail(
            error, KVG_ELIMIT, "backend", "backend is longer than 63 bytes, the limit");
    if (config->layout.tag.bytes > KVG_LAYOUT_PREFIX_BYTES_MAX)
        return kvi_fail(error, KVG_ELIMIT, "extra_backend_tag",
            "extra_backend_tag is longer than 255 bytes, the limit");
    if (config->kv_events_endpoint.bytes > KVG_ENDPOINT_BYTES_MAX)
        return kvi_fail(error, KVG_ELIMIT, "kv_events_endpoint",
            "kv_events_endpoint is longer than 255 bytes, the limit");
    return KVG_OK;
}

static void fill_worker(
    struct kvi_dynamo_worker *worker, uint64_t id, const struct kvg_worker_config *config)
{
    const struct kvg_layout_config *layout = &config->layout;

    *worker = (struct kvi_dynamo_worker){
        .id = id,
        .layout = {.page_size = layout->rule.page_size,
            .tp_size = layout->tp_size,
            .pp_size = layout->pp_size,
            .tp_lcm_size = layout->tp_lcm_size,
            .mla = layout->mla,
            .eagle = layout->rule.eagle,
            .split_heads = layout->split_heads,
            .has_tag = layout->tag.data != NULL,
            .backend_bytes = (uint8_t)config->backend.bytes,
            .tag_bytes = (uint8_t)layout->tag.bytes},
        .endpoint_bytes = config->kv_events_endpoint.bytes,
    };
    if (config->backend.bytes != 0)
        memcpy(worker->layout.backend, config->backend.data, config->backend.bytes);
    if (layout->tag.bytes != 0)
        memcpy(worker->layout.tag, layout->tag.data, layout->tag.bytes);
    if (config->kv_events_endpoint.bytes != 0)
        memcpy(worker->endpoint, config->kv_events_endpoint.data,
            config->kv_events_endpoint.bytes);
}

/* The place of the first worker whose id is at least `id`. */
static size_t lower_bound(const struct kvg_dynamo *dynamo, uint64_t id)
{
    size_t low = 0;
    size_t high = dynamo->worker_count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (dynamo->workers[middle]->id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static kvg_err reserve(struct kvg_dynamo *dynamo, struct kvg_error *error)
{
    size_t room = dynamo->worker_room == 0 ? 8 : dynamo->worker_room * 2;
    void *workers = dynamo->workers;

    if (dynamo->worker_count < dynamo->worker_room)
        return KVG_OK;
    if (dynamo->worker_count >= KVG_WORKERS_MAX)
        return kvi_fail(
            error, KVG_ELIMIT, "workers", "there are 65536 workers already, the limit");
    if (!kvi_resize_array(dynamo->alloc, &workers, dynamo->worker_room, room,
            sizeof(dynamo->workers[0])))
        return kvi_fail(error, KVG_ENOMEM, "workers", kvg_strerror(KVG_ENOMEM));
    dynamo->workers = workers;
    dynamo->worker_room = room;
    return KVG_OK;
}

kvg_err kvg_dynamo_set_worker(struct kvg_dynamo *dynamo, uint64_t worker_id,
    const struct kvg_worker_config *config, struct kvg_error *error)
{
    size_t i = lower_bound(dynamo, worker_id);
    struct kvi_dynamo_worker *worker;
    kvg_err err = check_config(config, error);

    if (err != KVG_OK)
        return err;
    if (i == dynamo->worker_count || dynamo->workers[i]->id != worker_id) {
        err = reserve(dynamo, error);
        if (err != KVG_OK)
            return err;
        worker = KVI_NEW(dynamo->alloc, struct kvi_dynamo_worker);
        if (worker == NULL)
            return kvi_fail(error, KVG_ENOMEM, "workers", kvg_strerror(KVG_ENOMEM));
        memmove(&dynamo->workers[i + 1], &dynamo->workers[i],
            (dynamo->worker_count - i) * sizeof(dynamo->workers[0]));
        dynamo->workers[i] = worker;
        dynamo->worker_count++;
    }
    fill_worker(dynamo->workers[i], worker_id, config);
    dynamo->workers_changed = true;
    return KVG_OK;
}

bool kvg_dynamo_remove_worker(struct kvg_dynamo *dynamo, uint64_t worker_id)
{
    size_t i = lower_bound(dynamo, worker_id);

    if (i == dynamo->worker_count || dynamo->workers[i]->id != worker_id)
        return false;
    KVI_FREE(dynamo->alloc, dynamo->workers[i]);
    dynamo->worker_count--;
    memmove(&dynamo->workers[i], &dynamo->workers[i + 1],
        (dynamo->worker_count - i) * sizeof(dynamo->workers[0]));
    dynamo->workers_changed = true;
    return true;
}
