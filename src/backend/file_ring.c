/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* file_ring.c -- an io_uring by its system calls (file_ring.h): reads only, one thread, so few
 * lines that a library would be more to carry.
 *
 * The kernel and this process share two queues.  Whoever fills one writes its tail last (release),
 * whoever empties one reads the tail first (acquire) and writes the head last. */
#include "backend/file_ring.h"

#include <errno.h>

#ifdef KVI_HAVE_IO_URING

#include <linux/io_uring.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static void *at(struct ring *ring, uint32_t offset)
{
    return (uint8_t *)ring->memory + offset;
}

static void *map(int fd, size_t bytes, off_t what)
{
    void *memory =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, what);

    return memory == MAP_FAILED ? NULL : memory;
}

int kvi_ring_open(struct ring *ring)
{
    struct io_uring_params params;
    size_t submit_bytes;
    size_t done_bytes;

    memset(ring, 0, sizeof(*ring));
    memset(&params, 0, sizeof(params));
    ring->fd = (int)syscall(SYS_io_uring_setup, RING_DEPTH, &params);
    if (ring->fd < 0)
        return -errno;
    submit_bytes = params.sq_off.array + params.sq_entries * sizeof(uint32_t);
    done_bytes = params.cq_off.cqes + params.cq_entries * sizeof(struct io_uring_cqe);
    ring->memory_bytes = submit_bytes > done_bytes ? submit_bytes : done_bytes;
    ring->entries_bytes = params.sq_entries * sizeof(struct io_uring_sqe);
    /* Before Linux 5.4 the two queues are two mappings: such a kernel reads plainly. */
    if ((params.features & IORING_FEAT_SINGLE_MMAP) != 0) {
        ring->memory = map(ring->fd, ring->memory_bytes, IORING_OFF_SQ_RING);
        ring->entries = map(ring->fd, ring->entries_bytes, IORING_OFF_SQES);
    }
    if (ring->memory == NULL || ring->entries == NULL) {
        kvi_ring_close(ring);
        return -ENOSYS;
    }
    ring->submit_tail = at(ring, params.sq_off.tail);
    ring->submit_mask = *(uint32_t *)at(ring, params.sq_off.ring_mask);
    ring->order = at(ring, params.sq_off.array);
    ring->done_head = at(ring, params.cq_off.head);
    ring->done_tail = at(ring, params.cq_off.tail);
    ring->done_mask = *(uint32_t *)at(ring, params.cq_off.ring_mask);
    ring->done_at = params.cq_off.cqes;
    return 0;
}

void kvi_ring_close(struct ring *ring)
{
    if (ring->memory != NULL)
        munmap(ring->memory, ring->memory_bytes);
    if (ring->entries != NULL)
        munmap(ring->entries, ring->entries_bytes);
    if (ring->fd >= 0)
        close(ring->fd);
    ring->fd = -1;
    ring->memory = ring->entries = NULL;
}

void kvi_ring_push(struct ring *ring, int fd, void *memory, uint32_t bytes,
    uint64_t offset, uint64_t tag)
{
    uint32_t tail = atomic_load_explicit(ring->submit_tail, memory_order_relaxed);
    uint32_t place = tail & ring->submit_mask;
    struct io_uring_sqe *entry = (struct io_uring_sqe *)ring->entries + place;

    memset(entry, 0, sizeof(*entry));
    entry->opcode = IORING_OP_READ;
    entry->fd = fd;
    entry->addr = (uint64_t)(uintptr_t)memory;
    entry->len = bytes;
    entry->off = offset;
    entry->user_data = tag;
    ring->order[place] = place;
    atomic_store_explicit(ring->submit_tail, tail + 1, memory_order_release);
    ring->pushed++;
}

int kvi_ring_wait(struct ring *ring, uint64_t *tag, int32_t *result)
{
    uint32_t head = atomic_load_explicit(ring->done_head, memory_order_relaxed);
    const struct io_uring_cqe *done;

    while (ring->pushed > 0 ||
           head == atomic_load_explicit(ring->done_tail, memory_order_acquire)) {
        unsigned wait =
            head == atomic_load_explicit(ring->done_tail, memory_order_acquire);
        long taken = syscall(SYS_io_uring_enter, ring->fd, ring->pushed, wait,
            wait != 0 ? IORING_ENTER_GETEVENTS : 0, NULL, 0);

        if (taken < 0 && errno != EINTR && errno != EAGAIN && errno != EBUSY)
            return -errno;
        if (taken > 0)
            ring->pushed -= (uint32_t)taken;
    }
    done =
        (const struct io_uring_cqe *)at(ring, ring->done_at) + (head & ring->done_mask);
    *tag = done->user_data;
    *result = done->res;
    atomic_store_explicit(ring->done_head, head + 1, memory_order_release);
    return 0;
}

#else

int kvi_ring_open(struct ring *ring)
{
    ring->fd = -1;
    return -ENOSYS;
}

void kvi_ring_close(struct ring *ring)
{
    (void)ring;
}

void kvi_ring_push(struct ring *ring, int fd, void *memory, uint32_t bytes,
    uint64_t offset, uint64_t tag)
{
    (void)ring;
    (void)fd;
    (void)memory;
    (void)bytes;
    (void)offset;
    (void)tag;
}

int kvi_ring_wait(struct ring *ring, uint64_t *tag, int32_t *result)
{
    (void)ring;
    (void)tag;
    (void)result;
    return -ENOSYS;
}

#endif
