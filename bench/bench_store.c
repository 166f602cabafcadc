/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* bench_store.c -- what `file:DIR` costs on top of the file system.
 *
 * The floor of a put is pwrite of the same bytes to a file that is as sparse, with as many
 * fdatasync; that of a get is pread of the same bytes.  Both verify and index nothing.
 * KVB_STORE_DIR is where (default /tmp).  Figures of the page cache say what the store adds; the
 * disk itself is measured by the rows with `each`. */
#include "bench.h"

#include "backend/hash.h"

#include <kvgraft/store.h>

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define SIZES 4
static const size_t PART_BYTES[SIZES] = {4096, 65536, 1048576, 16777216};
static const char *const SIZE_NAMES[SIZES] = {"4 KiB", "64 KiB", "1 MiB", "16 MiB"};

#define PARTS_MAX 4096
#define BATCH 128

struct work {
    struct kvg_store *store;
    int fd;
    uint8_t *data;
    uint8_t *out;
    size_t bytes; /* Of a part. */
    size_t count; /* Parts a run. */
    size_t batch; /* Parts a call. */
    bool each;    /* fdatasync after every part. */
    bool apart;   /* Batches are read in another order than they were written in. */
};

static char DIR[128];
static char (*KEYS)[72];

static void key_of(size_t number, char *out)
{
    snprintf(out, 72, "%016zx%016zx%016zx%016zx_0_k", number * 7919, number * 104729,
        number, number * 31);
}

static void make_keys(size_t count)
{
    size_t i;

    free(KEYS);
    KEYS = malloc(count * sizeof(*KEYS));
    for (i = 0; i < count && KEYS != NULL; i++)
        key_of(i, KEYS[i]);
    if (KEYS == NULL)
        exit(1);
}

/* What is read as the n-th part. */
static size_t nth(const struct work *work, size_t n)
{
    size_t batches = work->count / work->batch;

    if (!work->apart)
        return n;
    return n / work->batch * 37 % batches * work->batch + n % work->batch;
}

static void raw_write(void *context)
{
    struct work *work = context;
    size_t i;

    for (i = 0; i < work->count; i++) {
        if (pwrite(work->fd, work->data, work->bytes, (off_t)(i * work->bytes)) !=
                (ssize_t)work->bytes ||
            (work->each && fdatasync(work->fd) != 0))
            exit(1);
    }
}

/* As an engine writes: many pages in a call. */
static void store_put(void *context)
{
    static struct kvg_store_part parts[BATCH];
    static struct kvg_store_group groups[BATCH];
    struct work *work = context;
    struct kvg_store_piece piece = {work->data, work->bytes};
    size_t done;
    size_t i;

    for (done = 0; done < work->count; done += i) {
        for (i = 0; i < work->batch && done + i < work->count; i++) {
            const char *key = KEYS[done + i];

            parts[i] = (struct kvg_store_part){{key, strlen(key)}, &piece, 1};
            groups[i] = (struct kvg_store_group){.parts = &parts[i], .part_count = 1};
        }
        if (kvg_store_put(work->store, groups, i, NULL) != KVG_OK)
            exit(1);
    }
}

static void raw_read(void *context)
{
    struct work *work = context;
    size_t i;

    for (i = 0; i < work->count; i++) {
        if (pread(work->fd, work->out + i % work->batch * work->bytes, work->bytes,
                (off_t)(nth(work, i) * work->bytes)) != (ssize_t)work->bytes)
            exit(1);
    }
}

/* What a read that verifies cannot do without. */
static void raw_read_and_verify(void *context)
{
    struct work *work = context;
    size_t i;
    size_t k;

    for (i = 0; i < work->count; i++) {
        uint8_t *out = work->out + i % work->batch * work->bytes;
        uint64_t sum = 0;

        if (pread(work->fd, out, work->bytes, (off_t)(i * work->bytes)) !=
            (ssize_t)work->bytes)
            exit(1);
        for (k = 0; k < work->bytes; k += 65536)
            sum ^= kvi_checksum(
                out + k, work->bytes - k < 65536 ? work->bytes - k : 65536, 0);
        kvb_keep(&sum);
    }
}

static void store_get(void *context)
{
    static struct kvg_store_range ranges[BATCH];
    static struct kvg_store_get gets[BATCH];
    struct work *work = context;
    size_t done;
    size_t i;

    for (done = 0; done < work->count; done += i) {
        for (i = 0; i < work->batch && done + i < work->count; i++) {
            const char *key = KEYS[nth(work, done + i)];

            ranges[i] =
                (struct kvg_store_range){0, work->bytes, work->out + i * work->bytes};
            gets[i] = (struct kvg_store_get){
                .key = {key, strlen(key)}, .ranges = &ranges[i], .range_count = 1};
        }
        if (kvg_store_get(work->store, gets, i, NULL) != KVG_OK ||
            gets[0].result != KVG_OK || gets[i - 1].result != KVG_OK)
            exit(1);
    }
}

