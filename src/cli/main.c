/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* main.c -- the command `kvgraft`: finds the subcommand and hands over to it. */
#include "daemon/daemon.h"

#include <kvgraft/base.h>

#include <stdio.h>
#include <string.h>

/* argv[0] of a subcommand is its own name. */
struct command {
    const char *name;
    const char *help;
    int (*run)(int argc, char **argv);
};

static const struct command COMMANDS[] = {
    {"serve", "follow stores and answer questions over HTTP", kvd_serve_main},
    {"config", "check or make a configuration file", kvd_config_main},
};
#define COMMAND_COUNT (sizeof(COMMANDS) / sizeof(COMMANDS[0]))

static void print_help(FILE *to)
{
    fprintf(to, "usage: kvgraft COMMAND [options]\n\ncommands:\n");
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        fprintf(to, "  %-10s %s\n", COMMANDS[i].name, COMMANDS[i].help);
    fprintf(to, "\n`kvgraft COMMAND --help` tells more.  Exit codes: 0 fine, 1 failed, "
                "2 used wrongly.\n");
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        print_help(stderr);
        return 2;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0) {
        print_help(stdout);
        return 0;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("kvgraft %s\n", kvg_version());
        return 0;
    }
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        if (strcmp(argv[1], COMMANDS[i].name) == 0)
            return COMMANDS[i].run(argc - 1, argv + 1);
    }
    fprintf(
        stderr, "kvgraft: there is no command \"%s\"; see `kvgraft --help`\n", argv[1]);
    return 2;
}
