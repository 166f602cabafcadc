/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* fmt.h -- the little text the core makes, without <stdio.h>: a bounded writer, and the
 * filling of struct kvg_error. */
#ifndef KVI_BASE_FMT_H
#define KVI_BASE_FMT_H

#include <kvgraft/base.h>

/* Text into a fixed buffer.  What does not fit is left out and `overflowed` is set; the text
 * always ends with a zero. */
struct kvi_text {
    char *data;
    size_t capacity_bytes; /* At least 1. */
    size_t bytes;
    bool overflowed;
};

void kvi_text_init(struct kvi_text *text, char *data, size_t capacity_bytes);
void kvi_text_str(struct kvi_text *text, const char *zero_terminated);
void kvi_text_bytes(struct kvi_text *text, struct kvg_str str);
void kvi_text_u64(struct kvi_text *text, uint64_t value);
void kvi_text_i64(struct kvi_text *text, int64_t value);

/* Fills *error, if it is not NULL, and returns `code`. */
kvg_err kvi_fail(
    struct kvg_error *error, kvg_err code, const char *field, const char *message);

/* "FIELD is VALUE; allowed is LOW to HIGH". */
kvg_err kvi_fail_range(struct kvg_error *error, const char *field, uint64_t value,
    uint64_t low, uint64_t high);

static inline struct kvg_str kvi_str(const char *zero_terminated)
{
    return (struct kvg_str){
        zero_terminated, zero_terminated == NULL ? 0 : __builtin_strlen(zero_terminated)};
}

static inline bool kvi_str_equal(struct kvg_str a, struct kvg_str b)
{
    return a.bytes == b.bytes &&
           (a.bytes == 0 || __builtin_memcmp(a.data, b.data, a.bytes) == 0);
}

#endif
