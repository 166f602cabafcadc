/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* routes_admin.c -- the paths that show and change the sources.
 *
 *     POST /register, /unregister    sources that come and go while the daemon runs
 *     GET, PUT /v1/workers           what workers advertise
 *     GET /v1/sources                every source with its numbers
 *     POST /v1/listing               compare with the store now
 *     GET /v1/dump                   what the index holds, as object keys
 *
 * Those marked KVD_ON_LOOP in the table of routes run on the loop's thread.
 */
#include "daemon/daemon_internal.h"

#include "base/fmt.h"
#include "daemon/advertised.h"
#include "daemon/config_table.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define DUMP_BUFFER_BYTES (1u << 20)

static void key_u64(struct kvd_out *out, const char *name, uint64_t value)
{
    kvd_out_key(out, name);
    kvd_out_u64(out, value);
}

static void key_str(struct kvd_out *out, const char *name, struct kvg_str value)
{
    kvd_out_key(out, name);
    kvd_out_json(out, value);
}

/* Registering ------------------------------------------------------------------------------ */

static struct kvg_str member(const struct kvd_request *request, const char *const *names)
{
    for (size_t i = 0; names[i] != NULL; i++) {
        const json_t *value = json_object_get(request->json, names[i]);

        if (json_is_string(value))
            return (struct kvg_str){json_string_value(value), json_string_length(value)};
    }
    return (struct kvg_str){NULL, 0};
}

static bool set_field(struct kvd_request *request, struct kvd_source_config *source,
    const char *key, struct kvg_str value)
{
    struct kvg_error error = {.code = KVG_OK};

    if (value.data == NULL)
        return true;
    if (kvd_key_set(kvd_key_find(NULL, key), source, key, value, &error) == KVG_OK)
        return true;
    kvd_problem_error(request, &error);
    return false;
}

/* Workers out of what a registration says: the layout it carries, else page_size alone. */
static bool set_layout(struct kvd_request *request, struct kvd_source_config *source)
{
    const json_t *advertised = json_object_get(request->json, KVD_ADVERTISED_KEY);
    const json_t *block_size = json_object_get(request->json, "block_size");
    char text[256];
    char *dumped;
    kvg_err err;

    if (json_is_object(advertised)) {
        json_t *workers = json_pack("{s:O}", "0", advertised);

        dumped = workers != NULL ? json_dumps(workers, JSON_COMPACT) : NULL;
        err = dumped != NULL ? kvd_config_set_workers(source, dumped) : KVG_ENOMEM;
        free(dumped);
        json_decref(workers);
    } else if (json_is_integer(block_size) && json_integer_value(block_size) > 0) {
        snprintf(text, sizeof(text),
            "{\"0\":{\"backend\":\"mooncake\",\"page_size\":%lld,\"tp_size\":1,\"pp_"
            "size\":1,"
            "\"is_mla_model\":false,\"is_eagle\":false,\"should_split_heads\":false}}",
            (long long)json_integer_value(block_size));
        err = kvd_config_set_workers(source, text);
    } else {
        return true;
    }
    if (err == KVG_OK)
        return true;
    kvd_refuse(request, 503, "busy", "workers", "do not fit into memory");
    return false;
}

static bool read_registration(struct kvd_request *request, struct kvd_config *scratch)
{
    static const char *const NAMES[] = {"instance_id", "source", "name", NULL};
    static const char *const TENANTS[] = {"tenant_id", "tenant", NULL};
    static const char *const TYPES[] = {"type", NULL};
    static const char *const ENDPOINTS[] = {"endpoint", NULL};
    static const char *const ADMINS[] = {"admin_url", NULL};
    struct kvg_str type = member(request, TYPES);
    struct kvg_str endpoint = member(request, ENDPOINTS);
    struct kvg_str name = member(request, NAMES);
    struct kvg_error error = {.code = KVG_OK};
    struct kvd_source_config *source = kvd_config_add_source(scratch, "", "", "");

    if (name.bytes == 0 || endpoint.bytes == 0) {
        kvd_refuse(request, 400, "missing-field",
            name.bytes == 0 ? "instance_id" : "endpoint",
            "is missing: instance_id and endpoint are needed");
        return false;
    }
    if (type.data != NULL && !kvi_str_equal(type, kvi_str("Mooncake"))) {
        kvd_problem(request, 501, "unsupported", "type",
            "only \"Mooncake\" is followed: engines' own caches are not indexed yet");
        return false;
    }
    if (!set_field(request, source, "name", name) ||
        !set_field(request, source, "endpoint", endpoint) ||
        !set_field(request, source, "tenant", member(request, TENANTS)) ||
        !set_field(request, source, "admin_url", member(request, ADMINS)) ||
        !set_layout(request, source))
        return false;
    if (kvd_config_finish(scratch, &error) == KVG_OK)
        return true;
    kvd_problem_error(request, &error);
    return false;
}

