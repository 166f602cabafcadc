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

struct kvt_test {
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

#define TEST(name) static void name(void **test_state_unused)
#define RUN(name)   \
    {               \
#name, name \
    }
#define TEST_MAIN(...)                                           \
    int main(void)                                               \
    {                                                            \
        const struct kvt_test tests[] = {__VA_ARGS__};           \
        size_t i;                                                \
                                                                 \
        for (i = 0; i < sizeof(tests) / sizeof(tests[0]); i++) { \
            printf("%s\n", tests[i].name);                       \
            fflush(stdout);                                      \
            tests[i].run(NULL);                                  \
        }                                                        \
        printf("%u tests passed\n", (unsigned)i);                \
        return 0;                                                \
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
#define assert_int_equal(actual, expected) CHECK_EQ(actual, expected)
#define fail_msg(...) \
    (fprintf(stderr, __VA_ARGS__), kvt_check(false, "failed", __FILE__, __LINE__))

#endif

/* cmocka hands every test a state pointer that ours do not use. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

#endif
