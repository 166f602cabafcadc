/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* A stand-in for Mooncake's C library: its functions, its codes, and its misbehaviours.
 *
 *     handle ---+
 *     handle ---+--> one store a process: buckets of objects, a clock, faults asked for
 *     handle ---+
 *
 * As observed on the real one: a put of a key that is there writes nothing and says 0; existence
 * checks and reads renew leases; a leased object is not evicted; a full store says -200; an owner
 * that died leaves keys that exist and cannot be read (-800); a lease that ends during a read
 * makes that read fail (-707) after bytes arrived; an empty value is refused (-600).
 *
 * Zero-copy calls want a registered buffer, as the real one does: else -600.
 *
 * Threads: one mutex.  Not here: several replicas, segments, the network. */
#include "mooncake.h"

#include "backend/mooncake_library.h"

#include <pthread.h>
#include <regex.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default")))
#define BUCKETS 4096u
#define BUFFERS_MAX 256u

/* What kvgraft calls is what is defined here. */
#define DECLARE(result, name, parameters) result mooncake_store_##name parameters;
KVI_MOONCAKE_FUNCTIONS(DECLARE)

struct object {
    struct object *next; /* In its bucket. */
    char *key;
    unsigned char *value;
    size_t bytes;
    uint64_t lease_until; /* Evicted in this order. */
};

struct buffer {
    const unsigned char *start;
    size_t bytes;
};

static struct {
    struct object *buckets[BUCKETS];
    struct buffer buffers[BUFFERS_MAX];
    struct standin_stats stats;
    uint64_t now_ms, lease_ms, capacity, read_takes_ms, full_for, full_after, unfinished;
    int refuse_setup;
    bool owner_dead;
} store = {.lease_ms = 10000, .capacity = UINT64_MAX, .full_after = UINT64_MAX};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

struct handle {
    bool ready;
};

/* Objects ---------------------------------------------------------------------------------- */

static struct object **place_of(const char *key)
{
    uint64_t hash = UINT64_C(14695981039346656037);
    struct object **place;
    const char *at;

    for (at = key; *at != '\0'; at++)
        hash = (hash ^ (unsigned char)*at) * UINT64_C(1099511628211);
    place = &store.buckets[hash % BUCKETS];
    while (*place != NULL && strcmp((*place)->key, key) != 0)
        place = &(*place)->next;
    return place;
}

static void drop(struct object **place)
{
    struct object *object = *place;

    *place = object->next;
    store.stats.objects--;
    store.stats.bytes -= object->bytes;
    free(object->key);
    free(object->value);
    free(object);
}

static bool is_leased(const struct object *object)
{
    return object->lease_until > store.now_ms;
}

static void renew(struct object *object)
{
    object->lease_until = store.now_ms + store.lease_ms;
    store.stats.leases++;
}

/* The object without a lease whose lease ended first. */
static bool evict_one(void)
{
    struct object **victim = NULL;
    struct object **place;
    size_t i;

    for (i = 0; i < BUCKETS; i++) {
        for (place = &store.buckets[i]; *place != NULL; place = &(*place)->next) {
            if (!is_leased(*place) &&
                (victim == NULL || (*place)->lease_until < (*victim)->lease_until))
                victim = place;
        }
    }
    if (victim == NULL)
        return false;
    drop(victim);
    store.stats.evicted++;
    return true;
}

static int put_one(const char *key, const void *value, size_t bytes)
{
    struct object **place;
    struct object *object;

    store.stats.put_keys++;
    if (value == NULL || bytes == 0)
        return KVI_MOONCAKE_BAD_PARAMETER;
    if (store.full_after == 0)
        return KVI_MOONCAKE_NO_SPACE;
    store.full_after -= store.full_after != UINT64_MAX;
    if (store.full_for > 0) {
        store.full_for--;
        return KVI_MOONCAKE_NO_SPACE;
    }
    if (store.unfinished > 0) {
        store.unfinished--;
        return KVI_MOONCAKE_EXISTS;
    }
    if (*place_of(key) != NULL)
        return KVI_MOONCAKE_OK; /* What is there stays. */
    while (bytes > store.capacity || store.stats.bytes > store.capacity - bytes) {
        if (!evict_one())
            return KVI_MOONCAKE_NO_SPACE;
    }
    place = place_of(key);
    object = calloc(1, sizeof(*object));
    if (object == NULL)
        abort();
    object->key = strdup(key);
    object->value = malloc(bytes);
    if (object->key == NULL || object->value == NULL)
        abort();
    memcpy(object->value, value, bytes);
    object->bytes = bytes;
    object->lease_until = store.now_ms;
    *place = object;
    store.stats.objects++;
    store.stats.bytes += bytes;
    return KVI_MOONCAKE_OK;
}

