/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* test_damage.c -- a directory after all kinds of mishap: files deleted, shortened, flipped,
 * written by somebody newer; writers killed; a small disk shared by two.
 *
 *     test_damage [ROUNDS]     rounds of killing a writer; default 6, KVG_KILL_ROUNDS too */
#include "test.h"

#include "store/dir.h"
#include "store/kit.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define PAGES 60
#define BYTES 9000

static char DIR[DIR_BYTES];

static struct kvg_store *open_dir(const char *more, const struct kvg_store_hook *hook)
{
    struct kvg_store_options options = {.struct_bytes = sizeof(options)};
    struct kvg_store *store = NULL;
    struct kvg_error error = {0};
    char url[256];

    if (hook != NULL)
        options.hook = *hook;
    snprintf(url, sizeof(url), "file:%s?floor=0%s", DIR, more);
    if (kvg_store_open(url, &options, &store, &error) != KVG_OK)
        fail_msg("%s: %s: %s", url, error.field, error.message);
    return store;
}

static kvg_err open_error(struct kvg_error *error)
{
    struct kvg_store *store = NULL;
    char url[256];
    kvg_err err;

    snprintf(url, sizeof(url), "file:%s", DIR);
    memset(error, 0, sizeof(*error));
    err = kvg_store_open(url, NULL, &store, error);
    kvg_store_close(store);
    return err;
}

static void fill(struct kvg_store *store)
{
    char name[KIT_KEY_BYTES];
    int i;

    for (i = 0; i < PAGES; i++) {
        snprintf(name, sizeof(name), "p%d", i);
        CHECK(kit_put(store, name, 2, BYTES, NULL) == KVG_OK ||
              kit_page_state(store, name, 2) == 1);
    }
}

/* Pages that are whole and right; every page must be one of right, absent or damaged. */
static unsigned count_good(struct kvg_store *store)
{
    unsigned good = 0;
    int i;
    size_t part;

    for (i = 0; i < PAGES; i++) {
        char name[KIT_KEY_BYTES];
        bool all = true;

        snprintf(name, sizeof(name), "p%d", i);
        for (part = 0; part < 2; part++) {
            kvg_err err = kit_read_part(store, name, part, BYTES);

            CHECK(err == KVG_OK || err == KVG_ENOENT || err == KVG_ECHECKSUM);
            all = all && err == KVG_OK;
        }
        good += all;
    }
    return good;
}

static const char *file_name(const char *name, char path[128])
{
    snprintf(path, 128, "%s/%s", DIR, name);
    return path;
}

static void flip_at(const char *name, off_t offset)
{
    char path[128];
    uint8_t byte;
    int fd = open(file_name(name, path), O_RDWR);

    CHECK(fd >= 0);
    CHECK_EQ(pread(fd, &byte, 1, offset), 1);
    byte ^= 0x10;
    CHECK_EQ(pwrite(fd, &byte, 1, offset), 1);
    close(fd);
}

static off_t size_of(const char *name)
{
    char path[128];
    struct stat state;

    CHECK_EQ(stat(file_name(name, path), &state), 0);
    return state.st_size;
}

struct lost {
    unsigned count;
};

static void hear_lost(void *context, const struct kvg_store_change *change)
{
    ((struct lost *)context)->count += change->kind == KVG_STORE_LOST;
}

static struct kvg_store *filled(const char *more, const struct kvg_store_hook *hook)
{
    struct kvg_store *store;

    CHECK(dir_make(DIR));
    store = open_dir(more, NULL);
    fill(store);
    kvg_store_close(store);
    return hook == NULL ? NULL : open_dir(more, hook);
}

