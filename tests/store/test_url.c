/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* test_url.c -- URLs of stores: taken apart, shown without secrets, refused with a reason; and the
 * catalog against a plain model. */
#include "test.h"

#include "fault_alloc.h"
#include "store/catalog.h"
#include "store/kit.h"

static struct kvg_store_url *parse(const char *text)
{
    struct kvg_store_url *url = NULL;
    struct kvg_error error = {0};

    if (kvg_store_url_parse(kvg_alloc_default(), str_of(text), &url, &error) != KVG_OK)
        fail_msg("%s: %s", text, error.message);
    return url;
}

static void drop(struct kvg_store_url *url)
{
    kvg_store_url_free(kvg_alloc_default(), url);
}

TEST(a_url_is_taken_apart_and_decoded)
{
    struct kvg_store_url *url =
        parse("redis://me:p%40ss@a:1,b:2/3%20x?timeout=250ms&x=a%26b&empty&x=c");

    CHECK_STR(url->scheme.data, "redis");
    CHECK_STR(url->user.data, "me");
    CHECK_STR(url->password.data, "p@ss");
    CHECK_STR(url->authority.data, "a:1,b:2");
    CHECK_STR(url->path.data, "/3 x");
    CHECK_EQ(url->param_count, 4);
    CHECK_STR(kvg_store_param(url, "x").data, "c");
    CHECK_STR(kvg_store_param(url, "empty").data, "");
    CHECK(kvg_store_param(url, "none").data == NULL);
    CHECK_STR(
        url->masked.data, "redis://me:***@a:1,b:2/3%20x?timeout=250ms&x=a%26b&empty&x=c");
    drop(url);
    url = parse("file:rel/dir");
    CHECK_STR(url->path.data, "rel/dir");
    CHECK(url->authority.data == NULL);
    drop(url);
    url = parse("file:///abs");
    CHECK_STR(url->path.data, "/abs");
    CHECK_EQ(url->authority.bytes, 0);
    drop(url);
}

TEST(a_wrapper_keeps_its_parameters_and_hands_on_the_others)
{
    struct kvg_store_url *url =
        parse("fault+file:/x?bytes=1GiB&fault.seed=7&sync=none&fault.fail=put:3");

    CHECK_STR(url->scheme.data, "fault");
    CHECK_STR(url->inner.data, "file:/x?bytes=1GiB&sync=none");
    CHECK_EQ(url->inner.bytes, strlen(url->inner.data));
    CHECK_EQ(url->param_count, 2);
    CHECK_STR(kvg_store_param(url, "fault.seed").data, "7");
    drop(url);
    url = parse("fault+fault+memory:");
    CHECK_STR(url->inner.data, "fault+memory:");
    drop(url);
}

TEST(secrets_are_masked_whatever_else_is_wrong)
{
    static const struct {
        const char *text;
        const char *shown;
    } CASES[] = {
        {"redis://:hunter2@h", "redis://:***@h"},
        {"redis://hunter2@h", "redis://***@h"},
        {"redis://u:hun/ter2@h/0", "redis://u:***@h/0"},
        {"redis://u:hun@ter2@h", "redis://u:***@h"},
        {"x:?password=hunter2&a=b", "x:?password=***&a=b"},
        {"x:?Auth_Token=hunter2", "x:?Auth_Token=***"},
        {"x:?pass%77ord=hunter2", "x:?pass%77ord=***"},
        {"x:?password_file=/etc/x", "x:?password_file=/etc/x"},
        {"x:?auth_env=NAME", "x:?auth_env=NAME"},
        {"x:?api_key=hunter2", "x:?api_key=***"},
        {"not a url://u:hunter2@h", "not a url://u:***@h"},
        {"memory:", "memory:"},
    };
    char out[256];
    size_t i;

    for (i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        CHECK_STR(
            kvg_store_url_mask(str_of(CASES[i].text), out, sizeof(out)), CASES[i].shown);
        CHECK(strstr(out, "hunter2") == NULL);
    }
    CHECK_STR(kvg_store_url_mask(str_of("memory:abc"), out, 7), "memory");
}

