/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* demo_store.c -- see demo_store.h.
 *
 *     any thread            publishing thread                 admin thread (libmicrohttpd's)
 *     ----------            -----------------                 ------------------------------
 *     hook -> noted list -> set of pages, counts -- lock -->  /get_all_keys /metrics ...
 *                           publisher
 *
 * The set is open addressing over the keys, which are hashes already; half full at most.  A page
 * has a bit for each part; one without any keeps its slot until the set grows.
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

#define PARTS_MAX 128u

struct page {
    struct kvg_key key; /* All zero: free. */
    uint64_t parts[PARTS_MAX / 64];
    enum kvg_medium medium;
};

/* A change to come. */
struct noted {
    struct kvg_key key;
    uint16_t part;
    uint8_t stored;
    uint8_t medium;
};

struct kvc_store {
    const struct kvg_layout *layout;
    struct kvc_stream *stream;
    struct kvg_event_writer *writer;
    struct MHD_Daemon *admin;
    char admin_url[64];
    pthread_mutex_t lock;
    struct kvc_store_counts counts;
    struct page *slots;
    size_t slot_count; /* A power of two. */
    size_t slots_used;
    pthread_mutex_t noted_lock;
    struct noted *noted;
    size_t noted_count;
    size_t noted_capacity;
    bool noted_lost; /* There was no memory for one. */
};

/* The set ---------------------------------------------------------------------------------- */

static bool is_free(const struct page *page)
{
    static const struct kvg_key ZERO;

    return memcmp(&page->key, &ZERO, sizeof(ZERO)) == 0;
}

static bool has_part(const struct page *page, uint32_t part)
{
    return (page->parts[part / 64] >> part % 64 & 1) != 0;
}

static bool is_empty(const struct page *page)
{
    return (page->parts[0] | page->parts[1]) == 0;
}

static bool is_whole(const struct kvc_store *store, const struct page *page)
{
    uint32_t part;

    for (part = 0; part < kvg_layout_part_count(store->layout); part++) {
        if (!has_part(page, part))
            return false;
    }
    return true;
}

/* The slot that holds the key, or the free one where it belongs. */
static size_t slot_of(
    const struct page *slots, size_t slot_count, const struct kvg_key *key)
{
    uint64_t hash;
    size_t slot;

    memcpy(&hash, key->bytes, sizeof(hash));
    for (slot = hash & (slot_count - 1); !is_free(&slots[slot]);
         slot = (slot + 1) & (slot_count - 1)) {
        if (memcmp(&slots[slot].key, key, sizeof(*key)) == 0)
            break;
    }
    return slot;
}

/* Twice the room, without the pages that are gone. */
static bool grow(struct kvc_store *store)
{
    size_t slot_count = store->slot_count * 2;
    struct page *slots = calloc(slot_count, sizeof(*slots));
    size_t i;

    if (slots == NULL)
        return false;
    store->slots_used = 0;
    for (i = 0; i < store->slot_count; i++) {
        const struct page *page = &store->slots[i];
        if (is_free(page) || is_empty(page))
            continue;
        slots[slot_of(slots, slot_count, &page->key)] = *page;
        store->slots_used++;
    }
    free(store->slots);
    store->slots = slots;
    store->slot_count = slot_count;
    return true;
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
            if (!has_part(&store->slots[i], part))
                continue;
            bytes += kvg_layout_object_key(
                store->layout, &store->slots[i].key, part, text + bytes);
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
            store->counts.sequence, store->counts.last_event_id);
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
    pthread_mutex_destroy(&store->noted_lock);
    free(store->slots);
    free(store->noted);
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
    pthread_mutex_init(&store->noted_lock, NULL);
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

    while (held < key_count) {
        const struct page *page =
            &store->slots[slot_of(store->slots, store->slot_count, &keys[held])];
        if (is_free(page) || !is_whole(store, page))
            break;
        held++;
    }
    return held;
}

