/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* config_table.c -- the table of keys, and what can be read out of one value. */
#include "daemon/config_table.h"

#include "base/alloc.h"
#include "base/fmt.h"

#include <stdio.h>
#include <string.h>

#define AT(field) offsetof(struct kvd_config, field)
#define AT_SOURCE(field) offsetof(struct kvd_source_config, field)
#define TEXT(field) sizeof(((struct kvd_config *)NULL)->field) - 1
#define TEXT_SOURCE(field) sizeof(((struct kvd_source_config *)NULL)->field) - 1
#define KIB UINT64_C(1024)
#define MIB (1024 * KIB)
#define GIB (1024 * MIB)
#define DAY_MS UINT64_C(86400000)

const struct kvd_key KVD_KEYS[] = {
    {"http", "listen", KVD_VALUE_TEXT, AT(http_listen), 0, TEXT(http_listen),
        "127.0.0.1:7433", {NULL},
        "Address and port; port 0 takes any.  Empty: no TCP.  Beyond loopback, set a "
        "token.",
        false},
    {"http", "unix_socket", KVD_VALUE_TEXT, AT(http_unix_socket), 0, 107, "", {NULL},
        "Path of a Unix socket that serves the same.", false},
    {"http", "token_file", KVD_VALUE_TEXT, AT(http_token_file), 0, TEXT(http_token_file),
        "", {NULL},
        "File with the bearer token that every request but /healthz, /readyz and the "
        "page's own files must carry.",
        false},
    {"http", "token", KVD_VALUE_TEXT, AT(http_token), 0, TEXT(http_token), "", {NULL},
        "The token itself; meant for the environment (KVGRAFT_HTTP_TOKEN), not for a "
        "file.",
        true},
    {"http", "threads", KVD_VALUE_NUMBER, AT(http_threads), 1, 64, "2", {NULL},
        "Threads that answer requests.", false},
    {"http", "connections_max", KVD_VALUE_NUMBER, AT(http_connections_max), 1, 65536,
        "1024", {NULL}, "Open connections; more are refused.", false},
    {"http", "body_bytes_max", KVD_VALUE_BYTES, AT(http_body_bytes_max), 1 * KIB, 1 * GIB,
        "16MiB", {NULL},
        "Largest request body; 4 bytes a token if binary, about 7 as JSON.", false},
    {"http", "bodies_bytes_max", KVD_VALUE_BYTES, AT(http_bodies_bytes_max), 1 * KIB,
        64 * GIB, "256MiB", {NULL},
        "Bodies of all requests under way; what would exceed it is refused with 503.",
        false},
    {"http", "timeout", KVD_VALUE_DURATION, AT(http_timeout_ms), 1000, DAY_MS, "30s",
        {NULL}, "A connection that is idle for so long is closed.", false},
    {"http", "pages_max", KVD_VALUE_NUMBER, AT(http_pages_max), 1, 16777216, "1048576",
        {NULL}, "Pages of one prompt.", false},
    {"http", "memo_bytes_max", KVD_VALUE_BYTES, AT(memo_bytes_max), 0, 64 * GIB, "32MiB",
        {NULL}, "Remembered page keys of recent prompts, per thread; 0: none.", false},
    {"log", "level", KVD_VALUE_CHOICE, AT(log_level), 0, 0, "info",
        {"debug", "info", "warn", "error"}, "Least level that is written.", false},
    {"log", "format", KVD_VALUE_CHOICE, AT(log_format), 0, 0, "logfmt",
        {"logfmt", "json"}, "key=value lines, or JSON lines.", false},
    {"log", "file", KVD_VALUE_TEXT, AT(log_file), 0, TEXT(log_file), "", {NULL},
        "Empty: standard error.  Opened again at SIGHUP.", false},
    {"dump", "path", KVD_VALUE_TEXT, AT(dump_path), 0, TEXT(dump_path), "", {NULL},
        "Directory for dumps of the index, read at the start.  Empty: none.", false},
    {"dump", "interval", KVD_VALUE_DURATION, AT(dump_interval_ms), 0, 30 * DAY_MS,
        "10min", {NULL}, "Time between dumps; 0: only when stopping.", false},
};
const size_t KVD_KEY_COUNT = sizeof(KVD_KEYS) / sizeof(KVD_KEYS[0]);

