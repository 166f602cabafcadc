/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* tree_model.c -- see tree_model.h: the operations of a program, on the tree and on the model. */
#include "tree_model.h"

#include "tree_world.h"

#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static sigjmp_buf on_trap;

/* ---- Sequences ----------------------------------------------------------------------------- */

struct sequence {
    uint32_t tokens[UNITS_MAX];
    uint32_t token_count, units;
    int space;
};

static struct kvg_namespace space_name(int space)
{
    struct kvg_namespace name = {{NULL, 0}, {NULL, 0}};
    if (space == 1)
        name.extra_key = (struct kvg_str){"a", 1};
    if (space == 2)
        name.cache_salt = (struct kvg_str){"s", 1};
    return name;
}

static void make_sequence(const uint8_t *op, struct sequence *seq)
{
    uint32_t page = world.setup->page_size;
    uint32_t longest = 10 * page < UNITS_MAX ? 10 * page : UNITS_MAX;
    seq->token_count = 1 + (op[1] * 5u) % longest;
    uint32_t turn = (op[2] * 3u) % (longest + 1);
    for (uint32_t i = 0; i < seq->token_count; i++) {
        uint32_t branch = i < turn ? op[3] % 2u : 2 + op[4] % 4u;
        seq->tokens[i] = branch * 100 + i % 5;
    }
    seq->space = op[5] % 8 == 7 ? 1 : op[5] % 8 == 6 ? 2 : 0;
    seq->units = world.eagle ? seq->token_count - 1 : seq->token_count;
    seq->units -= seq->units % page;
}

static struct kvg_tree_key key_of(const struct sequence *seq)
{
    return (struct kvg_tree_key){.tokens = seq->tokens,
        .token_count = seq->token_count,
        .space = space_name(seq->space)};
}

/* The model's pages of a sequence that exist; returns how many. */
static uint32_t path_of(const struct sequence *seq, int *path)
{
    uint32_t page = world.setup->page_size;
    int parent = -1;
    uint32_t count = 0;
    for (; (count + 1) * page <= seq->units; count++) {
        parent = find_page(parent, seq->space, seq->tokens + count * page);
        if (parent < 0)
            break;
        path[count] = parent;
    }
    return count;
}

/* ---- Match --------------------------------------------------------------------------------- */

static bool do_match(const struct sequence *seq, struct kvg_tree_match *match)
{
    int path[UNITS_MAX];
    uint32_t page = world.setup->page_size;
    uint32_t count = path_of(seq, path);
    uint32_t best = 0;
    uint64_t run = UINT64_MAX;
    for (uint32_t i = 0; i < count; i++) {
        const struct page *p = &world.pages[path[i]];
        bool ok = !world.has_state || p->state != 0;
        if (world.has_swa) {
            if (p->swa[0] == 0)
                run = 0;
            else if (run != UINT64_MAX)
                run += page;
            ok = ok && p->swa[0] != 0 && run >= world.setup->window;
        }
        if (ok)
            best = i + 1;
    }
    struct kvg_tree_key key = key_of(seq);
    if (kvg_tree_match_prefix(world.tree, &key, &world.actions, match, &world.error) !=
        KVG_OK)
        return wrong("match: %s", world.error.message);
    if (match->device_length != (uint64_t)best * page)
        return wrong("match gives %llu units, the model %u",
            (unsigned long long)match->device_length, best * page);
    if (match->full_length != (uint64_t)count * page)
        return wrong("full length %llu, the model %u",
            (unsigned long long)match->full_length, count * page);
    int64_t branching = count > best ? (int64_t)count * page : -1;
    if (world.has_swa && match->swa_branching != branching)
        return wrong("swa branching %lld", (long long)match->swa_branching);
    if (world.has_state && match->mamba_branching != branching)
        return wrong("mamba branching %lld", (long long)match->mamba_branching);
    uint32_t at = 0;
    for (size_t i = 0; i < match->device_span_count; i++) {
        for (uint32_t j = 0; j < match->device_spans[i].length; j++, at++) {
            if (at >= best * page || world.pages[path[at / page]].full[at % page] !=
                                         match->device_spans[i].offset + j)
                return wrong("match gives a wrong slot at %u", at);
        }
    }
    if (at != best * page)
        return wrong("match gives %u slots", at);
    return do_actions();
}

