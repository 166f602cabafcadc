/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* record.c -- `kvgraft record` and `kvgraft replay`: streams into files and out of them, in the
 * capture format (kvgraft/kvcap.h).
 *
 * A recording keeps what came, frame by frame, whatever it is; it is flushed once a second and at
 * the end, so that one that was cut off is good up to there.
 */
#include "cli/cli.h"
#include "cli/stream.h"

#include <kvgraft/kvcap.h>

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#define WAIT_MS 100
#define SECOND_NS UINT64_C(1000000000)

/* Recording -------------------------------------------------------------------------------- */

struct record_options {
    struct kvc_common common;
    const char *topic;
    uint64_t count;
    uint64_t duration_ms;
    uint64_t message_bytes_max;
    bool force;
};

static const struct kvc_option RECORD_OPTIONS[] = {
    {"count", 'n', KVC_U64, KVC_FIELD(struct record_options, count), "N", "0", NULL, 0,
        UINT64_MAX, "end after N messages; 0: never"},
    {"duration", 'd', KVC_DURATION, KVC_FIELD(struct record_options, duration_ms), "TIME",
        "0ms", NULL, 0, UINT64_MAX, "end after that time; 0: never"},
    {"topic", 't', KVC_TEXT, KVC_FIELD(struct record_options, topic), "PREFIX", NULL,
        NULL, 0, 0, "only topics that begin so"},
    {"force", 'f', KVC_FLAG, KVC_FIELD(struct record_options, force), NULL, NULL, NULL, 0,
        0, "overwrite FILE"},
    {"message-bytes", 0, KVC_BYTES, KVC_FIELD(struct record_options, message_bytes_max),
        "SIZE", "64MiB", NULL, 1024, KVG_KVCAP_FRAME_BYTES_MAX, "largest frame accepted"},
};

static const struct kvc_usage RECORD = {"record", "ENDPOINT FILE",
    "Record a publisher's stream to a file", RECORD_OPTIONS, KVC_COUNT(RECORD_OPTIONS),
    "FILE may be - for standard output.  Ctrl-C ends the recording.\n\n"
    "  kvgraft record tcp://127.0.0.1:5557 monday.kvcap\n"
    "  kvgraft replay monday.kvcap tcp://127.0.0.1:6000\n"};

static bool write_file(void *context, const void *bytes, size_t byte_count)
{
    return fwrite(bytes, 1, byte_count, (FILE *)context) == byte_count;
}

struct recording {
    FILE *file;
    uint64_t messages;
    uint64_t bytes;
    uint64_t cut_messages; /* More frames than a capture holds. */
};

static bool record_message(struct recording *recording, uint64_t time_ns,
    const struct kvg_str *frames, size_t count)
{
    size_t i;

    if (count > KVG_KVCAP_FRAMES_MAX) {
        count = KVG_KVCAP_FRAMES_MAX;
        recording->cut_messages++;
    }
    for (i = 0; i < count; i++)
        recording->bytes += frames[i].bytes;
    recording->messages++;
    return kvg_kvcap_write(write_file, recording->file, time_ns, frames, count) == KVG_OK;
}

static bool record_stream(struct recording *recording, struct kvc_stream *stream,
    const struct record_options *options)
{
    uint64_t began = kvc_now_ns();
    uint64_t flushed = began;
    struct kvc_progress progress;
    char number[KVC_NUMBER_BYTES];

    kvc_progress_init(&progress, &options->common);
    while (!kvc_stopped) {
        struct kvg_str frames[KVC_FRAMES_MAX];
        size_t count = kvc_stream_receive(stream, WAIT_MS, frames);
        uint64_t now = kvc_now_ns();

        kvc_stream_news(stream);
        if (count > 0 && !record_message(recording, now - began, frames, count))
            return false;
        if (now - flushed > SECOND_NS) {
            flushed = now;
            if (fflush(recording->file) != 0)
                return false;
        }
        kvc_progress(&progress, "%" PRIu64 " messages, %s recorded", recording->messages,
            kvc_bytes_text(recording->bytes, number));
        if (options->count > 0 && recording->messages >= options->count)
            break;
        if (options->duration_ms > 0 && now - began >= options->duration_ms * 1000000)
            break;
    }
    kvc_progress_clear(&progress);
    return fflush(recording->file) == 0;
}

