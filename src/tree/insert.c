/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* insert.c -- the resumable insert.
 *
 * One insert at a time.  It is a loop of steps; between two steps the tree is whole.
 *
 *     WALK     one existing node: match, split if it parts inside, free what the tree has
 *              already, or take it where the node lacked it; again, until no child fits
 *     COMMIT   the rest becomes a leaf; components add what is theirs
 *     TAIL     recency, hits, the backup that has become due; the result
 *
 * After a WALK or COMMIT step that decided something which must be done before the next step can
 * be right (a mapping rebuilt, a backup without linker), everything decided so far is handed
 * out.  Frees, relocations of pending writes and, with the external store, backups can wait and
 * ride along.
 *
 * A step reserves all memory before it changes anything but a split, so a step that fails can be
 * repeated.
 */
#include "tree/tree.h"

#include "tree/record.h"

/* ---- What components use ------------------------------------------------------------------- */

static kvg_err no_memory(struct kvg_error *error)
{
    return kvi_fail(error, KVG_ENOMEM, "insert", "no memory for an insert step");
}

kvg_err kvi_insert_reserve(struct kvg_tree *tree, uint32_t items, uint32_t spans,
    uint32_t nodes, struct kvg_error *error)
{
    struct kvi_insert *insert = &tree->insert;
    kvg_err err = kvi_tree_reserve_nodes(tree, nodes, error);

    if (err != KVG_OK)
        return err;
    if (kvi_actions_reserve(&insert->pending, items, spans, insert->path_bound) != KVG_OK)
        return no_memory(error);
    for (uint32_t slot = 0; insert->params.track_adopted && slot < tree->part_count;
         slot++) {
        if (insert->range_count[slot] < insert->range_capacity[slot])
            continue;
        uint32_t wanted =
            insert->range_capacity[slot] == 0 ? 8 : insert->range_capacity[slot] * 2;
        void *ranges = insert->ranges[slot];
        if (!kvi_resize_array(&tree->alloc, &ranges, insert->range_capacity[slot], wanted,
                sizeof(struct kvg_tree_range)))
            return no_memory(error);
        insert->ranges[slot] = ranges;
        insert->range_capacity[slot] = wanted;
    }
    return KVG_OK;
}

uint32_t kvi_insert_span_count(const struct kvg_tree *tree, uint64_t start, uint64_t end)
{
    const struct kvi_insert *insert = &tree->insert;

    return kvi_spans_cut_count(insert->params.value + insert->value_index,
        insert->params.value_count - insert->value_index, start - insert->value_start,
        end - start);
}

void kvi_insert_add_spans(
    struct kvg_tree *tree, uint64_t start, uint64_t end, bool second)
{
    struct kvi_insert *insert = &tree->insert;
    const struct kvg_span *spans = insert->params.value + insert->value_index;
    size_t count = insert->params.value_count - insert->value_index;

    if (second)
        kvi_actions_add_spans2(
            &insert->pending, spans, count, start - insert->value_start, end - start);
    else
        kvi_actions_add_spans(
            &insert->pending, spans, count, start - insert->value_start, end - start);
}

kvg_err kvi_insert_value(
    struct kvg_tree *tree, uint64_t start, uint32_t length, struct kvi_value *out)
{
    const struct kvi_insert *insert = &tree->insert;

    return kvi_value_make(tree, insert->params.value + insert->value_index,
        insert->params.value_count - insert->value_index, start - insert->value_start,
        length, out);
}

void kvi_insert_adopt(struct kvg_tree *tree, uint32_t slot, uint64_t start, uint64_t end)
{
    struct kvi_insert *insert = &tree->insert;

    if (!insert->params.track_adopted || start >= end)
        return;
    uint32_t count = insert->range_count[slot];
    if (count != 0 && start <= insert->ranges[slot][count - 1].end) {
        struct kvg_tree_range *last = &insert->ranges[slot][count - 1];
        if (end > last->end)
            last->end = end;
        return;
    }
    KVI_ASSERT(count < insert->range_capacity[slot]);
    insert->ranges[slot][count] =
        (struct kvg_tree_range){tree->components[slot]->type, start, end};
    insert->range_count[slot] = count + 1;
}

