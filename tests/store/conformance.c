/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* conformance.c -- the suite: one thread (conformance.h).  Threads and processes are in
 * conformance_many.c, eviction in conformance_evict.c. */
#include "store/conformance_internal.h"

#include "fault_alloc.h"

const struct conformance_backend *conformance_now;
char conformance_url[CONFORMANCE_URL_BYTES];

struct kvg_store *conformance_open_with(const struct kvg_store_options *options)
{
    struct kvg_store_options all = {.struct_bytes = sizeof(all)};
    struct kvg_store *store = NULL;
    struct kvg_error error = {0};

    if (options != NULL)
        all = *options;
    all.registry = conformance_now->registry;
    if (kvg_store_open(conformance_url, &all, &store, &error) != KVG_OK)
        fail_msg("%s: %s: %s", conformance_url, error.field, error.message);
    return store;
}

struct kvg_store *conformance_open(uint64_t bytes_max)
{
    if (!conformance_now->make(conformance_now->context, bytes_max, conformance_url)) {
        print_message("skipped: %s has no place for it\n", conformance_now->name);
        return NULL;
    }
    return conformance_open_with(NULL);
}

void conformance_close(struct kvg_store *store)
{
    kvg_store_close(store);
    conformance_now->destroy(conformance_now->context);
}

bool conformance_lacks(struct kvg_store *store, uint32_t flags, const char *what)
{
    if ((kvg_store_flags(store) & flags) == flags)
        return false;
    print_message("skipped: %s does not promise %s\n", conformance_now->name, what);
    conformance_close(store);
    return true;
}

uint64_t conformance_value_max(void)
{
    return conformance_now->value_max == 0 ? KVG_STORE_VALUE_MAX
                                           : conformance_now->value_max;
}

/* ---- Reading what was written -------------------------------------------------------------- */

TEST(a_new_store_is_empty)
{
    struct kvg_store *store = conformance_open(0);

    if (store == NULL)
        return;
    CHECK(!kit_exists(store, "a_0"));
    CHECK_EQ(kit_read(store, str_of("a_0"), 8), KVG_ENOENT);
    conformance_close(store);
}

TEST(what_was_put_is_read_back_bit_for_bit)
{
    static const size_t SIZES[] = {1, 7, 8, 511, 4095, 4096, 4097, 65535, 65536, 65537,
        131072, 200001, 1048576, 1048579, 3000000};
    struct kvg_store *store = conformance_open(0);
    char name[KIT_KEY_BYTES];
    size_t i;

    if (store == NULL)
        return;
    for (i = 0; i < sizeof(SIZES) / sizeof(SIZES[0]); i++) {
        if (SIZES[i] > conformance_value_max())
            continue;
        snprintf(name, sizeof(name), "size%zu", SIZES[i]);
        CHECK_EQ(kit_put(store, name, 2, SIZES[i], NULL), KVG_OK);
        CHECK_EQ(kit_page_state(store, name, 2), 1);
        CHECK_EQ(kit_read_part(store, name, 0, SIZES[i]), KVG_OK);
    }
    for (i = 0; i < sizeof(SIZES) / sizeof(SIZES[0]); i++) {
        snprintf(name, sizeof(name), "size%zu", SIZES[i]);
        if (SIZES[i] <= conformance_value_max())
            CHECK_EQ(kit_read_part(store, name, 1, SIZES[i]), KVG_OK);
    }
    conformance_close(store);
}

TEST(a_value_of_the_largest_size_fits)
{
    struct kvg_store *store = conformance_open(0);

    if (store == NULL)
        return;
    CHECK_EQ(kit_put(store, "largest", 1, conformance_value_max(), NULL), KVG_OK);
    CHECK_EQ(kit_read_part(store, "largest", 0, conformance_value_max()), KVG_OK);
    conformance_close(store);
}

TEST(pieces_are_written_one_after_the_other)
{
    struct kvg_store *store = conformance_open(0);
    uint8_t bytes[1000];
    struct kvg_store_piece pieces[5];
    struct kvg_store_part part = {str_of("pieces"), pieces, 5};
    struct kvg_store_group group = {.parts = &part, .part_count = 1};

    if (store == NULL)
        return;
    value_fill(part.key, 0, bytes, sizeof(bytes));
    pieces[0] = (struct kvg_store_piece){bytes, 1};
    pieces[1] = (struct kvg_store_piece){NULL, 0};
    pieces[2] = (struct kvg_store_piece){bytes + 1, 600};
    pieces[3] = (struct kvg_store_piece){bytes + 601, 398};
    pieces[4] = (struct kvg_store_piece){bytes + 999, 1};
    CHECK_EQ(kvg_store_put(store, &group, 1, NULL), KVG_OK);
    CHECK_EQ(kit_read(store, part.key, 1000), KVG_OK);
    conformance_close(store);
}

