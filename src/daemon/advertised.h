/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* advertised.h -- what workers advertise, as JSON, into a set of workers.
 *
 *     {"7587895": {"backend": "mooncake", "page_size": 64, "tp_size": 8, "pp_size": 1, ...},
 *      "7587896": {"sglang_hicache_mooncake": {...}}}
 *
 * The inner object is what SGLang workers publish under the runtime key
 * "sglang_hicache_mooncake"; it may stand alone or under that key.  Unknown members are ignored:
 * newer workers may say more.  A worker that cannot be read is kept as unusable, with the reason.
 *
 * Threads: pure.
 */
#ifndef KVD_ADVERTISED_H
#define KVD_ADVERTISED_H

#include <kvgraft/workers.h>

#define KVD_ADVERTISED_KEY "sglang_hicache_mooncake"

/* Adds the workers in the text to a set.  Without memory it may hold a part. */
KVG_MUST_CHECK kvg_err kvd_advertised_read(
    struct kvg_workers *workers, struct kvg_str text, struct kvg_error *error);
/* The same, handed out one by one: a worker that could be read, or what is wrong with it. */
KVG_MUST_CHECK kvg_err kvd_advertised_each(struct kvg_str text, struct kvg_error *error,
    void (*on_worker)(
        void *context, uint64_t worker_id, const struct kvg_worker_config *config),
    void (*on_bad)(void *context, uint64_t worker_id, const struct kvg_error *reason),
    void *context);
/* Only whether the text could be read: an object of worker ids. */
KVG_MUST_CHECK kvg_err kvd_advertised_check(struct kvg_str text, struct kvg_error *error);

#endif
