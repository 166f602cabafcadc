/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* What the index does when it may be wrong about a part's medium: a listing does not say where a
 * part is, and a removal may have been lost.  In doubt the part goes. */
#include "test.h"

#include "base/fmt.h"
#include "fault_alloc.h"

#include <kvgraft/presence.h>

#define OBJECT "cf97adeedb59e05bfd73a2b4c2a8885708c4f4f70c84c64b27120e72ab733b72__k"

static const struct kvg_str TENANT = {"default", 7};

static struct kvg_presence *new_index(struct fault_alloc *fault)
{
    struct kvg_presence_options options = {.struct_bytes = sizeof(options)};
    struct kvg_presence *index;

    fault_alloc_init(fault);
    CHECK_EQ(kvg_presence_new(&fault->alloc, &options, NULL, &index), KVG_OK);
    return index;
}

static void finish(struct fault_alloc *fault, struct kvg_presence *index)
{
    kvg_presence_free(index);
    CHECK_EQ(fault->live_bytes, 0);
}

static void stored(struct kvg_presence *index, enum kvg_medium medium)
{
    CHECK(kvg_presence_stored(index, TENANT, kvi_str(OBJECT), medium));
}

static void removed(struct kvg_presence *index, enum kvg_medium medium)
{
    CHECK(kvg_presence_removed(index, TENANT, kvi_str(OBJECT), medium));
}

static void begin(struct kvg_presence *index, enum kvg_confidence confidence)
{
    kvg_presence_set_confidence(index, TENANT, confidence);
    CHECK_EQ(kvg_presence_listing_begin(index, TENANT), KVG_OK);
}

static void end(struct kvg_presence *index)
{
    struct kvg_presence_listing_result result;

    while (!kvg_presence_listing_end(index, 1000, &result))
        ;
}

static void listed(struct kvg_presence *index)
{
    CHECK(kvg_presence_listing_key(index, kvi_str(OBJECT)));
}

/* Parts over media: the object counts once for each medium it is believed on. */
static uint64_t places(const struct kvg_presence *index)
{
    struct kvg_presence_stats stats = {.struct_bytes = sizeof(stats)};

    kvg_presence_stats(index, &stats);
    return stats.parts;
}

TEST(without_doubt_each_medium_is_removed_alone)
{
    struct fault_alloc fault;
    struct kvg_presence *index = new_index(&fault);

    stored(index, KVG_MEDIUM_CPU);
    stored(index, KVG_MEDIUM_DISK);
    removed(index, KVG_MEDIUM_CPU);
    CHECK_EQ(places(index), 1);
    removed(index, KVG_MEDIUM_DISK);
    CHECK_EQ(places(index), 0);
    finish(&fault, index);
}

TEST(a_listed_object_that_was_on_disk_goes_when_the_disk_lets_it_go)
{
    struct fault_alloc fault;
    struct kvg_presence *index = new_index(&fault);

    begin(index, KVG_CONFIDENCE_SUSPECT);
    listed(index);
    end(index);
    CHECK_EQ(places(index), 1); /* Believed in memory, for want of a word. */
    removed(index, KVG_MEDIUM_DISK);
    CHECK_EQ(places(index), 0);
    finish(&fault, index);
}

TEST(of_two_media_one_may_be_stale_after_a_loss)
{
    struct fault_alloc fault;
    struct kvg_presence *index = new_index(&fault);

    stored(index, KVG_MEDIUM_CPU);
    stored(index, KVG_MEDIUM_DISK); /* Then the removal from memory was lost. */
    begin(index, KVG_CONFIDENCE_SUSPECT);
    listed(index);
    end(index);
    CHECK_EQ(places(index), 1);
    removed(index, KVG_MEDIUM_DISK);
    CHECK_EQ(places(index), 0);
    finish(&fault, index);
}

TEST(a_listing_without_a_loss_changes_no_medium)
{
    struct fault_alloc fault;
    struct kvg_presence *index = new_index(&fault);

    stored(index, KVG_MEDIUM_CPU);
    stored(index, KVG_MEDIUM_DISK);
    begin(index, KVG_CONFIDENCE_FRESH);
    listed(index);
    end(index);
    CHECK_EQ(places(index), 2);
    removed(index, KVG_MEDIUM_CPU);
    CHECK_EQ(places(index), 1);
    finish(&fault, index);
}

TEST(the_first_event_in_a_doubtful_listing_replaces_what_was_known)
{
    struct fault_alloc fault;
    struct kvg_presence *index = new_index(&fault);

    stored(index, KVG_MEDIUM_CPU); /* Its removal was lost. */
    begin(index, KVG_CONFIDENCE_SUSPECT);
    stored(index, KVG_MEDIUM_DISK);
    CHECK_EQ(places(index), 1);
    stored(index, KVG_MEDIUM_CPU); /* The second adds. */
    CHECK_EQ(places(index), 2);
    listed(index);
    end(index);
    CHECK_EQ(places(index), 2);
    finish(&fault, index);
}

TEST_MAIN(RUN(without_doubt_each_medium_is_removed_alone),
    RUN(a_listed_object_that_was_on_disk_goes_when_the_disk_lets_it_go),
    RUN(of_two_media_one_may_be_stale_after_a_loss),
    RUN(a_listing_without_a_loss_changes_no_medium),
    RUN(the_first_event_in_a_doubtful_listing_replaces_what_was_known))
