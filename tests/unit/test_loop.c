/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* Unit tests of the event loop: timers in order, tasks from other threads, removed watches. */
#include "net/loop.h"
#include "test.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <unistd.h>

struct story {
    struct kvn_loop *loop;
    char text[64];
    struct kvn_timer timers[4];
    struct kvn_task task;
    struct kvn_watch watches[2];
    int posts;
};

static struct story story;

static void tell(const char *word)
{
    strncat(story.text, word, sizeof(story.text) - strlen(story.text) - 1);
}

static void tell_a(void *context)
{
    (void)context;
    tell("a");
}

static void tell_b(void *context)
{
    (void)context;
    tell("b");
}

static void tell_c(void *context)
{
    (void)context;
    tell("c");
}

static void set_up(void)
{
    memset(&story, 0, sizeof(story));
    CHECK_EQ(kvn_loop_new(kvg_alloc_default(), &story.loop), KVG_OK);
}

TEST(timers_fire_in_order_of_time_then_of_setting)
{
    uint64_t now;

    set_up();
    now = kvn_loop_now_ms(story.loop);
    story.timers[0].on_due = tell_c;
    story.timers[1].on_due = tell_a;
    story.timers[2].on_due = tell_b;
    kvn_timer_set(story.loop, &story.timers[0], now);
    kvn_timer_set(story.loop, &story.timers[1], now - 2);
    kvn_timer_set(story.loop, &story.timers[2], now - 2);
    kvn_loop_turn(story.loop, 0);
    CHECK_STR(story.text, "abc");
    kvn_loop_free(story.loop);
}

TEST(a_cleared_timer_does_not_fire_and_one_set_again_moves)
{
    uint64_t now;

    set_up();
    now = kvn_loop_now_ms(story.loop);
    story.timers[0].on_due = tell_a;
    story.timers[1].on_due = tell_b;
    kvn_timer_set(story.loop, &story.timers[0], now - 5);
    kvn_timer_set(story.loop, &story.timers[1], now - 4);
    kvn_timer_set(story.loop, &story.timers[0], now - 3);
    kvn_timer_clear(story.loop, &story.timers[1]);
    kvn_timer_clear(story.loop, &story.timers[1]);
    kvn_loop_turn(story.loop, 0);
    CHECK_STR(story.text, "a");
    kvn_loop_free(story.loop);
}

static void post_again(void *context)
{
    (void)context;
    tell("p");
    if (++story.posts < 3)
        kvn_loop_post(story.loop, &story.task);
}

TEST(a_task_that_posts_itself_runs_once_a_turn)
{
    set_up();
    story.task = (struct kvn_task){.run = post_again};
    kvn_loop_post(story.loop, &story.task);
    kvn_loop_turn(story.loop, 0);
    CHECK_STR(story.text, "p");
    kvn_loop_turn(story.loop, 0);
    CHECK_STR(story.text, "pp");
    kvn_loop_unpost(story.loop, &story.task);
    kvn_loop_turn(story.loop, 0);
    CHECK_STR(story.text, "pp");
    kvn_loop_free(story.loop);
}

static void stop_loop(void *context)
{
    (void)context;
    tell("s");
    kvn_loop_stop(story.loop);
}

static void *post_from_outside(void *context)
{
    kvn_loop_post(story.loop, context);
    return NULL;
}

TEST(a_task_of_another_thread_wakes_the_loop)
{
    pthread_t thread;

    set_up();
    story.task = (struct kvn_task){.run = stop_loop};
    CHECK_EQ(pthread_create(&thread, NULL, post_from_outside, &story.task), 0);
    kvn_loop_run(story.loop);
    pthread_join(thread, NULL);
    CHECK_STR(story.text, "s");
    kvn_loop_free(story.loop);
}

static void remove_other(void *context, uint32_t events)
{
    struct kvn_watch *other = context;

    (void)events;
    tell("w");
    kvn_watch_remove(story.loop, other);
}

TEST(a_watch_removed_in_the_same_turn_is_not_called)
{
    int pipes[2][2];
    int i;

    set_up();
    for (i = 0; i < 2; i++) {
        CHECK_EQ(pipe(pipes[i]), 0);
        CHECK_EQ(write(pipes[i][1], "x", 1), 1);
        story.watches[i] = (struct kvn_watch){.fd = pipes[i][0],
            .on_ready = remove_other,
            .context = &story.watches[1 - i]};
        CHECK_EQ(kvn_watch_add(story.loop, &story.watches[i], EPOLLIN), KVG_OK);
    }
    kvn_loop_turn(story.loop, 0);
    CHECK_STR(story.text, "w");
    for (i = 0; i < 2; i++) {
        kvn_watch_remove(story.loop, &story.watches[i]);
        close(pipes[i][0]);
        close(pipes[i][1]);
    }
    kvn_loop_free(story.loop);
}

TEST_MAIN(RUN(timers_fire_in_order_of_time_then_of_setting),
    RUN(a_cleared_timer_does_not_fire_and_one_set_again_moves),
    RUN(a_task_that_posts_itself_runs_once_a_turn),
    RUN(a_task_of_another_thread_wakes_the_loop),
    RUN(a_watch_removed_in_the_same_turn_is_not_called))
