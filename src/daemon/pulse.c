/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* pulse.c -- a row of numbers a second, samples of what is asked.
 *
 * Invariants:
 *
 *     U1  All series have the same `next`: a row of one number is of one second in all.
 *     U2  A track in use has room for its rows; a source without a track (no memory) gets one at
 *         a later row.
 *     U3  An answering thread writes its own watch only, and waits for nobody.
 */
#include "daemon/pulse.h"

#include "daemon/daemon_internal.h"

#include "base/alloc.h"
#include "base/fmt.h"

#include <string.h>

#define CHAINS_PER_S 96u
#define SHIFT_MAX 20u
#define FADE_MS 11169u /* (15/16)^(120000/11169) is a half. */

#define NAME_OF(id, name) name,
const char *const KVD_PULSE_NAMES[KVD_PULSE_COLUMN_COUNT] = {KVD_PULSE_COLUMNS(NAME_OF)};
const char *const KVD_TRACK_NAMES[KVD_TRACK_COLUMN_COUNT] = {KVD_TRACK_COLUMNS(NAME_OF)};
#undef NAME_OF

_Static_assert(KVD_PULSE_COLUMN_COUNT <= KVD_SERIES_COLUMNS_MAX, "a row has room");
_Static_assert(KVD_TRACK_COLUMN_COUNT <= KVD_SERIES_COLUMNS_MAX, "a row has room");

/* Life ------------------------------------------------------------------------------------- */

void kvd_pulse_free(struct kvd_pulse *pulse)
{
    if (pulse == NULL)
        return;
    for (size_t i = 0; pulse->watches != NULL && i < pulse->watch_count; i++)
        kvd_slow_fini(&pulse->watches[i].slow);
    kvi_release_array(
        pulse->alloc, pulse->watches, pulse->watch_count, sizeof(*pulse->watches));
    for (size_t i = 0; i < KVD_SOURCES_MAX; i++)
        kvd_series_fini(&pulse->tracks[i].series);
    kvd_series_fini(&pulse->series);
    kvd_hot_free(pulse->hot);
    pthread_mutex_destroy(&pulse->lock);
    KVI_FREE(pulse->alloc, pulse);
}

kvg_err kvd_pulse_new(const struct kvg_alloc *alloc, size_t watch_count, uint64_t seed,
    uint64_t now_ms, struct kvd_pulse **out)
{
    struct kvd_pulse *pulse = KVI_NEW(alloc, struct kvd_pulse);
    kvg_err err = KVG_OK;

    *out = NULL;
    if (pulse == NULL)
        return KVG_ENOMEM;
    pulse->alloc = alloc;
    pulse->started_ms = now_ms;
    pulse->last_row_ms = now_ms;
    pulse->next_row_ms = now_ms + KVD_PULSE_INTERVAL_MS;
    pulse->next_fade_ms = now_ms + FADE_MS;
    pulse->watch_count = watch_count;
    pthread_mutex_init(&pulse->lock, NULL);
    if (watch_count > 0) {
        pulse->watches = kvi_alloc_array(alloc, watch_count, sizeof(*pulse->watches));
        if (pulse->watches == NULL)
            err = KVG_ENOMEM;
    }
    for (size_t i = 0; err == KVG_OK && i < watch_count; i++) {
        kvd_slow_init(&pulse->watches[i].slow);
        pulse->watches[i].random = (seed + i) | 1;
    }
    if (err == KVG_OK)
        err = kvd_series_init(&pulse->series, alloc, KVD_PULSE_COLUMN_COUNT, 0);
    if (err == KVG_OK)
        err = kvd_hot_new(alloc, &pulse->hot);
    if (err != KVG_OK) {
        kvd_pulse_free(pulse);
        return err;
    }
    *out = pulse;
    return KVG_OK;
}

uint64_t kvd_pulse_dropped(const struct kvd_pulse *pulse)
{
    uint64_t dropped = 0;

    for (size_t i = 0; i < pulse->watch_count; i++)
        dropped +=
            atomic_load_explicit(&pulse->watches[i].ring.dropped, memory_order_relaxed);
    return dropped;
}

/* Answering threads ------------------------------------------------------------------------ */

static void copy_name(char *to, const char *from)
{
    size_t bytes = strnlen(from, KVD_NAME_BYTES - 1);

    memcpy(to, from, bytes);
    memset(to + bytes, 0, KVD_NAME_BYTES - bytes);
}

