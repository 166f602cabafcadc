/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* config_table.h -- every key of the configuration as a row of a table. */
#ifndef KVD_CONFIG_TABLE_H
#define KVD_CONFIG_TABLE_H

#include "daemon/config.h"

enum kvd_value_type {
    KVD_VALUE_TEXT,     /* A string of at most max bytes. */
    KVD_VALUE_NUMBER,   /* A whole number. */
    KVD_VALUE_BYTES,    /* A number or "512KiB", "1GiB". */
    KVD_VALUE_DURATION, /* Milliseconds, or "250ms", "5s", "2min", "1h". */
    KVD_VALUE_CHOICE,   /* One of `choices`, stored as an int-sized enum. */
    KVD_VALUE_JSON      /* An object, kept as text. */
};

struct kvd_key {
    const char *group; /* "http"; NULL for a key of a source. */
    const char *name;
    enum kvd_value_type type;
    size_t offset;
    uint64_t min;
    uint64_t max;         /* Of a text: its bytes. */
    const char *standard; /* The default, as a file would say it. */
    const char *choices[4];
    const char *help;
    bool secret;
};

/* Rows with a group, and the rows of a source. */
extern const struct kvd_key KVD_KEYS[];
extern const size_t KVD_KEY_COUNT;
extern const struct kvd_key KVD_SOURCE_KEYS[];
extern const size_t KVD_SOURCE_KEY_COUNT;

/* The row, or NULL. */
const struct kvd_key *kvd_key_find(const char *group, const char *name);
/* The name most like a misspelt one, or NULL; `group` as above. */
const char *kvd_key_hint(const char *group, const char *name);

/* Sets the field of a row in `object` (a kvd_config, or a source) from text.  `path` names it in
 * errors. */
KVG_MUST_CHECK kvg_err kvd_key_set(const struct kvd_key *key, void *object,
    const char *path, struct kvg_str text, struct kvg_error *error);

/* "10GiB" and "250ms", as numbers.  False if it is neither. */
bool kvd_parse_bytes(struct kvg_str text, uint64_t *out);
bool kvd_parse_duration_ms(struct kvg_str text, uint64_t *out);

/* Blanks comments ("//", "#", C style) and commas before a closing bracket, in place, so that
 * lines and columns stay. */
void kvd_blank_comments(char *text, size_t bytes);

#endif
