/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* arena.c -- blocks of some kilobytes, side by side on large pages.
 *
 * The segments of an index and the slabs of a tree are read at random.  From malloc they lie on
 * small pages, and nearly every read misses the TLB as well as the cache.  Here they come from
 * regions for which the kernel is asked to use pages of 2 MiB:
 *
 *     region: 32 MiB, aligned to its size                       granule: 1 KiB
 *     +-----------+------------+--------+------------------+------+-------------+
 *     | header    | block      | free   | block            | free | block ...   |
 *     +-----------+------------+--------+------------------+------+-------------+
 *       runs[g]: the length of the run that begins or ends at granule g, and whether it is free
 *
 * A request gets the shortest free run that is long enough; one list for every length, and a
 * bit that says which lists have members.  What comes back joins its free neighbours, which the
 * ends of their runs in `runs` tell without a search.  A region without blocks is given back,
 * but for one.
 *
 * Invariants, checked by kvi_arena_check():
 *
 *     A1  Regions are in the order of their addresses.
 *     A2  The runs of a region lie end to end and fill it; both ends of a run say the same.
 *     A3  No two free runs are neighbours.
 *     A4  Every free run is in the list of its length, and nothing else is in a list.
 *     A5  A list's bit is set if and only if it has members.
 *     A6  The bytes in use are those of the runs in use.
 *
 * Threads: any; one lock, for such blocks are few.  A wrong length or a second release ends the
 * process, as it would corrupt what others own.
 */
#include "host/arena.h"

#include "base/assert.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define REGION_BYTES ((size_t)32 << 20)
#define GRANULE_BYTES ((size_t)1 << 10)
#define GRANULES ((uint32_t)(REGION_BYTES / GRANULE_BYTES))
/* Runs of LONG granules and more are in one list; any of them is long enough for any block. */
#define LONG ((uint32_t)(KVI_ARENA_BLOCK_BYTES_MAX / GRANULE_BYTES))
#define LISTS (LONG + 1)
#define WORDS (LISTS / 64 + 1)
#define RUN_FREE UINT16_C(0x8000)
_Static_assert(GRANULES <= RUN_FREE, "a run's length fits beside the bit");

/* At the beginning of a free run. */
struct link {
    struct link *next;
    struct link *previous;
};

struct region {
    uint32_t used; /* Granules in blocks. */
    uint16_t runs[GRANULES];
};
#define HEADER_GRANULES \
    ((uint32_t)((sizeof(struct region) + GRANULE_BYTES - 1) / GRANULE_BYTES))
#define ROOM (GRANULES - HEADER_GRANULES)
_Static_assert(ROOM >= LONG, "the largest block fits");

struct kvi_arena {
    pthread_mutex_t lock;
    struct region **regions;
    size_t region_count;
    size_t region_capacity;
    size_t used; /* Granules. */
    uint64_t filled[WORDS];
    struct link lists[LISTS];
};

static uint32_t list_of(uint32_t length)
{
    return length < LONG ? length : LONG;
}

static char *at(struct region *region, uint32_t granule)
{
    return (char *)region + granule * GRANULE_BYTES;
}

static struct region *region_of(void *memory)
{
    return (struct region *)(void *)((char *)memory -
                                     ((uintptr_t)memory & (REGION_BYTES - 1)));
}

static uint32_t granule_of(struct region *region, void *memory)
{
    return (uint32_t)((size_t)((char *)memory - (char *)region) / GRANULE_BYTES);
}

static void mark_run(struct region *region, uint32_t first, uint32_t length, bool is_free)
{
    uint16_t run = (uint16_t)(length | (is_free ? RUN_FREE : 0));

    region->runs[first] = run;
    region->runs[first + length - 1] = run;
}

static void add_free(
    struct kvi_arena *arena, struct region *region, uint32_t first, uint32_t length)
{
    uint32_t list = list_of(length);
    struct link *head = &arena->lists[list];
    struct link *link = (struct link *)(void *)at(region, first);

    mark_run(region, first, length, true);
    *link = (struct link){head->next, head};
    head->next->previous = link;
    head->next = link;
    arena->filled[list / 64] |= UINT64_C(1) << list % 64;
}

static void drop_free(
    struct kvi_arena *arena, struct region *region, uint32_t first, uint32_t length)
{
    uint32_t list = list_of(length);
    struct link *link = (struct link *)(void *)at(region, first);

    link->next->previous = link->previous;
    link->previous->next = link->next;
    if (arena->lists[list].next == &arena->lists[list])
        arena->filled[list / 64] &= ~(UINT64_C(1) << list % 64);
}

/* Regions -------------------------------------------------------------------------------------- */

