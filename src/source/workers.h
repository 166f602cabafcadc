/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* workers.h -- the inside of the set of workers: workers.c changes it and describes it,
 * workers_rows.c counts who shares what, workers_view.c reads and checks it. */
#ifndef KVI_SOURCE_WORKERS_H
#define KVI_SOURCE_WORKERS_H

#include <kvgraft/workers.h>

#define KVI_LISTED_MAX 64u

/* A layout or an endpoint that usable workers share. */
struct kvi_shared {
    uint32_t users;
    uint64_t order; /* When it came; older is smaller. */
    struct kvg_layout *layout;
    size_t text_bytes;
    char text[]; /* An endpoint. */
};

/* One more than the limit, so that a new one can be in before the one it replaces is out. */
struct kvi_rows {
    size_t count;
    struct kvi_shared *rows[KVI_LISTED_MAX + 1];
};

struct kvi_worker {
    uint64_t id;
    struct kvi_shared *layout;   /* NULL: unusable. */
    struct kvi_shared *endpoint; /* NULL: none advertised, or unusable. */
    bool endpoint_listed;
    struct kvg_error *error; /* NULL: usable. */
    size_t backend_bytes;
    char backend[KVG_BACKEND_BYTES_MAX];
};

struct kvg_workers {
    const struct kvg_alloc *alloc;
    uint64_t generation;
    uint64_t next_order;
    struct kvi_worker **workers;
    size_t worker_count;
    size_t worker_room;
    size_t usable_count;
    size_t unlisted_count;
    struct kvi_rows layouts;
    struct kvi_rows endpoints;
    size_t override_bytes;
    char override_text[KVG_ENDPOINT_BYTES_MAX];
};

/* workers_rows.c */
struct kvi_shared *kvi_shared_new(
    const struct kvg_alloc *alloc, struct kvg_layout *layout, struct kvg_str text);
void kvi_shared_free(const struct kvg_alloc *alloc, struct kvi_shared *row);
struct kvg_str kvi_shared_text(const struct kvi_shared *row);
struct kvi_shared *kvi_rows_find_endpoint(
    const struct kvi_rows *rows, struct kvg_str text);
struct kvi_shared *kvi_rows_find_layout(
    const struct kvi_rows *rows, const struct kvg_layout *layout);
size_t kvi_rows_index(const struct kvi_rows *rows, const struct kvi_shared *row);
bool kvi_shared_goes_before(const struct kvi_shared *a, const struct kvi_shared *b);
void kvi_rows_enter(
    struct kvg_workers *workers, struct kvi_rows *rows, struct kvi_shared *row);
/* The row's last user takes it out of the table and frees it. */
void kvi_rows_leave(
    struct kvg_workers *workers, struct kvi_rows *rows, struct kvi_shared *row);
/* There may be room in the list again: takes in who waited for it (W6). */
void kvi_rows_list_unlisted(struct kvg_workers *workers);

/* workers_view.c: the first worker whose id is not below; worker_count if none. */
size_t kvi_workers_lower_bound(const struct kvg_workers *workers, uint64_t id);
struct kvi_worker *kvi_workers_find(const struct kvg_workers *workers, uint64_t id);

/* The number of the first broken invariant (workers.c), or 0. */
int kvi_workers_check(const struct kvg_workers *workers);

#endif
