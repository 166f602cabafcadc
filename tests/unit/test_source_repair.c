/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* Unit tests of a source: what it asks of the store, what mends it, what it says.  The rules of the
 * stream are in test_source.c. */
#include "test.h"

#include "source_rig.h"

#include "base/fmt.h"
#include "source/state.h"

/* Stream and store fall apart -------------------------------------------------------------- */

TEST(silence_makes_suspect_and_a_message_ends_it)
{
    struct rig rig;

    rig_init_without_admin(&rig);
    kvg_source_connected(rig.source, rig.now_ms);
    rig_store(&rig, 0);
    rig_wait(&rig, 14999);
    CHECK_EQ(rig_confidence(&rig), KVG_CONFIDENCE_FRESH);
    rig_wait(&rig, 1);
    CHECK_EQ(rig_reasons(&rig), KVG_REASON_SILENCE);
    rig_store(&rig, 1);
    CHECK_EQ(rig_confidence(&rig), KVG_CONFIDENCE_FRESH);
    rig_end(&rig);
}

TEST(after_a_disconnection_only_a_message_or_a_status_restores_trust)
{
    struct rig rig;

    rig_follow(&rig);
    rig_store(&rig, 0);
    kvg_source_disconnected(rig.source, rig.now_ms);
    CHECK_EQ(rig_reasons(&rig), KVG_REASON_NO_STREAM);
    CHECK(rig_holds(&rig, 0));
    rig_wait(&rig, 1000);
    kvg_source_connected(rig.source, rig.now_ms);
    CHECK_EQ(rig_reasons(&rig), KVG_REASON_NOTHING_YET);
    rig_status(&rig, 1, 1, 0);
    CHECK_EQ(rig_confidence(&rig), KVG_CONFIDENCE_FRESH);
    rig_end(&rig);
}

TEST(a_store_without_a_publisher_is_listed_and_never_fresh)
{
    struct kvg_source_status off = {.enabled = false};
    struct kvg_source_action action;
    struct rig rig;

    rig_init(&rig, NULL);
    kvg_source_connected(rig.source, rig.now_ms);
    action = rig_take(&rig, KVG_SOURCE_FETCH_STATUS);
    kvg_source_status_answer(rig.source, action.id, &off, rig.now_ms);
    CHECK((rig_reasons(&rig) & KVG_REASON_DISABLED) != 0);
    CHECK_EQ(rig_confidence(&rig), KVG_CONFIDENCE_BLIND);
    rig_wait(&rig, KVI_STATUS_SPACING_MS);
    action = rig_take(&rig, KVG_SOURCE_FETCH_STATUS);
    kvg_source_status_answer(rig.source, action.id, &off, rig.now_ms);
    rig_list(&rig, 0, 5);
    CHECK_EQ(rig_objects(&rig), 5);
    CHECK_EQ(rig_confidence(&rig), KVG_CONFIDENCE_SUSPECT);
    rig_end(&rig);
}

TEST(messages_under_way_get_a_grace_time)
{
    struct rig rig;

    rig_follow(&rig);
    rig_store(&rig, 0);
    rig_wait(&rig, 5000);
    rig_status(&rig, 2, 2, 0);
    rig_wait(&rig, 900);
    rig_store(&rig, 1);
    rig_wait(&rig, 200);
    CHECK_EQ(rig_confidence(&rig), KVG_CONFIDENCE_FRESH);
    CHECK_EQ(rig_stats(&rig).gaps, 0);
    rig_end(&rig);
}

/* The last messages were lost and nothing follows: only the status knows. */
TEST(what_never_arrives_is_given_up_as_a_gap_and_the_stream_is_opened_again)
{
    struct rig rig;

    rig_follow(&rig);
    rig_store(&rig, 0);
    rig_wait(&rig, 5000);
    rig_status(&rig, 4, 4, 0);
    rig_wait(&rig, 1000);
    CHECK_EQ(rig_reasons(&rig), KVG_REASON_GAP);
    CHECK_EQ(rig_stats(&rig).missed_sequences, 3);
    rig_take(&rig, KVG_SOURCE_RECONNECT);

    /* One of them comes after all: the listing to come knows better. */
    rig.timestamp_ms += 10;
    rig.sequence = 2;
    rig.event_id = 2;
    rig_store(&rig, 8);
    CHECK_EQ(rig_stats(&rig).late_messages, 1);
    CHECK(!rig_holds(&rig, 8));
    CHECK_EQ(rig_stats(&rig).restarts, 0);
    rig.sequence = 4;
    rig.event_id = 4;
    rig_repair(&rig, 0, 3);
    CHECK_EQ(rig_confidence(&rig), KVG_CONFIDENCE_FRESH);
    rig_store(&rig, 3);
    CHECK_EQ(rig_confidence(&rig), KVG_CONFIDENCE_FRESH);
    rig_end(&rig);
}

