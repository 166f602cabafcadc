/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* http.c -- libmicrohttpd's side: connections in, answers out.
 *
 *     NEW --(headers)--> refused early --------------------------------------> answer
 *      |                                                                         ^
 *      +--> BODY ... --> run on this thread -------------------------------------+
 *                  \---> suspended: posted to the loop, run there, resumed ------+
 *
 * Questions run on the thread that read them and never wait for the loop.  What changes the
 * daemon (workers, sources, dumps) runs on the loop while the connection sleeps.
 *
 * Invariants:
 *
 *     W1  A thread that answers has a seat of its own, given at its first request.
 *     W2  Every suspended request is resumed: at stop, new ones are refused and the loop turns
 *         until none is left.
 *     W3  A body never grows beyond its limit, nor all bodies together beyond theirs; the rest of
 *         what is refused is read and dropped.
 */
#include "daemon/daemon_internal.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/fmt.h"
#include "net/http_get.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define CONNECTION_MEMORY_BYTES (64u << 10) /* Request line and headers fit in this. */
#define DRAIN_S 2

static _Thread_local struct kvd_daemon *seat_daemon;
static _Thread_local struct kvd_answerer *seat_answerer;

/* Answers ---------------------------------------------------------------------------------- */

void kvd_problem(struct kvd_request *request, unsigned status, const char *code,
    const char *field, const char *detail)
{
    kvd_out_reset(&request->out, KVD_KEEP_BYTES_MAX);
    kvd_out_printf(&request->out, "{\"type\":\"urn:kvgraft:problem:%s\",\"status\":%u",
        code, status);
    kvd_out_key(&request->out, "title");
    kvd_out_json(&request->out, kvi_str(code));
    if (field != NULL && field[0] != '\0') {
        kvd_out_key(&request->out, "field");
        kvd_out_json(&request->out, kvi_str(field));
    }
    kvd_out_key(&request->out, "detail");
    kvd_out_json(&request->out, kvi_str(detail));
    kvd_out_text(&request->out, "}\n");
    request->status = status;
    request->content_type = "application/problem+json";
}

void kvd_refuse(struct kvd_request *request, unsigned status, const char *code,
    const char *field, const char *predicate)
{
    char detail[320];

    snprintf(detail, sizeof(detail), "%s %s", field, predicate);
    kvd_problem(request, status, code, field, detail);
}

void kvd_problem_error(struct kvd_request *request, const struct kvg_error *error)
{
    unsigned status = 500;
    const char *code = "internal";

    switch (error->code) {
    case KVG_EINVAL:
    case KVG_EFORMAT:
        status = 400;
        code = "bad-value";
        break;
    case KVG_ELIMIT:
        status = 400;
        code = "limit";
        break;
    case KVG_ENOENT:
        status = 404;
        code = "not-found";
        break;
    case KVG_EEXIST:
    case KVG_ESTATE:
    case KVG_EMISMATCH:
        status = 409;
        code = "conflict";
        break;
    case KVG_ENOMEM:
    case KVG_EBUSY:
        status = 503;
        code = "busy";
        break;
    case KVG_EUNSUPPORTED:
        status = 501;
        code = "unsupported";
        break;
    default:
        break;
    }
    kvd_refuse(request, status, code, error->field, error->message);
}

struct kvg_str kvd_query_value(const struct kvd_request *request, const char *name)
{
    return kvi_str(
        MHD_lookup_connection_value(request->connection, MHD_GET_ARGUMENT_KIND, name));
}

bool kvd_request_json(struct kvd_request *request)
{
    json_error_t failure;
    char detail[256];

    json_decref(request->json);
    request->json = json_loadb(request->body.data != NULL ? request->body.data : "",
        request->body.bytes, JSON_REJECT_DUPLICATES, &failure);
    if (request->json != NULL && json_is_object(request->json))
        return true;
    if (request->json != NULL)
        snprintf(detail, sizeof(detail), "the body is not a JSON object");
    else
        snprintf(detail, sizeof(detail), "the body is not JSON: line %d, column %d: %s",
            failure.line, failure.column, failure.text);
    kvd_problem(request, 400, "bad-json", "body", detail);
    return false;
}

