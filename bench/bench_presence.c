/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* The presence index with ten million pages in it (--quick: one million): look-ups against the
 * page keys they need, memory a page as it grows, events a second, readers while the writer runs,
 * dump and load.
 *
 * Everything goes through the public functions: object keys as text in, page keys as bytes in.
 */
#include "bench.h"

#include <kvgraft/page.h>
#include <kvgraft/presence.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

enum {
    PROMPT_PAGES = 2048,
    PAGE_TOKENS = 64,
    PROMPTS = 64,
    LINE = 64,
    AHEAD = 16,
    LATENCIES_MAX = 200000
};

struct world {
    struct kvg_presence *index;
    struct kvg_layout *layout;
    struct kvg_presence_view *view;
    struct kvg_presence_reader *reader;
    uint64_t background; /* Pages besides the prompts'. */
    uint32_t *tokens[PROMPTS];
    struct kvg_key *keys[PROMPTS];
    struct kvg_key *fresh; /* Keys of one prompt, made anew. */
    unsigned prompt;
    unsigned char *lines; /* For the floor: as many cache lines as the table has. */
    uint64_t line_count;
    uint64_t sum;
};

static void must(bool condition, const char *what)
{
    if (!condition) {
        fprintf(stderr, "bench_presence: %s\n", what);
        exit(1);
    }
}

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 32)) * UINT64_C(0xd6e8feb86659fd93);
    x = (x ^ (x >> 32)) * UINT64_C(0xd6e8feb86659fd93);
    return x ^ (x >> 32);
}

/* Keys of pages that nobody hashes here: as random as real ones. */
static struct kvg_key background_key(uint64_t number)
{
    struct kvg_key key;
    uint64_t i;

    for (i = 0; i < 4; i++) {
        uint64_t word = mix(number * 4 + i + 1);

        memcpy(key.bytes + i * 8, &word, sizeof(word));
    }
    return key;
}

static bool tell(
    struct world *world, const struct kvg_key *key, uint32_t part, bool is_stored)
{
    char text[KVG_OBJECT_KEY_BYTES_MAX + 1];
    struct kvg_str object = {text, kvg_layout_object_key(world->layout, key, part, text)};
    struct kvg_str tenant = {NULL, 0};

    return is_stored ? kvg_presence_stored(world->index, tenant, object, KVG_MEDIUM_CPU)
                     : kvg_presence_removed(world->index, tenant, object, KVG_MEDIUM_CPU);
}

static void open_world(struct world *world, uint32_t tp_size, size_t memory_bytes_max)
{
    struct kvg_layout_config config = {.struct_bytes = sizeof(config),
        .rule = {.page_size = PAGE_TOKENS},
        .tp_size = tp_size};
    struct kvg_presence_options options = {.struct_bytes = sizeof(options),
        .memory_bytes_max = memory_bytes_max,
        .seed = 0x5eed};

    *world = (struct world){0};
    must(kvg_layout_new(kvg_alloc_default(), &config, NULL, &world->layout) == KVG_OK,
        "no layout");
    must(kvg_presence_new(kvg_alloc_default(), &options, NULL, &world->index) == KVG_OK,
        "no index");
    must(kvg_presence_view_new(world->index, world->layout, (struct kvg_str){NULL, 0},
             NULL, &world->view) == KVG_OK,
        "no view");
    must(kvg_presence_reader_open(world->index, &world->reader) == KVG_OK, "no reader");
}

static void close_world(struct world *world)
{
    unsigned i;

    kvg_presence_reader_close(world->reader);
    kvg_presence_view_free(world->view);
    kvg_presence_free(world->index);
    kvg_layout_free(world->layout);
    for (i = 0; i < PROMPTS; i++) {
        free(world->tokens[i]);
        free(world->keys[i]);
    }
    free(world->fresh);
    free(world->lines);
}

static struct kvg_presence_stats stats_of(const struct world *world)
{
    struct kvg_presence_stats stats;

    kvg_presence_stats(world->index, &stats);
    return stats;
}

/* Memory as the index grows ----------------------------------------------------------------- */