TEST(what_was_given_up_and_comes_in_order_is_followed_again)
{
    struct rig rig;

    rig_follow(&rig);
    rig_store(&rig, 0);
    rig_wait(&rig, 5000);
    rig_status(&rig, 3, 3, 0);
    rig_wait(&rig, 1000);
    CHECK_EQ(rig_reasons(&rig), KVG_REASON_GAP);
    rig_take(&rig, KVG_SOURCE_RECONNECT);
    rig_repair_with(&rig, 3, 0, 3);
    CHECK_EQ(rig_confidence(&rig), KVG_CONFIDENCE_FRESH);

    rig_store(&rig, 1); /* 2 and 3 were only slow. */
    CHECK_EQ(rig_stats(&rig).resumed, 1);
    CHECK((rig_reasons(&rig) & KVG_REASON_BEHIND) != 0);
    rig_store(&rig, 2);
    CHECK_EQ(rig_reasons(&rig), KVG_REASON_GAP);
    CHECK_EQ(rig_stats(&rig).restarts, 0);
    rig_repair(&rig, 0, 3);
    CHECK_EQ(rig_confidence(&rig), KVG_CONFIDENCE_FRESH);
    CHECK_EQ(rig_stats(&rig).last_sequence, 3);
    rig_end(&rig);
}

/* A status that counts something else must not stop the stream. */
TEST(a_status_that_is_always_ahead_stops_nothing)
{
    struct rig rig;
    unsigned i;

    rig_follow(&rig);
    for (i = 0; i < 600; i++) {
        struct kvg_source_action action;

        rig_store(&rig, i);
        rig_wait(&rig, 100);
        while (kvg_source_next_action(rig.source, &action)) {
            struct kvg_source_status status = {true, 1000000 + i, 1000000 + i, 0, 0};

            if (action.kind == KVG_SOURCE_FETCH_STATUS)
                kvg_source_status_answer(rig.source, action.id, &status, rig.now_ms);
        }
    }
    CHECK_EQ(rig_objects(&rig), 600);
    CHECK(rig_confidence(&rig) != KVG_CONFIDENCE_FRESH);
    rig_end(&rig);
}

TEST(a_slow_stream_is_behind_and_not_given_up)
{
    struct rig rig;
    unsigned i;

    rig_follow(&rig);
    rig_wait(&rig, 5000);
    rig_status(&rig, 6, 6, 0);
    for (i = 0; i < 5; i++) {
        rig_wait(&rig, 900);
        rig_store(&rig, i);
    }
    CHECK_EQ(rig_reasons(&rig), KVG_REASON_BEHIND);
    rig_store(&rig, i);
    CHECK_EQ(rig_confidence(&rig), KVG_CONFIDENCE_FRESH);
    CHECK_EQ(rig_stats(&rig).gaps, 0);
    rig_end(&rig);
}

/* Listings --------------------------------------------------------------------------------- */

TEST(an_event_during_a_listing_beats_the_listing)
{
    struct kvg_source_action action;
    char line[RIG_KEY_BYTES + 2];
    struct rig rig;

    rig_follow(&rig);
    rig_store(&rig, 0);
    rig.sequence++;
    rig_store(&rig, 1);
    rig_wait(&rig, KVI_STATUS_SPACING_MS);
    rig_status(&rig, 3, 3, 0);
    action = rig_take(&rig, KVG_SOURCE_FETCH_LISTING);
    rig_remove(&rig, 1);
    rig_store(&rig, 2);
    rig_key(1, line);
    kvg_source_listing_data(rig.source, action.id, kvi_str(line), rig.now_ms);
    kvg_source_listing_done(rig.source, action.id, rig.now_ms);
    CHECK(!rig_holds(&rig, 0));
    CHECK(!rig_holds(&rig, 1));
    CHECK(rig_holds(&rig, 2));
    CHECK_EQ(rig_confidence(&rig), KVG_CONFIDENCE_FRESH);
    rig_end(&rig);
}

