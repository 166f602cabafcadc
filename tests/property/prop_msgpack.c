/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* Property test: our MessagePack and msgpack-c's agree.  On random documents, in every width that
 * the format allows; on the same documents with bytes changed, cut off or added, where they
 * must agree on what is a value and where it ends; and on what is written, byte by byte. */
#include "base/rng.h"
#include "event/msgpack.h"
#include "test.h"

#include <msgpack.h>

#define DOCUMENT_BYTES_MAX 4096
#define ROUNDS 4000
#define DEPTH_MAX 6

struct document {
    uint8_t data[DOCUMENT_BYTES_MAX + 64];
    size_t bytes;
};

/* Documents ------------------------------------------------------------------------------- */

static void add_byte(struct document *document, uint64_t byte)
{
    document->data[document->bytes++] = (uint8_t)byte;
}

static void add_number(struct document *document, uint64_t value, size_t width)
{
    size_t i;

    for (i = width; i > 0; i--)
        add_byte(document, value >> (8 * (i - 1)));
}

/* A length or count in a form chosen at random: in the first byte if it fits there (`small_max`
 * says), else in 1 (if there is such a form), 2 or 4 bytes. */
static void add_head(struct document *document, struct kvi_rng *rng, uint8_t small,
    uint32_t small_max, uint8_t first, bool has_one, uint32_t length)
{
    uint64_t form = kvi_rng_below(rng, 4);

    if (form == 0 && small_max > 0 && length <= small_max) {
        add_byte(document, small | length);
    } else if (form <= 1 && has_one && length <= UINT8_MAX) {
        add_byte(document, first);
        add_number(document, length, 1);
    } else if (form <= 2) {
        add_byte(document, has_one ? first + 1u : first);
        add_number(document, length, 2);
    } else {
        add_byte(document, has_one ? first + 2u : first + 1u);
        add_number(document, length, 4);
    }
}

static void add_random_bytes(struct document *document, struct kvi_rng *rng, size_t count)
{
    size_t i;

    for (i = 0; i < count; i++)
        add_byte(document, kvi_rng_next(rng));
}

static void add_scalar(struct document *document, struct kvi_rng *rng)
{
    static const uint8_t WIDTHS[] = {4, 8, 1, 2, 4, 8, 1, 2, 4, 8};
    uint64_t which = kvi_rng_below(rng, 16);

    if (which < 10) { /* ca to d3 */
        add_byte(document, 0xca + which);
        add_random_bytes(document, rng, WIDTHS[which]);
    } else if (which < 12) {
        add_byte(document, kvi_rng_next(rng) & 0x7f);
    } else if (which < 14) {
        add_byte(document, 0xe0 | (kvi_rng_next(rng) & 0x1f));
    } else if (which == 14) {
        add_byte(document, 0xc0);
    } else {
        add_byte(document, 0xc2 + kvi_rng_below(rng, 2));
    }
}

static void add_blob(struct document *document, struct kvi_rng *rng)
{
    uint32_t length = (uint32_t)kvi_rng_below(rng, 40);
    uint64_t which = kvi_rng_below(rng, 4);

    if (which == 0) {
        add_head(document, rng, 0, 0, 0xc4, true, length);
    } else if (which == 1) {
        add_head(document, rng, 0, 0, 0xc7, true, length);
        add_byte(document, kvi_rng_next(rng));
    } else if (which == 2) {
        uint64_t log = kvi_rng_below(rng, 5);

        add_byte(document, 0xd4 + log);
        add_byte(document, kvi_rng_next(rng));
        length = 1u << log;
    } else {
        add_head(document, rng, 0xa0, 31, 0xd9, true, length);
    }
    add_random_bytes(document, rng, length);
}

static void add_value(struct document *document, struct kvi_rng *rng, unsigned depth)
{
    uint64_t which = kvi_rng_below(rng, 10);
    uint32_t count = (uint32_t)kvi_rng_below(rng, 20);
    bool map = which == 9;
    uint32_t i;

    if (document->bytes > DOCUMENT_BYTES_MAX / 2 || depth == DEPTH_MAX || which < 5) {
        if (document->bytes > DOCUMENT_BYTES_MAX - 100)
            add_byte(document, 0xc0);
        else
            add_scalar(document, rng);
    } else if (which < 8) {
        add_blob(document, rng);
    } else {
        add_head(document, rng, map ? 0x80 : 0x90, 15, map ? 0xde : 0xdc, false, count);
        for (i = 0; i < (map ? 2 * count : count); i++)
            add_value(document, rng, depth + 1);
    }
}

