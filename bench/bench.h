/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* bench.h -- what every benchmark shares: a clock, best-of, and a table with floors.
 *
 * A benchmark is one file, bench/bench_NAME.c, with one function that measures and adds rows:
 *
 *     static void run(struct kvb_table *table)
 *     {
 *         double floor_ns = kvb_best_ns(5, hash_raw, &work);
 *         double keys_ns = kvb_best_ns(5, hash_keys, &work);
 *
 *         kvb_row(table, &(struct kvb_row){.what = "page keys, 128k tokens, page 64",
 *             .figure = keys_ns, .unit = "ns", .floor = floor_ns,
 *             .floor_is = "SHA-256 over the same bytes", .target = 1.05});
 *     }
 *     KVB_MAIN(keys, "Page keys", run)
 *
 * and one line, kvgraft_bench(keys), in bench/CMakeLists.txt.  That makes the program
 * bench_keys; a benchmark that is also listed in KVB_IN_COMMAND becomes part of `kvgraft bench`.
 *
 * The floor is what the work cannot do without, measured in the same run; `target` is the
 * ratio aimed at.  Programs take --json (one object a line), --quick (shorter, for a look) and
 * --strict (exit with 1 if a target is missed).  Nothing here is a test: a busy machine may miss
 * any target.
 */
#ifndef KVB_BENCH_H
#define KVB_BENCH_H

#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

struct kvb_row {
    const char *what;
    double figure;
    const char *unit;     /* "ns", "bytes", "events/s", "pages/s", "ratio", ... */
    double floor;         /* In the same unit; 0: the row has none. */
    const char *floor_is; /* "memcmp over the same tokens". */
    double target;        /* figure / floor aimed at; 0: none. */
    double limit;         /* Without a floor: the figure aimed at; 0: none. */
    bool more_is_better;  /* Throughput: ratios and limits are lower bounds. */
    const char *note;     /* Or NULL. */
};

struct kvb_table {
    const char *name;
    const char *title;
    FILE *out;
    bool json;
    bool quick;
    unsigned rows;
    unsigned missed;
};

static inline uint64_t kvb_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

/* The shortest of `repeats` runs, in nanoseconds: what the machine can do when left alone. */
static inline double kvb_best_ns(unsigned repeats, void (*work)(void *), void *context)
{
    double best = 0;
    unsigned i;

    for (i = 0; i < repeats; i++) {
        uint64_t began = kvb_now_ns();
        double took;

        work(context);
        took = (double)(kvb_now_ns() - began);
        if (i == 0 || took < best)
            best = took;
    }
    return best;
}

/* Keeps the compiler from dropping work whose result nobody uses. */
static inline void kvb_keep(const void *result)
{
    __asm__ __volatile__("" : : "r"(result) : "memory");
}

/* 16 columns; the sign of micro is one column, but two bytes. */
static inline int kvb_width(const char *text)
{
    return strchr(text, 0xc2) == NULL ? 16 : 17;
}

/* A figure with a unit a person reads: 1.25 µs, 3.1 M events/s, 48 bytes. */
static inline void kvb_format(
    char *text, size_t text_bytes, double value, const char *unit)
{
    static const char *const TIMES[] = {"ns", "\xc2\xb5s", "ms", "s"};
    static const char *const THOUSANDS[] = {"", "k", "M", "G"};
    unsigned step = 0;
    bool time = strcmp(unit, "ns") == 0;
    bool rate = strstr(unit, "/s") != NULL;

    while ((time || rate) && step < 3 && value >= 1000) {
        value /= 1000;
        step++;
    }
    if (time)
        snprintf(text, text_bytes, "%.*f %s", value < 100 ? 2 : 1, value, TIMES[step]);
    else if (rate)
        snprintf(text, text_bytes, "%.*f %s%s%s", value < 100 ? 2 : 1, value,
            THOUSANDS[step], step == 0 ? "" : " ", unit);
    else
        snprintf(text, text_bytes, "%.*f %s", value < 10 ? 3 : 1, value, unit);
}

static inline bool kvb_row_met(const struct kvb_row *row)
{
    double got =
        row->floor > 0 && row->target > 0 ? row->figure / row->floor : row->figure;
    double aim = row->floor > 0 && row->target > 0 ? row->target : row->limit;

    if (aim <= 0)
        return true;
    return row->more_is_better ? got >= aim : got <= aim;
}

