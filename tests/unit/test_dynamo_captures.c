/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* The recorded streams of a real master through the profile "dynamo-1.5": every message passes the
 * strict decoder, and what is left is what the client of the seed would have.  Where nothing was
 * lost that is the master's own key list; elsewhere it shows what losing costs that client. */
#include "test.h"

#include "capture.h"

#include <kvgraft/dynamo.h>

#include "base/fmt.h"
#include "fault_alloc.h"
#include "source/dynamo_state.h"

struct outcome {
    struct kvg_dynamo_stats stats;
    uint64_t listed; /* Keys of the master. */
    uint64_t known;  /* Of these, known to the client. */
};

static void release(struct kvg_str contents)
{
    free((void *)(uintptr_t)contents.data);
}

static void replay(struct kvg_dynamo *dynamo, struct kvg_str capture)
{
    struct kvg_kvcap_message message;
    struct kvg_kvcap_reader reader;

    CHECK_EQ(kvg_kvcap_reader_init(&reader, capture, NULL), KVG_OK);
    while (kvg_kvcap_read(&reader, NULL, &message) == KVG_OK)
        kvg_dynamo_message(dynamo, message.frames, message.frame_count);
}

static struct outcome follow(const char *name)
{
    struct kvg_dynamo_options options = {.struct_bytes = sizeof(options)};
    struct outcome outcome = {.stats = {.struct_bytes = sizeof(outcome.stats)}};
    struct kvg_str capture = test_data_read(name, "kvcap");
    struct kvg_str keys = test_data_read(name, "keys");
    struct kvg_str line = {keys.data, 0};
    struct fault_alloc fault;
    struct kvg_dynamo *dynamo;
    size_t i;

    fault_alloc_init(&fault);
    CHECK_EQ(kvg_dynamo_new(&fault.alloc, &options, &dynamo), KVG_OK);
    replay(dynamo, capture);
    for (i = 0; i < keys.bytes; i++) {
        if (keys.data[i] != '\n') {
            line.bytes++;
            continue;
        }
        outcome.listed++;
        outcome.known += kvi_dynamo_has_key(dynamo, line);
        line = (struct kvg_str){keys.data + i + 1, 0};
    }
    kvg_dynamo_stats(dynamo, &outcome.stats);
    CHECK_EQ(kvi_dynamo_check(dynamo), 0);
    CHECK_EQ(outcome.stats.errors, 0); /* The decoder takes what a master sends. */
    kvg_dynamo_free(dynamo);
    CHECK_EQ(fault.live_bytes, 0);
    release(capture);
    release(keys);
    return outcome;
}

TEST(where_nothing_is_lost_the_keys_are_the_masters)
{
    static const char *const NAMES[] = {
        "mha_tp1_small", "mla_tagged_pp2", "split_heads_eagle", "legacy_off"};
    size_t i;

    for (i = 0; i < sizeof(NAMES) / sizeof(NAMES[0]); i++) {
        struct outcome outcome = follow(NAMES[i]);

        CHECK(outcome.listed > 0);
        CHECK_EQ(outcome.known, outcome.listed);
        CHECK_EQ(outcome.stats.present_keys, outcome.listed);
        CHECK_EQ(outcome.stats.gap_clears, 0);
    }
}

/* The fall of the sequence is a gap, and everything goes: right by chance. */
TEST(a_restart_is_a_gap)
{
    struct outcome outcome = follow("master_restart");

    CHECK_EQ(outcome.stats.gap_clears, 1);
    CHECK_EQ(outcome.known, outcome.listed);
    CHECK_EQ(outcome.stats.present_keys, outcome.listed);
}

TEST(keys_lost_without_an_event_stay_for_ever)
{
    struct outcome outcome = follow("silent_loss");

    CHECK_EQ(outcome.known, outcome.listed);
    CHECK(outcome.stats.present_keys > outcome.listed);
}

TEST(every_gap_clears_and_most_of_the_store_is_unknown_after_it)
{
    struct outcome outcome = follow("overflow_gap");

    CHECK_EQ(outcome.stats.gap_clears, 22);
    CHECK(outcome.known < outcome.listed / 2);
}

TEST(a_publisher_without_object_keys_says_nothing)
{
    struct outcome outcome = follow("objkey_off");

    CHECK_EQ(outcome.stats.present_keys, 0);
    CHECK(outcome.stats.keyless_events > 0);
}

TEST_MAIN(RUN(where_nothing_is_lost_the_keys_are_the_masters), RUN(a_restart_is_a_gap),
    RUN(keys_lost_without_an_event_stay_for_ever),
    RUN(every_gap_clears_and_most_of_the_store_is_unknown_after_it),
    RUN(a_publisher_without_object_keys_says_nothing))