TEST(ranges_read_what_they_name_and_no_more)
{
    static const struct {
        uint64_t offset;
        size_t bytes;
    } RANGES[] = {{0, 1}, {299999, 1}, {65530, 12}, {131072, 65536}, {0, 300000},
        {300000, 0}, {7, 0}, {1, 199999}, {70000, 3}, {196607, 2}};
    enum {
        COUNT = sizeof(RANGES) / sizeof(RANGES[0])
    };
    struct kvg_store *store = conformance_open(0);
    struct kvg_store_range ranges[COUNT];
    uint8_t *memory[COUNT];
    struct kvg_store_get get = {
        .key = str_of("r_0"), .ranges = ranges, .range_count = COUNT};
    size_t i;

    if (store == NULL)
        return;
    CHECK_EQ(kit_put(store, "r", 1, 300000, NULL), KVG_OK);
    for (i = 0; i < COUNT; i++) {
        memory[i] = malloc(RANGES[i].bytes + 2);
        memset(memory[i], 0xa5, RANGES[i].bytes + 2);
        ranges[i] =
            (struct kvg_store_range){RANGES[i].offset, RANGES[i].bytes, memory[i] + 1};
    }
    CHECK_EQ(kvg_store_get(store, &get, 1, NULL), KVG_OK);
    CHECK_EQ(get.value_bytes, 300000);
    for (i = 0; i < COUNT; i++) {
        CHECK(value_good(get.key, RANGES[i].offset, memory[i] + 1, RANGES[i].bytes));
        CHECK_EQ(memory[i][0], 0xa5);
        CHECK_EQ(memory[i][RANGES[i].bytes + 1], 0xa5);
        free(memory[i]);
    }
    get.range_count = 0;
    CHECK_EQ(kvg_store_get(store, &get, 1, NULL), KVG_OK);
    CHECK_EQ(get.value_bytes, 300000);
    conformance_close(store);
}

TEST(a_range_beyond_the_value_fails_alone)
{
    struct kvg_store *store = conformance_open(0);
    uint8_t memory[3][200];
    struct kvg_store_range good = {0, 100, memory[0]};
    struct kvg_store_range beyond = {1, 100, memory[1]};
    struct kvg_store_range far = {UINT64_MAX, 2, memory[2]};
    struct kvg_store_get gets[4] = {
        {.key = str_of("a_0"), .ranges = &beyond, .range_count = 1},
        {.key = str_of("a_0"), .ranges = &good, .range_count = 1},
        {.key = str_of("none"), .ranges = &good, .range_count = 0},
        {.key = str_of("a_0"), .ranges = &far, .range_count = 1}};

    if (store == NULL)
        return;
    CHECK_EQ(kit_put(store, "a", 1, 100, NULL), KVG_OK);
    CHECK_EQ(kvg_store_get(store, gets, 4, NULL), KVG_EINVAL);
    CHECK_EQ(gets[0].result, KVG_EINVAL);
    CHECK_EQ(gets[1].result, KVG_OK);
    CHECK_EQ(gets[2].result, KVG_ENOENT);
    CHECK_EQ(gets[3].result, KVG_EINVAL);
    CHECK(value_good(gets[1].key, 0, memory[0], 100));
    conformance_close(store);
}

TEST(keys_are_bytes)
{
    struct kvg_store *store = conformance_open(0);
    char longest[KVG_STORE_KEY_MAX];
    struct kvg_str keys[] = {{"k", 1}, {"k\0", 2}, {"k\0x", 3}, {"\xff\xfe/..", 5},
        {"../../etc", 9}, {" ", 1}, {longest, KVG_STORE_KEY_MAX},
        {longest, KVG_STORE_KEY_MAX - 1}};
    enum {
        COUNT = sizeof(keys) / sizeof(keys[0])
    };
    uint8_t bytes[64];
    struct kvg_store_piece piece = {bytes, sizeof(bytes)};
    uint8_t present[COUNT];
    size_t i;

    if (store == NULL)
        return;
    memset(longest, 'L', sizeof(longest));
    for (i = 0; i < COUNT; i++) {
        struct kvg_store_part part = {keys[i], &piece, 1};
        struct kvg_store_group group = {.parts = &part, .part_count = 1};

        value_fill(keys[i], 0, bytes, sizeof(bytes));
        CHECK_EQ(kvg_store_put(store, &group, 1, NULL), KVG_OK);
        CHECK_EQ(group.result, KVG_OK);
    }
    CHECK_EQ(kvg_store_exists(store, keys, COUNT, present, NULL, NULL), KVG_OK);
    for (i = 0; i < COUNT; i++) {
        CHECK_EQ(present[i], 1);
        CHECK_EQ(kit_read(store, keys[i], sizeof(bytes)), KVG_OK);
    }
    conformance_close(store);
}

