/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* source_rig.c -- see source_rig.h. */
#include "test.h"

#include "source_rig.h"

#include "base/fmt.h"
#include "source/state.h"

void rig_key(unsigned i, char out[RIG_KEY_BYTES + 1])
{
    snprintf(out, RIG_KEY_BYTES + 1, "%08x%056x_0_%c", (i / 2) * 2654435761u, i / 2,
        i % 2 == 0 ? 'k' : 'v');
}

void rig_init(struct rig *rig, const struct kvg_source_options *options)
{
    struct kvg_presence_options index_options = {
        .struct_bytes = sizeof(index_options), .seed = 1, .full_keys = true};
    struct kvg_source_options standard = {
        .struct_bytes = sizeof(standard), .has_admin = true, .seed = 1};

    memset(rig, 0, sizeof(*rig));
    fault_alloc_init(&rig->fault);
    rig->now_ms = 1000000;
    rig->timestamp_ms = INT64_C(1796096437984);
    CHECK_EQ(
        kvg_presence_new(&rig->fault.alloc, &index_options, NULL, &rig->index), KVG_OK);
    CHECK_EQ(kvg_source_new(&rig->fault.alloc, rig->index,
                 options == NULL ? &standard : options, rig->now_ms, &rig->source),
        KVG_OK);
    CHECK_EQ(kvg_event_writer_new(&rig->fault.alloc, KVG_DIALECT_MOONCAKE, &rig->writer),
        KVG_OK);
}

void rig_init_without_admin(struct rig *rig)
{
    struct kvg_source_options options = {.struct_bytes = sizeof(options), .seed = 1};

    rig_init(rig, &options);
}

void rig_end(struct rig *rig)
{
    free(rig->payload);
    kvg_event_writer_free(rig->writer);
    kvg_source_free(rig->source);
    kvg_presence_free(rig->index);
    CHECK_EQ(rig->fault.live_bytes, 0);
}

void rig_dialect(struct rig *rig, enum kvg_event_dialect dialect)
{
    kvg_event_writer_free(rig->writer);
    CHECK_EQ(kvg_event_writer_new(&rig->fault.alloc, dialect, &rig->writer), KVG_OK);
}

static void checked(struct rig *rig)
{
    CHECK_EQ(kvi_source_check(rig->source), 0);
}

/* Messages --------------------------------------------------------------------------------- */

void rig_begin(struct rig *rig)
{
    rig->timestamp_ms++;
    kvg_event_writer_begin(rig->writer, rig->timestamp_ms, true, 0);
}

void rig_add(struct rig *rig, const struct kvg_event *event)
{
    struct kvg_event full = *event;

    full.has_event_id = true;
    full.event_id = ++rig->event_id;
    full.has_timestamp = true;
    full.timestamp_ms = rig->timestamp_ms;
    kvg_event_writer_add(rig->writer, &full, NULL, 0, NULL, 0);
}

static void add_object(
    struct rig *rig, enum kvg_event_kind kind, const char *tenant, unsigned key)
{
    char text[RIG_KEY_BYTES + 1];
    struct kvg_event event = {
        .kind = kind,
        .form = KVG_FORM_OBJECT,
        .medium = KVG_MEDIUM_CPU,
        .medium_name = kvi_str("cpu"),
        .tenant_id = kvi_str(tenant),
        .backend_id = kvi_str("pool-a"),
    };

    rig_key(key, text);
    event.object_key = kvi_str(text);
    rig_add(rig, &event);
}

void rig_stored(struct rig *rig, const char *tenant, unsigned key)
{
    add_object(rig, KVG_EVENT_STORED, tenant, key);
}

void rig_removed(struct rig *rig, const char *tenant, unsigned key)
{
    add_object(rig, KVG_EVENT_REMOVED, tenant, key);
}

void rig_cleared(struct rig *rig, const char *tenant)
{
    struct kvg_event event = {
        .kind = KVG_EVENT_CLEARED,
        .form = KVG_FORM_OBJECT,
        .tenant_id = kvi_str(tenant),
        .backend_id = kvi_str("pool-a"),
    };

    rig_add(rig, &event);
}

static void send_payload(struct rig *rig, struct kvg_str payload)
{
    uint8_t number[8];
    struct kvg_str frames[3] = {{"", 0}, {(const char *)number, sizeof(number)}, payload};

    kvg_sequence_encode(rig->sequence, number);
    kvg_source_message(rig->source, frames, 3, rig->now_ms);
    checked(rig);
}

void rig_send_again(struct rig *rig)
{
    send_payload(rig, (struct kvg_str){rig->payload, rig->payload_bytes});
}

void rig_send(struct rig *rig)
{
    struct kvg_str payload;

    CHECK_EQ(kvg_event_writer_end(rig->writer, &payload), KVG_OK);
    free(rig->payload);
    rig->payload = malloc(payload.bytes);
    CHECK(rig->payload != NULL);
    memcpy(rig->payload, payload.data, payload.bytes);
    rig->payload_bytes = payload.bytes;
    rig->sequence++;
    rig_send_again(rig);
}

void rig_send_bytes(struct rig *rig, const void *bytes, size_t byte_count)
{
    rig->sequence++;
    send_payload(rig, (struct kvg_str){bytes, byte_count});
}

void rig_store(struct rig *rig, unsigned key)
{
    rig_begin(rig);
    rig_stored(rig, "default", key);
    rig_send(rig);
}

