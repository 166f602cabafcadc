/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* store_backend.h -- how to add a backend to the store (store.h).
 *
 * A backend is a table of functions.  It sees valid calls only: kvg_store_put() and its sisters
 * check every key, size, count and range before they call, and keep the statistics that can be
 * kept outside (KVG_STORE_COUNTED below).  What store.h promises of threads, visibility, durability
 * and results is the backend's to keep; tests/store/conformance.h is the suite that shows whether
 * it does.
 *
 *     static const struct kvg_store_backend BACKEND = {
 *         .struct_bytes = sizeof(BACKEND), .version = KVG_STORE_BACKEND_VERSION,
 *         .scheme = "cloud", .open = cloud_open, .close = cloud_close, ...};
 *     static const struct kvg_store_backend *const BACKENDS[] = {&BACKEND};
 *     static const struct kvg_store_registry REGISTRY = {sizeof(REGISTRY), BACKENDS, 1,
 *         kvg_store_builtin()};
 *
 * Functions may be called from any thread, several at a time.
 */
#ifndef KVGRAFT_STORE_BACKEND_H
#define KVGRAFT_STORE_BACKEND_H

#include <kvgraft/store.h>

KVG_BEGIN_DECLS

#define KVG_STORE_BACKEND_VERSION 1u
#define KVG_STORE_PARAMS_MAX 64u

struct kvg_store_param {
    struct kvg_str name;
    struct kvg_str value;
};

/* A URL taken apart and percent-decoded:
 *
 *     WRAPPER+SCHEME:[//[USER[:PASSWORD]@]AUTHORITY][PATH][?NAME=VALUE&...]
 *
 * Strings point into the parser's memory, which lives as long as the store; each is followed by a
 * zero.  What is missing is {NULL, 0}. */
struct kvg_store_url {
    size_t struct_bytes;
    struct kvg_str scheme; /* "file"; of a wrapper "fault". */
    struct kvg_str
        inner; /* Of a wrapper: the URL that follows its "+", whole, undecoded. */
    struct kvg_str user;
    struct kvg_str password;
    struct kvg_str authority; /* "host:port", "a:1,b:2"; undecoded. */
    struct kvg_str path;      /* With its slash, if it has one. */
    const struct kvg_store_param *params;
    size_t param_count;
    struct kvg_str masked; /* The whole URL as it may be shown. */
};

/* The table.  Functions marked * may be NULL. */
struct kvg_store_backend {
    size_t struct_bytes;
    uint32_t version; /* KVG_STORE_BACKEND_VERSION */
    uint32_t flags;   /* An or of kvg_store_flag: what every store of it promises. */
    const char *scheme;
    const char *summary; /* One line for people: "DIR: segments in a directory". */
    /* Names of the parameters it knows, ended by NULL; others are refused.  A name that ends in '.'
     * allows every name that begins so. */
    const char *const *parameters;
    bool is_wrapper; /* Its scheme stands before a "+"; it opens url->inner itself. */

    /* `options` has alloc, locks and registry filled in, and lives for the call, but for alloc,
     * log, registry and the contexts, which outlive the store.  *flags_out comes set to
     * `flags`, to be changed by a store that promises more or less. */
    kvg_err (*open)(const struct kvg_store_url *url,
        const struct kvg_store_options *options, void **out, uint32_t *flags_out,
        struct kvg_error *error);
    void (*close)(void *self); /* Flushes. */

