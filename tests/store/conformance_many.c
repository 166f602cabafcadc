/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* conformance_many.c -- the suite: threads and processes. */
#include "store/conformance_internal.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGES 24
#define PART_BYTES 6000
#define THREADS_MAX 64

struct crowd {
    struct kvg_store *store;
    _Atomic unsigned wrong;
    _Atomic unsigned half;
    _Atomic uint64_t hits;
    unsigned rounds;
    bool removes;
    bool small; /* Pages being written may fill all of it. */
};

struct member {
    struct crowd *crowd;
    uint64_t seed;
};

/* Bytes of the parts of page k: so that several size classes meet. */
static size_t bytes_of(unsigned page)
{
    return page % 6 == 5 ? 70000 : PART_BYTES + page * 100;
}

static void *write_pages(void *context)
{
    struct member *member = context;
    struct kvi_rng rng = {member->seed};
    char name[KIT_KEY_BYTES];
    unsigned i;

    for (i = 0; i < member->crowd->rounds; i++) {
        unsigned page = (unsigned)kvi_rng_below(&rng, PAGES);
        kvg_err err;

        snprintf(name, sizeof(name), "crowd%u", page);
        err = kit_put(member->crowd->store, name, 3, bytes_of(page), NULL);
        if (err != KVG_OK && err != KVG_EEXIST &&
            !(err == KVG_ENOSPACE && member->crowd->small))
            atomic_fetch_add(&member->crowd->wrong, 1);
        if (member->crowd->removes && kvi_rng_below(&rng, 3) == 0) {
            char keys[3][KIT_KEY_BYTES];
            struct kvg_str wanted[3];
            size_t k;

            for (k = 0; k < 3; k++) {
                snprintf(keys[k], KIT_KEY_BYTES, "crowd%u_%zu", page, k);
                wanted[k] = str_of(keys[k]);
            }
            err = kvg_store_remove(member->crowd->store, wanted, 3, NULL, NULL);
            if (err != KVG_OK)
                atomic_fetch_add(&member->crowd->wrong, 1);
        }
    }
    return NULL;
}

static void *read_pages(void *context)
{
    struct member *member = context;
    struct kvi_rng rng = {member->seed};
    char name[KIT_KEY_BYTES];
    unsigned i;

    for (i = 0; i < member->crowd->rounds * 2; i++) {
        unsigned page = (unsigned)kvi_rng_below(&rng, PAGES);
        kvg_err err;

        snprintf(name, sizeof(name), "crowd%u", page);
        err = kit_read_part(
            member->crowd->store, name, (size_t)kvi_rng_below(&rng, 3), bytes_of(page));
        if (err == KVG_OK)
            atomic_fetch_add(&member->crowd->hits, 1);
        else if (err != KVG_ENOENT)
            atomic_fetch_add(&member->crowd->wrong, 1);
        if (!member->crowd->removes &&
            kit_page_state(member->crowd->store, name, 3) == -1)
            atomic_fetch_add(&member->crowd->half, 1);
    }
    return NULL;
}

static void run_crowd(struct crowd *crowd)
{
    unsigned count = conformance_now->threads == 0 ? 32 : conformance_now->threads;
    struct member members[2 * THREADS_MAX];
    pthread_t threads[2 * THREADS_MAX];
    unsigned i;

    CHECK(count <= THREADS_MAX);
    for (i = 0; i < 2 * count; i++) {
        members[i] = (struct member){crowd, i + 1};
        CHECK_EQ(pthread_create(&threads[i], NULL, i % 2 == 0 ? write_pages : read_pages,
                     &members[i]),
            0);
    }
    for (i = 0; i < 2 * count; i++)
        pthread_join(threads[i], NULL);
    CHECK_EQ(crowd->wrong, 0);
    CHECK_EQ(crowd->half, 0);
}

