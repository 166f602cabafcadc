/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

#include "seed_stream.h"

#include "base/fmt.h"
#include "event_samples.h"
#include "test.h"

static void frame(struct seed_message *message, uint64_t sequence)
{
    int i;

    for (i = 0; i < 8; i++)
        message->sequence[i] = (uint8_t)(sequence >> (8 * (7 - i)));
    CHECK_EQ(message->payload.err, KVG_OK);
    message->frames[0] = (struct kvg_str){"", 0};
    message->frames[1] = (struct kvg_str){(const char *)message->sequence, 8};
    message->frames[2] =
        (struct kvg_str){(const char *)message->payload.data, message->payload.bytes};
}

static void put_pair(struct kvi_mp_buffer *buffer, const char *name, const char *value)
{
    kvi_mp_put_str(buffer, kvi_str(name));
    if (value == NULL)
        kvi_mp_put_nil(buffer);
    else
        kvi_mp_put_str(buffer, kvi_str(value));
}

void seed_message_init(struct seed_message *message, uint64_t sequence,
    const struct seed_event *events, size_t event_count)
{
    struct kvi_mp_buffer *buffer = &message->payload;
    size_t i;

    kvi_mp_buffer_init(buffer, kvg_alloc_default());
    kvi_mp_put_array(buffer, 3);
    kvi_mp_put_int(buffer, 0);
    kvi_mp_put_array(buffer, event_count);
    for (i = 0; i < event_count; i++) {
        kvi_mp_put_map(buffer, 4);
        put_pair(buffer, "event_type", events[i].type);
        put_pair(buffer, "object_key", events[i].object_key);
        put_pair(
            buffer, "tenant_id", events[i].tenant == NULL ? "default" : events[i].tenant);
        put_pair(buffer, "group_id", events[i].group);
    }
    kvi_mp_put_uint(buffer, 0);
    frame(message, sequence);
}

void seed_message_init_json(
    struct seed_message *message, uint64_t sequence, const char *json)
{
    kvi_mp_buffer_init(&message->payload, kvg_alloc_default());
    sample_json(&message->payload, json);
    frame(message, sequence);
}

void seed_message_fini(struct seed_message *message)
{
    kvi_mp_buffer_fini(&message->payload);
}

struct kvg_worker_config seed_worker(void)
{
    return (struct kvg_worker_config){
        .struct_bytes = sizeof(struct kvg_worker_config),
        .backend = kvi_str("mooncake"),
        .layout = {.struct_bytes = sizeof(struct kvg_layout_config),
            .rule = {4, false},
            .tp_size = 1,
            .pp_size = 1},
        .kv_events_endpoint = kvi_str("tcp://127.0.0.1:5557"),
    };
}
