/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* listing.c -- comparing a tenant with a listing of its store, while events go on.
 *
 *     begin ......... keys and events, in any order ......... end, in steps
 *     pass number up  each settles the part it names           what is not settled goes
 *
 * A listing is a picture of some moment after the beginning, or rather of many moments, one a
 * key.  An event that comes after the beginning is at least as new as the picture, as far as
 * this index can know: so it wins, whichever comes first here.  "Settled absent" is remembered
 * by a slot without parts.  When such memory had to give way, the pass becomes lossy and adds
 * nothing any more: a page less is harmless, a page that is not there is not.
 *
 * A listing does not say where a part is.  One that was not known is put in CPU memory, which
 * may be wrong, and a medium that was known when something was lost may be stale.  What follows
 * from it is in kvi_presence_put(): in doubt a part is dropped, never kept.
 *
 * The end sweeps the table in order of heads.  Behind the cursor the pass is over.
 */
#include "presence/index.h"

static uint64_t losses(struct kvg_presence *index)
{
    struct kvi_counters *counters = &index->counters;

    return kvi_own(&counters->evicted_pages) + kvi_own(&counters->refused_memory) +
           kvi_own(&counters->refused_spaces) + kvi_own(&counters->refused_suffixes);
}

static void forget_slot(struct kvg_presence *index, struct kvi_slot *slot, void *context)
{
    (void)context;
    if (kvi_presence_parts_tally(slot).pairs == 0)
        kvi_presence_table_remove(index, slot);
    else
        kvi_presence_parts_forget_pass(slot);
}

/* The numbers of passes begin again: settled bits of old ones must not look new. */
static void restart_numbers(struct kvg_presence *index)
{
    uint64_t head = 0;

    do
        head = kvi_presence_table_visit(index, head, forget_slot, NULL);
    while (head != 0);
    index->pass.number = 0;
}

kvg_err kvg_presence_listing_begin(struct kvg_presence *index, struct kvg_str tenant)
{
    uint32_t tenant_number;
    uint32_t number;
    kvg_err err;

    if (index->pass.active)
        return KVG_EBUSY;
    err = kvi_presence_tenant_get(index, tenant, &tenant_number);
    if (err != KVG_OK)
        return err;
    if (index->pass.number == PASS_MAX)
        restart_numbers(index);
    number = index->pass.number + 1;
    index->pass = (struct kvi_pass){.active = true,
        .number = number,
        .tenant = tenant_number,
        .doubtful = atomic_load_explicit(&index->tenants[tenant_number]->confidence,
                        memory_order_acquire) != KVG_CONFIDENCE_FRESH,
        .losses = losses(index)};
    return KVG_OK;
}

bool kvg_presence_listing_key(struct kvg_presence *index, struct kvg_str object_key)
{
    struct kvi_pass *pass = &index->pass;
    struct kvg_object_key object;
    struct kvi_page page;
    struct kvi_slot slot;
    unsigned state = 0;
    unsigned drop = 0;
    uint32_t part;

    if (!pass->active || pass->sweeping)
        return false;
    if (!kvg_object_key_parse(object_key, &object)) {
        pass->result.foreign++;
        return false;
    }
    pass->result.listed++;
    if (pass->cleared)
        return true;
    if (!kvi_presence_locate(index, pass->tenant, &object, true, &page, &part))
        return false;
    if (kvi_presence_table_find(index, &page, &slot))
        state = kvi_presence_parts_get(index, &slot, part);
    if (state & STATE_SETTLED || (pass->lossy && !(state & STATE_PRESENT)))
        return true;
    if (pass->doubtful && (state & STATE_PRESENT) == STATE_PRESENT)
        drop = STATE_DISK; /* One of the two may be stale; kvi_presence_put() says why. */
    if (kvi_presence_put(index, &page, part, state & STATE_PRESENT ? 0 : STATE_CPU, drop,
            KVI_SETTLE_LISTED, &state) != KVG_OK) {
        kvi_count(&index->counters.refused_memory, 1);
        kvi_presence_lost(index);
        return false;
    }
    pass->result.added += state == 0;
    return true;
}

static void sweep_slot(struct kvg_presence *index, struct kvi_slot *slot, void *context)
{
    struct kvi_pass *pass = &index->pass;
    struct kvi_tally before = kvi_presence_parts_tally(slot);
    struct kvi_tally after;

    (void)context;
    if (index->spaces[kvi_slot_space(slot)]->tenant != pass->tenant) {
        if (before.pairs == 0) /* Left by a listing that was given up. */
            kvi_presence_table_remove(index, slot);
        return;
    }
    kvi_presence_parts_drop_unsettled(index, slot);
    after = kvi_presence_parts_tally(slot);
    pass->result.dropped += before.objects - after.objects;
    kvi_presence_recount(index, kvi_slot_space(slot), before, after);
    if (after.pairs == 0)
        kvi_presence_table_remove(index, slot);
}

bool kvg_presence_listing_end(
    struct kvg_presence *index, size_t slot_max, struct kvg_presence_listing_result *out)
{
    struct kvi_pass *pass = &index->pass;
    size_t slots = 0;

    if (!pass->active) {
        *out = (struct kvg_presence_listing_result){0};
        return true;
    }
    pass->sweeping = true;
    do {
        slots += kvi_presence_table_segment_slots(index, pass->cursor);
        pass->cursor = kvi_presence_table_visit(index, pass->cursor, sweep_slot, NULL);
    } while (pass->cursor != 0 && slots < slot_max);
    *out = pass->result;
    if (pass->cursor != 0)
        return false;
    pass->active = false;
    if (!pass->lossy && losses(index) == pass->losses)
        atomic_store_explicit(&index->partial, false, memory_order_release);
    return true;
}

void kvg_presence_listing_abort(struct kvg_presence *index)
{
    index->pass.active = false;
}
