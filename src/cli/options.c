/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* options.c -- tables of options over getopt_long (options.h). */
#include "cli/options.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define OPTIONS_MAX 48
/* Long options are numbered from here, so that letters stay letters. */
#define LONG_BASE 1000

static const struct kvc_option COMMON[] = {
    {"json", 0, KVC_FLAG, KVC_FIELD(struct kvc_common, json), NULL, NULL, NULL, 0, 0,
        "print JSON: one object, or one a line"},
    {"quiet", 'q', KVC_FLAG, KVC_FIELD(struct kvc_common, quiet), NULL, NULL, NULL, 0, 0,
        "print results only"},
    {"no-color", 0, KVC_FLAG, KVC_FIELD(struct kvc_common, no_color), NULL, NULL,
        "NO_COLOR", 0, 0, "plain text on a terminal too"},
    {"no-progress", 0, KVC_FLAG, KVC_FIELD(struct kvc_common, no_progress), NULL, NULL,
        NULL, 0, 0, "no progress line on a terminal"},
};

struct unit {
    const char *name;
    uint64_t factor;
};

static const struct unit BYTE_UNITS[] = {{"", 1}, {"b", 1}, {"kib", 1u << 10},
    {"mib", 1u << 20}, {"gib", 1u << 30}, {"tib", UINT64_C(1) << 40}, {"k", 1u << 10},
    {"m", 1u << 20}, {"g", 1u << 30}, {"t", UINT64_C(1) << 40}, {"kb", 1000},
    {"mb", 1000000}, {"gb", 1000000000}, {"tb", UINT64_C(1000000000000)}};
static const struct unit TIME_UNITS[] = {{"ms", 1}, {"s", 1000}, {"min", 60000},
    {"m", 60000}, {"h", 3600000}, {"d", 86400000}};

int kvc_misused(const struct kvc_usage *usage, const char *format, ...)
{
    va_list arguments;

    fprintf(stderr, "kvgraft %s: ", usage->command);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fprintf(stderr, "\nTry `kvgraft %s --help`.\n", usage->command);
    return KVC_MISUSED;
}

int kvc_failed(const struct kvc_usage *usage, const char *format, ...)
{
    va_list arguments;

    fprintf(stderr, "kvgraft %s: ", usage->command);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    return KVC_FAILED;
}

const char *kvc_error_text(const struct kvg_error *error, char out[KVC_ERROR_BYTES])
{
    static const char *const VERBS[] = {"is ", "are ", "has ", "have ", "holds "};
    size_t field_bytes = strlen(error->field);
    const char *between = ": ";
    size_t i;

    for (i = 0; i < KVC_COUNT(VERBS); i++) {
        if (strncmp(error->message, VERBS[i], strlen(VERBS[i])) == 0)
            between = " ";
    }
    if (field_bytes == 0 || strncmp(error->message, error->field, field_bytes) == 0)
        snprintf(out, KVC_ERROR_BYTES, "%s", error->message);
    else
        snprintf(out, KVC_ERROR_BYTES, "%s%s%s", error->field, between, error->message);
    return out;
}

static bool equal_ignoring_case(const char *a, const char *b)
{
    for (; *a != '\0' && *b != '\0'; a++, b++) {
        char low = (char)(*a >= 'A' && *a <= 'Z' ? *a + 32 : *a);

        if (low != *b)
            return false;
    }
    return *a == *b;
}

/* A number and one of `units`; a bare number is in units of `units[0]` if that is "". */
static bool read_quantity(
    const char *text, const struct unit *units, size_t unit_count, uint64_t *out)
{
    char *end;
    unsigned long long number;
    size_t i;

    if (text[0] < '0' || text[0] > '9')
        return false;
    errno = 0;
    number = strtoull(text, &end, 10);
    if (errno != 0)
        return false;
    while (*end == ' ')
        end++;
    for (i = 0; i < unit_count; i++) {
        if (!equal_ignoring_case(end, units[i].name))
            continue;
        if (number > UINT64_MAX / units[i].factor)
            return false;
        *out = number * units[i].factor;
        return true;
    }
    return false;
}

