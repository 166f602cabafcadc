/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* tree_world.c -- pages, slots and their owners, actions done, and the comparison. */
#include "tree_world.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct world world;

bool wrong(const char *format, ...)
{
    va_list args;
    if (world.why[0] == '\0') {
        va_start(args, format);
        vsnprintf(world.why, sizeof(world.why), format, args);
        va_end(args);
    }
    return false;
}

/* ---- Model: pages -------------------------------------------------------------------------- */

static uint32_t page_tokens(void)
{
    return world.setup->page_size + (world.eagle ? 1 : 0);
}

int find_page(int parent, int space, const uint32_t *tokens)
{
    for (int i = 0; i < PAGES; i++) {
        const struct page *p = &world.pages[i];
        if (p->alive && p->parent == parent && p->space == space &&
            memcmp(p->tokens, tokens, page_tokens() * sizeof(*tokens)) == 0)
            return i;
    }
    return -1;
}

int new_page(int parent, int space, const uint32_t *tokens)
{
    for (int i = 0; i < PAGES; i++) {
        if (world.pages[i].alive)
            continue;
        world.pages[i] = (struct page){.alive = true, .parent = parent, .space = space};
        memcpy(world.pages[i].tokens, tokens, page_tokens() * sizeof(*tokens));
        return i;
    }
    return -1;
}

int alive_pages(void)
{
    int count = 0;
    for (int i = 0; i < PAGES; i++)
        count += world.pages[i].alive;
    return count;
}

/* ---- Slots --------------------------------------------------------------------------------- */

uint32_t take_slot(uint8_t *owners)
{
    for (uint32_t i = 1; i < SLOTS; i++) {
        if (owners[i] == OWNER_NONE) {
            owners[i] = OWNER_CALLER;
            return i;
        }
    }
    return 0;
}

int free_slots(const uint8_t *owners)
{
    int count = 0;
    for (uint32_t i = 1; i < SLOTS; i++)
        count += owners[i] == OWNER_NONE;
    return count;
}

bool drop_slot(uint8_t *owners, uint64_t slot, const char *what)
{
    if (slot == 0 || slot >= SLOTS || owners[slot] == OWNER_NONE)
        return wrong("%s slot %llu freed twice", what, (unsigned long long)slot);
    owners[slot] = OWNER_NONE;
    return true;
}

/* A FULL slot without its window slot, or with it. */
bool drop_full(uint64_t slot, bool with_peer)
{
    if (!drop_slot(world.full_owner, slot, "full"))
        return false;
    world.freed[slot] = true;
    if (with_peer && world.map[slot] != 0) {
        if (!drop_slot(world.swa_owner, world.map[slot], "window"))
            return false;
        world.map[slot] = 0;
    }
    if (world.has_swa && world.map[slot] != 0)
        return wrong("full slot %llu was freed alone but has a window slot",
            (unsigned long long)slot);
    return true;
}

/* ---- Actions ------------------------------------------------------------------------------- */

static uint32_t slot_of(uint32_t first, uint32_t count, uint32_t position)
{
    for (uint32_t i = first; i < first + count; i++) {
        if (position < world.actions.spans[i].length)
            return (uint32_t)world.actions.spans[i].offset + position;
        position -= world.actions.spans[i].length;
    }
    return 0;
}

static uint32_t slots_in(uint32_t first, uint32_t count)
{
    uint32_t slots = 0;
    for (uint32_t i = first; i < first + count; i++)
        slots += world.actions.spans[i].length;
    return slots;
}

static struct page *page_with_full(uint32_t slot, int *unit)
{
    for (int i = 0; i < PAGES; i++) {
        for (uint32_t j = 0; world.pages[i].alive && j < world.setup->page_size; j++) {
            if (world.pages[i].full[j] == slot) {
                *unit = (int)j;
                return &world.pages[i];
            }
        }
    }
    return NULL;
}

