/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* dir.h -- a directory for a test, in memory where there is a place in memory. */
#ifndef KVT_STORE_DIR_H
#define KVT_STORE_DIR_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define DIR_BYTES 64

static inline int dir_make(char dir[DIR_BYTES])
{
    snprintf(dir, DIR_BYTES, "%s/kvgraft-store-XXXXXX",
        access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    return mkdtemp(dir) != NULL;
}

static inline void dir_remove(const char *dir)
{
    char command[DIR_BYTES + 16];

    snprintf(command, sizeof(command), "rm -rf '%s'", dir);
    if (system(command) != 0)
        fprintf(stderr, "cannot remove %s\n", dir);
}

#endif
