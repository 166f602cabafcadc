/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* Readers against a writer at full speed, with an argument that any false answer contradicts.
 *
 * Three kinds of pages tell on a reader that sees what never was:
 *
 *   - halves: the writer keeps exactly one half of the parts of such a page present, turning
 *     from one half to the other in an order in which no moment has all of them.  A reader that
 *     mixes words of two moments sees a whole page: a false hit.
 *   - never: pages whose head parts share slots and segments with the others, but which are
 *     never whole.
 *   - always: pages that are whole from before the readers begin and never change; they move, when
 *     segments grow and when others need their slots, but a reader finds them in every look-up, but
 *     for slots it gave up.
 *
 * The negative control asks part by part, each answer right by itself, and takes the parts of
 * different moments for a page; it must be caught.
 *
 * Arguments: seconds to run (default 1), "control" to run the control only. */
#include <kvgraft/presence.h>

#include "base/fmt.h"
#include "presence/view.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define READERS 2
#define PAGES 256u
#define CHURN 6000u

struct shared {
    struct kvg_presence *index;
    struct kvg_layout *layout;
    struct kvg_presence_view *view;
    struct kvg_key keys[PAGES]; /* Halves. */
    struct kvg_key always[PAGES];
    bool control;
    _Atomic bool stop;
    _Atomic uint64_t false_hits;
    _Atomic uint64_t lookups;
    _Atomic uint64_t missed;
    _Atomic uint64_t gave_up;
    _Atomic uint64_t retries;
};

static void must(bool condition, const char *what)
{
    if (!condition) {
        fprintf(stderr, "race_presence: %s\n", what);
        abort();
    }
}

static struct kvg_key make_key(uint64_t kind, uint64_t number)
{
    uint64_t words[2] = {kind, number};
    struct kvg_key key;

    kvg_sha256(words, sizeof(words), key.bytes);
    return key;
}

static void tell(
    struct shared *shared, const struct kvg_key *key, uint32_t part, bool stored)
{
    char text[KVG_OBJECT_KEY_BYTES_MAX + 1];
    struct kvg_str object = {
        text, kvg_layout_object_key(shared->layout, key, part, text)};
    struct kvg_str tenant = {NULL, 0};

    if (stored)
        must(
            kvg_presence_stored(shared->index, tenant, object, KVG_MEDIUM_CPU), "stored");
    else
        must(kvg_presence_removed(shared->index, tenant, object, KVG_MEDIUM_UNKNOWN),
            "removed");
}

/* Turns a page from one half of its parts to the other: first takes a part away, then gives one,
 * so that at no moment all are there. */
static void turn(struct shared *shared, const struct kvg_key *key, bool to_second)
{
    uint32_t count = kvg_layout_part_count(shared->layout);
    uint32_t i;

    for (i = 0; i < count / 2; i++) {
        tell(shared, key, to_second ? i : count / 2 + i, false);
        tell(shared, key, to_second ? count / 2 + i : i, true);
    }
}

static void *read_all(void *context)
{
    struct shared *shared = context;
    struct kvg_presence_reader *reader;
    struct kvg_range ranges[PAGES];

    must(kvg_presence_reader_open(shared->index, &reader) == KVG_OK, "a seat");
    while (!atomic_load(&shared->stop)) {
        struct kvg_lookup lookups[2] = {
            {.view = shared->view, .keys = shared->keys, .key_count = PAGES},
            {.view = shared->view,
                .keys = shared->always,
                .key_count = PAGES,
                .ranges = ranges,
                .range_max = PAGES}};

        kvg_presence_lookup(reader, lookups, 2);
        atomic_fetch_add(&shared->false_hits, lookups[0].total);
        atomic_fetch_add(&shared->missed, PAGES - lookups[1].total);
        atomic_fetch_add(&shared->gave_up, lookups[0].gave_up + lookups[1].gave_up);
        atomic_fetch_add(&shared->retries, lookups[0].retries + lookups[1].retries);
        atomic_fetch_add(&shared->lookups, 2);
    }
    kvg_presence_reader_close(reader);
    return NULL;
}

/* The control: a torn read, part by part. */
static bool read_torn(struct shared *shared, const struct kvg_key *key)
{
    uint32_t count = kvg_layout_part_count(shared->layout);
    uint32_t part;

    /* One part at a time, each right by itself. */
    for (part = 0; part < count; part++) {
        struct kvg_presence_view one = *shared->view;
        uint64_t mask[GROUPS_MAX] = {0};
        struct kvg_lookup lookup = {.view = &one, .keys = key, .key_count = 1};
        struct kvg_presence_reader *reader;
        uint32_t bit = shared->view->bits[part];

        one.masks = mask;
        mask[bit / 64] = UINT64_C(1) << bit % 64;
        one.inline_mask[0] = bit < INLINE_PARTS ? UINT64_C(1) << bit : INLINE_NEVER;
        one.required_count = 1;
        must(kvg_presence_reader_open(shared->index, &reader) == KVG_OK, "a seat");
        kvg_presence_lookup(reader, &lookup, 1);
        kvg_presence_reader_close(reader);
        if (lookup.total == 0)
            return false;
    }
    return true;
}

static void *read_control(void *context)
{
    struct shared *shared = context;

    while (!atomic_load(&shared->stop) && atomic_load(&shared->false_hits) == 0) {
        uint32_t i;

        for (i = 0; i < PAGES; i++)
            atomic_fetch_add(
                &shared->false_hits, read_torn(shared, &shared->keys[i]) ? 1 : 0);
        atomic_fetch_add(&shared->lookups, PAGES);
    }
    return NULL;
}

/* One round of the writer: halves turn, other pages come and go so that segments grow, are
 * purged and split, records are made and retired, and slots change their owners. */
