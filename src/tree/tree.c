/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* tree.c -- a tree's beginning and end, and looking at its nodes. */
#include "tree/tree.h"

#include "tree/record.h"

/* ---- Memory, counted ----------------------------------------------------------------------- */

static void *counted_allocate(void *context, size_t bytes)
{
    struct kvg_tree *tree = context;
    void *memory = tree->parent_alloc->allocate(tree->parent_alloc->context, bytes);

    if (memory != NULL)
        tree->memory_bytes += bytes;
    return memory;
}

static void counted_release(void *context, void *memory, size_t bytes)
{
    struct kvg_tree *tree = context;

    tree->memory_bytes -= bytes;
    tree->parent_alloc->release(tree->parent_alloc->context, memory, bytes);
}

/* ---- Names --------------------------------------------------------------------------------- */

const char *kvg_component_name(uint32_t component)
{
    static const char *const names[KVG_COMPONENT_COUNT] = {
        "FULL", "SWA", "MAMBA", "C128", "AUXILIARY_SWA"};

    return component < KVG_COMPONENT_COUNT ? names[component] : "?";
}

static const char *const policy_names[KVG_POLICY_COUNT] = {
    "lru", "lfu", "fifo", "mru", "filo", "priority", "slru", "tlru"};

static bool same_word(struct kvg_str text, const char *word)
{
    size_t i;

    for (i = 0; i < text.bytes && word[i] != '\0'; i++) {
        char c = text.data[i];
        if (c >= 'A' && c <= 'Z')
            c = (char)(c - 'A' + 'a');
        if (c != word[i])
            return false;
    }
    return i == text.bytes && word[i] == '\0';
}

kvg_err kvg_policy_parse(
    struct kvg_str name, enum kvg_policy *out, struct kvg_error *error)
{
    char message[sizeof(error->message)];
    struct kvi_text text;

    *out = KVG_POLICY_LRU;
    for (uint32_t i = 0; i < KVG_POLICY_COUNT; i++) {
        if (same_word(name, policy_names[i])) {
            *out = (enum kvg_policy)i;
            return KVG_OK;
        }
    }
    kvi_text_init(&text, message, sizeof(message));
    kvi_text_str(&text, "Unknown eviction policy: ");
    kvi_text_bytes(&text, name.bytes > 32 ? (struct kvg_str){name.data, 32} : name);
    kvi_text_str(&text, ". Supported policies:");
    for (uint32_t i = 0; i < KVG_POLICY_COUNT; i++) {
        kvi_text_str(&text, i == 0 ? " '" : ", '");
        kvi_text_str(&text, policy_names[i]);
        kvi_text_str(&text, "'");
    }
    kvi_text_str(&text, ".");
    return kvi_fail(error, KVG_EINVAL, "policy", message);
}

/* ---- Options ------------------------------------------------------------------------------- */

void kvg_tree_options_init(struct kvg_tree_options *options)
{
    *options = (struct kvg_tree_options){.struct_bytes = sizeof(*options),
        .page_size = 1,
        .components = KVG_COMPONENT_BIT(KVG_COMPONENT_FULL),
        .mamba_states_per_path_max = -1,
        .policy = KVG_POLICY_LRU,
        .slru_hits = 2};
}

static const struct kvi_component *const known_components[] = {
    &kvi_component_full, &kvi_component_swa, &kvi_component_mamba};

static kvg_err unknown_components(uint32_t components, struct kvg_error *error)
{
    char message[sizeof(error->message)];
    struct kvi_text text;
    bool any = false;

    kvi_text_init(&text, message, sizeof(message));
    kvi_text_str(
        &text, "a component of this version is FULL, SWA or MAMBA; unsupported:");
    for (uint32_t type = 0; type < KVG_COMPONENT_COUNT; type++) {
        if ((components & KVG_COMPONENT_BIT(type)) == 0)
            continue;
        kvi_text_str(&text, any ? ", " : " ");
        kvi_text_str(&text, kvg_component_name(type));
        any = true;
    }
    return kvi_fail(error, KVG_EUNSUPPORTED, "tree.components", message);
}

