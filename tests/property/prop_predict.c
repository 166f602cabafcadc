/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* Property test: a predicted event is exactly what the long way makes of the same bytes.
 *
 * Events are made in the master's order of fields, with values that are nearly always right: now
 * and then a field is left out or sent twice, a value is of another type, too long or too large,
 * or the head announces one field more or less. */
#include "base/rng.h"
#include "event/decode.h"
#include "event_equal.h"
#include "test.h"

#include <kvgraft/event.h>

#define ROUNDS 60000

/* In the master's order.  Kinds of values: u unsigned, s string, n nil, h no hash, H one hash,
 * M a medium, E and T the words for the kind, B the place of the first block. */
struct master_field {
    const char *name;
    const char *values; /* Kinds of values, one of which is chosen. */
    bool stored_only;
    bool legacy;
};

static const struct master_field FIELDS[] = {{"event_id", "u", false, false},
    {"timestamp", "u", false, false}, {"event_type", "E", false, false},
    {"type", "T", false, true}, {"model_name", "nns", false, false},
    {"block_size", "nnu", false, false}, {"additional_salt", "nns", false, false},
    {"lora_name", "nns", false, false}, {"tenant_id", "s", false, false},
    {"backend_id", "s", false, false}, {"group_id", "ns", false, false},
    {"medium", "MMMs", false, false}, {"dp_rank", "nu", false, false},
    {"object_key", "s", false, false}, {"seq_hashes", "hhH", false, false},
    {"block_hashes", "hhH", false, true}, {"base_block_idx", "B", false, false},
    {"parent_hash", "n", true, false}, {"token_ids", "n", true, false},
    {"parent_block_hash", "n", true, true}};

static uint64_t random_number(struct kvi_rng *rng)
{
    return kvi_rng_next(rng) >> kvi_rng_below(rng, 64);
}

static void put_word(struct kvi_mp_buffer *buffer, const char *word)
{
    kvi_mp_put_str(buffer, (struct kvg_str){word, strlen(word)});
}

static void put_text(struct kvi_mp_buffer *buffer, struct kvi_rng *rng)
{
    static const char TEXT[400];
    static const size_t LENGTHS[] = {0, 1, 7, 31, 32, 64, 72, 200, 255, 256, 400};
    size_t length = LENGTHS[kvi_rng_below(rng, sizeof(LENGTHS) / sizeof(LENGTHS[0]))];

    if (kvi_rng_below(rng, 30) == 0)
        kvi_mp_put_bin(buffer, (struct kvg_str){TEXT, length});
    else
        kvi_mp_put_str(buffer, (struct kvg_str){TEXT, length});
}

static void put_value(
    struct kvi_mp_buffer *buffer, struct kvi_rng *rng, char kind, bool stored)
{
    if (kvi_rng_below(rng, 150) == 0)
        kind = "unshHM0if"[kvi_rng_below(rng, 9)];
    switch (kind) {
    case 'u':
        kvi_mp_put_uint(buffer, random_number(rng));
        break;
    case 's':
        put_text(buffer, rng);
        break;
    case 'h':
        kvi_mp_put_array(buffer, 0);
        break;
    case 'H':
        kvi_mp_put_array(buffer, 1);
        kvi_mp_put_int(buffer, (int64_t)kvi_rng_next(rng));
        break;
    case 'M':
        put_word(buffer, kvi_rng_below(rng, 2) == 0 ? "cpu" : "disk");
        break;
    case 'E':
        put_word(buffer, stored ? "stored" : "removed");
        break;
    case 'T':
        put_word(buffer, stored ? "BlockStored" : "BlockRemoved");
        break;
    case 'B':
        if (stored && kvi_rng_below(rng, 2) == 0)
            kvi_mp_put_uint(buffer, 0);
        else
            kvi_mp_put_nil(buffer);
        break;
    case 'i':
        kvi_mp_put_int(buffer, -(int64_t)(random_number(rng) >> 1));
        break;
    case 'f':
        kvi_mp_put_double(buffer, 1.5);
        break;
    case '0':
        kvi_mp_put_uint(buffer, 0);
        break;
    default:
        kvi_mp_put_nil(buffer);
        break;
    }
}

