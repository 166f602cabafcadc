/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* http.c -- a blocking HTTP client (http.h) around the response reader of net. */
#include "cli/http.h"

#include "cli/cli.h"
#include "net/http_get.h"
#include "net/http_response.h"

#include <errno.h>
#include <inttypes.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define HEAD_BYTES 2048
#define READ_BYTES 65536
/* Answers this large are rare; a buffer that grew for one is kept. */
#define BODY_BYTES_FIRST 16384

struct kvc_http {
    struct kvc_http_options options;
    struct kvn_url url;
    const char *socket_path; /* NULL: TCP. */
    int fd;
    bool out_of_memory;
    char *body;
    size_t body_bytes;
    size_t body_capacity;
    struct kvn_http_response response;
};

static kvg_err fail(
    const struct kvc_http *http, struct kvg_error *error, kvg_err code, const char *what)
{
    error->code = code;
    snprintf(error->field, sizeof(error->field), "%.60s", http->options.url);
    snprintf(error->message, sizeof(error->message), "%s", what);
    return code;
}

kvg_err kvc_http_new(const struct kvc_http_options *options, struct kvg_error *error,
    struct kvc_http **out)
{
    struct kvc_http *http = calloc(1, sizeof(*http));
    kvg_err err = KVG_OK;

    *out = NULL;
    if (http == NULL)
        return KVG_ENOMEM;
    http->options = *options;
    http->fd = -1;
    if (strncmp(options->url, "unix:", 5) == 0) {
        struct sockaddr_un address;

        http->socket_path = options->url + 5;
        if (strlen(http->socket_path) >= sizeof(address.sun_path))
            err = fail(http, error, KVG_EINVAL, "the path of the socket is too long");
    } else {
        struct kvg_str text = {options->url, strlen(options->url)};

        err = kvn_url_parse(text, "url", error, &http->url);
    }
    if (err != KVG_OK) {
        kvc_http_free(http);
        return err;
    }
    *out = http;
    return KVG_OK;
}

static void hang_up(struct kvc_http *http)
{
    if (http->fd >= 0)
        close(http->fd);
    http->fd = -1;
}

void kvc_http_free(struct kvc_http *http)
{
    if (http == NULL)
        return;
    hang_up(http);
    free(http->body);
    free(http);
}

static void set_timeouts(int fd, uint64_t timeout_ms)
{
    struct timeval limit = {
        (time_t)(timeout_ms / 1000), (suseconds_t)(timeout_ms % 1000 * 1000)};
    int on = 1;

    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

static kvg_err fail_connect(struct kvc_http *http, struct kvg_error *error, int number)
{
    char what[160];

    snprintf(what, sizeof(what), "cannot connect: %s%s", strerror(number),
        number == ECONNREFUSED || number == ENOENT
            ? "; is `kvgraft serve` (or `kvgraft demo`) running?"
            : "");
    return fail(http, error, KVG_EIO, what);
}

static kvg_err dial_unix(struct kvc_http *http, struct kvg_error *error)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    memcpy(address.sun_path, http->socket_path, strlen(http->socket_path));
    http->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (http->fd < 0)
        return fail_connect(http, error, errno);
    set_timeouts(http->fd, http->options.timeout_ms);
    if (connect(http->fd, (struct sockaddr *)&address, sizeof(address)) != 0) {
        int number = errno;

        hang_up(http);
        return fail_connect(http, error, number);
    }
    return KVG_OK;
}

static kvg_err dial_tcp(struct kvc_http *http, struct kvg_error *error)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    struct addrinfo *each;
    char port[8];
    int number = EHOSTUNREACH;
    int code;

    snprintf(port, sizeof(port), "%u", http->url.port);
    code = getaddrinfo(http->url.host, port, &hints, &found);
    if (code != 0)
        return fail(http, error, KVG_EIO, gai_strerror(code));
    for (each = found; each != NULL && http->fd < 0; each = each->ai_next) {
        http->fd = socket(each->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (http->fd < 0) {
            number = errno;
            continue;
        }
        set_timeouts(http->fd, http->options.timeout_ms);
        if (connect(http->fd, each->ai_addr, each->ai_addrlen) != 0) {
            number = errno;
            hang_up(http);
        }
    }
    freeaddrinfo(found);
    return http->fd >= 0 ? KVG_OK : fail_connect(http, error, number);
}

static bool send_all(int fd, const char *bytes, size_t byte_count, int flags)
{
    while (byte_count > 0) {
        ssize_t sent = send(fd, bytes, byte_count, MSG_NOSIGNAL | flags);

        if (sent < 0 && errno == EINTR)
            continue;
        if (sent <= 0)
            return false;
        bytes += sent;
        byte_count -= (size_t)sent;
    }
    return true;
}