const struct kvd_key KVD_SOURCE_KEYS[] = {
    {NULL, "name", KVD_VALUE_TEXT, AT_SOURCE(name), 1, TEXT_SOURCE(name), "mooncake",
        {NULL}, "Names the source in answers, logs and metrics.", false},
    {NULL, "endpoint", KVD_VALUE_TEXT, AT_SOURCE(endpoint), 0, TEXT_SOURCE(endpoint),
        "tcp://127.0.0.1:5557", {NULL},
        "ZeroMQ publisher of the store's events.  Empty: what the workers advertise.",
        false},
    {NULL, "admin_url", KVD_VALUE_TEXT, AT_SOURCE(admin_url), 0, TEXT_SOURCE(admin_url),
        "http://127.0.0.1:9003", {NULL},
        "Admin HTTP port of the store, for listings and comparison.  Empty: no repair.",
        false},
    {NULL, "replay", KVD_VALUE_TEXT, AT_SOURCE(replay), 0, TEXT_SOURCE(replay), "",
        {NULL},
        "Where the publisher sends again what it keeps (docs/events.md).  Empty: "
        "nowhere.",
        false},
    {NULL, "profile", KVD_VALUE_CHOICE, AT_SOURCE(profile), 0, 0, "default",
        {"default", "dynamo-1.5"},
        "dynamo-1.5 answers exactly as Dynamo 1.5's shared-cache client "
        "(docs/profiles.md).",
        false},
    {NULL, "tenant", KVD_VALUE_TEXT, AT_SOURCE(tenant), 1, TEXT_SOURCE(tenant), "default",
        {NULL}, "Tenant of a query that names none.", false},
    {NULL, "workers_file", KVD_VALUE_TEXT, AT_SOURCE(workers_file), 0,
        TEXT_SOURCE(workers_file), "", {NULL},
        "JSON with the workers' advertised configuration; read again when it changes.",
        false},
    {NULL, "workers", KVD_VALUE_JSON, AT_SOURCE(workers_json), 0,
        KVD_WORKERS_JSON_BYTES_MAX, "{}", {NULL},
        "The same, here: worker id to its \"sglang_hicache_mooncake\" object.", false},
    {NULL, "memory_bytes_max", KVD_VALUE_BYTES, AT_SOURCE(memory_bytes_max), 1 * MIB,
        1024 * GIB, "1GiB", {NULL},
        "Memory of the index; about 48 bytes a page.  At the limit the coldest tails go.",
        false},
    {NULL, "queue_bytes_max", KVD_VALUE_BYTES, AT_SOURCE(queue_bytes_max), 1 * MIB,
        64 * GIB, "256MiB", {NULL},
        "Messages received and not yet applied; more are dropped, which makes a gap.",
        false},
    {NULL, "message_bytes_max", KVD_VALUE_BYTES, AT_SOURCE(message_bytes_max), 64 * KIB,
        1 * GIB, "16MiB", {NULL},
        "Largest frame of a message; a publisher that sends more is cut off.", false},
    {NULL, "receive_hwm", KVD_VALUE_NUMBER, AT_SOURCE(receive_hwm), 1, 1000000, "10000",
        {NULL}, "ZeroMQ's own queue in front of that, in messages.", false},
    {NULL, "silence", KVD_VALUE_DURATION, AT_SOURCE(silence_ms), 100, DAY_MS, "15s",
        {NULL}, "Nothing heard for so long: answers become suspect.", false},
    {NULL, "status_interval", KVD_VALUE_DURATION, AT_SOURCE(status_interval_ms), 10,
        DAY_MS, "5s", {NULL}, "Between two looks at the publisher's counters.", false},
    {NULL, "count_interval", KVD_VALUE_DURATION, AT_SOURCE(count_interval_ms), 10, DAY_MS,
        "10s", {NULL}, "Between two comparisons of key counts.", false},
    {NULL, "listing_interval", KVD_VALUE_DURATION, AT_SOURCE(listing_interval_ms), 1000,
        30 * DAY_MS, "5min", {NULL}, "Between full listings that nothing else caused.",
        false},
    {NULL, "listing_timeout", KVD_VALUE_DURATION, AT_SOURCE(listing_timeout_ms), 100,
        DAY_MS, "60s", {NULL}, "A listing that takes longer is given up.", false},
    {NULL, "retry_min", KVD_VALUE_DURATION, AT_SOURCE(retry_min_ms), 1, DAY_MS, "500ms",
        {NULL}, "First wait after a failure; doubles, with jitter.", false},
    {NULL, "retry_max", KVD_VALUE_DURATION, AT_SOURCE(retry_max_ms), 1, DAY_MS, "30s",
        {NULL}, "Longest wait after a failure.", false},
    {NULL, "drift_max_ppm", KVD_VALUE_NUMBER, AT_SOURCE(drift_max_ppm), 0, 1000000,
        "1000", {NULL},
        "Keys in a million that the counts may differ by before a listing.", false},
    {NULL, "part_bytes", KVD_VALUE_BYTES, AT_SOURCE(part_bytes), 0, 1 * GIB, "0", {NULL},
        "Size of one stored object (a part of a page), to show bytes; 0: not known.",
        false},
};
const size_t KVD_SOURCE_KEY_COUNT = sizeof(KVD_SOURCE_KEYS) / sizeof(KVD_SOURCE_KEYS[0]);

