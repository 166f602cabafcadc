/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* publish.c -- `kvgraft store publish`: what happens in a store as a stream that can be followed exactly
 * (docs/events.md).
 *
 *     store --hook--> changes --> publisher (store/publisher.h) --> PUB
 *       ^                            |  ring --------------------> ROUTER: replays
 *       +-- poll, each turn          +- keys, numbers -----------> admin port, its own thread
 *
 * The store is only read.  At the start, and whenever the store's own numbering begins anew (a
 * clear, a repair), it is listed, and a new epoch begins; the changes since the listing began
 * follow it.  So an epoch is one unbroken order of changes, whoever made them.
 *
 * Invariants:
 *
 *     B1  Under the lock, outside of a turn, nothing is pending: the keys are the store after the last
 *         message, which is what a listing says it is.
 *     B2  A message is in the ring before it is sent, and sent before the next is made.
 */
#include "cli/cli.h"

#include "base/fmt.h"
#include "store/publisher.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <microhttpd.h>
#include <netdb.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <zmq.h>

#define TURN_MS 20
#define HEARTBEAT_NS UINT64_C(1000000000)
#define SEND_HWM 100000
#define REPLAY_HWM 10000
#define ENDPOINT_BYTES 256

struct publish_options {
    struct kvc_common common;
    const char *bind;
    const char *replay;
    const char *admin;
};

static const struct kvc_option OPTIONS[] = {
    {"bind", 'b', KVC_TEXT, KVC_FIELD(struct publish_options, bind), "ENDPOINT",
        "tcp://127.0.0.1:5557", NULL, 0, 0, "where messages are published"},
    {"replay", 'r', KVC_TEXT, KVC_FIELD(struct publish_options, replay), "ENDPOINT",
        "tcp://127.0.0.1:5558", NULL, 0, 0, "where kept messages can be asked for again"},
    {"admin", 'a', KVC_TEXT, KVC_FIELD(struct publish_options, admin), "HOST:PORT",
        "127.0.0.1:9003", NULL, 0, 0, "where listings and counters are served over HTTP"},
};

static const struct kvc_usage USAGE = {"store publish", "STORE",
    "Publish what happens in a store, for followers", OPTIONS, KVC_COUNT(OPTIONS),
    "STORE is a URL; several processes may write to it.  Ctrl-C ends it.\n\n"
    "  kvgraft store publish file:/var/lib/kvgraft\n"
    "  kvgraft serve --set sources.0.replay=tcp://127.0.0.1:5558\n"};

struct change {
    struct change *next;
    struct kvg_store_change change; /* Its strings point behind it. */
    char text[];
};

struct publishing {
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
    uint64_t beat_ns;
    char bind[ENDPOINT_BYTES], replay[ENDPOINT_BYTES];
};

/* Changes ---------------------------------------------------------------------------------- */

/* On whichever thread, with locks of the store held. */
static void on_changed(void *context, const struct kvg_store_change *change)
{
    struct publishing *publishing = context;
    struct change *copy =
        malloc(sizeof(*copy) + change->key.bytes + change->group_id.bytes + 1);

    pthread_mutex_lock(&publishing->changes_lock);
    if (copy == NULL) {
        publishing->changes_lost = true;
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
        *publishing->changes_end = copy;
        publishing->changes_end = &copy->next;
    }
    pthread_mutex_unlock(&publishing->changes_lock);
}

static struct change *take_changes(struct publishing *publishing, bool *lost)
{
    struct change *changes;

    pthread_mutex_lock(&publishing->changes_lock);
    changes = publishing->changes;
    *lost = publishing->changes_lost;
    publishing->changes = NULL;
    publishing->changes_end = &publishing->changes;
    publishing->changes_lost = false;
    pthread_mutex_unlock(&publishing->changes_lock);
    return changes;
}

static bool on_item(void *context, const struct kvg_store_item *item)
{
    kvi_publisher_hold(context, item->key);
    return true;
}

/* A new life: what the store holds now is what it begins with. */
static kvg_err begin(struct publishing *publishing, struct kvg_error *error)
{
    struct kvg_store_cursor cursor = {.done = false};
    uint64_t epoch = 0;
    kvg_err err;

    while (epoch == 0) {
        if (getrandom(&epoch, sizeof(epoch), 0) != sizeof(epoch))
            epoch = 0;
        epoch &= KVI_PUBLISHER_EPOCH_MAX;
    }
    kvi_publisher_begin(&publishing->publisher, epoch);
    do {
        err = kvg_store_list(
            publishing->store, &cursor, 4096, on_item, &publishing->publisher, error);
    } while (err == KVG_OK && !cursor.done);
    publishing->store_epoch = cursor.epoch;
    publishing->store_sequence = cursor.sequence;
    publishing->beat_ns = 0;
    return err;
}

