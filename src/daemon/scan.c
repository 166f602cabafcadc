/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* scan.c -- the scanner of long arrays.
 *
 * Only the outermost object is looked at member by member.  Values that are not ours are skipped
 * by counting brackets outside strings and copied as they are; whether they are JSON is the
 * library's to say.
 *
 * Invariant: S1  `at` never passes `end`; every read is behind a comparison with it.
 */
#include "daemon/scan.h"

#include "base/alloc.h"
#include "base/fmt.h"
#include "base/hex.h"

#include <stdio.h>
#include <string.h>

struct cursor {
    const char *begin;
    const char *at;
    const char *end;
    struct kvg_error *error;
};

void kvd_scan_init(struct kvd_scan *scan, const struct kvg_alloc *alloc)
{
    memset(scan, 0, sizeof(*scan));
    scan->alloc = alloc;
    kvd_out_init(&scan->rest, alloc);
}

void kvd_scan_fini(struct kvd_scan *scan)
{
    kvi_release_array(
        scan->alloc, scan->tokens, scan->token_capacity, sizeof(*scan->tokens));
    kvi_release_array(scan->alloc, scan->keys, scan->key_capacity, sizeof(*scan->keys));
    kvi_release_array(scan->alloc, scan->prompt_ends, scan->prompt_capacity,
        sizeof(*scan->prompt_ends));
    kvd_out_fini(&scan->rest);
    kvd_scan_init(scan, scan->alloc);
}

void kvd_scan_reset(struct kvd_scan *scan, size_t keep_bytes_max)
{
    if (scan->token_capacity * sizeof(*scan->tokens) > keep_bytes_max ||
        scan->key_capacity * sizeof(*scan->keys) > keep_bytes_max)
        kvd_scan_fini(scan);
    kvd_out_reset(&scan->rest, keep_bytes_max);
    scan->token_count = 0;
    scan->has_tokens = false;
    scan->key_count = 0;
    scan->has_keys = false;
    scan->prompt_count = 0;
    scan->has_prompts = false;
}

static bool grow(const struct kvg_alloc *alloc, void **array, size_t *capacity,
    size_t needed, size_t bytes)
{
    size_t larger = *capacity == 0 ? 4096 : *capacity * 2;

    if (needed <= *capacity)
        return true;
    if (larger < needed)
        larger = needed;
    if (!kvi_resize_array(alloc, array, *capacity, larger, bytes))
        return false;
    *capacity = larger;
    return true;
}

static bool grow_tokens(struct kvd_scan *scan, size_t needed)
{
    void *array = scan->tokens;
    bool grown =
        grow(scan->alloc, &array, &scan->token_capacity, needed, sizeof(*scan->tokens));

    scan->tokens = array;
    return grown;
}

static bool grow_keys(struct kvd_scan *scan, size_t needed)
{
    void *array = scan->keys;
    bool grown =
        grow(scan->alloc, &array, &scan->key_capacity, needed, sizeof(*scan->keys));

    scan->keys = array;
    return grown;
}

static bool grow_prompts(struct kvd_scan *scan, size_t needed)
{
    void *array = scan->prompt_ends;
    bool grown = grow(
        scan->alloc, &array, &scan->prompt_capacity, needed, sizeof(*scan->prompt_ends));

    scan->prompt_ends = array;
    return grown;
}

static kvg_err no_memory(struct kvg_error *error)
{
    return kvi_fail(error, KVG_ENOMEM, "body", "does not fit into memory");
}

static kvg_err refuse(const struct cursor *c, const char *message)
{
    char text[160];

    snprintf(text, sizeof(text), "%s, at byte %zu", message, (size_t)(c->at - c->begin));
    return kvi_fail(c->error, KVG_EFORMAT, "body", text);
}

/* An element of an array is not what it must be. */
static kvg_err refuse_element(const struct cursor *c, kvg_err err, struct kvg_str member,
    size_t index, const char *message)
{
    char field[64];

    snprintf(field, sizeof(field), "%.*s[%zu]", (int)member.bytes, member.data, index);
    return kvi_fail(c->error, err, field, message);
}

static void skip_blanks(struct cursor *c)
{
    while (c->at < c->end &&
           (*c->at == ' ' || *c->at == '\n' || *c->at == '\t' || *c->at == '\r'))
        c->at++;
}

static bool take(struct cursor *c, char wanted)
{
    skip_blanks(c);
    if (c->at == c->end || *c->at != wanted)
        return false;
    c->at++;
    return true;
}

