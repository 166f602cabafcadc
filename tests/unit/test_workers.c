/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* Unit tests of the set of workers: what it resolves to, who disagrees, what a bad one costs. */
#include "fault_alloc.h"
#include "test.h"

#include "base/fmt.h"
#include "base/rng.h"
#include "source/workers.h"

#define EVENTS_A "tcp://10.0.0.1:5557"
#define EVENTS_B "tcp://10.0.0.2:5557"

static struct kvg_workers *workers_new(struct fault_alloc *fault)
{
    struct kvg_workers *workers;

    fault_alloc_init(fault);
    CHECK_EQ(kvg_workers_new(&fault->alloc, &workers), KVG_OK);
    return workers;
}

static void workers_end(struct fault_alloc *fault, struct kvg_workers *workers)
{
    kvg_workers_free(workers);
    CHECK_EQ(fault->live_bytes, 0);
}

static struct kvg_worker_config config_of(uint32_t page_size, const char *endpoint)
{
    return (struct kvg_worker_config){
        .struct_bytes = sizeof(struct kvg_worker_config),
        .backend = kvi_str("mooncake"),
        .layout =
            {
                .struct_bytes = sizeof(struct kvg_layout_config),
                .rule = {.page_size = page_size},
                .tp_size = 2,
                .pp_size = 1,
            },
        .kv_events_endpoint = kvi_str(endpoint),
    };
}

static kvg_err set(
    struct kvg_workers *workers, uint64_t id, uint32_t page_size, const char *endpoint)
{
    struct kvg_worker_config config = config_of(page_size, endpoint);
    kvg_err err = kvg_workers_set(workers, id, &config, NULL);

    CHECK_EQ(kvi_workers_check(workers), 0);
    return err;
}

static struct kvg_workers_view view_of(const struct kvg_workers *workers)
{
    struct kvg_workers_view view;

    kvg_workers_view(workers, &view);
    return view;
}

static struct kvg_worker_report report_of(const struct kvg_workers *workers, uint64_t id)
{
    struct kvg_worker_report report;

    CHECK(kvg_workers_next(workers, id, &report));
    CHECK_EQ(report.worker_id, id);
    return report;
}

static uint32_t page_size_at(const struct kvg_workers *workers, size_t index)
{
    return kvg_layout_rule(kvg_workers_layout(workers, index)).page_size;
}

static bool endpoint_is(const struct kvg_workers *workers, const char *expected)
{
    return kvi_str_equal(view_of(workers).endpoint, kvi_str(expected));
}

TEST(an_empty_set_has_no_layout_and_no_endpoint)
{
    struct fault_alloc fault;
    struct kvg_workers *workers = workers_new(&fault);
    struct kvg_worker_report report;

    CHECK_EQ(view_of(workers).worker_count, 0);
    CHECK(kvg_workers_layout(workers, 0) == NULL);
    CHECK_EQ(kvg_workers_layout_of(workers, 1), -1);
    CHECK(view_of(workers).endpoint.data == NULL);
    CHECK(!kvg_workers_next(workers, 0, &report));
    CHECK(!kvg_workers_remove(workers, 1));
    workers_end(&fault, workers);
}

TEST(workers_that_agree_share_one_layout)
{
    struct fault_alloc fault;
    struct kvg_workers *workers = workers_new(&fault);

    CHECK_EQ(set(workers, 2, 64, EVENTS_A), KVG_OK);
    CHECK_EQ(set(workers, 1, 64, EVENTS_A), KVG_OK);
    CHECK_EQ(view_of(workers).layout_count, 1);
    CHECK_EQ(view_of(workers).usable_count, 2);
    CHECK_EQ(kvg_workers_layout_of(workers, 1), 0);
    CHECK_EQ(kvg_workers_layout_of(workers, 2), 0);
    CHECK(endpoint_is(workers, EVENTS_A));
    CHECK(!view_of(workers).endpoints_differ);
    workers_end(&fault, workers);
}

