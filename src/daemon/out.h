/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* out.h -- text that grows: JSON answers, metrics, log lines.  A failure sticks: append as you
 * like, ask at the end.  Threads: one at a time. */
#ifndef KVD_OUT_H
#define KVD_OUT_H

#include <kvgraft/base.h>

struct kvd_out {
    const struct kvg_alloc *alloc;
    char *data; /* Not terminated. */
    size_t bytes;
    size_t capacity_bytes;
    bool failed; /* A piece did not fit into memory. */
};

void kvd_out_init(struct kvd_out *out, const struct kvg_alloc *alloc);
void kvd_out_fini(struct kvd_out *out);
/* Empties it and forgets a failure; keeps the memory unless it is over `keep_bytes_max`. */
void kvd_out_reset(struct kvd_out *out, size_t keep_bytes_max);

void kvd_out_bytes(struct kvd_out *out, const char *data, size_t bytes);
void kvd_out_text(struct kvd_out *out, const char *text);
void kvd_out_str(struct kvd_out *out, struct kvg_str text);
void kvd_out_u64(struct kvd_out *out, uint64_t value);
void kvd_out_printf(struct kvd_out *out, const char *format, ...) KVG_PRINTF(2, 3);
/* A JSON string with its quotes.  Bytes that are not UTF-8 become U+FFFD. */
void kvd_out_json(struct kvd_out *out, struct kvg_str text);
/* A comma, unless an opening bracket, or nothing, is before it. */
void kvd_out_comma(struct kvd_out *out);
/* ,"name": with the comma left out after an opening bracket. */
void kvd_out_key(struct kvd_out *out, const char *name);

#endif
