/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* rids.h -- a map from request ids to small numbers: open addressing, linear probing, no
 * tombstones (a removal moves later entries back). */
#ifndef KVI_GRAFT_RIDS_H
#define KVI_GRAFT_RIDS_H

#include <kvgraft/graft.h>

#define KVI_RID_NONE UINT32_MAX

struct kvi_rid_entry {
    kvg_request_id id;
    uint32_t value; /* KVI_RID_NONE: empty. */
};
struct kvi_rids {
    struct kvi_rid_entry *entries;
    uint32_t capacity; /* A power of two, or 0. */
    uint32_t count;
};

/* Room for one more. */
kvg_err kvi_rids_reserve(const struct kvg_alloc *alloc, struct kvi_rids *rids);
/* Adds an id that is not there; room was reserved. */
void kvi_rids_add(struct kvi_rids *rids, kvg_request_id id, uint32_t value);
/* KVI_RID_NONE if it is not there. */
uint32_t kvi_rids_find(const struct kvi_rids *rids, kvg_request_id id);
void kvi_rids_remove(struct kvi_rids *rids, kvg_request_id id);
void kvi_rids_clear(struct kvi_rids *rids);
void kvi_rids_fini(const struct kvg_alloc *alloc, struct kvi_rids *rids);

#endif
