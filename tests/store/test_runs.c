/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* test_runs.c -- parts that lie side by side are written and read together, and that shows in
 * nothing but speed.  The first argument, if there is one, goes into the URL. */
#include "test.h"

#include "backend/file.h"
#include "backend/file_ring.h"
#include "store/dir.h"
#include "store/kit.h"

#include <errno.h>

#define PAGES 150
#define PARTS 3
#define BYTES_MAX 400000

static const char *TAIL = "";
static char DIR[DIR_BYTES];
static struct kvi_rng RNG;

struct part {
    char key[KIT_KEY_BYTES];
    size_t bytes;
    uint8_t *data;
    uint8_t *out;
    struct kvg_store_range ranges[4];
};

static struct part PART[PAGES * PARTS];

/* The system's I/O, counted. */
static struct file_io IO;
static size_t PLAIN_BYTES; /* Read through descriptors that are not for direct I/O. */
static bool IS_DIRECT[4096];
static bool DIRECT_OPENS;

static int open_counted(void *context, const char *path, unsigned flags)
{
    int fd = kvi_file_io_system.open(context, path, flags);

    if (fd >= 0 && fd < 4096)
        IS_DIRECT[fd] = (flags & FILE_IO_DIRECT) != 0;
    if ((flags & FILE_IO_DIRECT) != 0)
        DIRECT_OPENS = fd >= 0;
    return fd;
}

static ssize_t readv_counted(
    void *context, int fd, const struct iovec *vector, int count, uint64_t offset)
{
    ssize_t got = kvi_file_io_system.readv(context, fd, vector, count, offset);

    if (fd < 4096 && !IS_DIRECT[fd] && got > 0)
        PLAIN_BYTES += (size_t)got;
    return got;
}

static kvg_err open_on_counted(const struct kvg_store_url *url,
    const struct kvg_store_options *options, void **out, uint32_t *flags_out,
    struct kvg_error *error)
{
    struct file_store *file;
    kvg_err err = kvi_file_open_io(url, options, &IO, &file, error);

    (void)flags_out;
    *out = file;
    return err;
}

static struct kvg_store *open_store(void)
{
    static struct kvg_store_backend backend;
    static const struct kvg_store_backend *const BACKENDS[] = {&backend};
    static const struct kvg_store_registry REGISTRY = {
        .struct_bytes = sizeof(REGISTRY), .backends = BACKENDS, .backend_count = 1};
    struct kvg_store_options options = {
        .struct_bytes = sizeof(options), .registry = &REGISTRY};
    char url[160];
    struct kvg_store *store = NULL;
    struct kvg_error error = {0};

    IO = kvi_file_io_system;
    IO.open = open_counted;
    IO.readv = readv_counted;
    backend = kvi_store_file;
    backend.open = open_on_counted;
    snprintf(url, sizeof(url), "file:%s?bytes=1GiB&floor=0&sync=none%s", DIR, TAIL);
    if (kvg_store_open(url, &options, &store, &error) != KVG_OK)
        fprintf(stderr, "%s: %s\n", url, error.message);
    CHECK(store != NULL);
    return store;
}

static size_t ALL_OF; /* Bytes of every part; 0: random. */

/* Mostly runs of the sizes that are written together. */
static size_t random_bytes(size_t before)
{
    if (ALL_OF != 0)
        return ALL_OF;
    switch (kvi_rng_below(&RNG, 8)) {
    case 0:
        return 4096;
    case 1:
        return 1 + (size_t)kvi_rng_below(&RNG, 9000);
    case 2:
        return 60000 + (size_t)kvi_rng_below(&RNG, 10000);
    case 3:
        return 1 + (size_t)kvi_rng_below(&RNG, BYTES_MAX);
    default:
        return before;
    }
}

static void make_parts(void)
{
    size_t bytes = 4096;
    size_t i;

    for (i = 0; i < PAGES * PARTS; i++) {
        struct part *part = &PART[i];

        bytes = random_bytes(bytes);
        snprintf(part->key, sizeof(part->key), "page%zu_%zu", i / PARTS, i % PARTS);
        part->bytes = bytes;
        part->data = malloc(bytes);
        part->out = malloc(bytes);
        value_fill(str_of(part->key), 0, part->data, bytes);
    }
}

static void free_parts(void)
{
    size_t i;

    for (i = 0; i < PAGES * PARTS; i++) {
        free(PART[i].data);
        free(PART[i].out);
    }
}

