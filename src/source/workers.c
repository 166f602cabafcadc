/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* workers.c -- the set of workers, resolved at every change (workers.h).
 *
 *     workers, by id            layouts, most used first     endpoints, most used first
 *     +----+---------------+    +-------+-----------+        +-------+-------------+
 *     | 3  | layout, endp. |--->| users | kvg_layout|   +--->| users | "tcp://..." |
 *     | 7  | layout, endp. |-\  +-------+-----------+   |    +-------+-------------+
 *     | 12 | error         |  \------- endpoint --------/    at most LISTED_MAX of them
 *     +----+---------------+
 *
 * A query needs the layouts and the endpoint, never the workers; so they are counted here as
 * workers come and go, and reading them costs nothing.  A worker beyond the LISTED_MAX different
 * endpoints keeps its own record, unlisted: they differ anyhow.
 *
 * Invariants, checked by kvi_workers_check():
 *
 *     W1  Workers are in strictly ascending order of id, at most KVG_WORKERS_MAX.
 *     W2  A worker has a layout or an error, never both and never neither.
 *     W3  The users of a layout, or endpoint, are the usable workers that point to it; at least 1.
 *     W4  No two layouts are equal, no two listed endpoints are.
 *     W5  Layouts and listed endpoints are in order: more users first, then the older.
 *     W6  An unlisted endpoint has one user, and there is one only if the list is full.
 *
 * Not here: JSON, files, HTTP (daemon); which worker a request goes to.
 */
#include "source/workers.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/fmt.h"

_Static_assert(KVG_WORKERS_LAYOUTS_MAX == KVI_LISTED_MAX, "one table serves both");

/* Workers ---------------------------------------------------------------------------------- */

/* Counts a usable worker's layout and endpoint. */
static void attach(struct kvg_workers *workers, struct kvi_worker *worker)
{
    if (worker->layout == NULL)
        return;
    workers->usable_count++;
    kvi_rows_enter(workers, &workers->layouts, worker->layout);
    if (worker->endpoint == NULL)
        return;
    if (worker->endpoint_listed) {
        kvi_rows_enter(workers, &workers->endpoints, worker->endpoint);
    } else {
        worker->endpoint->users = 1;
        workers->unlisted_count++;
    }
}

static void detach(struct kvg_workers *workers, struct kvi_worker *worker)
{
    if (worker->layout == NULL)
        return;
    workers->usable_count--;
    kvi_rows_leave(workers, &workers->layouts, worker->layout);
    if (worker->endpoint != NULL && worker->endpoint_listed) {
        kvi_rows_leave(workers, &workers->endpoints, worker->endpoint);
    } else if (worker->endpoint != NULL) {
        kvi_shared_free(workers->alloc, worker->endpoint);
        workers->unlisted_count--;
    }
    worker->layout = NULL;
    worker->endpoint = NULL;
}

/* Frees a worker that is not attached, with the rows that nobody else uses. */
static void worker_free(const struct kvg_alloc *alloc, struct kvi_worker *worker)
{
    if (worker == NULL)
        return;
    if (worker->layout != NULL && worker->layout->users == 0)
        kvi_shared_free(alloc, worker->layout);
    if (worker->endpoint != NULL && worker->endpoint->users == 0)
        kvi_shared_free(alloc, worker->endpoint);
    if (worker->error != NULL)
        KVI_FREE(alloc, worker->error);
    KVI_FREE(alloc, worker);
}

static struct kvi_worker *worker_new(
    const struct kvg_alloc *alloc, uint64_t id, struct kvg_str backend)
{
    struct kvi_worker *worker = KVI_NEW(alloc, struct kvi_worker);

    if (worker == NULL)
        return NULL;
    worker->id = id;
    if (backend.bytes != 0 && backend.bytes <= KVG_BACKEND_BYTES_MAX) {
        worker->backend_bytes = backend.bytes;
        memcpy(worker->backend, backend.data, backend.bytes);
    }
    return worker;
}

