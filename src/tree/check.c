/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* check.c -- kvg_tree_check(): walks everything and names the first broken invariant of tree.h.
 *
 * It allocates nothing: nodes are walked by their links, and counts of shared things are taken in
 * fields that exist for this (`seen`).  O(nodes + units of values).
 */
#include "tree/tree.h"

struct check {
    const struct kvg_tree *tree;
    struct kvg_error *error;
    kvg_err result;
    uint64_t nodes;
    uint64_t leaves[KVG_TIER_COUNT];
    uint64_t placed[KVG_TIER_COUNT]; /* Nodes with an entry on the shelves. */
    uint64_t evictable[KVI_PARTS_MAX], protect[KVI_PARTS_MAX];
    uint64_t listed[KVI_PARTS_MAX][KVG_TIER_COUNT];
    uint64_t duplicates;
};

static void broken(struct check *check, const char *invariant,
    const struct kvi_node *node, const char *what)
{
    char message[sizeof(check->error->message)];
    struct kvi_text text;

    if (check->result != KVG_OK)
        return;
    kvi_text_init(&text, message, sizeof(message));
    kvi_text_str(&text, what);
    if (node != NULL) {
        kvi_text_str(&text, ", node ");
        kvi_text_u64(&text, node->id);
    }
    check->result = kvi_fail(check->error, KVG_ESTATE, invariant, message);
    if (check->result == KVG_OK)
        check->result = KVG_ESTATE;
}

/* The next node in pre-order; NULL after the last. */
static struct kvi_node *next_node(const struct kvg_tree *tree, struct kvi_node *node)
{
    if (node->first_child != 0)
        return kvi_node_at(tree, node->first_child);
    while (node->next_sibling == 0) {
        node = kvi_parent(tree, node);
        if (node == NULL)
            return NULL;
    }
    return kvi_node_at(tree, node->next_sibling);
}

/* ---- Links, keys, table -------------------------------------------------------------------- */

static void check_root(struct check *check, const struct kvi_node *root)
{
    if (root->parent != NULL || root->full.lock[KVG_TIER_DEVICE] == 0)
        broken(check, "T1", root, "the root has a parent or no FULL lock");
    if (root->length != 0 || root->next_sibling != 0 || root->rotation != 0)
        broken(check, "T1", root, "the root has a key, a sibling or a rotation base");
}

static void check_children(struct check *check, const struct kvi_node *node)
{
    const struct kvg_tree *tree = check->tree;
    kvi_ref previous = 0;
    uint32_t count = 0;
    uint32_t on_device = 0;

    for (kvi_ref ref = node->first_child; ref != 0;) {
        const struct kvi_node *child = kvi_node_at(tree, ref);
        if (child->parent != node || child->previous_sibling != previous) {
            broken(check, "T2", child, "a child's links do not name its place");
            return;
        }
        if (previous != 0 && child->creation <= kvi_node_at(tree, previous)->creation)
            broken(check, "T2", child, "a child stands behind a later one");
        if (++count > tree->node_count) {
            broken(check, "T2", node, "the children are a ring");
            return;
        }
        if (kvi_has(child, 0, KVG_TIER_DEVICE))
            on_device++;
        previous = ref;
        ref = child->next_sibling;
    }
    if (node->last_child != previous)
        broken(check, "T2", node, "the last child is another one");
    if (count != node->child_count || on_device != node->device_child_count)
        broken(check, "T17", node, "a count of children is wrong");
}

static void check_table(struct check *check, const struct kvi_node *node)
{
    const struct kvg_tree *tree = check->tree;
    uint32_t at = node->hash & tree->child_mask;

    if (node->hash != kvi_child_hash(tree, node)) {
        broken(check, "T16", node, "the hash is not that of the first page");
        return;
    }
    while (tree->children[at].node != kvi_ref_of(node)) {
        if (tree->children[at].node == 0) {
            broken(check, "T16", node, "the table does not find the node");
            return;
        }
        at = (at + 1) & tree->child_mask;
    }
    if (tree->children[at].hash != node->hash)
        broken(check, "T16", node, "the table has another hash");
    if (tree->children[at].tokens != node->tokens ||
        tree->children[at].length != node->length)
        broken(check, "T16", node, "the table has another key");
    const struct kvi_node *parent = kvi_parent(tree, node);
    if (kvi_child_find(tree, parent, node->space, kvi_node_tokens(node)) != node)
        broken(check, "T16", node, "two siblings begin alike");
}

