/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* url.c -- the URLs that name stores, taken apart (store_backend.h), and shown without secrets.
 *
 *     fault + file : // user:password @ host:1,host:2 /path ? name=value & name=value
 *     wrapper scheme    \___ secret ___/ authority     path   parameters
 *
 * A parsed URL is one block of memory:
 *
 *     +--------+------------+--------------------------------+--------------+
 *     | struct | parameters | decoded strings, each with 0   | masked text  |
 *     +--------+------------+--------------------------------+--------------+
 *
 * Of a wrapper's URL the parameters named "WRAPPER.x" are the wrapper's; the others stay in the
 * URL inside.  So `fault+file:DIR?bytes=1GiB&fault.seed=7` opens `file:DIR?bytes=1GiB`.
 *
 * What is masked: the password, and the whole user info where it has no colon; the value of
 * a parameter whose name says that it is a secret, unless it says that it names a file. */
#include "store/store.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/fmt.h"

#define MASK "***"

struct parsed {
    struct kvg_store_url url;
    size_t block_bytes;
};

/* The parts of the text as it was written. */
struct raw {
    struct kvg_str scheme;
    struct kvg_str rest; /* After the ':' or '+'. */
    struct kvg_str user_info;
    bool has_user_info;
    struct kvg_str authority;
    bool has_authority;
    struct kvg_str path;
    struct kvg_str query;
    bool wrapper;
};

static size_t find(struct kvg_str text, char wanted)
{
    size_t i;

    for (i = 0; i < text.bytes && text.data[i] != wanted; i++)
        continue;
    return i;
}

static struct kvg_str cut(struct kvg_str text, size_t from, size_t to)
{
    return (struct kvg_str){text.data + from, to - from};
}

static int digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

static char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

static bool scheme_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.';
}

/* Splits text into raw parts.  False if it has no scheme. */
static bool split(struct kvg_str text, struct raw *raw)
{
    size_t at = 0;
    size_t mark;

    *raw = (struct raw){0};
    while (at < text.bytes && scheme_char(text.data[at]))
        at++;
    if (at == 0 || at == text.bytes || (text.data[at] != ':' && text.data[at] != '+'))
        return false;
    raw->scheme = cut(text, 0, at);
    raw->wrapper = text.data[at] == '+';
    raw->rest = cut(text, at + 1, text.bytes);
    mark = find(raw->rest, '?');
    raw->path = cut(raw->rest, 0, mark);
    if (mark < raw->rest.bytes)
        raw->query = cut(raw->rest, mark + 1, raw->rest.bytes);
    if (raw->wrapper || raw->path.bytes < 2 || raw->path.data[0] != '/' ||
        raw->path.data[1] != '/')
        return true;
    raw->authority = cut(raw->path, 2, raw->path.bytes);
    mark = find(raw->authority, '/');
    raw->path = cut(raw->authority, mark, raw->authority.bytes);
    raw->authority = cut(raw->authority, 0, mark);
    raw->has_authority = true;
    for (mark = raw->authority.bytes; mark > 0; mark--) {
        if (raw->authority.data[mark - 1] == '@') {
            raw->user_info = cut(raw->authority, 0, mark - 1);
            raw->authority = cut(raw->authority, mark, raw->authority.bytes);
            raw->has_user_info = true;
            break;
        }
    }
    return true;
}

/* The next "name=value" of a query; false at its end. */
static bool next_param(struct kvg_str *query, struct kvg_str *name, struct kvg_str *value)
{
    struct kvg_str pair;
    size_t end;

    while (query->bytes > 0) {
        end = find(*query, '&');
        pair = cut(*query, 0, end);
        *query = cut(*query, end < query->bytes ? end + 1 : end, query->bytes);
        if (pair.bytes == 0)
            continue;
        end = find(pair, '=');
        *name = cut(pair, 0, end);
        *value = cut(pair, end < pair.bytes ? end + 1 : end, pair.bytes);
        return true;
    }
    return false;
}

/* ---- Masking ------------------------------------------------------------------------------- */

static bool contains(struct kvg_str text, const char *word)
{
    size_t word_bytes = strlen(word);
    size_t i;

    for (i = 0; i + word_bytes <= text.bytes; i++) {
        if (memcmp(text.data + i, word, word_bytes) == 0)
            return true;
    }
    return false;
}

static bool ends_with(struct kvg_str text, const char *word)
{
    size_t word_bytes = strlen(word);

    return text.bytes >= word_bytes &&
           memcmp(text.data + text.bytes - word_bytes, word, word_bytes) == 0;
}

