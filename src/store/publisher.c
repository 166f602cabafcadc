/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* publisher.c -- see publisher.h.
 *
 * The set of keys is the store after everything pending; a message's heartbeat counts the
 * objects after that message, so a listing is taken with nothing pending.
 *
 * Invariants, checked by kvi_publisher_check():
 *
 *     U1  The ring holds consecutive numbers, the last of them the last sequence.
 *     U2  Its bytes are counted, and within the bound but for the last message.
 *     U3  The pending changes are counted.
 *
 * Not here: time, sockets, where changes come from.
 */
#include "store/publisher.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/fmt.h"

#include <string.h>

static size_t pending_size(const struct kvi_pending *change)
{
    return sizeof(*change) + change->key_bytes + change->group_bytes;
}

static void drop_pending(struct kvi_publisher *publisher)
{
    struct kvi_pending *first = publisher->pending;

    publisher->pending = first->next;
    if (publisher->pending == NULL)
        publisher->pending_end = &publisher->pending;
    publisher->pending_count--;
    kvi_release_array(publisher->alloc, first, pending_size(first), 1);
}

static void drop_kept(struct kvi_publisher *publisher)
{
    struct kvi_publisher_message *first = &publisher->ring[publisher->ring_first];

    publisher->ring_first = (publisher->ring_first + 1) % KVI_PUBLISHER_RING_MESSAGES;
    publisher->ring_count--;
    publisher->ring_bytes -= first->bytes;
    kvi_release_array(publisher->alloc, first->payload, first->bytes, 1);
}

kvg_err kvi_publisher_init(
    struct kvi_publisher *publisher, const struct kvg_alloc *alloc, uint64_t seed)
{
    *publisher = (struct kvi_publisher){.alloc = alloc};
    publisher->pending_end = &publisher->pending;
    kvi_strings_init(&publisher->keys, alloc, seed);
    publisher->ring =
        kvi_alloc_array(alloc, KVI_PUBLISHER_RING_MESSAGES, sizeof(publisher->ring[0]));
    if (publisher->ring == NULL)
        return KVG_ENOMEM;
    return kvg_event_writer_new(alloc, KVG_DIALECT_MOONCAKE, &publisher->writer);
}

static void forget(struct kvi_publisher *publisher)
{
    while (publisher->pending != NULL)
        drop_pending(publisher);
    while (publisher->ring_count != 0)
        drop_kept(publisher);
    kvi_strings_clear(&publisher->keys);
}

void kvi_publisher_fini(struct kvi_publisher *publisher)
{
    forget(publisher);
    kvg_event_writer_free(publisher->writer);
    kvi_release_array(publisher->alloc, publisher->ring, KVI_PUBLISHER_RING_MESSAGES,
        sizeof(publisher->ring[0]));
}

void kvi_publisher_begin(struct kvi_publisher *publisher, uint64_t epoch)
{
    KVI_ASSERT(epoch != 0 && epoch <= KVI_PUBLISHER_EPOCH_MAX);
    forget(publisher);
    publisher->epoch = epoch;
    publisher->sequence = 0;
    publisher->event_id = 0;
    publisher->broken = false;
}

void kvi_publisher_hold(struct kvi_publisher *publisher, struct kvg_str key)
{
    if (kvi_strings_put(&publisher->keys, key) == NULL)
        publisher->broken = true;
}

static void add_pending(struct kvi_publisher *publisher, enum kvg_event_kind kind,
    struct kvg_str key, struct kvg_str group_id, enum kvg_medium medium)
{
    struct kvi_pending *change = kvi_alloc_array_raw(
        publisher->alloc, sizeof(*change) + key.bytes + group_id.bytes, 1);

    if (change == NULL) {
        publisher->broken = true;
        return;
    }
    change->next = NULL;
    change->kind = kind;
    change->medium = medium;
    change->key_bytes = (uint32_t)key.bytes;
    change->group_bytes = (uint32_t)group_id.bytes;
    memcpy(change->text, key.data, key.bytes);
    if (group_id.bytes != 0)
        memcpy(change->text + key.bytes, group_id.data, group_id.bytes);
    *publisher->pending_end = change;
    publisher->pending_end = &change->next;
    publisher->pending_count++;
}

void kvi_publisher_stored(struct kvi_publisher *publisher, struct kvg_str key,
    struct kvg_str group_id, enum kvg_medium medium)
{
    if (kvi_strings_find(&publisher->keys, key) != NULL)
        return;
    kvi_publisher_hold(publisher, key);
    add_pending(publisher, KVG_EVENT_STORED, key, group_id, medium);
}

void kvi_publisher_removed(struct kvi_publisher *publisher, struct kvg_str key,
    struct kvg_str group_id, enum kvg_medium medium)
{
    if (kvi_strings_remove(&publisher->keys, key))
        add_pending(publisher, KVG_EVENT_REMOVED, key, group_id, medium);
}

