/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* replay.c -- runs a fuzz target over the files of a corpus, without libFuzzer. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static int replay_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    uint8_t *data;
    long bytes;

    if (file == NULL)
        return 0;
    if (fseek(file, 0, SEEK_END) != 0 || (bytes = ftell(file)) < 0 ||
        fseek(file, 0, SEEK_SET) != 0) {
        fclose(file);
        return 0;
    }
    data = malloc((size_t)bytes + 1);
    if (data != NULL && fread(data, 1, (size_t)bytes, file) == (size_t)bytes)
        LLVMFuzzerTestOneInput(data, (size_t)bytes);
    free(data);
    fclose(file);
    return 1;
}

int main(int argc, char **argv)
{
    int replayed = 0;
    int i;

    for (i = 1; i < argc; i++) {
        DIR *directory = opendir(argv[i]);
        struct dirent *entry;

        if (directory == NULL) {
            replayed += replay_file(argv[i]);
            continue;
        }
        while ((entry = readdir(directory)) != NULL) {
            char path[4096];

            if (entry->d_name[0] == '.')
                continue;
            snprintf(path, sizeof(path), "%s/%s", argv[i], entry->d_name);
            replayed += replay_file(path);
        }
        closedir(directory);
    }
    printf("%d inputs replayed\n", replayed);
    return replayed > 0 ? 0 : 1;
}