static bool is_secret(struct kvg_str raw_name)
{
    static const char *const WORDS[] = {
        "password", "passwd", "secret", "token", "auth", "credential", "apikey"};
    char text[64];
    struct kvg_str name = {text, 0};
    size_t i;

    for (i = 0; i < raw_name.bytes && name.bytes < sizeof(text); i++) {
        char c = raw_name.data[i];

        if (c == '%' && i + 2 < raw_name.bytes && digit(raw_name.data[i + 1]) >= 0 &&
            digit(raw_name.data[i + 2]) >= 0) {
            c = (char)(digit(raw_name.data[i + 1]) * 16 + digit(raw_name.data[i + 2]));
            i += 2;
        }
        text[name.bytes++] = lower(c);
    }
    if (ends_with(name, "file") || ends_with(name, "env"))
        return false;
    for (i = 0; i < sizeof(WORDS) / sizeof(WORDS[0]); i++) {
        if (contains(name, WORDS[i]))
            return true;
    }
    return ends_with(name, "key");
}

static void mask_query(struct kvg_str query, struct kvi_text *out)
{
    struct kvg_str name;
    struct kvg_str value;
    bool first = true;

    while (next_param(&query, &name, &value)) {
        kvi_text_str(out, first ? "?" : "&");
        first = false;
        kvi_text_bytes(out, name);
        if (value.data != name.data + name.bytes) {
            kvi_text_str(out, "=");
            if (is_secret(name))
                kvi_text_str(out, MASK);
            else
                kvi_text_bytes(out, value);
        }
    }
}

/* Where "//" begins what may hold user info; text.bytes if nowhere. */
static size_t find_slashes(struct kvg_str text)
{
    size_t i;

    for (i = 0; i + 1 < text.bytes; i++) {
        if (text.data[i] == '/' && text.data[i + 1] == '/')
            return i + 2;
    }
    return text.bytes;
}

/* Works on any text: a URL that cannot be parsed must not show its secret either.  So everything
 * between "//" and the last "@" before the query counts as user info, slashes and all. */
const char *kvg_store_url_mask(struct kvg_str text, char *out, size_t out_bytes)
{
    struct kvi_text to;
    struct kvg_str front = cut(text, 0, find(text, '?'));
    struct kvg_str query = {NULL, 0};
    size_t begin = find_slashes(front);
    size_t at = front.bytes;
    size_t colon;

    kvi_text_init(&to, out, out_bytes);
    if (front.bytes < text.bytes)
        query = cut(text, front.bytes + 1, text.bytes);
    while (at > begin && front.data[at - 1] != '@')
        at--;
    if (at > begin) {
        kvi_text_bytes(&to, cut(front, 0, begin));
        colon = find(cut(front, begin, at), ':');
        if (colon < at - begin)
            kvi_text_bytes(&to, cut(front, begin, begin + colon + 1));
        kvi_text_str(&to, MASK);
        kvi_text_bytes(&to, cut(front, at - 1, front.bytes));
    } else {
        kvi_text_bytes(&to, front);
    }
    mask_query(query, &to);
    return out;
}

/* ---- Parsing ------------------------------------------------------------------------------- */

/* Strings decoded one after the other. */
struct arena {
    char *at;
    char *end;
    bool bad;
};

static struct kvg_str decode(struct arena *arena, struct kvg_str raw, bool percent)
{
    struct kvg_str out = {arena->at, 0};
    size_t i;

    KVI_ASSERT((size_t)(arena->end - arena->at) > raw.bytes);
    for (i = 0; i < raw.bytes; i++) {
        char c = raw.data[i];

        if (percent && c == '%') {
            int value = -1;

            if (i + 2 < raw.bytes && digit(raw.data[i + 1]) >= 0 &&
                digit(raw.data[i + 2]) >= 0)
                value = digit(raw.data[i + 1]) * 16 + digit(raw.data[i + 2]);
            arena->bad = arena->bad || value <= 0;
            c = (char)value;
            i += 2;
        }
        arena->at[out.bytes++] = c;
    }
    arena->at[out.bytes] = '\0';
    arena->at += out.bytes + 1;
    return out;
}

static bool wrappers_own(const struct raw *raw, struct kvg_str name)
{
    return raw->wrapper && name.bytes > raw->scheme.bytes &&
           memcmp(name.data, raw->scheme.data, raw->scheme.bytes) == 0 &&
           name.data[raw->scheme.bytes] == '.';
}

static void parse_params(struct arena *arena, const struct raw *raw,
    struct kvg_store_param *params, size_t *count)
{
    struct kvg_str query = raw->query;
    struct kvg_str name;
    struct kvg_str value;

    *count = 0;
    while (next_param(&query, &name, &value)) {
        if (raw->wrapper && !wrappers_own(raw, name))
            continue;
        params[*count].name = decode(arena, name, true);
        params[*count].value = decode(arena, value, true);
        (*count)++;
    }
}

