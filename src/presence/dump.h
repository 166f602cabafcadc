/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* dump.h -- the form of a dump, for its writer and its reader (docs/dump-format.md).
 *
 *     header | block | block | ... | end block          all numbers little-endian
 *
 *     header:  "KVGPRES\n"  u32 version  u32 key bytes  u64 pages  u64 checksum
 *     block:   u32 kind  u32 payload bytes  payload  u64 checksum
 *
 * A checksum is the first 8 bytes of SHA-256 over the checksum before it (0 before the header's)
 * and what stands between the two: so blocks cannot be exchanged, repeated or left out unseen.
 */
#ifndef KVI_PRESENCE_DUMP_H
#define KVI_PRESENCE_DUMP_H

#include "presence/index.h"

#define DUMP_VERSION 1u
#define DUMP_HEADER_BYTES 24u /* Without its checksum. */
#define DUMP_PAYLOAD_MAX 4096u
#define DUMP_CHECKSUM_BYTES 8u
static const char DUMP_MAGIC[8] = {'K', 'V', 'G', 'P', 'R', 'E', 'S', '\n'};

enum dump_kind {
    /* u16 tenant bytes, tenant, u16 prefix bytes, prefix.  Spaces count up from 0. */
    DUMP_SPACE = 1,
    /* u16 space, u16 number of the first, u16 count; for each u8 bytes, suffix. */
    DUMP_SUFFIXES = 2,
    /* Pages: u16 space, key bytes, u32 age << 12 | depth, u8 groups, then without groups
     * u16 cpu, u16 disk, else for each group u64 cpu, u64 disk. */
    DUMP_PAGES = 3,
    /* u64 pages in all. */
    DUMP_END = 4
};
#define DUMP_PAGE_BYTES_MAX (2u + 32u + 4u + 1u + 64u * 16u)
#define DUMP_PAGE_BYTES_MIN (2u + 16u + 4u + 1u + 4u)
#define DUMP_GROUPS_MAX 64u

/* Bytes with a position, for numbers.  `failed` sticks. */
struct dump_buffer {
    uint8_t bytes[DUMP_CHECKSUM_BYTES + 8 + DUMP_PAYLOAD_MAX + DUMP_CHECKSUM_BYTES];
    size_t at;
    size_t end;
    bool failed;
};

static inline void dump_put(struct dump_buffer *buffer, uint64_t value, size_t bytes)
{
    KVI_ASSERT(buffer->at + bytes <= sizeof(buffer->bytes));
    memcpy(buffer->bytes + buffer->at, &value, bytes); /* Little-endian machines only. */
    buffer->at += bytes;
}

static inline uint64_t dump_get(struct dump_buffer *buffer, size_t bytes)
{
    uint64_t value = 0;

    if (bytes > buffer->end - buffer->at) {
        buffer->failed = true;
        return 0;
    }
    memcpy(&value, buffer->bytes + buffer->at, bytes);
    buffer->at += bytes;
    return value;
}

static inline struct kvg_str dump_get_str(struct dump_buffer *buffer, size_t bytes)
{
    struct kvg_str str = {(const char *)buffer->bytes + buffer->at, bytes};

    if (bytes > buffer->end - buffer->at) {
        buffer->failed = true;
        return (struct kvg_str){NULL, 0};
    }
    buffer->at += bytes;
    return str;
}

#endif
