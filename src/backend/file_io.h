/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* file_io.h -- the system calls of the file backend, as a table: so that a test can put a disk
 * of its own under it, one that fails, lies and crashes at a chosen moment.
 *
 * Functions return a count or a descriptor, or a negative errno.  Interrupted calls are repeated
 * inside.  Reads and writes may be short only at the end of a file and when the disk is full. */
#ifndef KVI_BACKEND_FILE_IO_H
#define KVI_BACKEND_FILE_IO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

enum {
    FILE_IO_CREATE = 1,
    FILE_IO_READ_ONLY = 2,
    FILE_IO_TRUNCATE = 4,
    FILE_IO_DIRECT = 8 /* Past the page cache: memory, offsets and sizes in blocks. */
};

struct file_io_state {
    uint64_t bytes;
    bool unlinked; /* No name leads to it any more. */
};

struct file_io {
    int (*open)(void *context, const char *path, unsigned flags);
    void (*close)(void *context, int fd);
    ssize_t (*readv)(
        void *context, int fd, const struct iovec *vector, int count, uint64_t offset);
    ssize_t (*writev)(
        void *context, int fd, const struct iovec *vector, int count, uint64_t offset);
    int (*sync)(void *context, int fd);
    int (*truncate)(void *context, int fd, uint64_t bytes);
    int (*state)(void *context, int fd, struct file_io_state *out);
    int (*rename)(void *context, const char *from, const char *to);
    int (*unlink)(void *context, const char *path);
    int (*make_dir)(void *context, const char *path);
    int (*sync_dir)(void *context, const char *path);
    /* Space for later writes behind the end of a file, which stays where it is. */
    int (*reserve)(void *context, int fd, uint64_t offset, uint64_t bytes);
    int (*punch)(void *context, int fd, uint64_t offset, uint64_t bytes);
    /* Free bytes of the file system. */
    int (*space)(void *context, const char *path, uint64_t *out);
    /* A byte range of an open file, exclusively; not waiting: -EAGAIN. */
    int (*lock)(void *context, int fd, uint64_t from, uint64_t bytes, bool wait);
    int (*unlock)(void *context, int fd, uint64_t from, uint64_t bytes);
    /* What changes when the machine starts again. */
    int (*boot_id)(void *context, char out[64]);
    void *context;
};

extern const struct file_io kvi_file_io_system;

#endif
