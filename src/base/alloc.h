/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* alloc.h -- checked sizes on top of struct kvg_alloc. */
#ifndef KVI_BASE_ALLOC_H
#define KVI_BASE_ALLOC_H

#include <kvgraft/base.h>

#include <string.h>

/* `count` objects of `bytes` each, zeroed.  NULL without memory, on overflow, or for 0. */
void *kvi_alloc_array(const struct kvg_alloc *alloc, size_t count, size_t bytes);

/* The same, not zeroed. */
void *kvi_alloc_array_raw(const struct kvg_alloc *alloc, size_t count, size_t bytes);

/* NULL is allowed.  `count` and `bytes` as they were asked for. */
void kvi_release_array(
    const struct kvg_alloc *alloc, void *memory, size_t count, size_t bytes);

/* Moves an array to a larger (or smaller) place.  On failure *memory is untouched and the
 * result is false.  New elements are not set. */
bool kvi_resize_array(const struct kvg_alloc *alloc, void **memory, size_t old_count,
    size_t new_count, size_t bytes);

/* Copies a string; the copy is followed by a zero.  Release it with kvi_release_string. */
char *kvi_copy_string(const struct kvg_alloc *alloc, struct kvg_str text);
void kvi_release_string(const struct kvg_alloc *alloc, char *text, size_t bytes);

#define KVI_NEW(alloc, type) ((type *)kvi_alloc_array((alloc), 1, sizeof(type)))
#define KVI_FREE(alloc, object) kvi_release_array((alloc), (object), 1, sizeof(*(object)))

#endif