TEST(what_cannot_be_opened_says_why)
{
    static const struct {
        const char *url;
        const char *says;
    } CASES[] = {
        {"", "scheme"},
        {"nothing", "scheme"},
        {"swim:pool", "memory:"},
        {"memory:?swim=1", "has no such parameter"},
        {"memory:?bytes=many", "64KiB"},
        {"memory:?bytes=0", "allowed"},
        {"memory:name", "no name"},
        {"memory:?bytes=%zz", "hex"},
        {"memory:?bytes=%00", "hex"},
        {"memory+memory:", "there is no store"},
        {"file:", "store.url.path"},
        {"file://host/x", "no host"},
        {"file:/nonexistent/dir/x", "No such file"},
        {"file:/proc/x", "making"},
        {"file:/x?sync=maybe", "none|batch|each"},
    };
    struct kvg_store *store;
    size_t i;

    for (i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        struct kvg_error error = {0};

        CHECK(kvg_store_open(CASES[i].url, NULL, &store, &error) != KVG_OK);
        CHECK(store == NULL);
        if (strstr(error.message, CASES[i].says) == NULL)
            fail_msg("%s: %s: %s", CASES[i].url, error.field, error.message);
    }
}

/* ---- Memory that runs out ------------------------------------------------------------------ */

static bool oom_scenario(const struct kvg_alloc *alloc, void *context)
{
    struct kvg_store_options options = {.struct_bytes = sizeof(options),
        .alloc = alloc,
        .registry = kvg_store_builtin(),
        .seed = 1};
    struct kvg_store *store;
    kvg_err err = kvg_store_open_with(str_of(context), &options, &store, NULL);
    bool completed = err == KVG_OK;
    int i;

    CHECK(err == KVG_OK || err == KVG_ENOMEM);
    for (i = 0; err == KVG_OK && i < 5; i++) {
        char name[KIT_KEY_BYTES];
        kvg_err put;
        int state;

        snprintf(name, sizeof(name), "p%d", i);
        put = kit_put(store, name, 3, 400, i == 0 ? NULL : "p0");
        CHECK(put == KVG_OK || put == KVG_ENOMEM);
        state = kit_page_state(store, name, 3);
        CHECK_EQ(state, put == KVG_OK ? 1 : 0);
        completed = completed && put == KVG_OK;
    }
    if (err == KVG_OK)
        kvg_store_close(store);
    return completed;
}

TEST(a_put_without_memory_leaves_nothing_behind)
{
    static char url[] = "memory:?bytes=3000";

    CHECK(for_each_oom(oom_scenario, url) > 20);
}

/* ---- The catalog --------------------------------------------------------------------------- */

#define MODEL_GROUPS 40

struct model_group {
    bool alive;
    int parent;
    uint64_t tick;
};

static bool has_child(const struct model_group *groups, int at)
{
    int i;

    for (i = 0; i < MODEL_GROUPS; i++) {
        if (groups[i].alive && groups[i].parent == at)
            return true;
    }
    return false;
}

/* The coldest without a child, as the words say it. */
static int model_coldest(const struct model_group *groups)
{
    int coldest = -1;
    int i;

    for (i = 0; i < MODEL_GROUPS; i++) {
        if (groups[i].alive && !has_child(groups, i) &&
            (coldest < 0 || groups[i].tick < groups[coldest].tick))
            coldest = i;
    }
    return coldest;
}

static struct kvg_str group_key(int group, char text[16])
{
    snprintf(text, 16, "g%d", group);
    return str_of(text);
}

static void model_remove(struct model_group *groups, int at)
{
    int i;

    groups[at].alive = false;
    for (i = 0; i < MODEL_GROUPS; i++) {
        if (groups[i].parent == at)
            groups[i].parent = -1;
    }
}

static void catalog_step(
    struct kvi_catalog *catalog, struct model_group *groups, struct kvi_rng *rng)
{
    int at = (int)kvi_rng_below(rng, MODEL_GROUPS);
    int parent = (int)kvi_rng_below(rng, MODEL_GROUPS);
    char text[16];
    uint32_t part = kvi_catalog_find(catalog, group_key(at, text));
    uint64_t what = kvi_rng_below(rng, 10);

