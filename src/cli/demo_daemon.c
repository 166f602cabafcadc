/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* demo_daemon.c -- the daemon inside the demonstration: started like `kvgraft serve` does, asked
 * over HTTP like a router does. */
#include "cli/demo.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define FRESH_WAIT_NS UINT64_C(20000000000)
#define ASK_TIMEOUT_MS 30000u

static kvg_err fail(
    struct kvg_error *error, kvg_err code, const char *field, const char *message)
{
    error->code = code;
    snprintf(error->field, sizeof(error->field), "%s", field);
    snprintf(error->message, sizeof(error->message), "%s", message);
    return code;
}

/* How pages are stored, as workers advertise it; of a device a page is one object. */
static char *advertise(const struct kvc_demo *demo, const struct kvc_store *published,
    bool is_device, uint64_t worker_count)
{
    json_t *workers = json_object();
    char *text;
    uint64_t i;

    for (i = 0; i < worker_count; i++) {
        char id[24];

        snprintf(id, sizeof(id), "%" PRIu64, i + 1);
        json_object_set_new(workers, id,
            json_pack("{s:s, s:i, s:i, s:i, s:b, s:b, s:b, s:s}", "backend", "mooncake",
                "page_size", (int)kvc_workload_page_size(demo->workload), "tp_size",
                is_device ? 1 : (int)demo->options->tp_size, "pp_size", 1, "is_mla_model",
                is_device, "is_eagle", 0, "should_split_heads", 0, "kv_events_endpoint",
                kvc_store_endpoint(published)));
    }
    text = json_dumps(workers, JSON_COMPACT);
    json_decref(workers);
    return text;
}

static kvg_err add_source(struct kvc_demo *demo, struct kvd_config *config,
    const char *name, const struct kvc_store *published, bool is_device,
    struct kvg_error *error)
{
    struct kvd_source_config *source = kvd_config_add_source(
        config, name, kvc_store_endpoint(published), kvc_store_admin_url(published));
    char *workers =
        advertise(demo, published, is_device, is_device ? 1 : demo->options->engines);
    kvg_err err;

    if (source == NULL || workers == NULL) {
        free(workers);
        return fail(error, KVG_EINVAL, "demo", "the source cannot be configured");
    }
    source->memory_bytes_max =
        is_device ? UINT64_C(64) << 20 : demo->options->memory_bytes_max;
    source->receive_hwm = 100000;
    err = kvd_config_set_workers(source, workers);
    free(workers);
    return err;
}

const char *kvc_demo_source(uint64_t engine, char out[KVC_SOURCE_BYTES])
{
    snprintf(out, KVC_SOURCE_BYTES, "engine-%u", (unsigned)engine + 1);
    return out;
}

static kvg_err configure(struct kvc_demo *demo, const char *listen,
    struct kvd_config *config, struct kvg_error *error)
{
    char name[KVC_SOURCE_BYTES];
    kvg_err err = kvd_config_set(config, "http.listen", listen, error);
    uint64_t i;

    config->log_level = demo->options->kill ? KVG_LOG_ERROR : KVG_LOG_WARN;
    config->http_body_bytes_max = UINT64_C(256) << 20;
    if (err == KVG_OK)
        err = add_source(demo, config, "demo", demo->store, false, error);
    for (i = 0; i < demo->options->engines && err == KVG_OK; i++)
        err = add_source(demo, config, kvc_demo_source(i, name),
            kvc_engine_published(demo->engines[i]), true, error);
    return err == KVG_OK ? kvd_config_finish(config, error) : err;
}

/* Starts the daemon at that address. */
static kvg_err start_at(
    struct kvc_demo *demo, const char *listen, struct kvg_error *error)
{
    struct kvd_config *config = malloc(sizeof(*config));
    kvg_err err;

    if (config == NULL)
        return fail(error, KVG_ENOMEM, "demo", "out of memory");
    kvd_config_init(config);
    err = configure(demo, listen, config, error);
    if (err == KVG_OK)
        err = kvd_daemon_new(config, error, &demo->daemon);
    kvd_config_fini(config);
    free(config);
    if (err == KVG_OK)
        err = kvd_daemon_start(demo->daemon, error);
    if (err != KVG_OK) {
        kvd_daemon_free(demo->daemon);
        demo->daemon = NULL;
    }
    return err;
}

kvg_err kvc_demo_wait_fresh(struct kvc_demo *demo, const char *source,
    struct kvc_store *published, struct kvg_error *error)
{
    uint64_t ends = kvc_now_ns() + FRESH_WAIT_NS;
    struct kvd_source_state state;

    while (!kvc_stopped && kvc_now_ns() < ends) {
        if (kvc_store_has_listener(published) &&
            kvd_daemon_source_state(demo->daemon, source, &state) &&
            state.source.confidence == KVG_CONFIDENCE_FRESH)
            return KVG_OK;
        kvc_sleep_ns(UINT64_C(5000000));
    }
    return fail(error, kvc_stopped ? KVG_ECANCELED : KVG_ETIMEOUT, "daemon",
        kvc_stopped ? "stopped" : "its answers do not become fresh");
}

