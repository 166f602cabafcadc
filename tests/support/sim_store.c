/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* sim_store.c -- see sim_store.h. */
#include "test.h"

#include "sim_store.h"

#include "base/fmt.h"
#include "source/state.h"

static bool happens(struct sim *sim, uint32_t in_thousand)
{
    return kvi_rng_below(&sim->rng, 1000) < in_thousand;
}

static uint64_t below(struct sim *sim, uint64_t bound)
{
    return kvi_rng_below(&sim->rng, bound);
}

static void wrong(struct sim *sim, const char *what)
{
    if (sim->failure[0] == '\0')
        snprintf(sim->failure, sizeof(sim->failure), "at %llu ms: %s",
            (unsigned long long)sim->rig.now_ms, what);
}

static void init(struct sim *sim, uint64_t seed, const struct sim_faults *faults,
    bool has_admin, bool has_replay)
{
    struct kvg_source_options options = {
        .struct_bytes = sizeof(options),
        .has_admin = has_admin,
        .has_replay = has_replay,
        .seed = seed,
        .listing_interval_ms = 60000,
        .listing_timeout_ms = 4000,
        .retry_max_ms = 5000,
    };

    memset(sim, 0, sizeof(*sim));
    sim->rng.state = seed;
    sim->faults = *faults;
    sim->has_admin = has_admin;
    sim->life = 1;
    rig_init(&sim->rig, &options);
    sim->reconnect_at_ms = sim->rig.now_ms + 1;
}

void sim_init(
    struct sim *sim, uint64_t seed, const struct sim_faults *faults, bool has_admin)
{
    init(sim, seed, faults, has_admin, false);
}

void sim_init_exact(struct sim *sim, uint64_t seed, const struct sim_faults *faults,
    bool has_admin, bool has_replay)
{
    init(sim, seed, faults, has_admin, has_replay);
    sim->faults.drop = sim->faults.silent = 0;
    sim->epoch = kvi_rng_next(&sim->rng) | 1;
    sim_beat(sim);
}

static void drop_packets(struct sim *sim)
{
    for (; sim->packet_count != 0; sim->packet_count--) {
        free(sim->packets[sim->packet_first].payload);
        sim->packet_first = (sim->packet_first + 1) % SIM_PACKETS;
    }
}

void sim_end(struct sim *sim)
{
    drop_packets(sim);
    sim_exact_end(sim);
    free(sim->old.payload);
    rig_end(&sim->rig);
}

/* The network ------------------------------------------------------------------------------ */

static void post(struct sim *sim, struct kvg_str payload, bool readable)
{
    struct sim_packet *packet;
    uint64_t at_ms = sim->rig.now_ms + 1 + below(sim, happens(sim, 20) ? 600 : 8);

    if (!sim->connected || happens(sim, sim->faults.loss) ||
        sim->packet_count == SIM_PACKETS)
        return;
    if (at_ms < sim->last_at_ms)
        at_ms = sim->last_at_ms;
    sim->last_at_ms = at_ms;
    packet = &sim->packets[(sim->packet_first + sim->packet_count++) % SIM_PACKETS];
    *packet = (struct sim_packet){.at_ms = at_ms,
        .sequence = sim->sequence,
        .life = sim->life,
        .first_id = sim->first_id,
        .bytes = payload.bytes,
        .readable = readable};
    packet->payload = malloc(payload.bytes + 1);
    CHECK(packet->payload != NULL);
    memcpy(packet->payload, payload.data, payload.bytes);
}

static void hand_over(struct sim *sim, const struct sim_packet *packet)
{
    uint8_t number[8];
    struct kvg_str frames[3] = {{"", 0}, {(const char *)number, sizeof(number)},
        {packet->payload, packet->bytes}};

    kvg_sequence_encode(packet->sequence, number);
    kvg_source_message(sim->rig.source, frames, 3, sim->rig.now_ms);
}

