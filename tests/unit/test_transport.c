/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* The mover: real bytes through a real store, in every layout; results in order; loads that are
 * cancelled, fail or are reset at any stage; limits; every allocation failed once. */
#include "fault_alloc.h"
#include "gate_store.h"
#include "mover_kit.h"
#include "test.h"

#include "base/rng.h"

#define PAGES 12

static const struct kit_shape PLAIN = {.page_size = 4,
    .ranks = 1,
    .layers = {3, 0},
    .planes = 2,
    .slot_bytes = 24,
    .slots = 256};

/* A prompt's pages and where they lie; scattered if asked for. */
struct place {
    struct kvg_key keys[PAGES];
    struct kvg_span spans[2][PAGES * 4];
    struct kvg_tree_transfer transfers[2];
    size_t count;
};

static void place_init(struct place *place, const struct kit_shape *shape, uint64_t seed,
    uint32_t window_pages, bool scattered)
{
    struct kvi_rng rng = {seed};
    *place = (struct place){.count = shape->layers[1] != 0 && window_pages != 0 ? 2 : 1};
    kit_keys(seed, place->keys, PAGES);
    for (uint32_t p = 0; p < place->count; p++) {
        uint32_t pages = p == 0 ? PAGES : window_pages;
        uint32_t slots = pages * shape->page_size;
        uint64_t at = kvi_rng_below(&rng, 16);
        size_t count = 0;
        while (slots > 0) {
            uint32_t length = scattered ? 1 + (uint32_t)kvi_rng_below(&rng, 6) : slots;
            length = length < slots ? length : slots;
            place->spans[p][count++] = (struct kvg_span){at, KVG_BUFFER_POOL, length};
            at += length + (scattered ? 1 : 0);
            slots -= length;
        }
        place->transfers[p] = (struct kvg_tree_transfer){
            .component = p == 0 ? KVG_COMPONENT_FULL : KVG_COMPONENT_SWA,
            .trailing_pages = p == 1,
            .keys = place->keys + (PAGES - pages),
            .key_count = pages,
            .spans = place->spans[p],
            .span_count = count};
    }
}

static struct kvg_store *store_new(const char *url)
{
    struct kvg_store *store;
    struct kvg_error error;
    if (kvg_store_open(url, NULL, &store, &error) != KVG_OK)
        fail_msg("%s: %s", error.field, error.message);
    return store;
}

static void device_new(struct kit_device *device, const struct kit_shape *shape,
    uint32_t rank, const struct kvg_layout *layout, struct kvg_store *store)
{
    CHECK_EQ(kit_open(device, kvg_alloc_default(), shape, rank, layout, store), KVG_OK);
}

static void sound(struct kit_device *device)
{
    struct kvg_error error;
    if (kvg_mover_check(device->mover, &error) != KVG_OK)
        fail_msg("%s %s", error.field, error.message);
}

static bool write_out(struct kit_device *device, const struct place *place)
{
    bool result = false;
    for (size_t i = 0; i < place->count; i++)
        kit_fill(device, &place->transfers[i]);
    CHECK_EQ(
        device->transport.offload(device->mover, place->transfers, place->count), KVG_OK);
    sound(device);
    kit_finish(device);
    CHECK_EQ(device->transport.take_offloads(device->mover, &result, 1), 1);
    sound(device);
    return result;
}

static bool read_in(
    struct kit_device *device, kvg_request_id request, const struct place *place)
{
    struct kvg_load_result result;
    CHECK_EQ(
        device->transport.load(device->mover, request, place->transfers, place->count),
        KVG_OK);
    CHECK(device->transport.start_loads(device->mover) >= 0);
    sound(device);
    kit_finish(device);
    CHECK_EQ(device->transport.take_loads(device->mover, &result, 1), 1);
    CHECK_EQ(result.request, request);
    sound(device);
    return result.success;
}

static bool holds_all(const struct kit_device *device, const struct place *place)
{
    for (size_t i = 0; i < place->count; i++) {
        if (!kit_holds(device, &place->transfers[i]))
            return false;
    }
    return true;
}

static size_t look(
    struct kit_device *device, const struct place *place, uint32_t *lengths)
{
    size_t count = 99;
    CHECK_EQ(device->transport.lookup(device->mover, 1, place->transfers, place->count,
                 lengths, PAGES, &count),
        KVG_OK);
    return count;
}

/* ---- Bytes --------------------------------------------------------------------------------- */

