/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* publish.c -- a store's changes as a stream that can be followed exactly (publish.h).
 *
 *     store --hook--> changes --> publisher (store/publisher.h) --> PUB
 *       ^                            |  ring --------------------> ROUTER: replays
 *       +-- poll, each turn          +- keys, numbers -----------> admin port, its own thread
 *
 * At the start, and whenever the store's own numbering begins anew (a clear, a repair), it is
 * listed, and a new epoch begins; the changes since the listing began follow it.  So an epoch is
 * one unbroken order of changes, whoever made them.
 *
 * Invariants:
 *
 *     B1  Under the lock, outside of a turn, nothing is pending: the keys are the store after
 *         the last message, which is what a listing says it is.
 *     B2  A message is in the ring before it is sent, and sent before the next is made.
 *
 *     what                      who
 *     ------------------------  -----------------------------------------------
 *     sockets, store            the thread that turns
 *     publisher                 it, and the admin port's thread, under `lock`
 *     changes                   it, and whoever calls the hook, under `changes_lock`
 */
#include "daemon/publish.h"

#include "base/fmt.h"
#include "net/loop.h"
#include "store/publisher.h"

#include <inttypes.h>
#include <microhttpd.h>
#include <netdb.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <zmq.h>

#define HEARTBEAT_US UINT64_C(1000000)
#define SEND_HWM 100000
#define REPLAY_HWM 10000
#define ENDPOINT_BYTES 256

struct change {
    struct change *next;
    struct kvg_store_change change; /* Its strings point behind it. */
    char text[];
};

struct kvd_publish {
    struct kvg_store *store;
    pthread_mutex_t lock; /* Of the publisher; the admin port reads it. */
    struct kvi_publisher publisher;
    pthread_mutex_t changes_lock;
    struct change *changes;
    struct change **changes_end;
    bool changes_lost; /* Without memory. */
    uint64_t store_epoch, store_sequence;
    void *zmq, *pub, *router;
    struct MHD_Daemon *admin;
    uint64_t beat_us;
    char bind[ENDPOINT_BYTES], replay[ENDPOINT_BYTES];
};

/* Changes ---------------------------------------------------------------------------------- */

/* On whichever thread, with locks of the store held. */
static void on_changed(void *context, const struct kvg_store_change *change)
{
    struct kvd_publish *publish = context;
    struct change *copy =
        malloc(sizeof(*copy) + change->key.bytes + change->group_id.bytes + 1);

    pthread_mutex_lock(&publish->changes_lock);
    if (copy == NULL) {
        publish->changes_lost = true;
    } else {
        copy->next = NULL;
        copy->change = *change;
        if (change->key.bytes != 0)
            memcpy(copy->text, change->key.data, change->key.bytes);
        if (change->group_id.bytes != 0)
            memcpy(copy->text + change->key.bytes, change->group_id.data,
                change->group_id.bytes);
        copy->change.key.data = copy->text;
        copy->change.group_id.data = copy->text + change->key.bytes;
        *publish->changes_end = copy;
        publish->changes_end = &copy->next;
    }
    pthread_mutex_unlock(&publish->changes_lock);
}

static struct change *take_changes(struct kvd_publish *publish, bool *lost)
{
    struct change *changes;

    pthread_mutex_lock(&publish->changes_lock);
    changes = publish->changes;
    *lost = publish->changes_lost;
    publish->changes = NULL;
    publish->changes_end = &publish->changes;
    publish->changes_lost = false;
    pthread_mutex_unlock(&publish->changes_lock);
    return changes;
}

static bool on_item(void *context, const struct kvg_store_item *item)
{
    kvi_publisher_hold(context, item->key);
    return true;
}

/* A new life: what the store holds now is what it begins with. */
static kvg_err begin(struct kvd_publish *publish, struct kvg_error *error)
{
    struct kvg_store_cursor cursor = {.done = false};
    uint64_t epoch = 0;
    kvg_err err;

    while (epoch == 0) {
        if (getrandom(&epoch, sizeof(epoch), 0) != sizeof(epoch))
            epoch = 0;
        epoch &= KVI_PUBLISHER_EPOCH_MAX;
    }
    kvi_publisher_begin(&publish->publisher, epoch);
    do {
        err = kvg_store_list(
            publish->store, &cursor, 4096, on_item, &publish->publisher, error);
    } while (err == KVG_OK && !cursor.done);
    publish->store_epoch = cursor.epoch;
    publish->store_sequence = cursor.sequence;
    publish->beat_us = 0;
    return err;
}

