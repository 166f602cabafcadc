/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* Unit tests of layouts and object keys. */
#include <kvgraft/layout.h>

#include "base/fmt.h"
#include "base/rng.h"
#include "fault_alloc.h"
#include "layout/names.h"
#include "test.h"

#define HEX "cf97adeedb59e05bfd73a2b4c2a8885708c4f4f70c84c64b27120e72ab733b72"

static struct kvg_layout_config plain(void)
{
    return (struct kvg_layout_config){
        .struct_bytes = sizeof(struct kvg_layout_config), .rule = {.page_size = 4}};
}

static struct kvg_layout *make(struct kvg_layout_config config)
{
    struct kvg_layout *layout;
    struct kvg_error error = {.message = ""};

    if (kvg_layout_new(kvg_alloc_default(), &config, &error, &layout) != KVG_OK)
        fail_msg("%s: %s", error.field, error.message);
    return layout;
}

static struct kvg_key the_key(void)
{
    struct kvg_key key;

    CHECK(kvg_key_from_hex(kvi_str(HEX), &key));
    return key;
}

/* Checks that a configuration is refused with this code and field. */
static void refused(struct kvg_layout_config config, kvg_err code, const char *field)
{
    struct kvg_layout *layout;
    struct kvg_error error = {.message = ""};

    CHECK_EQ(kvg_layout_new(kvg_alloc_default(), &config, &error, &layout), code);
    CHECK(layout == NULL);
    CHECK_EQ(error.code, code);
    CHECK_STR(error.field, field);
    CHECK(error.message[0] != '\0');
}

/* Checks all object keys of a layout, and that each is recognised again as its part. */
static void names_parts(
    struct kvg_layout *layout, const char *const *expected, uint32_t count)
{
    struct kvg_key key = the_key();
    char text[KVG_OBJECT_KEY_BYTES_MAX + 1];
    uint32_t part;

    CHECK_EQ(kvg_layout_part_count(layout), count);
    for (part = 0; part < count; part++) {
        struct kvg_object_key object;

        CHECK_EQ(kvg_layout_object_key(layout, &key, part, text), strlen(expected[part]));
        CHECK_STR(text, expected[part]);
        CHECK(kvg_object_key_parse(kvi_str(text), &object));
        CHECK_MEM(&object.key, &key, sizeof(key));
        CHECK_EQ(kvg_layout_part_of(layout, &object), part);
    }
    CHECK_EQ(kvg_layout_object_key(layout, &key, count, text), 0);
    CHECK(kvg_layout_suffix(layout, count).data == NULL);
    kvg_layout_free(layout);
}

TEST(object_keys_of_a_plain_layout)
{
    static const char *const ZERO[] = {HEX "_0_k", HEX "_0_v"};

    names_parts(make(plain()), ZERO, 2);
}

TEST(object_keys_with_ranks_and_stages_are_in_the_order_of_the_seed)
{
    static const char *const KEYS[] = {HEX "_0_0_k", HEX "_0_0_v", HEX "_1_0_k",
        HEX "_1_0_v", HEX "_0_1_k", HEX "_0_1_v", HEX "_1_1_k", HEX "_1_1_v"};
    struct kvg_layout_config config = plain();

    config.tp_size = 2;
    config.pp_size = 2;
    names_parts(make(config), KEYS, 8);
}

TEST(object_keys_of_mla_have_a_double_underscore_without_stages)
{
    static const char *const ONE[] = {HEX "__k"};
    static const char *const STAGES[] = {HEX "_0_k", HEX "_1_k"};
    struct kvg_layout_config config = plain();

    config.mla = true;
    config.tp_size = 8;
    names_parts(make(config), ONE, 1);
    config.pp_size = 2;
    names_parts(make(config), STAGES, 2);
}

TEST(split_heads_count_to_the_common_multiple)
{
    static const char *const KEYS[] = {"tag_" HEX "_0_k", "tag_" HEX "_0_v",
        "tag_" HEX "_1_k", "tag_" HEX "_1_v", "tag_" HEX "_2_k", "tag_" HEX "_2_v",
        "tag_" HEX "_3_k", "tag_" HEX "_3_v"};
    struct kvg_layout_config config = plain();

    config.tp_size = 2;
    config.tp_lcm_size = 4;
    config.split_heads = true;
    config.tag = kvi_str("tag");
    names_parts(make(config), KEYS, 8);
}

