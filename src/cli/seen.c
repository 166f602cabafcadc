/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* seen.c -- sums over a stream (seen.h). */
#include "cli/seen.h"

#include <kvgraft/layout.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void kvc_names_add(struct kvc_names *names, struct kvg_str name)
{
    size_t bytes = name.bytes < KVC_NAME_BYTES ? name.bytes : KVC_NAME_BYTES - 1;
    unsigned i;

    for (i = 0; i < names->count; i++) {
        if (strlen(names->names[i]) == bytes &&
            memcmp(names->names[i], name.data, bytes) == 0) {
            names->seen[i]++;
            return;
        }
    }
    if (names->count == KVC_NAMES_MAX) {
        names->others++;
        return;
    }
    if (bytes > 0)
        memcpy(names->names[i], name.data, bytes);
    names->names[i][bytes] = '\0';
    names->seen[i] = 1;
    names->count++;
}

static void add_number(struct kvc_names *names, int64_t number)
{
    char text[24];
    int bytes = snprintf(text, sizeof(text), "%" PRId64, number);

    kvc_names_add(names, (struct kvg_str){text, (size_t)bytes});
}

enum kvc_step kvc_seen_sequence(struct kvc_seen *seen, uint64_t sequence)
{
    enum kvc_step step = KVC_STEP_NEXT;

    if (!seen->has_sequence) {
        seen->has_sequence = true;
        seen->first_sequence = sequence;
        step = KVC_STEP_FIRST;
    } else if (sequence == seen->last_sequence) {
        seen->duplicates++;
        step = KVC_STEP_DUPLICATE;
    } else if (sequence < seen->last_sequence) {
        seen->restarts++;
        step = KVC_STEP_RESTART;
    } else if (sequence - seen->last_sequence > 1) {
        seen->gaps++;
        seen->missed_sequences += sequence - seen->last_sequence - 1;
        step = KVC_STEP_GAP;
    }
    seen->last_sequence = sequence;
    return step;
}

static void add_object_key(struct kvc_seen *seen, struct kvg_str text)
{
    struct kvg_object_key object;

    if (!kvg_object_key_parse(text, &object)) {
        seen->foreign_keys++;
        return;
    }
    if (object.prefix.bytes > 0)
        kvc_names_add(&seen->prefixes, object.prefix);
    kvc_names_add(&seen->suffixes, object.suffix);
}

void kvc_seen_event(struct kvc_seen *seen, const struct kvg_event *event)
{
    seen->events[event->kind]++;
    seen->forms[event->form]++;
    seen->encodings[event->encoding]++;
    seen->media[event->medium]++;
    if (event->form == KVG_FORM_ENGINE)
        seen->blocks += event->block_hashes.count;
    if (event->has_block_size && event->block_size > 0)
        add_number(&seen->block_sizes, (int64_t)event->block_size);
    if (event->has_dp_rank)
        add_number(&seen->ranks, event->dp_rank);
    if (event->tenant_id.bytes > 0)
        kvc_names_add(&seen->tenants, event->tenant_id);
    if (event->backend_id.bytes > 0)
        kvc_names_add(&seen->backends, event->backend_id);
    if (event->model_name.bytes > 0)
        kvc_names_add(&seen->models, event->model_name);
    if (event->object_key.bytes > 0)
        add_object_key(seen, event->object_key);
}

const char *kvc_seen_dialect(const struct kvc_seen *seen)
{
    bool arrays = seen->encodings[KVG_ENCODING_ARRAY] > 0;
    bool maps = seen->encodings[KVG_ENCODING_MAP] > 0;

    if (seen->forms[KVG_FORM_OBJECT] > 0 && seen->forms[KVG_FORM_ENGINE] > 0)
        return "objects and blocks mixed: more than one publisher?";
    if (seen->forms[KVG_FORM_OBJECT] > 0)
        return arrays ? "store (objects), arrays" : "store (objects, Mooncake), maps";
    if (seen->forms[KVG_FORM_ENGINE] > 0)
        return arrays && maps ? "engine (blocks, vLLM or SGLang), arrays and maps"
               : arrays       ? "engine (blocks, vLLM or SGLang), arrays"
                              : "engine (blocks, vLLM or SGLang), maps";
    return "no event yet";
}