/* ---- Groups -------------------------------------------------------------------------------- */

TEST(a_put_of_what_exists_says_so_and_changes_nothing)
{
    struct kvg_store *store = conformance_open(0);

    if (store == NULL)
        return;
    CHECK_EQ(kit_put(store, "a", 3, 100, NULL), KVG_OK);
    CHECK_EQ(kit_put(store, "a", 3, 100, NULL), KVG_EEXIST);
    CHECK_EQ(kit_put(store, "a", 3, 50, NULL), KVG_EEXIST); /* Not compared. */
    CHECK_EQ(kit_read_part(store, "a", 2, 100), KVG_OK);
    conformance_close(store);
}

TEST(missing_parts_of_a_page_are_added)
{
    struct kvg_store *store = conformance_open(0);
    struct kvg_str middle = str_of("a_1");
    kvg_err result = KVG_EIO;

    if (store == NULL)
        return;
    CHECK_EQ(kit_put(store, "a", 2, 5000, NULL), KVG_OK);
    CHECK_EQ(kit_put(store, "a", 4, 5000, NULL), KVG_OK);
    CHECK_EQ(kit_page_state(store, "a", 4), 1);
    CHECK_EQ(kit_read_part(store, "a", 3, 5000), KVG_OK);
    if ((kvg_store_flags(store) & KVG_STORE_REMOVES) != 0) {
        CHECK_EQ(kvg_store_remove(store, &middle, 1, &result, NULL), KVG_OK);
        CHECK_EQ(kit_page_state(store, "a", 4), -1);
        CHECK_EQ(kit_put(store, "a", 4, 5000, NULL), KVG_OK);
        CHECK_EQ(kit_page_state(store, "a", 4), 1);
    }
    conformance_close(store);
}

TEST(a_key_that_comes_twice_in_a_call_counts_once)
{
    struct kvg_store *store = conformance_open(0);
    struct kit_page page;
    struct kvg_store_group groups[2];
    struct kvg_store_part twice[2];

    if (store == NULL)
        return;
    kit_page_init(&page, "a", 2, 300);
    groups[0] = groups[1] = page.group;
    CHECK_EQ(kvg_store_put(store, groups, 2, NULL), KVG_OK);
    CHECK_EQ(groups[0].result, KVG_OK);
    CHECK_EQ(groups[1].result, KVG_EEXIST);
    kit_page_fini(&page);
    kit_page_init(&page, "b", 1, 300);
    twice[0] = twice[1] = page.parts[0];
    page.group.parts = twice;
    page.group.part_count = 2;
    CHECK_EQ(kvg_store_put(store, &page.group, 1, NULL), KVG_OK);
    CHECK_EQ(kit_read_part(store, "b", 0, 300), KVG_OK);
    kit_page_fini(&page);
    conformance_close(store);
}

/* ---- Asking and removing ------------------------------------------------------------------- */

TEST(exists_tells_the_leading_run_and_each_key)
{
    enum {
        COUNT = 700
    };
    struct kvg_store *store = conformance_open(0);
    static char names[COUNT][KIT_KEY_BYTES];
    static struct kvg_str keys[COUNT];
    static uint8_t present[COUNT];
    size_t leading = 99;
    size_t i;

    if (store == NULL)
        return;
    for (i = 0; i < COUNT; i++) {
        snprintf(names[i], KIT_KEY_BYTES, "run%zu", i);
        if (i != 600 && i != 650)
            CHECK_EQ(kit_put(store, names[i], 1, 16, NULL), KVG_OK);
        snprintf(names[i], KIT_KEY_BYTES, "run%zu_0", i);
        keys[i] = str_of(names[i]);
    }
    CHECK_EQ(kvg_store_exists(store, keys, COUNT, NULL, &leading, NULL), KVG_OK);
    CHECK_EQ(leading, 600);
    CHECK_EQ(kvg_store_exists(store, keys, COUNT, present, &leading, NULL), KVG_OK);
    CHECK_EQ(leading, 600);
    for (i = 0; i < COUNT; i++)
        CHECK_EQ(present[i], i != 600 && i != 650);
    CHECK_EQ(kvg_store_exists(store, keys + 600, 100, NULL, &leading, NULL), KVG_OK);
    CHECK_EQ(leading, 0);
    CHECK_EQ(kvg_store_exists(store, keys, 600, NULL, &leading, NULL), KVG_OK);
    CHECK_EQ(leading, 600);
    CHECK_EQ(kvg_store_exists(store, NULL, 0, NULL, &leading, NULL), KVG_OK);
    CHECK_EQ(leading, 0);
    conformance_close(store);
}

