/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* Unit tests of dump and load: what comes back, and what damage does. */
#include <kvgraft/presence.h>

#include "base/fmt.h"
#include "fault_alloc.h"
#include "presence/index.h"
#include "test.h"

#define DUMP_BYTES_MAX ((size_t)1 << 22)

struct memory_file {
    uint8_t *bytes;
    size_t end;
    size_t at;
    size_t limit; /* Writing stops here. */
    size_t piece; /* Reading gives at most so many bytes at once. */
};

static bool write_memory(void *context, const void *bytes, size_t byte_count)
{
    struct memory_file *file = context;

    if (file->end + byte_count > file->limit)
        return false;
    memcpy(file->bytes + file->end, bytes, byte_count);
    file->end += byte_count;
    return true;
}

static bool read_memory(void *context, void *bytes, size_t byte_max, size_t *got)
{
    struct memory_file *file = context;
    size_t left = file->end - file->at;

    *got = byte_max < left ? byte_max : left;
    if (*got > file->piece)
        *got = file->piece;
    memcpy(bytes, file->bytes + file->at, *got);
    file->at += *got;
    return true;
}

static bool read_failing(void *context, void *bytes, size_t byte_max, size_t *got)
{
    (void)context;
    (void)bytes;
    (void)byte_max;
    (void)got;
    return false;
}

static struct memory_file new_file(void)
{
    return (struct memory_file){
        .bytes = malloc(DUMP_BYTES_MAX), .limit = DUMP_BYTES_MAX, .piece = 1000};
}

static struct kvg_presence *make(const struct kvg_alloc *alloc, bool full_keys)
{
    struct kvg_presence_options options = {
        .struct_bytes = sizeof(options), .seed = full_keys + 10, .full_keys = full_keys};
    struct kvg_presence *index;

    return kvg_presence_new(alloc, &options, NULL, &index) == KVG_OK ? index : NULL;
}

/* Stores object `name` of a made-up page in a tenant. */
static void store(struct kvg_presence *index, const char *tenant, const char *prefix,
    uint64_t page, const char *suffix, enum kvg_medium medium)
{
    struct kvg_key key;
    char hex[KVG_KEY_HEX_BYTES];
    char text[256];

    kvg_sha256(&page, sizeof(page), key.bytes);
    kvg_key_to_hex(&key, hex);
    snprintf(text, sizeof(text), "%s%s%s", prefix, hex, suffix);
    CHECK(kvg_presence_stored(index, kvi_str(tenant), kvi_str(text), medium));
}

static void fill(struct kvg_presence *index, uint64_t pages)
{
    uint64_t page;
    char suffix[16];

    kvg_presence_set_time(index, 5000);
    for (page = 0; page < pages; page++) {
        store(index, "default", "", page, "_0_k", KVG_MEDIUM_CPU);
        store(index, "default", "", page, "_0_v",
            page % 3 == 0 ? KVG_MEDIUM_DISK : KVG_MEDIUM_CPU);
        if (page % 7 == 0)
            store(index, "other", "tag_m_", page, "__k", KVG_MEDIUM_CPU);
        if (page % 11 == 0) {
            snprintf(suffix, sizeof(suffix), "_%u_x", (unsigned)(page % 100));
            store(index, "default", "wide_", page % 13, suffix, KVG_MEDIUM_DISK);
        }
    }
}

/* What an index holds, independent of its order. */
struct sum {
    uint64_t objects;
    uint64_t hash;
};

static void add_object(void *context, struct kvg_str tenant, struct kvg_str object_key,
    enum kvg_medium medium)
{
    struct sum *sum = context;
    uint8_t digest[32];
    char text[700];
    int bytes = snprintf(text, sizeof(text), "%.*s|%.*s|%d", (int)tenant.bytes,
        tenant.data, (int)object_key.bytes, object_key.data, (int)medium);
    uint64_t word;

