/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* Tests of the whole daemon in this process: a store that publishes, a client that asks. */
#include "daemon/config_table.h"
#include "net/loop.h"
#include "rig.h"
#include "test.h"

#include <kvgraft/page.h>

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#define WORKER(more)                                                         \
    "{\"backend\":\"mooncake\",\"page_size\":4,\"tp_size\":1,\"pp_size\":1," \
    "\"is_mla_model\":false,\"is_eagle\":false,\"should_split_heads\":false" more "}"
#define PROMPT "{\"tokens\":[1,2,3,4,5,6,7,8,9]}"

static const uint32_t TOKENS[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
static struct kvg_key keys[2]; /* Of the two pages of PROMPT. */

struct rig {
    struct store *store;
    struct kvd_config config;
    struct kvd_daemon *daemon;
    uint16_t port;
};

static void set(struct kvd_config *config, const char *key, const char *value)
{
    struct kvg_error error = {.code = KVG_OK};

    if (kvd_config_set(config, key, value, &error) != KVG_OK)
        fail_msg("%s %s", error.field, error.message);
}

static void start(struct rig *rig)
{
    struct kvg_error error = {.code = KVG_OK};

    if (kvd_daemon_new(&rig->config, &error, &rig->daemon) != KVG_OK ||
        kvd_daemon_start(rig->daemon, &error) != KVG_OK)
        fail_msg("%s %s", error.field, error.message);
    rig->port = kvd_daemon_port(rig->daemon);
    CHECK(rig->port != 0);
}

static void make(struct rig *rig)
{
    struct kvg_page_rule rule = {4, false};
    struct kvd_source_config *source;

    memset(rig, 0, sizeof(*rig));
    CHECK_EQ(kvg_page_keys(&rule, NULL, TOKENS, 9, keys, 2), 2);
    rig->store = store_new();
    kvd_config_init(&rig->config);
    set(&rig->config, "http.listen", "127.0.0.1:0");
    set(&rig->config, "log.level", "error");
    source = kvd_config_add_source(
        &rig->config, "store", store_endpoint(rig->store), store_admin_url(rig->store));
    CHECK(source != NULL);
    CHECK_EQ(kvd_config_set_workers(source, "{\"1\":" WORKER("") "}"), KVG_OK);
    set(&rig->config, "sources.0.status_interval", "20ms");
    set(&rig->config, "sources.0.count_interval", "20ms");
    set(&rig->config, "sources.0.retry_min", "10ms");
    set(&rig->config, "sources.0.retry_max", "50ms");
}

static void end(struct rig *rig)
{
    kvd_daemon_free(rig->daemon);
    kvd_config_fini(&rig->config);
    store_free(rig->store);
}

static void put_page(struct rig *rig, int page)
{
    store_put(rig->store, &keys[page], "_0_k");
    store_put(rig->store, &keys[page], "_0_v");
}

/* The answer to a request; the test ends if there is none. */
static void expect(struct rig *rig, const char *method, const char *path,
    const char *body, int status, const char *text)
{
    struct answer answer;

    CHECK(ask(rig->port, method, path, body, &answer));
    if (answer.status != status || strstr(answer.body, text) == NULL)
        fail_msg("%s %s: wanted %d %s, got %d %s", method, path, status, text,
            answer.status, answer.body);
    answer_free(&answer);
}

/* Asks for PROMPT until so many pages are contiguous. */
static void wait_pages(struct rig *rig, int pages)
{
    uint64_t until_ms = kvn_clock_ms() + 20000;
    char text[64];
    bool good = false;

    snprintf(text, sizeof(text), "\"contiguous_pages\":%d,", pages);
    while (!good) {
        struct answer answer;

        CHECK(ask(rig->port, "POST", "/v1/lookup", PROMPT, &answer));
        good = strstr(answer.body, text) != NULL;
        if (!good && kvn_clock_ms() > until_ms)
            fail_msg("never %d pages: %s", pages, answer.body);
        answer_free(&answer);
        usleep(2000);
    }
}

static void wait_fresh(struct rig *rig)
{
    ask_until(rig->port, "/readyz", 200, "\"ready\":true");
}

TEST(a_stored_page_is_found_and_a_removed_part_ends_the_prefix)
{
    struct rig rig;

    make(&rig);
    start(&rig);
    store_wait_subscriber(rig.store);
    put_page(&rig, 0);
    put_page(&rig, 1);
    wait_pages(&rig, 2);
    store_remove(rig.store, &keys[1], "_0_v");
    wait_pages(&rig, 1);
    wait_fresh(&rig);
    expect(&rig, "POST", "/v1/lookup", PROMPT, 200, "\"missing_parts\":1");
    expect(&rig, "POST", "/v1/explain", PROMPT, 200, "page 1 is the first gap");
    expect(&rig, "POST", "/query", "{\"token_ids\":[1,2,3,4,5],\"model\":\"m\"}", 200,
        "\"longest_matched\":4");
    expect(&rig, "POST", "/check_blocks", "{\"tokens\":[1,2,3,4,5]}", 200,
        "\"ranges\":[[0,1]]");
    expect(&rig, "GET", "/v1/sources", "", 200, "\"confidence\":\"fresh\"");
    ask_until(rig.port, "/metrics", 200, "kvgraft_index_pages{source=\"store\"} 2");
    end(&rig);
}

TEST(a_late_joiner_is_suspect_until_the_listing_is_in)
{
    struct rig rig;

    make(&rig);
    for (int page = 0; page < 2; page++) {
        store_put_silently(rig.store, &keys[page], "_0_k");
        store_put_silently(rig.store, &keys[page], "_0_v");
    }
    store_open_admin(rig.store, false);
    start(&rig);
    store_wait_subscriber(rig.store);
    expect(&rig, "GET", "/readyz", "", 503, "\"ready\":false");
    store_open_admin(rig.store, true);
    wait_fresh(&rig);
    wait_pages(&rig, 2);
    end(&rig);
}

TEST(a_gap_is_repaired_from_the_listing)
{
    struct rig rig;

    make(&rig);
    start(&rig);
    store_wait_subscriber(rig.store);
    put_page(&rig, 0);
    wait_pages(&rig, 1);
    wait_fresh(&rig);
    store_put_silently(rig.store, &keys[1], "_0_k");
    store_skip(rig.store);
    store_put(rig.store, &keys[1], "_0_v");
    wait_pages(&rig, 2);
    wait_fresh(&rig);
    ask_until(rig.port, "/metrics", 200, "kvgraft_source_gaps_total{source=\"store\"} 1");
    end(&rig);
}

TEST(a_bad_request_says_what_to_change)
{
    struct rig rig;
    struct answer answer;
    char *large = calloc(1, 8192);

    make(&rig);
    set(&rig.config, "http.body_bytes_max", "4096");
    start(&rig);
    expect(&rig, "POST", "/v1/lookup", "{\"tokens\":[1,-2]}", 400, "tokens[1]");
    expect(&rig, "POST", "/v1/lookup", "{}", 400, "tokens are missing");
    expect(&rig, "POST", "/v1/lookup", "{\"tokens\":[1],\"wat\":1}", 400,
        "\"field\":\"wat\"");
    expect(&rig, "POST", "/v1/lookup", "{\"tokens\":[1],\"page_size\":16}", 409,
        "pages of 4 tokens");
    expect(
        &rig, "POST", "/v1/lookup", "{\"tokens\":[1],\"worker_id\":9}", 404, "worker_id");
    expect(&rig, "POST", "/v1/lookup", "{\"tokens\":[1],\"source\":\"x\"}", 404,
        "does not exist");
    expect(&rig, "POST", "/v1/lookup", "{\"tokens\":[1],\"lora_name\":\"x\"}", 400,
        "extra_key");
    expect(&rig, "POST", "/query_by_hash", "{\"seq_hashes\":[1]}", 400, "64 hex digits");
    expect(&rig, "GET", "/nothing", "", 404, "no such path");
    expect(&rig, "GET", "/v1/lookup", "", 405, "method");
    expect(&rig, "POST", "/register", "{\"instance_id\":\"a\"}", 400, "endpoint");
    expect(&rig, "POST", "/register",
        "{\"instance_id\":\"a\",\"endpoint\":\"tcp://a:1\",\"type\":\"vLLM\"}", 501,
        "Mooncake");
    expect(&rig, "PUT", "/v1/workers", "{\"x\":1}", 400, "worker id");
    CHECK(ask_bytes(
        rig.port, "POST", "/v1/lookup", "Content-Type: text/html\r\n", "x", 1, &answer));
    CHECK_EQ(answer.status, 415);
    answer_free(&answer);
    CHECK(ask_bytes(rig.port, "POST", "/v1/lookup", "", large, 8192, &answer));
    CHECK_EQ(answer.status, 413);
    CHECK(strstr(answer.body, "http.body_bytes_max") != NULL);
    answer_free(&answer);
    free(large);
    end(&rig);
}

TEST(a_token_is_asked_for_everywhere_but_at_the_probes)
{
    struct rig rig;
    struct answer answer;

    make(&rig);
    set(&rig.config, "http.token", "secret");
    start(&rig);
    expect(&rig, "GET", "/healthz", "", 200, "alive");
    expect(&rig, "GET", "/metrics", "", 401, "Bearer");
    /* The page's own files hold no data; what it shows does. */
    expect(&rig, "GET", "/", "", 200, "page.js");
    expect(&rig, "GET", "/v1/live", "", 401, "Bearer");
    expect(&rig, "GET", "/v1/hot", "", 401, "Bearer");
    CHECK(ask_bytes(
        rig.port, "GET", "/metrics", "Authorization: Bearer secrex\r\n", "", 0, &answer));
    CHECK_EQ(answer.status, 401);
    answer_free(&answer);
    CHECK(ask_bytes(
        rig.port, "GET", "/metrics", "Authorization: Bearer secret\r\n", "", 0, &answer));
    CHECK_EQ(answer.status, 200);
    answer_free(&answer);
    end(&rig);
}

TEST(binary_tokens_give_the_same_answer)
{
    struct rig rig;
    struct answer answer;

    make(&rig);
    start(&rig);
    store_wait_subscriber(rig.store);
    put_page(&rig, 0);
    put_page(&rig, 1);
    wait_pages(&rig, 2);
    CHECK(ask_bytes(rig.port, "POST", "/v1/lookup?cap_last_page=true&start=1",
        "Content-Type: application/octet-stream\r\n", TOKENS, 32, &answer));
    CHECK_EQ(answer.status, 200);
    CHECK(
        strstr(answer.body, "\"pages\":1,") != NULL); /* 8 tokens, the last one capped. */
    answer_free(&answer);
    CHECK(ask_bytes(rig.port, "POST", "/v1/lookup",
        "Content-Type: application/octet-stream\r\n", TOKENS, 30, &answer));
    CHECK_EQ(answer.status, 400);
    answer_free(&answer);
    end(&rig);
}

TEST(many_prompts_are_answered_in_one_question)
{
    struct rig rig;

    make(&rig);
    start(&rig);
    store_wait_subscriber(rig.store);
    put_page(&rig, 0);
    wait_pages(&rig, 1);
    expect(&rig, "POST", "/v1/lookup", "{\"prompts\":[[1,2,3,4],[],[1,2,3,4,5,6,7,8]]}",
        200, "\"results\":[{\"source\"");
    expect(&rig, "POST", "/v1/lookup", "{\"prompts\":[[1,2,3,4],[9,9,9,9]]}", 200,
        "\"present_pages\":0");
    expect(&rig, "POST", "/v1/lookup", "{\"prompts\":[]}", 200, "{\"results\":[],");
    expect(
        &rig, "POST", "/v1/lookup", "{\"prompts\":[[1],[2,-1]]}", 400, "prompts[1][1]");
    expect(
        &rig, "POST", "/v1/lookup", "{\"prompts\":[[1]],\"tokens\":[1]}", 400, "twice");
    expect(
        &rig, "POST", "/v1/explain", "{\"prompts\":[[1]]}", 400, "prompts are not taken");
    end(&rig);
}

TEST(what_was_asked_is_remembered_for_the_page)
{
    struct rig rig;
    char hex[KVG_KEY_HEX_BYTES];
    char text[128];

    make(&rig);
    set(&rig.config, "sources.0.part_bytes", "1000");
    start(&rig);
    store_wait_subscriber(rig.store);
    put_page(&rig, 0);
    wait_pages(&rig, 1);
    kvg_key_to_hex(&keys[1], hex);
    hex[16] = '\0';
    snprintf(text, sizeof(text), "\"last_prefix\":\"%s\"", hex);
    ask_until(rig.port, "/v1/hot", 200, text);
    snprintf(text, sizeof(text), "/v1/hot?prefix=%s&tenant=default&page_size=4", hex);
    expect(&rig, "GET", text, "", 200, "\"path\":[{\"prefix\":null");
    expect(&rig, "GET", "/v1/hot?tenant=nosuch", "", 404, "source");
    expect(&rig, "GET", "/v1/hot?prefix=123", "", 400, "hex digits");
    expect(&rig, "GET", "/v1/live?since=x", "", 400, "whole number");
    ask_until(rig.port, "/v1/live", 200, "\"cpu_bytes\":2000,\"disk_bytes\":0");
    expect(&rig, "GET", "/v1/live?since=99999", "", 200, "\"span_ms\":[]");
    end(&rig);
}

TEST(tenants_and_namespaces_do_not_mix)
{
    struct rig rig;

    make(&rig);
    start(&rig);
    store_wait_subscriber(rig.store);
    put_page(&rig, 0);
    wait_pages(&rig, 1);
    expect(&rig, "POST", "/v1/lookup", "{\"tokens\":[1,2,3,4],\"tenant\":\"other\"}", 200,
        "\"present_pages\":0");
    expect(&rig, "POST", "/v1/lookup", "{\"tokens\":[1,2,3,4],\"tenant\":\"default\"}",
        200, "\"present_pages\":1");
    expect(&rig, "POST", "/v1/lookup", "{\"tokens\":[1,2,3,4],\"cache_salt\":\"s\"}", 200,
        "\"present_pages\":0");
    end(&rig);
}

TEST(workers_can_be_put_and_a_bad_one_is_told)
{
    struct rig rig;

    make(&rig);
    start(&rig);
    expect(&rig, "PUT", "/v1/workers",
        "{\"5\":" WORKER(",\"extra_backend_tag\":\"t\"") "}", 200, "\"prefix\":\"t\"");
    expect(&rig, "GET", "/v1/workers", "", 200, "\"worker_id\":\"5\"");
    expect(&rig, "POST", "/v1/lookup", "{\"tokens\":[1,2,3,4],\"worker_id\":1}", 404,
        "worker_id");
    expect(&rig, "PUT", "/v1/workers", "{\"5\":{\"backend\":\"mooncake\"}}", 200,
        "\"usable\":false");
    expect(&rig, "POST", "/v1/lookup", PROMPT, 409, "PUT /v1/workers");
    end(&rig);
}

TEST(a_source_can_be_registered_and_taken_away)
{
    struct rig rig;
    char body[512];

    make(&rig);
    start(&rig);
    store_wait_subscriber(rig.store);
    snprintf(body, sizeof(body),
        "{\"instance_id\":\"two\",\"endpoint\":\"%s\",\"admin_url\":\"%s\","
        "\"type\":\"Mooncake\",\"block_size\":4}",
        store_endpoint(rig.store), store_admin_url(rig.store));
    expect(&rig, "POST", "/register", body, 201, "registered");
    expect(&rig, "POST", "/register", body, 409, "exists already");
    store_wait_subscriber(rig.store);
    put_page(&rig, 0);
    ask_until(rig.port, "/metrics", 200, "kvgraft_index_pages{source=\"two\"} 1");
    expect(&rig, "POST", "/v1/lookup", "{\"tokens\":[1,2,3,4],\"source\":\"two\"}", 200,
        "\"source\":\"two\"");
    expect(&rig, "POST", "/unregister", "{\"instance_id\":\"two\"}", 200, "unregistered");
    expect(
        &rig, "POST", "/unregister", "{\"instance_id\":\"two\"}", 404, "does not exist");
    end(&rig);
}

TEST(an_index_survives_a_restart_and_is_suspect_first)
{
    char folder[] = "/tmp/kvgraft-dump-XXXXXX";
    char path[128];
    struct rig rig;

    CHECK(mkdtemp(folder) != NULL);
    make(&rig);
    set(&rig.config, "dump.path", folder);
    start(&rig);
    store_wait_subscriber(rig.store);
    put_page(&rig, 0);
    wait_pages(&rig, 1);
    kvd_daemon_free(rig.daemon);

    store_open_admin(rig.store, false);
    start(&rig);
    wait_pages(&rig, 1);
    expect(&rig, "GET", "/readyz", "", 503, "loaded");
    store_open_admin(rig.store, true);
    wait_fresh(&rig);
    end(&rig);
    snprintf(path, sizeof(path), "%s/store.kvgdump", folder);
    CHECK_EQ(remove(path), 0);
    CHECK_EQ(rmdir(folder), 0);
}

TEST(a_reload_changes_sources_and_keeps_what_stays)
{
    struct rig rig;
    struct kvd_config other;
    struct kvg_error error = {.code = KVG_OK};

    make(&rig);
    start(&rig);
    store_wait_subscriber(rig.store);
    put_page(&rig, 0);
    wait_pages(&rig, 1);
    CHECK_EQ(kvd_config_copy(&other, &rig.config), KVG_OK);
    CHECK(kvd_config_add_source(&other, "more", "tcp://127.0.0.1:1", "") != NULL);
    CHECK_EQ(kvd_daemon_reload(rig.daemon, &other, &error), KVG_OK);
    expect(&rig, "GET", "/v1/sources", "", 200, "\"name\":\"more\"");
    wait_pages(&rig, 1);
    CHECK_EQ(kvd_daemon_reload(rig.daemon, &rig.config, &error), KVG_OK);
    expect(&rig, "POST", "/v1/lookup", "{\"tokens\":[1],\"source\":\"more\"}", 404,
        "does not exist");
    kvd_config_fini(&other);
    end(&rig);
}

TEST(the_other_profile_answers_like_the_client_it_is_named_after)
{
    struct rig rig;

    make(&rig);
    set(&rig.config, "sources.0.profile", "dynamo-1.5");
    start(&rig);
    store_wait_subscriber(rig.store);
    put_page(&rig, 1);
    ask_until(
        rig.port, "/metrics", 200, "kvgraft_dynamo_present_keys{source=\"store\"} 2");
    expect(&rig, "POST", "/v1/lookup", PROMPT, 200, "\"ranges\":[[1,2]]");
    store_skip(rig.store);
    put_page(&rig, 0);
    ask_until(rig.port, "/metrics", 200,
        "kvgraft_dynamo_clears_total{source=\"store\",cause=\"gap\"} 1");
    expect(&rig, "POST", "/v1/lookup", PROMPT, 200, "\"ranges\":[[0,1]]");
    end(&rig);
}

TEST(rubbish_is_counted_and_changes_nothing)
{
    static char rubbish[100000];
    struct rig rig;

    make(&rig);
    set(&rig.config, "sources.0.message_bytes_max", "64KiB");
    start(&rig);
    store_wait_subscriber(rig.store);
    put_page(&rig, 0);
    wait_pages(&rig, 1);
    for (int i = 0; i < 50; i++)
        store_send_rubbish(rig.store, rubbish, 1000);
    ask_until(rig.port, "/metrics", 200,
        "kvgraft_source_bad_frames_total{source=\"store\"} 50");
    wait_pages(&rig, 1);
    /* A frame over the limit: the publisher is cut off, and followed again. */
    store_send_rubbish(rig.store, rubbish, sizeof(rubbish));
    store_wait_subscriber(rig.store);
    put_page(&rig, 1);
    wait_pages(&rig, 2);
    wait_fresh(&rig);
    end(&rig);
}

struct asking {
    struct rig *rig;
    atomic_bool stop;
    atomic_int answered;
};

static void *keep_asking(void *context)
{
    static const char *const PATHS[] = {
        "/v1/sources", "/metrics", "/readyz", "/v1/workers", "/v1/live", "/v1/hot"};
    struct asking *asking = context;

    for (int i = 0; !atomic_load(&asking->stop); i++) {
        struct answer answer;
        bool good = i % 3 == 0
                        ? ask(asking->rig->port, "GET", PATHS[i / 3 % 6], "", &answer)
                        : ask(asking->rig->port, "POST", "/v1/lookup", PROMPT, &answer);

        if (good)
            atomic_fetch_add(&asking->answered, 1);
        answer_free(&answer);
    }
    return NULL;
}

TEST(answers_go_on_while_sources_and_workers_change)
{
    struct rig rig;
    struct asking asking = {.rig = &rig};
    pthread_t threads[3];
    char body[256];

    make(&rig);
    start(&rig);
    store_wait_subscriber(rig.store);
    for (int i = 0; i < 3; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, keep_asking, &asking), 0);
    snprintf(body, sizeof(body),
        "{\"instance_id\":\"two\",\"endpoint\":\"%s\",\"block_size\":4}",
        store_endpoint(rig.store));
    for (int i = 0; i < 15; i++) {
        put_page(&rig, i % 2);
        store_remove(rig.store, &keys[(i + 1) % 2], "_0_k");
        expect(&rig, "POST", "/register", body, 201, "registered");
        expect(&rig, "PUT", "/v1/workers",
            "{\"1\":" WORKER("") ",\"2\":" WORKER(",\"extra_backend_tag\":\"t\"") "}",
            200, "layouts");
        expect(&rig, "POST", "/unregister", "{\"instance_id\":\"two\"}", 200,
            "unregistered");
        expect(&rig, "PUT", "/v1/workers", "{\"1\":" WORKER("") "}", 200, "layouts");
        expect(&rig, "GET", "/v1/dump", "", 200, "");
    }
    atomic_store(&asking.stop, true);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    CHECK(atomic_load(&asking.answered) > 0);
    end(&rig);
}

