/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* capture.c -- reading recorded streams (capture.h). */
#include "capture.h"

#include "test.h"

#include <unistd.h>

const char *const CAPTURE_NAMES[CAPTURE_COUNT] = {"mha_tp1_small", "mla_tagged_pp2",
    "split_heads_eagle", "legacy_off", "objkey_off", "silent_loss", "master_restart",
    "overflow_gap"};

static struct kvg_str read_stream(FILE *file)
{
    size_t capacity = 1u << 16;
    char *data = malloc(capacity);
    size_t bytes = 0;
    size_t got;

    CHECK(data != NULL);
    while ((got = fread(data + bytes, 1, capacity - bytes, file)) > 0) {
        bytes += got;
        if (bytes == capacity) {
            capacity *= 2;
            data = realloc(data, capacity);
            CHECK(data != NULL);
        }
    }
    return (struct kvg_str){data, bytes};
}

struct kvg_str test_file_read(const char *path)
{
    FILE *file = fopen(path, "rb");
    struct kvg_str contents;

    if (file == NULL)
        return (struct kvg_str){NULL, 0};
    contents = read_stream(file);
    fclose(file);
    return contents;
}

struct kvg_str test_data_read(const char *name, const char *suffix)
{
    char path[1024];
    struct kvg_str contents;

    snprintf(path, sizeof(path), "%s/mooncake/%s.%s", KVG_TEST_DATA, name, suffix);
    contents = test_file_read(path);
    if (contents.data == NULL)
        fail_msg("%s cannot be read", path);
    return contents;
}

struct kvg_str shared_data_read(const char *name)
{
    size_t length = strlen(name);
    char path[1024];
    char command[1100];
    struct kvg_str contents = {NULL, 0};
    FILE *pipe;

    snprintf(path, sizeof(path), "%s/%s", KVG_SHARED_DIR, name);
    if (access(path, R_OK) != 0)
        return contents;
    if (length < 4 || strcmp(name + length - 4, ".zst") != 0)
        return test_file_read(path);
    snprintf(command, sizeof(command), "zstd -dcq '%s' 2>/dev/null", path);
    pipe = popen(command, "r");
    if (pipe == NULL)
        return contents;
    contents = read_stream(pipe);
    if (pclose(pipe) != 0) {
        free((void *)(uintptr_t)contents.data);
        contents = (struct kvg_str){NULL, 0};
    }
    return contents;
}
