/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* trace.h -- request traces of the FAST'25 form, read as a stream.
 *
 * One JSON object a line: {"timestamp": ms, "input_length": n, "output_length": n,
 * "hash_ids": [...]}.  A hash id names a block of 512 tokens and everything before it; the last
 * block of a request may be partial.  Other members are ignored.
 *
 * Memory: one line and one request, both bounded.  Errors name the line and what is wrong with
 * it; the reader can go on with the next line.  Threads: a reader belongs to its caller.
 */
#ifndef KVC_TRACE_H
#define KVC_TRACE_H

#include <kvgraft/base.h>

#define KVC_TRACE_BLOCK_TOKENS 512u
#define KVC_TRACE_LINE_BYTES_MAX (1u << 20)
#define KVC_TRACE_BLOCKS_MAX 65536u

struct kvc_trace_request {
    uint64_t timestamp_ms;
    uint64_t input_tokens;
    uint64_t output_tokens;
    const uint64_t *blocks; /* Until the next call. */
    size_t block_count;
};

struct kvc_trace;

/* Reads from `read`, which returns the bytes got, 0 at the end, or (size_t)-1 for an error. */
typedef size_t kvc_trace_read(void *context, char *bytes, size_t byte_max);
KVG_MUST_CHECK kvg_err kvc_trace_new(
    kvc_trace_read *read, void *context, struct kvc_trace **out);
/* A file, or stdin for "-". */
KVG_MUST_CHECK kvg_err kvc_trace_open(
    const char *path, struct kvg_error *error, struct kvc_trace **out);
void kvc_trace_free(struct kvc_trace *trace);

/* The next request.  KVG_OK with *got false at the end.  KVG_EFORMAT or KVG_ELIMIT for a bad
 * line, which is left behind: the next call reads the one after it. */
KVG_MUST_CHECK kvg_err kvc_trace_next(struct kvc_trace *trace,
    struct kvc_trace_request *out, bool *got, struct kvg_error *error);

/* The number of the line that was read last, from 1. */
uint64_t kvc_trace_line(const struct kvc_trace *trace);

#endif
