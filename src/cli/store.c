/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* store.c -- `kvgraft store`: looks into a store, checks it, and moves single objects. */
#include "cli/cli.h"

#include <kvgraft/store_backend.h>

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct store_options {
    struct kvc_common common;
    bool yes;
    const char *output;
    const char *group;
    const char *previous;
    uint64_t offset;
    uint64_t bytes;
    uint64_t limit;
};

static const struct kvc_option OPTIONS[] = {
    {"yes", 'y', KVC_FLAG, KVC_FIELD(struct store_options, yes), NULL, NULL, NULL, 0, 0,
        "clear: do it, without asking"},
    {"output", 'o', KVC_TEXT, KVC_FIELD(struct store_options, output), "FILE", NULL, NULL,
        0, 0, "get: write there instead of standard output"},
    {"offset", 0, KVC_BYTES, KVC_FIELD(struct store_options, offset), "BYTES", "0", NULL,
        0, KVG_STORE_VALUE_MAX, "get: begin there"},
    {"bytes", 0, KVC_BYTES, KVC_FIELD(struct store_options, bytes), "BYTES", NULL, NULL,
        0, KVG_STORE_VALUE_MAX, "get: so many, not all"},
    {"group", 0, KVC_TEXT, KVC_FIELD(struct store_options, group), "TEXT", NULL, NULL, 0,
        0, "put: a group id, for events"},
    {"previous", 0, KVC_TEXT, KVC_FIELD(struct store_options, previous), "KEY", NULL,
        NULL, 0, 0, "put: an object of the page before"},
    {"limit", 'n', KVC_U64, KVC_FIELD(struct store_options, limit), "N", "0", NULL, 0,
        UINT64_MAX, "ls: at most so many; 0: all"},
};

static const struct kvc_usage USAGE = {"store", "ACTION URL [KEY] [FILE]",
    "Looks into a store of KV pages, checks it, and moves single objects", OPTIONS,
    KVC_COUNT(OPTIONS),
    "actions:\n"
    "  stat URL           what it holds and promises\n"
    "  ls URL             its objects: bytes, key, group\n"
    "  check URL          reads and verifies everything; exit code 1 if something is "
    "wrong\n"
    "  repair URL         the same, and drops what is damaged\n"
    "  clear URL --yes    removes everything\n"
    "  put URL KEY FILE   writes one object; - is standard input\n"
    "  get URL KEY        reads one object\n"
    "  rm URL KEY...      removes objects\n"
    "  publish URL        publishes what happens in it (store publish --help)\n"
    "  schemes            the stores there are\n\n"
    "  kvgraft store ls file:/var/lib/kvgraft\n"
    "  kvgraft store check 'fault+file:/tmp/x?fault.fail=get:3'\n"};

struct action {
    const char *name;
    bool writes;
    int arguments_min; /* After the action itself. */
    int arguments_max;
    int (*run)(struct kvg_store *store, const struct store_options *options, char **argv,
        int argc);
};

static int failed(const struct kvg_error *error)
{
    char text[KVC_ERROR_BYTES];

    return kvc_failed(&USAGE, "%s", kvc_error_text(error, text));
}

/* A key or text as a JSON string. */
static void print_json_text(const char *data, size_t bytes)
{
    size_t i;

    putchar('"');
    for (i = 0; i < bytes; i++) {
        unsigned char c = (unsigned char)data[i];

        if (c == '"' || c == '\\')
            printf("\\%c", c);
        else if (c < 0x20 || c >= 0x7f)
            printf("\\u%04x", c);
        else
            putchar(c);
    }
    putchar('"');
}

/* A key as people read it: what is not printable as \xNN. */
static void print_text(const char *data, size_t bytes)
{
    size_t i;

    for (i = 0; i < bytes; i++) {
        unsigned char c = (unsigned char)data[i];

        if (c < 0x20 || c >= 0x7f || c == '\\')
            printf("\\x%02x", c);
        else
            putchar(c);
    }
}

/* ---- stat ---------------------------------------------------------------------------------- */