    kvg_sha256(text, (size_t)bytes, digest);
    memcpy(&word, digest, sizeof(word));
    sum->objects++;
    sum->hash += word;
}

static struct sum sum_of(struct kvg_presence *index)
{
    struct sum sum = {0, 0};
    const char *what = NULL;
    uint64_t count;

    if (kvi_presence_check(index, &what) != 0)
        fail_msg("%s", what);
    count = kvg_presence_each(index, add_object, &sum);
    CHECK_EQ(count, sum.objects);
    return sum;
}

static struct memory_file dump_of(uint64_t pages, bool full_keys)
{
    struct kvg_presence *index = make(kvg_alloc_default(), full_keys);
    struct memory_file file = new_file();

    fill(index, pages);
    CHECK_EQ(kvg_presence_dump(index, write_memory, &file), KVG_OK);
    kvg_presence_free(index);
    return file;
}

static kvg_err load_into(
    struct kvg_presence *index, struct memory_file *file, struct kvg_error *error)
{
    file->at = 0;
    return kvg_presence_load(index, read_memory, file, error);
}

static void check_round_trip(uint64_t pages, bool full_keys)
{
    struct kvg_presence *index = make(kvg_alloc_default(), full_keys);
    struct kvg_presence *copy = make(kvg_alloc_default(), full_keys);
    struct memory_file file = new_file();
    struct kvg_error error;
    struct sum expected;
    struct sum got;

    fill(index, pages);
    CHECK_EQ(kvg_presence_dump(index, write_memory, &file), KVG_OK);
    /* The copy has seen other suffixes first: numbers must be translated. */
    store(copy, "default", "", 1000000, "_9_z", KVG_MEDIUM_CPU);
    store(index, "default", "", 1000000, "_9_z", KVG_MEDIUM_CPU);
    CHECK_EQ(load_into(copy, &file, &error), KVG_OK);
    expected = sum_of(index);
    got = sum_of(copy);
    CHECK_EQ(got.objects, expected.objects);
    CHECK_EQ(got.hash, expected.hash);
    CHECK_EQ(load_into(copy, &file, &error), KVG_OK); /* Again: nothing changes. */
    CHECK_EQ(sum_of(copy).hash, expected.hash);
    free(file.bytes);
    kvg_presence_free(index);
    kvg_presence_free(copy);
}

TEST(what_was_dumped_comes_back)
{
    check_round_trip(0, true);
    check_round_trip(1, true);
    check_round_trip(5000, true);
    check_round_trip(5000, false);
}

TEST(what_is_loaded_is_suspect)
{
    struct memory_file file = dump_of(10, false);
    struct kvg_presence *index = make(kvg_alloc_default(), false);
    int32_t tenant;

    kvg_presence_set_confidence(index, (struct kvg_str){NULL, 0}, KVG_CONFIDENCE_FRESH);
    CHECK_EQ(load_into(index, &file, NULL), KVG_OK);
    tenant = kvi_presence_tenant_find(index, kvi_str("other"));
    CHECK(tenant >= 0);
    CHECK_EQ(atomic_load(&index->tenants[tenant]->confidence), KVG_CONFIDENCE_SUSPECT);
    free(file.bytes);
    kvg_presence_free(index);
}

TEST(ages_come_back_relative_to_now)
{
    struct memory_file file = new_file();
    struct kvg_presence *index = make(kvg_alloc_default(), true);
    struct kvg_presence *copy = make(kvg_alloc_default(), true);
    struct kvi_slot slot = {0};
    struct kvi_space *space;
    uint64_t page = 1;
    struct kvg_key key;
    struct kvi_page wanted;

    kvg_presence_set_time(index, 1000);
    store(index, "default", "", page, "_0_k", KVG_MEDIUM_CPU);
    kvg_presence_set_time(index, 1600);
    CHECK_EQ(kvg_presence_dump(index, write_memory, &file), KVG_OK);
    kvg_presence_set_time(copy, 20000);
    CHECK_EQ(load_into(copy, &file, NULL), KVG_OK);
    space = kvi_presence_space_find(copy, 0, kvi_str(""));
    kvg_sha256(&page, sizeof(page), key.bytes);
    wanted = kvi_make_page(&key, space);
    CHECK(kvi_presence_table_find(copy, &wanted, &slot));
    CHECK_EQ(atomic_load(&slot.bucket->heat[slot.at]) >> HEAT_DEPTH_BITS, 19400);
    free(file.bytes);
    kvg_presence_free(index);
    kvg_presence_free(copy);
}

