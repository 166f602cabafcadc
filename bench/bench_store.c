/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* bench_store.c -- what `file:DIR` costs on top of the file system, and `memory:` on top of memcpy.
 *
 * The floor of a put is pwrite of the same bytes to a file that is as sparse, with as many
 * fdatasync; that of a get is pread of the same bytes.  Both verify and index nothing.
 * KVB_STORE_DIR is where (default /tmp).  Figures of the page cache say what the store adds; the
 * disk itself is measured by the rows with `each`. */
#include "bench.h"

#include <kvgraft/store.h>

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define SIZES 4
static const size_t PART_BYTES[SIZES] = {4096, 65536, 1048576, 16777216};
static const char *const SIZE_NAMES[SIZES] = {"4 KiB", "64 KiB", "1 MiB", "16 MiB"};

struct work {
    struct kvg_store *store;
    int fd;
    uint8_t *data;
    uint8_t *out;
    size_t bytes; /* Of a part. */
    size_t count; /* Parts a run. */
    size_t run;   /* So that keys differ. */
    bool each;    /* fdatasync after every part. */
};

static char DIR[128];
static char (*KEYS)[72];

static void key_of(size_t number, char *out, size_t *bytes)
{
    *bytes = (size_t)snprintf(out, 72, "%016zx%016zx%016zx%016zx_0_k", number * 7919,
        number * 104729, number, number * 31);
}

static void raw_write(void *context)
{
    struct work *work = context;
    size_t i;

    for (i = 0; i < work->count; i++) {
        off_t at = (off_t)((work->run * work->count + i) * work->bytes);

        if (pwrite(work->fd, work->data, work->bytes, at) != (ssize_t)work->bytes ||
            (work->each && fdatasync(work->fd) != 0))
            exit(1);
    }
    work->run++;
}

/* As an engine writes: many pages in a call. */
static void store_put(void *context)
{
    enum {
        BATCH = 128
    };
    static char keys[BATCH][72];
    static struct kvg_store_part parts[BATCH];
    static struct kvg_store_group groups[BATCH];
    struct work *work = context;
    struct kvg_store_piece piece = {work->data, work->bytes};
    size_t done;
    size_t i;

    for (done = 0; done < work->count; done += i) {
        for (i = 0; i < BATCH && done + i < work->count && i * work->bytes < 32u << 20;
             i++) {
            parts[i] = (struct kvg_store_part){{keys[i], 0}, &piece, 1};
            key_of(work->run * work->count + done + i + (work->bytes << 20), keys[i],
                &parts[i].key.bytes);
            groups[i] = (struct kvg_store_group){.parts = &parts[i], .part_count = 1};
            if (work->each && ++i > 0)
                break;
        }
        if (kvg_store_put(work->store, groups, i, NULL) != KVG_OK)
            exit(1);
    }
    work->run++;
}

static void raw_read(void *context)
{
    struct work *work = context;
    size_t i;

    for (i = 0; i < work->count; i++) {
        if (pread(work->fd, work->out, work->bytes, (off_t)(i * work->bytes)) !=
            (ssize_t)work->bytes)
            exit(1);
    }
}

static void store_get(void *context)
{
    struct work *work = context;
    size_t i;

    for (i = 0; i < work->count; i++) {
        char text[72];
        struct kvg_store_range range = {0, work->bytes, work->out};
        struct kvg_store_get get = {.key = {text, 0}, .ranges = &range, .range_count = 1};

        key_of(i + (work->bytes << 20), text, &get.key.bytes);
        if (kvg_store_get(work->store, &get, 1, NULL) != KVG_OK || get.result != KVG_OK)
            exit(1);
    }
}

static void copy(void *context)
{
    struct work *work = context;
    size_t i;

    for (i = 0; i < work->count; i++) {
        memcpy(work->out, work->data, work->bytes);
        kvb_keep(work->out);
    }
}

static struct kvg_store *open_store(const char *scheme, const char *sync)
{
    char url[256];
    struct kvg_store *store;
    struct kvg_error error = {0};

    if (strcmp(scheme, "memory") == 0)
        snprintf(url, sizeof(url), "memory:?bytes=4GiB");
    else
        snprintf(
            url, sizeof(url), "file:%s/store?bytes=64GiB&floor=0&sync=%s", DIR, sync);
    if (kvg_store_open(url, NULL, &store, &error) != KVG_OK) {
        fprintf(stderr, "%s: %s\n", url, error.message);
        exit(1);
    }
    return store;
}

