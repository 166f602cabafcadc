/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* daemon.h -- `kvgraft serve`, as a program and as an object that can be embedded.
 *
 *     struct kvd_config config;
 *     kvd_config_init(&config);
 *     kvd_config_set(&config, "http.listen", "127.0.0.1:0", &error);
 *     kvd_config_add_source(&config, "store", "tcp://127.0.0.1:5557", NULL);
 *     kvd_daemon_new(&config, &error, &daemon);
 *     kvd_daemon_start(daemon, &error);       threads run, the port is open
 *     kvd_daemon_port(daemon);
 *     kvd_daemon_stop(daemon);                drains, dumps, joins every thread
 *     kvd_daemon_free(daemon);
 *
 * Threads: each function may be called from one thread at a time; the daemon's own threads are
 * described in docs/locks.md.  The daemon installs no signal handler.
 */
#ifndef KVD_DAEMON_H
#define KVD_DAEMON_H

#include "daemon/config.h"

#include <kvgraft/source.h>

struct kvd_daemon;

KVG_MUST_CHECK kvg_err kvd_daemon_new(
    const struct kvd_config *config, struct kvg_error *error, struct kvd_daemon **out);
/* The same with the memory of an embedder; `alloc` is used by all threads and must outlive it. */
KVG_MUST_CHECK kvg_err kvd_daemon_new_in(const struct kvg_alloc *alloc,
    const struct kvd_config *config, struct kvg_error *error, struct kvd_daemon **out);
KVG_MUST_CHECK kvg_err kvd_daemon_start(
    struct kvd_daemon *daemon, struct kvg_error *error);
/* The TCP port that HTTP listens on; 0 if it does not. */
uint16_t kvd_daemon_port(const struct kvd_daemon *daemon);
/* Takes over what may change while running: sources, workers, log, token. */
KVG_MUST_CHECK kvg_err kvd_daemon_reload(
    struct kvd_daemon *daemon, const struct kvd_config *config, struct kvg_error *error);
/* Whether the loop has turned within the last `within_ms`; for a watchdog. */
bool kvd_daemon_is_alive(const struct kvd_daemon *daemon, uint64_t within_ms);
/* Stops and joins everything.  Harmless when not started. */
void kvd_daemon_stop(struct kvd_daemon *daemon);
/* Stops if need be.  NULL is allowed. */
void kvd_daemon_free(struct kvd_daemon *daemon);

/* A source as it stands.  False if there is none of that name (NULL: the first). */
struct kvd_source_state {
    struct kvg_source_stats source;
    struct kvg_presence_stats presence;
    uint64_t queue_bytes;      /* Received, not applied. */
    uint64_t messages_dropped; /* Refused at queue_bytes_max. */
};
bool kvd_daemon_source_state(
    struct kvd_daemon *daemon, const char *name, struct kvd_source_state *out);

/* Waits until that many messages of the source (NULL: the first) have been applied to its index.
 * False if it took longer, or if there is no such source. */
bool kvd_daemon_wait_messages(
    struct kvd_daemon *daemon, const char *name, uint64_t messages, uint64_t timeout_ms);

/* The commands.  Return the exit code of the process: 0 fine, 1 failed, 2 used wrongly. */
int kvd_serve_main(int argc, char **argv);
int kvd_config_main(int argc, char **argv);

#endif