/* ---- Backup -------------------------------------------------------------------------------- */

bool kvi_joins_backup(const struct kvg_tree *tree, const struct kvi_node *node)
{
    const struct kvg_tree_settings *settings = &tree->settings;
    bool wanted = settings->sparse_retention ||
                  (!kvi_backed_up(node) && (node->flags & KVI_NODE_STORED) == 0);

    return wanted && (!settings->external_store || node->pending_write == KVG_NODE_NONE);
}

/* Appends the backup of `node`, its ancestors first, or merges it into the one that is pending.
 * The pending one ends at an ancestor, and the climb from there was done then.  Room for the whole
 * path was reserved. */
static void add_backup(struct kvg_tree *tree, struct kvi_node *node)
{
    struct kvi_insert *insert = &tree->insert;
    struct kvg_actions *pending = &insert->pending;
    struct kvg_action *action =
        insert->backup_at == 0 ? NULL : &pending->items[insert->backup_at - 1];
    kvg_node_id known = KVG_NODE_NONE;
    uint32_t count = 1;

    if (!tree->settings.external_store)
        action = NULL;
    if (action != NULL && action->node_count != 0)
        known = pending->nodes[action->node_first + action->node_count - 1];
    if (known == node->id)
        return;
    if (!tree->settings.write_back) {
        for (struct kvi_node *n = kvi_parent(tree, node);
             !kvi_is_root(n) && n->id != known && kvi_joins_backup(tree, n);
             n = kvi_parent(tree, n))
            count++;
    }
    KVI_ASSERT(pending->node_count + count <= pending->node_capacity);
    if (action == NULL) {
        action = kvi_actions_add(pending, KVG_ACTION_BACKUP);
        action->replay_boundary = insert->key_units;
        action->include_prompt_boundary = !insert->params.chunked;
        insert->backup_at = pending->count;
    }
    kvg_node_id *end = pending->nodes + pending->node_count + count;
    pending->node_count += count;
    action->node_count += count;
    for (; count != 0; count--, node = kvi_parent(tree, node))
        *--end = node->id;
}

/* The hit that this insert is for `node`, and the backup that it makes due. */
static void count_hit(struct kvg_tree *tree, struct kvi_node *node)
{
    const struct kvg_tree_settings *settings = &tree->settings;
    bool due = false;

    if (kvi_evicted(node) || tree->insert.params.chunked || settings->write_back ||
        node->depth <= tree->insert.params.inserted_length)
        return;
    if (node->hits != UINT32_MAX)
        node->hits++;
    kvi_leaf_touched(tree, node);
    if (settings->external_store)
        due = (node->flags & KVI_NODE_STORED) == 0 &&
              node->pending_write == KVG_NODE_NONE &&
              node->hits >= settings->write_through_hits;
    else if (settings->host_tier)
        due = !kvi_backed_up(node) && node->hits >= settings->write_through_hits;
    if (due)
        add_backup(tree, node);
}

/* ---- WALK ---------------------------------------------------------------------------------- */

/* A window cursor that parts the units from `total` to `end` has to part them between pages. */
static kvg_err check_cursor(
    const struct kvg_tree *tree, uint64_t end, struct kvg_error *error)
{
    uint64_t cursor = tree->insert.params.evicted_length[KVG_COMPONENT_SWA];

    if (tree->slot_of[KVG_COMPONENT_SWA] < 0 || cursor <= tree->insert.total ||
        cursor >= end || cursor % tree->options.page_size == 0)
        return KVG_OK;
    return kvi_fail_node(error, KVG_EINVAL, "insert.evicted_length",
        "swa_evicted_seqlen must be page-aligned, got ", cursor, "");
}

/* FULL comes back to a node that had lost it.  Everything was reserved. */
static kvg_err unevict(
    struct kvg_tree *tree, struct kvi_node *node, struct kvg_error *error)
{
    struct kvi_insert *insert = &tree->insert;
    struct kvi_value value;
    kvg_err err = check_cursor(tree, (uint64_t)insert->total + node->length, error);

