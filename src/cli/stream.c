/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* stream.c -- ZeroMQ as the commands use it (stream.h).
 *
 * A subscriber watches its own connection through ZeroMQ's monitor, a pair of sockets inside the
 * process.  A publisher is an XPUB socket, which also receives: one message for each subscription
 * that comes or goes, so that it can be told how many listen.
 */
#include "cli/stream.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#define MONITOR_ENDPOINT "inproc://kvgraft-monitor"
#define CLOSE_LINGER_MS 2000
#define SEND_TIMEOUT_MS 10000

struct kvc_stream {
    void *context;
    void *socket;
    void *monitor;
    bool publishes;
    unsigned peers;
    bool connected;
    size_t part_count;
    zmq_msg_t parts[KVC_FRAMES_MAX];
    char endpoint[KVC_ENDPOINT_BYTES];
};

static kvg_err fail(struct kvg_error *error, const char *endpoint, const char *what)
{
    error->code = errno == EINVAL ? KVG_EINVAL : KVG_EIO;
    snprintf(error->field, sizeof(error->field), "%.60s", endpoint);
    snprintf(error->message, sizeof(error->message), "%s: %s%s", what,
        zmq_strerror(errno),
        errno == EINVAL || errno == EPROTONOSUPPORT
            ? "; an endpoint looks like tcp://127.0.0.1:5557 or ipc:///run/x.sock"
            : "");
    return error->code;
}

static void drop_parts(struct kvc_stream *stream)
{
    size_t i;

    for (i = 0; i < stream->part_count; i++)
        zmq_msg_close(&stream->parts[i]);
    stream->part_count = 0;
}

void kvc_stream_close(struct kvc_stream *stream)
{
    int linger;

    if (stream == NULL)
        return;
    linger = stream->publishes ? CLOSE_LINGER_MS : 0;
    drop_parts(stream);
    if (stream->monitor != NULL)
        zmq_close(stream->monitor);
    if (stream->socket != NULL) {
        zmq_setsockopt(stream->socket, ZMQ_LINGER, &linger, sizeof(linger));
        zmq_close(stream->socket);
    }
    if (stream->context != NULL)
        zmq_ctx_term(stream->context);
    free(stream);
}

static struct kvc_stream *make(int type, const struct kvc_stream_options *options)
{
    struct kvc_stream *stream = calloc(1, sizeof(*stream));
    int messages =
        options->queue_messages > 1000000 ? 1000000 : (int)options->queue_messages;
    int64_t bytes_max = (int64_t)options->message_bytes_max;

    if (stream == NULL)
        return NULL;
    stream->context = zmq_ctx_new();
    if (stream->context != NULL)
        stream->socket = zmq_socket(stream->context, type);
    if (stream->socket == NULL) {
        kvc_stream_close(stream);
        return NULL;
    }
    if (messages > 0) {
        zmq_setsockopt(stream->socket, ZMQ_SNDHWM, &messages, sizeof(messages));
        zmq_setsockopt(stream->socket, ZMQ_RCVHWM, &messages, sizeof(messages));
    }
    if (bytes_max > 0)
        zmq_setsockopt(stream->socket, ZMQ_MAXMSGSIZE, &bytes_max, sizeof(bytes_max));
    return stream;
}

kvg_err kvc_stream_subscribe(const struct kvc_stream_options *options,
    struct kvg_error *error, struct kvc_stream **out)
{
    const char *topic = options->topic == NULL ? "" : options->topic;
    struct kvc_stream *stream = make(ZMQ_SUB, options);
    int events = ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED |
                 ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                 ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL;
    kvg_err err;

    *out = NULL;
    if (stream == NULL)
        return fail(error, options->endpoint, "cannot make a socket");
    snprintf(stream->endpoint, sizeof(stream->endpoint), "%s", options->endpoint);
    if (zmq_socket_monitor(stream->socket, MONITOR_ENDPOINT, events) == 0) {
        stream->monitor = zmq_socket(stream->context, ZMQ_PAIR);
        if (stream->monitor != NULL)
            zmq_connect(stream->monitor, MONITOR_ENDPOINT);
    }
    if (zmq_setsockopt(stream->socket, ZMQ_SUBSCRIBE, topic, strlen(topic)) != 0 ||
        zmq_connect(stream->socket, options->endpoint) != 0) {
        err = fail(error, options->endpoint, "cannot connect");
        kvc_stream_close(stream);
        return err;
    }
    *out = stream;
    return KVG_OK;
}