static void count_status(struct kvd_request *request)
{
    struct kvd_block *block = request->answerer->block;

    kvd_count(block,
        request->status < 400   ? KVD_HTTP_2XX
        : request->status < 500 ? KVD_HTTP_4XX
                                : KVD_HTTP_5XX,
        1);
    kvd_observe_us(block, KVD_REQUEST_TIME, kvn_clock_us() - request->began_us);
}

static struct MHD_Response *make_response(struct kvd_request *request)
{
    struct stat about;

    if (request->out.failed)
        kvd_problem(
            request, 503, "busy", "answer", "the answer does not fit into memory");
    if (request->file >= 0 && fstat(request->file, &about) == 0) {
        int file = request->file;

        request->file = -1; /* The response closes it. */
        return MHD_create_response_from_fd64((uint64_t)about.st_size, file);
    }
    return MHD_create_response_from_buffer(
        request->out.bytes, request->out.data, MHD_RESPMEM_MUST_COPY);
}

static enum MHD_Result send_answer(struct kvd_request *request)
{
    struct MHD_Response *response = make_response(request);
    enum MHD_Result result;

    if (response == NULL)
        return MHD_NO;
    MHD_add_response_header(response, "Content-Type", request->content_type);
    MHD_add_response_header(response, "Cache-Control", "no-store");
    MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    if (request->policy != NULL) {
        MHD_add_response_header(response, "Content-Security-Policy", request->policy);
        MHD_add_response_header(response, "Referrer-Policy", "no-referrer");
    }
    if (request->status == 401)
        MHD_add_response_header(response, "WWW-Authenticate", "Bearer");
    if (request->allow != NULL)
        MHD_add_response_header(response, "Allow", request->allow);
    result = MHD_queue_response(request->connection, request->status, response);
    MHD_destroy_response(response);
    count_status(request);
    return result;
}

/* Requests --------------------------------------------------------------------------------- */

/* W1 */
static struct kvd_answerer *own_answerer(struct kvd_daemon *daemon)
{
    size_t seat;

    if (seat_daemon == daemon)
        return seat_answerer;
    seat = atomic_fetch_add(&daemon->seats_taken, 1);
    if (seat >= daemon->answerer_count)
        return NULL;
    seat_daemon = daemon;
    seat_answerer = &daemon->answerers[seat];
    return seat_answerer;
}

static void drop_body(struct kvd_request *request)
{
    atomic_fetch_sub(&request->daemon->bodies_bytes, request->body.bytes);
    kvd_out_fini(&request->body);
}

static void free_request(struct kvd_request *request)
{
    struct kvd_daemon *daemon = request->daemon;

    if (request->file >= 0)
        close(request->file);
    json_decref(request->json);
    drop_body(request);
    kvd_out_fini(&request->out);
    KVI_FREE(daemon->alloc, request);
    pthread_mutex_lock(&daemon->http_lock);
    if (--daemon->requests == 0)
        pthread_cond_signal(&daemon->http_idle);
    pthread_mutex_unlock(&daemon->http_lock);
}

static void on_completed(void *context, struct MHD_Connection *connection,
    void **request_slot, enum MHD_RequestTerminationCode code)
{
    (void)context;
    (void)connection;
    (void)code;
    if (*request_slot != NULL)
        free_request(*request_slot);
    *request_slot = NULL;
}

static struct kvd_request *new_request(
    struct kvd_daemon *daemon, struct MHD_Connection *connection)
{
    struct kvd_request *request = KVI_NEW(daemon->alloc, struct kvd_request);