static void measure_memory(struct kvb_table *table, uint32_t tp_size, uint64_t pages)
{
    struct world world;
    uint32_t parts = 2 * tp_size;
    double worst = 0;
    double sum = 0;
    double at_70 = 0;
    double nearest = 1;
    uint64_t samples = 0;
    uint64_t page;
    char what[80];
    char note[120];

    open_world(&world, tp_size, (size_t)4 << 30);
    for (page = 0; page < pages; page++) {
        struct kvg_key key = background_key(page);
        struct kvg_presence_stats stats;
        double bytes;
        double fill;
        uint32_t part;

        for (part = 0; part < parts; part++)
            (void)tell(&world, &key, part, true);
        if (page < 100000 || page % 1000 != 0)
            continue;
        stats = stats_of(&world);
        bytes = (double)stats.memory_bytes / (double)stats.pages;
        fill = (double)stats.pages / (double)stats.slots;
        worst = bytes > worst ? bytes : worst;
        sum += bytes;
        samples++;
        if ((fill > 0.7 ? fill - 0.7 : 0.7 - fill) < nearest) {
            nearest = fill > 0.7 ? fill - 0.7 : 0.7 - fill;
            at_70 = bytes;
        }
    }
    snprintf(what, sizeof(what), "memory a page at 70 %% fill, TP%u", tp_size);
    snprintf(note, sizeof(note),
        "everything counted; growing to %llu pages: mean %.1f, worst %.1f bytes a page",
        (unsigned long long)pages, sum / (double)samples, worst);
    kvb_row(table, &(struct kvb_row){.what = what,
                       .figure = at_70,
                       .unit = "bytes",
                       .floor = 16 + parts * 2 / 8.0,
                       .floor_is = "16 key bytes and two bits a part",
                       .limit = 48,
                       .note = note});
    close_world(&world);
}

/* Look-ups ---------------------------------------------------------------------------------- */

static void make_prompts(struct world *world)
{
    struct kvg_page_rule rule = {.page_size = PAGE_TOKENS};
    size_t tokens = (size_t)PROMPT_PAGES * PAGE_TOKENS;
    unsigned i;
    size_t t;

    for (i = 0; i < PROMPTS; i++) {
        world->tokens[i] = malloc(tokens * sizeof(uint32_t));
        world->keys[i] = malloc(PROMPT_PAGES * sizeof(struct kvg_key));
        must(world->tokens[i] != NULL && world->keys[i] != NULL, "no memory");
        for (t = 0; t < tokens; t++)
            world->tokens[i][t] = (uint32_t)mix(i * tokens + t) % 150000;
        must(kvg_page_keys(&rule, NULL, world->tokens[i], tokens, world->keys[i],
                 PROMPT_PAGES) == PROMPT_PAGES,
            "no keys");
    }
    world->fresh = malloc(PROMPT_PAGES * sizeof(struct kvg_key));
    must(world->fresh != NULL, "no memory");
}

static void keys_alone(void *context)
{
    struct world *world = context;
    struct kvg_page_rule rule = {.page_size = PAGE_TOKENS};

    world->prompt = (world->prompt + 1) % PROMPTS;
    (void)kvg_page_keys(&rule, NULL, world->tokens[world->prompt],
        (size_t)PROMPT_PAGES * PAGE_TOKENS, world->fresh, PROMPT_PAGES);
    kvb_keep(world->fresh);
}

static void ask(struct world *world, const struct kvg_key *keys, uint32_t expected)
{
    struct kvg_range ranges[16];
    struct kvg_lookup lookup = {.view = world->view,
        .keys = keys,
        .key_count = PROMPT_PAGES,
        .ranges = ranges,
        .range_max = 16};

    kvg_presence_lookup(world->reader, &lookup, 1);
    must(lookup.contiguous == expected, "a wrong answer");
}

static void keys_and_lookup(void *context)
{
    struct world *world = context;

    keys_alone(world);
    ask(world, world->fresh, PROMPT_PAGES);
}

static void lookup_alone(void *context)
{
    struct world *world = context;

    world->prompt = (world->prompt + 1) % PROMPTS;
    ask(world, world->keys[world->prompt], PROMPT_PAGES);
}

