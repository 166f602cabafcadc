/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* tree_kit.c -- see tree_kit.h. */
#include "tree_kit.h"

#include "test.h"

#define REF_BITS 26

struct kit *kit_new(struct kit_setup setup)
{
    struct kit *kit = calloc(1, sizeof(*kit));
    struct kvg_tree_options options;

    assert_non_null(kit);
    fault_alloc_init(&kit->fault);
    kvg_tree_options_init(&options);
    if (setup.page_size != 0)
        options.page_size = setup.page_size;
    if (setup.components != 0)
        options.components = setup.components;
    options.window = setup.window;
    options.eagle = setup.eagle;
    options.events = setup.events;
    options.policy = setup.policy;
    if (setup.states_per_path_max != 0)
        options.mamba_states_per_path_max = setup.states_per_path_max;
    options.mamba_grid = setup.mamba_grid;
    options.sessions = setup.sessions;
    options.seed = 7;
    const struct kvg_alloc *alloc = setup.alloc != NULL ? setup.alloc : &kit->fault.alloc;
    CHECK_EQ(kvg_tree_new(alloc, &options, &kit->tree, &kit->error), KVG_OK);
    kvg_actions_init(&kit->actions, alloc);
    return kit;
}

void kit_check(struct kit *kit)
{
    struct kvg_error error;
    if (kvg_tree_check(kit->tree, &error) != KVG_OK)
        fail_msg("%s: %s\n%s", error.field, error.message, kit_dump(kit));
}

void kit_free(struct kit *kit)
{
    kit_check(kit);
    kvg_actions_fini(&kit->actions);
    kvg_tree_free(kit->tree);
    CHECK_EQ(kit->fault.live_bytes, 0);
    free(kit);
}

/* ---- Text ---------------------------------------------------------------------------------- */

__attribute__((format(printf, 2, 3))) static void say(
    struct kit *kit, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int bytes = vsnprintf(
        kit->text + kit->text_bytes, sizeof(kit->text) - kit->text_bytes, format, args);
    va_end(args);
    assert_true(bytes >= 0);
    kit->text_bytes += (size_t)bytes;
    assert_true(kit->text_bytes < sizeof(kit->text));
}

void kit_clear(struct kit *kit)
{
    kit->text_bytes = 0;
    kit->text[0] = '\0';
}

uint64_t kit_number(kvg_node_id node)
{
    return node >> REF_BITS;
}

static void say_spans(struct kit *kit, uint32_t first, uint32_t count)
{
    bool space = false;
    for (uint32_t i = first; i < first + count; i++) {
        const struct kvg_span *span = &kit->actions.spans[i];
        for (uint32_t j = 0; j < span->length; j++) {
            say(kit, space ? " %llu" : "%llu", (unsigned long long)(span->offset + j));
            space = true;
        }
    }
}

static void say_action(struct kit *kit, const struct kvg_action *a)
{
    static const char *const names[KVG_ACTION_COUNT] = {"replace", "free", "free_full",
        "backup", "free_", "free_host_", "evict_path", "map", "recover_swa",
        "rebuild_swa"};
    say(kit, "%s", names[a->kind]);
    if (a->kind == KVG_ACTION_FREE_COMPONENT_DEVICE ||
        a->kind == KVG_ACTION_FREE_COMPONENT_HOST)
        say(kit, "%s", kvg_component_name(a->component));
    say(kit, "(");
    if (a->kind == KVG_ACTION_REPLACE_ON_SPLIT)
        say(kit, "ack #%llu: #%llu -> #%llu #%llu",
            (unsigned long long)kit_number(a->ack),
            (unsigned long long)kit_number(a->node),
            (unsigned long long)kit_number(a->new_node),
            (unsigned long long)kit_number(a->node));
    for (uint32_t i = 0; i < a->node_count; i++)
        say(kit, i == 0 ? "#%llu" : " #%llu",
            (unsigned long long)kit_number(kit->actions.nodes[a->node_first + i]));
    if (a->kind == KVG_ACTION_RECOVER_SWA_WITH_LOCKED_FULL ||
        a->kind == KVG_ACTION_SWA_REBUILD)
        say(kit, "#%llu: ", (unsigned long long)kit_number(a->node));
    if (a->kind == KVG_ACTION_EVICT_EXCESS_PATH_STATES)
        say(kit, "#%llu", (unsigned long long)kit_number(a->node));
    say_spans(kit, a->span_first, a->span_count);
    if (a->span2_count != 0) {
        say(kit, " / ");
        say_spans(kit, a->span2_first, a->span2_count);
    }
    say(kit, ")");
}

