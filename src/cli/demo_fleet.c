/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* demo_fleet.c -- the engines of the demonstration, their store, and the router in front.
 *
 * The router asks the daemon how much each engine holds, and takes the best.  Beside it runs the
 * same fleet without bytes, that gets the same prompts in turn: what it finds on its devices is
 * what round robin would have saved. */
#include "cli/demo.h"

#include <ftw.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define APPLY_WAIT_MS 30000u
#define KILL_ONE_IN 40u
#define PUBLISHERS_KILLED_MAX 5u /* Each costs seconds: a repair is not begun at once. */

static uint64_t draw(struct kvc_demo *demo, uint64_t bound)
{
    uint64_t x = demo->random += UINT64_C(0x9e3779b97f4a7c15);

    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (x ^ (x >> 31)) % bound;
}

/* ---- Making it ----------------------------------------------------------------------------- */

static kvg_err open_pages(struct kvc_demo *demo, struct kvg_error *error)
{
    struct kvg_store_options options = {
        .struct_bytes = sizeof(options), .hook = kvc_store_hook(demo->store)};
    char url[128] = "";

    if (demo->options->store == NULL) {
        snprintf(demo->directory, sizeof(demo->directory), "/tmp/kvgraft-demo-XXXXXX");
        if (mkdtemp(demo->directory) == NULL) {
            demo->directory[0] = '\0';
            error->code = KVG_EIO;
            snprintf(error->field, sizeof(error->field), "store");
            snprintf(error->message, sizeof(error->message),
                "no directory under /tmp can be made");
            return KVG_EIO;
        }
        snprintf(url, sizeof(url), "file:%s?bytes=64GiB", demo->directory);
    }
    return kvg_store_open(demo->options->store != NULL ? demo->options->store : url,
        &options, &demo->pages, error);
}

kvg_err kvc_demo_make_fleet(struct kvc_demo *demo, struct kvg_error *error)
{
    bool traced = demo->options->trace != NULL;
    struct kvc_engine_options options = {.layout = demo->layout,
        .page_size = kvc_workload_page_size(demo->workload),
        .tp_size = (uint32_t)demo->options->tp_size,
        .layers = traced ? 1 : 2,
        .slot_bytes = traced ? 1 : 4,
        .slots = traced ? 1u << 20 : 1u << 17};
    kvg_err err = open_pages(demo, error);
    uint64_t i;

    demo->random = demo->options->seed;
    for (i = 0; i < demo->options->engines && err == KVG_OK; i++) {
        options.store = demo->pages;
        err = kvc_engine_new(&options, error, &demo->engines[i]);
        options.store = NULL;
        if (err == KVG_OK)
            err = kvc_engine_new(&options, error, &demo->others[i]);
    }
    return err;
}

static int remove_one(
    const char *path, const struct stat *status, int kind, struct FTW *place)
{
    (void)status;
    (void)kind;
    (void)place;
    return remove(path);
}

static void remove_directory(const struct kvc_demo *demo)
{
    if (demo->directory[0] != '\0' &&
        nftw(demo->directory, remove_one, 16, FTW_DEPTH | FTW_PHYS) != 0)
        fprintf(stderr, "%s: cannot be removed\n", demo->directory);
}

void kvc_demo_free_fleet(struct kvc_demo *demo)
{
    uint64_t i;

    for (i = 0; i < KVC_ENGINES_MAX; i++) {
        kvc_engine_free(demo->engines[i]);
        kvc_engine_free(demo->others[i]);
    }
    kvg_store_close(demo->pages);
    remove_directory(demo);
}

/* ---- Serving ------------------------------------------------------------------------------- */

static void count(struct kvc_saved *saved, uint64_t device, uint64_t store, uint64_t all)
{
    saved->requests++;
    saved->device_tokens += device;
    saved->store_tokens += store;
    saved->computed_tokens += all - device - store;
}

static uint64_t fewest_requests(const struct kvc_demo *demo)
{
    uint64_t fewest = UINT64_MAX;
    uint64_t i;

    for (i = 0; i < demo->options->engines; i++) {
        if (demo->counts.engines[i].requests < fewest)
            fewest = demo->counts.engines[i].requests;
    }
    return fewest;
}

/* The engine that holds most of the prompt, each request that it is ahead of the least busy one
 * counted as a page less: else the first that held what all prompts begin with would get
 * everything. */
static kvg_err route(struct kvc_demo *demo, uint32_t page_count, uint64_t *best_out,
    struct kvg_error *error)
{
    int64_t fewest = (int64_t)fewest_requests(demo);
    int64_t best_score = INT64_MIN;
    uint64_t i;
    kvg_err err = KVG_OK;

    *best_out = 0;
    for (i = 0; i < demo->options->engines && err == KVG_OK; i++) {
        uint32_t truth = kvc_store_held(
            kvc_engine_published(demo->engines[i]), demo->keys, page_count);
        uint32_t held;
        int64_t score;

        err = kvc_demo_ask_engine(demo, i, demo->keys, page_count, &held, error);
        demo->counts.routed_wrong += err == KVG_OK && held != truth;
        score = (int64_t)held - ((int64_t)demo->counts.engines[i].requests - fewest);
        if (score > best_score) {
            best_score = score;
            *best_out = i;
        }
    }
    return err;
}

