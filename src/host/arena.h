/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* arena.h -- blocks of some kilobytes, side by side on large pages (arena.c). */
#ifndef KVI_HOST_ARENA_H
#define KVI_HOST_ARENA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KVI_ARENA_BLOCK_BYTES_MIN ((size_t)8 << 10)
#define KVI_ARENA_BLOCK_BYTES_MAX ((size_t)1 << 20)

struct kvi_arena;

/* NULL without memory. */
struct kvi_arena *kvi_arena_new(void);
/* Gives everything back, also blocks that are still in use.  NULL is allowed. */
void kvi_arena_free(struct kvi_arena *arena);
/* A block of BLOCK_BYTES_MIN to _MAX bytes, aligned to 1 KiB, not zeroed; NULL without memory. */
void *kvi_arena_allocate(struct kvi_arena *arena, size_t bytes);
/* Takes back a block of `bytes`, as it was asked for.  False if it is not of this arena. */
bool kvi_arena_release(struct kvi_arena *arena, void *block, size_t bytes);
/* Bytes in use, rounded up to granules; and bytes the arena has of the system. */
void kvi_arena_usage(struct kvi_arena *arena, size_t *used_out, size_t *held_out);
/* 0, or the number of the first broken invariant of arena.c. */
int kvi_arena_check(struct kvi_arena *arena);

#endif