    if (err == KVG_OK)
        err = kvi_record_prepare(tree, node, error);
    if (err != KVG_OK)
        return err;
    if (kvi_insert_value(tree, insert->total, node->length, &value) != KVG_OK)
        return no_memory(error);
    kvi_device_value_put(tree, node, 0, &value);
    kvi_leaf_update(tree, node);
    kvi_leaf_update(tree, kvi_parent(tree, node));
    kvi_duplicate_update(tree, node);
    kvi_record_stored(tree, node, KVG_MEDIUM_DEVICE, insert->params.session_id);
    kvi_insert_adopt(tree, 0, insert->total, (uint64_t)insert->total + node->length);
    for (uint32_t slot = 1; slot < tree->part_count && err == KVG_OK; slot++)
        err = tree->components[slot]->unevict(tree, node, slot, error);
    return err;
}

/* The slots that came in for a node which the tree has already. */
static void free_duplicates(struct kvg_tree *tree, uint32_t consumed_from)
{
    struct kvi_insert *insert = &tree->insert;
    uint64_t start = insert->params.prev_prefix_length > insert->total
                         ? insert->params.prev_prefix_length
                         : insert->total;
    uint64_t end = (uint64_t)insert->total + consumed_from;
    uint64_t cursor = insert->params.evicted_length[KVG_COMPONENT_SWA];
    uint64_t middle = cursor > end ? end : cursor;

    if (tree->slot_of[KVG_COMPONENT_SWA] < 0)
        middle = start;
    if (middle > start) {
        kvi_actions_add(&insert->pending, KVG_ACTION_FREE_DEVICE_FULL_ONLY);
        kvi_insert_add_spans(tree, start, middle, false);
        start = middle;
    }
    if (end > start) {
        kvi_actions_add(&insert->pending, KVG_ACTION_FREE_DEVICE);
        kvi_insert_add_spans(tree, start, end, false);
    }
}

static kvg_err overlap(struct kvg_tree *tree, struct kvi_node **node, uint32_t matched,
    struct kvg_error *error)
{
    uint32_t consumed_from = matched;

    for (uint32_t slot = 0; slot < tree->part_count; slot++) {
        uint32_t from = matched;
        kvg_err err =
            tree->components[slot]->overlap(tree, node, slot, matched, &from, error);
        if (err != KVG_OK)
            return err;
        if (from < consumed_from)
            consumed_from = from;
    }
    free_duplicates(tree, consumed_from);
    return KVG_OK;
}

/* Moves on by `units`, and the place in the value with it. */
static void advance(struct kvi_insert *insert, uint32_t units)
{
    insert->total += units;
    while (insert->value_index < insert->params.value_count) {
        uint64_t end =
            insert->value_start + insert->params.value[insert->value_index].length;
        if (end > insert->total)
            break;
        insert->value_start = end;
        insert->value_index++;
    }
}

static kvg_err walk(struct kvg_tree *tree, struct kvg_error *error)
{
    struct kvi_insert *insert = &tree->insert;
    struct kvi_node *node = kvi_node_find(tree, insert->node);
    struct kvi_node *child = NULL;
    uint32_t matched;

    if (node == NULL)
        return kvi_fail(error, KVG_ESTATE, "insert", "the walk's node is gone");
    if (insert->total < insert->key_units && insert->space_known)
        child = kvi_descend(tree, &insert->descent, node, insert->total, &matched);
    if (child == NULL) {
        insert->phase = KVI_INSERT_COMMIT;
        return KVG_OK;
    }
    const struct kvi_value *full = &child->full.value[KVG_TIER_DEVICE];
    uint64_t spans = kvi_insert_span_count(tree, insert->total, insert->total + matched);
    spans = spans * 4 + kvi_value_span_count(full, 0, full->length) + 8;
    if (spans > UINT32_MAX)
        return no_memory(error);
    insert->path_bound += insert->keeps_path ? 3 : 0;
    kvg_err err = kvi_insert_reserve(tree, 10, (uint32_t)spans, 3, error);
    if (err != KVG_OK)
        return err;

    child->last_access = kvi_tick(tree);
    kvi_leaf_touched(tree, child);
    if (matched < child->length)
        child = kvi_node_split(tree, child, matched, &insert->pending);
    if (insert->params.priority > child->priority)
        child->priority = insert->params.priority;
    err = kvi_evicted(child) ? unevict(tree, child, error)
                             : overlap(tree, &child, matched, error);
    if (err != KVG_OK)
        return err;
    count_hit(tree, child);
    advance(insert, matched);
    insert->node = child->id;
    return KVG_OK;
}