/* Past a string whose opening quote is next; *out is what stands between the quotes. */
static bool take_string(struct cursor *c, struct kvg_str *out)
{
    if (!take(c, '"'))
        return false;
    out->data = c->at;
    while (c->at < c->end && *c->at != '"') {
        if (*c->at == '\\')
            c->at++;
        if (c->at < c->end)
            c->at++;
    }
    if (c->at == c->end)
        return false;
    out->bytes = (size_t)(c->at - out->data);
    c->at++;
    return true;
}

/* Past any value. */
static bool skip_value(struct cursor *c)
{
    size_t depth = 0;
    struct kvg_str ignored;

    skip_blanks(c);
    while (c->at < c->end) {
        if (*c->at == '"') {
            if (!take_string(c, &ignored))
                return false;
            if (depth == 0)
                return true;
            continue;
        }
        if (*c->at == '{' || *c->at == '[') {
            depth++;
        } else if (*c->at == '}' || *c->at == ']') {
            if (depth == 0)
                return true;
            if (--depth == 0) {
                c->at++;
                return true;
            }
        } else if (*c->at == ',' && depth == 0) {
            return true;
        }
        c->at++;
    }
    return depth == 0;
}

/* Tokens ----------------------------------------------------------------------------------- */

/* Reads one number at *at, at most `end`; *at stands behind it.  False if there is none, or if it
 * is not a token. */
static inline bool read_token(const char **at, const char *end, uint32_t *out)
{
    const char *c = *at;
    const char *first = c;
    uint64_t value = 0;

    while (c < end && (unsigned char)(*c - '0') <= 9 && value <= UINT32_MAX)
        value = value * 10 + (uint64_t)(*c++ - '0');
    *at = c;
    *out = (uint32_t)value;
    return c != first && value <= UINT32_MAX && (*first != '0' || c - first == 1);
}

/* The loop of a long prompt: in the common case three comparisons a token beside its digits. */
static kvg_err take_tokens(struct kvd_scan *scan, struct cursor *c, struct kvg_str member)
{
    size_t first = scan->token_count;

    if (!take(c, '['))
        return refuse_element(c, KVG_EFORMAT, member, 0, "is not in an array");
    scan->has_tokens = true;
    if (take(c, ']'))
        return KVG_OK;
    for (;;) {
        uint32_t token;

        if (c->at < c->end && *c->at <= ' ')
            skip_blanks(c);
        if (!read_token(&c->at, c->end, &token))
            return refuse_element(c, KVG_EFORMAT, member, scan->token_count - first,
                "is not a whole number; allowed is 0 to 4294967295");
        if (scan->token_count == scan->token_capacity &&
            !grow_tokens(scan, scan->token_count + 1))
            return no_memory(c->error);
        scan->tokens[scan->token_count++] = token;
        if (c->at < c->end && *c->at == ',') {
            c->at++;
            continue;
        }
        if (take(c, ']'))
            return KVG_OK;
        if (!take(c, ','))
            return refuse_element(c, KVG_EFORMAT, member, scan->token_count - first - 1,
                "is not a whole number, or is where the array breaks off");
    }
}

static kvg_err take_prompts(
    struct kvd_scan *scan, struct cursor *c, struct kvg_str member)
{
    char inner[64];

    if (!take(c, '['))
        return refuse_element(c, KVG_EFORMAT, member, 0, "is not in an array");
    scan->has_prompts = true;
    if (take(c, ']'))
        return KVG_OK;
    do {
        kvg_err err;

        if (scan->prompt_count == KVD_PROMPTS_MAX)
            return refuse_element(c, KVG_ELIMIT, member, scan->prompt_count,
                "is one prompt too many; allowed are 1024");
        snprintf(inner, sizeof(inner), "prompts[%zu]", scan->prompt_count);
        err = take_tokens(scan, c, kvi_str(inner));
        if (err != KVG_OK)
            return err;
        if (!grow_prompts(scan, scan->prompt_count + 1))
            return no_memory(c->error);
        scan->prompt_ends[scan->prompt_count++] = scan->token_count;
    } while (take(c, ','));
    if (!take(c, ']'))
        return refuse_element(
            c, KVG_EFORMAT, member, scan->prompt_count, "is where the array breaks off");
    return KVG_OK;
}

