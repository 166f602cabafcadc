/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* Bytes to conversations: what a random number decides in prop_tree_session, two bytes decide here;
 * the first byte chooses the set-up. */
#include "session_model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct world world;

    if (size == 0 || size > 4096)
        return 0;
    memset(&world, 0, sizeof(world));
    world.data = data + 1;
    world.data_end = data + size;
    session_setup(&world, data[0]);
    session_run(&world, UINT32_MAX);
    return 0;
}
