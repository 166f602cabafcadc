/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* mooncake_library.c -- finds Mooncake's C library, and translates its codes.
 *
 * It is loaded when a `mooncake:` store is opened, so that kvgraft needs none of the dozen
 * libraries that it needs.  All nineteen functions must be there: a library that lacks one is of
 * another generation, and is refused by the name of the first one missing. */
#include "backend/mooncake_library.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fmt.h"

#define PREFIX "mooncake_store_"
#define USUAL_NAME "libmooncake_store.so"

static bool find(struct kvi_mooncake_library *library, const char *name, void *slot)
{
    void *symbol = dlsym(library->object, name);

    memcpy(slot, &symbol, sizeof(symbol)); /* ISO C has no cast to a function. */
    return symbol != NULL;
}

kvg_err kvi_mooncake_load(
    const char *path, struct kvi_mooncake_library *out, struct kvg_error *error)
{
    const char *missing = NULL;
    const char *name = path;
    char message[192];

    memset(out, 0, sizeof(*out));
    if (name == NULL)
        name = getenv("MOONCAKE_STORE_LIBRARY");
    if (name == NULL || name[0] == '\0')
        name = USUAL_NAME;
    out->object = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (out->object == NULL) {
        snprintf(message, sizeof(message),
            "cannot load Mooncake's C library (%.80s): set MOONCAKE_STORE_LIBRARY or "
            "the "
            "parameter library",
            dlerror());
        return kvi_fail(error, KVG_EUNSUPPORTED, "store.library", message);
    }
#define FIND(result, function, parameters)                               \
    if (!find(out, PREFIX #function, &out->function) && missing == NULL) \
        missing = PREFIX #function;
    KVI_MOONCAKE_FUNCTIONS(FIND)
#undef FIND
    if (missing == NULL)
        return KVG_OK;
    snprintf(message, sizeof(message),
        "%.80s has no function %s: another generation of it", name, missing);
    kvi_mooncake_unload(out);
    return kvi_fail(error, KVG_EUNSUPPORTED, "store.library", message);
}

void kvi_mooncake_unload(struct kvi_mooncake_library *library)
{
    if (library->object != NULL)
        dlclose(library->object);
    memset(library, 0, sizeof(*library));
}

kvg_err kvi_mooncake_error(int64_t code)
{
    if (code >= 0)
        return KVG_OK;
    switch (code) {
    case KVI_MOONCAKE_NOT_FOUND:
    case KVI_MOONCAKE_NOT_READY: /* Nothing of it can be read: as good as absent. */
        return KVG_ENOENT;
    case KVI_MOONCAKE_NO_SPACE:
    case KVI_MOONCAKE_QUOTA:
        return KVG_ENOSPACE;
    case KVI_MOONCAKE_BAD_CHECKSUM:
        return KVG_ECHECKSUM;
    case KVI_MOONCAKE_RPC_TIMEOUT:
        return KVG_ETIMEOUT;
    case KVI_MOONCAKE_LEASED:
        return KVG_EBUSY;
    default:
        return KVG_EIO;
    }
}

const char *kvi_mooncake_words(int64_t code)
{
    switch (code) {
    case KVI_MOONCAKE_NO_SPACE:
        return "no space: everything there is leased";
    case KVI_MOONCAKE_BAD_PARAMETER:
        return "a parameter was refused";
    case KVI_MOONCAKE_NOT_READY:
        return "its writer has not finished";
    case KVI_MOONCAKE_NOT_FOUND:
        return "there is no such key";
    case KVI_MOONCAKE_EXISTS:
        return "an unfinished put of it is in the way";
    case KVI_MOONCAKE_LEASED:
        return "a reader holds a lease";
    case KVI_MOONCAKE_LEASE_EXPIRED:
        return "the lease ended during the read";
    case KVI_MOONCAKE_REPLICA_GONE:
        return "the replica is gone";
    case KVI_MOONCAKE_TRANSFER_FAILED:
        return "the owner of its memory does not answer";
    case KVI_MOONCAKE_BAD_CHECKSUM:
        return "a checksum does not match";
    case KVI_MOONCAKE_RPC_FAILED:
        return "the master cannot be reached";
    case KVI_MOONCAKE_RPC_TIMEOUT:
        return "the master does not answer";
    case KVI_MOONCAKE_QUOTA:
        return "the tenant's quota is used up";
    default:
        return "failed";
    }
}
