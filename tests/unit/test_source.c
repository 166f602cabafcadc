/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* Unit tests of a source: one rule a test.  Time is a number, the store is what a test says. */
#include "test.h"

#include "source_rig.h"

#include "base/fmt.h"
#include "source/state.h"

/* Beginnings ------------------------------------------------------------------------------- */

TEST(nothing_is_known_before_a_connection)
{
    struct rig rig;

    rig_init(&rig, NULL);
    CHECK_EQ(rig_confidence(&rig), KVG_CONFIDENCE_BLIND);
    CHECK((rig_reasons(&rig) & KVG_REASON_NO_STREAM) != 0);
    rig_end(&rig);
}

TEST(an_empty_quiet_store_becomes_fresh_without_a_message)
{
    struct rig rig;

    rig_follow(&rig);
    rig_idle(&rig);
    rig_end(&rig);
}

TEST(a_stream_from_its_first_message_needs_only_a_count_that_agrees)
{
    struct rig rig;

    rig_init(&rig, NULL);
    kvg_source_connected(rig.source, rig.now_ms);
    rig_store(&rig, 0);
    rig_store(&rig, 1);
    CHECK_EQ(rig_reasons(&rig), KVG_REASON_UNCHECKED);
    CHECK_EQ(rig_confidence(&rig), KVG_CONFIDENCE_SUSPECT);
    rig_status(&rig, 2, 2, 0);
    rig_count(&rig, 2);
    rig_wait(&rig, KVI_STATUS_SPACING_MS);
    rig_status(&rig, 2, 2, 0);
    CHECK_EQ(rig_confidence(&rig), KVG_CONFIDENCE_FRESH);
    CHECK_EQ(rig_stats(&rig).listings, 0);
    rig_end(&rig);
}

/* A store restored from a snapshot is full and its stream begins at 1. */
TEST(a_stream_from_its_first_message_is_listed_if_the_count_differs)
{
    struct rig rig;

    rig_init(&rig, NULL);
    kvg_source_connected(rig.source, rig.now_ms);
    rig_store(&rig, 0);
    rig_status(&rig, 1, 1, 0);
    rig_count(&rig, 3);
    rig_wait(&rig, KVI_STATUS_SPACING_MS);
    rig_status(&rig, 1, 1, 0);
    CHECK((rig_reasons(&rig) & KVG_REASON_DRIFT) != 0);
    rig_repair(&rig, 0, 3);
    CHECK_EQ(rig_confidence(&rig), KVG_CONFIDENCE_FRESH);
    CHECK_EQ(rig_objects(&rig), 3);
    rig_end(&rig);
}

TEST(a_late_joiner_is_suspect_until_it_has_listed_the_store)
{
    struct rig rig;

    rig_init(&rig, NULL);
    kvg_source_connected(rig.source, rig.now_ms);
    rig.sequence = 499;
    rig.event_id = 900;
    rig_store(&rig, 5);
    CHECK((rig_reasons(&rig) & KVG_REASON_LATE_JOIN) != 0);
    CHECK_EQ(rig_confidence(&rig), KVG_CONFIDENCE_SUSPECT);
    rig_status(&rig, 500, 901, 0);
    CHECK_EQ(rig_confidence(&rig), KVG_CONFIDENCE_REBUILDING);
    rig_list(&rig, 0, 6);
    CHECK_EQ(rig_confidence(&rig), KVG_CONFIDENCE_FRESH);
    CHECK_EQ(rig_objects(&rig), 6);
    CHECK_EQ(rig_stats(&rig).parts_added, 5);
    rig_end(&rig);
}

