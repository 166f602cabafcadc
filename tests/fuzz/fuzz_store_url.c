/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* fuzz_store_url.c -- URLs of stores: whatever is accepted has its parts inside, each with a zero
 * behind it, and what may be shown fits. */
#include <kvgraft/store_backend.h>

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void demand(bool good)
{
    if (!good)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct kvg_str text = {(const char *)data, bytes};
    struct kvg_store_url *url = NULL;
    struct kvg_error error;
    char shown[256];
    uint64_t number = 7;
    size_t i;

    demand(strlen(kvg_store_url_mask(text, shown, sizeof(shown))) < sizeof(shown));
    if (kvg_store_url_parse(kvg_alloc_default(), text, &url, &error) != KVG_OK) {
        demand(url == NULL && error.message[0] != '\0');
        return 0;
    }
    demand(url->scheme.bytes > 0 && url->scheme.data[url->scheme.bytes] == '\0');
    demand(url->masked.data[url->masked.bytes] == '\0');
    for (i = 0; i < url->param_count; i++) {
        demand(url->params[i].name.data[url->params[i].name.bytes] == '\0');
        demand(url->params[i].value.data[url->params[i].value.bytes] == '\0');
    }
    (void)!kvg_store_param_bytes(url, "bytes", 1, 1000, &number, NULL);
    demand(number >= 1 && number <= 1000);
    kvg_store_url_free(kvg_alloc_default(), url);
    return 0;
}
