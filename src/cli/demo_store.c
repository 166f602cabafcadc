/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* demo_store.c -- the pretend store of the demonstration (demo_store.h).
 *
 * The pages are a set: open addressing over the keys themselves, which are hashes already; half
 * full at most.
 *
 *     putting thread              admin thread (libmicrohttpd's)
 *     ---------------             -------------------------------
 *     set, counts  -- lock ---->  /get_all_keys /metrics /kv_events/status
 *     publisher
 *
 * Pages are never removed: this is the case without eviction.
 */
#include "cli/demo_store.h"

#include "cli/cli.h"
#include "cli/stream.h"

#include <kvgraft/event.h>

#include <arpa/inet.h>
#include <inttypes.h>
#include <microhttpd.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define SLOTS_FIRST 4096u
#define EVENTS_A_MESSAGE 256u

struct kvc_store {
    const struct kvg_layout *layout;
    struct kvc_stream *stream;
    struct kvg_event_writer *writer;
    struct MHD_Daemon *admin;
    char admin_url[64];
    pthread_mutex_t lock;
    struct kvc_store_counts counts;
    struct kvg_key *slots; /* All zero: free. */
    size_t slot_count;     /* A power of two. */
};

/* The set ---------------------------------------------------------------------------------- */

static bool is_free(const struct kvg_key *slot)
{
    static const struct kvg_key ZERO;

    return memcmp(slot, &ZERO, sizeof(ZERO)) == 0;
}

/* The slot that holds the key, or the free one where it belongs. */
static size_t slot_of(
    const struct kvg_key *slots, size_t slot_count, const struct kvg_key *key)
{
    uint64_t hash;
    size_t slot;

    memcpy(&hash, key->bytes, sizeof(hash));
    for (slot = hash & (slot_count - 1); !is_free(&slots[slot]);
         slot = (slot + 1) & (slot_count - 1)) {
        if (memcmp(&slots[slot], key, sizeof(*key)) == 0)
            break;
    }
    return slot;
}

static bool grow(struct kvc_store *store)
{
    size_t slot_count = store->slot_count * 2;
    struct kvg_key *slots = calloc(slot_count, sizeof(*slots));
    size_t i;

    if (slots == NULL)
        return false;
    for (i = 0; i < store->slot_count; i++) {
        if (!is_free(&store->slots[i]))
            slots[slot_of(slots, slot_count, &store->slots[i])] = store->slots[i];
    }
    free(store->slots);
    store->slots = slots;
    store->slot_count = slot_count;
    return true;
}

static bool holds(const struct kvc_store *store, const struct kvg_key *key)
{
    return !is_free(&store->slots[slot_of(store->slots, store->slot_count, key)]);
}

/* The admin port --------------------------------------------------------------------------- */

/* All object keys, one a line; NULL without memory. */
static char *list_keys(struct kvc_store *store, size_t *bytes_out)
{
    uint32_t parts = kvg_layout_part_count(store->layout);
    size_t room = (size_t)store->counts.objects * (KVG_OBJECT_KEY_BYTES_MAX + 2) + 1;
    char *text = malloc(room);
    size_t bytes = 0;
    size_t i;

    for (i = 0; i < store->slot_count && text != NULL; i++) {
        uint32_t part;

        if (is_free(&store->slots[i]))
            continue;
        for (part = 0; part < parts; part++) {
            bytes += kvg_layout_object_key(
                store->layout, &store->slots[i], part, text + bytes);
            text[bytes++] = '\n';
        }
    }
    *bytes_out = bytes;
    return text;
}

static char *print_counts(struct kvc_store *store, const char *path, size_t *bytes_out)
{
    char *text = malloc(256);
    int bytes = 0;

    if (text == NULL)
        return NULL;
    if (strcmp(path, "/metrics") == 0)
        bytes = snprintf(text, 256,
            "# HELP master_key_count Total number of keys managed by the master\n"
            "# TYPE master_key_count gauge\nmaster_key_count %" PRIu64 "\n",
            store->counts.objects);
    else
        bytes = snprintf(text, 256,
            "{\"enabled\":true,\"published_batches\":%" PRIu64
            ",\"published_events\":%" PRIu64
            ",\"dropped_events\":0,\"skipped_unparsed_keys\":0}",
            store->counts.messages, store->counts.events);
    *bytes_out = (size_t)bytes;
    return text;
}

static enum MHD_Result on_admin(void *context, struct MHD_Connection *connection,
    const char *path, const char *method, const char *version, const char *data,
    size_t *data_bytes, void **request)
{
    struct kvc_store *store = context;
    struct MHD_Response *response;
    enum MHD_Result result;
    unsigned status = MHD_HTTP_OK;
    char *text = NULL;
    size_t bytes = 0;

    (void)version;
    (void)data;
    (void)data_bytes;
    (void)request;
    pthread_mutex_lock(&store->lock);
    if (strcmp(method, "GET") != 0)
        status = MHD_HTTP_METHOD_NOT_ALLOWED;
    else if (strcmp(path, "/get_all_keys") == 0)
        text = list_keys(store, &bytes);
    else if (strcmp(path, "/metrics") == 0 || strcmp(path, "/kv_events/status") == 0)
        text = print_counts(store, path, &bytes);
    else
        status = MHD_HTTP_NOT_FOUND;
    pthread_mutex_unlock(&store->lock);
    if (text == NULL && status == MHD_HTTP_OK)
        status = MHD_HTTP_INTERNAL_SERVER_ERROR;
    response = MHD_create_response_from_buffer(bytes, text, MHD_RESPMEM_MUST_FREE);
    if (response == NULL) {
        free(text);
        return MHD_NO;
    }
    result = MHD_queue_response(connection, status, response);
    MHD_destroy_response(response);
    return result;
}

static kvg_err open_admin(struct kvc_store *store, struct kvg_error *error)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const union MHD_DaemonInfo *info = NULL;

    store->admin = MHD_start_daemon(MHD_USE_AUTO | MHD_USE_INTERNAL_POLLING_THREAD, 0,
        NULL, NULL, on_admin, store, MHD_OPTION_SOCK_ADDR, (struct sockaddr *)&address,
        MHD_OPTION_END);
    if (store->admin != NULL)
        info = MHD_get_daemon_info(store->admin, MHD_DAEMON_INFO_BIND_PORT);
    if (info == NULL) {
        error->code = KVG_EIO;
        snprintf(error->field, sizeof(error->field), "admin port");
        snprintf(error->message, sizeof(error->message), "cannot listen on loopback");
        return KVG_EIO;
    }
    snprintf(
        store->admin_url, sizeof(store->admin_url), "http://127.0.0.1:%u", info->port);
    return KVG_OK;
}