static void deliver(struct sim *sim)
{
    struct sim_packet *packet = &sim->packets[sim->packet_first];
    const struct kvi_life *known = &sim->rig.source->life;

    /* A new life that goes on where the old one ended, in everything: nobody can tell. */
    if (sim->epoch == 0 && packet->life != sim->delivered_life &&
        sim->delivered_life != 0 && packet->sequence == known->position + 1 &&
        (!known->has_message || packet->first_id == known->last.last_id + 1))
        sim->silent_serial = ++sim->serial;
    sim->delivered_life = packet->life;
    hand_over(sim, packet);
    if (happens(sim, sim->faults.duplicate))
        hand_over(sim, packet);
    if (sim->old.payload == NULL || happens(sim, 100)) {
        free(sim->old.payload);
        sim->old = *packet;
    } else {
        free(packet->payload);
    }
    sim->packet_first = (sim->packet_first + 1) % SIM_PACKETS;
    sim->packet_count--;
}

/* The publisher ---------------------------------------------------------------------------- */

static void publish(struct sim *sim)
{
    struct kvg_str payload;

    CHECK_EQ(kvg_event_writer_end(sim->rig.writer, &payload), KVG_OK);
    sim->sequence++;
    sim->batches++;
    sim_exact_keep(sim, payload);
    if (happens(sim, sim->faults.garbage)) {
        if (happens(sim, 500))
            payload.bytes /= 2;
        else
            payload = (struct kvg_str){"\xc1", 1};
        post(sim, payload, false);
        return;
    }
    post(sim, payload, true);
}

static void write_event(
    struct sim *sim, enum kvg_event_kind kind, const char *tenant, const char *key)
{
    struct kvg_event event = {
        .kind = kind,
        .form = KVG_FORM_OBJECT,
        .medium = KVG_MEDIUM_CPU,
        .medium_name = kvi_str("cpu"),
        .tenant_id = kvi_str(tenant),
        .backend_id = kvi_str("pool-a"),
        .object_key = kvi_str(key),
        .has_event_id = true,
        .event_id = ++sim->event_id,
        .has_timestamp = true,
        .timestamp_ms = sim->rig.timestamp_ms + (int64_t)sim->rig.now_ms,
    };

    sim->events++;
    kvg_event_writer_add(sim->rig.writer, &event, NULL, 0, NULL, 0);
}

static void change(struct sim *sim, bool with_event)
{
    char key[RIG_KEY_BYTES + 1];
    uint64_t which = below(sim, sim->epoch == 0 ? 100 : 84);
    const char *tenant = "default";
    bool *place;

    if (which < 84) {
        unsigned i = (unsigned)below(sim, SIM_KEYS);

        rig_key(i, key);
        place = &sim->held[i];
    } else if (which < 94) {
        unsigned i = (unsigned)below(sim, SIM_OTHERS);

        rig_key(1000 + i, key);
        place = &sim->others[i];
        tenant = "blue";
    } else {
        unsigned i = (unsigned)below(sim, SIM_FOREIGN);

        snprintf(key, sizeof(key), "warmup_%u", i);
        place = &sim->foreign[i];
    }
    if (*place == false || (with_event && happens(sim, 100))) {
        *place = true;
        if (with_event)
            write_event(sim, KVG_EVENT_STORED, tenant, key);
    } else {
        *place = false;
        if (with_event)
            write_event(sim, KVG_EVENT_REMOVED, tenant, key);
    }
    sim->serial++;
    if (with_event)
        return;
    sim->silent_serial = sim->serial;
    if (which >= 84 && which < 94)
        sim->blue_silent_life = sim->life;
}

static void begin_message(struct sim *sim)
{
    sim->first_id = sim->event_id + 1;
    kvg_event_writer_begin(
        sim->rig.writer, sim->rig.timestamp_ms + (int64_t)sim->rig.now_ms, true, 0);
    sim_exact_begin(sim);
}

void sim_beat(struct sim *sim)
{
    begin_message(sim);
    publish(sim);
    sim->beat_ms = sim->rig.now_ms + 1000;
}

static void clear_all(struct sim *sim)
{
    rig_dialect(&sim->rig, KVG_DIALECT_MOONCAKE_V2);
    begin_message(sim);
    memset(sim->held, 0, sizeof(sim->held));
    sim->serial++;
    write_event(sim, KVG_EVENT_CLEARED, "default", NULL);
    publish(sim);
    rig_dialect(&sim->rig, KVG_DIALECT_MOONCAKE);
}