/* Waits until the daemon has applied what a stream published. */
static kvg_err wait_applied(struct kvc_demo *demo, const char *source,
    const struct kvc_store *published, struct kvg_error *error)
{
    if (kvd_daemon_wait_messages(
            demo->daemon, source, kvc_store_counts(published).messages, APPLY_WAIT_MS))
        return KVG_OK;
    error->code = KVG_ETIMEOUT;
    snprintf(error->field, sizeof(error->field), "%s", source == NULL ? "store" : source);
    snprintf(error->message, sizeof(error->message), "the events did not arrive");
    return KVG_ETIMEOUT;
}

/* Publishes the store's changes, and waits for them and those of an engine. */
static kvg_err settle(struct kvc_demo *demo, uint64_t engine, struct kvg_error *error)
{
    char name[KVC_SOURCE_BYTES];
    kvg_err err = kvc_store_publish(demo->store);

    if (err != KVG_OK) {
        error->code = err;
        snprintf(error->field, sizeof(error->field), "store");
        snprintf(error->message, sizeof(error->message), "its events could not be sent");
        return err;
    }
    err = wait_applied(demo, NULL, demo->store, error);
    return err == KVG_OK ? wait_applied(demo, kvc_demo_source(engine, name),
                               kvc_engine_published(demo->engines[engine]), error)
                         : err;
}

static kvg_err serve_round_robin(struct kvc_demo *demo, const struct kvc_prompt *prompt,
    uint32_t page_count, uint64_t in_store, struct kvg_error *error)
{
    uint64_t turn = demo->counts.round_robin.requests % demo->options->engines;
    struct kvc_served served;
    kvg_err err = kvc_engine_serve(
        demo->others[turn], prompt->tokens, demo->keys, page_count, &served, error);

    if (err == KVG_OK)
        count(&demo->counts.round_robin, served.device_tokens,
            in_store > served.device_tokens ? in_store - served.device_tokens : 0,
            prompt->token_count);
    return err;
}

/* The store's publisher dies and comes back.  Recovered is who has noticed that, and then has seen
 * everything again. */
static kvg_err kill_publisher(struct kvc_demo *demo, struct kvg_error *error)
{
    uint64_t began = kvc_now_ns();
    uint64_t ends = began + APPLY_WAIT_MS * UINT64_C(1000000);
    struct kvd_source_state state;
    uint64_t restarts = 0;
    kvg_err err;

    demo->counts.publishers_killed++;
    if (kvd_daemon_source_state(demo->daemon, NULL, &state))
        restarts = state.source.restarts;
    err = kvc_store_restart(demo->store, error);
    while (err == KVG_OK && !kvc_store_has_listener(demo->store) && !kvc_stopped &&
           kvc_now_ns() < ends)
        kvc_sleep_ns(UINT64_C(1000000));
    if (err == KVG_OK)
        err = kvc_store_say_again(demo->store);
    while (err == KVG_OK && !kvc_stopped && kvc_now_ns() < ends &&
           kvd_daemon_source_state(demo->daemon, NULL, &state) &&
           state.source.restarts == restarts)
        kvc_sleep_ns(UINT64_C(1000000));
    if (err == KVG_OK)
        err = kvc_demo_wait_fresh(demo, NULL, demo->store, error);
    if (kvc_now_ns() - began > demo->counts.recovery_ns)
        demo->counts.recovery_ns = kvc_now_ns() - began;
    return err;
}

/* Now and then something dies: an engine that works on this prompt, or the store's publisher. */
static kvg_err maybe_kill(struct kvc_demo *demo, const struct kvc_prompt *prompt,
    uint32_t page_count, struct kvg_error *error)
{
    uint64_t victim;
    kvg_err err;

    if (!demo->options->kill || page_count == 0 || draw(demo, KILL_ONE_IN) != 0)
        return KVG_OK;
    if (draw(demo, 3) == 0 && demo->counts.publishers_killed < PUBLISHERS_KILLED_MAX)
        return kill_publisher(demo, error);
    victim = draw(demo, demo->options->engines);
    demo->counts.engines_killed++;
    err = kvc_engine_kill(
        demo->engines[victim], prompt->tokens, demo->keys, page_count, error);
    return err == KVG_OK ? settle(demo, victim, error) : err;
}

kvg_err kvc_demo_serve(struct kvc_demo *demo, const struct kvc_prompt *prompt,
    uint32_t page_count, uint32_t in_store, struct kvg_error *error)
{
    struct kvc_served served;
    uint64_t best;
    kvg_err err;

    if (page_count == 0)
        return KVG_OK;
    err = route(demo, page_count, &best, error);
    if (err == KVG_OK)
        err = kvc_engine_serve(
            demo->engines[best], prompt->tokens, demo->keys, page_count, &served, error);
    if (err != KVG_OK)
        return err;
    count(&demo->counts.engines[best], served.device_tokens, served.store_tokens,
        prompt->token_count);
    count(&demo->counts.all, served.device_tokens, served.store_tokens,
        prompt->token_count);
    demo->counts.bytes_verified += served.bytes_verified;
    demo->counts.bytes_wrong += served.bytes_wrong;
    err = settle(demo, best, error);
    if (err == KVG_OK)
        err = serve_round_robin(demo, prompt, page_count,
            (uint64_t)in_store * kvc_workload_page_size(demo->workload), error);
    return err == KVG_OK ? maybe_kill(demo, prompt, page_count, error) : err;
}
