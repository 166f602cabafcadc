/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* query.c -- `kvgraft query`: asks a daemon how much of a prompt is in the store.
 *
 * The tokens go as bytes (u32 LE), everything else in the query string.  With --json the
 * daemon's own answer is printed as it came. */
#include "cli/cli.h"
#include "cli/http.h"
#include "cli/tokens.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define PATH_BYTES 2048u

struct query_options {
    struct kvc_common common;
    const char *url;
    const char *token;
    const char *file;
    const char *source;
    const char *tenant;
    const char *model;
    const char *extra_key;
    const char *cache_salt;
    const char *worker;
    uint64_t page_size;
    uint64_t start;
    uint64_t timeout_ms;
    int format;
    bool explain;
};

static const struct kvc_option OPTIONS[] = {
    {"explain", 'e', KVC_FLAG, KVC_FIELD(struct query_options, explain), NULL, NULL, NULL,
        0, 0, "page by page: key, parts, what is missing"},
    {"url", 'u', KVC_TEXT, KVC_FIELD(struct query_options, url), "URL",
        "http://127.0.0.1:7433", "KVGRAFT_URL", 0, 0,
        "the daemon; or unix:/path/of.sock"},
    {"token", 0, KVC_TEXT, KVC_FIELD(struct query_options, token), "TOKEN", NULL,
        "KVGRAFT_HTTP_TOKEN", 0, 0, "bearer token; better in the environment"},
    {"file", 'f', KVC_TEXT, KVC_FIELD(struct query_options, file), "FILE", NULL, NULL, 0,
        0, "tokens from a file; - is standard input"},
    {"format", 0, KVC_CHOICE, KVC_FIELD(struct query_options, format), KVC_TOKEN_FORMATS,
        "auto", NULL, 0, 0, "form of the file"},
    {"source", 0, KVC_TEXT, KVC_FIELD(struct query_options, source), "NAME", NULL, NULL,
        0, 0, "which store; default: the first"},
    {"tenant", 0, KVC_TEXT, KVC_FIELD(struct query_options, tenant), "NAME", NULL, NULL,
        0, 0, "whose pages; default: the source's"},
    {"model", 'm', KVC_TEXT, KVC_FIELD(struct query_options, model), "NAME", NULL, NULL,
        0, 0, "which model's layout"},
    {"worker", 'w', KVC_TEXT, KVC_FIELD(struct query_options, worker), "ID", NULL, NULL,
        0, 0, "the layout of that worker"},
    {"page-size", 'p', KVC_U64, KVC_FIELD(struct query_options, page_size), "N", "0",
        NULL, 0, UINT32_MAX, "what you think it is: refused if it differs; 0: any"},
    {"extra-key", 0, KVC_TEXT, KVC_FIELD(struct query_options, extra_key), "TEXT", NULL,
        NULL, 0, 0, "namespace: extra key"},
    {"cache-salt", 0, KVC_TEXT, KVC_FIELD(struct query_options, cache_salt), "TEXT", NULL,
        NULL, 0, 0, "namespace: cache salt"},
    {"start", 0, KVC_U64, KVC_FIELD(struct query_options, start), "PAGE", "0", NULL, 0,
        UINT32_MAX, "pages you hold already; counted from there"},
    {"timeout", 0, KVC_DURATION, KVC_FIELD(struct query_options, timeout_ms), "TIME",
        "10s", NULL, 1, UINT32_MAX, "wait that long for the answer"},
};

static const struct kvc_usage USAGE = {"query", "[TOKENS...]",
    "Ask a daemon how much of a prompt is in the store, and what the answer is worth",
    OPTIONS, KVC_COUNT(OPTIONS),
    "  kvgraft query 1..320\n"
    "  kvgraft query --explain 1..320\n"
    "  kvgraft query --json -f prompt.json\n"};

/* The path with its query string -------------------------------------------------------------- */

struct path {
    char text[PATH_BYTES];
    size_t bytes;
    bool overflowed;
    char separator;
};

static void append(struct path *path, const char *text)
{
    size_t bytes = strlen(text);

    if (path->bytes + bytes + 1 > sizeof(path->text)) {
        path->overflowed = true;
        return;
    }
    memcpy(path->text + path->bytes, text, bytes + 1);
    path->bytes += bytes;
}

/* ?name=value with what is special percent-encoded; nothing for a NULL value. */
static void append_parameter(struct path *path, const char *name, const char *value)
{
    char start[2] = {path->separator, '\0'};

    if (value == NULL)
        return;
    append(path, start);
    path->separator = '&';
    append(path, name);
    append(path, "=");
    for (; *value != '\0'; value++) {
        char encoded[4] = {*value, '\0', '\0', '\0'};
        bool plain = (*value >= 'a' && *value <= 'z') ||
                     (*value >= 'A' && *value <= 'Z') ||
                     (*value >= '0' && *value <= '9') || strchr("-._~/", *value) != NULL;

        if (!plain)
            snprintf(encoded, sizeof(encoded), "%%%02X", (unsigned char)*value);
        append(path, encoded);
    }
}

