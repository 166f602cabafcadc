/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* config.h -- what the daemon is told: the values, and where they come from.
 *
 * A configuration is a plain struct, filled by kvd_config_init() with defaults and then, each
 * stronger than the one before, by a file (JSON with comments), by the environment (KVGRAFT_...)
 * and by options of the command line.  Whoever embeds the daemon fills the struct in code.
 *
 * One table (config_table.c) holds every key: name, type, default, limits, help.  Reading, `config
 * check`, `config init` and the list in docs/operations.md come from it.
 *
 * Threads: a struct belongs to its caller.  The daemon copies it.
 */
#ifndef KVD_CONFIG_H
#define KVD_CONFIG_H

#include <kvgraft/base.h>

#define KVD_SOURCES_MAX 16u
#define KVD_NAME_BYTES 64u
#define KVD_URL_BYTES 256u
#define KVD_PATH_BYTES 1024u
#define KVD_TOKEN_BYTES 256u
#define KVD_WORKERS_JSON_BYTES_MAX (64u << 20)

/* Which answers a source gives (docs/profiles.md). */
enum kvd_profile {
    KVD_PROFILE_DEFAULT,
    KVD_PROFILE_DYNAMO_1_5
};

enum kvd_log_format {
    KVD_LOG_LOGFMT,
    KVD_LOG_JSON
};

/* One stream of events about one store. */
struct kvd_source_config {
    char name[KVD_NAME_BYTES];
    char endpoint
        [KVD_URL_BYTES]; /* tcp://host:port, ipc://path; empty: what workers say. */
    char admin_url
        [KVD_URL_BYTES];         /* http://host:port of the store's admin; empty: none. */
    char replay[KVD_URL_BYTES];  /* tcp://host:port of kept messages; empty: none. */
    char tenant[KVD_NAME_BYTES]; /* Tenant of a query that names none. */
    char workers_file[KVD_PATH_BYTES]; /* JSON, read again when it changes; or empty. */
    char *workers_json; /* Workers given in the configuration; own, or NULL. */
    enum kvd_profile profile;
    uint64_t memory_bytes_max;
    uint64_t queue_bytes_max;   /* Messages received and not yet applied. */
    uint64_t message_bytes_max; /* Larger: the publisher is cut off. */
    uint64_t receive_hwm;       /* ZeroMQ's own queue, in messages. */
    uint64_t silence_ms;
    uint64_t status_interval_ms;
    uint64_t count_interval_ms;
    uint64_t listing_interval_ms;
    uint64_t listing_timeout_ms;
    uint64_t retry_min_ms;
    uint64_t retry_max_ms;
    uint64_t drift_max_ppm; /* Keys in a million that may differ before a listing. */
    uint64_t part_bytes;    /* Of one object of a page in the store; 0: not known. */
};

struct kvd_config {
    char http_listen[KVD_URL_BYTES];       /* host:port; port 0: any; empty: none. */
    char http_unix_socket[KVD_PATH_BYTES]; /* Or empty. */
    char http_token_file[KVD_PATH_BYTES];
    char http_token
        [KVD_TOKEN_BYTES]; /* From the file or KVGRAFT_HTTP_TOKEN; empty: open. */
    uint64_t http_threads;
    uint64_t http_connections_max;
    uint64_t http_body_bytes_max;
    uint64_t http_bodies_bytes_max; /* Of all requests under way. */
    uint64_t http_timeout_ms;
    uint64_t http_pages_max; /* Pages a lookup may ask for. */
    uint64_t memo_bytes_max; /* Page-key memo of one HTTP thread. */

    char log_file[KVD_PATH_BYTES]; /* Empty: standard error. */
    enum kvd_log_format log_format;
    enum kvg_level log_level;

    char dump_path[KVD_PATH_BYTES]; /* A directory; empty: no dumps. */
    uint64_t dump_interval_ms;      /* 0: only at the end. */

    struct kvd_source_config sources[KVD_SOURCES_MAX];
    uint32_t source_count;
};

/* Defaults, and no source. */
void kvd_config_init(struct kvd_config *config);
/* Frees what it owns.  A config may be initialised again afterwards. */
void kvd_config_fini(struct kvd_config *config);
/* A deep copy; `to` is initialised by it. */
KVG_MUST_CHECK kvg_err kvd_config_copy(
    struct kvd_config *to, const struct kvd_config *from);

/* Adds a source with defaults; NULL at KVD_SOURCES_MAX or if a string is too long. */
struct kvd_source_config *kvd_config_add_source(struct kvd_config *config,
    const char *name, const char *endpoint, const char *admin_url);
/* Gives the workers of a source as JSON text (docs/http.md, "workers"). */
KVG_MUST_CHECK kvg_err kvd_config_set_workers(
    struct kvd_source_config *source, const char *json);

/* Reads text on top of what is there.  On failure *config is as before and *error names the
 * field and the limit; `field` carries the line of a syntax error. */
KVG_MUST_CHECK kvg_err kvd_config_parse(
    struct kvd_config *config, struct kvg_str text, struct kvg_error *error);
KVG_MUST_CHECK kvg_err kvd_config_read_file(
    struct kvd_config *config, const char *path, struct kvg_error *error);
/* Applies KVGRAFT_... variables out of `environment` ("NAME=value" strings, NULL at the end). */
KVG_MUST_CHECK kvg_err kvd_config_read_environment(
    struct kvd_config *config, char *const *environment, struct kvg_error *error);
/* Sets one key by its dotted name, e.g. "http.listen" or "sources.0.endpoint". */
KVG_MUST_CHECK kvg_err kvd_config_set(struct kvd_config *config, const char *key,
    const char *value, struct kvg_error *error);
/* Checks what no single key can: names that repeat, a token file that cannot be read, ...; reads
 * the token. */
KVG_MUST_CHECK kvg_err kvd_config_finish(
    struct kvd_config *config, struct kvg_error *error);

#endif