/* Applies one change; false when the store's numbering is not the one that is followed. */
static bool apply(struct kvd_publish *publish, const struct kvg_store_change *change)
{
    struct kvi_publisher *publisher = &publish->publisher;

    if (change->epoch != publish->store_epoch)
        return false;
    if (change->sequence <= publish->store_sequence)
        return true; /* The listing has it. */
    if (change->sequence != publish->store_sequence + 1)
        return false;
    publish->store_sequence = change->sequence;
    switch (change->kind) {
    case KVG_STORE_STORED:
        kvi_publisher_stored(publisher, change->key, change->group_id, change->medium);
        return true;
    case KVG_STORE_REMOVED:
    case KVG_STORE_EVICTED:
    case KVG_STORE_LOST:
        kvi_publisher_removed(publisher, change->key, change->group_id, change->medium);
        return true;
    case KVG_STORE_CLEARED:
        break;
    }
    return false;
}

static void send_message(
    struct kvd_publish *publish, const struct kvi_publisher_message *message)
{
    uint8_t number[8];

    kvg_sequence_encode(message->sequence, number);
    if (zmq_send(publish->pub, "", 0, ZMQ_SNDMORE) >= 0 &&
        zmq_send(publish->pub, number, sizeof(number), ZMQ_SNDMORE) >= 0)
        zmq_send(publish->pub, message->payload, message->bytes, 0);
}

static int64_t wall_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Takes in what happened, and publishes it; the lock is held. */
static kvg_err take_turn(struct kvd_publish *publish, struct kvg_error *error)
{
    struct kvi_publisher *publisher = &publish->publisher;
    const struct kvi_publisher_message *message;
    bool anew = publisher->epoch == 0;
    kvg_err err = kvg_store_poll(publish->store, error);
    struct change *changes;
    bool lost;

    if (err != KVG_OK)
        return err;
    changes = take_changes(publish, &lost);
    anew |= lost;
    while (changes != NULL) {
        struct change *next = changes->next;

        anew = anew || !apply(publish, &changes->change);
        free(changes);
        changes = next;
    }
    if (anew || publisher->broken)
        err = begin(publish, error);
    while (err == KVG_OK &&
           (publisher->pending_count != 0 || kvn_clock_us() >= publish->beat_us)) {
        publish->beat_us = kvn_clock_us() + HEARTBEAT_US;
        err = kvi_publisher_flush(publisher, wall_ms(), &message);
        if (err == KVG_OK)
            send_message(publish, message);
        else
            kvi_fail(error, err, "publisher", kvg_strerror(err));
    }
    return err;
}

/* Replays ---------------------------------------------------------------------------------- */

static bool send_kept(struct kvd_publish *publish, zmq_msg_t *identity, uint64_t sequence,
    const void *payload, size_t bytes)
{
    uint8_t number[8];

    kvg_sequence_encode(sequence, number);
    return zmq_send(publish->router, zmq_msg_data(identity), zmq_msg_size(identity),
               ZMQ_SNDMORE | ZMQ_DONTWAIT) >= 0 &&
           zmq_send(publish->router, "", 0, ZMQ_SNDMORE | ZMQ_DONTWAIT) >= 0 &&
           zmq_send(publish->router, number, sizeof(number),
               ZMQ_SNDMORE | ZMQ_DONTWAIT) >= 0 &&
           zmq_send(publish->router, payload, bytes, ZMQ_DONTWAIT) >= 0;
}

/* To one that does not read the answer ends early; it asks again from where it is. */
static void answer_replay(
    struct kvd_publish *publish, zmq_msg_t *identity, uint64_t sequence)
{
    const struct kvi_publisher_message *message;

    while ((message = kvi_publisher_kept(&publish->publisher, sequence)) != NULL) {
        if (!send_kept(
                publish, identity, message->sequence, message->payload, message->bytes))
            return;
        sequence = message->sequence + 1;
    }
    send_kept(publish, identity, UINT64_MAX, "", 0);
}

