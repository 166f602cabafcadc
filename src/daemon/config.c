/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* config.c -- reading a configuration: file, environment, single keys.
 *
 * Every way in ends in kvd_key_set() on a row of the table, so limits and messages are the same
 * everywhere.  Reading works on a copy that replaces the original only when all of it was good.
 */
#include "daemon/config.h"

#include "base/alloc.h"
#include "base/fmt.h"
#include "daemon/config_table.h"
#include "net/http_get.h"

#include <ctype.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#define FILE_BYTES_MAX (KVD_WORKERS_JSON_BYTES_MAX + (1u << 20))
#define PATH_BYTES 128u
#define ENVIRONMENT_PREFIX "KVGRAFT_"

static void set_defaults(const struct kvd_key *keys, size_t count, void *object)
{
    for (size_t i = 0; i < count; i++) {
        if (keys[i].type == KVD_VALUE_JSON)
            continue;
        /* The table's own defaults are within its limits: a test reads each. */
        if (kvd_key_set(&keys[i], object, keys[i].name, kvi_str(keys[i].standard),
                NULL) != KVG_OK)
            continue;
    }
}

void kvd_config_init(struct kvd_config *config)
{
    memset(config, 0, sizeof(*config));
    set_defaults(KVD_KEYS, KVD_KEY_COUNT, config);
}

static void release_workers(struct kvd_source_config *source)
{
    if (source->workers_json != NULL)
        kvi_release_string(
            kvg_alloc_default(), source->workers_json, strlen(source->workers_json));
    source->workers_json = NULL;
}

void kvd_config_fini(struct kvd_config *config)
{
    for (uint32_t i = 0; i < KVD_SOURCES_MAX; i++)
        release_workers(&config->sources[i]);
    config->source_count = 0;
}

kvg_err kvd_config_set_workers(struct kvd_source_config *source, const char *json)
{
    return kvd_key_set(
        kvd_key_find(NULL, "workers"), source, "workers", kvi_str(json), NULL);
}

kvg_err kvd_config_copy(struct kvd_config *to, const struct kvd_config *from)
{
    *to = *from;
    for (uint32_t i = 0; i < KVD_SOURCES_MAX; i++)
        to->sources[i].workers_json = NULL;
    for (uint32_t i = 0; i < from->source_count; i++) {
        if (from->sources[i].workers_json == NULL)
            continue;
        if (kvd_config_set_workers(&to->sources[i], from->sources[i].workers_json) !=
            KVG_OK) {
            kvd_config_fini(to);
            return KVG_ENOMEM;
        }
    }
    return KVG_OK;
}

static bool put_text(char *field, size_t room, const char *text)
{
    size_t bytes = text == NULL ? 0 : strlen(text);

    if (bytes >= room)
        return false;
    if (bytes > 0)
        memcpy(field, text, bytes);
    field[bytes] = '\0';
    return true;
}

struct kvd_source_config *kvd_config_add_source(struct kvd_config *config,
    const char *name, const char *endpoint, const char *admin_url)
{
    struct kvd_source_config *source = &config->sources[config->source_count];

    if (config->source_count == KVD_SOURCES_MAX)
        return NULL;
    memset(source, 0, sizeof(*source));
    set_defaults(KVD_SOURCE_KEYS, KVD_SOURCE_KEY_COUNT, source);
    if (!put_text(source->name, sizeof(source->name), name) ||
        !put_text(source->endpoint, sizeof(source->endpoint), endpoint) ||
        !put_text(source->admin_url, sizeof(source->admin_url), admin_url))
        return NULL;
    config->source_count++;
    return source;
}

/* JSON ------------------------------------------------------------------------------------- */

static kvg_err refuse_unknown(
    struct kvg_error *error, const char *group, const char *name, const char *path)
{
    const char *hint = kvd_key_hint(group, name);
    char message[160];

    if (hint != NULL)
        snprintf(message, sizeof(message), "is not a key; did you mean \"%s\"?", hint);
    else
        snprintf(message, sizeof(message),
            "is not a key; `kvgraft config init` prints all there are");
    return kvi_fail(error, KVG_EINVAL, path, message);
}

