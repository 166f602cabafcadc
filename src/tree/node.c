/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* node.c -- the arena, the child table, and the split.
 *
 * The arena hands out nodes from chunks of KVI_CHUNK_NODES that never move and are given back
 * only with the tree.  A node is `node_bytes` wide: the parts of exactly this tree's components
 * other than FULL follow the common fields.
 *
 * The child table finds a child by (parent, namespace, first page).  Linear probing at a load of
 * at most 0.7; removal shifts back, so there are no graves:
 *
 *     slot    | tokens | length | hash | ref |      home = hash & mask
 *
 * A slot knows where the child's tokens are and how many, so that a walk along a key can go from
 * slot to slot, one cache miss a node, while nodes and tokens are still on their way
 * (kvi_descend).  What it finds so is a guess: 32 bits of hash were equal.  The node's parent and
 * tokens are compared before anybody sees it.
 *
 * Splitting X at unit 3:
 *
 *     root -> X[1 2 3 4 5]      becomes      root -> P[1 2 3] -> X[4 5]
 *
 * P is new and takes X's place among its siblings and in the table; X keeps its id, its children
 * and its pending write, and is entered anew below P.  Token block, page keys and values are
 * shared views.
 *
 * Not here: what a split means for a component (full.c, swa.c, mamba.c).
 */
#include "tree/tree.h"

#include "base/rng.h"

#define CHILD_SLOTS_MIN 64u

/* ---- Arena --------------------------------------------------------------------------------- */

struct kvi_node *kvi_node_find(const struct kvg_tree *tree, kvg_node_id id)
{
    uint64_t ref = id & KVI_REF_MASK;

    if (ref == 0 || ref >= tree->fresh_node)
        return NULL;
    struct kvi_node *node = kvi_node_at(tree, (kvi_ref)ref);
    return node->id == id ? node : NULL;
}

kvg_err kvi_no_node(struct kvg_error *error, kvg_node_id id)
{
    char message[64];
    struct kvi_text text;

    kvi_text_init(&text, message, sizeof(message));
    kvi_text_str(&text, "no node ");
    kvi_text_u64(&text, id);
    return kvi_fail(error, KVG_ENOENT, "node", message);
}

static bool grow_array(struct kvg_tree *tree, void **array, uint32_t *capacity,
    uint32_t wanted, size_t bytes)
{
    uint32_t larger = *capacity == 0 ? 16 : *capacity;

    while (larger < wanted)
        larger *= 2;
    if (larger != *capacity &&
        !kvi_resize_array(&tree->alloc, array, *capacity, larger, bytes))
        return false;
    *capacity = larger;
    return true;
}

/* Adds an eighth to the arena, at least a chunk.  Large slabs are few, and an allocator can give
 * them large pages. */
static kvg_err add_slab(struct kvg_tree *tree)
{
    void *chunks = tree->chunks;
    void *slabs = tree->slabs;
    uint32_t count = tree->chunk_count / 8;
    bool ok = true;

    count = count == 0 ? 1 : count > KVI_SLAB_CHUNKS_MAX ? KVI_SLAB_CHUNKS_MAX : count;
    if (tree->chunk_count + count > tree->chunk_capacity) {
        ok = grow_array(tree, &chunks, &tree->chunk_capacity, tree->chunk_count + count,
            sizeof(*tree->chunks));
        tree->chunks = chunks;
    }
    if (ok && tree->slab_count == tree->slab_capacity) {
        ok = grow_array(tree, &slabs, &tree->slab_capacity, tree->slab_count + 1,
            sizeof(*tree->slabs));
        tree->slabs = slabs;
    }
    size_t chunk_bytes = (size_t)tree->node_bytes * KVI_CHUNK_NODES;
    size_t bytes = chunk_bytes * count + KVI_CHUNK_ALIGN;
    void *memory = ok ? kvi_alloc_array_raw(&tree->alloc, bytes, 1) : NULL;
    if (memory == NULL)
        return KVG_ENOMEM;
    tree->slabs[tree->slab_count++] = (struct kvi_slab){memory, bytes};

    char *start = (char *)memory + ((size_t)(-(uintptr_t)memory) & (KVI_CHUNK_ALIGN - 1));
    if (tree->chunk_count == 0) {
        memset(start, 0, tree->node_bytes); /* Nobody. */
        tree->fresh_node = 1;
        tree->free_count--;
    }
    for (uint32_t i = 0; i < count; i++)
        tree->chunks[tree->chunk_count++] = start + i * chunk_bytes;
    tree->free_count += count << KVI_CHUNK_BITS;
    return KVG_OK;
}