static bool send_request(struct kvc_http *http, const struct kvc_http_request *request)
{
    const char *token = http->options.token;
    char head[HEAD_BYTES];
    int bytes;

    bytes = snprintf(head, sizeof(head),
        "%s %s%s HTTP/1.1\r\nHost: %s\r\nContent-Length: %zu\r\n%s%s%s%s%s%s%s%s%s\r\n",
        request->method, http->url.base, request->path,
        http->socket_path != NULL ? "localhost" : http->url.host, request->body.bytes,
        request->content_type == NULL ? "" : "Content-Type: ",
        request->content_type == NULL ? "" : request->content_type,
        request->content_type == NULL ? "" : "\r\n",
        request->accept == NULL ? "" : "Accept: ",
        request->accept == NULL ? "" : request->accept,
        request->accept == NULL ? "" : "\r\n",
        token == NULL ? "" : "Authorization: Bearer ", token == NULL ? "" : token,
        token == NULL ? "" : "\r\n");
    return bytes > 0 && (size_t)bytes < sizeof(head) &&
           send_all(
               http->fd, head, (size_t)bytes, request->body.bytes > 0 ? MSG_MORE : 0) &&
           send_all(http->fd, request->body.data, request->body.bytes, 0);
}

static void take_body(void *context, struct kvg_str bytes)
{
    struct kvc_http *http = context;
    size_t need = http->body_bytes + bytes.bytes + 1;
    size_t capacity = http->body_capacity == 0 ? BODY_BYTES_FIRST : http->body_capacity;

    if (http->out_of_memory)
        return;
    while (capacity < need)
        capacity *= 2;
    if (capacity > http->body_capacity) {
        char *body = realloc(http->body, capacity);

        if (body == NULL) {
            http->out_of_memory = true;
            return;
        }
        http->body = body;
        http->body_capacity = capacity;
    }
    if (bytes.bytes > 0)
        memcpy(http->body + http->body_bytes, bytes.data, bytes.bytes);
    http->body_bytes += bytes.bytes;
    http->body[http->body_bytes] = '\0';
}

/* Reads one answer.  *early is set if the connection ended before its first byte. */
static kvg_err receive(struct kvc_http *http, bool *early, struct kvg_error *error)
{
    char bytes[READ_BYTES];
    bool any = false;
    kvg_err err = KVG_OK;

    http->body_bytes = 0;
    http->out_of_memory = false;
    take_body(http, (struct kvg_str){"", 0});
    kvn_http_response_init(&http->response, KVC_HTTP_ANSWER_BYTES_MAX, take_body, http);
    while (err == KVG_OK && http->response.state != KVN_HTTP_DONE) {
        ssize_t got = recv(http->fd, bytes, sizeof(bytes), 0);

        if (got < 0 && errno == EINTR && !kvc_stopped)
            continue;
        *early = !any && (got == 0 || (got < 0 && errno == ECONNRESET));
        if (got < 0)
            return errno == EAGAIN ? fail(http, error, KVG_ETIMEOUT, "no answer in time")
                                   : fail(http, error, KVG_EIO, strerror(errno));
        any = true;
        if (got == 0) {
            err = kvn_http_response_end(&http->response, error);
            hang_up(http);
            break;
        }
        err = kvn_http_response_feed(
            &http->response, (struct kvg_str){bytes, (size_t)got}, error);
    }
    if (err == KVG_OK && http->out_of_memory)
        return fail(http, error, KVG_ENOMEM, "out of memory for the answer");
    return err;
}

kvg_err kvc_http_ask(struct kvc_http *http, const struct kvc_http_request *request,
    struct kvc_http_answer *out, struct kvg_error *error)
{
    bool reused = http->fd >= 0;
    kvg_err err;

    *out = (struct kvc_http_answer){0};
    for (;;) {
        bool early = true;

        err = KVG_OK;
        if (http->fd < 0)
            err = http->socket_path != NULL ? dial_unix(http, error)
                                            : dial_tcp(http, error);
        if (err != KVG_OK)
            return err;
        if (send_request(http, request))
            err = receive(http, &early, error);
        else
            err = fail(http, error, KVG_EIO, strerror(errno));
        if (err == KVG_OK)
            break;
        hang_up(http);
        if (!early || !reused)
            return err;
        reused = false; /* It was an old connection: once more on a new one. */
    }
    *out =
        (struct kvc_http_answer){http->response.status, {http->body, http->body_bytes}};
    return KVG_OK;
}