static kvg_err set_from_json(const struct kvd_key *key, void *object, const char *path,
    const json_t *value, struct kvg_error *error)
{
    char number[24];
    char *dumped;
    kvg_err err;

    if (key->type == KVD_VALUE_JSON) {
        if (!json_is_object(value))
            return kvi_fail(error, KVG_EINVAL, path, "is not an object");
        dumped = json_dumps(value, JSON_COMPACT);
        if (dumped == NULL)
            return kvi_fail(error, KVG_ENOMEM, path, "does not fit into memory");
        err = kvd_key_set(key, object, path, kvi_str(dumped), error);
        free(dumped);
        return err;
    }
    if (json_is_string(value))
        return kvd_key_set(key, object, path,
            (struct kvg_str){json_string_value(value), json_string_length(value)}, error);
    if (json_is_integer(value) && json_integer_value(value) >= 0 &&
        key->type != KVD_VALUE_TEXT) {
        snprintf(
            number, sizeof(number), "%" JSON_INTEGER_FORMAT, json_integer_value(value));
        return kvd_key_set(key, object, path, kvi_str(number), error);
    }
    return kvi_fail(error, KVG_EINVAL, path,
        key->type == KVD_VALUE_TEXT || key->type == KVD_VALUE_CHOICE
            ? "is not a string"
            : "is neither a whole number nor a string with a unit");
}

static kvg_err read_group(
    struct kvd_config *config, const char *group, json_t *values, struct kvg_error *error)
{
    const char *name;
    json_t *value;
    char path[PATH_BYTES];

    if (!json_is_object(values))
        return kvi_fail(error, KVG_EINVAL, group, "is not an object");
    json_object_foreach(values, name, value)
    {
        const struct kvd_key *key = kvd_key_find(group, name);
        kvg_err err;

        snprintf(path, sizeof(path), "%s.%s", group, name);
        if (key == NULL)
            return refuse_unknown(error, group, name, path);
        err = set_from_json(key, config, path, value, error);
        if (err != KVG_OK)
            return err;
    }
    return KVG_OK;
}

static kvg_err read_source(
    struct kvd_config *config, uint32_t index, json_t *values, struct kvg_error *error)
{
    struct kvd_source_config *source = kvd_config_add_source(config, "", "", "");
    const char *name;
    json_t *value;
    char path[PATH_BYTES];

    snprintf(path, sizeof(path), "sources.%u", (unsigned)index);
    if (source == NULL)
        return kvi_fail_range(error, "sources", index + 1, 0, KVD_SOURCES_MAX);
    if (!json_is_object(values))
        return kvi_fail(error, KVG_EINVAL, path, "is not an object");
    json_object_foreach(values, name, value)
    {
        const struct kvd_key *key = kvd_key_find(NULL, name);
        kvg_err err;

        snprintf(path, sizeof(path), "sources.%u.%s", (unsigned)index, name);
        if (key == NULL)
            return refuse_unknown(error, NULL, name, path);
        err = set_from_json(key, source, path, value, error);
        if (err != KVG_OK)
            return err;
    }
    if (source->name[0] == '\0')
        snprintf(source->name, sizeof(source->name), "source-%u", (unsigned)index);
    return KVG_OK;
}

static kvg_err read_root(struct kvd_config *config, json_t *root, struct kvg_error *error)
{
    static const char *const GROUPS[] = {"http", "log", "dump"};
    const char *name;
    json_t *value;

    if (!json_is_object(root))
        return kvi_fail(error, KVG_EFORMAT, "config", "is not a JSON object");
    json_object_foreach(root, name, value)
    {
        kvg_err err = KVG_EINVAL;
        size_t i;

        if (strcmp(name, "sources") == 0) {
            if (!json_is_array(value))
                return kvi_fail(error, KVG_EINVAL, "sources", "is not an array");
            kvd_config_fini(config);
            for (i = 0; i < json_array_size(value); i++) {
                err = read_source(config, (uint32_t)i, json_array_get(value, i), error);
                if (err != KVG_OK)
                    return err;
            }
            continue;
        }
        for (i = 0; i < 3 && strcmp(GROUPS[i], name) != 0; i++)
            continue;
        if (i == 3)
            return kvi_fail(error, KVG_EINVAL, name,
                "is not a key; allowed are http, log, dump and sources");
        err = read_group(config, name, value, error);
        if (err != KVG_OK)
            return err;
    }
    return KVG_OK;
}

