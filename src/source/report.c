/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* report.c -- what a source thinks: reasons, confidence, statistics, log.
 *
 *     tenant         reasons                        the index is told
 *     -------------  -----------------------------  ----------------------------------
 *     default        stream | default               by name
 *     trusted        stream                         by name; cleared since the last loss
 *     all others     stream | default | others      as "all, and those to come", first
 *
 * Readers may look between two words to the index.  What is said of all is never better than
 * what is said by name a moment later, so that nobody is called fresh in between who is not.
 */
#include "source/state.h"

#include "base/fmt.h"

#include <string.h>

const char *kvg_source_reason_word(enum kvg_source_reason reason)
{
    switch (reason) {
#define REASON_WORD(name, bit, word, sentence) \
    case name:                                 \
        return word;
        KVG_SOURCE_REASONS(REASON_WORD)
#undef REASON_WORD
    }
    return "unknown";
}

const char *kvg_source_reason_sentence(enum kvg_source_reason reason)
{
    switch (reason) {
#define REASON_SENTENCE(name, bit, word, sentence) \
    case name:                                     \
        return sentence;
        KVG_SOURCE_REASONS(REASON_SENTENCE)
#undef REASON_SENTENCE
    }
    return "an unknown reason";
}

/* Tenants ---------------------------------------------------------------------------------- */

bool kvi_tenant_is_default(struct kvg_str tenant)
{
    return tenant.bytes == 0 || kvi_str_equal(tenant, kvi_str("default"));
}

static bool is_trusted(const struct kvg_source *source, struct kvg_str tenant)
{
    size_t i;

    for (i = 0; i < source->trusted_count; i++)
        if (kvi_str_equal(
                (struct kvg_str){source->trusted[i].name, source->trusted[i].bytes},
                tenant))
            return true;
    return false;
}

void kvi_trust_nobody(struct kvg_source *source)
{
    if (source->trusted_count != 0)
        source->confidence_set = false; /* The index was told better of them. */
    source->trusted_count = 0;
}

/* A tenant was cleared: from here on everything about it is known. */
void kvi_trust_tenant(struct kvg_source *source, struct kvg_str tenant)
{
    struct kvi_trusted *place = &source->trusted[source->trusted_count];

    if (source->other_reasons == 0 || source->trusted_count == KVI_TRUSTED_MAX ||
        tenant.bytes > KVI_TENANT_BYTES_MAX || is_trusted(source, tenant))
        return;
    place->bytes = tenant.bytes;
    memcpy(place->name, tenant.data, tenant.bytes);
    source->trusted_count++;
    source->confidence_set = false;
}

/* Confidence ------------------------------------------------------------------------------- */

static enum kvg_confidence worth(
    const struct kvg_source *source, uint32_t reasons, bool is_default)
{
    if (reasons == 0)
        return KVG_CONFIDENCE_FRESH;
    if (is_default && kvi_listing_in_flight(source))
        return KVG_CONFIDENCE_REBUILDING;
    return source->filled ? KVG_CONFIDENCE_SUSPECT : KVG_CONFIDENCE_BLIND;
}

enum kvg_confidence kvg_source_confidence(
    const struct kvg_source *source, struct kvg_str tenant, uint32_t *reasons_out)
{
    bool is_default = kvi_tenant_is_default(tenant);
    uint32_t reasons = source->stream_reasons;

    if (is_default)
        reasons |= source->default_reasons;
    else if (!is_trusted(source, tenant))
        reasons |= source->default_reasons | source->other_reasons;
    if (reasons_out != NULL)
        *reasons_out = reasons;
    return worth(source, reasons, is_default);
}

static void note_change(struct kvg_source *source, enum kvg_confidence now)
{
    bool was_fresh = source->default_confidence == KVG_CONFIDENCE_FRESH;
    struct kvg_source_stats *stats = &source->stats;

    if (now == KVG_CONFIDENCE_FRESH && !was_fresh) {
        stats->last_repair_ms = source->now_ms - stats->suspect_since_ms;
        stats->suspect_since_ms = 0;
        kvi_source_log(source, KVI_LOG_CONFIDENCE, KVG_LOG_INFO,
            "the index follows the store, after # ms", stats->last_repair_ms, 0);
    } else if (now != KVG_CONFIDENCE_FRESH && was_fresh) {
        stats->suspect_since_ms = source->now_ms;
    }
}

