/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* dynamo_lookup.c -- lookups of the profile "dynamo-1.5".
 *
 * Each page is asked for by name: its group, if that is known to be whole; else every object
 * key of the layout, one after the other, and then the group is known to be whole.  Names are
 * made in a buffer, a page at a time; nothing is allocated, whatever sizes workers advertise.
 */
#include "source/dynamo_state.h"

#include "base/assert.h"
#include "base/fmt.h"
#include "base/hex.h"

#include <string.h>

#define GROUP_PREFIX "sglang-hicache:"
#define KEYS_AT_ONCE 64u
#define NAME_BYTES_MAX 512u

_Static_assert(
    sizeof(GROUP_PREFIX) + KVG_LAYOUT_PREFIX_BYTES_MAX + 1 + 64 + 32 < NAME_BYTES_MAX,
    "the longest name fits");

/* A page's names: the group prefix, then what group and object keys share, then a suffix. */
struct page_name {
    char text[NAME_BYTES_MAX];
    size_t stem; /* Up to here it stays, whatever the page. */
    size_t base; /* Up to here it is the page's; suffixes follow. */
};

static void name_start(struct page_name *name, const struct kvi_dynamo_layout *layout)
{
    name->stem = sizeof(GROUP_PREFIX) - 1;
    memcpy(name->text, GROUP_PREFIX, name->stem);
    if (layout->tag_bytes != 0) {
        memcpy(name->text + name->stem, layout->tag, layout->tag_bytes);
        name->stem += layout->tag_bytes;
        name->text[name->stem++] = '_';
    }
}

static void name_page(struct page_name *name, const struct kvg_key *key)
{
    kvi_hex_encode(key->bytes, KVG_KEY_BYTES, name->text + name->stem);
    name->base = name->stem + (size_t)2 * KVG_KEY_BYTES;
}

static struct kvg_str group_name(const struct page_name *name)
{
    return (struct kvg_str){name->text, name->base};
}

/* The object key "..._A_B_k": A and B are written if they are not negative, and the first
 * '_' always is. */
static struct kvg_str object_name(
    struct page_name *name, int64_t first, int64_t second, char kind)
{
    size_t skipped = sizeof(GROUP_PREFIX) - 1;
    struct kvi_text text;

    kvi_text_init(&text, name->text + name->base, sizeof(name->text) - name->base);
    kvi_text_str(&text, "_");
    if (first >= 0)
        kvi_text_u64(&text, (uint64_t)first);
    if (second >= 0) {
        kvi_text_str(&text, "_");
        kvi_text_u64(&text, (uint64_t)second);
    }
    kvi_text_str(&text, kind == 'k' ? "_k" : "_v");
    KVI_ASSERT(!text.overflowed);
    return (struct kvg_str){name->text + skipped, name->base - skipped + text.bytes};
}

static uint32_t rank_count(const struct kvi_dynamo_layout *layout)
{
    uint32_t ranks = layout->tp_size;

    if (layout->split_heads && layout->tp_lcm_size > ranks)
        ranks = layout->tp_lcm_size;
    return ranks == 0 ? 1 : ranks;
}

static bool has(const struct kvg_dynamo *dynamo, struct kvg_str key)
{
    return kvi_strings_find(&dynamo->keys, key) != NULL;
}

/* Whether all object keys of the page are there; stops at the first that is not. */
static bool all_present(const struct kvg_dynamo *dynamo, struct page_name *name)
{
    const struct kvi_dynamo_layout *layout = &dynamo->layout;
    uint32_t stages = layout->pp_size == 0 ? 1 : layout->pp_size;
    uint32_t ranks = rank_count(layout);
    uint32_t stage;
    uint32_t rank;

    for (stage = 0; stage < stages; stage++) {
        int64_t second = stages > 1 ? (int64_t)stage : -1;

        if (layout->mla) {
            if (!has(dynamo, object_name(name, second, -1, 'k')))
                return false;
            continue;
        }
        for (rank = 0; rank < ranks; rank++) {
            if (!has(dynamo, object_name(name, rank, second, 'k')) ||
                !has(dynamo, object_name(name, rank, second, 'v')))
                return false;
        }
    }
    return true;
}