TEST(the_common_multiple_matters_with_split_heads_only_and_never_shrinks)
{
    struct kvg_layout_config config = plain();
    struct kvg_layout *layout;

    config.tp_size = 4;
    config.tp_lcm_size = 2;
    config.split_heads = true;
    layout = make(config);
    CHECK_EQ(kvg_layout_part_count(layout), 8);
    kvg_layout_free(layout);

    config.tp_lcm_size = 4000000000u;
    config.split_heads = false;
    layout = make(config);
    CHECK_EQ(kvg_layout_part_count(layout), 8);
    kvg_layout_free(layout);
}

TEST(tag_and_model_are_joined_in_object_keys_and_group_ids)
{
    static const char *const KEYS[] = {
        "tagA_acme_ai-R1_" HEX "_0_k", "tagA_acme_ai-R1_" HEX "_0_v"};
    struct kvg_layout_config config = plain();
    struct kvg_layout *layout;
    struct kvg_key key = the_key();
    char text[KVG_GROUP_ID_BYTES_MAX + 1];

    layout = make(config);
    CHECK_EQ(kvg_layout_group_id(layout, &key, text), 15 + 64);
    CHECK_STR(text, "sglang-hicache:" HEX);
    kvg_layout_free(layout);

    config.tag = kvi_str("tag");
    layout = make(config);
    (void)kvg_layout_group_id(layout, &key, text);
    CHECK_STR(text, "sglang-hicache:tag_" HEX);
    kvg_layout_free(layout);

    config.tag = kvi_str("tagA");
    config.model_prefix = kvi_str("acme_ai-R1");
    layout = make(config);
    (void)kvg_layout_group_id(layout, &key, text);
    CHECK_STR(text, "sglang-hicache:tagA_acme_ai-R1_" HEX);
    names_parts(layout, KEYS, 2);
}

TEST(an_advertised_prefix_replaces_the_tag_in_object_keys_only)
{
    static const char *const KEYS[] = {"adv_" HEX "_0_k", "adv_" HEX "_0_v"};
    static const char *const BARE[] = {HEX "_0_k", HEX "_0_v"};
    struct kvg_layout_config config = plain();
    struct kvg_layout *layout;
    struct kvg_key key = the_key();
    char text[KVG_GROUP_ID_BYTES_MAX + 1];

    config.tag = kvi_str("tag");
    config.key_prefix = kvi_str("adv");
    layout = make(config);
    (void)kvg_layout_group_id(layout, &key, text);
    CHECK_STR(text, "sglang-hicache:tag_" HEX);
    names_parts(layout, KEYS, 2);

    config.key_prefix = kvi_str("");
    names_parts(make(config), BARE, 2);
}

TEST(pools_replace_the_k_and_v_parts)
{
    static const char *const KEYS[] = {"m_" HEX "__deepseek_v4_c4",
        "m_" HEX "__deepseek_v4_c4_indexer", "m_" HEX "__deepseek_v4_c4_state"};
    struct kvg_str whole[2] = {
        kvi_str("__deepseek_v4_c4"), kvi_str("__deepseek_v4_c4_indexer")};
    struct kvg_str state[1] = {kvi_str("__deepseek_v4_c4_state")};
    struct kvg_layout_pool pools[2] = {
        {.suffixes = whole, .suffix_count = 2}, {.suffixes = state,
                                                    .suffix_count = 1,
                                                    .policy = KVG_POOL_TRAILING_PAGES,
                                                    .trailing_pages = 2}};
    struct kvg_layout_config config = plain();
    struct kvg_layout *layout;

    config.tp_size = 8;
    config.model_prefix = kvi_str("m");
    config.pools = pools;
    config.pool_count = 2;
    layout = make(config);
    CHECK_EQ(kvg_layout_part_trailing(layout, 1), 0);
    CHECK_EQ(kvg_layout_part_trailing(layout, 2), 2);
    CHECK_EQ(kvg_layout_part_trailing(layout, 3), 0);
    names_parts(layout, KEYS, 3);
}

