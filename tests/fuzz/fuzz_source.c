/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* Fuzz target: bytes become messages, answers and time for a source.  Whatever comes, its
 * invariants hold, what it asks for stays bounded, and nothing is left at the end.
 *
 *     byte 0: has an admin port; then steps: one byte what, then what it needs
 */
#include "source/state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ACTIONS_MAX 100000u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

struct input {
    const uint8_t *data;
    size_t bytes;
};

static uint64_t take(struct input *input, size_t count)
{
    uint64_t value = 0;

    for (; count > 0 && input->bytes > 0; count--) {
        value = value << 8 | *input->data;
        input->data++;
        input->bytes--;
    }
    return value;
}

static struct kvg_str take_str(struct input *input, size_t size_bytes)
{
    size_t bytes = (size_t)take(input, size_bytes);
    struct kvg_str str = {(const char *)input->data, bytes};

    if (str.bytes > input->bytes)
        str.bytes = input->bytes;
    input->data += str.bytes;
    input->bytes -= str.bytes;
    return str;
}

struct asked {
    uint64_t ids[KVG_SOURCE_CANCEL + 1];
    uint64_t count;
};

static void take_actions(struct kvg_source *source, struct asked *asked)
{
    struct kvg_source_action action;

    while (kvg_source_next_action(source, &action)) {
        asked->ids[action.kind] = action.id;
        if (++asked->count > ACTIONS_MAX)
            abort();
    }
}

static void message(struct kvg_source *source, struct input *input, uint64_t now_ms,
    uint64_t *sequence, bool well_formed)
{
    struct kvg_str frames[4] = {{"", 0}, {NULL, 0}, {NULL, 0}, {NULL, 0}};
    uint8_t number[8];
    size_t count = 3;
    size_t i;

    if (well_formed) {
        *sequence += (uint64_t)(int64_t)(int8_t)take(input, 1);
        kvg_sequence_encode(*sequence, number);
        frames[1] = (struct kvg_str){(const char *)number, sizeof(number)};
        frames[2] = take_str(input, 2);
    } else {
        count = take(input, 1) % 5;
        for (i = 0; i < count; i++)
            frames[i] = take_str(input, 1);
    }
    kvg_source_message(source, frames, count, now_ms);
}

static void answer(struct kvg_source *source, struct input *input, uint64_t now_ms,
    const struct asked *asked, unsigned what)
{
    struct kvg_source_status status;

    switch (what) {
    case 0:
        status = (struct kvg_source_status){take(input, 1) % 4 != 0, take(input, 1),
            take(input, 1), take(input, 1) % 8, take(input, 1) % 3};
        kvg_source_status_answer(
            source, asked->ids[KVG_SOURCE_FETCH_STATUS], &status, now_ms);
        break;
    case 1:
        kvg_source_count_answer(
            source, asked->ids[KVG_SOURCE_FETCH_COUNT], take(input, 1), now_ms);
        break;
    case 2:
        kvg_source_listing_data(
            source, asked->ids[KVG_SOURCE_FETCH_LISTING], take_str(input, 2), now_ms);
        break;
    case 3:
        kvg_source_listing_done(source, asked->ids[KVG_SOURCE_FETCH_LISTING], now_ms);
        break;
    case 4:
        kvg_source_failed(
            source, asked->ids[take(input, 1) % KVG_SOURCE_CANCEL], "fuzzed", now_ms);
        break;
    case 6:
        kvg_source_listing_stamp(source, asked->ids[KVG_SOURCE_FETCH_LISTING],
            take(input, 1) % 4, take(input, 1), now_ms);
        break;
    case 7: {
        uint64_t sequence = take(input, 1);

        kvg_source_replay_message(source, asked->ids[KVG_SOURCE_FETCH_REPLAY], sequence,
            take_str(input, 2), now_ms);
        break;
    }
    case 8:
        kvg_source_replay_done(source, asked->ids[KVG_SOURCE_FETCH_REPLAY], now_ms);
        break;
    default:
        kvg_source_failed(source, take(input, 8), NULL, now_ms);
        break;
    }
}

static void step(struct kvg_source *source, struct input *input, uint64_t *now_ms,
    uint64_t *sequence, const struct asked *asked)
{
    unsigned what = (unsigned)take(input, 1) % 20;

    switch (what) {
    case 0:
    case 1:
    case 2:
        message(source, input, *now_ms, sequence, true);
        break;
    case 3:
        message(source, input, *now_ms, sequence, false);
        break;
    case 4:
        *now_ms += take(input, 2);
        kvg_source_tick(source, *now_ms);
        break;
    case 5:
        *now_ms += take(input, 1);
        kvg_source_tick(source, *now_ms);
        break;
    case 6:
        kvg_source_connected(source, *now_ms);
        break;
    case 7:
        kvg_source_disconnected(source, *now_ms);
        break;
    case 8:
        kvg_source_request_listing(source, *now_ms);
        break;
    case 9:
        if (take(input, 1) % 4 == 0)
            kvg_source_endpoint_changed(source, *now_ms);
        break;
    default:
        answer(source, input, *now_ms, asked, what - 10);
        break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct kvg_presence_options index_options = {
        .struct_bytes = sizeof(index_options), .memory_bytes_max = 1u << 20};
    struct kvg_source_options options = {.struct_bytes = sizeof(options)};
    struct input input = {data, bytes};
    struct asked asked = {.count = 0};
    struct kvg_presence *index;
    struct kvg_source *source;
    uint64_t now_ms = 1000;
    uint64_t sequence = 0;
    uint64_t first;

    first = take(&input, 1);
    options.has_admin = first % 4 != 0;
    options.has_replay = first / 4 % 2 != 0;
    options.hold_messages_max = 4;
    if (kvg_presence_new(kvg_alloc_default(), &index_options, NULL, &index) != KVG_OK)
        return 0;
    if (kvg_source_new(kvg_alloc_default(), index, &options, now_ms, &source) != KVG_OK)
        abort();
    while (input.bytes != 0) {
        int broken;

        step(source, &input, &now_ms, &sequence, &asked);
        take_actions(source, &asked);
        broken = kvi_source_check(source);
        if (broken != 0) {
            fprintf(stderr, "invariant S%d is broken\n", broken);
            abort();
        }
    }
    kvg_source_free(source);
    kvg_presence_free(index);
    return 0;
}