void kvd_route_register(struct kvd_request *request)
{
    struct kvd_config *scratch;
    struct kvg_error error = {.code = KVG_OK};

    if (!kvd_request_json(request))
        return;
    scratch = malloc(sizeof(*scratch));
    if (scratch == NULL) {
        kvd_problem(request, 503, "busy", NULL, "out of memory");
        return;
    }
    kvd_config_init(scratch);
    if (read_registration(request, scratch)) {
        if (kvd_daemon_add_source(request->daemon, &scratch->sources[0], &error) !=
            KVG_OK) {
            kvd_problem_error(request, &error);
        } else {
            request->status = 201;
            kvd_out_text(&request->out, "{");
            key_str(&request->out, "source", kvi_str(scratch->sources[0].name));
            key_str(&request->out, "status", kvi_str("registered"));
            kvd_out_text(&request->out, "}\n");
        }
    }
    kvd_config_fini(scratch);
    free(scratch);
}

void kvd_route_unregister(struct kvd_request *request)
{
    static const char *const NAMES[] = {"instance_id", "source", "name", NULL};
    struct kvg_error error = {.code = KVG_OK};
    struct kvg_str name;

    if (!kvd_request_json(request))
        return;
    name = member(request, NAMES);
    if (name.bytes == 0) {
        kvd_refuse(request, 400, "missing-field", "instance_id", "is missing");
        return;
    }
    if (kvd_daemon_remove_source(request->daemon, name, &error) != KVG_OK) {
        kvd_problem_error(request, &error);
        return;
    }
    kvd_out_text(&request->out, "{\"status\":\"unregistered\"}\n");
}

/* Workers ---------------------------------------------------------------------------------- */

static const struct kvd_source_view *asked_source(struct kvd_request *request)
{
    const struct kvd_source_view *source =
        kvd_snapshot_source(request->snapshot, kvd_query_value(request, "source"));

    if (source == NULL)
        kvd_problem(request, 404, "no-source", "source",
            "there is no such source; GET /v1/sources lists them");
    return source;
}

static void write_layouts(struct kvd_out *out, const struct kvd_roster *roster)
{
    kvd_out_key(out, "layouts");
    kvd_out_text(out, "[");
    for (size_t i = 0; i < roster->view.layout_count; i++) {
        const struct kvg_layout *layout = kvg_workers_layout(roster->workers, i);

        kvd_out_text(out, i > 0 ? ",{" : "{");
        key_u64(out, "index", i);
        key_u64(out, "page_size", kvg_layout_rule(layout).page_size);
        kvd_out_key(out, "eagle");
        kvd_out_text(out, kvg_layout_rule(layout).eagle ? "true" : "false");
        key_u64(out, "parts_per_page", kvg_layout_part_count(layout));
        key_str(out, "prefix", kvg_layout_prefix(layout));
        kvd_out_text(out, "}");
    }
    kvd_out_text(out, "]");
}

static void write_worker(struct kvd_out *out, const struct kvg_worker_report *report)
{
    kvd_out_text(out, "{");
    kvd_out_key(out, "worker_id");
    kvd_out_printf(out, "\"%llu\"", (unsigned long long)report->worker_id);
    if (report->error.code == KVG_OK) {
        kvd_out_key(out, "usable");
        kvd_out_text(out, "true");
        key_u64(out, "layout", (uint64_t)report->layout_index);
        key_str(out, "backend", report->backend);
        key_str(out, "kv_events_endpoint", report->endpoint);
        kvd_out_key(out, "layout_differs");
        kvd_out_text(out, report->layout_differs ? "true" : "false");
        kvd_out_key(out, "endpoint_differs");
        kvd_out_text(out, report->endpoint_differs ? "true" : "false");
    } else {
        kvd_out_key(out, "usable");
        kvd_out_text(out, "false");
        key_str(out, "field", kvi_str(report->error.field));
        key_str(out, "detail", kvi_str(report->error.message));
    }
    kvd_out_text(out, "}");
}

