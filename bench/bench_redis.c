/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* bench_redis.c -- what `redis:` costs on top of the server: the floor is redis-benchmark, one
 * client, values of the same size, as many commands in a pipeline as keys in a call.
 *
 * Its SET and GET know nothing of pages: each put of the store is a script that publishes a whole
 * page, tells it in a stream and keeps the order of eviction.  Starts a server of its own, on
 * a socket in a directory of its own, without persistence; says so and ends well if there is
 * none. */
#include "bench.h"

#include <kvgraft/store.h>

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define PARTS 1024
#define BATCH 16

struct work {
    struct kvg_store *store;
    uint8_t *data;
    uint8_t *out;
    size_t bytes;
    size_t count;
};

static char DIR[] = "/tmp/kvgraft-bench-redis-XXXXXX";
static char KEYS[PARTS][72];

static void make_keys(void)
{
    size_t i;

    for (i = 0; i < PARTS; i++)
        snprintf(KEYS[i], sizeof(KEYS[i]), "%016zx%016zx%016zx%016zx_0_k", i * 7919,
            i * 104729, i, i * 31);
}

/* The file of redis-check-rdb is the server's under another name. */
static pid_t start_server(void)
{
    static const char *const FILES[] = {
        "redis-server", "valkey-server", "redis-check-rdb"};
    char socket[128];
    pid_t child;
    size_t i;

    snprintf(socket, sizeof(socket), "%s/socket", DIR);
    child = fork();
    if (child != 0)
        return child;
    for (i = 0; i < 3; i++)
        execlp(FILES[i], "redis-server", "--port", "0", "--unixsocket", socket, "--save",
            "", "--appendonly", "no", "--dir", DIR, "--logfile", "/dev/null",
            (char *)NULL);
    _exit(127);
}

static struct kvg_store *open_store(void)
{
    char url[200];
    struct kvg_store *store = NULL;
    unsigned tries;

    snprintf(url, sizeof(url), "redis:%s/socket", DIR);
    for (tries = 0; tries < 50; tries++) {
        if (kvg_store_open(url, NULL, &store, NULL) == KVG_OK)
            return store;
        usleep(100000);
    }
    return NULL;
}

/* Commands a second that redis-benchmark says, or 0. */
static double benchmark(const char *arguments)
{
    char command[65536];
    char line[512];
    double rate = 0;
    FILE *pipe;

    snprintf(command, sizeof(command),
        "redis-benchmark -s %s/socket -c 1 --csv %s 2>/dev/null", DIR, arguments);
    pipe = popen(command, "r");
    if (pipe == NULL)
        return 0;
    while (fgets(line, sizeof(line), pipe) != NULL) {
        /* "SET","123456.78",... behind a line of names. */
        char *comma = strstr(line, "\",\"");

        if (comma != NULL && strncmp(line, "\"test\"", 6) != 0)
            rate = strtod(comma + 3, NULL);
    }
    pclose(pipe);
    return rate;
}

static void put_all(void *context)
{
    struct work *work = context;
    struct kvg_store_piece piece = {work->data, work->bytes};
    struct kvg_store_part parts[BATCH];
    struct kvg_store_group groups[BATCH];
    size_t done;
    size_t i;

    for (done = 0; done < work->count; done += BATCH) {
        for (i = 0; i < BATCH; i++) {
            parts[i] = (struct kvg_store_part){
                {KEYS[done + i], strlen(KEYS[done + i])}, &piece, 1};
            groups[i] = (struct kvg_store_group){.parts = &parts[i], .part_count = 1};
        }
        if (kvg_store_put(work->store, groups, BATCH, NULL) != KVG_OK)
            exit(1);
    }
}

static void get_all(void *context)
{
    struct work *work = context;
    struct kvg_store_range ranges[BATCH];
    struct kvg_store_get gets[BATCH];
    size_t done;
    size_t i;

    for (done = 0; done < work->count; done += BATCH) {
        for (i = 0; i < BATCH; i++) {
            ranges[i] =
                (struct kvg_store_range){0, work->bytes, work->out + i * work->bytes};
            gets[i] =
                (struct kvg_store_get){.key = {KEYS[done + i], strlen(KEYS[done + i])},
                    .ranges = &ranges[i],
                    .range_count = 1};
        }
        if (kvg_store_get(work->store, gets, BATCH, NULL) != KVG_OK)
            exit(1);
    }
}

