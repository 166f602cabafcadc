/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* admin.c -- reading the answers of a Mooncake master's admin port. */
#include "daemon/admin.h"

#include "base/fmt.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#define COUNT_SAMPLE "master_key_count "

static bool get_count(const json_t *root, const char *name, uint64_t *out)
{
    const json_t *value = json_object_get(root, name);

    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return false;
    *out = (uint64_t)json_integer_value(value);
    return true;
}

kvg_err kvd_admin_status(
    struct kvg_str body, struct kvg_error *error, struct kvg_source_status *out)
{
    json_t *root = json_loadb(body.data, body.bytes, 0, NULL);
    const json_t *enabled = json_object_get(root, "enabled");
    kvg_err err = KVG_OK;

    memset(out, 0, sizeof(*out));
    if (!json_is_boolean(enabled) ||
        !get_count(root, "published_batches", &out->published_batches) ||
        !get_count(root, "published_events", &out->published_events) ||
        !get_count(root, "dropped_events", &out->dropped_events))
        err = kvi_fail(error, KVG_EFORMAT, "/kv_events/status",
            "lacks enabled, published_batches, published_events or dropped_events");
    else
        out->enabled = json_is_true(enabled);
    if (!get_count(root, "epoch", &out->epoch))
        out->epoch = 0;
    json_decref(root);
    return err;
}

void kvd_admin_count_init(struct kvd_admin_count *count)
{
    memset(count, 0, sizeof(*count));
}

/* "master_key_count 7", maybe with a fraction of zeros or a time stamp behind. */
static void take_line(struct kvd_admin_count *count)
{
    size_t prefix_bytes = sizeof(COUNT_SAMPLE) - 1;
    uint64_t value = 0;
    size_t i;

    if (count->line_bytes <= prefix_bytes || count->line_bytes > sizeof(count->line) ||
        memcmp(count->line, COUNT_SAMPLE, prefix_bytes) != 0)
        return;
    for (i = prefix_bytes;
         i < count->line_bytes && count->line[i] >= '0' && count->line[i] <= '9'; i++) {
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, (uint64_t)(count->line[i] - '0'), &value))
            return;
    }
    if (i == prefix_bytes ||
        (i < count->line_bytes && strchr(". \r", count->line[i]) == NULL))
        return;
    count->found = true;
    count->key_count = value;
}

void kvd_admin_count_feed(struct kvd_admin_count *count, struct kvg_str bytes)
{
    for (size_t i = 0; i < bytes.bytes; i++) {
        if (bytes.data[i] == '\n') {
            take_line(count);
            count->line_bytes = 0;
        } else if (count->line_bytes < sizeof(count->line)) {
            count->line[count->line_bytes++] = bytes.data[i];
        } else {
            count->line_bytes = sizeof(count->line) + 1;
        }
    }
}

kvg_err kvd_admin_count_end(struct kvd_admin_count *count, struct kvg_error *error)
{
    take_line(count);
    count->line_bytes = 0;
    if (count->found)
        return KVG_OK;
    return kvi_fail(error, KVG_EFORMAT, "/metrics",
        "has no master_key_count: is this a Mooncake master's admin port?");
}
