/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* loop.c -- epoll, a sorted list of timers, and a list of posted tasks.
 *
 *     other threads --post--> [task, task, ...] --eventfd--+
 *                                                          v
 *                       epoll_wait(until the first timer) -+-> tasks, watches, timers
 *
 * There are a few dozen timers, so a list kept in order beats a heap: it needs no memory of its
 * own, hence setting a timer cannot fail.
 *
 * Invariants:
 *
 *     L1  A watch that was removed is not called, even if its event was already fetched: removal
 *         blanks it in the batch that is being handed out.
 *     L2  Tasks posted while tasks run wait for the next turn, so a task that posts itself does
 *         not starve the rest.
 *     L3  The eventfd is written only when the list of tasks was empty, and emptied before the
 *         list is taken.
 *
 * Not here: signals (the command handles them), blocking work (resolve.c, sub.c).
 */
#include "net/loop.h"

#include "base/alloc.h"
#include "base/assert.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define EVENTS_MAX 64
#define WAIT_MS_MAX 1000 /* A turn at least this often, for the watchdog. */

struct kvn_loop {
    const struct kvg_alloc *alloc;
    int epoll_fd;
    int wake_fd;
    uint64_t now_ms;
    atomic_uint_least64_t last_turn_ms;
    atomic_bool stopping;
    struct kvn_timer *timers;
    struct epoll_event events[EVENTS_MAX]; /* The batch being handed out. */
    int event_count;
    pthread_mutex_t lock; /* Of the task list. */
    struct kvn_task *tasks;
    struct kvn_task **tasks_end;
    struct kvn_task *running; /* Taken off that list, to be run in this turn. */
    bool lock_ready;
};

uint64_t kvn_clock_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
}

uint64_t kvn_clock_ms(void)
{
    return kvn_clock_us() / 1000u;
}

static void run_tasks(struct kvn_loop *loop);

void kvn_loop_free(struct kvn_loop *loop)
{
    if (loop == NULL)
        return;
    if (loop->lock_ready)
        run_tasks(loop);
    if (loop->epoll_fd >= 0)
        close(loop->epoll_fd);
    if (loop->wake_fd >= 0)
        close(loop->wake_fd);
    if (loop->lock_ready)
        pthread_mutex_destroy(&loop->lock);
    KVI_FREE(loop->alloc, loop);
}

kvg_err kvn_loop_new(const struct kvg_alloc *alloc, struct kvn_loop **out)
{
    struct kvn_loop *loop = KVI_NEW(alloc, struct kvn_loop);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};

    *out = NULL;
    if (loop == NULL)
        return KVG_ENOMEM;
    loop->alloc = alloc;
    loop->tasks_end = &loop->tasks;
    loop->wake_fd = -1;
    loop->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (loop->epoll_fd < 0)
        goto fail;
    loop->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (loop->wake_fd < 0)
        goto fail;
    if (epoll_ctl(loop->epoll_fd, EPOLL_CTL_ADD, loop->wake_fd, &event) != 0)
        goto fail;
    if (pthread_mutex_init(&loop->lock, NULL) != 0)
        goto fail;
    loop->lock_ready = true;
    loop->now_ms = kvn_clock_ms();
    atomic_store(&loop->last_turn_ms, loop->now_ms);
    *out = loop;
    return KVG_OK;

fail:
    kvn_loop_free(loop);
    return KVG_EIO;
}

uint64_t kvn_loop_now_ms(const struct kvn_loop *loop)
{
    return loop->now_ms;
}

uint64_t kvn_loop_last_turn_ms(const struct kvn_loop *loop)
{
    return atomic_load_explicit(&loop->last_turn_ms, memory_order_relaxed);
}

void kvn_loop_touch(struct kvn_loop *loop)
{
    atomic_store_explicit(&loop->last_turn_ms, kvn_clock_ms(), memory_order_relaxed);
}

/* Watches ---------------------------------------------------------------------------------- */

kvg_err kvn_watch_add(struct kvn_loop *loop, struct kvn_watch *watch, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = watch};

    KVI_ASSERT(!watch->added);
    if (epoll_ctl(loop->epoll_fd, EPOLL_CTL_ADD, watch->fd, &event) != 0)
        return KVG_EIO;
    watch->added = true;
    return KVG_OK;
}

void kvn_watch_change(struct kvn_loop *loop, struct kvn_watch *watch, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = watch};

    KVI_ASSERT(watch->added);
    epoll_ctl(loop->epoll_fd, EPOLL_CTL_MOD, watch->fd, &event);
}

void kvn_watch_remove(struct kvn_loop *loop, struct kvn_watch *watch)
{
    if (!watch->added)
        return;
    epoll_ctl(loop->epoll_fd, EPOLL_CTL_DEL, watch->fd, NULL);
    watch->added = false;
    for (int i = 0; i < loop->event_count; i++) { /* L1 */
        if (loop->events[i].data.ptr == watch)
            loop->events[i].data.ptr = NULL;
    }
}

