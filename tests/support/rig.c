/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* rig.c -- a store and an HTTP client for tests of the daemon. */
#include "rig.h"

#include "base/fmt.h"
#include "net/loop.h"
#include "test.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

#define OBJECTS_MAX 4096
#define WAIT_MS 20000u

struct store {
    void *context;
    void *socket;
    char endpoint[64];
    char admin_url[64];
    struct kvg_event_writer *writer;
    uint64_t sequence;
    uint64_t event_id;
    int listener;
    pthread_t thread;
    atomic_bool open;
    pthread_mutex_t lock; /* Of what the admin port tells. */
    char *objects[OBJECTS_MAX];
    size_t object_count;
    uint64_t batches;
    uint64_t dropped;
};

/* The admin port --------------------------------------------------------------------------- */

static size_t write_answer(struct store *store, const char *path, char *body, size_t room)
{
    size_t at = 0;

    body[0] = '\0';
    pthread_mutex_lock(&store->lock);
    if (strncmp(path, "/get_all_keys", 13) == 0) {
        for (size_t i = 0; i < store->object_count; i++)
            at += (size_t)snprintf(body + at, room - at, "%s\n", store->objects[i]);
    } else if (strncmp(path, "/metrics", 8) == 0) {
        at = (size_t)snprintf(
            body, room, "# x\nmaster_key_count %zu\n", store->object_count);
    } else if (strncmp(path, "/kv_events/status", 17) == 0) {
        at = (size_t)snprintf(body, room,
            "{\"enabled\":true,\"published_batches\":%llu,\"published_events\":%llu,"
            "\"dropped_events\":%llu}",
            (unsigned long long)store->batches, (unsigned long long)store->event_id,
            (unsigned long long)store->dropped);
    }
    pthread_mutex_unlock(&store->lock);
    return at;
}

static void serve_one(struct store *store, int fd)
{
    static const size_t ROOM = OBJECTS_MAX * 128;
    char request[8192];
    char head[256];
    char *body = malloc(ROOM);
    ssize_t got = recv(fd, request, sizeof(request) - 1, 0);
    size_t bytes;

    if (got > 4 && body != NULL && atomic_load(&store->open)) {
        request[got] = '\0';
        bytes = write_answer(store, request + 4, body, ROOM);
        snprintf(head, sizeof(head),
            "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n", bytes);
        if (send(fd, head, strlen(head), MSG_NOSIGNAL) > 0)
            (void)!send(fd, body, bytes, MSG_NOSIGNAL);
    }
    free(body);
    close(fd);
}

static void *run_admin(void *context)
{
    struct store *store = context;

    for (;;) {
        int fd = accept(store->listener, NULL, NULL);

        if (fd < 0)
            return NULL;
        serve_one(store, fd);
    }
}

static void start_admin(struct store *store)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t bytes = sizeof(address);

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    store->listener = socket(AF_INET, SOCK_STREAM, 0);
    CHECK_EQ(bind(store->listener, (struct sockaddr *)&address, sizeof(address)), 0);
    CHECK_EQ(listen(store->listener, 16), 0);
    CHECK_EQ(getsockname(store->listener, (struct sockaddr *)&address, &bytes), 0);
    snprintf(store->admin_url, sizeof(store->admin_url), "http://127.0.0.1:%u",
        (unsigned)ntohs(address.sin_port));
    CHECK_EQ(pthread_create(&store->thread, NULL, run_admin, store), 0);
}

/* The store -------------------------------------------------------------------------------- */

struct store *store_new(void)
{
    struct store *store = calloc(1, sizeof(*store));
    size_t bytes = sizeof(store->endpoint);
    int zero = 0;
    int one = 1;

