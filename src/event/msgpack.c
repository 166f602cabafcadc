/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* msgpack.c -- MessagePack over bytes (msgpack.h).
 *
 * The first byte of a value says what it is:
 *
 *     00-7f positive fixint   80-8f fixmap   90-9f fixarray   a0-bf fixstr   c0 nil
 *     c1 never   c2 c3 bool   c4-c6 bin   c7-c9 ext   ca cb float   cc-cf uint
 *     d0-d3 int   d4-d8 fixext   d9-db str   dc dd array   de df map
 *     e0-ff negative fixint
 *
 * HEADS below turns it into what a skip must know: how many bytes are fixed, and how the rest
 * is counted.  Invariants:
 *
 *     M1  A cursor's `at` never passes `end`.
 *     M2  A read that fails consumes nothing.
 *     M3  No loop runs more often than there are bytes left: a count larger than the bytes
 *         that could hold it is refused before anything is done with it.
 */
#include "event/msgpack.h"

#include "base/alloc.h"
#include "base/assert.h"

/* How the length of a value goes on after its first byte. */
enum head_kind {
    HEAD_PLAIN, /* `width` bytes follow, and that is all. */
    HEAD_BYTES, /* `width` bytes of length, then so many bytes (ext: and a type). */
    HEAD_ARRAY, /* `width` bytes of count follow, then so many values. */
    HEAD_MAP,   /* The same, then twice as many values. */
    HEAD_NEVER
};

struct head {
    uint8_t kind;
    uint8_t width; /* Bytes after the first, without what a length or count announces. */
    uint8_t small; /* Length or count in the first byte itself. */
    uint8_t extra; /* Ext with a length: the byte of its type. */
};

#define PLAIN(width)              \
    {                             \
        HEAD_PLAIN, (width), 0, 0 \
    }
#define BYTES(width, extra)             \
    {                                   \
        HEAD_BYTES, (width), 0, (extra) \
    }
#define FOUR(head, n) head(n), head((n) + 1), head((n) + 2), head((n) + 3)
#define SIXTEEN(head, n) \
    FOUR(head, n), FOUR(head, (n) + 4), FOUR(head, (n) + 8), FOUR(head, (n) + 12)
#define FIXINT(n) PLAIN(0)
#define FIXSTR(n) PLAIN(n)
#define FIXMAP(n)           \
    {                       \
        HEAD_MAP, 0, (n), 0 \
    }
#define FIXARRAY(n)           \
    {                         \
        HEAD_ARRAY, 0, (n), 0 \
    }

static const struct head HEADS[256] = {SIXTEEN(FIXINT, 0), SIXTEEN(FIXINT, 0),
    SIXTEEN(FIXINT, 0), SIXTEEN(FIXINT, 0), SIXTEEN(FIXINT, 0), SIXTEEN(FIXINT, 0),
    SIXTEEN(FIXINT, 0), SIXTEEN(FIXINT, 0), SIXTEEN(FIXMAP, 0), SIXTEEN(FIXARRAY, 0),
    SIXTEEN(FIXSTR, 0), SIXTEEN(FIXSTR, 16),
    /* c0 nil, c1, c2 c3 bool */
    PLAIN(0), {HEAD_NEVER, 0, 0, 0}, PLAIN(0), PLAIN(0),
    /* c4-c6 bin, c7-c9 ext */
    BYTES(1, 0), BYTES(2, 0), BYTES(4, 0), BYTES(1, 1), BYTES(2, 1), BYTES(4, 1),
    /* ca cb float, cc-cf uint, d0-d3 int, d4-d8 fixext */
    PLAIN(4), PLAIN(8), PLAIN(1), PLAIN(2), PLAIN(4), PLAIN(8), PLAIN(1), PLAIN(2),
    PLAIN(4), PLAIN(8), PLAIN(2), PLAIN(3), PLAIN(5), PLAIN(9), PLAIN(17),
    /* d9-db str, dc dd array, de df map */
    BYTES(1, 0), BYTES(2, 0), BYTES(4, 0), {HEAD_ARRAY, 2, 0, 0}, {HEAD_ARRAY, 4, 0, 0},
    {HEAD_MAP, 2, 0, 0}, {HEAD_MAP, 4, 0, 0},
    /* e0-ff */
    SIXTEEN(FIXINT, 0), SIXTEEN(FIXINT, 0)};