    CHECK_EQ(part != KVI_NONE, groups[at].alive);
    if (part == KVI_NONE && what < 6) {
        uint32_t previous = kvi_catalog_find(catalog, group_key(parent, text));
        uint32_t group;

        groups[at] = (struct model_group){
            true, previous == KVI_NONE ? -1 : parent, kvi_catalog_ticks(catalog, 1)};
        group = kvi_catalog_add_group(
            catalog, (struct kvg_str){NULL, 0}, previous, groups[at].tick);
        CHECK(kvi_catalog_add_part(catalog, group, group_key(at, text), 10, 0, 0) !=
              KVI_NONE);
    } else if (part != KVI_NONE && what < 7) {
        groups[at].tick = kvi_catalog_ticks(catalog, 1);
        kvi_catalog_touch(catalog, catalog->parts[part].group, groups[at].tick);
    } else if (part != KVI_NONE && what < 8) {
        kvi_catalog_remove_part(catalog, part);
        model_remove(groups, at);
    } else if (what == 9) {
        uint32_t coldest = kvi_catalog_coldest(catalog);
        int expected = model_coldest(groups);

        CHECK_EQ(coldest == KVI_NONE, expected < 0);
        if (expected < 0)
            return;
        part = catalog->groups[coldest].first_part;
        CHECK_STR(catalog->parts[part].key, group_key(expected, text).data);
        kvi_catalog_remove_part(catalog, part);
        model_remove(groups, expected);
    }
}

TEST(the_catalog_lets_go_in_the_order_of_a_plain_model)
{
    uint64_t seed;

    for (seed = 1; seed <= 40; seed++) {
        struct kvi_catalog catalog;
        struct model_group groups[MODEL_GROUPS] = {{false, -1, 0}};
        struct kvi_rng rng = {seed};
        int i;

        CHECK(kvi_catalog_init(&catalog, kvg_alloc_default(), seed));
        for (i = 0; i < 400; i++) {
            catalog_step(&catalog, groups, &rng);
            if (kvi_catalog_check(&catalog) != 0)
                fail_msg(
                    "seed %d step %d: C%u", (int)seed, i, kvi_catalog_check(&catalog));
        }
        kvi_catalog_fini(&catalog);
    }
}

TEST(the_catalogs_check_sees_a_planted_mistake)
{
    struct kvi_catalog catalog;
    uint32_t group;
    uint32_t part;

    CHECK(kvi_catalog_init(&catalog, kvg_alloc_default(), 1));
    group = kvi_catalog_add_group(&catalog, str_of("id"), KVI_NONE, 1);
    part = kvi_catalog_add_part(&catalog, group, str_of("key"), 10, 0, 0);
    CHECK_EQ(kvi_catalog_check(&catalog), 0);
    catalog.bytes++;
    CHECK_EQ(kvi_catalog_check(&catalog), 5);
    catalog.bytes--;
    catalog.parts[part].key[0] = 'x';
    CHECK_EQ(kvi_catalog_check(&catalog), 1);
    catalog.parts[part].key[0] = 'k';
    catalog.groups[group].part_count = 2;
    CHECK_EQ(kvi_catalog_check(&catalog), 2);
    catalog.groups[group].part_count = 1;
    catalog.heap[0].tick = 99;
    CHECK_EQ(kvi_catalog_check(&catalog), 4);
    catalog.heap[0].tick = 1;
    catalog.groups[group].child_count = 1;
    CHECK_EQ(kvi_catalog_check(&catalog), 6);
    catalog.groups[group].child_count = 0;
    CHECK_EQ(kvi_catalog_check(&catalog), 0);
    kvi_catalog_fini(&catalog);
}

TEST_MAIN(RUN(a_url_is_taken_apart_and_decoded),
    RUN(a_wrapper_keeps_its_parameters_and_hands_on_the_others),
    RUN(secrets_are_masked_whatever_else_is_wrong), RUN(what_cannot_be_opened_says_why),
    RUN(a_put_without_memory_leaves_nothing_behind),
    RUN(the_catalog_lets_go_in_the_order_of_a_plain_model),
    RUN(the_catalogs_check_sees_a_planted_mistake))