static struct kvg_store *open_store(const char *sync)
{
    char url[256];
    struct kvg_store *store;
    struct kvg_error error = {0};

    snprintf(url, sizeof(url), "file:%s/store?bytes=64GiB&floor=0&sync=%s", DIR, sync);
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

/* Both in turns, so that what else the machine does meets both.  Files are made anew for each run:
 * every byte takes a new page of the page cache. */
static void write_both(struct work *work, const char *url_tail, unsigned repeats,
    double *floor_ns, double *figure_ns)
{
    unsigned i;

    work->store = NULL;
    for (i = 0; i < repeats; i++) {
        double floor;
        double figure;

        if (work->store != NULL) {
            kvg_store_close(work->store);
            close(work->fd);
            remove_store();
        }
        work->fd = open_raw();
        work->store = open_store(url_tail);
        floor = kvb_best_ns(1, raw_write, work);
        figure = kvb_best_ns(1, store_put, work);
        *floor_ns = i == 0 || floor < *floor_ns ? floor : *floor_ns;
        *figure_ns = i == 0 || figure < *figure_ns ? figure : *figure_ns;
    }
}

static void read_both(
    struct work *work, unsigned repeats, double *floor_ns, double *figure_ns)
{
    unsigned i;

    for (i = 0; i < repeats; i++) {
        double floor = kvb_best_ns(1, raw_read, work);
        double figure = kvb_best_ns(1, store_get, work);

        *floor_ns = i == 0 || floor < *floor_ns ? floor : *floor_ns;
        *figure_ns = i == 0 || figure < *figure_ns ? figure : *figure_ns;
    }
}

static void finish(struct work *work)
{
    kvg_store_close(work->store);
    close(work->fd);
    remove_store();
}

static void measure_get(
    struct kvb_table *table, struct work *work, const char *size, size_t batch)
{
    char what[96];
    char note[96];
    double verify_ns;
    double floor = 0;
    double figure = 0;

    work->batch = batch;
    read_both(work, table->quick ? 3 : 9, &floor, &figure);
    verify_ns = kvb_best_ns(table->quick ? 3 : 9, raw_read_and_verify, work);
    snprintf(what, sizeof(what), "file: get, %s parts, %zu a call", size, batch);
    snprintf(note, sizeof(note), "%.2f x of pread and the checksums of the same bytes",
        verify_ns / figure);
    kvb_row(table, &(struct kvb_row){.what = what,
                       .figure = rate(work, figure),
                       .unit = "B/s",
                       .floor = rate(work, floor),
                       .floor_is = "pread of the same bytes, in the page cache",
                       .target = 0.8,
                       .more_is_better = true,
                       .note = note});
}

static void measure_size(struct kvb_table *table, struct work *work, size_t size)
{
    char what[96];
    double floor = 0;
    double figure = 0;

    work->bytes = PART_BYTES[size];
    work->count = (table->quick ? 32u << 20 : 128u << 20) / work->bytes;
    if (work->count > PARTS_MAX)
        work->count = PARTS_MAX;
    work->batch = (32u << 20) / work->bytes < BATCH ? (32u << 20) / work->bytes : BATCH;
    work->each = false;
    write_both(work, "none", table->quick ? 3 : 9, &floor, &figure);
    snprintf(what, sizeof(what), "file: put, %s parts, %zu a call, sync none",
        SIZE_NAMES[size], work->batch);
    kvb_row(table, &(struct kvb_row){.what = what,
                       .figure = rate(work, figure),
                       .unit = "B/s",
                       .floor = rate(work, floor),
                       .floor_is = "pwrite of the same bytes",
                       .target = 0.8,
                       .more_is_better = true});
    measure_get(table, work, SIZE_NAMES[size], work->batch < 16 ? work->batch : 16);
    measure_get(table, work, SIZE_NAMES[size], 1);
    finish(work);
}

/* A sync for every part: what the disk can do. */
static void measure_each(struct kvb_table *table, struct work *work)
{
    double floor = 0;
    double figure = 0;

    work->bytes = 1 << 20;
    work->count = table->quick ? 8 : 32;
    work->batch = 1;
    work->each = true;
    write_both(work, "each", 3, &floor, &figure);
    kvb_row(
        table, &(struct kvb_row){.what = "file: put, 1 MiB parts one by one, sync each",
                   .figure = rate(work, figure),
                   .unit = "B/s",
                   .floor = rate(work, floor),
                   .floor_is = "pwrite and one fdatasync a part; the store needs two",
                   .target = 0.5,
                   .more_is_better = true});
    finish(work);
}

/* ---- Past the page cache ------------------------------------------------------------------- */

/* Drops what the page cache has of the store and of the raw file. */
static void drop_cache(const struct work *work)
{
    unsigned i;
    int fd = work->fd;

    for (i = 0; fd >= 0; i++) {
        char path[256];

        if (fdatasync(fd) != 0 || posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) != 0)
            exit(1);
        if (fd != work->fd)
            close(fd);
        snprintf(path, sizeof(path), "%s/store/segment-%08x", DIR, i);
        fd = open(path, O_RDONLY);
    }
}

