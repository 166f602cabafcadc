/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* log.h -- log lines: one event a line, UTC, logfmt or JSON.
 *
 *     time=2026-12-01T04:25:00.123Z level=info component=source source=mooncake msg="gap ..."
 *
 * Never in a line: tokens, prompts, page keys of queries, the bearer token.  A line that repeats
 * more often than RATE_PER_TEN_SECONDS per component and level is left out, and the number of
 * those left out is said with the next line that is written.
 *
 * Threads: any.
 */
#ifndef KVD_LOG_H
#define KVD_LOG_H

#include "daemon/config.h"

struct kvd_log;

KVG_MUST_CHECK kvg_err kvd_log_new(const struct kvg_alloc *alloc,
    const struct kvd_config *config, struct kvg_error *error, struct kvd_log **out);
void kvd_log_free(struct kvd_log *log);
/* Takes level, format and file over and opens the file again. */
KVG_MUST_CHECK kvg_err kvd_log_reopen(
    struct kvd_log *log, const struct kvd_config *config, struct kvg_error *error);

void kvd_log(struct kvd_log *log, enum kvg_level level, const char *component,
    const char *source, const char *format, ...) KVG_PRINTF(5, 6);

/* The same as a struct kvg_log for the library: `bound` ties a source's name to it and must
 * outlive what logs. */
struct kvd_log_bound {
    struct kvd_log *log;
    const char *source;
    struct kvg_log as_log;
};
void kvd_log_bind(struct kvd_log_bound *bound, struct kvd_log *log, const char *source);

uint64_t kvd_log_suppressed(const struct kvd_log *log);

#endif
