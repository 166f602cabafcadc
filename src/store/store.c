/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* store.c -- the checks that stand before every backend.
 *
 *     caller --> kvg_store_put() --> limits, arguments --> backend->put() --> results, counters
 *
 * So a backend sees valid calls only, and every backend refuses the same things with the same
 * words.  What a call over many keys returns is made of its results here, too.
 *
 * Threads: any.  The store itself changes nothing but its counters, which are atomic. */
#include "store/store.h"

#include "base/assert.h"
#include "base/fmt.h"

#include <string.h>

#define EXISTS_CHUNK 512u

static void count(_Atomic uint64_t *counter, uint64_t by)
{
    atomic_fetch_add_explicit(counter, by, memory_order_relaxed);
}

/* ---- What every call checks ---------------------------------------------------------------- */

static kvg_err refuse(struct kvg_store *store, kvg_err err)
{
    count(&store->counters.refused, 1);
    return err;
}

static kvg_err check_key(struct kvg_str key, const char *field, struct kvg_error *error)
{
    if (key.data == NULL || key.bytes == 0 || key.bytes > KVG_STORE_KEY_MAX)
        return kvi_fail_range(
            error, field, key.data == NULL ? 0 : key.bytes, 1, KVG_STORE_KEY_MAX);
    return KVG_OK;
}

static kvg_err check_keys(
    const struct kvg_str *keys, size_t key_count, struct kvg_error *error)
{
    size_t i;

    if (key_count > KVG_STORE_BATCH_MAX)
        return kvi_fail_range(
            error, "store.batch.keys", key_count, 0, KVG_STORE_BATCH_MAX);
    for (i = 0; i < key_count; i++) {
        kvg_err err = check_key(keys[i], "store.key.bytes", error);

        if (err != KVG_OK)
            return err;
    }
    return KVG_OK;
}

static kvg_err check_writable(struct kvg_store *store, struct kvg_error *error)
{
    if (!store->read_only)
        return KVG_OK;
    return kvi_fail(error, KVG_ESTATE, "store", "the store was opened for reading only");
}

static kvg_err unsupported(
    struct kvg_store *store, const char *what, struct kvg_error *error)
{
    char message[96];
    struct kvi_text text;

    kvi_text_init(&text, message, sizeof(message));
    kvi_text_str(&text, store->backend->scheme);
    kvi_text_str(&text, ": cannot ");
    kvi_text_str(&text, what);
    return kvi_fail(error, KVG_EUNSUPPORTED, "store", message);
}

/* Is a result one that makes the whole call fail? */
static bool is_failure(kvg_err result)
{
    return result != KVG_OK && result != KVG_ENOENT && result != KVG_EEXIST;
}

/* Words for a failure that the backend left without. */
static kvg_err describe(
    kvg_err err, struct kvg_str key, const char *call, struct kvg_error *error)
{
    char message[192];
    struct kvi_text text;

    if (error == NULL || error->code == err)
        return err;
    kvi_text_init(&text, message, sizeof(message));
    kvi_text_str(&text, call);
    kvi_text_str(&text, ": ");
    kvi_text_str(&text, kvg_strerror(err));
    kvi_text_str(&text, ", key ");
    kvi_text_bytes(&text, (struct kvg_str){key.data, key.bytes < 96 ? key.bytes : 96});
    return kvi_fail(error, err, "store", message);
}

static void clear_error(struct kvg_error *error)
{
    if (error != NULL)
        error->code = KVG_OK;
}

/* ---- Asking -------------------------------------------------------------------------------- */

static kvg_err exists_leading(struct kvg_store *store, const struct kvg_str *keys,
    size_t key_count, size_t *leading, struct kvg_error *error)
{
    uint8_t present[EXISTS_CHUNK];
    size_t done = 0;

    *leading = 0;
    while (done < key_count) {
        size_t chunk = key_count - done < EXISTS_CHUNK ? key_count - done : EXISTS_CHUNK;
        kvg_err err;
        size_t i;

        memset(present, 0, chunk);
        err =
            store->backend->exists(store->self, keys + done, chunk, true, present, error);
        if (err != KVG_OK)
            return describe(err, keys[done], "exists", error);
        for (i = 0; i < chunk && present[i] != 0; i++)
            continue;
        count(&store->counters.exists_hits, i);
        *leading = done + i;
        if (i < chunk)
            return KVG_OK;
        done += chunk;
    }
    return KVG_OK;
}

