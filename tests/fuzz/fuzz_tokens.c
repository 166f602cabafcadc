/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* Fuzzes the reader of token ids; the first byte says the form. */
#include "cli/tokens.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct kvc_tokens tokens = {0};
    struct kvg_error error;
    kvg_err err;

    if (bytes == 0)
        return 0;
    err = kvc_tokens_add(&tokens, (struct kvg_str){(const char *)data + 1, bytes - 1},
        (enum kvc_token_format)(data[0] % 4), &error);
    if ((err != KVG_OK && tokens.count != 0) || tokens.count > KVC_TOKENS_MAX)
        abort();
    kvc_tokens_fini(&tokens);
    return 0;
}