static bool page_hits(const struct kvg_dynamo *dynamo, struct page_name *name)
{
    struct kvi_string *group = kvi_strings_find(&dynamo->groups, group_name(name));

    if (group != NULL && group->flag)
        return true;
    if (!all_present(dynamo, name))
        return false;
    if (group != NULL)
        group->flag = true;
    return true;
}

/* Hits, as they are found, as ranges. */
struct hits {
    struct kvg_range *ranges;
    size_t range_max;
    size_t range_count;
    uint32_t total;
    struct kvg_range open; /* The range that may still grow; empty if there is none. */
};

static void close_range(struct hits *hits)
{
    if (hits->open.begin == hits->open.end)
        return;
    if (hits->range_count < hits->range_max)
        hits->ranges[hits->range_count] = hits->open;
    hits->range_count++;
}

static void add_page(struct hits *hits, uint32_t page, bool hit)
{
    if (!hit)
        return;
    hits->total++;
    if (hits->open.end != page || hits->open.begin == hits->open.end) {
        close_range(hits);
        hits->open.begin = page;
    }
    hits->open.end = page + 1;
}

static void look_up(struct kvg_dynamo *dynamo, const uint32_t *tokens, size_t token_count,
    struct hits *hits)
{
    const struct kvi_dynamo_layout *layout = &dynamo->layout;
    struct kvg_page_rule rule = {layout->page_size, layout->eagle};
    struct kvg_key keys[KEYS_AT_ONCE];
    struct kvg_key prior = {{0}};
    struct page_name name;
    uint32_t page = 0;
    size_t count;
    size_t i;

    name_start(&name, layout);
    do {
        size_t skipped = (size_t)page * rule.page_size;

        count = kvg_page_keys(&rule, page == 0 ? NULL : &prior, tokens + skipped,
            token_count - skipped, keys, KEYS_AT_ONCE);
        for (i = 0; i < count; i++) {
            name_page(&name, &keys[i]);
            add_page(hits, page++, page_hits(dynamo, &name));
        }
        if (count != 0)
            prior = keys[count - 1];
    } while (count == KEYS_AT_ONCE);
    close_range(hits);
}

enum kvg_dynamo_outcome kvg_dynamo_check_blocks(struct kvg_dynamo *dynamo,
    const uint32_t *tokens, size_t token_count, uint32_t block_size,
    struct kvg_str cache_namespace, struct kvg_range *ranges, size_t range_max,
    size_t *range_count_out, uint32_t *total_out)
{
    struct hits hits = {.ranges = ranges, .range_max = range_max};
    const struct kvi_dynamo_layout *layout = &dynamo->layout;
    struct kvg_page_rule rule;

    *range_count_out = 0;
    *total_out = 0;
    if (cache_namespace.bytes != 0)
        return KVG_DYNAMO_NAMESPACED;
    if (!kvi_dynamo_resolve(dynamo))
        return KVG_DYNAMO_NO_CONFIG;
    if (!kvi_str_equal((struct kvg_str){layout->backend, layout->backend_bytes},
            kvi_str("mooncake")))
        return KVG_DYNAMO_OTHER_BACKEND;
    if (layout->page_size == 0 || block_size == 0)
        return KVG_DYNAMO_PAGE_SIZE_ZERO;
    if (layout->page_size != block_size)
        return KVG_DYNAMO_PAGE_SIZE_DIFFERS;
    rule = (struct kvg_page_rule){layout->page_size, layout->eagle};
    if (kvg_page_count(&rule, token_count) == 0)
        return KVG_DYNAMO_TOO_SHORT;
    look_up(dynamo, tokens, token_count, &hits);
    *range_count_out = hits.range_count;
    *total_out = hits.total;
    return KVG_DYNAMO_ANSWERED;
}

uint32_t kvg_dynamo_hits_beyond(
    const struct kvg_range *ranges, size_t range_count, uint32_t page)
{
    uint32_t hits = 0;
    size_t i;

    for (i = 0; i < range_count; i++) {
        uint32_t begin = ranges[i].begin > page ? ranges[i].begin : page;

        if (ranges[i].end > begin)
            hits += ranges[i].end - begin;
    }
    return hits;
}