TEST(a_late_joiner_of_a_quiet_store_learns_its_place_from_the_status)
{
    struct rig rig;

    rig_init(&rig, NULL);
    kvg_source_connected(rig.source, rig.now_ms);
    rig_status(&rig, 40, 40, 2);
    CHECK((rig_reasons(&rig) & KVG_REASON_LATE_JOIN) != 0);
    rig_wait(&rig, KVI_STATUS_SPACING_MS);
    rig_status(&rig, 40, 40, 2);
    rig_list(&rig, 0, 4);
    CHECK_EQ(rig_confidence(&rig), KVG_CONFIDENCE_FRESH);
    CHECK_EQ(rig_stats(&rig).last_sequence, 42);

    rig.sequence = 43; /* Message 43 is lost. */
    rig.event_id = 41;
    rig_store(&rig, 9);
    CHECK((rig_reasons(&rig) & KVG_REASON_GAP) != 0);
    CHECK_EQ(rig_stats(&rig).missed_sequences, 1);
    rig_end(&rig);
}

TEST(a_late_joiner_without_an_admin_port_stays_suspect)
{
    struct rig rig;

    rig_init_without_admin(&rig);
    kvg_source_connected(rig.source, rig.now_ms);
    rig.sequence = 9;
    rig.event_id = 9;
    rig_store(&rig, 1);
    rig_wait(&rig, 3600000);
    CHECK((rig_reasons(&rig) & KVG_REASON_LATE_JOIN) != 0);
    CHECK_EQ(rig_confidence(&rig), KVG_CONFIDENCE_SUSPECT);
    rig_idle(&rig);
    rig_end(&rig);
}

TEST(a_loaded_index_is_suspect_until_it_is_compared)
{
    struct kvg_source_options options = {
        .struct_bytes = sizeof(options), .has_admin = true};
    struct kvg_source *second;
    struct rig rig;

    rig_follow(&rig);
    rig_store(&rig, 0);
    rig_store(&rig, 1);
    CHECK_EQ(kvg_source_new(&rig.fault.alloc, rig.index, &options, rig.now_ms, &second),
        KVG_OK);
    kvg_source_free(rig.source);
    rig.source = second;
    CHECK((rig_reasons(&rig) & KVG_REASON_LOADED) != 0);
    CHECK_EQ(rig_confidence(&rig), KVG_CONFIDENCE_SUSPECT);
    kvg_source_connected(rig.source, rig.now_ms);
    rig_status(&rig, 2, 2, 0);
    rig_list(&rig, 1, 2);
    CHECK_EQ(rig_confidence(&rig), KVG_CONFIDENCE_FRESH);
    CHECK(!rig_holds(&rig, 0));
    rig_end(&rig);
}

/* Numbers ---------------------------------------------------------------------------------- */

TEST(a_repeated_message_changes_nothing)
{
    struct rig rig;

    rig_follow(&rig);
    rig_store(&rig, 0);
    rig_remove(&rig, 0);
    rig_send_again(&rig);
    rig_send_again(&rig);
    CHECK_EQ(rig_stats(&rig).duplicates, 2);
    CHECK_EQ(rig_stats(&rig).events, 2);
    CHECK_EQ(rig_confidence(&rig), KVG_CONFIDENCE_FRESH);
    rig_end(&rig);
}

/* An older message of the same life, not only the last one: no gap, no restart. */
TEST(an_older_message_of_the_same_life_is_ignored)
{
    struct rig rig;

    rig_follow(&rig);
    rig_store(&rig, 0);
    rig_remove(&rig, 0);
    rig_store(&rig, 1);
    rig.sequence = 0;
    rig.event_id = 0;
    rig.timestamp_ms -= 3;
    rig_store(&rig, 0); /* The first message again, byte by byte. */
    CHECK_EQ(rig_stats(&rig).duplicates, 1);
    CHECK(!rig_holds(&rig, 0));
    CHECK_EQ(rig_confidence(&rig), KVG_CONFIDENCE_FRESH);
    rig_end(&rig);
}

