/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* stream.h -- the command's own ends of a ZeroMQ stream: a blocking subscriber for watch and
 * record, a publisher for replay and the pretend engines.  (The daemon's subscriber, with its
 * loop and bounded queue, is net/sub.h.)
 *
 * Threads: a stream belongs to one thread.
 */
#ifndef KVC_STREAM_H
#define KVC_STREAM_H

#include <kvgraft/base.h>

#define KVC_FRAMES_MAX 16u
#define KVC_ENDPOINT_BYTES 256u

struct kvc_stream;

struct kvc_stream_options {
    const char
        *endpoint; /* tcp://host:port (port 0 or * for a publisher: any), ipc://path. */
    const char *topic;          /* Subscriber: prefix of the topics wanted; NULL: all. */
    uint64_t message_bytes_max; /* Subscriber: the peer that sends more is cut off. */
    uint64_t queue_messages;    /* 0: ZeroMQ's default of 1,000; 1 and up: that many. */
};

/* Connects and subscribes.  A publisher that is not there yet is waited for. */
KVG_MUST_CHECK kvg_err kvc_stream_subscribe(const struct kvc_stream_options *options,
    struct kvg_error *error, struct kvc_stream **out);
/* Binds.  KVG_EIO if the address is taken or not of this machine. */
KVG_MUST_CHECK kvg_err kvc_stream_publish(const struct kvc_stream_options *options,
    struct kvg_error *error, struct kvc_stream **out);
/* Waits up to two seconds for what was sent.  NULL is allowed. */
void kvc_stream_close(struct kvc_stream *stream);

/* Where a publisher is bound, with the port that was chosen. */
const char *kvc_stream_endpoint(const struct kvc_stream *stream);
/* Subscribers that a publisher has, as far as was heard. */
unsigned kvc_stream_peers(struct kvc_stream *stream);

/* What happened to the connection of a subscriber; asked for after each receive. */
enum kvc_stream_news {
    KVC_STREAM_NO_NEWS,
    KVC_STREAM_CONNECTED,
    KVC_STREAM_DISCONNECTED,
    KVC_STREAM_NO_PUBLISHER /* The port answers, but does not speak ZeroMQ. */
};
enum kvc_stream_news kvc_stream_news(struct kvc_stream *stream);

/* Waits for a message, at most `wait_ms`.  Returns its frames, which live until the next call,
 * and their number as received; 0 if none came. */
size_t kvc_stream_receive(
    struct kvc_stream *stream, long wait_ms, struct kvg_str frames[KVC_FRAMES_MAX]);

/* Sends a message.  KVG_ETIMEOUT if the subscribers did not make room within ten seconds. */
KVG_MUST_CHECK kvg_err kvc_stream_send(
    struct kvc_stream *stream, const struct kvg_str *frames, size_t frame_count);

#endif