TEST(a_removed_key_is_gone_and_can_come_again)
{
    struct kvg_store *store = conformance_open(0);
    struct kvg_str keys[3] = {str_of("a_0"), str_of("none"), str_of("a_1")};
    kvg_err results[3];

    if (store == NULL || conformance_lacks(store, KVG_STORE_REMOVES, "exact removal"))
        return;
    CHECK_EQ(kit_put(store, "a", 3, 100, NULL), KVG_OK);
    CHECK_EQ(kvg_store_remove(store, keys, 3, results, NULL), KVG_OK);
    CHECK_EQ(results[0], KVG_OK);
    CHECK_EQ(results[1], KVG_ENOENT);
    CHECK_EQ(results[2], KVG_OK);
    CHECK(!kit_exists(store, "a_0"));
    CHECK(kit_exists(store, "a_2"));
    CHECK_EQ(kit_read_part(store, "a", 1, 100), KVG_ENOENT);
    CHECK_EQ(kvg_store_remove(store, keys, 3, NULL, NULL), KVG_OK);
    CHECK_EQ(kit_put(store, "a", 3, 100, NULL), KVG_OK);
    CHECK_EQ(kit_read_part(store, "a", 1, 100), KVG_OK);
    conformance_close(store);
}

TEST(a_cleared_store_is_empty_and_goes_on)
{
    struct kvg_store *store = conformance_open(0);
    kvg_err err;

    if (store == NULL)
        return;
    CHECK_EQ(kit_put(store, "a", 3, 100, NULL), KVG_OK);
    err = kvg_store_clear(store, NULL);
    if (err == KVG_EUNSUPPORTED) {
        print_message("skipped: %s cannot be cleared\n", conformance_now->name);
    } else {
        CHECK_EQ(err, KVG_OK);
        CHECK_EQ(kit_page_state(store, "a", 3), 0);
        CHECK_EQ(kit_put(store, "a", 3, 100, NULL), KVG_OK);
        CHECK_EQ(kit_read_part(store, "a", 0, 100), KVG_OK);
    }
    conformance_close(store);
}

/* ---- Limits -------------------------------------------------------------------------------- */

static kvg_err put_key(struct kvg_store *store, struct kvg_str key, const void *data,
    size_t bytes, struct kvg_error *error)
{
    struct kvg_store_piece piece = {data, bytes};
    struct kvg_store_part parts[2] = {{str_of("neighbour"), &piece, 1}, {key, &piece, 1}};
    struct kvg_store_group group = {.parts = parts, .part_count = 2};
    kvg_err err = kvg_store_put(store, &group, 1, error);

    CHECK_EQ(err, group.result);
    return err;
}