/* Comparing ------------------------------------------------------------------------------- */

static void compare_blob(
    const struct kvi_mp_value *value, const char *data, uint32_t bytes)
{
    CHECK_EQ(value->str.bytes, bytes);
    CHECK_MEM(value->str.data, data, bytes);
}

static void compare_real(double a, double b)
{
    uint64_t x;
    uint64_t y;

    if (a != a && b != b)
        return;
    memcpy(&x, &a, sizeof(x));
    memcpy(&y, &b, sizeof(y));
    CHECK_EQ(x, y);
}

static void compare_value(struct kvi_mp_cursor *cursor, const msgpack_object *object)
{
    struct kvi_mp_value value;
    uint32_t i;

    CHECK(kvi_mp_read(cursor, &value));
    switch (object->type) {
    case MSGPACK_OBJECT_NIL:
        CHECK_EQ(value.type, KVI_MP_NIL);
        break;
    case MSGPACK_OBJECT_BOOLEAN:
        CHECK_EQ(value.type, KVI_MP_BOOL);
        CHECK_EQ(value.truth, object->via.boolean);
        break;
    case MSGPACK_OBJECT_POSITIVE_INTEGER:
        CHECK_EQ(value.type, KVI_MP_UINT);
        CHECK_EQ(value.integer, object->via.u64);
        break;
    case MSGPACK_OBJECT_NEGATIVE_INTEGER:
        CHECK_EQ(value.type, KVI_MP_INT);
        CHECK_EQ(value.integer, (uint64_t)object->via.i64);
        break;
    case MSGPACK_OBJECT_FLOAT32:
    case MSGPACK_OBJECT_FLOAT64:
        CHECK_EQ(value.type, KVI_MP_FLOAT);
        compare_real(value.real, object->via.f64);
        break;
    case MSGPACK_OBJECT_STR:
        CHECK_EQ(value.type, KVI_MP_STR);
        compare_blob(&value, object->via.str.ptr, object->via.str.size);
        break;
    case MSGPACK_OBJECT_BIN:
        CHECK_EQ(value.type, KVI_MP_BIN);
        compare_blob(&value, object->via.bin.ptr, object->via.bin.size);
        break;
    case MSGPACK_OBJECT_EXT:
        CHECK_EQ(value.type, KVI_MP_EXT);
        CHECK_EQ(value.ext_type, object->via.ext.type);
        compare_blob(&value, object->via.ext.ptr, object->via.ext.size);
        break;
    case MSGPACK_OBJECT_ARRAY:
        CHECK_EQ(value.type, KVI_MP_ARRAY);
        CHECK_EQ(value.count, object->via.array.size);
        for (i = 0; i < value.count; i++)
            compare_value(cursor, &object->via.array.ptr[i]);
        break;
    case MSGPACK_OBJECT_MAP:
        CHECK_EQ(value.type, KVI_MP_MAP);
        CHECK_EQ(value.count, object->via.map.size);
        for (i = 0; i < value.count; i++) {
            compare_value(cursor, &object->via.map.ptr[i].key);
            compare_value(cursor, &object->via.map.ptr[i].val);
        }
        break;
    default:
        fail();
    }
}

/* What the other side allocates before it looks: a count that only it believes.  Such bytes are
 * not given to it. */
static bool announces_too_much(const struct document *document, size_t start)
{
    size_t at;

    for (at = start; at + 5 <= document->bytes; at++) {
        if ((document->data[at] == 0xdd || document->data[at] == 0xdf) &&
            kvi_load_be32(&document->data[at + 1]) > 1000000)
            return true;
    }
    return false;
}

/* Both over the same bytes.  Returns whether they are a value. */
static bool compare_document(const struct document *document)
{
    struct kvi_mp_cursor skip = {document->data, document->data + document->bytes};
    struct kvi_mp_cursor read = skip;
    enum kvi_mp_skip skipped = kvi_mp_skip(&skip, 28);
    msgpack_unpacked unpacked;
    msgpack_unpack_return result;
    size_t offset = 0;

    if (skipped == KVI_MP_TOO_DEEP)
        return false; /* It has a limit too, of another kind. */
    msgpack_unpacked_init(&unpacked);
    result = msgpack_unpack_next(
        &unpacked, (const char *)document->data, document->bytes, &offset);
    CHECK_EQ(skipped == KVI_MP_SKIPPED, result == MSGPACK_UNPACK_SUCCESS);
    if (skipped == KVI_MP_SKIPPED) {
        CHECK_EQ(skip.at - document->data, offset);
        compare_value(&read, &unpacked.data);
        CHECK(read.at == skip.at);
    }
    msgpack_unpacked_destroy(&unpacked);
    return skipped == KVI_MP_SKIPPED;
}

