/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

#include "test.h"

#include "default_client.h"

#include "base/fmt.h"

void client_init(struct default_client *client, bool has_admin, size_t memory_bytes_max)
{
    struct kvg_presence_options index_options = {.struct_bytes = sizeof(index_options),
        .memory_bytes_max = memory_bytes_max,
        .seed = 1};
    struct kvg_source_options options = {
        .struct_bytes = sizeof(options), .has_admin = has_admin, .seed = 2};

    memset(client, 0, sizeof(*client));
    fault_alloc_init(&client->fault);
    client->now_ms = 1000;
    CHECK_EQ(kvg_workers_new(&client->fault.alloc, &client->workers), KVG_OK);
    CHECK_EQ(kvg_presence_new(&client->fault.alloc, &index_options, NULL, &client->index),
        KVG_OK);
    CHECK_EQ(kvg_presence_reader_open(client->index, &client->reader), KVG_OK);
    CHECK_EQ(kvg_source_new(&client->fault.alloc, client->index, &options, client->now_ms,
                 &client->source),
        KVG_OK);
    kvg_source_connected(client->source, client->now_ms);
}

void client_fini(struct default_client *client)
{
    kvg_source_free(client->source);
    kvg_presence_reader_close(client->reader);
    kvg_presence_free(client->index);
    kvg_workers_free(client->workers);
    CHECK_EQ(client->fault.live_bytes, 0);
}

void client_set_worker(struct default_client *client, uint64_t worker_id,
    const struct kvg_worker_config *config)
{
    CHECK_EQ(kvg_workers_set(client->workers, worker_id, config, NULL), KVG_OK);
}

void client_send(struct default_client *client, uint64_t sequence,
    const struct seed_event *events, size_t event_count)
{
    struct seed_message message;

    seed_message_init(&message, sequence, events, event_count);
    kvg_source_message(client->source, message.frames, 3, ++client->now_ms);
    seed_message_fini(&message);
}

void client_send_json(struct default_client *client, uint64_t sequence, const char *json)
{
    struct seed_message message;

    seed_message_init_json(&message, sequence, json);
    kvg_source_message(client->source, message.frames, 3, ++client->now_ms);
    seed_message_fini(&message);
}

struct client_answer client_ask(struct default_client *client, size_t layout,
    size_t token_count, uint32_t start, const char *cache_salt, const char *tenant)
{
    const struct kvg_layout *asked = kvg_workers_layout(client->workers, layout);
    struct kvg_namespace space = {.cache_salt = kvi_str(cache_salt)};
    struct client_answer answer = {.lookup = {.start = start}};
    struct kvg_presence_view *view;
    struct kvg_page_rule rule;
    struct kvg_key keys[CLIENT_RANGES_MAX];
    struct kvg_key prior;
    uint32_t tokens[256];
    bool has_prior = kvg_namespace_prior(&space, &prior);
    uint32_t i;

    CHECK(asked != NULL && token_count <= 256);
    for (i = 0; i < token_count; i++)
        tokens[i] = i + 1;
    rule = kvg_layout_rule(asked);
    CHECK_EQ(kvg_presence_view_new(client->index, asked, kvi_str(tenant), NULL, &view),
        KVG_OK);
    answer.lookup.view = view;
    answer.lookup.keys = keys;
    answer.lookup.key_count = (uint32_t)kvg_page_keys(
        &rule, has_prior ? &prior : NULL, tokens, token_count, keys, CLIENT_RANGES_MAX);
    answer.lookup.ranges = answer.ranges;
    answer.lookup.range_max = CLIENT_RANGES_MAX;
    kvg_presence_lookup(client->reader, &answer.lookup, 1);
    kvg_presence_view_free(view);
    answer.lookup.view = NULL; /* What it pointed to is gone. */
    answer.lookup.keys = NULL;
    answer.lookup.ranges = NULL;
    return answer;
}

uint32_t client_hits(struct default_client *client, size_t token_count)
{
    return client_ask(client, 0, token_count, 0, NULL, NULL).lookup.total;
}

struct kvg_source_stats client_stats(const struct default_client *client)
{
    struct kvg_source_stats stats = {.struct_bytes = sizeof(stats)};

    kvg_source_stats(client->source, &stats);
    return stats;
}
