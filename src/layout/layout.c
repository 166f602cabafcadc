/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* layout.c -- a layout compiled once into a table of parts.
 *
 *     part      0      1      2      3    ...
 *     suffix  "_0_k" "_0_v" "_1_k" "_1_v"        names.h: suffix to part and back
 *     trailing  0      0      0      0           pages a trailing pool needs, else 0
 *
 * Parts are in the seed client's order: stage, then rank, then k before v; of an advertised
 * layout pool by pool as they were given.
 *
 * Invariants: suffixes differ; each begins with '_' and has 2 to KVG_LAYOUT_SUFFIX_BYTES_MAX
 * bytes; there is at least one part.
 *
 * Threads: a layout never changes after kvg_layout_new().
 */
#include <kvgraft/layout.h>

#include "base/alloc.h"
#include "base/fmt.h"
#include "base/hex.h"
#include "layout/names.h"

struct kvg_layout {
    struct kvg_alloc alloc;
    struct kvg_page_rule rule;
    struct kvi_names suffixes;
    uint32_t *trailing; /* A number a part. */
    size_t trailing_capacity;
    size_t prefix_bytes;
    size_t group_prefix_bytes;
    char prefix[KVG_LAYOUT_PREFIX_BYTES_MAX];
    char group_prefix[KVG_LAYOUT_PREFIX_BYTES_MAX];
};

static kvg_err fail_limit(struct kvg_error *error, const char *field, const char *what,
    uint64_t value, uint64_t limit)
{
    char message[160];
    struct kvi_text text;

    kvi_text_init(&text, message, sizeof(message));
    kvi_text_str(&text, what);
    kvi_text_str(&text, " is ");
    kvi_text_u64(&text, value);
    kvi_text_str(&text, "; the limit is ");
    kvi_text_u64(&text, limit);
    return kvi_fail(error, KVG_ELIMIT, field, message);
}

/* "pools[2].suffixes[1]", or "pools[2].hit_policy" if it is not indexed. */
static void name_pool_field(
    struct kvi_text *text, size_t pool, const char *field, bool indexed, size_t index)
{
    kvi_text_str(text, "pools[");
    kvi_text_u64(text, pool);
    kvi_text_str(text, "].");
    kvi_text_str(text, field);
    if (indexed) {
        kvi_text_str(text, "[");
        kvi_text_u64(text, index);
        kvi_text_str(text, "]");
    }
}

static kvg_err check_dimensions(
    const struct kvg_layout_config *config, struct kvg_error *error)
{
    if (config->rule.page_size < 1 || config->rule.page_size > KVG_PAGE_SIZE_MAX)
        return kvi_fail_range(
            error, "page_size", config->rule.page_size, 1, KVG_PAGE_SIZE_MAX);
    if (config->tp_size > KVG_LAYOUT_RANKS_MAX)
        return kvi_fail_range(error, "tp_size", config->tp_size, 0, KVG_LAYOUT_RANKS_MAX);
    if (config->pp_size > KVG_LAYOUT_STAGES_MAX)
        return kvi_fail_range(
            error, "pp_size", config->pp_size, 0, KVG_LAYOUT_STAGES_MAX);
    if (config->split_heads && config->tp_lcm_size > KVG_LAYOUT_RANKS_MAX)
        return kvi_fail_range(
            error, "tp_lcm_size", config->tp_lcm_size, 0, KVG_LAYOUT_RANKS_MAX);
    if (config->pool_count > KVG_LAYOUT_POOLS_MAX)
        return fail_limit(error, "pools", "the number of pools", config->pool_count,
            KVG_LAYOUT_POOLS_MAX);
    return KVG_OK;
}

/* Joins tag and model prefix with '_'; either may be empty. */
static kvg_err join_prefix(struct kvg_str tag, struct kvg_str model, const char *field,
    char out[KVG_LAYOUT_PREFIX_BYTES_MAX], size_t *bytes_out, struct kvg_error *error)
{
    size_t gap = tag.bytes != 0 && model.bytes != 0 ? 1 : 0;

    if (tag.bytes > KVG_LAYOUT_PREFIX_BYTES_MAX ||
        model.bytes > KVG_LAYOUT_PREFIX_BYTES_MAX ||
        tag.bytes + gap + model.bytes > KVG_LAYOUT_PREFIX_BYTES_MAX)
        return fail_limit(error, field, "the length of the prefix in bytes",
            tag.bytes + gap + model.bytes, KVG_LAYOUT_PREFIX_BYTES_MAX);
    if (tag.bytes != 0)
        memcpy(out, tag.data, tag.bytes);
    if (gap != 0)
        out[tag.bytes] = '_';
    if (model.bytes != 0)
        memcpy(out + tag.bytes + gap, model.data, model.bytes);
    *bytes_out = tag.bytes + gap + model.bytes;
    return KVG_OK;
}