/* A rolling change of layout: both are served all the time, and each worker says which is its. */
TEST(different_layouts_live_side_by_side_and_the_most_used_is_first)
{
    struct fault_alloc fault;
    struct kvg_workers *workers = workers_new(&fault);

    CHECK_EQ(set(workers, 1, 64, EVENTS_A), KVG_OK);
    CHECK_EQ(set(workers, 2, 64, EVENTS_A), KVG_OK);
    CHECK_EQ(set(workers, 3, 16, EVENTS_A), KVG_OK);
    CHECK_EQ(view_of(workers).layout_count, 2);
    CHECK_EQ(page_size_at(workers, 0), 64);
    CHECK(!report_of(workers, 1).layout_differs);
    CHECK(report_of(workers, 3).layout_differs);
    CHECK_EQ(report_of(workers, 3).layout_index, 1);

    CHECK_EQ(set(workers, 2, 16, EVENTS_A), KVG_OK);
    CHECK_EQ(page_size_at(workers, 0), 16);
    CHECK(report_of(workers, 1).layout_differs);
    CHECK_EQ(set(workers, 1, 16, EVENTS_A), KVG_OK);
    CHECK_EQ(view_of(workers).layout_count, 1);
    workers_end(&fault, workers);
}

TEST(a_worker_without_an_endpoint_is_tolerated)
{
    struct fault_alloc fault;
    struct kvg_workers *workers = workers_new(&fault);

    CHECK_EQ(set(workers, 1, 64, NULL), KVG_OK);
    CHECK_EQ(set(workers, 2, 64, ""), KVG_OK);
    CHECK(view_of(workers).endpoint.data == NULL);
    CHECK_EQ(set(workers, 3, 64, EVENTS_A), KVG_OK);
    CHECK(endpoint_is(workers, EVENTS_A));
    CHECK(!report_of(workers, 1).endpoint_differs);
    workers_end(&fault, workers);
}

TEST(different_endpoints_give_none_and_the_minority_is_named)
{
    struct fault_alloc fault;
    struct kvg_workers *workers = workers_new(&fault);

    CHECK_EQ(set(workers, 1, 64, EVENTS_B), KVG_OK);
    CHECK_EQ(set(workers, 2, 64, EVENTS_A), KVG_OK);
    CHECK_EQ(set(workers, 3, 64, EVENTS_A), KVG_OK);
    CHECK(view_of(workers).endpoints_differ);
    CHECK(view_of(workers).endpoint.data == NULL);
    CHECK(report_of(workers, 1).endpoint_differs);
    CHECK(!report_of(workers, 2).endpoint_differs);

    CHECK(kvg_workers_remove(workers, 1));
    CHECK_EQ(kvi_workers_check(workers), 0);
    CHECK(endpoint_is(workers, EVENTS_A));
    workers_end(&fault, workers);
}

TEST(an_override_wins_over_what_workers_advertise)
{
    struct fault_alloc fault;
    struct kvg_workers *workers = workers_new(&fault);

    CHECK_EQ(set(workers, 1, 64, EVENTS_A), KVG_OK);
    CHECK_EQ(set(workers, 2, 64, EVENTS_B), KVG_OK);
    CHECK_EQ(kvg_workers_override_endpoint(workers, kvi_str("tcp://store:1")), KVG_OK);
    CHECK(endpoint_is(workers, "tcp://store:1"));
    CHECK(view_of(workers).endpoints_differ);
    CHECK_EQ(kvg_workers_override_endpoint(workers, kvi_str(NULL)), KVG_OK);
    CHECK(view_of(workers).endpoint.data == NULL);
    workers_end(&fault, workers);
}

