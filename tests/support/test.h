/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* test.h -- cmocka with the few words our tests use. */
#ifndef KVT_TEST_H
#define KVT_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* cmocka hands every test a state pointer that ours do not use. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

#endif
