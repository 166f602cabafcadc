/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* config_command.c -- the command `kvgraft config`: check a file, make one, list the keys. */
#include "daemon/config_table.h"
#include "daemon/daemon.h"

#include "base/fmt.h"
#include "net/http_get.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern char **environ;

static void print_help(FILE *to)
{
    fputs("usage: kvgraft config check FILE    is it good? (exit code 1 and the reason "
          "if not)\n"
          "       kvgraft config init          print a commented file with every key\n"
          "       kvgraft config keys          print every key as a table (Markdown)\n",
        to);
}

static bool is_bare(const struct kvd_key *key)
{
    return key->type == KVD_VALUE_NUMBER || key->type == KVD_VALUE_JSON;
}

/* A secret, or what most leave alone, is shown commented out. */
static void print_key(const struct kvd_key *key, const char *indent, bool commented)
{
    const char *quote = is_bare(key) ? "" : "\"";

    printf("%s// %s\n", indent, key->help);
    if (key->type == KVD_VALUE_CHOICE) {
        printf("%s// One of:", indent);
        for (unsigned i = 0; i < 4 && key->choices[i] != NULL; i++)
            printf(" %s", key->choices[i]);
        printf("\n");
    } else if (is_bare(key) && key->type == KVD_VALUE_NUMBER) {
        printf("%s// %llu to %llu\n", indent, (unsigned long long)key->min,
            (unsigned long long)key->max);
    }
    printf("%s%s\"%s\": %s%s%s,\n", indent, commented || key->secret ? "// " : "",
        key->name, quote, key->standard, quote);
}

static int print_init(void)
{
    const char *group = "";

    printf("// The configuration of `kvgraft serve`.  JSON, in which comments (// and #) "
           "and a\n"
           "// comma too many are allowed.  Every value shown is the default, except for "
           "the\n"
           "// one source.  Sizes: 1048576 or \"1GiB\"; durations: 250 (milliseconds) or "
           "\"5s\".\n"
           "{");
    for (size_t i = 0; i < KVD_KEY_COUNT; i++) {
        if (strcmp(KVD_KEYS[i].group, group) != 0) {
            printf("%s\n    \"%s\": {\n", group[0] == '\0' ? "" : "    },",
                KVD_KEYS[i].group);
            group = KVD_KEYS[i].group;
        }
        print_key(&KVD_KEYS[i], "        ", false);
    }
    printf("    },\n    // The streams to follow.\n    \"sources\": [\n        {\n");
    for (size_t i = 0; i < KVD_SOURCE_KEY_COUNT; i++)
        print_key(&KVD_SOURCE_KEYS[i], "            ",
            KVD_SOURCE_KEYS[i].type == KVD_VALUE_JSON);
    printf("        },\n    ],\n}\n");
    return 0;
}

static void print_keys(const struct kvd_key *keys, size_t count)
{
    for (size_t i = 0; i < count; i++)
        printf("| `%s.%s` | %s%s%s | %s |\n",
            keys[i].group != NULL ? keys[i].group : "sources[]", keys[i].name,
            keys[i].standard[0] != '\0' ? "`" : "", keys[i].standard,
            keys[i].standard[0] != '\0' ? "`" : "", keys[i].help);
}

static int print_table(void)
{
    printf("| key | default | what it does |\n|---|---|---|\n");
    print_keys(KVD_KEYS, KVD_KEY_COUNT);
    print_keys(KVD_SOURCE_KEYS, KVD_SOURCE_KEY_COUNT);
    return 0;
}

/* What is allowed but unwise. */
static void print_warnings(const struct kvd_config *config)
{
    char host[KVN_HOST_BYTES];
    uint16_t port;

    if (config->http_listen[0] != '\0' && config->http_token[0] == '\0' &&
        kvn_host_port_parse(kvi_str(config->http_listen), "", NULL, host, &port) ==
            KVG_OK &&
        strncmp(host, "127.", 4) != 0 && strcmp(host, "::1") != 0 &&
        strcmp(host, "localhost") != 0)
        printf("warning: http.listen is beyond loopback and there is no token\n");
    for (uint32_t i = 0; i < config->source_count; i++) {
        if (config->sources[i].admin_url[0] == '\0' &&
            config->sources[i].profile == KVD_PROFILE_DEFAULT)
            printf(
                "warning: sources.%u.admin_url is not set: a loss cannot be repaired\n",
                (unsigned)i);
    }
    if (config->source_count == 0)
        printf("warning: there are no sources; they can still be registered over HTTP\n");
}

static int check(const char *path)
{
    struct kvd_config *config = malloc(sizeof(*config));
    struct kvg_error error = {.code = KVG_OK};
    kvg_err err;

    if (config == NULL)
        return 1;
    kvd_config_init(config);
    err = kvd_config_read_file(config, path, &error);
    if (err == KVG_OK)
        err = kvd_config_read_environment(config, environ, &error);
    if (err == KVG_OK)
        err = kvd_config_finish(config, &error);
    if (err == KVG_OK) {
        print_warnings(config);
        printf("%s: good, %u source(s)\n", path, (unsigned)config->source_count);
    } else {
        fprintf(stderr, "%s: %s %s\n", path, error.field, error.message);
    }
    kvd_config_fini(config);
    free(config);
    return err == KVG_OK ? 0 : 1;
}

int kvd_config_main(int argc, char **argv)
{
    if (argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        print_help(stdout);
        return 0;
    }
    if (argc == 2 && strcmp(argv[1], "init") == 0)
        return print_init();
    if (argc == 2 && strcmp(argv[1], "keys") == 0)
        return print_table();
    if (argc == 3 && strcmp(argv[1], "check") == 0)
        return check(argv[2]);
    print_help(stderr);
    return 2;
}
