/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* http_get.h -- one HTTP/1.1 GET on the loop, its body streamed.
 *
 * Each request is a connection of its own ("Connection: close").  A body is handed on as it
 * arrives, at most READ_BYTES a turn, so a listing of a million keys neither is held nor holds up
 * the loop.
 *
 * Threads: the loop's.
 */
#ifndef KVN_HTTP_GET_H
#define KVN_HTTP_GET_H

#include "net/resolve.h"

/* http://host[:port][/base] taken apart. */
struct kvn_url {
    char host[KVN_HOST_BYTES]; /* Without the brackets of an IPv6 address. */
    uint16_t port;
    char base[KVN_HOST_BYTES]; /* "" or "/base", no slash at the end. */
};

/* KVG_EINVAL with the reason: only http, a host, a port 1 to 65535, no user, query or part. */
KVG_MUST_CHECK kvg_err kvn_url_parse(
    struct kvg_str text, const char *field, struct kvg_error *error, struct kvn_url *out);

/* "host:port" with an IPv6 host in brackets; port 0 is allowed. */
KVG_MUST_CHECK kvg_err kvn_host_port_parse(struct kvg_str text, const char *field,
    struct kvg_error *error, char host[KVN_HOST_BYTES], uint16_t *port_out);

struct kvn_http_get;

struct kvn_http_get_options {
    const struct kvn_url *url;
    struct kvg_str path; /* After the base: "/metrics", with its query. */
    uint64_t timeout_ms; /* For all of it. */
    uint64_t idle_ms;    /* Between two arrivals. */
    uint64_t body_bytes_max;
    /* Only of an answer with status 200. */
    void (*on_body)(void *context, struct kvg_str bytes);
    /* Of the same; may be NULL.  Names come as the server writes them. */
    void (*on_header)(void *context, struct kvg_str name, struct kvg_str value);
    /* Once, last; the request is gone when it returns.  `reason` is NULL on success, else a
     * sentence that lives for the call. */
    void (*on_done)(void *context, kvg_err err, uint32_t status, const char *reason);
    void *context;
};

/* Starts it.  No callback comes before this returns. */
KVG_MUST_CHECK kvg_err kvn_http_get_start(const struct kvg_alloc *alloc,
    struct kvn_loop *loop, struct kvn_resolver *resolver,
    const struct kvn_http_get_options *options, struct kvn_http_get **out);
/* Ends it without a callback.  NULL is allowed; not from on_body. */
void kvn_http_get_cancel(struct kvn_http_get *get);

#endif
