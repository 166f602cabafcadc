/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* Unit tests of the presence index: one behaviour a test, one thread. */
#include <kvgraft/presence.h>

#include "base/fmt.h"
#include "fault_alloc.h"
#include "presence/index.h"
#include "test.h"

#define NOBODY ((struct kvg_str){NULL, 0})
#define PAGES_MAX 4096u

/* A small world: an index, one layout, a chain of keys. */
struct world {
    struct kvg_presence *index;
    struct kvg_presence_reader *reader;
    struct kvg_layout *layout;
    struct kvg_presence_view *view;
    struct kvg_range ranges[64];
};

static struct kvg_key key_of(uint64_t chain, uint64_t page)
{
    uint64_t name[2] = {chain, page};
    struct kvg_key key;
    size_t i;

    for (i = 0; i < 4; i++) {
        uint64_t word = kvi_mix64(kvi_mix64(name[0] * 5 + i + 100) + name[1] + 7);

        memcpy(key.bytes + i * 8, &word, 8);
    }
    return key;
}

static struct kvg_layout *layout_tp(uint32_t tp_size, const char *tag)
{
    struct kvg_layout_config config = {.struct_bytes = sizeof(config),
        .rule = {.page_size = 4},
        .tp_size = tp_size,
        .tag = kvi_str(tag)};
    struct kvg_layout *layout;

    CHECK_EQ(kvg_layout_new(kvg_alloc_default(), &config, NULL, &layout), KVG_OK);
    return layout;
}

static struct kvg_presence *make_index(const struct kvg_alloc *alloc, size_t memory)
{
    struct kvg_presence_options options = {.struct_bytes = sizeof(options),
        .memory_bytes_max = memory,
        .seed = 42,
        .full_keys = memory == 0};
    struct kvg_presence *index;

    CHECK_EQ(kvg_presence_new(alloc, &options, NULL, &index), KVG_OK);
    return index;
}

static void open_world(struct world *world, uint32_t tp_size, size_t memory)
{
    memset(world, 0, sizeof(*world));
    world->index = make_index(kvg_alloc_default(), memory);
    world->layout = layout_tp(tp_size, NULL);
    CHECK_EQ(kvg_presence_reader_open(world->index, &world->reader), KVG_OK);
    CHECK_EQ(
        kvg_presence_view_new(world->index, world->layout, NOBODY, NULL, &world->view),
        KVG_OK);
}

static void sound(struct kvg_presence *index)
{
    const char *what = NULL;

    if (kvi_presence_check(index, &what) != 0)
        fail_msg("%s", what);
}

static void close_world(struct world *world)
{
    sound(world->index);
    kvg_presence_view_free(world->view);
    kvg_presence_reader_close(world->reader);
    kvg_presence_free(world->index);
    kvg_layout_free(world->layout);
}

enum what {
    STORE,
    REMOVE,
    LIST
};

static bool tell_part(struct kvg_presence *index, const struct kvg_layout *layout,
    enum what what, struct kvg_key key, uint32_t part)
{
    char text[KVG_OBJECT_KEY_BYTES_MAX + 1];
    struct kvg_str object = {text, kvg_layout_object_key(layout, &key, part, text)};

    switch (what) {
    case STORE:
        return kvg_presence_stored(index, NOBODY, object, KVG_MEDIUM_CPU);
    case REMOVE:
        return kvg_presence_removed(index, NOBODY, object, KVG_MEDIUM_CPU);
    default:
        return kvg_presence_listing_key(index, object);
    }
}

static void tell(
    struct world *world, enum what what, uint64_t chain, uint32_t begin, uint32_t end)
{
    uint32_t page;
    uint32_t part;

    for (page = begin; page < end; page++)
        for (part = 0; part < kvg_layout_part_count(world->layout); part++)
            (void)tell_part(world->index, world->layout, what, key_of(chain, page), part);
}

static struct kvg_lookup ask_view(struct world *world,
    const struct kvg_presence_view *view, uint64_t chain, uint32_t count, uint32_t start)
{
    static struct kvg_key keys[PAGES_MAX];
    struct kvg_lookup lookup = {.view = view,
        .keys = keys,
        .key_count = count,
        .start = start,
        .ranges = world->ranges,
        .range_max = 64};
    uint32_t i;

    for (i = 0; i < count; i++)
        keys[i] = key_of(chain, i);
    kvg_presence_lookup(world->reader, &lookup, 1);
    return lookup;
}

static struct kvg_lookup ask(
    struct world *world, uint64_t chain, uint32_t count, uint32_t start)
{
    return ask_view(world, world->view, chain, count, start);
}

static struct kvg_presence_stats stats_of(const struct kvg_presence *index)
{
    struct kvg_presence_stats stats;

    kvg_presence_stats(index, &stats);
    return stats;
}

TEST(an_empty_index_knows_nothing)
{
    struct world world;
    struct kvg_lookup lookup;

    open_world(&world, 1, 0);
    lookup = ask(&world, 1, 8, 0);
    CHECK_EQ(lookup.total, 0);
    CHECK_EQ(lookup.range_count, 0);
    CHECK_EQ(lookup.first_missing, 0);
    CHECK_EQ(lookup.missing_parts, 2);
    CHECK_EQ(lookup.confidence, KVG_CONFIDENCE_BLIND);
    lookup = ask(&world, 1, 0, 0);
    CHECK_EQ(lookup.first_missing, 0);
    close_world(&world);
}