static kvg_err exists_each(struct kvg_store *store, const struct kvg_str *keys,
    size_t key_count, uint8_t *present, size_t *leading, struct kvg_error *error)
{
    size_t hits = 0;
    size_t i;
    kvg_err err =
        store->backend->exists(store->self, keys, key_count, false, present, error);

    if (err != KVG_OK) {
        memset(present, 0, key_count);
        return describe(err, keys[0], "exists", error);
    }
    *leading = key_count;
    for (i = 0; i < key_count; i++) {
        present[i] = present[i] != 0;
        hits += present[i];
        if (present[i] == 0 && *leading == key_count)
            *leading = i;
    }
    count(&store->counters.exists_hits, hits);
    return KVG_OK;
}

kvg_err kvg_store_exists(struct kvg_store *store, const struct kvg_str *keys,
    size_t key_count, uint8_t *present, size_t *leading_out, struct kvg_error *error)
{
    size_t leading = 0;
    kvg_err err = check_keys(keys, key_count, error);

    if (leading_out != NULL)
        *leading_out = 0;
    if (present != NULL && key_count <= KVG_STORE_BATCH_MAX)
        memset(present, 0, key_count);
    if (err != KVG_OK)
        return refuse(store, err);
    if (key_count == 0)
        return KVG_OK;
    clear_error(error);
    count(&store->counters.exists_keys, key_count);
    err = present == NULL ? exists_leading(store, keys, key_count, &leading, error)
                          : exists_each(store, keys, key_count, present, &leading, error);
    if (leading_out != NULL && err == KVG_OK)
        *leading_out = leading;
    return err;
}

/* ---- Writing ------------------------------------------------------------------------------- */

static kvg_err check_part(const struct kvg_store_part *part, struct kvg_error *error)
{
    uint64_t bytes = 0;
    size_t i;
    kvg_err err = check_key(part->key, "store.key.bytes", error);

    if (err != KVG_OK)
        return err;
    if (part->piece_count > KVG_STORE_PIECES_MAX)
        return kvi_fail_range(
            error, "store.part.pieces", part->piece_count, 1, KVG_STORE_PIECES_MAX);
    for (i = 0; i < part->piece_count; i++) {
        if (part->pieces[i].bytes > KVG_STORE_VALUE_MAX - bytes) {
            bytes = KVG_STORE_VALUE_MAX + 1;
            break;
        }
        if (part->pieces[i].data == NULL && part->pieces[i].bytes > 0)
            return kvi_fail(error, KVG_EINVAL, "store.part.pieces", "a piece is NULL");
        bytes += part->pieces[i].bytes;
    }
    if (bytes == 0 || bytes > KVG_STORE_VALUE_MAX)
        return kvi_fail_range(error, "store.value.bytes", bytes, 1, KVG_STORE_VALUE_MAX);
    return KVG_OK;
}

static kvg_err check_group(const struct kvg_store_group *group, struct kvg_error *error)
{
    kvg_err err = KVG_OK;
    size_t i;

    if (group->part_count == 0 || group->part_count > KVG_STORE_GROUP_PARTS_MAX)
        return kvi_fail_range(
            error, "store.group.parts", group->part_count, 1, KVG_STORE_GROUP_PARTS_MAX);
    if (group->id.bytes > KVG_STORE_GROUP_ID_MAX)
        return kvi_fail_range(
            error, "store.group.id.bytes", group->id.bytes, 0, KVG_STORE_GROUP_ID_MAX);
    if (group->previous.data != NULL)
        err = check_key(group->previous, "store.group.previous.bytes", error);
    for (i = 0; i < group->part_count && err == KVG_OK; i++)
        err = check_part(&group->parts[i], error);
    return err;
}

static kvg_err check_groups(
    const struct kvg_store_group *groups, size_t group_count, struct kvg_error *error)
{
    size_t parts = 0;
    size_t i;

    if (group_count > KVG_STORE_BATCH_MAX)
        return kvi_fail_range(
            error, "store.batch.groups", group_count, 0, KVG_STORE_BATCH_MAX);
    for (i = 0; i < group_count; i++) {
        kvg_err err = check_group(&groups[i], error);

        if (err != KVG_OK)
            return err;
        parts += groups[i].part_count;
    }
    if (parts > KVG_STORE_BATCH_MAX)
        return kvi_fail_range(error, "store.batch.parts", parts, 0, KVG_STORE_BATCH_MAX);
    return KVG_OK;
}

static void set_group_results(
    struct kvg_store_group *groups, size_t group_count, kvg_err result)
{
    size_t i;

    for (i = 0; i < group_count && i < KVG_STORE_BATCH_MAX; i++)
        groups[i].result = result;
}

