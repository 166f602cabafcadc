/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* publish.c -- `kvgraft store publish`: what happens in a store, for followers. */
#include "cli/cli.h"
#include "daemon/publish.h"

#include <stdio.h>

#define TURN_MS 20
#define LINE_BYTES 2048

struct publish_options {
    struct kvc_common common;
    struct kvd_publish_options publish;
};

static const struct kvc_option OPTIONS[] = {
    {"bind", 'b', KVC_TEXT, KVC_FIELD(struct publish_options, publish.bind), "ENDPOINT",
        "tcp://127.0.0.1:5557", NULL, 0, 0, "where messages are published"},
    {"replay", 'r', KVC_TEXT, KVC_FIELD(struct publish_options, publish.replay),
        "ENDPOINT", "tcp://127.0.0.1:5558", NULL, 0, 0,
        "where kept messages can be asked for again"},
    {"admin", 'a', KVC_TEXT, KVC_FIELD(struct publish_options, publish.admin),
        "HOST:PORT", "127.0.0.1:9003", NULL, 0, 0,
        "where listings and counters are served over HTTP"},
};

static const struct kvc_usage USAGE = {"store publish", "STORE",
    "Publish what happens in a store, for followers", OPTIONS, KVC_COUNT(OPTIONS),
    "STORE is a URL; several processes may write to it.  Ctrl-C ends it.\n\n"
    "  kvgraft store publish file:/var/lib/kvgraft\n"
    "  kvgraft serve --set sources.0.replay=tcp://127.0.0.1:5558\n"};

int kvc_publish_main(int argc, char **argv)
{
    struct publish_options options = {.publish = {.url = NULL}};
    struct kvd_publish *publish = NULL;
    struct kvg_error error = {.code = KVG_OK};
    char text[KVC_ERROR_BYTES];
    char line[LINE_BYTES];
    int exit_code;
    int at = kvc_options(&USAGE, argc, argv, &options, &exit_code);
    kvg_err err;

    if (at < 0)
        return exit_code;
    if (argc - at != 1)
        return kvc_misused(&USAGE, "one STORE is needed");
    options.publish.url = argv[at];
    kvc_catch_signals();
    err = kvd_publish_new(&options.publish, &error, &publish);
    if (err == KVG_OK && !options.common.quiet) {
        kvd_publish_describe(publish, line, sizeof(line));
        fprintf(stderr, "%s\n", line);
    }
    while (err == KVG_OK && !kvc_stopped)
        err = kvd_publish_turn(publish, TURN_MS, &error);
    kvd_publish_free(publish);
    return err == KVG_OK ? KVC_FINE
                         : kvc_failed(&USAGE, "%s", kvc_error_text(&error, text));
}
