/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* tokens.c -- reads token ids as text, JSON or words (tokens.h). */
#include "cli/tokens.h"

#include "cli/cli.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static kvg_err fail(
    struct kvg_error *error, kvg_err code, const char *format, uint64_t value)
{
    error->code = code;
    snprintf(error->field, sizeof(error->field), "tokens");
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(error->message, sizeof(error->message), format, value);
#pragma GCC diagnostic pop
    return code;
}

static kvg_err reserve(struct kvc_tokens *tokens, size_t more, struct kvg_error *error)
{
    size_t need = tokens->count + more;
    size_t capacity = tokens->capacity == 0 ? 1024 : tokens->capacity;
    uint32_t *ids;

    if (more > KVC_TOKENS_MAX || need > KVC_TOKENS_MAX)
        return fail(error, KVG_ELIMIT, "more than the allowed %" PRIu64 " tokens",
            KVC_TOKENS_MAX);
    if (need <= tokens->capacity)
        return KVG_OK;
    while (capacity < need)
        capacity *= 2;
    ids = realloc(tokens->ids, capacity * sizeof(*ids));
    if (ids == NULL)
        return fail(error, KVG_ENOMEM, "out of memory for %" PRIu64 " tokens", need);
    tokens->ids = ids;
    tokens->capacity = capacity;
    return KVG_OK;
}

kvg_err kvc_tokens_add_run(
    struct kvc_tokens *tokens, uint32_t first, size_t count, struct kvg_error *error)
{
    kvg_err err;
    size_t i;

    if (count > 0 && count - 1 > UINT32_MAX - first)
        return fail(error, KVG_EINVAL, "a token id is at most %" PRIu64, UINT32_MAX);
    err = reserve(tokens, count, error);
    if (err != KVG_OK)
        return err;
    for (i = 0; i < count; i++)
        tokens->ids[tokens->count++] = first + (uint32_t)i;
    return KVG_OK;
}

/* Reads digits at *cursor. */
static kvg_err read_id(const char **cursor, const char *end, uint64_t place,
    uint64_t *out, struct kvg_error *error)
{
    const char *at = *cursor;
    uint64_t value = 0;

    if (at == end || *at < '0' || *at > '9')
        return fail(error, KVG_EFORMAT,
            "a number was expected at byte %" PRIu64 "; allowed: 1,2,3 or 1 2 3 or 1..64",
            place);
    for (; at < end && *at >= '0' && *at <= '9'; at++) {
        value = value * 10 + (uint64_t)(*at - '0');
        if (value > UINT32_MAX)
            return fail(error, KVG_EINVAL,
                "the number at byte %" PRIu64 " is no token id: at most 4294967295",
                place);
    }
    *cursor = at;
    *out = value;
    return KVG_OK;
}

