/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* Tests of the subscriber and of the HTTP client against peers that behave, and that do not. */
#include "net/http_get.h"
#include "net/sub.h"
#include "test.h"

#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

#define WAIT_MS 20000u

static struct kvn_loop *loop;
static struct kvn_resolver *resolver;

static int set_up(void **state)
{
    (void)state;
    CHECK_EQ(kvn_loop_new(kvg_alloc_default(), &loop), KVG_OK);
    CHECK_EQ(kvn_resolver_new(kvg_alloc_default(), loop, &resolver), KVG_OK);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    kvn_resolver_free(resolver);
    kvn_loop_free(loop);
    return 0;
}

/* Turns the loop until the flag is set. */
static void turn_until(const bool *done)
{
    uint64_t until_ms = kvn_clock_ms() + WAIT_MS;

    while (!*done) {
        kvn_loop_turn(loop, 10);
        if (kvn_clock_ms() > until_ms)
            fail_msg("it did not come about");
    }
}

/* A server for one connection ---------------------------------------------------------------- */

struct server {
    int listener;
    uint16_t port;
    pthread_t thread;
    const char *answer;
    size_t answer_bytes;
    size_t piece; /* Bytes a send; 0: all. */
    bool stalls;  /* Keeps the connection open and says nothing more. */
    int held;
};

static void *run_server(void *context)
{
    struct server *server = context;
    int fd = accept(server->listener, NULL, NULL);
    size_t piece = server->piece == 0 ? server->answer_bytes : server->piece;
    char request[4096];

    if (fd < 0)
        return NULL;
    if (recv(fd, request, sizeof(request), 0) > 0) {
        for (size_t at = 0; at < server->answer_bytes; at += piece) {
            size_t left = server->answer_bytes - at;

            if (send(fd, server->answer + at, left < piece ? left : piece, MSG_NOSIGNAL) <
                0)
                break;
        }
    }
    if (server->stalls)
        server->held = fd;
    else
        close(fd);
    return NULL;
}

static void start_server(struct server *server, const char *answer, size_t bytes)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t address_bytes = sizeof(address);

    server->answer = answer;
    server->answer_bytes = bytes;
    server->held = -1;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    server->listener = socket(AF_INET, SOCK_STREAM, 0);
    CHECK_EQ(bind(server->listener, (struct sockaddr *)&address, sizeof(address)), 0);
    CHECK_EQ(listen(server->listener, 4), 0);
    CHECK_EQ(
        getsockname(server->listener, (struct sockaddr *)&address, &address_bytes), 0);
    server->port = ntohs(address.sin_port);
    CHECK_EQ(pthread_create(&server->thread, NULL, run_server, server), 0);
}

static void stop_server(struct server *server)
{
    shutdown(server->listener, SHUT_RDWR);
    pthread_join(server->thread, NULL);
    close(server->listener);
    if (server->held >= 0)
        close(server->held);
}

struct got {
    bool done;
    kvg_err err;
    uint32_t status;
    char reason[200];
    uint64_t bytes;
    uint64_t sum;
};

static void on_body(void *context, struct kvg_str bytes)
{
    struct got *got = context;

    got->bytes += bytes.bytes;
    for (size_t i = 0; i < bytes.bytes; i++)
        got->sum += (unsigned char)bytes.data[i];
}

static void on_done(void *context, kvg_err err, uint32_t status, const char *reason)
{
    struct got *got = context;

    assert_false(got->done);
    got->done = true;
    got->err = err;
    got->status = status;
    snprintf(got->reason, sizeof(got->reason), "%s", reason != NULL ? reason : "");
}

static struct kvn_http_get *start_get(
    const char *host, uint16_t port, struct got *got, uint64_t idle_ms)
{
    struct kvn_url url = {.port = port};
    struct kvn_http_get_options options = {.url = &url,
        .path = {"/x", 2},
        .timeout_ms = WAIT_MS,
        .idle_ms = idle_ms,
        .body_bytes_max = 1 << 24,
        .on_body = on_body,
        .on_done = on_done,
        .context = got};
    struct kvn_http_get *get;

    memset(got, 0, sizeof(*got));
    snprintf(url.host, sizeof(url.host), "%s", host);
    CHECK_EQ(
        kvn_http_get_start(kvg_alloc_default(), loop, resolver, &options, &get), KVG_OK);
    CHECK(!got->done);
    return get;
}