/* ---- Doing actions ------------------------------------------------------------------------- */

static uint32_t slot_at(
    const struct kit *kit, uint32_t first, uint32_t count, uint32_t position)
{
    for (uint32_t i = first; i < first + count; i++) {
        const struct kvg_span *span = &kit->actions.spans[i];
        if (position < span->length)
            return (uint32_t)span->offset + position;
        position -= span->length;
    }
    return UINT32_MAX;
}

static uint32_t slots_in(const struct kit *kit, uint32_t first, uint32_t count)
{
    uint32_t slots = 0;
    for (uint32_t i = first; i < first + count; i++)
        slots += kit->actions.spans[i].length;
    return slots;
}

static void give_swa(struct kit *kit, const struct kvg_action *a)
{
    uint32_t count = slots_in(kit, a->span_first, a->span_count);
    struct kvg_span *spans = calloc(count, sizeof(*spans));
    for (uint32_t i = 0; i < count; i++) {
        uint32_t full = slot_at(kit, a->span_first, a->span_count, i);
        if (a->kind == KVG_ACTION_RECOVER_SWA_WITH_LOCKED_FULL) {
            uint32_t incoming = slot_at(kit, a->span2_first, a->span2_count, i);
            kit->map[full] = kit->map[incoming];
            kit->map[incoming] = 0;
        }
        assert_int_not_equal(kit->map[full], 0);
        spans[i] = (struct kvg_span){kit->map[full], KVG_BUFFER_POOL, 1};
    }
    CHECK_EQ(kvg_tree_set_device_value(
                 kit->tree, a->node, KVG_COMPONENT_SWA, spans, count, &kit->error),
        KVG_OK);
    free(spans);
}

static void unmap(struct kit *kit, const struct kvg_action *a)
{
    uint32_t count = slots_in(kit, a->span_first, a->span_count);
    for (uint32_t i = 0; i < count; i++)
        kit->map[slot_at(kit, a->span_first, a->span_count, i)] = 0;
}

const char *kit_do_actions(struct kit *kit)
{
    for (uint32_t i = 0; i < kit->actions.count; i++) {
        const struct kvg_action *a = &kit->actions.items[i];
        if (i != 0)
            say(kit, "; ");
        say_action(kit, a);
        if (a->kind == KVG_ACTION_SWA_REBUILD ||
            a->kind == KVG_ACTION_RECOVER_SWA_WITH_LOCKED_FULL)
            give_swa(kit, a);
        else if (a->kind == KVG_ACTION_FREE_DEVICE ||
                 (a->kind == KVG_ACTION_FREE_COMPONENT_DEVICE &&
                     a->component != KVG_COMPONENT_MAMBA))
            unmap(kit, a);
    }
    if (kit->actions.count == 0)
        say(kit, "-");
    kvg_actions_clear(&kit->actions);
    return kit->text;
}

/* ---- Insert, match ------------------------------------------------------------------------- */

static struct kvg_str str(const char *text)
{
    return (struct kvg_str){text, text == NULL ? 0 : strlen(text)};
}