/* The URL inside a wrapper: without the wrapper's parameters. */
static struct kvg_str parse_inner(struct arena *arena, const struct raw *raw)
{
    struct kvg_str query = raw->query;
    struct kvg_str inner = decode(arena, raw->path, false);
    struct kvg_str name;
    struct kvg_str value;
    char glue = '?';

    while (next_param(&query, &name, &value)) {
        if (wrappers_own(raw, name))
            continue;
        arena->at[-1] = glue; /* Over the zero. */
        decode(arena,
            cut((struct kvg_str){name.data, 0}, 0,
                (size_t)(value.data + value.bytes - name.data)),
            false);
        inner.bytes = (size_t)(arena->at - 1 - inner.data);
        glue = '&';
    }
    return inner;
}

static void parse_user_info(
    struct arena *arena, struct kvg_str info, struct kvg_store_url *url)
{
    size_t colon = find(info, ':');

    url->user = decode(arena, cut(info, 0, colon), true);
    if (colon < info.bytes)
        url->password = decode(arena, cut(info, colon + 1, info.bytes), true);
}

static kvg_err check_text(
    struct kvg_str text, struct raw *raw, size_t *param_count, struct kvg_error *error)
{
    struct kvg_str query;
    struct kvg_str name;
    struct kvg_str value;
    size_t i;

    *param_count = 0;
    if (text.bytes > KVG_STORE_URL_MAX)
        return kvi_fail_range(error, "store.url.bytes", text.bytes, 1, KVG_STORE_URL_MAX);
    for (i = 0; i < text.bytes; i++) {
        if ((unsigned char)text.data[i] < 0x20 || text.data[i] == 0x7f)
            return kvi_fail(
                error, KVG_EINVAL, "store.url", "a store's URL has a control character");
    }
    if (!split(text, raw))
        return kvi_fail(error, KVG_EINVAL, "store.url",
            "a store's URL begins with a scheme and a colon: file:DIR, memory:");
    query = raw->query;
    while (next_param(&query, &name, &value))
        ++*param_count;
    if (*param_count > KVG_STORE_PARAMS_MAX)
        return kvi_fail_range(
            error, "store.url.parameters", *param_count, 0, KVG_STORE_PARAMS_MAX);
    return KVG_OK;
}

kvg_err kvg_store_url_parse(const struct kvg_alloc *alloc, struct kvg_str text,
    struct kvg_store_url **out, struct kvg_error *error)
{
    struct raw raw = {0};
    struct parsed *parsed;
    struct kvg_store_param *params;
    struct arena arena;
    size_t param_count;
    size_t params_bytes;
    size_t masked_bytes;
    size_t block_bytes;
    kvg_err err = check_text(text, &raw, &param_count, error);

    *out = NULL;
    if (err != KVG_OK)
        return err;
    params_bytes = param_count * sizeof(*params);
    masked_bytes = text.bytes + (param_count + 2) * sizeof(MASK) + 1;
    block_bytes = sizeof(*parsed) + params_bytes + masked_bytes + 2 * text.bytes +
                  2 * param_count + 16;
    parsed = kvi_alloc_array(alloc, block_bytes, 1);
    if (parsed == NULL)
        return kvi_fail(error, KVG_ENOMEM, "store.url", "out of memory");
    parsed->block_bytes = block_bytes;
    params = (struct kvg_store_param *)(parsed + 1);
    arena.at = (char *)(params + param_count);
    arena.end = (char *)parsed + block_bytes;
    arena.bad = false;
    parsed->url.struct_bytes = sizeof(parsed->url);
    parsed->url.masked.data = kvg_store_url_mask(text, arena.at, masked_bytes);
    parsed->url.masked.bytes = strlen(parsed->url.masked.data);
    arena.at += masked_bytes;
    parsed->url.scheme = decode(&arena, raw.scheme, false);
    if (raw.has_user_info)
        parse_user_info(&arena, raw.user_info, &parsed->url);
    if (raw.has_authority)
        parsed->url.authority = decode(&arena, raw.authority, false);
    if (raw.wrapper)
        parsed->url.inner = parse_inner(&arena, &raw);
    else if (raw.path.bytes > 0)
        parsed->url.path = decode(&arena, raw.path, true);
    parse_params(&arena, &raw, params, &parsed->url.param_count);
    parsed->url.params = params;
    if (arena.bad) {
        kvg_store_url_free(alloc, &parsed->url);
        return kvi_fail(error, KVG_EINVAL, "store.url",
            "a percent sign in a store's URL is followed by two hex digits, not 00");
    }
    *out = &parsed->url;
    return KVG_OK;
}

void kvg_store_url_free(const struct kvg_alloc *alloc, struct kvg_store_url *url)
{
    struct parsed *parsed = (struct parsed *)url;

    if (parsed != NULL)
        kvi_release_array(alloc, parsed, parsed->block_bytes, 1);
}