TEST(what_is_beyond_a_limit_is_refused_by_name_and_nothing_is_done)
{
    struct kvg_store *store = conformance_open(0);
    static char text[KVG_STORE_KEY_MAX + 1];
    struct kvg_store_stats stats = {.struct_bytes = sizeof(stats)};
    struct kvg_store_group empty = {.parts = NULL, .part_count = 0};
    struct kvg_error error = {0};
    struct kvg_str key = {text, sizeof(text)};
    uint8_t *large = malloc(KVG_STORE_VALUE_MAX + 1);

    if (store == NULL)
        return;
    memset(text, 'x', sizeof(text));
    CHECK_EQ(put_key(store, key, text, 10, &error), KVG_EINVAL);
    CHECK_STR(error.field, "store.key.bytes");
    CHECK(strstr(error.message, "511") != NULL);
    CHECK_EQ(put_key(store, (struct kvg_str){text, 0}, text, 10, &error), KVG_EINVAL);
    CHECK_EQ(put_key(store, str_of("k"), text, 0, &error), KVG_EINVAL);
    CHECK_STR(error.field, "store.value.bytes");
    CHECK_EQ(put_key(store, str_of("k"), NULL, 5, &error), KVG_EINVAL);
    CHECK_EQ(
        put_key(store, str_of("k"), large, KVG_STORE_VALUE_MAX + 1, &error), KVG_EINVAL);
    CHECK_STR(error.field, "store.value.bytes");
    CHECK_EQ(kvg_store_put(store, &empty, 1, &error), KVG_EINVAL);
    CHECK_STR(error.field, "store.group.parts");
    CHECK_EQ(kvg_store_exists(store, &key, 1, NULL, NULL, &error), KVG_EINVAL);
    CHECK_EQ(kvg_store_exists(store, &key, KVG_STORE_BATCH_MAX + 1, NULL, NULL, &error),
        KVG_EINVAL);
    CHECK_STR(error.field, "store.batch.keys");
    CHECK_EQ(kvg_store_remove(store, &key, 1, NULL, &error), KVG_EINVAL);
    CHECK(!kit_exists(store, "neighbour"));
    CHECK(!kit_exists(store, "k"));
    kvg_store_stats(store, &stats);
    CHECK_EQ(stats.refused, 9);
    free(large);
    conformance_close(store);
}

/* ---- Listing and changes ------------------------------------------------------------------- */

#define MODEL_MAX 4096
struct model {
    char keys[MODEL_MAX][KIT_KEY_BYTES];
    unsigned times[MODEL_MAX];
    size_t count;
};

static struct model MODEL;

static size_t model_find(struct kvg_str key)
{
    size_t i;

    for (i = 0; i < MODEL.count; i++) {
        if (strlen(MODEL.keys[i]) == key.bytes &&
            memcmp(MODEL.keys[i], key.data, key.bytes) == 0)
            return i;
    }
    return MODEL.count;
}

static bool model_visit(void *context, const struct kvg_store_item *item)
{
    size_t at = model_find(item->key);

    (void)context;
    CHECK(item->struct_bytes >= sizeof(*item));
    CHECK(at < MODEL_MAX && item->key.bytes < KIT_KEY_BYTES);
    if (at == MODEL.count) {
        memcpy(MODEL.keys[at], item->key.data, item->key.bytes);
        MODEL.keys[at][item->key.bytes] = '\0';
        MODEL.times[at] = 0;
        MODEL.count++;
    }
    MODEL.times[at]++;
    return true;
}

TEST(a_listing_has_every_object_once_with_size_and_group)
{
    struct kvg_store *store = conformance_open(0);
    struct kvg_store_cursor cursor = {0};
    char name[KIT_KEY_BYTES];
    size_t calls = 0;
    size_t i;

    if (store == NULL || conformance_lacks(store, KVG_STORE_LISTS, "listings"))
        return;
    for (i = 0; i < 100; i++) {
        snprintf(name, sizeof(name), "page%zu", i);
        CHECK_EQ(kit_put(store, name, 3, 50, NULL), KVG_OK);
    }
    MODEL.count = 0;
    while (!cursor.done && calls++ < 1000)
        CHECK_EQ(kvg_store_list(store, &cursor, 7, model_visit, NULL, NULL), KVG_OK);
    CHECK(cursor.done);
    CHECK_EQ(MODEL.count, 300);
    for (i = 0; i < MODEL.count; i++)
        CHECK_EQ(MODEL.times[i], 1);
    conformance_close(store);
}

TEST(a_listing_misses_nothing_that_stays_while_others_come_and_go)
{
    struct kvg_store *store = conformance_open(0);
    struct kvg_store_cursor cursor = {0};
    char name[KIT_KEY_BYTES];
    struct kvg_str key;
    size_t stayed = 0;
    size_t i;

    if (store == NULL ||
        conformance_lacks(store, KVG_STORE_LISTS | KVG_STORE_REMOVES, "listings"))
        return;
    for (i = 0; i < 300; i++) {
        snprintf(name, sizeof(name), "old%zu", i);
        CHECK_EQ(kit_put(store, name, 1, 50, NULL), KVG_OK);
    }
    MODEL.count = 0;
    for (i = 0; !cursor.done && i < 2000; i++) {
        CHECK_EQ(kvg_store_list(store, &cursor, 10, model_visit, NULL, NULL), KVG_OK);
        snprintf(name, sizeof(name), "old%zu_0", i * 3 % 300);
        key = str_of(name);
        CHECK_EQ(kvg_store_remove(store, &key, 1, NULL, NULL), KVG_OK);
        snprintf(name, sizeof(name), "new%zu", i);
        if (i < 100)
            CHECK_EQ(kit_put(store, name, 1, 50, NULL), KVG_OK);
    }
    CHECK(cursor.done);
    for (i = 0; i < 300; i++) {
        snprintf(name, sizeof(name), "old%zu_0", i);
        if (i % 3 == 0)
            continue;
        stayed++;
        CHECK(model_find(str_of(name)) < MODEL.count);
    }
    CHECK_EQ(stayed, 200);
    conformance_close(store);
}

