/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* The presence index against a reference that is obviously right: for every object that there
 * could be, what is stored on which medium, in a plain array.  Random operations; after each the
 * invariants, after some a question whose answer is worked out from its definition.  A failing
 * list is shrunk and printed with its seed.  KVG_SEED and KVG_ROUNDS run others. */
#include <kvgraft/layout.h>
#include <kvgraft/presence.h>

#include "base/fmt.h"
#include "presence/index.h"
#include "test.h"

#define TENANTS 2u
#define PREFIXES 2u
#define KEYS 40u
#define LAYOUTS 5u
#define SUFFIXES_MAX 128u
#define CHAIN_MAX 48u
#define OPERATIONS 400u

static const char *const TENANT[TENANTS] = {"default", "t1"};
static const char *const PREFIX[PREFIXES] = {"", "tag_m"};

/* The universe: layouts, and all suffixes any of them has. */
static struct kvg_layout *layouts[LAYOUTS][PREFIXES];
static struct kvg_str suffixes[SUFFIXES_MAX];
static uint32_t suffix_count;
static struct kvg_key keys[KEYS];

static uint32_t suffix_number(struct kvg_str suffix)
{
    uint32_t i;

    for (i = 0; i < suffix_count; i++)
        if (kvi_str_equal(suffixes[i], suffix))
            return i;
    CHECK(suffix_count < SUFFIXES_MAX);
    suffixes[suffix_count] = suffix;
    return suffix_count++;
}

static void make_layouts(void)
{
    static const uint32_t TP[3] = {1, 4, 40};
    struct kvg_str whole[2] = {kvi_str("__a"), kvi_str("__b")};
    struct kvg_str two[2] = {kvi_str("__s"), kvi_str("__t")};
    struct kvg_str three[1] = {kvi_str("__u")};
    struct kvg_layout_pool pools[3] = {{.suffixes = whole, .suffix_count = 2},
        {.suffixes = two,
            .suffix_count = 2,
            .policy = KVG_POOL_TRAILING_PAGES,
            .trailing_pages = 2},
        {.suffixes = three,
            .suffix_count = 1,
            .policy = KVG_POOL_TRAILING_PAGES,
            .trailing_pages = 3}};
    uint32_t l;
    uint32_t p;
    uint32_t part;

    for (l = 0; l < LAYOUTS; l++)
        for (p = 0; p < PREFIXES; p++) {
            struct kvg_layout_config config = {
                .struct_bytes = sizeof(config), .rule = {.page_size = 4}};

            config.key_prefix = kvi_str(PREFIX[p]);
            config.tp_size = l < 3 ? TP[l] : 1;
            config.pools = l == 3 ? pools : pools + 1;
            config.pool_count = l < 3 ? 0 : l == 3 ? 3 : 2;
            CHECK_EQ(kvg_layout_new(kvg_alloc_default(), &config, NULL, &layouts[l][p]),
                KVG_OK);
            for (part = 0; part < kvg_layout_part_count(layouts[l][p]); part++)
                (void)suffix_number(kvg_layout_suffix(layouts[l][p], part));
        }
    for (l = 0; l < KEYS; l++)
        for (p = 0; p < KVG_KEY_BYTES; p++)
            keys[l].bytes[p] = (uint8_t)(l * 37 + p * 11 + (p > 7 ? l >> 3 : 0));
}

/* What is stored: STATE_ bits for every object of the universe. */
struct model {
    uint8_t state[TENANTS][PREFIXES][KEYS][SUFFIXES_MAX];
    bool pass;
    bool cleared;
    bool doubtful; /* The pass began with something lost. */
    uint32_t pass_tenant;
};

enum kind {
    OP_STORED,
    OP_REMOVED,
    OP_STORE_PAGE,
    OP_REMOVE_PAGE,
    OP_CLEARED,
    OP_BEGIN,
    OP_LISTED,
    OP_LIST_PAGE,
    OP_END_STEP,
    OP_END,
    OP_ABORT,
    OP_TIME,
    OP_LOOKUP,
    OP_KINDS
};
static const char *const KIND_NAME[OP_KINDS] = {"stored", "removed", "store_page",
    "remove_page", "cleared", "begin", "listed", "list_page", "end_step", "end", "abort",
    "time", "lookup"};

