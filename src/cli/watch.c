/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* watch.c -- `kvgraft watch`: shows what a publisher says, and what it turned out to be.
 *
 * On a terminal a line a message and the first events below it; at most LINES_A_SECOND, so that
 * a busy publisher stays readable; what was not shown is counted.  With --json every message is
 * one object, and the summary the last.
 */
#include "cli/cli.h"
#include "cli/seen.h"
#include "cli/stream.h"
#include "cli/watch_print.h"

#include <inttypes.h>
#include <string.h>

#define WAIT_MS 100
#define NO_MESSAGE_HINT_NS UINT64_C(3000000000)

struct watch_options {
    struct kvc_common common;
    const char *topic;
    uint64_t count;
    uint64_t duration_ms;
    uint64_t events_shown;
    uint64_t message_bytes_max;
};

static const struct kvc_option OPTIONS[] = {
    {"count", 'n', KVC_U64, KVC_FIELD(struct watch_options, count), "N", "0", NULL, 0,
        UINT64_MAX, "end after N messages; 0: never"},
    {"duration", 'd', KVC_DURATION, KVC_FIELD(struct watch_options, duration_ms), "TIME",
        "0ms", NULL, 0, UINT64_MAX, "end after that time; 0: never"},
    {"events", 'e', KVC_U64, KVC_FIELD(struct watch_options, events_shown), "N", "4",
        NULL, 0, UINT32_MAX, "events shown of a message"},
    {"topic", 't', KVC_TEXT, KVC_FIELD(struct watch_options, topic), "PREFIX", NULL, NULL,
        0, 0, "only topics that begin so"},
    {"message-bytes", 0, KVC_BYTES, KVC_FIELD(struct watch_options, message_bytes_max),
        "SIZE", "64MiB", NULL, 1024, UINT64_C(1) << 30, "largest frame accepted"},
};

static const struct kvc_usage USAGE = {"watch", "ENDPOINT",
    "Decode the KV events of any publisher, live", OPTIONS, KVC_COUNT(OPTIONS),
    "Understands Mooncake masters and vLLM and SGLang engines, arrays and maps.  Ctrl-C "
    "ends "
    "it\nwith a summary.  Exit code 1 if no message came.\n\n"
    "  kvgraft watch tcp://127.0.0.1:5557\n"
    "  kvgraft watch --json --count 100 tcp://127.0.0.1:5557\n"};

static void take_message(struct kvc_watch *watch, const struct watch_options *options,
    const struct kvg_str *frames, size_t frame_count)
{
    struct kvg_error error = {0};
    struct kvg_frames parsed;
    uint64_t shown = 0;
    uint64_t total = 0;
    struct kvg_event event;
    enum kvc_step step;
    size_t i;

    watch->seen.messages++;
    for (i = 0; i < frame_count && i < KVC_FRAMES_MAX; i++)
        watch->seen.bytes += frames[i].bytes;
    if (kvg_frames_parse(frames, frame_count, &error, &parsed) != KVG_OK) {
        watch->seen.bad_frames++;
        kvc_watch_bad(watch, NULL, error.message);
        return;
    }
    if (parsed.topic.bytes > 0)
        kvc_names_add(&watch->seen.topics, parsed.topic);
    step = kvc_seen_sequence(&watch->seen, parsed.sequence);
    kvc_watch_begin(watch, &parsed, step);
    if (kvg_event_reader_begin(&watch->reader, parsed.payload, &error) != KVG_OK) {
        kvc_watch_bad(watch, &parsed, error.message);
        return;
    }
    while (kvg_event_reader_next(&watch->reader, &event)) {
        kvc_seen_event(&watch->seen, &event);
        total++;
        if (shown < options->events_shown || watch->json) {
            kvc_watch_event(watch, &event);
            shown++;
        }
    }
    kvc_watch_end(watch, total, total - shown);
}

static void tell_news(struct kvc_watch *watch, enum kvc_stream_news news)
{
    static const char *const SENTENCES[] = {
        [KVC_STREAM_CONNECTED] = "connected",
        [KVC_STREAM_DISCONNECTED] = "connection lost; waiting for the publisher",
        [KVC_STREAM_NO_PUBLISHER] =
            "something answers there, but it is no ZeroMQ publisher; check the port",
    };

    if (news == KVC_STREAM_NO_NEWS || news == watch->last_news)
        return;
    watch->last_news = news;
    kvc_watch_say(watch, SENTENCES[news]);
}

static void run(struct kvc_watch *watch, const struct watch_options *options,
    struct kvc_stream *stream)
{
    uint64_t began = kvc_now_ns();
    uint64_t ends = options->duration_ms == 0
                        ? UINT64_MAX
                        : began + options->duration_ms * UINT64_C(1000000);
    bool hinted = false;

    while (!kvc_stopped) {
        struct kvg_str frames[KVC_FRAMES_MAX];
        size_t count = kvc_stream_receive(stream, WAIT_MS, frames);

        tell_news(watch, kvc_stream_news(stream));
        if (count > 0)
            take_message(watch, options, frames, count);
        kvc_watch_tick(watch);
        if (options->count > 0 && watch->seen.messages >= options->count)
            break;
        if (kvc_now_ns() >= ends)
            break;
        if (!hinted && watch->seen.messages == 0 &&
            kvc_now_ns() - began > NO_MESSAGE_HINT_NS) {
            hinted = true;
            kvc_watch_say(
                watch, watch->last_news == KVC_STREAM_CONNECTED
                           ? "connected, but no message yet; the publisher may be idle"
                           : "nothing answers there yet; still trying (Ctrl-C ends)");
        }
    }
}

int kvc_watch_main(int argc, char **argv)
{
    struct watch_options options = {0};
    struct kvc_stream_options stream_options = {0};
    struct kvg_error error = {0};
    char text[KVC_ERROR_BYTES];
    struct kvc_stream *stream;
    struct kvc_watch watch;
    int exit_code;
    int first = kvc_options(&USAGE, argc, argv, &options, &exit_code);

    if (first < 0)
        return exit_code;
    if (argc - first != 1)
        return kvc_misused(&USAGE, "give one endpoint, such as tcp://127.0.0.1:5557");
    stream_options.endpoint = argv[first];
    stream_options.topic = options.topic;
    stream_options.message_bytes_max = options.message_bytes_max;
    if (kvc_stream_subscribe(&stream_options, &error, &stream) != KVG_OK)
        return kvc_failed(&USAGE, "%s", kvc_error_text(&error, text));

    kvc_catch_signals();
    kvc_watch_init(&watch, &options.common, argv[first]);
    run(&watch, &options, stream);
    kvc_stream_close(stream);
    kvc_watch_summary(&watch);
    return watch.seen.messages > 0 ? KVC_FINE : KVC_FAILED;
}