static void say_result(struct kit *kit)
{
    const struct kvg_tree_inserted *r = &kit->inserted;
    say(kit, " => prefix %llu last #%llu", (unsigned long long)r->prefix_length,
        (unsigned long long)kit_number(r->last_node));
    if (r->mamba_exists)
        say(kit, " mamba_exists");
    if (r->rotation_declined)
        say(kit, " declined");
    for (size_t i = 0; i < r->adopted_count; i++)
        say(kit, " %s[%llu,%llu)", kvg_component_name(r->adopted[i].component),
            (unsigned long long)r->adopted[i].start,
            (unsigned long long)r->adopted[i].end);
}

const char *kit_insert(struct kit *kit, struct kit_insert what)
{
    struct kvg_tree_insert insert;
    struct kvg_span *spans = calloc(what.slots.count + 1, sizeof(*spans));

    for (size_t i = 0; i < what.slots.count; i++) {
        uint32_t slot = what.slots.items[i];
        spans[i] = (struct kvg_span){slot, KVG_BUFFER_POOL, 1};
        if (!what.unmapped && i >= what.prev && i >= what.cursor)
            kit->map[slot] = slot + 100;
    }
    kvg_tree_insert_init(&insert);
    insert.key = (struct kvg_tree_key){.tokens = what.tokens.items,
        .token_count = what.tokens.count,
        .space = {str(what.extra_key), str(what.cache_salt)}};
    insert.value = spans;
    insert.value_count = what.slots.count;
    if (what.mamba != 0)
        insert.mamba = (struct kvg_span){what.mamba, KVG_BUFFER_POOL, 1};
    insert.prev_prefix_length = what.prev;
    insert.evicted_length[KVG_COMPONENT_SWA] = what.cursor;
    insert.priority = what.priority;
    insert.track_adopted = what.tracked;
    insert.inserted_length = what.inserted;
    insert.rotation_base = (int64_t)what.rotation - 1;
    insert.chunked = what.chunked;
    insert.session_id = str(what.session);

    kit_clear(kit);
    kvg_err err = kvg_tree_insert_begin(
        kit->tree, &insert, &kit->actions, &kit->inserted, &kit->error);
    for (;;) {
        if (err != KVG_OK)
            fail_msg("insert: %s", kit->error.message);
        kit_do_actions(kit);
        kit_check(kit);
        if (kit->inserted.done)
            break;
        say(kit, " | ");
        err =
            kvg_tree_insert_resume(kit->tree, &kit->actions, &kit->inserted, &kit->error);
    }
    say_result(kit);
    free(spans);
    return kit->text;
}

const char *kit_insert_run(struct kit *kit, struct kit_list tokens, uint32_t base)
{
    uint32_t *slots = calloc(tokens.count + 1, sizeof(*slots));
    for (size_t i = 0; i < tokens.count; i++)
        slots[i] = base + (uint32_t)i;
    const char *text = kit_insert(
        kit, (struct kit_insert){.tokens = tokens, .slots = {slots, tokens.count}});
    free(slots);
    return text;
}

const char *kit_match(struct kit *kit, struct kit_list tokens)
{
    struct kvg_tree_key key = {.tokens = tokens.items, .token_count = tokens.count};
    kit_clear(kit);
    if (kvg_tree_match_prefix(kit->tree, &key, &kit->actions, &kit->match, &kit->error) !=
        KVG_OK)
        fail_msg("match: %s", kit->error.message);
    if (kit->actions.count != 0) {
        kit_do_actions(kit);
        say(kit, " ");
    }
    kit_check(kit);
    const struct kvg_tree_match *m = &kit->match;
    say(kit, "%llu at #%llu best #%llu full %llu", (unsigned long long)m->device_length,
        (unsigned long long)kit_number(m->last_device_node),
        (unsigned long long)kit_number(m->best_match_node),
        (unsigned long long)m->full_length);
    if (m->swa_branching >= 0)
        say(kit, " swa_branching %lld", (long long)m->swa_branching);
    if (m->mamba_branching >= 0)
        say(kit, " mamba_branching %lld", (long long)m->mamba_branching);
    if (m->host_length != 0)
        say(kit, " host %llu", (unsigned long long)m->host_length);
    if (m->swa_host_length != 0)
        say(kit, " swa_host %llu", (unsigned long long)m->swa_host_length);
    if (m->mamba_host_length != 0)
        say(kit, " mamba_host %llu", (unsigned long long)m->mamba_host_length);
    if (m->device_span_count != 0)
        say(kit, ":");
    for (size_t i = 0; i < m->device_span_count; i++) {
        for (uint32_t j = 0; j < m->device_spans[i].length; j++)
            say(kit, " %llu", (unsigned long long)(m->device_spans[i].offset + j));
    }
    return kit->text;
}

