/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* serve.c -- the command `kvgraft serve`. */
#include "daemon/daemon.h"

#include <stdio.h>

int kvd_serve_main(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    fprintf(stderr, "kvgraft serve: not built yet\n");
    return 1;
}

int kvd_config_main(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    fprintf(stderr, "kvgraft config: not built yet\n");
    return 1;
}