TEST(a_page_is_present_with_all_its_parts_only)
{
    struct world world;

    open_world(&world, 1, 0);
    CHECK(tell_part(world.index, world.layout, STORE, key_of(1, 0), 0));
    CHECK_EQ(ask(&world, 1, 1, 0).total, 0);
    CHECK_EQ(ask(&world, 1, 1, 0).missing_parts, 1);
    CHECK(tell_part(world.index, world.layout, STORE, key_of(1, 0), 1));
    CHECK_EQ(ask(&world, 1, 1, 0).total, 1);
    CHECK(tell_part(world.index, world.layout, REMOVE, key_of(1, 0), 1));
    CHECK_EQ(ask(&world, 1, 1, 0).total, 0);
    close_world(&world);
}

TEST(a_hole_ends_the_prefix_but_not_the_ranges)
{
    struct world world;
    struct kvg_lookup lookup;

    open_world(&world, 2, 0);
    tell(&world, STORE, 1, 0, 10);
    CHECK(tell_part(world.index, world.layout, REMOVE, key_of(1, 4), 3));
    lookup = ask(&world, 1, 12, 0);
    CHECK_EQ(lookup.total, 9);
    CHECK_EQ(lookup.contiguous, 4);
    CHECK_EQ(lookup.first_missing, 4);
    CHECK_EQ(lookup.missing_parts, 1);
    CHECK_EQ(lookup.range_count, 2);
    CHECK_EQ(world.ranges[0].begin, 0);
    CHECK_EQ(world.ranges[0].end, 4);
    CHECK_EQ(world.ranges[1].begin, 5);
    CHECK_EQ(world.ranges[1].end, 10);
    CHECK_EQ(kvg_lookup_hits_beyond(&lookup, 0), 9);
    CHECK_EQ(kvg_lookup_hits_beyond(&lookup, 3), 6);
    CHECK_EQ(kvg_lookup_hits_beyond(&lookup, 7), 3);
    CHECK_EQ(kvg_lookup_hits_beyond(&lookup, 10), 0);
    CHECK_EQ(ask(&world, 1, 12, 5).contiguous, 5);
    CHECK_EQ(ask(&world, 1, 12, 5).first_missing, 10);
    CHECK_EQ(ask(&world, 1, 12, 20).contiguous, 0);
    tell(&world, STORE, 1, 4, 5); /* And it heals. */
    CHECK_EQ(ask(&world, 1, 12, 0).contiguous, 10);
    close_world(&world);
}

TEST(more_ranges_than_room_are_counted)
{
    struct world world;
    struct kvg_key keys[6];
    struct kvg_range range;
    struct kvg_lookup lookup = {
        .keys = keys, .key_count = 6, .ranges = &range, .range_max = 1};
    uint32_t i;

    open_world(&world, 1, 0);
    for (i = 0; i < 6; i += 2)
        tell(&world, STORE, 1, i, i + 1);
    for (i = 0; i < 6; i++)
        keys[i] = key_of(1, i);
    lookup.view = world.view;
    kvg_presence_lookup(world.reader, &lookup, 1);
    CHECK_EQ(lookup.range_count, 3);
    CHECK_EQ(lookup.total, 3);
    CHECK_EQ(range.end, 1);
    lookup.ranges = NULL;
    lookup.range_max = 0;
    kvg_presence_lookup(world.reader, &lookup, 1);
    CHECK_EQ(lookup.range_count, 3);
    close_world(&world);
}

TEST(media_are_told_apart_and_a_mix_is_present)
{
    struct world world;
    char text[2][KVG_OBJECT_KEY_BYTES_MAX + 1];
    struct kvg_str object[2];
    struct kvg_key key = key_of(1, 0);
    uint8_t cpu = 0;
    uint8_t disk = 0;
    uint32_t i;

    open_world(&world, 1, 0);
    for (i = 0; i < 2; i++)
        object[i] = (struct kvg_str){
            text[i], kvg_layout_object_key(world.layout, &key, i, text[i])};
    CHECK(kvg_presence_stored(world.index, NOBODY, object[0], KVG_MEDIUM_CPU));
    CHECK(kvg_presence_stored(world.index, NOBODY, object[0], KVG_MEDIUM_DISK));
    CHECK(kvg_presence_stored(world.index, NOBODY, object[1], KVG_MEDIUM_DISK));
    CHECK_EQ(ask(&world, 1, 1, 0).total, 1);
    CHECK_EQ(ask(&world, 1, 1, 0).media, KVG_MEDIUM_BIT(KVG_MEDIUM_DISK));
    CHECK(kvg_presence_page_parts(world.reader, world.view, &key, &cpu, &disk, 1));
    CHECK_EQ(cpu, 1);
    CHECK_EQ(disk, 3);
    CHECK_EQ(stats_of(world.index).parts, 3);
    CHECK_EQ(stats_of(world.index).objects, 2);
    CHECK_EQ(stats_of(world.index).cpu_pages, 1);
    CHECK_EQ(stats_of(world.index).disk_pages, 1);
    CHECK_EQ(stats_of(world.index).cpu_parts, 1);
    CHECK_EQ(stats_of(world.index).disk_parts, 2);

    /* Gone from memory, still on disk: the page stays (seed: W4). */
    CHECK(kvg_presence_removed(world.index, NOBODY, object[0], KVG_MEDIUM_CPU));
    CHECK_EQ(ask(&world, 1, 1, 0).total, 1);
    CHECK_EQ(stats_of(world.index).cpu_pages, 0);
    CHECK_EQ(stats_of(world.index).disk_parts, 2);
    CHECK(kvg_presence_stored(world.index, NOBODY, object[1], KVG_MEDIUM_DEVICE));
    CHECK(kvg_presence_removed(world.index, NOBODY, object[1], KVG_MEDIUM_DISK));
    CHECK_EQ(ask(&world, 1, 1, 0).media, 0); /* It takes a mix. */
    CHECK_EQ(ask(&world, 1, 1, 0).total, 1);

    /* The older publisher means every medium. */
    CHECK(kvg_presence_removed(world.index, NOBODY, object[0], KVG_MEDIUM_UNKNOWN));
    CHECK(kvg_presence_removed(world.index, NOBODY, object[1], KVG_MEDIUM_UNKNOWN));
    CHECK_EQ(stats_of(world.index).pages, 0);
    CHECK_EQ(stats_of(world.index).cpu_pages, 0);
    CHECK_EQ(stats_of(world.index).disk_pages, 0);
    CHECK(!kvg_presence_page_parts(world.reader, world.view, &key, &cpu, &disk, 1));
    CHECK_EQ(cpu | disk, 0);
    close_world(&world);
}