static int64_t get_one(const char *key, void *buffer, size_t bytes)
{
    struct object *object = *place_of(key);

    store.stats.get_keys++;
    if (object == NULL)
        return KVI_MOONCAKE_NOT_FOUND;
    if (bytes < object->bytes)
        return KVI_MOONCAKE_BAD_PARAMETER;
    renew(object);
    if (store.owner_dead)
        return KVI_MOONCAKE_TRANSFER_FAILED;
    memcpy(buffer, object->value, object->bytes);
    store.now_ms += store.read_takes_ms;
    if (!is_leased(object) && store.read_takes_ms > 0) {
        memset(buffer, 0xee, object->bytes / 2); /* The memory is another's meanwhile. */
        return KVI_MOONCAKE_LEASE_EXPIRED;
    }
    return (int64_t)object->bytes;
}

static int exist_one(const char *key)
{
    struct object *object = *place_of(key);

    store.stats.exist_keys++;
    if (object == NULL)
        return 0;
    renew(object);
    return 1;
}

static bool is_registered(const void *start, size_t bytes)
{
    const unsigned char *at = start;
    size_t i;

    for (i = 0; i < BUFFERS_MAX; i++) {
        const struct buffer *buffer = &store.buffers[i];

        if (buffer->start != NULL && at >= buffer->start && bytes <= buffer->bytes &&
            (size_t)(at - buffer->start) <= buffer->bytes - bytes)
            return true;
    }
    return false;
}

/* The nineteen functions ------------------------------------------------------------------- */

API void *mooncake_store_create(void)
{
    struct handle *handle = calloc(1, sizeof(*handle));

    pthread_mutex_lock(&lock);
    store.stats.handles += handle != NULL;
    pthread_mutex_unlock(&lock);
    return handle;
}

API void mooncake_store_destroy(void *handle)
{
    if (handle == NULL)
        return;
    pthread_mutex_lock(&lock);
    store.stats.handles--;
    pthread_mutex_unlock(&lock);
    free(handle);
}

API int mooncake_store_setup(void *handle, const char *local_hostname,
    const char *metadata_server, uint64_t segment_bytes, uint64_t local_buffer_bytes,
    const char *protocol, const char *device_name, const char *master_address)
{
    int code;

    (void)local_hostname;
    (void)metadata_server;
    (void)segment_bytes;
    (void)local_buffer_bytes;
    (void)protocol;
    (void)device_name;
    (void)master_address;
    if (handle == NULL)
        return -1;
    pthread_mutex_lock(&lock);
    code = store.refuse_setup;
    pthread_mutex_unlock(&lock);
    ((struct handle *)handle)->ready = code == 0;
    return code;
}

API int mooncake_store_init_all(
    void *handle, const char *protocol, const char *device_name, uint64_t segment_bytes)
{
    return mooncake_store_setup(
        handle, NULL, NULL, segment_bytes, 0, protocol, device_name, NULL);
}

static bool is_ready(const void *handle)
{
    return handle != NULL && ((const struct handle *)handle)->ready;
}

API int mooncake_store_health_check(void *handle)
{
    return is_ready(handle) ? 0 : -1;
}

API int mooncake_store_put(void *handle, const char *key, const void *value, size_t bytes,
    const struct kvi_mooncake_config *config)
{
    int result;

    (void)config;
    if (!is_ready(handle) || key == NULL)
        return -1;
    pthread_mutex_lock(&lock);
    store.stats.put_calls++;
    result = put_one(key, value, bytes);
    pthread_mutex_unlock(&lock);
    return result;
}

