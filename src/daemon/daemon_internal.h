/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* daemon_internal.h -- what the daemon's files share.
 *
 *     daemon.c      life: start, reload, stop; the loop's thread; publishing
 *     http.c        libmicrohttpd: connections, bodies, routes, suspended requests
 *     params.c      what a request says, from JSON or from its query string
 *     answer.c      a question about a prompt, answered
 *     pulse.c       what is remembered for the page
 *     routes_*.c    one function a path
 */
#ifndef KVD_DAEMON_INTERNAL_H
#define KVD_DAEMON_INTERNAL_H

#include "daemon/daemon.h"
#include "daemon/feed.h"
#include "daemon/log.h"
#include "daemon/metrics.h"
#include "daemon/pulse.h"
#include "daemon/scan.h"
#include "daemon/snapshot.h"

#include <jansson.h>
#include <microhttpd.h>

#define KVD_MEMOS_MAX 4u              /* Page rules that a thread remembers prompts of. */
#define KVD_KEEP_BYTES_MAX (8u << 20) /* Of a buffer, between requests. */

struct kvd_memo {
    struct kvg_page_memo *memo;
    struct kvg_page_rule rule;
    uint64_t used; /* Turn of the last use. */
    struct kvg_page_memo_stats counted;
};

/* What belongs to one thread that answers. */
struct kvd_answerer {
    size_t seat;
    struct kvd_block *block;
    struct kvd_scan scan;
    struct kvg_key *keys;
    size_t key_capacity;
    struct kvg_range *ranges;
    size_t range_capacity;
    struct kvd_memo memos[KVD_MEMOS_MAX];
    uint64_t turn;
};

struct kvd_daemon {
    const struct kvg_alloc *alloc;
    struct kvd_config config; /* Loop, once started. */
    struct kvd_log *log;
    struct kvn_loop *loop;
    struct kvn_zmq *zmq;
    struct kvn_resolver *resolver;
    pthread_t thread;
    bool thread_runs;
    struct kvn_timer tick;
    uint64_t next_dump_ms;
    struct kvd_feed *feeds[KVD_SOURCES_MAX]; /* Loop. */
    size_t feed_count;
    struct kvd_feed
        *leaving[4 * KVD_SOURCES_MAX]; /* Stopped; freed when no snapshot names them. */
    size_t leaving_count;
    bool publish_failed;
    struct kvd_publisher publisher;
    uint64_t started_ms;
    int64_t started_s;

    /* HTTP. */
    struct MHD_Daemon *tcp;
    struct MHD_Daemon *unix_socket;
    uint16_t port;
    size_t answerer_count;
    struct kvd_answerer *answerers;
    struct kvd_block *blocks;
    struct kvd_pulse *pulse;
    atomic_size_t seats_taken;
    pthread_mutex_t http_lock; /* Of what follows. */
    pthread_cond_t http_idle;
    char token[KVD_TOKEN_BYTES];
    size_t jobs;     /* Requests that wait for the loop. */
    size_t requests; /* Under way. */
    bool closing;
    atomic_uint_least64_t body_bytes_max;
    atomic_uint_least64_t bodies_bytes; /* Held by all requests. */
    uint64_t pages_max;                 /* These do not change while it runs. */
    uint64_t memo_bytes_max;
    uint64_t memo_seed;
    atomic_bool dumping;
};

/* Requests --------------------------------------------------------------------------------- */

struct kvd_request;

enum kvd_route_flags {
    KVD_ON_LOOP = 1,  /* Runs on the loop's thread; the connection waits. */
    KVD_NO_TOKEN = 2, /* Needs no bearer token. */
    KVD_BINARY = 4    /* Takes application/octet-stream too. */
};

struct kvd_route {
    const char *method;
    const char *path;
    void (*run)(struct kvd_request *request);
    unsigned flags; /* Of enum kvd_route_flags. */
};
extern const struct kvd_route KVD_ROUTES[];
extern const size_t KVD_ROUTE_COUNT;

struct kvd_request {
    struct kvd_daemon *daemon;
    struct MHD_Connection *connection;
    const struct kvd_route *route;
    struct kvd_answerer *answerer; /* Not on the loop. */
    struct kvd_snapshot *snapshot; /* While it runs on an answering thread. */
    bool is_binary;
    bool is_refused; /* An answer stands before the body was read. */
    bool answered;
    bool tenant_made; /* The loop was asked once already. */
    char tenant_wanted
        [KVD_NAME_BYTES]; /* Not empty: ask the loop for it, then run again. */
    char source_wanted[KVD_NAME_BYTES];
    struct kvd_out body;
    json_t *json; /* The request's object, without long arrays; owned. */
    struct kvn_task job;
    uint64_t began_us;
    unsigned status;
    const char *content_type;
    const char *allow;  /* With status 405. */
    const char *policy; /* Content-Security-Policy, or NULL. */
    struct kvd_out out;
    int file; /* Answer with this file instead of `out`; -1. */
};

/* Sets the answer; what was written to `out` before is dropped. */
void kvd_problem(struct kvd_request *request, unsigned status, const char *code,
    const char *field, const char *detail);
/* The same; the detail is "FIELD PREDICATE". */
void kvd_refuse(struct kvd_request *request, unsigned status, const char *code,
    const char *field, const char *predicate);
