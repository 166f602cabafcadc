/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* Fuzz target: MessagePack.  The three ways over a value (both skips, and reading value by
 * value) must agree, and what is read and written again must be read the same. */
#include "base/assert.h"
#include "event/msgpack.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* Reads all values inside one, writing them again.  Returns whether that went to its end. */
static bool copy_value(struct kvi_mp_cursor *cursor, struct kvi_mp_buffer *buffer)
{
    uint64_t pending = 1;

    while (pending != 0) {
        const uint8_t *at = cursor->at;
        struct kvi_mp_value value;

        if (!kvi_mp_read(cursor, &value)) {
            KVI_ASSERT(cursor->at == at);
            return false;
        }
        KVI_ASSERT(cursor->at > at && cursor->at <= cursor->end);
        KVI_ASSERT(value.str.bytes <= (size_t)(cursor->at - at));
        pending--;
        switch (value.type) {
        case KVI_MP_NIL:
            kvi_mp_put_nil(buffer);
            break;
        case KVI_MP_BOOL:
            kvi_mp_put_bool(buffer, value.truth);
            break;
        case KVI_MP_UINT:
            kvi_mp_put_uint(buffer, value.integer);
            break;
        case KVI_MP_INT:
            KVI_ASSERT((int64_t)value.integer < 0);
            kvi_mp_put_int(buffer, (int64_t)value.integer);
            break;
        case KVI_MP_FLOAT:
            kvi_mp_put_double(buffer, value.real);
            break;
        case KVI_MP_STR:
            kvi_mp_put_str(buffer, value.str);
            break;
        case KVI_MP_BIN:
            kvi_mp_put_bin(buffer, value.str);
            break;
        case KVI_MP_EXT:
            kvi_mp_put_ext(buffer, value.ext_type, value.str);
            break;
        case KVI_MP_ARRAY:
            kvi_mp_put_array(buffer, value.count);
            pending += value.count;
            break;
        case KVI_MP_MAP:
            kvi_mp_put_map(buffer, value.count);
            pending += (uint64_t)value.count * 2;
            break;
        }
    }
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct kvi_mp_cursor flat = {data, data + bytes};
    struct kvi_mp_cursor deep = flat;
    struct kvi_mp_cursor read = flat;
    struct kvi_mp_buffer first;
    struct kvi_mp_buffer second;
    enum kvi_mp_skip skipped = kvi_mp_skip(&deep, KVI_MP_DEPTH_MAX);
    bool whole = kvi_mp_skip_flat(&flat, 1);
    bool copied;

    kvi_mp_buffer_init(&first, kvg_alloc_default());
    kvi_mp_buffer_init(&second, kvg_alloc_default());
    copied = copy_value(&read, &first);
    KVI_ASSERT(first.err == KVG_OK);
    KVI_ASSERT(whole == copied);
    KVI_ASSERT(skipped == KVI_MP_TOO_DEEP || (skipped == KVI_MP_SKIPPED) == whole);
    if (skipped == KVI_MP_SKIPPED)
        KVI_ASSERT(deep.at == flat.at);
    else
        KVI_ASSERT(deep.at == data);
    if (whole) {
        struct kvi_mp_cursor again = {first.data, first.data + first.bytes};

        KVI_ASSERT(read.at == flat.at);
        KVI_ASSERT(copy_value(&again, &second) && again.at == again.end);
        KVI_ASSERT(second.bytes == first.bytes &&
                   memcmp(second.data, first.data, first.bytes) == 0);
    }
    kvi_mp_buffer_fini(&first);
    kvi_mp_buffer_fini(&second);
    return 0;
}
