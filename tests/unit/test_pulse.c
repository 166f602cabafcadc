/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* Rings of numbers and lists of slow questions, each against a list of everything. */
#include "base/rng.h"
#include "daemon/pulse.h"
#include "daemon/snapshot.h"
#include "fault_alloc.h"
#include "test.h"

TEST(a_series_keeps_the_newest_rows_under_their_numbers)
{
    struct kvd_series series;
    uint64_t rows = 0;

    CHECK_EQ(kvd_series_init(&series, kvg_alloc_default(), 2, 40), KVG_OK);
    CHECK_EQ(kvd_series_from(&series, 0), 40);
    for (; rows < 3 * KVD_SERIES_ROWS / 2; rows++) {
        uint64_t row[2] = {40 + rows, rows * rows};

        kvd_series_push(&series, row);
        CHECK_EQ(series.next, 41 + rows);
        CHECK(series.next - series.first <= KVD_SERIES_ROWS);
        CHECK_EQ(kvd_series_from(&series, 0), series.first);
        for (uint64_t n = series.first; n < series.next; n += 37) {
            CHECK_EQ(kvd_series_row(&series, n)[0], n);
            CHECK_EQ(kvd_series_row(&series, n)[1], (n - 40) * (n - 40));
        }
    }
    CHECK_EQ(series.next - series.first, KVD_SERIES_ROWS);
    CHECK_EQ(kvd_series_from(&series, series.next - 3), series.next - 3);
    CHECK_EQ(kvd_series_from(&series, series.next + 9), series.next);
    kvd_series_fini(&series);
    kvd_series_fini(&series);
}

#define ASKED 4000u

static int slower_first(const void *a, const void *b)
{
    const struct kvd_slow_entry *left = a;
    const struct kvd_slow_entry *right = b;
    uint64_t l = left->hash_us + left->lookup_us;
    uint64_t r = right->hash_us + right->lookup_us;

    return (l < r) - (l > r);
}

/* The slowest KVD_SLOW_KEPT of each minute that counts, out of all. */
static size_t truly_slowest(const struct kvd_slow_entry *all, size_t count,
    uint64_t now_ms, struct kvd_slow_entry *out)
{
    size_t found = 0;

    for (uint64_t minute = now_ms / 60000 - (KVD_SLOW_MINUTES - 1);
         minute <= now_ms / 60000; minute++) {
        static struct kvd_slow_entry of_minute[ASKED];
        size_t n = 0;

        for (size_t i = 0; i < count; i++) {
            if (all[i].at_ms / 60000 == minute)
                of_minute[n++] = all[i];
        }
        qsort(of_minute, n, sizeof(*of_minute), slower_first);
        for (size_t i = 0; i < n && i < KVD_SLOW_KEPT; i++)
            out[found++] = of_minute[i];
    }
    qsort(out, found, sizeof(*out), slower_first);
    return found;
}

TEST(the_slowest_questions_of_each_of_the_last_minutes_are_kept)
{
    static struct kvd_slow_entry all[ASKED];
    struct kvd_slow_entry wanted[KVD_SLOW_MINUTES * KVD_SLOW_KEPT];
    struct kvd_slow_entry got[KVD_SLOW_MINUTES * KVD_SLOW_KEPT + 1];
    struct kvi_rng rng = {3};
    struct kvd_slow slow;
    uint64_t now_ms = 7 * 60000;

    kvd_slow_init(&slow);
    for (size_t i = 0; i < ASKED; i++) {
        size_t wanted_count;
        size_t got_count;

        now_ms += kvi_rng_below(&rng, 400) == 0 ? 90000 : kvi_rng_below(&rng, 300);
        all[i] = (struct kvd_slow_entry){.at_ms = now_ms,
            .hash_us = 1 + kvi_rng_below(&rng, 1000000),
            .lookup_us = kvi_rng_below(&rng, 100)};
        if (kvd_slow_wants(&slow, now_ms, all[i].hash_us + all[i].lookup_us))
            kvd_slow_put(&slow, &all[i]);
        if (i % 61 != 0)
            continue;
        wanted_count = truly_slowest(all, i + 1, now_ms, wanted);
        got_count =
            kvd_slow_collect(&slow, now_ms, got, 0, KVD_SLOW_MINUTES * KVD_SLOW_KEPT);
        CHECK_EQ(got_count, wanted_count);
        for (size_t n = 0; n < got_count; n++)
            CHECK_EQ(got[n].hash_us + got[n].lookup_us,
                wanted[n].hash_us + wanted[n].lookup_us);
        got_count = kvd_slow_collect(&slow, now_ms, got, 0, 3);
        CHECK_EQ(got_count, wanted_count < 3 ? wanted_count : 3);
        for (size_t n = 0; n < got_count; n++)
            CHECK_EQ(got[n].hash_us + got[n].lookup_us,
                wanted[n].hash_us + wanted[n].lookup_us);
    }
    CHECK_EQ(kvd_slow_collect(&slow, now_ms + KVD_SLOW_MINUTES * 60000, got, 0, 3), 0);
    kvd_slow_fini(&slow);
}

