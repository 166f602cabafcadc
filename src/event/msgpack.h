/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* msgpack.h -- MessagePack over bytes: a cursor that reads, a buffer that writes.
 *
 * Reading allocates nothing and never goes past `end`.  A cursor is two pointers; a read that
 * fails leaves `at` where it was.  A container's count is not believed: it is refused unless
 * so many values could still follow (each takes a byte at least).
 *
 * Writing uses the shortest form of everything, as the publishers in the field do.
 */
#ifndef KVI_EVENT_MSGPACK_H
#define KVI_EVENT_MSGPACK_H

#include <kvgraft/base.h>

#include <string.h>

struct kvi_mp_cursor {
    const uint8_t *at;
    const uint8_t *end;
};

enum kvi_mp_type {
    KVI_MP_NIL,
    KVI_MP_BOOL,
    KVI_MP_UINT, /* 0 and up, of any width, also the signed formats. */
    KVI_MP_INT,  /* Below 0. */
    KVI_MP_FLOAT,
    KVI_MP_STR,
    KVI_MP_BIN,
    KVI_MP_EXT,
    KVI_MP_ARRAY,
    KVI_MP_MAP
};

/* One value; of an array or a map only its head. */
struct kvi_mp_value {
    enum kvi_mp_type type;
    uint32_t count;     /* ARRAY: elements; MAP: pairs. */
    bool truth;         /* BOOL. */
    int8_t ext_type;    /* EXT. */
    uint64_t integer;   /* UINT; INT: bit-cast. */
    double real;        /* FLOAT. */
    struct kvg_str str; /* STR, BIN, EXT: the bytes, in place. */
};

static inline size_t kvi_mp_left(const struct kvi_mp_cursor *cursor)
{
    return (size_t)(cursor->end - cursor->at);
}

static inline uint16_t kvi_load_be16(const uint8_t *bytes)
{
    uint16_t value;

    memcpy(&value, bytes, sizeof(value));
    return __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? __builtin_bswap16(value) : value;
}

static inline uint32_t kvi_load_be32(const uint8_t *bytes)
{
    uint32_t value;

    memcpy(&value, bytes, sizeof(value));
    return __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? __builtin_bswap32(value) : value;
}

static inline uint64_t kvi_load_be64(const uint8_t *bytes)
{
    uint64_t value;

    memcpy(&value, bytes, sizeof(value));
    return __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? __builtin_bswap64(value) : value;
}

/* The type of the value that begins with this byte; of an integer KVI_MP_UINT, whatever its
 * sign, and KVI_MP_EXT for the byte that begins none. */
enum kvi_mp_type kvi_mp_type_of(uint8_t first);

/* Reads the next value, or the head of the next container.  False, and nothing consumed, where
 * the bytes end too early, a count cannot be true, or the byte is 0xc1. */
bool kvi_mp_read(struct kvi_mp_cursor *cursor, struct kvi_mp_value *out);

/* Reads nil, if that is next. */
static inline bool kvi_mp_take_nil(struct kvi_mp_cursor *cursor)
{
    if (cursor->at == cursor->end || *cursor->at != 0xc0)
        return false;
    cursor->at++;
    return true;
}

/* Reads a string (str of any width, or bin), if that is next and whole.  Short ones are read in
 * place. */
bool kvi_mp_take_long_str(struct kvi_mp_cursor *cursor, struct kvg_str *out);

static inline bool kvi_mp_take_str(struct kvi_mp_cursor *cursor, struct kvg_str *out)
{
    const uint8_t *at = cursor->at;
    size_t left = kvi_mp_left(cursor);

    if (left != 0 && (*at & 0xe0u) == 0xa0 && (*at & 0x1fu) < left) {
        *out = (struct kvg_str){(const char *)at + 1, *at & 0x1fu};
        cursor->at = at + 1 + out->bytes;
        return true;
    }
    return kvi_mp_take_long_str(cursor, out);
}

/* Reads an integer of any width and sign, if that is next; *negative says how to take it.  The
 * forms that token numbers have are read in place, the others by a call. */
bool kvi_mp_take_wide_integer(
    struct kvi_mp_cursor *cursor, uint64_t *out, bool *negative);

static inline bool kvi_mp_take_integer(
    struct kvi_mp_cursor *cursor, uint64_t *out, bool *negative)
{
    const uint8_t *at = cursor->at;
    size_t left = kvi_mp_left(cursor);

    *negative = false;
    if (left >= 5 && *at == 0xce) {
        *out = kvi_load_be32(at + 1);
        cursor->at = at + 5;
        return true;
    }
    if (left >= 3 && *at == 0xcd) {
        *out = kvi_load_be16(at + 1);
        cursor->at = at + 3;
        return true;
    }
    if (left != 0 && *at <= 0x7f) {
        *out = *at;
        cursor->at = at + 1;
        return true;
    }
    return kvi_mp_take_wide_integer(cursor, out, negative);
}

/* Reads the head of an array or a map, if that is next. */
bool kvi_mp_take_array(struct kvi_mp_cursor *cursor, uint32_t *count);
bool kvi_mp_take_map(struct kvi_mp_cursor *cursor, uint32_t *count);

#define KVI_MP_DEPTH_MAX 32u

enum kvi_mp_skip {
    KVI_MP_SKIPPED,
    KVI_MP_TOO_DEEP, /* More than depth_max containers inside each other. */
    KVI_MP_BROKEN    /* The bytes end too early, or are no MessagePack. */
};

/* Skips one whole value.  A plain value has depth 0, an empty array 1; depth_max is at most
 * KVI_MP_DEPTH_MAX.  Nothing is consumed unless the result is KVI_MP_SKIPPED. */
enum kvi_mp_skip kvi_mp_skip(struct kvi_mp_cursor *cursor, uint32_t depth_max);

/* Skips `count` whole values of any depth: only bytes are counted, nothing is nested in here. */
bool kvi_mp_skip_flat(struct kvi_mp_cursor *cursor, uint64_t count);

/* The buffer that grows.  `err` is the first failure, and sticks. */
struct kvi_mp_buffer {
    const struct kvg_alloc *alloc;
    uint8_t *data;
    size_t bytes;
    size_t capacity;
    kvg_err err;
};

void kvi_mp_buffer_init(struct kvi_mp_buffer *buffer, const struct kvg_alloc *alloc);
void kvi_mp_buffer_fini(struct kvi_mp_buffer *buffer);

void kvi_mp_put_bytes(struct kvi_mp_buffer *buffer, const void *bytes, size_t byte_count);
void kvi_mp_put_nil(struct kvi_mp_buffer *buffer);
void kvi_mp_put_bool(struct kvi_mp_buffer *buffer, bool truth);
void kvi_mp_put_uint(struct kvi_mp_buffer *buffer, uint64_t value);
void kvi_mp_put_int(struct kvi_mp_buffer *buffer, int64_t value);
void kvi_mp_put_double(struct kvi_mp_buffer *buffer, double value);
void kvi_mp_put_str(struct kvi_mp_buffer *buffer, struct kvg_str str);
void kvi_mp_put_bin(struct kvi_mp_buffer *buffer, struct kvg_str bytes);
void kvi_mp_put_array(struct kvi_mp_buffer *buffer, uint64_t count);
void kvi_mp_put_map(struct kvi_mp_buffer *buffer, uint64_t count);

void kvi_mp_put_ext(struct kvi_mp_buffer *buffer, int8_t type, struct kvg_str bytes);

#endif
