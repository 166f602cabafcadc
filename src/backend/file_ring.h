/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* file_ring.h -- reads of which several are under way at a time: an io_uring, where the build and
 * the kernel have it.
 *
 * A ring is used by one thread at a time.  What was pushed must be waited for before its memory
 * goes, and before the ring is closed. */
#ifndef KVI_BACKEND_FILE_RING_H
#define KVI_BACKEND_FILE_RING_H

#include <stddef.h>
#include <stdint.h>

#define RING_DEPTH 16u /* Reads under way at a time, at most. */

struct ring {
    int fd;
    void *memory; /* Both queues, mapped. */
    size_t memory_bytes;
    void *entries;
    size_t entries_bytes;
    _Atomic uint32_t *submit_tail;
    _Atomic uint32_t *done_head;
    _Atomic uint32_t *done_tail;
    uint32_t *order; /* Which entry each place of the submission queue means. */
    uint32_t submit_mask;
    uint32_t done_mask;
    uint32_t done_at; /* Offset of the completions. */
    uint32_t pushed;  /* Not told to the kernel yet. */
};

/* 0 or a negative errno: -ENOSYS and -EPERM where there is none. */
int kvi_ring_open(struct ring *ring);
void kvi_ring_close(struct ring *ring);

/* At most RING_DEPTH that were not waited for. */
void kvi_ring_push(struct ring *ring, int fd, void *memory, uint32_t bytes,
    uint64_t offset, uint64_t tag);

/* Tells the kernel what was pushed and waits for one read: 0 and its tag and result (bytes or a
 * negative errno), or a negative errno. */
int kvi_ring_wait(struct ring *ring, uint64_t *tag, int32_t *result);

#endif