/* What one engine's ranks wrote, another engine's ranks read, at other slots. */
static void round_trip(const struct kit_shape *from, const struct kit_shape *to)
{
    struct kvg_store *store = store_new("memory:");
    struct kvg_layout *layout = kit_layout(from);
    struct kit_device devices[4];
    struct place place;
    uint32_t lengths[PAGES];

    for (uint32_t rank = 0; rank < from->ranks; rank++) {
        device_new(&devices[rank], from, rank, layout, store);
        place_init(&place, from, 7, 3, rank % 2 == 1);
        CHECK_EQ(look(&devices[rank], &place, lengths),
            rank != 0 && from->planes == 1 && from->layers[1] == 0 ? PAGES : 0);
        CHECK(write_out(&devices[rank], &place));
    }
    for (uint32_t rank = 0; rank < from->ranks; rank++)
        kit_close(&devices[rank]);
    for (uint32_t rank = 0; rank < to->ranks; rank++) {
        device_new(&devices[rank], to, rank, layout, store);
        place_init(&place, to, 7, 3, rank % 2 == 0);
        size_t count = look(&devices[rank], &place, lengths);
        CHECK(count > 0 && lengths[count - 1] == PAGES);
        CHECK(read_in(&devices[rank], 5, &place));
        CHECK(holds_all(&devices[rank], &place));
        kit_close(&devices[rank]);
    }
    kvg_layout_free(layout);
    kvg_store_close(store);
}

TEST(pages_arrive_bit_for_bit_in_every_layout_and_memory)
{
    for (uint32_t ranks = 1; ranks <= 4; ranks *= 2) {
        for (uint32_t kind = 0; kind < 4; kind++) {
            struct kit_shape shape = PLAIN;
            shape.ranks = ranks;
            shape.planes = kind % 2 == 0 ? 2 : 1;
            shape.layers[1] = kind >= 2 ? 4 : 0;
            round_trip(&shape, &shape);
            struct kit_shape strided = shape;
            strided.slot_gap = 8;
            round_trip(&shape, &strided);
            struct kit_shape staged = strided;
            staged.staged = true;
            round_trip(&staged, &shape);
            staged.layers_a_read = 3;
            round_trip(&shape, &staged);
            staged.workers = 2;
            round_trip(&staged, &staged);
            shape.workers = 3;
            shape.layers_a_read = 2;
            round_trip(&strided, &shape);
        }
    }
}

/* ---- What a store is told ------------------------------------------------------------------ */

struct chain {
    struct place place;
    const struct kvg_layout *layout;
    uint32_t groups, parts;
    bool wrong;
};

static void see_group(void *context, const struct kvg_store_group *group)
{
    struct chain *chain = context;
    struct kvg_object_key object;
    char id[KVG_GROUP_ID_BYTES_MAX + 1];
    uint32_t page = chain->groups++;

    chain->parts += (uint32_t)group->part_count;
    for (size_t i = 0; i < group->part_count; i++) {
        chain->wrong |= !kvg_object_key_parse(group->parts[i].key, &object) ||
                        memcmp(&object.key, &chain->place.keys[page], 32) != 0;
    }
    size_t bytes = kvg_layout_group_id(chain->layout, &chain->place.keys[page], id);
    chain->wrong |= group->id.bytes != bytes || memcmp(group->id.data, id, bytes) != 0;
    if (page == 0) {
        chain->wrong |= group->previous.bytes != 0;
    } else {
        chain->wrong |= !kvg_object_key_parse(group->previous, &object) ||
                        memcmp(&object.key, &chain->place.keys[page - 1], 32) != 0;
    }
}

TEST(a_page_is_one_group_that_names_the_page_before_it)
{
    struct kit_shape shape = PLAIN;
    shape.layers[1] = 2;
    struct kvg_layout *layout = kit_layout(&shape);
    struct chain chain = {.layout = layout};
    struct gate gate = {.on_group = see_group, .context = &chain};
    struct kit_device device;

    place_init(&chain.place, &shape, 3, 2, true);
    gate_open(&gate, "memory:");
    device_new(&device, &shape, 0, layout, gate.store);
    CHECK(write_out(&device, &chain.place));
    CHECK_EQ(chain.groups, PAGES);
    CHECK_EQ(chain.parts, 2 * PAGES + 2);
    CHECK(!chain.wrong);
    kit_close(&device);
    gate_close(&gate);
    kvg_layout_free(layout);
}