/* The store -------------------------------------------------------------------------------- */

void kvc_store_free(struct kvc_store *store)
{
    if (store == NULL)
        return;
    if (store->admin != NULL)
        MHD_stop_daemon(store->admin);
    kvc_stream_close(store->stream);
    kvg_event_writer_free(store->writer);
    pthread_mutex_destroy(&store->lock);
    free(store->slots);
    free(store);
}

kvg_err kvc_store_new(
    const struct kvg_layout *layout, struct kvg_error *error, struct kvc_store **out)
{
    struct kvc_stream_options options = {
        .endpoint = "tcp://127.0.0.1:*", .queue_messages = 100000};
    struct kvc_store *store = calloc(1, sizeof(*store));
    kvg_err err;

    *out = NULL;
    if (store == NULL)
        return KVG_ENOMEM;
    store->layout = layout;
    pthread_mutex_init(&store->lock, NULL);
    store->slot_count = SLOTS_FIRST;
    store->slots = calloc(SLOTS_FIRST, sizeof(*store->slots));
    err = store->slots == NULL ? KVG_ENOMEM : KVG_OK;
    if (err == KVG_OK)
        err = kvg_event_writer_new(
            kvg_alloc_default(), KVG_DIALECT_MOONCAKE_LEGACY, &store->writer);
    if (err == KVG_OK)
        err = kvc_stream_publish(&options, error, &store->stream);
    if (err == KVG_OK)
        err = open_admin(store, error);
    if (err != KVG_OK) {
        kvc_store_free(store);
        return err;
    }
    *out = store;
    return KVG_OK;
}

