/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* test_redis.c -- the suite over `redis:` with a real redis-server, and then what happens when it
 * stops, starts again, forgets, or wants a password.  Skipped where there is none. */
#include "store/conformance.h"

#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SKIPPED 77
#define SERVERS 3

static char folder[64];
static unsigned places; /* A prefix of its own for each. */

struct server {
    pid_t pid;
    char socket[96];
};
static struct server servers[SERVERS];

static void nap(void)
{
    struct timespec time = {0, 10000000};

    nanosleep(&time, NULL);
}

static int dial(const struct server *server)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);

    snprintf(address.sun_path, sizeof(address.sun_path), "%s", server->socket);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0)
        return fd;
    close(fd);
    return -1;
}

/* One program has two names.  Debian's redis-tools has it under the other one, and starts no
 * service when it is installed. */
static void run_server(const char *socket_path, const char *password)
{
    static const char *const FILES[] = {
        "redis-server", "valkey-server", "redis-check-rdb"};
    size_t i;

    for (i = 0; i < sizeof(FILES) / sizeof(FILES[0]); i++)
        execlp(FILES[i], "redis-server", "--port", "0", "--unixsocket", socket_path,
            "--save", "", "--appendonly", "no", "--dir", folder, "--requirepass",
            password, (char *)NULL);
}

/* Starts it and waits until it answers. */
static bool start(struct server *server, unsigned number, const char *password)
{
    int tries;

    snprintf(server->socket, sizeof(server->socket), "%s/%u.sock", folder, number);
    server->pid = fork();
    if (server->pid == 0) {
        int null = open("/dev/null", O_RDWR);

        dup2(null, 0);
        dup2(null, 1);
        dup2(null, 2);
        run_server(server->socket, password);
        _exit(127);
    }
    for (tries = 0; server->pid > 0 && tries < 1000; tries++) {
        int status;
        int fd = dial(server);

        if (fd >= 0) {
            close(fd);
            return true;
        }
        if (waitpid(server->pid, &status, WNOHANG) == server->pid) {
            server->pid = 0;
            return false;
        }
        nap();
    }
    return false;
}

static void stop(struct server *server)
{
    if (server->pid <= 0)
        return;
    kill(server->pid, SIGKILL);
    waitpid(server->pid, NULL, 0);
    server->pid = 0;
}

/* Says something to a server past the store, and waits for the end of its answer's first line. */
static void tell(const struct server *server, const char *line, char *answer, size_t room)
{
    int fd = dial(server);
    size_t got = 0;

    CHECK(fd >= 0);
    CHECK_EQ(write(fd, line, strlen(line)), (ssize_t)strlen(line));
    while (got + 1 < room && memchr(answer, '\n', got) == NULL) {
        ssize_t bytes = read(fd, answer + got, room - 1 - got);

        CHECK(bytes > 0);
        got += (size_t)bytes;
    }
    answer[got] = '\0';
    close(fd);
}

/* The context is what stands before the scheme. */
static bool make(void *context, uint64_t bytes_max, char url[CONFORMANCE_URL_BYTES])
{
    snprintf(url, CONFORMANCE_URL_BYTES, "%sredis:%s?prefix=t%u:&bytes=%" PRIu64,
        (const char *)context, servers[0].socket, ++places,
        bytes_max == 0 ? UINT64_C(256) << 20 : bytes_max);
    return true;
}

static void destroy(void *context)
{
    char answer[64];

    (void)context;
    tell(&servers[0], "FLUSHALL\r\n", answer, sizeof(answer));
}

/* What only this backend does --------------------------------------------------------------- */

static struct kvg_str str(const char *text)
{
    return (struct kvg_str){text, strlen(text)};
}

static kvg_err put_named(struct kvg_store *store, const char *key)
{
    char value[100];
    struct kvg_store_piece piece = {value, sizeof(value)};
    struct kvg_store_part part = {str(key), &piece, 1};
    struct kvg_store_group group = {.parts = &part, .part_count = 1};
    struct kvg_error error;

    memset(value, key[0], sizeof(value));
    (void)(kvg_store_put(store, &group, 1, &error) == group.result);
    return group.result;
}

