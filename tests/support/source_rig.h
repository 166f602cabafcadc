/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* source_rig.h -- a source with its index, a publisher's pen and a clock that is only a number.
 * Include test.h first. */
#ifndef KVT_SOURCE_RIG_H
#define KVT_SOURCE_RIG_H

#include "fault_alloc.h"

#include <kvgraft/source.h>

#define RIG_KEY_BYTES 68 /* Of rig_key(), with its zero, which the hex digits leave. */

struct rig {
    struct fault_alloc fault;
    struct kvg_presence *index;
    struct kvg_source *source;
    struct kvg_event_writer *writer;
    uint64_t now_ms;
    uint64_t sequence;    /* Of the message sent last. */
    uint64_t event_id;    /* Of the event written last. */
    int64_t timestamp_ms; /* The publisher's clock. */
    char *payload;        /* Of the message sent last. */
    size_t payload_bytes;
};

/* The object key number `i`. */
void rig_key(unsigned i, char out[RIG_KEY_BYTES + 1]);

/* A source with an admin port and the default options; `options` may be NULL. */
void rig_init(struct rig *rig, const struct kvg_source_options *options);
void rig_init_without_admin(struct rig *rig);
/* Frees everything and checks that nothing is left. */
void rig_end(struct rig *rig);

/* Another publisher's way of writing; that of the v0.3.12 master at first. */
void rig_dialect(struct rig *rig, enum kvg_event_dialect dialect);

/* Writing a message: begin, events, send.  Ids and numbers count up by themselves; set them
 * before to make a gap or a new life. */
void rig_begin(struct rig *rig);
void rig_stored(struct rig *rig, const char *tenant, unsigned key);
void rig_removed(struct rig *rig, const char *tenant, unsigned key);
void rig_cleared(struct rig *rig, const char *tenant);
void rig_add(struct rig *rig, const struct kvg_event *event);
/* With the next number; or again with the last one. */
void rig_send(struct rig *rig);
void rig_send_again(struct rig *rig);
/* A message of one event. */
void rig_store(struct rig *rig, unsigned key);
void rig_remove(struct rig *rig, unsigned key);
/* A message whose payload is these bytes, with the next number. */
void rig_send_bytes(struct rig *rig, const void *bytes, size_t byte_count);

/* Lets time pass, ticking when the source wants it. */
void rig_wait(struct rig *rig, uint64_t ms);

/* Takes the next action, which must be of that kind. */
struct kvg_source_action rig_take(struct rig *rig, enum kvg_source_action_kind kind);
/* There is no action. */
void rig_idle(struct rig *rig);

/* Takes the action and answers it. */
void rig_status(struct rig *rig, uint64_t batches, uint64_t events, uint64_t dropped);
void rig_count(struct rig *rig, uint64_t keys);
/* Keys [first, end), then the end. */
void rig_list(struct rig *rig, unsigned first, unsigned end);

/* A rig whose source follows a publisher from its first message and agrees with the store. */
void rig_follow(struct rig *rig);
/* Waits until a listing may begin, answers the status before it, and lists keys [first, end). */
void rig_repair(struct rig *rig, unsigned first, unsigned end);
/* The same, with a status of so many messages and events. */
void rig_repair_with(struct rig *rig, uint64_t published, unsigned first, unsigned end);

/* What it thinks. */
uint32_t rig_reasons(const struct rig *rig);
enum kvg_confidence rig_confidence(const struct rig *rig);
struct kvg_source_stats rig_stats(const struct rig *rig);
bool rig_holds(struct rig *rig, unsigned key);
uint64_t rig_objects(const struct rig *rig);

#endif
