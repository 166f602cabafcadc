/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* Unit tests of a source: key counts, tenants, media, memory, log. */
#include "test.h"

#include "source_rig.h"

#include "base/fmt.h"
#include "source/state.h"

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
            struct kvg_source_status status = {true, rig->sequence, rig->event_id, 0, 0};

            if (action.kind == KVG_SOURCE_FETCH_COUNT) {
                kvg_source_count_answer(rig->source, action.id, keys, rig->now_ms);
                counted = true;
            } else if (action.kind == KVG_SOURCE_FETCH_STATUS) {
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
    action = rig_take(&rig, KVG_SOURCE_FETCH_LISTING);
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
    action = rig_take(&rig, KVG_SOURCE_FETCH_COUNT);
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
        struct kvg_source_status status = {true, 0, 0, 0, 0};
        struct kvg_source_action action;

        rig_wait(&rig, 100);
        while (kvg_source_next_action(rig.source, &action))
            if (action.kind == KVG_SOURCE_FETCH_STATUS)
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
        struct kvg_source_action action = rig_take(&rig, KVG_SOURCE_FETCH_LISTING);

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

/* Memory ----------------------------------------------------------------------------------- */

static void take_everything(
    struct kvg_source *source, uint64_t now_ms, uint64_t published)
{
    struct kvg_source_status status = {true, published, published, 0, 0};
    struct kvg_source_action action;

    while (kvg_source_next_action(source, &action)) {
        if (action.kind == KVG_SOURCE_FETCH_STATUS) {
            kvg_source_status_answer(source, action.id, &status, now_ms);
        } else if (action.kind == KVG_SOURCE_FETCH_COUNT) {
            kvg_source_count_answer(source, action.id, 40, now_ms);
        } else if (action.kind == KVG_SOURCE_FETCH_LISTING) {
            char line[RIG_KEY_BYTES + 2];
            unsigned i;

            for (i = 0; i < 40; i++) {
                rig_key(i, line);
                memcpy(line + strlen(line), "\n", 2);
                kvg_source_listing_data(source, action.id, kvi_str(line), now_ms);
            }
            kvg_source_listing_done(source, action.id, now_ms);
        }
    }
}

/* Twenty pages arrive, then the store is listed; the writer's memory is not what is tested. */
static bool follow_and_list(const struct kvg_alloc *alloc, void *context)
{
    struct rig *pen = context;
    struct kvg_presence *index;
    struct kvg_source *source = NULL;
    struct rig rig;
    bool completed = false;
    unsigned i;

    if (kvg_presence_new(alloc, NULL, NULL, &index) != KVG_OK)
        return false;
    if (kvg_source_new(alloc, index,
            &(struct kvg_source_options){
                .struct_bytes = sizeof(struct kvg_source_options), .has_admin = true},
            1000, &source) == KVG_OK) {
        rig = *pen;
        rig.source = source;
        rig.index = index;
        kvg_source_connected(source, rig.now_ms);
        for (i = 0; i < 40; i++) {
            rig_begin(&rig);
            rig_stored(&rig, "default", i);
            rig_stored(&rig, "blue", i);
            rig_send(&rig);
        }
        kvg_source_request_listing(source, rig.now_ms);
        for (i = 0; i < 20; i++) {
            rig_wait(&rig, 500);
            take_everything(source, rig.now_ms, 40);
        }
        completed = rig_objects(&rig) == 80;
        CHECK(rig_confidence(&rig) != KVG_CONFIDENCE_FRESH || rig_objects(&rig) >= 40);
        CHECK(completed || kvg_source_confidence(source, kvi_str("blue"), NULL) !=
                               KVG_CONFIDENCE_FRESH);
        pen->payload = rig.payload;
        pen->payload_bytes = rig.payload_bytes;
    }
    kvg_source_free(source);
    kvg_presence_free(index);
    return completed;
}

TEST(without_memory_it_is_never_called_fresh)
{
    struct rig pen;

    rig_init(&pen, NULL);
    for_each_oom(follow_and_list, &pen);
    rig_end(&pen);
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

    for (bit = 0; bit < 16; bit++) {
        enum kvg_source_reason reason = (enum kvg_source_reason)(1 << bit);

        CHECK(strcmp(kvg_source_reason_word(reason), "unknown") != 0);
        CHECK(strlen(kvg_source_reason_sentence(reason)) > 10);
    }
    CHECK_STR(kvg_source_reason_word((enum kvg_source_reason)(1 << 16)), "unknown");
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

TEST_MAIN(RUN(a_count_that_differs_twice_makes_a_listing),
    RUN(a_count_that_differs_once_is_forgotten),
    RUN(a_count_that_denies_every_listing_is_not_believed),
    RUN(foreign_keys_are_no_eternal_drift),
    RUN(a_count_taken_while_keys_come_and_go_is_not_a_drift),
    RUN(a_store_not_compared_for_too_long_is_not_fresh),
    RUN(a_listing_mends_the_default_tenant_only), RUN(a_restart_empties_every_tenant),
    RUN(the_older_publisher_removes_from_all_media_the_newer_from_one),
    RUN(without_memory_it_is_never_called_fresh),
    RUN(the_log_is_limited_by_kind_and_time), RUN(every_reason_has_a_word_and_a_sentence),
    RUN(options_out_of_range_are_refused))