static void write_round(struct shared *shared, uint64_t round)
{
    uint32_t count = kvg_layout_part_count(shared->layout);
    uint64_t i;

    kvg_presence_set_time(shared->index, round);
    for (i = 0; i < PAGES; i++)
        turn(shared, &shared->keys[i], round % 2 == 0);
    if (shared->control)
        return;
    for (i = 0; i < CHURN / 8; i++) {
        struct kvg_key key = make_key(3, (round * CHURN / 8 + i) % (CHURN * 4));

        tell(shared, &key, (uint32_t)(i % count), (round / 32) % 2 == 0);
    }
    if (round % 50 == 0) { /* A whole page that goes at once, and comes back by halves. */
        for (i = 0; i < PAGES; i += 16)
            for (uint32_t part = 0; part < count; part++)
                tell(shared, &shared->keys[i], part, false);
        for (i = 0; i < PAGES; i += 16)
            for (uint32_t part = 0; part < count / 2; part++)
                tell(shared, &shared->keys[i], part + (round % 2 == 0 ? count / 2 : 0),
                    true);
    }
    if (round % 20 == 0) {
        struct kvg_presence_listing_result result;
        struct kvg_str tenant = {NULL, 0};

        must(kvg_presence_listing_begin(shared->index, tenant) == KVG_OK, "begin");
        kvg_presence_listing_abort(shared->index);
        (void)kvg_presence_listing_end(shared->index, 1, &result);
    }
}

static uint64_t now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static void set_up(struct shared *shared, uint32_t tp_size, bool control)
{
    struct kvg_layout_config config = {
        .struct_bytes = sizeof(config), .rule = {.page_size = 4}, .tp_size = tp_size};
    struct kvg_presence_options options = {
        .struct_bytes = sizeof(options), .memory_bytes_max = 8 << 20, .seed = 77};
    uint32_t i;
    uint32_t part;

    memset(shared, 0, sizeof(*shared));
    shared->control = control;
    must(kvg_layout_new(kvg_alloc_default(), &config, NULL, &shared->layout) == KVG_OK,
        "a layout");
    must(kvg_presence_new(kvg_alloc_default(), &options, NULL, &shared->index) == KVG_OK,
        "an index");
    must(kvg_presence_view_new(shared->index, shared->layout, (struct kvg_str){NULL, 0},
             NULL, &shared->view) == KVG_OK,
        "a view");
    for (i = 0; i < PAGES; i++) {
        shared->keys[i] = make_key(1, i);
        shared->always[i] = make_key(2, i);
        for (part = 0; part < kvg_layout_part_count(shared->layout); part++)
            tell(shared, &shared->always[i], part, true);
        for (part = 0; part < kvg_layout_part_count(shared->layout) / 2; part++)
            tell(shared, &shared->keys[i], part, true);
    }
}

static void tear_down(struct shared *shared)
{
    struct kvg_presence_reader *reader;
    struct kvg_lookup lookup = {
        .view = shared->view, .keys = shared->always, .key_count = PAGES};
    const char *what = NULL;

    must(kvg_presence_reader_open(shared->index, &reader) == KVG_OK, "a seat");
    kvg_presence_lookup(reader, &lookup, 1);
    must(lookup.contiguous == PAGES, "a page that never changed is not found");
    kvg_presence_reader_close(reader);
    if (kvi_presence_check(shared->index, &what) != 0)
        must(false, what);
    kvg_presence_view_free(shared->view);
    kvg_presence_free(shared->index);
    kvg_layout_free(shared->layout);
}

/* Returns the false hits. */
static uint64_t run(uint32_t tp_size, bool control, uint64_t milliseconds)
{
    static struct shared shared;
    pthread_t threads[READERS];
    uint64_t end;
    uint64_t round;
    uint64_t false_hits;
    int i;

    set_up(&shared, tp_size, control);
    for (i = 0; i < READERS; i++)
        must(pthread_create(
                 &threads[i], NULL, control ? read_control : read_all, &shared) == 0,
            "a thread");
    end = now_ms() + milliseconds;
    for (round = 0; now_ms() < end && !(control && atomic_load(&shared.false_hits) != 0);
         round++)
        write_round(&shared, round);
    atomic_store(&shared.stop, true);
    for (i = 0; i < READERS; i++)
        pthread_join(threads[i], NULL);
    false_hits = atomic_load(&shared.false_hits);
    printf(
        "TP%u%s: %llu rounds, %llu look-ups, %llu false hits, %llu of %llu pages missed, "
        "%llu retries, %llu given up\n",
        tp_size, control ? " (control)" : "", (unsigned long long)round,
        (unsigned long long)atomic_load(&shared.lookups), (unsigned long long)false_hits,
        (unsigned long long)atomic_load(&shared.missed),
        (unsigned long long)atomic_load(&shared.lookups) / 2 * PAGES,
        (unsigned long long)atomic_load(&shared.retries),
        (unsigned long long)atomic_load(&shared.gave_up));
    must(control || atomic_load(&shared.missed) <= atomic_load(&shared.gave_up),
        "a page that never changed was missed");
    tear_down(&shared);
    return false_hits;
}

int main(int argc, char **argv)
{
    uint64_t milliseconds = argc > 1 ? strtoull(argv[1], NULL, 10) * 1000 : 1000;

    if (run(20, true, 20000) == 0) {
        fprintf(stderr, "race_presence: the control was not caught\n");
        return 1;
    }
    if (run(8, false, milliseconds / 2) + run(20, false, milliseconds / 2) != 0) {
        fprintf(stderr, "race_presence: a page was reported that never was whole\n");
        return 1;
    }
    return 0;
}