static kvg_err set_prefixes(struct kvg_layout *layout,
    const struct kvg_layout_config *config, struct kvg_error *error)
{
    const struct kvg_str none = {NULL, 0};
    kvg_err err;

    err = join_prefix(config->tag, config->model_prefix,
        config->tag.bytes > KVG_LAYOUT_PREFIX_BYTES_MAX ? "extra_backend_tag"
                                                        : "model_prefix",
        layout->group_prefix, &layout->group_prefix_bytes, error);
    if (err != KVG_OK)
        return err;
    if (config->key_prefix.data != NULL)
        return join_prefix(config->key_prefix, none, "key_prefix", layout->prefix,
            &layout->prefix_bytes, error);
    memcpy(layout->prefix, layout->group_prefix, layout->group_prefix_bytes);
    layout->prefix_bytes = layout->group_prefix_bytes;
    return KVG_OK;
}

static bool add_part(struct kvg_layout *layout, struct kvg_str suffix, uint32_t trailing)
{
    uint32_t part;

    if (kvi_names_add(&layout->suffixes, suffix, &part) != KVG_OK)
        return false;
    layout->trailing[part] = trailing;
    return true;
}

/* Adds "_0_1_k" or "_0_k" or "__k": `numbers` of them, each behind a '_'. */
static bool add_kv_part(
    struct kvg_layout *layout, const uint32_t *numbers, size_t number_count, char kind)
{
    char suffix[32];
    struct kvi_text text;
    size_t i;

    kvi_text_init(&text, suffix, sizeof(suffix));
    for (i = 0; i < number_count; i++) {
        kvi_text_str(&text, "_");
        kvi_text_u64(&text, numbers[i]);
    }
    kvi_text_str(&text, number_count == 0 ? "__" : "_");
    kvi_text_bytes(&text, (struct kvg_str){&kind, 1});
    return add_part(layout, (struct kvg_str){suffix, text.bytes}, 0);
}

static uint32_t at_least_1(uint32_t number)
{
    return number == 0 ? 1 : number;
}

static uint32_t rank_count(const struct kvg_layout_config *config)
{
    uint32_t ranks = at_least_1(config->tp_size);

    if (config->split_heads && config->tp_lcm_size > ranks)
        ranks = config->tp_lcm_size;
    return ranks;
}

/* The k and v parts of a model without advertised pools. */
static kvg_err add_kv_parts(
    struct kvg_layout *layout, const struct kvg_layout_config *config)
{
    uint32_t stages = at_least_1(config->pp_size);
    uint32_t ranks = config->mla ? 1 : rank_count(config);
    uint32_t stage;
    uint32_t rank;

    for (stage = 0; stage < stages; stage++) {
        if (config->mla) {
            if (!add_kv_part(layout, &stage, stages > 1 ? 1 : 0, 'k'))
                return KVG_ENOMEM;
            continue;
        }
        for (rank = 0; rank < ranks; rank++) {
            const uint32_t numbers[2] = {rank, stage};
            size_t number_count = stages > 1 ? 2 : 1;

            if (!add_kv_part(layout, numbers, number_count, 'k') ||
                !add_kv_part(layout, numbers, number_count, 'v'))
                return KVG_ENOMEM;
        }
    }
    return KVG_OK;
}

static kvg_err check_suffix(const struct kvg_layout *layout, struct kvg_str suffix,
    size_t pool, size_t index, struct kvg_error *error)
{
    char field[64];
    struct kvi_text text;

    kvi_text_init(&text, field, sizeof(field));
    name_pool_field(&text, pool, "suffixes", true, index);
    if (suffix.bytes < 2 || suffix.data[0] != '_')
        return kvi_fail(error, KVG_EINVAL, field,
            "a suffix begins with '_' and has at least 2 bytes");
    if (suffix.bytes > KVG_LAYOUT_SUFFIX_BYTES_MAX)
        return fail_limit(error, field, "the length of the suffix in bytes", suffix.bytes,
            KVG_LAYOUT_SUFFIX_BYTES_MAX);
    if (kvi_names_find(&layout->suffixes, suffix) >= 0)
        return kvi_fail(error, KVG_EINVAL, field, "the suffix was given twice");
    return KVG_OK;
}

