/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* advertised.c -- reading workers' advertised configuration. */
#include "daemon/advertised.h"

#include "base/fmt.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#define SUFFIXES_MAX KVG_LAYOUT_PARTS_MAX

/* What a worker's configuration borrows while it is set. */
struct scratch {
    struct kvg_layout_pool pools[KVG_LAYOUT_POOLS_MAX];
    struct kvg_str suffixes[SUFFIXES_MAX];
    size_t suffix_count;
    char model_prefix[KVG_LAYOUT_PREFIX_BYTES_MAX + 1];
};

enum need {
    REQUIRED,
    OPTIONAL
};

static struct kvg_str str_of(const json_t *value)
{
    return (struct kvg_str){json_string_value(value), json_string_length(value)};
}

static bool is_absent(const json_t *value)
{
    return value == NULL || json_is_null(value);
}

static kvg_err get_u32(const json_t *object, const char *name, enum need need,
    uint32_t *out, struct kvg_error *error)
{
    const json_t *value = json_object_get(object, name);
    json_int_t number = json_integer_value(value);

    if (is_absent(value) && need == OPTIONAL)
        return KVG_OK;
    if (is_absent(value))
        return kvi_fail(error, KVG_EINVAL, name, "is missing");
    if (!json_is_integer(value) || number < 0 || number > (json_int_t)UINT32_MAX)
        return kvi_fail(
            error, KVG_EINVAL, name, "is not a whole number from 0 to 4294967295");
    *out = (uint32_t)number;
    return KVG_OK;
}

static kvg_err get_bool(const json_t *object, const char *name, enum need need, bool *out,
    struct kvg_error *error)
{
    const json_t *value = json_object_get(object, name);

    if (is_absent(value) && need == OPTIONAL)
        return KVG_OK;
    if (is_absent(value))
        return kvi_fail(error, KVG_EINVAL, name, "is missing");
    if (!json_is_boolean(value))
        return kvi_fail(error, KVG_EINVAL, name, "is neither true nor false");
    *out = json_is_true(value);
    return KVG_OK;
}

static kvg_err get_str(const json_t *object, const char *name, enum need need,
    struct kvg_str *out, struct kvg_error *error)
{
    const json_t *value = json_object_get(object, name);

    if (is_absent(value) && need == OPTIONAL)
        return KVG_OK;
    if (is_absent(value))
        return kvi_fail(error, KVG_EINVAL, name, "is missing");
    if (!json_is_string(value))
        return kvi_fail(error, KVG_EINVAL, name, "is not a string");
    *out = str_of(value);
    return KVG_OK;
}

/* {"name": "kv", "suffixes": ["_0_k"], "hit_policy": "trailing_pages", "trailing_pages": 1} */
static kvg_err read_pool(const json_t *value, struct kvg_layout_pool *pool,
    struct scratch *scratch, struct kvg_error *error)
{
    const json_t *suffixes = json_object_get(value, "suffixes");
    struct kvg_str policy = {"all_pages", 9};
    kvg_err err = get_str(value, "name", OPTIONAL, &pool->name, error);

    if (err != KVG_OK)
        return err;
    if (!json_is_array(suffixes) || json_array_size(suffixes) == 0)
        return kvi_fail(
            error, KVG_EINVAL, "suffixes", "is not an array with at least one suffix");
    pool->suffixes = &scratch->suffixes[scratch->suffix_count];
    pool->suffix_count = json_array_size(suffixes);
    for (size_t i = 0; i < pool->suffix_count; i++) {
        const json_t *suffix = json_array_get(suffixes, i);

        if (!json_is_string(suffix))
            return kvi_fail(
                error, KVG_EINVAL, "suffixes", "holds something but a string");
        if (scratch->suffix_count == SUFFIXES_MAX)
            return kvi_fail_range(
                error, "suffixes", scratch->suffix_count + 1, 1, SUFFIXES_MAX);
        scratch->suffixes[scratch->suffix_count++] = str_of(suffix);
    }
    err = get_str(value, "hit_policy", OPTIONAL, &policy, error);
    if (err != KVG_OK)
        return err;
    if (kvi_str_equal(policy, kvi_str("all_pages")))
        return KVG_OK;
    if (!kvi_str_equal(policy, kvi_str("trailing_pages")))
        return kvi_fail(error, KVG_EINVAL, "hit_policy",
            "is neither \"all_pages\" nor \"trailing_pages\"");
    pool->policy = KVG_POOL_TRAILING_PAGES;
    pool->trailing_pages = 1;
    return get_u32(value, "trailing_pages", OPTIONAL, &pool->trailing_pages, error);
}

