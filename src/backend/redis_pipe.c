/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* redis_pipe.c -- commands in the form that Redis reads, ready for writev().
 *
 *     own:   "*3\r\n$7\r\nEVALSHA\r\n$40\r\n...\r\n$1048576\r\n" "\r\n*2\r\n..."
 *     runs:   ^------------------ own ------------------------^   ^-- own --
 *                                          outside: the value's own memory between them
 *
 * A value of a megabyte is never copied on its way out.  Replies are read by hiredis.
 *
 * Invariants:
 *   1. Runs of own bytes lie in order and without a hole in `own`.
 *   2. bytes is the sum of all runs. */
#include "backend/redis_pipe.h"

#include "base/alloc.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <sys/uio.h>

#define COPY_BYTES_MAX 2048u /* Below that, copying costs less than a run. */
#define IOV_COUNT 512

void kvi_redis_pipe_init(struct kvi_redis_pipe *pipe, const struct kvg_alloc *alloc)
{
    *pipe = (struct kvi_redis_pipe){.alloc = alloc};
}

void kvi_redis_pipe_clear(struct kvi_redis_pipe *pipe)
{
    pipe->own_bytes = 0;
    pipe->run_count = 0;
    pipe->command_count = 0;
    pipe->bytes = 0;
    pipe->failed = false;
}

void kvi_redis_pipe_fini(struct kvi_redis_pipe *pipe)
{
    kvi_release_array(pipe->alloc, pipe->own, pipe->own_room, 1);
    kvi_release_array(pipe->alloc, pipe->runs, pipe->run_room, sizeof(*pipe->runs));
    *pipe = (struct kvi_redis_pipe){.alloc = pipe->alloc};
}

static bool grow(struct kvi_redis_pipe *pipe, void **memory, size_t *room, size_t wanted,
    size_t bytes_each)
{
    size_t larger = *room < 64 ? 64 : *room;

    while (larger < wanted)
        larger += larger / 2;
    if (!kvi_resize_array(pipe->alloc, memory, *room, larger, bytes_each)) {
        pipe->failed = true;
        return false;
    }
    *room = larger;
    return true;
}

static void add_run(struct kvi_redis_pipe *pipe, const void *outside, size_t bytes)
{
    void *runs = pipe->runs;

    if (pipe->run_count == pipe->run_room &&
        !grow(pipe, &runs, &pipe->run_room, pipe->run_count + 1, sizeof(*pipe->runs)))
        return;
    pipe->runs = runs;
    pipe->runs[pipe->run_count++] =
        (struct kvi_redis_run){outside, outside == NULL ? pipe->own_bytes : 0, bytes};
}

static void put(struct kvi_redis_pipe *pipe, const void *data, size_t bytes)
{
    struct kvi_redis_run *last;
    void *own = pipe->own;

    if (pipe->failed || bytes == 0)
        return;
    if (bytes > pipe->own_room - pipe->own_bytes &&
        !grow(pipe, &own, &pipe->own_room, pipe->own_bytes + bytes, 1))
        return;
    pipe->own = own;
    last = pipe->run_count == 0 ? NULL : &pipe->runs[pipe->run_count - 1];
    if (last != NULL && last->outside == NULL)
        last->bytes += bytes;
    else
        add_run(pipe, NULL, bytes);
    if (pipe->failed)
        return;
    memcpy(pipe->own + pipe->own_bytes, data, bytes);
    pipe->own_bytes += bytes;
    pipe->bytes += bytes;
}

static void put_header(struct kvi_redis_pipe *pipe, char kind, uint64_t number)
{
    char text[32];
    int bytes =
        snprintf(text, sizeof(text), "%c%llu\r\n", kind, (unsigned long long)number);

    put(pipe, text, (size_t)bytes);
}

void kvi_redis_command(struct kvi_redis_pipe *pipe, size_t argument_count)
{
    pipe->command_count++;
    put_header(pipe, '*', argument_count);
}

void kvi_redis_arg_begin(struct kvi_redis_pipe *pipe, uint64_t bytes)
{
    put_header(pipe, '$', bytes);
}

void kvi_redis_arg_piece(struct kvi_redis_pipe *pipe, const void *data, size_t bytes)
{
    if (bytes <= COPY_BYTES_MAX) {
        put(pipe, data, bytes);
        return;
    }
    if (pipe->failed)
        return;
    add_run(pipe, data, bytes);
    pipe->bytes += bytes;
}

void kvi_redis_arg_end(struct kvi_redis_pipe *pipe)
{
    put(pipe, "\r\n", 2);
}

void kvi_redis_arg(struct kvi_redis_pipe *pipe, const void *data, size_t bytes)
{
    kvi_redis_arg_begin(pipe, bytes);
    kvi_redis_arg_piece(pipe, data, bytes);
    kvi_redis_arg_end(pipe);
}

void kvi_redis_arg_text(struct kvi_redis_pipe *pipe, const char *text)
{
    kvi_redis_arg(pipe, text, strlen(text));
}

void kvi_redis_arg_u64(struct kvi_redis_pipe *pipe, uint64_t value)
{
    char text[24];
    int bytes = snprintf(text, sizeof(text), "%llu", (unsigned long long)value);

    kvi_redis_arg(pipe, text, (size_t)bytes);
}

void kvi_redis_arg_two(struct kvi_redis_pipe *pipe, struct kvg_str a, struct kvg_str b)
{
    kvi_redis_arg_begin(pipe, a.bytes + b.bytes);
    kvi_redis_arg_piece(pipe, a.data, a.bytes);
    kvi_redis_arg_piece(pipe, b.data, b.bytes);
    kvi_redis_arg_end(pipe);
}

/* Writes runs [first, first + count), of which `skip` bytes are out already; returns what
 * writev() does. */
static ssize_t write_some(
    const struct kvi_redis_pipe *pipe, int fd, size_t first, size_t skip)
{
    struct iovec iov[IOV_COUNT];
    int count = 0;

    while (count < IOV_COUNT && first + (size_t)count < pipe->run_count) {
        const struct kvi_redis_run *run = &pipe->runs[first + (size_t)count];
        union {
            const void *in;
            void *out;
        } base = {run->outside != NULL ? run->outside : pipe->own + run->offset};

        iov[count].iov_base = base.out;
        iov[count].iov_len = run->bytes;
        count++;
    }
    iov[0].iov_base = (char *)iov[0].iov_base + skip;
    iov[0].iov_len -= skip;
    return writev(fd, iov, count);
}

bool kvi_redis_pipe_write(const struct kvi_redis_pipe *pipe, int fd)
{
    size_t run = 0;
    size_t skip = 0;

    while (run < pipe->run_count) {
        ssize_t written = write_some(pipe, fd, run, skip);

        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return false;
        skip += (size_t)written;
        while (run < pipe->run_count && skip >= pipe->runs[run].bytes) {
            skip -= pipe->runs[run].bytes;
            run++;
        }
    }
    return true;
}
