/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* sim_store.h -- a store, its publisher, the network and its admin port, as data.
 *
 * One clock, one seed.  The store has a few keys, changes them with and without events, drops
 * events, restarts; messages are under way, are lost, come twice; the admin port takes its time,
 * counts, lists key by key while keys change, fails and goes away.  The source under test is
 * driven exactly as a daemon would drive it.  Include test.h first. */
#ifndef KVT_SIM_STORE_H
#define KVT_SIM_STORE_H

#include "source_rig.h"

#include "base/rng.h"

#define SIM_KEYS 48u   /* Of the default tenant. */
#define SIM_OTHERS 6u  /* Of tenant "blue". */
#define SIM_FOREIGN 4u /* Keys that are no page's. */
#define SIM_PACKETS 4096u
#define SIM_KEPT 12u      /* Messages that a publisher with an epoch keeps for replays. */
#define SIM_HISTORY 8192u /* Messages of a life, at most, with an epoch. */

/* How often things go wrong, in a thousand. */
struct sim_faults {
    uint32_t loss;       /* Of messages. */
    uint32_t duplicate;  /* Of messages, at once. */
    uint32_t repeat;     /* An old message again, of an operation. */
    uint32_t drop;       /* Events dropped by the publisher: numbers without messages. */
    uint32_t silent;     /* Changes without an event, of operations. */
    uint32_t restart;    /* Of operations. */
    uint32_t disconnect; /* Of operations. */
    uint32_t garbage;    /* Messages that are none, and payloads that cannot be read. */
    uint32_t clear;      /* Everything goes, with an event. */
    uint32_t ask_fails;  /* Of answers. */
    uint32_t outage;     /* Of operations: the admin port goes away for a while. */
};

struct sim_packet {
    uint64_t at_ms;
    uint64_t sequence;
    uint64_t life;
    uint64_t first_id;
    char *payload;
    size_t bytes;
    bool readable;
};

/* A message that can be asked for again. */
struct sim_kept {
    uint64_t sequence;
    char *payload;
    size_t bytes;
};

struct sim_ask {
    bool active;
    uint64_t id;
    uint64_t at_ms;  /* Of the next step. */
    unsigned step;   /* Listings: the next key. */
    uint64_t serial; /* Of the world, when it began. */
    bool sampled;
    uint64_t count;
    struct kvg_source_status status;
    uint64_t epoch; /* Of the publisher that was asked. */
    uint64_t sequence;
    uint64_t keys; /* Held, when a stamped listing was taken. */
};

struct sim {
    struct rig rig;
    struct kvi_rng rng;
    struct sim_faults faults;
    bool has_admin;
    /* The store. */
    bool held[SIM_KEYS];
    bool others[SIM_OTHERS];
    bool foreign[SIM_FOREIGN];
    uint64_t life;
    uint64_t serial;           /* Counts up at every change. */
    uint64_t silent_serial;    /* Of the last change without an event. */
    uint64_t blue_silent_life; /* The last life in which "blue" changed without one. */
    uint64_t sequence;
    uint64_t event_id;
    uint64_t first_id; /* Of the message being written. */
    uint64_t batches;
    uint64_t events;
    uint64_t dropped;
    /* The network: first in, first out. */
    bool connected;
    uint64_t reconnect_at_ms;
    uint64_t last_at_ms;
    size_t packet_first;
    size_t packet_count;
    struct sim_packet packets[SIM_PACKETS];
    struct sim_packet old; /* One that was delivered once. */
    uint64_t delivered_life;
    /* The admin port. */
    uint64_t outage_until_ms;
    struct sim_ask status;
    struct sim_ask count;
    struct sim_ask listing;
    /* Only of a publisher that says its epoch; 0: it does not. */
    uint64_t epoch;
    uint64_t old_epoch;
    uint64_t beat_ms; /* Of the next heartbeat. */
    struct sim_kept kept[SIM_KEPT];
    struct sim_ask replay;
    uint64_t
        history[2][SIM_HISTORY]; /* Keys held after each message; this life, the last. */
    uint64_t listing_begun_serial; /* Of the last one that ended. */
    /* What is watched. */
    uint64_t fresh_checks; /* Times the index was compared while fresh. */
    uint64_t actions;
    uint64_t listings_asked;
    char failure[256]; /* The first thing that was wrong. */
};

void sim_init(
    struct sim *sim, uint64_t seed, const struct sim_faults *faults, bool has_admin);
/* Its publisher says its epoch, keeps messages for replays, and stamps its listings. */
void sim_init_exact(struct sim *sim, uint64_t seed, const struct sim_faults *faults,
    bool has_admin, bool has_replay);
void sim_end(struct sim *sim);

/* sim_exact.c: what such a publisher does. */
void sim_exact_begin(struct sim *sim);
void sim_exact_keep(struct sim *sim, struct kvg_str payload);
void sim_exact_restart(struct sim *sim);
void sim_exact_end(struct sim *sim);
void sim_exact_ask_replay(struct sim *sim, const struct kvg_source_action *action);
void sim_exact_answer_replay(struct sim *sim);
bool sim_exact_stamp(struct sim *sim, struct sim_ask *ask);
/* Whether the index is the store after the message that the source stands at. */
bool sim_exact_is_right(struct sim *sim);
uint64_t sim_keys(const struct sim *sim);
/* sim_store.c, for it. */
void sim_beat(struct sim *sim);

/* One random operation, or several messages of them. */
void sim_operate(struct sim *sim);
/* Lets time pass; false if something was wrong (then `failure` says what). */
bool sim_run(struct sim *sim, uint64_t ms);
/* No faults any more, and the network back. */
void sim_calm(struct sim *sim);

/* Whether the index holds exactly what the store does. */
bool sim_index_is_right(struct sim *sim, bool with_others);

#endif
