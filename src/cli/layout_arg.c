/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* layout_arg.c -- the --layout of a command (layout_arg.h).  The daemon's reader of workers does
 * the work: here defaults are filled in, and the one object becomes worker 0. */
#include "cli/layout_arg.h"

#include "cli/cli.h"
#include "daemon/advertised.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define LAYOUT_BYTES_MAX (1u << 20)

static kvg_err fail(struct kvg_error *error, kvg_err code, const char *what)
{
    error->code = code;
    snprintf(error->field, sizeof(error->field), "layout");
    snprintf(error->message, sizeof(error->message), "%s", what);
    return code;
}

static void set_missing(json_t *object, const char *name, json_t *value)
{
    if (json_object_get(object, name) == NULL)
        json_object_set(object, name, value);
    json_decref(value);
}

/* {"0": the object with its defaults} as text, to be freed. */
static char *as_workers(const char *text, struct kvg_error *error)
{
    json_error_t where;
    json_t *object = json_loads(text, JSON_REJECT_DUPLICATES, &where);
    json_t *inner = object;
    json_t *workers;
    char *out = NULL;

    if (!json_is_object(object)) {
        fail(error, KVG_EFORMAT,
            object == NULL ? where.text : "is no JSON object; it begins with {");
        json_decref(object);
        return NULL;
    }
    if (json_object_get(object, KVD_ADVERTISED_KEY) != NULL)
        inner = json_object_get(object, KVD_ADVERTISED_KEY);
    set_missing(inner, "backend", json_string("mooncake"));
    set_missing(inner, "tp_size", json_integer(1));
    set_missing(inner, "pp_size", json_integer(1));
    set_missing(inner, "is_mla_model", json_false());
    set_missing(inner, "is_eagle", json_false());
    set_missing(inner, "should_split_heads", json_false());
    workers = json_pack("{s:o}", "0", object);
    if (workers != NULL)
        out = json_dumps(workers, JSON_COMPACT);
    json_decref(workers);
    if (out == NULL)
        fail(error, KVG_ENOMEM, "out of memory");
    return out;
}

kvg_err kvc_layout_arg(const char *text, struct kvg_error *error,
    struct kvg_workers **workers, const struct kvg_layout **layout_out)
{
    struct kvg_worker_report report;
    char *from_file = NULL;
    char *json;
    size_t bytes;
    kvg_err err;

    *workers = NULL;
    *layout_out = NULL;
    if (text[strspn(text, " \t\n")] != '{') {
        from_file = kvc_read_file(text, LAYOUT_BYTES_MAX, &bytes, error);
        if (from_file == NULL)
            return error->code;
        text = from_file;
    }
    json = as_workers(text, error);
    free(from_file);
    if (json == NULL)
        return error->code;
    err = kvg_workers_new(kvg_alloc_default(), workers);
    if (err == KVG_OK)
        err = kvd_advertised_read(*workers, (struct kvg_str){json, strlen(json)}, error);
    free(json);
    if (err == KVG_OK && kvg_workers_next(*workers, 0, &report)) {
        *error = report.error;
        err = report.error.code;
        if (report.layout_index >= 0)
            *layout_out = kvg_workers_layout(*workers, (size_t)report.layout_index);
    }
    if (err == KVG_OK && *layout_out == NULL)
        err = fail(error, KVG_EINVAL, "cannot be used");
    if (err != KVG_OK) {
        kvg_workers_free(*workers);
        *workers = NULL;
    }
    return err;
}
