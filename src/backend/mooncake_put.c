/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* mooncake_put.c -- writes pages into Mooncake's store.
 *
 *     group --> which parts are missing? --> gathered into a lane --> put --> all in? --> done
 *                                                                      | no: take away again
 *
 * The library knows no groups: parts appear one by one, and what a failed group wrote goes. */

#include "backend/mooncake.h"

#include "base/alloc.h"
#include "base/fmt.h"
#include "store/store.h"

#include <string.h>
#include <time.h>

#define SPACE_RETRY_MS 200u /* A watermark's eviction needs that long. */

/* Writing ----------------------------------------------------------------------------------- */

static void gather(const struct kvg_store_part *part, unsigned char *out)
{
    size_t i;

    for (i = 0; i < part->piece_count; i++) {
        if (part->pieces[i].bytes != 0)
            memcpy(out, part->pieces[i].data, part->pieces[i].bytes);
        out += part->pieces[i].bytes;
    }
}

static void sleep_ms(uint64_t ms)
{
    struct timespec time = {(time_t)(ms / 1000), (long)(ms % 1000) * 1000000};

    nanosleep(&time, NULL);
}

static void put_batch(struct mooncake *mooncake, struct batch *batch)
{
    int code = mooncake->library.batch_put_from(mooncake->handle, batch->keys,
        batch->buffers, batch->sizes, batch->count,
        mooncake->with_config ? &mooncake->config : NULL, batch->codes);
    size_t i;

    for (i = 0; code != 0 && i < batch->count; i++)
        batch->codes[i] = code;
}

/* Once more what found no space: eviction has begun meanwhile. */
static void put_with_patience(struct mooncake *mooncake, struct batch *batch)
{
    struct batch *again;
    size_t full = 0;
    size_t i;

    put_batch(mooncake, batch);
    for (i = 0; i < batch->count; i++)
        full += batch->codes[i] == KVI_MOONCAKE_NO_SPACE;
    if (full == 0)
        return;
    again = kvi_mooncake_batch_new(mooncake);
    if (again == NULL)
        return;
    for (i = 0; i < batch->count; i++) {
        if (batch->codes[i] != KVI_MOONCAKE_NO_SPACE)
            continue;
        again->keys[again->count] = batch->keys[i];
        again->buffers[again->count] = batch->buffers[i];
        again->sizes[again->count] = batch->sizes[i];
        again->which[again->count++] = i;
    }
    sleep_ms(SPACE_RETRY_MS);
    put_batch(mooncake, again);
    for (i = 0; i < again->count; i++)
        batch->codes[again->which[i]] = again->codes[i];
    KVI_FREE(mooncake->alloc, again);
}

/* Parts of a group that is being written. */
struct writing {
    struct kvg_store_group *group;
    uint8_t *skip;    /* Parts that are there, or come twice. */
    uint8_t *written; /* By this call: to be taken away if the group fails. */
    struct kvg_error *error;
};

static void take_results(struct writing *writing, struct batch *batch)
{
    size_t i;

    for (i = 0; i < batch->count; i++) {
        const struct kvg_store_part *part = &writing->group->parts[batch->which[i]];

        writing->written[batch->which[i]] = batch->codes[i] == 0;
        if (batch->codes[i] == 0 || writing->group->result != KVG_OK)
            continue;
        writing->group->result =
            kvi_mooncake_fail(writing->error, batch->codes[i], "put", part->key);
        if (writing->group->result == KVG_ENOENT || writing->group->result == KVG_OK)
            writing->group->result = KVG_EIO; /* An absence is no answer to a put. */
    }
    batch->count = 0;
}

/* Writes what is missing, a lane full at a time. */
static void write_missing(
    struct mooncake *mooncake, struct writing *writing, struct batch *batch)
{
    struct lane *lane = kvi_mooncake_lane_take(mooncake);
    size_t used = 0;
    size_t i;

