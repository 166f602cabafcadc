/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* sub.c -- a subscriber's thread and its queue (sub.h).
 *
 *     publisher ==> libzmq I/O thread ==> SUB, monitor --+--> receiver thread
 *                                         eventfd -------+         | copies
 *                                                                  v
 *     loop: kvn_sub_take() <--- taken list <--- swap <--- queue (lock, bytes limited)
 *
 * Messages are copied: libzmq hands small ones out as references into an 8 KiB receive buffer,
 * so keeping the originals could pin eighty times the bytes that were counted.
 *
 * Invariants:
 *
 *     Q1  queue_bytes counts every node that is in the queue or in the taken list, with its
 *         header; it exceeds queue_bytes_max by at most the small "connected" nodes.
 *     Q2  Messages that were in the socket when the connection ended come before
 *         KVN_SUB_DISCONNECTED.
 *     Q3  A message never comes while the loop believes that there is no connection.
 *     Q4  After a connection has ended, somebody tries to make a new one: libzmq, which says so,
 *         or, where it has given up (a peer that broke the protocol), this thread.
 *     Q5  on_ready is posted when the queue turns from empty to not empty, and only then; posting
 *         and taking back happen under the queue's lock, so it is never posted twice.
 *
 *     what                    who
 *     ----------------------  ------------------------------------------------------
 *     socket, monitor         receiver thread only
 *     queue, wanted endpoint  both, under `lock`
 *     taken list              loop
 *     counters                written by one, read by any (relaxed atomics)
 */
#include "net/sub.h"

#include "base/alloc.h"
#include "base/assert.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <zmq.h>

#define ENDPOINT_BYTES 256u
#define CONNECT_TIMEOUT_MS 5000
#define HANDSHAKE_MS 5000
#define HEARTBEAT_MS 5000
#define HEARTBEAT_TIMEOUT_MS 15000
#define RECONNECT_MS 100
#define RECONNECT_MAX_MS 5000
#define REOPEN_MS 1000
#define RECEIVE_BATCH 256 /* Messages between two looks at the monitor. */

struct kvn_zmq {
    const struct kvg_alloc *alloc;
    void *context;
    atomic_uint monitors; /* Makes the monitors' names unique. */
};

struct node {
    struct node *next;
    size_t bytes; /* Of the whole allocation. */
    struct kvn_sub_item item;
    char data[];
};

struct kvn_sub {
    const struct kvg_alloc *alloc;
    struct kvn_zmq *zmq;
    struct kvn_loop *loop;
    struct kvn_sub_options options;
    struct kvn_task ready;
    int wake_fd;
    pthread_t thread;
    bool thread_runs;

    pthread_mutex_t lock;
    struct node *queue;
    struct node **queue_end;
    bool ready_posted; /* The loop has, or will get, a call of on_ready. */
    bool wants_connect;
    bool wants_stop;
    char wanted_endpoint[ENDPOINT_BYTES];

    struct node *taken; /* Loop only. */
    struct node *current;

    void *socket; /* Receiver thread only, from here. */
    void *monitor;
    bool is_connected;
    uint64_t reopen_ms; /* When to open anew; 0: libzmq looks after itself. */
    char endpoint[ENDPOINT_BYTES];

    atomic_uint_least64_t messages, bytes, dropped_messages, dropped_bytes;
    atomic_uint_least64_t queue_bytes, queue_bytes_peak, connects, disconnects;
    atomic_uint_least64_t handshakes_failed, connects_retried, bad_endpoints;
};

static void count(atomic_uint_least64_t *counter, uint64_t by)
{
    atomic_fetch_add_explicit(counter, by, memory_order_relaxed);
}