TEST(of_ranks_that_hold_the_same_one_writes_it)
{
    struct kit_shape shape = PLAIN;
    shape.ranks = 2;
    shape.planes = 1;
    struct kvg_layout *layout = kit_layout(&shape);
    struct gate gate = {0};
    struct kit_device device;
    struct place place;

    place_init(&place, &shape, 3, 0, false);
    gate_open(&gate, "memory:");
    device_new(&device, &shape, 1, layout, gate.store);
    CHECK(write_out(&device, &place)); /* Done at once: there is nothing to write. */
    CHECK_EQ(gate.calls[GATE_PUT], 0);
    kit_close(&device);
    device_new(&device, &shape, 0, layout, gate.store);
    CHECK(write_out(&device, &place));
    CHECK_EQ(gate.keys[GATE_PUT], PAGES);
    kit_close(&device);
    gate_close(&gate);
    kvg_layout_free(layout);
}

/* ---- Lookups ------------------------------------------------------------------------------- */

TEST(a_lookup_finds_every_length_that_the_windows_allow_and_no_other)
{
    struct kit_shape shape = PLAIN;
    shape.layers[1] = 2;
    struct kvg_layout *layout = kit_layout(&shape);
    struct kvi_rng rng = {11};

    for (int round = 0; round < 200; round++) {
        struct kvg_store *store = store_new("memory:");
        struct kit_device device;
        struct place place, part;
        bool full[PAGES], swa[PAGES];
        uint32_t window = 1 + (uint32_t)kvi_rng_below(&rng, 4);
        uint32_t got[PAGES], want[PAGES];
        size_t want_count = 0;
        bool all = true;

        device_new(&device, &shape, 0, layout, store);
        place_init(&place, &shape, 5, window, false);
        for (uint32_t i = 0; i < PAGES; i++) {
            full[i] = kvi_rng_below(&rng, 8) != 0;
            swa[i] = kvi_rng_below(&rng, 4) != 0;
            for (int p = 0; p < 2; p++) {
                struct kvg_span span = {0, KVG_BUFFER_POOL, shape.page_size};
                part = place;
                part.count = 1;
                part.transfers[0] = place.transfers[p];
                part.transfers[0].keys = &place.keys[i];
                part.transfers[0].key_count = 1;
                part.transfers[0].spans = &span;
                part.transfers[0].span_count = 1;
                if (p == 0 ? full[i] : swa[i])
                    CHECK(write_out(&device, &part));
            }
        }
        for (uint32_t p = 1; p <= PAGES; p++) {
            bool good = all = all && full[p - 1];
            for (uint32_t k = 1; k <= window && k <= p; k++)
                good = good && swa[p - k];
            if (good)
                want[want_count++] = p;
        }
        CHECK_EQ(look(&device, &place, got), want_count);
        CHECK_MEM(got, want, want_count * sizeof(*want));
        kit_close(&device);
        kvg_store_close(store);
    }
    kvg_layout_free(layout);
}

TEST(a_store_that_does_not_answer_has_no_page)
{
    struct kvg_layout *layout = kit_layout(&PLAIN);
    struct gate gate = {.failing = {[GATE_EXISTS] = 1}};
    struct kvg_mover_stats stats = {.struct_bytes = sizeof(stats)};
    struct kit_device device;
    struct place place;
    uint32_t lengths[PAGES];
    size_t count = 5;

    gate_open(&gate, "memory:");
    device_new(&device, &PLAIN, 0, layout, gate.store);
    place_init(&place, &PLAIN, 1, 0, false);
    CHECK(device.transport.lookup(
              device.mover, 1, place.transfers, 1, lengths, PAGES, &count) != KVG_OK);
    CHECK_EQ(count, 0);
    kvg_mover_stats(device.mover, &stats);
    CHECK_EQ(stats.lookup_failures, 1);
    kit_close(&device);
    gate_close(&gate);
    kvg_layout_free(layout);
}

/* ---- Layers -------------------------------------------------------------------------------- */