/* Finding ---------------------------------------------------------------------------------- */

static const struct kvd_key *table_of(const char *group, size_t *count_out)
{
    *count_out = group == NULL ? KVD_SOURCE_KEY_COUNT : KVD_KEY_COUNT;
    return group == NULL ? KVD_SOURCE_KEYS : KVD_KEYS;
}

static bool in_group(const struct kvd_key *key, const char *group)
{
    return group == NULL || strcmp(key->group, group) == 0;
}

const struct kvd_key *kvd_key_find(const char *group, const char *name)
{
    size_t count;
    const struct kvd_key *keys = table_of(group, &count);

    for (size_t i = 0; i < count; i++) {
        if (in_group(&keys[i], group) && strcmp(keys[i].name, name) == 0)
            return &keys[i];
    }
    return NULL;
}

/* Letters to change, add or drop to get from `a` to `b`; at most 63 letters count. */
static size_t distance(const char *a, const char *b)
{
    size_t row[64];
    size_t b_count = strnlen(b, 63);

    for (size_t j = 0; j <= b_count; j++)
        row[j] = j;
    for (size_t i = 1; a[i - 1] != '\0' && i < 64; i++) {
        size_t diagonal = row[0];

        row[0] = i;
        for (size_t j = 1; j <= b_count; j++) {
            size_t replace = diagonal + (a[i - 1] != b[j - 1]);
            size_t best = row[j] < row[j - 1] ? row[j] + 1 : row[j - 1] + 1;

            diagonal = row[j];
            row[j] = replace < best ? replace : best;
        }
    }
    return row[b_count];
}

const char *kvd_key_hint(const char *group, const char *name)
{
    size_t count;
    const struct kvd_key *keys = table_of(group, &count);
    const char *best = NULL;
    size_t best_distance = 5;

    for (size_t i = 0; i < count; i++) {
        size_t away;

        if (!in_group(&keys[i], group))
            continue;
        away = distance(keys[i].name, name);
        if (strstr(keys[i].name, name) != NULL || strstr(name, keys[i].name) != NULL)
            away = away > 2 ? 2 : away;
        if (away < best_distance) {
            best_distance = away;
            best = keys[i].name;
        }
    }
    return best;
}

/* Values ----------------------------------------------------------------------------------- */

struct unit {
    const char *word;
    uint64_t times;
};

static bool parse_with_units(
    struct kvg_str text, const struct unit *units, size_t unit_count, uint64_t *out)
{
    uint64_t number = 0;
    size_t i = 0;

    *out = 0;
    while (i < text.bytes && text.data[i] >= '0' && text.data[i] <= '9') {
        if (__builtin_mul_overflow(number, 10, &number) ||
            __builtin_add_overflow(number, (uint64_t)(text.data[i] - '0'), &number))
            return false;
        i++;
    }
    if (i == 0)
        return false;
    text.data += i;
    text.bytes -= i;
    for (size_t u = 0; u < unit_count; u++) {
        if (kvi_str_equal(text, kvi_str(units[u].word)))
            return !__builtin_mul_overflow(number, units[u].times, out);
    }
    return false;
}

bool kvd_parse_bytes(struct kvg_str text, uint64_t *out)
{
    static const struct unit UNITS[] = {{"", 1}, {"B", 1}, {"KiB", KIB}, {"MiB", MIB},
        {"GiB", GIB}, {"TiB", 1024 * GIB}, {"kB", 1000}, {"MB", 1000000},
        {"GB", 1000000000}};

    return parse_with_units(text, UNITS, sizeof(UNITS) / sizeof(UNITS[0]), out);
}

bool kvd_parse_duration_ms(struct kvg_str text, uint64_t *out)
{
    static const struct unit UNITS[] = {
        {"", 1}, {"ms", 1}, {"s", 1000}, {"min", 60000}, {"h", 3600000}, {"d", DAY_MS}};

    return parse_with_units(text, UNITS, sizeof(UNITS) / sizeof(UNITS[0]), out);
}

static kvg_err set_number(const struct kvd_key *key, void *field, const char *path,
    struct kvg_str text, struct kvg_error *error)
{
    static const struct unit PLAIN[] = {{"", 1}};
    uint64_t value;
    bool good;

    if (key->type == KVD_VALUE_BYTES)
        good = kvd_parse_bytes(text, &value);
    else if (key->type == KVD_VALUE_DURATION)
        good = kvd_parse_duration_ms(text, &value);
    else
        good = parse_with_units(text, PLAIN, 1, &value);
    if (!good)
        return kvi_fail(error, KVG_EINVAL, path,
            key->type == KVD_VALUE_BYTES ? "is not a size, e.g. 1048576 or \"512MiB\""
            : key->type == KVD_VALUE_DURATION
                ? "is not a duration, e.g. 250 (milliseconds) or \"5s\""
                : "is not a whole number");
    if (value < key->min || value > key->max)
        return kvi_fail_range(error, path, value, key->min, key->max);
    memcpy(field, &value, sizeof(value));
    return KVG_OK;
}

