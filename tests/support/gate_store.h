/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* gate_store.h -- `gate:`, a store in memory whose calls a test holds, fails and counts.  One at a
 * time in a process. */
#ifndef KVT_GATE_STORE_H
#define KVT_GATE_STORE_H

#include <kvgraft/store.h>

#include <pthread.h>

enum gate_call {
    GATE_EXISTS,
    GATE_PUT,
    GATE_GET,
    GATE_CALLS
};

struct gate {
    struct kvg_store *store; /* The gate itself. */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t calls[GATE_CALLS];
    uint64_t keys[GATE_CALLS]; /* Keys of these calls; of puts, groups. */
    uint64_t held[GATE_CALLS]; /* Calls from this one on wait (1: the first); 0: none. */
    uint64_t held_to[GATE_CALLS]; /* And up to this one; 0: all. */
    uint64_t failing[GATE_CALLS]; /* This call fails; 0: none. */
    uint64_t wrong_size_of;       /* Gets from this one on say another size; 0: none. */
    uint64_t waiting;             /* Calls that wait now. */
    uint32_t flags_off; /* Promises that it does not keep; before gate_open(). */
    /* Every group put, with its previous key, goes by here; may be NULL. */
    void (*on_group)(void *context, const struct kvg_store_group *group);
    void *context;
};

/* `gate` is zeroed but for what is set on purpose. */
void gate_open(struct gate *gate, const char *inner_url);
void gate_close(struct gate *gate);

void gate_hold(struct gate *gate, enum gate_call call, uint64_t from);
void gate_release(struct gate *gate, enum gate_call call);
/* Waits until that many calls wait. */
void gate_wait(struct gate *gate, uint64_t waiting);

#endif