/* One request; false if there is none. */
static bool take_request(struct kvd_publish *publish)
{
    zmq_msg_t frames[3];
    unsigned count = 0;
    int more = 1;
    unsigned i;

    for (i = 0; i < 3; i++)
        zmq_msg_init(&frames[i]);
    while (more != 0) {
        zmq_msg_t *frame = &frames[count < 3 ? count : 2];

        if (zmq_msg_recv(frame, publish->router, ZMQ_DONTWAIT) < 0)
            break;
        more = zmq_msg_more(frame);
        count++;
    }
    if (count == 3 && zmq_msg_size(&frames[1]) == 0 && zmq_msg_size(&frames[2]) == 8) {
        const uint8_t *number = zmq_msg_data(&frames[2]);
        uint64_t sequence = 0;

        for (i = 0; i < 8; i++)
            sequence = sequence << 8 | number[i];
        answer_replay(publish, &frames[0], sequence);
    }
    for (i = 0; i < 3; i++)
        zmq_msg_close(&frames[i]);
    return count != 0;
}

/* The admin port --------------------------------------------------------------------------- */

static char *list_keys(const struct kvi_strings *keys, size_t *bytes_out)
{
    const struct kvi_string *entry;
    size_t bytes = 1;
    size_t i;
    char *text;

    for (i = 0; i < keys->bucket_count; i++)
        for (entry = keys->buckets[i]; entry != NULL; entry = entry->next)
            bytes += entry->bytes + 1;
    text = malloc(bytes);
    *bytes_out = bytes - 1;
    bytes = 0;
    for (i = 0; i < keys->bucket_count && text != NULL; i++) {
        for (entry = keys->buckets[i]; entry != NULL; entry = entry->next) {
            memcpy(text + bytes, entry->text, entry->bytes);
            bytes += entry->bytes;
            text[bytes++] = '\n';
        }
    }
    return text;
}

static char *print_counts(
    const struct kvi_publisher *publisher, bool metrics, size_t *bytes_out)
{
    char *text = NULL;
    int bytes;

    if (metrics)
        bytes = asprintf(&text,
            "# HELP master_key_count Keys in the store\n"
            "# TYPE master_key_count gauge\nmaster_key_count %zu\n"
            "# HELP kvgraft_publisher_messages_total Messages published\n"
            "# TYPE kvgraft_publisher_messages_total counter\n"
            "kvgraft_publisher_messages_total %" PRIu64 "\n"
            "# HELP kvgraft_publisher_kept_messages Messages kept for replays\n"
            "# TYPE kvgraft_publisher_kept_messages gauge\n"
            "kvgraft_publisher_kept_messages %zu\n",
            publisher->keys.count, publisher->sequence, publisher->ring_count);
    else
        bytes = asprintf(&text,
            "{\"enabled\":true,\"published_batches\":%" PRIu64
            ",\"published_events\":%" PRIu64 ",\"dropped_events\":0,\"epoch\":%" PRIu64
            ",\"first_kept_sequence\":%" PRIu64 "}\n",
            publisher->sequence, publisher->event_id, publisher->epoch,
            kvi_publisher_first_kept(publisher));
    *bytes_out = bytes < 0 ? 0 : (size_t)bytes;
    return bytes < 0 ? NULL : text;
}

static char *query_keys(
    const struct kvi_strings *keys, const char *names, size_t *bytes_out)
{
    char *text = NULL;
    FILE *to = open_memstream(&text, bytes_out);
    const char *comma = "";

    if (to == NULL)
        return NULL;
    fputs("{\"success\":true,\"data\":{", to);
    while (names != NULL && *names != '\0') {
        size_t bytes = strcspn(names, ",");

        if (memchr(names, '"', bytes) == NULL && memchr(names, '\\', bytes) == NULL) {
            bool found = kvi_strings_find(keys, (struct kvg_str){names, bytes}) != NULL;

            fprintf(to, "%s\"%.*s\":{\"ok\":%s}", comma, (int)bytes, names,
                found ? "true" : "false");
            comma = ",";
        }
        names += bytes + (names[bytes] == ',');
    }
    fputs("}}\n", to);
    return fclose(to) == 0 ? text : NULL;
}

static void stamp(struct MHD_Response *response, const char *name, uint64_t value)
{
    char text[24];

    snprintf(text, sizeof(text), "%" PRIu64, value);
    MHD_add_response_header(response, name, text);
}