static kvg_err set_choice(const struct kvd_key *key, void *field, const char *path,
    struct kvg_str text, struct kvg_error *error)
{
    char message[160];
    size_t at = 0;

    for (unsigned i = 0; i < 4 && key->choices[i] != NULL; i++) {
        if (kvi_str_equal(text, kvi_str(key->choices[i]))) {
            memcpy(field, &i, sizeof(i));
            return KVG_OK;
        }
    }
    at = (size_t)snprintf(message, sizeof(message), "is none of");
    for (unsigned i = 0; i < 4 && key->choices[i] != NULL && at < sizeof(message); i++)
        at += (size_t)snprintf(message + at, sizeof(message) - at, "%s %s",
            i > 0 ? "," : "", key->choices[i]);
    return kvi_fail(error, KVG_EINVAL, path, message);
}

static kvg_err set_text(const struct kvd_key *key, char *field, const char *path,
    struct kvg_str text, struct kvg_error *error)
{
    if (text.bytes < key->min)
        return kvi_fail(error, KVG_EINVAL, path, "must not be empty");
    if (text.bytes > key->max)
        return kvi_fail_range(error, path, text.bytes, key->min, key->max);
    for (size_t i = 0; i < text.bytes; i++) {
        if ((unsigned char)text.data[i] < ' ' || text.data[i] == 127)
            return kvi_fail(error, KVG_EINVAL, path, "holds a control character");
    }
    memcpy(field, text.data, text.bytes);
    field[text.bytes] = '\0';
    return KVG_OK;
}

static kvg_err set_json(
    char **field, const char *path, struct kvg_str text, struct kvg_error *error)
{
    char *copy;

    if (text.bytes > KVD_WORKERS_JSON_BYTES_MAX)
        return kvi_fail_range(error, path, text.bytes, 0, KVD_WORKERS_JSON_BYTES_MAX);
    copy = kvi_copy_string(kvg_alloc_default(), text);
    if (copy == NULL)
        return kvi_fail(error, KVG_ENOMEM, path, "does not fit into memory");
    if (*field != NULL)
        kvi_release_string(kvg_alloc_default(), *field, strlen(*field));
    *field = copy;
    return KVG_OK;
}

kvg_err kvd_key_set(const struct kvd_key *key, void *object, const char *path,
    struct kvg_str text, struct kvg_error *error)
{
    void *field = (char *)object + key->offset;

    switch (key->type) {
    case KVD_VALUE_TEXT:
        return set_text(key, field, path, text, error);
    case KVD_VALUE_CHOICE:
        return set_choice(key, field, path, text, error);
    case KVD_VALUE_JSON:
        return set_json(field, path, text, error);
    default:
        return set_number(key, field, path, text, error);
    }
}

/* Comments --------------------------------------------------------------------------------- */

/* The length of a comment that begins at `at`, or 0. */
static size_t comment_bytes(const char *text, size_t at, size_t bytes)
{
    const char *end;

    if (text[at] == '#' || (text[at] == '/' && at + 1 < bytes && text[at + 1] == '/')) {
        end = memchr(text + at, '\n', bytes - at);
        return end == NULL ? bytes - at : (size_t)(end - text) - at;
    }
    if (text[at] == '/' && at + 1 < bytes && text[at + 1] == '*') {
        for (size_t i = at + 2; i + 1 < bytes; i++) {
            if (text[i] == '*' && text[i + 1] == '/')
                return i + 2 - at;
        }
        return bytes - at;
    }
    return 0;
}

void kvd_blank_comments(char *text, size_t bytes)
{
    bool in_string = false;
    size_t comma = SIZE_MAX; /* A comma with only blanks after it so far. */

    for (size_t i = 0; i < bytes; i++) {
        size_t skip;

        if (in_string) {
            if (text[i] == '\\')
                i++;
            else if (text[i] == '"')
                in_string = false;
            continue;
        }
        skip = comment_bytes(text, i, bytes);
        for (size_t j = i; j < i + skip; j++) {
            if (text[j] != '\n')
                text[j] = ' ';
        }
        if (skip > 0) {
            i += skip - 1;
            continue;
        }
        if (text[i] == ',')
            comma = i;
        else if ((text[i] == '}' || text[i] == ']') && comma != SIZE_MAX)
            text[comma] = ' ';
        if (strchr(" \t\r\n,", text[i]) == NULL || text[i] == '\0')
            comma = SIZE_MAX;
        in_string = text[i] == '"';
    }
}
