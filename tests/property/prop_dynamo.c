/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* The profile "dynamo-1.5" against a model of the seed client, on random workers, batches and
 * lookups.  Few prompts, few pages, so that everything happens to the same pages; a small limit
 * on entries, so that clearing happens too; labels that are right, wrong and missing. */
#include <kvgraft/dynamo.h>

#include "base/fmt.h"
#include "base/rng.h"
#include "fault_alloc.h"
#include "seed_model.h"
#include "seed_stream.h"
#include "source/dynamo_state.h"
#include "test.h"

#define PROMPTS 3
#define PROMPT_TOKENS 17
#define EVENTS_MAX 9

struct group {
    char id[MODEL_TEXT_BYTES];
    bool verified;
};

/* What the client would hold. */
struct model {
    struct kvg_worker_config workers[3];
    bool there[3];
    bool has_last_layout;
    struct kvg_worker_config last_layout;
    struct text_set present;
    struct group groups[64];
    size_t group_count;
    bool has_sequence;
    uint64_t sequence;
    size_t entries_max;
};

struct world {
    struct kvi_rng rng;
    uint32_t tokens[PROMPTS][PROMPT_TOKENS];
    struct model model;
    struct kvg_dynamo *dynamo;
};

static struct group *find_group(struct model *model, const char *id)
{
    size_t i;

    for (i = 0; i < model->group_count; i++) {
        if (strcmp(model->groups[i].id, id) == 0)
            return &model->groups[i];
    }
    return NULL;
}

static void put_group(struct model *model, const char *id)
{
    struct group *group = find_group(model, id);

    if (group == NULL) {
        CHECK(model->group_count < 64);
        group = &model->groups[model->group_count++];
        snprintf(group->id, sizeof(group->id), "%s", id);
    }
    group->verified = false;
}

static void drop_group(struct model *model, const char *id)
{
    struct group *group = find_group(model, id);

    if (group != NULL)
        *group = model->groups[--model->group_count];
}

static void clear_entries(struct model *model)
{
    model->present.count = 0;
    model->group_count = 0;
}

static void apply(struct model *model, uint64_t sequence, const struct seed_event *events,
    size_t event_count)
{
    bool had = model->has_sequence;
    uint64_t previous = model->sequence;
    size_t i;

    model->has_sequence = true;
    model->sequence = sequence;
    if (had && sequence == previous)
        return;
    if (had && sequence != previous + 1)
        clear_entries(model);
    for (i = 0; i < event_count; i++) {
        const struct seed_event *event = &events[i];
        bool labelled = event->group != NULL && event->group[0] != '\0';

        if (event->tenant != NULL && strcmp(event->tenant, "") != 0 &&
            strcmp(event->tenant, "default") != 0)
            continue;
        if (event->object_key == NULL)
            continue;
        if (strcmp(event->type, "stored") == 0) {
            text_set_add(&model->present, event->object_key);
            if (labelled)
                put_group(model, event->group);
        } else if (strcmp(event->type, "removed") == 0) {
            text_set_remove(&model->present, event->object_key);
            if (labelled)
                drop_group(model, event->group);
            else
                model->group_count = 0;
        }
    }
    if (model->present.count + model->group_count > model->entries_max) {
        clear_entries(model);
        model->has_sequence = false;
    }
}

static bool same_layout(
    const struct kvg_worker_config *a, const struct kvg_worker_config *b)
{
    const struct kvg_layout_config *x = &a->layout;
    const struct kvg_layout_config *y = &b->layout;

    return kvi_str_equal(a->backend, b->backend) &&
           x->rule.page_size == y->rule.page_size && x->rule.eagle == y->rule.eagle &&
           x->tp_size == y->tp_size && x->pp_size == y->pp_size &&
           x->tp_lcm_size == y->tp_lcm_size && x->mla == y->mla &&
           x->split_heads == y->split_heads &&
           (x->tag.data == NULL) == (y->tag.data == NULL) &&
           kvi_str_equal(x->tag, y->tag);
}

