/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* seed_model.h -- the seed client's answers, from arrays that are searched from end to end.
 *
 * The reference for property tests: written from the description of the client's behaviour,
 * with nothing of ours in it but SHA-256 over assembled bytes. */
#ifndef KVT_SEED_MODEL_H
#define KVT_SEED_MODEL_H

#include <kvgraft/workers.h>

#define MODEL_TEXT_BYTES 192
#define MODEL_PAGES_MAX 64
#define MODEL_PARTS_MAX 64

/* A set of strings. */
struct text_set {
    char (*texts)[MODEL_TEXT_BYTES];
    size_t count;
    size_t capacity;
};
void text_set_fini(struct text_set *set);
bool text_set_has(const struct text_set *set, const char *text);
void text_set_add(struct text_set *set, const char *text);
void text_set_remove(struct text_set *set, const char *text);

/* Page hashes in hex, chained from nothing.  Returns how many. */
size_t model_page_hashes(const struct kvg_page_rule *rule, const uint32_t *tokens,
    size_t token_count, char hashes[MODEL_PAGES_MAX][65]);

/* The object keys of a page, in the client's order.  Returns how many. */
size_t model_object_keys(const struct kvg_layout_config *layout, const char *hash,
    char keys[MODEL_PARTS_MAX][MODEL_TEXT_BYTES]);
void model_group_id(
    const struct kvg_layout_config *layout, const char *hash, char out[MODEL_TEXT_BYTES]);

/* Which pages of a prompt have all their object keys in the set.  Returns the page count. */
size_t model_hits(const struct text_set *present, const struct kvg_layout_config *layout,
    const uint32_t *tokens, size_t token_count, bool hits[MODEL_PAGES_MAX]);

#endif