/* ---- COMMIT -------------------------------------------------------------------------------- */

/* Ancestors learn how long their longest continuation is (tlru). */
static void raise_history(struct kvg_tree *tree, struct kvi_node *leaf)
{
    if (tree->options.policy != KVG_POLICY_TLRU)
        return;
    if (leaf->history < leaf->depth)
        leaf->history = leaf->depth;
    for (struct kvi_node *n = kvi_parent(tree, leaf);
         !kvi_is_root(n) && n->history < leaf->history; n = kvi_parent(tree, n))
        n->history = leaf->history;
}

/* The parts of a leaf that need memory. */
struct leaf_parts {
    uint32_t space;
    bool has_space;
    struct kvi_block *block;
    struct kvi_keys *keys, *event_keys;
    struct kvi_value value;
};

static void drop_parts(struct kvg_tree *tree, struct leaf_parts *parts)
{
    kvi_value_clear(tree, &parts->value);
    kvi_keys_drop(tree, parts->keys);
    kvi_keys_drop(tree, parts->event_keys);
    kvi_block_drop(tree, parts->block);
    if (parts->has_space)
        kvi_space_drop(tree, parts->space);
}

static kvg_err make_parts(struct kvg_tree *tree, struct kvi_node *parent, uint32_t units,
    struct leaf_parts *parts, struct kvg_error *error)
{
    struct kvi_insert *insert = &tree->insert;
    const uint32_t *tokens = insert->key.tokens + insert->total;

    *parts = (struct leaf_parts){0};
    if (kvi_space_hold(tree, &insert->key.space, &parts->space) != KVG_OK)
        goto fail;
    parts->has_space = true;
    parts->block = kvi_block_make(tree, tokens, kvi_tokens_for(tree, units));
    if (parts->block == NULL ||
        kvi_insert_value(tree, insert->total, units, &parts->value) != KVG_OK)
        goto fail;
    bool keys_wanted = tree->settings.storage || tree->settings.external_store;
    if (tree->recorder != NULL && parts->space != 0) {
        parts->event_keys =
            kvi_event_keys_make(tree, parent, parts->space, tokens, units);
        if (parts->event_keys == NULL)
            goto fail;
    } else if (tree->recorder != NULL) {
        keys_wanted = true;
    }
    if (keys_wanted) {
        parts->keys = kvi_page_keys_make(tree, parent, parts->space, tokens, units);
        if (parts->keys == NULL)
            goto fail;
    }
    return KVG_OK;

fail:
    drop_parts(tree, parts);
    return no_memory(error);
}

static kvg_err add_leaf(
    struct kvg_tree *tree, struct kvi_node *parent, struct kvg_error *error)
{
    struct kvi_insert *insert = &tree->insert;
    uint32_t units = insert->key_units - insert->total;
    struct leaf_parts parts;
    kvg_err err = make_parts(tree, parent, units, &parts, error);

    if (err != KVG_OK)
        return err;
    uint64_t spans = kvi_value_span_count(&parts.value, 0, units) + UINT64_C(8);
    err = spans > UINT32_MAX ? no_memory(error)
                             : kvi_insert_reserve(tree, 8, (uint32_t)spans, 3, error);
    if (err == KVG_OK)
        err = check_cursor(tree, insert->key_units, error);
    if (err == KVG_OK)
        err = kvi_record_reserve(tree, units, error);
    if (err != KVG_OK) {
        drop_parts(tree, &parts);
        return err;
    }

