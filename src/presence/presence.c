/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* presence.c -- the writer's side of the presence index: making it, and events.
 *
 * The structures and their invariants are in index.h.  An event's object key is taken apart into
 * a space (tenant and prefix), a page key and a suffix; the suffix is a part number in the
 * vocabulary of the space; the part's bits are changed.  A page without parts is taken out, but
 * during a pass over its tenant it stays, to remember that an event removed it (listing.c).
 *
 * Not here: reading a clock, I/O, a second writer.
 */
#include "presence/index.h"

#include "base/fmt.h"

#define MEMORY_BYTES_DEFAULT ((size_t)1 << 30)
/* Events taken apart, and their memory asked for, before the first of them is applied. */
#define EVENTS_AHEAD 16u

/* Our allocator: the caller's, counted and kept to the limit. */
static void *allocate_counted(void *context, size_t bytes)
{
    struct kvg_presence *index = context;
    void *memory;

    if (bytes > index->memory_bytes_max - kvi_own(&index->counters.memory_bytes))
        return NULL;
    memory = index->host.allocate(index->host.context, bytes);
    if (memory != NULL)
        kvi_count(&index->counters.memory_bytes, (int64_t)bytes);
    return memory;
}

static void release_counted(void *context, void *memory, size_t bytes)
{
    struct kvg_presence *index = context;

    index->host.release(index->host.context, memory, bytes);
    kvi_count(&index->counters.memory_bytes, -(int64_t)bytes);
}

static kvg_err check_options(
    const struct kvg_presence_options *options, struct kvg_error *error)
{
    if (options->struct_bytes != sizeof(*options))
        return kvi_fail(error, KVG_EINVAL, "struct_bytes",
            "struct_bytes is not the size of struct kvg_presence_options");
    if (options->memory_bytes_max != 0 &&
        (options->memory_bytes_max < KVG_PRESENCE_MEMORY_BYTES_MIN ||
            options->memory_bytes_max > (size_t)INT64_MAX))
        return kvi_fail_range(error, "memory_bytes_max", options->memory_bytes_max,
            KVG_PRESENCE_MEMORY_BYTES_MIN, INT64_MAX);
    return KVG_OK;
}

static kvg_err make_seats(struct kvg_presence *index)
{
    uintptr_t start;
    uint32_t i;

    index->seats_memory = kvi_alloc_array(&index->alloc, SEATS_BYTES, 1);
    if (index->seats_memory == NULL)
        return KVG_ENOMEM;
    start = ((uintptr_t)index->seats_memory + 63) & ~(uintptr_t)63;
    index->seats =
        (struct kvg_presence_reader *)(void *)((char *)index->seats_memory +
                                               (start - (uintptr_t)index->seats_memory));
    for (i = 0; i < KVG_PRESENCE_READERS_MAX; i++)
        index->seats[i].index = index;
    return KVG_OK;
}

kvg_err kvg_presence_new(const struct kvg_alloc *alloc,
    const struct kvg_presence_options *options, struct kvg_error *error,
    struct kvg_presence **out)
{
    static const struct kvg_presence_options DEFAULTS = {
        .struct_bytes = sizeof(DEFAULTS)};
    struct kvg_presence *index;
    kvg_err err;

    *out = NULL;
    if (options == NULL)
        options = &DEFAULTS;
    err = check_options(options, error);
    if (err != KVG_OK)
        return err;
    index = KVI_NEW(alloc, struct kvg_presence);
    if (index == NULL)
        return kvi_fail(error, KVG_ENOMEM, "presence", "out of memory");
    index->host = *alloc;
    index->alloc = (struct kvg_alloc){
        .allocate = allocate_counted, .release = release_counted, .context = index};
    index->memory_bytes_max =
        options->memory_bytes_max != 0 ? options->memory_bytes_max : MEMORY_BYTES_DEFAULT;
    index->seed = options->seed;
    index->full_keys = options->full_keys;
    index->confidence_default = KVG_CONFIDENCE_BLIND;
    atomic_store_explicit(&index->epoch, 1, memory_order_seq_cst);
    kvi_count(&index->counters.memory_bytes, (int64_t)sizeof(*index));
    kvi_names_init(&index->tenant_names, &index->alloc, KVG_PRESENCE_TENANTS_MAX,
        kvi_mix64(index->seed ^ 1));
    kvi_names_init(&index->space_names, &index->alloc, KVG_PRESENCE_SPACES_MAX,
        kvi_mix64(index->seed ^ 2));

