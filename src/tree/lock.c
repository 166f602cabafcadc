/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* lock.c -- locks as receipts.
 *
 * A wrong release changes nothing at all: components are tried first (dry_run), and FULL takes back
 * what it cannot finish.
 *
 *     lock            FULL path | SWA segment | MAMBA node        -> receipt
 *     unlock_swa                  SWA segment | MAMBA node        early, once
 *     unlock          FULL path, and what was not released early
 */
#include "tree/tree.h"

#include "tree/swa.h"

/* Is there such a node, and does the receipt belong to it? */
static kvg_err find_anchor(const struct kvg_tree *tree, kvg_node_id id,
    const struct kvg_lock_receipt *receipt, struct kvi_node **out,
    struct kvg_error *error)
{
    *out = kvi_node_find(tree, id);
    if (receipt != NULL && receipt->node != KVG_NODE_NONE && receipt->node != id) {
        char message[sizeof(error->message)];
        struct kvi_text text;
        kvi_text_init(&text, message, sizeof(message));
        kvi_text_str(&text, "lock receipt anchored on node ");
        kvi_text_u64(&text, receipt->node);
        kvi_text_str(&text, " released on node ");
        kvi_text_u64(&text, id);
        return kvi_fail(error, KVG_ESTATE, "receipt", message);
    }
    return *out == NULL ? kvi_no_node(error, id) : KVG_OK;
}

/* In pieces that compilers turn into plain stores: a whole one becomes a string instruction, which
 * takes longer than the lock of a short path. */
static void blank_receipt(struct kvg_lock_receipt *out, kvg_node_id id, uint32_t skip)
{
    out->node = id;
    out->delta = 0;
    out->skipped_components = skip;
    out->uuid_components = 0;
    out->host_uuid_components = 0;
    memset(out->uuid, 0, sizeof(out->uuid));
    memset(out->host_uuid, 0, sizeof(out->host_uuid));
}

static bool is_in(uint32_t set, const struct kvi_component *component)
{
    return (set & KVG_COMPONENT_BIT(component->type)) != 0;
}

kvg_err kvg_tree_lock(struct kvg_tree *tree, kvg_node_id id, uint32_t skip,
    struct kvg_lock_receipt *out, struct kvg_error *error)
{
    struct kvi_node *node = kvi_node_find(tree, id);

    blank_receipt(out, node == NULL ? KVG_NODE_NONE : id, node == NULL ? 0 : skip);
    if (node == NULL)
        return kvi_no_node(error, id);
    for (uint32_t slot = 0; slot < tree->part_count; slot++) {
        if (!is_in(skip, tree->components[slot]))
            tree->components[slot]->acquire(tree, node, slot, out);
    }
    return KVG_OK;
}

static kvg_err release_one(struct kvg_tree *tree, struct kvi_node *node, uint32_t slot,
    enum kvg_tier tier, const struct kvg_lock_receipt *receipt, bool dry_run,
    struct kvg_error *error)
{
    const struct kvi_component *component = tree->components[slot];

    return tier == KVG_TIER_DEVICE
               ? component->release(tree, node, slot, receipt, dry_run, error)
               : component->release_host(tree, node, slot, receipt, dry_run, error);
}

/* Releases the components of `set`: all or none.  The others are tried first; then FULL, which
 * takes back what it cannot finish; then nothing can fail any more. */
static kvg_err release_set(struct kvg_tree *tree, struct kvi_node *node, uint32_t set,
    enum kvg_tier tier, const struct kvg_lock_receipt *receipt, struct kvg_error *error)
{
    kvg_err err = KVG_OK;

    for (uint32_t slot = tree->part_count; err == KVG_OK && slot-- > 1;) {
        if (is_in(set, tree->components[slot]))
            err = release_one(tree, node, slot, tier, receipt, true, error);
    }
    if (err == KVG_OK && is_in(set, tree->components[0])) {
        if (tier == KVG_TIER_HOST)
            err = release_one(tree, node, 0, tier, receipt, true, error);
        if (err == KVG_OK)
            err = release_one(tree, node, 0, tier, receipt, false, error);
    }
    if (err != KVG_OK)
        return err;
    for (uint32_t slot = tree->part_count; slot-- > 1;) {
        if (is_in(set, tree->components[slot]))
            (void)release_one(tree, node, slot, tier, receipt, false, error);
    }
    return KVG_OK;
}

/* SWA, and every component that ranks below it on internal nodes. */
static uint32_t swa_and_below(const struct kvg_tree *tree)
{
    uint32_t set = 0;

    if (tree->slot_of[KVG_COMPONENT_SWA] < 0)
        return 0;
    for (uint32_t slot = 0; slot < tree->part_count; slot++) {
        if (tree->components[slot]->internal_rank <= kvi_component_swa.internal_rank)
            set |= KVG_COMPONENT_BIT(tree->components[slot]->type);
    }
    return set;
}