struct kvc_store_counts kvc_store_counts(const struct kvc_store *store)
{
    return store->counts; /* Written by the calling thread only. */
}

/* Noting ----------------------------------------------------------------------------------- */

static void note(struct kvc_store *store, const struct kvg_key *key, uint32_t part,
    bool stored, enum kvg_medium medium)
{
    pthread_mutex_lock(&store->noted_lock);
    if (store->noted_count == store->noted_capacity) {
        size_t capacity = store->noted_capacity * 2 + 1024;
        struct noted *noted = realloc(store->noted, capacity * sizeof(*noted));
        if (noted != NULL) {
            store->noted = noted;
            store->noted_capacity = capacity;
        }
    }
    if (store->noted_count < store->noted_capacity)
        store->noted[store->noted_count++] =
            (struct noted){*key, (uint16_t)part, stored, (uint8_t)medium};
    else
        store->noted_lost = true;
    pthread_mutex_unlock(&store->noted_lock);
}

static void on_change(void *context, const struct kvg_store_change *change)
{
    struct kvc_store *store = context;
    struct kvg_object_key object;
    int32_t part;

    if (!kvg_object_key_parse(change->key, &object))
        return;
    part = kvg_layout_part_of(store->layout, &object);
    if (part >= 0 && part < (int32_t)PARTS_MAX)
        note(store, &object.key, (uint32_t)part, change->kind == KVG_STORE_STORED,
            change->medium);
}

struct kvg_store_hook kvc_store_hook(struct kvc_store *store)
{
    return (struct kvg_store_hook){on_change, store};
}

void kvc_store_gain(struct kvc_store *store, const struct kvg_key *key)
{
    uint32_t part;

    for (part = 0; part < kvg_layout_part_count(store->layout); part++)
        note(store, key, part, true, KVG_MEDIUM_CPU);
}

static void lose(struct kvc_store *store, const struct page *page)
{
    uint32_t part;

    for (part = 0; part < PARTS_MAX; part++) {
        if (has_part(page, part))
            note(store, &page->key, part, false, page->medium);
    }
}

void kvc_store_lose_hash(struct kvc_store *store, int64_t hash)
{
    struct kvg_key key = {{0}};
    uint64_t first;
    size_t slot;
    size_t i;

    for (i = 0; i < 8; i++)
        key.bytes[i] = (uint8_t)((uint64_t)hash >> (56 - 8 * i));
    memcpy(&first, key.bytes, sizeof(first));
    for (slot = first & (store->slot_count - 1); !is_free(&store->slots[slot]);
         slot = (slot + 1) & (store->slot_count - 1)) {
        if (memcmp(store->slots[slot].key.bytes, key.bytes, 8) == 0)
            lose(store, &store->slots[slot]);
    }
}

void kvc_store_lose_all(struct kvc_store *store)
{
    size_t slot;

    for (slot = 0; slot < store->slot_count; slot++)
        lose(store, &store->slots[slot]);
}

/* Publishing ------------------------------------------------------------------------------- */

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
    store->counts.sequence++;
    store->counts.events += event_count;
    store->counts.last_event_id += event_count;
    pthread_mutex_unlock(&store->lock);
    kvg_sequence_encode(store->counts.sequence, sequence);
    frames[0] = (struct kvg_str){"", 0};
    frames[1] = (struct kvg_str){(const char *)sequence, sizeof(sequence)};
    return kvc_stream_send(store->stream, frames, 3);
}