TEST(foreign_keys_are_counted_and_change_nothing)
{
    struct world world;

    open_world(&world, 1, 0);
    CHECK(!kvg_presence_stored(world.index, NOBODY, kvi_str("12345"), KVG_MEDIUM_CPU));
    CHECK(!kvg_presence_removed(world.index, NOBODY, kvi_str(""), KVG_MEDIUM_CPU));
    CHECK_EQ(stats_of(world.index).foreign_keys, 2);
    CHECK_EQ(stats_of(world.index).pages, 0);
    close_world(&world);
}

TEST(tenants_and_prefixes_do_not_share_pages)
{
    struct world world;
    struct kvg_layout *tagged = layout_tp(1, "tag");
    struct kvg_presence_view *tagged_view;
    struct kvg_presence_view *other_view;

    open_world(&world, 1, 0);
    CHECK_EQ(
        kvg_presence_view_new(world.index, tagged, NOBODY, NULL, &tagged_view), KVG_OK);
    CHECK_EQ(kvg_presence_view_new(
                 world.index, world.layout, kvi_str("t2"), NULL, &other_view),
        KVG_OK);
    tell(&world, STORE, 1, 0, 3);
    CHECK_EQ(ask(&world, 1, 3, 0).total, 3);
    CHECK_EQ(ask_view(&world, tagged_view, 1, 3, 0).total, 0);
    CHECK_EQ(ask_view(&world, other_view, 1, 3, 0).total, 0);
    CHECK(tell_part(world.index, tagged, STORE, key_of(1, 0), 0));
    CHECK(tell_part(world.index, tagged, STORE, key_of(1, 0), 1));
    CHECK_EQ(ask_view(&world, tagged_view, 1, 3, 0).total, 1);

    kvg_presence_cleared(world.index, kvi_str("t2"));
    CHECK_EQ(ask(&world, 1, 3, 0).total, 3);
    kvg_presence_cleared(world.index, kvi_str("default"));
    CHECK_EQ(ask(&world, 1, 3, 0).total, 0);
    CHECK_EQ(stats_of(world.index).pages, 0);

    kvg_presence_set_confidence(world.index, NOBODY, KVG_CONFIDENCE_SUSPECT);
    kvg_presence_set_confidence(world.index, kvi_str("t2"), KVG_CONFIDENCE_FRESH);
    CHECK_EQ(ask(&world, 1, 1, 0).confidence, KVG_CONFIDENCE_SUSPECT);
    CHECK_EQ(ask_view(&world, other_view, 1, 1, 0).confidence, KVG_CONFIDENCE_FRESH);
    kvg_presence_view_free(tagged_view);
    kvg_presence_view_free(other_view);
    kvg_layout_free(tagged);
    close_world(&world);
}

TEST(events_may_come_before_a_layout_and_layouts_side_by_side)
{
    struct world world;
    struct kvg_layout *tp4 = layout_tp(4, NULL);
    struct kvg_layout *tp16 = layout_tp(16, NULL);
    struct kvg_presence_view *view4;
    struct kvg_presence_view *view16;
    uint32_t part;

    open_world(&world, 1, 0);
    for (part = 0; part < 32; part++)
        CHECK(tell_part(world.index, tp16, STORE, key_of(1, 0), 31 - part));
    for (part = 0; part < 8; part++)
        CHECK(tell_part(world.index, tp4, STORE, key_of(1, 1), part));
    CHECK_EQ(kvg_presence_view_new(world.index, tp4, NOBODY, NULL, &view4), KVG_OK);
    CHECK_EQ(kvg_presence_view_new(world.index, tp16, NOBODY, NULL, &view16), KVG_OK);
    CHECK_EQ(ask(&world, 1, 2, 0).total, 2);
    CHECK_EQ(ask_view(&world, view4, 1, 2, 0).total, 2);
    CHECK_EQ(ask_view(&world, view16, 1, 2, 0).total, 1);
    CHECK_EQ(ask_view(&world, view16, 1, 2, 0).missing_parts, 24);
    CHECK_EQ(ask_view(&world, view16, 1, 1, 0).media, KVG_MEDIUM_BIT(KVG_MEDIUM_CPU));
    CHECK(tell_part(world.index, tp16, REMOVE, key_of(1, 0), 20));
    CHECK_EQ(ask_view(&world, view16, 1, 2, 0).total, 0);
    CHECK_EQ(ask_view(&world, view4, 1, 2, 0).total, 2);
    kvg_presence_view_free(view4);
    kvg_presence_view_free(view16);
    kvg_layout_free(tp4);
    kvg_layout_free(tp16);
    close_world(&world);
}