/* Tells the index what answers are worth, where that has changed. */
void kvi_report_settle(struct kvg_source *source)
{
    enum kvg_confidence others = worth(source,
        source->stream_reasons | source->default_reasons | source->other_reasons, false);
    enum kvg_confidence trusted = worth(source, source->stream_reasons, false);
    enum kvg_confidence first =
        worth(source, source->stream_reasons | source->default_reasons, true);
    bool all = !source->confidence_set || others != source->other_confidence ||
               trusted != source->trusted_confidence;
    size_t i;

    if (all)
        kvg_presence_set_confidence(source->index, (struct kvg_str){NULL, 0}, others);
    if (all || first != source->default_confidence)
        kvg_presence_set_confidence(source->index, kvi_str("default"), first);
    for (i = 0; all && i < source->trusted_count; i++)
        kvg_presence_set_confidence(source->index,
            (struct kvg_str){source->trusted[i].name, source->trusted[i].bytes}, trusted);
    note_change(source, first);
    source->confidence_set = true;
    source->default_confidence = first;
    source->other_confidence = others;
    source->trusted_confidence = trusted;
}

/* Statistics ------------------------------------------------------------------------------- */

uint64_t kvg_source_deadline_ms(const struct kvg_source *source)
{
    uint64_t deadline = kvi_ask_deadline_ms(source);
    uint64_t listing = kvi_listing_deadline_ms(source);
    uint64_t replay = kvi_replay_deadline_ms(source);
    uint64_t silence = source->heard_ms + kvi_source_silence_ms(source);

    if (listing < deadline)
        deadline = listing;
    if (replay < deadline)
        deadline = replay;
    if ((source->stream_reasons & KVG_REASON_SILENCE) == 0 && silence < deadline)
        deadline = silence;
    return deadline;
}

void kvg_source_stats(const struct kvg_source *source, struct kvg_source_stats *out)
{
    struct kvg_source_stats stats = source->stats;
    size_t bytes = out->struct_bytes;

    if (bytes == 0 || bytes > sizeof(stats))
        bytes = sizeof(stats);
    stats.struct_bytes = out->struct_bytes;
    stats.confidence = kvg_source_confidence(source, kvi_str("default"), &stats.reasons);
    stats.connected = source->connected;
    stats.has_sequence = source->life.has_position;
    stats.last_sequence = source->life.position;
    stats.count_surplus = source->compare.surplus;
    stats.decoder = source->reader.counts;
    stats.epoch = source->life.epoch;
    memcpy(out, &stats, bytes);
}

/* Log -------------------------------------------------------------------------------------- */

static bool may_log(struct kvg_source *source, enum kvi_log_kind kind)
{
    struct kvi_log_limit *limit = &source->log_limits[kind];

    if (source->options.log == NULL)
        return false;
    if (limit->logged && source->now_ms - limit->at_ms < KVI_LOG_INTERVAL_MS) {
        limit->suppressed++;
        source->stats.log_suppressed++;
        return false;
    }
    return true;
}

static void write_log(struct kvg_source *source, enum kvi_log_kind kind,
    enum kvg_level level, struct kvi_text *text)
{
    struct kvi_log_limit *limit = &source->log_limits[kind];
    const struct kvg_log *log = source->options.log;

    if (limit->suppressed != 0) {
        kvi_text_str(text, " (and ");
        kvi_text_u64(text, limit->suppressed);
        kvi_text_str(text, " more like it)");
    }
    *limit = (struct kvi_log_limit){.logged = true, .at_ms = source->now_ms};
    log->write(log->context, level, "source", text->data);
}

void kvi_source_log(struct kvg_source *source, enum kvi_log_kind kind,
    enum kvg_level level, const char *format, uint64_t a, uint64_t b)
{
    char line[256];
    struct kvi_text text;
    uint64_t number = a;

    if (!may_log(source, kind))
        return;
    kvi_text_init(&text, line, sizeof(line));
    for (; *format != '\0'; format++) {
        if (*format != '#') {
            kvi_text_bytes(&text, (struct kvg_str){format, 1});
            continue;
        }
        kvi_text_u64(&text, number);
        number = b;
    }
    write_log(source, kind, level, &text);
}

void kvi_source_log_failure(
    struct kvg_source *source, enum kvi_task_kind kind, const char *reason)
{
    static const char *const WHAT[KVI_TASK_KINDS] = {
        [KVI_TASK_STATUS] = "asking for the status failed: ",
        [KVI_TASK_COUNT] = "asking for the key count failed: ",
        [KVI_TASK_LISTING] = "listing the keys failed: ",
        [KVI_TASK_REPLAY] = "fetching messages again failed: ",
    };
    char line[256];
    struct kvi_text text;

    if (!may_log(source, KVI_LOG_FAILED))
        return;
    kvi_text_init(&text, line, sizeof(line));
    kvi_text_str(&text, WHAT[kind]);
    kvi_text_str(&text, reason == NULL ? "no reason given" : reason);
    write_log(source, KVI_LOG_FAILED, KVG_LOG_WARN, &text);
}