TEST(a_flipped_bit_costs_one_part_and_is_told)
{
    struct lost lost = {0};
    struct kvg_store_hook hook = {hear_lost, &lost};
    struct kvg_store *store = filled("", &hook);
    struct kvg_store_stats stats = {.struct_bytes = sizeof(stats)};

    flip_at("segment-00000000", 12288 * 10 + 77);
    CHECK_EQ(count_good(store), PAGES - 1);
    CHECK_EQ(lost.count, 1);
    kvg_store_stats(store, &stats);
    CHECK_EQ(stats.lost_objects, 1);
    CHECK_EQ(stats.checksum_failures, 1);
    CHECK_EQ(stats.objects, 2 * PAGES - 1);
    CHECK_EQ(kit_put(store, "p5", 2, BYTES, NULL), KVG_OK); /* It heals. */
    CHECK_EQ(count_good(store), PAGES);
    kvg_store_close(store);
    dir_remove(DIR);
}

TEST(a_shortened_segment_costs_what_was_in_the_rest)
{
    struct lost lost = {0};
    struct kvg_store_hook hook = {hear_lost, &lost};
    struct kvg_store *store = filled("", &hook);
    char path[128];

    CHECK_EQ(truncate(file_name("segment-00000000", path), 12288 * 100 + 5), 0);
    CHECK_EQ(count_good(store), 50);
    CHECK_EQ(lost.count, 20);
    kvg_store_close(store);
    store = open_dir("", NULL);
    CHECK_EQ(count_good(store), 50);
    fill(store);
    CHECK_EQ(count_good(store), PAGES);
    kvg_store_close(store);
    dir_remove(DIR);
}

TEST(a_deleted_segment_costs_all_that_was_in_it_and_every_part_is_told)
{
    struct lost lost = {0};
    struct kvg_store_hook hook = {hear_lost, &lost};
    struct kvg_store *store;
    char path[128];

    filled("", NULL);
    CHECK_EQ(unlink(file_name("segment-00000000", path)), 0);
    store = open_dir("", &hook);
    CHECK_EQ(kit_read_part(store, "p3", 0, BYTES), KVG_ECHECKSUM);
    CHECK_EQ(lost.count, 2 * PAGES);
    CHECK(!kit_exists(store, "p7_0"));
    fill(store);
    CHECK_EQ(count_good(store), PAGES);
    kvg_store_close(store);
    dir_remove(DIR);
}

/* Its maker died between announcing it and making it, say. */
TEST(a_segment_that_was_announced_and_never_made_is_made_when_it_is_written_to)
{
    struct kvg_store *store;
    char path[128];

    filled("", NULL);
    store = open_dir("", NULL);
    CHECK_EQ(kvg_store_clear(store, NULL), KVG_OK);
    kvg_store_close(store);
    CHECK_EQ(unlink(file_name("segment-00000000", path)), 0);
    store = open_dir("", NULL);
    fill(store);
    kvg_store_close(store);
    store = open_dir("", NULL);
    CHECK_EQ(count_good(store), PAGES);
    kvg_store_close(store);
    dir_remove(DIR);
}

TEST(a_check_finds_the_damage_and_a_repair_drops_it)
{
    struct lost lost = {0};
    struct kvg_store_hook hook = {hear_lost, &lost};
    struct kvg_store *store = filled("", &hook);
    struct kvg_store_report report = {.struct_bytes = sizeof(report)};

    flip_at("segment-00000000", 12288 * 3 + 1);
    flip_at("segment-00000000", 12288 * 9 + 8000);
    CHECK_EQ(kvg_store_check(store, false, NULL, NULL, &report, NULL), KVG_OK);
    CHECK_EQ(report.objects, 2 * PAGES);
    CHECK_EQ(report.damaged, 2);
    CHECK_EQ(report.dropped, 0);
    CHECK_EQ(lost.count, 0);
    CHECK_EQ(kvg_store_check(store, true, NULL, NULL, &report, NULL), KVG_OK);
    CHECK_EQ(report.dropped, 2);
    CHECK_EQ(lost.count, 2);
    CHECK_EQ(kvg_store_check(store, true, NULL, NULL, &report, NULL), KVG_OK);
    CHECK_EQ(report.damaged, 0);
    kvg_store_close(store);
    dir_remove(DIR);
}

