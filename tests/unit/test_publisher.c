/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* The pure half of a publisher: what it says, read again, is what happened. */
#include "test.h"

#include "fault_alloc.h"

#include "base/fmt.h"
#include "base/rng.h"
#include "store/publisher.h"

#define KEYS 64u

struct pair {
    struct fault_alloc fault;
    struct kvi_publisher publisher;
    struct kvg_event_reader reader;
    bool here[KEYS];  /* In the store. */
    bool there[KEYS]; /* As a reader of the messages knows it. */
};

static void begin(struct pair *pair)
{
    memset(pair, 0, sizeof(*pair));
    fault_alloc_init(&pair->fault);
    CHECK_EQ(kvi_publisher_init(&pair->publisher, &pair->fault.alloc, 1), KVG_OK);
    kvi_publisher_begin(&pair->publisher, 7);
    kvg_event_reader_init(&pair->reader, NULL);
}

static void end(struct pair *pair)
{
    kvi_publisher_fini(&pair->publisher);
    CHECK_EQ(pair->fault.live_bytes, 0);
}

static struct kvg_str key(unsigned i, char text[16])
{
    snprintf(text, 16, "key-%u", i);
    return kvi_str(text);
}

static void change(struct pair *pair, unsigned i, bool stored)
{
    char text[16];

    pair->here[i] = stored;
    if (stored)
        kvi_publisher_stored(
            &pair->publisher, key(i, text), kvi_str("page"), KVG_MEDIUM_DISK);
    else
        kvi_publisher_removed(
            &pair->publisher, key(i, text), kvi_str("page"), KVG_MEDIUM_DISK);
    CHECK_EQ(kvi_publisher_check(&pair->publisher), 0);
}

static void read_message(struct pair *pair, const struct kvi_publisher_message *message)
{
    struct kvg_str payload = {message->payload, message->bytes};
    struct kvg_event event;
    uint64_t objects = 0;
    unsigned i;

    CHECK_EQ(kvg_event_reader_begin(&pair->reader, payload, NULL), KVG_OK);
    while (kvg_event_reader_next(&pair->reader, &event)) {
        CHECK(event.object_key.bytes > 4);
        i = 0;
        for (size_t at = 4; at < event.object_key.bytes; at++)
            i = i * 10 + (unsigned)(event.object_key.data[at] - '0');
        CHECK(i < KEYS);
        CHECK_EQ(event.every_medium, event.kind == KVG_EVENT_REMOVED);
        pair->there[i] = event.kind == KVG_EVENT_STORED;
    }
    CHECK_EQ(pair->reader.epoch, 7);
    for (i = 0; i < KEYS; i++)
        objects += pair->there[i];
    CHECK(pair->reader.has_objects);
    CHECK_EQ(pair->reader.objects, objects);
    CHECK_EQ(pair->reader.counts.bad_events, 0);
}

TEST(what_is_published_is_what_happened)
{
    struct kvi_rng rng = {.state = 3};
    const struct kvi_publisher_message *message;
    struct pair pair;
    unsigned step;

    begin(&pair);
    for (step = 0; step < 500; step++) {
        uint64_t count = kvi_rng_below(&rng, 20);

        for (; count > 0; count--)
            change(
                &pair, (unsigned)kvi_rng_below(&rng, KEYS), kvi_rng_below(&rng, 2) == 0);
        CHECK_EQ(kvi_publisher_flush(&pair.publisher, 5, &message), KVG_OK);
        CHECK_EQ(message->sequence, step + 1);
        CHECK_EQ(kvi_publisher_check(&pair.publisher), 0);
        read_message(&pair, message);
        CHECK(memcmp(pair.here, pair.there, sizeof(pair.here)) == 0);
    }
    end(&pair);
}

TEST(more_changes_than_a_message_holds_are_several_messages)
{
    const struct kvi_publisher_message *message;
    struct pair pair;
    unsigned i;

    begin(&pair);
    for (i = 0; i < 3 * KVI_PUBLISHER_EVENTS_MAX; i++)
        change(&pair, i % 3, i / 3 % 2 == 0);
    for (i = 0; pair.publisher.pending_count != 0; i++) {
        CHECK_EQ(kvi_publisher_flush(&pair.publisher, 5, &message), KVG_OK);
        read_message(&pair, message);
    }
    CHECK_EQ(i, 3);
    CHECK(memcmp(pair.here, pair.there, sizeof(pair.here)) == 0);
    end(&pair);
}

TEST(kept_messages_are_found_by_number)
{
    const struct kvi_publisher_message *message;
    struct pair pair;
    uint64_t i;

    begin(&pair);
    CHECK_EQ(kvi_publisher_first_kept(&pair.publisher), 0);
    CHECK(kvi_publisher_kept(&pair.publisher, 1) == NULL);
    for (i = 0; i < KVI_PUBLISHER_RING_MESSAGES + 10u; i++)
        CHECK_EQ(kvi_publisher_flush(&pair.publisher, 5, &message), KVG_OK);
    CHECK_EQ(kvi_publisher_first_kept(&pair.publisher), 11);
    CHECK_EQ(pair.publisher.evicted, 10);
    CHECK_EQ(kvi_publisher_kept(&pair.publisher, 1)->sequence, 11);
    CHECK_EQ(kvi_publisher_kept(&pair.publisher, 12)->sequence, 12);
    CHECK_EQ(kvi_publisher_kept(&pair.publisher, i)->sequence, i);
    CHECK(kvi_publisher_kept(&pair.publisher, i + 1) == NULL);
    CHECK_EQ(kvi_publisher_check(&pair.publisher), 0);
    kvi_publisher_begin(&pair.publisher, 8);
    CHECK_EQ(kvi_publisher_first_kept(&pair.publisher), 0);
    CHECK_EQ(pair.publisher.keys.count, 0);
    end(&pair);
}

TEST(each_broken_invariant_of_a_publisher_is_named)
{
    const struct kvi_publisher_message *message;
    struct pair pair;

    begin(&pair);
    change(&pair, 1, true);
    CHECK_EQ(kvi_publisher_flush(&pair.publisher, 5, &message), KVG_OK);
    pair.publisher.sequence++;
    CHECK_EQ(kvi_publisher_check(&pair.publisher), 1);
    pair.publisher.sequence--;
    pair.publisher.ring_bytes++;
    CHECK_EQ(kvi_publisher_check(&pair.publisher), 2);
    pair.publisher.ring_bytes--;
    pair.publisher.pending_count++;
    CHECK_EQ(kvi_publisher_check(&pair.publisher), 3);
    pair.publisher.pending_count--;
    end(&pair);
}

TEST_MAIN(RUN(what_is_published_is_what_happened),
    RUN(more_changes_than_a_message_holds_are_several_messages),
    RUN(kept_messages_are_found_by_number),
    RUN(each_broken_invariant_of_a_publisher_is_named))