static kvg_err check_options(
    const struct kvg_tree_options *options, struct kvg_error *error)
{
    uint32_t known = 0;

    if (options->struct_bytes != sizeof(*options))
        return kvi_fail_range(error, "tree.struct_bytes", options->struct_bytes,
            sizeof(*options), sizeof(*options));
    if (options->page_size == 0 || options->page_size > KVG_PAGE_SIZE_MAX)
        return kvi_fail_range(
            error, "tree.page_size", options->page_size, 1, KVG_PAGE_SIZE_MAX);
    for (size_t i = 0; i < sizeof(known_components) / sizeof(known_components[0]); i++)
        known |= KVG_COMPONENT_BIT(known_components[i]->type);
    if ((options->components & ~known) != 0)
        return unknown_components(options->components & ~known, error);
    if ((options->components & KVG_COMPONENT_BIT(KVG_COMPONENT_FULL)) == 0)
        return kvi_fail(
            error, KVG_EINVAL, "tree.components", "every tree has the component FULL");
    if ((options->components & KVG_COMPONENT_BIT(KVG_COMPONENT_SWA)) != 0 &&
        options->window == 0)
        return kvi_fail(error, KVG_EINVAL, "tree.window",
            "SWAComponent requires a positive sliding_window_size");
    if (options->window > KVG_TREE_WINDOW_MAX)
        return kvi_fail_range(
            error, "tree.window", options->window, 0, KVG_TREE_WINDOW_MAX);
    if ((uint32_t)options->policy >= KVG_POLICY_COUNT)
        return kvi_fail_range(
            error, "tree.policy", (uint64_t)options->policy, 0, KVG_POLICY_COUNT - 1);
    if (options->node_max > KVG_TREE_NODES_MAX)
        return kvi_fail_range(
            error, "tree.node_max", options->node_max, 0, KVG_TREE_NODES_MAX);
    if (options->session_max > KVG_TREE_SESSIONS_MAX)
        return kvi_fail_range(
            error, "tree.session_max", options->session_max, 0, KVG_TREE_SESSIONS_MAX);
    return KVG_OK;
}

static void set_up(struct kvg_tree *tree)
{
    static const uint64_t first_uuid[KVG_COMPONENT_COUNT] = {UINT64_C(200000000000001),
        UINT64_C(100000000000001), UINT64_C(300000000000001), UINT64_C(400000000000001),
        UINT64_C(500000000000001)};
    struct kvg_tree_options *options = &tree->options;
    uint32_t bytes;

    for (uint32_t i = 0; i < KVG_COMPONENT_MAX; i++)
        tree->slot_of[i] = -1;
    memcpy(tree->next_uuid, first_uuid, sizeof(first_uuid));
    for (size_t i = 0; i < sizeof(known_components) / sizeof(known_components[0]); i++) {
        if ((options->components & KVG_COMPONENT_BIT(known_components[i]->type)) == 0)
            continue;
        tree->slot_of[known_components[i]->type] = (int8_t)tree->part_count;
        tree->components[tree->part_count++] = known_components[i];
    }
    if (options->node_max == 0)
        options->node_max = KVG_TREE_NODES_MAX - 1;
    if (options->session_max == 0)
        options->session_max = KVG_TREE_SESSIONS_DEFAULT;
    if (options->mamba_grid == 0)
        options->mamba_grid = options->page_size;
    tree->eagle = options->eagle && tree->slot_of[KVG_COMPONENT_MAMBA] < 0;
    tree->page_rule = (struct kvg_page_rule){options->page_size, tree->eagle};
    tree->page_tokens = options->page_size + (tree->eagle ? 1u : 0u);
    tree->rank_can_fall =
        options->policy == KVG_POLICY_MRU || options->policy == KVG_POLICY_TLRU;
    tree->ranks_differ = !options->sessions && (options->policy == KVG_POLICY_LRU ||
                                                   options->policy == KVG_POLICY_MRU);
    bytes = (uint32_t)(sizeof(struct kvi_node) +
                       (tree->part_count - 1) * sizeof(struct kvi_aux));
    tree->node_bytes = (bytes + 63) & ~63u;
    tree->next_number = 1;
    tree->settings.write_through_hits = 256;
}

/* A root, alone.  Room was reserved. */
static void plant_root(struct kvg_tree *tree)
{
    struct kvi_node *root = kvi_node_new(tree);

    root->flags = KVI_NODE_ROOT;
    root->priority = -INT64_MAX;
    for (uint32_t slot = 0; slot < tree->part_count; slot++)
        kvi_part(root, slot)->lock[KVG_TIER_DEVICE] = 1;
    root->locked_parts[KVG_TIER_DEVICE] = (uint8_t)tree->part_count;
    tree->root = kvi_ref_of(root);
}