TEST(a_dump_without_whole_keys_is_refused_where_they_are_kept)
{
    struct memory_file narrow = dump_of(20, false);
    struct memory_file whole = dump_of(20, true);
    struct kvg_presence *index = make(kvg_alloc_default(), true);
    struct kvg_presence *small = make(kvg_alloc_default(), false);
    struct kvg_error error;

    CHECK_EQ(load_into(index, &narrow, &error), KVG_EMISMATCH);
    CHECK_STR(error.field, "dump");
    CHECK_EQ(sum_of(index).objects, 0);
    CHECK_EQ(load_into(small, &whole, &error), KVG_OK);
    CHECK(sum_of(small).objects > 40);
    free(narrow.bytes);
    free(whole.bytes);
    kvg_presence_free(index);
    kvg_presence_free(small);
}

/* Every byte damaged in turn: an error, a sound index, and nothing that was not dumped. */
TEST(every_damaged_byte_is_noticed)
{
    struct memory_file file = dump_of(60, true);
    struct kvg_presence *whole = make(kvg_alloc_default(), true);
    uint64_t all;
    size_t at;

    CHECK_EQ(load_into(whole, &file, NULL), KVG_OK);
    all = sum_of(whole).objects;
    for (at = 0; at < file.end; at += at < 200 ? 1 : 7) {
        struct kvg_presence *index = make(kvg_alloc_default(), true);
        struct kvg_error error = {.message = ""};
        kvg_err err;

        file.bytes[at] ^= 0x10;
        err = load_into(index, &file, &error);
        file.bytes[at] ^= 0x10;
        CHECK(err == KVG_ECHECKSUM || err == KVG_EFORMAT || err == KVG_EVERSION);
        CHECK_EQ(error.code, err);
        CHECK(sum_of(index).objects <= all);
        CHECK_EQ(load_into(index, &file, &error), KVG_OK);
        CHECK_EQ(sum_of(index).hash, sum_of(whole).hash);
        kvg_presence_free(index);
    }
    free(file.bytes);
    kvg_presence_free(whole);
}

TEST(a_dump_that_ends_early_is_taken_in_as_far_as_it_goes)
{
    struct memory_file file = dump_of(1000, true);
    size_t end = file.end;
    uint64_t before = 0;
    size_t at;

    for (at = 0; at < end; at += at < 300 ? 1 : 997) {
        struct kvg_presence *index = make(kvg_alloc_default(), true);
        struct kvg_error error;
        uint64_t objects;

        file.end = at;
        CHECK_EQ(load_into(index, &file, &error), KVG_EFORMAT);
        objects = sum_of(index).objects;
        CHECK(objects >= before);
        before = objects;
        kvg_presence_free(index);
    }
    CHECK(before > 500);
    free(file.bytes);
}

TEST(blocks_cannot_be_left_out)
{
    struct memory_file file = dump_of(1000, true);
    struct kvg_presence *index = make(kvg_alloc_default(), true);
    size_t first = 32; /* The first block. */
    uint32_t bytes;

    memcpy(&bytes, file.bytes + first + 4, sizeof(bytes));
    memmove(file.bytes + first, file.bytes + first + 8 + bytes + 8,
        file.end - first - 16 - bytes);
    file.end -= 16 + bytes;
    CHECK_EQ(load_into(index, &file, NULL), KVG_ECHECKSUM);
    CHECK_EQ(sum_of(index).objects, 0);
    free(file.bytes);
    kvg_presence_free(index);
}

