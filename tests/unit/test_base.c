/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* Unit tests of base: errors, text, hex, allocation. */
#include "base/alloc.h"
#include "base/fmt.h"
#include "base/hex.h"
#include "fault_alloc.h"
#include "test.h"

TEST(every_error_has_a_name_and_a_sentence)
{
    CHECK_STR(kvg_err_name(KVG_ENOMEM), "KVG_ENOMEM");
    CHECK_STR(kvg_strerror(KVG_ENOMEM), "out of memory");
    CHECK_STR(kvg_err_name((kvg_err)-999), "KVG_E?");
    CHECK_STR(kvg_strerror((kvg_err)-999), "an unknown error");
}

TEST(a_key_survives_hex_and_back)
{
    struct kvg_key key;
    struct kvg_key back;
    char hex[KVG_KEY_HEX_BYTES];
    size_t i;

    for (i = 0; i < KVG_KEY_BYTES; i++)
        key.bytes[i] = (uint8_t)(i * 9);
    kvg_key_to_hex(&key, hex);
    CHECK_EQ(strlen(hex), 64);
    CHECK(kvg_key_from_hex((struct kvg_str){hex, 64}, &back));
    CHECK_MEM(&key, &back, sizeof(key));
}

TEST(every_byte_that_is_no_digit_is_refused)
{
    struct kvg_key key;
    char hex[64];
    int byte;

    for (byte = 0; byte < 256; byte++) {
        bool digit = (byte >= '0' && byte <= '9') || (byte >= 'a' && byte <= 'f') ||
                     (byte >= 'A' && byte <= 'F');
        size_t place;

        for (place = 0; place < 2; place++) {
            memset(hex, '1', sizeof(hex));
            hex[62 + place] = (char)byte;
            CHECK_EQ(kvg_key_from_hex((struct kvg_str){hex, 64}, &key), digit);
        }
    }
    CHECK(!kvg_key_from_hex((struct kvg_str){hex, 63}, &key));
}

TEST(text_that_does_not_fit_is_cut_and_says_so)
{
    char buffer[8];
    struct kvi_text text;

    kvi_text_init(&text, buffer, sizeof(buffer));
    kvi_text_i64(&text, -123);
    CHECK(!text.overflowed);
    kvi_text_u64(&text, UINT64_MAX);
    CHECK(text.overflowed);
    CHECK_STR(buffer, "-123184");
}

TEST(a_range_error_names_the_field_and_the_limit)
{
    struct kvg_error error;

    CHECK_EQ(kvi_fail_range(&error, "layout.tp_size", 99, 1, 64), KVG_EINVAL);
    CHECK_STR(error.field, "layout.tp_size");
    CHECK_STR(error.message, "layout.tp_size is 99; allowed is 1 to 64");
}

TEST(an_array_whose_size_overflows_is_refused)
{
    struct fault_alloc fault;

    fault_alloc_init(&fault);
    CHECK(kvi_alloc_array(&fault.alloc, SIZE_MAX / 2, 3) == NULL);
    CHECK_EQ(fault.calls, 0);
}

TEST_MAIN(RUN(every_error_has_a_name_and_a_sentence), RUN(a_key_survives_hex_and_back),
    RUN(every_byte_that_is_no_digit_is_refused),
    RUN(text_that_does_not_fit_is_cut_and_says_so),
    RUN(a_range_error_names_the_field_and_the_limit),
    RUN(an_array_whose_size_overflows_is_refused))