    if (request == NULL)
        return NULL;
    request->daemon = daemon;
    request->connection = connection;
    request->file = -1;
    request->status = 200;
    request->content_type = "application/json";
    kvd_out_init(&request->body, daemon->alloc);
    kvd_out_init(&request->out, daemon->alloc);
    pthread_mutex_lock(&daemon->http_lock);
    daemon->requests++;
    pthread_mutex_unlock(&daemon->http_lock);
    return request;
}

/* Equal in a time that does not tell where they differ. */
static bool token_matches(const char *given, const char *wanted)
{
    size_t given_bytes = strlen(given);
    size_t wanted_bytes = strlen(wanted);
    unsigned difference = given_bytes != wanted_bytes;

    for (size_t i = 0; i < given_bytes; i++)
        difference |= (unsigned char)given[i] ^
                      (unsigned char)wanted[wanted_bytes > 0 ? i % wanted_bytes : 0];
    return difference == 0;
}

static bool is_authorised(struct kvd_request *request)
{
    static const char BEARER[] = "Bearer ";
    const char *given = MHD_lookup_connection_value(
        request->connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_AUTHORIZATION);
    bool good;

    pthread_mutex_lock(&request->daemon->http_lock);
    good = request->daemon->token[0] == '\0' ||
           (given != NULL && strncmp(given, BEARER, sizeof(BEARER) - 1) == 0 &&
               token_matches(given + sizeof(BEARER) - 1, request->daemon->token));
    pthread_mutex_unlock(&request->daemon->http_lock);
    return good;
}

/* Finds the route; false after a problem. */
static bool find_route(struct kvd_request *request, const char *method, const char *path)
{
    const char *wanted = strcmp(method, "HEAD") == 0 ? "GET" : method;
    const char *allow = NULL;

    for (size_t i = 0; i < KVD_ROUTE_COUNT; i++) {
        if (strcmp(KVD_ROUTES[i].path, path) != 0)
            continue;
        allow = KVD_ROUTES[i].method;
        if (strcmp(KVD_ROUTES[i].method, wanted) == 0) {
            request->route = &KVD_ROUTES[i];
            return true;
        }
    }
    if (allow == NULL) {
        kvd_problem(request, 404, "not-found", "path",
            "there is no such path; GET /openapi.json lists them");
        kvd_count(request->answerer->block, KVD_REFUSED_PATH, 1);
    } else {
        kvd_problem(
            request, 405, "method", "method", "the path does not take this method");
        request->allow = allow;
        kvd_count(request->answerer->block, KVD_REFUSED_METHOD, 1);
    }
    return false;
}

/* Whether the type of the body is one the route takes.  None at all counts as JSON. */
static bool check_type(struct kvd_request *request)
{
    const char *type = MHD_lookup_connection_value(
        request->connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_TYPE);

    if (strcmp(request->route->method, "GET") == 0 || type == NULL ||
        strncasecmp(type, "application/json", 16) == 0 ||
        strncasecmp(type, "application/x-www-form-urlencoded", 33) == 0)
        return true;
    request->is_binary = strncasecmp(type, "application/octet-stream", 24) == 0;
    if (request->is_binary && (request->route->flags & KVD_BINARY) != 0)
        return true;
    kvd_refuse(request, 415, "content-type", "Content-Type",
        (request->route->flags & KVD_BINARY) != 0
            ? "is neither application/json nor application/octet-stream (u32 "
              "little-endian)"
            : "is not application/json");
    kvd_count(request->answerer->block, KVD_REFUSED_TYPE, 1);
    return false;
}

static void refuse_large(struct kvd_request *request)
{
    char detail[160];

    snprintf(detail, sizeof(detail),
        "the body is larger than http.body_bytes_max (%llu); send the tokens as "
        "application/octet-stream, or raise the limit",
        (unsigned long long)atomic_load(&request->daemon->body_bytes_max));
    kvd_problem(request, 413, "limit", "http.body_bytes_max", detail);
    kvd_count(request->answerer->block, KVD_REFUSED_LARGE, 1);
    request->is_refused = true;
}