/* The place of a region among the regions, or where it would go. */
static size_t place_of(const struct kvi_arena *arena, const struct region *region)
{
    size_t low = 0;
    size_t high = arena->region_count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if ((uintptr_t)arena->regions[middle] < (uintptr_t)region)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool has_region(const struct kvi_arena *arena, const struct region *region)
{
    size_t place = place_of(arena, region);

    return place < arena->region_count && arena->regions[place] == region;
}

/* Memory of a region's size and alignment: of twice as much the ends go back. */
static struct region *map_region(void)
{
    char *memory = mmap(NULL, 2 * REGION_BYTES, PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    size_t before;

    if (memory == MAP_FAILED)
        return NULL;
    before =
        (REGION_BYTES - ((uintptr_t)memory & (REGION_BYTES - 1))) & (REGION_BYTES - 1);
    if (before != 0)
        (void)munmap(memory, before);
    (void)munmap(memory + before + REGION_BYTES, REGION_BYTES - before);
#ifdef MADV_HUGEPAGE
    (void)madvise(memory + before, REGION_BYTES, MADV_HUGEPAGE); /* May be refused. */
#endif
    return (struct region *)(void *)(memory + before);
}

static bool add_region(struct kvi_arena *arena)
{
    struct region *region;
    size_t place;

    if (arena->region_count == arena->region_capacity) {
        size_t capacity = arena->region_capacity == 0 ? 16 : arena->region_capacity * 2;
        struct region **regions = realloc(arena->regions, capacity * sizeof(*regions));

        if (regions == NULL)
            return false;
        arena->regions = regions;
        arena->region_capacity = capacity;
    }
    region = map_region();
    if (region == NULL)
        return false;
    place = place_of(arena, region);
    memmove(arena->regions + place + 1, arena->regions + place,
        (arena->region_count - place) * sizeof(*arena->regions));
    arena->regions[place] = region;
    arena->region_count++;
    mark_run(region, 0, HEADER_GRANULES, false);
    add_free(arena, region, HEADER_GRANULES, ROOM);
    return true;
}

/* A region without blocks goes, unless it is the only one that is all free. */
static void drop_region(struct kvi_arena *arena, struct region *region)
{
    size_t place = place_of(arena, region);
    size_t i;

    for (i = 0; i < arena->region_count; i++)
        if (arena->regions[i] != region && arena->regions[i]->used == 0)
            break;
    if (i == arena->region_count)
        return;
    drop_free(arena, region, HEADER_GRANULES, ROOM);
    arena->region_count--;
    memmove(arena->regions + place, arena->regions + place + 1,
        (arena->region_count - place) * sizeof(*arena->regions));
    (void)munmap(region, REGION_BYTES);
}

/* Blocks --------------------------------------------------------------------------------------- */

/* The shortest list of runs of at least `length`; LISTS if there is none. */
static uint32_t find_list(const struct kvi_arena *arena, uint32_t length)
{
    uint32_t word = length / 64;
    uint64_t bits = arena->filled[word] & (UINT64_MAX << length % 64);

    while (bits == 0) {
        if (++word == WORDS)
            return LISTS;
        bits = arena->filled[word];
    }
    return word * 64 + (uint32_t)__builtin_ctzll(bits);
}

static void *take(struct kvi_arena *arena, uint32_t length)
{
    uint32_t list = find_list(arena, length);
    struct region *region;
    uint32_t first;
    uint32_t found;

    if (list == LISTS) {
        if (!add_region(arena))
            return NULL;
        list = LONG;
    }
    region = region_of(arena->lists[list].next);
    first = granule_of(region, arena->lists[list].next);
    found = region->runs[first] & (RUN_FREE - 1u);
    drop_free(arena, region, first, found);
    mark_run(region, first, length, false);
    if (found > length)
        add_free(arena, region, first + length, found - length);
    region->used += length;
    arena->used += length;
    return at(region, first);
}

static void give_back(
    struct kvi_arena *arena, struct region *region, uint32_t first, uint32_t length)
{
    uint32_t behind = first + length;

    KVI_ASSERT(first >= HEADER_GRANULES && behind <= GRANULES);
    KVI_ASSERT(region->runs[first] == length && region->runs[behind - 1] == length);
    region->used -= length;
    arena->used -= length;
    if (region->runs[first - 1] & RUN_FREE) {
        uint32_t before = region->runs[first - 1] & (RUN_FREE - 1u);

        first -= before;
        length += before;
        drop_free(arena, region, first, before);
    }
    if (behind < GRANULES && region->runs[behind] & RUN_FREE) {
        uint32_t after = region->runs[behind] & (RUN_FREE - 1u);

        drop_free(arena, region, behind, after);
        length += after;
    }
    add_free(arena, region, first, length);
    if (region->used == 0)
        drop_region(arena, region);
}

static uint32_t granules_for(size_t bytes)
{
    KVI_ASSERT(bytes >= KVI_ARENA_BLOCK_BYTES_MIN && bytes <= KVI_ARENA_BLOCK_BYTES_MAX);
    return (uint32_t)((bytes + GRANULE_BYTES - 1) / GRANULE_BYTES);
}

void *kvi_arena_allocate(struct kvi_arena *arena, size_t bytes)
{
    uint32_t length = granules_for(bytes);
    void *block;

    pthread_mutex_lock(&arena->lock);
    block = take(arena, length);
    pthread_mutex_unlock(&arena->lock);
    return block;
}

bool kvi_arena_release(struct kvi_arena *arena, void *block, size_t bytes)
{
    uint32_t length = granules_for(bytes);
    struct region *region = region_of(block);
    bool is_ours;

    pthread_mutex_lock(&arena->lock);
    is_ours = has_region(arena, region);
    if (is_ours) {
        KVI_ASSERT((uintptr_t)block % GRANULE_BYTES == 0);
        give_back(arena, region, granule_of(region, block), length);
    }
    pthread_mutex_unlock(&arena->lock);
    return is_ours;
}

void kvi_arena_usage(struct kvi_arena *arena, size_t *used_out, size_t *held_out)
{
    pthread_mutex_lock(&arena->lock);
    *used_out = arena->used * GRANULE_BYTES;
    *held_out = arena->region_count * REGION_BYTES;
    pthread_mutex_unlock(&arena->lock);
}

struct kvi_arena *kvi_arena_new(void)
{
    struct kvi_arena *arena = calloc(1, sizeof(*arena));
    uint32_t list;

    if (arena == NULL)
        return NULL;
    if (pthread_mutex_init(&arena->lock, NULL) != 0) {
        free(arena);
        return NULL;
    }
    for (list = 0; list < LISTS; list++)
        arena->lists[list] = (struct link){&arena->lists[list], &arena->lists[list]};
    return arena;
}

void kvi_arena_free(struct kvi_arena *arena)
{
    size_t i;

    if (arena == NULL)
        return;
    for (i = 0; i < arena->region_count; i++)
        (void)munmap(arena->regions[i], REGION_BYTES);
    free(arena->regions);
    (void)pthread_mutex_destroy(&arena->lock);
    free(arena);
}

/* Checking ------------------------------------------------------------------------------------- */

struct sums {
    size_t used;
    size_t free_runs;
};

static int check_region(struct region *region, struct sums *sums)
{
    bool after_free = false;
    uint32_t used = 0;
    uint32_t g = HEADER_GRANULES;

    if (region->runs[0] != HEADER_GRANULES)
        return 2;
    while (g < GRANULES) {
        uint32_t length = region->runs[g] & (RUN_FREE - 1u);
        bool is_free = region->runs[g] & RUN_FREE;

        if (length == 0 || g + length > GRANULES ||
            region->runs[g + length - 1] != region->runs[g])
            return 2;
        if (is_free && after_free)
            return 3;
        used += is_free ? 0 : length;
        sums->free_runs += is_free;
        after_free = is_free;
        g += length;
    }
    sums->used += used;
    return used == region->used ? 0 : 6;
}

static int check_lists(struct kvi_arena *arena, size_t free_runs)
{
    size_t members = 0;
    uint32_t list;

    for (list = 0; list < LISTS; list++) {
        struct link *link = arena->lists[list].next;
        bool is_filled = arena->filled[list / 64] >> list % 64 & 1;

        if (is_filled != (link != &arena->lists[list]))
            return 5;
        for (; link != &arena->lists[list]; link = link->next, members++) {
            struct region *region = region_of(link);
            uint16_t run;

            if (!has_region(arena, region) || link->next->previous != link)
                return 4;
            run = region->runs[granule_of(region, link)];
            if (!(run & RUN_FREE) || list_of(run & (RUN_FREE - 1u)) != list)
                return 4;
        }
    }
    return members == free_runs ? 0 : 4;
}

static int check(struct kvi_arena *arena)
{
    struct sums sums = {0};
    size_t i;

    for (i = 0; i < arena->region_count; i++) {
        int broken;

        if (i > 0 && (uintptr_t)arena->regions[i - 1] >= (uintptr_t)arena->regions[i])
            return 1;
        broken = check_region(arena->regions[i], &sums);
        if (broken != 0)
            return broken;
    }
    if (sums.used != arena->used)
        return 6;
    return check_lists(arena, sums.free_runs);
}

int kvi_arena_check(struct kvi_arena *arena)
{
    int broken;

    pthread_mutex_lock(&arena->lock);
    broken = check(arena);
    pthread_mutex_unlock(&arena->lock);
    return broken;
}