TEST(a_thread_does_not_wait_for_whoever_reads_its_list)
{
    struct kvd_slow_entry entry = {.at_ms = 60000, .hash_us = 5};
    struct kvd_slow_entry got[2];
    struct kvd_slow slow;

    kvd_slow_init(&slow);
    pthread_mutex_lock(&slow.lock);
    kvd_slow_put(&slow, &entry); /* Would hang if it waited. */
    pthread_mutex_unlock(&slow.lock);
    CHECK_EQ(kvd_slow_collect(&slow, 60000, got, 0, 1), 0);
    kvd_slow_put(&slow, &entry);
    CHECK_EQ(kvd_slow_collect(&slow, 60000, got, 0, 1), 1);
    kvd_slow_fini(&slow);
}

static const uint64_t *last_row(const struct kvd_series *series)
{
    return kvd_series_row(series, series->next - 1);
}

TEST(a_row_says_what_happened_since_the_last_one)
{
    static struct kvd_board boards[2];
    struct kvd_pulse_source sources[2] = {{"one", &boards[0], 3}, {"two", &boards[1], 1}};
    uint64_t totals[KVD_PULSE_COLUMN_COUNT] = {0};
    struct kvd_pulse *pulse;

    CHECK_EQ(kvd_pulse_new(kvg_alloc_default(), 2, 9, 1000, &pulse), KVG_OK);
    totals[KVD_PULSE_LOOKUPS] = 10;
    boards[0].source.events = 100;
    boards[0].presence.pages = 5;
    kvd_pulse_row(pulse, 2000, totals, sources, 1);
    CHECK_EQ(last_row(&pulse->series)[KVD_PULSE_SPAN], 1000);
    CHECK_EQ(last_row(&pulse->series)[KVD_PULSE_LOOKUPS], 10);
    CHECK_EQ(last_row(&pulse->tracks[0].series)[KVD_TRACK_EVENTS], 100);
    CHECK_EQ(last_row(&pulse->tracks[0].series)[KVD_TRACK_PAGES], 5);
    CHECK_EQ(last_row(&pulse->tracks[0].series)[KVD_TRACK_CONFIDENCE], 3);

    /* A source that comes has the number of the row that it came with. */
    totals[KVD_PULSE_LOOKUPS] = 17;
    boards[0].source.events = 130;
    kvd_pulse_row(pulse, 3500, totals, sources, 2);
    CHECK_EQ(last_row(&pulse->series)[KVD_PULSE_SPAN], 1500);
    CHECK_EQ(last_row(&pulse->series)[KVD_PULSE_LOOKUPS], 7);
    CHECK_EQ(last_row(&pulse->tracks[0].series)[KVD_TRACK_EVENTS], 30);
    CHECK_EQ(pulse->tracks[1].series.first, 1);
    CHECK_EQ(pulse->tracks[1].series.next, 2);

    /* One that began anew counts from nothing; one that went is forgotten. */
    boards[1].source.events = 4;
    kvd_pulse_row(pulse, 4500, totals, &sources[1], 1);
    CHECK_EQ(last_row(&pulse->series)[KVD_PULSE_LOOKUPS], 0);
    CHECK_EQ(pulse->tracks[0].source[0], '\0');
    CHECK_EQ(last_row(&pulse->tracks[1].series)[KVD_TRACK_EVENTS], 4);
    boards[0].source.events = 2;
    kvd_pulse_row(pulse, 5500, totals, sources, 2);
    CHECK_STR(pulse->tracks[0].source, "one");
    CHECK_EQ(last_row(&pulse->tracks[0].series)[KVD_TRACK_EVENTS], 2);
    CHECK_EQ(pulse->tracks[0].series.first, 3);
    kvd_pulse_free(pulse);
}

TEST(a_source_without_memory_for_its_history_gets_one_later)
{
    static struct kvd_board board;
    struct kvd_pulse_source source = {"one", &board, 3};
    uint64_t totals[KVD_PULSE_COLUMN_COUNT] = {0};
    struct fault_alloc fault;
    struct kvd_pulse *pulse;

    fault_alloc_init(&fault);
    CHECK_EQ(kvd_pulse_new(&fault.alloc, 1, 0, 0, &pulse), KVG_OK);
    fault.countdown = 0;
    kvd_pulse_row(pulse, 1000, totals, &source, 1);
    CHECK_EQ(fault.failed, 1);
    CHECK_EQ(pulse->tracks[0].source[0], '\0');
    kvd_pulse_row(pulse, 2000, totals, &source, 1);
    CHECK_STR(pulse->tracks[0].source, "one");
    CHECK_EQ(pulse->tracks[0].series.first, 1);
    CHECK_EQ(pulse->series.next, 2);
    kvd_pulse_free(pulse);
    CHECK_EQ(fault.live_bytes, 0);
}

static bool make_and_free(const struct kvg_alloc *alloc, void *context)
{
    struct kvd_pulse *pulse;
    kvg_err err = kvd_pulse_new(alloc, 3, 1, 0, &pulse);

    (void)context;
    CHECK((err == KVG_OK) == (pulse != NULL));
    kvd_pulse_free(pulse);
    return err == KVG_OK;
}

TEST(without_memory_there_is_no_pulse_and_no_leak)
{
    CHECK(for_each_oom(make_and_free, NULL) > 2);
}

TEST_MAIN(RUN(a_series_keeps_the_newest_rows_under_their_numbers),
    RUN(the_slowest_questions_of_each_of_the_last_minutes_are_kept),
    RUN(a_thread_does_not_wait_for_whoever_reads_its_list),
    RUN(a_row_says_what_happened_since_the_last_one),
    RUN(a_source_without_memory_for_its_history_gets_one_later),
    RUN(without_memory_there_is_no_pulse_and_no_leak))
