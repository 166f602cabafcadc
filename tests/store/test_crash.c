/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* test_crash.c -- what the file backend keeps through crashes, on a disk that forgets (disk.h).
 *
 * Lives follow each other on one disk: pages are put, read, removed and flushed until a call that
 * the seed chose, where the machine dies (or only the process); then the store is opened again and
 * compared with what it had promised:
 *
 *     - a page is there as a whole or not at all, and every byte of it is right;
 *     - what was acknowledged is there: with `each` when the call returned, with `batch` when
 *       a flush returned, after the death of the process alone always;
 *     - what was acknowledged as removed is not there, by the same measure;
 *     - the index is sound.
 *
 *     test_crash [SEEDS [FIRST]]     KVG_SEED=N runs that seed alone, and talks */
#include "test.h"

#include "backend/file.h"
#include "store/disk.h"
#include "store/kit.h"

#define PAGES 40
#define PARTS 3

/* What is known of a page. */
enum known {
    ABSENT,  /* Surely not there. */
    PRESENT, /* Surely there. */
    OPEN     /* Either, as a whole. */
};

struct world {
    struct disk disk;
    struct kvi_rng rng;
    const char *sync;
    uint64_t bytes_max;
    enum known now[PAGES];     /* If only the process dies now. */
    enum known durable[PAGES]; /* If the machine dies now. */
    bool talks;
    uint64_t found, expected;
};

static struct world W;

static size_t page_bytes(unsigned page)
{
    return page % 7 == 0 ? 70000 : 3000 + page * 50;
}

static const char *page_name(unsigned page, char name[KIT_KEY_BYTES])
{
    snprintf(name, KIT_KEY_BYTES, "page%u", page);
    return name;
}

/* Evicted, or lost: either way the world knows it from the store itself. */
static void hear(void *context, const struct kvg_store_change *change)
{
    unsigned page;

    (void)context;
    if (change->kind == KVG_STORE_CLEARED) {
        for (page = 0; page < PAGES; page++) {
            W.now[page] = ABSENT;
            W.durable[page] = W.durable[page] == ABSENT ? ABSENT : OPEN;
        }
        return;
    }
    if (change->kind != KVG_STORE_EVICTED && change->kind != KVG_STORE_LOST)
        return;
    page = (unsigned)strtoul(change->key.data + 4, NULL, 10);
    W.now[page] = ABSENT;
    W.durable[page] = W.durable[page] == ABSENT ? ABSENT : OPEN;
}

static struct kvg_store *open_world(void)
{
    char url[128];
    struct kvg_store_options options = {.struct_bytes = sizeof(options),
        .registry = disk_registry(&W.disk),
        .hook = {hear, NULL},
        .seed = 5};
    struct kvg_store *store;
    struct kvg_error error = {0};

    snprintf(url, sizeof(url), "file:d?floor=0&segment=200000&bytes=%llu&sync=%s",
        (unsigned long long)W.bytes_max, W.sync);
    if (kvg_store_open(url, &options, &store, &error) != KVG_OK) {
        if (!W.disk.crashed)
            fail_msg("opening: %s: %s", error.field, error.message);
        return NULL;
    }
    return store;
}

static bool is_each(void)
{
    return strcmp(W.sync, "each") == 0;
}

static void do_put(struct kvg_store *store, unsigned page)
{
    char name[KIT_KEY_BYTES];
    enum known durable = W.durable[page];
    kvg_err err;

    W.durable[page] = durable == PRESENT ? PRESENT : OPEN;
    err = kit_put(store, page_name(page, name), PARTS, page_bytes(page), NULL);
    if (err == KVG_OK || err == KVG_EEXIST) {
        W.now[page] = PRESENT;
        if (is_each())
            W.durable[page] = PRESENT;
    } else if (W.now[page] == ABSENT) {
        /* Refused: nothing is visible, unless the crash came in between. */
        W.now[page] = W.disk.crashed ? OPEN : ABSENT;
    }
}

static void do_remove(struct kvg_store *store, unsigned page)
{
    char keys[PARTS][KIT_KEY_BYTES];
    struct kvg_str wanted[PARTS];
    enum known before = W.now[page];
    unsigned i;

    for (i = 0; i < PARTS; i++) {
        snprintf(keys[i], KIT_KEY_BYTES, "page%u_%u", page, i);
        wanted[i] = str_of(keys[i]);
    }
    W.now[page] = OPEN;
    W.durable[page] = W.durable[page] == ABSENT ? ABSENT : OPEN;
    if (kvg_store_remove(store, wanted, PARTS, NULL, NULL) == KVG_OK) {
        W.now[page] = ABSENT;
        if (is_each())
            W.durable[page] = ABSENT;
    } else if (before == ABSENT) {
        W.now[page] = ABSENT;
    }
}

