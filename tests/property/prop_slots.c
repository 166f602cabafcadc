/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* prop_slots.c -- random programs on the slots machine (slots_machine.h), compared with the
 * model after every step.  A program that fails is shrunk and printed as C bytes.
 *
 *     prop_slots [SEED [PROGRAMS]]
 *
 * Then the negative control: each planted bug must be noticed, whenever it is planted. */
#include "slots_machine.h"

#include "base/rng.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEPS_MAX 80
#define PROGRAM_MAX (MACHINE_HEAD_BYTES + STEPS_MAX * MACHINE_STEP_BYTES)

struct program {
    uint8_t bytes[PROGRAM_MAX];
    size_t steps;
};

static size_t size_of(const struct program *program)
{
    return MACHINE_HEAD_BYTES + program->steps * MACHINE_STEP_BYTES;
}

static void make_program(struct program *program, struct kvi_rng *rng)
{
    size_t i;

    program->steps = 1 + kvi_rng_below(rng, STEPS_MAX);
    for (i = 0; i < size_of(program); i++)
        program->bytes[i] = (uint8_t)kvi_rng_next(rng);
}

/* Runs with the bug planted as soon as it finds a place from step `bug_step` on. */
static const char *run(
    const struct program *program, enum machine_bug bug, size_t bug_step, bool *planted)
{
    return machine_run(program->bytes, size_of(program), bug, bug_step, planted);
}

/* Leaves steps out, many at a time first, as long as the program still fails. */
static void shrink(struct program *program, enum machine_bug bug)
{
    size_t chunk = program->steps;
    bool planted;

    while (chunk > 0) {
        size_t at = 0;
        bool shorter = false;

        while (at + chunk <= program->steps) {
            struct program less = *program;
            uint8_t *from = less.bytes + MACHINE_HEAD_BYTES + at * MACHINE_STEP_BYTES;

            less.steps -= chunk;
            memmove(from, from + chunk * MACHINE_STEP_BYTES,
                (less.steps - at) * MACHINE_STEP_BYTES);
            if (run(&less, bug, 0, &planted) != NULL) {
                *program = less;
                shorter = true;
            } else {
                at++;
            }
        }
        if (!shorter || chunk > program->steps)
            chunk /= 2;
    }
}

static void print_program(const struct program *program)
{
    size_t i;

    for (i = 0; i < size_of(program); i++)
        printf("%s0x%02x,", i % 8 == 0 ? "\n    " : " ", program->bytes[i]);
    printf("\n");
}

static int check_programs(uint64_t seed, uint64_t programs)
{
    struct kvi_rng rng = {seed};
    struct program program;
    uint64_t i;
    bool planted;

    for (i = 0; i < programs; i++) {
        make_program(&program, &rng);
        if (run(&program, BUG_NONE, 0, &planted) == NULL)
            continue;
        shrink(&program, BUG_NONE);
        printf(
            "seed %llu, program %llu: %s; shrunk to %zu steps:", (unsigned long long)seed,
            (unsigned long long)i, run(&program, BUG_NONE, 0, &planted), program.steps);
        print_program(&program);
        return 1;
    }
    printf("%llu programs agree with the model\n", (unsigned long long)programs);
    return 0;
}

/* Each bug in programs until it was noticed `TIMES` times; none may pass unnoticed. */
#define TIMES 5
static int check_bug(uint64_t seed, enum machine_bug bug)
{
    struct kvi_rng rng = {seed};
    struct program program;
    unsigned noticed = 0;
    unsigned i;

    for (i = 0; i < 400 && noticed < TIMES; i++) {
        bool planted;
        const char *wrong;

        make_program(&program, &rng);
        wrong = run(&program, bug, program.steps / 3, &planted);
        if (planted && wrong == NULL) {
            printf("seed %llu, program %u: bug %d was not noticed\n",
                (unsigned long long)seed, i, (int)bug);
            return 1;
        }
        noticed += planted;
    }
    if (noticed < TIMES) {
        printf("bug %d found a place only %u times\n", (int)bug, noticed);
        return 1;
    }
    return 0;
}

/* The shrinker is a checker too: it must find the one step that a double owner needs. */
static int check_shrinking(uint64_t seed)
{
    struct kvi_rng rng = {seed};
    struct program program;
    bool planted;

    do
        make_program(&program, &rng);
    while (program.steps < STEPS_MAX / 2 ||
           run(&program, BUG_OWNED_PAGE_FREE, 0, &planted) == NULL);
    shrink(&program, BUG_OWNED_PAGE_FREE);
    if (program.steps > 2) {
        printf("a program was shrunk to no less than %zu steps\n", program.steps);
        return 1;
    }
    return 0;
}

int main(int argc, char **argv)
{
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
    uint64_t programs = argc > 2 ? strtoull(argv[2], NULL, 0) : 400;
    int failed = check_programs(seed, programs);
    int bug;

    for (bug = BUG_NONE + 1; bug < MACHINE_BUGS; bug++)
        failed |= check_bug(seed, (enum machine_bug)bug);
    failed |= check_shrinking(seed);
    return failed;
}