/* ---- Locks --------------------------------------------------------------------------------- */

/* The model's page at the end of a node. */
static bool end_page(kvg_node_id node, int *out)
{
    struct kvg_tree_key key;
    kvg_node_id chain[UNITS_MAX];
    int count = 0;
    int at = -1;
    while (node != kvg_tree_root(world.tree)) {
        struct kvg_tree_node info;
        if (count == UNITS_MAX || kvg_tree_node_get(world.tree, node, &info) != KVG_OK)
            return wrong("a node's ancestors cannot be walked");
        chain[count++] = node;
        node = info.parent;
    }
    while (count-- != 0) {
        if (kvg_tree_node_key(world.tree, chain[count], &key) != KVG_OK)
            return wrong("a node has no key");
        int space = key.space.extra_key.data != NULL    ? 1
                    : key.space.cache_salt.data != NULL ? 2
                                                        : 0;
        uint32_t page = world.setup->page_size;
        for (uint32_t i = 0; i < kvg_tree_key_units(&key); i += page) {
            at = find_page(at, space, key.tokens + i);
            if (at < 0)
                return wrong("a node's page is not in the model");
        }
    }
    *out = at;
    return true;
}

static bool do_lock(kvg_node_id node, struct held_lock *lock)
{
    *lock = (struct held_lock){.used = true, .node = node};
    if (!end_page(node, &lock->last))
        return false;
    if (kvg_tree_lock(world.tree, node, 0, &lock->receipt, &world.error) != KVG_OK)
        return wrong("lock: %s", world.error.message);
    for (int p = lock->last; p >= 0; p = world.pages[p].parent)
        world.pages[p].full_locks++;
    if (lock->last >= 0 && world.has_state)
        world.pages[lock->last].state_locks++;
    /* Whole nodes upwards until a window is covered. */
    int p = lock->last;
    for (uint64_t covered = 0;
         world.has_swa && p >= 0 && covered < world.setup->window;) {
        struct kvg_tree_node info;
        if (kvg_tree_node_get(world.tree, node, &info) != KVG_OK)
            return wrong("a node vanished");
        for (uint64_t i = 0; i < info.length; i += world.setup->page_size) {
            lock->swa_pages[lock->swa_count++] = p;
            world.pages[p].swa_locks++;
            p = world.pages[p].parent;
        }
        covered += info.length;
        node = info.parent;
    }
    return true;
}

static void release_window(struct held_lock *lock)
{
    for (int i = 0; i < lock->swa_count; i++)
        world.pages[lock->swa_pages[i]].swa_locks--;
    if (lock->last >= 0 && world.has_state)
        world.pages[lock->last].state_locks--;
}

static bool do_unlock(struct held_lock *lock)
{
    if (kvg_tree_unlock(
            world.tree, lock->node, &lock->receipt, lock->early, &world.error) != KVG_OK)
        return wrong("unlock: %s", world.error.message);
    for (int p = lock->last; p >= 0; p = world.pages[p].parent)
        world.pages[p].full_locks--;
    if (!lock->early)
        release_window(lock);
    lock->used = false;
    return true;
}

static bool do_unlock_early(struct held_lock *lock)
{
    if (!world.has_swa || lock->early)
        return true;
    if (kvg_tree_unlock_swa(world.tree, lock->node, &lock->receipt, &world.actions,
            &world.error) != KVG_OK)
        return wrong("unlock window: %s", world.error.message);
    release_window(lock);
    lock->early = true;
    return do_actions();
}

/* A wrong release changes nothing. */
static bool do_wrong_unlock(struct held_lock *lock)
{
    struct kvg_lock_receipt receipt = lock->receipt;
    kvg_node_id root = kvg_tree_root(world.tree);
    if (lock->node == root)
        return true;
    if (kvg_tree_unlock(world.tree, root, &receipt, lock->early, NULL) != KVG_ESTATE)
        return wrong("a receipt was taken for another node");
    if (lock->early && world.has_swa && world.pages[lock->last].swa_locks == 0 &&
        kvg_tree_unlock(world.tree, lock->node, &receipt, false, NULL) == KVG_OK)
        return wrong("a window was released twice");
    return true;
}

