/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* demo.h -- the demonstration's own parts: what it is told, what it counts, how it asks. */
#ifndef KVC_DEMO_H
#define KVC_DEMO_H

#include "cli/cli.h"
#include "cli/demo_store.h"
#include "cli/http.h"
#include "cli/workload.h"
#include "daemon/daemon.h"

#define KVC_ENGINES_MAX 64u

struct kvc_demo_options {
    struct kvc_common common;
    const char *trace;
    const char *listen;
    uint64_t requests;
    uint64_t conversations;
    uint64_t engines;
    uint64_t tp_size;
    uint64_t seed;
    uint64_t memory_bytes_max;
    bool exit;
};

struct kvc_engine {
    uint64_t requests;
    uint64_t pages_loaded; /* Out of the store instead of being computed. */
    uint64_t pages_computed;
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
    struct kvc_engine engines[KVC_ENGINES_MAX];
};

struct kvc_demo {
    const struct kvc_demo_options *options;
    struct kvg_layout *layout;
    struct kvc_store *store;
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

/* Starts the daemon, which follows the store, and waits until its answers are fresh. */
KVG_MUST_CHECK kvg_err kvc_demo_start(struct kvc_demo *demo, struct kvg_error *error);

/* Prints what was counted and what to type next. */
void kvc_demo_report(struct kvc_demo *demo);

#endif
