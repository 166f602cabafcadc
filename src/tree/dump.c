/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* dump.c -- the tree as text.
 *
 *     #1 root
 *       #3 [1 2] full 10+2 swa 110+2 lock 1/1 hits 2 leaf
 *         #2 [3 4 5 .. 9] full 12+2,20+5 host 100+7 pending #2
 *
 * A number after # is a node's creation number.  Values are runs, "slot+length"; those of an
 * embedder's buffer are "buffer:offset+length".  Locks are listed a component; so are counts of
 * sessions.  Sessions follow the nodes, with the frontiers of each component:
 *
 *     session "chat-7" generation 3 full #2 swa #2
 *     closed sessions 1
 */
#include "tree/session.h"

#define TOKENS_SHOWN 8u
#define RUNS_SHOWN 4u

struct out {
    char *data;
    size_t capacity;
    size_t bytes; /* What the text needs so far. */
};

static void put_char(struct out *out, char c)
{
    if (out->bytes + 1 < out->capacity)
        out->data[out->bytes] = c;
    out->bytes++;
}

static void put(struct out *out, const char *text)
{
    for (; *text != '\0'; text++)
        put_char(out, *text);
}

static void put_number(struct out *out, uint64_t value)
{
    char digits[20];
    int count = 0;

    do {
        digits[count++] = (char)('0' + value % 10);
        value /= 10;
    } while (value != 0);
    while (count != 0)
        put_char(out, digits[--count]);
}

static void put_id(struct out *out, kvg_node_id id)
{
    put_char(out, '#');
    put_number(out, id >> KVI_REF_BITS);
}

static void put_name(struct out *out, uint32_t component)
{
    for (const char *c = kvg_component_name(component); *c != '\0'; c++)
        put_char(out, (char)(*c >= 'A' && *c <= 'Z' ? *c - 'A' + 'a' : *c));
}

static void put_key(
    struct out *out, const struct kvg_tree *tree, const struct kvi_node *node)
{
    const uint32_t *tokens = kvi_node_tokens(node);
    uint32_t count = kvi_tokens_for(tree, node->length);

    put_char(out, '[');
    for (uint32_t i = 0; i < count; i++) {
        if (count > TOKENS_SHOWN && i == TOKENS_SHOWN - 2) {
            put(out, " ..");
            i = count - 1;
        }
        if (i != 0)
            put_char(out, ' ');
        put_number(out, tokens[i]);
    }
    put_char(out, ']');
}

static void put_value(struct out *out, const struct kvi_value *value)
{
    uint32_t shown = 0;

    for (uint32_t at = 0; at < value->length; shown++) {
        struct kvg_span span = kvi_value_span_at(value, at);
        if (shown == RUNS_SHOWN) {
            put(out, ",..");
            return;
        }
        if (shown != 0)
            put_char(out, ',');
        if (span.buffer != KVG_BUFFER_POOL) {
            put_number(out, span.buffer);
            put_char(out, ':');
        }
        put_number(out, span.offset);
        put_char(out, '+');
        put_number(out, span.length);
        at += span.length;
    }
}

static void put_parts(
    struct out *out, const struct kvg_tree *tree, const struct kvi_node *node)
{
    bool locked = false;

    for (uint32_t slot = 0; slot < tree->part_count; slot++) {
        for (int tier = 0; tier < KVG_TIER_COUNT; tier++) {
            const struct kvi_value *value = &kvi_part(node, slot)->value[tier];
            if (value->length == 0)
                continue;
            put_char(out, ' ');
            put_name(out, tree->components[slot]->type);
            put(out, tier == KVG_TIER_HOST ? " host " : " ");
            put_value(out, value);
        }
    }
    for (int tier = 0; tier < KVG_TIER_COUNT; tier++) {
        locked = false;
        for (uint32_t slot = 0; slot < tree->part_count; slot++)
            locked = locked || kvi_part(node, slot)->lock[tier] != 0;
        if (!locked)
            continue;
        put(out, tier == KVG_TIER_HOST ? " host lock " : " lock ");
        for (uint32_t slot = 0; slot < tree->part_count; slot++) {
            if (slot != 0)
                put_char(out, '/');
            put_number(out, kvi_part(node, slot)->lock[tier]);
        }
    }
}

