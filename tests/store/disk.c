/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* disk.c -- a disk in memory that forgets (disk.h). */
#include "store/disk.h"

#include "backend/file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SECTOR 512u

static void bytes_set(
    struct disk_bytes *bytes, uint64_t offset, const uint8_t *data, size_t count)
{
    size_t end = (size_t)offset + count;

    if (end > bytes->capacity) {
        size_t capacity = bytes->capacity == 0 ? 4096 : bytes->capacity;

        while (capacity < end)
            capacity *= 2;
        bytes->data = realloc(bytes->data, capacity);
        memset(bytes->data + bytes->capacity, 0, capacity - bytes->capacity);
        bytes->capacity = capacity;
    }
    if (data != NULL && count > 0)
        memcpy(bytes->data + offset, data, count);
    if (end > bytes->bytes)
        bytes->bytes = end;
}

static void bytes_cut(struct disk_bytes *bytes, uint64_t size)
{
    if (size < bytes->bytes) /* Then there are some. */
        memset(bytes->data + size, 0, bytes->bytes - size);
    else
        bytes_set(bytes, size, NULL, 0);
    bytes->bytes = size;
}

static void bytes_copy(struct disk_bytes *to, const struct disk_bytes *from)
{
    bytes_cut(to, 0);
    if (from->bytes > 0)
        bytes_set(to, 0, from->data, from->bytes);
}

static void queue_clear(struct disk_file *file)
{
    size_t i;

    for (i = 0; i < file->queued; i++)
        free(file->queue[i].data);
    file->queued = 0;
}

static void queue_add(struct disk_file *file, struct disk_write write)
{
    if ((file->queued & (file->queued - 1)) == 0)
        file->queue = realloc(file->queue,
            (file->queued == 0 ? 1 : 2 * file->queued) * sizeof(*file->queue));
    file->queue[file->queued++] = write;
}

static void file_forget(struct disk_file *file)
{
    queue_clear(file);
    free(file->queue);
    free(file->now.data);
    free(file->safe.data);
    memset(file, 0, sizeof(*file));
}

/* Counts a call, and says how it fails; 0: it does not. */
static int enter(struct disk *disk)
{
    pthread_mutex_lock(&disk->lock);
    disk->calls++;
    if (disk->calls == disk->crash_at)
        disk->crashed = true;
    if (disk->crashed)
        return -EIO;
    return disk->calls == disk->fail_at ? -disk->fail_with : 0;
}

static long leave(struct disk *disk, long code)
{
    pthread_mutex_unlock(&disk->lock);
    return code;
}

static const char *base_of(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash == NULL ? path : slash + 1;
}

struct disk_file *disk_find(struct disk *disk, const char *name)
{
    int i;

    for (i = 0; i < DISK_FILES_MAX; i++) {
        if (disk->files[i].used && disk->files[i].name[0] != '\0' &&
            strcmp(disk->files[i].name, name) == 0)
            return &disk->files[i];
    }
    return NULL;
}

static struct disk_file *file_make(struct disk *disk, const char *name)
{
    int i;

    for (i = 0; i < DISK_FILES_MAX; i++) {
        struct disk_file *file = &disk->files[i];

        if (file->used)
            continue;
        file->used = true;
        snprintf(file->name, sizeof(file->name), "%s", name);
        return file;
    }
    abort();
}

static int disk_open(void *context, const char *path, unsigned flags)
{
    struct disk *disk = context;
    struct disk_file *file;
    int code = enter(disk);
    int fd;

    if (code < 0)
        return (int)leave(disk, code);
    file = disk_find(disk, base_of(path));
    if (file == NULL && (flags & FILE_IO_CREATE) == 0)
        return (int)leave(disk, -ENOENT);
    if (file == NULL)
        file = file_make(disk, base_of(path));
    if ((flags & FILE_IO_TRUNCATE) != 0) {
        bytes_cut(&file->now, 0);
        queue_add(file, (struct disk_write){.truncate = true});
    }
    for (fd = 0; fd < DISK_FDS_MAX && disk->fds[fd] >= 0; fd++)
        continue;
    if (fd == DISK_FDS_MAX)
        abort();
    disk->fds[fd] = (int)(file - disk->files);
    file->open_count++;
    return (int)leave(disk, fd + 1000);
}

static struct disk_file *file_of(struct disk *disk, int fd)
{
    return &disk->files[disk->fds[fd - 1000]];
}

static void disk_close(void *context, int fd)
{
    struct disk *disk = context;

    pthread_mutex_lock(&disk->lock);
    if (disk->fds[fd - 1000] >= 0) {
        struct disk_file *file = file_of(disk, fd);

        disk->fds[fd - 1000] = -1;
        if (--file->open_count == 0 && file->name[0] == '\0' && file->durable[0] == '\0')
            file_forget(file);
    }
    pthread_mutex_unlock(&disk->lock);
}