static kvg_err get_named(struct kvg_store *store, const char *key)
{
    char value[100];
    struct kvg_store_range range = {0, sizeof(value), value};
    struct kvg_store_get get = {.key = str(key), .ranges = &range, .range_count = 1};
    struct kvg_error error;

    (void)(kvg_store_get(store, &get, 1, &error) == get.result);
    if (get.result == KVG_OK) {
        CHECK_EQ(value[0], key[0]);
        CHECK_EQ(value[99], key[0]);
    }
    return get.result;
}

static struct kvg_store *open_one(const char *parameters)
{
    struct kvg_store *store;
    struct kvg_error error;
    char url[CONFORMANCE_URL_BYTES];

    snprintf(url, sizeof(url), "redis:%s?prefix=t%u:%s", servers[0].socket, ++places,
        parameters);
    if (kvg_store_open(url, NULL, &store, &error) != KVG_OK)
        fail_msg("%s", error.message);
    return store;
}

TEST(a_server_that_was_restarted_is_found_again)
{
    struct kvg_store *store = open_one("&retry_min=1&retry_max=20");
    struct kvg_store_stats stats = {.struct_bytes = sizeof(stats)};
    kvg_err err = KVG_EIO;
    int tries;

    CHECK_EQ(put_named(store, "a"), KVG_OK);
    stop(&servers[0]);
    CHECK_EQ(get_named(store, "a"), KVG_EIO);
    CHECK_EQ(put_named(store, "b"), KVG_EIO);
    CHECK(start(&servers[0], 0, ""));
    for (tries = 0; tries < 500 && err != KVG_OK; tries++) {
        err = put_named(store, "c");
        nap();
    }
    CHECK_EQ(err, KVG_OK);
    CHECK_EQ(get_named(store, "c"), KVG_OK);
    CHECK_EQ(get_named(store, "a"), KVG_ENOENT); /* It keeps nothing on disk. */
    kvg_store_stats(store, &stats);
    CHECK(stats.reconnects > 0);
    kvg_store_close(store);
}

TEST(a_server_that_is_down_is_left_alone_for_a_while)
{
    struct kvg_store *store = open_one("&retry_min=10min&retry_max=10min");
    struct kvg_str key = str("a");
    struct kvg_error error;
    uint8_t present;

    CHECK_EQ(put_named(store, "a"), KVG_OK);
    stop(&servers[0]);
    CHECK_EQ(kvg_store_exists(store, &key, 1, &present, NULL, &error), KVG_EIO);
    CHECK(start(&servers[0], 0, ""));
    CHECK_EQ(kvg_store_exists(store, &key, 1, &present, NULL, &error), KVG_EIO);
    CHECK(strstr(error.message, "next attempt in") != NULL);
    kvg_store_close(store);
}

TEST(scripts_that_the_server_forgot_are_loaded_again)
{
    struct kvg_store *store = open_one("");
    char answer[64];

    CHECK_EQ(put_named(store, "a"), KVG_OK);
    tell(&servers[0], "SCRIPT FLUSH SYNC\r\n", answer, sizeof(answer));
    CHECK_EQ(put_named(store, "b"), KVG_OK);
    CHECK_EQ(get_named(store, "b"), KVG_OK);
    kvg_store_close(store);
}

/* Values that the server dropped by itself become lost when somebody looks. */
struct heard {
    unsigned count[KVG_STORE_CLEARED + 1];
    uint64_t last;
};

static void hear(void *context, const struct kvg_store_change *change)
{
    struct heard *heard = context;

    heard->count[change->kind]++;
    CHECK_EQ(change->sequence, heard->last + 1);
    heard->last = change->sequence;
}

