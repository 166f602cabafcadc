/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* http_response.h -- an HTTP/1.1 response out of bytes that arrive cut anywhere.
 *
 * A pure state machine: no socket, no allocation.  Bodies by Content-Length, chunked, or to the
 * end of the connection.  What is ambiguous is refused: two lengths that differ, a length beside
 * chunks, folded header lines, transfer codings other than chunked.
 */
#ifndef KVN_HTTP_RESPONSE_H
#define KVN_HTTP_RESPONSE_H

#include <kvgraft/base.h>

#define KVN_HTTP_LINE_BYTES_MAX 8192u
#define KVN_HTTP_HEADERS_MAX 128u
#define KVN_HTTP_INTERIM_MAX 8u /* Answers 1xx before the real one. */

enum kvn_http_state {
    KVN_HTTP_STATUS_LINE,
    KVN_HTTP_HEADER_LINE,
    KVN_HTTP_BODY_LENGTH,
    KVN_HTTP_BODY_TO_END,
    KVN_HTTP_CHUNK_SIZE,
    KVN_HTTP_CHUNK_DATA,
    KVN_HTTP_CHUNK_END,
    KVN_HTTP_TRAILER_LINE,
    KVN_HTTP_DONE,
    KVN_HTTP_FAILED
};

struct kvn_http_response {
    enum kvn_http_state state;
    uint32_t status;     /* 0 until the status line is read. */
    uint64_t body_bytes; /* Handed out. */
    uint64_t body_bytes_max;
    void (*on_body)(void *context, struct kvg_str bytes); /* May be NULL. */
    /* May be NULL; each header line, but those that say where the body ends. */
    void (*on_header)(void *context, struct kvg_str name, struct kvg_str value);
    void *context;
    uint64_t left; /* Private from here: of the body or the chunk. */
    uint32_t header_count;
    uint32_t interim_count;
    bool has_length;
    bool chunked;
    uint32_t line_bytes;
    char line[KVN_HTTP_LINE_BYTES_MAX];
};

void kvn_http_response_init(struct kvn_http_response *response, uint64_t body_bytes_max,
    void (*on_body)(void *context, struct kvg_str bytes), void *context);

/* Takes bytes.  KVG_EFORMAT or KVG_ELIMIT with what was wrong; then the response has failed and
 * stays so.  Bytes after the end of the response are ignored. */
KVG_MUST_CHECK kvg_err kvn_http_response_feed(
    struct kvn_http_response *response, struct kvg_str bytes, struct kvg_error *error);

/* The connection ended.  KVG_EFORMAT if the response was not whole. */
KVG_MUST_CHECK kvg_err kvn_http_response_end(
    struct kvn_http_response *response, struct kvg_error *error);

#endif
