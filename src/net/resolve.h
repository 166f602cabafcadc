/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* resolve.h -- host names to addresses without making the loop wait.
 *
 * Numeric addresses are answered at once; names go to one helper thread, which may sit in
 * getaddrinfo() for as long as it likes: it is never joined, only told to go.  So its memory may be
 * released a while after kvn_resolver_free(): `alloc` must live as long as the process.
 *
 * Threads: all functions on the loop's thread; callbacks come there too.
 */
#ifndef KVN_RESOLVE_H
#define KVN_RESOLVE_H

#include "net/loop.h"

#include <sys/socket.h>

#define KVN_ADDRESSES_MAX 8u
#define KVN_HOST_BYTES 256u

struct kvn_address {
    struct sockaddr_storage address;
    socklen_t bytes;
};

struct kvn_resolver;
struct kvn_resolve_job;

KVG_MUST_CHECK kvg_err kvn_resolver_new(
    const struct kvg_alloc *alloc, struct kvn_loop *loop, struct kvn_resolver **out);
/* Cancels what is under way.  NULL is allowed. */
void kvn_resolver_free(struct kvn_resolver *resolver);

/* Parses a numeric address; false if `host` is a name. */
bool kvn_address_numeric(const char *host, uint16_t port, struct kvn_address *out);

/* Asks for a name.  `on_done` gets up to KVN_ADDRESSES_MAX addresses; 0 and the reason if there
 * are none. */
KVG_MUST_CHECK kvg_err kvn_resolve(struct kvn_resolver *resolver, const char *host,
    uint16_t port,
    void (*on_done)(void *context, const struct kvn_address *addresses, size_t count,
        const char *reason),
    void *context, struct kvn_resolve_job **out);
/* No callback comes any more. */
void kvn_resolve_cancel(struct kvn_resolve_job *job);

#endif