static kvg_err grow_children(struct kvg_tree *tree, uint64_t wanted)
{
    uint64_t capacity =
        tree->children == NULL ? CHILD_SLOTS_MIN : ((uint64_t)tree->child_mask + 1) * 2;
    while (wanted * 10 > capacity * 7)
        capacity *= 2;
    struct kvi_child_slot *slots =
        kvi_alloc_array(&tree->alloc, (size_t)capacity, sizeof(*slots));
    if (slots == NULL)
        return KVG_ENOMEM;

    uint32_t mask = (uint32_t)(capacity - 1);
    for (uint64_t i = 0; tree->children != NULL && i <= tree->child_mask; i++) {
        if (tree->children[i].node == 0)
            continue;
        uint32_t at = tree->children[i].hash & mask;
        while (slots[at].node != 0)
            at = (at + 1) & mask;
        slots[at] = tree->children[i];
    }
    if (tree->children != NULL)
        kvi_release_array(
            &tree->alloc, tree->children, (size_t)tree->child_mask + 1, sizeof(*slots));
    tree->children = slots;
    tree->child_mask = mask;
    return KVG_OK;
}

kvg_err kvi_tree_reserve_nodes(
    struct kvg_tree *tree, uint32_t count, struct kvg_error *error)
{
    uint32_t wanted = tree->node_count + count;

    if (KVI_UNLIKELY(wanted > tree->options.node_max)) {
        tree->stats.refused_nodes++;
        kvi_fail_range(error, "tree.node_max", wanted, 1, tree->options.node_max);
        if (error != NULL)
            error->code = KVG_ELIMIT;
        return KVG_ELIMIT;
    }
    while (tree->free_count < count) {
        if (add_slab(tree) != KVG_OK)
            return kvi_fail(error, KVG_ENOMEM, "tree", "no memory for nodes");
    }
    for (int tier = 0; tier < (tree->has_host_values ? 2 : 1); tier++) {
        if (kvi_shelves_reserve(tree, &tree->shelves[tier], wanted) != KVG_OK)
            return kvi_fail(error, KVG_ENOMEM, "tree", "no memory for leaves");
    }
    uint64_t used = (uint64_t)tree->child_used + count;
    if ((tree->children == NULL || used * 10 > ((uint64_t)tree->child_mask + 1) * 7) &&
        grow_children(tree, used) != KVG_OK)
        return kvi_fail(error, KVG_ENOMEM, "tree", "no memory for the child table");
    return KVG_OK;
}

kvg_err kvi_tree_use_host(struct kvg_tree *tree, struct kvg_error *error)
{
    bool had = tree->has_host_values;

    tree->has_host_values = true;
    kvg_err err = had ? KVG_OK : kvi_tree_reserve_nodes(tree, 1, error);
    if (err != KVG_OK)
        tree->has_host_values = false;
    return err;
}

struct kvi_node *kvi_node_new(struct kvg_tree *tree)
{
    kvi_ref ref = tree->free_node != 0 ? tree->free_node : tree->fresh_node;

    KVI_ASSERT(tree->free_count != 0);
    struct kvi_node *node = kvi_node_at(tree, ref);
    if (ref == tree->free_node)
        tree->free_node = node->next_sibling;
    else
        tree->fresh_node++;
    tree->free_count--;
    tree->node_count++;
    memset(node, 0, tree->node_bytes);
    node->id = tree->next_number++ << KVI_REF_BITS | ref;
    node->last_access = kvi_tick(tree);
    node->creation = kvi_tick(tree);
    return node;
}

void kvi_node_free(struct kvg_tree *tree, struct kvi_node *node)
{
    kvi_ref ref = kvi_ref_of(node);

    KVI_DCHECK(node->parent == NULL && node->first_child == 0);
    kvi_leaf_forget(tree, node);
    kvi_duplicate_forget(tree, node);
    for (uint32_t slot = 0; slot < tree->part_count; slot++) {
        for (int tier = 0; tier < KVG_TIER_COUNT; tier++)
            kvi_value_clear(tree, &kvi_part(node, slot)->value[tier]);
    }
    kvi_block_drop(tree, node->block);
    kvi_keys_drop(tree, node->page_keys);
    kvi_keys_drop(tree, node->event_keys);
    kvi_space_drop(tree, node->space);
    node->id = 0;
    node->next_sibling = tree->free_node;
    tree->free_node = ref;
    tree->free_count++;
    tree->node_count--;
}