static void get_from(struct server *server, struct got *got)
{
    start_get("127.0.0.1", server->port, got, WAIT_MS);
    turn_until(&got->done);
    stop_server(server);
}

TEST(a_large_body_is_streamed_whatever_the_pieces)
{
    static char answer[300000];
    struct server server = {.piece = 7001};
    struct got got;
    int head = snprintf(
        answer, sizeof(answer), "HTTP/1.1 200 OK\r\nContent-Length: 250000\r\n\r\n");

    memset(answer + head, 1, 250000);
    start_server(&server, answer, (size_t)head + 250000);
    get_from(&server, &got);
    CHECK_EQ(got.err, KVG_OK);
    CHECK_EQ(got.bytes, 250000);
    CHECK_EQ(got.sum, 250000);
}

TEST(an_answer_that_is_not_200_is_a_failure_without_a_body)
{
    static const char ANSWER[] = "HTTP/1.1 503 No\r\nContent-Length: 2\r\n\r\nno";
    struct server server = {.piece = 1};
    struct got got;

    start_server(&server, ANSWER, sizeof(ANSWER) - 1);
    get_from(&server, &got);
    CHECK_EQ(got.err, KVG_EIO);
    CHECK_EQ(got.status, 503);
    CHECK_EQ(got.bytes, 0);
    CHECK(strstr(got.reason, "503") != NULL);
}

TEST(a_peer_that_breaks_off_stalls_or_talks_nonsense_is_told_apart)
{
    static const char CUT[] = "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhel";
    static const char NONSENSE[] = "\0\1\2 SSH-2.0 hello\r\n\r\n";
    struct server server = {.piece = 0};
    struct got got;

    start_server(&server, CUT, sizeof(CUT) - 1);
    get_from(&server, &got);
    CHECK_EQ(got.err, KVG_EFORMAT);
    CHECK_EQ(got.bytes, 3);

    start_server(&server, NONSENSE, sizeof(NONSENSE) - 1);
    get_from(&server, &got);
    CHECK_EQ(got.err, KVG_EFORMAT);
    CHECK(strstr(got.reason, "is this an HTTP port") != NULL);

    server.stalls = true;
    start_server(&server, CUT, sizeof(CUT) - 1);
    start_get("127.0.0.1", server.port, &got, 50);
    turn_until(&got.done);
    stop_server(&server);
    CHECK_EQ(got.err, KVG_ETIMEOUT);
}

TEST(nobody_there_and_no_such_name_are_failures)
{
    struct server server = {.piece = 0};
    struct got got;

    start_server(&server, "", 0);
    stop_server(&server);
    start_get("127.0.0.1", server.port, &got, WAIT_MS);
    turn_until(&got.done);
    CHECK_EQ(got.err, KVG_EIO);

    start_get("no-such-host.invalid", 80, &got, WAIT_MS);
    turn_until(&got.done);
    CHECK_EQ(got.err, KVG_EIO);
    CHECK(got.reason[0] != '\0');
}

TEST(a_name_is_resolved_and_a_cancelled_request_stays_silent)
{
    static const char ANSWER[] = "HTTP/1.1 200 OK\r\n\r\nhi";
    struct server server = {.piece = 0};
    struct kvn_http_get *get;
    struct got got;

    start_server(&server, ANSWER, sizeof(ANSWER) - 1);
    start_get("localhost", server.port, &got, WAIT_MS);
    turn_until(&got.done);
    stop_server(&server);
    CHECK_EQ(got.err, KVG_OK);
    CHECK_EQ(got.bytes, 2);

    start_server(&server, ANSWER, sizeof(ANSWER) - 1);
    get = start_get("localhost", server.port, &got, WAIT_MS);
    kvn_http_get_cancel(get);
    get = start_get("127.0.0.1", server.port, &got, WAIT_MS);
    kvn_loop_turn(loop, 0);
    kvn_http_get_cancel(get);
    for (int i = 0; i < 5; i++)
        kvn_loop_turn(loop, 1);
    CHECK(!got.done);
    stop_server(&server);
}

/* The subscriber ----------------------------------------------------------------------------- */

struct followed {
    struct kvn_zmq *zmq;
    struct kvn_sub *sub;
    void *context;
    void *publisher;
    char endpoint[64];
    bool ready;
};

static void on_ready(void *context)
{
    struct followed *followed = context;

    followed->ready = true;
}