static int record_to(FILE *file, const char *path, const char *endpoint,
    const struct record_options *options)
{
    struct kvc_stream_options stream_options = {.endpoint = endpoint,
        .topic = options->topic,
        .message_bytes_max = options->message_bytes_max,
        .queue_messages = 100000};
    struct recording recording = {.file = file};
    struct kvg_error error = {0};
    char text[KVC_ERROR_BYTES];
    struct kvc_stream *stream;
    bool good;

    if (kvc_stream_subscribe(&stream_options, &error, &stream) != KVG_OK)
        return kvc_failed(&RECORD, "%s", kvc_error_text(&error, text));
    kvc_catch_signals();
    good = kvg_kvcap_write_begin(write_file, file) == KVG_OK &&
           record_stream(&recording, stream, options);
    kvc_stream_close(stream);
    if (!good)
        return kvc_failed(&RECORD, "%s: %s", path, strerror(errno));
    if (options->common.json)
        fprintf(stderr, "{\"messages\":%" PRIu64 ",\"bytes\":%" PRIu64 "}\n",
            recording.messages, recording.bytes);
    else if (!options->common.quiet)
        fprintf(stderr, "%" PRIu64 " messages, %" PRIu64 " bytes recorded to %s\n",
            recording.messages, recording.bytes, path);
    if (recording.cut_messages > 0)
        fprintf(stderr, "%" PRIu64 " messages had more than %u frames and were cut\n",
            recording.cut_messages, KVG_KVCAP_FRAMES_MAX);
    return recording.messages > 0 ? KVC_FINE : KVC_FAILED;
}

int kvc_record_main(int argc, char **argv)
{
    struct record_options options = {0};
    int exit_code;
    int first = kvc_options(&RECORD, argc, argv, &options, &exit_code);
    const char *path;
    FILE *file = stdout;

    if (first < 0)
        return exit_code;
    if (argc - first != 2)
        return kvc_misused(&RECORD, "give an endpoint and a file");
    path = argv[first + 1];
    if (strcmp(path, "-") == 0) {
        if (isatty(STDOUT_FILENO))
            return kvc_misused(&RECORD, "a capture is binary: send it to a file");
        return record_to(stdout, "standard output", argv[first], &options);
    }
    file = fopen(path, options.force ? "wbe" : "wbxe");
    if (file == NULL)
        return kvc_failed(&RECORD, "%s: %s%s", path, strerror(errno),
            errno == EEXIST ? "; --force overwrites it" : "");
    exit_code = record_to(file, path, argv[first], &options);
    if (fclose(file) != 0)
        return kvc_failed(&RECORD, "%s: %s", path, strerror(errno));
    return exit_code;
}

/* Replaying -------------------------------------------------------------------------------- */

struct replay_options {
    struct kvc_common common;
    double speed;
    uint64_t subscribers;
    uint64_t linger_ms;
};

static const struct kvc_option REPLAY_OPTIONS[] = {
    {"speed", 's', KVC_RATIO, KVC_FIELD(struct replay_options, speed), "X", "1", NULL, 0,
        0, "2 is twice as fast; 0 as fast as it goes"},
    {"wait", 'w', KVC_U64, KVC_FIELD(struct replay_options, subscribers), "N", "1", NULL,
        0, 1000, "begin when N subscribers have come"},
    {"linger", 'l', KVC_DURATION, KVC_FIELD(struct replay_options, linger_ms), "TIME",
        "0ms", NULL, 0, UINT64_MAX, "stay that long after the last message"},
};

static const struct kvc_usage REPLAY = {"replay", "FILE ENDPOINT",
    "Publish a recorded stream again", REPLAY_OPTIONS, KVC_COUNT(REPLAY_OPTIONS),
    "Binds ENDPOINT and sends what FILE (- is standard input) holds, with its own "
    "timing.\n"
    "The endpoint in use is printed on standard error; port 0 takes any.\n\n"
    "  kvgraft replay --speed 0 monday.kvcap tcp://127.0.0.1:6000\n"};