    if (lane == NULL) {
        writing->group->result = kvi_fail(
            writing->error, KVG_ENOMEM, "store.mooncake", "no registered memory");
        return;
    }
    for (i = 0; i < writing->group->part_count && writing->group->result == KVG_OK; i++) {
        const struct kvg_store_part *part = &writing->group->parts[i];
        size_t bytes = (size_t)kvi_store_part_bytes(part);

        if (writing->skip[i])
            continue;
        if (batch->count == KVI_MOONCAKE_CHUNK_KEYS ||
            bytes > mooncake->lane_bytes - used) {
            put_with_patience(mooncake, batch);
            take_results(writing, batch);
            used = 0;
        }
        gather(part, lane->memory + used);
        batch->buffers[batch->count] = lane->memory + used;
        batch->sizes[batch->count] = bytes;
        kvi_mooncake_batch_add(batch, part->key, i);
        used += bytes;
    }
    if (batch->count != 0) {
        put_with_patience(mooncake, batch);
        take_results(writing, batch);
    }
    kvi_mooncake_lane_give(mooncake, lane);
}

static void take_away_written(struct mooncake *mooncake, const struct writing *writing)
{
    char text[KVI_MOONCAKE_TEXT_MAX];
    size_t i;

    for (i = 0; i < writing->group->part_count; i++) {
        struct kvg_str key = writing->group->parts[i].key;

        if (!writing->written[i])
            continue;
        kvi_mooncake_key_text(key, text);
        mooncake->library.remove(mooncake->handle, text, 1);
    }
}

/* Which parts are there already.  Those of which the index is sure are not asked for. */
static kvg_err find_present(struct mooncake *mooncake, const struct writing *writing,
    struct batch *batch, size_t *missing_out)
{
    const struct kvg_store_group *group = writing->group;
    struct kvg_str *keys =
        kvi_alloc_array(mooncake->alloc, group->part_count, sizeof(*keys));
    kvg_err err = KVG_OK;
    size_t i;
    size_t k;

    if (keys == NULL)
        return kvi_fail(writing->error, KVG_ENOMEM, "store", "no memory for keys");
    for (i = 0; i < group->part_count; i++)
        keys[i] = group->parts[i].key;
    for (i = 0; i < group->part_count && err == KVG_OK; i++) {
        if (mooncake->absent.is_absent == NULL ||
            !mooncake->absent.is_absent(mooncake->absent.context, keys[i]))
            kvi_mooncake_batch_add(batch, keys[i], i);
        if (err == KVG_OK && batch->count == KVI_MOONCAKE_CHUNK_KEYS)
            err = kvi_mooncake_ask(mooncake, batch, keys, writing->skip, writing->error);
    }
    if (err == KVG_OK)
        err = kvi_mooncake_ask(mooncake, batch, keys, writing->skip, writing->error);
    batch->count = 0;
    *missing_out = 0;
    for (i = 0; i < group->part_count && err == KVG_OK; i++) {
        for (k = 0; k < i && !writing->skip[i]; k++)
            writing->skip[i] = kvi_str_equal(keys[i], keys[k]);
        *missing_out += !writing->skip[i];
    }
    kvi_release_array(mooncake->alloc, keys, group->part_count, sizeof(*keys));
    return err;
}

static void put_group(struct mooncake *mooncake, struct kvg_store_group *group,
    struct batch *batch, struct kvg_error *error)
{
    size_t parts = group->part_count;
    size_t missing = 0;
    struct writing writing = {.group = group, .error = error};

    writing.skip = kvi_alloc_array(mooncake->alloc, parts, 2);
    if (writing.skip == NULL) {
        group->result = kvi_fail(error, KVG_ENOMEM, "store", "no memory for a group");
        return;
    }
    writing.written = writing.skip + parts;
    group->result = find_present(mooncake, &writing, batch, &missing);
    if (group->result == KVG_OK && missing == 0) {
        group->result = KVG_EEXIST;
    } else if (group->result == KVG_OK) {
        write_missing(mooncake, &writing, batch);
        if (group->result != KVG_OK)
            take_away_written(mooncake, &writing);
    }
    kvi_release_array(mooncake->alloc, writing.skip, parts, 2);
}

kvg_err kvi_mooncake_put(void *self, struct kvg_store_group *groups, size_t group_count,
    struct kvg_error *error)
{
    struct mooncake *mooncake = self;
    struct batch *batch = kvi_mooncake_batch_new(mooncake);
    size_t i;

    if (batch == NULL)
        return kvi_fail(error, KVG_ENOMEM, "store", "no memory for a batch");
    for (i = 0; i < group_count; i++)
        put_group(mooncake, &groups[i], batch, error);
    KVI_FREE(mooncake->alloc, batch);
    return KVG_OK;
}
