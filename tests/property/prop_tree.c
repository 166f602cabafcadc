/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* Random programs on the tree and on a plain model of it, for every component set, page size and
 * unit kind.  A failing program is shrunk and printed; run it again with its seed:
 *
 *     prop_tree [seed [programs a set-up [operations a program]]]
 */
#include "test.h"
#include "tree_model.h"

#include "base/rng.h"

static uint64_t first_seed = 1;
static uint64_t programs = 6;
static uint64_t operations = 120;

static void report(const struct model_setup *setup, size_t index, uint64_t seed,
    uint8_t *program, size_t bytes)
{
    bytes = model_shrink(setup, program, bytes);
    const char *why = model_run(setup, program, bytes, true);
    fail_msg("set-up %zu (components %x, page %u, window %u, eagle %d, policy %d), seed"
             " %llu: %s, after %zu operations",
        index, setup->components, setup->page_size, setup->window, setup->eagle,
        (int)setup->policy, (unsigned long long)seed, why == NULL ? "gone" : why,
        bytes / OP_BYTES);
}

TEST(the_tree_does_what_a_list_of_pages_does)
{
    static uint8_t program[65536];
    size_t bytes = (size_t)operations * OP_BYTES;

    assert_true(bytes <= sizeof(program));
    for (size_t index = 0; index < MODEL_SETUPS; index++) {
        struct model_setup setup = model_setup_at(index);
        for (uint64_t seed = first_seed; seed < first_seed + programs; seed++) {
            struct kvi_rng rng = {seed * 1000 + index};
            for (size_t i = 0; i < bytes; i++)
                program[i] = (uint8_t)kvi_rng_next(&rng);
            if (model_run(&setup, program, bytes, false) != NULL)
                report(&setup, index, seed, program, bytes);
        }
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {RUN(the_tree_does_what_a_list_of_pages_does)};

    first_seed = argc > 1 ? strtoull(argv[1], NULL, 10) : kvt_seed(first_seed);
    if (argc > 2)
        programs = strtoull(argv[2], NULL, 10);
    if (argc > 3)
        operations = strtoull(argv[3], NULL, 10);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