static bool give_window(const struct kvg_action *a)
{
    static struct kvg_span spans[SLOTS];
    uint32_t count = slots_in(a->span_first, a->span_count);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t full = slot_of(a->span_first, a->span_count, i);
        if (a->kind == KVG_ACTION_RECOVER_SWA_WITH_LOCKED_FULL) {
            uint32_t incoming = slot_of(a->span2_first, a->span2_count, i);
            world.map[full] = world.map[incoming];
            world.map[incoming] = 0;
            if (!drop_full(incoming, false))
                return false;
        }
        if (world.map[full] == 0)
            return wrong("full slot %u has no window slot to publish", full);
        spans[i] = (struct kvg_span){world.map[full], KVG_BUFFER_POOL, 1};
    }
    if (kvg_tree_set_device_value(
            world.tree, a->node, KVG_COMPONENT_SWA, spans, count, &world.error) != KVG_OK)
        return wrong("set window: %s", world.error.message);
    return true;
}

/* A component's free, as the model sees it: by slot. */
static bool free_component(const struct kvg_action *a)
{
    uint32_t count = slots_in(a->span_first, a->span_count);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t slot = slot_of(a->span_first, a->span_count, i);
        int unit = 0;
        if (a->component == KVG_COMPONENT_MAMBA) {
            if (!drop_slot(world.state_owner, slot, "state"))
                return false;
            for (int j = 0; j < PAGES; j++) {
                if (!world.pages[j].alive || world.pages[j].state != slot)
                    continue;
                if (world.pages[j].state_locks != 0)
                    return wrong("a locked state was evicted");
                world.pages[j].state = 0;
            }
            continue;
        }
        struct page *page = page_with_full(slot, &unit);
        if (page == NULL)
            return wrong("slot %u is in no page", slot);
        if (a->component == KVG_COMPONENT_SWA) {
            if (page->swa_locks != 0)
                return wrong("a locked window was evicted");
            if (world.map[slot] != 0 &&
                !drop_slot(world.swa_owner, world.map[slot], "window"))
                return false;
            world.map[slot] = 0;
            page->swa[unit] = 0;
            continue;
        }
        if (page->full_locks != 0)
            return wrong("a locked page was evicted");
        page->full[unit] = 0;
        if (!drop_slot(world.full_owner, slot, "full"))
            return false;
        /* The window's free comes as an action of its own, named by the same slot. */
        page->full[unit] = slot;
    }
    return true;
}

static bool retarget(const struct kvg_action *a)
{
    for (int i = 0; i < OFFLOADS; i++) {
        struct offload *o = &world.offloads[i];
        if (!o->used || o->ack != a->ack)
            continue;
        for (int j = 0; j < o->publish_count; j++) {
            if (o->publish[j] != a->node)
                continue;
            memmove(&o->publish[j + 1], &o->publish[j],
                (size_t)(o->publish_count - j) * sizeof(o->publish[0]));
            o->publish[j] = a->new_node;
            o->publish_count++;
            return true;
        }
        return wrong("the node of a split is not in its publish list");
    }
    return wrong("a split names a write that nobody has");
}

bool do_actions(void)
{
    for (uint32_t i = 0; i < world.actions.count; i++) {
        const struct kvg_action *a = &world.actions.items[i];
        bool ok = true;
        uint32_t count = slots_in(a->span_first, a->span_count);
        switch (a->kind) {
        case KVG_ACTION_REPLACE_ON_SPLIT:
            ok = retarget(a);
            break;
        case KVG_ACTION_FREE_DEVICE:
        case KVG_ACTION_FREE_DEVICE_FULL_ONLY:
            for (uint32_t j = 0; ok && j < count; j++)
                ok = drop_full(slot_of(a->span_first, a->span_count, j),
                    a->kind == KVG_ACTION_FREE_DEVICE);
            break;
        case KVG_ACTION_FREE_COMPONENT_DEVICE:
            ok = free_component(a);
            break;
        case KVG_ACTION_SWA_REBUILD:
        case KVG_ACTION_RECOVER_SWA_WITH_LOCKED_FULL:
            ok = give_window(a);
            break;
        default:
            break;
        }
        if (!ok)
            return false;
    }
    kvg_actions_clear(&world.actions);
    return true;
}