static const struct {
    uint32_t flag;
    const char *name;
} FLAGS[] = {{KVG_STORE_SHARED, "shared"}, {KVG_STORE_PERSISTENT, "persistent"},
    {KVG_STORE_FOLLOWS, "follows"}, {KVG_STORE_CHECKSUMS, "checksums"},
    {KVG_STORE_EVICTS, "evicts"}, {KVG_STORE_LISTS, "lists"},
    {KVG_STORE_ATOMIC, "atomic"}, {KVG_STORE_RANGES, "ranges"},
    {KVG_STORE_REMOVES, "removes"}};

static int run_stat(
    struct kvg_store *store, const struct store_options *options, char **argv, int argc)
{
    struct kvg_store_stats stats = {.struct_bytes = sizeof(stats)};
    char text[4][KVC_NUMBER_BYTES];
    size_t i;
    bool first = true;

    (void)argv;
    (void)argc;
    kvg_store_stats(store, &stats);
    if (options->common.json) {
        printf("{\"objects\":%" PRIu64 ",\"bytes\":%" PRIu64 ",\"bytes_max\":%" PRIu64
               ",\"bytes_on_disk\":%" PRIu64 ",\"epoch\":\"%016" PRIx64
               "\",\"sequence\":%" PRIu64 ",\"promises\":[",
            stats.objects, stats.bytes, stats.bytes_max, stats.bytes_on_disk, stats.epoch,
            stats.sequence);
    } else {
        printf(
            "store      %s\nobjects    %s\nbytes      %s of %s, %s on disk\nchanges    "
            "epoch %016" PRIx64 ", sequence %" PRIu64 "\npromises   ",
            kvg_store_url_text(store), kvc_count_text(stats.objects, text[0]),
            kvc_bytes_text(stats.bytes, text[1]),
            stats.bytes_max == 0 ? "no bound" : kvc_bytes_text(stats.bytes_max, text[2]),
            kvc_bytes_text(stats.bytes_on_disk, text[3]), stats.epoch, stats.sequence);
    }
    for (i = 0; i < KVC_COUNT(FLAGS); i++) {
        if ((kvg_store_flags(store) & FLAGS[i].flag) == 0)
            continue;
        if (options->common.json)
            printf("%s\"%s\"", first ? "" : ",", FLAGS[i].name);
        else
            printf("%s%s", first ? "" : " ", FLAGS[i].name);
        first = false;
    }
    printf(options->common.json ? "]}\n" : "\n");
    return KVC_FINE;
}

/* ---- ls ------------------------------------------------------------------------------------ */

struct listing {
    const struct store_options *options;
    uint64_t listed;
};

static bool print_item(void *context, const struct kvg_store_item *item)
{
    struct listing *listing = context;

    listing->listed++;
    if (listing->options->common.json) {
        printf("{\"key\":");
        print_json_text(item->key.data, item->key.bytes);
        printf(",\"bytes\":%" PRIu64 ",\"medium\":\"%s\"", item->bytes,
            kvg_medium_name(item->medium));
        if (item->group_id.data != NULL) {
            printf(",\"group_id\":");
            print_json_text(item->group_id.data, item->group_id.bytes);
        }
        printf("}\n");
    } else {
        printf("%10" PRIu64 "  ", item->bytes);
        print_text(item->key.data, item->key.bytes);
        if (item->group_id.data != NULL) {
            printf("  ");
            print_text(item->group_id.data, item->group_id.bytes);
        }
        printf("\n");
    }
    return listing->options->limit == 0 || listing->listed < listing->options->limit;
}

static int run_ls(
    struct kvg_store *store, const struct store_options *options, char **argv, int argc)
{
    struct kvg_store_cursor cursor = {0};
    struct listing listing = {options, 0};
    struct kvg_error error = {0};

    (void)argv;
    (void)argc;
    while (!cursor.done && (options->limit == 0 || listing.listed < options->limit)) {
        if (kvg_store_list(store, &cursor, 1000, print_item, &listing, &error) != KVG_OK)
            return failed(&error);
    }
    return KVC_FINE;
}

/* ---- check, repair, clear ------------------------------------------------------------------ */

static void say(void *context, const char *line)
{
    const struct store_options *options = context;

    if (!options->common.quiet)
        fprintf(stderr, "%s\n", line);
}

