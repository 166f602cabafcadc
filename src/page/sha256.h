/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* sha256.h -- SHA-256 the way a chain of pages wants it.
 *
 * The unit of work is not a message but a chain: the digest of one page is the beginning of
 * the next page's message.  So a path (SHA-NI, ARMv8, portable) offers, beside the plain
 * compression of blocks, a kernel that runs one chain, and one that runs two side by side.
 * The kernel keeps the digest in registers and reads blocks straight from token memory; what
 * all pages of a chain have in common (block count, padding) is worked out once, in a plan.
 *
 *     message of a page    | prior key | units ...                      | 80 00.. | length |
 *     in 16-byte quads     |  0  |  1  |  0 |  1 |  2 |  3 | ... | last  |   ...   |   ..   |
 *     in 64-byte blocks    |        block 0      |  direct blocks | tail: 1 or 2 blocks     |
 */
#ifndef KVI_PAGE_SHA256_H
#define KVI_PAGE_SHA256_H

#include <kvgraft/page.h>

#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "kvgraft reads token memory as little-endian bytes: this machine is not supported"
#endif

#define KVI_SHA256_BLOCK_BYTES 64u
#define KVI_SHA256_TAIL_BYTES 128u

/* What all pages of a chain share.  Quads are counted from the first unit of the page. */
struct kvi_chain_plan {
    uint32_t page_tokens;   /* From one page's first token to the next page's. */
    uint32_t quad_tokens;   /* From one quad's first token to the next's: 4, EAGLE 2. */
    uint32_t prior_quads;   /* 2 with a prior key, 0 without. */
    uint32_t direct_blocks; /* Leading blocks without padding. */
    uint32_t tail_blocks;   /* The blocks after them: 1 or 2. */
    uint32_t tail_offset;   /* Of the first unit in the tail, in bytes. */
    uint32_t tail_quad;     /* The first quad that is in the tail. */
    uint32_t tail_quads;    /* Whole quads in the tail. */
    uint32_t rest_bytes;    /* Bytes of units after the last whole quad. */
    _Alignas(16) uint8_t tail[KVI_SHA256_TAIL_BYTES]; /* Padding; units still zero. */
};

/* Where one chain stands.  The kernel advances all three. */
struct kvi_chain_lane {
    const uint32_t *tokens; /* The next page's first. */
    const uint8_t *prior;   /* 32 bytes; not read if the plan has no prior. */
    uint8_t *out;           /* 32 bytes a page. */
};

struct kvi_sha256_path {
    const char *name;
    void (*compress)(uint32_t state[8], const uint8_t *blocks, size_t block_count);
    void (*chain1)(const struct kvi_chain_plan *plan, struct kvi_chain_lane *lane,
        size_t page_count);
    void (*chain2)(const struct kvi_chain_plan *plan, struct kvi_chain_lane *a,
        struct kvi_chain_lane *b, size_t page_count);
};

/* The 64 round constants. */
extern const uint32_t kvi_sha256_k[64];

extern const struct kvi_sha256_path kvi_sha256_portable;

/* The hardware path of this build if the machine has it, else NULL. */
const struct kvi_sha256_path *kvi_sha256_hardware(void);

/* The path in use: the hardware's if there is one. */
const struct kvi_sha256_path *kvi_sha256_best(void);

void kvi_chain_plan_init(
    struct kvi_chain_plan *plan, const struct kvg_page_rule *rule, bool has_prior);

/* SHA-256 of `bytes` by a given path. */
void kvi_sha256_with(const struct kvi_sha256_path *path, const void *bytes,
    size_t byte_count, uint8_t out[32]);

/* The same, of bytes that come in runs. */
struct kvi_sha256 {
    const struct kvi_sha256_path *path;
    uint32_t state[8];
    uint64_t byte_count;
    uint8_t block[KVI_SHA256_BLOCK_BYTES];
};
void kvi_sha256_init(struct kvi_sha256 *sha, const struct kvi_sha256_path *path);
void kvi_sha256_update(struct kvi_sha256 *sha, const void *bytes, size_t byte_count);
void kvi_sha256_final(struct kvi_sha256 *sha, uint8_t out[32]);

/* The page keys with a given path; kvg_page_keys() and the batch take the best one. */
size_t kvi_page_keys_with(const struct kvi_sha256_path *path,
    const struct kvg_page_rule *rule, const struct kvg_key *prior, const uint32_t *tokens,
    size_t token_count, struct kvg_key *keys, size_t key_max);
void kvi_page_keys_batch_with(const struct kvi_sha256_path *path,
    const struct kvg_page_rule *rule, struct kvg_page_job *jobs, size_t job_count);

#endif