    struct kvi_node *leaf = kvi_node_new(tree);
    leaf->space = parts.space;
    leaf->block = parts.block;
    leaf->tokens = parts.block->tokens;
    leaf->page_keys = parts.keys;
    leaf->event_keys = parts.event_keys;
    leaf->length = units;
    leaf->depth = parent->depth + units;
    leaf->priority = insert->params.priority;
    leaf->rotation = kvi_rotation_of(&insert->params);
    kvi_child_link(tree, parent, leaf);
    kvi_device_value_put(tree, leaf, 0, &parts.value);
    raise_history(tree, leaf);
    kvi_leaf_update(tree, leaf);
    kvi_leaf_update(tree, parent);
    kvi_insert_adopt(tree, 0, insert->total, insert->key_units);
    insert->is_new_leaf = true;
    insert->target = leaf->id;
    kvi_record_stored(tree, leaf, KVG_MEDIUM_DEVICE, insert->params.session_id);
    return KVG_OK;
}

static kvg_err commit(struct kvg_tree *tree, struct kvg_error *error)
{
    struct kvi_insert *insert = &tree->insert;
    struct kvi_node *node = kvi_node_find(tree, insert->node);
    kvg_err err;

    if (node == NULL)
        return kvi_fail(error, KVG_ESTATE, "insert", "the walk's node is gone");
    err = kvi_insert_reserve(tree, 8, 8, 3, error);
    if (err != KVG_OK)
        return err;
    insert->is_new_leaf = false;
    insert->target = node->id;
    if (insert->total < insert->key_units) {
        err = add_leaf(tree, node, error);
        if (err != KVG_OK)
            return err;
    }
    insert->phase = KVI_INSERT_TAIL;
    insert->result.prefix_length = insert->total;
    insert->result.last_node = insert->target;
    struct kvi_node *target = kvi_node_find(tree, insert->target);
    for (uint32_t slot = 0; slot < tree->part_count; slot++) {
        err = tree->components[slot]->commit(
            tree, target, slot, insert->is_new_leaf, error);
        if (err != KVG_OK)
            return err;
    }
    return KVG_OK;
}

/* ---- TAIL ---------------------------------------------------------------------------------- */

static bool boundary_crossed(const struct kvg_tree *tree)
{
    const struct kvi_insert *insert = &tree->insert;
    uint64_t interval = tree->settings.retention_interval;

    if (!insert->params.chunked)
        return true;
    return interval != 0 &&
           insert->params.prev_prefix_length / interval < insert->key_units / interval;
}

/* Does a node that is backed up need its other components written after it? */
static bool needs_increment(const struct kvg_tree *tree, const struct kvi_node *node)
{
    if (!tree->settings.host_tier || !kvi_backed_up(node) ||
        node->pending_write != KVG_NODE_NONE)
        return false;
    for (uint32_t slot = 1; slot < tree->part_count; slot++) {
        const struct kvi_component *component = tree->components[slot];
        if (tree->settings.write_back && component->type != KVG_COMPONENT_SWA)
            continue;
        if (component->needs_backup(tree, node, slot))
            return true;
    }
    return false;
}

static kvg_err gather_adopted(struct kvg_tree *tree, struct kvg_error *error)
{
    struct kvi_insert *insert = &tree->insert;
    uint32_t count = 0;

    for (uint32_t slot = 0; slot < tree->part_count; slot++)
        count += insert->range_count[slot];
    if (count > insert->adopted_capacity) {
        void *adopted = insert->adopted;
        if (!kvi_resize_array(&tree->alloc, &adopted, insert->adopted_capacity, count,
                sizeof(*insert->adopted)))
            return no_memory(error);
        insert->adopted = adopted;
        insert->adopted_capacity = count;
    }
    count = 0;
    for (uint32_t slot = 0; slot < tree->part_count; slot++) {
        for (uint32_t i = 0; i < insert->range_count[slot]; i++)
            insert->adopted[count++] = insert->ranges[slot][i];
    }
    insert->result.adopted = insert->adopted;
    insert->result.adopted_count = count;
    insert->result.adopted_tracked = insert->params.track_adopted;
    return KVG_OK;
}