/* Which word of "a|b|c" the text is, or -1. */
static int choice_index(const char *words, const char *text)
{
    size_t bytes = strlen(text);
    int index = 0;

    for (;; index++) {
        size_t word = strcspn(words, "|");

        if (word == bytes && memcmp(words, text, bytes) == 0)
            return index;
        if (words[word] == '\0')
            return -1;
        words += word + 1;
    }
}

static bool set_number(const struct kvc_option *option, const char *text, void *place,
    char *why, size_t why_bytes)
{
    static const struct unit ONE[] = {{"", 1}};
    static const char *const FORM[] = {
        [KVC_U64] = "a whole number",
        [KVC_BYTES] = "a size such as 64KiB or 10MB",
        [KVC_DURATION] = "a time such as 250ms, 5s or 2min",
    };
    uint64_t value = 0;
    bool good = false;

    if (option->type == KVC_U64)
        good = read_quantity(text, ONE, 1, &value);
    else if (option->type == KVC_BYTES)
        good = read_quantity(text, BYTE_UNITS, KVC_COUNT(BYTE_UNITS), &value);
    else
        good = read_quantity(text, TIME_UNITS, KVC_COUNT(TIME_UNITS), &value);
    if (good && value >= option->low && value <= option->high) {
        memcpy(place, &value, sizeof(value));
        return true;
    }
    snprintf(why, why_bytes,
        "\"%.60s\" is not allowed for --%s; it takes %s, %" PRIu64 " to %" PRIu64 "%s",
        text, option->name, FORM[option->type], option->low, option->high,
        option->type == KVC_DURATION ? " milliseconds"
        : option->type == KVC_BYTES  ? " bytes"
                                     : "");
    return false;
}

bool kvc_option_set(const struct kvc_option *option, const char *text, void *values,
    char *why, size_t why_bytes)
{
    char *place = (char *)values + option->offset;

    switch (option->type) {
    case KVC_FLAG: {
        bool on = text == NULL || text[0] != '\0'; /* NO_COLOR's rule: anything is yes. */

        memcpy(place, &on, sizeof(on));
        return true;
    }
    case KVC_TEXT:
        memcpy(place, &text, sizeof(text));
        return true;
    case KVC_RATIO: {
        char *end;
        double value = strtod(text, &end);

        if (end != text && *end == '\0' && value >= 0 && value <= 1e9) {
            memcpy(place, &value, sizeof(value));
            return true;
        }
        snprintf(why, why_bytes, "\"%.60s\" is not allowed for --%s; it takes a number",
            text, option->name);
        return false;
    }
    case KVC_CHOICE: {
        int index = choice_index(option->metavar, text);

        if (index >= 0) {
            memcpy(place, &index, sizeof(index));
            return true;
        }
        snprintf(why, why_bytes, "\"%.60s\" is not allowed for --%s; it takes one of %s",
            text, option->name, option->metavar);
        return false;
    }
    case KVC_U64:
    case KVC_BYTES:
    case KVC_DURATION:
        return set_number(option, text, place, why, why_bytes);
    }
    return false;
}

static void print_option(const struct kvc_option *option, FILE *to)
{
    char left[64];

    snprintf(left, sizeof(left), "%c%c%s--%s%s%s", option->letter == 0 ? ' ' : '-',
        option->letter == 0 ? ' ' : option->letter, option->letter == 0 ? "  " : ", ",
        option->name, option->metavar == NULL ? "" : " ",
        option->metavar == NULL ? "" : option->metavar);
    fprintf(to, "  %-30s %s", left, option->help);
    if (option->fallback != NULL && option->fallback[0] != '\0')
        fprintf(to, " (%s)", option->fallback);
    if (option->env != NULL)
        fprintf(to, " [%s]", option->env);
    fputc('\n', to);
}