/* What the hook said, applied to a model. */
struct heard {
    uint64_t epoch;
    uint64_t sequence;
    bool bad;
};

static void hear(void *context, const struct kvg_store_change *change)
{
    struct heard *heard = context;
    size_t at;

    if (change->epoch != heard->epoch)
        heard->sequence = 0;
    heard->bad = heard->bad || change->sequence != heard->sequence + 1;
    heard->epoch = change->epoch;
    heard->sequence = change->sequence;
    if (change->kind == KVG_STORE_CLEARED) {
        MODEL.count = 0;
        return;
    }
    at = model_find(change->key);
    if (change->kind == KVG_STORE_STORED) {
        heard->bad = heard->bad || at != MODEL.count;
        memcpy(MODEL.keys[at], change->key.data, change->key.bytes);
        MODEL.keys[at][change->key.bytes] = '\0';
        MODEL.count++;
        return;
    }
    heard->bad = heard->bad || at == MODEL.count;
    if (at < MODEL.count)
        memcpy(MODEL.keys[at], MODEL.keys[--MODEL.count], KIT_KEY_BYTES);
}

static bool count_visit(void *context, const struct kvg_store_item *item)
{
    CHECK(model_find(item->key) < MODEL.count);
    ++*(size_t *)context;
    return true;
}

TEST(the_changes_told_add_up_to_the_listing)
{
    struct heard heard = {0};
    struct kvg_store_options options = {
        .struct_bytes = sizeof(options), .hook = {hear, &heard}};
    struct kvg_store_cursor cursor = {0};
    struct kvg_store *store = conformance_open(0);
    struct kvi_rng rng = {7};
    char name[KIT_KEY_BYTES];
    size_t listed = 0;
    size_t i;

    if (store == NULL ||
        conformance_lacks(store, KVG_STORE_LISTS | KVG_STORE_REMOVES, "listings"))
        return;
    kvg_store_close(store);
    MODEL.count = 0;
    store = conformance_open_with(&options);
    for (i = 0; i < 1500; i++) {
        struct kvg_str key;
        uint64_t what = kvi_rng_below(&rng, 100);

        snprintf(name, sizeof(name), "p%d", (int)kvi_rng_below(&rng, 60));
        if (what < 55) {
            kvg_err err =
                kit_put(store, name, 1 + (size_t)kvi_rng_below(&rng, 4), 20, NULL);

            CHECK(err == KVG_OK || err == KVG_EEXIST);
        } else if (what < 99) {
            snprintf(name + strlen(name), 8, "_%d", (int)kvi_rng_below(&rng, 4));
            key = str_of(name);
            CHECK_EQ(kvg_store_remove(store, &key, 1, NULL, NULL), KVG_OK);
        } else if (i % 2 == 0) {
            CHECK_EQ(kvg_store_clear(store, NULL), KVG_OK);
        }
    }
    CHECK(!heard.bad);
    while (!cursor.done)
        CHECK_EQ(kvg_store_list(store, &cursor, 13, count_visit, &listed, NULL), KVG_OK);
    CHECK_EQ(listed, MODEL.count);
    CHECK_EQ(cursor.sequence, heard.sequence);
    CHECK_EQ(cursor.epoch, heard.epoch);
    conformance_close(store);
}

/* ---- Life ---------------------------------------------------------------------------------- */