TEST(every_dimension_has_its_limit)
{
    struct kvg_layout_config config = plain();

    config.struct_bytes = 0;
    refused(config, KVG_EINVAL, "struct_bytes");
    config = plain();
    config.rule.page_size = 0;
    refused(config, KVG_EINVAL, "page_size");
    config.rule.page_size = KVG_PAGE_SIZE_MAX + 1;
    refused(config, KVG_EINVAL, "page_size");
    config = plain();
    config.tp_size = KVG_LAYOUT_RANKS_MAX + 1;
    refused(config, KVG_EINVAL, "tp_size");
    config = plain();
    config.pp_size = KVG_LAYOUT_STAGES_MAX + 1;
    refused(config, KVG_EINVAL, "pp_size");
    config = plain();
    config.split_heads = true;
    config.tp_lcm_size = UINT32_MAX;
    refused(config, KVG_EINVAL, "tp_lcm_size");
    config = plain();
    config.tp_size = KVG_LAYOUT_RANKS_MAX;
    config.pp_size = KVG_LAYOUT_STAGES_MAX; /* 524,288 parts. */
    refused(config, KVG_ELIMIT, "tp_size");
    config.pp_size = 2; /* Just the limit. */
    kvg_layout_free(make(config));
}

TEST(prefixes_have_a_limit)
{
    char text[KVG_LAYOUT_PREFIX_BYTES_MAX + 1];
    struct kvg_layout_config config = plain();

    memset(text, 't', sizeof(text));
    config.tag = (struct kvg_str){text, sizeof(text)};
    refused(config, KVG_ELIMIT, "extra_backend_tag");
    config.tag.bytes = KVG_LAYOUT_PREFIX_BYTES_MAX;
    kvg_layout_free(make(config));
    config.model_prefix = kvi_str("m");
    refused(config, KVG_ELIMIT, "model_prefix");
    config = plain();
    config.key_prefix = (struct kvg_str){text, sizeof(text)};
    refused(config, KVG_ELIMIT, "key_prefix");
}

TEST(pools_that_cannot_be_are_refused_by_field)
{
    char much[KVG_LAYOUT_SUFFIX_BYTES_MAX + 1];
    struct kvg_str suffixes[2] = {kvi_str("_a"), kvi_str("_b")};
    struct kvg_layout_pool pools[KVG_LAYOUT_POOLS_MAX + 1] = {
        {.suffixes = suffixes, .suffix_count = 2}};
    struct kvg_layout_config config = plain();

    memset(much, '_', sizeof(much));
    config.pools = pools;
    config.pool_count = KVG_LAYOUT_POOLS_MAX + 1;
    refused(config, KVG_ELIMIT, "pools");
    config.pool_count = 1;
    pools[0].trailing_pages = 1;
    refused(config, KVG_EINVAL, "pools[0].trailing_pages");
    pools[0].policy = KVG_POOL_TRAILING_PAGES;
    pools[0].trailing_pages = 0;
    refused(config, KVG_EINVAL, "pools[0].trailing_pages");
    pools[0].policy = (enum kvg_pool_policy)7;
    refused(config, KVG_EINVAL, "pools[0].hit_policy");
    pools[0].policy = KVG_POOL_ALL_PAGES;
    suffixes[1] = kvi_str("_a");
    refused(config, KVG_EINVAL, "pools[0].suffixes[1]");
    suffixes[1] = kvi_str("x");
    refused(config, KVG_EINVAL, "pools[0].suffixes[1]");
    suffixes[1] = (struct kvg_str){much, sizeof(much)};
    refused(config, KVG_ELIMIT, "pools[0].suffixes[1]");
    pools[0].suffix_count = 0;
    refused(config, KVG_EINVAL, "pools[0].suffixes");
    pools[0].suffix_count = SIZE_MAX;
    refused(config, KVG_ELIMIT, "pools");
}

