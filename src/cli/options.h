/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* options.h -- the options of the commands: one table each, over getopt_long.
 *
 *     struct hash_options {
 *         struct kvc_common common;          first, in every command
 *         uint64_t page_size;
 *     };
 *     static const struct kvc_option OPTIONS[] = {
 *         {"page-size", 'p', KVC_U64, KVC_FIELD(struct hash_options, page_size), "N", "16",
 *             "KVGRAFT_PAGE_SIZE", 1, KVG_PAGE_SIZE_MAX, "units a page"},
 *     };
 *     static const struct kvc_usage USAGE = {"hash", "[TOKENS...]", "...", OPTIONS, 1, "..."};
 *
 * A value comes from the command line, else from the environment variable, else from the
 * default; the same text is checked in the same way wherever it comes from.  --help, and what
 * is said about a wrong value, come from the table.
 */
#ifndef KVC_OPTIONS_H
#define KVC_OPTIONS_H

#include <kvgraft/base.h>

#include <stdio.h>

/* Exit codes of the command. */
enum {
    KVC_FINE = 0,
    KVC_FAILED = 1,
    KVC_MISUSED = 2
};

enum kvc_type {
    KVC_FLAG,     /* bool; takes no value. */
    KVC_TEXT,     /* const char *; into argv, the environment or the table. */
    KVC_U64,      /* uint64_t, low to high. */
    KVC_BYTES,    /* uint64_t; "64KiB", "10MB", low to high. */
    KVC_DURATION, /* uint64_t in milliseconds; "250ms", "5s", "2min", low to high. */
    KVC_RATIO,    /* double, 0 or more. */
    KVC_CHOICE    /* int: index into the words of `metavar`, separated by '|'. */
};

struct kvc_option {
    const char *name; /* Long name, without dashes. */
    char letter;      /* Or 0. */
    enum kvc_type type;
    size_t offset;        /* Into the command's options. */
    const char *metavar;  /* NULL for a flag. */
    const char *fallback; /* Default, as text; NULL: zero. */
    const char *env;      /* Or NULL. */
    uint64_t low;
    uint64_t high;
    const char *help;
};

#define KVC_FIELD(type, field) offsetof(type, field)
#define KVC_COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* What every command takes. */
struct kvc_common {
    bool json;
    bool quiet;
    bool no_color;
    bool no_progress;
};

struct kvc_usage {
    const char *command;
    const char *arguments; /* "[TOKENS...]"; empty for none. */
    const char *summary;   /* One line, without a full stop. */
    const struct kvc_option *options;
    size_t option_count;
    const char *details; /* What --help adds: examples, notes. */
};

/* Reads the options of a command into *values, which must begin with a struct kvc_common and
 * be zero.  Returns the index of the first argument that is no option (options may come after
 * arguments; argv is put in order), or, when the command is to end at once, -1 with the exit
 * code in *exit_code: after --help, or after a mistake, which has been explained on stderr. */
int kvc_options(
    const struct kvc_usage *usage, int argc, char **argv, void *values, int *exit_code);

void kvc_usage_print(const struct kvc_usage *usage, FILE *to);

/* Reads one value of text.  False if the text is not of the type or out of range; then
 * `why` says what is allowed. */
bool kvc_option_set(const struct kvc_option *option, const char *text, void *values,
    char *why, size_t why_bytes);

/* "kvgraft COMMAND: ..." on stderr, with a line end; returns KVC_MISUSED, KVC_FAILED. */
int kvc_misused(const struct kvc_usage *usage, const char *format, ...) KVG_PRINTF(2, 3);
int kvc_failed(const struct kvc_usage *usage, const char *format, ...) KVG_PRINTF(2, 3);

/* An error as a sentence: "page_size is missing", "tokens: more than the allowed ...", with the
 * field once even where the message names it too.  Returns `out`. */
#define KVC_ERROR_BYTES (sizeof(struct kvg_error))
const char *kvc_error_text(const struct kvg_error *error, char out[KVC_ERROR_BYTES]);

#endif
