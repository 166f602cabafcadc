/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* workload.h -- prompts for the demonstration: generated from a seed, or out of a trace.
 *
 * Generated: conversations that grow.  Every prompt begins with the same system prompt (the
 * tokens 1 to KVC_SYSTEM_TOKENS); a conversation adds a question and the last answer at each
 * turn, so that its next prompt begins with its last one.
 *
 * Out of a trace: each block becomes one page of KVC_TRACE_BLOCK_TOKENS tokens that no other
 * block has; the last, partial block of a request counts as whole, as the trace counts it.
 *
 * The same seed gives the same prompts.  Threads: belongs to its caller.
 */
#ifndef KVC_WORKLOAD_H
#define KVC_WORKLOAD_H

#include "cli/trace.h"

#define KVC_SYSTEM_TOKENS 256u
#define KVC_WORKLOAD_PAGE 64u

struct kvc_workload;

struct kvc_workload_options {
    uint64_t seed;
    uint64_t request_max;   /* 0: all of the trace. */
    uint32_t conversations; /* Open at a time. */
    const char *trace_path; /* NULL: generated. */
};

struct kvc_prompt {
    const uint32_t *tokens; /* Until the next call. */
    size_t token_count;
    uint64_t conversation; /* 0 with a trace. */
};

KVG_MUST_CHECK kvg_err kvc_workload_new(const struct kvc_workload_options *options,
    struct kvg_error *error, struct kvc_workload **out);
void kvc_workload_free(struct kvc_workload *workload);

/* Tokens a page: what an engine that serves this workload would be set to. */
uint32_t kvc_workload_page_size(const struct kvc_workload *workload);

/* The next prompt.  KVG_OK with *got false at the end. */
KVG_MUST_CHECK kvg_err kvc_workload_next(struct kvc_workload *workload,
    struct kvc_prompt *out, bool *got, struct kvg_error *error);

#endif