/* The layout all workers have, or NULL; with the clear that a new one causes. */
static const struct kvg_worker_config *resolve(struct model *model)
{
    const struct kvg_worker_config *first = NULL;
    struct kvg_str endpoint = {NULL, 0};
    bool endpoints_differ = false;
    size_t i;

    for (i = 0; i < 3; i++) {
        const struct kvg_worker_config *worker = &model->workers[i];

        if (!model->there[i])
            continue;
        if (first == NULL)
            first = worker;
        if (!same_layout(first, worker))
            return NULL;
        if (worker->kv_events_endpoint.bytes == 0)
            continue;
        if (endpoint.bytes != 0 && !kvi_str_equal(endpoint, worker->kv_events_endpoint))
            endpoints_differ = true;
        endpoint = worker->kv_events_endpoint;
    }
    if (first == NULL)
        return NULL;
    if (model->has_last_layout && !same_layout(first, &model->last_layout)) {
        clear_entries(model);
        model->has_sequence = false;
    }
    model->has_last_layout = true;
    model->last_layout = *first;
    return endpoint.bytes == 0 || endpoints_differ ? NULL : first;
}

static uint32_t model_lookup(struct model *model, const struct kvg_layout_config *layout,
    const uint32_t *tokens, size_t token_count, bool hits[MODEL_PAGES_MAX],
    size_t *page_count_out)
{
    char hashes[MODEL_PAGES_MAX][65];
    char id[MODEL_TEXT_BYTES];
    uint32_t total = 0;
    size_t page;

    *page_count_out = model_hits(&model->present, layout, tokens, token_count, hits);
    model_page_hashes(&layout->rule, tokens, token_count, hashes);
    for (page = 0; page < *page_count_out; page++) {
        struct group *group;

        model_group_id(layout, hashes[page], id);
        group = find_group(model, id);
        if (group != NULL && group->verified)
            hits[page] = true;
        if (group != NULL && hits[page])
            group->verified = true;
        total += hits[page];
    }
    return total;
}

static void lookup(struct world *world)
{
    size_t who = (size_t)kvi_rng_below(&world->rng, PROMPTS);
    size_t token_count = (size_t)kvi_rng_below(&world->rng, PROMPT_TOKENS + 1);
    uint32_t block_size = kvi_rng_below(&world->rng, 8) == 0 ? 3 : 2;
    const struct kvg_worker_config *config = resolve(&world->model);
    struct kvg_range ranges[MODEL_PAGES_MAX];
    bool hits[MODEL_PAGES_MAX + 1] = {false};
    bool found[MODEL_PAGES_MAX + 1] = {false};
    size_t range_count;
    size_t page_count = 0;
    uint32_t total;
    uint32_t expected = 0;
    enum kvg_dynamo_outcome outcome = kvg_dynamo_check_blocks(world->dynamo,
        world->tokens[who], token_count, block_size, (struct kvg_str){NULL, 0}, ranges,
        MODEL_PAGES_MAX, &range_count, &total);
    size_t i;

    if (config == NULL) {
        CHECK_EQ(outcome, KVG_DYNAMO_NO_CONFIG);
    } else if (!kvi_str_equal(config->backend, kvi_str("mooncake"))) {
        CHECK_EQ(outcome, KVG_DYNAMO_OTHER_BACKEND);
    } else if (config->layout.rule.page_size == 0) {
        CHECK_EQ(outcome, KVG_DYNAMO_PAGE_SIZE_ZERO);
    } else if (config->layout.rule.page_size != block_size) {
        CHECK_EQ(outcome, KVG_DYNAMO_PAGE_SIZE_DIFFERS);
    } else {
        expected = model_lookup(&world->model, &config->layout, world->tokens[who],
            token_count, hits, &page_count);
        CHECK_EQ(outcome, page_count == 0 ? KVG_DYNAMO_TOO_SHORT : KVG_DYNAMO_ANSWERED);
    }
    CHECK_EQ(total, expected);
    CHECK_EQ(kvg_dynamo_hits_beyond(ranges, range_count, 0), expected);
    for (i = 0; i < range_count; i++) {
        uint32_t page;

        CHECK(ranges[i].begin < ranges[i].end);
        CHECK(i == 0 || ranges[i - 1].end < ranges[i].begin);
        for (page = ranges[i].begin; page < ranges[i].end; page++)
            found[page] = true;
    }
    CHECK_MEM(found, hits, sizeof(hits));
}