kvg_err kvg_store_put(struct kvg_store *store, struct kvg_store_group *groups,
    size_t group_count, struct kvg_error *error)
{
    kvg_err err = check_writable(store, error);
    kvg_err first = KVG_OK;
    size_t which = 0;
    size_t i;

    if (err == KVG_OK)
        err = check_groups(groups, group_count, error);
    set_group_results(groups, group_count, err);
    if (err != KVG_OK)
        return refuse(store, err);
    if (group_count == 0)
        return KVG_OK;
    clear_error(error);
    err = store->backend->put(store->self, groups, group_count, error);
    for (i = 0; i < group_count && groups[i].result == KVG_OK; i++)
        continue;
    if (err != KVG_OK && i == group_count)
        set_group_results(groups, group_count, err);
    for (i = 0; i < group_count; i++) {
        if (groups[i].result == KVG_OK)
            count(&store->counters.put_groups, 1);
        if (is_failure(groups[i].result)) {
            count(&store->counters.put_failed, 1);
            which = first == KVG_OK ? i : which;
            first = first == KVG_OK ? groups[i].result : first;
        }
    }
    if (first == KVG_OK)
        return KVG_OK;
    return describe(first, groups[which].parts[0].key, "put", error);
}

/* ---- Reading ------------------------------------------------------------------------------- */

static kvg_err check_get(const struct kvg_store_get *get, struct kvg_error *error)
{
    size_t i;
    kvg_err err = check_key(get->key, "store.key.bytes", error);

    if (err != KVG_OK)
        return err;
    if (get->range_count > KVG_STORE_PIECES_MAX)
        return kvi_fail_range(
            error, "store.get.ranges", get->range_count, 0, KVG_STORE_PIECES_MAX);
    for (i = 0; i < get->range_count; i++) {
        if (get->ranges[i].memory == NULL && get->ranges[i].bytes > 0)
            return kvi_fail(error, KVG_EINVAL, "store.get.ranges", "a range is NULL");
    }
    return KVG_OK;
}

/* Counts results, and returns the index of the first failure; get_count if there is none. */
static size_t count_gets(
    struct kvg_store *store, struct kvg_store_get *gets, size_t get_count)
{
    size_t first = get_count;
    size_t i;

    for (i = 0; i < get_count; i++) {
        uint64_t bytes = 0;
        size_t r;

        if (gets[i].result != KVG_OK)
            gets[i].value_bytes = 0;
        if (is_failure(gets[i].result)) {
            count(&store->counters.get_failed, 1);
            if (gets[i].result == KVG_ECHECKSUM)
                count(&store->counters.checksum_failures, 1);
            first = first == get_count ? i : first;
        }
        if (gets[i].result != KVG_OK)
            continue;
        for (r = 0; r < gets[i].range_count; r++)
            bytes += gets[i].ranges[r].bytes;
        count(&store->counters.get_hits, 1);
        count(&store->counters.get_bytes, bytes);
    }
    return first;
}

kvg_err kvg_store_get(struct kvg_store *store, struct kvg_store_get *gets,
    size_t get_count, struct kvg_error *error)
{
    kvg_err err = KVG_OK;
    size_t i;

    if (get_count > KVG_STORE_BATCH_MAX)
        err =
            kvi_fail_range(error, "store.batch.keys", get_count, 0, KVG_STORE_BATCH_MAX);
    for (i = 0; i < get_count && err == KVG_OK; i++)
        err = check_get(&gets[i], error);
    for (i = 0; i < get_count && i < KVG_STORE_BATCH_MAX; i++) {
        gets[i].result = err;
        gets[i].value_bytes = 0;
    }
    if (err != KVG_OK)
        return refuse(store, err);
    if (get_count == 0)
        return KVG_OK;
    clear_error(error);
    count(&store->counters.get_keys, get_count);
    err = store->backend->get(store->self, gets, get_count, error);
    for (i = 0; i < get_count && gets[i].result == KVG_OK; i++)
        continue;
    if (err != KVG_OK && i == get_count) {
        for (i = 0; i < get_count; i++)
            gets[i].result = err;
    }
    i = count_gets(store, gets, get_count);
    return i == get_count ? KVG_OK : describe(gets[i].result, gets[i].key, "get", error);
}

/* ---- Removing ------------------------------------------------------------------------------ */

static kvg_err remove_chunk(struct kvg_store *store, const struct kvg_str *keys,
    size_t key_count, kvg_err *results, struct kvg_error *error)
{
    kvg_err first = KVG_OK;
    size_t which = 0;
    size_t i;
    kvg_err err = store->backend->remove(store->self, keys, key_count, results, error);

    for (i = 0; i < key_count && results[i] == KVG_OK; i++)
        continue;
    for (i = i == key_count ? 0 : key_count; err != KVG_OK && i < key_count; i++)
        results[i] = err;
    for (i = 0; i < key_count; i++) {
        if (results[i] == KVG_OK)
            count(&store->counters.removed, 1);
        if (first == KVG_OK && is_failure(results[i])) {
            first = results[i];
            which = i;
        }
    }
    return first == KVG_OK ? KVG_OK : describe(first, keys[which], "remove", error);
}

