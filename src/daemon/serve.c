/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* serve.c -- the command `kvgraft serve`: options, signals, and what systemd wants to hear.
 *
 *     SIGTERM, SIGINT   stop: drain, dump, exit 0; a second one exits at once
 *     SIGHUP            read the configuration, the workers and the token again; open the log anew
 *
 * Signals are blocked in every thread and waited for in this one, so no handler runs anywhere.
 * As process 1 of a container it needs nothing else: it has no children.
 */
#include "daemon/daemon.h"
#include "net/loop.h"

#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define ALIVE_WITHIN_MS 5000u
#define SET_MAX 64

extern char **environ;

struct options {
    const char *config_path;
    const char *listen;
    const char *endpoint;
    const char *admin_url;
    const char *sets[SET_MAX]; /* "key=value" */
    size_t set_count;
};

static void print_help(FILE *to)
{
    fputs(
        "usage: kvgraft serve [--config FILE] [options]\n"
        "\n"
        "Follows the event streams of shared stores and answers over HTTP how much of a "
        "prompt\n"
        "is in them, and what that answer is worth.\n"
        "\n"
        "  -c, --config FILE     JSON with comments; `kvgraft config init` prints one\n"
        "  -l, --listen ADDR     host:port for HTTP (http.listen)\n"
        "  -s, --source ENDPOINT follow one publisher, e.g. tcp://127.0.0.1:5557\n"
        "  -a, --admin URL       that store's admin port, e.g. http://127.0.0.1:9003\n"
        "  -o, --set KEY=VALUE   any key, e.g. log.level=debug or sources.0.silence=5s\n"
        "  -h, --help\n"
        "\n"
        "A key can also come from the environment: http.listen is KVGRAFT_HTTP_LISTEN,\n"
        "sources.0.endpoint is KVGRAFT_SOURCES_0_ENDPOINT.  Options win over the "
        "environment,\n"
        "the environment over the file.  The token comes from a file or the environment "
        "only.\n",
        to);
}

static int parse_options(int argc, char **argv, struct options *options)
{
    static const struct option LONG[] = {{"config", required_argument, NULL, 'c'},
        {"listen", required_argument, NULL, 'l'},
        {"source", required_argument, NULL, 's'}, {"admin", required_argument, NULL, 'a'},
        {"set", required_argument, NULL, 'o'}, {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0}};
    int c;

    memset(options, 0, sizeof(*options));
    optind = 1;
    while ((c = getopt_long(argc, argv, "c:l:s:a:o:h", LONG, NULL)) != -1) {
        if (c == 'h') {
            print_help(stdout);
            return 0;
        }
        if (c == 'c')
            options->config_path = optarg;
        else if (c == 'l')
            options->listen = optarg;
        else if (c == 's')
            options->endpoint = optarg;
        else if (c == 'a')
            options->admin_url = optarg;
        else if (c == 'o' && options->set_count < SET_MAX)
            options->sets[options->set_count++] = optarg;
        else
            return 2;
    }
    if (optind < argc) {
        fprintf(
            stderr, "kvgraft serve: \"%s\" is not expected; see --help\n", argv[optind]);
        return 2;
    }
    return -1;
}

static kvg_err apply_options(
    struct kvd_config *config, const struct options *options, struct kvg_error *error)
{
    kvg_err err = KVG_OK;

    if (options->listen != NULL)
        err = kvd_config_set(config, "http.listen", options->listen, error);
    if (err == KVG_OK && options->endpoint != NULL)
        err = kvd_config_set(config, "sources.0.endpoint", options->endpoint, error);
    if (err == KVG_OK && options->admin_url != NULL)
        err = kvd_config_set(config, "sources.0.admin_url", options->admin_url, error);
    for (size_t i = 0; err == KVG_OK && i < options->set_count; i++) {
        const char *equals = strchr(options->sets[i], '=');
        char key[128];

        if (equals == NULL || (size_t)(equals - options->sets[i]) >= sizeof(key)) {
            error->code = KVG_EINVAL;
            snprintf(error->field, sizeof(error->field), "--set");
            snprintf(error->message, sizeof(error->message), "is not KEY=VALUE");
            return KVG_EINVAL;
        }
        memcpy(key, options->sets[i], (size_t)(equals - options->sets[i]));
        key[equals - options->sets[i]] = '\0';
        err = kvd_config_set(config, key, equals + 1, error);
    }
    return err;
}