static void lookup_absent(void *context)
{
    struct world *world = context;
    uint64_t i;

    world->prompt++;
    for (i = 0; i < PROMPT_PAGES; i++)
        world->fresh[i] =
            background_key(UINT64_C(1) << 40 | (uint64_t)world->prompt << 20 | i);
    ask(world, world->fresh, 0);
}

static void make_absent_keys(void *context)
{
    struct world *world = context;
    uint64_t i;

    world->prompt++;
    for (i = 0; i < PROMPT_PAGES; i++)
        world->fresh[i] =
            background_key(UINT64_C(1) << 41 | (uint64_t)world->prompt << 20 | i);
    kvb_keep(world->fresh);
}

/* One random cache line a page, asked for ahead like the look-up does. */
static void random_lines(void *context)
{
    struct world *world = context;
    uint64_t at[AHEAD];
    uint64_t sum = 0;
    uint64_t i;

    world->prompt++;
    for (i = 0; i < PROMPT_PAGES + AHEAD; i++) {
        if (i >= AHEAD)
            sum += world->lines[at[i % AHEAD] * LINE];
        at[i % AHEAD] = mix((uint64_t)world->prompt << 32 | i) % world->line_count;
        __builtin_prefetch(world->lines + at[i % AHEAD] * LINE);
    }
    world->sum += sum;
    kvb_keep(&world->sum);
}

static void measure_lookups(struct kvb_table *table, struct world *world)
{
    unsigned repeats = table->quick ? 200 : 1000;
    double keys = kvb_best_ns(repeats, keys_alone, world);
    double both = kvb_best_ns(repeats, keys_and_lookup, world);
    double alone = kvb_best_ns(repeats, lookup_alone, world) / PROMPT_PAGES;
    double absent_keys = kvb_best_ns(repeats, make_absent_keys, world);
    double absent =
        (kvb_best_ns(repeats, lookup_absent, world) - absent_keys) / PROMPT_PAGES;
    double lines = kvb_best_ns(repeats, random_lines, world) / PROMPT_PAGES;

    kvb_row(
        table, &(struct kvb_row){.what = "keys and look-up, 2,048 pages, TP8, cold memo",
                   .figure = both,
                   .unit = "ns",
                   .floor = keys,
                   .floor_is = "the page keys alone",
                   .target = 1.25});
    kvb_row(table, &(struct kvb_row){.what = "look-up alone, a present page",
                       .figure = alone,
                       .unit = "ns",
                       .floor = lines,
                       .floor_is = "one random cache line of as much memory"});
    kvb_row(table, &(struct kvb_row){.what = "look-up alone, an absent page",
                       .figure = absent,
                       .unit = "ns",
                       .floor = lines,
                       .floor_is = "one random cache line of as much memory"});
}

/* Events ------------------------------------------------------------------------------------ */

/* What an event costs that the index does not: its object key as text. */
static void name_objects(void *context)
{
    struct world *world = context;
    uint64_t i;

    for (i = 0; i < 100000; i++) {
        struct kvg_key key = background_key(i);
        char text[KVG_OBJECT_KEY_BYTES_MAX + 1];

        world->sum += kvg_layout_object_key(world->layout, &key, i % 2, text);
        kvb_keep(text);
    }
}