TEST(a_gap_keeps_what_is_held_and_is_mended_by_a_listing)
{
    struct rig rig;

    rig_follow(&rig);
    rig_store(&rig, 0);
    rig_store(&rig, 1);
    rig.sequence += 3;
    rig_store(&rig, 2);
    CHECK_EQ(rig_reasons(&rig), KVG_REASON_GAP);
    CHECK_EQ(rig_confidence(&rig), KVG_CONFIDENCE_SUSPECT);
    CHECK_EQ(rig_stats(&rig).gaps, 1);
    CHECK_EQ(rig_stats(&rig).missed_sequences, 3);
    CHECK(rig_holds(&rig, 0));
    rig_repair(&rig, 1, 4);
    CHECK_EQ(rig_confidence(&rig), KVG_CONFIDENCE_FRESH);
    CHECK(!rig_holds(&rig, 0));
    CHECK(rig_holds(&rig, 3));
    CHECK_EQ(rig_stats(&rig).parts_dropped, 1);
    CHECK_EQ(rig_stats(&rig).parts_added, 1);
    rig_end(&rig);
}

TEST(without_an_admin_port_a_gap_stays_until_the_publisher_clears)
{
    struct rig rig;

    rig_init_without_admin(&rig);
    kvg_source_connected(rig.source, rig.now_ms);
    rig_store(&rig, 0);
    CHECK_EQ(rig_confidence(&rig), KVG_CONFIDENCE_FRESH);
    rig.sequence++;
    rig_store(&rig, 1);
    rig_store(&rig, 2);
    CHECK_EQ(rig_reasons(&rig), KVG_REASON_GAP);
    rig_idle(&rig);
    rig_dialect(&rig, KVG_DIALECT_MOONCAKE_V2);
    rig_begin(&rig);
    rig_cleared(&rig, "default");
    rig_stored(&rig, "default", 7);
    rig_send(&rig);
    CHECK_EQ(rig_confidence(&rig), KVG_CONFIDENCE_FRESH);
    CHECK_EQ(rig_objects(&rig), 1);
    rig_end(&rig);
}

/* Restarts --------------------------------------------------------------------------------- */

TEST(a_falling_number_is_a_restart_and_the_old_content_goes_at_once)
{
    struct rig rig;

    rig_follow(&rig);
    rig_store(&rig, 0);
    rig_store(&rig, 1);
    rig_store(&rig, 2);
    rig.sequence = 0;
    rig.event_id = 0;
    rig.timestamp_ms += 1000;
    rig_store(&rig, 5);
    CHECK_EQ(rig_stats(&rig).restarts, 1);
    CHECK_EQ(rig_objects(&rig), 1);
    CHECK(rig_holds(&rig, 5));
    CHECK((rig_reasons(&rig) & KVG_REASON_RESTART) != 0);
    rig_repair(&rig, 5, 7);
    CHECK_EQ(rig_confidence(&rig), KVG_CONFIDENCE_FRESH);
    CHECK_EQ(rig_objects(&rig), 2);
    rig_end(&rig);
}

/* One message in the first life, one in the second: the number repeats, the message does not. */
TEST(a_restart_that_lands_on_the_same_number_is_no_duplicate)
{
    struct rig rig;

    rig_follow(&rig);
    rig_store(&rig, 0);
    rig.sequence = 0;
    rig.event_id = 0;
    rig.timestamp_ms += 1000;
    rig_store(&rig, 1);
    CHECK_EQ(rig_stats(&rig).restarts, 1);
    CHECK_EQ(rig_stats(&rig).duplicates, 0);
    CHECK(!rig_holds(&rig, 0));
    CHECK(rig_holds(&rig, 1));
    rig_end(&rig);
}

/* The first message of the new life was lost on the way: the next one continues the old number.
 * Its event ids do not. */
TEST(a_restart_whose_number_happens_to_continue_is_seen_by_the_event_ids)
{
    struct rig rig;

    rig_follow(&rig);
    rig_store(&rig, 0);
    rig.event_id = 0;
    rig.timestamp_ms += 1000;
    rig_store(&rig, 1); /* Number 2, event 1. */
    CHECK_EQ(rig_stats(&rig).restarts, 1);
    CHECK(!rig_holds(&rig, 0));
    CHECK((rig_reasons(&rig) & KVG_REASON_LATE_JOIN) != 0);
    rig_end(&rig);
}