/* All pages in one call, each part in one to three pieces. */
static void put_all(struct kvg_store *store)
{
    static struct kvg_store_piece pieces[PAGES * PARTS][3];
    static struct kvg_store_part parts[PAGES * PARTS];
    static struct kvg_store_group groups[PAGES];
    kvg_err err;
    size_t i;

    for (i = 0; i < PAGES * PARTS; i++) {
        size_t first = (size_t)kvi_rng_below(&RNG, PART[i].bytes + 1);
        size_t second = (size_t)kvi_rng_below(&RNG, PART[i].bytes - first + 1);
        bool whole = kvi_rng_below(&RNG, 2) == 0;

        pieces[i][0] = (struct kvg_store_piece){PART[i].data, first};
        pieces[i][1] = (struct kvg_store_piece){PART[i].data + first, second};
        pieces[i][2] = (struct kvg_store_piece){
            PART[i].data + first + second, PART[i].bytes - first - second};
        if (whole)
            pieces[i][0].bytes = PART[i].bytes;
        parts[i] =
            (struct kvg_store_part){str_of(PART[i].key), pieces[i], whole ? 1u : 3u};
        if (i % PARTS == 0)
            groups[i / PARTS] =
                (struct kvg_store_group){.parts = &parts[i], .part_count = PARTS};
    }
    err = kvg_store_put(store, groups, PAGES, NULL);
    CHECK(err == KVG_OK || err == KVG_EEXIST);
    for (i = 0; i < PAGES; i++)
        CHECK(groups[i].result == KVG_OK || groups[i].result == KVG_EEXIST);
}

/* All parts in one call, in one range or several; returns how many are good. */
static size_t get_all(struct kvg_store *store, bool in_ranges)
{
    static struct kvg_store_get gets[PAGES * PARTS];
    size_t good = 0;
    kvg_err err;
    size_t i;

    for (i = 0; i < PAGES * PARTS; i++) {
        struct part *part = &PART[i];
        size_t first = in_ranges ? (size_t)kvi_rng_below(&RNG, part->bytes) : part->bytes;

        memset(part->out, 0xee, part->bytes);
        part->ranges[0] = (struct kvg_store_range){0, first, part->out};
        part->ranges[1] =
            (struct kvg_store_range){first, part->bytes - first, part->out + first};
        gets[i] = (struct kvg_store_get){.key = str_of(part->key),
            .ranges = part->ranges,
            .range_count = in_ranges ? 2u : 1u};
    }
    err = kvg_store_get(store, gets, PAGES * PARTS, NULL);
    for (i = 0; i < PAGES * PARTS; i++) {
        if (gets[i].result != KVG_OK)
            continue;
        CHECK_EQ(gets[i].value_bytes, PART[i].bytes);
        CHECK_MEM(PART[i].out, PART[i].data, PART[i].bytes);
        good++;
    }
    CHECK(err == KVG_OK || good < PAGES * PARTS);
    return good;
}

static void flip_byte(long at)
{
    char path[DIR_BYTES + 32];
    FILE *file;
    int byte;

    snprintf(path, sizeof(path), "%s/segment-00000000", DIR);
    file = fopen(path, "r+");
    CHECK(file != NULL);
    fseek(file, at, SEEK_SET);
    byte = fgetc(file);
    fseek(file, at, SEEK_SET);
    fputc(byte ^ 4, file);
    fclose(file);
}

TEST(parts_of_all_sizes_put_in_one_call_come_back_in_one_call)
{
    unsigned round;

    for (round = 0; round < 4; round++) {
        struct kvg_store *store;

        CHECK(dir_make(DIR));
        make_parts();
        store = open_store();
        put_all(store);
        CHECK_EQ(get_all(store, false), PAGES * PARTS);
        CHECK_EQ(get_all(store, true), PAGES * PARTS);
        kvg_store_close(store);
        store = open_store();
        CHECK_EQ(get_all(store, false), PAGES * PARTS);
        kvg_store_close(store);
        free_parts();
        dir_remove(DIR);
    }
}

TEST(damage_to_one_of_many_read_together_costs_that_one)
{
    struct kvg_store *store;
    struct kvg_store_stats stats = {.struct_bytes = sizeof(stats)};

    CHECK(dir_make(DIR));
    ALL_OF = 4096;
    make_parts();
    ALL_OF = 0;
    store = open_store();
    put_all(store);
    flip_byte(7 * 4096 + 9);
    CHECK_EQ(get_all(store, false), PAGES * PARTS - 1);
    kvg_store_stats(store, &stats);
    CHECK_EQ(stats.lost_objects, 1);
    CHECK_EQ(stats.checksum_failures, 1);
    kvg_store_close(store);
    free_parts();
    dir_remove(DIR);
}

TEST(damage_is_found_by_who_reads_it_and_not_by_who_reads_beside_it)
{
    static uint8_t out[50000];
    struct kvg_store *store;
    struct kvg_store_range beside[2] = {{5, 40000, out}, {200001, 999, out + 40000}};
    struct kvg_store_range there = {99990, 20, out};
    struct kvg_store_get get = {
        .key = str_of("large_0"), .ranges = beside, .range_count = 2};

    CHECK(dir_make(DIR));
    store = open_store();
    CHECK_EQ(kit_put(store, "large", 1, 300000, NULL), KVG_OK);
    flip_byte(100000);
    CHECK_EQ(kvg_store_get(store, &get, 1, NULL), KVG_OK);
    CHECK(value_good(get.key, 5, out, 40000));
    CHECK(value_good(get.key, 200001, out + 40000, 999));
    get.ranges = &there;
    get.range_count = 1;
    CHECK_EQ(kvg_store_get(store, &get, 1, NULL), KVG_ECHECKSUM);
    CHECK(!kit_exists(store, "large_0"));
    kvg_store_close(store);
    dir_remove(DIR);
}