void kvd_route_get_workers(struct kvd_request *request)
{
    const struct kvd_source_view *source = asked_source(request);
    struct kvd_out *out = &request->out;
    struct kvg_worker_report report;
    uint64_t from = 0;

    if (source == NULL)
        return;
    kvd_out_text(out, "{");
    key_str(out, "source", kvi_str(source->shared->config.name));
    key_u64(out, "generation", source->roster->generation);
    key_u64(out, "worker_count", source->roster->view.worker_count);
    key_u64(out, "usable_count", source->roster->view.usable_count);
    key_str(out, "kv_events_endpoint", source->roster->view.endpoint);
    write_layouts(out, source->roster);
    kvd_out_key(out, "workers");
    kvd_out_text(out, "[");
    while (kvg_workers_next(source->roster->workers, from, &report)) {
        kvd_out_comma(out);
        write_worker(out, &report);
        if (report.worker_id == UINT64_MAX)
            break;
        from = report.worker_id + 1;
    }
    kvd_out_text(out, "]}\n");
}

static struct kvd_feed *asked_feed(struct kvd_request *request)
{
    struct kvd_feed *feed =
        kvd_daemon_feed(request->daemon, kvd_query_value(request, "source"));

    if (feed == NULL)
        kvd_problem(request, 404, "no-source", "source",
            "there is no such source; GET /v1/sources lists them");
    return feed;
}

/* On the loop. */
void kvd_route_put_workers(struct kvd_request *request)
{
    struct kvd_feed *feed = asked_feed(request);
    struct kvg_error error = {.code = KVG_OK};

    if (feed == NULL)
        return;
    if (kvd_feed_set_workers(feed,
            (struct kvg_str){request->body.data != NULL ? request->body.data : "",
                request->body.bytes},
            &error) != KVG_OK) {
        kvd_problem_error(request, &error);
        return;
    }
    request->snapshot = kvd_snapshot_acquire(&request->daemon->publisher);
    kvd_route_get_workers(request);
    kvd_snapshot_release(&request->daemon->publisher, request->snapshot);
    request->snapshot = NULL;
}

void kvd_route_post_listing(struct kvd_request *request)
{
    struct kvd_feed *feed = asked_feed(request);
    struct kvg_error error = {.code = KVG_OK};

    if (feed == NULL)
        return;
    if (kvd_feed_request_listing(feed, &error) != KVG_OK) {
        kvd_problem_error(request, &error);
        return;
    }
    request->status = 202;
    kvd_out_text(&request->out, "{\"status\":\"asked for\"}\n");
}

/* Sources ---------------------------------------------------------------------------------- */

static void write_source(struct kvd_out *out, const struct kvd_source_view *view)
{
    struct kvd_shared *shared = view->shared;
    struct kvd_board board;
    bool is_default = shared->dynamo == NULL;

    kvd_board_read(shared, &board);
    kvd_out_text(out, "{");
    key_str(out, "name", kvi_str(shared->config.name));
    key_str(out, "profile", kvi_str(is_default ? "default" : "dynamo-1.5"));
    key_str(out, "endpoint", kvi_str(board.endpoint));
    key_str(out, "admin_url", kvi_str(shared->config.admin_url));
    key_str(out, "tenant", kvi_str(shared->config.tenant));
    if (is_default) {
        key_str(out, "confidence", kvi_str(kvg_confidence_name(board.source.confidence)));
        kvd_write_reasons(out, board.source.reasons);
        key_u64(out, "pages", board.presence.pages);
        key_u64(out, "parts", board.presence.parts);
        key_u64(out, "memory_bytes", board.presence.memory_bytes);
        key_u64(out, "memory_bytes_max", board.presence.memory_bytes_max);
        key_u64(out, "last_sequence", board.source.last_sequence);
        key_u64(out, "events", board.source.events);
        key_u64(out, "gaps", board.source.gaps);
        key_u64(out, "restarts", board.source.restarts);
        key_u64(out, "listings", board.source.listings);
        key_u64(out, "last_repair_ms", board.source.last_repair_ms);
    } else {
        key_u64(out, "present_keys", board.dynamo.present_keys);
        key_u64(out, "gap_clears", board.dynamo.gap_clears);
    }
    kvd_out_key(out, "connected");
    kvd_out_text(out, board.sub.connects > board.sub.disconnects ? "true" : "false");
    key_u64(out, "messages", board.sub.messages);
    key_u64(out, "messages_dropped", board.sub.dropped_messages);
    key_u64(out, "queue_bytes", board.sub.queue_bytes);
    key_u64(out, "lag_us", board.last_message_us_lag);
    key_str(out, "admin_failure", kvi_str(board.admin_failure));
    key_u64(out, "workers", view->roster->view.worker_count);
    key_u64(out, "workers_usable", view->roster->view.usable_count);
    key_u64(out, "layouts", view->roster->view.layout_count);
    kvd_out_text(out, "}");
}