static void bind_publisher(struct followed *followed, const char *endpoint)
{
    size_t bytes = sizeof(followed->endpoint);
    int zero = 0;

    followed->publisher = zmq_socket(followed->context, ZMQ_XPUB);
    zmq_setsockopt(followed->publisher, ZMQ_LINGER, &zero, sizeof(zero));
    zmq_setsockopt(followed->publisher, ZMQ_SNDHWM, &zero, sizeof(zero));
    for (int i = 0; zmq_bind(followed->publisher, endpoint) != 0; i++) {
        assert_true(i < 400);
        usleep(5000);
    }
    CHECK_EQ(zmq_getsockopt(
                 followed->publisher, ZMQ_LAST_ENDPOINT, followed->endpoint, &bytes),
        0);
}

static void wait_subscriber(struct followed *followed)
{
    zmq_pollitem_t item = {.socket = followed->publisher, .events = ZMQ_POLLIN};
    char message[8];

    do {
        CHECK_EQ(zmq_poll(&item, 1, WAIT_MS), 1);
        CHECK(zmq_recv(followed->publisher, message, sizeof(message), 0) >= 1);
    } while (message[0] != 1);
}

static void follow(struct followed *followed, uint64_t queue_bytes_max)
{
    struct kvn_sub_options options = {.queue_bytes_max = queue_bytes_max,
        .message_bytes_max = 1 << 16,
        .receive_hwm = 1000,
        .on_ready = on_ready,
        .context = followed};

    memset(followed, 0, sizeof(*followed));
    followed->context = zmq_ctx_new();
    bind_publisher(followed, "tcp://127.0.0.1:*");
    options.endpoint = followed->endpoint;
    CHECK_EQ(kvn_zmq_new(kvg_alloc_default(), &followed->zmq), KVG_OK);
    CHECK_EQ(
        kvn_sub_new(kvg_alloc_default(), followed->zmq, loop, &options, &followed->sub),
        KVG_OK);
    wait_subscriber(followed);
}

static void leave(struct followed *followed)
{
    kvn_sub_free(followed->sub);
    kvn_zmq_free(followed->zmq);
    zmq_close(followed->publisher);
    zmq_ctx_term(followed->context);
}

/* The next item, turning the loop until there is one. */
static const struct kvn_sub_item *next_item(struct followed *followed)
{
    const struct kvn_sub_item *item;

    while (!kvn_sub_take(followed->sub, &item)) {
        followed->ready = false;
        turn_until(&followed->ready);
    }
    return item;
}

TEST(messages_come_in_order_between_connected_and_disconnected)
{
    struct followed followed;
    const struct kvn_sub_item *item;
    char endpoint[64];

    follow(&followed, 1 << 20);
    CHECK_EQ(next_item(&followed)->kind, KVN_SUB_CONNECTED);
    for (unsigned char i = 0; i < 100; i++) {
        CHECK_EQ(zmq_send(followed.publisher, "", 0, ZMQ_SNDMORE), 0);
        CHECK_EQ(zmq_send(followed.publisher, &i, 1, 0), 1);
    }
    for (unsigned char i = 0; i < 100; i++) {
        item = next_item(&followed);
        CHECK_EQ(item->kind, KVN_SUB_MESSAGE);
        CHECK_EQ(item->frame_count, 2);
        CHECK_EQ(item->frames[0].bytes, 0);
        CHECK_EQ((unsigned char)item->frames[1].data[0], i);
    }
    memcpy(endpoint, followed.endpoint, sizeof(endpoint));
    zmq_close(followed.publisher);
    CHECK_EQ(next_item(&followed)->kind, KVN_SUB_DISCONNECTED);
    bind_publisher(&followed, endpoint);
    CHECK_EQ(next_item(&followed)->kind, KVN_SUB_CONNECTED);
    leave(&followed);
}

TEST(a_message_of_many_frames_keeps_the_first_and_the_count)
{
    struct followed followed;
    const struct kvn_sub_item *item;

    follow(&followed, 1 << 20);
    next_item(&followed);
    for (int i = 0; i < 19; i++)
        CHECK_EQ(zmq_send(followed.publisher, "ab", 2, ZMQ_SNDMORE), 2);
    CHECK_EQ(zmq_send(followed.publisher, "z", 1, 0), 1);
    item = next_item(&followed);
    CHECK_EQ(item->frame_count, 20);
    CHECK_MEM(item->frames[KVN_FRAMES_MAX - 1].data, "ab", 2);
    leave(&followed);
}