TEST(many_pages_are_all_found_again)
{
    struct world world;
    uint64_t chain;

    open_world(&world, 1, 0);
    for (chain = 0; chain < 60; chain++)
        tell(&world, STORE, chain, 0, 1000);
    CHECK_EQ(stats_of(world.index).pages, 60000);
    sound(world.index);
    for (chain = 0; chain < 60; chain++)
        CHECK_EQ(ask(&world, chain, 1001, 0).contiguous, 1000);
    for (chain = 0; chain < 60; chain += 2)
        tell(&world, REMOVE, chain, 0, 1000);
    sound(world.index);
    for (chain = 0; chain < 60; chain++)
        CHECK_EQ(ask(&world, chain, 1000, 0).total, chain % 2 == 0 ? 0 : 1000);
    CHECK_EQ(stats_of(world.index).evicted_pages, 0);
    CHECK(!stats_of(world.index).partial);
    close_world(&world);
}

/* Where pages lie, counted over the table. */
struct lying {
    uint64_t first;
    uint64_t second;
    uint64_t strays;
    struct kvi_bucket *marked; /* A stray's first. */
};

static void count_lying(struct kvg_presence *index, struct kvi_slot *slot, void *context)
{
    struct lying *lying = context;
    uint64_t head = kvi_own(&slot->bucket->head[slot->at]);
    struct kvi_bucket *buckets = kvi_buckets(slot->segment);
    uint32_t first = kvi_first_bucket(head, kvi_bucket_count(slot->segment));

    (void)index;
    if (slot->bucket == buckets + first) {
        lying->first++;
    } else if (slot->bucket == buckets + kvi_second_bucket(head, first)) {
        lying->second++;
    } else {
        lying->strays++;
        lying->marked = buckets + first;
    }
}

static struct lying lying_of(struct kvg_presence *index)
{
    struct lying lying = {0};
    uint64_t head = 0;

    do
        head = kvi_presence_table_visit(index, head, count_lying, &lying);
    while (head != 0);
    return lying;
}

TEST(pages_lie_in_their_two_buckets_and_strays_are_few)
{
    struct world world;
    struct lying lying;
    const char *what;
    uint32_t meta;
    uint64_t chain;

    open_world(&world, 1, 0);
    for (chain = 0; chain < 55; chain++) /* Just before the segments grow. */
        tell(&world, STORE, chain, 0, 1000);
    lying = lying_of(world.index);
    CHECK_EQ(lying.first + lying.second + lying.strays, 55000);
    CHECK(lying.first > 55000 * 3 / 4);
    CHECK(lying.strays > 0 && lying.strays < 55000 / 100);
    for (chain = 0; chain < 55; chain++)
        CHECK_EQ(ask(&world, chain, 1000, 0).total, 1000);

    /* The mark is what makes a stray findable, and the check knows. */
    meta = atomic_load(&lying.marked->meta[0]);
    atomic_store(&lying.marked->meta[0], meta & ~META_STRAYED);
    CHECK_EQ(kvi_presence_check(world.index, &what), 2);
    atomic_store(&lying.marked->meta[0], meta);

    /* Slots that become free around strays: they are found on, and their marks stay. */
    for (chain = 0; chain < 55; chain += 2)
        tell(&world, REMOVE, chain, 0, 1000);
    sound(world.index);
    for (chain = 0; chain < 55; chain++)
        CHECK_EQ(ask(&world, chain, 1000, 0).total, chain % 2 == 0 ? 0 : 1000);
    for (chain = 100; chain < 128; chain++)
        tell(&world, STORE, chain, 0, 1000);
    sound(world.index);
    for (chain = 1; chain < 55; chain += 2)
        CHECK_EQ(ask(&world, chain, 1000, 0).total, 1000);
    for (chain = 100; chain < 128; chain++)
        CHECK_EQ(ask(&world, chain, 1000, 0).total, 1000);
    close_world(&world);
}

TEST(memory_does_not_grow_with_churn)
{
    struct world world;
    uint64_t chain;
    size_t early = 0;

    open_world(&world, 1, 0);
    for (chain = 0; chain < 3000; chain++) {
        tell(&world, STORE, chain, 0, 32);
        tell(&world, REMOVE, chain, 0, 32);
        if (chain == 100)
            early = stats_of(world.index).memory_bytes;
    }
    CHECK_EQ(stats_of(world.index).pages, 0);
    CHECK(stats_of(world.index).memory_bytes <= early);
    close_world(&world);
}

TEST(a_prompt_of_4096_pages_is_answered_whole)
{
    struct world world;

    open_world(&world, 1, 0);
    tell(&world, STORE, 1, 0, PAGES_MAX);
    CHECK_EQ(ask(&world, 1, PAGES_MAX, 0).contiguous, PAGES_MAX);
    close_world(&world);
}

/* Listings ---------------------------------------------------------------------------------- */

static struct kvg_presence_listing_result end_listing(struct world *world)
{
    struct kvg_presence_listing_result result;

    while (!kvg_presence_listing_end(world->index, 1, &result))
        ;
    return result;
}