static kvg_err parse_json(struct kvg_str text, struct kvg_error *error, json_t **out)
{
    char *copy = kvi_copy_string(kvg_alloc_default(), text);
    json_error_t failure;
    char message[192];

    *out = NULL;
    if (copy == NULL)
        return kvi_fail(error, KVG_ENOMEM, "config", "does not fit into memory");
    kvd_blank_comments(copy, text.bytes);
    *out = json_loadb(copy, text.bytes, JSON_REJECT_DUPLICATES, &failure);
    kvi_release_string(kvg_alloc_default(), copy, text.bytes);
    if (*out != NULL)
        return KVG_OK;
    snprintf(message, sizeof(message), "line %d, column %d: %s", failure.line,
        failure.column, failure.text);
    return kvi_fail(error, KVG_EFORMAT, "config", message);
}

kvg_err kvd_config_parse(
    struct kvd_config *config, struct kvg_str text, struct kvg_error *error)
{
    struct kvd_config *fresh;
    json_t *root;
    kvg_err err = parse_json(text, error, &root);

    if (err != KVG_OK)
        return err;
    fresh = KVI_NEW(kvg_alloc_default(), struct kvd_config);
    if (fresh == NULL || kvd_config_copy(fresh, config) != KVG_OK) {
        err = kvi_fail(error, KVG_ENOMEM, "config", "does not fit into memory");
        goto done;
    }
    err = read_root(fresh, root, error);
    if (err == KVG_OK) {
        kvd_config_fini(config);
        *config = *fresh;
    } else {
        kvd_config_fini(fresh);
    }

done:
    if (fresh != NULL)
        KVI_FREE(kvg_alloc_default(), fresh);
    json_decref(root);
    return err;
}

/* Reads at most `bytes_max`; the caller releases *data with *capacity. */
static kvg_err read_file(const char *path, size_t bytes_max, struct kvg_error *error,
    char **data, size_t *capacity, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    const struct kvg_alloc *alloc = kvg_alloc_default();
    void *grown = NULL;
    bool room = true;
    char message[192];

    *data = NULL;
    *capacity = 0;
    *bytes = 0;
    if (file == NULL) {
        snprintf(message, sizeof(message), "%.120s: %s", path, strerror(errno));
        return kvi_fail(error, KVG_EIO, "file", message);
    }
    while (room && feof(file) == 0 && ferror(file) == 0 && *bytes <= bytes_max) {
        if (*bytes == *capacity) {
            size_t more = *capacity == 0 ? 4096 : *capacity * 2;

            room = kvi_resize_array(alloc, &grown, *capacity, more, 1);
            *capacity = room ? more : *capacity;
        }
        if (room)
            *bytes += fread((char *)grown + *bytes, 1, *capacity - *bytes, file);
    }
    *data = grown;
    if (ferror(file) != 0 || !room || *bytes > bytes_max) {
        snprintf(message, sizeof(message), "%.120s: %s", path,
            ferror(file) != 0 ? strerror(errno) : "is too large");
        fclose(file);
        kvi_release_array(alloc, grown, *capacity, 1);
        *data = NULL;
        return kvi_fail(error, KVG_EIO, "file", message);
    }
    fclose(file);
    return KVG_OK;
}

kvg_err kvd_config_read_file(
    struct kvd_config *config, const char *path, struct kvg_error *error)
{
    char *data;
    size_t capacity;
    size_t bytes;
    kvg_err err = read_file(path, FILE_BYTES_MAX, error, &data, &capacity, &bytes);

    if (err != KVG_OK)
        return err;
    err = kvd_config_parse(config, (struct kvg_str){data, bytes}, error);
    kvi_release_array(kvg_alloc_default(), data, capacity, 1);
    return err;
}