static void note_slow(
    struct kvd_slow *slow, uint64_t at_ms, const struct kvd_answer *answer)
{
    struct kvd_slow_entry entry = {.at_ms = at_ms,
        .hash_us = answer->hash_us,
        .lookup_us = answer->lookup_us,
        .tokens = answer->token_count,
        .pages = answer->lookup.key_count,
        .contiguous = answer->lookup.contiguous,
        .confidence = answer->lookup.confidence};
    copy_name(entry.source, answer->source->shared->config.name);
    if (answer->tenant != NULL)
        copy_name(entry.tenant, answer->tenant->tenant);
    kvd_slow_put(slow, &entry);
}

static uint64_t present_bits(const struct kvg_lookup *lookup)
{
    uint32_t count =
        lookup->range_count < lookup->range_max ? lookup->range_count : lookup->range_max;
    uint64_t bits = 0;

    for (uint32_t i = 0; i < count && lookup->ranges[i].begin < KVD_HOT_DEPTH; i++) {
        uint32_t begin = lookup->ranges[i].begin;
        uint32_t end = lookup->ranges[i].end;

        bits |= UINT64_MAX << begin;
        if (end < KVD_HOT_DEPTH)
            bits &= ~(UINT64_MAX << end);
    }
    return bits;
}

static uint64_t short_key(const struct kvg_key *key)
{
    uint64_t value = 0;

    for (int i = 0; i < 8; i++)
        value = value << 8 | key->bytes[i];
    return value;
}

static bool is_sampled(struct kvd_watch *watch, unsigned shift)
{
    watch->random ^= watch->random << 13;
    watch->random ^= watch->random >> 7;
    watch->random ^= watch->random << 17;
    return (watch->random >> 16 & ((UINT64_C(1) << shift) - 1)) == 0;
}

static void note_chain(
    struct kvd_hot_ring *ring, const struct kvd_answer *answer, unsigned shift)
{
    struct kvd_hot_chain *chain = kvd_hot_ring_place(ring);
    uint32_t count = answer->lookup.key_count;

    if (chain == NULL)
        return;
    copy_name(chain->source, answer->source->shared->config.name);
    copy_name(chain->tenant, answer->tenant->tenant);
    chain->page_size = answer->rule.page_size;
    chain->page_count = count < KVD_HOT_DEPTH ? count : KVD_HOT_DEPTH;
    chain->weight = UINT64_C(1) << shift;
    chain->present = present_bits(&answer->lookup);
    for (uint32_t i = 0; i < chain->page_count; i++)
        chain->keys[i] = short_key(&answer->keys[i]);
    kvd_hot_ring_push(ring);
}

/* U3 */
void kvd_pulse_answer(struct kvd_request *request, const struct kvd_answer *answer)
{
    struct kvd_pulse *pulse = request->daemon->pulse;
    struct kvd_watch *watch = &pulse->watches[request->answerer->seat];
    unsigned shift = atomic_load_explicit(&pulse->shift, memory_order_relaxed);
    uint64_t at_ms = request->began_us / 1000; /* No look at the clock for this. */

    if (kvd_slow_wants(&watch->slow, at_ms, answer->hash_us + answer->lookup_us))
        note_slow(&watch->slow, at_ms, answer);
    if (!answer->is_dynamo && answer->lookup.key_count > 0 && is_sampled(watch, shift))
        note_chain(&watch->ring, answer, shift);
}

/* The loop --------------------------------------------------------------------------------- */

/* What a counter went on by; from 0 if it began anew. */
static uint64_t went_on(uint64_t *last, uint64_t now)
{
    uint64_t by = now >= *last ? now - *last : now;

    *last = now;
    return by;
}

static struct kvd_track *find_track(struct kvd_pulse *pulse, const char *source)
{
    for (size_t i = 0; i < KVD_SOURCES_MAX; i++) {
        if (pulse->tracks[i].source[0] != '\0' &&
            strcmp(pulse->tracks[i].source, source) == 0)
            return &pulse->tracks[i];
    }
    return NULL;
}

/* The track of a source, a new one if need be; NULL if there is no memory.  U2 */
static struct kvd_track *track_of(
    struct kvd_pulse *pulse, const struct kvd_pulse_source *source)
{
    struct kvd_track *track = find_track(pulse, source->name);