TEST(statistics_count_what_was_done)
{
    struct kvg_store *store = conformance_open(0);
    struct kvg_store_stats stats = {.struct_bytes = sizeof(stats)};

    if (store == NULL)
        return;
    CHECK_EQ(kit_put(store, "a", 2, 100, NULL), KVG_OK);
    CHECK_EQ(kit_put(store, "a", 2, 100, NULL), KVG_EEXIST);
    CHECK_EQ(kit_read_part(store, "a", 0, 100), KVG_OK);
    CHECK_EQ(kit_read_part(store, "b", 0, 100), KVG_ENOENT);
    CHECK(kit_exists(store, "a_1"));
    CHECK(!kit_exists(store, "c_1"));
    kvg_store_stats(store, &stats);
    CHECK_EQ(stats.put_groups, 1);
    CHECK_EQ(stats.get_keys, 2);
    CHECK_EQ(stats.get_hits, 1);
    CHECK_EQ(stats.get_bytes, 100);
    CHECK_EQ(stats.get_failed, 0);
    CHECK_EQ(stats.exists_keys, 2);
    CHECK_EQ(stats.exists_hits, 1);
    CHECK_EQ(stats.put_failed, 0);
    conformance_close(store);
}

TEST(a_store_opened_for_reading_writes_nothing)
{
    struct kvg_store_options options = {
        .struct_bytes = sizeof(options), .read_only = true};
    struct kvg_store *store = conformance_open(0);
    struct kvg_str key = str_of("a_0");

    if (store == NULL)
        return;
    CHECK_EQ(kit_put(store, "a", 2, 100, NULL), KVG_OK);
    kvg_store_close(store);
    store = conformance_open_with(&options);
    CHECK_EQ(kit_put(store, "b", 2, 100, NULL), KVG_ESTATE);
    CHECK_EQ(kvg_store_remove(store, &key, 1, NULL, NULL), KVG_ESTATE);
    CHECK_EQ(kvg_store_clear(store, NULL), KVG_ESTATE);
    if ((kvg_store_flags(store) & KVG_STORE_PERSISTENT) != 0)
        CHECK_EQ(kit_read_part(store, "a", 1, 100), KVG_OK);
    conformance_close(store);
}

TEST(what_was_acknowledged_is_there_after_closing_and_opening)
{
    struct kvg_store *store = conformance_open(0);
    char name[KIT_KEY_BYTES];
    size_t i;

    if (store == NULL || conformance_lacks(store, KVG_STORE_PERSISTENT, "persistence"))
        return;
    for (i = 0; i < 200; i++) {
        snprintf(name, sizeof(name), "p%zu", i);
        CHECK_EQ(kit_put(store, name, 2, 1000 + i * 40, NULL), KVG_OK);
    }
    kvg_store_close(store);
    store = conformance_open_with(NULL);
    for (i = 0; i < 200; i++) {
        snprintf(name, sizeof(name), "p%zu", i);
        CHECK_EQ(kit_read_part(store, name, 1, 1000 + i * 40), KVG_OK);
    }
    conformance_close(store);
}

TEST(another_fingerprint_is_refused_naming_both)
{
    struct kvg_store_options options = {.struct_bytes = sizeof(options),
        .fingerprint = {{"\x01\x00\x02", 3}, str_of("llama bf16 page 64 tp 8")}};
    struct kvg_store *store = conformance_open(0);
    struct kvg_store *second = NULL;
    struct kvg_error error = {0};

    if (store == NULL || conformance_lacks(store, KVG_STORE_PERSISTENT, "persistence"))
        return;
    kvg_store_close(store);
    store = conformance_open_with(&options);
    CHECK_EQ(kit_put(store, "a", 1, 100, NULL), KVG_OK);
    kvg_store_close(store);
    options.registry = conformance_now->registry;
    options.fingerprint.bytes.data = "\x01\x00\x03";
    options.fingerprint.text = str_of("llama fp8 page 64 tp 8");
    CHECK_EQ(kvg_store_open(conformance_url, &options, &second, &error), KVG_EMISMATCH);
    CHECK(second == NULL);
    CHECK(strstr(error.message, "llama fp8 page 64 tp 8") != NULL);
    CHECK(strstr(error.message, "llama bf16 page 64 tp 8") != NULL);
    options.fingerprint.bytes.data = "\x01\x00\x02";
    store = conformance_open_with(&options);
    CHECK_EQ(kit_read_part(store, "a", 0, 100), KVG_OK);
    kvg_store_close(store);
    store = conformance_open_with(NULL); /* A tool that does not care. */
    CHECK_EQ(kit_read_part(store, "a", 0, 100), KVG_OK);
    conformance_close(store);
}