static void put_session_counts(
    struct out *out, const struct kvg_tree *tree, const struct kvi_node *node)
{
    bool any = false;

    for (uint32_t slot = 0; slot < tree->part_count; slot++)
        any = any || kvi_in_session(node, slot);
    if (!any)
        return;
    put(out, " sessions ");
    for (uint32_t slot = 0; slot < tree->part_count; slot++) {
        if (slot != 0)
            put_char(out, '/');
        put_number(out, slot == 0 ? node->sessions : kvi_aux(node, slot)->sessions);
    }
}

/* A session's id is from outside: what is not plain text is shown as a dot. */
static void put_session(
    struct out *out, const struct kvg_tree *tree, const struct kvi_session *session)
{
    put(out, "session \"");
    for (uint32_t i = 0; i < session->id_bytes; i++) {
        char c = session->id[i];
        put_char(out, c < ' ' || c > '~' || c == '"' ? '.' : c);
    }
    put(out, "\" generation ");
    put_number(out, session->generation);
    for (uint32_t slot = 0; slot < tree->part_count; slot++) {
        if (session->first[slot] == KVI_NOBODY)
            continue;
        put_char(out, ' ');
        put_name(out, tree->components[slot]->type);
        for (uint32_t f = session->first[slot]; f != KVI_NOBODY;
             f = kvi_frontier_at(tree, f)->next) {
            put_char(out, ' ');
            put_id(out, kvi_node_at(tree, kvi_frontier_at(tree, f)->node)->id);
        }
    }
    put_char(out, '\n');
}

static void put_sessions(struct out *out, const struct kvg_tree *tree)
{
    for (uint32_t i = 1; i < tree->sessions.count; i++) {
        if (tree->sessions.items[i].generation != 0)
            put_session(out, tree, &tree->sessions.items[i]);
    }
    if (tree->sessions.closed_count == 0)
        return;
    put(out, "closed sessions ");
    put_number(out, tree->sessions.closed_count);
    put_char(out, '\n');
}

static void put_node(struct out *out, const struct kvg_tree *tree,
    const struct kvi_node *node, uint32_t level)
{
    for (uint32_t i = 0; i < level; i++)
        put(out, "  ");
    put_id(out, node->id);
    if (kvi_is_root(node)) {
        put(out, " root\n");
        return;
    }
    put_char(out, ' ');
    put_key(out, tree, node);
    if (node->space != 0) {
        put(out, " space ");
        put_number(out, node->space);
    }
    put_parts(out, tree, node);
    put_session_counts(out, tree, node);
    if (node->hits != 0) {
        put(out, " hits ");
        put_number(out, node->hits);
    }
    if (node->pending_write != KVG_NODE_NONE) {
        put(out, " pending ");
        put_id(out, node->pending_write);
    }
    if (node->rotation != 0) {
        put(out, " rotation ");
        put_number(out, node->rotation - 1);
    }
    if ((node->flags & KVI_NODE_STORED) != 0)
        put(out, " stored");
    if ((node->flags & KVI_NODE_DEVICE_LEAF) != 0)
        put(out, " leaf");
    if ((node->flags & KVI_NODE_HOST_LEAF) != 0)
        put(out, " host-leaf");
    put_char(out, '\n');
}

size_t kvg_tree_dump(const struct kvg_tree *tree, char *text, size_t capacity_bytes)
{
    struct out out = {text, capacity_bytes, 0};
    const struct kvi_node *node = kvi_node_at(tree, tree->root);
    uint32_t level = 0;

    while (node != NULL) {
        put_node(&out, tree, node, level);
        if (node->first_child != 0) {
            node = kvi_node_at(tree, node->first_child);
            level++;
            continue;
        }
        while (node != NULL && node->next_sibling == 0) {
            node = kvi_parent(tree, node);
            level--;
        }
        if (node != NULL)
            node = kvi_node_at(tree, node->next_sibling);
    }
    put_sessions(&out, tree);
    if (capacity_bytes != 0)
        text[out.bytes < capacity_bytes ? out.bytes : capacity_bytes - 1] = '\0';
    return out.bytes;
}