TEST(a_gap_inside_a_listing_makes_another_one)
{
    struct rig rig;

    rig_follow(&rig);
    rig_store(&rig, 0);
    rig.sequence++;
    rig_store(&rig, 1);
    rig_wait(&rig, KVI_STATUS_SPACING_MS);
    rig_status(&rig, 3, 2, 0);
    rig.sequence++;
    rig_store(&rig, 2);
    rig_list(&rig, 0, 3);
    CHECK_EQ(rig_stats(&rig).listings_broken, 1);
    CHECK_EQ(rig_reasons(&rig), KVG_REASON_GAP);
    rig_repair(&rig, 0, 3);
    CHECK_EQ(rig_confidence(&rig), KVG_CONFIDENCE_FRESH);
    CHECK_EQ(rig_stats(&rig).listings, 2);
    rig_end(&rig);
}

TEST(a_listing_cut_anywhere_is_the_same_listing)
{
    char text[40 * (RIG_KEY_BYTES + 2)];
    struct kvg_source_action action;
    struct rig rig;
    size_t step;

    for (step = 1; step < 200; step += 7) {
        size_t bytes = 0;
        size_t at;
        unsigned i;

        rig_init(&rig, NULL);
        for (i = 0; i < 40; i++) {
            rig_key(i, text + bytes);
            bytes += RIG_KEY_BYTES;
            memcpy(text + bytes, "\r\n", 2);
            bytes += i % 2 == 0 ? 2 : 0;
            if (i % 2 != 0)
                text[bytes++] = '\n';
        }
        kvg_source_request_listing(rig.source, rig.now_ms);
        rig_status(&rig, 0, 0, 0);
        action = rig_take(&rig, KVG_SOURCE_FETCH_LISTING);
        for (at = 0; at < bytes - 1; at += step)
            kvg_source_listing_data(rig.source, action.id,
                (struct kvg_str){
                    text + at, at + step < bytes - 1 ? step : bytes - 1 - at},
                rig.now_ms);
        kvg_source_listing_done(rig.source, action.id, rig.now_ms);
        CHECK_EQ(rig_objects(&rig), 40);
        CHECK_EQ(rig_stats(&rig).listing_keys, 40);
        rig_end(&rig);
    }
}

TEST(a_line_without_end_costs_no_memory_and_no_other_line)
{
    char text[1000];
    char line[RIG_KEY_BYTES + 3];
    struct kvg_source_action action;
    struct rig rig;
    int i;

    rig_init(&rig, NULL);
    kvg_source_request_listing(rig.source, rig.now_ms);
    rig_status(&rig, 0, 0, 0);
    action = rig_take(&rig, KVG_SOURCE_FETCH_LISTING);
    memset(text, 'x', sizeof(text));
    for (i = 0; i < 50; i++)
        kvg_source_listing_data(
            rig.source, action.id, (struct kvg_str){text, sizeof(text)}, rig.now_ms);
    line[0] = '\n';
    rig_key(3, line + 1);
    kvg_source_listing_data(rig.source, action.id, kvi_str(line), rig.now_ms);
    kvg_source_listing_done(rig.source, action.id, rig.now_ms);
    CHECK_EQ(rig_stats(&rig).long_lines, 1);
    CHECK(rig_holds(&rig, 3));
    rig_end(&rig);
}

TEST(an_empty_listing_is_accepted_and_counted)
{
    struct rig rig;
    unsigned i;

    rig_follow(&rig);
    for (i = 0; i < 200; i++)
        rig_store(&rig, i);
    kvg_source_request_listing(rig.source, rig.now_ms);
    rig_repair(&rig, 0, 0);
    CHECK_EQ(rig_objects(&rig), 0);
    CHECK_EQ(rig_stats(&rig).listings_shrunk, 1);
    CHECK_EQ(rig_confidence(&rig), KVG_CONFIDENCE_FRESH);
    rig_end(&rig);
}

