/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* tokens.h -- token ids from wherever a person has them. */
#ifndef KVC_TOKENS_H
#define KVC_TOKENS_H

#include <kvgraft/base.h>

#define KVC_TOKENS_MAX (16u << 20)
#define KVC_TOKEN_FILE_BYTES_MAX (256u << 20)

struct kvc_tokens {
    uint32_t *ids;
    size_t count;
    size_t capacity; /* Private. */
};

/* How bytes hold tokens.  AUTO looks: '[' or '{' begins JSON, digits and separators are text,
 * anything else is u32 LE. */
enum kvc_token_format {
    KVC_TOKENS_AUTO,
    KVC_TOKENS_JSON, /* An array, or an object with "tokens" or "token_ids". */
    KVC_TOKENS_TEXT, /* Numbers and ranges: "1,2,3", "1 2 3", "1..64". */
    KVC_TOKENS_U32   /* Little-endian words. */
};
#define KVC_TOKEN_FORMATS "auto|json|text|u32"

/* Appends what the bytes hold.  On failure *tokens is as before and *error says where. */
KVG_MUST_CHECK kvg_err kvc_tokens_add(struct kvc_tokens *tokens, struct kvg_str bytes,
    enum kvc_token_format format, struct kvg_error *error);

/* Appends `count` consecutive ids from `first` on. */
KVG_MUST_CHECK kvg_err kvc_tokens_add_run(
    struct kvc_tokens *tokens, uint32_t first, size_t count, struct kvg_error *error);

/* The tokens of a command line: arguments as text, else a file ("-": stdin). */
KVG_MUST_CHECK kvg_err kvc_tokens_of_arguments(struct kvc_tokens *tokens,
    char **arguments, int argument_count, const char *file, enum kvc_token_format format,
    struct kvg_error *error);

void kvc_tokens_fini(struct kvc_tokens *tokens);

#endif
