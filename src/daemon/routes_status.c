/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* routes_status.c -- health, metrics, the API's description; and the table of all paths.
 *
 * A scrape reads what the loop last put on each source's board, at most a quarter of a second
 * old, and adds the answering threads' counters up.  It never waits for the loop.
 */
#include "daemon/daemon_internal.h"

#include "base/fmt.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

extern const char KVD_OPENAPI[];
extern const size_t KVD_OPENAPI_BYTES;

const struct kvd_route KVD_ROUTES[] = {
    {"POST", "/v1/lookup", kvd_route_lookup, KVD_BINARY},
    {"POST", "/v1/explain", kvd_route_explain, KVD_BINARY},
    {"POST", "/query", kvd_route_query, KVD_BINARY},
    {"POST", "/query_by_hash", kvd_route_query_by_hash, 0},
    {"POST", "/check_blocks", kvd_route_check_blocks, KVD_BINARY},
    {"POST", "/register", kvd_route_register, KVD_ON_LOOP},
    {"POST", "/unregister", kvd_route_unregister, KVD_ON_LOOP},
    {"GET", "/v1/workers", kvd_route_get_workers, 0},
    {"PUT", "/v1/workers", kvd_route_put_workers, KVD_ON_LOOP},
    {"GET", "/v1/sources", kvd_route_sources, 0},
    {"POST", "/v1/listing", kvd_route_post_listing, KVD_ON_LOOP},
    {"GET", "/v1/dump", kvd_route_dump, KVD_ON_LOOP},
    {"GET", "/healthz", kvd_route_healthz, KVD_NO_TOKEN},
    {"GET", "/readyz", kvd_route_readyz, KVD_NO_TOKEN},
    {"GET", "/metrics", kvd_route_metrics, 0},
    {"GET", "/openapi.json", kvd_route_openapi, 0},
    {"GET", "/v1/live", kvd_route_live, 0},
    {"GET", "/v1/hot", kvd_route_hot, 0},
    /* The page holds no data: its script asks for them, with the token. */
    {"GET", "/", kvd_route_page, KVD_NO_TOKEN},
    {"GET", "/page.css", kvd_route_page_css, KVD_NO_TOKEN},
    {"GET", "/page.js", kvd_route_page_js, KVD_NO_TOKEN},
    {"GET", "/page.svg", kvd_route_page_svg, KVD_NO_TOKEN},
};
const size_t KVD_ROUTE_COUNT = sizeof(KVD_ROUTES) / sizeof(KVD_ROUTES[0]);

void kvd_route_healthz(struct kvd_request *request)
{
    bool alive = kvd_daemon_is_alive(request->daemon, 5000);

    request->status = alive ? 200 : 503;
    kvd_out_text(
        &request->out, alive ? "{\"status\":\"alive\"}\n"
                             : "{\"status\":\"the loop has not turned for 5 s\"}\n");
}

void kvd_route_openapi(struct kvd_request *request)
{
    kvd_out_bytes(&request->out, KVD_OPENAPI, KVD_OPENAPI_BYTES);
}

/* Ready ------------------------------------------------------------------------------------ */

static void write_not_ready(struct kvd_out *out, const struct kvd_shared *shared,
    enum kvg_confidence confidence, uint32_t reasons)
{
    kvd_out_comma(out);
    kvd_out_text(out, "{");
    kvd_out_key(out, "source");
    kvd_out_json(out, kvi_str(shared->config.name));
    kvd_out_key(out, "confidence");
    kvd_out_json(out, kvi_str(kvg_confidence_name(confidence)));
    kvd_write_reasons(out, reasons);
    kvd_out_key(out, "details");
    kvd_out_text(out, "[");
    for (unsigned i = 0; i < 32; i++) {
        if ((reasons >> i & 1) == 0)
            continue;
        kvd_out_comma(out);
        kvd_out_json(
            out, kvi_str(kvg_source_reason_sentence((enum kvg_source_reason)(1u << i))));
    }
    kvd_out_text(out, "]}");
}

/* ?min=blind|suspect|rebuilding|fresh: the least confidence that counts as ready. */
static bool read_least(struct kvd_request *request, enum kvg_confidence *out)
{
    struct kvg_str text = kvd_query_value(request, "min");

    *out = KVG_CONFIDENCE_FRESH;
    if (text.data == NULL)
        return true;
    for (int i = KVG_CONFIDENCE_BLIND; i <= KVG_CONFIDENCE_FRESH; i++) {
        if (kvi_str_equal(text, kvi_str(kvg_confidence_name((enum kvg_confidence)i)))) {
            *out = (enum kvg_confidence)i;
            return true;
        }
    }
    kvd_problem(
        request, 400, "bad-value", "min", "is none of blind, suspect, rebuilding, fresh");
    return false;
}