struct op {
    enum kind kind;
    uint32_t tenant, prefix, key, suffix, layout;
    enum kvg_medium medium;
    uint64_t random;
};

/* One run. */
struct run {
    struct kvg_presence *index;
    struct kvg_presence_reader *reader;
    struct kvg_presence_view *views[TENANTS][LAYOUTS][PREFIXES];
    struct model model;
    bool is_mutant; /* Negative control: some removals do not reach the index. */
    bool
        sweeping; /* The end of a pass has begun: the model cannot follow step by step. */
    char why[200];
};

static struct kvg_str object_key(const struct op *op, uint32_t suffix, char *buffer)
{
    struct kvi_text text;
    char hex[KVG_KEY_HEX_BYTES];

    kvg_key_to_hex(&keys[op->key], hex);
    kvi_text_init(&text, buffer, KVG_OBJECT_KEY_BYTES_MAX + 1);
    kvi_text_str(&text, PREFIX[op->prefix]);
    kvi_text_str(&text, PREFIX[op->prefix][0] != '\0' ? "_" : "");
    kvi_text_str(&text, hex);
    kvi_text_bytes(&text, suffixes[suffix]);
    return (struct kvg_str){buffer, text.bytes};
}

static void settle(struct run *run, uint32_t tenant, uint8_t *state)
{
    if (run->model.pass && run->model.pass_tenant == tenant)
        *state |= STATE_SETTLED;
}

/* Media known before a listing that began in doubt give way to the first event in it. */
static void doubt(struct run *run, uint32_t tenant, uint8_t *state)
{
    if (run->model.pass && run->model.doubtful && run->model.pass_tenant == tenant &&
        !(*state & STATE_SETTLED))
        *state &= (uint8_t)~STATE_PRESENT;
}

static void apply_stored(struct run *run, const struct op *op, uint32_t suffix)
{
    char buffer[KVG_OBJECT_KEY_BYTES_MAX + 1];
    uint8_t *state = &run->model.state[op->tenant][op->prefix][op->key][suffix];

    doubt(run, op->tenant, state);
    *state |= op->medium == KVG_MEDIUM_DISK ? STATE_DISK : STATE_CPU;
    settle(run, op->tenant, state);
    CHECK(kvg_presence_stored(run->index, kvi_str(TENANT[op->tenant]),
        object_key(op, suffix, buffer), op->medium));
}

static void apply_removed(struct run *run, const struct op *op, uint32_t suffix)
{
    char buffer[KVG_OBJECT_KEY_BYTES_MAX + 1];
    uint8_t *state = &run->model.state[op->tenant][op->prefix][op->key][suffix];
    unsigned drop;

    drop = op->medium == KVG_MEDIUM_DISK      ? STATE_DISK
           : op->medium == KVG_MEDIUM_UNKNOWN ? STATE_PRESENT
                                              : STATE_CPU;
    doubt(run, op->tenant, state);
    *state &= (uint8_t)((*state & drop) == 0 ? ~STATE_PRESENT : ~drop);
    settle(run, op->tenant, state);
    if (run->is_mutant && op->random % 8 == 0)
        return;
    CHECK(kvg_presence_removed(run->index, kvi_str(TENANT[op->tenant]),
        object_key(op, suffix, buffer), op->medium));
}

static void apply_listed(struct run *run, const struct op *op, uint32_t suffix)
{
    char buffer[KVG_OBJECT_KEY_BYTES_MAX + 1];
    struct model *model = &run->model;
    uint8_t *state = &model->state[model->pass_tenant][op->prefix][op->key][suffix];

    if (!model->pass || run->sweeping)
        return;
    if (!model->cleared && !(*state & STATE_SETTLED)) {
        if (!(*state & STATE_PRESENT))
            *state |= STATE_CPU;
        else if (model->doubtful && (*state & STATE_PRESENT) == STATE_PRESENT)
            *state &= (uint8_t)~STATE_DISK;
        *state |= STATE_SETTLED;
    }
    CHECK(kvg_presence_listing_key(run->index, object_key(op, suffix, buffer)));
}