static void do_flush(struct kvg_store *store)
{
    if (kvg_store_flush(store, NULL) == KVG_OK)
        memcpy(W.durable, W.now, sizeof(W.now));
}

static void do_read(struct kvg_store *store, unsigned page)
{
    char name[KIT_KEY_BYTES];
    kvg_err err = kit_read_part(store, page_name(page, name), 1, page_bytes(page));

    if (err == KVG_EFORMAT || (err == KVG_ECHECKSUM && !W.disk.crashed))
        fail_msg("page %u: wrong bytes were read", page);
}

static void live(struct kvg_store *store, unsigned steps)
{
    unsigned i;

    for (i = 0; i < steps && !W.disk.crashed; i++) {
        unsigned page = (unsigned)kvi_rng_below(&W.rng, PAGES);
        uint64_t what = kvi_rng_below(&W.rng, 20);

        if (what < 12)
            do_put(store, page);
        else if (what < 14)
            do_remove(store, page);
        else if (what < 15)
            do_flush(store);
        else
            do_read(store, page);
    }
}

/* Compares the store with what is known, and then knows exactly. */
static void compare(struct kvg_store *store, const enum known *known, uint64_t seed)
{
    struct kvg_store_report report = {.struct_bytes = sizeof(report)};
    struct kvg_error error = {0};
    char name[KIT_KEY_BYTES];
    unsigned page;
    unsigned part;

    for (page = 0; page < PAGES; page++) {
        int state = kit_page_state(store, page_name(page, name), PARTS);

        if (state == -1 || (state == 0 && known[page] == PRESENT) ||
            (state == 1 && known[page] == ABSENT))
            fail_msg("seed %llu, sync %s, boot %u: page %u is %s and should be %s",
                (unsigned long long)seed, W.sync, W.disk.boots, page,
                state == -1  ? "half there"
                : state == 0 ? "gone"
                             : "there",
                known[page] == OPEN      ? "whole or gone"
                : known[page] == PRESENT ? "there"
                                         : "gone");
        for (part = 0; state == 1 && part < PARTS; part++) {
            if (kit_read_part(store, name, part, page_bytes(page)) != KVG_OK)
                fail_msg("seed %llu, sync %s: page %u part %u is there and not readable",
                    (unsigned long long)seed, W.sync, page, part);
        }
        W.found += state == 1;
        W.expected += known[page] == PRESENT;
        W.now[page] = state == 1 ? PRESENT : ABSENT;
    }
    if (kvg_store_check(store, false, NULL, NULL, &report, &error) != KVG_OK)
        fail_msg("seed %llu: %s", (unsigned long long)seed, error.message);
    CHECK_EQ(report.damaged, 0);
}

static void run_seed(uint64_t seed)
{
    static const char *const SYNCS[] = {"each", "batch", "none"};
    enum known known[PAGES];
    unsigned life;
    unsigned page;

    memset(&W, 0, sizeof(W));
    disk_init(&W.disk, seed * 31 + 7);
    W.rng.state = seed;
    W.sync = SYNCS[seed % 3];
    W.bytes_max = seed % 2 == 0 ? UINT64_C(16) << 20 : 600000;
    for (life = 0; life < 6; life++) {
        struct kvg_store *store;
        bool machine = kvi_rng_below(&W.rng, 4) != 0;

        W.disk.crash_at = 1 + kvi_rng_below(&W.rng, life == 0 ? 60 : 1500);
        store = open_world();
        if (store != NULL) {
            live(store, 60);
            if (kvi_rng_below(&W.rng, 6) == 0 && !W.disk.crashed) {
                W.disk.crash_at = 0;
                do_flush(store);
            }
            W.disk.crashed = true; /* No clean end. */
            kvg_store_close(store);
        }
        memcpy(known, machine ? W.durable : W.now, sizeof(known));
        for (page = 0; machine && strcmp(W.sync, "none") == 0 && page < PAGES; page++)
            known[page] = known[page] == PRESENT ? OPEN : known[page];
        if (machine)
            disk_crash(&W.disk);
        else
            disk_kill(&W.disk);
        store = open_world();
        if (store == NULL)
            fail_msg("seed %llu: not opened after a crash", (unsigned long long)seed);
        compare(store, known, seed);
        do_flush(store);
        for (page = 0; page < PAGES; page++)
            CHECK(W.durable[page] == W.now[page]);
        W.disk.crashed = true;
        kvg_store_close(store);
        disk_kill(&W.disk);
    }
    disk_fini(&W.disk);
}

static uint64_t SEEDS = 60;
static uint64_t FIRST = 1;

