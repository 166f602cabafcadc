/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* redis_library.h -- hiredis, loaded at run time, so that the library itself needs only libc. */
#ifndef KVI_BACKEND_REDIS_LIBRARY_H
#define KVI_BACKEND_REDIS_LIBRARY_H

#include <kvgraft/base.h>

#include <hiredis/hiredis.h>

#define KVI_HIREDIS_FUNCTIONS(X)                                                         \
    X(redisContext *, redisConnectWithTimeout,                                           \
        (const char *host, int port, const struct timeval limit))                        \
    X(redisContext *, redisConnectUnixWithTimeout,                                       \
        (const char *path, const struct timeval limit))                                  \
    X(int, redisSetTimeout, (redisContext * connection, const struct timeval limit))     \
    X(int, redisEnableKeepAlive, (redisContext * connection))                            \
    X(void *, redisCommandArgv,                                                          \
        (redisContext * connection, int count, const char **words, const size_t *bytes)) \
    X(int, redisGetReply, (redisContext * connection, void **reply))                     \
    X(void, freeReplyObject, (void *reply))                                              \
    X(void, redisFree, (redisContext * connection))

struct kvi_hiredis {
    void *object; /* As dlopen() gave it. */
#define KVI_HIREDIS_MEMBER(result, name, parameters) result(*name) parameters;
    KVI_HIREDIS_FUNCTIONS(KVI_HIREDIS_MEMBER)
#undef KVI_HIREDIS_MEMBER
};

/* Loads the version whose header this was built with: its structs are read here, and differ from
 * version to version.  KVG_EUNSUPPORTED says which one that is. */
KVG_MUST_CHECK kvg_err kvi_hiredis_load(struct kvi_hiredis *out, struct kvg_error *error);
void kvi_hiredis_unload(struct kvi_hiredis *library);

#endif
