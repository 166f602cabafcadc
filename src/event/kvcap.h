/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* kvcap.h -- what tests may ask of a capture's stream. */
#ifndef KVI_EVENT_KVCAP_H
#define KVI_EVENT_KVCAP_H

#include <kvgraft/kvcap.h>

/* 0, or the number of the first invariant (kvcap.c) that does not hold. */
int kvi_kvcap_stream_check(const struct kvg_kvcap_stream *stream);

#endif