/* ---- Comparison ---------------------------------------------------------------------------- */

static bool compare_page(const struct page *p, const struct kvg_tree_node *info,
    const struct kvg_span *full, size_t full_count, const struct kvg_span *swa,
    size_t swa_count, uint32_t first)
{
    for (uint32_t i = 0; i < world.setup->page_size; i++) {
        uint32_t position = first + i;
        uint64_t slot = 0;
        for (size_t s = 0, at = 0; s < full_count; at += full[s++].length) {
            if (position >= at && position < at + full[s].length)
                slot = full[s].offset + position - at;
        }
        if (slot != p->full[i])
            return wrong("slot %llu, the model %u", (unsigned long long)slot, p->full[i]);
        slot = 0;
        for (size_t s = 0, at = 0; s < swa_count; at += swa[s++].length) {
            if (position >= at && position < at + swa[s].length)
                slot = swa[s].offset + position - at;
        }
        if (slot != p->swa[i])
            return wrong(
                "window slot %llu, the model %u", (unsigned long long)slot, p->swa[i]);
        if (p->swa[i] != 0 && world.map[p->full[i]] != p->swa[i])
            return wrong("the mapping has another window slot");
    }
    if (info->lock_count[KVG_COMPONENT_FULL][KVG_TIER_DEVICE] != p->full_locks)
        return wrong("node %llu has %u FULL locks, the model %u",
            (unsigned long long)(info->id >> 26),
            info->lock_count[KVG_COMPONENT_FULL][KVG_TIER_DEVICE], p->full_locks);
    if (info->lock_count[KVG_COMPONENT_SWA][KVG_TIER_DEVICE] != p->swa_locks)
        return wrong("node %llu has %u SWA locks, the model %u",
            (unsigned long long)(info->id >> 26),
            info->lock_count[KVG_COMPONENT_SWA][KVG_TIER_DEVICE], p->swa_locks);
    if (info->stored != p->stored || info->pending_write != p->pending)
        return wrong("the store's state is wrong");
    return true;
}

static bool compare_node(kvg_node_id node, int parent, int *seen)
{
    static struct kvg_span full[UNITS_MAX], swa[UNITS_MAX];
    struct kvg_tree_node info;
    struct kvg_tree_key key;
    struct kvg_span state;
    if (kvg_tree_node_get(world.tree, node, &info) != KVG_OK ||
        kvg_tree_node_key(world.tree, node, &key) != KVG_OK)
        return wrong("a node vanished");
    int space = key.space.extra_key.data != NULL    ? 1
                : key.space.cache_salt.data != NULL ? 2
                                                    : 0;
    size_t full_count = kvg_tree_node_value(
        world.tree, node, KVG_COMPONENT_FULL, KVG_TIER_DEVICE, full, UNITS_MAX);
    size_t swa_count = kvg_tree_node_value(
        world.tree, node, KVG_COMPONENT_SWA, KVG_TIER_DEVICE, swa, UNITS_MAX);
    int at = parent;
    for (uint32_t i = 0; i < info.length; i += world.setup->page_size) {
        at = find_page(at, space, key.tokens + i);
        if (at < 0)
            return wrong("the tree has a page that the model lacks");
        (*seen)++;
        if (!compare_page(&world.pages[at], &info, full, full_count, swa, swa_count, i))
            return false;
        bool last = i + world.setup->page_size == info.length;
        size_t states = kvg_tree_node_value(
            world.tree, node, KVG_COMPONENT_MAMBA, KVG_TIER_DEVICE, &state, 1);
        uint64_t held = last && states != 0 ? state.offset : 0;
        if (held != world.pages[at].state)
            return wrong("state %llu, the model %u", (unsigned long long)held,
                world.pages[at].state);
        if (last && info.lock_count[KVG_COMPONENT_MAMBA][KVG_TIER_DEVICE] !=
                        world.pages[at].state_locks)
            return wrong("the state's locks are wrong");
    }
    for (kvg_node_id child = kvg_tree_first_child(world.tree, node);
         child != KVG_NODE_NONE; child = kvg_tree_next_sibling(world.tree, child)) {
        if (!compare_node(child, at, seen))
            return false;
    }
    return true;
}