/* The master is gone; another one begins, empty or with what a snapshot brought back. */
static void restart(struct sim *sim)
{
    bool keeps = happens(sim, 300);
    unsigned i;

    for (i = 0; i < SIM_KEYS; i++)
        sim->held[i] = keeps && sim->held[i] && happens(sim, 700);
    memset(sim->others, 0, sizeof(sim->others));
    memset(sim->foreign, 0, sizeof(sim->foreign));
    sim->serial++;
    if (keeps ||
        sim->has_admin) /* With one, a restart is always followed by a listing. */
        sim->silent_serial = sim->serial;
    sim->life++;
    sim->sequence = sim->event_id = 0;
    sim->batches = sim->events = sim->dropped = 0;
    sim_exact_restart(sim);
}

void sim_operate(struct sim *sim)
{
    const struct sim_faults *faults = &sim->faults;
    uint64_t events = 1 + below(sim, 5);

    if (happens(sim, faults->restart))
        restart(sim);
    if (happens(sim, faults->silent))
        change(sim, false);
    if (happens(sim, faults->clear))
        clear_all(sim);
    if (happens(sim, faults->outage))
        sim->outage_until_ms = sim->rig.now_ms + below(sim, 20000);
    if (happens(sim, faults->repeat) && sim->old.payload != NULL && sim->connected &&
        sim->old.life == sim->delivered_life && sim->old.readable &&
        (sim->has_admin || sim->old.sequence + 60 > sim->rig.source->life.position))
        hand_over(sim, &sim->old);
    if (happens(sim, faults->disconnect) && sim->connected) {
        sim->connected = false;
        drop_packets(sim);
        sim->reconnect_at_ms = sim->rig.now_ms + 10 + below(sim, 3000);
        kvg_source_disconnected(sim->rig.source, sim->rig.now_ms);
    }
    if (happens(sim, faults->drop)) { /* The events are lost, their numbers are used. */
        uint64_t lost = 1 + below(sim, 3);
        uint64_t i;

        begin_message(sim);
        for (i = 0; i < lost; i++)
            change(sim, true);
        sim->sequence += lost;
        sim->dropped += lost;
        sim->event_id -= lost;
        sim->events -= lost;
    }
    begin_message(sim);
    for (; events > 0; events--)
        change(sim, true);
    publish(sim);
}

/* The admin port --------------------------------------------------------------------------- */

static void sample(struct sim *sim, struct sim_ask *ask)
{
    unsigned i;

    ask->sampled = true;
    ask->status = (struct kvg_source_status){
        true, sim->batches, sim->events, sim->dropped, sim->epoch};
    ask->count = 0;
    for (i = 0; i < SIM_KEYS; i++)
        ask->count += sim->held[i];
    for (i = 0; i < SIM_OTHERS; i++)
        ask->count += sim->others[i];
    for (i = 0; i < SIM_FOREIGN; i++)
        ask->count += sim->foreign[i];
}

static struct sim_ask *ask_of(struct sim *sim, enum kvg_source_action_kind kind)
{
    switch (kind) {
    case KVG_SOURCE_FETCH_STATUS:
        return &sim->status;
    case KVG_SOURCE_FETCH_COUNT:
        return &sim->count;
    case KVG_SOURCE_FETCH_LISTING:
        return &sim->listing;
    case KVG_SOURCE_FETCH_REPLAY:
    case KVG_SOURCE_RECONNECT:
    case KVG_SOURCE_CANCEL:
        break;
    }
    return NULL;
}

static void cancel(struct sim *sim, uint64_t id)
{
    struct sim_ask *asks[] = {&sim->status, &sim->count, &sim->listing, &sim->replay};
    size_t i;

    for (i = 0; i < 4; i++)
        if (asks[i]->active && asks[i]->id == id)
            asks[i]->active = false;
}