TEST(a_full_queue_drops_and_counts_and_never_grows_beyond_its_limit)
{
    static char frame[1000];
    struct kvn_sub_stats stats;
    struct followed followed;
    const struct kvn_sub_item *item;
    uint64_t taken = 0;

    follow(&followed, 20000);
    for (int i = 0; i < 100; i++)
        CHECK_EQ(zmq_send(followed.publisher, frame, sizeof(frame), 0), sizeof(frame));
    do {
        usleep(1000);
        kvn_sub_stats(followed.sub, &stats);
    } while (stats.messages < 100);
    CHECK(stats.queue_bytes <= 21000);
    CHECK(stats.dropped_messages > 80);
    while (kvn_sub_take(followed.sub, &item))
        taken += item->kind == KVN_SUB_MESSAGE;
    CHECK_EQ(taken + stats.dropped_messages, 100);
    kvn_sub_stats(followed.sub, &stats);
    CHECK_EQ(stats.queue_bytes, 0);
    CHECK(stats.queue_bytes_peak <= 21000);
    leave(&followed);
}

TEST(a_port_that_speaks_something_else_never_counts_as_connected)
{
    static const char HELLO[] = "HTTP/1.1 400 Bad Request\r\n\r\n"
                                "and a lot more text, so that a greeting would be whole";
    struct server server = {.piece = 0};
    struct kvn_sub_options options = {.queue_bytes_max = 1 << 20,
        .message_bytes_max = 1 << 16,
        .receive_hwm = 10,
        .on_ready = on_ready};
    struct followed followed = {.ready = false};
    struct kvn_sub_stats stats;
    char endpoint[64];

    start_server(&server, HELLO, sizeof(HELLO) - 1);
    snprintf(endpoint, sizeof(endpoint), "tcp://127.0.0.1:%u", (unsigned)server.port);
    options.endpoint = endpoint;
    options.context = &followed;
    CHECK_EQ(kvn_zmq_new(kvg_alloc_default(), &followed.zmq), KVG_OK);
    CHECK_EQ(
        kvn_sub_new(kvg_alloc_default(), followed.zmq, loop, &options, &followed.sub),
        KVG_OK);
    do {
        usleep(2000);
        kvn_sub_stats(followed.sub, &stats);
    } while (stats.handshakes_failed == 0 && stats.connects_retried == 0);
    CHECK_EQ(stats.connects, 0);
    kvn_sub_free(followed.sub);
    kvn_zmq_free(followed.zmq);
    stop_server(&server);
}

TEST(an_endpoint_that_is_none_is_refused_and_another_one_is_taken)
{
    struct followed followed;
    char good[64];

    follow(&followed, 1 << 20);
    CHECK_EQ(next_item(&followed)->kind, KVN_SUB_CONNECTED);
    memcpy(good, followed.endpoint, sizeof(good));
    kvn_sub_connect(followed.sub, "nonsense://x");
    CHECK_EQ(next_item(&followed)->kind, KVN_SUB_DISCONNECTED);
    CHECK_EQ(next_item(&followed)->kind, KVN_SUB_REFUSED);
    kvn_sub_connect(followed.sub, good);
    CHECK_EQ(next_item(&followed)->kind, KVN_SUB_CONNECTED);
    leave(&followed);
}

#define RUN_IN_LOOP(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

TEST_MAIN(RUN_IN_LOOP(a_large_body_is_streamed_whatever_the_pieces),
    RUN_IN_LOOP(an_answer_that_is_not_200_is_a_failure_without_a_body),
    RUN_IN_LOOP(a_peer_that_breaks_off_stalls_or_talks_nonsense_is_told_apart),
    RUN_IN_LOOP(nobody_there_and_no_such_name_are_failures),
    RUN_IN_LOOP(a_name_is_resolved_and_a_cancelled_request_stays_silent),
    RUN_IN_LOOP(messages_come_in_order_between_connected_and_disconnected),
    RUN_IN_LOOP(a_message_of_many_frames_keeps_the_first_and_the_count),
    RUN_IN_LOOP(a_full_queue_drops_and_counts_and_never_grows_beyond_its_limit),
    RUN_IN_LOOP(a_port_that_speaks_something_else_never_counts_as_connected),
    RUN_IN_LOOP(an_endpoint_that_is_none_is_refused_and_another_one_is_taken))