kvg_err kvg_tree_new(const struct kvg_alloc *alloc,
    const struct kvg_tree_options *options, struct kvg_tree **out,
    struct kvg_error *error)
{
    *out = NULL;
    kvg_err err = check_options(options, error);
    if (err != KVG_OK)
        return err;
    struct kvg_tree *tree = KVI_NEW(alloc, struct kvg_tree);
    if (tree == NULL)
        return kvi_fail(error, KVG_ENOMEM, "tree", "no memory for a tree");
    tree->parent_alloc = alloc;
    tree->alloc = (struct kvg_alloc){counted_allocate, counted_release, tree};
    tree->options = *options;
    set_up(tree);
    /* The caller's allocator, so that the list can change places with the caller's. */
    kvg_actions_init(&tree->insert.pending, alloc);
    kvg_actions_init(&tree->transfer_scratch, &tree->alloc);
    err = kvi_tree_reserve_nodes(tree, 1, error);
    if (err == KVG_OK && options->events)
        err = kvi_recorder_new(tree);
    if (err != KVG_OK) {
        kvg_tree_free(tree);
        return err;
    }
    plant_root(tree);
    *out = tree;
    return KVG_OK;
}

/* Frees every node by links alone, deepest first. */
static void free_nodes(struct kvg_tree *tree)
{
    struct kvi_node *node = kvi_node_or_null(tree, tree->root);

    while (node != NULL) {
        if (node->first_child != 0) {
            node = kvi_node_at(tree, node->first_child);
            continue;
        }
        struct kvi_node *parent = kvi_parent(tree, node);
        for (uint32_t slot = 0; slot < tree->part_count; slot++) {
            kvi_list_drop(tree, slot, KVG_TIER_DEVICE, node);
            kvi_list_drop(tree, slot, KVG_TIER_HOST, node);
        }
        if (parent != NULL)
            kvi_child_unlink(tree, node);
        kvi_node_free(tree, node);
        node = parent;
    }
    tree->root = 0;
}

void kvg_tree_free(struct kvg_tree *tree)
{
    if (tree == NULL)
        return;
    struct kvi_insert *insert = &tree->insert;
    free_nodes(tree);
    for (uint32_t i = 0; i < tree->slab_count; i++)
        kvi_release_array(&tree->alloc, tree->slabs[i].memory, tree->slabs[i].bytes, 1);
    kvi_release_array(
        &tree->alloc, tree->slabs, tree->slab_capacity, sizeof(*tree->slabs));
    kvi_release_array(
        &tree->alloc, tree->chunks, tree->chunk_capacity, sizeof(*tree->chunks));
    if (tree->children != NULL)
        kvi_release_array(&tree->alloc, tree->children, (size_t)tree->child_mask + 1,
            sizeof(*tree->children));
    for (int tier = 0; tier < KVG_TIER_COUNT; tier++)
        kvi_shelves_fini(tree, &tree->shelves[tier]);
    kvi_spaces_fini(tree);
    kvi_sessions_fini(tree);
    kvi_release_array(
        &tree->alloc, tree->buffers, tree->buffer_capacity, sizeof(*tree->buffers));
    for (uint32_t slot = 0; slot < KVI_PARTS_MAX; slot++)
        kvi_release_array(&tree->alloc, insert->ranges[slot],
            insert->range_capacity[slot], sizeof(struct kvg_tree_range));
    kvi_release_array(&tree->alloc, insert->adopted, insert->adopted_capacity,
        sizeof(*insert->adopted));
    kvg_actions_fini(&insert->pending);
    kvg_actions_fini(&tree->transfer_scratch);
    kvi_release_array(&tree->alloc, tree->match_spans, tree->match_span_capacity,
        sizeof(*tree->match_spans));
    kvi_recorder_free(tree);
    KVI_ASSERT(tree->memory_bytes == 0);
    KVI_FREE(tree->parent_alloc, tree);
}

kvg_err kvg_tree_reset(struct kvg_tree *tree)
{
    struct kvi_insert *insert = &tree->insert;

    kvg_actions_clear(&insert->pending);
    insert->phase = KVI_INSERT_IDLE;
    memset(insert->range_count, 0, sizeof(insert->range_count));
    kvi_sessions_reset(tree);
    free_nodes(tree);
    memset(tree->walks, 0, sizeof(tree->walks));
    memset(tree->evictable, 0, sizeof(tree->evictable));
    memset(tree->protect, 0, sizeof(tree->protect));
    /* The old root's place is free again, so this needs no memory. */
    plant_root(tree);
    return KVG_OK;
}