/* The headers are there. */
static void begin_request(
    struct kvd_request *request, const char *method, const char *path)
{
    const char *length = MHD_lookup_connection_value(
        request->connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_LENGTH);

    request->is_refused = true;
    if (!find_route(request, method, path))
        return;
    if ((request->route->flags & KVD_NO_TOKEN) == 0 && !is_authorised(request)) {
        kvd_refuse(request, 401, "unauthorized", "Authorization",
            "is not \"Bearer TOKEN\" with the token of this daemon");
        kvd_count(request->answerer->block, KVD_REFUSED_AUTH, 1);
        return;
    }
    if (!check_type(request))
        return;
    request->is_refused = false;
    if (length != NULL &&
        strtoull(length, NULL, 10) > atomic_load(&request->daemon->body_bytes_max))
        refuse_large(request);
}

static void refuse_busy(struct kvd_request *request)
{
    kvd_refuse(request, 503, "busy", "http.bodies_bytes_max",
        "is reached by the requests under way; try again");
    kvd_count(request->answerer->block, KVD_REFUSED_BUSY, 1);
    request->is_refused = true;
}

static void take_body(struct kvd_request *request, const char *data, size_t bytes)
{
    if (request->is_refused) /* W3 */
        return;
    if (request->body.bytes + bytes > atomic_load(&request->daemon->body_bytes_max)) {
        refuse_large(request);
        drop_body(request);
        return;
    }
    if (atomic_load(&request->daemon->bodies_bytes) + bytes >
        request->daemon->config.http_bodies_bytes_max) {
        refuse_busy(request);
        drop_body(request);
        return;
    }
    kvd_count(request->answerer->block, KVD_BODY_BYTES, bytes);
    kvd_out_bytes(&request->body, data, bytes);
    if (!request->body.failed)
        atomic_fetch_add(&request->daemon->bodies_bytes, bytes);
}

static void run_here(struct kvd_request *request)
{
    request->snapshot = kvd_snapshot_acquire(&request->daemon->publisher);
    request->route->run(request);
    kvd_snapshot_release(&request->daemon->publisher, request->snapshot);
    request->snapshot = NULL;
}

/* The loop's part --------------------------------------------------------------------------- */

static void make_tenant(struct kvd_request *request)
{
    struct kvd_feed *feed =
        kvd_daemon_feed(request->daemon, kvi_str(request->source_wanted));
    struct kvg_error error = {.code = KVG_OK};

    request->tenant_made = true;
    if (feed == NULL) {
        kvd_problem(request, 404, "not-found", "source", "the source is gone");
        request->answered = true;
        return;
    }
    if (kvd_feed_add_tenant(feed, kvi_str(request->tenant_wanted), &error) != KVG_OK) {
        kvd_problem_error(request, &error);
        request->answered = true;
    }
    request->tenant_wanted[0] = '\0';
}

static void run_on_loop(void *context)
{
    struct kvd_request *request = context;
    struct kvd_daemon *daemon = request->daemon;

    if (request->tenant_wanted[0] != '\0') {
        make_tenant(request);
    } else {
        request->route->run(request);
        request->answered = true;
    }
    MHD_resume_connection(request->connection);
    pthread_mutex_lock(&daemon->http_lock);
    if (--daemon->jobs == 0)
        pthread_cond_signal(&daemon->http_idle);
    pthread_mutex_unlock(&daemon->http_lock);
}

static enum MHD_Result wait_for_loop(struct kvd_request *request)
{
    struct kvd_daemon *daemon = request->daemon;
    bool closing;