TEST(a_listing_adds_what_was_missed_and_drops_what_was_lost)
{
    struct world world;
    struct kvg_presence_listing_result result;

    open_world(&world, 1, 0);
    tell(&world, STORE, 1, 0, 10);
    CHECK_EQ(kvg_presence_listing_begin(world.index, NOBODY), KVG_OK);
    CHECK_EQ(kvg_presence_listing_begin(world.index, NOBODY), KVG_EBUSY);
    tell(&world, LIST, 1, 0, 5);
    tell(&world, LIST, 2, 0, 4);
    CHECK(!kvg_presence_listing_key(world.index, kvi_str("warm-up")));
    result = end_listing(&world);
    CHECK_EQ(result.listed, 18);
    CHECK_EQ(result.foreign, 1);
    CHECK_EQ(result.added, 8);
    CHECK_EQ(result.dropped, 10);
    CHECK_EQ(ask(&world, 1, 10, 0).total, 5);
    CHECK_EQ(ask(&world, 2, 10, 0).total, 4);
    CHECK(!kvg_presence_listing_key(world.index, kvi_str("late")));
    close_world(&world);
}

TEST(an_event_during_a_listing_knows_better)
{
    struct world world;
    struct kvg_presence_listing_result result;

    open_world(&world, 1, 0);
    tell(&world, STORE, 1, 0, 4);
    CHECK_EQ(kvg_presence_listing_begin(world.index, NOBODY), KVG_OK);
    tell(&world, REMOVE, 1, 2, 4); /* Known, removed before it is listed. */
    tell(&world, REMOVE, 2, 0, 3); /* Unknown, removed before it is listed. */
    tell(&world, STORE, 3, 0, 2);  /* New, not in the listing. */
    tell(&world, LIST, 1, 0, 4);
    tell(&world, LIST, 2, 0, 4);
    tell(&world, REMOVE, 1, 1, 2); /* Removed after it was listed. */
    result = end_listing(&world);
    CHECK_EQ(result.dropped, 0);
    CHECK_EQ(result.added, 2);
    CHECK_EQ(ask(&world, 1, 4, 0).total, 1);
    CHECK_EQ(ask(&world, 2, 4, 0).total, 1);
    CHECK_EQ(ask(&world, 3, 4, 0).total, 2);
    sound(world.index);
    CHECK_EQ(stats_of(world.index).pages, 4);
    close_world(&world);
}

TEST(a_clear_during_a_listing_voids_it)
{
    struct world world;

    open_world(&world, 1, 0);
    tell(&world, STORE, 1, 0, 4);
    CHECK_EQ(kvg_presence_listing_begin(world.index, NOBODY), KVG_OK);
    tell(&world, LIST, 1, 0, 2);
    kvg_presence_cleared(world.index, kvi_str("default"));
    tell(&world, STORE, 2, 0, 3);
    tell(&world, LIST, 1, 2, 4);
    (void)end_listing(&world);
    CHECK_EQ(ask(&world, 1, 4, 0).total, 0);
    CHECK_EQ(ask(&world, 2, 4, 0).total, 3);
    close_world(&world);
}

TEST(a_listing_given_up_drops_nothing_and_leaves_no_trace)
{
    struct world world;
    uint32_t i;

    open_world(&world, 1, 0);
    tell(&world, STORE, 1, 0, 4);
    for (i = 0; i < 3; i++) {
        CHECK_EQ(kvg_presence_listing_begin(world.index, NOBODY), KVG_OK);
        tell(&world, REMOVE, 2, 0, 5);
        tell(&world, LIST, 3, 0, 2);
        kvg_presence_listing_abort(world.index);
    }
    CHECK_EQ(ask(&world, 1, 4, 0).total, 4);
    CHECK_EQ(ask(&world, 3, 4, 0).total, 2);
    sound(world.index);
    /* What an earlier listing settled does not count in the next. */
    CHECK_EQ(kvg_presence_listing_begin(world.index, NOBODY), KVG_OK);
    tell(&world, LIST, 2, 0, 5);
    (void)end_listing(&world);
    CHECK_EQ(ask(&world, 2, 5, 0).total, 5);
    CHECK_EQ(ask(&world, 1, 4, 0).total, 0);
    CHECK_EQ(ask(&world, 3, 4, 0).total, 0);
    close_world(&world);
}

TEST(events_between_the_steps_of_the_end_are_kept)
{
    struct world world;
    struct kvg_presence_listing_result result;
    uint64_t chain;

    open_world(&world, 1, 0);
    for (chain = 0; chain < 20; chain++)
        tell(&world, STORE, chain, 0, 500);
    CHECK_EQ(kvg_presence_listing_begin(world.index, NOBODY), KVG_OK);
    for (chain = 0; chain < 10; chain++)
        tell(&world, LIST, chain, 0, 500);
    for (chain = 30; !kvg_presence_listing_end(world.index, 1, &result); chain++) {
        tell(&world, STORE, chain, 0, 50);
        tell(&world, REMOVE, chain - 30, 0, 1);
        tell(&world, REMOVE, 1000 + chain, 0, 50);
        CHECK(chain < 1000);
    }
    CHECK(chain > 33); /* It took steps. */
    sound(world.index);
    CHECK_EQ(result.dropped, 10 * 500 * 2 - 0);
    while (chain-- > 30)
        CHECK_EQ(ask(&world, chain, 50, 0).total, 50);
    CHECK_EQ(ask(&world, 0, 500, 0).total, 499);
    CHECK_EQ(ask(&world, 11, 500, 0).total, 0);
    CHECK_EQ(kvg_presence_listing_begin(world.index, NOBODY), KVG_OK);
    (void)end_listing(&world);
    CHECK_EQ(stats_of(world.index).pages, 0);
    close_world(&world);
}