TEST(failing_callbacks_are_told)
{
    struct kvg_presence *index = make(kvg_alloc_default(), true);
    struct memory_file file = new_file();
    struct kvg_error error;

    fill(index, 100);
    file.limit = 1000;
    CHECK_EQ(kvg_presence_dump(index, write_memory, &file), KVG_EIO);
    CHECK_EQ(kvg_presence_load(index, read_failing, NULL, &error), KVG_EIO);
    free(file.bytes);
    kvg_presence_free(index);
}

static bool load_without_memory(const struct kvg_alloc *alloc, void *context)
{
    struct memory_file *file = context;
    const struct fault_alloc *fault = alloc->context;
    struct kvg_presence *index = make(alloc, true);
    kvg_err err = KVG_ENOMEM;

    if (index != NULL) {
        err = load_into(index, file, NULL);
        CHECK(err == KVG_OK || err == KVG_ENOMEM);
        (void)sum_of(index);
        CHECK(err == KVG_OK || fault->failed > 0);
    }
    kvg_presence_free(index);
    return fault->failed == 0 && err == KVG_OK;
}

TEST(loading_without_memory_leaves_a_sound_index)
{
    struct memory_file file = dump_of(60, true);

    CHECK(for_each_oom(load_without_memory, &file) > 10);
    free(file.bytes);
}

/* Every `step`th page from `first` on; with `wide`, with a part beyond those that fit into a
 * slot. */
static void fill_many(
    struct kvg_presence *index, uint32_t first, uint32_t pages, uint32_t step, bool wide)
{
    uint32_t page;

    for (page = 0; wide && first == 0 && page < 20; page++) {
        char suffix[16];

        snprintf(suffix, sizeof(suffix), "_%u_k", (unsigned)page);
        store(index, "default", "", 0, suffix, KVG_MEDIUM_CPU);
    }
    for (page = first; page < pages; page += step) {
        store(index, "default", "", page, "_0_k", KVG_MEDIUM_CPU);
        if (wide)
            store(index, "default", "", page, "_19_k", KVG_MEDIUM_CPU);
    }
}

static struct kvg_presence *make_limited(
    const struct kvg_alloc *alloc, uint64_t seed, size_t memory_bytes_max)
{
    struct kvg_presence_options options = {.struct_bytes = sizeof(options),
        .seed = seed,
        .memory_bytes_max = memory_bytes_max};
    struct kvg_presence *index;

    CHECK_EQ(kvg_presence_new(alloc, &options, NULL, &index), KVG_OK);
    return index;
}

static struct kvg_presence_stats stats_of(const struct kvg_presence *index)
{
    struct kvg_presence_stats stats;

    kvg_presence_stats(index, &stats);
    return stats;
}

TEST(a_loaded_index_is_as_small_as_the_dumped_one)
{
    struct kvg_presence *index = make_limited(kvg_alloc_default(), 10, 0);
    struct memory_file file = new_file();
    double before;
    uint64_t seed;

    fill_many(index, 0, 60000, 1, false);
    CHECK_EQ(kvg_presence_dump(index, write_memory, &file), KVG_OK);
    before = (double)stats_of(index).memory_bytes;
    for (seed = 10; seed <= 11;
         seed++) { /* In the table's own order, and in any order. */
        struct kvg_presence *copy = make_limited(kvg_alloc_default(), seed, 0);

        CHECK_EQ(load_into(copy, &file, NULL), KVG_OK);
        CHECK_EQ(sum_of(copy).hash, sum_of(index).hash);
        CHECK((double)stats_of(copy).memory_bytes < before * 1.1);
        CHECK_EQ(stats_of(copy).refused_memory, 0);
        kvg_presence_free(copy);
    }
    free(file.bytes);
    kvg_presence_free(index);
}