/* The big-endian number of 0, 1, 2 or 4 bytes. */
static uint32_t load_length(const uint8_t *bytes, uint8_t width)
{
    switch (width) {
    case 1:
        return bytes[0];
    case 2:
        return kvi_load_be16(bytes);
    case 4:
        return kvi_load_be32(bytes);
    default:
        return 0;
    }
}

/* Measures the value at `at`: the bytes it takes without the values inside it, and how many
 * values those are.  False if the bytes end too early or cannot be a value. */
static inline bool measure(
    const uint8_t *at, const uint8_t *end, size_t *bytes, uint64_t *values)
{
    size_t left = (size_t)(end - at);
    struct head head;
    size_t taken;
    uint32_t length;

    if (left == 0)
        return false;
    head = HEADS[*at];
    taken = 1u + head.width;
    *values = 0;
    if (KVI_LIKELY(head.kind == HEAD_PLAIN)) {
        *bytes = taken;
        return taken <= left;
    }
    if (head.kind == HEAD_NEVER || taken > left)
        return false;
    length = head.small + load_length(at + 1, head.width);
    if (head.kind == HEAD_BYTES) {
        *bytes = taken + head.extra + length;
        return left - taken >= head.extra + (size_t)length;
    }
    *bytes = taken;
    *values = head.kind == HEAD_MAP ? (uint64_t)length * 2 : length;
    return *values <= left - taken;
}

bool kvi_mp_skip_flat(struct kvi_mp_cursor *cursor, uint64_t count)
{
    const uint8_t *at = cursor->at;
    uint64_t pending = count;

    while (pending != 0) {
        size_t bytes;
        uint64_t values;

        if (!measure(at, cursor->end, &bytes, &values))
            return false;
        at += bytes;
        pending += values - 1;
        if (pending > (uint64_t)(cursor->end - at))
            return false;
    }
    cursor->at = at;
    return true;
}

enum kvi_mp_skip kvi_mp_skip(struct kvi_mp_cursor *cursor, uint32_t depth_max)
{
    uint64_t pending[KVI_MP_DEPTH_MAX + 1]; /* Values still to come at each depth. */
    const uint8_t *at = cursor->at;
    uint32_t depth = 0;

    KVI_ASSERT(depth_max <= KVI_MP_DEPTH_MAX);
    pending[0] = 1;
    for (;;) {
        size_t bytes;
        uint64_t values;

        while (pending[depth] == 0) {
            if (depth == 0) {
                cursor->at = at;
                return KVI_MP_SKIPPED;
            }
            depth--;
        }
        if (!measure(at, cursor->end, &bytes, &values))
            return KVI_MP_BROKEN;
        pending[depth]--;
        if (HEADS[*at].kind == HEAD_ARRAY || HEADS[*at].kind == HEAD_MAP) {
            if (depth == depth_max)
                return KVI_MP_TOO_DEEP;
            pending[++depth] = values;
        }
        at += bytes;
    }
}

/* The integer formats cc-cf and d0-d3: width 1, 2, 4, 8. */
static uint64_t load_integer(const uint8_t *at)
{
    switch (*at) {
    case 0xcc:
        return at[1];
    case 0xcd:
        return kvi_load_be16(at + 1);
    case 0xce:
        return kvi_load_be32(at + 1);
    case 0xd0:
        return (uint64_t)(int64_t)(int8_t)at[1];
    case 0xd1:
        return (uint64_t)(int64_t)(int16_t)kvi_load_be16(at + 1);
    case 0xd2:
        return (uint64_t)(int64_t)(int32_t)kvi_load_be32(at + 1);
    default: /* 0xcf, 0xd3 */
        return kvi_load_be64(at + 1);
    }
}

bool kvi_mp_take_wide_integer(struct kvi_mp_cursor *cursor, uint64_t *out, bool *negative)
{
    size_t left = kvi_mp_left(cursor);
    uint8_t first;

    if (left == 0)
        return false;
    first = *cursor->at;
    if (first <= 0x7f || first >= 0xe0) {
        *out = (uint64_t)(int64_t)(int8_t)first;
        *negative = first >= 0xe0;
        cursor->at++;
        return true;
    }
    if (first < 0xcc || first > 0xd3 || left < 1u + HEADS[first].width)
        return false;
    *out = load_integer(cursor->at);
    *negative = first >= 0xd0 && (int64_t)*out < 0;
    cursor->at += 1u + HEADS[first].width;
    return true;
}

