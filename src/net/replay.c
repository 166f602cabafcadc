/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* replay.c -- see replay.h; the exchange is in docs/events.md.
 *
 *     request   [empty, first]
 *     answers   [empty, sequence, payload] ...  [empty, all ones, empty]
 *
 * ZeroMQ's descriptor tells edges, not levels: after each wake, and after the request was sent, the
 * socket is read until it has nothing more, or the rest is left to a timer of the next turn.
 *
 * Invariants:
 *
 *     P1  Between two calls from the loop the socket is empty, or the timer is set.
 */
#include "net/replay.h"

#include "base/alloc.h"

#include <kvgraft/event.h>

#include <string.h>
#include <sys/epoll.h>
#include <zmq.h>

#define REPLAY_BATCH 256u
#define FRAMES 3u

struct kvn_replay {
    const struct kvg_alloc *alloc;
    struct kvn_loop *loop;
    struct kvn_replay_options options;
    void *socket;
    struct kvn_watch watch;
    struct kvn_timer more;
};

void kvn_replay_cancel(struct kvn_replay *replay)
{
    if (replay == NULL)
        return;
    kvn_watch_remove(replay->loop, &replay->watch);
    kvn_timer_clear(replay->loop, &replay->more);
    if (replay->socket != NULL)
        zmq_close(replay->socket);
    KVI_FREE(replay->alloc, replay);
}

static void end(struct kvn_replay *replay, const char *reason)
{
    struct kvn_replay_options options = replay->options;

    kvn_replay_cancel(replay);
    options.on_done(options.context, reason);
}

/* One whole message; its number of frames, 0 if there is none now. */
static unsigned receive(struct kvn_replay *replay, zmq_msg_t frames[FRAMES])
{
    unsigned count = 0;
    int more = 1;

    while (more != 0) {
        zmq_msg_t *frame = &frames[count < FRAMES ? count : FRAMES - 1];

        if (zmq_msg_recv(frame, replay->socket, ZMQ_DONTWAIT) < 0)
            return 0; /* Messages come whole: only before the first frame. */
        more = zmq_msg_more(frame);
        count++;
    }
    return count;
}

static uint64_t sequence_of(zmq_msg_t *frame)
{
    const uint8_t *bytes = zmq_msg_data(frame);
    uint64_t sequence = 0;

    for (unsigned i = 0; i < 8; i++)
        sequence = sequence << 8 | bytes[i];
    return sequence;
}

/* Hands one message on; false when the request is gone. */
static bool take(struct kvn_replay *replay, zmq_msg_t frames[FRAMES], unsigned count)
{
    uint64_t sequence;

    if (count != FRAMES || zmq_msg_size(&frames[0]) != 0 ||
        zmq_msg_size(&frames[1]) != 8) {
        end(replay, "an answer of the replay endpoint is not of the expected form");
        return false;
    }
    sequence = sequence_of(&frames[1]);
    if (sequence == UINT64_MAX) {
        end(replay, NULL);
        return false;
    }
    replay->options.on_message(replay->options.context, sequence,
        (struct kvg_str){zmq_msg_data(&frames[2]), zmq_msg_size(&frames[2])});
    return true;
}

static void read_some(void *context)
{
    struct kvn_replay *replay = context;
    bool alive = true;
    unsigned i;

    for (i = 0; i < REPLAY_BATCH && alive; i++) {
        zmq_msg_t frames[FRAMES];
        unsigned count;

        for (unsigned j = 0; j < FRAMES; j++)
            zmq_msg_init(&frames[j]);
        count = receive(replay, frames);
        alive = count != 0 && take(replay, frames, count);
        for (unsigned j = 0; j < FRAMES; j++)
            zmq_msg_close(&frames[j]);
        if (!alive)
            return;
    }
    kvn_timer_set(replay->loop, &replay->more, kvn_loop_now_ms(replay->loop)); /* P1 */
}

static void on_ready(void *context, uint32_t events)
{
    (void)events;
    read_some(context);
}

static kvg_err open_socket(struct kvn_replay *replay, struct kvn_zmq *zmq)
{
    int64_t message_bytes_max = (int64_t)replay->options.message_bytes_max;
    size_t fd_bytes = sizeof(replay->watch.fd);
    int none = 0;
    int one = 1;
    uint8_t first[8];

    replay->socket = zmq_socket(kvn_zmq_context(zmq), ZMQ_DEALER);
    if (replay->socket == NULL)
        return KVG_EIO;
    zmq_setsockopt(replay->socket, ZMQ_LINGER, &none, sizeof(none));
    zmq_setsockopt(replay->socket, ZMQ_RCVHWM, &none, sizeof(none));
    zmq_setsockopt(replay->socket, ZMQ_IPV6, &one, sizeof(one));
    zmq_setsockopt(
        replay->socket, ZMQ_MAXMSGSIZE, &message_bytes_max, sizeof(message_bytes_max));
    if (zmq_connect(replay->socket, replay->options.endpoint) != 0)
        return KVG_EINVAL;
    if (zmq_getsockopt(replay->socket, ZMQ_FD, &replay->watch.fd, &fd_bytes) != 0)
        return KVG_EIO;
    kvg_sequence_encode(replay->options.first, first);
    if (zmq_send(replay->socket, "", 0, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0 ||
        zmq_send(replay->socket, first, sizeof(first), ZMQ_DONTWAIT) < 0)
        return KVG_EIO;
    return kvn_watch_add(replay->loop, &replay->watch, EPOLLIN);
}

kvg_err kvn_replay_start(const struct kvg_alloc *alloc, struct kvn_zmq *zmq,
    struct kvn_loop *loop, const struct kvn_replay_options *options,
    struct kvn_replay **out)
{
    struct kvn_replay *replay = KVI_NEW(alloc, struct kvn_replay);
    kvg_err err;

    *out = NULL;
    if (replay == NULL)
        return KVG_ENOMEM;
    replay->alloc = alloc;
    replay->loop = loop;
    replay->options = *options;
    replay->watch = (struct kvn_watch){.fd = -1, .on_ready = on_ready, .context = replay};
    replay->more = (struct kvn_timer){.on_due = read_some, .context = replay};
    err = open_socket(replay, zmq);
    if (err != KVG_OK) {
        kvn_replay_cancel(replay);
        return err;
    }
    kvn_timer_set(loop, &replay->more, kvn_loop_now_ms(loop)); /* P1 */
    *out = replay;
    return KVG_OK;
}