    err = make_seats(index);
    if (err == KVG_OK)
        err = kvi_presence_table_init(index);
    if (err != KVG_OK) {
        kvg_presence_free(index);
        return kvi_fail(error, err, "presence", "out of memory");
    }
    *out = index;
    return KVG_OK;
}

void kvg_presence_free(struct kvg_presence *index)
{
    struct kvg_alloc host;
    uint32_t i;

    if (index == NULL)
        return;
    KVI_ASSERT(index->view_count == 0);
    for (i = 0; index->seats != NULL && i < KVG_PRESENCE_READERS_MAX; i++)
        KVI_ASSERT(
            atomic_load_explicit(&index->seats[i].taken, memory_order_acquire) == 0);
    kvi_presence_reclaim_all(index);
    kvi_presence_table_fini(index);
    kvi_presence_spaces_fini(index);
    kvi_release_array(&index->alloc, index->seats_memory, SEATS_BYTES, 1);
    KVI_ASSERT(kvi_own(&index->counters.memory_bytes) == sizeof(*index));
    host = index->host;
    KVI_FREE(&host, index);
}

void kvi_presence_lost(struct kvg_presence *index)
{
    atomic_store_explicit(&index->partial, true, memory_order_release);
}

void kvi_presence_recount(struct kvg_presence *index, uint32_t space_id,
    struct kvi_tally before, struct kvi_tally after)
{
    struct kvi_space *space = index->spaces[space_id];
    int64_t pages = (after.pairs != 0) - (before.pairs != 0);
    int64_t cpu = (int64_t)after.cpu - (int64_t)before.cpu;
    int64_t pairs = (int64_t)after.pairs - (int64_t)before.pairs;

    if (pairs == 0 && cpu == 0 && before.objects == after.objects)
        return;
    kvi_count(&index->counters.parts, pairs);
    kvi_count(&index->counters.objects, (int64_t)after.objects - (int64_t)before.objects);
    kvi_count(&index->counters.cpu_parts, cpu);
    kvi_count(&index->counters.disk_parts, pairs - cpu);
    kvi_count(&index->counters.cpu_pages, (after.cpu != 0) - (before.cpu != 0));
    kvi_count(&index->counters.disk_pages,
        (after.pairs != after.cpu) - (before.pairs != before.cpu));
    if (pages == 0)
        return;
    kvi_count(&index->counters.pages, pages);
    space->pages += (uint64_t)pages;
}

void kvi_presence_drop(struct kvg_presence *index, const struct kvi_slot *slot)
{
    kvi_presence_recount(index, kvi_slot_space(slot), kvi_presence_parts_tally(slot),
        (struct kvi_tally){0});
    kvi_presence_table_remove(index, slot);
}

/* Counts a part that went from one state to another, and its page, which had and has parts in
 * these media. */
static void count_change(struct kvg_presence *index, struct kvi_space *space,
    unsigned was, unsigned is, unsigned had, unsigned has)
{
    struct kvi_counters *counters = &index->counters;
    int64_t cpu = (int64_t)(is & STATE_CPU) - (int64_t)(was & STATE_CPU);
    int64_t disk = ((is & STATE_DISK) != 0) - ((was & STATE_DISK) != 0);
    int64_t pages = (has != 0) - (had != 0);

    kvi_count(&counters->parts, cpu + disk);
    kvi_count(&counters->cpu_parts, cpu);
    kvi_count(&counters->disk_parts, disk);
    kvi_count(&counters->objects, (is != 0) - (was != 0));
    if (had == has)
        return;
    kvi_count(
        &counters->cpu_pages, (int64_t)(has & STATE_CPU) - (int64_t)(had & STATE_CPU));
    kvi_count(
        &counters->disk_pages, ((has & STATE_DISK) != 0) - ((had & STATE_DISK) != 0));
    kvi_count(&counters->pages, pages);
    space->pages += (uint64_t)pages;
}