TEST(a_hole_in_the_journal_costs_only_what_it_said)
{
    struct kvg_store_cursor before = {0};
    struct kvg_store_cursor after = {0};
    struct kvg_store_stats stats = {.struct_bytes = sizeof(stats)};
    struct kvg_store *store;
    uint64_t epoch;

    filled("", NULL);
    (void)before;
    (void)after;
    store = open_dir("", NULL);
    kvg_store_stats(store, &stats);
    epoch = stats.epoch;
    kvg_store_close(store);
    flip_at("journal", size_of("journal") / 2);
    store = open_dir("", NULL);
    CHECK(count_good(store) >= PAGES - 1);
    kvg_store_stats(store, &stats);
    CHECK(stats.epoch != epoch); /* Followers must list again. */
    fill(store);
    CHECK_EQ(count_good(store), PAGES);
    kvg_store_close(store);
    store = open_dir("", NULL); /* The hole is behind us. */
    CHECK_EQ(count_good(store), PAGES);
    kvg_store_close(store);
    dir_remove(DIR);
}

TEST(a_journal_cut_short_anywhere_opens_with_what_is_left)
{
    off_t size;
    off_t at;

    filled("&sync=none", NULL);
    size = size_of("journal");
    for (at = size - 1; at > 64; at -= size / 23) {
        struct kvg_store *store;
        char path[128];

        CHECK_EQ(truncate(file_name("journal", path), at), 0);
        store = open_dir("&sync=none", NULL);
        CHECK(count_good(store) <= PAGES);
        CHECK_EQ(kit_put(store, "again", 1, 100, NULL), KVG_OK);
        kvg_store_close(store);
    }
    dir_remove(DIR);
}

TEST(what_is_of_another_version_or_none_of_ours_is_refused)
{
    struct kvg_error error;
    char path[128];
    FILE *file;

    filled("", NULL);
    file = fopen(file_name("store", path), "w");
    fprintf(file, "kvgraft-store 3\nidentity 0\n");
    fclose(file);
    CHECK_EQ(open_error(&error), KVG_EVERSION);
    CHECK(strstr(error.message, "version is 3") != NULL);
    file = fopen(path, "w");
    fprintf(file, "kvgraft-store 1\nidentity 0\n");
    fclose(file);
    CHECK_EQ(open_error(&error), KVG_EVERSION);
    file = fopen(path, "w");
    fprintf(file, "something else\n");
    fclose(file);
    CHECK_EQ(open_error(&error), KVG_EFORMAT);
    unlink(path);
    CHECK_EQ(open_error(&error), KVG_EFORMAT);
    dir_remove(DIR);
}

TEST(a_longer_journal_is_written_anew_and_others_follow)
{
    struct kvg_store *first;
    struct kvg_store *second;
    struct lost lost = {0};
    struct kvg_store_hook hook = {hear_lost, &lost};
    struct kvg_store_stats stats = {.struct_bytes = sizeof(stats)};
    struct kvg_store_stats others = {.struct_bytes = sizeof(others)};
    uint64_t epoch;
    int round;

    filled("", NULL);
    first = open_dir("", NULL);
    second = open_dir("", &hook);
    kvg_store_stats(second, &stats);
    epoch = stats.epoch;
    for (round = 0; round < 3; round++) {
        char path[128];

        /* A damaged tail is no reason; a damaged middle makes the next opening write anew. */
        flip_at("journal", size_of("journal") / 2);
        kvg_store_close(open_dir("", NULL));
        CHECK_EQ(kit_put(first,
                     round == 0   ? "x"
                     : round == 1 ? "y"
                                  : "z",
                     1, 50, NULL),
            KVG_OK);
        CHECK_EQ(kvg_store_poll(second, NULL), KVG_OK);
        CHECK(kit_exists(second, round == 0 ? "x_0" : round == 1 ? "y_0" : "z_0"));
        (void)path;
    }
    kvg_store_stats(first, &stats);
    kvg_store_stats(second, &others);
    CHECK(stats.epoch != epoch);
    CHECK_EQ(stats.epoch, others.epoch);
    CHECK_EQ(stats.sequence, others.sequence);
    CHECK_EQ(stats.objects, others.objects);
    kvg_store_close(first);
    kvg_store_close(second);
    dir_remove(DIR);
}