/* Single keys and the environment ---------------------------------------------------------- */

static kvg_err set_source_key(struct kvd_config *config, const char *rest,
    const char *value, const char *path, struct kvg_error *error)
{
    const struct kvd_key *key;
    char *end;
    unsigned long index = strtoul(rest, &end, 10);

    if (end == rest || *end != '.' || index > config->source_count ||
        index >= KVD_SOURCES_MAX)
        return kvi_fail(error, KVG_EINVAL, path,
            "does not name a source that exists, or the next one");
    key = kvd_key_find(NULL, end + 1);
    if (key == NULL)
        return refuse_unknown(error, NULL, end + 1, path);
    if (index == config->source_count) {
        char name[KVD_NAME_BYTES];

        snprintf(name, sizeof(name), "source-%lu", index);
        kvd_config_add_source(config, name, "", "");
    }
    return kvd_key_set(key, &config->sources[index], path, kvi_str(value), error);
}

kvg_err kvd_config_set(struct kvd_config *config, const char *key, const char *value,
    struct kvg_error *error)
{
    const char *dot = strchr(key, '.');
    const struct kvd_key *row;
    char group[PATH_BYTES];

    if (dot == NULL || (size_t)(dot - key) >= sizeof(group))
        return kvi_fail(error, KVG_EINVAL, key, "is not group.name, e.g. http.listen");
    memcpy(group, key, (size_t)(dot - key));
    group[dot - key] = '\0';
    if (strcmp(group, "sources") == 0)
        return set_source_key(config, dot + 1, value, key, error);
    row = kvd_key_find(group, dot + 1);
    if (row == NULL)
        return refuse_unknown(error, group, dot + 1, key);
    return kvd_key_set(row, config, key, kvi_str(value), error);
}

/* HTTP_LISTEN to http.listen, SOURCES_0_ADMIN_URL to sources.0.admin_url.  False if it is too
 * long to be one of ours. */
static bool key_of_variable(const char *name, size_t bytes, char *out)
{
    size_t dots = strncmp(name, "SOURCES_", 8) == 0 ? 2 : 1;

    if (bytes >= PATH_BYTES)
        return false;
    for (size_t i = 0; i < bytes; i++) {
        out[i] = (char)tolower((unsigned char)name[i]);
        if (name[i] == '_' && dots > 0) {
            out[i] = '.';
            dots--;
        }
    }
    out[bytes] = '\0';
    return dots == 0;
}

/* Other programs may use the prefix too (Kubernetes makes KVGRAFT_SERVICE_HOST out of a service
 * named kvgraft), so a variable that is no key is left alone. */
static bool is_key(const char *path)
{
    const char *dot = strchr(path, '.');
    char group[PATH_BYTES];

    if (dot == NULL)
        return false;
    snprintf(group, sizeof(group), "%.*s", (int)(dot - path), path);
    if (strcmp(group, "sources") != 0)
        return kvd_key_find(group, dot + 1) != NULL;
    dot = strchr(dot + 1, '.');
    return dot != NULL && kvd_key_find(NULL, dot + 1) != NULL;
}

kvg_err kvd_config_read_environment(
    struct kvd_config *config, char *const *environment, struct kvg_error *error)
{
    size_t prefix_bytes = sizeof(ENVIRONMENT_PREFIX) - 1;

    /* Sources count up, whatever order the variables stand in. */
    for (uint32_t round = 0; round < KVD_SOURCES_MAX; round++) {
        for (size_t i = 0; environment[i] != NULL; i++) {
            const char *equals = strchr(environment[i], '=');
            char path[PATH_BYTES];
            char source[16];
            bool of_round;
            kvg_err err;

            if (equals == NULL ||
                strncmp(environment[i], ENVIRONMENT_PREFIX, prefix_bytes) != 0 ||
                !key_of_variable(environment[i] + prefix_bytes,
                    (size_t)(equals - environment[i]) - prefix_bytes, path) ||
                !is_key(path))
                continue;
            snprintf(source, sizeof(source), "sources.%u.", (unsigned)round);
            of_round = strncmp(path, source, strlen(source)) == 0 ||
                       (round == 0 && strncmp(path, "sources.", 8) != 0);
            if (!of_round)
                continue;
            err = kvd_config_set(config, path, equals + 1, error);
            if (err != KVG_OK)
                return err;
        }
    }
    return KVG_OK;
}