TEST(an_unusable_worker_is_reported_and_vetoes_nobody)
{
    struct fault_alloc fault;
    struct kvg_workers *workers = workers_new(&fault);
    struct kvg_error parse = {KVG_EFORMAT, "tp_size", "tp_size is missing"};

    CHECK_EQ(set(workers, 1, 64, EVENTS_A), KVG_OK);
    CHECK_EQ(set(workers, 2, 0, EVENTS_B), KVG_EINVAL);
    CHECK_EQ(kvg_workers_set_bad(workers, 3, &parse), KVG_OK);
    CHECK_EQ(view_of(workers).worker_count, 3);
    CHECK_EQ(view_of(workers).usable_count, 1);
    CHECK_EQ(view_of(workers).layout_count, 1);
    CHECK(endpoint_is(workers, EVENTS_A));
    CHECK_EQ(report_of(workers, 1).error.code, KVG_OK);
    CHECK_EQ(report_of(workers, 2).error.code, KVG_EINVAL);
    CHECK_EQ(report_of(workers, 2).layout_index, -1);
    CHECK_EQ(report_of(workers, 3).error.code, KVG_EFORMAT);
    CHECK_STR(report_of(workers, 3).error.field, "tp_size");
    CHECK_EQ(kvg_workers_layout_of(workers, 3), -1);

    CHECK_EQ(set(workers, 2, 64, EVENTS_A), KVG_OK);
    CHECK_EQ(view_of(workers).usable_count, 2);
    workers_end(&fault, workers);
}

TEST(another_backend_is_unusable_here_and_says_so)
{
    struct fault_alloc fault;
    struct kvg_workers *workers = workers_new(&fault);
    struct kvg_worker_config config = config_of(64, EVENTS_A);
    struct kvg_error error;

    config.backend = kvi_str("nixl");
    CHECK_EQ(kvg_workers_set(workers, 1, &config, &error), KVG_EUNSUPPORTED);
    CHECK_STR(error.field, "backend");
    CHECK(kvi_str_equal(report_of(workers, 1).backend, kvi_str("nixl")));
    CHECK_EQ(view_of(workers).usable_count, 0);
    workers_end(&fault, workers);
}

TEST(limits_of_strings_name_the_field)
{
    struct fault_alloc fault;
    struct kvg_workers *workers = workers_new(&fault);
    struct kvg_worker_config config = config_of(64, EVENTS_A);
    struct kvg_error error;
    char text[300];

    memset(text, 'x', sizeof(text));
    config.kv_events_endpoint = (struct kvg_str){text, 256};
    CHECK_EQ(kvg_workers_set(workers, 1, &config, &error), KVG_ELIMIT);
    CHECK_STR(error.field, "kv_events_endpoint");
    config.kv_events_endpoint = (struct kvg_str){text, 255};
    CHECK_EQ(kvg_workers_set(workers, 1, &config, &error), KVG_OK);
    config.kv_events_endpoint = kvi_str("tcp://a b");
    CHECK_EQ(kvg_workers_set(workers, 1, &config, &error), KVG_EINVAL);
    config.backend = (struct kvg_str){text, 64};
    CHECK_EQ(kvg_workers_set(workers, 1, &config, &error), KVG_ELIMIT);
    CHECK_STR(error.field, "backend");
    CHECK_EQ(
        kvg_workers_override_endpoint(workers, (struct kvg_str){text, 256}), KVG_ELIMIT);
    config.struct_bytes = 8;
    CHECK_EQ(kvg_workers_set(workers, 9, &config, &error), KVG_EINVAL);
    CHECK_EQ(view_of(workers).worker_count, 1);
    workers_end(&fault, workers);
}

