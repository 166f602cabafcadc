/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* The arena of middling blocks against a plain list of what was given out: no two blocks overlap,
 * what is written stays, and the arena's own invariants hold after every step. */
#include "host/arena.h"

#include <kvgraft/base.h>

#include "base/rng.h"

#include "test.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#define BLOCKS_MAX 600u
#define STEPS 6000u

struct block {
    unsigned char *memory;
    size_t bytes;
    unsigned char stamp;
};

struct world {
    struct kvi_arena *arena;
    struct kvi_rng rng;
    struct block blocks[BLOCKS_MAX];
    uint32_t count;
    size_t used;
};

static size_t rounded(size_t bytes)
{
    return (bytes + 1023) & ~(size_t)1023;
}

/* Its ends and its middle tell a block from its neighbours. */
static void stamp(const struct block *block)
{
    memset(block->memory, block->stamp, 64);
    memset(block->memory + block->bytes / 2, block->stamp, 64);
    memset(block->memory + block->bytes - 64, block->stamp, 64);
}

static bool is_stamped(const struct block *block)
{
    size_t i;

    for (i = 0; i < 64; i++)
        if (block->memory[i] != block->stamp ||
            block->memory[block->bytes / 2 + i] != block->stamp ||
            block->memory[block->bytes - 64 + i] != block->stamp)
            return false;
    return true;
}

/* Sizes as an index asks for them mostly, and now and then any. */
static size_t draw_bytes(struct world *world)
{
    if (kvi_rng_below(&world->rng, 4) != 0)
        return 256 + 8192 * (size_t)(4 + kvi_rng_below(&world->rng, 4));
    return KVI_ARENA_BLOCK_BYTES_MIN +
           (size_t)kvi_rng_below(
               &world->rng, KVI_ARENA_BLOCK_BYTES_MAX - KVI_ARENA_BLOCK_BYTES_MIN + 1);
}

static void allocate_one(struct world *world)
{
    struct block *block = &world->blocks[world->count];
    uint32_t i;

    block->bytes = draw_bytes(world);
    block->stamp = (unsigned char)kvi_rng_below(&world->rng, 256);
    block->memory = kvi_arena_allocate(world->arena, block->bytes);
    CHECK(block->memory != NULL);
    CHECK_EQ((uintptr_t)block->memory % 1024, 0);
    for (i = 0; i < world->count; i++)
        CHECK(block->memory + block->bytes <= world->blocks[i].memory ||
              world->blocks[i].memory + world->blocks[i].bytes <= block->memory);
    stamp(block);
    world->used += rounded(block->bytes);
    world->count++;
}

static void release_one(struct world *world)
{
    uint32_t victim = (uint32_t)kvi_rng_below(&world->rng, world->count);
    struct block *block = &world->blocks[victim];

    CHECK(is_stamped(block));
    CHECK(kvi_arena_release(world->arena, block->memory, block->bytes));
    world->used -= rounded(block->bytes);
    *block = world->blocks[--world->count];
}

static void check_world(struct world *world)
{
    size_t used;
    size_t held;

    CHECK_EQ(kvi_arena_check(world->arena), 0);
    kvi_arena_usage(world->arena, &used, &held);
    CHECK_EQ(used, world->used);
    CHECK(held >= used);
}

TEST(random_blocks_never_overlap_and_everything_is_given_back)
{
    static struct world world;
    uint32_t target = BLOCKS_MAX / 2;
    uint32_t step;
    size_t used;
    size_t held;

    world = (struct world){.arena = kvi_arena_new()};
    CHECK(world.arena != NULL);
    world.rng.state = kvt_seed(7);
    for (step = 0; step < STEPS; step++) {
        if (step % 500 == 0) /* It grows and shrinks. */
            target = (uint32_t)kvi_rng_below(&world.rng, BLOCKS_MAX);
        if (world.count == 0 ||
            (world.count < BLOCKS_MAX && kvi_rng_below(&world.rng, BLOCKS_MAX) < target))
            allocate_one(&world);
        else
            release_one(&world);
        if (step % 16 == 0)
            check_world(&world);
    }
    while (world.count != 0)
        release_one(&world);
    check_world(&world);
    kvi_arena_usage(world.arena, &used, &held);
    CHECK_EQ(used, 0);
    CHECK_EQ(held, (size_t)32 << 20); /* One region is kept. */
    kvi_arena_free(world.arena);
}