static kvg_err add_pools(struct kvg_layout *layout,
    const struct kvg_layout_config *config, struct kvg_error *error)
{
    size_t i;
    size_t j;

    for (i = 0; i < config->pool_count; i++) {
        const struct kvg_layout_pool *pool = &config->pools[i];
        kvg_err err = KVG_OK;

        for (j = 0; err == KVG_OK && j < pool->suffix_count; j++) {
            err = check_suffix(layout, pool->suffixes[j], i, j, error);
            if (err == KVG_OK &&
                !add_part(layout, pool->suffixes[j], pool->trailing_pages))
                err = KVG_ENOMEM;
        }
        if (err != KVG_OK)
            return err;
    }
    return KVG_OK;
}

static kvg_err check_pool(
    const struct kvg_layout_pool *pool, size_t index, struct kvg_error *error)
{
    bool trails = pool->policy == KVG_POOL_TRAILING_PAGES;
    char field[64];
    struct kvi_text text;

    kvi_text_init(&text, field, sizeof(field));
    if (!trails && pool->policy != KVG_POOL_ALL_PAGES) {
        name_pool_field(&text, index, "hit_policy", false, 0);
        return kvi_fail(
            error, KVG_EINVAL, field, "the policy is all_pages or trailing_pages");
    }
    if (trails != (pool->trailing_pages != 0)) {
        name_pool_field(&text, index, "trailing_pages", false, 0);
        return kvi_fail(error, KVG_EINVAL, field,
            "trailing_pages is at least 1 with the policy trailing_pages, else 0");
    }
    if (pool->suffix_count == 0) {
        name_pool_field(&text, index, "suffixes", false, 0);
        return kvi_fail(error, KVG_EINVAL, field, "a pool has at least one suffix");
    }
    return KVG_OK;
}

/* Parts a page, or an error if they are too many; each factor is within its limit. */
static kvg_err count_parts(
    const struct kvg_layout_config *config, size_t *out, struct kvg_error *error)
{
    uint64_t parts = 0;
    size_t i;

    for (i = 0; i < config->pool_count; i++) {
        kvg_err err = check_pool(&config->pools[i], i, error);

        if (err != KVG_OK)
            return err;
        if (config->pools[i].suffix_count > KVG_LAYOUT_PARTS_MAX)
            return fail_limit(error, "pools", "the number of suffixes of a pool",
                config->pools[i].suffix_count, KVG_LAYOUT_PARTS_MAX);
        parts += config->pools[i].suffix_count;
    }
    if (config->pool_count == 0)
        parts = (uint64_t)at_least_1(config->pp_size) *
                (config->mla ? 1 : (uint64_t)rank_count(config) * 2);
    if (parts > KVG_LAYOUT_PARTS_MAX)
        return fail_limit(error, config->pool_count != 0 ? "pools" : "tp_size",
            config->pool_count != 0 ? "the number of parts a page"
                                    : "the number of parts a page (ranks x stages x 2)",
            parts, KVG_LAYOUT_PARTS_MAX);
    *out = (size_t)parts;
    return KVG_OK;
}

kvg_err kvg_layout_new(const struct kvg_alloc *alloc,
    const struct kvg_layout_config *config, struct kvg_error *error,
    struct kvg_layout **out)
{
    struct kvg_layout *layout;
    size_t part_count = 0;
    kvg_err err;

    *out = NULL;
    if (config->struct_bytes != sizeof(*config))
        return kvi_fail(error, KVG_EINVAL, "struct_bytes",
            "struct_bytes is not the size of struct kvg_layout_config");
    err = check_dimensions(config, error);
    if (err == KVG_OK)
        err = count_parts(config, &part_count, error);
    if (err != KVG_OK)
        return err;
    layout = KVI_NEW(alloc, struct kvg_layout);
    if (layout == NULL)
        return kvi_fail(error, KVG_ENOMEM, "layout", "out of memory");
    layout->alloc = *alloc;
    layout->rule = config->rule;
    kvi_names_init(&layout->suffixes, alloc, KVG_LAYOUT_PARTS_MAX, 0);