/* Every slot has one owner. */
static bool account(void)
{
    static uint8_t full[SLOTS], swa[SLOTS], state[SLOTS];
    memset(full, 0, sizeof(full));
    memset(swa, 0, sizeof(swa));
    memset(state, 0, sizeof(state));
    for (int i = 0; i < PAGES; i++) {
        const struct page *p = &world.pages[i];
        for (uint32_t j = 0; p->alive && j < world.setup->page_size; j++) {
            if (full[p->full[j]]++ || (p->swa[j] != 0 && swa[p->swa[j]]++))
                return wrong("a slot is in two pages");
        }
        if (p->alive && p->state != 0 && state[p->state]++)
            return wrong("a state slot is in two pages");
    }
    for (uint32_t i = 1; i < SLOTS; i++) {
        if ((world.full_owner[i] != OWNER_NONE) != (full[i] != 0))
            return wrong("full slot %u has leaked", i);
        if ((world.swa_owner[i] != OWNER_NONE) != (swa[i] != 0))
            return wrong("window slot %u has leaked", i);
        if ((world.state_owner[i] != OWNER_NONE) != (state[i] != 0))
            return wrong("state slot %u has leaked", i);
    }
    return true;
}

/* One stored and one removed event a page. */
static bool follow_events(void)
{
    struct kvg_tree_event event;
    size_t count = kvg_tree_events_take(world.tree);
    for (size_t i = 0; i < count; i++) {
        if (!kvg_tree_event_get(world.tree, i, &event))
            return wrong("an event is missing");
        for (size_t j = 0; j < event.hash_count; j++) {
            int at = 0;
            while (at < world.hash_count && world.hashes[at] != event.hashes[j])
                at++;
            if (event.kind == KVG_TREE_STORED) {
                /* Namespaces with an extra key only share hashes with the plain one. */
                world.hashes[world.hash_count++] = event.hashes[j];
                if (world.hash_count == HASHES)
                    return wrong("too many pages are said to be stored");
            } else if (at == world.hash_count) {
                return wrong("a page was removed that was not stored");
            } else {
                world.hashes[at] = world.hashes[--world.hash_count];
            }
        }
    }
    if (world.hash_count != alive_pages())
        return wrong(
            "events tell of %d pages, there are %d", world.hash_count, alive_pages());
    return true;
}

bool compare(void)
{
    int seen = 0;
    if (kvg_tree_check(world.tree, &world.error) != KVG_OK)
        return wrong("%s: %s", world.error.field, world.error.message);
    if (!compare_node(kvg_tree_root(world.tree), -1, &seen))
        return false;
    if (seen != alive_pages())
        return wrong("the tree has %d pages, the model %d", seen, alive_pages());
    uint64_t evictable = 0;
    uint64_t protect = 0;
    for (int i = 0; i < PAGES; i++) {
        if (world.pages[i].alive && world.pages[i].full_locks == 0)
            evictable += world.setup->page_size;
        if (world.pages[i].alive && world.pages[i].full_locks != 0)
            protect += world.setup->page_size;
    }
    if (evictable != kvg_tree_evictable(world.tree, KVG_COMPONENT_FULL) ||
        protect != kvg_tree_protected(world.tree, KVG_COMPONENT_FULL))
        return wrong("sizes differ from the model's");
    return account() && follow_events();
}