API int mooncake_store_batch_put_from(void *handle, const char **keys, void **buffers,
    const size_t *sizes, size_t count, const struct kvi_mooncake_config *config,
    int *results)
{
    size_t i;

    (void)config;
    if (!is_ready(handle) || keys == NULL || results == NULL)
        return -1;
    pthread_mutex_lock(&lock);
    store.stats.put_calls++;
    for (i = 0; i < count; i++)
        results[i] = is_registered(buffers[i], sizes[i])
                         ? put_one(keys[i], buffers[i], sizes[i])
                         : KVI_MOONCAKE_BAD_PARAMETER;
    pthread_mutex_unlock(&lock);
    return 0;
}

API int mooncake_store_put_from(void *handle, const char *key, void *buffer, size_t bytes,
    const struct kvi_mooncake_config *config)
{
    int result;
    int code =
        mooncake_store_batch_put_from(handle, &key, &buffer, &bytes, 1, config, &result);

    return code != 0 ? code : result;
}

API int mooncake_store_batch_get_into(void *handle, const char **keys, void **buffers,
    const size_t *sizes, size_t count, int64_t *results)
{
    size_t i;

    if (!is_ready(handle) || keys == NULL || results == NULL)
        return -1;
    pthread_mutex_lock(&lock);
    store.stats.get_calls++;
    for (i = 0; i < count; i++)
        results[i] = is_registered(buffers[i], sizes[i])
                         ? get_one(keys[i], buffers[i], sizes[i])
                         : KVI_MOONCAKE_BAD_PARAMETER;
    pthread_mutex_unlock(&lock);
    return 0;
}

API int64_t mooncake_store_get_into(
    void *handle, const char *key, void *buffer, size_t bytes)
{
    int64_t result;
    int code = mooncake_store_batch_get_into(handle, &key, &buffer, &bytes, 1, &result);

    return code != 0 ? code : result;
}

API int mooncake_store_batch_is_exist(
    void *handle, const char **keys, size_t count, int *results)
{
    size_t i;

    if (!is_ready(handle) || keys == NULL || results == NULL)
        return -1;
    pthread_mutex_lock(&lock);
    store.stats.exist_calls++;
    for (i = 0; i < count; i++)
        results[i] = exist_one(keys[i]);
    pthread_mutex_unlock(&lock);
    return 0;
}

API int mooncake_store_is_exist(void *handle, const char *key)
{
    int result;
    int code = mooncake_store_batch_is_exist(handle, &key, 1, &result);

    return code != 0 ? code : result;
}

API int64_t mooncake_store_get_size(void *handle, const char *key)
{
    struct object *object;
    int64_t result;

    if (!is_ready(handle) || key == NULL)
        return -1;
    pthread_mutex_lock(&lock);
    object = *place_of(key);
    result = object == NULL ? KVI_MOONCAKE_NOT_FOUND : (int64_t)object->bytes;
    if (object != NULL)
        renew(object);
    pthread_mutex_unlock(&lock);
    return result;
}

API int mooncake_store_get_hostname(void *handle, char *out, size_t room)
{
    static const char NAME[] = "standin:1";

    if (!is_ready(handle) || out == NULL || room < sizeof(NAME))
        return -1;
    memcpy(out, NAME, sizeof(NAME));
    return 0;
}

API int mooncake_store_remove(void *handle, const char *key, int force)
{
    struct object **place;
    int result = KVI_MOONCAKE_OK;

    if (!is_ready(handle) || key == NULL)
        return -1;
    pthread_mutex_lock(&lock);
    place = place_of(key);
    if (*place == NULL)
        result = KVI_MOONCAKE_NOT_FOUND;
    else if (!force && is_leased(*place))
        result = KVI_MOONCAKE_LEASED;
    else
        drop(place);
    pthread_mutex_unlock(&lock);
    return result;
}

static int64_t remove_matching(const regex_t *pattern, int force)
{
    int64_t removed = 0;
    size_t i;

    for (i = 0; i < BUCKETS; i++) {
        struct object **place = &store.buckets[i];

        while (*place != NULL) {
            if ((pattern != NULL && regexec(pattern, (*place)->key, 0, NULL, 0) != 0) ||
                (!force && is_leased(*place))) {
                place = &(*place)->next;
            } else {
                drop(place);
                removed++;
            }
        }
    }
    return removed;
}