void kvc_usage_print(const struct kvc_usage *usage, FILE *to)
{
    size_t i;

    fprintf(to, "usage: kvgraft %s [options]%s%s\n\n%s.\n\n", usage->command,
        usage->arguments[0] == '\0' ? "" : " ", usage->arguments, usage->summary);
    for (i = 0; i < usage->option_count; i++)
        print_option(&usage->options[i], to);
    for (i = 0; i < KVC_COUNT(COMMON); i++)
        print_option(&COMMON[i], to);
    if (usage->details != NULL)
        fprintf(to, "\n%s", usage->details);
}

/* Defaults first, then the environment. */
static bool set_before_arguments(const struct kvc_usage *usage,
    const struct kvc_option *const *options, size_t option_count, void *values)
{
    char why[256];
    size_t i;

    for (i = 0; i < option_count; i++) {
        const char *env = options[i]->env == NULL ? NULL : getenv(options[i]->env);

        if (options[i]->fallback != NULL &&
            !kvc_option_set(options[i], options[i]->fallback, values, why, sizeof(why))) {
            kvc_failed(usage, "the default of --%s is wrong: %s", options[i]->name, why);
            return false;
        }
        if (env == NULL || env[0] == '\0')
            continue;
        if (!kvc_option_set(options[i], env, values, why, sizeof(why))) {
            kvc_misused(usage, "environment variable %s: %s", options[i]->env, why);
            return false;
        }
    }
    return true;
}

static int read_arguments(const struct kvc_usage *usage,
    const struct kvc_option *const *options, size_t option_count, int argc, char **argv,
    void *values)
{
    struct option longs[OPTIONS_MAX + 2] = {{0}};
    char letters[2 * OPTIONS_MAX + 4] = ":h";
    size_t letter_bytes = 2;
    size_t i;

    for (i = 0; i < option_count; i++) {
        int takes = options[i]->type == KVC_FLAG ? no_argument : required_argument;

        longs[i] = (struct option){options[i]->name, takes, NULL, LONG_BASE + (int)i};
        if (options[i]->letter == 0)
            continue;
        letters[letter_bytes++] = options[i]->letter;
        if (takes == required_argument)
            letters[letter_bytes++] = ':';
    }
    longs[option_count] = (struct option){"help", no_argument, NULL, 'h'};
    optind = 0; /* Starts anew, whatever was parsed before. */
    for (;;) {
        const struct kvc_option *option = NULL;
        int got = getopt_long(argc, argv, letters, longs, NULL);
        char why[256];

        if (got == -1)
            return -1;
        if (got == 'h') {
            kvc_usage_print(usage, stdout);
            return KVC_FINE;
        }
        if (got == ':')
            return kvc_misused(usage, "%s needs a value", argv[optind - 1]);
        if (got == '?')
            return kvc_misused(
                usage, "there is no option \"%s\"", argv[optind > 1 ? optind - 1 : 1]);
        for (i = 0; i < option_count; i++) {
            if (got == LONG_BASE + (int)i || got == options[i]->letter)
                option = options[i];
        }
        if (option != NULL && !kvc_option_set(option, optarg, values, why, sizeof(why)))
            return kvc_misused(usage, "%s", why);
    }
}

int kvc_options(
    const struct kvc_usage *usage, int argc, char **argv, void *values, int *exit_code)
{
    const struct kvc_option *options[OPTIONS_MAX];
    size_t count = 0;
    size_t i;

    for (i = 0; i < usage->option_count && count < OPTIONS_MAX; i++)
        options[count++] = &usage->options[i];
    for (i = 0; i < KVC_COUNT(COMMON) && count < OPTIONS_MAX; i++)
        options[count++] = &COMMON[i];
    *exit_code = KVC_MISUSED;
    if (!set_before_arguments(usage, options, count, values))
        return -1;
    *exit_code = read_arguments(usage, options, count, argc, argv, values);
    return *exit_code == -1 ? optind : -1;
}