/* ---- Insert -------------------------------------------------------------------------------- */

struct incoming {
    uint32_t full[UNITS_MAX], swa[UNITS_MAX];
    uint32_t count;
    uint32_t state;
    uint64_t prev, cursor;
    bool keep[UNITS_MAX]; /* Expected not to be freed. */
};

static bool take_slots(const struct sequence *seq, struct incoming *in)
{
    for (uint32_t i = (uint32_t)in->prev; i < seq->token_count; i++) {
        in->full[i] = take_slot(world.full_owner);
        in->swa[i] = 0;
        if (world.has_swa && i >= in->cursor) {
            in->swa[i] = take_slot(world.swa_owner);
            world.map[in->full[i]] = in->swa[i];
        }
    }
    in->count = seq->token_count;
    in->state = world.has_state ? take_slot(world.state_owner) : 0;
    return true;
}

/* What the insert does to the model, and which incoming slots stay. */
static bool apply_insert(
    const struct sequence *seq, struct incoming *in, bool *state_taken)
{
    uint32_t size = world.setup->page_size;
    int parent = -1;
    for (uint32_t start = 0; start + size <= seq->units; start += size) {
        int at = find_page(parent, seq->space, seq->tokens + start);
        bool is_new = at < 0;
        if (is_new)
            at = new_page(parent, seq->space, seq->tokens + start);
        if (at < 0)
            return wrong("the model is full");
        struct page *p = &world.pages[at];
        bool recover = world.has_swa && !is_new && p->swa[0] == 0 && start >= in->prev &&
                       start >= in->cursor;
        for (uint32_t i = 0; i < size; i++) {
            uint32_t unit = start + i;
            if (is_new || (recover && p->full_locks == 0)) {
                p->full[i] = in->full[unit];
                in->keep[unit] = true;
            }
            if ((is_new && start >= in->cursor && world.has_swa) || recover)
                p->swa[i] = in->swa[unit];
        }
        parent = at;
    }
    *state_taken = world.has_state && parent >= 0 && world.pages[parent].state == 0;
    if (*state_taken)
        world.pages[parent].state = in->state;
    return true;
}

static bool run_insert(
    const struct sequence *seq, struct incoming *in, struct kvg_tree_inserted *done)
{
    struct kvg_tree_insert insert;
    struct kvg_span spans[UNITS_MAX];
    kvg_tree_insert_init(&insert);
    for (uint32_t i = 0; i < in->count; i++)
        spans[i] = (struct kvg_span){in->full[i], KVG_BUFFER_POOL, 1};
    insert.key = key_of(seq);
    insert.value = spans;
    insert.value_count = in->count;
    insert.prev_prefix_length = in->prev;
    insert.evicted_length[KVG_COMPONENT_SWA] = in->cursor;
    insert.track_adopted = true;
    if (in->state != 0)
        insert.mamba = (struct kvg_span){in->state, KVG_BUFFER_POOL, 1};
    kvg_err err =
        kvg_tree_insert_begin(world.tree, &insert, &world.actions, done, &world.error);
    while (err == KVG_OK) {
        if (!do_actions())
            return false;
        if (done->done)
            return true;
        err = kvg_tree_insert_resume(world.tree, &world.actions, done, &world.error);
    }
    return wrong("insert: %s", world.error.message);
}