static enum MHD_Result on_admin(void *context, struct MHD_Connection *connection,
    const char *path, const char *method, const char *version, const char *data,
    size_t *data_bytes, void **request)
{
    struct kvd_publish *publish = context;
    struct kvi_publisher *publisher = &publish->publisher;
    bool is_listing = strcmp(path, "/get_all_keys") == 0;
    bool is_metrics = strcmp(path, "/metrics") == 0;
    struct MHD_Response *response;
    unsigned status = MHD_HTTP_OK;
    uint64_t epoch, sequence;
    enum MHD_Result result;
    char *text = NULL;
    size_t bytes = 0;

    (void)version;
    (void)data;
    (void)data_bytes;
    (void)request;
    pthread_mutex_lock(&publish->lock);
    epoch = publisher->epoch;
    sequence = publisher->sequence;
    if (strcmp(method, "GET") != 0)
        status = MHD_HTTP_METHOD_NOT_ALLOWED;
    else if (is_listing)
        text = list_keys(&publisher->keys, &bytes); /* B1 */
    else if (is_metrics || strcmp(path, "/kv_events/status") == 0)
        text = print_counts(publisher, is_metrics, &bytes);
    else if (strcmp(path, "/batch_query_keys") == 0)
        text = query_keys(&publisher->keys,
            MHD_lookup_connection_value(connection, MHD_GET_ARGUMENT_KIND, "keys"),
            &bytes);
    else
        status = MHD_HTTP_NOT_FOUND;
    pthread_mutex_unlock(&publish->lock);
    if (text == NULL && status == MHD_HTTP_OK)
        status = MHD_HTTP_INTERNAL_SERVER_ERROR;
    response = MHD_create_response_from_buffer(
        text == NULL ? 0 : bytes, text, MHD_RESPMEM_MUST_FREE);
    if (response == NULL) {
        free(text);
        return MHD_NO;
    }
    if (is_listing) {
        stamp(response, "X-Kvgraft-Epoch", epoch);
        stamp(response, "X-Kvgraft-Sequence", sequence);
    }
    result = MHD_queue_response(connection, status, response);
    MHD_destroy_response(response);
    return result;
}

/* Opening ---------------------------------------------------------------------------------- */

static kvg_err open_admin(
    struct kvd_publish *publish, const char *text, struct kvg_error *error)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    const char *colon = strrchr(text, ':');
    struct addrinfo *found = NULL;
    char host[ENDPOINT_BYTES];

    if (colon == NULL || (size_t)(colon - text) >= sizeof(host))
        return kvi_fail(error, KVG_EINVAL, "admin", "is not HOST:PORT");
    snprintf(host, sizeof(host), "%.*s", (int)(colon - text), text);
    if (getaddrinfo(host, colon + 1, &hints, &found) != 0)
        return kvi_fail(error, KVG_EINVAL, "admin", "names no address to listen on");
    publish->admin =
        MHD_start_daemon(MHD_USE_AUTO | MHD_USE_INTERNAL_POLLING_THREAD |
                             (found->ai_family == AF_INET6 ? MHD_USE_IPv6 : 0),
            0, NULL, NULL, on_admin, publish, MHD_OPTION_SOCK_ADDR, found->ai_addr,
            MHD_OPTION_LISTENING_ADDRESS_REUSE, 1u, MHD_OPTION_END);
    freeaddrinfo(found);
    return publish->admin != NULL
               ? KVG_OK
               : kvi_fail(error, KVG_EIO, "admin", "cannot listen there");
}

/* An IPv4 address is told as one, although the socket takes both kinds. */
static void tell_plainly(char *endpoint)
{
    static const char MAPPED[] = "tcp://[::ffff:";
    static const char PLAIN[] = "tcp://";
    char *end = strchr(endpoint, ']');
    char *address = endpoint + sizeof(MAPPED) - 1;

    if (end == NULL || strncmp(endpoint, MAPPED, sizeof(MAPPED) - 1) != 0)
        return;
    memmove(end, end + 1, strlen(end)); /* With the zero. */
    memmove(endpoint + sizeof(PLAIN) - 1, address, strlen(address) + 1);
}

static void *bind_socket(struct kvd_publish *publish, int type, int hwm,
    const char *endpoint, char bound[ENDPOINT_BYTES])
{
    size_t bytes = ENDPOINT_BYTES;
    void *socket = zmq_socket(publish->zmq, type);
    int zero = 0;
    int one = 1;

    if (socket == NULL)
        return NULL;
    zmq_setsockopt(socket, ZMQ_SNDHWM, &hwm, sizeof(hwm));
    zmq_setsockopt(socket, ZMQ_LINGER, &zero, sizeof(zero));
    zmq_setsockopt(socket, ZMQ_IPV6, &one, sizeof(one));
    if (type == ZMQ_ROUTER) /* So that a full queue is told, not swallowed. */
        zmq_setsockopt(socket, ZMQ_ROUTER_MANDATORY, &one, sizeof(one));
    if (zmq_bind(socket, endpoint) == 0 &&
        zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, bound, &bytes) == 0) {
        tell_plainly(bound);
        return socket;
    }
    zmq_close(socket);
    return NULL;
}