static bool same_error(const struct kvg_error *a, const struct kvg_error *b)
{
    if (a == NULL || b == NULL)
        return a == b;
    return a->code == b->code && kvi_str_equal(kvi_str(a->field), kvi_str(b->field)) &&
           kvi_str_equal(kvi_str(a->message), kvi_str(b->message));
}

static bool same_worker(const struct kvi_worker *a, const struct kvi_worker *b)
{
    return a->layout == b->layout &&
           kvi_str_equal(kvi_shared_text(a->endpoint), kvi_shared_text(b->endpoint)) &&
           kvi_str_equal((struct kvg_str){a->backend, a->backend_bytes},
               (struct kvg_str){b->backend, b->backend_bytes}) &&
           same_error(a->error, b->error);
}

/* Makes room for one more worker, if `id` is not in the set yet. */
static kvg_err reserve(
    struct kvg_workers *workers, const struct kvi_worker *old, struct kvg_error *error)
{
    size_t room = workers->worker_room * 2;
    void *moved = workers->workers;

    if (old != NULL || workers->worker_count < workers->worker_room)
        return KVG_OK;
    if (workers->worker_count >= KVG_WORKERS_MAX)
        return kvi_fail(
            error, KVG_ELIMIT, "workers", "there are 65536 workers already, the limit");
    if (room < 8)
        room = 8;
    if (!kvi_resize_array(workers->alloc, &moved, workers->worker_room, room,
            sizeof(workers->workers[0])))
        return kvi_fail(error, KVG_ENOMEM, "workers", kvg_strerror(KVG_ENOMEM));
    workers->workers = moved;
    workers->worker_room = room;
    return KVG_OK;
}

/* Puts `fresh` in the place of `old`, or adds it.  Cannot fail: there is room. */
static void put(
    struct kvg_workers *workers, struct kvi_worker *old, struct kvi_worker *fresh)
{
    size_t i = kvi_workers_lower_bound(workers, fresh->id);

    if (old != NULL && same_worker(old, fresh)) {
        worker_free(workers->alloc, fresh);
        return;
    }
    attach(
        workers, fresh); /* Before detach: a row they share must not be freed between. */
    if (old != NULL) {
        detach(workers, old);
        worker_free(workers->alloc, old);
    } else {
        memmove(&workers->workers[i + 1], &workers->workers[i],
            (workers->worker_count - i) * sizeof(workers->workers[0]));
        workers->worker_count++;
    }
    workers->workers[i] = fresh;
    kvi_rows_list_unlisted(workers);
    workers->generation++;
}
/* Adding a configuration ------------------------------------------------------------------- */

static bool is_endpoint(struct kvg_str text)
{
    size_t i;

    for (i = 0; i < text.bytes; i++)
        if ((unsigned char)text.data[i] <= ' ' || (unsigned char)text.data[i] == 0x7f)
            return false;
    return true;
}

static kvg_err check_endpoint(struct kvg_str text, struct kvg_error *error)
{
    if (text.bytes > KVG_ENDPOINT_BYTES_MAX)
        return kvi_fail(error, KVG_ELIMIT, "kv_events_endpoint",
            "kv_events_endpoint is longer than 255 bytes, the limit");
    if (!is_endpoint(text))
        return kvi_fail(error, KVG_EINVAL, "kv_events_endpoint",
            "kv_events_endpoint has a space or a control character in it");
    return KVG_OK;
}

static kvg_err check_config(
    const struct kvg_worker_config *config, struct kvg_error *error)
{
    if (config->backend.bytes > KVG_BACKEND_BYTES_MAX)
        return kvi_fail(
            error, KVG_ELIMIT, "backend", "backend is longer than 63 bytes, the limit");
    if (!kvi_str_equal(config->backend, kvi_str("mooncake")))
        return kvi_fail(error, KVG_EUNSUPPORTED, "backend",
            "backend is another one; only \"mooncake\" publishes what is followed here");
    return check_endpoint(config->kv_events_endpoint, error);
}