    pthread_mutex_lock(&daemon->http_lock);
    closing = daemon->closing;
    if (!closing)
        daemon->jobs++; /* W2 */
    pthread_mutex_unlock(&daemon->http_lock);
    if (closing) {
        kvd_problem(request, 503, "busy", NULL, "the daemon is stopping");
        kvd_count(request->answerer->block, KVD_REFUSED_BUSY, 1);
        return send_answer(request);
    }
    request->job = (struct kvn_task){.run = run_on_loop, .context = request};
    MHD_suspend_connection(request->connection);
    kvn_loop_post(daemon->loop, &request->job);
    return MHD_YES;
}

/* The body is there, or the loop has done its part. */
static enum MHD_Result finish_request(struct kvd_request *request)
{
    if (request->body.failed && !request->is_refused) {
        kvd_problem(request, 503, "busy", "body", "the body does not fit into memory");
        request->is_refused = true;
    }
    if (request->is_refused || request->answered)
        return send_answer(request);
    if (request->began_us == 0)
        request->began_us = kvn_clock_us();
    if ((request->route->flags & KVD_ON_LOOP) != 0)
        return wait_for_loop(request);
    run_here(request);
    if (request->tenant_wanted[0] != '\0')
        return wait_for_loop(request);
    return send_answer(request);
}

static enum MHD_Result on_request(void *context, struct MHD_Connection *connection,
    const char *path, const char *method, const char *version, const char *data,
    size_t *data_bytes, void **request_slot)
{
    struct kvd_daemon *daemon = context;
    struct kvd_request *request = *request_slot;
    struct kvd_answerer *answerer = own_answerer(daemon);

    (void)version;
    if (answerer == NULL)
        return MHD_NO;
    if (request == NULL) {
        request = new_request(daemon, connection);
        if (request == NULL)
            return MHD_NO;
        *request_slot = request;
        request->answerer = answerer;
        begin_request(request, method, path);
        return request->is_refused ? send_answer(request) : MHD_YES;
    }
    request->answerer = answerer;
    if (*data_bytes > 0) {
        take_body(request, data, *data_bytes);
        *data_bytes = 0;
        return MHD_YES;
    }
    return finish_request(request);
}

/* Life ------------------------------------------------------------------------------------- */

static KVG_PRINTF(2, 0) void on_mhd_log(
    void *context, const char *format, va_list arguments)
{
    struct kvd_daemon *daemon = context;
    char text[256];

    vsnprintf(text, sizeof(text), format, arguments);
    for (char *c = text; *c != '\0'; c++) {
        if (*c == '\n')
            *c = ' ';
    }
    kvd_log(daemon->log, KVG_LOG_DEBUG, "http", NULL, "%s", text);
}

static struct MHD_Daemon *start_on(struct kvd_daemon *daemon, int listener)
{
    const struct kvd_config *config = &daemon->config;

    return MHD_start_daemon(
        MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG, 0,
        NULL, NULL, on_request, daemon, MHD_OPTION_EXTERNAL_LOGGER, on_mhd_log, daemon,
        MHD_OPTION_LISTEN_SOCKET, listener, MHD_OPTION_THREAD_POOL_SIZE,
        (unsigned)(config->http_threads > 1 ? config->http_threads : 0),
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)config->http_connections_max,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_MEMORY_BYTES,
        MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)((config->http_timeout_ms + 999) / 1000),
        MHD_OPTION_NOTIFY_COMPLETED, on_completed, daemon, MHD_OPTION_END);
}

static kvg_err fail_errno(struct kvg_error *error, const char *field, const char *what)
{
    char message[192];

    snprintf(message, sizeof(message), "%.100s: %.60s", what, strerror(errno));
    return kvi_fail(error, KVG_EIO, field, message);
}