TEST(the_generation_counts_changes_that_matter_only)
{
    struct fault_alloc fault;
    struct kvg_workers *workers = workers_new(&fault);
    uint64_t generation;

    CHECK_EQ(set(workers, 1, 64, EVENTS_A), KVG_OK);
    generation = view_of(workers).generation;
    CHECK_EQ(set(workers, 1, 64, EVENTS_A), KVG_OK);
    CHECK_EQ(kvg_workers_override_endpoint(workers, kvi_str("")), KVG_OK);
    CHECK_EQ(view_of(workers).generation, generation);
    CHECK_EQ(set(workers, 1, 64, EVENTS_B), KVG_OK);
    CHECK_EQ(view_of(workers).generation, generation + 1);
    CHECK_EQ(set(workers, 1, 0, EVENTS_B), KVG_EINVAL);
    CHECK_EQ(view_of(workers).generation, generation + 2);
    CHECK_EQ(set(workers, 1, 0, EVENTS_B), KVG_EINVAL);
    CHECK_EQ(view_of(workers).generation, generation + 2);
    kvg_workers_clear(workers);
    CHECK_EQ(view_of(workers).generation, generation + 3);
    kvg_workers_clear(workers);
    CHECK_EQ(view_of(workers).generation, generation + 3);
    workers_end(&fault, workers);
}

TEST(a_layout_over_the_limit_is_refused_until_one_has_gone)
{
    struct fault_alloc fault;
    struct kvg_workers *workers = workers_new(&fault);
    uint32_t i;

    for (i = 1; i <= KVG_WORKERS_LAYOUTS_MAX; i++)
        CHECK_EQ(set(workers, i, i, NULL), KVG_OK);
    CHECK_EQ(set(workers, 1000, 1000, NULL), KVG_ELIMIT);
    CHECK_STR(report_of(workers, 1000).error.field, "layouts");
    CHECK_EQ(
        set(workers, 7, 700, NULL), KVG_OK); /* Takes the place of its own old one. */
    CHECK(kvg_workers_remove(workers, 7));
    CHECK_EQ(set(workers, 1000, 1000, NULL), KVG_OK);
    CHECK_EQ(view_of(workers).layout_count, KVG_WORKERS_LAYOUTS_MAX);
    workers_end(&fault, workers);
}

TEST(many_endpoints_come_together_again_when_the_others_have_gone)
{
    struct fault_alloc fault;
    struct kvg_workers *workers = workers_new(&fault);
    char text[32];
    uint32_t i;

    for (i = 0; i < 200; i++) {
        snprintf(text, sizeof(text), "tcp://h%u", i < 150 ? i : 7000);
        CHECK_EQ(set(workers, i, 64, text), KVG_OK);
    }
    CHECK(view_of(workers).endpoints_differ);
    for (i = 0; i < 150; i++) {
        CHECK(kvg_workers_remove(workers, i));
        CHECK_EQ(kvi_workers_check(workers), 0);
    }
    CHECK(endpoint_is(workers, "tcp://h7000"));
    CHECK_EQ(view_of(workers).usable_count, 50);
    workers_end(&fault, workers);
}

/* Reference: the configurations in plain arrays, resolved anew each time. */
#define MODEL_IDS 24u
struct model {
    bool exists[MODEL_IDS];
    uint32_t page_size[MODEL_IDS]; /* 0: unusable. */
    uint32_t endpoint[MODEL_IDS];  /* 0: none. */
};

static void compare(const struct kvg_workers *workers, const struct model *model)
{
    struct kvg_workers_view view = view_of(workers);
    struct kvg_worker_report report;
    uint64_t next = 0;
    size_t usable = 0;
    size_t count = 0;
    uint32_t first = 0;
    bool differ = false;
    uint32_t i;

    for (i = 0; i < MODEL_IDS; i++) {
        if (!model->exists[i])
            continue;
        count++;
        CHECK(kvg_workers_next(workers, next, &report));
        CHECK_EQ(report.worker_id, i);
        next = report.worker_id + 1;
        CHECK_EQ(report.layout_index >= 0, model->page_size[i] != 0);
        if (model->page_size[i] == 0)
            continue;
        usable++;
        CHECK_EQ(page_size_at(workers, (size_t)report.layout_index), model->page_size[i]);
        if (model->endpoint[i] != 0 && first == 0)
            first = model->endpoint[i];
        differ = differ || (model->endpoint[i] != 0 && model->endpoint[i] != first);
    }
    CHECK(!kvg_workers_next(workers, next, &report));
    CHECK_EQ(view.worker_count, count);
    CHECK_EQ(view.usable_count, usable);
    CHECK_EQ(view.endpoints_differ, differ);
    CHECK_EQ(view.endpoint.bytes != 0, first != 0 && !differ);
}