static void remove_store(void)
{
    char command[400];

    snprintf(command, sizeof(command), "rm -rf '%s/store' '%s/raw'", DIR, DIR);
    if (system(command) != 0)
        exit(1);
}

static int open_raw(void)
{
    char path[256];
    int fd;

    snprintf(path, sizeof(path), "%s/raw", DIR);
    fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (fd < 0)
        exit(1);
    return fd;
}

static double rate(const struct work *work, double ns)
{
    return (double)work->bytes * (double)work->count / ns * 1e9;
}

static void measure_size(struct kvb_table *table, struct work *work, size_t size)
{
    char what[96];
    char note[96];
    double floor;
    double figure;
    double memcpy_rate;
    unsigned repeats = table->quick ? 2 : 5;

    work->bytes = PART_BYTES[size];
    work->count = (table->quick ? 32u << 20 : 128u << 20) / work->bytes;
    if (work->count > 4096)
        work->count = 4096;
    work->run = 0;
    work->each = false;
    work->fd = open_raw();
    floor = rate(work, kvb_best_ns(repeats, raw_write, work));
    work->store = open_store("file", "none");
    work->run = 0;
    figure = rate(work, kvb_best_ns(repeats, store_put, work));
    snprintf(what, sizeof(what), "file: put, %s parts, sync none", SIZE_NAMES[size]);
    kvb_row(table, &(struct kvb_row){.what = what,
                       .figure = figure,
                       .unit = "B/s",
                       .floor = floor,
                       .floor_is = "pwrite of the same bytes",
                       .target = 0.8,
                       .more_is_better = true});
    memcpy_rate = rate(work, kvb_best_ns(repeats, copy, work));
    floor = rate(work, kvb_best_ns(repeats, raw_read, work));
    figure = rate(work, kvb_best_ns(repeats, store_get, work));
    snprintf(what, sizeof(what), "file: get, %s parts", SIZE_NAMES[size]);
    snprintf(
        note, sizeof(note), "%.2f x of memcpy of the same bytes", figure / memcpy_rate);
    kvb_row(table, &(struct kvb_row){.what = what,
                       .figure = figure,
                       .unit = "B/s",
                       .floor = floor,
                       .floor_is = "pread of the same bytes, in the page cache",
                       .target = 0.8,
                       .more_is_better = true,
                       .note = note});
    kvg_store_close(work->store);
    close(work->fd);
    remove_store();
}

/* A sync for every part: what the disk can do. */
static void measure_each(struct kvb_table *table, struct work *work)
{
    double floor;
    double figure;

    work->bytes = 1 << 20;
    work->count = table->quick ? 8 : 32;
    work->each = true;
    work->run = 0;
    work->fd = open_raw();
    floor = rate(work, kvb_best_ns(2, raw_write, work));
    work->store = open_store("file", "each");
    work->run = 0;
    figure = rate(work, kvb_best_ns(2, store_put, work));
    kvb_row(
        table, &(struct kvb_row){.what = "file: put, 1 MiB parts one by one, sync each",
                   .figure = figure,
                   .unit = "B/s",
                   .floor = floor,
                   .floor_is = "pwrite and one fdatasync a part; the store needs two",
                   .target = 0.5,
                   .more_is_better = true});
    kvg_store_close(work->store);
    close(work->fd);
    remove_store();
}

/* ---- The index ----------------------------------------------------------------------------- */

struct asking {
    struct kvg_store *store;
    struct kvg_str keys[512];
    uint64_t sum;
    int fd;
};

static void ask(void *context)
{
    struct asking *asking = context;
    size_t leading;

    if (kvg_store_exists(asking->store, asking->keys, 512, NULL, &leading, NULL) !=
            KVG_OK ||
        leading != 512)
        exit(1);
}

/* What an answer cannot do without: asking whether something changed, and reading the keys. */
static void ask_floor(void *context)
{
    struct asking *asking = context;
    struct stat state;
    size_t i;
    size_t k;

    if (fstat(asking->fd, &state) != 0)
        exit(1);
    for (i = 0; i < 512; i++) {
        for (k = 0; k + 8 <= asking->keys[i].bytes; k += 8) {
            uint64_t word;

            memcpy(&word, asking->keys[i].data + k, 8);
            asking->sum = (asking->sum ^ word) * UINT64_C(0x9e3779b97f4a7c15);
        }
    }
    kvb_keep(&asking->sum);
}

