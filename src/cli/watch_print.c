/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* watch_print.c -- how `watch` shows a stream (watch_print.h). */
#include "cli/watch_print.h"

#include <kvgraft/layout.h>

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define LINES_A_SECOND 200u
#define KEY_TEXT_BYTES 160

static const char *const KINDS[] = {"stored", "removed", "cleared"};

void kvc_watch_init(
    struct kvc_watch *watch, const struct kvc_common *common, const char *endpoint)
{
    *watch = (struct kvc_watch){.style = kvc_style_of(common, stdout),
        .endpoint = endpoint,
        .json = common->json,
        .quiet = common->quiet,
        .began_ns = kvc_now_ns()};
    watch->window_ns = watch->began_ns;
    kvg_event_reader_init(&watch->reader, NULL);
    kvc_progress_init(&watch->progress, common);
}

void kvc_watch_say(struct kvc_watch *watch, const char *sentence)
{
    kvc_progress_clear(&watch->progress);
    if (!watch->quiet)
        fprintf(stderr, "%s: %s\n", watch->endpoint, sentence);
}

static bool may_print(struct kvc_watch *watch)
{
    uint64_t now = kvc_now_ns();

    if (now - watch->window_ns > UINT64_C(1000000000)) {
        watch->window_ns = now;
        watch->window_lines = 0;
    }
    return watch->window_lines < LINES_A_SECOND;
}

/* A page key in the middle of an object key is cut to what tells it from others. */
static const char *short_key(struct kvg_str text, char out[KEY_TEXT_BYTES])
{
    struct kvg_object_key object;

    if (!kvg_object_key_parse(text, &object)) {
        snprintf(out, KEY_TEXT_BYTES, "%.*s", (int)(text.bytes < 150 ? text.bytes : 150),
            text.data);
        return out;
    }
    snprintf(out, KEY_TEXT_BYTES, "%.*s%s%02x%02x%02x%02x..%02x%02x%.*s",
        (int)(object.prefix.bytes < 64 ? object.prefix.bytes : 64),
        object.prefix.bytes == 0 ? "" : object.prefix.data,
        object.prefix.bytes == 0 ? "" : "_", object.key.bytes[0], object.key.bytes[1],
        object.key.bytes[2], object.key.bytes[3], object.key.bytes[30],
        object.key.bytes[31], (int)object.suffix.bytes, object.suffix.data);
    return out;
}

static void add_text(json_t *to, const char *name, struct kvg_str text)
{
    json_t *value;

    if (text.data == NULL)
        return;
    value = json_stringn(text.data, text.bytes);
    json_object_set_new(to, name, value == NULL ? json_string("(not UTF-8)") : value);
}

static void add_count(json_t *to, const char *name, uint64_t count)
{
    json_object_set_new(to, name, json_integer((json_int_t)count));
}

static void print_json(const json_t *value)
{
    json_dumpf(value, stdout, JSON_COMPACT | JSON_PRESERVE_ORDER);
    fputc('\n', stdout);
    fflush(stdout);
}

static void tell_step(
    struct kvc_watch *watch, const struct kvg_frames *frames, enum kvc_step step)
{
    static const char *const STEPS[] = {
        [KVC_STEP_FIRST] = "first",
        [KVC_STEP_NEXT] = "",
        [KVC_STEP_GAP] = "GAP before it: messages were lost",
        [KVC_STEP_DUPLICATE] = "duplicate",
        [KVC_STEP_RESTART] = "RESTART: the sequence fell, the publisher started again",
    };
    const struct kvc_style *style = &watch->style;
    bool late = step == KVC_STEP_FIRST && frames->sequence > 1;

    printf("%s#%" PRIu64 "%s%s%.*s%s%s%s%s", style->bold, frames->sequence, style->end,
        frames->topic.bytes > 0 ? " topic " : "",
        (int)(frames->topic.bytes < 40 ? frames->topic.bytes : 40),
        frames->topic.bytes > 0 ? frames->topic.data : "",
        STEPS[step][0] == '\0' ? "" : "  ",
        step == KVC_STEP_GAP || step == KVC_STEP_RESTART ? style->yellow : style->dim,
        late ? "joined a running stream; what came before is unknown" : STEPS[step],
        style->end);
    fputc('\n', stdout);
}

