/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* demo_engine.h -- an engine of the demonstration: everything real but the model.
 *
 * Tree, slots, requests, linker and transport are the library's.  The model computes nothing: the
 * bytes of a page follow from its key, so that whoever finds a page, in its own memory or
 * in the store, can tell whether each of its bytes is right.
 *
 * What an engine holds on its device it publishes as a store does (demo_store.h), one object a
 * page, so that a router can ask which engine is the best for a prompt.
 *
 * Threads: one; the transport has its own.
 */
#ifndef KVC_DEMO_ENGINE_H
#define KVC_DEMO_ENGINE_H

#include "cli/demo_store.h"

#include <kvgraft/store.h>

struct kvc_engine;

struct kvc_engine_options {
    const struct kvg_layout *layout; /* Of the store. */
    struct kvg_store *store;         /* NULL: an engine on its own, without bytes. */
    uint32_t page_size;
    uint32_t tp_size;
    uint32_t layers;
    uint32_t slot_bytes; /* Of a token, layer, rank and k or v. */
    uint64_t slots;      /* Tokens on the device; also the longest prompt. */
};

struct kvc_served {
    uint64_t device_tokens; /* Were on the device. */
    uint64_t store_tokens;  /* Came from the store. */
    uint64_t bytes_verified;
    uint64_t bytes_wrong;
};

KVG_MUST_CHECK kvg_err kvc_engine_new(const struct kvc_engine_options *options,
    struct kvg_error *error, struct kvc_engine **out);
void kvc_engine_free(struct kvc_engine *engine);

/* What it publishes; NULL without a store. */
struct kvc_store *kvc_engine_published(struct kvc_engine *engine);

/* Serves a prompt of whole pages: matches, loads, verifies, computes the rest, writes it to the
 * store and waits for that.  `keys` are the pages' keys. */
KVG_MUST_CHECK kvg_err kvc_engine_serve(struct kvc_engine *engine, const uint32_t *tokens,
    const struct kvg_key *keys, uint32_t page_count, struct kvc_served *out,
    struct kvg_error *error);

/* Dies in the middle of a request: its work is dropped where it stands, its memory is rubbish.
 * Then it begins again, empty. */
KVG_MUST_CHECK kvg_err kvc_engine_kill(struct kvc_engine *engine, const uint32_t *tokens,
    const struct kvg_key *keys, uint32_t page_count, struct kvg_error *error);

#endif