void kvd_route_readyz(struct kvd_request *request)
{
    const struct kvd_snapshot *snapshot = request->snapshot;
    struct kvd_out *out = &request->out;
    size_t source_count = snapshot != NULL ? snapshot->source_count : 0;
    enum kvg_confidence least;
    bool ready = source_count > 0;

    if (!read_least(request, &least))
        return;
    kvd_out_text(out, "{\"not_ready\":[");
    for (size_t i = 0; i < source_count; i++) {
        const struct kvd_shared *shared = snapshot->sources[i].shared;
        enum kvg_confidence confidence =
            (enum kvg_confidence)atomic_load(&shared->confidence);

        if (confidence >= least)
            continue;
        ready = false;
        write_not_ready(out, shared, confidence, atomic_load(&shared->tenant_reasons[0]));
    }
    if (source_count == 0)
        kvd_out_text(out, "{\"source\":null,\"details\":[\"no source is configured\"]}");
    kvd_out_printf(out, "],\"ready\":%s}\n", ready ? "true" : "false");
    request->status = ready ? 200 : 503;
}

/* Metrics ---------------------------------------------------------------------------------- */

enum board_part {
    OF_SOURCE,
    OF_PRESENCE,
    OF_SUB,
    OF_DYNAMO,
    OF_BOARD
};

/* A number of a source: where it stands, what it is called. */
struct source_metric {
    const char *name;
    const char *label; /* Further labels, or NULL. */
    const char *type;
    const char *help; /* NULL: of the same name as the one before. */
    size_t offset;
};

#define SOURCE(field) \
    offsetof(struct kvd_board, source) + offsetof(struct kvg_source_stats, field)
#define INDEX(field) \
    offsetof(struct kvd_board, presence) + offsetof(struct kvg_presence_stats, field)
#define SUB(field) offsetof(struct kvd_board, sub) + offsetof(struct kvn_sub_stats, field)
#define CLIENT(field) \
    offsetof(struct kvd_board, dynamo) + offsetof(struct kvg_dynamo_stats, field)
#define BOARD(field) offsetof(struct kvd_board, field)

static const struct source_metric SOURCE_METRICS[] = {
#include "daemon/source_metrics.inc"
};
#define SOURCE_METRIC_COUNT (sizeof(SOURCE_METRICS) / sizeof(SOURCE_METRICS[0]))

static void write_labels(
    struct kvd_out *out, const struct kvd_shared *shared, const char *label)
{
    kvd_out_text(out, "{source=");
    kvd_metric_label(out, shared->config.name);
    if (label != NULL)
        kvd_out_printf(out, ",%s", label);
    kvd_out_text(out, "} ");
}

static void write_source_metrics(struct kvd_out *out, const struct kvd_snapshot *snapshot,
    const struct kvd_board *boards)
{
    for (size_t i = 0; i < SOURCE_METRIC_COUNT; i++) {
        const struct source_metric *metric = &SOURCE_METRICS[i];

        if (metric->help != NULL)
            kvd_metric_head(out, metric->name, metric->type, metric->help);
        for (size_t s = 0; s < snapshot->source_count; s++) {
            uint64_t value;

            memcpy(&value, (const char *)&boards[s] + metric->offset, sizeof(value));
            kvd_out_text(out, metric->name);
            write_labels(out, snapshot->sources[s].shared, metric->label);
            kvd_out_u64(out, value);
            kvd_out_text(out, "\n");
        }
    }
}

static void write_seconds(struct kvd_out *out, uint64_t ms)
{
    kvd_out_printf(
        out, "%llu.%03u\n", (unsigned long long)(ms / 1000), (unsigned)(ms % 1000));
}

