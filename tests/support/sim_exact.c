/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* sim_exact.c -- a publisher that says its epoch; see sim_store.h.
 *
 * It loses no event of its own, so the index has an exact truth at every moment: the store as it
 * was after the message at which the source stands. */
#include "test.h"

#include "sim_store.h"

#include "base/fmt.h"
#include "source/state.h"

uint64_t sim_keys(const struct sim *sim)
{
    uint64_t keys = 0;
    unsigned i;

    for (i = 0; i < SIM_KEYS; i++)
        keys |= (uint64_t)sim->held[i] << i;
    return keys;
}

/* After kvg_event_writer_begin(). */
void sim_exact_begin(struct sim *sim)
{
    if (sim->epoch != 0)
        kvg_event_writer_heartbeat(
            sim->rig.writer, sim->epoch, (uint64_t)__builtin_popcountll(sim_keys(sim)));
}

void sim_exact_keep(struct sim *sim, struct kvg_str payload)
{
    struct sim_kept *kept = &sim->kept[sim->sequence % SIM_KEPT];

    if (sim->epoch == 0)
        return;
    CHECK(sim->sequence < SIM_HISTORY);
    sim->history[0][sim->sequence] = sim_keys(sim);
    free(kept->payload);
    *kept = (struct sim_kept){sim->sequence, malloc(payload.bytes + 1), payload.bytes};
    CHECK(kept->payload != NULL);
    memcpy(kept->payload, payload.data, payload.bytes);
}

static void forget(struct sim *sim)
{
    unsigned i;

    for (i = 0; i < SIM_KEPT; i++) {
        free(sim->kept[i].payload);
        sim->kept[i] = (struct sim_kept){0, NULL, 0};
    }
}

/* Another process begins where the store is, and says so at once. */
void sim_exact_restart(struct sim *sim)
{
    if (sim->epoch == 0)
        return;
    forget(sim);
    memcpy(sim->history[1], sim->history[0], sizeof(sim->history[0]));
    sim->old_epoch = sim->epoch;
    sim->epoch = kvi_rng_next(&sim->rng) | 1;
    sim_beat(sim);
}

void sim_exact_end(struct sim *sim)
{
    forget(sim);
}

void sim_exact_ask_replay(struct sim *sim, const struct kvg_source_action *action)
{
    CHECK(!sim->replay.active);
    sim->replay = (struct sim_ask){.active = true,
        .id = action->id,
        .at_ms = sim->rig.now_ms + 1 + kvi_rng_below(&sim->rng, 30),
        .epoch = sim->epoch,
        .sequence = action->sequence};
}

/* The oldest message that is kept, if none of the number is. */
static uint64_t first_kept(const struct sim *sim, uint64_t sequence)
{
    uint64_t oldest = sim->sequence < SIM_KEPT ? 1 : sim->sequence - SIM_KEPT + 1;

    return sequence < oldest ? oldest : sequence;
}

/* A few messages, or the end; what is published meanwhile may or may not come along. */
void sim_exact_answer_replay(struct sim *sim)
{
    struct sim_ask *ask = &sim->replay;
    uint64_t count = 1 + kvi_rng_below(&sim->rng, 10);

    if (!ask->active || ask->at_ms > sim->rig.now_ms)
        return;
    if (kvi_rng_below(&sim->rng, 1000) < sim->faults.ask_fails ||
        ask->epoch != sim->epoch) {
        ask->active = false;
        kvg_source_failed(sim->rig.source, ask->id, "simulated", sim->rig.now_ms);
        return;
    }
    ask->sequence = first_kept(sim, ask->sequence);
    for (; count > 0 && ask->active && ask->sequence <= sim->sequence; count--) {
        const struct sim_kept *kept = &sim->kept[ask->sequence % SIM_KEPT];

        CHECK_EQ(kept->sequence, ask->sequence);
        ask->sequence++;
        kvg_source_replay_message(sim->rig.source, ask->id, kept->sequence,
            (struct kvg_str){kept->payload, kept->bytes}, sim->rig.now_ms);
    }
    ask->at_ms = sim->rig.now_ms + 1 + kvi_rng_below(&sim->rng, 10);
    if (ask->sequence <= sim->sequence)
        return;
    ask->active = false;
    kvg_source_replay_done(sim->rig.source, ask->id, sim->rig.now_ms);
}

/* Takes the listing: from here on its keys do not change.  False: its publisher has died. */
bool sim_exact_stamp(struct sim *sim, struct sim_ask *ask)
{
    if (sim->epoch == 0)
        return true;
    if (!ask->sampled) {
        ask->sampled = true;
        ask->epoch = sim->epoch;
        ask->keys = sim_keys(sim);
        kvg_source_listing_stamp(
            sim->rig.source, ask->id, sim->epoch, sim->sequence, sim->rig.now_ms);
    }
    return ask->epoch == sim->epoch;
}

static void on_object(
    void *context, struct kvg_str tenant, struct kvg_str key, enum kvg_medium medium)
{
    uint64_t *keys = context;
    char expected[RIG_KEY_BYTES + 1];
    unsigned i = 0;

    (void)medium;
    if (!kvi_str_equal(tenant, kvi_str("default")))
        return;
    if (key.bytes == RIG_KEY_BYTES) { /* Its page in hex, then its part: rig_key(). */
        memcpy(expected, key.data + 56, 8);
        expected[8] = '\0';
        i = 2 * (unsigned)strtoul(expected, NULL, 16) +
            (key.data[RIG_KEY_BYTES - 1] == 'v');
    }
    rig_key(i % SIM_KEYS, expected);
    CHECK(kvi_str_equal(key, kvi_str(expected)));
    *keys |= UINT64_C(1) << i;
}

bool sim_exact_is_right(struct sim *sim)
{
    const struct kvi_life *life = &sim->rig.source->life;
    uint64_t keys = 0;

    if (life->epoch != sim->epoch && life->epoch != sim->old_epoch)
        return true; /* Older than what is remembered here. */
    kvg_presence_each(sim->rig.index, on_object, &keys);
    return keys == sim->history[life->epoch != sim->epoch][life->position];
}
