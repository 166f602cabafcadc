/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* layout.h -- how a model's pages are stored: the parts of a page, and their names.
 *
 * A *part* is one stored object of a page: one rank's k, one rank's v, one pool's state.  Its
 * name in the store, the object key, is
 *
 *     [prefix_]HEX suffix        prefix: tag and model name joined by '_'; HEX: the page key
 *
 * A layout is compiled once from what a worker advertises; it never changes and may be read by
 * any thread.  Object keys are parsed from the right, since model names contain '_'.
 *
 * Errors: a bad configuration names the field ("tp_size") and the limit.
 */
#ifndef KVGRAFT_LAYOUT_H
#define KVGRAFT_LAYOUT_H

#include <kvgraft/page.h>

KVG_BEGIN_DECLS

#define KVG_LAYOUT_RANKS_MAX 1024u /* tp_size, tp_lcm_size. */
#define KVG_LAYOUT_STAGES_MAX 256u /* pp_size. */
#define KVG_LAYOUT_PARTS_MAX 4096u /* Parts a page, over all pools. */
#define KVG_LAYOUT_POOLS_MAX 32u
#define KVG_LAYOUT_PREFIX_BYTES_MAX 255u /* tag + '_' + model prefix. */
#define KVG_LAYOUT_SUFFIX_BYTES_MAX 63u
#define KVG_OBJECT_KEY_BYTES_MAX \
    (KVG_LAYOUT_PREFIX_BYTES_MAX + 1u + 64u + KVG_LAYOUT_SUFFIX_BYTES_MAX)

/* Which pages of a prefix a pool must hold for the prefix to be restorable. */
enum kvg_pool_policy {
    KVG_POOL_ALL_PAGES,     /* Every page. */
    KVG_POOL_TRAILING_PAGES /* The last `trailing_pages` before the point of stopping. */
};

/* One pool of an advertised multi-pool layout. */
struct kvg_layout_pool {
    struct kvg_str name; /* For people; may be empty. */
    /* Whole suffixes, e.g. "__deepseek_v4_c4": each begins with '_', none is given twice. */
    const struct kvg_str *suffixes;
    size_t suffix_count;
    enum kvg_pool_policy policy;
    uint32_t trailing_pages; /* At least 1 with KVG_POOL_TRAILING_PAGES, else 0. */
};

/* What a worker advertises.  Zero-fill, then set what applies. */
struct kvg_layout_config {
    size_t struct_bytes;
    struct kvg_page_rule rule;
    uint32_t tp_size;     /* 0 counts as 1, as in the seed client. */
    uint32_t pp_size;     /* 0 counts as 1. */
    uint32_t tp_lcm_size; /* 0: not given.  Matters only with split heads. */
    bool mla;             /* One k part a stage, whatever the ranks. */
    bool split_heads;
    struct kvg_str tag; /* extra_backend_tag; empty counts as absent. */
    /* Served model name with '/' turned into '-'; empty counts as absent. */
    struct kvg_str model_prefix;
    const struct kvg_layout_pool *pools; /* If any, they replace the k and v parts. */
    size_t pool_count;
    struct kvg_str
        key_prefix; /* Advertised prefix, without the '_' behind it: replaces tag
                                * and model prefix in object keys, not in group ids.  Absent
                                * is {NULL, 0}; present and empty means no prefix. */
};

struct kvg_layout;

/* Compiles a layout.  KVG_EINVAL or KVG_ELIMIT with the field in *error, by the name it is
 * advertised under ("tp_size", "extra_backend_tag", "pools[2].suffixes[1]"); KVG_ENOMEM. */
KVG_API KVG_MUST_CHECK kvg_err kvg_layout_new(const struct kvg_alloc *alloc,
    const struct kvg_layout_config *config, struct kvg_error *error,
    struct kvg_layout **out);
KVG_API void kvg_layout_free(struct kvg_layout *layout);

KVG_API struct kvg_page_rule kvg_layout_rule(const struct kvg_layout *layout);
KVG_API uint32_t kvg_layout_part_count(const struct kvg_layout *layout);
KVG_API struct kvg_str kvg_layout_prefix(const struct kvg_layout *layout);
/* The suffix of a part, e.g. "_0_k".  Lives as long as the layout. */
KVG_API struct kvg_str kvg_layout_suffix(const struct kvg_layout *layout, uint32_t part);
/* The trailing pages a part is needed for; 0 if it is needed for every page. */
KVG_API uint32_t kvg_layout_part_trailing(const struct kvg_layout *layout, uint32_t part);
/* Whether two layouts name the same parts in the same way for the same pages. */
KVG_API bool kvg_layout_equal(const struct kvg_layout *a, const struct kvg_layout *b);

/* Writes the object key of a part, in the seed's order of parts, and a zero.  Returns its bytes
 * without the zero; `out` needs KVG_OBJECT_KEY_BYTES_MAX + 1. */
KVG_API size_t kvg_layout_object_key(
    const struct kvg_layout *layout, const struct kvg_key *key, uint32_t part, char *out);

/* "sglang-hicache:[tag_][model_]HEX", as writers label a page's objects, and a zero.  Returns
 * its bytes without the zero; `out` needs KVG_GROUP_ID_BYTES_MAX + 1. */
#define KVG_GROUP_ID_BYTES_MAX (15u + KVG_LAYOUT_PREFIX_BYTES_MAX + 1u + 64u)
KVG_API size_t kvg_layout_group_id(
    const struct kvg_layout *layout, const struct kvg_key *key, char *out);

/* An object key, taken apart.  The strings point into the key that was parsed. */
struct kvg_object_key {
    struct kvg_str prefix; /* Without its '_'; empty if there is none. */
    struct kvg_key key;
    struct kvg_str suffix; /* With its leading '_'; at least 2 bytes. */
};

/* Takes an object key apart, from the right.  False, and *out zero, if it has no 64 lower-case
 * hex digits in the right place (a foreign object: warm-up keys, other engines), or is over the
 * limits.  Putting the three together again gives the same bytes. */
KVG_API bool kvg_object_key_parse(struct kvg_str text, struct kvg_object_key *out);

/* The part of this layout that the object key names, or -1: other prefix or suffix. */
KVG_API int32_t kvg_layout_part_of(
    const struct kvg_layout *layout, const struct kvg_object_key *object);

KVG_END_DECLS

#endif