static uint32_t slot_of(const struct kvg_tree *tree, const struct kvi_node *node);

/* ---- Blocks -------------------------------------------------------------------------------- */

static size_t block_bytes(uint32_t capacity)
{
    return sizeof(struct kvi_block) + (size_t)capacity * sizeof(uint32_t);
}

struct kvi_block *kvi_block_make(
    struct kvg_tree *tree, const uint32_t *tokens, uint32_t token_count)
{
    struct kvi_block *block =
        kvi_alloc_array_raw(&tree->alloc, block_bytes(token_count), 1);

    if (block == NULL)
        return NULL;
    block->refs = 1;
    block->capacity = token_count;
    block->seen = 0;
    memcpy(block->tokens, tokens, (size_t)token_count * sizeof(*tokens));
    return block;
}

void kvi_block_drop(struct kvg_tree *tree, struct kvi_block *block)
{
    if (block == NULL || --block->refs != 0)
        return;
    kvi_release_array(&tree->alloc, block, block_bytes(block->capacity), 1);
}

static size_t keys_bytes(uint32_t capacity)
{
    return sizeof(struct kvi_keys) + (size_t)capacity * sizeof(struct kvg_key);
}

struct kvi_keys *kvi_keys_make(struct kvg_tree *tree, uint32_t count)
{
    struct kvi_keys *keys = kvi_alloc_array_raw(&tree->alloc, keys_bytes(count), 1);

    if (keys != NULL) {
        keys->refs = 1;
        keys->capacity = count;
        keys->seen = 0;
    }
    return keys;
}

void kvi_keys_drop(struct kvg_tree *tree, struct kvi_keys *keys)
{
    if (keys == NULL || --keys->refs != 0)
        return;
    kvi_release_array(&tree->alloc, keys, keys_bytes(keys->capacity), 1);
}

/* Cuts the shared blocks of a path whose last fragment dies.  The other fragments are ancestors
 * and see the beginning only; a block that is mostly dead is replaced by its living part, so
 * that a long-lived prefix does not keep a long-dead tail in memory.  Without memory nothing
 * happens. */
void kvi_blocks_trim(struct kvg_tree *tree, const struct kvi_node *dead)
{
    struct kvi_node *last = kvi_parent(tree, dead);
    struct kvi_block *block = dead->block;
    struct kvi_keys *keys = dead->page_keys;
    uint32_t pages = last->page_key_start + last->length / tree->options.page_size;

    if (block != NULL && last->block == block &&
        (uint64_t)(dead->tokens - block->tokens) * 2 < block->capacity) {
        uint32_t used =
            (uint32_t)(last->tokens - block->tokens) + kvi_tokens_for(tree, last->length);
        struct kvi_block *cut = kvi_block_make(tree, block->tokens, used);
        if (cut != NULL) {
            cut->refs = 0;
            for (struct kvi_node *n = last; n != NULL && n->block == block;
                 n = kvi_parent(tree, n)) {
                n->tokens = cut->tokens + (n->tokens - block->tokens);
                n->block = cut;
                tree->children[slot_of(tree, n)].tokens = n->tokens;
                cut->refs++;
                block->refs--; /* The dead one still holds it. */
            }
        }
    }
    if (keys != NULL && last->page_keys == keys && pages * UINT64_C(2) < keys->capacity) {
        struct kvi_keys *cut = kvi_keys_make(tree, pages);
        if (cut == NULL)
            return;
        memcpy(cut->keys, keys->keys, (size_t)pages * sizeof(*keys->keys));
        cut->refs = 0;
        for (struct kvi_node *n = last; n != NULL && n->page_keys == keys;
             n = kvi_parent(tree, n)) {
            n->page_keys = cut;
            cut->refs++;
            keys->refs--;
        }
    }
}

/* ---- Child table --------------------------------------------------------------------------- */