TEST(nothing_acknowledged_is_lost_and_nothing_half_written_is_seen)
{
    uint64_t seed;
    uint64_t found = 0;
    uint64_t expected = 0;

    for (seed = FIRST; seed < FIRST + SEEDS; seed++) {
        run_seed(seed);
        found += W.found;
        expected += W.expected;
    }
    print_message("%llu pages found after crashes, %llu of them promised\n",
        (unsigned long long)found, (unsigned long long)expected);
    CHECK(SEEDS < 10 || expected > 50);
    CHECK(SEEDS < 10 || found > expected); /* Some made it that were not promised. */
}

/* The control: a disk that lies about syncing must be noticed. */
TEST(a_disk_that_does_not_sync_is_noticed)
{
    char name[KIT_KEY_BYTES];
    unsigned lost = 0;
    unsigned seed;
    unsigned page;

    for (seed = 1; seed <= 10; seed++) {
        struct kvg_store *store;

        memset(&W, 0, sizeof(W));
        disk_init(&W.disk, seed);
        W.sync = "each";
        W.bytes_max = UINT64_C(16) << 20;
        store = open_world();
        W.disk.lies = true;
        for (page = 0; page < 10; page++)
            do_put(store, page);
        W.disk.crashed = true;
        kvg_store_close(store);
        disk_crash(&W.disk);
        W.disk.lies = false;
        store = open_world();
        for (page = 0; page < 10; page++)
            lost += kit_page_state(store, page_name(page, name), PARTS) == 0;
        kvg_store_close(store);
        disk_fini(&W.disk);
    }
    CHECK(lost > 20);
}

/* Every call of a put fails once, with a full disk and with an error. */
TEST(a_call_that_fails_leaves_a_sound_store)
{
    static const int ERRORS[] = {28 /* ENOSPC */, 5 /* EIO */};
    size_t which;

    for (which = 0; which < 2; which++) {
        uint64_t at;
        bool reached = true;

        for (at = 1; reached; at++) {
            struct kvg_store *store;
            enum known known[PAGES];
            unsigned page;

            memset(&W, 0, sizeof(W));
            disk_init(&W.disk, 3);
            W.sync = "each";
            W.bytes_max = 400000;
            store = open_world();
            for (page = 1; page < 6; page++)
                do_put(store, page);
            W.disk.fail_with = ERRORS[which];
            W.disk.fail_at = W.disk.calls + at;
            for (page = 8; page < 13; page++)
                do_put(store, page);
            reached = W.disk.calls >= W.disk.fail_at;
            W.disk.fail_at = 0;
            memcpy(known, W.now, sizeof(known));
            compare(store, known, at);
            do_put(store, 20);
            CHECK_EQ(W.now[20], PRESENT);
            kvg_store_close(store);
            disk_fini(&W.disk);
        }
        CHECK(at > 20);
    }
}

/* One full disk: evicts, tries again, counts it.  A disk that stays full: an error, no loop. */
TEST(a_full_disk_is_answered_by_eviction_and_one_retry)
{
    struct kvg_store_stats stats = {.struct_bytes = sizeof(stats)};
    struct kvg_store *store;
    unsigned page;

    memset(&W, 0, sizeof(W));
    disk_init(&W.disk, 3);
    W.sync = "none";
    W.bytes_max = UINT64_C(64) << 20;
    store = open_world();
    for (page = 1; page < 6; page++)
        do_put(store, page);
    W.disk.fail_with = 28;
    W.disk.fail_at = W.disk.calls + 12;
    while (W.disk.calls < W.disk.fail_at && page < 30)
        do_put(store, page++);
    kvg_store_stats(store, &stats);
    CHECK(stats.space_retries <= 1);
    W.disk.fail_at = 0;
    /* No byte more: only what is freed can be used. */
    W.disk.capacity = 1;
    CHECK_EQ(kit_put(store, "page39", PARTS, 200000, NULL), KVG_ENOSPACE);
    W.disk.capacity = 0;
    CHECK_EQ(kit_put(store, "page39", PARTS, 200000, NULL), KVG_OK);
    kvg_store_close(store);
    disk_fini(&W.disk);
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest TESTS[] = {
        RUN(nothing_acknowledged_is_lost_and_nothing_half_written_is_seen),
        RUN(a_disk_that_does_not_sync_is_noticed),
        RUN(a_call_that_fails_leaves_a_sound_store),
        RUN(a_full_disk_is_answered_by_eviction_and_one_retry),
    };

    if (argc > 1)
        SEEDS = strtoull(argv[1], NULL, 10);
    if (argc > 2)
        FIRST = strtoull(argv[2], NULL, 10);
    if (getenv("KVG_SEED") != NULL) {
        FIRST = strtoull(getenv("KVG_SEED"), NULL, 10);
        SEEDS = 1;
    }
    return cmocka_run_group_tests(TESTS, NULL, NULL);
}