void rig_remove(struct rig *rig, unsigned key)
{
    rig_begin(rig);
    rig_removed(rig, "default", key);
    rig_send(rig);
}

/* Time and actions ------------------------------------------------------------------------- */

void rig_wait(struct rig *rig, uint64_t ms)
{
    uint64_t end_ms = rig->now_ms + ms;
    int spins = 0;

    for (;;) {
        uint64_t deadline = kvg_source_deadline_ms(rig->source);

        if (deadline > end_ms)
            break;
        spins = deadline > rig->now_ms ? 0 : spins + 1;
        CHECK(spins < 10000);
        if (deadline > rig->now_ms)
            rig->now_ms = deadline;
        kvg_source_tick(rig->source, rig->now_ms);
        checked(rig);
    }
    rig->now_ms = end_ms;
}

struct kvg_source_action rig_take(struct rig *rig, enum kvg_source_action_kind kind)
{
    struct kvg_source_action action;

    CHECK(kvg_source_next_action(rig->source, &action));
    CHECK_EQ(action.kind, kind);
    checked(rig);
    return action;
}

void rig_idle(struct rig *rig)
{
    struct kvg_source_action action;

    CHECK(!kvg_source_next_action(rig->source, &action));
}

void rig_status(struct rig *rig, uint64_t batches, uint64_t events, uint64_t dropped)
{
    struct kvg_source_action action = rig_take(rig, KVG_SOURCE_FETCH_STATUS);
    struct kvg_source_status status = {true, batches, events, dropped, 0};

    kvg_source_status_answer(rig->source, action.id, &status, rig->now_ms);
    checked(rig);
}

void rig_count(struct rig *rig, uint64_t keys)
{
    struct kvg_source_action action = rig_take(rig, KVG_SOURCE_FETCH_COUNT);

    kvg_source_count_answer(rig->source, action.id, keys, rig->now_ms);
    checked(rig);
}

void rig_list(struct rig *rig, unsigned first, unsigned end)
{
    struct kvg_source_action action = rig_take(rig, KVG_SOURCE_FETCH_LISTING);

    for (; first < end; first++) {
        char line[RIG_KEY_BYTES + 2];

        rig_key(first, line);
        memcpy(line + strlen(line), "\n", 2);
        kvg_source_listing_data(rig->source, action.id, kvi_str(line), rig->now_ms);
        checked(rig);
    }
    kvg_source_listing_done(rig->source, action.id, rig->now_ms);
    checked(rig);
}

/* Longer ways --------------------------------------------------------------------------------- */

void rig_follow(struct rig *rig)
{
    rig_init(rig, NULL);
    kvg_source_connected(rig->source, rig->now_ms);
    rig_status(rig, 0, 0, 0);
    rig_count(rig, 0);
    rig_wait(rig, KVI_STATUS_SPACING_MS);
    rig_status(rig, 0, 0, 0);
    CHECK_EQ(rig_reasons(rig), 0);
    CHECK_EQ(rig_confidence(rig), KVG_CONFIDENCE_FRESH);
}

void rig_repair(struct rig *rig, unsigned first, unsigned end)
{
    if (rig->source->listing.phase == KVI_LISTING_IDLE)
        rig_wait(rig, rig->source->listing.not_before_ms > rig->now_ms
                          ? rig->source->listing.not_before_ms - rig->now_ms
                          : 0);
    rig_wait(rig, KVI_STATUS_SPACING_MS);
    rig_status(rig, rig->sequence, rig->event_id, 0);
    rig_list(rig, first, end);
}

void rig_repair_with(struct rig *rig, uint64_t published, unsigned first, unsigned end)
{
    if (rig->source->listing.phase == KVI_LISTING_IDLE)
        rig_wait(rig, rig->source->listing.not_before_ms > rig->now_ms
                          ? rig->source->listing.not_before_ms - rig->now_ms
                          : 0);
    rig_wait(rig, KVI_STATUS_SPACING_MS);
    rig_status(rig, published, published, 0);
    rig_list(rig, first, end);
}

/* What it thinks --------------------------------------------------------------------------- */

struct kvg_source_stats rig_stats(const struct rig *rig)
{
    struct kvg_source_stats stats = {.struct_bytes = sizeof(stats)};

    kvg_source_stats(rig->source, &stats);
    return stats;
}

uint32_t rig_reasons(const struct rig *rig)
{
    return rig_stats(rig).reasons;
}

enum kvg_confidence rig_confidence(const struct rig *rig)
{
    return rig_stats(rig).confidence;
}

struct seek {
    struct kvg_str key;
    bool found;
};

static void on_object(
    void *context, struct kvg_str tenant, struct kvg_str key, enum kvg_medium medium)
{
    struct seek *seek = context;

    (void)medium;
    if (kvi_str_equal(tenant, kvi_str("default")) && kvi_str_equal(key, seek->key))
        seek->found = true;
}

bool rig_holds(struct rig *rig, unsigned key)
{
    char text[RIG_KEY_BYTES + 1];
    struct seek seek = {{NULL, 0}, false};

    rig_key(key, text);
    seek.key = kvi_str(text);
    kvg_presence_each(rig->index, on_object, &seek);
    return seek.found;
}

uint64_t rig_objects(const struct rig *rig)
{
    return kvi_source_objects(rig->source);
}