    /* present is never NULL; it comes zeroed.  With stop_at_gap what follows the first absent key
     * need not be looked at. */
    kvg_err (*exists)(void *self, const struct kvg_str *keys, size_t key_count,
        bool stop_at_gap, uint8_t *present, struct kvg_error *error);
    /* Results come as KVG_OK, and must be set where they are not.  The value returned counts only
     * if it is an error and all results are still KVG_OK: then it becomes each one's. */
    kvg_err (*put)(void *self, struct kvg_store_group *groups, size_t group_count,
        struct kvg_error *error);
    kvg_err (*get)(void *self, struct kvg_store_get *gets, size_t get_count,
        struct kvg_error *error);
    /* results is never NULL; it comes set to KVG_OK. */
    kvg_err (*remove)(void *self, const struct kvg_str *keys, size_t key_count,
        kvg_err *results, struct kvg_error *error);
    kvg_err (*clear)(void *self, struct kvg_error *error); /* * */
    kvg_err (*list)(void *self, struct kvg_store_cursor *cursor, size_t item_max,
        bool (*visit)(void *context, const struct kvg_store_item *item), void *context,
        struct kvg_error *error);                          /* * */
    kvg_err (*flush)(void *self, struct kvg_error *error); /* * */
    kvg_err (*poll)(void *self, struct kvg_error *error);  /* * */
    /* Comes with KVG_STORE_COUNTED filled in; adds the rest, and may correct. */
    void (*stats)(void *self, struct kvg_store_stats *out); /* * */
    kvg_err (*check)(void *self, bool repair,
        void (*say)(void *context, const char *line), void *context,
        struct kvg_store_report *out, struct kvg_error *error); /* * */
};

/* The statistics that are counted outside the backend. */
#define KVG_STORE_COUNTED(X) \
    X(exists_keys)           \
    X(exists_hits)           \
    X(put_groups)            \
    X(put_failed)            \
    X(get_keys)              \
    X(get_hits)              \
    X(get_bytes)             \
    X(get_failed)            \
    X(removed)               \
    X(checksum_failures)     \
    X(refused)

/* Backends to choose from: these, then those of `next`. */
struct kvg_store_registry {
    size_t struct_bytes;
    const struct kvg_store_backend *const *backends;
    size_t backend_count;
    const struct kvg_store_registry *next; /* Or NULL. */
};

/* The backends of the library. */
KVG_API const struct kvg_store_registry *kvg_store_builtin(void);

/* The backend of a scheme, or NULL. */
KVG_API const struct kvg_store_backend *kvg_store_find_backend(
    const struct kvg_store_registry *registry, struct kvg_str scheme);

/* kvg_store_open() for whoever brings everything: `options` must have alloc and registry, and locks
 * if there is more than one thread.  What kvg_store_open() does after filling these in; wrappers
 * open what is inside them with it. */
KVG_API KVG_MUST_CHECK kvg_err kvg_store_open_with(struct kvg_str url,
    const struct kvg_store_options *options, struct kvg_store **out,
    struct kvg_error *error);

/* The value of a parameter; {NULL, 0} if it is not there.  The last one of a name counts. */
KVG_API struct kvg_str kvg_store_param(const struct kvg_store_url *url, const char *name);

/* As a number, as bytes ("64KiB", "10MB", "1GiB"), as milliseconds ("250ms", "5s", "2min"), or
 * as an index into words separated by '|'.  *out comes with the default, and stays if the parameter
 * is absent.  KVG_EINVAL names the parameter and what is allowed. */
KVG_API KVG_MUST_CHECK kvg_err kvg_store_param_u64(const struct kvg_store_url *url,
    const char *name, uint64_t low, uint64_t high, uint64_t *out,
    struct kvg_error *error);
KVG_API KVG_MUST_CHECK kvg_err kvg_store_param_bytes(const struct kvg_store_url *url,
    const char *name, uint64_t low, uint64_t high, uint64_t *out,
    struct kvg_error *error);
KVG_API KVG_MUST_CHECK kvg_err kvg_store_param_ms(const struct kvg_store_url *url,
    const char *name, uint64_t low, uint64_t high, uint64_t *out,
    struct kvg_error *error);
KVG_API KVG_MUST_CHECK kvg_err kvg_store_param_choice(const struct kvg_store_url *url,
    const char *name, const char *words, uint32_t *out, struct kvg_error *error);

/* Takes a URL apart, as kvg_store_open() does; release it with kvg_store_url_free(). */
KVG_API KVG_MUST_CHECK kvg_err kvg_store_url_parse(const struct kvg_alloc *alloc,
    struct kvg_str text, struct kvg_store_url **out, struct kvg_error *error);
KVG_API void kvg_store_url_free(const struct kvg_alloc *alloc, struct kvg_store_url *url);

/* Writes the URL with its secrets as "***", whatever is wrong with it otherwise, cut to fit; for
 * messages and log lines.  Returns `out`. */
KVG_API const char *kvg_store_url_mask(struct kvg_str text, char *out, size_t out_bytes);

KVG_END_DECLS

#endif