static uint64_t read_count(const atomic_uint_least64_t *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

/* The context ------------------------------------------------------------------------------ */

kvg_err kvn_zmq_new(const struct kvg_alloc *alloc, struct kvn_zmq **out)
{
    struct kvn_zmq *zmq = KVI_NEW(alloc, struct kvn_zmq);

    *out = NULL;
    if (zmq == NULL)
        return KVG_ENOMEM;
    zmq->alloc = alloc;
    zmq->context = zmq_ctx_new();
    if (zmq->context == NULL) {
        KVI_FREE(alloc, zmq);
        return KVG_ENOMEM;
    }
    zmq_ctx_set(zmq->context, ZMQ_BLOCKY, 0);
    *out = zmq;
    return KVG_OK;
}

void *kvn_zmq_context(struct kvn_zmq *zmq)
{
    return zmq->context;
}

void kvn_zmq_free(struct kvn_zmq *zmq)
{
    if (zmq == NULL)
        return;
    while (zmq_ctx_term(zmq->context) != 0 && zmq_errno() == EINTR)
        continue;
    KVI_FREE(zmq->alloc, zmq);
}

/* The queue -------------------------------------------------------------------------------- */

static void free_node(struct kvn_sub *sub, struct node *node)
{
    if (node == NULL)
        return;
    atomic_fetch_sub_explicit(&sub->queue_bytes, node->bytes, memory_order_relaxed);
    kvi_release_array(sub->alloc, node, node->bytes, 1);
}

/* Room for an item with `bytes` of frames, or NULL: over the limit (unless `always`), no memory. */
static struct node *new_node(struct kvn_sub *sub, size_t bytes, bool always)
{
    size_t whole = sizeof(struct node) + bytes;
    struct node *node;
    uint64_t total;

    if (!always && read_count(&sub->queue_bytes) + whole > sub->options.queue_bytes_max)
        return NULL; /* Q1 */
    node = kvi_alloc_array_raw(sub->alloc, whole, 1);
    if (node == NULL)
        return NULL;
    memset(node, 0, sizeof(*node));
    node->bytes = whole;
    node->item.received_us = kvn_clock_us();
    total =
        atomic_fetch_add_explicit(&sub->queue_bytes, whole, memory_order_relaxed) + whole;
    if (total > read_count(&sub->queue_bytes_peak))
        atomic_store_explicit(&sub->queue_bytes_peak, total, memory_order_relaxed);
    return node;
}

static void push(struct kvn_sub *sub, struct node *node)
{
    pthread_mutex_lock(&sub->lock);
    *sub->queue_end = node;
    sub->queue_end = &node->next;
    if (!sub->ready_posted) /* Q5 */
        kvn_loop_post(sub->loop, &sub->ready);
    sub->ready_posted = true;
    pthread_mutex_unlock(&sub->lock);
}

/* A state change must not be lost for want of memory: then it is tried again by the thread. */
static bool push_state(struct kvn_sub *sub, enum kvn_sub_item_kind kind)
{
    struct node *node = new_node(sub, 0, true);

    if (node == NULL)
        return false;
    node->item.kind = kind;
    push(sub, node);
    return true;
}

static void set_connected(struct kvn_sub *sub, bool connected)
{
    if (sub->is_connected == connected)
        return;
    count(connected ? &sub->connects : &sub->disconnects, 1);
    if (push_state(sub, connected ? KVN_SUB_CONNECTED : KVN_SUB_DISCONNECTED))
        sub->is_connected = connected;
}

/* The receiver thread ---------------------------------------------------------------------- */

/* One message, all its parts; false if there is none. */
static bool receive_message(struct kvn_sub *sub)
{
    zmq_msg_t parts[KVN_FRAMES_MAX];
    uint32_t part_count = 0;
    uint32_t kept = 0;
    size_t bytes = 0;
    struct node *node;
    bool more = true;

    while (more) {
        zmq_msg_t extra;
        zmq_msg_t *part = part_count < KVN_FRAMES_MAX ? &parts[part_count] : &extra;

        zmq_msg_init(part);
        if (zmq_msg_recv(part, sub->socket, ZMQ_DONTWAIT) < 0) {
            zmq_msg_close(part);
            break;
        }
        more = zmq_msg_more(part) != 0;
        if (part == &extra)
            zmq_msg_close(part);
        else
            bytes += zmq_msg_size(part);
        part_count++;
    }
    if (part_count == 0)
        return false;
    kept = part_count < KVN_FRAMES_MAX ? part_count : KVN_FRAMES_MAX;
    set_connected(sub, true); /* Q3: a peer of an old protocol has no handshake. */
    count(&sub->messages, 1);
    count(&sub->bytes, bytes);
    node = new_node(sub, bytes, false);
    if (node == NULL) {
        count(&sub->dropped_messages, 1);
        count(&sub->dropped_bytes, bytes);
    }
    for (size_t i = 0, at = 0; i < kept; i++) {
        size_t part_bytes = zmq_msg_size(&parts[i]);

        if (node != NULL) {
            memcpy(node->data + at, zmq_msg_data(&parts[i]), part_bytes);
            node->item.frames[i] = (struct kvg_str){node->data + at, part_bytes};
            at += part_bytes;
        }
        zmq_msg_close(&parts[i]);
    }
    if (node != NULL) {
        node->item.kind = KVN_SUB_MESSAGE;
        node->item.frame_count = part_count;
        push(sub, node);
    }
    return true;
}

static void drain_messages(struct kvn_sub *sub, int message_max)
{
    for (int i = 0; i < message_max && receive_message(sub); i++)
        continue;
}

/* One event of the monitor; false if there is none. */
static bool take_monitor_event(struct kvn_sub *sub)
{
    uint8_t head[64];
    uint16_t event;
    char address[ENDPOINT_BYTES];

    if (zmq_recv(sub->monitor, head, sizeof(head), ZMQ_DONTWAIT) < (int)sizeof(event))
        return false;
    memcpy(&event, head, sizeof(event));
    zmq_recv(sub->monitor, address, sizeof(address), ZMQ_DONTWAIT);
    switch (event) {
    case ZMQ_EVENT_HANDSHAKE_SUCCEEDED:
        sub->reopen_ms = 0;
        set_connected(sub, true);
        break;
    case ZMQ_EVENT_DISCONNECTED:
    case ZMQ_EVENT_CLOSED:
        drain_messages(sub, sub->options.receive_hwm + 1); /* Q2 */
        set_connected(sub, false);
        sub->reopen_ms = kvn_clock_ms() + REOPEN_MS; /* Q4 */
        break;
    case ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL:
    case ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL:
    case ZMQ_EVENT_HANDSHAKE_FAILED_AUTH:
        count(&sub->handshakes_failed, 1);
        sub->reopen_ms = kvn_clock_ms() + REOPEN_MS;
        break;
    case ZMQ_EVENT_CONNECT_RETRIED:
        count(&sub->connects_retried, 1);
        sub->reopen_ms = 0;
        break;
    default:
        break;
    }
    return true;
}

static void close_sockets(struct kvn_sub *sub)
{
    if (sub->socket != NULL) {
        drain_messages(sub, sub->options.receive_hwm + 1);
        zmq_socket_monitor(sub->socket, NULL, 0);
        zmq_close(sub->socket);
    }
    if (sub->monitor != NULL)
        zmq_close(sub->monitor);
    sub->socket = NULL;
    sub->monitor = NULL;
    set_connected(sub, false);
}

static void set_int(void *socket, int option, int value)
{
    zmq_setsockopt(socket, option, &value, sizeof(value));
}

static void set_options(struct kvn_sub *sub)
{
    int64_t message_bytes_max = (int64_t)sub->options.message_bytes_max;

    set_int(sub->socket, ZMQ_RCVHWM, sub->options.receive_hwm);
    set_int(sub->socket, ZMQ_CONNECT_TIMEOUT, CONNECT_TIMEOUT_MS);
    set_int(sub->socket, ZMQ_HANDSHAKE_IVL, HANDSHAKE_MS);
    set_int(sub->socket, ZMQ_HEARTBEAT_IVL, HEARTBEAT_MS);
    set_int(sub->socket, ZMQ_HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS);
    set_int(sub->socket, ZMQ_RECONNECT_IVL, RECONNECT_MS);
    set_int(sub->socket, ZMQ_RECONNECT_IVL_MAX, RECONNECT_MAX_MS);
    set_int(sub->socket, ZMQ_TCP_KEEPALIVE, 1);
    set_int(sub->socket, ZMQ_TCP_KEEPALIVE_IDLE, 30);
    set_int(sub->socket, ZMQ_TCP_KEEPALIVE_INTVL, 10);
    set_int(sub->socket, ZMQ_TCP_KEEPALIVE_CNT, 3);
    set_int(sub->socket, ZMQ_LINGER, 0);
    set_int(sub->socket, ZMQ_IPV6, 1);
    zmq_setsockopt(
        sub->socket, ZMQ_MAXMSGSIZE, &message_bytes_max, sizeof(message_bytes_max));
    zmq_setsockopt(sub->socket, ZMQ_SUBSCRIBE, "", 0);
}

/* Opens towards `endpoint`; on failure nothing is open, and it is tried again. */
static void open_sockets(struct kvn_sub *sub)
{
    static const int EVENTS = ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED |
                              ZMQ_EVENT_CLOSED | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                              ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL |
                              ZMQ_EVENT_HANDSHAKE_FAILED_AUTH | ZMQ_EVENT_CONNECT_RETRIED;
    char name[64];

    sub->reopen_ms = 0;
    if (sub->endpoint[0] == '\0')
        return;
    snprintf(name, sizeof(name), "inproc://monitor-%u",
        atomic_fetch_add(&sub->zmq->monitors, 1));
    sub->socket = zmq_socket(sub->zmq->context, ZMQ_SUB);
    sub->monitor = zmq_socket(sub->zmq->context, ZMQ_PAIR);
    if (sub->socket == NULL || sub->monitor == NULL)
        goto fail;
    set_options(sub);
    set_int(sub->monitor, ZMQ_LINGER, 0);
    if (zmq_socket_monitor(sub->socket, name, EVENTS) != 0 ||
        zmq_connect(sub->monitor, name) != 0)
        goto fail;
    if (zmq_connect(sub->socket, sub->endpoint) != 0)
        goto fail;
    return;

fail:
    count(&sub->bad_endpoints, 1);
    close_sockets(sub);
    if (!push_state(sub, KVN_SUB_REFUSED))
        count(&sub->dropped_messages, 1);
    sub->reopen_ms = kvn_clock_ms() + REOPEN_MS;
}

/* Does what the loop asked for; false when it asked to stop. */
static bool follow_wishes(struct kvn_sub *sub)
{
    bool stop;
    bool reconnect;

    pthread_mutex_lock(&sub->lock);
    stop = sub->wants_stop;
    reconnect = sub->wants_connect;
    sub->wants_connect = false;
    if (reconnect)
        memcpy(sub->endpoint, sub->wanted_endpoint, sizeof(sub->endpoint));
    pthread_mutex_unlock(&sub->lock);
    if (stop)
        return false;
    if (reconnect || (sub->reopen_ms > 0 && kvn_clock_ms() >= sub->reopen_ms)) {
        close_sockets(sub);
        open_sockets(sub);
    }
    return true;
}

static long wait_ms(const struct kvn_sub *sub)
{
    uint64_t now_ms = kvn_clock_ms();

    if (sub->reopen_ms == 0)
        return -1;
    return sub->reopen_ms > now_ms ? (long)(sub->reopen_ms - now_ms) : 0;
}

static void *run_thread(void *context)
{
    struct kvn_sub *sub = context;

    while (follow_wishes(sub)) {
        zmq_pollitem_t items[3] = {{.fd = sub->wake_fd, .events = ZMQ_POLLIN},
            {.socket = sub->monitor, .events = ZMQ_POLLIN},
            {.socket = sub->socket, .events = ZMQ_POLLIN}};
        uint64_t wakes;

        zmq_poll(items, sub->socket != NULL ? 3 : 1, wait_ms(sub));
        if ((items[0].revents & ZMQ_POLLIN) != 0 &&
            read(sub->wake_fd, &wakes, sizeof(wakes)) < 0)
            continue;
        if (sub->socket == NULL)
            continue;
        while (take_monitor_event(sub))
            continue;
        drain_messages(sub, RECEIVE_BATCH);
    }
    close_sockets(sub);
    return NULL;
}

static void wake_thread(struct kvn_sub *sub)
{
    uint64_t one = 1;
    ssize_t written = write(sub->wake_fd, &one, sizeof(one));

    (void)written;
}

/* The loop's side -------------------------------------------------------------------------- */

static void on_ready(void *context)
{
    struct kvn_sub *sub = context;

    sub->options.on_ready(sub->options.context);
}

void kvn_sub_free(struct kvn_sub *sub)
{
    if (sub == NULL)
        return;
    if (sub->thread_runs) {
        pthread_mutex_lock(&sub->lock);
        sub->wants_stop = true;
        pthread_mutex_unlock(&sub->lock);
        wake_thread(sub);
        pthread_join(sub->thread, NULL);
    }
    kvn_loop_unpost(sub->loop, &sub->ready);
    while (sub->taken != NULL) {
        struct node *node = sub->taken;

        sub->taken = node->next;
        free_node(sub, node);
    }
    while (sub->queue != NULL) {
        struct node *node = sub->queue;

        sub->queue = node->next;
        free_node(sub, node);
    }
    free_node(sub, sub->current);
    if (sub->wake_fd >= 0)
        close(sub->wake_fd);
    pthread_mutex_destroy(&sub->lock);
    KVI_FREE(sub->alloc, sub);
}

kvg_err kvn_sub_new(const struct kvg_alloc *alloc, struct kvn_zmq *zmq,
    struct kvn_loop *loop, const struct kvn_sub_options *options, struct kvn_sub **out)
{
    struct kvn_sub *sub;

    *out = NULL;
    if (strlen(options->endpoint) >= ENDPOINT_BYTES)
        return KVG_ELIMIT;
    sub = KVI_NEW(alloc, struct kvn_sub);
    if (sub == NULL)
        return KVG_ENOMEM;
    sub->alloc = alloc;
    sub->zmq = zmq;
    sub->loop = loop;
    sub->options = *options;
    sub->options.endpoint = NULL;
    sub->queue_end = &sub->queue;
    sub->ready = (struct kvn_task){.run = on_ready, .context = sub};
    sub->wants_connect = true;
    memcpy(sub->wanted_endpoint, options->endpoint, strlen(options->endpoint) + 1);
    pthread_mutex_init(&sub->lock, NULL);
    sub->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (sub->wake_fd < 0 || pthread_create(&sub->thread, NULL, run_thread, sub) != 0) {
        kvn_sub_free(sub);
        return KVG_EIO;
    }
    sub->thread_runs = true;
    *out = sub;
    return KVG_OK;
}

void kvn_sub_connect(struct kvn_sub *sub, const char *endpoint)
{
    pthread_mutex_lock(&sub->lock);
    if (endpoint != NULL && strlen(endpoint) < ENDPOINT_BYTES)
        memcpy(sub->wanted_endpoint, endpoint, strlen(endpoint) + 1);
    sub->wants_connect = true;
    pthread_mutex_unlock(&sub->lock);
    wake_thread(sub);
}

bool kvn_sub_take(struct kvn_sub *sub, const struct kvn_sub_item **out)
{
    free_node(sub, sub->current);
    sub->current = NULL;
    *out = NULL;
    if (sub->taken == NULL) {
        pthread_mutex_lock(&sub->lock);
        sub->taken = sub->queue;
        sub->queue = NULL;
        sub->queue_end = &sub->queue;
        if (sub->taken == NULL && sub->ready_posted) {
            kvn_loop_unpost(sub->loop, &sub->ready); /* Taken before it was called. */
            sub->ready_posted = false;
        }
        pthread_mutex_unlock(&sub->lock);
    }
    if (sub->taken == NULL)
        return false;
    sub->current = sub->taken;
    sub->taken = sub->current->next;
    *out = &sub->current->item;
    return true;
}

void kvn_sub_again(struct kvn_sub *sub)
{
    kvn_loop_post(sub->loop, &sub->ready);
}

void kvn_sub_stats(const struct kvn_sub *sub, struct kvn_sub_stats *out)
{
    *out = (struct kvn_sub_stats){
        .messages = read_count(&sub->messages),
        .bytes = read_count(&sub->bytes),
        .dropped_messages = read_count(&sub->dropped_messages),
        .dropped_bytes = read_count(&sub->dropped_bytes),
        .queue_bytes = read_count(&sub->queue_bytes),
        .queue_bytes_peak = read_count(&sub->queue_bytes_peak),
        .connects = read_count(&sub->connects),
        .disconnects = read_count(&sub->disconnects),
        .handshakes_failed = read_count(&sub->handshakes_failed),
        .connects_retried = read_count(&sub->connects_retried),
        .bad_endpoints = read_count(&sub->bad_endpoints),
    };
}