static bool is_separator(char c)
{
    return c == ',' || c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static kvg_err add_text(
    struct kvc_tokens *tokens, struct kvg_str text, struct kvg_error *error)
{
    const char *cursor = text.data;
    const char *end = text.data + text.bytes;
    kvg_err err = KVG_OK;

    for (;;) {
        uint64_t first = 0;
        uint64_t last;

        while (cursor < end && is_separator(*cursor))
            cursor++;
        if (cursor == end)
            return KVG_OK;
        err = read_id(&cursor, end, (uint64_t)(cursor - text.data), &first, error);
        last = first;
        if (err == KVG_OK && end - cursor >= 2 && cursor[0] == '.' && cursor[1] == '.') {
            cursor += 2;
            err = read_id(&cursor, end, (uint64_t)(cursor - text.data), &last, error);
        }
        if (err != KVG_OK)
            return err;
        if (last < first)
            return fail(error, KVG_EINVAL,
                "a range that falls ends at byte %" PRIu64 "; write it as LOW..HIGH",
                (uint64_t)(cursor - text.data));
        err = kvc_tokens_add_run(tokens, (uint32_t)first, last - first + 1, error);
        if (err != KVG_OK)
            return err;
    }
}

static kvg_err add_json_array(
    struct kvc_tokens *tokens, const json_t *array, struct kvg_error *error)
{
    size_t count = json_array_size(array);
    kvg_err err = reserve(tokens, count, error);
    size_t i;

    if (err != KVG_OK)
        return err;
    for (i = 0; i < count; i++) {
        const json_t *item = json_array_get(array, i);
        json_int_t value = json_integer_value(item);

        if (!json_is_integer(item) || value < 0 || value > UINT32_MAX)
            return fail(error, KVG_EINVAL,
                "element %" PRIu64 " is no token id: a whole number, 0 to 4294967295", i);
        tokens->ids[tokens->count++] = (uint32_t)value;
    }
    return KVG_OK;
}

static kvg_err add_json(
    struct kvc_tokens *tokens, struct kvg_str text, struct kvg_error *error)
{
    json_error_t where;
    json_t *root = json_loadb(text.data, text.bytes, JSON_REJECT_DUPLICATES, &where);
    const json_t *array = root;
    kvg_err err;

    if (root == NULL) {
        fail(error, KVG_EFORMAT, "no JSON: see line %" PRIu64, (uint64_t)where.line);
        return KVG_EFORMAT;
    }
    if (json_is_object(root)) {
        array = json_object_get(root, "tokens");
        if (array == NULL)
            array = json_object_get(root, "token_ids");
    }
    if (json_is_array(array))
        err = add_json_array(tokens, array, error);
    else
        err = fail(error, KVG_EFORMAT,
            "the JSON must be an array, or an object with \"tokens\" (%" PRIu64 " found)",
            0);
    json_decref(root);
    return err;
}

static kvg_err add_words(
    struct kvc_tokens *tokens, struct kvg_str bytes, struct kvg_error *error)
{
    kvg_err err;
    size_t i;

    if (bytes.bytes % 4 != 0)
        return fail(error, KVG_EFORMAT,
            "%" PRIu64 " bytes are not a whole number of u32 words", bytes.bytes);
    err = reserve(tokens, bytes.bytes / 4, error);
    if (err != KVG_OK)
        return err;
    for (i = 0; i < bytes.bytes; i += 4) {
        const uint8_t *word = (const uint8_t *)bytes.data + i;

        tokens->ids[tokens->count++] = (uint32_t)word[0] | (uint32_t)word[1] << 8 |
                                       (uint32_t)word[2] << 16 | (uint32_t)word[3] << 24;
    }
    return KVG_OK;
}

static enum kvc_token_format guess(struct kvg_str bytes)
{
    size_t i = 0;

    while (i < bytes.bytes && is_separator(bytes.data[i]))
        i++;
    if (i < bytes.bytes && (bytes.data[i] == '[' || bytes.data[i] == '{'))
        return KVC_TOKENS_JSON;
    for (; i < bytes.bytes; i++) {
        char c = bytes.data[i];

        if (!is_separator(c) && c != '.' && (c < '0' || c > '9'))
            return KVC_TOKENS_U32;
    }
    return KVC_TOKENS_TEXT;
}

kvg_err kvc_tokens_add(struct kvc_tokens *tokens, struct kvg_str bytes,
    enum kvc_token_format format, struct kvg_error *error)
{
    size_t before = tokens->count;
    kvg_err err = KVG_EINVAL;

    if (format == KVC_TOKENS_AUTO)
        format = guess(bytes);
    if (format == KVC_TOKENS_JSON)
        err = add_json(tokens, bytes, error);
    else if (format == KVC_TOKENS_U32)
        err = add_words(tokens, bytes, error);
    else
        err = add_text(tokens, bytes, error);
    if (err != KVG_OK)
        tokens->count = before;
    return err;
}

kvg_err kvc_tokens_of_arguments(struct kvc_tokens *tokens, char **arguments,
    int argument_count, const char *file, enum kvc_token_format format,
    struct kvg_error *error)
{
    kvg_err err = KVG_OK;
    size_t bytes;
    char *data;
    int i;

    if (file == NULL && argument_count == 1 && strcmp(arguments[0], "-") == 0) {
        file = "-";
        argument_count = 0;
    }
    for (i = 0; i < argument_count && err == KVG_OK; i++) {
        struct kvg_str text = {arguments[i], strlen(arguments[i])};

        err = kvc_tokens_add(tokens, text, KVC_TOKENS_TEXT, error);
    }
    if (file == NULL || err != KVG_OK)
        return err;
    data = kvc_read_file(file, KVC_TOKEN_FILE_BYTES_MAX, &bytes, error);
    if (data == NULL)
        return error->code;
    err = kvc_tokens_add(tokens, (struct kvg_str){data, bytes}, format, error);
    free(data);
    return err;
}

void kvc_tokens_fini(struct kvc_tokens *tokens)
{
    free(tokens->ids);
    *tokens = (struct kvc_tokens){0};
}