static double read_cold(struct work *work, unsigned repeats, void (*read)(void *))
{
    double best = 0;
    unsigned i;

    for (i = 0; i < repeats; i++) {
        double took;

        drop_cache(work);
        took = kvb_best_ns(1, read, work);
        best = i == 0 || took < best ? took : best;
    }
    return best;
}

static void measure_io(struct kvb_table *table, struct work *work, size_t size)
{
    static const char *const MODES[] = {"plain", "direct", "uring"};
    unsigned repeats = table->quick ? 2 : 4;
    double floor;
    size_t i;

    work->bytes = PART_BYTES[size];
    work->count = (table->quick ? 32u << 20 : 128u << 20) / work->bytes;
    work->batch = 16;
    work->each = false;
    work->fd = open_raw();
    raw_write(work);
    work->store = open_store("none");
    store_put(work);
    work->apart = true;
    floor = read_cold(work, repeats, raw_read);
    for (i = 0; i < 3; i++) {
        char what[96];
        char tail[32];

        kvg_store_close(work->store);
        snprintf(tail, sizeof(tail), "none&io=%s", MODES[i]);
        work->store = open_store(tail);
        snprintf(what, sizeof(what), "file: get, %s parts, 16 a call, cold, io=%s",
            SIZE_NAMES[size], MODES[i]);
        kvb_row(table, &(struct kvb_row){.what = what,
                           .figure = rate(work, read_cold(work, repeats, store_get)),
                           .unit = "B/s",
                           .floor = rate(work, floor),
                           .floor_is = "pread of the same bytes, not in the page cache",
                           .more_is_better = true});
    }
    work->apart = false;
    finish(work);
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
    static struct kvg_store_piece piece = {"0123456789abcdef", 16};
    static struct kvg_store_part parts[BATCH];
    static struct kvg_store_group groups[BATCH];
    size_t done;
    size_t i;

    for (done = 0; done < count; done += BATCH) {
        for (i = 0; i < BATCH; i++) {
            const char *key = KEYS[done + i];

            parts[i] = (struct kvg_store_part){{key, strlen(key)}, &piece, 1};
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

    asking->store = open_store("none");
}

static void measure_index(struct kvb_table *table)
{
    static struct asking asking;
    size_t count = table->quick ? 131072 : 1 << 20;
    char what[64];
    double floor = 0;
    double figure = 0;
    size_t i;

    make_keys(count);
    asking.store = open_store("none");
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
    remove_store();
}

static void run(struct kvb_table *table)
{
    static struct work work;
    const char *where = getenv("KVB_STORE_DIR");
    size_t i;

    snprintf(DIR, sizeof(DIR), "%s/kvgraft-bench-XXXXXX", where == NULL ? "/tmp" : where);
    if (mkdtemp(DIR) == NULL)
        exit(1);
    /* Aligned, as an engine's memory is: the kernel's copy is slower otherwise. */
    work.data = aligned_alloc(4096, PART_BYTES[SIZES - 1]);
    work.out = aligned_alloc(4096, 16 * PART_BYTES[SIZES - 1]);
    if (work.data == NULL || work.out == NULL)
        exit(1);
    make_keys(PARTS_MAX);
    for (i = 0; i < PART_BYTES[SIZES - 1]; i++)
        work.data[i] = (uint8_t)(i * 2654435761u >> 13);
    memset(work.out, 1, 16 * PART_BYTES[SIZES - 1]);
    for (i = 0; i < SIZES; i++)
        measure_size(table, &work, i);
    measure_each(table, &work);
    measure_io(table, &work, 1);
    measure_io(table, &work, 2);
    measure_index(table);
    free(work.data);
    free(work.out);
    free(KEYS);
    rmdir(DIR);
}

KVB_MAIN(store, "Stores", run)
