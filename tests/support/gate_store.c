/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* gate_store.c -- see gate_store.h. */
#include "gate_store.h"

#include "test.h"

#include <kvgraft/store_backend.h>

static struct gate *current;
static struct kvg_store *inner;
static const char *inner_at;

static bool pass(enum gate_call call, size_t keys, uint64_t *number)
{
    bool good;
    pthread_mutex_lock(&current->lock);
    *number = ++current->calls[call];
    current->keys[call] += keys;
    current->waiting++;
    pthread_cond_broadcast(&current->changed);
    while (current->held[call] != 0 && *number >= current->held[call] &&
           (current->held_to[call] == 0 || *number <= current->held_to[call]))
        pthread_cond_wait(&current->changed, &current->lock);
    current->waiting--;
    good = current->failing[call] != *number;
    pthread_mutex_unlock(&current->lock);
    return good;
}

static kvg_err gate_open_it(const struct kvg_store_url *url,
    const struct kvg_store_options *options, void **out, uint32_t *flags_out,
    struct kvg_error *error)
{
    (void)url;
    (void)options;
    kvg_err err = kvg_store_open(inner_at, NULL, &inner, error);
    *out = current;
    if (err == KVG_OK)
        *flags_out = kvg_store_flags(inner) & ~current->flags_off;
    return err;
}

static void gate_close_it(void *self)
{
    (void)self;
    kvg_store_close(inner);
}

static kvg_err gate_exists(void *self, const struct kvg_str *keys, size_t count,
    bool stop_at_gap, uint8_t *present, struct kvg_error *error)
{
    uint64_t number;
    (void)self;
    (void)stop_at_gap;
    if (!pass(GATE_EXISTS, count, &number))
        return KVG_EIO;
    return kvg_store_exists(inner, keys, count, present, NULL, error);
}

static kvg_err gate_put(
    void *self, struct kvg_store_group *groups, size_t count, struct kvg_error *error)
{
    uint64_t number;
    (void)self;
    bool good = pass(GATE_PUT, count, &number);
    pthread_mutex_lock(&current->lock);
    for (size_t i = 0; i < count && current->on_group != NULL; i++)
        current->on_group(current->context, &groups[i]);
    pthread_mutex_unlock(&current->lock);
    if (!good)
        return KVG_ENOSPACE;
    return kvg_store_put(inner, groups, count, error);
}

static kvg_err gate_get(
    void *self, struct kvg_store_get *gets, size_t count, struct kvg_error *error)
{
    uint64_t number;
    (void)self;
    if (!pass(GATE_GET, count, &number))
        return KVG_EIO;
    kvg_err err = kvg_store_get(inner, gets, count, error);
    if (current->wrong_size_of != 0 && number >= current->wrong_size_of)
        gets[count - 1].value_bytes++;
    return err;
}

static kvg_err gate_remove(void *self, const struct kvg_str *keys, size_t count,
    kvg_err *results, struct kvg_error *error)
{
    (void)self;
    return kvg_store_remove(inner, keys, count, results, error);
}

static const struct kvg_store_backend BACKEND = {.struct_bytes = sizeof(BACKEND),
    .version = KVG_STORE_BACKEND_VERSION,
    .flags = KVG_STORE_ATOMIC,
    .scheme = "gate",
    .summary = "a test's",
    .open = gate_open_it,
    .close = gate_close_it,
    .exists = gate_exists,
    .put = gate_put,
    .get = gate_get,
    .remove = gate_remove};
static const struct kvg_store_backend *const BACKENDS[] = {&BACKEND};

void gate_open(struct gate *gate, const char *inner_url)
{
    const struct kvg_store_registry registry = {
        sizeof(registry), BACKENDS, 1, kvg_store_builtin()};
    struct kvg_store_options options = {
        .struct_bytes = sizeof(options), .registry = &registry};
    struct kvg_error error;

    assert_true(current == NULL);
    current = gate;
    inner_at = inner_url;
    pthread_mutex_init(&gate->lock, NULL);
    pthread_cond_init(&gate->changed, NULL);
    if (kvg_store_open("gate:", &options, &gate->store, &error) != KVG_OK)
        fail_msg("%s: %s", error.field, error.message);
}

void gate_close(struct gate *gate)
{
    kvg_store_close(gate->store);
    pthread_cond_destroy(&gate->changed);
    pthread_mutex_destroy(&gate->lock);
    current = NULL;
}

void gate_hold(struct gate *gate, enum gate_call call, uint64_t from)
{
    pthread_mutex_lock(&gate->lock);
    gate->held[call] = from;
    pthread_mutex_unlock(&gate->lock);
}

void gate_release(struct gate *gate, enum gate_call call)
{
    pthread_mutex_lock(&gate->lock);
    gate->held[call] = 0;
    pthread_cond_broadcast(&gate->changed);
    pthread_mutex_unlock(&gate->lock);
}

void gate_wait(struct gate *gate, uint64_t waiting)
{
    pthread_mutex_lock(&gate->lock);
    while (gate->waiting < waiting)
        pthread_cond_wait(&gate->changed, &gate->lock);
    pthread_mutex_unlock(&gate->lock);
}