/* Brings a part of a slot to a state and counts it. */
static kvg_err set_state(struct kvg_presence *index, const struct kvi_slot *slot,
    uint32_t part, unsigned old_state, unsigned new_state)
{
    unsigned was = old_state & STATE_PRESENT;
    unsigned is = new_state & STATE_PRESENT;
    unsigned had = kvi_presence_parts_media(slot);
    kvg_err err;

    if (old_state == new_state)
        return KVG_OK;
    err = kvi_presence_parts_set(index, slot, part, new_state);
    if (err == KVG_OK && was != is)
        count_change(index, index->spaces[kvi_slot_space(slot)], was, is, had,
            kvi_presence_parts_media(slot));
    return err;
}

/* A part is present while it is on some medium.  Behind a publisher that tells each medium's
 * removal, a medium wrongly believed would keep a part for ever that the store no longer has.
 * So belief gives way in two places: a removal from a medium where the part was not known to be
 * shows that the known one is wrong, and the first event about a part in a doubtful pass leaves
 * nothing of what was known before.  At worst a part is missing that is still somewhere. */
kvg_err kvi_presence_put(struct kvg_presence *index, const struct kvi_page *page,
    uint32_t part, unsigned add, unsigned drop, enum kvi_settle settle,
    unsigned *before_out)
{
    struct kvi_slot slot;
    unsigned state = 0;
    unsigned wanted;
    kvg_err err;

    *before_out = 0;
    if (page->head < HEAD_MIN)
        return KVG_ELIMIT; /* Two keys of 2^64 cannot be held. */
    if (kvi_presence_table_find(index, page, &slot)) {
        state = kvi_presence_parts_get(index, &slot, part);
        if (!index->pass.active)
            state &= STATE_PRESENT;
    } else {
        if (add == 0 && settle == KVI_SETTLE_NOT)
            return KVG_OK;
        err = kvi_presence_table_add(index, page, &slot);
        if (err != KVG_OK)
            return err;
    }
    *before_out = state & STATE_PRESENT;
    if (drop != 0 && (state & drop) == 0)
        drop = STATE_PRESENT;
    if (settle == KVI_SETTLE_EVENT && index->pass.doubtful && !(state & STATE_SETTLED))
        drop = STATE_PRESENT;
    wanted = (state & ~drop) | add | (settle != KVI_SETTLE_NOT ? STATE_SETTLED : 0);
    err = set_state(index, &slot, part, state, wanted);
    if (kvi_presence_parts_media(&slot) == 0 && !kvi_presence_parts_settled(index, &slot))
        kvi_presence_table_remove(index, &slot);
    return err;
}

kvg_err kvi_presence_merge(struct kvg_presence *index, const struct kvi_page *page,
    const struct kvi_group *groups, uint32_t group_count, uint32_t heat)
{
    struct kvi_slot slot;
    struct kvi_tally before;
    kvg_err err;

    if (page->head < HEAD_MIN)
        return KVG_ELIMIT; /* Two keys of 2^64 cannot be held. */
    if (!kvi_presence_table_find(index, page, &slot)) {
        err = kvi_presence_table_add(index, page, &slot);
        if (err != KVG_OK)
            return err;
        atomic_store_explicit(&slot.bucket->heat[slot.at], heat, memory_order_relaxed);
    }
    before = kvi_presence_parts_tally(&slot);
    err = kvi_presence_parts_merge(index, &slot, groups, group_count);
    kvi_presence_recount(index, page->space->id, before, kvi_presence_parts_tally(&slot));
    if (kvi_presence_parts_media(&slot) == 0 && !kvi_presence_parts_settled(index, &slot))
        kvi_presence_table_remove(index, &slot);
    return err;
}

enum kvi_settle kvi_presence_pass_settles(
    const struct kvg_presence *index, const struct kvi_space *space, uint64_t head)
{
    bool settles = index->pass.active && space->tenant == index->pass.tenant &&
                   !(index->pass.sweeping && head < index->pass.cursor);

    return settles ? KVI_SETTLE_EVENT : KVI_SETTLE_NOT;
}

void kvi_presence_count_refusal(
    struct kvg_presence *index, _Atomic uint64_t *limit_counter, kvg_err err)
{
    kvi_count(err == KVG_ELIMIT ? limit_counter : &index->counters.refused_memory, 1);
    kvi_presence_lost(index);
}