static void apply_cleared(struct run *run, const struct op *op)
{
    bool all = op->random % 4 == 0;
    uint32_t t;

    for (t = 0; t < TENANTS; t++)
        if (all || t == op->tenant)
            memset(run->model.state[t], 0, sizeof(run->model.state[t]));
    if (run->model.pass && (all || run->model.pass_tenant == op->tenant))
        run->model.cleared = true;
    kvg_presence_cleared(
        run->index, all ? (struct kvg_str){NULL, 0} : kvi_str(TENANT[op->tenant]));
}

static void apply_begin(struct run *run, const struct op *op)
{
    bool doubtful = op->random % 2 == 0;
    kvg_err err;

    kvg_presence_set_confidence(run->index, kvi_str(TENANT[op->tenant]),
        doubtful ? KVG_CONFIDENCE_SUSPECT : KVG_CONFIDENCE_FRESH);
    err = kvg_presence_listing_begin(run->index, kvi_str(TENANT[op->tenant]));
    CHECK_EQ(err, run->model.pass ? KVG_EBUSY : KVG_OK);
    if (err != KVG_OK)
        return;
    run->model.pass = true;
    run->model.cleared = false;
    run->model.doubtful = doubtful;
    run->model.pass_tenant = op->tenant;
}

static void forget_settled(struct run *run, bool drop)
{
    uint32_t t, p, k, s;

    for (t = 0; t < TENANTS; t++)
        for (p = 0; p < PREFIXES; p++)
            for (k = 0; k < KEYS; k++)
                for (s = 0; s < suffix_count; s++) {
                    uint8_t *state = &run->model.state[t][p][k][s];

                    if (drop && t == run->model.pass_tenant && !(*state & STATE_SETTLED))
                        *state = 0;
                    *state &= STATE_PRESENT;
                }
}

static void apply_end(struct run *run)
{
    struct kvg_presence_listing_result result;

    while (!kvg_presence_listing_end(run->index, 1, &result))
        ;
    if (run->model.pass)
        forget_settled(run, true);
    run->model.pass = false;
}

/* The answer by its definition. */
static uint32_t medium_mask(enum kvg_medium medium)
{
    return medium == KVG_MEDIUM_CPU    ? STATE_CPU
           : medium == KVG_MEDIUM_DISK ? STATE_DISK
                                       : STATE_PRESENT;
}

static bool has_parts(struct run *run, const struct op *op, const uint32_t *chain,
    uint32_t page, uint32_t trailing, enum kvg_medium medium)
{
    const struct kvg_layout *layout = layouts[op->layout][op->prefix];
    uint32_t part;

    for (part = 0; part < kvg_layout_part_count(layout); part++) {
        uint32_t s = suffix_number(kvg_layout_suffix(layout, part));

        if (kvg_layout_part_trailing(layout, part) == trailing &&
            !(run->model.state[op->tenant][op->prefix][chain[page]][s] &
                medium_mask(medium)))
            return false;
    }
    return true;
}

static bool loadable(struct run *run, const struct op *op, const uint32_t *chain,
    uint32_t start, uint32_t end, enum kvg_medium medium)
{
    static const uint32_t TRAILING[2] = {2, 3};
    uint32_t page;
    uint32_t i;

    for (page = start; page < end; page++)
        if (!has_parts(run, op, chain, page, 0, medium))
            return false;
    for (i = 0; i < 2; i++)
        for (page = end < start + TRAILING[i] ? start : end - TRAILING[i]; page < end;
             page++)
            if (!has_parts(run, op, chain, page, TRAILING[i], medium))
                return false;
    return true;
}

static bool is_present(
    struct run *run, const struct op *op, const uint32_t *chain, uint32_t page)
{
    return op->layout == 4 ? has_parts(run, op, chain, page, 2, KVG_MEDIUM_UNKNOWN) &&
                                 has_parts(run, op, chain, page, 3, KVG_MEDIUM_UNKNOWN)
                           : has_parts(run, op, chain, page, 0, KVG_MEDIUM_UNKNOWN);
}

static uint32_t missing_parts(
    struct run *run, const struct op *op, const uint32_t *chain, uint32_t page)
{
    const struct kvg_layout *layout = layouts[op->layout][op->prefix];
    uint32_t missing = 0;
    uint32_t part;

