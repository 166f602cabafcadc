/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* An index in front of a store: what it may say for sure about objects that are not there. */
#include <kvgraft/presence.h>

#include "base/fmt.h"

#include "test.h"

static const struct kvg_str NOBODY = {NULL, 0};

struct world {
    struct kvg_layout *layout;
    struct kvg_presence *index;
    struct kvg_presence_view *view;
};

static struct world open_world(void)
{
    struct kvg_layout_config config = {
        .struct_bytes = sizeof(config), .rule = {.page_size = 4}, .tp_size = 1};
    struct kvg_presence_options options = {.struct_bytes = sizeof(options), .seed = 42};
    struct world world;

    CHECK_EQ(kvg_layout_new(kvg_alloc_default(), &config, NULL, &world.layout), KVG_OK);
    CHECK_EQ(kvg_presence_new(kvg_alloc_default(), &options, NULL, &world.index), KVG_OK);
    CHECK_EQ(kvg_presence_view_new(world.index, world.layout, NOBODY, NULL, &world.view),
        KVG_OK);
    return world;
}

static void close_world(struct world *world)
{
    kvg_presence_view_free(world->view);
    kvg_presence_free(world->index);
    kvg_layout_free(world->layout);
}

TEST(only_an_index_that_knows_everything_is_sure_that_an_object_is_absent)
{
    struct world world = open_world();
    char text[4][KVG_OBJECT_KEY_BYTES_MAX + 1];
    struct kvg_str
        object[4]; /* Two parts of a page that comes, two of one that does not. */
    struct kvg_presence_filter filter;
    uint32_t i;

    filter = (struct kvg_presence_filter){world.view, world.layout};
    for (i = 0; i < 4; i++) {
        struct kvg_key key = {{(uint8_t)(1 + i / 2)}};

        object[i] = (struct kvg_str){
            text[i], kvg_layout_object_key(world.layout, &key, i % 2, text[i])};
    }
    CHECK(kvg_presence_stored(world.index, NOBODY, object[0], KVG_MEDIUM_DISK));
    kvg_presence_set_confidence(world.index, NOBODY, KVG_CONFIDENCE_SUSPECT);
    for (i = 0; i < 4; i++)
        CHECK(!kvg_presence_filter_absent(&filter, object[i]));
    kvg_presence_set_confidence(world.index, NOBODY, KVG_CONFIDENCE_FRESH);
    CHECK(!kvg_presence_filter_absent(&filter, object[0]));
    for (i = 1; i < 4; i++)
        CHECK(kvg_presence_filter_absent(&filter, object[i]));
    CHECK(kvg_presence_stored(world.index, NOBODY, object[1], KVG_MEDIUM_CPU));
    CHECK(!kvg_presence_filter_absent(&filter, object[1]));
    CHECK(kvg_presence_removed(world.index, NOBODY, object[1], KVG_MEDIUM_CPU));
    CHECK(kvg_presence_filter_absent(&filter, object[1]));
    /* Of keys that are not of the layout nobody is sure. */
    CHECK(!kvg_presence_filter_absent(&filter, kvi_str("other")));
    text[3][strlen(text[3]) - 1] = 'x';
    CHECK(!kvg_presence_filter_absent(&filter, object[3]));
    close_world(&world);
}

/* Without a seat nobody can look, so nobody is sure. */
TEST(without_a_seat_nobody_is_sure)
{
    static struct kvg_presence_reader *readers[KVG_PRESENCE_READERS_MAX];
    struct world world = open_world();
    struct kvg_presence_filter filter = {world.view, world.layout};
    struct kvg_key key = {{3}};
    char text[KVG_OBJECT_KEY_BYTES_MAX + 1];
    struct kvg_str object = {text, kvg_layout_object_key(world.layout, &key, 0, text)};
    uint32_t i;

    kvg_presence_set_confidence(world.index, NOBODY, KVG_CONFIDENCE_FRESH);
    CHECK(kvg_presence_filter_absent(&filter, object));
    for (i = 0; i < KVG_PRESENCE_READERS_MAX; i++)
        CHECK_EQ(kvg_presence_reader_open(world.index, &readers[i]), KVG_OK);
    CHECK(!kvg_presence_filter_absent(&filter, object));
    for (i = 0; i < KVG_PRESENCE_READERS_MAX; i++)
        kvg_presence_reader_close(readers[i]);
    CHECK(kvg_presence_filter_absent(&filter, object));
    close_world(&world);
}

TEST_MAIN(RUN(only_an_index_that_knows_everything_is_sure_that_an_object_is_absent),
    RUN(without_a_seat_nobody_is_sure))
