/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* params.c -- what a request says: members of its JSON object, or of its query string.
 *
 * One table holds every parameter with its other names (those of Mooncake's conductor and of
 * Dynamo's indexer), so that both ways in, and all paths, take the same.
 */
#include "daemon/daemon_internal.h"

#include "base/fmt.h"
#include "daemon/config_table.h"

#include <stdio.h>
#include <string.h>

enum param_type {
    PARAM_TEXT,
    PARAM_NUMBER,
    PARAM_BOOL,
    PARAM_IGNORED /* Known to others, of no meaning here. */
};

struct param {
    const char *name;
    enum param_type type;
    size_t offset;
    size_t has_offset; /* Of the flag that says it was given; SIZE_MAX: none. */
};

#define AT(field) offsetof(struct kvd_params, field)

static const struct param PARAMS[] = {
    {"source", PARAM_TEXT, AT(source), SIZE_MAX},
    {"instance_id", PARAM_TEXT, AT(source), SIZE_MAX},
    {"tenant", PARAM_TEXT, AT(tenant), SIZE_MAX},
    {"tenant_id", PARAM_TEXT, AT(tenant), SIZE_MAX},
    {"model", PARAM_TEXT, AT(model), SIZE_MAX},
    {"model_name", PARAM_TEXT, AT(model), SIZE_MAX},
    {"modelname", PARAM_TEXT, AT(model), SIZE_MAX},
    {"worker_id", PARAM_NUMBER, AT(worker_id), AT(has_worker_id)},
    {"layout", PARAM_NUMBER, AT(layout), AT(has_layout)},
    {"page_size", PARAM_NUMBER, AT(page_size), AT(has_page_size)},
    {"block_size", PARAM_NUMBER, AT(page_size), AT(has_page_size)},
    {"start", PARAM_NUMBER, AT(start), SIZE_MAX},
    {"cap_last_page", PARAM_BOOL, AT(cap_last_page), SIZE_MAX},
    {"ranges_max", PARAM_NUMBER, AT(ranges_max), AT(has_ranges_max)},
    {"extra_key", PARAM_TEXT, AT(extra_key), SIZE_MAX},
    {"cache_salt", PARAM_TEXT, AT(cache_salt), SIZE_MAX},
    {"lora_name", PARAM_TEXT, AT(lora_name), SIZE_MAX},
    {"page_from", PARAM_NUMBER, AT(page_from), SIZE_MAX},
    {"page_to", PARAM_NUMBER, AT(page_to), SIZE_MAX},
    {"routing_group", PARAM_IGNORED, 0, SIZE_MAX},
    {"tokens", PARAM_IGNORED, 0, SIZE_MAX},
    {"token_ids", PARAM_IGNORED, 0, SIZE_MAX},
    {"prompts", PARAM_IGNORED, 0, SIZE_MAX},
    {"page_keys", PARAM_IGNORED, 0, SIZE_MAX},
    {"block_hashes", PARAM_IGNORED, 0, SIZE_MAX},
    {"seq_hashes", PARAM_IGNORED, 0, SIZE_MAX},
};
#define PARAM_COUNT (sizeof(PARAMS) / sizeof(PARAMS[0]))

static const struct param *find(const char *name)
{
    for (size_t i = 0; i < PARAM_COUNT; i++) {
        if (strcmp(PARAMS[i].name, name) == 0)
            return &PARAMS[i];
    }
    return NULL;
}

static bool refuse(struct kvd_request *request, const char *name, const char *message)
{
    struct kvg_error error = {.code = KVG_EINVAL};

    kvi_fail(&error, KVG_EINVAL, name, message);
    kvd_problem_error(request, &error);
    return false;
}

static void set(
    struct kvd_params *params, const struct param *param, const void *value, size_t bytes)
{
    memcpy((char *)params + param->offset, value, bytes);
    if (param->has_offset != SIZE_MAX)
        *(bool *)((char *)params + param->has_offset) = true;
}

static bool set_json(struct kvd_request *request, struct kvd_params *params,
    const struct param *param, const json_t *value)
{
    struct kvg_str text = {json_string_value(value), json_string_length(value)};
    json_int_t number = json_integer_value(value);
    bool truth = json_is_true(value);

    if (param->type == PARAM_IGNORED || json_is_null(value))
        return true;
    if (param->type == PARAM_TEXT) {
        if (!json_is_string(value))
            return refuse(request, param->name, "is not a string");
        set(params, param, &text, sizeof(text));
    } else if (param->type == PARAM_NUMBER) {
        if (!json_is_integer(value) || number < 0)
            return refuse(request, param->name, "is not a whole number from 0 on");
        set(params, param, &(uint64_t){(uint64_t)number}, sizeof(uint64_t));
    } else {
        if (!json_is_boolean(value))
            return refuse(request, param->name, "is neither true nor false");
        set(params, param, &truth, sizeof(truth));
    }
    return true;
}

static bool set_query(struct kvd_request *request, struct kvd_params *params,
    const struct param *param, const char *value)
{
    struct kvg_str text = kvi_str(value);
    uint64_t number = 0;
    bool truth;

    if (param->type == PARAM_IGNORED || value == NULL)
        return true;
    if (param->type == PARAM_TEXT) {
        set(params, param, &text, sizeof(text));
        return true;
    }
    if (param->type == PARAM_BOOL) {
        truth = strcmp(value, "true") == 0 || strcmp(value, "1") == 0;
        if (!truth && strcmp(value, "false") != 0 && strcmp(value, "0") != 0)
            return refuse(request, param->name, "is neither true nor false");
        set(params, param, &truth, sizeof(truth));
        return true;
    }
    for (size_t i = 0; i < text.bytes; i++) {
        if (value[i] < '0' || value[i] > '9' ||
            __builtin_mul_overflow(number, 10, &number) ||
            __builtin_add_overflow(number, (uint64_t)(value[i] - '0'), &number))
            return refuse(request, param->name, "is not a whole number from 0 on");
    }
    if (text.bytes == 0)
        return refuse(request, param->name, "is empty");
    set(params, param, &number, sizeof(number));
    return true;
}

static bool refuse_unknown(struct kvd_request *request, const char *name)
{
    return refuse(request, name,
        "is not a parameter; GET /openapi.json lists them, and nothing is ignored "
        "silently");
}

struct walk {
    struct kvd_request *request;
    struct kvd_params *params;
    bool strict;
    bool good;
};

static enum MHD_Result walk_query(
    void *context, enum MHD_ValueKind kind, const char *name, const char *value)
{
    struct walk *walk = context;
    const struct param *param = find(name);

    (void)kind;
    if (param == NULL)
        walk->good = !walk->strict || refuse_unknown(walk->request, name);
    else
        walk->good = set_query(walk->request, walk->params, param, value);
    return walk->good ? MHD_YES : MHD_NO;
}

static bool read_json(struct kvd_request *request, bool strict, struct kvd_params *params)
{
    struct kvd_scan *scan = &request->answerer->scan;
    const char *name;
    json_t *value;
    json_error_t failure;
    char detail[256];

    json_decref(request->json);
    request->json =
        json_loadb(scan->rest.data, scan->rest.bytes, JSON_REJECT_DUPLICATES, &failure);
    if (request->json == NULL) {
        snprintf(detail, sizeof(detail), "the body is not JSON: %s", failure.text);
        kvd_problem(request, 400, "bad-json", "body", detail);
        return false;
    }
    json_object_foreach(request->json, name, value)
    {
        const struct param *param = find(name);

        if (param == NULL && strict)
            return refuse_unknown(request, name);
        if (param != NULL && !set_json(request, params, param, value))
            return false;
    }
    return true;
}

bool kvd_params_read(struct kvd_request *request, bool strict, struct kvd_params *out)
{
    struct kvd_scan *scan = &request->answerer->scan;
    struct kvg_str body = {request->body.data, request->body.bytes};
    struct walk walk = {request, out, strict, true};
    struct kvg_error error = {.code = KVG_OK};
    kvg_err err;

    memset(out, 0, sizeof(*out));
    kvd_scan_reset(scan, KVD_KEEP_BYTES_MAX);
    err = request->is_binary ? kvd_scan_binary(scan, body, &error)
                             : kvd_scan_json(scan, body, &error);
    if (err != KVG_OK) {
        kvd_problem_error(request, &error);
        return false;
    }
    MHD_get_connection_values(
        request->connection, MHD_GET_ARGUMENT_KIND, walk_query, &walk);
    if (!walk.good || !read_json(request, strict, out))
        return false;
    if (out->lora_name.bytes > 0)
        return refuse(request, "lora_name",
            "cannot be turned into a page key; give the engine's own extra_key instead");
    return true;
}
