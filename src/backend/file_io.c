/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* file_io.c -- the system's own file I/O (file_io.h).
 *
 * Locks are those of open file descriptions: they belong to the store and not to the process, so
 * that two stores in one process exclude each other; and the kernel drops them with the last
 * descriptor, whatever ends the process. */
#include "backend/file_io.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

static int result(int returned)
{
    return returned < 0 ? -errno : returned;
}

static int io_open(void *context, const char *path, unsigned flags)
{
    int how = O_CLOEXEC | ((flags & FILE_IO_READ_ONLY) != 0 ? O_RDONLY : O_RDWR);
    int fd;

    (void)context;
    how |= (flags & FILE_IO_CREATE) != 0 ? O_CREAT : 0;
    how |= (flags & FILE_IO_TRUNCATE) != 0 ? O_TRUNC : 0;
    how |= (flags & FILE_IO_DIRECT) != 0 ? O_DIRECT : 0;
    do {
        fd = open(path, how, 0660);
    } while (fd < 0 && errno == EINTR);
    return result(fd);
}

static void io_close(void *context, int fd)
{
    (void)context;
    close(fd);
}

/* Moves on in a vector after a short call; copies it first, a piece at a time. */
static ssize_t transfer(
    int fd, const struct iovec *vector, int count, uint64_t offset, bool write)
{
    ssize_t total = 0;
    int at = 0;
    size_t skip = 0;

    while (at < count) {
        struct iovec now[64];
        int taken = 0;
        ssize_t moved;

        for (; taken < 64 && at + taken < count; taken++)
            now[taken] = vector[at + taken];
        now[0].iov_base = (char *)now[0].iov_base + skip;
        now[0].iov_len -= skip;
        moved = write ? pwritev(fd, now, taken, (off_t)offset + total)
                      : preadv(fd, now, taken, (off_t)offset + total);
        if (moved < 0 && errno == EINTR)
            continue;
        if (moved < 0)
            return -errno;
        total += moved;
        for (skip += (size_t)moved; at < count && skip >= vector[at].iov_len; at++)
            skip -= vector[at].iov_len;
        if (moved == 0 && at < count)
            break;
    }
    return total;
}

static ssize_t io_readv(
    void *context, int fd, const struct iovec *vector, int count, uint64_t offset)
{
    (void)context;
    return transfer(fd, vector, count, offset, false);
}

static ssize_t io_writev(
    void *context, int fd, const struct iovec *vector, int count, uint64_t offset)
{
    (void)context;
    return transfer(fd, vector, count, offset, true);
}

static int io_sync(void *context, int fd)
{
    (void)context;
    return result(fdatasync(fd));
}

static int io_truncate(void *context, int fd, uint64_t bytes)
{
    (void)context;
    return result(ftruncate(fd, (off_t)bytes));
}

static int io_state(void *context, int fd, struct file_io_state *out)
{
    struct stat state;

    (void)context;
    if (fstat(fd, &state) < 0)
        return -errno;
    out->bytes = (uint64_t)state.st_size;
    out->unlinked = state.st_nlink == 0;
    return 0;
}

static int io_rename(void *context, const char *from, const char *to)
{
    (void)context;
    return result(rename(from, to));
}

static int io_unlink(void *context, const char *path)
{
    (void)context;
    return result(unlink(path));
}

static int io_make_dir(void *context, const char *path)
{
    (void)context;
    return result(mkdir(path, 0770));
}

static int io_sync_dir(void *context, const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int code;

    (void)context;
    if (fd < 0)
        return -errno;
    code = result(fsync(fd));
    close(fd);
    return code;
}

static int io_reserve(void *context, int fd, uint64_t offset, uint64_t bytes)
{
    (void)context;
    return result(fallocate(fd, FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)bytes));
}

static int io_punch(void *context, int fd, uint64_t offset, uint64_t bytes)
{
    (void)context;
    return result(fallocate(
        fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)bytes));
}

static int io_space(void *context, const char *path, uint64_t *out)
{
    struct statvfs state;

    (void)context;
    if (statvfs(path, &state) < 0)
        return -errno;
    *out = (uint64_t)state.f_bavail * (uint64_t)state.f_frsize;
    return 0;
}

static int set_lock(int fd, short type, uint64_t from, uint64_t bytes, bool wait)
{
    struct flock lock = {.l_type = type,
        .l_whence = SEEK_SET,
        .l_start = (off_t)from,
        .l_len = (off_t)bytes};
    int code;

    do {
        code = fcntl(fd, wait ? F_OFD_SETLKW : F_OFD_SETLK, &lock);
    } while (code < 0 && errno == EINTR);
    return code < 0 ? (errno == EACCES ? -EAGAIN : -errno) : 0;
}

static int io_lock(void *context, int fd, uint64_t from, uint64_t bytes, bool wait)
{
    (void)context;
    return set_lock(fd, F_WRLCK, from, bytes, wait);
}

static int io_unlock(void *context, int fd, uint64_t from, uint64_t bytes)
{
    (void)context;
    return set_lock(fd, F_UNLCK, from, bytes, false);
}

static int io_boot_id(void *context, char out[64])
{
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t bytes;

    (void)context;
    memset(out, 0, 64);
    if (fd < 0)
        return -errno;
    bytes = read(fd, out, 63);
    close(fd);
    return bytes <= 0 ? -EIO : 0;
}

const struct file_io kvi_file_io_system = {
    .open = io_open,
    .close = io_close,
    .readv = io_readv,
    .writev = io_writev,
    .sync = io_sync,
    .truncate = io_truncate,
    .state = io_state,
    .rename = io_rename,
    .unlink = io_unlink,
    .make_dir = io_make_dir,
    .sync_dir = io_sync_dir,
    .reserve = io_reserve,
    .punch = io_punch,
    .space = io_space,
    .lock = io_lock,
    .unlock = io_unlock,
    .boot_id = io_boot_id,
};