    layout->trailing = kvi_alloc_array(alloc, part_count, sizeof(*layout->trailing));
    layout->trailing_capacity = part_count;
    err = layout->trailing == NULL ? KVG_ENOMEM : set_prefixes(layout, config, error);
    if (err == KVG_OK)
        err = config->pool_count != 0 ? add_pools(layout, config, error)
                                      : add_kv_parts(layout, config);
    if (err != KVG_OK)
        goto fail;
    *out = layout;
    return KVG_OK;

fail:
    if (err == KVG_ENOMEM)
        (void)kvi_fail(error, err, "layout", "out of memory");
    kvg_layout_free(layout);
    return err;
}

void kvg_layout_free(struct kvg_layout *layout)
{
    struct kvg_alloc alloc;

    if (layout == NULL)
        return;
    alloc = layout->alloc;
    kvi_names_fini(&layout->suffixes);
    kvi_release_array(
        &alloc, layout->trailing, layout->trailing_capacity, sizeof(*layout->trailing));
    KVI_FREE(&alloc, layout);
}

struct kvg_page_rule kvg_layout_rule(const struct kvg_layout *layout)
{
    return layout->rule;
}

uint32_t kvg_layout_part_count(const struct kvg_layout *layout)
{
    return layout->suffixes.count;
}

struct kvg_str kvg_layout_prefix(const struct kvg_layout *layout)
{
    return (struct kvg_str){layout->prefix, layout->prefix_bytes};
}

struct kvg_str kvg_layout_suffix(const struct kvg_layout *layout, uint32_t part)
{
    if (part >= layout->suffixes.count)
        return (struct kvg_str){NULL, 0};
    return kvi_names_get(&layout->suffixes, part);
}

uint32_t kvg_layout_part_trailing(const struct kvg_layout *layout, uint32_t part)
{
    return part < layout->suffixes.count ? layout->trailing[part] : 0;
}

bool kvg_layout_equal(const struct kvg_layout *a, const struct kvg_layout *b)
{
    uint32_t part;

    if (a->rule.page_size != b->rule.page_size || a->rule.eagle != b->rule.eagle ||
        a->suffixes.count != b->suffixes.count ||
        !kvi_str_equal(kvg_layout_prefix(a), kvg_layout_prefix(b)))
        return false;
    for (part = 0; part < a->suffixes.count; part++)
        if (a->trailing[part] != b->trailing[part] ||
            !kvi_str_equal(kvg_layout_suffix(a, part), kvg_layout_suffix(b, part)))
            return false;
    return true;
}

/* Writes "[prefix_]HEX"; returns where it ends. */
static char *write_prefixed_hex(
    const char *prefix, size_t prefix_bytes, const struct kvg_key *key, char *out)
{
    if (prefix_bytes != 0) {
        memcpy(out, prefix, prefix_bytes);
        out += prefix_bytes;
        *out++ = '_';
    }
    kvi_hex_encode(key->bytes, KVG_KEY_BYTES, out);
    return out + (size_t)2 * KVG_KEY_BYTES;
}

size_t kvg_layout_object_key(
    const struct kvg_layout *layout, const struct kvg_key *key, uint32_t part, char *out)
{
    struct kvg_str suffix = kvg_layout_suffix(layout, part);
    char *end;

    *out = '\0';
    if (suffix.data == NULL)
        return 0;
    end = write_prefixed_hex(layout->prefix, layout->prefix_bytes, key, out);
    memcpy(end, suffix.data, suffix.bytes);
    end += suffix.bytes;
    *end = '\0';
    return (size_t)(end - out);
}

size_t kvg_layout_group_id(
    const struct kvg_layout *layout, const struct kvg_key *key, char *out)
{
    static const char LABEL[] = "sglang-hicache:";
    char *end;

    memcpy(out, LABEL, sizeof(LABEL) - 1);
    end = write_prefixed_hex(
        layout->group_prefix, layout->group_prefix_bytes, key, out + sizeof(LABEL) - 1);
    *end = '\0';
    return (size_t)(end - out);
}

int32_t kvg_layout_part_of(
    const struct kvg_layout *layout, const struct kvg_object_key *object)
{
    if (!kvi_str_equal(object->prefix, kvg_layout_prefix(layout)))
        return -1;
    return kvi_names_find(&layout->suffixes, object->suffix);
}