static void append_number(struct path *path, const char *name, uint64_t value)
{
    char text[24];

    snprintf(text, sizeof(text), "%" PRIu64, value);
    append_parameter(path, name, value == 0 ? NULL : text);
}

static bool make_path(const struct query_options *options, struct path *path)
{
    *path = (struct path){.separator = '?'};
    append(path, options->explain ? "/v1/explain" : "/v1/lookup");
    append_parameter(path, "source", options->source);
    append_parameter(path, "tenant", options->tenant);
    append_parameter(path, "model", options->model);
    append_parameter(path, "worker_id", options->worker);
    append_parameter(path, "extra_key", options->extra_key);
    append_parameter(path, "cache_salt", options->cache_salt);
    append_number(path, "page_size", options->page_size);
    append_number(path, "start", options->start);
    return !path->overflowed;
}

/* The answer ------------------------------------------------------------------------------- */

static json_int_t number_of(const json_t *object, const char *name)
{
    return json_integer_value(json_object_get(object, name));
}

static const char *text_of(const json_t *object, const char *name)
{
    const char *text = json_string_value(json_object_get(object, name));

    return text == NULL ? "" : text;
}

static void print_array(const json_t *array)
{
    const json_t *item;
    size_t i;

    json_array_foreach(array, i, item)
        printf("%s%s", i == 0 ? "" : ", ", json_string_value(item));
}

static void print_confidence(const json_t *answer, const struct kvc_style *style)
{
    const char *confidence = text_of(answer, "confidence");
    const json_t *reasons = json_object_get(answer, "reasons");
    bool fresh = strcmp(confidence, "fresh") == 0;

    if (confidence[0] == '\0')
        return; /* The other profile does not know. */
    printf("  confidence  %s%s%s", fresh ? style->green : style->yellow, confidence,
        style->end);
    if (json_array_size(reasons) > 0) {
        printf(" (");
        print_array(reasons);
        printf(")");
    }
    fputc('\n', stdout);
}

static void print_first_missing(const json_t *answer)
{
    const json_t *missing = json_object_get(answer, "first_missing");
    const json_t *layout = json_object_get(answer, "layout");

    if (!json_is_object(missing))
        return;
    printf("  first gap   page %" JSON_INTEGER_FORMAT ": %" JSON_INTEGER_FORMAT
           " of %" JSON_INTEGER_FORMAT " parts missing\n",
        number_of(missing, "page"), number_of(missing, "missing_parts"),
        number_of(layout, "parts_per_page"));
}

static void print_answer(const json_t *answer, const struct kvc_style *style)
{
    const json_t *layout = json_object_get(answer, "layout");
    const json_t *media = json_object_get(answer, "media");
    json_int_t pages = number_of(answer, "pages");
    json_int_t present = number_of(answer, "present_pages");
    json_int_t contiguous = number_of(answer, "contiguous_pages");
    json_int_t tokens = number_of(answer, "contiguous_tokens");

    printf("%s%" JSON_INTEGER_FORMAT " of %" JSON_INTEGER_FORMAT
           " pages%s can be loaded: %" JSON_INTEGER_FORMAT " of %" JSON_INTEGER_FORMAT
           " tokens\n",
        style->bold, contiguous, pages, style->end, tokens, number_of(answer, "tokens"));
    print_confidence(answer, style);
    print_first_missing(answer);
    if (present > contiguous)
        printf("  behind it   %" JSON_INTEGER_FORMAT
               " pages more are present, but no use without it\n",
            present - contiguous);
    if (json_array_size(media) > 0) {
        printf("  medium      ");
        print_array(media);
        fputc('\n', stdout);
    }
    printf("  asked       source %s", text_of(answer, "source"));
    if (layout != NULL)
        printf(", tenant %s, layout %" JSON_INTEGER_FORMAT
               " (pages of %" JSON_INTEGER_FORMAT " tokens)",
            text_of(answer, "tenant"), number_of(layout, "index"),
            number_of(layout, "page_size"));
    printf("\n  took        %" JSON_INTEGER_FORMAT " us hashing, %" JSON_INTEGER_FORMAT
           " us in the index\n",
        number_of(answer, "hash_us"), number_of(answer, "lookup_us"));
}