bool kvi_presence_locate(struct kvg_presence *index, uint32_t tenant,
    const struct kvg_object_key *object, bool create, struct kvi_page *page_out,
    uint32_t *part_out)
{
    struct kvi_space *space = kvi_presence_space_find(index, tenant, object->prefix);
    int32_t part;
    kvg_err err;

    if (space == NULL && create) {
        err = kvi_presence_space_get(index, tenant, object->prefix, &space);
        if (err != KVG_OK)
            kvi_presence_count_refusal(index, &index->counters.refused_spaces, err);
    }
    if (space == NULL)
        return false;
    part = kvi_names_find(&space->suffixes, object->suffix);
    *part_out = (uint32_t)part;
    if (part < 0) {
        if (!create)
            return false;
        err = kvi_names_add(&space->suffixes, object->suffix, part_out);
        if (err != KVG_OK) {
            kvi_presence_count_refusal(index, &index->counters.refused_suffixes, err);
            return false;
        }
    }
    *page_out = kvi_make_page(&object->key, space);
    return page_out->head >= HEAD_MIN; /* Two keys of 2^64 cannot be held. */
}

/* An event taken apart, its page's memory asked for. */
struct prepared {
    enum {
        EVENT_APPLIES,
        EVENT_REFUSED,
        EVENT_UNKNOWN /* A removal of what was never here. */
    } what;
    struct kvg_object_key object;
    struct kvi_page page; /* Points into the object's key. */
    uint32_t part;
};

static void prepare(struct kvg_presence *index, const struct kvg_presence_event *event,
    struct prepared *out)
{
    uint32_t tenant = 0;
    bool create = true;

    out->what = EVENT_REFUSED;
    if (!kvg_object_key_parse(event->object_key, &out->object)) {
        kvi_count(&index->counters.foreign_keys, 1);
        return;
    }
    if (event->is_removal) {
        int32_t found = kvi_presence_tenant_find(index, event->tenant);

        out->what = EVENT_UNKNOWN;
        if (found < 0)
            return;
        tenant = (uint32_t)found;
        create = index->pass.active && tenant == index->pass.tenant;
    } else {
        kvg_err err = kvi_presence_tenant_get(index, event->tenant, &tenant);

        if (err != KVG_OK) {
            kvi_presence_count_refusal(index, &index->counters.refused_spaces, err);
            return;
        }
    }
    if (!kvi_presence_locate(index, tenant, &out->object, create, &out->page, &out->part))
        return;
    out->what = EVENT_APPLIES;
    kvi_presence_table_prefetch(index, out->page.head);
}

static bool apply_stored(
    struct kvg_presence *index, const struct prepared *prepared, enum kvg_medium medium)
{
    const struct kvi_page *page = &prepared->page;
    unsigned before;
    kvg_err err;

    if (prepared->what != EVENT_APPLIES)
        return false;
    err = kvi_presence_put(index, page, prepared->part,
        medium == KVG_MEDIUM_DISK ? STATE_DISK : STATE_CPU, 0,
        kvi_presence_pass_settles(index, page->space, page->head), &before);
    if (err != KVG_OK) {
        kvi_presence_count_refusal(index, &index->counters.refused_memory, err);
        return false;
    }
    kvi_count(&index->counters.stored_applied, 1);
    return true;
}

static bool apply_removed(
    struct kvg_presence *index, const struct prepared *prepared, enum kvg_medium medium)
{
    const struct kvi_page *page = &prepared->page;
    unsigned drop = medium == KVG_MEDIUM_DISK      ? STATE_DISK
                    : medium == KVG_MEDIUM_UNKNOWN ? STATE_PRESENT
                                                   : STATE_CPU;
    unsigned before = 0;

    if (prepared->what == EVENT_REFUSED)
        return false;
    if (prepared->what == EVENT_APPLIES &&
        kvi_presence_put(index, page, prepared->part, 0, drop,
            kvi_presence_pass_settles(index, page->space, page->head),
            &before) != KVG_OK) {
        /* There was no memory to remember it for the listing: let that add nothing. */
        index->pass.lossy = true;
        kvi_count(&index->counters.refused_memory, 1);
    }
    kvi_count(
        before != 0 ? &index->counters.removed_applied : &index->counters.removed_unknown,
        1);
    return true;
}