    if (track != NULL)
        return track;
    for (size_t i = 0; track == NULL && i < KVD_SOURCES_MAX; i++) {
        if (pulse->tracks[i].source[0] == '\0')
            track = &pulse->tracks[i];
    }
    if (track == NULL || kvd_series_init(&track->series, pulse->alloc,
                             KVD_TRACK_COLUMN_COUNT, pulse->series.next) != KVG_OK)
        return NULL;
    copy_name(track->source, source->name);
    return track;
}

static void push_track(struct kvd_track *track, const struct kvd_pulse_source *source)
{
    const struct kvd_board *board = source->board;
    uint64_t row[KVD_TRACK_COLUMN_COUNT];

    row[KVD_TRACK_EVENTS] = went_on(&track->events, board->source.events);
    row[KVD_TRACK_MESSAGES] = went_on(&track->messages, board->sub.messages);
    row[KVD_TRACK_LAG_US] = row[KVD_TRACK_MESSAGES] > 0 ? track->lag_us : 0;
    row[KVD_TRACK_QUEUE] = board->sub.queue_bytes;
    row[KVD_TRACK_PAGES] = board->presence.pages;
    row[KVD_TRACK_CPU_PAGES] = board->presence.cpu_pages;
    row[KVD_TRACK_DISK_PAGES] = board->presence.disk_pages;
    row[KVD_TRACK_CPU_PARTS] = board->presence.cpu_parts;
    row[KVD_TRACK_DISK_PARTS] = board->presence.disk_parts;
    row[KVD_TRACK_CONFIDENCE] = (uint64_t)source->confidence;
    kvd_series_push(&track->series, row);
    track->lag_us = 0;
}

static void drop_track(struct kvd_track *track)
{
    kvd_series_fini(&track->series);
    memset(track, 0, sizeof(*track));
}

void kvd_pulse_row(struct kvd_pulse *pulse, uint64_t now_ms,
    const uint64_t totals[KVD_PULSE_COLUMN_COUNT], const struct kvd_pulse_source *sources,
    size_t source_count)
{
    uint64_t row[KVD_PULSE_COLUMN_COUNT];

    for (size_t i = 0; i < KVD_SOURCES_MAX; i++) {
        struct kvd_track *track = &pulse->tracks[i];
        bool stays = false;

        for (size_t s = 0; s < source_count; s++)
            stays |= strcmp(track->source, sources[s].name) == 0;
        if (track->source[0] != '\0' && !stays)
            drop_track(track);
    }
    for (size_t i = 0; i < source_count; i++) {
        struct kvd_track *track = track_of(pulse, &sources[i]);

        if (track != NULL)
            push_track(track, &sources[i]);
    }
    for (size_t i = 0; i < KVD_PULSE_COLUMN_COUNT; i++)
        row[i] = went_on(&pulse->totals[i], totals[i]);
    row[KVD_PULSE_SPAN] = now_ms - pulse->last_row_ms;
    pulse->last_row_ms = now_ms;
    kvd_series_push(&pulse->series, row);
}

static void add_up(struct kvd_daemon *daemon, uint64_t totals[KVD_PULSE_COLUMN_COUNT])
{
    const struct kvd_block *blocks = daemon->blocks;
    size_t count = daemon->answerer_count;
    uint64_t absent = kvd_counter_sum(blocks, count, KVD_PAGES_ABSENT);

    memset(totals, 0, KVD_PULSE_COLUMN_COUNT * sizeof(*totals));
    for (int i = KVD_LOOKUPS_ALL; i <= KVD_LOOKUPS_TOO_SHORT; i++)
        totals[KVD_PULSE_LOOKUPS] += kvd_counter_sum(blocks, count, (enum kvd_counter)i);
    totals[KVD_PULSE_TOKENS] = kvd_counter_sum(blocks, count, KVD_TOKENS);
    totals[KVD_PULSE_CONTIGUOUS] = kvd_counter_sum(blocks, count, KVD_PAGES_CONTIGUOUS);
    totals[KVD_PULSE_BEYOND] = kvd_counter_sum(blocks, count, KVD_PAGES_BEYOND);
    totals[KVD_PULSE_PAGES] =
        totals[KVD_PULSE_CONTIGUOUS] + totals[KVD_PULSE_BEYOND] + absent;
    totals[KVD_PULSE_LOOKUP_US] = kvd_histogram_sum_us(blocks, count, KVD_LOOKUP_TIME);
}