TEST(a_layer_is_waited_for_without_those_behind_it)
{
    struct kvg_store *store = store_new("memory:");
    struct kvg_layout *layout = kit_layout(&PLAIN);
    struct kit_device device;
    struct place place, other;
    struct kvg_load_result results[2];

    device_new(&device, &PLAIN, 0, layout, store);
    place_init(&place, &PLAIN, 1, 0, true);
    place_init(&other, &PLAIN, 2, 0, false);
    for (size_t i = 0; i < other.transfers[0].span_count; i++)
        other.spans[0][i].offset += 128;
    CHECK(write_out(&device, &place));
    CHECK(write_out(&device, &other));
    kit_spoil(&device);
    CHECK_EQ(device.transport.load(device.mover, 1, place.transfers, 1), KVG_OK);
    CHECK_EQ(device.transport.load(device.mover, 2, other.transfers, 1), KVG_OK);
    CHECK(kit_is_spoilt(&device));
    CHECK(!kvg_mover_work(device.mover)); /* Nothing before the start. */
    int64_t batch = device.transport.start_loads(device.mover);
    for (uint32_t layer = 0; layer < 3; layer++) {
        CHECK_EQ(device.transport.wait_layer(device.mover, batch, layer), KVG_OK);
        for (uint32_t l = 0; l < 3; l++) {
            CHECK_EQ(kit_holds_layer(&device, place.transfers, l), l <= layer);
            CHECK_EQ(kit_holds_layer(&device, other.transfers, l), l <= layer);
        }
        sound(&device);
    }
    CHECK_EQ(device.transport.take_loads(device.mover, results, 2), 2);
    CHECK(results[0].success && results[1].success);
    CHECK_EQ(device.transport.wait_layer(device.mover, batch, 2), KVG_OK);
    CHECK_EQ(device.transport.wait_layer(device.mover, batch + 1, 0), KVG_EINVAL);
    CHECK_EQ(device.transport.start_loads(device.mover), -1);
    kit_close(&device);
    kvg_layout_free(layout);
    kvg_store_close(store);
}

TEST(a_layer_under_way_is_not_there_yet)
{
    struct kit_shape shape = PLAIN;
    struct kvg_layout *layout = kit_layout(&shape);
    struct gate gate = {0};
    struct kit_device device;
    struct place place;

    gate_open(&gate, "memory:");
    shape.workers = 2;
    device_new(&device, &shape, 0, layout, gate.store);
    place_init(&place, &shape, 1, 0, false);
    CHECK(write_out(&device, &place));
    for (int round = 0; round < 50; round++) {
        struct kvg_load_result result;
        kit_spoil(&device);
        CHECK_EQ(device.transport.load(device.mover, 1, place.transfers, 1), KVG_OK);
        int64_t batch = device.transport.start_loads(device.mover);
        for (uint32_t layer = 0; layer < 3; layer++) {
            CHECK_EQ(device.transport.wait_layer(device.mover, batch, layer), KVG_OK);
            CHECK(kit_holds_layer(&device, place.transfers, layer));
        }
        kit_finish(&device);
        CHECK_EQ(device.transport.take_loads(device.mover, &result, 1), 1);
    }
    kit_close(&device);
    gate_close(&gate);
    kvg_layout_free(layout);
}

TEST(a_store_without_ranges_is_asked_once_for_all_layers)
{
    for (int ranges = 0; ranges < 2; ranges++) {
        struct kvg_layout *layout = kit_layout(&PLAIN);
        struct gate gate = {.flags_off = ranges == 0 ? KVG_STORE_RANGES : 0};
        struct kit_device device;
        struct place place;

        gate_open(&gate, "memory:");
        bool has = (kvg_store_flags(gate.store) & KVG_STORE_RANGES) != 0;
        device_new(&device, &PLAIN, 0, layout, gate.store);
        place_init(&place, &PLAIN, 1, 0, false);
        CHECK(write_out(&device, &place));
        kit_spoil(&device);
        CHECK(read_in(&device, 1, &place));
        CHECK(holds_all(&device, &place));
        CHECK_EQ(gate.calls[GATE_GET], has ? 3 : 1);
        kit_close(&device);
        gate_close(&gate);
        kvg_layout_free(layout);
    }
}

/* ---- Order --------------------------------------------------------------------------------- */

TEST(offloads_report_in_their_order_whoever_is_first)
{
    struct kit_shape shape = PLAIN;
    struct kvg_layout *layout = kit_layout(&shape);
    struct gate gate = {0};
    struct kit_device device;
    struct place places[3];
    bool results[3];

    gate_open(&gate, "memory:");
    shape.workers = 2;
    device_new(&device, &shape, 0, layout, gate.store);
    for (int i = 0; i < 3; i++)
        place_init(&places[i], &shape, 10 + (uint64_t)i, 0, false);
    gate.held_to[GATE_PUT] = 1;
    gate_hold(&gate, GATE_PUT, 1);
    CHECK_EQ(device.transport.offload(device.mover, places[0].transfers, 1), KVG_OK);
    gate_wait(&gate, 1);
    CHECK_EQ(device.transport.offload(device.mover, places[1].transfers, 1), KVG_OK);
    CHECK_EQ(device.transport.offload(device.mover, places[2].transfers, 1), KVG_OK);
    for (;;) {
        struct kvg_mover_stats stats = {.struct_bytes = sizeof(stats)};
        kvg_mover_stats(device.mover, &stats);
        if (stats.offloads_waiting == 1)
            break;
    }
    CHECK_EQ(device.transport.take_offloads(device.mover, results, 3), 0);
    gate_release(&gate, GATE_PUT);
    kit_finish(&device);
    CHECK_EQ(device.transport.take_offloads(device.mover, results, 2), 2);
    CHECK_EQ(device.transport.take_offloads(device.mover, results, 3), 1);
    kit_close(&device);
    gate_close(&gate);
    kvg_layout_free(layout);
}

