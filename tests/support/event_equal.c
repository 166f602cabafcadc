/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* event_equal.c -- comparing events (event_equal.h). */
#include "event_equal.h"

static bool same_str(struct kvg_str a, struct kvg_str b)
{
    return a.data == b.data && a.bytes == b.bytes;
}

static bool same_array(struct kvg_event_array a, struct kvg_event_array b)
{
    return a.data == b.data && a.bytes == b.bytes && a.count == b.count;
}

static bool same_numbers(const struct kvg_event *a, const struct kvg_event *b)
{
    return a->kind == b->kind && a->form == b->form && a->encoding == b->encoding &&
           a->medium == b->medium && a->every_medium == b->every_medium &&
           a->has_event_id == b->has_event_id && a->event_id == b->event_id &&
           a->has_timestamp == b->has_timestamp && a->timestamp_ms == b->timestamp_ms &&
           a->has_dp_rank == b->has_dp_rank && a->dp_rank == b->dp_rank &&
           a->has_block_size == b->has_block_size && a->block_size == b->block_size &&
           a->has_base_block_index == b->has_base_block_index &&
           a->base_block_index == b->base_block_index &&
           a->has_parent_hash == b->has_parent_hash && a->parent_hash == b->parent_hash &&
           a->has_group_index == b->has_group_index && a->group_index == b->group_index &&
           a->has_sliding_window == b->has_sliding_window &&
           a->sliding_window == b->sliding_window && a->has_lora_id == b->has_lora_id &&
           a->lora_id == b->lora_id && a->token_pairs == b->token_pairs;
}

bool event_equal(const struct kvg_event *a, const struct kvg_event *b)
{
    return same_numbers(a, b) && same_str(a->medium_name, b->medium_name) &&
           same_str(a->object_key, b->object_key) && same_str(a->group_id, b->group_id) &&
           same_str(a->tenant_id, b->tenant_id) &&
           same_str(a->backend_id, b->backend_id) &&
           same_str(a->model_name, b->model_name) &&
           same_str(a->lora_name, b->lora_name) && same_str(a->salt, b->salt) &&
           same_str(a->session_id, b->session_id) &&
           same_str(a->spec_kind, b->spec_kind) && same_str(a->locality, b->locality) &&
           same_str(a->source_kind, b->source_kind) &&
           same_array(a->block_hashes, b->block_hashes) &&
           same_array(a->token_ids, b->token_ids);
}