static void measure_events(struct kvb_table *table, struct world *world, uint64_t pages)
{
    double name_ns = kvb_best_ns(5, name_objects, world) / 100000;
    uint64_t events = 0;
    uint64_t began = kvb_now_ns();
    uint64_t page;
    double took;
    unsigned p;
    uint32_t part;

    for (page = 0; page < pages; page++) {
        struct kvg_key key = background_key(page);

        (void)tell(world, &key, 0, true);
        (void)tell(world, &key, 1, true);
        events += 2;
    }
    took = (double)(kvb_now_ns() - began) - name_ns * (double)events;
    kvb_row(table, &(struct kvb_row){.what = "stored, new random pages, two parts each",
                       .figure = (double)events * 1e9 / took,
                       .unit = "events/s",
                       .more_is_better = true,
                       .note = "up to all pages; making the object keys taken off"});

    began = kvb_now_ns();
    events = 0;
    for (p = 0; p < PROMPTS; p++)
        for (part = 0; part < 16; part++)
            for (page = 0; page < PROMPT_PAGES; page++, events++)
                (void)tell(world, &world->keys[p][page], part, true);
    took = (double)(kvb_now_ns() - began) - name_ns * (double)events;
    kvb_row(table,
        &(struct kvb_row){.what = "stored, prompts rank by rank, TP8, all resident",
            .figure = (double)events * 1e9 / took,
            .unit = "events/s",
            .more_is_better = true});

    began = kvb_now_ns();
    events = 0;
    for (page = 0; page < pages; page += 10) {
        struct kvg_key key = background_key(page);

        (void)tell(world, &key, 0, false);
        (void)tell(world, &key, 1, false);
        events += 2;
    }
    took = (double)(kvb_now_ns() - began) - name_ns * (double)events;
    kvb_row(table, &(struct kvb_row){.what = "removed, random pages, all resident",
                       .figure = (double)events * 1e9 / took,
                       .unit = "events/s",
                       .more_is_better = true});
    for (page = 0; page < pages; page += 10) { /* And back. */
        struct kvg_key key = background_key(page);

        (void)tell(world, &key, 0, true);
        (void)tell(world, &key, 1, true);
    }
}

static void measure_churn(struct kvb_table *table)
{
    const uint64_t pages = table->quick ? 1000000 : 4000000;
    struct world world;
    double name_ns;
    uint64_t began;
    uint64_t page;
    double took;
    char note[120];

    open_world(&world, 8, (size_t)32 << 20);
    name_ns = kvb_best_ns(5, name_objects, &world) / 100000;
    for (page = 0; page < 1000000; page++) {
        struct kvg_key key = background_key(page);

        (void)tell(&world, &key, 0, true);
    }
    began = kvb_now_ns();
    for (; page < 1000000 + pages; page++) {
        struct kvg_key key = background_key(page);

        if (page % 10000 == 0)
            kvg_presence_set_time(world.index, page / 10000);
        (void)tell(&world, &key, 0, true);
    }
    took = (double)(kvb_now_ns() - began) - name_ns * (double)pages;
    snprintf(note, sizeof(note), "32 MiB; %llu pages gave way, %llu held",
        (unsigned long long)stats_of(&world).evicted_pages,
        (unsigned long long)stats_of(&world).pages);
    kvb_row(table, &(struct kvb_row){.what = "stored at the limit, each a new page",
                       .figure = (double)pages * 1e9 / took,
                       .unit = "events/s",
                       .more_is_better = true,
                       .note = note});
    close_world(&world);
}

/* Readers while the writer runs ------------------------------------------------------------- */

struct reading {
    struct world *world;
    struct kvg_presence_reader *reader;
    atomic_bool stop;
    double *latencies;
    size_t count;
    uint64_t retries;
};

static void *read_on(void *context)
{
    struct reading *reading = context;
    struct world *world = reading->world;
    unsigned prompt = 0;

    while (!atomic_load_explicit(&reading->stop, memory_order_relaxed) &&
           reading->count < LATENCIES_MAX) {
        struct kvg_lookup lookup = {
            .view = world->view, .keys = world->keys[prompt], .key_count = PROMPT_PAGES};
        uint64_t began = kvb_now_ns();

        kvg_presence_lookup(reading->reader, &lookup, 1);
        reading->latencies[reading->count++] = (double)(kvb_now_ns() - began);
        reading->retries += lookup.retries;
        prompt = (prompt + 1) % PROMPTS;
    }
    return NULL;
}

static int by_size(const void *a, const void *b)
{
    double left = *(const double *)a;
    double right = *(const double *)b;

    return (left > right) - (left < right);
}

static double percentile(struct reading *reading, double part)
{
    qsort(reading->latencies, reading->count, sizeof(double), by_size);
    return reading->latencies[(size_t)((double)(reading->count - 1) * part)];
}