/* Memory that says no now and then, to any thread; counts what is out. */
struct scarce {
    struct kvg_alloc alloc;
    atomic_ullong calls;
    atomic_llong live_bytes;
    atomic_uint every; /* 0: never. */
};

static void *scarce_allocate(void *context, size_t bytes)
{
    struct scarce *scarce = context;
    unsigned long long call = atomic_fetch_add(&scarce->calls, 1);
    unsigned every = atomic_load(&scarce->every);
    void *memory;

    if (every > 0 && call % every == every - 1)
        return NULL;
    memory = malloc(bytes);
    if (memory != NULL)
        atomic_fetch_add(&scarce->live_bytes, (long long)bytes);
    return memory;
}

static void scarce_release(void *context, void *memory, size_t bytes)
{
    struct scarce *scarce = context;

    if (memory != NULL)
        atomic_fetch_sub(&scarce->live_bytes, (long long)bytes);
    free(memory);
}

static void ask_everything(struct rig *rig)
{
    static const char *const GETS[] = {"/v1/sources", "/v1/workers", "/metrics",
        "/readyz", "/v1/dump", "/", "/v1/live", "/v1/hot", "/page.js"};
    struct answer answer;

    for (size_t i = 0; i < sizeof(GETS) / sizeof(GETS[0]); i++) {
        (void)ask(rig->port, "GET", GETS[i], "", &answer);
        answer_free(&answer);
    }
    (void)ask(rig->port, "POST", "/v1/lookup", PROMPT, &answer);
    answer_free(&answer);
    (void)ask(rig->port, "POST", "/v1/explain", PROMPT, &answer);
    answer_free(&answer);
    (void)ask(rig->port, "PUT", "/v1/workers", "{\"1\":" WORKER("") "}", &answer);
    answer_free(&answer);
}