void kvd_problem_error(struct kvd_request *request, const struct kvg_error *error);
/* A parameter of the query string, or {NULL, 0}. */
struct kvg_str kvd_query_value(const struct kvd_request *request, const char *name);
/* The body as a JSON object in request->json; false after a problem was set. */
bool kvd_request_json(struct kvd_request *request);

KVG_MUST_CHECK kvg_err kvd_http_start(struct kvd_daemon *daemon, struct kvg_error *error);
void kvd_http_stop(struct kvd_daemon *daemon);

/* Parameters ------------------------------------------------------------------------------- */

struct kvd_params {
    struct kvg_str source;
    struct kvg_str tenant;
    struct kvg_str model;
    struct kvg_str extra_key;
    struct kvg_str cache_salt;
    struct kvg_str lora_name;
    bool has_worker_id;
    bool has_layout;
    bool has_page_size;
    bool has_ranges_max;
    bool cap_last_page;
    uint64_t worker_id;
    uint64_t layout;
    uint64_t page_size;
    uint64_t start;
    uint64_t ranges_max;
    uint64_t page_from; /* explain */
    uint64_t page_to;
};

/* Reads the request's body into the answerer's scan, and the parameters.  With `strict`, unknown
 * members are refused.  False after a problem was set. */
bool kvd_params_read(struct kvd_request *request, bool strict, struct kvd_params *out);

/* Answers ---------------------------------------------------------------------------------- */

/* What a question came to. */
struct kvd_answer {
    struct kvd_params params;
    const struct kvd_source_view *source;
    const struct kvd_tenant_views *tenant;
    const struct kvg_layout *layout;
    size_t layout_index;
    struct kvg_page_rule rule;
    const struct kvg_key *keys;
    const uint32_t *tokens;
    size_t token_count; /* 0 if asked by keys. */
    struct kvg_lookup lookup;
    uint32_t reasons;
    enum kvg_dynamo_outcome outcome; /* Only with that profile. */
    bool is_dynamo;
    uint64_t hash_us;
    uint64_t lookup_us;
};

/* Finds source, tenant and layout.  False after a problem was set, or when the loop must make the
 * tenant's views first. */
bool kvd_answer_begin(struct kvd_request *request, bool strict, struct kvd_answer *out);
/* Makes the keys (or takes those that were given), asks the index, counts.  May be called again
 * for another prompt.  False after a problem was set. */
bool kvd_answer_prompt(struct kvd_request *request, const uint32_t *tokens,
    size_t token_count, struct kvd_answer *answer);
/* Both, for the one prompt of the request. */
bool kvd_answer(struct kvd_request *request, bool strict, struct kvd_answer *out);
/* Parts of that page that are absent, as object keys in a JSON array, 16 at most. */
void kvd_answer_missing(struct kvd_request *request, const struct kvd_answer *answer,
    uint32_t page, struct kvd_out *out);
/* How many parts of that page there are, per medium and on any. */
void kvd_answer_page_media(struct kvd_request *request, const struct kvd_answer *answer,
    uint32_t page, uint32_t *cpu_parts, uint32_t *disk_parts, uint32_t *any_parts);
/* Contiguous pages from the start that one medium alone holds. */
uint32_t kvd_answer_on_medium(
    struct kvd_request *request, const struct kvd_answer *answer, enum kvg_medium medium);

/* The loop's side of requests -------------------------------------------------------------- */

struct kvd_feed *kvd_daemon_feed(struct kvd_daemon *daemon, struct kvg_str name);
KVG_MUST_CHECK kvg_err kvd_daemon_publish(
    struct kvd_daemon *daemon, struct kvg_error *error);
KVG_MUST_CHECK kvg_err kvd_daemon_add_source(struct kvd_daemon *daemon,
    const struct kvd_source_config *config, struct kvg_error *error);
KVG_MUST_CHECK kvg_err kvd_daemon_remove_source(
    struct kvd_daemon *daemon, struct kvg_str name, struct kvg_error *error);

/* Routes ----------------------------------------------------------------------------------- */

void kvd_route_lookup(struct kvd_request *request);
void kvd_route_explain(struct kvd_request *request);
void kvd_route_query(struct kvd_request *request);
void kvd_route_query_by_hash(struct kvd_request *request);
void kvd_route_check_blocks(struct kvd_request *request);
void kvd_route_register(struct kvd_request *request);
void kvd_route_unregister(struct kvd_request *request);
void kvd_route_get_workers(struct kvd_request *request);
void kvd_route_put_workers(struct kvd_request *request);
void kvd_route_post_listing(struct kvd_request *request);
void kvd_route_dump(struct kvd_request *request);
void kvd_route_sources(struct kvd_request *request);
void kvd_route_healthz(struct kvd_request *request);
void kvd_route_readyz(struct kvd_request *request);
void kvd_route_metrics(struct kvd_request *request);
void kvd_route_openapi(struct kvd_request *request);
void kvd_route_live(struct kvd_request *request);
void kvd_route_hot(struct kvd_request *request);
void kvd_route_page(struct kvd_request *request);
void kvd_route_page_css(struct kvd_request *request);
void kvd_route_page_js(struct kvd_request *request);
void kvd_route_page_svg(struct kvd_request *request);

/* Shared by routes: ,"reasons":[...] words. */
void kvd_write_reasons(struct kvd_out *out, uint32_t reasons);

#endif