TEST(readers_and_writers_never_see_a_wrong_byte_or_half_a_page)
{
    struct crowd crowd = {.rounds = 12};
    char name[KIT_KEY_BYTES];
    unsigned page;

    crowd.store = conformance_open(0);
    if (crowd.store == NULL)
        return;
    for (page = 0; page < PAGES / 2; page++) { /* So that readers find something, */
        snprintf(name, sizeof(name), "crowd%u", page); /* however they are scheduled. */
        CHECK_EQ(kit_put(crowd.store, name, 3, bytes_of(page), NULL), KVG_OK);
    }
    run_crowd(&crowd);
    CHECK(crowd.hits > 0);
    conformance_close(crowd.store);
}

TEST(readers_and_writers_while_pages_are_removed_never_see_a_wrong_byte)
{
    struct crowd crowd = {.rounds = 12, .removes = true};

    crowd.store = conformance_open(0);
    if (crowd.store == NULL ||
        conformance_lacks(crowd.store, KVG_STORE_REMOVES, "exact removal"))
        return;
    run_crowd(&crowd);
    conformance_close(crowd.store);
}

TEST(readers_and_writers_in_a_store_that_is_too_small)
{
    struct crowd crowd = {.rounds = 12};

    crowd.store = conformance_open(1 << 20); /* For about half of the pages. */
    if (crowd.store == NULL ||
        conformance_lacks(crowd.store, KVG_STORE_EVICTS | KVG_STORE_ATOMIC, "eviction"))
        return;
    crowd.small = true;
    run_crowd(&crowd);
    conformance_close(crowd.store);
}

/* ---- Processes ----------------------------------------------------------------------------- */

/* A child's life: pages of its own, pages of all, everything it reads verified. */
static int child_life(unsigned number)
{
    struct kvg_store_options options = {
        .struct_bytes = sizeof(options), .registry = conformance_now->registry};
    struct kvg_store *store = NULL;
    struct crowd crowd = {.rounds = 25};
    struct member member = {&crowd, 100 + number};
    char name[KIT_KEY_BYTES];
    unsigned i;

    if (kvg_store_open(conformance_url, &options, &store, NULL) != KVG_OK)
        return 2;
    crowd.store = store;
    for (i = 0; i < 10; i++) {
        snprintf(name, sizeof(name), "child%u.%u", number, i);
        if (kit_put(store, name, 2, 5000, NULL) != KVG_OK)
            return 3;
    }
    write_pages(&member);
    read_pages(&member);
    kvg_store_close(store);
    return crowd.wrong + crowd.half == 0 ? 0 : 4;
}

static bool lacks_processes(struct kvg_store *store)
{
    if (!conformance_now->one_process)
        return conformance_lacks(store, KVG_STORE_SHARED, "processes");
    printf("skipped: %s has one process\n", conformance_now->name);
    conformance_close(store);
    return true;
}

static void run_children(unsigned count)
{
    pid_t children[8];
    char name[KIT_KEY_BYTES];
    struct kvg_store *store = conformance_open(0);
    unsigned i;
    unsigned k;

    if (store == NULL || lacks_processes(store))
        return;
    kvg_store_close(store);
    for (i = 0; i < count; i++) {
        children[i] = fork();
        CHECK(children[i] >= 0);
        if (children[i] == 0)
            _exit(child_life(i));
    }
    store = conformance_open_with(NULL); /* The parent looks on. */
    for (i = 0; i < count; i++) {
        int status = -1;

        CHECK_EQ(waitpid(children[i], &status, 0), children[i]);
        CHECK(WIFEXITED(status));
        CHECK_EQ(WEXITSTATUS(status), 0);
    }
    for (i = 0; i < count; i++) {
        for (k = 0; k < 10; k++) {
            snprintf(name, sizeof(name), "child%u.%u", i, k);
            CHECK_EQ(kit_read_part(store, name, 1, 5000), KVG_OK);
        }
    }
    conformance_close(store);
}

TEST(two_processes_share_a_store)
{
    run_children(2);
}

TEST(four_processes_share_a_store)
{
    run_children(4);
}