/* Gives `fresh` its layout: one that is known already, or a new one. */
static kvg_err take_layout(struct kvg_workers *workers, const struct kvi_worker *old,
    const struct kvg_worker_config *config, struct kvi_worker *fresh,
    struct kvg_error *error)
{
    const struct kvi_rows *layouts = &workers->layouts;
    bool makes_room = old != NULL && old->layout != NULL && old->layout->users == 1;
    struct kvg_layout *layout;
    kvg_err err = kvg_layout_new(workers->alloc, &config->layout, error, &layout);

    if (err != KVG_OK)
        return err;
    fresh->layout = kvi_rows_find_layout(layouts, layout);
    if (fresh->layout != NULL) {
        kvg_layout_free(layout);
        return KVG_OK;
    }
    if (layouts->count >= KVG_WORKERS_LAYOUTS_MAX && !makes_room) {
        kvg_layout_free(layout);
        return kvi_fail(error, KVG_ELIMIT, "layouts",
            "the workers have 64 different layouts already, the limit");
    }
    fresh->layout = kvi_shared_new(workers->alloc, layout, (struct kvg_str){NULL, 0});
    if (fresh->layout != NULL)
        return KVG_OK;
    kvg_layout_free(layout);
    return kvi_fail(error, KVG_ENOMEM, "layout", kvg_strerror(KVG_ENOMEM));
}

static kvg_err take_endpoint(struct kvg_workers *workers, struct kvg_str text,
    struct kvi_worker *fresh, struct kvg_error *error)
{
    struct kvi_rows *endpoints = &workers->endpoints;

    if (text.bytes == 0)
        return KVG_OK;
    fresh->endpoint = kvi_rows_find_endpoint(endpoints, text);
    fresh->endpoint_listed = fresh->endpoint != NULL || endpoints->count < KVI_LISTED_MAX;
    if (fresh->endpoint == NULL)
        fresh->endpoint = kvi_shared_new(workers->alloc, NULL, text);
    if (fresh->endpoint == NULL)
        return kvi_fail(
            error, KVG_ENOMEM, "kv_events_endpoint", kvg_strerror(KVG_ENOMEM));
    return KVG_OK;
}

/* Takes everything that needs memory; KVG_ENOMEM leaves `fresh` to be freed. */
static kvg_err fill_worker(struct kvg_workers *workers, const struct kvi_worker *old,
    const struct kvg_worker_config *config, struct kvi_worker *fresh,
    struct kvg_error *error)
{
    kvg_err err = check_config(config, error);

    if (err == KVG_OK)
        err = take_layout(workers, old, config, fresh, error);
    if (err == KVG_OK)
        err = take_endpoint(workers, config->kv_events_endpoint, fresh, error);
    return err;
}

/* Notes why a worker is unusable. */
static kvg_err spoil_worker(const struct kvg_alloc *alloc, struct kvi_worker *fresh,
    const struct kvg_error *error)
{
    fresh->error = KVI_NEW(alloc, struct kvg_error);
    if (fresh->error == NULL)
        return KVG_ENOMEM;
    *fresh->error = *error;
    fresh->error->field[sizeof(error->field) - 1] = '\0';
    fresh->error->message[sizeof(error->message) - 1] = '\0';
    if (fresh->error->code == KVG_OK)
        fresh->error->code = KVG_EINVAL;
    return KVG_OK;
}