static inline uint64_t fold(uint64_t a, uint64_t b)
{
    kvi_u128 product = (kvi_u128)a * b;

    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* A sum of products, one for each four tokens, none of which waits for another; each has its own
 * secret, so that tokens that change places change the sum. */
static uint32_t child_hash(
    const struct kvg_tree *tree, kvi_ref parent, uint32_t space, const uint32_t *tokens)
{
    const uint32_t *end = tokens + tree->page_tokens;
    uint64_t secret = tree->options.seed ^ UINT64_C(0x9e3779b97f4a7c15);
    uint64_t sum = ((uint64_t)parent << 32 | space) * UINT64_C(0xa0761d6478bd642f);
    uint64_t a;
    uint64_t b;

    for (; end - tokens >= 4; tokens += 4) {
        memcpy(&a, tokens, 8);
        memcpy(&b, tokens + 2, 8);
        sum += fold(a ^ secret, b ^ ~secret);
        secret += UINT64_C(0xd1b54a32d192ed03);
    }
    if (tokens != end) {
        a = tokens[0];
        b = 0;
        if (end - tokens > 1)
            a |= (uint64_t)tokens[1] << 32;
        if (end - tokens > 2)
            b = tokens[2];
        sum += fold(a ^ secret, b ^ ~secret);
    }
    return (uint32_t)fold(sum ^ secret, UINT64_C(0xa0761d6478bd642f));
}

/* For kvg_tree_check(). */
uint32_t kvi_child_hash(const struct kvg_tree *tree, const struct kvi_node *node)
{
    return child_hash(tree, kvi_ref_of(node->parent), node->space, kvi_node_tokens(node));
}

static bool first_page_equals(const struct kvg_tree *tree, const struct kvi_node *node,
    uint32_t space, const uint32_t *tokens)
{
    const uint32_t *own = kvi_node_tokens(node);

    return own[0] == tokens[0] && node->space == space &&
           memcmp(own, tokens, (size_t)tree->page_tokens * sizeof(*tokens)) == 0;
}

struct kvi_node *kvi_child_find(const struct kvg_tree *tree,
    const struct kvi_node *parent, uint32_t space, const uint32_t *tokens)
{
    if (parent->child_count <= 1) {
        if (parent->first_child == 0)
            return NULL;
        struct kvi_node *only = kvi_node_at(tree, parent->first_child);
        __builtin_prefetch(&only->full.value);
        return first_page_equals(tree, only, space, tokens) ? only : NULL;
    }
    kvi_ref ref = kvi_ref_of(parent);
    uint32_t hash = child_hash(tree, ref, space, tokens);
    for (uint32_t at = hash & tree->child_mask; tree->children[at].node != 0;
         at = (at + 1) & tree->child_mask) {
        if (tree->children[at].hash != hash)
            continue;
        struct kvi_node *node = kvi_node_at(tree, tree->children[at].node);
        __builtin_prefetch(&node->full.value);
        if (node->parent == parent && first_page_equals(tree, node, space, tokens))
            return node;
    }
    return NULL;
}

/* Follows the table from (`parent`, `offset`) on, and sends for the lines that the walk will want:
 * the node's first two, and the first of its tokens. */
static void look_ahead(const struct kvg_tree *tree, struct kvi_descent *descent,
    kvi_ref parent, uint64_t offset)
{
    uint32_t page = tree->options.page_size;

    descent->count = 0;
    descent->next = 0;
    while (descent->count < KVI_AHEAD && offset + page <= descent->units) {
        uint32_t hash =
            child_hash(tree, parent, descent->space, descent->tokens + offset);
        uint32_t at = hash & tree->child_mask;
        while (tree->children[at].node != 0 && tree->children[at].hash != hash)
            at = (at + 1) & tree->child_mask;
        const struct kvi_child_slot *slot = &tree->children[at];
        if (slot->node == 0)
            break;
        const struct kvi_node *node = kvi_node_at(tree, slot->node);
        __builtin_prefetch(node, 1);
        __builtin_prefetch(&node->full.value);
        for (uint32_t i = 0; i < 64 && i < slot->length; i += 16)
            __builtin_prefetch(slot->tokens + i);
        descent->ahead[descent->count++] = slot->node;
        parent = slot->node;
        offset += slot->length;
    }
    descent->ended = descent->count < KVI_AHEAD;
}

struct kvi_node *kvi_descend(const struct kvg_tree *tree, struct kvi_descent *descent,
    const struct kvi_node *parent, uint64_t offset, uint32_t *matched)
{
    const uint32_t *tokens = descent->tokens + offset;
    uint64_t rest = descent->units - offset;

    if (descent->next == descent->count) {
        if (descent->ended)
            return NULL;
        look_ahead(tree, descent, kvi_ref_of(parent), offset);
        if (descent->count == 0)
            return NULL;
    }
    struct kvi_node *node = kvi_node_at(tree, descent->ahead[descent->next++]);
    if (KVI_LIKELY(node->parent == parent && node->space == descent->space)) {
        *matched = kvi_node_match(tree, node, tokens, rest);
        if (KVI_LIKELY(*matched != 0))
            return node;
    }
    /* Another page has the same hash: what was seen ahead is not this key's path. */
    descent->count = 0;
    descent->next = 0;
    descent->ended = false;
    node = kvi_child_find(tree, parent, descent->space, tokens);
    if (node != NULL)
        *matched = kvi_node_match(tree, node, tokens, rest);
    return node;
}

/* The table's slot of a node that is in it. */
static uint32_t slot_of(const struct kvg_tree *tree, const struct kvi_node *node)
{
    kvi_ref ref = kvi_ref_of(node);
    uint32_t at = node->hash & tree->child_mask;

    while (tree->children[at].node != ref) {
        KVI_ASSERT(tree->children[at].node != 0);
        at = (at + 1) & tree->child_mask;
    }
    return at;
}

static void table_add(struct kvg_tree *tree, struct kvi_node *node)
{
    node->hash =
        child_hash(tree, kvi_ref_of(node->parent), node->space, kvi_node_tokens(node));
    uint32_t at = node->hash & tree->child_mask;
    while (tree->children[at].node != 0)
        at = (at + 1) & tree->child_mask;
    tree->children[at] = (struct kvi_child_slot){.tokens = node->tokens,
        .length = node->length,
        .hash = node->hash,
        .node = kvi_ref_of(node)};
    tree->child_used++;
}

static void table_remove(struct kvg_tree *tree, const struct kvi_node *node)
{
    uint32_t mask = tree->child_mask;
    uint32_t hole = slot_of(tree, node);

    for (uint32_t at = (hole + 1) & mask; tree->children[at].node != 0;
         at = (at + 1) & mask) {
        /* An entry may move back to the hole if that is not before its home. */
        uint32_t home = tree->children[at].hash & mask;
        if (((at - home) & mask) >= ((at - hole) & mask)) {
            tree->children[hole] = tree->children[at];
            hole = at;
        }
    }
    tree->children[hole] = (struct kvi_child_slot){0};
    tree->child_used--;
}

void kvi_child_link(
    struct kvg_tree *tree, struct kvi_node *parent, struct kvi_node *child)
{
    kvi_ref ref = kvi_ref_of(child);

    child->parent = parent;
    child->previous_sibling = parent->last_child;
    child->next_sibling = 0;
    if (parent->last_child != 0)
        kvi_node_at(tree, parent->last_child)->next_sibling = ref;
    else
        parent->first_child = ref;
    parent->last_child = ref;
    parent->child_count++;
    if (kvi_full_on_device(child))
        parent->device_child_count++;
    table_add(tree, child);
}

void kvi_child_unlink(struct kvg_tree *tree, struct kvi_node *child)
{
    struct kvi_node *parent = child->parent;

    table_remove(tree, child);
    if (child->previous_sibling != 0)
        kvi_node_at(tree, child->previous_sibling)->next_sibling = child->next_sibling;
    else
        parent->first_child = child->next_sibling;
    if (child->next_sibling != 0)
        kvi_node_at(tree, child->next_sibling)->previous_sibling =
            child->previous_sibling;
    else
        parent->last_child = child->previous_sibling;
    parent->child_count--;
    if (kvi_full_on_device(child))
        parent->device_child_count--;
    child->parent = NULL;
    child->previous_sibling = 0;
    child->next_sibling = 0;
}

/* ---- Match of one node --------------------------------------------------------------------- */

/* How many of `count` words are equal.  Mostly all are, so that is asked first; then smaller and
 * smaller pieces lead to the place. */
static size_t equal_tokens(const uint32_t *a, const uint32_t *b, size_t count)
{
    size_t at = 0;

    if (KVI_LIKELY(memcmp(a, b, count * sizeof(*a)) == 0))
        return count;
    for (size_t piece = 4096; piece >= 16; piece /= 16) {
        while (count - at > piece && memcmp(a + at, b + at, piece * sizeof(*a)) == 0)
            at += piece;
    }
    while (at < count && a[at] == b[at])
        at++;
    return at;
}

uint32_t kvi_node_match(const struct kvg_tree *tree, const struct kvi_node *node,
    const uint32_t *tokens, uint64_t units)
{
    uint32_t limit = units < node->length ? (uint32_t)units : node->length;
    uint32_t raw = kvi_tokens_for(tree, limit);
    uint32_t equal = (uint32_t)equal_tokens(kvi_node_tokens(node), tokens, raw);

    if (tree->eagle && equal != 0)
        equal--;
    return equal - equal % tree->options.page_size;
}

/* ---- Split --------------------------------------------------------------------------------- */

/* Puts `prefix` where `child` is: among the siblings and in the table. */
static void take_place(
    struct kvg_tree *tree, struct kvi_node *prefix, struct kvi_node *child)
{
    struct kvi_node *parent = child->parent;
    kvi_ref ref = kvi_ref_of(prefix);

    struct kvi_child_slot *slot = &tree->children[slot_of(tree, child)];
    slot->node = ref;
    slot->length = prefix->length;
    prefix->hash = child->hash;
    prefix->parent = child->parent;
    prefix->previous_sibling = child->previous_sibling;
    prefix->next_sibling = child->next_sibling;
    if (child->previous_sibling != 0)
        kvi_node_at(tree, child->previous_sibling)->next_sibling = ref;
    else
        parent->first_child = ref;
    if (child->next_sibling != 0)
        kvi_node_at(tree, child->next_sibling)->previous_sibling = ref;
    else
        parent->last_child = ref;
}

/* The views of tokens and page keys. */
static void split_views(
    struct kvg_tree *tree, struct kvi_node *prefix, struct kvi_node *child, uint32_t at)
{
    uint32_t pages = at / tree->options.page_size;

    prefix->block = child->block;
    prefix->block->refs++;
    prefix->tokens = child->tokens;
    prefix->length = at;
    child->tokens += at;
    child->length -= at;
    prefix->depth = child->depth - child->length;
    if (child->page_keys != NULL) {
        prefix->page_keys = child->page_keys;
        prefix->page_keys->refs++;
        prefix->page_key_start = child->page_key_start;
        child->page_key_start += pages;
    }
    if (child->event_keys != NULL) {
        prefix->event_keys = child->event_keys;
        prefix->event_keys->refs++;
        prefix->event_key_start = child->event_key_start;
        child->event_key_start += pages;
    }
}

static void split_parts(
    struct kvg_tree *tree, struct kvi_node *prefix, struct kvi_node *child, uint32_t at)
{
    for (uint32_t slot = 0; slot < tree->part_count; slot++) {
        tree->components[slot]->split(tree, prefix, child, slot, at);
        for (int tier = 0; tier < KVG_TIER_COUNT; tier++) {
            if (kvi_part(prefix, slot)->lock[tier] != 0)
                prefix->locked_parts[tier]++;
        }
    }
    for (uint32_t slot = 1; slot < tree->part_count; slot++) {
        if (kvi_has(prefix, slot, KVG_TIER_DEVICE) &&
            !kvi_listed(prefix, slot, KVG_TIER_DEVICE))
            kvi_list_add_after(tree, slot, KVG_TIER_DEVICE, child, prefix);
    }
}

struct kvi_node *kvi_node_split(struct kvg_tree *tree, struct kvi_node *child,
    uint32_t at, struct kvg_actions *actions)
{
    KVI_ASSERT(at > 0 && at < child->length && !kvi_is_root(child));
    struct kvi_node *prefix = kvi_node_new(tree);

    prefix->priority = child->priority;
    prefix->hits = child->hits;
    prefix->flags =
        child->flags & (KVI_NODE_STORED | KVI_NODE_AWAITS_ALL | KVI_NODE_FULL_DEVICE);
    prefix->creation = child->creation;
    prefix->pending_load = child->pending_load;
    prefix->history = child->history;
    prefix->rotation = child->rotation;
    prefix->space = child->space;
    kvi_space_hold_again(tree, child->space);

    split_views(tree, prefix, child, at);
    take_place(tree, prefix, child);
    child->parent = prefix;
    child->previous_sibling = 0;
    child->next_sibling = 0;
    prefix->first_child = kvi_ref_of(child);
    prefix->last_child = prefix->first_child;
    prefix->child_count = 1;
    prefix->device_child_count = kvi_full_on_device(child) ? 1 : 0;
    table_add(tree, child);
    split_parts(tree, prefix, child, at);

    if (child->pending_write != KVG_NODE_NONE) {
        prefix->pending_write = child->pending_write;
        struct kvg_action *action = kvi_actions_add(actions, KVG_ACTION_REPLACE_ON_SPLIT);
        action->ack = child->pending_write;
        action->node = child->id;
        action->new_node = prefix->id;
    }
    child->last_access = kvi_tick(tree);
    kvi_leaf_update(tree, prefix);
    kvi_leaf_update(tree, child);
    kvi_leaf_touched(tree, child);
    kvi_duplicate_update(tree, prefix);
    tree->stats.splits++;
    return prefix;
}