/* One reader for a while, beside a writer or not.  Returns events a second. */
static double read_beside(struct reading *reading, bool writes, uint64_t milliseconds)
{
    struct world *world = reading->world;
    uint64_t began = kvb_now_ns();
    uint64_t events = 0;
    uint64_t page = 0;
    pthread_t thread;

    reading->count = 0;
    reading->retries = 0;
    atomic_store(&reading->stop, false);
    must(pthread_create(&thread, NULL, read_on, reading) == 0, "no thread");
    while (kvb_now_ns() - began < milliseconds * 1000000) {
        if (!writes) {
            struct timespec pause = {.tv_nsec = 1000000};

            nanosleep(&pause, NULL);
            continue;
        }
        for (uint64_t i = 0; i < 256; i++, events += 2) {
            struct kvg_key key = background_key(UINT64_C(1) << 50 | page);

            (void)tell(world, &key, 0, true);
            key = background_key(UINT64_C(1) << 50 | (page - 20000));
            (void)tell(world, &key, 0, false);
            page++;
        }
    }
    atomic_store(&reading->stop, true);
    pthread_join(thread, NULL);
    return (double)events * 1e9 / (double)(kvb_now_ns() - began);
}

static void measure_readers(struct kvb_table *table, struct world *world)
{
    struct reading reading = {.world = world, .reader = world->reader};
    uint64_t milliseconds = table->quick ? 500 : 4000;
    double idle[2];
    double rate;
    char note[160];

    reading.latencies = malloc(LATENCIES_MAX * sizeof(double));
    must(reading.latencies != NULL, "no memory");
    (void)read_beside(&reading, false, milliseconds);
    idle[0] = percentile(&reading, 0.5);
    idle[1] = percentile(&reading, 0.99);
    rate = read_beside(&reading, true, milliseconds);
    snprintf(note, sizeof(note), "writer at %.1f M events/s; %llu look-ups, %llu retries",
        rate / 1e6, (unsigned long long)reading.count,
        (unsigned long long)reading.retries);
    kvb_row(
        table, &(struct kvb_row){.what = "reader's p50, 2,048 pages, writer at full rate",
                   .figure = percentile(&reading, 0.5),
                   .unit = "ns",
                   .floor = idle[0],
                   .floor_is = "the same with the writer idle"});
    kvb_row(
        table, &(struct kvb_row){.what = "reader's p99, 2,048 pages, writer at full rate",
                   .figure = percentile(&reading, 0.99),
                   .unit = "ns",
                   .floor = idle[1],
                   .floor_is = "the same with the writer idle",
                   .note = note});
    free(reading.latencies);
}

/* Dump and load ------------------------------------------------------------------------------ */

struct dump {
    unsigned char *bytes;
    size_t end;
    size_t room;
    size_t at;
};

static bool write_dump(void *context, const void *bytes, size_t byte_count)
{
    struct dump *dump = context;

    if (dump->end + byte_count > dump->room) {
        dump->room = (dump->end + byte_count) * 2;
        dump->bytes = realloc(dump->bytes, dump->room);
        must(dump->bytes != NULL, "no memory");
    }
    memcpy(dump->bytes + dump->end, bytes, byte_count);
    dump->end += byte_count;
    return true;
}

static bool read_dump(void *context, void *bytes, size_t byte_max, size_t *got)
{
    struct dump *dump = context;
    size_t left = dump->end - dump->at;

    *got = byte_max < left ? byte_max : left;
    memcpy(bytes, dump->bytes + dump->at, *got);
    dump->at += *got;
    return true;
}

/* What a load cannot do without: each byte read, and its checksum, 4 KiB at a time. */
static double read_and_checksum_ns(struct dump *dump)
{
    uint64_t began = kvb_now_ns();
    unsigned char block[4096];
    uint8_t digest[32];
    size_t got = 1;

    for (dump->at = 0; got > 0;) {
        (void)read_dump(dump, block, sizeof(block), &got);
        kvg_sha256(block, got, digest);
        kvb_keep(digest);
    }
    dump->at = 0;
    return (double)(kvb_now_ns() - began);
}