static bool read_file(void *context, void *bytes, size_t byte_max, size_t *got)
{
    *got = fread(bytes, 1, byte_max, (FILE *)context);
    return *got > 0 || !ferror((FILE *)context);
}

/* Waits until the moment of the message, or until stopped. */
static void wait_until(uint64_t due_ns)
{
    while (!kvc_stopped) {
        uint64_t now = kvc_now_ns();

        if (now >= due_ns)
            return;
        kvc_sleep_ns(due_ns - now < SECOND_NS / 10 ? due_ns - now : SECOND_NS / 10);
    }
}

static int replay_to(struct kvg_kvcap_stream *capture, struct kvc_stream *stream,
    const struct replay_options *options)
{
    struct kvg_kvcap_message message;
    struct kvc_progress progress;
    struct kvg_error error = {0};
    char text[KVC_ERROR_BYTES];
    uint64_t messages = 0;
    uint64_t began;
    kvg_err err = KVG_OK;

    kvc_progress_init(&progress, &options->common);
    while (!kvc_stopped && kvc_stream_peers(stream) < options->subscribers) {
        kvc_progress(&progress, "waiting for a subscriber");
        kvc_sleep_ns(SECOND_NS / 200);
    }
    began = kvc_now_ns();
    while (!kvc_stopped) {
        err = kvg_kvcap_stream_next(capture, &error, &message);
        if (err != KVG_OK)
            break;
        if (options->speed > 0)
            wait_until(began + (uint64_t)((double)message.time_ns / options->speed));
        err = kvc_stream_send(stream, message.frames, message.frame_count);
        if (err != KVG_OK)
            return kvc_failed(&REPLAY, "cannot send: %s", kvg_strerror(err));
        messages++;
        kvc_progress(&progress, "%" PRIu64 " messages sent", messages);
    }
    kvc_progress_clear(&progress);
    if (options->common.json)
        fprintf(stderr, "{\"messages\":%" PRIu64 "}\n", messages);
    else if (!options->common.quiet)
        fprintf(stderr, "%" PRIu64 " messages sent in %.1f s\n", messages,
            (double)(kvc_now_ns() - began) / 1e9);
    wait_until(kvc_now_ns() + options->linger_ms * 1000000);
    if (err != KVG_OK && err != KVG_ENOENT)
        return kvc_failed(&REPLAY, "%s", kvc_error_text(&error, text));
    return KVC_FINE;
}

int kvc_replay_main(int argc, char **argv)
{
    struct replay_options options = {0};
    struct kvc_stream_options stream_options = {0};
    struct kvg_error error = {0};
    char text[KVC_ERROR_BYTES];
    struct kvg_kvcap_stream *capture = NULL;
    struct kvc_stream *stream = NULL;
    int exit_code;
    int first = kvc_options(&REPLAY, argc, argv, &options, &exit_code);
    FILE *file;

    if (first < 0)
        return exit_code;
    if (argc - first != 2)
        return kvc_misused(&REPLAY, "give a file and an endpoint to bind");
    file = strcmp(argv[first], "-") == 0 ? stdin : fopen(argv[first], "rbe");
    if (file == NULL)
        return kvc_failed(&REPLAY, "%s: %s", argv[first], strerror(errno));
    stream_options.endpoint = argv[first + 1];
    exit_code = KVC_FAILED;
    if (kvg_kvcap_stream_new(kvg_alloc_default(), read_file, file, &capture) != KVG_OK) {
        kvc_failed(&REPLAY, "out of memory");
    } else if (kvc_stream_publish(&stream_options, &error, &stream) != KVG_OK) {
        kvc_failed(&REPLAY, "%s", kvc_error_text(&error, text));
    } else {
        kvc_catch_signals();
        if (!options.common.quiet)
            fprintf(stderr, "publishing on %s\n", kvc_stream_endpoint(stream));
        exit_code = replay_to(capture, stream, &options);
    }
    kvc_stream_close(stream);
    kvg_kvcap_stream_free(capture);
    if (file != stdin)
        fclose(file);
    return exit_code;
}