/* Makes a change true; *changed tells whether it was not before. */
static kvg_err apply(struct kvc_store *store, const struct noted *noted, bool *changed)
{
    uint64_t bit = UINT64_C(1) << noted->part % 64;
    struct page *page;
    bool was_whole;
    kvg_err err = KVG_OK;

    pthread_mutex_lock(&store->lock);
    if ((store->slots_used + 1) * 2 > store->slot_count && !grow(store))
        err = KVG_ENOMEM;
    page = &store->slots[slot_of(store->slots, store->slot_count, &noted->key)];
    *changed = err == KVG_OK && (!is_free(page) || noted->stored != 0) &&
               has_part(page, noted->part) != (noted->stored != 0);
    if (*changed) {
        if (is_free(page))
            store->slots_used++;
        was_whole = !is_free(page) && is_whole(store, page);
        page->key = noted->key;
        page->medium = (enum kvg_medium)noted->medium;
        page->parts[noted->part / 64] ^= bit;
        store->counts.objects += noted->stored != 0 ? 1 : UINT64_MAX;
        store->counts.pages += (uint64_t)is_whole(store, page) - (uint64_t)was_whole;
    }
    pthread_mutex_unlock(&store->lock);
    return err;
}

static void write_event(
    struct kvc_store *store, const struct noted *noted, uint64_t event_id)
{
    const char *medium = noted->medium == KVG_MEDIUM_DISK ? "disk" : "cpu";
    char name[KVG_OBJECT_KEY_BYTES_MAX + 1];
    struct kvg_event event = {
        .kind = noted->stored != 0 ? KVG_EVENT_STORED : KVG_EVENT_REMOVED,
        .form = KVG_FORM_OBJECT,
        .medium = (enum kvg_medium)noted->medium,
        .medium_name = {medium, strlen(medium)},
        .tenant_id = {"default", 7},
        .backend_id = {"demo", 4},
        .event_id = event_id,
        .has_event_id = true};

    event.object_key = (struct kvg_str){
        name, kvg_layout_object_key(store->layout, &noted->key, noted->part, name)};
    kvg_event_writer_add(store->writer, &event, NULL, 0, NULL, 0);
}

kvg_err kvc_store_publish(struct kvc_store *store)
{
    uint64_t events = 0;
    kvg_err err;
    size_t i;

    pthread_mutex_lock(&store->noted_lock);
    err = store->noted_lost ? KVG_ENOMEM : KVG_OK;
    for (i = 0; i < store->noted_count && err == KVG_OK; i++) {
        bool changed;

        err = apply(store, &store->noted[i], &changed);
        if (err != KVG_OK || !changed)
            continue;
        if (events == 0)
            kvg_event_writer_begin(store->writer, kvc_wall_ms(), true, 0);
        write_event(store, &store->noted[i], store->counts.last_event_id + events + 1);
        if (++events >= EVENTS_A_MESSAGE) {
            err = publish(store, events);
            events = 0;
        }
    }
    store->noted_count = 0;
    pthread_mutex_unlock(&store->noted_lock);
    return err == KVG_OK && events > 0 ? publish(store, events) : err;
}

kvg_err kvc_store_restart(struct kvc_store *store, struct kvg_error *error)
{
    char endpoint[KVC_ENDPOINT_BYTES];
    struct kvc_stream_options options = {.endpoint = endpoint, .queue_messages = 100000};
    kvg_err err;

    snprintf(endpoint, sizeof(endpoint), "%s", kvc_stream_endpoint(store->stream));
    kvc_stream_close(store->stream);
    store->stream = NULL;
    err = kvc_stream_publish(&options, error, &store->stream);
    pthread_mutex_lock(&store->lock);
    store->counts.sequence = 0;
    store->counts.last_event_id = 0;
    pthread_mutex_unlock(&store->lock);
    return err;
}

kvg_err kvc_store_say_again(struct kvc_store *store)
{
    size_t slot;
    uint32_t part;

    for (slot = 0; slot < store->slot_count; slot++) {
        const struct page *page = &store->slots[slot];
        for (part = 0; part < PARTS_MAX; part++) {
            struct noted noted = {page->key, (uint16_t)part, 1, (uint8_t)page->medium};

            if (!has_part(page, part))
                continue;
            kvg_event_writer_begin(store->writer, kvc_wall_ms(), true, 0);
            write_event(store, &noted, store->counts.last_event_id + 1);
            return publish(store, 1);
        }
    }
    return KVG_OK;
}
