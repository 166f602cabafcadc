/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* redis_ring.c -- which of several servers a key lives on.
 *
 * A ring of points, so many a server, decides; a server that is added takes its share from all the
 * others and nothing else moves.  What is hashed is the text in {} if there is some, else the last
 * 64 hex digits, else all of the key: so the parts of a page are on one server. */
#include "backend/redis.h"

#include "base/fmt.h"
#include "base/rng.h"

#include <stdio.h>
#include <string.h>

/* Which server ------------------------------------------------------------------------------ */

static bool is_hex(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

/* The part of a key that decides where it lives. */
static struct kvg_str routing_part(struct kvg_str key)
{
    const char *open = memchr(key.data, '{', key.bytes);
    size_t run = 0;
    size_t i;

    if (open != NULL) {
        size_t rest = key.bytes - (size_t)(open + 1 - key.data);
        const char *close = memchr(open + 1, '}', rest);

        if (close != NULL && close > open + 1)
            return (struct kvg_str){open + 1, (size_t)(close - open - 1)};
    }
    for (i = key.bytes; i > 0; i--) {
        run = is_hex(key.data[i - 1]) ? run + 1 : 0;
        if (run == 64)
            return (struct kvg_str){key.data + i - 1, 64};
    }
    return key;
}

static uint64_t hash_bytes(struct kvg_str text)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    size_t i;

    for (i = 0; i < text.bytes; i++)
        hash = (hash ^ (unsigned char)text.data[i]) * UINT64_C(0x100000001b3);
    return kvi_mix64(hash);
}

uint32_t kvi_redis_server_of(const struct redis *redis, struct kvg_str key)
{
    uint64_t hash;
    uint32_t low = 0;
    uint32_t high = redis->point_count;

    if (redis->server_count == 1)
        return 0;
    hash = hash_bytes(routing_part(key));
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;

        if (redis->points[middle].hash < hash)
            low = middle + 1;
        else
            high = middle;
    }
    return redis->points[low == redis->point_count ? 0 : low].server;
}

static int by_hash(const void *a, const void *b)
{
    uint64_t left = ((const struct point *)a)->hash;
    uint64_t right = ((const struct point *)b)->hash;

    return (left > right) - (left < right);
}

void kvi_redis_make_points(struct redis *redis)
{
    uint32_t server;
    uint32_t i;

    for (server = 0; server < redis->server_count; server++) {
        for (i = 0; i < KVI_REDIS_POINTS_EACH; i++) {
            char text[300];
            int bytes =
                snprintf(text, sizeof(text), "%s#%u", redis->servers[server].name, i);

            redis->points[redis->point_count++] =
                (struct point){hash_bytes((struct kvg_str){text, (size_t)bytes}), server};
        }
    }
    qsort(redis->points, redis->point_count, sizeof(*redis->points), by_hash);
}