TEST(two_stores_at_one_place_see_each_other)
{
    struct kvg_store *first = conformance_open(0);
    struct kvg_store *second;
    struct kvg_str key = str_of("a_0");

    if (first == NULL || conformance_lacks(first, KVG_STORE_SHARED, "sharing"))
        return;
    second = conformance_open_with(NULL);
    CHECK_EQ(kit_put(first, "a", 2, 5000, NULL), KVG_OK);
    CHECK_EQ(kit_page_state(second, "a", 2), 1);
    CHECK_EQ(kit_read_part(second, "a", 1, 5000), KVG_OK);
    CHECK_EQ(kit_put(second, "a", 2, 5000, NULL), KVG_EEXIST);
    if ((kvg_store_flags(first) & KVG_STORE_REMOVES) != 0) {
        CHECK_EQ(kvg_store_remove(second, &key, 1, NULL, NULL), KVG_OK);
        CHECK(!kit_exists(first, "a_0"));
        CHECK_EQ(kit_put(first, "a", 2, 5000, NULL), KVG_OK);
        CHECK(kit_exists(second, "a_0"));
    }
    kvg_store_close(second);
    conformance_close(first);
}

/* A writer is killed at some moment of its work, ten times; the others go on, and what it had
 * been told was stored is there. */
TEST(a_killed_writer_hurts_nobody)
{
    struct kvg_store *store = conformance_open(0);
    unsigned round;

    if (store == NULL || lacks_processes(store))
        return;
    for (round = 0; round < 10; round++) {
        int pipe_ends[2];
        unsigned acknowledged = 0;
        unsigned last = 0;
        char name[KIT_KEY_BYTES];
        pid_t child;
        unsigned i;

        CHECK_EQ(pipe(pipe_ends), 0);
        child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            struct kvg_store_options options = {
                .struct_bytes = sizeof(options), .registry = conformance_now->registry};
            struct kvg_store *mine = NULL;

            if (kvg_store_open(conformance_url, &options, &mine, NULL) != KVG_OK)
                _exit(1);
            for (i = 1;; i++) {
                snprintf(name, sizeof(name), "killed%u.%u", round, i);
                if (kit_put(mine, name, 2, 9000, NULL) != KVG_OK ||
                    write(pipe_ends[1], &i, sizeof(i)) != sizeof(i))
                    _exit(2);
            }
        }
        close(pipe_ends[1]);
        while (acknowledged < 5 + round * 3 &&
               read(pipe_ends[0], &last, sizeof(last)) == sizeof(last))
            acknowledged = last;
        CHECK(acknowledged > 0);
        kill(child, SIGKILL);
        CHECK_EQ(waitpid(child, NULL, 0), child);
        while (read(pipe_ends[0], &last, sizeof(last)) == sizeof(last))
            acknowledged = last;
        close(pipe_ends[0]);
        for (i = 1; i <= acknowledged; i++) {
            snprintf(name, sizeof(name), "killed%u.%u", round, i);
            CHECK_EQ(kit_read_part(store, name, 0, 9000), KVG_OK);
            CHECK_EQ(kit_read_part(store, name, 1, 9000), KVG_OK);
        }
        snprintf(name, sizeof(name), "killed%u.%u", round, acknowledged + 1);
        CHECK(kit_page_state(store, name, 2) != -1);
        snprintf(name, sizeof(name), "alive%u", round);
        CHECK_EQ(kit_put(store, name, 2, 9000, NULL), KVG_OK);
    }
    conformance_close(store);
}

int conformance_run_many(void)
{
    static const struct CMUnitTest TESTS[] = {
        RUN(readers_and_writers_never_see_a_wrong_byte_or_half_a_page),
        RUN(readers_and_writers_while_pages_are_removed_never_see_a_wrong_byte),
        RUN(readers_and_writers_in_a_store_that_is_too_small),
        RUN(two_stores_at_one_place_see_each_other),
        RUN(two_processes_share_a_store),
        RUN(four_processes_share_a_store),
        RUN(a_killed_writer_hurts_nobody),
    };

    return cmocka_run_group_tests(TESTS, NULL, NULL);
}