static void print_page(const json_t *page, json_int_t parts, json_int_t page_size,
    const struct kvc_style *style)
{
    json_int_t first = number_of(page, "first_token");
    bool present = json_is_true(json_object_get(page, "present"));
    const char *key = text_of(page, "page_key");
    char text[32];

    snprintf(text, sizeof(text), "%" JSON_INTEGER_FORMAT "..%" JSON_INTEGER_FORMAT, first,
        first + page_size - 1);
    printf("  %6" JSON_INTEGER_FORMAT "  %-17s %.8s..%.4s  %3" JSON_INTEGER_FORMAT
           "/%" JSON_INTEGER_FORMAT "  %3" JSON_INTEGER_FORMAT "/%" JSON_INTEGER_FORMAT
           "  %s%s%s",
        number_of(page, "page"), text, key, strlen(key) > 4 ? key + strlen(key) - 4 : key,
        number_of(page, "cpu_parts"), parts, number_of(page, "disk_parts"), parts,
        present ? style->green : style->red, present ? "present" : "missing", style->end);
    if (!present && number_of(page, "parts") > 0) {
        const json_t *missing = json_object_get(page, "missing_objects");
        const char *name = json_string_value(json_array_get(missing, 0));

        /* What differs is at the end of the name. */
        if (name != NULL && strlen(name) > 8)
            printf(
                ": %zu, first ..%s", json_array_size(missing), name + strlen(name) - 8);
    }
    fputc('\n', stdout);
}

static void print_pages(const json_t *answer, const struct kvc_style *style)
{
    const json_t *layout = json_object_get(answer, "layout");
    const json_t *next = json_object_get(answer, "next_page");
    const json_t *page;
    size_t i;

    printf("  why         %s\n\n", text_of(answer, "why"));
    printf("  %6s  %-17s %-14s  %5s  %5s\n", "page", "tokens", "key", "cpu", "disk");
    json_array_foreach(json_object_get(answer, "explained"), i, page) print_page(
        page, number_of(layout, "parts_per_page"), number_of(layout, "page_size"), style);
    if (json_is_integer(next))
        printf("  ... more from page %" JSON_INTEGER_FORMAT " on\n",
            json_integer_value(next));
}

static int print_problem(const struct kvc_http_answer *answer, const json_t *body)
{
    if (!json_is_object(body) || json_object_get(body, "detail") == NULL)
        return kvc_failed(
            &USAGE, "the daemon answered with status %" PRIu32, answer->status);
    return kvc_failed(&USAGE, "%s%s%s", text_of(body, "field"),
        text_of(body, "field")[0] == '\0' ? "" : ": ", text_of(body, "detail"));
}

static int show(const struct query_options *options, const struct kvc_http_answer *answer)
{
    struct kvc_style style = kvc_style_of(&options->common, stdout);
    json_error_t where;
    json_t *body;
    int exit_code = KVC_FINE;

    if (options->common.json)
        fwrite(answer->body.data, 1, answer->body.bytes, stdout);
    if (options->common.json && answer->status == 200)
        return KVC_FINE;
    body = json_loadb(answer->body.data, answer->body.bytes, 0, &where);
    if (answer->status != 200) {
        exit_code = print_problem(answer, body);
    } else if (!json_is_object(body)) {
        exit_code = kvc_failed(&USAGE, "the answer is no JSON object: %s", where.text);
    } else {
        print_answer(body, &style);
        if (options->explain)
            print_pages(body, &style);
    }
    json_decref(body);
    return exit_code;
}

static int ask(const struct query_options *options, const struct kvc_tokens *tokens)
{
    struct kvc_http_options http_options = {
        options->url, options->token, options->timeout_ms};
    struct kvc_http_request request = {.method = "POST",
        .content_type = "application/octet-stream",
        .body = {(const char *)tokens->ids, tokens->count * sizeof(*tokens->ids)}};
    struct kvc_http_answer answer;
    struct kvg_error error = {0};
    char text[KVC_ERROR_BYTES];
    struct kvc_http *http;
    struct path path;
    int exit_code;

    if (!make_path(options, &path))
        return kvc_misused(
            &USAGE, "names and keys are longer than %u bytes together", PATH_BYTES);
    request.path = path.text;
    if (kvc_http_new(&http_options, &error, &http) != KVG_OK)
        return kvc_misused(&USAGE, "--url: %s", error.message);
    if (kvc_http_ask(http, &request, &answer, &error) != KVG_OK)
        exit_code = kvc_failed(&USAGE, "%s", kvc_error_text(&error, text));
    else
        exit_code = show(options, &answer);
    kvc_http_free(http);
    return exit_code;
}

int kvc_query_main(int argc, char **argv)
{
    struct query_options options = {0};
    struct kvc_tokens tokens = {0};
    struct kvg_error error = {0};
    char text[KVC_ERROR_BYTES];
    int exit_code;
    int first = kvc_options(&USAGE, argc, argv, &options, &exit_code);

    if (first < 0)
        return exit_code;
    if (first == argc && options.file == NULL)
        return kvc_misused(&USAGE, "give tokens, or --file");
    if (kvc_tokens_of_arguments(&tokens, argv + first, argc - first, options.file,
            (enum kvc_token_format)options.format, &error) != KVG_OK)
        exit_code = kvc_misused(&USAGE, "%s", kvc_error_text(&error, text));
    else
        exit_code = ask(&options, &tokens);
    kvc_tokens_fini(&tokens);
    return exit_code;
}
