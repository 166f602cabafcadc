/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* redis_pipe.h -- commands for a Redis server, many in one go, without copying what is large. */
#ifndef KVI_BACKEND_REDIS_PIPE_H
#define KVI_BACKEND_REDIS_PIPE_H

#include <kvgraft/base.h>

/* What is sent, as runs of bytes: of the pipe's own memory, or of the caller's. */
struct kvi_redis_run {
    const void *outside; /* NULL: `offset` into the pipe's own bytes. */
    size_t offset;
    size_t bytes;
};

/* Commands that go out together.  Memory failures are remembered: look at `failed` at the end. */
struct kvi_redis_pipe {
    const struct kvg_alloc *alloc;
    char *own;
    size_t own_bytes, own_room;
    struct kvi_redis_run *runs;
    size_t run_count, run_room;
    size_t command_count; /* As many replies will come. */
    uint64_t bytes;
    bool failed;
};

void kvi_redis_pipe_init(struct kvi_redis_pipe *pipe, const struct kvg_alloc *alloc);
void kvi_redis_pipe_clear(struct kvi_redis_pipe *pipe); /* Keeps the memory. */
void kvi_redis_pipe_fini(struct kvi_redis_pipe *pipe);

/* A command of so many arguments, its name among them; exactly so many must follow. */
void kvi_redis_command(struct kvi_redis_pipe *pipe, size_t argument_count);

/* Arguments.  Large ones are borrowed until the pipe is cleared. */
void kvi_redis_arg(struct kvi_redis_pipe *pipe, const void *data, size_t bytes);
void kvi_redis_arg_text(struct kvi_redis_pipe *pipe, const char *text);
void kvi_redis_arg_u64(struct kvi_redis_pipe *pipe, uint64_t value);
void kvi_redis_arg_two(struct kvi_redis_pipe *pipe, struct kvg_str a, struct kvg_str b);

/* An argument in pieces: its length, then each piece, then the end. */
void kvi_redis_arg_begin(struct kvi_redis_pipe *pipe, uint64_t bytes);
void kvi_redis_arg_piece(struct kvi_redis_pipe *pipe, const void *data, size_t bytes);
void kvi_redis_arg_end(struct kvi_redis_pipe *pipe);

/* Writes everything to a blocking socket.  False, and errno, if that failed. */
bool kvi_redis_pipe_write(const struct kvi_redis_pipe *pipe, int fd);

#endif
