/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* heartbeat.c -- the first event of a publisher that says which life it is in.
 *
 *     {"event_type": "heartbeat", "epoch": E, "objects": N, "timestamp": ms}
 *
 * It is about the message it stands in, not about an object, so no reader gets it as an event:
 * it becomes facts of the message (struct kvg_event_reader).  Whoever does not know it skips an
 * event of an unknown kind.
 *
 * It is recognised where an event turns out to be of an unknown kind, and read a second time
 * from its own bytes: once a message, and nothing for the other events.
 *
 * Not here: what an epoch means to a follower (source/life.c).
 */
#include "event/decode.h"

#include "base/fmt.h"

/* Takes one pair.  False: it cannot be read. */
static bool take_pair(struct kvi_mp_cursor *cursor, struct kvi_heartbeat *out)
{
    struct kvg_str name;
    bool negative = false;
    uint64_t *value = NULL;

    if (!kvi_mp_take_str(cursor, &name))
        return kvi_mp_skip_flat(cursor, 2);
    if (kvi_str_equal(name, kvi_str("epoch")))
        value = &out->epoch;
    else if (kvi_str_equal(name, kvi_str("objects")))
        value = &out->objects;
    if (value == NULL)
        return kvi_mp_skip_flat(cursor, 1);
    if (!kvi_mp_take_integer(cursor, value, &negative) || negative)
        return false;
    out->has_objects |= value == &out->objects;
    return true;
}

bool kvi_decode_heartbeat(struct kvi_mp_cursor cursor, struct kvi_heartbeat *out)
{
    uint32_t count;
    uint32_t i;

    *out = (struct kvi_heartbeat){.epoch = 0};
    if (!kvi_mp_take_map(&cursor, &count))
        return false;
    for (i = 0; i < count; i++) {
        if (!take_pair(&cursor, out))
            return false;
    }
    return out->epoch != 0;
}