kvg_err kvg_workers_set(struct kvg_workers *workers, uint64_t worker_id,
    const struct kvg_worker_config *config, struct kvg_error *error)
{
    struct kvi_worker *old = kvi_workers_find(workers, worker_id);
    struct kvg_error detail = {.code = KVG_OK};
    struct kvi_worker *fresh;
    kvg_err err;

    if (config->struct_bytes < sizeof(*config))
        return kvi_fail(error, KVG_EINVAL, "struct_bytes",
            "struct_bytes is not the size of struct kvg_worker_config");
    err = reserve(workers, old, error);
    if (err != KVG_OK)
        return err;
    fresh = worker_new(workers->alloc, worker_id, config->backend);
    if (fresh == NULL)
        return kvi_fail(error, KVG_ENOMEM, "workers", kvg_strerror(KVG_ENOMEM));
    err = fill_worker(workers, old, config, fresh, &detail);
    if (err != KVG_OK && err != KVG_ENOMEM &&
        spoil_worker(workers->alloc, fresh, &detail) != KVG_OK)
        err = KVG_ENOMEM;
    if (err == KVG_ENOMEM) {
        worker_free(workers->alloc, fresh);
        return kvi_fail(error, KVG_ENOMEM, "workers", kvg_strerror(KVG_ENOMEM));
    }
    put(workers, old, fresh);
    if (err != KVG_OK && error != NULL)
        *error = detail;
    return err;
}

kvg_err kvg_workers_set_bad(
    struct kvg_workers *workers, uint64_t worker_id, const struct kvg_error *error)
{
    struct kvi_worker *old = kvi_workers_find(workers, worker_id);
    struct kvi_worker *fresh;
    kvg_err err = reserve(workers, old, NULL);

    if (err != KVG_OK)
        return err;
    fresh = worker_new(workers->alloc, worker_id, (struct kvg_str){NULL, 0});
    if (fresh == NULL)
        return KVG_ENOMEM;
    err = spoil_worker(workers->alloc, fresh, error);
    if (err != KVG_OK) {
        worker_free(workers->alloc, fresh);
        return err;
    }
    put(workers, old, fresh);
    return KVG_OK;
}

bool kvg_workers_remove(struct kvg_workers *workers, uint64_t worker_id)
{
    struct kvi_worker *worker = kvi_workers_find(workers, worker_id);
    size_t i = kvi_workers_lower_bound(workers, worker_id);

    if (worker == NULL)
        return false;
    workers->worker_count--;
    memmove(&workers->workers[i], &workers->workers[i + 1],
        (workers->worker_count - i) * sizeof(workers->workers[0]));
    detach(workers, worker);
    worker_free(workers->alloc, worker);
    kvi_rows_list_unlisted(workers);
    workers->generation++;
    return true;
}

void kvg_workers_clear(struct kvg_workers *workers)
{
    if (workers->worker_count == 0)
        return;
    workers->generation++;
    while (workers->worker_count != 0) {
        struct kvi_worker *last = workers->workers[--workers->worker_count];

        detach(workers, last);
        worker_free(workers->alloc, last);
    }
}

kvg_err kvg_workers_override_endpoint(
    struct kvg_workers *workers, struct kvg_str endpoint)
{
    kvg_err err = check_endpoint(endpoint, NULL);
    struct kvg_str now = {workers->override_text, workers->override_bytes};

    if (err != KVG_OK)
        return err;
    if (kvi_str_equal(now, endpoint))
        return KVG_OK;
    if (endpoint.bytes != 0)
        memcpy(workers->override_text, endpoint.data, endpoint.bytes);
    workers->override_bytes = endpoint.bytes;
    workers->generation++;
    return KVG_OK;
}

/* Making --------------------------------------------------------------------------- */

kvg_err kvg_workers_new(const struct kvg_alloc *alloc, struct kvg_workers **out)
{
    *out = KVI_NEW(alloc, struct kvg_workers);
    if (*out == NULL)
        return KVG_ENOMEM;
    (*out)->alloc = alloc;
    return KVG_OK;
}

void kvg_workers_free(struct kvg_workers *workers)
{
    if (workers == NULL)
        return;
    kvg_workers_clear(workers);
    kvi_release_array(workers->alloc, workers->workers, workers->worker_room,
        sizeof(workers->workers[0]));
    KVI_FREE(workers->alloc, workers);
}