void kvc_watch_begin(
    struct kvc_watch *watch, const struct kvg_frames *frames, enum kvc_step step)
{
    static const char *const WORDS[] = {"first", "next", "gap", "duplicate", "restart"};

    if (watch->json) {
        watch->message = json_object();
        add_text(watch->message, "topic", frames->topic);
        add_count(watch->message, "sequence", frames->sequence);
        json_object_set_new(watch->message, "step", json_string(WORDS[step]));
        add_count(watch->message, "payload_bytes", frames->payload.bytes);
        json_object_set_new(watch->message, "events", json_array());
        return;
    }
    watch->showing =
        may_print(watch) || (step != KVC_STEP_NEXT && step != KVC_STEP_FIRST);
    if (!watch->showing) {
        watch->messages_hidden++;
        return;
    }
    kvc_progress_clear(&watch->progress);
    tell_step(watch, frames, step);
    watch->window_lines++;
}

static void event_json(json_t *to, const struct kvg_event *event)
{
    static const char *const FORMS[] = {"object", "engine"};
    json_t *item = json_object();

    json_object_set_new(item, "kind", json_string(KINDS[event->kind]));
    json_object_set_new(item, "form", json_string(FORMS[event->form]));
    json_object_set_new(item, "medium", json_string(kvg_medium_name(event->medium)));
    add_text(item, "medium_name", event->medium_name);
    add_text(item, "object_key", event->object_key);
    add_text(item, "group_id", event->group_id);
    add_text(item, "tenant_id", event->tenant_id);
    add_text(item, "backend_id", event->backend_id);
    add_text(item, "model_name", event->model_name);
    add_text(item, "lora_name", event->lora_name);
    if (event->has_event_id)
        add_count(item, "event_id", event->event_id);
    if (event->has_block_size)
        add_count(item, "block_size", event->block_size);
    if (event->has_dp_rank)
        json_object_set_new(item, "dp_rank", json_integer(event->dp_rank));
    if (event->block_hashes.count > 0)
        add_count(item, "blocks", event->block_hashes.count);
    if (event->token_ids.count > 0)
        add_count(item, "tokens", event->token_ids.count);
    json_array_append_new(to, item);
}

void kvc_watch_event(struct kvc_watch *watch, const struct kvg_event *event)
{
    const struct kvc_style *style = &watch->style;
    char key[KEY_TEXT_BYTES];

    if (watch->json) {
        event_json(json_object_get(watch->message, "events"), event);
        return;
    }
    if (!watch->showing)
        return;
    watch->window_lines++;
    printf("    %s%-8s%s %-8s",
        event->kind == KVG_EVENT_STORED ? style->green : style->red, KINDS[event->kind],
        style->end, kvg_medium_name(event->medium));
    if (event->object_key.bytes > 0)
        printf(" %s", short_key(event->object_key, key));
    if (event->block_hashes.count > 0)
        printf(" %" PRIu32 " blocks", event->block_hashes.count);
    if (event->has_block_size && event->form == KVG_FORM_ENGINE)
        printf(" of %" PRIu64 " tokens", event->block_size);
    if (event->token_ids.count > 0)
        printf(", %" PRIu32 " token ids%s", event->token_ids.count,
            event->token_pairs ? " (pairs)" : "");
    if (event->group_id.bytes > 0)
        printf(" %sgrouped%s", style->dim, style->end);
    if (event->model_name.bytes > 0)
        printf(" model %.*s", (int)event->model_name.bytes, event->model_name.data);
    fputc('\n', stdout);
}

void kvc_watch_end(struct kvc_watch *watch, uint64_t total, uint64_t hidden)
{
    if (watch->json) {
        print_json(watch->message);
        json_decref(watch->message);
        watch->message = NULL;
        return;
    }
    if (watch->showing && hidden > 0)
        printf("    %s... %" PRIu64 " more of %" PRIu64 "%s\n", watch->style.dim, hidden,
            total, watch->style.end);
    if (watch->showing)
        fflush(stdout);
}