TEST(layouts_are_equal_when_they_name_the_same_parts)
{
    struct kvg_layout_config config = plain();
    struct kvg_layout *one = make(config);
    struct kvg_layout *same;

    config.tp_size = 1;
    config.pp_size = 1;
    config.tp_lcm_size = 8; /* Without split heads it says nothing. */
    same = make(config);
    CHECK(kvg_layout_equal(one, same));
    kvg_layout_free(same);
    config.rule.eagle = true;
    same = make(config);
    CHECK(!kvg_layout_equal(one, same));
    kvg_layout_free(same);
    config.rule.eagle = false;
    config.tag = kvi_str("t");
    same = make(config);
    CHECK(!kvg_layout_equal(one, same));
    kvg_layout_free(same);
    config.tag = kvi_str("");
    config.mla = true;
    same = make(config);
    CHECK(!kvg_layout_equal(one, same));
    kvg_layout_free(same);
    kvg_layout_free(one);
}

static void parses(const char *text, const char *prefix, const char *suffix)
{
    struct kvg_object_key object;

    CHECK(kvg_object_key_parse(kvi_str(text), &object));
    CHECK(kvi_str_equal(object.prefix, kvi_str(prefix)));
    CHECK(kvi_str_equal(object.suffix, kvi_str(suffix)));
}

static bool is_foreign(const char *text)
{
    struct kvg_object_key object;

    return !kvg_object_key_parse(kvi_str(text), &object);
}

TEST(object_keys_are_taken_apart_from_the_right)
{
    parses(HEX "_0_k", "", "_0_k");
    parses(HEX "__k", "", "__k");
    parses(HEX "_k", "", "_k");
    parses("tag_" HEX "_12_3_v", "tag", "_12_3_v");
    parses("tagA_acme_ai-DeepSeek_R1-0528_" HEX "_0_k", "tagA_acme_ai-DeepSeek_R1-0528",
        "_0_k");
    parses("__" HEX "_0_k", "_", "_0_k");
    parses(HEX "_" HEX "_0_k", HEX, "_0_k");
    parses(HEX "__deepseek_v4_c4_indexer_state", "", "__deepseek_v4_c4_indexer_state");
    parses("a_" HEX "_0_temporal", "a", "_0_temporal");
}

TEST(foreign_object_keys_are_told_apart)
{
    CHECK(is_foreign(""));
    CHECK(is_foreign("k1"));
    CHECK(is_foreign("12345"));
    CHECK(is_foreign(HEX));
    CHECK(is_foreign(HEX "_"));
    CHECK(is_foreign("_" HEX "_0_k"));
    CHECK(is_foreign("x" HEX "_0_k"));
    CHECK(is_foreign(HEX "x_0_k"));
    CHECK(is_foreign(HEX "0_k")); /* 65 digits. */
    CHECK(is_foreign("sglang_mooncake_store_warmup_key0123456789abcdef0123456789abcdef"));
    CHECK(is_foreign("p@m@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@" HEX));
    CHECK(is_foreign(
        "CF97ADEEDB59E05BFD73A2B4C2A8885708C4F4F70C84C64B27120E72AB733B72_0_k"));
}

TEST(object_keys_over_the_limits_are_foreign)
{
    char text[400];
    struct kvg_object_key object;
    size_t prefix;

    memset(text, 'p', sizeof(text));
    for (prefix = 254; prefix <= 256; prefix++) {
        text[prefix - 1] = 'p';
        text[prefix] = '_';
        memcpy(text + prefix + 1, HEX "_0_k", 64 + 4);
        CHECK_EQ(kvg_object_key_parse((struct kvg_str){text, prefix + 69}, &object),
            prefix <= KVG_LAYOUT_PREFIX_BYTES_MAX);
    }
    memcpy(text, HEX "_", 65);
    memset(text + 65, 's', 100);
    CHECK(kvg_object_key_parse((struct kvg_str){text, 64 + 63}, &object));
    CHECK_EQ(object.suffix.bytes, 63);
    CHECK(!kvg_object_key_parse((struct kvg_str){text, 64 + 64}, &object));
}