    CHECK(store != NULL);
    atomic_store(&store->open, true);
    pthread_mutex_init(&store->lock, NULL);
    store->context = zmq_ctx_new();
    store->socket = zmq_socket(store->context, ZMQ_XPUB);
    zmq_setsockopt(store->socket, ZMQ_LINGER, &zero, sizeof(zero));
    zmq_setsockopt(store->socket, ZMQ_SNDHWM, &zero, sizeof(zero));
    zmq_setsockopt(store->socket, ZMQ_XPUB_VERBOSE, &one, sizeof(one));
    CHECK_EQ(zmq_bind(store->socket, "tcp://127.0.0.1:*"), 0);
    CHECK_EQ(
        zmq_getsockopt(store->socket, ZMQ_LAST_ENDPOINT, store->endpoint, &bytes), 0);
    CHECK_EQ(kvg_event_writer_new(
                 kvg_alloc_default(), KVG_DIALECT_MOONCAKE_LEGACY, &store->writer),
        KVG_OK);
    start_admin(store);
    return store;
}

void store_free(struct store *store)
{
    shutdown(store->listener, SHUT_RDWR);
    pthread_join(store->thread, NULL);
    close(store->listener);
    zmq_close(store->socket);
    zmq_ctx_term(store->context);
    kvg_event_writer_free(store->writer);
    for (size_t i = 0; i < store->object_count; i++)
        free(store->objects[i]);
    pthread_mutex_destroy(&store->lock);
    free(store);
}

const char *store_endpoint(const struct store *store)
{
    return store->endpoint;
}

const char *store_admin_url(const struct store *store)
{
    return store->admin_url;
}

void store_open_admin(struct store *store, bool open)
{
    atomic_store(&store->open, open);
}

void store_wait_subscriber(struct store *store)
{
    zmq_pollitem_t item = {.socket = store->socket, .events = ZMQ_POLLIN};
    char message[8];

    do { /* A 0 says that somebody left. */
        CHECK_EQ(zmq_poll(&item, 1, WAIT_MS), 1);
        CHECK(zmq_recv(store->socket, message, sizeof(message), 0) >= 1);
    } while (message[0] != 1);
}

static void name_object(const struct kvg_key *page, const char *suffix, char *out)
{
    kvg_key_to_hex(page, out);
    memcpy(out + KVG_KEY_HEX_BYTES - 1, suffix, strlen(suffix) + 1);
}

static void remember(struct store *store, const char *name, bool stored)
{
    size_t at = 0;

    pthread_mutex_lock(&store->lock);
    while (at < store->object_count && strcmp(store->objects[at], name) != 0)
        at++;
    if (stored && at == store->object_count) {
        assert_true(at < OBJECTS_MAX);
        store->objects[store->object_count++] = strdup(name);
    } else if (!stored && at < store->object_count) {
        free(store->objects[at]);
        store->objects[at] = store->objects[--store->object_count];
    }
    pthread_mutex_unlock(&store->lock);
}

static void send_frames(struct store *store, struct kvg_str payload)
{
    uint8_t sequence[8];

    kvg_sequence_encode(store->sequence, sequence);
    CHECK(zmq_send(store->socket, "", 0, ZMQ_SNDMORE) >= 0);
    CHECK(zmq_send(store->socket, sequence, 8, ZMQ_SNDMORE) >= 0);
    CHECK(zmq_send(store->socket, payload.data, payload.bytes, 0) >= 0);
}

static void publish(struct store *store, enum kvg_event_kind kind, const char *name)
{
    struct kvg_event event = {.kind = kind,
        .form = KVG_FORM_OBJECT,
        .medium = KVG_MEDIUM_CPU,
        .medium_name = kvi_str("cpu"),
        .has_event_id = true,
        .has_timestamp = true,
        .timestamp_ms = 1000,
        .object_key = kvi_str(name),
        .tenant_id = kvi_str("default"),
        .backend_id = kvi_str("pool")};
    struct kvg_str payload;

    pthread_mutex_lock(&store->lock);
    store->sequence++;
    store->batches++;
    event.event_id = ++store->event_id;
    pthread_mutex_unlock(&store->lock);
    kvg_event_writer_begin(store->writer, 1000, true, 0);
    kvg_event_writer_add(store->writer, &event, NULL, 0, NULL, 0);
    CHECK_EQ(kvg_event_writer_end(store->writer, &payload), KVG_OK);
    send_frames(store, payload);
}