static bool do_insert(const uint8_t *op)
{
    struct sequence seq;
    struct incoming in = {0};
    struct kvg_tree_match match;
    struct held_lock lock = {0};
    struct kvg_tree_inserted done;
    int path[UNITS_MAX];
    bool state_taken = false;

    make_sequence(op, &seq);
    uint32_t size = world.setup->page_size;
    if (free_slots(world.full_owner) < UNITS_MAX ||
        free_slots(world.swa_owner) < UNITS_MAX || free_slots(world.state_owner) < 4 ||
        alive_pages() > PAGES - UNITS_MAX)
        return true;
    if (op[6] & 1) { /* As a request that matched and holds its prefix. */
        if (!do_match(&seq, &match) || !do_lock(match.last_device_node, &lock))
            return false;
        in.prev = match.device_length;
    }
    if (world.has_swa && (op[6] & 6) == 6)
        in.cursor = (op[7] % (seq.units + 1)) / size * size;
    uint32_t known = path_of(&seq, path);
    for (uint32_t i = 0; i < in.prev; i++)
        in.full[i] = world.pages[path[i / size]].full[i % size];
    take_slots(&seq, &in);
    memset(world.freed, 0, sizeof(world.freed));
    struct incoming before = in;
    bool ok = true;
    /* The model first: eviction cannot interfere, and the actions ask it nothing. */
    if (!apply_insert(&seq, &in, &state_taken) || !run_insert(&seq, &before, &done))
        return false;
    if (done.prefix_length != (uint64_t)known * size)
        return wrong("prefix length %llu, the model %u",
            (unsigned long long)done.prefix_length, known * size);
    for (uint32_t i = (uint32_t)in.prev; ok && i < in.count; i++) {
        bool inside = i < seq.units;
        if (world.freed[in.full[i]] != (inside && !in.keep[i]))
            ok = wrong("incoming slot %u at %u: freed %d, expected %d", in.full[i], i,
                world.freed[in.full[i]], inside && !in.keep[i]);
        else if (!inside)
            ok = drop_full(in.full[i], true); /* The caller's own tail. */
        else if (in.keep[i])
            world.full_owner[in.full[i]] = OWNER_TREE;
    }
    if (ok && world.has_state && seq.units != 0 && done.mamba_exists == state_taken)
        ok = wrong("the state's fate is wrong");
    if (ok && in.state != 0 && !state_taken)
        ok = drop_slot(world.state_owner, in.state, "state");
    ok = ok && (!lock.used || do_unlock(&lock));
    /* Some hold what they inserted, tombstones included. */
    struct held_lock *held = &world.locks[op[2] % LOCKS];
    return ok && ((op[6] & 24) != 24 || held->used || do_lock(done.last_node, held));
}

/* ---- Eviction ------------------------------------------------------------------------------ */

static uint64_t key_by_policy(const struct kvg_tree_node *n)
{
    switch (world.setup->policy) {
    case KVG_POLICY_LFU:
        return n->hits;
    case KVG_POLICY_FIFO:
        return n->creation;
    case KVG_POLICY_MRU:
        return ~n->last_access;
    case KVG_POLICY_FILO:
        return ~n->creation;
    case KVG_POLICY_SLRU:
        return n->hits >= 2;
    default:
        return 0;
    }
}

/* Is no other leaf due before `victim`?  By walking the whole tree. */
static bool nobody_before(kvg_node_id node, const struct kvg_tree_node *victim)
{
    struct kvg_tree_node n;
    for (; node != KVG_NODE_NONE; node = kvg_tree_next_sibling(world.tree, node)) {
        if (kvg_tree_node_get(world.tree, node, &n) != KVG_OK)
            return wrong("a node vanished");
        uint64_t a = key_by_policy(&n);
        uint64_t b = key_by_policy(victim);
        if (n.device_leaf && (a < b || (a == b && n.last_access < victim->last_access)))
            return wrong("node %llu was due before", (unsigned long long)(node >> 26));
        if (!nobody_before(kvg_tree_first_child(world.tree, node), victim))
            return false;
    }
    return true;
}

/* Pages whose FULL slots went are gone. */
static bool bury_pages(void)
{
    for (int i = 0; i < PAGES; i++) {
        struct page *p = &world.pages[i];
        if (!p->alive || world.full_owner[p->full[0]] != OWNER_NONE)
            continue;
        for (uint32_t j = 0; j < world.setup->page_size; j++) {
            if (world.full_owner[p->full[j]] != OWNER_NONE)
                return wrong("half a page was freed");
        }
        if (p->full_locks != 0 || p->swa_locks != 0 || p->state_locks != 0 ||
            p->state != 0)
            return wrong("a page went with its state or under a lock");
        p->alive = false;
    }
    for (int i = 0; i < PAGES; i++) {
        if (world.pages[i].alive && world.pages[i].parent >= 0 &&
            !world.pages[world.pages[i].parent].alive)
            return wrong("a page went before its child");
    }
    return true;
}