static void change(struct document *document, struct kvi_rng *rng)
{
    uint64_t which = kvi_rng_below(rng, 4);
    size_t at = (size_t)kvi_rng_below(rng, document->bytes);

    if (which == 0)
        document->bytes = at + 1;
    else if (which == 1)
        add_random_bytes(document, rng, 1 + (size_t)kvi_rng_below(rng, 8));
    else
        document->data[at] = (uint8_t)kvi_rng_next(rng);
}

TEST(random_documents_are_read_as_msgpack_c_reads_them)
{
    struct kvi_rng rng = {kvt_seed(UINT64_C(0x6d73677061636b))};
    unsigned good = 0;
    unsigned bad = 0;
    int round;

    print_message("seed %llu\n", (unsigned long long)rng.state);
    for (round = 0; round < ROUNDS; round++) {
        struct document document = {.bytes = 0};
        int changes;

        while (document.bytes < 2)
            add_value(&document, &rng, 0);
        CHECK(compare_document(&document));
        for (changes = 0; changes < 6; changes++) {
            change(&document, &rng);
            if (announces_too_much(&document, 0))
                break;
            if (compare_document(&document))
                good++;
            else
                bad++;
        }
    }
    /* Else the changes tried nothing. */
    CHECK(good > 1000);
    CHECK(bad > 1000);
}

TEST(what_is_written_is_what_msgpack_c_writes)
{
    struct kvi_rng rng = {kvt_seed(20261201)};
    struct kvi_mp_buffer ours;
    msgpack_sbuffer theirs;
    msgpack_packer packer;
    int round;

    kvi_mp_buffer_init(&ours, kvg_alloc_default());
    msgpack_sbuffer_init(&theirs);
    msgpack_packer_init(&packer, &theirs, msgpack_sbuffer_write);
    for (round = 0; round < 20000; round++) {
        uint64_t number = kvi_rng_next(&rng) >> kvi_rng_below(&rng, 64);
        static char text[70000];
        struct kvg_str str = {text, (size_t)(number % (round % 100 == 0 ? 70000 : 300))};
        double real;

        memcpy(&real, &number, sizeof(real));
        ours.bytes = 0;
        theirs.size = 0;
        kvi_mp_put_uint(&ours, number);
        msgpack_pack_uint64(&packer, number);
        kvi_mp_put_int(&ours, (int64_t)number);
        msgpack_pack_int64(&packer, (int64_t)number);
        kvi_mp_put_int(&ours, -(int64_t)(number >> 1));
        msgpack_pack_int64(&packer, -(int64_t)(number >> 1));
        kvi_mp_put_double(&ours, real);
        msgpack_pack_double(&packer, real);
        kvi_mp_put_str(&ours, str);
        msgpack_pack_str_with_body(&packer, str.data, str.bytes);
        kvi_mp_put_bin(&ours, str);
        msgpack_pack_bin_with_body(&packer, str.data, str.bytes);
        kvi_mp_put_ext(&ours, (int8_t)number, str);
        msgpack_pack_ext_with_body(&packer, str.data, str.bytes, (int8_t)number);
        kvi_mp_put_array(&ours, number & UINT32_MAX);
        msgpack_pack_array(&packer, number & UINT32_MAX);
        kvi_mp_put_map(&ours, number & UINT32_MAX);
        msgpack_pack_map(&packer, number & UINT32_MAX);
        kvi_mp_put_nil(&ours);
        msgpack_pack_nil(&packer);
        kvi_mp_put_bool(&ours, (number & 1) != 0);
        if ((number & 1) != 0)
            msgpack_pack_true(&packer);
        else
            msgpack_pack_false(&packer);
        CHECK_EQ(ours.err, KVG_OK);
        CHECK_EQ(ours.bytes, theirs.size);
        CHECK_MEM(ours.data, theirs.data, theirs.size);
    }
    msgpack_sbuffer_destroy(&theirs);
    kvi_mp_buffer_fini(&ours);
}

TEST_MAIN(RUN(random_documents_are_read_as_msgpack_c_reads_them),
    RUN(what_is_written_is_what_msgpack_c_writes))