/* ---- Writers that are killed --------------------------------------------------------------- */

static unsigned ROUNDS = 6;

/* What the child has been told, in memory that outlives it. */
struct told {
    _Atomic uint8_t state[PAGES]; /* 0 absent, 1 there, 2 under way. */
    _Atomic uint32_t steps;
};

static void child_life(struct told *told, uint64_t seed)
{
    struct kvg_store *store = open_dir("&sync=none", NULL);
    struct kvi_rng rng = {seed};

    while (true) {
        unsigned page = (unsigned)kvi_rng_below(&rng, PAGES);
        char name[KIT_KEY_BYTES];
        char keys[2][KIT_KEY_BYTES];
        struct kvg_str wanted[2];
        uint8_t before = told->state[page];
        kvg_err err;

        snprintf(name, sizeof(name), "p%u", page);
        told->state[page] = 2;
        if (before != 0 && kvi_rng_below(&rng, 3) == 0) {
            snprintf(keys[0], KIT_KEY_BYTES, "p%u_0", page);
            snprintf(keys[1], KIT_KEY_BYTES, "p%u_1", page);
            wanted[0] = str_of(keys[0]);
            wanted[1] = str_of(keys[1]);
            if (kvg_store_remove(store, wanted, 2, NULL, NULL) != KVG_OK)
                _exit(3);
            told->state[page] = 0;
        } else {
            err = kit_put(store, name, 2, BYTES, NULL);
            if (err != KVG_OK && err != KVG_EEXIST)
                _exit(4);
            told->state[page] = 1;
        }
        told->steps++;
    }
}

