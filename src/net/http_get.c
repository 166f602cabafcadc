/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* http_get.c -- the client side of HTTP.
 *
 *     RESOLVE -> CONNECT (address by address) -> SEND -> RECEIVE -> done
 *        \___________\________________\____________\______ any: failed, cancelled, timed out
 *
 * Invariants:
 *
 *     G1  on_done is called at most once, from a turn of the loop, never from within start.
 *     G2  After on_done or cancel nothing of the request is left: no watch, timer, job or fd.
 */
#include "net/http_get.h"

#include "base/alloc.h"
#include "base/fmt.h"
#include "net/http_response.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#define READ_BYTES 65536u
#define HEAD_BYTES (2 * KVN_HOST_BYTES + 128u) /* The request without its path. */

struct kvn_http_get {
    const struct kvg_alloc *alloc;
    struct kvn_loop *loop;
    struct kvn_http_get_options options; /* `url` and `path` are not kept. */
    struct kvn_resolve_job *job;
    struct kvn_watch watch;
    struct kvn_timer deadline;
    struct kvn_timer idle;
    struct kvn_timer begin; /* Due at once: so that no callback comes out of start. */
    struct kvn_address addresses[KVN_ADDRESSES_MAX];
    size_t address_count;
    size_t address_next;
    bool connected;
    char *request;
    size_t request_capacity;
    size_t request_bytes;
    size_t sent_bytes;
    struct kvn_http_response response;
    char buffer[READ_BYTES];
};

static void close_socket(struct kvn_http_get *get)
{
    kvn_watch_remove(get->loop, &get->watch);
    if (get->watch.fd >= 0)
        close(get->watch.fd);
    get->watch.fd = -1;
}

void kvn_http_get_cancel(struct kvn_http_get *get) /* G2 */
{
    if (get == NULL)
        return;
    close_socket(get);
    kvn_resolve_cancel(get->job);
    kvn_timer_clear(get->loop, &get->deadline);
    kvn_timer_clear(get->loop, &get->idle);
    kvn_timer_clear(get->loop, &get->begin);
    kvi_release_array(get->alloc, get->request, get->request_capacity, 1);
    KVI_FREE(get->alloc, get);
}

static void finish(struct kvn_http_get *get, kvg_err err, const char *reason)
{
    void (*on_done)(void *context, kvg_err err, uint32_t status, const char *reason) =
        get->options.on_done;
    void *context = get->options.context;
    uint32_t status = get->response.status;
    char text[192];

    if (err == KVG_OK && status != 200) {
        snprintf(text, sizeof(text), "answered with status %u", (unsigned)status);
        err = KVG_EIO;
        reason = text;
    } else if (reason != NULL) {
        snprintf(text, sizeof(text), "%s", reason);
        reason = text;
    }
    kvn_http_get_cancel(get);
    on_done(context, err, status, reason);
}

static void pass_header(void *context, struct kvg_str name, struct kvg_str value)
{
    struct kvn_http_get *get = context;

    if (get->response.status == 200 && get->options.on_header != NULL)
        get->options.on_header(get->options.context, name, value);
}

static void pass_body(void *context, struct kvg_str bytes)
{
    struct kvn_http_get *get = context;

    if (get->response.status == 200 && get->options.on_body != NULL)
        get->options.on_body(get->options.context, bytes);
}

static void touch(struct kvn_http_get *get)
{
    kvn_timer_set(
        get->loop, &get->idle, kvn_loop_now_ms(get->loop) + get->options.idle_ms);
}