/* ---- Failures ------------------------------------------------------------------------------ */

TEST(a_load_fails_whole_if_a_page_is_gone_damaged_or_unreadable)
{
    struct kit_shape shape = PLAIN;
    struct kvg_layout *layout = kit_layout(&shape);
    struct kvg_mover_stats stats = {.struct_bytes = sizeof(stats)};

    for (int kind = 0; kind < 6; kind++) {
        struct gate gate = {0};
        struct kit_device device;
        struct place place, other;
        char name[KVG_OBJECT_KEY_BYTES_MAX + 1];
        struct kvg_str key = {name, 0};

        gate_open(&gate, "memory:");
        shape.workers = kind % 2 == 0 ? 0 : 2;
        device_new(&device, &shape, 0, layout, gate.store);
        place_init(&place, &shape, 1, 0, true);
        place_init(&other, &shape, 2, 0, false);
        CHECK(write_out(&device, &place));
        CHECK(write_out(&device, &other));
        if (kind < 2) {
            key.bytes = kvg_layout_object_key(layout, &place.keys[PAGES - 1], 1, name);
            CHECK_EQ(kvg_store_remove(gate.store, &key, 1, NULL, NULL), KVG_OK);
        } else if (kind < 4) {
            gate.failing[GATE_GET] = 2;
        } else {
            gate.wrong_size_of = 1;
        }
        CHECK_EQ(device.transport.load(device.mover, 4, place.transfers, 1), KVG_OK);
        int64_t batch = device.transport.start_loads(device.mover);
        CHECK(device.transport.wait_layer(device.mover, batch, 2) != KVG_OK);
        kit_finish(&device);
        sound(&device);
        struct kvg_load_result result;
        CHECK_EQ(device.transport.take_loads(device.mover, &result, 1), 1);
        CHECK(!result.success);
        CHECK(device.transport.wait_layer(device.mover, batch, 0) != KVG_OK);
        kvg_mover_stats(device.mover, &stats);
        CHECK_EQ(stats.loads_failed, 1);
        CHECK_EQ(stats.pages_waiting, 0);
        CHECK(kind >= 2 || stats.pages_missing >= 1);
        CHECK(kind < 4 || stats.pages_damaged >= 1);
        gate.wrong_size_of = 0;
        CHECK(read_in(&device, 5, &other)); /* The next one is not its concern. */
        kit_close(&device);
        gate_close(&gate);
    }
    kvg_layout_free(layout);
}

TEST(an_offload_that_fails_says_so_and_the_next_does_not)
{
    struct kvg_layout *layout = kit_layout(&PLAIN);
    struct gate gate = {.failing = {[GATE_PUT] = 1}};
    struct kit_device device;
    struct place place;

    gate_open(&gate, "memory:");
    device_new(&device, &PLAIN, 0, layout, gate.store);
    place_init(&place, &PLAIN, 1, 0, false);
    CHECK(!write_out(&device, &place));
    CHECK(write_out(&device, &place));
    CHECK(write_out(&device, &place)); /* It is there: that is as good. */
    kit_spoil(&device);
    CHECK(read_in(&device, 1, &place));
    CHECK(holds_all(&device, &place));
    kit_close(&device);
    gate_close(&gate);
    kvg_layout_free(layout);
}

