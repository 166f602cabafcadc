/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* chain_kernel.h -- the chain kernels, written once and compiled for each path.
 *
 * A path's file defines, then includes this:
 *
 *     TARGET, INLINE              what every function needs (the target), and a small one
 *     quad                        four message words
 *     hash                        the eight state words
 *     load_raw(p), store_raw(p, q)    16 bytes as they lie in memory
 *     load_pair(p)                8 bytes at p, then 8 bytes at p + 4: two EAGLE units
 *     words(q)                    bytes to message words and back (big-endian)
 *     hash_start()                the initial state
 *     hash_words(h, &w0, &w1)     the state as message words: the next page's first 8
 *     compress1(&h, m), compress2(&h, m, &g, n)     one block; m and n are quad[4]
 *
 * The digest of a page never goes through memory on its way into the next page: it is
 * already the message words that the next block 0 begins with.
 */

/* Sixteen bytes of units. */
INLINE quad load_units(
    const struct kvi_chain_plan *plan, const uint32_t *tokens, size_t index)
{
    const uint32_t *at = tokens + index * plan->quad_tokens;

    return plan->quad_tokens == 4 ? load_raw(at) : load_pair(at);
}

/* Puts the units that share a block with the padding in front of it. */
INLINE void fill_tail(
    const struct kvi_chain_plan *plan, const uint32_t *tokens, uint8_t *tail)
{
    uint8_t *at = tail + plan->tail_offset;
    size_t index = plan->tail_quad;
    size_t i;

    for (i = 0; i < plan->tail_quads; i++, at += 16)
        store_raw(at, load_units(plan, tokens, index + i));
    if (plan->rest_bytes != 0)
        memcpy(at, tokens + (index + i) * plan->quad_tokens, plan->rest_bytes);
}

/* The words of block `index`.  Those of the prior are in w0 and w1. */
INLINE void load_block(const struct kvi_chain_plan *plan, const uint32_t *tokens,
    const uint8_t *tail, size_t index, quad w0, quad w1, quad m[4])
{
    bool after_prior = index == 0 && plan->prior_quads != 0;

    if (index < plan->direct_blocks) {
        size_t first =
            4 * index - plan->prior_quads; /* Wraps if after_prior: not used. */

        m[0] = after_prior ? w0 : words(load_units(plan, tokens, first));
        m[1] = after_prior ? w1 : words(load_units(plan, tokens, first + 1));
        m[2] = words(load_units(plan, tokens, first + 2));
        m[3] = words(load_units(plan, tokens, first + 3));
    } else {
        const uint8_t *at = tail + (index - plan->direct_blocks) * 64;

        m[0] = after_prior ? w0 : words(load_raw(at));
        m[1] = after_prior ? w1 : words(load_raw(at + 16));
        m[2] = words(load_raw(at + 32));
        m[3] = words(load_raw(at + 48));
    }
}

TARGET static void chain1(
    const struct kvi_chain_plan *plan, struct kvi_chain_lane *lane, size_t page_count)
{
    _Alignas(16) uint8_t tail[KVI_SHA256_TAIL_BYTES];
    size_t block_count = plan->direct_blocks + plan->tail_blocks;
    const uint32_t *tokens = lane->tokens;
    uint8_t *out = lane->out;
    quad w0 = words(load_raw(plan->tail)); /* Any value: only read with a prior. */
    quad w1 = w0;
    quad m[4];

    memcpy(tail, plan->tail, sizeof(tail));
    if (plan->prior_quads != 0) {
        w0 = words(load_raw(lane->prior));
        w1 = words(load_raw(lane->prior + 16));
    }
    for (; page_count != 0; page_count--) {
        hash h = hash_start();
        size_t i;

        fill_tail(plan, tokens, tail);
        for (i = 0; i < block_count; i++) {
            load_block(plan, tokens, tail, i, w0, w1, m);
            compress1(&h, m);
        }
        hash_words(h, &w0, &w1);
        store_raw(out, words(w0));
        store_raw(out + 16, words(w1));
        tokens += plan->page_tokens;
        out += 32;
    }
    if (out != lane->out)
        lane->prior = out - 32;
    lane->tokens = tokens;
    lane->out = out;
}

TARGET static void chain2(const struct kvi_chain_plan *plan, struct kvi_chain_lane *a,
    struct kvi_chain_lane *b, size_t page_count)
{
    _Alignas(16) uint8_t tail_a[KVI_SHA256_TAIL_BYTES];
    _Alignas(16) uint8_t tail_b[KVI_SHA256_TAIL_BYTES];
    size_t block_count = plan->direct_blocks + plan->tail_blocks;
    quad a0 = words(load_raw(plan->tail));
    quad a1 = a0;
    quad b0 = a0;
    quad b1 = a0;
    quad m[4];
    quad n[4];

    memcpy(tail_a, plan->tail, sizeof(tail_a));
    memcpy(tail_b, plan->tail, sizeof(tail_b));
    if (plan->prior_quads != 0) {
        a0 = words(load_raw(a->prior));
        a1 = words(load_raw(a->prior + 16));
        b0 = words(load_raw(b->prior));
        b1 = words(load_raw(b->prior + 16));
    }
    for (; page_count != 0; page_count--) {
        hash h = hash_start();
        hash g = hash_start();
        size_t i;

        fill_tail(plan, a->tokens, tail_a);
        fill_tail(plan, b->tokens, tail_b);
        for (i = 0; i < block_count; i++) {
            load_block(plan, a->tokens, tail_a, i, a0, a1, m);
            load_block(plan, b->tokens, tail_b, i, b0, b1, n);
            compress2(&h, m, &g, n);
        }
        hash_words(h, &a0, &a1);
        hash_words(g, &b0, &b1);
        store_raw(a->out, words(a0));
        store_raw(a->out + 16, words(a1));
        store_raw(b->out, words(b0));
        store_raw(b->out + 16, words(b1));
        a->prior = a->out;
        b->prior = b->out;
        a->tokens += plan->page_tokens;
        b->tokens += plan->page_tokens;
        a->out += 32;
        b->out += 32;
    }
}
