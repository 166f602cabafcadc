/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* demo.h -- the demonstration's own parts: what it is told, what it counts, how it asks. */
#ifndef KVC_DEMO_H
#define KVC_DEMO_H

#include "cli/cli.h"
#include "cli/demo_engine.h"
#include "cli/demo_store.h"
#include "cli/http.h"
#include "cli/workload.h"
#include "daemon/daemon.h"

#define KVC_ENGINES_MAX 15u /* Each is a source of the daemon, the store is one more. */

struct kvc_demo_options {
    struct kvc_common common;
    const char *trace;
    const char *listen;
    const char *store; /* URL; NULL: a new directory, removed at the end. */
    uint64_t requests;
    uint64_t conversations;
    uint64_t engines;
    uint64_t tp_size;
    uint64_t seed;
    uint64_t memory_bytes_max;
    bool kill;
    bool exit;
};

/* Where tokens came from. */
struct kvc_saved {
    uint64_t requests;
    uint64_t device_tokens;
    uint64_t store_tokens;
    uint64_t computed_tokens;
};

struct kvc_demo_counts {
    uint64_t requests;
    uint64_t pages;
    uint64_t shared;
    uint64_t tokens;
    uint64_t wrong;     /* Answers that are not the truth. */
    uint64_t not_fresh; /* Answers that said they are worth less than fresh. */
    uint64_t asked_ns;  /* Sum. */
    uint64_t took_ns;
    uint32_t *latencies_ns; /* One a request. */
    size_t latency_capacity;
    struct kvc_saved engines[KVC_ENGINES_MAX];
    struct kvc_saved all;
    struct kvc_saved round_robin; /* The same prompts, each to the next engine. */
    uint64_t routed_wrong;        /* Answers about an engine that are not the truth. */
    uint64_t bytes_verified;
    uint64_t bytes_wrong;
    uint64_t engines_killed;
    uint64_t publishers_killed;
    uint64_t recovery_ns; /* Until the answers were fresh again; the longest. */
};

struct kvc_demo {
    const struct kvc_demo_options *options;
    struct kvg_layout *layout;
    struct kvc_store *store; /* What the store says. */
    struct kvg_store *pages; /* The store. */
    char directory[64];      /* Of it, if it is ours; else "". */
    struct kvc_engine *engines[KVC_ENGINES_MAX];
    struct kvc_engine *others[KVC_ENGINES_MAX]; /* For round robin; they have no bytes. */
    uint64_t random;
    struct kvc_workload *workload;
    struct kvd_daemon *daemon;
    struct kvc_http *http;
    char url[64];
    struct kvg_key *keys;
    size_t key_capacity;
    struct kvg_page_memo *memo;
    struct kvc_demo_counts counts;
};

/* What the daemon answered about a prompt. */
struct kvc_demo_answer {
    uint32_t pages;      /* Whole pages of the prompt. */
    uint32_t contiguous; /* Of these, present from the start. */
    enum kvg_confidence confidence;
};
KVG_MUST_CHECK kvg_err kvc_demo_ask(struct kvc_demo *demo,
    const struct kvc_prompt *prompt, struct kvc_demo_answer *out,
    struct kvg_error *error);

/* How many leading pages an engine holds on its device, by the daemon. */
KVG_MUST_CHECK kvg_err kvc_demo_ask_engine(struct kvc_demo *demo, uint64_t engine,
    const struct kvg_key *keys, uint32_t key_count, uint32_t *held,
    struct kvg_error *error);

/* The name of an engine's source. */
#define KVC_SOURCE_BYTES 24u
const char *kvc_demo_source(uint64_t engine, char out[KVC_SOURCE_BYTES]);

/* Waits until the answers of a source (NULL: the store's) are fresh. */
KVG_MUST_CHECK kvg_err kvc_demo_wait_fresh(struct kvc_demo *demo, const char *source,
    struct kvc_store *published, struct kvg_error *error);

/* Opens the store and makes the engines. */
KVG_MUST_CHECK kvg_err kvc_demo_make_fleet(
    struct kvc_demo *demo, struct kvg_error *error);
void kvc_demo_free_fleet(struct kvc_demo *demo);

/* Serves a prompt of whole pages: asks where, goes there, waits for what it published. */
KVG_MUST_CHECK kvg_err kvc_demo_serve(struct kvc_demo *demo,
    const struct kvc_prompt *prompt, uint32_t page_count, uint32_t in_store,
    struct kvg_error *error);

/* Starts the daemon, which follows the store, and waits until its answers are fresh. */
KVG_MUST_CHECK kvg_err kvc_demo_start(struct kvc_demo *demo, struct kvg_error *error);

/* Prints what was counted and what to type next. */
void kvc_demo_report(struct kvc_demo *demo);

#endif