bool kvi_mp_take_long_str(struct kvi_mp_cursor *cursor, struct kvg_str *out)
{
    size_t left = kvi_mp_left(cursor);
    const uint8_t *at = cursor->at;
    size_t taken = 1;
    size_t length;

    if (left == 0)
        return false;
    if (*at >= 0xa0 && *at <= 0xbf) {
        length = *at & 0x1fu;
    } else if ((*at >= 0xd9 && *at <= 0xdb) || (*at >= 0xc4 && *at <= 0xc6)) {
        taken += HEADS[*at].width;
        if (taken > left)
            return false;
        length = load_length(at + 1, HEADS[*at].width);
    } else {
        return false;
    }
    if (length > left - taken)
        return false;
    *out = (struct kvg_str){(const char *)at + taken, length};
    cursor->at = at + taken + length;
    return true;
}

/* The head of a container: one of `fix` to `fix` + 15, or `wide` (count of 2 bytes), or
 * `wide` + 1 (of 4 bytes). */
static bool take_head(struct kvi_mp_cursor *cursor, uint8_t fix, uint8_t wide,
    uint32_t values_each, uint32_t *count)
{
    size_t left = kvi_mp_left(cursor);
    const uint8_t *at = cursor->at;
    size_t taken = 1;
    uint32_t length;

    if (left == 0)
        return false;
    if ((*at & 0xf0u) == fix) {
        length = *at & 0x0fu;
    } else if (*at == wide || *at == wide + 1u) {
        taken += HEADS[*at].width;
        if (taken > left)
            return false;
        length = load_length(at + 1, HEADS[*at].width);
    } else {
        return false;
    }
    if ((uint64_t)length * values_each > left - taken)
        return false;
    *count = length;
    cursor->at = at + taken;
    return true;
}

bool kvi_mp_take_array(struct kvi_mp_cursor *cursor, uint32_t *count)
{
    return take_head(cursor, 0x90, 0xdc, 1, count);
}

bool kvi_mp_take_map(struct kvi_mp_cursor *cursor, uint32_t *count)
{
    return take_head(cursor, 0x80, 0xde, 2, count);
}

enum kvi_mp_type kvi_mp_type_of(uint8_t first)
{
    if (first <= 0x7f || first >= 0xe0 || (first >= 0xcc && first <= 0xd3))
        return KVI_MP_UINT;
    if (first <= 0x8f || first >= 0xde)
        return KVI_MP_MAP;
    if (first <= 0x9f || first >= 0xdc)
        return KVI_MP_ARRAY;
    if (first <= 0xbf || first >= 0xd9)
        return KVI_MP_STR;
    if (first == 0xc0)
        return KVI_MP_NIL;
    if (first == 0xc2 || first == 0xc3)
        return KVI_MP_BOOL;
    if (first >= 0xc4 && first <= 0xc6)
        return KVI_MP_BIN;
    return first == 0xca || first == 0xcb ? KVI_MP_FLOAT : KVI_MP_EXT;
}

static double load_float(const uint8_t *at)
{
    if (*at == 0xca) {
        uint32_t bits = kvi_load_be32(at + 1);
        float single;

        memcpy(&single, &bits, sizeof(single));
        return (double)single;
    } else {
        uint64_t bits = kvi_load_be64(at + 1);
        double real;

        memcpy(&real, &bits, sizeof(real));
        return real;
    }
}

/* Everything with a payload of bytes: c4-c9 and d4-d8.  `bytes` is the whole value. */
static void read_bytes(const uint8_t *at, size_t bytes, struct kvi_mp_value *out)
{
    bool fixext = *at >= 0xd4 && *at <= 0xd8;
    bool ext = fixext || (*at >= 0xc7 && *at <= 0xc9);
    size_t taken = fixext ? 2 : 1u + HEADS[*at].width + HEADS[*at].extra;

    out->type = ext ? KVI_MP_EXT : KVI_MP_BIN;
    if (ext)
        out->ext_type = (int8_t)at[taken - 1];
    out->str = (struct kvg_str){(const char *)at + taken, bytes - taken};
}