static void measure_dump(struct kvb_table *table, struct world *world)
{
    struct kvg_presence_options options = {.struct_bytes = sizeof(options),
        .memory_bytes_max = (size_t)2 << 30,
        .seed = 0xface};
    struct kvg_presence_stats before = stats_of(world);
    double pages = (double)before.pages;
    struct kvg_presence_stats after;
    struct kvg_presence *copy;
    struct dump dump = {0};
    uint64_t began = kvb_now_ns();
    double floor_ns;
    double took;
    char note[120];

    must(kvg_presence_dump(world->index, write_dump, &dump) == KVG_OK, "no dump");
    took = (double)(kvb_now_ns() - began);
    floor_ns = read_and_checksum_ns(&dump);
    kvb_row(table, &(struct kvb_row){.what = "dump, a page",
                       .figure = took / pages,
                       .unit = "ns",
                       .floor = floor_ns / pages,
                       .floor_is = "the checksum over the dump's bytes"});
    must(kvg_presence_new(kvg_alloc_default(), &options, NULL, &copy) == KVG_OK,
        "no index");
    floor_ns = read_and_checksum_ns(&dump);
    began = kvb_now_ns();
    must(kvg_presence_load(copy, read_dump, &dump, NULL) == KVG_OK, "no load");
    took = (double)(kvb_now_ns() - began);
    kvg_presence_stats(copy, &after);
    snprintf(note, sizeof(note), "%.2f M pages/s, into a table with another seed",
        pages * 1e3 / took);
    kvb_row(table, &(struct kvb_row){.what = "load, a page",
                       .figure = took / pages,
                       .unit = "ns",
                       .floor = floor_ns / pages,
                       .floor_is = "reading the dump's bytes, and their checksum",
                       .note = note});
    kvb_row(table, &(struct kvb_row){.what = "memory a page after the load",
                       .figure = (double)after.memory_bytes / (double)after.pages,
                       .unit = "bytes",
                       .floor = (double)before.memory_bytes / pages,
                       .floor_is = "the same before the dump",
                       .target = 1.1});
    kvg_presence_free(copy);
    free(dump.bytes);
}

static void measure_passes(struct kvb_table *table, struct world *world, uint64_t pages)
{
    struct kvg_presence_listing_result result;
    struct kvg_str tenant = {NULL, 0};
    uint64_t began;
    uint64_t longest = 0;
    bool is_done = false;
    char note[120];

    must(kvg_presence_listing_begin(world->index, tenant) == KVG_OK, "no listing");
    kvg_presence_listing_abort(world->index);
    began = kvb_now_ns();
    must(kvg_presence_listing_begin(world->index, tenant) == KVG_OK, "no listing");
    while (!is_done) {
        uint64_t step = kvb_now_ns();

        is_done = kvg_presence_listing_end(world->index, 4096, &result);
        step = kvb_now_ns() - step;
        longest = step > longest ? step : longest;
    }
    snprintf(note, sizeof(note), "an empty listing, so all go; longest step %.2f ms",
        (double)longest / 1e6);
    kvb_row(table, &(struct kvb_row){.what = "end of a listing, a page",
                       .figure = (double)(kvb_now_ns() - began) / (double)pages,
                       .unit = "ns",
                       .note = note});
}

static void run(struct kvb_table *table)
{
    const uint64_t pages = table->quick ? 1000000 : 10000000;
    struct world world;
    uint64_t i;

    measure_memory(table, 1, table->quick ? 500000 : 3000000);
    measure_memory(table, 8, table->quick ? 200000 : 1000000);
    open_world(&world, 8, (size_t)2 << 30);
    make_prompts(&world);
    measure_events(table, &world, pages);
    world.line_count = stats_of(&world).memory_bytes / LINE;
    world.lines = malloc(world.line_count * LINE);
    must(world.lines != NULL, "no memory");
    for (i = 0; i < world.line_count * LINE; i += LINE)
        world.lines[i] = (unsigned char)i;
    kvb_row(table, &(struct kvb_row){.what = "resident pages",
                       .figure = (double)stats_of(&world).pages,
                       .unit = "pages",
                       .note = "in one index, for all that follows"});
    measure_lookups(table, &world);
    measure_readers(table, &world);
    measure_dump(table, &world);
    measure_passes(table, &world, stats_of(&world).pages);
    close_world(&world);
    measure_churn(table);
}

KVB_MAIN(presence, "The presence index", run)