static kvg_err read_config(
    struct kvd_config *config, const struct options *options, struct kvg_error *error)
{
    kvg_err err = KVG_OK;

    kvd_config_init(config);
    if (options->config_path != NULL)
        err = kvd_config_read_file(config, options->config_path, error);
    if (err == KVG_OK)
        err = kvd_config_read_environment(config, environ, error);
    if (err == KVG_OK)
        err = apply_options(config, options, error);
    return err == KVG_OK ? kvd_config_finish(config, error) : err;
}

/* Says one thing to the service manager, if there is one. */
static void notify(const char *text)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t bytes = path != NULL ? strlen(path) : 0;
    ssize_t sent;
    int fd;

    if (bytes < 2 || bytes >= sizeof(address.sun_path) ||
        (path[0] != '/' && path[0] != '@'))
        return;
    memcpy(address.sun_path, path, bytes);
    if (path[0] == '@')
        address.sun_path[0] = '\0';
    fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return;
    sent = sendto(fd, text, strlen(text), MSG_NOSIGNAL, (const struct sockaddr *)&address,
        (socklen_t)(offsetof(struct sockaddr_un, sun_path) + bytes));
    (void)sent;
    close(fd);
}

/* How often the service manager wants to hear that all is well, halved; 0: never. */
static uint64_t watchdog_ms(void)
{
    const char *text = getenv("WATCHDOG_USEC");
    const char *pid = getenv("WATCHDOG_PID");

    if (text == NULL || (pid != NULL && strtol(pid, NULL, 10) != (long)getpid()))
        return 0;
    return strtoull(text, NULL, 10) / 2000;
}

static void reload(struct kvd_daemon *daemon, const struct options *options)
{
    struct kvd_config *config = malloc(sizeof(*config));
    struct kvg_error error = {.code = KVG_OK};

    if (config == NULL)
        return;
    notify("RELOADING=1");
    if (read_config(config, options, &error) != KVG_OK ||
        kvd_daemon_reload(daemon, config, &error) != KVG_OK)
        fprintf(stderr, "kvgraft serve: reload: %s %s\n", error.field, error.message);
    kvd_config_fini(config);
    free(config);
    notify("READY=1");
}

static void wait_for_end(
    struct kvd_daemon *daemon, const struct options *options, const sigset_t *signals)
{
    uint64_t interval_ms = watchdog_ms();
    struct timespec wait = {.tv_sec = 3600};

    if (interval_ms > 0)
        wait = (struct timespec){.tv_sec = (time_t)(interval_ms / 1000),
            .tv_nsec = (long)(interval_ms % 1000) * 1000000};
    for (;;) {
        int signal_number = sigtimedwait(signals, NULL, &wait);

        if (signal_number == SIGTERM || signal_number == SIGINT)
            return;
        if (signal_number == SIGHUP)
            reload(daemon, options);
        if (interval_ms > 0 && kvd_daemon_is_alive(daemon, ALIVE_WITHIN_MS))
            notify("WATCHDOG=1");
    }
}

static int run(const struct options *options, const struct kvd_config *config)
{
    struct kvg_error error = {.code = KVG_OK};
    struct kvd_daemon *daemon;
    sigset_t signals;

    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    signal(SIGPIPE, SIG_IGN);
    if (kvd_daemon_new(config, &error, &daemon) != KVG_OK)
        goto fail;
    if (kvd_daemon_start(daemon, &error) != KVG_OK) {
        kvd_daemon_free(daemon);
        goto fail;
    }
    notify("READY=1");
    wait_for_end(daemon, options, &signals);
    notify("STOPPING=1");
    pthread_sigmask(SIG_UNBLOCK, &signals, NULL); /* A second signal ends it at once. */
    kvd_daemon_free(daemon);
    return 0;

fail:
    fprintf(stderr, "kvgraft serve: %s %s\n", error.field, error.message);
    return 1;
}

int kvd_serve_main(int argc, char **argv)
{
    struct options options;
    struct kvd_config *config;
    struct kvg_error error = {.code = KVG_OK};
    int code = parse_options(argc, argv, &options);

    if (code >= 0)
        return code;
    config = malloc(sizeof(*config));
    if (config == NULL)
        return 1;
    if (read_config(config, &options, &error) != KVG_OK) {
        fprintf(stderr, "kvgraft serve: %s %s\n", error.field, error.message);
        code = 1;
    } else {
        code = run(&options, config);
    }
    kvd_config_fini(config);
    free(config);
    return code;
}
