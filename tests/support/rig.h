/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* rig.h -- a daemon in this process between a publisher, a store's admin port and an HTTP client,
 * all on loopback. */
#ifndef KVT_RIG_H
#define KVT_RIG_H

#include "daemon/daemon.h"

#include <kvgraft/event.h>

/* A store: publishes events and answers on an admin port. */
struct store;

struct store *store_new(void);
void store_free(struct store *store);
const char *store_endpoint(const struct store *store);
const char *store_admin_url(const struct store *store);
/* Waits until somebody subscribed. */
void store_wait_subscriber(struct store *store);
/* Object `page`_`part` appears or goes: one message.  A silent change tells nobody. */
void store_put(struct store *store, const struct kvg_key *page, const char *suffix);
void store_remove(struct store *store, const struct kvg_key *page, const char *suffix);
void store_put_silently(
    struct store *store, const struct kvg_key *page, const char *suffix);
/* Sends a frame as it is, outside of the sequence. */
void store_send_rubbish(struct store *store, const void *bytes, size_t byte_count);
/* The next sequence number is lost. */
void store_skip(struct store *store);
/* Whether the admin port answers. */
void store_open_admin(struct store *store, bool open);

/* An HTTP answer; the body ends with a zero. */
struct answer {
    int status;
    char head[4096];
    char *body;
    size_t body_bytes;
};

/* Sends one request and reads the answer; `headers` are whole lines with \r\n, or "".  The body
 * of *out is freed by answer_free(). */
bool ask_bytes(uint16_t port, const char *method, const char *path, const char *headers,
    const void *body, size_t body_bytes, struct answer *out);
bool ask(uint16_t port, const char *method, const char *path, const char *body,
    struct answer *out);
void answer_free(struct answer *answer);

/* Asks until the answer has the status and the text; fails the test after 20 s. */
void ask_until(uint16_t port, const char *path, int status, const char *text);

#endif