static void connect_next(struct kvn_http_get *get, const char *reason)
{
    while (get->address_next < get->address_count) {
        const struct kvn_address *address = &get->addresses[get->address_next++];

        close_socket(get);
        get->watch.fd = socket(
            address->address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (get->watch.fd < 0) {
            reason = strerror(errno);
            continue;
        }
        if (connect(get->watch.fd, (const struct sockaddr *)&address->address,
                address->bytes) != 0 &&
            errno != EINPROGRESS) {
            reason = strerror(errno);
            continue;
        }
        if (kvn_watch_add(get->loop, &get->watch, EPOLLOUT) == KVG_OK)
            return;
        reason = "the loop cannot watch the socket";
    }
    finish(get, KVG_EIO, reason);
}

static void on_resolved(
    void *context, const struct kvn_address *addresses, size_t count, const char *reason)
{
    struct kvn_http_get *get = context;

    get->job = NULL;
    memcpy(get->addresses, addresses, count * sizeof(*addresses));
    get->address_count = count;
    connect_next(get, reason != NULL ? reason : "the name has no address");
}

static void on_begin(void *context)
{
    struct kvn_http_get *get = context;

    connect_next(get, "no address");
}

/* Sends; false if the request was finished. */
static bool send_request(struct kvn_http_get *get)
{
    while (get->sent_bytes < get->request_bytes) {
        ssize_t sent = send(get->watch.fd, get->request + get->sent_bytes,
            get->request_bytes - get->sent_bytes, MSG_NOSIGNAL);

        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return true;
        if (sent <= 0) {
            finish(get, KVG_EIO, strerror(errno));
            return false;
        }
        get->sent_bytes += (size_t)sent;
    }
    kvn_watch_change(get->loop, &get->watch, EPOLLIN);
    return true;
}

static void receive(struct kvn_http_get *get)
{
    struct kvg_error error = {.code = KVG_OK};
    ssize_t got = recv(get->watch.fd, get->buffer, sizeof(get->buffer), 0);
    char reason[sizeof(error.field) + sizeof(error.message) + 2];
    kvg_err err;

    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
        return;
    if (got < 0) {
        finish(get, KVG_EIO, strerror(errno));
        return;
    }
    touch(get);
    if (got == 0)
        err = kvn_http_response_end(&get->response, &error);
    else
        err = kvn_http_response_feed(
            &get->response, (struct kvg_str){get->buffer, (size_t)got}, &error);
    if (err != KVG_OK) {
        snprintf(reason, sizeof(reason), "%s %s", error.field, error.message);
        finish(get, err, reason);
        return;
    }
    if (get->response.state == KVN_HTTP_DONE)
        finish(get, KVG_OK, NULL);
}

static void on_ready(void *context, uint32_t events)
{
    struct kvn_http_get *get = context;

    if (!get->connected) {
        int failed = 0;
        socklen_t bytes = sizeof(failed);

        getsockopt(get->watch.fd, SOL_SOCKET, SO_ERROR, &failed, &bytes);
        if (failed != 0) {
            connect_next(get, strerror(failed));
            return;
        }
        get->connected = true;
        touch(get);
    }
    if (get->sent_bytes < get->request_bytes && !send_request(get))
        return;
    if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0)
        receive(get);
}

static void on_deadline(void *context)
{
    finish(context, KVG_ETIMEOUT, "took longer than its time limit");
}

static void on_idle(void *context)
{
    finish(context, KVG_ETIMEOUT, "sent nothing for too long");
}

static kvg_err write_request(
    struct kvn_http_get *get, const struct kvn_url *url, struct kvg_str path)
{
    const char *open = strchr(url->host, ':') != NULL ? "[" : "";
    const char *close = open[0] != '\0' ? "]" : "";
    int written;

    get->request_capacity = HEAD_BYTES + path.bytes;
    get->request = kvi_alloc_array_raw(get->alloc, get->request_capacity, 1);
    if (get->request == NULL)
        return KVG_ENOMEM;
    written = snprintf(get->request, get->request_capacity,
        "GET %s%.*s HTTP/1.1\r\nHost: %s%s%s:%u\r\nUser-Agent: kvgraft\r\n"
        "Accept: */*\r\nConnection: close\r\n\r\n",
        url->base, (int)path.bytes, path.data, open, url->host, close,
        (unsigned)url->port);
    if (written < 0 || (size_t)written >= get->request_capacity)
        return KVG_ELIMIT;
    get->request_bytes = (size_t)written;
    return KVG_OK;
}

kvg_err kvn_http_get_start(const struct kvg_alloc *alloc, struct kvn_loop *loop,
    struct kvn_resolver *resolver, const struct kvn_http_get_options *options,
    struct kvn_http_get **out)
{
    struct kvn_http_get *get;
    uint64_t now_ms = kvn_loop_now_ms(loop);
    kvg_err err;

    *out = NULL;
    if (options->path.bytes > INT32_MAX)
        return KVG_ELIMIT;
    get = KVI_NEW(alloc, struct kvn_http_get);
    if (get == NULL)
        return KVG_ENOMEM;
    get->alloc = alloc;
    get->loop = loop;
    get->options = *options;
    get->watch = (struct kvn_watch){.fd = -1, .on_ready = on_ready, .context = get};
    get->deadline = (struct kvn_timer){.on_due = on_deadline, .context = get};
    get->idle = (struct kvn_timer){.on_due = on_idle, .context = get};
    get->begin = (struct kvn_timer){.on_due = on_begin, .context = get};
    kvn_http_response_init(&get->response, options->body_bytes_max, pass_body, get);
    get->response.on_header = pass_header;
    err = write_request(get, options->url, options->path);
    if (err != KVG_OK)
        goto fail;
    if (kvn_address_numeric(options->url->host, options->url->port, &get->addresses[0])) {
        get->address_count = 1;
        kvn_timer_set(loop, &get->begin, now_ms);
    } else {
        err = kvn_resolve(resolver, options->url->host, options->url->port, on_resolved,
            get, &get->job);
        if (err != KVG_OK)
            goto fail;
    }
    kvn_timer_set(loop, &get->deadline, now_ms + options->timeout_ms);
    touch(get);
    *out = get;
    return KVG_OK;

fail:
    kvn_http_get_cancel(get);
    return err;
}
