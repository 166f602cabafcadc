/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* outside.c -- a program of somebody else: it knows the installed headers and nothing more.
 *
 * It hashes a prompt, tells an index what a store holds, and asks how much of the prompt is
 * there.  Prints one line; exits with 0 only if the answer is right. */
#include <kvgraft/kvgraft.h>

#include <stdio.h>

enum {
    PAGE = 4,
    TOKENS = 16,
    PAGES = TOKENS / PAGE
};

int main(void)
{
    struct kvg_layout_config config = {
        .struct_bytes = sizeof(config), .rule = {.page_size = PAGE}, .tp_size = 2};
    struct kvg_presence_options options = {.struct_bytes = sizeof(options), .seed = 1};
    const struct kvg_alloc *alloc = kvg_alloc_default();
    const struct kvg_str tenant = {NULL, 0};
    struct kvg_presence_reader *reader = NULL;
    struct kvg_presence_view *view = NULL;
    struct kvg_presence *index = NULL;
    struct kvg_layout *layout = NULL;
    struct kvg_lookup lookup = {0};
    struct kvg_error error = {0};
    struct kvg_key keys[PAGES];
    uint32_t tokens[TOKENS];
    uint32_t i;

    for (i = 0; i < TOKENS; i++)
        tokens[i] = i + 1;
    if (kvg_layout_new(alloc, &config, &error, &layout) != KVG_OK ||
        kvg_presence_new(alloc, &options, &error, &index) != KVG_OK ||
        kvg_presence_view_new(index, layout, tenant, &error, &view) != KVG_OK ||
        kvg_presence_reader_open(index, &reader) != KVG_OK) {
        fprintf(stderr, "%s: %s\n", error.field, error.message);
        return 1;
    }
    if (kvg_page_keys(&config.rule, NULL, tokens, TOKENS, keys, PAGES) != PAGES)
        return 1;

    /* The store holds the first three pages, and half of the fourth. */
    for (i = 0; i < 3 * kvg_layout_part_count(layout) + 1; i++) {
        char name[KVG_OBJECT_KEY_BYTES_MAX + 1];
        size_t bytes =
            kvg_layout_object_key(layout, &keys[i / kvg_layout_part_count(layout)],
                i % kvg_layout_part_count(layout), name);

        if (!kvg_presence_stored(
                index, tenant, (struct kvg_str){name, bytes}, KVG_MEDIUM_CPU))
            return 1;
    }

    lookup.view = view;
    lookup.keys = keys;
    lookup.key_count = PAGES;
    kvg_presence_lookup(reader, &lookup, 1);
    printf("kvgraft %s: %u of %d pages present, %u contiguous, confidence %s\n",
        kvg_version(), lookup.total, PAGES, lookup.contiguous,
        kvg_confidence_name(lookup.confidence));

    kvg_presence_reader_close(reader);
    kvg_presence_view_free(view);
    kvg_presence_free(index);
    kvg_layout_free(layout);
    return lookup.total == 3 && lookup.contiguous == 3 ? 0 : 1;
}
