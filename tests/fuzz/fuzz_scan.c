/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* The token scanner against a JSON library: what it takes must be what the library reads. */
#include "daemon/scan.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void compare(const struct kvd_scan *scan, const json_t *root)
{
    const json_t *tokens = json_object_get(root, "tokens");

    if (tokens == NULL)
        tokens = json_object_get(root, "token_ids");
    if (!scan->has_tokens || !json_is_array(tokens))
        return;
    if (json_array_size(tokens) != scan->token_count)
        abort();
    for (size_t i = 0; i < scan->token_count; i++) {
        if (json_integer_value(json_array_get(tokens, i)) != (json_int_t)scan->tokens[i])
            abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct kvd_scan scan;
    json_t *root = json_loadb((const char *)data, bytes, JSON_REJECT_DUPLICATES, NULL);
    kvg_err err;

    kvd_scan_init(&scan, kvg_alloc_default());
    err = kvd_scan_json(&scan, (struct kvg_str){(const char *)data, bytes}, NULL);
    if (err == KVG_OK && root != NULL) {
        json_t *rest = json_loadb(scan.rest.data, scan.rest.bytes, 0, NULL);

        if (rest == NULL || json_object_size(rest) != json_object_size(root))
            abort();
        json_decref(rest);
        compare(&scan, root);
    }
    kvd_scan_reset(&scan, 64);
    err = kvd_scan_binary(&scan, (struct kvg_str){(const char *)data, bytes}, NULL);
    if (err == KVG_OK && scan.token_count != bytes / 4)
        abort();
    kvd_scan_fini(&scan);
    json_decref(root);
    return 0;
}
