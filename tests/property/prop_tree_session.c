/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* Random conversations over a random tree, against a plain model of what they cover
 * (support/session_model.h), which is asked after each step.
 *
 *     prop_tree_session [steps]        KVG_SEED: where to begin
 */
#include "session_model.h"

static uint32_t steps_per_run = 250;

TEST(conversations_cover_what_a_plain_model_says_and_it_goes_last)
{
    static struct world world;
    uint64_t seed = kvt_seed(1);

    for (uint32_t i = 0; i < 56; i++) {
        memset(&world, 0, sizeof(world));
        world.seed = seed + i;
        world.rng.state = world.seed;
        session_setup(&world, world.seed);
        session_run(&world, steps_per_run);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        RUN(conversations_cover_what_a_plain_model_says_and_it_goes_last)};

    if (argc > 1)
        steps_per_run = (uint32_t)strtoul(argv[1], NULL, 10);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