void kvc_watch_bad(
    struct kvc_watch *watch, const struct kvg_frames *frames, const char *why)
{
    if (watch->json) {
        json_t *message = watch->message == NULL ? json_object() : watch->message;

        json_object_set_new(message, "error", json_string(why));
        print_json(message);
        json_decref(message);
        watch->message = NULL;
        return;
    }
    if (frames != NULL ? !watch->showing : !may_print(watch)) {
        watch->messages_hidden += frames == NULL;
        return;
    }
    watch->window_lines++;
    kvc_progress_clear(&watch->progress);
    printf("    %sunreadable: %s%s\n", watch->style.yellow, why, watch->style.end);
}

void kvc_watch_tick(struct kvc_watch *watch)
{
    double seconds = (double)(kvc_now_ns() - watch->began_ns) / 1e9;

    if (watch->json || watch->quiet || seconds <= 0)
        return;
    kvc_progress(&watch->progress,
        "%" PRIu64 " messages, %" PRIu64 " events (%.0f/s), %" PRIu64 " gaps",
        watch->seen.messages, watch->reader.counts.events,
        (double)watch->reader.counts.events / seconds, watch->seen.gaps);
}

static json_t *names_json(const struct kvc_names *names)
{
    json_t *out = json_object();
    unsigned i;

    for (i = 0; i < names->count; i++) {
        if (json_object_set_new(
                out, names->names[i], json_integer((json_int_t)names->seen[i])) != 0)
            json_object_set_new(
                out, "(not UTF-8)", json_integer((json_int_t)names->seen[i]));
    }
    if (names->others > 0)
        add_count(out, "(others)", names->others);
    return out;
}

static void summary_json(const struct kvc_watch *watch, double seconds)
{
    const struct kvc_seen *seen = &watch->seen;
    const struct kvg_event_counts *counts = &watch->reader.counts;
    json_t *root = json_object();
    json_t *summary = json_object();
    int medium;
    json_t *media = json_object();

    json_object_set_new(summary, "endpoint", json_string(watch->endpoint));
    json_object_set_new(summary, "publisher", json_string(kvc_seen_dialect(seen)));
    json_object_set_new(summary, "seconds", json_real(seconds));
    add_count(summary, "messages", seen->messages);
    add_count(summary, "bytes", seen->bytes);
    add_count(summary, "events", counts->events);
    add_count(summary, "stored", seen->events[KVG_EVENT_STORED]);
    add_count(summary, "removed", seen->events[KVG_EVENT_REMOVED]);
    add_count(summary, "cleared", seen->events[KVG_EVENT_CLEARED]);
    add_count(summary, "first_sequence", seen->first_sequence);
    add_count(summary, "last_sequence", seen->last_sequence);
    add_count(summary, "gaps", seen->gaps);
    add_count(summary, "missed_sequences", seen->missed_sequences);
    add_count(summary, "duplicates", seen->duplicates);
    add_count(summary, "restarts", seen->restarts);
    add_count(summary, "bad_frames", seen->bad_frames);
    add_count(summary, "bad_payloads", counts->bad_payloads);
    add_count(summary, "bad_events", counts->bad_events);
    add_count(summary, "unknown_kinds", counts->unknown_kinds);
    add_count(summary, "unknown_fields", counts->unknown_fields);
    add_count(summary, "foreign_keys", seen->foreign_keys);
    for (medium = 0; medium < KVG_MEDIUM_COUNT; medium++) {
        if (seen->media[medium] > 0)
            add_count(
                media, kvg_medium_name((enum kvg_medium)medium), seen->media[medium]);
    }
    json_object_set_new(summary, "media", media);
    json_object_set_new(summary, "block_sizes", names_json(&seen->block_sizes));
    json_object_set_new(summary, "tenants", names_json(&seen->tenants));
    json_object_set_new(summary, "backends", names_json(&seen->backends));
    json_object_set_new(summary, "models", names_json(&seen->models));
    json_object_set_new(summary, "key_prefixes", names_json(&seen->prefixes));
    json_object_set_new(summary, "key_suffixes", names_json(&seen->suffixes));
    json_object_set_new(summary, "dp_ranks", names_json(&seen->ranks));
    json_object_set_new(root, "summary", summary);
    print_json(root);
    json_decref(root);
}