static void exists_512(void *context)
{
    struct work *work = context;
    struct kvg_str keys[512];
    size_t leading = 0;
    size_t i;

    for (i = 0; i < 512; i++)
        keys[i] = (struct kvg_str){KEYS[i], strlen(KEYS[i])};
    if (kvg_store_exists(work->store, keys, 512, NULL, &leading, NULL) != KVG_OK ||
        leading != 512)
        exit(1);
}

static void row(struct kvb_table *table, const char *what, double figure, double floor,
    const char *floor_is)
{
    kvb_row(table, &(struct kvb_row){.what = what,
                       .figure = figure,
                       .unit = "parts/s",
                       .floor = floor,
                       .floor_is = floor_is,
                       .more_is_better = true});
}

static void measure_size(
    struct kvb_table *table, struct work *work, size_t bytes, const char *name)
{
    unsigned repeats = table->quick ? 2 : 5;
    double put = 0;
    double get = 0;
    double set_floor = 0;
    double get_floor = 0;
    char text[128];
    char what[96];
    unsigned i;

    work->bytes = bytes;
    work->count = bytes >= 1 << 20 ? 64 : PARTS;
    for (i = 0; i < repeats; i++) {
        double now;

        snprintf(text, sizeof(text), "-d %zu -P %d -n %zu -t set", bytes, BATCH,
            work->count * 4);
        now = benchmark(text);
        set_floor = now > set_floor ? now : set_floor;
        snprintf(text, sizeof(text), "-d %zu -P %d -n %zu -t get", bytes, BATCH,
            work->count * 4);
        now = benchmark(text);
        get_floor = now > get_floor ? now : get_floor;
        if (kvg_store_clear(work->store, NULL) != KVG_OK)
            exit(1);
        now = (double)work->count / kvb_best_ns(1, put_all, work) * 1e9;
        put = now > put ? now : put;
        now = (double)work->count / kvb_best_ns(2, get_all, work) * 1e9;
        get = now > get ? now : get;
    }
    snprintf(what, sizeof(what), "redis: put, %s parts, 16 a call", name);
    row(table, what, put, set_floor, "redis-benchmark SET of the same size, pipeline 16");
    snprintf(what, sizeof(what), "redis: get, %s parts, 16 a call", name);
    row(table, what, get, get_floor, "redis-benchmark GET of the same size, pipeline 16");
}

static void measure_exists(struct kvb_table *table, struct work *work)
{
    static char text[65536];
    size_t used;
    double figure;
    size_t i;

    work->bytes = 64;
    work->count = PARTS;
    if (kvg_store_clear(work->store, NULL) != KVG_OK)
        exit(1);
    put_all(work);
    used = (size_t)snprintf(text, sizeof(text), "-n 2000 exists");
    for (i = 0; i < 512; i++)
        used += (size_t)snprintf(text + used, sizeof(text) - used, " %s", KEYS[i]);
    figure = 1e9 / kvb_best_ns(500, exists_512, work);
    row(table, "redis: exists of 512 keys, all there", figure, benchmark(text),
        "redis-benchmark EXISTS of 512 keys, none there");
}

static void run(struct kvb_table *table)
{
    static struct work work;
    char command[160];
    pid_t server;

    make_keys();
    work.data = calloc(1, 1 << 20);
    work.out = calloc(BATCH, 1 << 20);
    if (work.data == NULL || work.out == NULL || mkdtemp(DIR) == NULL)
        exit(1);
    server = start_server();
    work.store = server > 0 ? open_store() : NULL;
    if (work.store == NULL || benchmark("-n 10 -t set") == 0) {
        fprintf(stderr, "bench_redis: no redis-server, no redis-benchmark or no hiredis "
                        "here: nothing measured\n");
    } else {
        measure_size(table, &work, 4096, "4 KiB");
        measure_size(table, &work, 65536, "64 KiB");
        measure_size(table, &work, 1 << 20, "1 MiB");
        measure_exists(table, &work);
    }
    if (work.store != NULL)
        kvg_store_close(work.store);
    if (server > 0) {
        kill(server, SIGTERM);
        waitpid(server, NULL, 0);
    }
    snprintf(command, sizeof(command), "rm -rf '%s'", DIR);
    if (system(command) != 0)
        exit(1);
    free(work.data);
    free(work.out);
}

KVB_MAIN(redis, "The store in Redis", run)