static kvg_err tail(struct kvg_tree *tree, struct kvg_error *error)
{
    struct kvi_insert *insert = &tree->insert;
    struct kvi_node *target = kvi_node_find(tree, insert->target);
    kvg_err err = gather_adopted(tree, error);

    if (err == KVG_OK)
        err = kvi_insert_reserve(tree, 1, 0, 0, error);
    if (err != KVG_OK)
        return err;
    if (target == NULL)
        return KVG_OK; /* Evicted while its actions were done. */
    if (!kvi_is_root(target)) {
        for (uint32_t slot = 0; slot < tree->part_count; slot++)
            tree->components[slot]->refresh_insert(tree, target, slot);
    }
    if (tree->settings.sparse_retention) {
        if (boundary_crossed(tree) && !kvi_is_root(target) && kvi_on_device(target))
            add_backup(tree, target);
    } else if (insert->is_new_leaf) {
        count_hit(tree, target);
    } else if (needs_increment(tree, target)) {
        add_backup(tree, target);
    }
    return KVG_OK;
}

/* ---- The loop ------------------------------------------------------------------------------ */

static bool must_be_done_first(const struct kvg_tree *tree, enum kvg_action_kind kind)
{
    switch (kind) {
    case KVG_ACTION_FREE_DEVICE:
    case KVG_ACTION_FREE_DEVICE_FULL_ONLY:
    case KVG_ACTION_REPLACE_ON_SPLIT:
        return false;
    case KVG_ACTION_BACKUP:
        return !tree->settings.external_store;
    default:
        return true;
    }
}

static kvg_err hand_out(
    struct kvg_tree *tree, struct kvg_actions *actions, struct kvg_error *error)
{
    if (kvi_actions_move(actions, &tree->insert.pending) != KVG_OK)
        return no_memory(error);
    tree->insert.backup_at = 0;
    tree->insert.flush_due = false;
    return KVG_OK;
}

static void reset_insert(struct kvi_insert *insert)
{
    insert->phase = KVI_INSERT_IDLE;
    insert->backup_at = 0;
    insert->flush_due = false;
    memset(insert->range_count, 0, sizeof(insert->range_count));
    insert->params = (struct kvg_tree_insert){0};
    insert->key = (struct kvg_tree_key){0};
}

static kvg_err run(struct kvg_tree *tree, struct kvg_actions *actions,
    struct kvg_tree_inserted *out, struct kvg_error *error)
{
    struct kvi_insert *insert = &tree->insert;
    kvg_err err = KVG_OK;
    uint32_t space;

    insert->space_known = kvi_space_find(tree, &insert->key.space, &space);
    kvi_descent_init(&insert->descent, insert->key.tokens, insert->key_units, space);
    while (!insert->flush_due) {
        uint32_t before = insert->pending.count;
        enum kvi_insert_phase phase = insert->phase;
        if (phase == KVI_INSERT_WALK)
            err = walk(tree, error);
        else if (phase == KVI_INSERT_COMMIT)
            err = commit(tree, error);
        else
            err = tail(tree, error);
        for (uint32_t i = before; i < insert->pending.count; i++) {
            if (must_be_done_first(tree, insert->pending.items[i].kind))
                insert->flush_due = phase != KVI_INSERT_TAIL;
        }
        if (err != KVG_OK)
            return err;
        if (phase == KVI_INSERT_TAIL)
            break;
    }
    bool done = !insert->flush_due;
    err = hand_out(tree, actions, error);
    if (err != KVG_OK)
        return err;
    if (!done)
        return KVG_OK;
    insert->result.struct_bytes = sizeof(insert->result);
    insert->result.done = true;
    *out = insert->result;
    tree->stats.inserts++;
    reset_insert(insert);
    return KVG_OK;
}