/* So that about CHAINS_PER_S come; downwards by one a row. */
static void choose_shift(struct kvd_pulse *pulse)
{
    const uint64_t *row = kvd_series_row(&pulse->series, pulse->series.next - 1);
    uint64_t span_ms = row[KVD_PULSE_SPAN] > 0 ? row[KVD_PULSE_SPAN] : 1;
    uint64_t rate = row[KVD_PULSE_LOOKUPS] * 1000 / span_ms;
    unsigned last = atomic_load_explicit(&pulse->shift, memory_order_relaxed);
    unsigned shift = 0;

    while (shift < SHIFT_MAX && rate >> shift > CHAINS_PER_S)
        shift++;
    if (shift < last)
        shift = last - 1;
    atomic_store_explicit(&pulse->shift, shift, memory_order_relaxed);
}

/* Whether the row could be made. */
static bool make_row(struct kvd_daemon *daemon, uint64_t now_ms)
{
    struct kvd_pulse *pulse = daemon->pulse;
    struct kvd_pulse_source sources[KVD_SOURCES_MAX];
    uint64_t totals[KVD_PULSE_COLUMN_COUNT];
    struct kvd_board *boards;
    size_t count = daemon->feed_count;

    boards = kvi_alloc_array(daemon->alloc, count + 1, sizeof(*boards));
    if (boards == NULL)
        return false;
    for (size_t i = 0; i < count; i++) {
        struct kvd_shared *shared = kvd_feed_shared(daemon->feeds[i]);

        kvd_board_read(shared, &boards[i]);
        sources[i] = (struct kvd_pulse_source){shared->config.name, &boards[i],
            atomic_load_explicit(&shared->confidence, memory_order_relaxed)};
    }
    add_up(daemon, totals);
    kvd_pulse_row(pulse, now_ms, totals, sources, count);
    choose_shift(pulse);
    kvi_release_array(daemon->alloc, boards, count + 1, sizeof(*boards));
    return true;
}

static void take_lags(struct kvd_daemon *daemon)
{
    for (size_t i = 0; i < daemon->feed_count; i++) {
        struct kvd_shared *shared = kvd_feed_shared(daemon->feeds[i]);
        struct kvd_track *track = find_track(daemon->pulse, shared->config.name);
        uint64_t lag_us;
        uint64_t messages;

        pthread_mutex_lock(&shared->board_lock);
        lag_us = shared->board.last_message_us_lag;
        messages = shared->board.sub.messages;
        pthread_mutex_unlock(&shared->board_lock);
        if (track == NULL || messages == track->lag_messages)
            continue;
        track->lag_messages = messages;
        if (lag_us > track->lag_us)
            track->lag_us = lag_us;
    }
}

/* A ring that ran full says at once that less must be looked at. */
static void take_chains(struct kvd_pulse *pulse)
{
    unsigned shift = atomic_load_explicit(&pulse->shift, memory_order_relaxed);
    bool was_full = false;

    for (size_t i = 0; i < pulse->watch_count; i++) {
        struct kvd_hot_ring *ring = &pulse->watches[i].ring;
        const struct kvd_hot_chain *chain;
        size_t taken = 0;

        /* No more than a ring full, whatever comes in meanwhile. */
        while (taken < KVD_HOT_CHAINS && (chain = kvd_hot_ring_peek(ring)) != NULL) {
            kvd_hot_add(pulse->hot, chain);
            kvd_hot_ring_pop(ring);
            taken++;
        }
        was_full |= taken == KVD_HOT_CHAINS;
    }
    if (was_full && shift < SHIFT_MAX)
        atomic_store_explicit(&pulse->shift, shift + 1, memory_order_relaxed);
}

void kvd_pulse_tick(struct kvd_daemon *daemon, uint64_t now_ms)
{
    struct kvd_pulse *pulse = daemon->pulse;

    if (pthread_mutex_trylock(&pulse->lock) != 0)
        return; /* Somebody reads; the next tick comes soon. */
    take_chains(pulse);
    take_lags(daemon);
    if (now_ms >= pulse->next_fade_ms) {
        kvd_hot_fade(pulse->hot);
        pulse->next_fade_ms = now_ms + FADE_MS;
    }
    if (now_ms >= pulse->next_row_ms && make_row(daemon, now_ms)) {
        pulse->next_row_ms += KVD_PULSE_INTERVAL_MS;
        if (pulse->next_row_ms <= now_ms) /* The loop was busy: no rows for that. */
            pulse->next_row_ms = now_ms + KVD_PULSE_INTERVAL_MS;
    }
    pthread_mutex_unlock(&pulse->lock);
}
