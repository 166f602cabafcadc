/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* mooncake_library.h -- Mooncake's C library, loaded at run time. */
#ifndef KVI_BACKEND_MOONCAKE_LIBRARY_H
#define KVI_BACKEND_MOONCAKE_LIBRARY_H

#include <kvgraft/base.h>

/* Its functions without their prefix: result, name, parameters. */
#define KVI_MOONCAKE_FUNCTIONS(X)                                                      \
    X(void *, create, (void))                                                          \
    X(void, destroy, (void *handle))                                                   \
    X(int, setup,                                                                      \
        (void *handle, const char *local_hostname, const char *metadata_server,        \
            uint64_t segment_bytes, uint64_t local_buffer_bytes, const char *protocol, \
            const char *device_name, const char *master_address))                      \
    X(int, init_all,                                                                   \
        (void *handle, const char *protocol, const char *device_name,                  \
            uint64_t segment_bytes))                                                   \
    X(int, health_check, (void *handle))                                               \
    X(int, put,                                                                        \
        (void *handle, const char *key, const void *value, size_t bytes,               \
            const struct kvi_mooncake_config *config))                                 \
    X(int, put_from,                                                                   \
        (void *handle, const char *key, void *buffer, size_t bytes,                    \
            const struct kvi_mooncake_config *config))                                 \
    X(int, batch_put_from,                                                             \
        (void *handle, const char **keys, void **buffers, const size_t *sizes,         \
            size_t count, const struct kvi_mooncake_config *config, int *results))     \
    X(int64_t, get_into, (void *handle, const char *key, void *buffer, size_t bytes))  \
    X(int, batch_get_into,                                                             \
        (void *handle, const char **keys, void **buffers, const size_t *sizes,         \
            size_t count, int64_t *results))                                           \
    X(int, is_exist, (void *handle, const char *key))                                  \
    X(int, batch_is_exist,                                                             \
        (void *handle, const char **keys, size_t count, int *results))                 \
    X(int64_t, get_size, (void *handle, const char *key))                              \
    X(int, get_hostname, (void *handle, char *out, size_t room))                       \
    X(int, remove, (void *handle, const char *key, int force))                         \
    X(int64_t, remove_by_regex, (void *handle, const char *pattern, int force))        \
    X(int64_t, remove_all, (void *handle, int force))                                  \
    X(int, register_buffer, (void *handle, void *start, size_t bytes))                 \
    X(int, unregister_buffer, (void *handle, void *start))

/* How a put is to be replicated.  NULL stands for the library's defaults; one full of zeros would
 * ask for no replica at all. */
struct kvi_mooncake_config {
    size_t replica_count;
    int with_soft_pin;
    int with_hard_pin;
    const char **preferred_segments;
    size_t preferred_segment_count;
};

struct kvi_mooncake_library {
    void *object; /* As dlopen() gave it. */
#define KVI_MOONCAKE_MEMBER(result, name, parameters) result(*name) parameters;
    KVI_MOONCAKE_FUNCTIONS(KVI_MOONCAKE_MEMBER)
#undef KVI_MOONCAKE_MEMBER
};

/* Codes the library answers with. */
enum kvi_mooncake_code {
    KVI_MOONCAKE_OK = 0,
    KVI_MOONCAKE_NO_SPACE = -200,
    KVI_MOONCAKE_BAD_PARAMETER = -600,
    KVI_MOONCAKE_NOT_READY = -703, /* A put of it began and did not end. */
    KVI_MOONCAKE_NOT_FOUND = -704,
    KVI_MOONCAKE_EXISTS = -705, /* Of a put: one that did not end is in the way. */
    KVI_MOONCAKE_LEASED = -706,
    KVI_MOONCAKE_LEASE_EXPIRED = -707,
    KVI_MOONCAKE_REPLICA_GONE = -712,
    KVI_MOONCAKE_TRANSFER_FAILED = -800,
    KVI_MOONCAKE_BAD_CHECKSUM = -801,
    KVI_MOONCAKE_RPC_FAILED = -900,
    KVI_MOONCAKE_RPC_TIMEOUT = -901,
    KVI_MOONCAKE_QUOTA = -1700
};

/* Loads the library: `path`, else $MOONCAKE_STORE_LIBRARY, else the usual name.  KVG_EUNSUPPORTED
 * says what was tried and what to do. */
KVG_MUST_CHECK kvg_err kvi_mooncake_load(
    const char *path, struct kvi_mooncake_library *out, struct kvg_error *error);
void kvi_mooncake_unload(struct kvi_mooncake_library *library);

/* What a code means to the store's callers, and in words. */
kvg_err kvi_mooncake_error(int64_t code);
const char *kvi_mooncake_words(int64_t code);

#endif