TEST(numbers_of_passes_begin_again_without_harm)
{
    struct world world;

    open_world(&world, 1, 0);
    tell(&world, STORE, 1, 0, 4);
    CHECK_EQ(kvg_presence_listing_begin(world.index, NOBODY), KVG_OK);
    tell(&world, LIST, 1, 0, 4);
    tell(&world, REMOVE, 2, 0, 4);
    kvg_presence_listing_abort(world.index); /* Pass 1 leaves its bits. */
    world.index->pass.number = PASS_MAX;
    CHECK_EQ(kvg_presence_listing_begin(world.index, NOBODY), KVG_OK);
    CHECK_EQ(world.index->pass.number, 1);
    tell(&world, LIST, 2, 0, 4);
    (void)end_listing(&world);
    CHECK_EQ(ask(&world, 1, 4, 0).total, 0);
    CHECK_EQ(ask(&world, 2, 4, 0).total, 4);
    close_world(&world);
}

TEST(a_listing_of_one_tenant_leaves_the_others_alone)
{
    struct world world;

    open_world(&world, 1, 0);
    tell(&world, STORE, 1, 0, 4);
    CHECK_EQ(kvg_presence_listing_begin(world.index, kvi_str("t2")), KVG_OK);
    tell(&world, REMOVE, 1, 0, 1);
    tell(&world, LIST, 1, 0, 4); /* These are of t2. */
    (void)end_listing(&world);
    CHECK_EQ(ask(&world, 1, 4, 0).total, 3);
    CHECK_EQ(stats_of(world.index).pages, 7);
    close_world(&world);
}

/* The limit --------------------------------------------------------------------------------- */

TEST(at_the_limit_memory_is_bounded_and_the_answer_says_so)
{
    struct world world;
    uint64_t chain;

    open_world(&world, 1, KVG_PRESENCE_MEMORY_BYTES_MIN);
    for (chain = 0; chain < 400; chain++) {
        kvg_presence_set_time(world.index, chain);
        tell(&world, STORE, chain, 0, 200);
        CHECK(stats_of(world.index).memory_bytes <= KVG_PRESENCE_MEMORY_BYTES_MIN);
        if (chain % 64 == 0)
            sound(world.index);
    }
    CHECK(stats_of(world.index).evicted_pages > 10000);
    CHECK(stats_of(world.index).partial);
    CHECK(stats_of(world.index).pages > 10000); /* It did not clear itself. */
    CHECK(ask(&world, 399, 200, 0).partial);
    CHECK_EQ(ask(&world, 399, 200, 0).contiguous, 200); /* The newest is whole. */
    CHECK_EQ(ask(&world, 0, 200, 0).total, 0);          /* The oldest is gone. */

    /* After the flood a listing that fits makes it whole again. */
    kvg_presence_cleared(world.index, NOBODY);
    CHECK_EQ(kvg_presence_listing_begin(world.index, NOBODY), KVG_OK);
    tell(&world, LIST, 7, 0, 200);
    (void)end_listing(&world);
    CHECK(!stats_of(world.index).partial);
    close_world(&world);
}

TEST(tails_go_before_heads)
{
    struct world world;
    uint64_t chain;
    uint32_t heads = 0;
    uint32_t tails = 0;

    /* Chains of 100 pages, stored one after the other, never asked for: each a second long. */
    open_world(&world, 1, KVG_PRESENCE_MEMORY_BYTES_MIN);
    for (chain = 0; chain < 250; chain++) {
        kvg_presence_set_time(world.index, 1000 + chain);
        tell(&world, STORE, chain, 0, 100);
    }
    for (chain = 0; chain < 250; chain++) {
        struct kvg_lookup lookup = ask(&world, chain, 100, 0);
        uint32_t i;

        for (i = 0; i < lookup.range_count && i < 64; i++) {
            heads += lookup.ranges[i].begin < 10
                         ? (lookup.ranges[i].end < 10 ? lookup.ranges[i].end : 10) -
                               lookup.ranges[i].begin
                         : 0;
        }
        tails += kvg_lookup_hits_beyond(&lookup, 90);
    }
    CHECK(stats_of(world.index).evicted_pages > 3000);
    CHECK(heads > tails + tails / 2);
    close_world(&world);
}

TEST(heads_that_are_asked_for_stay)
{
    struct world world;
    uint64_t chain;

    open_world(&world, 1, KVG_PRESENCE_MEMORY_BYTES_MIN);
    tell(&world, STORE, 0, 0, 50);
    for (chain = 1; chain < 500; chain++) {
        kvg_presence_set_time(world.index, chain);
        tell(&world, STORE, chain, 0, 100);
        CHECK_EQ(ask(&world, 0, 50, 0).contiguous, 50);
    }
    CHECK(stats_of(world.index).evicted_pages > 20000);
    close_world(&world);
}

TEST(what_events_settled_does_not_give_way_to_a_false_page)
{
    struct world world;
    uint64_t chain;

    /* Removals of unknown pages fill the index during a listing that still names them. */
    open_world(&world, 1, KVG_PRESENCE_MEMORY_BYTES_MIN);
    CHECK_EQ(kvg_presence_listing_begin(world.index, NOBODY), KVG_OK);
    for (chain = 0; chain < 400; chain++)
        tell(&world, REMOVE, chain, 0, 100);
    for (chain = 0; chain < 400; chain++)
        tell(&world, LIST, chain, 0, 100);
    (void)end_listing(&world);
    for (chain = 0; chain < 400; chain++)
        CHECK_EQ(ask(&world, chain, 100, 0).total, 0);
    CHECK(stats_of(world.index).memory_bytes <= KVG_PRESENCE_MEMORY_BYTES_MIN);
    close_world(&world);
}

