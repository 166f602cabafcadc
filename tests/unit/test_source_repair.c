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
    action = rig_take(&rig, KVG_ACTION_FETCH_STATUS);
    kvg_source_status_answer(rig.source, action.id, &off, rig.now_ms);
    CHECK((rig_reasons(&rig) & KVG_REASON_DISABLED) != 0);
    CHECK_EQ(rig_confidence(&rig), KVG_CONFIDENCE_BLIND);
    rig_wait(&rig, KVI_STATUS_SPACING_MS);
    action = rig_take(&rig, KVG_ACTION_FETCH_STATUS);
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
    rig_take(&rig, KVG_ACTION_RECONNECT);

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
    rig_take(&rig, KVG_ACTION_RECONNECT);
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
            struct kvg_source_status status = {true, 1000000 + i, 1000000 + i, 0};

            if (action.kind == KVG_ACTION_FETCH_STATUS)
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
    action = rig_take(&rig, KVG_ACTION_FETCH_LISTING);
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
        action = rig_take(&rig, KVG_ACTION_FETCH_LISTING);
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
    action = rig_take(&rig, KVG_ACTION_FETCH_LISTING);
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
               action.kind != KVG_ACTION_FETCH_LISTING) {
            if (action.kind == KVG_ACTION_FETCH_STATUS)
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
    action = rig_take(&rig, KVG_ACTION_FETCH_LISTING);
    rig_wait(&rig, 60000);
    cancel = rig_take(&rig, KVG_ACTION_CANCEL);
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

/* Counts ----------------------------------------------------------------------------------- */

/* Waits for a count, answers it and the status after it. */
static void compare(struct rig *rig, uint64_t keys)
{
    struct kvg_source_action action;
    bool counted = false;
    int i;

    for (i = 0; i < 100000; i++) {
        rig_wait(rig, 10);
        while (kvg_source_next_action(rig->source, &action)) {
            struct kvg_source_status status = {true, rig->sequence, rig->event_id, 0};

            if (action.kind == KVG_ACTION_FETCH_COUNT) {
                kvg_source_count_answer(rig->source, action.id, keys, rig->now_ms);
                counted = true;
            } else if (action.kind == KVG_ACTION_FETCH_STATUS) {
                kvg_source_status_answer(rig->source, action.id, &status, rig->now_ms);
            }
        }
        if (counted && rig->source->compare.phase == KVI_COMPARE_IDLE)
            return;
    }
    fail_msg("no count was asked for");
}

TEST(a_count_that_differs_twice_makes_a_listing)
{
    struct rig rig;
    unsigned i;

    rig_follow(&rig);
    for (i = 0; i < 10; i++)
        rig_store(&rig, i);
    compare(&rig, 10);
    compare(&rig, 6);
    CHECK_EQ(rig_confidence(&rig), KVG_CONFIDENCE_FRESH);
    compare(&rig, 6);
    CHECK_EQ(rig_reasons(&rig), KVG_REASON_DRIFT);
    CHECK_EQ(rig_stats(&rig).drifts, 2);
    rig_repair(&rig, 0, 6);
    CHECK_EQ(rig_confidence(&rig), KVG_CONFIDENCE_FRESH);
    CHECK_EQ(rig_stats(&rig).parts_dropped, 4);
    rig_end(&rig);
}

TEST(a_count_that_differs_once_is_forgotten)
{
    struct rig rig;
    int i;

    rig_follow(&rig);
    rig_store(&rig, 0);
    for (i = 0; i < 4; i++) {
        compare(&rig, 2);
        compare(&rig, 1);
    }
    CHECK_EQ(rig_confidence(&rig), KVG_CONFIDENCE_FRESH);
    CHECK_EQ(rig_stats(&rig).listings, 0);
    CHECK_EQ(rig_stats(&rig).drifts, 4);
    rig_end(&rig);
}

/* A count that is always below what the listing shows is of something else. */
TEST(a_count_that_denies_every_listing_is_not_believed)
{
    struct rig rig;
    int i;

    rig_follow(&rig);
    for (i = 0; i < 10; i++)
        rig_store(&rig, (unsigned)i);
    for (i = 0; i < 3; i++) {
        compare(&rig, 6);
        compare(&rig, 6);
        CHECK_EQ(rig_reasons(&rig), KVG_REASON_DRIFT);
        rig_repair(&rig, 0, 10);
    }
    compare(&rig, 6);
    compare(&rig, 6);
    compare(&rig, 6);
    compare(&rig, 6);
    CHECK_EQ(rig_confidence(&rig), KVG_CONFIDENCE_FRESH);
    CHECK_EQ(rig_stats(&rig).listings, 3);
    CHECK_EQ(rig_stats(&rig).count_surplus, -4);
    rig_end(&rig);
}

TEST(foreign_keys_are_no_eternal_drift)
{
    struct kvg_source_action action;
    struct rig rig;
    int i;

    rig_follow(&rig);
    rig_store(&rig, 0);
    compare(&rig, 4);
    compare(&rig, 4);
    CHECK_EQ(rig_reasons(&rig), KVG_REASON_DRIFT);
    rig_wait(&rig, 1000);
    rig_status(&rig, 1, 1, 0);
    action = rig_take(&rig, KVG_ACTION_FETCH_LISTING);
    {
        char text[200];

        rig_key(0, text);
        memcpy(text + strlen(text), "\nwarmup_1\nwarmup_2\nwarmup_3\n", 29);
        kvg_source_listing_data(rig.source, action.id, kvi_str(text), rig.now_ms);
    }
    kvg_source_listing_done(rig.source, action.id, rig.now_ms);
    for (i = 0; i < 20; i++)
        compare(&rig, 4);
    CHECK_EQ(rig_stats(&rig).listings, 1);
    CHECK_EQ(rig_stats(&rig).count_surplus, 3);
    CHECK_EQ(rig_confidence(&rig), KVG_CONFIDENCE_FRESH);
    compare(&rig, 3);
    compare(&rig, 3);
    CHECK_EQ(rig_reasons(&rig), KVG_REASON_DRIFT);
    rig_end(&rig);
}

TEST(a_count_taken_while_keys_come_and_go_is_not_a_drift)
{
    struct kvg_source_action action;
    struct rig rig;
    unsigned i;

    rig_follow(&rig);
    for (i = 0; i < 20; i++)
        rig_store(&rig, i);
    rig_wait(&rig, 5000);
    rig_status(&rig, 20, 20, 0);
    rig_wait(&rig, 5000);
    rig_status(&rig, 20, 20, 0);
    action = rig_take(&rig, KVG_ACTION_FETCH_COUNT);
    for (; i < 30; i++)
        rig_store(&rig, i);
    kvg_source_count_answer(rig.source, action.id, 35, rig.now_ms);
    rig_wait(&rig, KVI_STATUS_SPACING_MS);
    rig_status(&rig, 35, 35, 0);
    for (; i < 35; i++)
        rig_store(&rig, i);
    CHECK_EQ(rig_stats(&rig).counts, 2);
    CHECK_EQ(rig_stats(&rig).drifts, 0);
    rig_end(&rig);
}

TEST(a_store_not_compared_for_too_long_is_not_fresh)
{
    struct rig rig;
    int i;

    rig_follow(&rig);
    for (i = 0; i < 400; i++) {
        struct kvg_source_status status = {true, 0, 0, 0};
        struct kvg_source_action action;

        rig_wait(&rig, 100);
        while (kvg_source_next_action(rig.source, &action))
            if (action.kind == KVG_ACTION_FETCH_STATUS)
                kvg_source_status_answer(rig.source, action.id, &status, rig.now_ms);
        if (i == 290)
            CHECK_EQ(rig_confidence(&rig), KVG_CONFIDENCE_FRESH);
    }
    CHECK_EQ(rig_reasons(&rig), KVG_REASON_UNCHECKED);
    rig_end(&rig);
}

/* Tenants ---------------------------------------------------------------------------------- */

static uint32_t reasons_of(const struct rig *rig, const char *tenant)
{
    uint32_t reasons;

    kvg_source_confidence(rig->source, kvi_str(tenant), &reasons);
    return reasons;
}

TEST(a_listing_mends_the_default_tenant_only)
{
    struct rig rig;

    rig_follow(&rig);
    rig_begin(&rig);
    rig_stored(&rig, "default", 0);
    rig_stored(&rig, "blue", 1);
    rig_send(&rig);
    CHECK_EQ(reasons_of(&rig, "blue"), 0);
    rig.sequence++;
    rig_store(&rig, 2);
    CHECK((reasons_of(&rig, "blue") & KVG_REASON_UNLISTABLE) != 0);
    rig_wait(&rig, 1000);
    rig_status(&rig, 3, 4, 0);
    {
        struct kvg_source_action action = rig_take(&rig, KVG_ACTION_FETCH_LISTING);

        kvg_source_listing_done(rig.source, action.id, rig.now_ms);
    }
    CHECK_EQ(rig_confidence(&rig), KVG_CONFIDENCE_FRESH);
    CHECK_EQ(reasons_of(&rig, "blue"), KVG_REASON_UNLISTABLE);
    CHECK_EQ(rig_objects(&rig), 1); /* Blue's key is untouched. */

    rig_dialect(&rig, KVG_DIALECT_MOONCAKE_V2);
    rig_begin(&rig);
    rig_cleared(&rig, "blue");
    rig_send(&rig);
    CHECK_EQ(reasons_of(&rig, "blue"), 0);
    CHECK_EQ(reasons_of(&rig, "red"), KVG_REASON_UNLISTABLE);
    CHECK_EQ(rig_objects(&rig), 0);
    rig_end(&rig);
}

TEST(a_restart_empties_every_tenant)
{
    struct rig rig;

    rig_follow(&rig);
    rig_begin(&rig);
    rig_stored(&rig, "blue", 1);
    rig_send(&rig);
    rig.sequence = 0;
    rig.event_id = 0;
    rig.timestamp_ms += 1000;
    rig_store(&rig, 2);
    CHECK_EQ(rig_objects(&rig), 1);
    CHECK_EQ(reasons_of(&rig, "blue") & KVG_REASON_UNLISTABLE, 0);
    rig_end(&rig);
}

/* Media ------------------------------------------------------------------------------------ */

TEST(the_older_publisher_removes_from_all_media_the_newer_from_one)
{
    struct kvg_event event = {.kind = KVG_EVENT_STORED,
        .form = KVG_FORM_OBJECT,
        .tenant_id = {"default", 7},
        .backend_id = {"pool-a", 6}};
    char key[RIG_KEY_BYTES + 1];
    struct rig rig;
    int newer;

    rig_key(0, key);
    event.object_key = kvi_str(key);
    for (newer = 0; newer < 2; newer++) {
        rig_follow(&rig);
        rig_dialect(&rig, newer ? KVG_DIALECT_MOONCAKE_V2 : KVG_DIALECT_MOONCAKE);
        event.has_dp_rank = newer != 0;
        event.kind = KVG_EVENT_STORED;
        rig_begin(&rig);
        event.medium = KVG_MEDIUM_CPU;
        event.medium_name = kvi_str("cpu");
        rig_add(&rig, &event);
        event.medium = KVG_MEDIUM_DISK;
        event.medium_name = kvi_str("disk");
        rig_add(&rig, &event);
        event.kind = KVG_EVENT_REMOVED;
        event.medium = KVG_MEDIUM_CPU;
        event.medium_name = kvi_str("cpu");
        rig_add(&rig, &event);
        rig_send(&rig);
        CHECK_EQ(rig_holds(&rig, 0), newer != 0);
        rig_end(&rig);
    }
}

/* The log ---------------------------------------------------------------------------------- */

static void count_line(
    void *context, enum kvg_level level, const char *component, const char *message)
{
    (void)level;
    (void)component;
    CHECK(strlen(message) > 0);
    ++*(int *)context;
}

TEST(the_log_is_limited_by_kind_and_time)
{
    int lines = 0;
    struct kvg_log log = {count_line, &lines};
    struct kvg_source_options options = {
        .struct_bytes = sizeof(options), .has_admin = false, .log = &log};
    struct rig rig;
    unsigned i;

    rig_init(&rig, &options);
    kvg_source_connected(rig.source, rig.now_ms);
    for (i = 0; i < 1000; i++) {
        rig.sequence++;
        rig_store(&rig, i);
        rig.now_ms += 10;
    }
    CHECK(lines <= 3);
    CHECK(rig_stats(&rig).log_suppressed > 900);
    rig_end(&rig);
}

TEST(every_reason_has_a_word_and_a_sentence)
{
    int bit;

    for (bit = 0; bit < 15; bit++) {
        enum kvg_source_reason reason = (enum kvg_source_reason)(1 << bit);

        CHECK(strcmp(kvg_source_reason_word(reason), "unknown") != 0);
        CHECK(strlen(kvg_source_reason_sentence(reason)) > 10);
    }
    CHECK_STR(kvg_source_reason_word((enum kvg_source_reason)(1 << 15)), "unknown");
}

TEST(options_out_of_range_are_refused)
{
    struct kvg_source_options options = {.struct_bytes = sizeof(options)};
    struct kvg_source *source;
    struct rig rig;

    rig_init(&rig, NULL);
    options.drift_max = -1;
    CHECK_EQ(
        kvg_source_new(&rig.fault.alloc, rig.index, &options, 0, &source), KVG_EINVAL);
    options.drift_max = 0;
    options.struct_bytes = 4;
    CHECK_EQ(
        kvg_source_new(&rig.fault.alloc, rig.index, &options, 0, &source), KVG_EINVAL);
    CHECK(source == NULL);
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
    RUN(a_listing_comes_by_itself_from_time_to_time),
    RUN(a_count_that_differs_twice_makes_a_listing),
    RUN(a_count_that_differs_once_is_forgotten),
    RUN(a_count_that_denies_every_listing_is_not_believed),
    RUN(foreign_keys_are_no_eternal_drift),
    RUN(a_count_taken_while_keys_come_and_go_is_not_a_drift),
    RUN(a_store_not_compared_for_too_long_is_not_fresh),
    RUN(a_listing_mends_the_default_tenant_only), RUN(a_restart_empties_every_tenant),
    RUN(the_older_publisher_removes_from_all_media_the_newer_from_one),
    RUN(the_log_is_limited_by_kind_and_time), RUN(every_reason_has_a_word_and_a_sentence),
    RUN(options_out_of_range_are_refused))
