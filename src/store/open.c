/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* open.c -- opening and closing a store: from a URL to a backend.
 *
 *     URL --> parsed (url.c) --> scheme --> registry --> parameters known? --> backend->open()
 *
 * The list of backends comes with the options, so that this file needs none of them. */
#include "store/store.h"

#include "base/alloc.h"
#include "base/fmt.h"

#include <string.h>

const struct kvg_store_backend *kvg_store_find_backend(
    const struct kvg_store_registry *registry, struct kvg_str scheme)
{
    size_t i;

    for (; registry != NULL; registry = registry->next) {
        for (i = 0; i < registry->backend_count; i++) {
            if (kvi_str_equal(kvi_str(registry->backends[i]->scheme), scheme))
                return registry->backends[i];
        }
    }
    return NULL;
}

static kvg_err no_such_scheme(const struct kvg_store_registry *registry,
    struct kvg_str scheme, struct kvg_error *error)
{
    char message[192];
    struct kvi_text text;
    size_t i;

    kvi_text_init(&text, message, sizeof(message));
    kvi_text_str(&text, "there is no store \"");
    kvi_text_bytes(
        &text, (struct kvg_str){scheme.data, scheme.bytes < 32 ? scheme.bytes : 32});
    kvi_text_str(&text, "\"; there are:");
    for (; registry != NULL; registry = registry->next) {
        for (i = 0; i < registry->backend_count; i++) {
            kvi_text_str(&text, " ");
            kvi_text_str(&text, registry->backends[i]->scheme);
            kvi_text_str(&text, registry->backends[i]->is_wrapper ? "+" : ":");
        }
    }
    return kvi_fail(error, KVG_EINVAL, "store.url", message);
}

static bool param_known(const struct kvg_store_backend *backend, struct kvg_str name)
{
    const char *const *known = backend->parameters;

    for (; known != NULL && *known != NULL; known++) {
        struct kvg_str have = kvi_str(*known);

        if (kvi_str_equal(have, name))
            return true;
        if (have.bytes > 0 && have.data[have.bytes - 1] == '.' &&
            name.bytes > have.bytes && memcmp(have.data, name.data, have.bytes) == 0)
            return true;
    }
    return false;
}

static kvg_err check_params(const struct kvg_store_backend *backend,
    const struct kvg_store_url *url, struct kvg_error *error)
{
    const char *const *known = backend->parameters;
    char message[192];
    struct kvi_text text;
    size_t i;

    for (i = 0; i < url->param_count; i++) {
        if (param_known(backend, url->params[i].name))
            continue;
        kvi_text_init(&text, message, sizeof(message));
        kvi_text_str(&text, backend->scheme);
        kvi_text_str(&text, ": has no such parameter; it has:");
        for (; known != NULL && *known != NULL; known++) {
            kvi_text_str(&text, " ");
            kvi_text_str(&text, *known);
        }
        return kvi_fail(error, KVG_EINVAL, url->params[i].name.data, message);
    }
    return KVG_OK;
}

static kvg_err check_options(
    const struct kvg_store_options *options, struct kvg_error *error)
{
    const struct kvg_store_fingerprint *print = &options->fingerprint;

    if (options->struct_bytes != sizeof(*options))
        return kvi_fail_range(error, "store.options.struct_bytes", options->struct_bytes,
            sizeof(*options), sizeof(*options));
    if (options->alloc == NULL || options->registry == NULL)
        return kvi_fail(
            error, KVG_EINVAL, "store.options", "alloc and registry must be given");
    if (print->bytes.bytes > KVG_STORE_FINGERPRINT_MAX)
        return kvi_fail_range(error, "store.fingerprint.bytes", print->bytes.bytes, 0,
            KVG_STORE_FINGERPRINT_MAX);
    if (print->text.bytes > KVG_STORE_FINGERPRINT_TEXT_MAX)
        return kvi_fail_range(error, "store.fingerprint.text", print->text.bytes, 0,
            KVG_STORE_FINGERPRINT_TEXT_MAX);
    return KVG_OK;
}

static kvg_err find_backend(const struct kvg_store_url *url,
    const struct kvg_store_options *options, const struct kvg_store_backend **out,
    struct kvg_error *error)
{
    const struct kvg_store_backend *backend =
        kvg_store_find_backend(options->registry, url->scheme);

    if (backend == NULL || backend->is_wrapper != (url->inner.data != NULL))
        return no_such_scheme(options->registry, url->scheme, error);
    if (backend->struct_bytes != sizeof(*backend) ||
        backend->version != KVG_STORE_BACKEND_VERSION)
        return kvi_fail(error, KVG_EVERSION, backend->scheme,
            "the backend was written for another version of store_backend.h");
    *out = backend;
    return check_params(backend, url, error);
}

kvg_err kvg_store_open_with(struct kvg_str url, const struct kvg_store_options *options,
    struct kvg_store **out, struct kvg_error *error)
{
    struct kvg_store *store;
    kvg_err err = check_options(options, error);

    *out = NULL;
    if (err != KVG_OK)
        return err;
    store = KVI_NEW(options->alloc, struct kvg_store);
    if (store == NULL)
        return kvi_fail(error, KVG_ENOMEM, "store", "out of memory");
    store->alloc = options->alloc;
    store->log = options->log;
    store->read_only = options->read_only;
    err = kvg_store_url_parse(options->alloc, url, &store->url, error);
    if (err == KVG_OK)
        err = find_backend(store->url, options, &store->backend, error);
    if (err == KVG_OK) {
        store->flags = store->backend->flags;
        err =
            store->backend->open(store->url, options, &store->self, &store->flags, error);
    }
    if (err != KVG_OK) {
        kvg_store_url_free(options->alloc, store->url);
        KVI_FREE(options->alloc, store);
        return err;
    }
    *out = store;
    return KVG_OK;
}

static void log_failure(
    const struct kvg_store *store, const char *what, const struct kvg_error *error)
{
    char line[512];
    struct kvi_text text;

    if (store->log == NULL)
        return;
    kvi_text_init(&text, line, sizeof(line));
    kvi_text_bytes(&text, store->url->masked);
    kvi_text_str(&text, ": ");
    kvi_text_str(&text, what);
    kvi_text_str(&text, ": ");
    kvi_text_str(&text, error->message);
    store->log->write(store->log->context, KVG_LOG_ERROR, "store", line);
}

void kvg_store_close(struct kvg_store *store)
{
    const struct kvg_alloc *alloc;
    struct kvg_error error;

    if (store == NULL)
        return;
    if (!store->read_only && kvg_store_flush(store, &error) != KVG_OK)
        log_failure(store, "not everything could be flushed at the end", &error);
    alloc = store->alloc;
    store->backend->close(store->self);
    kvg_store_url_free(alloc, store->url);
    KVI_FREE(alloc, store);
}

uint32_t kvg_store_flags(const struct kvg_store *store)
{
    return store->flags;
}

const char *kvg_store_url_text(const struct kvg_store *store)
{
    return store->url->masked.data;
}