    for (part = 0; part < kvg_layout_part_count(layout); part++) {
        uint32_t s = suffix_number(kvg_layout_suffix(layout, part));

        missing +=
            (op->layout == 4 || kvg_layout_part_trailing(layout, part) == 0) &&
            !(run->model.state[op->tenant][op->prefix][chain[page]][s] & STATE_PRESENT);
    }
    return missing;
}

static void fails(struct run *run, const char *what, uint64_t got, uint64_t expected)
{
    snprintf(run->why, sizeof(run->why), "%s is %llu, should be %llu", what,
        (unsigned long long)got, (unsigned long long)expected);
}

static void compare(struct run *run, const struct op *op, const uint32_t *chain,
    const struct kvg_lookup *lookup)
{
    uint32_t total = 0;
    uint32_t runs = 0;
    uint32_t missing = lookup->key_count;
    uint32_t contiguous = 0;
    uint32_t media = 0;
    uint32_t hits = 0;
    uint32_t page;

    for (page = 0; page < lookup->key_count; page++) {
        bool present = is_present(run, op, chain, page);

        total += present;
        hits += present && page >= lookup->start;
        runs += present && (page == 0 || !is_present(run, op, chain, page - 1));
        if (page >= lookup->start && !present && missing == lookup->key_count)
            missing = page;
        if (page >= lookup->start &&
            loadable(run, op, chain, lookup->start, page + 1, KVG_MEDIUM_UNKNOWN))
            contiguous = page + 1 - lookup->start;
    }
    for (page = 0; page < 2 && contiguous != 0; page++) {
        enum kvg_medium medium = page == 0 ? KVG_MEDIUM_CPU : KVG_MEDIUM_DISK;

        if (loadable(run, op, chain, lookup->start, lookup->start + contiguous, medium))
            media |= KVG_MEDIUM_BIT(medium);
    }
    if (lookup->total != total)
        fails(run, "total", lookup->total, total);
    else if (lookup->range_count != runs)
        fails(run, "range_count", lookup->range_count, runs);
    else if (lookup->first_missing != missing)
        fails(run, "first_missing", lookup->first_missing, missing);
    else if (missing < lookup->key_count &&
             lookup->missing_parts != missing_parts(run, op, chain, missing))
        fails(run, "missing_parts", lookup->missing_parts,
            missing_parts(run, op, chain, missing));
    else if (lookup->contiguous != contiguous)
        fails(run, "contiguous", lookup->contiguous, contiguous);
    else if (lookup->media != media)
        fails(run, "media", lookup->media, media);
    else if (kvg_lookup_hits_beyond(lookup, lookup->start) != hits)
        fails(run, "hits_beyond", kvg_lookup_hits_beyond(lookup, lookup->start), hits);
}

static void apply_lookup(struct run *run, const struct op *op)
{
    struct kvg_presence_view **view = &run->views[op->tenant][op->layout][op->prefix];
    struct kvi_rng rng = {op->random};
    struct kvg_key asked[CHAIN_MAX];
    uint32_t chain[CHAIN_MAX];
    struct kvg_range ranges[CHAIN_MAX];
    struct kvg_lookup lookup = {.keys = asked, .ranges = ranges, .range_max = CHAIN_MAX};
    uint32_t i;

    if (*view == NULL)
        CHECK_EQ(kvg_presence_view_new(run->index, layouts[op->layout][op->prefix],
                     kvi_str(TENANT[op->tenant]), NULL, view),
            KVG_OK);
    lookup.view = *view;
    lookup.key_count = (uint32_t)kvi_rng_below(&rng, CHAIN_MAX + 1);
    lookup.start = (uint32_t)kvi_rng_below(&rng, lookup.key_count / 2 + 1);
    for (i = 0; i < lookup.key_count; i++) {
        chain[i] = (op->key + i / (1 + (uint32_t)(op->random & 1))) % KEYS;
        asked[i] = keys[chain[i]];
    }
    kvg_presence_lookup(run->reader, &lookup, 1);
    compare(run, op, chain, &lookup);
}