const char *kvc_store_endpoint(const struct kvc_store *store)
{
    return kvc_stream_endpoint(store->stream);
}

const char *kvc_store_admin_url(const struct kvc_store *store)
{
    return store->admin_url;
}

bool kvc_store_has_listener(struct kvc_store *store)
{
    return kvc_stream_peers(store->stream) > 0;
}

uint32_t kvc_store_held(
    const struct kvc_store *store, const struct kvg_key *keys, uint32_t key_count)
{
    uint32_t held = 0;

    while (held < key_count && holds(store, &keys[held]))
        held++;
    return held;
}

struct kvc_store_counts kvc_store_counts(const struct kvc_store *store)
{
    return store->counts; /* Written by the calling thread only. */
}

/* Sends what the writer holds. */
static kvg_err publish(struct kvc_store *store, uint64_t event_count)
{
    struct kvg_str frames[3];
    uint8_t sequence[8];
    kvg_err err = kvg_event_writer_end(store->writer, &frames[2]);

    if (err != KVG_OK)
        return err;
    pthread_mutex_lock(&store->lock);
    store->counts.messages++;
    store->counts.events += event_count;
    pthread_mutex_unlock(&store->lock);
    kvg_sequence_encode(store->counts.messages, sequence);
    frames[0] = (struct kvg_str){"", 0};
    frames[1] = (struct kvg_str){(const char *)sequence, sizeof(sequence)};
    return kvc_stream_send(store->stream, frames, 3);
}

/* Notes a page as stored; *is_new tells whether it was not before. */
static kvg_err note_page(struct kvc_store *store, const struct kvg_key *key, bool *is_new)
{
    kvg_err err = KVG_OK;

    *is_new = !holds(store, key);
    if (!*is_new)
        return KVG_OK;
    pthread_mutex_lock(&store->lock);
    if ((store->counts.pages + 1) * 2 > store->slot_count && !grow(store))
        err = KVG_ENOMEM;
    if (err == KVG_OK) {
        store->slots[slot_of(store->slots, store->slot_count, key)] = *key;
        store->counts.pages++;
        store->counts.objects += kvg_layout_part_count(store->layout);
    }
    pthread_mutex_unlock(&store->lock);
    return err;
}

static void write_page(
    struct kvc_store *store, const struct kvg_key *key, uint64_t first_id)
{
    char name[KVG_OBJECT_KEY_BYTES_MAX + 1];
    struct kvg_event event = {.kind = KVG_EVENT_STORED,
        .form = KVG_FORM_OBJECT,
        .medium = KVG_MEDIUM_CPU,
        .medium_name = {"cpu", 3},
        .tenant_id = {"default", 7},
        .backend_id = {"demo", 4},
        .has_event_id = true};
    uint32_t part;

    for (part = 0; part < kvg_layout_part_count(store->layout); part++) {
        event.object_key =
            (struct kvg_str){name, kvg_layout_object_key(store->layout, key, part, name)};
        event.event_id = first_id + part;
        kvg_event_writer_add(store->writer, &event, NULL, 0, NULL, 0);
    }
}

kvg_err kvc_store_put(
    struct kvc_store *store, const struct kvg_key *keys, uint32_t key_count)
{
    uint32_t parts = kvg_layout_part_count(store->layout);
    uint64_t events = 0;
    kvg_err err = KVG_OK;
    uint32_t i;

    for (i = 0; i < key_count && err == KVG_OK; i++) {
        bool is_new;

        err = note_page(store, &keys[i], &is_new);
        if (err != KVG_OK || !is_new)
            continue;
        if (events == 0)
            kvg_event_writer_begin(store->writer, kvc_wall_ms(), true, 0);
        write_page(store, &keys[i], store->counts.events + events + 1);
        events += parts;
        if (events >= EVENTS_A_MESSAGE) {
            err = publish(store, events);
            events = 0;
        }
    }
    return err == KVG_OK && events > 0 ? publish(store, events) : err;
}