static void change_worker(struct world *world)
{
    static const char *const TAGS[] = {NULL, NULL, NULL, "", "tag"};
    struct kvi_rng *rng = &world->rng;
    size_t who = (size_t)kvi_rng_below(rng, 3);
    struct kvg_worker_config config = seed_worker();

    if (kvi_rng_below(rng, 3) == 0) {
        CHECK_EQ(kvg_dynamo_remove_worker(world->dynamo, who), world->model.there[who]);
        world->model.there[who] = false;
        return;
    }
    config.layout.rule = (struct kvg_page_rule){2, false};
    if (kvi_rng_below(rng, 2) == 0) { /* Else the plain one, so that most agree. */
        config.layout.rule.eagle = kvi_rng_below(rng, 2) == 0;
        config.layout.tp_size = (uint32_t)kvi_rng_below(rng, 3);
        config.layout.pp_size = (uint32_t)kvi_rng_below(rng, 3);
        config.layout.mla = kvi_rng_below(rng, 3) == 0;
        config.layout.split_heads = kvi_rng_below(rng, 3) == 0;
        config.layout.tp_lcm_size = (uint32_t)kvi_rng_below(rng, 4);
        config.layout.tag = kvi_str(TAGS[kvi_rng_below(rng, 5)]);
        if (kvi_rng_below(rng, 10) == 0)
            config.layout.rule.page_size = 0;
        if (kvi_rng_below(rng, 10) == 0)
            config.backend = kvi_str("other");
        if (kvi_rng_below(rng, 3) == 0)
            config.kv_events_endpoint =
                kvi_str(kvi_rng_below(rng, 2) == 0 ? "" : "tcp://b");
    }
    CHECK_EQ(kvg_dynamo_set_worker(world->dynamo, who, &config, NULL), KVG_OK);
    world->model.workers[who] = config;
    world->model.there[who] = true;
}

/* Strings of a random event, about a page of a prompt under the layout seen last. */
struct event_texts {
    char key[MODEL_TEXT_BYTES];
    char group[MODEL_TEXT_BYTES];
};

static struct seed_event random_event(struct world *world, struct event_texts *texts)
{
    static const char *const TYPES[] = {
        "stored", "stored", "stored", "removed", "cleared"};
    static const char *const TENANTS[] = {NULL, NULL, NULL, "", "other"};
    struct kvi_rng *rng = &world->rng;
    struct kvg_layout_config layout = world->model.last_layout.layout;
    char hashes[MODEL_PAGES_MAX][65];
    char keys[MODEL_PARTS_MAX][MODEL_TEXT_BYTES];
    struct seed_event event = {
        TYPES[kvi_rng_below(rng, 5)], texts->key, TENANTS[kvi_rng_below(rng, 5)], NULL};
    size_t page_count;
    size_t page;

    if (layout.rule.page_size == 0)
        layout.rule.page_size = 2;
    page_count = model_page_hashes(
        &layout.rule, world->tokens[kvi_rng_below(rng, PROMPTS)], PROMPT_TOKENS, hashes);
    page = (size_t)kvi_rng_below(rng, page_count < 3 ? page_count : 3);
    model_group_id(&layout, hashes[page], texts->group);
    snprintf(texts->key, sizeof(texts->key), "%s",
        keys[kvi_rng_below(rng, model_object_keys(&layout, hashes[page], keys))]);
    if (kvi_rng_below(rng, 3) != 0)
        event.group = texts->group;
    if (kvi_rng_below(rng, 4) == 0)
        event.group = "wrong";
    if (kvi_rng_below(rng, 12) == 0)
        event.group = "";
    if (kvi_rng_below(rng, 20) == 0)
        event.object_key = NULL;
    return event;
}