/* A standby on another machine takes over, and its clock is behind. */
TEST(a_restart_with_a_clock_that_is_behind_is_no_old_message)
{
    struct rig rig;
    unsigned i;

    rig_follow(&rig);
    for (i = 0; i < 3 * KVI_LIFE_RECENT; i++)
        rig_store(&rig, i);
    rig.sequence = 0;
    rig.event_id = 0;
    rig.timestamp_ms -= 3600000;
    rig_store(&rig, 7);
    CHECK_EQ(rig_stats(&rig).restarts, 1);
    CHECK_EQ(rig_objects(&rig), 1);
    rig_end(&rig);
}

TEST(ids_that_do_not_count_events_are_not_believed_for_long)
{
    struct rig rig;
    int i;

    rig_init_without_admin(&rig);
    kvg_source_connected(rig.source, rig.now_ms);
    for (i = 0; i < 50; i++) { /* Two streams of ids, taking turns. */
        rig.event_id = i % 2 == 0 ? (uint64_t)i / 2 : 1000 + (uint64_t)i / 2;
        rig_store(&rig, (unsigned)i);
    }
    CHECK_EQ(rig_stats(&rig).restarts, 1);
    CHECK(rig_objects(&rig) >= 40);
    rig_end(&rig);
}

TEST(status_counters_that_fall_are_a_restart_without_any_message)
{
    struct rig rig;

    rig_follow(&rig);
    rig_store(&rig, 0);
    rig_wait(&rig, 5000);
    rig_status(&rig, 1, 1, 0);
    rig_wait(&rig, 5000);
    rig_status(&rig, 0, 0, 0);
    CHECK_EQ(rig_stats(&rig).restarts, 1);
    CHECK_EQ(rig_objects(&rig), 0);
    CHECK((rig_reasons(&rig) & KVG_REASON_RESTART) != 0);
    rig_end(&rig);
}

/* The counter moves after the message it counts, so one look below is not enough. */
TEST(a_status_below_what_arrived_is_asked_again_before_it_is_believed)
{
    struct rig rig;

    rig_follow(&rig);
    rig_store(&rig, 0);
    rig_store(&rig, 1);
    rig_wait(&rig, 5000);
    rig_status(&rig, 1, 1, 0);
    CHECK_EQ(rig_stats(&rig).restarts, 0);
    rig_wait(&rig, KVI_STATUS_SPACING_MS);
    rig_status(&rig, 2, 2, 0);
    CHECK_EQ(rig_stats(&rig).restarts, 0);
    CHECK_EQ(rig_confidence(&rig), KVG_CONFIDENCE_FRESH);
    rig_end(&rig);
}

TEST(a_status_that_stays_below_what_arrived_is_a_restart)
{
    struct rig rig;

    rig_follow(&rig);
    rig_store(&rig, 0);
    rig_store(&rig, 1);
    rig_wait(&rig, 5000);
    rig_status(&rig, 1, 1, 0);
    rig_wait(&rig, KVI_STATUS_SPACING_MS);
    rig_status(&rig, 1, 1, 0);
    CHECK_EQ(rig_stats(&rig).restarts, 1);
    rig_end(&rig);
}

TEST(an_answer_that_was_asked_for_in_another_life_is_void)
{
    struct kvg_source_status old = {true, 3, 3, 0, 0};
    struct kvg_source_action action;
    struct rig rig;

    rig_follow(&rig);
    rig_store(&rig, 0);
    rig_store(&rig, 1);
    rig_store(&rig, 2);
    rig_wait(&rig, 5000);
    action = rig_take(&rig, KVG_SOURCE_FETCH_STATUS);
    rig.sequence = 0;
    rig.event_id = 0;
    rig.timestamp_ms += 1000;
    rig_store(&rig, 9);
    kvg_source_status_answer(rig.source, action.id, &old, rig.now_ms);
    CHECK_EQ(kvi_source_check(rig.source), 0);
    rig_wait(&rig, 3000);
    CHECK_EQ(rig_stats(&rig).gaps, 0);
    CHECK_EQ(rig_stats(&rig).restarts, 1);
    rig_end(&rig);
}