TEST(a_load_can_be_forgotten_until_it_starts)
{
    struct kvg_store *store = store_new("memory:");
    struct kvg_layout *layout = kit_layout(&PLAIN);
    struct kit_device device;
    struct kvg_load_result results[2];
    struct place place;

    device_new(&device, &PLAIN, 0, layout, store);
    place_init(&place, &PLAIN, 1, 0, false);
    CHECK(write_out(&device, &place));
    kit_spoil(&device);
    CHECK(!device.transport.cancel_load(device.mover, 1));
    CHECK_EQ(device.transport.load(device.mover, 1, place.transfers, 1), KVG_OK);
    CHECK_EQ(device.transport.load(device.mover, 1, place.transfers, 1), KVG_EEXIST);
    CHECK(device.transport.cancel_load(device.mover, 1));
    CHECK(!device.transport.cancel_load(device.mover, 1));
    sound(&device);
    CHECK_EQ(device.transport.start_loads(device.mover), -1);
    CHECK(!kvg_mover_work(device.mover));
    CHECK(kit_is_spoilt(&device));
    /* Between others, first and last. */
    for (kvg_request_id gone = 1; gone <= 3; gone++) {
        for (kvg_request_id id = 1; id <= 3; id++)
            CHECK_EQ(device.transport.load(device.mover, id, place.transfers, 1), KVG_OK);
        CHECK(device.transport.cancel_load(device.mover, gone));
        CHECK(device.transport.start_loads(device.mover) >= 0);
        CHECK(!device.transport.cancel_load(device.mover, 1 + gone % 3));
        kit_finish(&device);
        CHECK(!device.transport.cancel_load(device.mover, 1 + gone % 3));
        CHECK_EQ(device.transport.take_loads(device.mover, results, 2), 2);
        CHECK(results[0].request != gone && results[1].request != gone);
        sound(&device);
    }
    CHECK_EQ(device.transport.take_loads(device.mover, results, 2), 0);
    kit_close(&device);
    kvg_layout_free(layout);
    kvg_store_close(store);
}

/* ---- Reset --------------------------------------------------------------------------------- */

static void *let_go(void *context)
{
    struct gate *gate = context;
    gate_release(gate, GATE_GET);
    gate_release(gate, GATE_PUT);
    return NULL;
}

/* Resets while store calls are under way, at each stage; afterwards nobody touches a slot. */
static void interrupted(bool close, uint64_t stage)
{
    struct kit_shape shape = PLAIN;
    struct kvg_layout *layout = kit_layout(&shape);
    struct gate gate = {0};
    struct kit_device device;
    struct kvg_load_result result;
    struct place place, other;
    pthread_t thread;
    bool written;

    gate_open(&gate, "memory:");
    shape.workers = 2;
    device_new(&device, &shape, 0, layout, gate.store);
    place_init(&place, &shape, 1, 0, true);
    place_init(&other, &shape, 2, 0, false);
    other.spans[0][0].offset += shape.slots / 2; /* Slots of their own. */
    CHECK(write_out(&device, &place));
    gate_hold(&gate, GATE_GET, stage);
    gate_hold(&gate, GATE_PUT, 2);
    CHECK_EQ(device.transport.load(device.mover, 1, place.transfers, 1), KVG_OK);
    CHECK_EQ(device.transport.offload(device.mover, other.transfers, 1), KVG_OK);
    CHECK(device.transport.start_loads(device.mover) >= 0);
    CHECK_EQ(device.transport.load(device.mover, 2, place.transfers, 1), KVG_OK);
    gate_wait(&gate, 2); /* Both workers are inside the store. */
    CHECK_EQ(pthread_create(&thread, NULL, let_go, &gate), 0);
    if (close)
        device.transport.close(device.mover);
    else
        device.transport.reset(device.mover);
    kit_spoil(&device);
    pthread_join(thread, NULL);
    sound(&device);
    CHECK_EQ(device.transport.take_loads(device.mover, &result, 1), 0);
    CHECK_EQ(device.transport.take_offloads(device.mover, &written, 1), 0);
    CHECK(kit_is_spoilt(&device));
    if (close) {
        CHECK_EQ(device.transport.load(device.mover, 1, place.transfers, 1), KVG_ESTATE);
        CHECK_EQ(device.transport.offload(device.mover, place.transfers, 1), KVG_ESTATE);
    } else {
        CHECK(read_in(&device, 1, &place));
        CHECK(holds_all(&device, &place));
    }
    kit_close(&device);
    gate_close(&gate);
    kvg_layout_free(layout);
}

TEST(after_reset_or_close_no_slot_is_touched_and_no_result_comes)
{
    for (uint64_t stage = 1; stage <= 3; stage++) {
        interrupted(false, stage);
        interrupted(true, stage);
    }
}

/* ---- Limits and wrong calls ---------------------------------------------------------------- */