TEST(a_daemon_short_of_memory_goes_on_and_leaks_nothing)
{
    for (unsigned every = 2; every < 60; every += every < 12 ? 1 : 9) {
        struct scarce scarce = {.every = 0};
        struct kvg_error error = {.code = KVG_OK};
        struct rig rig;

        scarce.alloc = (struct kvg_alloc){scarce_allocate, scarce_release, &scarce};
        make(&rig);
        CHECK_EQ(
            kvd_daemon_new_in(&scarce.alloc, &rig.config, &error, &rig.daemon), KVG_OK);
        CHECK_EQ(kvd_daemon_start(rig.daemon, &error), KVG_OK);
        rig.port = kvd_daemon_port(rig.daemon);
        store_wait_subscriber(rig.store);
        put_page(&rig, 0);
        wait_pages(&rig, 1);
        atomic_store(&scarce.every, every);
        for (int i = 0; i < 3; i++) {
            put_page(&rig, i % 2);
            ask_everything(&rig);
        }
        atomic_store(&scarce.every, 0);
        store_put(rig.store, &keys[1], "_0_k");
        store_put(rig.store, &keys[1], "_0_v");
        wait_pages(&rig, 2);
        wait_fresh(&rig);
        kvd_daemon_free(rig.daemon);
        rig.daemon = NULL;
        CHECK_EQ(atomic_load(&scarce.live_bytes), 0);
        end(&rig);
    }
}