kvg_err kvg_tree_unlock(struct kvg_tree *tree, kvg_node_id id,
    const struct kvg_lock_receipt *receipt, bool skip_swa, struct kvg_error *error)
{
    struct kvi_node *node;
    kvg_err err = find_anchor(tree, id, receipt, &node, error);

    if (err != KVG_OK)
        return err;
    uint32_t set = ~receipt->skipped_components;
    if (skip_swa)
        set &= ~swa_and_below(tree);
    return release_set(tree, node, set, KVG_TIER_DEVICE, receipt, error);
}

kvg_err kvg_tree_unlock_swa(struct kvg_tree *tree, kvg_node_id id,
    const struct kvg_lock_receipt *receipt, struct kvg_actions *actions,
    struct kvg_error *error)
{
    struct kvi_node *node;
    int slot = tree->slot_of[KVG_COMPONENT_SWA];
    kvg_err err = find_anchor(tree, id, receipt, &node, error);

    if (err != KVG_OK || kvi_is_root(node) || slot < 0)
        return err;
    uint32_t below = swa_and_below(tree) & ~KVG_COMPONENT_BIT(KVG_COMPONENT_SWA) &
                     ~receipt->skipped_components;
    for (uint32_t other = 0; other < tree->part_count; other++) {
        const struct kvi_component *component = tree->components[other];
        if (!is_in(below, component))
            continue;
        err = component->release(tree, node, other, receipt, true, error);
        if (err != KVG_OK)
            return err;
    }
    err = kvi_swa_release_window(tree, node, (uint32_t)slot, receipt, actions, error);
    if (err != KVG_OK)
        return err;
    return release_set(tree, node, below, KVG_TIER_DEVICE, receipt, error);
}

kvg_err kvg_tree_unlock_window(struct kvg_tree *tree, kvg_node_id id, uint32_t component,
    const struct kvg_lock_receipt *receipt, struct kvg_actions *actions,
    struct kvg_error *error)
{
    struct kvi_node *node;
    kvg_err err = find_anchor(tree, id, receipt, &node, error);

    if (err != KVG_OK)
        return err;
    if (component != KVG_COMPONENT_SWA || tree->slot_of[component] < 0)
        return kvi_fail(
            error, KVG_EINVAL, "component", "not a window component of this tree");
    if (kvi_is_root(node) ||
        (receipt->skipped_components & KVG_COMPONENT_BIT(component)) != 0)
        return KVG_OK;
    return kvi_swa_release_window(
        tree, node, (uint32_t)tree->slot_of[component], receipt, actions, error);
}

kvg_err kvg_tree_pin_full(struct kvg_tree *tree, kvg_node_id id, struct kvg_error *error)
{
    struct kvi_node *node = kvi_node_find(tree, id);
    struct kvg_lock_receipt unused = {0};

    if (node == NULL)
        return kvi_no_node(error, id);
    kvi_component_full.acquire(tree, node, 0, &unused);
    return KVG_OK;
}

kvg_err kvg_tree_unpin_full(
    struct kvg_tree *tree, kvg_node_id id, struct kvg_error *error)
{
    struct kvi_node *node = kvi_node_find(tree, id);
    struct kvg_lock_receipt unused = {0};

    if (node == NULL)
        return kvi_no_node(error, id);
    return release_set(tree, node, KVG_COMPONENT_BIT(KVG_COMPONENT_FULL), KVG_TIER_DEVICE,
        &unused, error);
}

kvg_err kvg_tree_lock_host(struct kvg_tree *tree, kvg_node_id id,
    struct kvg_lock_receipt *out, struct kvg_error *error)
{
    struct kvi_node *node = kvi_node_find(tree, id);

    blank_receipt(out, node == NULL ? KVG_NODE_NONE : id, 0);
    if (node == NULL)
        return kvi_no_node(error, id);
    for (uint32_t slot = 0; slot < tree->part_count; slot++)
        tree->components[slot]->acquire_host(tree, node, slot, out);
    return KVG_OK;
}

kvg_err kvg_tree_unlock_host(struct kvg_tree *tree, kvg_node_id id,
    const struct kvg_lock_receipt *receipt, struct kvg_error *error)
{
    struct kvi_node *node;
    kvg_err err = find_anchor(tree, id, receipt, &node, error);

    if (err != KVG_OK)
        return err;
    return release_set(
        tree, node, ~receipt->skipped_components, KVG_TIER_HOST, receipt, error);
}