bool kvi_mp_read(struct kvi_mp_cursor *cursor, struct kvi_mp_value *out)
{
    const uint8_t *at = cursor->at;
    size_t bytes;
    uint64_t values;
    bool negative;

    *out = (struct kvi_mp_value){.type = KVI_MP_NIL};
    if (!measure(at, cursor->end, &bytes, &values))
        return false;
    if (kvi_mp_take_integer(cursor, &out->integer, &negative)) {
        out->type = negative ? KVI_MP_INT : KVI_MP_UINT;
        return true;
    }
    if (kvi_mp_take_array(cursor, &out->count)) {
        out->type = KVI_MP_ARRAY;
        return true;
    }
    if (kvi_mp_take_map(cursor, &out->count)) {
        out->type = KVI_MP_MAP;
        return true;
    }
    if (*at == 0xc2 || *at == 0xc3) {
        out->type = KVI_MP_BOOL;
        out->truth = *at == 0xc3;
    } else if (*at == 0xca || *at == 0xcb) {
        out->type = KVI_MP_FLOAT;
        out->real = load_float(at);
    } else if (*at >= 0xc4 && *at <= 0xd8) {
        read_bytes(at, bytes, out);
    } else if (*at != 0xc0) {
        out->type = KVI_MP_STR;
        return kvi_mp_take_str(cursor, &out->str);
    }
    cursor->at = at + bytes;
    return true;
}

/* Writing --------------------------------------------------------------------------------- */

#define CAPACITY_BYTES_MIN 1024u

void kvi_mp_buffer_init(struct kvi_mp_buffer *buffer, const struct kvg_alloc *alloc)
{
    *buffer = (struct kvi_mp_buffer){.alloc = alloc, .err = KVG_OK};
}

void kvi_mp_buffer_fini(struct kvi_mp_buffer *buffer)
{
    kvi_release_array(buffer->alloc, buffer->data, buffer->capacity, 1);
    buffer->data = NULL;
    buffer->capacity = 0;
    buffer->bytes = 0;
}

/* Makes room for `byte_count` more, doubling.  False if that failed, now or before. */
static bool reserve(struct kvi_mp_buffer *buffer, size_t byte_count)
{
    size_t capacity = buffer->capacity;
    size_t needed;
    void *data = buffer->data;

    if (buffer->err != KVG_OK)
        return false;
    if (byte_count <= capacity - buffer->bytes)
        return true;
    if (__builtin_add_overflow(buffer->bytes, byte_count, &needed) ||
        needed > SIZE_MAX / 2) {
        buffer->err = KVG_ENOMEM;
        return false;
    }
    if (capacity < CAPACITY_BYTES_MIN)
        capacity = CAPACITY_BYTES_MIN;
    while (capacity < needed)
        capacity *= 2;
    if (!kvi_resize_array(buffer->alloc, &data, buffer->capacity, capacity, 1)) {
        buffer->err = KVG_ENOMEM;
        return false;
    }
    buffer->data = data;
    buffer->capacity = capacity;
    return true;
}

void kvi_mp_put_bytes(struct kvi_mp_buffer *buffer, const void *bytes, size_t byte_count)
{
    if (byte_count == 0 || !reserve(buffer, byte_count))
        return;
    memcpy(buffer->data + buffer->bytes, bytes, byte_count);
    buffer->bytes += byte_count;
}

/* A first byte, then `value` big-endian in `width` bytes. */
static void put_head(
    struct kvi_mp_buffer *buffer, uint8_t first, uint64_t value, size_t width)
{
    uint8_t bytes[9];
    size_t i;

    bytes[0] = first;
    for (i = 0; i < width; i++)
        bytes[1 + i] = (uint8_t)(value >> (8 * (width - 1 - i)));
    kvi_mp_put_bytes(buffer, bytes, 1 + width);
}

void kvi_mp_put_nil(struct kvi_mp_buffer *buffer)
{
    put_head(buffer, 0xc0, 0, 0);
}

void kvi_mp_put_bool(struct kvi_mp_buffer *buffer, bool truth)
{
    put_head(buffer, truth ? 0xc3 : 0xc2, 0, 0);
}

