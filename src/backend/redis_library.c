/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* redis_library.c -- finds hiredis. */
#include "backend/redis_library.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "base/fmt.h"

#define TEXT_OF(name) #name
#define AS_TEXT(name) TEXT_OF(name)
#define FILE_NAME "libhiredis.so." AS_TEXT(HIREDIS_SONAME)

static bool find(struct kvi_hiredis *library, const char *name, void *slot)
{
    void *symbol = dlsym(library->object, name);

    memcpy(slot, &symbol, sizeof(symbol)); /* ISO C has no cast to a function. */
    return symbol != NULL;
}

kvg_err kvi_hiredis_load(struct kvi_hiredis *out, struct kvg_error *error)
{
    const char *missing = NULL;
    char message[192];

    memset(out, 0, sizeof(*out));
    out->object = dlopen(FILE_NAME, RTLD_NOW | RTLD_LOCAL);
    if (out->object == NULL) {
        snprintf(
            message, sizeof(message), "redis: needs %s (%.110s)", FILE_NAME, dlerror());
        return kvi_fail(error, KVG_EUNSUPPORTED, "store.redis", message);
    }
#define FIND(result, function, parameters)                        \
    if (!find(out, #function, &out->function) && missing == NULL) \
        missing = #function;
    KVI_HIREDIS_FUNCTIONS(FIND)
#undef FIND
    if (missing == NULL)
        return KVG_OK;
    snprintf(message, sizeof(message), "%s has no function %s", FILE_NAME, missing);
    kvi_hiredis_unload(out);
    return kvi_fail(error, KVG_EUNSUPPORTED, "store.redis", message);
}

void kvi_hiredis_unload(struct kvi_hiredis *library)
{
    if (library->object != NULL)
        dlclose(library->object);
    memset(library, 0, sizeof(*library));
}