static void print_names(const char *label, const struct kvc_names *names)
{
    unsigned i;

    if (names->count == 0)
        return;
    printf("  %-14s", label);
    for (i = 0; i < names->count; i++)
        printf("%s%s (%" PRIu64 ")", i == 0 ? "" : ", ", names->names[i], names->seen[i]);
    if (names->others > 0)
        printf(", others (%" PRIu64 ")", names->others);
    fputc('\n', stdout);
}

/* Why nothing came: without a message there is nothing else to tell. */
static const char *silence(enum kvc_stream_news last_news)
{
    switch (last_news) {
    case KVC_STREAM_CONNECTED:
        return "connected, but nothing was published meanwhile";
    case KVC_STREAM_DISCONNECTED:
        return "the connection was lost before anything was published";
    case KVC_STREAM_NO_PUBLISHER:
        return "something answers there, but it is no ZeroMQ publisher; check the port";
    case KVC_STREAM_NO_NEWS:
        break;
    }
    return "never connected: nothing answers there; check host and port";
}

static void print_trouble(const struct kvc_watch *watch)
{
    const struct kvc_seen *seen = &watch->seen;
    const struct kvg_event_counts *counts = &watch->reader.counts;

    printf("  %-14s", "trouble");
    if (seen->messages == 0) {
        printf("%s\n", silence(watch->last_news));
        return;
    }
    if (seen->gaps + seen->restarts + seen->duplicates + seen->bad_frames +
            counts->bad_payloads + counts->bad_events ==
        0) {
        printf("none: no gap, restart, duplicate or bad message\n");
        return;
    }
    printf("%" PRIu64 " gaps (%" PRIu64 " sequence numbers), %" PRIu64
           " restarts, %" PRIu64 " duplicates, %" PRIu64 " bad messages, %" PRIu64
           " bad events\n",
        seen->gaps, seen->missed_sequences, seen->restarts, seen->duplicates,
        seen->bad_frames + counts->bad_payloads, counts->bad_events);
}

void kvc_watch_summary(struct kvc_watch *watch)
{
    const struct kvc_seen *seen = &watch->seen;
    double seconds = (double)(kvc_now_ns() - watch->began_ns) / 1e9;
    char number[KVC_NUMBER_BYTES];

    kvc_progress_clear(&watch->progress);
    if (watch->json) {
        summary_json(watch, seconds);
        return;
    }
    printf("%s%s%s\n", watch->style.bold, watch->endpoint, watch->style.end);
    printf("  %-14s%s\n", "publisher", kvc_seen_dialect(seen));
    printf("  %-14s%" PRIu64 " (%s) in %.1f s\n", "messages", seen->messages,
        kvc_bytes_text(seen->bytes, number), seconds);
    printf("  %-14s%s: ", "events", kvc_count_text(watch->reader.counts.events, number));
    printf("%" PRIu64 " stored, %" PRIu64 " removed, %" PRIu64 " cleared\n",
        seen->events[KVG_EVENT_STORED], seen->events[KVG_EVENT_REMOVED],
        seen->events[KVG_EVENT_CLEARED]);
    if (seen->has_sequence)
        printf("  %-14s%" PRIu64 " to %" PRIu64 "\n", "sequence", seen->first_sequence,
            seen->last_sequence);
    print_trouble(watch);
    print_names("topics", &seen->topics);
    print_names("block sizes", &seen->block_sizes);
    print_names("tenants", &seen->tenants);
    print_names("backends", &seen->backends);
    print_names("models", &seen->models);
    print_names("key prefixes", &seen->prefixes);
    print_names("key suffixes", &seen->suffixes);
    print_names("dp ranks", &seen->ranks);
    if (watch->reader.counts.unknown_fields + watch->reader.counts.unknown_kinds > 0)
        printf("  %-14s%" PRIu64 " fields, %" PRIu64 " kinds of event\n", "not known",
            watch->reader.counts.unknown_fields, watch->reader.counts.unknown_kinds);
    if (watch->messages_hidden > 0)
        printf("  %-14s%" PRIu64 " messages (more than %u lines a second)\n", "not shown",
            watch->messages_hidden, LINES_A_SECOND);
}