kvg_err kvc_demo_start(struct kvc_demo *demo, struct kvg_error *error)
{
    struct kvc_http_options http = {demo->url, NULL, ASK_TIMEOUT_MS};
    kvg_err err = start_at(demo, demo->options->listen, error);
    char name[KVC_SOURCE_BYTES];
    uint64_t i;

    if (err == KVG_EIO || err == KVG_EBUSY || err == KVG_EEXIST) {
        if (!demo->options->common.quiet)
            fprintf(stderr, "%s: %s; taking any free port\n", demo->options->listen,
                error->message);
        err = start_at(demo, "127.0.0.1:0", error);
    }
    if (err != KVG_OK)
        return err;
    snprintf(demo->url, sizeof(demo->url), "http://127.0.0.1:%u",
        (unsigned)kvd_daemon_port(demo->daemon));
    err = kvc_http_new(&http, error, &demo->http);
    if (err == KVG_OK)
        err = kvc_demo_wait_fresh(demo, NULL, demo->store, error);
    for (i = 0; i < demo->options->engines && err == KVG_OK; i++)
        err = kvc_demo_wait_fresh(demo, kvc_demo_source(i, name),
            kvc_engine_published(demo->engines[i]), error);
    return err;
}

static enum kvg_confidence confidence_of(const char *word)
{
    int each;

    for (each = KVG_CONFIDENCE_FRESH; each > KVG_CONFIDENCE_BLIND; each--) {
        if (word != NULL &&
            strcmp(word, kvg_confidence_name((enum kvg_confidence)each)) == 0)
            break;
    }
    return (enum kvg_confidence)each;
}

static kvg_err ask(struct kvc_demo *demo, const struct kvc_http_request *request,
    struct kvc_demo_answer *out, struct kvg_error *error)
{
    struct kvc_http_answer answer;
    json_error_t where;
    json_t *body;
    kvg_err err = kvc_http_ask(demo->http, request, &answer, error);

    if (err != KVG_OK)
        return err;
    body = json_loadb(answer.body.data, answer.body.bytes, 0, &where);
    if (answer.status != 200 || !json_is_object(body)) {
        snprintf(error->message, sizeof(error->message), "status %" PRIu32 ": %.120s",
            answer.status, answer.body.data);
        snprintf(error->field, sizeof(error->field), "/v1/lookup");
        error->code = err = KVG_EFORMAT;
    } else {
        out->pages = (uint32_t)json_integer_value(json_object_get(body, "pages"));
        out->contiguous =
            (uint32_t)json_integer_value(json_object_get(body, "contiguous_pages"));
        out->confidence =
            confidence_of(json_string_value(json_object_get(body, "confidence")));
    }
    json_decref(body);
    return err;
}

kvg_err kvc_demo_ask(struct kvc_demo *demo, const struct kvc_prompt *prompt,
    struct kvc_demo_answer *out, struct kvg_error *error)
{
    struct kvc_http_request request = {.method = "POST",
        .path = "/v1/lookup?ranges_max=0",
        .content_type = "application/octet-stream",
        .body = {(const char *)prompt->tokens, prompt->token_count * 4}};

    return ask(demo, &request, out, error);
}

/* {"source":"engine-1","ranges_max":0,"page_size":64,"page_keys":["..."]} */
static char *write_question(const struct kvc_demo *demo, const char *source,
    const struct kvg_key *keys, uint32_t key_count, size_t *bytes_out)
{
    size_t room = (size_t)key_count * 67 + 128;
    char *text = malloc(room);
    size_t at;
    uint32_t i;

    if (text == NULL)
        return NULL;
    at = (size_t)snprintf(text, room,
        "{\"source\":\"%s\",\"ranges_max\":0,\"page_size\":%u,\"page_keys\":[", source,
        (unsigned)kvc_workload_page_size(demo->workload));
    for (i = 0; i < key_count; i++) {
        text[at++] = '"';
        kvg_key_to_hex(&keys[i], text + at);
        at += 64;
        text[at++] = '"';
        text[at++] = ',';
    }
    text[at - 1] = ']';
    text[at++] = '}';
    *bytes_out = at;
    return text;
}

kvg_err kvc_demo_ask_engine(struct kvc_demo *demo, uint64_t engine,
    const struct kvg_key *keys, uint32_t key_count, uint32_t *held,
    struct kvg_error *error)
{
    struct kvc_http_request request = {
        .method = "POST", .path = "/v1/lookup", .content_type = "application/json"};
    struct kvc_demo_answer answer;
    char name[KVC_SOURCE_BYTES];
    size_t bytes;
    char *text =
        write_question(demo, kvc_demo_source(engine, name), keys, key_count, &bytes);
    kvg_err err;

    *held = 0;
    if (text == NULL)
        return fail(error, KVG_ENOMEM, "demo", "out of memory");
    request.body = (struct kvg_str){text, bytes};
    err = ask(demo, &request, &answer, error);
    free(text);
    if (err == KVG_OK)
        *held = answer.contiguous;
    return err;
}