TEST(a_writer_killed_at_any_moment_loses_nothing_that_it_was_told)
{
    struct told *told = mmap(
        NULL, sizeof(*told), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct kvi_rng rng = {
        getenv("KVG_SEED") == NULL ? 11 : strtoull(getenv("KVG_SEED"), NULL, 10)};
    unsigned round;
    unsigned page;
    unsigned there = 0;

    CHECK(told != MAP_FAILED);
    CHECK(dir_make(DIR));
    kvg_store_close(open_dir("&sync=none", NULL));
    for (round = 0; round < ROUNDS; round++) {
        uint32_t until = told->steps + (uint32_t)kvi_rng_below(&rng, 150);
        uint64_t spin = kvi_rng_below(&rng, 20000);
        struct kvg_store *store;
        int status = 0;
        pid_t child = fork();

        CHECK(child >= 0);
        if (child == 0)
            child_life(told, kvi_rng_next(&rng) + round);
        while (told->steps < until && waitpid(child, &status, WNOHANG) == 0)
            sched_yield();
        while (spin-- > 0)
            (void)told->steps;
        kill(child, SIGKILL);
        if (waitpid(child, &status, 0) == child)
            CHECK(WIFSIGNALED(status));
        store = open_dir("&sync=none", NULL);
        for (page = 0; page < PAGES; page++) {
            char name[KIT_KEY_BYTES];
            int state;

            snprintf(name, sizeof(name), "p%u", page);
            state = kit_page_state(store, name, 2);
            if (state == -1 || (told->state[page] != 2 && state != told->state[page]))
                fail_msg("round %u: page %u is %d and was said to be %d", round, page,
                    state, told->state[page]);
            if (state == 1)
                CHECK_EQ(kit_read_part(store, name, 1, BYTES), KVG_OK);
            told->state[page] = (uint8_t)state;
            there += state == 1;
        }
        kvg_store_close(store);
    }
    CHECK(there > ROUNDS);
    munmap(told, sizeof(*told));
    dir_remove(DIR);
}

/* ---- A small disk -------------------------------------------------------------------------- */

static bool small_disk(const char *size)
{
    CHECK(dir_make(DIR));
    if (mount("none", DIR, "tmpfs", 0, size) == 0)
        return true;
    print_message("skipped: no file system can be mounted here\n");
    dir_remove(DIR);
    return false;
}

static void small_disk_end(void)
{
    CHECK_EQ(umount(DIR), 0);
    dir_remove(DIR);
}

/* Two stores at one place, each allowed nearly all of a disk that has less than both: eviction
 * begins before the disk is full, and every put succeeds. */
TEST(two_writers_with_large_quotas_on_a_small_disk)
{
    struct kvg_store *stores[2];
    struct kvg_store_stats stats = {.struct_bytes = sizeof(stats)};
    int i;

    if (!small_disk("size=12m"))
        return;
    stores[0] = open_dir("&bytes=10MiB&sync=none", NULL);
    stores[1] = open_dir("&bytes=10MiB&sync=none", NULL);
    for (i = 0; i < 200; i++) {
        char name[KIT_KEY_BYTES];

        snprintf(name, sizeof(name), "s%d", i);
        CHECK_EQ(kit_put(stores[i % 2], name, 2, 100000, NULL), KVG_OK);
        CHECK_EQ(kit_read_part(stores[(i + 1) % 2], name, 1, 100000), KVG_OK);
    }
    kvg_store_stats(stores[0], &stats);
    CHECK(stats.bytes_on_disk <= UINT64_C(10) << 20);
    kvg_store_close(stores[0]);
    kvg_store_close(stores[1]);
    small_disk_end();
}

/* The quota is larger than the disk, and there is no floor. */
TEST(a_full_disk_evicts_and_reads_go_on)
{
    struct kvg_store *store;
    char name[KIT_KEY_BYTES];
    int i;

    if (!small_disk("size=4m"))
        return;
    store = open_dir("&bytes=1GiB&sync=none", NULL);
    for (i = 0; i < 100; i++) {
        snprintf(name, sizeof(name), "f%d", i);
        CHECK_EQ(kit_put(store, name, 2, 50000 + 1000 * (size_t)(i % 5), NULL), KVG_OK);
        CHECK_EQ(kit_read_part(store, name, 0, 50000 + 1000 * (size_t)(i % 5)), KVG_OK);
    }
    CHECK_EQ(kit_put(store, "huge", 1, 6000000, NULL), KVG_ENOSPACE);
    CHECK(!kit_exists(store, "huge_0"));
    CHECK_EQ(kit_put(store, "small", 1, 1000, NULL), KVG_OK);
    kvg_store_close(store);
    small_disk_end();
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest TESTS[] = {
        RUN(a_flipped_bit_costs_one_part_and_is_told),
        RUN(a_shortened_segment_costs_what_was_in_the_rest),
        RUN(a_deleted_segment_costs_all_that_was_in_it_and_every_part_is_told),
        RUN(a_segment_that_was_announced_and_never_made_is_made_when_it_is_written_to),
        RUN(a_check_finds_the_damage_and_a_repair_drops_it),
        RUN(a_hole_in_the_journal_costs_only_what_it_said),
        RUN(a_journal_cut_short_anywhere_opens_with_what_is_left),
        RUN(what_is_of_another_version_or_none_of_ours_is_refused),
        RUN(a_longer_journal_is_written_anew_and_others_follow),
        RUN(a_writer_killed_at_any_moment_loses_nothing_that_it_was_told),
        RUN(two_writers_with_large_quotas_on_a_small_disk),
        RUN(a_full_disk_evicts_and_reads_go_on),
    };

    if (argc > 1)
        ROUNDS = (unsigned)strtoul(argv[1], NULL, 10);
    if (getenv("KVG_KILL_ROUNDS") != NULL)
        ROUNDS = (unsigned)strtoul(getenv("KVG_KILL_ROUNDS"), NULL, 10);
    return cmocka_run_group_tests(TESTS, NULL, NULL);
}
