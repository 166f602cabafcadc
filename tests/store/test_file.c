/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* test_file.c -- the suite over `file:DIR`; the sync policy is the first argument, how large parts
 * are read the second. */
#include "store/conformance.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct place {
    char dir[64];
    const char *sync;
    const char *io;
};

static bool make(void *context, uint64_t bytes_max, char url[CONFORMANCE_URL_BYTES])
{
    struct place *place = context;

    /* Memory first: what is tested here does not need a disk. */
    snprintf(place->dir, sizeof(place->dir), "%s/kvgraft-store-XXXXXX",
        access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    if (mkdtemp(place->dir) == NULL)
        return false;
    snprintf(url, CONFORMANCE_URL_BYTES,
        "file:%s?bytes=%" PRIu64 "&floor=0&sync=%s&io=%s", place->dir,
        bytes_max == 0 ? UINT64_C(256) << 20 : bytes_max, place->sync, place->io);
    return true;
}

static void destroy(void *context)
{
    struct place *place = context;
    char command[128];

    snprintf(command, sizeof(command), "rm -rf '%s'", place->dir);
    if (system(command) != 0)
        fprintf(stderr, "cannot remove %s\n", place->dir);
}

int main(int argc, char **argv)
{
    struct place place = {
        .sync = argc > 1 ? argv[1] : "batch", .io = argc > 2 ? argv[2] : "plain"};
    struct conformance_backend file = {
        .name = "file", .make = make, .destroy = destroy, .context = &place};

    return conformance_run(&file);
}