/* The whole -------------------------------------------------------------------------------- */

static kvg_err read_token(struct kvd_config *config, struct kvg_error *error)
{
    char *data;
    size_t capacity;
    size_t bytes;
    kvg_err err;

    if (config->http_token_file[0] == '\0' || config->http_token[0] != '\0')
        return KVG_OK;
    err = read_file(
        config->http_token_file, KVD_TOKEN_BYTES, error, &data, &capacity, &bytes);
    if (err != KVG_OK)
        return err;
    while (bytes > 0 && isspace((unsigned char)data[bytes - 1]))
        bytes--;
    err = kvd_key_set(kvd_key_find("http", "token"), config, "http.token_file",
        (struct kvg_str){data, bytes}, error);
    kvi_release_array(kvg_alloc_default(), data, capacity, 1);
    if (err == KVG_OK && bytes == 0)
        err = kvi_fail(error, KVG_EINVAL, "http.token_file", "is empty");
    return err;
}

static bool endpoint_is_sane(const char *endpoint)
{
    return endpoint[0] == '\0' || strncmp(endpoint, "tcp://", 6) == 0 ||
           strncmp(endpoint, "ipc://", 6) == 0;
}

/* A source's name is part of its dump's file name and of labels. */
static bool name_is_sane(const char *name)
{
    static const char GOOD[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                               "0123456789._-";

    return name[0] != '\0' && name[0] != '.' && strspn(name, GOOD) == strlen(name);
}

static kvg_err check_source(
    const struct kvd_config *config, uint32_t index, struct kvg_error *error)
{
    const struct kvd_source_config *source = &config->sources[index];
    struct kvn_url url;
    char path[PATH_BYTES];

    snprintf(path, sizeof(path), "sources.%u.endpoint", (unsigned)index);
    if (!endpoint_is_sane(source->endpoint))
        return kvi_fail(error, KVG_EINVAL, path,
            "is not a ZeroMQ endpoint, e.g. tcp://127.0.0.1:5557 or ipc:///run/events");
    if (source->endpoint[0] == '\0' && source->workers_file[0] == '\0' &&
        source->workers_json == NULL)
        return kvi_fail(error, KVG_EINVAL, path,
            "is empty, and there are no workers (workers, workers_file) to advertise "
            "one");
    snprintf(path, sizeof(path), "sources.%u.admin_url", (unsigned)index);
    if (source->admin_url[0] != '\0') {
        kvg_err err = kvn_url_parse(kvi_str(source->admin_url), path, error, &url);

        if (err != KVG_OK)
            return err;
    }
    snprintf(path, sizeof(path), "sources.%u.retry_max", (unsigned)index);
    if (source->retry_max_ms < source->retry_min_ms)
        return kvi_fail(error, KVG_EINVAL, path, "is less than retry_min");
    snprintf(path, sizeof(path), "sources.%u.name", (unsigned)index);
    if (!name_is_sane(source->name))
        return kvi_fail(error, KVG_EINVAL, path,
            "is not made of letters, digits, '_', '-' and '.', or begins with '.'");
    for (uint32_t i = 0; i < index; i++) {
        if (strcmp(config->sources[i].name, source->name) == 0)
            return kvi_fail(error, KVG_EINVAL, path, "is the name of another source too");
    }
    return KVG_OK;
}

kvg_err kvd_config_finish(struct kvd_config *config, struct kvg_error *error)
{
    char host[KVN_HOST_BYTES];
    uint16_t port;
    kvg_err err = KVG_OK;

    if (config->http_listen[0] != '\0')
        err = kvn_host_port_parse(
            kvi_str(config->http_listen), "http.listen", error, host, &port);
    for (uint32_t i = 0; err == KVG_OK && i < config->source_count; i++)
        err = check_source(config, i, error);
    return err != KVG_OK ? err : read_token(config, error);
}