static ssize_t disk_readv(
    void *context, int fd, const struct iovec *vector, int count, uint64_t offset)
{
    struct disk *disk = context;
    struct disk_file *file;
    ssize_t total = 0;
    int code = enter(disk);
    int i;

    if (code < 0)
        return leave(disk, code);
    file = file_of(disk, fd);
    for (i = 0; i < count && offset < file->now.bytes; i++) {
        size_t left = file->now.bytes - (size_t)offset;
        size_t taken = vector[i].iov_len < left ? vector[i].iov_len : left;

        memcpy(vector[i].iov_base, file->now.data + offset, taken);
        offset += taken;
        total += (ssize_t)taken;
    }
    return leave(disk, total);
}

static uint64_t used_bytes(struct disk *disk)
{
    uint64_t used = 0;
    int i;

    for (i = 0; i < DISK_FILES_MAX; i++)
        used += disk->files[i].used ? disk->files[i].now.bytes : 0;
    return used;
}

static ssize_t disk_writev(
    void *context, int fd, const struct iovec *vector, int count, uint64_t offset)
{
    struct disk *disk = context;
    struct disk_file *file;
    ssize_t total = 0;
    int code = enter(disk);
    int i;

    if (code < 0)
        return leave(disk, code);
    file = file_of(disk, fd);
    for (i = 0; i < count; i++) {
        struct disk_write write = {.offset = offset, .bytes = vector[i].iov_len};
        uint64_t end = offset + write.bytes;
        uint64_t growth = end > file->now.bytes ? end - file->now.bytes : 0;

        if (write.bytes == 0)
            continue;
        if (disk->capacity > 0 && used_bytes(disk) + growth > disk->capacity)
            return leave(disk, total > 0 ? total : -ENOSPC);
        write.data = malloc(write.bytes);
        memcpy(write.data, vector[i].iov_base, write.bytes);
        bytes_set(&file->now, offset, write.data, write.bytes);
        queue_add(file, write);
        offset = end;
        total += (ssize_t)write.bytes;
    }
    return leave(disk, total);
}

static int disk_sync(void *context, int fd)
{
    struct disk *disk = context;
    struct disk_file *file;
    int code = enter(disk);

    if (code < 0)
        return (int)leave(disk, code);
    disk->syncs++;
    file = file_of(disk, fd);
    if (!disk->lies) {
        bytes_copy(&file->safe, &file->now);
        queue_clear(file);
    }
    return (int)leave(disk, 0);
}

static int disk_truncate(void *context, int fd, uint64_t bytes)
{
    struct disk *disk = context;
    struct disk_file *file;
    int code = enter(disk);

    if (code < 0)
        return (int)leave(disk, code);
    file = file_of(disk, fd);
    bytes_cut(&file->now, bytes);
    queue_add(file, (struct disk_write){.offset = bytes, .truncate = true});
    return (int)leave(disk, 0);
}

static int disk_state(void *context, int fd, struct file_io_state *out)
{
    struct disk *disk = context;
    int code = enter(disk);

    if (code < 0)
        return (int)leave(disk, code);
    out->bytes = file_of(disk, fd)->now.bytes;
    out->unlinked = file_of(disk, fd)->name[0] == '\0';
    return (int)leave(disk, 0);
}

static int disk_rename(void *context, const char *from, const char *to)
{
    struct disk *disk = context;
    struct disk_file *file;
    struct disk_file *old;
    int code = enter(disk);

    if (code < 0)
        return (int)leave(disk, code);
    file = disk_find(disk, base_of(from));
    old = disk_find(disk, base_of(to));
    if (file == NULL)
        return (int)leave(disk, -ENOENT);
    if (old != NULL)
        old->name[0] = '\0';
    snprintf(file->name, sizeof(file->name), "%s", base_of(to));
    return (int)leave(disk, 0);
}

static int disk_unlink(void *context, const char *path)
{
    struct disk *disk = context;
    struct disk_file *file;
    int code = enter(disk);

    if (code < 0)
        return (int)leave(disk, code);
    file = disk_find(disk, base_of(path));
    if (file != NULL)
        file->name[0] = '\0';
    return (int)leave(disk, file == NULL ? -ENOENT : 0);
}

static int disk_make_dir(void *context, const char *path)
{
    (void)path;
    return (int)leave(context, enter(context));
}

static int disk_sync_dir(void *context, const char *path)
{
    struct disk *disk = context;
    int code = enter(disk);
    int i;

    (void)path;
    for (i = 0; code == 0 && !disk->lies && i < DISK_FILES_MAX; i++)
        memcpy(disk->files[i].durable, disk->files[i].name, sizeof(disk->files[i].name));
    return (int)leave(disk, code);
}

static int disk_punch(void *context, int fd, uint64_t offset, uint64_t bytes)
{
    (void)context;
    (void)fd;
    (void)offset;
    (void)bytes;
    return -EOPNOTSUPP;
}

static int disk_reserve(void *context, int fd, uint64_t offset, uint64_t bytes)
{
    return disk_punch(context, fd, offset, bytes);
}