void store_put(struct store *store, const struct kvg_key *page, const char *suffix)
{
    char name[KVG_OBJECT_KEY_BYTES_MAX + 1];

    name_object(page, suffix, name);
    remember(store, name, true);
    publish(store, KVG_EVENT_STORED, name);
}

void store_remove(struct store *store, const struct kvg_key *page, const char *suffix)
{
    char name[KVG_OBJECT_KEY_BYTES_MAX + 1];

    name_object(page, suffix, name);
    remember(store, name, false);
    publish(store, KVG_EVENT_REMOVED, name);
}

void store_put_silently(
    struct store *store, const struct kvg_key *page, const char *suffix)
{
    char name[KVG_OBJECT_KEY_BYTES_MAX + 1];

    name_object(page, suffix, name);
    remember(store, name, true);
}

void store_send_rubbish(struct store *store, const void *bytes, size_t byte_count)
{
    CHECK(zmq_send(store->socket, bytes, byte_count, 0) >= 0);
}

void store_skip(struct store *store)
{
    pthread_mutex_lock(&store->lock);
    store->sequence++;
    store->event_id++;
    store->dropped++;
    pthread_mutex_unlock(&store->lock);
}

/* The client ------------------------------------------------------------------------------- */

static bool send_all(int fd, const char *data, size_t bytes)
{
    while (bytes > 0) {
        ssize_t sent = send(fd, data, bytes, MSG_NOSIGNAL);

        if (sent <= 0)
            return false;
        data += sent;
        bytes -= (size_t)sent;
    }
    return true;
}

static bool receive_all(int fd, struct answer *out)
{
    size_t capacity = 1 << 16;
    char *text = malloc(capacity);
    size_t bytes = 0;
    char *body;

    for (;;) {
        ssize_t got;

        if (bytes + 1 == capacity)
            text = realloc(text, capacity *= 2);
        assert_non_null(text);
        got = recv(fd, text + bytes, capacity - bytes - 1, 0);
        if (got <= 0)
            break;
        bytes += (size_t)got;
    }
    text[bytes] = '\0';
    body = strstr(text, "\r\n\r\n");
    if (body == NULL || strncmp(text, "HTTP/1.1 ", 9) != 0 ||
        (size_t)(body - text) >= sizeof(out->head)) {
        free(text);
        return false;
    }
    out->status = (int)strtol(text + 9, NULL, 10);
    memcpy(out->head, text, (size_t)(body - text));
    out->head[body - text] = '\0';
    out->body_bytes = bytes - (size_t)(body + 4 - text);
    memmove(text, body + 4, out->body_bytes + 1);
    out->body = text;
    return true;
}

bool ask_bytes(uint16_t port, const char *method, const char *path, const char *headers,
    const void *body, size_t body_bytes, struct answer *out)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    char head[2048];
    bool good;

    memset(out, 0, sizeof(*out));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    snprintf(head, sizeof(head),
        "%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n%sContent-Length: %zu\r\n\r\n",
        method, path, headers, body_bytes);
    good = connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0 &&
           send_all(fd, head, strlen(head)) &&
           (send_all(fd, body, body_bytes) || body_bytes > 0) && receive_all(fd, out);
    close(fd);
    return good;
}

bool ask(uint16_t port, const char *method, const char *path, const char *body,
    struct answer *out)
{
    return ask_bytes(port, method, path,
        body[0] != '\0' ? "Content-Type: application/json\r\n" : "", body, strlen(body),
        out);
}

void answer_free(struct answer *answer)
{
    free(answer->body);
    answer->body = NULL;
}

void ask_until(uint16_t port, const char *path, int status, const char *text)
{
    uint64_t until_ms = kvn_clock_ms() + WAIT_MS;
    struct answer answer;

    for (;;) {
        bool good = ask(port, "GET", path, "", &answer) && answer.status == status &&
                    strstr(answer.body, text) != NULL;

        if (!good && kvn_clock_ms() > until_ms)
            fail_msg("%s does not say %d \"%s\": %d %s", path, status, text,
                answer.status, answer.body);
        answer_free(&answer);
        if (good)
            return;
        usleep(5000);
    }
}
