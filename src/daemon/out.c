/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* out.c -- text that grows. */
#include "daemon/out.h"

#include "base/alloc.h"
#include "base/fmt.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define FIRST_BYTES 1024u

void kvd_out_init(struct kvd_out *out, const struct kvg_alloc *alloc)
{
    memset(out, 0, sizeof(*out));
    out->alloc = alloc;
}

void kvd_out_fini(struct kvd_out *out)
{
    kvi_release_array(out->alloc, out->data, out->capacity_bytes, 1);
    kvd_out_init(out, out->alloc);
}

void kvd_out_reset(struct kvd_out *out, size_t keep_bytes_max)
{
    out->bytes = 0;
    out->failed = false;
    if (out->capacity_bytes > keep_bytes_max)
        kvd_out_fini(out);
}

/* Room for `bytes` more, or false. */
static bool reserve(struct kvd_out *out, size_t bytes)
{
    size_t capacity = out->capacity_bytes == 0 ? FIRST_BYTES : out->capacity_bytes;
    void *data = out->data;

    if (out->failed)
        return false;
    if (bytes <= out->capacity_bytes - out->bytes)
        return true;
    while (capacity - out->bytes < bytes) {
        if (capacity > SIZE_MAX / 2) {
            out->failed = true;
            return false;
        }
        capacity *= 2;
    }
    if (!kvi_resize_array(out->alloc, &data, out->capacity_bytes, capacity, 1)) {
        out->failed = true;
        return false;
    }
    out->data = data;
    out->capacity_bytes = capacity;
    return true;
}

void kvd_out_bytes(struct kvd_out *out, const char *data, size_t bytes)
{
    if (bytes == 0 || !reserve(out, bytes))
        return;
    memcpy(out->data + out->bytes, data, bytes);
    out->bytes += bytes;
}

void kvd_out_text(struct kvd_out *out, const char *text)
{
    kvd_out_bytes(out, text, strlen(text));
}

void kvd_out_str(struct kvd_out *out, struct kvg_str text)
{
    kvd_out_bytes(out, text.data, text.bytes);
}

void kvd_out_u64(struct kvd_out *out, uint64_t value)
{
    char digits[24];
    size_t at = sizeof(digits);

    do {
        digits[--at] = (char)('0' + value % 10);
        value /= 10;
    } while (value > 0);
    kvd_out_bytes(out, digits + at, sizeof(digits) - at);
}

void kvd_out_printf(struct kvd_out *out, const char *format, ...)
{
    char small[256];
    va_list arguments;
    int bytes;

    va_start(arguments, format);
    bytes = vsnprintf(small, sizeof(small), format, arguments);
    va_end(arguments);
    if (bytes < 0) {
        out->failed = true;
        return;
    }
    if ((size_t)bytes < sizeof(small)) {
        kvd_out_bytes(out, small, (size_t)bytes);
        return;
    }
    if (!reserve(out, (size_t)bytes + 1))
        return;
    va_start(arguments, format);
    vsnprintf(out->data + out->bytes, (size_t)bytes + 1, format, arguments);
    va_end(arguments);
    out->bytes += (size_t)bytes;
}

/* The length of the UTF-8 sequence at the front, 0 if it is none. */
static size_t utf8_bytes(struct kvg_str text)
{
    const unsigned char *c = (const unsigned char *)text.data;
    size_t bytes = c[0] < 0x80   ? 1
                   : c[0] < 0xc2 ? 0
                   : c[0] < 0xe0 ? 2
                   : c[0] < 0xf0 ? 3
                                 : 4;

    if (bytes == 0 || c[0] > 0xf4 || bytes > text.bytes)
        return 0;
    for (size_t i = 1; i < bytes; i++) {
        if ((c[i] & 0xc0) != 0x80)
            return 0;
    }
    if ((c[0] == 0xe0 && c[1] < 0xa0) || (c[0] == 0xed && c[1] > 0x9f) ||
        (c[0] == 0xf0 && c[1] < 0x90) || (c[0] == 0xf4 && c[1] > 0x8f))
        return 0;
    return bytes;
}

void kvd_out_json(struct kvd_out *out, struct kvg_str text)
{
    kvd_out_text(out, "\"");
    while (text.bytes > 0) {
        unsigned char c = (unsigned char)text.data[0];
        size_t bytes = utf8_bytes(text);

        if (c == '"' || c == '\\')
            kvd_out_printf(out, "\\%c", c);
        else if (c < ' ' || c == 127)
            kvd_out_printf(out, "\\u%04x", (unsigned)c);
        else if (bytes == 0)
            kvd_out_text(out, "\\ufffd");
        else
            kvd_out_bytes(out, text.data, bytes);
        bytes = bytes == 0 ? 1 : bytes;
        text.data += bytes;
        text.bytes -= bytes;
    }
    kvd_out_text(out, "\"");
}

void kvd_out_comma(struct kvd_out *out)
{
    if (out->bytes > 0 && strchr("{[", out->data[out->bytes - 1]) == NULL)
        kvd_out_text(out, ",");
}

void kvd_out_key(struct kvd_out *out, const char *name)
{
    kvd_out_comma(out);
    kvd_out_text(out, "\"");
    kvd_out_text(out, name);
    kvd_out_text(out, "\":");
}