/* Messages --------------------------------------------------------------------------------- */

/* Objects after the next message: without what stays pending behind it. */
static uint64_t objects_after(const struct kvi_publisher *publisher, size_t event_count)
{
    uint64_t objects = publisher->keys.count;
    const struct kvi_pending *change = publisher->pending;

    for (; event_count > 0; event_count--)
        change = change->next;
    for (; change != NULL; change = change->next)
        objects += change->kind == KVG_EVENT_STORED ? UINT64_MAX : 1;
    return objects;
}

static void write_events(struct kvi_publisher *publisher, size_t event_count)
{
    for (; event_count > 0; event_count--) {
        const struct kvi_pending *change = publisher->pending;
        struct kvg_event event = {.kind = change->kind,
            .form = KVG_FORM_OBJECT,
            .medium = change->medium,
            .has_event_id = true,
            .event_id = ++publisher->event_id,
            .object_key = {change->text, change->key_bytes},
            .tenant_id = kvi_str("default"),
            .backend_id = kvi_str("kvgraft")};

        if (change->group_bytes != 0)
            event.group_id =
                (struct kvg_str){change->text + change->key_bytes, change->group_bytes};
        kvg_event_writer_add(publisher->writer, &event, NULL, 0, NULL, 0);
        drop_pending(publisher);
    }
}

static const struct kvi_publisher_message *keep(
    struct kvi_publisher *publisher, struct kvg_str payload)
{
    struct kvi_publisher_message *message;
    char *copy = kvi_alloc_array_raw(publisher->alloc, payload.bytes, 1);

    if (copy == NULL)
        return NULL;
    memcpy(copy, payload.data, payload.bytes);
    while (publisher->ring_count != 0 &&
           (publisher->ring_count == KVI_PUBLISHER_RING_MESSAGES ||
               publisher->ring_bytes + payload.bytes > KVI_PUBLISHER_RING_BYTES)) {
        drop_kept(publisher);
        publisher->evicted++;
    }
    message = &publisher->ring[(publisher->ring_first + publisher->ring_count++) %
                               KVI_PUBLISHER_RING_MESSAGES];
    *message = (struct kvi_publisher_message){++publisher->sequence, copy, payload.bytes};
    publisher->ring_bytes += payload.bytes;
    return message;
}

kvg_err kvi_publisher_flush(struct kvi_publisher *publisher, int64_t timestamp_ms,
    const struct kvi_publisher_message **out)
{
    size_t event_count = publisher->pending_count < KVI_PUBLISHER_EVENTS_MAX
                             ? publisher->pending_count
                             : KVI_PUBLISHER_EVENTS_MAX;
    struct kvg_str payload;
    kvg_err err;

    *out = NULL;
    kvg_event_writer_begin(publisher->writer, timestamp_ms, false, 0);
    kvg_event_writer_heartbeat(
        publisher->writer, publisher->epoch, objects_after(publisher, event_count));
    write_events(publisher, event_count);
    err = kvg_event_writer_end(publisher->writer, &payload);
    if (err == KVG_OK) {
        *out = keep(publisher, payload);
        err = *out == NULL ? KVG_ENOMEM : KVG_OK;
    }
    publisher->broken |= err != KVG_OK; /* Its changes are gone from the pending ones. */
    return err;
}

const struct kvi_publisher_message *kvi_publisher_kept(
    const struct kvi_publisher *publisher, uint64_t sequence)
{
    uint64_t first = kvi_publisher_first_kept(publisher);

    if (first == 0 || sequence > publisher->sequence)
        return NULL;
    if (sequence < first)
        sequence = first;
    return &publisher->ring[(publisher->ring_first + (size_t)(sequence - first)) %
                            KVI_PUBLISHER_RING_MESSAGES];
}

uint64_t kvi_publisher_first_kept(const struct kvi_publisher *publisher)
{
    return publisher->ring_count == 0 ? 0
                                      : publisher->sequence - publisher->ring_count + 1;
}

int kvi_publisher_check(const struct kvi_publisher *publisher)
{
    const struct kvi_pending *change = publisher->pending;
    size_t bytes = 0;
    size_t count = 0;
    size_t i;

    for (i = 0; i < publisher->ring_count; i++) {
        const struct kvi_publisher_message *message =
            &publisher->ring[(publisher->ring_first + i) % KVI_PUBLISHER_RING_MESSAGES];

        if (message->sequence != publisher->sequence - publisher->ring_count + 1 + i)
            return 1;
        bytes += message->bytes;
    }
    if (bytes != publisher->ring_bytes ||
        (bytes > KVI_PUBLISHER_RING_BYTES && publisher->ring_count > 1))
        return 2;
    for (; change != NULL; change = change->next)
        count++;
    return count == publisher->pending_count ? 0 : 3;
}