TEST(a_restart_without_an_admin_port_is_a_new_beginning)
{
    struct rig rig;

    rig_init_without_admin(&rig);
    kvg_source_connected(rig.source, rig.now_ms);
    rig_store(&rig, 0);
    rig.sequence += 5;
    rig_store(&rig, 1);
    CHECK_EQ(rig_confidence(&rig), KVG_CONFIDENCE_SUSPECT);
    rig.sequence = 0;
    rig.event_id = 0;
    rig_store(&rig, 2);
    CHECK_EQ(rig_confidence(&rig), KVG_CONFIDENCE_FRESH);
    CHECK_EQ(rig_objects(&rig), 1);
    rig_end(&rig);
}

TEST(another_endpoint_is_another_store)
{
    struct rig rig;

    rig_follow(&rig);
    rig_store(&rig, 0);
    kvg_source_endpoint_changed(rig.source, rig.now_ms);
    CHECK_EQ(kvi_source_check(rig.source), 0);
    CHECK_EQ(rig_objects(&rig), 0);
    CHECK_EQ(rig_confidence(&rig), KVG_CONFIDENCE_BLIND);
    rig_take(&rig, KVG_SOURCE_RECONNECT);
    rig_end(&rig);
}

/* Bad messages ----------------------------------------------------------------------------- */

TEST(a_message_of_the_wrong_form_is_counted_and_costs_nothing)
{
    struct kvg_str two[2] = {{"", 0}, {"12345678", 8}};
    struct rig rig;

    rig_follow(&rig);
    rig_store(&rig, 0);
    kvg_source_message(rig.source, two, 2, rig.now_ms);
    kvg_source_message(rig.source, two, 0, rig.now_ms);
    rig_store(&rig, 1);
    CHECK_EQ(rig_stats(&rig).bad_frames, 2);
    CHECK_EQ(rig_confidence(&rig), KVG_CONFIDENCE_FRESH);
    rig_end(&rig);
}

TEST(a_payload_that_cannot_be_read_moves_the_number_and_makes_suspect)
{
    struct rig rig;

    rig_follow(&rig);
    rig_store(&rig, 0);
    rig_send_bytes(&rig, "\xc1", 1);
    CHECK_EQ(rig_reasons(&rig), KVG_REASON_BAD_MESSAGE);
    rig_store(&rig, 1);
    CHECK_EQ(rig_stats(&rig).gaps, 0);
    CHECK_EQ(rig_stats(&rig).jumps, 0);
    CHECK_EQ(rig_objects(&rig), 2);
    rig_repair(&rig, 0, 2);
    CHECK_EQ(rig_confidence(&rig), KVG_CONFIDENCE_FRESH);
    rig_end(&rig);
}

TEST(a_message_cut_in_the_middle_gives_its_front_and_makes_suspect)
{
    struct kvg_str payload;
    char copy[4096];
    struct rig rig;

    rig_follow(&rig);
    rig_begin(&rig);
    rig_stored(&rig, "default", 0);
    rig_stored(&rig, "default", 1);
    CHECK_EQ(kvg_event_writer_end(rig.writer, &payload), KVG_OK);
    CHECK(payload.bytes < sizeof(copy));
    memcpy(copy, payload.data, payload.bytes);
    rig_send_bytes(&rig, copy, payload.bytes - 60);
    CHECK(rig_holds(&rig, 0));
    CHECK_EQ(rig_reasons(&rig), KVG_REASON_BAD_MESSAGE);
    rig_end(&rig);
}