static void put_many(struct kvg_store *store, size_t count)
{
    enum {
        BATCH = 1024
    };
    static struct kvg_store_piece piece = {"0123456789abcdef", 16};
    static struct kvg_store_part parts[BATCH];
    static struct kvg_store_group groups[BATCH];
    size_t done;
    size_t i;

    for (done = 0; done < count; done += BATCH) {
        for (i = 0; i < BATCH; i++) {
            parts[i] = (struct kvg_store_part){{KEYS[done + i], 0}, &piece, 1};
            key_of(done + i, KEYS[done + i], &parts[i].key.bytes);
            groups[i] = (struct kvg_store_group){.parts = &parts[i], .part_count = 1};
        }
        if (kvg_store_put(store, groups, BATCH, NULL) != KVG_OK)
            exit(1);
    }
}

static void read_journal(void *context)
{
    static char buffer[1 << 20];
    char path[256];
    int fd;

    (void)context;
    snprintf(path, sizeof(path), "%s/store/journal", DIR);
    fd = open(path, O_RDONLY);
    while (read(fd, buffer, sizeof(buffer)) > 0)
        continue;
    close(fd);
}

static void reopen(void *context)
{
    struct asking *asking = context;

    asking->store = open_store("file", "none");
}

static void measure_index(struct kvb_table *table)
{
    static struct asking asking;
    size_t count = table->quick ? 131072 : 1 << 20;
    char what[64];
    double floor;
    double figure;
    size_t i;

    KEYS = malloc(count * sizeof(*KEYS));
    if (KEYS == NULL)
        exit(1);
    asking.store = open_store("file", "none");
    put_many(asking.store, count);
    kvg_store_close(asking.store);
    floor = kvb_best_ns(2, read_journal, NULL);
    figure = kvb_best_ns(1, reopen, &asking);
    snprintf(what, sizeof(what), "file: opening with %zu parts", count);
    kvb_row(table, &(struct kvb_row){.what = what,
                       .figure = figure,
                       .unit = "ns",
                       .floor = floor,
                       .floor_is = "reading its journal once",
                       .note = "the target for a million is 2 s"});
    for (i = 0; i < 512; i++)
        asking.keys[i] = (struct kvg_str){KEYS[i * 200], strlen(KEYS[i * 200])};
    asking.fd = open("/proc/self/exe", O_RDONLY);
    floor = kvb_best_ns(200, ask_floor, &asking);
    figure = kvb_best_ns(200, ask, &asking);
    kvb_row(table, &(struct kvb_row){.what = "file: exists of 512 keys, all there",
                       .figure = figure,
                       .unit = "ns",
                       .floor = floor,
                       .floor_is = "one fstat, and the bytes of the keys once"});
    close(asking.fd);
    kvg_store_close(asking.store);
    free(KEYS);
    remove_store();
}

static void measure_memory(struct kvb_table *table, struct work *work)
{
    double floor;
    double figure;

    work->bytes = 1 << 20;
    work->count = 64;
    work->run = 0;
    work->store = open_store("memory", "");
    floor = rate(work, kvb_best_ns(5, copy, work));
    figure = rate(work, kvb_best_ns(5, store_put, work));
    kvb_row(table, &(struct kvb_row){.what = "memory: put, 1 MiB parts",
                       .figure = figure,
                       .unit = "B/s",
                       .floor = floor,
                       .floor_is = "memcpy to one place",
                       .more_is_better = true});
    figure = rate(work, kvb_best_ns(5, store_get, work));
    kvb_row(table, &(struct kvb_row){.what = "memory: get, 1 MiB parts",
                       .figure = figure,
                       .unit = "B/s",
                       .floor = floor,
                       .floor_is = "memcpy from one place",
                       .more_is_better = true});
    kvg_store_close(work->store);
}

static void run(struct kvb_table *table)
{
    static struct work work;
    const char *where = getenv("KVB_STORE_DIR");
    size_t i;

    snprintf(DIR, sizeof(DIR), "%s/kvgraft-bench-XXXXXX", where == NULL ? "/tmp" : where);
    if (mkdtemp(DIR) == NULL)
        exit(1);
    work.data = malloc(PART_BYTES[SIZES - 1]);
    work.out = malloc(PART_BYTES[SIZES - 1]);
    for (i = 0; i < PART_BYTES[SIZES - 1]; i++)
        work.data[i] = (uint8_t)(i * 2654435761u >> 13);
    for (i = 0; i < SIZES; i++)
        measure_size(table, &work, i);
    measure_each(table, &work);
    measure_memory(table, &work);
    measure_index(table);
    free(work.data);
    free(work.out);
    rmdir(DIR);
}

KVB_MAIN(store, "Stores", run)