kvg_err kvc_stream_publish(const struct kvc_stream_options *options,
    struct kvg_error *error, struct kvc_stream **out)
{
    struct kvc_stream *stream = make(ZMQ_XPUB, options);
    int timeout = SEND_TIMEOUT_MS;
    int on = 1;
    size_t bytes = KVC_ENDPOINT_BYTES;
    kvg_err err;

    *out = NULL;
    if (stream == NULL)
        return fail(error, options->endpoint, "cannot make a socket");
    stream->publishes = true;
    /* A subscriber that does not keep up makes the sender wait: nothing is lost unseen. */
    zmq_setsockopt(stream->socket, ZMQ_XPUB_NODROP, &on, sizeof(on));
    zmq_setsockopt(stream->socket, ZMQ_SNDTIMEO, &timeout, sizeof(timeout));
    if (zmq_bind(stream->socket, options->endpoint) != 0 ||
        zmq_getsockopt(stream->socket, ZMQ_LAST_ENDPOINT, stream->endpoint, &bytes) !=
            0) {
        err = fail(error, options->endpoint, "cannot bind");
        kvc_stream_close(stream);
        return err;
    }
    *out = stream;
    return KVG_OK;
}

const char *kvc_stream_endpoint(const struct kvc_stream *stream)
{
    return stream->endpoint;
}

unsigned kvc_stream_peers(struct kvc_stream *stream)
{
    uint8_t change[256];

    for (;;) {
        int got = zmq_recv(stream->socket, change, sizeof(change), ZMQ_DONTWAIT);

        if (got < 1)
            return stream->peers;
        if (change[0] == 1)
            stream->peers++;
        else if (change[0] == 0 && stream->peers > 0)
            stream->peers--;
    }
}

enum kvc_stream_news kvc_stream_news(struct kvc_stream *stream)
{
    uint8_t head[6] = {0};
    char address[KVC_ENDPOINT_BYTES];
    uint16_t event;
    int more = 0;
    size_t bytes = sizeof(more);

    if (stream->monitor == NULL ||
        zmq_recv(stream->monitor, head, sizeof(head), ZMQ_DONTWAIT) < 2)
        return KVC_STREAM_NO_NEWS;
    zmq_getsockopt(stream->monitor, ZMQ_RCVMORE, &more, &bytes);
    if (more)
        zmq_recv(stream->monitor, address, sizeof(address), 0);
    memcpy(&event, head, sizeof(event));
    if (event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED) {
        stream->connected = true;
        return KVC_STREAM_CONNECTED;
    }
    if (event != ZMQ_EVENT_DISCONNECTED)
        return KVC_STREAM_NO_PUBLISHER;
    if (!stream->connected)
        return KVC_STREAM_NO_NEWS;
    stream->connected = false;
    return KVC_STREAM_DISCONNECTED;
}

size_t kvc_stream_receive(
    struct kvc_stream *stream, long wait_ms, struct kvg_str frames[KVC_FRAMES_MAX])
{
    zmq_pollitem_t items[2] = {
        {stream->socket, 0, ZMQ_POLLIN, 0}, {stream->monitor, 0, ZMQ_POLLIN, 0}};
    size_t count = 0;
    int more = 1;

    drop_parts(stream);
    if (zmq_poll(items, stream->monitor == NULL ? 1 : 2, wait_ms) <= 0 ||
        (items[0].revents & ZMQ_POLLIN) == 0)
        return 0;
    while (more) {
        bool keep = count < KVC_FRAMES_MAX;
        zmq_msg_t extra;
        zmq_msg_t *part = keep ? &stream->parts[count] : &extra;

        zmq_msg_init(part);
        if (zmq_msg_recv(part, stream->socket, 0) < 0) {
            zmq_msg_close(part);
            break;
        }
        more = zmq_msg_more(part);
        if (keep) {
            stream->part_count = count + 1;
            frames[count] = (struct kvg_str){zmq_msg_data(part), zmq_msg_size(part)};
        } else {
            zmq_msg_close(part);
        }
        count++;
    }
    return count;
}

kvg_err kvc_stream_send(
    struct kvc_stream *stream, const struct kvg_str *frames, size_t frame_count)
{
    size_t i;

    for (i = 0; i < frame_count; i++) {
        int flags = i + 1 < frame_count ? ZMQ_SNDMORE : 0;
        int sent;

        do {
            sent = zmq_send(stream->socket, frames[i].data, frames[i].bytes, flags);
        } while (sent < 0 && errno == EINTR);
        if (sent < 0)
            return errno == EAGAIN ? KVG_ETIMEOUT : KVG_EIO;
    }
    return KVG_OK;
}