TEST(random_changes_resolve_as_a_plain_list_does)
{
    struct fault_alloc fault;
    struct kvg_workers *workers = workers_new(&fault);
    struct model model = {.exists = {false}};
    struct kvi_rng rng = {.state = 20261201};
    int step;

    for (step = 0; step < 4000; step++) {
        uint32_t id = (uint32_t)kvi_rng_below(&rng, MODEL_IDS);

        if (kvi_rng_below(&rng, 3) == 0) {
            CHECK_EQ(kvg_workers_remove(workers, id), model.exists[id]);
            model.exists[id] = false;
        } else {
            char text[32] = "";
            uint32_t endpoint = (uint32_t)kvi_rng_below(&rng, 3);

            model.exists[id] = true;
            model.page_size[id] = (uint32_t)kvi_rng_below(&rng, 4) * 16;
            model.endpoint[id] = endpoint;
            if (endpoint != 0)
                snprintf(text, sizeof(text), "tcp://h%u", endpoint);
            CHECK_EQ(set(workers, id, model.page_size[id], text) == KVG_OK,
                model.page_size[id] != 0);
        }
        CHECK_EQ(kvi_workers_check(workers), 0);
        compare(workers, &model);
    }
    workers_end(&fault, workers);
}

/* Every change either happens or, without memory, leaves the set as it was. */
static bool change_workers(const struct kvg_alloc *alloc, void *context)
{
    struct kvg_workers *workers;
    bool completed = false;
    uint32_t i;
    kvg_err err;

    (void)context;
    if (kvg_workers_new(alloc, &workers) != KVG_OK)
        return false;
    for (i = 0; i < 20; i++) {
        struct kvg_worker_config config =
            config_of(16 * (i % 4), i % 3 == 0   ? NULL
                                    : i % 3 == 1 ? EVENTS_A
                                                 : EVENTS_B);
        struct kvg_workers_view before = view_of(workers);
        struct kvg_workers_view after;

        err = kvg_workers_set(workers, i % 13, &config, NULL);
        CHECK_EQ(kvi_workers_check(workers), 0);
        after = view_of(workers);
        if (err == KVG_ENOMEM) {
            CHECK_EQ(after.generation, before.generation);
            CHECK_EQ(after.worker_count, before.worker_count);
            goto out;
        }
    }
    completed = true;
out:
    kvg_workers_free(workers);
    return completed;
}

TEST(without_memory_a_change_leaves_the_set_as_it_was)
{
    for_each_oom(change_workers, NULL);
}

TEST_MAIN(RUN(an_empty_set_has_no_layout_and_no_endpoint),
    RUN(workers_that_agree_share_one_layout),
    RUN(different_layouts_live_side_by_side_and_the_most_used_is_first),
    RUN(a_worker_without_an_endpoint_is_tolerated),
    RUN(different_endpoints_give_none_and_the_minority_is_named),
    RUN(an_override_wins_over_what_workers_advertise),
    RUN(an_unusable_worker_is_reported_and_vetoes_nobody),
    RUN(another_backend_is_unusable_here_and_says_so),
    RUN(limits_of_strings_name_the_field),
    RUN(the_generation_counts_changes_that_matter_only),
    RUN(a_layout_over_the_limit_is_refused_until_one_has_gone),
    RUN(many_endpoints_come_together_again_when_the_others_have_gone),
    RUN(random_changes_resolve_as_a_plain_list_does),
    RUN(without_memory_a_change_leaves_the_set_as_it_was))
