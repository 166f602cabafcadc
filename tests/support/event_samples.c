/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* event_samples.c -- payloads for tests (event_samples.h). */
#include "event_samples.h"

#include "base/hex.h"
#include "test.h"

const char *const SAMPLE_FORMS[SAMPLE_FORM_COUNT] = {
    "[1.0,[['BlockStored',[123],null,[1,2],2,null,'GPU']],null]",
    "[1.0,[['BlockStored',[123],null,[1,2],2,null,'GPU',{'cache_salt':'a'}]],null]",
    "[1.0,[{'type':'BlockStored','block_hashes':[123],'parent_block_hash':null,"
    "'token_ids':[1,2],'block_size':2,'lora_id':null,'medium':'GPU'}],null]",
    "{'ts':1.5,'events':[{'type':'BlockRemoved','block_hashes':[-1,<0102030405060708>]}],"
    "'data_parallel_rank':3}",
    "[1.0,[['BlockStored',[1,-2],7,[[1,2],[2,3]],2,9,'CPU','ada',[null],[],3,"
    "'sliding_window',4096,'REMOTE','offload'],['BlockRemoved',[5],'CPU',1],"
    "['AllBlocksCleared','GPU'],['Ignored',{}]],2]",
    "[5,[{'event_type':'cleared','tenant_id':'t','backend_id':'b','medium':null,"
    "'dp_rank':0},{'event_type':'removed','object_key':'k','medium':'disk','dp_rank':1}],"
    "0]",
    "[5,[['stored','k','default','g',true],['removed','k'],17,[],{},'x'],0]",
    "[5,[{'object_key':'k','future':[1,{'a':[[[[[]]]]]}],7:8,'event_type':'stored',"
    "'seq_hashes':[18446744073709551615],'block_hashes':[-1]}],0]",
};

void sample_hex(const char *hex, struct sample_bytes *out)
{
    size_t bytes = strlen(hex) / 2;

    CHECK(bytes <= sizeof(out->data));
    CHECK(kvi_hex_decode(hex, bytes, (uint8_t *)out->data));
    out->str = (struct kvg_str){out->data, bytes};
}

static const char *put_value(struct kvi_mp_buffer *buffer, const char *at);

static const char *put_number(struct kvi_mp_buffer *buffer, const char *at)
{
    size_t length = strspn(at, "+-.0123456789eE");
    char *end;

    if (memchr(at, '.', length) != NULL)
        kvi_mp_put_double(buffer, strtod(at, &end));
    else if (*at == '-')
        kvi_mp_put_int(buffer, strtoll(at, &end, 10));
    else
        kvi_mp_put_uint(buffer, strtoull(at, &end, 10));
    CHECK(end == at + length && length > 0);
    return end;
}

static const char *put_quoted(struct kvi_mp_buffer *buffer, const char *at)
{
    const char *end = strchr(at + 1, *at == '<' ? '>' : '\'');
    struct kvg_str text;
    uint8_t bytes[64];

    CHECK(end != NULL);
    text = (struct kvg_str){at + 1, (size_t)(end - at - 1)};
    if (*at == '<') {
        CHECK(text.bytes / 2 <= sizeof(bytes));
        CHECK(kvi_hex_decode(text.data, text.bytes / 2, bytes));
        kvi_mp_put_bin(buffer, (struct kvg_str){(const char *)bytes, text.bytes / 2});
    } else {
        kvi_mp_put_str(buffer, text);
    }
    return end + 1;
}

/* The values of a container go to a buffer of their own, because their number comes first. */
static const char *put_container(struct kvi_mp_buffer *buffer, const char *at)
{
    bool map = *at == '{';
    struct kvi_mp_buffer inside;
    uint32_t count = 0;

    kvi_mp_buffer_init(&inside, buffer->alloc);
    at++;
    while (*at != (map ? '}' : ']')) {
        if (count++ > 0) {
            CHECK(*at == ',');
            at++;
        }
        at = put_value(&inside, at);
        if (map) {
            CHECK(*at == ':');
            at = put_value(&inside, at + 1);
        }
    }
    if (map)
        kvi_mp_put_map(buffer, count);
    else
        kvi_mp_put_array(buffer, count);
    kvi_mp_put_bytes(buffer, inside.data, inside.bytes);
    kvi_mp_buffer_fini(&inside);
    return at + 1;
}

static const char *put_value(struct kvi_mp_buffer *buffer, const char *at)
{
    switch (*at) {
    case '[':
    case '{':
        return put_container(buffer, at);
    case '\'':
    case '<':
        return put_quoted(buffer, at);
    case 'n':
        kvi_mp_put_nil(buffer);
        return at + 4;
    case 't':
        kvi_mp_put_bool(buffer, true);
        return at + 4;
    case 'f':
        kvi_mp_put_bool(buffer, false);
        return at + 5;
    default:
        return put_number(buffer, at);
    }
}

void sample_json(struct kvi_mp_buffer *buffer, const char *json)
{
    const char *end = put_value(buffer, json);

    CHECK(*end == '\0');
}

struct kvg_str sample_text(const char *zero_terminated)
{
    return (struct kvg_str){zero_terminated, strlen(zero_terminated)};
}

void check_sample_text(struct kvg_str actual, const char *expected)
{
    CHECK(actual.data != NULL);
    CHECK_EQ(actual.bytes, strlen(expected));
    CHECK_MEM(actual.data, expected, actual.bytes);
}

struct sample_payload sample_payload(const char *json)
{
    struct sample_payload payload;

    kvi_mp_buffer_init(&payload.buffer, kvg_alloc_default());
    sample_json(&payload.buffer, json);
    CHECK_EQ(payload.buffer.err, KVG_OK);
    payload.bytes =
        (struct kvg_str){(const char *)payload.buffer.data, payload.buffer.bytes};
    return payload;
}

void sample_payload_fini(struct sample_payload *payload)
{
    kvi_mp_buffer_fini(&payload->buffer);
}

size_t sample_read_all(struct kvg_event_reader *reader, struct kvg_str payload,
    struct kvg_event *events, size_t event_max)
{
    size_t count = 0;
    struct kvg_event event;

    memset(events, 0, event_max * sizeof(events[0]));
    if (kvg_event_reader_begin(reader, payload, NULL) != KVG_OK)
        return 0;
    while (kvg_event_reader_next(reader, &event)) {
        if (count < event_max)
            events[count] = event;
        count++;
    }
    return count;
}