kvg_err kvg_store_remove(struct kvg_store *store, const struct kvg_str *keys,
    size_t key_count, kvg_err *results, struct kvg_error *error)
{
    kvg_err scratch[64];
    kvg_err err = check_writable(store, error);
    kvg_err first;
    size_t done;
    size_t i;

    if (err == KVG_OK)
        err = check_keys(keys, key_count, error);
    for (i = 0; results != NULL && i < key_count && i < KVG_STORE_BATCH_MAX; i++)
        results[i] = err;
    if (err != KVG_OK)
        return refuse(store, err);
    if (key_count == 0)
        return KVG_OK;
    clear_error(error);
    if (results != NULL)
        return remove_chunk(store, keys, key_count, results, error);
    first = KVG_OK;
    for (done = 0; done < key_count; done += sizeof(scratch) / sizeof(scratch[0])) {
        size_t chunk = key_count - done;

        if (chunk > sizeof(scratch) / sizeof(scratch[0]))
            chunk = sizeof(scratch) / sizeof(scratch[0]);
        for (i = 0; i < chunk; i++)
            scratch[i] = KVG_OK;
        err = remove_chunk(
            store, keys + done, chunk, scratch, first == KVG_OK ? error : NULL);
        first = first == KVG_OK ? err : first;
    }
    return first;
}

kvg_err kvg_store_clear(struct kvg_store *store, struct kvg_error *error)
{
    kvg_err err = check_writable(store, error);

    if (err != KVG_OK)
        return refuse(store, err);
    if (store->backend->clear == NULL)
        return unsupported(store, "be cleared", error);
    clear_error(error);
    err = store->backend->clear(store->self, error);
    return err == KVG_OK ? err : describe(err, kvi_str("(all)"), "clear", error);
}

/* ---- The rest ------------------------------------------------------------------------------ */

kvg_err kvg_store_list(struct kvg_store *store, struct kvg_store_cursor *cursor,
    size_t item_max, bool (*visit)(void *context, const struct kvg_store_item *item),
    void *context, struct kvg_error *error)
{
    kvg_err err;

    if (item_max == 0)
        return refuse(
            store, kvi_fail_range(error, "store.list.item_max", item_max, 1, SIZE_MAX));
    if (store->backend->list == NULL || (store->flags & KVG_STORE_LISTS) == 0)
        return unsupported(store, "list its objects", error);
    if (cursor->done)
        return KVG_OK;
    clear_error(error);
    err = store->backend->list(store->self, cursor, item_max, visit, context, error);
    return err == KVG_OK ? err : describe(err, kvi_str("(all)"), "list", error);
}

kvg_err kvg_store_flush(struct kvg_store *store, struct kvg_error *error)
{
    kvg_err err;

    clear_error(error);
    if (store->backend->flush == NULL)
        return KVG_OK;
    err = store->backend->flush(store->self, error);
    return err == KVG_OK ? err : describe(err, kvi_str("(all)"), "flush", error);
}

kvg_err kvg_store_poll(struct kvg_store *store, struct kvg_error *error)
{
    kvg_err err;

    clear_error(error);
    if (store->backend->poll == NULL)
        return KVG_OK;
    err = store->backend->poll(store->self, error);
    return err == KVG_OK ? err : describe(err, kvi_str("(all)"), "poll", error);
}

void kvg_store_stats(struct kvg_store *store, struct kvg_store_stats *out)
{
    KVI_ASSERT(out->struct_bytes == sizeof(*out));
    *out = (struct kvg_store_stats){.struct_bytes = sizeof(*out)};
#define COUNTER(name) \
    out->name = atomic_load_explicit(&store->counters.name, memory_order_relaxed);
    KVG_STORE_COUNTED(COUNTER)
#undef COUNTER
    if (store->backend->stats != NULL)
        store->backend->stats(store->self, out);
}

kvg_err kvg_store_check(struct kvg_store *store, bool repair,
    void (*say)(void *context, const char *line), void *context,
    struct kvg_store_report *out, struct kvg_error *error)
{
    kvg_err err = repair ? check_writable(store, error) : KVG_OK;

    KVI_ASSERT(out->struct_bytes == sizeof(*out));
    *out = (struct kvg_store_report){.struct_bytes = sizeof(*out)};
    if (err != KVG_OK)
        return refuse(store, err);
    if (store->backend->check == NULL)
        return unsupported(store, "check itself", error);
    clear_error(error);
    err = store->backend->check(store->self, repair, say, context, out, error);
    return err == KVG_OK ? err : describe(err, kvi_str("(all)"), "check", error);
}