API int64_t mooncake_store_remove_by_regex(void *handle, const char *pattern, int force)
{
    regex_t compiled;
    int64_t removed;

    if (!is_ready(handle) || pattern == NULL ||
        regcomp(&compiled, pattern, REG_EXTENDED | REG_NOSUB) != 0)
        return -1;
    pthread_mutex_lock(&lock);
    removed = remove_matching(&compiled, force);
    pthread_mutex_unlock(&lock);
    regfree(&compiled);
    return removed;
}

API int64_t mooncake_store_remove_all(void *handle, int force)
{
    int64_t removed;

    if (!is_ready(handle))
        return -1;
    pthread_mutex_lock(&lock);
    removed = remove_matching(NULL, force);
    pthread_mutex_unlock(&lock);
    return removed;
}

API int mooncake_store_register_buffer(void *handle, void *start, size_t bytes)
{
    int result = KVI_MOONCAKE_BAD_PARAMETER;
    size_t i;

    if (!is_ready(handle) || start == NULL)
        return -1;
    pthread_mutex_lock(&lock);
    for (i = 0; i < BUFFERS_MAX && result != 0; i++) {
        if (store.buffers[i].start == NULL) {
            store.buffers[i] = (struct buffer){start, bytes};
            store.stats.registered++;
            result = 0;
        }
    }
    pthread_mutex_unlock(&lock);
    return result;
}

API int mooncake_store_unregister_buffer(void *handle, void *start)
{
    int result = KVI_MOONCAKE_BAD_PARAMETER;
    size_t i;

    if (!is_ready(handle) || start == NULL)
        return -1;
    pthread_mutex_lock(&lock);
    for (i = 0; i < BUFFERS_MAX && result != 0; i++) {
        if (store.buffers[i].start == start) {
            store.buffers[i].start = NULL;
            store.stats.registered--;
            result = 0;
        }
    }
    pthread_mutex_unlock(&lock);
    return result;
}

/* What a test may do to it ----------------------------------------------------------------- */

API void standin_reset(void)
{
    struct standin_stats stats;

    pthread_mutex_lock(&lock);
    remove_matching(NULL, 1);
    stats = (struct standin_stats){
        .registered = store.stats.registered, .handles = store.stats.handles};
    store.stats = stats;
    store.now_ms = 0;
    store.lease_ms = 10000;
    store.capacity = UINT64_MAX;
    store.read_takes_ms = 0;
    store.full_for = 0;
    store.unfinished = 0;
    store.full_after = UINT64_MAX;
    store.refuse_setup = 0;
    store.owner_dead = false;
    pthread_mutex_unlock(&lock);
}

static void set(uint64_t *place, uint64_t value)
{
    pthread_mutex_lock(&lock);
    *place = value;
    pthread_mutex_unlock(&lock);
}

API void standin_capacity(uint64_t bytes)
{
    set(&store.capacity, bytes);
}

API void standin_lease_ms(uint64_t lease_ms)
{
    set(&store.lease_ms, lease_ms);
}

API void standin_advance_ms(uint64_t ms)
{
    pthread_mutex_lock(&lock);
    store.now_ms += ms;
    pthread_mutex_unlock(&lock);
}

API void standin_read_takes_ms(uint64_t ms)
{
    set(&store.read_takes_ms, ms);
}

API void standin_owner_dead(int dead)
{
    pthread_mutex_lock(&lock);
    store.owner_dead = dead != 0;
    pthread_mutex_unlock(&lock);
}

API void standin_full_for(uint64_t puts)
{
    set(&store.full_for, puts);
}

API void standin_unfinished(uint64_t puts)
{
    set(&store.unfinished, puts);
}

API void standin_full_after(uint64_t puts)
{
    set(&store.full_after, puts);
}

API void standin_refuse_setup(int code)
{
    pthread_mutex_lock(&lock);
    store.refuse_setup = code;
    pthread_mutex_unlock(&lock);
}

API void standin_stats(struct standin_stats *out)
{
    pthread_mutex_lock(&lock);
    *out = store.stats;
    pthread_mutex_unlock(&lock);
}
