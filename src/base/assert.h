/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* assert.h -- two assertions.  KVI_ASSERT is cheap, always on, for what would corrupt.
 * KVI_DCHECK is for what is slow, in debug builds.  Bad input is never an assertion. */
#ifndef KVI_BASE_ASSERT_H
#define KVI_BASE_ASSERT_H

#define KVI_ASSERT(condition)                  \
    do {                                       \
        if (__builtin_expect(!(condition), 0)) \
            __builtin_trap();                  \
    } while (0)

#ifdef NDEBUG
#define KVI_DCHECK(condition)    \
    do {                         \
        (void)sizeof(condition); \
    } while (0)
#else
#define KVI_DCHECK(condition) KVI_ASSERT(condition)
#endif

#define KVI_LIKELY(condition) __builtin_expect(!!(condition), 1)
#define KVI_UNLIKELY(condition) __builtin_expect(!!(condition), 0)

#endif
