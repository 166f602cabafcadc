/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* redis_scripts.h -- what runs inside the server. */
#ifndef KVI_BACKEND_REDIS_SCRIPTS_H
#define KVI_BACKEND_REDIS_SCRIPTS_H

enum kvi_redis_script {
    KVI_REDIS_INIT,
    KVI_REDIS_PUT,
    KVI_REDIS_REMOVE,
    KVI_REDIS_TOUCH,
    KVI_REDIS_CLEAR,
    KVI_REDIS_LIST,
    KVI_REDIS_VERIFY,
    KVI_REDIS_SCRIPT_COUNT
};

/* The whole text of each: the common part, then its own. */
extern const char *const kvi_redis_scripts[KVI_REDIS_SCRIPT_COUNT];

#define KVI_REDIS_VERSION 1 /* Of what they keep. */

#endif
