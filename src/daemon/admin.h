/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* admin.h -- what a Mooncake master answers on its admin port, read out of bytes.
 *
 * Threads: pure.
 */
#ifndef KVD_ADMIN_H
#define KVD_ADMIN_H

#include "daemon/out.h"

#include <kvgraft/source.h>

/* GET /kv_events/status */
KVG_MUST_CHECK kvg_err kvd_admin_status(
    struct kvg_str body, struct kvg_error *error, struct kvg_source_status *out);

/* GET /metrics: finds one sample, "master_key_count 7", in bytes that arrive cut anywhere. */
struct kvd_admin_count {
    char line[64]; /* The line so far; what is longer cannot be the one. */
    size_t line_bytes;
    bool found;
    uint64_t key_count;
};
void kvd_admin_count_init(struct kvd_admin_count *count);
void kvd_admin_count_feed(struct kvd_admin_count *count, struct kvg_str bytes);
/* Ends the last line.  KVG_EFORMAT if the sample was not there. */
KVG_MUST_CHECK kvg_err kvd_admin_count_end(
    struct kvd_admin_count *count, struct kvg_error *error);

#endif