TEST(beyond_the_limits_the_answer_is_busy)
{
    struct kit_shape shape = PLAIN;
    struct kvg_store *store = store_new("memory:");
    struct kvg_layout *layout = kit_layout(&shape);
    struct kvg_mover_stats stats = {.struct_bytes = sizeof(stats)};
    struct kit_device device;
    struct place place;
    bool results[4];

    shape.jobs_max = 2;
    shape.pages_max = 3 * PAGES;
    device_new(&device, &shape, 0, layout, store);
    place_init(&place, &shape, 1, 0, false);
    CHECK_EQ(device.transport.offload(device.mover, place.transfers, 1), KVG_OK);
    CHECK_EQ(device.transport.offload(device.mover, place.transfers, 1), KVG_OK);
    CHECK_EQ(device.transport.offload(device.mover, place.transfers, 1), KVG_EBUSY);
    CHECK_EQ(device.transport.load(device.mover, 1, place.transfers, 1), KVG_OK);
    CHECK_EQ(device.transport.load(device.mover, 2, place.transfers, 1), KVG_EBUSY);
    kit_finish(&device);
    CHECK_EQ(device.transport.offload(device.mover, place.transfers, 1), KVG_EBUSY);
    CHECK_EQ(device.transport.take_offloads(device.mover, results, 4), 2);
    CHECK_EQ(device.transport.offload(device.mover, place.transfers, 1), KVG_OK);
    kvg_mover_stats(device.mover, &stats);
    CHECK_EQ(stats.refused_busy, 3);
    CHECK_EQ(stats.loads_queued, 1);
    CHECK_EQ(stats.offloads_waiting, 1);
    CHECK_EQ(stats.pages_waiting, 2 * PAGES);
    sound(&device);
    kit_close(&device);
    kvg_layout_free(layout);
    kvg_store_close(store);
}

TEST(transfers_that_leave_their_pool_are_refused)
{
    struct kvg_store *store = store_new("memory:");
    struct kvg_layout *layout = kit_layout(&PLAIN);
    struct kit_device device;
    struct place good, bad;

    device_new(&device, &PLAIN, 0, layout, store);
    place_init(&good, &PLAIN, 1, 0, false);
    for (int kind = 0; kind < 7; kind++) {
        bad = good;
        bad.transfers[0].spans = bad.spans[0];
        bad.transfers[0].keys = bad.keys;
        if (kind == 0)
            bad.spans[0][0].offset = PLAIN.slots - 1;
        else if (kind == 1)
            bad.spans[0][0].offset = UINT64_MAX - 2;
        else if (kind == 2)
            bad.spans[0][0].length--;
        else if (kind == 3)
            bad.spans[0][0].buffer = 1;
        else if (kind == 4)
            bad.transfers[0].component = KVG_COMPONENT_SWA;
        else if (kind == 5)
            bad.transfers[0].key_count = 0;
        else
            bad.transfers[0].span_count = 0;
        CHECK_EQ(device.transport.offload(device.mover, bad.transfers, 1), KVG_EINVAL);
        CHECK_EQ(device.transport.load(device.mover, 1, bad.transfers, 1), KVG_EINVAL);
    }
    CHECK_EQ(device.transport.offload(device.mover, good.transfers, 0), KVG_EINVAL);
    kit_close(&device);
    kvg_layout_free(layout);
    kvg_store_close(store);
}

TEST(a_pool_that_does_not_fit_its_layout_is_refused_by_name)
{
    struct kvg_store *store = store_new("memory:");
    struct kvg_layout *layout = kit_layout(&PLAIN);
    char bytes[64];
    void *layers[2] = {bytes, bytes};
    struct kvg_device_plane planes[2] = {
        {.suffix = {"_0_k", 4}, .layers = layers, .slot_bytes = 4},
        {.suffix = {"_0_v", 4}, .layers = layers, .slot_bytes = 4}};
    struct kvg_device_pool pool = {.layer_count = 2, .slot_count = 4, .planes = planes};
    struct kvg_mover_options options = {.struct_bytes = sizeof(options),
        .store = store,
        .layout = layout,
        .pools = &pool,
        .pool_count = 1,
        .no_workers = true};
    static const char *const FIELDS[] = {"pools[0].planes[1].suffix",
        "pools[0].planes[1].suffix", "pools[0].planes[0].slot_stride",
        "pools[0].planes[0].slot_bytes", "pools[0].layer_count", "pools[0].component",
        "pools[0].planes[0].slot_bytes", "pools[0].plane_count", "memory", "pool_count"};

    for (int kind = 0; kind < 10; kind++) {
        struct kvg_mover_options wrong = options;
        struct kvg_device_plane broken[2] = {planes[0], planes[1]};
        struct kvg_device_pool broken_pool = pool;
        struct kvg_error error = {0};
        struct kvg_mover *mover;
        broken_pool.planes = broken;
        broken_pool.plane_count = 2;
        wrong.pools = &broken_pool;
        if (kind == 0)
            broken[1].suffix.data = "_9_v";
        else if (kind == 1)
            broken[1].suffix.data = "_0_k";
        else if (kind == 2)
            broken[0].slot_stride = 3;
        else if (kind == 3)
            broken[0].slot_bytes = 0;
        else if (kind == 4)
            broken_pool.layer_count = 0;
        else if (kind == 5)
            broken_pool.component = KVG_COMPONENT_MAMBA;
        else if (kind == 6)
            broken[0].slot_bytes = 16 << 20;
        else if (kind == 7)
            broken_pool.plane_count = 0;
        else if (kind == 8)
            wrong.memory.read =
                (kvg_err(*)(void *, const struct kvg_device_copy *, size_t))(uintptr_t)1;
        else
            wrong.pool_count = 0;
        CHECK(kvg_mover_new(kvg_alloc_default(), &wrong, &mover, &error) != KVG_OK);
        CHECK_STR(error.field, FIELDS[kind]);
        CHECK(mover == NULL);
    }
    kvg_layout_free(layout);
    kvg_store_close(store);
}

