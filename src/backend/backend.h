/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* backend.h -- the backends of the store that do I/O, and so cannot live in the core. */
#ifndef KVI_BACKEND_BACKEND_H
#define KVI_BACKEND_BACKEND_H

#include <kvgraft/store_backend.h>

extern const struct kvg_store_backend kvi_store_mooncake;
extern const struct kvg_store_backend kvi_store_redis;
extern const struct kvg_store_backend kvi_store_rediss;
extern const struct kvg_store_backend kvi_store_fault;

#endif
