/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* fmt.c -- bounded text without <stdio.h> (fmt.h). */
#include "base/fmt.h"

#include "base/assert.h"

#include <string.h>

void kvi_text_init(struct kvi_text *text, char *data, size_t capacity_bytes)
{
    KVI_ASSERT(capacity_bytes > 0);
    *text = (struct kvi_text){.data = data, .capacity_bytes = capacity_bytes};
    data[0] = '\0';
}

void kvi_text_bytes(struct kvi_text *text, struct kvg_str str)
{
    size_t room = text->capacity_bytes - 1 - text->bytes;
    size_t taken = str.bytes <= room ? str.bytes : room;

    if (taken < str.bytes)
        text->overflowed = true;
    if (taken != 0)
        memcpy(text->data + text->bytes, str.data, taken);
    text->bytes += taken;
    text->data[text->bytes] = '\0';
}

void kvi_text_str(struct kvi_text *text, const char *zero_terminated)
{
    kvi_text_bytes(text, kvi_str(zero_terminated));
}

void kvi_text_u64(struct kvi_text *text, uint64_t value)
{
    char digits[20];
    size_t start = sizeof(digits);

    do {
        digits[--start] = (char)('0' + value % 10);
        value /= 10;
    } while (value != 0);
    kvi_text_bytes(text, (struct kvg_str){digits + start, sizeof(digits) - start});
}

void kvi_text_i64(struct kvi_text *text, int64_t value)
{
    if (value < 0)
        kvi_text_str(text, "-");
    kvi_text_u64(text, value < 0 ? (uint64_t)0 - (uint64_t)value : (uint64_t)value);
}

kvg_err kvi_fail(
    struct kvg_error *error, kvg_err code, const char *field, const char *message)
{
    struct kvi_text text;

    if (error == NULL)
        return code;
    error->code = code;
    kvi_text_init(&text, error->field, sizeof(error->field));
    kvi_text_str(&text, field);
    kvi_text_init(&text, error->message, sizeof(error->message));
    kvi_text_str(&text, message);
    return code;
}

kvg_err kvi_fail_range(struct kvg_error *error, const char *field, uint64_t value,
    uint64_t low, uint64_t high)
{
    char message[160];
    struct kvi_text text;

    kvi_text_init(&text, message, sizeof(message));
    kvi_text_str(&text, field);
    kvi_text_str(&text, " is ");
    kvi_text_u64(&text, value);
    kvi_text_str(&text, "; allowed is ");
    kvi_text_u64(&text, low);
    kvi_text_str(&text, " to ");
    kvi_text_u64(&text, high);
    return kvi_fail(error, KVG_EINVAL, field, message);
}