static bool do_evict(const uint8_t *op)
{
    uint32_t component = op[1] % 3;
    uint64_t wanted = 1 + op[2] % 24;
    uint64_t done = 0;
    struct kvg_tree_evicted step;
    if ((component == KVG_COMPONENT_SWA && !world.has_swa) ||
        (component == KVG_COMPONENT_MAMBA && !world.has_state))
        component = KVG_COMPONENT_FULL;
    if (kvg_tree_evict_start(world.tree, component, wanted, &world.error) != KVG_OK)
        return wrong("start: %s", world.error.message);
    for (int steps = 0; steps < 1000; steps++) {
        if (kvg_tree_evict_next(world.tree, component, done, &world.actions, &step,
                &world.error) != KVG_OK)
            return wrong("next: %s", world.error.message);
        if (step.node == KVG_NODE_NONE && !step.progress)
            break;
        done += step.evicted[component];
        if (step.node != KVG_NODE_NONE) {
            struct kvg_tree_node victim;
            if (kvg_tree_node_get(world.tree, step.node, &victim) != KVG_OK)
                return wrong("the victim is nobody");
            if (component == KVG_COMPONENT_FULL &&
                !nobody_before(kvg_tree_root(world.tree), &victim))
                return false;
            if (kvg_tree_evict_leaf(world.tree, step.node, false, &world.actions, &step,
                    &world.error) != KVG_OK)
                return wrong("leaf: %s", world.error.message);
            done += step.evicted[component];
        }
        if (!do_actions() || !bury_pages())
            return false;
    }
    if (kvg_tree_evict_end(world.tree, component, &world.error) != KVG_OK)
        return wrong("end: %s", world.error.message);
    if (done < wanted && kvg_tree_evictable(world.tree, component) != 0)
        return wrong("%llu of %llu evicted, but there is more", (unsigned long long)done,
            (unsigned long long)wanted);
    return true;
}

/* ---- External store ------------------------------------------------------------------------ */

static void mark_pages(kvg_node_id node, kvg_node_id pending, bool stored)
{
    struct kvg_tree_node info;
    int p;
    if (kvg_tree_node_get(world.tree, node, &info) != KVG_OK || !end_page(node, &p))
        return;
    for (uint64_t i = 0; i < info.length && p >= 0; i += world.setup->page_size) {
        world.pages[p].pending = pending;
        world.pages[p].stored = world.pages[p].stored || stored;
        p = world.pages[p].parent;
    }
}

static bool do_offload(const uint8_t *op)
{
    struct sequence seq;
    struct kvg_tree_match match;
    struct kvg_tree_transfer transfers[KVG_COMPONENT_MAX];
    size_t count;
    int at = op[7] % OFFLOADS;
    struct offload *o = &world.offloads[at];
    if (o->used)
        return true;
    make_sequence(op, &seq);
    if (!do_match(&seq, &match))
        return false;
    kvg_node_id node = match.last_device_node;
    if (kvg_tree_offload_build(world.tree, node, transfers, &count, &world.error) !=
        KVG_OK)
        return wrong("build: %s", world.error.message);
    struct kvg_tree_node info;
    if (kvg_tree_node_get(world.tree, node, &info) != KVG_OK)
        return wrong("a node vanished");
    bool can = node != kvg_tree_root(world.tree) && !info.stored &&
               info.pending_write == KVG_NODE_NONE;
    if (can != (count != 0))
        return wrong("an offload is built for a node that needs none, or the other way");
    if (!can) {
        if (node != kvg_tree_root(world.tree) &&
            kvg_tree_offload_mark(world.tree, node, NULL) != KVG_ESTATE)
            return wrong("a stored or pending node was marked");
        return true;
    }
    if (transfers[0].key_count * world.setup->page_size != info.length)
        return wrong("a transfer has the wrong number of keys");
    if (!do_lock(node, &o->lock))
        return false;
    if (kvg_tree_offload_mark(world.tree, node, &world.error) != KVG_OK)
        return wrong("mark: %s", world.error.message);
    o->used = true;
    o->ack = node;
    o->publish[0] = node;
    o->publish_count = 1;
    mark_pages(node, node, false);
    return true;
}

