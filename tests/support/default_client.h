/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* default_client.h -- what the seed client is, put together from the parts of the default
 * profile: workers, a source without admin port, the index, a view of what workers advertise.
 * Include test.h first. */
#ifndef KVT_DEFAULT_CLIENT_H
#define KVT_DEFAULT_CLIENT_H

#include "fault_alloc.h"
#include "seed_stream.h"

#include <kvgraft/source.h>

#define CLIENT_RANGES_MAX 64u

struct default_client {
    struct fault_alloc fault;
    struct kvg_workers *workers;
    struct kvg_presence *index;
    struct kvg_presence_reader *reader;
    struct kvg_source *source;
    uint64_t now_ms;
};

/* An answer, with its ranges. */
struct client_answer {
    struct kvg_lookup lookup;
    struct kvg_range ranges[CLIENT_RANGES_MAX];
};

/* Connected, nothing heard yet, no worker. */
void client_init(struct default_client *client, bool has_admin, size_t memory_bytes_max);
void client_fini(struct default_client *client);

void client_set_worker(struct default_client *client, uint64_t worker_id,
    const struct kvg_worker_config *config);
void client_send(struct default_client *client, uint64_t sequence,
    const struct seed_event *events, size_t event_count);
void client_send_json(struct default_client *client, uint64_t sequence, const char *json);

/* Asks for the first `token_count` of tokens 1, 2, 3, ... under layout number `layout` of the
 * workers, from page `start`; a namespace or a tenant may be NULL. */
struct client_answer client_ask(struct default_client *client, size_t layout,
    size_t token_count, uint32_t start, const char *cache_salt, const char *tenant);
/* The same in short: all hit pages of layout 0. */
uint32_t client_hits(struct default_client *client, size_t token_count);

struct kvg_source_stats client_stats(const struct default_client *client);

#endif