TEST(a_daemon_that_cannot_be_made_for_want_of_memory_leaves_nothing)
{
    struct scarce scarce = {.every = 0};
    struct kvg_error error = {.code = KVG_OK};
    struct kvd_daemon *daemon = NULL;
    struct rig rig;
    kvg_err err = KVG_ENOMEM;

    scarce.alloc = (struct kvg_alloc){scarce_allocate, scarce_release, &scarce};
    make(&rig);
    for (unsigned nth = 1; err != KVG_OK; nth++) {
        atomic_store(&scarce.calls, 0);
        atomic_store(&scarce.every, nth);
        err = kvd_daemon_new_in(&scarce.alloc, &rig.config, &error, &daemon);
        atomic_store(&scarce.every, 0);
        kvd_daemon_free(daemon);
        CHECK_EQ(atomic_load(&scarce.live_bytes), 0);
        assert_true(nth < 10000);
    }
    end(&rig);
}

static char *read_text(const char *path)
{
    FILE *file = fopen(path, "rb");
    char *text = calloc(1, 1 << 20);

    assert_non_null(file);
    assert_non_null(text);
    CHECK(fread(text, 1, (1 << 20) - 1, file) > 0);
    fclose(file);
    return text;
}

TEST(every_metric_and_every_key_stands_in_the_manual)
{
    struct rig rig;
    struct answer answer;
    char *manual = read_text(KVG_TEST_DATA "/../../docs/operations.md");
    char wanted[128];
    size_t metrics = 0;

    make(&rig);
    start(&rig);
    CHECK(ask(rig.port, "GET", "/metrics", "", &answer));
    for (char *at = strstr(answer.body, "# HELP "); at != NULL;
         at = strstr(at, "# HELP ")) {
        at += 7;
        snprintf(wanted, sizeof(wanted), "| `%.*s` |", (int)strcspn(at, " "), at);
        if (strstr(manual, wanted) == NULL)
            fail_msg("docs/operations.md lacks %s", wanted);
        metrics++;
    }
    CHECK(metrics > 40);
    answer_free(&answer);
    for (size_t i = 0; i < KVD_KEY_COUNT + KVD_SOURCE_KEY_COUNT; i++) {
        const struct kvd_key *key =
            i < KVD_KEY_COUNT ? &KVD_KEYS[i] : &KVD_SOURCE_KEYS[i - KVD_KEY_COUNT];

        snprintf(wanted, sizeof(wanted), "| `%s.%s` |",
            key->group != NULL ? key->group : "sources[]", key->name);
        if (strstr(manual, wanted) == NULL)
            fail_msg("docs/operations.md lacks %s", wanted);
    }
    free(manual);
    end(&rig);
}