static bool do_complete(const uint8_t *op)
{
    struct offload *o = &world.offloads[op[1] % OFFLOADS];
    bool success = op[2] % 3 != 0;
    if (!o->used)
        return true;
    kvg_node_id foreign = kvg_tree_root(world.tree);
    kvg_node_id both[] = {o->publish[0], foreign};
    if (kvg_tree_offload_finish(world.tree, both, 2, o->ack, success, NULL) != KVG_ESTATE)
        return wrong("a foreign node was finished");
    if (kvg_tree_offload_finish(world.tree, o->publish, (size_t)o->publish_count, o->ack,
            success, &world.error) != KVG_OK)
        return wrong("finish: %s", world.error.message);
    for (int i = 0; i < o->publish_count; i++)
        mark_pages(o->publish[i], KVG_NODE_NONE, success);
    o->used = false;
    return do_unlock(&o->lock);
}

/* ---- Programs ------------------------------------------------------------------------------ */

static bool do_match_op(const uint8_t *op)
{
    struct sequence seq;
    struct kvg_tree_match match;
    make_sequence(op, &seq);
    if (!do_match(&seq, &match))
        return false;
    struct held_lock *lock = &world.locks[op[6] % LOCKS];
    if (!(op[7] & 1) || lock->used)
        return true;
    return do_lock(match.last_device_node, lock);
}

static bool do_reset(void)
{
    for (int i = 0; i < LOCKS; i++) {
        if (world.locks[i].used && !do_unlock(&world.locks[i]))
            return false;
    }
    for (int i = 0; i < OFFLOADS; i++) {
        uint8_t op[OP_BYTES] = {0, (uint8_t)i, 0};
        if (!do_complete(op))
            return false;
    }
    if (kvg_tree_reset(world.tree) != KVG_OK)
        return wrong("reset failed");
    memset(world.pages, 0, sizeof(world.pages));
    memset(world.full_owner, 0, sizeof(world.full_owner));
    memset(world.swa_owner, 0, sizeof(world.swa_owner));
    memset(world.state_owner, 0, sizeof(world.state_owner));
    memset(world.map, 0, sizeof(world.map));
    kvg_tree_events_take(world.tree);
    world.hash_count = 0;
    return true;
}

static bool do_op(const uint8_t *op)
{
    struct held_lock *lock = &world.locks[op[1] % LOCKS];
    uint32_t kind = op[0] % 16;
    if (world.verbose)
        fprintf(stderr, "op %u: %u %u %u %u %u %u %u\n", kind, op[1], op[2], op[3], op[4],
            op[5], op[6], op[7]);
    if (kind < 6)
        return do_insert(op);
    if (kind < 9)
        return do_match_op(op);
    if (kind == 9)
        return !lock->used || do_unlock(lock);
    if (kind == 10)
        return !lock->used || (do_wrong_unlock(lock) && do_unlock_early(lock));
    if (kind == 11 || kind == 12)
        return do_evict(op);
    if (kind == 13)
        return do_offload(op);
    if (kind == 14)
        return do_complete(op);
    return op[1] % 32 != 0 || do_reset();
}

static void on_signal(int signal)
{
    (void)signal;
    siglongjmp(on_trap, 1);
}