static void add_evicted(struct kit *kit, const struct kvg_tree_evicted *step)
{
    for (int i = 0; i < KVG_COMPONENT_MAX; i++)
        kit->evicted[i] += step->evicted[i];
}

static void must_be_ok(struct kit *kit, kvg_err err, const char *what)
{
    if (err != KVG_OK)
        fail_msg("%s: %s", what, kit->error.message);
}

const char *kit_evict(struct kit *kit, uint64_t full, uint64_t swa, uint64_t mamba)
{
    uint64_t wanted[] = {full, swa, mamba};

    kit_clear(kit);
    memset(kit->evicted, 0, sizeof(kit->evicted));
    for (uint32_t component = 0; component < 3; component++) {
        struct kvg_tree_evicted step;
        if (kit->evicted[component] >= wanted[component])
            continue;
        must_be_ok(kit,
            kvg_tree_evict_start(kit->tree, component, wanted[component], &kit->error),
            "start");
        for (;;) {
            must_be_ok(kit,
                kvg_tree_evict_next(kit->tree, component, kit->evicted[component],
                    &kit->actions, &step, &kit->error),
                "next");
            if (step.node == KVG_NODE_NONE && !step.progress)
                break;
            if (kit->text_bytes != 0)
                say(kit, " | ");
            add_evicted(kit, &step);
            if (step.node != KVG_NODE_NONE) {
                say(kit, "leaf #%llu: ", (unsigned long long)kit_number(step.node));
                must_be_ok(kit,
                    kvg_tree_evict_leaf(
                        kit->tree, step.node, false, &kit->actions, &step, &kit->error),
                    "leaf");
                add_evicted(kit, &step);
            }
            kit_do_actions(kit);
            kit_check(kit);
        }
        must_be_ok(kit, kvg_tree_evict_end(kit->tree, component, &kit->error), "end");
        kit_check(kit);
    }
    return kit->text;
}

/* ---- Looking ------------------------------------------------------------------------------- */

const char *kit_dump(struct kit *kit)
{
    kvg_tree_dump(kit->tree, kit->text, sizeof(kit->text));
    return kit->text;
}

const char *kit_list_text(struct kit *kit, uint32_t component, enum kvg_tier tier)
{
    kit_clear(kit);
    for (kvg_node_id n = kvg_tree_list_first(kit->tree, component, tier);
         n != KVG_NODE_NONE; n = kvg_tree_list_next(kit->tree, component, tier, n))
        say(kit, kit->text_bytes == 0 ? "#%llu" : " #%llu",
            (unsigned long long)kit_number(n));
    return kit->text;
}

static kvg_node_id find(struct kit *kit, kvg_node_id node, uint64_t number)
{
    if (kit_number(node) == number)
        return node;
    for (kvg_node_id child = kvg_tree_first_child(kit->tree, node);
         child != KVG_NODE_NONE; child = kvg_tree_next_sibling(kit->tree, child)) {
        kvg_node_id found = find(kit, child, number);
        if (found != KVG_NODE_NONE)
            return found;
    }
    return KVG_NODE_NONE;
}

