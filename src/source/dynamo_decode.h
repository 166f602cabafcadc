/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* dynamo_decode.h -- the strict decoder of the profile "dynamo-1.5".
 *
 * It takes exactly what that client's decoder takes, so that the same messages are dropped:
 * a payload of three elements (integer that fits i64, array of events, integer that fits u32),
 * with anything behind it ignored; events as maps or as arrays of one to four.  A payload is
 * good as a whole or not at all.
 */
#ifndef KVI_SOURCE_DYNAMO_DECODE_H
#define KVI_SOURCE_DYNAMO_DECODE_H

#include "event/msgpack.h"

/* One event; a field that was not sent is absent (NULL).  Points into the payload. */
struct kvi_dynamo_event {
    struct kvg_str type;
    struct kvg_str object_key;
    struct kvg_str tenant;
    struct kvg_str group;
};

struct kvi_dynamo_batch {
    struct kvi_mp_cursor cursor;
    uint32_t left;
};

/* Checks a whole payload.  NULL and *out at its first event, or why it is refused. */
const char *kvi_dynamo_batch_begin(struct kvg_str payload, struct kvi_dynamo_batch *out);
/* The next event; false after the last. */
bool kvi_dynamo_batch_next(struct kvi_dynamo_batch *batch, struct kvi_dynamo_event *out);

#endif