/* Slots that are freed here and there leave runs of every length. */
TEST(slots_freed_here_and_there_are_used_again)
{
    struct kvg_store *store;
    struct kvg_store_stats stats = {.struct_bytes = sizeof(stats)};
    uint64_t on_disk;
    unsigned round;

    CHECK(dir_make(DIR));
    make_parts();
    store = open_store();
    put_all(store);
    kvg_store_stats(store, &stats);
    on_disk = stats.bytes_on_disk;
    for (round = 0; round < 6; round++) {
        static struct kvg_str keys[PAGES * PARTS];
        size_t count = 0;
        size_t i;

        for (i = 0; i < PAGES * PARTS; i++) {
            if (kvi_rng_below(&RNG, 3) == 0)
                keys[count++] = str_of(PART[i].key);
        }
        CHECK_EQ(kvg_store_remove(store, keys, count, NULL, NULL), KVG_OK);
        CHECK_EQ(get_all(store, false), PAGES * PARTS - count);
        put_all(store);
        CHECK_EQ(get_all(store, false), PAGES * PARTS);
    }
    kvg_store_stats(store, &stats);
    CHECK_EQ(stats.bytes_on_disk, on_disk);
    kvg_store_close(store);
    free_parts();
    dir_remove(DIR);
}

/* Else the other tests of `io=` would test nothing. */
TEST(large_parts_go_past_the_page_cache_where_that_was_asked_for)
{
    struct kvg_store *store;
    struct ring ring;
    bool uring = strstr(TAIL, "uring") != NULL;
    size_t i;

    CHECK(dir_make(DIR));
    store = open_store();
    for (i = 0; i < 4; i++) {
        char name[16];

        snprintf(name, sizeof(name), "large%zu", i);
        CHECK_EQ(kit_put(store, name, 2, 300000, NULL), KVG_OK);
    }
    PLAIN_BYTES = 0;
    CHECK_EQ(kit_read_part(store, "large1", 0, 300000), KVG_OK);
    CHECK_EQ(kit_read_part(store, "large3", 1, 300000), KVG_OK);
    if (strstr(TAIL, "io=") == NULL)
        CHECK_EQ(PLAIN_BYTES, 600000);
    else if (!DIRECT_OPENS)
        printf("no direct I/O in %s\n", DIR);
    else
        CHECK_EQ(PLAIN_BYTES, 0);
    if (uring && kvi_ring_open(&ring) < 0)
        printf("no io_uring here\n");
    else if (uring)
        kvi_ring_close(&ring);
    kvg_store_close(store);
    dir_remove(DIR);
}

TEST(a_ring_reads_what_was_asked_and_says_what_failed)
{
    static uint8_t memory[RING_DEPTH][512];
    struct ring ring;
    FILE *file = tmpfile();
    int code = kvi_ring_open(&ring);
    bool seen[RING_DEPTH] = {false};
    uint32_t i;

    CHECK(file != NULL);
    if (code < 0) {
        printf("no io_uring here: %s\n", strerror(-code));
        fclose(file);
        return;
    }
    for (i = 0; i < RING_DEPTH * 512; i++)
        fputc((int)(i / 512 + i % 7), file);
    fflush(file);
    for (i = 0; i < RING_DEPTH; i++)
        kvi_ring_push(&ring, i == 3 ? -1 : fileno(file), memory[i], 512,
            i == 5 ? RING_DEPTH * 512 - 100 : i * 512, i);
    for (i = 0; i < RING_DEPTH; i++) {
        uint64_t tag;
        int32_t result;

        CHECK_EQ(kvi_ring_wait(&ring, &tag, &result), 0);
        CHECK(tag < RING_DEPTH && !seen[tag]);
        seen[tag] = true;
        CHECK_EQ(result, tag == 3 ? -EBADF : tag == 5 ? 100 : 512);
        if (tag != 3 && tag != 5)
            CHECK_EQ(memory[tag][11], tag + (tag * 512 + 11) % 7);
    }
    kvi_ring_close(&ring);
    fclose(file);
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest TESTS[] = {
        RUN(parts_of_all_sizes_put_in_one_call_come_back_in_one_call),
        RUN(damage_to_one_of_many_read_together_costs_that_one),
        RUN(damage_is_found_by_who_reads_it_and_not_by_who_reads_beside_it),
        RUN(slots_freed_here_and_there_are_used_again),
        RUN(large_parts_go_past_the_page_cache_where_that_was_asked_for),
        RUN(a_ring_reads_what_was_asked_and_says_what_failed),
    };

    if (argc > 1)
        TAIL = argv[1];
    RNG.state = kvt_seed(7);
    return cmocka_run_group_tests(TESTS, NULL, NULL);
}
