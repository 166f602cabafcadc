/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* test_runs.c -- parts that lie side by side are written and read together, and that shows in
 * nothing but speed.  The first argument, if there is one, goes into the URL. */
#include "test.h"

#include "store/dir.h"
#include "store/kit.h"

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

static struct kvg_store *open_store(void)
{
    char url[160];
    struct kvg_store *store = NULL;
    struct kvg_error error = {0};

    snprintf(url, sizeof(url), "file:%s?bytes=1GiB&floor=0&sync=none%s", DIR, TAIL);
    if (kvg_store_open(url, NULL, &store, &error) != KVG_OK)
        fprintf(stderr, "%s: %s\n", url, error.message);
    CHECK(store != NULL);
    return store;
}

/* Mostly runs of the sizes that are written together. */
static size_t random_bytes(size_t before)
{
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

static void flip_a_byte_of_segment_0(void)
{
    char path[DIR_BYTES + 32];
    FILE *file;
    int byte;

    snprintf(path, sizeof(path), "%s/segment-00000000", DIR);
    file = fopen(path, "r+");
    CHECK(file != NULL);
    byte = fgetc(file);
    fseek(file, 0, SEEK_SET);
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
    make_parts();
    store = open_store();
    put_all(store);
    flip_a_byte_of_segment_0();
    CHECK_EQ(get_all(store, false), PAGES * PARTS - 1);
    kvg_store_stats(store, &stats);
    CHECK_EQ(stats.lost_objects, 1);
    CHECK_EQ(stats.checksum_failures, 1);
    kvg_store_close(store);
    free_parts();
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

int main(int argc, char **argv)
{
    static const struct CMUnitTest TESTS[] = {
        RUN(parts_of_all_sizes_put_in_one_call_come_back_in_one_call),
        RUN(damage_to_one_of_many_read_together_costs_that_one),
        RUN(slots_freed_here_and_there_are_used_again),
    };

    if (argc > 1)
        TAIL = argv[1];
    RNG.state = kvt_seed(7);
    return cmocka_run_group_tests(TESTS, NULL, NULL);
}
