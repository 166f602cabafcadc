/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* seed_stream.h -- messages as the seed client's tests send them, and its plain worker. */
#ifndef KVT_SEED_STREAM_H
#define KVT_SEED_STREAM_H

#include <kvgraft/workers.h>

#include "event/msgpack.h"

/* An event with the fields the seed client knows; a NULL is not sent. */
struct seed_event {
    const char *type;
    const char *object_key;
    const char *tenant; /* NULL sends "default". */
    const char *group;
};

/* Three frames and what they point to. */
struct seed_message {
    struct kvi_mp_buffer payload;
    uint8_t sequence[8];
    struct kvg_str frames[3];
};

void seed_message_init(struct seed_message *message, uint64_t sequence,
    const struct seed_event *events, size_t event_count);
/* The same around a payload of the test's own, written from JSON (event_samples.h). */
void seed_message_init_json(
    struct seed_message *message, uint64_t sequence, const char *json);
void seed_message_fini(struct seed_message *message);

/* mooncake, page 4, TP1, PP1, no MLA, no EAGLE, no tag, tcp://127.0.0.1:5557. */
struct kvg_worker_config seed_worker(void);

/* Of tokens 1 to 4 and 5 to 8. */
#define SEED_HASH0 "cf97adeedb59e05bfd73a2b4c2a8885708c4f4f70c84c64b27120e72ab733b72"
#define SEED_HASH1 "4ebfa8a1f3c341517621838c6e1b9aa350307e3f00b3cbd1a07ef740f54396d6"

#endif