static void take_actions(struct sim *sim)
{
    struct kvg_source_action action;

    while (kvg_source_next_action(sim->rig.source, &action)) {
        struct sim_ask *ask = ask_of(sim, action.kind);

        sim->actions++;
        if (action.kind == KVG_SOURCE_FETCH_REPLAY) {
            sim_exact_ask_replay(sim, &action);
            continue;
        }
        if (!sim->has_admin && action.kind != KVG_SOURCE_RECONNECT &&
            action.kind != KVG_SOURCE_CANCEL)
            wrong(sim, "an admin port was asked that is not there");
        if (action.kind == KVG_SOURCE_CANCEL) {
            cancel(sim, action.cancels);
        } else if (action.kind == KVG_SOURCE_RECONNECT) {
            sim->connected = false;
            drop_packets(sim);
            sim->reconnect_at_ms = sim->rig.now_ms + 20;
        } else if (ask == NULL || ask->active) {
            wrong(sim, "two questions of one kind are under way");
        } else {
            *ask = (struct sim_ask){.active = true,
                .id = action.id,
                .at_ms = sim->rig.now_ms + 1 + below(sim, 30),
                .serial = sim->serial};
            sim->listings_asked += ask == &sim->listing;
        }
    }
}

static void answer_listing(struct sim *sim, struct sim_ask *ask)
{
    char line[RIG_KEY_BYTES + 32];
    unsigned end = ask->step + 1 + (unsigned)below(sim, 20);

    if (!sim_exact_stamp(sim, ask)) {
        ask->active = false;
        kvg_source_failed(sim->rig.source, ask->id, "simulated", sim->rig.now_ms);
        return;
    }
    for (; ask->step < end && ask->step < SIM_KEYS + SIM_FOREIGN; ask->step++) {
        size_t cut;

        if (ask->step < SIM_KEYS &&
            (sim->epoch != 0 ? (ask->keys >> ask->step & 1) == 0 : !sim->held[ask->step]))
            continue;
        if (ask->step >= SIM_KEYS && !sim->foreign[ask->step - SIM_KEYS])
            continue;
        if (ask->step < SIM_KEYS)
            rig_key(ask->step, line);
        else
            snprintf(line, sizeof(line), "warmup_%u", ask->step - SIM_KEYS);
        memcpy(line + strlen(line), "\n", 2);
        cut = below(sim, strlen(line));
        kvg_source_listing_data(
            sim->rig.source, ask->id, (struct kvg_str){line, cut}, sim->rig.now_ms);
        kvg_source_listing_data(
            sim->rig.source, ask->id, kvi_str(line + cut), sim->rig.now_ms);
    }
    ask->at_ms = sim->rig.now_ms + 1 + below(sim, 15);
    if (ask->step < SIM_KEYS + SIM_FOREIGN)
        return;
    ask->active = false;
    sim->listing_begun_serial = ask->serial;
    kvg_source_listing_done(sim->rig.source, ask->id, sim->rig.now_ms);
}

static void answer(struct sim *sim, struct sim_ask *ask)
{
    if (!ask->active || ask->at_ms > sim->rig.now_ms)
        return;
    if (sim->rig.now_ms < sim->outage_until_ms || happens(sim, sim->faults.ask_fails)) {
        ask->active = false;
        kvg_source_failed(sim->rig.source, ask->id, "simulated", sim->rig.now_ms);
        return;
    }
    if (ask == &sim->listing) {
        answer_listing(sim, ask);
    } else if (!ask->sampled) { /* The store answers; the answer travels. */
        sample(sim, ask);
        ask->at_ms = sim->rig.now_ms + 1 + below(sim, 10);
    } else if (ask == &sim->status) {
        ask->active = false;
        kvg_source_status_answer(sim->rig.source, ask->id, &ask->status, sim->rig.now_ms);
    } else {
        ask->active = false;
        kvg_source_count_answer(sim->rig.source, ask->id, ask->count, sim->rig.now_ms);
    }
}

/* Watching --------------------------------------------------------------------------------- */

struct tally {
    struct sim *sim;
    unsigned held;
    unsigned others;
    bool stale;
    bool stale_other;
};

static void on_object(
    void *context, struct kvg_str tenant, struct kvg_str key, enum kvg_medium medium)
{
    struct tally *tally = context;
    char expected[RIG_KEY_BYTES + 1];
    bool is_default = kvi_str_equal(tenant, kvi_str("default"));
    unsigned i;

    (void)medium;
    for (i = 0; i < (is_default ? SIM_KEYS : SIM_OTHERS); i++) {
        rig_key(is_default ? i : 1000 + i, expected);
        if (!kvi_str_equal(key, kvi_str(expected)))
            continue;
        if (is_default) {
            tally->held++;
            tally->stale = tally->stale || !tally->sim->held[i];
        } else {
            tally->others++;
            tally->stale_other = tally->stale_other || !tally->sim->others[i];
        }
        return;
    }
    tally->stale = true;
}

