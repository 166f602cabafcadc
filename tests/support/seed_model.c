/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

#include "seed_model.h"

#include "test.h"

void text_set_fini(struct text_set *set)
{
    free(set->texts);
    memset(set, 0, sizeof(*set));
}

static size_t find(const struct text_set *set, const char *text)
{
    size_t i = 0;

    while (i < set->count && strcmp(set->texts[i], text) != 0)
        i++;
    return i;
}

bool text_set_has(const struct text_set *set, const char *text)
{
    return find(set, text) < set->count;
}

void text_set_add(struct text_set *set, const char *text)
{
    if (text_set_has(set, text))
        return;
    if (set->count == set->capacity) {
        set->capacity = set->capacity * 2 + 16;
        set->texts = realloc(set->texts, set->capacity * sizeof(set->texts[0]));
        CHECK(set->texts != NULL);
    }
    CHECK(strlen(text) < MODEL_TEXT_BYTES);
    snprintf(set->texts[set->count++], MODEL_TEXT_BYTES, "%s", text);
}

void text_set_remove(struct text_set *set, const char *text)
{
    size_t i = find(set, text);

    if (i < set->count) {
        set->count--;
        memmove(set->texts[i], set->texts[set->count], MODEL_TEXT_BYTES);
    }
}

size_t model_page_hashes(const struct kvg_page_rule *rule, const uint32_t *tokens,
    size_t token_count, char hashes[MODEL_PAGES_MAX][65])
{
    size_t unit_count = token_count - (rule->eagle && token_count != 0 ? 1 : 0);
    size_t page_count = unit_count / rule->page_size;
    uint8_t bytes[32 + 8 * 256];
    uint8_t digest[32];
    size_t page;

    CHECK(page_count <= MODEL_PAGES_MAX && rule->page_size <= 256);
    for (page = 0; page < page_count; page++) {
        size_t byte_count = 0;
        size_t unit;
        size_t i;

        if (page != 0) {
            memcpy(bytes, digest, 32);
            byte_count = 32;
        }
        for (unit = page * rule->page_size; unit < (page + 1) * rule->page_size; unit++) {
            memcpy(bytes + byte_count, &tokens[unit], 4);
            byte_count += 4;
            if (rule->eagle) {
                memcpy(bytes + byte_count, &tokens[unit + 1], 4);
                byte_count += 4;
            }
        }
        kvg_sha256(bytes, byte_count, digest);
        for (i = 0; i < 32; i++)
            snprintf(hashes[page] + 2 * i, 3, "%02x", digest[i]);
    }
    return page_count;
}

/* "tag_" or "". */
static void write_tag(const struct kvg_layout_config *layout, char out[64])
{
    if (layout->tag.bytes == 0)
        out[0] = '\0';
    else
        snprintf(out, 64, "%.*s_", (int)layout->tag.bytes, layout->tag.data);
}

static uint32_t at_least_1(uint32_t number)
{
    return number == 0 ? 1 : number;
}

size_t model_object_keys(const struct kvg_layout_config *layout, const char *hash,
    char keys[MODEL_PARTS_MAX][MODEL_TEXT_BYTES])
{
    uint32_t stages = at_least_1(layout->pp_size);
    uint32_t ranks = at_least_1(layout->tp_size);
    size_t count = 0;
    char tag[64];
    uint32_t stage;
    uint32_t rank;

    write_tag(layout, tag);
    if (layout->mla && stages == 1) {
        snprintf(keys[0], MODEL_TEXT_BYTES, "%s%s__k", tag, hash);
        return 1;
    }
    if (layout->split_heads && layout->tp_lcm_size > ranks)
        ranks = layout->tp_lcm_size;
    for (stage = 0; stage < stages; stage++) {
        char suffix[32];

        if (layout->mla) {
            snprintf(keys[count++], MODEL_TEXT_BYTES, "%s%s_%u_k", tag, hash, stage);
            continue;
        }
        for (rank = 0; rank < ranks; rank++) {
            if (stages > 1)
                snprintf(suffix, sizeof(suffix), "%u_%u", rank, stage);
            else
                snprintf(suffix, sizeof(suffix), "%u", rank);
            CHECK(count + 2 <= MODEL_PARTS_MAX);
            snprintf(keys[count++], MODEL_TEXT_BYTES, "%s%s_%s_k", tag, hash, suffix);
            snprintf(keys[count++], MODEL_TEXT_BYTES, "%s%s_%s_v", tag, hash, suffix);
        }
    }
    return count;
}

void model_group_id(
    const struct kvg_layout_config *layout, const char *hash, char out[MODEL_TEXT_BYTES])
{
    char tag[64];

    write_tag(layout, tag);
    snprintf(out, MODEL_TEXT_BYTES, "sglang-hicache:%s%s", tag, hash);
}

size_t model_hits(const struct text_set *present, const struct kvg_layout_config *layout,
    const uint32_t *tokens, size_t token_count, bool hits[MODEL_PAGES_MAX])
{
    char hashes[MODEL_PAGES_MAX][65];
    char keys[MODEL_PARTS_MAX][MODEL_TEXT_BYTES];
    size_t page_count = model_page_hashes(&layout->rule, tokens, token_count, hashes);
    size_t page;

    for (page = 0; page < page_count; page++) {
        size_t key_count = model_object_keys(layout, hashes[page], keys);
        size_t i;

        hits[page] = true;
        for (i = 0; i < key_count; i++)
            hits[page] = hits[page] && text_set_has(present, keys[i]);
    }
    return page_count;
}
