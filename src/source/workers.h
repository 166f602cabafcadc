/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* workers.h -- what tests see of the set of workers beyond the public header. */
#ifndef KVI_SOURCE_WORKERS_H
#define KVI_SOURCE_WORKERS_H

#include <kvgraft/workers.h>

/* The number of the first broken invariant (workers.c), or 0. */
int kvi_workers_check(const struct kvg_workers *workers);

#endif