static kvg_err take_keys(struct kvd_scan *scan, struct cursor *c, struct kvg_str member)
{
    size_t index = 0;

    if (!take(c, '['))
        return refuse_element(c, KVG_EFORMAT, member, 0, "is not in an array");
    scan->has_keys = true;
    if (take(c, ']'))
        return KVG_OK;
    do {
        struct kvg_str hex;

        if (!grow_keys(scan, scan->key_count + 1))
            return no_memory(c->error);
        if (!take_string(c, &hex) || !kvg_key_from_hex(hex, &scan->keys[scan->key_count]))
            return refuse_element(c, KVG_EFORMAT, member, index,
                "is not a page key: a string of 64 hex digits (`kvgraft hash` makes "
                "them)");
        scan->key_count++;
        index++;
    } while (take(c, ','));
    if (!take(c, ']'))
        return refuse_element(
            c, KVG_EFORMAT, member, index, "is where the array breaks off");
    return KVG_OK;
}

/* The object ------------------------------------------------------------------------------- */

static bool is_any(struct kvg_str name, const char *const *words, size_t word_count)
{
    for (size_t i = 0; i < word_count; i++) {
        if (kvi_str_equal(name, kvi_str(words[i])))
            return true;
    }
    return false;
}

/* Which of our arrays the member is. */
typedef kvg_err take_array(
    struct kvd_scan *scan, struct cursor *c, struct kvg_str member);

static take_array *array_of(struct kvg_str name)
{
    static const char *const TOKENS[] = {"tokens", "token_ids"};
    static const char *const PROMPTS[] = {"prompts"};
    static const char *const KEYS[] = {"page_keys", "block_hashes", "seq_hashes"};

    return is_any(name, TOKENS, 2)    ? take_tokens
           : is_any(name, PROMPTS, 1) ? take_prompts
           : is_any(name, KEYS, 3)    ? take_keys
                                      : NULL;
}

static kvg_err take_member(struct kvd_scan *scan, struct cursor *c)
{
    struct kvg_str name;
    const char *value;
    take_array *take_ours;

    if (!take_string(c, &name))
        return refuse(c, "a member's name in quotes is expected");
    if (!take(c, ':'))
        return refuse(c, "a colon is expected");
    kvd_out_text(&scan->rest, "\"");
    kvd_out_str(&scan->rest, name);
    kvd_out_text(&scan->rest, "\":");
    skip_blanks(c);
    take_ours = array_of(name);
    if (take_ours != NULL) {
        if (take_ours == take_keys ? scan->has_keys
                                   : scan->has_tokens || scan->has_prompts)
            return refuse(c, "tokens, or page keys, are given twice");
        kvd_out_text(&scan->rest, "null");
        return take_ours(scan, c, name);
    }
    value = c->at;
    if (!skip_value(c) || c->at == value)
        return refuse(c, "a value is expected, or does not end");
    kvd_out_bytes(&scan->rest, value, (size_t)(c->at - value));
    return KVG_OK;
}

kvg_err kvd_scan_json(struct kvd_scan *scan, struct kvg_str text, struct kvg_error *error)
{
    struct cursor c = {text.data, text.data, text.data + text.bytes, error};
    kvg_err err;

    if (text.bytes == 0 || !take(&c, '{'))
        return kvi_fail(error, KVG_EFORMAT, "body", "is not a JSON object");
    kvd_out_text(&scan->rest, "{");
    if (!take(&c, '}')) {
        for (;;) {
            err = take_member(scan, &c);
            if (err != KVG_OK)
                return err;
            if (!take(&c, ','))
                break;
            kvd_out_text(&scan->rest, ",");
        }
        if (!take(&c, '}'))
            return refuse(&c, "a comma or the closing brace is expected");
    }
    kvd_out_text(&scan->rest, "}");
    skip_blanks(&c);
    if (c.at != c.end)
        return refuse(&c, "something follows the object");
    return scan->rest.failed ? no_memory(error) : KVG_OK;
}

kvg_err kvd_scan_binary(
    struct kvd_scan *scan, struct kvg_str bytes, struct kvg_error *error)
{
    const unsigned char *at = (const unsigned char *)bytes.data;

    if (bytes.bytes % 4 != 0)
        return kvi_fail(error, KVG_EFORMAT, "body",
            "is not a whole number of tokens: 4 bytes each, little-endian");
    if (!grow_tokens(scan, bytes.bytes / 4))
        return no_memory(error);
    for (size_t i = 0; i < bytes.bytes / 4; i++, at += 4)
        scan->tokens[i] = (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 |
                          (uint32_t)at[3] << 24;
    scan->token_count = bytes.bytes / 4;
    scan->has_tokens = true;
    kvd_out_text(&scan->rest, "{}");
    return scan->rest.failed ? no_memory(error) : KVG_OK;
}