void kvd_route_sources(struct kvd_request *request)
{
    const struct kvd_snapshot *snapshot = request->snapshot;

    kvd_out_text(&request->out, "{\"sources\":[");
    for (size_t i = 0; snapshot != NULL && i < snapshot->source_count; i++) {
        if (i > 0)
            kvd_out_text(&request->out, ",");
        write_source(&request->out, &snapshot->sources[i]);
    }
    kvd_out_text(&request->out, "]}\n");
}

/* Dump ------------------------------------------------------------------------------------- */

struct dumping {
    FILE *file;
    bool as_json;
    bool failed;           /* A line did not fit into memory. */
    struct kvg_str tenant; /* Only this one, if not absent. */
    struct kvd_out line;
};

static void dump_object(void *context, struct kvg_str tenant, struct kvg_str object_key,
    enum kvg_medium medium)
{
    struct dumping *dumping = context;
    struct kvd_out *line = &dumping->line;

    if (dumping->tenant.data != NULL && !kvi_str_equal(tenant, dumping->tenant))
        return;
    kvd_out_reset(line, KVD_KEEP_BYTES_MAX);
    if (dumping->as_json) {
        kvd_out_text(line, "{");
        key_str(line, "tenant", tenant);
        key_str(line, "object_key", object_key);
        key_str(line, "medium", kvi_str(kvg_medium_name(medium)));
        kvd_out_text(line, "}\n");
    } else {
        kvd_out_str(line, object_key);
        kvd_out_text(line, "\n");
    }
    if (!line->failed)
        fwrite(line->data, 1, line->bytes, dumping->file);
    dumping->failed |= line->failed;
}

/* On the loop, since only the index's writer may walk it.  The lines go to an unlinked file that
 * is then sent from, so a large index costs no memory. */
void kvd_route_dump(struct kvd_request *request)
{
    struct kvd_feed *feed = asked_feed(request);
    struct kvg_str format = kvd_query_value(request, "format");
    struct dumping dumping = {.as_json = kvi_str_equal(format, kvi_str("json")),
        .tenant = kvd_query_value(request, "tenant")};
    bool failed;
    int fd;

    if (feed == NULL)
        return;
    if (kvd_feed_shared(feed)->index == NULL) {
        kvd_problem(request, 501, "unsupported", "source",
            "the profile dynamo-1.5 cannot be dumped");
        return;
    }
    fd = open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    dumping.file = fd >= 0 ? fdopen(dup(fd), "w") : NULL;
    if (dumping.file == NULL) {
        if (fd >= 0)
            close(fd);
        kvd_problem(request, 503, "busy", "/tmp", strerror(errno));
        return;
    }
    setvbuf(dumping.file, NULL, _IOFBF, DUMP_BUFFER_BYTES);
    kvd_out_init(&dumping.line, request->daemon->alloc);
    kvg_presence_each(kvd_feed_shared(feed)->index, dump_object, &dumping);
    failed = ferror(dumping.file) != 0;
    failed |= fclose(dumping.file) != 0 || dumping.failed;
    kvd_out_fini(&dumping.line);
    if (failed) {
        close(fd);
        kvd_refuse(request, 503, "busy", "/tmp",
            "has no room for the dump, or there is no memory");
        return;
    }
    request->file = fd;
    request->content_type = dumping.as_json ? "application/x-ndjson" : "text/plain";
}