static bool run_all(const uint8_t *program, size_t bytes)
{
    struct kvg_tree_options options;
    kvg_tree_options_init(&options);
    options.components = world.setup->components;
    options.page_size = world.setup->page_size;
    options.window = world.setup->window;
    options.eagle = world.setup->eagle;
    options.policy = world.setup->policy;
    options.events = true;
    options.seed = 3;
    if (kvg_tree_new(&world.fault.alloc, &options, &world.tree, &world.error) != KVG_OK)
        return wrong("new: %s", world.error.message);
    kvg_tree_settings(world.tree)->external_store = true;
    world.eagle = kvg_tree_is_eagle(world.tree);
    kvg_actions_init(&world.actions, &world.fault.alloc);
    bool ok = true;
    for (size_t at = 0; ok && at + OP_BYTES <= bytes; at += OP_BYTES)
        ok = do_op(program + at) && compare();
    kvg_actions_fini(&world.actions);
    kvg_tree_free(world.tree);
    if (ok && world.fault.live_bytes != 0)
        ok = wrong("%zu bytes leaked", world.fault.live_bytes);
    return ok;
}

const char *model_run(
    const struct model_setup *setup, const uint8_t *program, size_t bytes, bool verbose)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_NODEFER};
    struct sigaction old[2];
    static char why[sizeof(world.why)];

    memset(&world, 0, sizeof(world));
    world.setup = setup;
    world.verbose = verbose;
    world.has_swa = (setup->components & KVG_COMPONENT_BIT(KVG_COMPONENT_SWA)) != 0;
    world.has_state = (setup->components & KVG_COMPONENT_BIT(KVG_COMPONENT_MAMBA)) != 0;
    fault_alloc_init(&world.fault);
    sigaction(SIGILL, &action, &old[0]);
    sigaction(SIGTRAP, &action, &old[1]);
    bool ok = true;
    if (sigsetjmp(on_trap, 1) == 0)
        ok = run_all(program, bytes);
    else
        ok = wrong("an assertion failed");
    sigaction(SIGILL, &old[0], NULL);
    sigaction(SIGTRAP, &old[1], NULL);
    if (ok)
        return NULL;
    memcpy(why, world.why, sizeof(why));
    return why;
}

size_t model_shrink(const struct model_setup *setup, uint8_t *program, size_t bytes)
{
    static uint8_t tried[65536];
    for (size_t chunk = bytes / OP_BYTES / 2 * OP_BYTES; chunk >= OP_BYTES;) {
        bool shorter = false;
        for (size_t at = 0; at + chunk <= bytes;) {
            memcpy(tried, program, at);
            memcpy(tried + at, program + at + chunk, bytes - at - chunk);
            if (model_run(setup, tried, bytes - chunk, false) != NULL) {
                bytes -= chunk;
                memcpy(program, tried, bytes);
                shorter = true;
            } else {
                at += chunk;
            }
        }
        if (!shorter || chunk > bytes)
            chunk = chunk / 2 / OP_BYTES * OP_BYTES;
    }
    return bytes;
}

struct model_setup model_setup_at(size_t index)
{
    static const uint32_t sets[] = {KVG_COMPONENT_BIT(KVG_COMPONENT_FULL),
        KVG_COMPONENT_BIT(KVG_COMPONENT_FULL) | KVG_COMPONENT_BIT(KVG_COMPONENT_SWA),
        KVG_COMPONENT_BIT(KVG_COMPONENT_FULL) | KVG_COMPONENT_BIT(KVG_COMPONENT_MAMBA),
        KVG_COMPONENT_BIT(KVG_COMPONENT_FULL) | KVG_COMPONENT_BIT(KVG_COMPONENT_SWA) |
            KVG_COMPONENT_BIT(KVG_COMPONENT_MAMBA)};
    static const uint32_t pages[] = {1, 2, 4, 16};
    static const enum kvg_policy policies[] = {KVG_POLICY_LRU, KVG_POLICY_MRU,
        KVG_POLICY_LFU, KVG_POLICY_FIFO, KVG_POLICY_FILO, KVG_POLICY_SLRU};
    uint32_t page = pages[index / 4 % 4];
    return (struct model_setup){.components = sets[index % 4],
        .page_size = page,
        .window = index % 3 == 0   ? 1
                  : index % 3 == 1 ? 3 * page
                                   : page + page / 2 + 1,
        .eagle = index / 16 % 2 != 0,
        .policy = policies[index % 6]};
}