TEST(a_value_that_the_server_dropped_is_told_as_lost)
{
    struct heard heard = {{0}, 0};
    struct kvg_store_options options = {
        .struct_bytes = sizeof(options), .hook = {hear, &heard}};
    struct kvg_store_report report = {.struct_bytes = sizeof(report)};
    struct kvg_store *store;
    struct kvg_error error;
    char url[CONFORMANCE_URL_BYTES];
    char line[CONFORMANCE_URL_BYTES];
    char answer[64];

    snprintf(url, sizeof(url), "redis:%s?prefix=t%u:", servers[0].socket, ++places);
    CHECK_EQ(kvg_store_open(url, &options, &store, &error), KVG_OK);
    CHECK_EQ(put_named(store, "a"), KVG_OK);
    CHECK_EQ(put_named(store, "b"), KVG_OK);
    CHECK_EQ(put_named(store, "c"), KVG_OK);
    snprintf(line, sizeof(line), "DEL t%u:o:a t%u:o:b\r\n", places, places);
    tell(&servers[0], line, answer, sizeof(answer));
    CHECK_EQ(get_named(store, "a"), KVG_ENOENT);
    CHECK_EQ(kvg_store_poll(store, &error), KVG_OK);
    CHECK_EQ(heard.count[KVG_STORE_STORED], 3);
    CHECK_EQ(heard.count[KVG_STORE_LOST], 1);
    CHECK_EQ(kvg_store_check(store, false, NULL, NULL, &report, &error), KVG_OK);
    CHECK_EQ(report.damaged, 1);
    CHECK_EQ(report.dropped, 0);
    CHECK_EQ(kvg_store_check(store, true, NULL, NULL, &report, &error), KVG_OK);
    CHECK_EQ(report.dropped, 1);
    CHECK_EQ(heard.count[KVG_STORE_LOST], 2);
    kvg_store_close(store);
}

/* Several servers share the keys; what belongs together stays together. */
TEST(several_servers_share_pages_and_keep_each_whole)
{
    struct kvg_store *store;
    struct kvg_error error;
    char url[CONFORMANCE_URL_BYTES];
    char names[2][128];
    char value[8] = "valuexy";
    struct kvg_store_piece piece = {value, sizeof(value)};
    struct kvg_store_part parts[2];
    struct kvg_store_group group = {.parts = parts, .part_count = 2};
    struct kvg_store_stats stats = {.struct_bytes = sizeof(stats)};
    unsigned refused = 0;
    char answer[64];
    unsigned i;

    snprintf(url, sizeof(url), "redis:%s,%s,%s?prefix=s:", servers[0].socket,
        servers[1].socket, servers[2].socket);
    CHECK_EQ(kvg_store_open(url, NULL, &store, &error), KVG_OK);
    CHECK_EQ(kvg_store_flags(store) & KVG_STORE_FOLLOWS, 0);
    parts[0] = (struct kvg_store_part){{names[0], 0}, &piece, 1};
    parts[1] = (struct kvg_store_part){{names[1], 0}, &piece, 1};
    for (i = 0; i < 300; i++) {
        parts[0].key.bytes = (size_t)snprintf(
            names[0], sizeof(names[0]), "model_%064x_0_k", i * 2654435761u);
        parts[1].key.bytes = (size_t)snprintf(
            names[1], sizeof(names[1]), "model_%064x_0_v", i * 2654435761u);
        CHECK_EQ(kvg_store_put(store, &group, 1, &error), KVG_OK);
        CHECK_EQ(group.result, KVG_OK);
    }
    kvg_store_stats(store, &stats);
    CHECK_EQ(stats.objects, 600);
    for (i = 0; i < SERVERS; i++) { /* Each has a fair part. */
        tell(&servers[i], "HLEN s:info\r\n", answer, sizeof(answer));
        CHECK(strtol(answer + 1, NULL, 10) > 60);
    }
    for (i = 0; i < 20; i++) {
        parts[0].key.bytes = (size_t)snprintf(names[0], sizeof(names[0]), "x%u", i);
        parts[1].key.bytes = (size_t)snprintf(names[1], sizeof(names[1]), "y%u", i);
        refused += kvg_store_put(store, &group, 1, &error) == KVG_EINVAL;
    }
    CHECK(refused > 0);
    parts[0].key.bytes = (size_t)snprintf(names[0], sizeof(names[0]), "x{together}");
    parts[1].key.bytes = (size_t)snprintf(names[1], sizeof(names[1]), "y{together}");
    CHECK_EQ(kvg_store_put(store, &group, 1, &error), KVG_OK);
    kvg_store_close(store);
}