static int check(
    struct kvg_store *store, const struct store_options *options, bool repair)
{
    struct kvg_store_report report = {.struct_bytes = sizeof(report)};
    struct kvg_error error = {0};
    struct store_options copy = *options;
    char text[2][KVC_NUMBER_BYTES];

    if (kvg_store_check(store, repair, say, &copy, &report, &error) != KVG_OK)
        return failed(&error);
    if (options->common.json)
        printf("{\"objects\":%" PRIu64 ",\"bytes\":%" PRIu64 ",\"damaged\":%" PRIu64
               ",\"dropped\":%" PRIu64 ",\"bytes_unused\":%" PRIu64
               ",\"problems\":%" PRIu64 "}\n",
            report.objects, report.bytes, report.damaged, report.dropped,
            report.bytes_unused, report.problems);
    else
        printf("%s objects, %s: %" PRIu64 " damaged, %" PRIu64 " dropped\n",
            kvc_count_text(report.objects, text[0]),
            kvc_bytes_text(report.bytes, text[1]), report.damaged, report.dropped);
    return report.damaged > report.dropped ? KVC_FAILED : KVC_FINE;
}

static int run_check(
    struct kvg_store *store, const struct store_options *options, char **argv, int argc)
{
    (void)argv;
    (void)argc;
    return check(store, options, false);
}

static int run_repair(
    struct kvg_store *store, const struct store_options *options, char **argv, int argc)
{
    (void)argv;
    (void)argc;
    return check(store, options, true);
}

static int run_clear(
    struct kvg_store *store, const struct store_options *options, char **argv, int argc)
{
    struct kvg_error error = {0};

    (void)argv;
    (void)argc;
    if (!options->yes)
        return kvc_misused(&USAGE, "clear removes everything: add --yes if you mean it");
    return kvg_store_clear(store, &error) == KVG_OK ? KVC_FINE : failed(&error);
}

/* ---- put, get, rm -------------------------------------------------------------------------- */

static struct kvg_str text_of(const char *text)
{
    return (struct kvg_str){text, text == NULL ? 0 : strlen(text)};
}

static int run_put(
    struct kvg_store *store, const struct store_options *options, char **argv, int argc)
{
    struct kvg_error error = {0};
    struct kvg_store_piece piece = {NULL, 0};
    struct kvg_store_part part = {text_of(argv[0]), &piece, 1};
    struct kvg_store_group group = {.parts = &part,
        .part_count = 1,
        .id = text_of(options->group),
        .previous = text_of(options->previous)};
    char *data = kvc_read_file(
        argc > 1 ? argv[1] : "-", KVG_STORE_VALUE_MAX, &piece.bytes, &error);
    kvg_err err;

    if (data == NULL)
        return failed(&error);
    piece.data = data;
    err = kvg_store_put(store, &group, 1, &error);
    free(data);
    if (err != KVG_OK)
        return failed(&error);
    if (group.result == KVG_EEXIST && !options->common.quiet)
        fprintf(stderr, "kvgraft store: there already; left as it is\n");
    return KVC_FINE;
}

static int write_out(const struct store_options *options, const void *data, size_t bytes)
{
    FILE *out = options->output == NULL ? stdout : fopen(options->output, "wb");
    bool good;

    if (out == NULL)
        return kvc_failed(&USAGE, "%s: %s", options->output, strerror(errno));
    good = fwrite(data, 1, bytes, out) == bytes;
    if (out != stdout ? fclose(out) != 0 : fflush(out) != 0)
        good = false;
    return good ? KVC_FINE : kvc_failed(&USAGE, "writing failed: %s", strerror(errno));
}

static int run_get(
    struct kvg_store *store, const struct store_options *options, char **argv, int argc)
{
    struct kvg_error error = {0};
    struct kvg_store_range range = {0};
    struct kvg_store_get get = {.key = text_of(argv[0])};
    int code;

