/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* fuzz_slots.c -- bytes become operations on slots, each compared with the model. */
#include "../property/slots_machine.h"

#include <stdio.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    bool planted;
    const char *wrong = machine_run(data, bytes, BUG_NONE, 0, &planted);

    if (wrong != NULL) {
        fprintf(stderr, "%s\n", wrong);
        __builtin_trap();
    }
    return 0;
}
