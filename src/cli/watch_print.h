/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* watch_print.h -- how `watch` shows a stream, to people and as JSON. */
#ifndef KVC_WATCH_PRINT_H
#define KVC_WATCH_PRINT_H

#include "cli/cli.h"
#include "cli/seen.h"
#include "cli/stream.h"

#include <jansson.h>

struct kvc_watch {
    struct kvc_seen seen;
    struct kvg_event_reader reader;
    struct kvc_style style;
    struct kvc_progress progress;
    const char *endpoint;
    bool json;
    bool quiet;
    enum kvc_stream_news last_news;
    uint64_t began_ns;
    uint64_t window_ns; /* Begin of the second in which lines are counted. */
    unsigned window_lines;
    uint64_t messages_hidden;
    json_t *message; /* Being put together, with --json. */
    bool showing;    /* The message under way is shown. */
};

void kvc_watch_init(
    struct kvc_watch *watch, const struct kvc_common *common, const char *endpoint);
/* A remark about the connection, on stderr. */
void kvc_watch_say(struct kvc_watch *watch, const char *sentence);
void kvc_watch_begin(
    struct kvc_watch *watch, const struct kvg_frames *frames, enum kvc_step step);
void kvc_watch_event(struct kvc_watch *watch, const struct kvg_event *event);
/* Ends a message of `total` events, `hidden` of which were not given. */
void kvc_watch_end(struct kvc_watch *watch, uint64_t total, uint64_t hidden);
/* Ends a message that cannot be read; `frames` is NULL if not even the frames can. */
void kvc_watch_bad(
    struct kvc_watch *watch, const struct kvg_frames *frames, const char *why);
/* Redraws the progress line. */
void kvc_watch_tick(struct kvc_watch *watch);
void kvc_watch_summary(struct kvc_watch *watch);

#endif
