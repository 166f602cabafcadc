/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* Bytes to operations: the first byte chooses the set-up, the rest is a program that runs on the
 * tree and on its model (tree_model.h). */
#include "tree_model.h"

#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0 || size > 1 + 400 * OP_BYTES)
        return 0;
    struct model_setup setup = model_setup_at(data[0] % MODEL_SETUPS);
    const char *why = model_run(&setup, data + 1, size - 1, false);
    if (why != NULL) {
        fprintf(stderr, "%s\n", why);
        abort();
    }
    return 0;
}
