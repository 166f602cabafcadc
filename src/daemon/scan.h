/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* scan.h -- takes the long arrays out of a JSON request without building a tree.
 *
 * A prompt of 32,768 tokens costs a JSON library some thirty times what hashing it costs.  So the
 * arrays of numbers are read by a scanner of our own, and what is left of the object, a few short
 * members, is handed to the library:
 *
 *     {"tokens":[1,2,3],"tenant":"a"}   -->   1 2 3   and   {"tokens":null,"tenant":"a"}
 *
 * Threads: pure.
 */
#ifndef KVD_SCAN_H
#define KVD_SCAN_H

#include "daemon/out.h"

/* Where numbers go; grows, bounded by what the text can hold. */
struct kvd_scan {
    const struct kvg_alloc *alloc;
    uint32_t *tokens;
    size_t token_count;
    size_t token_capacity;
    bool has_tokens; /* There was a token array, maybe an empty one. */
    struct kvg_key *keys;
    size_t key_count;
    size_t key_capacity;
    bool has_keys;
    size_t *prompt_ends; /* With "prompts": where each ends in `tokens`. */
    size_t prompt_count;
    size_t prompt_capacity;
    bool has_prompts;
    struct kvd_out rest; /* The object without them. */
};

void kvd_scan_init(struct kvd_scan *scan, const struct kvg_alloc *alloc);
void kvd_scan_fini(struct kvd_scan *scan);
/* Empties it; keeps memory up to `keep_bytes_max` of each buffer. */
void kvd_scan_reset(struct kvd_scan *scan, size_t keep_bytes_max);

#define KVD_PROMPTS_MAX 1024u

/* Reads an object.  Members "tokens", "token_ids" are arrays of numbers 0 to 2^32 - 1; "prompts" is
 * an array of at most KVD_PROMPTS_MAX such arrays; "page_keys", "block_hashes", "seq_hashes" are
 * arrays of strings of 64 hex digits.  KVG_EFORMAT or KVG_ELIMIT with
 * the member and its index, e.g. "tokens[17]"; KVG_ENOMEM. */
KVG_MUST_CHECK kvg_err kvd_scan_json(
    struct kvd_scan *scan, struct kvg_str text, struct kvg_error *error);
/* u32 little-endian, nothing else. */
KVG_MUST_CHECK kvg_err kvd_scan_binary(
    struct kvd_scan *scan, struct kvg_str bytes, struct kvg_error *error);

#endif