static void write_states(struct kvd_out *out, const struct kvd_snapshot *snapshot,
    const struct kvd_board *boards)
{
    uint64_t now_ms = kvn_clock_ms();
    char label[64];

    kvd_metric_head(out, "kvgraft_source_confidence", "gauge",
        "1 for what answers of the default tenant are worth now, else 0.");
    for (size_t s = 0; s < snapshot->source_count; s++) {
        for (int c = KVG_CONFIDENCE_BLIND; c <= KVG_CONFIDENCE_FRESH; c++) {
            snprintf(label, sizeof(label), "confidence=\"%s\"",
                kvg_confidence_name((enum kvg_confidence)c));
            kvd_out_text(out, "kvgraft_source_confidence");
            write_labels(out, snapshot->sources[s].shared, label);
            kvd_out_text(out, atomic_load(&snapshot->sources[s].shared->confidence) == c
                                  ? "1\n"
                                  : "0\n");
        }
    }
    kvd_metric_head(out, "kvgraft_source_reason", "gauge",
        "1 for each reason why answers are not fresh, else 0.");
    for (size_t s = 0; s < snapshot->source_count; s++) {
#define WRITE_REASON(id, bit, word, sentence)                              \
    kvd_out_text(out, "kvgraft_source_reason");                            \
    write_labels(out, snapshot->sources[s].shared, "reason=\"" word "\""); \
    kvd_out_text(out, (boards[s].source.reasons & (uint32_t)(id)) != 0 ? "1\n" : "0\n");
        KVG_SOURCE_REASONS(WRITE_REASON)
#undef WRITE_REASON
    }
    kvd_metric_head(out, "kvgraft_source_age_seconds", "gauge",
        "Since the last message of the publisher; absent before the first.");
    for (size_t s = 0; s < snapshot->source_count; s++) {
        uint64_t last_ms = atomic_load(&snapshot->sources[s].shared->last_message_ms);

        if (last_ms == 0)
            continue;
        kvd_out_text(out, "kvgraft_source_age_seconds");
        write_labels(out, snapshot->sources[s].shared, NULL);
        write_seconds(out, now_ms > last_ms ? now_ms - last_ms : 0);
    }
    kvd_metric_head(out, "kvgraft_source_last_repair_seconds", "gauge",
        "From loss to fresh, the last time.");
    for (size_t s = 0; s < snapshot->source_count; s++) {
        kvd_out_text(out, "kvgraft_source_last_repair_seconds");
        write_labels(out, snapshot->sources[s].shared, NULL);
        write_seconds(out, boards[s].source.last_repair_ms);
    }
}

static uint64_t resident_bytes(void)
{
    FILE *file = fopen("/proc/self/statm", "re");
    unsigned long pages = 0;
    unsigned long resident = 0;

    if (file == NULL)
        return 0;
    if (fscanf(file, "%lu %lu", &pages, &resident) != 2)
        resident = 0;
    fclose(file);
    return (uint64_t)resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

static uint64_t open_files(void)
{
    DIR *directory = opendir("/proc/self/fd");
    uint64_t count = 0;

    if (directory == NULL)
        return 0;
    while (readdir(directory) != NULL)
        count++;
    closedir(directory);
    return count > 3 ? count - 3 : 0; /* ".", ".." and the directory itself. */
}

static void write_process(struct kvd_request *request)
{
    struct kvd_out *out = &request->out;

    kvd_metric_head(out, "kvgraft_build_info", "gauge", "Always 1.");
    kvd_out_printf(out, "kvgraft_build_info{version=\"%s\",sha256=\"%s\"} 1\n",
        kvg_version(), kvg_sha256_path());
    kvd_metric_head(out, "kvgraft_sources", "gauge", "Sources that are followed.");
    kvd_out_printf(out, "kvgraft_sources %zu\n",
        request->snapshot != NULL ? request->snapshot->source_count : 0);
    kvd_metric_head(out, "kvgraft_log_lines_suppressed_total", "counter",
        "Log lines left out because of the rate limit.");
    kvd_out_printf(out, "kvgraft_log_lines_suppressed_total %llu\n",
        (unsigned long long)kvd_log_suppressed(request->daemon->log));
    kvd_metric_head(out, "process_start_time_seconds", "gauge",
        "Start of the process since the epoch.");
    kvd_out_printf(
        out, "process_start_time_seconds %lld\n", (long long)request->daemon->started_s);
    kvd_metric_head(out, "process_resident_memory_bytes", "gauge", "Resident memory.");
    kvd_out_printf(out, "process_resident_memory_bytes %llu\n",
        (unsigned long long)resident_bytes());
    kvd_metric_head(out, "process_open_fds", "gauge", "Open file descriptors.");
    kvd_out_printf(out, "process_open_fds %llu\n", (unsigned long long)open_files());
}

void kvd_route_metrics(struct kvd_request *request)
{
    const struct kvd_snapshot *snapshot = request->snapshot;
    struct kvd_daemon *daemon = request->daemon;
    struct kvd_board *boards;

    request->content_type = "text/plain; version=0.0.4; charset=utf-8";
    write_process(request);
    kvd_metrics_write(&request->out, daemon->blocks, daemon->answerer_count);
    if (snapshot == NULL || snapshot->source_count == 0)
        return;
    boards = malloc(snapshot->source_count * sizeof(*boards));
    if (boards == NULL) {
        kvd_problem(request, 503, "busy", "metrics", "out of memory");
        return;
    }
    for (size_t s = 0; s < snapshot->source_count; s++)
        kvd_board_read(snapshot->sources[s].shared, &boards[s]);
    write_states(&request->out, snapshot, boards);
    write_source_metrics(&request->out, snapshot, boards);
    free(boards);
}