static void batch(struct world *world)
{
    struct kvi_rng *rng = &world->rng;
    struct event_texts texts[EVENTS_MAX];
    struct seed_event events[EVENTS_MAX];
    struct seed_message message;
    size_t event_count = (size_t)kvi_rng_below(rng, EVENTS_MAX + 1);
    uint64_t sequence = world->model.sequence + 1;
    size_t i;

    if (kvi_rng_below(rng, 12) == 0)
        sequence = world->model.sequence;
    if (kvi_rng_below(rng, 60) == 0)
        sequence = kvi_rng_below(rng, 8);
    for (i = 0; i < event_count; i++)
        events[i] = random_event(world, &texts[i]);
    seed_message_init(&message, sequence, events, event_count);
    if (kvi_rng_below(rng, 40) == 0) { /* A bad one: lost, and the sequence with it. */
        message.frames[2].bytes--;
        kvg_dynamo_message(world->dynamo, message.frames, 3);
    } else {
        kvg_dynamo_message(world->dynamo, message.frames, 3);
        apply(&world->model, sequence, events, event_count);
    }
    seed_message_fini(&message);
}

static void check_same(const struct world *world)
{
    struct kvg_dynamo_stats stats = {.struct_bytes = sizeof(stats)};
    size_t i;

    kvg_dynamo_stats(world->dynamo, &stats);
    CHECK_EQ(stats.present_keys, world->model.present.count);
    CHECK_EQ(stats.group_states, world->model.group_count);
    CHECK_EQ(stats.has_sequence, world->model.has_sequence);
    for (i = 0; i < world->model.present.count; i++)
        CHECK(kvi_dynamo_has_key(world->dynamo, kvi_str(world->model.present.texts[i])));
    CHECK_EQ(kvi_dynamo_check(world->dynamo), 0);
}

static uint64_t run(uint64_t seed, int steps)
{
    struct kvg_dynamo_options options = {.struct_bytes = sizeof(options)};
    struct world world = {.rng = {seed}};
    struct kvg_dynamo_stats stats = {.struct_bytes = sizeof(stats)};
    struct fault_alloc fault;
    int step;

    fault_alloc_init(&fault);
    for (step = 0; step < PROMPTS * PROMPT_TOKENS; step++)
        world.tokens[step / PROMPT_TOKENS][step % PROMPT_TOKENS] =
            (uint32_t)kvi_rng_below(&world.rng, 2);
    options.entries_max = (size_t)(20 + kvi_rng_below(&world.rng, 40));
    world.model.entries_max = options.entries_max;
    world.model.last_layout = seed_worker();
    CHECK_EQ(kvg_dynamo_new(&fault.alloc, &options, &world.dynamo), KVG_OK);
    for (step = 0; step < steps; step++) {
        uint64_t dice = kvi_rng_below(&world.rng, 40);

        if (step < 2 || dice == 0)
            change_worker(&world);
        else if (dice < 20)
            batch(&world);
        else
            lookup(&world);
        check_same(&world);
    }
    kvg_dynamo_stats(world.dynamo, &stats);
    text_set_fini(&world.model.present);
    kvg_dynamo_free(world.dynamo);
    CHECK_EQ(fault.live_bytes, 0);
    return stats.layout_clears != 0 && stats.gap_clears != 0 ? stats.size_clears : 0;
}

TEST(answers_are_those_of_the_seed_client)
{
    uint64_t everything_happened = 0;
    uint64_t first = kvt_seed(1);
    uint64_t seed;

    for (seed = first; seed < first + 20; seed++) {
        printf("seed %llu\n", (unsigned long long)seed);
        everything_happened += run(seed, 1500);
    }
    CHECK(everything_happened != 0);
}

TEST_MAIN(RUN(answers_are_those_of_the_seed_client))