struct kvg_tree_settings *kvg_tree_settings(struct kvg_tree *tree)
{
    return &tree->settings;
}

kvg_node_id kvg_tree_root(const struct kvg_tree *tree)
{
    return kvi_node_at(tree, tree->root)->id;
}

uint64_t kvg_tree_reprefill_tail(const struct kvg_tree *tree)
{
    bool in_request = tree->slot_of[KVG_COMPONENT_SWA] >= 0 &&
                      tree->options.swa_request_ring && !tree->settings.swa_host_pool;

    return in_request ? tree->options.window : 0;
}

uint32_t kvg_tree_page_size(const struct kvg_tree *tree)
{
    return tree->options.page_size;
}

bool kvg_tree_is_eagle(const struct kvg_tree *tree)
{
    return tree->eagle;
}

/* ---- Values from outside ------------------------------------------------------------------- */

kvg_err kvg_tree_set_device_value(struct kvg_tree *tree, kvg_node_id id,
    uint32_t component, const struct kvg_span *spans, size_t span_count,
    struct kvg_error *error)
{
    struct kvi_node *node = kvi_node_find(tree, id);
    struct kvi_value value;
    uint64_t length = 0;

    if (node == NULL)
        return kvi_no_node(error, id);
    if (component == KVG_COMPONENT_FULL || component >= KVG_COMPONENT_MAX ||
        tree->slot_of[component] < 0 || kvi_is_root(node))
        return kvi_fail(error, KVG_EINVAL, "component", "no such component to set");
    uint32_t slot = (uint32_t)tree->slot_of[component];
    if (kvi_has(node, slot, KVG_TIER_DEVICE))
        return kvi_fail_node(
            error, KVG_ESTATE, "node", "node ", id, " has a device value already");
    for (size_t i = 0; i < span_count; i++)
        length += spans[i].length;
    uint64_t wanted = component == KVG_COMPONENT_MAMBA ? 1 : node->length;
    if (length != wanted)
        return kvi_fail_range(error, "spans", length, wanted, wanted);
    if (kvi_value_make(tree, spans, span_count, 0, (uint32_t)length, &value) != KVG_OK)
        return kvi_fail(error, KVG_ENOMEM, "tree", "no memory for a value");
    kvi_aux_value_put(tree, node, slot, &value);
    return KVG_OK;
}

/* ---- Looking at it ------------------------------------------------------------------------- */

kvg_err kvg_tree_node_get(
    const struct kvg_tree *tree, kvg_node_id id, struct kvg_tree_node *out)
{
    const struct kvi_node *node = kvi_node_find(tree, id);

    *out = (struct kvg_tree_node){.struct_bytes = sizeof(*out), .rotation_base = -1};
    if (node == NULL)
        return KVG_ENOENT;
    const struct kvi_node *parent = kvi_parent(tree, node);
    out->id = id;
    out->parent = parent == NULL ? KVG_NODE_NONE : parent->id;
    out->length = node->length;
    out->hits = node->hits;
    out->priority = node->priority;
    out->last_access = node->last_access;
    out->creation = node->creation;
    out->pending_write = node->pending_write;
    out->pending_load = node->pending_load;
    out->child_count = node->child_count;
    out->stored = (node->flags & KVI_NODE_STORED) != 0;
    out->rotation_base = (int64_t)node->rotation - 1;
    out->device_leaf = (node->flags & KVI_NODE_DEVICE_LEAF) != 0;
    out->host_leaf = (node->flags & KVI_NODE_HOST_LEAF) != 0;
    out->frontier = node->first_frontier != 0;
    for (uint32_t slot = 0; slot < tree->part_count; slot++) {
        uint32_t component = tree->components[slot]->type;
        out->session_count[component] =
            slot == 0 ? node->sessions : kvi_aux(node, slot)->sessions;
        for (int tier = 0; tier < KVG_TIER_COUNT; tier++) {
            out->value_length[component][tier] = kvi_part(node, slot)->value[tier].length;
            out->lock_count[component][tier] = kvi_part(node, slot)->lock[tier];
            out->listed[component][tier] = kvi_listed(node, slot, (enum kvg_tier)tier);
        }
    }
    return KVG_OK;
}