    (void)argc;
    if (kvg_store_get(store, &get, 1, &error) != KVG_OK)
        return failed(&error);
    if (get.result == KVG_ENOENT)
        return kvc_failed(&USAGE, "there is no such object");
    if (options->offset > get.value_bytes)
        return kvc_failed(&USAGE, "the object has %" PRIu64 " bytes", get.value_bytes);
    range.offset = options->offset;
    range.bytes = (size_t)(get.value_bytes - options->offset);
    if (options->bytes > 0 && options->bytes < range.bytes)
        range.bytes = (size_t)options->bytes;
    range.memory = malloc(range.bytes + 1);
    if (range.memory == NULL)
        return kvc_failed(&USAGE, "out of memory");
    get.ranges = &range;
    get.range_count = 1;
    if (kvg_store_get(store, &get, 1, &error) != KVG_OK)
        code = failed(&error);
    else if (get.result != KVG_OK)
        code = kvc_failed(&USAGE, "there is no such object");
    else
        code = write_out(options, range.memory, range.bytes);
    free(range.memory);
    return code;
}

static int run_rm(
    struct kvg_store *store, const struct store_options *options, char **argv, int argc)
{
    int code = KVC_FINE;
    int i;

    for (i = 0; i < argc; i++) {
        struct kvg_error error = {0};
        struct kvg_str key = text_of(argv[i]);
        kvg_err result = KVG_OK;

        if (kvg_store_remove(store, &key, 1, &result, &error) != KVG_OK)
            return failed(&error);
        if (result == KVG_ENOENT && !options->common.quiet)
            fprintf(stderr, "kvgraft store: %s: there is no such object\n", argv[i]);
        if (result == KVG_ENOENT)
            code = KVC_FAILED;
    }
    return code;
}

/* ---- All of it ----------------------------------------------------------------------------- */

static const struct action ACTIONS[] = {
    {"stat", false, 1, 1, run_stat},
    {"ls", false, 1, 1, run_ls},
    {"check", false, 1, 1, run_check},
    {"repair", true, 1, 1, run_repair},
    {"clear", true, 1, 1, run_clear},
    {"put", true, 2, 3, run_put},
    {"get", false, 2, 2, run_get},
    {"rm", true, 2, 1 << 20, run_rm},
};

static int print_schemes(void)
{
    const struct kvg_store_registry *registry = kvg_store_builtin();
    size_t i;

    for (; registry != NULL; registry = registry->next) {
        for (i = 0; i < registry->backend_count; i++)
            printf("%s\n", registry->backends[i]->summary);
    }
    return KVC_FINE;
}

static void print_log(
    void *context, enum kvg_level level, const char *component, const char *message)
{
    (void)context;
    if (level >= KVG_LOG_WARN)
        fprintf(stderr, "%s: %s\n", component, message);
}

static int run(const struct action *action, const struct store_options *options,
    char **argv, int argc)
{
    const struct kvg_log log = {print_log, NULL};
    struct kvg_store_options how = {
        .struct_bytes = sizeof(how), .log = &log, .read_only = !action->writes};
    struct kvg_store *store;
    struct kvg_error error = {0};
    int code;

    if (kvg_store_open(argv[0], &how, &store, &error) != KVG_OK)
        return failed(&error);
    code = action->run(store, options, argv + 1, argc - 1);
    kvg_store_close(store);
    return code;
}

int kvc_store_main(int argc, char **argv)
{
    struct store_options options = {0};
    int exit_code;
    int first;
    size_t i;

    if (argc > 1 && strcmp(argv[1], "publish") == 0)
        return kvc_publish_main(argc - 1, argv + 1);
    first = kvc_options(&USAGE, argc, argv, &options, &exit_code);
    if (first < 0)
        return exit_code;
    if (first < argc && strcmp(argv[first], "schemes") == 0)
        return print_schemes();
    if (argc - first < 2)
        return kvc_misused(&USAGE, "give an action and the URL of a store");
    for (i = 0; i < KVC_COUNT(ACTIONS); i++) {
        const struct action *action = &ACTIONS[i];
        int count = argc - first - 1;

        if (strcmp(argv[first], action->name) != 0)
            continue;
        if (count < action->arguments_min || count > action->arguments_max)
            return kvc_misused(&USAGE, "%s takes %d to %d arguments", action->name,
                action->arguments_min, action->arguments_max);
        return run(action, &options, argv + first + 1, count);
    }
    return kvc_misused(&USAGE, "there is no action \"%s\"", argv[first]);
}