static uint64_t count_found(struct kvg_presence *index, uint32_t pages, uint32_t step)
{
    struct kvi_space *space = kvi_presence_space_find(index, 0, kvi_str(""));
    uint64_t found = 0;
    uint64_t page;

    for (page = 0; page < pages; page += step) {
        struct kvi_slot slot;
        struct kvg_key key;
        struct kvi_page wanted;

        kvg_sha256(&page, sizeof(page), key.bytes);
        wanted = kvi_make_page(&key, space);
        found += kvi_presence_table_find(index, &wanted, &slot);
    }
    return found;
}

static void check_limited(uint32_t pages, bool wide, uint64_t seed, size_t bytes_max)
{
    struct fault_alloc fault;
    struct kvg_presence *index = make_limited(kvg_alloc_default(), 10, 0);
    struct kvg_presence *small;
    struct memory_file file = new_file();
    struct kvg_presence_stats stats;
    uint64_t hot = (pages + 3) / 4;

    kvg_presence_set_time(index, 1000);
    fill_many(index, 0, pages, 1, wide);
    kvg_presence_cleared(index, kvi_str("default"));
    fill_many(index, 1, pages, 4, wide);
    fill_many(index, 2, pages, 4, wide);
    fill_many(index, 3, pages, 4, wide);
    kvg_presence_set_time(index, 5000);
    fill_many(index, 0, pages, 4, wide);
    CHECK_EQ(kvg_presence_dump(index, write_memory, &file), KVG_OK);
    CHECK(stats_of(index).memory_bytes > bytes_max + bytes_max / 4);

    fault_alloc_init(&fault);
    small = make_limited(&fault.alloc, seed, bytes_max);
    kvg_presence_set_time(small, 5000);
    CHECK_EQ(load_into(small, &file, NULL), KVG_OK);
    (void)sum_of(small);
    stats = stats_of(small);
    CHECK(fault.peak_bytes <= bytes_max);
    CHECK_EQ(stats.refused_memory, 0);
    CHECK_EQ(stats.pages + stats.evicted_pages, pages);
    CHECK_EQ(count_found(small, pages, 4), hot);
    CHECK(stats.pages > hot * 3 / 2); /* Room is used: */
    CHECK((double)stats.memory_bytes > 0.8 * (double)bytes_max);
    CHECK(stats.partial);
    free(file.bytes);
    kvg_presence_free(small);
    kvg_presence_free(index);
    CHECK_EQ(fault.live_bytes, 0);
}

TEST(of_a_dump_larger_than_the_limit_the_coldest_pages_are_left_out)
{
    check_limited(60000, false, 10, (size_t)3 << 19);
    check_limited(60000, false, 11, (size_t)3 << 19);
    check_limited(40000, true, 10, (size_t)2 << 20);
    check_limited(40000, true, 11, (size_t)2 << 20);
}

/* Gives the dump's header another number of pages, and all blocks their checksums again. */
static void announce(struct memory_file *file, uint64_t pages)
{
    uint64_t checksum = 0;
    size_t at = 0;
    size_t bytes = 24;

    memcpy(file->bytes + 16, &pages, sizeof(pages));
    while (at < file->end) {
        uint8_t piece[8 + 8 + 4096];
        uint8_t digest[32];
        uint32_t payload = 0;

        memcpy(piece, &checksum, sizeof(checksum));
        memcpy(piece + 8, file->bytes + at, bytes);
        kvg_sha256(piece, 8 + bytes, digest);
        memcpy(file->bytes + at + bytes, digest, sizeof(checksum));
        memcpy(&checksum, digest, sizeof(checksum));
        at += bytes + 8;
        if (at < file->end)
            memcpy(&payload, file->bytes + at + 4, sizeof(payload));
        bytes = 8 + payload;
    }
}