bool kvg_tree_contains(const struct kvg_tree *tree, kvg_node_id id)
{
    return kvi_node_find(tree, id) != NULL;
}

kvg_err kvg_tree_node_key(
    const struct kvg_tree *tree, kvg_node_id id, struct kvg_tree_key *out)
{
    const struct kvi_node *node = kvi_node_find(tree, id);

    *out = (struct kvg_tree_key){.bigram = tree->eagle};
    if (node == NULL)
        return KVG_ENOENT;
    if (kvi_is_root(node))
        return KVG_OK;
    out->tokens = kvi_node_tokens(node);
    out->token_count = kvi_tokens_for(tree, node->length);
    if (node->space != 0)
        out->space = tree->spaces.items[node->space].name;
    return KVG_OK;
}

size_t kvg_tree_node_value(const struct kvg_tree *tree, kvg_node_id id,
    uint32_t component, enum kvg_tier tier, struct kvg_span *spans, size_t span_max)
{
    const struct kvi_node *node = kvi_node_find(tree, id);

    if (node == NULL || component >= KVG_COMPONENT_MAX || tree->slot_of[component] < 0)
        return 0;
    const struct kvi_value *value =
        &kvi_part(node, (uint32_t)tree->slot_of[component])->value[tier];
    uint32_t count = kvi_value_span_count(value, 0, value->length);
    uint32_t position = 0;
    for (size_t i = 0; i < span_max && position < value->length; i++) {
        spans[i] = kvi_value_span_at(value, position);
        position += spans[i].length;
    }
    return count;
}

static kvg_node_id id_of(const struct kvg_tree *tree, kvi_ref ref)
{
    return ref == 0 ? KVG_NODE_NONE : kvi_node_at(tree, ref)->id;
}

kvg_node_id kvg_tree_first_child(const struct kvg_tree *tree, kvg_node_id id)
{
    const struct kvi_node *node = kvi_node_find(tree, id);

    return node == NULL ? KVG_NODE_NONE : id_of(tree, node->first_child);
}

kvg_node_id kvg_tree_next_sibling(const struct kvg_tree *tree, kvg_node_id id)
{
    const struct kvi_node *node = kvi_node_find(tree, id);

    return node == NULL ? KVG_NODE_NONE : id_of(tree, node->next_sibling);
}

kvg_node_id kvg_tree_list_first(
    const struct kvg_tree *tree, uint32_t component, enum kvg_tier tier)
{
    if (component >= KVG_COMPONENT_MAX || tree->slot_of[component] < 0)
        return KVG_NODE_NONE;
    return id_of(tree, tree->lists[(uint32_t)tree->slot_of[component]][tier].newest);
}

kvg_node_id kvg_tree_list_next(
    const struct kvg_tree *tree, uint32_t component, enum kvg_tier tier, kvg_node_id id)
{
    const struct kvi_node *node = kvi_node_find(tree, id);

    if (node == NULL || component >= KVG_COMPONENT_MAX || tree->slot_of[component] <= 0)
        return KVG_NODE_NONE;
    return id_of(
        tree, kvi_aux(node, (uint32_t)tree->slot_of[component])->link[tier].older);
}

uint64_t kvg_tree_evictable(const struct kvg_tree *tree, uint32_t component)
{
    if (component >= KVG_COMPONENT_MAX || tree->slot_of[component] < 0)
        return 0;
    return tree->evictable[(uint32_t)tree->slot_of[component]];
}

uint64_t kvg_tree_protected(const struct kvg_tree *tree, uint32_t component)
{
    if (component >= KVG_COMPONENT_MAX || tree->slot_of[component] < 0)
        return 0;
    return tree->protect[(uint32_t)tree->slot_of[component]];
}

void kvg_tree_stats(const struct kvg_tree *tree, struct kvg_tree_stats *out)
{
    *out = tree->stats;
    out->struct_bytes = sizeof(*out);
    out->nodes = tree->node_count;
    out->device_leaves = tree->shelves[KVG_TIER_DEVICE].leaf_count;
    out->host_leaves = tree->shelves[KVG_TIER_HOST].leaf_count;
    out->memory_bytes = tree->memory_bytes + sizeof(*tree);
    out->sessions = tree->sessions.open_count;
    out->closed_sessions = tree->sessions.closed_count;
    out->frontiers = tree->sessions.frontier_used;
    out->refused_sessions = tree->sessions.refused;
    out->stale_touches = tree->sessions.stale;
}