TEST(neighbours_that_come_back_are_one_run_again)
{
    enum {
        COUNT = 40
    };
    struct kvi_arena *arena = kvi_arena_new();
    void *blocks[COUNT];
    size_t used;
    size_t before;
    size_t after;
    int i;

    for (i = 0; i < COUNT; i++)
        blocks[i] = kvi_arena_allocate(arena, (size_t)512 << 10);
    kvi_arena_usage(arena, &used, &before);
    for (i = 0; i < COUNT; i += 2)
        CHECK(kvi_arena_release(arena, blocks[i], (size_t)512 << 10));
    for (i = 1; i < COUNT; i += 2)
        CHECK(kvi_arena_release(arena, blocks[i], (size_t)512 << 10));
    for (i = 0; i < COUNT / 2;
         i++) { /* Twice as large: they fit where the others were. */
        blocks[i] = kvi_arena_allocate(arena, (size_t)1 << 20);
        CHECK(blocks[i] != NULL);
    }
    kvi_arena_usage(arena, &used, &after);
    CHECK_EQ(used, (size_t)COUNT / 2 << 20);
    CHECK_EQ(after, before);
    kvi_arena_free(arena);
}

TEST(a_block_of_somebody_else_is_not_taken)
{
    struct kvi_arena *arena = kvi_arena_new();
    struct kvi_arena *other = kvi_arena_new();
    void *theirs = kvi_arena_allocate(other, 9000);
    void *plain = malloc(9000);

    CHECK(!kvi_arena_release(arena, theirs, 9000));
    CHECK(!kvi_arena_release(arena, plain, 9000));
    CHECK(kvi_arena_release(other, theirs, 9000));
    free(plain);
    kvi_arena_free(arena);
    kvi_arena_free(other);
    kvi_arena_free(NULL);
}

/* Whether a process that does this dies of it. */
static bool dies(void (*misuse)(struct kvi_arena *arena, void *block))
{
    pid_t child = fork();
    int status;

    if (child == 0) {
        struct kvi_arena *arena = kvi_arena_new();
        void *block = kvi_arena_allocate(arena, 20000);

        (void)signal(SIGILL, SIG_DFL);
        (void)signal(SIGTRAP, SIG_DFL);
        (void)kvi_arena_allocate(arena, 20000);
        misuse(arena, block);
        _exit(0);
    }
    CHECK(child > 0);
    CHECK(waitpid(child, &status, 0) == child);
    return WIFSIGNALED(status) || WEXITSTATUS(status) != 0;
}

static void release_twice(struct kvi_arena *arena, void *block)
{
    (void)kvi_arena_release(arena, block, 20000);
    (void)kvi_arena_release(arena, block, 20000);
}

static void release_with_another_length(struct kvi_arena *arena, void *block)
{
    (void)kvi_arena_release(arena, block, 30000);
}

static void release_its_middle(struct kvi_arena *arena, void *block)
{
    (void)kvi_arena_release(arena, (char *)block + 1024, 19000);
}

TEST(misuse_ends_the_process)
{
    CHECK(dies(release_twice));
    CHECK(dies(release_with_another_length));
    CHECK(dies(release_its_middle));
}

/* The default allocator, from several threads at once. */
static void *churn(void *context)
{
    const struct kvg_alloc *alloc = kvg_alloc_default();
    struct block blocks[64] = {0};
    struct kvi_rng rng;
    int step;
    int i;

    rng.state = (uint64_t)(uintptr_t)context;
    for (step = 0; step < 4000; step++) {
        struct block *block = &blocks[kvi_rng_below(&rng, 64)];

        if (block->memory != NULL) {
            if (!is_stamped(block))
                return context;
            alloc->release(alloc->context, block->memory, block->bytes);
            block->memory = NULL;
            continue;
        }
        block->bytes = 128 + (size_t)kvi_rng_below(&rng, 1 << (8 + step % 14));
        block->stamp = (unsigned char)step;
        block->memory = alloc->allocate(alloc->context, block->bytes);
        if (block->memory == NULL)
            return context;
        stamp(block);
    }
    for (i = 0; i < 64; i++)
        if (blocks[i].memory != NULL)
            alloc->release(alloc->context, blocks[i].memory, blocks[i].bytes);
    return NULL;
}

TEST(threads_share_the_default_allocator)
{
    pthread_t threads[4];
    uintptr_t i;

    for (i = 0; i < 4; i++) /* NOLINTNEXTLINE(performance-no-int-to-ptr) */
        CHECK_EQ(pthread_create(&threads[i], NULL, churn, (void *)(i + 1)), 0);
    for (i = 0; i < 4; i++) {
        void *failed;

        CHECK_EQ(pthread_join(threads[i], &failed), 0);
        CHECK(failed == NULL);
    }
}

TEST_MAIN(RUN(random_blocks_never_overlap_and_everything_is_given_back),
    RUN(neighbours_that_come_back_are_one_run_again),
    RUN(a_block_of_somebody_else_is_not_taken), RUN(misuse_ends_the_process),
    RUN(threads_share_the_default_allocator))
