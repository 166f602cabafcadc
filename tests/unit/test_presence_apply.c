/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* Unit tests of many events at once. */
#include <kvgraft/presence.h>

#include "base/fmt.h"
#include "base/rng.h"
#include "presence/index.h"
#include "test.h"

static const struct kvg_str DEFAULT = {NULL, 0};

static struct kvg_key key_of(uint64_t chain, uint64_t page)
{
    uint64_t words[2] = {chain, page};
    struct kvg_key key;

    kvg_sha256(words, sizeof(words), key.bytes);
    return key;
}

static struct kvg_layout *layout_tp12(void)
{
    struct kvg_layout_config config = {
        .struct_bytes = sizeof(config), .rule = {.page_size = 4}, .tp_size = 12};
    struct kvg_layout *layout;

    CHECK_EQ(kvg_layout_new(kvg_alloc_default(), &config, NULL, &layout), KVG_OK);
    return layout;
}

static struct kvg_presence *make_index(void)
{
    struct kvg_presence_options options = {.struct_bytes = sizeof(options), .seed = 4};
    struct kvg_presence *index;

    CHECK_EQ(kvg_presence_new(kvg_alloc_default(), &options, NULL, &index), KVG_OK);
    return index;
}

static void sound(struct kvg_presence *index)
{
    const char *what = NULL;

    if (kvi_presence_check(index, &what) != 0)
        fail_msg("%s", what);
}

static struct kvg_presence_stats stats_of(const struct kvg_presence *index)
{
    struct kvg_presence_stats stats;

    kvg_presence_stats(index, &stats);
    return stats;
}

TEST(many_events_at_once_are_the_same_as_one_after_the_other)
{
    static char texts[200][KVG_OBJECT_KEY_BYTES_MAX + 1];
    struct kvg_presence_event events[200];
    struct kvg_presence *together = make_index();
    struct kvg_presence *alone = make_index();
    struct kvg_layout *layout = layout_tp12(); /* Some parts need a record. */
    struct kvi_rng rng = {17};
    uint32_t round;
    uint32_t i;

    for (round = 0; round < 200; round++) {
        uint32_t count = (uint32_t)kvi_rng_below(&rng, 200);
        struct kvg_presence_stats a;
        struct kvg_presence_stats b;

        if (round % 50 == 20) {
            CHECK_EQ(kvg_presence_listing_begin(together, DEFAULT), KVG_OK);
            CHECK_EQ(kvg_presence_listing_begin(alone, DEFAULT), KVG_OK);
        }
        for (i = 0; i < count; i++) {
            struct kvg_key key = key_of(kvi_rng_below(&rng, 3), kvi_rng_below(&rng, 300));
            size_t bytes = kvg_layout_object_key(
                layout, &key, (uint32_t)kvi_rng_below(&rng, 24), texts[i]);

            events[i] = (struct kvg_presence_event){
                .tenant = kvi_rng_below(&rng, 9) == 0 ? kvi_str("other") : DEFAULT,
                .object_key = {texts[i], bytes - (kvi_rng_below(&rng, 30) == 0 ? 9 : 0)},
                .medium = (enum kvg_medium)kvi_rng_below(&rng, KVG_MEDIUM_COUNT),
                .is_removal = kvi_rng_below(&rng, 3) == 0};
        }
        kvg_presence_apply(together, events, count);
        for (i = 0; i < count; i++)
            CHECK_EQ(events[i].is_known,
                (events[i].is_removal ? kvg_presence_removed : kvg_presence_stored)(
                    alone, events[i].tenant, events[i].object_key, events[i].medium));
        sound(together);
        sound(alone);
        a = stats_of(together);
        b = stats_of(alone);
        CHECK(memcmp(&a, &b, offsetof(struct kvg_presence_stats, partial)) == 0);
        if (round % 50 == 40) {
            struct kvg_presence_listing_result result;

            while (!kvg_presence_listing_end(together, 100, &result))
                ;
            while (!kvg_presence_listing_end(alone, 100, &result))
                ;
        }
    }
    CHECK(stats_of(together).foreign_keys > 0);
    CHECK(stats_of(together).pages > 100);
    kvg_presence_free(together);
    kvg_presence_free(alone);
    kvg_layout_free(layout);
}

TEST_MAIN(RUN(many_events_at_once_are_the_same_as_one_after_the_other))