/* The fields go to `inside` first, because their number comes before them. */
static void make_event(
    struct kvi_mp_buffer *buffer, struct kvi_mp_buffer *inside, struct kvi_rng *rng)
{
    bool stored = kvi_rng_below(rng, 2) == 0;
    bool legacy = kvi_rng_below(rng, 2) == 0;
    bool with_key = kvi_rng_below(rng, 4) != 0;
    uint64_t count = 0;
    size_t i;

    buffer->bytes = 0;
    inside->bytes = 0;
    for (i = 0; i < sizeof(FIELDS) / sizeof(FIELDS[0]); i++) {
        const struct master_field *field = &FIELDS[i];
        uint64_t times = kvi_rng_below(rng, 400);

        if ((field->stored_only && !stored) || (field->legacy && !legacy) ||
            (!with_key && strcmp(field->name, "object_key") == 0))
            continue;
        for (times = times > 1 ? 1 : times * 2; times > 0; times--) {
            put_word(inside, field->name);
            put_value(inside, rng,
                field->values[kvi_rng_below(rng, strlen(field->values))], stored);
            count++;
        }
    }
    switch (kvi_rng_below(rng, 30)) {
    case 0:
        count++; /* And what should be there comes from the tail below. */
        break;
    case 1:
        count--;
        break;
    default:
        break;
    }
    kvi_mp_put_map(buffer, count);
    kvi_mp_put_bytes(buffer, inside->data, inside->bytes);
    put_word(buffer, "zzz");
    kvi_mp_put_uint(buffer, random_number(rng));
    if (kvi_rng_below(rng, 20) == 0)
        buffer->bytes = (size_t)kvi_rng_below(rng, buffer->bytes);
}

/* Mostly the usual one; the others lie around the words that are compared whole. */
static const uint32_t STRING_LIMITS[16] = {
    5, 6, 7, 11, 12, 13, 70, 4096, 4096, 4096, 4096, 4096, 4096, 4096, 4096, 4096};

TEST(a_predicted_event_is_what_the_long_way_makes_of_it)
{
    struct kvi_rng rng = {kvt_seed(20261201)};
    struct kvg_event_limits limits = {.struct_bytes = sizeof(limits),
        .depth_max = KVG_EVENT_DEPTH_DEFAULT,
        .string_bytes_max = KVG_EVENT_STRING_BYTES_DEFAULT};
    struct kvi_mp_buffer buffer;
    struct kvi_mp_buffer inside;
    unsigned predicted_count = 0;
    unsigned decoded_count = 0;
    int round;

    print_message("seed %llu\n", (unsigned long long)rng.state);
    kvi_mp_buffer_init(&buffer, kvg_alloc_default());
    kvi_mp_buffer_init(&inside, kvg_alloc_default());
    for (round = 0; round < ROUNDS; round++) {
        struct kvi_mp_cursor cursor;
        struct kvg_event predicted;
        struct kvg_event decoded;
        struct kvi_decoder decoder = {.limits = &limits, .event = &decoded};
        enum kvi_decoded result;
        bool done;

        make_event(&buffer, &inside, &rng);
        limits.string_bytes_max = STRING_LIMITS[kvi_rng_below(&rng, 16)];
        cursor = (struct kvi_mp_cursor){buffer.data, buffer.data + buffer.bytes};
        decoder.cursor = cursor;
        result = kvi_decode_event(&decoder);
        done = kvi_decode_predicted(&cursor, &limits, &predicted);
        decoded_count += result == KVI_DECODED ? 1 : 0;
        if (!done) {
            CHECK(cursor.at == buffer.data);
            continue;
        }
        predicted_count++;
        CHECK_EQ(result, KVI_DECODED);
        CHECK(cursor.at == decoder.cursor.at);
        CHECK_EQ(decoder.unknown_fields + decoder.ignored_values, 0);
        CHECK(event_equal(&predicted, &decoded));
    }
    print_message("%u decoded, %u of them predicted\n", decoded_count, predicted_count);
    CHECK(predicted_count > ROUNDS / 10);
    CHECK(decoded_count > predicted_count + ROUNDS / 100);
    kvi_mp_buffer_fini(&buffer);
    kvi_mp_buffer_fini(&inside);
}

TEST_MAIN(RUN(a_predicted_event_is_what_the_long_way_makes_of_it))