/* Applies one operation to both.  False, and why, if they differ or an invariant broke. */
static bool apply(struct run *run, const struct op *op)
{
    const struct kvg_layout *layout = layouts[op->layout][op->prefix];
    struct kvg_presence_listing_result result;
    const char *what = NULL;
    uint32_t part;

    if (run->sweeping && op->kind != OP_END)
        return true; /* Events behind and before the cursor differ: not modelled. */
    switch (op->kind) {
    case OP_STORED:
        apply_stored(run, op, op->suffix);
        break;
    case OP_REMOVED:
        apply_removed(run, op, op->suffix);
        break;
    case OP_STORE_PAGE:
    case OP_REMOVE_PAGE:
    case OP_LIST_PAGE:
        for (part = 0; part < kvg_layout_part_count(layout); part++) {
            uint32_t s = suffix_number(kvg_layout_suffix(layout, part));

            if (op->kind == OP_STORE_PAGE)
                apply_stored(run, op, s);
            else if (op->kind == OP_REMOVE_PAGE)
                apply_removed(run, op, s);
            else
                apply_listed(run, op, s);
        }
        break;
    case OP_CLEARED:
        apply_cleared(run, op);
        break;
    case OP_BEGIN:
        apply_begin(run, op);
        break;
    case OP_LISTED:
        apply_listed(run, op, op->suffix);
        break;
    case OP_END_STEP:
        if (run->model.pass)
            run->sweeping = !kvg_presence_listing_end(run->index, 1, &result);
        if (run->model.pass && !run->sweeping) {
            forget_settled(run, true);
            run->model.pass = false;
        }
        break;
    case OP_END:
        apply_end(run);
        run->sweeping = false;
        break;
    case OP_ABORT:
        kvg_presence_listing_abort(run->index);
        forget_settled(run, false);
        run->model.pass = false;
        break;
    case OP_TIME:
        kvg_presence_set_time(run->index, op->random >> 40);
        break;
    default:
        apply_lookup(run, op);
        break;
    }
    if (run->why[0] == '\0' && kvi_presence_check(run->index, &what) != 0)
        snprintf(run->why, sizeof(run->why), "%s", what);
    return run->why[0] == '\0';
}

static struct op random_op(struct kvi_rng *rng)
{
    static const enum kind WEIGHTED[] = {OP_STORED, OP_STORED, OP_STORED, OP_REMOVED,
        OP_REMOVED, OP_STORE_PAGE, OP_STORE_PAGE, OP_STORE_PAGE, OP_STORE_PAGE,
        OP_REMOVE_PAGE, OP_LISTED, OP_LIST_PAGE, OP_LIST_PAGE, OP_LOOKUP, OP_LOOKUP,
        OP_LOOKUP, OP_LOOKUP, OP_LOOKUP, OP_TIME, OP_BEGIN};
    static const enum kind RARE[] = {
        OP_CLEARED, OP_END_STEP, OP_END, OP_ABORT, OP_END, OP_END_STEP};
    static const enum kvg_medium MEDIA[] = {
        KVG_MEDIUM_CPU, KVG_MEDIUM_CPU, KVG_MEDIUM_DISK, KVG_MEDIUM_UNKNOWN};
    struct op op = {
        .kind = WEIGHTED[kvi_rng_below(rng, sizeof(WEIGHTED) / sizeof(WEIGHTED[0]))]};

    if (kvi_rng_below(rng, 25) == 0)
        op.kind = RARE[kvi_rng_below(rng, sizeof(RARE) / sizeof(RARE[0]))];
    op.tenant = (uint32_t)kvi_rng_below(rng, TENANTS);
    op.prefix = (uint32_t)kvi_rng_below(rng, PREFIXES);
    op.key = (uint32_t)kvi_rng_below(rng, KEYS);
    op.suffix = (uint32_t)kvi_rng_below(rng, suffix_count);
    op.layout = (uint32_t)kvi_rng_below(rng, LAYOUTS);
    op.medium = MEDIA[kvi_rng_below(rng, 4)];
    op.random = kvi_rng_next(rng);
    return op;
}