/* ---- Want of memory ------------------------------------------------------------------------ */

struct oom {
    struct kit_shape shape;
    const struct kvg_layout *layout;
    struct kvg_store *store;
};

static bool run_short_of_memory(const struct kvg_alloc *alloc, void *context)
{
    struct oom *oom = context;
    struct kit_device device;
    struct place place;
    uint32_t lengths[PAGES];
    bool result;
    size_t count;
    kvg_err err = kit_open(&device, alloc, &oom->shape, 0, oom->layout, oom->store);

    if (err != KVG_OK) {
        CHECK_EQ(err, KVG_ENOMEM);
        return false;
    }
    place_init(&place, &oom->shape, 9, 2, true);
    for (size_t i = 0; i < place.count; i++)
        kit_fill(&device, &place.transfers[i]);
    err = device.transport.offload(device.mover, place.transfers, place.count);
    kit_finish(&device);
    if (err == KVG_OK)
        CHECK_EQ(device.transport.take_offloads(device.mover, &result, 1), 1);
    if (err == KVG_OK)
        err = device.transport.lookup(
            device.mover, 1, place.transfers, place.count, lengths, PAGES, &count);
    if (err == KVG_OK) {
        CHECK(result && count > 0);
        kit_spoil(&device);
        err = device.transport.load(device.mover, 1, place.transfers, place.count);
    }
    if (err == KVG_OK) {
        struct kvg_load_result loaded;
        device.transport.start_loads(device.mover);
        kit_finish(&device);
        CHECK_EQ(device.transport.take_loads(device.mover, &loaded, 1), 1);
        CHECK(loaded.success && holds_all(&device, &place));
    }
    sound(&device);
    kit_close(&device);
    CHECK(err == KVG_OK || err == KVG_ENOMEM);
    return err == KVG_OK;
}

TEST(every_allocation_may_fail_once)
{
    for (int staged = 0; staged < 2; staged++) {
        struct oom oom = {.shape = PLAIN, .store = store_new("memory:")};
        oom.shape.layers[1] = 2;
        oom.shape.staged = staged == 1;
        struct kvg_layout *layout = kit_layout(&oom.shape);
        oom.layout = layout;
        CHECK(for_each_oom(run_short_of_memory, &oom) > 10);
        kvg_layout_free(layout);
        kvg_store_close(oom.store);
    }
}

TEST_MAIN(RUN(pages_arrive_bit_for_bit_in_every_layout_and_memory),
    RUN(a_page_is_one_group_that_names_the_page_before_it),
    RUN(of_ranks_that_hold_the_same_one_writes_it),
    RUN(a_lookup_finds_every_length_that_the_windows_allow_and_no_other),
    RUN(a_store_that_does_not_answer_has_no_page),
    RUN(a_layer_is_waited_for_without_those_behind_it),
    RUN(a_layer_under_way_is_not_there_yet),
    RUN(a_store_without_ranges_is_asked_once_for_all_layers),
    RUN(offloads_report_in_their_order_whoever_is_first),
    RUN(a_load_fails_whole_if_a_page_is_gone_damaged_or_unreadable),
    RUN(an_offload_that_fails_says_so_and_the_next_does_not),
    RUN(a_load_can_be_forgotten_until_it_starts),
    RUN(after_reset_or_close_no_slot_is_touched_and_no_result_comes),
    RUN(beyond_the_limits_the_answer_is_busy),
    RUN(transfers_that_leave_their_pool_are_refused),
    RUN(a_pool_that_does_not_fit_its_layout_is_refused_by_name),
    RUN(every_allocation_may_fail_once))
