/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* http.h -- a blocking HTTP/1.1 client for the command: one connection, kept open.
 *
 * Threads: a client belongs to one thread.
 */
#ifndef KVC_HTTP_H
#define KVC_HTTP_H

#include <kvgraft/base.h>

#define KVC_HTTP_ANSWER_BYTES_MAX (256u << 20)

struct kvc_http;

struct kvc_http_options {
    const char *url;     /* http://host:port[/base] or unix:/path/of.sock. */
    const char *token;   /* Bearer token, or NULL. */
    uint64_t timeout_ms; /* Of connecting, and of each wait for bytes. */
};

struct kvc_http_request {
    const char *method;
    const char *path;         /* Begins with '/'. */
    const char *content_type; /* NULL without a body. */
    const char *accept;       /* Or NULL. */
    struct kvg_str body;
};

struct kvc_http_answer {
    uint32_t status;
    struct kvg_str body; /* Followed by a zero; until the next request. */
};

/* Reads the URL; the connection is made at the first request.  The strings of `options` must
 * outlive the client. */
KVG_MUST_CHECK kvg_err kvc_http_new(const struct kvc_http_options *options,
    struct kvg_error *error, struct kvc_http **out);
void kvc_http_free(struct kvc_http *http);

/* Sends a request and waits for its answer, whatever its status.  A connection that the server
 * has closed meanwhile is made anew, once. */
KVG_MUST_CHECK kvg_err kvc_http_ask(struct kvc_http *http,
    const struct kvc_http_request *request, struct kvc_http_answer *out,
    struct kvg_error *error);

#endif
