/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* rids.c -- see rids.h.  Ids come from the embedder alone, so the hash needs no secret. */
#include "graft/rids.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/rng.h"

static uint32_t home(const struct kvi_rids *rids, kvg_request_id id)
{
    return (uint32_t)kvi_mix64(id) & (rids->capacity - 1);
}

void kvi_rids_clear(struct kvi_rids *rids)
{
    for (uint32_t i = 0; i < rids->capacity; i++)
        rids->entries[i].value = KVI_RID_NONE;
    rids->count = 0;
}

void kvi_rids_add(struct kvi_rids *rids, kvg_request_id id, uint32_t value)
{
    uint32_t at = home(rids, id);

    KVI_ASSERT(rids->count < rids->capacity);
    while (rids->entries[at].value != KVI_RID_NONE)
        at = (at + 1) & (rids->capacity - 1);
    rids->entries[at] = (struct kvi_rid_entry){id, value};
    rids->count++;
}

kvg_err kvi_rids_reserve(const struct kvg_alloc *alloc, struct kvi_rids *rids)
{
    struct kvi_rids larger = {.capacity = rids->capacity == 0 ? 16 : rids->capacity * 2};

    if ((rids->count + 1) * 2 <= rids->capacity)
        return KVG_OK;
    larger.entries = kvi_alloc_array_raw(alloc, larger.capacity, sizeof(*larger.entries));
    if (larger.entries == NULL)
        return KVG_ENOMEM;
    kvi_rids_clear(&larger);
    for (uint32_t i = 0; i < rids->capacity; i++) {
        if (rids->entries[i].value != KVI_RID_NONE)
            kvi_rids_add(&larger, rids->entries[i].id, rids->entries[i].value);
    }
    kvi_rids_fini(alloc, rids);
    *rids = larger;
    return KVG_OK;
}

static uint32_t place(const struct kvi_rids *rids, kvg_request_id id)
{
    uint32_t at;

    if (rids->count == 0)
        return KVI_RID_NONE;
    for (at = home(rids, id); rids->entries[at].value != KVI_RID_NONE;
         at = (at + 1) & (rids->capacity - 1)) {
        if (rids->entries[at].id == id)
            return at;
    }
    return KVI_RID_NONE;
}

uint32_t kvi_rids_find(const struct kvi_rids *rids, kvg_request_id id)
{
    uint32_t at = place(rids, id);

    return at == KVI_RID_NONE ? KVI_RID_NONE : rids->entries[at].value;
}

void kvi_rids_remove(struct kvi_rids *rids, kvg_request_id id)
{
    uint32_t mask = rids->capacity - 1;
    uint32_t hole = place(rids, id);

    if (hole == KVI_RID_NONE)
        return;
    rids->count--;
    for (uint32_t at = (hole + 1) & mask; rids->entries[at].value != KVI_RID_NONE;
         at = (at + 1) & mask) {
        uint32_t wanted = home(rids, rids->entries[at].id);
        if (((at - wanted) & mask) >= ((at - hole) & mask)) {
            rids->entries[hole] = rids->entries[at];
            hole = at;
        }
    }
    rids->entries[hole].value = KVI_RID_NONE;
}

void kvi_rids_fini(const struct kvg_alloc *alloc, struct kvi_rids *rids)
{
    kvi_release_array(alloc, rids->entries, rids->capacity, sizeof(*rids->entries));
    *rids = (struct kvi_rids){0};
}
