/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* hash.c -- `kvgraft hash`: the page keys of a prompt, and the names of its objects. */
#include "cli/cli.h"
#include "cli/layout_arg.h"
#include "cli/tokens.h"

#include <kvgraft/page.h>

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct hash_options {
    struct kvc_common common;
    uint64_t page_size;
    bool eagle;
    bool groups;
    int format;
    const char *file;
    const char *layout;
    const char *prior;
    const char *extra_key;
    const char *cache_salt;
};

static const struct kvc_option OPTIONS[] = {
    {"page-size", 'p', KVC_U64, KVC_FIELD(struct hash_options, page_size), "N", "64",
        "KVGRAFT_PAGE_SIZE", 1, KVG_PAGE_SIZE_MAX, "tokens a page"},
    {"eagle", 0, KVC_FLAG, KVC_FIELD(struct hash_options, eagle), NULL, NULL, NULL, 0, 0,
        "units are overlapping pairs of tokens"},
    {"layout", 'l', KVC_TEXT, KVC_FIELD(struct hash_options, layout), "JSON", NULL, NULL,
        0, 0, KVC_LAYOUT_HELP},
    {"groups", 'g', KVC_FLAG, KVC_FIELD(struct hash_options, groups), NULL, NULL, NULL, 0,
        0, "with --layout: group ids instead of object keys"},
    {"file", 'f', KVC_TEXT, KVC_FIELD(struct hash_options, file), "FILE", NULL, NULL, 0,
        0, "tokens from a file; - is standard input"},
    {"format", 0, KVC_CHOICE, KVC_FIELD(struct hash_options, format), KVC_TOKEN_FORMATS,
        "auto", NULL, 0, 0, "form of the file"},
    {"prior", 0, KVC_TEXT, KVC_FIELD(struct hash_options, prior), "HEX", NULL, NULL, 0, 0,
        "key of the page before the first"},
    {"extra-key", 0, KVC_TEXT, KVC_FIELD(struct hash_options, extra_key), "TEXT", NULL,
        NULL, 0, 0, "namespace: extra key"},
    {"cache-salt", 0, KVC_TEXT, KVC_FIELD(struct hash_options, cache_salt), "TEXT", NULL,
        NULL, 0, 0, "namespace: cache salt"},
};

static const struct kvc_usage USAGE = {"hash", "[TOKENS...]",
    "Page keys of a prompt; with --layout the names of its objects in the store", OPTIONS,
    KVC_COUNT(OPTIONS),
    "  kvgraft hash --page-size 4 1 2 3 4 5 6 7 8\n"
    "  kvgraft hash --page-size 4 1..8\n"
    "  kvgraft hash --layout '{\"page_size\":64,\"tp_size\":8}' -f prompt.json\n"};

/* What is printed, and how. */
struct printer {
    const struct hash_options *options;
    const struct kvg_layout *layout;
};

static void print_objects(const struct printer *printer, const struct kvg_key *key,
    const char *before, const char *between, const char *after)
{
    char name[KVG_OBJECT_KEY_BYTES_MAX + 1];
    char group[KVG_GROUP_ID_BYTES_MAX + 1];
    uint32_t part;

    if (printer->options->groups) {
        kvg_layout_group_id(printer->layout, key, group);
        printf("%s%s%s", before, group, after);
        return;
    }
    for (part = 0; part < kvg_layout_part_count(printer->layout); part++) {
        kvg_layout_object_key(printer->layout, key, part, name);
        printf("%s%s%s%s", part == 0 ? "" : between, before, name, after);
    }
}

static void print_text(
    const struct printer *printer, const struct kvg_key *keys, size_t key_count)
{
    char hex[KVG_KEY_HEX_BYTES];
    size_t i;

    for (i = 0; i < key_count; i++) {
        if (printer->layout != NULL) {
            print_objects(printer, &keys[i], "", "", "\n");
            continue;
        }
        kvg_key_to_hex(&keys[i], hex);
        puts(hex);
    }
}

/* Names hold no character that JSON escapes: hex, and a prefix that the layout has checked. */
static void print_json(const struct printer *printer, const struct kvg_page_rule *rule,
    size_t token_count, const struct kvg_key *keys, size_t key_count)
{
    char hex[KVG_KEY_HEX_BYTES];
    size_t i;

    printf("{\"tokens\":%zu,\"page_size\":%" PRIu32 ",\"eagle\":%s,\"pages\":[",
        token_count, rule->page_size, rule->eagle ? "true" : "false");
    for (i = 0; i < key_count; i++) {
        kvg_key_to_hex(&keys[i], hex);
        printf("%s{\"page\":%zu,\"key\":\"%s\"", i == 0 ? "" : ",", i, hex);
        if (printer->layout != NULL) {
            printf(printer->options->groups ? ",\"group\":" : ",\"objects\":[");
            print_objects(printer, &keys[i], "\"", ",", "\"");
            printf(printer->options->groups ? "" : "]");
        }
        printf("}");
    }
    printf("]}\n");
}