static kvg_err open_all(struct kvd_publish *publish,
    const struct kvd_publish_options *options, struct kvg_error *error)
{
    struct kvg_store_options store_options = {.struct_bytes = sizeof(store_options),
        .hook = {on_changed, publish},
        .read_only = true};
    kvg_err err = kvg_store_open(options->url, &store_options, &publish->store, error);

    if (err != KVG_OK)
        return err;
    if ((kvg_store_flags(publish->store) & KVG_STORE_LISTS) == 0)
        return kvi_fail(error, KVG_EUNSUPPORTED, "store", "cannot be listed");
    if ((kvg_store_flags(publish->store) & KVG_STORE_FOLLOWS) == 0)
        return kvi_fail(error, KVG_EUNSUPPORTED, "store",
            "does not tell what other processes do to it; nothing true could be "
            "published");
    err = kvi_publisher_init(&publish->publisher, kvg_alloc_default(), kvn_clock_us());
    if (err != KVG_OK)
        return kvi_fail(error, err, "publisher", kvg_strerror(err));
    publish->zmq = zmq_ctx_new();
    if (publish->zmq == NULL)
        return kvi_fail(error, KVG_ENOMEM, "zeromq", "cannot make a context");
    publish->pub = bind_socket(publish, ZMQ_PUB, SEND_HWM, options->bind, publish->bind);
    if (publish->pub == NULL)
        return kvi_fail(error, KVG_EIO, "bind", zmq_strerror(zmq_errno()));
    publish->router =
        bind_socket(publish, ZMQ_ROUTER, REPLAY_HWM, options->replay, publish->replay);
    if (publish->router == NULL)
        return kvi_fail(error, KVG_EIO, "replay", zmq_strerror(zmq_errno()));
    err = take_turn(publish, error);
    return err == KVG_OK ? open_admin(publish, options->admin, error) : err;
}

void kvd_publish_free(struct kvd_publish *publish)
{
    struct change *changes;
    bool lost;

    if (publish == NULL)
        return;
    if (publish->admin != NULL)
        MHD_stop_daemon(publish->admin);
    if (publish->router != NULL)
        zmq_close(publish->router);
    if (publish->pub != NULL)
        zmq_close(publish->pub);
    if (publish->zmq != NULL)
        zmq_ctx_term(publish->zmq);
    kvg_store_close(publish->store);
    changes = take_changes(publish, &lost);
    while (changes != NULL) {
        struct change *next = changes->next;

        free(changes);
        changes = next;
    }
    if (publish->publisher.alloc != NULL)
        kvi_publisher_fini(&publish->publisher);
    pthread_mutex_destroy(&publish->lock);
    pthread_mutex_destroy(&publish->changes_lock);
    free(publish);
}

kvg_err kvd_publish_new(const struct kvd_publish_options *options,
    struct kvg_error *error, struct kvd_publish **out)
{
    struct kvd_publish *publish = calloc(1, sizeof(*publish));
    kvg_err err;

    *out = NULL;
    if (publish == NULL)
        return kvi_fail(error, KVG_ENOMEM, "publisher", kvg_strerror(KVG_ENOMEM));
    pthread_mutex_init(&publish->lock, NULL);
    pthread_mutex_init(&publish->changes_lock, NULL);
    publish->changes_end = &publish->changes;
    err = open_all(publish, options, error);
    if (err == KVG_OK)
        *out = publish;
    else
        kvd_publish_free(publish);
    return err;
}

kvg_err kvd_publish_turn(
    struct kvd_publish *publish, long wait_ms, struct kvg_error *error)
{
    zmq_pollitem_t item = {.socket = publish->router, .events = ZMQ_POLLIN};
    kvg_err err;

    zmq_poll(&item, 1, wait_ms);
    pthread_mutex_lock(&publish->lock);
    err = take_turn(publish, error);
    while (err == KVG_OK && take_request(publish))
        continue;
    pthread_mutex_unlock(&publish->lock);
    return err;
}

void kvd_publish_describe(const struct kvd_publish *publish, char *out, size_t out_bytes)
{
    snprintf(out, out_bytes, "publishing %s at %s, replays at %s",
        kvg_store_url_text(publish->store), publish->bind, publish->replay);
}