TEST(a_daemon_that_cannot_start_says_why)
{
    struct rig rig;
    struct kvd_daemon *second;
    struct kvg_error error = {.code = KVG_OK};
    char address[64];

    make(&rig);
    start(&rig);
    snprintf(address, sizeof(address), "127.0.0.1:%u", (unsigned)rig.port);
    set(&rig.config, "http.listen", address);
    CHECK_EQ(kvd_daemon_new(&rig.config, &error, &second), KVG_OK);
    CHECK_EQ(kvd_daemon_start(second, &error), KVG_EIO);
    CHECK_STR(error.field, "http.listen");
    kvd_daemon_free(second);
    set(&rig.config, "http.listen", "nonsense");
    CHECK_EQ(kvd_daemon_new(&rig.config, &error, &second), KVG_EINVAL);
    end(&rig);
}

TEST_MAIN(RUN(a_stored_page_is_found_and_a_removed_part_ends_the_prefix),
    RUN(a_late_joiner_is_suspect_until_the_listing_is_in),
    RUN(a_gap_is_repaired_from_the_listing), RUN(a_bad_request_says_what_to_change),
    RUN(a_token_is_asked_for_everywhere_but_at_the_probes),
    RUN(binary_tokens_give_the_same_answer),
    RUN(many_prompts_are_answered_in_one_question),
    RUN(what_was_asked_is_remembered_for_the_page),
    RUN(tenants_and_namespaces_do_not_mix), RUN(workers_can_be_put_and_a_bad_one_is_told),
    RUN(a_source_can_be_registered_and_taken_away),
    RUN(an_index_survives_a_restart_and_is_suspect_first),
    RUN(a_reload_changes_sources_and_keeps_what_stays),
    RUN(the_other_profile_answers_like_the_client_it_is_named_after),
    RUN(rubbish_is_counted_and_changes_nothing),
    RUN(answers_go_on_while_sources_and_workers_change),
    RUN(a_daemon_short_of_memory_goes_on_and_leaks_nothing),
    RUN(a_daemon_that_cannot_be_made_for_want_of_memory_leaves_nothing),
    RUN(every_metric_and_every_key_stands_in_the_manual),
    RUN(a_daemon_that_cannot_start_says_why))