/* Applies one change; false when the store's numbering is not the one that is followed. */
static bool apply(struct publishing *publishing, const struct kvg_store_change *change)
{
    struct kvi_publisher *publisher = &publishing->publisher;

    if (change->epoch != publishing->store_epoch)
        return false;
    if (change->sequence <= publishing->store_sequence)
        return true; /* The listing has it. */
    if (change->sequence != publishing->store_sequence + 1)
        return false;
    publishing->store_sequence = change->sequence;
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
    struct publishing *publishing, const struct kvi_publisher_message *message)
{
    uint8_t number[8];

    kvg_sequence_encode(message->sequence, number);
    if (zmq_send(publishing->pub, "", 0, ZMQ_SNDMORE) >= 0 &&
        zmq_send(publishing->pub, number, sizeof(number), ZMQ_SNDMORE) >= 0)
        zmq_send(publishing->pub, message->payload, message->bytes, 0);
}

/* Takes in what happened, and publishes it; the lock is held. */
static kvg_err take_turn(struct publishing *publishing, struct kvg_error *error)
{
    struct kvi_publisher *publisher = &publishing->publisher;
    const struct kvi_publisher_message *message;
    bool anew = publisher->epoch == 0;
    kvg_err err = kvg_store_poll(publishing->store, error);
    struct change *changes;
    bool lost;

    if (err != KVG_OK)
        return err;
    changes = take_changes(publishing, &lost);
    anew |= lost;
    while (changes != NULL) {
        struct change *next = changes->next;

        anew = anew || !apply(publishing, &changes->change);
        free(changes);
        changes = next;
    }
    if (anew || publisher->broken)
        err = begin(publishing, error);
    while (err == KVG_OK &&
           (publisher->pending_count != 0 || kvc_now_ns() >= publishing->beat_ns)) {
        publishing->beat_ns = kvc_now_ns() + HEARTBEAT_NS;
        err = kvi_publisher_flush(publisher, kvc_wall_ms(), &message);
        if (err == KVG_OK)
            send_message(publishing, message);
        else
            kvi_fail(error, err, "publisher", kvg_strerror(err));
    }
    return err;
}

/* Replays ---------------------------------------------------------------------------------- */

static bool send_kept(struct publishing *publishing, zmq_msg_t *identity,
    uint64_t sequence, const void *payload, size_t bytes)
{
    uint8_t number[8];

    kvg_sequence_encode(sequence, number);
    return zmq_send(publishing->router, zmq_msg_data(identity), zmq_msg_size(identity),
               ZMQ_SNDMORE | ZMQ_DONTWAIT) >= 0 &&
           zmq_send(publishing->router, "", 0, ZMQ_SNDMORE | ZMQ_DONTWAIT) >= 0 &&
           zmq_send(publishing->router, number, sizeof(number),
               ZMQ_SNDMORE | ZMQ_DONTWAIT) >= 0 &&
           zmq_send(publishing->router, payload, bytes, ZMQ_DONTWAIT) >= 0;
}

/* To one that does not read the answer ends early; it asks again from where it is. */
static void answer_replay(
    struct publishing *publishing, zmq_msg_t *identity, uint64_t sequence)
{
    const struct kvi_publisher_message *message;

    while ((message = kvi_publisher_kept(&publishing->publisher, sequence)) != NULL) {
        if (!send_kept(publishing, identity, message->sequence, message->payload,
                message->bytes))
            return;
        sequence = message->sequence + 1;
    }
    send_kept(publishing, identity, UINT64_MAX, "", 0);
}

/* One request; false if there is none. */
static bool take_request(struct publishing *publishing)
{
    zmq_msg_t frames[3];
    unsigned count = 0;
    int more = 1;
    unsigned i;

    for (i = 0; i < 3; i++)
        zmq_msg_init(&frames[i]);
    while (more != 0) {
        zmq_msg_t *frame = &frames[count < 3 ? count : 2];

        if (zmq_msg_recv(frame, publishing->router, ZMQ_DONTWAIT) < 0)
            break;
        more = zmq_msg_more(frame);
        count++;
    }
    if (count == 3 && zmq_msg_size(&frames[1]) == 0 && zmq_msg_size(&frames[2]) == 8) {
        const uint8_t *number = zmq_msg_data(&frames[2]);
        uint64_t sequence = 0;

        for (i = 0; i < 8; i++)
            sequence = sequence << 8 | number[i];
        answer_replay(publishing, &frames[0], sequence);
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
    struct publishing *publishing = context;
    struct kvi_publisher *publisher = &publishing->publisher;
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
    pthread_mutex_lock(&publishing->lock);
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
    pthread_mutex_unlock(&publishing->lock);
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
    struct publishing *publishing, const char *text, struct kvg_error *error)
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
    publishing->admin =
        MHD_start_daemon(MHD_USE_AUTO | MHD_USE_INTERNAL_POLLING_THREAD |
                             (found->ai_family == AF_INET6 ? MHD_USE_IPv6 : 0),
            0, NULL, NULL, on_admin, publishing, MHD_OPTION_SOCK_ADDR, found->ai_addr,
            MHD_OPTION_LISTENING_ADDRESS_REUSE, 1u, MHD_OPTION_END);
    freeaddrinfo(found);
    return publishing->admin != NULL
               ? KVG_OK
               : kvi_fail(error, KVG_EIO, "admin", "cannot listen there");
}

