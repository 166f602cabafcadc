/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* test.h -- cmocka with the few words our tests use.  Where there is no cmocka (a cross
 * build), the same words over a harness of their own: the first failure ends the program. */
#ifndef KVT_TEST_H
#define KVT_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Where a random test begins: at KVG_SEED, if it is set, so that a failure can be repeated. */
static inline uint64_t kvt_seed(uint64_t usual)
{
    const char *text = getenv("KVG_SEED");

    return text == NULL ? usual : strtoull(text, NULL, 0);
}

#ifndef KVT_NO_CMOCKA
#include <cmocka.h>

/* A test: TEST(a_sentence_that_can_be_false) { ... } and RUN(a_sentence_that_can_be_false)
 * in the table of main. */
#define TEST(name) static void name(void **test_state_unused)
#define RUN(name) cmocka_unit_test(name)
#define TEST_MAIN(...)                                    \
    int main(void)                                        \
    {                                                     \
        const struct CMUnitTest tests[] = {__VA_ARGS__};  \
        return cmocka_run_group_tests(tests, NULL, NULL); \
    }

#define CHECK(condition) assert_true(condition)
#define CHECK_EQ(actual, expected)                                                    \
    _assert_int_equal((LargestIntegralType)(actual), (LargestIntegralType)(expected), \
        __FILE__, __LINE__)
#define CHECK_STR(actual, expected) assert_string_equal((actual), (expected))
#define CHECK_MEM(actual, expected, bytes) \
    assert_memory_equal((actual), (expected), (bytes))

#else /* KVT_NO_CMOCKA */

struct CMUnitTest {
    const char *name;
    void (*run)(void **state);
};

static inline void kvt_check(bool good, const char *text, const char *file, int line)
{
    if (!good) {
        fprintf(stderr, "%s:%d: %s\n", file, line, text);
        exit(1);
    }
}

static inline int kvt_run(const struct CMUnitTest *tests, size_t test_count,
    int (*set_up)(void **), int (*tear_down)(void **))
{
    void *state = NULL;
    size_t i;

    if (set_up != NULL && set_up(&state) != 0)
        return 1;
    for (i = 0; i < test_count; i++) {
        printf("%s\n", tests[i].name);
        fflush(stdout);
        tests[i].run(&state);
    }
    printf("%u tests passed\n", (unsigned)test_count);
    return tear_down == NULL ? 0 : tear_down(&state);
}

#define TEST(name) static void name(void **test_state_unused)
#define RUN(test)                    \
    {                                \
        .name = #test, .run = (test) \
    }
#define cmocka_unit_test(name) RUN(name)
#define cmocka_run_group_tests(tests, set_up, tear_down) \
    kvt_run((tests), sizeof(tests) / sizeof((tests)[0]), (set_up), (tear_down))
#define TEST_MAIN(...)                                    \
    int main(void)                                        \
    {                                                     \
        const struct CMUnitTest tests[] = {__VA_ARGS__};  \
        return cmocka_run_group_tests(tests, NULL, NULL); \
    }

#define CHECK(condition) kvt_check((condition), #condition, __FILE__, __LINE__)
#define CHECK_EQ(actual, expected)                          \
    kvt_check((uintmax_t)(actual) == (uintmax_t)(expected), \
        #actual " is not " #expected, __FILE__, __LINE__)
#define CHECK_STR(actual, expected)                                                      \
    kvt_check(strcmp((actual), (expected)) == 0, #actual " is not " #expected, __FILE__, \
        __LINE__)
#define CHECK_MEM(actual, expected, bytes)                                              \
    kvt_check(memcmp((actual), (expected), (bytes)) == 0, #actual " is not " #expected, \
        __FILE__, __LINE__)
#define assert_true(condition) CHECK(condition)
#define assert_non_null(pointer) CHECK((pointer) != NULL)
#define assert_int_equal(actual, expected) CHECK_EQ(actual, expected)
#define assert_int_not_equal(actual, expected) CHECK((actual) != (expected))
#define assert_string_equal(actual, expected) CHECK_STR(actual, expected)
#define assert_memory_equal(actual, expected, bytes) CHECK_MEM(actual, expected, bytes)
#define print_message(...) printf(__VA_ARGS__)
#define fail_msg(...) \
    (fprintf(stderr, __VA_ARGS__), kvt_check(false, "failed", __FILE__, __LINE__))
#define skip()           \
    do {                 \
        puts("skipped"); \
        return;          \
    } while (0)

#endif

/* cmocka hands every test a state pointer that ours do not use. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

#endif
