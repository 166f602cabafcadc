/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* main.c -- the command `kvgraft`: finds the subcommand and hands over to it. */
#include "cli/cli.h"
#include "daemon/daemon.h"

#include <kvgraft/base.h>
#include <kvgraft/page.h>

#include <string.h>

static int help_main(int argc, char **argv);
static int version_main(int argc, char **argv);

/* argv[0] of a subcommand is its own name. */
struct command {
    const char *name;
    const char *help;
    int (*run)(int argc, char **argv);
};

static const struct command COMMANDS[] = {
    {"demo", "see it work: pretend engines, a real stream, one process", kvc_demo_main},
    {"serve", "follow stores and answer questions over HTTP", kvd_serve_main},
    {"query", "ask a daemon how much of a prompt is in the store", kvc_query_main},
    {"hash", "the page keys of a prompt, the names of its objects", kvc_hash_main},
    {"watch", "decode any publisher's KV events, live", kvc_watch_main},
    {"record", "record a publisher's stream to a file", kvc_record_main},
    {"replay", "publish a recorded stream again", kvc_replay_main},
    {"simulate", "what a cache of some size would have hit of a trace",
        kvc_simulate_main},
    {"store", "look into a store, check it, move single objects", kvc_store_main},
    {"bench", "measure this machine, floors beside figures", kvc_bench_main},
    {"config", "check or make a configuration file", kvd_config_main},
    {"help", "what a command does and takes", help_main},
    {"version", "the version, and what it was built with", version_main},
};

static const struct command *find(const char *name)
{
    size_t i;

    for (i = 0; i < KVC_COUNT(COMMANDS); i++) {
        if (strcmp(name, COMMANDS[i].name) == 0)
            return &COMMANDS[i];
    }
    return NULL;
}

static void print_help(FILE *to)
{
    size_t i;

    fprintf(to, "usage: kvgraft COMMAND [options]\n\ncommands:\n");
    for (i = 0; i < KVC_COUNT(COMMANDS); i++)
        fprintf(to, "  %-10s %s\n", COMMANDS[i].name, COMMANDS[i].help);
    fprintf(to, "\n`kvgraft help COMMAND` tells more.  Exit codes: 0 fine, 1 failed, "
                "2 used wrongly.\n");
}

static int no_such_command(const char *name)
{
    fprintf(stderr, "kvgraft: there is no command \"%s\"; see `kvgraft help`\n", name);
    return KVC_MISUSED;
}

static int help_main(int argc, char **argv)
{
    const struct command *command;
    char help[] = "--help";
    char *arguments[] = {argc > 1 ? argv[1] : NULL, help, NULL};

    if (argc < 2 || argv[1][0] == '-') {
        print_help(stdout);
        return KVC_FINE;
    }
    command = find(argv[1]);
    if (command == NULL)
        return no_such_command(argv[1]);
    if (command->run == help_main) {
        print_help(stdout);
        return KVC_FINE;
    }
    return command->run(2, arguments);
}

static int version_main(int argc, char **argv)
{
    bool json = argc > 1 && strcmp(argv[1], "--json") == 0;

    if (argc > 1 && strcmp(argv[1], "--help") == 0) {
        printf("usage: kvgraft version [--json]\n");
        return KVC_FINE;
    }
    if (argc > 1 && !json) {
        fprintf(stderr, "kvgraft version: takes --json and nothing else\n");
        return KVC_MISUSED;
    }
    printf(
        json ? "{\"version\":\"%s\",\"sha256\":\"%s\"}\n" : "kvgraft %s (SHA-256: %s)\n",
        kvg_version(), kvg_sha256_path());
    return KVC_FINE;
}

int main(int argc, char **argv)
{
    const struct command *command;

    if (argc > 0 && argv[0][0] != '\0')
        kvc_program = argv[0];
    if (argc < 2) {
        print_help(stderr);
        return KVC_MISUSED;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        print_help(stdout);
        return KVC_FINE;
    }
    if (strcmp(argv[1], "--version") == 0)
        return version_main(1, argv + 1);
    command = find(argv[1]);
    return command == NULL ? no_such_command(argv[1]) : command->run(argc - 1, argv + 1);
}