static kvg_err read_pools(const json_t *object, struct kvg_layout_config *layout,
    struct scratch *scratch, struct kvg_error *error)
{
    const json_t *advertised = json_object_get(object, "hicache_object_layout");
    const json_t *pools = json_object_get(advertised, "pools");
    kvg_err err;

    if (is_absent(advertised))
        return KVG_OK;
    if (!json_is_array(pools) || json_array_size(pools) == 0)
        return kvi_fail(error, KVG_EINVAL, "hicache_object_layout.pools",
            "is not an array with at least one pool");
    if (json_array_size(pools) > KVG_LAYOUT_POOLS_MAX)
        return kvi_fail_range(error, "hicache_object_layout.pools",
            json_array_size(pools), 1, KVG_LAYOUT_POOLS_MAX);
    for (size_t i = 0; i < json_array_size(pools); i++) {
        err = read_pool(json_array_get(pools, i), &scratch->pools[i], scratch, error);
        if (err != KVG_OK)
            return err;
    }
    layout->pools = scratch->pools;
    layout->pool_count = json_array_size(pools);
    return get_str(advertised, "key_prefix", OPTIONAL, &layout->key_prefix, error);
}

/* "org/model" is "org-model" in object keys. */
static kvg_err read_model(const json_t *object, struct kvg_layout_config *layout,
    struct scratch *scratch, struct kvg_error *error)
{
    struct kvg_str model = {NULL, 0};
    kvg_err err = get_str(object, "model_prefix", OPTIONAL, &model, error);

    if (err != KVG_OK)
        return err;
    if (model.bytes > KVG_LAYOUT_PREFIX_BYTES_MAX)
        return kvi_fail_range(
            error, "model_prefix", model.bytes, 0, KVG_LAYOUT_PREFIX_BYTES_MAX);
    for (size_t i = 0; i < model.bytes; i++)
        scratch->model_prefix[i] = model.data[i] == '/' ? '-' : model.data[i];
    if (model.bytes > 0)
        layout->model_prefix = (struct kvg_str){scratch->model_prefix, model.bytes};
    return KVG_OK;
}

static kvg_err read_worker(const json_t *object, struct kvg_worker_config *config,
    struct scratch *scratch, struct kvg_error *error)
{
    struct kvg_layout_config *layout = &config->layout;
    kvg_err err;

    memset(config, 0, sizeof(*config));
    config->struct_bytes = sizeof(*config);
    layout->struct_bytes = sizeof(*layout);
    scratch->suffix_count = 0;
    memset(scratch->pools, 0, sizeof(scratch->pools));
    if (!json_is_object(object))
        return kvi_fail(error, KVG_EINVAL, KVD_ADVERTISED_KEY, "is not an object");
    if ((err = get_str(object, "backend", REQUIRED, &config->backend, error)) == KVG_OK &&
        (err = get_u32(object, "page_size", REQUIRED, &layout->rule.page_size, error)) ==
            KVG_OK &&
        (err = get_u32(object, "tp_size", REQUIRED, &layout->tp_size, error)) == KVG_OK &&
        (err = get_u32(object, "pp_size", REQUIRED, &layout->pp_size, error)) == KVG_OK &&
        (err = get_bool(object, "is_mla_model", REQUIRED, &layout->mla, error)) ==
            KVG_OK &&
        (err = get_bool(object, "is_eagle", REQUIRED, &layout->rule.eagle, error)) ==
            KVG_OK &&
        (err = get_bool(object, "should_split_heads", REQUIRED, &layout->split_heads,
             error)) == KVG_OK &&
        (err = get_u32(object, "tp_lcm_size", OPTIONAL, &layout->tp_lcm_size, error)) ==
            KVG_OK &&
        (err = get_str(object, "extra_backend_tag", OPTIONAL, &layout->tag, error)) ==
            KVG_OK &&
        (err = get_str(object, "kv_events_endpoint", OPTIONAL,
             &config->kv_events_endpoint, error)) == KVG_OK &&
        (err = read_model(object, layout, scratch, error)) == KVG_OK)
        err = read_pools(object, layout, scratch, error);
    return err;
}