bool sim_index_is_right(struct sim *sim, bool with_others)
{
    struct tally tally = {.sim = sim};
    unsigned held = 0;
    unsigned others = 0;
    unsigned i;

    for (i = 0; i < SIM_KEYS; i++)
        held += sim->held[i];
    for (i = 0; i < SIM_OTHERS; i++)
        others += sim->others[i];
    kvg_presence_each(sim->rig.index, on_object, &tally);
    if (tally.stale || tally.held != held)
        return false;
    return !with_others || (!tally.stale_other && tally.others == others);
}

static void watch(struct sim *sim)
{
    const struct kvg_source *source = sim->rig.source;
    bool blue;

    if (kvi_source_check(source) != 0)
        wrong(sim, "an invariant of the source is broken");
    if (rig_confidence(&sim->rig) != KVG_CONFIDENCE_FRESH)
        return;
    if (sim->epoch != 0) {
        sim->fresh_checks++;
        if (!sim_exact_is_right(sim))
            wrong(sim, "fresh, and not what the store held after that message");
        return;
    }
    if (sim->packet_count != 0 || source->life.position != sim->sequence ||
        sim->silent_serial > sim->listing_begun_serial)
        return;
    if (!sim->has_admin && sim->delivered_life != sim->life)
        return;
    blue = sim->blue_silent_life != sim->life && sim->delivered_life == sim->life &&
           kvg_source_confidence(source, kvi_str("blue"), NULL) == KVG_CONFIDENCE_FRESH;
    sim->fresh_checks++;
    if (!sim_index_is_right(sim, blue))
        wrong(sim, "fresh, and not what the store holds");
}

static uint64_t next_event_ms(const struct sim *sim)
{
    uint64_t next = kvg_source_deadline_ms(sim->rig.source);
    const struct sim_ask *asks[] = {
        &sim->status, &sim->count, &sim->listing, &sim->replay};
    size_t i;

    if (sim->epoch != 0 && sim->beat_ms < next)
        next = sim->beat_ms;
    for (i = 0; i < 4; i++)
        if (asks[i]->active && asks[i]->at_ms < next)
            next = asks[i]->at_ms;
    if (sim->packet_count != 0 && sim->packets[sim->packet_first].at_ms < next)
        next = sim->packets[sim->packet_first].at_ms;
    if (!sim->connected && sim->reconnect_at_ms < next)
        next = sim->reconnect_at_ms;
    return next;
}

static void step(struct sim *sim)
{
    if (!sim->connected && sim->reconnect_at_ms <= sim->rig.now_ms) {
        sim->connected = true;
        kvg_source_connected(sim->rig.source, sim->rig.now_ms);
    }
    while (sim->packet_count != 0 &&
           sim->packets[sim->packet_first].at_ms <= sim->rig.now_ms)
        deliver(sim);
    answer(sim, &sim->status);
    answer(sim, &sim->count);
    answer(sim, &sim->listing);
    sim_exact_answer_replay(sim);
    if (sim->epoch != 0 && sim->beat_ms <= sim->rig.now_ms)
        sim_beat(sim);
    if (kvg_source_deadline_ms(sim->rig.source) <= sim->rig.now_ms)
        kvg_source_tick(sim->rig.source, sim->rig.now_ms);
    take_actions(sim);
    watch(sim);
}

bool sim_run(struct sim *sim, uint64_t ms)
{
    uint64_t end_ms = sim->rig.now_ms + ms;
    unsigned spins = 0;

    for (;;) {
        uint64_t next = next_event_ms(sim);

        if (next > end_ms)
            break;
        spins = next > sim->rig.now_ms ? 0 : spins + 1;
        if (spins > 1000)
            wrong(sim, "it spins without making progress");
        if (sim->failure[0] != '\0')
            return false;
        if (next > sim->rig.now_ms)
            sim->rig.now_ms = next;
        step(sim);
    }
    sim->rig.now_ms = end_ms;
    return sim->failure[0] == '\0';
}

void sim_calm(struct sim *sim)
{
    memset(&sim->faults, 0, sizeof(sim->faults));
    sim->outage_until_ms = 0;
}