static int listen_tcp(struct kvd_daemon *daemon, struct kvg_error *error)
{
    char host[KVN_HOST_BYTES];
    struct kvn_address address;
    socklen_t bytes = sizeof(address.address);
    uint16_t port;
    int one = 1;
    int fd;

    if (kvn_host_port_parse(kvi_str(daemon->config.http_listen), "http.listen", error,
            host, &port) != KVG_OK)
        return -1;
    if (!kvn_address_numeric(
            strcmp(host, "localhost") == 0 ? "127.0.0.1" : host, port, &address)) {
        kvi_fail(error, KVG_EINVAL, "http.listen",
            "is not a numeric address, e.g. 127.0.0.1:7433 or 0.0.0.0:7433");
        return -1;
    }
    fd = socket(address.address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) != 0 ||
        bind(fd, (const struct sockaddr *)&address.address, address.bytes) != 0 ||
        listen(fd, 511) != 0 ||
        getsockname(fd, (struct sockaddr *)&address.address, &bytes) != 0) {
        fail_errno(error, "http.listen", daemon->config.http_listen);
        if (fd >= 0)
            close(fd);
        return -1;
    }
    /* The port stands at the same place in both families. */
    daemon->port = ntohs(((const struct sockaddr_in *)&address.address)->sin_port);
    return fd;
}

static int listen_unix(struct kvd_daemon *daemon, struct kvg_error *error)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const char *path = daemon->config.http_unix_socket;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct stat about;

    memcpy(address.sun_path, path, strlen(path) + 1);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0) {
        kvi_fail(error, KVG_EEXIST, "http.unix_socket", "another process serves it");
        close(fd);
        return -1;
    }
    if (stat(path, &about) == 0 && S_ISSOCK(about.st_mode))
        unlink(path); /* Left behind: nobody answers there. */
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof(address)) != 0 ||
        chmod(path, 0660) != 0 || listen(fd, 511) != 0) {
        fail_errno(error, "http.unix_socket", path);
        if (fd >= 0)
            close(fd);
        return -1;
    }
    return fd;
}

kvg_err kvd_http_start(struct kvd_daemon *daemon, struct kvg_error *error)
{
    int fd;

    if (daemon->config.http_listen[0] != '\0') {
        fd = listen_tcp(daemon, error);
        if (fd < 0)
            return KVG_EIO;
        daemon->tcp = start_on(daemon, fd);
        if (daemon->tcp == NULL) {
            close(fd);
            return kvi_fail(
                error, KVG_EIO, "http.listen", "the HTTP server did not start");
        }
    }
    if (daemon->config.http_unix_socket[0] != '\0') {
        fd = listen_unix(daemon, error);
        if (fd < 0)
            return KVG_EIO;
        daemon->unix_socket = start_on(daemon, fd);
        if (daemon->unix_socket == NULL) {
            close(fd);
            return kvi_fail(
                error, KVG_EIO, "http.unix_socket", "the HTTP server did not start");
        }
    }
    return KVG_OK;
}

static void stop_listening(struct MHD_Daemon *server)
{
    int fd = server != NULL ? MHD_quiesce_daemon(server) : -1;

    if (fd >= 0)
        close(fd);
}

void kvd_http_stop(struct kvd_daemon *daemon)
{
    struct timespec until;

    if (daemon->tcp == NULL && daemon->unix_socket == NULL)
        return;
    stop_listening(daemon->tcp);
    stop_listening(daemon->unix_socket);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += DRAIN_S;
    pthread_mutex_lock(&daemon->http_lock);
    daemon->closing = true;
    while (daemon->jobs > 0) /* W2: the loop still turns. */
        pthread_cond_wait(&daemon->http_idle, &daemon->http_lock);
    while (daemon->requests > 0 &&
           pthread_cond_timedwait(&daemon->http_idle, &daemon->http_lock, &until) == 0)
        continue;
    pthread_mutex_unlock(&daemon->http_lock);
    if (daemon->tcp != NULL)
        MHD_stop_daemon(daemon->tcp);
    if (daemon->unix_socket != NULL) {
        MHD_stop_daemon(daemon->unix_socket);
        unlink(daemon->config.http_unix_socket);
    }
    daemon->tcp = NULL;
    daemon->unix_socket = NULL;
}