TEST(wide_pages_at_the_limit_give_way_too)
{
    struct world world;
    uint64_t chain;

    open_world(&world, 16, KVG_PRESENCE_MEMORY_BYTES_MIN);
    for (chain = 0; chain < 300; chain++) {
        kvg_presence_set_time(world.index, chain);
        tell(&world, STORE, chain, 0, 50);
        CHECK(stats_of(world.index).memory_bytes <= KVG_PRESENCE_MEMORY_BYTES_MIN);
    }
    sound(world.index);
    CHECK(stats_of(world.index).evicted_pages > 3000);
    CHECK(ask(&world, 299, 50, 0).total >= 45);
    close_world(&world);
}

TEST(a_reader_that_stays_pinned_does_not_break_the_limit)
{
    struct world world;
    uint64_t chain;

    open_world(&world, 1, KVG_PRESENCE_MEMORY_BYTES_MIN);
    atomic_store_explicit(&world.reader->pin, 1, memory_order_seq_cst);
    for (chain = 0; chain < 400; chain++) {
        kvg_presence_set_time(world.index, chain);
        tell(&world, STORE, chain, 0, 100);
        CHECK(stats_of(world.index).memory_bytes <= KVG_PRESENCE_MEMORY_BYTES_MIN);
    }
    sound(world.index);
    atomic_store_explicit(&world.reader->pin, 0, memory_order_seq_cst);
    CHECK(ask(&world, 399, 100, 0).total == 100);
    close_world(&world);
}

/* Limits ------------------------------------------------------------------------------------ */

TEST(options_out_of_range_are_refused_by_name)
{
    struct kvg_presence_options options = {.struct_bytes = sizeof(options)};
    struct kvg_presence *index;
    struct kvg_error error;

    options.memory_bytes_max = 1000;
    CHECK_EQ(kvg_presence_new(kvg_alloc_default(), &options, &error, &index), KVG_EINVAL);
    CHECK_STR(error.field, "memory_bytes_max");
    options.struct_bytes = 3;
    CHECK_EQ(kvg_presence_new(kvg_alloc_default(), &options, &error, &index), KVG_EINVAL);
    CHECK_STR(error.field, "struct_bytes");
    CHECK_EQ(kvg_presence_new(kvg_alloc_default(), NULL, &error, &index), KVG_OK);
    CHECK_EQ(stats_of(index).memory_bytes_max, (size_t)1 << 30);
    kvg_presence_free(index);
    kvg_presence_free(NULL);
}

TEST(spaces_suffixes_and_tenants_have_limits_that_are_counted)
{
    struct kvg_presence *index = make_index(kvg_alloc_default(), 0);
    struct kvg_key key = key_of(1, 1);
    char hex[KVG_KEY_HEX_BYTES];
    char text[128];
    char long_name[KVG_PRESENCE_TENANT_BYTES_MAX + 1];
    uint32_t i;

    kvg_key_to_hex(&key, hex);
    for (i = 0; i < KVG_PRESENCE_SUFFIXES_MAX + 3; i++) {
        snprintf(text, sizeof(text), "%s_s%u", hex, (unsigned)i);
        CHECK_EQ(kvg_presence_stored(index, NOBODY, kvi_str(text), KVG_MEDIUM_CPU),
            i < KVG_PRESENCE_SUFFIXES_MAX);
    }
    CHECK_EQ(stats_of(index).refused_suffixes, 3);
    CHECK_EQ(stats_of(index).pages, 1);
    CHECK_EQ(stats_of(index).parts, KVG_PRESENCE_SUFFIXES_MAX);
    for (i = 1; i < KVG_PRESENCE_SPACES_MAX + 2; i++) {
        snprintf(text, sizeof(text), "p%u_%s_k", (unsigned)i, hex);
        CHECK_EQ(kvg_presence_stored(index, NOBODY, kvi_str(text), KVG_MEDIUM_CPU),
            i < KVG_PRESENCE_SPACES_MAX);
    }
    CHECK_EQ(stats_of(index).refused_spaces, 2);
    CHECK_EQ(stats_of(index).spaces, KVG_PRESENCE_SPACES_MAX);
    memset(long_name, 't', sizeof(long_name));
    snprintf(text, sizeof(text), "%s_k", hex);
    CHECK(!kvg_presence_stored(index, (struct kvg_str){long_name, sizeof(long_name)},
        kvi_str(text), KVG_MEDIUM_CPU));
    CHECK(stats_of(index).partial);
    sound(index);
    kvg_presence_free(index);
}

TEST(removing_from_unknown_spaces_makes_none)
{
    struct kvg_presence *index = make_index(kvg_alloc_default(), 0);
    struct kvg_layout *layout = layout_tp(1, "x");

    CHECK(tell_part(index, layout, REMOVE, key_of(1, 1), 0));
    CHECK_EQ(stats_of(index).spaces, 0);
    CHECK_EQ(stats_of(index).removed_unknown, 1);
    kvg_layout_free(layout);
    kvg_presence_free(index);
}