TEST(the_store_checks_itself_and_finds_nothing)
{
    struct kvg_store *store = conformance_open(0);
    struct kvg_store_report report = {.struct_bytes = sizeof(report)};
    kvg_err err;

    if (store == NULL)
        return;
    CHECK_EQ(kit_put(store, "a", 2, 70000, NULL), KVG_OK);
    err = kvg_store_check(store, false, NULL, NULL, &report, NULL);
    if (err == KVG_EUNSUPPORTED) {
        print_message("skipped: %s has nothing to check\n", conformance_now->name);
    } else {
        CHECK_EQ(err, KVG_OK);
        CHECK_EQ(report.objects, 2);
        CHECK_EQ(report.damaged, 0);
        CHECK_EQ(report.problems, 0);
    }
    conformance_close(store);
}

/* ---- Without memory ------------------------------------------------------------------------ */

/* It was done, or there was no memory; *met counts the latter. */
static bool is_done(kvg_err err, unsigned *met)
{
    if (err != KVG_OK && err != KVG_EEXIST && err != KVG_ENOENT && err != KVG_ENOMEM)
        fail_msg("%s is neither done nor without memory", kvg_err_name(err));
    *met += err == KVG_ENOMEM;
    return err != KVG_ENOMEM;
}

static bool use_without_memory(const struct kvg_alloc *alloc, void *context)
{
    struct kvg_store_options options = {.struct_bytes = sizeof(options),
        .alloc = alloc,
        .registry = conformance_now->registry};
    struct kvg_str keys[2] = {{"oom_0", 5}, {"oom_1", 5}};
    uint8_t present[2] = {0};
    struct kvg_store *store;
    unsigned met = 0;
    uint32_t i;

    (void)context;
    /* A new place each time: what a store remembers takes allocations too. */
    CHECK(conformance_now->make(conformance_now->context, 0, conformance_url));
    if (!is_done(kvg_store_open(conformance_url, &options, &store, NULL), &met)) {
        conformance_now->destroy(conformance_now->context);
        return false;
    }
    (void)is_done(kit_put(store, "oom", 2, 300, NULL), &met);
    if (is_done(kvg_store_exists(store, keys, 2, present, NULL, NULL), &met))
        CHECK_EQ(present[0], present[1]); /* Both parts, or none. */
    for (i = 0; i < 2 && present[0] != 0; i++)
        (void)is_done(kit_read_part(store, "oom", i, 300), &met);
    (void)is_done(kvg_store_remove(store, keys, 2, NULL, NULL), &met);
    kvg_store_close(store);
    conformance_now->destroy(conformance_now->context);
    return met == 0;
}

TEST(every_allocation_may_fail_once_and_no_half_page_appears)
{
    struct kvg_store *store = conformance_open(0);

    if (store == NULL)
        return;
    conformance_close(store);
    CHECK(for_each_oom(use_without_memory, NULL) > 0);
}

int conformance_run(const struct conformance_backend *backend)
{
    static const struct CMUnitTest TESTS[] = {
        RUN(a_new_store_is_empty),
        RUN(what_was_put_is_read_back_bit_for_bit),
        RUN(a_value_of_the_largest_size_fits),
        RUN(pieces_are_written_one_after_the_other),
        RUN(ranges_read_what_they_name_and_no_more),
        RUN(a_range_beyond_the_value_fails_alone),
        RUN(keys_are_bytes),
        RUN(a_put_of_what_exists_says_so_and_changes_nothing),
        RUN(missing_parts_of_a_page_are_added),
        RUN(a_key_that_comes_twice_in_a_call_counts_once),
        RUN(exists_tells_the_leading_run_and_each_key),
        RUN(a_removed_key_is_gone_and_can_come_again),
        RUN(a_cleared_store_is_empty_and_goes_on),
        RUN(what_is_beyond_a_limit_is_refused_by_name_and_nothing_is_done),
        RUN(a_listing_has_every_object_once_with_size_and_group),
        RUN(a_listing_misses_nothing_that_stays_while_others_come_and_go),
        RUN(the_changes_told_add_up_to_the_listing),
        RUN(statistics_count_what_was_done),
        RUN(a_store_opened_for_reading_writes_nothing),
        RUN(what_was_acknowledged_is_there_after_closing_and_opening),
        RUN(another_fingerprint_is_refused_naming_both),
        RUN(the_store_checks_itself_and_finds_nothing),
        RUN(every_allocation_may_fail_once_and_no_half_page_appears),
    };
    int failed;

    conformance_now = backend;
    failed = cmocka_run_group_tests(TESTS, NULL, NULL);
    failed += conformance_run_evict();
    failed += conformance_run_many();
    return failed;
}