static int disk_space(void *context, const char *path, uint64_t *out)
{
    struct disk *disk = context;

    (void)path;
    pthread_mutex_lock(&disk->lock);
    *out = disk->capacity == 0                  ? UINT64_C(1) << 40
           : used_bytes(disk) >= disk->capacity ? 0
                                                : disk->capacity - used_bytes(disk);
    pthread_mutex_unlock(&disk->lock);
    return 0;
}

static int disk_lock(void *context, int fd, uint64_t from, uint64_t bytes, bool wait)
{
    (void)fd;
    (void)from;
    (void)bytes;
    (void)wait;
    return (int)leave(context, enter(context));
}

static int disk_unlock(void *context, int fd, uint64_t from, uint64_t bytes)
{
    (void)context;
    (void)fd;
    (void)from;
    (void)bytes;
    return 0;
}

static int disk_boot_id(void *context, char out[64])
{
    struct disk *disk = context;

    memset(out, 0, 64);
    snprintf(out, 64, "boot-%u", disk->boots);
    return 0;
}

void disk_init(struct disk *disk, uint64_t seed)
{
    int i;

    memset(disk, 0, sizeof(*disk));
    pthread_mutex_init(&disk->lock, NULL);
    disk->rng.state = seed;
    for (i = 0; i < DISK_FDS_MAX; i++)
        disk->fds[i] = -1;
    disk->io = (struct file_io){disk_open, disk_close, disk_readv, disk_writev, disk_sync,
        disk_truncate, disk_state, disk_rename, disk_unlink, disk_make_dir, disk_sync_dir,
        disk_reserve, disk_punch, disk_space, disk_lock, disk_unlock, disk_boot_id, disk};
}

void disk_fini(struct disk *disk)
{
    int i;

    for (i = 0; i < DISK_FILES_MAX; i++) {
        if (disk->files[i].used)
            file_forget(&disk->files[i]);
    }
    pthread_mutex_destroy(&disk->lock);
}

/* ---- The crash ----------------------------------------------------------------------------- */

static void crash_write(
    struct disk *disk, struct disk_file *file, struct disk_write *write)
{
    uint64_t fate = kvi_rng_below(&disk->rng, 4);
    size_t at;

    if (write->truncate) {
        if (fate < 2)
            bytes_cut(&file->safe, write->offset);
        return;
    }
    if (fate == 0)
        return; /* Dropped. */
    if (fate == 1) {
        bytes_set(&file->safe, write->offset, write->data, write->bytes);
        return;
    }
    for (at = 0; at < write->bytes; at += SECTOR) { /* Torn, or torn and garbled. */
        size_t bytes = write->bytes - at < SECTOR ? write->bytes - at : SECTOR;

        if (kvi_rng_below(&disk->rng, 2) == 0)
            bytes_set(&file->safe, write->offset + at, write->data + at, bytes);
        else if (fate == 3)
            bytes_set(&file->safe, write->offset + at,
                (const uint8_t *)"\xde\xad\xbe\xef", bytes < 4 ? bytes : 4);
    }
}

void disk_crash(struct disk *disk)
{
    bool names_reach = kvi_rng_below(&disk->rng, 2) == 0;
    int i;
    size_t k;

    for (i = 0; i < DISK_FILES_MAX; i++) {
        struct disk_file *file = &disk->files[i];

        if (!file->used)
            continue;
        for (k = 0; k < file->queued; k++)
            crash_write(disk, file, &file->queue[k]);
        queue_clear(file);
        bytes_copy(&file->now, &file->safe);
        if (names_reach)
            memcpy(file->durable, file->name, sizeof(file->name));
        else
            memcpy(file->name, file->durable, sizeof(file->name));
        if (file->name[0] == '\0')
            file_forget(file);
    }
    disk->boots++;
    disk_kill(disk);
}

void disk_kill(struct disk *disk)
{
    int i;

    for (i = 0; i < DISK_FDS_MAX; i++)
        disk->fds[i] = -1;
    for (i = 0; i < DISK_FILES_MAX; i++)
        disk->files[i].open_count = 0;
    disk->crashed = false;
    disk->crash_at = disk->fail_at = 0;
    disk->calls = 0;
}

/* ---- The backend over it ------------------------------------------------------------------- */

static struct disk *DISK; /* One a program. */

static kvg_err open_on_disk(const struct kvg_store_url *url,
    const struct kvg_store_options *options, void **out, uint32_t *flags_out,
    struct kvg_error *error)
{
    struct file_store *file;
    kvg_err err = kvi_file_open_io(url, options, &DISK->io, &file, error);

    (void)flags_out;
    *out = file;
    return err;
}

const struct kvg_store_registry *disk_registry(struct disk *disk)
{
    static struct kvg_store_backend backend;
    static const struct kvg_store_backend *const BACKENDS[] = {&backend};
    static const struct kvg_store_registry REGISTRY = {
        .struct_bytes = sizeof(REGISTRY), .backends = BACKENDS, .backend_count = 1};

    DISK = disk;
    backend = kvi_store_file;
    backend.open = open_on_disk;
    return &REGISTRY;
}
