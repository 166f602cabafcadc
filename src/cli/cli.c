/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* cli.c -- the little that commands share: signals, clocks, numbers, progress, files. */
#include "cli/cli.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

const char *kvc_program = "kvgraft";

volatile sig_atomic_t kvc_stopped;

static void on_signal(int number)
{
    if (kvc_stopped) {
        signal(number, SIG_DFL);
        raise(number);
    }
    kvc_stopped = 1;
}

void kvc_catch_signals(void)
{
    struct sigaction action = {.sa_handler = on_signal};

    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    signal(SIGPIPE, SIG_IGN);
}

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec now;

    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

uint64_t kvc_now_ns(void)
{
    return clock_ns(CLOCK_MONOTONIC);
}

int64_t kvc_wall_ms(void)
{
    return (int64_t)(clock_ns(CLOCK_REALTIME) / 1000000);
}

void kvc_sleep_ns(uint64_t duration_ns)
{
    struct timespec duration = {(time_t)(duration_ns / UINT64_C(1000000000)),
        (long)(duration_ns % UINT64_C(1000000000))};

    if (!kvc_stopped)
        nanosleep(&duration, NULL);
}

struct kvc_style kvc_style_of(const struct kvc_common *common, FILE *to)
{
    static const struct kvc_style PLAIN = {"", "", "", "", "", ""};
    static const struct kvc_style COLORED = {
        "\033[1m", "\033[2m", "\033[32m", "\033[33m", "\033[31m", "\033[0m"};
    bool plain = common->no_color || common->json || !isatty(fileno(to));

    return plain ? PLAIN : COLORED;
}

void kvc_progress_init(struct kvc_progress *progress, const struct kvc_common *common)
{
    *progress = (struct kvc_progress){
        .on = !common->no_progress && !common->quiet && isatty(STDERR_FILENO)};
}

void kvc_progress(struct kvc_progress *progress, const char *format, ...)
{
    va_list arguments;
    uint64_t now = kvc_now_ns();

    if (!progress->on || now < progress->next_ns)
        return;
    progress->next_ns = now + UINT64_C(100000000);
    progress->drawn = true;
    fputs("\r\033[K", stderr);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fflush(stderr);
}

void kvc_progress_clear(struct kvc_progress *progress)
{
    if (progress->drawn)
        fputs("\r\033[K", stderr);
    progress->drawn = false;
}

const char *kvc_count_text(uint64_t count, char out[KVC_NUMBER_BYTES])
{
    char digits[24];
    int length = snprintf(digits, sizeof(digits), "%" PRIu64, count);
    int to = 0;
    int i;

    for (i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0)
            out[to++] = ',';
        out[to++] = digits[i];
    }
    out[to] = '\0';
    return out;
}

const char *kvc_bytes_text(uint64_t bytes, char out[KVC_NUMBER_BYTES])
{
    static const char *const UNITS[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    size_t unit = 0;

    while (value >= 1024 && unit + 1 < KVC_COUNT(UNITS)) {
        value /= 1024;
        unit++;
    }
    snprintf(out, KVC_NUMBER_BYTES, "%.*f %s", unit == 0 ? 0 : 1, value, UNITS[unit]);
    return out;
}

const char *kvc_time_text(double ns, char out[KVC_NUMBER_BYTES])
{
    static const char *const UNITS[] = {"ns", "\xc2\xb5s", "ms", "s"};
    size_t unit = 0;

    while (ns >= 1000 && unit + 1 < KVC_COUNT(UNITS)) {
        ns /= 1000;
        unit++;
    }
    snprintf(out, KVC_NUMBER_BYTES, "%.*f %s",
        unit == 0 ? 0
        : ns < 10 ? 2
                  : 1,
        ns, UNITS[unit]);
    return out;
}

static kvg_err fail_file(
    struct kvg_error *error, kvg_err code, const char *path, const char *message)
{
    error->code = code;
    snprintf(error->field, sizeof(error->field), "%.60s", path);
    snprintf(error->message, sizeof(error->message), "%s", message);
    return code;
}

char *kvc_read_file(
    const char *path, size_t bytes_max, size_t *bytes_out, struct kvg_error *error)
{
    bool is_stdin = strcmp(path, "-") == 0;
    FILE *file = is_stdin ? stdin : fopen(path, "rb");
    size_t capacity = 64 * 1024;
    size_t bytes = 0;
    char *data = NULL;

    *bytes_out = 0;
    if (file == NULL) {
        fail_file(error, KVG_EIO, path, strerror(errno));
        return NULL;
    }
    data = malloc(capacity);
    while (data != NULL) {
        size_t got = fread(data + bytes, 1, capacity - 1 - bytes, file);
        char *larger;

        bytes += got;
        if (got == 0 || bytes > bytes_max)
            break;
        if (bytes < capacity - 1)
            continue;
        larger = realloc(data, capacity * 2);
        if (larger == NULL)
            free(data);
        data = larger;
        capacity *= 2;
    }
    if (data == NULL) {
        fail_file(error, KVG_ENOMEM, path, "out of memory");
    } else if (ferror(file)) {
        fail_file(error, KVG_EIO, path, strerror(errno));
    } else if (bytes > bytes_max) {
        char message[96];

        snprintf(
            message, sizeof(message), "has more than the allowed %zu bytes", bytes_max);
        fail_file(error, KVG_ELIMIT, path, message);
    } else {
        data[bytes] = '\0';
        *bytes_out = bytes;
        if (!is_stdin)
            fclose(file);
        return data;
    }
    free(data);
    if (!is_stdin)
        fclose(file);
    return NULL;
}
