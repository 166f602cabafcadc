/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* cli.h -- the commands, and the little they share.
 *
 * Rules of the command: results on stdout, everything else on stderr; --json prints objects and
 * nothing else; exit codes 0 fine, 1 failed, 2 used wrongly; colours and progress only on a
 * terminal; an error says what to change.
 */
#ifndef KVC_CLI_H
#define KVC_CLI_H

#include "cli/options.h"

#include <signal.h>

/* argv[0] of a command is its own name.  They return the exit code. */
int kvc_hash_main(int argc, char **argv);
int kvc_query_main(int argc, char **argv);
int kvc_watch_main(int argc, char **argv);
int kvc_publish_main(int argc, char **argv); /* `store publish`. */
int kvc_record_main(int argc, char **argv);
int kvc_replay_main(int argc, char **argv);
int kvc_demo_main(int argc, char **argv);
int kvc_store_main(int argc, char **argv);
int kvc_bench_main(int argc, char **argv);
int kvc_simulate_main(int argc, char **argv);

/* The program as it was called: what a person has to type. */
extern const char *kvc_program;

/* Ctrl-C and SIGTERM set `kvc_stopped`; a second one ends the process at once. */
extern volatile sig_atomic_t kvc_stopped;
void kvc_catch_signals(void);

/* Nanoseconds on the monotonic clock, and on the wall's. */
uint64_t kvc_now_ns(void);
int64_t kvc_wall_ms(void);

/* Sleeps for that long or until a signal; wakes at once when stopped. */
void kvc_sleep_ns(uint64_t duration_ns);

/* Terminal codes, or "" where they do not belong (a pipe, NO_COLOR, --no-color). */
struct kvc_style {
    const char *bold;
    const char *dim;
    const char *green;
    const char *yellow;
    const char *red;
    const char *end;
};
struct kvc_style kvc_style_of(const struct kvc_common *common, FILE *to);

/* One line that is rewritten, on stderr, if that is a terminal; at most ten times a second. */
struct kvc_progress {
    bool on;
    bool drawn;
    uint64_t next_ns;
};
void kvc_progress_init(struct kvc_progress *progress, const struct kvc_common *common);
void kvc_progress(struct kvc_progress *progress, const char *format, ...)
    KVG_PRINTF(2, 3);
void kvc_progress_clear(struct kvc_progress *progress);

/* 1234567 as "1,234,567"; bytes as "1.2 MiB"; nanoseconds as "12.3 µs".  Each returns `out`. */
#define KVC_NUMBER_BYTES 32
const char *kvc_count_text(uint64_t count, char out[KVC_NUMBER_BYTES]);
const char *kvc_bytes_text(uint64_t bytes, char out[KVC_NUMBER_BYTES]);
const char *kvc_time_text(double ns, char out[KVC_NUMBER_BYTES]);

/* A whole file, or stdin for "-"; a zero follows the bytes.  NULL, and *error filled, if it
 * cannot be read or has more than `bytes_max`.  Free it with free(). */
char *kvc_read_file(
    const char *path, size_t bytes_max, size_t *bytes_out, struct kvg_error *error);

#endif