/* Timers ----------------------------------------------------------------------------------- */

void kvn_timer_clear(struct kvn_loop *loop, struct kvn_timer *timer)
{
    struct kvn_timer **at = &loop->timers;

    if (!timer->set)
        return;
    while (*at != timer)
        at = &(*at)->next;
    *at = timer->next;
    timer->set = false;
}

void kvn_timer_set(struct kvn_loop *loop, struct kvn_timer *timer, uint64_t due_ms)
{
    struct kvn_timer **at = &loop->timers;

    kvn_timer_clear(loop, timer);
    while (*at != NULL && (*at)->due_ms <= due_ms)
        at = &(*at)->next;
    timer->due_ms = due_ms;
    timer->next = *at;
    timer->set = true;
    *at = timer;
}

static void fire_timers(struct kvn_loop *loop)
{
    while (loop->timers != NULL && loop->timers->due_ms <= loop->now_ms) {
        struct kvn_timer *timer = loop->timers;

        loop->timers = timer->next;
        timer->set = false;
        timer->on_due(timer->context);
    }
}

/* Tasks ------------------------------------------------------------------------------------ */

static void wake(struct kvn_loop *loop)
{
    uint64_t one = 1;
    ssize_t written = write(loop->wake_fd, &one, sizeof(one));

    (void)written; /* Full means awake already. */
}

void kvn_loop_post(struct kvn_loop *loop, struct kvn_task *task)
{
    bool first;

    task->next = NULL;
    pthread_mutex_lock(&loop->lock);
    first = loop->tasks == NULL;
    *loop->tasks_end = task;
    loop->tasks_end = &task->next;
    pthread_mutex_unlock(&loop->lock);
    if (first) /* L3 */
        wake(loop);
}

void kvn_loop_stop(struct kvn_loop *loop)
{
    atomic_store(&loop->stopping, true);
    wake(loop);
}

void kvn_loop_unpost(struct kvn_loop *loop, struct kvn_task *task)
{
    struct kvn_task **at;

    for (at = &loop->running; *at != NULL; at = &(*at)->next) {
        if (*at == task) {
            *at = task->next;
            return;
        }
    }
    pthread_mutex_lock(&loop->lock);
    for (at = &loop->tasks; *at != NULL && *at != task; at = &(*at)->next)
        continue;
    if (*at == task) {
        *at = task->next;
        if (loop->tasks_end == &task->next)
            loop->tasks_end = at;
    }
    pthread_mutex_unlock(&loop->lock);
}

static void run_tasks(struct kvn_loop *loop)
{
    pthread_mutex_lock(&loop->lock); /* L2: what is posted from now on waits. */
    loop->running = loop->tasks;
    loop->tasks = NULL;
    loop->tasks_end = &loop->tasks;
    pthread_mutex_unlock(&loop->lock);
    while (loop->running != NULL) {
        struct kvn_task *task = loop->running;

        loop->running = task->next;
        task->run(task->context);
    }
}

/* Turning ---------------------------------------------------------------------------------- */

static int wait_ms(const struct kvn_loop *loop, int wait_ms_max)
{
    uint64_t now_ms;

    if (loop->timers == NULL)
        return wait_ms_max;
    now_ms = kvn_clock_ms();
    if (loop->timers->due_ms <= now_ms)
        return 0;
    if (loop->timers->due_ms - now_ms < (uint64_t)wait_ms_max)
        return (int)(loop->timers->due_ms - now_ms);
    return wait_ms_max;
}

void kvn_loop_turn(struct kvn_loop *loop, int wait_ms_max)
{
    int count =
        epoll_wait(loop->epoll_fd, loop->events, EVENTS_MAX, wait_ms(loop, wait_ms_max));

    loop->event_count = count < 0 ? 0 : count;
    loop->now_ms = kvn_clock_ms();
    atomic_store_explicit(&loop->last_turn_ms, loop->now_ms, memory_order_relaxed);
    for (int i = 0; i < loop->event_count; i++) {
        struct kvn_watch *watch = loop->events[i].data.ptr;
        uint64_t count_of_wakes;

        if (watch != NULL)
            watch->on_ready(watch->context, loop->events[i].events);
        else if (read(loop->wake_fd, &count_of_wakes, sizeof(count_of_wakes)) > 0)
            continue;
    }
    loop->event_count = 0;
    run_tasks(loop);
    fire_timers(loop);
}

void kvn_loop_run(struct kvn_loop *loop)
{
    while (!atomic_load(&loop->stopping))
        kvn_loop_turn(loop, WAIT_MS_MAX);
    atomic_store(&loop->stopping, false);
}