static void *bind_socket(struct publishing *publishing, int type, int hwm,
    const char *endpoint, char bound[ENDPOINT_BYTES])
{
    size_t bytes = ENDPOINT_BYTES;
    void *socket = zmq_socket(publishing->zmq, type);
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
        zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, bound, &bytes) == 0)
        return socket;
    zmq_close(socket);
    return NULL;
}

static kvg_err open_all(struct publishing *publishing, const char *url,
    const struct publish_options *options, struct kvg_error *error)
{
    struct kvg_store_options store_options = {.struct_bytes = sizeof(store_options),
        .hook = {on_changed, publishing},
        .read_only = true};
    kvg_err err = kvg_store_open(url, &store_options, &publishing->store, error);

    if (err != KVG_OK)
        return err;
    if ((kvg_store_flags(publishing->store) & KVG_STORE_LISTS) == 0)
        return kvi_fail(error, KVG_EUNSUPPORTED, "store", "cannot be listed");
    err = kvi_publisher_init(&publishing->publisher, kvg_alloc_default(), kvc_now_ns());
    if (err != KVG_OK)
        return kvi_fail(error, err, "publisher", kvg_strerror(err));
    publishing->zmq = zmq_ctx_new();
    if (publishing->zmq == NULL)
        return kvi_fail(error, KVG_ENOMEM, "zeromq", "cannot make a context");
    publishing->pub =
        bind_socket(publishing, ZMQ_PUB, SEND_HWM, options->bind, publishing->bind);
    if (publishing->pub == NULL)
        return kvi_fail(error, KVG_EIO, "bind", zmq_strerror(zmq_errno()));
    publishing->router = bind_socket(
        publishing, ZMQ_ROUTER, REPLAY_HWM, options->replay, publishing->replay);
    if (publishing->router == NULL)
        return kvi_fail(error, KVG_EIO, "replay", zmq_strerror(zmq_errno()));
    err = take_turn(publishing, error);
    return err == KVG_OK ? open_admin(publishing, options->admin, error) : err;
}

static void close_all(struct publishing *publishing)
{
    struct change *changes;
    bool lost;

    if (publishing->admin != NULL)
        MHD_stop_daemon(publishing->admin);
    if (publishing->router != NULL)
        zmq_close(publishing->router);
    if (publishing->pub != NULL)
        zmq_close(publishing->pub);
    if (publishing->zmq != NULL)
        zmq_ctx_term(publishing->zmq);
    kvg_store_close(publishing->store);
    changes = take_changes(publishing, &lost);
    while (changes != NULL) {
        struct change *next = changes->next;

        free(changes);
        changes = next;
    }
    if (publishing->publisher.alloc != NULL)
        kvi_publisher_fini(&publishing->publisher);
    pthread_mutex_destroy(&publishing->lock);
    pthread_mutex_destroy(&publishing->changes_lock);
}

static kvg_err run(struct publishing *publishing, struct kvg_error *error)
{
    kvg_err err = KVG_OK;

    while (err == KVG_OK && !kvc_stopped) {
        zmq_pollitem_t item = {.socket = publishing->router, .events = ZMQ_POLLIN};

        zmq_poll(&item, 1, TURN_MS);
        pthread_mutex_lock(&publishing->lock);
        err = take_turn(publishing, error);
        while (err == KVG_OK && take_request(publishing))
            continue;
        pthread_mutex_unlock(&publishing->lock);
    }
    return err;
}

int kvc_publish_main(int argc, char **argv)
{
    struct publish_options options = {.bind = NULL};
    struct publishing publishing = {.store = NULL};
    struct kvg_error error = {.code = KVG_OK};
    char text[KVC_ERROR_BYTES];
    int exit_code;
    int at = kvc_options(&USAGE, argc, argv, &options, &exit_code);
    kvg_err err;

    if (at < 0)
        return exit_code;
    if (argc - at != 1)
        return kvc_misused(&USAGE, "one STORE is needed");
    kvc_catch_signals();
    pthread_mutex_init(&publishing.lock, NULL);
    pthread_mutex_init(&publishing.changes_lock, NULL);
    publishing.changes_end = &publishing.changes;
    err = open_all(&publishing, argv[at], &options, &error);
    if (err == KVG_OK) {
        if (!options.common.quiet)
            fprintf(stderr, "publishing %s at %s, replays at %s, epoch %" PRIu64 "\n",
                kvg_store_url_text(publishing.store), publishing.bind, publishing.replay,
                publishing.publisher.epoch);
        err = run(&publishing, &error);
    }
    close_all(&publishing);
    return err == KVG_OK ? KVC_FINE
                         : kvc_failed(&USAGE, "%s", kvc_error_text(&error, text));
}