void kvg_presence_apply(
    struct kvg_presence *index, struct kvg_presence_event *events, size_t count)
{
    struct prepared prepared[EVENTS_AHEAD];
    size_t begin;
    size_t i;

    for (begin = 0; begin < count; begin += EVENTS_AHEAD) {
        size_t left = count - begin;
        size_t end = begin + (left < EVENTS_AHEAD ? left : EVENTS_AHEAD);

        for (i = begin; i < end; i++)
            prepare(index, &events[i], &prepared[i - begin]);
        for (i = begin; i < end; i++)
            events[i].is_known = (events[i].is_removal ? apply_removed : apply_stored)(
                index, &prepared[i - begin], events[i].medium);
    }
}

bool kvg_presence_stored(struct kvg_presence *index, struct kvg_str tenant,
    struct kvg_str object_key, enum kvg_medium medium)
{
    struct kvg_presence_event event = {
        .tenant = tenant, .object_key = object_key, .medium = medium};
    struct prepared prepared;

    prepare(index, &event, &prepared);
    return apply_stored(index, &prepared, medium);
}

bool kvg_presence_removed(struct kvg_presence *index, struct kvg_str tenant,
    struct kvg_str object_key, enum kvg_medium medium)
{
    struct kvg_presence_event event = {
        .tenant = tenant, .object_key = object_key, .medium = medium, .is_removal = true};
    struct prepared prepared;

    prepare(index, &event, &prepared);
    return apply_removed(index, &prepared, medium);
}

struct clearing {
    bool all;
    uint32_t tenant;
};

static void clear_slot(struct kvg_presence *index, struct kvi_slot *slot, void *context)
{
    const struct clearing *clearing = context;

    if (clearing->all || index->spaces[kvi_slot_space(slot)]->tenant == clearing->tenant)
        kvi_presence_drop(index, slot);
}

void kvg_presence_cleared(struct kvg_presence *index, struct kvg_str tenant)
{
    int32_t number = tenant.data == NULL ? 0 : kvi_presence_tenant_find(index, tenant);
    struct clearing clearing = {tenant.data == NULL, (uint32_t)number};
    uint64_t head = 0;

    kvi_count(&index->counters.cleared_applied, 1);
    if (number < 0)
        return;
    do
        head = kvi_presence_table_visit(index, head, clear_slot, &clearing);
    while (head != 0);
    if (index->pass.active && (clearing.all || clearing.tenant == index->pass.tenant))
        index->pass.cleared = true;
    kvi_presence_reclaim(index);
}

void kvg_presence_set_confidence(
    struct kvg_presence *index, struct kvg_str tenant, enum kvg_confidence confidence)
{
    uint32_t number;
    uint32_t i;
    kvg_err err;

    if (tenant.data == NULL) {
        index->confidence_default = confidence;
        for (i = 0; i < index->tenant_names.count; i++)
            atomic_store_explicit(&index->tenants[i]->confidence, (uint32_t)confidence,
                memory_order_release);
        return;
    }
    err = kvi_presence_tenant_get(index, tenant, &number);
    if (err != KVG_OK) {
        kvi_presence_count_refusal(index, &index->counters.refused_spaces, err);
        return;
    }
    atomic_store_explicit(
        &index->tenants[number]->confidence, (uint32_t)confidence, memory_order_release);
}

void kvg_presence_set_time(struct kvg_presence *index, uint64_t now_s)
{
    uint32_t stamp = (uint32_t)now_s & HEAT_STAMP_MASK;

    if (stamp == atomic_load_explicit(&index->now, memory_order_relaxed))
        return;
    atomic_store_explicit(&index->now, stamp, memory_order_relaxed);
    index->arrivals = 0;
}

void kvg_presence_stats(const struct kvg_presence *index, struct kvg_presence_stats *out)
{
    *out = (struct kvg_presence_stats){.struct_bytes = sizeof(*out)};
#define KVI_COUNTER_READ(name) \
    out->name = atomic_load_explicit(&index->counters.name, memory_order_relaxed);
    KVI_PRESENCE_COUNTERS(KVI_COUNTER_READ)
#undef KVI_COUNTER_READ
    out->memory_bytes_max = index->memory_bytes_max;
    out->partial = atomic_load_explicit(&index->partial, memory_order_acquire);
}