TEST(a_password_comes_from_a_file_or_the_environment_and_is_never_shown)
{
    struct server guarded = {0, ""};
    struct kvg_store *store;
    struct kvg_error error;
    char url[CONFORMANCE_URL_BYTES];
    char path[96];
    FILE *file;

    CHECK(start(&guarded, 9, "open-sesame"));
    snprintf(url, sizeof(url), "redis:%s", guarded.socket);
    CHECK_EQ(kvg_store_open(url, NULL, &store, &error), KVG_EIO);
    CHECK(strstr(error.message, "NOAUTH") != NULL);
    snprintf(path, sizeof(path), "%s/password", folder);
    file = fopen(path, "w");
    CHECK(file != NULL);
    fputs("open-sesame\n", file);
    fclose(file);
    snprintf(url, sizeof(url), "redis:%s?password_file=%s", guarded.socket, path);
    CHECK_EQ(kvg_store_open(url, NULL, &store, &error), KVG_OK);
    CHECK_EQ(put_named(store, "a"), KVG_OK);
    kvg_store_close(store);
    setenv("KVGRAFT_REDIS_PASSWORD", "wrong-sesame", 1);
    snprintf(url, sizeof(url), "redis:%s", guarded.socket);
    CHECK_EQ(kvg_store_open(url, NULL, &store, &error), KVG_EIO);
    CHECK(strstr(error.message, "sesame") == NULL);
    setenv("KVGRAFT_REDIS_PASSWORD", "open-sesame", 1);
    CHECK_EQ(kvg_store_open(url, NULL, &store, &error), KVG_OK);
    kvg_store_close(store);
    unsetenv("KVGRAFT_REDIS_PASSWORD");
    stop(&guarded);
}

TEST(tls_is_refused_in_words)
{
    struct kvg_store *store;
    struct kvg_error error;

    CHECK_EQ(kvg_store_open("rediss://h:1", NULL, &store, &error), KVG_EUNSUPPORTED);
    CHECK(strstr(error.message, "TLS") != NULL);
}

static int run_own(void)
{
    const struct CMUnitTest tests[] = {RUN(a_server_that_was_restarted_is_found_again),
        RUN(a_server_that_is_down_is_left_alone_for_a_while),
        RUN(scripts_that_the_server_forgot_are_loaded_again),
        RUN(a_value_that_the_server_dropped_is_told_as_lost),
        RUN(several_servers_share_pages_and_keep_each_whole),
        RUN(a_password_comes_from_a_file_or_the_environment_and_is_never_shown),
        RUN(tls_is_refused_in_words)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(void)
{
    static char plain[] = "";
    static char wrapped[] = "fault+";
    static const struct conformance_backend REDIS = {.name = "redis",
        .make = make,
        .destroy = destroy,
        .context = plain,
        .value_max = UINT64_C(16) << 20};
    static const struct conformance_backend FAULT = {.name = "fault+redis",
        .make = make,
        .destroy = destroy,
        .context = wrapped,
        .value_max = UINT64_C(1) << 20,
        .threads = 8};
    char command[96];
    int failed;
    unsigned i;

    signal(SIGPIPE, SIG_IGN);
    snprintf(folder, sizeof(folder), "/tmp/kvgraft-redis-XXXXXX");
    if (mkdtemp(folder) == NULL)
        return 1;
    for (i = 0; i < SERVERS; i++) {
        if (!start(&servers[i], i, "")) {
            printf("redis-server is not on this machine: skipped\n");
            rmdir(folder);
            return SKIPPED;
        }
    }
    failed = conformance_run(&REDIS) + conformance_run(&FAULT);
    failed += run_own();
    for (i = 0; i < SERVERS; i++)
        stop(&servers[i]);
    snprintf(command, sizeof(command), "rm -rf %s", folder);
    failed += system(command) != 0;
    return failed != 0;
}
