/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* kit.h -- short words for tests of a store. */
#ifndef KVT_STORE_KIT_H
#define KVT_STORE_KIT_H

#include "store/values.h"

#include <kvgraft/store_backend.h>

#include <stdio.h>
#include <stdlib.h>

/* A page of `part_count` parts named NAME_0, NAME_1 ..., each of `bytes` self-verifying bytes. */
#define KIT_PARTS_MAX 8
#define KIT_KEY_BYTES 112
struct kit_page {
    char keys[KIT_PARTS_MAX][KIT_KEY_BYTES];
    struct kvg_store_piece pieces[KIT_PARTS_MAX];
    struct kvg_store_part parts[KIT_PARTS_MAX];
    struct kvg_store_group group;
    uint8_t *bytes;
};

static inline void kit_page_init(
    struct kit_page *page, const char *name, size_t part_count, size_t bytes)
{
    size_t i;

    memset(page, 0, sizeof(*page));
    page->bytes = malloc(part_count * bytes);
    for (i = 0; i < part_count; i++) {
        snprintf(page->keys[i], KIT_KEY_BYTES, "%.72s_%zu", name, i);
        value_fill(str_of(page->keys[i]), 0, page->bytes + i * bytes, bytes);
        page->pieces[i] = (struct kvg_store_piece){page->bytes + i * bytes, bytes};
        page->parts[i] = (struct kvg_store_part){
            .key = str_of(page->keys[i]), .pieces = &page->pieces[i], .piece_count = 1};
    }
    page->group =
        (struct kvg_store_group){.parts = page->parts, .part_count = part_count};
}

static inline void kit_page_fini(struct kit_page *page)
{
    free(page->bytes);
}

/* Puts one page; `previous` is the name of the page before, or NULL.  Its result. */
static inline kvg_err kit_put(struct kvg_store *store, const char *name,
    size_t part_count, size_t bytes, const char *previous)
{
    struct kit_page page;
    char before[KIT_KEY_BYTES];
    struct kvg_error error = {0};
    kvg_err err;

    kit_page_init(&page, name, part_count, bytes);
    page.group.id = str_of(name);
    if (previous != NULL) {
        snprintf(before, sizeof(before), "%.72s_0", previous);
        page.group.previous = str_of(before);
    }
    err = kvg_store_put(store, &page.group, 1, &error);
    if (err == KVG_OK)
        err = page.group.result;
    kit_page_fini(&page);
    return err;
}

/* Reads a key whole and verifies it: KVG_OK, what the store said, or KVG_EFORMAT for wrong bytes
 * or a wrong size. */
static inline kvg_err kit_read(struct kvg_store *store, struct kvg_str key, size_t bytes)
{
    uint8_t *memory = malloc(bytes + 1);
    struct kvg_store_range range = {0, bytes, memory};
    struct kvg_store_get get = {.key = key, .ranges = &range, .range_count = 1};
    struct kvg_error error = {0};
    kvg_err err;

    memset(memory, 0xa5, bytes + 1);
    err = kvg_store_get(store, &get, 1, &error);
    if (err == KVG_OK)
        err = get.result;
    if (err == KVG_OK && (get.value_bytes != bytes || memory[bytes] != 0xa5 ||
                             !value_good(key, 0, memory, bytes)))
        err = KVG_EFORMAT;
    free(memory);
    return err;
}

static inline kvg_err kit_read_part(
    struct kvg_store *store, const char *name, size_t part, size_t bytes)
{
    char key[KIT_KEY_BYTES];

    snprintf(key, sizeof(key), "%.72s_%zu", name, part);
    return kit_read(store, str_of(key), bytes);
}

static inline bool kit_exists(struct kvg_store *store, const char *key)
{
    struct kvg_str wanted = str_of(key);
    uint8_t present = 0;

    return kvg_store_exists(store, &wanted, 1, &present, NULL, NULL) == KVG_OK &&
           present == 1;
}

/* Are all parts of a page there (1), none (0), or some (-1)? */
static inline int kit_page_state(
    struct kvg_store *store, const char *name, size_t part_count)
{
    char keys[KIT_PARTS_MAX][KIT_KEY_BYTES];
    struct kvg_str wanted[KIT_PARTS_MAX];
    uint8_t present[KIT_PARTS_MAX];
    size_t held = 0;
    size_t i;

    for (i = 0; i < part_count; i++) {
        snprintf(keys[i], KIT_KEY_BYTES, "%.72s_%zu", name, i);
        wanted[i] = str_of(keys[i]);
    }
    if (kvg_store_exists(store, wanted, part_count, present, NULL, NULL) != KVG_OK)
        return -1;
    for (i = 0; i < part_count; i++)
        held += present[i];
    return held == part_count ? 1 : held == 0 ? 0 : -1;
}

#endif