static void check_key(struct check *check, const struct kvi_node *node)
{
    const struct kvg_tree *tree = check->tree;
    uint32_t page_size = tree->options.page_size;
    const struct kvi_node *parent = kvi_parent(tree, node);

    if (node->length == 0 || node->length % page_size != 0 || node->block == NULL ||
        node->tokens < node->block->tokens ||
        (size_t)(node->tokens - node->block->tokens) +
                kvi_tokens_for(tree, node->length) >
            node->block->capacity) {
        broken(check, "T2", node, "the key is not whole pages of its block");
        return;
    }
    if (!kvi_is_root(parent) && parent->space != node->space)
        broken(check, "T2", node, "the namespace is not the parent's");
    if (node->depth != parent->depth + node->length)
        broken(check, "T2", node, "the depth is wrong");
    if (node->page_keys != NULL &&
        node->page_key_start + node->length / page_size > node->page_keys->capacity)
        broken(check, "T21", node, "there are too few page keys");
    if (node->event_keys != NULL &&
        node->event_key_start + node->length / page_size > node->event_keys->capacity)
        broken(check, "T21", node, "there are too few event keys");
    check_table(check, node);
}

/* ---- Values, locks, leaves ----------------------------------------------------------------- */

static void check_value(struct check *check, const struct kvi_node *node, uint32_t slot,
    const struct kvi_value *value)
{
    const struct kvg_tree *tree = check->tree;
    bool mamba = tree->components[slot]->type == KVG_COMPONENT_MAMBA;

    if (value->length == 0)
        return;
    if (value->length != (mamba ? 1 : node->length))
        broken(check, "T2", node, "a value has another length than its node");
    if (value->buffer != KVI_BUFFER_RUNS) {
        if (value->buffer != KVG_BUFFER_POOL && value->buffer < tree->buffer_count)
            tree->buffers[value->buffer].seen++;
        return;
    }
    struct kvi_runs *runs = value->at.runs;
    if ((uint64_t)value->position + value->length > runs->length)
        broken(check, "T18", node, "a value sees beyond its block");
    if (runs->seen == 0) {
        for (uint32_t i = 0; i < runs->count; i++) {
            uint32_t buffer = runs->run[i].buffer;
            if (buffer != KVG_BUFFER_POOL && buffer < tree->buffer_count)
                tree->buffers[buffer].seen++;
        }
    }
    runs->seen++;
    runs->seen_slots += value->length;
}

static void check_part(struct check *check, const struct kvi_node *node, uint32_t slot)
{
    const struct kvg_tree *tree = check->tree;
    const struct kvi_part *part = kvi_part(node, slot);
    bool device = part->value[KVG_TIER_DEVICE].length != 0;
    bool host = part->value[KVG_TIER_HOST].length != 0;

    if (part->lock[KVG_TIER_DEVICE] != 0)
        check->protect[slot] += part->value[KVG_TIER_DEVICE].length;
    else
        check->evictable[slot] += part->value[KVG_TIER_DEVICE].length;
    for (int tier = 0; tier < KVG_TIER_COUNT; tier++) {
        check_value(check, node, slot, &part->value[tier]);
        check->listed[slot][tier] += kvi_listed(node, slot, (enum kvg_tier)tier);
    }
    if (slot == 0)
        return;
    if (device && !kvi_has(node, 0, KVG_TIER_DEVICE))
        broken(check, "T3", node, "a device value without FULL");
    if (host && !kvi_has(node, 0, KVG_TIER_HOST) &&
        !(tree->settings.write_back && kvi_has(node, 0, KVG_TIER_DEVICE)))
        broken(check, "T4", node, "a host value without FULL");
    if (part->lock[KVG_TIER_DEVICE] > node->full.lock[KVG_TIER_DEVICE])
        broken(check, "T7", node, "a component is locked more often than FULL");
    if (device != kvi_listed(node, slot, KVG_TIER_DEVICE))
        broken(check, "T12", node, "the device list and the value disagree");
    bool wanted = host && !device;
    if (kvi_listed(node, slot, KVG_TIER_HOST) && !wanted)
        broken(check, "T12", node, "in the host list without need");
    if (wanted && !kvi_listed(node, slot, KVG_TIER_HOST) &&
        part->lock[KVG_TIER_HOST] == 0)
        broken(check, "T12", node, "missing in the host list");
}

static void check_residency(struct check *check, const struct kvi_node *node)
{
    const struct kvg_tree *tree = check->tree;
    const struct kvi_node *parent = kvi_parent(tree, node);

    if (!kvi_has(node, 0, KVG_TIER_DEVICE) && !kvi_has(node, 0, KVG_TIER_HOST))
        broken(check, "T5", node, "FULL is on no tier");
    if (kvi_is_root(parent))
        return;
    if (kvi_has(node, 0, KVG_TIER_DEVICE) && !kvi_has(parent, 0, KVG_TIER_DEVICE))
        broken(check, "T6", node, "FULL on device below a parent without");
    if (kvi_has(node, 0, KVG_TIER_HOST) && !kvi_has(parent, 0, KVG_TIER_HOST) &&
        !tree->settings.write_back)
        broken(check, "T6", node, "FULL on host below a parent without");
}