static bool parse_id(const char *text, uint64_t *out)
{
    uint64_t id = 0;

    for (const char *c = text; *c != '\0'; c++) {
        if (*c < '0' || *c > '9' || __builtin_mul_overflow(id, 10, &id) ||
            __builtin_add_overflow(id, (uint64_t)(*c - '0'), &id))
            return false;
    }
    *out = id;
    return text[0] != '\0';
}

static kvg_err load(struct kvg_str text, struct kvg_error *error, json_t **out)
{
    json_error_t failure;
    char message[192];
    const char *id_text;
    json_t *value;
    uint64_t id;

    *out = json_loadb(text.data, text.bytes, JSON_REJECT_DUPLICATES, &failure);
    if (*out == NULL) {
        snprintf(message, sizeof(message), "line %d, column %d: %s", failure.line,
            failure.column, failure.text);
        return kvi_fail(error, KVG_EFORMAT, "workers", message);
    }
    if (!json_is_object(*out)) {
        kvi_fail(error, KVG_EFORMAT, "workers", "is not an object of worker ids");
        goto fail;
    }
    if (json_object_size(*out) > KVG_WORKERS_MAX) {
        kvi_fail_range(error, "workers", json_object_size(*out), 0, KVG_WORKERS_MAX);
        goto fail;
    }
    json_object_foreach(*out, id_text, value)
    {
        if (!parse_id(id_text, &id)) {
            snprintf(message, sizeof(message),
                "\"%.40s\" is not a worker id: a number up to 18446744073709551615",
                id_text);
            kvi_fail(error, KVG_EINVAL, "workers", message);
            goto fail;
        }
    }
    return KVG_OK;

fail:
    json_decref(*out);
    *out = NULL;
    return KVG_EINVAL;
}

kvg_err kvd_advertised_check(struct kvg_str text, struct kvg_error *error)
{
    json_t *root;
    kvg_err err = load(text, error, &root);

    json_decref(root);
    return err;
}

kvg_err kvd_advertised_each(struct kvg_str text, struct kvg_error *error,
    void (*on_worker)(
        void *context, uint64_t worker_id, const struct kvg_worker_config *config),
    void (*on_bad)(void *context, uint64_t worker_id, const struct kvg_error *reason),
    void *context)
{
    struct scratch *scratch;
    const char *id_text;
    json_t *root;
    json_t *value;
    uint64_t id;
    kvg_err err = load(text, error, &root);

    if (err != KVG_OK)
        return err;
    scratch = malloc(sizeof(*scratch));
    if (scratch == NULL) {
        json_decref(root);
        return kvi_fail(error, KVG_ENOMEM, "workers", "do not fit into memory");
    }
    json_object_foreach(root, id_text, value)
    {
        const json_t *inner = json_object_get(value, KVD_ADVERTISED_KEY);
        struct kvg_worker_config config;
        struct kvg_error reason = {.code = KVG_OK};

        if (!parse_id(id_text, &id))
            continue;
        if (read_worker(inner != NULL ? inner : value, &config, scratch, &reason) ==
            KVG_OK)
            on_worker(context, id, &config);
        else
            on_bad(context, id, &reason);
    }
    free(scratch);
    json_decref(root);
    return KVG_OK;
}

/* Into a set ------------------------------------------------------------------------------- */

struct filling {
    struct kvg_workers *workers;
    kvg_err err;
};

/* An unusable worker is in the set with its reason; only what is not kept is a failure. */
static void fill_worker(
    void *context, uint64_t worker_id, const struct kvg_worker_config *config)
{
    struct filling *filling = context;
    struct kvg_error reason;

    if (kvg_workers_set(filling->workers, worker_id, config, &reason) == KVG_ENOMEM)
        filling->err = KVG_ENOMEM;
}

static void fill_bad(void *context, uint64_t worker_id, const struct kvg_error *reason)
{
    struct filling *filling = context;

    if (kvg_workers_set_bad(filling->workers, worker_id, reason) != KVG_OK)
        filling->err = KVG_ENOMEM;
}

kvg_err kvd_advertised_read(
    struct kvg_workers *workers, struct kvg_str text, struct kvg_error *error)
{
    struct filling filling = {.workers = workers, .err = KVG_OK};
    kvg_err err = kvd_advertised_each(text, error, fill_worker, fill_bad, &filling);

    if (err == KVG_OK && filling.err != KVG_OK)
        err = kvi_fail(error, KVG_ENOMEM, "workers", "do not fit into memory");
    return err;
}
