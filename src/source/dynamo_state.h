/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* dynamo_state.h -- what the files of the profile "dynamo-1.5" share. */
#ifndef KVI_SOURCE_DYNAMO_STATE_H
#define KVI_SOURCE_DYNAMO_STATE_H

#include <kvgraft/dynamo.h>

#include "source/strings.h"

/* A layout as advertised; equal if every field is. */
struct kvi_dynamo_layout {
    uint32_t page_size;
    uint32_t tp_size;
    uint32_t pp_size;
    uint32_t tp_lcm_size; /* 0: absent. */
    bool mla;
    bool eagle;
    bool split_heads;
    bool has_tag; /* An empty tag is not an absent one where layouts are compared. */
    uint8_t backend_bytes;
    uint8_t tag_bytes;
    char backend[KVG_BACKEND_BYTES_MAX]; /* Zeroes behind the text, as in tag. */
    char tag[KVG_LAYOUT_PREFIX_BYTES_MAX];
};

struct kvi_dynamo_worker {
    uint64_t id;
    struct kvi_dynamo_layout layout;
    size_t endpoint_bytes;
    char endpoint[KVG_ENDPOINT_BYTES_MAX];
};

struct kvg_dynamo {
    const struct kvg_alloc *alloc;
    const struct kvg_log *log;
    size_t entries_max;

    struct kvi_dynamo_worker **workers; /* By id. */
    size_t worker_count;
    size_t worker_room;
    bool workers_changed; /* Since they were resolved. */
    size_t override_bytes;
    char override_text[KVG_ENDPOINT_BYTES_MAX];

    /* What the workers amount to. */
    bool resolved;
    struct kvi_dynamo_layout layout;
    struct kvg_str endpoint; /* Of a worker, or the override. */
    bool has_last_layout;
    struct kvi_dynamo_layout last_layout;

    struct kvi_strings keys;
    struct kvi_strings groups; /* value: generation; flag: verified. */
    bool has_sequence;
    uint64_t last_sequence;

    enum kvg_dynamo_state state;
    uint64_t deadline_ms;
    size_t stream_bytes;
    char stream_text[KVG_ENDPOINT_BYTES_MAX];

    struct kvg_dynamo_stats stats;
};

/* Resolves the workers if they changed.  False if there is no layout or no endpoint. */
bool kvi_dynamo_resolve(struct kvg_dynamo *dynamo);

void kvi_dynamo_log(
    const struct kvg_dynamo *dynamo, enum kvg_level level, const char *message);

/* The number of the first broken invariant (dynamo.c), or 0. */
int kvi_dynamo_check(const struct kvg_dynamo *dynamo);

/* Whether an object key is in the set; whether a group is, and verified.  For tests. */
bool kvi_dynamo_has_key(const struct kvg_dynamo *dynamo, struct kvg_str key);
bool kvi_dynamo_has_group(
    const struct kvg_dynamo *dynamo, struct kvg_str group, bool *verified_out);

#endif