static void check_leaf(struct check *check, const struct kvi_node *node)
{
    const struct kvg_tree *tree = check->tree;
    bool device = (node->flags & KVI_NODE_DEVICE_LEAF) != 0;
    bool host = (node->flags & KVI_NODE_HOST_LEAF) != 0;

    if (kvi_full_on_device(node) != kvi_has(node, 0, KVG_TIER_DEVICE))
        broken(check, "T17", node, "the mark of a FULL device value is wrong");
    if (device != kvi_is_device_leaf(tree, node) ||
        host != kvi_is_host_leaf(tree, node) || (device && host))
        broken(check, "T8", node, "a leaf mark is wrong");
    for (int tier = 0; tier < KVG_TIER_COUNT; tier++)
        check->placed[tier] += kvi_placed(node, (enum kvg_tier)tier);
    check->leaves[KVG_TIER_DEVICE] += device;
    check->leaves[KVG_TIER_HOST] += host;
    if ((device && !kvi_placed(node, KVG_TIER_DEVICE) &&
            (node->flags & KVI_NODE_POPPED) == 0) ||
        (host && !kvi_placed(node, KVG_TIER_HOST)))
        broken(check, "T19", node, "a leaf is not on its shelves");
}

static void check_locks(struct check *check, const struct kvi_node *node)
{
    for (int tier = 0; tier < KVG_TIER_COUNT; tier++) {
        uint32_t count = 0;
        for (uint32_t slot = 0; slot < check->tree->part_count; slot++)
            count += kvi_part(node, slot)->lock[tier] != 0;
        if (count != node->locked_parts[tier])
            broken(check, "T17", node, "the count of locked parts is wrong");
    }
}

static void check_marks(struct check *check, const struct kvi_node *node)
{
    bool settled = kvi_has(node, 0, KVG_TIER_DEVICE) && kvi_has(node, 0, KVG_TIER_HOST) &&
                   node->pending_write == KVG_NODE_NONE &&
                   node->pending_load == KVG_NODE_NONE;
    bool tracked = (node->flags & KVI_NODE_DUPLICATE) != 0;

    if (settled && !tracked)
        broken(check, "T9", node, "a settled duplicate is not tracked");
    check->duplicates += tracked;
    if (node->pending_load != KVG_NODE_NONE &&
        kvi_node_find(check->tree, node->pending_load) == NULL)
        broken(check, "T15", node, "a load mark names nobody");
    for (uint32_t slot = 0; slot < check->tree->part_count; slot++) {
        if (kvi_awaits(node, slot) && (!kvi_has(node, slot, KVG_TIER_DEVICE) ||
                                          node->pending_load == KVG_NODE_NONE))
            broken(check, "T22", node, "a part awaits bytes without a value or a load");
    }
}

static void check_node(struct check *check, struct kvi_node *node)
{
    const struct kvg_tree *tree = check->tree;

    check->nodes++;
    if (node->id == 0 || kvi_node_find(tree, node->id) != node) {
        broken(check, "T20", node, "the id does not find the node");
        return;
    }
    check_children(check, node);
    check_locks(check, node);
    if (kvi_is_root(node)) {
        check_root(check, node);
        return;
    }
    check_key(check, node);
    for (uint32_t slot = 0; slot < tree->part_count; slot++)
        check_part(check, node, slot);
    check_residency(check, node);
    check_leaf(check, node);
    check_marks(check, node);
    if (node->block != NULL)
        node->block->seen++;
    if (node->page_keys != NULL)
        node->page_keys->seen++;
    if (node->event_keys != NULL)
        node->event_keys->seen++;
    if (node->space != 0)
        tree->spaces.items[node->space].seen++;
}

/* ---- Structures beside the nodes ----------------------------------------------------------- */

static void check_shelves(struct check *check, enum kvg_tier tier)
{
    const char *what = kvi_shelves_check(check->tree, tier, check->placed[tier]);

    if (what != NULL)
        broken(check, "T19", NULL, what);
    if (check->leaves[tier] != check->tree->shelves[tier].leaf_count)
        broken(check, "T8", NULL, "the count of leaves is wrong");
}

static void check_list(struct check *check, uint32_t slot, enum kvg_tier tier)
{
    const struct kvg_tree *tree = check->tree;
    const struct kvi_list *list = &tree->lists[slot][tier];
    if (slot == 0) {
        if (list->newest != 0 || list->oldest != 0 || list->count != 0)
            broken(check, "T11", NULL, "FULL has a recency list");
        return;
    }
    const char *what = kvi_list_check(tree, slot, tier);
    if (what != NULL)
        broken(check, "T12", NULL, what);
    if (list->count != check->listed[slot][tier])
        broken(check, "T12", NULL, "a recency list has the wrong length");
}

