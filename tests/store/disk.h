/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* disk.h -- a disk in memory that forgets: the I/O table of the file backend over files whose
 * writes are queued until they are synced.
 *
 * At a crash each write that was not synced is, by the seed, written, dropped, torn (only some of
 * its sectors) or garbled (some sectors are rubbish); names that were not synced are lost from some
 * point on.  It can also fail the n-th call, fill up, and count. */
#ifndef KVT_STORE_DISK_H
#define KVT_STORE_DISK_H

#include "backend/file_io.h"
#include "base/rng.h"

#include <kvgraft/store_backend.h>

#include <pthread.h>

#define DISK_FILES_MAX 256
#define DISK_FDS_MAX 256

struct disk_write {
    uint64_t offset;
    size_t bytes;
    uint8_t *data; /* NULL: the file was cut (or holed) here. */
    bool truncate;
};

struct disk_bytes {
    uint8_t *data;
    size_t bytes;
    size_t capacity;
};

struct disk_file {
    bool used;
    char name[64];    /* What it is called now; "" if nothing. */
    char durable[64]; /* After a crash. */
    struct disk_bytes now;
    struct disk_bytes safe; /* What is surely on the disk. */
    struct disk_write *queue;
    size_t queued;
    unsigned open_count;
};

struct disk {
    struct file_io io;
    pthread_mutex_t lock;
    struct disk_file files[DISK_FILES_MAX];
    int fds[DISK_FDS_MAX]; /* Index of the file, or -1. */
    struct kvi_rng rng;
    uint64_t calls, syncs;
    uint64_t crash_at; /* At this call everything begins to fail; 0: never. */
    uint64_t fail_at;  /* This call fails once with `fail_with`; 0: none. */
    int fail_with;     /* A positive errno. */
    uint64_t capacity; /* Bytes; 0: no end. */
    bool crashed;
    bool lies; /* Says that it synced, and does not: a control for the test. */
    unsigned boots;
};

void disk_init(struct disk *disk, uint64_t seed);
void disk_fini(struct disk *disk);

/* The machine dies and starts again.  Every descriptor is gone. */
void disk_crash(struct disk *disk);

/* The machine goes on; only the process died.  What was written is there. */
void disk_kill(struct disk *disk);

/* The backend `file:` over this disk, as the only one of a registry. */
const struct kvg_store_registry *disk_registry(struct disk *disk);

/* The file of a name, or NULL. */
struct disk_file *disk_find(struct disk *disk, const char *name);

#endif