/* The key before the first page: --prior, or the namespace's. */
static kvg_err read_prior(const struct hash_options *options, struct kvg_key *prior,
    bool *has_prior, struct kvg_error *error)
{
    struct kvg_namespace space = {{NULL, 0}, {NULL, 0}};

    if (options->extra_key != NULL)
        space.extra_key =
            (struct kvg_str){options->extra_key, strlen(options->extra_key)};
    if (options->cache_salt != NULL)
        space.cache_salt =
            (struct kvg_str){options->cache_salt, strlen(options->cache_salt)};
    *has_prior = kvg_namespace_prior(&space, prior);
    if (options->prior == NULL)
        return KVG_OK;
    error->code = KVG_EINVAL;
    snprintf(error->field, sizeof(error->field), "--prior");
    if (*has_prior) {
        snprintf(error->message, sizeof(error->message),
            "a prior key already holds its namespace: leave --extra-key and --cache-salt "
            "out");
        return KVG_EINVAL;
    }
    *has_prior =
        kvg_key_from_hex((struct kvg_str){options->prior, strlen(options->prior)}, prior);
    snprintf(error->message, sizeof(error->message), "is not 64 hex digits");
    return *has_prior ? KVG_OK : KVG_EINVAL;
}

static int hash_tokens(const struct printer *printer, const struct kvg_page_rule *rule,
    const struct kvc_tokens *tokens)
{
    size_t key_count = kvg_page_count(rule, tokens->count);
    struct kvg_error error = {0};
    char text[KVC_ERROR_BYTES];
    struct kvg_key *keys;
    struct kvg_key prior;
    bool has_prior;

    if (read_prior(printer->options, &prior, &has_prior, &error) != KVG_OK)
        return kvc_misused(&USAGE, "%s", kvc_error_text(&error, text));
    keys = malloc((key_count + 1) * sizeof(*keys));
    if (keys == NULL)
        return kvc_failed(&USAGE, "out of memory for %zu keys", key_count);
    kvg_page_keys(
        rule, has_prior ? &prior : NULL, tokens->ids, tokens->count, keys, key_count);
    if (printer->options->common.json)
        print_json(printer, rule, tokens->count, keys, key_count);
    else
        print_text(printer, keys, key_count);
    if (key_count == 0 && !printer->options->common.json &&
        !printer->options->common.quiet)
        fprintf(stderr, "kvgraft hash: %zu tokens make no whole page of %" PRIu32 "\n",
            tokens->count, rule->page_size);
    free(keys);
    return KVC_FINE;
}

int kvc_hash_main(int argc, char **argv)
{
    struct hash_options options = {0};
    struct kvg_workers *workers = NULL;
    struct kvc_tokens tokens = {0};
    struct printer printer = {&options, NULL};
    struct kvg_page_rule rule;
    struct kvg_error error = {0};
    char text[KVC_ERROR_BYTES];
    int exit_code;
    int first = kvc_options(&USAGE, argc, argv, &options, &exit_code);

    if (first < 0)
        return exit_code;
    rule = (struct kvg_page_rule){(uint32_t)options.page_size, options.eagle};
    if (first == argc && options.file == NULL)
        return kvc_misused(&USAGE, "give tokens, or --file");
    if (options.groups && options.layout == NULL)
        return kvc_misused(&USAGE, "--groups needs --layout");
    if (options.layout != NULL) {
        if (kvc_layout_arg(options.layout, &error, &workers, &printer.layout) != KVG_OK)
            return kvc_misused(&USAGE, "--layout: %s", kvc_error_text(&error, text));
        rule = kvg_layout_rule(printer.layout);
    }
    if (kvc_tokens_of_arguments(&tokens, argv + first, argc - first, options.file,
            (enum kvc_token_format)options.format, &error) != KVG_OK)
        exit_code = kvc_misused(&USAGE, "%s", kvc_error_text(&error, text));
    else
        exit_code = hash_tokens(&printer, &rule, &tokens);
    kvc_tokens_fini(&tokens);
    kvg_workers_free(workers);
    return exit_code;
}