TEST(the_announced_number_of_pages_is_only_a_hint)
{
    static const uint64_t HINTS[] = {0, 1, 1000000, UINT64_MAX / 2, UINT64_MAX};
    struct memory_file file = dump_of(3000, false);
    struct kvg_presence *whole = make_limited(kvg_alloc_default(), 12, 0);
    size_t limit = (size_t)4 << 20;
    uint64_t objects;
    size_t i;

    CHECK_EQ(load_into(whole, &file, NULL), KVG_OK);
    objects = sum_of(whole).objects;
    kvg_presence_free(whole);
    for (i = 0; i < sizeof(HINTS) / sizeof(HINTS[0]); i++) {
        struct kvg_presence *index = make_limited(kvg_alloc_default(), 12, limit);

        announce(&file, HINTS[i]);
        CHECK_EQ(load_into(index, &file, NULL), KVG_OK);
        CHECK_EQ(sum_of(index).objects, objects);
        CHECK(stats_of(index).memory_bytes <= limit);
        CHECK_EQ(stats_of(index).refused_memory, 0);
        kvg_presence_free(index);
    }
    free(file.bytes);
}

TEST(a_dump_does_not_bring_back_what_an_event_removed_during_a_listing)
{
    struct kvg_presence *index = make(kvg_alloc_default(), true);
    struct kvg_presence *copy = make(kvg_alloc_default(), true);
    struct memory_file file = new_file();
    struct kvg_presence_listing_result result;
    char hex[KVG_KEY_HEX_BYTES];
    char text[100];
    struct kvg_key key;
    uint64_t page = 1;
    unsigned wide;

    for (wide = 0; wide < 20; wide++) {
        snprintf(text, sizeof(text), "_%u_k", wide);
        store(index, "default", "", wide % 2, text, KVG_MEDIUM_CPU);
    }
    CHECK_EQ(kvg_presence_dump(index, write_memory, &file), KVG_OK);
    CHECK_EQ(kvg_presence_listing_begin(copy, kvi_str("default")), KVG_OK);
    for (page = 0; page < 2; page++) {
        kvg_sha256(&page, sizeof(page), key.bytes);
        kvg_key_to_hex(&key, hex);
        snprintf(text, sizeof(text), "%s_%u_k", hex, (unsigned)(page == 0 ? 2 : 19));
        CHECK(kvg_presence_removed(
            copy, kvi_str("default"), kvi_str(text), KVG_MEDIUM_UNKNOWN));
    }
    CHECK_EQ(load_into(copy, &file, NULL), KVG_OK);
    CHECK_EQ(sum_of(copy).objects, 18);
    CHECK_EQ(load_into(copy, &file, NULL), KVG_OK);
    CHECK_EQ(sum_of(copy).objects, 18);
    while (!kvg_presence_listing_end(copy, 1, &result))
        ;
    CHECK_EQ(sum_of(copy).objects, 0); /* The listing named nothing. */
    free(file.bytes);
    kvg_presence_free(index);
    kvg_presence_free(copy);
}

TEST_MAIN(RUN(what_was_dumped_comes_back), RUN(what_is_loaded_is_suspect),
    RUN(ages_come_back_relative_to_now),
    RUN(a_dump_without_whole_keys_is_refused_where_they_are_kept),
    RUN(every_damaged_byte_is_noticed),
    RUN(a_dump_that_ends_early_is_taken_in_as_far_as_it_goes),
    RUN(blocks_cannot_be_left_out), RUN(failing_callbacks_are_told),
    RUN(loading_without_memory_leaves_a_sound_index),
    RUN(a_loaded_index_is_as_small_as_the_dumped_one),
    RUN(of_a_dump_larger_than_the_limit_the_coldest_pages_are_left_out),
    RUN(the_announced_number_of_pages_is_only_a_hint),
    RUN(a_dump_does_not_bring_back_what_an_event_removed_during_a_listing))