/* ---- Parameters ---------------------------------------------------------------------------- */

struct kvg_str kvg_store_param(const struct kvg_store_url *url, const char *name)
{
    struct kvg_str wanted = kvi_str(name);
    size_t i;

    for (i = url->param_count; i > 0; i--) {
        if (kvi_str_equal(url->params[i - 1].name, wanted))
            return url->params[i - 1].value;
    }
    return (struct kvg_str){NULL, 0};
}

/* A unit's name, in lower case, and what it multiplies with. */
struct unit {
    const char *name;
    uint64_t factor;
};

static const struct unit NO_UNITS[] = {{"", 1}, {NULL, 0}};
static const struct unit BYTE_UNITS[] = {{"", 1}, {"b", 1}, {"kb", 1000}, {"mb", 1000000},
    {"gb", 1000000000}, {"tb", UINT64_C(1000000000000)}, {"kib", UINT64_C(1) << 10},
    {"mib", UINT64_C(1) << 20}, {"gib", UINT64_C(1) << 30}, {"tib", UINT64_C(1) << 40},
    {NULL, 0}};
static const struct unit TIME_UNITS[] = {
    {"ms", 1}, {"s", 1000}, {"min", 60000}, {"h", 3600000}, {"", 1}, {NULL, 0}};

static bool unit_is(struct kvg_str text, const char *name)
{
    size_t i;

    if (text.bytes != strlen(name))
        return false;
    for (i = 0; i < text.bytes; i++) {
        if (lower(text.data[i]) != name[i])
            return false;
    }
    return true;
}

static bool read_number(struct kvg_str text, const struct unit *units, uint64_t *out)
{
    uint64_t value = 0;
    size_t i;

    for (i = 0; i < text.bytes && text.data[i] >= '0' && text.data[i] <= '9'; i++) {
        if (__builtin_mul_overflow(value, UINT64_C(10), &value) ||
            __builtin_add_overflow(value, (uint64_t)(text.data[i] - '0'), &value))
            return false;
    }
    if (i == 0)
        return false;
    for (; units->name != NULL; units++) {
        if (unit_is(cut(text, i, text.bytes), units->name))
            return !__builtin_mul_overflow(value, units->factor, out);
    }
    return false;
}

static kvg_err read_param(const struct kvg_store_url *url, const char *name,
    const struct unit *units, const uint64_t range[2], uint64_t *out,
    struct kvg_error *error)
{
    struct kvg_str value = kvg_store_param(url, name);
    uint64_t number;

    if (value.data == NULL)
        return KVG_OK;
    if (!read_number(value, units, &number))
        return kvi_fail(error, KVG_EINVAL, name,
            units == BYTE_UNITS   ? "is no number of bytes such as 64KiB, 10GB or 4096"
            : units == TIME_UNITS ? "is no duration such as 250ms, 5s or 2min"
                                  : "is no whole number");
    if (number < range[0] || number > range[1])
        return kvi_fail_range(error, name, number, range[0], range[1]);
    *out = number;
    return KVG_OK;
}

kvg_err kvg_store_param_u64(const struct kvg_store_url *url, const char *name,
    uint64_t low, uint64_t high, uint64_t *out, struct kvg_error *error)
{
    return read_param(url, name, NO_UNITS, (uint64_t[2]){low, high}, out, error);
}

kvg_err kvg_store_param_bytes(const struct kvg_store_url *url, const char *name,
    uint64_t low, uint64_t high, uint64_t *out, struct kvg_error *error)
{
    return read_param(url, name, BYTE_UNITS, (uint64_t[2]){low, high}, out, error);
}

kvg_err kvg_store_param_ms(const struct kvg_store_url *url, const char *name,
    uint64_t low, uint64_t high, uint64_t *out, struct kvg_error *error)
{
    return read_param(url, name, TIME_UNITS, (uint64_t[2]){low, high}, out, error);
}

kvg_err kvg_store_param_choice(const struct kvg_store_url *url, const char *name,
    const char *words, uint32_t *out, struct kvg_error *error)
{
    struct kvg_str value = kvg_store_param(url, name);
    struct kvg_str left = kvi_str(words);
    char message[160];
    struct kvi_text text;
    uint32_t index = 0;

    if (value.data == NULL)
        return KVG_OK;
    while (true) {
        size_t end = find(left, '|');

        if (kvi_str_equal(cut(left, 0, end), value)) {
            *out = index;
            return KVG_OK;
        }
        if (end == left.bytes)
            break;
        left = cut(left, end + 1, left.bytes);
        index++;
    }
    kvi_text_init(&text, message, sizeof(message));
    kvi_text_str(&text, "is none of ");
    kvi_text_str(&text, words);
    return kvi_fail(error, KVG_EINVAL, name, message);
}
