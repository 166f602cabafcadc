/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* capture.h -- the recorded streams of tests/data, and of the shared folder where it is there. */
#ifndef KVT_CAPTURE_H
#define KVT_CAPTURE_H

#include <kvgraft/kvcap.h>

/* The captures in tests/data/mooncake, by name. */
#define CAPTURE_COUNT 8
extern const char *const CAPTURE_NAMES[CAPTURE_COUNT];

/* A whole file.  Release it with free(). */
struct kvg_str test_file_read(const char *path);

/* tests/data/mooncake/NAME.SUFFIX, or the test stops. */
struct kvg_str test_data_read(const char *name, const char *suffix);

/* A file of the shared folder, decompressed if it ends in .zst; {NULL, 0} if it, or the tool to
 * decompress it, is absent. */
struct kvg_str shared_data_read(const char *path);

#endif
