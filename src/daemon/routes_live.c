/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* routes_live.c -- the page for people, and what it asks for.
 *
 *     GET /v1/live    a row of numbers a second, the sources, the slowest questions
 *     GET /v1/hot     the prefixes asked for most
 *     GET /           the page: page/page.html, .css, .js, .svg, compiled in
 *
 * The page's files hold no data and need no token; everything that they show comes through the
 * paths above, which do.  Nothing here knows a token of a prompt: prefixes are named by the
 * beginning of their page keys.
 */
#include "daemon/daemon_internal.h"

#include "base/alloc.h"
#include "base/fmt.h"

#include <string.h>

#define SLOWEST_SHOWN 20u
#define HOT_NODES 512u
#define HOT_NODES_MAX 2048u
#define PATH_MAX_NODES (KVD_HOT_DEPTH + 2)

/* Everything comes from here, nothing is run that does not, and nobody may frame it. */
static const char POLICY[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

extern const char KVD_PAGE[];
extern const size_t KVD_PAGE_BYTES;
extern const char KVD_PAGE_CSS[];
extern const size_t KVD_PAGE_CSS_BYTES;
extern const char KVD_PAGE_JS[];
extern const size_t KVD_PAGE_JS_BYTES;
extern const char KVD_PAGE_SVG[];
extern const size_t KVD_PAGE_SVG_BYTES;

static void send_file(
    struct kvd_request *request, const char *type, const char *data, size_t bytes)
{
    request->content_type = type;
    request->policy = POLICY;
    kvd_out_bytes(&request->out, data, bytes);
}

void kvd_route_page(struct kvd_request *request)
{
    send_file(request, "text/html; charset=utf-8", KVD_PAGE, KVD_PAGE_BYTES);
}

void kvd_route_page_css(struct kvd_request *request)
{
    send_file(request, "text/css; charset=utf-8", KVD_PAGE_CSS, KVD_PAGE_CSS_BYTES);
}

void kvd_route_page_js(struct kvd_request *request)
{
    send_file(request, "text/javascript; charset=utf-8", KVD_PAGE_JS, KVD_PAGE_JS_BYTES);
}

void kvd_route_page_svg(struct kvd_request *request)
{
    send_file(request, "image/svg+xml", KVD_PAGE_SVG, KVD_PAGE_SVG_BYTES);
}

/* Parameters ------------------------------------------------------------------------------- */

struct query {
    struct kvd_request *request;
    const char *const *names;
    bool good;
};

static enum MHD_Result refuse_others(
    void *context, enum MHD_ValueKind kind, const char *name, const char *value)
{
    struct query *query = context;

    (void)kind;
    (void)value;
    for (size_t i = 0; query->names[i] != NULL; i++) {
        if (strcmp(query->names[i], name) == 0)
            return MHD_YES;
    }
    kvd_refuse(query->request, 400, "bad-value", name,
        "is not a parameter; GET /openapi.json lists them, and nothing is ignored "
        "silently");
    query->good = false;
    return MHD_NO;
}

static bool only_these(struct kvd_request *request, const char *const *names)
{
    struct query query = {request, names, true};

    MHD_get_connection_values(
        request->connection, MHD_GET_ARGUMENT_KIND, refuse_others, &query);
    return query.good;
}

/* A number of the query string; *out stays if it is absent. */
static bool query_u64(struct kvd_request *request, const char *name, uint64_t least,
    uint64_t most, uint64_t *out)
{
    struct kvg_str text = kvd_query_value(request, name);
    struct kvg_error error = {.code = KVG_OK};
    uint64_t value = 0;
    bool good = text.bytes > 0;

    if (text.data == NULL)
        return true;
    for (size_t i = 0; good && i < text.bytes; i++)
        good = text.data[i] >= '0' && text.data[i] <= '9' &&
               !__builtin_mul_overflow(value, 10, &value) &&
               !__builtin_add_overflow(value, (uint64_t)(text.data[i] - '0'), &value);
    if (!good) {
        kvi_fail(&error, KVG_EINVAL, name, "is not a whole number");
    } else if (value < least || value > most) {
        kvi_fail_range(&error, name, value, least, most);
    } else {
        *out = value;
        return true;
    }
    kvd_problem_error(request, &error);
    return false;
}

/* 16 hex digits at least, of which the first 16 count. */
static bool query_prefix(struct kvd_request *request, bool *has, uint64_t *out)
{
    struct kvg_str text = kvd_query_value(request, "prefix");
    bool good = text.bytes >= 16 && text.bytes <= 64;

    *has = text.data != NULL;
    *out = 0;
    for (size_t i = 0; *has && good && i < text.bytes; i++) {
        char c = text.data[i];
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;

        good = digit >= 0;
        if (i < 16)
            *out = *out << 4 | (uint64_t)(digit & 15);
    }
    if (!*has || good)
        return true;
    kvd_refuse(request, 400, "bad-value", "prefix",
        "is not the beginning of a page key: 16 to 64 hex digits");
    return false;
}

/* Live ------------------------------------------------------------------------------------- */

static void key_u64(struct kvd_out *out, const char *name, uint64_t value)
{
    kvd_out_key(out, name);
    kvd_out_u64(out, value);
}

static void key_str(struct kvd_out *out, const char *name, const char *value)
{
    kvd_out_key(out, name);
    kvd_out_json(out, kvi_str(value));
}

static void key_bool(struct kvd_out *out, const char *name, bool value)
{
    kvd_out_key(out, name);
    kvd_out_text(out, value ? "true" : "false");
}

/* "first":N and an array a column, of the rows from `since` on. */
static void write_series(struct kvd_out *out, const struct kvd_series *series,
    const char *const *names, uint64_t since)
{
    uint64_t first = kvd_series_from(series, since);

    key_u64(out, "first", first);
    for (size_t column = 0; column < series->column_count; column++) {
        kvd_out_key(out, names[column]);
        kvd_out_text(out, "[");
        for (uint64_t row = first; row < series->next; row++) {
            if (row > first)
                kvd_out_text(out, ",");
            kvd_out_u64(out, kvd_series_row(series, row)[column]);
        }
        kvd_out_text(out, "]");
    }
}

static void write_reasons(struct kvd_out *out, uint32_t reasons)
{
    kvd_out_key(out, "reasons");
    kvd_out_text(out, "[");
    for (unsigned i = 0; i < 32; i++) {
        enum kvg_source_reason reason = (enum kvg_source_reason)(1u << i);

        if ((reasons >> i & 1) == 0)
            continue;
        kvd_out_comma(out);
        kvd_out_text(out, "{");
        key_str(out, "reason", kvg_source_reason_word(reason));
        key_str(out, "sentence", kvg_source_reason_sentence(reason));
        kvd_out_text(out, "}");
    }
    kvd_out_text(out, "]");
}

/* Bytes only where somebody said how large a part is. */
static void write_bytes(
    struct kvd_out *out, const char *name, uint64_t parts, uint64_t part_bytes)
{
    uint64_t bytes;

    kvd_out_key(out, name);
    if (part_bytes == 0 || __builtin_mul_overflow(parts, part_bytes, &bytes))
        kvd_out_text(out, "null");
    else
        kvd_out_u64(out, bytes);
}

static void write_index(struct kvd_out *out, const struct kvd_board *board,
    const struct kvd_source_config *config)
{
    key_u64(out, "pages", board->presence.pages);
    key_u64(out, "cpu_pages", board->presence.cpu_pages);
    key_u64(out, "disk_pages", board->presence.disk_pages);
    write_bytes(out, "cpu_bytes", board->presence.cpu_parts, config->part_bytes);
    write_bytes(out, "disk_bytes", board->presence.disk_parts, config->part_bytes);
    key_u64(out, "memory_bytes", board->presence.memory_bytes);
    key_u64(out, "memory_bytes_max", board->presence.memory_bytes_max);
    key_bool(out, "partial", board->presence.partial);
}

static void write_source(struct kvd_out *out, const struct kvd_source_view *view)
{
    struct kvd_shared *shared = view->shared;
    uint64_t last_ms =
        atomic_load_explicit(&shared->last_message_ms, memory_order_relaxed);
    uint64_t now_ms = kvn_clock_ms();
    struct kvd_board board;
    bool is_default = shared->dynamo == NULL;

    kvd_board_read(shared, &board);
    key_str(out, "name", shared->config.name);
    key_str(out, "profile", is_default ? "default" : "dynamo-1.5");
    key_str(out, "tenant", shared->config.tenant);
    if (is_default) {
        key_str(out, "confidence", kvg_confidence_name(board.source.confidence));
        write_reasons(out, board.source.reasons);
        write_index(out, &board, &shared->config);
    } else {
        key_u64(out, "present_keys", board.dynamo.present_keys);
    }
    kvd_out_key(out, "age_ms");
    if (last_ms == 0)
        kvd_out_text(out, "null");
    else
        kvd_out_u64(out, now_ms > last_ms ? now_ms - last_ms : 0);
    key_bool(out, "connected", board.sub.connects > board.sub.disconnects);
    key_u64(out, "events", board.source.events);
    key_u64(out, "gaps", board.source.gaps);
    key_u64(out, "restarts", board.source.restarts);
    key_u64(out, "messages_dropped", board.sub.dropped_messages);
    key_str(out, "admin_failure", board.admin_failure);
    key_u64(out, "workers", view->roster->view.worker_count);
    key_u64(out, "workers_usable", view->roster->view.usable_count);
}

/* Under the pulse's lock. */
static void write_history(struct kvd_out *out, const struct kvd_pulse *pulse,
    const char *source, uint64_t since)
{
    kvd_out_key(out, "history");
    for (size_t i = 0; i < KVD_SOURCES_MAX; i++) {
        if (strcmp(pulse->tracks[i].source, source) != 0)
            continue;
        kvd_out_text(out, "{");
        write_series(out, &pulse->tracks[i].series, KVD_TRACK_NAMES, since);
        kvd_out_text(out, "}");
        return;
    }
    kvd_out_text(out, "null");
}

static void write_slowest(struct kvd_out *out, struct kvd_pulse *pulse)
{
    struct kvd_slow_entry entries[SLOWEST_SHOWN + 1];
    uint64_t now_ms = kvn_clock_ms();
    size_t count = 0;

    for (size_t i = 0; i < pulse->watch_count; i++)
        count = kvd_slow_collect(
            &pulse->watches[i].slow, now_ms, entries, count, SLOWEST_SHOWN);
    kvd_out_key(out, "slowest");
    kvd_out_text(out, "[");
    for (size_t i = 0; i < count; i++) {
        const struct kvd_slow_entry *entry = &entries[i];

        kvd_out_text(out, i > 0 ? ",{" : "{");
        key_u64(out, "age_ms", now_ms > entry->at_ms ? now_ms - entry->at_ms : 0);
        key_u64(out, "hash_us", entry->hash_us);
        key_u64(out, "lookup_us", entry->lookup_us);
        key_u64(out, "tokens", entry->tokens);
        key_u64(out, "pages", entry->pages);
        key_u64(out, "contiguous_pages", entry->contiguous);
        key_str(out, "confidence", kvg_confidence_name(entry->confidence));
        key_str(out, "source", entry->source);
        key_str(out, "tenant", entry->tenant);
        kvd_out_text(out, "}");
    }
    kvd_out_text(out, "]");
}

void kvd_route_live(struct kvd_request *request)
{
    static const char *const NAMES[] = {"since", NULL};
    struct kvd_daemon *daemon = request->daemon;
    struct kvd_pulse *pulse = daemon->pulse;
    const struct kvd_snapshot *snapshot = request->snapshot;
    struct kvd_out *out = &request->out;
    uint64_t since = 0;

    if (!only_these(request, NAMES) ||
        !query_u64(request, "since", 0, UINT64_MAX, &since))
        return;
    kvd_out_text(out, "{");
    key_str(out, "version", kvg_version());
    key_u64(out, "started_s", (uint64_t)daemon->started_s);
    key_u64(out, "uptime_ms", kvn_clock_ms() - pulse->started_ms);
    key_u64(out, "interval_ms", KVD_PULSE_INTERVAL_MS);
    key_u64(out, "rows_max", KVD_SERIES_ROWS);
    write_slowest(out, pulse);
    pthread_mutex_lock(&pulse->lock);
    key_u64(out, "next", pulse->series.next);
    kvd_out_key(out, "lookups");
    kvd_out_text(out, "{");
    write_series(out, &pulse->series, KVD_PULSE_NAMES, since);
    kvd_out_text(out, "}");
    kvd_out_key(out, "sources");
    kvd_out_text(out, "[");
    for (size_t i = 0; snapshot != NULL && i < snapshot->source_count; i++) {
        const struct kvd_source_view *view = &snapshot->sources[i];

        kvd_out_text(out, i > 0 ? ",{" : "{");
        write_source(out, view);
        write_history(out, pulse, view->shared->config.name, since);
        kvd_out_text(out, "}");
    }
    pthread_mutex_unlock(&pulse->lock);
    kvd_out_text(out, "]}\n");
}

/* Hot -------------------------------------------------------------------------------------- */

struct hot_answer {
    struct kvd_hot_space spaces[KVD_HOT_SPACES];
    uint64_t space_counts[KVD_HOT_SPACES];
    struct kvd_hot_view path[PATH_MAX_NODES]; /* From the node up. */
    size_t path_count;
    struct kvd_hot_view all;
    uint64_t refused;
    size_t count;
    struct kvd_hot_view nodes[HOT_NODES_MAX];
};

struct hot_question {
    struct kvg_str source;
    struct kvg_str tenant;
    uint64_t page_size; /* 0: any. */
    uint64_t nodes_max;
    bool has_prefix;
    uint64_t prefix;
};

static bool asks_for(
    const struct hot_question *question, const struct kvd_hot_space *space)
{
    return (question->source.data == NULL ||
               kvi_str_equal(question->source, kvi_str(space->source))) &&
           (question->tenant.data == NULL ||
               kvi_str_equal(question->tenant, kvi_str(space->tenant))) &&
           (question->page_size == 0 || question->page_size == space->page_size);
}

/* Where to begin: the prefix, the one space that is asked for, or everything. */
static uint32_t start_of(const struct kvd_hot *hot, const struct hot_question *question)
{
    uint32_t found = KVD_HOT_NONE;
    size_t count = 0;

    if (question->source.data == NULL && question->tenant.data == NULL &&
        question->page_size == 0)
        return question->has_prefix ? kvd_hot_find(hot, KVD_HOT_NONE, question->prefix)
                                    : 0;
    for (uint32_t i = 0; i < KVD_HOT_SPACES; i++) {
        const struct kvd_hot_space *space = kvd_hot_space(hot, i);
        uint32_t node;

        if (space == NULL || !asks_for(question, space))
            continue;
        node =
            question->has_prefix ? kvd_hot_find(hot, i, question->prefix) : space->root;
        if (node == KVD_HOT_NONE)
            continue;
        found = node;
        count++;
    }
    return count == 1 ? found : KVD_HOT_NONE;
}

/* Under the pulse's lock: copies what is asked for. */
static bool look(
    struct kvd_hot *hot, const struct hot_question *question, struct hot_answer *answer)
{
    uint32_t node = start_of(hot, question);

    if (node == KVD_HOT_NONE)
        return false;
    kvd_hot_look(hot, 0, &answer->all);
    answer->refused = kvd_hot_refused(hot);
    for (uint32_t i = 0; i < KVD_HOT_SPACES; i++) {
        const struct kvd_hot_space *space = kvd_hot_space(hot, i);
        struct kvd_hot_view view;

        if (space == NULL)
            continue;
        answer->spaces[i] = *space;
        kvd_hot_look(hot, space->root, &view);
        answer->space_counts[i] = view.count;
    }
    for (uint32_t at = kvd_hot_parent(hot, node);
         at != KVD_HOT_NONE && at != 0 && answer->path_count < PATH_MAX_NODES;
         at = kvd_hot_parent(hot, at))
        kvd_hot_look(hot, at, &answer->path[answer->path_count++]);
    answer->count = kvd_hot_top(hot, node, question->nodes_max, answer->nodes);
    return true;
}

/* Counts of lookups, to a hundredth. */
static void key_lookups(struct kvd_out *out, const char *name, uint64_t units)
{
    uint64_t hundredths =
        units / KVD_HOT_UNIT * 100 + units % KVD_HOT_UNIT * 100 / KVD_HOT_UNIT;

    kvd_out_key(out, name);
    kvd_out_printf(out, "%llu.%02u", (unsigned long long)(hundredths / 100),
        (unsigned)(hundredths % 100));
}

/* KVD_HOT_NONE becomes null. */
static void key_index(struct kvd_out *out, const char *name, uint32_t index)
{
    kvd_out_key(out, name);
    if (index == KVD_HOT_NONE)
        kvd_out_text(out, "null");
    else
        kvd_out_u64(out, index);
}

static void key_prefix(
    struct kvd_out *out, const char *name, uint32_t page, uint64_t prefix)
{
    kvd_out_key(out, name);
    if (page == KVD_HOT_NONE)
        kvd_out_text(out, "null");
    else
        kvd_out_printf(out, "\"%016llx\"", (unsigned long long)prefix);
}

static void write_node(struct kvd_out *out, const struct kvd_hot_view *view)
{
    kvd_out_text(out, "{");
    key_prefix(out, "prefix", view->page, view->prefix);
    key_index(out, "parent", view->parent);
    key_index(out, "space", view->space);
    key_index(out, "page", view->page);
    key_lookups(out, "lookups", view->count);
    key_lookups(out, "lookups_at_most", view->count + view->error);
    key_index(out, "last_page", view->last_page);
    key_prefix(out, "last_prefix", view->last_page, view->last_prefix);
    key_lookups(out, "last_lookups", view->last_count);
    key_lookups(out, "last_present", view->last_present);
    key_bool(out, "more", view->more);
    kvd_out_text(out, "}");
}

static void write_hot(
    struct kvd_out *out, const struct kvd_pulse *pulse, const struct hot_answer *answer)
{
    kvd_out_text(out, "{");
    key_u64(out, "half_life_s", KVD_PULSE_HALF_LIFE_S);
    key_u64(out, "sampled_one_in",
        UINT64_C(1) << atomic_load_explicit(&pulse->shift, memory_order_relaxed));
    key_u64(out, "dropped", kvd_pulse_dropped(pulse) + answer->refused);
    key_u64(out, "depth_max", KVD_HOT_DEPTH);
    key_lookups(out, "lookups", answer->all.count);
    kvd_out_key(out, "spaces");
    kvd_out_text(out, "[");
    for (size_t i = 0; i < KVD_HOT_SPACES; i++) {
        const struct kvd_hot_space *space = &answer->spaces[i];

        if (!space->used)
            continue;
        kvd_out_comma(out);
        kvd_out_text(out, "{");
        key_u64(out, "space", i);
        key_str(out, "source", space->source);
        key_str(out, "tenant", space->tenant);
        key_u64(out, "page_size", space->page_size);
        key_lookups(out, "lookups", answer->space_counts[i]);
        kvd_out_text(out, "}");
    }
    kvd_out_text(out, "]");
    kvd_out_key(out, "path");
    kvd_out_text(out, "[");
    for (size_t i = answer->path_count; i > 0; i--) {
        kvd_out_comma(out);
        write_node(out, &answer->path[i - 1]);
    }
    kvd_out_text(out, "]");
    kvd_out_key(out, "nodes");
    kvd_out_text(out, "[");
    for (size_t i = 0; i < answer->count; i++) {
        if (i > 0)
            kvd_out_text(out, ",");
        write_node(out, &answer->nodes[i]);
    }
    kvd_out_text(out, "]}\n");
}

void kvd_route_hot(struct kvd_request *request)
{
    static const char *const NAMES[] = {
        "source", "tenant", "page_size", "prefix", "nodes", NULL};
    struct kvd_daemon *daemon = request->daemon;
    struct hot_question question = {.source = kvd_query_value(request, "source"),
        .tenant = kvd_query_value(request, "tenant"),
        .nodes_max = HOT_NODES};
    struct hot_answer *answer;
    bool found;

    if (!only_these(request, NAMES) ||
        !query_u64(request, "page_size", 1, KVG_PAGE_SIZE_MAX, &question.page_size) ||
        !query_u64(request, "nodes", 1, HOT_NODES_MAX, &question.nodes_max) ||
        !query_prefix(request, &question.has_prefix, &question.prefix))
        return;
    answer = KVI_NEW(daemon->alloc, struct hot_answer);
    if (answer == NULL) {
        kvd_problem(request, 503, "busy", NULL, "out of memory");
        return;
    }
    pthread_mutex_lock(&daemon->pulse->lock);
    found = look(daemon->pulse->hot, &question, answer);
    pthread_mutex_unlock(&daemon->pulse->lock);
    if (found)
        write_hot(&request->out, daemon->pulse, answer);
    else
        kvd_refuse(request, 404, "not-found", question.has_prefix ? "prefix" : "source",
            "is not among what is asked for most now, or is not one alone: give source, "
            "tenant and page_size");
    KVI_FREE(daemon->alloc, answer);
}
