/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* loop.h -- the one event loop: file descriptors, timers, and work from other threads.
 *
 * A turn of the loop: wait for the nearest deadline or event; read the clock; run what was
 * posted; call ready watches; fire due timers.  A callback may add, change and remove any watch
 * or timer, its own included.
 *
 * Threads: everything belongs to the thread that runs the loop, except kvn_loop_post() and
 * kvn_loop_stop(), which any thread may call at any time before kvn_loop_free().
 */
#ifndef KVN_LOOP_H
#define KVN_LOOP_H

#include <kvgraft/base.h>

struct kvn_loop;

/* A file descriptor to be watched; embedded in its owner.  `events` are EPOLLIN and friends. */
struct kvn_watch {
    int fd;
    void (*on_ready)(void *context, uint32_t events);
    void *context;
    bool added; /* Private. */
};

/* A moment to be called at; embedded in its owner.  Zero-fill, then set the callback. */
struct kvn_timer {
    void (*on_due)(void *context);
    void *context;
    uint64_t due_ms;        /* Private from here. */
    struct kvn_timer *next; /* Sorted by due_ms. */
    bool set;
};

/* Work from another thread; embedded in its owner, which keeps it until it has run. */
struct kvn_task {
    void (*run)(void *context);
    void *context;
    struct kvn_task *next; /* Private. */
};

/* Milliseconds on the monotonic clock; microseconds of the same. */
uint64_t kvn_clock_ms(void);
uint64_t kvn_clock_us(void);

KVG_MUST_CHECK kvg_err kvn_loop_new(const struct kvg_alloc *alloc, struct kvn_loop **out);
/* Watches and timers must be gone.  Tasks that did not run are run now, so that their owners
 * can let go.  NULL is allowed. */
void kvn_loop_free(struct kvn_loop *loop);

/* Turns until stopped.  A loop may run again afterwards. */
void kvn_loop_run(struct kvn_loop *loop);
void kvn_loop_stop(struct kvn_loop *loop);
/* One turn, waiting `wait_ms_max` at most. */
void kvn_loop_turn(struct kvn_loop *loop, int wait_ms_max);

/* The time of this turn. */
uint64_t kvn_loop_now_ms(const struct kvn_loop *loop);
/* When the loop last turned, for a watchdog; any thread. */
uint64_t kvn_loop_last_turn_ms(const struct kvn_loop *loop);

/* Says that a long piece of work goes on; counts as a turn.  The loop's thread. */
void kvn_loop_touch(struct kvn_loop *loop);

/* KVG_EIO if the kernel refuses. */
KVG_MUST_CHECK kvg_err kvn_watch_add(
    struct kvn_loop *loop, struct kvn_watch *watch, uint32_t events);
void kvn_watch_change(struct kvn_loop *loop, struct kvn_watch *watch, uint32_t events);
/* Harmless if not added.  Does not close the descriptor. */
void kvn_watch_remove(struct kvn_loop *loop, struct kvn_watch *watch);

/* Sets or moves.  Clearing is harmless if not set. */
void kvn_timer_set(struct kvn_loop *loop, struct kvn_timer *timer, uint64_t due_ms);
void kvn_timer_clear(struct kvn_loop *loop, struct kvn_timer *timer);

/* Runs `task` in the next turn.  A task must not be posted again before it ran; from within its
 * own run it may. */
void kvn_loop_post(struct kvn_loop *loop, struct kvn_task *task);
/* Takes a posted task back; harmless if it is not posted.  The loop's thread only, and no other
 * thread may be posting it. */
void kvn_loop_unpost(struct kvn_loop *loop, struct kvn_task *task);

#endif