static void check_sessions(struct check *check)
{
    const struct kvi_node *node = NULL;
    const char *what = kvi_sessions_check(check->tree, &node);

    if (what != NULL)
        broken(check, "T10", node, what);
}

static void check_duplicates(struct check *check)
{
    const struct kvg_tree *tree = check->tree;
    uint64_t count = 0;

    for (kvi_ref ref = tree->duplicate_first; ref != 0;) {
        const struct kvi_node *node = kvi_node_at(tree, ref);
        if (node->id == 0 || (node->flags & KVI_NODE_DUPLICATE) == 0 ||
            ++count > tree->duplicate_count) {
            broken(check, "T9", NULL, "the list of duplicates holds a ghost");
            return;
        }
        ref = node->duplicate_next;
    }
    if (count != tree->duplicate_count || count != check->duplicates)
        broken(check, "T9", NULL, "the list of duplicates has the wrong length");
}

static void clear_seen(const struct kvg_tree *tree)
{
    for (struct kvi_node *n = kvi_node_at(tree, tree->root); n != NULL;
         n = next_node(tree, n)) {
        if (n->block != NULL)
            n->block->seen = 0;
        if (n->page_keys != NULL)
            n->page_keys->seen = 0;
        if (n->event_keys != NULL)
            n->event_keys->seen = 0;
        for (uint32_t slot = 0; slot < tree->part_count; slot++) {
            for (int tier = 0; tier < KVG_TIER_COUNT; tier++) {
                const struct kvi_value *value = &kvi_part(n, slot)->value[tier];
                if (value->length != 0 && value->buffer == KVI_BUFFER_RUNS) {
                    value->at.runs->seen = 0;
                    value->at.runs->seen_slots = 0;
                }
            }
        }
    }
    for (uint32_t i = 1; i < tree->buffer_count; i++)
        tree->buffers[i].seen = 0;
    for (uint32_t i = 1; i < tree->spaces.count; i++)
        tree->spaces.items[i].seen = 0;
}

static void check_seen(struct check *check)
{
    const struct kvg_tree *tree = check->tree;

    for (struct kvi_node *n = kvi_node_at(tree, tree->root); n != NULL;
         n = next_node(tree, n)) {
        if ((n->block != NULL && n->block->seen != n->block->refs) ||
            (n->page_keys != NULL && n->page_keys->seen != n->page_keys->refs) ||
            (n->event_keys != NULL && n->event_keys->seen != n->event_keys->refs))
            broken(check, "T18", n, "a block's references are miscounted");
        for (uint32_t slot = 0; slot < tree->part_count; slot++) {
            for (int tier = 0; tier < KVG_TIER_COUNT; tier++) {
                const struct kvi_value *value = &kvi_part(n, slot)->value[tier];
                if (value->length == 0 || value->buffer != KVI_BUFFER_RUNS)
                    continue;
                const struct kvi_runs *runs = value->at.runs;
                if (runs->seen != runs->refs || runs->seen_slots != runs->live)
                    broken(check, "T18", n, "a run block's references are miscounted");
            }
        }
    }
    for (uint32_t i = 1; i < tree->buffer_count; i++) {
        if (tree->buffers[i].seen != tree->buffers[i].refs)
            broken(check, "T18", NULL, "a buffer's references are miscounted");
    }
    for (uint32_t i = 1; i < tree->spaces.count; i++) {
        if (tree->spaces.items[i].seen != tree->spaces.items[i].refs)
            broken(check, "T18", NULL, "a namespace's references are miscounted");
    }
}

kvg_err kvg_tree_check(const struct kvg_tree *tree, struct kvg_error *error)
{
    struct check check = {.tree = tree, .error = error, .result = KVG_OK};

    clear_seen(tree);
    for (struct kvi_node *n = kvi_node_at(tree, tree->root);
         n != NULL && check.result == KVG_OK; n = next_node(tree, n))
        check_node(&check, n);
    if (check.result != KVG_OK)
        return check.result;
    if (check.nodes != tree->node_count)
        broken(&check, "T20", NULL, "the count of nodes is wrong");
    if (tree->child_used != tree->node_count - 1)
        broken(&check, "T16", NULL, "the table holds something else than the nodes");
    check_shelves(&check, KVG_TIER_DEVICE);
    check_shelves(&check, KVG_TIER_HOST);
    for (uint32_t slot = 0; slot < tree->part_count; slot++) {
        check_list(&check, slot, KVG_TIER_DEVICE);
        check_list(&check, slot, KVG_TIER_HOST);
        if (check.evictable[slot] != tree->evictable[slot] ||
            check.protect[slot] != tree->protect[slot])
            broken(&check, "T13", NULL, "a size is not what a recount gives");
    }
    check_duplicates(&check);
    check_sessions(&check);
    check_seen(&check);
    return check.result;
}