/* Runs a list; returns the number of the operation that failed, or -1. */
static long run_list(
    const struct op *ops, size_t count, bool is_mutant, char *why, size_t why_bytes)
{
    struct kvg_presence_options options = {
        .struct_bytes = sizeof(options), .seed = count, .full_keys = true};
    struct run *run = calloc(1, sizeof(*run));
    long failed = -1;
    size_t i;
    uint32_t t, l, p;

    run->is_mutant = is_mutant;
    CHECK_EQ(kvg_presence_new(kvg_alloc_default(), &options, NULL, &run->index), KVG_OK);
    CHECK_EQ(kvg_presence_reader_open(run->index, &run->reader), KVG_OK);
    for (i = 0; i < count && failed < 0; i++)
        if (!apply(run, &ops[i]))
            failed = (long)i;
    snprintf(why, why_bytes, "%s", run->why);
    for (t = 0; t < TENANTS; t++)
        for (l = 0; l < LAYOUTS; l++)
            for (p = 0; p < PREFIXES; p++)
                kvg_presence_view_free(run->views[t][l][p]);
    kvg_presence_reader_close(run->reader);
    kvg_presence_free(run->index);
    free(run);
    return failed;
}

/* Leaves out what is not needed for the failure, ever smaller pieces at a time. */
static size_t shrink(struct op *ops, size_t count, bool is_mutant)
{
    struct op *shorter = malloc(count * sizeof(*ops));
    size_t piece;
    char why[200];

    for (piece = count / 2; piece > 0; piece /= 2) {
        size_t at = 0;

        while (at + piece <= count) {
            memcpy(shorter, ops, at * sizeof(*ops));
            memcpy(shorter + at, ops + at + piece, (count - at - piece) * sizeof(*ops));
            if (run_list(shorter, count - piece, is_mutant, why, sizeof(why)) >= 0) {
                count -= piece;
                memcpy(ops, shorter, count * sizeof(*ops));
            } else {
                at += piece;
            }
        }
    }
    free(shorter);
    return count;
}

static void print_list(const struct op *ops, size_t count)
{
    size_t i;

    for (i = 0; i < count; i++)
        printf(
            "  %s tenant %u prefix %u key %u suffix %u layout %u medium %d random %llx\n",
            KIND_NAME[ops[i].kind], ops[i].tenant, ops[i].prefix, ops[i].key,
            ops[i].suffix, ops[i].layout, (int)ops[i].medium,
            (unsigned long long)ops[i].random);
}

static uint64_t from_environment(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);

    return text != NULL ? strtoull(text, NULL, 0) : otherwise;
}

TEST(random_operations_give_the_answers_of_the_reference)
{
    uint64_t seed = from_environment("KVG_SEED", 20261201);
    uint64_t rounds = from_environment("KVG_ROUNDS", 60);
    struct op *ops = malloc(OPERATIONS * sizeof(*ops));
    uint64_t round;
    size_t i;

    for (round = 0; round < rounds; round++) {
        struct kvi_rng rng = {seed + round};
        char why[200];
        long failed;
        size_t count;

        for (i = 0; i < OPERATIONS; i++)
            ops[i] = random_op(&rng);
        failed = run_list(ops, OPERATIONS, false, why, sizeof(why));
        if (failed < 0)
            continue;
        count = shrink(ops, (size_t)failed + 1, false);
        (void)run_list(ops, count, false, why, sizeof(why));
        print_list(ops, count);
        fail_msg("seed %llu: %s", (unsigned long long)(seed + round), why);
    }
    free(ops);
}

/* Negative control: an index that misses some removals is found out, by a short list. */
TEST(an_index_that_misses_removals_is_found_out)
{
    struct op *ops = malloc(OPERATIONS * sizeof(*ops));
    uint64_t seed;
    char why[200];
    long failed = -1;
    size_t count;
    size_t i;

    for (seed = 0; failed < 0; seed++) {
        struct kvi_rng rng = {seed};

        CHECK(seed < 20);
        for (i = 0; i < OPERATIONS; i++)
            ops[i] = random_op(&rng);
        failed = run_list(ops, OPERATIONS, true, why, sizeof(why));
    }
    count = shrink(ops, (size_t)failed + 1, true);
    if (count > 6) {
        print_list(ops, count);
        fail_msg("%zu operations are left", count);
    }
    free(ops);
}

static int set_up(void **state)
{
    (void)state;
    make_layouts();
    return 0;
}

static int tear_down(void **state)
{
    uint32_t l, p;

    (void)state;
    for (l = 0; l < LAYOUTS; l++)
        for (p = 0; p < PREFIXES; p++)
            kvg_layout_free(layouts[l][p]);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RUN(random_operations_give_the_answers_of_the_reference),
        RUN(an_index_that_misses_removals_is_found_out)};

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