TEST(a_failed_listing_is_tried_again_with_growing_pauses)
{
    uint64_t last_ms = 0;
    uint64_t longest_ms = 0;
    struct rig rig;
    int i;

    rig_init(&rig, NULL);
    kvg_source_request_listing(rig.source, rig.now_ms);
    for (i = 0; i < 12; i++) {
        struct kvg_source_action action;

        while (!kvg_source_next_action(rig.source, &action) ||
               action.kind != KVG_SOURCE_FETCH_LISTING) {
            if (action.kind == KVG_SOURCE_FETCH_STATUS)
                kvg_source_failed(rig.source, action.id, "refused", rig.now_ms);
            rig_wait(&rig, 10);
        }
        if (i > 0 && rig.now_ms - last_ms > longest_ms)
            longest_ms = rig.now_ms - last_ms;
        CHECK(i == 0 || rig.now_ms - last_ms <= 40000);
        last_ms = rig.now_ms;
        kvg_source_failed(rig.source, action.id, "refused", rig.now_ms);
        CHECK_EQ(kvi_source_check(rig.source), 0);
    }
    CHECK(longest_ms > 10000);
    CHECK_EQ(rig_stats(&rig).listings_failed, 12);
    rig_end(&rig);
}

TEST(a_listing_that_never_ends_is_cancelled)
{
    struct kvg_source_action action;
    struct kvg_source_action cancel;
    struct rig rig;

    rig_init(&rig, NULL);
    kvg_source_request_listing(rig.source, rig.now_ms);
    rig_status(&rig, 0, 0, 0);
    action = rig_take(&rig, KVG_SOURCE_FETCH_LISTING);
    rig_wait(&rig, 60000);
    cancel = rig_take(&rig, KVG_SOURCE_CANCEL);
    CHECK_EQ(cancel.cancels, action.id);
    kvg_source_listing_done(rig.source, action.id, rig.now_ms); /* Too late. */
    CHECK_EQ(rig_stats(&rig).listings, 0);
    CHECK_EQ(rig_stats(&rig).listings_failed, 1);
    rig_end(&rig);
}

TEST(a_listing_comes_by_itself_from_time_to_time)
{
    struct kvg_source_options options = {.struct_bytes = sizeof(options),
        .has_admin = true,
        .listing_interval_ms = 20000,
        .status_interval_ms = 1000000,
        .count_interval_ms = 1000000,
        .silence_ms = 1000000};
    struct rig rig;

    rig_init(&rig, &options);
    kvg_source_connected(rig.source, rig.now_ms);
    rig_status(&rig, 0, 0, 0);
    rig_count(&rig, 0);
    rig_wait(&rig, KVI_STATUS_SPACING_MS);
    rig_status(&rig, 0, 0, 0);
    rig_wait(&rig, 20000);
    rig_status(&rig, 0, 0, 0);
    CHECK_EQ(rig_confidence(&rig), KVG_CONFIDENCE_FRESH);
    rig_list(&rig, 0, 2); /* Two keys that no event had named. */
    CHECK_EQ(rig_stats(&rig).listings, 1);
    CHECK_EQ(rig_stats(&rig).parts_added, 2);
    CHECK_EQ(rig_confidence(&rig), KVG_CONFIDENCE_FRESH);
    rig_end(&rig);
}

TEST_MAIN(RUN(silence_makes_suspect_and_a_message_ends_it),
    RUN(after_a_disconnection_only_a_message_or_a_status_restores_trust),
    RUN(a_store_without_a_publisher_is_listed_and_never_fresh),
    RUN(messages_under_way_get_a_grace_time),
    RUN(what_never_arrives_is_given_up_as_a_gap_and_the_stream_is_opened_again),
    RUN(what_was_given_up_and_comes_in_order_is_followed_again),
    RUN(a_status_that_is_always_ahead_stops_nothing),
    RUN(a_slow_stream_is_behind_and_not_given_up),
    RUN(an_event_during_a_listing_beats_the_listing),
    RUN(a_gap_inside_a_listing_makes_another_one),
    RUN(a_listing_cut_anywhere_is_the_same_listing),
    RUN(a_line_without_end_costs_no_memory_and_no_other_line),
    RUN(an_empty_listing_is_accepted_and_counted),
    RUN(a_failed_listing_is_tried_again_with_growing_pauses),
    RUN(a_listing_that_never_ends_is_cancelled),
    RUN(a_listing_comes_by_itself_from_time_to_time))
