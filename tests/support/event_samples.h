/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* event_samples.h -- payloads for tests: the bytes of a real master, and MessagePack written
 * from JSON. */
#ifndef KVT_EVENT_SAMPLES_H
#define KVT_EVENT_SAMPLES_H

#include <kvgraft/event.h>

#include "event/msgpack.h"

/* One stored and one removed event (group "grp", key "k1", backend pool-a), as a master sent
 * them. */
#define SAMPLE_MASTER_STORED                                                         \
    "93cf000001a22fa61d9991de0014a86576656e745f696401a974696d657374616d70cf000001a2" \
    "2fa61d99aa6576656e745f74797065a673746f726564a474797065ab426c6f636b53746f726564" \
    "aa6d6f64656c5f6e616d65c0aa626c6f636b5f73697a65c0af6164646974696f6e616c5f73616c" \
    "74c0a96c6f72615f6e616d65c0a974656e616e745f6964a764656661756c74aa6261636b656e64" \
    "5f6964a6706f6f6c2d61a867726f75705f6964a3677270a66d656469756da3637075a764705f72" \
    "616e6bc0aa6f626a6563745f6b6579a26b31aa7365715f68617368657390ac626c6f636b5f6861" \
    "7368657390ae626173655f626c6f636b5f69647800ab706172656e745f68617368c0a9746f6b65" \
    "6e5f696473c0b1706172656e745f626c6f636b5f68617368c000"
#define SAMPLE_MASTER_REMOVED                                                        \
    "93cf000001a22fa61ec891de0011a86576656e745f696403a974696d657374616d70cf000001a2" \
    "2fa61ec8aa6576656e745f74797065a772656d6f766564a474797065ac426c6f636b52656d6f76" \
    "6564aa6d6f64656c5f6e616d65c0aa626c6f636b5f73697a65c0af6164646974696f6e616c5f73" \
    "616c74c0a96c6f72615f6e616d65c0a974656e616e745f6964a764656661756c74aa6261636b65" \
    "6e645f6964a6706f6f6c2d61a867726f75705f6964a3677270a66d656469756da3637075a76470" \
    "5f72616e6bc0aa6f626a6563745f6b6579a26b31aa7365715f68617368657390ac626c6f636b5f" \
    "68617368657390ae626173655f626c6f636b5f696478c000"

struct sample_bytes {
    char data[1024];
    struct kvg_str str;
};

/* Hex digits to bytes; stops the test on others. */
void sample_hex(const char *hex, struct sample_bytes *out);

/* Writes one JSON value as MessagePack.  Strings stand in 'single quotes', <hex> is a byte
 * string, a number with a point is a float, and a map's keys may be any value.  Stops the test on
 * a mistake. */
void sample_json(struct kvi_mp_buffer *buffer, const char *json);

/* A payload of every form, as JSON. */
#define SAMPLE_FORM_COUNT 8
extern const char *const SAMPLE_FORMS[SAMPLE_FORM_COUNT];

/* A payload made from JSON. */
struct sample_payload {
    struct kvi_mp_buffer buffer;
    struct kvg_str bytes;
};
struct sample_payload sample_payload(const char *json);
void sample_payload_fini(struct sample_payload *payload);

struct kvg_str sample_text(const char *zero_terminated);
void check_sample_text(struct kvg_str actual, const char *expected);

/* Reads all events of a payload and returns how many; the first `event_max` are kept, and
 * what is not read is zero. */
size_t sample_read_all(struct kvg_event_reader *reader, struct kvg_str payload,
    struct kvg_event *events, size_t event_max);

#endif