static inline void kvb_row_json(const struct kvb_table *table, const struct kvb_row *row)
{
    fprintf(table->out,
        "{\"bench\":\"%s\",\"what\":\"%s\",\"figure\":%.6g,\"unit\":\"%s\"", table->name,
        row->what, row->figure, row->unit);
    if (row->floor > 0)
        fprintf(table->out, ",\"floor\":%.6g,\"floor_is\":\"%s\",\"ratio\":%.4g",
            row->floor, row->floor_is == NULL ? "" : row->floor_is,
            row->figure / row->floor);
    if (row->target > 0)
        fprintf(table->out, ",\"target_ratio\":%.4g", row->target);
    if (row->limit > 0)
        fprintf(table->out, ",\"target\":%.6g", row->limit);
    if (row->note != NULL)
        fprintf(table->out, ",\"note\":\"%s\"", row->note);
    fprintf(table->out, ",\"met\":%s}\n", kvb_row_met(row) ? "true" : "false");
}

static inline void kvb_row_text(const struct kvb_table *table, const struct kvb_row *row)
{
    const char *sign = row->more_is_better ? ">=" : "<=";
    char figure[48];
    char floor[48] = "";
    char ratio[32] = "";
    char aim[48] = "";

    kvb_format(figure, sizeof(figure), row->figure, row->unit);
    if (row->floor > 0) {
        kvb_format(floor, sizeof(floor), row->floor, row->unit);
        snprintf(ratio, sizeof(ratio), "%.2f x", row->figure / row->floor);
    }
    if (row->floor > 0 && row->target > 0) {
        snprintf(aim, sizeof(aim), "%s %.2f x", sign, row->target);
    } else if (row->limit > 0) {
        char limit[40];

        kvb_format(limit, sizeof(limit), row->limit, row->unit);
        snprintf(aim, sizeof(aim), "%s %s", sign, limit);
    }
    fprintf(table->out, "  %-46s %16s %16s %9s  %s%s\n", row->what, figure, floor, ratio,
        aim,
        aim[0] == '\0'     ? ""
        : kvb_row_met(row) ? "  ok"
                           : "  MISSED");
    if (row->floor > 0 && row->floor_is != NULL)
        fprintf(table->out, "      floor: %s\n", row->floor_is);
    if (row->note != NULL)
        fprintf(table->out, "      %s\n", row->note);
}

/* Adds a row and prints it at once. */
static inline void kvb_row(struct kvb_table *table, const struct kvb_row *row)
{
    if (!table->json && table->rows == 0)
        fprintf(table->out, "%s\n  %-46s %16s %16s %9s  %s\n", table->title, "", "figure",
            "floor", "ratio", "target");
    table->rows++;
    if (!kvb_row_met(row))
        table->missed++;
    if (table->json)
        kvb_row_json(table, row);
    else
        kvb_row_text(table, row);
    fflush(table->out);
}

/* The main of a benchmark program. */
static inline int kvb_main(int argc, char **argv, const char *name, const char *title,
    void (*run)(struct kvb_table *table))
{
    struct kvb_table table = {.name = name, .title = title, .out = stdout};
    bool strict = false;
    int i;

    for (i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0) {
            table.json = true;
        } else if (strcmp(argv[i], "--quick") == 0) {
            table.quick = true;
        } else if (strcmp(argv[i], "--strict") == 0) {
            strict = true;
        } else {
            fprintf(stderr, "usage: %s [--json] [--quick] [--strict]\n", argv[0]);
            return 2;
        }
    }
    run(&table);
    return strict && table.missed > 0 ? 1 : 0;
}

/* The last line of a benchmark: its main, or inside `kvgraft bench` its entry. */
#ifdef KVB_IN_COMMAND
#define KVB_MAIN(id, title_text, function)      \
    void kvb_run_##id(struct kvb_table *table); \
    void kvb_run_##id(struct kvb_table *table)  \
    {                                           \
        table->name = #id;                      \
        table->title = title_text;              \
        table->rows = 0;                        \
        function(table);                        \
    }
#else
#define KVB_MAIN(id, title_text, function)                      \
    int main(int argc, char **argv)                             \
    {                                                           \
        return kvb_main(argc, argv, #id, title_text, function); \
    }
#endif

#endif
