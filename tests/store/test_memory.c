/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* test_memory.c -- the suite over `memory:`, and what happens between a put's copying and its
 * appearing. */
#include "store/conformance.h"

#include "test.h"

#include <inttypes.h>
#include <stdio.h>

static bool make(void *context, uint64_t bytes_max, char url[CONFORMANCE_URL_BYTES])
{
    (void)context;
    snprintf(url, CONFORMANCE_URL_BYTES, "memory:?bytes=%" PRIu64,
        bytes_max == 0 ? UINT64_C(256) << 20 : bytes_max);
    return true;
}

static void destroy(void *context)
{
    (void)context;
}

/* ---- Between copying and appearing --------------------------------------------------------- */

enum {
    VALUE_BYTES = 3000
};

/* An allocator that takes a key out of the store while a value of a put is copied: values are the
 * only blocks of their size. */
struct thief {
    struct kvg_store *store;
    const char *key; /* NULL: it steals nothing. */
    unsigned stolen;
};

static void *steal_and_allocate(void *context, size_t bytes)
{
    const struct kvg_alloc *plain = kvg_alloc_default();
    struct thief *thief = context;

    if (thief->key != NULL && bytes > VALUE_BYTES && bytes < 2 * VALUE_BYTES) {
        struct kvg_str key = {thief->key, strlen(thief->key)};
        kvg_err result;

        thief->key = NULL;
        CHECK_EQ(kvg_store_remove(thief->store, &key, 1, &result, NULL), KVG_OK);
        thief->stolen++;
    }
    return plain->allocate(plain->context, bytes);
}

static void release(void *context, void *memory, size_t bytes)
{
    const struct kvg_alloc *plain = kvg_alloc_default();

    (void)context;
    plain->release(plain->context, memory, bytes);
}

static bool is_there(struct kvg_store *store, const char *name)
{
    struct kvg_str key = {name, strlen(name)};
    uint8_t present = 0;

    CHECK_EQ(kvg_store_exists(store, &key, 1, &present, NULL, NULL), KVG_OK);
    return present != 0;
}

/* A page of two parts, the first of which is there and goes while the second is copied. */
TEST(a_part_that_goes_while_the_others_are_copied_is_copied_too)
{
    static char value[VALUE_BYTES];
    struct thief thief = {NULL, NULL, 0};
    struct kvg_alloc alloc = {steal_and_allocate, release, &thief};
    struct kvg_store_options options = {.struct_bytes = sizeof(options), .alloc = &alloc};
    struct kvg_store_piece piece = {value, sizeof(value)};
    struct kvg_store_part parts[2] = {{{"x0", 2}, &piece, 1}, {{"x1", 2}, &piece, 1}};
    struct kvg_store_group first = {.parts = parts, .part_count = 1};
    struct kvg_store_group whole = {.parts = parts, .part_count = 2};

    CHECK_EQ(kvg_store_open("memory:", &options, &thief.store, NULL), KVG_OK);
    CHECK_EQ(kvg_store_put(thief.store, &first, 1, NULL), KVG_OK);
    thief.key = "x0";
    CHECK_EQ(kvg_store_put(thief.store, &whole, 1, NULL), KVG_OK);
    CHECK_EQ(thief.stolen, 1);
    CHECK(is_there(thief.store, "x1"));
    CHECK(is_there(thief.store, "x0"));
    kvg_store_close(thief.store);
}

int main(void)
{
    static const struct conformance_backend MEMORY = {
        .name = "memory", .make = make, .destroy = destroy};
    static const struct CMUnitTest TESTS[] = {
        RUN(a_part_that_goes_while_the_others_are_copied_is_copied_too)};

    return conformance_run(&MEMORY) + cmocka_run_group_tests(TESTS, NULL, NULL);
}
