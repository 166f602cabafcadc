/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* bench.c -- `kvgraft bench`: the benchmarks of bench/ that need nothing but this program.
 *
 * Each is compiled a second time with KVB_IN_COMMAND, which turns its main into an entry; which
 * ones there are, the build says (bench_list.h). */
#include "cli/cli.h"

#include "bench.h"
#include "bench_list.h"

#define KVB_DECLARE(name) void kvb_run_##name(struct kvb_table *table);
KVB_LIST(KVB_DECLARE)
#undef KVB_DECLARE

struct benchmark {
    const char *name;
    void (*run)(struct kvb_table *table);
};

static const struct benchmark BENCHMARKS[] = {
#define KVB_ENTRY(name) {#name, kvb_run_##name},
    KVB_LIST(KVB_ENTRY)
#undef KVB_ENTRY
};

struct bench_options {
    struct kvc_common common;
    bool quick;
    bool strict;
    bool list;
};

static const struct kvc_option OPTIONS[] = {
    {"quick", 0, KVC_FLAG, KVC_FIELD(struct bench_options, quick), NULL, NULL, NULL, 0, 0,
        "shorter, for a look"},
    {"strict", 0, KVC_FLAG, KVC_FIELD(struct bench_options, strict), NULL, NULL, NULL, 0,
        0, "exit with 1 if a target is missed"},
    {"list", 'l', KVC_FLAG, KVC_FIELD(struct bench_options, list), NULL, NULL, NULL, 0, 0,
        "only say which there are"},
};

static const struct kvc_usage USAGE = {"bench", "[NAME...]",
    "Measure this machine: each figure beside its floor, from one run", OPTIONS,
    KVC_COUNT(OPTIONS),
    "The floor is what the work cannot do without; the ratio is what counts.  A busy "
    "machine\n"
    "misses targets; that is not a failure unless --strict.  --json prints one row a "
    "line.\n"};

static const struct benchmark *find(const char *name)
{
    size_t i;

    for (i = 0; i < KVC_COUNT(BENCHMARKS); i++) {
        if (strcmp(BENCHMARKS[i].name, name) == 0)
            return &BENCHMARKS[i];
    }
    return NULL;
}

int kvc_bench_main(int argc, char **argv)
{
    struct bench_options options = {0};
    struct kvb_table table = {.out = stdout};
    int exit_code;
    int first = kvc_options(&USAGE, argc, argv, &options, &exit_code);
    size_t i;
    int j;

    if (first < 0)
        return exit_code;
    for (j = first; j < argc; j++) {
        if (find(argv[j]) == NULL)
            return kvc_misused(
                &USAGE, "there is no benchmark \"%s\"; --list says which", argv[j]);
    }
    table.json = options.common.json;
    table.quick = options.quick;
    for (i = 0; i < KVC_COUNT(BENCHMARKS); i++) {
        bool wanted = first == argc;

        for (j = first; j < argc; j++)
            wanted = wanted || strcmp(argv[j], BENCHMARKS[i].name) == 0;
        if (wanted && options.list)
            printf("%s\n", BENCHMARKS[i].name);
        else if (wanted)
            BENCHMARKS[i].run(&table);
    }
    return options.strict && table.missed > 0 ? KVC_FAILED : KVC_FINE;
}
