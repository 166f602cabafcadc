/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* test_hash.c -- checksums are the same whatever the machine has, and however the bytes come. */
#include "test.h"

#include "backend/file.h"
#include "backend/hash.h"
#include "base/rng.h"

#define BYTES_MAX (49 * CHUNK_BYTES + 1000)

static uint8_t DATA[BYTES_MAX];

static void fill(struct kvi_rng *rng)
{
    size_t i;

    for (i = 0; i < BYTES_MAX; i++)
        DATA[i] = (uint8_t)kvi_rng_next(rng);
}

TEST(the_widest_instructions_give_the_same_checksum)
{
    struct kvi_rng rng = {.state = kvt_seed(1)};
    size_t bytes;

    fill(&rng);
    for (bytes = 0; bytes < 2000; bytes++)
        CHECK_EQ(kvi_checksum(DATA + bytes % 7, bytes, bytes * 3),
            kvi_checksum_base(DATA + bytes % 7, bytes, bytes * 3));
    for (bytes = BYTES_MAX - 20; bytes < BYTES_MAX; bytes++)
        CHECK_EQ(kvi_checksum(DATA, bytes, 0), kvi_checksum_base(DATA, bytes, 0));
}

/* On disk: this number may never change without another version of the format. */
TEST(the_checksum_is_the_one_on_disk)
{
    CHECK_EQ(kvi_checksum("kvgraft", 7, 0), kvi_checksum_base("kvgraft", 7, 0));
    CHECK_EQ(kvi_checksum("", 0, 0), UINT64_C(0x2d06800538d394c2));
}

TEST(the_checksums_of_chunks_do_not_depend_on_the_pieces)
{
    struct kvi_rng rng = {.state = kvt_seed(1)};
    unsigned round;

    fill(&rng);
    for (round = 0; round < 200; round++) {
        size_t bytes = 1 + (size_t)kvi_rng_below(&rng, BYTES_MAX);
        size_t chunks = (bytes + CHUNK_BYTES - 1) / CHUNK_BYTES;
        uint64_t sums[50];
        struct file_summer summer = {.sums = sums, .chunk_bytes = CHUNK_BYTES};
        size_t at = 0;
        size_t i;

        while (at < bytes) {
            uint64_t most = kvi_rng_below(&rng, 2) == 0 ? 100 : BYTES_MAX;
            size_t taken = (size_t)kvi_rng_below(&rng, most);

            if (taken > bytes - at)
                taken = bytes - at;
            kvi_file_sum_add(&summer, DATA + at, taken);
            at += taken;
        }
        kvi_file_sum_end(&summer);
        CHECK_EQ(summer.chunk, chunks);
        for (i = 0; i < chunks; i++) {
            size_t left = bytes - i * CHUNK_BYTES;

            CHECK_EQ(sums[i], kvi_checksum_base(DATA + i * CHUNK_BYTES,
                                  left < CHUNK_BYTES ? left : CHUNK_BYTES, 0));
        }
    }
}

TEST_MAIN(RUN(the_widest_instructions_give_the_same_checksum),
    RUN(the_checksum_is_the_one_on_disk),
    RUN(the_checksums_of_chunks_do_not_depend_on_the_pieces))