TEST(engine_events_on_a_store_stream_are_counted_and_ignored)
{
    struct rig rig;

    rig_follow(&rig);
    rig_dialect(&rig, KVG_DIALECT_ENGINE_MAP);
    rig_begin(&rig);
    kvg_event_writer_add(rig.writer,
        &(struct kvg_event){.kind = KVG_EVENT_STORED,
            .form = KVG_FORM_ENGINE,
            .has_block_size = true,
            .block_size = 1},
        (const uint64_t[]){7}, 1, (const uint32_t[]){1}, 1);
    rig_send(&rig);
    CHECK_EQ(rig_stats(&rig).foreign_events, 1);
    CHECK_EQ(rig_objects(&rig), 0);
    rig_end(&rig);
}

TEST(a_publisher_that_says_no_keys_cannot_be_followed)
{
    struct rig rig;
    struct kvg_event event = {.kind = KVG_EVENT_STORED,
        .form = KVG_FORM_OBJECT,
        .tenant_id = {"default", 7},
        .backend_id = {"pool-a", 6}};

    rig_follow(&rig);
    event.has_event_id = true;
    event.event_id = ++rig.event_id;
    rig_begin(&rig);
    kvg_event_writer_add(rig.writer, &event, (const uint64_t[]){77}, 1, NULL, 0);
    rig_send(&rig);
    CHECK((rig_reasons(&rig) & KVG_REASON_KEYLESS) != 0);
    CHECK_EQ(rig_stats(&rig).keyless_events, 1);
    rig_repair(&rig, 0, 2);
    CHECK_EQ(rig_objects(&rig), 2);
    CHECK_EQ(rig_confidence(&rig), KVG_CONFIDENCE_SUSPECT);
    rig_end(&rig);
}

TEST_MAIN(RUN(nothing_is_known_before_a_connection),
    RUN(an_empty_quiet_store_becomes_fresh_without_a_message),
    RUN(a_stream_from_its_first_message_needs_only_a_count_that_agrees),
    RUN(a_stream_from_its_first_message_is_listed_if_the_count_differs),
    RUN(a_late_joiner_is_suspect_until_it_has_listed_the_store),
    RUN(a_late_joiner_of_a_quiet_store_learns_its_place_from_the_status),
    RUN(a_late_joiner_without_an_admin_port_stays_suspect),
    RUN(a_loaded_index_is_suspect_until_it_is_compared),
    RUN(a_repeated_message_changes_nothing),
    RUN(an_older_message_of_the_same_life_is_ignored),
    RUN(a_gap_keeps_what_is_held_and_is_mended_by_a_listing),
    RUN(without_an_admin_port_a_gap_stays_until_the_publisher_clears),
    RUN(a_falling_number_is_a_restart_and_the_old_content_goes_at_once),
    RUN(a_restart_that_lands_on_the_same_number_is_no_duplicate),
    RUN(a_restart_whose_number_happens_to_continue_is_seen_by_the_event_ids),
    RUN(a_restart_with_a_clock_that_is_behind_is_no_old_message),
    RUN(ids_that_do_not_count_events_are_not_believed_for_long),
    RUN(status_counters_that_fall_are_a_restart_without_any_message),
    RUN(a_status_below_what_arrived_is_asked_again_before_it_is_believed),
    RUN(a_status_that_stays_below_what_arrived_is_a_restart),
    RUN(an_answer_that_was_asked_for_in_another_life_is_void),
    RUN(a_restart_without_an_admin_port_is_a_new_beginning),
    RUN(another_endpoint_is_another_store),
    RUN(a_message_of_the_wrong_form_is_counted_and_costs_nothing),
    RUN(a_payload_that_cannot_be_read_moves_the_number_and_makes_suspect),
    RUN(a_message_cut_in_the_middle_gives_its_front_and_makes_suspect),
    RUN(engine_events_on_a_store_stream_are_counted_and_ignored),
    RUN(a_publisher_that_says_no_keys_cannot_be_followed))