TEST(every_byte_that_is_no_lower_case_digit_makes_a_key_foreign)
{
    int byte;
    size_t place;

    for (byte = 0; byte < 256; byte++)
        for (place = 0; place < 64; place++) {
            char text[] = HEX "_0_k";
            bool digit = (byte >= '0' && byte <= '9') || (byte >= 'a' && byte <= 'f');
            struct kvg_object_key object;
            struct kvg_key expected;

            text[place] = (char)byte;
            CHECK_EQ(kvg_object_key_parse(kvi_str(text), &object) ||
                         (byte == 0 && !digit &&
                             kvg_object_key_parse((struct kvg_str){text, 68}, &object)),
                digit);
            if (digit) {
                CHECK(kvg_key_from_hex((struct kvg_str){text, 64}, &expected));
                CHECK_MEM(&object.key, &expected, sizeof(expected));
            }
        }
}

TEST(names_are_numbered_by_first_sight_and_limited)
{
    struct fault_alloc fault;
    struct kvi_names names;
    uint32_t number;
    char text[8];
    uint32_t i;

    fault_alloc_init(&fault);
    kvi_names_init(&names, &fault.alloc, 100, 42);
    CHECK_EQ(kvi_names_find(&names, kvi_str("n0")), -1);
    for (i = 0; i < 100; i++) {
        snprintf(text, sizeof(text), "n%u", (unsigned)i);
        CHECK_EQ(kvi_names_add(&names, kvi_str(text), &number), KVG_OK);
        CHECK_EQ(number, i);
    }
    CHECK_EQ(kvi_names_add(&names, kvi_str("n7"), &number), KVG_OK);
    CHECK_EQ(number, 7);
    CHECK_EQ(kvi_names_add(&names, kvi_str("more"), &number), KVG_ELIMIT);
    CHECK_EQ(kvi_names_find(&names, kvi_str("n99")), 99);
    CHECK(kvi_str_equal(kvi_names_get(&names, 99), kvi_str("n99")));
    CHECK_EQ(kvi_names_memory(&names), fault.live_bytes);
    kvi_names_fini(&names);
    CHECK_EQ(fault.live_bytes, 0);
}

static bool make_without_memory(const struct kvg_alloc *alloc, void *context)
{
    struct kvg_layout_config config = plain();
    struct kvg_layout *layout;
    struct kvg_error error;
    kvg_err err;

    (void)context;
    config.tp_size = 8;
    err = kvg_layout_new(alloc, &config, &error, &layout);
    CHECK(err == KVG_OK || err == KVG_ENOMEM);
    CHECK_EQ(err == KVG_OK, layout != NULL);
    kvg_layout_free(layout);
    return err == KVG_OK;
}

TEST(a_layout_without_memory_leaves_nothing_behind)
{
    CHECK(for_each_oom(make_without_memory, NULL) > 4);
}

TEST_MAIN(RUN(object_keys_of_a_plain_layout),
    RUN(object_keys_with_ranks_and_stages_are_in_the_order_of_the_seed),
    RUN(object_keys_of_mla_have_a_double_underscore_without_stages),
    RUN(split_heads_count_to_the_common_multiple),
    RUN(the_common_multiple_matters_with_split_heads_only_and_never_shrinks),
    RUN(tag_and_model_are_joined_in_object_keys_and_group_ids),
    RUN(an_advertised_prefix_replaces_the_tag_in_object_keys_only),
    RUN(pools_replace_the_k_and_v_parts), RUN(every_dimension_has_its_limit),
    RUN(prefixes_have_a_limit), RUN(pools_that_cannot_be_are_refused_by_field),
    RUN(layouts_are_equal_when_they_name_the_same_parts),
    RUN(object_keys_are_taken_apart_from_the_right),
    RUN(foreign_object_keys_are_told_apart), RUN(object_keys_over_the_limits_are_foreign),
    RUN(every_byte_that_is_no_lower_case_digit_makes_a_key_foreign),
    RUN(names_are_numbered_by_first_sight_and_limited),
    RUN(a_layout_without_memory_leaves_nothing_behind))