void kvi_mp_put_uint(struct kvi_mp_buffer *buffer, uint64_t value)
{
    if (value <= 0x7f)
        put_head(buffer, (uint8_t)value, 0, 0);
    else if (value <= UINT8_MAX)
        put_head(buffer, 0xcc, value, 1);
    else if (value <= UINT16_MAX)
        put_head(buffer, 0xcd, value, 2);
    else if (value <= UINT32_MAX)
        put_head(buffer, 0xce, value, 4);
    else
        put_head(buffer, 0xcf, value, 8);
}

void kvi_mp_put_int(struct kvi_mp_buffer *buffer, int64_t value)
{
    if (value >= 0)
        kvi_mp_put_uint(buffer, (uint64_t)value);
    else if (value >= -32)
        put_head(buffer, (uint8_t)value, 0, 0);
    else if (value >= INT8_MIN)
        put_head(buffer, 0xd0, (uint64_t)value, 1);
    else if (value >= INT16_MIN)
        put_head(buffer, 0xd1, (uint64_t)value, 2);
    else if (value >= INT32_MIN)
        put_head(buffer, 0xd2, (uint64_t)value, 4);
    else
        put_head(buffer, 0xd3, (uint64_t)value, 8);
}

void kvi_mp_put_double(struct kvi_mp_buffer *buffer, double value)
{
    uint64_t bits;

    memcpy(&bits, &value, sizeof(bits));
    put_head(buffer, 0xcb, bits, 8);
}

/* The head of something with a length of up to 32 bits; `eight` is its form with one byte, 0
 * if there is none. */
static void put_length(
    struct kvi_mp_buffer *buffer, uint8_t eight, uint8_t sixteen, uint64_t length)
{
    if (eight != 0 && length <= UINT8_MAX) {
        put_head(buffer, eight, length, 1);
    } else if (length <= UINT16_MAX) {
        put_head(buffer, sixteen, length, 2);
    } else if (length <= UINT32_MAX) {
        put_head(buffer, (uint8_t)(sixteen + 1), length, 4);
    } else if (buffer->err == KVG_OK) {
        buffer->err = KVG_EINVAL;
    }
}

void kvi_mp_put_str(struct kvi_mp_buffer *buffer, struct kvg_str str)
{
    if (str.bytes <= 31)
        put_head(buffer, (uint8_t)(0xa0 | str.bytes), 0, 0);
    else
        put_length(buffer, 0xd9, 0xda, str.bytes);
    kvi_mp_put_bytes(buffer, str.data, str.bytes);
}

void kvi_mp_put_bin(struct kvi_mp_buffer *buffer, struct kvg_str bytes)
{
    put_length(buffer, 0xc4, 0xc5, bytes.bytes);
    kvi_mp_put_bytes(buffer, bytes.data, bytes.bytes);
}

void kvi_mp_put_array(struct kvi_mp_buffer *buffer, uint64_t count)
{
    if (count <= 15)
        put_head(buffer, (uint8_t)(0x90 | count), 0, 0);
    else
        put_length(buffer, 0, 0xdc, count);
}

void kvi_mp_put_map(struct kvi_mp_buffer *buffer, uint64_t count)
{
    if (count <= 15)
        put_head(buffer, (uint8_t)(0x80 | count), 0, 0);
    else
        put_length(buffer, 0, 0xde, count);
}

void kvi_mp_put_ext(struct kvi_mp_buffer *buffer, int8_t type, struct kvg_str bytes)
{
    switch (bytes.bytes) {
    case 1:
        put_head(buffer, 0xd4, 0, 0);
        break;
    case 2:
        put_head(buffer, 0xd5, 0, 0);
        break;
    case 4:
        put_head(buffer, 0xd6, 0, 0);
        break;
    case 8:
        put_head(buffer, 0xd7, 0, 0);
        break;
    case 16:
        put_head(buffer, 0xd8, 0, 0);
        break;
    default:
        put_length(buffer, 0xc7, 0xc8, bytes.bytes);
        break;
    }
    kvi_mp_put_bytes(buffer, &type, 1);
    kvi_mp_put_bytes(buffer, bytes.data, bytes.bytes);
}