kvg_node_id kit_node(struct kit *kit, uint64_t number)
{
    kvg_node_id node = find(kit, kvg_tree_root(kit->tree), number);
    if (node == KVG_NODE_NONE)
        fail_msg("there is no node #%llu\n%s", (unsigned long long)number, kit_dump(kit));
    return node;
}

struct kvg_tree_node kit_get(struct kit *kit, uint64_t number)
{
    struct kvg_tree_node node;
    CHECK_EQ(kvg_tree_node_get(kit->tree, kit_node(kit, number), &node), KVG_OK);
    return node;
}

uint32_t kit_lock_count(struct kit *kit, uint64_t number, uint32_t component)
{
    return kit_get(kit, number).lock_count[component][KVG_TIER_DEVICE];
}

struct kvg_lock_receipt kit_lock(struct kit *kit, uint64_t number, uint32_t skip)
{
    struct kvg_lock_receipt receipt;
    CHECK_EQ(kvg_tree_lock(kit->tree, kit_node(kit, number), skip, &receipt, &kit->error),
        KVG_OK);
    kit_check(kit);
    return receipt;
}

void kit_unlock(struct kit *kit, uint64_t number, const struct kvg_lock_receipt *receipt)
{
    if (kvg_tree_unlock(kit->tree, kit_node(kit, number), receipt, false, &kit->error) !=
        KVG_OK)
        fail_msg("unlock: %s", kit->error.message);
    kit_check(kit);
}

const char *kit_unlock_fails(
    struct kit *kit, uint64_t number, const struct kvg_lock_receipt *receipt)
{
    static char before[KIT_TEXT];
    snprintf(before, sizeof(before), "%s", kit_dump(kit));
    CHECK_EQ(
        kvg_tree_unlock(kit->tree, kit_node(kit, number), receipt, false, &kit->error),
        KVG_ESTATE);
    assert_string_equal(before, kit_dump(kit));
    kit_check(kit);
    return kit->error.message;
}

void kit_must(struct kit *kit, kvg_err err)
{
    if (err != KVG_OK)
        fail_msg("%s: %s", kit->error.field, kit->error.message);
    kit_check(kit);
}

struct kit *kit_new_tiers(struct kit_setup setup)
{
    struct kit *kit = kit_new(setup);
    struct kvg_tree_settings *settings = kvg_tree_settings(kit->tree);

    settings->host_tier = true;
    settings->swa_host_pool = (setup.components & SWA) != 0;
    settings->write_through_hits = UINT64_MAX;
    kit->next_host = 100;
    return kit;
}

void kit_give_slots(struct kvg_tree_transfer *transfers, size_t count,
    struct kvg_span *spans, uint32_t *next)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t units = 0;
        for (size_t j = 0; j < transfers[i].span_count; j++)
            units += transfers[i].spans[j].length;
        spans[i] = (struct kvg_span){*next, KVG_BUFFER_POOL, units};
        *next += units;
        transfers[i].spans = &spans[i];
        transfers[i].span_count = 1;
    }
}

size_t kit_write(struct kit *kit, uint64_t number)
{
    struct kvg_tree_transfer transfers[KVG_COMPONENT_MAX];
    struct kvg_span spans[KVG_COMPONENT_MAX];
    kvg_node_id node = kit_node(kit, number);
    size_t count;

    kit_must(kit, kvg_tree_write_build(kit->tree, node, transfers, &count, &kit->error));
    kit_give_slots(transfers, count, spans, &kit->next_host);
    kit_must(kit, kvg_tree_write_commit(kit->tree, transfers, count, &kit->error));
    return count;
}

size_t kit_backup(struct kit *kit, uint64_t number)
{
    kvg_node_id node = kit_node(kit, number);
    size_t count = kit_write(kit, number);

    kit_must(kit, kvg_tree_write_mark(kit->tree, &node, 1, node, &kit->error));
    kit_must(kit, kvg_tree_write_finish(kit->tree, &node, 1, node, &kit->error));
    return count;
}