TEST(seats_are_limited_and_given_back)
{
    struct kvg_presence *index = make_index(kvg_alloc_default(), 0);
    struct kvg_presence_reader *reader[KVG_PRESENCE_READERS_MAX];
    struct kvg_presence_reader *more;
    uint32_t i;

    for (i = 0; i < KVG_PRESENCE_READERS_MAX; i++)
        CHECK_EQ(kvg_presence_reader_open(index, &reader[i]), KVG_OK);
    CHECK_EQ(kvg_presence_reader_open(index, &more), KVG_ELIMIT);
    CHECK(more == NULL);
    kvg_presence_reader_close(reader[7]);
    CHECK_EQ(kvg_presence_reader_open(index, &reader[7]), KVG_OK);
    for (i = 0; i < KVG_PRESENCE_READERS_MAX; i++)
        kvg_presence_reader_close(reader[i]);
    kvg_presence_reader_close(NULL);
    kvg_presence_free(index);
}

struct collected {
    char keys[64][80];
    uint32_t count;
};

static void collect(void *context, struct kvg_str tenant, struct kvg_str object_key,
    enum kvg_medium medium)
{
    struct collected *collected = context;

    CHECK(kvi_str_equal(tenant, kvi_str("default")));
    CHECK_EQ(medium, KVG_MEDIUM_CPU);
    CHECK(collected->count < 64);
    snprintf(collected->keys[collected->count++], 80, "%.*s", (int)object_key.bytes,
        object_key.data);
}

TEST(every_object_is_named_again_as_it_was_stored)
{
    struct world world;
    struct collected collected = {.count = 0};
    uint32_t found = 0;
    uint32_t page;

    open_world(&world, 2, 0);
    tell(&world, STORE, 1, 0, 10);
    CHECK_EQ(kvg_presence_each(world.index, collect, &collected), 40);
    for (page = 0; page < 10; page++) {
        uint32_t part;

        for (part = 0; part < 4; part++) {
            char text[KVG_OBJECT_KEY_BYTES_MAX + 1];
            struct kvg_key key = key_of(1, page);
            uint32_t i;

            (void)kvg_layout_object_key(world.layout, &key, part, text);
            for (i = 0; i < collected.count; i++)
                found += strcmp(collected.keys[i], text) == 0;
        }
    }
    CHECK_EQ(found, 40);
    close_world(&world);
}

/* The promise "a call that fails leaves the index as it was", at every allocation. */
static bool live_without_memory(const struct kvg_alloc *alloc, void *context)
{
    struct kvg_presence_options options = {.struct_bytes = sizeof(options), .seed = 1};
    const struct fault_alloc *fault = alloc->context;
    struct kvg_layout *layout = layout_tp(*(const uint32_t *)context, "t");
    struct kvg_presence_view *view = NULL;
    struct kvg_presence *index = NULL;
    bool all = false;
    uint32_t page;
    uint32_t part;

    if (kvg_presence_new(alloc, &options, NULL, &index) != KVG_OK)
        goto done;
    all = kvg_presence_view_new(index, layout, kvi_str("ten"), NULL, &view) == KVG_OK;
    for (page = 0; page < 1700; page++)
        for (part = 0; part < kvg_layout_part_count(layout); part += 5) {
            uint64_t before = stats_of(index).parts;
            uint64_t failed = fault->failed;
            bool taken = tell_part(index, layout, STORE, key_of(1, page), part);

            CHECK_EQ(stats_of(index).parts, before + taken);
            CHECK(taken || fault->failed > failed);
            all = all && taken;
        }
    sound(index);
    CHECK_EQ(stats_of(index).evicted_pages, 0);
done:
    kvg_presence_view_free(view);
    kvg_presence_free(index);
    kvg_layout_free(layout);
    return all && fault->failed == 0;
}

TEST(an_index_without_memory_says_so_and_stays_sound)
{
    uint32_t tp_size = 1;

    CHECK(for_each_oom(live_without_memory, &tp_size) > 10);
}

TEST_MAIN(RUN(an_empty_index_knows_nothing),
    RUN(a_page_is_present_with_all_its_parts_only),
    RUN(a_hole_ends_the_prefix_but_not_the_ranges),
    RUN(more_ranges_than_room_are_counted),
    RUN(media_are_told_apart_and_a_mix_is_present),
    RUN(foreign_keys_are_counted_and_change_nothing),
    RUN(tenants_and_prefixes_do_not_share_pages),
    RUN(events_may_come_before_a_layout_and_layouts_side_by_side),
    RUN(many_pages_are_all_found_again),
    RUN(pages_lie_in_their_two_buckets_and_strays_are_few),
    RUN(memory_does_not_grow_with_churn), RUN(a_prompt_of_4096_pages_is_answered_whole),
    RUN(a_listing_adds_what_was_missed_and_drops_what_was_lost),
    RUN(an_event_during_a_listing_knows_better), RUN(a_clear_during_a_listing_voids_it),
    RUN(a_listing_given_up_drops_nothing_and_leaves_no_trace),
    RUN(events_between_the_steps_of_the_end_are_kept),
    RUN(numbers_of_passes_begin_again_without_harm),
    RUN(a_listing_of_one_tenant_leaves_the_others_alone),
    RUN(at_the_limit_memory_is_bounded_and_the_answer_says_so),
    RUN(tails_go_before_heads), RUN(heads_that_are_asked_for_stay),
    RUN(what_events_settled_does_not_give_way_to_a_false_page),
    RUN(wide_pages_at_the_limit_give_way_too),
    RUN(a_reader_that_stays_pinned_does_not_break_the_limit),
    RUN(options_out_of_range_are_refused_by_name),
    RUN(spaces_suffixes_and_tenants_have_limits_that_are_counted),
    RUN(removing_from_unknown_spaces_makes_none), RUN(seats_are_limited_and_given_back),
    RUN(every_object_is_named_again_as_it_was_stored),

    RUN(an_index_without_memory_says_so_and_stays_sound))