static kvg_err check_params(const struct kvg_tree *tree,
    const struct kvg_tree_insert *params, uint64_t units, struct kvg_error *error)
{
    uint64_t slots = 0;

    if (units > UINT32_MAX / 2)
        return kvi_fail_range(error, "insert.key", units, 0, UINT32_MAX / 2);
    for (size_t i = 0; i < params->value_count; i++)
        slots += params->value[i].length;
    if (slots < units)
        return kvi_fail_range(error, "insert.value", slots, units, UINT32_MAX / 2);
    if (tree->slot_of[KVG_COMPONENT_MAMBA] >= 0 && units != 0 &&
        params->mamba.length != 1)
        return kvi_fail_range(error, "insert.mamba.length", params->mamba.length, 1, 1);
    if (params->rotation_base < -1 || params->rotation_base > KVG_TREE_ROTATION_MAX)
        return kvi_fail_range(error, "insert.rotation_base",
            (uint64_t)params->rotation_base, 0, KVG_TREE_ROTATION_MAX);
    return KVG_OK;
}

void kvg_tree_insert_init(struct kvg_tree_insert *insert)
{
    *insert = (struct kvg_tree_insert){
        .struct_bytes = sizeof(*insert), .swa_branching = -1, .rotation_base = -1};
}

kvg_err kvg_tree_insert_begin(struct kvg_tree *tree, const struct kvg_tree_insert *params,
    struct kvg_actions *actions, struct kvg_tree_inserted *out, struct kvg_error *error)
{
    struct kvi_insert *insert = &tree->insert;
    struct kvi_node *root = kvi_node_at(tree, tree->root);
    struct kvg_tree_key key;

    *out = (struct kvg_tree_inserted){.struct_bytes = sizeof(*out)};
    if (insert->phase != KVI_INSERT_IDLE)
        return kvi_fail(error, KVG_EBUSY, "insert", "concurrent insert walks");
    uint64_t units = kvi_tree_key(tree, &params->key, &key);
    kvg_err err = check_params(tree, params, units, error);
    if (err != KVG_OK)
        return err;

    root->last_access = kvi_tick(tree);
    if (params->priority > root->priority)
        root->priority = params->priority;
    if (units == 0) {
        out->done = true;
        out->last_node = root->id;
        out->mamba_exists = true;
        return KVG_OK;
    }
    if (kvi_rotation_declines(tree, params, &key, units, out))
        return KVG_OK;
    reset_insert(insert);
    insert->phase = KVI_INSERT_WALK;
    insert->params = *params;
    insert->key = key;
    insert->key_units = (uint32_t)units;
    insert->total = 0;
    insert->value_index = 0;
    insert->value_start = 0;
    insert->keeps_path = tree->settings.external_store || tree->settings.host_tier;
    insert->path_bound = insert->keeps_path ? 6 : 0;
    advance(insert, 0);
    insert->node = root->id;
    insert->result = (struct kvg_tree_inserted){.last_node = root->id};
    return run(tree, actions, out, error);
}

kvg_err kvg_tree_insert_resume(struct kvg_tree *tree, struct kvg_actions *actions,
    struct kvg_tree_inserted *out, struct kvg_error *error)
{
    *out = (struct kvg_tree_inserted){.struct_bytes = sizeof(*out)};
    if (tree->insert.phase == KVI_INSERT_IDLE)
        return kvi_fail(error, KVG_ESTATE, "insert", "no in-flight insert");
    return run(tree, actions, out, error);
}

kvg_err kvg_tree_insert_end(struct kvg_tree *tree, struct kvg_actions *actions)
{
    if (tree->insert.phase == KVI_INSERT_IDLE)
        return KVG_OK;
    if (hand_out(tree, actions, NULL) != KVG_OK)
        return KVG_ENOMEM;
    reset_insert(&tree->insert);
    return KVG_OK;
}

bool kvg_tree_insert_in_flight(const struct kvg_tree *tree)
{
    return tree->insert.phase != KVI_INSERT_IDLE;
}
